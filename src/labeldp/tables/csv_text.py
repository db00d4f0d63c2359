# SPDX-License-Identifier: Apache-2.0
"""CSV as bytes: where records and fields begin and end, found with array operations, so that every field passes as it was written.

The dialect is RFC 4180: a field that starts with a quote ends with one, and a quote inside it is doubled. Records end in a line feed or
in carriage return + line feed, mixed at will. A quote or a bare carriage return in an unquoted field is refused: readers disagree on it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp.errors import InvalidInput

QUOTE, LINE_FEED, RETURN = b'"'[0], b"\n"[0], b"\r"[0]
CHUNK = 1 << 22
LONGEST_RECORD = 1 << 26


@dataclass(frozen=True, repr=False)
class Records:
    """Whole records of a text table.

    Attributes
    ----------
    data : (m,) uint8
        The records' bytes.
    ends : (n, F) int64
        Position of the delimiter after each field; the last one is the first byte of the record's line end.
    stops : (n,) int64
        Position after each record's line feed.
    """

    data: NDArray[np.uint8]
    ends: NDArray[np.int64]
    stops: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.stops)

    @property
    def starts(self) -> NDArray[np.int64]:
        """(n,) position of each record's first byte."""
        return np.concatenate([np.zeros(1, np.int64), self.stops[:-1]]) if len(self) else np.zeros(0, np.int64)

    def span(self, field: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(begin, end) of one field in every record, quotes included."""
        begin = self.starts if field == 0 else self.ends[:, field - 1] + 1
        return begin, self.ends[:, field]

    def pieces(self, field: int) -> pa.Array:
        """(3n,) binary, no copy: of every record what stands before the field, the field, and what follows up to the next record."""
        begin, end = self.span(field)
        offsets = np.empty(3 * len(self) + 1, np.int64)
        offsets[0:-1:3], offsets[1::3], offsets[2::3] = self.starts, begin, end
        offsets[-1] = self.stops[-1] if len(self) else 0
        return binary_array(offsets, self.data)

    def text(self, field: int) -> pa.Array:
        """(n,) large_binary: one field of every record, unquoted."""
        raw = self.pieces(field).take(pa.array(np.arange(1, 3 * len(self), 3)))
        quoted = np.zeros(len(self), bool)
        begin, end = self.span(field)
        filled = end > begin
        quoted[filled] = self.data[begin[filled]] == QUOTE
        if not quoted.any():
            return raw
        values = raw.to_pylist()
        for row in np.flatnonzero(quoted):
            values[row] = values[row][1:-1].replace(b'""', b'"')
        return pa.array(values, pa.large_binary())


def binary_array(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> pa.Array:
    """A large_binary array over these bytes, without a copy."""
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def quote(text: str, delimiter: str) -> bytes:
    """One field as CSV text, quoted only where it must be."""
    if any(c in text for c in (delimiter, '"', "\n", "\r")):
        return b'"' + text.replace('"', '""').encode() + b'"'
    return text.encode()


class Splitter:
    """Splits a text table into whole records, a chunk at a time.

    Parameters
    ----------
    delimiter : str
        One ASCII character.
    fields : int or None
        Fields in every record; None: as many as the first record has.
    line_end : bytes
        What a last line without a line end gets.
    """

    def __init__(self, delimiter: str, fields: int | None = None, line_end: bytes = b"\n"):
        self._delimiter = ord(delimiter)
        self._fields = fields
        self._line_end = line_end
        self._rows = 0

    def split(self, stream: BinaryIO) -> Iterator[Records]:
        """Records of the stream; a last line without a line end gets one."""
        rest = b""
        while fresh := stream.read(CHUNK):
            block = rest + fresh
            records, used = self._records(block, last=False)
            if records is not None:
                yield records
            rest = block[used:]
            if len(rest) > LONGEST_RECORD:
                raise InvalidInput(
                    f"Expected records below {LONGEST_RECORD >> 20} MiB, got a longer one after row {self._rows}. Is a quote left open?"
                )
        if rest:
            records, _ = self._records(rest + self._line_end, last=True)
            if records is not None:
                yield records

    def _records(self, block: bytes, last: bool) -> tuple[Records | None, int]:
        data = np.frombuffer(block, np.uint8)
        marks, whole = self._marks(data)
        if last and not whole:
            raise InvalidInput(f"Expected every quoted field to end, got one left open after row {self._rows}. The file may be cut short.")
        feeds = np.flatnonzero(data[marks] == LINE_FEED)
        if not len(feeds):
            return None, 0
        marks = marks[: feeds[-1] + 1]
        used = int(marks[-1]) + 1
        return self._table(data[:used], marks), used

    def _marks(self, data: NDArray[np.uint8]) -> tuple[NDArray[np.int64], bool]:
        """Positions of delimiters and line feeds outside quotes; whether the last quoted field is closed."""
        marks = np.flatnonzero((data == self._delimiter) | (data == LINE_FEED))
        quotes = np.flatnonzero(data == QUOTE)
        self._check_returns(data, quotes)
        if not len(quotes):
            return marks, True
        inside = np.searchsorted(quotes, marks) % 2 == 1
        whole = len(quotes) % 2 == 0
        self._check_quotes(data, quotes)
        return marks[~inside], whole

    def _check_returns(self, data: NDArray[np.uint8], quotes: NDArray[np.int64]) -> None:
        returns = np.flatnonzero(data[:-1] == RETURN)
        bare = returns[data[returns + 1] != LINE_FEED]
        if (np.searchsorted(quotes, bare) % 2 == 0).any():
            raise InvalidInput(
                f"Expected carriage returns only before line feeds or in quotes, got a bare one after row {self._rows}. Quote the field."
            )

    def _check_quotes(self, data: NDArray[np.uint8], quotes: NDArray[np.int64]) -> None:
        opening, closing = quotes[0::2], quotes[1::2]
        before = data[np.maximum(opening - 1, 0)]
        starts = (opening == 0) | (before == self._delimiter) | (before == LINE_FEED) | (before == QUOTE)
        inner = closing[closing + 1 < len(data)]
        after = data[inner + 1]
        stops = (after == self._delimiter) | (after == LINE_FEED) | (after == RETURN) | (after == QUOTE)
        if not starts.all() or not stops.all():
            raise InvalidInput(
                f"Expected quotes only around whole fields, got one inside a field after row {self._rows}. "
                'Quote such fields and double the quotes in them ("a ""b"" c").'
            )

    def _table(self, data: NDArray[np.uint8], marks: NDArray[np.int64]) -> Records | None:
        feeds = data[marks] == LINE_FEED
        if self._fields is None:
            self._fields = int(np.argmax(feeds)) + 1
        if self._fields > 1:
            data, marks, feeds = _without_blank_lines(data, marks, feeds)
        if not len(marks):
            return None
        expected = np.zeros(len(marks), bool)
        expected[self._fields - 1 :: self._fields] = True
        if len(marks) % self._fields or not np.array_equal(feeds, expected):
            self._refuse_shape(feeds)
        ends = marks.reshape(-1, self._fields).astype(np.int64)
        stops = ends[:, -1] + 1
        returns = (data[np.maximum(ends[:, -1] - 1, 0)] == RETURN) & (ends[:, -1] > 0)
        ends[:, -1] -= returns
        self._rows += len(stops)
        return Records(data, ends, stops)

    def _refuse_shape(self, feeds: NDArray[np.bool_]) -> None:
        counts = np.diff(np.flatnonzero(feeds), prepend=-1)
        bad = int(np.flatnonzero(counts != self._fields)[0])
        raise InvalidInput(
            f"Expected {self._fields} fields in every record, as the header has, got {int(counts[bad])} in row {self._rows + bad} "
            "(the first is row 0). Mend the row; a field that holds the delimiter must be quoted."
        )


def _without_blank_lines(
    data: NDArray[np.uint8], marks: NDArray[np.int64], feeds: NDArray[np.bool_]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]:
    """The same without empty lines, which other readers skip too."""
    before = np.concatenate([[-1], marks[:-1]])
    after_feed = np.concatenate([[True], feeds[:-1]])
    length = marks - before - 1
    blank = feeds & after_feed & ((length == 0) | ((length == 1) & (data[np.maximum(marks - 1, 0)] == RETURN)))
    if not blank.any():
        return data, marks, feeds
    keep = np.ones(len(data), bool)
    for at in np.flatnonzero(blank):
        keep[before[at] + 1 : marks[at] + 1] = False
    moved = np.cumsum(~keep)
    kept = marks[~blank]
    return data[keep], kept - moved[kept], feeds[~blank]
