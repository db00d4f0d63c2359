# SPDX-License-Identifier: Apache-2.0
"""Ways to have rows released twice while the ledger takes them for different rows: none may make it
count less than was spent."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import labeldp as ldp
from labeldp.app import stage
from labeldp.ledger._database import SqliteStore
from labeldp.ledger._repair import orphans, repair
from labeldp.papers.malek2021 import PATEClassifier

N = 20_000


def closed(y: Any, ledger: ldp.Ledger, ids: Any = None, **facts: Any) -> ldp.PrivateLabels:
    given = {"dataset": "d", "column": "label", "ids": ids, "ledger": ledger}
    return ldp.PrivateLabels(y, classes=range(2), **given | facts)


def names(start: int, stop: int) -> list[str]:
    return [f"visit-{i:08d}" for i in range(start, stop)]


def write(path: Path, **columns: object) -> Path:
    n = len(next(iter(columns.values())))
    pq.write_table(pa.table({**columns, "bought": np.arange(n) % 2}), path)
    return path


def release(source: Path, ledger: ldp.Ledger, row: object = "row", **options: object) -> Path:
    spec = ldp.ReleaseSpec("bought", [0, 1], 1.0, id=row, dataset="visits", **options)
    return Path(ldp.release(source, source.with_name(f"noisy-{source.name}"), spec, ledger).path)


@pytest.fixture
def ledger(tmp_path: Path) -> ldp.Ledger:
    return ldp.Ledger(tmp_path / "l.db", budget=1.0)


def test_another_table_in_an_outputs_place_proves_nothing(
    tmp_path: Path, ledger: ldp.Ledger
) -> None:
    out = release(write(tmp_path / "a.parquet", row=names(0, N)), ledger)
    write(out, row=names(5 * N, 6 * N))
    with pytest.raises(ldp.BudgetExceeded):
        release(write(tmp_path / "b.parquet", row=names(N - 10, N + 10)), ledger)
    assert ledger.spent("visits", "bought") == 1.0


def test_another_table_in_a_stages_place_proves_nothing(tmp_path: Path, ledger: ldp.Ledger) -> None:
    source = write(tmp_path / "a.parquet", row=names(0, N))
    spec = ldp.ReleaseSpec("bought", [0, 1], 1.0, "rr", "row", dataset="visits")
    stage.plan(tmp_path / "plan", spec, (0.5, 0.5), ledger=ledger)
    for number in (1, 2):
        stage.release(
            stage.load(tmp_path / "plan", ledger), source, number, tmp_path / f"{number}.parquet"
        )
    mine = pq.read_table(tmp_path / "2.parquet").column("row").to_pylist()[:10]
    write(tmp_path / "2.parquet", row=names(5 * N, 6 * N))
    with pytest.raises(ldp.BudgetExceeded):
        release(write(tmp_path / "b.parquet", row=mine + names(N, N + 10)), ledger)


def test_one_column_whose_name_reads_like_two_is_another_space(
    tmp_path: Path, ledger: ldp.Ledger
) -> None:
    release(
        write(tmp_path / "a.parquet", day=names(0, 9), shop=names(0, 9)), ledger, ("day", "shop")
    )
    with pytest.raises(ldp.BudgetExceeded):
        release(write(tmp_path / "b.parquet", **{"day,shop": names(0, 9)}), ledger, "day,shop")


@pytest.mark.parametrize(
    ("first", "ids", "others"),
    [
        (["a", "b"], np.array([b"b", b"c"]), ["d", "e"]),
        (["a", "b"], pa.array([b"b", b"c"]), ["d", "e"]),
        (["a", "b"], pa.array(["b", "c"]).dictionary_encode(), ["d", "e"]),
        (["a", "b"], [("b",), ("c",)], ["d", "e"]),
        (["a", "b"], np.array([["b"], ["c"]]), ["d", "e"]),
        (["a", "b"], pa.array([b"b", b"c"], pa.binary(1)), ["d", "e"]),
        ([(1, "a"), (2, "b")], [("2", "b"), ("3", "c")], [(2, "a"), (1, "b")]),
        ([(1, "a"), (2, "b")], [(b"2", b"b"), (b"3", b"c")], [(2, "a"), (1, "b")]),
    ],
    ids=[
        "bytes",
        "binary",
        "dictionary",
        "tuples",
        "column",
        "fixed",
        "numbers as text",
        "numbers as bytes",
    ],
)
def test_names_of_another_type_may_be_the_same_rows(
    ledger: ldp.Ledger, first: object, ids: object, others: object
) -> None:
    law = ldp.RandomizedResponse(2, 1.0)
    ldp.privatize(
        closed([0, 1], ledger, first),
        law,
    )
    with pytest.raises(ldp.BudgetExceeded):
        ldp.privatize(
            closed([1, 1], ledger, ids),
            law,
        )
    ldp.privatize(
        closed([1, 1], ledger, others),
        law,
    )


LAW = ldp.RandomizedResponse(2, 1.0)
FRAME = pd.DataFrame(
    {"y": np.arange(60) % 2}
    | {
        name: start + np.arange(60)
        for name, start in (("visit", 0), ("barcode", 1000), ("serial", 2000))
    }
)
FRAME = FRAME.assign(
    person=FRAME.visit, household=500 + FRAME.visit // 2, ward=900 + FRAME.visit // 20
)


def tables_of(name: str) -> dict[str, Any]:
    """The column in every form that has a name."""
    arrow = pa.Table.from_pandas(FRAME[[name]])
    return {
        "series": FRAME[name],
        "frame": FRAME[[name]],
        "index": pd.Index(FRAME[name]),
        "column": arrow.column(0),
        "table": arrow,
        "mapping": {name: FRAME[name].to_numpy()},
    }


@pytest.mark.parametrize("form", ["series", "frame", "index", "column", "table", "mapping"])
def test_three_numberings_of_the_same_rows_are_paid_three_times(tmp_path: Path, form: str) -> None:
    ledger = ldp.Ledger(tmp_path / "l.db", budget=2.0)

    def draw(name: str) -> None:
        ldp.privatize(closed(FRAME.y, ledger, tables_of(name)[form]), LAW)

    draw("visit")
    draw("barcode")
    with pytest.raises(ldp.BudgetExceeded):
        draw("serial")
    assert ledger.spent("d", "label") == 2.0
    draw("visit")  # a repeat


def test_a_named_column_and_a_plain_array_prove_nothing_of_each_other(ledger: ldp.Ledger) -> None:
    ldp.privatize(
        closed(FRAME.y, ledger, FRAME.visit),
        LAW,
    )
    for ids in (FRAME.barcode.to_numpy(), FRAME.barcode.tolist(), FRAME.barcode.rename(None)):
        with pytest.raises(ldp.BudgetExceeded):
            ldp.privatize(
                closed(FRAME.y, ledger, ids),
                LAW,
            )
    ldp.privatize(
        closed(FRAME.y, ledger, FRAME.visit.to_numpy(), dataset="e"),
        LAW,
    )
    # plain arrays are the column "id"
    ldp.privatize(
        closed(FRAME.y, ledger, FRAME.barcode.rename("id"), dataset="e"),
        LAW,
    )
    assert ledger.spent("e", "label") == 1.0


def test_equal_numbers_of_another_column_are_no_repeat(ledger: ldp.Ledger) -> None:
    """They would get the outputs of other rows."""
    ldp.privatize(
        closed(FRAME.y, ledger, FRAME.visit),
        LAW,
    )
    with pytest.raises(ldp.BudgetExceeded):
        ldp.privatize(
            closed(FRAME.y, ledger, FRAME.visit[::-1].rename("rank").reset_index(drop=True)),
            LAW,
        )


def charges() -> dict[str, Callable[[ldp.PrivateLabels], object]]:
    """Every way in Python to have labels read."""
    from sklearn.linear_model import LogisticRegression

    X, query = FRAME[["visit"]].to_numpy(float), ldp.aggregates.Histogram(2, 1.0, 2)
    models = [
        ldp.LabelDPClassifier(LogisticRegression(), epsilon=1.0, stages=1),
        PATEClassifier(LogisticRegression(), epsilon=1.0, n_teachers=2, n_queries=2, threshold=0),
        ldp.learn.NoiseCluster(n_clusters=2, epsilon=1.0),
        ldp.learn.ProportionClassifier(n_clusters=2, epsilon=1.0),
    ]
    return {
        "privatize": lambda labels: ldp.privatize(labels, LAW),
        "aggregate": lambda labels: ldp.aggregate(labels, query, np.zeros(len(labels), int)),
    } | {type(model).__name__: partial(model.fit, X) for model in models}


@pytest.mark.parametrize("role", ["ids", "unit"])
def test_the_labels_are_neither_ids_nor_units(ledger: ldp.Ledger, role: str) -> None:
    """A unit's rows beyond the cap get no evidence, and digests of ids and units are no secrets: as
    either, labels would be told."""
    with pytest.raises(ldp.InvalidInput, match="got 'label', whose labels are private"):
        closed(FRAME.y.to_numpy(), ledger, **{role: FRAME.y.rename("label")})


@pytest.mark.parametrize("role", ["ids", "unit"])
def test_the_labels_under_another_name_are_neither_ids_nor_units(
    ledger: ldp.Ledger, role: str
) -> None:
    """Whatever `column=` says, and whatever the labels' own column is called."""
    codes = np.array([0, 1, 1, 0])
    answers = pd.Series(codes, name="bought")
    for y, same in ((answers, answers), (answers, answers.copy()), (codes, codes)):
        with pytest.raises(ldp.InvalidInput, match="the labels themselves"):
            closed(y, ledger, **{role: same})


