# SPDX-License-Identifier: Apache-2.0
"""Unbiased metrics of predictions on the true labels, computed from noisy labels alone.

Every number has a confidence interval. Metrics are post-processing: they cost no budget, however often they are computed.

Use rows whose noisy labels the model has not seen. A model fits the noise of its training rows and agrees with these noisy labels more
often than with the truth, so the numbers are far too good there (a 1-nearest-neighbour model seems perfect).
"""

import warnings
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import public_hash
from labeldp.custody._encode import encode
from labeldp.errors import InvalidInput, RawLabelsWarning, SeenRowsWarning
from labeldp.evidence import NoisyLabels

Floats = NDArray[np.float64]

_FLOOR = 1e-15  # the least probability that a log-loss counts


@dataclass(frozen=True)
class Estimate:
    """An unbiased estimate with its confidence interval.

    Attributes
    ----------
    value : float
        Unbiased, so noise can carry it out of the range of what it estimates.
    low, high : float
        Ends of the interval, cut to [least, most]; all of [least, most] if the interval lies outside of it.
    confidence : float
    stderr : float
        Half the width of the uncut interval divided by the normal quantile. With many rows it is the standard error of the mean; with few
        it is larger (see `mean_interval`).
    least, most : float
        The range of the estimated quantity.
    """

    value: float
    low: float
    high: float
    confidence: float = 0.95
    stderr: float = float("nan")
    least: float = -np.inf
    most: float = np.inf

    @property
    def tells(self) -> bool:
        """Whether the interval excludes anything; if not, there are too few rows for this much noise."""
        return self.low > self.least or self.high < self.most

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        if not self.tells:
            seen = (
                ", or rows that the model learned from"
                if abs(self.value - 0.5 * (self.low + self.high)) > 0.5 * (self.high - self.low)
                else ""
            )
            return f"{self.value:.4f} (too few rows to tell{seen})"
        return f"{self.value:.4f} ({self.confidence:.0%} interval {self.low:.4f} to {self.high:.4f})"


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


class _Classifier(Protocol):
    def predict(self, X: object) -> ArrayLike: ...

    def predict_proba(self, X: object) -> ArrayLike: ...


def accuracy(noisy: NoisyLabels, predictions: ArrayLike, *, confidence: float = 0.95) -> Estimate:
    """Estimate how often predictions equal the true labels.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
        Rows that the model did not learn from: on its own training rows the result is biased upwards, often grossly.
    predictions : (n,) array of class values
    confidence : float

    Returns
    -------
    Estimate
        If one law covers all rows, it is (noisy agreement - other) / (own - other), where own and other are the law's probabilities that an
        output contains the true class and another class. The interval is `mean_interval`'s.

    Raises
    ------
    InvalidInput
        If some row has no unbiased estimator: its law answers within a subset of the classes, or it was not drawn.

    Examples
    --------
    >>> import labeldp as ldp, numpy as np
    >>> truth = np.arange(3000) % 3
    >>> noisy = ldp.privatize(truth, ldp.RandomizedResponse(3, epsilon=2.0), noise=ldp.SeededNoise(0))
    >>> 0.9 < ldp.metrics.accuracy(noisy, truth).high <= 1.0
    True
    """
    hits = np.eye(noisy.n_classes)[_codes(noisy, predictions)]
    return _mean(noisy.debias(hits), noisy.loss_range(hits), confidence, least=0.0, most=1.0)


def warn_of_seen_rows(noisy: NoisyLabels, learned: NoisyLabels) -> None:
    """Warn that a model is measured on noisy labels that it learned from: the same draws of the same rows.

    Parameters
    ----------
    noisy : NoisyLabels to measure by
    learned : NoisyLabels that the model learned from
    """
    if not {receipt.run_id for receipt in noisy.receipts} & {receipt.run_id for receipt in learned.receipts}:
        return
    seen = int(np.isin(public_hash("seen", noisy.ids), public_hash("seen", learned.ids)).sum())
    if seen:
        warnings.warn(
            f"The model has learned from {seen} of these {len(noisy)} noisy labels, whose noise it has fitted: this score is far too good. "
            "Use rows that it did not learn from, or estimated_accuracy_.",
            SeenRowsWarning,
            stacklevel=3,
        )


