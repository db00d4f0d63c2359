# SPDX-License-Identifier: Apache-2.0
"""Convex methods of the papers, for linear models on released labels: LP-RR-SGD, LP-Normal-SGD, and
learning from X'Y.

Reference code: short, and without the tuning that a learner for use needs. The exact likelihood
(`labeldp.LabelDPClassifier`) learns as much or more from the same labels; `docs/papers/convex.md`
has the measurement.

Everything here is post-processing: it takes what `labeldp.privatize` or `labeldp.aggregate`
released, reads no raw label, costs nothing.

* Each released label becomes a vector v whose expectation is the one-hot vector of the label
  (`label_vectors`). For any loss, sum_k v_k loss(w, (x, k)) is then unbiased for the loss at the
  label, and so are its gradients. By randomized response this is equation 7, by RRTop-k equation
  17, by subset selection a method whose second moment grows with K, where that of equation 7 grows
  with K^2.
* LP-Normal-SGD (Algorithm 6) adds Gaussian noise to each gradient, in the span of the class
  gradients. Here the noise is in the label's vector, orthogonal to (1, ..., 1), so in the K - 1
  dimensions of the differences of class gradients. It is drawn before training, once, by a
  `Histogram` with groups of one row, with exact discrete noise and a charge; so every epoch is
  free. A changed label moves the vector by sqrt(2); in the paper it moves the gradient by up to 2
  L. For gradients of length L the noise here has at most half the variance.

Sources: Ghazi, Golowich, Kumar, Manurangsi, Zhang, "Deep learning with label differential privacy"
(2021), appendix F; Chua, Ghazi, Kumar, Manurangsi, Sun, Zhang, "Convex optimization with local
label differential privacy" (2026), of which the abstract was read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, softmax

from labeldp import _validate
from labeldp.aggregates import Aggregate, Histogram
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.laws import RRTopK, RRWithPrior
from labeldp.laws._base import Law, Side
from labeldp.laws._exact import WORD, Array, unpack_sets
from labeldp.laws._response import response_words

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """A convex loss of a linear model, over a ball of coefficients.

    Parameters
    ----------
    loss : {"logistic", "squared"}
        "logistic": softmax cross-entropy. "squared": half the squared distance of W'x from the
        one-hot label.
    radius : float
        Bound on the Frobenius norm of the coefficients W, (d, K). Public: chosen without the
        labels, or on noisy ones.
    norm : float, default=1.0
        Bound on the Euclidean norm of a row of features. Longer rows are shortened to it.
    """

    loss: Literal["logistic", "squared"]
    radius: float
    norm: float = 1.0

    def __post_init__(self) -> None:
        _validate.one_of(("logistic", "squared"), loss=self.loss)
        object.__setattr__(self, "radius", _validate.positive(radius=self.radius))
        object.__setattr__(self, "norm", _validate.positive(norm=self.norm))

    @property
    def lipschitz(self) -> float:
        """L, the largest norm of the gradient of one row's loss: sqrt(2) norm, or norm (radius norm
        + 1) for the squared loss."""
        return self.norm * (2.0**0.5 if self.loss == "logistic" else self.radius * self.norm + 1)

    @property
    def diameter(self) -> float:
        """D, the largest distance of two coefficients: 2 radius."""
        return 2 * self.radius

    def rows(self, X: ArrayLike) -> Floats:
        """Shorten rows to the norm: (n, d) float64."""
        table = np.asarray(X, np.float64)
        if table.ndim != 2 or not len(table) or not np.isfinite(table).all():
            raise InvalidInput(
                f"Expected finite features, (n, d) with n > 0, got shape {table.shape}. Impute"
                " missing values first."
            )
        return np.asarray(
            table
            * np.minimum(
                1.0, self.norm / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-300)
            )
        )

    def fitted(self, scores: Floats) -> Floats:
        """The expectation of the label's vector that scores W'x stand for: softmax, or the scores
        themselves. (n, K)."""
        return np.asarray(softmax(scores, axis=1)) if self.loss == "logistic" else scores

    def risk(self, X: ArrayLike, vectors: ArrayLike, weights: ArrayLike) -> float:
        """Estimate the mean loss of coefficients (d, K) without bias, from label vectors (n, K);
        one-hot vectors give it exactly."""
        scores, v = self.rows(X) @ np.asarray(weights, np.float64), np.asarray(vectors, np.float64)
        own = (v * scores).sum(axis=1)
        if self.loss == "logistic":
            return float(np.mean(logsumexp(scores, axis=1) - own))
        return float(np.mean(np.square(scores).sum(axis=1) / 2 - own + 0.5))


# Label vectors
# --------------------------------------------------------------------------------------------------


def label_vectors(released: NoisyLabels | Aggregate) -> Floats:
    """Convert released labels to vectors whose expectation is the one-hot vector of the label: (n,
    K) float64, rows sum to 1.

    Parameters
    ----------
    released : NoisyLabels, or Aggregate of a Histogram with a group for each row
        The second is the release of LP-Normal-SGD: `labeldp.aggregate(labels, Histogram(K, epsilon,
        n, "gaussian", delta), np.arange(n))`.

    Returns
    -------
    (n, K) float64
        Several draws of a row are averaged. By a law that answers within k < K candidates (RRTopK,
        RRWithPrior; equation 17), the vector is unbiased for a label among the candidates. For
        another label its expectation is the uniform vector over the candidates: the loss is then
        biased, by the share of such labels times its range at most (Lemma 20), which nobody can see
        in the release. That is why `NoisyLabels.debias`, from which intervals are made, refuses
        these laws.
    """
    if isinstance(released, Aggregate):
        if not (isinstance(released.query, Histogram) and (released.n_rows == 1).all()):
            raise InvalidInput(
                f"Expected a Histogram with one row in each group, got {released.query}. Pass"
                " groups=np.arange(n)."
            )
        values = released.values.astype(np.float64)
        # A one-hot vector sums to 1, so what the noise adds to the sum is known and is taken off:
        # K - 1 dimensions of noise are left.
        return np.asarray(values - (values.sum(axis=1, keepdims=True) - 1) / values.shape[1])
    if not isinstance(released, NoisyLabels) or not len(released):
        raise InvalidInput(
            "Expected NoisyLabels of at least one row, or an Aggregate, got"
            f" {type(released).__name__}."
        )
    total, draws = np.zeros((*released.shape, released.n_classes)), np.zeros(len(released))
    for part in (part for block in released.blocks for part in block.batches()):
        total[part.rows] += _of_law(part.law, part.outputs, part.side)
        draws[part.rows] += 1
    if not (draws.all() and np.isfinite(total).all()):
        raise InvalidInput(
            "Expected every row to have a draw by a law with unbiased weights, got others. Learn"
            " from likelihoods."
        )
    return np.asarray(total / draws[:, None])


def _of_law(law: Law, outputs: Array, side: Side) -> Floats:
    """Equation 17 for laws with candidates, in the sampler's own probabilities; the law's unbiased
    weights for others."""
    if not isinstance(law, RRTopK | RRWithPrior):
        return law.weights(outputs, side)
    inside, size = unpack_sets(side["candidates"], law.n_classes), side["size"]
    own, other = np.ones(len(outputs)), np.zeros(len(outputs))
    for k in np.flatnonzero(np.bincount(size)):
        if k > 1:  # a single candidate is always released: the vector is its one-hot vector
            a, b = response_words(law.epsilon, int(k))
            own[size == k], other[size == k] = a / WORD, b / WORD
    released = np.asarray(outputs)[:, None] == np.arange(law.n_classes)
    return np.asarray(np.where(inside, (released - other[:, None]) / (own - other)[:, None], 0.0))


# Learning
# --------------------------------------------------------------------------------------------------


def sgd(
    X: ArrayLike, vectors: ArrayLike, problem: Problem, second_moment: float, *, last: bool = False
) -> Floats:
    """Fit coefficients by one pass of projected stochastic gradient descent over the rows, in their
    order.

    Parameters
    ----------
    X : (n, d) array
    vectors : (n, K) array
        From `label_vectors`.
    problem : Problem
    second_moment : float
        A bound on E |gradient|^2 / L^2, from `labeldp.papers._bounds.second_moment`.
    last : bool, default=False
        False: constant steps radius / (G sqrt(n)), and the mean of all iterates, which has the
        better bound. True: as published, steps D / (G sqrt(t)), and the last iterate.

    Returns
    -------
    (d, K) float64, of norm at most `problem.radius`. Its expected excess risk, for independent
    rows, is at most `labeldp.papers._bounds.excess_risk`. Cost: O(n d K).
    """
    rows, targets = problem.rows(X), np.asarray(vectors, np.float64)
    n = len(rows)
    if targets.ndim != 2 or len(targets) != n or not np.allclose(targets.sum(axis=1), 1, atol=1e-6):
        raise InvalidInput(
            f"Expected label vectors of {n} rows that sum to 1, got shape {targets.shape}. Make"
            " them by label_vectors."
        )
    G = problem.lipschitz * _validate.positive(second_moment=second_moment) ** 0.5
    W, mean = np.zeros((2, rows.shape[1], targets.shape[1]))
    for t in range(n):
        step = problem.diameter / (G * (t + 1) ** 0.5) if last else problem.radius / (G * n**0.5)
        mean += W / n
        # sum_k v_k gradient of the loss at class k, since v sums to 1 and labels enter linearly.
        gradient = problem.fitted((rows[t] @ W)[None])[0] - targets[t]
        W = _within(W - step * np.outer(rows[t], gradient), problem.radius)
    return W if last else mean


def minimise(
    X: ArrayLike,
    sums: ArrayLike,
    problem: Problem,
    *,
    steps: int = 300,
    start: ArrayLike | None = None,
) -> Floats:
    """Fit coefficients to X'Y: minimise the empirical loss over the ball by accelerated projected
    gradient steps.

    Parameters
    ----------
    X : (n, d) array
    sums : (d, K) array
        X'Y, exact or with noise: `query.sums(answer.values)` of a `FeatureSums` with the norm of
        the problem, or `X.T @ vectors` of rows that are no longer than it. Labels enter in no other
        way.
    problem : Problem
    steps : int, default=300
    start : (d, K) array, optional
        Where to start: zeros by default.

    Returns
    -------
    (d, K) float64, of norm at most `problem.radius`.

    References
    ----------
    Beck and Teboulle 2009, "A fast iterative shrinkage-thresholding algorithm"; restarts by
    O'Donoghue and Candes 2015.
    """
    rows, target = problem.rows(X), np.asarray(sums, np.float64)
    if target.ndim != 2 or target.shape[0] != rows.shape[1] or not np.isfinite(target).all():
        raise InvalidInput(
            f"Expected finite sums of shape ({rows.shape[1]}, K), got {target.shape}."
        )
    target = target / len(rows)
    # The Hessian is at most the covariance of the rows (softmax: half of it), so this step never
    # overshoots.
    step = (2.0 if problem.loss == "logistic" else 1.0) / float(
        np.linalg.eigvalsh(rows.T @ rows / len(rows))[-1]
    )
    W = (
        np.zeros_like(target)
        if start is None
        else _within(np.array(start, np.float64), problem.radius)
    )
    ahead, momentum = W, 1.0
    for _ in range(_validate.integer(steps=steps, low=1)):
        gradient = rows.T @ problem.fitted(rows @ ahead) / len(rows) - target
        new = _within(ahead - step * gradient, problem.radius)
        if np.vdot(ahead - new, new - W) > 0:  # uphill: the momentum is lost
            momentum = 1.0
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead, W, momentum = new + (momentum - 1) / following * (new - W), new, following
    return W


def _within(W: Floats, radius: float) -> Floats:
    """Project onto the ball."""
    return np.asarray(W * min(1.0, radius / max(float(np.linalg.norm(W)), 1e-300)))
