# SPDX-License-Identifier: Apache-2.0
"""Exact discrete noise from uniform words: Laplace and Gaussian on the integers, and coins of
probability e^-x.

The samplers take words (of a run's secret, or of a seed in tests) and decide on integers. A coin
compares the binary expansion of its probability with its words: doubles decide clear cases, and if
the first word is within 2^-30 of the probability, bounds of any length in exact arithmetic decide.
So every probability is exactly the stated real number; floating-point noise would have holes in its
support that reveal counts (Mironov 2012, "On significance of the least significant bits for
differential privacy"). The number of words taken depends on the noise alone, never on the counts.

OpenDP's samplers are exact, too, but draw from the operating system. Here a draw is a function of
words, so that noise comes from the run's key, a seed repeats it, and a test can choose the words at
which a decision is close. The tests compare the two.
"""

import decimal
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.laws._exact import Words

Bounds = Callable[[int], tuple[Fraction, Fraction]]
"""A function from a number of bits b to a lower and an upper bound of a probability, at most 2^-b
apart."""
Rows = NDArray[np.intp]
Int64s = NDArray[np.int64]

# far above the error of exp in doubles (2^-50), and so small that the slow exact decision is rare
_CLEAR = 2.0**-30
# scale of the widest noise: a draw exceeds 64 bits with a probability below e^-1000
WIDEST = 1 << 53


class Coins:
    """Independent random decisions for each row of a chunk of words. Each takes words that no other
    has taken.

    Parameters
    ----------
    words : Words
        The words of n rows.
    """

    def __init__(self, words: Words) -> None:
        self._words = words
        self._next = 0

    def __len__(self) -> int:
        return len(self._words)

    def take(self, rows: Rows) -> NDArray[np.uint64]:
        """Take a fresh word of each of these rows: (len(rows),) uint64."""
        self._next += 1
        return self._words.take(self._next - 1, rows)

    def flip(
        self, rows: Rows, near: float | NDArray[np.float64], bounds: Callable[[int], Bounds]
    ) -> NDArray[np.bool_]:
        """Flip coins of the stated probabilities, exactly.

        Parameters
        ----------
        rows : (m,) positions
        near : float or (m,) float64
            The probabilities in doubles, each right to 2^-40.
        bounds : function of a position in `rows`
            Returns the `Bounds` of its probability.

        Returns
        -------
        (m,) bool
        """
        words = self.take(rows)
        uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        heads = np.asarray(uniform < near)
        for place in np.flatnonzero(np.abs(uniform - near) < _CLEAR):
            heads[place] = self._exactly(
                rows[place : place + 1], int(words[place]), bounds(int(place))
            )
        return heads

    def below(self, rows: Rows, n: int) -> Int64s:
        """Draw a uniform whole number in [0, n), exactly: (len(rows),) int64."""
        found, pending = np.zeros(len(rows), np.int64), np.arange(len(rows))
        # Words above the largest multiple of n are rejected, so that each result has the same
        # number of words.
        limit = (1 << 64) // n * n - 1
        while len(pending):
            words = self.take(rows[pending])
            good = words <= np.uint64(limit)
            found[pending[good]] = (words[good] % np.uint64(n)).astype(np.int64)
            pending = pending[~good]
        return found

    def _exactly(self, row: Rows, drawn: int, bounds: Bounds) -> bool:
        """Decide whether a uniform real with the first 64 bits `drawn` is below the probability, by
        further words until that is certain."""
        size = 64
        while True:
            low, high = bounds(size + 64)
            if drawn + 1 <= low * (1 << size):
                return True
            if drawn >= high * (1 << size):
                return False
            drawn, size = drawn << 64 | int(self.take(row)[0]), size + 64


