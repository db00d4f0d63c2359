# SPDX-License-Identifier: Apache-2.0
"""Verifies a ledger: its history must be consistent, and agree with receipts, manifests and the
runs' folders.

If results lie beside a ledger that does not know their runs, it was lost or restored from a backup,
and would charge too little. A charge looks for such runs in one listing of the runs' folder, and is
refused. `adopt` charges them again, from the facts in their folders.
"""

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from labeldp._validate import exact
from labeldp.errors import InvalidInput, LabelDPError, LedgerError
from labeldp.evidence import Block
from labeldp.evidence._noisy import column_block, pack, places_of
from labeldp.laws import law_from_dict
from labeldp.laws._columns import LabelColumns, laws_of_columns
from labeldp.laws._exact import Array
from labeldp.ledger._database import (
    ALSO,
    GENESIS,
    Balance,
    History,
    LedgerUrl,
    Part,
    Row,
    RunRecord,
    Session,
    Spending,
    charged_columns,
    entry_hash,
    parts_digest,
    per_row_epsilon,
    utc_now,
)
from labeldp.ledger._rowset import FILE, RowSet, RowSets, Spend
from labeldp.ledger._run_store import CHARGE, RunStore, unknown_runs
from labeldp.receipt import Receipt, columns_of


class Unchecked(str):
    """A sentence about what cannot be checked, as facts are missing: it names no inconsistency."""


@dataclass
class _Read:
    """The state of the history after the entries read so far."""

    charges: dict[str, dict[str, Any]] = field(default_factory=dict)
    accounts: dict[tuple[str, str], "_Account"] = field(default_factory=dict)


class _Account:
    """The state of one (dataset, column) while its entries are read in order."""

    def __init__(self, dataset: str, column: str, sets: RowSets) -> None:
        self.said = History()
        self.balance = Balance(dataset, column)
        self._spend: Spend | None = None
        self._sets = sets

    def apply(self, row: Row) -> None:
        self.said.apply(row)
        self.balance.apply(row)

    def exceeded(self, run: RunRecord) -> bool:
        """Tell whether the run, the last one read, exceeded the budget at its time."""
        # Row sets are read only once the plain sum exceeds the budget. From then on a `Spend` grows
        # with the runs: building it anew for each run would take quadratic time.
        budget = self.said.budget
        if budget is None:
            return True
        if self._spend is not None:
            # Of a run whose row set is lost nobody knows what it adds to: it is left out of the
            # sum, so that a budget is called exceeded only if it was.
            rows = self._sets.load(run)
            lost = rows is None and run.rows is not None
            covered = Fraction(0) if lost else self._spend.covered(rows)
            if not lost:
                self._spend.add(run)
            return covered + exact(run.receipt.epsilon) > budget
        if self.balance.total <= budget:
            return False
        earlier = [each for each in self.said.runs.values() if each.run_id != run.run_id]
        self._spend = Spend(
            self._sets.load, (each for each in earlier if not self._sets.harmed(each))
        )
        return self.exceeded(run)


def problems(
    rows: Iterable[Row],
    sets: RowSets,
    parts: Sequence[tuple[str, Part]] = (),
    balances: Sequence[Balance] = (),
    receipts: Iterable[Receipt] = (),
    outputs: Mapping[str, str] | None = None,
) -> list[str]:
    """Return one sentence for each inconsistency; an empty list if there is none. See
    `Ledger.verify`."""
    found: list[str] = []
    read, ends = _Read(), {(balance.dataset, balance.column): balance for balance in balances}
    previous = GENESIS
    for expected, row in enumerate(rows, start=1):
        seq, before, body, head = row
        # After a break nothing can be trusted, so the search ends.
        if seq != expected or before != previous:
            return [
                *found,
                (
                    f"The chain breaks at entry {expected}: an entry before or at it is missing or"
                    " was rewritten."
                ),
            ]
        if entry_hash(before, body) != head:
            return [*found, f"Entry {seq} was rewritten: its text does not have its hash."]
        found += _misplaced(row, read, sets)
        account = read.accounts.get(_names(_json(body)))
        found += [] if account is None else _balance_problem(account.balance, ends)
        previous = head
        if (entry := _json(body)).get("kind") == "charge":
            read.charges[head] = entry
    if previous == GENESIS:
        found.append("The ledger has no entries: its history was deleted.")
    found += (
        _harmed(read, sets)
        + _parts_problems(read, parts)
        + _forgotten(read, sets)
        + _uncounted(read)
    )
    return found + _compared(read, receipts, outputs or {})


