# SPDX-License-Identifier: Apache-2.0
"""The privacy accountant of peer-to-peer clusters: laws of their report counts in floating point with error bounds, rounded up."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_UNIT = 1 << 45  # ln k! in whole numbers of 1 / this, so that binomial coefficients are differences without cancellation
_LARGEST = 700.0  # e^epsilon is a double up to here
_TAIL = 1e-14  # probability that each window may leave out; what is left out counts as delta
_PAIRS = 64  # numbers of true ones that are worked on at a time, over the numbers of reports: a few megabytes
_SHARES = 32  # shares of noisy ones that are worked on at a time: a few hundred kilobytes


@lru_cache(maxsize=4)
def _log_factorials(most: int) -> NDArray[np.int64]:
    """Compute ln k! for k up to `most` in whole multiples of 2^-45, each off by at most 1: from 30-digit logarithms."""
    total, found = Decimal(0), [0]
    with localcontext() as context:
        context.prec = 30
        for k in range(1, most + 1):
            total += Decimal(k).ln()
            found.append(int(total * _UNIT))
    return np.array(found, dtype=np.int64)


class Reports:
    """The laws of (t, ones) for every m, on windows that omit little of their mass."""

    def __init__(self, n: int, flip: float, join: float) -> None:
        self.n, self.flip, self.join = n, flip, join
        self.log_factorial = _log_factorials(1 << n.bit_length())
        chance = self.binomial(n, join)[:, 0] if join < 1 else np.ones(1)
        keep = _window(chance)
        self.times: NDArray[np.int64] = keep if join < 1 else np.array([n])
        self.time_chance = chance[keep] if join < 1 else chance

    def binomial(self, t: int, p: float | Floats, low: int = 0, high: int | None = None) -> Floats:
        """Compute Bin(t, p)(k) for k from low to high: (high - low + 1, number of p).

        Relative error of a value above e^-100: the addends are below 0.7 t + 100 then, and rounded five times, p once, and three
        log-factorials are off by 2^-45: at most (t + 64) 2^-50 + 2^-43. All values below, (t + 1)^2 times e^-100 at most, are far below the
        2^-40 of itself by which `Pair` raises a delta that is never less than this error.
        """
        k, share = np.arange(low, (t if high is None else high) + 1), np.atleast_1d(np.asarray(p, dtype=np.float64))
        inside = (share > 0) & (share < 1)
        yes, no = np.log(np.where(inside, share, 0.5)), np.log1p(-np.where(inside, share, 0.5))
        exponent = np.multiply.outer(k.astype(np.float64), yes)
        exponent += np.multiply.outer((t - k).astype(np.float64), no)
        exponent += ((self.log_factorial[t] - self.log_factorial[k] - self.log_factorial[t - k]) / _UNIT)[:, None]
        np.exp(exponent, out=exponent)
        if not inside.all():  # a certain bit
            exponent[:, ~inside] = k[:, None] == np.where(share[~inside] > 0.5, t, 0)
        return exponent

    def bits(self, m: int) -> Floats:
        """Compute the law of the number of noisy ones, except for 4 x _TAIL of its mass: (n + 1,)."""
        some, others = (_reach(t, p) for t, p in ((m, 1 - self.flip), (self.n - m, self.flip)))
        kept, flipped = self.binomial(m, 1 - self.flip, *some)[:, 0], self.binomial(self.n - m, self.flip, *others)[:, 0]
        law = np.zeros(self.n + 1)
        both = np.convolve(kept, flipped)
        law[some[0] + others[0] :][: len(both)] = both
        return law

    def pairs(self, count: int) -> "Iterator[Pair]":
        """Yield the laws of the reports at m and at m + 1 true ones, for every m below `count`.

        Many m are worked on together, on a common window: each law is found once for both of its pairs, and Bin(t, b / n), which takes
        most of the time, once for all.
        """
        step = max(2, _PAIRS // len(self.times))
        for start in range(0, count, step):
            table = self._table(range(start, min(start + step, count) + 1))
            # Of each value: four binomials, a convolution and a sum of at most n + 1 positive terms, two products. The missing counts as
            # delta.
            error = 5 * ((self.n + 64) * 2.0**-50 + 2.0**-43)
            missing = np.maximum(0.0, 1.0 - table.sum(axis=0)) + error
            for i in range(table.shape[1] - 1):
                yield Pair(table[:, i : i + 2], error, missing[i : i + 2])

    def _table(self, true: range) -> Floats:
        """Compute the law of the reports for each of these numbers of true ones: (outcomes, numbers), contiguous by column."""
        laws = np.stack([self.bits(m) for m in true], axis=1)
        keep = _window(laws.sum(axis=1))
        found = [
            chance * self._given(t, keep / self.n, laws[keep]) for t, chance in zip(self.times.tolist(), self.time_chance, strict=True)
        ]
        return np.asfortranarray(np.concatenate(found))

    @staticmethod
    def _blocks(share: Floats) -> list[slice]:
        return [slice(start, start + _SHARES) for start in range(0, len(share), _SHARES)]

    @staticmethod
    def _reach(t: int, share: Floats) -> tuple[int, int]:
        """Return the counts that cover Bin(t, p) for a few neighbouring p."""
        lows, highs = zip(*(_reach(t, p) for p in (share[0], share[-1])), strict=True)
        return min(lows), max(highs)

    def _given(self, t: int, share: Floats, laws: Floats) -> Floats:
        """Laws of the ones among t reports, from (len(share), ...) of the noisy bits; a few shares at a time, each where they reach."""
        blocks = self._blocks(share)
        reach = [self._reach(t, share[some]) for some in blocks]
        first = min(low for low, _ in reach)
        out = np.zeros((max(high for _, high in reach) - first + 1, laws.shape[1]))
        for some, (low, high) in zip(blocks, reach, strict=True):
            out[low - first : high - first + 1] += self.binomial(t, share[some], low, high) @ laws[some]
        return out


def _window(chance: Floats) -> NDArray[np.int64]:
    """Return the range of a law outside of which at most twice _TAIL lies."""
    return np.flatnonzero((np.cumsum(chance) > _TAIL) & (np.cumsum(chance[::-1])[::-1] > _TAIL))


def _reach(t: int, p: float) -> tuple[int, int]:
    """Return counts outside of which Bin(t, p) has less than _TAIL, by Bernstein's inequality: P[|X - t p| >= x] <= 2 e^(-x^2 / (2 v +
    x))."""
    spread, need = t * p * (1 - p), -math.log(_TAIL / 2)
    x = (need + math.sqrt(need * need + 8 * need * spread)) / 2 + 1
    return max(0, math.floor(t * p - x)), min(t, math.ceil(t * p + x))


@dataclass(frozen=True, eq=False)
class Pair:
    """Two neighbouring laws on the same outcomes: (outcomes, 2), each value off by at most `error` of itself, `missing` outside."""

    table: Floats
    error: float
    missing: Floats

    def delta(self, epsilon: float) -> float:
        """Compute the larger hockey-stick divergence of the two directions, rounded up."""
        gain = math.exp(min(epsilon, _LARGEST)) * (1 - 2.0**-50)  # a smaller epsilon has a larger delta
        best = 0.0
        for here, there in ((0, 1), (1, 0)):
            gap = self.table[:, here] * (1 + self.error) - gain * (1 - self.error) * self.table[:, there]
            best = max(best, float(np.maximum(gap, 0.0).sum()) + float(self.missing[here]))
        return min(1.0, best * (1 + 2.0**-40))

    def epsilon(self, delta: float, low: float, high: float) -> float:
        """Find by bisection an epsilon above `low` at which the divergence is certified to be at most delta; `high` if there is none
        below."""
        while high - low > 2.0**-20:
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high
