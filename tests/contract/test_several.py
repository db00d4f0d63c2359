# SPDX-License-Identifier: Apache-2.0
"""Several label columns under one charge: one bill in the account of each column, and evidence of
each."""

import dataclasses
import json
import shutil
import sqlite3

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.stats import norm

import labeldp as ldp
from labeldp.app._ledger import accounts
from labeldp.errors import BudgetExceeded, InvalidInput, LedgerError, RepeatWarning, RowsOverlap
from labeldp.evidence import NoisyLabels
from labeldp.ledger._database import Spending
from labeldp.noise._secrets import new_run_id

N = 3000
COLUMNS = ldp.LabelColumns({"a": ["no", "yes"], "b": [1, 2, 3]})
CODES = np.random.default_rng(0).choice(6, N, p=[0.4, 0.2, 0.05, 0.05, 0.1, 0.2])
LABELS = pd.DataFrame(
    {
        name: np.array(values)[codes]
        for name, values, codes in zip("ab", COLUMNS.lists, COLUMNS.parts(CODES), strict=True)
    }
)
IDS = np.arange(N) + 7


@pytest.fixture
def ledger(tmp_path):
    return ldp.Ledger(tmp_path / "ledger.db", budget=4.0)


def drawn(ledger, split="joint", epsilon=2.0, labels=LABELS, ids=IDS, **facts):
    facts = {"classes": COLUMNS, "dataset": "d", "ids": ids, "ledger": ledger} | facts
    return ldp.privatize(ldp.PrivateLabels(labels, **facts), COLUMNS.law(epsilon, split))


def one(ledger, column, epsilon=1.0, ids=IDS):
    labels = LABELS[column].to_numpy()[: len(ids)]
    law = ldp.RandomizedResponse(len(set(labels)), epsilon)
    return ldp.privatize(
        ldp.PrivateLabels(
            labels,
            classes=COLUMNS.lists[COLUMNS.place(column)],
            dataset="d",
            column=column,
            ids=ids,
            ledger=ledger,
        ),
        law,
    )


@pytest.mark.parametrize("split", ["equal", "one", "joint"])
def test_every_column_is_read_by_its_own_unbiased_estimator(split):
    """Two-sided, 5 columns' classes in 3 laws at 5.2 standard errors: false alarm 4e-6 together.
    Seeded, so it passes always or never."""
    noisy = drawn(None, split, noise=ldp.SeededNoise(3), dataset=None)
    for name in COLUMNS.names:
        column = noisy[name][noisy[name].evidenced]
        weights = column.class_weights()
        rows = column.ids - IDS[0]
        truth = (LABELS[name].to_numpy()[rows, None] == np.array(column.classes)).mean(axis=0)
        error = weights.std(axis=0) / np.sqrt(len(weights))
        assert (np.abs(weights.mean(axis=0) - truth) < norm.isf(1e-7) * error).all()
        assert column.classes == COLUMNS.lists[COLUMNS.place(name)]


def test_rows_that_were_asked_about_another_column_are_left_out_by_name():
    noisy = drawn(None, "one", noise=ldp.SeededNoise(3), dataset=None)["a"]
    guesses = np.full(N, "no")
    with pytest.raises(InvalidInput, match=r"evidence for every row.*another column"):
        ldp.metrics.accuracy(noisy, guesses)
    asked = noisy.evidenced
    found = ldp.metrics.accuracy(noisy[asked], guesses[asked])
    assert found.low <= (LABELS["a"] == "no")[asked].mean() <= found.high


def test_the_likelihood_of_combinations_is_the_product_of_columns_drawn_apart():
    noisy = drawn(None, "equal", noise=ldp.SeededNoise(4), dataset=None)
    a, b = noisy["a"].log_likelihood(dtype="float64"), noisy["b"].log_likelihood(dtype="float64")
    both = (a[:, :, None] + b[:, None, :]).reshape(N, 6)
    np.testing.assert_allclose(
        noisy.log_likelihood(dtype="float64"), both - both.max(axis=1, keepdims=True), atol=1e-12
    )


