# SPDX-License-Identifier: Apache-2.0
"""Certified bounds of e^x and ln x, so that no guarantee rests on a rounded float.

Python's `decimal` rounds exp and ln correctly (to half a unit in the last place), so one step down or up is a strict bound.
"""

import decimal
import math
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

WORD = 1 << 64  # one uniform word has this many values; every probability of a sampler is a whole number of them
LARGEST_EXPONENT = 700.0  # e^700 > 2^1000: no 64-bit sampler can tell a larger epsilon from this one
_DIGITS = 60


def _context(rounding: str) -> decimal.Context:
    return decimal.Context(prec=_DIGITS, rounding=rounding, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[])


@lru_cache(maxsize=1024)
def exp_floor(epsilon: float) -> Fraction:
    """Bound e^epsilon from below, by at most one part in 10^58; epsilon above 700 counts as 700, which is only more private.

    epsilon is a binary number, and the decimal number that is shown and that ledgers add up: the smaller of the two is taken, so that a
    claim of 0.1 holds as one tenth. Never below 1, so that a law at any positive epsilon is no worse than uniform.
    """
    context = _context(decimal.ROUND_HALF_EVEN)
    claimed = min(float(epsilon), LARGEST_EXPONENT)
    below = context.next_minus(context.exp(min(Decimal(claimed), Decimal(repr(claimed)))))
    return max(Fraction(1), Fraction(below))


def log_ceil(x: Fraction) -> float:
    """Find the smallest double that is certainly >= ln x, for x > 0."""
    if x == 1:
        return 0.0
    up = _context(decimal.ROUND_CEILING)
    bound = up.next_plus(_context(decimal.ROUND_HALF_EVEN).ln(up.divide(Decimal(x.numerator), Decimal(x.denominator))))
    nearest = float(bound)
    return nearest if Decimal(nearest) >= bound else math.nextafter(nearest, math.inf)


def log_ratio(numerator: int, denominator: int) -> float:
    """Compute ln(numerator / denominator) to double precision, without loss where the two are close."""
    if 2 * numerator > denominator and numerator < 2 * denominator:
        return math.log1p((numerator - denominator) / denominator)
    return math.log(numerator) - math.log(denominator)


def log_quotient(p: float | NDArray[np.float64], q: NDArray[np.float64], gap: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Compute ln(p / q) of positive numbers, without loss where they are close; gap is p - q where that is known better."""
    off = (p - q if gap is None else gap) / q
    return np.where(np.abs(off) < 0.5, np.log1p(np.clip(off, -0.5, None)), np.log(p) - np.log(q))


def whole_below(x: Fraction) -> int:
    """Round a fraction down."""
    return x.numerator // x.denominator


def whole_above(x: Fraction) -> int:
    """Round a fraction up."""
    return -(-x.numerator // x.denominator)
