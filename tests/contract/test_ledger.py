# SPDX-License-Identifier: Apache-2.0
"""The ledger: budgets, states, refusals, and a history that shows when it was touched."""

import contextlib
import copy
import json
import logging
import math
import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import runs

from labeldp.errors import BudgetExceeded, InvalidInput, LedgerError
from labeldp.ledger import _database as ledger_entries
from labeldp.ledger._database import LabelDraw
from labeldp.ledger._ledger import Ledger, Spending
from labeldp.noise._words import new_run_id
from labeldp.receipt import Receipt


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "a folder" / "l%?#.sqlite")


def charge(
    ledger: Ledger,
    epsilon: float = 1.0,
    dataset: str = "clicks",
    column: str = "label",
    **facts: Any,
) -> Receipt:
    unit = facts.get("unit", "row")
    event = LabelDraw({"law": "rr", "n_classes": 3}, epsilon, unit=unit).to_dict()
    given = {"event": event, "identity": "request", "run_id": new_run_id()} | facts
    return runs.charge(ledger, dataset=dataset, column=column, epsilon=epsilon, **given)


# Budgets
# --------------------------------------------------------------------------------------------------


def test_a_charge_is_refused_beforehand_and_nothing_is_written(ledger: Ledger) -> None:
    wanted = Spending(
        "clicks", "label", 1.0, LabelDraw({"law": "rr"}, 1.0).to_dict(), "request", new_run_id()
    )
    ledger.require(wanted)
    with pytest.raises(BudgetExceeded):
        Ledger(ledger.location, budget=0.5).require(wanted)
    assert not ledger.exists()
    result = ledger.run_dir("0" * 32) / "release.parquet"
    result.parent.mkdir(mode=0o700, parents=True)
    result.write_bytes(b"")
    # before hours of training, not after
    with pytest.raises(LedgerError, match="every run that has results"):
        ledger.require(wanted)
    assert not ledger.exists()


def test_three_charges_of_a_tenth_are_three_tenths(ledger: Ledger) -> None:
    bounded = Ledger(ledger.location, budget=0.3)
    for spent, remaining in ((0.1, 0.2), (0.2, 0.1), (0.3, 0.0)):
        charge(bounded, 0.1)
        assert (ledger.spent("clicks", "label"), ledger.remaining("clicks", "label")) == (
            spent,
            remaining,
        )
    with pytest.raises(BudgetExceeded):
        charge(bounded, 1e-300)
    assert ledger.spent("clicks", "label") == 0.3


COMMAND = "labeldp ledger set-budget --dataset clicks --label label --budget 1.25"


def test_refusal_says_what_remains_where_and_what_to_do(ledger: Ledger) -> None:
    charge(Ledger(ledger.location, budget=1.0), 0.75)
    with pytest.raises(BudgetExceeded) as caught:
        charge(ledger, 0.5)
    for part in (
        "epsilon <= 0.25",
        "budget 1.0",
        "epsilon=0.5",
        str(ledger.location),
        "set_budget('clicks', 'label', 1.25)",
        COMMAND,
    ):
        assert part in str(caught.value)
    assert len(ledger.runs()) == 1
    ledger.set_budget("clicks", "label", 1.25)
    charge(ledger, 0.5)
    assert ledger.remaining("clicks", "label") == 0.0


def test_a_printed_command_works_on_the_ledger_that_it_is_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "the ledger.sqlite"
    ledger, own = Ledger(place), f"{COMMAND} --ledger '{place}'"
    charge(Ledger(place, budget=1.0), 0.75)
    for location, command in [("elsewhere.sqlite", own), (str(place), COMMAND)]:
        monkeypatch.setenv("LABELDP_LEDGER", location)
        with pytest.raises(BudgetExceeded) as caught:
            charge(ledger, 0.5)
        assert f"`{command}`" in str(caught.value)
    assert (
        Ledger("postgresql://a:secret@host/db").command("spent")
        == "labeldp ledger spent --ledger postgresql://a@host/db"
    )


