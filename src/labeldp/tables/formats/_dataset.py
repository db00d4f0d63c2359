# SPDX-License-Identifier: Apache-2.0
"""A table of many Parquet files: a folder, with or without Hive partitions, a list of files, or a pattern."""

import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from labeldp.errors import InvalidInput, ReleaseError
from labeldp.tables.formats._labels import LabelCodec
from labeldp.tables.formats._parquet import ParquetSink, ParquetSource, released_sink
from labeldp.tables.formats._table import Batch, Source
from labeldp.tables.output._place import Place, reading

ENDINGS = (".parquet", ".pq")
OPENED_AT_ONCE = 16


@dataclass(frozen=True)
class Files:
    """The files of a data set and the folder that they are below of."""

    root: Place
    files: tuple[Place, ...]


def files_of(where: Place | Sequence[Place]) -> Files:
    """The files of a folder, a pattern ("folder/*.parquet", "s3://bucket/day=*/*.parquet") or a list, sorted by path.

    Files and folders below whose names begin with "." or "_" are passed over, as other readers do; but not partitions ("_day=1").

    Raises
    ------
    InvalidInput
        There are none, they are not all Parquet, or one is named twice.
    """
    root = _root(where)
    if isinstance(where, Place):
        with reading(where):
            found = [file for file in root.files() if not any(map(_is_hidden, file.below(root)))]
        found = [file for file in found if where is root or fnmatch.fnmatchcase(file.path, where.path)]
    else:
        found = sorted(where, key=lambda file: file.path)
    odd = next((file for file in found if file.suffix.lower() not in ENDINGS), None)
    if odd is not None:
        raise InvalidInput(f"Expected only files that end in {' or '.join(ENDINGS)} in a data set of many files, got {odd}. Convert it.")
    if not found:
        raise InvalidInput(f"Expected Parquet files, got none in {where}.")
    if len(set(map(_file_of, found))) < len(found):
        raise InvalidInput("Expected different files, got one twice, by two names or a link. Name each file once.")
    return Files(root, tuple(found))


def _file_of(place: Place) -> object:
    """The same for two names of one file: its rows would be drawn twice."""
    if place.local is None or not place.local.exists():
        return place
    facts = place.local.stat()
    return facts.st_dev, facts.st_ino


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or (part.startswith("_") and "=" not in part)


def _root(where: Place | Sequence[Place]) -> Place:
    """The folder itself; of a pattern the part before it begins; of a list the nearest folder that has all."""
    if isinstance(where, Place):
        while "*" in where.path:
            where = where.parent
        return where
    if not where:
        raise InvalidInput("Expected at least one file, got an empty list.")
    if any(file.filesystem != where[0].filesystem for file in where):
        raise InvalidInput("Expected files of one file system, got several. Copy them to one.")
    common = os.path.commonpath([file.parent.path for file in where]) if len(where) > 1 else where[0].parent.path
    return Place(where[0].filesystem, common)


class DatasetSource(Source):
    """Parquet files that are read one after another, as one table.

    Keys of Hive partitions (`country=de/part-0.parquet`) are columns, after those of the files; they are written as ordinary ones.

    Parameters
    ----------
    files : Files
    """

    def __init__(self, files: Files):
        self.path = files.root
        self._files = _opened(files.files)
        self._keys, self._partitions = _partitions(files)
        self.partition_keys = tuple(self._keys.names)
        self.schema = _common_schema(self._files, self._keys)
        self.extent = sum(file.extent for file in self._files)
        self.layout = tuple(file.below(files.root) for file in files.files)

    @property
    def files(self) -> tuple[ParquetSource, ...]:
        """All files, in order."""
        return tuple(self._files)

    @property
    def first(self) -> ParquetSource:
        """The first file."""
        return self._files[0]

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Batch]:
        """The rows, file by file in the order of their paths."""
        wanted = [name for name in self.names if columns is None or name in columns]
        schema = pa.schema([self.schema.field(name) for name in wanted])
        inside = [name for name in wanted if name not in self.partition_keys]
        for file, values in zip(self._files, self._partitions, strict=True):
            for batch in file.record_batches(inside):
                found = {name: batch.column(name) for name in inside}
                found |= {name: pa.repeat(values[name], len(batch)) for name in self.partition_keys if name in wanted}
                yield Batch(self, pa.record_batch([found[name] for name in wanted], schema=schema))

    def plan(self, codec: LabelCodec, evidence_bytes: int) -> None:
        """As of any table."""
        super().plan(codec, evidence_bytes)
        for file in self._files:
            file.plan(codec, evidence_bytes)

    def sink(self, path: Path | Place, facts: str) -> ParquetSink:
        """A new Parquet file, compressed as the first file with rows is."""
        like = next((file for file in self._files if file.extent), self._files[0])
        return released_sink(path, self.shape, like.settings, facts, text=self.partition_keys)


