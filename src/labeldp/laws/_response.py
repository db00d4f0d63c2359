# SPDX-License-Identifier: Apache-2.0
"""Laws that release a label: RandomizedResponse, RRTopK and RRWithPrior, all randomized response on
a candidate set.

One uniform word r decides for each row. With k candidates and E = e^epsilon rounded down, let b =
ceil(2^64 / (E + k - 1)) and a = 2^64 - (k - 1) b. If r < a, a label that is a candidate is kept;
otherwise number floor((r - a) / b) of the other k - 1 candidates is released. For a label outside
the candidates, candidate j with floor(j 2^64 / k) <= r < floor((j + 1) 2^64 / k) is released. Every
probability is a whole number over 2^64, and a / b <= E.

References
----------
Warner 1965, "Randomized response"; Ghazi, Golowich, Kumar, Manurangsi and Zhang 2021, "Deep
learning with label differential privacy" (NeurIPS), Algorithms 1 and 2.
"""

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.laws._base import MAX_CELLS, Cell, Law, Side, Table
from labeldp.laws._exact import (
    TOP,
    U64,
    WORD,
    Array,
    Bits,
    Floats,
    Words,
    by_chunks,
    checked_prior,
    equal_cell,
    exp_floor,
    heaviest,
    log_quotient,
    log_ratio,
    pack_columns,
    pack_sets,
    quantise,
    select_members,
    set_bytes,
    set_sizes,
    sets_contain,
    unpack_sets,
    whole_above,
    whole_below,
)
from labeldp.laws._matrix import WithoutSide

_NAN = float("nan")


