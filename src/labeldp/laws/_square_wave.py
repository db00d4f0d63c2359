# SPDX-License-Identifier: Apache-2.0
"""SquareWave: release an interval of ordered classes that holds the label with a high probability.

The outputs are the K + d - 1 windows of d consecutive positions that meet the classes 0 .. K - 1,
so each class is in exactly d of them, also at the ends. Of 2^64 words each window without the label
gets b, and the d windows with it share the rest, m = 2^64 - (K - 1) b, as equally as whole numbers
allow: floor(m / d) words each, the first m mod d of them one more. b is the least number with
ceil(m / d) <= e^eps b, and floor(m / d) >= b, so the ratio of two probabilities of one window is at
most e^eps.

References
----------
Li, Wang, Lopuhaa-Zwakenberg, Li and Skoric 2020, "Estimating numerical distributions under local
differential privacy" (the square wave mechanism, with its reports beyond the ends).
"""

from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.laws._base import MAX_CELLS, Cell, Side, Table, no_inclusion, proper_size, range_over
from labeldp.laws._exact import (
    WORD,
    Array,
    Bits,
    Floats,
    Words,
    exp_floor,
    log_ratio,
    pack_sets,
    unpack_sets,
    whole_above,
)
from labeldp.laws._matrix import WithoutSide, inverse_of

# classes up to which an interval has unbiased weights: beyond it their matrix is too large
MOST_ORDERED: Final = 700
_NAN = float("nan")


def law_of_numbers(n_points: int, *, prior: bool = False) -> str:
    """Name the law by which numbers are drawn by default, in fits and releases, alone or beside
    other columns.

    Intervals tell most of a number without a prior, but of more than 700 points no error can be
    measured by them. With a prior a threshold tells more, and has unbiased weights.
    """
    return "threshold" if prior or n_points > MOST_ORDERED else "square-wave"


