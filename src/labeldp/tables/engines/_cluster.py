# SPDX-License-Identifier: Apache-2.0
"""The engine of a cluster, the driver's half: two passes over the same input, nothing lazy.

First pass (ids, label, prior columns): the row set, the digest of the prior, and a keyed sum over the labelled input. Second pass: workers
draw and write files of their own, and the keyed sum over the attempts that count must come out the same.
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from labeldp import _validate
from labeldp.custody._stream import TableDraw, TablePin, changed_input
from labeldp.errors import InvalidInput
from labeldp.ledger._ledger import Ledger
from labeldp.ledger._rowset import RowSetBuilder
from labeldp.tables._priors import OpenPrior
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.engines._batch import Reader, evidence_bytes
from labeldp.tables.engines._jobs import (
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
    NameJob,
    PinJob,
    SecondSummary,
    Shipment,
    Work,
    WriteJob,
    read_summaries,
)
from labeldp.tables.engines._local import Progress, silent
from labeldp.tables.engines._prior_answers import Answers, AnswersFolder
from labeldp.tables.formats._digest import draw_salt
from labeldp.tables.formats._labels import LabelCodec, check_type, parse_classes
from labeldp.tables.formats._parquet import WriterSettings
from labeldp.tables.formats._table import EVIDENCE, WEIGHTS, Shape, check_own
from labeldp.tables.output._manifest import OutputFacts, ReleaseFacts, shared_facts, to_json
from labeldp.tables.output._place import Place
from labeldp.tables.output._staging import Staging

_log = logging.getLogger("labeldp")

MOST_NAMES = 50_000_000
"""Text ids of a run that are told from those of other runs: 8 bytes each pass through the driver, which holds them twice for a while."""

Table = Any
"""An engine's own table: a DataFrame of Spark, a Dataset of Ray."""


class Cluster(Protocol):
    """What Spark and Ray must be able to do; everything about labels is elsewhere."""

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

    def ship(self, shipment: Shipment) -> AbstractContextManager[Handle]:
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


class ClusterEngine:
    """Spark or Ray: an `Engine` (`labeldp.tables._release`).

    Parameters
    ----------
    cluster : Cluster
    table : the cluster's own
    progress : function
    """

    many = True
    source: Place | None = None

    def __init__(self, cluster: Cluster, table: Table, progress: Progress = silent):
        self._cluster, self._table, self._progress = cluster, table, progress
        self.names: Sequence[str] = ()

    def dataset(self, spec: ReleaseSpec, out: Place) -> str:
        """As given; a cluster's table has no name."""
        return check_spec(spec, self._cluster.name)

    def codec(self, spec: ReleaseSpec, ledger: Ledger) -> LabelCodec:
        """As declared."""
        self._schema = self._cluster.schema(self._table).remove_metadata()
        self.names = self._schema.names
        _check_columns(self._schema, spec.label, spec.columns)
        kind = self._schema.field(spec.label).type
        check_type(spec.label, kind)
        return LabelCodec(parse_classes(spec.classes, spec.label, kind, text_table=False), spec.label, kind)

    def passes(self, spec: ReleaseSpec, codec: LabelCodec, pin: TablePin, prior: OpenPrior | None) -> "ClusterPasses":
        """Over partitions, on workers."""
        shape = Shape(self._schema, codec, evidence_bytes(pin.facts.law))
        return ClusterPasses(self._cluster, self._table, spec, shape, pin, prior, self._progress)