def exp_bounds(x: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Bound e^-x for x >= 0 from both sides, at most 2^-bits apart."""
    if x == 0:
        return Fraction(1), Fraction(1)
    if x > bits:
        return Fraction(0), Fraction(1, 1 << bits)
    # log10(2) = 0.30103, so these decimals hold the bits, and 12 more absorb the rounding of both
    # steps
    digits = bits * 302 // 1000 + 12
    down, up, near = (
        decimal.Context(prec=digits, rounding=r)
        for r in (decimal.ROUND_FLOOR, decimal.ROUND_CEILING, decimal.ROUND_HALF_EVEN)
    )
    # exact: a Decimal holds an int of any length
    numerator, denominator = Decimal(x.numerator), Decimal(x.denominator)
    # copy_negate: the operator `-` would round to the 28 digits of the default context
    low = near.next_minus(near.exp(up.divide(numerator, denominator).copy_negate()))
    high = near.next_plus(near.exp(down.divide(numerator, denominator).copy_negate()))
    return max(Fraction(low), Fraction(0)), min(Fraction(high), Fraction(1))


def exp_coin(coins: Coins, rows: Rows, a: Fraction, gaps: Int64s) -> NDArray[np.bool_]:
    """Flip coins of probability e^(-a gap), exactly: (m,) bool for (m,) int64 gaps >= 0."""
    near = np.exp(-float(a) * gaps)
    return coins.flip(rows, near, lambda i: lambda bits: exp_bounds(a * int(gaps[i]), bits))


def discrete_laplace(coins: Coins, a: Fraction, digits: int | None = None) -> Int64s:
    """Draw discrete Laplace noise for each row, P[k] = tanh(a/2) e^(-a |k|).

    Parameters
    ----------
    coins : Coins
        The coins of n rows.
    a : Fraction
        At least 2^-53. Adding the draw to an integer that changes by 1 is a-DP.
    digits : int, optional
        Number of binary digits of each geometric number that are drawn one by one; it does not
        change the distribution. None (default): so many that the number exceeds them with a
        probability below e^-64.

    Returns
    -------
    (n,) int64

    Notes
    -----
    The draw is the difference of two geometric numbers. Cost: about 2 log2(64 / a) words a row.

    References
    ----------
    The geometric mechanism: Ghosh, Roughgarden and Sundararajan 2009, "Universally
    utility-maximizing privacy mechanisms".
    """
    return _laplace(coins, np.arange(len(coins)), _scale("a", a, 1), digits)


def discrete_gaussian(coins: Coins, variance: Fraction) -> Int64s:
    """Draw discrete Gaussian noise for each row, P[k] proportional to e^(-k^2 / (2 variance)).

    Parameters
    ----------
    coins : Coins
        The coins of n rows.
    variance : Fraction
        The parameter sigma^2, above 0 and at most 2^106. The variance of the noise is at most that.

    Returns
    -------
    (n,) int64

    Notes
    -----
    A draw of discrete Laplace noise of scale t = floor(sigma) + 1 is accepted with probability
    e^(-(|k| - sigma^2 / t)^2 / (2 sigma^2)). Cost: fewer than two tries a row on average.

    References
    ----------
    Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential privacy", Algorithm 3.
    """
    variance = _scale("variance", variance, 2)
    t = math.isqrt(math.floor(variance)) + 1
    out, pending = np.empty(len(coins), np.int64), np.arange(len(coins))
    while len(pending):
        tried = _laplace(coins, pending, Fraction(1, t))
        off = np.abs(tried) - float(variance / t)
        near = np.exp(-(off * off) / (2 * float(variance)))
        accepted = coins.flip(pending, near, _acceptance(tried, variance, t))
        out[pending[accepted]] = tried[accepted]
        pending = pending[~accepted]
    return out


def _acceptance(tried: Int64s, variance: Fraction, t: int) -> Callable[[int], Bounds]:
    def of(place: int) -> Bounds:
        x = (abs(int(tried[place])) - variance / t) ** 2 / (2 * variance)
        return lambda bits: exp_bounds(x, bits)

    return of


def _laplace(coins: Coins, rows: Rows, a: Fraction, digits: int | None = None) -> Int64s:
    return _geometric(coins, rows, a, digits) - _geometric(coins, rows, a, digits)


def _geometric(coins: Coins, rows: Rows, a: Fraction, digits: int | None) -> Int64s:
    """Draw geometric numbers, P[k] = (1 - q) q^k, q = e^-a: (m,) int64."""
    # Write k = low + 2^d high with 0 <= low < 2^d. Then P[k] = q^low (1 - q) / (1 - q^(2^d)) x
    # (q^(2^d))^high (1 - q^(2^d)): low and high are independent, and high is geometric. q^low is
    # the product of q^(2^i) over the ones among the binary digits of low, so these are independent,
    # too, and digit i is one with probability q^(2^i) / (1 + q^(2^i)). high is how often a coin of
    # probability q^(2^d) falls heads before the first tails. Counting k itself by such coins would
    # take 1 / a of them.
    d = max(0, math.ceil(64 / a) - 1).bit_length() if digits is None else digits
    out, pending = np.zeros(len(rows), np.int64), np.arange(len(rows))
    for i in range(d):
        out += _digit(coins, rows, a * (1 << i)).astype(np.int64) << i
    while len(pending):
        pending = pending[exp_coin(coins, rows[pending], a, np.full(len(pending), 1 << d))]
        out[pending] += 1 << d
    return out


def _digit(coins: Coins, rows: Rows, x: Fraction) -> NDArray[np.bool_]:
    """Flip coins of probability 1 / (1 + e^x), exactly."""

    def bounds(bits: int) -> tuple[Fraction, Fraction]:
        low, high = exp_bounds(x, bits + 2)
        return low / (1 + low), high / (1 + high)

    near = math.exp(-float(x))
    return coins.flip(rows, near / (1 + near), lambda _: bounds)


def _scale(name: str, value: Fraction, power: int) -> Fraction:
    """Check the parameter of noise (one over the scale, or the scale squared): above 0, and small
    enough for 64-bit draws."""
    if not (isinstance(value, Fraction) and value > 0):
        raise InvalidInput(
            f"Expected {name} > 0 as an exact Fraction, got {value!r}. No noise is no privacy;"
            " noise is set by epsilon."
        )
    if not (value if power == 2 else 1 / value) <= WIDEST**power:
        raise InvalidInput(
            f"Expected noise of a scale of at most 2^53, got {name}={float(value)!r}. Raise"
            " epsilon, or count fewer rows a unit."
        )
    return value
