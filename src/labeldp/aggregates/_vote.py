# SPDX-License-Identifier: Apache-2.0
"""The most frequent class of each group, chosen privately."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp.aggregates import _gaussian
from labeldp.aggregates._base import Query, exact_share
from labeldp.aggregates._discrete import Coins, discrete_gaussian, exp_coin
from labeldp.errors import InvalidInput
from labeldp.laws._exact import Words

_WANTED = 0.05  # probability of failure at which "auto" compares the mechanisms
_UP = 1 + 2.0**-40  # covers the rounding of doubles, so that a bound is never too small
_POINTS = 24  # nodes of a panel in `_rule`


@dataclass(frozen=True)
class Vote(Query):
    """A query for one class of every group: the most frequent one, if its lead exceeds the noise.

    Parameters
    ----------
    n_classes : int, optional
        K >= 2. None (default): as many as the labels have.
    epsilon : float
        Total for one unit over all groups, since a row is in one group only.
    n_groups : int, optional
        Number of groups, which are numbered 0..n_groups-1. An empty group gets a class at random.
        None (default): one more than the largest number that `aggregate` gets.
    mechanism : {"auto", "permute-and-flip", "exponential", "gaussian"}
        "auto" (default) takes permute-and-flip or, with delta > 0, noisy argmax, whichever needs
        the smaller lead. It depends on K, epsilon and delta alone.
    delta : float
        0 (default) for the pure mechanisms, in (0, 1) with "gaussian", either with "auto".

    Notes
    -----
    Guarantee: a changed label moves one count up and another down by 1. The exponential mechanism
    chooses a class with probability proportional to e^(a count); permute-and-flip takes the classes
    in random order and stops at one with probability e^(-a gap). Both have a = epsilon / (2 m) and
    so are epsilon-label-DP; the second never fails more often. "gaussian" is the argmax of counts
    with discrete Gaussian noise at a certified variance.

    References
    ----------
    McKenna and Sheldon 2020, "Permute-and-flip"; McSherry and Talwar 2007, "Mechanism design via
    differential privacy" (exponential); Tang et al. 2022, Algorithm 2 (noisy argmax).

    Examples
    --------
    >>> Vote(n_classes=10, epsilon=0.003, n_groups=1, mechanism="exponential").failure(
    ...     [[4000] * 9]
    ... ).round(4)
    array([0.0218])
    """

    name: ClassVar[str] = "vote"
    fills: ClassVar[bool] = True
    mechanisms: ClassVar[tuple[str, ...]] = ("auto", "permute-and-flip", "exponential", "gaussian")
    pure: ClassVar[frozenset[str]] = frozenset({"permute-and-flip", "exponential"})

    mechanism: str = "auto"

    def chosen(self, max_rows_per_unit: int = 1) -> str:
        """Return the name of the mechanism that runs, which "auto" chooses."""
        if self.mechanism != "auto":
            return self.mechanism
        return _chosen(self.n_classes, self.epsilon, self.delta, max_rows_per_unit)

    def spent_delta(self, max_rows_per_unit: int = 1) -> float:
        """Return the delta of a release: 0 if "auto" chooses a pure mechanism."""
        return self.delta if self.chosen(max_rows_per_unit) == "gaussian" else 0.0

    def value_shape(self) -> tuple[int, ...]:
        """Return the shape of the values: (n_groups,)."""
        return (self.n_groups,)

    def failure(self, gaps: "ArrayLike", max_rows_per_unit: int = 1) -> NDArray[np.float64]:
        """Compute an upper bound of the probability that a class other than the most frequent one
        is chosen.

        Parameters
        ----------
        gaps : (g, K - 1) integers >= 0
            Assumed leads over each of the other classes, for planning. The true ones are private.
        max_rows_per_unit : int, default=1

        Returns
        -------
        (g,) float64
            For the two pure mechanisms the probability itself, rounded up.
        """
        if self.chosen(max_rows_per_unit) == "gaussian":
            return noisy_failure(gaps, self.n_classes, self._variance(max_rows_per_unit))
        leads = _leads(gaps, self.n_classes)
        kept = np.exp(-float(exact_share(self.epsilon, 2 * max_rows_per_unit)) * leads)
        if self.chosen(max_rows_per_unit) == "exponential":
            others = kept.sum(axis=1)
            return np.asarray(np.minimum(1.0, others / (1 + others) * _UP))
        return np.asarray(np.minimum(1.0, _flip_failure(kept) * _UP + 2.0**-44))

    def release(
        self, counts: NDArray[np.int64], words: Words, max_rows_per_unit: int = 1
    ) -> NDArray[np.int64]:
        """Draw a class code for each of g groups, (g,) int64, from (g, K) raw counts and the words
        of g K rows."""
        self._check(counts, words)
        mechanism, coins = self.chosen(max_rows_per_unit), Coins(words)
        if mechanism == "gaussian":
            noisy = counts + discrete_gaussian(coins, self._variance(max_rows_per_unit)).reshape(
                counts.shape
            )
            return first_in_random_order(noisy == noisy.max(axis=1, keepdims=True), coins)
        a, gaps = (
            exact_share(self.epsilon, 2 * max_rows_per_unit),
            counts.max(axis=1, keepdims=True) - counts,
        )
        if mechanism == "exponential":
            out, pending = np.empty(len(gaps), np.int64), np.arange(len(gaps))
            while len(pending):
                rows = pending * gaps.shape[1]
                tried = coins.below(rows, gaps.shape[1])
                taken = exp_coin(coins, rows, a, gaps[pending, tried])
                out[pending[taken]] = tried[taken]
                pending = pending[~taken]
            return out
        return first_in_random_order(
            exp_coin(coins, np.arange(gaps.size), a, gaps.reshape(-1)).reshape(gaps.shape), coins
        )


def noisy_failure(gaps: ArrayLike, n_classes: int, variance: Fraction) -> NDArray[np.float64]:
    """Bound the probability that noise of this variance on each count overrules (g, K - 1) supposed
    leads: (g,) float64."""
    return np.asarray(
        np.minimum(1.0, _gaussian.gap_tail(variance, _leads(gaps, n_classes)).sum(axis=1) * _UP)
    )


def _leads(gaps: ArrayLike, n_classes: int) -> NDArray[np.int64]:
    leads = np.asarray(gaps)
    if (
        leads.ndim != 2
        or leads.shape[1] != n_classes - 1
        or leads.dtype.kind not in "iu"
        or (leads.size and leads.min() < 0)
    ):
        raise InvalidInput(
            f"Expected leads as whole numbers >= 0 of shape (g, {n_classes - 1}), got {leads.dtype}"
            f" {leads.shape}."
        )
    return leads.astype(np.int64)


@lru_cache(maxsize=256)
def _chosen(n_classes: int, epsilon: float, delta: float, max_rows_per_unit: int) -> str:
    """Choose permute-and-flip, unless Gaussian noise fails less often at the lead where its failure
    becomes rare."""
    if not delta > 0:
        return "permute-and-flip"
    flip = Vote(n_classes, epsilon, 1, "permute-and-flip")
    # The comparison is made at one lead, found by bisection: where permute-and-flip first fails
    # rarely. It uses no counts, so it is free.
    low, high = 0, 1
    while flip.failure(_alike(n_classes, high), max_rows_per_unit)[0] > _WANTED:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        enough = flip.failure(_alike(n_classes, middle), max_rows_per_unit)[0] <= _WANTED
        low, high = (low, middle) if enough else (middle, high)
    lead = _alike(n_classes, high)
    noisy = Vote(n_classes, epsilon, 1, "gaussian", delta)
    return (
        "gaussian"
        if noisy.failure(lead, max_rows_per_unit)[0] < flip.failure(lead, max_rows_per_unit)[0]
        else "permute-and-flip"
    )


def _alike(n_classes: int, lead: int) -> NDArray[np.int64]:
    return np.full((1, n_classes - 1), lead, np.int64)


def _flip_failure(kept: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the probability that permute-and-flip fails: (g,) from `kept`, (g, K - 1), the
    chances e^(-a gap)."""
    # Give each class a uniform time. If the best class comes at time t, each other class comes
    # earlier with probability t, and then is taken with probability `kept`. So the probability is
    # the integral of 1 - product of (1 - t kept) over t in [0, 1].
    others = kept.shape[1]
    if (kept == kept[:, :1]).all():
        kept, times = kept[:, :1], others
    else:
        times = 1
    nodes, weights = _rule(others)
    loss = [
        -np.expm1(times * np.log1p(-np.minimum(t * kept, 1 - 2.0**-53)).sum(axis=1)) for t in nodes
    ]
    return np.asarray(np.tensordot(weights, np.array(loss), axes=1))


