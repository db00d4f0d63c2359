# SPDX-License-Identifier: Apache-2.0
"""Which candidates RRWithPrior uses: the set S that maximises sum_S p / (E + |S| - 1), E = e^epsilon.

Dinkelbach's iteration for fractional programs: lambda <- f(p > lambda), f(S) = sum_S p / (E + |S| - 1), from the lower bound
lambda_0 = max(p_max / E, sum p / (E + K - 1)). lambda only grows and the set only shrinks; a handful of passes reach the optimum, and the
set is cut at a value of the prior, so classes of equal prior enter together. At the optimum a class is in if and only if p > lambda:
an equal one would not make the objective strictly better.

Every number is an IEEE double: p whole numbers (see `labeldp.laws.prior`), so that sums are exact in any order; E the certified lower
bound of e^epsilon, rounded to a double; one division and one comparison p > lambda a step. The result is the fixed point of that
iteration, the same on every machine and by both routes below.
"""

import numpy as np
from numpy.typing import NDArray

from labeldp.laws.exact import exp_floor
from labeldp.laws.prior import TOP, Floats

Sizes = NDArray[np.int32]


def best_threshold(weights: Floats, epsilon: float) -> tuple[Floats, Sizes]:
    """(threshold, size), each (n,): the candidates of a row are the classes whose weight exceeds its threshold.

    weights : (n, K) whole numbers as float64, row maximum 2^32 - 1.
    """
    gain = float(exp_floor(epsilon)) - 1.0
    k = weights.shape[1]
    bound = np.maximum(TOP / (gain + 1.0), weights.sum(axis=1) / (gain + k))
    np.minimum(bound, TOP - 0.5, out=bound)
    inside = weights > bound[:, None]
    size = np.count_nonzero(inside, axis=1)
    return _iterate(weights[inside], size, bound, gain)


def _iterate(ragged: Floats, size: NDArray[np.int64], bound: Floats, gain: float) -> tuple[Floats, Sizes]:
    """The iteration on the survivors of the first pass, stored row after row; rows drop out when their set stays the same.

    The heaviest class always stays (thresholds end below it), so no row is ever empty.
    """
    threshold, final = bound.copy(), size.astype(np.int32)
    rows = np.arange(len(size))
    while len(rows):
        starts = np.cumsum(size) - size
        bound = np.minimum(np.add.reduceat(ragged, starts) / (gain + size), TOP - 0.5)
        keep = ragged > np.repeat(bound, size)
        left = np.add.reduceat(keep, starts, dtype=np.int64)
        threshold[rows], final[rows] = bound, left
        moved = left < size
        keep &= np.repeat(moved, size)
        ragged, size, rows = ragged[keep], left[moved], rows[moved]
    return threshold, final
