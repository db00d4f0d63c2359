# SPDX-License-Identifier: Apache-2.0
"""How many of the 2^64 words lead to each kind of output; and randomized response on a candidate set, from one uniform word a row.

With k candidates and E = e^epsilon rounded down: b = ceil(2^64 / (E + k - 1)) and a = 2^64 - (k - 1) b. A word r < a keeps a label that
is a candidate; otherwise candidate number floor((r - a) / b) among the other k - 1 is released. A label outside the candidates releases
candidate j where floor(j 2^64 / k) <= r < floor((j + 1) 2^64 / k). Every probability is a whole number over 2^64 and a / b <= E.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.laws import _sets as sets
from labeldp.laws import _words as words
from labeldp.laws._exact import WORD, exp_floor, whole_above, whole_below

U64 = NDArray[np.uint64]
Ints = NDArray[np.int32]

_ROWS = 1 << 15  # rows at a time: a few buffers of 128 KiB
_SINGLE = 1 << 12  # up to this e^epsilon + K, single precision finds the cell with few rows in doubt
_DOUBLE = 1 << 30  # up to this one, double precision does, and cell numbers fit 32 bits


@lru_cache(maxsize=1 << 17)
def cells(epsilon: float, k: int) -> tuple[int, int]:
    """Count the words of 2^64 that keep a candidate, and those that lead to each other candidate: (a, b).

    InvalidInput where a label outside k candidates would be told from one inside by more than epsilon (k b > 2^64: epsilon < k^2 / 2^64).
    """
    b = whole_above(WORD / (exp_floor(epsilon) + k - 1))
    if k * b > WORD:
        least = f"about {k * k / WORD:.1g} or more"
        raise InvalidInput(f"Expected an epsilon that 64-bit words can honour with {k} candidates ({least}), got {epsilon!r}.")
    return WORD - (k - 1) * b, b


@lru_cache(maxsize=4096)
def inside_words(epsilon: float, n_classes: int, size: int) -> int:
    """Count m, the words of 2^64 that release a set of `size` with the label. InvalidInput where rounding m down exceeds epsilon."""
    e = exp_floor(epsilon)
    m = whole_below(WORD * e * size / (e * size + n_classes - size))
    if m * (n_classes - size) * e < (WORD - m) * size:
        least = n_classes / (size * WORD)
        raise InvalidInput(f"Expected an epsilon that 64-bit words can honour here (about {least:.1g} or more), got {epsilon!r}.")
    return m


def respond(labels: NDArray[np.integer], r: U64, candidates: sets.Bits, size: Ints, epsilon: float, n_classes: int) -> Ints:
    """Draw randomized response of each row on its packed candidate set.

    Both readings of the word, for a label inside and outside the candidates, are made for every row; only `where` looks at the label.
    """
    if not (size.min(initial=1) >= 1 and np.array_equal(sets.popcount(candidates), size)):
        raise InvalidInput(
            "Expected as many candidates as the side says, at least one in every row; the side was changed. Prepare it again."
        )
    last, step = _tables(epsilon, size, n_classes)
    # No branch and no look-up by the label: every row takes the same steps, so that neither time nor caches tell which label it has.
    inside = sets.contains(candidates, labels, n_classes)
    y = labels.astype(np.int32, copy=False)
    keep = r <= last[size]
    other = np.where(keep, np.uint64(0), (r - last[size] - np.uint64(1)) // step[size]).astype(np.int32)
    outer = words.equal_cell(r, size.astype(np.uint64))
    below, above, cell = sets.select(candidates, other, other + 1, outer)
    flipped = np.where(below < y, below, above)
    return np.where(inside, np.where(keep, y, flipped), cell).astype(np.int32, copy=False)


def _tables(epsilon: float, size: Ints, n_classes: int) -> tuple[U64, U64]:
    """Tabulate by number of candidates the last word that keeps (a - 1), and b; filled only for the sizes that occur."""
    last, step = np.zeros(n_classes + 1, dtype=np.uint64), np.ones(n_classes + 1, dtype=np.uint64)
    for k in np.flatnonzero(np.bincount(size)):
        a, b = cells(epsilon, int(k))
        last[k], step[k] = a - 1, b
    return last, step


def respond_to_all(labels: NDArray[np.integer], r: U64, epsilon: float, n_classes: int) -> Ints:
    """Draw randomized response on all classes: the same map of words to outputs, in few passes over cache-sized chunks.

    Counted from the top, r' = 2^64 - 1 - r lies in cell q = floor(r' / b), and the other class is number K - 2 - q; q > K - 2 keeps. q is
    found in floating point from the upper half of the word with certified bounds below and above; the few rows where the bounds
    disagree are divided in integers. Which rows those are depends on the words alone.
    """
    a, b = cells(epsilon, n_classes)
    out = np.empty(len(r), dtype=np.int32)
    total = WORD / b  # e^epsilon + K - 1: how many cells q can name
    if n_classes < 2 or total > _DOUBLE:
        for start in range(0, len(r), _ROWS):
            part = slice(start, start + _ROWS)
            out[part] = _by_division(labels[part], r[part], a, b)
        return out
    finder = _Finder(b, n_classes, np.float32 if total < _SINGLE else np.float64)
    for start in range(0, len(r), _ROWS):
        part = slice(start, start + _ROWS)
        finder.run(labels[part], r[part], out[part])
    return out


def _by_division(labels: NDArray[np.integer], r: U64, a: int, b: int) -> Ints:
    """Draw by the definition: one integer division a row."""
    keep = r <= np.uint64(a - 1)
    other = np.where(keep, np.uint64(0), (r - np.uint64(a - 1) - np.uint64(1)) // np.uint64(b)).astype(np.int32)
    y = labels.astype(np.int32, copy=False)
    return np.where(keep, y, other + (other >= y))


class _Finder:
    """Buffers and constants of `respond_to_all` for one law."""

    def __init__(self, b: int, n_classes: int, dtype: type[np.float32] | type[np.float64]) -> None:
        scale = 2.0**32 / b  # cells per unit of the upper half
        # x = (v + 2^31) scale, v the upper half of r' minus 2^31. The lower half is worth less than `scale`; the conversion, the product,
        # both constants and the sums are each off by at most half an ulp of the largest x: below 4 ulp together, doubled for good measure.
        slack = 8 * float(np.finfo(dtype).eps) * (WORD / b + 1)
        self.b, self.k = np.uint64(b), n_classes
        self.scale, self.low, self.gap = dtype(scale), dtype(2.0**31 * scale - slack), dtype(scale + 2 * slack)
        self.x = np.empty(_ROWS, dtype=dtype)
        self.cell, self.other = np.empty(_ROWS, dtype=np.int32), np.empty(_ROWS, dtype=np.int32)
        self.doubt = np.empty(_ROWS, dtype=np.bool_)

    def run(self, labels: NDArray[np.integer], r: U64, out: Ints) -> None:
        """Fill `out` for at most _ROWS rows."""
        n = len(r)
        q, other = self.cell[:n], self.other[:n]
        self._find(r, q, other)
        y = labels.astype(np.int32, copy=False)
        np.add(y, q, out=other)
        np.subtract(other, np.int32(self.k - 1), out=other)
        np.right_shift(other, np.int32(31), out=other)  # -1 where the other class, K - 2 - q, is y or above, else 0
        np.subtract(np.int32(self.k - 2), q, out=q)
        np.subtract(q, other, out=out)
        np.right_shift(q, np.int32(31), out=q)  # -1 where the label is kept, else 0
        np.bitwise_xor(out, y, out=other)
        np.bitwise_and(other, q, out=other)
        np.bitwise_xor(out, other, out=out)  # a choice without a branch

    def _find(self, r: U64, q: Ints, scratch: Ints) -> None:
        """Find the cell of each word, counted from the top."""
        x, doubt = self.x[: len(r)], self.doubt[: len(r)]
        upper = r.view(np.int32)[1::2] if np.little_endian else r.view(np.int32)[::2]
        np.bitwise_xor(upper, np.int32(0x7FFFFFFF), out=q)  # v: the upper half of r' = ~r as a signed number, so minus 2^31
        np.copyto(x, q, casting="unsafe")
        np.multiply(x, self.scale, out=x)
        np.add(x, self.low, out=x)
        np.copyto(q, x, casting="unsafe")  # x > -1, so cutting off is rounding down
        np.add(x, self.gap, out=x)
        np.copyto(scratch, x, casting="unsafe")
        np.not_equal(q, scratch, out=doubt)
        if doubt.any():
            rows = np.flatnonzero(doubt)
            q[rows] = (~r[rows] // self.b).astype(np.int32)
