# SPDX-License-Identifier: Apache-2.0
"""Aggregates through the door: charged before they are drawn, never drawn twice for one charge,
stored, and refused before a charge."""

import json
import math
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

import labeldp as ldp
from labeldp.aggregates import Aggregate, Histogram, Query, Vote
from labeldp.app._ledger import accounts
from labeldp.custody._aggregation import aggregate_batches
from labeldp.custody._counts import GroupCounts
from labeldp.errors import (
    BudgetExceeded,
    InvalidInput,
    LedgerError,
    LeftOutWarning,
    SeededNoiseWarning,
)
from labeldp.receipt import LedgerEntry, spent_together

RNG = np.random.default_rng(0)
LABELS, GROUPS = RNG.integers(0, 3, 600), RNG.integers(0, 4, 600)
QUERY = Histogram(3, 0.5, 4)
SEED = ldp.SeededNoise(3)


def counted(labels: np.ndarray = LABELS, groups: np.ndarray = GROUPS) -> np.ndarray:
    table = np.zeros((4, 3), int)
    np.add.at(table, (groups, labels), 1)
    return table


def labels(ledger: object, y: object = LABELS, **more: object) -> ldp.PrivateLabels:
    facts = {"classes": range(3), "dataset": "d", "column": "label"} | more
    return ldp.PrivateLabels(y, ledger=ledger, **facts)


def ask(ledger: ldp.Ledger, query: Query = QUERY, **more: object) -> Aggregate:
    return ldp.aggregate(labels(ledger, **more), query, GROUPS)


@pytest.fixture
def ledger(tmp_path: Path) -> ldp.Ledger:
    return ldp.Ledger(tmp_path / "ledger.sqlite", budget=2.0)


def test_counts_are_near_the_truth_and_rows_are_exact() -> None:
    found = ldp.aggregate(ldp.PrivateLabels(LABELS, classes=range(3)), QUERY, GROUPS)
    assert found.n_rows.tolist() == counted().sum(axis=1).tolist()
    assert np.abs(found.values - counted()).max() < 4 * 40
    assert (found.values != counted()).any()
    assert (found.epsilon, found.delta, found.privacy.unit, found.privacy.recorded) == (
        0.5,
        0.0,
        "row",
        False,
    )


def test_seeded_noise_is_the_same_again_and_taints() -> None:
    with pytest.warns(SeededNoiseWarning):
        one = ldp.aggregate(ldp.PrivateLabels(LABELS, classes=range(3), noise=SEED), QUERY, GROUPS)
    with pytest.warns(SeededNoiseWarning):
        two = ldp.aggregate(ldp.PrivateLabels(LABELS, classes=range(3), noise=SEED), QUERY, GROUPS)
    assert one.values.tolist() == two.values.tolist()
    assert (one.epsilon, one.delta, one.privacy.secure) == (math.inf, 1.0, False)
    with pytest.warns(SeededNoiseWarning):
        other = ldp.aggregate(
            ldp.PrivateLabels(LABELS, classes=range(3), noise=SEED), Histogram(3, 0.25, 4), GROUPS
        )
    assert (other.values - counted()).tolist() != (2 * (one.values - counted())).tolist()


def test_noise_of_the_running_door_has_its_law_and_no_other() -> None:
    """From the operating system's entropy, 60,000 empty cells; an alarm once in 10^9 runs."""
    values = (
        ldp.aggregate(
            ldp.PrivateLabels([0, 1], classes=range(3)), Histogram(3, 1.0, 20_001), [20_000, 20_000]
        )
        .values[:20_000]
        .reshape(-1)
    )
    reach = np.arange(-12, 13)
    for a, fits in ((0.5, True), (0.65, False), (0.385, False)):
        shares = math.tanh(a / 2) * np.exp(-a * np.abs(reach))
        counts = np.array([np.count_nonzero(values == k) for k in reach])
        expected = np.append(shares, 1 - shares.sum()) * len(values)
        assert (
            stats.chisquare(np.append(counts, len(values) - counts.sum()), expected).pvalue > 1e-9
        ) == fits


