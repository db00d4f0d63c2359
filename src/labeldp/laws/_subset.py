# SPDX-License-Identifier: Apache-2.0
"""Laws that release a set of classes: SubsetSelection (sets of one size), PriorSplit and Threshold
(one bit), and AutoLaw (the best law for each row).

The information of a split depends only on the prior mass of its set. So each row draws its set at
random, among sets of nearly half the mass: they are as informative as the best one, and over many
rows every pair of classes is separated. One set for all rows of equal prior would never distinguish
two classes on the same side of it.

References
----------
SubsetSelection: Ye and Barg 2018, "Optimal schemes for discrete distribution estimation under
locally differential privacy"; Wang et al. 2016, "Mutual information optimally local private
discrete distribution estimation".
"""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import combinations, product
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.laws._base import MAX_CELLS, Cell, Law, Side, Table, no_inclusion, proper_size
from labeldp.laws._exact import (
    WORD,
    Array,
    Bits,
    Floats,
    PlainWords,
    Words,
    as_prior,
    equal_cell,
    exp_floor,
    full_set,
    hashed,
    log_quotient,
    log_ratio,
    ordered_sample,
    pack_sets,
    prior_chunks,
    quantise,
    set_bytes,
    sets_contain,
    shuffle_blocks,
    single_sets,
    unit,
    unpack_sets,
)
from labeldp.laws._matrix import WithoutSide
from labeldp.laws._response import RandomizedResponse, inside_words, response_words

_FINE = 2.0**36
# largest expected share of a row's information that is given up so that every threshold is drawn
# sometimes
LOST = 0.1


@lru_cache(maxsize=1024)
def best_size(epsilon: float, n_classes: int) -> int:
    """Find the size of sets with the most information under a uniform prior; of equal ones the
    smallest."""
    # The information is unimodal in the size, so a binary search finds the maximum; in 50-digit
    # decimals, so that all machines agree.
    e = exp_floor(epsilon)
    with localcontext() as context:
        context.prec = 50
        gain = Decimal(e.numerator) / Decimal(e.denominator)

        def score(d: int) -> Decimal:
            total = gain * d + n_classes - d
            return (
                gain * d / total * (gain * n_classes / total).ln()
                + (n_classes - d) / total * (n_classes / total).ln()
            )

        low, high = 1, n_classes - 1
        while low < high:
            size = (low + high) // 2
            low, high = (low, size) if score(size + 1) <= score(size) else (size + 1, high)
    return low


