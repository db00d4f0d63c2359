# SPDX-License-Identifier: Apache-2.0
"""One charge: what its entry says, and whether budget, unit and rows allow it; all of it decided while nobody else can write."""

import json
import logging
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Literal

from labeldp import _validate
from labeldp._rounding import exact, float_down, float_up
from labeldp.errors import BudgetExceeded, InvalidInput, LedgerError, RowsOverlap
from labeldp.ledger import _events as events
from labeldp.ledger._entries import Row, RunRecord, charged, history_of, text
from labeldp.ledger._rows import RowSets, overlaps
from labeldp.ledger._rowset import RowSet
from labeldp.ledger._run_store import CHARGE, RunStore, unknown_runs
from labeldp.ledger._session import VERSION, Session, Store
from labeldp.ledger._spend import Spend
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
        What will be done (`labeldp.ledger._events`); an unknown one, or one that costs more than is charged, is refused.
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
    body : dict
        Its checked facts.
    rows, overlap, known
        As in `Ledger.charge`.
    budget : Fraction or None
        What the caller declares.
    total : Fraction
        The budget where nobody has set one.
    """

    spending: Spending
    body: dict[str, object]
    rows: RowSet | None
    overlap: Literal["charge", "refuse"]
    budget: Fraction | None
    total: Fraction
    known: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.overlap not in ("charge", "refuse"):
            raise InvalidInput(f"Expected overlap to be 'charge' or 'refuse', got overlap={self.overlap!r}.")

    @property
    def dataset(self) -> str:
        """Its account."""
        return self.spending.dataset

    @property
    def column(self) -> str:
        """Its account."""
        return self.spending.column

    @property
    def run_id(self) -> str:
        """Its run."""
        return self.spending.run_id

    @property
    def epsilon(self) -> Fraction:
        """What it spends, as the decimal number that it shows."""
        return exact(self.spending.epsilon)


def charge(store: Store, sets: RowSets, request: ChargeRequest, where: str) -> Receipt:
    """Write the row set, then the charge, or neither."""
    if request.rows is not None:
        sets.keep(request.run_id, request.rows)
    folder = sets.folder / request.run_id
    try:
        if not store.exists():
            require_known(sets.folder, list, where)
        if folder.is_dir():
            RunStore(folder).write(CHARGE, text(request.body | _rows_of(request)).encode())
        with store.writing(opening()) as session:
            require_known(sets.folder, session.unknown, where)
            row = _Decision(session, sets, request, where).append()
    except (LedgerError, BudgetExceeded):
        if folder.is_dir():
            (folder / CHARGE).unlink(missing_ok=True)
        if request.rows is not None:
            sets.forget(request.run_id)
        raise
    return charged(row).receipt


def _rows_of(request: ChargeRequest) -> dict[str, object]:
    return {} if request.rows is None else {"rows": request.rows.facts()}


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
    """A charge that is being decided."""

    def __init__(self, session: Session, sets: RowSets, request: ChargeRequest, where: str) -> None:
        self.session, self.sets, self.request, self.where = session, sets, request, where
        self.balance = session.balance(request.dataset, request.column)
        self._read: dict[str, RunRecord] | None = None
        self.of = f"dataset {request.dataset!r}, column {request.column!r}"

    def append(self) -> Row:
        """The charge's entry, if it may be written."""
        request = self.request
        if self.session.run_rows(request.run_id):
            raise LedgerError(f"Expected a run id that was never charged, got {request.run_id}. Make one with new_run_id().")
        self._check_same()
        self._check_unit()
        if request.overlap == "refuse":
            self._check_rows()
        self._check_budget()
        row = self.session.append(request.body | _rows_of(request) | {"at": now()})
        self.balance.apply(row)
        self.session.keep(self.balance)
        return row

    @property
    def _runs(self) -> dict[str, RunRecord]:
        if self._read is None:
            self._read = history_of(self.session.rows(self.request.dataset, self.request.column)).runs
        return self._read

    def _check_same(self) -> None:
        """Two identical requests at once are one charge: the second one sees the first here, where nobody else can write."""
        request = self.request
        if request.known is not None:
            rows = self.session.request_rows(request.dataset, request.column, str(request.body["identity"]))
            new = [run_id for run_id in map(run_of, rows) if run_id not in request.known]
            if new:
                raise SameRequest(new[-1])

    def _check_unit(self) -> None:
        unit, other = self.request.body["unit"], self.balance.unit
        if other not in (None, unit):
            raise LedgerError(
                f"Expected unit {other!r} for {self.of}, as charged before in {self.where}; got {unit!r}. "
                "Spends of different units cannot be added: use the same unit, and call its column the same (unit_name=)."
            )

    def _check_rows(self) -> None:
        if not self.balance.runs:
            return
        found = overlaps(self.request.rows, self._runs.values(), self.sets)
        if found:
            said = "; ".join(f"{what} in run {run}" for run, what in found.items())
            raise RowsOverlap(
                f"Expected rows of {self.of} that no earlier run in {self.where} covers, got {said}. Nothing was charged. Leave them out, "
                "or allow it with overlap='charge'."
            )

    def _covered(self, budget: Fraction) -> Fraction:
        """What the request's rows have spent so far; the plain sum where already that leaves enough."""
        balance = self.balance
        if balance.total == balance.everywhere or balance.total + self.request.epsilon <= budget:
            return balance.total
        return Spend(self.sets.load, self._runs.values()).covered(self.request.rows)

    def _check_budget(self) -> None:
        request, stored = self.request, self.balance.budget
        if stored is not None and request.budget is not None and stored != request.budget:
            asked = float(request.budget)
            raise LedgerError(
                f"Expected budget {float_down(stored)!r} for {self.of}, as kept in {self.where}; got budget={asked!r}. "
                f"Drop it, or change the kept one {self._by_budget(asked)}."
            )
        budget = stored if stored is not None else request.budget if request.budget is not None else request.total
        covered = self._covered(budget)
        if not request.epsilon <= budget - covered:
            left, needed = float_down(max(budget - covered, Fraction(0))), float_up(covered + request.epsilon)
            said = (
                f"Expected epsilon <= {left!r}, which remains of budget {float_down(budget)!r} for {self.of} in {self.where}; "
                f"got epsilon={float(request.epsilon)!r}. Nothing was charged. Ask for less, or allow more "
            )
            raise BudgetExceeded(
                f"{said}{self._by_budget(needed)}. Other data need another name (dataset=).",
                cli=f"{said}with `{self._command(needed)}`. Other data need another name (--dataset); the default is the file's.",
            )
        if stored is None:
            self._set_budget(budget)

    def _by_budget(self, amount: float) -> str:
        """How a budget is set, in Python and on the command line."""
        return f"with set_budget({self.request.dataset!r}, {self.request.column!r}, {amount!r}), or `{self._command(amount)}`"

    def _command(self, amount: float) -> str:
        dataset, column = shlex.quote(self.request.dataset), shlex.quote(self.request.column)
        return f"labeldp ledger set-budget --dataset {dataset} --label {column} --budget {amount!r}"

    def _set_budget(self, budget: Fraction) -> None:
        request = self.request
        why, amount = ("first charge" if request.budget is None else "declared"), repr(float_down(budget))
        facts = {"kind": "budget", "dataset": request.dataset, "column": request.column, "budget": amount, "why": why, "at": now()}
        self.balance.apply(self.session.append(facts))
        level = logging.INFO if request.budget is not None else logging.WARNING  # nobody chose this one, so it is said aloud
        said = "The budget of dataset %r, column %r is now %s (%s), kept in %s. `labeldp ledger set-budget` or set_budget changes it."
        _log.log(level, said, request.dataset, request.column, amount, why, self.where)


