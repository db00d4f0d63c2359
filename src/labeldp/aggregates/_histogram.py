# SPDX-License-Identifier: Apache-2.0
"""Private label counts of groups, with exact discrete noise, and the prior that follows from them."""

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
    """A query for the label counts of every group, each with noise of its own.

    Parameters
    ----------
    n_classes : int
        K >= 2.
    epsilon : float
        Total for one unit over all groups, since a row is in one group only.
    n_groups : int
        Number of groups, which are numbered 0..n_groups-1 and may be empty.
    mechanism : {"laplace", "gaussian"}
        "laplace" (default): discrete Laplace noise, pure epsilon-DP. "gaussian": discrete Gaussian noise, (epsilon, delta)-DP, which is
        smaller if a unit has many rows.
    delta : float
        0 (default) with "laplace", in (0, 1) with "gaussian".

    Notes
    -----
    Guarantee: a changed label moves 1 from one count to another, so Laplace noise P[k] = tanh(a/2) e^(-a |k|) with a = epsilon / 2 has
    exactly this epsilon; for a unit of m rows a = epsilon / (2 m). Gaussian noise has a variance at which `discrete_delta` (in
    `labeldp.aggregates._gaussian`) is at most delta.

    References
    ----------
    Ghazi et al. 2021, "Deep learning with label differential privacy", Algorithm 4, with one draw a bin; Canonne, Kamath and Steinke 2020,
    "The discrete Gaussian for differential privacy".

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
        """Return the exact parameter of the noise: a for Laplace noise, sigma^2 for Gaussian noise."""
        if self.mechanism == "gaussian":
            return self._variance(max_rows_per_unit)
        return exact_share(self.epsilon, 2 * max_rows_per_unit)

    def standard_deviation(self, max_rows_per_unit: int = 1) -> float:
        """Return the standard deviation of the noise on one count; for Gaussian noise sigma, an upper bound of it."""
        scale = float(self.scale(max_rows_per_unit))
        return float(np.sqrt(scale) if self.mechanism == "gaussian" else np.exp(-scale / 2) * np.sqrt(2) / -np.expm1(-scale))

    def value_shape(self) -> tuple[int, ...]:
        """Return the shape of the values: (n_groups, K)."""
        return self.n_groups, self.n_classes

    def release(self, counts: NDArray[np.int64], words: Words, max_rows_per_unit: int = 1) -> NDArray[np.int64]:
        """Draw noisy counts of g groups, (g, K) int64 of any sign, from (g, K) raw counts and the words of g K rows."""
        self._check(counts, words)
        draw = discrete_gaussian if self.mechanism == "gaussian" else discrete_laplace
        return counts + draw(Coins(words), self.scale(max_rows_per_unit)).reshape(counts.shape)

    def shares(self, values: NDArray[np.int64], n_rows: NDArray[np.int64], max_rows_per_unit: int = 1) -> NDArray[np.float64]:
        """Estimate class shares by projection onto the simplex: (g, K) from (g, K) noisy counts and (g,) public numbers of rows.

        The nearest counts >= 0 that add up to the group's number of rows are mixed with the uniform distribution by
        min(1, (standard deviation / rows)^2). A group without rows gets the uniform distribution. Post-processing costs no epsilon.
        """
        # Clamping negative counts at 0 would leave the positive noise of absent classes, and so bias shares towards many classes. The
        # projection subtracts one level from all counts and cuts off at 0; the level is such that the rest adds up to the size.
        counts, sizes = values.astype(np.float64), n_rows.astype(np.float64)[:, None]
        ordered = -np.sort(-counts, axis=1)
        level = (np.cumsum(ordered, axis=1) - sizes) / np.arange(1, self.n_classes + 1)
        last = np.maximum((ordered > level).sum(axis=1), 1) - 1
        kept = np.maximum(counts - np.take_along_axis(level, last[:, None], axis=1), 0.0)
        total = kept.sum(axis=1, keepdims=True)
        shares = np.where(total > 0, kept / np.where(total > 0, total, 1.0), 1.0 / self.n_classes)
        doubt = np.minimum(1.0, (self.standard_deviation(max_rows_per_unit) / np.maximum(sizes, 1e-9)) ** 2)
        return np.asarray((1.0 - doubt) * shares + doubt / self.n_classes)
