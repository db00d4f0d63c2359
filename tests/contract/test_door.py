# SPDX-License-Identifier: Apache-2.0
"""The door: checks everything, charges, draws each row once, and never draws a settled release
again."""

import contextlib
import dataclasses
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest
from sklearn.linear_model import LogisticRegression
from tests.runs import open_run

import labeldp as ldp
from labeldp.errors import LargeEpsilonWarning, LeftOutWarning
from labeldp.evidence._noisy import as_drawn
from labeldp.laws import _subset
from labeldp.learn import ClusterPrior
from labeldp.ledger._run_store import RunStore

RR = ldp.RandomizedResponse(5, 1.0)
LABELS = np.random.default_rng(0).integers(5, size=1000)
IDS = np.random.default_rng(1).permutation(10**6)[:1000]


@pytest.fixture
def ledger(tmp_path):
    return ldp.Ledger(tmp_path / "ledger.sqlite", budget=3.0)


def closed(ledger, y=LABELS, ids=IDS, **facts):
    facts = {"classes": range(5), "dataset": "d", "column": "label"} | facts
    return ldp.PrivateLabels(y, ids=ids, ledger=ledger, **facts)


def outputs(noisy):
    return noisy.hard_codes()


def test_the_same_request_gives_the_stored_outputs_in_any_order(ledger):
    first = ldp.privatize(closed(ledger), RR)
    order = np.random.default_rng(2).permutation(1000)
    again = ldp.privatize(closed(ledger, LABELS[order], ids=IDS[order]), RR)
    np.testing.assert_array_equal(outputs(again), outputs(first)[order])
    assert again.receipts == first.receipts
    assert ledger.spent("d", "label") == 1.0
    assert first.privacy == ldp.PrivacySpent(1.0, 0.0, "row", recorded=True, secure=True)


@pytest.mark.parametrize("dataset", [7, b"d", ["d"]])
def test_a_data_set_whose_name_is_no_text_is_refused(ledger, dataset):
    with pytest.raises(ldp.InvalidInput, match="dataset= as text"):
        ldp.privatize(closed(ledger, dataset=dataset), RR)
    with pytest.raises(ldp.InvalidInput, match="dataset= as text"):
        ldp.aggregate(closed(ledger, dataset=dataset), ldp.aggregates.Vote(5, 1.0, 2), IDS % 2)
    assert ledger.runs() == []


def test_a_settled_release_keeps_its_outputs_even_if_labels_were_corrected(ledger):
    first = ldp.privatize(closed(ledger), RR)
    again = ldp.privatize(closed(ledger, (LABELS + 1) % 5), RR)
    np.testing.assert_array_equal(outputs(again), outputs(first))


def test_another_law_prior_or_row_set_is_a_new_charge(ledger):
    law = ldp.RRWithPrior(5, 1.0)
    prior = np.random.default_rng(3).dirichlet(np.ones(5), 1000)
    runs = {
        ldp.privatize(closed(ledger), RR).receipts[0].run_id,
        ldp.privatize(closed(ledger), law, prior=prior).receipts[0].run_id,
        ldp.privatize(closed(ledger), law, prior=prior).receipts[0].run_id,
        ldp.privatize(closed(ledger), law, prior=prior[::-1]).receipts[0].run_id,
    }
    assert len(runs) == 3 and ledger.spent("d", "label") == 3.0
    with pytest.raises(ldp.BudgetExceeded, match="1"):
        ldp.privatize(closed(ledger), ldp.SubsetSelection(5, 1.0))


def test_a_redraw_is_asked_for_charged_and_shares_no_word(ledger):
    first = ldp.privatize(closed(ledger), RR)
    again = ldp.privatize(closed(ledger), RR, redraw=True)
    assert ledger.spent("d", "label") == 2.0
    kept_first, kept_again = outputs(first) == LABELS, outputs(again) == LABELS
    # independent draws: both kept with p^2; equal words would make the two events the same. 6
    # standard deviations.
    p = np.e / (np.e + 4)
    assert abs((kept_first & kept_again).mean() - p * p) < 6 * np.sqrt(p * p * (1 - p * p) / 1000)


def test_without_ids_a_settled_column_is_refused(ledger):
    ldp.privatize(closed(ledger, ids=None), RR)
    with pytest.raises(ldp.LedgerError, match="ids="):
        ldp.privatize(closed(ledger, ids=None), RR)
    ldp.privatize(closed(ledger, ids=None), RR, redraw=True)
    assert ledger.spent("d", "label") == 2.0


def test_lost_outputs_are_refused_not_drawn_again(ledger):
    first = ldp.privatize(closed(ledger), RR)
    (ledger.run_dir(first.receipts[0].run_id) / "release.parquet").unlink()
    with pytest.raises(ldp.LedgerError, match="redraw"):
        ldp.privatize(closed(ledger), RR)
    assert ledger.spent("d", "label") == 1.0


def test_changed_outputs_are_not_passed_off_as_the_settled_ones(ledger):
    first = ldp.privatize(closed(ledger), RR)
    block = dataclasses.replace(first.blocks[0], outputs=np.asarray(LABELS, np.int32))
    changed = as_drawn(dataclasses.replace(first, blocks=(block,)))
    changed.save(ledger.run_dir(first.receipts[0].run_id) / "release.parquet")
    with pytest.raises(ldp.LedgerError, match="changed"):
        ldp.privatize(closed(ledger), RR)


class Stop(Exception):
    """Raised in the middle of a run."""


def crashed_run(ledger, labels=LABELS):
    """A run that was charged, drew its first stage, and died before the second."""
    run = open_run(
        labels,
        classes=range(5),
        epsilon=1.0,
        laws={"n": 2},
        dataset="d",
        ids=IDS,
        ledger=ledger,
    )
    with pytest.raises(Stop), run:
        part = run.partition([0.5, 0.5])
        noisy = run.privatize(np.flatnonzero(part == 0), RR, stage="first")
        raise Stop
    return run, part, noisy


