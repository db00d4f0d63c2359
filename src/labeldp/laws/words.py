# SPDX-License-Identifier: Apache-2.0
"""Exact arithmetic on uniform 64-bit words, and public words of numbered rows."""

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def multiply(words: U64, factor: U64 | np.uint64) -> tuple[U64, U64]:
    """words x factor as (high, low) 64-bit halves; factor < 2^32."""
    low = (words & _LOW) * factor
    high = (words >> _HALF) * factor + (low >> _HALF)
    return high >> _HALF, words * factor


def equal_cell(words: U64, cells: U64 | np.uint64) -> NDArray[np.int64]:
    """Which of `cells` equal parts of [0, 2^64) a word falls in: j where floor(j 2^64 / k) <= word < floor((j + 1) 2^64 / k)."""
    high, low = multiply(words, cells)
    carry = low > ~(cells - np.uint64(1))  # floor(((word + 1) k - 1) / 2^64)
    return (high + carry).astype(np.int64)


def unit(words: U64) -> NDArray[np.float64]:
    """Words as numbers in [0, 1), exactly: multiples of 2^-53."""
    return np.asarray((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def hashed(rows: NDArray[np.int64], counter: int, seed: int) -> U64:
    """SplitMix64 over (row, counter, seed): public, so it protects nothing."""
    offset = np.uint64((counter * 0xD1B54A32D192ED03 + seed * 0x8CB92BA72F3D8DD7 + 0x9E3779B97F4A7C15) % 2**64)
    state = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + offset
    for _ in range(2):
        state = (state ^ (state >> np.uint64(30))) * np.uint64(_MIX[0])
        state = (state ^ (state >> np.uint64(27))) * np.uint64(_MIX[1])
        state ^= state >> np.uint64(31)
    return state


class PlainWords:
    """Public words of numbered rows, where a law is looked at without a run: implements `labeldp.laws.base.Words`."""

    def __init__(self, rows: NDArray[np.int64]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, counter: int, rows: NDArray[np.intp] | None = None) -> U64:
        """Word number `counter` of every row, or of the rows at these positions."""
        return hashed(self._rows if rows is None else self._rows[rows], counter, 0)

    def select(self, rows: NDArray[np.intp]) -> "PlainWords":
        """The streams of the rows at these positions."""
        return PlainWords(self._rows[rows])
