# SPDX-License-Identifier: Apache-2.0
"""Read columns of a table as inputs: numbers, times and categories, as Arrow columns. The model
itself holds the encoder."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.protocol._written import is_time, seconds_of, text_of, ticks_of, written_times
from labeldp.tables.formats._table import Readable, Rows, is_text

NUMBER, TIME, CATEGORY = "number", "time", "category"


@dataclass(frozen=True)
class Column:
    """A column and how it is read: as "number", as "time" (seconds; of dates, since 1970) or as
    "category"."""

    name: str
    kind: str


@dataclass(frozen=True)
class ColumnInputs:
    """Inputs that are columns of a table.

    Attributes
    ----------
    columns : tuple of Column
    left_out : tuple of str
        Columns of other types, which are not read.
    """

    columns: tuple[Column, ...]
    left_out: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the columns that are read."""
        return [column.name for column in self.columns]

    @property
    def categories(self) -> list[str]:
        """Names of the columns of categories."""
        return [column.name for column in self.columns if column.kind == CATEGORY]

    @property
    def numbers(self) -> list[str]:
        """Names of the columns of numbers and times."""
        return [column.name for column in self.columns if column.kind != CATEGORY]

    @property
    def image(self) -> None:
        """None: the rows are not images."""

    def read(self, batch: Rows, start: int | None = None) -> pa.Table:
        """Read the columns: numbers and times as float64, null if missing or infinite; categories
        as text, "" if missing."""
        return pa.table(
            {each.name: _values(batch.column(each.name), each) for each in self.columns}
        )

    def to_dict(self) -> dict[str, object]:
        """Describe the inputs as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ColumnInputs":
        """Rebuild the inputs from the dict that `to_dict` wrote."""
        columns = tuple(Column(str(each["name"]), str(each["kind"])) for each in data["columns"])
        return cls(columns, tuple(map(str, data["left_out"])))


def learn_columns(source: Readable, names: Sequence[str]) -> ColumnInputs:
    """Decide how each column is read.

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
    found = tuple(Column(name, kind) for name, kind in kinds.items() if kind is not None)
    if not found:
        raise InvalidInput(
            "Expected at least one column to learn from, got none of numbers or categories besides"
            " label, ids and unit."
        )
    return ColumnInputs(found, tuple(sorted(name for name, kind in kinds.items() if kind is None)))


def matrix_of(batch: Rows, names: Sequence[str]) -> NDArray[np.float64]:
    """Read columns of numbers: (n, d) float64, NaN where a value is missing."""
    columns = [_numbers(batch.column(name), name).to_numpy(zero_copy_only=False) for name in names]
    return np.column_stack(columns) if columns else np.empty((len(batch), 0))


def _written_kinds(source: Readable, names: Sequence[str]) -> dict[str, str | None]:
    # Text of digits in a typed table is no number there; dates are often text for want of another
    # type.
    kinds: dict[str, str | None] = dict.fromkeys(names, NUMBER if source.text else TIME)
    empty = set(names)
    for batch in source.batches(list(names)) if names else ():
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
    if _is_category(kind):
        return CATEGORY
    if (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
    ):
        return NUMBER
    return TIME if is_time(kind) else None


def _is_category(kind: pa.DataType) -> bool:
    return is_text(kind) or bool(pa.types.is_dictionary(kind))


def _fits(text: pa.Array, kind: str | None) -> bool:
    try:
        text_of(text).cast(pa.float64()) if kind == NUMBER else written_times(text_of(text))
    except pa.ArrowInvalid:
        return False
    return True


def _values(column: pa.Array, of: Column) -> pa.Array:
    if of.kind == CATEGORY:
        # A dictionary stores each text once. Missing values become the text "", since NumPy reads a
        # dictionary's null as its first value.
        return text_of(column).fill_null("").dictionary_encode()
    found = _seconds(column, of.name) if of.kind == TIME else _numbers(column, of.name)
    return pc.if_else(pc.is_finite(found), found, pa.scalar(None, pa.float64()))


def _numbers(column: pa.Array, name: str) -> pa.Array:
    kind = column.type
    try:
        if _is_category(kind):
            return text_of(column).cast(pa.float64())
        if pa.types.is_boolean(kind):
            column = column.cast(pa.uint8())
        elif is_time(kind):
            return ticks_of(column)
        return column.cast(pa.float64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise _other_kind(name, "numbers") from None


def _seconds(column: pa.Array, name: str) -> pa.Array:
    try:
        times = written_times(text_of(column)) if _is_category(column.type) else column
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise _other_kind(name, "dates or times") from None
    if not is_time(times.type):
        raise _other_kind(name, "dates or times")
    return seconds_of(times)


def _other_kind(name: str, kind: str) -> InvalidInput:
    return InvalidInput(
        f"Expected {kind} in column {name!r}, got something else. The model was trained with {kind}"
        " there."
    )
