# SPDX-License-Identifier: Apache-2.0
"""Estimates from noisy labels: unbiased, with intervals that cover, and honest about rows that the model has seen."""

import math

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

import labeldp as ldp
from labeldp.protocol import metrics

FALSE_ALARM = 1e-6
SIGMAS = 4.9  # two-sided normal quantile of FALSE_ALARM

TRIALS, N, K = 2000, 400, 5
LAWS = [ldp.RandomizedResponse(K, 1.0), ldp.SubsetSelection(K, 1.0, size=2), ldp.RandomizedResponse(K, 4.0)]


def trials(law, seed=0):
    """Labels, predictions that are right with probability 0.7, and noisy labels: (trials, n) each."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(K, p=[0.4, 0.3, 0.15, 0.1, 0.05], size=TRIALS * N)
    guesses = np.where(rng.random(TRIALS * N) < 0.7, labels, rng.integers(K, size=TRIALS * N))
    return labels, guesses, ldp.privatize(labels, law, noise=ldp.SeededNoise(seed))


def assert_coverage(covered, level=0.95):
    rate, spread = np.mean(covered), math.sqrt(level * (1 - level) / len(covered))
    # the interval is allowed to be a little conservative or liberal (0.5 points) beyond chance
    assert abs(rate - level) < SIGMAS * spread + 0.005, rate


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.name}-{law.epsilon}")
def test_accuracy_is_unbiased_and_its_interval_covers(law):
    _, guesses, noisy = trials(law)
    truth = 0.7 + 0.3 / K
    found = [metrics.accuracy(noisy[part], guesses[part]) for part in np.arange(TRIALS * N).reshape(TRIALS, N)]
    values = np.array([estimate.value for estimate in found])
    assert abs(values.mean() - truth) < SIGMAS * values.std() / math.sqrt(TRIALS)
    assert_coverage([estimate.low <= truth <= estimate.high for estimate in found])
    # and it is not wide for nothing: half the width would not cover
    half = [abs(estimate.value - truth) <= (estimate.high - estimate.low) / 4 for estimate in found]
    assert np.mean(half) < 0.95 - SIGMAS * math.sqrt(0.95 * 0.05 / TRIALS)


def test_log_loss_is_unbiased_and_its_interval_covers():
    labels, _, noisy = trials(LAWS[1], seed=1)
    table = np.random.default_rng(2).dirichlet(np.ones(K), TRIALS * N)
    losses = -np.log(np.maximum(table[np.arange(TRIALS * N), labels], 1e-6))
    truth = losses.mean()
    found = [metrics.log_loss(noisy[part], table[part]) for part in np.arange(TRIALS * N).reshape(TRIALS, N)]
    assert_coverage([estimate.low <= truth <= estimate.high for estimate in found])
    whole = metrics.log_loss(noisy, table)
    assert whole.low <= truth <= whole.high


@pytest.mark.parametrize("law", LAWS[:2], ids=lambda law: law.name)
def test_class_frequencies_cover_each_class(law):
    _, _, noisy = trials(law, seed=3)
    truth = [0.4, 0.3, 0.15, 0.1, 0.05]
    found = [metrics.class_frequencies(noisy[part]) for part in np.arange(TRIALS * N).reshape(TRIALS, N)[:500]]
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
    worst = math.sqrt(len(labels)) * 1.0 / (own[0] - other[0])  # every value lies in an interval of this length over sqrt(n)
    assert np.abs(estimate - truth).max() < SIGMAS * worst
    np.testing.assert_allclose(estimate.sum(axis=0), truth.sum(axis=0), rtol=1e-9)


def test_a_model_that_saw_the_noise_looks_far_too_good_on_its_own_rows_but_not_on_others():
    rng = np.random.default_rng(5)
    n = 20_000
    features = rng.normal(size=(n, 2))
    labels = (features[:, 0] > 0).astype(int) + 2 * (features[:, 1] > 0).astype(int)
    labels = np.where(rng.random(n) < 0.1, rng.integers(4, size=n), labels)
    noisy = ldp.privatize(labels, ldp.RandomizedResponse(4, 2.0), noise=ldp.SeededNoise(5))
    half = n // 2
    model = KNeighborsClassifier(1).fit(features[:half], noisy[:half].hard())
    held_out = metrics.accuracy(noisy[half:], model.predict(features[half:]))
    truth = np.mean(model.predict(features[half:]) == labels[half:])
    assert abs(held_out.value - truth) < SIGMAS * (held_out.high - held_out.value) / 1.96
    seen = metrics.accuracy(noisy[:half], model.predict(features[:half]))
    assert seen.low > np.mean(model.predict(features[:half]) == labels[:half]) + 0.2


def test_golden_values_of_the_noisy_validation_correction():
    """ALGORITHMS A.6: acc = (noisy accuracy - q) / (p - q), standard error sqrt(a (1 - a) / n) / (p - q)."""
    n = 5000
    noisy = ldp.privatize(np.zeros(n, int), ldp.RandomizedResponse(10, 2.0), noise=ldp.SeededNoise(6))
    outputs = np.zeros(n, np.int32)
    outputs[2000:] = 1  # a noisy accuracy of exactly 0.4 for the prediction 0
    noisy.blocks[0].outputs[:] = outputs
    estimate = metrics.accuracy(noisy, np.zeros(n, int))
    assert estimate.value == pytest.approx(0.8695529282, abs=1e-9)
    assert (estimate.high - estimate.low) / 2 / 1.96 == pytest.approx(0.0177720636, rel=5e-3)


def test_rows_without_an_estimator_are_refused():
    noisy = ldp.privatize([0, 1, 2] * 10, ldp.PriorSplit(3, 1.0), noise=ldp.SeededNoise(0))
    for call in (
        lambda: metrics.accuracy(noisy, [0] * 30),
        lambda: metrics.log_loss(noisy, np.full((30, 3), 1 / 3)),
        lambda: metrics.confusion_matrix(noisy, [0] * 30),
        lambda: metrics.class_frequencies(noisy),
    ):
        with pytest.raises(ldp.InvalidInput, match="unbiased estimator"):
            call()
    assert metrics.mean_log_evidence(noisy, np.full((30, 3), 1 / 3)) < 0


def test_likelihood_score_is_highest_at_the_truth():
    labels, _, noisy = trials(LAWS[0], seed=7)
    truth = np.broadcast_to([0.4, 0.3, 0.15, 0.1, 0.05], (len(labels), K))
    others = [
        np.full((len(labels), K), 1 / K),
        truth[:, ::-1],
        truth * [1.2, 1, 1, 1, 1] / (truth * [1.2, 1, 1, 1, 1]).sum(axis=1, keepdims=True),
    ]
    assert all(metrics.mean_log_evidence(noisy, truth) > metrics.mean_log_evidence(noisy, other) for other in others)


@pytest.mark.parametrize("law", [*LAWS, ldp.PriorSplit(K, 1.0), ldp.AutoLaw(K, 2.0)])
def test_a_class_that_the_model_has_lost_is_named_and_no_other(law):
    """False alarm below 3e-7 a class: a score above 5 standard errors whose mean is 0."""
    rng, n = np.random.default_rng(8), 80_000
    truth = np.array([0.5, 0.3, 0.15, 0.05, 0.0])  # the last one does not occur
    labels = np.array(list("abcde"))[rng.choice(K, p=truth, size=n)]
    prior = rng.dirichlet(np.ones(K), size=n) if law.uses_prior else None
    noisy = ldp.privatize(labels, law, prior=prior, classes=list("abcde"), noise=ldp.SeededNoise(8))
    rows = np.tile(truth, (n, 1))
    assert metrics.lost_classes(noisy, rows) == []
    lost = rows * [1, 1, 0, 1, 1]
    assert metrics.lost_classes(noisy, lost / lost.sum(axis=1, keepdims=True)) == ["c"]
    assert metrics.lost_classes(noisy, np.full((n, K), 1 / K)) == []


@pytest.mark.parametrize(
    ("table", "message"),
    [(-np.ones((30, 3)), ">= 0"), (np.ones((3, 3)), "shape"), (np.full((30, 3), np.nan), ">= 0"), (np.full((30, 2), 0.5), "shape")],
)
def test_bad_probabilities_are_refused(table, message):
    noisy = ldp.privatize([0, 1, 2] * 10, ldp.RandomizedResponse(3, 1.0), noise=ldp.SeededNoise(0))
    with pytest.raises(ldp.InvalidInput, match=message):
        metrics.log_loss(noisy, table)
    with pytest.raises(ldp.InvalidInput, match="30"):
        metrics.accuracy(noisy, [0, 1])
    with pytest.raises(ldp.InvalidInput, match="at least one"):
        metrics.accuracy(noisy[:0], [])
