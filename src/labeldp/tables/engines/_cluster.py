# SPDX-License-Identifier: Apache-2.0
"""The engine of a cluster: two eager passes over the same input.

The first pass reads ids, label and prior columns, and computes the row set, the digest of the prior
and the pin. In the second pass workers draw and write files, and the pin over the attempts that
count must be the same.

A job is what workers run on the Arrow batches of one partition: a frozen value that can be pickled,
with a handle by which a worker fetches the secrets. Jobs whose results are files or sums return
summaries, one row each. Every attempt writes files under names of its own, and the driver publishes
those that the summaries name: files of repeated attempts at the same partition do not count.
"""

import copy
import logging
import pickle
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp import __version__, _validate, errors
from labeldp.custody._draw import (
    BatchDraw,
    FirstPass,
    PassSums,
    RunFacts,
    SecondPass,
    SecretParts,
    run_secrets_of,
)
from labeldp.custody._request import RunSecret
from labeldp.custody._stream import TableDraw, TablePin, changed_input
from labeldp.errors import InvalidInput, LabelDPError, ReleaseError
from labeldp.ledger._ledger import Ledger
from labeldp.ledger._rowset import RowSetBuilder
from labeldp.noise._words import id_blocks, one_word
from labeldp.receipt import Receipt
from labeldp.tables._evidence import check_claims, check_unchanged, warn_of_copies, warn_of_names
from labeldp.tables._place import Part, Place, Staging, can_work_on
from labeldp.tables._priors import Answers, AnswersFolder, OpenPrior, weights_of, write_answers
from labeldp.tables._release import (
    Manifest,
    OutputFacts,
    ReleaseFacts,
    passed_on,
    released_already,
    to_json,
    unchanged,
)
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.engines._local import Progress, Reader, published, silent
from labeldp.tables.formats._parquet import (
    WriterSettings,
    check_holds,
    check_layout,
    layout_of_paths,
    released_sink,
    written_types,
)
from labeldp.tables.formats._table import (
    DRAWN,
    EVIDENCE,
    WEIGHTS,
    Columns,
    LabelCodec,
    PartsSink,
    Shape,
    Source,
    as_binary,
    check_own,
    codec_of,
    draw_salt,
    evidence_width,
    is_text,
    row_ids,
)

_log = logging.getLogger("labeldp")
MOST_NAMES = 50_000_000
"""Largest number of text ids that are compared with those of other runs: the driver holds 8 bytes
for each, at times twice."""
ROWS = 1 << 17  # rows processed at once
SUMMARY = pa.schema([("summary", pa.binary())])
WORD, KEPT, ROW_COUNT, NAME = "__labeldp_word", "__labeldp_kept", "__labeldp_rows", "__labeldp_id"
CHECK = ("__labeldp_check_0", "__labeldp_check_1")
OURS = re.compile(r"labeldp\.(?:errors|noise\._secrets)\.(\w+): (.+)$", re.MULTILINE)
MISSING = re.compile(r"No module named '([\w.]+)'")
Table = Any
"""An engine's own table: a DataFrame of Spark, a Dataset of Ray."""
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, repr=False)  # engines print the arguments of a failed task
class Shipment:
    """Secrets and row sets that the driver sends to its workers as the engine's private data, so
    that no query plan or closure holds them.

    Attributes
    ----------
    secrets : sequence
        The result of `TablePin.for_workers` or `TableDraw.for_workers`.
    rows : RowSetBuilder or None
        An empty builder, with the ledger's key for names.
    """

    secrets: SecretParts
    rows: RowSetBuilder | None = None

    def run_secrets(self, facts: RunFacts) -> list[RunSecret]:
        """Compute the runs' secrets, on a worker."""
        return run_secrets_of(self.secrets, facts)


class Handle(Protocol):
    """A reference to a shipment; pickling copies the reference only, and a worker fetches the
    content."""

    def fetch(self) -> Shipment:
        """Return the shipment."""


