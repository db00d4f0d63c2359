# SPDX-License-Identifier: Apache-2.0
"""Laws that release a label: RandomizedResponse, RRTopK, RRWithPrior. One mechanism: randomized response on a candidate set.

Source: Warner 1965; Ghazi, Golowich, Kumar, Manurangsi, Zhang, "Deep Learning with Label Differential Privacy" (NeurIPS 2021),
Algorithms 1 and 2.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.laws import _choice as choice
from labeldp.laws import _kernel as kernel
from labeldp.laws import _prior as priors
from labeldp.laws import _sets as sets
from labeldp.laws._base import MAX_CELLS, Array, Cell, Floats, Law, Side, Table, Words
from labeldp.laws._exact import WORD, log_quotient, log_ratio

_NAN = float("nan")


def response_profile(epsilon: float, n_classes: int, k: int) -> tuple[Cell, ...]:
    """List the cells of randomized response on k of n_classes candidates."""
    a, b = kernel.cells(epsilon, k)
    wide = WORD % k
    found = [("candidate", "kept", a, 1), ("candidate", "other", b, k - 1)]
    if k < n_classes:
        found += [("outside", "wide", WORD // k + 1, wide), ("outside", "narrow", WORD // k, k - wide)]
    return tuple(Cell(label, "candidate", relation, Fraction(p, WORD), count) for label, relation, p, count in found if count)


def response_table(epsilon: float, n_classes: int, inside: NDArray[np.bool_]) -> Table:
    """Tabulate randomized response on the candidates inside (K,) bool."""
    outputs = np.flatnonzero(inside).astype(np.int32)
    k = len(outputs)
    if n_classes * k > MAX_CELLS:
        raise InvalidInput(f"Expected a matrix of at most {MAX_CELLS} cells, got {n_classes} x {k}. Use profile or log_likelihood instead.")
    a, b = kernel.cells(epsilon, k)
    values = tuple(Fraction(p, WORD) for p in (a, b, WORD // k, WORD // k + 1))
    edges = [j * WORD // k for j in range(k + 1)]
    outer = np.array([2 + (edges[j + 1] - edges[j] > WORD // k) for j in range(k)], dtype=np.uint8)
    index = np.where(inside[:, None], np.uint8(1), outer)
    index[outputs, np.arange(k)] = 0
    return Table(outputs, values, index)


def response_information(epsilon: float, prior: Floats, inside: NDArray[np.bool_], size: NDArray[np.integer]) -> Floats:
    """Compute the nats of randomized response on each row's candidates: prior (n, K) sums to 1, inside (n, K), size (n,). O(n K)."""
    a, b, lift, drop = np.empty((4, len(prior), 1))  # kept, other, and how far these are from each other and from 1 / k
    for k in map(int, np.unique(size)):
        kept, other = kernel.cells(epsilon, k)
        a[size == k, 0], b[size == k, 0] = kept / WORD, other / WORD
        lift[size == k, 0], drop[size == k, 0] = (kept - other) / WORD, (WORD - k * other) / (k * WORD)
    within = np.where(inside, prior, 0.0)
    mass = within.sum(axis=1, keepdims=True)
    c = 1.0 / size[:, None]
    beside, outside = np.maximum(mass - within, 0.0), np.maximum(1.0 - mass, 0.0)  # sums may round to just below 0
    out = within * a + beside * b + outside * c
    rise = lift - drop  # a - 1 / k
    gaps = (beside * lift + outside * rise, -within * lift - outside * drop, beside * drop - within * rise)
    cases = ((within, a, gaps[0]), (beside, b, gaps[1]), (outside, c, gaps[2]))
    terms = sum(w * p * log_quotient(p, out, gap) for w, p, gap in cases)
    return np.asarray(np.maximum(0.0, np.where(inside, terms, 0.0).sum(axis=1)))


@dataclass(frozen=True)
class RandomizedResponse(Law):
    """Keep the label with probability e^eps / (e^eps + K - 1), else release one of the other classes, all equally likely.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label. Above epsilon = 40 the 64-bit sampler is more private than asked.

    Notes
    -----
    Output: a label, (n,) int32. Side: none. Source: Warner 1965; Ghazi et al. 2021, eq. 1. Cost: one word a row.

    Examples
    --------
    >>> RandomizedResponse(4, 1.0986122886681098).matrix().round(6)[0]
    array([0.5     , 0.166667, 0.166667, 0.166667])
    """

    name: ClassVar[str] = "rr"
    kind: ClassVar = "label"
    uses_prior: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        kernel.cells(self.epsilon, self.n_classes)

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        priors.as_prior(prior, self.n_classes)
        return {}

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> NDArray[np.int32]:
        return kernel.respond_to_all(labels, words.take(0), self.epsilon, self.n_classes)

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        a, b = kernel.cells(self.epsilon, self.n_classes)
        return np.where(self.members(outputs, side), 0.0, log_ratio(b, a))

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        a, b = kernel.cells(self.epsilon, self.n_classes)
        return np.full(len(outputs), a / WORD), np.full(len(outputs), b / WORD)

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        return response_profile(self.epsilon, self.n_classes, self.n_classes)

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        return {"output": (np.dtype(np.int32), ())}

    def table(self, side_row: Side) -> Table:
        return response_table(self.epsilon, self.n_classes, np.ones(self.n_classes, dtype=np.bool_))

    def _information(self, prior: Floats, side: Side) -> Floats:
        every = np.ones_like(prior, dtype=np.bool_)
        return response_information(self.epsilon, prior, every, np.full(len(prior), self.n_classes))


