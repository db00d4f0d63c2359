# SPDX-License-Identifier: Apache-2.0
"""Repeat-and-select: what it costs, and the number of runs as it is drawn."""

import math

import numpy as np
import pytest
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


def test_numbers_of_any_kind_are_taken() -> None:
    words = CounterWords(np.array([1]))
    assert RepeatAndSelect(np.float32(3)).repeats(words) == RepeatAndSelect(3).repeats(words)


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
