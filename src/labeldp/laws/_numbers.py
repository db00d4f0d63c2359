# SPDX-License-Identifier: Apache-2.0
"""UnbiasedRandomizer, a law that releases a number, from whole numbers of 2^64 words for each
output.

Its outputs j have two numbers of words each: b_j for some labels, at most e^epsilon b_j for the
others. What rounding leaves of a row's 2^64 words, it gives to an output that has the smaller
number there. Then the numbers that the outputs stand for are solved for again, from the whole
words, so that their mean given y is y up to the rounding of doubles.

References
----------
Badanidiyuru, Ghazi, Kamath, Kumar, Leeman, Manurangsi, Varadarajan and Zhang 2023, "Optimal
unbiased randomizers for regression with label differential privacy" (NeurIPS).
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.laws._base import Side, no_inclusion
from labeldp.laws._exact import (
    WORD,
    Array,
    Floats,
    Words,
    exp_floor,
    pack_sets,
    set_bytes,
    unpack_sets,
    whole_below,
)
from labeldp.laws._grid import on_steps
from labeldp.laws._matrix import OfMatrix
from labeldp.laws._optimal import unbiased_staircase

_NAN = float("nan")

# The rows of words
# --------------------------------------------------------------------------------------------------

WordRows = tuple[tuple[int, ...], ...]
"""For each of K labels the number of words of 2^64 that release each output: K rows of m, each of
which sums to 2^64."""


class OfWords(OfMatrix):
    """Base of laws whose probabilities are any matrix of words, and whose output is one of m
    numbers, drawn by one word."""

    _whole: ClassVar[int] = WORD

    @property
    @abstractmethod
    def _rows(self) -> WordRows: ...

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> NDArray[np.int32]:
        r, out = words.take(0), np.zeros(len(labels), dtype=np.int32)
        # The output is found for every label, and only `where` reads the row's own, so that time
        # reveals nothing.
        for label, row in enumerate(self._rows):
            edges = np.array(list(accumulate(row))[:-1], dtype=np.uint64)
            out = np.where(
                labels == label, np.searchsorted(edges, r, side="right").astype(np.int32), out
            )
        return out


def checked_prior(prior: Sequence[float] | None, n_classes: int) -> tuple[float, ...] | None:
    """Check the weights of a prior; None is flat."""
    if prior is None:
        return None
    found = tuple(
        _validate.positive(prior=float(weight), zero=True, fix="Pass K finite weights >= 0.")
        for weight in prior
    )
    if len(found) != n_classes:
        raise InvalidInput(
            f"Expected a prior of {n_classes} weights, one a point, got {len(found)}."
        )
    if sum(weight > 0 for weight in found) < 2:
        raise InvalidInput(
            "Expected a prior with at least two points above 0, got fewer: the number would be"
            " known. Add a flat part."
        )
    return found


def increasing(values: Sequence[float] | None) -> tuple[float, ...]:
    found = tuple(float(value) for value in values or ())
    if (
        len(found) < 2
        or not all(a < b for a, b in pairwise(found))
        or not np.all(np.isfinite(found))
    ):
        raise InvalidInput(
            "Expected values of two or more increasing finite numbers, got others. Leave them out,"
            " and they are found."
        )
    return found


def few_points(n_classes: int, most: int) -> None:
    if n_classes > most:
        raise InvalidInput(
            f"Expected at most {most} points, got n_classes={n_classes}. Take fewer points:"
            f" Grid(low, high, points={most})."
        )


# UnbiasedRandomizer
# --------------------------------------------------------------------------------------------------

# the linear program counts a larger epsilon as this one: its coefficients would differ by too many
# digits
_LARGEST = 12.0
_LEAST = 1e-9  # below, what rounds the rows' sums would be seen in the means
_MOST_SOLVED = 100  # points of a linear program that is solved within a minute
# share of the words that the program's masses get; the rest evens out the rows
_SPARE = 1 - 2.0**-40
# times that the values are solved for, each from the exact remainder of the last one
_SOLUTIONS = 4
_APART = 1e-7  # distance by which values are moved apart, in relation to the largest
_IRREGULAR = (5**0.5 / 2, 2**0.5, 3**0.5, 7**0.5, 11**0.5, 13**0.5)
_BIAS = 1e-9  # largest bias, in relation to the largest value, that counts as rounding

Steps = tuple[tuple[float, ...], tuple[float, ...], tuple[str, ...]]
"""Values, shares and sets of a staircase."""


@dataclass(frozen=True)
class UnbiasedRandomizer(OfWords):
    """Release a number whose mean is the label, by the mechanism of least variance: the released
    numbers lie outside of the range, too.

    Parameters
    ----------
    n_classes : int
        K, the number of points of a `Grid`, 2 to 100.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label. Above 12 the mechanism is
        that of 12.
    prior : tuple of K floats >= 0, optional
        Weights of the points, at least two above 0, by which variances are averaged; the mean is
        right whatever they are. They must not depend on these labels, except by answers that were
        paid for. None (default): flat.
    values : tuple of m increasing floats, optional
        The numbers that are released, in steps of the grid from its lowest point. None (default):
        they are found, and so are the next two.
    shares : tuple of m floats, optional
        The smaller one of the two probabilities of each.
    sets : tuple of m texts, optional
        The points from which it has the larger one: packed bits, in hexadecimal.

    See Also
    --------
    labeldp.papers.regression.RROnBins : Releases numbers that are nearer to the label, with bias.
    Threshold : More informative for a learner by likelihood.

    Notes
    -----
    E[released | label] is the label up to `bias`, which is computed exactly, and is that of
    rounding numbers to doubles. So any learner that fits a mean may take the released numbers as
    they are. Their variance is least, within about 0.1 %, among unbiased mechanisms of this
    epsilon. The mechanism is solved for in floating point, and certified in whole numbers: its rows
    sum to 1, and the largest ratio of two probabilities of a number is at most e^epsilon, exactly.
    It is found once, and kept in the fields, so that files describe the law by itself;
    `at(epsilon)` finds that of another epsilon. Output: the number of a value, (n,) int32, which
    `released` turns into the number. Side: none. Cost: one word and O(K log K) a row; the program
    takes about a second at K = 32 and ten at K = 64, once in a process.

    References
    ----------
    Badanidiyuru et al. 2023, "Optimal unbiased randomizers for regression with label differential
    privacy" (NeurIPS).

    Examples
    --------
    >>> import labeldp as ldp
    >>> law = UnbiasedRandomizer(2, 1.0986122886681098)          # e^epsilon = 3
    >>> law.matrix().round(6)
    array([[0.75, 0.25],
           [0.25, 0.75]])
    >>> [round(value, 6) for value in law.released(ldp.Grid(0, 1, points=2))]
    [-0.5, 1.5]
    """

    name: ClassVar[str] = "unbiased"
    kind: ClassVar = "number"

    prior: tuple[float, ...] | None = field(default=None, repr=False)
    values: tuple[float, ...] | None = field(default=None, repr=False)
    shares: tuple[float, ...] | None = field(default=None, repr=False)
    sets: tuple[str, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        few_points(self.n_classes, _MOST_SOLVED)
        put = object.__setattr__
        put(self, "prior", checked_prior(self.prior, self.n_classes))
        if self.values is None and self.shares is None and self.sets is None:
            found = _solved(self.n_classes, self.epsilon, self.prior)
            for name, value in zip(("values", "shares", "sets"), found, strict=True):
                put(self, name, value)
        put(self, "values", increasing(self.values))
        if not len(self.values or ()) == len(self.shares or ()) == len(self.sets or ()):
            raise InvalidInput(
                "Expected as many shares and sets as values, got others. Leave all three out, and"
                " they are found."
            )
        if not self.bias <= _BIAS * max(1.0, *map(abs, self.values or ())):
            raise InvalidInput(
                "Expected values, shares and sets of an unbiased mechanism at"
                f" epsilon={self.epsilon!r}, got others. Leave them out, or take law.at(epsilon)"
                " for another epsilon."
            )

    def at(self, epsilon: float) -> Self:
        return replace(self, epsilon=epsilon, values=None, shares=None, sets=None)

    def made_for(self, prior: Sequence[float]) -> Self:
        return replace(self, prior=tuple(prior), values=None, shares=None, sets=None)

    def released(self, classes: Sequence[object]) -> tuple[object, ...]:
        return on_steps(classes, self.values or ())

    @property
    def _rows(self) -> WordRows:
        return _staircase_words(self.n_classes, self.epsilon, self.shares or (), self.sets or ())

    @property
    def bias(self) -> float:
        """The largest difference of a label and the mean of what is released for it, in steps of
        the grid, rounded up."""
        return _validate.float_up(max(map(abs, _remainders(self._rows, self.values or ()))))

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        return no_inclusion(outputs)


@lru_cache(maxsize=64)
def _solved(n_classes: int, epsilon: float, prior: tuple[float, ...] | None) -> Steps:
    """Solve the linear program, round its masses to words, and solve for the values again: values,
    shares and sets."""
    if epsilon < _LEAST:
        raise InvalidInput(
            f"Expected an epsilon of {_LEAST:g} or more for unbiased numbers, got {epsilon!r}."
        )
    ratio = exp_floor(min(epsilon, _LARGEST))
    weights = np.ones(n_classes) if prior is None else np.array(prior)
    found = unbiased_staircase(np.arange(n_classes, dtype=np.float64), weights, float(ratio))
    sums = (np.where(found.high, float(ratio), 1.0) * found.shares[:, None]).sum(axis=0)
    shares = tuple((found.shares * _SPARE / sums.max()).tolist())  # the sums are 1 up to rounding
    sets = tuple(bytes(row).hex() for row in pack_sets(found.high))
    rows = _staircase_words(n_classes, epsilon, shares, sets)
    values = _apart(rows, found.values)
    order = sorted(range(len(values)), key=values.__getitem__)
    return (
        tuple(values[j] for j in order),
        tuple(shares[j] for j in order),
        tuple(sets[j] for j in order),
    )


def _apart(rows: WordRows, values: Floats) -> list[float]:
    """Solve for the values again, so that all are different: outputs with other sets may have one
    value, and each is known by its own."""
    size, found = float(np.abs(values).max()), list(map(float, values))
    for step in _IRREGULAR:  # regular steps could be undone by what makes the values unbiased again
        found = _unbiased_values(
            rows, values + _APART * size * np.modf(np.arange(len(values)) ** 3 * step)[0]
        )
        if np.diff(np.sort(found)).min() > _APART * size / len(values) ** 2:
            return found
    # Some can be unbiased with equal values only: these become neighbouring floats.
    order = sorted(range(len(found)), key=found.__getitem__)
    for lower, upper in pairwise(order):
        found[upper] = max(found[upper], math.nextafter(found[lower], math.inf))
    return found


@lru_cache(maxsize=64)
def _staircase_words(
    n_classes: int, epsilon: float, shares: tuple[float, ...], sets: tuple[str, ...]
) -> WordRows:
    """Compute the words of each label and output; InvalidInput unless rows sum to 2^64 and every
    ratio is at most e^epsilon, exactly."""
    ratio = exp_floor(min(epsilon, _LARGEST))
    try:
        packed = np.array([list(bytes.fromhex(text)) for text in sets], dtype=np.uint8).reshape(
            len(sets), set_bytes(n_classes)
        )
        low = [int(_validate.positive(shares=share) * WORD) for share in shares]
    except (ValueError, TypeError):
        raise InvalidInput(
            f"Expected shares above 0 and sets of {n_classes} points in hexadecimal, got others."
        ) from None
    upper = [whole_below(ratio * words) for words in low]
    high = unpack_sets(packed, n_classes)
    rows = []
    for label in range(n_classes):
        row = [upper[j] if high[j, label] else low[j] for j in range(len(low))]
        # What is left goes where the label's output has the smaller number of words: there it
        # raises no ratio above the column's.
        most = max(
            (j for j in range(len(low)) if not high[j, label]), key=low.__getitem__, default=0
        )
        row[most] += WORD - sum(row)
        rows.append(tuple(row))
    for column in zip(*rows, strict=True):
        if not (min(column) >= 1 and max(column) <= ratio * min(column)):
            raise InvalidInput(
                f"Expected shares and sets that 64-bit words can honour at epsilon={epsilon!r}, got"
                " others. Leave them out."
            )
    return tuple(rows)


def _remainders(rows: WordRows, values: Sequence[float]) -> list[Fraction]:
    """Compute label - mean of what is released for it, exactly, in steps."""
    exact = [Fraction(value) for value in values]
    scale = max((value.denominator for value in exact), default=1)  # all are powers of two
    whole = [int(value * scale) for value in exact]
    return [
        y - Fraction(sum(a * b for a, b in zip(row, whole, strict=True)), scale * WORD)
        for y, row in enumerate(rows)
    ]


def _unbiased_values(rows: WordRows, values: Floats) -> list[float]:
    """Change the values as little as possible, so that each label is the mean of what is released
    for it, up to rounding."""
    first = np.array(rows[0], dtype=np.float64) / WORD
    steps = (
        np.array(
            [[a - b for a, b in zip(upper, lower, strict=True)] for lower, upper in pairwise(rows)],
            dtype=np.float64,
        )
        / WORD
    )
    # of neighbours the difference is exact, also where they are nearly equal
    known = np.vstack([first, steps])
    size = np.abs(known).max(axis=1)
    found = [float(value) for value in values]
    for _ in range(_SOLUTIONS):
        left = _remainders(rows, found)
        wanted = np.array([float(left[0]), *(float(b - a) for a, b in pairwise(left))])
        change = np.linalg.lstsq(known / size[:, None], wanted / size, rcond=1e-13)[0]
        found = [
            float(Fraction(value) + Fraction(float(each)))
            for value, each in zip(found, change, strict=True)
        ]
    return found
