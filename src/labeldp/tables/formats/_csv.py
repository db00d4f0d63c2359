# SPDX-License-Identifier: Apache-2.0
"""CSV and TSV through Arrow: every column is text, and the values of public columns are copied
unchanged.

The dialect is RFC 4180: a field that starts with a quote ends with one, and a quote inside it is
doubled. Records end in a line feed or in carriage return + line feed, also mixed. A quote or a bare
carriage return in an unquoted field is refused, because readers disagree on it.
"""

import base64
import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.tables._place import Place, reading
from labeldp.tables.formats._table import Batch, Sink, Source

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
HEADER_LIMIT = 1 << 24
CHUNK = 1 << 22
LONGEST_RECORD = 1 << 26
QUOTE, LINE_FEED, RETURN = b'"\n\r'
TEXT = pa.large_binary()


class CsvSource(Source):
    """A text table with a header.

    Parameters
    ----------
    path : Path
        The delimiter of a `.tsv` file is the tab, of any other the comma.
    """

    text = True

    def __init__(self, path: Path | Place):
        self.path, self.files = Place.of(path), (self,)
        self.delimiter = delimiter_of(self.path)
        with reading(self.path):
            self._header = _read_header(self.path)
        self._mark = BYTE_ORDER_MARK if self._header.startswith(BYTE_ORDER_MARK) else b""
        self._line_end = b"\r\n" if self._header.endswith(b"\r\n") else b"\n"
        names = _names(self._header.removeprefix(self._mark), self.delimiter, self.path.name)
        # Bytes, not text: only columns that are read as text must be in UTF-8.
        self.schema = pa.schema([(name, pa.binary()) for name in names])
        self.types = dict.fromkeys(names, "text")
        self.extent = self.path.size - len(self._header)

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of a column, which is always text."""
        return pa.string()

    def batches(self, columns: Sequence[str] | None = None) -> Iterator["CsvBatch"]:
        """Iterate over the rows in order, in chunks of about 4 MiB."""
        row = 0
        with reading(self.path), self.path.open_input() as stream:
            stream.seek(len(self._header))
            for text in whole_records(stream):
                if self.all_utf8:
                    _as_text(pa.array([text]), self.path.name)
                # Before Arrow reads it: a field that another reader parses differently could be
                # another label there.
                if fault := dialect_fault(text, self.delimiter):
                    until = text.find(b"\n", fault[0]) + 1 or len(text)
                    records = sum(1 for _ in self._records(io.BytesIO(text[:until])))
                    raise InvalidInput(fault[1].format(self.row_name(row + records - 1)))
                for rows in self._parsed(text, row, columns):
                    yield CsvBatch(rows, len(text))
                    row += len(rows)

    def _parsed(self, text: bytes, row: int, columns: Sequence[str] | None) -> list[pa.RecordBatch]:
        """Parse complete records to one batch, or none for blank lines. An empty field without
        quotes is null, and written so again."""
        ragged: list[pa_csv.InvalidRow] = []

        def note(found: pa_csv.InvalidRow) -> str:
            ragged.append(found)
            return "skip"  # raising Arrow's error would quote the row

        # Arrow drops a byte order mark at the start of each chunk, where it is data: it is doubled,
        # so that one is left.
        text = BYTE_ORDER_MARK + text if text.startswith(BYTE_ORDER_MARK) else text
        # in a table of one column a blank line is a row
        blank_lines = {"ignore_empty_lines": len(self.names) > 1}
        nulls = {
            "null_values": [""],
            "strings_can_be_null": True,
            "quoted_strings_can_be_null": False,
        }
        # One block, so that no record is cut; one thread, because chunks are read ahead in another
        # thread anyway.
        found = pa_csv.read_csv(
            pa.py_buffer(text),
            pa_csv.ReadOptions(
                use_threads=False, column_names=self.names, block_size=len(text) + 1
            ),
            pa_csv.ParseOptions(
                delimiter=self.delimiter,
                newlines_in_values=True,
                invalid_row_handler=note,
                **blank_lines,
            ),
            pa_csv.ConvertOptions(column_types=self.schema, include_columns=columns, **nulls),
        )
        if ragged:
            raise InvalidInput(
                f"Expected {len(self.names)} fields in every record, as the header has, got"
                f" {ragged[0].actual_columns} in {self.row_name(row + ragged[0].number - 1)}. Mend"
                " the row; a field that holds the delimiter must be quoted."
            )
        return list(found.to_batches())

    def row_name(self, row: int) -> str:
        """Name a row in messages: by its position, and by the line of the file on which it begins,
        both from 1. The file is read again."""
        with reading(self.path), self.path.open_input() as stream:
            stream.seek(len(self._header))
            found = next(itertools.islice(self._records(io.BufferedReader(stream)), row, None), 0)
        line = self._header.count(b"\n") + found + 1
        return f"row {row + 1} (line {line})"

    def _records(self, lines: Iterable[bytes]) -> Iterator[int]:
        """Find the lines, the first being 0, on which records begin."""
        quoted = False
        for number, text in enumerate(lines):
            if not quoted and (len(self.names) == 1 or text.strip(b"\r\n")):
                yield number
            # After an odd number of quotes, the line feed is inside a field.
            quoted ^= text.count(b'"') % 2 == 1

    def rewrite(
        self, rows: pa.RecordBatch, codes: NDArray[np.integer], evidence: NDArray[np.uint8] | None
    ) -> pa.RecordBatch:
        """Replace the labels as `Source.rewrite`, with evidence in base64url; return one column of
        complete lines."""
        rows = self.shape.rewrite(rows, codes, None if evidence is None else _base64(evidence))
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        for name in self.shape.codec.columns:
            label = columns[name]
            # the null class is written as an empty field
            columns[name] = pc.if_else(pc.equal(label, ""), None, label)
        return pa.record_batch({"line": _lines(list(columns.values()), self.delimiter)})

    def sink(self, path: Path | Place, facts: str) -> "CsvSink":
        """Open a new text table with this header. The facts are in the manifest only, since CSV has
        no metadata."""
        # The input's byte order mark and line ends are kept for readers that need them.
        names = [pa.array([name]) for name in self.shape.released().names]
        return CsvSink(path, self._mark + _lines(names, self.delimiter)[0].as_py(), self._line_end)


def delimiter_of(path: Path | Place) -> str:
    """Return the delimiter of a file by its suffix: a tab for .tsv, else a comma."""
    return "\t" if path.suffix.lower() == ".tsv" else ","


class CsvBatch(Batch):
    """Consecutive rows of a text table. Its extent is in bytes."""

    def column(self, name: str) -> pa.Array:
        """Return the fields of a column as UTF-8 text."""
        return _as_text(self.raw(name), f"column {name!r}")

    def raw(self, name: str) -> pa.Array:
        """Return the fields of a column as bytes in any encoding."""
        return self.rows.column(name).fill_null(b"")


def _as_text(fields: pa.Array, where: str) -> pa.Array:
    """Convert bytes to text; the error names no row: of a label's column that would tell of the
    row's label."""
    try:
        return fields.cast(pa.string())
    except pa.ArrowInvalid:
        raise InvalidInput(
            f"Expected text in UTF-8 in {where}, got other bytes. Save the file as UTF-8; if it is"
            " Latin-1: iconv -f LATIN1 -t UTF-8 IN.csv > OUT.csv."
        ) from None


