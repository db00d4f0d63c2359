# SPDX-License-Identifier: Apache-2.0
"""What the most heavily used row has spent: the maximum over rows of the sum over the runs that cover the row, never less.

Runs with integer row sets in one space of names are exact, level by level. Of runs with sets of names it is known which pairs are
disjoint: a row's runs are pairwise not disjoint, so the heaviest clique bounds what it spent. What is known of one space proves nothing
about another, so the maxima of several spaces add; a run without a set, or with one that is missing or damaged, counts for every row.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from labeldp._rounding import exact
from labeldp.privacy.ledger_entries import RunRecord
from labeldp.privacy.rowset_integers import IntegerSet

SetOf = Callable[[RunRecord], IntegerSet | None]
"""The integer set of a run's rows, or None where there is none that can be trusted."""

_EXACT_CLIQUE = 24


def epsilon_of(run: RunRecord) -> Fraction:
    """A run's epsilon, as the decimal number that it is written as."""
    return exact(run.epsilon)


def delta_of(run: RunRecord) -> Fraction:
    """A run's delta, as the decimal number that it is written as."""
    return exact(run.delta)


@dataclass(frozen=True)
class Charged:
    """The rows of a charge, or of one that may come.

    Attributes
    ----------
    run_id : str
        "" for one that may come.
    rows : mapping or None
        Facts of its row set; None: it counts for every row.
    disjoint : tuple of str
        Earlier runs that were shown to have none of its rows.
    """

    run_id: str
    rows: Mapping[str, object] | None
    disjoint: tuple[str, ...]


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
        self._integers: dict[str, Levels] = {}
        self._names: dict[str, list[RunRecord]] = {}
        for run in runs:
            self.add(run)

    def add(self, run: RunRecord) -> None:
        """Count a further run."""
        kind, names, members = self._space(run)
        if kind == "integers" and members is not None:
            self._integers.setdefault(names, Levels()).add(self._cost(run), members)
        elif kind == "names":
            self._names.setdefault(names, []).append(run)
        else:
            self._everywhere += self._cost(run)

    @property
    def most(self) -> Fraction:
        """What the most heavily used row has spent."""
        return self._everywhere + sum((levels.most for levels in self._integers.values()), Fraction(0)) + self._cliques("")

    def covered(self, run: RunRecord | Charged, members: IntegerSet | None) -> Fraction:
        """What the most heavily used of this further run's rows has spent before it; `members`: its rows, where they are integers."""
        if run.rows is None or (run.rows["kind"] == "integers" and members is None):
            return self.most
        kind, names = run.rows["kind"], str(run.rows["names"])
        total = self._everywhere + self._cliques(names if kind == "names" else "", run)
        for space, levels in self._integers.items():
            same = kind == "integers" and space == names
            total += levels.covered(members) if same and members is not None else levels.most
        return total

    def by_rows(self) -> list[tuple[Fraction, int | None]]:
        """(spent, number of rows), least first, of the rows known by integers; where none are, what bounds all rows, without a number."""
        if len(self._integers) != 1:
            return [(self.most, None)]
        ((_, levels),) = self._integers.items()
        others = self.most - levels.most
        return [(spent + others, len(members)) for spent, members in sorted(levels.items())]

    def _space(self, run: RunRecord) -> tuple[str, str, IntegerSet | None]:
        if run.rows is None:
            return "", "", None
        kind = str(run.rows["kind"])
        return kind, str(run.rows["names"]), self._set_of(run) if kind == "integers" else None

    def _cliques(self, names: str, beside: RunRecord | Charged | None = None) -> Fraction:
        """The heaviest cliques of all spaces of names; in the space `names`, of the runs that may share a row with `beside`."""
        total = Fraction(0)
        for space, runs in self._names.items():
            mine = beside is not None and beside.rows is not None and beside.rows["kind"] == "names" and space == names
            near = [run for run in runs if not (mine and beside is not None and disjoint(run, beside))]
            total += heaviest_clique(near, self._cost)
        return total


class Levels:
    """A partition of integer rows by what they have spent."""

    def __init__(self) -> None:
        self._levels: dict[Fraction, IntegerSet] = {}

    @property
    def most(self) -> Fraction:
        """The highest level."""
        return max(self._levels, default=Fraction(0))

    def items(self) -> Iterable[tuple[Fraction, IntegerSet]]:
        """The levels with their rows; none is empty."""
        return self._levels.items()

    def covered(self, members: IntegerSet) -> Fraction:
        """The highest level that these rows are in."""
        for spent in sorted(self._levels, reverse=True):
            if self._levels[spent].shared(members):
                return spent
        return Fraction(0)

    def add(self, cost: Fraction, members: IntegerSet) -> None:
        """These rows spend this much more."""
        made: dict[Fraction, IntegerSet] = {}
        rest = members
        for spent, rows in self._levels.items():
            both = rows & members
            _join(made, spent + cost, both)
            _join(made, spent, rows - both if len(both) else rows)
            rest = rest - both if len(both) else rest
        _join(made, cost, rest)
        self._levels = made


def _join(levels: dict[Fraction, IntegerSet], spent: Fraction, rows: IntegerSet) -> None:
    if len(rows):
        levels[spent] = levels[spent] | rows if spent in levels else rows


def disjoint(one: RunRecord, other: RunRecord | Charged) -> bool:
    """Whether it was shown, when the later of two was charged, that they share no row."""
    return one.run_id in other.disjoint or other.run_id in one.disjoint


def heaviest_clique(runs: list[RunRecord], cost: Callable[[RunRecord], Fraction] = epsilon_of) -> Fraction:
    """The largest sum of costs over runs of which no two are disjoint; for more than a few dozen runs, a bound above it."""
    weights = {run.run_id: cost(run) for run in runs}
    near = {run.run_id: {other.run_id for other in runs if other is not run and not disjoint(run, other)} for run in runs}
    if len(runs) > _EXACT_CLIQUE:
        return _colour_bound(weights, near)

    def search(chosen: Fraction, left: set[str], best: Fraction) -> Fraction:
        if not left:
            return max(best, chosen)
        if chosen + sum((weights[run] for run in left), Fraction(0)) <= best:
            return best
        run = max(left, key=lambda each: (len(near[each] & left), each))
        best = search(chosen + weights[run], left & near[run], best)
        return best if left <= near[run] | {run} else search(chosen, left - {run}, best)

    return search(Fraction(0), set(weights), Fraction(0))


def _colour_bound(weights: Mapping[str, Fraction], near: Mapping[str, set[str]]) -> Fraction:
    """Pairwise disjoint runs share a colour; a clique has at most one of each colour, so the heaviest of each add up to a bound."""
    colours: list[list[str]] = []
    for run in sorted(weights, key=lambda each: (-weights[each], each)):
        home = next((colour for colour in colours if not near[run] & set(colour)), None)
        if home is None:
            colours.append([run])
        else:
            home.append(run)
    return sum((weights[colour[0]] for colour in colours), Fraction(0))
