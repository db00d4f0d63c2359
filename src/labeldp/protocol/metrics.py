# SPDX-License-Identifier: Apache-2.0
"""Metrics of predictions on the true labels, computed from noisy labels alone.

Every number has a confidence interval. Metrics are post-processing: they cost no budget, however
often they are computed. Means of a loss (accuracy, log-loss, Brier score, cost) are unbiased;
ratios and areas under curves divide unbiased numbers.

Use rows whose noisy labels the model has not seen. A model fits the noise of its training rows and
agrees with these noisy labels more often than with the truth, so the numbers are far too good there
(a 1-nearest-neighbour model seems perfect).

Intervals are for independent rows. Rows of one person are not quite independent; where persons have
many rows, measure on one row of each.

Scorers, and the estimators' own `score`, leave out rows without evidence: nothing is known of a row
that was asked about another column or is over its unit's cap. A metric that is called directly
refuses them, since it measures exactly the rows that it was given; its caller chooses those of
labels and predictions alike, by `noisy.evidenced`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import public_hash, text_array
from labeldp.custody._encode import encode, index_of, require_same_order
from labeldp.errors import (
    InvalidInput,
    LabelDPWarning,
    LostClassWarning,
    MisfitWarning,
    SeenRowsWarning,
    UnmeasuredWarning,
    UntrainedWarning,
    warn,
)
from labeldp.evidence import NoisyLabels
from labeldp.laws import Grid
from labeldp.protocol import _statistics
from labeldp.protocol._matching import spread
from labeldp.protocol._statistics import (
    Estimate,
    Estimates,
    Floats,
    Terms,
    concordance,
    mean_interval,
    number_text,
    quantile,
    ratio,
    roc_area,
    typical_length,
)

__all__ = [
    "Estimate",
    "Estimates",
    "accuracy",
    "average_precision",
    "balanced_accuracy",
    "best_threshold",
    "brier_score",
    "calibration_curve",
    "class_frequencies",
    "confusion_matrix",
    "cost",
    "f1",
    "lift",
    "likeliest_frequencies",
    "likelihood_scorer",
    "log_loss",
    "lost_classes",
    "make_scorer",
    "mean_log_evidence",
    "mean_squared_error",
    "precision",
    "r2",
    "recall",
    "roc_auc",
    "root_mean_squared_error",
]

_ROUNDING = 1e-3  # by which probabilities may miss a sum of 1, as those of half precision do
_FLOOR = 1e-15  # the least probability that a log-loss counts


def accuracy(
    noisy: NoisyLabels,
    predictions: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate how often predictions equal the true labels.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
        Rows that the model did not learn from: on its own training rows the result is biased
        upwards, often grossly.
    predictions : (n,) array of class values
    sample_weight : (n,) array >= 0, optional
        Public weights of the rows.
    confidence : float

    Returns
    -------
    Estimate
        If one law covers all rows, it is (noisy agreement - other) / (own - other), where own and
        other are the law's probabilities that an output contains the true class and another class.
        The interval is `mean_interval`'s. `constant`: always the commonest class.

    Raises
    ------
    InvalidInput
        If some row has no unbiased estimator: its law answers within a subset of the classes, or it
        was not drawn.

    Examples
    --------
    >>> import labeldp as ldp, numpy as np
    >>> truth = np.arange(3000) % 3
    >>> labels = ldp.PrivateLabels(truth, classes=range(3), noise=ldp.SeededNoise(0))
    >>> noisy = ldp.privatize(labels, ldp.RandomizedResponse(3, epsilon=2.0))
    >>> 0.9 < ldp.metrics.accuracy(noisy, truth).high <= 1.0
    True
    """
    codes, weights = _codes(noisy, predictions), _weights(sample_weight, len(noisy))
    hits = np.eye(noisy.n_classes)[codes]
    return _mean(
        noisy, hits, weights, confidence, most=1.0, constant=float(_rates(noisy, weights).max())
    )


def warn_of_seen_rows(noisy: NoisyLabels, learned: NoisyLabels) -> None:
    """Warn that a model is measured on noisy labels that it learned from: the same draws of the
    same rows.

    Parameters
    ----------
    noisy : NoisyLabels to measure by
    learned : NoisyLabels that the model learned from
    """
    if not {receipt.run_id for receipt in noisy.receipts} & {
        receipt.run_id for receipt in learned.receipts
    }:
        return
    seen = int(np.isin(public_hash("seen", noisy.ids), public_hash("seen", learned.ids)).sum())
    if seen:
        warn(
            SeenRowsWarning(
                f"The model has learned from {seen} of these {len(noisy)} noisy labels, whose noise"
                " it has fitted: this score is far too good. Use rows that it did not learn from,"
                " or estimated_accuracy_."
            )
        )


def warn_of_lost_classes(
    look: Callable[[NDArray[np.int64]], Iterable[tuple[NoisyLabels, Floats]]],
    rows: NDArray[np.int64],
    n_classes: int,
    model: str,
    why: str,
) -> None:
    """Warn of classes to which a model gives practically no probability, though the noisy labels
    speak for them (`lost_classes`).

    Parameters
    ----------
    look : function of (m,) rows
        Gives, for each label column, NoisyLabels of these rows and (m, K) probabilities. Rows
        without evidence, and grids of numbers, of whose points many may be near no number, are left
        out.
    rows : (n,) int64
        What can be looked at: some of them first, and more where a class may be lost.
    n_classes : int
    model : str
        How the warning names the model.
    why : str
        A cause, and what to do.
    """
    # where no class is near to lost, the probabilities of more rows would cost a fast library a
    # tenth of its fit
    few = look(rows[spread(len(rows), n_classes, _FEW)])
    if all((proba.mean(axis=0) > 2 * RARELY / proba.shape[1]).all() for _, proba in few):
        return
    lost: list[object] = []
    for noisy, proba in look(rows[spread(len(rows), n_classes)]):
        if not isinstance(noisy.classes, Grid) and (asked := noisy.evidenced).any():
            lost += lost_classes(noisy[asked], proba[asked])
    if lost:
        warn(
            LostClassWarning(
                f"{model} gives hardly any probability to {_validate.quoted(lost)}, though the"
                f" noisy labels speak for it: {why}"
            )
        )


def warn_of_constant(
    look: Callable[[NDArray[np.int64]], Floats], n_rows: int, classes: Sequence[object]
) -> None:
    """Warn that a fitted model predicts nearly the same for all rows.

    Parameters
    ----------
    look : function of (m,) rows
        Predicts probabilities, (m, K).
    n_rows : int
        What can be looked at: some rows first, and up to 100,000 where these are alike.
    classes : sequence of K values
        Of a `Grid` the mean number is compared, else the probability of each class.

    Notes
    -----
    Predictions are alike if the largest and the smallest differ by less than a thousandth of the
    standard deviation that the model sees around them: less than a millionth of the variance is
    explained.
    """
    points, proba = (
        points_of(classes) if isinstance(classes, Grid) else None,
        np.empty((0, len(classes))),
    )
    for rows in (spread(n_rows, len(classes), _FEW), spread(n_rows, len(classes))):
        proba = look(rows)
        means, squares = (proba, proba) if points is None else (proba @ points, proba @ points**2)
        variance = squares.mean(axis=0) - means.mean(axis=0) ** 2
        if (np.ptp(means, axis=0) ** 2 > _ALIKE**2 * variance).any():
            return
    warn(
        UntrainedWarning(
            f"The model predicts nearly the same for each of {len(proba):,} training rows: it has"
            " learned nothing from the features. Noise may leave too little to learn from, above"
            " all of a rare class, or no column may be of use. Try another estimator, first a"
            " linear one, on what was released, at no further cost; else more rows or a larger"
            " epsilon."
        )
    )


def warn_of_score(found: Estimate, noisy: NoisyLabels, name: str = "score") -> None:
    """Warn, once for a metric's name and a draw of labels, that an estimate whose value alone
    becomes a score excludes nothing."""
    said = ":".join([name, *sorted({receipt.run_id for receipt in noisy.receipts})])
    if found.tells or said in _told:
        return
    _told.add(said)
    warn(
        UnmeasuredWarning(
            f"This score of {len(noisy)} noisy labels, {number_text(found.value)}, cannot tell: its"
            f" {found.confidence:.0%} interval is the whole range, {number_text(found.least)} to"
            f" {number_text(found.most)}, and the value, which is not cut to it, can be outside. A"
            " search by such scores chooses by chance, and its best_score_ is too high. Use more"
            " rows, fewer folds, or labeldp.metrics.likelihood_scorer, which varies least. (Said"
            " once for these labels.)"
        )
    )