# The ledger
# --------------------------------------------------------------------------------------------------


def test_a_repeat_returns_what_was_stored_and_costs_nothing(ledger: ldp.Ledger) -> None:
    one, two = ask(ledger), ask(ledger)
    assert one.values.tolist() == two.values.tolist()
    assert one.receipt == two.receipt
    assert (two.query, two.classes, two.n_rows.tolist()) == (
        one.query,
        one.classes,
        one.n_rows.tolist(),
    )
    assert ledger.spent("d", "label") == 0.5
    assert ledger.verify([one.receipt]) == []
    (run,) = ledger.runs()
    assert run.state == "settled"
    assert not run.repeatable
    assert sorted(path.name for path in ledger.run_dir(run.run_id).iterdir()) == [
        "aggregate.parquet",
        "charge.json",
    ]


@pytest.mark.parametrize(
    "other",
    [
        Histogram(3, 0.25, 4),
        Histogram(3, 0.5, 5),
        Vote(3, 0.5, 4),
        Histogram(3, 0.5, 4, "gaussian", 1e-6),
    ],
)
def test_another_query_is_another_charge(ledger: ldp.Ledger, other: Query) -> None:
    ask(ledger)
    ask(ledger, other)
    assert ledger.spent("d", "label") == 0.5 + other.epsilon


def test_deltas_add_up_over_the_rows_that_share_them(ledger: ldp.Ledger) -> None:
    query, ids = Histogram(3, 0.2, 4, "gaussian", 1e-6), np.arange(600)
    ask(ledger, ids=ids)
    assert ledger.spent_delta("d", "label") == 0.0
    ask(ledger, query, ids=ids)
    ask(ledger, query, ids=ids + 1000)
    assert ledger.spent_delta("d", "label") == 1e-6
    ask(ledger, Vote(3, 0.2, 4, "gaussian", 2e-6), ids=ids)
    assert ledger.spent_delta("d", "label") == 3e-6
    ask(ledger, query)
    assert ledger.spent_delta("d", "label") == 4e-6
    assert accounts(ledger)[0]["delta"] == 4e-6


def test_ids_recognise_a_repeat_in_another_order_and_keep_disjoint_rows_apart(
    ledger: ldp.Ledger,
) -> None:
    ids, order = np.arange(600), np.argsort(LABELS, kind="stable")
    one = ask(ledger, ids=ids)
    two = ldp.aggregate(labels(ledger, LABELS[order], ids=ids[order]), QUERY, GROUPS[order])
    assert one.values.tolist() == two.values.tolist()
    ask(ledger, ids=ids + 1000)
    assert ledger.spent("d", "label") == 0.5


def test_an_aggregate_adds_to_a_draw_of_the_same_labels(ledger: ldp.Ledger) -> None:
    """A cluster prior, then labels drawn with it: sequential, in decimals; the histogram does not
    pass for an earlier release of rows."""
    prior = ask(ledger, Histogram(3, 0.1, 4)).prior(GROUPS)
    noisy = ldp.privatize(labels(ledger), ldp.AutoLaw(3, 0.2), prior=prior)
    assert len(noisy) == 600
    assert Fraction(repr(ledger.spent("d", "label"))) == Fraction("0.3")
    together = spent_together([ask(ledger, Histogram(3, 0.1, 4)).receipt, *noisy.receipts])
    assert (together.epsilon, together.delta, together.unit, together.recorded) == (
        0.3,
        0.0,
        "row",
        True,
    )


def test_what_exceeds_the_budget_is_refused_and_leaves_nothing(ledger: ldp.Ledger) -> None:
    with pytest.raises(BudgetExceeded):
        ask(ledger, Histogram(3, 2.5, 4))
    assert ledger.runs() == []
    assert [path for path in ledger.runs_dir.glob("*") if path.is_dir()] == []