def warn_of_raw_labels(n_rows: int, learned: int, noise: object) -> None:
    """Warn, once in a process, that a score may be computed from the raw labels that a fit privatized: it would be a number without noise.

    Parameters
    ----------
    n_rows : int
        Number of rows that are scored.
    learned : int
        Number of raw labels that the fit was given.
    noise : SeededNoise or None
        The fit's: with a seed nothing is private anyway.
    """
    if noise is None and n_rows == learned and "score" not in _told:
        _told.add("score")
        warnings.warn(
            f"This score is of {n_rows} plain labels, as many as the fit was given raw. If they are the same, it comes from private labels "
            "without any noise, and it is no estimate of other rows: do not pass it on. Use estimated_accuracy_, noisy labels of other "
            "rows, or public labels. (Said once.)",
            RawLabelsWarning,
            stacklevel=3,
        )


_told: set[str] = set()


def log_loss(noisy: NoisyLabels, proba: ArrayLike, *, confidence: float = 0.95, floor: float = _FLOOR) -> Estimate:
    """Estimate the mean log-loss, -ln of the model's probability of the true label.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
    proba : (n, K) array
        Columns in the order of `noisy.classes`.
    confidence : float
    floor : float
        Smaller probabilities are raised to this.

    Returns
    -------
    Estimate

    Notes
    -----
    A log-loss has no upper bound. The interval uses, for each row, the range of -ln over the row's own K probabilities, so it does not
    cover rows on which the model would be surer than on any of these.
    """
    losses = -np.log(np.clip(_probabilities(noisy, proba), _validate.fraction(floor=floor), 1.0))
    return _mean(noisy.debias(losses), noisy.loss_range(losses), confidence, least=0.0, most=float(losses.max()))


@dataclass(frozen=True)
class Judgement:
    """The accuracy and log-loss of a model, next to those of a constant prediction on the same rows: the class frequencies.

    Attributes
    ----------
    accuracy, log_loss : Estimate
    baseline_accuracy, baseline_log_loss : Estimate
        Of the constant prediction. If a class is rare, the constant is nearly always right, and only the log-loss shows a better model.
    """

    accuracy: Estimate
    log_loss: Estimate
    baseline_accuracy: Estimate
    baseline_log_loss: Estimate

    def __str__(self) -> str:
        return (
            f"accuracy {self.accuracy}, a constant {self.baseline_accuracy.value:.4f}; "
            f"log-loss {self.log_loss}, a constant {self.baseline_log_loss.value:.4f}"
        )


def judge(noisy: NoisyLabels, proba: ArrayLike, frequencies: ArrayLike) -> Judgement:
    """Measure a model, and the constant prediction with these class frequencies: accuracy and log-loss of both.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that neither has seen
    proba : (n, K) array
    frequencies : (K,) array
        Class frequencies of the model's training rows, from `likeliest_frequencies`.
    """
    table = _probabilities(noisy, proba)
    constant = _probabilities(noisy, np.broadcast_to(np.asarray(frequencies, np.float64), table.shape))
    one_hot = np.eye(table.shape[1])
    # Four losses in the order of `Judgement`'s fields, so that one pass over the noisy labels measures all of them.
    losses = [each for p in (table, constant) for each in (one_hot[p.argmax(axis=1)], -np.log(np.clip(p, _FLOOR, 1.0)))]
    values, ranges = np.array([noisy.debias(each) for each in losses]), np.array([noisy.loss_range(each) for each in losses])
    most = np.array([1.0, losses[1].max(), 1.0, losses[3].max()])
    value, low, high, stderr = (part.tolist() for part in mean_interval(values, ranges, 0.95, least=0.0, most=most))
    return Judgement(*(Estimate(value[i], low[i], high[i], 0.95, stderr[i], 0.0, float(most[i])) for i in range(4)))


