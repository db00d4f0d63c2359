# SPDX-License-Identifier: Apache-2.0
"""Ids of several columns, written out as the messages that AES-CMAC hashes; docs/noise.md is the exact format."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from labeldp import _strings
from labeldp._strings import REACH, Rows, Strings

CHUNK = _strings.CHUNK // 2
"""Messages made at a time."""

_HEADER = np.dtype([("tag", "u1"), ("length", "<u8")])
_INTEGER = np.dtype([("tag", "u1"), ("length", "<u8"), ("low", "<u8"), ("high", "<u4")])
_INTEGER_BYTES = 12
_WIDTHS = (8, 16, 24, 32, 40, 48, REACH)  # of what is written at a time


class Composites:
    """n composite ids: each part as type (1 byte), length (8 bytes), bytes, so that no two ids give the same message.

    Parameters
    ----------
    parts : sequence of (tag, column)
        A column of integers is (low, high): bytes 0..7 and 8..11 of their two's complement, as in a block. All of length n.
    """

    def __init__(self, parts: "Sequence[tuple[int, Strings | tuple[NDArray[np.uint64], NDArray[np.uint32]]]]") -> None:
        self._parts = parts
        self._n = len(parts[0][1] if isinstance(parts[0][1], Strings) else parts[0][1][0])

    def __len__(self) -> int:
        return self._n

    def chunks(self) -> Iterator[tuple[slice, Rows]]:
        """All messages, a chunk at a time, and where they stand."""
        for start in range(0, self._n, CHUNK):
            where = slice(start, min(start + CHUNK, self._n))
            yield where, self._rows(where)

    def _rows(self, where: slice) -> Rows:
        pieces = [piece for tag, column in self._parts for piece in _pieces(tag, column, where)]
        ragged = [int(piece.lengths.max()) for piece in pieces if isinstance(piece, Rows)]
        return _uneven(pieces, where.stop - where.start, max(ragged)) if ragged else _even(pieces)


Piece = NDArray[np.void] | Rows
"""Bytes of one width for every row, or bytes that differ in length."""


def _pieces(tag: int, column: "Strings | tuple[NDArray[np.uint64], NDArray[np.uint32]]", where: slice) -> list[Piece]:
    """A chunk of one part."""
    n = where.stop - where.start
    if isinstance(column, Strings):
        rows, header = column.rows(where.start, where.stop), np.empty(n, _HEADER)
        header["tag"], header["length"] = tag, rows.lengths
        length = int(rows.lengths[0])
        if (rows.lengths != length).any():
            return [_void(header), rows]
        return [_void(header), rows.leading(length)] if length else [_void(header)]
    record = np.empty(n, _INTEGER)
    record["tag"], record["length"], record["low"], record["high"] = tag, _INTEGER_BYTES, column[0][where], column[1][where]
    return [_void(record)]


def _void(records: NDArray[np.void]) -> NDArray[np.void]:
    return records.view(f"V{records.itemsize}")


def _even(pieces: Sequence[Piece]) -> Rows:
    """Messages of one length."""
    n, length = len(pieces[0]), sum(piece.itemsize for piece in pieces if not isinstance(piece, Rows))
    data, at = np.empty(n * length + REACH, np.uint8), 0
    for piece in pieces:
        if not isinstance(piece, Rows):
            np.ndarray(n, piece.dtype, data, offset=at, strides=(length,))[:] = piece
            at += piece.itemsize
    return Rows(data, np.arange(n, dtype=np.int64) * length, np.full(n, length, np.int64))


def _uneven(pieces: Sequence[Piece], n: int, longest: int) -> Rows:
    """Messages whose lengths differ, with room behind each: a part is written past its end, where the next part or nothing follows."""
    width = next(width for width in _WIDTHS if width >= min(longest, REACH))
    lengths = np.zeros(n, np.int64)
    for piece in pieces:
        lengths += piece.lengths if isinstance(piece, Rows) else piece.itemsize
    begins = np.r_[0, np.cumsum(lengths + width)]
    messages, at = Rows(np.empty(begins[-1] + REACH, np.uint8), begins[:-1], lengths), begins[:-1].copy()
    for piece in pieces:
        if isinstance(piece, Rows):
            _put(piece, messages.windows(width), at)
            at += piece.lengths
        else:
            messages.windows(piece.itemsize)[at] = piece
            at += piece.itemsize
    return messages


def _put(rows: Rows, target: NDArray[np.void], at: NDArray[np.int64]) -> None:
    """Write each row to its place, and garbage behind it."""
    width = target.itemsize
    source = rows.windows(width)
    target[at] = source[rows.begins]
    for place in range(width, int(rows.lengths.max()), width):
        further = np.flatnonzero(rows.lengths > place)
        target[at[further] + place] = source[rows.begins[further] + place]