class CsvSink(Sink):
    """A writer of a text table."""

    def __init__(self, path: Path | Place, header: bytes, line_end: bytes):
        super().__init__(path)
        self._line_end = line_end
        self._file.write(header + line_end)

    def write(self, rows: pa.RecordBatch) -> None:
        """Append the lines that `CsvSource.rewrite` made."""
        self.rows += len(rows)
        if len(rows):
            lines = pa.ListArray.from_arrays([0, len(rows)], rows.column(0))
            self._file.write(pc.binary_join(lines, pa.scalar(self._line_end, TEXT))[0].as_py())
            self._file.write(self._line_end)

    def close(self, more: Mapping[str, object] | None = None) -> str:
        """Finish the file, and return its SHA-256. `more` is ignored, since CSV has no metadata."""
        return self._file.finish()


def _lines(columns: Sequence[pa.Array], delimiter: str) -> pa.Array:
    """Join columns to records without line ends: (n,) large_binary. A null is an empty field."""
    fields = [_quoted(column.cast(TEXT), delimiter.encode()) for column in columns]
    return pc.binary_join_element_wise(
        *fields, pa.scalar(delimiter.encode(), TEXT), null_handling="replace"
    )


def _quoted(fields: pa.Array, delimiter: bytes) -> pa.Array:
    """Put quotes around fields that need them, including empty text, which would else read as
    null."""
    # The whole buffer is searched first, which is fast: most columns need no quotes at all.
    needed, text = pc.equal(fields, b""), bytes(fields.buffers()[2] or b"")
    for mark in (b'"', delimiter, b"\n", b"\r"):
        if mark in text:
            needed = pc.or_(needed, pc.match_substring(fields, mark))
    if not pc.any(needed).as_py():
        return fields
    quote = pa.scalar(b'"', TEXT)
    quoted = pc.binary_join_element_wise(
        quote, pc.replace_substring(fields, '"', '""'), quote, pa.scalar(b"", TEXT)
    )
    return pc.if_else(needed, quoted, fields)