@dataclass(frozen=True)
class _OnCandidates(Law):
    """What RRTopK and RRWithPrior share: side {"candidates": packed set, "size": k}."""

    kind: ClassVar = "label"
    uses_prior: ClassVar[bool] = True

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> NDArray[np.int32]:
        return kernel.respond(labels, words.take(0), side["candidates"], side["size"], self.epsilon, self.n_classes)

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        inside, size = sets.unpack(side["candidates"], self.n_classes), side["size"]
        candidate, outside = np.empty((2, len(outputs), 1))
        for k in np.flatnonzero(np.bincount(size)):
            a, b = kernel.cells(self.epsilon, int(k))
            # The cells of a label outside differ by one word in 2^64 / k: less than a double can hold up to k = 2048, k 2^-64 beyond.
            candidate[size == k], outside[size == k] = log_ratio(b, a), log_ratio(WORD // int(k), a)
        result = np.where(inside, candidate, outside)
        np.put_along_axis(result, np.asarray(outputs, dtype=np.int64)[:, None], 0.0, axis=1)
        return result

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        a, b = kernel.cells(self.epsilon, self.n_classes)
        every = side["size"] == self.n_classes
        return np.where(every, a / WORD, _NAN), np.where(every, b / WORD, _NAN)

    def told_apart(self, side: Side) -> sets.Bits | None:
        return np.asarray(np.bitwise_or.reduce(side["candidates"][side["size"] > 1], axis=0))  # one candidate is the answer of every label

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        return response_profile(self.epsilon, self.n_classes, int(side_row["size"]))

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        packed = (np.dtype(np.uint8), (sets.n_bytes(self.n_classes),))
        return {"output": (np.dtype(np.int32), ()), "candidates": packed, "size": (np.dtype(np.int32), ())}

    def table(self, side_row: Side) -> Table:
        return response_table(self.epsilon, self.n_classes, sets.unpack(side_row["candidates"][None], self.n_classes)[0])

    def _information(self, prior: Floats, side: Side) -> Floats:
        return response_information(self.epsilon, prior, sets.unpack(side["candidates"], self.n_classes), side["size"])

    def _side_layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        return {name: value for name, value in self.layout().items() if name != "output"}


@dataclass(frozen=True)
class RRTopK(_OnCandidates):
    """Answer by randomized response on the k heaviest classes of the row's prior; for a label outside them, uniformly.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label; k = 1 is a constant.
    k : int
        Number of candidates, 1 to K. Ties of the prior are cut by class index.

    Notes
    -----
    Output: a label, (n,) int32. Side: candidates (n, ceil(K/8)) uint8 packed, size (n,) int32. Source: Ghazi et al. 2021, Algorithm 1.
    Cost: one word a row; O(K) a row for the choice.
    """

    name: ClassVar[str] = "rr-top-k"
    parameter: ClassVar[str] = "k"

    k: int

    def __post_init__(self) -> None:
        super().__post_init__()
        k = _validate.integer(k=self.k, low=1, high=self.n_classes, fix="Pass the number of candidate classes.")
        object.__setattr__(self, "k", k)
        kernel.cells(self.epsilon, k)

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        return priors.by_chunks(prior, self.n_classes, self._side_layout(), self._decide)

    def _decide(self, prior: Array) -> dict[str, Array]:
        weights = priors.quantise(prior)
        size = np.full(len(weights), self.k, dtype=np.int32)
        edge = np.partition(weights, self.n_classes - self.k, axis=1)[:, self.n_classes - self.k]
        return {"candidates": sets.pack(priors.heaviest(weights, size, edge)), "size": size}


@dataclass(frozen=True)
class RRWithPrior(_OnCandidates):
    """Answer as RRTopK, with k chosen per row so that P[output = label] under the prior is largest.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label.
    class_weight : tuple of K numbers, optional
        Value of keeping a label of each class: multiplies the prior before the choice (cost-weighted form). Finite and above 0.

    Notes
    -----
    k maximises e^eps / (e^eps + k - 1) x (sum of the k largest priors): no eps-DP law has a larger P[output = label] (Theorem 3).
    Classes of equal prior enter together, and only if that is strictly better. Output and side as RRTopK. Source: Ghazi et al. 2021,
    Algorithm 2.
    Cost: one word a row; a handful of O(K) passes for the choice (see `labeldp.laws._choice`).
    """

    name: ClassVar[str] = "rr-with-prior"

    class_weight: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        kernel.cells(self.epsilon, self.n_classes)
        if self.class_weight is not None:
            weight = tuple(_validate.positive(class_weight=w, fix="Pass K finite weights above 0.") for w in self.class_weight)
            if len(weight) != self.n_classes:
                raise InvalidInput(f"Expected {self.n_classes} class weights, one a class; got {len(weight)}.")
            object.__setattr__(self, "class_weight", weight)

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        return priors.by_chunks(prior, self.n_classes, self._side_layout(), self._decide)

    def _decide(self, prior: Array) -> dict[str, Array]:
        weight = None if self.class_weight is None else np.array(self.class_weight)
        candidates, size = choice.best_candidates(prior, self.epsilon, weight)
        return {"candidates": candidates, "size": size}
