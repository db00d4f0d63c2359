# SPDX-License-Identifier: Apache-2.0
"""Families of outcomes: P[class | predictors] and its derivatives, integrated over the evidence of
each row.

A row with predictors eta (q,) and class probabilities P_y(eta) has the likelihood M = sum_y L_y
P_y. Its logarithm has the gradient a = sum_y L_y P_y' / M and the Hessian sum_y L_y P_y'' / M - a
a' (Louis 1982, "Finding the observed information matrix when using the EM algorithm"), which are
exact.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaincc, gammaln, ndtr, softmax

from labeldp.stats._columns import Floats

_TINY = 1e-300
Pieces = tuple[Floats, Floats, Floats]
"""Of n rows: ln M (n,), gradient (n, q) and Hessian (n, q, q) in the predictors."""


@dataclass(frozen=True)
class Softmax:
    """Multinomial logit with the first class for reference: predictors (n, K - 1). With K = 2,
    logistic regression."""

    def probabilities(self, eta: Floats) -> Floats:
        return np.asarray(softmax(np.column_stack([np.zeros(len(eta)), eta]), axis=1))

    def pieces(self, eta: Floats, likelihood: Floats) -> Pieces:
        """Compute log-likelihood, gradient and Hessian of rows from predictors (n, q) and
        likelihoods (n, K)."""
        p = self.probabilities(eta)
        joint = p * likelihood
        total = np.maximum(joint.sum(axis=1), _TINY)
        r, p = joint[:, 1:] / total[:, None], p[:, 1:]
        # of the posterior less of the prior: diag(r) - r r' - diag(p) + p p'
        hessian = p[:, :, None] * p[:, None, :] - r[:, :, None] * r[:, None, :]
        index = np.arange(r.shape[1])
        hessian[:, index, index] += r - p
        return np.log(total), r - p, hessian


@dataclass(frozen=True, eq=False)
class Cells(ABC):
    """An outcome rounded to the nearest of K ascending points, and to the outermost ones beyond
    them.

    Attributes
    ----------
    borders : (K - 1,) float64
        Between neighbouring points. Class y is the outcome in (borders[y - 1], borders[y]].
    """

    borders: Floats

    @abstractmethod
    def _function(self, eta: Floats) -> tuple[Floats, Floats, Floats]:
        """Compute the distribution function at the borders, (n, K - 1), its gradient (n, K - 1, q)
        and Hessian (n, K - 1, q, q)."""

    def probabilities(self, eta: Floats) -> Floats:
        return np.asarray(np.diff(self._function(eta)[0], axis=1, prepend=0.0, append=1.0))

    def pieces(self, eta: Floats, likelihood: Floats) -> Pieces:
        value, slope, bend = self._function(eta)
        # sum_y L_y (F_y - F_(y-1)) = L_K + sum over borders of F_b (L_b - L_(b+1))
        falls = likelihood[:, :-1] - likelihood[:, 1:]
        total = np.maximum(likelihood[:, -1] + (falls * value).sum(axis=1), _TINY)
        gradient = np.einsum("nb,nbq->nq", falls, slope) / total[:, None]
        hessian = np.einsum("nb,nbqr->nqr", falls, bend) / total[:, None, None]
        return np.log(total), gradient, hessian - gradient[:, :, None] * gradient[:, None, :]


@dataclass(frozen=True, eq=False)
class Normal(Cells):
    """A normal outcome, rounded and clamped: predictors mean and ln of the standard deviation."""

    def _function(self, eta: Floats) -> tuple[Floats, Floats, Floats]:
        scale = np.exp(eta[:, 1:2])
        u = (self.borders - eta[:, :1]) / scale
        density = np.exp(-0.5 * u * u) / np.sqrt(2 * np.pi)
        slope = np.stack([-density / scale, -u * density], axis=2)
        cross = density * (1 - u * u)
        rows = [
            np.stack([-u * density / scale**2, cross / scale], axis=2),
            np.stack([cross / scale, u * cross], axis=2),
        ]
        return ndtr(u), slope, np.stack(rows, axis=3)


@dataclass(frozen=True, eq=False)
class Count(Cells):
    """A Poisson count, rounded and clamped: the predictor is the ln of its mean."""

    def _function(self, eta: Floats) -> tuple[Floats, Floats, Floats]:
        rate = np.exp(np.clip(eta[:, :1], -300.0, 300.0))
        most = np.floor(self.borders)  # the largest count of each cell
        counted = most >= 0
        n = np.maximum(most, 0.0)
        value = np.where(counted, gammaincc(n + 1, rate), 0.0)
        mass = np.where(counted, np.exp(n * np.log(rate) - rate - gammaln(n + 1)), 0.0)
        before = np.where(n > 0, mass * n / rate, 0.0)
        slope = -rate * mass
        bend = slope + rate**2 * (mass - before)
        return value, slope[:, :, None], bend[:, :, None, None]


Family = Softmax | Normal | Count