def test_one_charge_counts_in_the_account_of_every_column(ledger):
    noisy = drawn(ledger, epsilon=2.0)
    assert (ledger.spent("d", "a"), ledger.spent("d", "b"), ledger.spent("d", ["a", "b"])) == (
        2.0,
        2.0,
        2.0,
    )
    assert (
        noisy.privacy
        == noisy["a"].privacy
        == ldp.PrivacySpent(2.0, 0.0, "row", recorded=True, secure=True)
    )
    one(ledger, "a", 1.0)
    one(ledger, "b", 0.5)
    assert (ledger.spent("d", "a"), ledger.spent("d", "b"), ledger.spent("d", ["a", "b"])) == (
        3.0,
        2.5,
        3.5,
    )
    drawn(ledger, epsilon=1.0)
    assert (ledger.spent("d", "a"), ledger.spent("d", "b"), ledger.spent("d", ["a", "b"])) == (
        4.0,
        3.5,
        4.5,
    )
    with pytest.raises(BudgetExceeded, match="column 'a'"):  # column b alone could pay
        drawn(ledger, epsilon=0.25)
    assert ledger.spent("d", "b") == 3.5
    assert ledger.verify() == []
    assert {(each["column"], each["spent"]) for each in accounts(ledger)} == {
        ("a", 4.0),
        ("b", 3.5),
    }


def test_a_sum_over_columns_leaves_none_out(ledger):
    assert ledger.spent("d", ["a", "b"]) == 0.0  # nothing was charged yet
    drawn(ledger, epsilon=1.0)
    for columns in (["a", "zz"], ("zz", "a", "b")):
        with pytest.raises(InvalidInput, match="a charge in 'd', got 'zz' without one"):
            ledger.spent("d", columns)
    for columns in ([], 3):
        with pytest.raises(InvalidInput, match="a list of at least one"):
            ledger.spent("d", columns)
    for ask in (ledger.spent_by_rows, ledger.remaining, ledger.spent_delta, ledger.budget_of):
        with pytest.raises(InvalidInput, match="column as printable text, got column=list"):
            ask("d", ["a", "b"])


def test_without_columns_the_sum_is_over_all_that_have_a_charge(ledger):
    assert ledger.spent("nobody") == 0.0
    for column, ids in (("a", [1, 2]), ("b", [2, 3]), ("c", [4])):
        ldp.privatize(
            ldp.PrivateLabels(
                [0, 1, 0][: len(ids)],
                classes=range(2),
                dataset="d",
                column=column,
                ids=ids,
                ledger=ledger,
            ),
            ldp.RandomizedResponse(2, 1.0),
        )
    assert ledger.spent("d") == ledger.spent("d", ["a", "b", "c"]) == 2.0  # row 2 alone has both
    assert ledger.spent("d", ["a", "c"]) == 1.0


def test_columns_in_common_add_up(ledger):
    others = ldp.LabelColumns({"b": [1, 2, 3], "c": [0, 1]})
    drawn(ledger, epsilon=1.0)
    labels = pd.DataFrame({"b": LABELS["b"], "c": np.arange(N) % 2})
    ldp.privatize(
        ldp.PrivateLabels(labels, classes=others, dataset="d", ids=IDS, ledger=ledger),
        others.law(0.5),
    )
    assert [ledger.spent("d", column) for column in "abc"] == [1.0, 1.5, 0.5]
    assert ledger.spent("d", ["a", "b", "c"]) == 1.5
    assert ledger.verify() == []