@lru_cache(maxsize=256)
def window_words(epsilon: float, n_classes: int, size: int) -> tuple[int, int]:
    """Compute how many words of 2^64 a window without the label gets, and how many all with it: (b,
    m)."""
    e = exp_floor(epsilon)
    b = whole_above(WORD / (e * size + n_classes - 1))
    for _ in range(64):  # rounding takes a few words at most
        m = WORD - (n_classes - 1) * b
        if -(-m // size) <= e * b:
            break
        b += 1
    if m <= size * b:  # equal: all labels would give the same outputs
        raise InvalidInput(
            f"Expected a larger epsilon for {n_classes} classes and windows of {size}, got"
            f" {epsilon!r}: 64 bits are too few."
        )
    return b, m


@lru_cache(maxsize=256)
def default_size(epsilon: float, n_classes: int) -> int:
    """Compute K / (1 + e^(eps / 2)), rounded, at least 1; in decimals, so that all machines
    agree."""
    e = exp_floor(epsilon)
    with localcontext() as context:
        context.prec = 50
        root = (Decimal(e.numerator) / Decimal(e.denominator)).sqrt()
        return max(
            1,
            int(
                (Decimal(n_classes) / (1 + root) + Decimal("0.5")).to_integral_value(
                    rounding="ROUND_FLOOR"
                )
            ),
        )


@dataclass(frozen=True)
class SquareWave(WithoutSide):
    """Release a random interval of d neighbouring classes; each with the label is e^eps times as
    likely as each without it. For numbers.

    Parameters
    ----------
    n_classes : int
        K, at least 2; their order matters.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label: any two labels, however far
        apart.
    size : int, optional
        d, 1 to K - 1. None (default): about K / (1 + e^(eps / 2)).

    See Also
    --------
    PriorBins : Tells more in a second stage, where a model says which question to ask.
    SubsetSelection : The same for classes without an order.

    Notes
    -----
    Intervals go beyond the ends: an output is the part of an interval that is within the classes,
    so at the ends it is shorter. The default size has nearly the most Fisher information about the
    mean of a row's number, where that spreads over a tenth to a quarter of the range; a number that
    is known better needs shorter intervals. Output: packed sets, (n, ceil(K/8)) uint8. Side: none.
    Cost: one word and O(K) a row. `weights` are unbiased: of all such weights those with the least
    variance under uniform labels; O(K^3) once.

    References
    ----------
    Li et al. 2020, "Estimating numerical distributions under local differential privacy".

    Examples
    --------
    >>> SquareWave(4, 2.0, size=2).outputs().astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 1, 1],
           [0, 0, 0, 1]])
    """

    name: ClassVar[str] = "square-wave"
    parameter: ClassVar[str] = "size"
    kind: ClassVar = "set"

    size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", proper_size(self.size, self.n_classes, "An interval"))
        window_words(self.epsilon, self.n_classes, self.width)

    @property
    def width(self) -> int:
        """The number of positions in every interval, d."""
        return default_size(self.epsilon, self.n_classes) if self.size is None else self.size

    @property
    def _starts(self) -> int:
        return self.n_classes + self.width - 1

    def _cells(self) -> list[int]:
        """List the words of each window: the d with the label, from its own start downwards, then
        the others in their order."""
        b, m = window_words(self.epsilon, self.n_classes, self.width)
        share, more = divmod(m, self.width)
        return [share + (i < more) for i in range(self.width)] + [b] * (self.n_classes - 1)

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> Bits:
        # The cell is found from the word alone; the label only shifts it, by arithmetic without a
        # branch, so that time reveals nothing.
        ends = np.cumsum(np.array(self._cells(), dtype=object))[:-1].astype(np.uint64)
        cell = np.searchsorted(ends, words.take(0), side="right")
        y, d = labels.astype(np.int64), self.width
        other = cell - d
        start = np.where(cell < d, y - cell, np.where(other < y, other - (d - 1), other + 1))
        return self._packed(start)

    def _packed(self, start: NDArray[np.int64]) -> Bits:
        places = np.arange(self.n_classes)
        return pack_sets((places >= start[:, None]) & (places < start[:, None] + self.width))

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        b, m = window_words(self.epsilon, self.n_classes, self.width)
        return np.where(unpack_sets(outputs, self.n_classes), 0.0, log_ratio(b * self.width, m))

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        if self.width > 1:
            return no_inclusion(outputs)
        b, m = window_words(self.epsilon, self.n_classes, 1)
        return np.full(len(outputs), m / WORD), np.full(len(outputs), b / WORD)

    def weights(self, outputs: Array, side: Side) -> Floats:
        """Compute unbiased weights, (n, K) float64: those with the least variance under uniform
        labels; NaN above 10^6 cells."""
        if self.n_classes * self._starts > MAX_CELLS:
            return np.full((len(outputs), self.n_classes), _NAN)
        inside = unpack_sets(outputs, self.n_classes)
        first, count = inside.argmax(axis=1), inside.sum(axis=1)
        start = np.where(first == 0, count - self.width, first)
        return np.asarray(_inverse(self)[start + self.width - 1])

    def loss_range(self, losses: Floats, outputs: Array, side: Side) -> Floats:
        if self.n_classes * self._starts > MAX_CELLS:
            return np.full(len(losses), _NAN)
        return range_over(_inverse(self), losses)

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        b, m = window_words(self.epsilon, self.n_classes, self.width)
        share, more = divmod(m, self.width)
        counts = (
            ("contains", share + 1, more),
            ("contains", share, self.width - more),
            ("lacks", b, self.n_classes - 1),
        )
        return tuple(
            Cell("class", "interval", relation, Fraction(words, WORD), n)
            for relation, words, n in counts
            if n
        )

    def table(self, side_row: Side) -> Table:
        k, d = self.n_classes, self.width
        if k * self._starts > MAX_CELLS:
            raise InvalidInput(
                f"Expected a matrix of at most {MAX_CELLS} cells, got {k} x {self._starts}. Use"
                " profile instead."
            )
        starts = np.arange(-(d - 1), k)
        words = self._cells()
        values = sorted(set(words))
        rank = np.array([values.index(each) for each in words], np.uint8)
        back = np.arange(k)[:, None] - starts  # how far a label is beyond the start of a window
        index = np.where((back >= 0) & (back < d), rank[back.clip(0, d - 1)], rank[-1])
        return Table(
            unpack_sets(self._packed(starts), k),
            tuple(Fraction(each, WORD) for each in values),
            index,
        )


@lru_cache(maxsize=8)
def _inverse(law: SquareWave) -> Floats:
    """Compute the weights of each output: W with matrix @ W = 1, and least variance under uniform
    labels."""
    cells, d = law._cells(), law.width
    # from the lowest window with the label to the one that starts at it
    inside, b = cells[:d][::-1], cells[-1]
    rows = tuple(
        (b,) * y + tuple(inside) + (b,) * (law.n_classes - 1 - y) for y in range(law.n_classes)
    )
    return inverse_of(rows, WORD)
