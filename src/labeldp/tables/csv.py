# SPDX-License-Identifier: Apache-2.0
"""CSV and TSV: every field of every other column passes byte for byte, quotes included."""

import base64
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.tables.csv_text import Records, Splitter, binary_array, quote
from labeldp.tables.labels import LabelCodec
from labeldp.tables.place import Place, reading
from labeldp.tables.table import EVIDENCE, Batch, HashedFile

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
HEADER_LIMIT = 1 << 24
RECORD = "__labeldp_record"


class CsvSource:
    """A text table with a header.

    Parameters
    ----------
    path : Path
        `.tsv` is split at tabs, anything else at commas.
    """

    text = True

    def __init__(self, path: Path | Place):
        self.path = Place.of(path)
        self.delimiter = "\t" if self.path.suffix.lower() == ".tsv" else ","
        with reading(self.path):
            self._header = _read_header(self.path)
        self.header, self.names = self._parse_header()
        self._line_end = b"\r\n" if self._header.endswith(b"\r\n") else b"\n"
        self.extent = self.path.size - len(self._header)
        self._codec: LabelCodec | None = None
        self._evidence = False

    def _parse_header(self) -> tuple[Records, tuple[str, ...]]:
        if b"\0" in self._header:
            raise InvalidInput(f"Expected text in UTF-8, got NUL bytes in {self.path.name}. Save it as UTF-8.")
        try:
            raw = self._header.removeprefix(BYTE_ORDER_MARK)
            (records,) = Splitter(self.delimiter).split(io.BytesIO(raw))
            names = tuple(records.text(i)[0].as_py().decode() for i in range(records.ends.shape[1]))
        except (UnicodeDecodeError, ValueError):
            raise InvalidInput(f"Expected a header line of column names in UTF-8, got something else in {self.path.name}.") from None
        if len(set(names)) < len(names):
            raise InvalidInput(f"Expected distinct column names, got one twice in the header of {self.path.name}. Rename it.")
        return records, names

    def type_of(self, name: str) -> pa.DataType:
        """Text, always."""
        return pa.string()

    def batches(self, columns: Sequence[str] | None = None) -> Iterator["CsvBatch"]:
        """The rows in order, in chunks of about 4 MiB."""
        with reading(self.path), self.path.open_input() as stream:
            stream.seek(len(self._header))
            start = 0
            for records in Splitter(self.delimiter, len(self.names), self._line_end).split(stream):
                yield CsvBatch(self, records, start)
                start += len(records)

    def restored(self, rows: pa.RecordBatch, label: str) -> Iterator["CsvBatch"]:
        """Batches of the records, whose label is empty."""
        text = rows.column(RECORD)
        offsets = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
        stream = io.BytesIO(memoryview(text.buffers()[2] or b"")[offsets[0] : offsets[-1]])
        for records in Splitter(self.delimiter, len(self.names), self._line_end).split(stream):
            yield CsvBatch(self, records, 0)

    def line_of(self, row: int) -> int:
        """The line of the file, the first being 1, on which a record begins: read again, for messages."""
        line, quoted = self._header.count(b"\n") + 1, False
        with reading(self.path), self.path.open_input() as stream:
            stream.seek(len(self._header))
            for text in io.BufferedReader(stream):
                if not quoted and (len(self.names) == 1 or text.strip(b"\r\n")):
                    if not row:
                        return line
                    row -= 1
                quoted ^= text.count(b'"') % 2 == 1
                line += 1
        return line

    def public_digest(self, label: str) -> "CsvDigest":
        """Digest of the text without the label's field."""
        return CsvDigest(self, label)

    def plan(self, codec: LabelCodec, evidence_bytes: int) -> None:
        """Label texts by this codec; evidence in base64url if it has any width."""
        self._codec = codec
        self._evidence = evidence_bytes > 0
        self._texts = [quote(str(c), self.delimiter) for c in codec.classes]

    def rewrite(self, records: Records, codes: NDArray[np.integer], evidence: NDArray[np.uint8] | None) -> pa.Array:
        """(n,) large_binary: the records with these labels and, right after the label, their evidence."""
        assert self._codec is not None
        texts = [t + self.delimiter.encode() for t in self._texts] if self._evidence else self._texts
        return self._join(records, texts, codes, None if evidence is None else _base64(evidence))

    def _join(self, records: Records, texts: list[bytes], codes: NDArray[np.integer], evidence: pa.Array | None) -> pa.Array:
        assert self._codec is not None
        n = len(records)
        pieces = records.pieces(self.names.index(self._codec.column))
        parts = [pieces, pa.array(texts, pa.large_binary())] + ([] if evidence is None else [evidence])
        width = 3 if evidence is None else 4
        order = np.empty(width * n, np.int64)
        order[0::width] = np.arange(0, 3 * n, 3)
        order[1::width] = 3 * n + codes
        if evidence is not None:
            order[2::width] = 3 * n + len(texts) + np.arange(n)
        order[width - 1 :: width] = np.arange(2, 3 * n, 3)
        joined = pa.concat_arrays(parts).take(pa.array(order))
        offsets = np.frombuffer(joined.buffers()[1], np.int64)[: width * n + 1 : width].copy()
        return binary_array(offsets, np.frombuffer(joined.buffers()[2], np.uint8))

    def sink(self, path: Path | Place, facts: str) -> "CsvSink":
        """A new text table with this header; the shared facts go to the manifest, since CSV has no place for them."""
        assert self._codec is not None
        header = self.header
        if self._evidence:
            name = quote(self._codec.column + EVIDENCE, self.delimiter)
            own = header.pieces(self.names.index(self._codec.column))[1].as_py()
            line = self._join(header, [own + self.delimiter.encode() + name], np.zeros(1, np.int64), None)[0].as_py()
        else:
            line = header.data.tobytes()
        mark = BYTE_ORDER_MARK if self._header.startswith(BYTE_ORDER_MARK) else b""
        return CsvSink(path, mark + line)


