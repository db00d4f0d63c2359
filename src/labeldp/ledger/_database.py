# SPDX-License-Identifier: Apache-2.0
"""The ledger's database: entries in a hash chain, the accounts and runs that follow from them, and
the SQLite file that holds them.

In this order: entries, and the accounts and runs that they add up to; the charge and its event;
queries (`Session`); SQLite; the location of a ledger.

An entry is canonical JSON with a number, a kind ("open", "budget", "charge", "parts", "settle",
"abandon"), a time and the kind's facts. Its hash covers its text and the hash of the entry before,
so that the last hash, the head, stands for the whole history. A charge on several columns has an
entry in the account of each of them, written together; so have its parts and its end.

Epsilon is kept as the shortest decimal text of its float and added as that decimal number: three
charges of 0.1 are exactly 0.3. Laws keep to the float and to the decimal
(`labeldp.laws._exact.exp_floor`), so the sums are exact; comparisons with a budget have no
tolerance.

A store opens sessions: `reading` (one consistent view) and `writing` (the only writer; all of it is
on disk when the block ends, or nothing). The tables `parts` and `accounts` follow from the entries:
parts have their digest in the chain, accounts are a shortcut that is dropped where it does not end
at an entry of the chain. `labeldp.ledger._postgres` is the same for teams.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import shlex
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol

from labeldp import _validate
from labeldp._files import path_text, sync
from labeldp._validate import exact, float_down, joined
from labeldp.errors import InvalidInput, LedgerError
from labeldp.receipt import LedgerEntry, Receipt, columns_of

VERSION: Final = 2
"""Format of the tables; a ledger of another format is refused."""

GENESIS = "0" * 64
"""The previous hash of the first entry."""

State = Literal["charged", "settled", "abandoned"]


class Row(NamedTuple):
    """A row of the table of entries: number, hash of the previous entry, text and own hash."""

    seq: int
    previous: str
    text: str
    hash: str


@dataclass(frozen=True)
class RunRecord:
    """One charge of the ledger and the state of its run.

    Attributes
    ----------
    receipt : Receipt
        What was charged: run, account, unit, cost, event and time.
    identity : str
        The digest of the public facts of the request: equal for equal requests.
    state : str
        "charged" (spent, not finished), "settled" (finished; `artefact` is its digest) or
        "abandoned" (given up; spent all the same).
    artefact : str
        Digest of the public result, "" until settled.
    settled_at : str
        ISO 8601, UTC: when the run was settled or abandoned; "" before.
    repeatable : bool
        True if a crashed run can be resumed.
    rows : mapping, optional
        Facts of the run's row set, with its digest (`labeldp.ledger._rowset.RowSet.facts`); None:
        the run counts for every row.
    drawn : mapping of str to str
        For each announced stage the digest of its drawn rows, by which copies in any format or
        order are recognised.
    adopted : bool
        True if the charge was written again by `Ledger.adopt`: earlier receipts name a head of the
        lost history.
    """

    receipt: Receipt
    identity: str
    repeatable: bool
    state: State = "charged"
    artefact: str = ""
    settled_at: str = ""
    rows: Mapping[str, object] | None = field(default=None, hash=False)
    drawn: Mapping[str, str] = field(default_factory=dict, hash=False)
    adopted: bool = False

    @property
    def run_id(self) -> str:
        """The id of the run, as in its receipt."""
        return self.receipt.run_id


class File(Protocol):
    """A part to be announced with `Ledger.intend`: a file of a result, or the rows that a stage
    claims. See `Part`."""

    @property
    def name(self) -> str:
        """The file's name without its folder; for claimed rows "STAGE/draw"."""

    @property
    def rows(self) -> int:
        """The number of its rows."""

    @property
    def sha256(self) -> str:
        """Its SHA-256 in hexadecimal."""


@dataclass(frozen=True)
class Part:
    """One announced part of a run: a file of its result, before it gets its final name, or the rows
    that a stage claims.

    Attributes
    ----------
    number : int
        Position among the parts, from 0.
    name : str
        The file's name without its folder; for claimed rows "STAGE/draw".
    rows : int
        Number of rows.
    sha256 : str
        SHA-256 of the file, or of the claimed rows and the facts of their draw, in hexadecimal.
    """

    number: int
    name: str
    rows: int
    sha256: str


def parts_digest(parts: Iterable[Part]) -> str:
    """Compute the SHA-256 of all parts, in the order of their numbers."""
    listed = [
        [part.number, part.name, part.rows, part.sha256]
        for part in sorted(parts, key=lambda part: part.number)
    ]
    return hashlib.sha256(json.dumps(listed, separators=(",", ":")).encode()).hexdigest()


