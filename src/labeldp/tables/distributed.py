# SPDX-License-Identifier: Apache-2.0
"""A release on a cluster, the driver's half: two passes over the same input, one charge between them, nothing lazy.

First pass (ids, label, prior columns): the row set, the digest of the prior, and a keyed sum over the labelled input. Charge. Second
pass: workers draw and write files of their own, and the keyed sum over the attempts that count must come out the same. Publish, settle.
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.privacy.ledger import Ledger, ledger_of
from labeldp.privacy.rowset import RowSetBuilder
from labeldp.privacy.stream import changed_input
from labeldp.receipt import Receipt
from labeldp.tables.batch import evidence_bytes
from labeldp.tables.digest import draw_salt
from labeldp.tables.jobs import (
    KEPT,
    NAME,
    WORD,
    AskJob,
    CapJob,
    DrawAndWriteJob,
    Drawing,
    DrawJob,
    FirstSummary,
    Handle,
    Job,
    Loan,
    NameJob,
    PinJob,
    SecondSummary,
    Work,
    WriteJob,
    read_summaries,
)
from labeldp.tables.labels import LabelCodec, check_type, parse_classes
from labeldp.tables.manifest import Released, manifest, shared_facts, to_json
from labeldp.tables.output import Output, Publication
from labeldp.tables.parquet import WriterSettings
from labeldp.tables.passes import Progress, Written, silent
from labeldp.tables.place import Place
from labeldp.tables.prior_answers import Answers, AnswersFolder, AskedOnce
from labeldp.tables.priors import opened, prior_identity
from labeldp.tables.request import run_of
from labeldp.tables.spec import ReleaseSpec, law_of
from labeldp.tables.staging import release_digest, scratch
from labeldp.tables.table import EVIDENCE, WEIGHTS, Shape, check_own

_log = logging.getLogger("labeldp")

MOST_NAMES = 50_000_000
"""Text ids of a run that are told from those of other runs: 8 bytes each pass through the driver, which holds them twice for a while."""

Table = Any
"""An engine's own table: a DataFrame of Spark, a Dataset of Ray."""


class Engine(Protocol):
    """What a cluster must be able to do; everything about labels is elsewhere."""

    name: str

    def schema(self, table: Table) -> pa.Schema:
        """Names and Arrow types of the columns."""
        ...

    def read(self, files: Sequence[Place]) -> Table:
        """A table of Parquet files that workers wrote, in this order as far as the engine keeps one."""
        ...

    def select(self, table: Table, names: Sequence[str]) -> Table:
        """Only these columns are read."""
        ...

    def joined(self, table: Table, other: Table, on: Sequence[str], more: str, rows: int) -> Table:
        """The columns of one table, and column `more` of another one whose rows have the same values in the columns `on`."""
        ...

    def lend(self, loan: Loan) -> AbstractContextManager[Handle]:
        """Get this to every worker privately; it is taken back at the end."""
        ...

    def summaries(self, table: Table, job: Job) -> Iterable[bytes]:
        """Run a job that gives summaries on every partition: those of the attempts that count, in the order of the partitions."""
        ...

    def flow(self, table: Table, job: Job, schema: pa.Schema) -> Table:
        """Run a job that gives rows on every partition."""
        ...

    def ordered_summaries(self, table: Table, by: str, rows: int, job: Job) -> Iterable[bytes]:
        """As `summaries`, over ranges of an int64 column whose values are spread evenly, each range's rows in its order."""
        ...

    def capped(self, table: Table, unit: str, by: str, cap: int, mark: str, rows: int) -> Table:
        """Add a column `mark`: true for the `cap` rows of each unit with the smallest `by`."""
        ...

    def repeats(self, table: Table, column: str, rows: int) -> bool:
        """Whether any value occurs twice."""
        ...

    def count(self, table: Table) -> int:
        """How many rows; asked only where ids are text."""
        ...


@dataclass(frozen=True)
class ClusterRelease:
    """What a release on a cluster left behind.

    Attributes
    ----------
    place : Place
        The folder of Parquet files.
    receipt : Receipt
    repeated : bool
        True if this very release had settled before: nothing was drawn and nothing was charged.
    manifest : dict
    """

    place: Place
    receipt: Receipt
    repeated: bool
    manifest: dict[str, object]


def release_on(
    engine: Engine,
    table: Table,
    out: object,
    spec: ReleaseSpec,
    ledger: Ledger | None = None,
    *,
    redraw: bool = False,
    progress: Progress = silent,
) -> ClusterRelease:
    """Release a cluster's table; see `labeldp.tables.spark.release`."""
    task = _ClusterTask(engine, table, Place.of(out), spec, ledger_of(ledger), redraw, progress)
    with scratch(task.out):  # one release at a time works on a name
        return task.run()