_told: set[str] = set()


def log_loss(
    noisy: NoisyLabels,
    proba: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    confidence: float = 0.95,
    floor: float = _FLOOR,
) -> Estimate:
    """Estimate the mean log-loss, -ln of the model's probability of the true label.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
    proba : (n, K) array
        Columns in the order of `noisy.classes`.
    sample_weight : (n,) array >= 0, optional
    confidence : float
    floor : float
        Smaller probabilities are raised to this.

    Returns
    -------
    Estimate
        `constant`: the class frequencies, estimated from the same rows.

    Notes
    -----
    A log-loss has no upper bound. The interval uses, for each row, the range of -ln over the row's
    own K probabilities, so it does not cover rows on which the model would be surer than on any of
    these.
    """
    losses = -np.log(np.clip(_probabilities(noisy, proba), _validate.fraction(floor=floor), 1.0))
    weights = _weights(sample_weight, len(noisy))
    rates = np.maximum(_rates(noisy, weights), 0.5 / len(noisy))
    entropy = float(-(rates / rates.sum()) @ np.log(rates / rates.sum()))
    return _mean(noisy, losses, weights, confidence, most=float(losses.max()), constant=entropy)


def judge(noisy: NoisyLabels, proba: ArrayLike, frequencies: ArrayLike) -> dict[str, Estimate]:
    """Measure a model, and the constant prediction with these class frequencies: accuracy and
    log-loss of both.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that neither has seen
    proba : (n, K) array
    frequencies : (K,) array
        Class frequencies of the model's training rows, from `likeliest_frequencies`.

    Returns
    -------
    dict of str to Estimate
        "accuracy", "log_loss", "baseline_accuracy", "baseline_log_loss". If a class is rare, the
        constant is nearly always right, and only the log-loss shows a better model.

    Warns
    -----
    MisfitWarning
        If the constant is the better one, as in `warn_of_worse_than_constant`.
    """
    table = _probabilities(noisy, proba)
    constant = _probabilities(
        noisy, np.broadcast_to(np.asarray(frequencies, np.float64), table.shape)
    )
    one_hot = np.eye(table.shape[1])
    losses = [
        each
        for p in (table, constant)
        for each in (one_hot[p.argmax(axis=1)], -np.log(np.clip(p, _FLOOR, 1.0)))
    ]
    warn_of_worse_than_constant(
        noisy,
        {"log-loss": (losses[1], losses[3]), "error rate": (-losses[0], -losses[2])},
        "the class frequencies",
    )
    each_row = np.ones(len(noisy))
    names = ("accuracy", "log_loss", "baseline_accuracy", "baseline_log_loss")
    return {
        name: _mean(noisy, each, each_row, 0.95, most=float(each.max()), constant=None)
        for name, each in zip(names, losses, strict=True)
    }


def warn_of_worse_than_constant(
    noisy: NoisyLabels, losses: Mapping[str, tuple[Floats, Floats]], constant: str
) -> None:
    """Warn that a model is worse than a constant, where noisy rows that it has not seen say so.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
    losses : mapping of names to the losses (n, K) of the model and of the constant
        The first whose difference is not 0, by its 95 % interval, decides. Differences of the same
        rows vary less than the two means.
    constant : str
        How the warning names the constant.
    """
    for name, (own, others) in losses.items():
        more = own - others
        value, low, high, _ = mean_interval(noisy.debias(more), noisy.loss_range(more), 0.95)
        if low > 0:
            warn(
                MisfitWarning(
                    f"The model is worse than a constant, {constant}: on {len(noisy)} held-out"
                    f" noisy rows its {name} is larger by {number_text(float(value))}, 95 %"
                    f" interval {number_text(float(low))} to {number_text(float(high))}."
                    f" {LEARNED_NOISE}"
                )
            )
        if low > 0 or high < 0:
            return


LEARNED_NOISE = (
    "It has learned the noise, or has hardly learned yet. Against noise: fewer epochs of a net (or"
    " patience and validation_fraction), a smaller or more regular model, more rows, a larger"
    " epsilon. As it is, the constant is the better prediction."
)


def confusion_matrix(
    noisy: NoisyLabels, predictions: ArrayLike, *, confidence: float = 0.95
) -> Estimates:
    """Estimate the share of the rows for each pair of true and predicted class.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
    predictions : (n,) array of class values
    confidence : float

    Returns
    -------
    Estimates of shape (K, K)
        Row = true class, column = predicted class; all cells sum to 1. Takes O(n K) time for each
        true class.
    """
    predicted = _codes(noisy, predictions)
    guessed = predicted[None, :] == np.arange(noisy.n_classes)[:, None]
    rows, weights = [], noisy.class_weights()
    # one class at a time: all at once would take n x K x K numbers
    for truth in range(noisy.n_classes):
        values, ranges = (
            np.where(guessed, weights[:, truth], 0.0),
            noisy.loss_range(_indicator(noisy, truth)),
        )
        rows.append(
            mean_interval(
                values, np.broadcast_to(ranges, values.shape), confidence, least=0.0, most=1.0
            )
        )
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
    ranges = [noisy.loss_range(_indicator(noisy, code)) for code in range(noisy.n_classes)]
    value, low, high, stderr = mean_interval(
        noisy.class_weights().T, np.stack(ranges), confidence, least=0.0, most=1.0
    )
    return Estimates(value, low, high, confidence, stderr)


def accelerated(
    move: Callable[[Floats], Floats], shares: Floats, still: Callable[[float, Floats], bool]
) -> Floats:
    """Find the fixed point of steps of expectation-maximisation on shares (K,), by SQUAREM.

    Parameters
    ----------
    move : function of shares
        One step.
    shares : (K,) float64
        Above 0, sum 1: where to start.
    still : function of (largest change, shares)
        Whether to end.
    """
    for _ in range(100):
        # Two EM steps give the length of the extrapolation; a third one stabilises it. Long steps
        # are capped, and the jump stays above a tenth of the first step, so that no frequency
        # leaves the simplex.
        first = move(shares)
        ahead, bend = first - shares, move(first) - 2 * first + shares
        length = min(
            max(1.0, float(np.linalg.norm(ahead)) / max(float(np.linalg.norm(bend)), 1e-12)), 1e4
        )
        jump = np.maximum(shares + 2 * length * ahead + length**2 * bend, 0.1 * first)
        found = move(jump / jump.sum())
        step, shares = float(np.abs(found - shares).max()), found
        if still(step, shares):
            break
    return shares


def likeliest_frequencies(
    likelihood: NDArray[np.floating], weights: Floats | None = None
) -> Floats:
    """Find the class frequencies under which the outputs are likeliest, shrunk towards equal ones
    where the evidence is weak.

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
    Maximum likelihood with half a row of each class added, so that no class gets frequency 0. Its
    logarithm is then shrunk towards equal frequencies by a factor of James-Stein type, max(0, 1 -
    (K - 1 + 2 sqrt(2 (K - 1))) / (2 G)), where G is the gain in log-likelihood over equal
    frequencies. Few, very noisy rows cannot tell the frequencies from equal ones; with enough rows
    a class of 1 % keeps its 1 %. Cost O(n K) per step and some tens of steps, on at most 2^22 cells
    (beyond that, on every m-th row).

    References
    ----------
    EM for mixing proportions, accelerated by SQUAREM: Varadhan and Roland (2008), "Simple and
    globally convergent methods for accelerating the convergence of any EM algorithm".
    """
    step = max(1, likelihood.size >> 22)
    table = _validate.floats(likelihood=likelihood[::step])
    weight = np.ones(len(table)) if weights is None else np.asarray(weights, np.float64)[::step]
    k, total = table.shape[1], float(weight.sum())

    def move(shares: Floats) -> Floats:
        counts = shares * ((weight / np.maximum(table @ shares, 1e-300)) @ table)
        return np.asarray((counts + 0.5) / (total + 0.5 * k))

    shares = accelerated(move, np.full(k, 1 / k), lambda step, found: step < 1e-3 * found.min())
    gain = float(
        weight @ np.log(np.maximum(table @ shares, 1e-300) / np.maximum(table.mean(axis=1), 1e-300))
    )
    return drawn_to_equal(shares, 2 * gain)


def drawn_to_equal(shares: Floats, evidence: float, free: float | None = None) -> Floats:
    """Shrink frequencies (K,) towards equal ones, more if `evidence` is small: a statistic that is
    chi-square if they are equal.

    With `free` degrees of freedom, K - 1 by default.
    """
    drawn = np.exp(
        _kept(len(shares) - 1 if free is None else free, evidence)
        * np.log(np.maximum(shares, 1e-300))
    )
    return np.asarray(drawn / drawn.sum())


