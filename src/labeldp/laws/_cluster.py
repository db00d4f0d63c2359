# SPDX-License-Identifier: Apache-2.0
"""ClusterRR: keeps the label, or with some probability draws one from the label distribution of its
cluster.

Let Q_z be the row's public distribution on a grid of 2^32, and L the number of the 2^64 words that
resample. A word below 2^64 - L keeps the label; the others fall in cells of B_(z+1) - B_z words,
B_z = floor((Q_0 + ... + Q_(z-1)) L / 2^32). A class of at least m parts has a cell of at least
floor(m L / 2^32) words, and L is the least whole number with 2^64 - L <= (E - 1) (m L / 2^32 - 1),
E = e^epsilon rounded down: so (2^64 - L + cell) / cell <= E for every cell.

References
----------
Esfandiari, Mirrokni, Syed and Vassilvitskii 2021, "Label differential privacy via clustering",
Algorithm 1, second part.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.laws._base import MAX_CELLS, Cell, Law, Side, Table
from labeldp.laws._exact import (
    U64,
    WORD,
    Array,
    Floats,
    Words,
    as_prior,
    by_chunks,
    exp_floor,
    log_quotient,
    multiply,
    prior_chunks,
    quantise,
    whole_above,
    whole_below,
)
from labeldp.laws._response import (
    respond_to_all,
    response_information,
    response_words,
)

GRID = 1 << 32
"""Number of parts into which a row's distribution is divided."""

MOST_CLASSES = 1 << 16
# leading bits of a row's least share that decide L: few distinct values to compute, at a loss of at
# most 0.03 %
_BITS = 12
_NAN = float("nan")


@lru_cache(maxsize=1 << 18)
def resampling_words(epsilon: float, least: int) -> int:
    """Compute L, the number of words of 2^64 that resample, if every class has at least `least` of
    the 2^32 parts."""
    gain = exp_floor(epsilon) - 1
    return whole_above((WORD + gain) / (1 + gain * Fraction(least, GRID)))


