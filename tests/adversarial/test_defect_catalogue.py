# SPDX-License-Identifier: Apache-2.0
"""Defects seen in published label-DP code, one test each: the defect is planted where that is
possible, and what is here catches it.

Left out is what has no counterpart here yet: accountants of canary games (an empirical audit) and
ensembles of teachers.
"""

import ast
import math
import os
import pickle
import subprocess
import sys
import warnings
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold
from tests.runs import open_run

import labeldp as ldp
from labeldp.custody import _draw as worker_module
from labeldp.laws import LAWS, register_law
from labeldp.laws._exact import equal_cell, sets_contain
from labeldp.tables._evidence import read_noisy
from labeldp.testing import check_law

BUDGET = 3.0  # of each column

LABELS = np.random.default_rng(0).integers(4, size=400)
IDS = np.random.default_rng(1).permutation(10**6)[:400]
X = np.eye(4)[LABELS] + np.random.default_rng(2).normal(size=(400, 4))
RR = ldp.RandomizedResponse(4, 1.0)
SOURCES = Path(ldp.__file__).parent


@pytest.fixture
def planted():
    """Registers a faulty law for one test."""
    yield register_law
    LAWS.pop("planted", None)


def labels(y=LABELS, **facts):
    return ldp.PrivateLabels(y, **{"classes": range(4)} | facts)


def kept(ledger, y=LABELS, **facts):
    """The same labels, known to a ledger by their ids."""
    return labels(y, **{"dataset": "d", "column": "label", "ids": IDS, "ledger": ledger} | facts)


def classifier(**settings):
    return ldp.LabelDPClassifier(LogisticRegression(), **({"random_state": 0} | settings))


# 1, 2, 9, 11, 17, 18: laws
# --------------------------------------------------------------------------------------------------


