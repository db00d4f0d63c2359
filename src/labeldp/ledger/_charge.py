# SPDX-License-Identifier: Apache-2.0
"""One charge: what its entry says, whether budget, unit and rows allow it, and what counts against whom.

All of it is decided while nobody else can write.
"""

import json
import logging
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

from labeldp import _validate
from labeldp._rounding import exact, float_down, float_up
from labeldp.errors import BudgetExceeded, InvalidInput, LedgerError, RowsOverlap
from labeldp.ledger._database import Row, RunRecord, Session, Store, charged, name, run_id_of, text
from labeldp.ledger._rowset import IdSet, NumberSet, Role, RowSet, RowSets, Space, overlaps
from labeldp.ledger._run_store import CHARGE, RunStore, unknown_runs
from labeldp.receipt import Receipt

_log = logging.getLogger("labeldp")


class SameRequest(LedgerError):
    """Another process has charged this very request since the caller looked: nothing was charged.

    Attributes
    ----------
    run_id : str
        The other one's.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Expected one process to make this request, but another one has just charged it (run {run_id}). Nothing more was charged. Run "
            "the same again: it picks that run up, or returns its answer."
        )
        self.run_id = run_id


@dataclass(frozen=True)
class Spending:
    """What one run spends, as a charge's entry keeps it.

    Parameters
    ----------
    dataset, column : str
        What the labels are; budgets are kept for each pair.
    epsilon, delta : float
        The unit's total.
    event : mapping
        What will be done (`LabelDraw.to_dict()`); an unknown one, or one that costs more than is charged, is refused.
    identity : str
        Digest of the public facts that make this the same request as another.
    run_id : str
        32 hexadecimal digits, never charged before.
    unit : str
        "row" or the unit's column. One (dataset, column) has one unit.
    max_rows_per_unit : int
    repeatable : bool
        A crashed run may be picked up again under the same run id.
    """

    dataset: str
    column: str
    epsilon: float
    event: Mapping[str, object]
    identity: str
    run_id: str
    delta: float = 0.0
    unit: str = "row"
    max_rows_per_unit: int = 1
    repeatable: bool = True

    def body(self) -> dict[str, object]:
        """The entry's facts, each accepted only if it is good."""
        return {
            "kind": "charge",
            "dataset": name(dataset=self.dataset),
            "column": name(column=self.column),
            "unit": name(unit=self.unit),
            "max_rows_per_unit": _validate.integer(max_rows_per_unit=self.max_rows_per_unit, low=1),
            "epsilon": repr(_validate.epsilon(self.epsilon)),
            "delta": repr(_validate.fraction(delta=self.delta, zero=True)),
            "event": _checked_event(self.event, float(self.epsilon), float(self.delta), self.unit),
            "identity": name(identity=self.identity),
            "run_id": run_id_of(self.run_id),
            "repeatable": bool(self.repeatable),
        }


@dataclass(frozen=True)
class ChargeRequest:
    """What is asked of the ledger: a spending, and what decides whether it may be written.

    Attributes
    ----------
    spending : Spending
    rows, overlap, known
        As in `Ledger.charge`.
    budget : float or None
        What the caller declares.
    total : float or None
        The budget where nobody has set one; None: what is spent now.
    where : str
        The ledger, for messages.
    """

    spending: Spending
    rows: RowSet | None
    overlap: Literal["charge", "refuse"]
    budget: float | None
    total: float | None
    known: frozenset[str] | None
    where: str

    def __post_init__(self) -> None:
        if self.overlap not in ("charge", "refuse"):
            raise InvalidInput(f"Expected overlap to be 'charge' or 'refuse', got overlap={self.overlap!r}.")


