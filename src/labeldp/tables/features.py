# SPDX-License-Identifier: Apache-2.0
"""Public columns as a matrix of numbers: numbers stay, categories become codes, what is missing becomes NaN.

What the encoding learnt is plain data, so that a model's folder holds it as JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.tables.table import Readable, Rows

MAX_CATEGORIES = 254  # histogram gradient boosting takes 255 codes; the last one stands for all rarer categories
MOST_CATEGORIES = 10_000  # of a column, for learners with a weight for each; those beyond the first 254 occur twice at least
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?")


@dataclass(frozen=True)
class Feature:
    """How one column is read.

    Attributes
    ----------
    name : str
    kind : str
        "number" or "category".
    categories : tuple of str
        The most frequent ones first. Category c has code c; any other one has code len(categories).
    rarer : int
        Other values that the column had.
    """

    name: str
    kind: str
    categories: tuple[str, ...] = ()
    rarer: int = 0

    def limited(self, most: int) -> "Feature":
        """With so many categories at most."""
        return replace(self, categories=self.categories[:most], rarer=self.rarer + max(0, len(self.categories) - most))


@dataclass(frozen=True)
class Features:
    """How a table's columns become a matrix.

    Attributes
    ----------
    columns : tuple of Feature
        In the order of the matrix's columns.
    left_out : tuple of str
        Columns that are neither numbers nor categories.
    """

    columns: tuple[Feature, ...]
    left_out: tuple[str, ...] = field(default=())

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return [feature.name for feature in self.columns]

    @property
    def categorical(self) -> list[int]:
        """Positions of the categories."""
        return [i for i, feature in enumerate(self.columns) if feature.kind == "category"]

    def limited(self, most: int = MAX_CATEGORIES) -> "Features":
        """With so many categories of each column at most; the rarer ones share a code."""
        return replace(self, columns=tuple(feature.limited(most) for feature in self.columns))

    def matrix(self, batch: Rows) -> NDArray[np.float64]:
        """(n, d) float64, NaN where a value is missing."""
        out = np.empty((len(batch), len(self.columns)))
        for i, feature in enumerate(self.columns):
            out[:, i] = (
                _codes(batch.column(feature.name), feature)
                if feature.kind == "category"
                else _numbers(batch.column(feature.name), feature.name)
            )
        return out

    def to_dict(self) -> dict[str, object]:
        """JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Sequence[Mapping[str, object]]]) -> "Features":
        """What `to_dict` wrote."""
        columns = tuple(
            Feature(str(f["name"]), str(f["kind"]), tuple(map(str, f["categories"])), int(f.get("rarer", 0)))  # type: ignore[call-overload]
            for f in data["columns"]
        )
        return cls(columns, tuple(map(str, data["left_out"])))


def learn_features(source: Readable, names: Sequence[str]) -> Features:
    """Decide how each column is read, in one pass over the table.

    Numbers, booleans and times are numbers; text and dictionaries are categories. In a text table a column is a number if all its values
    that are there are. Of the categories the most frequent 254 are kept, and those after them, up to 10,000, that occur twice.
    """
    counts: dict[str, dict[str, int]] = {}
    numeric = {name: _is_number(source.type_of(name)) or source.text for name in names}
    textual = {name: _is_category(source.type_of(name)) for name in names}
    for batch in source.batches(list(names)):
        for name in names:
            if numeric[name] and source.text:
                numeric[name] = _parses(batch.column(name))
            if textual[name]:
                _count(counts.setdefault(name, {}), batch.column(name))
    found = [_feature(name, numeric[name], textual[name], counts.get(name, {})) for name in names]
    kept = tuple(feature for feature in found if feature is not None)
    if not kept:
        raise InvalidInput("Expected at least one column to learn from, got none of numbers or categories besides label, ids and unit.")
    return Features(kept, tuple(sorted(set(names) - {feature.name for feature in kept})))


def _feature(name: str, numeric: bool, textual: bool, counts: Mapping[str, int]) -> Feature | None:
    if numeric:
        return Feature(name, "number")
    if not textual:
        return None
    ordered = sorted(counts, key=lambda value: (-counts[value], value))
    kept = [value for place, value in enumerate(ordered[:MOST_CATEGORIES]) if place < MAX_CATEGORIES or counts[value] > 1]
    return Feature(name, "category", tuple(kept), len(ordered) - len(kept))


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind) or types.is_temporal(kind)
    )


def _is_category(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or types.is_dictionary(kind))


def _text(column: pa.Array) -> pa.Array:
    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    trimmed = pc.utf8_trim_whitespace(plain.cast(pa.large_string()))
    return pc.if_else(pc.is_in(trimmed, value_set=pa.array(MISSING, pa.large_string())), pa.scalar(None, pa.large_string()), trimmed)


def _parses(column: pa.Array) -> bool:
    try:
        _text(column).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _count(counts: dict[str, int], column: pa.Array) -> None:
    for entry in pc.value_counts(_text(column).drop_null()).to_pylist():
        counts[entry["values"]] = counts.get(entry["values"], 0) + entry["counts"]


def _codes(column: pa.Array, feature: Feature) -> NDArray[np.float64]:
    text = _text(column)
    found = pc.fill_null(pc.index_in(text, value_set=pa.array(feature.categories, pa.large_string())), len(feature.categories))
    codes: NDArray[np.float64] = found.to_numpy(zero_copy_only=False).astype(np.float64)
    codes[text.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return codes


def _numbers(column: pa.Array, name: str) -> NDArray[np.float64]:
    kind = column.type
    try:
        if _is_category(kind):
            column = _text(column)
        elif pa.types.is_boolean(kind):
            column = column.cast(pa.uint8())
        elif pa.types.is_temporal(kind):
            column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
        return np.asarray(column.cast(pa.float64(), safe=_is_category(kind)).to_numpy(zero_copy_only=False), np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidInput(f"Expected numbers in column {name!r}, got something else. The model was trained with numbers there.") from None