@lru_cache(maxsize=64)
def _rule(others: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute nodes and weights on [0, 1] that integrate products of so many factors to 2^-60, with
    at most 24 log2(K) nodes."""
    # Gauss-Legendre quadrature of n = 24 points on each of [0, c], [c, 2c], ..., [1/2, 1], where c
    # is a power of 1/2 with c (K - 1) <= n. With m = 2 n and S = sum of kept, the m-th derivative
    # of f is at most m! times the sum, over all choices of m factors, of the products of their
    # `kept` and of the other factors at the panel's lower end b, so at most S^m e^(m b - b S). The
    # rule's error on a panel of width h is h^(m + 1) (n!)^4 / ((m + 1) (m!)^3) times that: on the
    # first panel, where h S <= n, below 10^-23; on the others, where h = b and (b S)^m e^(-b S) <=
    # m^m e^-m, below b e^(m b) 10^-29, which add up to less than 2^-60.
    panels = max(0, math.ceil(math.log2(others / _POINTS)))
    edges = np.append(0.0, 0.5 ** np.arange(panels, -1, -1))
    points, weights = np.polynomial.legendre.leggauss(_POINTS)
    width = np.diff(edges)[:, None]
    return (edges[:-1, None] + width * (points + 1) / 2).reshape(-1), (width * weights / 2).reshape(
        -1
    )


def first_in_random_order(wanted: NDArray[np.bool_], coins: Coins) -> NDArray[np.int64]:
    """Find the first wanted class of each group in a random order: (g,) int64."""
    # Sorting by words is uniform unless two words are equal. Such groups, with a probability of
    # about K^2 / 2^65, take further words.
    words = coins.take(np.arange(len(coins))).reshape(wanted.shape)
    places = words.argsort(axis=1).argsort(axis=1)
    ordered = np.sort(words, axis=1)
    for group in np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)):
        keys, rows = (
            [int(word) for word in words[group]],
            group * wanted.shape[1] + np.arange(wanted.shape[1]),
        )
        while len(set(keys)) < len(keys):
            keys = [key << 64 | int(word) for key, word in zip(keys, coins.take(rows), strict=True)]
        places[group] = [sorted(keys).index(key) for key in keys]
    return np.asarray(np.argmin(np.where(wanted, places, wanted.shape[1]), axis=1))
