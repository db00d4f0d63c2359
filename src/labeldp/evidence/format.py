# SPDX-License-Identifier: Apache-2.0
"""Outputs and side of a law as fixed-width bytes, one value a row: how files and tables carry evidence.

A row's bytes are its output and then its side arrays by name, little-endian, without padding (`Law.layout` gives types and shapes).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.laws.base import Array, Law

if TYPE_CHECKING:
    import pyarrow as pa


def record_type(law: Law) -> np.dtype[np.void]:
    """The packed record of one row."""
    layout = law.layout()
    names = ["output", *sorted(name for name in layout if name != "output")]
    return np.dtype([(name, np.dtype(layout[name][0]).newbyteorder("<"), layout[name][1]) for name in names])


def pack(law: Law, outputs: Array, side: Mapping[str, Array]) -> NDArray[np.uint8]:
    """(n, width) uint8: every row's bytes."""
    records = np.empty(len(outputs), record_type(law))
    for name in records.dtype.names or ():
        records[name] = outputs if name == "output" else side[name]
    return records.view(np.uint8).reshape(len(outputs), records.dtype.itemsize)


def unpack(law: Law, raw: NDArray[np.uint8]) -> tuple[Array, dict[str, Array]]:
    """Outputs and side from (n, width) uint8."""
    kind = record_type(law)
    if raw.ndim != 2 or raw.shape[1] != kind.itemsize:
        raise InvalidInput(f"Expected {kind.itemsize} bytes of evidence a row for {law}, got {raw.shape[1:]}: the file is damaged.")
    records = np.ascontiguousarray(raw).view(kind).reshape(len(raw))
    native = {name: records[name].astype(records[name].dtype.newbyteorder("=")) for name in kind.names or ()}
    return native.pop("output"), native


def to_arrow(raw: NDArray[np.uint8], present: NDArray[np.bool_] | None = None) -> "pa.Array":
    """Rows of bytes as an Arrow array of fixed-size binary; `present` marks rows that are not null."""
    import pyarrow as pa

    validity = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(raw.shape[1]), len(raw), [validity, pa.py_buffer(np.ascontiguousarray(raw))])


def from_arrow(column: "pa.Array | pa.ChunkedArray", width: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """(m, width) bytes of the rows that are not null, and (n,) bool that marks them."""
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
