# SPDX-License-Identifier: Apache-2.0
"""What rows have spent: exactly where several runs cover them, and never less than the truth."""

import itertools
import logging
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.errors import BudgetExceeded, InvalidInput, LedgerError, RowsOverlap
from labeldp.privacy.events import LabelDraw
from labeldp.privacy.ledger import Ledger, RunRecord
from labeldp.privacy.ledger_spend import Spend, heaviest_clique
from labeldp.privacy.noise import new_run_id
from labeldp.privacy.rowset import RowSetBuilder
from labeldp.receipt import Receipt

MILLION = 1_000_000


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def charge(ledger: Ledger, ids: object, epsilon: float = 1.0, names: str = "id", **facts: Any) -> Receipt:
    rows = None
    if ids is not None:
        builder = ledger.row_set_builder("clicks", "label", names=names)
        builder.add(ids)
        rows = builder.finish()
    event = LabelDraw({"law": "rr"}, epsilon).to_dict()
    given = {"event": event, "identity": "request", "run_id": new_run_id(), "rows": rows} | facts
    return ledger.charge(dataset="clicks", column="label", epsilon=epsilon, **given)


def texts(*numbers: int) -> pa.Array:
    return pa.array([f"person {number}" for number in range(*numbers)])


def budget(ledger: Ledger, amount: float) -> Ledger:
    ledger.set_budget("clicks", "label", amount)
    return ledger


# Integers --------------------------------------------------------------------------------------------------------------------------


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
        with pytest.raises(BudgetExceeded, match=r"epsilon <= 0\.0"):
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
    with pytest.raises(BudgetExceeded, match=r"epsilon <= 0\.0"):
        charge(ledger, np.arange(149, 160), 0.5)
    charge(ledger, np.arange(150, 160), 0.75)
    assert ledger.spent_by_rows("clicks", "label") == [(0.25, 40), (0.75, 100), (1.0, 60)]


def test_refused_overlaps_say_how_many_rows_and_which_runs(ledger: Ledger) -> None:
    budget(ledger, 9.0)
    first, second = charge(ledger, np.arange(1000)), charge(ledger, np.arange(2000, 3000))
    with pytest.raises(RowsOverlap) as caught:
        charge(ledger, np.arange(990, 2003), overlap="refuse")
    assert f"10 of them in run {first.run_id}; 3 of them in run {second.run_id}" in str(caught.value)
    charge(ledger, np.arange(1000, 2000), overlap="refuse")
    with pytest.raises(RowsOverlap, match="unknown number"):
        charge(ledger, None, overlap="refuse")
    assert len(ledger.runs()) == 3
    assert isinstance(caught.value, LedgerError)
    with pytest.raises(InvalidInput, match="overlap"):
        charge(ledger, None, overlap="ignore")


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
    charge(ledger, np.arange(200, 300), names="customer")  # beside one run of customers at most, and one of orders
    for ids, names in ((np.arange(250, 260), "customer"), (np.arange(100, 101), "order"), (np.arange(5), "other"), (texts(5), "customer")):
        with pytest.raises(BudgetExceeded):
            charge(ledger, ids, names=names)


def test_entries_say_what_the_rows_are_and_nothing_of_their_ids(ledger: Ledger) -> None:
    charge(ledger, np.arange(12345, 23456))
    entry = ledger.history()[-1]
    rows = entry["rows"]
    assert isinstance(rows, dict)
    assert (sorted(rows), rows["kind"], rows["count"], rows["names"]) == (["count", "digest", "kind", "names"], "integers", 11111, "id")
    assert ledger.runs()[0].rows == rows
    assert "disjoint" not in entry


def file_of(ledger: Ledger, receipt: Receipt) -> Path:
    return ledger.run_dir(receipt.run_id) / "rows.bin"


@pytest.mark.parametrize("harm", ["missing", "damaged", "another", "cut", "a folder"])
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
    assert ledger.spent("clicks", "label") == 2.0
    with pytest.raises(BudgetExceeded):
        charge(ledger, np.arange(200, 300), 1.5)
    with pytest.raises(RowsOverlap, match="unknown number"):
        charge(ledger, np.arange(200, 300), overlap="refuse")
    assert first.run_id in " ".join(ledger.verify())


