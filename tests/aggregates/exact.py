# SPDX-License-Identifier: Apache-2.0
"""The exact laws of samplers, to compare what they draw with."""

import math
from fractions import Fraction

from labeldp.laws._exact import WORD, whole_above


def report_law(n_users: int, ones: int, reports: int, flip: Fraction) -> list[Fraction]:
    """The exact law of how many of `reports` reports are ones: t + 1 fractions, for small n.

    Parameters
    ----------
    n_users : int
    ones : int
        m, true ones among the users.
    reports : int
        t.
    flip : Fraction
    """
    bits = [Fraction(0)] * (n_users + 1)
    for kept in range(ones + 1):
        for flipped in range(n_users - ones + 1):
            bits[kept + flipped] += _binomial(ones, kept, 1 - flip) * _binomial(
                n_users - ones, flipped, flip
            )
    return [
        sum(
            (p * _binomial(reports, k, Fraction(b, n_users)) for b, p in enumerate(bits)),
            Fraction(0),
        )
        for k in range(reports + 1)
    ]


def _binomial(n: int, k: int, p: Fraction) -> Fraction:
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


def geometric_law(mean: float, most: int) -> list[Fraction]:
    """P[1 run], ..., P[most runs] of the sampler that runs: gamma (1 - gamma)^(k - 1), gamma a
    whole number over 2^64."""
    stop = Fraction(whole_above(WORD / Fraction(mean)), WORD)
    return [stop * (1 - stop) ** (k - 1) for k in range(1, most + 1)]