@dataclass(frozen=True)
class SubsetSelection(WithoutSide):
    """Release a random set of d classes; each set with the label is e^eps times as likely as each
    set without it.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label. Above epsilon = 40 the 64-bit
        sampler is more private than claimed.
    size : int, optional
        d, 1 to K - 1. None (default): the most informative size under a uniform prior, about K /
        (e^eps + 1).

    Notes
    -----
    Output: packed sets, (n, ceil(K/8)) uint8. Side: none. Cost: d + 2 words a row and O(K) memory a
    row, in chunks of rows.

    References
    ----------
    Ye and Barg 2018, "Optimal schemes for discrete distribution estimation under locally
    differential privacy".
    """

    name: ClassVar[str] = "subset"
    parameter: ClassVar[str] = "size"
    kind: ClassVar = "set"

    size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", proper_size(self.size, self.n_classes, "A set"))
        inside_words(self.epsilon, self.n_classes, self.set_size)

    @property
    def set_size(self) -> int:
        """The number of classes in every output, d."""
        return best_size(self.epsilon, self.n_classes) if self.size is None else self.size

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> Bits:
        m, d = np.uint64(inside_words(self.epsilon, self.n_classes, self.set_size)), self.set_size
        out = np.empty((len(labels), set_bytes(self.n_classes)), dtype=np.uint8)
        # Word 0 decides if the set holds the label, and words 1 .. d + 1 shuffle the classes,
        # whatever the label is: the number of words taken reveals nothing.
        for rows in shuffle_blocks(len(labels), self.n_classes):
            stream = words.select(rows)
            inside = stream.take(0) < m
            drawn = ordered_sample(stream, self.n_classes, d + 1, first=1)
            out[rows] = _complete(labels[rows], inside, drawn, self.n_classes)
        return out

    @property
    def _lacks(self) -> float:
        """The log-likelihood ratio of a class outside the set to one inside, below 0."""
        m, d = inside_words(self.epsilon, self.n_classes, self.set_size), self.set_size
        return log_ratio((WORD - m) * d, m * (self.n_classes - d))

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        return np.where(unpack_sets(outputs, self.n_classes), 0.0, self._lacks)

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        own = Fraction(inside_words(self.epsilon, self.n_classes, self.set_size), WORD)
        other = (self.set_size - own) / (self.n_classes - 1)
        return np.full(len(outputs), float(own)), np.full(len(outputs), float(other))

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        m, d, k = (
            inside_words(self.epsilon, self.n_classes, self.set_size),
            self.set_size,
            self.n_classes,
        )
        with_label, without = math.comb(k - 1, d - 1), math.comb(k - 1, d)
        return (
            Cell("class", "set", "contains", Fraction(m, WORD * with_label), with_label),
            Cell("class", "set", "lacks", Fraction(WORD - m, WORD * without), without),
        )

    def table(self, side_row: Side) -> Table:
        k, d = self.n_classes, self.set_size
        if k * math.comb(k, d) > MAX_CELLS:
            raise InvalidInput(
                f"Expected a matrix of at most {MAX_CELLS} cells, got {k} x {math.comb(k, d)}. Use"
                " profile instead."
            )
        outputs = np.zeros((math.comb(k, d), k), dtype=np.bool_)
        np.put_along_axis(outputs, np.array(list(combinations(range(k), d))), True, axis=1)
        return Table(
            outputs,
            tuple(cell.probability for cell in self.profile(side_row)),
            np.where(outputs.T, np.uint8(0), np.uint8(1)),
        )

    def _information(self, prior: Floats, side: Side) -> Floats:
        if (prior != 1.0 / self.n_classes).any():
            return super()._information(prior, side)
        m, k, d = (
            inside_words(self.epsilon, self.n_classes, self.set_size),
            self.n_classes,
            self.set_size,
        )
        contains, lacks = log_ratio(m * k, WORD * d), log_ratio((WORD - m) * k, WORD * (k - d))
        return np.full(len(prior), m / WORD * contains + (1 - m / WORD) * lacks)


def _complete(
    labels: NDArray[np.integer], inside: NDArray[np.bool_], drawn: Array, n_classes: int
) -> Bits:
    """Make sets from ordered samples (d + 1, n): if `inside`, the label and the first d - 1 other
    classes; else the first d others."""
    steps, n = drawn.shape
    y = labels.astype(drawn.dtype)
    step = np.arange(steps, dtype=np.int32)[:, None]
    # The label is compared with every entry of every sample, and the result chosen without a
    # branch, so that time reveals nothing.
    own = drawn == y
    # position of the label in the sample; its length if it is not there
    spot = np.where(own, step, steps).min(axis=0)
    taken = (step - (step > spot) < steps - 1 - inside) & ~own
    dense = np.zeros((n, n_classes), dtype=np.bool_)
    dense[np.arange(n), drawn] = taken
    return pack_sets(dense) | single_sets(labels, n_classes) * inside[:, None]


@dataclass(frozen=True)
class _Split(Law):
    """Base of PriorSplit and Threshold, whose side has {"split": packed set} and whose output is
    the set or its complement."""

    kind: ClassVar = "set"
    uses_prior: ClassVar[bool] = True
    draws_side: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        inside_words(self.epsilon, 2, 1)

    @abstractmethod
    def _choose(self, weights: Floats, words: Words) -> NDArray[np.bool_]:
        """Draw the set of each row from its quantised prior (n, K) and its public words: (n, K)
        bool."""

    def _ask(self, weights: Floats, words: Words) -> dict[str, Array]:
        """Draw the side of each row from its quantised prior (n, K) and its public words."""
        return {"split": pack_sets(self._choose(weights, words))}

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        array = as_prior(prior, self.n_classes)
        stream = PlainWords(np.arange(len(array))) if words is None else words
        side: dict[str, Array] = {
            name: np.empty((len(array), *shape), kind)
            for name, (kind, shape) in self.layout().items()
            if name != "output"
        }
        for rows in prior_chunks(len(array), self.n_classes):
            for name, values in self._ask(
                quantise(array[rows]), stream.select(np.arange(rows.start, rows.stop))
            ).items():
                side[name][rows] = values
        return side

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> Bits:
        # the set or its complement: the one that holds the label if r < m, else the other
        truthful = words.take(0) < np.uint64(inside_words(self.epsilon, 2, 1))
        first = sets_contain(side["split"], labels, self.n_classes) == truthful
        every = full_set(self.n_classes)
        return np.asarray(side["split"] ^ np.where(first[:, None], np.uint8(0), every))

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        m = inside_words(self.epsilon, 2, 1)
        return np.where(unpack_sets(outputs, self.n_classes), 0.0, log_ratio(WORD - m, m))

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        if self.n_classes > 2:
            return no_inclusion(outputs)
        m = inside_words(self.epsilon, 2, 1)
        return np.full(len(outputs), m / WORD), np.full(len(outputs), (WORD - m) / WORD)

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        m = inside_words(self.epsilon, 2, 1)
        return (
            Cell("class", "side", "contains", Fraction(m, WORD), 1),
            Cell("class", "side", "lacks", Fraction(WORD - m, WORD), 1),
        )

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        packed = (np.dtype(np.uint8), (set_bytes(self.n_classes),))
        return {"output": packed, "split": packed}

    def table(self, side_row: Side) -> Table:
        first = unpack_sets(side_row["split"][None], self.n_classes)
        outputs = np.concatenate([first, ~first])
        return Table(
            outputs,
            tuple(cell.probability for cell in self.profile(side_row)),
            np.where(outputs.T, np.uint8(0), np.uint8(1)),
        )

    def _information(self, prior: Floats, side: Side) -> Floats:
        mass = (prior * unpack_sets(side["split"], self.n_classes)).sum(axis=1)
        return split_information(mass, self.epsilon)


