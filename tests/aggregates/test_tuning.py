# SPDX-License-Identifier: Apache-2.0
"""Repeat-and-select: its cost against the published formula, and the number of runs as it is
drawn."""

import math
import sys

import numpy as np
import pytest
from scipy.stats import chi2
from tests.aggregates.exact import geometric_law

from labeldp.aggregates._tuning import RepeatAndSelect
from labeldp.errors import InvalidInput, MissingExtra
from labeldp.testing import CounterWords

dp_accounting = pytest.importorskip("dp_accounting", reason="needs labeldp[central]")


def gamma_of(mean: float, shape: float) -> float:
    """gamma of the truncated negative binomial with this mean: its mean falls in gamma, so
    bisect."""

    def mean_of(g: float) -> float:
        return (
            (1 / g - 1) / math.log(1 / g) if shape == 0 else shape * (1 - g) / (g * (1 - g**shape))
        )

    low, high = 1e-12, 1 - 1e-12
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_of(middle) > mean else (low, middle)
    return low


def published_bound(
    orders: np.ndarray, rdp: np.ndarray, mean: float, shape: float, delta: float
) -> float:
    """Theorem 2 of Papernot and Steinke over these orders, converted by Proposition 12 of Canonne,
    Kamath, Steinke."""
    constant = (1 + shape) * np.min(
        (1 - 1 / orders) * rdp + math.log(1 / gamma_of(mean, shape)) / orders
    )
    whole = rdp + math.log(mean) / (orders - 1) + constant
    return float(
        np.min(whole + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1))
    )


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("mean", [2.0, 20.0, 500.0])
@pytest.mark.parametrize("noise", [1.0, 10.0])
def test_the_accountant_is_the_published_formula(shape: float, mean: float, noise: float) -> None:
    accountant = dp_accounting.rdp.RdpAccountant()
    orders = np.array([a for a in accountant._orders if a > 1.01])
    wanted = published_bound(orders, orders / (2 * noise**2), mean, shape, 1e-6)
    found = RepeatAndSelect(mean, shape).epsilon(dp_accounting.GaussianDpEvent(noise), 1e-6)
    assert wanted * (1 - 1e-6) <= found <= wanted * (1 + 1e-4)


@pytest.mark.parametrize(("shape", "cost"), [(0.0, 2.0), (0.5, 2.5), (1.0, 3.0), (2.0, 4.0)])
def test_pure_epsilon_is_two_plus_shape_times_as_much(shape: float, cost: float) -> None:
    tuned = RepeatAndSelect(10.0, shape)
    assert tuned.pure_epsilon(1.0) == cost
    assert tuned.epsilon(1.0, 1e-12) <= cost
    laplace = tuned.epsilon(dp_accounting.LaplaceDpEvent(1.0), 1e-300)
    assert laplace >= cost * 0.99  # at a vanishing delta nothing is cheaper
    assert (
        tuned.epsilon(0.01, 1e-5) < tuned.pure_epsilon(0.01)
        or shape == 0.0
        or tuned.epsilon(0.01, 1e-5) == tuned.pure_epsilon(0.01)
    )


def test_the_geometric_case_keeps_its_promise_exactly() -> None:
    """Randomized response at epsilon, scored by its bit, repeated and selected: the exact ratio of
    both outcomes is within 3 epsilon."""
    for epsilon in (0.1, 1.0, 3.0):
        keep = math.exp(epsilon) / (1 + math.exp(epsilon))
        chances = geometric_law(8.0, 4000)
        # all runs give the low score
        zero = [
            sum(float(p) * miss ** (k + 1) for k, p in enumerate(chances))
            for miss in (1 - keep, keep)
        ]
        ratio = max(math.log(zero[1] / zero[0]), math.log((1 - zero[0]) / (1 - zero[1])))
        assert ratio <= RepeatAndSelect(8.0).pure_epsilon(epsilon)
        assert ratio > epsilon  # so tuning is not free


def test_poisson_has_no_pure_guarantee() -> None:
    tuned = RepeatAndSelect(10.0, math.inf)
    assert tuned.pure_epsilon(0.5) == math.inf
    assert 0 < tuned.epsilon(0.1, 1e-6) < math.inf


def test_the_number_of_runs_is_geometric() -> None:
    """10,000 draws, chi-square at 1e-6; 1.3 times the mean is rejected."""
    tuned, n = RepeatAndSelect(4.0), 10_000
    drawn = np.array([tuned.repeats(CounterWords(np.array([i]), seed=5)) for i in range(n)])

    def statistic(mean: float) -> float:
        law = np.array([float(p) for p in geometric_law(mean, 19)])
        expected = n * np.append(law, 1 - law.sum())
        seen = np.bincount(np.minimum(drawn, 20), minlength=21)[1:]
        return float(((seen - expected) ** 2 / expected).sum())

    limit = float(chi2.isf(1e-6, 19))
    assert statistic(4.0) < limit < statistic(5.2)
    assert sum(geometric_law(4.0, 500)) <= 1


def test_numbers_of_any_kind_are_taken() -> None:
    words = CounterWords(np.array([1]))
    assert RepeatAndSelect(np.float32(3), np.int64(1)).repeats(words) == RepeatAndSelect(3).repeats(
        words
    )
    assert RepeatAndSelect(3, np.int64(0)) == RepeatAndSelect(3.0, 0.0)


def test_the_best_run_wins() -> None:
    tuned, stream = RepeatAndSelect(30.0), CounterWords(np.array([2]))
    scores = [math.nan, 0.1, 0.7, math.nan, 0.7, *np.linspace(0, 0.6, 2000)]
    asked: list[int] = []

    def run(i: int) -> tuple[float, int]:
        asked.append(i)
        return scores[i], i

    best = tuned.select(run, stream)
    count = tuned.repeats(CounterWords(np.array([2])))
    assert asked == list(range(count))
    assert best == {1: 0, 2: 1}.get(count, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RepeatAndSelect(1.0), "mean > 1"),
        (lambda: RepeatAndSelect(math.nan), "mean"),
        (lambda: RepeatAndSelect(3.0, -0.5), "shape"),
        (lambda: RepeatAndSelect(3.0, math.nan), "shape"),
        (lambda: RepeatAndSelect(3.0).pure_epsilon(0.0), "epsilon"),
        (lambda: RepeatAndSelect(3.0).epsilon(1.0, 0.0), "delta"),
        (
            lambda: RepeatAndSelect(3.0).epsilon(dp_accounting.NonPrivateDpEvent(), 1e-5),
            "inf|knows",
        ),
        (lambda: RepeatAndSelect(3.0).epsilon("gaussian", 1e-5), "knows"),
        (lambda: RepeatAndSelect(3.0).epsilon(dp_accounting.UnsupportedDpEvent(), 1e-5), "knows"),
        (lambda: RepeatAndSelect(3.0, 0.0).repeats(CounterWords(np.array([0]))), "geometric"),
        (lambda: RepeatAndSelect(3.0).repeats(CounterWords(np.arange(2))), "one row"),
    ],
)
def test_bad_input(make, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        result = make()
        if result == math.inf:  # an event without privacy costs infinitely much
            raise InvalidInput("inf")


def test_without_the_extra_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MissingExtra, match=r"labeldp\[central\]"):
        RepeatAndSelect(3.0).epsilon(1.0, 1e-5)
    assert RepeatAndSelect(3.0).pure_epsilon(1.0) == 3.0