def finish(ledger, labels=LABELS):
    with open_run(
        labels,
        classes=range(5),
        epsilon=1.0,
        laws={"n": 2},
        dataset="d",
        ids=IDS,
        ledger=ledger,
    ) as run:
        part = run.partition([0.5, 0.5])
        prior = np.random.default_rng(4).dirichlet(np.ones(5), (part == 1).sum())
        first = run.privatize(np.flatnonzero(part == 0), RR, stage="first")
        return (
            run,
            part,
            first,
            run.privatize(
                np.flatnonzero(part == 1), ldp.RRWithPrior(5, 1.0), prior, stage="second"
            ),
        )


@pytest.mark.parametrize("lost", ["labels", "folder", "neither"])
def test_over_budget_the_crashed_run_of_the_same_request_is_named(tmp_path, lost):
    ledger = ldp.Ledger(tmp_path / "ledger.sqlite", budget=1.0)
    crashed, *_ = crashed_run(ledger)
    run_id = crashed.receipt.run_id
    changed = np.where(np.arange(1000) == 17, (LABELS + 1) % 5, LABELS)
    if lost == "folder":
        shutil.rmtree(ledger.runs_dir)
    with pytest.raises(ldp.BudgetExceeded) as told:
        if lost == "neither":  # another request: other rows
            open_run(
                changed,
                classes=range(5),
                epsilon=1.0,
                laws={"n": 2},
                dataset="d",
                ids=IDS + 1,
                ledger=ledger,
            )
        else:
            finish(ledger, LABELS if lost == "folder" else changed)
    named = f"Run {run_id} was charged for the same request and was never finished"
    assert (named in str(told.value)) == (lost != "neither")
    assert ("but for other labels" in str(told.value)) == (lost == "labels")
    assert (f"{ledger.run_dir(run_id)} is gone" in str(told.value)) == (lost == "folder")
    assert len(ledger.runs()) == 1
    if lost == "labels":  # what the message promises
        finish(ledger)
        assert ledger.spent("d", "label") == 1.0


@pytest.mark.parametrize("moved", [False, True], ids=["deleted", "moved"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda ledger: ldp.privatize(closed(ledger), RR),
        lambda ledger: ldp.aggregate(closed(ledger), ldp.aggregates.Vote(5, 1.0, 2), IDS % 2),
        lambda ledger: ldp.LabelDPClassifier(LogisticRegression(), law="rr").fit(
            np.zeros((1000, 1)), closed(ledger, ids=None)
        ),
    ],
    ids=["privatize", "aggregate", "fit"],
)
def test_a_repeat_without_the_runs_folder_says_what_is_lost_and_what_to_do(
    ledger, tmp_path, ask, moved
):
    ask(ledger)
    (run,) = ledger.runs()
    ledger.runs_dir.rename(tmp_path / "elsewhere")
    with pytest.raises(ldp.LedgerError) as told:
        ask(ledger)
    for part in (
        str(ledger.run_dir(run.run_id)),
        "is gone",
        "epsilon stays spent",
        "move it back",
        "redraw=True",
    ):
        assert part in str(told.value)
    assert not hasattr(told.value, "__notes__")  # no promise that a fit costs nothing more
    assert ledger.spent("d", "label") == 1.0 and len(ledger.runs()) == 1
    if moved:
        shutil.rmtree(ledger.runs_dir, ignore_errors=True)
        (tmp_path / "elsewhere").rename(ledger.runs_dir)
        ask(ledger)
    assert ledger.spent("d", "label") == 1.0


def test_a_crashed_run_whose_labels_changed_is_a_new_charge_under_new_words(ledger):
    crashed, *_ = crashed_run(ledger)
    changed = LABELS.copy()
    changed[17] = (changed[17] + 1) % 5
    run, *_ = finish(ledger, changed)
    assert run.receipt.run_id != crashed.receipt.run_id and ledger.spent("d", "label") == 2.0


def test_a_resumed_stage_reads_the_stored_side_not_a_new_prior(ledger):
    """A model's prior may come out differently the second time; what was decided before the crash
    stands."""

    def attempt(prior, die):
        law = ldp.RRWithPrior(5, 1.0)
        with open_run(
            LABELS,
            classes=range(5),
            epsilon=1.0,
            laws={"n": 1},
            dataset="d",
            ids=IDS,
            ledger=ledger,
        ) as run:
            noisy = run.privatize(np.arange(1000), law, prior, stage="only")
            if die:
                # as if it died before the outputs were kept
                (ledger.run_dir(run.receipt.run_id) / "only.parquet").unlink()
                raise Stop
            return noisy

    rng = np.random.default_rng(6)
    prior = rng.dirichlet(np.ones(5), 1000)
    with pytest.raises(Stop):
        attempt(prior, die=True)
    noisy = attempt(rng.dirichlet(np.ones(5), 1000), die=False)
    np.testing.assert_array_equal(
        noisy.blocks[0].side["candidates"], ldp.RRWithPrior(5, 1.0).prepare(prior)["candidates"]
    )
    assert ledger.spent("d", "label") == 1.0


def test_the_partition_ignores_labels_and_seeds():
    parts = []
    for labels in (LABELS, np.zeros(1000, int)):
        run = open_run(labels, classes=range(5), epsilon=1.0, laws={}, noise=ldp.SeededNoise(3))
        parts.append(run.partition([0.3, 0.7]))
    np.testing.assert_array_equal(*parts)
    fresh = [
        open_run(LABELS, classes=range(5), epsilon=1.0, laws={}).partition([0.3, 0.7])
        for _ in range(2)
    ]
    assert (fresh[0] != fresh[1]).any()


