# SPDX-License-Identifier: Apache-2.0
"""Laws that release a set of classes: SubsetSelection, whose sets have one size, and PriorSplit, one bit.

What a split tells depends only on the prior mass of its set. So the set is drawn for each row, at random, from sets of nearly half the
mass: as informative as the best one, and over rows every pair of classes is told apart. One set for all rows of equal prior, however
informative, would never tell two classes on one side of it apart.

Source of SubsetSelection: Ye and Barg, "Optimal schemes for discrete distribution estimation under locally differential privacy" (2018);
Wang et al., "Local private distribution estimation: subset selection" (2016).
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
from labeldp.laws import _information as information
from labeldp.laws import _kernel as kernel
from labeldp.laws import _prior as priors
from labeldp.laws import _sets as sets
from labeldp.laws import _words as streams
from labeldp.laws._base import MAX_CELLS, Array, Cell, Floats, Law, Side, Table, Words
from labeldp.laws._exact import WORD, exp_floor, log_ratio

_LOST = 0.1  # most of a row's information, in expectation, that is given up so that every threshold is asked about
_NAN = float("nan")


@lru_cache(maxsize=1024)
def best_size(epsilon: float, n_classes: int) -> int:
    """Find the size with the most information under a uniform prior; of equal ones the smallest.

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
        kernel.inside_words(self.epsilon, self.n_classes, self.set_size)

    @property
    def set_size(self) -> int:
        """d, the number of classes in every output."""
        return best_size(self.epsilon, self.n_classes) if self.size is None else self.size

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        priors.as_prior(prior, self.n_classes)
        return {}

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> sets.Bits:
        m, d = np.uint64(kernel.inside_words(self.epsilon, self.n_classes, self.set_size)), self.set_size
        out = np.empty((len(labels), sets.n_bytes(self.n_classes)), dtype=np.uint8)
        for rows in streams.row_blocks(len(labels), self.n_classes):
            stream = words.select(rows)
            inside = stream.take(0) < m
            drawn = streams.ordered_sample(stream, self.n_classes, d + 1, first=1)
            out[rows] = _complete(labels[rows], inside, drawn, self.n_classes)
        return out

    @property
    def _lacks(self) -> float:
        """Log-likelihood of a class outside the set, over that of one inside; above 0 only where m, rounded down, is that small."""
        m, d = kernel.inside_words(self.epsilon, self.n_classes, self.set_size), self.set_size
        return log_ratio((WORD - m) * d, m * (self.n_classes - d))

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        return np.where(sets.unpack(outputs, self.n_classes), -max(0.0, self._lacks) + 0.0, min(0.0, self._lacks))

    def likeliest(self, outputs: Array, side: Side) -> sets.Bits:
        return outputs if self._lacks < 0 else super().likeliest(outputs, side)

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        own = Fraction(kernel.inside_words(self.epsilon, self.n_classes, self.set_size), WORD)
        other = (self.set_size - own) / (self.n_classes - 1)
        return np.full(len(outputs), float(own)), np.full(len(outputs), float(other))

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        m, d, k = kernel.inside_words(self.epsilon, self.n_classes, self.set_size), self.set_size, self.n_classes
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
    """Compute the nats of subset selection under a uniform prior."""
    m = kernel.inside_words(epsilon, n_classes, size)
    inside = m / WORD
    return inside * log_ratio(m * n_classes, WORD * size) + (1 - inside) * log_ratio((WORD - m) * n_classes, WORD * (n_classes - size))


def _complete(labels: NDArray[np.integer], inside: NDArray[np.bool_], drawn: Array, n_classes: int) -> sets.Bits:
    """Make sets of ordered samples (d + 1, n): inside, the label and the first d - 1 others; outside, the first d others."""
    steps, n = drawn.shape
    y = labels.astype(drawn.dtype)
    step = np.arange(steps, dtype=np.int32)[:, None]
    own = drawn == y
    spot = np.where(own, step, steps).min(axis=0)  # where the sample holds the label; past its end if nowhere
    taken = (step - (step > spot) < steps - 1 - inside) & ~own
    dense = np.zeros((n, n_classes), dtype=np.bool_)
    dense[np.arange(n), drawn] = taken
    return sets.pack(dense) | sets.single(labels, n_classes) * inside[:, None]