@pytest.mark.filterwarnings("ignore::labeldp.errors.NoisyVotesWarning")
@pytest.mark.parametrize("way", charges())
def test_every_way_in_python_keeps_to_names(tmp_path: Path, way: str) -> None:
    read = charges()[way]

    def draw(ledger: ldp.Ledger, cap: int, **rows: Any) -> None:
        read(closed(FRAME.y.to_numpy(), ledger, max_rows_per_unit=cap, **rows))

    rows = ldp.Ledger(tmp_path / "rows.db", budget=1.0)
    draw(rows, 1, ids=FRAME.visit)
    for ids in (
        FRAME.barcode,
        {"barcode": FRAME.barcode.to_numpy()},
        FRAME.barcode.to_numpy(),
    ):
        with pytest.raises(ldp.BudgetExceeded):
            draw(rows, 1, ids=ids)
    with pytest.raises(ldp.LedgerError, match="Expected unit 'row'"):
        draw(rows, 1, ids=FRAME.visit, unit=FRAME.person)
    units = ldp.Ledger(tmp_path / "units.db", budget=1.0)
    draw(units, 1, ids=FRAME.visit, unit=FRAME.person)
    assert units.runs()[0].receipt.unit == "person"
    for unit, m in ((FRAME.household, 2), (FRAME.ward, 20), (FRAME.household.to_numpy(), 2)):
        with pytest.raises(ldp.LedgerError, match="Expected unit 'person'"):
            draw(units, m, ids=FRAME.visit, unit=unit)
    for who in ({"person": FRAME.household}, FRAME.ward.rename("person")):
        # a unit that changed its meaning does not hide the rows
        with pytest.raises(ldp.BudgetExceeded):
            draw(units, 20, ids=FRAME.visit, unit=who)
    with pytest.raises(ldp.LedgerError, match="got 'row'"):
        draw(units, 1, ids=FRAME.visit)
    with pytest.raises(ldp.InvalidInput, match="another name than 'row'"):
        draw(units, 1, ids=FRAME.visit, unit=FRAME.person.rename("row"))
    for wrong in ({"ids": {"": FRAME.visit}}, {"unit": {"": FRAME.person}}):
        with pytest.raises(ldp.InvalidInput, match="name"):
            draw(units, 1, **wrong)
    assert (len(rows.runs()), len(units.runs())) == (1, 1)