def test_no_row_is_drawn_twice_in_a_run():
    run = open_run(LABELS, classes=range(5), epsilon=1.0, laws={}, noise=ldp.SeededNoise(0))
    run.privatize(np.arange(10), RR, stage="a")
    with pytest.raises(ldp.InvalidInput, match="not drawn yet"):
        run.privatize(np.arange(9, 20), RR, stage="b")
    with pytest.raises(ldp.InvalidInput, match="not drawn yet"):
        run.privatize(np.array([30, 30]), RR, stage="c")
    with pytest.raises(ldp.InvalidInput, match="name of its own"):
        run.privatize(np.arange(50, 60), RR, stage="a")


def test_a_run_refuses_laws_beyond_its_charge():
    run = open_run(LABELS, classes=range(5), epsilon=1.0, laws={}, noise=ldp.SeededNoise(0))
    with pytest.raises(ldp.InvalidInput, match=r"epsilon=1\.0"):
        run.privatize(np.arange(10), ldp.RandomizedResponse(5, 1.5))
    with pytest.raises(ldp.InvalidInput, match="5 classes"):
        run.privatize(np.arange(10), ldp.RandomizedResponse(4, 1.0))


def test_a_unit_shares_its_epsilon_over_its_rows_and_further_rows_get_none(ledger):
    unit = np.repeat(np.arange(200), 5)
    noisy = ldp.privatize(closed(ledger, unit=unit, max_rows_per_unit=2), RR)
    assert len(noisy) == 1000 and noisy.evidenced.reshape(200, 5).sum(axis=1).tolist() == [2] * 200
    assert noisy.blocks[0].law == dataclasses.replace(RR, epsilon=0.5)
    assert noisy.privacy.epsilon == 1.0 and noisy.privacy.unit == "unit"
    np.testing.assert_array_equal(noisy.likelihood(~noisy.evidenced), 1)


def test_rows_over_the_cap_are_told_in_numbers():
    unit = np.arange(1000) % 400
    count = ldp.aggregates.Histogram(5, 1.0, 1)
    for ask in (
        lambda: ldp.privatize(
            ldp.PrivateLabels(LABELS, classes=range(5), unit=unit, max_rows_per_unit=2),
            RR,
        ),
        lambda: (
            ldp.LabelDPClassifier(law=RR, stages=1)
            .fit(np.zeros((1000, 1)), ldp.PrivateLabels(LABELS, classes=range(5), unit=unit))
            .noisy_labels_
        ),
        lambda: ldp.aggregate(
            ldp.PrivateLabels(LABELS, classes=range(5), unit=unit),
            count,
            groups=np.zeros(1000, int),
        ),
    ):
        with pytest.warns(
            LeftOutWarning, match=r"of 1,000 rows are over the cap of (2 rows|1 row) for each unit"
        ) as told:
            answer = ask()
        said = next(each.message for each in told if each.category is LeftOutWarning)
        over = 200 if "cap of 2" in str(said) else 600
        assert str(said).startswith(f"{over} of") and "max_rows_per_unit=" in str(said)
        assert getattr(answer, "left_out", over) == over
        assert (
            answer.privacy.rows_over_the_cap == over
            and f"; {over} rows over the cap left out" in str(answer.privacy)
        )
        assert type(answer).from_table(answer.to_table()).privacy.rows_over_the_cap == over
    assert answer.receipt.guarantee == "1-label-DP for each unit (at most 1 row each)"
    with warnings.catch_warnings():
        warnings.simplefilter("error", LeftOutWarning)
        noisy = ldp.privatize(
            ldp.PrivateLabels(
                LABELS, classes=range(5), unit=np.arange(1000) // 2, max_rows_per_unit=2
            ),
            RR,
        )
        assert (
            ~noisy.evidenced
        ).sum() == noisy.privacy.rows_over_the_cap == 0 and "rows_over_the_cap" not in repr(
            noisy.receipts
        )


