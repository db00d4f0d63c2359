# SPDX-License-Identifier: Apache-2.0
"""PriorBins: randomized response over bins of ordered classes, the best bins for each row's own
prior.

The best bins of a row are found by dynamic programming over some places where the prior's mass can
be cut. Each criterion is a sum over the bins, so this finds the best of all choices of these
places. The places are at quantiles with a random offset: rows of one prior get bins that differ,
and no two classes with mass between them are together in all rows.

References
----------
Kairouz, Oh and Viswanath 2016, "Extremal mechanisms for local differential privacy": randomized
response has the most information in the low privacy regime, a bit in the high one. Ghazi et al.
2023, "Regression with label differential privacy", for bins by dynamic programming.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.laws._base import Cell, Law, Side, Table
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
    log_ratio,
    pack_sets,
    prior_chunks,
    quantise,
    set_bytes,
    unit,
    unpack_sets,
)
from labeldp.laws._response import respond_to_all, response_profile, response_words
from labeldp.laws._subset import LOST, SMALL, on_grid

Criterion = Literal["squared_error", "location", "information"]
CRITERIA = ("squared_error", "location", "information")
MOST_BINS = 8  # a number's mean given one of 8 bins explains 97 % of a normal prior's variance
_PLACES = 16  # at which a prior may be cut, one more than the parts between them
_ROWS = 1024  # rows whose bins are searched at a time: their tables fit in the cache
_NAN = float("nan")


@dataclass(frozen=True)
class PriorBins(Law):
    """Release the label's bin by randomized response over bins of the row's own, the best ones for
    its prior. For numbers in later stages.

    Parameters
    ----------
    n_classes : int
        K, at least 2; their order matters.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label and any bins.
    criterion : {"squared_error", "location", "information"}
        What the number of bins and their ends are best for, under the row's prior. "squared_error"
        (default): the least expected squared error of the label's mean given the output. For a
        normal prior this is the most Fisher information about the row's location. "location": the
        most such information under any prior, if an increasing function of the label is normal
        around the location; rare, far labels count less. "information": the most mutual information
        of label and output; more bins.

    See Also
    --------
    Threshold : Always two bins, those with the most information.
    AutoLaw : For classes without an order.

    Notes
    -----
    With m bins the label's own is released with probability e^eps / (e^eps + m - 1), each other
    with 1 / (e^eps + m - 1). The best m is taken, 2 to 8; at small epsilon it is 2, one threshold.
    The bins begin at the best ones of 16 places, at quantiles of the prior with an offset that
    public words draw, or at the best ones of half of these, if they are no more than 10 % worse:
    many questions tell more of a distribution than one. Some rows, at a cost of at most 10 % of the
    criterion in expectation, are asked about any threshold instead: a model may be surer than it is
    right. A row without a prior is asked about bins of a flat one. Output: the classes of the bin,
    packed, (n, ceil(K/8)) uint8. Side: starts, (n, ceil(K/8)) uint8, packed: the first class of
    each bin. Unbiased weights only where each class is a bin. Cost: one word a row; for the bins 5
    public words, O(K), and some ten thousand operations.

    Examples
    --------
    >>> import numpy as np
    >>> law, prior = PriorBins(9, 3.0), np.exp(-np.abs(np.arange(9) - 3.0))
    >>> law.outputs(prior).astype(int)
    array([[1, 1, 1, 0, 0, 0, 0, 0, 0],
           [0, 0, 0, 1, 0, 0, 0, 0, 0],
           [0, 0, 0, 0, 1, 1, 1, 1, 1]])
    """

    name: ClassVar[str] = "prior-bins"
    parameter: ClassVar[str] = "criterion"
    kind: ClassVar = "set"
    uses_prior: ClassVar[bool] = True
    draws_side: ClassVar[bool] = True

    criterion: Criterion = "squared_error"

    def __post_init__(self) -> None:
        super().__post_init__()
        spellings = ", ".join(f"{self.name}:{each}" for each in CRITERIA)
        _validate.one_of(
            CRITERIA, criterion=self.criterion, fix=f"As the name of a law: {spellings}."
        )
        response_words(self.epsilon, self._most)

    @property
    def _most(self) -> int:
        return most_bins(self.epsilon, self.n_classes)

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        array = as_prior(prior, self.n_classes)
        stream = PlainWords(np.arange(len(array))) if words is None else words
        starts = np.empty((len(array), set_bytes(self.n_classes)), np.uint8)
        for rows in prior_chunks(len(array), self.n_classes, _ROWS):
            chosen = drawn_starts(
                quantise(array[rows]), stream.select(np.arange(rows.start, rows.stop)), self
            )
            starts[rows] = pack_sets(chosen)
        return {"starts": starts}

    def bins(self, side: Side) -> NDArray[np.int32]:
        """Number the bin of each class: (n, K) int32, counted from 0."""
        return (
            np.cumsum(
                unpack_sets(np.asarray(side["starts"]), self.n_classes), axis=1, dtype=np.int32
            )
            - 1
        )

    def counts(self, side: Side) -> NDArray[np.intp]:
        """Count the bins of each row: (n,)."""
        return np.asarray(np.bitwise_count(np.asarray(side["starts"])).sum(axis=1), np.intp)

    def _sized(self, side: Side) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Yield each number of bins that occurs, and its rows."""
        counts = self.counts(side)
        return ((int(m), np.flatnonzero(counts == m)) for m in np.unique(counts))

    def chances(self, side: Side) -> tuple[Floats, Floats]:
        """Compute the probabilities of a label's own bin and of each other one: (own, other), each
        (n,) float64."""
        own, other = np.empty(len(side["starts"])), np.empty(len(side["starts"]))
        for m, rows in self._sized(side):
            own[rows], other[rows] = (words / WORD for words in response_words(self.epsilon, m))
        return own, other

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> Bits:
        out = np.empty((len(labels), set_bytes(self.n_classes)), np.uint8)
        places = np.arange(self.n_classes)
        for m, rows in self._sized(side):
            inside = self.bins({"starts": side["starts"][rows]})
            # The bin is found by comparing the label with every class, so that the same memory is
            # accessed for any label.
            own = np.where(places == labels[rows][:, None], inside, 0).sum(axis=1, dtype=np.int32)
            drawn = respond_to_all(own, words.select(rows).take(0), self.epsilon, m)
            out[rows] = pack_sets(inside == drawn[:, None])
        return out

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        lacks = np.empty(len(outputs))
        for m, rows in self._sized(side):
            a, b = response_words(self.epsilon, m)
            lacks[rows] = log_ratio(b, a)
        return np.where(unpack_sets(outputs, self.n_classes), 0.0, lacks[:, None])

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        own, other = self.chances(side)
        single = self.counts(side) == self.n_classes  # each class is a bin: randomized response
        return np.where(single, own, _NAN), np.where(single, other, _NAN)

    def possible(self, outputs: Array, side: Side) -> NDArray[np.bool_]:
        starts, drawn, every = side["starts"], np.asarray(outputs), full_set(self.n_classes)
        bins = self.counts(side)
        asked = (
            (starts[:, 0] & 1 == 1)
            & (starts & ~every == 0).all(axis=1)
            & (bins >= 2)
            & (bins <= self._most)
        )
        # A class is in the output if the class before it is, unless a bin starts there.
        after = drawn << np.uint8(1)
        after[:, 1:] |= drawn[:, :-1] >> np.uint8(7)
        whole = ((drawn ^ after) & every & ~starts == 0).all(axis=1)
        one = np.bitwise_count(drawn & starts).sum(axis=1) == 1
        return np.asarray(super().possible(outputs, side) & asked & whole & one)

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        m = int(self.counts({"starts": side_row["starts"][None]})[0])
        return response_profile(self.epsilon, m, m)

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        packed = (np.dtype(np.uint8), (set_bytes(self.n_classes),))
        return {"output": packed, "starts": packed}

    def table(self, side_row: Side) -> Table:
        inside = self.bins({"starts": side_row["starts"][None]})[0]
        outputs = inside == np.arange(inside[-1] + 1)[:, None]
        values = tuple(
            Fraction(words, WORD) for words in response_words(self.epsilon, len(outputs))
        )
        return Table(outputs, values, np.where(outputs.T, np.uint8(0), np.uint8(1)))