def response_profile(epsilon: float, n_classes: int, k: int) -> tuple[Cell, ...]:
    """List the cells of randomized response on k candidates of n_classes classes."""
    a, b = response_words(epsilon, k)
    # If 2^64 is no multiple of k, some outputs of a label outside have one word more. The profile
    # lists them apart, so that it is exact.
    wide = WORD % k
    found = [("candidate", "kept", a, 1), ("candidate", "other", b, k - 1)]
    if k < n_classes:
        found += [
            ("outside", "wide", WORD // k + 1, wide),
            ("outside", "narrow", WORD // k, k - wide),
        ]
    return tuple(
        Cell(label, "candidate", relation, Fraction(p, WORD), count)
        for label, relation, p, count in found
        if count
    )


def response_table(epsilon: float, n_classes: int, inside: NDArray[np.bool_]) -> Table:
    """Compute the table of randomized response on the candidates, which `inside`, (K,) bool,
    marks."""
    outputs = np.flatnonzero(inside).astype(np.int32)
    k = len(outputs)
    if n_classes * k > MAX_CELLS:
        raise InvalidInput(
            f"Expected a matrix of at most {MAX_CELLS} cells, got {n_classes} x {k}. Use profile or"
            " log_likelihood instead."
        )
    a, b = response_words(epsilon, k)
    values = tuple(Fraction(p, WORD) for p in (a, b, WORD // k, WORD // k + 1))
    edges = [j * WORD // k for j in range(k + 1)]
    outer = np.array([2 + (edges[j + 1] - edges[j] > WORD // k) for j in range(k)], dtype=np.uint8)
    index = np.where(inside[:, None], np.uint8(1), outer)
    index[outputs, np.arange(k)] = 0
    return Table(outputs, values, index)


def response_information(
    epsilon: float, prior: Floats, inside: NDArray[np.bool_], size: NDArray[np.integer]
) -> Floats:
    """Compute the mutual information in nats of randomized response on each row's candidates: (n,).
    Cost: O(n K).

    prior : (n, K), rows sum to 1; inside : (n, K) bool; size : (n,), number of candidates.
    """
    # Differences of probabilities come from the integers: for a small epsilon the doubles of a, b
    # and 1 / k agree in most digits.
    a, b, lift, drop = np.empty((4, len(prior), 1))  # kept, other, kept - other, 1 / k - other
    for k in map(int, np.unique(size)):
        kept, other = response_words(epsilon, k)
        a[size == k, 0], b[size == k, 0] = kept / WORD, other / WORD
        lift[size == k, 0], drop[size == k, 0] = (
            (kept - other) / WORD,
            (WORD - k * other) / (k * WORD),
        )
    within = np.where(inside, prior, 0.0)
    mass = within.sum(axis=1, keepdims=True)
    c = 1.0 / size[:, None]
    # sums may round to just below 0
    beside, outside = np.maximum(mass - within, 0.0), np.maximum(1.0 - mass, 0.0)
    out = within * a + beside * b + outside * c
    rise = lift - drop  # a - 1 / k
    gaps = (
        beside * lift + outside * rise,
        -within * lift - outside * drop,
        beside * drop - within * rise,
    )
    cases = ((within, a, gaps[0]), (beside, b, gaps[1]), (outside, c, gaps[2]))
    terms = sum(w * p * log_quotient(p, out, gap) for w, p, gap in cases)
    return np.asarray(np.maximum(0.0, np.where(inside, terms, 0.0).sum(axis=1)))


@dataclass(frozen=True)
class RandomizedResponse(WithoutSide):
    """Keep the label with probability e^eps / (e^eps + K - 1), else release one of the other
    classes, all equally likely.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label. Above epsilon = 40 the 64-bit
        sampler is more private than claimed.

    See Also
    --------
    SubsetSelection : More informative with many classes.
    RRWithPrior : Keeps the label more often, given a prior.

    Notes
    -----
    Output: a label, (n,) int32. Side: none. Cost: one word a row.

    References
    ----------
    Warner 1965, "Randomized response"; Ghazi et al. 2021, "Deep learning with label differential
    privacy", equation 1.

    Examples
    --------
    >>> RandomizedResponse(4, 1.0986122886681098).matrix().round(6)[0]
    array([0.5     , 0.166667, 0.166667, 0.166667])
    """

    name: ClassVar[str] = "rr"
    kind: ClassVar = "label"

    def __post_init__(self) -> None:
        super().__post_init__()
        response_words(self.epsilon, self.n_classes)

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> NDArray[np.int32]:
        return respond_to_all(labels, words.take(0), self.epsilon, self.n_classes)

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        a, b = response_words(self.epsilon, self.n_classes)
        return np.where(self.members(outputs, side), 0.0, log_ratio(b, a))

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        a, b = response_words(self.epsilon, self.n_classes)
        return np.full(len(outputs), a / WORD), np.full(len(outputs), b / WORD)

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        return response_profile(self.epsilon, self.n_classes, self.n_classes)

    def table(self, side_row: Side) -> Table:
        return response_table(self.epsilon, self.n_classes, np.ones(self.n_classes, dtype=np.bool_))

    def _information(self, prior: Floats, side: Side) -> Floats:
        every = np.ones_like(prior, dtype=np.bool_)
        return response_information(self.epsilon, prior, every, np.full(len(prior), self.n_classes))


@dataclass(frozen=True)
class _OnCandidates(Law):
    """Base of RRTopK and RRWithPrior, whose side is {"candidates": packed set, "size": k}."""

    kind: ClassVar = "label"
    uses_prior: ClassVar[bool] = True

    @abstractmethod
    def _decide(self, prior: Array) -> dict[str, Array]:
        """Choose the candidates of some rows of a prior."""

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        return by_chunks(prior, self.n_classes, self.layout(), self._decide)

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> NDArray[np.int32]:
        return respond(
            labels, words.take(0), side["candidates"], side["size"], self.epsilon, self.n_classes
        )

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        inside, size = unpack_sets(side["candidates"], self.n_classes), side["size"]
        candidate, outside = np.empty((2, len(outputs), 1))
        for k in np.flatnonzero(np.bincount(size)):
            a, b = response_words(self.epsilon, int(k))
            # The probabilities of a label outside differ by one word in 2^64 / k, which doubles
            # cannot represent up to k = 2048.
            candidate[size == k], outside[size == k] = log_ratio(b, a), log_ratio(WORD // int(k), a)
        result = np.where(inside, candidate, outside)
        np.put_along_axis(result, np.asarray(outputs, dtype=np.int64)[:, None], 0.0, axis=1)
        return result

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        a, b = response_words(self.epsilon, self.n_classes)
        every = side["size"] == self.n_classes
        return np.where(every, a / WORD, _NAN), np.where(every, b / WORD, _NAN)

    def told_apart(self, side: Side) -> Bits | None:
        # A single candidate is released whatever the label is, so it distinguishes nothing.
        return np.asarray(np.bitwise_or.reduce(side["candidates"][side["size"] > 1], axis=0))

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        return response_profile(self.epsilon, self.n_classes, int(side_row["size"]))

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        packed = (np.dtype(np.uint8), (set_bytes(self.n_classes),))
        return {
            "output": (np.dtype(np.int32), ()),
            "candidates": packed,
            "size": (np.dtype(np.int32), ()),
        }

    def table(self, side_row: Side) -> Table:
        return response_table(
            self.epsilon,
            self.n_classes,
            unpack_sets(side_row["candidates"][None], self.n_classes)[0],
        )

    def _information(self, prior: Floats, side: Side) -> Floats:
        return response_information(
            self.epsilon, prior, unpack_sets(side["candidates"], self.n_classes), side["size"]
        )


@dataclass(frozen=True)
class RRTopK(_OnCandidates):
    """Release a label by randomized response on the k heaviest classes of the row's prior; for a
    label outside them, a uniform one.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label. With k = 1 the output is a
        constant.
    k : int
        Number of candidates, 1 to K. Of classes of equal prior the first ones are candidates.

    Notes
    -----
    Output: a label, (n,) int32. Side: candidates (n, ceil(K/8)) uint8 packed, size (n,) int32.
    Cost: one word a row; O(K) a row for the candidates.

    References
    ----------
    Ghazi et al. 2021, "Deep learning with label differential privacy", Algorithm 1.
    """

    name: ClassVar[str] = "rr-top-k"
    parameter: ClassVar[str] = "k"

    k: int

    def __post_init__(self) -> None:
        super().__post_init__()
        k = _validate.integer(
            k=self.k, low=1, high=self.n_classes, fix="Pass the number of candidate classes."
        )
        object.__setattr__(self, "k", k)
        response_words(self.epsilon, k)

    def _decide(self, prior: Array) -> dict[str, Array]:
        weights = quantise(prior)
        size = np.full(len(weights), self.k, dtype=np.int32)
        edge = np.partition(weights, self.n_classes - self.k, axis=1)[:, self.n_classes - self.k]
        return {"candidates": pack_sets(heaviest(weights, size, edge)), "size": size}


@dataclass(frozen=True)
class RRWithPrior(_OnCandidates):
    """Release a label as RRTopK does, with the k of each row that maximises P[output = label] under
    the prior.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label.
    class_weight : tuple of K numbers, optional
        The value of keeping a label of each class, by which the prior is multiplied before the
        choice. Finite and above 0. None (default): all equal.

    Notes
    -----
    k maximises e^eps / (e^eps + k - 1) x (sum of the k largest priors): no eps-DP law has a larger
    P[output = label] (Theorem 3). Classes of equal prior become candidates together, and only if
    that is strictly better. Output and side as RRTopK. Cost: one word a row, and a few O(K) passes
    for the candidates.

    References
    ----------
    Ghazi et al. 2021, "Deep learning with label differential privacy", Algorithm 2 and Theorem 3.
    """

    name: ClassVar[str] = "rr-with-prior"

    class_weight: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        response_words(self.epsilon, self.n_classes)
        if self.class_weight is not None:
            weight = tuple(
                _validate.positive(class_weight=w, fix="Pass K finite weights above 0.")
                for w in self.class_weight
            )
            if len(weight) != self.n_classes:
                raise InvalidInput(
                    f"Expected {self.n_classes} class weights, one a class; got {len(weight)}."
                )
            object.__setattr__(self, "class_weight", weight)

    def _decide(self, prior: Array) -> dict[str, Array]:
        weight = None if self.class_weight is None else np.array(self.class_weight)
        candidates, size = best_candidates(prior, self.epsilon, weight)
        return {"candidates": candidates, "size": size}


# The sampler: one word a row
# --------------------------------------------------------------------------------------------------


Ints = NDArray[np.int32]

_ROWS = 1 << 15  # rows at a time, with a few buffers of 128 KiB


@lru_cache(maxsize=1 << 17)
def response_words(epsilon: float, k: int) -> tuple[int, int]:
    """Compute the number of words of 2^64 that keep a candidate, and that of each other candidate:
    (a, b).

    InvalidInput if k b > 2^64 (epsilon < k^2 / 2^64): the ratio of a label outside the k candidates
    to one inside would exceed e^epsilon. And if k b = 2^64: then all labels give the same outputs.
    """
    # b is rounded up, so a is rounded down: both bring a / b nearer to 1, and rounding never costs
    # privacy.
    b = whole_above(WORD / (exp_floor(epsilon) + k - 1))
    if k > 1 and k * b >= WORD:
        least = f"about {k * k / WORD:.1g} or more"
        raise InvalidInput(
            f"Expected an epsilon that 64-bit words can honour with {k} candidates ({least}), got"
            f" {epsilon!r}."
        )
    return WORD - (k - 1) * b, b


@lru_cache(maxsize=4096)
def inside_words(epsilon: float, n_classes: int, size: int) -> int:
    """Compute the number of words of 2^64 that release a set of `size` classes with the label;
    InvalidInput if epsilon is too small."""
    e = exp_floor(epsilon)
    # Rounded down, which makes sets with the label less likely, so nearer to uniform. At a tiny
    # epsilon rounding makes them as likely as the others, so that outputs tell nothing, or less
    # likely, even by more than e^epsilon: both are refused.
    m = whole_below(WORD * e * size / (e * size + n_classes - size))
    if m * (n_classes - size) <= (WORD - m) * size:
        least = n_classes / (size * WORD)
        raise InvalidInput(
            f"Expected an epsilon that 64-bit words can honour here (about {least:.1g} or more),"
            f" got {epsilon!r}."
        )
    return m


def respond(
    labels: NDArray[np.integer],
    r: U64,
    candidates: Bits,
    size: Ints,
    epsilon: float,
    n_classes: int,
) -> Ints:
    """Draw randomized response of each row on its packed candidate set."""
    if not (size.min(initial=1) >= 1 and np.array_equal(set_sizes(candidates), size)):
        raise InvalidInput(
            "Expected as many candidates as the side says, at least one in every row; the side was"
            " changed. Prepare it again."
        )
    last, step = _tables(epsilon, size, n_classes)
    # No branch and no look-up depends on a label: both outcomes, for a label inside and outside the
    # candidates, are computed for every row, and `where` chooses. So neither the time nor the use
    # of caches reveals a label.
    inside = sets_contain(candidates, labels, n_classes)
    y = labels.astype(np.int32, copy=False)
    keep = r <= last[size]
    other = np.where(keep, np.uint64(0), (r - last[size] - np.uint64(1)) // step[size]).astype(
        np.int32
    )
    outer = equal_cell(r, size.astype(np.uint64))
    below, above, cell = select_members(candidates, other, other + 1, outer)
    flipped = np.where(below < y, below, above)
    return np.where(inside, np.where(keep, y, flipped), cell).astype(np.int32, copy=False)


def _tables(epsilon: float, size: Ints, n_classes: int) -> tuple[U64, U64]:
    """Compute a - 1 (the last word that keeps) and b by number of candidates, for the sizes that
    occur."""
    last, step = np.zeros(n_classes + 1, dtype=np.uint64), np.ones(n_classes + 1, dtype=np.uint64)
    for k in np.flatnonzero(np.bincount(size)):
        a, b = response_words(epsilon, int(k))
        last[k], step[k] = a - 1, b
    return last, step


def respond_to_all(labels: NDArray[np.integer], r: U64, epsilon: float, n_classes: int) -> Ints:
    """Draw randomized response on all classes: the same outputs as those of `respond`, but
    faster."""
    # Counted from the top, r' = 2^64 - 1 - r lies in cell q = floor(r' / b), and number K - 2 - q
    # of the other classes is released; q > K - 2 keeps the label, by arithmetic without a branch
    # that time would reveal.
    b = np.uint64(response_words(epsilon, n_classes)[1])
    out = np.empty(len(r), dtype=np.int32)
    for start in range(0, len(r), _ROWS):
        rows = slice(start, start + _ROWS)
        y = labels[rows].astype(np.int32, copy=False)
        cell = ~r[rows] // b
        other = np.int32(n_classes - 2) - cell.astype(np.int32)
        other += other >= y
        out[rows] = other + (cell >= n_classes - 1) * (y - other)
    return out


# The candidates of RRWithPrior
# --------------------------------------------------------------------------------------------------
#
# The candidates are the set S that maximises f(S) = sum_S p / (E + |S| - 1), E = e^epsilon.
#
# It is found by Dinkelbach's iteration for fractional programs (1967): from a lower bound lambda of
# the optimum, lambda <- f(p > lambda). lambda only grows and the set only shrinks. After a few
# steps lambda is the optimum, and a class is in S if and only if p > lambda: classes of equal prior
# enter together, and only if that is strictly better. f of any set is a lower bound, so the
# iteration first runs on the maxima of at most 16 disjoint groups of classes (up to 32 classes: on
# all classes). One pass over the row then drops all but the candidates and a few more classes, and
# only these are quantised. Nothing is sorted.
#
# Every number is an IEEE double: p are whole numbers (see `labeldp.laws._exact`), so that their
# sums are exact in any order, and each step has one division and one comparison p > lambda. So the
# result depends on the row alone, and is the same on every machine.


Sizes = NDArray[np.int32]
_BELOW_TOP = TOP - 0.5  # the largest bound, so that the heaviest class is always a candidate


def best_candidates(
    prior: Array, epsilon: float, weight: Floats | None = None
) -> tuple[Bits, Sizes]:
    """Choose the candidates of each row of a prior (n, K), n >= 1: packed sets (n, ceil(K/8)), and
    their sizes (n,).

    InvalidInput as in `checked_prior`.
    """
    gain = float(exp_floor(epsilon)) - 1.0
    values, scale, columns = checked_prior(prior, weight)
    columns *= scale
    np.rint(columns, out=columns)
    bound, size = _on_columns(columns, gain)
    if len(columns) == values.shape[1]:
        return pack_columns(columns > bound), size
    # the bound on the scale of the prior, lowered by one whole number and a few ulps, so that
    # rounding drops no candidate
    slack = 1.0 - 8.0 * float(np.finfo(values.dtype).eps)
    unscaled = np.where(bound > 1.0, (bound - 1.0) / scale * slack, -1.0).astype(values.dtype)
    inside = values > unscaled[:, None]
    count = set_sizes(pack_sets(inside))
    survivors = np.rint(np.multiply(values[inside], np.repeat(scale, count), dtype=np.float64))
    bound, size = _on_survivors(survivors, count, bound, gain)
    inside[inside] = survivors > np.repeat(bound, count)
    return pack_sets(inside), size


def _on_columns(weights: Floats, gain: float) -> tuple[Floats, Sizes]:
    """Iterate on at most 32 classes, stored as columns (K, n); return bound and size of each
    row."""
    n = weights.shape[1]
    bound, final, rows = np.empty(n), np.empty(n, dtype=np.int32), np.arange(n)
    current, part = np.full(n, min(TOP / (gain + 1.0), _BELOW_TOP)), np.empty_like(weights)
    while True:
        inside = weights > current
        size = inside.view(np.uint8).sum(axis=0, dtype=np.uint8)
        np.multiply(weights, inside, out=part)
        following = np.minimum(part.sum(axis=0) / (gain + size), _BELOW_TOP)
        bound[rows], final[rows] = current, size
        moved = following > current  # a bound that no longer grows is the optimum
        left = np.count_nonzero(moved)
        if not left:
            return bound, final
        if 2 * left < len(rows):  # copying pays if most rows are done
            chosen = np.flatnonzero(moved)
            rows, weights, following = rows[chosen], weights.take(chosen, axis=1), following[chosen]
            part = np.empty_like(weights)
        current = following


def _on_survivors(
    ragged: Floats, size: NDArray[np.int64], bound: Floats, gain: float
) -> tuple[Floats, Sizes]:
    """Iterate on the remaining classes of each row, stored one row after another; return bound and
    size of each row."""
    bound, final = bound.copy(), size.astype(np.int32)
    rows, current = np.arange(len(size)), bound
    while True:
        keep = ragged > np.repeat(current, size)
        left = np.add.reduceat(keep, np.cumsum(size) - size, dtype=np.int64)
        bound[rows], final[rows] = current, left
        ragged = ragged[keep]
        total = np.add.reduceat(ragged, np.cumsum(left) - left)
        following = np.minimum(total / (gain + left), _BELOW_TOP)
        moved = following > current
        if not moved.any():
            return bound, final
        if 2 * np.count_nonzero(moved) < len(rows):
            ragged = ragged[np.repeat(moved, left)]
            rows, left, following = rows[moved], left[moved], following[moved]
        size, current = left, following
