# SPDX-License-Identifier: Apache-2.0
"""Published laws for numbers that are baselines here: RROnBins and BoundedLaplace. `Threshold` and
`UnbiasedRandomizer` learn more.

RROnBins (Ghazi et al. 2023) is randomized response over bins of points; a bin's output is one
number.

BoundedLaplace (geometric noise as of Ghosh et al. 2012, but scaled to sum to 1 over the classes
where theirs is clamped to the ends): P[j | y] = t^|y - j| / Z_y with Z_y = sum_j t^|y - j| and t =
e^(-epsilon / (K - 1)). For one output j, P[j | y] falls as y moves away from j, since Z of two
neighbouring classes differs by at most the factor t. So it is largest at y = j and least at an end
y = e, and the ratio is t^-|e - j| Z_e / Z_j <= t^-(K - 1) = e^epsilon, because no Z is below those
of the ends. Both ends reach it: no smaller t would do.

References
----------
Ghazi, Kamath, Kumar, Leeman, Manurangsi, Varadarajan and Zhang 2023, "Regression with label
differential privacy" (ICLR); Ghosh, Roughgarden and Sundararajan 2012, "Universally
utility-maximizing privacy mechanisms"; McSherry and Talwar 2007, "Mechanism design via differential
privacy" (the exponential mechanism).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.laws._base import Cell, Side, Table
from labeldp.laws._exact import WORD, Array, Floats, Words, exp_floor, log_ratio
from labeldp.laws._grid import on_steps
from labeldp.laws._matrix import WithoutSide
from labeldp.laws._numbers import OfWords, WordRows, checked_prior, few_points, increasing
from labeldp.laws._response import respond_to_all, response_profile, response_words

__all__ = ["BoundedLaplace", "RROnBins", "optimal_bins"]

_NAN = float("nan")
_MOST_POINTS = 1000  # of laws whose probabilities are a matrix
# parts of epsilon, as powers of two, that are given up until the rounded words keep the claim
_SLACKS = (56, 48, 40, 32, 24, 16)
Loss = Literal["squared", "absolute", "poisson"]
LOSSES = ("squared", "absolute", "poisson")
_TIE = 1e-12  # relative difference of two objectives that counts as none: then there are fewer bins

# RROnBins
# ------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def optimal_bins(
    points: tuple[float, ...], weights: tuple[float, ...], ratio: float, loss: Loss
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Find the bins of points, and a number for each, under which randomized response over the bins
    has the least expected loss.

    Parameters
    ----------
    points : K increasing numbers
        Above or equal to 0 for the Poisson loss.
    weights : K numbers >= 0, at least two of them above 0
        The prior of the points.
    ratio : float above 1
        e^epsilon.
    loss : {"squared", "absolute", "poisson"}
        Of a released v for y: (v - y)^2, |v - y|, or v - y ln v.

    Returns
    -------
    starts : d whole numbers
        Index of each bin's first point, the first of them 0.
    values : d increasing floats

    Notes
    -----
    With d bins the loss is the sum over bins of min_v sum_y w_y ratio^[y in bin] l(v, y), divided
    by ratio + d - 1. For each d the bins with the least sum are found by dynamic programming over
    their ends; no mechanism of that ratio has a smaller expected loss. Cost: O(K^2) a number of
    bins, which ends when no more bins can be better; O(K^3) besides for the absolute loss. Memory:
    O(K^2).

    References
    ----------
    Ghazi, Kamath, Kumar, Leeman, Manurangsi, Varadarajan and Zhang 2023, "Regression with label
    differential privacy" (ICLR), Algorithm 2.
    """
    y, w = np.asarray(points, np.float64), np.asarray(weights, np.float64)
    cost, value = _COSTS[loss](y, w / w.sum(), ratio)
    k, constant = len(y), cost[0, -1] / ratio  # the least loss of a constant
    below = np.tril(np.full((k, k), np.inf), -1)
    total = cost[0].copy()  # total[i]: least sum over the bins of points 0..i
    ends: list[NDArray[np.intp]] = [np.zeros(k, np.intp)]
    best, chosen = np.inf, 0
    # one bin, a constant, would be as good only under a prior that knows the number
    for d in range(2, k + 1):
        following = np.full((k, k), np.inf)
        following[1:] = total[:-1, None] + (cost + below)[1:]  # a last bin that begins at this row
        ends.append(following.argmin(axis=0))
        total = following.min(axis=0)
        found = float(total[-1]) / (ratio + d - 1)
        if found < best - _TIE * abs(best if np.isfinite(best) else 0.0):
            best, chosen = found, d
        if d * constant / (ratio + d - 1) >= best:  # every bin costs at least what a constant costs
            break
    starts: list[int] = []
    last = k - 1
    for d in range(chosen - 1, -1, -1):
        starts.append(int(ends[d][last]))
        last = starts[-1] - 1
    starts.reverse()
    edges = [*starts[1:], k]
    return tuple(starts), tuple(float(value(a, b - 1)) for a, b in zip(starts, edges, strict=True))