@lru_cache(maxsize=256)
def most_bins(epsilon: float, n_classes: int) -> int:
    """Compute the largest number of bins that is tried: up to 2 + 2 e^(eps / 2), beyond which more
    tell less."""
    ratio = exp_floor(min(epsilon, 10.0))
    # exactly, so that all machines agree
    return max(m for m in range(2, min(n_classes, MOST_BINS) + 1) if (m - 2) ** 2 <= 4 * ratio)


# Finding the bins
# --------------------------------------------------------------------------------------------------


def drawn_starts(weights: Floats, words: Words, law: PriorBins) -> NDArray[np.bool_]:
    """Draw the bins of each row: (n, K) bool, whether a bin starts at the class.

    weights : (n, K) whole numbers below 2^32, from `quantise`; words : public words of the n rows.
    """
    n, k = weights.shape
    # sums of whole numbers, so exact
    below = np.concatenate([np.zeros((n, 1)), np.cumsum(weights, axis=1)], axis=1)
    moment = np.concatenate([np.zeros((n, 1)), np.cumsum(weights * np.arange(k), axis=1)], axis=1)
    places = _places(below, unit(words.take(0)))
    gains = _Gains(below, moment, places, law)
    best, count = np.full(n, -np.inf), np.zeros(n, np.intp)
    chosen = np.zeros((n, law._most - 1), np.intp)
    for m in range(2, law._most + 1):
        score, cuts = _best_cuts(gains.of(m), m)
        better = np.flatnonzero(score > best)
        best[better], count[better] = score[better], m
        chosen[better, : m - 1] = cuts[better]
    starts = np.zeros((n, k), np.bool_)
    for m in np.unique(count):
        rows = np.flatnonzero(count == m)
        cuts = chosen[rows, : m - 1]
        # Rows of one prior get different bins: the best ones of some of the places, at random, if
        # these are nearly as good.
        score, others = _best_cuts(
            np.where(
                _some_pairs(words.select(rows), places.shape[1], m), gains.of(m)[rows], -np.inf
            ),
            m,
        )
        near = np.flatnonzero(score >= (1.0 - LOST) * best[rows])
        cuts[near] = others[near]
        starts[rows[:, None], np.take_along_axis(places[rows], cuts, axis=1)] = True
    # Sometimes any threshold is asked: classes between cuts that the prior finds useless would else
    # never be separated.
    other = 1 + equal_cell(words.take(1), np.uint64(k - 1))
    asked = np.stack([np.zeros(n, np.intp), other.astype(np.intp), np.full(n, k)], axis=1)
    alone = _Gains(below, moment, asked, law).of(2)
    lost = best - (alone[:, 0, 1] + alone[:, 1, 2])
    any_one = np.flatnonzero(unit(words.take(2)) * lost <= LOST * best)
    starts[any_one] = np.arange(k) == other[any_one, None]
    starts[:, 0] = True
    return starts


