# SPDX-License-Identifier: Apache-2.0
"""Which format a table is in: one file by its ending, a folder, pattern or list of Parquet files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from labeldp.errors import InvalidInput, ReleaseError
from labeldp.tables.formats._csv import CsvSource
from labeldp.tables.formats._dataset import DatasetSource, files_of
from labeldp.tables.formats._labels import row_number
from labeldp.tables.formats._parquet import ParquetSource
from labeldp.tables.formats._table import Readable, Source
from labeldp.tables.output._place import Place

FORMATS: dict[str, type[CsvSource] | type[ParquetSource]] = {
    ".parquet": ParquetSource,
    ".pq": ParquetSource,
    ".csv": CsvSource,
    ".tsv": CsvSource,
}


def open_table(where: Any) -> Source:
    """The table in a file, or in the Parquet files of a folder, of a pattern with "*", or of a list.

    Parameters
    ----------
    where : str, Path, Place, (file system, path), or a list of these

    Raises
    ------
    ReleaseError
        A file is missing or cannot be read.
    InvalidInput
        It is of another format, or its content is not what the ending says.
    """
    if isinstance(where, list):
        return DatasetSource(files_of([Place.of(each) for each in where]))
    place = Place.of(where)
    try:
        if place.is_folder() or ("*" in place.path and not place.exists()):
            return DatasetSource(files_of(place))
        kind = _kind(place)
        if not place.is_file():
            raise ReleaseError(f"Expected an existing file, got {place}. Check the path.")
        if place.size == 0:
            raise InvalidInput(f"Expected a table, got an empty file: {place.name}.")
        return kind(place)
    except OSError as error:
        raise ReleaseError(f"Expected a file that can be read, got {place} ({error.strerror or type(error).__name__}).") from None


def table_name(table: Source) -> str:
    """What a table is called in the ledger unless it is told: its file's or folder's name without the format's ending."""
    name = table.path.name
    return table.path.stem if not isinstance(table, DatasetSource) or table.path.suffix.lower() in FORMATS else name


def row_name(table: Readable, row: int) -> str:
    """How a row is called in messages: of a text table by its line."""
    return f"line {table.line_of(row)}" if isinstance(table, CsvSource) else row_number(row)


def given_parts(where: Any) -> tuple[str, ...]:
    """The parts of a path as they were given: a relative one says nothing about the folders above it."""
    if isinstance(where, list):
        return ()
    if isinstance(where, Place | tuple) or "://" in os.fspath(where):
        return Place.of(where).parts
    return tuple(os.fspath(where).replace("\\", "/").split("/"))


def check_same_format(table: Source, out: Place) -> None:
    """A release keeps the format: the output's ending must name it; of many files it is a folder."""
    source = table.path
    if isinstance(table, DatasetSource):
        if out.suffix.lower() in (".csv", ".tsv"):
            raise InvalidInput(f"Expected a folder for the output of many Parquet files, got {out.name}. Leave the ending out.")
        return
    if _kind(source) is not _kind(out) or (source.suffix.lower() == ".tsv") != (out.suffix.lower() == ".tsv"):
        raise InvalidInput(
            f"Expected an output of the input's format, got {out.name} for {source.name}. End it in {source.suffix.lower()}."
        )


def _kind(path: Place) -> type[CsvSource] | type[ParquetSource]:
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise InvalidInput(f"Expected a file that ends in {', '.join(FORMATS)}; got {path.name}. Convert or rename it.")
    return kind


def check_ending(out: Path) -> None:
    """The output is Parquet or CSV by its ending."""
    if out.suffix.lower() not in FORMATS:
        raise InvalidInput(f"Expected an output that ends in {', '.join(FORMATS)}; got {out.name}.")


def is_parquet(path: Path) -> bool:
    """Whether the ending says so."""
    return FORMATS.get(path.suffix.lower()) is ParquetSource


def table_writer(path: Path, schema: pa.Schema) -> "pq.ParquetWriter | pyarrow.csv.CSVWriter":
    """What writes Arrow's tables and batches into a new file of the format that its ending says."""
    if is_parquet(path):
        return pq.ParquetWriter(path, schema)
    return pyarrow.csv.CSVWriter(
        path, schema, write_options=pyarrow.csv.WriteOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    )


def check_layout(table: Source, given: Sequence[str], label: str, classes: Sequence[object], *, public: bool) -> None:
    """A path that names the label's value gives it away for a whole file.

    Parameters
    ----------
    table : Source
    given : sequence of str
        The parts of the path as the user gave it.
    label : str
    classes : sequence
        As far as they are known.
    public : bool
        The user states that order and layout say nothing; a label as a partition's key is refused all the same.
    """
    many = isinstance(table, DatasetSource)
    inner = [part for parts in table.layout for part in parts] if isinstance(table, DatasetSource) else []
    if any(_is_key(part, label) for part in inner):
        raise InvalidInput(
            f"Expected the label as a column of the files, got {label!r} as a partition's key: the folders would give it away in the path. "
            "Write the table without this partition first."
        )
    if public:
        return
    parts = [*(given[-1:] if many else given), table.path.stem, *inner, *(Place.of(part).stem for part in set(inner))]
    if any(_is_key(part, label) for part in [*given, *parts]):
        raise InvalidInput(
            f"Expected the label as a column of the file, got {label!r} as a part of the path. Merge the parts into one file first."
        )
    texts = {str(c) for c in classes if c is not None and str(c)}
    if texts & set(parts):
        raise InvalidInput(
            "Expected a path that says nothing about the labels, got one with a folder or file named like a class. "
            "Move the file, or state that order and layout are public with order='keep' (--order keep)."
        )


def _is_key(part: str, label: str) -> bool:
    return part.startswith(f"{label}=")
