# SPDX-License-Identifier: Apache-2.0
"""The ledger: the durable record of what was spent. Charge before anything is drawn, settle when the result is public.

It holds public facts only: names, laws, epsilons, digests of public things. Never a label, a digest of one, or a secret.
"""

import logging
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Literal

import platformdirs

from labeldp import _validate
from labeldp._validate import exact, float_down, float_up
from labeldp.errors import BudgetExceeded, InvalidInput, LedgerError, RowsOverlap
from labeldp.evidence import Block
from labeldp.laws._exact import Array
from labeldp.ledger import _check as ledger_check
from labeldp.ledger._check import Witnesses
from labeldp.ledger._database import (
    File,
    History,
    LedgerUrl,
    Part,
    RunRecord,
    Session,
    Spending,
    SqliteStore,
    Store,
    canonical_text,
    checked_name,
    entry_facts,
    location_of,
    parts_digest,
    run_id_of,
    run_of_entry,
    runs_folder,
)
from labeldp.ledger._rowset import RowSet, RowSetBuilder, RowSets, Spend, delta_of, overlaps
from labeldp.ledger._run_store import CHARGE, RunStore, unknown_runs
from labeldp.noise._secrets import KeySource
from labeldp.receipt import Receipt

_log = logging.getLogger("labeldp")

__all__ = ["Ledger", "LedgerUrl", "Part", "RunRecord", "SameRequest", "Spending", "as_ledger", "default_ledger", "ledger_of"]


