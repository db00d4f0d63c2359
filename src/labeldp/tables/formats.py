# SPDX-License-Identifier: Apache-2.0
"""Which format a file is in, by its ending."""

from pathlib import Path

from labeldp.errors import InvalidInput, ReleaseError
from labeldp.tables.csv import CsvSource
from labeldp.tables.parquet import ParquetSource
from labeldp.tables.table import Source

FORMATS: dict[str, type[CsvSource] | type[ParquetSource]] = {
    ".parquet": ParquetSource,
    ".pq": ParquetSource,
    ".csv": CsvSource,
    ".tsv": CsvSource,
}


def open_table(path: Path) -> Source:
    """The table in a file.

    Raises
    ------
    ReleaseError
        The file is missing or cannot be read.
    InvalidInput
        It is of another format, or its content is not what the ending says.
    """
    kind = _kind(path)
    try:
        if path.is_dir():
            raise ReleaseError(f"Expected a file, got the folder {path}. Release one file at a time.")
        if not path.is_file():
            raise ReleaseError(f"Expected an existing file, got {path}. Check the path.")
        if path.stat().st_size == 0:
            raise InvalidInput(f"Expected a table, got an empty file: {path.name}.")
        return kind(path)
    except OSError as error:
        raise ReleaseError(f"Expected a file that can be read, got {path} ({error.strerror or type(error).__name__}).") from None


def check_same_format(source: Path, out: Path) -> None:
    """A release keeps the format: the output's ending must name it."""
    if _kind(source) is not _kind(out) or (source.suffix.lower() == ".tsv") != (out.suffix.lower() == ".tsv"):
        raise InvalidInput(
            f"Expected an output of the input's format, got {out.name} for {source.name}. End it in {source.suffix.lower()}."
        )


def _kind(path: Path) -> type[CsvSource] | type[ParquetSource]:
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise InvalidInput(f"Expected a file that ends in {', '.join(FORMATS)}; got {path.name}. Convert or rename it.")
    return kind
