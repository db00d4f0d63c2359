# SPDX-License-Identifier: Apache-2.0
"""Priors that are no columns of the released table: a public table that is looked up, and what any other one must offer.

A prior is public. It may come from other data, from earlier releases, from experts; never from these raw labels: what is asked for a
prior is given the columns that it names, and the label is never one of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labeldp import _validate
from labeldp._hash import digest, public_hash
from labeldp.errors import InvalidInput
from labeldp.tables.output._place import Place, reading

Floats = NDArray[np.float64]


class OpenPrior(Protocol):
    """A prior whose files were read: a value that pickles, so that workers have it too.

    Attributes
    ----------
    columns : tuple of str
        Columns of the released table that it reads.
    facts : mapping
        What it is, with the SHA-256 of its files: JSON-ready.
    exact : bool
        Equal rows get equal weights, to the last bit, on every machine and in every batch.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """See above."""
        ...

    @property
    def exact(self) -> bool:
        """See above."""
        ...

    @property
    def facts(self) -> Mapping[str, object]:
        """See above."""
        ...

    def weights(self, rows: pa.RecordBatch, start: int | None) -> Floats:
        """(n, K) weights of rows that have `columns` and nothing else; `start` is the first one's number if rows have one, for messages."""
        ...


@runtime_checkable
class Prior(Protocol):
    """Where a prior comes from, as a frozen value for a `ReleaseSpec`."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns of the released table that it is known to read before it is opened."""
        ...

    def to_dict(self) -> dict[str, object]:
        """JSON-ready data."""
        ...

    def open(self, classes: Sequence[object]) -> OpenPrior:
        """Read its files, for these class values by code."""
        ...


def prior_identity(prior: OpenPrior) -> str | None:
    """Names the prior in a request: its files and how they are read. None where it is exact: then what it decides of each row does."""
    return None if prior.exact else digest({"prior": dict(prior.facts)})


def opened(prior: object, classes: Sequence[object], label: str, names: Sequence[str]) -> OpenPrior | None:
    """The prior of a spec, opened; None where columns or nothing stand in its place.

    Raises
    ------
    InvalidInput
        It reads the label, or a column that the table lacks; or it is not about these classes.
    """
    if not isinstance(prior, Prior):
        return None
    found = prior.open(classes)
    if label in found.columns:
        raise InvalidInput(f"Expected a prior that never sees the label, got one that reads column {label!r}. A prior is public.")
    for name in found.columns:
        if name not in names:
            raise InvalidInput(
                f"Expected a table with every column that the prior reads, got none named {name!r}.{_validate.suggest(name, names)}"
            )
    return found


class _Columns(Protocol):
    def column(self, name: str) -> pa.Array: ...


def weights_of(prior: OpenPrior, batch: _Columns, start: int | None, n_classes: int) -> Floats:
    """What a prior says of a batch: (n, K) float64, checked. It is given the columns that it reads and no other."""
    rows = pa.record_batch([batch.column(name) for name in prior.columns], names=list(prior.columns))
    weights = np.asarray(prior.weights(rows, start))
    if weights.shape != (len(rows), n_classes) or weights.dtype.kind != "f":
        raise InvalidInput(
            f"Expected the prior to give {n_classes} numbers for each row, one a class, got an array of shape {weights.shape} and type "
            f"{weights.dtype}. Give one that is made for these classes."
        )
    good = np.asarray(((weights >= 0) & (weights < np.inf)).all(axis=1))
    if not good.all():
        raise InvalidInput(f"Expected finite weights >= 0 from the prior, got others for {_which(good, start)}. Mend the prior.")
    return weights.astype(np.float64, copy=False)


def _which(good: NDArray[np.bool_], start: int | None) -> str:
    """The first row that is not good, where rows have numbers."""
    return "some row" if start is None else f"row {start + int(np.argmin(good))} (the first is row 0)"


def ordered_by_value(names: Sequence[object], classes: Sequence[object]) -> list[int] | None:
    """Where each class stands among some names, compared as text; None where they are not the same values."""
    found = {as_text(name): i for i, name in enumerate(names)}
    wanted = [as_text(value) for value in classes]
    return [found[value] for value in wanted] if sorted(found) == sorted(wanted) else None


def as_text(value: object) -> str:
    """A class value as text: numbers alike whatever their type, the null class empty."""
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    return "" if plain is None else str(plain)