def _sums(w: Floats, values: Floats, ratio: float) -> Floats:
    """Compute sum_y w_y ratio^[a <= y <= b] values_y for every bin (a, b): (K, K)."""
    upto = np.concatenate([[0.0], np.cumsum(w * values)])
    return np.asarray(upto[-1] + (ratio - 1.0) * np.triu(upto[None, 1:] - upto[:-1, None]))


def _squared(y: Floats, w: Floats, ratio: float) -> tuple[Floats, Any]:
    centre = float(w @ y)  # squares of small numbers lose fewer digits
    zeroth, first, second = (_sums(w, (y - centre) ** power, ratio) for power in range(3))
    return (
        np.maximum(second - first**2 / zeroth, 0.0),
        lambda a, b: centre + first[a, b] / zeroth[a, b],
    )


def _poisson(y: Floats, w: Floats, ratio: float) -> tuple[Floats, Any]:
    # The deviance y ln(y / v) - y + v, which differs from the loss by a number that no mechanism
    # changes.
    zeroth, first = _sums(w, np.ones(len(y)), ratio), _sums(w, y, ratio)
    own = _sums(w, np.where(y > 0, y * np.log(np.maximum(y, 1e-300)), 0.0), ratio)
    mean = first / zeroth
    return np.maximum(own - first * np.log(np.maximum(mean, 1e-300)), 0.0), lambda a, b: mean[a, b]


def _absolute(y: Floats, w: Floats, ratio: float) -> tuple[Floats, Any]:
    cost, place = np.full((len(y), len(y)), np.inf), np.zeros((len(y), len(y)), np.intp)
    for i, v in enumerate(y):  # a weighted median is one of the points
        found = _sums(w, np.abs(y - v), ratio)
        better = found < cost
        cost[better], place[better] = found[better], i
    return cost, lambda a, b: y[place[a, b]]


_COSTS = {"squared": _squared, "absolute": _absolute, "poisson": _poisson}


# to find bins, a larger epsilon counts as this one, which a 64-bit word cannot tell from it
_LARGEST_BINS = 60.0