def charge(store: Store, sets: RowSets, request: ChargeRequest) -> Receipt:
    """Write the row set, then the charge, or neither."""
    run_id, rows = request.spending.run_id, request.rows
    body = request.spending.body()
    # in this order: the row set, what a lost ledger is restored from, the charge; so no charge is without what limits or proves it
    if rows is not None:
        sets.keep(run_id, rows)
        body |= {"rows": rows.facts()}
    folder = sets.folder / run_id
    try:
        if not store.exists():  # before it is made: a new ledger knows none of the results beside it
            require_known(sets.folder, list, request.where)
        if folder.is_dir():
            RunStore(folder).write(CHARGE, text(body).encode())
        with store.writing() as session:
            require_known(sets.folder, session.unknown, request.where)
            row = _Decision(session, sets, request, body).append()
    except (LedgerError, BudgetExceeded):
        if folder.is_dir():
            (folder / CHARGE).unlink(missing_ok=True)
        if rows is not None:
            sets.forget(run_id)
        raise
    return charged(row).receipt


def require_known(runs_dir: Path, unknown: Callable[[Sequence[str]], Sequence[str]], where: str) -> None:
    """Refuse to charge in a ledger that is new, or older than results that lie beside it."""
    found = unknown_runs(runs_dir, unknown)
    if found:
        raise LedgerError(
            f"Expected {where} to know every run that has results in {runs_dir}, got {len(found)} that it does not ({found[0]}): it is "
            "new, or older than they are, and would count too little. Nothing was charged. Restore the ledger's newer copy, or count "
            "these runs again: `labeldp ledger adopt`, or Ledger.adopt()."
        )


class _Decision:
    """A charge that is being decided, while nobody else can write."""

    def __init__(self, session: Session, sets: RowSets, request: ChargeRequest, body: Mapping[str, object]) -> None:
        self.session, self.sets, self.request, self.body = session, sets, request, body
        self.dataset, self.column = request.spending.dataset, request.spending.column
        self.of = f"dataset {self.dataset!r}, column {self.column!r}"
        self.balance = session.balance(self.dataset, self.column)

    def append(self) -> Row:
        """The charge's entry, if it may be written."""
        run_id, known = self.request.spending.run_id, self.request.known
        if not self.session.unknown([run_id]):
            raise LedgerError(f"Expected a run id that was never charged, got {run_id}. Make one with new_run_id().")
        if known is not None:
            # two identical requests at once are one charge: the second one sees the first here
            runs = self.session.request_runs(self.dataset, self.column, self.request.spending.identity)
            if new := [run for run in runs if run not in known]:
                raise SameRequest(new[-1])
        self._check_unit()
        if self.request.overlap == "refuse":
            self._check_rows()
        return self.session.extend(self.balance, *self._budget_entry(), self.body)[-1]

    @cached_property
    def _runs(self) -> dict[str, RunRecord]:
        return self.session.history(self.dataset, self.column).runs

    def _check_unit(self) -> None:
        unit, other = self.request.spending.unit, self.balance.unit
        if other not in (None, unit):
            raise LedgerError(
                f"Expected unit {other!r} for {self.of}, as charged before in {self.request.where}; got {unit!r}. "
                "Spends of different units cannot be added: use the same unit, and call its column the same (unit_name=)."
            )

    def _check_rows(self) -> None:
        if not self.balance.runs:
            return
        found = overlaps(self.request.rows, self._runs.values(), self.sets)
        if found:
            said = "; ".join(f"{what} in run {run}" for run, what in found.items())
            raise RowsOverlap(
                f"Expected rows of {self.of} that no earlier run in {self.request.where} covers, got {said}. Nothing was charged. Leave "
                "them out, or allow it with overlap='charge'."
            )

    def _budget_entry(self) -> list[dict[str, object]]:
        """The entry that sets the budget, where there is none yet; BudgetExceeded where too little is left."""
        declared, kept, where = self.request.budget, self.balance.budget, self.request.where
        epsilon = exact(self.request.spending.epsilon)
        if kept is not None and declared is not None and kept != exact(declared):
            raise LedgerError(
                f"Expected budget {float_down(kept)!r} for {self.of}, as kept in {where}; got budget={declared!r}. "
                f"Drop it, or change the kept one {self._by_budget(declared)}."
            )
        first = epsilon if self.request.total is None else exact(self.request.total)
        budget = kept if kept is not None else first if declared is None else exact(declared)
        covered = self._covered(epsilon, budget)
        if not epsilon <= budget - covered:
            left, needed = float_down(max(budget - covered, Fraction(0))), float_up(covered + epsilon)
            said = (
                f"Expected epsilon <= {left!r}, which remains of budget {float_down(budget)!r} for {self.of} in {where}; "
                f"got epsilon={float(epsilon)!r}. Nothing was charged. Ask for less, or allow more "
            )
            raise BudgetExceeded(
                f"{said}{self._by_budget(needed)}. Other data need another name (dataset=).",
                cli=f"{said}with `{self._command(needed)}`. Other data need another name (--dataset); the default is the file's.",
            )
        if kept is not None:
            return []
        why, amount = ("first charge" if declared is None else "declared"), repr(float_down(budget))
        level = logging.INFO if declared is not None else logging.WARNING  # nobody chose this one, so it is said aloud
        said = "The budget of dataset %r, column %r is now %s (%s), kept in %s. `labeldp ledger set-budget` or set_budget changes it."
        _log.log(level, said, self.dataset, self.column, amount, why, where)
        return [{"kind": "budget", "dataset": self.dataset, "column": self.column, "budget": amount, "why": why}]

    def _covered(self, epsilon: Fraction, budget: Fraction) -> Fraction:
        """What the request's rows have spent so far; the plain sum, without a look at row sets, where already that leaves enough."""
        balance = self.balance
        if balance.total == balance.everywhere or balance.total + epsilon <= budget:
            return balance.total
        return Spend(self.sets.load, self._runs.values()).covered(self.request.rows)

    def _by_budget(self, amount: float) -> str:
        """How a budget is set, in Python and on the command line."""
        return f"with set_budget({self.dataset!r}, {self.column!r}, {amount!r}), or `{self._command(amount)}`"

    def _command(self, amount: float) -> str:
        dataset, column = shlex.quote(self.dataset), shlex.quote(self.column)
        return f"labeldp ledger set-budget --dataset {dataset} --label {column} --budget {amount!r}"