def test_first_charge_without_a_budget_sets_it_and_says_so(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    assert ledger.budget_of("clicks", "label") is None
    assert ledger.remaining("clicks", "label") == math.inf
    with caplog.at_level(logging.WARNING, "labeldp"):
        charge(ledger, 0.7)
    assert "budget of dataset 'clicks', column 'label' is now 0.7 (first charge)" in caplog.text
    assert (ledger.budget_of("clicks", "label"), ledger.remaining("clicks", "label")) == (0.7, 0.0)
    with pytest.raises(BudgetExceeded):
        charge(ledger, 0.1)


def test_a_budget_that_could_not_be_written_is_not_told_of(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, balance: object) -> None:
        raise LedgerError("The disk is full.")  # of whichever database

    monkeypatch.setattr(ledger_entries.Session, "keep", full)
    with caplog.at_level(logging.INFO, "labeldp"), pytest.raises(LedgerError, match="disk is full"):
        charge(ledger, 0.7)
    assert caplog.text == ""
    assert ledger.budget_of("clicks", "label") is None


def test_a_declared_budget_that_is_too_small_leaves_no_trace(ledger: Ledger) -> None:
    with pytest.raises(BudgetExceeded):
        charge(Ledger(ledger.location, budget=0.5), 0.6)
    assert ledger.budget_of("clicks", "label") is None
    assert [entry["kind"] for entry in ledger.history()] == ["open"]


def test_another_budget_is_set_by_name_only(ledger: Ledger) -> None:
    charge(Ledger(ledger.location, budget=2.0))
    with pytest.raises(LedgerError, match=r"set_budget\('clicks', 'label', 5.0\)"):
        charge(Ledger(ledger.location, budget=5.0))
    ledger.set_budget("clicks", "label", 5.0)
    charge(Ledger(ledger.location, budget=5.0))
    assert ledger.spent("clicks", "label") == 2.0


def test_datasets_and_columns_are_separate_accounts(ledger: Ledger) -> None:
    for dataset, column in (("a", "b"), ("a", "c"), ("b", "b"), ("ä", "b")):
        charge(ledger, 0.5, dataset, column)
        assert ledger.spent(dataset, column) == 0.5
    assert len(ledger.runs()) == 4
    assert [run.receipt.column for run in ledger.runs("a")] == ["b", "c"]
    assert len(ledger.runs(column="b")) == 3
    assert ledger.spent("a", "d") == 0


def test_sums_are_exact_and_rounded_up(ledger: Ledger) -> None:
    ledger.set_budget("clicks", "label", 1.7e308)
    charge(ledger, 1.0)
    charge(ledger, 5e-324)
    assert ledger.spent("clicks", "label") == math.nextafter(1.0, 2)
    charge(ledger, 1.69e308)
    with pytest.raises(BudgetExceeded, match="inf"):
        charge(ledger, 1.7e308)


# Runs
# --------------------------------------------------------------------------------------------------


def test_a_run_from_charge_to_settling(ledger: Ledger) -> None:
    receipt = charge(ledger, identity="x", max_rows_per_unit=3, unit="user", delta=1e-9)
    assert receipt.recorded
    assert receipt.secure
    assert (receipt.unit, receipt.max_rows_per_unit, receipt.epsilon, receipt.delta) == (
        "user",
        3,
        1.0,
        1e-9,
    )
    run = ledger.find("clicks", "label", "x")
    assert run is not None
    assert (run.state, run.receipt, run.artefact, run.settled_at) == ("charged", receipt, "", "")
    ledger.settle(receipt.run_id, "digest")
    ledger.settle(receipt.run_id, "digest")
    run = ledger.find("clicks", "label", "x")
    assert run is not None
    assert (run.state, run.receipt, run.artefact) == ("settled", receipt, "digest")
    assert run.settled_at >= run.receipt.entry.charged_at == receipt.entry.charged_at
    assert [entry["kind"] for entry in ledger.history()] == ["open", "budget", "charge", "settle"]
    assert receipt.entry.ledger_head == ledger.history()[2]["hash"]
    assert Receipt.from_dict(json.loads(json.dumps(receipt.to_dict()))) == receipt


def test_states_that_do_not_follow(ledger: Ledger) -> None:
    ledger.set_budget("clicks", "label", 9.0)
    settled, abandoned = charge(ledger).run_id, charge(ledger).run_id
    ledger.settle(settled, "digest")
    ledger.abandon(abandoned, "disk full")
    ledger.abandon(abandoned, "again")
    for broken in (
        lambda: ledger.settle(settled, "another"),
        lambda: ledger.abandon(settled, "late"),
        lambda: ledger.settle(abandoned, "digest"),
        lambda: ledger.settle(new_run_id(), "digest"),
        lambda: ledger.abandon(new_run_id(), "unknown"),
        lambda: charge(ledger, run_id=settled),
    ):
        with pytest.raises(LedgerError, match="Expected"):
            broken()
    assert ledger.spent("clicks", "label") == 2.0
    assert [run.state for run in ledger.runs()] == ["settled", "abandoned"]


def test_find_is_the_latest_that_can_be_read_or_picked_up(ledger: Ledger) -> None:
    ledger.set_budget("clicks", "label", 9.0)
    assert ledger.find("clicks", "label", "request") is None
    first, second, third = (charge(ledger).run_id for _ in range(3))
    charge(ledger, repeatable=False)
    charge(ledger, identity="other")
    ledger.settle(first, "digest")
    for expected, close in ((third, third), (second, second), (first, None)):
        found = ledger.find("clicks", "label", "request")
        assert found is not None
        assert found.run_id == expected
        if close:
            ledger.abandon(close, "test")
    assert ledger.find("clicks", "other", "request") is None
    assert ledger.spent("clicks", "label") == 5.0


def test_one_unit_for_a_dataset_and_column(ledger: Ledger) -> None:
    ledger.set_budget("clicks", "label", 9.0)
    charge(ledger, unit="user", max_rows_per_unit=2)
    with pytest.raises(LedgerError, match=r"'user'.*'row'"):
        charge(ledger)
    charge(ledger, unit="user")
    charge(ledger, column="other")


def test_run_dir_is_beside_the_ledger(ledger: Ledger) -> None:
    run_id = new_run_id()
    assert ledger.run_dir(run_id) == Path(f"{ledger.location}.runs") / run_id
    assert not ledger.run_dir(run_id).exists()
    for bad in ("../../etc", "", "A" * 32, "0" * 31, "0" * 32 + "\n"):
        with pytest.raises(InvalidInput, match="run id"):
            ledger.run_dir(bad)


# Refusals
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "facts",
    [
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": "1.0"},
        {"epsilon": True},
        {"delta": math.nan},
        {"delta": -1e-9},
        {"delta": 1.0},
        {"dataset": ""},
        {"dataset": None},
        {"dataset": "a\nb"},
        {"dataset": "a\0"},
        {"dataset": "\ud800"},
        {"column": ""},
        {"unit": ""},
        {"max_rows_per_unit": 0},
        {"max_rows_per_unit": 1.0},
        {"identity": ""},
        {"run_id": "short"},
        {"event": {}},
        {"event": {"event": "unknown", "epsilon": 1.0}},
        {"event": LabelDraw({}, 1.5).to_dict()},
        {"event": LabelDraw({}, 1.0, delta=0.5).to_dict()},
        {"event": LabelDraw({}, 1.0, unit="user").to_dict()},
        {"event": LabelDraw({"x": object}, 1.0).to_dict()},
        {"event": LabelDraw({"x": math.nan}, 1.0).to_dict()},
    ],
    ids=repr,
)
def test_nothing_bad_is_charged(ledger: Ledger, facts: dict[str, object]) -> None:
    good = {
        "dataset": "clicks",
        "column": "label",
        "epsilon": 1.0,
        "event": LabelDraw({}, 1.0).to_dict(),
        "identity": "request",
        "run_id": new_run_id(),
    }
    with pytest.raises(InvalidInput, match="Expected"):
        runs.charge(ledger, **(good | facts))
    assert ledger.history() == []