@dataclass(frozen=True)
class PriorSplit(_Split):
    """Release one bit by randomized response: is the label in this row's public set of classes?

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label and any set.
    ordered : bool
        True for classes in an order that matters, such as ratings: then sets are thresholds, "at
        least class t". False by default.

    Notes
    -----
    The bit is true with probability e^eps / (e^eps + 1). Each row draws its set from public words.
    Unordered: of three uniformly random sets the one whose prior mass is nearest to one half, which
    is nearly as informative as any. Over rows of one prior, two classes are on different sides in
    at least 40 % of the rows, so that the frequencies of all classes can be estimated. Ordered: a
    random threshold within 10 % of the most informative one; and in a share of rows that costs 10 %
    of the information in expectation, any threshold. Output: the set or its complement, packed, (n,
    ceil(K/8)) uint8. Side: split (n, ceil(K/8)) uint8, packed. Cost: one word a row; for the set, 3
    K / 64 public words and three sums of the prior.
    """

    name: ClassVar[str] = "split"

    ordered: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.boolean(ordered=self.ordered)

    def _choose(self, weights: Floats, words: Words) -> NDArray[np.bool_]:
        return (
            near_even_threshold(weights, words, self.epsilon)
            if self.ordered
            else even_half(weights, words)
        )


@dataclass(frozen=True)
class Threshold(_Split):
    """Release one bit by randomized response: is the label at least this row's public threshold?
    For numbers and other ordered classes.

    Parameters
    ----------
    n_classes : int
        K, at least 2; their order matters.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label and any threshold.

    See Also
    --------
    labeldp.laws.SquareWave : More informative without a prior. An estimator with this law draws its
    first stage by it. PriorSplit : With `ordered=True` it draws the thresholds in the same way
    where there is a prior. labeldp.Grid : Makes classes of numbers.

    Notes
    -----
    The bit is true with probability e^eps / (e^eps + 1). A row without a prior, or with a flat one,
    draws its threshold t uniformly from 1 .. K - 1 with public words. So P[at least t] can be
    estimated for every t alike, and a learner by likelihood sees the whole distribution, its tails
    too. A row with a prior draws a threshold near the one with the most information, as
    `PriorSplit` does. Output: the classes from t on, or those below t, packed, (n, ceil(K/8))
    uint8. Side: split, the classes from t on, packed; chance, (n,) float64, the probability with
    which the public words draw t under the row's prior. Cost: one word a row; for the threshold, 3
    public words and O(K).

    The answer to one question has no unbiased estimate of a function g of the label, but that to a
    random one has: of g(y) = (g(0) + g(K - 1)) / 2 + sum over t of (g(t) - g(t - 1)) (1[y >= t] -
    1/2), `weights` takes the part of the drawn t, with the debiased bit for 1[y >= t], divided by
    the chance of t, which is at least 1 / (10 (K - 1)). So it is unbiased over answer and public
    words together, under any prior. It suits functions of small steps, such as squared errors of
    numbers: without a prior its standard deviation is that of (K - 1) / 2 steps, times (e^eps + 1)
    / (e^eps - 1). For the indicator of one class SubsetSelection has less.

    References
    ----------
    Horvitz and Thompson 1952, "A generalization of sampling without replacement from a finite
    universe", for the division by the chance.
    """

    name: ClassVar[str] = "threshold"

    def _choose(self, weights: Floats, words: Words) -> NDArray[np.bool_]:
        inside = (
            np.arange(self.n_classes)
            > equal_cell(words.take(1), np.uint64(self.n_classes - 1))[:, None]
        )
        known = _not_flat(weights)
        if len(known):
            inside[known] = near_even_threshold(weights[known], words.select(known), self.epsilon)
        return np.asarray(inside)

    def _ask(self, weights: Floats, words: Words) -> dict[str, Array]:
        inside = self._choose(weights, words)
        first = self.n_classes - inside.sum(axis=1) - 1
        return {
            "split": pack_sets(inside),
            "chance": self._chances(weights)[np.arange(len(weights)), first],
        }

    def _chances(self, weights: Floats) -> Floats:
        """Compute the probability of each threshold 1 .. K - 1, over the public words: (n, K -
        1)."""
        found = np.full((len(weights), self.n_classes - 1), 1.0 / (self.n_classes - 1))
        known = _not_flat(weights)
        if len(known):
            found[known] = threshold_chances(weights[known], self.epsilon)
        return found

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        return super().layout() | {"chance": (np.dtype(np.float64), ())}

    def questions(self, prior: "ArrayLike") -> tuple[tuple[float, dict[str, Array]], ...]:
        chances = self._chances(quantise(np.asarray(prior, dtype=np.float64)[None]))[0]
        split = pack_sets(np.arange(self.n_classes) > np.arange(self.n_classes - 1)[:, None])
        return tuple(
            (float(p), {"split": split[t], "chance": np.asarray(p)}) for t, p in enumerate(chances)
        )

    @property
    def _gap(self) -> float:
        """P[true answer] - P[false answer]."""
        return (2 * inside_words(self.epsilon, 2, 1) - WORD) / WORD

    def weights(self, outputs: Array, side: Side) -> Floats:
        """Compute weights, (n, K) float64, that are unbiased over the answer and the drawn
        threshold together (see Notes)."""
        n, k = len(outputs), self.n_classes
        first = k - unpack_sets(np.asarray(side["split"]), k).sum(axis=1)
        yes = (np.asarray(outputs) == side["split"]).all(axis=1)
        found = np.zeros((n, k))
        step = np.where(yes, 0.5, -0.5) / self._gap / side["chance"]
        found[:, [0, -1]] = 0.5
        found[np.arange(n), first] += step
        found[np.arange(n), first - 1] -= step
        return found

    def loss_range(self, losses: Floats, outputs: Array, side: Side) -> Floats:
        # Over answers and thresholds. The side has the chance of the drawn threshold only, but the
        # least chance is known.
        even = 1.0 / (self.n_classes - 1)
        least = np.where(side["chance"] == even, even, LOST * even)
        return np.asarray(np.abs(np.diff(losses, axis=1)).max(axis=1) / least / self._gap)


