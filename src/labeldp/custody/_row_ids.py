# SPDX-License-Identifier: Apache-2.0
"""Who the rows of a call are: their ids and units, and what the columns of these are called.

A name says which numbering an id is of. Ids of differently named columns never prove that rows are different ones, so names are taken from
whatever has one: a column of pandas, polars or Arrow, the columns of a table, or what the caller says.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from labeldp.errors import InvalidInput
from labeldp.ledger._events import ROW

PLAIN = "id"
"""What ids without a name are called."""

Name = str | Sequence[str]
"""The name of a column, or the names of several."""


@dataclass(frozen=True, eq=False, repr=False)
class RowIds:
    """Ids and units of n rows with their names; `RowIds.of` makes it.

    Attributes
    ----------
    ids : (n,) or (n, columns) array, column, table, or None
    unit : (n,) array, column, or None
    id_name : str
        "" without ids.
    unit_name : str
        "row" without units.
    columns : tuple of str
        What each column of both is called.
    """

    ids: ArrayLike | None = None
    unit: ArrayLike | None = None
    id_name: str = ""
    unit_name: str = ROW
    columns: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, ids: ArrayLike | None, unit: ArrayLike | None = None, id_name: Name | None = None, unit_name: Name | None = None
    ) -> "RowIds":
        """What the caller gave. A name that is not given is the column's own; without one it is "id", and "unit"."""
        for what, values, name in ((PLAIN, ids, id_name), ("unit", unit, unit_name)):
            if values is None and name is not None:
                raise InvalidInput(f"Expected {what}_name only with {what}s, got {what}_name={name!r} alone. Pass {what}s too, or drop it.")
        id_names = [] if ids is None else _names(PLAIN, ids, id_name)
        unit_names = [] if unit is None else _names("unit", unit, unit_name)
        return cls(ids, unit, joined(id_names), unit_of(joined(unit_names)) if unit_names else ROW, (*id_names, *unit_names))

    def beside(self, labels: Any) -> "RowIds":
        """Refuse the labels themselves, or the column that they were taken from, as ids or units: whatever `column=` calls them."""
        own = _own_name(labels)
        same = any(values is not None and values is labels for values in (self.ids, self.unit))
        if same or (isinstance(own, str) and own and own in self.columns):
            raise InvalidInput("Expected ids and units of public columns, got the labels themselves among them. Leave them out.")
        return self

    def require_public(self, column: str) -> None:
        """Refuse the private column among ids and units: these go into digests, row sets and the choice of rows as they are."""
        if column in self.columns:
            raise InvalidInput(f"Expected ids and units of public columns, got the label column {column!r} among them. Leave it out.")


def unit_of(name: str) -> str:
    """The name of a unit's column, if it may be one."""
    if name == ROW:
        raise InvalidInput(
            "Expected a unit by another name than 'row', which stands for rows that are protected one by one. Give the column another name."
        )
    return name


def joined(names: Iterable[str]) -> str:
    """Names of columns as one text; no two lists read alike."""
    return ",".join(name.replace("\\", "\\\\").replace(",", "\\,") for name in names)


def _names(what: str, columns: Any, given: Name | None) -> list[str]:
    """The name of each column."""
    own = _own_names(columns)
    if given is not None:
        named = [given] if isinstance(given, str) else list(given)
        if len(named) != len(own):
            raise InvalidInput(f"Expected a name for each of {len(own)} columns of {what}s, got {len(named)}. Name each one.")
    else:
        plain = [what] if len(own) == 1 else [f"{what} {number}" for number in range(1, len(own) + 1)]
        named = [default if name is None or name == "" else str(name) for name, default in zip(own, plain, strict=True)]
    for name in named:
        if not (isinstance(name, str) and name and name.isprintable()):
            raise InvalidInput(f"Expected printable names for the columns of {what}s, got {name!r}. Pass {what}_name=.")
    return named


def _own_names(columns: Any) -> list[object]:
    """What each column is called by itself, None for nothing."""
    if hasattr(columns, "columns"):  # a table of pandas, polars or Arrow
        return list(columns.column_names if hasattr(columns, "column_names") else columns.columns)
    if getattr(columns, "ndim", 1) == 2:
        return [None] * int(columns.shape[1])
    if isinstance(columns, (list, tuple)) and len(columns):
        if isinstance(columns[0], tuple):  # rows
            return [None] * len(columns[0])
        if all(hasattr(column, "__len__") and not isinstance(column, (str, bytes)) for column in columns):
            return [_own_name(column) for column in columns]
    return [_own_name(columns)]


def _own_name(column: Any) -> object:
    """Of a column of a data frame, or of an Arrow array that was taken from a table."""
    return getattr(column, "name", getattr(column, "_name", None))