class _ClusterTask:
    """One release."""

    def __init__(self, engine: Engine, table: Table, out: Place, spec: ReleaseSpec, ledger: Ledger, redraw: bool, progress: Progress):
        self.engine, self.table, self.out, self.spec, self.ledger = engine, table, out, spec, ledger
        self.redraw, self.progress = redraw, progress
        self.dataset = check_spec(spec, engine.name)
        self.output = Publication(Output(out, many=True, stage=spec.stage_name), ledger, self.dataset, spec.label, redraw=redraw)
        self.output.check_free()
        schema = engine.schema(table).remove_metadata()
        _check_columns(schema, spec.label, self._named_columns())
        check_type(spec.label, schema.field(spec.label).type)
        codec = self._codec(schema)
        law = law_of(spec, len(codec.classes))
        self.prior = opened(spec.prior, codec.classes, spec.label, schema.names)
        identity = None if self.prior is None else prior_identity(self.prior)
        self.run_ = run_of(spec, law, codec.classes, self.dataset, ledger, redraw=redraw, prior=identity)
        self.answers = AskedOnce(self.run_, ledger, out) if self.prior is not None and not self.prior.exact else None
        self.shape = Shape(schema, codec, evidence_bytes(self.run_.law))

    def run(self) -> ClusterRelease:
        """Both passes, then publish and settle."""
        self._pin()
        self.output.check_owner(self.run_.lookup())
        receipt = self.run_.charge() if self.answers is None else self.answers.charge(self._ask)
        if self.run_.settled is not None:
            facts = self.output.repeat(receipt, self.run_.settled.artefact)
            return ClusterRelease(self.out, receipt, True, facts)
        facts = self._draw(receipt)
        if self.answers is not None:
            self.answers.forget()
        return ClusterRelease(self.out, receipt, False, facts)

    # First pass -------------------------------------------------------------------------------------------------------------------

    def _pin(self) -> None:
        exact = self.prior if self.answers is None else None
        narrow = self.engine.select(self.table, list(dict.fromkeys([*self._named_columns(), *(exact.columns if exact else ())])))
        rows = self._row_set(narrow)
        with self.engine.lend(Loan(self.run_.lend(), rows)) as handle:
            work = self._work(handle, narrow)
            found: list[FirstSummary] = read_summaries(self.engine.summaries(narrow, PinJob(work)))
            for part in found:
                self.run_.absorb(part.sums, part.rows)
            if not self.run_.sums.rows:
                raise InvalidInput("Expected rows, got none: the table is empty.")
            self.run_.require_distinct(lambda: self._ids_repeat(handle))
        self.progress("check", 1, 1)

    def _ids_repeat(self, handle: Handle) -> bool:
        """One shuffle of the ids, where their set does not tell."""
        names = self.engine.select(self.table, self.spec.ids)
        job = NameJob(self._work(handle, names))
        return self.engine.repeats(self.engine.flow(names, job, job.schema), NAME, self.run_.sums.rows)

    def _row_set(self, table: Table) -> RowSetBuilder | None:
        """What tells the rows of runs apart. Hashes of text pass through the driver: of too many, the run counts against every other."""
        text = self._has_text_ids()
        if text and self.engine.count(table) > MOST_NAMES:
            _log.warning("Above %d rows text ids are not told apart: this run counts against every run of the column.", MOST_NAMES)
            return None
        return self.run_.row_set_builder(integers=not text)

    # Between the passes, for a prior that is asked once -----------------------------------------------------------------------------

    def _ask(self, folder: AnswersFolder) -> Answers:
        assert self.prior is not None
        narrow = self.engine.select(self.table, list(dict.fromkeys([*self.spec.ids, *self.prior.columns])))
        with self.engine.lend(Loan([])) as handle:  # who asks needs no secret
            work = replace(self._work(handle, narrow), prior=self.prior)
            found: list[Answers] = read_summaries(self.engine.summaries(narrow, AskJob(work, folder)))
        self.progress("prior", 1, 1)
        return Answers.merged(found)

    def _with_answers(self) -> Table:
        """The rows, and what the prior said of each before the charge."""
        if self.answers is None:
            return self.table
        said = self.engine.read(self.answers.files)
        return self.engine.joined(self.table, said, self.spec.ids, WEIGHTS, self.run_.sums.rows)

    # Second pass ------------------------------------------------------------------------------------------------------------------

    def _draw(self, receipt: Receipt) -> dict[str, object]:
        prior = None if self.prior is None else self.prior.facts
        made = Released(self.spec, self.dataset, self.shape.codec.classes, self.run_.law, receipt, prior)
        with self.output.staging(receipt.run_id) as staging:
            with self.engine.lend(Loan(self.run_.lend())) as handle:
                table = self._with_answers()
                work = replace(self._work(handle, table), answered=self.answers is not None)
                shared = shared_facts(made)
                named = self.run_.prior_digest, self.run_.stage_name
                drawing = Drawing(receipt, *named, staging, _settings(self.shape), to_json(shared, indent=None), draw_salt(shared))
                try:
                    found = self._second(table, work, drawing)
                except InvalidInput:
                    raise changed_input() from None  # the first pass has seen nothing wrong with it
            self._check_sums(found)
            self.progress("draw", 1, 1)
            parts = [part for each in found for part in each.parts]
            digest = release_digest([part.sha256 for part in parts], single=False)
            written = Written(sum(part.rows for part in parts), sum(each.dropped for each in found), digest)
            facts = manifest(made, written, None, parts)
            self.output.publish(self.run_, facts, parts, digest)
        return facts

    def _second(self, table: Table, work: Work, drawing: Drawing) -> list[SecondSummary]:
        if self.spec.unit is not None:
            job = CapJob(work)
            words, cap = self.engine.flow(table, job, job.schema), self.spec.max_rows_per_unit
            table = self.engine.capped(words, self.spec.unit, WORD, cap, KEPT, self.run_.sums.rows)
        if self.spec.order == "keep":
            return read_summaries(self.engine.summaries(table, DrawAndWriteJob(work, drawing)))
        draw = DrawJob(work, drawing)
        rows, write = self.engine.flow(table, draw, draw.schema), WriteJob(work, drawing)
        found: list[SecondSummary] = read_summaries(self.engine.ordered_summaries(rows, WORD, self.run_.sums.rows, write))
        return sorted(found, key=lambda part: part.first_word)

    def _check_sums(self, found: Sequence[SecondSummary]) -> None:
        columns = list(zip(*(part.check for part in found), strict=True))
        rows, first, second = (sum(column) for column in columns)
        self.run_.check_pin((rows, first % 2**64, second % 2**64))

    # Details ----------------------------------------------------------------------------------------------------------------------

    def _named_columns(self) -> list[str]:
        spec = self.spec
        return list(dict.fromkeys([*spec.ids, spec.label, *([spec.unit] if spec.unit else []), *spec.prior_columns]))

    def _has_text_ids(self) -> bool:
        """Whether ids or units are anything but one column of integers each."""
        names = [*self.spec.ids, *([] if self.spec.unit is None else [self.spec.unit])]
        return len(self.spec.ids) > 1 or not all(pa.types.is_integer(self.shape.schema.field(name).type) for name in names)

    def _work(self, handle: Handle, table: Table) -> Work:
        shape = replace(self.shape, schema=self.engine.schema(table).remove_metadata())
        return Work(self.run_.facts, self.spec, shape, handle, self.prior if self.answers is None else None)

    def _codec(self, schema: pa.Schema) -> LabelCodec:
        spec, kind = self.spec, schema.field(self.spec.label).type
        return LabelCodec(parse_classes(spec.classes, spec.label, kind, text_table=False), spec.label, kind)