def test_the_row_set_is_private_and_on_disk_before_the_charge(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    from labeldp.privacy.ledger_session import Session

    real = Session.append

    def watched(self: Session, body: Any) -> Any:
        if body["kind"] == "charge":
            seen.append(file_of(ledger, Receipt(body["run_id"], "", "", "row", 1, 1.0)).stat().st_mode & 0o777)
        return real(self, body)

    monkeypatch.setattr(Session, "append", watched)
    charge(ledger, np.arange(10))
    assert seen == [0o600]


# Names -----------------------------------------------------------------------------------------------------------------------------


def test_names_without_candidates_are_disjoint(ledger: Ledger) -> None:
    first = charge(ledger, texts(300))
    released = {first.run_id: texts(300)}  # one new name in about a thousand is a false candidate, and is looked up
    second = charge(ledger, texts(300, 310), ids_of=lambda run: [released[run.run_id]])
    released[second.run_id] = texts(300, 310)
    third = charge(ledger, texts(310, 320), ids_of=lambda run: [released[run.run_id]])
    assert ledger.spent("clicks", "label") == 1.0
    assert ledger.history()[-1]["disjoint"] == sorted([first.run_id, second.run_id])
    assert third.run_id == ledger.runs()[-1].run_id
    with pytest.raises(BudgetExceeded):
        charge(ledger, texts(319, 330))
    assert ledger.verify() == []


def test_candidates_are_looked_up_in_what_the_earlier_run_released(ledger: Ledger) -> None:
    """Many names: some are false candidates, which only the earlier ids can clear."""
    many = 20_000
    first = charge(ledger, texts(many))
    asked: list[str] = []

    def ids_of(run: RunRecord) -> Iterable[object] | None:
        asked.append(run.run_id)
        return (texts(start, start + 5000) for start in range(0, many, 5000))

    with pytest.raises(BudgetExceeded):
        charge(ledger, texts(many, 2 * many))
    with pytest.raises(BudgetExceeded):
        charge(ledger, texts(many, 2 * many), ids_of=lambda run: None)
    with pytest.raises(BudgetExceeded):  # a part of the earlier ids proves nothing
        charge(ledger, texts(many, 2 * many), ids_of=lambda run: [texts(many - 5000)])
    charge(ledger, texts(many, 2 * many), ids_of=ids_of)
    assert asked == [first.run_id]
    assert ledger.spent("clicks", "label") == 1.0
    with pytest.raises(RowsOverlap, match=f"7 of them in run {first.run_id}"):
        charge(budget(ledger, 9.0), texts(many - 7, many), ids_of=ids_of, overlap="refuse")


def test_a_run_that_was_charged_meanwhile_overlaps(ledger: Ledger) -> None:
    """The builder did not know its names, so nothing shows that they are others."""
    budget(ledger, 1.0)
    builder = ledger.row_set_builder("clicks", "label", names="id")
    builder.add(texts(10))
    charge(ledger, texts(10, 20))
    with pytest.raises(BudgetExceeded):
        charge(ledger, None, rows=builder.finish())


def test_the_heaviest_runs_that_may_share_a_row_add(ledger: Ledger) -> None:
    budget(ledger, 9.0)
    charge(ledger, texts(0, 10), 1.0)
    charge(ledger, texts(10, 20), 2.0)
    charge(ledger, texts(5, 8), 0.5)
    assert ledger.spent("clicks", "label") == 2.0
    charge(ledger, texts(15, 30), 0.25)
    assert ledger.spent("clicks", "label") == 2.25
    assert ledger.spent_by_rows("clicks", "label") == [(2.25, None)]
    assert ledger.verify() == []


def test_another_filter_secret_never_makes_runs_disjoint(ledger: Ledger) -> None:
    """The ledger's filter secret was lost: old filters know none of the new hashes."""
    charge(ledger, texts(10))
    (ledger.runs_dir / ".ids-key").unlink()
    with pytest.raises(BudgetExceeded):
        charge(ledger, texts(10))


def test_the_filter_secret_is_private_and_made_once(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.row_set_builder("clicks", "label")
    path = ledger.runs_dir / ".ids-key"
    assert (path.stat().st_mode & 0o777, len(path.read_bytes())) == (0o600, 32)
    assert [each.name for each in ledger.runs_dir.iterdir()] == [".ids-key"]
    path.write_bytes(b"short")
    with pytest.raises(LedgerError, match="32 bytes"):
        ledger.row_set_builder("clicks", "label")


# Never less than the truth -----------------------------------------------------------------------------------------------------------


def record(number: int, epsilon: float, kind: str, names: str = "", disjoint: Iterable[int] = ()) -> RunRecord:
    rows = None if kind == "all" else {"kind": kind, "count": 1, "names": names, "digest": ""}
    receipt = Receipt(str(number), "d", "y", "row", 1, epsilon)
    facts = ("i", "d", "y", "row", 1, epsilon, 0.0, {}, "charged", "", "", "", True, receipt, rows, tuple(map(str, disjoint)))
    return RunRecord(str(number), *facts)


Run = tuple[int, str, str, frozenset[int]]
RUNS = st.lists(
    st.tuples(
        st.integers(1, 5), st.sampled_from(["integers", "names", "all"]), st.sampled_from(["", "x"]), st.frozensets(st.integers(0, 6))
    ),
    max_size=7,
)


@settings(max_examples=200)
@given(RUNS, st.data())
def test_spent_is_never_less_than_any_row_spent_and_exact_for_integers(runs: list[Run], data: st.DataObject) -> None:
    """Rows have one number; ids in every space are that number. What is shown disjoint is a subset of what is disjoint."""
    records, members = [], {}
    for number, (tenths, kind, names, rows) in enumerate(runs):
        apart = [i for i in range(number) if kind == runs[i][1] == "names" and names == runs[i][2] and not rows & runs[i][3]]
        shown = [i for i in apart if data.draw(st.booleans())]
        records.append(record(number, tenths / 10, kind, names, shown))
        builder = RowSetBuilder(True)
        builder.add(np.array(sorted(rows), np.int64))
        members[str(number)] = builder.finish().integers

    def truth(row: int, upto: int) -> Fraction:
        return sum((Fraction(t, 10) for t, kind, _, rows in runs[:upto] if kind == "all" or row in rows), Fraction(0))

    spend = Spend(lambda run: members[run.run_id])
    for number, (run, (_, kind, _, rows)) in enumerate(zip(records, runs, strict=True)):
        covered = spend.covered(run, members[run.run_id] if kind == "integers" else None)
        relevant = range(7) if kind == "all" else rows
        assert covered >= max((truth(row, number) for row in relevant), default=Fraction(0))
        assert covered <= spend.most
        spend.add(run)
    assert spend.most >= max(truth(row, len(runs)) for row in range(7))
    if all(kind == "integers" and names == "" for _, kind, names, _ in runs):
        counts = {spent: sum(truth(row, len(runs)) == spent for row in range(7)) for spent in {truth(row, len(runs)) for row in range(7)}}
        counts.pop(Fraction(0), None)
        assert dict(spend.by_rows()) == (counts or dict(spend.by_rows()))


@given(st.integers(0, 8), st.data())
def test_the_heaviest_clique_is_the_heaviest(n: int, data: st.DataObject) -> None:
    weights = [data.draw(st.integers(1, 5)) for _ in range(n)]
    apart = {pair for pair in itertools.combinations(range(n), 2) if data.draw(st.booleans())}
    runs = [record(i, weights[i] / 10, "names", "", [j for j in range(i) if (j, i) in apart]) for i in range(n)]
    best = max(
        (sum(weights[i] for i in chosen) for k in range(n + 1) for chosen in itertools.combinations(range(n), k)
         if not any(pair in apart for pair in itertools.combinations(chosen, 2))),
        default=0,
    )  # fmt: skip
    assert heaviest_clique(runs) == Fraction(best, 10)


def test_many_disjoint_runs_of_names_do_not_add() -> None:
    runs = [record(i, 0.5, "names", "", range(i)) for i in range(100)]
    assert heaviest_clique(runs) == Fraction(1, 2)
    assert heaviest_clique([*runs, record(100, 0.25, "names", "", range(99))]) == Fraction(3, 4)
    assert heaviest_clique([record(i, 0.5, "names") for i in range(100)]) == 50


def test_a_charge_that_fits_in_any_case_reads_no_row_sets(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    budget(ledger, 9.0)
    charge(ledger, np.arange(10))
    from labeldp.privacy.ledger_rows import RowSets

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(RowSets, "integers", refuse)
    charge(ledger, np.arange(10))


def test_the_first_charge_with_rows_sets_the_budget_too(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "labeldp"):
        charge(ledger, np.arange(10), 0.5)
    assert "is now 0.5 (first charge)" in caplog.text
    charge(ledger, np.arange(10, 20), 0.5)
    assert ledger.budget_of("clicks", "label") == 0.5