def _not_flat(weights: Floats) -> NDArray[np.intp]:
    """Find the rows whose prior prefers some class."""
    return np.flatnonzero((weights != weights[:, :1]).any(axis=1))


def _threshold_scores(weights: Floats, epsilon: float) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Compute the scores of the thresholds 1 .. K - 1 under a prior, the best one, and which are
    near it: (n, K - 1), (n,), (n, K - 1)."""
    reaching = weights[:, ::-1].cumsum(axis=1)[:, ::-1]
    score = on_grid(split_scores(reaching[:, 1:] / reaching[:, :1], epsilon), epsilon)
    best = score.max(axis=1)
    return score, best, score >= (1.0 - LOST) * best[:, None]


def threshold_chances(weights: Floats, epsilon: float) -> Floats:
    """Compute the probability, within 1e-9 of it, that `near_even_threshold` draws each threshold 1
    .. K - 1: (n, K - 1)."""
    score, best, near = _threshold_scores(weights, epsilon)
    lost, given_up = best[:, None] - score, LOST * best[:, None]
    taken = np.where(lost <= given_up, 1.0, given_up / np.where(lost > 0, lost, 1.0))
    # so that their sum is exact in any order, and the same on every machine
    taken = np.rint(taken * _FINE) / _FINE
    even = 1.0 / score.shape[1]
    return np.asarray(
        taken * even + near * ((1.0 - taken.sum(axis=1) * even) / near.sum(axis=1))[:, None]
    )


def near_even_threshold(weights: Floats, words: Words, epsilon: float) -> NDArray[np.bool_]:
    """Draw a threshold of each row near the most informative one, and in a share of rows any
    threshold: (n, K) bool, "at least t".

    weights : (n, K) whole numbers below 2^32, from `quantise`; words : public words of the n rows.
    """
    k = weights.shape[1]
    score, best, near = _threshold_scores(weights, epsilon)
    number = (unit(words.take(0)) * near.sum(axis=1)).astype(np.intp)
    chosen = (np.cumsum(near, axis=1) > number[:, None]).argmax(axis=1)
    # Sometimes any threshold is drawn: classes between two thresholds that the prior finds useless
    # would else never be separated.
    other = equal_cell(words.take(1), np.uint64(k - 1))
    lost = best - score[np.arange(len(score)), other]
    chosen = np.where(unit(words.take(2)) * lost <= LOST * best, other, chosen)
    return np.asarray(np.arange(k) > chosen[:, None])


def even_half(weights: Floats, words: Words) -> NDArray[np.bool_]:
    """Draw TRIES random sets of classes for each row and take the one whose weight is nearest to
    one half: (n, K) bool.

    weights : (n, K) whole numbers below 2^32, from `quantise`; words : public words of the n rows.
    """
    n, k = weights.shape
    # Each bit of a word decides about one class, so `each` words make a random set.
    each = -(-k // 64)
    random = np.stack([words.take(i) for i in range(TRIES * each)], axis=1).astype(
        "<u8", copy=False
    )
    tries = np.unpackbits(
        random.view(np.uint8).reshape(n, TRIES, -1), axis=2, count=k, bitorder="little"
    ).view(np.bool_)
    inside = tries[
        np.arange(n),
        nearest_half(np.matmul(tries, weights[:, :, None])[:, :, 0], weights.sum(axis=1)),
    ]
    size = inside.sum(axis=1)
    alone = np.flatnonzero((size == 0) | (size == k))
    # A set of no or of all classes has no information, so one random class changes sides.
    inside[alone, equal_cell(words.take(TRIES * each, alone), np.uint64(k))] ^= True
    return inside


# AutoLaw: for every row the best law under its prior, of those that distinguish all classes
# -----------------------------------------------


RR, SPLIT, SUBSET = range(3)  # codes in files
_PREFERRED = np.array([RR, SUBSET, SPLIT])  # of laws with equal scores the first is chosen
# share of the uniform distribution in the prior of the scores: a model may be surer than it is
# right
_MIXED = 0.1
_ROWS = 1024  # rows scored at a time: their 64 patterns fit in the cache


@dataclass(frozen=True)
class AutoLaw(Law):
    """Randomise each label by the best law under the row's prior: RandomizedResponse,
    SubsetSelection or PriorSplit.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label. Each of the three laws has
        it, and the choice depends on the prior and public words alone.

    Notes
    -----
    The best law has the largest mutual information of label and output under the prior, mixed with
    10 % of the uniform distribution. That is what a learner by likelihood gains from the row (see
    docs/concepts/laws.md); the mixture is for models that are surer than they are right. All three
    laws distinguish all classes, a split since each row has a set of its own. Of equal laws the
    first of rr, subset, split is chosen. Output: packed sets, (n, ceil(K/8)) uint8, a label as
    a set of one. Side: choice (n,) uint8 (0 rr, 1 split, 2 subset), size (n,) int32, set (n,
    ceil(K/8)) uint8 packed: the split, or all classes for other laws.
    Cost: one sort of the prior a row and some 80 sums of it, 3 K / 64 public words for a split, and
    the chosen law's words.
    """

    name: ClassVar[str] = "auto"
    kind: ClassVar = "set"
    uses_prior: ClassVar[bool] = True
    draws_side: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._parts

    @cached_property
    def _parts(self) -> tuple[Law, ...]:
        """The laws by code."""
        return tuple(
            law(self.n_classes, self.epsilon)
            for law in (RandomizedResponse, PriorSplit, SubsetSelection)
        )

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        array = as_prior(prior, self.n_classes)
        stream = PlainWords(np.arange(len(array))) if words is None else words
        side: dict[str, Array] = {
            name: np.empty((len(array), *shape), dtype)
            for name, (dtype, shape) in self.layout().items()
            if name != "output"
        }
        # A prior that all rows share is scored once; a split still draws a set for each row.
        one = self._chosen(array[:1]) if array.strides[0] == 0 and len(array) else None
        if one is not None and (one[1] != SPLIT).all():
            found = self._settled(*one, stream.select(np.arange(1)))
            return {
                name: np.broadcast_to(value[0], (len(array), *value.shape[1:]))
                for name, value in found.items()
            }
        for rows in prior_chunks(len(array), self.n_classes, _ROWS):
            n = rows.stop - rows.start
            weights, choice = (
                self._chosen(array[rows])
                if one is None
                else (np.repeat(one[0], n, axis=0), np.repeat(one[1], n))
            )
            for name, value in self._settled(
                weights, choice, stream.select(np.arange(rows.start, rows.stop))
            ).items():
                side[name][rows] = value
        return side

    def _chosen(self, prior: Array) -> tuple[Floats, NDArray[np.uint8]]:
        """Choose the law of each row by its prior alone; return the quantised weights (n, K) and
        the codes (n,)."""
        k, weights = self.n_classes, quantise(prior)
        in_order = np.sort(weights, axis=1)[:, ::-1]
        ordered = in_order * ((1.0 - _MIXED) / weights.sum(axis=1, keepdims=True)) + _MIXED / k
        scores = np.full((len(weights), len(self._parts)), -1.0)
        scores[:, RR] = on_grid(response_scores(ordered, self.epsilon), self.epsilon)
        if self._subset_size > 1:  # sets of one class are randomized response
            scores[:, SUBSET] = on_grid(
                subset_scores(ordered, self.epsilon, self._subset_size), self.epsilon
            )
        # No split has more information than one of half the mass. Rows where another law is better
        # than that need no estimate.
        most = on_grid(split_scores(np.array(0.5), self.epsilon), self.epsilon)
        rows = np.flatnonzero((scores.max(axis=1) < most) & (k > 2))
        scores[rows, SPLIT] = on_grid(
            even_split_scores(in_order[rows], self.epsilon, _MIXED), self.epsilon
        )
        return weights, _PREFERRED[scores[:, _PREFERRED].argmax(axis=1)].astype(np.uint8)

    def _settled(
        self, weights: Floats, choice: NDArray[np.uint8], words: Words
    ) -> dict[str, Array]:
        inside = np.ones(weights.shape, dtype=np.bool_)
        rows = np.flatnonzero(choice == SPLIT)
        if len(rows):
            # A row keeps its own stream of words, so its question does not depend on the laws of
            # other rows.
            inside[rows] = even_half(weights[rows], words.select(rows))
        size = np.where(choice == SUBSET, self._subset_size, inside.sum(axis=1)).astype(np.int32)
        return {"choice": choice, "size": size, "set": pack_sets(inside)}

    @property
    def _subset_size(self) -> int:
        law = self._parts[SUBSET]
        assert isinstance(law, SubsetSelection)
        return law.set_size

    def _groups(self, side: Side) -> Iterator[tuple[int, NDArray[np.intp], dict[str, Array]]]:
        """Yield (code, positions of its rows, their side as this law reads it) for each law that
        some row uses."""
        for code in range(len(self._parts)):
            rows = np.flatnonzero(side["choice"] == code)
            if len(rows):
                yield (
                    code,
                    rows,
                    _side_of(code, {name: value[rows] for name, value in side.items()}),
                )

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> Bits:
        out = np.empty((len(labels), set_bytes(self.n_classes)), dtype=np.uint8)
        for code, rows, own in self._groups(side):
            law = self._parts[code]
            drawn = law.sample(labels[rows], words.select(rows), own)
            out[rows] = drawn if law.kind == "set" else single_sets(drawn, self.n_classes)
        return out

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        result = np.empty((len(outputs), self.n_classes))
        for code, rows, own in self._groups(side):
            result[rows] = self._parts[code].log_likelihood(self._native(code, outputs[rows]), own)
        return result

    def _native(self, code: int, outputs: Bits) -> NDArray[np.uint8] | NDArray[np.int32]:
        """Convert packed sets to the outputs of the law with this code."""
        if self._parts[code].kind == "set":
            return outputs
        return np.asarray(unpack_sets(outputs, self.n_classes).argmax(axis=1), dtype=np.int32)

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        own, other = np.empty(len(outputs)), np.empty(len(outputs))
        for code, rows, part in self._groups(side):
            own[rows], other[rows] = self._parts[code].inclusion(outputs[rows], part)
        return own, other

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        code = int(side_row["choice"])
        return self._parts[code].profile(_side_of(code, side_row))

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        packed = (np.dtype(np.uint8), (set_bytes(self.n_classes),))
        return {
            "output": packed,
            "choice": (np.dtype(np.uint8), ()),
            "size": (np.dtype(np.int32), ()),
            "set": packed,
        }

    def table(self, side_row: Side) -> Table:
        code = int(side_row["choice"])
        table = self._parts[code].table(_side_of(code, side_row))
        if self._parts[code].kind == "set":
            return table
        return Table(table.outputs[:, None] == np.arange(self.n_classes), table.values, table.index)

    def _information(self, prior: Floats, side: Side) -> Floats:
        result = np.empty(len(prior))
        for code, rows, own in self._groups(side):
            result[rows] = self._parts[code]._information(prior[rows], own)
        return result


def _side_of(code: int, side: Side) -> dict[str, Array]:
    """Rename the side's arrays for the law with this code."""
    return {"split": side["set"]} if code == SPLIT else {}


