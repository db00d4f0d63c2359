# SPDX-License-Identifier: Apache-2.0
"""The two passes over a table: the first pins what will be drawn, the second draws and writes it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.privacy.stream import StreamRun, ids_repeat
from labeldp.privacy.worker import Ids
from labeldp.tables.ahead import ahead
from labeldp.tables.batch import Columns, Read, Reader, kept_ids, row_ids, with_words, written
from labeldp.tables.digest import ArrowDigest
from labeldp.tables.labels import LabelCodec
from labeldp.tables.place import Place
from labeldp.tables.prior_answers import Answers, AnswersFolder, AnswersReader, write_answers
from labeldp.tables.priors import OpenPrior, weights_of
from labeldp.tables.shuffle import Shuffle
from labeldp.tables.spec import ReleaseSpec
from labeldp.tables.staging import PartsSink
from labeldp.tables.table import Batch, Source

GROUP_BATCHES = 4
"""Batches to draw ahead: about a row group, so that the draw goes on while one is written."""

Progress = Callable[[str, int, int], None]
"""Called with the pass, how much of it is done and how much there is, in units of the table's choice."""


def silent(phase: str, done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Written:
    """What the second pass wrote: rows, rows left out by the cap or as other parts', and the file's SHA-256."""

    rows: int
    dropped: int
    digest: str


class Passes:
    """A table read twice for one run.

    Parameters
    ----------
    source : Source
    spec : ReleaseSpec
    codec : LabelCodec
        Of the label column.
    run : StreamRun
    progress : function
    prior : OpenPrior, optional
        As in `Reader`.
    """

    def __init__(
        self,
        source: Source,
        spec: ReleaseSpec,
        codec: LabelCodec,
        run: StreamRun,
        progress: Progress = silent,
        prior: OpenPrior | None = None,
    ):
        self._source, self._spec, self._run, self._progress = source, spec, run, progress
        self._reader = Reader(spec, codec, prior)
        self._read: Read = self._reader

    def pin(self, digest: ArrowDigest | None) -> int:
        """First pass: check every row and pin it; how many there are. `digest` gets all columns; without it, fewer are read."""
        rows = 0
        wanted = None if digest is not None else self._reader.columns
        for batch in self._batches("check", ahead(self._source.batches(wanted))):
            facts = self._read(batch, rows)
            self._run.pin(facts.codes, ids=facts.ids, units=facts.units, prior=facts.prior)
            if digest is not None:
                digest.update(batch)
            rows += len(batch)
        if not rows:
            raise InvalidInput(f"Expected rows, got none in {self._source.path.name}: only a header or a schema.")
        if self._spec.ids:
            self._run.require_distinct(lambda: ids_repeat(self._ids))
        return rows

    def _ids(self) -> Iterator[Ids]:
        for batch in self._source.batches(self._spec.ids):
            ids = row_ids(batch, self._spec.ids)
            assert ids is not None
            yield ids

    def ask(self, folder: AnswersFolder, prior: OpenPrior) -> Answers:
        """Between the passes, for a prior that is asked once: ask it, and write what it says. No label is read."""
        return write_answers(self._asked(prior), self._spec.ids, self._run.facts, folder)

    def _asked(self, prior: OpenPrior) -> Iterator[tuple[Columns, NDArray[np.float64]]]:
        rows, columns = 0, list(dict.fromkeys([*self._spec.ids, *prior.columns]))
        for batch in self._batches("prior", ahead(self._source.batches(columns))):
            yield batch, weights_of(prior, batch, rows, self._run.law.n_classes)
            rows += len(batch)

    def with_answers(self, files: Sequence[Place]) -> None:
        """The second pass is to draw with what the prior said."""
        self._read = AnswersReader(self._reader, files, self._spec.ids, self._run.law.n_classes)

    def draw(self, sink: PartsSink, folder: Path, pinned: int, digest: ArrowDigest | None, salt: str) -> Written:
        """Second pass: draw every row and write it; by way of a shuffle unless the order is public. `salt`: of what is drawn."""
        shuffle = Shuffle(folder, pinned) if self._spec.order == "shuffle" else None
        rows = 0
        for released, words in ahead(self._drawn(digest, salt), depth=GROUP_BATCHES):
            rows += released.num_rows
            if not released.num_rows:
                continue
            if shuffle is None or words is None:
                sink.write(released)
            else:
                shuffle.scatter(released, words)
        self._run.check_pin()
        if shuffle is not None:
            self._gather(shuffle, sink, rows)
        return Written(rows, pinned - rows, sink.close())

    def _drawn(self, digest: ArrowDigest | None, salt: str) -> Iterator[tuple[pa.RecordBatch, NDArray[np.uint64] | None]]:
        """Every batch as it is written, and the words to order its rows by, or to break ties by."""
        rows, ordered = 0, self._spec.order == "shuffle" or not self._spec.ids
        for batch in self._batches("draw", self._source.batches()):
            facts = self._read(batch, rows)
            noisy, kept, words = self._run.draw(facts.codes, ids=facts.ids, units=facts.units, prior=facts.prior, ordered=ordered)
            if digest is not None:
                digest.update(batch)
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
