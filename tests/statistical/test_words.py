# SPDX-License-Identifier: Apache-2.0
"""Words are uniform, parts have their shares, and streams are independent. Seeded, so that each
verdict is the same every time."""

import numpy as np
import pytest
from scipy import stats

from labeldp.noise import _words as noise

FALSE_ALARM = 1e-6
ROWS = 200_000
SECRET = noise.SeededNoise(2026).secret()
BLOCKS = noise.row_blocks(ROWS)


def words(purpose: str = "order", counter: int = 0) -> np.ndarray:
    return noise.RowWords(noise.derive_key(SECRET, purpose=purpose, facts={}), BLOCKS).take(counter)


def p_value(counts: np.ndarray, shares: np.ndarray) -> float:
    return float(stats.chisquare(counts, shares * counts.sum()).pvalue)


@pytest.mark.parametrize("counter", [0, 1, 2, 33554431])
@pytest.mark.parametrize("shift", [0, 8, 28, 56])
def test_bytes_of_words_are_uniform(counter: int, shift: int) -> None:
    counts = np.bincount(
        ((words(counter=counter) >> np.uint64(shift)) & np.uint64(255)).astype(int), minlength=256
    )
    assert p_value(counts, np.full(256, 1 / 256)) > FALSE_ALARM
    counts[0] *= 2  # the test can fail: one value twice as frequent
    assert p_value(counts, np.full(256, 1 / 256)) < FALSE_ALARM


def top(drawn: np.ndarray) -> np.ndarray:
    return (drawn >> np.uint64(60)).astype(int)


@pytest.mark.parametrize("other", [("order", 1), ("order", 2), ("another", 0)])
def test_streams_are_independent(other: tuple[str, int]) -> None:
    one, two = top(words()), top(words(*other))
    counts = np.bincount(16 * one + two, minlength=256)
    assert p_value(counts, np.full(256, 1 / 256)) > FALSE_ALARM


def test_neighbouring_rows_are_independent() -> None:
    drawn = top(words())
    counts = np.bincount(16 * drawn[:-1:2] + drawn[1::2], minlength=256)
    assert p_value(counts, np.full(256, 1 / 256)) > FALSE_ALARM


@pytest.mark.parametrize(
    "fractions", [[0.6, 0.4], [0.5, 0.3, 0.2], [0.01, 0.99], [1.0], [0.1] * 10]
)
def test_parts_have_their_shares(fractions: list[float]) -> None:
    parts = noise.partition(
        noise.derive_key(SECRET, purpose="partition", facts={}), BLOCKS, fractions
    )
    assert parts.dtype == np.int16
    counts = np.bincount(parts, minlength=len(fractions))
    assert len(counts) == len(fractions)
    assert len(fractions) == 1 or p_value(counts, np.array(fractions)) > FALSE_ALARM
    if len(fractions) > 1:
        wrong = np.array(fractions)
        wrong[0] *= 1.3
        assert p_value(counts, wrong / wrong.sum()) < FALSE_ALARM


def test_parts_do_not_depend_on_the_words_of_the_draw() -> None:
    parts = noise.partition(
        noise.derive_key(SECRET, purpose="partition", facts={}), BLOCKS, [0.5, 0.5]
    )
    counts = np.bincount(16 * parts + top(words()), minlength=32)
    assert p_value(counts, np.full(32, 1 / 32)) > FALSE_ALARM