# Scores of AutoLaw: the mutual information of label and output under a prior
# -------------------------------------------------------------
#
# The scores of randomized response and of a split are exact. That of subset selection treats the
# six heaviest classes exactly, and the others by a second-order term around their mean: exact
# information would need a sum over all sets. For K <= 12 and epsilon from 1e-6 to 20 no score is
# off by more than 5 % (tested against matrices); under a uniform prior every score is exact. Below
# epsilon = 2^-10 a score is the leading term of its expansion, because the difference of logarithms
# has no digits left.


TRIES = 3
"""Number of random sets of which a split takes the one nearest to half the mass. With more, sets
would be a little more informative but less varied, and some pairs of classes rarely separated."""

_DRAWS = 24  # splits from which their mean information is estimated
_PATTERN_HEAD = 6  # heaviest classes whose 2^6 patterns of inclusion are enumerated
_PER_UNIT = 2.0**20  # grid on which scores are compared
# below this epsilon a score is its leading term, epsilon^2 times a closed form, right to one part
# in a thousand
SMALL = 2.0**-10


def on_grid(scores: Floats, epsilon: float) -> Floats:
    """Round scores to a grid of 2^-20 nats, times epsilon^2 below epsilon = 1, where information is
    of that order."""
    # Machines whose logarithms differ in the last bit must choose the same law: the side is a part
    # of the request.
    return np.asarray(np.rint(scores / min(1.0, epsilon) ** 2 * _PER_UNIT))