def _json(data: str | bytes | None) -> dict[str, Any]:
    """Parse a JSON object; an empty one if the text is none."""
    try:
        facts = json.loads(data or "{}")
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _names(body: Mapping[str, Any]) -> tuple[str, str]:
    return str(body.get("dataset")), str(body.get("column"))


def _misplaced(row: Row, read: _Read, sets: RowSets) -> list[str]:
    """Report an entry that labeldp would not have written at this position."""
    # The hashes are not keyed, so anybody can compute a chain of made-up entries. Here the entries
    # themselves must make sense.
    seq, body = row.seq, _json(row.text)
    kind = body.get("kind")
    if body.get("seq") != seq or (kind == "open") != (seq == 1):
        return [
            (
                f"Entry {seq} does not belong there: it says kind {kind!r} and number"
                f" {body.get('seq')!r}."
            )
        ]
    if kind == "open":
        return []
    names = _names(body)
    account = read.accounts.setdefault(names, _Account(*names, sets))
    runs = account.said.runs
    try:
        state = runs[body["run_id"]].state if body.get("run_id") in runs else None
        if (kind == "charge" and state is not None) or (
            kind in ("parts", "settle", "abandon") and state != "charged"
        ):
            return [
                (
                    f"Entry {seq} does not follow from those before: {kind} of a run that is"
                    f" {state or 'unknown'}."
                )
            ]
        account.apply(row)
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"Entry {seq} cannot be read: it lacks facts of its kind {kind!r}."]
    if (
        kind == "charge"
        and account.exceeded(runs[body["run_id"]])
        and body.get("adopted") is not True
    ):
        return [f"Entry {seq} exceeds the budget of its dataset and column."]
    return []


def _harmed(read: _Read, sets: RowSets) -> list[str]:
    harmed = [
        run
        for account in read.accounts.values()
        for run in account.said.runs.values()
        if sets.harmed(run)
    ]
    here = [run for run in harmed if (sets.folder / run.run_id).is_dir()]
    found = [
        f"The row set of run {run.run_id} is missing or damaged: it counts for"
        " every row now, and budgets cannot be checked without it."
        for run in here
    ]
    # a ledger that was copied without its private folder, as a rule
    if away := len(harmed) - len(here):
        lost = f"those of {away:,} run{'s' * (away > 1)} are not in {sets.folder}"
        found.append(
            Unchecked(
                f"Budgets cannot be checked without row sets, and {lost}: move it beside the"
                " ledger."
            )
        )
    return found


def _uncounted(read: _Read) -> list[str]:
    """Report charges on several columns that the account of one of them lacks, or has otherwise
    than the first one."""
    # receipts are equal whatever their events are
    runs = {
        (*names, run.run_id): (run, run.receipt.event)
        for names, account in read.accounts.items()
        for run in account.said.runs.values()
    }
    return [
        f"The charge of run {run.run_id} is not in the account of column {column!r} as it is in"
        f" that of {run.receipt.columns[0]!r}."
        for (dataset, own, _), (run, event) in runs.items()
        if own == run.receipt.columns[0] and len(run.receipt.columns) > 1
        for column in run.receipt.columns[1:]
        if runs.get((dataset, column, run.run_id)) != (run, event)
    ] + [
        f"The charge of run {run.run_id} is in the account of column {own!r}, but not in that of"
        f" {run.receipt.columns[0]!r}."
        for (dataset, own, _), (run, _) in runs.items()
        if (dataset, run.receipt.columns[0], run.run_id) not in runs
    ]


def _forgotten(read: _Read, sets: RowSets) -> list[str]:
    """Report runs with results that are missing in the history: an older copy of the ledger has
    replaced a newer one."""
    known = {run for account in read.accounts.values() for run in account.said.runs}
    return [
        f"Run {run_id} has results, but is not in this history: the ledger was cut, or set back."
        for run_id in unknown_runs(sets.folder, lambda names: [n for n in names if n not in known])
    ]


def _parts_problems(read: _Read, parts: Sequence[tuple[str, Part]]) -> list[str]:
    said = {
        run: facts
        for account in read.accounts.values()
        for run, facts in account.said.parts.items()
    }
    listed: dict[str, list[Part]] = {}
    for run, part in parts:
        listed.setdefault(run, []).append(part)
    wrong = [
        run
        for run in said | listed
        if said.get(run) != (len(listed.get(run, [])), parts_digest(listed.get(run, [])))
    ]
    return [
        f"The parts of run {run} are not the ones that were announced: the table was changed."
        for run in wrong
    ]