def _checked_event(event: Mapping[str, object], epsilon: float, delta: float, unit: str) -> dict[str, object]:
    known = events.from_dict(event)
    if not (known.epsilon <= epsilon and known.delta <= delta and known.unit == unit):
        raise InvalidInput(
            f"Expected an event of at most epsilon={epsilon!r}, delta={delta!r} and unit {unit!r}; got one of epsilon={known.epsilon!r}, "
            f"delta={known.delta!r}, unit {known.unit!r}. Charge what will be done."
        )
    try:
        return dict(json.loads(text(dict(event))))
    except (TypeError, ValueError):
        raise InvalidInput("Expected an event of JSON data with finite numbers, got other types. Pass event.to_dict().") from None


def entry_facts(row: Row) -> dict[str, object]:
    """An entry for people: its facts, and its hash."""
    try:
        return {**json.loads(row[2]), "hash": row[3]}
    except (ValueError, TypeError):
        raise LedgerError(f"Expected entry {row[0]} of the ledger to be intact, got one that cannot be read. Run `verify`.") from None


def run_of(row: Row) -> str:
    """The run that an entry is about."""
    return str(entry_facts(row).get("run_id", ""))


def opening() -> dict[str, object]:
    """The first entry of a new ledger."""
    return {"kind": "open", "ledger": os.urandom(16).hex(), "format": VERSION, "at": now()}


def now() -> str:
    """For people to read; order comes from the entry's number, so a clock that goes back does no harm."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def name(**named: object) -> str:
    """A name that can be kept and shown."""
    ((what, value),) = named.items()
    if not (isinstance(value, str) and value and value.isprintable()):
        raise InvalidInput(f"Expected {what} as printable text, got {what}={_validate.shown(value)}. Give it a name.")
    return value


def run_id_of(value: object) -> str:
    """A run id, checked."""
    if not (isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value)):
        raise InvalidInput(
            f"Expected a run id of 32 hexadecimal digits, got {_validate.shown(value)}. `labeldp ledger history` lists them."
        )
    return value
