# SPDX-License-Identifier: Apache-2.0
"""Private label counts of groups, in one table or several that overlap, with exact discrete noise;
and the prior that follows from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import text_array
from labeldp._validate import left_of
from labeldp.aggregates import _gaussian
from labeldp.aggregates._base import Query, check_groups, exact_share
from labeldp.aggregates._discrete import Coins, discrete_gaussian, discrete_laplace
from labeldp.errors import InvalidInput
from labeldp.laws._exact import Words

_GRID = 1 << 20  # variances are rounded up to a multiple of 1 / this
_ROUNDED = 2  # what the bound of many draws takes off the variance: see `_gaussian`


@dataclass(frozen=True)
class Histogram(Query):
    """A query for the label counts of every group, each with noise of its own.

    Parameters
    ----------
    n_classes : int, optional
        K >= 2. None (default): as many as the labels have.
    epsilon : float
        Total for one unit over all groups, since a row is in one group only.
    n_groups : int, optional
        Number of groups, which are numbered 0..n_groups-1 and may be empty. None (default): one
        more than the largest number that `aggregate` gets.
    mechanism : {"laplace", "gaussian"}
        "laplace" (default): discrete Laplace noise, pure epsilon-DP. "gaussian": discrete Gaussian
        noise, (epsilon, delta)-DP, which is smaller if a unit has many rows.
    delta : float
        0 (default) with "laplace", in (0, 1) with "gaussian".

    Notes
    -----
    Guarantee: a changed label moves 1 from one count to another, so Laplace noise P[k] = tanh(a/2)
    e^(-a |k|) with a = epsilon / 2 has exactly this epsilon; for a unit of m rows a = epsilon / (2
    m). Gaussian noise has a variance at which `discrete_delta` (in `labeldp.aggregates._gaussian`)
    is at most delta.

    References
    ----------
    Ghazi et al. 2021, "Deep learning with label differential privacy", Algorithm 4, with one draw a
    bin; Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential privacy".

    Examples
    --------
    >>> Histogram(n_classes=10, epsilon=0.05, n_groups=100).standard_deviation()
    56.567...
    """

    name: ClassVar[str] = "histogram"
    fills: ClassVar[bool] = True
    mechanisms: ClassVar[tuple[str, ...]] = ("laplace", "gaussian")
    pure: ClassVar[frozenset[str]] = frozenset({"laplace"})

    mechanism: str = "laplace"

    def scale(self, max_rows_per_unit: int = 1) -> Fraction:
        """Return the exact parameter of the noise: a for Laplace noise, sigma^2 for Gaussian
        noise."""
        if self.mechanism == "gaussian":
            return self._variance(max_rows_per_unit)
        return exact_share(self.epsilon, 2 * max_rows_per_unit * self.n_tables)

    def standard_deviation(self, max_rows_per_unit: int = 1) -> float:
        """Return the standard deviation of the noise on one count; for Gaussian noise sigma, an
        upper bound of it."""
        scale = float(self.scale(max_rows_per_unit))
        return float(
            np.sqrt(scale)
            if self.mechanism == "gaussian"
            else np.exp(-scale / 2) * np.sqrt(2) / -np.expm1(-scale)
        )

    def release(
        self, counts: NDArray[np.int64], words: Words, max_rows_per_unit: int = 1
    ) -> NDArray[np.int64]:
        """Draw noisy counts of n groups, (n, K) int64 of any sign, from (n, K) raw counts and the
        words of n K rows."""
        self._check(counts, words)
        draw = discrete_gaussian if self.mechanism == "gaussian" else discrete_laplace
        return counts + draw(Coins(words), self.scale(max_rows_per_unit)).reshape(counts.shape)

    def shares(
        self, values: NDArray[np.int64], n_rows: NDArray[np.int64], max_rows_per_unit: int = 1
    ) -> NDArray[np.float64]:
        """Estimate class shares by projection onto the simplex: (n, K) from (n, K) noisy counts and
        (n,) public numbers of rows.

        The nearest counts >= 0 that add up to the group's number of rows are mixed with the uniform
        distribution by min(1, (standard deviation / rows)^2). A group without rows gets the uniform
        distribution. Post-processing costs no epsilon.
        """
        # Clamping negative counts at 0 would leave the positive noise of absent classes, and so
        # bias shares towards many classes. The projection subtracts one level from all counts and
        # cuts off at 0; the level is such that the rest adds up to the size.
        counts, sizes = values.astype(np.float64), n_rows.astype(np.float64)[:, None]
        ordered = -np.sort(-counts, axis=1)
        level = (np.cumsum(ordered, axis=1) - sizes) / np.arange(1, self.n_classes + 1)
        last = np.maximum((ordered > level).sum(axis=1), 1) - 1
        kept = np.maximum(counts - np.take_along_axis(level, last[:, None], axis=1), 0.0)
        total = kept.sum(axis=1, keepdims=True)
        shares = np.where(total > 0, kept / np.where(total > 0, total, 1.0), 1.0 / self.n_classes)
        doubt = np.minimum(
            1.0, (self.standard_deviation(max_rows_per_unit) / np.maximum(sizes, 1e-9)) ** 2
        )
        return np.asarray((1.0 - doubt) * shares + doubt / self.n_classes)


def histogram_of_all(
    epsilon: float, n_classes: int, n_rows: int, cost: float | None = None
) -> tuple[Histogram, float]:
    """Divide a budget between a histogram of all rows, as one group, and the draws that take it as
    their prior.

    Parameters
    ----------
    epsilon : float
        For both together.
    n_classes, n_rows : int
    cost : float, optional
        Cost of the histogram. None: sqrt(4 K / n), at most half of epsilon; see
        `labeldp.learn.HistogramPrior`.

    Returns
    -------
    query : Histogram
    rest : float
        What is left for the draws, rounded down.
    """
    share = (
        three_digits(min(epsilon / 2, (4 * n_classes / n_rows) ** 0.5))
        if cost is None
        else _validate.epsilon(cost)
    )
    rest = left_of(epsilon, share, "the prior (its own epsilon)")
    return Histogram(n_classes, share, 1), rest


def three_digits(share: float) -> float:
    """Round a share of epsilon, so that ledger and messages show the number that was spent."""
    return float(f"{share:.3g}")


@dataclass(frozen=True)
class Marginals(Histogram):
    """A query for the label counts of several tables of groups at one cost: each row is in one
    group of each table.

    Parameters
    ----------
    n_classes : int
        K >= 2.
    epsilon : float
        Total for one unit over all groups of all tables.
    n_groups : int
        Number of groups of all tables together, numbered table by table; `Marginals.of` adds them
        up.
    mechanism : {"laplace", "gaussian"}
        "laplace" (default): discrete Laplace noise, pure epsilon-DP. "gaussian": discrete Gaussian
        noise, (epsilon, delta)-DP; its standard deviation grows with the square root of the number
        of tables, that of Laplace noise with the number itself.
    delta : float
        0 (default) with "laplace", in (0, 1) with "gaussian".
    sizes : sequence of T int >= 1
        Number of groups of each table.

    Notes
    -----
    Guarantee: another label of a row moves 1 from one count to another in each of the T tables: an
    L1 distance of 2 T, an L2 distance of the square root of 2 T; with m rows of a unit m times
    that. So Laplace noise with a = epsilon / (2 m T) has exactly this epsilon: what T histograms at
    epsilon / T each have. Gaussian noise has a variance s at which m^2 2 T / (s - 2) is a squared
    mean whose delta, by `composed_delta` (in `labeldp.aggregates._gaussian`), is at most the stated
    one.

    References
    ----------
    Barak et al. (2007), "Privacy, Accuracy, and Consistency Too", for sets of marginals by the
    Laplace mechanism; Dong, Roth, Su (2022), Corollary 3.3, for the Gaussian noise.

    Examples
    --------
    >>> query = Marginals.of(n_classes=2, epsilon=1.0, sizes=[9, 16, 42])
    >>> query.n_groups, round(query.standard_deviation(), 2)
    (67, 8.48)
    """

    fills: ClassVar[bool] = False
    name: ClassVar[str] = "marginals"

    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.sizes, (list, tuple)) or not self.sizes:
            raise InvalidInput(
                "Expected sizes with the number of groups of each table, got none."
                " Marginals.of(n_classes, epsilon, [9, 16])."
            )
        object.__setattr__(
            self, "sizes", tuple(_validate.integer(sizes=size, low=1) for size in self.sizes)
        )
        if sum(self.sizes) != self.n_groups:
            raise InvalidInput(
                f"Expected n_groups={sum(self.sizes)}, the sum of sizes, got {self.n_groups}."
                " Marginals.of adds them up."
            )
        self.scale()  # refuses a budget that no noise can keep

    @classmethod
    def of(
        cls,
        n_classes: int,
        epsilon: float,
        sizes: Sequence[int],
        mechanism: str = "laplace",
        delta: float = 0.0,
    ) -> Self:
        """Make the query for tables of so many groups each."""
        return cls(
            n_classes,
            epsilon,
            sum(_validate.integer(sizes=size, low=1) for size in sizes) or 1,
            mechanism,
            delta,
            tuple(sizes),
        )

    @property
    def n_tables(self) -> int:
        """Return the number of tables."""
        return len(self.sizes)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Return the number of each table's first group: (T,) int64."""
        return np.cumsum((0, *self.sizes[:-1]))

    def _variance(self, max_rows_per_unit: int) -> Fraction:
        mean = _gaussian.calibrated_mean(self.epsilon, self.delta, self.n_groups * self.n_classes)
        least = Fraction(2 * self.n_tables * max_rows_per_unit**2) / mean + _ROUNDED
        return Fraction(math.ceil(least * _GRID), _GRID)

    def groups_of_rows(self, groups: "ArrayLike", n_rows: int) -> NDArray[np.int64]:
        """Check the group of each row in each table, (n_rows, T), numbered from 0 in each; number
        them over all tables."""
        array = np.ma.asarray(groups) if np.ma.is_masked(groups) else text_array(groups)
        if array.shape != (n_rows, self.n_tables):
            raise InvalidInput(
                f"Expected groups of {n_rows} rows in {self.n_tables} tables, got shape"
                f" {array.shape}. Give a column of groups for each table; labeldp.learn.Groupings"
                " makes them of public columns."
            )
        columns = [
            check_groups(array[:, t], size) + start
            for t, (size, start) in enumerate(zip(self.sizes, self.starts, strict=True))
        ]
        return np.column_stack(columns)