@pytest.mark.parametrize("budget", [math.nan, math.inf, 0.0, -1.0, "1", True])
def test_budgets_that_are_none(tmp_path: Path, budget: object) -> None:
    with pytest.raises(InvalidInput, match="budget"):
        Ledger(tmp_path / "l", budget=budget)
    with pytest.raises(InvalidInput, match="budget"):
        Ledger(tmp_path / "l").set_budget("a", "b", budget)


# The value and its file
# --------------------------------------------------------------------------------------------------


def test_a_ledger_is_a_value(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    receipt = charge(ledger)
    for twin in (
        copy.deepcopy(ledger),
        pickle.loads(pickle.dumps(ledger)),
        Ledger(str(ledger.location)),
    ):
        assert twin == ledger
        assert twin.runs()[0].receipt == receipt
    monkeypatch.chdir(tmp_path)
    relative = Ledger("a folder/l%?#.sqlite")
    monkeypatch.chdir("/")
    assert relative == ledger


def test_reading_makes_no_file(ledger: Ledger) -> None:
    assert (
        ledger.spent("a", "b"),
        ledger.runs(),
        ledger.history(),
        ledger.find("a", "b", "c"),
    ) == (0, [], [], None)
    with pytest.raises(LedgerError, match="no such file"):
        ledger.verify()
    assert not Path(ledger.location).parent.exists()


def test_only_the_owner_can_read(ledger: Ledger) -> None:
    before = os.umask(0)
    try:
        charge(ledger)
    finally:
        os.umask(before)
    path = Path(ledger.location)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_clock_going_back_is_harmless(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.set_budget("clicks", "label", 9.0)
    days = iter(range(28, 0, -1))
    monkeypatch.setattr(
        "labeldp.ledger._database.utc_now", lambda: f"2026-01-{next(days):02}T00:00:00+00:00"
    )
    first, second = charge(ledger), charge(ledger)
    ledger.settle(first.run_id, "digest")
    found = ledger.find("clicks", "label", "request")
    assert found is not None
    assert found.run_id == second.run_id
    assert ledger.verify([first, second]) == []


# History
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(ledger: Ledger) -> list[Receipt]:
    """Receipts of three charges that were kept elsewhere."""
    ledger.set_budget("clicks", "label", 9.0)
    receipts = [charge(ledger) for _ in range(3)]
    ledger.settle(receipts[0].run_id, "digest")
    return receipts


@contextlib.contextmanager
def inside(ledger: Ledger) -> Iterator[Any]:
    """Whoever may write to the database itself: a function of a statement."""
    with ledger._store.writing() as session:
        yield lambda statement, **values: session._run(statement, **values)


def execute(ledger: Ledger, statement: str) -> None:
    with inside(ledger) as run:
        run(statement.replace("entries", "{entries}"))


def rewrite(ledger: Ledger, change: Any) -> None:
    """A forger who recomputes the whole chain: entries as `change` makes them of the old ones."""
    with inside(ledger) as run:
        bodies = [json.loads(body) for (body,) in run("SELECT body FROM {entries} ORDER BY seq")]
        run("DELETE FROM {entries}")
        head = ledger_entries.GENESIS
        for seq, body in enumerate(change(bodies), start=1):
            text = ledger_entries.canonical_text(body | {"seq": seq})
            new = ledger_entries.entry_hash(head, text)
            run("INSERT INTO {entries} VALUES (:a, :b, :c, :d)", a=seq, b=head, c=text, d=new)
            head = new


def test_a_whole_history_verifies(ledger: Ledger, kept: list[Receipt]) -> None:
    assert ledger.verify() == ledger.verify(kept) == []


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (
            (
                'UPDATE entries SET body = replace(body, \'"epsilon":"1.0"\', \'"epsilon":"0.1"\')'
                " WHERE seq = 4"
            ),
            "Entry 4 was rewritten",
        ),
        ("DELETE FROM entries WHERE seq = 4", "breaks at entry 4"),
        ("DELETE FROM entries WHERE seq = 1", "breaks at entry 1"),
        ("UPDATE entries SET seq = 99 WHERE seq = 5", "breaks at entry 5"),
        ("UPDATE entries SET previous = hash WHERE seq = 5", "breaks at entry 5"),
        ("UPDATE entries SET hash = 'x' WHERE seq = 6", "Entry 6 was rewritten"),
        ("DELETE FROM entries", "history was deleted"),
    ],
)
def test_touched_entries_are_seen_without_receipts(
    ledger: Ledger, kept: list[Receipt], statement: str, says: str
) -> None:
    execute(ledger, statement)
    assert says in " ".join(ledger.verify())