def _balance_problem(balance: Balance, kept: Mapping[tuple[str, str], Balance]) -> list[str]:
    """Compare a stored balance with the sum of the entries up to its last one. A balance that ends
    at no entry is never used."""
    found = kept.get((balance.dataset, balance.column), balance)
    if (found.seq, found.head) != (balance.seq, balance.head) or found == balance:
        return []
    return [
        (
            f"What is kept of dataset {balance.dataset!r}, column"
            f" {balance.column!r} is not what its"
            " entries add up to."
        )
    ]


def _compared(read: _Read, receipts: Iterable[Receipt], outputs: Mapping[str, str]) -> list[str]:
    found = [problem for receipt in receipts for problem in _receipt_problem(receipt, read.charges)]
    runs = {
        name: run for account in read.accounts.values() for name, run in account.said.runs.items()
    }
    for run_id, output in outputs.items():
        run = runs.get(run_id)
        if run is not None and run.state != "settled":
            found.append(
                f"The output of run {run_id} is not settled in this ledger: the run is {run.state}."
            )
        elif run is not None and run.artefact != output:
            found.append(
                f"The output of run {run_id} is not the one that was settled: its manifest names"
                " another digest."
            )
    return found


def _receipt_problem(receipt: Receipt, charges: Mapping[str, Mapping[str, Any]]) -> list[str]:
    charge = charges.get(receipt.entry.ledger_head)
    if charge is None:
        return [
            (
                f"The receipt of run {receipt.run_id} is not in this history: the ledger was cut,"
                " rewritten, or is another one."
            )
        ]
    # Texts are compared, as in `Spending.body`: two different texts could round to one float.
    facts: dict[str, Any] = {
        name: getattr(receipt, name)
        for name in ("run_id", "dataset", "column", "unit", "max_rows_per_unit")
    } | {"epsilon": repr(float(receipt.epsilon)), "delta": repr(float(receipt.delta))}
    charged = {**charge, "column": charged_columns(charge)}
    wrong = [name for name, value in facts.items() if charged.get(name) != value]
    return (
        [
            (
                f"The receipt of run {receipt.run_id} does not say what was"
                f" charged: {', '.join(wrong)}"
                " differ."
            )
        ]
        if wrong
        else []
    )


def check_drawn(run: RunRecord, store: RunStore, block: Block, ids: Array) -> None:
    """Refuse labels that a run has not drawn; see `Ledger.check_drawn`."""
    if not _is_charged(run, block) or not _is_kept(run, store, block, ids):
        raise LedgerError(
            f"Expected what run {run.run_id} has drawn, got labels that were changed after the"
            " draw: their law, ids, outputs or side. Take what privatize, fit or read_noisy gave;"
            " labels that something else has drawn are declared: NoisyLabels.from_labels."
        )


def _is_charged(run: RunRecord, block: Block) -> bool:
    """Tell whether the run was charged for a law of these classes and this epsilon."""
    # the event of an aggregate has none: no labels can be of its run
    drawn: Any = run.receipt.event.get("law", {})
    named = [each["law"] for each in drawn.get("stages", [drawn]) if "law" in each]
    laws = {(law["n_classes"], float(law["epsilon"])) for law in named}
    # An event of a unit with several rows names the unit's epsilon, and each row's law has a share
    # of it.
    per_row = {
        (count, per_row_epsilon(epsilon, run.receipt.max_rows_per_unit)) for count, epsilon in laws
    }
    found = (block.law.n_classes, block.law.epsilon)
    if found in (laws if run.receipt.max_rows_per_unit == 1 else per_row):
        return True
    sizes = drawn.get("sizes", ())
    if not sizes or "law" not in drawn:
        return False
    # or it reads one column of what the run was charged for
    whole = law_from_dict(drawn["law"])
    row = (
        replace(whole, epsilon=per_row_epsilon(whole.epsilon, run.receipt.max_rows_per_unit))
        if run.receipt.max_rows_per_unit > 1
        else whole
    )
    return block.law in laws_of_columns(row, sizes)


def _is_kept(run: RunRecord, store: RunStore, block: Block, ids: Array) -> bool:
    """Tell whether the run's folder has the same outputs, or has none to compare with."""
    stages = store.stages()
    if not stages:
        return True
    # The stored outputs are evidence only if they are those that the run settled with.
    if run.state == "settled" and store.digest() != run.artefact:
        raise LedgerError(
            f"Expected the stored outputs of run {run.run_id} in {store.folder} as it settled with"
            " them, got others. Restore the folder."
        )
    kept = store.load_noisy(block.stage) if block.stage in stages else None
    if kept is None:
        return False
    (drawn,) = views = kept.blocks
    if drawn.law != block.law and isinstance(kept.classes, LabelColumns):
        sizes = kept.classes.sizes
        with contextlib.suppress(InvalidInput):  # the law cannot be read column by column
            views = tuple(column_block(drawn, sizes, number) for number in range(len(sizes)))
    return any(view.law == block.law and _is_same(view, block, kept.ids, ids) for view in views)