def _some_pairs(words: Words, size: int, m: int) -> NDArray[np.bool_]:
    """Keep each inner place at even odds, or at one in four for a single cut; mark the pairs of
    kept places: (n, P, P)."""
    bits = words.take(3) & words.take(4) if m == 2 else words.take(3)
    kept = (bits[:, None] >> np.arange(size, dtype=np.uint64)) & np.uint64(1) == 1
    kept[:, [0, -1]] = True
    return np.asarray(kept[:, :, None] & kept[:, None, :])


def _places(below: Floats, offset: Floats) -> NDArray[np.intp]:
    """Find the class before which each row's prior may be cut: (n, _PLACES + 1), from 0 to K, not
    decreasing."""
    n, k = len(below), below.shape[1] - 1
    if k <= _PLACES:
        return np.broadcast_to(np.arange(k + 1), (n, k + 1))
    wanted = below[:, -1:] * ((np.arange(1, _PLACES) - 0.5 + offset[:, None]) / _PLACES)
    # the first class up to which there is as much mass
    after = (below[:, 1:, None] < wanted[:, None, :]).sum(axis=1) + 1
    high, low = (np.take_along_axis(below, at, axis=1) for at in (after, after - 1))
    inner = np.clip(np.where(high - wanted <= wanted - low, after, after - 1), 1, k - 1)
    return np.concatenate([np.zeros((n, 1), np.intp), inner, np.full((n, 1), k)], axis=1)