def test_other_rows_do_not_add_and_the_same_may_be_refused(ledger):
    half = N // 2
    drawn(ledger, ids=IDS[:half], labels=LABELS[:half])
    one(ledger, "a", 2.0, ids=IDS[:half] + 10 * N)
    assert ledger.spent("d", "a") == 2.0
    run = ledger.run(drawn(ledger, ids=IDS[half:], labels=LABELS[half:]).receipts[0].run_id)
    assert (run.receipt.columns, run.receipt.column) == (("a", "b"), "a,b")
    rows = ledger.row_set_builder("id", "row")
    rows.add(IDS[:3])
    again = Spending("d", "a,b", 0.1, run.receipt.event | {"epsilon": 0.1}, "other", new_run_id())
    with pytest.raises(RowsOverlap, match="column 'a'"):
        ledger.charge(again, rows=rows.finish(), overlap="refuse")
    assert ledger.spent("d", "a") == 2.0


def test_a_charge_names_its_columns_once_and_as_they_are_joined(ledger):
    event = ledger.run(drawn(ledger, epsilon=0.5).receipts[0].run_id).receipt.event
    for column, columns in (("a", ["a", "b"]), ("b,a", ["a", "b"]), ("a,a", ["a", "a"])):
        wrong = event | {"law": event["law"] | {"columns": columns}}
        with pytest.raises(InvalidInput, match="different columns under their joined names"):
            ledger.charge(Spending("d", column, 0.5, wrong, "x", new_run_id()))
    assert ledger.spent("d", "a") == 0.5


def test_what_receipts_show_is_no_account(ledger):
    receipt = drawn(ledger).receipts[0]
    assert (receipt.column, receipt.columns) == ("a,b", ("a", "b"))
    for ask in (ledger.spent, ledger.remaining, ledger.budget_of, ledger.spent_delta):
        with pytest.raises(InvalidInput, match=r"spent\('d', \['a', 'b'\]\)"):
            ask("d", receipt.column)
    assert ledger.spent("d", "c") == 0.0


def test_the_same_request_is_answered_once(ledger):
    noisy = drawn(ledger, "one")
    order = np.random.default_rng(1).permutation(N)
    with pytest.warns(RepeatWarning):
        again = drawn(ledger, "one", labels=LABELS.iloc[order], ids=IDS[order])
    for name in COLUMNS.names:
        np.testing.assert_array_equal(again[name].likelihood(), noisy[name].likelihood()[order])
    assert ledger.spent("d", "a") == 2.0
    assert len(ledger.runs()) == 1


@pytest.mark.parametrize("split", ["equal", "one", "joint"])
def test_evidence_of_a_column_is_proven_by_the_ledger_and_survives_files(ledger, split, tmp_path):
    noisy = drawn(ledger, split)
    noisy.save(tmp_path / "both.parquet")
    read = NoisyLabels.load(tmp_path / "both.parquet")
    assert (read.classes, read.classes.names) == (COLUMNS, COLUMNS.names)
    for name in COLUMNS.names:
        noisy[name].save(tmp_path / "one.parquet")
        for each in (
            noisy[name],
            read[name],
            NoisyLabels.load(tmp_path / "one.parquet"),
            noisy[name][::7],
        ):
            assert each.looked_up(ledger).privacy.evidence == "proven"
        block = noisy[name].blocks[0]
        outputs = block.outputs.copy()
        outputs[:2] = outputs[:2] ^ 1 if outputs.dtype == np.uint8 else outputs[:2] + 1
        forged = NoisyLabels(
            N, noisy[name].classes, (dataclasses.replace(block, outputs=outputs),), noisy.ids, True
        )
        with pytest.raises(LedgerError, match="changed after the draw"):
            forged.looked_up(ledger)


