# SPDX-License-Identifier: Apache-2.0
"""How good predictions are on the true labels, measured on noisy labels alone.

Every number is unbiased through the law and comes with an interval. It is post-processing, so it costs no budget, however often it is
asked for.

Use rows whose noisy labels the model has not seen. A model that was trained on them has fitted their noise, so it agrees with them more
often than with the truth, and the numbers come out far too good (a 1-nearest-neighbour model seems perfect).
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import public_hash
from labeldp.errors import InvalidInput, RawLabelsWarning, SeenRowsWarning
from labeldp.evidence import NoisyLabels
from labeldp.privacy.encode import encode

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """An unbiased estimate with its confidence interval.

    Attributes
    ----------
    value : float
        Unbiased, so noise can carry it out of the range of what it estimates.
    low, high : float
        Ends of the interval, kept in that range.
    confidence : float
    """

    value: float
    low: float
    high: float
    confidence: float = 0.95

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.confidence:.0%} interval {self.low:.4f} to {self.high:.4f})"


@dataclass(frozen=True, eq=False)
class Estimates:
    """Several unbiased estimates, each with its own interval.

    Attributes
    ----------
    value, low, high : float64 arrays of one shape
    confidence : float
        Of each interval by itself, not of all together.
    """

    value: Floats
    low: Floats
    high: Floats
    confidence: float = 0.95


class _Classifier(Protocol):
    def predict(self, X: object) -> ArrayLike: ...

    def predict_proba(self, X: object) -> ArrayLike: ...


def accuracy(noisy: NoisyLabels, predictions: ArrayLike, *, confidence: float = 0.95) -> Estimate:
    """How often predictions equal the true labels.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
        Rows that the model did not learn from: on its own training rows the result is biased upwards, often grossly.
    predictions : (n,) array of class values
    confidence : float

    Returns
    -------
    Estimate. (noisy agreement - other) / (own - other) where one law covers all rows; the interval is Wilson's, carried through the law.

    Raises
    ------
    InvalidInput
        If some row has no unbiased estimator (a law that answers within a subset of the classes, or no draw).

    Examples
    --------
    >>> import labeldp as ldp, numpy as np
    >>> truth = np.arange(3000) % 3
    >>> noisy = ldp.privatize(truth, ldp.RandomizedResponse(3, epsilon=2.0), noise=ldp.SeededNoise(0))
    >>> 0.9 < ldp.metrics.accuracy(noisy, truth).high <= 1.0
    True
    """
    return _agreement(noisy, _one_hot(noisy, _codes(noisy, predictions)), confidence)


def warn_of_seen_rows(noisy: NoisyLabels, learned: NoisyLabels) -> None:
    """Say aloud that a model is measured on noisy labels that it learned from: the same draws of the same rows.

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
    """Say aloud, once in a process, that a score may come from the raw labels that a fit privatized: it is a number without noise.

    Parameters
    ----------
    n_rows : int
        That are scored by plain labels.
    learned : int
        Rows whose raw labels the fit was given; 0 for none.
    noise : SeededNoise or None
        Of the fit: with a seed nothing is private anyway.
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


def log_loss(noisy: NoisyLabels, proba: ArrayLike, *, confidence: float = 0.95, floor: float = 1e-15) -> Estimate:
    """Mean of -ln of the probability that the model gives to the true label.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
    proba : (n, K) array
        Columns in the order of `noisy.classes`.
    confidence : float
    floor : float
        Smaller probabilities count as this.
    """
    table = _probabilities(noisy, proba)
    low = _validate.fraction(floor=floor)
    return _mean(noisy.debias(-np.log(np.clip(table, low, 1.0))), confidence, least=0.0)


def confusion_matrix(noisy: NoisyLabels, predictions: ArrayLike, *, confidence: float = 0.95) -> Estimates:
    """Share of the rows for each pair of true and predicted class.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
    predictions : (n,) array of class values
    confidence : float

    Returns
    -------
    Estimates of shape (K, K): row = true class, column = predicted class, all cells sum to 1. Cost O(n K) time for each true class.
    """
    predicted, shape = _codes(noisy, predictions), (noisy.n_classes, noisy.n_classes)
    value, low, high = np.empty(shape), np.empty(shape), np.empty(shape)
    for truth in range(noisy.n_classes):
        is_truth = noisy.debias(_one_hot(noisy, np.full(len(noisy), truth)))
        for guess in range(noisy.n_classes):
            cell = _mean(np.where(predicted == guess, is_truth, 0.0), confidence, least=0.0, most=1.0)
            value[truth, guess], low[truth, guess], high[truth, guess] = cell.value, cell.low, cell.high
    return Estimates(value, low, high, confidence)


def class_frequencies(noisy: NoisyLabels, *, confidence: float = 0.95) -> Estimates:
    """Share of each class among the true labels.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
    confidence : float

    Returns
    -------
    Estimates of shape (K,), in the order of `noisy.classes`; values sum to 1.
    """
    cells = [_agreement(noisy, _one_hot(noisy, np.full(len(noisy), code)), confidence) for code in range(noisy.n_classes)]
    return Estimates(np.array([c.value for c in cells]), np.array([c.low for c in cells]), np.array([c.high for c in cells]), confidence)


def accuracy_scorer(estimator: _Classifier, X: object, noisy: NoisyLabels) -> float:
    """Scorer for scikit-learn's searches and cross-validation with noisy labels as `y`: unbiased accuracy.

    Examples
    --------
    `GridSearchCV(model, grid, scoring=labeldp.metrics.accuracy_scorer, cv=KFold(5)).fit(X, noisy)`
    """
    return accuracy(noisy, estimator.predict(X)).value


def log_loss_scorer(estimator: _Classifier, X: object, noisy: NoisyLabels) -> float:
    """Scorer with noisy labels as `y`: minus the unbiased log-loss, so that larger is better."""
    return -log_loss(noisy, estimator.predict_proba(X)).value


def likelihood_scorer(estimator: _Classifier, X: object, noisy: NoisyLabels) -> float:
    """Scorer with noisy labels as `y`: mean log-probability of what was released, under the model.

    Works for every law, invertible or not, and varies less than the unbiased scores: the first choice for tuning.
    """
    return mean_log_evidence(noisy, estimator.predict_proba(X))


def mean_log_evidence(noisy: NoisyLabels, proba: ArrayLike) -> float:
    """Mean of `log_evidence` over the rows."""
    return float(log_evidence(noisy, proba).mean())


def log_evidence(noisy: NoisyLabels, proba: ArrayLike) -> Floats:
    """ln sum_y proba[i, y] L[i, y] of each row, up to a constant that the model cannot change: (n,) float64."""
    evidence = (_probabilities(noisy, proba) * noisy.likelihood(dtype="float64")).sum(axis=1)
    return np.asarray(np.log(np.maximum(evidence, 1e-300)))


LEAST_ROWS = 30
"""Of which `lost_classes` says anything."""


def lost_classes(noisy: NoisyLabels, proba: ArrayLike) -> list[object]:
    """Classes that a model practically never expects, though the noisy labels speak for them.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
        Of any law.
    proba : (n, K) array
        The model's probabilities for the same rows; it may have learned from them.

    Returns
    -------
    list of class values, in their order
        Mean probability below 0.1 / K, and a score above 5 standard errors: if outputs follow the model, L_c / (sum_y p_y L_y) - 1 has
        mean 0 for every class c, so that with many rows a class that does not occur is named once in three million times. Of fewer than
        LEAST_ROWS (30) rows, whose standard errors say too little, none is named. The class with the highest score is given its likeliest
        share before the others are judged.

    Notes
    -----
    The likelihood of a class whose probability is 0 has no gradient: once lost, training does not bring it back. Cost O(n K).
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
        evidence = _with_share(evidence, likelihood[:, code])  # its outputs speak for other classes too while it is missing
    return [noisy.classes[code] for code in sorted(found)]