def check_spec(spec: ReleaseSpec, engine: str) -> str:
    """What a cluster needs is there; the data set's name."""
    if not spec.ids:
        raise InvalidInput(
            f"Expected a column that names each row, got none. {engine} tries again and moves rows about, so only an id says which "
            "row is which: id='COLUMN' (--id COLUMN)."
        )
    if spec.infers_classes:
        text = f"Expected declared classes with {engine}, which reads none off the private labels. "
        raise InvalidInput(text + "Pass classes=['no', 'yes'] with yours.", cli=text + "Declare yours: --classes no,yes.")
    if not spec.dataset:
        raise InvalidInput("Expected a data set's name, under which the budget is kept: dataset='NAME' (--dataset NAME).")
    return spec.dataset


def _check_columns(schema: pa.Schema, label: str, names: Sequence[str]) -> None:
    for name in names:
        if name not in schema.names:
            raise InvalidInput(
                f"Expected a column that the table has, got {name!r}.{_validate.suggest(name, schema.names)} "
                f"Its columns: {', '.join(schema.names[:20])}."
            )
    check_own(schema.names)
    if len(set(schema.names)) < len(schema.names):
        raise InvalidInput("Expected distinct column names, got one twice. Rename it.")
    if label + EVIDENCE in schema.names:
        raise InvalidInput(f"Expected a table with raw labels, got one with a column {label + EVIDENCE!r}. It was released already.")


def _settings(shape: Shape) -> WriterSettings:
    """Text, dictionaries and the label are worth a dictionary; numbers mostly are not, and cost most of the writing there."""
    types = pa.types
    kinds = {field.name: field.type for field in shape.released()}
    plain = [name for name, kind in kinds.items() if types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind)]
    return {"compression": "snappy", "use_dictionary": plain}
