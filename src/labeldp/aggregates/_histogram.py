# SPDX-License-Identifier: Apache-2.0
"""How often each class occurs in each group, with exact discrete noise; and what prior follows from it."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from labeldp.aggregates._base import Query, exact_share
from labeldp.aggregates._discrete import Coins, discrete_gaussian, discrete_laplace
from labeldp.laws._exact import Words


@dataclass(frozen=True)
class Histogram(Query):
    """The label counts of every group, each with its own noise.

    Parameters
    ----------
    n_classes : int
        K >= 2.
    epsilon : float
        Total of one unit, over all groups: a row is in one group only.
    n_groups : int
        Groups are numbered 0..n_groups-1; some may be empty.
    mechanism : {"laplace", "gaussian"}
        Discrete Laplace noise is pure; discrete Gaussian noise is (epsilon, delta), and smaller where a unit has many rows.
    delta : float
        0 with "laplace", in (0, 1) with "gaussian".

    Notes
    -----
    Guarantee: one changed label moves 1 from a count to another, so Laplace noise P[k] = tanh(a/2) e^(-a |k|) with a = epsilon / 2 has
    epsilon exactly; a unit of m rows gets a = epsilon / (2 m). Gaussian: `labeldp.aggregates._gaussian.discrete_delta` at the variance
    used is at most delta. Source: Ghazi et al. (2021), Algorithm 4, with one draw a bin; Canonne, Kamath, Steinke (2020).

    Examples
    --------
    >>> Histogram(n_classes=10, epsilon=0.05, n_groups=100).standard_deviation()
    56.567...
    """

    name: ClassVar[str] = "histogram"
    mechanisms: ClassVar[tuple[str, ...]] = ("laplace", "gaussian")
    pure: ClassVar[frozenset[str]] = frozenset({"laplace"})

    mechanism: str = "laplace"

    def scale(self, max_rows_per_unit: int = 1) -> Fraction:
        """Compute the noise's exact parameter: a of the Laplace law, sigma^2 of the Gaussian one."""
        if self.mechanism == "gaussian":
            return self._variance(max_rows_per_unit)
        return exact_share(self.epsilon, 2 * max_rows_per_unit)

    def standard_deviation(self, max_rows_per_unit: int = 1) -> float:
        """Compute the standard deviation of the noise on one count; sigma for the Gaussian law, which is an upper bound."""
        scale = float(self.scale(max_rows_per_unit))
        return float(np.sqrt(scale) if self.mechanism == "gaussian" else np.exp(-scale / 2) * np.sqrt(2) / -np.expm1(-scale))

    def value_shape(self) -> tuple[int, ...]:
        """Say the shape of all values: (n_groups, K)."""
        return self.n_groups, self.n_classes

    def release(self, counts: NDArray[np.int64], words: Words, max_rows_per_unit: int = 1) -> NDArray[np.int64]:
        """Draw noisy counts of some groups: (g, K) int64, any sign, from (g, K) raw counts and words of g K rows."""
        self._check(counts, words)
        draw = discrete_gaussian if self.mechanism == "gaussian" else discrete_laplace
        return counts + draw(Coins(words), self.scale(max_rows_per_unit)).reshape(counts.shape)

    def shares(self, values: NDArray[np.int64], n_rows: NDArray[np.int64], max_rows_per_unit: int = 1) -> NDArray[np.float64]:
        """Project noisy counts to what a group of so many rows can have: (g, K) shares from (g, K) counts and (g,) rows.

        The nearest counts >= 0 that add up to the group's public number of rows, so that noise on classes that are not there is taken off
        and not, as by clamping at 0, left on one side; mixed with the uniform distribution by (standard deviation / rows)^2, at most all of
        it. Uniform for a group without rows. Post-processing: free.
        """
        counts, sizes = values.astype(np.float64), n_rows.astype(np.float64)[:, None]
        ordered = -np.sort(-counts, axis=1)
        # The projection takes one level off all counts and leaves 0 below: the level at which those that stay above it add up.
        level = (np.cumsum(ordered, axis=1) - sizes) / np.arange(1, self.n_classes + 1)
        last = np.maximum((ordered > level).sum(axis=1), 1) - 1
        kept = np.maximum(counts - np.take_along_axis(level, last[:, None], axis=1), 0.0)
        total = kept.sum(axis=1, keepdims=True)
        shares = np.where(total > 0, kept / np.where(total > 0, total, 1.0), 1.0 / self.n_classes)
        doubt = np.minimum(1.0, (self.standard_deviation(max_rows_per_unit) / np.maximum(sizes, 1e-9)) ** 2)
        return np.asarray((1.0 - doubt) * shares + doubt / self.n_classes)
