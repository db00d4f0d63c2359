# SPDX-License-Identifier: Apache-2.0
"""Estimates with confidence intervals from independent rows whose labels are known by unbiased
stand-ins: means, ratios, pairs of rows.

A *stand-in* t of a row is computed from its noisy label, and its mean over the law's noise is 1 if
the row has the class in question, else
0. It can lie far outside of [0, 1]. A row enters every statistic here linearly in its own t, so
   what a row adds is `Terms`: values, and
their slopes in t.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate

Floats = NDArray[np.float64]

_FAR = 5.0  # standard errors outside of its range, beyond which noise does not explain an estimate


def number_text(value: float) -> str:
    """Show a number plainly, with four decimals, or fewer from a thousand on: 0.2500, 9,126.0 and
    49,810."""
    size = abs(value)
    if 1e15 <= size < np.inf:
        return f"{value:.4g}"
    return f"{value:,.{4 if not 1e3 <= size < np.inf else 1 if size < 1e4 else 0}f}"


@dataclass(frozen=True)
class Estimate:
    """An estimate of a figure of the true labels, with its confidence interval.

    Attributes
    ----------
    value : float
        The estimate itself: a mean is unbiased, so noise can carry it out of the range of what it
        estimates; a ratio (recall, an area under a curve) divides two unbiased numbers, and is NaN
        where the lower one is not above 0.
    low, high : float
        Ends of the interval, cut to [least, most]; all of [least, most] if the interval lies
        outside of it.
    confidence : float
    stderr : float
        Half the width of the uncut interval divided by the normal quantile; of a ratio by the delta
        method. With many rows it is the standard error; with few it is larger (see
        `mean_interval`).
    least, most : float
        The range of the estimated quantity.
    constant : float or None
        The same figure of a prediction that ignores the features, on the same rows; each metric
        says which. Does not count in comparisons.
    undefined : str
        Why these rows do not define the figure, whose value is NaN; "" if they do.
    """

    value: float
    low: float
    high: float
    confidence: float = 0.95
    stderr: float = float("nan")
    least: float = -np.inf
    most: float = np.inf
    constant: float | None = field(default=None, compare=False, kw_only=True)
    undefined: str = field(default="", compare=False, kw_only=True, repr=False)

    @property
    def tells(self) -> bool:
        """Whether the interval excludes anything; if not, there are too few rows for this much
        noise."""
        return self.low > self.least or self.high < self.most

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        value, low, high, least, most = (
            number_text(each) for each in (self.value, self.low, self.high, self.least, self.most)
        )
        beside = "" if self.constant is None else f", a constant {number_text(self.constant)}"
        if self.undefined:
            return f"cannot tell: {self.undefined}"
        if not self.tells:
            # Chance alone is seldom so far out; a model that has learned the noise of its rows is.
            if max(self.value - self.most, self.least - self.value) > _FAR * self.stderr:
                seen = "" if self.constant is None else " Has the model learned from these rows?"
                return (
                    f"cannot tell: the estimate {value}{beside} is farther outside of {least} to"
                    f" {most} than noise explains.{seen}"
                )
            return (
                f"cannot tell: too few rows for this noise (estimate {value}{beside}; range {least}"
                f" to {most})"
            )
        return f"{low} to {high} ({self.confidence:.0%} interval; estimate {value}{beside})"


@dataclass(frozen=True, eq=False)
class Estimates:
    """Several unbiased estimates, each with its own interval.

    Attributes
    ----------
    value, low, high, stderr : float64 arrays of one shape
        Each as in `Estimate`.
    confidence : float
        Confidence of each interval by itself, not of all together.
    """

    value: Floats
    low: Floats
    high: Floats
    confidence: float = 0.95
    stderr: Floats = field(default_factory=lambda: np.empty(0))


# Means
# --------------------------------------------------------------------------------------------------


def mean_interval(
    values: Floats,
    ranges: Floats,
    confidence: float,
    *,
    least: float = -np.inf,
    most: float | Floats = np.inf,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Estimate the mean of independent values that each lie in an interval of known length: (mean,
    low, high, stderr).

    Parameters
    ----------
    values : (..., n) float64
    ranges : (..., n) float64
        Length of each value's interval (`NoisyLabels.loss_range`).
    confidence : float
    least, most : float, or (...) array
        The ends are cut to this range; an interval that lies outside of it becomes the whole range.

    Notes
    -----
    The interval is mean +- z sqrt(sum (v - mean)^2 + z^2 R^2) / n with R = sum r^3 / sum r^2: z^2
    observations at the full range are added to the variance. If all values are equal, z^2 R / n is
    left, which is Wilson's upper end z^2 / n at 0 of n successes (range 1); the variance of the
    values alone would be 0. R weighs the ranges by their third moments, as the error of the normal
    approximation does (Berry-Esseen). With few rows the interval is a little wide; with many it is
    wider than the normal one by a factor of 1 + z^2 R^2 / (2 n variance). Cost O(n).

    References
    ----------
    Wilson (1927), "Probable inference, the law of succession, and statistical inference"; Agresti
    and Coull (1998), "Approximate is better than 'exact' for interval estimation of binomial
    proportions".
    """
    z, n = quantile(confidence), values.shape[-1]
    mean = values.mean(axis=-1)
    stderr = (
        np.sqrt(((values - mean[..., None]) ** 2).sum(axis=-1) + (z * typical_length(ranges)) ** 2)
        / n
    )
    low, high = mean - z * stderr, mean + z * stderr
    inside = (low <= most) & (high >= least)
    return (
        mean,
        np.where(inside, np.maximum(low, least), least),
        np.where(inside, np.minimum(high, most), most),
        stderr,
    )