@dataclass(frozen=True)
class Work:
    """What every job of a release needs: public facts, and the handle of the secrets.

    Attributes
    ----------
    facts : RunFacts
    spec : ReleaseSpec
    shape : Shape
    handle : Handle
    prior : OpenPrior or None
        The prior that this pass asks; None for prior columns, stored answers, or no prior.
    answered : bool
        True if the rows have a column of stored answers.
    version : str
        The driver's version of labeldp.
    """

    facts: RunFacts
    spec: ReleaseSpec
    shape: Shape
    handle: Handle
    prior: OpenPrior | None = None
    answered: bool = False
    version: str = __version__

    def fetch(self) -> Shipment:
        """Fetch the shipment, on a worker, which must have the driver's labeldp: another one may
        draw by other rules."""
        if self.version != __version__:
            raise ReleaseError(
                f"Expected labeldp {self.version} in the workers' Python, as on the driver, got"
                f" {__version__}. Install it there."
            )
        return self.handle.fetch()

    @property
    def reader(self) -> Reader:
        """The reader of the rows' facts."""
        return Reader(self.spec, self.shape.codec, self.prior, self.answered)


@dataclass(frozen=True)
class Drawing:
    """The settings of the second pass: charge, prior digest, output folder, metadata, and the salt
    of the digest of drawn rows."""

    receipt: Receipt
    prior: str
    stage: str
    staging: Staging
    settings: WriterSettings
    metadata: str
    salt: str

    def second(self, work: Work) -> SecondPass:
        """Make the second pass, on a worker."""
        (secret,) = work.fetch().run_secrets(work.facts)
        return SecondPass(work.facts, secret, self.receipt, self.prior, self.stage)

    def sink(self, work: Work) -> PartsSink:
        """Open the sink of released batches."""
        return PartsSink(
            self.staging,
            lambda place: released_sink(place, work.shape, self.settings, self.metadata),
        )


@dataclass(frozen=True)
class Job(ABC):
    """What workers run on the batches of one partition: a value that can be pickled.

    An error of a job that returns summaries is a summary, too, so that the engine does not retry
    the task.
    """

    work: Work

    @property
    def schema(self) -> pa.Schema:
        """The schema of the resulting batches; `SUMMARY` unless the job returns rows."""
        return SUMMARY

    def __call__(self, batches: Batches) -> Batches:
        """Process the batches of one partition."""
        try:
            if self.schema is not SUMMARY:
                yield from self.run(regrouped(batches))
                return
            try:
                found: list[object] = list(self.run(regrouped(batches)))
            # The next attempt would fail alike. As a result it ends the task without a retry, and
            # without the engine's traceback, which may quote data.
            except InvalidInput as error:
                found = [error]
            yield pa.record_batch(
                [pa.array([pickle.dumps(each) for each in found], pa.binary())], schema=SUMMARY
            )
        except LabelDPError:
            raise
        except Exception as error:  # its text may quote data, and engines log it
            raise ReleaseError(
                f"Expected a partition that can be worked on, got {type(error).__name__}. The"
                " engine may try again."
            ) from None

    @abstractmethod
    def run(self, batches: Batches) -> Iterator[Any]:
        """Process batches of about `ROWS` rows to summaries or batches of rows."""

    def rows(self, batches: Batches) -> Batches:
        """Give batches the table's columns and types."""
        return (conformed(batch, self.work.shape.schema) for batch in batches)


FirstSummary = tuple[PassSums, RowSetBuilder | None]
"""The result of the first pass over one partition."""


@dataclass(frozen=True)
class SecondSummary:
    """The result of the second pass over one partition: files, sums, number of dropped rows, and
    the word of the first kept row."""

    parts: tuple[Part, ...]
    check: tuple[int, int, int]
    dropped: int = 0
    first_word: int = 0


# The driver
# --------------------------------------------------------------------------------------------------


