# SPDX-License-Identifier: Apache-2.0
"""Multinomial logistic regression on the exact likelihood of noisy labels, noisy counts or both, by
L-BFGS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, issparse, vstack
from scipy.special import log_ndtr, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.learn._data import Floats
from labeldp.protocol.metrics import (
    checked_weights,
    class_rates,
    drawn_to_equal,
    likeliest_frequencies,
    towards,
)

Order = NDArray[np.intp]

_FOLDS = 3
_MANY_ROWS = 10_000  # above, C is chosen by one held-out third instead of three folds
_ENOUGH_ROWS = 60_000  # sample of rows to choose C by
_ON_THE_WAY = 40  # iterations at each C of the path before the last
# decades between two C: under much noise a whole one can be the way from learning little to
# learning noise
_STEP = 0.5
# decades by which coefficients are multiplied: penalties make them too small
_SCALES = np.linspace(-1.0, 1.0, 17)
_SMALLEST = -1e6  # floor of a row's log-likelihood, for rows that the model rules out
# added to the variance of a count: counts are integers, so the normal density must not become
# narrower
_GRAIN = 0.25


class SoftmaxRegression(ClassifierMixin, BaseEstimator):
    """Multinomial logistic regression whose loss is the negative log-likelihood of the released
    outputs.

    Minimises  sum_i s_i * -log sum_y p(y | x_i) L[i, y]  +  penalty / (2 C),  with the penalty of
    scikit-learn's LogisticRegression, so that one-hot likelihoods give the model that
    LogisticRegression gives (for K = 2 it counts |w_1 - w_0|^2, else the sum over classes).

    Parameters
    ----------
    C : float > 0 or sequence of them, default=1.0
        Inverse of the penalty's strength, as in LogisticRegression. A sequence is a range: C_ is
        the geometric mean of its values, and of others between them where they are more than half a
        decade apart, weighted by the likelihood of held-out rows, with a mild preference for a
        tenth of the largest: noisy rows often need a much stronger penalty than usual, but have
        little evidence to choose it by. Held-out rows, not groups of rows, choose with it the
        scale, with a mild preference for 1.
    scale : float > 0, default=1.0
        For one C: what the coefficients, and the intercepts' distances from the log of the
        estimated class frequencies, are multiplied by in the end. A strong penalty finds good
        directions, but coefficients that are too small.
    intercept_C : float > 0, default=inf
        Inverse of the strength of the intercepts' own penalty; inf leaves them free, as
        LogisticRegression does. A finite value keeps classes from vanishing under much noise:
        intercepts are penalised for their distance from the log of the estimated class frequencies,
        and shifted so that the mean probability of each class is its frequency (see
        `labeldp.protocol.metrics.likeliest_frequencies`), before they are scaled.
    fit_intercept : bool, default=True
        Whether to fit a constant for each class.
    class_prior : (K,) floats above 0, sum 1, default=None
        Known frequencies of the classes: the intercepts, which it needs, are shifted so that these
        are the mean probabilities.
    max_iter : int >= 1, default=200
        Maximal number of L-BFGS iterations.
    warm_start : bool, default=False
        Start from the coefficients of the previous fit.
    random_state : int >= 0, RandomState or None, default=None
        Chooses the rows that are held out to choose C.

    Attributes
    ----------
    classes_ : (K,) array
    coef_ : (K, n_features) float64
    intercept_ : (K,) float64
    C_, scale_ : float
        The C and the scale that were used.
    n_iter_ : int

    Notes
    -----
    The loss is not convex if L is not one-hot. The fit starts from zero, where all classes are
    equally likely; no bad optimum was seen. Cost: O(n K d) per iteration; X may be sparse.

    References
    ----------
    Patrini et al. (2017), "Making Deep Neural Networks Robust to Label Noise": the forward
    correction, here with a channel for each row.
    """

    def __init__(
        self,
        *,
        C: float | Sequence[float] = 1.0,
        scale: float = 1.0,
        intercept_C: float = np.inf,
        fit_intercept: bool = True,
        class_prior: Sequence[float] | None = None,
        max_iter: int = 200,
        warm_start: bool = False,
        random_state: object = None,
    ) -> None:
        self.C = C
        self.scale = scale
        self.intercept_C = intercept_C
        self.fit_intercept = fit_intercept
        self.class_prior = class_prior
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.random_state = random_state

    def __sklearn_tags__(self) -> object:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit on known labels.

        Parameters
        ----------
        X : (n, n_features) array or sparse matrix
        y : (n,) labels, at least two different ones
        sample_weight : (n,) array >= 0, optional
        """
        features, labels = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise InvalidInput(
                f"Expected at least 2 classes, got {len(classes)} class. SoftmaxRegression cannot"
                " learn from one class."
            )
        known = np.full((len(codes), len(classes)), -np.inf)
        known[np.arange(len(codes)), codes] = 0.0
        return self._fit(features, self._rows(features, known, sample_weight), classes)

    def fit_likelihood(
        self, X: ArrayLike, log_likelihood: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Fit on likelihoods; the classes are 0..K-1.

        Parameters
        ----------
        X : (n, n_features) array or sparse matrix
        log_likelihood : (n, K) float
            ln P[output | label y] of each row, up to a constant per row; -inf where impossible.
        sample_weight : (n,) array >= 0, optional
        """
        features: Floats = validate_data(self, X, accept_sparse="csr", dtype=np.float64)
        table = self._likelihood(log_likelihood, features.shape[0])
        return self._fit(
            features, self._rows(features, table, sample_weight), np.arange(table.shape[1])
        )

    def fit_counts(
        self,
        X: ArrayLike,
        groups: ArrayLike,
        counts: Any,
        *,
        variance: Any,
        counted: Any = None,
        below: Any = None,
        released: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Fit on noisy label counts of groups of rows, of one table or of several that overlap; the
        classes are 0..K-1.

        Parameters
        ----------
        X : (n, n_features) array or sparse matrix
        groups : (n,) integers in 0..g-1, or (n, T) integers
            Group of each row; groups may be empty. With T tables: its group in each, or -1 where it
            is in none.
        counts : (g, K) numbers, or T such tables
            Number of rows with each label in each group, with unbiased noise. With T tables NaN is
            a count that was not published.
        variance : float, or T of them or of (g, K) arrays
            Variance of the noise on one count.
        counted : (g,) integers, or T such arrays or None, optional
            Number of rows of each group that were counted, chosen at random; all by default.
        below : float, or T of them or of (g, K) arrays or None, optional
            Counts below this number were left out: NaN is known to be below it. By default nothing
            is known of NaN.
        released : ((m, n_features) array or sparse matrix, (m, K) float), optional
            Features and ln P[output | label y] of further rows, as in `fit_likelihood`, whose
            log-likelihood is added.

        Notes
        -----
        Learning from label proportions, with the noise in the likelihood: see `CountEvidence`. C is
        chosen by held-out groups. Cost: O(n T K d) per iteration.

        See Also
        --------
        labeldp.learn.CountsClassifier : the same from published tables with names of columns and
        levels.
        """
        features: Floats = validate_data(self, X, accept_sparse="csr", dtype=np.float64)
        found = count_evidence(
            groups, counts, CountNoise(variance, counted, below), features.shape[0]
        )
        classes = np.arange(found.counts.shape[1])
        if released is None:
            return self._fit(features, found, classes)
        more: Floats = validate_data(
            self, released[0], accept_sparse="csr", dtype=np.float64, reset=False
        )
        told = self._rows(more, self._likelihood(released[1], more.shape[0], len(classes)), None)
        both = (
            vstack([features, more], format="csr")
            if issparse(features) or issparse(more)
            else np.concatenate([features, more])
        )
        return self._fit(both, JointEvidence((found, told)), classes)

    def _likelihood(
        self, log_likelihood: ArrayLike, n_rows: int, n_classes: int | None = None
    ) -> Floats:
        table = np.asarray(log_likelihood, np.float64)
        if (
            table.ndim != 2
            or table.shape != (n_rows, n_classes or table.shape[1])
            or np.isnan(table).any()
        ):
            raise InvalidInput(
                f"Expected log_likelihood of shape ({n_rows}, {n_classes or 'K'}) without NaN, got"
                f" shape {table.shape}."
            )
        if len(bad := np.flatnonzero(~np.isfinite(table.max(axis=1)))):
            raise InvalidInput(
                "Expected log_likelihood below inf, and above -inf for some class of each row, got"
                f" others in row {bad[0]}."
            )
        return table

    def _rows(self, X: Floats, table: Floats, sample_weight: ArrayLike | None) -> RowEvidence:
        n = X.shape[0]
        weight = np.ones(n) if sample_weight is None else checked_weights(sample_weight, n)
        return RowEvidence(np.asfortranarray(table), weight)  # columns contiguous, like `_logits`

    def _fit(self, X: Floats, evidence: Evidence, classes: NDArray[np.generic]) -> Self:
        strengths = self._strengths()
        # The loss is not convex, and a start that favours some classes could stay with them: at
        # zero all are equally likely in every row.
        start = np.zeros((len(classes), X.shape[1] + 1))
        if self.warm_start and getattr(self, "coef_", np.empty(0)).shape == (
            start.shape[0],
            start.shape[1] - 1,
        ):
            start = np.column_stack([self.coef_, self.intercept_])
        known = (
            None if self.class_prior is None else class_rates(self.class_prior, classes.tolist())
        )
        if known is not None and not self.fit_intercept:
            raise InvalidInput(
                "Expected fit_intercept=True with class_prior: it is the intercepts that hold the"
                " model to the frequencies."
            )
        shares = np.full(len(classes), 1 / len(classes))
        if known is not None:
            shares = known
        elif self.fit_intercept and (
            np.isfinite(self.intercept_C) or self.scale != 1 or len(strengths) > 1
        ):
            shares = evidence.frequencies()
        self._centre: Floats = np.log(shares) - np.log(shares).mean()
        self.C_, self.scale_ = (
            (strengths[-1], self.scale)
            if len(strengths) == 1
            else self._choose(X, evidence, start, strengths)
        )
        # the path of warm starts by which C was judged
        for strength in (c for c in strengths if c < self.C_):
            start, _ = self._solve(X, evidence, start, strength, _ON_THE_WAY)
        start, iterations = self._solve(X, evidence, start, self.C_, self.max_iter)
        # The penalties have biased the mean probabilities. They are shifted back before the scale:
        # behind it, where few rows are near two classes, an error of the frequencies would move the
        # border between the classes far.
        if self.fit_intercept and known is None and np.isfinite(self.intercept_C):
            start[:, -1] += evidence.shift(shares, _logits(X, start))
        start *= self.scale_
        start[:, -1] += (1 - self.scale_) * self._centre
        if known is not None:
            start[:, -1] += towards(known, _logits(X, start), evidence.row_weights)
        self.classes_: NDArray[np.generic] = classes
        self.coef_: Floats = start[:, :-1]
        self.intercept_: Floats = start[:, -1]
        self.n_iter_ = iterations
        return self

    def _strengths(self) -> list[float]:
        """Check the settings; return the C to try, ascending."""
        _validate.positive(scale=self.scale)
        if self.intercept_C != np.inf:
            _validate.positive(intercept_C=self.intercept_C)
        _validate.integer(max_iter=self.max_iter, low=1)
        given: list[object] = [self.C] if np.ndim(self.C) == 0 else [*np.asarray(self.C)]
        if not given:
            raise InvalidInput("Expected C, a number or a range of numbers, got an empty range.")
        return _filled(sorted(_validate.positive(C=each) for each in given))

    def _choose(
        self, X: Floats, evidence: Evidence, start: Floats, strengths: list[float]
    ) -> tuple[float, float]:
        """Choose C and the scale by the likelihood of held-out rows or groups: three folds, or one
        if there are many rows."""
        # C is the prior variance of the coefficients, which does not depend on the number of rows,
        # so a sample is enough to find it.
        order = check_random_state(self.random_state).permutation(evidence.n_units)[:_ENOUGH_ROWS]
        if len(order) < _FOLDS:  # nothing to choose by
            return max(strengths[0], strengths[-1] / 10), 1.0
        # Groups cannot choose the scale: what they tell is a mean over rows, which coefficients
        # that are far too large can give, too.
        scales = _SCALES if isinstance(evidence, RowEvidence) else np.zeros(1)
        parts = [order[fold::_FOLDS] for fold in range(_FOLDS if len(order) <= _MANY_ROWS else 1)]
        folds = []
        for part in parts:
            (rows, told), (others, kept) = (
                evidence.part(np.setdiff1d(order, part)),
                evidence.part(part),
            )
            folds.append((X[rows], told, X[others], kept))
        scores, solutions = list[Floats](), dict.fromkeys(range(len(parts)), start)
        for strength in strengths:
            score = np.zeros(len(scales))
            for number, (known, told, left, kept) in enumerate(folds):
                solutions[number] = w = self._solve(
                    known, told, solutions[number], strength, _ON_THE_WAY
                )[0]
                away = _logits(left, w) - self._centre
                score -= [kept.loss(self._centre + 10**decade * away)[0] for decade in scales]
            scores.append(score)
            best = np.asarray(scores)[:, scales >= 0].max(axis=1)
            # worse for a decade: larger C only overfit more
            if strength > 9 * strengths[len(best) - 1 - best[::-1].argmax()]:
                break
        # The posterior means of log C, and then of the scale's logarithm at that C, under normal
        # priors around a tenth of the largest and around 1, half and a sixth of a decade wide:
        # under much noise the held-out likelihoods hardly differ, and the best one alone would be
        # chance. C is judged at scales from 1 on: shrunk afterwards, coefficients that follow the
        # noise can be as likely as others.
        decades = np.log10(strengths[: len(scores)]) - np.log10(strengths[-1] / 10)
        found = np.asarray(scores) - 16 * scales**2
        at = float(
            softmax((found - 2 * decades[:, None] ** 2)[:, scales >= 0]).sum(axis=1) @ decades
        )
        scale = 10 ** float(softmax([np.interp(at, decades, each) for each in found.T]) @ scales)
        # The more rows, the less a penalty draws coefficients in, about with their square root.
        less = np.sqrt((len(order) - len(parts[0])) / evidence.n_units)
        return strengths[-1] / 10 * 10**at, float(1 + (scale - 1) * less)

    def _solve(
        self, X: Floats, evidence: Evidence, start: Floats, strength: float, max_iter: int
    ) -> tuple[Floats, int]:
        """Minimise the loss from this start: coefficients and intercepts (K, n_features + 1), and
        the iterations taken."""
        # |w_1 - w_0|^2 is twice the sum, as w_0 = -w_1
        penalty = np.full(start.shape, 2.0 if len(start) == 2 else 1.0)
        penalty[:, :-1] /= strength
        penalty[:, -1] /= self.intercept_C
        result = minimize(
            objective(X, evidence, penalty, self.fit_intercept, self._centre),
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": max_iter, "gtol": 1e-5, "ftol": 1e-9, "maxcor": 20},
        )
        return result.x.reshape(start.shape), max(1, int(result.nit))

    def decision_function(self, X: ArrayLike) -> Floats:
        """Compute scores before the softmax: (n, K), for K = 2 the difference (n,)."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def _scores(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        features: Floats = validate_data(
            self, X, accept_sparse="csr", dtype=np.float64, reset=False
        )
        return np.asarray(features @ self.coef_.T + self.intercept_)

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Predict probabilities of the true label: (n, K), rows sum to 1."""
        return np.asarray(softmax(self._scores(X), axis=1))

    def predict(self, X: ArrayLike) -> NDArray[np.generic]:
        """Predict the most likely class: (n,) class values."""
        scores = self._scores(X)
        return np.asarray(self.classes_[scores.argmax(axis=1)])


def softmax_of(estimator: Any) -> SoftmaxRegression | None:
    """Return the SoftmaxRegression equivalent to a LogisticRegression with L2 penalty, its
    intercepts penalised a little; else None."""
    if type(estimator) is not LogisticRegression:
        return None
    defaults = LogisticRegression().get_params()
    given = {name: value for name, value in estimator.get_params().items() if name not in _FREE}
    if not 0 < estimator.C < np.inf or not all(
        value is None or value == defaults[n] or (n, value) in _SAME for n, value in given.items()
    ):
        return None
    return SoftmaxRegression(
        C=estimator.C,
        intercept_C=0.1,
        fit_intercept=estimator.fit_intercept,
        max_iter=max(20, estimator.max_iter),
        warm_start=estimator.warm_start,
        random_state=estimator.random_state,
    )


# Parameters of LogisticRegression that do not change its objective, or that SoftmaxRegression has,
# too.
_FREE = {
    "C",
    "fit_intercept",
    "max_iter",
    "warm_start",
    "random_state",
    "solver",
    "verbose",
    "n_jobs",
    "multi_class",
    "intercept_scaling",
    "dual",
}
# a tuple compares values that cannot be hashed, such as class_weight={...}
_SAME = ("penalty", "l2"), ("l1_ratio", 0)


def _filled(strengths: list[float]) -> list[float]:
    """Put further C, evenly on a logarithmic scale, between those that are more than a step
    apart."""
    found = strengths[:1]
    for low, high in pairwise(strengths):
        # 1, 3, 10 are in steps
        steps = max(1, int(np.ceil((np.log10(high) - np.log10(low)) / _STEP - 0.1)))
        found += np.geomspace(low, high, steps + 1)[1:].tolist()
    return found


# Evidence and its loss
# --------------------------------------------------------------------------------------------------
#
# Both kinds have one interface: the weight of each row, the number of units that can be held out
# (rows, or groups of rows), an estimate of the class frequencies, and the loss -log P[outputs | X]
# with its gradient in the logits.


@dataclass(frozen=True, eq=False)
class RowEvidence:
    """One output per row.

    Attributes
    ----------
    table : (n, K) float64
        ln P[output | label y], up to a constant per row.
    row_weights : (n,) float64
    """

    table: Floats
    row_weights: Floats

    @property
    def n_units(self) -> int:
        """Number of rows."""
        return len(self.table)

    def part(self, units: Order) -> tuple[Order, RowEvidence]:
        """Return these rows, and their evidence."""
        return units, RowEvidence(np.asfortranarray(self.table[units]), self.row_weights[units])

    def frequencies(self) -> Floats:
        """Estimate the class frequencies (see `labeldp.protocol.metrics.likeliest_frequencies`)."""
        return likeliest_frequencies(
            np.exp(self.table - self.table.max(axis=1, keepdims=True)), self.row_weights
        )

    def shift(self, shares: Floats, scores: Floats) -> Floats:
        """Find what to add to scores (n, K) so that the mean probabilities are these frequencies:
        (K,)."""
        return towards(shares, scores, self.row_weights)

    def loss(self, scores: Floats) -> tuple[float, Floats]:
        """Compute sum -log sum_y p_y L_y and its gradient, softmax - posterior: a number and (n,
        K), from logits (n, K). Cost O(n K)."""
        residual, posterior = scores.copy(order="K"), scores + self.table
        found = -_to_softmax(residual) + _to_softmax(posterior)
        residual -= posterior
        residual *= self.row_weights[:, None]
        return -float(self.row_weights @ np.maximum(found, _SMALLEST)), residual


def _logits(X: Floats, W: Floats) -> Floats:
    """Compute the scores of a linear model: (n, K), Fortran order."""
    # Each class's scores are contiguous, so that sums over a few classes are some times faster.
    return np.asarray((W[:, :-1] @ X.T).T + W[:, -1])


def _to_softmax(scores: Floats) -> Floats:
    """Replace each row's scores by their softmax, in place; return the log-sum-exp of each row:
    (n,)."""
    # The caller gets logarithms, since probabilities of classes that a model rules out underflow;
    # in place, since allocating costs as much as exp does.
    top = scores.max(axis=1)
    scores -= top[:, None]
    np.exp(scores, out=scores)
    total = scores.sum(axis=1)
    scores /= total[:, None]
    return np.asarray(np.log(total) + top)


@dataclass(frozen=True, eq=False)
class CountEvidence:
    """Noisy label counts of groups of rows. Groups may overlap: those of one table do not, those of
    several tables do.

    Attributes
    ----------
    members : (g, n) sparse matrix
        1 if a row is in a group; every group has a row.
    counts : (g, K) float64
        NaN where a count was not published.
    variance : float or (g, K) float64
        Variance of the noise on a count.
    share : (g,) float64 in [0, 1]
        Share of each group's rows that was counted; which ones is unknown.
    below : (g, K) float64 or None
        Where a count is NaN: it was left out because it is below this number, or NaN if nothing is
        known of it.
    several : bool
        The groups are of several tables, so that no sum over groups tells the frequencies of the
        rows best.

    Notes
    -----
    Given the features, labels are independent. So a group's count of a class has mean sum p_i and
    variance sum p_i (1 - p_i) over its rows, plus the noise's variance. The count is taken as
    normal, which holds well from groups of a few rows and noise of a few counts on. All counts are
    taken as independent: the K counts of a group, and those of groups that share rows. Their noise
    is; what they share is the chance in the labels themselves, which the noise of private counts
    mostly exceeds. The mean of every count is right all the same, so the fit is consistent (a
    composite likelihood); its curvature gives no standard errors. A count that was left out for
    being small has the probability of being small (a censored normal).

    References
    ----------
    Learning from label proportions: Quadrianto et al. (2009), Yu et al. (2014); here with the noise
    in the likelihood. Composite likelihood: Varin, Reid and Firth (2011). Censoring: Tobin (1958).
    """

    members: Any
    counts: Floats
    variance: float | Floats
    share: Floats
    below: Floats | None = None
    several: bool = False

    @property
    def n_units(self) -> int:
        """Number of groups."""
        return len(self.counts)

    def part(self, units: Order) -> tuple[Order, CountEvidence]:
        """Return the rows of these groups, and the groups' evidence."""
        members = self.members[units]
        rows = np.flatnonzero(np.bincount(members.indices, minlength=members.shape[1]))
        variance = self.variance if isinstance(self.variance, float) else self.variance[units]
        below = None if self.below is None else self.below[units]
        return rows, CountEvidence(
            members[:, rows], self.counts[units], variance, self.share[units], below, self.several
        )

    @cached_property
    def row_weights(self) -> Floats:
        """Largest share of a group of each row that was counted: (n,); 0 for a row of no group."""
        return np.asarray(self.members.multiply(self.share[:, None]).max(axis=0).toarray()).reshape(
            -1
        )

    @cached_property
    def _transposed(self) -> Any:
        return self.members.T.tocsr()

    @cached_property
    def _all_counted(self) -> bool:
        return bool((self.share == 1).all())

    @cached_property
    def _known(self) -> NDArray[np.bool_]:
        return ~np.isnan(self.counts)

    def frequencies(self) -> Floats:
        """Estimate the class frequencies from the counts summed over groups: (K,), sums to 1."""
        n, k = float(self.row_weights.sum()), self.counts.shape[1]
        sizes = np.asarray(self.members.sum(axis=1)).reshape(-1) * self.share
        # How often a row is counted, and how many of these counts of each class are known.
        times, told = (
            float(sizes.sum()) / max(n, 1e-300),
            np.where(self._known, sizes[:, None], 0.0).sum(axis=0),
        )
        noise = np.where(self._known, self.variance, 0.0).sum(axis=0)
        noise /= times**2
        sums = np.where(self._known, self.counts, 0.0).sum(axis=0) / times
        sums *= np.where(told > 0, float(sizes.sum()) / np.maximum(told, 1e-300), 0.0)
        # A class of which no count is known gets an equal part of the rest.
        sums[told == 0] = max(n - float(sums.sum()), 0.0) / max(1, int((told == 0).sum()))
        # A sum that the noise could hide counts as half a standard deviation of it, so that no
        # frequency is 0 or below.
        floored = np.maximum(sums, 0.5 * np.sqrt(noise) + 0.5)
        # Chi-square statistic of the sums against equal frequencies: where it is small, the
        # frequencies are shrunk to equal ones.
        return drawn_to_equal(
            floored / floored.sum(), float(np.sum((sums - n / k) ** 2 / (noise + n / k)))
        )

    def shift(self, shares: Floats, scores: Floats) -> Floats:
        """Find what to add to scores (n, K) so that the mean probabilities are these frequencies,
        or counts of several tables likeliest."""
        return (
            _likeliest_shift(self, scores)
            if self.several
            else towards(shares, scores, self.row_weights)
        )

    def posterior(self, log_p: Floats) -> Floats:
        """Estimate the probabilities of the rows' labels given the counts too: (n, K), rows sum to
        1, from the model's log_p (n, K).

        They are nearest to the model's in relative entropy, at the cost of (count - expected
        count)^2 / (2 variance) for each known count: each label is tilted, p e^(sum of its groups'
        multipliers), by the multipliers that solve the dual, a convex problem. Cost: tens of passes
        of O(n T K).
        """
        known, share = self._known, self.share[:, None]
        p = np.exp(log_p)
        sampled = 0.0 if self._all_counted else share * (1 - share) * (self.members @ (p * (1 - p)))
        noise, counts = (
            self.variance + _GRAIN + sampled + np.zeros(known.shape),
            np.where(known, self.counts, 0.0),
        )

        def tilted(flat: Floats) -> tuple[Floats, Floats]:
            scores = log_p + self._transposed @ (
                share * np.where(known, flat.reshape(known.shape), 0.0)
            )
            return scores, _to_softmax(scores)

        def dual(flat: Floats) -> tuple[float, Floats]:
            multipliers = np.where(known, flat.reshape(known.shape), 0.0)
            q, total = tilted(flat)
            slope = np.where(known, share * (self.members @ q) - counts + noise * multipliers, 0.0)
            return (
                float(
                    total.sum()
                    - np.sum(multipliers * counts)
                    + 0.5 * np.sum(noise * multipliers**2)
                ),
                slope.ravel(),
            )

        found = minimize(
            dual,
            np.zeros(known.size),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 500, "gtol": 1e-3, "maxcor": 20},
        )
        return tilted(found.x)[0]

    def loss(self, scores: Floats) -> tuple[float, Floats]:
        """Compute the negative log-density of the counts and its gradient: a number and (n, K),
        from logits (n, K).

        Cost: O(n T K), for rows that are in T groups each.
        """
        p, share = scores.copy(order="K"), self.share[:, None]
        _to_softmax(p)
        mean = self.members @ p
        if self._all_counted:
            own = self.members @ (p * (1 - p))
        else:
            own, mean = share * mean - share**2 * (self.members @ p**2), share * mean
        variance = own + self.variance + _GRAIN
        value, pull, doubt = self._density(mean, variance)
        # d(loss)/d(p) has a term through the mean (pull) and one through the variance (doubt); the
        # softmax's Jacobian turns it into logits.
        slope = self._transposed @ (share * (pull + doubt)) - 2 * p * (
            self._transposed @ (share**2 * doubt)
        )
        return value, p * (slope - (p * slope).sum(axis=1, keepdims=True))

    def _density(self, mean: Floats, variance: Floats) -> tuple[float, Floats, Floats]:
        """Compute the negative log-density of the counts and its derivatives in mean and variance:
        a number and twice (g, K)."""
        known = self._known
        off = np.where(known, mean - self.counts, 0.0)
        pull = off / variance
        doubt = np.where(known, 0.5 * (1 / variance - pull**2), 0.0)
        value = float(0.5 * (np.sum(off * pull) + np.log(variance)[known].sum()))
        if self.below is None:
            return value, pull, doubt
        hidden = ~known & ~np.isnan(self.below)
        spread = np.sqrt(variance[hidden])
        # Counts are whole numbers, so below t is at most t - 1: the normal density is cut in the
        # middle.
        z = (self.below[hidden] - 0.5 - mean[hidden]) / spread
        log_p = log_ndtr(z)
        hazard = np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_p)
        pull[hidden], doubt[hidden] = hazard / spread, 0.5 * hazard * z / variance[hidden]
        return value - float(log_p.sum()), pull, doubt