def _base64(evidence: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Encode rows of one width in base64url without padding: (n, m) uint8."""
    n, width = evidence.shape
    # Three bytes are four characters. With each row padded to a multiple of three bytes, one call
    # encodes all rows.
    padded = np.zeros((n, -(-width // 3) * 3), np.uint8)
    padded[:, :width] = evidence
    characters = np.frombuffer(base64.urlsafe_b64encode(padded.tobytes()), np.uint8)
    # The width is given, since NumPy cannot infer it from no rows: a batch may have none, of a
    # stage say.
    return characters.reshape(n, padded.shape[1] // 3 * 4)[:, : -(-width * 8 // 6)]


def _read_header(path: Place) -> bytes:
    """Read the first record, with the byte order mark and the line end."""
    with io.BufferedReader(path.open_input()) as stream:
        header = b""
        while line := stream.readline(HEADER_LIMIT):
            header += line
            if header.count(b'"') % 2 == 0 and header.strip(b"\r\n" + BYTE_ORDER_MARK):
                break
            if len(header) > HEADER_LIMIT:
                raise InvalidInput(
                    f"Expected a header line, got more than {HEADER_LIMIT >> 20} MiB without one in"
                    f" {path.name}. Is a quote left open?"
                )
    if not header.strip():
        raise InvalidInput(f"Expected a header line and rows, got an empty file: {path.name}.")
    return header if header.endswith(b"\n") else header + b"\n"


def _names(header: bytes, delimiter: str, file: str) -> tuple[str, ...]:
    """Parse the header to column names."""
    if b"\0" in header:
        raise InvalidInput(f"Expected text in UTF-8, got NUL bytes in {file}. Save it as UTF-8.")
    raw = header.lstrip(b"\r\n")
    try:
        if dialect_fault(raw, delimiter):
            raise ValueError
        (names,) = csv.reader(
            io.StringIO(raw.decode(), newline=""), delimiter=delimiter, strict=True
        )
    except (ValueError, csv.Error):
        raise InvalidInput(
            f"Expected a header line of column names in UTF-8, got something else in {file}."
        ) from None
    if len(set(names)) < len(names):
        raise InvalidInput(
            f"Expected distinct column names, got one twice in the header of {file}. Rename it."
        )
    return tuple(names)


def whole_records(stream: BinaryIO) -> Iterator[bytes]:
    """Divide text into pieces of about 4 MiB that end with a record. The last record need not have
    a line end."""
    rest, done = b"", 0
    while fresh := stream.read(CHUNK):
        text = rest + fresh
        end = _end_of_records(text)
        if end:
            yield text[:end]
        rest, done = text[end:], done + end
        if len(rest) > LONGEST_RECORD:
            raise InvalidInput(
                f"Expected records below {LONGEST_RECORD >> 20} MiB, got a longer one {done} bytes"
                " after the header. Is a quote left open?"
            )
    if rest:
        yield rest


def _end_of_records(text: bytes) -> int:
    """Find the end of the last complete record: after the last line feed with an even number of
    quotes before it."""
    end = text.rfind(b"\n") + 1
    # Quotes come in pairs in this dialect. After an odd number of quotes, a line feed is inside a
    # field.
    odd = text.count(b'"', 0, end) % 2
    while end and odd:
        start = text.rfind(b"\n", 0, end - 1) + 1
        odd ^= text.count(b'"', start, end) % 2
        end = start
    return end


def dialect_fault(text: bytes, delimiter: str) -> tuple[int, str] | None:
    """Find text that readers parse differently, in complete records.

    Returns
    -------
    (position, message) or None
        The byte at which it begins, and a message with {} in place of the row; None if all readers
        agree.
    """
    if b'"' not in text and b"\r" not in text:
        return None
    data = np.frombuffer(text + b"\n", np.uint8)
    quotes, returns = np.flatnonzero(data == QUOTE), np.flatnonzero(data == RETURN)
    # Some readers end a record at a bare carriage return, and would see other rows.
    bare = returns[data[returns + 1] != LINE_FEED]
    bare = bare[np.searchsorted(quotes, bare) % 2 == 0]
    if len(bare):
        return (
            int(bare[0]),
            (
                "Expected carriage returns only before line feeds or in quotes, got a bare one in"
                " {}. Quote the field."
            ),
        )
    opening, closing = quotes[0::2], quotes[1::2]
    # If all quoted fields are quoted as a whole, quotes alternate between opening and closing, with
    # delimiters or line ends around.
    around = np.zeros(256, bool)
    around[[ord(delimiter), LINE_FEED, QUOTE]] = True
    after, later = data[closing + 1], opening[opening > 0]
    inside = np.r_[later[~around[data[later - 1]]], closing[~(around[after] | (after == RETURN))]]
    if len(inside):
        return (
            int(inside.min()),
            (
                "Expected quotes only around whole fields, got one inside a field in {}. "
                'Quote such fields and double the quotes in them ("a ""b"" c").'
            ),
        )
    # With an open quote the rest of the file would be one field, and its rows would be missing.
    if len(opening) > len(closing):
        return (
            int(opening[-1]),
            (
                "Expected every quoted field to end, got one left open in {}. The file may be cut"
                " short."
            ),
        )
    return None
