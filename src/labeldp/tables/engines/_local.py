# SPDX-License-Identifier: Apache-2.0
"""The engine of one machine: a table is streamed twice, once to pin what will be drawn, once to draw and write it."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp.custody._draw import Ids
from labeldp.custody._encode import declare, infers
from labeldp.custody._stream import TableDraw, TablePin, ids_repeat
from labeldp.errors import InvalidInput
from labeldp.ledger._ledger import Ledger
from labeldp.tables._evidence import check_raw
from labeldp.tables._priors import OpenPrior, weights_of
from labeldp.tables._spec import ReleaseSpec, declared_or_infer
from labeldp.tables.engines._batch import Columns, Read, Reader, evidence_bytes, kept_ids, row_ids, with_words, written
from labeldp.tables.engines._prior_answers import Answers, AnswersFolder, AnswersReader, write_answers
from labeldp.tables.engines._shuffle import Shuffle
from labeldp.tables.formats._ahead import ahead
from labeldp.tables.formats._dataset import DatasetSource
from labeldp.tables.formats._digest import draw_salt
from labeldp.tables.formats._labels import LabelCodec, check_type, distinct_labels, parse_classes
from labeldp.tables.formats._open import check_layout, check_same_format, row_name, table_name
from labeldp.tables.formats._table import Batch, Readable, Source, check_columns
from labeldp.tables.output._manifest import OutputFacts, ReleaseFacts, shared_facts, to_json
from labeldp.tables.output._place import Place
from labeldp.tables.output._staging import PartsSink, Staging

GROUP_BATCHES = 4
"""Batches to draw ahead: about a row group, so that the draw goes on while one is written."""

Progress = Callable[[str, int, int], None]
"""Called with the pass, how much of it is done and how much there is, in units of the table's choice."""


def silent(phase: str, done: int, total: int) -> None:
    """Report nothing."""


class LocalEngine:
    """This process, which streams the table: an `Engine` (`labeldp.tables._release`).

    Parameters
    ----------
    table : Source
    given : sequence of str
        The parts of the table's path as the user gave it.
    progress : function
    """

    def __init__(self, table: Source, given: Sequence[str], progress: Progress = silent):
        self._table, self._given, self._progress = table, given, progress
        self.names: Sequence[str] = table.names
        self.many = isinstance(table, DatasetSource)
        self.source: Place | None = table.path

    def dataset(self, spec: ReleaseSpec, out: Place) -> str:
        """As given, or the table's name."""
        check_layout(self._table, self._given, spec.label, (), public=spec.order == "keep")
        check_same_format(self._table, out)
        check_columns(self._table, spec.columns)
        return spec.dataset or table_name(self._table)

    def codec(self, spec: ReleaseSpec, ledger: Ledger) -> LabelCodec:
        """As declared, or with "infer" read off the column."""
        # Parquet says itself that it was released: no pass over it for its digest.
        check_raw(self._table, spec.label, ledger if self._table.text else None, but=spec.dataset or table_name(self._table))
        check_type(spec.label, self._table.type_of(spec.label))
        codec = declared_codec(self._table, spec.label, spec.classes)
        check_layout(self._table, self._given, spec.label, codec.classes, public=spec.order == "keep")
        return codec

    def passes(self, spec: ReleaseSpec, codec: LabelCodec, pin: TablePin, prior: OpenPrior | None) -> "LocalPasses":
        """Over batches, one after another."""
        return LocalPasses(self._table, Reader(spec, codec, prior), pin, self._progress)


def declared_codec(table: Readable, label: str, classes: Sequence[object] | None) -> LabelCodec:
    """The classes as values of the label's type: as declared, or with "infer" read off the column."""
    kind = table.type_of(label)
    known = declared_or_infer(classes)
    if infers(known):
        known = declare(distinct_labels((batch.column(label) for batch in table.batches([label])), kind))
    return LabelCodec(parse_classes(known, label, kind, text_table=table.text), label, kind, partial(row_name, table))


