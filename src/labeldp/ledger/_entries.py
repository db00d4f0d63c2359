# SPDX-License-Identifier: Apache-2.0
"""What a ledger's entries mean: the hash chain, and the accounts and runs that follow from reading it from the start.

An entry is canonical JSON with a number, a kind ("open", "budget", "charge", "parts", "settle", "abandon"), a time and the kind's facts.
Its hash covers its text and the hash of the entry before, so that the last hash, the head, stands for the whole history.

Epsilon is kept as the shortest decimal text of its float and added as that decimal number: three charges of 0.1 are exactly 0.3. Laws
keep to the float and to the decimal (`labeldp.laws._exact.exp_floor`), so the sums are exact; comparisons with a budget have no tolerance.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, Protocol

from labeldp.errors import LedgerError
from labeldp.receipt import Receipt

GENESIS = "0" * 64
"""What stands for the hash of the entry before the first."""

Row = tuple[int, str, str, str]
"""seq, hash of the entry before, text, hash."""

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
    rows : mapping, optional
        Facts of the run's row set, with its digest (`labeldp.ledger._rowset.RowSet.facts`); None: it counts for every row.
    drawn : mapping of str to str
        For each stage that was announced: the digest of what was drawn, which tells copies in any format or order.
    adopted : bool
        The charge was written again after the ledger was lost or set back: receipts from before name another history.
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
    rows: Mapping[str, object] | None = field(default=None, hash=False)
    drawn: Mapping[str, str] = field(default_factory=dict, hash=False)
    adopted: bool = False


class File(Protocol):
    """A file with its name, number of rows and SHA-256."""

    @property
    def name(self) -> str:
        """Without its folder."""

    @property
    def rows(self) -> int:
        """Of the table."""

    @property
    def sha256(self) -> str:
        """Hexadecimal."""


@dataclass(frozen=True)
class Part:
    """One file of a run's result, as it was announced before it got its final name.

    Attributes
    ----------
    number : int
        Of the partition, from 0.
    name : str
        Of the file, without its folder.
    rows : int
    sha256 : str
        Of the file.
    """

    number: int
    name: str
    rows: int
    sha256: str


def parts_digest(parts: Iterable[Part]) -> str:
    """SHA-256 of all parts in order of their numbers."""
    listed = [[part.number, part.name, part.rows, part.sha256] for part in sorted(parts, key=lambda part: part.number)]
    return hashlib.sha256(json.dumps(listed, separators=(",", ":")).encode()).hexdigest()


@dataclass
class History:
    """What the entries of one (dataset, column) say."""

    budget: Fraction | None = None
    runs: dict[str, RunRecord] = field(default_factory=dict)
    parts: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Of each run with announced parts: their count and digest."""


@dataclass
class Balance:
    """What a charge needs to know of a (dataset, column), up to entry `seq` with the hash `head`.

    `total` is the sum over all runs, an upper bound of what any row has spent; `everywhere` the sum over those that count for every row,
    a lower bound.
    """

    dataset: str
    column: str
    seq: int = 0
    head: str = ""
    budget: Fraction | None = None
    unit: str | None = None
    total: Fraction = Fraction(0)
    everywhere: Fraction = Fraction(0)
    runs: int = 0

    def apply(self, row: Row) -> None:
        """Read the next entry of the account."""
        try:
            body: dict[str, Any] = json.loads(row[2])
            if body["kind"] == "budget":
                self.budget = Fraction(body["budget"])
            elif body["kind"] == "charge":
                _charged(body, row[3])
                self.unit, self.runs = body["unit"], self.runs + 1
                self.total += Fraction(body["epsilon"])
                self.everywhere += Fraction(body["epsilon"]) if body.get("rows") is None else 0
            elif body["kind"] not in ("settle", "abandon", "parts"):
                raise ValueError(body["kind"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _unreadable(row) from None
        self.seq, self.head = row[0], row[3]

    def to_text(self) -> str:
        """What is kept of it besides its names and where it ends."""
        sums = {"budget": None if self.budget is None else str(self.budget), "total": str(self.total), "everywhere": str(self.everywhere)}
        return text({**sums, "unit": self.unit, "runs": self.runs})

    @classmethod
    def from_text(cls, dataset: str, column: str, seq: int, head: str, facts: str) -> "Balance":
        """What `to_text` wrote; anything else is an account that starts again."""
        try:
            data: dict[str, Any] = json.loads(facts)
            budget = None if data["budget"] is None else Fraction(data["budget"])
            total, everywhere = Fraction(data["total"]), Fraction(data["everywhere"])
            return cls(dataset, column, int(seq), head, budget, data["unit"], total, everywhere, int(data["runs"]))
        except (ValueError, KeyError, TypeError, ZeroDivisionError):
            return cls(dataset, column)


def text(body: Mapping[str, object]) -> str:
    """The canonical JSON of an entry: what is hashed and stored."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def entry_hash(previous: str, body: str) -> str:
    """SHA-256 of the previous hash, a line feed and the entry's text."""
    return hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()


def history_of(rows: Iterable[Row]) -> History:
    """Read the entries of one (dataset, column), in order."""
    account = History()
    for row in rows:
        try:
            apply(account, row)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _unreadable(row) from None
    return account


def _unreadable(row: Row) -> LedgerError:
    return LedgerError(f"Expected entry {row[0]} of the ledger to be intact, got one that cannot be read. Run `verify`.")


def apply(account: History, row: Row) -> None:
    """Read the next entry."""
    body: dict[str, Any] = json.loads(row[2])
    match body["kind"]:
        case "budget":
            account.budget = Fraction(body["budget"])
        case "charge":
            account.runs[body["run_id"]] = _charged(body, row[3])
        case "parts":
            run = account.runs[body["run_id"]]
            account.parts[run.run_id] = (int(body["count"]), str(body["digest"]))
            account.runs[run.run_id] = replace(run, drawn={**run.drawn, **body.get("drawn", {})})
        case "settle":
            _close(account, body, "settled", body["artefact"])
        case "abandon":
            _close(account, body, "abandoned", "")
        case kind:
            raise ValueError(kind)


def charged(row: Row) -> RunRecord:
    """The run of a charge's entry."""
    return _charged(json.loads(row[2]), row[3])


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
        adopted=body.get("adopted") is True,
        rows=None if body.get("rows") is None else {**body["rows"], "digest": str(body["rows"]["digest"])},
    )


def _close(account: History, body: Mapping[str, Any], state: State, artefact: str) -> None:
    run = account.runs[body["run_id"]]
    account.runs[run.run_id] = RunRecord(**{**vars(run), "state": state, "artefact": artefact, "settled_at": body["at"]})
