# SPDX-License-Identifier: Apache-2.0
"""Announced parts, what accounts are kept to stand at, and ledgers that older versions wrote."""

import contextlib
import json
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.contract.test_ledger import charge, execute, inside

from labeldp.errors import LedgerError
from labeldp.privacy import ledger_entries
from labeldp.privacy.ledger import Ledger, Part
from labeldp.privacy.ledger_session import Session
from labeldp.privacy.noise import new_run_id

PARTS = [Part(0, "part-00000.parquet", 10, "a" * 64), Part(1, "part-00001.parquet", 0, "b" * 64)]


@dataclass(frozen=True)
class Written:
    """What a writer hands over: it has no number of its own."""

    name: str
    rows: int
    sha256: str
    size: int = 1


FILES = [Written(part.name, part.rows, part.sha256) for part in PARTS]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def test_parts_are_announced_once_each(ledger: Ledger) -> None:
    run = charge(ledger).run_id
    assert ledger.parts(run) == []
    for _ in range(2):
        ledger.intend(run, FILES)
    assert ledger.parts(run) == PARTS
    assert [entry["kind"] for entry in ledger.history()] == ["open", "budget", "charge", "parts"]
    assert (ledger.history()[-1]["count"], ledger.history()[-1]["digest"]) == (2, ledger_entries.parts_digest(PARTS))
    assert ledger.verify() == []
    ledger.settle(run, "digest")
    ledger.intend(run, FILES)
    assert [entry["kind"] for entry in ledger.history()][-1] == "settle"


def test_others_take_their_place_until_the_run_settles(ledger: Ledger) -> None:
    run = charge(ledger).run_id
    ledger.intend(run, FILES)
    other = [replace(FILES[1], sha256="c" * 64)]
    ledger.intend(run, other)
    assert [(part.number, part.sha256) for part in ledger.parts(run)] == [(0, "c" * 64)]
    assert ledger.verify() == []
    ledger.settle(run, "digest")
    with pytest.raises(LedgerError, match="settled already"):
        ledger.intend(run, FILES)
    with pytest.raises(LedgerError, match="does not know"):
        ledger.intend(new_run_id(), FILES)
    assert [part.sha256 for part in ledger.parts(run)] == ["c" * 64]


def test_no_parts_can_be_announced_too(ledger: Ledger) -> None:
    run = charge(ledger).run_id
    ledger.intend(run, [])
    assert ledger.parts(run) == []
    assert ledger.history()[-1]["count"] == 0
    assert ledger.verify() == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {parts} SET n_rows = 11 WHERE number = 0",
        "UPDATE {parts} SET sha256 = 'forged' WHERE number = 1",
        "DELETE FROM {parts} WHERE number = 1",
        "DELETE FROM {parts}",
        "INSERT INTO {parts} VALUES ('00', 0, 'x', 1, 'x')",
    ],
)
def test_a_changed_table_of_parts_is_seen(ledger: Ledger, statement: str) -> None:
    run = charge(ledger).run_id
    ledger.intend(run, FILES)
    with inside(ledger) as database:
        database(statement)
    assert "parts of run" in " ".join(ledger.verify())


# What accounts are kept to stand at --------------------------------------------------------------------------------------------------


def kept_text(ledger: Ledger) -> str:
    with inside(ledger) as database:
        return str(database("SELECT facts FROM {accounts}")[0][0])


