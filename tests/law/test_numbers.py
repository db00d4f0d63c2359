# SPDX-License-Identifier: Apache-2.0
"""Laws for numbers and other ordered classes: thresholds, optimal bins, unbiased numbers, bounded Laplace noise."""

from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2

import labeldp as ldp
from labeldp.laws import WORD, BoundedLaplace, exp_floor
from labeldp.laws._exact import unpack_sets
from labeldp.laws._laplace import laplace_words
from labeldp.testing import CounterWords

FALSE_ALARM = 1e-6


# Threshold --------------------------------------------------------------------------------------------------------------------------------


def test_thresholds_without_a_prior_are_uniform() -> None:
    """Chi-square of 100,000 public thresholds over 1..K-1, false alarm 1e-6; words are fixed, so the result always is the same."""
    k, n = 20, 100_000
    law = ldp.Threshold(k, 1.0)
    split = unpack_sets(law.prepare(np.broadcast_to(1.0, (n, k)), CounterWords(np.arange(n)))["split"], k)
    assert (split[:, 1:] >= split[:, :-1]).all(), "each set is 'at least t'"
    assert not split[:, 0].any()
    assert split[:, -1].all()
    counts = np.bincount(k - split.sum(axis=1), minlength=k)[1:]
    assert ((counts - n / (k - 1)) ** 2 / (n / (k - 1))).sum() < chi2.isf(FALSE_ALARM, k - 2)


def test_thresholds_with_a_prior_are_those_of_the_ordered_split() -> None:
    rng = np.random.default_rng(0)
    prior = rng.dirichlet(np.ones(12), 500)
    words = CounterWords(np.arange(500))
    found, split = (law.prepare(prior, words)["split"] for law in (ldp.Threshold(12, 1.5), ldp.PriorSplit(12, 1.5, ordered=True)))
    assert np.array_equal(found, split)


def test_the_distribution_of_a_number_is_learned_from_thresholds() -> None:
    """For every t, the share of true answers to "at least t" among the rows that were asked estimates P[at least t] within 6 sigma."""
    grid, eps, n = ldp.Grid(0, 1, 9), 1.0, 40_000
    values = np.random.default_rng(1).beta(2, 5, n)
    noisy = ldp.privatize(values, ldp.Threshold(9, eps), classes=grid, noise=ldp.SeededNoise(5))
    (block,) = noisy.blocks
    t = 9 - unpack_sets(block.side["split"], 9).sum(axis=1)
    yes = (block.outputs == block.side["split"]).all(axis=1)
    p = np.exp(eps) / (1 + np.exp(eps))
    true = grid.codes(values)
    for threshold in range(1, 9):
        asked = t == threshold
        found, m = (yes[asked].mean() - (1 - p)) / (2 * p - 1), asked.sum()
        assert abs(found - (true >= threshold).mean()) < 6 * 0.5 / np.sqrt(m) / (2 * p - 1)


@pytest.mark.parametrize("k", [2, 9, 64])
def test_a_threshold_keeps_its_claim(k: int) -> None:
    law = ldp.Threshold(k, 0.7)
    assert ldp.exact_epsilon(law.matrix(exact=True)) <= 0.7
    assert law.exact_epsilon() <= 0.7
    assert law.outputs().shape == (2, k)


# BoundedLaplace ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "epsilon"), [(2, 0.1), (16, 1.0), (64, 4.0), (100, 25.0), (200, 1e-3)])
def test_bounded_laplace_is_certified_and_tight(k: int, epsilon: float) -> None:
    """In whole numbers the worst ratio is at most e^epsilon, and within a millionth of it: no narrower noise of this form is allowed."""
    words = laplace_words(epsilon, k)
    assert all(sum(row) == WORD for row in words)
    worst = max(Fraction(max(column), min(column)) for column in zip(*words, strict=True))
    assert worst <= exp_floor(epsilon)
    assert epsilon * (1 - 1e-6) < BoundedLaplace(k, epsilon).exact_epsilon() <= epsilon


def test_bounded_laplace_is_the_formula() -> None:
    k, epsilon = 7, 1.3
    away = np.abs(np.arange(k)[:, None] - np.arange(k))
    wanted = np.exp(-epsilon * away / (k - 1))
    wanted /= wanted.sum(axis=1, keepdims=True)
    assert np.allclose(BoundedLaplace(k, epsilon).matrix(), wanted, rtol=1e-12, atol=0)


def test_bounded_laplace_refuses_what_it_cannot_honour() -> None:
    with pytest.raises(ldp.InvalidInput, match="64-bit words can honour"):
        BoundedLaplace(5, 60.0)
    with pytest.raises(ldp.InvalidInput, match="at most 1000 classes"):
        BoundedLaplace(1001, 1.0)