def test_01_a_label_outside_the_candidates_is_drawn_among_all_classes(planted):
    """Its output then proves that it was outside: an infinite ratio."""

    @planted
    @dataclass(frozen=True)
    class FallsBack(ldp.RRTopK):
        name: ClassVar[str] = "planted"

        def sample(self, labels, words_, side):
            inside = sets_contain(side["candidates"], labels, self.n_classes)
            anywhere = equal_cell(words_.take(0), np.full(len(labels), self.n_classes, np.uint64))
            return np.where(inside, super().sample(labels, words_, side), anywhere).astype(np.int32)

    with pytest.raises(AssertionError):
        check_law(FallsBack(5, 1.0, 2))
    bad = np.array([[3, 1, 0, 0], [1, 3, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]) / 4
    assert ldp.exact_epsilon(bad) == math.inf
    assert ldp.exact_epsilon(ldp.RRTopK(5, 1.0, 2).matrix([5, 4, 3, 2, 1], exact=True)) <= 1.0


@pytest.mark.parametrize(
    ("prior", "epsilon"),
    [([0.2] * 5, 0.3), ([0.2] * 5, 0.69), ([0.35, 0.25, 0.2, 0.12, 0.08], 1.0)],
)
def test_02_the_number_of_candidates_is_off_by_one(prior, epsilon):
    k, gain = np.arange(1, 6), math.exp(epsilon)
    objective = gain / (gain + k - 1) * np.cumsum(prior)
    shifted = np.cumsum(prior) / (1 + (k - 2) / gain)  # counts k from 0
    chosen = int(ldp.RRWithPrior(5, epsilon).side_row(prior)["size"])
    assert chosen == 1 + objective.argmax()
    assert objective[shifted.argmax()] < objective[chosen - 1]


@pytest.mark.parametrize("epsilon", [8.0, 20.0, 50.0, 700.0])
def test_09_a_large_epsilon_bypasses_the_noise(epsilon):
    bypass = np.eye(3)
    assert ldp.exact_epsilon(bypass) == math.inf
    for law in (
        ldp.RandomizedResponse(3, epsilon),
        ldp.SubsetSelection(5, epsilon),
        ldp.PriorSplit(3, epsilon),
        ldp.AutoLaw(3, epsilon),
    ):
        probabilities = [cell.probability for cell in law.profile(law.side_row())]
        assert min(probabilities) > 0 and max(probabilities) < 1
        assert law.exact_epsilon(law.side_row()) <= epsilon


def test_11_the_analysed_mechanism_is_not_the_one_that_runs(planted):
    @planted
    @dataclass(frozen=True)
    class Louder(ldp.RandomizedResponse):
        name: ClassVar[str] = "planted"

        def sample(self, labels, words_, side):
            return ldp.RandomizedResponse(self.n_classes, 1.5 * self.epsilon).sample(
                labels, words_, side
            )

    with pytest.raises(AssertionError):
        check_law(Louder(4, 1.0))


def test_17_probabilities_are_rounded_floats():
    """Every probability of a sampler is a whole number of 64-bit words, over the number of sets it
    is shared by; noise is never numpy's."""
    for law in (RR, ldp.RRTopK(5, 1.0, 3), ldp.PriorSplit(5, 1.0), ldp.SubsetSelection(5, 1.0, 2)):
        for cell in law.profile(law.side_row()):
            assert (cell.probability * 2**64 * math.comb(4, 2) * math.comb(4, 1)).denominator == 1
    for folder in ("laws", "noise", "ledger", "custody"):
        for path in (SOURCES / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                name = (
                    node.attr
                    if isinstance(node, ast.Attribute)
                    else node.module
                    if isinstance(node, ast.ImportFrom)
                    else ""
                )
                assert name != "random" or (
                    isinstance(node, ast.Attribute) and ast.unparse(node) != "np.random"
                ), path


def test_18_another_mechanism_is_called_randomized_response(planted):
    """The largest of one-hot scores with Laplace noise: its own table has another epsilon than its
    name says."""
    # two classes, scale 1: P[difference of two Laplace variables > -1]
    keep = 1 - math.exp(-1) * 0.75
    table = np.array([[keep, 1 - keep], [1 - keep, keep]])
    assert abs(ldp.exact_epsilon(table) - 1.0) > 0.03
    assert ldp.exact_epsilon(ldp.RandomizedResponse(2, 1.0).matrix(exact=True)) == pytest.approx(
        1.0, abs=1e-15
    )

    @planted
    @dataclass(frozen=True)
    class Misnamed(ldp.RandomizedResponse):
        name: ClassVar[str] = "planted"

        def table(self, side_row):
            found = super().table(side_row)
            return type(found)(
                found.outputs, tuple(Fraction(p) for p in (keep, 1 - keep, 0, 0)), found.index
            )

    with pytest.raises(AssertionError):
        check_law(Misnamed(2, 1.0))


# 3, 4, 5, 6, 7, 8, 10, 12, 15: custody
# ----------------------------------------------------------------------------------------------


def test_03_fresh_noise_in_every_epoch_at_the_price_of_one(ledger):
    epochs = [
        ldp.privatize(
            kept(ledger),
            RR,
        ).hard_codes()
        for _ in range(3)
    ]
    assert (
        all(np.array_equal(epochs[0], epoch) for epoch in epochs[1:])
        and ledger.spent("d", "label") == 1.0
    )
    ldp.privatize(
        kept(ledger, dataset="loader", ids=None),
        RR,
    )
    with pytest.raises(ldp.LedgerError, match="redraw"):
        ldp.privatize(
            kept(ledger, dataset="loader", ids=None),
            RR,
        )
    # what fresh noise looks like
    assert not np.array_equal(
        ldp.privatize(labels(), RR).hard_codes(),
        ldp.privatize(labels(), RR).hard_codes(),
    )


def test_04_noise_from_a_published_seed(ledger, tmp_path):
    """Who knows the seed draws the same noise. Seeds of training never reach it, and noise from a
    seed says so wherever it goes."""
    np.random.seed(0)
    drawn = [classifier(stages=1).fit(X, labels()).noisy_labels_.hard_codes()]
    np.random.seed(0)
    drawn.append(classifier(stages=1).fit(X, labels()).noisy_labels_.hard_codes())
    assert not np.array_equal(*drawn)
    with pytest.warns(ldp.errors.SeededNoiseWarning):
        seeded = [ldp.privatize(labels(noise=ldp.SeededNoise(0)), RR) for _ in range(2)]
    assert np.array_equal(seeded[0].hard_codes(), seeded[1].hard_codes())
    seeded[0].save(tmp_path / "noisy.parquet")
    read = ldp.NoisyLabels.load(tmp_path / "noisy.parquet")
    assert read.privacy.epsilon == math.inf and not read.privacy.secure
    with pytest.raises(ldp.InvalidInput, match="seeded"):
        ldp.privatize(
            kept(ledger, noise=ldp.SeededNoise(0)),
            RR,
        )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_05_workers_are_clones_of_one_generator():
    drawn = []
    for _ in range(3):
        read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            try:
                os.write(
                    write,
                    ldp.privatize(labels(), RR).hard_codes().astype(np.uint8).tobytes(),
                )
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            drawn.append(pipe.read())
        os.waitpid(child, 0)
    assert [len(outputs) for outputs in drawn] == [400] * 3 and len(set(drawn)) == 3
    run = open_run(LABELS, classes=range(4), epsilon=1.0, laws={})
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(run)


def test_06_two_workers_divide_the_rows_differently(ledger):
    """Each stands for itself, then some rows are drawn twice. The partition is a function of the
    run and kept with it."""

    def begun():
        return open_run(
            LABELS,
            classes=range(4),
            epsilon=1.0,
            laws={"n": 2},
            dataset="d",
            ids=IDS,
            ledger=ledger,
        )

    one, other = begun(), begun()
    parts = one.partition([0.5, 0.5])
    np.testing.assert_array_equal(parts, other.partition([0.5, 0.5]))
    one.privatize(np.flatnonzero(parts == 0), RR, stage="a")
    with pytest.raises(ldp.InvalidInput, match="drawn"):
        # a partition of its own
        one.privatize(np.flatnonzero(np.random.default_rng(3).random(400) < 0.5), RR, stage="b")


def test_07_labels_lose_their_rows_when_some_are_filtered(ledger):
    noisy = ldp.privatize(
        kept(ledger),
        RR,
    )
    keep = np.random.default_rng(4).permutation(400)[:150]
    np.testing.assert_array_equal(noisy[keep].ids, IDS[keep])
    np.testing.assert_array_equal(noisy[keep].hard_codes(), noisy.hard_codes()[keep])
    second = ldp.privatize(
        kept(ledger),
        RR,
        redraw=True,
    )
    with pytest.raises(ldp.InvalidInput, match="same rows"):
        noisy[keep].combine(second[np.sort(keep)])
    with pytest.raises(ldp.InvalidInput, match="rows"):
        classifier().fit(X, noisy[keep])


def test_08_the_classes_are_counted_in_the_private_labels(ledger, tmp_path):
    with pytest.raises(ldp.InvalidInput, match="codes 0 to 2"):
        kept(ledger, classes=[0, 1, 2])
    with pytest.raises(ldp.InvalidInput, match="a law over 4 classes, as many as the labels"):
        ldp.privatize(kept(ledger), ldp.RandomizedResponse(5, 1.0))
    assert ledger.spent("d", "label") == 0.0
    with pytest.warns(ldp.errors.DomainLeakWarning):
        ldp.privatize(
            kept(ledger, LABELS.astype(str), classes="infer"),
            RR,
        )
    with pytest.raises(ldp.InvalidInput, match="strict"):
        ldp.ReleaseSpec("label", "infer", 1.0, strict=True)
    with pytest.raises(ldp.InvalidInput, match="classes='infer'"):
        ldp.ReleaseSpec("label", None, 1.0)


@pytest.mark.parametrize("epsilon", [-1.0, 0.0, math.nan, math.inf, "1"])
def test_10_an_accountant_fails_and_training_goes_on(ledger, monkeypatch, epsilon):
    with pytest.raises(ldp.InvalidInput, match="epsilon"):
        classifier(epsilon=epsilon).fit(X, kept(ledger, ids=None))

    def broken(*_, **__):
        raise ldp.LedgerError("Expected a disk, got none.")

    def never(*args):
        raise AssertionError("drawn without a charge")

    monkeypatch.setattr(ldp.Ledger, "charge", broken)
    monkeypatch.setattr(worker_module, "draw", never)
    with pytest.raises(ldp.LedgerError, match="disk"):
        classifier().fit(X, kept(ledger, ids=None))


def test_12_a_prior_made_from_the_labels_is_not_deducted(ledger):
    noisy = ldp.privatize(
        kept(ledger),
        RR,
        stage="prior",
    )
    second = ldp.privatize(kept(ledger), ldp.AutoLaw(4, 0.5), prior=noisy.posterior())
    assert ledger.spent("d", "label") == 1.5 == noisy.combine(second).privacy.epsilon
    with pytest.raises(ldp.InvalidInput, match="receipt"):
        noisy.combine(noisy)


def test_15_repetitions_spend_the_second_stage_again(ledger):
    settings = {"law": "rr-with-prior", "stages": 2}
    fits = [
        classifier(random_state=seed, **settings).fit(X, kept(ledger, ids=None))
        for seed in range(3)
    ]
    assert ledger.spent("d", "label") == 1.0 and [len(fit.stages_) for fit in fits] == [2, 2, 2]
    for fit in fits[1:]:
        np.testing.assert_array_equal(
            fit.noisy_labels_.log_likelihood(), fits[0].noisy_labels_.log_likelihood()
        )


# 13, 14: nothing but noisy labels after the door
# ------------------------------------------------------------------------------------


def blind(monkeypatch):
    """The door answers as if every label were 0: whatever still differs between two label vectors
    has seen them."""
    real = worker_module.draw
    monkeypatch.setattr(
        worker_module, "draw", lambda law, codes, *rest: real(law, np.zeros_like(codes), *rest)
    )


def leavings(model, y):
    model.truth = y  # which only a fault reads
    model.fit(X, labels(y, noise=ldp.SeededNoise(0)))
    accuracy = model.estimated_accuracy_
    return (
        model.predict_proba(X).tobytes(),
        model.privacy_,
        model.stages_,
        accuracy,
        model.noisy_labels_.hard_codes().tobytes(),
    )


class Logs(ldp.LabelDPClassifier):
    """Reports its accuracy on the true labels, which it has beside the closed ones."""

    def fit(self, X, labels):
        super().fit(X, labels)
        self.estimated_accuracy_ = self.score(X, self.truth)
        return self


OTHERS = np.where(LABELS == 3, 3, 2 - LABELS % 3)


def test_13_metrics_and_choices_use_the_true_labels(monkeypatch):
    blind(monkeypatch)
    for facts in (
        {},
        {"stages": 2},
        {"stages": 2, "law": "rr-with-prior"},
        {"law": "subset", "validation_fraction": 0.3},
    ):
        assert leavings(classifier(**facts), LABELS) == leavings(classifier(**facts), OTHERS)
    faulty = Logs(LogisticRegression(), random_state=0)
    assert leavings(faulty, LABELS) != leavings(faulty, OTHERS)


def test_14_the_best_model_is_chosen_by_clean_labels():
    noisy = ldp.privatize(
        labels(noise=ldp.SeededNoise(1)),
        ldp.RandomizedResponse(4, 3.0),
    )
    grid = {"correction": ["none", "em"]}
    search = GridSearchCV(
        classifier(),
        grid,
        scoring=ldp.metrics.make_scorer("accuracy"),
        cv=KFold(2),
        refit=False,
        error_score="raise",
    )
    search.fit(X, noisy)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    with pytest.raises(ldp.InvalidInput, match="KFold"):
        GridSearchCV(classifier(), grid, scoring=ldp.metrics.make_scorer("accuracy"), cv=2).fit(
            X, noisy
        )
    with pytest.raises(ldp.InvalidInput, match="unbiased estimator"):
        ldp.metrics.accuracy(
            ldp.privatize(labels(noise=ldp.SeededNoise(1)), ldp.PriorSplit(4, 1.0)), LABELS
        )


# 19, 20: usable
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_19_there_is_no_way_in_or_out_for_tables(ledger, tmp_path, ending):
    source, out = tmp_path / f"in.{ending}", tmp_path / f"out.{ending}"
    table = pa.table({"id": IDS, "x": X[:, 0], "label": [f"class {y}" for y in LABELS]})
    if ending == "csv":
        source.write_text(
            "id,x,label\n"
            + "".join(f"{i},{x},{y}\n" for i, x, y in zip(*table.to_pydict().values(), strict=True))
        )
    else:
        pq.write_table(table, source)
    spec = ldp.ReleaseSpec("label", [f"class {y}" for y in range(4)], 1.0, law="subset", id="id")
    ldp.release(source, out, spec, ledger)
    noisy = read_noisy(out)
    assert (
        len(noisy) == 400
        and set(map(int, noisy.ids)) == set(IDS.tolist())
        and noisy.privacy.epsilon == 1.0
    )


def test_20_the_core_cannot_be_imported_without_a_deep_learning_framework():
    code = (
        "import sys\n"
        "for name in ('torch', 'tensorflow', 'jax', 'pandas', 'polars'): sys.modules[name] = None\n"
        "import labeldp as ldp\n"
        "labels = ldp.PrivateLabels([0, 1, 2] * 20, classes=range(3))\n"
        "noisy = ldp.privatize(labels, ldp.SubsetSelection(3, 1.0, 1))\n"
        "assert noisy.likelihood().shape == (60, 3)"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)
