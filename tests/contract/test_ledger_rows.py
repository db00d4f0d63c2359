# SPDX-License-Identifier: Apache-2.0
"""What rows have spent: exactly where several runs cover them, and never less than the truth."""

import hashlib
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import runs

from labeldp.errors import BudgetExceeded, InvalidInput, LedgerError, RowsOverlap
from labeldp.ledger._check import Unchecked
from labeldp.ledger._database import LabelDraw, Spending
from labeldp.ledger._ledger import Ledger, RunRecord
from labeldp.ledger._rowset import RowSetBuilder, RowSets, Spend
from labeldp.ledger._run_store import RunStore
from labeldp.noise._words import new_run_id
from labeldp.receipt import Receipt

MILLION = 1_000_000


def charge(
    ledger: Ledger,
    ids: object,
    epsilon: float = 1.0,
    names: str = "id",
    units: object = None,
    **facts: Any,
) -> Receipt:
    rows = None
    if ids is not None or units is not None:
        builder = ledger.row_set_builder(names, facts.get("unit", "row"))
        builder.add(ids, units)
        rows = builder.finish()
    event = LabelDraw({"law": "rr"}, epsilon, unit=facts.get("unit", "row")).to_dict()
    given = {"event": event, "identity": "request", "run_id": new_run_id(), "rows": rows} | facts
    return runs.charge(
        ledger, **{"dataset": "clicks", "column": "label", "epsilon": epsilon} | given
    )


def texts(*numbers: int) -> pa.Array:
    return pa.array([f"person {number}" for number in range(*numbers)])


def budget(ledger: Ledger, amount: float) -> Ledger:
    ledger.set_budget("clicks", "label", amount)
    return ledger


# Integers
# --------------------------------------------------------------------------------------------------