def _is_same(view: Block, block: Block, known: Array, ids: Array) -> bool:
    # The labels may be a part of the stored ones, in any order, but each must be there under its
    # id.
    place = places_of(ids, known[view.rows])
    if np.any(place < 0):
        return False
    return np.array_equal(
        pack(view.law, view.outputs, view.side)[place], pack(block.law, block.outputs, block.side)
    )


# Runs that the ledger does not know
# ------------------------------------------------------------------------------------------------


def adopt(session: Session, runs_dir: Path, where: Path | LedgerUrl) -> list[dict[str, object]]:
    """Charge each run that the ledger does not know, for the rows in its row set or for every row;
    see `Ledger.adopt`.

    Parameters
    ----------
    session : Session
        A write transaction.
    runs_dir : Path
    where : Path or LedgerUrl
        The ledger's location, for messages.

    Returns
    -------
    list of dict
        One for each run: run_id, dataset, column, unit, epsilon, state, and rows (None: every row).
    """
    # All folders are read before the first charge, so that a refusal writes nothing.
    found = {
        each: _read(RunStore(runs_dir / each)) for each in unknown_runs(runs_dir, session.unknown)
    }
    silent = [run_id for run_id, body in found.items() if body is None]
    if silent:
        raise LedgerError(
            f"Expected the folders in {runs_dir} to say what their runs have spent, got"
            f" {len(silent)} that say nothing ({silent[0]}). Nothing was written to {where}."
            " Restore these folders; or lower the budgets by what they have spent (set_budget), and"
            " move the folders away."
        )
    bodies = {run_id: body for run_id, body in found.items() if body is not None}
    return [_adopted(session, RunStore(runs_dir / run_id), body) for run_id, body in bodies.items()]


def _adopted(session: Session, store: RunStore, body: dict[str, object]) -> dict[str, object]:
    # the secret is there, so the same request can resume the run
    if store.stored_half() is not None:
        state, end = "charged", None
    elif artefact := _artefact(store):
        state, end = "settled", {"kind": "settle", "artefact": artefact}
    else:
        state, end = "abandoned", {"kind": "abandon", "reason": "adopted without a whole result"}
    dataset, first = str(body["dataset"]), ""
    event: Any = body["event"]
    balances = [
        session.balance(dataset, column) for column in columns_of(str(body["column"]), event)
    ]
    if any(balance.unit not in (None, body["unit"]) for balance in balances):
        # Its row set names other units than those of the account, so it cannot be compared with
        # others: the run counts for every row.
        body = {key: value for key, value in body.items() if key != "rows"}
    names, now = {"run_id": body["run_id"], "dataset": dataset}, utc_now()
    for balance in balances:
        own = names | {"column": balance.column}
        entry = body | own | {"adopted": True, "at": now} | ({ALSO: first} if first else {})
        row, *_ = session.extend(
            balance, entry, *([] if end is None else [own | end | {"at": now}])
        )
        first = first or row.hash
    rows = body.get("rows")
    count = rows["row"]["count"] if isinstance(rows, Mapping) and "row" in rows else None
    return names | {
        "column": body["column"],
        "unit": body["unit"],
        "epsilon": float(str(body["epsilon"])),
        "state": state,
        "rows": count,
    }


def _read(store: RunStore) -> dict[str, object] | None:
    """Read a run's charge from the copy in its folder; None without one that is whole. A row set
    that is missing or damaged is left out, so that the run counts for every row."""
    kept = _json(store.read(CHARGE))
    try:
        names = ("dataset", "column", "unit", "max_rows_per_unit", "event", "identity", "run_id")
        facts = {name: kept[name] for name in (*names, "repeatable")}
        facts |= {name: float(kept[name]) for name in ("epsilon", "delta")}
        body = Spending(**facts).body()
    except (LabelDPError, ValueError, KeyError, TypeError):
        return None
    with contextlib.suppress(LabelDPError, ValueError, KeyError, TypeError):
        whole = RowSet.from_bytes(store.read(FILE) or b"", str(kept["rows"]["digest"]))
        body["rows"] = whole.facts()
    return body if body["run_id"] == store.folder.name else None


def _artefact(store: RunStore) -> str | None:
    """Compute the digest that the run settled with, from its results; None if there are none."""
    if any(path.suffix == ".parquet" for path in store.folder.iterdir()):
        return store.digest()
    output = _json(store.read("manifest.json")).get("digests", {})
    return str(output["output"]) if isinstance(output, Mapping) and output.get("output") else None