@dataclass(frozen=True, eq=False)
class JointEvidence:
    """Evidence of several parts of the rows, whose log-likelihoods add: counts of the first rows,
    noisy labels of the last.

    Attributes
    ----------
    parts : tuple of evidence
        In the order of the rows.
    """

    parts: tuple[CountEvidence | RowEvidence, ...]

    @property
    def n_units(self) -> int:
        """Number of units of all parts."""
        return sum(part.n_units for part in self.parts)

    @cached_property
    def row_weights(self) -> Floats:
        """Weights of all parts' rows: (n,)."""
        return np.concatenate([part.row_weights for part in self.parts])

    @cached_property
    def _ends(self) -> Order:
        return np.cumsum([len(part.row_weights) for part in self.parts])

    def part(self, units: Order) -> tuple[Order, JointEvidence]:
        """Return the rows of these units, and the units' evidence."""
        first, rows, kept = 0, [], []
        for part, end in zip(self.parts, self._ends, strict=True):
            mine = units[(units >= first) & (units < first + part.n_units)] - first
            first += part.n_units
            if len(mine):
                found, told = part.part(mine)
                rows.append(found + end - len(part.row_weights))
                kept.append(told)
        return np.concatenate(rows), JointEvidence(tuple(kept))

    def frequencies(self) -> Floats:
        """Estimate the class frequencies: those of the counts, which are the surer ones."""
        return self.parts[0].frequencies()

    def shift(self, shares: Floats, scores: Floats) -> Floats:
        """Find what to add to scores (n, K) so that the evidence is likeliest: (K,)."""
        return _likeliest_shift(self, scores)

    def loss(self, scores: Floats) -> tuple[float, Floats]:
        """Compute the sum of the parts' losses and its gradient: a number and (n, K), from logits
        (n, K)."""
        parts = zip(self.parts, np.split(scores, self._ends[:-1]), strict=True)
        found = [part.loss(np.asfortranarray(rows)) for part, rows in parts]
        return sum(value for value, _ in found), np.asfortranarray(
            np.concatenate([slope for _, slope in found])
        )


