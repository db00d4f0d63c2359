# SPDX-License-Identifier: Apache-2.0
"""Estimates from noisy labels: unbiased, with intervals that cover, and honest about rows that the
model has seen."""

import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import labeldp as ldp
from labeldp.errors import UnmeasuredWarning
from labeldp.learn._corrections import LearnOptions
from labeldp.papers.malek2021 import Alibi
from labeldp.protocol import metrics
from labeldp.protocol._estimator import hold_out
from labeldp.protocol._statistics import Estimate

FALSE_ALARM = 1e-6
SIGMAS = 4.9  # two-sided normal quantile of FALSE_ALARM

TRIALS, N, K = 2000, 400, 5
LAWS = [
    ldp.RandomizedResponse(K, 1.0),
    ldp.SubsetSelection(K, 1.0, size=2),
    ldp.RandomizedResponse(K, 4.0),
]


def trials(law, seed=0):
    """Labels, predictions that are right with probability 0.7, and noisy labels: (trials, n)
    each."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(K, p=[0.4, 0.3, 0.15, 0.1, 0.05], size=TRIALS * N)
    guesses = np.where(rng.random(TRIALS * N) < 0.7, labels, rng.integers(K, size=TRIALS * N))
    return (
        labels,
        guesses,
        ldp.privatize(
            ldp.PrivateLabels(labels, classes=range(law.n_classes), noise=ldp.SeededNoise(seed)),
            law,
        ),
    )


def assert_coverage(covered, level=0.95):
    rate, spread = np.mean(covered), math.sqrt(level * (1 - level) / len(covered))
    # the interval is allowed to be a little conservative or liberal (0.5 points) beyond chance
    assert abs(rate - level) < SIGMAS * spread + 0.005, rate


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.name}-{law.epsilon}")
def test_accuracy_is_unbiased_and_its_interval_covers(law):
    _, guesses, noisy = trials(law)
    truth = 0.7 + 0.3 / K
    found = [
        metrics.accuracy(noisy[part], guesses[part])
        for part in np.arange(TRIALS * N).reshape(TRIALS, N)
    ]
    values = np.array([estimate.value for estimate in found])
    assert abs(values.mean() - truth) < SIGMAS * values.std() / math.sqrt(TRIALS)
    assert_coverage([estimate.low <= truth <= estimate.high for estimate in found])
    # and it is not wide for nothing: half the width would not cover
    half = [abs(estimate.value - truth) <= (estimate.high - estimate.low) / 4 for estimate in found]
    assert np.mean(half) < 0.95 - SIGMAS * math.sqrt(0.95 * 0.05 / TRIALS)


COMBINED = {
    "rr, 2 classes, eps 0.5": [ldp.RandomizedResponse(2, 0.5)],
    "rr, 2 classes, eps 6": [ldp.RandomizedResponse(2, 6.0)],
    "rr, 10 classes, eps 2": [ldp.RandomizedResponse(10, 2.0)],
    "subset, 10 classes, eps 1": [ldp.SubsetSelection(10, 1.0)],
    "cluster-rr, 5 classes, eps 3": [ldp.ClusterRR(5, 3.0)],
    "alibi, 5 classes, eps 2": [Alibi(5, 2.0)],
    "two draws of rr": [ldp.RandomizedResponse(5, 1.0), ldp.RandomizedResponse(5, 2.0)],
    "subset and alibi": [ldp.SubsetSelection(4, 1.0), Alibi(4, 1.0)],
}


@pytest.mark.parametrize("laws", COMBINED.values(), ids=COMBINED)
def test_intervals_cover_at_any_number_of_rows(laws):
    """At least 93 % of the population's figures at a nominal 95 %, from one row on, sharp models
    and rare cells included.

    False alarm below 1e-6 a figure whose coverage is at least 93 %. At 1000 rows intervals of
    accuracy are at most 5 % wider than normal.
    """
    rng, n_rows, k = np.random.default_rng(0), 200_000, laws[0].n_classes
    shares = 1 / np.arange(1, k + 1) ** 2
    rows = np.maximum(rng.dirichlet(shares / shares.sum() / 2, size=n_rows // 10), 1e-4)
    p = (rows / rows.sum(axis=1, keepdims=True))[rng.integers(len(rows), size=n_rows)]
    labels = (rng.random(n_rows)[:, None] > np.cumsum(p, axis=1)).sum(axis=1).clip(max=k - 1)
    prior = rng.dirichlet(np.ones(k), size=len(rows))[rng.integers(len(rows), size=n_rows)]
    draws = [
        ldp.privatize(
            ldp.PrivateLabels(labels, classes=range(k), noise=ldp.SeededNoise(i)),
            law,
            prior=prior if law.uses_prior else None,
        )
        for i, law in enumerate(laws)
    ]
    noisy = draws[0] if len(draws) == 1 else draws[0].combine(draws[1])
    guess, everyone = p.argmax(axis=1), np.ones(n_rows, bool)
    first, last = np.eye(k)[np.zeros(n_rows, int)], np.eye(k)[np.full(n_rows, k - 1)]
    figures = {
        "accuracy": (np.eye(k)[guess], everyone, 1.0),
        "log-loss": (-np.log(p), everyone, np.inf),
        "frequency": (last, everyone, 1.0),
        "rare cell": (first, guess == k - 1, 1.0),
        "common cell": (first, guess == 0, 1.0),
    }
    for name, (losses, counted, most) in figures.items():
        truth = np.where(counted, (p * losses).sum(axis=1), 0.0).mean()
        values, ranges = np.where(counted, noisy.debias(losses), 0.0), noisy.loss_range(losses)
        for n in (1, 2, 5, 10, 30, 100, 1000):
            count = min(n_rows // n, 4000)
            shape = (count, n)
            parts = values[: count * n].reshape(shape), ranges[: count * n].reshape(shape)
            _, low, high, error = metrics.mean_interval(*parts, 0.95, least=0.0, most=most)
            rate = np.mean((low <= truth) & (truth <= high))
            assert rate > 0.93 - SIGMAS * math.sqrt(0.93 * 0.07 / count), (name, n, rate)
        if name == "accuracy":
            assert np.mean(error / (parts[0].std(axis=1) / math.sqrt(n))) < 1.05


def test_a_precision_of_no_row_says_so():
    noisy = ldp.privatize(
        ldp.PrivateLabels([0, 1] * 50, classes=[0, 1], noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(2, 4.0),
    )
    found = metrics.precision(noisy, [0] * 100)
    assert math.isnan(found.value) and not found.tells
    assert str(found) == "cannot tell: no row was predicted positive"


def test_few_rows_say_that_they_cannot_tell():
    by_chance = Estimate(-0.2048, 0.0, 1.0, stderr=0.4, least=0.0, most=1.0, constant=0.5)
    few = (
        "cannot tell: too few rows for this noise (estimate -0.2048, a constant 0.5000; range"
        " 0.0000 to 1.0000)"
    )
    assert str(by_chance) == few
    far = replace(by_chance, stderr=0.04)
    told = (
        "cannot tell: the estimate -0.2048, a constant 0.5000 is farther outside of 0.0000 to"
        " 1.0000 than noise explains."
    )
    assert str(far) == f"{told} Has the model learned from these rows?"
    assert "model" not in str(replace(far, constant=None))  # a statistic, such as a difference
    one = ldp.privatize(
        ldp.PrivateLabels([0], classes=range(10), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(10, 1.0),
    )
    loss = metrics.log_loss(one, [[0.6] + [0.4 / 9] * 9])
    assert (loss.low, loss.high) == (0.0, pytest.approx(-math.log(0.4 / 9))) and not loss.tells
    assert str(loss).startswith("cannot tell: too few rows")
    many = ldp.privatize(
        ldp.PrivateLabels([0] * 50, classes=range(10), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(10, 4.0),
    )
    outside = metrics.accuracy(many, [0] * 50, confidence=1e-9)  # the value itself is above 1
    assert outside.value > 1 and (outside.low, outside.high) == (0.0, 1.0) and not outside.tells
    found = metrics.accuracy(many, [0] * 50)
    assert found.low == pytest.approx(found.value - 1.959964 * found.stderr, abs=1e-6)
    assert metrics.class_frequencies(many).stderr[0] == pytest.approx(found.stderr)


@pytest.mark.parametrize(
    "law",
    [*LAWS, ldp.ClusterRR(K, 2.0), ldp.ClusterRR.uniform(K, 1.0), Alibi(K, 1.0, levels=3)],
    ids=str,
)
def test_the_range_of_a_row_holds_every_output_and_no_more(law):
    rng = np.random.default_rng(0)
    prior, losses = rng.dirichlet(np.ones(K)), rng.normal(size=K)
    outputs = law.outputs(prior)
    side = {
        name: np.repeat(value[None], len(outputs), axis=0)
        for name, value in law.side_row(prior).items()
    }
    if law.kind == "set":
        outputs = np.packbits(outputs, axis=1, bitorder="little")
    table = np.tile(losses, (len(outputs), 1))
    values = (law.weights(outputs, side) * table).sum(axis=1)
    np.testing.assert_allclose(law.loss_range(table, outputs, side), np.ptp(values), rtol=1e-9)


def two_stages(seed, n=1200):
    """Half of the rows tell their label, half tell nothing; the second stage is drawn with a prior
    that knows which."""
    rng = np.random.default_rng(seed)
    easy, truth = rng.random(n) < 0.5, rng.integers(K, size=n)
    X = np.column_stack([np.where(easy, truth, K), rng.normal(size=n)])
    prior = np.where(
        easy[:, None], 0.02 / (K - 1) + (0.98 - 0.02 / (K - 1)) * np.eye(K)[truth], 1 / K
    )
    half = n // 2
    law, parts = ldp.RRWithPrior(K, 2.0), (np.arange(half), np.arange(half, n))
    first, second = (
        ldp.PrivateLabels(truth[ids], classes=range(K), ids=ids, noise=ldp.SeededNoise(seed))
        for ids in parts
    )
    drawn = ldp.privatize(first, law), ldp.privatize(second, law, prior=prior[half:])
    return X, truth, ldp.concat(drawn)


def test_held_out_rows_of_two_stages_measure_a_model_on_all_kinds_of_rows():
    """Bias and coverage of 400 fits, each with FALSE_ALARM. Of all rows that can be inverted, those
    held out would be the hard ones."""
    codes = OneHotEncoder(categories=[list(range(K + 1))], sparse_output=False)
    estimator = make_pipeline(ColumnTransformer([("code", codes, [0])]), GaussianNB())
    errors, covered = [], []
    for seed in range(400):
        X, truth, noisy = two_stages(seed)
        model = ldp.LabelDPClassifier(
            estimator, correction="none", options=LearnOptions(refit=False), random_state=seed
        ).fit(X, noisy)
        true = 0.5 * sum(
            np.mean(model.predict(X[part]) == truth[part]) for part in (X[:, 0] < K, X[:, 0] == K)
        )
        found = model.estimated_accuracy_
        errors.append(found.value - true)
        covered.append(found.low <= true <= found.high)
    assert abs(np.mean(errors)) < SIGMAS * np.std(errors) / math.sqrt(len(errors))
    assert np.mean(covered) > 0.95 - SIGMAS * math.sqrt(0.95 * 0.05 / len(covered))


def test_rows_are_held_out_of_stages_that_can_be_inverted_throughout_and_else_none_with_a_word():
    _, _, noisy = two_stages(0)
    assert noisy.invertible[600:].any() and not noisy.invertible[600:].all()
    assert hold_out(noisy, 0.3, np.random.default_rng(0).permutation).max() < 600
    twice = noisy[600:].combine(
        ldp.privatize(
            ldp.PrivateLabels([0] * 600, classes=range(K), ids=np.arange(600, 1200)),
            ldp.RandomizedResponse(K, 1.0),
        )
    )
    assert [str(block.law) for block in twice.measurable.blocks if len(block.rows)] == [
        str(ldp.RandomizedResponse(K, 1.0))
    ]  # what the second draw adds in hard rows alone is left out
    with pytest.warns(UnmeasuredWarning, match="quality on true labels is not estimated"):
        assert len(hold_out(noisy[600:], 0.3, np.random.default_rng(0).permutation)) == 0
    with pytest.raises(ldp.InvalidInput, match="biased"):
        metrics.accuracy(noisy[600:], [0] * 600)


def test_log_loss_is_unbiased_and_its_interval_covers():
    labels, _, noisy = trials(LAWS[1], seed=1)
    table = np.random.default_rng(2).dirichlet(np.ones(K), TRIALS * N)
    losses = -np.log(np.maximum(table[np.arange(TRIALS * N), labels], 1e-6))
    truth = losses.mean()
    found = [
        metrics.log_loss(noisy[part], table[part])
        for part in np.arange(TRIALS * N).reshape(TRIALS, N)
    ]
    assert_coverage([estimate.low <= truth <= estimate.high for estimate in found])
    whole = metrics.log_loss(noisy, table)
    assert whole.low <= truth <= whole.high


@pytest.mark.parametrize("law", LAWS[:2], ids=lambda law: law.name)
def test_class_frequencies_cover_each_class(law):
    _, _, noisy = trials(law, seed=3)
    truth = [0.4, 0.3, 0.15, 0.1, 0.05]
    found = [
        metrics.class_frequencies(noisy[part])
        for part in np.arange(TRIALS * N).reshape(TRIALS, N)[:500]
    ]
    for y, p in enumerate(truth):
        rate = np.mean([estimates.low[y] <= p <= estimates.high[y] for estimates in found])
        assert abs(rate - 0.95) < SIGMAS * math.sqrt(0.95 * 0.05 / 500) + 0.005
    assert found[0].value.sum() == pytest.approx(1)


def test_confusion_matrix_is_close_to_the_true_one():
    labels, guesses, noisy = trials(LAWS[0], seed=4)
    truth = np.zeros((K, K))
    np.add.at(truth, (labels, guesses), 1)
    estimate = metrics.confusion_matrix(noisy, guesses).value * len(labels)
    own, other = noisy[:1].inclusion()
    # every value lies in an interval of this length over sqrt(n)
    worst = math.sqrt(len(labels)) * 1.0 / (own[0] - other[0])
    assert np.abs(estimate - truth).max() < SIGMAS * worst
    np.testing.assert_allclose(estimate.sum(axis=0), truth.sum(axis=0), rtol=1e-9)


def test_a_model_that_saw_the_noise_looks_far_too_good_on_its_own_rows_but_not_on_others():
    rng = np.random.default_rng(5)
    n = 20_000
    features = rng.normal(size=(n, 2))
    labels = (features[:, 0] > 0).astype(int) + 2 * (features[:, 1] > 0).astype(int)
    labels = np.where(rng.random(n) < 0.1, rng.integers(4, size=n), labels)
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(4), noise=ldp.SeededNoise(5)),
        ldp.RandomizedResponse(4, 2.0),
    )
    half = n // 2
    model = KNeighborsClassifier(1).fit(features[:half], noisy[:half].hard())
    held_out = metrics.accuracy(noisy[half:], model.predict(features[half:]))
    truth = np.mean(model.predict(features[half:]) == labels[half:])
    assert abs(held_out.value - truth) < SIGMAS * (held_out.high - held_out.value) / 1.96
    seen = metrics.accuracy(noisy[:half], model.predict(features[:half]))
    assert seen.value > np.mean(model.predict(features[:half]) == labels[:half]) + 0.2
    assert not seen.tells and "learned from" in str(seen)  # no accuracy fits to it


def test_golden_values_of_the_noisy_validation_correction():
    """ALGORITHMS A.6: acc = (noisy accuracy - q) / (p - q), standard error sqrt(a (1 - a) / n) / (p
    - q)."""
    n = 5000
    noisy = ldp.privatize(
        ldp.PrivateLabels(np.zeros(n, int), classes=range(10), noise=ldp.SeededNoise(6)),
        ldp.RandomizedResponse(10, 2.0),
    )
    outputs = np.zeros(n, np.int32)
    outputs[2000:] = 1  # a noisy accuracy of exactly 0.4 for the prediction 0
    noisy = replace(noisy, blocks=(replace(noisy.blocks[0], outputs=outputs),))
    estimate = metrics.accuracy(noisy, np.zeros(n, int))
    assert estimate.value == pytest.approx(0.8695529282, abs=1e-9)
    assert (estimate.high - estimate.low) / 2 / 1.96 == pytest.approx(0.0177720636, rel=5e-3)


@pytest.mark.parametrize("law", [*LAWS, ldp.PriorSplit(K, 1.0), ldp.AutoLaw(K, 2.0)])
def test_a_class_that_the_model_has_lost_is_named_and_no_other(law):
    """False alarm below 3e-7 a class: a score above 5 standard errors whose mean is 0."""
    rng, n = np.random.default_rng(8), 80_000
    truth = np.array([0.5, 0.3, 0.15, 0.05, 0.0])  # the last one does not occur
    labels = np.array(list("abcde"))[rng.choice(K, p=truth, size=n)]
    prior = rng.dirichlet(np.ones(K), size=n) if law.uses_prior else None
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=list("abcde"), noise=ldp.SeededNoise(8)), law, prior=prior
    )
    rows = np.tile(truth, (n, 1))
    assert metrics.lost_classes(noisy, rows) == []
    lost = rows * [1, 1, 0, 1, 1]
    assert metrics.lost_classes(noisy, lost / lost.sum(axis=1, keepdims=True)) == ["c"]
    assert metrics.lost_classes(noisy, np.full((n, K), 1 / K)) == []
    # wrong of half of the rows, whose outputs then speak for every other class
    sure = np.tile(np.eye(K)[0], (n, 1))
    assert prior is not None or "e" not in metrics.lost_classes(noisy, sure)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (-np.ones((30, 3)), ">= 0"),
        (np.ones((3, 3)), "shape"),
        (np.full((30, 3), np.nan), ">= 0"),
        (np.full((30, 2), 0.5), "shape"),
        (np.where(np.arange(30)[:, None] == 7, 0.9, 1 / 3) * np.ones(3), "sum to 1 .* in row 7"),
    ],
)
def test_bad_probabilities_are_refused(table, message):
    noisy = ldp.privatize(
        ldp.PrivateLabels([0, 1, 2] * 10, classes=range(3), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(3, 1.0),
    )
    with pytest.raises(ldp.InvalidInput, match=message):
        metrics.log_loss(noisy, table)
    with pytest.raises(ldp.InvalidInput, match="30"):
        metrics.accuracy(noisy, [0, 1])
    with pytest.raises(ldp.InvalidInput, match="at least one"):
        metrics.accuracy(noisy[:0], [])


@pytest.mark.parametrize("n", [7, 500])
def test_a_judgement_is_the_four_estimates_that_it_holds(n):
    rng = np.random.default_rng(0)
    noisy = ldp.privatize(
        ldp.PrivateLabels(rng.integers(K, size=n), classes=range(K), noise=ldp.SeededNoise(1)),
        ldp.SubsetSelection(K, 1.0),
    )
    proba, frequencies = rng.dirichlet(np.ones(K), n), rng.dirichlet(np.ones(K))
    constant = np.tile(frequencies, (n, 1))
    found = metrics.judge(noisy, proba, frequencies)
    assert found["accuracy"] == metrics.accuracy(noisy, proba.argmax(axis=1))
    assert found["log_loss"] == metrics.log_loss(noisy, proba)
    assert found["baseline_accuracy"] == metrics.accuracy(noisy, constant.argmax(axis=1))
    assert found["baseline_log_loss"] == metrics.log_loss(noisy, constant)