def typical_length(ranges: Floats) -> Floats:
    """Weigh the lengths (..., n) of the rows' intervals by their squares: (...)."""
    squares = (ranges**2).sum(axis=-1)
    return np.asarray(
        np.where(squares > 0, (ranges**3).sum(axis=-1) / np.where(squares > 0, squares, 1.0), 0.0)
    )


def quantile(confidence: float) -> float:
    """Return the two-sided normal quantile of a confidence in (0, 1)."""
    # A confidence that rounds to 1 has an infinite quantile, and would give intervals of NaN.
    return NormalDist().inv_cdf(
        min(0.5 + _validate.fraction(confidence=confidence) / 2, 1.0 - 2.0**-53)
    )


# Ratios
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Terms:
    """What rows add to a statistic.

    Attributes
    ----------
    values : (n,) float64
        Their mean is the statistic; their variance / n is its variance.
    slopes : (n,) float64, or a number
        Derivative of each value by the row's own stand-in.
    """

    values: Floats
    slopes: Floats | float

    def given(self, known: "Terms", rate: float) -> "Terms":
        """Use that the mean of other terms is known: subtract their excess over it, times the
        coefficient of least variance.

        Parameters
        ----------
        known : Terms of the same rows
        rate : float
            The true mean of `known`.

        References
        ----------
        The regression estimator: Cochran (1977), "Sampling Techniques", chapter 7.
        """
        excess = known.values - known.values.mean()
        square = float((excess**2).sum())
        share = float((excess * self.values).sum()) / square if square > 0 else 0.0
        return Terms(
            self.values - share * (known.values - rate), self.slopes - share * known.slopes
        )


