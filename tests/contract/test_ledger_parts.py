# SPDX-License-Identifier: Apache-2.0
"""Announced parts, and what accounts are kept to stand at."""

import json
from dataclasses import dataclass, replace

import pytest
from tests.contract.test_ledger import charge, execute, inside

from labeldp.errors import LedgerError
from labeldp.ledger import _database as ledger_entries
from labeldp.ledger._database import Session
from labeldp.ledger._ledger import Ledger, Part
from labeldp.noise._words import new_run_id

PARTS = [Part(0, "part-00000.parquet", 10, "a" * 64), Part(1, "part-00001.parquet", 0, "b" * 64)]


@dataclass(frozen=True)
class Written:
    """What a writer hands over: it has no number of its own."""

    name: str
    rows: int
    sha256: str
    size: int = 1


FILES = [Written(part.name, part.rows, part.sha256) for part in PARTS]


def test_parts_are_announced_once_each(ledger: Ledger) -> None:
    run = charge(ledger).run_id
    assert ledger.parts(run) == []
    for _ in range(2):
        ledger.intend(run, FILES)
    assert ledger.parts(run) == PARTS
    assert [entry["kind"] for entry in ledger.history()] == ["open", "budget", "charge", "parts"]
    assert (ledger.history()[-1]["count"], ledger.history()[-1]["digest"]) == (
        2,
        ledger_entries.parts_digest(PARTS),
    )
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


# What accounts are kept to stand at
# --------------------------------------------------------------------------------------------------


def kept_text(ledger: Ledger) -> str:
    with inside(ledger) as database:
        return str(database("SELECT facts FROM {accounts}")[0][0])


def test_a_charge_reads_only_what_is_new(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.set_budget("clicks", "label", 9.0)
    read: list[int] = []
    real = Session.rows

    def counted(
        self: Session, dataset: str | None = None, column: str | None = None, after: int = 0
    ) -> list[ledger_entries.Row]:
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


@pytest.mark.parametrize(
    "facts", ['{"budget":"99","total":"0","everywhere":"0","unit":"row","runs":0}', "no json", "{}"]
)
def test_a_forged_standing_is_seen(ledger: Ledger, facts: str) -> None:
    charge(ledger)
    with inside(ledger) as database:
        database("UPDATE {accounts} SET facts = :facts", facts=facts)
    # read from the entries
    assert (ledger.spent("clicks", "label"), ledger.budget_of("clicks", "label")) == (1.0, 1.0)
    if facts.startswith('{"b'):
        assert "is not what its entries add up to" in " ".join(ledger.verify())
    else:  # what cannot be read is added up again
        with pytest.raises(Exception, match=r"budget 1\.0 for .* is spent"):
            charge(ledger)


def test_a_forged_standing_in_the_past_is_seen(ledger: Ledger) -> None:
    ledger.set_budget("clicks", "label", 2.0)
    charge(ledger)
    head = ledger.history()[1]["hash"]
    with inside(ledger) as database:
        facts = '{"budget":"99","total":"0","everywhere":"0","unit":null,"runs":0}'
        database(
            "UPDATE {accounts} SET seq = 2, head = :head, facts = :facts", head=head, facts=facts
        )
    assert "is not what its entries add up to" in " ".join(ledger.verify())


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM {accounts}",
        "UPDATE {accounts} SET head = 'x'",
        "UPDATE {accounts} SET seq = 999",
    ],
)
def test_a_standing_that_does_not_end_at_an_entry_is_dropped(
    ledger: Ledger, statement: str
) -> None:
    charge(ledger)
    with inside(ledger) as database:
        database(statement)
    with pytest.raises(Exception, match=r"budget 1\.0 for .* is spent"):
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
