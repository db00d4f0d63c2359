# SPDX-License-Identifier: Apache-2.0
"""Exact arithmetic on uniform 64-bit words: whole numbers below a bound, ordered samples of classes, and public words of numbered rows.

A uniform whole number below k is the high half of word x k. The word is rejected, and the next attempt's taken, where the low half is below
2^64 mod k, so that every number has as many words. An ordered sample is a partial Fisher-Yates shuffle: step i swaps class position i with
position i + j, j uniform below K - i. Step i, attempt t uses word counter first + i + t x steps: nothing depends on a label.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from labeldp.laws._base import Words
from labeldp.laws._exact import WORD

U64 = NDArray[np.uint64]
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of SplitMix64
_BYTES = 1 << 22  # of the shuffled positions that are worked on at a time
_FEWEST = 64  # rows at a time at least, so that long shuffles still spread the cost of a step over many rows


def multiply(words: U64, factor: U64 | np.uint64) -> tuple[U64, U64]:
    """Multiply words by a factor < 2^32, exactly: (high, low) 64-bit halves."""
    low = (words & _LOW) * factor  # 32 x 32 bits, so that no product leaves 64
    high = (words >> _HALF) * factor + (low >> _HALF)
    return high >> _HALF, words * factor


def equal_cell(words: U64, cells: U64 | np.uint64) -> NDArray[np.int64]:
    """Find which of `cells` equal parts of [0, 2^64) a word falls in: j where floor(j 2^64 / k) <= word < floor((j + 1) 2^64 / k)."""
    high, low = multiply(words, cells)
    carry = low > ~(cells - np.uint64(1))  # floor(((word + 1) k - 1) / 2^64)
    return (high + carry).astype(np.int64)


def unit(words: U64) -> NDArray[np.float64]:
    """Read words as numbers in [0, 1), exactly: multiples of 2^-53."""
    return np.asarray((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def row_blocks(n_rows: int, n_classes: int) -> Iterator[NDArray[np.intp]]:
    """Yield positions of rows that are shuffled together: bounded memory, at most 2 to 4 bytes x K x rows."""
    step = max(_FEWEST, _BYTES // (n_classes * position_type(n_classes).itemsize))
    for start in range(0, n_rows, step):
        yield np.arange(start, min(start + step, n_rows))


def position_type(n_classes: int) -> np.dtype[np.unsignedinteger]:
    """Choose the smallest type that holds a class index."""
    return np.dtype(np.uint16 if n_classes <= 1 << 16 else np.uint32)


def below(words: Words, bound: int, counter: int, stride: int) -> NDArray[np.intp]:
    """Draw a uniform whole number below `bound` for every row, from word numbers counter, counter + stride, ..."""
    factor, reject = np.uint64(bound), np.uint64(WORD % bound)
    high, low = multiply(words.take(counter), factor)
    rows = np.flatnonzero(low < reject)
    while len(rows):
        counter += stride
        again, low = multiply(words.take(counter, rows), factor)
        high[rows] = again
        rows = rows[low < reject]
    return high.astype(np.intp)


def ordered_sample(words: Words, n_classes: int, steps: int, first: int) -> NDArray[np.unsignedinteger]:
    """Draw the first `steps` entries of a uniform shuffle of the classes, for every row: (steps, n)."""
    n = len(words)
    order = np.empty((n_classes, n), dtype=position_type(n_classes))
    order[:] = np.arange(n_classes, dtype=order.dtype)[:, None]
    flat, columns = order.reshape(-1), np.arange(n)
    for i in range(steps):
        spot = below(words, n_classes - i, first + i, steps) if i < n_classes - 1 else np.zeros(n, dtype=np.intp)
        spot += i
        spot *= n
        spot += columns
        drawn = flat[spot]
        flat[spot] = order[i]
        order[i] = drawn
    return order[:steps]


def hashed(rows: NDArray[np.int64], counter: int, seed: int) -> U64:
    """Hash (row, counter, seed) by SplitMix64: public, so it protects nothing."""
    offset = np.uint64((counter * 0xD1B54A32D192ED03 + seed * 0x8CB92BA72F3D8DD7 + 0x9E3779B97F4A7C15) % 2**64)
    state = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + offset
    for _ in range(2):
        state = (state ^ (state >> np.uint64(30))) * np.uint64(_MIX[0])
        state = (state ^ (state >> np.uint64(27))) * np.uint64(_MIX[1])
        state ^= state >> np.uint64(31)
    return state


class PlainWords:
    """Public words of numbered rows, where a law is looked at without a run: implements `labeldp.laws._base.Words`."""

    def __init__(self, rows: NDArray[np.int64]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, counter: int, rows: NDArray[np.intp] | None = None) -> U64:
        """Return word number `counter` of every row, or of the rows at these positions."""
        return hashed(self._rows if rows is None else self._rows[rows], counter, 0)

    def select(self, rows: NDArray[np.intp]) -> "PlainWords":
        """Return the streams of the rows at these positions."""
        return PlainWords(self._rows[rows])
