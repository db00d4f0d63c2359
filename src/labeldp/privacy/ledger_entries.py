# SPDX-License-Identifier: Apache-2.0
"""What a ledger's entries mean: the hash chain, and the accounts and runs that follow from reading it from the start.

An entry is canonical JSON with a number, a kind ("open", "budget", "charge", "settle", "abandon"), a time and the kind's facts. Its
hash covers its text and the hash of the entry before, so that the last hash, the head, stands for the whole history.

Epsilon is kept as the shortest decimal text of its float and added as that decimal number: three charges of 0.1 are exactly 0.3. Laws
keep to the float and to the decimal (`labeldp.laws.exact.exp_floor`), so the sums are exact; comparisons with a budget have no tolerance.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from labeldp._rounding import exact
from labeldp.errors import LedgerError
from labeldp.receipt import Receipt

GENESIS = "0" * 64
"""What stands for the hash of the entry before the first."""

State = Literal["charged", "settled", "abandoned"]


@dataclass(frozen=True)
class RunRecord:
    """One charge and what became of it.

    Attributes
    ----------
    run_id, identity, dataset, column, unit : str
        `identity` is the digest of the public facts that make two requests the same request.
    max_rows_per_unit : int
    epsilon, delta : float
    event : mapping
        What was done, as JSON data.
    state : str
        "charged" (spent, not finished), "settled" (finished; `artefact` is its digest) or "abandoned" (given up; spent all the same).
    artefact : str
        Digest of the public result, "" until settled.
    charged_at, settled_at : str
        ISO 8601, UTC; `settled_at` also tells when a run was abandoned; "" before.
    repeatable : bool
        False where a crashed run cannot be picked up again.
    receipt : Receipt
    """

    run_id: str
    identity: str
    dataset: str
    column: str
    unit: str
    max_rows_per_unit: int
    epsilon: float
    delta: float
    event: Mapping[str, object] = field(hash=False)
    state: State
    artefact: str
    charged_at: str
    settled_at: str
    repeatable: bool
    receipt: Receipt


@dataclass
class Account:
    """What the entries of one (dataset, column) add up to."""

    budget: Fraction | None = None
    runs: dict[str, RunRecord] = field(default_factory=dict)

    @property
    def spent(self) -> Fraction:
        """Of one unit that is in every run: exact."""
        return sum((exact(run.epsilon) for run in self.runs.values()), Fraction(0))


def rounded_down(value: Fraction) -> float:
    """The largest float whose decimal text is at most `value`."""
    near = float(value)
    return near if exact(near) <= value else math.nextafter(near, -math.inf)


def text(body: Mapping[str, object]) -> str:
    """The canonical JSON of an entry: what is hashed and stored."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def entry_hash(previous: str, body: str) -> str:
    """SHA-256 of the previous hash, a line feed and the entry's text."""
    return hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()


Row = tuple[int, str, str, str]
"""seq, hash of the entry before, text, hash."""


def account_of(rows: Iterable[Row]) -> Account:
    """Read the entries of one (dataset, column), in order."""
    account = Account()
    for row in rows:
        try:
            _apply(account, row)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise LedgerError(f"Expected entry {row[0]} of the ledger to be intact, got one that cannot be read. Run `verify`.") from None
    return account


def _apply(account: Account, row: Row) -> None:
    body: dict[str, Any] = json.loads(row[2])
    match body["kind"]:
        case "budget":
            account.budget = Fraction(body["budget"])
        case "charge":
            account.runs[body["run_id"]] = _charged(body, row[3])
        case "settle":
            _close(account, body, "settled", body["artefact"])
        case "abandon":
            _close(account, body, "abandoned", "")
        case kind:
            raise ValueError(kind)


def _charged(body: Mapping[str, Any], head: str) -> RunRecord:
    facts = {name: body[name] for name in ("run_id", "dataset", "column", "unit", "max_rows_per_unit", "event")}
    spend: dict[str, Any] = {"epsilon": float(body["epsilon"]), "delta": float(body["delta"])}
    receipt = Receipt(**facts, **spend, recorded=True, ledger_head=head, charged_at=body["at"])
    return RunRecord(
        **facts,
        **spend,
        identity=body["identity"],
        state="charged",
        artefact="",
        charged_at=body["at"],
        settled_at="",
        repeatable=body["repeatable"],
        receipt=receipt,
    )


def _close(account: Account, body: Mapping[str, Any], state: State, artefact: str) -> None:
    run = account.runs[body["run_id"]]
    account.runs[run.run_id] = RunRecord(**{**vars(run), "state": state, "artefact": artefact, "settled_at": body["at"]})


def problems(rows: Iterable[Row], receipts: Iterable[Receipt]) -> list[str]:
    """What does not add up in a history, and which receipts are not part of it; empty if nothing."""
    found: list[str] = []
    previous = GENESIS
    charges: dict[str, Any] = {}
    accounts: dict[tuple[str, str], Account] = {}
    for expected, row in enumerate(rows, start=1):
        seq, before, body, head = row
        if seq != expected or before != previous:
            return [*found, f"The chain breaks at entry {expected}: an entry before or at it is missing or was rewritten."]
        if entry_hash(before, body) != head:
            return [*found, f"Entry {seq} was rewritten: its text does not have its hash."]
        found += _misplaced(row, accounts)
        previous = head
        if (entry := _read(body)).get("kind") == "charge":
            charges[head] = entry
    if previous == GENESIS:
        found.append("The ledger has no entries: its history was deleted.")
    return found + [problem for receipt in receipts for problem in _receipt_problem(receipt, charges)]


def _read(body: str) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _misplaced(row: Row, accounts: dict[tuple[str, str], Account]) -> list[str]:
    """An entry that no labeldp would have written where it stands."""
    seq, body = row[0], _read(row[2])
    kind = body.get("kind")
    if body.get("seq") != seq or (kind == "open") != (seq == 1):
        return [f"Entry {seq} does not belong there: it says kind {kind!r} and number {body.get('seq')!r}."]
    if kind == "open":
        return []
    account = accounts.setdefault((str(body.get("dataset")), str(body.get("column"))), Account())
    try:
        state = account.runs[body["run_id"]].state if body.get("run_id") in account.runs else None
        if (kind == "charge" and state is not None) or (kind in ("settle", "abandon") and state != "charged"):
            return [f"Entry {seq} does not follow from those before: {kind} of a run that is {state or 'unknown'}."]
        _apply(account, row)
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"Entry {seq} cannot be read: it lacks facts of its kind {kind!r}."]
    if kind == "charge" and (account.budget is None or account.spent > account.budget):
        return [f"Entry {seq} exceeds the budget of its dataset and column."]
    return []


def _receipt_problem(receipt: Receipt, charges: Mapping[str, Mapping[str, Any]]) -> list[str]:
    charge = charges.get(receipt.ledger_head)
    if charge is None:
        return [f"The receipt of run {receipt.run_id} is not in this history: the ledger was cut, rewritten, or is another one."]
    facts = {name: getattr(receipt, name) for name in ("run_id", "dataset", "column", "unit", "max_rows_per_unit")}
    spend: dict[str, Any] = {"epsilon": repr(float(receipt.epsilon)), "delta": repr(float(receipt.delta))}
    wrong = [name for name, value in (facts | spend).items() if charge.get(name) != value]
    return [f"The receipt of run {receipt.run_id} does not say what was charged: {', '.join(wrong)} differ."] if wrong else []