def confusion_matrix(noisy: NoisyLabels, predictions: ArrayLike, *, confidence: float = 0.95) -> Estimates:
    """Estimate the share of the rows for each pair of true and predicted class.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
    predictions : (n,) array of class values
    confidence : float

    Returns
    -------
    Estimates of shape (K, K)
        Row = true class, column = predicted class; all cells sum to 1. Takes O(n K) time for each true class.
    """
    predicted = _codes(noisy, predictions)
    guessed = predicted[None, :] == np.arange(noisy.n_classes)[:, None]
    rows = []
    for truth in range(noisy.n_classes):  # one class at a time: all at once would take n x K x K numbers
        wanted = np.tile(np.eye(noisy.n_classes)[truth], (len(noisy), 1))
        values = np.where(guessed, noisy.debias(wanted), 0.0)
        rows.append(mean_interval(values, np.broadcast_to(noisy.loss_range(wanted), values.shape), confidence, least=0.0, most=1.0))
    value, low, high, stderr = (np.array(part) for part in zip(*rows, strict=True))
    return Estimates(value, low, high, confidence, stderr)


def class_frequencies(noisy: NoisyLabels, *, confidence: float = 0.95) -> Estimates:
    """Estimate the share of each class among the true labels.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
    confidence : float

    Returns
    -------
    Estimates of shape (K,), in the order of `noisy.classes`; values sum to 1.
    """
    _require_rows(noisy)
    cells, weights = [], noisy.class_weights()
    for code in range(noisy.n_classes):
        wanted = np.tile(np.eye(noisy.n_classes)[code], (len(noisy), 1))
        cells.append(mean_interval(weights[:, code], noisy.loss_range(wanted), confidence, least=0.0, most=1.0))
    value, low, high, stderr = (np.array(part) for part in zip(*cells, strict=True))
    return Estimates(value, low, high, confidence, stderr)


def likeliest_frequencies(likelihood: NDArray[np.floating], weights: Floats | None = None) -> Floats:
    """Find the class frequencies under which the outputs are likeliest, shrunk towards equal ones where the evidence is weak.

    Parameters
    ----------
    likelihood : (n, K) array
        P[outputs | y] of each row, up to a factor per row, of any law.
    weights : (n,) array >= 0, optional

    Returns
    -------
    (K,) float64, all above 0, sums to 1

    Notes
    -----
    Maximum likelihood with half a row of each class added, so that no class gets frequency 0. Its logarithm is then shrunk towards equal
    frequencies by a factor of James-Stein type, max(0, 1 - (K - 1 + 2 sqrt(2 (K - 1))) / (2 G)), where G is the gain in log-likelihood over
    equal frequencies. Few, very noisy rows cannot tell the frequencies from equal ones; with enough rows a class of 1 % keeps its 1 %.
    Cost O(n K) per step and some tens of steps, on at most 2^22 cells (beyond that, on every m-th row).

    References
    ----------
    EM for mixing proportions, accelerated by SQUAREM: Varadhan and Roland (2008), "Simple and globally convergent methods for accelerating
    the convergence of any EM algorithm".
    """
    step = max(1, likelihood.size >> 22)
    table = np.asarray(likelihood[::step], np.float64)
    weight = np.ones(len(table)) if weights is None else np.asarray(weights, np.float64)[::step]
    k, total = table.shape[1], float(weight.sum())

    def move(shares: Floats) -> Floats:
        counts = shares * ((weight / np.maximum(table @ shares, 1e-300)) @ table)
        return np.asarray((counts + 0.5) / (total + 0.5 * k))

    shares = np.full(k, 1 / k)
    for _ in range(100):
        # SQUAREM: two EM steps give the length of the extrapolation; a third one stabilises it. Long steps are capped, and the jump stays
        # above a tenth of the first step, so that no frequency leaves the simplex.
        first = move(shares)
        ahead, bend = first - shares, move(first) - 2 * first + shares
        length = min(max(1.0, float(np.linalg.norm(ahead)) / max(float(np.linalg.norm(bend)), 1e-12)), 1e4)
        jump = np.maximum(shares + 2 * length * ahead + length**2 * bend, 0.1 * first)
        found = move(jump / jump.sum())
        done = np.abs(found - shares).max() < 1e-3 * found.min()
        shares = found
        if done:
            break
    gain = float(weight @ np.log(np.maximum(table @ shares, 1e-300) / np.maximum(table.mean(axis=1), 1e-300)))
    return drawn_to_equal(shares, 2 * gain)


