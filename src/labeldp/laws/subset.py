# SPDX-License-Identifier: Apache-2.0
"""SubsetSelection: a law that releases a set of classes.

Source: Ye and Barg, "Optimal schemes for discrete distribution estimation under locally differential privacy" (2018); Wang et al.,
"Local private distribution estimation: subset selection" (2016).
"""

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.laws import prior as priors
from labeldp.laws import sampling, sets
from labeldp.laws.base import MAX_CELLS, Array, Cell, Floats, Law, Side, Table, Words
from labeldp.laws.exact import WORD, exp_floor, log_ratio, whole_below


@lru_cache(maxsize=4096)
def inside_words(epsilon: float, n_classes: int, size: int) -> int:
    """m: how many of the 2^64 words release a set of `size` that holds the label. InvalidInput where rounding m down exceeds epsilon."""
    e = exp_floor(epsilon)
    m = whole_below(WORD * e * size / (e * size + n_classes - size))
    if m * (n_classes - size) * e < (WORD - m) * size:
        least = n_classes / (size * WORD)
        raise InvalidInput(f"Expected an epsilon that 64-bit words can honour here (about {least:.1g} or more), got {epsilon!r}.")
    return m


@lru_cache(maxsize=1024)
def best_size(epsilon: float, n_classes: int) -> int:
    """The size with the most information under a uniform prior; of equal ones the smallest.

    The information is unimodal in the size, so a binary search finds the top; in 50-digit decimals, so that every machine agrees.
    """
    e = exp_floor(epsilon)
    with localcontext() as context:
        context.prec = 50
        gain = Decimal(e.numerator) / Decimal(e.denominator)

        def score(d: int) -> Decimal:
            total = gain * d + n_classes - d
            return gain * d / total * (gain * n_classes / total).ln() + (n_classes - d) / total * (n_classes / total).ln()

        low, high = 1, n_classes - 1
        while low < high:
            size = (low + high) // 2
            low, high = (low, size) if score(size + 1) <= score(size) else (size + 1, high)
    return low


@dataclass(frozen=True)
class SubsetSelection(Law):
    """Release a set of d classes that is e^eps times as likely, set for set, if it holds the label.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label. Above epsilon = 40 the 64-bit sampler is more private than asked.
    size : int, optional
        d, 1 to K - 1. None: the most informative under a uniform prior, about K / (e^eps + 1).

    Notes
    -----
    Output: packed sets, (n, ceil(K/8)) uint8. Side: none. Source: Ye and Barg 2018. Cost: d + 2 words a row and O(K) memory a row, in
    chunks of rows.
    """

    name: ClassVar[str] = "subset"
    parameter: ClassVar[str] = "size"
    kind: ClassVar = "set"
    uses_prior: ClassVar[bool] = False

    size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None:
            fix = "A set of all classes says nothing; pass None for the most informative size."
            object.__setattr__(self, "size", _validate.integer(size=self.size, low=1, high=self.n_classes - 1, fix=fix))
        inside_words(self.epsilon, self.n_classes, self.set_size)

    @property
    def set_size(self) -> int:
        """d, the number of classes in every output."""
        return best_size(self.epsilon, self.n_classes) if self.size is None else self.size

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        priors.as_prior(prior, self.n_classes)
        return {}

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> sets.Bits:
        m, d = np.uint64(inside_words(self.epsilon, self.n_classes, self.set_size)), self.set_size
        out = np.empty((len(labels), sets.n_bytes(self.n_classes)), dtype=np.uint8)
        for rows in sampling.row_blocks(len(labels), self.n_classes):
            stream = words.select(rows)
            inside = stream.take(0) < m
            drawn = sampling.ordered_sample(stream, self.n_classes, d + 1, first=1)
            out[rows] = _complete(labels[rows], inside, drawn, self.n_classes)
        return out

    @property
    def _lacks(self) -> float:
        """Log-likelihood of a class outside the set, over that of one inside; above 0 only where m, rounded down, is that small."""
        m, d = inside_words(self.epsilon, self.n_classes, self.set_size), self.set_size
        return log_ratio((WORD - m) * d, m * (self.n_classes - d))

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        return np.where(sets.unpack(outputs, self.n_classes), -max(0.0, self._lacks) + 0.0, min(0.0, self._lacks))

    def likeliest(self, outputs: Array, side: Side) -> sets.Bits:
        return outputs if self._lacks < 0 else super().likeliest(outputs, side)

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        own = Fraction(inside_words(self.epsilon, self.n_classes, self.set_size), WORD)
        other = (self.set_size - own) / (self.n_classes - 1)
        return np.full(len(outputs), float(own)), np.full(len(outputs), float(other))

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        m, d, k = inside_words(self.epsilon, self.n_classes, self.set_size), self.set_size, self.n_classes
        with_label, without = math.comb(k - 1, d - 1), math.comb(k - 1, d)
        return (
            Cell("class", "set", "contains", Fraction(m, WORD * with_label), with_label),
            Cell("class", "set", "lacks", Fraction(WORD - m, WORD * without), without),
        )

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        return {"output": (np.dtype(np.uint8), (sets.n_bytes(self.n_classes),))}

    def table(self, side_row: Side) -> Table:
        k, d = self.n_classes, self.set_size
        if k * math.comb(k, d) > MAX_CELLS:
            raise InvalidInput(f"Expected a matrix of at most {MAX_CELLS} cells, got {k} x {math.comb(k, d)}. Use profile instead.")
        outputs = np.zeros((math.comb(k, d), k), dtype=np.bool_)
        np.put_along_axis(outputs, np.array(list(combinations(range(k), d))), True, axis=1)
        return Table(outputs, tuple(cell.probability for cell in self.profile(side_row)), np.where(outputs.T, np.uint8(0), np.uint8(1)))

    def _information(self, prior: Floats, side: Side) -> Floats:
        if (prior != 1.0 / self.n_classes).any():
            return super()._information(prior, side)
        return np.full(len(prior), uniform_information(self.epsilon, self.n_classes, self.set_size))


def uniform_information(epsilon: float, n_classes: int, size: int) -> float:
    """Nats of subset selection under a uniform prior."""
    m = inside_words(epsilon, n_classes, size)
    inside = m / WORD
    return inside * log_ratio(m * n_classes, WORD * size) + (1 - inside) * log_ratio((WORD - m) * n_classes, WORD * (n_classes - size))


def _complete(labels: NDArray[np.integer], inside: NDArray[np.bool_], drawn: Array, n_classes: int) -> sets.Bits:
    """Sets from ordered samples (d + 1, n): inside, the label and the first d - 1 others; outside, the first d others."""
    steps, n = drawn.shape
    y = labels.astype(drawn.dtype)
    step = np.arange(steps, dtype=np.int32)[:, None]
    own = drawn == y
    spot = np.where(own, step, steps).min(axis=0)  # where the sample holds the label; past its end if nowhere
    taken = (step - (step > spot) < steps - 1 - inside) & ~own
    dense = np.zeros((n, n_classes), dtype=np.bool_)
    dense[np.arange(n), drawn] = taken
    return sets.pack(dense) | sets.single(labels, n_classes) * inside[:, None]
