# SPDX-License-Identifier: Apache-2.0
"""Columns of text as bytes in one buffer, read a chunk of rows at a time, without an object for any string."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 15
"""Rows of text worked on at a time: small enough that what is read from them stays in the processor's cache."""
REACH = 64
"""Bytes that may be read from any place where a row still has some."""


class Rows:
    """A few byte strings data[begins[i]:][:lengths[i]], with at least `REACH` bytes of the buffer behind each."""

    __slots__ = ("begins", "data", "lengths")

    def __init__(self, data: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self.data, self.begins, self.lengths = data, begins, lengths

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def stride(self) -> int:
        """How far apart the rows begin; 0 where that differs."""
        stride = int(self.begins[1] - self.begins[0]) if len(self) > 1 else 1
        return stride if (self.begins[1:] - self.begins[:-1] == stride).all() else 0

    def leading(self, width: int) -> NDArray[np.void]:
        """The `width` bytes, at most `REACH` more than it has, from the beginning of each row."""
        if stride := self.stride:
            return np.ndarray(len(self), f"V{width}", self.data, offset=int(self.begins[0]) if len(self) else 0, strides=(stride,))
        return self.windows(width)[self.begins]

    def windows(self, width: int) -> NDArray[np.void]:
        """The `width` bytes from each place of the buffer, without copies."""
        return np.ndarray(len(self.data) - width + 1, f"V{width}", self.data, strides=(1,))


class LongestFirst:
    """Rows by length, so that those with bytes at some place are always the leading ones.

    Attributes
    ----------
    order : (n,) intp or None
        Which row is the i-th here; None where all have one length and so stand as they are.
    lengths : (n,) int64
        In this order.
    """

    __slots__ = ("_begins", "_first", "_group", "_rows", "_shortness", "_stride", "_wide", "lengths", "order")

    def __init__(self, rows: Rows) -> None:
        self._rows, self._group = rows, -1
        self.order: NDArray[np.intp] | None = None
        self.lengths, self._begins = rows.lengths, rows.begins
        if len(rows) and rows.lengths.min() != (longest := rows.lengths.max()):
            # a stable sort of 16-bit numbers is a radix sort, three times as fast as one by comparison
            self.order = np.argsort((longest - rows.lengths).astype(np.uint16) if longest < 1 << 16 else -rows.lengths, kind="stable")
            self.lengths, self._begins = rows.lengths.take(self.order), rows.begins.take(self.order)
            self._shortness = -self.lengths
        self._first = int(rows.begins[0]) if len(rows) else 0
        self._stride = rows.stride if self.order is None else 0

    def __len__(self) -> int:
        return len(self.lengths)

    def reach(self, place: int) -> int:
        """How many rows have a byte at `place` or behind it."""
        if self.order is None:
            return len(self.lengths) if len(self.lengths) and self.lengths[0] > place else 0
        return int(np.searchsorted(self._shortness, -place, side="left"))

    def at(self, place: int, width: int, n: int) -> NDArray[np.void]:
        """The `width` bytes from `place` of the first n rows; `place` is a multiple of `width`, a power of two up to `REACH`.

        All n rows must have a byte there, or `place` be 0; what stands behind a row's end is arbitrary.
        """
        if self._stride:
            return np.ndarray(n, f"V{width}", self._rows.data, offset=self._first + place, strides=(self._stride,))
        group, inside = divmod(place, REACH)
        if group != self._group:  # one gather for several places
            left = int(self.lengths[0]) - REACH * group if n else 0
            span = REACH if left > REACH // 2 else REACH // 2
            self._wide = self._rows.windows(span)[self._begins[:n] + REACH * group]
            self._group = group
        return np.ndarray(n, f"V{width}", self._wide, offset=inside, strides=(self._wide.itemsize,))

    def unsorted(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values in this order, put back into the order of the rows."""
        if self.order is None:
            return values
        out = np.empty_like(values)
        out[self.order] = values
        return out


class _Part(NamedTuple):
    """Byte strings of one buffer: data[begins[i]:ends[i]]."""

    data: NDArray[np.uint8]
    begins: NDArray[np.integer]
    ends: NDArray[np.integer]

    def rows(self, start: int, stop: int) -> Rows:
        begins, ends = self.begins[start:stop].astype(np.int64), self.ends[start:stop].astype(np.int64)
        low, high = (int(begins.min()), int(ends.max())) if len(begins) else (0, 0)
        if high + REACH <= len(self.data):
            return Rows(self.data, begins, ends - begins)
        padded = np.zeros(high - low + REACH, np.uint8)
        padded[: high - low] = self.data[low:high]
        return Rows(padded, begins - low, ends - begins)


class Strings:
    """n byte strings, wherever they lie.

    Parameters
    ----------
    parts : sequence of (data, begins, ends)
        Each buffer of bytes, and where each string of it begins and ends.
    """

    __slots__ = ("_parts", "_starts")

    def __init__(self, parts: Sequence[tuple[NDArray[np.uint8], NDArray[np.integer], NDArray[np.integer]]]) -> None:
        self._parts = [_Part(*part) for part in parts]
        self._starts = [0, *np.cumsum([len(part.begins) for part in self._parts]).tolist()]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def rows(self, start: int, stop: int) -> Rows:
        """Rows start .. stop - 1."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        found = []
        for part, begin in zip(self._parts[first:], self._starts[first:], strict=False):
            if begin >= stop:
                break
            found.append(part.rows(max(start - begin, 0), stop - begin))
        return found[0] if len(found) == 1 else _together(found)

    def chunks(self) -> Iterator[tuple[slice, Rows]]:
        """All rows, a chunk at a time, and where they stand."""
        for start in range(0, len(self), CHUNK):
            where = slice(start, min(start + CHUNK, len(self)))
            yield where, self.rows(where.start, where.stop)

    @staticmethod
    def joined(columns: "Sequence[Strings]") -> "Strings":
        """The strings of several columns, one below the other."""
        return Strings([part for column in columns for part in column._parts])


def _together(found: list[Rows]) -> Rows:
    """Rows of several buffers in one."""
    data, begins, filled = [np.empty(0, np.uint8)], [np.empty(0, np.int64)], 0
    for rows in found:
        low, high = (int(rows.begins.min()), int((rows.begins + rows.lengths).max())) if len(rows) else (0, 0)
        data.append(rows.data[low:high])
        begins.append(rows.begins + (filled - low))
        filled += high - low
    lengths = np.concatenate([np.empty(0, np.int64), *(rows.lengths for rows in found)])
    return Rows(np.concatenate([*data, np.zeros(REACH, np.uint8)]), np.concatenate(begins), lengths)


def from_arrow(column: Any) -> Strings | None:
    """The strings of an Arrow array or chunked array of text or bytes, also dictionary-encoded; None if it is of anything else.

    Nothing is copied but chunks, views and dictionaries. Nulls count as empty: refuse them first.
    """
    import pyarrow as pa

    kind = pa.types
    if isinstance(column, pa.ChunkedArray):
        parts = [from_arrow(chunk) for chunk in column.chunks or [pa.array([], column.type)]]
        found = [part for part in parts if part is not None]
        return Strings.joined(found) if len(found) == len(parts) else None
    if kind.is_dictionary(column.type):
        return from_arrow(decoded(column))
    if kind.is_string_view(column.type) or kind.is_binary_view(column.type):
        column = column.cast(pa.large_string() if kind.is_string_view(column.type) else pa.large_binary())
    short = kind.is_string(column.type) or kind.is_binary(column.type)
    if short or kind.is_large_string(column.type) or kind.is_large_binary(column.type):
        places, content = column.buffers()[1:]
        if not len(column):  # Arrow may leave out the offsets
            return Strings([])
        offsets: NDArray[Any] = np.frombuffer(places, np.int32 if short else np.int64)[column.offset : column.offset + len(column) + 1]
        return Strings([(_bytes_of(content), offsets[:-1], offsets[1:])])
    if kind.is_fixed_size_binary(column.type):
        width = column.type.byte_width
        begins = np.arange(len(column), dtype=np.int64) * width + column.offset * width
        return Strings([(_bytes_of(column.buffers()[1]), begins, begins + width)])
    return None


def decoded(column: Any) -> Any:
    """A dictionary-encoded Arrow array or chunked array as plain values; a null of the dictionary becomes one of the column."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        kind = pa.large_string() if pa.types.is_string_view(column.type.value_type) else column.type.value_type
        return pa.chunked_array([decoded(chunk) for chunk in column.chunks], kind)
    if pa.types.is_string_view(column.dictionary.type):  # which Arrow cannot take from
        column = pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(pa.large_string()))
    return column.dictionary_decode()


def _bytes_of(buffer: Any) -> NDArray[np.uint8]:
    return np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else np.empty(0, np.uint8)


def from_numpy(column: NDArray[np.generic]) -> Strings:
    """The strings of an array of np.str_, as UTF-8, or of np.bytes_; UnicodeError where they are no text.

    Trailing NULs do not count, as in NumPy.
    """
    if column.dtype.kind == "U":
        points = np.ascontiguousarray(column.astype(column.dtype.newbyteorder("="), copy=False)).view(np.uint32)
        if points.size and points.max() >= 128:
            return from_numpy(np.char.encode(column.astype(np.str_), "utf-8"))
        raw = points.astype(np.uint8)
    else:
        raw = np.ascontiguousarray(column).view(np.uint8)
    matrix = raw.reshape(len(column), -1) if raw.size else np.zeros((len(column), 1), np.uint8)
    begins = np.arange(len(matrix), dtype=np.int64) * matrix.shape[1]
    return Strings([(matrix.reshape(-1), begins, begins + _lengths(matrix))])


def _lengths(matrix: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Bytes of each row up to its last one that is not 0."""
    width = matrix.shape[1]
    if len(matrix) and matrix[:, -1].all():
        return np.full(len(matrix), width, np.int64)
    return np.strings.str_len(matrix.view(f"S{width}")[:, 0]).astype(np.int64)


def sortable(ids: NDArray[np.generic]) -> NDArray[np.generic]:
    """Ids that can be sorted: columns of several types, and text as data frames hold it, as text of one type."""
    return ids.astype(np.str_) if ids.dtype.kind == "O" else ids
