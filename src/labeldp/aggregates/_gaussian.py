# SPDX-License-Identifier: Apache-2.0
"""What Gaussian noise on label counts costs: certified bounds for the discrete law, and the continuous formulas to compare with.

Counts of neighbours differ by +1 in one cell and -1 in another, for each of a unit's m rows: squared Euclidean distance 2 m^2 at most.

For m = 1 the privacy loss depends on the difference N of two independent discrete Gaussians alone. With s = sigma^2 it has
P[N = n] = e^(-n^2 / (4 s)) S_(n mod 2) / Z^2, where S_0, S_1 and Z are theta sums, and

    delta(epsilon) = P[N > epsilon s - 1] - e^epsilon P[N > epsilon s + 1]
                   = sum over n > epsilon s - 1 of P[n] (1 - e^(epsilon - (n + 1) / s)):

exact, and a sum of positive terms, so that doubles lose next to nothing; every rounding is covered by a factor. For m > 1 concentrated DP
is used, which holds for every way in which the m rows may change: rho = m^2 / s.
"""

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from labeldp._validate import exact
from labeldp.errors import InvalidInput

_SLACK = 2.0**-40  # relative; the sums below are right to better than 2^-44
_LEAST = 1e-300  # what doubles lose below their range is far less
_LONGEST = 10.0**6  # sigma; above, nothing is summed: delta is bounded by concentrated DP, a tail by an integral


def analytic_delta(sigma: float, epsilon: float, sensitivity: float = math.sqrt(2)) -> float:
    """Compute delta of continuous Gaussian noise: Balle and Wang (2018), Theorem 8. To compare with; no release rests on it."""
    centre, shift = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    return float(special.ndtr(centre - shift) - math.exp(epsilon + float(special.log_ndtr(-centre - shift))))


def analytic_sigma(epsilon: float, delta: float, sensitivity: float = math.sqrt(2)) -> float:
    """Find the least standard deviation of continuous Gaussian noise that is (epsilon, delta)-DP: Tang et al. (2022), Theorem 1."""

    def excess(log_sigma: float) -> float:
        return math.log(max(analytic_delta(math.exp(log_sigma), epsilon, sensitivity), 1e-320)) - math.log(delta)

    classical = math.log(sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / min(epsilon, 1.0)) + 1
    return math.exp(optimize.brentq(excess, math.log(sensitivity / (1 + epsilon)) - 8, classical, xtol=1e-14, rtol=1e-14))


def discrete_delta(variance: Fraction, epsilon: float, max_rows_per_unit: int = 1) -> float:
    """Bound delta at epsilon from above, for discrete Gaussian noise of this variance parameter on every label count.

    Parameters
    ----------
    variance : Fraction
        sigma^2 > 0.
    epsilon : float
    max_rows_per_unit : int
        m; the unit's labels may all change.

    Returns
    -------
    float
        Never below the true delta; for m = 1 above it by less than one part in 10^11, or by 10^-300 where the delta is that small.
    """
    if not variance > 0:
        raise InvalidInput(f"Expected variance > 0, got {variance!r}. Counts without noise are not private at any epsilon.")
    certain = min(Fraction(epsilon), exact(epsilon))
    if max_rows_per_unit == 1 and variance <= _LONGEST**2:
        return min(1.0, _summed_delta(variance, certain) + _LEAST)
    return min(1.0, concentrated_delta(Fraction(max_rows_per_unit**2) / variance, certain) + _LEAST)


def concentrated_delta(rho: Fraction, epsilon: Fraction) -> float:
    """Bound delta of a rho-zCDP release from above: Canonne, Kamath, Steinke (2020), Corollary 13; any order gives a bound."""
    r, e = float(rho) * (1 + _SLACK), float(epsilon) * (1 - _SLACK)

    def log_delta(log_order: float) -> float:
        order = 1 + math.exp(log_order)
        return (order - 1) * (order * r - e) + order * math.log1p(-1 / order) - math.log(order - 1)

    best = optimize.minimize_scalar(log_delta, bounds=(-20.0, 40.0), method="bounded", options={"xatol": 1e-10})
    return math.exp(min(0.0, float(best.fun) + _SLACK * (1 + abs(float(best.fun)))))