def ratio(
    top: Terms,
    bottom: Terms,
    reach: Floats,
    confidence: float,
    *,
    least: float = 0.0,
    most: float = 1.0,
) -> Estimate:
    """Estimate a ratio of two means of the same rows, the lower one above 0.

    Parameters
    ----------
    top, bottom : Terms of n rows
    reach : (n,) float64
        Range of each row's stand-in over the outputs of its law.
    confidence : float
    least, most : float
        Finite range of the ratio.

    Notes
    -----
    The interval holds all ratios r in the range for which the interval of `mean_interval` of top -
    r bottom, whose true mean is 0, holds 0 (Fieller's method, with the covariance of both). To
    first order this is the delta method, but the coverage stays right where the lower mean is
    hardly above 0, as for a rare class: the interval then becomes the whole range. Cost O(n), some
    20 passes.

    References
    ----------
    Fieller (1954), "Some problems in interval estimation".
    """
    a, b, z = float(top.values.mean()), float(bottom.values.mean()), quantile(confidence)

    def error(r: float) -> float:
        """Compute the standard error of the mean of top - r bottom."""
        values = top.values - r * bottom.values
        ranges = reach * np.abs(top.slopes - r * np.asarray(bottom.slopes))
        return float(
            np.sqrt(((values - values.mean()) ** 2).sum() + (z * typical_length(ranges)) ** 2)
            / len(values)
        )

    def outside(r: float) -> float:
        return abs(a - r * b) - z * error(r)

    value = a / b if b > 0 else float("nan")
    stderr = error(value) / b if b > 0 else float("inf")
    low, high = _where_inside(outside, value, least, most)
    return Estimate(value, low, high, confidence, stderr, least, most)


def _where_inside(
    outside: Callable[[float], float], value: float, least: float, most: float
) -> tuple[float, float]:
    """Find the ends of the part of [least, most] where a function is at most 0, as it is at
    `value`; all of it if there is none."""
    from scipy.optimize import brentq  # here: a machine that only trains does without

    below, above = outside(least) > 0, outside(most) > 0
    if least <= value <= most:
        low = (
            float(brentq(outside, least, value))
            if below and outside(value) < 0
            else value
            if below
            else least
        )
        high = (
            float(brentq(outside, value, most))
            if above and outside(value) < 0
            else value
            if above
            else most
        )
        return low, high
    if below and not above:
        return float(brentq(outside, least, most)), most
    if above and not below:
        return least, float(brentq(outside, least, most))
    return least, most


# Pairs of rows
# --------------------------------------------------------------------------------------------------


def concordance(t: Floats, scores: Floats, weights: Floats) -> tuple[Terms, Terms]:
    """Sum up the places of a class's rows among all rows: what share of the weight lies below each,
    ties half.

    Parameters
    ----------
    t : (n,) float64
        Stand-ins for being of the class.
    scores : (n,) float64
    weights : (n,) float64 >= 0
        Of mean 1.

    Returns
    -------
    places, rates : Terms
        Their means a and p are linear in the stand-ins. Of true labels p is the class's rate, and
        the area under the ROC curve is (a - p^2 / 2) / (p (1 - p)): of two rows of the class one is
        below the other, or they tie. Values are the rows' influences, also as company below other
        rows. Cost O(n log n).
    """
    _, group = np.unique(scores, return_inverse=True)
    of_all, of_yes = np.bincount(group, weights), np.bincount(group, weights * t)
    below = weights * (np.cumsum(of_all) - 0.5 * of_all)[group] / len(t)
    above = weights * (of_yes.sum() - np.cumsum(of_yes) + 0.5 * of_yes)[group] / len(t)
    return Terms(t * below + above - above.mean(), below), Terms(weights * t, weights)


