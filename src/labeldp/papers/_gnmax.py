# SPDX-License-Identifier: Apache-2.0
"""Confident-GNMax: the class that most of some teachers vote for, for each of many queries, where
enough of them agree."""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp.aggregates import _gaussian
from labeldp.aggregates._base import LARGEST_EPSILON, SMALLEST_EPSILON, TeacherQuery
from labeldp.aggregates._discrete import WIDEST, Coins, discrete_gaussian
from labeldp.aggregates._vote import first_in_random_order, noisy_failure
from labeldp.errors import InvalidInput
from labeldp.laws._exact import Words

_GRID = 1 << 20  # variances are rounded up to a multiple of 1 / this
_ROUNDED = 2  # what the bound of many releases takes off each variance: see `_gaussian`


@dataclass(frozen=True)
class ConfidentGNMax(TeacherQuery):
    """One class for each of many queries, by the votes of teachers that learned from disjoint rows;
    none where too few of them agree.

    The groups of this query are the queries put to the teachers, and what is counted in each is
    their votes. `PATEClassifier` asks it.

    Parameters
    ----------
    n_classes : int
        K >= 2.
    epsilon : float
        Total of one unit, over all queries, answered or not.
    n_groups : int
        Number of queries.
    mechanism : {"gaussian"}, default="gaussian"
    delta : float
        In (0, 1); far below one over the number of rows.
    n_teachers : int
        Each gives one vote to each query.
    threshold : int
        In 0..n_teachers: a query is answered if the votes for its leading class, plus noise, reach
        it. 0: there is no check, and no charge for one; every query is answered.
    max_answers : int, optional
        In 1..n_groups: further queries that pass are not answered. None: no limit. Noise is for
        this many answers, however many there are.
    check_share : float, default=0.25
        In (0, 1): the part of the budget, as squared mean, that the checks get.

    Notes
    -----
    Guarantee: a changed label changes one teacher, which moves at most one vote of each query from
    a class to another. The leading count moves by at most 1, all counts by the square root of 2.
    All n_groups checks are charged, those that fail, too, and `max_answers` answers: nothing
    depends on how the teachers vote. (epsilon, delta) follows by the composition of Gaussian
    releases (`labeldp.aggregates._gaussian.composed_delta`), which is tighter than `rdp` and holds
    for the exact discrete noise that is drawn: one number on the leading count for a check, one on
    the count of each class for an answer; ties are broken at random. Source: Papernot et al.
    (2018), "Scalable Private Learning with PATE", Confident-GNMax; Malek et al. (2021) for labels
    alone.

    Examples
    --------
    >>> query = ConfidentGNMax(
    ...     10, 1.0, 200, delta=1e-6, n_teachers=500, threshold=300, max_answers=100
    ... )
    >>> [round(deviation, 1) for deviation in query.standard_deviations()]
    [119.5, 69.0]
    """

    name: ClassVar[str] = "confident-gnmax"
    mechanisms: ClassVar[tuple[str, ...]] = ("gaussian",)
    pure: ClassVar[frozenset[str]] = frozenset()

    mechanism: str = "gaussian"
    threshold: int = field(kw_only=True)
    max_answers: int | None = field(kw_only=True, default=None)
    check_share: float = field(kw_only=True, default=0.25)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "n_teachers", _validate.integer(n_teachers=self.n_teachers, low=1))
        object.__setattr__(
            self,
            "threshold",
            _validate.integer(threshold=self.threshold, low=0, fix="0 answers every query."),
        )
        object.__setattr__(self, "check_share", _validate.fraction(check_share=self.check_share))
        if self.threshold > self.n_teachers:
            raise InvalidInput(
                f"Expected a threshold of at most n_teachers={self.n_teachers} votes, got"
                f" {self.threshold}. Lower it."
            )
        if self.max_answers is not None:
            object.__setattr__(
                self, "max_answers", _validate.integer(max_answers=self.max_answers, low=1)
            )
            if self.max_answers > self.n_groups:
                raise InvalidInput(
                    f"Expected max_answers of at most {self.n_groups} queries, got"
                    f" {self.max_answers}. Lower it."
                )
        if not max(self.variances()) <= WIDEST**2:  # they refuse a budget that no noise can keep
            raise InvalidInput(
                f"Expected a larger epsilon or fewer queries, got epsilon={self.epsilon!r},"
                f" delta={self.delta!r}, check_share={self.check_share!r} and {self.n_groups}"
                " queries: the noise would leave 64-bit numbers."
            )

    @classmethod
    def of(
        cls,
        n_classes: int,
        n_queries: int,
        sigmas: tuple[float, float],
        *,
        delta: float,
        n_teachers: int,
        threshold: int,
        max_answers: int | None = None,
    ) -> Self:
        """Make the query whose noise has at least these standard deviations, of a check and of an
        answer, and find what it costs.

        Parameters
        ----------
        n_classes, n_queries, n_teachers, threshold, max_answers : int
            As in the constructor.
        sigmas : (float, float)
            Above the square root of 2, which the bound of the exact noise takes off; without a
            check the first one is not read.
        delta : float

        Returns
        -------
        ConfidentGNMax, at the least epsilon that is proven.
        """
        target, asked = (
            _validate.fraction(delta=delta),
            _validate.integer(threshold=threshold, low=0),
        )
        variances = [Fraction(_validate.positive(sigma=sigma)) ** 2 - _ROUNDED for sigma in sigmas]
        if not min(variances[1:] if asked == 0 else variances) > 0:
            raise InvalidInput(
                f"Expected standard deviations above 1.4143, got {sigmas!r}. Less noise on votes is"
                " not covered by the bound."
            )
        n = _validate.integer(n_queries=n_queries, low=1)
        answers = n if max_answers is None else _validate.integer(max_answers=max_answers, low=1)
        check, answer = 0 if asked == 0 else n / variances[0], 2 * answers / variances[1]
        draws, low, high = (
            n * (_validate.integer(n_classes=n_classes, low=2) + 1),
            math.log(SMALLEST_EPSILON),
            math.log(LARGEST_EPSILON),
        )
        if _gaussian.composed_delta(check + answer, draws, LARGEST_EPSILON) > target:
            raise InvalidInput(
                f"Expected noise that keeps an epsilon of at most {LARGEST_EPSILON}, got"
                f" sigmas={sigmas!r}. Raise them."
            )
        for _ in range(60):
            middle = (low + high) / 2
            enough = _gaussian.composed_delta(check + answer, draws, math.exp(middle)) <= target
            low, high = (low, middle) if enough else (middle, high)
        share = 0.5 if asked == 0 else float(check / (check + answer))
        rest: dict[str, Any] = {
            "n_teachers": n_teachers,
            "threshold": asked,
            "max_answers": max_answers,
        }
        epsilon = math.exp(high)
        return cls(n_classes, epsilon, n, "gaussian", target, check_share=share, **rest)

    def variances(self) -> tuple[Fraction, Fraction]:
        """Calibrate the noise's exact parameters sigma^2: of a check, and of each class of an
        answer."""
        mean = _gaussian.calibrated_mean(
            self.epsilon, self.delta, self.n_groups * (self.n_classes + 1)
        )
        share = Fraction(self.check_share) if self.threshold else Fraction(0)
        answers = self.n_groups if self.max_answers is None else self.max_answers
        check = Fraction(self.n_groups) / (share * mean) if share else Fraction(1)
        found = [
            Fraction(math.ceil((each + _ROUNDED) * _GRID), _GRID)
            for each in (check, 2 * answers / ((1 - share) * mean))
        ]
        return found[0], found[1]

    def standard_deviations(self) -> tuple[float, float]:
        """Compute the standard deviations of the noise: on the leading count in a check (0 without
        one), and on each count of an answer."""
        check, answer = self.variances()
        return (math.sqrt(check) if self.threshold else 0.0), math.sqrt(answer)

    def rdp(self, order: float) -> float:
        """Bound the Renyi divergence of this order > 1 for a changed label, of all checks and
        answers, whatever the votes.

        For composition with other mechanisms; the query's own epsilon is tighter than what follows
        from it.
        """
        check, answer = self.variances()
        answers = self.n_groups if self.max_answers is None else self.max_answers
        return float(
            Fraction(order)
            * ((Fraction(self.n_groups) / (2 * check) if self.threshold else 0) + answers / answer)
        )

    def failure(self, gaps: "ArrayLike") -> NDArray[np.float64]:
        """Bound the probability that an answer is another class than the one with most votes.

        Parameters
        ----------
        gaps : (g, K - 1) whole numbers >= 0
            Supposed leads over each of the other classes, in votes. Real ones are private: this is
            for planning.

        Returns
        -------
        (g,) float64
        """
        return noisy_failure(gaps, self.n_classes, self.variances()[1])

    def value_shape(self) -> tuple[int, ...]:
        """Say the shape of all values: (n_groups,)."""
        return (self.n_groups,)

    def streams(self, n_rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the streams of words that some queries need: K + 1 each, one for the check."""
        return np.full(len(n_rows), self.n_classes + 1)

    def release(
        self, counts: NDArray[np.int64], words: Words, max_rows_per_unit: int = 1
    ) -> NDArray[np.int64]:
        """Draw a class code for each of some queries, -1 where the check fails: (g,) int64, from
        (g, K) votes and words of g (K + 1) rows.

        The rows of a unit must all be with one teacher, so that a unit counts as one row.
        """
        if (
            counts.ndim != 2
            or counts.shape[1] != self.n_classes
            or len(words) != len(counts) * (self.n_classes + 1)
        ):
            raise InvalidInput(
                f"Expected votes for {self.n_classes} classes, and words for each and the check,"
                f" got {counts.shape}."
            )
        if max_rows_per_unit != 1 or (counts.sum(axis=1) != self.n_teachers).any():
            raise InvalidInput(
                f"Expected the votes of {self.n_teachers} teachers for each query, and a unit's"
                " rows with one of them."
            )
        streams = np.arange(len(words)).reshape(len(counts), self.n_classes + 1)
        check, answer = self.variances()
        coins = Coins(words.select(streams[:, 1:].reshape(-1)))
        noisy = counts + discrete_gaussian(coins, answer).reshape(counts.shape)
        codes = first_in_random_order(noisy == noisy.max(axis=1, keepdims=True), coins)
        if not self.threshold:
            return codes
        leading = counts.max(axis=1) + discrete_gaussian(Coins(words.select(streams[:, 0])), check)
        return np.where(leading >= self.threshold, codes, -1)

    def finish(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Take off all answers after the first `max_answers`: they are not released, and so not
        charged."""
        answered = values >= 0
        beyond = np.cumsum(answered) > (
            self.n_groups if self.max_answers is None else self.max_answers
        )
        return np.where(answered & ~beyond, values, -1)