def test_receipts_tell_of_rows_over_the_cap(ledger):
    """Again in a repeat, beside other runs, and in a fit that asks the same rows twice."""
    unit = np.arange(1000) % 400
    asked = [ldp.privatize(closed(ledger, unit=unit), RR) for _ in range(2)]
    assert [noisy.receipts[0].rows_over_the_cap for noisy in asked] == [600, 600] and asked[
        1
    ].receipts[0].repeated
    assert (
        asked[0].receipts[0].to_dict()["rows_over_the_cap"] == 600
        and asked[0].looked_up(ledger).privacy.rows_over_the_cap == 600
    )
    assert ledger.verify(asked[0].receipts) == [] and "rows_over_the_cap=600" in repr(
        asked[0].receipts[0]
    )
    other = ldp.privatize(closed(ledger, dataset="other"), RR)
    assert asked[0].combine(other).privacy.rows_over_the_cap == 600
    prior = ClusterPrior(n_clusters=4, epsilon=0.2)
    fitted = ldp.LabelDPClassifier(epsilon=1.0, prior=prior).fit(
        np.random.default_rng(0).normal(size=(1000, 2)),
        closed(ledger, ids=None, dataset="c", unit=unit),
    )
    assert fitted.privacy_.rows_over_the_cap == 600


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": [0, 1, 7]}, "some label is not"),
        ({"y": [0, 1, -1]}, "some label is not"),
        ({"y": []}, "at least one"),
        ({"y": [[0, 1], [1, 0]]}, "one-dimensional"),
        ({"ids": [1, 2, 1]}, "row 2"),
        ({"ids": [1, 2]}, "3 rows"),
        ({"ids": [1.5, 2.5, 3.5]}, "integers, strings or bytes"),
        ({"ids": [1, "a", "b"]}, "one type"),
        ({"ids": ["a", "a\0", "b"]}, "trailing NULs"),
        ({"ids": [1, None, 2]}, "null"),
        ({"unit": ["a", None, "b"]}, "null"),
        ({"ids": np.ma.array([1, 2, 3], mask=[0, 0, 1])}, "masked"),
        ({"unit": np.ma.array([1, 2, 3], mask=[0, 0, 1])}, "masked"),
        ({"ids": {1, 2, 3}}, "ids as a column of 3 rows, got set"),
        ({"unit": iter([1, 2, 3])}, "unit as a column of 3 rows, got list_iterator"),
        ({"ids": pd.MultiIndex.from_arrays([[1, 2, 3], [4, 5, 6]])}, "to_frame"),
        ({"ids": pd.Series([1, 2, 3], name="label")}, "got 'label', whose labels"),
        ({"ids": pd.DataFrame({"a": [1, 2, 3], "label": [0, 1, 2]})}, "got 'label', whose labels"),
        ({"max_rows_per_unit": 2}, "unit="),
        ({"unit": [1, 1]}, "3 rows"),
        ({"unit": [1, 1, 2], "max_rows_per_unit": 0}, "max_rows_per_unit"),
        ({"classes": [0, 1, 2]}, "law over 3 classes"),
        ({"classes": [0, 1, 2, 3, 3]}, "different"),
        ({"classes": [0, 1, 2, 3, None]}, "missing"),
        ({"classes": [0, 1, 2, 3, float("nan")]}, "missing"),
        ({"prior": np.ones((3, 5))}, "no prior"),
        ({"dataset": None}, "dataset="),
        ({"noise": ldp.SeededNoise(0)}, "noise=None"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_bad_input_is_refused_before_anything_is_charged(ledger, change, message):
    request = {"ledger": ledger, "y": [0, 1, 2], "ids": None} | change
    asked = {"prior": request.pop("prior", None)}
    with pytest.raises(ldp.InvalidInput, match=message):
        ldp.privatize(closed(**request), RR, **asked)
    assert ledger.runs("d", "label") == []


@pytest.mark.parametrize(
    "prior",
    [
        np.full((3, 5), np.nan),
        -np.ones((3, 5)),
        np.ones((3, 4)),
        np.ones((2, 5)),
        np.full((3, 5), np.inf),
    ],
)
def test_bad_priors_are_refused_before_anything_is_charged(ledger, prior):
    with pytest.raises(ldp.InvalidInput, match="prior"):
        ldp.privatize(closed(ledger, [0, 1, 2], ids=None), ldp.RRWithPrior(5, 1.0), prior=prior)
    with pytest.raises(ldp.InvalidInput, match="prior"):
        ldp.privatize(
            closed(ledger, [0, 1, 2], ids=None), ldp.RRWithPrior(5, 1.0), prior=iter([prior])
        )
    assert ledger.runs("d", "label") == []


def test_a_prior_may_come_as_array_function_or_batches():
    law, prior = ldp.AutoLaw(5, 1.0), np.random.default_rng(7).dirichlet(np.ones(5), 1000)
    forms = [prior, lambda rows: prior[rows], iter(np.array_split(prior, 7))]
    drawn = [
        ldp.privatize(
            ldp.PrivateLabels(LABELS, classes=range(5), noise=ldp.SeededNoise(1)),
            law,
            prior=form,
        )
        for form in forms
    ]
    for noisy in drawn[1:]:
        np.testing.assert_array_equal(noisy.log_likelihood(), drawn[0].log_likelihood())


@pytest.mark.parametrize(
    "drawn", [False, True], ids=["crashed before its outputs were kept", "settled"]
)
def test_a_stage_that_a_version_with_another_choice_began_keeps_its_questions(
    ledger, monkeypatch, drawn
):
    """How AutoLaw chooses may change between versions: what a stage's rows were asked is kept, or
    its labels could be drawn in two ways."""
    law, prior = ldp.AutoLaw(5, 1.0), np.random.default_rng(7).dirichlet(np.full(5, 0.3), 1000)
    facts = {
        "epsilon": 1.0,
        "laws": {"law": law.to_dict()},
        "dataset": "d",
        "ids": IDS,
        "ledger": ledger,
    }
    present = law.prepare(prior)["choice"]
    with monkeypatch.context() as version:
        version.setattr(_subset, "_MIXED", 0.9)
        earlier = law.prepare(prior)["choice"]
        if not drawn:
            version.setattr(RunStore, "save_noisy", lambda *parts: 1 / 0)
        with contextlib.nullcontext() if drawn else pytest.raises(ZeroDivisionError):
            before = open_run(LABELS, classes=range(5), **facts).privatize(
                np.arange(1000), law, prior, "stage-2"
            )
    after = open_run(LABELS, classes=range(5), **facts).privatize(
        np.arange(1000), law, prior, "stage-2"
    )
    assert (earlier != present).any() and (after.blocks[0].side["choice"] == earlier).all()
    assert len(ledger.runs("d", "label")) == 1 and ledger.spent("d", "label") == 1.0
    assert not drawn or (after.blocks[0].outputs == before.blocks[0].outputs).all()


def test_classes_read_off_the_labels_are_warned_about():
    with pytest.warns(ldp.errors.DomainLeakWarning, match="Declare"):
        noisy = ldp.privatize(
            ldp.PrivateLabels(["b", "a"], classes="infer"), ldp.RandomizedResponse(2, 1.0)
        )
    assert noisy.classes == ("a", "b")
    (receipt,) = noisy.receipts
    assert receipt.event["law"]["classes_inferred"] is True
    known = ldp.privatize(
        ldp.PrivateLabels(["b", "a"], classes=["a", "b"]), ldp.RandomizedResponse(2, 1.0)
    )
    assert known.privacy.except_for == known.receipts[0].except_for == ""
    assert "except" not in repr(known.privacy) + str(known.privacy) + repr(known.receipts) + str(
        known.receipts[0].to_dict()
    )
    stored = ldp.NoisyLabels.from_table(noisy.to_table())
    said = [
        noisy.privacy,
        noisy[:1].privacy,
        ldp.concat([known, noisy]).privacy,
        noisy.combine(known).privacy,
        stored.privacy,
        receipt,
    ]
    for each in said:
        assert each.except_for == "which classes occur"
        assert "which classes occur" in repr(each) and "which classes occur" in str(each)
    assert receipt.guarantee == "1-label-DP for each row, except which classes occur"
    assert receipt.to_dict()["except_for"] == "which classes occur"
    assert ldp.Receipt.from_dict(receipt.to_dict()) == receipt


TEXTS = np.array(["no", "yes", "no", "no"])
DAYS = np.array(["2024-01-31", "2024-02-29"], "datetime64[ns]")


@pytest.mark.parametrize(
    ("labels", "classes", "said"),
    [
        (
            TEXTS,
            None,
            "got none. Declare yours, for example classes=.'no', 'yes'.; or say classes='infer'",
        ),
        (TEXTS.astype(object), None, "got none"),
        (TEXTS == "no", None, "for example classes=.False, True."),
        ([0.0, 1.0], None, "got none"),
        ([0, 1], 2, "a list of values, got 2. Write classes=range.2."),
        ([0, 1], 2.5, "a list of values, got float"),
        (["a", "b"], "ab", "a list of values, got one text, 'ab'"),
        (["a", "b"], {"a", "b"}, "no order"),
        ([0, 1], np.array(2), "a list of values, got ndarray"),
        ([0, 1], [[0], [1]], "plain values"),
        (DAYS, DAYS, "plain values, got times in nanoseconds"),
        (DAYS.repeat(2), "infer", "plain values, got times in nanoseconds"),
        (["a", "b"], ["a", None], "missing"),
        ([0, 1], [0.0, math.nan], "missing"),
        ([0, 5, 0, 7], range(2), "codes 0 to 1, but some label is not. Which row"),
        (
            ["a"] * 3 + ["x"] * 4,
            ["a", "b"],
            "one of the 2 declared classes .*, but some label is not. Which row",
        ),
        (["no", "yes "], ["no", "yes"], r"2 declared classes \(str: 'no', 'yes'\)"),
        (["0", "1"], [0, 2], r"2 declared classes \(int: 0, 2\), but some label is not"),
        ([0, 1], ["0", "1"], r"2 declared classes \(str: '0', '1'\), but some label is not"),
        (["a", None], "infer", "one type, none missing"),
        ([0.0, 1.0], "infer", "decimal point"),
        (["1.5", "2"], "infer", "decimal point"),
        (np.array([0.5, 1], object), "infer", "decimal point"),
        (list(range(100)), "infer", "at most 10 distinct labels in 100 rows .*got more: "),
        (
            [str(i) for i in range(5)] * 4,
            "infer",
            "at most 4 distinct labels in 20 rows .*got more: ",
        ),
        (list("aabbcc") * 6, "infer", "Expected a law over 3 classes"),
    ],
)
def test_classes_are_declared_in_words_that_help(tmp_path, labels, classes, said):
    ledger = ldp.Ledger(tmp_path / "ledger.sqlite")
    with warnings.catch_warnings(), pytest.raises(ldp.InvalidInput, match=said):
        warnings.simplefilter("ignore", ldp.errors.DomainLeakWarning)
        ldp.privatize(
            closed(ledger, labels, ids=None, classes=classes), ldp.RandomizedResponse(2, 1.0)
        )
    assert ledger.runs() == []


@pytest.mark.parametrize("n", [4, 30, 1000])
def test_a_refusal_depends_on_the_labels_by_no_more_than_one_bit(n):
    """Whatever is in the column, all that is refused for its many values is refused in the same
    words."""
    rng, said = np.random.default_rng(n), set()
    for many in range(math.isqrt(n) + 1, n, max(1, n // 9)):
        labels = np.concatenate([np.arange(many), rng.integers(0, many, n - many)])
        for column in (labels, labels - 7, np.array([f"v{v}" for v in labels])):
            with pytest.raises(ldp.InvalidInput) as caught:
                ldp.privatize(
                    ldp.PrivateLabels(column, classes="infer"), ldp.RandomizedResponse(many, 1.0)
                )
            said.add(str(caught.value))
    assert len(said) == 1


def test_as_many_classes_as_the_root_of_the_rows_are_read_off():
    with pytest.warns(ldp.errors.DomainLeakWarning):
        noisy = ldp.privatize(
            ldp.PrivateLabels(np.arange(900) % 30, classes="infer"), ldp.RandomizedResponse(30, 1.0)
        )
    assert noisy.classes == tuple(range(30))


def test_a_run_never_pickles_its_labels_and_secret():
    import pickle

    run = open_run(LABELS, classes=range(5), epsilon=1.0, laws={}, noise=ldp.SeededNoise(0))
    with pytest.raises(TypeError, match="secret"):
        pickle.dumps(run)


def test_an_unwritable_ledger_means_no_draw(tmp_path):
    (tmp_path / "folder").write_text("in the way")
    with pytest.raises(ldp.LedgerError):
        ldp.privatize(closed(ldp.Ledger(tmp_path / "folder" / "ledger.sqlite")), RR)


KILLED = """
import sys, numpy as np, labeldp as ldp
ledger = ldp.Ledger(sys.argv[1])
ids = np.arange(400_000)
print("ready", flush=True)
facts = {"dataset": "d", "column": "label", "ids": ids, "ledger": ledger}
labels = ldp.PrivateLabels(ids % 50, classes=range(50), **facts)
ldp.privatize(labels, ldp.SubsetSelection(50, 1.0))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_a_killed_draw_is_charged_once_and_repeats_the_same_words(tmp_path):
    ledger = ldp.Ledger(tmp_path / "ledger.sqlite")
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(ledger.location)],
        stdout=subprocess.PIPE,
        env=os.environ.copy(),
    )
    deadline = time.monotonic() + 60
    while (
        time.monotonic() < deadline
        and child.poll() is None
        and not (ledger.exists() and ledger.runs("d", "label"))
    ):
        time.sleep(0.005)
    child.kill()
    child.communicate()
    (record,) = ledger.runs("d", "label")
    assert record.state == "charged"
    ids = np.arange(400_000)
    noisy = ldp.privatize(
        closed(ledger, ids % 50, ids=ids, classes=range(50)), ldp.SubsetSelection(50, 1.0)
    )
    assert noisy.receipts[0].run_id == record.run_id and len(ledger.runs("d", "label")) == 1
    assert ledger.spent("d", "label") == 1.0


# Picked up again, in another order or beside another process
# ------------------------------------------------------------------------


def units_of(ids):
    """Two rows a unit, by id: the same assignment whatever the order."""
    return np.argsort(np.argsort(ids)) // 2


def capped(ledger, order, units, die):
    law = ldp.RandomizedResponse(5, 1.0)
    run = open_run(
        LABELS[order],
        classes=range(5),
        epsilon=1.0,
        laws={"n": 1},
        dataset="d",
        ids=IDS[order],
        unit=units[order],
        ledger=ledger,
    )
    with pytest.raises(Stop) if die else contextlib.nullcontext(), run:
        if die:
            raise Stop
        return run, run.privatize(np.arange(1000), law, stage="only")
    return run, None


def test_a_capped_run_picked_up_in_another_order_keeps_the_same_rows_of_each_unit(ledger):
    order = np.random.default_rng(8).permutation(1000)
    units = units_of(IDS)
    crashed, _ = capped(ledger, np.arange(1000), units, die=True)
    run, noisy = capped(ledger, order, units, die=False)
    assert run.receipt.run_id == crashed.receipt.run_id
    # two rows of one person would spend twice the charge
    assert np.bincount(units[order][noisy.evidenced]).max() == 1
    np.testing.assert_array_equal(run.kept, crashed.kept[order])


def test_rows_of_other_people_are_another_request(ledger):
    units = units_of(IDS)
    crashed, _ = capped(ledger, np.arange(1000), units, die=True)
    # the same people, with other rows
    run, _ = capped(ledger, np.arange(1000), np.roll(units, 1), die=False)
    assert run.receipt.run_id != crashed.receipt.run_id and ledger.spent("d", "label") == 2.0


def test_a_fit_is_repeated_and_picked_up_in_any_order(ledger):
    order = np.random.default_rng(9).permutation(1000)

    def fit(order, die=False):
        with open_run(
            LABELS[order],
            classes=range(5),
            epsilon=1.0,
            laws={"n": 2},
            dataset="d",
            ids=IDS[order],
            ledger=ledger,
        ) as run:
            part = run.partition([0.5, 0.5])
            first = run.privatize(np.flatnonzero(part == 0), RR, stage="first")
            rows = np.flatnonzero(part == 1)
            prior = np.eye(5)[IDS[order][rows] % 5] + 0.1  # a function of the row
            second = run.privatize(rows, ldp.RRWithPrior(5, 1.0), prior, stage="second")
            if die:
                (ledger.run_dir(run.receipt.run_id) / "second.parquet").unlink()
                raise Stop
            return part, {
                **dict(zip(first.ids, outputs(first), strict=True)),
                **dict(zip(second.ids, outputs(second), strict=True)),
            }

    with pytest.raises(Stop):
        fit(np.arange(1000), die=True)
    part, drawn = fit(order)
    part_again, again = fit(np.arange(1000))
    assert drawn == again and ledger.spent("d", "label") == 1.0
    np.testing.assert_array_equal(part, part_again[order])


def test_rows_that_a_crashed_attempt_drew_belong_to_their_stage(ledger):
    """Under another stage they would be drawn again, with independent words, at no charge."""
    crashed_run(ledger)
    run = open_run(
        LABELS,
        classes=range(5),
        epsilon=1.0,
        laws={"n": 2},
        dataset="d",
        ids=IDS,
        ledger=ledger,
    )
    with pytest.raises(ldp.InvalidInput, match="drawn"):
        run.privatize(np.arange(1000), RR, stage="another")


def test_two_attempts_at_once_draw_with_one_side(ledger):
    """The same fit in two processes, whose models differ: with a side each, every row would be
    drawn twice under one charge."""
    rng = np.random.default_rng(10)
    law = ldp.RRWithPrior(5, 1.0)

    def begun():
        return open_run(
            LABELS,
            classes=range(5),
            epsilon=1.0,
            laws={"n": 1},
            dataset="d",
            ids=IDS,
            ledger=ledger,
        )

    one, other = begun(), begun()
    assert one.receipt.run_id == other.receipt.run_id

    def prior_of_the_slower(rows):
        # while this one is asked
        drawn.append(
            one.privatize(np.arange(1000), law, rng.dirichlet(np.ones(5), 1000), stage="only")
        )
        return rng.dirichlet(np.ones(5), len(rows))

    drawn = []
    drawn.append(other.privatize(np.arange(1000), law, prior_of_the_slower, stage="only"))
    np.testing.assert_array_equal(
        drawn[0].blocks[0].side["candidates"], drawn[1].blocks[0].side["candidates"]
    )
    np.testing.assert_array_equal(outputs(drawn[0]), outputs(drawn[1]))
    one.settle()
    other.settle()
    assert ledger.spent("d", "label") == 1.0


def test_a_crashed_stage_with_a_prior_goes_on_with_its_rows_alone(ledger):
    """The side on disk is of the rows that the stage began with: for others it would be read as
    theirs."""

    def attempt(rows, die):
        run = open_run(
            LABELS,
            classes=range(5),
            epsilon=1.0,
            laws={"n": 1},
            dataset="d",
            ids=IDS,
            ledger=ledger,
        )
        with run:
            noisy = run.privatize(
                np.arange(rows),
                ldp.RRWithPrior(5, 1.0),
                np.tile([0.4, 0.3, 0.1, 0.1, 0.1], (rows, 1)),
                stage="only",
            )
            if die:
                # as if it died before the outputs were kept
                (ledger.run_dir(run.receipt.run_id) / "only.parquet").unlink()
                raise Stop
        return noisy

    with pytest.raises(Stop):
        attempt(600, die=True)
    for rows in (599, 601):
        with pytest.raises(
            ldp.LedgerError,
            match=r"the rows that stage 'only' of run .* began with, got other ones",
        ):
            attempt(rows, die=False)
    assert len(attempt(600, die=False)) == 600 and ledger.spent("d", "label") == 1.0


@pytest.mark.parametrize("stage", ["../x", "a/b", "", ".hidden", "a\x00b", "x" * 65])
def test_stages_that_name_no_file_are_refused_before_the_charge(ledger, stage):
    with pytest.raises(ldp.InvalidInput, match="stage"):
        ldp.privatize(closed(ledger), RR, stage=stage)
    assert ledger.spent("d", "label") == 0.0


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.array([b"secret", "sécret".encode()]), ["a", "b"]),
        (np.array([1, 2], "datetime64[s]"), [0, 1]),
        (np.ma.masked_array([0, 1], [True, False]), [0, 1]),
        ([b"secret\xff", "b"], ["a", "b"]),
        (["secret", ["b"]], ["a", "b"]),
    ],
)
def test_labels_of_another_kind_are_refused_without_showing_one(labels, classes):
    with pytest.raises(ldp.InvalidInput) as caught:
        ldp.privatize(ldp.PrivateLabels(labels, classes=classes), ldp.RandomizedResponse(2, 1.0))
    chain, text = caught.value, ""
    while chain is not None:
        text, chain = text + repr(chain), chain.__context__
    assert "cret" not in text and "\\xc3" not in text


@pytest.mark.parametrize("columns", [["day", "shop"], ["shop"]], ids=["two columns", "text"])
def test_ids_may_be_columns_of_a_data_frame(ledger, columns):
    table = pd.DataFrame(
        {
            "day": np.arange(40) // 2,
            "shop": [f"shop {i % 2}" if len(columns) > 1 else f"shop {i}" for i in range(40)],
        }
    )
    ids = table[columns] if len(columns) > 1 else table["shop"]
    noisy = ldp.privatize(closed(ledger, np.arange(40) % 5, ids=ids), RR)
    again = ldp.privatize(closed(ledger, np.arange(40)[::-1] % 5, ids=ids[::-1]), RR)
    assert len(ledger.runs()) == 1
    np.testing.assert_array_equal(again.hard_codes()[::-1], noisy.hard_codes())
    more = ldp.privatize(closed(ledger, np.arange(40) % 5, ids=ids), RR, redraw=True)
    assert noisy.privacy.epsilon == 1.0 and noisy.combine(more).privacy.epsilon == 2.0
    assert ldp.concat([noisy[:10], noisy[10:]]).privacy.epsilon == 1.0
    with pytest.raises(ldp.InvalidInput, match="each draw once"):
        ldp.concat([noisy[:10], noisy[9:]])


@pytest.mark.parametrize(
    "given", [list, lambda values: np.array(values, np.uint64)], ids=["list", "unsigned"]
)
@pytest.mark.parametrize(
    "classes", [[2**63, 2**63 + 1, 5], [2**53, 2**53 + 1, 5]], ids=["above 2^63", "above 2^53"]
)
def test_classes_that_are_large_numbers_stay_different(given, classes):
    noisy = ldp.privatize(
        ldp.PrivateLabels(given(classes * 100), classes=classes, noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(3, 7.0),
    )
    assert np.mean(outputs(noisy) == np.arange(300) % 3) > 0.99
    with pytest.raises(ldp.InvalidInput, match="one of the 3 declared classes"):
        ldp.privatize(
            ldp.PrivateLabels(given([classes[1] + 1, 5, 5]), classes=classes),
            ldp.RandomizedResponse(3, 7.0),
        )


@pytest.mark.parametrize("classes", [[1, "1"], ["a", True, "True"], [1.5, "1.5"]])
def test_classes_that_are_written_alike_are_refused(classes):
    with pytest.raises(ldp.InvalidInput, match="two that are written alike"):
        ldp.privatize(
            ldp.PrivateLabels(classes, classes=classes), ldp.RandomizedResponse(len(classes), 1.0)
        )


def test_labels_of_32_bits_are_their_nearest_classes(ledger):
    classes = [0.1, 0.2, 0.3, 0.4, 0.5]
    noisy = ldp.privatize(
        ldp.PrivateLabels(
            np.array(classes * 20, np.float32), classes=classes, noise=ldp.SeededNoise(0)
        ),
        ldp.RandomizedResponse(5, 9.0),
    )
    assert np.mean(outputs(noisy) == np.arange(100) % 5) > 0.9
    # one number of 32 bits would be both
    with pytest.raises(ldp.InvalidInput, match="one of the 2 declared"):
        ldp.privatize(
            ldp.PrivateLabels(np.float32([0.1]), classes=[0.1, 0.1 + 1e-12]),
            ldp.RandomizedResponse(2, 1.0),
        )


BIG = [2**63 + i for i in range(999)]


@pytest.mark.parametrize(
    "ids_of",
    [
        lambda start: [*(value + start for value in BIG), 7],
        lambda start: [*((value + start, -1) for value in BIG), (7, -1)],
        lambda start: pd.DataFrame(
            {"a": np.array([*BIG, 7], np.uint64) + np.uint64(start), "b": range(1000)}
        ),
    ],
    ids=["list", "tuples", "data frame"],
)
def test_large_ids_of_other_rows_are_another_request(ledger, ids_of):
    # NumPy joins them with the others as floats, in which 2^63 and the thousand numbers after it
    # are equal
    first = ldp.privatize(closed(ledger, ids=ids_of(0)), RR)
    other = ldp.privatize(closed(ledger, ids=ids_of(1000)), RR)
    assert first.receipts != other.receipts
    np.testing.assert_array_equal(outputs(first.by_id(ids_of(0))), outputs(first))
    with pytest.raises(ldp.InvalidInput, match="without one"):
        first.by_id(ids_of(1000))


@pytest.mark.parametrize(
    "ids",
    [
        IDS.astype(object),
        pd.DataFrame({"a": IDS, "b": 0}, dtype="Int64"),
        pd.DataFrame({"a": IDS, "b": "x"}),
        np.array([b"\xff%d" % i for i in IDS]),
        pd.Series([b"\xff%d" % i for i in IDS]),
        pa.array([b"\xff%d" % i for i in IDS]),
    ],
    ids=["objects", "Int64", "numbers and text", "bytes", "bytes of pandas", "bytes of Arrow"],
)
def test_a_repeat_reads_ids_of_every_type(ledger, ids):
    first, again = (ldp.privatize(closed(ledger, ids=ids), RR) for _ in range(2))
    assert again.receipts == first.receipts
    for noisy in (first, again):
        np.testing.assert_array_equal(outputs(noisy.by_id(ids)), outputs(first))


@pytest.mark.parametrize("law", ["rr", 1.0, ldp.RandomizedResponse])
def test_a_law_is_a_law(law):
    with pytest.raises(ldp.InvalidInput, match="Expected a law, such as"):
        ldp.privatize(ldp.PrivateLabels(LABELS, classes=range(5)), law)


def test_a_huge_epsilon_is_warned_of(ledger):
    with pytest.warns(LargeEpsilonWarning, match="0.999955"):
        ldp.privatize(ldp.PrivateLabels([0, 1], classes=range(2)), ldp.RandomizedResponse(2, 10.0))
    with pytest.warns(
        LargeEpsilonWarning,
        match=r"whoever knows all other labels tells which of two a label is .* up to 0.999955",
    ):
        ldp.aggregate(
            ldp.PrivateLabels([0, 1], classes=range(2)),
            ldp.aggregates.Histogram(2, 10.0, 1),
            groups=[0, 0],
        )
    with pytest.warns(
        LargeEpsilonWarning,
        match="An epsilon of 1000 protects nothing: the labels come out practically in the clear",
    ):
        ldp.privatize(
            ldp.PrivateLabels([0, 1], classes=range(2)), ldp.RandomizedResponse(2, 1000.0)
        )
    with pytest.warns(LargeEpsilonWarning, match="the answers come out practically exact"):
        ldp.aggregate(
            ldp.PrivateLabels([0, 1], classes=range(2)),
            ldp.aggregates.Histogram(2, 100.0, 1),
            groups=[0, 0],
        )
    # four rows a unit: each label is drawn at 10
    with pytest.warns(LargeEpsilonWarning, match="next to nothing"):
        ldp.privatize(
            ldp.PrivateLabels([0, 1], classes=range(2), unit=[0, 1], max_rows_per_unit=4),
            ldp.RandomizedResponse(2, 40.0),
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error", LargeEpsilonWarning)
        ldp.privatize(ldp.PrivateLabels([0, 1], classes=range(2)), ldp.RandomizedResponse(2, 8.0))


def test_a_spent_budget_advises_a_name_for_other_data(ledger):
    ldp.privatize(closed(ledger, dataset="train"), ldp.RandomizedResponse(5, 3.0))
    with pytest.raises(ldp.BudgetExceeded, match=r"a name of their own \(dataset=\)"):
        ldp.privatize(closed(ledger, dataset="train"), RR)


def test_a_charge_waits_for_the_disk_no_more_often_than_its_protocol_needs(ledger, monkeypatch):
    """Secret, pin, rows and charge, then their folder; which rows are drawn; what came out; the
    secret's end. SQLite's own come on top."""
    counted = {"fsync": 0, "connect": 0}
    for home, name in ((os, "fsync"), (sqlite3, "connect")):
        real = getattr(home, name)

        def call(*args, _real=real, _name=name, **named):
            counted[_name] += 1
            return _real(*args, **named)

        monkeypatch.setattr(home, name, call)
    for dataset in ("first", "second"):  # the first charge makes the ledger and its folders
        counted.update(fsync=0, connect=0)
        people = [f"{dataset} person {i}" for i in IDS]
        ldp.privatize(closed(ledger, ids=people, dataset=dataset), ldp.RandomizedResponse(5, 1.0))
    assert counted == {"fsync": 12, "connect": 4}, (
        "4 files, 2 folders; 2 x 2 results; 2 overwritten / read, charge, stages, settle"
    )


def test_the_first_release_without_ids_says_once_that_no_repeat_is_known(ledger, monkeypatch):
    monkeypatch.setattr("labeldp.custody._request._told", set())
    with pytest.warns(ldp.errors.RepeatWarning, match="ids=") as told:
        both = [ldp.privatize(closed(ledger, ids=None, dataset=name), RR) for name in "ef"]
    assert len(told) == 1 and len(both) == 2
