# SPDX-License-Identifier: Apache-2.0
"""The two passes over a table: the first pins what will be drawn, the second draws and writes it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.evidence import format as evidence_format
from labeldp.laws import Law
from labeldp.privacy.stream import StreamRun
from labeldp.tables.ahead import ahead
from labeldp.tables.labels import LabelCodec
from labeldp.tables.shuffle import Shuffle
from labeldp.tables.spec import ReleaseSpec
from labeldp.tables.table import Batch, Digest, Sink, Source

Progress = Callable[[str, int, int], None]
"""Called with the pass, how much of it is done and how much there is, in units of the table's choice."""


def silent(phase: str, done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Written:
    """What the second pass wrote: rows, rows left out by the cap, and the file's SHA-256."""

    rows: int
    dropped: int
    digest: str


def needs_evidence(law: Law) -> bool:
    """True if a released label alone does not say all that the law released."""
    return law.kind == "set" or set(law.layout()) != {"output"}


def evidence_bytes(law: Law) -> int:
    """Width of a row's evidence; 0 where the label says all."""
    return evidence_format.record_type(law).itemsize if needs_evidence(law) else 0


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
    """

    def __init__(self, source: Source, spec: ReleaseSpec, codec: LabelCodec, run: StreamRun, progress: Progress = silent):
        self._source, self._spec, self._codec, self._run, self._progress = source, spec, codec, run, progress

    def pin(self, digest: Digest | None) -> int:
        """First pass: check every row and pin it; how many there are. `digest` gets all columns; without it, fewer are read."""
        rows = 0
        wanted = None if digest is not None else [self._spec.label, *self._public_columns()]
        for batch in self._batches("check", ahead(self._source.batches(wanted))):
            facts = self._facts(batch, rows)
            self._run.pin(facts.codes, ids=facts.ids, units=self._units(batch), prior=facts.prior)
            if digest is not None:
                digest.update(batch)
            rows += len(batch)
        if not rows:
            raise InvalidInput(f"Expected rows, got none in {self._source.path.name}: only a header or a schema.")
        return rows

    def draw(self, sink: Sink, folder: Path, pinned: int, digest: Digest | None) -> Written:
        """Second pass: draw every row and write it; by way of a shuffle unless the order is public."""
        shuffle = Shuffle(folder, pinned) if self._spec.order == "shuffle" else None
        rows = 0
        for released, words in ahead(self._drawn(digest)):
            rows += released.num_rows
            if shuffle is None:
                sink.write(released)
            else:
                shuffle.scatter(released, words)
        self._run.check_pin()
        if shuffle is not None:
            self._gather(shuffle, sink, rows)
        return Written(rows, pinned - rows, sink.close())

    def _drawn(self, digest: Digest | None) -> Iterator[tuple[pa.RecordBatch, NDArray[np.uint64]]]:
        """Every batch as it is written, and the words to order its rows by."""
        rows = 0
        for batch in self._batches("draw", self._source.batches()):
            facts = self._facts(batch, rows)
            noisy, kept = self._run.draw(facts.codes, ids=facts.ids, prior=facts.prior)
            if digest is not None:
                digest.update(batch)
            prior = facts.prior if facts.prior is None else facts.prior[kept]
            words = self._run.order_words(noisy)
            yield batch.release(*_written(noisy, prior, words), kept), words
            rows += len(batch)

    def _gather(self, shuffle: Shuffle, sink: Sink, rows: int) -> None:
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

    def _public_columns(self) -> list[str]:
        spec = self._spec
        return list(dict.fromkeys([*spec.ids, *([spec.unit] if spec.unit else []), *(spec.prior or ())]))

    def _facts(self, batch: Batch, start: int) -> "_Facts":
        codes = self._codec.encode(batch.column(self._spec.label), start)
        return _Facts(codes, row_ids(batch, self._spec.ids), _prior(batch, self._spec.prior))

    def _units(self, batch: Batch) -> NDArray[np.generic] | None:
        return None if self._spec.unit is None else id_column(batch, self._spec.unit)


@dataclass(frozen=True)
class _Facts:
    codes: NDArray[np.int32]
    ids: NDArray[np.generic] | None
    prior: NDArray[np.float64] | None


def _written(
    noisy: NoisyLabels, prior: NDArray[np.float64] | None, words: NDArray[np.uint64]
) -> tuple[NDArray[np.integer], NDArray[np.uint8] | None]:
    """Codes of the released labels, and evidence bytes where the law needs them.

    Without an id column ties are broken by secret words: a row's place in the input, which the public could hash too, is not released.
    """
    (block,) = noisy.blocks
    named = noisy if noisy.explicit_ids else replace(noisy, ids=words)
    codes = block.outputs if block.law.kind == "label" else named.hard_codes(prior)
    raw = evidence_format.pack(block.law, block.outputs, block.side) if needs_evidence(block.law) else None
    return codes, raw


def row_ids(batch: Batch, names: tuple[str, ...]) -> NDArray[np.generic] | None:
    """(n,) ids of the rows, (n, columns) of text for several columns, or None where no column names them."""
    if not names:
        return None
    columns = [id_column(batch, name) for name in names]
    if len(columns) == 1:
        return columns[0]
    return np.column_stack([column.astype(np.str_) for column in columns])


def id_column(batch: Batch, name: str) -> NDArray[np.generic]:
    """(n,) whole numbers or text that name rows or units; never empty."""
    column = batch.column(name)
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    kind = pa.types
    good = (
        kind.is_integer(column.type) or kind.is_string(column.type) or kind.is_large_string(column.type) or kind.is_string_view(column.type)
    )
    if not good:
        raise InvalidInput(f"Expected ids and units of whole numbers or text, got column {name!r} of type {column.type}. Cast it.")
    if column.null_count or (not kind.is_integer(column.type) and pc.any(pc.equal(pc.utf8_length(column), 0)).as_py()):
        raise InvalidInput(f"Expected a value in every row of column {name!r}, got empty ones. Fill them, or drop such rows.")
    values = column.to_numpy(zero_copy_only=False)
    return np.asarray(values if values.dtype.kind in "iu" else values.astype(np.str_))


def _prior(batch: Batch, names: Sequence[str] | None) -> NDArray[np.float64] | None:
    if not names:
        return None
    weights = np.column_stack([_number_column(batch, name) for name in names])
    if not np.all((weights >= 0) & (weights < np.inf)):  # before the charge, also where the law ignores the prior
        raise InvalidInput(f"Expected finite weights >= 0 in the prior's columns {', '.join(names)}, got others. Mend those rows.")
    return weights


def _number_column(batch: Batch, name: str) -> NDArray[np.float64]:
    try:
        return np.asarray(pc.cast(batch.column(name), pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidInput(
            f"Expected numbers in the prior's column {name!r}, got something else. Each row needs a weight for every class."
        ) from None