def drawn_to_equal(shares: Floats, evidence: float) -> Floats:
    """Shrink frequencies (K,) towards equal ones, more if `evidence` is small: a statistic that is chi-square (K - 1) if they are equal."""
    free = len(shares) - 1
    kept = max(0.0, 1.0 - (free + 2 * np.sqrt(2 * free)) / max(evidence, 1e-300))
    drawn = np.exp(kept * np.log(shares))
    return np.asarray(drawn / drawn.sum())


# Numbers ------------------------------------------------------------------------------------------------------------------------------


def numbers_of(noisy: NoisyLabels) -> Floats:
    """Return the classes as increasing numbers, (K,) float64; refuse classes that are none."""
    values = noisy.classes
    numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    points = np.asarray(values, np.float64) if numeric else np.empty(0)
    if not numeric or not np.all(np.diff(points) > 0):
        raise InvalidInput(
            "Expected noisy labels whose classes are increasing numbers, such as those of a Grid, got others. Release the numbers with "
            "classes=labeldp.Grid(low, high)."
        )
    return points


def mean_squared_error(noisy: NoisyLabels, predictions: ArrayLike, *, confidence: float = 0.95) -> Estimate:
    """Estimate the mean squared error of predictions of the true numbers, on the grid on which they were drawn.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
        Their classes are numbers, such as a `Grid`.
    predictions : (n,) float
    confidence : float

    Returns
    -------
    Estimate
        The mean of `noisy.debias` of the squared errors, with `mean_interval`'s interval.

    Raises
    ------
    InvalidInput
        If the classes are no numbers, the predictions are not finite, or some row has no unbiased estimator.
    """
    losses = _squares(noisy, predictions)
    return _mean(noisy.debias(losses), noisy.loss_range(losses), confidence, least=0.0, most=float(losses.max(axis=1).mean()))


def root_mean_squared_error(noisy: NoisyLabels, predictions: ArrayLike, *, confidence: float = 0.95) -> Estimate:
    """Estimate the root mean squared error: the roots of `mean_squared_error`'s value and of the ends of its interval.

    Parameters
    ----------
    noisy, predictions, confidence
        As in `mean_squared_error`.

    Returns
    -------
    Estimate
        Its value is 0 where the unbiased estimate of the mean squared error is negative.
    """
    found = mean_squared_error(noisy, predictions, confidence=confidence)
    value, low, high, most = (float(np.sqrt(max(each, 0.0))) for each in (found.value, found.low, found.high, found.most))
    return Estimate(value, low, high, confidence, (high - low) / (2 * _z(confidence)), 0.0, most)