def response_scores(prior: Floats, epsilon: float) -> Floats:
    """Compute the information of randomized response on all classes, in nats: (n,) from a prior (n,
    K), whose rows sum to 1."""
    k = prior.shape[1]
    if epsilon < SMALL:
        return np.asarray(epsilon**2 / (2.0 * k) * (1.0 - (prior * prior).sum(axis=1)))
    a, b = (part / WORD for part in response_words(epsilon, k))
    chance = b + (a - b) * prior
    return np.asarray(
        a * np.log(a) + (k - 1) * b * np.log(b) - (chance * np.log(chance)).sum(axis=1)
    )


@lru_cache(maxsize=256)
def _patterns(n_classes: int, size: int) -> tuple[Floats, Floats, Floats]:
    """List which of the h heaviest classes a uniform `size`-subset holds, (patterns, h), with
    probability and number of other classes."""
    h = min(_PATTERN_HEAD, n_classes)
    patterns = np.array(list(product((0.0, 1.0), repeat=h)))
    others = size - patterns.sum(axis=1)
    possible = (others >= 0) & (others <= n_classes - h)
    patterns, others = patterns[possible], others[possible]
    chance = np.ones(len(patterns))
    for i in range(h):
        before = patterns[:, :i].sum(axis=1)
        left = size - before
        chance *= np.where(patterns[:, i] > 0, left, n_classes - i - left) / (n_classes - i)
    return patterns, chance, others


