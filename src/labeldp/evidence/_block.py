# SPDX-License-Identifier: Apache-2.0
"""Draws of one law under one receipt, what noisy labels are made of; and the bytes that files and tables carry of each.

A row's bytes are its output and then its side arrays by name, little-endian, without padding (`Law.layout` gives types and shapes).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.laws._base import Array, Law
from labeldp.receipt import Receipt

if TYPE_CHECKING:
    import pyarrow as pa

CELLS = 1 << 22  # float64 cells in one batch of likelihoods: 32 MiB


@dataclass(frozen=True, eq=False)
class Block:
    """Draws of one law under one receipt.

    Attributes
    ----------
    law : Law
    outputs : (m,) int32 or (m, ceil(K/8)) uint8
        As the law released them.
    side : dict of arrays, first axis m
        What the law must know of each row's prior.
    rows : (m,) int64, all different
        Position of each draw in the `NoisyLabels` that holds the block.
    receipt : Receipt
    stage : str
        Name of the round that drew it.
    """

    law: Law
    outputs: Array
    side: Mapping[str, Array]
    rows: NDArray[np.int64]
    receipt: Receipt
    stage: str = ""

    def at(self, index: slice | NDArray[np.integer], rows: NDArray[np.int64]) -> "Block":
        """Choose the draws at these places, and say at which rows they stand."""
        return replace(self, outputs=self.outputs[index], side={k: v[index] for k, v in self.side.items()}, rows=rows)

    def read_only(self) -> "Block":
        """Copy the block to arrays that cannot be written to."""
        side = {name: read_only(values) for name, values in self.side.items()}
        return replace(self, outputs=read_only(self.outputs), side=side, rows=read_only(self.rows))

    @property
    def invertible(self) -> NDArray[np.bool_]:
        """Mark draws with an unbiased estimator: (m,) bool. Cost O(m) where set membership says all of an output, else O(m K)."""
        known = np.isfinite(self.law.inclusion(self.outputs, self.side)[0])
        if type(self.law).weights is Law.weights or known.all():
            return known
        parts = [np.isfinite(part.law.weights(part.outputs, part.side)).all(axis=1) for part in self.batches()]
        return np.asarray(known | np.concatenate(parts))

    def batches(self) -> Iterator["Block"]:
        """Cut the block so that (rows, K) float64 stays small."""
        step = max(1, CELLS // self.law.n_classes)
        for start in range(0, len(self.rows), step):
            yield self.at(slice(start, start + step), self.rows[start : start + step])


def read_only(array: Array) -> Array:
    """Put an array into memory that no flag makes writable: copied once, O(n), and not again. Python objects keep a flag."""
    if array.dtype.hasobject:
        found = array.view()
        found.flags.writeable = False
        return found
    return array if _fixed(array) else np.ndarray(array.shape, array.dtype, array.tobytes())


def _fixed(array: Array) -> bool:
    while isinstance(array.base, np.ndarray):
        array = array.base
    memory: Any = array.base
    if type(memory) is not bytes or array.flags.writeable:  # an array out of a pickle has bytes of its own, and writes to them
        return False
    try:
        array.flags.writeable = True
    except ValueError:
        return True
    array.flags.writeable = False
    return False


def places_of(ids: Array, known: Array) -> NDArray[np.int64]:
    """Find where each of these ids stands among the known ones, whatever type either came in: (n,), -1 for those that do not."""
    if ids.ndim == 2 and "O" in known.dtype.kind + ids.dtype.kind:
        known, ids = known.astype(np.str_), ids.astype(np.str_)
    if {known.dtype.kind, ids.dtype.kind} == set("iu"):  # the same numbers, so they fit both; together they would become floats
        ids = ids.astype(known.dtype)
    _, inverse = np.unique(np.concatenate([known, ids]), axis=0 if ids.ndim == 2 else None, return_inverse=True)
    codes = inverse.reshape(-1)
    place = np.full(codes.max(initial=-1) + 1, -1)
    place[codes[: len(known)]] = np.arange(len(known))
    return np.asarray(place[codes[len(known) :]])


def merge(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Join blocks of the same law, receipt and stage."""
    groups: dict[tuple[Law, str, str], list[Block]] = {}
    for block in blocks:
        groups.setdefault((block.law, block.receipt.run_id, block.stage), []).append(block)
    return tuple(group[0] if len(group) == 1 else _join(group) for group in groups.values())


def _join(group: Sequence[Block]) -> Block:
    side = {name: np.concatenate([block.side[name] for block in group]) for name in group[0].side}
    outputs = np.concatenate([block.outputs for block in group])
    return replace(group[0], outputs=outputs, side=side, rows=np.concatenate([block.rows for block in group]))


# Bytes -------------------------------------------------------------------------------------------------------------------------------


def record_type(law: Law) -> np.dtype[np.void]:
    """Make the type of the packed record of one row."""
    layout = law.layout()
    names = ["output", *sorted(name for name in layout if name != "output")]
    return np.dtype([(name, np.dtype(layout[name][0]).newbyteorder("<"), layout[name][1]) for name in names])


def pack(law: Law, outputs: Array, side: Mapping[str, Array]) -> NDArray[np.uint8]:
    """Pack every row's output and side into bytes: (n, width) uint8."""
    records = np.empty(len(outputs), record_type(law))
    for name in records.dtype.names or ():
        records[name] = outputs if name == "output" else side[name]
    return records.view(np.uint8).reshape(len(outputs), records.dtype.itemsize)


def unpack(law: Law, raw: NDArray[np.uint8]) -> tuple[Array, dict[str, Array]]:
    """Unpack outputs and side from (n, width) uint8."""
    kind = record_type(law)
    if raw.ndim != 2 or raw.shape[1] != kind.itemsize:
        raise InvalidInput(f"Expected {kind.itemsize} bytes of evidence a row for {law}, got {raw.shape[1:]}: the file is damaged.")
    records = np.ascontiguousarray(raw).view(kind).reshape(len(raw))
    native = {name: records[name].astype(records[name].dtype.newbyteorder("=")) for name in kind.names or ()}
    return native.pop("output"), native


def to_arrow(raw: NDArray[np.uint8], present: NDArray[np.bool_] | None = None) -> "pa.Array":
    """Make an Arrow array of fixed-size binary of rows of bytes; `present` marks rows that are not null."""
    import pyarrow as pa

    validity = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(raw.shape[1]), len(raw), [validity, pa.py_buffer(np.ascontiguousarray(raw))])


def from_arrow(column: "pa.Array | pa.ChunkedArray", width: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Read the (m, width) bytes of the rows that are not null, and (n,) bool that marks them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    present = np.asarray(pc.is_valid(column))
    found = column.drop_null().cast(pa.binary())
    chunks = found.chunks if isinstance(found, pa.ChunkedArray) else [found]
    parts = [_chunk_bytes(chunk, width) for chunk in chunks if len(chunk)]
    return (np.concatenate(parts) if parts else np.empty((0, width), np.uint8)), present


def _chunk_bytes(chunk: "pa.Array", width: int) -> NDArray[np.uint8]:
    offsets = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
    if not np.array_equal(np.diff(offsets), np.full(len(chunk), width)):
        raise InvalidInput(f"Expected {width} bytes of evidence in every row: the evidence column was cut or belongs to another law.")
    return np.frombuffer(chunk.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].reshape(len(chunk), width)
