# SPDX-License-Identifier: Apache-2.0
"""Parquet: the Arrow schema stays, the label's column chunks are written anew, and no metadata of the input is carried over."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from labeldp.errors import InvalidInput, ReleaseError
from labeldp.tables.formats._labels import LabelCodec
from labeldp.tables.formats._table import BATCH_BYTES, Batch, HashedFile, Shape, Source
from labeldp.tables.output._place import Place, reading

METADATA_KEY = b"labeldp"
GROUP_BYTES, GROUP_ROWS = 1 << 25, 1 << 20
READ_BUFFER, BUFFERS = 1 << 20, 1 << 26  # of one column chunk; of all of them
WRITE_BUFFER = 1 << 20
PROBE = 1024
LABEL_BYTES = 8


class WriterSettings(TypedDict):
    """What pyarrow's writer is told."""

    compression: str | dict[str, str]
    use_dictionary: list[str]


class ParquetSource(Source):
    """A Parquet file, read a batch at a time.

    Row groups are not prefetched, and column chunks are read through a buffer, so that memory does not grow with the file.
    """

    def __init__(self, path: Path | Place):
        self.path = Place.of(path)
        with reading(self.path):
            self._stamp = self.path.stamp
        with self._open() as file:
            self.schema = _public_schema(file.schema_arrow)
            self.extent = file.metadata.num_rows
            self.settings = _writer_settings(file.metadata)
            self._row_bytes = 0
        if len(set(self.names)) < len(self.names):
            raise InvalidInput(f"Expected distinct column names, got one twice in {self.path.name}. Rename it.")

    def _open(self) -> pq.ParquetFile:
        try:
            with reading(self.path):
                if self.path.local is None:  # each row group's columns are fetched at once, since every request takes long
                    return pq.ParquetFile(self.path.open_input(), pre_buffer=True)
                metadata = pq.read_metadata(self.path.path)
                return pq.ParquetFile(self.path.path, metadata=metadata, pre_buffer=False, buffer_size=read_buffer(metadata))
        except pa.ArrowInvalid:
            raise InvalidInput(f"Expected a Parquet file, got something else or a truncated one: {self.path}. Write it again.") from None

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Batch]:
        """The rows in order, about 8 MiB at a time."""
        for batch in self.record_batches(columns):
            yield Batch(self, batch)

    def record_batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow batches, in the file's order of columns."""
        self._check_unchanged()
        with self._open() as file:
            size = int(np.clip(BATCH_BYTES // self._bytes_of_a_row(), 64, 1 << 18))
            wanted = None if columns is None else list(columns)
            groups = [[i] for i in range(file.num_row_groups)] if self.path.local is None else [list(range(file.num_row_groups))]
            for group in groups:
                yield from self._read(file.iter_batches(size, row_groups=group, columns=wanted))
        self._check_unchanged()

    def _read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowInvalid, OSError) as error:
                self._check_unchanged()
                raise _damaged(self.path, error) from None
            if batch is None:
                return
            yield batch

    def _check_unchanged(self) -> None:
        """The file is the one that was opened at first, as far as its size and time tell."""
        with reading(self.path):
            if self.path.stamp == self._stamp:
                return
        raise ReleaseError(
            f"Expected a file that stays as it is, but {self.path} changed while it was read. Nothing was published; a charge that was "
            "made stands. Release files that nobody writes to."
        )

    def _bytes_of_a_row(self) -> int:
        """In memory, as the first rows take: what is encoded in the file can be many times smaller.

        The label counts as LABEL_BYTES whatever it is: batches become row groups, and their sizes must tell nothing of raw labels.
        """
        if not self._row_bytes:
            public = [name for name in self.names if self._shape is None or name != self._shape.codec.column]
            with self._open() as file:
                first = next(self._read(file.iter_batches(PROBE, columns=public)), None)
            self._row_bytes = LABEL_BYTES + (first.nbytes // len(first) if first is not None and len(first) else 0)
        return self._row_bytes

    def plan(self, codec: LabelCodec, evidence_bytes: int) -> None:
        """As of any table; the label counts no longer in the size of batches."""
        super().plan(codec, evidence_bytes)
        self._row_bytes = 0

    def sink(self, path: Path | Place, facts: str) -> "ParquetSink":
        """A new Parquet file with the input's compression, whose schema metadata holds the shared facts."""
        return released_sink(path, self.shape, self.settings, facts)


class ParquetSink:
    """A Parquet file being written, in row groups of bounded size."""

    def __init__(self, path: Path | Place, schema: pa.Schema, settings: Mapping[str, object], facts: str = ""):
        self._file = HashedFile(path)
        self._buffer = pa.BufferedOutputStream(pa.PythonFile(self._file, mode="w"), WRITE_BUFFER)
        self._writer = pq.ParquetWriter(self._buffer, schema, store_schema=not facts, **settings)
        self._schema, self._facts = schema, facts
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = self.rows = 0

    @property
    def size(self) -> int:
        """Bytes of the file so far, without the row group that waits."""
        return self._file.size

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows; a full row group goes to disk."""
        self._waiting.append(rows.replace_schema_metadata(self._schema.metadata))
        self._rows += rows.num_rows
        self.rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), row_group_size=max(self._rows, 1))
            self._buffer.flush()  # `size` counts it
        self._waiting, self._rows, self._bytes = [], 0, 0

    def close(self, more: Mapping[str, object] | None = None) -> str:
        """Finish the file, with more facts about all of its rows; SHA-256 of its bytes."""
        self._flush()
        if self._facts:
            facts = self._facts if not more else json.dumps(json.loads(self._facts) | more, ensure_ascii=False)
            schema = self._schema.with_metadata({METADATA_KEY: facts.encode()})
            # What pyarrow itself writes when it opens a file, where these facts are not known yet.
            self._writer.add_key_value_metadata({b"ARROW:schema": base64.b64encode(schema.serialize()), METADATA_KEY: facts.encode()})
        self._writer.close()
        self._buffer.flush()
        return self._file.finish()

    def abort(self) -> None:
        """Let go of an unfinished file."""
        self._file.abandon()
        self._writer.close()


def released_sink(path: Path | Place, shape: Shape, settings: WriterSettings, facts: str, text: Sequence[str] = ()) -> ParquetSink:
    """A new file of released rows, with the shared facts in its schema's metadata. `text`: more columns to write with dictionaries."""
    dictionaries = [*settings["use_dictionary"], *text, shape.codec.column]
    return ParquetSink(path, shape.released(), {**settings, "use_dictionary": dictionaries}, facts)


def read_facts(path: Path | Place) -> str | None:
    """The JSON that a released Parquet file carries; None if it is not one."""
    with ParquetSource(path)._open() as file:
        found = (file.schema_arrow.metadata or {}).get(METADATA_KEY)
    return None if found is None else found.decode()


def read_buffer(metadata: pq.FileMetaData) -> int:
    """Bytes to read ahead in each column chunk; 0 reads a chunk whole, which is faster where row groups are small."""
    largest = max((metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)), default=0)
    return 0 if largest <= BUFFERS else int(np.clip(BUFFERS // max(metadata.num_columns, 1), 1 << 13, READ_BUFFER))


def _public_schema(schema: pa.Schema) -> pa.Schema:
    """Without the file's own metadata (pandas and others list what columns hold)."""
    return schema.remove_metadata()


def _writer_settings(metadata: pq.FileMetaData) -> WriterSettings:
    """The input's compression; dictionaries for text, and for numbers where they made the input smaller."""
    if not metadata.num_row_groups:
        return {"compression": "snappy", "use_dictionary": []}
    group = metadata.row_group(0)
    columns = [group.column(i) for i in range(metadata.num_columns)]
    codec = {c.path_in_schema: c.compression.lower().replace("uncompressed", "none") for c in columns}
    worth = [c.path_in_schema for c in columns if _dictionary_pays(c)]
    return {"compression": codec, "use_dictionary": worth}


def _dictionary_pays(column: pq.ColumnChunkMetaData) -> bool:
    width = {"BOOLEAN": 0, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}.get(column.physical_type)
    if width is None:
        return True
    return bool(column.total_uncompressed_size < 0.75 * width * column.num_values)


def _damaged(path: Place, error: Exception) -> InvalidInput:
    return InvalidInput(f"Expected a whole Parquet file, got a damaged one: {path} ({type(error).__name__} while reading). Write it again.")
