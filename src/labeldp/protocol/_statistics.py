# SPDX-License-Identifier: Apache-2.0
"""Estimates with confidence intervals from independent rows whose labels are known by unbiased stand-ins: means, ratios, pairs of rows.

A *stand-in* t of a row is computed from its noisy label, and its mean over the law's noise is 1 if the row has the class in question, else
0. It can lie far outside of [0, 1]. A row enters every statistic here linearly in its own t, so what a row adds is `Terms`: values, and
their slopes in t.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate

Floats = NDArray[np.float64]


def number_text(value: float) -> str:
    """Show a number plainly, with four decimals, or fewer from a thousand on: 0.2500, 9,126.0 and 49,810."""
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
        The estimate itself: a mean is unbiased, so noise can carry it out of the range of what it estimates; a ratio (recall, an area under
        a curve) divides two unbiased numbers, and is NaN where the lower one is not above 0.
    low, high : float
        Ends of the interval, cut to [least, most]; all of [least, most] if the interval lies outside of it.
    confidence : float
    stderr : float
        Half the width of the uncut interval divided by the normal quantile; of a ratio by the delta method. With many rows it is the
        standard error; with few it is larger (see `mean_interval`).
    least, most : float
        The range of the estimated quantity.
    constant : float or None
        The same figure of a prediction that ignores the features, on the same rows; each metric says which. Does not count in comparisons.
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
        """Whether the interval excludes anything; if not, there are too few rows for this much noise."""
        return self.low > self.least or self.high < self.most

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        value, low, high, least, most = (number_text(each) for each in (self.value, self.low, self.high, self.least, self.most))
        beside = "" if self.constant is None else f", a constant {number_text(self.constant)}"
        if self.undefined:
            return f"cannot tell: {self.undefined}"
        if not self.tells:
            # Chance alone is seldom so far out; a model that has learned the noise of its rows is.
            far = abs(self.value - 0.5 * (self.low + self.high)) > 0.5 * (self.high - self.low)
            seen = " Has the model learned from these rows?" if far else ""
            whole = f"its {self.confidence:.0%} interval is the whole range, {least} to {most}"
            return f"cannot tell: too few rows for this noise; {whole} (estimate {value}{beside}).{seen}"
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


# Means --------------------------------------------------------------------------------------------------------------------------------


def mean_interval(
    values: Floats, ranges: Floats, confidence: float, *, least: float = -np.inf, most: float | Floats = np.inf
) -> tuple[Floats, Floats, Floats, Floats]:
    """Estimate the mean of independent values that each lie in an interval of known length: (mean, low, high, stderr).

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
    The interval is mean +- z sqrt(sum (v - mean)^2 + z^2 R^2) / n with R = sum r^3 / sum r^2: z^2 observations at the full range are added
    to the variance. If all values are equal, z^2 R / n is left, which is Wilson's upper end z^2 / n at 0 of n successes (range 1); the
    variance of the values alone would be 0. R weighs the ranges by their third moments, as the error of the normal approximation does
    (Berry-Esseen). With few rows the interval is a little wide; with many it is wider than the normal one by a factor of
    1 + z^2 R^2 / (2 n variance). Cost O(n).

    References
    ----------
    Wilson (1927), "Probable inference, the law of succession, and statistical inference"; Agresti and Coull (1998), "Approximate is better
    than 'exact' for interval estimation of binomial proportions".
    """
    z, n = quantile(confidence), values.shape[-1]
    mean = values.mean(axis=-1)
    stderr = np.sqrt(((values - mean[..., None]) ** 2).sum(axis=-1) + (z * typical_length(ranges)) ** 2) / n
    low, high = mean - z * stderr, mean + z * stderr
    inside = (low <= most) & (high >= least)
    return mean, np.where(inside, np.maximum(low, least), least), np.where(inside, np.minimum(high, most), most), stderr


def typical_length(ranges: Floats) -> Floats:
    """Weigh the lengths (..., n) of the rows' intervals by their squares: (...)."""
    squares = (ranges**2).sum(axis=-1)
    return np.asarray(np.where(squares > 0, (ranges**3).sum(axis=-1) / np.where(squares > 0, squares, 1.0), 0.0))


def quantile(confidence: float) -> float:
    """Return the two-sided normal quantile of a confidence in (0, 1)."""
    # A confidence that rounds to 1 has an infinite quantile, and would give intervals of NaN.
    return NormalDist().inv_cdf(min(0.5 + _validate.fraction(confidence=confidence) / 2, 1.0 - 2.0**-53))