class Cluster(Protocol):
    """The operations that Spark and Ray provide. None of them handles labels as such.

    Attributes
    ----------
    name : str
    fix : str
        For an error's message: why the rows of a table may differ between two passes, and what to
        do.
    """

    name: str
    fix: str

    def schema(self, table: Table) -> pa.Schema:
        """Return the names and Arrow types of the columns."""

    def files(self, table: Table) -> Sequence[str]:
        """List the paths of the files that a table is read from, as far as the engine knows
        them."""

    def altered(self, table: Table) -> Mapping[str, str]:
        """Name the types of those columns that have another type once they were written and
        read."""

    def read(self, files: Sequence[Place]) -> Table:
        """Read Parquet files that workers wrote, in this order if the engine keeps one."""

    def select(self, table: Table, names: Sequence[str]) -> Table:
        """Select columns, so that only these are read."""

    def joined(self, table: Table, other: Table, on: Sequence[str], more: str, rows: int) -> Table:
        """Add column `more` of another table to the rows that have the same values in the columns
        `on` (an inner join)."""

    def ship(self, shipment: Shipment) -> AbstractContextManager[Handle]:
        """Send a shipment to the workers privately for a `with` block, and take it back
        afterwards."""

    def summaries(self, table: Table, job: Job) -> Iterable[bytes]:
        """Run a job that returns summaries on every partition; return those of the attempts that
        count, in the order of partitions."""

    def flow(self, table: Table, job: Job, schema: pa.Schema) -> Table:
        """Run a job that returns rows on every partition."""

    def ordered_summaries(self, table: Table, by: str, rows: int, job: Job) -> Iterable[bytes]:
        """Run a job as `summaries`, on partitions by ranges of a uniformly distributed int64
        column, each sorted by it."""

    def capped(self, table: Table, unit: str, by: str, cap: int, mark: str, rows: int) -> Table:
        """Add a column `mark`, which is true for the `cap` rows of each unit with the smallest
        values of `by`."""

    def repeats(self, table: Table, column: str, rows: int) -> bool:
        """Tell whether any value of a column occurs twice."""


class ClusterEngine:
    """The `Engine` (`labeldp.tables._release`) of Spark or Ray.

    Parameters
    ----------
    cluster : Cluster
    table : DataFrame of Spark or Dataset of Ray
    progress : function, optional
    files : Source, optional
        The files that the table was read from: their manifest names the noisy columns of earlier
        releases. None: they are not known.
    """

    many = True
    source: Place | None = None

    def __init__(
        self,
        cluster: Cluster,
        table: Table,
        progress: Progress = silent,
        files: Source | None = None,
    ):
        self._cluster, self._table, self._progress, self.files = cluster, table, progress, files
        self.earlier: Sequence[Manifest] = ()
        self.names: Sequence[str] = ()
        self.types: Mapping[str, str] = {}
        self.written: Mapping[str, str] = {}

    def dataset(self, spec: ReleaseSpec, out: Place) -> str:
        """Return the data set's name, which the spec must have, since a cluster's table has
        none."""
        self._out = out
        return check_spec(spec, self._cluster.name)

    def codec(self, spec: ReleaseSpec, ledger: Ledger) -> LabelCodec:
        """Return the codec of the declared classes, and check the table's columns; refuse private
        ones as ids, unit or prior."""
        self._schema = self._cluster.schema(self._table).remove_metadata()
        self.names = self._schema.names
        check_holds(self._schema)
        self.written = written_types(self._schema)
        self.types = {**self.written, **self._cluster.altered(self._table)}
        self.earlier = () if self.files is None else passed_on(self.files, spec.labels)
        for name in spec.columns:
            if name not in self.names:
                raise InvalidInput(
                    "Expected a column that the table has, got"
                    f" {name!r}.{_validate.suggest(name, self.names)} Its columns:"
                    f" {', '.join(self.names[:20])}."
                )
        check_own(self.names)
        if len(set(self.names)) < len(self.names):
            raise InvalidInput("Expected distinct column names, got one twice. Rename it.")
        # A cluster's table has no manifest beside it. Only the evidence, named after all columns of
        # a release, shows that it was released.
        drawn = [name.removesuffix(EVIDENCE) for name in self.names if name.endswith(EVIDENCE)]
        for label in spec.labels:
            if any(label in (name, *_validate.parted(name)) for name in drawn):
                raise released_already(label)
        layout = layout_of_paths(self._cluster.files(self._table))
        for label, classes in zip(spec.labels, spec.lists, strict=True):
            check_layout(layout, label, classes, public=spec.order == "keep")
        check_unchanged(unchanged(spec.columns, spec), str(spec.dataset), ledger, self.files)
        return codec_of(
            spec.classes,
            spec.label,
            lambda name: self._schema.field(name).type,
            text_table=False,
        )

    def check_private(self, spec: ReleaseSpec, dataset: str, ledger: Ledger) -> None:
        """Refuse private columns beside the label, noisy ones too: no pass over a cluster's table
        proves them."""
        names = unchanged(self.names, spec)
        check_unchanged(names, dataset, ledger)
        # The next manifest repeats what that of the files says of earlier columns, so this process
        # reads these columns and proves it.
        if self.files is not None:
            check_claims(self.files, names, ledger)
        warn_of_names(names, dataset, ledger, self.earlier)
        warn_of_copies(spec.labels, dataset, ledger)

    def passes(
        self, spec: ReleaseSpec, codec: LabelCodec, pin: TablePin, prior: OpenPrior | None
    ) -> "ClusterPasses":
        """Return the passes over partitions, on workers."""
        shape = Shape(self._schema, codec.releasing(pin.facts.law), evidence_width(pin.facts.law))
        return ClusterPasses(
            self._cluster, self._table, self._out, spec, shape, pin, prior, self._progress
        )


