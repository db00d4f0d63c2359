# SPDX-License-Identifier: Apache-2.0
"""The privacy cost of Gaussian noise on label counts: certified bounds for discrete noise, and the
continuous formulas for comparison.

Counts of neighbouring tables differ by +1 in one cell and -1 in another for each of a unit's m
rows: squared Euclidean distance 2 m^2 at most.

For m = 1 the privacy loss depends on the difference N of two independent discrete Gaussians alone.
With s = sigma^2 it has P[N = n] = e^(-n^2 / (4 s)) S_(n mod 2) / Z^2, where S_0, S_1 and Z are
theta sums, and

    delta(epsilon) = P[N > epsilon s - 1] - e^epsilon P[N > epsilon s + 1]
                   = sum over n > epsilon s - 1 of P[n] (1 - e^(epsilon - (n + 1) / s)):

exactly. It is a sum of positive terms, so doubles lose almost no precision, and a factor covers
every rounding. For m > 1 the bound is by concentrated DP at rho = m^2 / s, which holds however the
m rows change.

Many releases together cost what one continuous Gaussian release does, up to rounding. Round a
continuous draw of variance s - 2 at random, to a whole number at distance t with probability
proportional to e^(-t^2 / 4): that gives the discrete law of variance s, up to a factor within 2^-54
of 1 (by Poisson's summation formula: it is a ratio of two theta sums, of variances 2 and s, both
within 2 e^(-4 pi^2) of 1). The rounding does not look at labels. So whatever discrete releases
tell, continuous ones of variances s - 2 tell, too. These compose exactly, also where a release
depends on the ones before: to one with the squared mean mu^2 = sum of squared distance / (s - 2)
(Dong, Roth, Su, 2022, Corollary 3.3), whose delta is Theorem 8 of Balle and Wang. d draws add d
2^-53 to epsilon, and a factor e^(d 2^-54) to delta.
"""

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from labeldp._validate import exact
from labeldp.errors import InvalidInput

_SLACK = 2.0**-40  # relative; it covers the errors of the sums below, which are under 2^-44
# log of the factor between a discrete draw and a continuous one, rounded at random
_ROUNDING = 2.0**-54
# added to a delta; it covers terms that underflow to 0, which are far smaller together
_LEAST = 1e-300
# largest sigma for which terms are summed; above, delta is bounded by concentrated DP and a tail by
# an integral
_LONGEST = 10.0**6


def analytic_delta(sigma: float, epsilon: float, sensitivity: float = math.sqrt(2)) -> float:
    """Compute delta of continuous Gaussian noise (Balle and Wang 2018, Theorem 8), for comparison:
    no release depends on it."""
    centre, shift = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    return float(
        special.ndtr(centre - shift) - math.exp(epsilon + float(special.log_ndtr(-centre - shift)))
    )


def analytic_sigma(epsilon: float, delta: float, sensitivity: float = math.sqrt(2)) -> float:
    """Compute the smallest sigma at which continuous Gaussian noise is (epsilon, delta)-DP (Tang et
    al. 2022, Theorem 1)."""

    def excess(log_sigma: float) -> float:
        return math.log(
            max(analytic_delta(math.exp(log_sigma), epsilon, sensitivity), 1e-320)
        ) - math.log(delta)

    classical = (
        math.log(sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / min(epsilon, 1.0)) + 1
    )
    return math.exp(
        optimize.brentq(
            excess, math.log(sensitivity / (1 + epsilon)) - 8, classical, xtol=1e-14, rtol=1e-14
        )
    )


def discrete_delta(variance: Fraction, epsilon: float, max_rows_per_unit: int = 1) -> float:
    """Compute an upper bound of delta at epsilon, for discrete Gaussian noise on every label count.

    Parameters
    ----------
    variance : Fraction
        The parameter sigma^2 > 0 of the noise.
    epsilon : float
    max_rows_per_unit : int, default=1
        m; all labels of a unit may change.

    Returns
    -------
    float
        Never below the true delta. For m = 1 it exceeds it by less than one part in 10^11, or by
        10^-300 for a smaller delta.
    """
    if not variance > 0:
        raise InvalidInput(
            f"Expected variance > 0, got {variance!r}. Counts without noise are not private at any"
            " epsilon."
        )
    # delta falls with epsilon, so the smaller reading of it gives the larger delta
    certain = min(Fraction(epsilon), exact(epsilon))
    if max_rows_per_unit == 1 and variance <= _LONGEST**2:
        first = math.floor(certain * variance - 1) + 1
        n = first + np.arange(_terms(variance), dtype=np.float64)
        s, e = float(variance), float(certain)
        loss = (n + 1) / s
        # the rounding error of the difference is added, so that it is never too small
        inside = loss - e + (loss + e) * 2.0**-50
        total = float(np.sum(_pmf(variance, n) * -np.expm1(-np.maximum(inside, 0.0))))
        return min(1.0, (total + _beyond(variance, first + len(n))) * (1 + _SLACK) + _LEAST)
    return min(1.0, concentrated_delta(Fraction(max_rows_per_unit**2) / variance, certain) + _LEAST)


def concentrated_delta(rho: Fraction, epsilon: Fraction) -> float:
    """Compute an upper bound of delta of a rho-zCDP release (Canonne, Kamath and Steinke 2020,
    Corollary 13)."""
    # Every order gives a valid bound, so the numeric search for the best one needs no certificate.
    r, e = float(rho) * (1 + _SLACK), float(epsilon) * (1 - _SLACK)

    def log_delta(log_order: float) -> float:
        order = 1 + math.exp(log_order)
        return (order - 1) * (order * r - e) + order * math.log1p(-1 / order) - math.log(order - 1)

    best = optimize.minimize_scalar(
        log_delta, bounds=(-20.0, 40.0), method="bounded", options={"xatol": 1e-10}
    )
    return math.exp(min(0.0, float(best.fun) + _SLACK * (1 + abs(float(best.fun)))))


