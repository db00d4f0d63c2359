# SPDX-License-Identifier: Apache-2.0
"""Repeat-and-select: what it costs, and the number of runs as it is drawn."""

import math

import numpy as np
import pytest
from scipy.stats import chi2
from tests.aggregates.exact import geometric_law

from labeldp.errors import InvalidInput
from labeldp.papers.ghazi2021 import RepeatAndSelect
from labeldp.testing import CounterWords


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
    assert RepeatAndSelect(np.float32(3)).repeats(words) == RepeatAndSelect(3).repeats(words)


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
        (lambda: RepeatAndSelect(3.0).pure_epsilon(0.0), "epsilon"),
        (lambda: RepeatAndSelect(3.0).repeats(CounterWords(np.arange(2))), "one row"),
    ],
)
def test_bad_input(make, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()