def test_the_largest_unsigned_number_is_another_row_than_minus_one(ledger: ldp.Ledger) -> None:
    first = ldp.privatize(
        closed([0, 1], ledger, np.array([-1, 5])),
        LAW,
    )
    other = ldp.privatize(
        closed([0, 1], ledger, np.array([2**64 - 1, 6], np.uint64)),
        LAW,
    )
    assert (ledger.spent_by_rows("d", "label"), len(ledger.runs())) == ([(1.0, 4)], 2)
    assert other.receipts != first.receipts
    with pytest.raises(ldp.BudgetExceeded):  # 5 and 6 are the same rows in any type
        ldp.privatize(
            closed([0], ledger, np.array([5], np.uint8)),
            LAW,
        )
    assert other.ids.tolist() == [2**64 - 1, 6]


def test_the_same_large_numbers_in_another_type_are_a_repeat_row_by_row(ledger: ldp.Ledger) -> None:
    ids = 2**60 + np.arange(200)
    first = ldp.privatize(
        closed(np.arange(200) % 2, ledger, ids),
        LAW,
    )
    again = ldp.privatize(
        closed(np.arange(200)[::-1] % 2, ledger, ids[::-1].astype(np.uint64)),
        LAW,
    )
    assert again.receipts == first.receipts
    np.testing.assert_array_equal(again.hard_codes()[::-1], first.hard_codes())