def test_a_stored_answer_that_is_gone_or_changed_is_not_given(ledger: ldp.Ledger) -> None:
    path = ledger.run_dir(ask(ledger).receipt.run_id) / "aggregate.parquet"
    kept = path.read_bytes()
    pq.write_table(pa.table({"count_0": [1]}), path)
    with pytest.raises(LedgerError, match="changed"):
        ask(ledger)
    path.unlink()
    with pytest.raises(LedgerError, match="redraw=True"):
        ask(ledger)
    path.write_bytes(kept)
    ask(ledger)
    assert ledger.spent("d", "label") == 0.5


def test_the_charge_is_on_disk_before_the_draw(
    ledger: ldp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    release = Histogram.release

    def watched(self: Histogram, *arguments: object) -> np.ndarray:
        seen.append(ledger.spent("d", "label"))
        return release(self, *arguments)

    monkeypatch.setattr(Histogram, "release", watched)
    ask(ledger)
    assert seen == [0.5]


ASK = """
import os, signal, sys
import numpy as np
import labeldp as ldp
from labeldp.ledger import _run_store as run_store
from labeldp.ledger._ledger import Ledger

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "before the store":
    write = run_store.RunStore.write
    run_store.RunStore.write = lambda store, name, data: (
        write(store, name, data) if name == run_store.CHARGE else die()
    )
if sys.argv[2] == "before settling":
    Ledger.settle = die
rng = np.random.default_rng(0)
y, groups = rng.integers(0, 3, 600), rng.integers(0, 4, 600)
try:
    query, ledger = ldp.aggregates.Histogram(3, 0.5, 4), ldp.Ledger(sys.argv[1], budget=2.0)
    facts = {"classes": range(3), "dataset": "d", "column": "label", "ledger": ledger}
    found = ldp.aggregate(ldp.PrivateLabels(y, **facts), query, groups)
    print(found.receipt.run_id, found.values.tolist())
except ldp.BudgetExceeded:
    print("refused")
"""


def process(ledger: ldp.Ledger, dies: str = "") -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", ASK, str(ledger.location), dies]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_killed_before_the_answer_is_stored_it_is_spent_and_not_replayed(
    ledger: ldp.Ledger,
) -> None:
    died = process(ledger, "before the store")
    assert died.communicate(timeout=120)[0] == ""
    assert died.returncode == -signal.SIGKILL
    assert ledger.spent("d", "label") == 0.5
    (dead,) = ledger.runs()
    assert dead.state == "charged"
    # no secret from which it could be drawn again
    assert [path.name for path in ledger.run_dir(dead.run_id).iterdir()] == ["charge.json"]
    again = ask(ledger)
    assert again.receipt.run_id != dead.run_id
    assert ledger.spent("d", "label") == 1.0
    assert ledger.verify([again.receipt]) == []


def test_killed_after_the_answer_was_stored_it_is_found_and_settled(ledger: ldp.Ledger) -> None:
    died = process(ledger, "before settling")
    assert died.communicate(timeout=120)[0] == ""
    assert died.returncode == -signal.SIGKILL
    (dead,) = ledger.runs()
    found = ask(ledger)
    assert found.receipt.run_id == dead.run_id
    assert ledger.spent("d", "label") == 0.5
    assert [run.state for run in ledger.runs()] == ["settled"]
    assert ledger.verify([found.receipt]) == []


def test_processes_at_once_never_share_a_draw_or_exceed_the_budget(ledger: ldp.Ledger) -> None:
    ends = [each.communicate(timeout=120) for each in [process(ledger) for _ in range(5)]]
    # said to who comes after one has settled
    assert [error for _, error in ends if error and "RepeatWarning" not in error] == []
    answers = {out.strip() for out, _ in ends if out.strip() != "refused"}
    runs = ledger.runs()
    assert {answer.split()[0] for answer in answers} <= {run.run_id for run in runs}
    # one run, one answer
    assert len({answer.split(maxsplit=1)[1] for answer in answers}) == len(answers)
    # who comes while another one draws is charged for a draw of its own
    assert ledger.spent("d", "label") == 0.5 * len(runs) <= 2.0
    assert all(run.state == "settled" for run in runs)
    assert ledger.verify([run.receipt for run in runs]) == []