class ClusterPasses:
    """The two passes over a cluster's table for one run."""

    def __init__(
        self,
        cluster: Cluster,
        table: Table,
        out: Place,
        spec: ReleaseSpec,
        shape: Shape,
        pin: TablePin,
        prior: OpenPrior | None,
        progress: Progress,
    ):
        self._cluster, self._table, self._out, self._spec, self._shape, self._pin = (
            cluster,
            table,
            out,
            spec,
            shape,
            pin,
        )
        self._prior, self._progress = prior, progress

    # First pass
    # ----------------------------------------------------------------------------------------------

    def pin(self) -> str:
        """Run the first pass, which checks and pins every row."""
        narrow = self._cluster.select(
            self._table, Reader(self._spec, self._shape.codec, self._prior).columns
        )
        # Workers add up their rows. The driver merges sums and row sets, and reads no label.
        rows = self._row_set(narrow)
        with self._cluster.ship(Shipment(self._pin.for_workers(), rows)) as handle:
            work = self._work(handle, narrow)
            found: list[FirstSummary] = read_summaries(
                self._cluster.summaries(narrow, PinJob(work, self._out))
            )
            for part in found:
                # The engine returns the summary of one attempt for each task, so a retried task
                # counts once.
                self._pin.absorb(*part)
            if not self._pin.sums.rows:
                raise InvalidInput("Expected rows, got none: the table is empty.")
            self._pin.require_distinct(lambda: self._ids_repeat(handle))
        self._progress("check", 1, 1)
        return ""

    def _ids_repeat(self, handle: Handle) -> bool:
        """Shuffle the ids once to find duplicates, when the row set alone cannot decide."""
        names = self._cluster.select(self._table, self._spec.ids)
        job = NameJob(self._work(handle, names))
        return self._cluster.repeats(
            self._cluster.flow(names, job, job.schema), NAME, self._pin.sums.rows
        )

    def _row_set(self, table: Table) -> RowSetBuilder | None:
        """Make the builder of the run's row set; None for more than `MOST_NAMES` text ids."""
        names = [*self._spec.ids, *([] if self._spec.unit is None else [self._spec.unit])]
        # anything but one column of integers each
        text = len(self._spec.ids) > 1 or not all(
            pa.types.is_integer(self._shape.schema.field(name).type) for name in names
        )
        # A run without a row set counts for every row. That is more than it spends, which is safe.
        if text and table.count() > MOST_NAMES:  # of Parquet files engines read the metadata only
            _log.warning(
                "Above %d rows text ids are not told apart: this run counts against every run of"
                " the column.",
                MOST_NAMES,
            )
            return None
        return self._pin.row_set_builder(integers=not text)

    # Between the passes, for a model prior
    # ------------------------------------------------------------------------------------------

    def ask(self, folder: AnswersFolder, prior: OpenPrior) -> Answers:
        """Run a model prior once, and store its answers. No label is read."""
        narrow = self._cluster.select(
            self._table, list(dict.fromkeys([*self._spec.ids, *prior.columns]))
        )
        with self._cluster.ship(Shipment([])) as handle:  # asking needs no secret
            work = replace(self._work(handle, narrow), prior=prior)
            found: list[Answers] = read_summaries(
                self._cluster.summaries(narrow, AskJob(work, folder))
            )
        self._progress("prior", 1, 1)
        return Answers.merged(found)

    # Second pass
    # ----------------------------------------------------------------------------------------------

    def draw(
        self,
        run: TableDraw,
        facts: ReleaseFacts,
        staging: Staging,
        scratch: Path,
        answers: Sequence[Place],
    ) -> OutputFacts:
        """Run the second pass, in which workers draw and write."""
        with self._cluster.ship(Shipment(run.for_workers())) as handle:
            table = self._table
            if answers:
                # Joined by id, because partitions have no order: a row must never be drawn with
                # another row's weights.
                table = self._cluster.joined(
                    table, self._cluster.read(answers), self._spec.ids, WEIGHTS, run.n_rows
                )
            work = replace(self._work(handle, table), answered=bool(answers))
            text = [
                field.name
                for field in self._shape.released()
                if is_text(field.type) or pa.types.is_dictionary(field.type)
            ]
            drawing = Drawing(
                run.receipt,
                run.prior,
                run.stage_name,
                staging,
                # dictionaries for text only: for numbers they mostly cost more time than they save
                # bytes
                {"compression": "snappy", "use_dictionary": text},
                to_json(facts.shared, indent=None),
                draw_salt(facts.shared),
            )
            try:
                found = self._second(table, run.n_rows, work, drawing)
            except InvalidInput:
                # the first pass accepted these rows, so they have changed
                raise changed_input(self._cluster.fix) from None
        # A table is evaluated in each pass, and may differ (a source that changed, a random
        # function): then nothing is published.
        rows, first, second = (
            sum(column) for column in zip(*(part.check for part in found), strict=True)
        )
        run.check_pin((rows, first % 2**64, second % 2**64), self._cluster.fix)
        self._progress("draw", 1, 1)
        return OutputFacts(
            tuple(part for each in found for part in each.parts),
            sum(each.dropped for each in found),
        )

    def _second(
        self, table: Table, n_rows: int, work: Work, drawing: Drawing
    ) -> list[SecondSummary]:
        if self._spec.unit is not None:
            # The words depend on secret and id, so that each attempt, on any worker, keeps the same
            # rows of a unit.
            job = CapJob(work)
            words, cap = self._cluster.flow(table, job, job.schema), self._spec.max_rows_per_unit
            table = self._cluster.capped(words, self._spec.unit, WORD, cap, KEPT, n_rows)
        if self._spec.order == "keep":
            return read_summaries(self._cluster.summaries(table, DrawAndWriteJob(work, drawing)))
        draw = DrawJob(work, drawing)
        rows, write = self._cluster.flow(table, draw, draw.schema), WriteJob(work, drawing)
        found: list[SecondSummary] = read_summaries(
            self._cluster.ordered_summaries(rows, WORD, n_rows, write)
        )
        # Ranges come back in any order, and are put in the order of their words.
        return sorted(found, key=lambda part: part.first_word)

    # Details
    # ----------------------------------------------------------------------------------------------

    def _work(self, handle: Handle, table: Table) -> Work:
        shape = replace(self._shape, schema=self._cluster.schema(table).remove_metadata())
        return Work(self._pin.facts, self._spec, shape, handle, self._prior)