def _kept(free: float, evidence: float) -> float:
    """Return the share of a logarithm that is kept where `evidence` is chi-square with so many
    degrees of freedom if there is nothing."""
    return float(max(0.0, 1.0 - (free + 2 * np.sqrt(2 * free)) / max(evidence, 1e-300)))


def frequencies_beside(
    likelihood: NDArray[np.floating],
    predictions: NDArray[np.floating],
    weights: Floats | None = None,
) -> Floats:
    """Find the class frequencies that outputs tell beside predictions, which may have been the
    prior of what rows were asked.

    Parameters
    ----------
    likelihood : (n, K) array
        P[outputs | y] of each row, up to a factor per row, of any law.
    predictions : (n, K) array >= 0
        Weights of the classes in each row, at any scale; a row of zeros has none, and counts as the
        mean of the others.
    weights : (n,) array >= 0, optional

    Returns
    -------
    (K,) float64, sums to 1

    Notes
    -----
    `likeliest_frequencies` takes it that a row's question tells nothing of its label. If a model
    asked, it does: a rare class that is asked about with its neighbours then gets a wrong
    frequency, however many rows there are. Here the class of row i has probability w_ik e^(t_k) /
    sum_l w_il e^(t_l), with one t for all rows, of maximum likelihood, shrunk towards 0 as
    `likeliest_frequencies` shrinks; the result is the mean of these probabilities. If the
    predictions are calibrated, t is 0. Newton's method with the rows' scores (Berndt, Hall, Hall
    and Hausman 1974); cost O(n K^2) a step, at most 2^22 cells are looked at.
    """
    step = max(1, likelihood.size >> 22)
    table, base = (
        np.asarray(likelihood[::step], np.float64),
        np.asarray(predictions[::step], np.float64),
    )
    weight = None if weights is None else np.asarray(weights, np.float64)[::step]
    total = base.sum(axis=1, keepdims=True)
    base = np.divide(base, total, out=np.zeros_like(base), where=total > 0)
    known = max(1, int((total > 0).sum()))
    base = np.where(
        total > 0, base, base.sum(axis=0) / known if total.any() else 1 / table.shape[1]
    )

    def tilted(tilt: Floats) -> tuple[float, Floats, Floats]:
        p = base * np.exp(tilt)
        p /= p.sum(axis=1, keepdims=True)
        joint = p * table
        evidence = np.maximum(joint.sum(axis=1), 1e-300)
        each, scores = np.log(evidence), joint / evidence[:, None] - p
        return float((each if weight is None else weight * each).sum()), p, scores

    tilt = np.zeros(table.shape[1])
    start, _, scores = tilted(tilt)
    value = start
    for _ in range(20):
        counted = scores if weight is None else weight[:, None] * scores
        information = counted.T @ scores
        move = np.linalg.lstsq(
            information + 1e-9 * np.trace(information) * np.eye(len(tilt)),
            counted.sum(axis=0),
            rcond=None,
        )[0]
        move *= min(1.0, 2.0 / max(float(np.abs(move).max()), 1e-300))
        while np.abs(move).max() > 1e-4 and (ahead := tilted(tilt + move))[0] < value:
            move = move / 2
        if np.abs(move).max() <= 1e-4:
            break
        tilt, (value, _, scores) = tilt + move, ahead
    found = tilted(_kept(len(tilt) - 1, 2 * (value - start)) * tilt)[1]
    return np.asarray(found.mean(axis=0) if weight is None else weight @ found / weight.sum())


def class_rates(given: Any, classes: Sequence[object]) -> Floats:
    """Check known frequencies of the classes: numbers in the order of the classes, or a mapping of
    the classes to them.

    Returns
    -------
    (K,) float64
        Above 0, their sum 1.
    """
    by_class = isinstance(given, Mapping)
    if by_class and set(given) != set(classes):
        # A name that is no class is not shown: it may have been read off raw labels.
        raise InvalidInput(
            f"Expected class_prior with a rate for each of the {len(classes)} classes alone, got"
            " other names, or only some of them."
        )
    rates = _validate.floats(class_prior=[given[each] for each in classes] if by_class else given)
    if rates.shape != (len(classes),) or not (rates > 0).all() or not abs(rates.sum() - 1) < 1e-6:
        raise InvalidInput(
            f"Expected class_prior of {len(classes)} rates above 0 whose sum is 1, "
            f"{'one for each class' if by_class else 'in the order of the classes'}, got "
            f"{f'a {type(given).__name__} of others' if by_class else _validate.shown(given)}."
        )
    return np.asarray(rates / rates.sum())


def towards(shares: Floats, scores: Floats, weights: Floats) -> Floats:
    """Compute the shift of the scores (n, K) that makes each class's mean probability its share:
    (K,)."""
    # sums over a few classes are some times faster
    shift, scores = np.zeros(len(shares)), np.asfortranarray(scores)
    for _ in range(100):
        p = scores + shift
        p -= p.max(axis=1)[:, None]
        np.exp(p, out=p)
        mean = (weights / p.sum(axis=1)) @ p / weights.sum()
        step = np.log(shares) - np.log(np.maximum(mean, 1e-300))
        shift += step
        if np.abs(step).max() < 1e-6:
            break
    return np.asarray(shift - shift.mean())


# Numbers
# --------------------------------------------------------------------------------------------------


def points_of(values: Sequence[object]) -> Floats:
    """Return classes as increasing numbers, (K,) float64; refuse classes that are none."""
    numeric = all(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in values
    )
    points = np.asarray(values, np.float64) if numeric else np.empty(0)
    if not numeric or not np.all(np.diff(points) > 0):
        raise InvalidInput(
            "Expected noisy labels whose classes are increasing numbers, such as those of a Grid,"
            " got others. Release the numbers with classes=labeldp.Grid(low, high)."
        )
    return points