@lru_cache(maxsize=256)
def calibrated_variance(epsilon: float, delta: float, max_rows_per_unit: int = 1) -> Fraction:
    """Find a variance parameter at which discrete Gaussian noise is certainly (epsilon, delta)-label-DP.

    It starts at the continuous law's and goes up on a grid of dyadic numbers until `discrete_delta` allows it. So it is never below the
    continuous law's; where that is small, at epsilons of 2 and more, the discrete one would do with less: with 0.2 % less at epsilon 2,
    0.7 % at 10 and 3.5 % at 20 (delta 1e-5, 1e-5, 1e-9).
    """
    start = Fraction((max_rows_per_unit * analytic_sigma(epsilon, delta)) ** 2)
    unit = Fraction(2) ** (math.floor(math.log2(start)) - 16)
    low = math.floor(start / unit) - 1
    step = 1
    while discrete_delta((low + step) * unit, epsilon, max_rows_per_unit) > delta:
        step *= 2
    good, bad = low + step, low + step // 2
    while good - bad > 1:
        middle = (good + bad) // 2
        enough = discrete_delta(middle * unit, epsilon, max_rows_per_unit) <= delta
        good, bad = (middle, bad) if enough else (good, middle)
    return good * unit


def gap_tail(variance: Fraction, gaps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Bound P[N >= gap] from above, N the difference of two discrete Gaussians, for gaps >= 0: (g,) float64."""
    known, place = np.unique(gaps, return_inverse=True)
    bounds = np.array([_tail(variance, int(gap)) for gap in known], np.float64)
    return np.minimum(1.0, bounds)[place].reshape(np.shape(gaps))


def _summed_delta(variance: Fraction, epsilon: Fraction) -> float:
    first = math.floor(epsilon * variance - 1) + 1
    n = first + np.arange(_terms(variance), dtype=np.float64)
    s, e = float(variance), float(epsilon)
    loss = (n + 1) / s
    inside = loss - e + (loss + e) * 2.0**-50  # not below the true difference
    total = float(np.sum(_pmf(variance, n) * -np.expm1(-np.maximum(inside, 0.0))))
    return (total + _beyond(variance, first + len(n))) * (1 + _SLACK)


def _tail(variance: Fraction, gap: int) -> float:
    if variance > _LONGEST**2:  # terms fall: the first one and the integral from there bound their sum
        beyond = special.erfc(gap / (2 * math.sqrt(variance)) * (1 - 2.0**-50)) / 2
        return (float(_pmf(variance, np.array([gap], np.float64))[0]) + float(beyond)) * (1 + _SLACK)
    n = gap + np.arange(_terms(variance), dtype=np.float64)
    return (float(np.sum(_pmf(variance, n))) + _beyond(variance, gap + len(n))) * (1 + _SLACK)


def _terms(variance: Fraction) -> int:
    return 2 + math.ceil(13 * math.sqrt(2 * float(variance)))


def _beyond(variance: Fraction, n: int) -> float:
    """Bound P[N >= n] for n > 0: two steps further, a term is smaller by a factor below e^(-n / s)."""
    first = float(np.sum(_pmf(variance, np.array([n, n + 1], np.float64))))
    return first / -math.expm1(-max(n, 1) / float(variance)) * (1 + _SLACK)


def _pmf(variance: Fraction, n: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bound P[N = n] from above, right to better than 2^-46 where n^2 / (4 s) is below 16, as good as that relative to it above."""
    s = float(variance)
    even, odd, z = _theta(s)
    exponent = n * n / (4 * s) * (1 - 2.0**-50)
    parity = np.mod(n, 2) == 0
    return np.exp(-exponent) * np.where(parity, even, odd) / (z * z)


def _theta(s: float) -> tuple[float, float, float]:
    """Bound S_0 = sum of e^(-y^2 / s) and S_1 = sum of e^(-(y + 1/2)^2 / s) from above, Z = sum of e^(-y^2 / (2 s)) from below."""
    if s >= 4:  # by Poisson's summation formula, whose next term is below 2^-55 of the first
        root = math.sqrt(math.pi * s)
        return root * (1 + 2.0**-48), root * (1 + 2.0**-48), math.sqrt(2) * root * (1 - 2.0**-48)
    y = np.arange(-80, 81, dtype=np.float64)
    even, odd = (float(np.sum(np.exp(-((y + half) ** 2) / s))) * (1 + 2.0**-48) for half in (0.0, 0.5))
    return even, odd, float(np.sum(np.exp(-(y**2) / (2 * s)))) * (1 - 2.0**-48)
