# SPDX-License-Identifier: Apache-2.0
"""The samplers that run: their laws, two-sided, with a stated rate of false alarms; and their exact
decisions where a word is close."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from labeldp.aggregates._discrete import (
    WIDEST,
    Coins,
    _geometric,
    discrete_gaussian,
    discrete_laplace,
    exp_bounds,
    exp_coin,
)
from labeldp.errors import InvalidInput
from labeldp.noise import _words as noise

FALSE_ALARM = 1e-6
DRAWS = 200_000


def coins(seed: int = 0, n: int = DRAWS) -> Coins:
    key = noise.derive_key(
        noise.SeededNoise(seed).secret(), purpose="aggregate", facts={"test": "discrete"}
    )
    return Coins(noise.RowWords(key, noise.row_blocks(n)))


def laplace_weights(k: np.ndarray, a: float) -> np.ndarray:
    return math.tanh(a / 2) * np.exp(-a * np.abs(k))


def gaussian_weights(k: np.ndarray, variance: float) -> np.ndarray:
    everything = np.arange(-2000, 2001)
    return np.exp(-(k**2) / (2 * variance)) / np.exp(-(everything**2) / (2 * variance)).sum()


def p_value(drawn: np.ndarray, weights: Callable[[np.ndarray], np.ndarray]) -> float:
    """Chi-square of the values that are expected at least 20 times, and one class of all others."""
    reach = np.arange(-400, 401)
    shares = weights(reach)
    often = shares * len(drawn) >= 20
    if often.sum() < 2:
        often = shares >= np.sort(shares)[-2]
    counts = np.array([np.count_nonzero(drawn == k) for k in reach[often]])
    observed = np.append(counts, len(drawn) - counts.sum())
    expected = np.append(shares[often], max(1 - shares[often].sum(), 1e-12)) * len(drawn)
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


@pytest.mark.parametrize("a", [Fraction(1, 40), Fraction(1, 3), Fraction(1), Fraction(5, 2)])
def test_laplace_noise_has_its_law_and_no_other(a: Fraction) -> None:
    drawn = discrete_laplace(coins(), a)
    assert p_value(drawn, lambda k: laplace_weights(k, float(a))) > FALSE_ALARM
    assert p_value(drawn, lambda k: laplace_weights(k, float(a) * 1.3)) < FALSE_ALARM
    assert p_value(drawn, lambda k: laplace_weights(k, float(a) / 1.3)) < FALSE_ALARM


@pytest.mark.parametrize("digits", [0, 1, 3])
@pytest.mark.parametrize("a", [Fraction(1, 10), Fraction(1, 2)])
def test_laplace_noise_has_its_law_however_many_digits_are_drawn(a: Fraction, digits: int) -> None:
    """Few digits, so that most draws go beyond them, which happens once in 10^28 at the number that
    releases use."""
    drawn = discrete_laplace(coins(digits + 1), a, digits)
    assert np.count_nonzero(np.abs(drawn) >= 1 << digits) > DRAWS / 100
    assert p_value(drawn, lambda k: laplace_weights(k, float(a))) > FALSE_ALARM
    assert p_value(drawn, lambda k: laplace_weights(k, float(a) * 1.3)) < FALSE_ALARM
    assert p_value(drawn, lambda k: laplace_weights(k, float(a) / 1.3)) < FALSE_ALARM


class Script(Coins):
    """Coins of one row that fall as it is written down, and the probability that they do: bounds of
    it, 2^-200 apart for each coin."""

    def __init__(self, falls: tuple[bool, ...]) -> None:
        self.falls, self.chance = list(falls), (Fraction(1), Fraction(1))

    def __len__(self) -> int:
        return 1

    def flip(self, rows: np.ndarray, near: object, bounds: Callable) -> np.ndarray:
        if not self.falls:
            raise EOFError
        heads = self.falls.pop(0)
        low, high = bounds(0)(200)
        low, high = (low, high) if heads else (1 - high, 1 - low)
        self.chance = (self.chance[0] * low, self.chance[1] * high)
        return np.array([heads])


def law_that_runs(
    draw: Callable[[Coins], np.ndarray], flips: int
) -> dict[int, tuple[Fraction, Fraction]]:
    """Bounds of the probability of each value that at most so many coins lead to, over all ways in
    which they can fall."""
    law: dict[int, tuple[Fraction, Fraction]] = {}
    begun: list[tuple[bool, ...]] = [()]
    while begun:
        falls = begun.pop()
        script = Script(falls)
        try:
            value = int(draw(script)[0])
        except EOFError:
            begun += [(*falls, heads) for heads in (False, True)] if len(falls) < flips else []
        else:
            low, high = law.get(value, (Fraction(0), Fraction(0)))
            law[value] = (low + script.chance[0], high + script.chance[1])
    return law


@pytest.mark.parametrize("digits", [0, 1, 2, 3])
@pytest.mark.parametrize("a", [Fraction(1), Fraction(1, 40)])
def test_geometric_numbers_have_their_law_beyond_their_digits(a: Fraction, digits: int) -> None:
    """By exact fractions: every way in which up to 10 coins can fall, so that up to 9 of them say
    what is beyond the digits."""
    law = law_that_runs(lambda given: _geometric(given, np.arange(1), a, digits), 10)
    assert sorted(law) == list(range((10 - digits) << digits))
    for k, (low, high) in law.items():
        less, more = (
            (1 - q) * p
            for p, q in zip(exp_bounds(a * k, 150), reversed(exp_bounds(a, 150)), strict=True)
        )
        assert less <= high
        assert low <= more
        assert high - low < Fraction(1, 2**190)


@pytest.mark.parametrize("digits", [0, 1, 2])
def test_laplace_noise_changes_by_exactly_its_epsilon_beyond_its_digits(digits: int) -> None:
    """By exact fractions at a = 2: what all ways in which up to 12 coins can fall come to, and what
    is left over."""
    a = Fraction(2)
    law = law_that_runs(lambda given: discrete_laplace(given, a, digits), 12)
    left = 1 - sum(low for low, _ in law.values())
    assert left < Fraction(1, 10**4)
    for k, (low, high) in law.items():
        true = math.tanh(1.0) * math.exp(-2 * abs(k))
        assert float(low) <= true * (1 + 1e-12)
        assert true <= float(high + left) * (1 + 1e-12)
    inner = [k for k in law if abs(k) < 4]
    assert all(
        abs(math.log(law[k][0] / law[k + 1][0])) == pytest.approx(2.0, abs=0.01) for k in inner
    )


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(1), Fraction(9, 2), Fraction(100)])
def test_gaussian_noise_has_its_law_and_no_other(variance: Fraction) -> None:
    drawn = discrete_gaussian(coins(), variance)
    assert p_value(drawn, lambda k: gaussian_weights(k, float(variance))) > FALSE_ALARM
    assert p_value(drawn, lambda k: gaussian_weights(k, float(variance) * 1.3)) < FALSE_ALARM
    assert p_value(drawn, lambda k: gaussian_weights(k, float(variance) / 1.3)) < FALSE_ALARM


@pytest.mark.parametrize("scale", [0.7, 3.0, 40.0])
def test_the_same_laws_as_opendp(scale: float) -> None:
    """Two samples, ours and that of a vetted library, which has no seed: an alarm once in 10^9
    runs."""
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
    theirs = np.array((space >> dp.m.then_laplace(scale=scale))([0] * 20_000))
    ours = discrete_laplace(coins(1, 20_000), Fraction(scale) ** -1)
    assert two_samples(ours, theirs) > 1e-9
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    theirs = np.array((space >> dp.m.then_gaussian(scale=scale))([0] * 20_000))
    ours = discrete_gaussian(coins(2, 20_000), Fraction(scale) ** 2)
    assert two_samples(ours, theirs) > 1e-9
    assert (
        two_samples(
            discrete_gaussian(coins(3, 20_000), (Fraction(scale) * Fraction(13, 10)) ** 2), theirs
        )
        < 1e-9
    )


def two_samples(one: np.ndarray, two: np.ndarray) -> float:
    edges = np.unique(np.quantile(np.concatenate([one, two]), np.linspace(0, 1, 30)))
    table = np.array([np.histogram(each, np.append(edges, np.inf))[0] for each in (one, two)])
    return float(stats.chi2_contingency(table[:, table.sum(axis=0) > 10]).pvalue)


@pytest.mark.parametrize("gap", [0, 1, 3, 50])
def test_a_coin_falls_as_often_as_it_should(gap: int) -> None:
    heads = exp_coin(coins(), np.arange(DRAWS), Fraction(1, 2), np.full(DRAWS, gap)).sum()
    assert stats.binomtest(int(heads), DRAWS, math.exp(-gap / 2)).pvalue > FALSE_ALARM
    if 0 < gap < 50:
        assert stats.binomtest(int(heads), DRAWS, math.exp(-gap / 2) * 1.05).pvalue < FALSE_ALARM


class Given:
    """Words as they are written down, for one row: implements `labeldp.laws._exact.Words`."""

    def __init__(self, *words: int) -> None:
        self.words = words

    def __len__(self) -> int:
        return 1

    def take(self, counter: int, rows: np.ndarray | None = None) -> np.ndarray:
        return np.array([self.words[counter]], np.uint64)

    def select(self, rows: np.ndarray) -> "Given":
        return self


@pytest.mark.parametrize("x", [Fraction(1, 40), Fraction(1), Fraction(7, 3), Fraction(30)])
def test_close_words_are_decided_by_the_further_digits(x: Fraction) -> None:
    """The probability's own binary digits, one unit up or down in the 64th, the 128th and the 192nd
    place."""
    low, high = exp_bounds(x, 400)
    digits = math.floor(low * 2**192)
    assert digits == math.floor(high * 2**192)
    words = [digits >> 128, digits >> 64 & (2**64 - 1), digits & (2**64 - 1)]

    def falls(*given: int) -> bool:
        return bool(exp_coin(Coins(Given(*given)), np.arange(1), x, np.ones(1, np.int64))[0])

    assert falls(words[0] - 1)
    assert not falls(words[0] + 1)
    assert falls(words[0], words[1] - 1)
    assert not falls(words[0], words[1] + 1)
    assert falls(*words[:2], words[2] - 1)
    assert not falls(*words[:2], words[2] + 1)


@pytest.mark.parametrize(
    "x", [Fraction(0), Fraction(1, 10**9), Fraction(1), Fraction(100, 3), Fraction(10**12)]
)
@pytest.mark.parametrize("bits", [64, 128, 1000])
def test_bounds_hold_and_are_as_close_as_they_say(x: Fraction, bits: int) -> None:
    low, high = exp_bounds(x, bits)
    finer = exp_bounds(x, 3 * bits)
    assert 0 <= low <= finer[0] <= finer[1] <= high <= 1
    assert high - low <= Fraction(1, 2**bits)
    assert float(low) <= math.exp(-float(x)) * (1 + 1e-13) + 1e-300


@pytest.mark.parametrize(
    "x", [Fraction(1, 3), Fraction(7, 3), Fraction(100, 7), Fraction(1, 10**9)]
)
def test_bounds_hold_the_series_in_exact_fractions(x: Fraction) -> None:
    """e^x as its series, cut where what is left is below 2^-700."""
    term, total, k = Fraction(1), Fraction(0), 0
    while k < 2 * x or term > Fraction(1, 2**700):
        total += term
        k += 1
        term = term * x / k
    low, high = exp_bounds(x, 500)
    assert low <= 1 / (total + 2 * term)
    assert 1 / total <= high


def test_uniform_numbers_are_uniform() -> None:
    counts = np.bincount(coins().below(np.arange(DRAWS), 7), minlength=7)
    assert len(counts) == 7
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_how_many_words_are_taken_is_the_same_for_every_row_of_laplace_noise() -> None:
    one = coins()
    discrete_laplace(one, Fraction(1, 40))
    assert one._next == 2 * (math.ceil(math.log2(64 * 40)) + 1)


def test_seeded_noise_is_the_same_again() -> None:
    """Kept draws: what one release drew from a seed, every later one draws."""
    assert discrete_laplace(coins(5, 8), Fraction(1, 40)).tolist() == KEPT_LAPLACE
    assert discrete_gaussian(coins(5, 8), Fraction(100)).tolist() == KEPT_GAUSSIAN


KEPT_LAPLACE = [8, 35, -66, 13, 87, -13, -59, 6]
KEPT_GAUSSIAN = [-4, -7, 8, 13, -6, 11, 3, 2]


def test_noise_that_would_leave_64_bits_is_refused() -> None:
    assert np.abs(discrete_laplace(coins(n=100), Fraction(1, WIDEST))).max() > WIDEST
    assert np.abs(discrete_gaussian(coins(n=100), Fraction(WIDEST) ** 2)).max() > WIDEST
    with pytest.raises(InvalidInput, match="at most 2\\^53"):
        discrete_laplace(coins(n=3), Fraction(1, WIDEST + 1))
    with pytest.raises(InvalidInput, match="at most 2\\^53"):
        discrete_gaussian(coins(n=3), Fraction(WIDEST) ** 2 + 1)


@pytest.mark.parametrize("scale", [Fraction(0), Fraction(-1), 1.0, math.nan])
def test_no_noise_and_inexact_noise_are_refused(scale: object) -> None:
    for draw in (discrete_laplace, discrete_gaussian):
        with pytest.raises(InvalidInput, match="exact Fraction"):
            draw(coins(n=3), scale)
