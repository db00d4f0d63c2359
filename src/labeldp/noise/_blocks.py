# SPDX-License-Identifier: Apache-2.0
"""Row ids as 16-byte blocks, the input of AES: one id, one block, whatever file, order or machine it is read on.

A block is one byte of type tag, twelve of id, three of counter, all little-endian; docs/noise.md is the exact format.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp import _strings
from labeldp._strings import Strings
from labeldp.errors import InvalidInput
from labeldp.noise._cmac import WORD, cmac_chunks
from labeldp.noise._composite import Composites

ROW, INTEGER, TEXT, BYTES, COMPOSITE = range(5)

_BLOCK = np.dtype({"names": ["tag", "low", "high"], "formats": ["u1", "<u8", "<u4"], "offsets": [0, 1, 9], "itemsize": 16})
"""A block as fields; the counter, bytes 13 to 15, is left out."""

Index = slice | NDArray[np.intp] | NDArray[np.bool_]


class Blocks:
    """The blocks of n rows with counter 0, kept as compactly as their ids.

    `row_blocks` and `id_blocks` make them. `blocks[a:b]`, `blocks[positions]` and `blocks[mask]` are Blocks again; a slice copies
    nothing.
    """

    __slots__ = ("_high", "_low", "_signed", "tag")

    def __init__(self, tag: int, low: "NDArray[np.uint64] | range", high: "NDArray[np.uint32] | None" = None, signed: bool = False) -> None:
        self.tag = tag
        self._low = low  # bytes 0..7 of the id; a range stands for row numbers that were never written out
        self._high = high  # bytes 8..11; None: the sign of `_low` where some are negative, else 0
        self._signed = signed

    def __len__(self) -> int:
        return len(self._low)

    def __repr__(self) -> str:
        return f"Blocks({len(self)} rows, tag={self.tag})"

    def __getitem__(self, index: Index) -> "Blocks":
        if isinstance(self._low, range):
            if isinstance(index, slice) and index.step in (None, 1):
                return Blocks(self.tag, self._low[index])
            return Blocks(self.tag, _written_out(self._low)[index])
        return Blocks(self.tag, self._low[index], None if self._high is None else self._high[index], self._signed)

    def templates(self, into: "NDArray[np.uint64] | None" = None) -> NDArray[np.uint64]:
        """The blocks with counter 0: (n, 2) uint64, little-endian; seen as bytes, (n, 16). Cost: 16 bytes a row, so slice first.

        into : (n or more, 2) uint64, optional
            Templates of another slice of the same blocks, to be overwritten: what all rows share is there already.
        """
        out = np.zeros((len(self), 2), WORD) if into is None else into[: len(self)]
        fields = out.reshape(-1).view(_BLOCK)
        if into is None:
            fields["tag"] = self.tag
        low = _written_out(self._low)
        fields["low"] = low
        if self._high is not None:
            fields["high"] = self._high
        elif self._signed:
            fields["high"] = (low.view(np.int64) >> np.int64(63)).view(np.uint64)  # the sign, carried into the bytes above
        return out

    def halves(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """The 96 bits of the ids: bytes 0 to 7, and bytes 8 to 11."""
        low = _written_out(self._low)
        if self._high is not None:
            return low, self._high
        if self._signed:  # the sign, carried into the bytes above
            return low, (low.view(np.int64) >> np.int64(63)).astype(np.uint32)
        return low, np.zeros(len(low), np.uint32)

    def first_repeat(self) -> int | None:
        """Position of the first row whose id occurred before, or None. Cost: a sort, O(n log n)."""
        if isinstance(self._low, range):
            return None
        low, high = self._low, self._high
        ordered = np.sort(low)
        if not (ordered[1:] == ordered[:-1]).any():
            return None
        order = np.argsort(low, kind="stable") if high is None else np.lexsort((low, high))
        same = low[order[1:]] == low[order[:-1]]
        if high is not None:
            same &= high[order[1:]] == high[order[:-1]]
        return int(order[1:][same].min()) if same.any() else None


def _written_out(low: "NDArray[np.uint64] | range") -> NDArray[np.uint64]:
    return np.arange(low.start, low.stop, dtype=np.uint64) if isinstance(low, range) else low


def row_blocks(n: int, start: int = 0) -> Blocks:
    """Blocks of the row numbers start .. start + n - 1 of one pinned input; nothing is stored for each row."""
    if not (n >= 0 and 0 <= start <= start + n < 1 << 63):
        raise InvalidInput(f"Expected n >= 0 rows numbered from start >= 0, below 2^63; got n={n}, start={start}.")
    return Blocks(ROW, range(start, start + n))


def blocks_of(ids: object, tag_key: Callable[[], bytes]) -> Blocks:
    """Blocks of ids; `tag_key` gives the CMAC key and is called only if they are not integers. See `labeldp.noise._words.id_blocks`."""
    columns = _columns(ids)
    if columns is not None:
        return _mac_blocks(COMPOSITE, _joined([_typed(column, f"part {i} of ids") for i, column in enumerate(columns)]), tag_key())
    if isinstance(ids, pa.DictionaryArray) and not (ids.null_count or ids.dictionary.null_count) and len(ids.dictionary) < len(ids):
        return blocks_of(ids.dictionary, tag_key)[ids.indices.to_numpy()]
    tag, values = _typed(ids, "ids")
    if isinstance(values, np.ndarray):
        return _integer_blocks(values)
    return _mac_blocks(tag, values, tag_key())


def integers_or_names(ids: object, key: Callable[[], bytes]) -> "NDArray[np.integer] | Blocks":
    """One column of integers as it is, whatever holds it; all else as blocks of how it reads.

    "7", b"7" and ("7",) are one name, and so are the parts of a composite id, since another table may have kept them in another type.
    """
    columns = _columns(ids)
    found = [_typed(column, "ids")[1] for column in ([ids] if columns is None else columns)]
    if len(found) == 1:
        return found[0] if isinstance(found[0], np.ndarray) else _mac_blocks(TEXT, found[0], key())
    return _mac_blocks(COMPOSITE, _joined([(TEXT, _text(values)) for values in found]), key())


def _text(values: "NDArray[np.integer] | Strings") -> Strings:
    found = values if isinstance(values, Strings) else _strings.from_arrow(pa.array(values).cast(pa.large_string()))
    assert found is not None
    return found


def _integer_blocks(values: NDArray[np.integer]) -> Blocks:
    # the same number is the same id in every integer type: widened to 64 bits, and the sign carried into the bytes above
    signed = values.dtype.kind == "i"
    wide = np.ascontiguousarray(values.astype(np.int64 if signed else np.uint64, copy=False))
    return Blocks(INTEGER, wide.view(np.uint64), signed=bool(signed and len(wide) and wide.min() < 0))


def _mac_blocks(tag: int, messages: "Strings | Composites", key: bytes) -> Blocks:
    low, high = np.empty(len(messages), WORD), np.empty(len(messages), "<u4")
    for where, macs in cmac_chunks(key, messages):
        low[where] = macs[:, 0]
        high[where] = macs.view("<u4")[:, 2]
    return Blocks(tag, low, high)


def _columns(ids: object) -> list[Any] | None:
    """The columns of a composite id, or None if `ids` is one column."""
    if isinstance(ids, np.ndarray) and ids.ndim == 2:
        return [ids[:, i] for i in range(ids.shape[1])]
    if hasattr(ids, "columns"):  # a table of Arrow, pandas or polars
        table = pa.table(ids)
        return [table.column(i) for i in range(table.num_columns)]
    if isinstance(ids, (list, tuple)) and ids:
        if all(isinstance(row, tuple) for row in ids):
            return _transposed(ids)
        if all(hasattr(column, "__len__") and not isinstance(column, (str, bytes)) for column in ids):
            if any(isinstance(column, list) for column in ids):
                raise InvalidInput("Expected a composite id as a list of tuples (rows) or of arrays (columns), got a list of lists.")
            return list(ids)
    return None


def _transposed(rows: "list[Any] | tuple[Any, ...]") -> list[Any]:
    if len({len(row) for row in rows}) != 1 or not len(rows[0]):
        raise InvalidInput("Expected composite ids of one length, at least 1; got tuples of several lengths, or empty ones.")
    return [list(part) for part in zip(*rows, strict=True)]


def _joined(parts: "list[tuple[int, NDArray[np.integer] | Strings]]") -> Composites:
    if len({len(values) for _, values in parts}) > 1:
        raise InvalidInput(f"Expected the columns of a composite id to have equal lengths, got {[len(v) for _, v in parts]}.")
    return Composites([(tag, values if isinstance(values, Strings) else _integer_blocks(values).halves()) for tag, values in parts])


_FIX = "Pass integers, strings or bytes, or several such columns."


def _typed(column: Any, name: str) -> "tuple[int, NDArray[np.integer] | Strings]":
    """(INTEGER, (n,) integer array), or (TEXT or BYTES, n strings); refuses everything else."""
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "iuUS":
        return _typed_numpy(column, name)
    values = _arrow(column, name)
    values = _strings.decoded(values) if pa.types.is_dictionary(values.type) else values
    kind = values.type
    if values.null_count:
        raise InvalidInput(f"Expected every row to have an id, got {values.null_count} nulls in {name}. Fill them or drop the rows.")
    if pa.types.is_null(kind):  # an empty list has no type
        return INTEGER, np.empty(0, np.int64)
    if pa.types.is_integer(kind):
        return INTEGER, np.asarray(values.to_numpy())
    found = _strings.from_arrow(values)
    if found is None:
        raise InvalidInput(f"Expected {name} of integers, strings or bytes, got {kind}. {_FIX}")
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return TEXT if is_text else BYTES, found


def _typed_numpy(column: NDArray[Any], name: str) -> "tuple[int, NDArray[np.integer] | Strings]":
    if np.ma.is_masked(column):
        raise InvalidInput(f"Expected every row to have an id, got masked ones in {name}. Fill them or drop the rows.")
    if column.dtype.kind in "iu":
        return INTEGER, column
    try:
        return TEXT if column.dtype.kind == "U" else BYTES, _strings.from_numpy(column)
    except UnicodeError:
        raise InvalidInput(f"Expected {name} of text, got an array with broken characters (lone surrogates). {_FIX}") from None


def _arrow(column: Any, name: str) -> "pa.Array | pa.ChunkedArray":
    if isinstance(column, (list, tuple)) and any(isinstance(value, (bool, np.bool_)) for value in column):
        raise InvalidInput(f"Expected {name} of integers, strings or bytes, got bool. {_FIX}")
    try:
        return column if isinstance(column, (pa.Array, pa.ChunkedArray)) else _from_python(column)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, UnicodeError):
        # the cause is not chained: its message can quote values
        got = f"a {type(column).__name__} that mixes types or exceeds 64 bits"
        raise InvalidInput(f"Expected one column of {name}, all of one type, got {got}. {_FIX}") from None


def _from_python(column: Any) -> "pa.Array | pa.ChunkedArray":
    if hasattr(column, "__arrow_c_stream__"):
        return pa.chunked_array(column)
    if hasattr(column, "to_numpy") and not hasattr(column, "__arrow_c_array__"):
        column = column.to_numpy()
    try:
        return pa.array(column)
    except (pa.ArrowInvalid, OverflowError):
        return pa.array(column, pa.uint64())  # Arrow guesses int64 for a list, also where all of it is unsigned