def mean_squared_error(
    noisy: NoisyLabels,
    predictions: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate the mean squared error of predictions of the true numbers, on the grid on which they
    were drawn.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
        Their classes are numbers, such as a `Grid`.
    predictions : (n,) float
    sample_weight : (n,) array >= 0, optional
        Public weights of the rows.
    confidence : float

    Returns
    -------
    Estimate
        The mean of `noisy.debias` of the squared errors, with `mean_interval`'s interval.

    Raises
    ------
    InvalidInput
        If the classes are no numbers, the predictions are not finite, or some row has no unbiased
        estimator.
    """
    losses, weights = _squares(noisy, predictions), _weights(sample_weight, len(noisy))
    most = float((weights * losses.max(axis=1)).mean())
    return _mean(noisy, losses, weights, confidence, most=most, constant=None)


def root_mean_squared_error(
    noisy: NoisyLabels,
    predictions: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate the root mean squared error: the roots of `mean_squared_error`'s value and of the
    ends of its interval.

    Parameters
    ----------
    noisy, predictions, sample_weight, confidence
        As in `mean_squared_error`.

    Returns
    -------
    Estimate
        Its value is 0 where the unbiased estimate of the mean squared error is negative.
    """
    found = mean_squared_error(
        noisy, predictions, sample_weight=sample_weight, confidence=confidence
    )
    value, low, high, most = (
        float(np.sqrt(max(each, 0.0))) for each in (found.value, found.low, found.high, found.most)
    )
    return Estimate(
        value, low, high, confidence, (high - low) / (2 * quantile(confidence)), 0.0, most
    )


def r2(
    noisy: NoisyLabels,
    predictions: ArrayLike,
    *,
    mean: float | None = None,
    sample_weight: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate R^2, the share of the true numbers' variance that predictions explain: 1 - (mean
    squared error) / (that of a constant).

    Parameters
    ----------
    noisy, predictions, sample_weight, confidence
        As in `mean_squared_error`.
    mean : float, optional
        The constant: the mean of other rows, in the range of the classes. None (default): the
        estimated mean of these rows, whose own error is left out of the interval.

    Returns
    -------
    Estimate
        A ratio of unbiased estimates, NaN where that of the variance is not above 0. Its interval
        is Fieller's; it is without bounds then, and where noise could carry the variance to 0.

    References
    ----------
    Fieller (1954), "Some problems in interval estimation".
    """
    points, losses, weights = (
        points_of(noisy.classes),
        _squares(noisy, predictions),
        _weights(sample_weight, len(noisy)),
    )
    given = isinstance(mean, int | float | np.number) and points[0] <= mean <= points[-1]
    if mean is not None and not given:
        raise InvalidInput(
            f"Expected {points[0]:g} <= mean <= {points[-1]:g}, in the range of the classes, got"
            f" mean={_validate.shown(mean)}. Clip an estimate that noise carried out of it."
        )
    centre = (weights * (noisy.class_weights() @ points)).mean() if mean is None else float(mean)
    around = _squares(noisy, np.full(len(noisy), np.clip(centre, points[0], points[-1])))
    values = weights * np.array([noisy.debias(losses), noisy.debias(around)])
    ranges = weights * np.array([noisy.loss_range(losses), noisy.loss_range(around)])
    z, n = quantile(confidence), len(noisy)
    error, variance = values.mean(axis=1)
    # z^2 (sums of squares and products, with `mean_interval`'s z^2 observations at the full range)
    # against n^2 (means)
    # of (error - r variance) the range is that of error plus r times that of variance
    signed = typical_length(ranges) * [1, -1]
    spread = z**2 * (n * np.cov(values, ddof=0) + z**2 * np.outer(signed, signed))
    a, b, c = (
        n**2 * variance**2 - spread[1, 1],
        n**2 * error * variance - spread[0, 1],
        n**2 * error**2 - spread[0, 0],
    )
    value = 1 - error / variance if variance > 0 else float("nan")
    if a <= 0 or not variance > 0:  # even a variance of 0 is not excluded
        return Estimate(value, -np.inf, 1.0, confidence, float("inf"), -np.inf, 1.0)
    half = float(np.sqrt(max(b * b - a * c, 0.0))) / a
    low, high = 1 - b / a - half, 1 - b / a + half
    low, high = (low, min(high, 1.0)) if low <= 1 else (-np.inf, 1.0)
    return Estimate(value, low, high, confidence, half / z, -np.inf, 1.0)


def _squares(noisy: NoisyLabels, predictions: ArrayLike) -> Floats:
    """Compute the squared error of each row's prediction at each class: (n, K)."""
    _require_order(noisy)
    points, values = points_of(noisy.classes), _validate.floats(predictions=predictions)
    if values.shape != (len(noisy),) or not np.isfinite(values).all():
        raise InvalidInput(
            f"Expected predictions of shape ({len(noisy)},), one finite number a row; got shape"
            f" {values.shape}."
        )
    return np.asarray((points - values[:, None]) ** 2)


# Rare classes
# --------------------------------------------------------------------------------------------------


def brier_score(
    noisy: NoisyLabels,
    proba: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate the mean squared error of probabilities.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
    proba : (n, K) array
        Columns in the order of `noisy.classes`.
    sample_weight : (n,) array >= 0, optional
    confidence : float

    Returns
    -------
    Estimate
        Of sum_c (p_c - 1{y = c})^2; with two classes half of that, as in scikit-learn. `constant`:
        the class frequencies.
    """
    table, weights = _probabilities(noisy, proba), _weights(sample_weight, len(noisy))
    scale = 0.5 if noisy.n_classes == 2 else 1.0
    losses = scale * ((table**2).sum(axis=1, keepdims=True) - 2 * table + 1)
    rates = _rates(noisy, weights)
    return _mean(
        noisy,
        losses,
        weights,
        confidence,
        most=float(losses.max()),
        constant=scale * float(1 - (rates**2).sum()),
    )


def cost(
    noisy: NoisyLabels,
    predictions: ArrayLike,
    costs: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate the mean cost of a row's decision.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
    predictions : (n,) array of class values
        For a threshold: `np.where(scores >= threshold, "yes", "no")`.
    costs : (K, K) array of finite numbers
        costs[true, predicted], in the order of `noisy.classes`; a gain is a negative cost.
    sample_weight : (n,) array >= 0, optional
    confidence : float

    Returns
    -------
    Estimate
        `constant`: the cheapest class, predicted for every row.

    Examples
    --------
    >>> import labeldp as ldp, numpy as np
    >>> truth = np.arange(4000) % 10 == 0
    >>> labels = ldp.PrivateLabels(truth, classes=[False, True], noise=ldp.SeededNoise(0))
    >>> noisy = ldp.privatize(labels, ldp.RandomizedResponse(2, epsilon=2.0))
    >>> found = ldp.metrics.cost(
    ...     noisy, truth, costs=[[0, 1], [20, 0]]
    ... )  # a miss costs as much as 20 false alarms
    >>> found.low <= 0 < found.constant
    True
    """
    table, weights = _costs(costs, noisy.n_classes), _weights(sample_weight, len(noisy))
    losses = table.T[_codes(noisy, predictions)]
    cheapest = float((_rates(noisy, weights) @ table).min())
    return _mean(
        noisy,
        losses,
        weights,
        confidence,
        least=float(table.min()),
        most=float(table.max()),
        constant=cheapest,
    )


def precision(
    noisy: NoisyLabels,
    predictions: ArrayLike,
    *,
    positive: object = None,
    sample_weight: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate the share of the positive class among the rows for which it is predicted.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
    predictions : (n,) array of class values
    positive : class value, optional
        The class in question, against the rest. None: the second one of two classes.
    sample_weight : (n,) array >= 0, optional
    confidence : float

    Returns
    -------
    Estimate
        NaN, with an interval from 0 to 1, if the class is predicted for no row. `constant`: the
        class's rate, the precision of as many rows chosen at random.

    Raises
    ------
    InvalidInput
        Some row has no unbiased estimator: its law answers within a subset of the classes, or it
        was not drawn.
    """
    rows = _one_class(noisy, positive, sample_weight)
    chosen = (_codes(noisy, predictions) == rows.code) & (rows.weights > 0)
    if not chosen.any():
        return replace(_undefined(confidence, rows.rate), undefined="no row was predicted positive")
    w, t, reach = rows.weights[chosen], rows.t[chosen], rows.reach[chosen]
    return replace(_weighted_mean(t, reach, w / w.mean(), confidence, 0.0, 1.0), constant=rows.rate)


def recall(
    noisy: NoisyLabels,
    predictions: ArrayLike,
    *,
    positive: object = None,
    class_prior: float | None = None,
    sample_weight: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate the share of rows of the positive class for which it is predicted.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
    predictions : (n,) array of class values
    positive : class value, optional
        As in `precision`.
    class_prior : float in (0, 1), optional
        The rate of the positive class, if it is known (a published figure, a private count); None:
        it is estimated from these rows. A known rate makes the interval much shorter where the
        class is rare. It is taken as exact.
    sample_weight : (n,) array >= 0, optional
    confidence : float

    Returns
    -------
    Estimate
        A ratio of unbiased numbers, with Fieller's interval. `constant`: the share of rows for
        which the class is predicted, which is the recall of as many rows chosen at random.
    """
    rows = _one_class(noisy, positive, sample_weight, class_prior)
    chosen = rows.weights * (_codes(noisy, predictions) == rows.code)
    return rows.over_rate(Terms(chosen * rows.t, chosen), confidence, constant=float(chosen.mean()))


def f1(
    noisy: NoisyLabels,
    predictions: ArrayLike,
    *,
    positive: object = None,
    class_prior: float | None = None,
    sample_weight: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate the F1 score, the harmonic mean of precision and recall.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
    predictions : (n,) array of class values
    positive, class_prior, sample_weight, confidence
        As in `recall`.

    Returns
    -------
    Estimate
        2 TP / (predicted + P) of unbiased numbers, with Fieller's interval. `constant`: as many
        rows chosen at random.
    """
    rows = _one_class(noisy, positive, sample_weight, class_prior)
    chosen = rows.weights * (_codes(noisy, predictions) == rows.code)
    share = float(chosen.mean())
    random = 2 * share * rows.rate / (share + rows.rate) if share + rows.rate > 0 else 0.0
    return rows.over_rate(
        Terms(2 * chosen * rows.t, 2 * chosen), confidence, plus=chosen, constant=random
    )


def lift(
    noisy: NoisyLabels,
    scores: ArrayLike,
    share: float,
    *,
    positive: object = None,
    class_prior: float | None = None,
    sample_weight: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate how many times more frequent the positive class is among the rows of the highest
    scores than among all.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
    scores : (n,) array, or (n, K) probabilities
        Higher for rows that are likelier positive. Of rows that tie at the edge each counts in
        part.
    share : float in (0, 1]
        The share of the rows that is meant, such as 0.05 for the top 5 %.
    positive, class_prior, sample_weight, confidence
        As in `recall`.

    Returns
    -------
    Estimate
        Between 0 and 1 / share. `constant`: 1, any choice that ignores the features.
    """
    share = _validate.fraction(
        share=share, one=True, fix="Pass the share of the rows, such as 0.05 for the top 5 %."
    )
    rows = _one_class(noisy, positive, sample_weight, class_prior)
    levels, group = np.unique(-_scores(noisy, scores, rows.code), return_inverse=True)
    size = np.bincount(group, rows.weights, len(levels))
    # how much of the rows of each score is within the share: of ties at its edge a part
    left = share * rows.weights.sum() - (np.cumsum(size) - size)
    inside = np.clip(left / np.where(size > 0, size, 1.0), 0.0, 1.0)[group]
    chosen = rows.weights * inside / share
    return rows.over_rate(Terms(chosen * rows.t, chosen), confidence, most=1 / share, constant=1.0)


def balanced_accuracy(
    noisy: NoisyLabels,
    predictions: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate the mean recall of all classes.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
    predictions : (n,) array of class values
    sample_weight : (n,) array >= 0, optional
    confidence : float

    Returns
    -------
    Estimate
        NaN, with an interval from 0 to 1, if the estimated rate of a class is not above 0.
        `constant`: 1 / K.

    Notes
    -----
    The interval is that of the delta method on the K pairs of debiased counts, with their full
    covariance. It is widened by 1 / (1 - g) as Fieller's is, where g is the largest of the squared
    ratios of the half-widths of the class rates' intervals to these rates; with g >= 1 it is the
    whole range: a class is too rare to tell. Cost O(n K^2).
    """
    predicted, weights, k = (
        _codes(noisy, predictions),
        _weights(sample_weight, len(noisy)),
        noisy.n_classes,
    )
    hits, right, rates, widest = predicted[:, None] == np.arange(k), np.empty(k), np.empty(k), 0.0
    stand_ins = weights[:, None] * noisy.class_weights()
    for code in range(k):
        t = stand_ins[:, code]
        found, _, _, error = mean_interval(
            t, weights * noisy.loss_range(_indicator(noisy, code)), confidence
        )
        rates[code], right[code] = found, (t * hits[:, code]).mean()
        widest = max(widest, float(quantile(confidence) * error / found) ** 2 if found > 0 else 1.0)
    if not rates.min() > 0:
        return _undefined(confidence, 1 / k)
    slopes = weights[:, None] * (hits - right / rates) / (k * rates)
    _, _, _, error = mean_interval(noisy.debias(slopes), noisy.loss_range(slopes), confidence)
    value, half = (
        float((right / rates).mean()),
        (quantile(confidence) * float(error) / (1 - widest) if widest < 1 else np.inf),
    )
    low, high = (
        (value - half, value + half) if value - half <= 1 and value + half >= 0 else (0.0, 1.0)
    )
    return Estimate(
        value,
        max(float(low), 0.0),
        min(float(high), 1.0),
        confidence,
        float(error),
        0.0,
        1.0,
        constant=1 / k,
    )


def roc_auc(
    noisy: NoisyLabels,
    scores: ArrayLike,
    *,
    positive: object = None,
    class_prior: float | None = None,
    sample_weight: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate the area under the ROC curve: how often a row of the positive class has a higher
    score than one of the rest.

    Parameters
    ----------
    noisy : NoisyLabels of n >= 2 rows that the model did not learn from
    scores : (n,) array, or (n, K) probabilities
        Higher for rows that are likelier positive; infinite ones are allowed. Ties count half.
    positive, class_prior, sample_weight, confidence
        As in `recall`.

    Returns
    -------
    Estimate
        `constant`: 0.5, any score that ignores the features.

    Notes
    -----
    The ratio of two sums over pairs of rows, both unbiased, as two rows' noise is independent. The
    interval comes from sums over single rows, to which that over pairs can be traced, so it covers
    also where noise hides the class: it is the whole range there
    (`labeldp.protocol._statistics.roc_area`). Cost O(n log n).

    Examples
    --------
    >>> import labeldp as ldp, numpy as np
    >>> truth = np.arange(20_000) % 10 == 0
    >>> labels = ldp.PrivateLabels(truth, classes=[False, True], noise=ldp.SeededNoise(0))
    >>> noisy = ldp.privatize(labels, ldp.RandomizedResponse(2, epsilon=1.0))
    >>> scores = truth + np.random.default_rng(0).normal(size=20_000)
    >>> found = ldp.metrics.roc_auc(noisy, scores)
    >>> found.tells and found.low > found.constant
    True
    """
    rows = _one_class(noisy, positive, sample_weight, class_prior)
    values = _scores(noisy, scores, rows.code)
    if len(noisy) < 2:
        return _undefined(confidence, 0.5)
    if rows.known is None:
        return replace(roc_area(rows.t, values, rows.weights, rows.reach, confidence), constant=0.5)
    places, rates = concordance(rows.t, values, rows.weights)
    places = places.given(rates, rows.known)
    above, pairs = (
        Terms(places.values - rows.known**2 / 2, places.slopes),
        np.full(len(noisy), rows.known * (1 - rows.known)),
    )
    return replace(ratio(above, Terms(pairs, 0.0), rows.reach, confidence), constant=0.5)


def average_precision(
    noisy: NoisyLabels,
    scores: ArrayLike,
    *,
    positive: object = None,
    class_prior: float | None = None,
    sample_weight: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate the average precision: over rows of the positive class, the mean precision among
    rows of at least their score.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
    scores : (n,) array, or (n, K) probabilities
    positive, class_prior, sample_weight, confidence
        As in `recall`.

    Returns
    -------
    Estimate
        `constant`: the rate of the class, that of any score that ignores the features.

    Notes
    -----
    The sum over pairs of rows and the rate below it are unbiased, and the interval is Fieller's on
    the rows' influences, with standard errors at each value in question
    (`labeldp.protocol._statistics.average_precision`). Cost O(n log n).
    """
    rows = _one_class(noisy, positive, sample_weight, class_prior)
    values = _scores(noisy, scores, rows.code)
    return replace(
        _statistics.average_precision(
            rows.t, values, rows.weights, rows.reach, rows.known, confidence
        ),
        constant=rows.rate,
    )


# Calibration and thresholds
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Calibration:
    """How often rows of similar predicted probability are of the class.

    Attributes
    ----------
    predicted : (bins,) float64
        Mean predicted probability of each bin that has rows.
    observed : Estimates of shape (bins,)
        The class's rate among the rows of each bin.
    share : (bins,) float64
        Share of the rows, or of their weight, in each bin.
    error : Estimate
        The expected calibration error, sum over bins of share x |observed - predicted|. Its value
        is biased upwards, by up to `noise`, for noise moves every bin away from its prediction; its
        interval allows for that.
    noise : float
        The error that a perfectly calibrated model would be expected to show on these rows.
    """

    predicted: Floats
    observed: Estimates
    share: Floats
    error: Estimate
    noise: float

    def __str__(self) -> str:
        bins = zip(self.predicted, self.observed.low, self.observed.high, self.share, strict=True)
        lines = [
            f"predicted {p:.4f}: observed {low:.4f} to {high:.4f} ({share:.1%} of the rows)"
            for p, low, high, share in bins
        ]
        return "\n".join(
            [*lines, f"expected calibration error {self.error}; of noise alone {self.noise:.4f}"]
        )


def calibration_curve(
    noisy: NoisyLabels,
    proba: ArrayLike,
    *,
    n_bins: int = 10,
    strategy: str = "uniform",
    positive: object = None,
    sample_weight: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Calibration:
    """Estimate the class's rate among rows of similar predicted probability, and the expected
    calibration error.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
    proba : (n,) array in [0, 1], or (n, K) probabilities
        Probability of the positive class.
    n_bins : int >= 1
    strategy : {"uniform", "quantile"}
        Bins of equal width, or with about equally many rows each: better where a class is rare.
    positive : class value, optional
        As in `precision`.
    sample_weight : (n,) array >= 0, optional
    confidence : float

    Returns
    -------
    Calibration

    Notes
    -----
    The error's interval is value +- (E T + z sd T), where T = sum_b share_b |noise_b| bounds the
    distance of value and truth by the triangle inequality, and is taken as a sum of independent
    half-normals. It errs on the wide side.
    """
    n_bins = _validate.integer(n_bins=n_bins, low=1)
    rows = _one_class(noisy, positive, sample_weight)
    p, counted = _scores(noisy, proba, rows.code), np.flatnonzero(rows.weights)
    if not ((p >= 0) & (p <= 1)).all():
        raise InvalidInput(
            "Expected probabilities in [0, 1], got others. Scores of another kind have no"
            " calibration."
        )
    p, w, t, reach = p[counted], rows.weights[counted], rows.t[counted], rows.reach[counted]
    points = np.linspace(0, 1, n_bins + 1)[1:-1]
    edges = (
        points
        if _validate.one_of(("uniform", "quantile"), strategy=strategy) == "uniform"
        else np.quantile(p, points)
    )
    _, place = np.unique(np.searchsorted(edges, p, side="left"), return_inverse=True)
    count = np.bincount(place, w)
    predicted, share = np.bincount(place, w * p) / count, count / len(noisy)
    bins = [place == b for b in range(len(count))]
    found = [
        _weighted_mean(t[each], reach[each], w[each] / w[each].mean(), confidence, 0.0, 1.0)
        for each in bins
    ]
    value, low, high, stderr = (
        np.array([getattr(each, part) for each in found])
        for part in ("value", "low", "high", "stderr")
    )
    noise = float(np.sqrt(2 / np.pi) * (share @ stderr))
    half = noise + quantile(confidence) * float(np.sqrt((1 - 2 / np.pi) * (share**2 @ stderr**2)))
    error = float(share @ np.abs(value - predicted))
    whole = Estimate(
        error,
        max(error - half, 0.0),
        min(error + half, 1.0),
        confidence,
        half / quantile(confidence),
        0.0,
        1.0,
    )
    return Calibration(
        predicted, Estimates(value, low, high, confidence, stderr), share, whole, noise
    )


def best_threshold(
    noisy: NoisyLabels,
    scores: ArrayLike,
    *,
    costs: ArrayLike | None = None,
    positive: object = None,
    class_prior: float | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Choose the threshold of least cost, or of the largest F1 score: rows with at least this score
    are predicted positive.

    Parameters
    ----------
    noisy : NoisyLabels of n rows that the model did not learn from
    scores : (n,) array, or (n, K) probabilities
    costs : (2, 2) array, optional
        costs[is positive, predicted positive], as in `cost`: `[[0, 1], [20, 0]]` makes a miss as
        costly as 20 false alarms. None: the largest F1 score.
    positive, class_prior, sample_weight
        As in `recall`.

    Returns
    -------
    float
        One of the scores, or infinity if it is best to predict no row positive.

    Notes
    -----
    Of all thresholds the one that is best by the debiased counts. For a cost this is where the
    isotonic regression of the rate on the score crosses the break-even rate. On the rows that have
    chosen it, the threshold looks better than it is: measure on others. Cost O(n log n).
    """
    rows = _one_class(noisy, positive, sample_weight, class_prior)
    levels, group = np.unique(-_scores(noisy, scores, rows.code), return_inverse=True)
    # positive rows among those predicted positive
    found = np.cumsum(np.bincount(group, rows.weights * rows.t, len(levels)))
    chosen = np.cumsum(np.bincount(group, rows.weights, len(levels)))
    if costs is None:
        total = len(noisy) * rows.known if rows.known is not None else float(found[-1])
        if not total > 0:
            raise InvalidInput(
                "Expected noisy labels that show some rows of the positive class, got an estimate"
                " of none: with so much noise these rows are too few. Give more rows, or pass its"
                " rate as class_prior=."
            )
        gain = 2 * found / (chosen + total)
    else:
        table = _costs(costs, 2)
        hit, miss = table[1, 0] - table[1, 1], table[0, 0] - table[0, 1]
        gain = found * hit + (chosen - found) * miss
    best = int(gain.argmax())
    return float(-levels[best]) if gain[best] > 0 else float("inf")


# Scorers
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scorer:
    """A metric as a function of estimator, features and noisy labels, for scikit-learn's
    `scoring=`. Made by `make_scorer`.

    Rows without evidence are left out.

    Attributes
    ----------
    metric : function of noisy labels and predictions, which returns an Estimate
    response : {"predict", "scores", "predict_proba"}
        What the estimator is asked for: classes or numbers, the positive class's probability (else
        its decision function), or all probabilities.
    sign : float
        -1 for a loss, so that larger is better.
    settings : mapping
        Keyword arguments of the metric.
    """

    metric: Callable[..., Estimate]
    response: str
    sign: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(
        self, estimator: Any, X: object, y: NoisyLabels, sample_weight: ArrayLike | None = None
    ) -> float:
        """Score an estimator on noisy labels.

        Parameters
        ----------
        estimator : fitted classifier or regressor
        X : n rows of features
        y : NoisyLabels of n rows
        sample_weight : (n,) array, optional

        Raises
        ------
        InvalidInput
            y is no NoisyLabels, no row has evidence, or the score is not defined for so few rows.

        Warns
        -----
        UnmeasuredWarning
            Once for a draw of labels, if the estimate's interval excludes nothing.
        """
        found = self.estimate(estimator, X, y, sample_weight)
        if np.isnan(found.value):
            raise InvalidInput(
                f"Expected enough noisy rows for a score, got {int(y.evidenced.sum())}, in which no"
                " row of a class, or no variance is left once the noise is taken off."
                f" Use fewer folds, class_prior=, of numbers make_scorer({_SQUARES!r}), or"
                " labeldp.metrics.likelihood_scorer, which is always defined."
            )
        warn_of_score(found, y, self.metric.__name__)
        return self.sign * found.value

    def estimate(
        self, estimator: Any, X: object, y: NoisyLabels, sample_weight: ArrayLike | None = None
    ) -> Estimate:
        """Estimate the metric with its interval; parameters as for a call."""
        _require_rows(y)
        require_same_order(index_of(X), "X", "sample_weight", sample_weight)
        if self.response == "predict":
            answer = np.asarray(estimator.predict(X))
        elif (
            self.response == "scores"
            and hasattr(estimator, "decision_function")
            and not hasattr(estimator, "predict_proba")
        ):
            answer = _decisions(estimator, X, y, self.settings.get("positive"))
        else:
            answer = _aligned(estimator, X, y)
        y, answer, weights = rows_to_score(y, answer, sample_weight)
        return self.metric(y, answer, sample_weight=weights, **self.settings)


_SQUARES = "neg_mean_squared_error"
_SCORES: dict[str, tuple[Callable[..., Estimate], str, float]] = {
    "accuracy": (accuracy, "predict", 1.0),
    "balanced_accuracy": (balanced_accuracy, "predict", 1.0),
    "precision": (precision, "predict", 1.0),
    "recall": (recall, "predict", 1.0),
    "f1": (f1, "predict", 1.0),
    "roc_auc": (roc_auc, "scores", 1.0),
    "average_precision": (average_precision, "scores", 1.0),
    "neg_log_loss": (log_loss, "predict_proba", -1.0),
    "neg_brier_score": (brier_score, "predict_proba", -1.0),
    "lift": (lift, "scores", 1.0),
    "neg_cost": (cost, "predict", -1.0),
    "r2": (r2, "predict", 1.0),
    _SQUARES: (mean_squared_error, "predict", -1.0),
    "neg_root_mean_squared_error": (root_mean_squared_error, "predict", -1.0),
}
SCORES = tuple(_SCORES)
"""Names that `make_scorer` knows: scikit-learn's, and some more."""


def make_scorer(name: str, **settings: object) -> Scorer:
    """Make a scorer on noisy labels for scikit-learn's searches and cross-validation.

    Parameters
    ----------
    name : one of SCORES
        scikit-learn's names: "accuracy", "balanced_accuracy", "precision", "recall", "f1",
        "roc_auc", "average_precision", "neg_log_loss", "neg_brier_score"; and "lift" (with share=),
        "neg_cost" (with costs=). For numbers "r2", "neg_mean_squared_error" and
        "neg_root_mean_squared_error".
    **settings
        Keyword arguments of the metric, such as `positive="yes"` or `class_prior=0.01`.

    Returns
    -------
    Scorer
        A function of estimator, features and NoisyLabels, which leaves out rows without evidence.
        `scoring="roc_auc"`, the name alone, is scikit-learn's own scorer, which needs true labels.

    Notes
    -----
    For choosing a model `likelihood_scorer` varies least, and works for every law. Of the scores of
    numbers the squared error is unbiased; its root and "r2" are not, and "r2" is undefined where
    noise leaves no variance.

    A score is the estimate's value, not cut to its range: cut, models would tie, and the mean over
    folds would be biased. So few rows at a small epsilon can score 4.04. An UnmeasuredWarning says
    so where the interval excludes nothing; `Scorer.estimate` returns it.

    Examples
    --------
    `GridSearchCV(model, grid, scoring=labeldp.metrics.make_scorer("roc_auc"), cv=KFold(5)).fit(X,
    noisy)`
    """
    metric, response, sign = _SCORES[_validate.one_of(SCORES, name=name)]
    return Scorer(metric, response, sign, settings)


def likelihood_scorer(estimator: Any, X: object, noisy: NoisyLabels) -> float:
    """Score with noisy labels as `y`: the model's mean log-probability of the released outputs.

    It works for every law, invertible or not, and varies less than the unbiased scores, so it is
    the first choice for tuning. Rows without evidence are left out.

    Parameters
    ----------
    estimator : fitted classifier with `predict_proba`, or regressor with `predict_distribution`,
    such as `LabelDPRegressor`
        Also a pipeline that ends in one.
    X : n rows of features
    noisy : NoisyLabels of n rows
        Of a regressor with the grid that it has learned.

    Returns
    -------
    float
        Larger is better; only differences on the same rows mean something.
    """
    _require_rows(noisy)
    kept, proba, _ = rows_to_score(noisy, _aligned(estimator, X, noisy), None)
    return mean_log_evidence(kept, proba)


def rows_to_score(
    noisy: NoisyLabels, answer: NDArray[Any], sample_weight: ArrayLike | None
) -> tuple[NoisyLabels, NDArray[Any], Floats | None]:
    """Leave out the rows without evidence, which were asked about another column or are over their
    unit's cap.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
    answer : (n, ...) array
        What a model predicts of these rows.
    sample_weight : (n,) array, optional

    Raises
    ------
    InvalidInput
        If no row has evidence, or the numbers of rows differ.
    """
    kept, weights = (
        noisy.evidenced,
        (None if sample_weight is None else checked_weights(sample_weight, len(noisy))),
    )
    if kept.all():
        return noisy, answer, weights
    if not kept.any():
        raise InvalidInput(
            f"Expected evidence for at least one row to score by, got none among {len(noisy)} noisy"
            " labels: the rows are over their unit's cap, or were asked about another column. Use"
            " fewer folds, or shuffled ones: cv=KFold(3, shuffle=True)."
        )
    if len(answer) != len(noisy):
        raise InvalidInput(
            f"Expected predictions of {len(noisy)} rows, one a noisy label, got {len(answer)}."
        )
    return noisy[kept], answer[kept], None if weights is None else weights[kept]


def _aligned(estimator: Any, X: object, noisy: NoisyLabels) -> Floats:
    """Predict probabilities, with columns in the order of the noisy labels' classes; 0 for classes
    that the estimator lacks."""
    if not hasattr(estimator, "predict_proba"):
        return _distribution(estimator, X, noisy)
    found = np.asarray(estimator.predict_proba(X), np.float64)
    known = getattr(estimator, "classes_", None)
    if (
        known is None
        or list(known) == list(noisy.classes)
        or found.ndim != 2
        or found.shape[1] != len(known)
    ):
        return found
    table = np.zeros((len(found), noisy.n_classes))
    table[:, encode(np.asarray(known), noisy.classes)] = found
    return table


def _decisions(estimator: Any, X: object, noisy: NoisyLabels, positive: object) -> Floats:
    """Compute scores of the positive class, (n,), by a decision function; all -inf, a tie, if the
    estimator lacks the class."""
    found, known, code = (
        np.asarray(estimator.decision_function(X)),
        getattr(estimator, "classes_", None),
        _code(noisy, positive),
    )
    codes = (
        list(range(noisy.n_classes))
        if known is None
        else encode(np.asarray(known), noisy.classes).tolist()
    )
    if found.shape[1:] != (len(codes),) and (found.ndim != 1 or len(codes) > 2):
        raise InvalidInput(
            f"Expected a decision function with a column for each of {len(codes)} classes, or one"
            f" number a row for two, got shape {found.shape}. Use an estimator with predict_proba,"
            " or decision_function_shape='ovr'."
        )
    if code not in codes:
        return np.full(len(found), -np.inf)
    if found.ndim == 2:
        return np.asarray(found[:, codes.index(code)])
    return found if code == codes[-1] else -found  # of the second of the estimator's classes


def _distribution(estimator: Any, X: Any, noisy: NoisyLabels) -> Floats:
    """Predict probabilities of the numbers on the noisy labels' grid, by a regressor or a pipeline
    that ends in one."""
    if hasattr(estimator, "steps"):  # a pipeline passes on only the methods that scikit-learn knows
        return _distribution(
            estimator[-1], estimator[:-1].transform(X) if len(estimator) > 1 else X, noisy
        )
    if not hasattr(estimator, "predict_distribution"):
        raise InvalidInput(
            "Expected an estimator that predicts probabilities (predict_proba, or"
            f" predict_distribution of numbers), got {type(estimator).__name__}. Use a scorer of"
            f" its predictions, such as labeldp.metrics.make_scorer({_SQUARES!r}) of numbers."
        )
    if not np.array_equal(estimator.grid_, points_of(noisy.classes)):
        raise InvalidInput(
            "Expected noisy labels on the grid that the regressor has learned, got another one."
            " Release both with one labeldp.Grid."
        )
    return np.asarray(estimator.predict_distribution(X), np.float64)


def mean_log_evidence(noisy: NoisyLabels, proba: ArrayLike) -> float:
    """Compute the mean log-probability of the released outputs under a model's probabilities, up to
    a constant of these rows.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
        Of any law.
    proba : (n, K) array
        Columns in the order of `noisy.classes`.

    Returns
    -------
    float
        Larger is better; only differences on the same rows mean something.
    """
    return float(log_evidence(noisy, proba).mean())


def log_evidence(noisy: NoisyLabels, proba: ArrayLike) -> Floats:
    """Compute ln P[output | model] of each row, ln sum_y proba[i, y] L[i, y], up to a constant per
    row: (n,) float64."""
    evidence = (_probabilities(noisy, proba) * noisy.likelihood(dtype="float64")).sum(axis=1)
    return np.asarray(np.log(np.maximum(evidence, 1e-300)))


RARELY = 0.1
"""Times 1 / K: a class of a smaller mean probability may be lost."""
_FEW = 1000  # rows that tell whether any may be
_ALIKE = 1e-3  # standard deviations by which predictions of a constant model differ at most
LEAST_ROWS = 30
"""`lost_classes` names no class from fewer rows: their standard errors say too little."""


def lost_classes(noisy: NoisyLabels, proba: ArrayLike) -> list[object]:
    """Find classes that a model practically never predicts, although the noisy labels are evidence
    for them.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
        Of any law.
    proba : (n, K) array
        The model's probabilities for the same rows; it may have learned from them.

    Returns
    -------
    list of class values, in their order
        Classes whose mean probability is below 0.1 / K and whose score is above 5 standard errors.
        If the outputs follow the model, L_c / (sum_y p_y L_y) - 1 has mean 0 for every class c, so
        with many rows a class that does not occur is named with probability 3e-7. Where the law has
        unbiased weights, the class's frequency must be 5 standard errors above 0, too: so the bound
        holds for a model that is wrong about other classes. None are named from fewer than
        LEAST_ROWS (30) rows.

    Notes
    -----
    The likelihood of a class whose probability is 0 has no gradient, so training does not bring a
    lost class back. Cost O(n K).
    """
    table, likelihood = _probabilities(noisy, proba, sums=False), noisy.likelihood(dtype="float64")
    if len(noisy) < LEAST_ROWS:
        return []
    rare = rarely(table)
    return (
        [
            noisy.classes[code]
            for code in sorted(lost_codes(likelihood, table, rare & _occurring(noisy)))
        ]
        if rare.any()
        else []
    )


def lost_codes(
    likelihood: NDArray[np.floating], proba: Floats, among: NDArray[np.bool_], errors: float = 5.0
) -> dict[int, float]:
    """Find the classes that outputs speak for more than a model does, by their codes, with the
    shares that outputs give them.

    Parameters
    ----------
    likelihood : (n, K) array
        P[output | class], up to a factor a row.
    proba : (n, K) array
        The model's probabilities for the same rows.
    among : (K,) bool array
        The classes in question.
    errors : float
        Standard errors above which a class's score must be.
    """
    rare = among.copy()
    evidence = np.maximum((proba * likelihood).sum(axis=1), 1e-300)
    found: dict[int, float] = {}
    while rare.any():
        score = likelihood[:, rare] / evidence[:, None] - 1
        high = score.mean(axis=0) / np.maximum(score.std(axis=0), 1e-12) * np.sqrt(len(proba))
        if not high.max() > errors:
            break
        code = int(np.flatnonzero(rare)[high.argmax()])
        rare[code] = False
        # Outputs of a class that the model lacks count as evidence for other classes, too: give it
        # its share before the next test.
        share, own = 0.1, likelihood[:, code]
        for _ in range(30):  # the maximum-likelihood share, by EM
            share = float(np.mean(share * own / (share * own + (1 - share) * evidence)))
        found[code], evidence = share, (1 - share) * evidence + share * own
    return found


def rarely(proba: Floats) -> NDArray[np.bool_]:
    """Return whether a model practically never predicts a class: its mean probability is below
    RARELY / K."""
    return np.asarray(proba.mean(axis=0) < RARELY / proba.shape[1])


def _occurring(noisy: NoisyLabels) -> NDArray[np.bool_]:
    """Find the classes whose unbiased frequency is 5 standard errors above 0, (K,); all where the
    law has none."""
    told = noisy.measurable
    told = told[told.evidenced]
    if len(told) < LEAST_ROWS:
        return np.ones(noisy.n_classes, bool)
    weights = told.class_weights()
    return np.asarray(weights.mean(axis=0) * np.sqrt(len(told)) > 5 * weights.std(axis=0))


# Rows and their weights
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _OneClass:
    """Rows seen as one class against the rest: stand-ins t for "is of the class", their reach,
    weights of mean 1, and the class's rate."""

    code: int
    t: Floats
    reach: Floats
    weights: Floats
    known: float | None

    @property
    def rate(self) -> float:
        """The known rate, or the estimated one, cut to [0, 1]."""
        return (
            min(max(float((self.weights * self.t).mean()), 0.0), 1.0)
            if self.known is None
            else self.known
        )

    def over_rate(
        self,
        top: Terms,
        confidence: float,
        *,
        plus: Floats | float = 0.0,
        most: float = 1.0,
        constant: float,
    ) -> Estimate:
        """Estimate a statistic over the class's rate, to which `plus` of each row may be added."""
        rates = Terms(self.weights * self.t, self.weights)
        if self.known is not None:
            top, rates = top.given(rates, self.known), Terms(np.full(len(self.t), self.known), 0.0)
        return replace(
            ratio(top, Terms(rates.values + plus, rates.slopes), self.reach, confidence, most=most),
            constant=constant,
        )


def _one_class(
    noisy: NoisyLabels,
    positive: object,
    sample_weight: ArrayLike | None,
    class_prior: float | None = None,
) -> _OneClass:
    _require_rows(noisy)
    fix = (
        "Pass the rate of the positive class as one number, such as 0.02; rates of all classes are"
        " for a fit."
    )
    known = None if class_prior is None else _validate.fraction(class_prior=class_prior, fix=fix)
    code = _code(noisy, positive)
    one = _indicator(noisy, code)
    return _OneClass(
        code, noisy.debias(one), noisy.loss_range(one), _weights(sample_weight, len(noisy)), known
    )


def _indicator(noisy: NoisyLabels, code: int) -> Floats:
    """Return the loss that is 1 for one class, for all rows, without storing a table."""
    return np.broadcast_to(np.eye(noisy.n_classes)[code], (len(noisy), noisy.n_classes))


def _code(noisy: NoisyLabels, positive: object) -> int:
    """Find the class that is called positive."""
    if positive is None and noisy.n_classes == 2:
        return 1
    known: Sequence[object] = list(noisy.classes)
    if positive is None or positive not in known:
        given = "none" if positive is None else _validate.shown(positive)
        raise InvalidInput(
            f"Expected positive= as one of the {noisy.n_classes} classes, got {given}. Name the"
            " class: one against the rest."
        )
    return known.index(positive)


def _codes(noisy: NoisyLabels, predictions: ArrayLike) -> NDArray[np.int32]:
    _require_order(noisy)
    _validate.unmasked(predictions=predictions)
    values = text_array(predictions)
    if values.shape != (len(noisy),):
        raise InvalidInput(
            f"Expected predictions of shape ({len(noisy)},), one class a row; got shape"
            f" {values.shape}."
        )
    return encode(values, noisy.classes)


def _scores(noisy: NoisyLabels, scores: ArrayLike, code: int) -> Floats:
    """Check scores of the positive class; of (n, K) probabilities take its column."""
    _require_order(noisy)
    values = _validate.floats(scores=scores)
    values = values[:, code] if values.ndim == 2 and values.shape[1] == noisy.n_classes else values
    if values.shape != (len(noisy),) or np.isnan(values).any():
        what = "some that are NaN" if values.shape == (len(noisy),) else f"shape {values.shape}"
        raise InvalidInput(
            f"Expected scores of shape ({len(noisy)},) or ({len(noisy)}, {noisy.n_classes}), none"
            f" missing; got {what}."
        )
    return values


def _costs(costs: ArrayLike, k: int) -> Floats:
    table = _validate.floats(costs=costs)
    if table.shape != (k, k) or not np.isfinite(table).all():
        raise InvalidInput(
            f"Expected costs of shape ({k}, {k}), costs[true, predicted], all finite; got shape"
            f" {table.shape}."
        )
    return table


def _weights(sample_weight: ArrayLike | None, n: int) -> Floats:
    """Check weights and scale them to a mean of 1; ones for None."""
    if sample_weight is None:
        return np.ones(n)
    weights = checked_weights(sample_weight, n)
    return np.asarray(weights / weights.mean())


def checked_weights(sample_weight: ArrayLike, n: int) -> Floats:
    """Check the weights of n rows: (n,) float64, finite, >= 0 and not all 0."""
    weights = _validate.floats(sample_weight=sample_weight)
    if weights.shape != (n,):
        raise InvalidInput(
            f"Expected sample_weight of shape ({n},), one a row; got shape {weights.shape}."
        )
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise InvalidInput(
            f"Expected sample_weight finite and >= 0, got {weights[bad[0]]} in row {bad[0]} (the"
            " first is row 0). A row of weight 0 does not count."
        )
    if not 0 < weights.sum() < np.inf:
        raise InvalidInput(
            "Expected sample_weight that is not all zero, and of a finite sum; got others."
            " Scale it."
        )
    return weights


def _rates(noisy: NoisyLabels, weights: Floats) -> Floats:
    """Estimate the class rates, cut to [0, 1] and scaled to a sum of 1: (K,). Cost O(n K)."""
    rates = np.clip(weights @ noisy.class_weights() / len(noisy), 0.0, 1.0)
    return np.asarray(rates / rates.sum())


def _undefined(confidence: float, constant: float) -> Estimate:
    """Return the estimate of a share that these rows do not define."""
    return Estimate(float("nan"), 0.0, 1.0, confidence, float("inf"), 0.0, 1.0, constant=constant)


def _require_rows(noisy: NoisyLabels) -> None:
    if not isinstance(noisy, NoisyLabels):
        raise InvalidInput(
            f"Expected NoisyLabels, got {type(noisy).__name__}. For public true labels use"
            " sklearn.metrics."
        )
    if not len(noisy):
        raise InvalidInput("Expected noisy labels of at least one row, got none.")


def _require_order(noisy: NoisyLabels) -> None:
    """Refuse what are no noisy labels, or of no row; warn if they are in an order of their own, in
    which nobody predicts."""
    _require_rows(noisy)
    if noisy.order == "drawn":
        warn(
            LabelDPWarning(
                "The noisy labels were read from a released table, whose rows are in an order of"
                " their own, and nothing says which prediction belongs to which: they are taken"
                " one by one. Pass noisy.by_id(ids), with the ids of the predicted rows; without"
                " an id column range(n), if they were read from that very file."
            )
        )


def _probabilities(noisy: NoisyLabels, proba: ArrayLike, *, sums: bool = True) -> Floats:
    _require_order(noisy)
    table = _validate.floats(proba=proba)
    if table.shape != (len(noisy), noisy.n_classes):
        raise InvalidInput(
            f"Expected probabilities of shape {(len(noisy), noisy.n_classes)}, got shape"
            f" {table.shape}."
        )
    right = (table >= 0).all(axis=1)
    if sums:
        right &= np.abs(table.sum(axis=1) - 1) <= _ROUNDING
    if not right.all():
        row = int(np.argmin(right))
        raise InvalidInput(
            f"Expected probabilities >= 0 that sum to 1 in each row, got {table[row].tolist()} in"
            f" row {row}."
        )
    return table


def _mean(
    noisy: NoisyLabels,
    losses: Floats,
    weights: Floats,
    confidence: float,
    *,
    least: float = 0.0,
    most: float,
    constant: float | None,
) -> Estimate:
    """Estimate the mean of a loss (n, K) at the true labels."""
    found = _weighted_mean(
        noisy.debias(losses), noisy.loss_range(losses), weights, confidence, least, most
    )
    return replace(found, constant=constant)


def _weighted_mean(
    values: Floats, ranges: Floats, weights: Floats, confidence: float, least: float, most: float
) -> Estimate:
    if (weights != 1).any():
        return ratio(
            Terms(weights * values, weights),
            Terms(weights, 0.0),
            ranges,
            confidence,
            least=least,
            most=most,
        )
    value, low, high, stderr = (
        float(part) for part in mean_interval(values, ranges, confidence, least=least, most=most)
    )
    return Estimate(value, low, high, confidence, stderr, least, most)
