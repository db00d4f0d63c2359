# SPDX-License-Identifier: Apache-2.0
"""How many rows an effect needs at an epsilon, before anything is released."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.laws._base import MAX_CELLS, Law, Table
from labeldp.laws._exact import pack_sets
from labeldp.laws._response import RandomizedResponse
from labeldp.laws._subset import SubsetSelection
from labeldp.protocol._statistics import quantile
from labeldp.stats._columns import Floats


@dataclass(frozen=True)
class ProportionDifference:
    """A difference of the share of one class between two groups, as `labeldp.stats.difference` and
    `effect` estimate it.

    Attributes
    ----------
    first, second : float in [0, 1]
        The shares, different.
    share : float in (0, 1)
        Share of the rows in the second group; a half by default.
    """

    first: float
    second: float
    share: float = 0.5

    def __post_init__(self) -> None:
        _validate.fraction(zero=True, one=True, first=self.first)
        _validate.fraction(zero=True, one=True, second=self.second)
        _validate.fraction(share=self.share)

    def size(self) -> float:
        """Return the difference, second minus first."""
        return self.second - self.first

    def variance(self, law: Law | None) -> float:
        """Compute the variance of the estimated difference times the number of rows, under a law,
        or without privacy."""
        parts = [_share_variance(law, p) for p in (self.first, self.second)]
        return parts[0] / (1 - self.share) + parts[1] / self.share


@dataclass(frozen=True)
class MeanDifference:
    """A difference of means between two groups, of class values that are numbers.

    Attributes
    ----------
    difference : float
        Not 0.
    values : sequence of K numbers
        Class values, in the order of the classes.
    shares : sequence of K numbers >= 0
        A guess of the class frequencies in both groups, of any scale. It is public: do not compute
        it from the private labels.
    share : float in (0, 1)
        Share of the rows in the second group; a half by default.
    """

    difference: float
    values: Sequence[float]
    shares: Sequence[float]
    share: float = 0.5

    def __post_init__(self) -> None:
        _validate.fraction(share=self.share)
        values, shares = np.asarray(self.values, np.float64), np.asarray(self.shares, np.float64)
        if (
            values.ndim != 1
            or values.shape != shares.shape
            or len(values) < 2
            or not np.isfinite(values).all()
        ):
            raise InvalidInput(
                "Expected two sequences, finite values of the classes and as many shares, got "
                f"values={_validate.shown(self.values)}, shares={_validate.shown(self.shares)}."
            )
        if not ((shares >= 0) & (shares < np.inf)).all() or not shares.sum() > 0:
            raise InvalidInput(
                "Expected shares of at least 0, not all 0. Give a guess of the class frequencies."
            )

    def size(self) -> float:
        """Return the difference."""
        return self.difference

    def variance(self, law: Law | None) -> float:
        """Compute the variance of the estimated difference times the number of rows, under a law,
        or without privacy."""
        shares = np.asarray(self.shares, np.float64)
        one = mean_variance(law, np.asarray(self.values, np.float64), shares / shares.sum())
        return one / (1 - self.share) + one / self.share


Effect = ProportionDifference | MeanDifference


def power(effect: Effect, law: Law | None, n_rows: int, *, confidence: float = 0.95) -> float:
    """Compute the probability that a two-sided test detects an effect.

    Parameters
    ----------
    effect : ProportionDifference or MeanDifference
    law : Law, or None
        The law of each row: with at most m rows of a unit, at epsilon / m. None: no privacy, to
        compare.
    n_rows : int
        Rows of both groups together.
    confidence : float
        One less the level of the test.

    Returns
    -------
    float
        Phi(|effect| / se - z) + Phi(-|effect| / se - z), se the asymptotic standard error.

    Raises
    ------
    InvalidInput
        The effect is 0, the law has other classes or no unbiased weights without a prior, or a
        number is not allowed.

    Notes
    -----
    A computation on public numbers: no labels, no cost in privacy.

    Examples
    --------
    >>> import labeldp as ldp
    >>> uplift = ldp.stats.ProportionDifference(0.10, 0.12)
    >>> round(ldp.stats.power(uplift, ldp.RandomizedResponse(2, epsilon=1.0), 20_000), 2)
    0.29
    """
    n = _validate.integer(n_rows=n_rows, low=1)
    z, size, variance = quantile(confidence), _size(effect), effect.variance(law)
    # labels without noise that are certain in each group
    ratio = size / math.sqrt(variance / n) if variance else math.inf
    return float(ndtr(ratio - z) + ndtr(-ratio - z))


def rows_for(
    effect: Effect, law: Law | None, *, power: float = 0.8, confidence: float = 0.95
) -> int:
    """Compute how many rows a two-sided test needs to detect an effect with this probability.

    Parameters
    ----------
    effect : ProportionDifference or MeanDifference
    law : Law, or None
        As for `power`.
    power : float
        Wanted probability of detection, above 1 - confidence; 0.8 by default.
    confidence : float

    Returns
    -------
    int
        Rows of both groups together, rounded up.

    Raises
    ------
    InvalidInput
        As for `power`.

    Examples
    --------
    >>> import labeldp as ldp
    >>> uplift = ldp.stats.ProportionDifference(0.10, 0.12)
    >>> [ldp.stats.rows_for(uplift, law) for law in (None, ldp.RandomizedResponse(2, epsilon=1.0))]
    [7677, 79939]
    """
    wanted = _validate.fraction(power=power)
    z = quantile(confidence)
    if not wanted > 1 - confidence:
        raise InvalidInput(
            f"Expected power > 1 - confidence = {1 - confidence:g}, which a test has without any"
            f" rows, got {power:g}."
        )
    size, variance = _size(effect), effect.variance(law)
    # The smaller tail of the test is left out: a little more rows, and only at a power near the
    # level.
    apart = (z + float(ndtri(wanted))) / size
    rows = variance * apart * apart
    if not rows < math.inf:
        raise InvalidInput(
            f"Expected an effect that some number of rows detects, got one of size {size:.3g}. Give"
            " the least one that matters."
        )
    return max(2, math.ceil(rows))  # one of each group


def _size(effect: Effect) -> float:
    size = abs(effect.size())
    if not 0 < size < math.inf:
        raise InvalidInput(
            "Expected an effect other than 0, got none: no number of rows detects it. Give the"
            " least one that matters."
        )
    return size


def _inclusion(law: Law, n_classes: int | None = None) -> tuple[float, float]:
    """Return the probabilities that a row's own class, and another, is in its output, for a law
    that has them without a prior."""
    kind, shape = _checked(law, n_classes).layout()["output"]
    side = {name: value[None] for name, value in law.side_row().items()}
    own, other = (float(part[0]) for part in law.inclusion(np.zeros((1, *shape), kind), side))
    if not own != other or math.isnan(own):
        raise _no_estimate(law)
    return own, other


def _checked(law: object, n_classes: int | None) -> Law:
    if not isinstance(law, Law):
        raise InvalidInput(
            "Expected a Law, such as labeldp.RandomizedResponse(2, 1.0), or None, got"
            f" law={_validate.shown(law)}."
        )
    if n_classes is not None and law.n_classes != n_classes:
        raise InvalidInput(f"Expected a law over {n_classes} classes, got {law}.")
    return law


def _no_estimate(law: Law) -> InvalidInput:
    return InvalidInput(
        "Expected a law with unbiased weights and without a prior, such as RandomizedResponse, got"
        f" {law}."
    )


def _share_variance(law: Law | None, share: float) -> float:
    """Compute the variance of a row's unbiased estimate of the share of one class."""
    own, other = (1.0, 0.0) if law is None else _inclusion(law)
    seen = other + (own - other) * share
    return seen * (1 - seen) / (own - other) ** 2