# Units
# --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error::labeldp.errors.LeftOutWarning")
def test_a_warning_that_is_made_an_error_loses_no_answer(ledger: ldp.Ledger) -> None:
    people = np.arange(600) // 2
    with pytest.raises(LeftOutWarning):
        ask(ledger, unit=people)
    with pytest.raises(LeftOutWarning):
        ldp.privatize(
            labels(ledger, ids=np.arange(600), unit=people), ldp.RandomizedResponse(3, 0.5)
        )
    assert not ledger.runs()


def test_units_are_capped_and_the_noise_is_for_all_of_their_rows(ledger: ldp.Ledger) -> None:
    unit = np.arange(600) // 5
    found = ask(ledger, Histogram(3, 1.0, 4), unit=unit, max_rows_per_unit=2)
    assert found.n_rows.sum() == 2 * 120
    assert (found.privacy.unit, found.receipt.max_rows_per_unit) == ("unit", 2)
    exact = ldp.aggregate(
        ldp.PrivateLabels(LABELS, classes=range(3), unit=np.arange(600), max_rows_per_unit=1),
        Histogram(3, 600.0, 4),
        GROUPS,
    )
    assert exact.values.tolist() == counted().tolist()
    spread = [
        ldp.aggregate(
            ldp.PrivateLabels(np.zeros(2, int), classes=range(3), unit=[1, 1], max_rows_per_unit=m),
            Histogram(3, 1.0, 400),
            [0, 0],
        )
        for m in (1, 8)
    ]
    deviations = [np.std(each.values[1:]) for each in spread]
    for m, deviation in zip((1, 8), deviations, strict=True):
        assert deviation == pytest.approx(Histogram(3, 1.0, 400).standard_deviation(m), rel=0.25)