@dataclass(frozen=True)
class PriorTable:
    """A small public table with the weights of each class, looked up by a column that the released table has too.

    Parameters
    ----------
    path : str, Path or Place
        Parquet (.parquet, .pq) or CSV (.csv, .tsv).
    key : str or sequence of str
        Columns of whole numbers or text in both tables: a cluster id, a segment, the row id. Unique in this one.
    columns : sequence of str, optional
        K columns of weights >= 0, in the order of the classes. None: all but the key; taken by their names where these are the
        class values, else in the order of the table.
    missing : {"error", "uniform"}
        What a row gets whose key is not in the table.
    """

    path: object
    key: str | Sequence[str]
    columns: Sequence[str] | None = None
    missing: str = "error"

    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        put = object.__setattr__
        _validate.one_of(("error", "uniform"), missing=self.missing)
        put(self, "key", (self.key,) if isinstance(self.key, str) else tuple(self.key))
        put(self, "columns", None if self.columns is None else tuple(self.columns))
        if not self.key or not all(isinstance(name, str) and name for name in self.key):
            raise InvalidInput(f"Expected the key's columns by name, got key={self.key!r}. Name the column that both tables have.")
        if not isinstance(self.path, Place):
            put(self, "path", str(self.path))

    @property
    def reads(self) -> tuple[str, ...]:
        """The key."""
        return tuple(self.key)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready data."""
        columns = None if self.columns is None else list(self.columns)
        return {"table": str(self.path), "key": list(self.key), "columns": columns, "missing": self.missing}

    def open(self, classes: Sequence[object]) -> "OpenTable":
        """Read the table."""
        place = Place.of(self.path)
        table = _read(place)
        columns = self._weight_columns(table, place.name, classes)
        keys = tuple(_key(_column(table, name, place.name), name, place.name) for name in self.reads)
        weights = np.column_stack([_numbers(_column(table, name, place.name), name, place.name) for name in columns])
        words = public_hash("prior", list(keys))
        order = np.argsort(words, kind="stable")
        facts = self.to_dict() | {"table": place.name, "columns": list(columns), "sha256": place.digest()}
        made = OpenTable(self.reads, facts, words[order], tuple(k.take(pa.array(order)) for k in keys), weights[order], self.missing)
        if (made.words[1:] == made.words[:-1]).any():
            raise InvalidInput(f"Expected each key once in {place.name}, got one of {', '.join(self.reads)} twice. Keep one row of each.")
        return made

    def _weight_columns(self, table: pa.Table, name: str, classes: Sequence[object]) -> list[str]:
        columns = list(self.columns) if self.columns is not None else [c for c in table.column_names if c not in self.key]
        if len(columns) != len(classes):
            raise InvalidInput(
                f"Expected one column of weights a class ({len(classes)}) in {name}, got {len(columns)}. Name them in the order of the "
                "classes: columns=[...]."
            )
        order = ordered_by_value(columns, classes) if self.columns is None else None
        return columns if order is None else [columns[i] for i in order]


@dataclass(frozen=True, repr=False)
class OpenTable:
    """A `PriorTable` in memory, sorted by the hashes of its keys."""

    columns: tuple[str, ...]
    facts: Mapping[str, object]
    words: NDArray[np.uint64]
    keys: tuple[pa.Array, ...]
    table: Floats
    missing: str

    exact: ClassVar[bool] = True

    def weights(self, rows: pa.RecordBatch, start: int | None) -> Floats:
        """Of each row's key."""
        place, found = self._find(rows) if len(self.columns) > 1 else self._find_distinct(rows)
        if self.missing == "error" and not found.all():
            raise InvalidInput(
                f"Expected a prior for every {', '.join(self.columns)}, got none in {self.facts['table']} for {_which(found, start)}. Add "
                "it, or give such rows a uniform prior: missing='uniform'."
            )
        weights = self.table[place]
        weights[~found] = 1.0
        return weights

    def _find_distinct(self, rows: pa.RecordBatch) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Each different key is looked up once: clusters and segments repeat."""
        (name,) = self.columns
        coded = _plain(rows.column(name)).dictionary_encode(null_encoding="encode")
        place, found = self._find(pa.record_batch([coded.dictionary], names=[name]))
        codes = coded.indices.to_numpy()
        return place[codes], found[codes]

    def _find(self, rows: pa.RecordBatch) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        texts = [_text_of(_plain(rows.column(name)), name) for name in self.columns]
        present = np.logical_and.reduce([text.is_valid().to_numpy(zero_copy_only=False) for text in texts])
        texts = [pc.fill_null(text, "") for text in texts]
        place = np.searchsorted(self.words, public_hash("prior", texts))
        place = np.minimum(place, len(self.words) - 1)
        for text, key in zip(texts, self.keys, strict=True):  # hashes find the place, the keys themselves decide
            present = present & pc.equal(text, key.take(pa.array(place))).to_numpy(zero_copy_only=False)
        return place, present


def _read(place: Place) -> pa.Table:
    suffix = place.suffix.lower()
    if suffix not in (".parquet", ".pq", ".csv", ".tsv"):
        raise InvalidInput(f"Expected a table of priors in .parquet or .csv, got {place.name}. Convert it.")
    with reading(place), place.open_input() as stream:
        try:
            if suffix in (".parquet", ".pq"):
                table = pq.read_table(stream)
            else:
                options = pyarrow.csv.ParseOptions(delimiter="\t" if suffix == ".tsv" else ",")
                table = pyarrow.csv.read_csv(stream, parse_options=options)
        except pa.ArrowInvalid:
            raise InvalidInput(f"Expected a table of priors, got something else in {place.name}. Write it again.") from None
    if not table.num_rows:
        raise InvalidInput(f"Expected rows in the table of priors, got none in {place.name}.")
    return table


def _column(table: pa.Table, name: str, where: str) -> pa.Array:
    if name not in table.column_names:
        names = table.column_names
        raise InvalidInput(f"Expected a column {name!r} in {where}, got none.{_validate.suggest(name, names)}")
    found = table.column(name).combine_chunks()
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _key(column: pa.Array, name: str, where: str) -> pa.Array:
    text = _text_of(_plain(column), name)
    if text.null_count:
        raise InvalidInput(f"Expected a key in every row of {where}, got none in {text.null_count} rows of column {name!r}. Fill them.")
    return text


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _text_of(column: pa.Array, name: str) -> pa.Array:
    """Whole numbers and text as text: 7 in one table is "7" in the other."""
    types = pa.types
    if not (types.is_integer(column.type) or types.is_string(column.type) or types.is_large_string(column.type)):
        raise InvalidInput(f"Expected a key of whole numbers or text, got column {name!r} of type {column.type}. Cast it.")
    return column.cast(pa.large_string())


def _numbers(column: pa.Array, name: str, where: str) -> Floats:
    try:
        values = np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidInput(
            f"Expected numbers in column {name!r} of {where}, got something else. It is to hold a class's weights."
        ) from None
    if not ((values >= 0) & (values < np.inf)).all():
        raise InvalidInput(f"Expected finite weights >= 0 in column {name!r} of {where}, got others. Mend those rows.")
    return values