def mean_variance(law: Law | None, values: Floats, shares: Floats) -> float:
    """Compute the variance of a row's estimate of the mean of class values, as
    `labeldp.stats.mean` estimates it.

    By the law's unbiased weights; or where these are for a drawn question (Threshold), by the
    information of maximum likelihood.
    """
    if law is None:
        return float(shares @ values**2 - (shares @ values) ** 2)
    if isinstance(law, RandomizedResponse | SubsetSelection):
        own, other = _inclusion(law, len(values))
        mean, square = _sums(values, own, law.set_size if isinstance(law, SubsetSelection) else 1)
        return float(shares @ square - (shares @ mean) ** 2) / (own - other) ** 2
    if _checked(law, len(values)).n_classes > MAX_CELLS**0.5:
        raise InvalidInput(
            f"Expected RandomizedResponse or SubsetSelection over {law.n_classes} classes, got"
            f" {law}."
        )
    asked = law.questions(np.ones(law.n_classes))
    if asked is None:
        side = law.side_row()
        table = law.table(side)
        outputs = pack_sets(table.outputs) if law.kind == "set" else table.outputs
        each = {
            name: np.broadcast_to(value, (len(outputs), *np.shape(value)))
            for name, value in side.items()
        }
        estimates = law.weights(outputs, each) @ values
        seen = shares @ _channel(table)
        found = float(seen @ estimates**2 - (seen @ estimates) ** 2)
    else:
        channel = np.concatenate(
            [chance * _channel(law.table(side)) for chance, side in asked], axis=1
        )
        centred = np.eye(len(values)) - 1 / len(values)  # shares sum to 1
        information = centred @ (channel / (shares @ channel)) @ channel.T @ centred
        found = float(values @ np.linalg.pinv(information, hermitian=True) @ values)
    if not found < math.inf:
        raise _no_estimate(law)
    return found


def _channel(table: Table) -> Floats:
    return np.asarray(np.array([float(value) for value in table.values])[table.index])


def _sums(values: Floats, own: float, size: int) -> tuple[Floats, Floats]:
    """Compute mean and mean square of the sum of the values in a random set of this size, for each
    label: (K,), (K,)."""
    others = len(values) - 1
    mean = (values.sum() - values) / others
    spread = ((values**2).sum() - values**2) / others - mean**2
    found_mean, found_square = np.zeros(len(values)), np.zeros(len(values))
    for chance, with_label in ((own, 1), (1 - own, 0)):
        drawn = size - with_label  # of the other classes, without replacement
        centre = with_label * values + drawn * mean
        left = drawn * spread * (others - drawn) / max(1, others - 1)
        found_mean += chance * centre
        found_square += chance * (centre**2 + left)
    return found_mean, found_square