# Ratios -------------------------------------------------------------------------------------------------------------------------------


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
        """Use that the mean of other terms is known: subtract their excess over it, times the coefficient of least variance.

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
        return Terms(self.values - share * (known.values - rate), self.slopes - share * known.slopes)


def ratio(top: Terms, bottom: Terms, reach: Floats, confidence: float, *, least: float = 0.0, most: float = 1.0) -> Estimate:
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
    The interval holds all ratios r in the range for which the interval of `mean_interval` of top - r bottom, whose true mean is 0, holds 0
    (Fieller's method, with the covariance of both). To first order this is the delta method, but the coverage stays right where the lower
    mean is hardly above 0, as for a rare class: the interval then becomes the whole range. Cost O(n), some 20 passes.

    References
    ----------
    Fieller (1954), "Some problems in interval estimation".
    """
    a, b, z = float(top.values.mean()), float(bottom.values.mean()), quantile(confidence)

    def error(r: float) -> float:
        """Compute the standard error of the mean of top - r bottom."""
        values = top.values - r * bottom.values
        ranges = reach * np.abs(top.slopes - r * np.asarray(bottom.slopes))
        return float(np.sqrt(((values - values.mean()) ** 2).sum() + (z * typical_length(ranges)) ** 2) / len(values))

    def outside(r: float) -> float:
        return abs(a - r * b) - z * error(r)

    value = a / b if b > 0 else float("nan")
    stderr = error(value) / b if b > 0 else float("inf")
    low, high = _where_inside(outside, value, least, most)
    return Estimate(value, low, high, confidence, stderr, least, most)


def _where_inside(outside: Callable[[float], float], value: float, least: float, most: float) -> tuple[float, float]:
    """Find the ends of the part of [least, most] where a function is at most 0, as it is at `value`; all of it if there is none."""
    from scipy.optimize import brentq  # here: a machine that only trains does without

    below, above = outside(least) > 0, outside(most) > 0
    if least <= value <= most:
        low = float(brentq(outside, least, value)) if below and outside(value) < 0 else value if below else least
        high = float(brentq(outside, value, most)) if above and outside(value) < 0 else value if above else most
        return low, high
    if below and not above:
        return float(brentq(outside, least, most)), most
    if above and not below:
        return least, float(brentq(outside, least, most))
    return least, most


# Pairs of rows ------------------------------------------------------------------------------------------------------------------------


def concordance(t: Floats, scores: Floats, weights: Floats) -> tuple[Terms, Terms]:
    """Sum up pairs of a row of the class and a row of the rest: those whose scores are in this order (ties count half), and all.

    Parameters
    ----------
    t : (n,) float64
        Stand-ins for being of the class, n >= 2.
    scores : (n,) float64
    weights : (n,) float64 >= 0

    Returns
    -------
    concordant, pairs : Terms
        Their means are the unbiased U-statistics of E[y (1 - y') k(s, s')] and E[y (1 - y')] over two independent rows; their ratio is the
        area under the ROC curve.

    Notes
    -----
    Values are the leave-one-out projections of the U-statistics, shifted to their means. The variance of a mean of such projections / n
    is at least the jackknife's, which counts the part of second order (the product of two rows' noise) twice, so it errs on the wide side.
    Cost O(n log n).

    References
    ----------
    Hoeffding (1948), "A class of statistics with asymptotically normal distribution"; DeLong, DeLong and Clarke-Pearson (1988), "Comparing
    the areas under two or more correlated receiver operating characteristic curves"; Efron and Stein (1981), "The jackknife estimate of
    variance".
    """
    n = len(t)
    _, group = np.unique(scores, return_inverse=True)
    yes, no = weights * t, weights * (1 - t)
    of_yes, of_no = np.bincount(group, yes), np.bincount(group, no)
    below = (np.cumsum(of_no) - of_no)[group] + 0.5 * (of_no[group] - no)  # other rows of the rest below the row's score
    above = (of_yes.sum() - np.cumsum(of_yes))[group] + 0.5 * (of_yes[group] - yes)
    others = weights / (n - 1)
    concordant, slopes = others * (t * below + (1 - t) * above), others * (below - above)
    rest_no, rest_yes = no.sum() - no, yes.sum() - yes
    pairs, pair_slopes = others * (t * rest_no + (1 - t) * rest_yes), others * (rest_no - rest_yes)
    return Terms(concordant - 0.5 * concordant.mean(), slopes), Terms(pairs - 0.5 * pairs.mean(), pair_slopes)


def precision_sum(t: Floats, scores: Floats, weights: Floats) -> Terms:
    """Sum up, over rows of a class, the precision among rows of at least their score; over the class's rate it is the average precision.

    Parameters
    ----------
    t : (n,) float64
        Stand-ins for being of the class.
    scores : (n,) float64
    weights : (n,) float64 >= 0

    Returns
    -------
    Terms
        The mean is unbiased for mean_i y_i (sum_{j: s_j >= s_i} y_j) / m_i, where m_i is the number of rows in the sum: a row's product
        with itself is y_i, for which t_i stands, and products of two rows are unbiased, since their noise is independent. Values are the
        influences of the rows, as members of the class, as company above a row, and in the counts m. Cost O(n log n).
    """
    ranks, group = np.unique(-scores, return_inverse=True)  # groups from the highest score down
    mine = weights * t
    m = np.cumsum(np.bincount(group, weights, len(ranks)))[group]
    m = np.where(m > 0, m, 1.0)
    company = np.cumsum(np.bincount(group, mine, len(ranks)))[group] - mine  # of other rows, at this score or above
    each = (weights + company) / m

    def from_below(values: Floats) -> Floats:
        """Sum over other rows at this score or below."""
        sums = np.bincount(group, values, len(ranks))
        return np.asarray((sums.sum() - np.cumsum(sums) + sums)[group] - values)

    slopes = weights * (each + from_below(mine / m))
    values = slopes * t - weights * from_below(mine * each / m)
    return Terms(values - values.mean() + float((mine * each).mean()), slopes)
