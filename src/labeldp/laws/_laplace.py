# SPDX-License-Identifier: Apache-2.0
"""BoundedLaplace: discrete Laplace noise on ordered classes, truncated to them and normalised again.

P[j | y] = t^|y - j| / Z_y with Z_y = sum_j t^|y - j| and t = e^(-epsilon / (K - 1)). For one output j, P[j | y] falls as y moves away from
j, since Z of two neighbouring classes differs by at most the factor t. So it is largest at y = j and least at an end y = e, and the ratio
is t^-|e - j| Z_e / Z_j <= t^-(K - 1) = e^epsilon, because no Z is below those of the ends. Both ends reach it: no smaller t would do.

References
----------
Ghosh, Roughgarden and Sundararajan 2012, "Universally utility-maximizing privacy mechanisms" (the geometric mechanism); McSherry and Talwar
2007, "Mechanism design via differential privacy" (the exponential mechanism).
"""

from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.laws._base import MAX_CELLS, Cell, Law, Side, Table
from labeldp.laws._exact import WORD, Array, Floats, Words, as_prior, exp_floor

_NAN = float("nan")
_SLACKS = (56, 48, 40, 32, 24, 16)  # parts of epsilon, as powers of two, that are given up until the rounded words keep the claim


@lru_cache(maxsize=64)
def laplace_words(epsilon: float, n_classes: int) -> tuple[tuple[int, ...], ...]:
    """Compute the number of words of 2^64 that release each class, for each label: K rows of K; InvalidInput if rounding breaks epsilon."""
    e = exp_floor(epsilon)
    for slack in _SLACKS:
        with localcontext() as context:
            context.prec = 60
            log = (Decimal(e.numerator) / Decimal(e.denominator)).ln() * (1 - Decimal(2) ** -slack)
            powers = [(-log * i / (n_classes - 1)).exp() for i in range(n_classes)]
            rows = [_rounded([powers[abs(y - j)] for j in range(n_classes)], y) for y in range(n_classes)]
        if all(min(column) >= 1 and max(column) <= e * min(column) for column in zip(*rows, strict=True)):
            return tuple(rows)
    raise InvalidInput(f"Expected an epsilon that 64-bit words can honour with {n_classes} classes (up to about 35), got {epsilon!r}.")


def _rounded(shares: list[Decimal], own: int) -> tuple[int, ...]:
    """Round shares down to whole words of 2^64; what is left, at most one word a class, is added to the label's own."""
    total = sum(shares)
    words = [int(WORD * share / total) for share in shares]
    words[own] += WORD - sum(words)
    return tuple(words)


@dataclass(frozen=True)
class BoundedLaplace(Law):
    """Release a class near the label: discrete Laplace noise on ordered classes, truncated to them. A baseline for numbers.

    Parameters
    ----------
    n_classes : int
        K, 2 to 1000; their order matters.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label: any two labels, however far apart. Above about 35 the 64-bit sampler
        cannot honour it, and refuses.

    See Also
    --------
    Threshold : More informative for a learner by likelihood.

    Notes
    -----
    P[j | y] is proportional to e^(-epsilon |y - j| / (K - 1)): noise of the scale of the whole range, divided by epsilon, since every two
    labels must be hidden from each other. The module says why this is the least noise of its form. Labels near the ends are drawn towards
    the middle, so the released number is biased; `weights` and the likelihood are not. Output: a label, (n,) int32. Side: none. Cost: one
    word and O(K log K) a row.

    References
    ----------
    Ghosh, Roughgarden and Sundararajan 2012, "Universally utility-maximizing privacy mechanisms".

    Examples
    --------
    >>> BoundedLaplace(3, 1.0).matrix().round(3)
    array([[0.506, 0.307, 0.186],
           [0.274, 0.452, 0.274],
           [0.186, 0.307, 0.506]])
    """

    name: ClassVar[str] = "laplace"
    kind: ClassVar = "label"
    uses_prior: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_classes**2 > MAX_CELLS:
            raise InvalidInput(f"Expected at most 1000 classes, got n_classes={self.n_classes}. Take fewer points.")
        laplace_words(self.epsilon, self.n_classes)

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        as_prior(prior, self.n_classes)
        return {}

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> NDArray[np.int32]:
        r, out = words.take(0), np.zeros(len(labels), dtype=np.int32)
        # The output is found for every label, and only `where` reads the row's own, so that time reveals nothing.
        for label, row in enumerate(laplace_words(self.epsilon, self.n_classes)):
            edges = np.array(list(accumulate(row))[:-1], dtype=np.uint64)
            out = np.where(labels == label, np.searchsorted(edges, r, side="right").astype(np.int32), out)
        return out

    def _matrix(self) -> Floats:
        return np.array(laplace_words(self.epsilon, self.n_classes), dtype=np.float64) / WORD

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        score = np.log(self._matrix()).T[np.asarray(outputs, dtype=np.intp)]
        return np.asarray(score - score.max(axis=1, keepdims=True))

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        own, other = (laplace_words(self.epsilon, 2)[0][j] / WORD if self.n_classes == 2 else _NAN for j in range(2))
        return np.full(len(outputs), own), np.full(len(outputs), other)

    def weights(self, outputs: Array, side: Side) -> Floats:
        """Compute unbiased weights, (n, K) float64: rows of the inverse matrix."""
        inverse = np.linalg.inv(self._matrix())
        return np.asarray(inverse[np.asarray(outputs, dtype=np.intp)])

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        rows = laplace_words(self.epsilon, self.n_classes)
        return tuple(
            Cell(f"class {y}", f"class {j}", f"{abs(y - j)} away", Fraction(words, WORD), 1)
            for y, row in enumerate(rows)
            for j, words in enumerate(row)
        )

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        return {"output": (np.dtype(np.int32), ())}

    def table(self, side_row: Side) -> Table:
        rows = laplace_words(self.epsilon, self.n_classes)
        place = {words: i for i, words in enumerate(sorted({words for row in rows for words in row}))}
        index = np.array([[place[words] for words in row] for row in rows], dtype=np.uint32)
        return Table(np.arange(self.n_classes, dtype=np.int32), tuple(Fraction(words, WORD) for words in place), index)