def r2(noisy: NoisyLabels, predictions: ArrayLike, *, mean: float | None = None, confidence: float = 0.95) -> Estimate:
    """Estimate R^2, the share of the true numbers' variance that predictions explain: 1 - (mean squared error) / (that of a constant).

    Parameters
    ----------
    noisy, predictions, confidence
        As in `mean_squared_error`.
    mean : float, optional
        The constant: the mean of other rows. None (default): the estimated mean of these rows, whose own error is left out of the interval.

    Returns
    -------
    Estimate
        A ratio of unbiased estimates. Its interval is Fieller's; it is without bounds where noise could carry the variance to 0.

    References
    ----------
    Fieller (1954), "Some problems in interval estimation".
    """
    points, losses = numbers_of(noisy), _squares(noisy, predictions)
    centre = float((noisy.class_weights() @ points).mean()) if mean is None else float(mean)
    around = _squares(noisy, np.full(len(noisy), np.clip(centre, points[0], points[-1])))
    values = np.array([noisy.debias(losses), noisy.debias(around)])
    ranges = np.array([noisy.loss_range(losses), noisy.loss_range(around)])
    z, n = _z(confidence), len(noisy)
    error, variance = values.mean(axis=1)
    # z^2 (sums of squares and products, with `mean_interval`'s z^2 observations at the full range) against n^2 (means)
    signed = _typical_length(ranges) * [1, -1]  # of (error - r variance) the range is that of error plus r times that of variance
    spread = z**2 * (n * np.cov(values, ddof=0) + z**2 * np.outer(signed, signed))
    a, b, c = n**2 * variance**2 - spread[1, 1], n**2 * error * variance - spread[0, 1], n**2 * error**2 - spread[0, 0]
    value = 1 - error / variance if variance > 0 else float("nan")
    if a <= 0:  # even a variance of 0 is not excluded
        return Estimate(value, -np.inf, 1.0, confidence, float("inf"), -np.inf, 1.0)
    half = float(np.sqrt(max(b * b - a * c, 0.0))) / a
    low, high = 1 - b / a - half, 1 - b / a + half
    low, high = (low, min(high, 1.0)) if low <= 1 else (-np.inf, 1.0)
    return Estimate(value, low, high, confidence, half / z, -np.inf, 1.0)


def _squares(noisy: NoisyLabels, predictions: ArrayLike) -> Floats:
    """Compute the squared error of each row's prediction at each class: (n, K)."""
    _require_rows(noisy)
    points, values = numbers_of(noisy), np.asarray(predictions, np.float64)
    if values.shape != (len(noisy),) or not np.isfinite(values).all():
        raise InvalidInput(f"Expected predictions of shape ({len(noisy)},), one finite number a row; got shape {values.shape}.")
    return np.asarray((points - values[:, None]) ** 2)


# Scorers


def accuracy_scorer(estimator: _Classifier, X: object, noisy: NoisyLabels) -> float:
    """Score by the unbiased accuracy, with noisy labels as `y`, for scikit-learn's searches and cross-validation.

    Examples
    --------
    `GridSearchCV(model, grid, scoring=labeldp.metrics.accuracy_scorer, cv=KFold(5)).fit(X, noisy)`
    """
    return accuracy(noisy, estimator.predict(X)).value


def log_loss_scorer(estimator: _Classifier, X: object, noisy: NoisyLabels) -> float:
    """Score with noisy labels as `y`: minus the unbiased log-loss, so that larger is better."""
    return -log_loss(noisy, estimator.predict_proba(X)).value


def likelihood_scorer(estimator: _Classifier, X: object, noisy: NoisyLabels) -> float:
    """Score with noisy labels as `y`: the model's mean log-probability of the released outputs.

    It works for every law, invertible or not, and varies less than the unbiased scores, so it is the first choice for tuning.
    """
    return mean_log_evidence(noisy, estimator.predict_proba(X))


def mean_log_evidence(noisy: NoisyLabels, proba: ArrayLike) -> float:
    return float(log_evidence(noisy, proba).mean())


def log_evidence(noisy: NoisyLabels, proba: ArrayLike) -> Floats:
    """Compute ln P[output | model] of each row, ln sum_y proba[i, y] L[i, y], up to a constant per row: (n,) float64."""
    evidence = (_probabilities(noisy, proba) * noisy.likelihood(dtype="float64")).sum(axis=1)
    return np.asarray(np.log(np.maximum(evidence, 1e-300)))


LEAST_ROWS = 30
"""`lost_classes` names no class from fewer rows: their standard errors say too little."""