def roc_area(
    t: Floats, scores: Floats, weights: Floats, reach: Floats, confidence: float
) -> Estimate:
    """Estimate the area under the ROC curve: how often a row of a class has a higher score than one
    of the rest, ties half.

    Parameters
    ----------
    t, scores, weights : (n,) float64
        As in `concordance`.
    reach : (n,) float64
        Range of each row's stand-in over the outputs of its law.
    confidence : float

    Notes
    -----
    The value is a ratio of unbiased numbers: products of two rows are unbiased, since their noise
    is independent, and a row's product with itself is y, for which t stands. A sum over pairs is
    quadratic in the noise, so where noise is large its ratio is far from normal, and the interval
    is another one. It is made from a and p of `concordance`, which are nearly normal at any noise.
    Of all points (a, p) with rate and area in [0, 1], it holds the areas of those whose squared
    distance from the estimate, in standard errors, is larger than the nearest one's by at most z^2:
    the likelihood ratio of each area at its best rate. These points are a convex set, so their
    areas are an interval: that of the delta method where noise is small, and all of [0, 1] where it
    hides the class. Cost O(n log n).

    References
    ----------
    Wilks (1938), "The large-sample distribution of the likelihood ratio for testing composite
    hypotheses".
    """
    places, rates = concordance(t, scores, weights)
    n, z, a, p = (
        len(t),
        quantile(confidence),
        float(places.values.mean()),
        float(rates.values.mean()),
    )
    square = p * p - float((weights**2 * (t * t - t)).sum()) / n**2
    value = (a - 0.5 * square) / (p - square) if p > square else float("nan")
    rate, area = min(max(p, 0.0), 1.0), 0.5 if np.isnan(value) else min(max(value, 0.0), 1.0)
    # the direction in which the area changes
    across = np.array([1.0, -(area + (1 - 2 * area) * rate)])
    excess = np.stack([places.values - a, rates.values - p])
    slopes = np.stack([places.slopes, rates.slopes]) * reach
    full, length = slopes @ slopes.T / n, float(typical_length(np.abs(across @ slopes)))
    seen = float(across @ full @ across)
    # What `mean_interval` adds to a variance, made a matrix that adds as much across.
    spread = (excess @ excess.T + z**2 * full * (length**2 / seen if seen > 0 else 1.0)) / n**2
    distance = _AreaDistance(a, p, spread)
    nearest, least = distance.nearest()
    low, high = _where_inside(lambda r: distance(r) - least - z**2, nearest, 0.0, 1.0)
    if 0 <= value <= 1:
        low, high = min(low, value), max(high, value)
    stderr = float(np.sqrt(across @ spread @ across)) / (p - square) if p > square else float("inf")
    return Estimate(value, low, high, confidence, stderr, 0.0, 1.0)


class _AreaDistance:
    """The squared distance, in standard errors, of an estimate (a, p) from the points of an area:
    (r p + (1/2 - r) p^2, p), p in [0, 1]."""

    def __init__(self, a: float, p: float, spread: Floats) -> None:
        self._a, self._p, self._variance = a, p, float(spread[1, 1])
        self._slope = float(spread[0, 1]) / self._variance
        # Where all scores tie, a tells nothing beside p.
        self._rest = max(
            float(spread[0, 0]) - self._slope * float(spread[0, 1]), 1e-12 * self._variance
        )

    def __call__(self, r: float) -> float:
        gap = np.polynomial.Polynomial([self._slope * self._p - self._a, r - self._slope, 0.5 - r])
        square = (
            gap**2 / self._rest + np.polynomial.Polynomial([-self._p, 1.0]) ** 2 / self._variance
        )
        turns = np.clip(square.deriv().roots().real, 0.0, 1.0)
        return float(square(np.append(turns, [0.0, 1.0])).min())

    def nearest(self) -> tuple[float, float]:
        """Find the area in [0, 1] of the nearest point, and its distance."""
        a, p = self._a, self._p
        if 0 < p < 1 and 0 <= a - p * p / 2 <= p * (1 - p):
            return (a - p * p / 2) / (p * (1 - p)), 0.0
        none, whole = self(0.0), self(1.0)  # the areas 0 and 1 bound all points
        return (0.0, none) if none <= whole else (1.0, whole)


