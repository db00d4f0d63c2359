# SPDX-License-Identifier: Apache-2.0
"""PriorSplit: one bit, on which side of a set of classes the label is; and how that set is drawn.

What a split tells depends only on the prior mass of its set. So the set is drawn for each row, at random, from sets of nearly half the
mass: as informative as the best one, and over rows every pair of classes is told apart. One set for all rows of equal prior, however
informative, would never tell two classes on one side of it apart.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.laws import information, sets
from labeldp.laws import prior as priors
from labeldp.laws import words as streams
from labeldp.laws.base import Array, Cell, Floats, Law, Side, Table, Words
from labeldp.laws.exact import WORD, log_ratio
from labeldp.laws.subset import inside_words

_LOST = 0.1  # most of a row's information, in expectation, that is given up so that every threshold is asked about
_NAN = float("nan")


@dataclass(frozen=True)
class PriorSplit(Law):
    """One bit, answered truthfully with probability e^eps / (e^eps + 1): is the label in this row's set of classes?

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
        inside_words(self.epsilon, 2, 1)

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
        m = inside_words(self.epsilon, 2, 1)
        return np.where(sets.unpack(outputs, self.n_classes), 0.0, log_ratio(WORD - m, m))

    def likeliest(self, outputs: Array, side: Side) -> sets.Bits:
        m = inside_words(self.epsilon, 2, 1)
        return outputs if log_ratio(WORD - m, m) < 0 else super().likeliest(outputs, side)

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        if self.n_classes > 2:
            return np.full(len(outputs), _NAN), np.full(len(outputs), _NAN)
        m = inside_words(self.epsilon, 2, 1)
        return np.full(len(outputs), m / WORD), np.full(len(outputs), (WORD - m) / WORD)

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        m = inside_words(self.epsilon, 2, 1)
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
    """Of some uniformly random sets of classes the one whose weight is nearest one half: (n, K) bool, both sides non-empty.

    weights : (n, K) whole numbers below 2^32, as `prior.quantise` gives them.
    words : public words of the n rows.
    """
    n, k = weights.shape
    each = -(-k // 64)
    random = np.stack([words.take(i) for i in range(information.TRIES * each)], axis=1).astype("<u8", copy=False)
    tries = np.unpackbits(random.view(np.uint8).reshape(n, information.TRIES, -1), axis=2, count=k, bitorder="little").view(np.bool_)
    inside = tries[np.arange(n), information.nearest_half(np.matmul(tries, weights[:, :, None])[:, :, 0], weights.sum(axis=1))]
    size = inside.sum(axis=1)
    alone = np.flatnonzero((size == 0) | (size == k))
    inside[alone, streams.equal_cell(words.take(information.TRIES * each, alone), np.uint64(k))] ^= True
    return inside


def split_sample(labels: NDArray[np.integer], r: NDArray[np.uint64], split: sets.Bits, epsilon: float, n_classes: int) -> sets.Bits:
    """The split or its complement: the one that holds the label where r < m, else the other."""
    truthful = r < np.uint64(inside_words(epsilon, 2, 1))
    first = sets.contains(split, labels, n_classes) == truthful
    return split ^ np.where(first[:, None], np.uint8(0), sets.full(n_classes))
