# SPDX-License-Identifier: Apache-2.0
"""Shares, means and quantiles of the true labels, overall and by public groups, and differences
between groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression
from scipy.special import ndtr

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.evidence import Block, NoisyLabels
from labeldp.evidence._noisy import column_block
from labeldp.laws import Grid, Independent, Law, OneColumn, PriorSplit, Threshold
from labeldp.protocol._statistics import mean_interval, number_text, quantile, typical_length
from labeldp.protocol.metrics import Estimate, likeliest_frequencies
from labeldp.stats._columns import (
    Codes,
    Column,
    Design,
    Floats,
    Levels,
    Rows,
    design_of,
    levels_of,
    matched,
    numbers_of,
    require_noisy,
    require_rank,
    rows_of,
)

_SAMPLE = 4096  # rows from which the ranges of estimates are averaged
_STEPS = 60  # of Newton's method on class frequencies, which takes about six
_ROUNDING = 1e-9
_GUESSES = 50  # rounds of EM towards the frequencies that weigh rows of one bit


# What each row tells of the class frequencies
# -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Contributions:
    """One vector for each row, whose mean estimates the class frequencies.

    Attributes
    ----------
    noisy : NoisyLabels of n rows, all with evidence
    table : (n, K) float64
        Rows sum to 1. Unbiased weights of the law; or the estimate plus the influence of each row
        on it.
    unbiased : bool
        True for weights of the law: then rows may be asked different questions, whatever these
        depend on.
    known : (K, K) float64
        Projection on the differences of frequencies that the evidence tells.
    spans : (n, K) float64, optional
        Of rows that answer by one bit: the difference between their vectors of either answer.
    answered : (n,) float64, optional
        Of rows that answer by one bit: the probability of the given answer at the estimated
        frequencies.
    information : (K, K) float64, optional
        Of rows that answer by one bit: the inverse of the covariance of their estimate, at a guess
        of the frequencies.
    lengths : function, optional
        Of rows that answer by one bit, alone or beside others: computes, from numbers (K,), how far
        a row's estimates of their mean lie apart: (m,) float64, of some rows.
    """

    noisy: NoisyLabels
    table: Floats
    unbiased: bool
    known: Floats
    spans: Floats | None = None
    answered: Floats | None = None
    information: Floats | None = None
    lengths: Callable[[Floats], Floats] | None = None

    def ranges(self, numbers: Floats) -> float:
        """Compute the typical range of a row's estimate of the mean of these numbers (K,), over the
        outputs of its law."""
        if self.lengths is not None:
            return float(typical_length(self.lengths(numbers)))
        if not self.unbiased:
            return float(np.ptp(self.table @ numbers)) if len(self.table) else 0.0
        sample = self.noisy[:: max(1, len(self.noisy) // _SAMPLE)]
        return float(typical_length(sample.loss_range(np.tile(numbers, (len(sample), 1)))))

    def tells(self, numbers: Floats) -> bool:
        """Return whether the evidence tells the mean of these numbers (K,)."""
        centred = numbers - numbers.mean()
        return bool(
            np.abs(centred - self.known @ centred).max(initial=0.0)
            <= 1e-6 * max(float(np.abs(centred).max(initial=0.0)), 1e-300)
        )


def contributions_of(noisy: NoisyLabels) -> Contributions:
    """Compute what each row tells: the law's unbiased weights if every row has them for its own
    question, else by its questions together.

    Parameters
    ----------
    noisy : NoisyLabels of n rows with evidence

    Notes
    -----
    Unbiased weights need no model: each row's expectation over its law is the indicator of its
    label.

    Weights that are unbiased over the drawn questions only (Threshold) vary more than estimates
    that take the questions as given. So these come first (`_of_bits`, `_likeliest`; they take it
    that labels do not depend on the rows' questions), and the weights are taken where rows are too
    few for them.
    """
    own = noisy.invertible
    weights = (
        Contributions(noisy, noisy.class_weights(), True, _contrasts(noisy.n_classes))
        if own.all()
        else None
    )
    if weights and all(type(block.law).questions is Law.questions for block in noisy.blocks):
        return weights
    once = sum(len(block.rows) for block in noisy.blocks) == len(noisy)
    bits = np.zeros(len(noisy), bool)
    for block in noisy.blocks:
        bits[block.rows] |= isinstance(block.law, PriorSplit | Threshold)
    if not (once and bits.any() and own[~bits].all()):
        found = _likeliest(noisy)
    else:
        found = _of_bits(noisy) if bits.all() else _together(noisy, bits)
    if weights and np.abs(_contrasts(len(found.known)) - found.known).max() > 1e-6:
        return weights
    return found


def asked_by_prior(block: Block) -> bool:
    """Return whether a prior may have chosen what rows were asked; a threshold shows by its chance
    whether there was one."""
    law = block.law
    if isinstance(law, Independent | OneColumn):
        return any(
            asked_by_prior(column_block(block, law.sizes, number))
            for number in range(len(law.sizes))
        )
    if isinstance(law, Threshold):
        # A prior changes the chance of every threshold or of none: those near the best one gain
        # what the others lose.
        return bool((block.side["chance"] != 1.0 / (law.n_classes - 1)).any())
    return law.uses_prior


def _contrasts(k: int) -> Floats:
    return np.asarray(np.eye(k) - 1 / k)


def _of_bits(noisy: NoisyLabels) -> Contributions:
    """Estimate from rows that each answer one question by one bit.

    The likelihood has no maximum as soon as all answers to one question are alike, which a large
    epsilon makes likely. But the indicator of the given answer, 1, has the expectation L_i p,
    linear in the frequencies p: they are found by least squares, weighted by the inverse of its
    variance L_i p (1 - L_i p) at a guess of p. Given the questions the estimate is linear in the
    bits, and unbiased for a fixed guess; where questions are as many as unknowns (thresholds), no
    guess matters. Each residual is divided by the root of one minus its leverage (HC2), without
    which few rows a question would make the variance too small. If a row decides more than half of
    its own fit, rows are too few for a variance. Cost O(n K^2).

    References
    ----------
    MacKinnon and White 1985, "Some heteroskedasticity-consistent covariance matrix estimators with
    improved finite sample properties".
    """
    likelihood = noisy.likelihood(dtype="float64")
    # the probability of the answer; the other has the rest
    likelihood /= (likelihood.max(axis=1) + likelihood.min(axis=1))[:, None]
    k = noisy.n_classes
    p = np.full(k, 1 / k)
    for _ in range(_GUESSES):
        p = p * (1 / (likelihood @ p) @ likelihood) / len(likelihood)
    p = 0.99 * p + 0.01 / k  # no answer is impossible
    guessed = likelihood @ p
    weights = 1 / (guessed * (1 - guessed))
    centred = likelihood @ _contrasts(k)
    information = (centred * weights[:, None]).T @ centred
    inverse = np.linalg.pinv(information, rcond=_ROUNDING, hermitian=True)
    pull = (centred * weights[:, None]) @ inverse
    p = p + (1 - guessed) @ pull
    leverage = (pull * centred).sum(axis=1)
    if leverage.max() > 0.5 + 1e-6:
        return _nothing(noisy)
    spans = pull * (len(likelihood) / np.sqrt(1 - leverage))[:, None]
    answered = likelihood @ p
    influence = spans * (1 - answered)[:, None]
    table, known = p + influence - influence.mean(axis=0), inverse @ information
    return Contributions(
        noisy,
        table,
        False,
        known,
        spans,
        answered.clip(0, 1),
        information,
        lengths=lambda numbers: np.abs(spans @ numbers),
    )


def _together(noisy: NoisyLabels, bits: NDArray[np.bool_]) -> Contributions:
    """Combine the estimates of rows that answer by one bit and of the others, which have weights,
    by how precise they are.

    Each is linear in the outputs and unbiased for fixed weights, while maximum likelihood has a
    bias with many classes and few rows: on 64 points and 1,000 rows, half of either kind, its
    intervals cover 88 % instead of 95. The precision of the others is taken as the same for all
    classes. It follows from the mean square of their weights, and from a guess of the frequencies:
    the squares of the deviations from their own mean would depend on it, and are 0 where a few rows
    have the same output.
    """
    k = noisy.n_classes
    asked, others = (np.flatnonzero(each) for each in (bits, ~bits))
    answers, weights = _of_bits(noisy[asked]), noisy[others].class_weights()
    # too few rows: the others alone
    information = np.zeros((k, k)) if answers.information is None else answers.information
    guess = likeliest_frequencies(noisy.likelihood(dtype="float64"))
    guess = 0.99 * guess + 0.01 / k  # no label is certain
    # the expected square of a row's weights is >= 1
    variance = max(1.0, float((weights**2).sum(axis=1).mean())) - float(guess @ guess)
    # of the bits, in the estimate
    share = np.linalg.solve(
        information + np.eye(k) * ((k - 1) * len(others) / variance), information
    )
    rest, spread = _contrasts(k) - share, weights - weights.mean(axis=0)
    p = 1 / k + share @ (answers.table.mean(axis=0) - 1 / k) + rest @ (weights.mean(axis=0) - 1 / k)
    table = np.empty((len(noisy), k))
    table[asked] = p + (answers.table - answers.table.mean(axis=0)) @ share.T * (
        len(noisy) / len(asked)
    )
    table[others] = p + spread @ rest.T * (len(noisy) / len(others))
    step = max(1, len(noisy) // _SAMPLE)
    some = noisy[others[::step]]

    def lengths(numbers: Floats) -> Floats:
        own = (
            np.zeros(len(asked)) if answers.lengths is None else answers.lengths(share.T @ numbers)
        )
        drawn = some.loss_range(np.tile(rest.T @ numbers, (len(some), 1)))
        return np.concatenate(
            [own[::step] * (len(noisy) / len(asked)), drawn * (len(noisy) / len(others))]
        )

    return Contributions(noisy, table, False, _contrasts(k), lengths=lengths)


def _nothing(noisy: NoisyLabels) -> Contributions:
    k = noisy.n_classes
    return Contributions(noisy, np.full((len(noisy), k), 1 / k), False, np.zeros((k, k)))


def _likeliest(noisy: NoisyLabels) -> Contributions:
    """Estimate by maximum likelihood.

    The frequencies p maximise sum_i ln L_i p over all vectors that sum to 1 and leave every row a
    positive probability, L_i p > 0. That set is larger than the simplex (a component may be
    negative), so the estimate is regular also where a true frequency is 0, and its covariance is
    the inverse of the observed information sum_i L_i L_i' / (L_i p)^2 on the differences of
    classes. The objective is concave. Cost O(n K^2) a step, about six steps.
    """
    likelihood = noisy.likelihood(dtype="float64")
    k = noisy.n_classes
    centre = _contrasts(k)
    p = np.full(k, 1 / k)
    total = likelihood @ p
    for _ in range(_STEPS):
        scores = likelihood / total[:, None]
        slope = centre @ scores.sum(axis=0)
        information = centre @ (scores.T @ scores) @ centre
        inverse = np.linalg.pinv(information, rcond=_ROUNDING, hermitian=True)
        step = inverse @ slope
        gain = float(slope @ step)
        if gain < 1e-12 * max(1, len(likelihood)):
            break
        length, moved = 1.0, likelihood @ (p + step)
        # Armijo's rule; a step out of the domain has no logarithm.
        while length > 1e-6 and not (
            moved.min() > 0 and np.log(moved / total).sum() >= 0.25 * length * gain
        ):
            length /= 2
            moved = likelihood @ (p + length * step)
        p, total = p + length * step, moved
        if np.abs(p).max() > 1e3:  # too few rows: the likelihood has no maximum
            return _nothing(noisy)
    scores = likelihood / total[:, None]
    information = centre @ (scores.T @ scores) @ centre / len(likelihood)
    inverse = np.linalg.pinv(information, rcond=_ROUNDING, hermitian=True)
    known = inverse @ information
    return Contributions(noisy, p + (scores - 1.0) @ inverse, False, known)


# Figures
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Figures:
    """Estimates with intervals, a row for each group.

    Attributes
    ----------
    groups : tuple of G values
        ("all rows",) if there are no groups.
    names : tuple of J str or class values
        What is estimated.
    value, low, high, stderr : (G, J) float64
        As in `labeldp.metrics.Estimate`. A group without rows has value NaN, stderr infinity and
        the whole range as its interval; so has what its evidence does not tell.
    n_rows : (G,) int64
        Number of rows with evidence.
    confidence : float
        Of all intervals together if `simultaneous`, else of each one.
    simultaneous : bool
    least, most : float
        Range of what is estimated.
    """

    groups: tuple[object, ...]
    names: tuple[object, ...]
    value: Floats
    low: Floats
    high: Floats
    stderr: Floats
    n_rows: Codes
    confidence: float
    simultaneous: bool
    least: float
    most: float

    def __getitem__(self, key: object) -> Estimate:
        """Return one estimate: figures[name] without groups, or of figures with one name
        figures[group]; else figures[group, name]."""
        single = key if isinstance(key, tuple) and len(key) == 2 and key[0] in self.groups else None
        if single is not None:
            i, j = self.groups.index(single[0]), self._index(self.names, single[1], "names")
        elif len(self.groups) == 1 and key in self.names:
            i, j = 0, self.names.index(key)
        elif len(self.names) == 1:
            i, j = self._index(self.groups, key, "groups"), 0
        else:
            raise InvalidInput(
                f"Expected figures[group, name], got {_validate.shown(key)}. Groups: {self.groups};"
                f" names: {self.names}."
            )
        value, low, high, stderr = (
            float(part[i, j]) for part in (self.value, self.low, self.high, self.stderr)
        )
        return Estimate(value, low, high, self.confidence, stderr, self.least, self.most)

    @staticmethod
    def _index(known: tuple[object, ...], value: object, what: str) -> int:
        if value not in known:
            raise InvalidInput(f"Expected one of the {what} {known}, got {_validate.shown(value)}.")
        return known.index(value)

    def rows(self) -> list[dict[str, object]]:
        """Return one dict a figure (group, name, value, low, high, stderr, n_rows), as
        `pandas.DataFrame` takes them."""
        return [
            {
                "group": group,
                "name": name,
                "value": float(self.value[i, j]),
                "low": float(self.low[i, j]),
                "high": float(self.high[i, j]),
                "stderr": float(self.stderr[i, j]),
                "n_rows": int(self.n_rows[i]),
            }
            for i, group in enumerate(self.groups)
            for j, name in enumerate(self.names)
        ]

    def __str__(self) -> str:
        kind = "all intervals together" if self.simultaneous else "each interval by itself"
        shown = [
            [
                str(row["group"]),
                str(row["n_rows"]),
                str(row["name"]),
                *(digits_text(row[name]) for name in ("value", "low", "high")),
            ]
            for row in self.rows()
        ]
        head = ["group", "rows", "", "estimate", "low", "high"]
        if self.groups == ("all rows",):
            head, shown = head[2:], [line[2:] for line in shown]
        return text_table(head, shown) + f"\n{self.confidence:.0%} confidence, {kind}"


def digits_text(value: Any) -> str:
    """Show a number as `number_text` does, or by four digits if it is small, as p-values are."""
    return f"{value:.4g}" if 0 < abs(value) < 1e-3 else number_text(value)


def text_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Align the cells of a table: the first column to the left, the others to the right."""
    widths = [max(len(line[j]) for line in (head, *lines)) for j in range(len(head))]
    text = [
        [
            cell.ljust(w) if j == 0 else cell.rjust(w)
            for j, (cell, w) in enumerate(zip(line, widths, strict=True))
        ]
        for line in (head, *lines)
    ]
    return "\n".join("  ".join(line).rstrip() for line in text)


def frequencies(
    noisy: NoisyLabels,
    by: Column = None,
    *,
    groups: Sequence[object] | None = None,
    units: Column = None,
    ids: ArrayLike | None = None,
    confidence: float = 0.95,
    simultaneous: bool = True,
) -> Figures:
    """Estimate the share of each class among the true labels, overall or in each public group.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
        Rows without evidence, which are over their unit's cap, are left out: the figure is one of
        the rows within the cap.
    by : (n,) or (n, columns) public column, optional
        Group of each row: an array, or a column or table of pandas, polars or Arrow. None
        (default): all rows are one group.
    groups : sequence, optional
        Values of `by` in the order wanted; they may have no rows. None (default): its values,
        sorted, or the categories of a categorical.
    units : (n,) public column, optional
        Unit of each row. Standard errors then allow labels of one unit to depend on each other.
    ids : (n,) array, optional
        Ids of the rows of `by` and `units`, by which they are matched; needed for a released table,
        whose rows are shuffled.
    confidence : float
    simultaneous : bool
        True (default): all intervals hold together with this confidence, by Sidak's bound; False:
        each by itself.

    Returns
    -------
    Figures
        Names are the classes. Values are unbiased, so noise can carry one below 0 or above 1;
        intervals are cut to [0, 1].

    Raises
    ------
    InvalidInput
        Columns do not match the noisy labels, or values are missing.

    See Also
    --------
    labeldp.metrics.class_frequencies : The same overall, without groups and units.

    Notes
    -----
    Guarantee: post-processing of released outputs; it costs no privacy, however often it is called,
    and reads no raw label.

    Intervals are about the population from which the rows are drawn, so they contain sampling error
    and noise. They are those of `labeldp.protocol.metrics.mean_interval`, with sums over units in
    place of rows if units are given. With m intervals each has confidence c^(1/m): exact for groups
    without common units, and never too little (in the normal limit) for any dependence. Where a law
    has no unbiased estimator for each question, estimates are weighted least squares of bits
    (PriorSplit, Threshold) or maximum-likelihood ones. Both take it that within each group the
    prior by which rows were asked does not tell rows apart: that holds without a prior, or with one
    for all rows, or one a group. If a model made it, use `noisy.measurable` (the rows of a first
    stage), or `regress` on the features of the model. Where rows are too few for these, unbiased
    weights are taken, if the law has some over its questions (Threshold); else the value is NaN.

    Cost: O(n K) for laws with unbiased weights, O(n K^2) otherwise.

    References
    ----------
    Sidak 1967, "Rectangular confidence regions for the means of multivariate normal distributions".

    Examples
    --------
    >>> import labeldp as ldp, numpy as np
    >>> labels = ldp.PrivateLabels(np.arange(3000) % 3, classes=range(3), noise=ldp.SeededNoise(0))
    >>> noisy = ldp.privatize(labels, ldp.RandomizedResponse(3, epsilon=2.0))
    >>> shares = ldp.stats.frequencies(noisy, by=np.arange(3000) // 1500)
    >>> bool((shares.low < 1 / 3).all() and (1 / 3 < shares.high).all())
    True
    """
    rows = rows_of(noisy, by, groups=groups, units=units, ids=ids)
    return figures_of(rows, np.eye(noisy.n_classes), noisy.classes, confidence, simultaneous)


def mean(
    noisy: NoisyLabels,
    by: Column = None,
    *,
    of: object = None,
    groups: Sequence[object] | None = None,
    units: Column = None,
    ids: ArrayLike | None = None,
    confidence: float = 0.95,
    simultaneous: bool = True,
) -> Figures:
    """Estimate the mean of the true labels as numbers, or the share of some classes, overall or in
    each public group.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
    by : (n,) or (n, columns) public column, optional
    of : None, class value, collection of class values, or mapping, optional
        None (default): the class values are numbers. A class value, or several: their share. A
        mapping: the number of each class.
    groups, units, ids, confidence, simultaneous
        As for `frequencies`.

    Returns
    -------
    Figures
        One name, "mean".

    Raises
    ------
    InvalidInput
        As for `frequencies`; or class values are no numbers.

    Notes
    -----
    Guarantee, intervals and cost as for `frequencies`.

    Examples
    --------
    >>> import labeldp as ldp, numpy as np
    >>> labels = ldp.PrivateLabels(np.arange(5000) % 5, classes=range(5), noise=ldp.SeededNoise(0))
    >>> noisy = ldp.privatize(labels, ldp.SubsetSelection(5, epsilon=2.0))
    >>> found = ldp.stats.mean(noisy)["mean"]
    >>> found.low < 2.0 < found.high
    True
    """
    numbers = numbers_of(require_noisy(noisy), of)
    rows = rows_of(noisy, by, groups=groups, units=units, ids=ids)
    return figures_of(rows, numbers[None], ("mean",), confidence, simultaneous)


def quantiles(
    noisy: NoisyLabels,
    by: Column = None,
    *,
    q: Sequence[float] = (0.25, 0.5, 0.75),
    groups: Sequence[object] | None = None,
    units: Column = None,
    ids: ArrayLike | None = None,
    confidence: float = 0.95,
    simultaneous: bool = True,
) -> Figures:
    """Estimate quantiles of the true labels, whose class values are numbers, overall or in each
    public group.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
    by : (n,) or (n, columns) public column, optional
    q : sequence of float in (0, 1)
        Quartiles by default. The q-quantile is the least class value t with P(label <= t) >= q.
    groups, units, ids, confidence, simultaneous
        As for `frequencies`.

    Returns
    -------
    Figures
        Names are q. Values are class values; stderr is NaN. Intervals of a `Grid`, to whose points
        numbers were rounded, are about the numbers before that: they reach half a step beyond the
        points, within the range.

    Raises
    ------
    InvalidInput
        As for `mean`; or a q is not between 0 and 1.

    Notes
    -----
    The distribution function is estimated at each class value and made monotone by isotonic
    regression. The interval is Woodruff's: from the first value whose upper bound reaches q to the
    last one before which a lower bound is below q. As values are discrete, it covers the quantile
    with at least the stated confidence. Rounding keeps the order of numbers, so it moves a quantile
    by half a step at most. Numbers outside of a grid's range count as its ends. Cost O(n K).

    References
    ----------
    Woodruff 1952, "Confidence intervals for medians and other position measures".
    """
    numbers = numbers_of(require_noisy(noisy))
    wanted = tuple(_validate.fraction(q=value, fix="The median is q=0.5.") for value in q)
    rows = rows_of(noisy, by, groups=groups, units=units, ids=ids)
    order = np.argsort(numbers, kind="stable")
    points = numbers[order]
    below = np.zeros((len(order), len(order)))
    below[:, order] = np.tri(len(order))
    g = len(rows.groups.values)
    each = _each(rows, confidence, len(wanted), simultaneous)
    curve = figures_of(rows, below, tuple(points.tolist()), each, False)
    cells = np.full((3, g, len(wanted)), np.nan)
    for i in range(g):
        for j, level in enumerate(wanted):
            cells[:, i, j] = _inverted(points, curve.value[i], curve.low[i], curve.high[i], level)
    value, low, high = cells
    ends = float(points[0]), float(points[-1])
    if isinstance(noisy.classes, Grid):
        half = noisy.classes.resolution / 2
        low, high = np.maximum(low - half, ends[0]), np.minimum(high + half, ends[1])
    return Figures(
        rows.groups.values,
        wanted,
        value,
        low,
        high,
        np.full_like(value, np.nan),
        curve.n_rows,
        confidence,
        simultaneous,
        *ends,
    )


def _inverted(
    points: Floats, curve: Floats, low: Floats, high: Floats, level: float
) -> tuple[float, float, float]:
    """Invert an estimated distribution function and its bounds at a level: quantile and ends of its
    interval."""
    if not np.isfinite(curve).all():
        return np.nan, float(points[0]), float(points[-1])
    last = len(points) - 1  # where the distribution function is 1, whatever was released
    smooth = isotonic_regression(curve).x
    value = int(np.argmax(np.append(smooth[:-1], np.inf) >= level))
    first = int(np.argmax(np.append(high[:-1], np.inf) >= level))
    short = np.flatnonzero(low[:-1] < level)
    end = min(int(short[-1]) + 1, last) if len(short) else 0
    return float(points[value]), float(points[first]), float(points[end])


def _each(rows: Rows, confidence: float, count: int, simultaneous: bool) -> float:
    """Compute the confidence of each interval, of `count` a group, where they hold together if
    `simultaneous` (Sidak 1967)."""
    asked = _validate.fraction(confidence=confidence)
    # of a group without rows the interval is the whole range, and holds whatever the confidence is
    filled = len(np.unique(rows.groups.codes[rows.groups.codes >= 0]))
    return float(asked ** (1 / max(1, filled * count))) if simultaneous else asked


def figures_of(
    rows: Rows, numbers: Floats, names: tuple[object, ...], confidence: float, simultaneous: bool
) -> Figures:
    """Estimate the means of numbers (J, K) in each group."""
    _validate.boolean(simultaneous=simultaneous)
    _require_told(rows.noisy, numbers)
    members = members_of(rows)
    cells, n_rows = (
        np.empty((4, len(members), len(numbers))),
        np.array([len(mine) for mine in members], np.int64),
    )
    each = _each(rows, confidence, len(numbers), simultaneous)
    for i, mine in enumerate(members):
        cells[:, i] = _estimates(
            rows.noisy[mine], None if rows.units is None else rows.units[mine], numbers, each
        )
    low, high = float(numbers.min()), float(numbers.max())
    value, bottom, top, stderr = cells
    return Figures(
        rows.groups.values,
        names,
        value,
        bottom,
        top,
        stderr,
        n_rows,
        confidence,
        simultaneous,
        low,
        high,
    )


def _require_told(noisy: NoisyLabels, numbers: Floats) -> None:
    """Refuse means of numbers (J, K) of combinations that are no sums over columns, if each row was
    asked about one column."""
    laws = [block.law for block in noisy.blocks]
    sizes = next((law.sizes for law in laws if isinstance(law, OneColumn)), ())
    if not sizes or not all(isinstance(law, OneColumn) for law in laws):
        return
    rest = (numbers - numbers.mean(axis=1, keepdims=True)).reshape(-1, *sizes)
    for axis in range(1, rest.ndim):
        rest = rest - rest.mean(
            axis=tuple(other for other in range(1, rest.ndim) if other != axis), keepdims=True
        )
    if np.abs(rest).max(initial=0.0) > 1e-9 * np.abs(numbers).max(initial=0.0):
        raise InvalidInput(
            "Expected a draw that tells how columns go together, got split 'one', which asks each"
            " row about one column. Estimate each column, noisy[name], or release with split"
            " 'joint' or 'equal' to estimate combinations."
        )


def _estimates(
    noisy: NoisyLabels, units: Codes | None, numbers: Floats, confidence: float
) -> Floats:
    """Estimate the means of numbers (J, K) over these rows: (4, J) of value, low, high and
    stderr."""
    least, most = numbers.min(axis=1), numbers.max(axis=1)
    unknown = np.stack([np.full(len(numbers), np.nan), least, most, np.full(len(numbers), np.inf)])
    if not len(noisy):
        return unknown
    part = contributions_of(noisy)
    found = np.empty((4, len(numbers)))
    for j, row in enumerate(numbers):
        values, ranges = by_units(part.table @ row, part.ranges(row), units)
        found[:, j] = np.stack(
            mean_interval(values, ranges, confidence, least=float(least[j]), most=float(most[j]))
        )
        if not part.tells(row):
            found[:, j] = unknown[:, j]
    return found


def by_units(values: Floats, length: float, units: Codes | None) -> tuple[Floats, Floats]:
    """Return values and ranges of independent units whose plain mean, and its variance, are those
    of the rows' mean.

    Parameters
    ----------
    values : (n,) float64
    length : float
        Range of a row's value.
    units : (n,) int64 or None
        None: rows are independent.

    Notes
    -----
    With s_u the sum over the n_u rows of unit u of U, the mean of m + (s_u - n_u m) U / n over
    units is m = sum s_u / n, and its variance sum (s_u - n_u m)^2 / n^2: the usual linearised
    variance of a ratio.
    """
    if units is None:
        return values, np.array([length])
    _, codes = np.unique(units, return_inverse=True)
    sizes = np.bincount(codes.reshape(-1)).astype(np.float64)
    average = float(values.mean())
    sums = np.bincount(codes.reshape(-1), values - average)
    scale = len(sizes) / len(values)
    return np.asarray(average + sums * scale), np.asarray(length * sizes * scale)


# Differences
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference(Estimate):
    """The difference of two means, second minus first, with a test of no difference.

    Attributes
    ----------
    groups : tuple of two values
        (first, second), for an effect (control, treatment).
    means : tuple of two floats
        Estimated mean of each; NaN, as the difference then is, where the evidence does not tell it.
    n_rows : tuple of two ints
        Rows with evidence of each.
    adjusted : bool
        Whether covariates were adjusted for. Then the difference is not that of `means`.
    """

    groups: tuple[object, object] = (None, None)
    means: tuple[float, float] = (float("nan"), float("nan"))
    n_rows: tuple[int, int] = (0, 0)
    adjusted: bool = False

    @property
    def pvalue(self) -> float:
        """Two-sided p-value of no difference, by the normal distribution."""
        return float(2 * ndtr(-abs(self.value / self.stderr))) if self.stderr else float("nan")

    def __str__(self) -> str:
        first, second = self.groups
        shown = [
            f"{number_text(average)} ({rows} rows)"
            for average, rows in zip(self.means, self.n_rows, strict=True)
        ]
        sizes = f"{first!r}: {shown[0]}, {second!r}: {shown[1]}"
        return (
            f"{second!r} minus {first!r}{', adjusted' * self.adjusted}: {super().__str__()}, p ="
            f" {self.pvalue:.4g}; {sizes}"
        )


def difference(
    noisy: NoisyLabels,
    by: Column,
    *,
    of: object = None,
    groups: Sequence[object] | None = None,
    units: Column = None,
    ids: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Difference:
    """Estimate the difference between two public groups in the mean of the true labels, or in the
    share of some classes.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
    by : (n,) public column
        Group of each row. More than two groups need `groups`.
    of
        As for `mean`.
    groups : sequence of two values, optional
        (first, second): the result is the mean of the second minus that of the first. None
        (default): the two values of `by`, sorted.
    units, ids, confidence
        As for `frequencies`. A unit may have rows in both groups.

    Returns
    -------
    Difference

    Raises
    ------
    InvalidInput
        There are not two groups, one of them has no rows with evidence, or as for `mean`.

    See Also
    --------
    effect : The effect of a randomised treatment, also adjusted for covariates.

    Notes
    -----
    Guarantee and cost as for `frequencies`. The interval is value +- z stderr with the variances of
    both means, and the small-sample term of `labeldp.protocol.metrics.mean_interval` for the sum of
    all rows: for groups of one size half of what both means have alone.

    References
    ----------
    Agresti and Caffo 2000, "Simple and effective confidence intervals for proportions and
    differences of proportions result from adding two successes and two failures", who also add half
    as much to each of two groups as to one.
    """
    numbers = numbers_of(require_noisy(noisy), of)
    rows = rows_of(noisy, by, groups=groups, units=units, ids=ids)
    return _difference(rows, numbers, confidence)


def _difference(rows: Rows, numbers: Floats, confidence: float) -> Difference:
    first, second = pair = _two(rows.groups)
    members = members_of(rows)
    for group, mine in zip(pair, members, strict=True):
        if not len(mine):
            raise InvalidInput(
                f"Expected rows with evidence in both groups, got none in {group!r}."
            )
    z = quantile(confidence)
    parts = [contributions_of(rows.noisy[mine]) for mine in members]
    sums, lengths, average = [], [], []
    for part, mine in zip(parts, members, strict=True):
        values = part.table @ numbers
        average.append(float(values.mean()) if part.tells(numbers) else float("nan"))
        sums.append((values - values.mean()) / len(mine))
        lengths.append(np.full(len(mine), part.ranges(numbers) / len(mine)))
    signed, reach = np.concatenate([-sums[0], sums[1]]), np.concatenate(lengths)
    if rows.units is not None:
        unit = np.concatenate([rows.units[mine] for mine in members])
        signed, reach = np.bincount(unit, signed), np.bincount(unit, reach)
    # as in `mean_interval`, of the values of both groups: z^2 observations at the full range are
    # added to the variance
    variance = (z * float(typical_length(reach))) ** 2
    spread = float(np.ptp(numbers))
    value = average[1] - average[0]
    stderr = np.inf if np.isnan(value) else float(np.sqrt(variance + signed @ signed))
    low, high = max(value - z * stderr, -spread), min(value + z * stderr, spread)
    # the interval lies outside of what is possible, or the evidence tells nothing
    if not low <= high:
        low, high = -spread, spread
    sizes = len(members[0]), len(members[1])
    return Difference(
        value,
        low,
        high,
        confidence,
        stderr,
        -spread,
        spread,
        (first, second),
        (average[0], average[1]),
        sizes,
    )


def _two(
    groups: Levels, what: str = "groups", fix: str = "Name two, groups=(first, second)."
) -> tuple[object, object]:
    if len(groups.values) != 2:
        raise InvalidInput(
            f"Expected two {what}, got {len(groups.values)}:"
            f" {', '.join(map(repr, groups.values[:5]))}. {fix}"
        )
    return groups.values[0], groups.values[1]


def effect(
    noisy: NoisyLabels,
    arm: Column,
    *,
    of: object = None,
    X: Any = None,
    units: Column = None,
    ids: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Difference:
    """Estimate the average treatment effect of a randomised experiment on private outcomes.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
        The outcome.
    arm : (n,) public column of two values
        Arm of each row, assigned at random. The lesser of the two values is the control.
    of
        The outcome as a number, as for `mean`: for a conversion the class, of="yes".
    X : (n, d) public numeric columns, optional
        Covariates from before the treatment, to adjust for.
    units : (n,) public column, optional
        The units that were assigned, such as people with several visits.
    ids, confidence
        As for `frequencies`.

    Returns
    -------
    Difference
        Mean under treatment minus mean under control.

    Raises
    ------
    InvalidInput
        There are not two arms, an arm has no rows with evidence, a unit is in both arms, or
        covariates are asked for where the law has no unbiased estimator.

    Notes
    -----
    Guarantee and cost as for `frequencies`. Without X, it is the difference of means. With X, the
    unbiased estimates of the outcome are regressed on arm, centred X and their products; the
    coefficient of the arm estimates the same effect, whatever the true relation, and its standard
    error is the sandwich one, by units if these are given (Lin 2013). Adjustment removes what X
    explains of the outcome's own variance, not the noise, so at small epsilon it gains little.

    References
    ----------
    Neyman 1923; Lin 2013, "Agnostic notes on regression adjustments to experimental data:
    reexamining Freedman's critique".

    Examples
    --------
    >>> import labeldp as ldp, numpy as np
    >>> arm = np.arange(8000) % 2
    >>> bought = (np.arange(8000) % 10 < 2 + 2 * arm).astype(int)
    >>> labels = ldp.PrivateLabels(bought, classes=[0, 1], noise=ldp.SeededNoise(0))
    >>> noisy = ldp.privatize(labels, ldp.RandomizedResponse(2, epsilon=2.0))
    >>> found = ldp.stats.effect(noisy, arm, of=1)
    >>> found.low < 0.2 < found.high and found.pvalue < 1e-6
    True
    """
    numbers = numbers_of(require_noisy(noisy), of)
    table = None if X is None else design_of(X, intercept=False, noisy=noisy)
    columns, _ = matched(noisy, ids, arm=arm)
    arms = _two(
        levels_of(columns["arm"], "arm"),
        "arms",
        "Pass the rows of two, or compare two of several groups by labeldp.stats.difference.",
    )
    numeric = None if table is None else table.table
    rows = rows_of(noisy, arm, groups=arms, units=units, ids=ids, X=numeric)
    if rows.units is not None:
        # the rows of a unit in both arms say nothing of one treatment against the other
        arm_of = rows.groups.codes
        both = np.intersect1d(rows.units[arm_of == 0], rows.units[arm_of == 1])
        if len(both):
            row = int(np.flatnonzero(rows.units == both[0])[0])
            raise InvalidInput(
                f"Expected each unit in one arm, got {len(both)} in both, such as that of row"
                f" {row}. Leave them out, or compare the groups by labeldp.stats.difference, which"
                " is no effect of a randomised treatment."
            )
    plain = _difference(rows, numbers, confidence)
    if table is None:
        return plain
    return _adjusted(plain, rows, numbers, Design(rows.table, table.names))


def _adjusted(plain: Difference, rows: Rows, numbers: Floats, design: Design) -> Difference:
    if not rows.noisy.invertible.all():
        raise InvalidInput(
            "Expected a law with an unbiased estimator in every row to adjust for covariates. Leave"
            " X out, or regress on arm and X by labeldp.stats.regress, which takes every law."
        )
    treated = (rows.groups.codes == 1).astype(np.float64)[:, None]
    centred = design.table - design.table.mean(axis=0)
    names = ("intercept", "arm", *design.names, *(f"arm x {name}" for name in design.names))
    full = Design(
        np.column_stack([np.ones(len(treated)), treated, centred, treated * centred]), names
    )
    require_rank(full)
    coefficients, covariance = least_squares(
        full.table, rows.noisy.class_weights() @ numbers, rows.units
    )
    value, stderr = float(coefficients[1]), float(np.sqrt(covariance[1, 1]))
    z = quantile(plain.confidence)
    ends = max(value - z * stderr, plain.least), min(value + z * stderr, plain.most)
    low, high = ends if ends[0] <= ends[1] else (plain.least, plain.most)
    return replace(plain, value=value, low=low, high=high, stderr=stderr, adjusted=True)


def least_squares(X: Floats, values: Floats, units: Codes | None) -> tuple[Floats, Floats]:
    """Regress values on a design of full rank: coefficients (p,) and their sandwich covariance (p,
    p), HC1 or clustered by units."""
    q, r = np.linalg.qr(X)
    coefficients = np.linalg.solve(r, q.T @ values)
    bread = np.linalg.inv(r)
    bread = bread @ bread.T
    meat = outer_of(X * (values - X @ coefficients)[:, None], units)
    return coefficients, bread @ meat @ bread * (len(X) / max(1, len(X) - X.shape[1]))


def outer_of(scores: Floats, units: Codes | None) -> Floats:
    """Sum the outer products of scores (n, p) over rows, or over sums of units, then with the
    factor U / (U - 1): (p, p)."""
    if units is None:
        return np.asarray(scores.T @ scores)
    sums = sum_by(scores, units)
    return np.asarray(sums.T @ sums * (len(sums) / max(1, len(sums) - 1)))


def sum_by(table: Floats, units: Codes) -> Floats:
    """Sum the rows of a table (n, p) over each unit: (U, p)."""
    order = np.argsort(units, kind="stable")
    starts = np.flatnonzero(np.diff(units[order], prepend=-1))
    return np.asarray(np.add.reduceat(table[order], starts, axis=0))


def members_of(rows: Rows) -> list[Codes]:
    """List the positions of the rows of each group."""
    return [np.flatnonzero(rows.groups.codes == i) for i in range(len(rows.groups.values))]