class ClusterPasses:
    """A cluster's table read twice for one run."""

    def __init__(
        self, cluster: Cluster, table: Table, spec: ReleaseSpec, shape: Shape, pin: TablePin, prior: OpenPrior | None, progress: Progress
    ):
        self._cluster, self._table, self._spec, self._shape, self._pin = cluster, table, spec, shape, pin
        self._prior, self._progress = prior, progress

    # First pass -------------------------------------------------------------------------------------------------------------------

    def pin(self) -> str:
        """First pass: check every row and pin it."""
        narrow = self._cluster.select(self._table, Reader(self._spec, self._shape.codec, self._prior).columns)
        rows = self._row_set(narrow)
        with self._cluster.ship(Shipment(self._pin.for_workers(), rows)) as handle:
            work = self._work(handle, narrow)
            found: list[FirstSummary] = read_summaries(self._cluster.summaries(narrow, PinJob(work)))
            for part in found:
                self._pin.absorb(part.sums, part.rows)
            if not self._pin.sums.rows:
                raise InvalidInput("Expected rows, got none: the table is empty.")
            self._pin.require_distinct(lambda: self._ids_repeat(handle))
        self._progress("check", 1, 1)
        return ""

    def _ids_repeat(self, handle: Handle) -> bool:
        """One shuffle of the ids, where their set does not tell."""
        names = self._cluster.select(self._table, self._spec.ids)
        job = NameJob(self._work(handle, names))
        return self._cluster.repeats(self._cluster.flow(names, job, job.schema), NAME, self._pin.sums.rows)

    def _row_set(self, table: Table) -> RowSetBuilder | None:
        """What tells the rows of runs apart. Hashes of text pass through the driver: of too many, the run counts against every other."""
        text = self._has_text_ids()
        if text and self._cluster.count(table) > MOST_NAMES:
            _log.warning("Above %d rows text ids are not told apart: this run counts against every run of the column.", MOST_NAMES)
            return None
        return self._pin.row_set_builder(integers=not text)

    # Between the passes, for a prior that is asked once -----------------------------------------------------------------------------

    def ask(self, folder: AnswersFolder, prior: OpenPrior) -> Answers:
        """Ask a prior that is asked once, and write what it says. No label is read."""
        narrow = self._cluster.select(self._table, list(dict.fromkeys([*self._spec.ids, *prior.columns])))
        with self._cluster.ship(Shipment([])) as handle:  # who asks needs no secret
            work = replace(self._work(handle, narrow), prior=prior)
            found: list[Answers] = read_summaries(self._cluster.summaries(narrow, AskJob(work, folder)))
        self._progress("prior", 1, 1)
        return Answers.merged(found)

    # Second pass ------------------------------------------------------------------------------------------------------------------

    def draw(self, run: TableDraw, made: ReleaseFacts, staging: Staging, scratch: Path, answers: Sequence[Place]) -> OutputFacts:
        """Second pass: workers draw and write; the driver takes what the attempts that count have written."""
        with self._cluster.ship(Shipment(run.for_workers())) as handle:
            table = self._table
            if answers:
                table = self._cluster.joined(table, self._cluster.read(answers), self._spec.ids, WEIGHTS, run.n_rows)
            work = replace(self._work(handle, table), answered=bool(answers))
            shared = shared_facts(made)
            named = run.prior, run.stage_name
            drawing = Drawing(run.receipt, *named, staging, _settings(self._shape), to_json(shared, indent=None), draw_salt(shared))
            try:
                found = self._second(table, run.n_rows, work, drawing)
            except InvalidInput:
                raise changed_input() from None  # the first pass has seen nothing wrong with it
        run.check_pin(_check_of(found))
        self._progress("draw", 1, 1)
        return OutputFacts(tuple(part for each in found for part in each.parts), sum(each.dropped for each in found))

    def _second(self, table: Table, n_rows: int, work: Work, drawing: Drawing) -> list[SecondSummary]:
        if self._spec.unit is not None:
            job = CapJob(work)
            words, cap = self._cluster.flow(table, job, job.schema), self._spec.max_rows_per_unit
            table = self._cluster.capped(words, self._spec.unit, WORD, cap, KEPT, n_rows)
        if self._spec.order == "keep":
            return read_summaries(self._cluster.summaries(table, DrawAndWriteJob(work, drawing)))
        draw = DrawJob(work, drawing)
        rows, write = self._cluster.flow(table, draw, draw.schema), WriteJob(work, drawing)
        found: list[SecondSummary] = read_summaries(self._cluster.ordered_summaries(rows, WORD, n_rows, write))
        return sorted(found, key=lambda part: part.first_word)

    # Details ----------------------------------------------------------------------------------------------------------------------

    def _has_text_ids(self) -> bool:
        """Whether ids or units are anything but one column of integers each."""
        names = [*self._spec.ids, *([] if self._spec.unit is None else [self._spec.unit])]
        return len(self._spec.ids) > 1 or not all(pa.types.is_integer(self._shape.schema.field(name).type) for name in names)

    def _work(self, handle: Handle, table: Table) -> Work:
        shape = replace(self._shape, schema=self._cluster.schema(table).remove_metadata())
        return Work(self._pin.facts, self._spec, shape, handle, self._prior)


def _check_of(found: Sequence[SecondSummary]) -> tuple[int, int, int]:
    """What the second pass came to in all partitions, as `PassSums.check`."""
    rows, first, second = (sum(column) for column in zip(*(part.check for part in found), strict=True))
    return rows, first % 2**64, second % 2**64


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