def check_spec(spec: ReleaseSpec, engine: str) -> str:
    """Check that a spec has ids, declared classes and a data set's name, which a cluster needs;
    return the name."""
    if not spec.ids:
        raise InvalidInput(
            f"Expected a column that names each row, got none. {engine} tries again and moves rows"
            " about, so only an id says which row is which: id='COLUMN'."
        )
    if spec.infers_classes:
        raise InvalidInput(
            f"Expected declared classes with {engine}, which reads none off the private labels."
            " Pass classes=['no', 'yes'] with yours."
        )
    if spec.histogram is not None:
        raise InvalidInput(
            f"Expected a prior that is known before the release with {engine}, got a histogram of"
            " the column itself. Take the local engine, which asks for it between its passes."
        )
    if not spec.dataset:
        raise InvalidInput(
            "Expected a data set's name, under which the budget is kept: dataset='NAME'."
        )
    return spec.dataset


# Results and errors of workers
# --------------------------------------------------------------------------------------------------


def read_summaries(column: Iterable[bytes]) -> list[Any]:
    """Unpickle the summaries, in the order of partitions; raise an error that a worker returned."""
    # safe: written by this release's workers, not read from a file
    found = [pickle.loads(each) for each in column]
    if error := next((each for each in found if isinstance(each, LabelDPError)), None):
        raise error
    return found