@dataclass(frozen=True)
class ClusterRR(Law):
    """Keep the label with probability 1 - lambda, else release a draw from the row's prior, in
    which no class is below a floor.

    Parameters
    ----------
    n_classes : int
        K, 2 to 65536.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label and any public prior. If the
        prior comes from the same labels (a private histogram of the row's cluster), its cost is
        added (sequential composition).
    floor : float, optional
        tau, above 0 and at most 1 / K: the least probability of a class in a draw. 1 / K is
        randomized response on all classes and needs no prior. None (default): 1 / (2 K).
    realised : bool
        True (default): lambda = 1 / (1 + m (e^epsilon - 1)), with m the least probability in the
        row's own distribution, which is public and at least the floor. False: m = floor for every
        row, as in the paper.

    Notes
    -----
    Output: a label, (n,) int32. Side: q (n, K) uint32, the prior clipped to the floor and
    renormalised, in parts of 2^32. Likelihood: (1 - lambda) 1{y = z} + lambda q_z. Cost: one word
    and O(K) a row.

    References
    ----------
    Esfandiari et al. 2021, "Label differential privacy via clustering", Algorithm 1; epsilon as in
    the second term of Theorem 1.

    Examples
    --------
    >>> law = ClusterRR(3, 1.0, floor=0.1)
    >>> law.matrix([0.8, 0.2, 0.0]).round(3)
    array([[0.755, 0.16 , 0.085],
           [0.608, 0.307, 0.085],
           [0.608, 0.16 , 0.232]])
    """

    name: ClassVar[str] = "cluster-rr"
    parameter: ClassVar[str] = "floor"
    kind: ClassVar = "label"
    uses_prior: ClassVar[bool] = True

    floor: float | None = None
    realised: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.integer(
            n_classes=self.n_classes,
            low=2,
            high=MOST_CLASSES,
            fix="Take SubsetSelection for more classes.",
        )
        object.__setattr__(
            self,
            "floor",
            checked_floor(
                0.5 / self.n_classes if self.floor is None else self.floor, self.n_classes
            ),
        )
        _validate.boolean(realised=self.realised)
        if self.is_uniform:
            response_words(self.epsilon, self.n_classes)
        elif resampling_words(self.epsilon, self._least) >= WORD:
            raise InvalidInput(
                f"Expected an epsilon that 64-bit words can honour at floor {self.floor!r}, got"
                f" {self.epsilon!r}."
            )

    @classmethod
    def uniform(cls, n_classes: int, epsilon: float) -> Self:
        """Make the paper's UniformRR, whose floor is 1 / K: the prior is not read, and draws are
        uniform.

        It draws the same outputs from the same words as `RandomizedResponse(n_classes, epsilon)`,
        with the lambda of Corollary 1, K / (K - 1 + e^epsilon).
        """
        return cls(n_classes, epsilon, 1.0 / n_classes)

    @property
    def is_uniform(self) -> bool:
        """True if the floor is 1 / K, which leaves only the uniform distribution: randomized
        response."""
        return self.floor == 1.0 / self.n_classes

    @property
    def _least(self) -> int:
        """The floor in parts of the grid, rounded down."""
        return whole_below(Fraction(self.floor or 0.0) * GRID)

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        if self.is_uniform:
            as_prior(prior, self.n_classes)
            return {}
        return by_chunks(prior, self.n_classes, self.layout(), self._decide)

    def _decide(self, prior: Array) -> dict[str, Array]:
        """Divide each row into 2^32 parts, with at least the floor for each class."""
        # Every step is one IEEE operation on whole numbers below 2^53, so every machine finds the
        # same parts. Each class gets the floor, and the free parts are shared in proportion to the
        # weight above it: rounding cannot push a class below the floor. What rounding leaves goes
        # to the heaviest class.
        least = float(self._least)
        weights = quantise(prior)
        above = np.maximum(
            np.floor(weights * float(GRID) / weights.sum(axis=1, keepdims=True)) - least, 0.0
        )
        total = above.sum(axis=1, keepdims=True)
        free = GRID - self.n_classes * self._least
        parts = least + np.floor(above * float(free) / np.maximum(total, 1.0))
        every = np.arange(len(parts))
        parts[every, weights.argmax(axis=1)] += GRID - parts.sum(axis=1)
        return {"q": parts.astype(np.uint32)}

    def resampling(self, side: Side, n_rows: int) -> U64:
        """Compute each row's L, the number of resampling words: (n,) uint64. lambda is L / 2^64."""
        if self.is_uniform:
            every = self.n_classes * response_words(self.epsilon, self.n_classes)[1]
            return np.full(n_rows, every, dtype=np.uint64)
        q = side["q"]
        if not self.realised:
            return np.full(n_rows, resampling_words(self.epsilon, self._least), dtype=np.uint64)
        fraction, exponent = np.frexp(q.min(axis=1, initial=GRID - 1).astype(np.float64))
        coarse = np.ldexp(np.floor(np.ldexp(fraction, _BITS)), exponent - _BITS)
        found, place = np.unique(np.maximum(np.floor(coarse), self._least), return_inverse=True)
        return np.array([resampling_words(self.epsilon, int(m)) for m in found], dtype=np.uint64)[
            place.reshape(-1)
        ]

    def _edges(self, side: Side, resampling: U64) -> U64:
        """Compute B_0 .. B_K of each row: (n, K + 1)."""
        edges = np.empty((len(resampling), self.n_classes + 1), dtype=np.uint64)
        edges[:, 0], edges[:, -1] = 0, resampling
        parts = np.cumsum(side["q"][:, :-1], axis=1, dtype=np.uint64)
        # floor(L x parts / 2^32), exactly: the product has 96 bits, which `multiply` returns in two
        # words.
        high, low = multiply(resampling[:, None], parts)
        edges[:, 1:-1] = (high << np.uint64(32)) | (low >> np.uint64(32))
        return edges

    def cells(self, side: Side, n_rows: int) -> tuple[U64, U64]:
        """Count the words that keep the label, (n,) uint64, and those that draw each class, (n, K)
        uint64."""
        resampling = self.resampling(side, n_rows)
        if self.is_uniform:
            each = resampling[:, None] // np.uint64(self.n_classes)
            return _rest(resampling), np.repeat(each, self.n_classes, axis=1)
        return _rest(resampling), np.diff(self._edges(side, resampling), axis=1)

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> NDArray[np.int32]:
        r = words.take(0)
        if self.is_uniform:
            return respond_to_all(labels, r, self.epsilon, self.n_classes)
        q = side["q"]
        if not ((q >= self._least).all() and (q.sum(axis=1, dtype=np.uint64) == GRID).all()):
            raise InvalidInput(
                "Expected a distribution in parts of 2^32, none below the floor; the side was"
                " changed. Prepare it again."
            )
        resampling = self.resampling(side, len(labels))
        # Both outcomes are computed for each row. Only `where` reads the label, so time reveals
        # nothing.
        kept, out = _rest(resampling), np.empty(len(labels), dtype=np.int32)
        for rows in prior_chunks(len(labels), self.n_classes):
            edges = self._edges({"q": q[rows]}, resampling[rows])
            drawn = (edges[:, 1:-1] <= (r[rows] - kept[rows])[:, None]).sum(axis=1, dtype=np.int32)
            out[rows] = np.where(
                r[rows] < kept[rows], labels[rows].astype(np.int32, copy=False), drawn
            )
        return out

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        kept, cells = self.cells(side, len(outputs))
        drawn = np.take_along_axis(cells, np.asarray(outputs, dtype=np.int64)[:, None], axis=1)[
            :, 0
        ]
        return np.where(
            self.members(outputs, side),
            0.0,
            -np.log1p(kept.astype(np.float64) / drawn.astype(np.float64))[:, None],
        )

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        kept, cells = self.cells(side, len(outputs))
        equal = (cells == cells[:, :1]).all(axis=1)
        own, other = (
            (kept + cells[:, 0]).astype(np.float64) / WORD,
            cells[:, 0].astype(np.float64) / WORD,
        )
        return np.where(equal, own, _NAN), np.where(equal, other, _NAN)

    def weights(self, outputs: Array, side: Side) -> Floats:
        """Compute unbiased weights for any prior, (n, K) float64: `debiasing_weights` at beta =
        lambda."""
        return self.debiasing_weights(outputs, side)

    def debiasing_weights(self, outputs: Array, side: Side, beta: float | None = None) -> Floats:
        """Compute the weights of the class losses in the modified loss: (1{c = z} - beta q_c) / (1
        - beta).

        Parameters
        ----------
        outputs : (n,) int32
        side : mapping
            The result of `prepare`.
        beta : float, optional
            0 <= beta < 1. None (default): each row's lambda, which is unbiased for every q. A
            smaller beta has less variance, and a bias of (lambda - beta) / (1 - beta) times the
            difference between the resampled and the true loss.

        Returns
        -------
        (n, K) float64

        References
        ----------
        The modified loss of Esfandiari et al. 2021, with the closed-form inverse, which the paper
        bounds.
        """
        cells = self.cells(side, len(outputs))[1]
        q = cells / cells.sum(axis=1, keepdims=True, dtype=np.uint64)
        unbiased = self._kept(outputs, side)[:, None]
        keep = (
            unbiased
            if beta is None
            else 1.0 - _validate.fraction(beta=beta, zero=True, fix="Pass None for no bias.")
        )
        return np.asarray((self.members(outputs, side) - (1.0 - keep) * q) / keep)

    def _kept(self, outputs: Array, side: Side) -> Floats:
        """Compute 1 - lambda of each row: (n,)."""
        return np.asarray(_rest(self.resampling(side, len(outputs))).astype(np.float64) / WORD)

    def loss_range(self, losses: Floats, outputs: Array, side: Side) -> Floats:
        # The released label changes only the term of its own loss.
        return np.asarray(np.ptp(losses, axis=1) / self._kept(outputs, side))

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        kept, cells = self._row(side_row)
        counts = {c: cells.count(c) for c in sorted(set(cells))}
        kinds = [(a, "kept", a, kept + a, 1) for a in counts]
        kinds += [
            (a, "drawn", b, b, n - (a == b))
            for a in counts
            for b, n in counts.items()
            if n > (a == b)
        ]
        return tuple(
            Cell(f"class of {a}", f"class of {b}", relation, Fraction(p, WORD), n)
            for a, relation, b, p, n in kinds
        )

    def _row(self, side_row: Side) -> tuple[int, list[int]]:
        kept, cells = self.cells({name: value[None] for name, value in side_row.items()}, 1)
        return int(kept[0]), [int(c) for c in cells[0]]

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        found: dict[str, tuple[np.dtype, tuple[int, ...]]] = {"output": (np.dtype(np.int32), ())}
        if not self.is_uniform:
            found["q"] = (np.dtype(np.uint32), (self.n_classes,))
        return found

    def table(self, side_row: Side) -> Table:
        k = self.n_classes
        if k * k > MAX_CELLS:
            raise InvalidInput(
                f"Expected a matrix of at most {MAX_CELLS} cells, got {k} x {k}. Use profile or"
                " log_likelihood instead."
            )
        kept, cells = self._row(side_row)
        values = tuple(Fraction(p, WORD) for p in [*cells, *(kept + c for c in cells)])
        index = np.tile(np.arange(k, dtype=np.uint16), (k, 1))
        np.fill_diagonal(index, np.arange(k, 2 * k))
        return Table(np.arange(k, dtype=np.int32), values, index)

    def _information(self, prior: Floats, side: Side) -> Floats:
        if self.is_uniform:
            return response_information(
                self.epsilon,
                prior,
                np.ones_like(prior, dtype=np.bool_),
                np.full(len(prior), self.n_classes),
            )
        kept, cells = (part.astype(np.float64) / WORD for part in self.cells(side, len(prior)))
        own = kept[:, None] + cells
        out = kept[:, None] * prior + cells
        beside = np.maximum(1.0 - prior, 0.0)
        terms = prior * own * log_quotient(own, out) + beside * cells * log_quotient(cells, out)
        return np.asarray(np.maximum(0.0, terms.sum(axis=1)))


def _rest(resampling: U64) -> U64:
    """Compute 2^64 - L in 64 bits, which cannot hold 2^64."""
    return np.asarray(np.uint64(0xFFFFFFFFFFFFFFFF) - resampling + np.uint64(1))


def checked_floor(floor: object, n_classes: int) -> float:
    """Check tau: at least 2^-32 and at most 1 / K."""
    value = _validate.positive(
        floor=floor,
        fix=(
            "Without a floor some outputs are impossible for all labels but one: no finite epsilon."
        ),
    )
    if not 2.0**-32 <= value <= 1.0 / n_classes:
        raise InvalidInput(
            f"Expected 2^-32 <= floor <= 1/{n_classes}, got floor={value!r}: the floors of all"
            " classes must fit into one distribution."
        )
    return value