@lru_cache(maxsize=256)
def calibrated_variance(epsilon: float, delta: float, max_rows_per_unit: int = 1) -> Fraction:
    """Find a variance parameter sigma^2 at which discrete Gaussian noise is certainly (epsilon,
    delta)-label-DP."""
    # The search starts at the variance of continuous noise and goes up on a grid of dyadic numbers
    # until `discrete_delta` allows it. The least variance of discrete noise can be below that
    # start: by 0.2 % at epsilon 2, 0.7 % at 10 and 3.5 % at 20 (delta 1e-5, 1e-5, 1e-9). A dyadic
    # number has an exact decimal spelling, so that all machines draw with the same variance.
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


def composed_delta(squared_mean: Fraction, draws: int, epsilon: float) -> float:
    """Bound delta at epsilon from above for many releases with discrete Gaussian noise, in whatever
    order, also chosen by earlier ones.

    Parameters
    ----------
    squared_mean : Fraction
        Sum of squared Euclidean distance / (variance - 2) over the releases, each of a variance
        above 2.
    draws : int
        How many numbers of noise they draw.
    epsilon : float
    """
    rounding = draws * _ROUNDING
    e = float(min(Fraction(epsilon), exact(epsilon))) * (1 - _SLACK) - 2 * rounding
    if not e > 0:
        return 1.0
    mean = math.sqrt(float(squared_mean)) * (1 + _SLACK)
    first = float(special.ndtr(mean / 2 - e / mean))
    second = math.exp(min(0.0, e + float(special.log_ndtr(-mean / 2 - e / mean))))
    # A difference of two doubles, each right to far better than 2^-36.
    return min(
        1.0,
        (first * (1 + 2.0**-36) - second * (1 - 2.0**-36)) * math.exp(rounding) * (1 + _SLACK)
        + _LEAST,
    )


@lru_cache(maxsize=256)
def calibrated_mean(epsilon: float, delta: float, draws: int) -> Fraction:
    """Find the largest squared mean at which so many draws of discrete Gaussian noise are certainly
    (epsilon, delta)-label-DP."""
    low, high = -64.0, 64.0  # of log2 of the squared mean
    for _ in range(100):
        middle = (low + high) / 2
        enough = composed_delta(Fraction(2.0**middle), draws, epsilon) <= delta
        low, high = (middle, high) if enough else (low, middle)
    if composed_delta(Fraction(2.0**low), draws, epsilon) > delta:
        raise InvalidInput(
            f"Expected an epsilon and delta that noise can give, got epsilon={epsilon!r},"
            f" delta={delta!r}. Raise one of them."
        )
    return Fraction(2.0**low)


def gap_tail(variance: Fraction, gaps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute upper bounds of P[N >= gap] for gaps >= 0, where N is the difference of two discrete
    Gaussians: (g,) float64."""
    known, place = np.unique(gaps, return_inverse=True)
    bounds = np.array([_tail(variance, int(gap)) for gap in known], np.float64)
    return np.minimum(1.0, bounds)[place].reshape(np.shape(gaps))


def _tail(variance: Fraction, gap: int) -> float:
    # the terms decrease, so the first one plus the integral from there bounds their sum
    if variance > _LONGEST**2:
        beyond = special.erfc(gap / (2 * math.sqrt(variance)) * (1 - 2.0**-50)) / 2
        return (float(_pmf(variance, np.array([gap], np.float64))[0]) + float(beyond)) * (
            1 + _SLACK
        )
    n = gap + np.arange(_terms(variance), dtype=np.float64)
    return (float(np.sum(_pmf(variance, n))) + _beyond(variance, gap + len(n))) * (1 + _SLACK)


def _terms(variance: Fraction) -> int:
    return 2 + math.ceil(13 * math.sqrt(2 * float(variance)))


def _beyond(variance: Fraction, n: int) -> float:
    """Compute an upper bound of P[N >= n] for n > 0."""
    # Two steps further a term is smaller by a factor below e^(-n / s): two geometric series.
    first = float(np.sum(_pmf(variance, np.array([n, n + 1], np.float64))))
    return first / -math.expm1(-max(n, 1) / float(variance)) * (1 + _SLACK)


def _pmf(variance: Fraction, n: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute upper bounds of P[N = n], right to a relative 2^-46 for n^2 / (4 s) below 16, and to
    that times n^2 / (4 s) above."""
    s = float(variance)
    even, odd, z = _theta(s)
    exponent = n * n / (4 * s) * (1 - 2.0**-50)
    parity = np.mod(n, 2) == 0
    return np.exp(-exponent) * np.where(parity, even, odd) / (z * z)


def _theta(s: float) -> tuple[float, float, float]:
    """Compute upper bounds of S_0 = sum of e^(-y^2 / s) and S_1 = sum of e^(-(y + 1/2)^2 / s), and
    a lower one of Z = sum of e^(-y^2 / (2 s))."""
    if s >= 4:  # Poisson's summation formula: its second term is below 2^-55 of the first
        root = math.sqrt(math.pi * s)
        return root * (1 + 2.0**-48), root * (1 + 2.0**-48), math.sqrt(2) * root * (1 - 2.0**-48)
    y = np.arange(-80, 81, dtype=np.float64)
    even, odd = (
        float(np.sum(np.exp(-((y + half) ** 2) / s))) * (1 + 2.0**-48) for half in (0.0, 0.5)
    )
    return even, odd, float(np.sum(np.exp(-(y**2) / (2 * s)))) * (1 - 2.0**-48)