def subset_scores(ordered: Floats, epsilon: float, size: int) -> Floats:
    """Estimate the information of subset selection, in nats: (n,); -inf at size 1, which is
    randomized response."""
    # With R the sampler's ratio and A a uniform subset of `size` classes, X = 1 + (R - 1) p(A): I =
    # (R ln R size / K - E[X ln X]) / E[X]. Patterns of the heaviest classes are enumerated. Given a
    # pattern, X has the mean and variance of a sample without replacement from the other classes,
    # and E[X ln X] is that of a log-normal with these two moments (to second order, of any
    # distribution).
    k = ordered.shape[1]
    if size == 1:
        return np.full(len(ordered), -np.inf)
    if epsilon < SMALL:
        return np.asarray(
            epsilon**2
            / 2.0
            * (1.0 - (ordered * ordered).sum(axis=1))
            * (size * (k - size) / (k * (k - 1.0)))
        )
    m = inside_words(epsilon, k, size)
    ratio = np.exp(log_ratio(m * (k - size), (WORD - m) * size))
    patterns, chance, others = _patterns(k, size)
    h = patterns.shape[1]
    tail, rest = ordered[:, h:], k - h
    mean = tail.mean(axis=1, keepdims=True) if rest else np.zeros((len(ordered), 1))
    variance = tail.var(axis=1, keepdims=True) if rest else np.zeros((len(ordered), 1))
    middle = 1.0 + (ratio - 1.0) * (ordered[:, :h] @ patterns.T + mean * others)
    spread = (ratio - 1.0) ** 2 * variance * (others * (rest - others) / max(rest - 1, 1))
    expected = (middle * (np.log(middle) + 0.5 * np.log1p(spread / (middle * middle)))) @ chance
    share = size / k
    return np.asarray((ratio * np.log(ratio) * share - expected) / (1.0 + (ratio - 1.0) * share))