@dataclass(frozen=True)
class RROnBins(WithoutSide):
    """Release a number for the label's bin, by randomized response over the bins that are best for
    a prior and a loss.

    Parameters
    ----------
    n_classes : int
        K, the number of points of a `Grid`, 2 to 1000.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label, whatever the bins.
    loss : {"squared", "absolute", "poisson"}
        What the bins are best for: the expected (v - y)^2, |v - y|, or v - y ln v of the released
        number v. "squared" by default.
    prior : tuple of K floats >= 0, optional
        Weights of the points, at least two above 0. They must not depend on these labels, except by
        answers that were paid for. None (default): flat.
    origin : float >= 0
        The lowest point in steps of the grid, low / resolution: the Poisson loss, which needs
        numbers from 0 up, depends on it. 0 by default.
    starts : tuple of d ints, optional
        The first point of each bin, counted from 0. None (default): of the best bins for this
        epsilon.
    values : tuple of d increasing floats, optional
        The released number of each bin, in steps of the grid from its lowest point. Given with
        `starts`.

    See Also
    --------
    UnbiasedRandomizer : Releases numbers without bias.
    Threshold : More informative for a learner by likelihood.

    Notes
    -----
    If labels follow the prior, no epsilon-label-DP mechanism releases numbers of a smaller expected
    loss. The released number is drawn to the prior's middle: it is best as it is, and biased.
    Points of one bin have the same likelihood. The bins are found once, and kept as fields, so that
    files describe the law by itself. `at(epsilon)` finds those of another epsilon;
    `dataclasses.replace` keeps them. Output: the number of a bin, (n,) int32, which `released`
    turns into the bin's number. Side: none. Cost: one word and O(d) a row; for the bins O(K^2)
    memory, and a second at K = 1000.

    References
    ----------
    Ghazi et al. 2023, "Regression with label differential privacy" (ICLR), Algorithms 1 and 2.

    Examples
    --------
    >>> import labeldp as ldp
    >>> law = RROnBins(3, 3.0)
    >>> law.starts, law.released(ldp.Grid(0, 100, points=3))
    ((0, 1, 2), (6.7917751115443625, 50.0, 93.20822488845563))
    """

    name: ClassVar[str] = "rr-on-bins"
    kind: ClassVar = "number"

    loss: Loss = "squared"
    prior: tuple[float, ...] | None = field(default=None, repr=False)
    origin: float = 0.0
    starts: tuple[int, ...] | None = field(default=None, repr=False)
    values: tuple[float, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        few_points(self.n_classes, _MOST_POINTS)
        put = object.__setattr__
        _validate.one_of(LOSSES, loss=self.loss)
        put(self, "prior", checked_prior(self.prior, self.n_classes))
        put(self, "origin", _validate.positive(origin=self.origin, zero=True))
        if self.starts is None and self.values is None:
            points = tuple(self.origin + i for i in range(self.n_classes))
            ratio = float(exp_floor(min(self.epsilon, _LARGEST_BINS)))
            starts, values = optimal_bins(
                points, self.prior or (1.0,) * self.n_classes, ratio, self.loss
            )
            if not all(a < b for a, b in pairwise(values)):
                raise InvalidInput(
                    "Expected an epsilon at which a number is better than a constant for the"
                    f" {self.loss} loss, got {self.epsilon!r}. Take a larger one, or"
                    " loss='squared'."
                )
            put(self, "starts", starts)
            put(self, "values", tuple(value - self.origin for value in values))
        starts = tuple(
            _validate.integer(starts=start, low=0, high=self.n_classes - 1)
            for start in self.starts or ()
        )
        put(self, "starts", starts)
        put(self, "values", increasing(self.values))
        if not (
            starts
            and starts[0] == 0
            and all(a < b for a, b in pairwise(starts))
            and len(starts) == len(self.values or ())
        ):
            raise InvalidInput(
                "Expected as many starts of bins as values, from 0 on and increasing, got others."
                " Leave both out."
            )
        response_words(self.epsilon, len(starts))

    def at(self, epsilon: float) -> Self:
        return replace(self, epsilon=epsilon, starts=None, values=None)

    def made_for(self, prior: Sequence[float]) -> Self:
        return replace(self, prior=tuple(prior), starts=None, values=None)

    def released(self, classes: Sequence[object]) -> tuple[object, ...]:
        return on_steps(classes, self.values or ())

    def _bins(self, labels: NDArray[np.integer]) -> NDArray[np.int32]:
        # Every label is compared with every start, so that the same memory is accessed for any
        # label.
        found = np.zeros(len(labels), dtype=np.int32)
        for start in (self.starts or ())[1:]:
            found += labels >= start
        return found

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> NDArray[np.int32]:
        return respond_to_all(
            self._bins(labels), words.take(0), self.epsilon, len(self.starts or ())
        )

    def _inside(self, outputs: Array) -> NDArray[np.bool_]:
        """Mark the points of each output's bin: (n, K) bool."""
        return np.asarray(np.asarray(outputs)[:, None] == self._bins(np.arange(self.n_classes)))

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        a, b = response_words(self.epsilon, len(self.starts or ()))
        return np.where(self._inside(outputs), 0.0, log_ratio(b, a))

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        own, other = (
            words / WORD if len(self.starts or ()) == self.n_classes else _NAN
            for words in response_words(self.epsilon, self.n_classes)
        )
        return np.full(len(outputs), own), np.full(len(outputs), other)

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        d = len(self.starts or ())
        return response_profile(self.epsilon, d, d)

    def table(self, side_row: Side) -> Table:
        outputs = np.arange(len(self.starts or ()), dtype=np.int32)
        values = tuple(
            Fraction(words, WORD) for words in response_words(self.epsilon, len(outputs))
        )
        return Table(outputs, values, np.where(self._inside(outputs).T, np.uint8(0), np.uint8(1)))


# BoundedLaplace
# ------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def laplace_words(epsilon: float, n_classes: int) -> WordRows:
    """Compute the number of words of 2^64 that release each class, for each label: K rows of K;
    InvalidInput if rounding breaks epsilon."""
    e = exp_floor(epsilon)
    for slack in _SLACKS:
        with localcontext() as context:
            context.prec = 60
            log = (Decimal(e.numerator) / Decimal(e.denominator)).ln() * (1 - Decimal(2) ** -slack)
            powers = [(-log * i / (n_classes - 1)).exp() for i in range(n_classes)]
            if WORD * powers[-1] < sum(powers):  # less than a word: no need to compute all rows
                break
            rows = [
                _rounded([powers[abs(y - j)] for j in range(n_classes)], y)
                for y in range(n_classes)
            ]
        told = rows[0] != rows[-1]  # else all labels give the same outputs
        if told and all(
            min(column) >= 1 and max(column) <= e * min(column)
            for column in zip(*rows, strict=True)
        ):
            return tuple(rows)
    raise InvalidInput(
        f"Expected an epsilon that 64-bit words can honour with {n_classes} classes (up to about"
        f" 35, and not nearly 0), got {epsilon!r}."
    )


def _rounded(shares: list[Decimal], own: int) -> tuple[int, ...]:
    """Round shares down to whole words of 2^64; what is left, at most one word a class, is added to
    the label's own."""
    total = sum(shares)
    words = [int(WORD * share / total) for share in shares]
    words[own] += WORD - sum(words)
    return tuple(words)


@dataclass(frozen=True)
class BoundedLaplace(OfWords):
    """Release a class near the label: discrete Laplace noise on ordered classes, truncated to them.
    A baseline for numbers.

    Parameters
    ----------
    n_classes : int
        K, 2 to 1000; their order matters.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label: any two labels, however far
        apart. Above about 35 the 64-bit sampler cannot honour it, and refuses.

    See Also
    --------
    Threshold : More informative for a learner by likelihood.

    Notes
    -----
    P[j | y] is proportional to e^(-epsilon |y - j| / (K - 1)): noise of the scale of the whole
    range, divided by epsilon, since every two labels must be hidden from each other. The module
    says why this is the least noise of its form. Labels near the ends are drawn towards the middle,
    so the released number is biased; `weights` and the likelihood are not. Output: a label, (n,)
    int32. Side: none. Cost: one word and O(K log K) a row.

    References
    ----------
    Ghosh, Roughgarden and Sundararajan 2012, "Universally utility-maximizing privacy mechanisms".

    Examples
    --------
    >>> BoundedLaplace(3, 1.0).matrix().round(3)
    array([[0.506, 0.307, 0.186],
           [0.274, 0.452, 0.274],
           [0.186, 0.307, 0.506]])
    """

    name: ClassVar[str] = "laplace"
    kind: ClassVar = "label"

    def __post_init__(self) -> None:
        super().__post_init__()
        few_points(self.n_classes, _MOST_POINTS)
        laplace_words(self.epsilon, self.n_classes)

    @property
    def _rows(self) -> WordRows:
        return laplace_words(self.epsilon, self.n_classes)

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        own, other = (self._rows[0][j] / WORD if self.n_classes == 2 else _NAN for j in range(2))
        return np.full(len(outputs), own), np.full(len(outputs), other)
