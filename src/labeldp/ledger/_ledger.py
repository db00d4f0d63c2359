# SPDX-License-Identifier: Apache-2.0
"""The ledger: the durable record of what was spent. A run is charged before it draws, and settled
when its result is stored.

A ledger holds public facts only: names, laws, epsilons, digests of public data. It never holds a
label, a digest of one, or a secret.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from labeldp import _validate
from labeldp._validate import exact, float_down, float_up
from labeldp.errors import (
    BudgetExceeded,
    InvalidInput,
    LedgerError,
    RowsOverlap,
    require_unwarned,
)
from labeldp.evidence import Block
from labeldp.laws._exact import Array
from labeldp.ledger import _check as ledger_check
from labeldp.ledger._database import (
    ALSO,
    Balance,
    File,
    History,
    LedgerUrl,
    Part,
    Row,
    RunRecord,
    Session,
    Spending,
    SqliteStore,
    canonical_text,
    checked_name,
    command_line,
    default_location,
    entry_facts,
    location_of,
    parts_digest,
    run_id_of,
    run_of_entry,
    runs_folder,
    utc_now,
)
from labeldp.ledger._rowset import (
    RowSet,
    RowSetBuilder,
    RowSets,
    Spend,
    overlaps,
)
from labeldp.ledger._run_store import CHARGE, RunStore, unknown_runs
from labeldp.noise._secrets import KeySource
from labeldp.receipt import Receipt

if TYPE_CHECKING:
    from labeldp.ledger._postgres import PostgresStore

_log = logging.getLogger("labeldp")

__all__ = [
    "Ledger",
    "LedgerUrl",
    "Part",
    "RunRecord",
    "SameRequest",
    "Spending",
    "as_ledger",
    "default_ledger",
    "ledger_of",
]


@dataclass(frozen=True)
class Ledger:
    """A durable record of charges, in a file or in PostgreSQL.

    The object holds no connection, so it can be copied, pickled and used by several processes at
    once.

    Parameters
    ----------
    location : str or Path
        The file; it is made, readable by its owner only, at the first charge. It must lie on a
        local disk. Or, for a team, the URL of a PostgreSQL database:
        "postgresql://USER@HOST/DATABASE" (`pip install labeldp[postgres]`); its password is never
        shown or pickled.
    budget : float, optional
        Budget that a (dataset, column) gets at its first charge. Without it, the first charge sets
        the budget to its own epsilon, so that anything further must be allowed by name with
        `set_budget`.
    key : str, Path or KeySource, optional
        Source of the release secret: "file:PATH" or "env:NAME". With it, neither a run's folder nor
        the release secret alone suffices to compute the run's noise. The ledger never holds the
        secret itself.

    Notes
    -----
    Guarantee: a charge is on disk when `charge` returns, also after power loss; charges of several
    processes together never exceed a budget. An epsilon counts as the decimal number that it is
    written as: three charges of 0.1 fit into 0.3, exactly, without tolerance. Cost: one
    synchronised write a call, however long the history is.

    See Also
    --------
    labeldp.privatize : Draws noisy labels and charges them.

    References
    ----------
    Budgets add by sequential composition where runs share rows, and do not add where rows are
    disjoint (parallel composition): McSherry 2009, "Privacy integrated queries", theorems 3 and 4.
    """

    location: str | Path | LedgerUrl
    budget: float | None = None
    key: KeySource | str | Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "location", location_of(self.location))
        if self.budget is not None:
            object.__setattr__(
                self,
                "budget",
                _validate.positive(budget=self.budget, fix="Pass the total epsilon to allow."),
            )
        if self.key is not None:
            object.__setattr__(self, "key", KeySource.of(self.key))

    @property
    def key_source(self) -> KeySource | None:
        """Where the release secret is; None where the runs' folders hold their whole secrets."""
        return None if self.key is None else KeySource.of(self.key)

    # Writing
    # ----------------------------------------------------------------------------------------------

    def charge(
        self,
        spending: Spending,
        *,
        rows: RowSet | None = None,
        overlap: Literal["charge", "refuse"] = "charge",
        total: float | None = None,
        known: Collection[str] | None = None,
    ) -> Receipt:
        """Record what a run spends, before it draws.

        Parameters
        ----------
        spending : Spending
        rows : RowSet, optional
            The rows, or units, of the run: then it adds only to earlier runs that share some of
            them. None: it adds to every run.
        overlap : {"charge", "refuse"}
            "charge" (default) charges rows of an earlier run again; "refuse" raises RowsOverlap.
        total : float, optional
            The budget to set if the account has none, for this charge and those to follow. None:
            the epsilon of this charge.
        known : collection of run ids, optional
            The runs of this identity that the caller has seen. If another process has charged one
            since, SameRequest is raised.

        Returns
        -------
        Receipt
            The entry and the row set are on disk when this returns.

        Raises
        ------
        BudgetExceeded
            Too little of the budget is left.
        RowsOverlap
            `overlap` is "refuse", and an earlier run covers some of the rows.
        SameRequest
            Another process has charged the same request.
        LedgerError
            The ledger cannot be written, has another unit for the account, or is older than results
            beside it. In all four cases nothing was charged.
        """
        _validate.one_of(("charge", "refuse"), overlap=overlap)
        body, run_id, sets, store = spending.body(), spending.run_id, self._sets, self._store
        require_unwarned()
        # The order of writes: the row set, the file that a lost ledger is restored from, the
        # charge. If the process dies in between, files may lie there without a charge, never a
        # charge without its files; nothing was drawn for them, and `repair` removes them.
        if rows is not None:
            sets.keep(run_id, rows)
            body |= {"rows": rows.facts()}
        folder = sets.folder / run_id
        try:
            # before `writing` makes it: a refused charge must not leave an empty ledger that hides
            # the loss
            if not self.exists():
                self._require_known(lambda run_ids: run_ids)
            if folder.is_dir():  # `custody` has made it; without one only `adopt` has less to read
                RunStore(folder).write(CHARGE, canonical_text(body).encode())
            with store.writing() as session:
                # Every check is under the lock that the entry is written under: of two processes
                # that both find the last of a budget free, one must see the other's charge.
                self._require_known(session.unknown)
                decisions = [
                    _Decision(session, self, spending, rows, column) for column in spending.columns
                ]
                decisions[0].check_new(known)
                for decision in decisions:
                    decision.check_unit()
                    if overlap == "refuse":
                        decision.check_rows()
                budgets = [decision.budget_entry(total) for decision in decisions]
                row = _write_charge(session, decisions, budgets, body)
        except (LedgerError, BudgetExceeded):
            # Nothing was charged, so nothing may look like a charge later: `adopt` would count what
            # this file says.
            if folder.is_dir():
                (folder / CHARGE).unlink(missing_ok=True)
            if rows is not None:
                sets.forget(run_id)
            raise
        for budget in filter(None, budgets):
            _log.log(
                # nobody chose another one, and it will refuse further charges
                logging.INFO if budget["why"] == "declared" else logging.WARNING,
                "The budget of dataset %r, column %r is now %s (%s), kept in %s. `%s` or"
                " set_budget changes it.",
                *(budget[name] for name in ("dataset", "column", "budget", "why")),
                self.location,
                self.command("set-budget"),
            )
        return run_of_entry(entry_facts(row), row.hash).receipt

    def require(self, spending: Spending, *, rows: RowSet | None = None) -> None:
        """Refuse a charge that would be refused now, and write nothing; for what takes long before
        it is charged.

        Parameters
        ----------
        spending, rows
            As in `charge`.

        Raises
        ------
        BudgetExceeded, LedgerError
        """
        with self._store.reading() as session:
            self._require_known((lambda run_ids: run_ids) if session is None else session.unknown)
            for column in spending.columns:
                decision = _Decision(session, self, spending, rows, column)
                decision.check_unit()
                decision.budget_entry(None)

    def intend(
        self, run_id: str, parts: Iterable[File], drawn: Mapping[str, str] | None = None
    ) -> None:
        """Announce the parts of a run, before they are published: the files of its result, or the
        rows that its stages claim.

        A ledger so knows every file of noisy labels by its digest before anybody can read it, even
        if the process dies while publishing. The same parts again have no effect; other parts
        replace the earlier ones.

        Parameters
        ----------
        run_id : str
        parts : iterable of File
            In order.
        drawn : mapping of str to str, optional
            For each stage, the digest of the drawn rows, which does not depend on the format or the
            order of files.

        Raises
        ------
        LedgerError
            The run is unknown, or settled or abandoned with other parts.
        """
        listed = [
            Part(number, part.name, part.rows, part.sha256) for number, part in enumerate(parts)
        ]
        facts: dict[str, object] = {"count": len(listed), "digest": parts_digest(listed)}
        with self._store.writing() as session:
            history, run = self._run(session, run_id, "announce parts of")
            if history.parts.get(run_id) == (facts["count"], facts["digest"]):
                return
            if run.state != "charged":
                raise LedgerError(
                    f"Expected run {run_id} to be charged, got one that is {run.state} already; its"
                    " parts stay what they are."
                )
            # The table holds the parts and the chain their digest: entries stay short, and `verify`
            # sees a change of the table.
            session.replace_parts(run_id, listed)
            for column in run.receipt.columns:
                names = {"run_id": run_id, "dataset": run.receipt.dataset, "column": column}
                session.append(
                    {"kind": "parts", **names, **facts, **({"drawn": dict(drawn)} if drawn else {})}
                )

    def settle(self, run_id: str, artefact: str) -> None:
        """Settle a run, whose result is complete; `artefact` is the digest of the public result.
        The same call again has no effect."""
        self._close(run_id, "settle", {"artefact": checked_name(artefact=artefact)})

    def abandon(self, run_id: str, reason: str) -> None:
        """Give a run up: it can never be finished, and its half of the secret and its pin are
        destroyed.

        Its epsilon stays spent, because outputs may have been drawn.
        """
        # The entry first: a process that dies in between leaves a secret that `repair` removes. The
        # other way round it would leave a run that is open and that nobody can finish.
        self._close(run_id, "abandon", {"reason": checked_name(reason=reason)})
        RunStore(self.run_dir(run_id)).forget_secret()

    def adopt(self) -> list[dict[str, object]]:
        """Charge runs again that have results beside the ledger but are missing in it, because it
        was lost or restored from a backup.

        The charge is read from the copy in the run's folder; a run whose row set is gone counts for
        every row. Entries and budgets of the ledger stay as
        they are, so nothing is ever counted less.

        Returns
        -------
        list of dict
            One for each run: run_id, dataset, column, unit, epsilon, state, rows (None: every row).

        Raises
        ------
        LedgerError
            Some folder does not record what its run has spent; nothing was written.
        """
        with self._store.writing() as session:
            return ledger_check.adopt(session, self.runs_dir, self._place)

    def set_budget(self, dataset: str, column: str, budget: float) -> None:
        """Set the budget of a (dataset, column), higher or lower; the change stays in the
        history."""
        facts = {"dataset": checked_name(dataset=dataset), "column": checked_name(column=column)}
        amount = repr(_validate.positive(budget=budget, fix="Pass the total epsilon to allow."))
        with self._store.writing() as session:
            balance = session.balance(dataset, column)
            if balance.budget != Fraction(amount):
                session.extend(balance, {"kind": "budget", **facts, "budget": amount, "why": "set"})

    def _require_known(self, unknown: Callable[[Sequence[str]], Sequence[str]]) -> None:
        """Refuse to charge in a ledger that is new, or older than results that lie beside it."""
        # The attack, or the accident: restore yesterday's copy of the file, and today's charges are
        # forgotten while their noisy labels are out. The chain cannot show that its own end was cut
        # off; the runs' folders can.
        found = unknown_runs(self.runs_dir, unknown)
        if found:
            raise LedgerError(
                f"Expected {self.location} to know every run that has results in {self.runs_dir},"
                f" got {len(found)} that it does not ({found[0]}): it is new, or older than they"
                " are, and would count too little. Nothing was charged. Restore the ledger's newer"
                f" copy, or count these runs again: `{self.command('repair', '--adopt')}`, or"
                " Ledger.adopt()."
            )

    def _close(self, run_id: str, kind: str, facts: dict[str, object]) -> None:
        """Settle or abandon a run, once; a process that died after the entry may do it again."""
        state = {"settle": "settled", "abandon": "abandoned"}[kind]
        with self._store.writing() as session:
            _, run = self._run(session, run_id, kind)
            # an abandoned run has none
            same_artefact = facts.get("artefact", run.artefact) == run.artefact
            if run.state == state and same_artefact:
                return
            if run.state != "charged":
                raise LedgerError(
                    f"Expected run {run_id} to be charged, got one that is {run.state} already; it"
                    f" cannot be {state}."
                )
            now = utc_now()
            for column in run.receipt.columns:
                session.append(
                    {
                        "kind": kind,
                        "run_id": run_id,
                        "dataset": run.receipt.dataset,
                        "column": column,
                        "at": now,
                        **facts,
                    }
                )

    def _run(self, session: Session, run_id: str, what: str) -> tuple[History, RunRecord]:
        """Read the entries of a run, and its record; LedgerError for an unknown run, with `what` as
        the verb of its message."""
        history = session.history_of_run(run_id_of(run_id))
        if run_id not in history.runs:
            raise LedgerError(
                f"Expected a charged run to {what}, got run id {run_id}, which {self.location} does"
                " not know."
            )
        return history, history.runs[run_id]

    # Reading
    # ----------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Tell whether the ledger exists. A place that cannot be read is an error, never an absent
        ledger."""
        return self._store.exists()

    def find(self, dataset: str, column: str, identity: str) -> RunRecord | None:
        """Find the latest run of this request that is settled, or charged and can be resumed; None
        if there is none."""
        with self._store.reading() as session:
            if session is None:
                return None
            for run_id in reversed(session.request_runs(dataset, column, identity)):
                _, run = self._run(session, run_id, "find")
                if run.state == "settled" or (run.state == "charged" and run.repeatable):
                    return run
        return None

    def runs(self, dataset: str | None = None, column: str | None = None) -> list[RunRecord]:
        """List the runs of a data set, a column, or both (None: all), in the order of their
        charges."""
        with self._store.reading() as session:
            return [] if session is None else list(session.history(dataset, column).runs.values())

    def run(self, run_id: str) -> RunRecord | None:
        """Look up a run; None if this ledger does not know it."""
        with self._store.reading() as session:
            return (
                None
                if session is None
                else session.history_of_run(run_id_of(run_id)).runs.get(run_id)
            )

    def looked_up(self, receipt: Receipt) -> Receipt:
        """Look up a receipt, and return it with `recorded` True if and only if its charge is in
        this ledger.

        Raises
        ------
        LedgerError
            The ledger knows the run, but with other facts.
        """
        run = self.run(receipt.run_id)
        if run is None:
            return replace(receipt, entry=replace(receipt.entry, recorded=False))
        # its first charge is lost with the old history: only what was spent can be compared
        if run.adopted:
            receipt = replace(receipt, entry=replace(run.receipt.entry, recorded=receipt.recorded))
        same = canonical_text(receipt.event) == canonical_text(run.receipt.event)
        known = replace(receipt.entry, recorded=True)
        if not same or replace(receipt, entry=known, secure=run.receipt.secure) != run.receipt:
            raise LedgerError(
                f"Expected the receipt of run {receipt.run_id} as {self.location} has it, got"
                " another one, changed after the charge. Restore the manifest or the table that it"
                " came from."
            )
        return replace(receipt, entry=known)

    def check_drawn(self, block: Block, ids: Array) -> None:
        """Compare drawn labels with their charge, and with the outputs in the run's folder if that
        lies beside this ledger.

        A run that this ledger does not know is not checked; `looked_up` tells which these are.

        Parameters
        ----------
        block : Block
            m draws of one run and stage.
        ids : (m,) or (m, columns) array
            The ids of these draws.

        Raises
        ------
        LedgerError
            No such law was charged; or ids, outputs or side differ from the stored ones; or the
            stored ones were changed.
        """
        run = self.run(block.receipt.run_id)
        if run is not None:
            ledger_check.check_drawn(run, RunStore(self.run_dir(run.run_id)), block, ids)

    def spent(self, dataset: str, column: str | Sequence[str] | None = None) -> float:
        """Return the epsilon that the most used row, or unit, of a (dataset, column) has spent;
        added exactly, rounded up.

        It is 0.0 if nothing was charged, so also for a misspelt name: `runs()` and `labeldp ledger
        spent` list the names. Runs whose row sets prove that they share no row do not add; all
        others add, also abandoned ones. Of a list of columns, which are a person's answers
        together, every run on any of them adds, once; a column without a charge beside others with
        one is refused, as misspelt. None (default): all columns of the data set that have a charge.
        """
        if column is None:
            column = list(
                dict.fromkeys(
                    name
                    for run in self.runs(checked_name(dataset=dataset))
                    for name in run.receipt.columns
                )
            )
            if not column:
                return 0.0
        if isinstance(column, str):
            return float_up(Spend(self._sets.load, self._read(dataset, column).runs.values()).most)
        if not (isinstance(column, Collection) and len(column)):
            raise InvalidInput(
                "Expected a column by its name, or a list of at least one, got"
                f" {_validate.shown(column)}."
            )
        histories = [(each, self._read(dataset, each)) for each in column]
        runs = {run.run_id: run for _, history in histories for run in history.runs.values()}
        without = [name for name, history in histories if not history.runs]
        if runs and without:
            raise InvalidInput(
                f"Expected columns with a charge in {dataset!r}, got {_validate.quoted(without)}"
                f" without one. Correct the name (`{self.command('spent')}` lists them), or leave"
                " it out: it has spent nothing."
            )
        units = {run.receipt.unit for run in runs.values()}
        if len(units) > 1:
            raise InvalidInput(
                f"Expected columns of one unit, got {', '.join(sorted(units))}: their spends cannot"
                " be added up."
            )
        return float_up(Spend(self._sets.load, runs.values()).most)

    def spent_delta(self, dataset: str, column: str) -> float:
        """Return the delta spent on a (dataset, column), added as `spent` adds epsilons. No budget
        limits it; 0 for pure epsilon.

        Keep it far below one over the number of rows: it bounds the probability that epsilon does
        not hold.
        """
        runs = [run for run in self._read(dataset, column).runs.values() if run.receipt.delta]
        return float_up(Spend(self._sets.load, runs, "delta").most)

    def spent_by_rows(self, dataset: str, column: str) -> list[tuple[float, int | None]]:
        """List (epsilon, number of rows or units) for each amount that some have spent, least
        first.

        If the runs' ids differ in kind or name, the list has one bound for all rows, with None for
        their number.
        """
        spend = Spend(self._sets.load, self._read(dataset, column).runs.values())
        return [(float_up(spent), rows) for spent, rows in spend.by_rows()]

    def remaining(self, dataset: str, column: str, rows: RowSet | None = None) -> float:
        """Return the epsilon that is left, rounded down, at least 0; infinite before the first
        charge, if no budget is set.

        Parameters
        ----------
        dataset, column : str
        rows : RowSet, optional
            The rows, or units, that are to be charged; None: all.
        """
        history = self._read(dataset, column)
        budget = history.budget
        if budget is None and self.budget is not None:
            budget = exact(self.budget)
        # of an account with adopted runs the budget is lost, and nothing is charged before one is
        # set
        if budget is None:
            return 0.0 if history.runs else float("inf")
        spent = Spend(self._sets.load, history.runs.values()).covered(rows)
        return float_down(max(budget - spent, Fraction(0)))

    def budget_of(self, dataset: str, column: str) -> float | None:
        """Return the recorded budget of a (dataset, column); None before its first charge, which
        sets one."""
        budget = self._read(dataset, column).budget
        return None if budget is None else float_down(budget)

    def parts(self, run_id: str) -> list[Part]:
        """List the parts that `intend` announced for a run, in order."""
        with self._store.reading() as session:
            return [] if session is None else [part for _, part in session.parts(run_id_of(run_id))]

    def history(self) -> list[dict[str, object]]:
        """List all entries, oldest first: each with its facts, and its hash under "hash"."""
        with self._store.reading() as session:
            return [] if session is None else [entry_facts(row) for row in session.rows()]

    def head(self) -> tuple[int, str]:
        """Return number and hash of the last entry; (0, "") if there is none. The hash covers the
        whole history."""
        with self._store.reading() as session:
            last = self._present(session).last()
        return (0, "") if last is None else (last.seq, last.hash)

    def verify(
        self,
        receipts: Iterable[Receipt] = (),
        *,
        outputs: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Check the whole history, and return one sentence for each inconsistency; an empty list if
        there is none.

        Without the runs' private folders nobody can tell whether budgets were kept: then a sentence
        says so, an `Unchecked` (a str), and none calls a budget exceeded that may have been kept.

        Parameters
        ----------
        receipts : iterable of Receipt, default=()
            Receipts that were kept elsewhere. Without one, a history whose end was cut off may
            look whole.
        outputs : mapping of run id to str, optional
            The digest of each run's output, from its manifest. Each must equal the digest that its
            run was settled with.
        """
        with self._store.reading() as session:
            whole = self._present(session)
            return ledger_check.problems(
                whole.rows(), self._sets, whole.parts(), whole.balances(), receipts, outputs
            )

    # Rows and folders
    # ----------------------------------------------------------------------------------------------

    def row_set_builder(
        self, id_name: str = "id", unit_name: str = "unit", *, integers: bool = False
    ) -> RowSetBuilder:
        """Make an empty builder of a run's row set: picklable, so that workers fill copies.

        Parameters
        ----------
        id_name, unit_name : str
            The names of the columns. Runs whose ids have different names always add.
        integers : bool, default=False
            All ids will be integers. Otherwise the builder also carries this ledger's key, for
            hashing text.
        """
        return RowSetBuilder(id_name, unit_name, secret=None if integers else self._sets.secret)

    @property
    def runs_dir(self) -> Path:
        """The private folder of all runs: beside a ledger file; for a database LABELDP_RUNS, else
        one in the user's data folder."""
        return runs_folder(self._place)

    def run_dir(self, run_id: str) -> Path:
        """Return the private folder of a run, which is made before its charge."""
        return self.runs_dir / run_id_of(run_id)

    def command(self, *words: str) -> str:
        """Write a command `labeldp ledger` that works on this ledger, for messages."""
        return command_line(self._place, *words)

    @property
    def _place(self) -> Path | LedgerUrl:
        assert not isinstance(self.location, str)  # __post_init__ has made it a path or a URL
        return self.location

    @property
    def _sets(self) -> RowSets:
        return RowSets(self.runs_dir)

    @property
    def _store(self) -> "SqliteStore | PostgresStore":
        place = self._place
        if isinstance(place, Path):
            return SqliteStore(place)
        from labeldp.ledger._postgres import PostgresStore  # only teams have its driver installed

        return PostgresStore(place)

    def _present(self, session: Session | None) -> Session:
        if session is None:
            lack = (
                "no such file"
                if isinstance(self.location, Path)
                else "a database with no ledger in it"
            )
            raise LedgerError(
                f"Expected a ledger at {self.location}, got {lack}. Check where it is."
            )
        return session

    def _read(self, dataset: str, column: object) -> History:
        names = checked_name(dataset=dataset), checked_name(column=column)
        with self._store.reading() as session:
            if session is None:
                return History()
            found = session.history(*names)
            # No account has the joined names of several columns: 0 would be the wrong answer for
            # what receipts show.
            together = (
                []
                if found.runs
                else [
                    run.receipt.columns
                    for run in session.history(dataset).runs.values()
                    if run.receipt.column == column
                ]
            )
            if together:
                raise InvalidInput(
                    f"Expected one column, got {column!r}, the names of {len(together[0])}"
                    " columns that were charged together. Ask for one of them, or for what was"
                    f" spent on all: spent({dataset!r}, {list(together[0])!r})."
                )
            return found


