# SPDX-License-Identifier: Apache-2.0
"""Parquet tables of one file or many, and the choice of a format by the suffix of a file.

A released Parquet file has the input's Arrow schema, but none of its metadata: statistics and
comments may describe the raw labels.
"""

import base64
import fnmatch
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import reduce
from itertools import chain
from operator import getitem
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import FileType

from labeldp import _validate
from labeldp._files import path_text
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.tables._place import URI, Place, reading
from labeldp.tables.formats._csv import CsvSource, delimiter_of
from labeldp.tables.formats._table import (
    BATCH_BYTES,
    Batch,
    LabelCodec,
    Shape,
    Sink,
    Source,
    row_number,
)

METADATA_KEY = b"labeldp"
GROUP_BYTES, GROUP_ROWS = 1 << 25, 1 << 20
READ_BUFFER, BUFFERS = 1 << 20, 1 << 26  # bytes to buffer of one column chunk, and of all together
WRITE_BUFFER = 1 << 20
PROBE = 1024
LABEL_BYTES = 8
ENDINGS = (".parquet", ".pq")
OPENED_AT_ONCE = 16


class WriterSettings(TypedDict):
    """Arguments of pyarrow's writer."""

    compression: str | dict[str, str]
    use_dictionary: list[str]


class ParquetSource(Source):
    """A Parquet file, which is read in batches.

    Row groups are not prefetched, and column chunks are read through a buffer, so that memory does
    not grow with the file.

    Attributes
    ----------
    facts : str or None
        The release facts in the file's metadata, as JSON.
    """

    def __init__(self, path: Path | Place):
        self.path, self.files = Place.of(path), (self,)
        self._row_bytes, self._labels = 0, tuple[str, ...]()
        with reading(self.path):
            # Before the schema is read, so that a replacement of the file after this moment is
            # noticed.
            self._stamp = self.path.stamp
            file = self._open()
        with file:
            # pandas, for one, stores the values of an index there
            found = file.schema_arrow.remove_metadata()
            self.schema = pa.schema([each.with_type(without_views(each.type)) for each in found])
            self.extent = file.metadata.num_rows
            self.settings = _writer_settings(file.metadata)
            facts = (file.schema_arrow.metadata or {}).get(METADATA_KEY)
            self.types = parquet_types(file)
        self.facts = None if facts is None else facts.decode()
        names = self.schema.names
        if len(set(names)) < len(names):
            raise InvalidInput(
                f"Expected distinct column names, got one twice in {self.path.name}. Rename it."
            )

    def _open(self) -> pq.ParquetFile:
        try:
            # requests to a store are slow, so the columns of a row group are fetched together
            if self.path.local is None:
                return pq.ParquetFile(self.path.open_input(), pre_buffer=True)
            metadata = pq.read_metadata(self.path.path)
            return pq.ParquetFile(
                self.path.path,
                metadata=metadata,
                pre_buffer=False,
                buffer_size=read_buffer(metadata),
            )
        except pa.ArrowNotImplementedError as error:
            raise InvalidInput(
                f"Expected columns of types that pyarrow reads, got others in {self.path}"
                f" ({error}). Cast them, and write it again."
            ) from None
        except pa.ArrowInvalid:
            raise InvalidInput(
                f"Expected a Parquet file, got something else or a truncated one: {self.path}."
                " Write it again."
            ) from None

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Batch]:
        """Iterate over the rows in order, in batches of about 8 MiB."""
        return map(Batch, self.record_batches(columns))

    def record_batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows as Arrow batches, with columns in the file's order."""
        self._check_unchanged()
        with reading(self.path), self._open() as file:
            size = int(np.clip(BATCH_BYTES // self._bytes_of_a_row(), 64, 1 << 18))
            wanted = None if columns is None else list(columns)
            for group in self._groups(file):
                yield from self._read(file.iter_batches(size, row_groups=group, columns=wanted))
        self._check_unchanged()

    def _groups(self, file: pq.ParquetFile) -> list[list[int]]:
        """Divide the row groups into those that are read together."""
        groups = list(range(file.num_row_groups))
        # pyarrow would prefetch all row groups of a store into memory, and it does not join
        # dictionaries inside of nested columns.
        one_by_one = self.path.local is None or any(map(_has_inner_dictionary, self.schema.types))
        return [[i] for i in groups] if one_by_one else [groups]

    def _read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                batch = next(batches, None)
            # A file that was replaced meanwhile looks damaged to Arrow, so its size and time are
            # checked first.
            except (pa.ArrowInvalid, OSError) as error:
                self._check_unchanged()
                raise InvalidInput(
                    f"Expected a whole Parquet file, got a damaged one: {self.path}"
                    f" ({type(error).__name__} while reading). Write it again."
                ) from None
            if batch is None:
                return
            kinds = pa.schema([self.schema.field(name) for name in batch.schema.names])
            yield batch if batch.schema.equals(kinds) else batch.cast(kinds)

    def _check_unchanged(self) -> None:
        """Check by size and time that the file has not changed since it was opened first."""
        with reading(self.path):
            if self.path.stamp == self._stamp:
                return
        raise ReleaseError(
            f"Expected a file that stays as it is, but {self.path} changed while it was read."
            " Nothing was published; a charge that was made stands. Release files that nobody"
            " writes to."
        )

    def _bytes_of_a_row(self) -> int:
        """Estimate the bytes of a decoded row from the first rows."""
        # The label counts as LABEL_BYTES: batches become row groups of the output, whose sizes must
        # not depend on raw labels.
        if not self._row_bytes:
            public = [name for name in self.names if name not in self._labels]
            with reading(self.path), self._open() as file:
                found = (
                    self._read(file.iter_batches(PROBE, row_groups=group, columns=public))
                    for group in self._groups(file)
                )
                first = next(filter(len, chain.from_iterable(found)), None)
            self._row_bytes = LABEL_BYTES + (0 if first is None else first.nbytes // len(first))
        return self._row_bytes

    def plan(self, codec: LabelCodec, evidence_bytes: int) -> None:
        """Prepare the output as `Source.plan`; from then on the size of batches does not depend on
        the label column."""
        super().plan(codec, evidence_bytes)
        self._row_bytes, self._labels = 0, codec.columns

    def sink(self, path: Path | Place, facts: str) -> "ParquetSink":
        """Open a new Parquet file with the input's compression and the shared facts in its
        metadata."""
        return released_sink(path, self.shape, self.settings, facts)


class ParquetSink(Sink):
    """A writer of a Parquet file, in row groups of bounded size."""

    def __init__(
        self, path: Path | Place, schema: pa.Schema, settings: Mapping[str, object], facts: str = ""
    ):
        super().__init__(path)
        self._buffer = pa.BufferedOutputStream(pa.PythonFile(self._file, mode="w"), WRITE_BUFFER)
        # pyarrow would write the Arrow schema now, with its metadata. The facts include a digest of
        # all rows, so `close` writes both.
        self._writer = pq.ParquetWriter(self._buffer, schema, store_schema=not facts, **settings)
        self._schema, self._facts = schema, facts
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows, and write a full row group."""
        self._waiting.append(rows.replace_schema_metadata(self._schema.metadata))
        self._rows += rows.num_rows
        self.rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(
                pa.Table.from_batches(self._waiting, self._schema),
                row_group_size=max(self._rows, 1),
            )
            self._buffer.flush()  # so that `size` includes it
        self._waiting, self._rows, self._bytes = [], 0, 0

    def close(self, more: Mapping[str, object] | None = None) -> str:
        """Finish the file, with more facts about all of its rows, and return its SHA-256."""
        self._flush()
        if self._facts:
            facts = (
                self._facts
                if not more
                else json.dumps(json.loads(self._facts) | more, ensure_ascii=False)
            )
            schema = self._schema.with_metadata({METADATA_KEY: facts.encode()})
            # The two entries that pyarrow itself writes when it opens a file.
            self._writer.add_key_value_metadata(
                {
                    b"ARROW:schema": base64.b64encode(schema.serialize()),
                    METADATA_KEY: facts.encode(),
                }
            )
        self._writer.close()
        self._buffer.flush()
        return self._file.finish()

    def abort(self) -> None:
        """Close an unfinished file."""
        super().abort()
        self._writer.close()


def released_sink(
    path: Path | Place, shape: Shape, settings: WriterSettings, facts: str, text: Sequence[str] = ()
) -> ParquetSink:
    """Open a new file of released rows, with the shared facts in its metadata. `text`: more columns
    to write with dictionaries."""
    # The label always has a dictionary. If it had one as in the input, where one is used if it
    # pays, that would depend on the raw labels.
    dictionaries = [*settings["use_dictionary"], *text, *shape.codec.columns]
    return ParquetSink(path, shape.released(), {**settings, "use_dictionary": dictionaries}, facts)


def without_views(kind: pa.DataType) -> pa.DataType:
    """Return the type with large text and bytes in place of Arrow's views of them, which Arrow can
    neither reorder nor measure."""
    types = pa.types
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.large_string() if types.is_string_view(kind) else pa.large_binary()

    def inner(each: pa.Field) -> pa.Field:
        return each.with_type(without_views(each.type))

    if types.is_struct(kind):
        return pa.struct([inner(kind.field(i)) for i in range(kind.num_fields)])
    if types.is_fixed_size_list(kind):
        return pa.list_(inner(kind.value_field), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        return (pa.list_ if types.is_list(kind) else pa.large_list)(inner(kind.value_field))
    return (
        pa.map_(inner(kind.key_field), inner(kind.item_field), kind.keys_sorted)
        if types.is_map(kind)
        else kind
    )


def check_holds(schema: pa.Schema) -> None:
    """Refuse a column that Parquet cannot hold."""
    for field in schema:
        try:
            # Of a few types only rows fail. A part that must not be null was looked at before.
            with suppress(pa.ArrowInvalid):
                rows = pa.table({field.name: pa.nulls(1, field.type)})
                pq.write_table(rows, pa.BufferOutputStream())
        except pa.ArrowNotImplementedError:
            raise InvalidInput(
                f"Expected columns that Parquet can hold, got {field.name!r} of type {field.type}."
                " Cast it, or leave it out."
            ) from None


def written_types(schema: pa.Schema) -> dict[str, str]:
    """Describe the columns of a Parquet file that Arrow writes with this schema; see
    `parquet_types`."""
    empty = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), empty)
    return parquet_types(pq.ParquetFile(empty.getvalue()))


# features of Hugging Face that are Arrow's own types
_PLAIN = {"Value", "Sequence", "List", "LargeList"}


def parquet_types(file: pq.ParquetFile) -> dict[str, str]:
    """Describe the type of each column of a Parquet file in words, also what Arrow reads over:
    annotations of the format, and what Hugging Face and GeoParquet say in the metadata."""
    schema, leaves = file.schema_arrow, map(file.schema.column, range(len(file.schema.names)))
    variants = re.findall(r"field_id=\S+ (.*) \(Variant", str(file.schema))
    types = {field.name: _type_text(field, leaves, variants) for field in schema}
    said = dict.fromkeys(_said(schema, b"geo", "columns"), "geometry")
    for name, feature in _said(schema, b"huggingface", "info", "features").items():
        said[name] = ", ".join(
            sorted({*re.findall(r'"_type": "(\w+)"', json.dumps(feature))} - _PLAIN)
        )
    return {
        name: f"{kind} ({said[name]})" if said.get(name) else kind for name, kind in types.items()
    }


def _said(schema: pa.Schema, key: bytes, *path: str) -> dict[str, Any]:
    """Read a table of columns in another library's metadata; empty if there is none."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        return dict(reduce(getitem, path, json.loads(schema.metadata[key])))
    return {}


def _type_text(field: pa.Field, leaves: Iterator[pq.ColumnSchema], variants: Sequence[str]) -> str:
    """Describe a column, or a part of one, by its type in Parquet; `leaves` are those from it
    on."""
    kind = getattr(field.type, "storage_type", field.type)
    inner = [_type_text(kind.field(i), leaves, variants) for i in range(kind.num_fields)]
    if inner:
        outer = "Variant" if field.name in variants else str(kind).partition("<")[0]
        return f"{outer}<{', '.join(inner)}>"
    leaf = next(leaves)
    said = re.sub(", is_from[^)]*", "", str(leaf.logical_type))
    # Signed integers of the physical width say the same with the annotation and without it.
    plain = said in ("None", "Int(bitWidth=32, isSigned=true)", "Int(bitWidth=64, isSigned=true)")
    return f"{leaf.physical_type}{f'({leaf.length})' if leaf.length else ''}" if plain else said


def _has_inner_dictionary(kind: pa.DataType) -> bool:
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return any(pa.types.is_dictionary(each) or _has_inner_dictionary(each) for each in inner)


def read_buffer(metadata: pq.FileMetaData) -> int:
    """Return the bytes to read ahead in each column chunk; 0 to read whole chunks, which is faster
    for small row groups."""
    largest = max(
        (metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)), default=0
    )
    return (
        0
        if largest <= BUFFERS
        else int(np.clip(BUFFERS // max(metadata.num_columns, 1), 1 << 13, READ_BUFFER))
    )


def _writer_settings(metadata: pq.FileMetaData) -> WriterSettings:
    """Choose the writer's settings: the input's compression, and dictionaries for text and for
    numbers that they make smaller."""
    if not metadata.num_row_groups:
        return {"compression": "snappy", "use_dictionary": []}
    group = metadata.row_group(0)
    columns = [group.column(i) for i in range(metadata.num_columns)]
    codec = {
        c.path_in_schema: c.compression.lower().replace("uncompressed", "none") for c in columns
    }
    return {
        "compression": codec,
        "use_dictionary": [c.path_in_schema for c in columns if _dictionary_pays(c)],
    }


def _dictionary_pays(column: pq.ColumnChunkMetaData) -> bool:
    width = {"BOOLEAN": 0, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}.get(
        column.physical_type
    )
    return width is None or bool(column.total_uncompressed_size < 0.75 * width * column.num_values)


# Many files
# --------------------------------------------------------------------------------------------------


def files_of(where: Place | Sequence[Place]) -> tuple[Place, Sequence[Place]]:
    """Find the folder above a data set, and its files, sorted by path: those of a folder, a pattern
    ("folder/*.parquet", "s3://bucket/day=*/*.parquet") or a list.

    Files and folders whose names begin with "." or "_" are skipped, as by other readers, except
    partitions ("_day=1").

    Raises
    ------
    InvalidInput
        There are no files, some are not Parquet, or one occurs twice.
    """
    root = root_of(where)
    if isinstance(where, Place):
        with reading(where):
            found = [file for file in root.files() if not any(map(_is_hidden, file.below(root)))]
        found = [
            file for file in found if where is root or fnmatch.fnmatchcase(file.path, where.path)
        ]
    else:
        found = sorted(where, key=lambda file: file.path)
    odd = next((file for file in found if file.suffix.lower() not in ENDINGS), None)
    if odd is not None:
        raise InvalidInput(
            f"Expected only files that end in {' or '.join(ENDINGS)} in a data set of many files,"
            f" got {odd}. Convert it."
        )
    if not found:
        raise InvalidInput(f"Expected Parquet files, got none in {where}.")
    if len(set(map(_file_of, found))) < len(found):
        raise InvalidInput(
            "Expected different files, got one twice, by two names or a link. Name each file once."
        )
    return root, found


def _file_of(place: Place) -> object:
    """Return a key that is equal for two names of one file."""
    # Rows of a file that is read twice, by a link, would be drawn twice.
    if place.local is None or not place.local.exists():
        return place
    facts = place.local.stat()
    return facts.st_dev, facts.st_ino


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or (part.startswith("_") and "=" not in part)


def root_of(where: Place | Sequence[Place]) -> Place:
    """Return the folder above all files: of a pattern the part before the first "*", of a list the
    nearest common folder."""
    if isinstance(where, Place):
        while "*" in where.path:
            where = where.parent
        return where
    if not where:
        raise InvalidInput("Expected at least one file, got an empty list.")
    if any(file.filesystem != where[0].filesystem for file in where):
        raise InvalidInput("Expected files of one file system, got several. Copy them to one.")
    return Place(where[0].filesystem, os.path.commonpath([file.parent.path for file in where]))


class DatasetSource(Source):
    """Several Parquet files, which are read one after another as one table.

    Keys of Hive partitions (`country=de/part-0.parquet`) become columns after those of the files,
    and are written as ordinary columns.

    Parameters
    ----------
    root : Place
    files : sequence of Place
    """

    def __init__(self, root: Place, files: Sequence[Place]):
        self.path = root
        with ThreadPoolExecutor(OPENED_AT_ONCE) as pool:
            self.files: Sequence[ParquetSource] = list(pool.map(ParquetSource, files))
        self._keys, self._partitions = _partitions(root, files)
        self.partition_keys = tuple(self._keys.names)
        self.schema = _common_schema(self.files, self._keys)
        kinds = {name: {file.types[name] for file in self.files} for name in self.files[0].names}
        self.types = {name: " or ".join(sorted(found)) for name, found in kinds.items()}
        self.extent = sum(file.extent for file in self.files)
        self.layout = tuple(file.below(root) for file in files)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Batch]:
        """Iterate over the rows, file by file in the order of their paths."""
        wanted = [name for name in self.names if columns is None or name in columns]
        schema = pa.schema([self.schema.field(name) for name in wanted])
        inside = [name for name in wanted if name not in self.partition_keys]
        for file, values in zip(self.files, self._partitions, strict=True):
            for batch in file.record_batches(inside):
                found = {name: batch.column(name) for name in inside}
                found |= {
                    name: pa.repeat(values[name], len(batch))
                    for name in self.partition_keys
                    if name in wanted
                }
                yield Batch(pa.record_batch([found[name] for name in wanted], schema=schema))

    def plan(self, codec: LabelCodec, evidence_bytes: int) -> None:
        """Prepare every file for output; see `Source.plan`."""
        super().plan(codec, evidence_bytes)
        for file in self.files:
            file.plan(codec, evidence_bytes)

    def sink(self, path: Path | Place, facts: str) -> ParquetSink:
        """Open a new Parquet file, with the compression of the first file that has rows."""
        # An empty file has no column chunks, so no compression.
        like = next((file for file in self.files if file.extent), self.files[0])
        return released_sink(path, self.shape, like.settings, facts, text=self.partition_keys)


def _partitions(
    root: Place, files: Sequence[Place]
) -> tuple[pa.Schema, list[Mapping[str, pa.Scalar]]]:
    """Read the partitions' keys from the names of folders: their schema, and their values for each
    file."""
    folders = ["/".join(file.below(root)[:-1]) for file in files]
    if not any("=" in folder for folder in folders):
        return pa.schema([]), [{} for _ in folders]
    options = ds.FileSystemFactoryOptions(
        partitioning=ds.HivePartitioning.discover(),
        partition_base_dir=root.path,
        exclude_invalid_files=False,
    )
    # Arrow infers the types of the keys from all files at once, so that "1" in one folder and "a"
    # in another are text in both.
    paths = [file.path for file in files]
    factory = ds.FileSystemDatasetFactory(root.filesystem, paths, ds.ParquetFileFormat(), options)
    try:
        whole = factory.finish(factory.inspect())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        raise _in_both("a partition's key") from None
    by_path = {
        piece.path: ds.get_partition_keys(piece.partition_expression)
        for piece in whole.get_fragments()
    }
    values = [by_path[path] for path in paths]
    keys = {name for found in values for name in found}
    schema = pa.schema([field for field in whole.schema if field.name in keys])
    for file, found in zip(files, values, strict=True):
        if set(found) != set(schema.names):
            missing = _validate.quoted(sorted(set(schema.names) - set(found)))
            raise InvalidInput(
                f"Expected every file in a folder for each of the partitions' keys, got {file}"
                f" without {missing}. Move it."
            )
    return schema, [
        {name: pa.scalar(found[name], schema.field(name).type) for name in schema.names}
        for found in values
    ]


def _common_schema(files: Sequence[ParquetSource], keys: pa.Schema) -> pa.Schema:
    """Check that all files have the same columns, in any order; return the schema of the first,
    followed by the partitions' keys."""
    first = files[0]
    types = {field.name: field.type for field in first.schema}
    for name in keys.names:
        if name in types:
            raise _in_both(repr(name))
    for file in files[1:]:
        theirs = {field.name: field.type for field in file.schema}
        for name in {**theirs, **types}:
            here, there = (each.get(name, "no such column") for each in (theirs, types))
            if here != there:
                raise InvalidInput(
                    f"Expected the same columns in all files, got {name!r} of type {here} in"
                    f" {file.path}, and {there} in {first.path}. Write them with one schema."
                )
    nullable = {name: any(file.schema.field(name).nullable for file in files) for name in types}
    return pa.schema(
        [*(pa.field(name, kind, nullable[name]) for name, kind in types.items()), *keys]
    )


def _in_both(what: str) -> InvalidInput:
    return InvalidInput(
        f"Expected a column in the files or in their folders' names, got {what} in both. Drop one"
        " of the two."
    )


def check_apart(root: Place, out: Place) -> None:
    """Refuse an output folder that is inside the input's, or contains it."""
    if root.filesystem != out.filesystem:
        return
    # An output inside the input would be read as a part of it the next time. Links are resolved to
    # see that.
    source, target = (
        place.path if place.local is None else os.path.realpath(place.path) for place in (root, out)
    )
    if f"{target}/".startswith(f"{source}/") or f"{source}/".startswith(f"{target}/"):
        raise ReleaseError(
            f"Expected an output apart from the input {root}, got {out}. Choose a folder that is"
            " not in it."
        )


# The format by the suffix
# --------------------------------------------------------------------------------------------------


_PACKED = (".gz", ".zip", ".bz2", ".xz", ".zst")
FORMATS: dict[str, type[CsvSource] | type[ParquetSource]] = {
    ".parquet": ParquetSource,
    ".pq": ParquetSource,
    ".csv": CsvSource,
    ".tsv": CsvSource,
}


def open_table(where: Any) -> Source:
    """Open the table in a file, or in the Parquet files of a folder, a pattern with "*", or a list.

    Parameters
    ----------
    where : str, Path, Place, (file system, path), or a list of these

    Raises
    ------
    ReleaseError
        A file is missing or cannot be read.
    InvalidInput
        It has another format, or its content does not fit its suffix.
    """
    if isinstance(where, list):
        return DatasetSource(*files_of([Place.of(each) for each in where]))
    place = Place.of(where)
    with reading(place):
        found = place.info
        if found.type == FileType.Directory or (
            "*" in place.path and found.type == FileType.NotFound
        ):
            return DatasetSource(*files_of(place))
        kind = format_of(place)
        if not found.is_file:
            raise FileNotFoundError
        if found.size == 0:
            raise InvalidInput(f"Expected a table, got an empty file: {place.name}.")
        return kind(place)


def format_of(path: Path | Place) -> type[CsvSource] | type[ParquetSource]:
    """Return the format of a suffix; refuse one of neither Parquet nor CSV."""
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        fix = "Unpack it" if path.suffix.lower() in _PACKED else "Convert or rename it"
        raise InvalidInput(
            f"Expected a file that ends in {', '.join(FORMATS)}; got {path.name}. {fix}."
        )
    return kind


def table_name(table: Source) -> str:
    """Return a table's default name in the ledger: its file's or folder's name without the suffix
    of a format."""
    one = not isinstance(table, DatasetSource) or table.path.suffix.lower() in FORMATS
    return PurePosixPath(table.path.path).stem if one else table.path.name


def row_name(table: Source, row: int) -> str:
    """Return a row's name for messages: its position from 1, and of a text table also its line."""
    return table.row_name(row) if isinstance(table, CsvSource) else row_number(row)


def given_parts(where: Any) -> tuple[str, ...]:
    """Split a path into parts as it was given: of a relative path without the folders above it."""
    if isinstance(where, list):
        return root_of([Place.of(each) for each in where]).parts
    if isinstance(where, Place | tuple) or "://" in path_text(where, URI):
        return Place.of(where).parts
    return tuple(path_text(where).replace("\\", "/").split("/"))


def check_same_format(table: Source, out: Place) -> None:
    """Refuse an output whose suffix is of another format than the input; for many files the output
    must be a folder."""
    source = table.path
    if isinstance(table, DatasetSource):
        if FORMATS.get(out.suffix.lower(), ParquetSource) is not ParquetSource:
            raise InvalidInput(
                f"Expected a folder for the output of many Parquet files, got {out.name}. Leave the"
                " ending out."
            )
        return
    here = source.suffix.lower()
    if format_of(out) is not FORMATS[here] or delimiter_of(out) != delimiter_of(source):
        raise InvalidInput(
            f"Expected an output of the input's format, got {out.name} for {source.name}. End it in"
            f" {here}."
        )


def layout_of(table: Source, given: Sequence[str] = ()) -> set[str]:
    """List the parts of a table's path, as the user gave it, and of the paths of its files below
    it."""
    # Folders above a relative path belong to this machine, and are not published.
    if not isinstance(table, DatasetSource):
        return {*given, table.path.name}
    return {*given[_top(given) :], table.path.name, *chain.from_iterable(table.layout)}


def layout_of_paths(paths: Sequence[str]) -> set[str]:
    """List the parts of the paths of files, from the name of the folder on that is above them
    all."""
    parts = [PurePosixPath("/", path).parts for path in paths]
    top = _top(
        PurePosixPath(
            os.path.commonpath([str(PurePosixPath(*each[:-1])) for each in parts] or ["/"])
        ).parts
    )
    return {part for each in parts for part in each[top:]}


def _top(parts: Sequence[str]) -> int:
    """Return the place of the folder's name in its path: of the one above its partitions, if it is
    itself in one."""
    return max(next((i for i, part in enumerate(parts) if "=" in part), len(parts)) - 1, 0)


def check_layout(
    layout: Collection[str], label: str, classes: Sequence[object], *, public: bool
) -> None:
    """Refuse a path that names a class, which would reveal the label of all rows of a file.

    Parameters
    ----------
    layout : the result of `layout_of` or `layout_of_paths`
    label : str
    classes : sequence
    public : bool
        True if the user states that order and paths do not depend on labels. A path with the label
        as a key is refused all the same.
    """
    # Hive's folders spell some characters of names by their codes: of a column "paid?" they are
    # paid%3F=yes.
    named = (name.casefold() for part in layout for name in (part, unquote(part)))
    if any(name.startswith(f"{label}=".casefold()) for name in named):
        raise InvalidInput(
            f"Expected the label as a column of the files, got {label!r} as a partition's key or"
            " another part of the path: it would give away the label of all rows of a file. Write"
            " the table without this partition first."
        )
    # Data sets of images often have a folder for each class, whose name is the label of all rows in
    # it.
    texts = {str(c) for c in classes if c is not None and str(c)}
    if not public and texts & {
        name for part in layout for name in (part, PurePosixPath(part).stem)
    }:
        raise InvalidInput(
            "Expected a path that says nothing about the labels, got one with a folder or file"
            " named like a class. Move the file, or state that order and layout are public with"
            " order='keep'."
        )


def table_writer(path: Path, schema: pa.Schema) -> "pq.ParquetWriter | pyarrow.csv.CSVWriter":
    """Open a writer of Arrow tables and batches for a new file, in the format of its suffix; refuse
    any other suffix."""
    if format_of(path) is ParquetSource:
        return pq.ParquetWriter(path, schema)
    return pyarrow.csv.CSVWriter(
        path, schema, write_options=pyarrow.csv.WriteOptions(delimiter=delimiter_of(path))
    )