@dataclass(frozen=True)
class PriorSplit(Law):
    """Answer one bit, truthfully with probability e^eps / (e^eps + 1): is the label in this row's set of classes?

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label, whatever its set.
    ordered : bool
        The classes have an order that matters, as ratings have: sets are thresholds, "at least class t".

    Notes
    -----
    Sets are drawn with public words of the row. Unordered: the one of three uniformly random sets whose prior mass is nearest one half:
    nearly as informative as any, and random enough that over rows of one prior any two classes are on different sides in 0.4 of them at
    least, and the frequencies of all classes can be told. Ordered: a threshold within 10 % of the most informative one, at random; in as
    large a share of rows as costs 10 % of the information in expectation, any threshold.
    Output: the set or its complement, packed, (n, ceil(K/8)) uint8. Side: split (n, ceil(K/8)) uint8, packed. Cost: one word a row; for
    the choice, 3 K / 64 public words and three sums of the prior.
    """

    name: ClassVar[str] = "split"
    kind: ClassVar = "set"
    uses_prior: ClassVar[bool] = True
    draws_side: ClassVar[bool] = True

    ordered: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.ordered, (bool, np.bool_)):
            raise InvalidInput(f"Expected ordered=True or False, got {self.ordered!r}. True: the order of the classes matters.")
        object.__setattr__(self, "ordered", bool(self.ordered))
        kernel.inside_words(self.epsilon, 2, 1)

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        array = priors.as_prior(prior, self.n_classes)
        stream = streams.PlainWords(np.arange(len(array))) if words is None else words
        split = np.empty((len(array), sets.n_bytes(self.n_classes)), dtype=np.uint8)
        choose = self._threshold if self.ordered else even_half
        for rows in priors.chunks(len(array), self.n_classes):
            split[rows] = sets.pack(choose(priors.quantise(array[rows]), stream.select(np.arange(rows.start, rows.stop))))
        return {"split": split}

    def _threshold(self, weights: Floats, words: Words) -> NDArray[np.bool_]:
        k = self.n_classes
        reaching = weights[:, ::-1].cumsum(axis=1)[:, ::-1]
        score = information.on_grid(information.split_scores(reaching[:, 1:] / reaching[:, :1], self.epsilon), self.epsilon)
        best = score.max(axis=1)
        near = score >= (1.0 - _LOST) * best[:, None]
        number = (streams.unit(words.take(0)) * near.sum(axis=1)).astype(np.intp)
        chosen = (np.cumsum(near, axis=1) > number[:, None]).argmax(axis=1)
        other = streams.equal_cell(words.take(1), np.uint64(k - 1))
        lost = best - score[np.arange(len(score)), other]
        chosen = np.where(streams.unit(words.take(2)) * lost <= _LOST * best, other, chosen)
        return np.asarray(np.arange(k) > chosen[:, None])

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> sets.Bits:
        return split_sample(labels, words.take(0), side["split"], self.epsilon, self.n_classes)

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        m = kernel.inside_words(self.epsilon, 2, 1)
        return np.where(sets.unpack(outputs, self.n_classes), 0.0, log_ratio(WORD - m, m))

    def likeliest(self, outputs: Array, side: Side) -> sets.Bits:
        m = kernel.inside_words(self.epsilon, 2, 1)
        return outputs if log_ratio(WORD - m, m) < 0 else super().likeliest(outputs, side)

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        if self.n_classes > 2:
            return np.full(len(outputs), _NAN), np.full(len(outputs), _NAN)
        m = kernel.inside_words(self.epsilon, 2, 1)
        return np.full(len(outputs), m / WORD), np.full(len(outputs), (WORD - m) / WORD)

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        m = kernel.inside_words(self.epsilon, 2, 1)
        return (
            Cell("class", "side", "contains", Fraction(m, WORD), 1),
            Cell("class", "side", "lacks", Fraction(WORD - m, WORD), 1),
        )

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        packed = (np.dtype(np.uint8), (sets.n_bytes(self.n_classes),))
        return {"output": packed, "split": packed}

    def table(self, side_row: Side) -> Table:
        first = sets.unpack(side_row["split"][None], self.n_classes)
        outputs = np.concatenate([first, ~first])
        return Table(outputs, tuple(cell.probability for cell in self.profile(side_row)), np.where(outputs.T, np.uint8(0), np.uint8(1)))

    def _information(self, prior: Floats, side: Side) -> Floats:
        mass = (prior * sets.unpack(side["split"], self.n_classes)).sum(axis=1)
        return information.split_information(mass, self.epsilon)


def even_half(weights: Floats, words: Words) -> NDArray[np.bool_]:
    """Draw random sets of classes and take the one whose weight is nearest one half: (n, K) bool, both sides non-empty.

    weights : (n, K) whole numbers below 2^32, as `prior.quantise` gives them.
    words : public words of the n rows.
    """
    n, k = weights.shape
    # Each bit of a word decides about one class: `each` words make a random set, and TRIES sets are drawn for every row.
    each = -(-k // 64)
    random = np.stack([words.take(i) for i in range(information.TRIES * each)], axis=1).astype("<u8", copy=False)
    tries = np.unpackbits(random.view(np.uint8).reshape(n, information.TRIES, -1), axis=2, count=k, bitorder="little").view(np.bool_)
    inside = tries[np.arange(n), information.nearest_half(np.matmul(tries, weights[:, :, None])[:, :, 0], weights.sum(axis=1))]
    size = inside.sum(axis=1)
    alone = np.flatnonzero((size == 0) | (size == k))
    # A set of none or of all classes asks nothing: one class at random changes sides.
    inside[alone, streams.equal_cell(words.take(information.TRIES * each, alone), np.uint64(k))] ^= True
    return inside


def split_sample(labels: NDArray[np.integer], r: NDArray[np.uint64], split: sets.Bits, epsilon: float, n_classes: int) -> sets.Bits:
    """Release the split or its complement: the one that holds the label where r < m, else the other."""
    truthful = r < np.uint64(kernel.inside_words(epsilon, 2, 1))
    first = sets.contains(split, labels, n_classes) == truthful
    return split ^ np.where(first[:, None], np.uint8(0), sets.full(n_classes))