# What is refused, before anything is charged
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"groups": [0, 1]}, "groups of 600 rows"),
        ({"groups": np.where(GROUPS == 0, 7, GROUPS)}, "0..3, got 7"),
        ({"groups": np.where(GROUPS == 0, -1, GROUPS)}, "0..3, got -1"),
        ({"groups": np.where(GROUPS == 0, np.nan, GROUPS)}, "whole number"),
        ({"groups": [None, *GROUPS[1:]]}, "whole number"),
        ({"groups": np.ma.masked_equal(GROUPS, 0)}, "masked array with masked ones"),
        ({"groups": GROUPS.astype(str)}, "whole number"),
        ({"query": "histogram"}, "such as Histogram or Vote"),
        ({"query": Histogram(2, 0.5, 4)}, "3 classes"),
        ({"classes": range(4)}, "4 classes"),
        ({"y": []}, "at least one label"),
        ({"y": np.where(LABELS == 0, 9, LABELS)}, "codes 0 to 2"),
        ({"classes": None}, "classes that a label can have, got none"),
        ({"max_rows_per_unit": 2}, "unit="),
        ({"ids": np.zeros(600, int)}, "different ids"),
        ({"ids": np.arange(5)}, "ids of 600 rows"),
        ({"dataset": None}, "dataset="),
        ({"noise": SEED}, "noise=None"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_charged(
    ledger: ldp.Ledger, arguments: dict[str, object], named: str
) -> None:
    asked = {"query": QUERY, "groups": GROUPS} | arguments
    facts = {name: asked.pop(name) for name in arguments.keys() - {"query", "groups"}}
    with pytest.raises(InvalidInput, match=named):
        ldp.aggregate(labels(ledger, **facts), **asked)
    assert ledger.runs() == []


@pytest.mark.parametrize(
    "query",
    [
        QUERY,
        Histogram(3, 0.5, 4, "gaussian", 1e-300),
        Vote(3, 0.5, 4),
        Vote(3, 0.5, 4, delta=1e-6),
        Vote(3, 0.5, 4, "gaussian", 1e-300),
    ],
)
def test_noise_too_wide_to_be_drawn_is_refused_before_a_charge(
    ledger: ldp.Ledger, query: Query
) -> None:
    most = 1 << 45
    found = ask(ledger, query, unit=GROUPS, max_rows_per_unit=most)
    assert found.receipt.max_rows_per_unit == most
    assert ledger.spent("d", "label") == 0.5
    for cap in (most + 1, 10**17, 10**19, 10**400):
        with pytest.raises(InvalidInput, match=f"max_rows_per_unit <= {most}"):
            ask(ledger, query, unit=GROUPS, max_rows_per_unit=cap)
    assert ledger.spent("d", "label") == 0.5


def test_no_message_shows_a_label_and_raw_counts_stay_inside() -> None:
    secret = "only-Alice-has-this"
    with pytest.raises(InvalidInput) as caught:
        ldp.aggregate(
            ldp.PrivateLabels(["a", "b", secret], classes=["a", "b"]),
            Histogram(2, 1.0, 1),
            [0, 0, 0],
        )
    assert secret not in str(caught.value)
    counts = GroupCounts(1, 2)
    counts.add(np.zeros(3, np.int64), np.array([0, 0, 1]))
    assert repr(counts) == "GroupCounts(1, 2)"
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(counts)


# Files
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", [QUERY, Vote(3, 0.5, 4), Vote(3, 0.5, 4, "gaussian", 1e-6)])
def test_an_answer_is_read_back(query: Query, tmp_path: Path) -> None:
    found = ldp.aggregate(
        ldp.PrivateLabels(np.array(["x", "y", "z"])[LABELS], classes=["x", "y", "z"]), query, GROUPS
    )
    found.save(tmp_path / "answer.parquet")
    again = Aggregate.load(tmp_path / "answer.parquet")
    assert (again.values.tolist(), again.n_rows.tolist()) == (
        found.values.tolist(),
        found.n_rows.tolist(),
    )
    assert (again.query, again.classes, again.receipt) == (
        found.query,
        found.classes,
        found.receipt,
    )
    assert again.labels().tolist() == found.labels().tolist()


@pytest.mark.parametrize("query", [QUERY, Vote(3, 0.5, 4)])
def test_an_answer_with_names_is_read_back(query: Query, tmp_path: Path) -> None:
    found = replace(
        ldp.aggregate(ldp.PrivateLabels(LABELS, classes=[0, 1, 2]), query, GROUPS),
        group_names=("north", "east", "south", "west"),
    )
    found.save(tmp_path / "answer.parquet")
    again = Aggregate.load(tmp_path / "answer.parquet")
    assert (again.group_names, again.values.tolist()) == (found.group_names, found.values.tolist())
    assert again.predict(["west", "north"]).tolist() == found.labels()[[3, 0]].tolist()
    with pytest.raises(InvalidInput, match="4 different names"):
        replace(found, group_names=("north", "north", "east", "west"))


def test_groups_may_have_numbers_and_texts_as_names() -> None:
    found = replace(
        ldp.aggregate(ldp.PrivateLabels(LABELS, classes=[0, 1, 2]), QUERY, GROUPS),
        group_names=(1, "x", 2.5, ("a", "b")),
    )
    for given in ([1, "x", ("a", "b")], (np.int64(1), np.str_("x"), ("a", "b"))):
        assert found.predict(given).tolist() == found.labels()[[0, 1, 3]].tolist()
    with pytest.raises(InvalidInput, match="another one in row 1"):
        found.predict([1, "2.5"])


def test_columns_are_named_by_the_classes_unless_two_read_alike() -> None:
    one, two = (
        ldp.aggregate(ldp.PrivateLabels([5, 6], classes=classes), Histogram(2, 1.0, 1), [0, 0])
        for classes in ([5, 6], [6, 5])
    )
    assert [each.to_table().column_names[2:] for each in (one, two)] == [
        ["count_5", "count_6"],
        ["count_6", "count_5"],
    ]
    with pytest.raises(InvalidInput, match="written alike"):
        ldp.aggregate(
            ldp.PrivateLabels(np.array(["1", 1], object), classes=["1", 1]),
            Histogram(2, 1.0, 1),
            [0, 0],
        )
    alike = replace(one, classes=("1", 1))  # as earlier ones may be
    assert alike.to_table().column_names[2:] == ["count_0", "count_1"]
    assert Aggregate.from_table(alike.to_table()).values.tolist() == alike.values.tolist()


def test_tables_that_are_no_answer_are_refused() -> None:
    table = ldp.aggregate(ldp.PrivateLabels(LABELS, classes=range(3)), QUERY, GROUPS).to_table()
    for other in (
        table.replace_schema_metadata(None),
        table.slice(1),
        table.drop_columns(["count_2"]),
    ):
        with pytest.raises(InvalidInput, match=r"aggregate of format|table was changed"):
            Aggregate.from_table(other)


@pytest.mark.parametrize("query", [QUERY, Vote(3, 0.5, 4)])
def test_counts_put_into_an_answers_file_are_refused(query: Query, tmp_path: Path) -> None:
    """Raw counts, other groups or a smaller epsilon under the metadata of an answer; without a
    digest nothing is recorded."""
    found = replace(
        ldp.aggregate(ldp.PrivateLabels(LABELS, classes=[0, 1, 2]), query, GROUPS),
        group_names=("north", "east", "south", "west"),
    )
    table = found.to_table()
    facts = json.loads(table.schema.metadata[b"labeldp-aggregate"])
    name = table.column_names[2]
    other = [
        table.set_column(2, name, pa.array((table[name].to_numpy() + 1) % 3)),
        table.set_column(1, "n_rows", pa.array([1, 2, 3, 4])),
        table.set_column(0, "group", pa.array(["east", "north", "south", "west"])),
        table.replace_schema_metadata(
            {
                "labeldp-aggregate": json.dumps(
                    facts | {"receipt": facts["receipt"] | {"epsilon": 0.01}}
                )
            }
        ),
        (
            table.replace_schema_metadata(
                {"labeldp-aggregate": json.dumps(facts | {"classes": [2, 1, 0]})}
            )
            if "code" in name
            else table.slice(1)
        ),
    ]
    for changed in other:
        with pytest.raises(InvalidInput, match="changed"):
            Aggregate.from_table(changed)
    old = replace(found, receipt=replace(found.receipt, entry=LedgerEntry(True))).to_table()
    facts = json.loads(old.schema.metadata[b"labeldp-aggregate"])
    assert Aggregate.from_table(old).privacy.recorded
    del facts["drawn"]
    with pytest.raises(InvalidInput, match="changed"):
        Aggregate.from_table(old.replace_schema_metadata({"labeldp-aggregate": json.dumps(facts)}))


# Batches
# --------------------------------------------------------------------------------------------------

TABLE = pa.table({"y": LABELS, "cluster": GROUPS.astype(np.int32), "x": RNG.random(600)})


def test_batches_give_what_arrays_give_and_repeat_each_other(
    ledger: ldp.Ledger, tmp_path: Path
) -> None:
    pq.write_table(TABLE, tmp_path / "rows.parquet", row_group_size=100)
    one = ldp.aggregate(
        ldp.PrivateLabels(LABELS, classes=range(3), dataset="d", column="y", ledger=ledger),
        QUERY,
        GROUPS,
    )
    for source in (tmp_path / "rows.parquet", TABLE, iter(TABLE.to_batches(max_chunksize=7))):
        two = aggregate_batches(
            source, QUERY, label="y", group="cluster", classes=range(3), dataset="d", ledger=ledger
        )
        assert two.values.tolist() == one.values.tolist()
        assert two.receipt == one.receipt
    assert ledger.spent("d", "y") == 0.5


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.float64()])
def test_numbers_of_every_type_are_labels_in_batches(kind: pa.DataType) -> None:
    batch = pa.record_batch(
        {"y": pa.array(LABELS).cast(kind), "g": pa.array(GROUPS).cast(pa.uint64())}
    )
    found = aggregate_batches(
        [batch], Histogram(3, 300.0, 4), label="y", group="g", classes=range(3)
    )
    assert found.values.tolist() == counted().tolist()


