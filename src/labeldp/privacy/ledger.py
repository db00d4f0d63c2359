# SPDX-License-Identifier: Apache-2.0
"""The durable record of what was spent: charge before anything is drawn, settle when the result is public.

It holds public facts only: names, laws, epsilons, digests of public things. Never a label, a digest of one, or a secret.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from sqlite3 import Connection

import platformdirs

from labeldp import _validate
from labeldp._rounding import exact, float_up
from labeldp.errors import BudgetExceeded, InvalidInput, LedgerError
from labeldp.privacy import events, ledger_store
from labeldp.privacy.ledger_entries import Account, RunRecord, account_of, problems, rounded_down, text
from labeldp.privacy.secrets import KeySource
from labeldp.receipt import Receipt

__all__ = ["Ledger", "RunRecord", "default_ledger"]

_log = logging.getLogger("labeldp")


@dataclass(frozen=True)
class Ledger:
    """A ledger file, as a value: it holds no connection, so it can be copied, pickled and used by several processes.

    Parameters
    ----------
    location : str or Path
        The file; it is made, readable by its owner only, at the first charge. Keep it on a local disk, not on a network file system.
    budget : float, optional
        Budget that a (dataset, column) gets at its first charge. Without it, the first charge sets the budget to its own epsilon, so
        that anything further must be allowed by name with `set_budget`.
    key : str, Path, KeySource or function, optional
        Where the release secret is, which every run's secret then needs besides what lies in the run's folder: "file:PATH", "env:NAME",
        "hook:package.module:function", or a function that can be imported by its name. The ledger never holds the secret itself.

    Notes
    -----
    Guarantee: what `charge` returned is on disk, also after power loss; no two charges, of any processes, together exceed a budget.
    Epsilons count as the decimal number they are written as: three charges of 0.1 fit into 0.3, exactly; there is no tolerance.
    Cost: one synchronised write a call, about 4 ms on an ordinary disk.
    """

    location: str | Path
    budget: float | None = None
    key: KeySource | str | Path | Callable[[], bytes] | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.location, (str, Path)) and str(self.location).strip()) or str(self.location).startswith(":"):
            raise InvalidInput(f"Expected the path of a file, got location={self.location!r}. Pass for example 'privacy/ledger.sqlite'.")
        object.__setattr__(self, "location", Path(self.location).expanduser().absolute())
        if self.budget is not None:
            object.__setattr__(self, "budget", _validate.positive(budget=self.budget, fix="Pass the total epsilon to allow."))
        if self.key is not None:
            object.__setattr__(self, "key", KeySource.of(self.key))

    @property
    def key_source(self) -> KeySource | None:
        """Where the release secret is; None where the runs' folders hold all of their secrets."""
        return None if self.key is None else KeySource.of(self.key)

    # Writing ----------------------------------------------------------------------------------------------------------------------

    def charge(
        self,
        *,
        dataset: str,
        column: str,
        unit: str = "row",
        max_rows_per_unit: int = 1,
        epsilon: float,
        delta: float = 0.0,
        event: Mapping[str, object],
        identity: str,
        run_id: str,
        repeatable: bool = True,
    ) -> Receipt:
        """Write down a spend before it happens.

        Parameters
        ----------
        dataset, column : str
            What the labels are; budgets are kept for each pair.
        unit : str
            "row" or the unit's column. One (dataset, column) has one unit.
        max_rows_per_unit : int
        epsilon, delta : float
            The unit's total.
        event : mapping
            What will be done (`labeldp.privacy.events`); an unknown one, or one that costs more than is charged, is refused.
        identity : str
            Digest of the public facts that make this the same request as another.
        run_id : str
            32 hexadecimal digits, never charged before.
        repeatable : bool
            A crashed run may be picked up again under the same run id.

        Returns
        -------
        Receipt
            On disk when this returns. BudgetExceeded or LedgerError: nothing was written.
        """
        body = {
            "kind": "charge",
            "dataset": _name(dataset=dataset),
            "column": _name(column=column),
            "unit": _name(unit=unit),
            "max_rows_per_unit": _validate.integer(max_rows_per_unit=max_rows_per_unit, low=1),
            "epsilon": repr(_validate.epsilon(epsilon)),
            "delta": repr(_validate.fraction(delta=delta, zero=True)),
            "event": _checked_event(event, float(epsilon), float(delta), unit),
            "identity": _name(identity=identity),
            "run_id": _run_id(run_id),
            "repeatable": bool(repeatable),
        }
        with ledger_store.writing(self._path, _opening()) as connection:
            if ledger_store.charge_of(connection, run_id) is not None:
                raise LedgerError(f"Expected a run id that was never charged, got {run_id}. Make one with new_run_id().")
            account = _account(connection, dataset, column)
            self._check_unit(account, dataset, column, unit)
            self._check_budget(connection, account, dataset, column, float(epsilon))
            ledger_store.append(connection, body | {"at": _now()})
            return _account(connection, dataset, column).runs[run_id].receipt

    def settle(self, run_id: str, artefact: str) -> None:
        """Write down that a run's result is complete; `artefact` is the digest of the public result. Again with the same: no effect."""
        self._close(run_id, "settle", {"artefact": _name(artefact=artefact)})

    def abandon(self, run_id: str, reason: str) -> None:
        """Write down that a run will not be finished. Its epsilon stays spent: words may have been drawn."""
        self._close(run_id, "abandon", {"reason": _name(reason=reason)})

    def set_budget(self, dataset: str, column: str, budget: float) -> None:
        """Set the budget of a (dataset, column), higher or lower. The change is part of the history."""
        facts = {"dataset": _name(dataset=dataset), "column": _name(column=column)}
        amount = repr(_validate.positive(budget=budget, fix="Pass the total epsilon to allow."))
        with ledger_store.writing(self._path, _opening()) as connection:
            if _account(connection, dataset, column).budget != Fraction(amount):
                ledger_store.append(connection, {"kind": "budget", **facts, "budget": amount, "why": "set", "at": _now()})

    def _check_unit(self, account: Account, dataset: str, column: str, unit: str) -> None:
        other = next((run.unit for run in account.runs.values() if run.unit != unit), None)
        if other is not None:
            raise LedgerError(
                f"Expected unit {other!r} for dataset {dataset!r}, column {column!r}, as charged before in {self._path}; got {unit!r}. "
                "Spends of different units cannot be added; use the same unit."
            )

    def _check_budget(self, connection: Connection, account: Account, dataset: str, column: str, epsilon: float) -> None:
        stored, asked = account.budget, None if self.budget is None else exact(self.budget)
        if stored is not None and asked is not None and stored != asked:
            raise LedgerError(
                f"Expected budget {rounded_down(stored)!r} for dataset {dataset!r}, column {column!r}, as kept in {self._path}; got "
                f"budget={self.budget!r}. Drop it, or change the kept one with set_budget({dataset!r}, {column!r}, {self.budget!r})."
            )
        budget = stored if stored is not None else asked if asked is not None else exact(epsilon)
        left = budget - account.spent
        if not exact(epsilon) <= left:
            needed = float_up(account.spent + exact(epsilon))
            raise BudgetExceeded(
                f"Expected epsilon <= {rounded_down(max(left, Fraction(0)))!r}, which remains of budget {rounded_down(budget)!r} for "
                f"dataset {dataset!r}, column {column!r} in {self._path}; got epsilon={epsilon!r}. Nothing was charged. Ask for less, or "
                f"allow more with set_budget({dataset!r}, {column!r}, {needed!r})."
            )
        if stored is None:
            why = "first charge" if asked is None else "declared"
            amount = repr(rounded_down(budget))
            facts = {"kind": "budget", "dataset": dataset, "column": column, "budget": amount, "why": why, "at": _now()}
            ledger_store.append(connection, facts)
            level = logging.INFO if asked is not None else logging.WARNING  # nobody chose this one, so it is said aloud
            text = "The budget of dataset %r, column %r is now %s (%s), kept in %s. `labeldp ledger set-budget` or set_budget changes it."
            _log.log(level, text, dataset, column, amount, why, self._path)

    def _close(self, run_id: str, kind: str, facts: dict[str, object]) -> None:
        state = {"settle": "settled", "abandon": "abandoned"}[kind]
        with ledger_store.writing(self._path, _opening()) as connection:
            found = ledger_store.charge_of(connection, _run_id(run_id))
            if found is None:
                raise LedgerError(f"Expected a charged run to {kind}, got run id {run_id}, which {self._path} does not know.")
            run = _account(connection, *found).runs[run_id]
            if run.state == state and facts.get("artefact", run.artefact) == run.artefact:
                return
            if run.state != "charged":
                raise LedgerError(f"Expected run {run_id} to be charged, got one that is {run.state} already; it cannot be {state}.")
            names = {"run_id": run_id, "dataset": run.dataset, "column": run.column}
            ledger_store.append(connection, {"kind": kind, **names, **facts, "at": _now()})

    # Reading ----------------------------------------------------------------------------------------------------------------------

    def find(self, dataset: str, column: str, identity: str) -> RunRecord | None:
        """The latest run of this request that is settled, or charged and can be picked up again."""
        for run in reversed(self.runs(dataset, column)):
            if run.identity == identity and (run.state == "settled" or (run.state == "charged" and run.repeatable)):
                return run
        return None

    def runs(self, dataset: str | None = None, column: str | None = None) -> list[RunRecord]:
        """The runs in the order of their charges."""
        if not ledger_store.exists(self._path):
            return []
        with ledger_store.reading(self._path) as connection:
            return list(account_of(row for row in ledger_store.rows(connection, dataset, column) if row[0] > 1).runs.values())

    def spent(self, dataset: str, column: str) -> float:
        """Epsilon spent on a (dataset, column): the sum over all its runs, whatever became of them; added exactly, rounded up."""
        return float_up(self._read(dataset, column).spent)

    def remaining(self, dataset: str, column: str) -> float:
        """Epsilon that is left, rounded down, at least 0; infinite where neither a charge nor `budget` has set a budget."""
        account = self._read(dataset, column)
        budget = account.budget if account.budget is not None else None if self.budget is None else exact(self.budget)
        return float("inf") if budget is None else rounded_down(max(budget - account.spent, Fraction(0)))

    def budget_of(self, dataset: str, column: str) -> float | None:
        """The budget kept for a (dataset, column); None before its first charge. The first charge without one sets its own epsilon."""
        budget = self._read(dataset, column).budget
        return None if budget is None else rounded_down(budget)

    def history(self) -> list[dict[str, object]]:
        """Every entry from the first: its facts, and its hash under "hash"."""
        if not ledger_store.exists(self._path):
            return []
        with ledger_store.reading(self._path) as connection:
            return [json.loads(body) | {"hash": head} for _, _, body, head in ledger_store.rows(connection)]

    def verify(self, receipts: Iterable[Receipt] = ()) -> list[str]:
        """What does not add up, one sentence each; empty if the history is whole.

        Parameters
        ----------
        receipts : iterable of Receipt
            Receipts that were kept elsewhere. Without one, a history whose end was cut off looks whole.
        """
        if not ledger_store.exists(self._path):
            raise LedgerError(f"Expected a ledger at {self._path}, got no such file. Check the path.")
        with ledger_store.reading(self._path) as connection:
            return problems(ledger_store.rows(connection), receipts)

    def run_dir(self, run_id: str) -> Path:
        """Private folder of a run, beside the ledger; who charges makes it, before the charge."""
        return self._path.with_name(f"{self._path.name}.runs") / _run_id(run_id)

    @property
    def _path(self) -> Path:
        return Path(self.location)

    def _read(self, dataset: str, column: str) -> Account:
        names = _name(dataset=dataset), _name(column=column)
        if not ledger_store.exists(self._path):
            return Account()
        with ledger_store.reading(self._path) as connection:
            return _account(connection, *names)


def default_ledger() -> Ledger:
    """The user's own ledger: the file in the environment variable LABELDP_LEDGER, else one in the user's data folder.

    LABELDP_KEY says where its release secret is, if there is one.
    """
    location = os.environ.get("LABELDP_LEDGER") or platformdirs.user_data_path("labeldp") / "ledger.sqlite"
    return Ledger(location, key=os.environ.get("LABELDP_KEY") or None)


def _account(connection: Connection, dataset: str, column: str) -> Account:
    return account_of(ledger_store.rows(connection, dataset, column))


def _opening() -> dict[str, object]:
    return {"kind": "open", "ledger": os.urandom(16).hex(), "format": ledger_store.VERSION, "at": _now()}


def _now() -> str:
    """For people to read; order comes from the entry's number, so a clock that goes back does no harm."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _name(**named: object) -> str:
    ((name, value),) = named.items()
    if not (isinstance(value, str) and value and value.isprintable()):
        raise InvalidInput(f"Expected {name} as printable text, got {name}={value!r}. Give it a name.")
    return value


def _run_id(value: object) -> str:
    if not (isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value)):
        raise InvalidInput(f"Expected a run id of 32 hexadecimal digits, got {value!r}. Make one with new_run_id().")
    return value


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
