# SPDX-License-Identifier: Apache-2.0
"""What the most heavily used row has spent: the maximum over rows of the sum over the runs that cover the row, never less.

Runs whose ids are of one space (kind and name) are exact, level by level. What is known of one space proves nothing about another, so the
maxima of several spaces add; a run without a set, or with one that proves nothing, counts for every row. Where units are named, units and
rows are counted side by side, and the larger sum holds: a column of units that changed its meaning cannot hide that rows are the same.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction

from labeldp._rounding import exact
from labeldp.ledger._entries import RunRecord
from labeldp.ledger._events import ROW
from labeldp.ledger._integers import NumberSet
from labeldp.ledger._rowset import IdSet, Role, RowSet, Space

SetOf = Callable[[RunRecord], RowSet | None]
"""The row set of a run, or None where there is none that can be trusted."""


def epsilon_of(run: RunRecord) -> Fraction:
    """A run's epsilon, as the decimal number that it is written as."""
    return exact(run.epsilon)


def delta_of(run: RunRecord) -> Fraction:
    """A run's delta, as the decimal number that it is written as."""
    return exact(run.delta)


class Spend:
    """What was spent on the rows of one (dataset, column), run by run.

    Parameters
    ----------
    set_of : function of a run
    runs : iterable of RunRecord
    cost : function of a run
        What adds up: `epsilon_of`, or `delta_of`.
    """

    def __init__(self, set_of: SetOf, runs: Iterable[RunRecord] = (), cost: Callable[[RunRecord], Fraction] = epsilon_of) -> None:
        self._set_of, self._cost = set_of, cost
        self._everywhere = Fraction(0)
        self._spaces: dict[Role, dict[Space, Levels]] = {}
        for run in runs:
            self.add(run)

    def add(self, run: RunRecord) -> None:
        """Count a further run."""
        rows = self._set_of(run)
        if rows is None or (ROW if run.unit == ROW else "unit") not in rows.sets:  # what is protected is not known
            self._everywhere += self._cost(run)
            return
        for role, ids in rows.sets.items():
            self._spaces.setdefault(role, {}).setdefault(ids.space, Levels()).add(self._cost(run), ids.members)

    @property
    def most(self) -> Fraction:
        """What the most heavily used row, or unit, has spent."""
        return self._everywhere + max(map(_most, self._spaces.values()), default=Fraction(0))

    def covered(self, rows: RowSet | None) -> Fraction:
        """What the most heavily used of these rows has spent; None: of all rows."""
        protected = "unit" if "unit" in self._spaces else ROW
        if rows is None or protected not in rows.sets:
            return self.most
        found = [_covered(self._spaces[role], ids) for role, ids in rows.sets.items() if role in self._spaces]
        return self._everywhere + max(found, default=Fraction(0))

    def by_rows(self) -> list[tuple[Fraction, int | None]]:
        """(spent, number of rows, or units), least first, where one space tells; else what bounds all rows, without a number."""
        spaces = self._spaces.get("unit", self._spaces.get("row", {}))
        if len(spaces) != 1 or not _most(spaces) or self._everywhere + _most(spaces) < self.most:
            return [(self.most, None)]
        (levels,) = spaces.values()
        return [(spent + self._everywhere, len(members)) for spent, members in sorted(levels.items())]


def _most(spaces: "dict[Space, Levels]") -> Fraction:
    return sum((levels.most for levels in spaces.values()), Fraction(0))


def _covered(spaces: "dict[Space, Levels]", ids: IdSet) -> Fraction:
    return sum((levels.covered(ids.members) if space == ids.space else levels.most for space, levels in spaces.items()), Fraction(0))


class Levels:
    """A partition of rows by what they have spent."""

    def __init__(self) -> None:
        self._levels: dict[Fraction, NumberSet] = {}

    @property
    def most(self) -> Fraction:
        """The highest level."""
        return max(self._levels, default=Fraction(0))

    def items(self) -> Iterable[tuple[Fraction, NumberSet]]:
        """The levels with their rows; none is empty."""
        return self._levels.items()

    def covered(self, members: NumberSet) -> Fraction:
        """The highest level that these rows are in."""
        for spent in sorted(self._levels, reverse=True):
            if self._levels[spent].shared(members):
                return spent
        return Fraction(0)

    def add(self, cost: Fraction, members: NumberSet) -> None:
        """These rows spend this much more."""
        made: dict[Fraction, NumberSet] = {}
        rest = members
        for spent, rows in self._levels.items():
            both = rows & members
            _join(made, spent + cost, both)
            _join(made, spent, rows - both if len(both) else rows)
            rest = rest - both if len(both) else rest
        _join(made, cost, rest)
        self._levels = made


def _join(levels: dict[Fraction, NumberSet], spent: Fraction, rows: NumberSet) -> None:
    if len(rows):
        levels[spent] = levels[spent] | rows if spent in levels else rows