class _Gains:
    """What a bin from place i to place j adds to the criterion, for m bins: (n, P, P), rounded so
    that machines agree."""

    def __init__(
        self, below: Floats, moment: Floats, places: NDArray[np.intp], law: PriorBins
    ) -> None:
        below, moment = (
            np.take_along_axis(below, places, axis=1),
            np.take_along_axis(moment, places, axis=1),
        )
        self.law, self.some = law, _between(places) > 0
        mass, moment = below / below[:, -1:], moment / below[:, -1:]
        # How fast the mass below moves: with the location of a normal distribution, or with the
        # mean, where the prior is tilted.
        moved = (
            _densities(mass)
            if law.criterion == "location"
            else (moment - mass * moment[:, -1:]) / (law.n_classes - 1)
        )
        self.mass, self.score = _between(mass), _between(moved)

    def of(self, m: int) -> Floats:
        a, b = (words / WORD for words in response_words(self.law.epsilon, m))
        epsilon = self.law.epsilon
        chance = b + (a - b) * self.mass
        if self.law.criterion != "information":
            found = (
                ((a - b) * self.score) ** 2
                / chance
                * (1.0 if self.law.criterion == "location" else _FINER)
            )
        elif epsilon < SMALL:
            found = epsilon**2 / (2.0 * m) * (1.0 / m - self.mass**2)
        else:
            found = (a * np.log(a) + (m - 1) * b * np.log(b)) / m - chance * np.log(
                np.maximum(chance, 1e-300)
            )
        return np.where(self.some, on_grid(found, epsilon), -np.inf)


def _densities(mass: Floats) -> Floats:
    """Compute the density of a normal distribution at the quantiles of this mass, as a share of its
    largest one."""
    from scipy.special import ndtri  # here, since a machine that only trains may lack it

    return np.asarray(np.exp(-0.5 * ndtri(mass) ** 2))


_FINER = 2.0**12  # squared errors are a small share of the squared range


def _between(sums: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(sums[:, None, :] - sums[:, :, None])


def _best_cuts(gains: Floats, m: int) -> tuple[Floats, NDArray[np.intp]]:
    """Divide each row's places into m bins of the largest sum: the sum (n,), and the inner cuts (n,
    m - 1) as positions of places."""
    n, last = len(gains), gains.shape[1] - 1
    value, steps = gains[:, 0], []
    for _ in range(m - 2):
        total = value[:, :, None] + gains
        steps.append(total.argmax(axis=1))
        value = np.take_along_axis(total, steps[-1][:, None], axis=1)[:, 0]
    total = value + gains[:, :, last]
    cuts = [total.argmax(axis=1)]
    for step in reversed(steps):
        cuts.append(step[np.arange(n), cuts[-1]])
    return total.max(axis=1), np.stack(cuts[::-1], axis=1)