def test_one_column_of_ids_is_a_column_in_every_shape(ledger: ldp.Ledger) -> None:
    ids = np.arange(50)
    first = ldp.privatize(
        closed(ids % 2, ledger, ids),
        LAW,
    )
    again = ldp.privatize(
        closed(ids % 2, ledger, ids[:, None]),
        LAW,
    )
    assert again.receipts == first.receipts
    np.testing.assert_array_equal(again.hard_codes(), first.hard_codes())
    with pytest.raises(ldp.BudgetExceeded):
        ldp.privatize(
            closed([0, 1], ledger, np.array([[49], [50]])),
            LAW,
        )


# Random histories
# --------------------------------------------------------------------------------------------------

ROWS = 12


@dataclass(frozen=True)
class Numbering:
    """How rows are named in a column, or whom they are about; one name has one numbering, as the
    user vouches."""

    name: str | None
    of: Callable[[int], object]


INTEGERS = [
    Numbering("visit", int),
    Numbering("serial", lambda row: 2**63 + 7 * row),
    Numbering(None, lambda row: -3 * row),
]
TEXTS = [
    Numbering("visit", lambda row: f"{row + 100}"),
    Numbering("mail", lambda row: f"m{row}"),
    Numbering(None, lambda row: f"{row}"),
]
PAIRS = Numbering("day,shop", lambda row: (row % 4, f"s{row // 4}"))
UNITS = {
    name: Numbering(name, lambda row, size=size, start=start: start + row // size)
    for name, size, start in (("person", 2, 0), ("ward", 6, 50))
}


def column_of(numbering: Numbering, rows: list[int], random: np.random.Generator) -> Any:
    """These rows' names in a form that the user may have them in."""
    values = [numbering.of(row) for row in rows]
    if isinstance(values[0], tuple):
        return pd.DataFrame(values, columns=str(numbering.name).split(","))
    if numbering.name is None:
        return values if random.integers(2) else np.array(values)
    return (
        pd.Series(values, name=numbering.name)
        if random.integers(2)
        else pa.table({numbering.name: np.array(values)}).column(0)
    )


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_never_spend_less_than_the_truth(tmp_path: Path, seed: int) -> None:
    """Fifty histories of six requests each, against a ledger of true rows and people."""
    random, budget = np.random.default_rng(seed), 1.0
    ledger = ldp.Ledger(tmp_path / "l.db", budget=budget)
    refused = 0
    for history in range(50):
        dataset = f"d{history}"
        unit = [None, UNITS["person"], UNITS["ward"]][random.integers(3)]
        # the unit's column means other people each time, which only ids of the rows can show
        changes = bool(random.integers(2))
        truth: dict[object, Fraction] = {}
        for _ in range(6):
            rows = sorted(random.choice(ROWS, random.integers(1, 7), replace=False).tolist())
            numbering = [*INTEGERS, *TEXTS, PAIRS, None][random.integers(7 if changes else 8)]
            # now and then another unit than before
            asked = UNITS["person"] if unit is None and random.integers(8) == 0 else unit
            given: dict[str, Any] = {"dataset": dataset}
            redraw = bool(random.integers(2))
            if numbering is not None:
                given["ids"] = column_of(numbering, rows, random)
            if asked is not None:
                who = (
                    1000 * int(random.integers(9)) + np.arange(len(rows))
                    if changes
                    else column_of(asked, rows, random)
                )
                given |= {"unit": {str(asked.name): who}, "max_rows_per_unit": 6}
            epsilon = float(random.choice([0.25, 0.5]))
            runs, labels = len(ledger.runs(dataset)), closed(np.array(rows) % 2, ledger, **given)
            try:
                if random.integers(3):
                    ldp.privatize(labels, ldp.RandomizedResponse(2, epsilon), redraw=redraw)
                else:
                    query, where = ldp.aggregates.Histogram(2, epsilon, 1), np.zeros(len(rows), int)
                    ldp.aggregate(labels, query, where, redraw=redraw)
            except (ldp.LedgerError, ldp.BudgetExceeded) as error:
                assert len(ledger.runs(dataset)) == runs
                refused += isinstance(error, ldp.BudgetExceeded)
            if len(ledger.runs(dataset)) > runs:
                people = (
                    set()
                    if asked is None or changes
                    else {(asked.name, asked.of(row)) for row in rows}
                )
                for each in {*rows, *people}:
                    truth[each] = truth.get(each, Fraction(0)) + Fraction(epsilon)
            assert (
                max(truth.values(), default=Fraction(0))
                <= Fraction(ledger.spent(dataset, "label"))
                <= budget
            )
            assert len({run.receipt.unit for run in ledger.runs(dataset)}) <= 1
    assert refused > 50
    assert ledger.verify() == []


@pytest.mark.parametrize("of", ["an entry of another account", "the opening"])
def test_a_forged_standing_is_not_believed_and_is_seen(tmp_path: Path, of: str) -> None:
    path = tmp_path / "l.db"
    ledger, law = ldp.Ledger(path), ldp.RandomizedResponse(2, 1.0)
    ldp.privatize(
        closed([0, 1], ledger, [1, 2], dataset="mine"),
        law,
    )
    ldp.privatize(
        closed([0, 1], ledger, [1, 2], dataset="other"),
        law,
    )
    assert ledger.verify() == []
    entry = ledger.history()[0 if of == "the opening" else -1]
    store = SqliteStore(path)
    with store.writing() as session:
        true = session.balance("mine", "label")
        session.keep(
            replace(
                true,
                seq=int(str(entry["seq"])),
                head=str(entry["hash"]),
                total=true.total * 0,
                runs=0,
            )
        )
    with pytest.raises(ldp.BudgetExceeded):
        ldp.privatize(
            closed([1, 1], ledger, [1, 2], dataset="mine"),
            law,
            redraw=True,
        )


def test_a_ledger_that_was_set_back_is_seen_and_repair_keeps_the_traces(
    tmp_path: Path, ledger: ldp.Ledger
) -> None:
    release(write(tmp_path / "a.parquet", row=np.arange(9)), ledger)
    shutil.copy(tmp_path / "l.db", tmp_path / "backup.db")
    release(write(tmp_path / "b.parquet", row=np.arange(9, 18)), ledger)
    ldp.privatize(
        closed([0, 1], ledger, [30, 31], dataset="other"),
        ldp.RandomizedResponse(2, 1.0),
    )
    assert ledger.verify() == []
    for name in ("l.db-wal", "l.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup.db", tmp_path / "l.db")
    for _ in range(2):
        assert [
            problem for problem in ledger.verify() if "set back" in problem
        ] == ledger.verify() and len(ledger.verify()) == 2
        found = orphans(ledger, minutes=1e-9)
        assert repair(ledger, found, shutil.rmtree) == found == []