@contextmanager
def plain_errors(
    is_of_engine: Callable[[BaseException], bool],
    told: Callable[[BaseException], LabelDPError | None],
    engine: str,
) -> Iterator[None]:
    """Replace an engine's errors, which have a worker's traceback and may quote data, by messages
    of our own: what `told` or the worker says, or the name of the error."""
    try:
        yield
    except Exception as error:
        if not is_of_engine(error):
            raise
        # Only the name of the error condition, because the message may quote values.
        condition = getattr(error, "getCondition", lambda: None)()
        raise (
            told(error)
            or told_by_workers(str(error))
            or ReleaseError(
                f"Expected {engine} to finish, got"
                f" {type(error).__name__}{f' ({condition})' if condition else ''}. Nothing was"
                f" published; the same call picks up a charge that was made. {engine}'s own log"
                " says more."
            )
        ) from None


def told_by_workers(text: str) -> LabelDPError | None:
    """Extract the first error of ours, or a missing module, from the text of an engine's error;
    None if there is neither."""
    # The text has a worker's traceback, which may quote data. Only a message of our own is taken
    # from it, which does not.
    ours, missing = OURS.search(text), MISSING.search(text)
    # The release secret that a worker finds has an error of its own.
    kind = getattr(errors, ours[1], errors.LedgerError) if ours else None
    if ours and isinstance(kind, type) and issubclass(kind, LabelDPError):
        return kind(ours[2].strip())
    if missing:  # labeldp, or the module of a law of the user's own
        return ReleaseError(
            f"Expected {missing[1]} in the workers' Python, got a worker without it. Install it"
            " there, or send it along."
        )
    return None


# What workers run
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PinJob(Job):
    """Run the first pass on one partition: check every row and add it to the sums, and that the
    second pass can write here."""

    out: Place

    def run(self, batches: Batches) -> Iterator[FirstSummary]:
        work, shipment = self.work, self.work.fetch()
        # Before the charge: this process may have other disks than the driver, or another user.
        if not can_work_on(self.out):
            raise InvalidInput(
                f"Expected an output that all workers can write to, got {self.out}, where one"
                " cannot. Choose a folder on a disk that they share with this process, under the"
                " same user, or a place in a store."
            )
        first = FirstPass(work.facts, shipment.run_secrets(work.facts))
        rows = copy.deepcopy(shipment.rows)  # empty: tasks of one worker may share the shipment
        for batch in self.rows(batches):
            facts = work.reader(batch, None)
            first.add(facts.codes, facts.ids, units=facts.units, prior=facts.prior)
            if rows is not None:
                rows.add(facts.ids, facts.units)
        yield first.sums, rows


@dataclass(frozen=True)
class AskJob(Job):
    """Run a model prior on one partition, between the passes, and store its answers. No label is
    present.

    Attributes
    ----------
    work : Work
        Its `prior` is asked.
    folder : AnswersFolder
    """

    folder: AnswersFolder

    def run(self, batches: Batches) -> Iterator[Answers]:
        yield write_answers(self._asked(batches), self.work.spec.ids, self.work.facts, self.folder)

    def _asked(self, batches: Batches) -> Iterator[tuple[Columns, NDArray[np.float64]]]:
        prior = self.work.prior
        assert prior is not None
        for rows in self.rows(batches):
            yield rows, weights_of(prior, rows, None, self.work.facts.law.n_classes)


