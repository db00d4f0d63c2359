# SPDX-License-Identifier: Apache-2.0
"""What was released, as a loss of logits: rows by their likelihoods, groups of rows by the noisy counts of their labels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.special import log_softmax, logsumexp

from labeldp.protocol.metrics import drawn_to_equal, likeliest_frequencies

Floats = NDArray[np.float64]
Order = NDArray[np.intp]

_SMALLEST = -1e6  # log-likelihood of a row that a model rules out
_GRAIN = 0.25  # variance below which no count is believed: labels are whole


class Evidence(Protocol):
    """What was released of n rows."""

    @property
    def weight(self) -> float:
        """How many rows it counts as."""
        ...

    @property
    def n_units(self) -> int:
        """How many parts can be held out: rows, or groups of rows."""
        ...

    def part(self, units: Order) -> tuple[Order, Self]:
        """The rows of some units, and what was released of these."""
        ...

    @property
    def rows(self) -> Floats:
        """How much each row counts: (n,) float64."""
        ...

    def frequencies(self) -> Floats:
        """What it says of the frequency of the classes: (K,), all above 0, sums to 1."""
        ...

    def loss(self, log_p: Floats) -> tuple[float, Floats]:
        """-log P[released | X] and its gradient in the logits: a number and (n, K), from (n, K) log-probabilities."""
        ...


@dataclass(frozen=True, eq=False)
class RowEvidence:
    """An output for each row.

    Attributes
    ----------
    table : (n, K) float64
        ln P[released | label y], up to a constant a row.
    weights : (n,) float64
    """

    table: Floats
    weights: Floats

    @property
    def weight(self) -> float:
        """Sum of the rows' weights."""
        return float(self.weights.sum())

    @property
    def n_units(self) -> int:
        """n."""
        return len(self.table)

    def part(self, units: Order) -> tuple[Order, "RowEvidence"]:
        """These rows."""
        return units, RowEvidence(self.table[units], self.weights[units])

    @property
    def rows(self) -> Floats:
        """The weights."""
        return self.weights

    def frequencies(self) -> Floats:
        """See `labeldp.protocol.metrics.likeliest_frequencies`."""
        return likeliest_frequencies(np.exp(self.table), self.weights)

    def loss(self, log_p: Floats) -> tuple[float, Floats]:
        """Sum of -log sum_y p_y L_y; the gradient is softmax - posterior. Cost O(n K)."""
        joint = log_p + self.table
        found = logsumexp(joint, axis=1, keepdims=True)
        residual = (np.exp(log_p) - np.exp(joint - found)) * self.weights[:, None]
        return -float(self.weights @ np.maximum(found[:, 0], _SMALLEST)), residual


@dataclass(frozen=True, eq=False)
class CountEvidence:
    """Noisy label counts of groups of rows.

    Attributes
    ----------
    groups : (n,) int
        Which group each row is in; every group has a row.
    counts : (g, K) float64
    variance : float
        Of the noise on one count.
    share : (g,) float64 in [0, 1]
        Which part of each group's rows was counted, nobody knows which.

    Notes
    -----
    Given the features, labels are independent, so a group's count of a class has the mean and the variance that its rows' probabilities
    add up to, and the noise's variance on top; its law is taken as normal, which groups of a few rows and noise of a few counts already are
    well enough, and the K counts of a group as independent. Source: learning from label proportions (Quadrianto et al. 2009; Yu et al.
    2014), with the noise in the likelihood.
    """

    groups: Order
    counts: Floats
    variance: float
    share: Floats

    @property
    def weight(self) -> float:
        """Rows that were counted."""
        return float(self.share[self.groups].sum())

    @property
    def n_units(self) -> int:
        """Number of groups."""
        return len(self.counts)

    def part(self, units: Order) -> tuple[Order, "CountEvidence"]:
        """The rows of these groups."""
        number = np.full(self.n_units, -1)
        number[units] = np.arange(len(units))
        rows = np.flatnonzero(number[self.groups] >= 0)
        return rows, CountEvidence(number[self.groups[rows]], self.counts[units], self.variance, self.share[units])

    @property
    def rows(self) -> Floats:
        """Which part of each row's group was counted."""
        return self.share[self.groups]

    def frequencies(self) -> Floats:
        """Of the sums over groups, at least half a standard deviation each, drawn to equal ones as those of rows are."""
        n, k = self.weight, self.counts.shape[1]
        noise = self.n_units * self.variance
        sums = np.maximum(self.counts.sum(axis=0), 0.5 * np.sqrt(noise) + 0.5)
        evidence = float(np.sum((self.counts.sum(axis=0) - n / k) ** 2) / (noise + n / k))
        return drawn_to_equal(sums / sums.sum(), evidence)

    def loss(self, log_p: Floats) -> tuple[float, Floats]:
        """Minus the normal log-density of the counts. Cost O(n K)."""
        members = csr_matrix((np.ones(len(self.groups)), (self.groups, np.arange(len(self.groups)))), (self.n_units, len(self.groups)))
        p, share = np.exp(log_p), self.share[self.groups, None]
        counted = p * share
        variance = members @ (counted * (1 - counted)) + self.variance + _GRAIN
        off = members @ counted - self.counts
        pull = off / variance
        doubt = 0.5 * (1 / variance - pull**2)
        slope = share * (pull[self.groups] + doubt[self.groups] * (1 - 2 * counted))
        return float(0.5 * (np.sum(off * pull) + np.log(variance).sum())), p * (slope - (p * slope).sum(axis=1, keepdims=True))


def objective(X: Floats, evidence: Evidence, penalty: Floats, intercept: bool, centre: Floats) -> Callable[[Floats], tuple[float, Floats]]:
    """Mean loss of a linear model with its penalty, and the gradient, of flat coefficients with the intercepts in the last column.

    Parameters
    ----------
    X : (n, d) array or sparse matrix
    evidence : Evidence of n rows
    penalty : (K, d + 1) float64
    intercept : bool
        False: the intercepts stay where they are.
    centre : (K,) float64
        Intercepts that have no penalty.
    """
    shape, total = penalty.shape, max(evidence.weight, np.finfo(np.float64).tiny)

    def value_and_gradient(flat: Floats) -> tuple[float, Floats]:
        W = flat.reshape(shape)
        loss, residual = evidence.loss(log_softmax(X @ W[:, :-1].T + W[:, -1], axis=1))
        residual /= total
        gradient = np.empty(shape)
        gradient[:, :-1] = (X.T @ residual).T
        gradient[:, -1] = residual.sum(axis=0)
        away = W.copy()
        away[:, -1] -= centre
        gradient += penalty * away
        if not intercept:
            gradient[:, -1] = 0.0
        return float(0.5 * np.sum(penalty * away**2) + loss / total), gradient.ravel()

    return value_and_gradient