Evidence = RowEvidence | CountEvidence | JointEvidence


def _membership(groups: Order, n_groups: int) -> Any:
    """Make the (n_groups, n) sparse matrix of ones from the groups of each row, (n, T); -1 is no
    group."""
    rows, tables = np.nonzero(groups >= 0)
    return csr_matrix((np.ones(len(rows)), (groups[rows, tables], rows)), (n_groups, len(groups)))


def count_evidence(groups: ArrayLike, counts: Any, noise: CountNoise, n_rows: int) -> CountEvidence:
    """Check groups and counts; groups without rows are left out, since they tell nothing.

    Parameters
    ----------
    groups : (n,) or (n, T) integers
    counts : (g, K) numbers, or T such tables
    noise : CountNoise
    n_rows : int
        n.
    """
    where = np.asarray(groups)
    if where.shape[:1] != (n_rows,) or where.ndim > 2 or where.dtype.kind not in "iu":
        raise InvalidInput(
            f"Expected groups of {n_rows} rows as integers, a column for each table; got"
            f" {where.dtype} of shape {where.shape}."
        )
    single = where.ndim == 1
    where = where.reshape(n_rows, -1).astype(np.int64)
    tables = [np.asarray(table, np.float64) for table in ([counts] if single else counts)]
    if len(tables) != where.shape[1]:
        raise InvalidInput(
            f"Expected a table of counts for each of {where.shape[1]} columns of groups, got"
            f" {len(tables)}."
        )
    for t, table in enumerate(tables):
        if (
            table.ndim != 2
            or table.shape[1] < 2
            or table.shape[1] != tables[0].shape[1]
            or np.isinf(table).any()
            or (single and np.isnan(table).any())
        ):
            raise InvalidInput(
                "Expected finite counts of shape (g, K) with K >= 2, the same K in all tables, got"
                f" others, of shape {table.shape}."
            )
        low = where[:, t].min() if n_rows else -2
        if low < (0 if single else -1) or where[:, t].max() >= len(table):
            raise InvalidInput(
                f"Expected groups in 0..{len(table) - 1}, a row of counts for each, got others."
            )
    starts = np.cumsum([0, *(len(table) for table in tables[:-1])])
    members = _membership(
        np.where(where < 0, -1, where + starts), sum(len(table) for table in tables)
    )
    return replace(noise.evidence(members, tables), several=not single)


