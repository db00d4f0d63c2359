# SPDX-License-Identifier: Apache-2.0
"""What was done to labels, as frozen data, and what it costs.

JSON form: an object whose "event" names the kind, with one member for each field. Compatibility promise: what one release writes, every
later release reads with the same meaning; later releases may add kinds and fields. An unknown kind or field is refused, never skipped,
so that an old reader cannot report too small a cost.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

from labeldp import _validate
from labeldp._rounding import exact, float_down
from labeldp.errors import InvalidInput

ROW = "row"
"""What is protected where no unit is named; so no unit's column may be called that."""


class _Single:
    """One mechanism at work on some rows' labels; its first field says which."""

    kind: ClassVar[str]
    what: ClassVar[str]
    """Name of the first field."""

    epsilon: float
    delta: float
    unit: str
    max_rows_per_unit: int

    def __post_init__(self) -> None:
        mechanism = getattr(self, self.what)
        if not isinstance(mechanism, Mapping):
            raise InvalidInput(f"Expected the {self.what} as a mapping, got {type(mechanism).__name__}. Pass {self.what}.to_dict().")
        if not (isinstance(self.unit, str) and self.unit):
            raise InvalidInput(f"Expected unit to be 'row' or a column's name, got unit={self.unit!r}.")
        object.__setattr__(self, self.what, dict(mechanism))
        object.__setattr__(self, "epsilon", _validate.epsilon(self.epsilon))
        object.__setattr__(self, "delta", _validate.fraction(delta=self.delta, zero=True))
        object.__setattr__(self, "max_rows_per_unit", _validate.integer(max_rows_per_unit=self.max_rows_per_unit, low=1))

    def to_dict(self) -> dict[str, object]:
        """The event as JSON-ready data."""
        names = (self.what, "epsilon", "delta", "unit", "max_rows_per_unit")
        return {"event": self.kind} | {name: getattr(self, name) for name in names} | {self.what: dict(getattr(self, self.what))}


@dataclass(frozen=True)
class LabelDraw(_Single):
    """Each label of some rows went through a law once.

    Parameters
    ----------
    law : mapping
        The law as JSON data (`Law.to_dict()`), or the laws of a run and how its rows are divided among them.
    epsilon, delta : float
        What it costs one unit in total.
    unit : str
        "row", or the name of the column that names the person.
    max_rows_per_unit : int
        Rows that one unit has at most.
    """

    kind: ClassVar[str] = "label-draw"
    what: ClassVar[str] = "law"

    law: Mapping[str, object] = field(hash=False)
    epsilon: float
    delta: float = 0.0
    unit: str = "row"
    max_rows_per_unit: int = 1


@dataclass(frozen=True)
class AggregateDraw(_Single):
    """A query about groups of rows was answered once: each row is in one group, so the groups together cost what one of them costs.

    Parameters
    ----------
    query : mapping
        The query as JSON data (`Query.to_dict()`).
    epsilon, delta : float
        What it costs one unit in total; it adds to every other event on the same rows' labels.
    unit : str
        "row", or the name of the column that names the person.
    max_rows_per_unit : int
        Rows that one unit has at most.
    """

    kind: ClassVar[str] = "aggregate"
    what: ClassVar[str] = "query"

    query: Mapping[str, object] = field(hash=False)
    epsilon: float
    delta: float = 0.0
    unit: str = "row"
    max_rows_per_unit: int = 1


Event = LabelDraw | AggregateDraw


def from_dict(data: object) -> Event:
    """The event that `to_dict` wrote; an unknown kind or field is refused and named."""
    if not isinstance(data, Mapping):
        raise InvalidInput(f"Expected an event as a mapping, got {type(data).__name__}. Pass event.to_dict().")
    kind, facts = data.get("event"), {name: value for name, value in data.items() if name != "event"}
    if not (isinstance(kind, str) and kind in _KINDS):
        raise InvalidInput(f"Expected an event of kind {', '.join(_KINDS)}; got {kind!r}. A newer labeldp may know it.")
    try:
        return _KINDS[kind](**facts)  # the constructor checks each
    except TypeError:
        given = ", ".join(map(str, facts))
        raise InvalidInput(f"Expected the fields of a {kind!r} event, got {given}. A newer labeldp may know them.") from None


_KINDS: dict[str, Callable[..., Event]] = {cls.kind: cls for cls in (LabelDraw, AggregateDraw)}


def per_row_epsilon(epsilon: float, max_rows_per_unit: int) -> float:
    """Each row's epsilon if a unit of `max_rows_per_unit` rows may spend `epsilon`: rounded down, so that the rows never exceed it."""
    total, rows = _validate.epsilon(epsilon), _validate.integer(max_rows_per_unit=max_rows_per_unit, low=1)
    # as a float and as a decimal: whichever is smaller
    share = float_down(min(Fraction(total), exact(total)) / rows, binary=True)
    return _validate.positive(per_row_epsilon=share, fix="The budget is too small to divide; lower max_rows_per_unit.")