def test_exactly_the_overlap_is_at_twice_the_cost(ledger: Ledger) -> None:
    budget(ledger, 2.0)
    charge(ledger, np.arange(MILLION))
    assert (ledger.spent("clicks", "label"), ledger.remaining("clicks", "label")) == (1.0, 1.0)
    charge(ledger, np.arange(MILLION // 2, 2 * MILLION))
    assert ledger.spent_by_rows("clicks", "label") == [(1.0, 3 * MILLION // 2), (2.0, MILLION // 2)]
    assert (ledger.spent("clicks", "label"), ledger.remaining("clicks", "label")) == (2.0, 0.0)
    assert ledger.verify() == []


def test_an_overlap_over_budget_is_refused_and_leaves_no_trace(ledger: Ledger) -> None:
    first = charge(ledger, np.arange(1000))
    for ids, run in ((np.arange(999, 2000), new_run_id()), (None, new_run_id())):
        with pytest.raises(BudgetExceeded, match="is spent; got epsilon"):
            charge(ledger, ids, run_id=run)
        assert not ledger.run_dir(run).exists()
    charge(ledger, np.arange(1000, 2000))
    assert ledger.spent_by_rows("clicks", "label") == [(1.0, 2000)]
    assert ledger.spent("clicks", "label") == 1.0
    assert ledger.verify([first]) == []


def test_each_row_has_its_own_rest(ledger: Ledger) -> None:
    budget(ledger, 1.0)
    charge(ledger, np.arange(0, 100), 0.75)
    charge(ledger, np.arange(100, 200), 0.25)
    charge(ledger, np.arange(100, 150), 0.75)
    with pytest.raises(BudgetExceeded, match=r"epsilon <= 0\.25"):
        charge(ledger, np.arange(50, 60), 0.5)
    with pytest.raises(BudgetExceeded, match="is spent; got epsilon"):
        charge(ledger, np.arange(149, 160), 0.5)
    charge(ledger, np.arange(150, 160), 0.75)
    assert ledger.spent_by_rows("clicks", "label") == [(0.25, 40), (0.75, 100), (1.0, 60)]


def test_refused_overlaps_say_how_many_rows_and_which_runs(ledger: Ledger) -> None:
    budget(ledger, 9.0)
    first, second = charge(ledger, np.arange(1000)), charge(ledger, np.arange(2000, 3000))
    with pytest.raises(RowsOverlap) as caught:
        charge(ledger, np.arange(990, 2003), overlap="refuse")
    assert f"10 of them in run {first.run_id}; 3 of them in run {second.run_id}" in str(
        caught.value
    )
    charge(ledger, np.arange(1000, 2000), overlap="refuse")
    with pytest.raises(RowsOverlap, match="unknown number"):
        charge(ledger, None, overlap="refuse")
    assert len(ledger.runs()) == 3
    assert isinstance(caught.value, LedgerError)
    with pytest.raises(InvalidInput, match="overlap"):
        charge(ledger, None, overlap="ignore")


def test_of_many_runs_with_these_rows_the_first_few_are_named(ledger: Ledger) -> None:
    ids = texts(400)
    for part in range(6):
        charge(ledger, ids[part * 10 : part * 10 + 10], dataset="clicks")
    with pytest.raises(
        RowsOverlap, match=r"(10 of them in run \w+; ){4}and 2 more\. Nothing was charged"
    ):
        charge(ledger, ids, dataset="clicks", overlap="refuse")


def test_a_run_without_rows_counts_for_every_row(ledger: Ledger) -> None:
    budget(ledger, 3.0)
    charge(ledger, np.arange(100))
    charge(ledger, None)
    charge(ledger, np.arange(100, 200))
    assert ledger.spent_by_rows("clicks", "label") == [(2.0, 200)]
    with pytest.raises(RowsOverlap):
        charge(ledger, np.arange(500, 600), overlap="refuse")
    charge(ledger, np.arange(50, 150))
    assert ledger.spent("clicks", "label") == 3.0
    assert ledger.verify() == []


def test_a_run_id_that_was_charged_keeps_its_rows(ledger: Ledger) -> None:
    budget(ledger, 9.0)
    first = charge(ledger, np.arange(100))
    kept = file_of(ledger, first).read_bytes()
    with pytest.raises(LedgerError, match="never charged"):
        charge(ledger, np.arange(5), run_id=first.run_id)
    assert file_of(ledger, first).read_bytes() == kept
    assert ledger.verify() == []


def test_ids_of_different_columns_prove_nothing(ledger: Ledger) -> None:
    budget(ledger, 2.0)
    charge(ledger, np.arange(100), names="customer")
    charge(ledger, np.arange(100, 200), names="order")
    assert ledger.spent("clicks", "label") == 2.0
    assert ledger.spent_by_rows("clicks", "label") == [(2.0, None)]
    # beside one run of customers at most, and one of orders
    charge(ledger, np.arange(200, 300), names="customer")
    for ids, names in (
        (np.arange(250, 260), "customer"),
        (np.arange(100, 101), "order"),
        (np.arange(5), "other"),
        (texts(5), "customer"),
    ):
        with pytest.raises(BudgetExceeded):
            charge(ledger, ids, names=names)


def test_entries_say_what_the_rows_are_and_nothing_of_their_ids(ledger: Ledger) -> None:
    charge(ledger, np.arange(12345, 23456))
    entry = ledger.history()[-1]
    rows = entry["rows"]
    assert isinstance(rows, dict)
    assert rows == {
        "row": {"kind": "integers", "name": "id", "count": 11111},
        "digest": rows["digest"],
    }
    assert ledger.runs()[0].rows == rows


def file_of(ledger: Ledger, receipt: Receipt) -> Path:
    return ledger.run_dir(receipt.run_id) / "rows.bin"


@pytest.mark.parametrize("harm", ["missing", "damaged", "another", "cut", "a folder", "older"])
def test_a_row_set_that_cannot_be_trusted_counts_for_every_row(ledger: Ledger, harm: str) -> None:
    budget(ledger, 2.0)
    first, second = charge(ledger, np.arange(100)), charge(ledger, np.arange(100, 200))
    path = file_of(ledger, first)
    data = path.read_bytes()
    path.unlink()
    match harm:
        case "damaged":
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        case "another":
            path.write_bytes(file_of(ledger, second).read_bytes())
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "a folder":
            path.mkdir()
        case "older":
            path.write_bytes(data.replace(b"rows 2", b"rows 1"))
    assert ledger.spent("clicks", "label") == 2.0
    with pytest.raises(BudgetExceeded):
        charge(ledger, np.arange(200, 300), 1.5)
    with pytest.raises(RowsOverlap, match="unknown number"):
        charge(ledger, np.arange(200, 300), overlap="refuse")
    assert first.run_id in " ".join(ledger.verify())


def test_the_row_set_is_private_and_on_disk_before_the_charge(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    from labeldp.ledger._database import Session

    real = Session.append

    def watched(self: Session, body: Any) -> Any:
        if body["kind"] == "charge":
            seen.append(
                file_of(ledger, Receipt(body["run_id"], "", "", "row", 1, 1.0)).stat().st_mode
                & 0o777
            )
        return real(self, body)

    monkeypatch.setattr(Session, "append", watched)
    charge(ledger, np.arange(10))
    assert seen == [0o600]


def test_a_history_with_row_sets_of_another_format_counts_its_runs_for_every_row(
    ledger: Ledger,
) -> None:
    """Its facts of rows say other things, and its files begin otherwise: nothing is proven, and
    nothing is lost."""
    budget(ledger, 2.0)
    run_id = new_run_id()
    data = (
        b'labeldp rows 3\n{"count": 3, "key_id": "", "kind": "integers", "names": "id"}\nb'
        + bytes(8)
    )
    facts = {
        "kind": "integers",
        "count": 3,
        "names": "id",
        "digest": hashlib.sha256(data).hexdigest(),
    }
    with ledger._store.writing() as session:
        event = LabelDraw({"law": "rr"}, 1.0).to_dict()
        names = {
            "dataset": "clicks",
            "column": "label",
            "unit": "row",
            "max_rows_per_unit": 1,
            "epsilon": 1.0,
            "delta": 0.0,
        }
        body = Spending(**names, event=event, identity="x", run_id=run_id).body()
        session.append(body | {"rows": facts, "disjoint": ["0" * 32]})
    RunStore(ledger.run_dir(run_id)).write("rows.bin", data)
    charge(ledger, np.arange(100, 200))
    assert ledger.spent("clicks", "label") == 2.0
    with pytest.raises(BudgetExceeded):
        charge(ledger, np.arange(200, 300), 1.5)
    with pytest.raises(RowsOverlap, match="unknown number"):
        charge(ledger, np.arange(200, 300), overlap="refuse")
    damaged = f"The row set of run {run_id} is missing or damaged: it counts for every row now"
    assert ledger.verify() == [f"{damaged}, and budgets cannot be checked without it."]
    ledger.runs_dir.rename(ledger.runs_dir.with_name("elsewhere"))
    (said,) = ledger.verify()
    assert str(ledger.runs_dir) in said and "move it beside the ledger" in said


def over_budget(ledger: Ledger, ids: Any) -> str:
    """Write a charge that the ledger would have refused, with its row set."""
    builder, run_id = ledger.row_set_builder(), new_run_id()
    builder.add(ids)
    ledger._sets.keep(run_id, builder.finish())
    event = LabelDraw({"law": "rr"}, 1.0).to_dict()
    names = {
        "dataset": "clicks",
        "column": "label",
        "unit": "row",
        "max_rows_per_unit": 1,
        "epsilon": 1.0,
        "delta": 0.0,
    }
    body = Spending(**names, event=event, identity="x", run_id=run_id).body()
    with ledger._store.writing() as session:
        session.append(body | {"rows": builder.finish().facts()})
    return run_id


@pytest.mark.parametrize(
    "column_of",
    [np.asarray, lambda ids: pa.array(ids).cast(pa.string())],
    ids=["integers", "texts"],
)
@pytest.mark.parametrize("lost", ["the folder", "one set", "a damaged set"])
def test_no_budget_is_called_exceeded_where_row_sets_are_missing(
    ledger: Ledger, tmp_path: Path, lost: str, column_of: Callable[[Any], Any]
) -> None:
    """Each row has its own budget, so of a copy of the file alone nobody can tell whether it was
    kept."""
    budget(ledger, 1.0)
    runs_of = [charge(ledger, column_of(np.arange(10 * part, 10 * part + 10))) for part in range(5)]
    assert ledger.verify(runs_of) == []
    if lost == "the folder":
        ledger.runs_dir.rename(tmp_path / "elsewhere")
    else:
        path = ledger.run_dir(runs_of[1].run_id) / "rows.bin"
        path.unlink() if lost == "one set" else path.write_bytes(path.read_bytes()[:-1])
    (said,) = ledger.verify(runs_of)
    assert "cannot be checked without" in said and "exceed" not in said
    assert isinstance(said, Unchecked) == (lost == "the folder")
    # What is wrong all the same is found: a receipt, or one charge above the whole budget.
    assert len(ledger.verify([replace(runs_of[0], epsilon=0.5)])) == 2
    with ledger._store.writing() as session:
        event = LabelDraw({"law": "rr"}, 1.5).to_dict()
        names = {
            "dataset": "clicks",
            "column": "label",
            "unit": "row",
            "max_rows_per_unit": 1,
            "epsilon": 1.5,
            "delta": 0.0,
        }
        session.append(Spending(**names, event=event, identity="x", run_id=new_run_id()).body())
    assert any("exceeds the budget" in each for each in ledger.verify())


def test_a_budget_that_was_exceeded_is_found_also_where_another_set_is_missing(
    ledger: Ledger,
) -> None:
    budget(ledger, 1.0)
    gone = charge(ledger, np.arange(10))
    charge(ledger, np.arange(10, 20))
    over_budget(ledger, np.arange(15, 30))
    assert ledger.verify() == ["Entry 5 exceeds the budget of its dataset and column."]
    shutil.rmtree(ledger.run_dir(gone.run_id))
    exceeded, unchecked = ledger.verify()
    assert exceeded == "Entry 5 exceeds the budget of its dataset and column." and isinstance(
        unchecked, Unchecked
    )


# Names
# --------------------------------------------------------------------------------------------------


def test_names_are_told_apart_as_exactly_as_integers(ledger: Ledger) -> None:
    budget(ledger, 2.0)
    many = 20_000
    first = charge(ledger, texts(many))
    charge(ledger, texts(many, 2 * many), overlap="refuse")
    assert ledger.spent_by_rows("clicks", "label") == [(1.0, 2 * many)]
    with pytest.raises(RowsOverlap, match=f"got 7 of them in run {first.run_id}. Nothing"):
        charge(ledger, texts(-5, 7), overlap="refuse")
    charge(ledger, texts(-5, 7))
    assert ledger.spent_by_rows("clicks", "label") == [(1.0, 2 * many - 2), (2.0, 7)]
    with pytest.raises(BudgetExceeded):
        charge(ledger, texts(6, 7))
    assert ledger.verify() == []


def test_integers_and_texts_of_one_column_prove_nothing(ledger: Ledger) -> None:
    budget(ledger, 2.0)
    charge(ledger, np.arange(10), names="visit")
    with pytest.raises(RowsOverlap, match="unknown number"):
        charge(ledger, pa.array(["20", "21"]), names="visit", overlap="refuse")
    charge(ledger, pa.array(["20", "21"]), names="visit")
    assert (ledger.spent("clicks", "label"), ledger.spent_by_rows("clicks", "label")) == (
        2.0,
        [(2.0, None)],
    )


def test_another_secret_for_names_never_makes_runs_disjoint(ledger: Ledger) -> None:
    """The ledger's secret for names was lost: the hashes of earlier runs are other ones."""
    charge(ledger, texts(10))
    (ledger.runs_dir / ".ids-key").unlink()
    with pytest.raises(BudgetExceeded):
        charge(ledger, texts(10))


def test_the_secret_for_names_is_private_and_made_once(ledger: Ledger) -> None:
    ledger.row_set_builder().add(np.arange(3))
    assert not ledger.runs_dir.exists()
    for _ in range(2):
        ledger.row_set_builder().add(["a"])
    path = ledger.runs_dir / ".ids-key"
    assert (path.stat().st_mode & 0o777, len(path.read_bytes())) == (0o600, 32)
    assert [each.name for each in ledger.runs_dir.iterdir()] == [".ids-key"]
    path.write_bytes(b"short")
    with pytest.raises(LedgerError, match="32 bytes"):
        ledger.row_set_builder().add(["a"])


# Units
# --------------------------------------------------------------------------------------------------


def test_units_and_rows_are_counted_side_by_side(ledger: Ledger) -> None:
    budget(ledger, 3.0)
    person: dict[str, Any] = {"unit": "person"}
    charge(ledger, np.arange(0, 10), units=np.arange(0, 10) // 2, **person)
    charge(ledger, np.arange(10, 20), units=np.arange(10, 20) // 2, **person)
    assert ledger.spent_by_rows("clicks", "label") == [(1.0, 10)]
    # other rows of a known person
    charge(ledger, np.arange(20, 22), units=np.array([9, 9]), **person)
    assert ledger.spent_by_rows("clicks", "label") == [(1.0, 9), (2.0, 1)]
    with pytest.raises(RowsOverlap, match="1 of their units in run"):
        charge(ledger, np.arange(30, 32), units=np.array([9, 30]), overlap="refuse", **person)
    with pytest.raises(RowsOverlap, match="2 of them in run"):
        charge(ledger, np.arange(2), units=np.array([90, 91]), overlap="refuse", **person)
    # the same rows, as if they were other people's
    charge(ledger, np.arange(0, 10), 2.0, units=100 + np.arange(10), **person)
    assert (ledger.spent("clicks", "label"), ledger.spent_by_rows("clicks", "label")) == (
        3.0,
        [(3.0, None)],
    )
    with pytest.raises(BudgetExceeded):
        charge(ledger, np.arange(3), units=np.arange(300, 303), **person)
    charge(ledger, None, 2.0, units=np.arange(300, 303), **person)  # units alone tell people apart
    with pytest.raises(BudgetExceeded):
        charge(ledger, None, 2.0, units=np.arange(302, 304), **person)
    assert ledger.verify() == []


def test_a_set_without_the_units_that_are_protected_counts_for_all(ledger: Ledger) -> None:
    budget(ledger, 2.0)
    charge(ledger, np.arange(5), unit="person")
    charge(ledger, np.arange(5, 9), units=np.arange(4), unit="person")
    assert ledger.spent("clicks", "label") == 2.0
    builder = ledger.row_set_builder()
    builder.add(np.arange(100, 200))
    assert ledger.remaining("clicks", "label", builder.finish()) == 0.0
    charge(ledger, np.arange(5), column="other", event=LabelDraw({"law": "rr"}, 1.0).to_dict())
    people = ledger.row_set_builder()
    people.add(None, np.arange(100, 200))
    assert ledger.remaining("clicks", "other", people.finish()) == 0.0


# Never less than the truth
# --------------------------------------------------------------------------------------------------


def record(number: int, epsilon: float) -> RunRecord:
    return RunRecord(Receipt(str(number), "d", "y", "row", 1, epsilon), "i", True)


Run = tuple[int, str, str, frozenset[int]]
RUNS = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.sampled_from(["integers", "names", "all"]),
        st.sampled_from(["id", "x"]),
        st.frozensets(st.integers(0, 6)),
    ),
    max_size=7,
)


@settings(max_examples=200)
@given(RUNS)
def test_spent_is_never_less_than_any_row_spent_and_exact_in_one_space(runs: list[Run]) -> None:
    """Rows have one number, which is their id in every space."""
    records, members = [], {}
    for number, (tenths, kind, names, rows) in enumerate(runs):
        records.append(record(number, tenths / 10))
        builder = RowSetBuilder(names, secret=bytes(32))
        values = np.array(sorted(rows), np.int64)
        builder.add(
            values
            if kind == "integers"
            else pa.array([str(value) for value in values], pa.string())
        )
        members[str(number)] = None if kind == "all" else builder.finish()

    def truth(row: int, upto: int) -> Fraction:
        return sum(
            (Fraction(t, 10) for t, kind, _, rows in runs[:upto] if kind == "all" or row in rows),
            Fraction(0),
        )

    spend = Spend(lambda run: members[run.run_id])
    for number, (run, (_, kind, _, rows)) in enumerate(zip(records, runs, strict=True)):
        covered = spend.covered(members[run.run_id])
        relevant = range(7) if kind == "all" else rows
        assert covered >= max((truth(row, number) for row in relevant), default=Fraction(0))
        assert covered <= spend.most
        spend.add(run)
    assert spend.most >= max(truth(row, len(runs)) for row in range(7))
    if (
        len({(kind, names) for _, kind, names, _ in runs}) == 1
        and runs[0][1] != "all"
        and all(rows for *_, rows in runs)
    ):
        spents = [truth(row, len(runs)) for row in range(7)]
        assert dict(spend.by_rows()) == {spent: spents.count(spent) for spent in spents if spent}


def test_a_charge_that_fits_in_any_case_reads_no_row_sets(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget(ledger, 9.0)
    charge(ledger, np.arange(10))

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(RowSets, "load", refuse)
    charge(ledger, np.arange(10))


def test_the_first_charge_with_rows_sets_the_budget_too(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "labeldp"):
        charge(ledger, np.arange(10), 0.5)
    assert "is now 0.5 (first charge)" in caplog.text
    charge(ledger, np.arange(10, 20), 0.5)
    assert ledger.budget_of("clicks", "label") == 0.5
