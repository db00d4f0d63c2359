# SPDX-License-Identifier: Apache-2.0
"""Read columns of a table as the features of a model: numbers, times and categories; and encode
them as a matrix.

What is learned here comes from public columns alone, of all rows.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from labeldp.errors import InvalidInput
from labeldp.learn._data import MAX_CATEGORIES
from labeldp.protocol._written import is_time, seconds_of, text_of, written_times
from labeldp.tables._priors import as_numbers
from labeldp.tables.formats._table import Batch, Source, is_text

NUMBER, TIME, CATEGORY = "number", "time", "category"
MOST_CATEGORIES = 10_000
"""Maximal number of categories of a column with a weight each; those beyond the 254 most frequent
must occur at least twice."""


@dataclass(frozen=True)
class Features:
    """The columns that a model reads, and how.

    Attributes
    ----------
    kinds : mapping of str to str
        Each column's kind: "number", "time" (seconds; of dates, since 1970) or "category".
    levels : mapping of str to str
        The categories with a code of their own, in the order of their codes: a JSON list of text
        for each column of categories.
    """

    kinds: Mapping[str, str]
    levels: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(self.kinds)

    @property
    def categories(self) -> list[str]:
        """The columns of categories, which come first in the matrix."""
        return [name for name, kind in self.kinds.items() if kind == CATEGORY]

    def read(self, batch: Batch) -> pa.Table:
        """Read the columns: numbers and times as float64, null if missing or infinite; categories
        as text, "" if missing."""
        return pa.table(
            {name: _values(batch.column(name), name, kind) for name, kind in self.kinds.items()}
        )

    def matrix(self, rows: pa.Table) -> NDArray[np.float64]:
        """Encode what `read` returned: codes of categories, NaN for others, then numbers: (n,
        d)."""
        levels = {
            name: pa.array(json.loads(self.levels[name]), pa.large_string())
            for name in self.categories
        }
        codes = [
            pc.index_in(rows[name].cast(pa.large_string()), value_set=known)
            for name, known in levels.items()
        ]
        numbers = [rows[name] for name, kind in self.kinds.items() if kind != CATEGORY]
        return np.column_stack(
            [
                np.asarray(each.cast(pa.float64()).to_numpy(), np.float64)
                for each in (*codes, *numbers)
            ]
        )

    def fitted(self, rows: pa.Table, most: int) -> "Features":
        """Give codes to the categories of all rows, at most so many of a column: rarer ones count
        as one."""
        levels = {}
        for name, counts in self._counts(rows).items():
            ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
            kept = [
                value
                for i, (value, count) in enumerate(ordered[:most])
                if i < MAX_CATEGORIES or count > 1
            ]
            levels[name] = json.dumps(kept)
        return Features(self.kinds, levels)

    def n_weights(self, rows: pa.Table) -> int:
        """Count the categories that occur twice, which have a weight each in the linear model."""
        counted = self._counts(rows).values()
        return sum(count > 1 for counts in counted for count in counts.values())

    def _counts(self, rows: pa.Table) -> dict[str, dict[str, int]]:
        counted = {
            name: pc.value_counts(rows[name].cast(pa.large_string())) for name in self.categories
        }
        return {
            name: {each["values"]: each["counts"] for each in found.to_pylist()}
            for name, found in counted.items()
        }

    def to_dict(self) -> dict[str, object]:
        """Describe the columns as JSON-ready data."""
        return {"columns": [{"name": name, "kind": kind} for name, kind in self.kinds.items()]}


def learn_columns(source: Source, names: Sequence[str]) -> tuple[Features, list[str]]:
    """Decide how each column is read; return also those of other types, which are left out.

    In a typed table Arrow's types decide: numbers and booleans are numbers; dates, times and
    durations are times; dictionaries are categories. In a text table, and of text in a typed one,
    the values decide, in one pass: a column of a text table is numbers if all values present are;
    text in any table is times if all are dates or timestamps in ISO 8601, else categories.
    """
    kinds = (
        dict.fromkeys(names, NUMBER)
        if source.text
        else {name: _kind(source.type_of(name)) for name in names}
    )
    kinds |= _written_kinds(
        source, [name for name in names if source.text or is_text(source.type_of(name))]
    )
    found = {name: kind for name, kind in kinds.items() if kind is not None}
    if not found:
        raise InvalidInput(
            "Expected at least one column to learn from, got none of numbers or categories besides"
            " label, ids and unit."
        )
    return Features(found), sorted(set(kinds) - set(found))


def one_hot(n_codes: int, width: int, *, sparse: bool) -> ColumnTransformer:
    """Make an encoder of a matrix of codes and numbers to one without missing values: a column a
    category, standardised numbers.

    A missing number becomes the mean, with an indicator column. If `sparse`, the matrix is so where
    there are categories.
    """
    filled = SimpleImputer(
        strategy="constant", fill_value=0.0, add_indicator=True, keep_empty_features=True
    )
    categories = OneHotEncoder(handle_unknown="ignore", dtype=np.float32)
    parts = [
        ("categories", categories, list(range(n_codes))),
        ("numbers", make_pipeline(StandardScaler(), filled), list(range(n_codes, width))),
    ]
    return ColumnTransformer(parts, sparse_threshold=float(sparse))


def _written_kinds(source: Source, names: Sequence[str]) -> dict[str, str | None]:
    # Text of digits in a typed table is no number there; dates are often text for want of another
    # type.
    kinds: dict[str, str | None] = dict.fromkeys(names, NUMBER if source.text else TIME)
    empty = set(names)
    batches: Iterable[Any] = source.batches(list(names)) if names else ()
    for batch in batches:
        for name, kind in kinds.items():
            # One value that does not fit rules a kind out for the whole column, so later batches
            # never go back to it.
            while kind != CATEGORY and not _fits(batch.column(name), kind):
                kind = TIME if kind == NUMBER else CATEGORY
            kinds[name] = kind
            if name in empty and text_of(batch.column(name)).null_count < len(batch):
                empty.discard(name)
        if all(kind == CATEGORY for kind in kinds.values()):
            break
    return kinds if source.text else kinds | dict.fromkeys(empty, CATEGORY)


def _kind(kind: pa.DataType) -> str | None:
    types = pa.types
    if is_text(kind) or types.is_dictionary(kind):
        return CATEGORY
    if (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
    ):
        return NUMBER
    return TIME if is_time(kind) else None


def _fits(text: pa.Array, kind: str | None) -> bool:
    try:
        text_of(text).cast(pa.float64()) if kind == NUMBER else written_times(text_of(text))
    except pa.ArrowInvalid:
        return False
    return True


def _values(column: pa.Array, name: str, kind: str) -> pa.Array:
    if kind == CATEGORY:
        # a dictionary stores each text once
        return text_of(column).fill_null("").dictionary_encode()
    try:
        found = _seconds(column) if kind == TIME else as_numbers(column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        what = "numbers" if kind == NUMBER else "dates or times"
        raise InvalidInput(
            f"Expected {what} in column {name!r}, got something else. The model was trained with"
            f" {what} there."
        ) from None
    return pc.if_else(pc.is_finite(found), found, pa.scalar(None, pa.float64()))


def _seconds(column: pa.Array) -> pa.Array:
    times = (
        written_times(text_of(column))
        if is_text(column.type) or pa.types.is_dictionary(column.type)
        else column
    )
    if not is_time(times.type):
        raise pa.ArrowInvalid
    return seconds_of(times)