@dataclass(frozen=True, eq=False)
class CountNoise:
    """What is known of how counts were made: the noise on them, how many rows were counted, and
    which were left out.

    Attributes
    ----------
    variance : float, or T of them or of (g, K) arrays
    counted : (g,) numbers, or T such arrays or None, optional
    below : float, or T of them or of (g, K) arrays or None, optional
    """

    variance: Any
    counted: Any = None
    below: Any = None

    def evidence(self, members: Any, tables: list[Floats]) -> CountEvidence:
        """Check and join the tables."""
        counts, sizes = np.concatenate(tables), np.asarray(members.sum(axis=1)).reshape(-1)
        used = sizes if self.counted is None else self._used(tables, sizes)
        kept = np.flatnonzero(sizes)
        share = used[kept] / sizes[kept]
        below = None
        if self.below is not None:
            limits = _one_each(self.below, tables, "below")
            each = [
                np.broadcast_to(np.nan if one is None else np.asarray(one, np.float64), t.shape)
                for t, one in zip(tables, limits, strict=True)
            ]
            below = np.concatenate(each)[kept]
        return CountEvidence(
            members[kept], counts[kept], self._variance(tables, kept), share, below
        )

    def _variance(self, tables: list[Floats], kept: Order) -> float | Floats:
        if np.isscalar(self.variance) or getattr(self.variance, "shape", None) == ():
            return _validate.positive(zero=True, variance=self.variance)
        given = [
            np.asarray(each, np.float64) for each in _one_each(self.variance, tables, "variance")
        ]
        for table, each in zip(tables, given, strict=True):
            if each.shape not in ((), table.shape) or not np.all((each >= 0) & (each < np.inf)):
                raise InvalidInput(
                    "Expected 0 <= variance < inf, one number a table or one a count,"
                    f" {table.shape}; got shape {each.shape}."
                )
        return np.concatenate(
            [np.broadcast_to(each, t.shape) for t, each in zip(tables, given, strict=True)]
        )[kept]

    def _used(self, tables: list[Floats], sizes: Floats) -> Floats:
        one = len(tables) == 1 and self.counted[0] is not None
        given = (
            [np.asarray(self.counted, np.float64).reshape(-1)]
            if one
            else _one_each(self.counted, tables, "counted")
        )
        found, start = sizes.copy(), 0
        for table, each in zip(tables, given, strict=True):
            part = slice(start, start := start + len(table))
            if each is not None:
                used = np.asarray(each, np.float64)
                if used.shape != (len(table),) or not np.all((used >= 0) & (used <= sizes[part])):
                    raise InvalidInput(
                        f"Expected counted of shape ({len(table)},), each between 0 and the group's"
                        " number of rows."
                    )
                found[part] = used
        return found