@pytest.mark.parametrize("encode", [lambda column: column, pa.Array.dictionary_encode])
def test_text_labels_in_batches_are_found_by_value(encode: object) -> None:
    text = pa.array(np.array(["x", "y", "z"])[LABELS])
    batch = pa.record_batch({"y": encode(text), "g": GROUPS})
    found = aggregate_batches(
        [batch], Histogram(3, 300.0, 4), label="y", group="g", classes=["x", "y", "z"]
    )
    assert found.values.tolist() == counted().tolist()


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"y": [0, 1], "g": [0, None]}, "without nulls"),
        ({"y": [0, 1], "g": [0.0, 1.0]}, "whole numbers"),
        ({"y": [0, 1], "g": [0, 4]}, "0..3, got 4"),
        ({"y": [0, None], "g": [0, 1]}, "some label is missing"),
        ({"y": [0, 7], "g": [0, 1]}, "some label is not"),
        ({"y": ["0", "1"], "g": [0, 1]}, "some label is not"),
        ({"z": [0, 1], "g": [0, 1]}, "column 'y'"),
        ({"y": [0, 1], "h": [0, 1]}, "column 'g'"),
        ({"y": pa.array([], pa.int64()), "g": pa.array([], pa.int64())}, "at least one row"),
    ],
)
def test_batches_that_are_wrong_are_refused_before_a_charge(
    ledger: ldp.Ledger, table: dict[str, object], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        aggregate_batches(
            pa.table(table),
            QUERY,
            label="y",
            group="g",
            classes=range(3),
            dataset="d",
            ledger=ledger,
        )
    assert ledger.runs() == []


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("/nowhere/rows.parquet", "path of a Parquet file, got '/nowhere/rows.parquet'"),
        (Path(__file__), "path of a Parquet file"),
        (7, "record batches, got int"),
        ([7], "record batches, got int"),
        (TABLE.to_batches()[0], r"Pass \[batch\]"),
    ],
)
def test_what_holds_no_rows_is_refused_before_a_charge(
    ledger: ldp.Ledger, source: object, named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        aggregate_batches(
            source, QUERY, label="y", group="cluster", classes=range(3), dataset="d", ledger=ledger
        )
    assert ledger.runs() == []


def test_the_labels_are_no_groups(ledger: ldp.Ledger) -> None:
    """The number of rows of each group is exact."""
    with pytest.raises(InvalidInput, match="public column of groups, got the label column 'y'"):
        aggregate_batches(
            TABLE,
            Histogram(3, 0.5, 3),
            label="y",
            group="y",
            classes=range(3),
            dataset="d",
            ledger=ledger,
        )
    assert ledger.runs() == []


@pytest.mark.parametrize("query", [Histogram, Vote])
def test_classes_and_groups_are_taken_from_labels_and_groups(query: type[Query]) -> None:
    labels = ldp.PrivateLabels([0, 1, 2, 0], classes=range(3), noise=ldp.SeededNoise(0))
    found, same = (
        ldp.aggregate(labels, each, [0, 2, 2, 4]) for each in (query(epsilon=9.0), query(3, 9.0, 5))
    )
    assert found.query == query(3, 9.0, 5)
    assert found.values.tolist() == same.values.tolist()