@dataclass
class History:
    """The budget, runs and parts that a sequence of entries results in: those of one account, or of
    one run.

    Attributes
    ----------
    budget : Fraction or None
    runs : dict of str to RunRecord
        The runs by their ids, in the order of their charges.
    parts : dict of str to (int, str)
        For each run with announced parts, their number and digest.
    """

    budget: Fraction | None = None
    runs: dict[str, RunRecord] = field(default_factory=dict)
    parts: dict[str, tuple[int, str]] = field(default_factory=dict)

    def apply(self, row: Row) -> None:
        """Read the next entry; one that cannot be read raises ValueError, KeyError, TypeError or
        AttributeError."""
        body: dict[str, Any] = json.loads(row.text)
        if body["kind"] == "budget":
            self.budget = Fraction(body["budget"])
            return
        if body["kind"] == "charge":
            # The entry of a further column says nothing new where that of the first one was read.
            if not (ALSO in body and body["run_id"] in self.runs):
                self.runs[body["run_id"]] = run_of_entry(body, row.hash)
            return
        # every other kind follows its charge; KeyError if it does not
        run = self.runs[body["run_id"]]
        match body["kind"]:
            case "parts":
                self.parts[run.run_id] = (int(body["count"]), str(body["digest"]))
                changed = replace(run, drawn={**run.drawn, **body.get("drawn", {})})
            case "settle":
                changed = replace(
                    run, state="settled", artefact=body["artefact"], settled_at=body["at"]
                )
            case "abandon":
                changed = replace(run, state="abandoned", artefact="", settled_at=body["at"])
            case kind:
                raise ValueError(kind)
        self.runs[run.run_id] = changed


@dataclass
class Balance:
    """The cached totals of a (dataset, column) up to entry `seq`, whose hash is `head`.

    It is kept in the table `accounts`, so that a charge reads only the entries that are new since
    the last one.

    Attributes
    ----------
    budget : Fraction or None
    unit : str or None
        The unit of every charge; None before the first.
    total : Fraction
        The sum over all runs: an upper bound of what any row has spent.
    everywhere : Fraction
        The sum over the runs that count for every row: a lower bound.
    runs : int
        How many were charged.
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
            body: dict[str, Any] = json.loads(row.text)
            if body["kind"] == "budget":
                self.budget = Fraction(body["budget"])
            elif body["kind"] == "charge":
                # raises for an entry that `charge` could not have written, as `History` does
                run_of_entry(body, row.hash)
                self.unit, self.runs = body["unit"], self.runs + 1
                self.total += Fraction(body["epsilon"])
                self.everywhere += Fraction(body["epsilon"]) if body.get("rows") is None else 0
            elif body["kind"] not in ("settle", "abandon", "parts"):
                raise ValueError(body["kind"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _unreadable(row) from None
        self.seq, self.head = row.seq, row.hash

    def to_text(self) -> str:
        """Write the sums as canonical JSON, for the table's column `facts`."""
        return canonical_text(
            {
                "budget": None if self.budget is None else str(self.budget),
                "total": str(self.total),
                "everywhere": str(self.everywhere),
                "unit": self.unit,
                "runs": self.runs,
            }
        )

    @classmethod
    def from_text(cls, dataset: str, column: str, seq: int, head: str, facts: str) -> "Balance":
        """Read a balance that `to_text` wrote. Unreadable facts give an empty one, so that all
        entries are added up again."""
        try:
            data: dict[str, Any] = json.loads(facts)
            return cls(
                dataset,
                column,
                int(seq),
                head,
                None if data["budget"] is None else Fraction(data["budget"]),
                data["unit"],
                Fraction(data["total"]),
                Fraction(data["everywhere"]),
                int(data["runs"]),
            )
        except (ValueError, KeyError, TypeError, ZeroDivisionError):
            return cls(dataset, column)


def canonical_text(body: Mapping[str, object]) -> str:
    """Write an entry as canonical JSON, which is hashed and stored: equal facts give equal
    bytes."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def entry_hash(previous: str, text: str) -> str:
    """Compute an entry's hash: SHA-256 of the previous hash, a line feed and the entry's text."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def entry_facts(row: Row) -> dict[str, object]:
    """Read an entry's facts, with its hash under "hash"."""
    try:
        return {**json.loads(row.text), "hash": row.hash}
    except (ValueError, TypeError):
        raise _unreadable(row) from None