@dataclass(frozen=True)
class Ledger:
    """A ledger, in a file or in PostgreSQL, as a value: it holds no connection, so it can be copied, pickled and used by several processes.

    Parameters
    ----------
    location : str or Path
        The file; it is made, readable by its owner only, at the first charge. It must lie on a local disk. Or, for a team, the URL of a
        PostgreSQL database: "postgresql://USER@HOST/DATABASE" (`pip install labeldp[postgres]`); its password is never shown or
        pickled.
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
    Cost: one synchronised write a call, about 4 ms on an ordinary disk, however long the history is.
    """

    location: str | Path | LedgerUrl
    budget: float | None = None
    key: KeySource | str | Path | Callable[[], bytes] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "location", location_of(self.location))
        if self.budget is not None:
            object.__setattr__(self, "budget", _validate.positive(budget=self.budget, fix="Pass the total epsilon to allow."))
        if self.key is not None:
            object.__setattr__(self, "key", KeySource.of(self.key))

    @property
    def key_source(self) -> KeySource | None:
        """Where the release secret is; None where the runs' folders hold their whole secrets."""
        return None if self.key is None else KeySource.of(self.key)

    # Writing ----------------------------------------------------------------------------------------------------------------------

    def charge(
        self,
        spending: Spending,
        *,
        rows: RowSet | None = None,
        overlap: Literal["charge", "refuse"] = "charge",
        total: float | None = None,
        known: Collection[str] | None = None,
    ) -> Receipt:
        """Write down what a run spends, before anything is drawn.

        Parameters
        ----------
        spending : Spending
        rows : RowSet, optional
            The rows, or units, of the run: it then adds to earlier runs only where they share rows. None: it adds to every run.
        overlap : {"charge", "refuse"}
            Whether rows of an earlier run may be charged again.
        total : float, optional
            What becomes the budget if none is set: epsilon of this charge and of those that follow it. None: of this charge alone.
        known : collection of run ids, optional
            The runs of this identity that the caller knows: where another has been charged meanwhile, nothing is (SameRequest).

        Returns
        -------
        Receipt
            The entry and the row set are on disk when this returns.

        Raises
        ------
        BudgetExceeded, RowsOverlap, LedgerError
            Nothing was written.
        """
        if overlap not in ("charge", "refuse"):
            raise InvalidInput(f"Expected overlap to be 'charge' or 'refuse', got overlap={overlap!r}.")
        body, run_id, sets, store = spending.body(), spending.run_id, self._sets, self._store
        # The order of writes: the row set, the file that a lost ledger is restored from, the charge. If the process dies in between, files
        # may lie there without a charge, never a charge without its files; nothing was drawn for them, and `repair` removes them.
        if rows is not None:
            sets.keep(run_id, rows)
            body |= {"rows": rows.facts()}
        folder = sets.folder / run_id
        try:
            if not store.exists():  # asked before it is made: a new ledger knows none of the results beside it
                self._require_known(lambda run_ids: run_ids)
            if folder.is_dir():  # a caller without a folder, as a test has, loses only what `adopt` would read
                RunStore(folder).write(CHARGE, canonical_text(body).encode())
            with store.writing() as session:
                # all that follows is decided while nobody else can write, on what nobody can change before the entry is there
                self._require_known(session.unknown)
                decision = _Decision(session, self, spending, rows)
                decision.check_new(known)
                decision.check_unit()
                if overlap == "refuse":
                    decision.check_rows()
                budget = decision.budget_entry(total)
                row = session.extend(decision.balance, *([] if budget is None else [budget]), body)[-1]
        except (LedgerError, BudgetExceeded):
            if folder.is_dir():
                (folder / CHARGE).unlink(missing_ok=True)
            if rows is not None:
                sets.forget(run_id)
            raise
        if budget is not None:
            decision.log_budget(budget)
        return run_of_entry(entry_facts(row), row.hash).receipt

    def intend(self, run_id: str, parts: Iterable[File], drawn: Mapping[str, str] | None = None) -> None:
        """Announce the parts of a run, in order: files of its result before any of them gets its final name, or rows that stages claim.

        Again with the same: no effect. With others: they take the place of the earlier ones, unless the run is settled or abandoned.
        `drawn`: for each stage of files the digest of what was drawn, which a copy in another format or order has, too.
        """
        listed = [Part(number, part.name, part.rows, part.sha256) for number, part in enumerate(parts)]
        facts: dict[str, object] = {"count": len(listed), "digest": parts_digest(listed)}
        with self._store.writing() as session:
            history, run = self._run(session, run_id, "announce parts of")
            if history.parts.get(run_id) == (facts["count"], facts["digest"]):
                return
            if run.state != "charged":
                raise LedgerError(
                    f"Expected run {run_id} to be charged, got one that is {run.state} already; its parts stay what they are."
                )
            # the table holds the parts, the chain their digest: changing the table is seen, and entries stay short
            session.replace_parts(run_id, listed)
            names = {"run_id": run_id, "dataset": run.dataset, "column": run.column}
            session.append({"kind": "parts", **names, **facts, **({"drawn": dict(drawn)} if drawn else {})})

    def settle(self, run_id: str, artefact: str) -> None:
        """Settle a run: its result is complete, and `artefact` is the public result's digest. Again with the same: no effect."""
        self._close(run_id, "settle", {"artefact": checked_name(artefact=artefact)})

    def abandon(self, run_id: str, reason: str) -> None:
        """Give a run up: it will not be finished, and its half of the secret and its pin are destroyed.

        Its epsilon stays spent: words may have been drawn.
        """
        self._close(run_id, "abandon", {"reason": checked_name(reason=reason)})
        RunStore(self.run_dir(run_id)).forget_secret()

    def adopt(self, *, dataset: str | None = None, column: str | None = None, epsilon: float | None = None) -> list[dict[str, object]]:
        """Count runs again that have results beside the ledger and that it does not know, because it was set back or lost.

        What a run's folder still says of it (its charge, its row set, its receipt) is written down again; a run whose row set is gone
        counts for every row. Nothing that the ledger knows is changed, so nothing is ever counted less; budgets stay what they are.

        Parameters
        ----------
        dataset, column, epsilon : optional, together
            For runs whose folders say nothing: what each of them has spent.

        Returns
        -------
        list of facts, one for each run: run_id, dataset, column, unit, epsilon, state, rows (None: every row).

        Raises
        ------
        LedgerError
            Some folder says nothing, and neither was it said; nothing was written.
        """
        said = ledger_check.stated(dataset, column, epsilon)
        with self._store.writing() as session:
            return ledger_check.adopt(session, self.runs_dir, said, str(self.location))

    def set_budget(self, dataset: str, column: str, budget: float) -> None:
        """Set the budget of a (dataset, column), higher or lower; the change stays in the history."""
        facts = {"dataset": checked_name(dataset=dataset), "column": checked_name(column=column)}
        amount = repr(_validate.positive(budget=budget, fix="Pass the total epsilon to allow."))
        with self._store.writing() as session:
            balance = session.balance(dataset, column)
            if balance.budget != Fraction(amount):
                session.extend(balance, {"kind": "budget", **facts, "budget": amount, "why": "set"})

    def _require_known(self, unknown: Callable[[Sequence[str]], Sequence[str]]) -> None:
        """Refuse to charge in a ledger that is new, or older than results that lie beside it."""
        found = unknown_runs(self.runs_dir, unknown)
        if found:
            raise LedgerError(
                f"Expected {self.location} to know every run that has results in {self.runs_dir}, got {len(found)} that it does not "
                f"({found[0]}): it is new, or older than they are, and would count too little. Nothing was charged. Restore the ledger's "
                "newer copy, or count these runs again: `labeldp ledger adopt`, or Ledger.adopt()."
            )

    def _close(self, run_id: str, kind: str, facts: dict[str, object]) -> None:
        """Settle or abandon a run, once; a process that died after the entry may do it again."""
        state = {"settle": "settled", "abandon": "abandoned"}[kind]
        with self._store.writing() as session:
            _, run = self._run(session, run_id, kind)
            same_artefact = facts.get("artefact", run.artefact) == run.artefact  # who abandons a run names none
            if run.state == state and same_artefact:
                return
            if run.state != "charged":
                raise LedgerError(f"Expected run {run_id} to be charged, got one that is {run.state} already; it cannot be {state}.")
            names = {"run_id": run_id, "dataset": run.dataset, "column": run.column}
            session.append({"kind": kind, **names, **facts})

    def _run(self, session: Session, run_id: str, what: str) -> tuple[History, RunRecord]:
        """Read the entries of a run and its record; LedgerError, which says what it was wanted for, where it is unknown."""
        history = session.history_of_run(run_id_of(run_id))
        if run_id not in history.runs:
            raise LedgerError(f"Expected a charged run to {what}, got run id {run_id}, which {self.location} does not know.")
        return history, history.runs[run_id]

    # Reading ----------------------------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Tell whether anything was ever written; a place that cannot be looked into is an error."""
        return self._store.exists()

    def find(self, dataset: str, column: str, identity: str) -> RunRecord | None:
        """Find the latest run of this request that is settled, or charged and can be picked up again."""
        with self._store.reading() as session:
            if session is None:
                return None
            for run_id in reversed(session.request_runs(dataset, column, identity)):
                _, run = self._run(session, run_id, "find")
                if run.state == "settled" or (run.state == "charged" and run.repeatable):
                    return run
        return None

    def runs(self, dataset: str | None = None, column: str | None = None) -> list[RunRecord]:
        """List the runs, of a data set, a column or both, in the order of their charges."""
        with self._store.reading() as session:
            return [] if session is None else list(session.history(dataset, column).runs.values())

    def run(self, run_id: str) -> RunRecord | None:
        """Look a run up; None where this ledger does not know it."""
        with self._store.reading() as session:
            return None if session is None else session.history_of_run(run_id_of(run_id)).runs.get(run_id)

    def looked_up(self, receipt: Receipt) -> Receipt:
        """Look a receipt up: it comes back as `recorded` if and only if its charge is in this ledger.

        Raises
        ------
        LedgerError
            The ledger knows the run, and charged something else for it.
        """
        run = self.run(receipt.run_id)
        if run is None:
            return replace(receipt, recorded=False)
        if run.adopted:  # its first charge is lost with the old history: only what was spent can be compared
            receipt = replace(receipt, ledger_head=run.receipt.ledger_head, charged_at=run.receipt.charged_at)
        same = canonical_text(receipt.event) == canonical_text(run.event)
        if not same or replace(receipt, recorded=True, secure=run.receipt.secure) != run.receipt:
            raise LedgerError(
                f"Expected the receipt of run {receipt.run_id} as {self.location} has it, got another one, changed after the charge. "
                "Restore the manifest or the table that it came from."
            )
        return receipt

    def check_drawn(self, block: Block, ids: Array) -> None:
        """Compare draws with what was charged for and what the run's folder, where it is beside this ledger, has kept of them.

        Nothing is checked for a run that this ledger does not know: `looked_up` tells which those are.

        Parameters
        ----------
        block : Block
        ids : (m,) or (m, columns) array
            Of its draws.

        Raises
        ------
        LedgerError
            The law is none that was charged, or ids, outputs or side are not what was drawn; or what was kept was changed.
        """
        run = self.run(block.receipt.run_id)
        if run is not None:
            ledger_check.check_drawn(run, RunStore(self.run_dir(run.run_id)), block, ids)

    def spent(self, dataset: str, column: str) -> float:
        """Epsilon that the most used row, or unit, of a (dataset, column) has spent; added exactly, rounded up.

        0.0 where nothing was charged, and so for a misspelt name, too: `runs()` and `labeldp ledger spent` say which names there are.
        Runs whose row sets show that they share no row do not add; all others do, whatever became of them.
        """
        return float_up(self._spend(self._read(dataset, column)).most)

    def spent_delta(self, dataset: str, column: str) -> float:
        """Delta spent on a (dataset, column), as `spent` adds epsilons; it has no budget. 0 where no noise needed one.

        Keep it far below one over the number of rows: it is the probability with which epsilon may not hold.
        """
        runs = [run for run in self._read(dataset, column).runs.values() if run.delta]
        return float_up(Spend(self._sets.load, runs, delta_of).most)

    def spent_by_rows(self, dataset: str, column: str) -> list[tuple[float, int | None]]:
        """(epsilon, number of rows, or units) for each amount that was spent on some, least first.

        Where not all runs have ids of one kind and name, one bound for all rows, with None for their number.
        """
        return [(float_up(spent), rows) for spent, rows in self._spend(self._read(dataset, column)).by_rows()]

    def remaining(self, dataset: str, column: str, rows: RowSet | None = None) -> float:
        """Epsilon that is left, rounded down, at least 0; infinite where neither a charge nor `budget` has set a budget.

        Parameters
        ----------
        dataset, column : str
        rows : RowSet, optional
            For which rows, or units; None: for every row.
        """
        history = self._read(dataset, column)
        budget = history.budget
        if budget is None and self.budget is not None:
            budget = exact(self.budget)
        if budget is None:
            return float("inf")
        spend = self._spend(history)
        spent = spend.most if rows is None else spend.covered(rows)
        return float_down(max(budget - spent, Fraction(0)))

    def budget_of(self, dataset: str, column: str) -> float | None:
        """The budget kept for a (dataset, column); None before its first charge, which without one sets its own epsilon."""
        budget = self._read(dataset, column).budget
        return None if budget is None else float_down(budget)

    def parts(self, run_id: str) -> list[Part]:
        """List what `intend` announced for a run, in order."""
        with self._store.reading() as session:
            return [] if session is None else [part for _, part in session.parts(run_id_of(run_id))]

    def history(self) -> list[dict[str, object]]:
        """List every entry from the first: its facts, and its hash under "hash"."""
        with self._store.reading() as session:
            return [] if session is None else [entry_facts(row) for row in session.rows()]

    def head(self) -> tuple[int, str]:
        """Number and hash of the last entry: they stand for the whole history, and kept elsewhere they are an anchor for `verify`."""
        with self._store.reading() as session:
            last = self._present(session).last()
        return (0, "") if last is None else (last.seq, last.hash)

    def verify(
        self, receipts: Iterable[Receipt] = (), *, anchors: Iterable[tuple[int, str]] = (), outputs: Mapping[str, str] | None = None
    ) -> list[str]:
        """Check the whole history, and say what does not add up, one sentence each; empty if it is whole.

        Parameters
        ----------
        receipts : iterable of Receipt
            Receipts that were kept elsewhere. Without one, or an anchor, a history whose end was cut off looks whole.
        anchors : iterable of (number, hash)
            Heads that were kept elsewhere.
        outputs : mapping of run id to str, optional
            Digests of outputs, as their manifests name them: each must be what its run was settled with.
        """
        kept = Witnesses(list(receipts), dict(outputs or {}), list(anchors))
        with self._store.reading() as session:
            whole = self._present(session)
            return ledger_check.problems(whole.rows(), self._sets, whole.parts(), whole.balances(), kept)

    # Rows and folders --------------------------------------------------------------------------------------------------------------

    def row_set_builder(self, id_name: str = "id", unit_name: str = "unit", *, integers: bool = False) -> RowSetBuilder:
        """Make an empty builder of a run's row set: picklable, so that workers fill copies.

        Parameters
        ----------
        id_name, unit_name : str
            What the columns are called: runs whose ids are named differently always add.
        integers : bool
            The ids will be columns of integers; for others the builder takes this ledger's key along.
        """
        return RowSetBuilder(id_name, unit_name, secret=None if integers else self._sets.secret)

    @property
    def runs_dir(self) -> Path:
        """Private folder of all runs: beside a ledger file; for a database LABELDP_RUNS, else one in the user's data folder."""
        return runs_folder(self._place)

    def run_dir(self, run_id: str) -> Path:
        """Private folder of a run; who charges makes it, before the charge."""
        return self.runs_dir / run_id_of(run_id)

    @property
    def _place(self) -> Path | LedgerUrl:
        assert not isinstance(self.location, str)  # __post_init__ has made it a path or a URL
        return self.location

    @property
    def _sets(self) -> RowSets:
        return RowSets(self.runs_dir)

    @property
    def _store(self) -> Store:
        place = self._place
        if isinstance(place, Path):
            return SqliteStore(place)
        from labeldp.ledger._postgres import PostgresStore  # only teams have its driver installed

        return PostgresStore(place)

    def _present(self, session: Session | None) -> Session:
        if session is None:
            lack = "no such file" if isinstance(self.location, Path) else "a database with no ledger in it"
            raise LedgerError(f"Expected a ledger at {self.location}, got {lack}. Check where it is.")
        return session

    def _spend(self, history: History) -> Spend:
        return Spend(self._sets.load, history.runs.values())

    def _read(self, dataset: str, column: str) -> History:
        names = checked_name(dataset=dataset), checked_name(column=column)
        with self._store.reading() as session:
            return History() if session is None else session.history(*names)


