# SPDX-License-Identifier: Apache-2.0
"""A private copy of a table with a model's prior beside each row, and with sealed labels.

A model's answers can differ in the last bits between batches, machines and runs. So it is asked once, before the charge; what it said is
put on the grid of `labeldp.laws.prior` and kept, and every pass and every repeat of the run reads that copy.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.laws.prior import quantise
from labeldp.privacy.noise import Blocks, id_blocks, row_blocks
from labeldp.privacy.seal import fresh_nonce, seal, unseal
from labeldp.privacy.worker import FirstPass, PassSums, RunFacts, RunSecret
from labeldp.tables.batch import NONCE, WEIGHTS, Columns, Facts, id_column, row_ids
from labeldp.tables.parquet import ParquetSink, ParquetSource
from labeldp.tables.parts import PartsSink
from labeldp.tables.place import Place
from labeldp.tables.spec import ReleaseSpec
from labeldp.tables.staging import Part, Staging
from labeldp.tables.table import Batch, Source

Floats = NDArray[np.float64]


class SealedFolder(Staging):
    """Where the copy is: private, beside the output, hidden."""

    @property
    def folder(self) -> Place:
        """Unlike the folder of files to publish, it outlives a killed process: the charged run needs it."""
        return self.out.beside(f".{self.out.name}.labeldp_sealed-{self.run_id[:8]}")


@dataclass(frozen=True)
class SealSummary:
    """What was copied of a table or a partition."""

    parts: tuple[Part, ...]
    sums: PassSums


def sealed_sink(place: Place, schema: pa.Schema) -> ParquetSink:
    """A file of the copy."""
    text = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_dictionary(field.type)]
    return ParquetSink(place, schema, {"compression": "snappy", "use_dictionary": [*text, NONCE]})


class Sealer:
    """Seals the rows of one table or partition, each once, under a nonce of its own.

    Parameters
    ----------
    facts : RunFacts
    secret : RunSecret
        Of the run that will be charged.
    """

    def __init__(self, facts: RunFacts, secret: RunSecret):
        self._first, self._secret, self._nonce = FirstPass(facts, [secret]), secret, fresh_nonce()

    @property
    def sums(self) -> PassSums:
        """Over the rows so far."""
        return self._first.sums

    def seal(self, rows: pa.RecordBatch, label: str, facts: Facts, start: int = 0) -> pa.RecordBatch:
        """Rows of the copy: the sealed label in the label's place, or after the others, then nonce and weights."""
        assert facts.prior is not None
        weights = quantise(facts.prior)
        (blocks,) = self._first.add(facts.codes, facts.ids, start, facts.units, weights)
        codes = pa.array(seal(self._secret, self._nonce, blocks, facts.codes))
        raw = np.ascontiguousarray(weights.astype("<u4")).view(np.uint8).reshape(len(weights), -1)
        columns = dict(zip(rows.schema.names, rows.columns, strict=True)) | {label: codes}
        columns |= {NONCE: pa.repeat(pa.scalar(self._nonce, pa.binary()), len(codes)), WEIGHTS: _binary(raw)}
        return pa.record_batch(columns)


def write_copy(rows: Iterable[tuple[pa.RecordBatch, Facts, int]], sealer: Sealer, label: str, folder: SealedFolder) -> SealSummary:
    """Copy rows, given with their facts and the first one's number, into files in a folder."""
    sink: PartsSink | None = None
    try:
        for plain, facts, start in rows:
            sealed = sealer.seal(plain, label, facts, start)
            sink = sink or PartsSink(folder, partial(sealed_sink, schema=sealed.schema), ".parquet")
            sink.write(sealed)
        if sink is not None:
            sink.close()
        return SealSummary(() if sink is None else tuple(sink.parts), sealer.sums)
    finally:
        if sink is not None:
            sink.abort()