def lost_classes(noisy: NoisyLabels, proba: ArrayLike) -> list[object]:
    """Find classes that a model practically never predicts, although the noisy labels are evidence for them.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
        Of any law.
    proba : (n, K) array
        The model's probabilities for the same rows; it may have learned from them.

    Returns
    -------
    list of class values, in their order
        Classes whose mean probability is below 0.1 / K and whose score is above 5 standard errors. If the outputs follow the model,
        L_c / (sum_y p_y L_y) - 1 has mean 0 for every class c, so with many rows a class that does not occur is named with probability
        3e-7. None are named from fewer than LEAST_ROWS (30) rows.

    Notes
    -----
    The likelihood of a class whose probability is 0 has no gradient, so training does not bring a lost class back. Cost O(n K).
    """
    table, likelihood = _probabilities(noisy, proba), noisy.likelihood(dtype="float64")
    if len(noisy) < LEAST_ROWS:
        return []
    rare = table.mean(axis=0) < 0.1 / noisy.n_classes
    evidence = np.maximum((table * likelihood).sum(axis=1), 1e-300)
    found: list[int] = []
    while rare.any():
        score = likelihood[:, rare] / evidence[:, None] - 1
        high = score.mean(axis=0) / np.maximum(score.std(axis=0), 1e-12) * np.sqrt(len(noisy))
        if not high.max() > 5:
            break
        code = int(np.flatnonzero(rare)[high.argmax()])
        found.append(code)
        rare[code] = False
        # Outputs of a class that the model lacks count as evidence for other classes, too: give it its share before the next test.
        evidence = _with_share(evidence, likelihood[:, code])
    return [noisy.classes[code] for code in sorted(found)]


def _with_share(evidence: Floats, likelihood: NDArray[np.floating]) -> Floats:
    """Mix a model's evidence with that of one class at the class's maximum-likelihood share, found by EM."""
    share = 0.1
    for _ in range(30):
        share = float(np.mean(share * likelihood / (share * likelihood + (1 - share) * evidence)))
    return np.asarray((1 - share) * evidence + share * likelihood)


def _codes(noisy: NoisyLabels, predictions: ArrayLike) -> NDArray[np.int32]:
    _require_rows(noisy)
    values = np.asarray(predictions)
    if values.shape != (len(noisy),):
        raise InvalidInput(f"Expected predictions of shape ({len(noisy)},), one class a row; got shape {values.shape}.")
    return encode(values, noisy.classes)


def _require_rows(noisy: NoisyLabels) -> None:
    if not isinstance(noisy, NoisyLabels):
        raise InvalidInput(f"Expected NoisyLabels, got {type(noisy).__name__}. For public true labels use sklearn.metrics.")
    if not len(noisy):
        raise InvalidInput("Expected noisy labels of at least one row, got none.")


def _probabilities(noisy: NoisyLabels, proba: ArrayLike) -> Floats:
    _require_rows(noisy)
    table = np.asarray(proba, np.float64)
    if table.shape != (len(noisy), noisy.n_classes) or not np.all(table >= 0):
        raise InvalidInput(f"Expected probabilities of shape {(len(noisy), noisy.n_classes)}, all >= 0; got shape {table.shape}.")
    return table


def _mean(values: Floats, ranges: Floats, confidence: float, *, least: float, most: float) -> Estimate:
    value, low, high, stderr = (float(part) for part in mean_interval(values, ranges, confidence, least=least, most=most))
    return Estimate(value, low, high, confidence, stderr, least, most)


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
    z, n = _z(confidence), values.shape[-1]
    mean = values.mean(axis=-1)
    stderr = np.sqrt(((values - mean[..., None]) ** 2).sum(axis=-1) + (z * _typical_length(ranges)) ** 2) / n
    low, high = mean - z * stderr, mean + z * stderr
    inside = (low <= most) & (high >= least)
    return mean, np.where(inside, np.maximum(low, least), least), np.where(inside, np.minimum(high, most), most), stderr


def _typical_length(ranges: Floats) -> Floats:
    """Weigh the lengths (..., n) of the rows' intervals by their squares: (...)."""
    squares = (ranges**2).sum(axis=-1)
    return np.asarray(np.where(squares > 0, (ranges**3).sum(axis=-1) / np.where(squares > 0, squares, 1.0), 0.0))


def _z(confidence: float) -> float:
    # A confidence that rounds to 1 has an infinite quantile, and would give intervals of NaN.
    return NormalDist().inv_cdf(min(0.5 + _validate.fraction(confidence=confidence) / 2, 1.0 - 2.0**-53))