def default_ledger() -> Ledger:
    """Give the user's own ledger: the file or URL in the environment variable LABELDP_LEDGER, else a file in the user's data folder.

    LABELDP_KEY says where its release secret is, if there is one.
    """
    location = os.environ.get("LABELDP_LEDGER") or platformdirs.user_data_path("labeldp") / "ledger.sqlite"
    return Ledger(location, key=os.environ.get("LABELDP_KEY") or None)


def as_ledger(given: object) -> Ledger | None:
    """Read an argument that names a ledger: the ledger itself, or its path or URL; None for none."""
    if given is None or isinstance(given, Ledger):
        return given
    if isinstance(given, str | os.PathLike):
        return Ledger(os.fspath(given))
    raise InvalidInput(f"Expected a ledger, or its path, got {type(given).__name__}. Pass ledger=labeldp.Ledger('ledger.db').")


def ledger_of(given: object) -> Ledger:
    """Read an argument that names a ledger, as `as_ledger`; for none it is the user's own."""
    return as_ledger(given) or default_ledger()


class SameRequest(LedgerError):
    """Another process has charged this very request since the caller looked: nothing more was charged.

    Attributes
    ----------
    run_id : str
        The run that the other process has charged.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Expected one process to make this request, but another one has just charged it (run {run_id}). Nothing more was charged. Run "
            "the same again: it picks that run up, or returns its answer."
        )
        self.run_id = run_id


class _Decision:
    """Decides whether a charge may be written, and whether it sets the budget, while nobody else can write."""

    def __init__(self, session: Session, ledger: Ledger, spending: Spending, rows: RowSet | None) -> None:
        self._session, self._ledger, self._spending, self._rows = session, ledger, spending, rows
        self._dataset, self._column = spending.dataset, spending.column
        self._of, self._where = f"dataset {self._dataset!r}, column {self._column!r}", str(ledger.location)
        self.balance = session.balance(self._dataset, self._column)

    def check_new(self, known: Collection[str] | None) -> None:
        """Refuse a run id that was charged before, and a request that another process has charged meanwhile."""
        run_id = self._spending.run_id
        if not self._session.unknown([run_id]):
            raise LedgerError(f"Expected a run id that was never charged, got {run_id}. Make one with new_run_id().")
        if known is not None:
            # of two processes that make one request at once, one charges: the second sees the first here, under the lock
            runs = self._session.request_runs(self._dataset, self._column, self._spending.identity)
            if new := [run for run in runs if run not in known]:
                raise SameRequest(new[-1])

    @cached_property
    def _runs(self) -> dict[str, RunRecord]:
        return self._session.history(self._dataset, self._column).runs

    def check_unit(self) -> None:
        """Refuse another unit than that of the earlier charges."""
        unit, other = self._spending.unit, self.balance.unit
        if other not in (None, unit):
            raise LedgerError(
                f"Expected unit {other!r} for {self._of}, as charged before in {self._where}; got {unit!r}. "
                "Spends of different units cannot be added: use the same unit, and call its column the same (unit_name=)."
            )

    def check_rows(self) -> None:
        """Refuse rows that an earlier run covers, or may cover where that cannot be told."""
        if not self.balance.runs:
            return
        found = overlaps(self._rows, self._runs.values(), self._ledger._sets)
        if found:
            said = "; ".join(f"{what} in run {run}" for run, what in found.items())
            raise RowsOverlap(
                f"Expected rows of {self._of} that no earlier run in {self._where} covers, got {said}. Nothing was charged. Leave "
                "them out, or allow it with overlap='charge'."
            )

    def budget_entry(self, total: float | None) -> dict[str, object] | None:
        """Give the entry that sets the budget, None where one is kept already; raise BudgetExceeded where too little is left."""
        declared, kept, where = self._ledger.budget, self.balance.budget, self._where
        epsilon = exact(self._spending.epsilon)
        if kept is not None and declared is not None and kept != exact(declared):
            raise LedgerError(
                f"Expected budget {float_down(kept)!r} for {self._of}, as kept in {where}; got budget={declared!r}. "
                f"Drop it, or change the kept one {self._by_budget(declared)}."
            )
        first = epsilon if total is None else exact(total)
        budget = kept if kept is not None else first if declared is None else exact(declared)
        covered = self._covered(epsilon, budget)
        if not epsilon <= budget - covered:  # exact fractions: no tolerance, and nothing is rounded
            left, needed = float_down(max(budget - covered, Fraction(0))), float_up(covered + epsilon)
            said = (
                f"Expected epsilon <= {left!r}, which remains of budget {float_down(budget)!r} for {self._of} in {where}; "
                f"got epsilon={float(epsilon)!r}. Nothing was charged. Ask for less, or allow more "
            )
            raise BudgetExceeded(
                f"{said}{self._by_budget(needed)}. Other data need another name (dataset=).",
                cli=f"{said}with `{self._command(needed)}`. Other data need another name (--dataset); the default is the file's.",
            )
        if kept is not None:
            return None
        why = "first charge" if declared is None else "declared"
        return {"kind": "budget", "dataset": self._dataset, "column": self._column, "budget": repr(float_down(budget)), "why": why}

    def log_budget(self, entry: Mapping[str, object]) -> None:
        """Log the budget that was set, once its entry is on disk."""
        level = logging.INFO if entry["why"] == "declared" else logging.WARNING  # nobody chose this one, so it is said aloud
        said = "The budget of dataset %r, column %r is now %s (%s), kept in %s. `labeldp ledger set-budget` or set_budget changes it."
        _log.log(level, said, self._dataset, self._column, entry["budget"], entry["why"], self._where)

    def _covered(self, epsilon: Fraction, budget: Fraction) -> Fraction:
        """The epsilon that the most used of the request's rows has spent so far, or an upper bound of it that leaves enough."""
        # the plain sum is such a bound; row sets, which may be large, are read only where it does not leave enough
        balance = self.balance
        if balance.total == balance.everywhere or balance.total + epsilon <= budget:
            return balance.total
        return Spend(self._ledger._sets.load, self._runs.values()).covered(self._rows)

    def _by_budget(self, amount: float) -> str:
        """Say how a budget is set, in Python and on the command line."""
        return f"with set_budget({self._dataset!r}, {self._column!r}, {amount!r}), or `{self._command(amount)}`"

    def _command(self, amount: float) -> str:
        dataset, column = shlex.quote(self._dataset), shlex.quote(self._column)
        return f"labeldp ledger set-budget --dataset {dataset} --label {column} --budget {amount!r}"