class CsvBatch:
    """Consecutive records of a text table."""

    def __init__(self, source: CsvSource, records: Records, start: int):
        self._source, self.records, self._start = source, records, start

    def __len__(self) -> int:
        return len(self.records)

    @property
    def extent(self) -> int:
        """Bytes of text."""
        return len(self.records.data)

    def column(self, name: str) -> pa.Array:
        """One column's fields, unquoted."""
        raw = self.records.text(self._source.names.index(name))
        try:
            return raw.cast(pa.large_string())
        except pa.ArrowInvalid:
            raise InvalidInput(
                f"Expected text in UTF-8 in column {name!r}, got other bytes after row {self._start}. Save the file as UTF-8."
            ) from None

    def plain(self, label: str) -> pa.RecordBatch:
        """The records with an empty label, as one binary column."""
        around = self.records.pieces(self._source.names.index(label)).take(_without_middle(len(self)))
        offsets = np.frombuffer(around.buffers()[1], np.int64)[: 2 * len(self) + 1 : 2].copy()
        return pa.record_batch({RECORD: binary_array(offsets, np.frombuffer(around.buffers()[2] or b"", np.uint8))})

    def release(self, codes: NDArray[np.integer], evidence: NDArray[np.uint8] | None, kept: NDArray[np.bool_] | None) -> pa.RecordBatch:
        """The records with other labels, as one binary column."""
        records = self.records if kept is None or kept.all() else _only(self.records, kept)
        return pa.record_batch({"record": self._source.rewrite(records, codes, evidence)})


def _only(records: Records, kept: NDArray[np.bool_]) -> Records:
    length = np.diff(records.stops, prepend=0)
    data = records.data[np.repeat(kept, length)]
    shift = np.cumsum(np.where(kept, 0, length))[kept]
    return Records(data, records.ends[kept] - shift[:, None], records.stops[kept] - shift)


class CsvDigest:
    """SHA-256 of the header and of every record without its label field."""

    def __init__(self, source: CsvSource, label: str):
        self._place = source.names.index(label)
        self._state = hashlib.sha256(b"csv/1:" + source.delimiter.encode() + "\x1f".join(source.names).encode() + b"\n")

    def update(self, batch: Batch) -> None:
        """Add a batch."""
        batch = getattr(batch, "original", batch)
        assert isinstance(batch, CsvBatch)
        self._state.update(batch.records.pieces(self._place).take(_without_middle(len(batch))).buffers()[2] or b"")

    def hexdigest(self) -> str:
        """SHA-256, hexadecimal."""
        return self._state.hexdigest()


class CsvSink:
    """A text table being written."""

    def __init__(self, path: Path | Place, header: bytes):
        self._file = HashedFile(path)
        self._file.write(header)
        self.rows = 0

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._file.size

    def write(self, rows: pa.RecordBatch) -> None:
        """Append records."""
        records = rows.column(0)
        self.rows += len(records)
        if len(records):
            offsets = np.frombuffer(records.buffers()[1], np.int64)[records.offset : records.offset + len(records) + 1]
            self._file.write(memoryview(records.buffers()[2])[offsets[0] : offsets[-1]])

    def close(self, more: Mapping[str, object] | None = None) -> str:
        """Finish the file; SHA-256 of its bytes. It has no place for facts."""
        return self._file.finish()

    def abort(self) -> None:
        """Let go of an unfinished file."""
        self._file.abandon()


def _without_middle(n: int) -> pa.Array:
    """Of n records in three pieces each, the first and the last."""
    return pa.array(np.delete(np.arange(3 * n), np.arange(1, 3 * n, 3)))


def _base64(evidence: NDArray[np.uint8]) -> pa.Array:
    """(n,) large_binary: base64url without padding, all rows in one call (every row has the same width)."""
    n, width = evidence.shape
    padded = np.zeros((n, -(-width // 3) * 3), np.uint8)
    padded[:, :width] = evidence
    text = np.frombuffer(base64.urlsafe_b64encode(padded.tobytes()), np.uint8).reshape(n, -1)[:, : -(-width * 8 // 6)]
    return binary_array(np.arange(n + 1) * text.shape[1], np.ascontiguousarray(text).reshape(-1))


def _read_header(path: Place) -> bytes:
    """The first record, with the byte order mark and the line end."""
    with io.BufferedReader(path.open_input()) as stream:
        header = b""
        while line := stream.readline(HEADER_LIMIT):
            header += line
            if header.count(b'"') % 2 == 0 and header.strip(b"\r\n" + BYTE_ORDER_MARK):
                break
            if len(header) > HEADER_LIMIT:
                raise InvalidInput(
                    f"Expected a header line, got more than {HEADER_LIMIT >> 20} MiB without one in {path.name}. Is a quote left open?"
                )
    if not header.strip():
        raise InvalidInput(f"Expected a header line and rows, got an empty file: {path.name}.")
    return header if header.endswith(b"\n") else header + b"\n"