def default_ledger() -> Ledger:
    """Return the user's own ledger: the file or URL in the environment variable LABELDP_LEDGER,
    else a file in the user's data folder.

    The environment variable LABELDP_KEY names the source of its release secret, if it has one.
    """
    return Ledger(default_location(), key=os.environ.get("LABELDP_KEY") or None)


def as_ledger(given: object) -> Ledger | None:
    """Convert an argument to a ledger: a Ledger, a path or URL, or None, which stays None."""
    if given is None or isinstance(given, Ledger):
        return given
    if isinstance(given, str | os.PathLike):
        return Ledger(os.fspath(given))
    raise InvalidInput(
        f"Expected a ledger, or its path, got {type(given).__name__}. Pass"
        " ledger=labeldp.Ledger('ledger.db')."
    )


def ledger_of(given: object) -> Ledger:
    """Convert an argument to a ledger, as `as_ledger`; None gives the user's own."""
    return as_ledger(given) or default_ledger()


class SameRequest(LedgerError):
    """Another process has charged the same request since the caller looked, so this one was not
    charged.

    Attributes
    ----------
    run_id : str
        The run that the other process has charged.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(
            "Expected one process to make this request, but another one has just charged it (run"
            f" {run_id}). Nothing more was charged. Run the same again: it picks that run up, or"
            " returns its answer."
        )
        self.run_id = run_id


def _write_charge(
    session: Session,
    decisions: Sequence["_Decision"],
    budgets: Sequence[dict[str, object] | None],
    body: Mapping[str, object],
) -> Row:
    """Write the entries of a charge into the accounts of its columns; return that of the first one,
    whose hash the receipt has."""
    first: Row | None = None
    for decision, budget in zip(decisions, budgets, strict=True):
        # Entries of one charge have one time: read in any account, it is the same run.
        same = {} if first is None else {ALSO: first.hash, "at": entry_facts(first)["at"]}
        entry = {**body, "column": decision.column} | same
        row = session.extend(decision.balance, *([] if budget is None else [budget]), entry)[-1]
        first = first or row
    assert first is not None
    return first


class _Decision:
    """Decides for one of its columns whether a charge may be written, and whether it sets the
    budget; without a session in a new ledger."""

    def __init__(
        self,
        session: Session | None,
        ledger: Ledger,
        spending: Spending,
        rows: RowSet | None,
        column: str,
    ) -> None:
        self._reads, self._ledger, self._spending, self._rows = session, ledger, spending, rows
        self._dataset, self.column = spending.dataset, column
        self._of = f"dataset {self._dataset!r}, column {column!r}"
        self.balance = (
            Balance(self._dataset, column)
            if session is None
            else session.balance(self._dataset, column)
        )

    @property
    def _session(self) -> Session:
        assert self._reads is not None  # a new ledger has no runs to read
        return self._reads

    def check_new(self, known: Collection[str] | None) -> None:
        """Refuse a run id that was charged before, and a request that another process has charged
        meanwhile."""
        run_id = self._spending.run_id
        if not self._session.unknown([run_id]):
            raise LedgerError(
                f"Expected a run id that was never charged, got {run_id}. Make one with"
                " new_run_id()."
            )
        if known is not None:
            # of two processes that make one request at once, one charges: the second sees the first
            # here, under the lock
            runs = self._session.request_runs(self._dataset, self.column, self._spending.identity)
            if new := [run for run in runs if run not in known]:
                raise SameRequest(new[-1])

    @cached_property
    def _runs(self) -> dict[str, RunRecord]:
        return self._session.history(self._dataset, self.column).runs

    def check_unit(self) -> None:
        """Refuse another unit than that of the earlier charges."""
        unit, other = self._spending.unit, self.balance.unit
        if other not in (None, unit):
            raise LedgerError(
                f"Expected unit {other!r} for {self._of}, as charged before in"
                f" {self._ledger.location}; got"
                f" {unit!r}. Spends of different units cannot be added: use the same unit, and call"
                " its column the same: unit={'customer': ...}."
            )

    def check_rows(self) -> None:
        """Refuse rows that an earlier run covers, or may cover because its row set is unknown."""
        if not self.balance.runs:
            return
        found = overlaps(self._rows, self._runs.values(), self._ledger._sets)
        if found:
            said = _validate.told([f"{what} in run {run}" for run, what in found.items()])
            raise RowsOverlap(
                f"Expected rows of {self._of} that no earlier run in"
                f" {self._ledger.location} covers, got"
                f" {said}. Nothing was charged. Leave them out, or allow it with overlap='charge'."
            )

    def budget_entry(self, total: float | None) -> dict[str, object] | None:
        """Return the entry that sets the budget, None if one is recorded already; raise
        BudgetExceeded if too little is left."""
        declared, kept, where = self._ledger.budget, self.balance.budget, self._ledger.location
        epsilon = exact(self._spending.epsilon)
        if kept is not None and declared is not None and kept != exact(declared):
            raise LedgerError(
                f"Expected budget {float_down(kept)!r} for {self._of}, as kept in {where}; got"
                f" budget={declared!r}. Drop it, or change the kept one"
                f" {self._by_budget(declared)}."
            )
        if kept is None and declared is None and total is None and self.balance.runs:
            needed = float_up(self._covered(epsilon, Fraction(0)) + epsilon)
            raise BudgetExceeded(
                f"Expected a budget for {self._of} in {where}, got none: its runs were adopted, and"
                " their budget is lost with the old ledger. Nothing was charged. Set it"
                f" {self._by_budget(needed)}."
            )
        first = epsilon if total is None else exact(total)
        budget = kept if kept is not None else first if declared is None else exact(declared)
        covered = self._covered(epsilon, budget)
        # exact fractions: a tolerance would be spent again by every charge
        if not epsilon <= budget - covered:
            left, needed = (
                float_down(max(budget - covered, Fraction(0))),
                float_up(covered + epsilon),
            )
            of = f"budget {float_down(budget)!r} for {self._of} in {where}"
            got = f"got epsilon={float(epsilon)!r}. Nothing was charged."
            said = (
                f"Expected epsilon <= {left!r}, which remains of {of}; {got} Ask for less, or allow"
                " more"
                if left > 0
                else f"Expected epsilon that remains, but {of} is spent; {got} Allow more"
            )
            # Another name must not read as a way to get more from the same people.
            raise BudgetExceeded(
                f"{said} {self._by_budget(needed)}. Do not give the same rows another name: they"
                " would spend under both. Only data of other people get a name of their own"
                " (dataset=)."
            )
        if kept is not None:
            return None
        return {
            "kind": "budget",
            "dataset": self._dataset,
            "column": self.column,
            "budget": repr(float_down(budget)),
            "why": "first charge" if declared is None else "declared",
        }

    def _covered(self, epsilon: Fraction, budget: Fraction) -> Fraction:
        """Compute what the most used of the requested rows has spent, or an upper bound that leaves
        enough of the budget."""
        # The sum over all runs is such a bound. Row sets, which can be as large as the tables, are
        # read only if it is too much.
        balance = self.balance
        if balance.total == balance.everywhere or balance.total + epsilon <= budget:
            return balance.total
        return Spend(self._ledger._sets.load, self._runs.values()).covered(self._rows)

    def _by_budget(self, amount: float) -> str:
        """Say how a budget is set, in Python and on the command line."""
        names = ("--dataset", self._dataset, "--label", self.column, "--budget", repr(amount))
        return (
            f"with set_budget({self._dataset!r}, {self.column!r}, {amount!r}), or"
            f" `{self._ledger.command('set-budget', *names)}`"
        )