def _checked_event(event: Mapping[str, object], epsilon: float, delta: float, unit: str) -> dict[str, object]:
    known = event_of(event)
    if not (known.epsilon <= epsilon and known.delta <= delta and known.unit == unit):
        raise InvalidInput(
            f"Expected an event of at most epsilon={epsilon!r}, delta={delta!r} and unit {unit!r}; got one of epsilon={known.epsilon!r}, "
            f"delta={known.delta!r}, unit {known.unit!r}. Charge what will be done."
        )
    try:
        return dict(json.loads(text(dict(event))))
    except (TypeError, ValueError):
        raise InvalidInput("Expected an event of JSON data with finite numbers, got other types. Pass event.to_dict().") from None


# Events ----------------------------------------------------------------------------------------------------------------------------
# What is charged: JSON data, an object whose "event" names the kind, with one member for each field. Compatibility promise: what one
# release writes, every later release reads with the same meaning; later releases may add kinds and fields. An unknown kind or field is
# refused, never skipped, so that an old reader cannot report too small a cost.

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


def event_of(data: object) -> Event:
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


# Who has spent what ----------------------------------------------------------------------------------------------------------------
# What the most heavily used row has spent: the maximum over rows of the sum over the runs that cover the row, never less.
#
# Runs whose ids are of one space (kind and name) are exact, level by level. What is known of one space proves nothing about another, so the
# maxima of several spaces add; a run without a set, or with one that proves nothing, counts for every row. Where units are named, units and
# rows are counted side by side, and the larger sum holds: a column of units that changed its meaning cannot hide that rows are the same.

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
