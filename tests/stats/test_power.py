# SPDX-License-Identifier: Apache-2.0
"""Numbers of rows: power is what simulated releases have, and the variances are those of the laws'
matrices.

Labels and noise are seeded, so that every run has the same result. Of other seeds all statistical
bounds of this file together fail in at most 1e-6: four powers in 8e-7, five variances in 2e-7.
"""

import numpy as np
import pytest
from scipy.stats import binom

import labeldp as ldp
from labeldp.errors import InvalidInput
from labeldp.laws import SquareWave, UnbiasedRandomizer
from labeldp.papers.regression import BoundedLaplace, RROnBins
from labeldp.stats._power import _share_variance, mean_variance

RATE = 1e-7  # at which one side of a binomial bound fails
RUNS = 300
SEED = ldp.SeededNoise(0)


def by_matrix(law, values, shares):
    """Variance of a row's unbiased estimate, from all outputs of the law."""
    outputs = law.outputs()
    members = outputs if outputs.ndim == 2 else np.eye(law.n_classes)[outputs]
    inside = law.matrix() @ members
    own, other = inside[0, 0], inside[0, 1]
    estimates = (members - other) @ values / (own - other)
    seen = shares @ law.matrix()
    return seen @ estimates**2 - (seen @ estimates) ** 2


@pytest.mark.parametrize(
    "law",
    [
        ldp.RandomizedResponse(5, 1.0),
        ldp.SubsetSelection(5, 1.0),
        ldp.SubsetSelection(6, 0.5, size=2),
    ],
    ids=str,
)
def test_variances_are_those_of_the_matrix(law):
    rng = np.random.default_rng(0)
    values, shares = rng.normal(size=law.n_classes), rng.dirichlet(np.ones(law.n_classes))
    assert mean_variance(law, values, shares) == pytest.approx(
        by_matrix(law, values, shares), rel=1e-9
    )
    assert _share_variance(law, shares[1]) == pytest.approx(
        by_matrix(law, np.eye(law.n_classes)[1], shares), rel=1e-9
    )


def assert_power(found, wanted):
    """By exact binomial tails: fails in at most 2e-7 where the power is within two points of the
    wanted one, which is asymptotic."""
    held, runs = int(np.sum(found)), len(found)
    assert (
        binom.cdf(held, runs, wanted - 0.02) > RATE
        and binom.sf(held - 1, runs, wanted + 0.02) > RATE
    ), held / runs


def test_the_power_of_a_difference_is_that_of_simulated_releases():
    law = ldp.RandomizedResponse(2, 2.0)
    effect = ldp.stats.ProportionDifference(0.3, 0.4)
    n = ldp.stats.rows_for(effect, law)
    assert ldp.stats.power(effect, law, n) == pytest.approx(0.8, abs=1e-3)
    arm = np.arange(n) % 2
    labels = (np.random.default_rng(1).random((RUNS, n)) < np.where(arm, 0.4, 0.3)).astype(int)
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels.ravel(), classes=range(law.n_classes), noise=SEED), law
    )
    assert_power(
        [ldp.stats.effect(noisy[i * n : (i + 1) * n], arm).pvalue < 0.05 for i in range(RUNS)], 0.8
    )


def test_the_power_of_a_mean_is_that_of_simulated_releases():
    law, shares = ldp.SubsetSelection(5, 2.0), np.array([0.3, 0.3, 0.2, 0.1, 0.1])
    shifted = shares + np.array([-0.1, -0.1, 0, 0.1, 0.1])
    difference = float((shifted - shares) @ np.arange(5))
    effect = ldp.stats.MeanDifference(difference, range(5), (shares + shifted) / 2)
    n = ldp.stats.rows_for(effect, law, power=0.7)
    arm, rng = np.arange(n) % 2, np.random.default_rng(2)
    labels = np.where(
        arm, rng.choice(5, p=shifted, size=(RUNS, n)), rng.choice(5, p=shares, size=(RUNS, n))
    )
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels.ravel(), classes=range(law.n_classes), noise=SEED), law
    )
    assert_power(
        [ldp.stats.difference(noisy[i * n : (i + 1) * n], arm).pvalue < 0.05 for i in range(RUNS)],
        0.7,
    )


def test_privacy_costs_rows_and_more_at_small_epsilon():
    effect = ldp.stats.ProportionDifference(0.1, 0.12)
    needed = [
        ldp.stats.rows_for(effect, law)
        for law in (None, *(ldp.RandomizedResponse(2, eps) for eps in (4.0, 1.0, 0.5)))
    ]
    assert needed == sorted(needed)
    assert needed[0] == 7677  # 7.849 (.09 + .1056) 2 / .0004


@pytest.mark.parametrize(
    "law",
    [
        SquareWave(9, 1.5),
        SquareWave(9, 1.5, size=1),
        ldp.Threshold(9, 1.5),
        UnbiasedRandomizer(9, 1.5),
        BoundedLaplace(9, 1.5),
    ],
    ids=str,
)
def test_the_variance_of_a_mean_of_numbers_is_that_of_a_release(law):
    """Of 100,000 rows: within 5.5 standard errors of their variance (two-sided 4e-8), and 0.2 %
    that widen the interval of few rows."""
    rng = np.random.default_rng(0)
    values, shares = np.arange(9.0), rng.dirichlet(np.full(9, 2.0))
    noisy = ldp.privatize(
        ldp.PrivateLabels(
            rng.choice(9, p=shares, size=100_000), classes=range(law.n_classes), noise=SEED
        ),
        law,
    )
    squares = (found := noisy.debias(np.tile(values, (len(noisy), 1)))) - found.mean()
    squares **= 2
    error = 5.5 * squares.std() / np.sqrt(len(noisy)) / squares.mean()
    assert error < 0.05
    assert mean_variance(law, values, shares) == pytest.approx(
        ldp.stats.mean(noisy)["mean"].stderr ** 2 * 100_000, rel=error + 0.002
    )


def test_bad_input_is_refused():
    law = ldp.RandomizedResponse(2, 1.0)
    good = ldp.stats.ProportionDifference(0.1, 0.2)
    cases = [
        lambda: ldp.stats.rows_for(ldp.stats.ProportionDifference(0.1, 0.1), law),
        lambda: ldp.stats.ProportionDifference(0.1, 1.2),
        lambda: ldp.stats.rows_for(good, law, power=0.01),
        lambda: ldp.stats.rows_for(good, ldp.PriorSplit(4, 1.0)),
        lambda: ldp.stats.rows_for(good, "rr"),
        lambda: ldp.stats.power(good, law, 0),
        lambda: ldp.stats.rows_for(
            ldp.stats.MeanDifference(1.0, [1, 2, 3], [1.0] * 3), RROnBins(3, 0.5)
        ),
        lambda: ldp.stats.rows_for(
            ldp.stats.MeanDifference(1.0, [1, 2], [1.0] * 2), ldp.Threshold(3, 0.5)
        ),
        lambda: ldp.stats.rows_for(ldp.stats.MeanDifference(1e-200, [0, 1], [1, 1]), None),
        lambda: ldp.stats.MeanDifference(1.0, [1, 2], [1.0]),
        lambda: ldp.stats.MeanDifference(1.0, [1, 2], [0.0, 0.0]),
    ]
    for call in cases:
        with pytest.raises(InvalidInput):
            call()
