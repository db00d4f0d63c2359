# SPDX-License-Identifier: Apache-2.0
"""Ids of several columns, written out as the messages that AES-CMAC hashes; docs/noise.md is the exact format."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from labeldp._strings import CHUNK, REACH, Rows, Strings

_HEADER = np.dtype([("tag", "u1"), ("length", "<u8")])
_INTEGER = np.dtype([("tag", "u1"), ("length", "<u8"), ("low", "<u8"), ("high", "<u4")])
_INTEGER_BYTES = 12


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
        lengths = np.zeros(where.stop - where.start, np.int64)
        for piece in pieces:
            lengths += piece.lengths if isinstance(piece, Rows) else piece.itemsize
        begins = np.r_[0, np.cumsum(lengths + REACH)]  # room to write past the end of a part, where the next part or nothing follows
        messages = Rows(np.empty(begins[-1] + REACH, np.uint8), begins[:-1], lengths)
        at = begins[:-1].copy()
        for piece in pieces:
            if isinstance(piece, Rows):
                _put(piece, messages, at)
                at += piece.lengths
            else:
                messages.windows(piece.itemsize)[at] = piece.view(f"V{piece.itemsize}")
                at += piece.itemsize
        return messages


def _pieces(tag: int, column: "Strings | tuple[NDArray[np.uint64], NDArray[np.uint32]]", where: slice) -> "list[Rows | NDArray[np.void]]":
    """A chunk of one part: records of one width, and bytes that differ in length."""
    n = where.stop - where.start
    if isinstance(column, Strings):
        rows, header = column.rows(where.start, where.stop), np.empty(n, _HEADER)
        header["tag"], header["length"] = tag, rows.lengths
        return [header, rows]
    record = np.empty(n, _INTEGER)
    record["tag"], record["length"], record["low"], record["high"] = tag, _INTEGER_BYTES, column[0][where], column[1][where]
    return [record]


def _put(rows: Rows, messages: Rows, at: NDArray[np.int64]) -> None:
    """Write each row to its place, and garbage behind it."""
    longest = int(rows.lengths.max())
    width = next(width for width in (8, 16, 32, 48, REACH) if width >= min(longest, REACH))
    source, target = rows.windows(width), messages.windows(width)
    target[at] = source[rows.begins]
    for place in range(width, longest, width):
        further = np.flatnonzero(rows.lengths > place)
        target[at[further] + place] = source[rows.begins[further] + place]