@dataclass(frozen=True)
class NameJob(Job):
    """Compute a keyed hash of each row's id, 12 bytes, in which repeats are searched."""

    @property
    def schema(self) -> pa.Schema:
        """The hashes."""
        return pa.schema([(NAME, pa.binary())])

    def run(self, batches: Batches) -> Batches:
        # Keyed, because a shuffle writes it to disk, where unkeyed hashes of names could be
        # guessed.
        key = self.work.fetch().run_secrets(self.work.facts)[0].key("ids")
        for rows in self.rows(batches):
            raw = (
                id_blocks(row_ids(rows, self.work.spec.ids), key)
                .templates()
                .view(np.uint8)
                .reshape(-1, 16)[:, 1:13]
            )
            yield pa.record_batch([as_binary(raw)], schema=self.schema)


@dataclass(frozen=True)
class CapJob(Job):
    """Add to each row the secret word by which a unit's cap chooses rows."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the input, and the word."""
        return self.work.shape.schema.append(pa.field(WORD, pa.int64()))

    def run(self, batches: Batches) -> Batches:
        (secret,) = self.work.fetch().run_secrets(self.work.facts)
        ids, cap = secret.key("ids"), secret.key("unit-cap")
        for rows in self.rows(batches):
            words = one_word(cap, id_blocks(row_ids(rows, self.work.spec.ids), ids))
            yield pa.record_batch([*rows.columns, sortable(words)], schema=self.schema)


@dataclass(frozen=True)
class DrawAndWriteJob(Job):
    """Run the second pass on one partition whose rows keep their order: draw and write it."""

    drawing: Drawing

    def run(self, batches: Batches) -> Iterator[SecondSummary]:
        second, sink, dropped = self.drawing.second(self.work), self.drawing.sink(self.work), 0
        try:
            for batch in batches:
                _, released, _ = _released(batch, self.work, self.drawing, second)
                dropped += len(batch) - len(released)
                sink.write(released)
            yield SecondSummary(
                _finished(sink), second.sums.check(self.drawing.receipt.run_id), dropped
            )
        finally:
            sink.abort()


@dataclass(frozen=True)
class DrawJob(Job):
    """Draw one partition whose rows will be shuffled: add to each row the word to sort by, and its
    addends to the sums.

    Rows that get no output are replaced by one row with the sum of their addends and no label,
    which `WriteJob` drops.
    """

    drawing: Drawing

    @property
    def schema(self) -> pa.Schema:
        """The released columns, and the columns that `WriteJob` needs."""
        more = [
            *(pa.field(name, pa.int64()) for name in (DRAWN, WORD, *CHECK, ROW_COUNT)),
            pa.field(KEPT, pa.bool_()),
        ]
        return pa.schema([*self.work.shape.released(), *more])

    def run(self, batches: Batches) -> Batches:
        second = self.drawing.second(self.work)
        for batch in batches:
            rows, released, drawn = _released(
                batch, self.work, self.drawing, second, check_rows=True
            )
            assert drawn.check is not None
            if len(released):
                yield self._with(
                    released, second.order_words(drawn.blocks), drawn.check[drawn.kept], 1
                )
            if len(released) < len(rows):
                # The sums must cover these rows, too, to agree with the first pass; but their raw
                # labels must not be shuffled.
                others = drawn.check[~drawn.kept]
                first, shape = rows.slice(int(np.argmin(drawn.kept)), 1), self.work.shape
                width = shape.evidence_bytes
                blank = shape.rewrite(
                    first, np.zeros(1, np.int32), np.zeros((1, width), np.uint8) if width else None
                )
                yield self._with(
                    blank.append_column(DRAWN, pa.array([0], pa.int64())),
                    np.zeros(1, np.uint64),
                    others.sum(axis=0, keepdims=True),
                    0,
                    len(others),
                )

    def _with(
        self,
        rows: pa.RecordBatch,
        words: NDArray[np.uint64],
        check: NDArray[np.uint64],
        kept: int,
        stands_for: int = 1,
    ) -> pa.RecordBatch:
        sums = [pa.array(np.ascontiguousarray(column).view(np.int64)) for column in check.T]
        more = [
            sortable(words),
            *sums,
            pa.array(np.full(len(rows), stands_for)),
            pa.array(np.full(len(rows), bool(kept))),
        ]
        return pa.record_batch([*rows.columns, *more], schema=self.schema)


