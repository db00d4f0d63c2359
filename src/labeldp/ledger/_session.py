# SPDX-License-Identifier: Apache-2.0
"""What a ledger's database is asked, the same for every kind of database: entries, parts, and what accounts stand at.

A store opens sessions: `reading` (one consistent view) and `writing` (the only writer; all of it is on disk when the block ends, or
nothing). The tables `parts` and `accounts` follow from the entries: parts have their digest in the chain, accounts are a shortcut that
is dropped where it does not end at an entry of the chain.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from labeldp.errors import LedgerError
from labeldp.ledger._entries import GENESIS, Balance, Part, Row, entry_hash, text

VERSION = 2
"""Of the tables; a ledger of another one is refused."""


class Session(ABC):
    """An open transaction on a ledger's database."""

    prefix = ""
    """Of the tables' names."""
    each = ""
    """The SQL table with the column `value` of the texts in a JSON list, the parameter :texts."""

    @abstractmethod
    def query(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        """Run a statement with :named values; its rows, if it has any."""

    @abstractmethod
    def fact(self, name: str) -> str:
        """The SQL expression for a fact in an entry's text, of the form that the index has."""

    # Entries ------------------------------------------------------------------------------------------------------------------------

    def rows(self, dataset: str | None = None, column: str | None = None, after: int = 0) -> list[Row]:
        """The entries behind entry `after`, in order: of a data set, a column or both; for neither all of them, the opening one too."""
        given = {name: value for name, value in (("dataset", dataset), ("column", column)) if value is not None}
        where = "".join(f" AND {self.fact(name)} = :{name}" for name in given)
        return self._entries(f"seq > :after{where} ORDER BY seq", after=after, **given)

    def run_rows(self, run_id: str) -> list[Row]:
        """The entries of one run."""
        return self._entries(f"{self.fact('run_id')} = :run_id ORDER BY seq", run_id=run_id)

    def request_rows(self, dataset: str, column: str, identity: str) -> list[Row]:
        """The charges of one request."""
        where = " AND ".join(f"{self.fact(name)} = :{name}" for name in ("dataset", "column", "identity"))
        return self._entries(f"{where} ORDER BY seq", dataset=dataset, column=column, identity=identity)

    def unknown(self, run_ids: Sequence[str]) -> list[str]:
        """Which of these runs no entry is about."""
        known = f"SELECT 1 FROM {{entries}} WHERE {self.fact('run_id')} = value"
        found = self._run(f"SELECT value FROM {self.each} WHERE NOT EXISTS ({known})", texts=json.dumps(list(run_ids)))
        return [str(row[0]) for row in found]

    def append(self, body: Mapping[str, object]) -> Row:
        """Add an entry behind the last one."""
        last = self._entries("seq = (SELECT MAX(seq) FROM {entries})")
        seq, head = (last[0][0], last[0][3]) if last else (0, GENESIS)
        if last and entry_hash(last[0][1], last[0][2]) != head:
            raise LedgerError(f"Expected the ledger's last entry, {seq}, to have its hash; it was rewritten. Run `verify`.")
        written = text({"seq": seq + 1, **body})
        new = (seq + 1, head, written, entry_hash(head, written))
        names = dict(zip(("seq", "previous", "body", "hash"), new, strict=True))
        self._run("INSERT INTO {entries} (seq, previous, body, hash) VALUES (:seq, :previous, :body, :hash)", **names)
        return new

    def _entries(self, where: str, **values: object) -> list[Row]:
        return [
            (int(row[0]), row[1], row[2], row[3])
            for row in self._run(f"SELECT seq, previous, body, hash FROM {{entries}} WHERE {where}", **values)
        ]

    # What accounts stand at ---------------------------------------------------------------------------------------------------------

    def balance(self, dataset: str, column: str) -> Balance:
        """What the entries of a (dataset, column) add up to: from where it was last written down, or else from the start."""
        kept = self._kept(dataset, column)
        if kept is None or self._head_of(kept) != kept.head:
            kept = Balance(dataset, column)
        for row in self.rows(dataset, column, after=kept.seq):
            kept.apply(row)
        return kept

    def keep(self, balance: Balance) -> None:
        """Write down what an account stands at."""
        self._run("DELETE FROM {accounts} WHERE dataset = :dataset AND label = :label", dataset=balance.dataset, label=balance.column)
        self._run(
            "INSERT INTO {accounts} (dataset, label, seq, head, facts) VALUES (:dataset, :label, :seq, :head, :facts)",
            dataset=balance.dataset,
            label=balance.column,
            seq=balance.seq,
            head=balance.head,
            facts=balance.to_text(),
        )

    def balances(self) -> list[Balance]:
        """All that is written down."""
        found = self._run("SELECT dataset, label, seq, head, facts FROM {accounts}")
        return [Balance.from_text(*row) for row in found]

    def _head_of(self, kept: Balance) -> str | None:
        """The hash of the account's own entry that a balance ends at, or None if there is no such entry."""
        where = " AND ".join(f"{self.fact(name)} = :{name}" for name in ("dataset", "column"))
        found = self._entries(f"seq = :seq AND {where}", seq=kept.seq, dataset=kept.dataset, column=kept.column)
        return found[0][3] if found else None

    def _kept(self, dataset: str, column: str) -> Balance | None:
        where = "dataset = :dataset AND label = :label"
        found = self._run(f"SELECT dataset, label, seq, head, facts FROM {{accounts}} WHERE {where}", dataset=dataset, label=column)
        return Balance.from_text(*found[0]) if found else None

    # Parts --------------------------------------------------------------------------------------------------------------------------

    def parts(self, run_id: str | None = None) -> list[tuple[str, Part]]:
        """(run id, part) of one run, or of all, by number."""
        where, values = ("", {}) if run_id is None else (" WHERE run_id = :run_id", {"run_id": run_id})
        found = self._run(f"SELECT run_id, number, name, n_rows, sha256 FROM {{parts}}{where} ORDER BY run_id, number", **values)
        return [(row[0], Part(*row[1:])) for row in found]

    def replace_parts(self, run_id: str, parts: Iterable[Part]) -> None:
        """Keep these parts of a run and no others."""
        self._run("DELETE FROM {parts} WHERE run_id = :run_id", run_id=run_id)
        for part in parts:
            self._run(
                "INSERT INTO {parts} (run_id, number, name, n_rows, sha256) VALUES (:run_id, :number, :name, :n_rows, :sha256)",
                run_id=run_id,
                number=part.number,
                name=part.name,
                n_rows=part.rows,
                sha256=part.sha256,
            )

    def _run(self, statement: str, **values: object) -> Sequence[tuple[Any, ...]]:
        tables = {name: self.prefix + name for name in ("entries", "accounts", "parts")}
        return self.query(statement.format(**tables), **values)


class Store(Protocol):
    """Where a ledger's database is, and how it is opened."""

    def exists(self) -> bool:
        """Whether there is a ledger; one that cannot be reached is an error."""

    def reading(self) -> AbstractContextManager[Session]:
        """One consistent view of an existing ledger."""

    def writing(self, opening: Mapping[str, object]) -> AbstractContextManager[Session]:
        """The only writer; a missing ledger is made, with `opening` as its first entry."""


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
"""The tables besides the entries, which follow from them."""