def _with_share(evidence: Floats, likelihood: NDArray[np.floating]) -> Floats:
    """Evidence of the mixture of a model with one class, at the likeliest share of that class: some rounds of EM."""
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


def _one_hot(noisy: NoisyLabels, codes: NDArray[np.integer]) -> Floats:
    table = np.zeros((len(noisy), noisy.n_classes))
    table[np.arange(len(noisy)), codes] = 1.0
    return table


def _agreement(noisy: NoisyLabels, hits: Floats, confidence: float) -> Estimate:
    """Mean of a 0-1 score a class; Wilson's interval where each row has one draw."""
    _require_rows(noisy)
    values = noisy.debias(hits)
    own, other = noisy.inclusion()
    if sum(len(block.rows) for block in noisy.blocks) > len(noisy) or not np.isfinite(own).all():
        return _mean(values, confidence, least=0.0, most=1.0)
    low, high = _score_interval(float(values.mean()), own, other, _z(confidence))
    return Estimate(float(values.mean()), _within(low, 0.0, 1.0), _within(high, 0.0, 1.0), confidence)


def _score_interval(mean: float, own: Floats, other: Floats, z: float) -> tuple[float, float]:
    """All rates t at which the mean is within z standard deviations, where each row agrees with probability other + (own - other) t.

    The variance of the mean is then (a + b t - n t^2) / n^2, so the ends solve a quadratic; for one law this is Wilson's interval.
    """
    n, scale = len(own), 1.0 / (own - other)
    a, b = float(np.sum(scale**2 * other * (1 - other))), float(np.sum(scale * (1 - 2 * other)))
    share = z * z / n**2
    quadratic, linear, constant = 1 + share * n, -(2 * mean + share * b), mean * mean - share * a
    root = np.sqrt(max(linear * linear - 4 * quadratic * constant, 0.0))
    return float((-linear - root) / (2 * quadratic)), float((-linear + root) / (2 * quadratic))


def _mean(values: Floats, confidence: float, *, least: float = -np.inf, most: float = np.inf) -> Estimate:
    """Mean of bounded values; the variance counts z^2 further observations at half the range, which makes few rows safe."""
    z, n, mean = _z(confidence), len(values), float(values.mean())
    spread = float(np.ptp(values)) / 2
    error = z * float(np.sqrt(np.sum((values - mean) ** 2) + z * z * spread**2)) / n
    return Estimate(mean, _within(mean - error, least, most), _within(mean + error, least, most), confidence)


def _z(confidence: float) -> float:
    return NormalDist().inv_cdf(min(0.5 + _validate.fraction(confidence=confidence) / 2, 1.0 - 2.0**-53))


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


Scorer = Callable[[_Classifier, object, NoisyLabels], float]
"""What `accuracy_scorer`, `log_loss_scorer` and `likelihood_scorer` are."""