def test_a_column_that_was_not_drawn_is_no_column(ledger):
    noisy = drawn(ledger)
    with pytest.raises(InvalidInput, match="column"):
        noisy["c"]
    with pytest.raises(InvalidInput, match="those of one"):
        noisy["a"]["a"]
    whole = ldp.privatize(
        ldp.PrivateLabels(LABELS, classes=COLUMNS, noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(6, 1.0),
    )
    assert whole.likelihood().shape == (N, 6)
    with pytest.raises(InvalidInput, match="how the others are distributed"):
        whole["a"]


@pytest.mark.parametrize("given", ["frame", "polars-like", "mapping", "array", "arrow"])
def test_labels_are_taken_by_name_or_in_order(given):
    codes = np.stack(COLUMNS.parts(CODES), axis=1)
    numbers = ldp.LabelColumns({"a": [0, 1], "b": [0, 1, 2]})
    labels = {
        "frame": pd.DataFrame(codes[:, ::-1], columns=["b", "a"]).assign(more=1),
        "polars-like": pa.table({"b": codes[:, 1], "a": codes[:, 0]}),
        "mapping": {"b": codes[:, 1], "a": codes[:, 0].tolist()},
        "array": codes,
        "arrow": pa.table({"a": codes[:, 0], "b": codes[:, 1]}),
    }[given]
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=numbers, noise=ldp.SeededNoise(0)),
        numbers.law(600.0, "equal"),
    )
    np.testing.assert_array_equal(noisy.hard_codes(), CODES)
    np.testing.assert_array_equal(noisy["b"].hard(), codes[:, 1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": LABELS.drop(columns="b")}, "'b'"),
        ({"labels": LABELS["a"]}, "2 columns"),
        ({"classes": None}, "Declare each column"),
        ({"classes": None, "labels": dict(LABELS)}, "Declare each column"),
        ({"labels": LABELS.to_numpy()[:, [0, 1, 1]]}, "shape"),
        (
            {"labels": LABELS.assign(b=[None, *LABELS["b"][1:]])},
            "Column 'b'.*some label is missing",
        ),
        (
            {"labels": LABELS.assign(b=[np.nan, *LABELS["b"][1:]])},
            "Column 'b'.*some label is missing",
        ),
        ({"labels": LABELS.assign(a="perhaps")}, "Column 'a'"),
        ({"labels": {"a": LABELS["a"], "b": LABELS["b"][:5]}}, "one length"),
        (
            {"law": ldp.LabelColumns({"b": [1, 2, 3], "a": ["no", "yes"]}).law(1.0, "equal")},
            "columns of",
        ),
        ({"law": ldp.RandomizedResponse(5, 1.0)}, "over 6 classes"),
        ({"column": "b"}, "under their own names"),
        ({"ids": {"b": IDS}}, "got 'b', whose labels are private"),
        ({"unit": {"a": IDS}}, "got 'a', whose labels are private"),
        (
            {"prior": np.tile(np.arange(1.0, 7.0), (N, 1)), "law": COLUMNS.law(1.0, "one")},
            "read none",
        ),
    ],
)
def test_bad_input_is_refused_before_the_charge(ledger, change, said):
    facts = {"classes": COLUMNS, "dataset": "d", "ids": IDS, "ledger": ledger} | change
    labels, law = facts.pop("labels", LABELS), facts.pop("law", COLUMNS.law(1.0))
    asked = {"prior": facts.pop("prior", None)}
    with pytest.raises(InvalidInput, match=said):
        ldp.privatize(ldp.PrivateLabels(labels, **facts), law, **asked)
    assert not ledger.exists() or ledger.runs() == []


def test_units_have_one_bill_for_all_columns_and_rows(ledger):
    unit = IDS // 4
    noisy = drawn(ledger, "equal", unit=unit, max_rows_per_unit=2)
    law = noisy["a"].blocks[0].law
    assert law.epsilon <= 2.0 / 2 / 2
    assert noisy["a"].looked_up(ledger).privacy.epsilon == 2.0
    assert (~noisy.evidenced).sum() == (~noisy["b"].evidenced).sum() > 0