def average_precision(
    t: Floats,
    scores: Floats,
    weights: Floats,
    reach: Floats,
    known: float | None,
    confidence: float,
) -> Estimate:
    """Estimate the sum, over rows of a class, of the precision among rows of at least their score,
    over the class's rate.

    Parameters
    ----------
    t, scores, weights, reach
        As in `roc_area`.
    known : float or None
        The class's rate, if it is known.
    confidence : float

    Notes
    -----
    The sum is that of `PrecisionSum`. A standard error at the estimate is too small wherever noise
    has made the estimate too small. So the interval is Fieller's for the larger of two standard
    errors, one at the estimate and one at the ratio in question: the sum is quadratic in the
    stand-ins, so what rows add to it is larger by the root of the factor by which the sum would be,
    from 1/2 to 2: farther off its shape would be another, too. Cost O(n log n), and some 40 passes.
    """
    found, rates = PrecisionSum.of(t, scores, weights), Terms(weights * t, weights)
    rate = found.possible_rate if known is None else known
    possible, z, n = found.possible / rate if rate > 0 else 0.0, quantile(confidence), len(t)
    bottom = rates if known is None else Terms(np.full(n, known), 0.0)

    def top(factor: float) -> Terms:
        terms = Terms(found.mean + factor * found.terms.values, factor * found.terms.slopes)
        return terms if known is None else terms.given(rates, known)

    def apart(r: float, factor: float) -> tuple[float, float]:
        """Compute the mean of top - r bottom, and its standard error."""
        above = top(factor)
        values = above.values - r * bottom.values
        ranges = reach * np.abs(above.slopes - r * np.asarray(bottom.slopes))
        square = (
            ((values - values.mean()) ** 2).sum() + found.pairs + (z * typical_length(ranges)) ** 2
        )
        return float(values.mean()), float(np.sqrt(square)) / n

    def outside(r: float) -> float:
        factors = (
            (1.0, float(np.sqrt(min(max(r / possible, 0.5), 2.0)))) if possible > 0 else (1.0,)
        )
        return min(
            abs(mean) - z * error for mean, error in (apart(r, factor) for factor in factors)
        )

    below = float(bottom.values.mean())
    value = float(top(1.0).values.mean()) / below if below > 0 else float("nan")
    low, high = _where_inside(outside, value, 0.0, 1.0)
    return Estimate(
        value,
        low,
        high,
        confidence,
        apart(value, 1.0)[1] / below if below > 0 else float("inf"),
        0.0,
        1.0,
    )


@dataclass(frozen=True, eq=False)
class PrecisionSum:
    """The mean, over all rows, of y times the precision among rows of at least the row's score;
    over the class's rate: average precision.

    Attributes
    ----------
    mean : float
        Unbiased for mean_i y_i (sum_{j: s_j >= s_i} y_j) / m_i, where m_i is the number of rows in
        the sum: a row's product with itself is y_i, for which t_i stands, and products of two rows
        are unbiased, since their noise is independent.
    terms : Terms of mean 0
        Influences of the rows, as members of the class, as company above a row, and in the counts
        m, at the possible counts.
    pairs : float
        What products of two rows' noise add to the variance, times n^2.
    possible, possible_rate : float
        This mean, and the class's rate, of the nearest counts of the class at each score or above
        that are possible.
    """

    mean: float
    terms: Terms
    pairs: float
    possible: float
    possible_rate: float

    @classmethod
    def of(cls, t: Floats, scores: Floats, weights: Floats) -> "PrecisionSum":
        """Sum up; `t`, `scores` and `weights` as in `roc_area`. Cost O(n log n)."""
        ranks, group = np.unique(-scores, return_inverse=True)  # groups from the highest score down

        def from_above(values: Floats) -> Floats:
            return np.asarray(np.cumsum(np.bincount(group, values, len(ranks))))

        def from_below(values: Floats) -> Floats:
            return np.asarray((values.sum() - np.cumsum(values) + values)[group])

        mine, m = weights * t, from_above(weights)
        m = np.where(m > 0, m, 1.0)
        counts = from_above(mine)
        mean = float((mine * (weights + counts[group] - mine) / m[group]).mean())
        counts = np.clip(counts, 0.0, m)
        steps, rates = np.diff(counts, prepend=0.0), counts / m
        own, above = weights / m[group], rates[group]
        slopes = weights * (above + own * (1 - above) + from_below(steps / m) - own * above)
        values = slopes * t - weights * from_below(steps * rates / m)
        noise = (weights * (t - above)) ** 2
        pairs = float((noise * (from_above(noise)[group] - noise) / m[group] ** 2).sum())
        n = len(t)
        return cls(
            mean,
            Terms(values - values.mean(), slopes),
            pairs,
            float((steps * rates).sum()) / n,
            float(counts[-1]) / n,
        )
