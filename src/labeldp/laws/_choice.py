# SPDX-License-Identifier: Apache-2.0
"""Which candidates RRWithPrior uses: the set S that maximises f(S) = sum_S p / (E + |S| - 1), E = e^epsilon.

Dinkelbach's iteration for fractional programs: from a lower bound lambda of the optimum, lambda <- f(p > lambda). lambda only grows and
the set only shrinks; a handful of steps reach the optimum, at which a class is in if and only if p > lambda: classes of equal prior enter
together, and only if that is strictly better. f of any set is a lower bound, so the iteration first runs on the maxima of at most 16
disjoint groups of classes (up to 32 classes: on all of them). All but the candidates and a few more then fall in one pass over the row,
and only these are quantised.

Every number is an IEEE double: p whole numbers (see `labeldp.laws._prior`), so that sums are exact in any order; E the certified lower
bound of e^epsilon, rounded to a double; one division and one comparison p > lambda a step. The result is a function of the row alone and
the same on every machine.
"""

import numpy as np
from numpy.typing import NDArray

from labeldp.laws import _sets as sets
from labeldp.laws._exact import exp_floor
from labeldp.laws._prior import TOP, Array, Floats, checked

Sizes = NDArray[np.int32]
_BELOW_TOP = TOP - 0.5  # no bound passes it, so the heaviest class is always in


def best_candidates(prior: Array, epsilon: float, weight: Floats | None = None) -> tuple[sets.Bits, Sizes]:
    """Choose the candidates (n, ceil(K/8)), packed, and their number (n,), of priors (n, K), n >= 1; `checked` says what is refused."""
    gain = float(exp_floor(epsilon)) - 1.0
    values, scale, columns = checked(prior, weight)
    columns *= scale
    np.rint(columns, out=columns)
    bound, size = _on_columns(columns, gain)
    if len(columns) == values.shape[1]:
        return sets.pack_columns(columns > bound), size
    inside = values > _unscaled(bound, scale, values.dtype)[:, None]
    count = sets.popcount(sets.pack(inside))
    survivors = np.rint(np.multiply(values[inside], np.repeat(scale, count), dtype=np.float64))
    bound, size = _on_survivors(survivors, count, bound, gain)
    inside[inside] = survivors > np.repeat(bound, count)
    return sets.pack(inside), size


def _unscaled(bound: Floats, scale: Floats, dtype: np.dtype) -> Array:
    """Lower a bound so that no class above it fails unrounded: by one whole number, and a few units in the last place."""
    slack = 1.0 - 8.0 * float(np.finfo(dtype).eps)
    return np.where(bound > 1.0, (bound - 1.0) / scale * slack, -1.0).astype(dtype)


def _on_columns(weights: Floats, gain: float) -> tuple[Floats, Sizes]:
    """Iterate on at most 32 classes, stored one after another: (K, n). Rows that are done are dropped when most are."""
    n = weights.shape[1]
    bound, final, rows = np.empty(n), np.empty(n, dtype=np.int32), np.arange(n)
    current, part = np.full(n, min(TOP / (gain + 1.0), _BELOW_TOP)), np.empty_like(weights)
    while True:
        inside = weights > current
        size = inside.view(np.uint8).sum(axis=0, dtype=np.uint8)
        np.multiply(weights, inside, out=part)
        following = np.minimum(part.sum(axis=0) / (gain + size), _BELOW_TOP)
        bound[rows], final[rows] = current, size
        moved = following > current  # a bound that no longer grows is the optimum
        left = np.count_nonzero(moved)
        if not left:
            return bound, final
        if 2 * left < len(rows):
            chosen = np.flatnonzero(moved)
            rows, weights, following = rows[chosen], weights.take(chosen, axis=1), following[chosen]
            part = np.empty_like(weights)
        current = following


def _on_survivors(ragged: Floats, size: NDArray[np.int64], bound: Floats, gain: float) -> tuple[Floats, Sizes]:
    """Iterate on what is left of each row, stored row after row. A row that is left with nothing new keeps its bound."""
    bound, final = bound.copy(), size.astype(np.int32)
    rows, current = np.arange(len(size)), bound
    while True:
        keep = ragged > np.repeat(current, size)
        left = np.add.reduceat(keep, np.cumsum(size) - size, dtype=np.int64)
        bound[rows], final[rows] = current, left
        ragged = ragged[keep]
        total = np.add.reduceat(ragged, np.cumsum(left) - left)
        following = np.minimum(total / (gain + left), _BELOW_TOP)
        moved = following > current
        if not moved.any():
            return bound, final
        if 2 * np.count_nonzero(moved) < len(rows):
            ragged = ragged[np.repeat(moved, left)]
            rows, left, following = rows[moved], left[moved], following[moved]
        size, current = left, following