def test_a_lost_charge_is_found_and_adopted_for_every_column(ledger, tmp_path):
    drawn(ledger)
    one(ledger, "b")
    for name in ("", "-wal", "-shm"):
        (tmp_path / f"ledger.db{name}").unlink(missing_ok=True)
    with pytest.raises(LedgerError, match="adopt"):
        one(ledger, "a")
    ledger.adopt()
    assert (ledger.spent("d", "a"), ledger.spent("d", "b"), ledger.spent("d", ["a", "b"])) == (
        2.0,
        3.0,
        3.0,
    )


def test_an_account_without_its_part_of_a_charge_is_found(ledger, tmp_path):
    """A chain that somebody computed anew without the entry in the account of b."""
    drawn(ledger)
    rows, kept = [], []
    with sqlite3.connect(tmp_path / "ledger.db") as file:
        rows = [
            json.loads(body) for (body,) in file.execute("SELECT body FROM entries ORDER BY seq")
        ]
    for column in ("a", "b"):
        kept = [body for body in rows if body.get("column") != column]
        other = tmp_path / f"{column}.db"
        shutil.copytree(tmp_path / "ledger.db.runs", tmp_path / f"{column}.db.runs")
        with ldp.Ledger(other)._store.writing() as session:
            for body in kept[1:]:
                session.append(
                    {key: value for key, value in body.items() if key not in ("seq", "at")}
                    | {"at": body["at"]}
                )
        found = ldp.Ledger(other).verify()
        assert any(
            "is not in the account of column" in problem or "but not in that of" in problem
            for problem in found
        ), found


def test_an_account_with_another_event_of_a_charge_is_found(ledger, tmp_path):
    drawn(ledger)
    other = tmp_path / "other.db"
    shutil.copytree(tmp_path / "ledger.db.runs", tmp_path / "other.db.runs")
    with sqlite3.connect(tmp_path / "ledger.db") as file:
        rows = [json.loads(row) for (row,) in file.execute("SELECT body FROM entries ORDER BY seq")]
    with ldp.Ledger(other)._store.writing() as session:
        for body in rows[1:]:
            if body["kind"] == "charge" and body["column"] == "b":
                body["event"] = body["event"] | {"law": {"law": {"law": "rr"}, "stage": "release"}}
            session.append({key: value for key, value in body.items() if key != "seq"})
    assert "is not in the account of column 'b'" in "".join(ldp.Ledger(other).verify())


def test_a_crashed_draw_of_several_columns_is_resumed_free_of_charge(ledger, monkeypatch):
    def dies(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("labeldp.ledger._run_store.RunStore.save_noisy", dies)
        with pytest.raises(KeyboardInterrupt):
            drawn(ledger)
    noisy = drawn(ledger)
    assert ledger.spent("d", "b") == 2.0
    assert [run.state for run in ledger.runs()] == ["settled"]
    assert noisy["b"].looked_up(ledger).privacy.evidence == "proven"


# The names of columns
# ------------------------------------------------------------------------------------------------

FEW = 60
Y = {name: np.arange(FEW) // step % 2 for step, name in enumerate("abc", start=1)}
THREE = {name: [0, 1] for name in "abc"}


def test_a_column_has_the_name_that_it_is_given_or_carries(ledger):
    facts = {"dataset": "d", "ids": np.arange(FEW), "ledger": ledger}
    both = ldp.PrivateLabels(Y, classes=THREE, **facts)
    ldp.LabelDPClassifier(epsilon=1.0).fit(np.arange(FEW)[:, None] / FEW, both)
    for y, more in ((Y["a"], {"column": "a"}), (pd.Series(Y["b"], name="b"), {})):
        labels = ldp.PrivateLabels(y, classes=[0, 1], **facts, **more)
        ldp.privatize(labels, ldp.RandomizedResponse(2, 1.0))
    assert [ledger.spent("d", column) for column in "abc"] == [2.0, 2.0, 1.0]
    with pytest.raises(InvalidInput, match="dataset= and column="):
        ldp.PrivateLabels(Y["a"], classes=[0, 1], **facts)
    assert len(ledger.runs()) == 3
