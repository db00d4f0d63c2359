# SPDX-License-Identifier: Apache-2.0
"""Uniform ordered samples of distinct classes, exactly, from a row's counter stream.

A partial Fisher-Yates shuffle: step i swaps class position i with position i + j, j uniform below K - i. j is the high half of
word x (K - i); the word is rejected, and the next attempt's word taken, where the low half is below 2^64 mod (K - i), so j is exactly
uniform. Step i, attempt t uses word counter first + i + t x steps: nothing depends on a label.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from labeldp.laws import words as arithmetic
from labeldp.laws.base import Words
from labeldp.laws.exact import WORD

_BYTES = 1 << 22  # of the shuffled positions that are worked on at a time
_FEWEST = 64  # rows at a time at least, so that long shuffles still spread the cost of a step over many rows


def row_blocks(n_rows: int, n_classes: int) -> Iterator[NDArray[np.intp]]:
    """Positions of the rows that are shuffled together: bounded memory, at most 2 to 4 bytes x K x rows."""
    step = max(_FEWEST, _BYTES // (n_classes * position_type(n_classes).itemsize))
    for start in range(0, n_rows, step):
        yield np.arange(start, min(start + step, n_rows))


def position_type(n_classes: int) -> np.dtype[np.unsignedinteger]:
    """The smallest type that holds a class index."""
    return np.dtype(np.uint16 if n_classes <= 1 << 16 else np.uint32)


def below(words: Words, bound: int, counter: int, stride: int) -> NDArray[np.intp]:
    """A uniform whole number below `bound` for every row, from word numbers counter, counter + stride, ..."""
    factor, reject = np.uint64(bound), np.uint64(WORD % bound)
    high, low = arithmetic.multiply(words.take(counter), factor)
    rows = np.flatnonzero(low < reject)
    while len(rows):
        counter += stride
        again, low = arithmetic.multiply(words.take(counter, rows), factor)
        high[rows] = again
        rows = rows[low < reject]
    return high.astype(np.intp)


def ordered_sample(words: Words, n_classes: int, steps: int, first: int) -> NDArray[np.unsignedinteger]:
    """The first `steps` entries of a uniform shuffle of the classes, for every row: (steps, n)."""
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