class LocalPasses:
    """A table read twice for one run.

    Parameters
    ----------
    source : Source
    reader : Reader
    pin : TablePin
    progress : function
    """

    def __init__(self, source: Source, reader: Reader, pin: TablePin, progress: Progress):
        self._source, self._reader, self._pin, self._progress = source, reader, pin, progress
        self._spec, self._pinned = reader.spec, 0
        self._digest = source.public_digest(self._spec.label)

    def pin(self) -> str:
        """First pass: check every row and pin it. Without ids all columns are read, and their digest names the rows."""
        by_columns = not self._spec.ids
        for batch in self._batches("check", ahead(self._source.batches(None if by_columns else self._reader.columns))):
            facts = self._reader(batch, self._pinned)
            self._pin.add(facts.codes, ids=facts.ids, units=facts.units, prior=facts.prior)
            if by_columns:
                self._digest.update(batch)
            self._pinned += len(batch)
        if not self._pinned:
            raise InvalidInput(f"Expected rows, got none in {self._source.path.name}: only a header or a schema.")
        if by_columns:
            return self._digest.hexdigest()
        self._pin.require_distinct(lambda: ids_repeat(self._ids))
        return ""

    def _ids(self) -> Iterator[Ids]:
        for batch in self._source.batches(self._spec.ids):
            ids = row_ids(batch, self._spec.ids)
            assert ids is not None
            yield ids

    def ask(self, folder: AnswersFolder, prior: OpenPrior) -> Answers:
        """Between the passes, for a prior that is asked once: ask it, and write what it says. No label is read."""
        return write_answers(self._asked(prior), self._spec.ids, self._pin.facts, folder)

    def _asked(self, prior: OpenPrior) -> Iterator[tuple[Columns, NDArray[np.float64]]]:
        rows, columns = 0, list(dict.fromkeys([*self._spec.ids, *prior.columns]))
        for batch in self._batches("prior", ahead(self._source.batches(columns))):
            yield batch, weights_of(prior, batch, rows, self._pin.facts.law.n_classes)
            rows += len(batch)

    def draw(self, run: TableDraw, made: ReleaseFacts, staging: Staging, scratch: Path, answers: Sequence[Place]) -> OutputFacts:
        """Second pass: draw every row and write it; by way of a shuffle unless the order is public."""
        spec, shared = self._spec, shared_facts(made)
        self._source.plan(self._reader.codec, evidence_bytes(made.law))
        text = to_json(shared, indent=None)
        sink = PartsSink(staging, lambda place: self._source.sink(place, text), staging.suffix, ordered=not spec.ids)
        read = AnswersReader(self._reader, answers, spec.ids, made.law.n_classes) if answers else self._reader
        shuffle = Shuffle(scratch, self._pinned) if spec.order == "shuffle" else None
        try:
            rows = self._write(run, self._drawn(run, read, draw_salt(shared)), sink, shuffle)
            sink.close()
        finally:
            sink.abort()
        return OutputFacts(tuple(sink.parts), self._pinned - rows, self._digest.hexdigest())

    def _write(
        self, run: TableDraw, drawn: Iterator[tuple[pa.RecordBatch, NDArray[np.uint64] | None]], sink: PartsSink, shuffle: Shuffle | None
    ) -> int:
        rows = 0
        for released, words in ahead(drawn, depth=GROUP_BATCHES):
            rows += released.num_rows
            if not released.num_rows:
                continue
            if shuffle is None or words is None:
                sink.write(released)
            else:
                shuffle.scatter(released, words)
        run.check_pin()
        if shuffle is not None:
            self._gather(shuffle, sink, rows)
        return rows

    def _drawn(self, run: TableDraw, read: Read, salt: str) -> Iterator[tuple[pa.RecordBatch, NDArray[np.uint64] | None]]:
        """Every batch as it is written, and the words to order its rows by, or to break ties by. `salt`: of what is drawn."""
        rows, ordered = 0, self._spec.order == "shuffle" or not self._spec.ids
        for batch in self._batches("draw", self._source.batches()):
            facts = read(batch, rows)
            noisy, kept, words = run.draw(facts.codes, ids=facts.ids, units=facts.units, prior=facts.prior, ordered=ordered)
            if self._spec.ids:
                self._digest.update(batch)
            prior = facts.prior if facts.prior is None else facts.prior[kept]
            codes, raw = written(noisy, prior, words)
            yield with_words(batch.release(codes, raw, kept), salt, kept_ids(facts, kept), codes, raw), words
            rows += len(batch)

    def _gather(self, shuffle: Shuffle, sink: PartsSink, rows: int) -> None:
        done = 0
        for released in ahead(shuffle.gather()):
            sink.write(released)
            done += released.num_rows
            self._progress("write", done, rows)

    def _batches(self, phase: str, batches: Iterator[Batch]) -> Iterator[Batch]:
        done = 0
        for batch in batches:
            yield batch
            done += batch.extent
            self._progress(phase, done, self._source.extent)