def _opened(files: Sequence[Place]) -> list[ParquetSource]:
    if files[0].local is not None:
        return [ParquetSource(file) for file in files]
    with ThreadPoolExecutor(OPENED_AT_ONCE) as pool:
        return list(pool.map(ParquetSource, files))


def _partitions(files: Files) -> tuple[pa.Schema, list[Mapping[str, pa.Scalar]]]:
    """The schema of the partitions' keys, and their values for each file."""
    folders = ["/".join(file.below(files.root)[:-1]) for file in files.files]
    if not any("=" in folder for folder in folders):
        return pa.schema([]), [{} for _ in folders]
    options = ds.FileSystemFactoryOptions(
        partitioning=ds.HivePartitioning.discover(), partition_base_dir=files.root.path, exclude_invalid_files=False
    )
    paths = [file.path for file in files.files]
    factory = ds.FileSystemDatasetFactory(files.root.filesystem, paths, ds.ParquetFileFormat(), options)
    try:
        whole = factory.finish(factory.inspect())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        raise _in_both("a partition's key") from None
    by_path = {piece.path: ds.get_partition_keys(piece.partition_expression) for piece in whole.get_fragments()}
    values = [by_path[path] for path in paths]
    keys = {name for found in values for name in found}
    schema = pa.schema([field for field in whole.schema if field.name in keys])
    for file, found in zip(files.files, values, strict=True):
        if set(found) != set(schema.names):
            missing = ", ".join(sorted(set(schema.names) - set(found)))
            raise InvalidInput(f"Expected every file in a folder for each of the partitions' keys, got {file} without {missing}. Move it.")
    return schema, [{name: pa.scalar(found[name], schema.field(name).type) for name in schema.names} for found in values]


def _common_schema(files: Sequence[ParquetSource], keys: pa.Schema) -> pa.Schema:
    """Columns of the first file, which all others have too, in any order; then the partitions' keys."""
    first = files[0]
    types = {field.name: field.type for field in first.schema}
    for name in keys.names:
        if name in types:
            raise _in_both(repr(name))
    for file in files[1:]:
        for field in file.schema:
            if types.get(field.name) != field.type:
                known = types.get(field.name, "no such column")
                raise InvalidInput(
                    f"Expected the same columns in all files, got {field.name!r} of type {field.type} in {file.path}, and {known} in "
                    f"{first.path}. Write them with one schema."
                )
        if len(file.names) < len(types):
            missing = ", ".join(name for name in types if name not in file.names)
            raise InvalidInput(f"Expected the same columns in all files, got {file.path} without {missing}. Write them with one schema.")
    nullable = {name: any(file.schema.field(name).nullable for file in files) for name in types}
    return pa.schema([*(pa.field(name, kind, nullable[name]) for name, kind in types.items()), *keys])


def _in_both(what: str) -> InvalidInput:
    return InvalidInput(f"Expected a column in the files or in their folders' names, got {what} in both. Drop one of the two.")


def check_apart(root: Place, out: Place) -> None:
    """The output is neither among the input's files nor around them."""
    if root.filesystem != out.filesystem:
        return
    source, target = (place.path if place.local is None else os.path.realpath(place.path) for place in (root, out))
    if f"{target}/".startswith(f"{source}/") or f"{source}/".startswith(f"{target}/"):
        raise ReleaseError(f"Expected an output apart from the input {root}, got {out}. Choose a folder that is not in it.")