def _binary(raw: NDArray[np.uint8]) -> pa.Array:
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(raw.shape[1]), len(raw), [None, pa.py_buffer(raw)])
    return fixed.cast(pa.binary())


class SealedReader:
    """Reads codes, ids, units and prior from rows of the copy.

    Parameters
    ----------
    spec : ReleaseSpec
    secret : RunSecret
        Of the run that it was sealed for.
    n_classes : int
    """

    def __init__(self, spec: ReleaseSpec, secret: RunSecret, n_classes: int):
        self._spec, self._secret, self._n_classes = spec, secret, n_classes
        self._ids_key = secret.key("ids")

    def __call__(self, batch: Columns, start: int | None) -> Facts:
        """Facts of a batch whose first row has this number, if rows have one."""
        ids = row_ids(batch, self._spec.ids)
        sealed = batch.column(self._spec.label).to_numpy()
        blocks: Blocks = row_blocks(len(sealed), start or 0) if ids is None else id_blocks(ids, self._ids_key)
        nonces = batch.column(NONCE).dictionary_encode()
        codes = unseal(self._secret, nonces.dictionary.to_pylist(), nonces.indices.to_numpy(), blocks, sealed, self._n_classes)
        units = None if self._spec.unit is None else id_column(batch, self._spec.unit)
        return Facts(codes, ids, units, _weights(batch.column(WEIGHTS), self._n_classes))


def _weights(column: pa.Array, n_classes: int) -> Floats:
    """(n, K) weights from rows of K little-endian numbers of 32 bits."""
    n = len(column)
    raw = column.cast(pa.binary()).cast(pa.binary(4 * n_classes)).buffers()[1]
    start = column.cast(pa.binary()).cast(pa.binary(4 * n_classes)).offset
    return np.frombuffer(raw, "<u4").reshape(-1, n_classes)[start : start + n].astype(np.float64)


class SealedTable:
    """The copy on one machine, as batches of the table that it was made of.

    Parameters
    ----------
    source : Source
        The table, of which only the form is used.
    files : sequence of Place
        In the order in which they were written.
    label : str
    """

    def __init__(self, source: Source, files: Sequence[Place], label: str):
        self._source, self._files, self._label = source, files, label
        self.path, self.names, self.text, self.extent = source.path, source.names, source.text, source.extent

    def batches(self, columns: Sequence[str] | None = None) -> Iterator["SealedBatch"]:
        """The rows in order."""
        for file in self._files:
            for rows in ParquetSource(file).record_batches():
                start = 0
                own = rows.drop_columns([NONCE, WEIGHTS])
                for batch in self._source.restored(own, self._label):
                    yield SealedBatch(batch, rows.slice(start, len(batch)), self._label)
                    start += len(batch)
                if start != len(rows):
                    raise InvalidInput(f"Expected {len(rows)} rows in a piece of the sealed copy, got {start}. Run the same command again.")


class SealedBatch:
    """Rows of the table without their labels, and what is sealed beside them."""

    def __init__(self, batch: Batch, sealed: pa.RecordBatch, label: str):
        self._batch, self._sealed, self._own = batch, sealed, (label, NONCE, WEIGHTS)

    def __len__(self) -> int:
        return len(self._batch)

    @property
    def extent(self) -> int:
        """As of the table's own batches."""
        return self._batch.extent

    @property
    def original(self) -> Batch:
        """The rows as their format has them; nothing may be asked of the label."""
        return self._batch

    def column(self, name: str) -> pa.Array:
        """One column; the label's is sealed."""
        return self._sealed.column(name) if name in self._own else self._batch.column(name)

    def plain(self, label: str) -> pa.RecordBatch:
        """All but the label."""
        return self._batch.plain(label)

    def release(self, codes: NDArray[np.integer], evidence: NDArray[np.uint8] | None, kept: NDArray[np.bool_] | None) -> pa.RecordBatch:
        """The rows as they are written."""
        return self._batch.release(codes, evidence, kept)