def test_a_charge_reads_only_what_is_new(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.set_budget("clicks", "label", 9.0)
    read: list[int] = []
    real = Session.rows

    def counted(self: Session, dataset: str | None = None, column: str | None = None, after: int = 0) -> list[ledger_entries.Row]:
        found = real(self, dataset, column, after)
        read.append(len(found))
        return found

    monkeypatch.setattr(Session, "rows", counted)
    for _ in range(5):
        ledger.settle(charge(ledger).run_id, "digest")
    assert sum(read) <= 2 * 5
    monkeypatch.undo()
    assert json.loads(kept_text(ledger))["total"] == "5"
    assert ledger.verify() == []


@pytest.mark.parametrize("facts", ['{"budget":"99","total":"0","everywhere":"0","unit":"row","runs":0}', "no json", "{}"])
def test_a_forged_standing_is_seen(ledger: Ledger, facts: str) -> None:
    charge(ledger)
    with inside(ledger) as database:
        database("UPDATE {accounts} SET facts = :facts", facts=facts)
    assert (ledger.spent("clicks", "label"), ledger.budget_of("clicks", "label")) == (1.0, 1.0)  # read from the entries
    if facts.startswith('{"b'):
        assert "is not what its entries add up to" in " ".join(ledger.verify())
    else:  # what cannot be read is added up again
        with pytest.raises(Exception, match=r"remains of budget 1\.0"):
            charge(ledger)


def test_a_forged_standing_in_the_past_is_seen(ledger: Ledger) -> None:
    ledger.set_budget("clicks", "label", 2.0)
    charge(ledger)
    head = ledger.history()[1]["hash"]
    with inside(ledger) as database:
        facts = '{"budget":"99","total":"0","everywhere":"0","unit":null,"runs":0}'
        database("UPDATE {accounts} SET seq = 2, head = :head, facts = :facts", head=head, facts=facts)
    assert "is not what its entries add up to" in " ".join(ledger.verify())


@pytest.mark.parametrize("statement", ["DELETE FROM {accounts}", "UPDATE {accounts} SET head = 'x'", "UPDATE {accounts} SET seq = 999"])
def test_a_standing_that_does_not_end_at_an_entry_is_dropped(ledger: Ledger, statement: str) -> None:
    charge(ledger)
    with inside(ledger) as database:
        database(statement)
    with pytest.raises(Exception, match=r"remains of budget 1\.0"):
        charge(ledger)
    ledger.set_budget("clicks", "label", 3.0)
    charge(ledger)
    assert json.loads(kept_text(ledger))["total"] == "2"


def test_after_a_cut_history_the_standing_is_not_trusted(ledger: Ledger) -> None:
    ledger.set_budget("clicks", "label", 2.0)
    for _ in range(2):
        charge(ledger)
    execute(ledger, "DELETE FROM entries WHERE seq = 4")
    charge(ledger)
    assert (ledger.spent("clicks", "label"), json.loads(kept_text(ledger))["total"]) == (2.0, "2")


# Older versions ----------------------------------------------------------------------------------------------------------------------

VERSION_1 = """
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY,
    previous TEXT NOT NULL,
    body TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE
);
CREATE INDEX entries_account ON entries (json_extract(body, '$.dataset'), json_extract(body, '$.column'));
CREATE INDEX entries_run ON entries (json_extract(body, '$.run_id'));
"""


def version_1(path: Path, bodies: list[dict[str, object]]) -> None:
    """A file as version 1 wrote it: charges said nothing of rows."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"PRAGMA application_id = {0x6C44502F}; PRAGMA user_version = 1; {VERSION_1}")
        head = "0" * 64
        for seq, body in enumerate(bodies, start=1):
            text = ledger_entries.text(body | {"seq": seq})
            new = ledger_entries.entry_hash(head, text)
            connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (seq, head, text, new))
            head = new
    path.chmod(0o600)


def old_bodies(runs: list[str]) -> list[dict[str, object]]:
    names = {"dataset": "clicks", "column": "label"}
    event = {"event": "label_draw", "epsilon": 1.0}
    charge = {"kind": "charge", **names, "unit": "row", "max_rows_per_unit": 1, "epsilon": "1.0", "delta": "0.0", "event": event}
    return [
        {"kind": "open", "ledger": "0" * 32, "format": 1, "at": "2026-01-01T00:00:00.000+00:00"},
        {"kind": "budget", **names, "budget": "3.0", "why": "declared", "at": "2026-01-01T00:00:00.000+00:00"},
        *({**charge, "identity": "request", "run_id": run, "repeatable": True, "at": "2026-01-02T00:00:00.000+00:00"} for run in runs),
        {"kind": "settle", **names, "run_id": runs[0], "artefact": "digest", "at": "2026-01-03T00:00:00.000+00:00"},
    ]


def test_a_ledger_of_version_1_is_read_and_becomes_version_2(tmp_path: Path) -> None:
    path, runs = tmp_path / "old.sqlite", [new_run_id(), new_run_id()]
    version_1(path, old_bodies(runs))
    ledger = Ledger(path)

    def version() -> int:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return int(connection.execute("PRAGMA user_version").fetchone()[0])

    assert [(run.run_id, run.state, run.rows) for run in ledger.runs()] == [(runs[0], "settled", None), (runs[1], "charged", None)]
    assert (ledger.spent("clicks", "label"), ledger.remaining("clicks", "label"), ledger.parts(runs[1])) == (2.0, 1.0, [])
    receipt = ledger.runs()[1].receipt
    assert ledger.verify([receipt]) == []
    assert version() == 1  # reading changes nothing
    charge(ledger)
    assert version() == 2
    ledger.intend(runs[1], FILES)
    assert ledger.parts(runs[1]) == PARTS
    assert ledger.spent("clicks", "label") == 3.0
    with pytest.raises(Exception, match=r"epsilon <= 0\.0"):
        charge(ledger)
    assert ledger.verify([receipt]) == []
    assert [entry["kind"] for entry in ledger.history()][:5] == ["open", "budget", "charge", "charge", "settle"]