def split_scores(mass: Floats, epsilon: float) -> Floats:
    """Compute the information of a split of this prior mass, in nats, for an array of any shape."""
    if epsilon < SMALL:
        return np.asarray(epsilon**2 / 2.0 * mass * (1.0 - mass))
    return split_information(mass, epsilon)


def nearest_half(inside: Floats, total: Floats) -> NDArray[np.intp]:
    """Find the set, along the last axis of `inside`, whose weight is nearest to half the total; of
    equal ones the first."""
    return np.asarray(np.abs(2.0 * inside - total[..., None]).argmin(axis=-1))


@lru_cache(maxsize=256)
def _trials(n_classes: int) -> Floats:
    """Make the fixed pseudorandom sets of `even_split_scores`: (TRIES x _DRAWS, K) of 0 and 1."""
    words = np.stack(
        [hashed(np.arange(TRIES * _DRAWS), i, 1) for i in range(-(-n_classes // 64))], axis=1
    ).astype("<u8", copy=False)
    return np.unpackbits(words.view(np.uint8), axis=1, count=n_classes, bitorder="little").astype(
        np.float64
    )


def even_split_scores(weights: Floats, epsilon: float, mixed: float) -> Floats:
    """Estimate the expected information of a split that `even_half` draws, in nats: (n,).

    weights : (n, K) whole numbers, each row sorted. The label follows them, mixed with a share
    `mixed` of the uniform distribution.
    """
    trials, total = _trials(weights.shape[1]), weights.sum(axis=1)
    inside = (weights @ trials.T).reshape(len(weights), _DRAWS, TRIES)
    number = np.broadcast_to(trials.sum(axis=1).reshape(_DRAWS, TRIES), inside.shape)
    chosen = nearest_half(inside, np.broadcast_to(total[:, None], inside.shape[:2]))[:, :, None]
    mass, count = (np.take_along_axis(part, chosen, axis=2)[:, :, 0] for part in (inside, number))
    return np.asarray(
        split_scores(
            (1.0 - mixed) * mass / total[:, None] + mixed * count / weights.shape[1], epsilon
        ).mean(axis=1)
    )


def split_information(mass: Floats, epsilon: float) -> Floats:
    """Compute the information of a split of this prior mass, in nats, at any epsilon."""
    m = inside_words(epsilon, 2, 1)
    truth, lie = m / WORD, (WORD - m) / WORD
    rest, lift = 1.0 - mass, (2 * m - WORD) / WORD
    yes, no = mass * truth + rest * lie, mass * lie + rest * truth
    weight, gap, out = (
        np.stack([mass, rest, mass, rest]),
        np.stack([rest, -mass, -rest, mass]) * lift,
        np.stack([yes, yes, no, no]),
    )
    chance = np.array([truth, lie, lie, truth]).reshape(4, *(1 for _ in mass.shape))
    return np.asarray(
        np.maximum(0.0, (weight * chance * log_quotient(chance, out, gap)).sum(axis=0))
    )