def utc_now() -> str:
    """Return the time as text for people. Entries are ordered by number, so a clock that is set
    back does no harm."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def checked_name(**named: object) -> str:
    """Check a name that the ledger stores, given as the only keyword: printable text, not empty."""
    # Names are shown in logs and terminals, where control characters could forge a line.
    ((what, value),) = named.items()
    if not (isinstance(value, str) and value and value.isprintable()):
        raise InvalidInput(
            f"Expected {what} as printable text, got {what}={_validate.shown(value)}. Give it a"
            " name."
        )
    return value


def run_id_of(value: object) -> str:
    # it becomes a folder's name, so "../x" must not pass
    """Check a run id: 32 hexadecimal digits."""
    if not (isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value)):
        raise InvalidInput(
            f"Expected a run id of 32 hexadecimal digits, got {_validate.shown(value)}. `labeldp"
            " ledger history` lists them."
        )
    return value


def history_of(rows: Iterable[Row]) -> History:
    """Build a history from entries in order; LedgerError if one cannot be read."""
    history = History()
    for row in rows:
        try:
            history.apply(row)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _unreadable(row) from None
    return history


def _unreadable(row: Row) -> LedgerError:
    """Make the error for an entry that lacks facts or is no JSON."""
    return LedgerError(
        f"Expected entry {row.seq} of the ledger to be intact, got one that cannot be read. Run"
        " `verify`."
    )


ALSO: Final = "charge"
"""The fact, in the entries of a charge's further columns, that is the hash of the entry of its
first one."""


def charged_columns(body: Mapping[str, Any]) -> str:
    """Return the column of a charge's entry, or the joined names of all columns that it was charged
    on together."""
    listed = columns_of(body["column"], body["event"])
    return joined(listed) if len(listed) > 1 else str(body["column"])


def run_of_entry(body: Mapping[str, Any], head: str) -> RunRecord:
    """Read the run that a charge's entry records, from the entry's facts and its hash, which goes
    into the receipt."""
    receipt = Receipt(
        body["run_id"],
        body["dataset"],
        charged_columns(body),
        body["unit"],
        body["max_rows_per_unit"],
        float(body["epsilon"]),
        float(body["delta"]),
        event=body["event"],
        entry=LedgerEntry(True, str(body.get(ALSO, head)), body["at"]),
    )
    return RunRecord(
        receipt,
        body["identity"],
        body["repeatable"],
        adopted=body.get("adopted") is True,
        rows=(
            None
            if body.get("rows") is None
            else {**body["rows"], "digest": str(body["rows"]["digest"])}
        ),
    )


# Charges and their events
# --------------------------------------------------------------------------------------------------

# A charge records the mechanism as an event: an object whose "event" names the kind, with one
# member for each field. Compatibility promise: what one release writes, every later release reads
# with the same meaning; later releases may add kinds and fields. An unknown kind or field is
# refused, never skipped, so that an old reader cannot report too small a cost.

ROW: Final = "row"
"""The unit of protection if no column of units is named; so no such column may have this name."""


@dataclass(frozen=True)
class Spending:
    """The privacy cost of one run and the account that it is charged to, as its charge stores them.

    Parameters
    ----------
    dataset, column : str
        The account: each pair has a budget. A charge on several columns, which its event lists, has
        their joined names here: it is one charge, which the account of each of them counts with all
        of epsilon.
    epsilon, delta : float
        Total for one unit. `delta` is 0 by default.
    event : mapping
        The mechanism (`LabelDraw.to_dict()`). An unknown one, or one that costs more than is
        charged, is refused.
    identity : str
        Digest of the public facts of the request: equal for equal requests.
    run_id : str
        32 hexadecimal digits, never charged before.
    unit : str
        "row" (default), or the column that names the person. One (dataset, column) has one unit.
    max_rows_per_unit : int
        Rows of one unit that the charge covers; 1 by default.
    repeatable : bool
        True (default) if a crashed run may be resumed under the same run id.
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

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are charged together, each with all of epsilon: those that the event
        lists, or else `column`."""
        listed = columns_of(self.column, self.event)
        if len(set(listed)) < len(listed) or (len(listed) > 1 and self.column != joined(listed)):
            raise InvalidInput(
                "Expected a charge on different columns under their joined names, got"
                f" {self.column!r} for {list(listed)}."
            )
        return listed

    def body(self) -> dict[str, object]:
        """Check every field, and return the fields of the charge's entry, under the joined names of
        its columns."""
        return {
            "kind": "charge",
            "dataset": checked_name(dataset=self.dataset),
            "column": checked_name(column=self.column),
            "unit": checked_name(unit=self.unit),
            "max_rows_per_unit": _validate.integer(max_rows_per_unit=self.max_rows_per_unit, low=1),
            # As decimal text: sums over the entries are then exact sums of the numbers that people
            # read here.
            "epsilon": repr(_validate.epsilon(self.epsilon)),
            "delta": repr(_validate.fraction(delta=self.delta, zero=True)),
            "event": _checked_event(self.event, float(self.epsilon), float(self.delta), self.unit),
            "identity": checked_name(identity=self.identity),
            "run_id": run_id_of(self.run_id),
            "repeatable": bool(self.repeatable),
        }


def _checked_event(
    event: Mapping[str, object], epsilon: float, delta: float, unit: str
) -> dict[str, object]:
    """Refuse an event that costs more than is charged, or has another unit: the ledger would count
    too little."""
    known = event_of(event)
    # Written as what must hold, so that NaN fails it.
    if not (known.epsilon <= epsilon and known.delta <= delta and known.unit == unit):
        raise InvalidInput(
            f"Expected an event of at most epsilon={epsilon!r}, delta={delta!r} and unit {unit!r};"
            f" got one of epsilon={known.epsilon!r}, delta={known.delta!r}, unit {known.unit!r}."
            " Charge what will be done."
        )
    try:
        return dict(json.loads(canonical_text(dict(event))))
    except (TypeError, ValueError):
        raise InvalidInput(
            "Expected an event of JSON data with finite numbers, got other types. Pass"
            " event.to_dict()."
        ) from None


@dataclass(frozen=True)
class _Mechanism:
    """Base of both kinds of event: a mechanism that reads the labels of some rows once."""

    kind: ClassVar[str]
    what: ClassVar[str]
    """What the mechanism is, and its name in JSON data."""

    mechanism: Mapping[str, object] = field(hash=False)
    epsilon: float
    delta: float = 0.0
    unit: str = "row"
    max_rows_per_unit: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Mapping):
            raise InvalidInput(
                f"Expected the {self.what} as a mapping, got {type(self.mechanism).__name__}. Pass"
                f" {self.what}.to_dict()."
            )
        checked_name(unit=self.unit)
        object.__setattr__(self, "mechanism", dict(self.mechanism))
        object.__setattr__(self, "epsilon", _validate.epsilon(self.epsilon))
        object.__setattr__(self, "delta", _validate.fraction(delta=self.delta, zero=True))
        object.__setattr__(
            self,
            "max_rows_per_unit",
            _validate.integer(max_rows_per_unit=self.max_rows_per_unit, low=1),
        )

    def to_dict(self) -> dict[str, object]:
        """Write the event as JSON-ready data."""
        names = ("epsilon", "delta", "unit", "max_rows_per_unit")
        return {"event": self.kind, self.what: dict(self.mechanism)} | {
            name: getattr(self, name) for name in names
        }


class LabelDraw(_Mechanism):
    """The event that each label of some rows was randomised once, by a law.

    Parameters
    ----------
    mechanism : mapping
        The law as JSON data (`Law.to_dict()`), or the laws of a run and how its rows are divided
        among them.
    epsilon, delta : float
        Total cost for one unit.
    unit : str, default="row"
        "row", or the name of the column that names the person.
    max_rows_per_unit : int, default=1
        Largest number of rows of one unit.
    """

    kind: ClassVar[str] = "label-draw"
    what: ClassVar[str] = "law"


class AggregateDraw(_Mechanism):
    """The event that a query about groups of rows was answered once.

    Each row is in one group, so all groups together cost what one of them costs (parallel
    composition).

    Parameters
    ----------
    mechanism : mapping
        The query as JSON data (`Query.to_dict()`).
    epsilon, delta : float
        Total cost for one unit; it adds to every other event on the labels of the same rows.
    unit : str, default="row"
        "row", or the name of the column that names the person.
    max_rows_per_unit : int, default=1
        Largest number of rows of one unit.
    """

    kind: ClassVar[str] = "aggregate"
    what: ClassVar[str] = "query"


Event = LabelDraw | AggregateDraw


def event_of(data: object) -> Event:
    """Read an event that `to_dict` wrote; refuse an unknown kind or field."""
    if not isinstance(data, Mapping):
        raise InvalidInput(
            f"Expected an event as a mapping, got {type(data).__name__}. Pass event.to_dict()."
        )
    kind, facts = (
        data.get("event"),
        {name: value for name, value in data.items() if name != "event"},
    )
    if not (isinstance(kind, str) and kind in _KINDS):
        raise InvalidInput(
            f"Expected an event of kind {', '.join(_KINDS)}; got {kind!r}. A newer labeldp may"
            " know it."
        )
    cls = _KINDS[kind]
    given = ", ".join(map(str, facts))
    try:
        return cls(facts.pop(cls.what), **facts)  # the constructor checks each
    except (KeyError, TypeError):
        raise InvalidInput(
            f"Expected the fields of a {kind!r} event, got {given}. A newer labeldp may know them."
        ) from None


_KINDS: dict[str, type[Event]] = {cls.kind: cls for cls in (LabelDraw, AggregateDraw)}


def per_row_epsilon(epsilon: float, max_rows_per_unit: int) -> float:
    """Divide a unit's epsilon by its largest number of rows, rounded down, so that its rows
    together never exceed it."""
    total, rows = (
        _validate.epsilon(epsilon),
        _validate.integer(max_rows_per_unit=max_rows_per_unit, low=1),
    )
    # Laws compute with the binary value of the float, and the ledger adds its decimal value. The
    # share must be within both, so the smaller of the two is divided.
    share = float_down(min(Fraction(total), exact(total)) / rows, binary=True)
    return _validate.positive(
        per_row_epsilon=share, fix="The budget is too small to divide; lower max_rows_per_unit."
    )


# Queries
# --------------------------------------------------------------------------------------------------


class Session(ABC):
    """An open transaction on a ledger's database, with the queries that SQLite and PostgreSQL
    share."""

    prefix = ""
    """The prefix of every table's name."""
    each = ""
    """SQL that turns the JSON list in the parameter :texts into a table with one column,
    `value`."""

    @abstractmethod
    def query(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        """Run a statement with :named values, and return its rows, if it has any."""

    @abstractmethod
    def fact(self, name: str) -> str:
        """Return the SQL expression for a fact in an entry's text, spelt as in the index, which is
        used for equal expressions only."""

    # Entries
    # ----------------------------------------------------------------------------------------------

    def rows(
        self, dataset: str | None = None, column: str | None = None, after: int = 0
    ) -> list[Row]:
        """Read the entries after number `after`, in order: of a data set, a column or both. With
        neither: all, also the opening one."""
        given = {
            name: value
            for name, value in (("dataset", dataset), ("column", column))
            if value is not None
        }
        where = "".join(f" AND {self.fact(name)} = :{name}" for name in given)
        return self._entries(f"seq > :after{where} ORDER BY seq", after=after, **given)

    def history(self, dataset: str | None = None, column: str | None = None) -> History:
        """Build the history of a data set, a column or both. With neither: of all."""
        # The opening entry belongs to no account, so only a read of all entries meets it. It is
        # skipped by its number and not by its kind: else a charge could be hidden by rewriting its
        # kind to "open".
        everything = dataset is None and column is None
        return history_of(self.rows(dataset, column, after=1 if everything else 0))

    def history_of_run(self, run_id: str) -> History:
        """Build the history of one run."""
        return history_of(
            self._entries(f"{self.fact('run_id')} = :run_id ORDER BY seq", run_id=run_id)
        )

    def request_runs(self, dataset: str, column: str, identity: str) -> list[str]:
        """List the ids of the runs that were charged for one request, in the order of their
        charges."""
        names = {"dataset": dataset, "column": column, "identity": identity}
        where = " AND ".join(f"{self.fact(name)} = :{name}" for name in names)
        return [
            str(entry_facts(row).get("run_id", ""))
            for row in self._entries(f"{where} ORDER BY seq", **names)
        ]

    def unknown(self, run_ids: Sequence[str]) -> list[str]:
        """List those of these run ids that no entry names."""
        known = f"SELECT 1 FROM {{entries}} WHERE {self.fact('run_id')} = value"
        found = self._run(
            f"SELECT value FROM {self.each} WHERE NOT EXISTS ({known})",
            texts=json.dumps(list(run_ids)),
        )
        return [str(row[0]) for row in found]

    def last(self) -> Row | None:
        """Read the last entry; None in an empty ledger."""
        return next(iter(self._entries("seq = (SELECT MAX(seq) FROM {entries})")), None)

    def append(self, body: Mapping[str, object]) -> Row:
        """Append an entry to the chain, with its number and the time."""
        last = self.last()
        seq, head = (0, GENESIS) if last is None else (last.seq, last.hash)
        # Appending to an entry that was changed would chain the change in, and hide it from later
        # checks. One hash is cheap to check here; the rest of the chain is for `verify`.
        if last is not None and entry_hash(last.previous, last.text) != head:
            raise LedgerError(
                f"Expected the ledger's last entry, {seq}, to have its hash; it was rewritten. Run"
                " `verify`."
            )
        text = canonical_text({"seq": seq + 1, "at": utc_now(), **body})
        new = Row(seq + 1, head, text, entry_hash(head, text))
        self._run(
            "INSERT INTO {entries} (seq, previous, body, hash) VALUES (:seq, :previous, :text,"
            " :hash)",
            **new._asdict(),
        )
        return new

    def extend(self, balance: Balance, *bodies: Mapping[str, object]) -> list[Row]:
        """Append entries of one account, and store its balance after them, in the same
        transaction."""
        added = [self.append(body) for body in bodies]
        for row in added:
            balance.apply(row)
        self.keep(balance)
        return added

    def _entries(self, where: str, **values: object) -> list[Row]:
        found = self._run(
            f"SELECT seq, previous, body, hash FROM {{entries}} WHERE {where}", **values
        )
        return [Row(int(seq), previous, text, head) for seq, previous, text, head in found]

    # Balances
    # ----------------------------------------------------------------------------------------------

    def balance(self, dataset: str, column: str) -> Balance:
        """Compute an account's balance: the stored one plus the entries after it, or a sum over all
        entries if none can be used."""
        where = "dataset = :dataset AND label = :label"
        found = self._run(
            f"SELECT dataset, label, seq, head, facts FROM {{accounts}} WHERE {where}",
            dataset=dataset,
            label=column,
        )
        kept = Balance.from_text(*found[0]) if found else Balance(dataset, column)
        where = " AND ".join(f"{self.fact(name)} = :{name}" for name in ("dataset", "column"))
        ends_at = (
            self._entries(f"seq = :seq AND {where}", seq=kept.seq, dataset=dataset, column=column)
            if kept.seq
            else []
        )
        # A stored balance is a cache. If it ends at no entry of this account, it was edited, or the
        # entries were replaced by an older copy: then it is ignored.
        if not ends_at or ends_at[0].hash != kept.head:
            kept = Balance(dataset, column)
        for row in self.rows(dataset, column, after=kept.seq):
            kept.apply(row)
        return kept

    def keep(self, balance: Balance) -> None:
        """Store an account's balance in place of the earlier one."""
        self._run(
            "INSERT INTO {accounts} (dataset, label, seq, head, facts) VALUES (:dataset, :label,"
            " :seq, :head, :facts) ON CONFLICT (dataset, label) DO UPDATE SET seq = excluded.seq,"
            " head = excluded.head, facts = excluded.facts",
            dataset=balance.dataset,
            label=balance.column,
            seq=balance.seq,
            head=balance.head,
            facts=balance.to_text(),
        )

    def balances(self) -> list[Balance]:
        """Read all stored balances, unchecked."""
        return [
            Balance.from_text(*row)
            for row in self._run("SELECT dataset, label, seq, head, facts FROM {accounts}")
        ]

    # Parts
    # ----------------------------------------------------------------------------------------------

    def parts(self, run_id: str | None = None) -> list[tuple[str, Part]]:
        """Read (run id, part) pairs, of one run or of all, in the order of the parts."""
        where, values = (
            ("", {}) if run_id is None else (" WHERE run_id = :run_id", {"run_id": run_id})
        )
        found = self._run(
            f"SELECT run_id, number, name, n_rows, sha256 FROM {{parts}}{where} ORDER BY run_id,"
            " number",
            **values,
        )
        return [(row[0], Part(*row[1:])) for row in found]

    def replace_parts(self, run_id: str, parts: Iterable[Part]) -> None:
        """Store these parts of a run in place of all earlier ones."""
        self._run("DELETE FROM {parts} WHERE run_id = :run_id", run_id=run_id)
        for part in parts:
            self._run(
                "INSERT INTO {parts} (run_id, number, name, n_rows, sha256) VALUES (:run_id,"
                " :number, :name, :n_rows, :sha256)",
                run_id=run_id,
                number=part.number,
                name=part.name,
                n_rows=part.rows,
                sha256=part.sha256,
            )

    def _run(self, statement: str, **values: object) -> Sequence[tuple[Any, ...]]:
        tables = {name: self.prefix + name for name in ("entries", "accounts", "parts")}
        return self.query(statement.format(**tables), **values)


def opening_entry() -> dict[str, object]:
    """Make the first entry of a new ledger, with a random name, so that no two ledgers share a
    hash."""
    return {"kind": "open", "ledger": os.urandom(16).hex(), "format": VERSION}


DERIVED = """
CREATE TABLE {prefix}parts (
    run_id TEXT NOT NULL,
    number BIGINT NOT NULL,
    name TEXT NOT NULL,
    n_rows BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    PRIMARY KEY (run_id, number)
);
CREATE TABLE {prefix}accounts (
    dataset TEXT NOT NULL,
    label TEXT NOT NULL,
    seq BIGINT NOT NULL,
    head TEXT NOT NULL,
    facts TEXT NOT NULL,
    PRIMARY KEY (dataset, label)
);
"""
"""The tables besides the entries. Both follow from the entries, so `verify` finds any change of
them."""


# The ledger in a file
# --------------------------------------------------------------------------------------------------

# SQLite in WAL mode with synchronous=FULL: a transaction is on disk when it returns, and survives
# power loss. BEGIN IMMEDIATE lets one writer in at a time, across processes. Both need the locks
# and the shared memory of one machine, so network file systems are refused.

_APPLICATION: Final = 0x6C44502F  # marks the file as ours among SQLite files
_WAIT_SECONDS: Final = 120  # for other writers: each holds the lock for some milliseconds

_ENTRIES: Final = """
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY,
    previous TEXT NOT NULL,
    body TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE
);
CREATE INDEX entries_account
    ON entries (json_extract(body, '$.dataset'), json_extract(body, '$.column'));
CREATE INDEX entries_run ON entries (json_extract(body, '$.run_id'));
"""
# The indexes look into the text that is hashed: a column of its own would be a second copy of a
# fact, which could be changed unseen.


class SqliteSession(Session):
    """A transaction on a ledger file."""

    each = "json_each(:texts)"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def query(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows."""
        return self.connection.execute(statement, values).fetchall()

    def fact(self, name: str) -> str:
        """Give the SQL expression for a fact in an entry's text."""
        return f"json_extract(body, '$.{name}')"


@dataclass(frozen=True)
class SqliteStore:
    """The ledger in a file of this machine, which may not exist yet. A store holds no
    connection."""

    path: Path

    def exists(self) -> bool:
        """Tell whether there is a file, without a connection to it."""
        with _errors(self.path):
            return self.path.exists()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session | None]:
        """Open a read transaction; None if there is no file. A folder that cannot be read is an
        error, not an absent ledger."""
        with _errors(self.path):
            if not self.path.exists():
                yield None
                return
            with contextlib.closing(_connect(self.path)) as connection:
                connection.execute("BEGIN")
                yield SqliteSession(connection)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        """Open a write transaction, under the only write lock; create a missing file."""
        # before any lock is held: early after boot, entropy may have to be waited for
        first = opening_entry()
        with _errors(self.path):
            check_local(self.path)
            if not self.path.exists():
                _create(self.path, first)
            with contextlib.closing(_connect(self.path)) as connection:
                # IMMEDIATE takes the write lock before the first read, so that nothing read here is
                # outdated when the entry is written.
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield SqliteSession(connection)
                except BaseException:  # also an interrupt: a charge is written whole or not at all
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Translate errors of SQLite and of the system into a LedgerError; the transaction has been
    rolled back."""
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(
            f"Expected a labeldp ledger that can be read and written at {path}, got: {error}."
            " Nothing was written."
        ) from None
    except OSError as error:
        raise LedgerError(
            f"Expected to reach the ledger {path}, got: {error.strerror}. Nothing was written."
            " Check the folder."
        ) from None


def _connect(path: Path) -> sqlite3.Connection:
    """Connect to an existing ledger file, and refuse a file that is something else."""
    # SQLite takes an empty file for a new database: a ledger truncated to nothing would start again
    # with full budgets.
    if path.is_file() and path.stat().st_size == 0:
        raise LedgerError(
            f"Expected a labeldp ledger, got the empty file {path}: its history is gone. Restore"
            " it, or choose another path."
        )
    # mode=rw: SQLite must not create a file here. If the ledger vanished since `exists`, a new one
    # would have full budgets.
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=_WAIT_SECONDS
    )
    try:
        connection.execute("PRAGMA synchronous = FULL")
        _check_schema(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a database that is no ledger, is of another format, or is not in WAL mode."""
    (application,), (version,) = (
        connection.execute(f"PRAGMA {name}").fetchone()
        for name in ("application_id", "user_version")
    )
    if application != _APPLICATION:
        raise LedgerError(
            f"Expected a labeldp ledger, got another SQLite database at {path}. Give the ledger a"
            " file of its own."
        )
    if version != VERSION:
        raise LedgerError(
            f"Expected ledger format {VERSION}, got format {version} at {path}. Use the labeldp"
            " that wrote it."
        )
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        raise LedgerError(
            f"Expected the ledger {path} in SQLite's WAL mode, got {mode}. Keep it on a local disk."
        )


def _create(path: Path, opening: Mapping[str, object]) -> None:
    """Create the file under another name, then link it into place: no process sees half a ledger,
    and of several processes one wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            head = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {VERSION};"
            connection.executescript(
                f"{head} BEGIN; {_ENTRIES} {DERIVED.format(prefix='')} COMMIT;"
            )
            SqliteSession(connection).append(opening)
        # another process was first; a rename would replace its ledger and lose its charges
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
        sync(path.parent)  # else power loss could undo the link, and with it all charges
    finally:
        for name in (part, *(part.with_name(part.name + end) for end in ("-wal", "-shm"))):
            name.unlink(missing_ok=True)


# Where a ledger lies
# --------------------------------------------------------------------------------------------------

_NETWORK: Final = re.compile(
    "nfs4?|cifs|smb3|smbfs|ncpfs|afs|auristorfs|ceph|glusterfs|lustre|gpfs|beegfs|orangefs|pvfs2|"
    r"ocfs2|gfs2|coda|davfs|fuse\.(sshfs|s3fs|s3|gcsfuse|goofys|mount-s3|rclone|glusterfs|ceph.*|"
    r"juicefs|blobfuse.*|davfs|curlftpfs|smb.*|mfs|moosefs)"
)
# Left out: 9p and virtiofs, which virtual machines and sandboxes use for the host's own disk, and
# overlay, the disk of a container.
_URL: Final = re.compile(r"\s*postgresql(\+\w+)?:", re.IGNORECASE)


@dataclass(frozen=True, repr=False)
class LedgerUrl:
    """The URL of a ledger's database, which is shown and pickled without its password.

    Parameters
    ----------
    url : str
        "postgresql://USER@HOST/DATABASE", as SQLAlchemy takes it. Leave the password out and set it
        in ~/.pgpass or PGPASSWORD, where it is found after unpickling, too.
    """

    url: str

    def __str__(self) -> str:
        kind, rest = self.url.split("://", 1)
        # the last @: a password may hold an unescaped one, and would be shown from there on
        user, at, host = rest.rpartition("@")
        shown = re.sub(":.*", ":***", user, flags=re.DOTALL)
        return re.sub(
            r"(password=)[^&]*", r"\1***", f"{kind}://{shown}{at}{host}", flags=re.IGNORECASE
        )

    def __repr__(self) -> str:
        return repr(str(self))

    def __reduce__(self) -> tuple[object, ...]:
        return LedgerUrl, (self._without_password,)

    def __copy__(self) -> "LedgerUrl":
        return self

    def __deepcopy__(self, _: object) -> "LedgerUrl":
        # without this, copying would go through __reduce__: a clone of an estimator would lose the
        # password
        return self

    @property
    def name(self) -> str:
        """The URL without password and driver, which identifies the database."""
        return re.sub(r"^postgresql(\+\w+)?", "postgresql", self._without_password)

    @property
    def _without_password(self) -> str:
        return re.sub(
            "password=\\*\\*\\*", "", str(self).replace(":***@", "@"), flags=re.IGNORECASE
        )


def location_of(given: object) -> Path | LedgerUrl:
    """Convert a path, or the text of a path or URL, to the location of a ledger."""
    text = (
        given.url
        if isinstance(given, LedgerUrl)
        else str(given)
        if isinstance(given, (str, Path))
        else ""
    )
    if isinstance(given, LedgerUrl) or _URL.match(text):
        if not (_URL.match(text) and "://" in text and text.isprintable()):
            raise InvalidInput(
                "Expected the URL of a PostgreSQL database, got another text. Write"
                " postgresql://USER@HOST/DATABASE."
            )
        kind, rest = text.strip().split("://", 1)
        return LedgerUrl(f"{kind.lower()}://{rest}")  # by its name the runs' folder is found
    if not text.strip() or text.startswith(":"):
        raise InvalidInput(
            f"Expected the path of a file, got location={type(given).__name__}. Pass for example"
            " 'privacy/ledger.sqlite'."
        )
    path = Path(path_text(text)).expanduser().absolute()
    # A ledger reached by two names must have one folder of runs: else each name would miss the runs
    # of the other.
    return path.resolve() if path.is_symlink() else path


def default_location() -> Path | LedgerUrl:
    """Return the location of the user's own ledger: that in LABELDP_LEDGER, else a file in the
    user's data folder."""
    import platformdirs  # here for the same reason as in `runs_folder`

    return location_of(
        os.environ.get("LABELDP_LEDGER") or platformdirs.user_data_path("labeldp") / "ledger.sqlite"
    )


def command_line(location: Path | LedgerUrl, *words: str) -> str:
    """Write a command `labeldp ledger` that works on this ledger, for messages: with --ledger,
    unless it is the user's own."""
    # Without it, whoever pastes the command would change another ledger.
    own = location == default_location()
    place = (
        [] if own else ["--ledger", str(location) if isinstance(location, Path) else location.name]
    )
    return shlex.join(["labeldp", "ledger", *words, *place])


def runs_folder(location: Path | LedgerUrl) -> Path:
    """Return the private folder of a ledger's runs: beside a file; for a database in LABELDP_RUNS
    or the user's data folder."""
    if isinstance(location, Path):
        return location.with_name(f"{location.name}.runs")
    # here, because `ROW` and the events are used without a ledger on machines that may lack it
    import platformdirs

    chosen = os.environ.get("LABELDP_RUNS")
    base = (
        Path(path_text(chosen)).expanduser().absolute()
        if chosen
        else platformdirs.user_data_path("labeldp")
    )
    # no two ledgers share a folder
    return base / f"{hashlib.sha256(location.name.encode()).hexdigest()[:32]}.runs"


def check_local(path: Path) -> None:
    """Refuse a ledger file on a network file system, if the system tells."""
    # Locks of SQLite do not hold between machines there: two charges could both take the last of a
    # budget.
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    kind = _kind_at(os.path.realpath(folder))  # mounts are listed without symbolic links
    if kind is not None:
        raise LedgerError(
            f"Expected the ledger on a disk of this machine, got {path} on a network file system"
            f" ({kind}), where several machines can break it. Keep it on a local disk, or in"
            " PostgreSQL: postgresql://USER@HOST/DATABASE. Nothing was written."
        )


@functools.lru_cache(maxsize=64)
def _kind_at(folder: str) -> str | None:
    """Find the network file system that holds a folder; None for a local disk, or if the system
    does not list its mounts."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            return network_kind(folder, lines)
    except OSError:
        return None


def network_kind(folder: str, mountinfo: Iterable[str]) -> str | None:
    """Find the network file system that holds a folder; None if it is on a disk of this machine.

    Parameters
    ----------
    folder : str
        Absolute, without symbolic links.
    mountinfo : iterable of str
        The lines of /proc/self/mountinfo. Of two mounts at one place the later one hides the
        earlier.
    """
    # /proc/self/mountinfo rather than statfs, whose numbers do not tell the file systems behind
    # FUSE apart.
    best, found = -1, ""
    for line in mountinfo:
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right.split():
            continue
        # the deepest mount above the folder holds it; spaces and the like are written as octal
        # codes
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
        if len(point) >= best and (folder == point or folder.startswith(point.rstrip("/") + "/")):
            best, found = len(point), right.split()[0]
    return found if _NETWORK.fullmatch(found) else None