@dataclass(frozen=True)
class WriteJob(Job):
    """Write one partition of drawn rows, which are sorted by their words."""

    drawing: Drawing

    def run(self, batches: Batches) -> Iterator[SecondSummary]:
        sink, sums, rows, dropped, first = (
            self.drawing.sink(self.work),
            np.zeros(2, np.uint64),
            0,
            0,
            None,
        )
        schema = self.work.shape.released().append(pa.field(DRAWN, pa.int64()))
        try:
            for batch in batches:
                for i, name in enumerate(CHECK):
                    sums[i : i + 1] += (
                        batch.column(name)
                        .to_numpy(zero_copy_only=False)
                        .view(np.uint64)
                        .sum(dtype=np.uint64)
                    )
                # A row of `DrawJob` may stand for many that got no output.
                stands_for = int(batch.column(ROW_COUNT).to_numpy(zero_copy_only=False).sum())
                rows += stands_for
                kept = batch.filter(batch.column(KEPT))
                dropped += stands_for - len(kept)
                first = kept.column(WORD)[0].as_py() if first is None and len(kept) else first
                sink.write(conformed(kept, schema))
            yield SecondSummary(
                _finished(sink), (rows, int(sums[0]), int(sums[1])), dropped, first or 0
            )
        finally:
            sink.abort()


def _finished(sink: PartsSink) -> tuple[Part, ...]:
    """Finish and return the files of a partition; none if it had no rows."""
    if sink.rows:
        sink.close()
    return tuple(sink.parts)


def regrouped(batches: Batches) -> Batches:
    """Join the small batches of engines into batches of about `ROWS` rows, since each costs a fixed
    time."""
    waiting: list[pa.RecordBatch] = []
    for batch in filter(len, batches):
        waiting.append(batch)
        if sum(map(len, waiting)) >= ROWS:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting = []
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def _released(
    batch: pa.RecordBatch,
    work: Work,
    drawing: Drawing,
    second: SecondPass,
    *,
    check_rows: bool = False,
) -> tuple[pa.RecordBatch, pa.RecordBatch, BatchDraw]:
    """Draw a batch; return its rows with raw labels, the released rows, and the draw. `check_rows`
    as in `SecondPass.draw`."""
    rows, kept = conformed(batch, work.shape.schema), None
    if KEPT in batch.schema.names:
        kept = np.asarray(batch.column(KEPT).to_numpy(zero_copy_only=False), bool)
    facts = work.reader(rows, None)
    drawn = second.draw(
        facts.codes,
        facts.ids,
        prior=facts.prior,
        kept=kept,
        check_rows=check_rows,
        units=facts.units,
    )
    return (
        rows,
        published(rows, facts, drawn.noisy, drawn.kept, work.shape.rewrite, drawing.salt),
        drawn,
    )


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Give a batch a table's columns and types.

    Engines return text, times and nested columns in types of their own. Blocks of Ray may lack a
    column, which is null there.
    """
    return pa.record_batch([_conformed(batch, field) for field in schema], schema=schema)


def _conformed(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name not in batch.schema.names:
        return pa.nulls(len(batch), field.type)
    column = batch.column(field.name)
    try:
        return column if column.type == field.type else column.cast(field.type)
    except pa.ArrowException:  # whose text quotes a value
        raise ReleaseError(
            f"Expected column {field.name!r} of type {field.type} in all parts of the table, got"
            f" values of type {column.type} that it does not hold. Cast it, and run the same again:"
            " it picks up a charge that was made."
        ) from None


def sortable(words: NDArray[np.uint64]) -> pa.Array:
    """Convert words to int64 in the same order, since engines have no unsigned integers."""
    return pa.array((words ^ np.uint64(1 << 63)).view(np.int64))