def _one_each(given: Any, tables: list[Floats], name: str) -> list[Any]:
    """Return what is given for each table."""
    found = (
        [given] * len(tables)
        if given is None or np.isscalar(given) or getattr(given, "shape", None) == ()
        else list(given)
    )
    if len(found) != len(tables):
        raise InvalidInput(f"Expected {name} for each of {len(tables)} tables, got {len(found)}.")
    return found


def objective(
    X: Floats, evidence: Evidence, penalty: Floats, intercept: bool, centre: Floats
) -> Callable[[Floats], tuple[float, Floats]]:
    """Return a function that computes the penalised mean loss of a linear model and its gradient,
    from flattened coefficients.

    Parameters
    ----------
    X : (n, d) array or sparse matrix
    evidence : Evidence of n rows
    penalty : (K, d + 1) float64
        Weight of each squared coefficient (intercepts last), relative to the sum of the loss.
    intercept : bool
        False: the intercepts are not fitted.
    centre : (K,) float64
        Intercepts at which their penalty is 0.
    """
    total = max(float(evidence.row_weights.sum()), np.finfo(np.float64).tiny)

    def value_and_gradient(flat: Floats) -> tuple[float, Floats]:
        W = flat.reshape(penalty.shape)
        loss, residual = evidence.loss(_logits(X, W))
        away = W.copy()
        away[:, -1] -= centre
        gradient = penalty * away
        gradient[:, :-1] += (X.T @ residual).T
        gradient[:, -1] = gradient[:, -1] + residual.sum(axis=0) if intercept else 0.0
        return float(0.5 * np.sum(penalty * away**2) + loss) / total, gradient.ravel() / total

    return value_and_gradient


def _likeliest_shift(evidence: Evidence, scores: Floats) -> Floats:
    """Find the shift of the scores (n, K) at which the evidence is likeliest: (K,), its mean 0."""
    n = max(float(evidence.row_weights.sum()), 1.0)

    def loss(shift: Floats) -> tuple[float, Floats]:
        value, slope = evidence.loss(scores + shift)
        return value / n, slope.sum(axis=0) / n

    found = minimize(
        loss,
        np.zeros(scores.shape[1]),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 50, "gtol": 1e-6},
    ).x
    return np.asarray(found - found.mean())