def test_a_cut_history_is_seen_by_who_kept_a_receipt(ledger: Ledger, kept: list[Receipt]) -> None:
    execute(ledger, "DELETE FROM entries WHERE seq >= 5")
    assert ledger.verify() == ledger.verify(kept[:2]) == []
    assert kept[2].run_id in " ".join(ledger.verify(kept))


def test_a_recomputed_history_is_seen_by_who_kept_a_receipt(
    ledger: Ledger, kept: list[Receipt]
) -> None:
    rewrite(
        ledger,
        lambda bodies: [
            body | ({"epsilon": "0.1"} if body["kind"] == "charge" else {}) for body in bodies
        ],
    )
    assert ledger.verify() == []
    assert len(ledger.verify(kept)) == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda bodies: [*bodies, bodies[2]], "charge of a run that is settled"),
        (lambda bodies: [*bodies, bodies[-1]], "settle of a run that is settled"),
        (lambda bodies: [*bodies[:2], bodies[-1]], "settle of a run that is unknown"),
        (lambda bodies: [bodies[0], *bodies[2:]], "exceeds the budget"),
        (lambda bodies: bodies[1:], "does not belong"),
        (lambda bodies: [*bodies, {"kind": "grant"}], "cannot be read"),
        (
            lambda bodies: [*bodies, {**bodies[2], "run_id": "0" * 32, "epsilon": "much"}],
            "cannot be read",
        ),
        (lambda bodies: [*bodies, {"kind": "charge"}], "cannot be read"),
    ],
)
def test_a_forged_history_must_make_sense(
    ledger: Ledger, kept: list[Receipt], change: Any, says: str
) -> None:
    rewrite(ledger, change)
    assert says in " ".join(ledger.verify())


def test_a_receipt_that_says_something_else_is_seen(ledger: Ledger, kept: list[Receipt]) -> None:
    doctored = Receipt.from_dict(kept[1].to_dict() | {"epsilon": 0.5, "unit": "user"})
    assert "unit, epsilon differ" in ledger.verify([doctored])[0]


def test_nothing_is_added_to_a_rewritten_head(ledger: Ledger, kept: list[Receipt]) -> None:
    execute(ledger, "UPDATE entries SET body = replace(body, 'digest', 'forged') WHERE seq = 6")
    with pytest.raises(LedgerError, match="rewritten"):
        charge(ledger)


def test_an_entry_that_cannot_be_read_refuses_the_account(
    ledger: Ledger, kept: list[Receipt]
) -> None:
    rewrite(ledger, lambda bodies: [*bodies, {**bodies[2], "run_id": "0" * 32, "epsilon": "much"}])
    with pytest.raises(LedgerError, match="entry 7"):
        charge(ledger)
