# SPDX-License-Identifier: Apache-2.0
"""Private sums of public features by class, X'Y: one release, after which a convex loss can be
minimised for any number of steps."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp.aggregates import _gaussian
from labeldp.aggregates._base import Query
from labeldp.aggregates._discrete import WIDEST, Coins, discrete_gaussian
from labeldp.errors import InvalidInput
from labeldp.laws._exact import Words

UNITS = 1 << 20
"""The bound on a row's norm in units of the sums: features are cut to whole units, which moves a
row by less than 2^-20 sqrt(d) of it."""

_HUGE = 2.0**100  # far longer than any bound
_SMALLEST = 1e-300  # bounds below it have no float of units in them


@dataclass(frozen=True)
class FeatureSums(Query):
    """A query for the sum of the feature vectors of each class, X'Y, with Gaussian noise on every
    number.

    The gradient of softmax regression, and of least squares on one-hot labels, depends on the
    labels through X'Y alone, whatever the coefficients. So one release is enough for any number of
    steps, penalties and restarts. Groups are the special case of one-hot rows.

    Parameters
    ----------
    n_classes : int
        K >= 2.
    epsilon : float
        Total for one unit over all sums.
    n_groups : int
        d, the number of features: columns of the (n, d) array that is passed for the groups.
    mechanism : {"gaussian"}, default="gaussian"
    delta : float
        In (0, 1).
    norm : float, default=1.0
        Public bound on the Euclidean norm of a row of features. A longer row is shortened to it:
        features are public.

    Notes
    -----
    Guarantee: (epsilon, delta)-label-DP for each unit. Rows are cut to whole units of norm / 2^20,
    towards 0, so that the sums are integers and no row is longer than 2^20 units, which is checked
    in integers. A changed label takes its row from one class's sum and adds it to another's: a
    squared distance of 2 * 2^40; with m rows of a unit at most m^2 times that. The noise is the
    exact discrete Gaussian, of a variance at which `composed_delta` (in
    `labeldp.aggregates._gaussian`) is at most delta. Features must not depend on these labels.
    Cost: O(n d + n K) time, d K draws.

    References
    ----------
    Ghazi et al. 2021, "Deep learning with label differential privacy", appendix F.2: noise in the
    span of the K class gradients; here the sum over all rows is released once, as by sufficient
    statistics (Vu and Slavkovic 2009). Canonne, Kamath and Steinke 2020.

    Examples
    --------
    >>> query = FeatureSums(n_classes=10, epsilon=0.5, n_groups=200, delta=1e-5, norm=2.0)
    >>> round(query.standard_deviation(), 3)
    19.889
    """

    name: ClassVar[str] = "feature-sums"
    mechanisms: ClassVar[tuple[str, ...]] = ("gaussian",)
    pure: ClassVar[frozenset[str]] = frozenset()
    of_features: ClassVar[bool] = True

    mechanism: str = "gaussian"
    norm: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "norm", _validate.positive(norm=self.norm))
        if not self.norm >= _SMALLEST:
            raise InvalidInput(
                f"Expected norm >= {_SMALLEST}, got norm={self.norm!r}. Multiply features and norm"
                " by a public number."
            )

    def standard_deviation(self, max_rows_per_unit: int = 1) -> float:
        """Return sigma of the noise on one sum, in the features' own unit: an upper bound of its
        standard deviation."""
        return math.sqrt(self._variance(max_rows_per_unit)) * (self.norm / UNITS)

    def units(self, features: "ArrayLike") -> NDArray[np.int64]:
        """Cut public features to whole units: (n, d) int64 of norm at most 2^20, from (n, d)
        numbers; refuse others."""
        _validate.unmasked(features=features)
        rows = np.asarray(features)
        if rows.ndim != 2 or rows.shape[1] != self.n_groups or rows.dtype.kind not in "fiub":
            raise InvalidInput(
                f"Expected a row of {self.n_groups} numbers for each label, (n, {self.n_groups}),"
                f" got {rows.dtype} of shape {rows.shape}. Pass the features as an array, and their"
                " number as n_groups."
            )
        scaled = rows.astype(np.float64) * (UNITS / self.norm)
        if not np.isfinite(scaled).all():
            raise InvalidInput(
                "Expected finite features, got another value in row"
                f" {np.flatnonzero(~np.isfinite(scaled).all(axis=1))[0]}."
            )
        # Lengths first, by doubles; then towards 0, which shortens. Whoever is still too long by a
        # rounding is shortened once more.
        largest = np.abs(scaled).max(axis=1, keepdims=True, initial=0.0)
        # squares that are no floats
        scaled = np.where(largest > _HUGE, scaled * (_HUGE / np.maximum(largest, _HUGE)), scaled)
        lengths = np.sqrt(np.square(scaled).sum(axis=1, keepdims=True))
        whole: NDArray[np.int64] = np.trunc(
            scaled * np.minimum(1.0, UNITS / np.maximum(lengths, 1.0))
        ).astype(np.int64)
        while (long := np.square(whole).sum(axis=1) > UNITS**2).any():
            whole[long] = np.trunc(whole[long] * (1 - 2.0**-20)).astype(np.int64)
        return whole

    def sums(self, values: NDArray[np.int64]) -> NDArray[np.float64]:
        """Convert released values to the features' own unit: X'Y with noise, (d, K) float64.
        Post-processing."""
        return np.asarray(values * (self.norm / UNITS))

    def release(
        self, counts: NDArray[np.int64], words: Words, max_rows_per_unit: int = 1
    ) -> NDArray[np.int64]:
        """Draw noisy sums of g features, (g, K) int64, from (g, K) raw sums in units and the words
        of g K rows."""
        self._check(counts, words)
        return counts + discrete_gaussian(Coins(words), self._variance(max_rows_per_unit)).reshape(
            counts.shape
        )

    def require_cap(self, max_rows_per_unit: int) -> int:
        """Check the cap on rows of one unit, for which the noise must fit into 64-bit numbers."""
        cap = super().require_cap(max_rows_per_unit)
        if not self._variance(cap) <= WIDEST**2:
            raise InvalidInput(
                f"Expected a larger epsilon or fewer rows a unit, got epsilon={self.epsilon!r},"
                f" delta={self.delta!r} and max_rows_per_unit={cap}: the noise would leave 64-bit"
                " numbers."
            )
        return cap

    def _variance(self, max_rows_per_unit: int) -> Fraction:
        """Return sigma^2 of the noise in squared units."""
        mean = _gaussian.calibrated_mean(self.epsilon, self.delta, self.n_groups * self.n_classes)
        # `composed_delta` takes 2 off the variance
        least = math.ceil(2 * (max_rows_per_unit * UNITS) ** 2 / mean) + 2
        # Rounded up to 24 binary digits: all machines draw with the same variance, although they
        # differ in the last digit of a logarithm.
        grain = max(0, least.bit_length() - 24)
        return Fraction(-(-least >> grain) << grain)
