# SPDX-License-Identifier: Apache-2.0
"""Alibi: Laplace noise on the one-hot label, clipped to [0, 1] and quantised to levels, drawn
exactly from whole numbers.

Clipping loses nothing, because the likelihood ratio of Laplace noise is constant outside [0, 1].
With M bins of equal width and two ends, a score's level has the probability that noise of scale 2 /
epsilon ends there. Each class is then a channel of two inputs (it is the label, or not) with
likelihood ratio e^(epsilon / 2 (2 x - 1)) at the middle x of a bin. Let H be the square root of
e^epsilon, rounded down. The probabilities of a class that is not the label are whole numbers b_0 ..
b_(M + 1) of 2^64: all but the first rounded up, the first the rest, at most 2^63. Those of the
label are the same in reverse. b_0 / b_(M + 1) <= H, and no other ratio is larger (checked in whole
numbers when a law is made). So the ratio of two labels, a product of two of these, is at most H^2
<= e^epsilon.

References
----------
Malek, Mironov, Prasad, Shilov and Tramer 2021, "Antipodes of label differential privacy: PATE and
ALIBI" (NeurIPS).
"""

import math
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import combinations_with_replacement, product
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.laws._base import MAX_CELLS, Cell, Side, Table, no_inclusion
from labeldp.laws._exact import WORD, Array, Floats, Words, exp_floor
from labeldp.laws._matrix import WithoutSide

_STEP = 0.25  # of the trapezoid rule in ln s, whose error is about e^(-pi^2 / step) < 10^-17
_SMALL = 1e-18  # tails of the integral below this are left out


@lru_cache(maxsize=256)
def level_words(epsilon: float, levels: int) -> tuple[int, ...]:
    """Compute the number of words of 2^64 that give each level to a class that is not the label; in
    reverse, to the label.

    InvalidInput if rounding makes a ratio exceed e^(epsilon / 2), which happens at some epsilons
    below about 2e-7 with 256 levels.
    """
    bins = levels - 2
    with localcontext() as context:
        context.prec = 80
        ceiling = exp_floor(epsilon)
        # H, below the true root
        root = (Decimal(ceiling.numerator) / Decimal(ceiling.denominator)).sqrt() * (
            1 - Decimal(10) ** -70
        )
        step = (-root.ln() / bins).exp()
        half = Decimal(WORD // 2)
        inner = [half * (step**j - step ** (j + 1)) for j in range(bins)]
        upper = [int(x.to_integral_value(rounding="ROUND_CEILING")) for x in [*inner, half / root]]
    words = (WORD - sum(upper), *upper)
    if (
        min(words) < 1
        or max(Fraction(b, a) for b, a in zip(words, reversed(words), strict=True)) ** 2 > ceiling
    ):
        least = 2e-7 * levels / 256
        raise InvalidInput(
            f"Expected an epsilon that 64-bit words can honour with {levels} levels (any above"
            f" {least:.1g}), got {epsilon!r}."
        )
    return words


@lru_cache(maxsize=256)
def _score_table(epsilon: float, levels: int) -> tuple[Floats, Floats, Floats]:
    """Compute for each level the log-likelihood ratio, its probability for the label, and that for
    another class: (levels,) each."""
    words = level_words(epsilon, levels)
    other = np.array([b / WORD for b in words])
    return (
        np.array([math.log(a) - math.log(b) for a, b in zip(reversed(words), words, strict=True)]),
        other[::-1].copy(),
        other,
    )


@dataclass(frozen=True)
class Alibi(WithoutSide):
    """Release a noisy score for every class: the one-hot label plus Laplace noise of scale 2 /
    epsilon, clipped to [0, 1], in levels.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label. Some epsilons below about
        2e-7 (at 256 levels) cannot be drawn exactly from 64-bit words, and are refused.
    levels : int
        3 to 256 (default): the two ends and levels - 2 bins of equal width. 256 levels lose less
        than a thousandth of the information.

    Notes
    -----
    Output: scores, (n, K) uint8, level j of 0 .. levels - 1. Side: none. Likelihood: e^(epsilon / 2
    clip(2 x - 1, -1, 1)) at the score x (the middle of its bin), O(K) a row. Cost: K words and K
    bytes a row. Laplace noise is never the most informative law at a given epsilon (compare
    `labeldp plan`); it is here because published models use it.

    References
    ----------
    Malek et al. 2021, "Antipodes of label differential privacy: PATE and ALIBI".

    Examples
    --------
    >>> law = Alibi(2, 1.0, levels=3)                     # a low end, one bin, a high end
    >>> law.matrix().round(3)[:, :3]                      # the outputs (0, 0), (0, 1), (0, 2)
    array([[0.152, 0.06 , 0.092],
           [0.152, 0.098, 0.25 ]])
    >>> law.exact_epsilon()
    1.0
    """

    name: ClassVar[str] = "alibi"
    parameter: ClassVar[str] = "levels"
    kind: ClassVar = "scores"

    levels: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        fix = "A byte holds 256 levels; two would be randomized response on each bit."
        object.__setattr__(
            self, "levels", _validate.integer(levels=self.levels, low=3, high=256, fix=fix)
        )
        level_words(self.epsilon, self.levels)

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> NDArray[np.uint8]:
        edges = np.array(
            np.cumsum(level_words(self.epsilon, self.levels), dtype=object)[:-1], dtype=np.uint64
        )
        out = np.empty((len(labels), self.n_classes), dtype=np.uint8)
        top = np.uint8(self.levels - 1)
        # Each class has its own word, and the level is looked up for both cases. Only `where` reads
        # the label, so time reveals nothing.
        for c in range(self.n_classes):
            r = words.take(c)
            other = np.searchsorted(edges, r, side="right").astype(np.uint8)
            # the mirrored word has the mirrored level
            own = top - np.searchsorted(edges, ~r, side="right").astype(np.uint8)
            out[:, c] = np.where(labels == c, own, other)
        return out

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        ratio, _, _ = _score_table(self.epsilon, self.levels)
        score = ratio[np.asarray(outputs, dtype=np.intp)]
        return np.asarray(score - score.max(axis=1, keepdims=True))

    def scores(self, outputs: Array) -> Floats:
        """Convert outputs to scores in [0, 1], the middles of bins or the ends: (n, K) float64, as
        noisy one-hot labels."""
        level = np.asarray(outputs, dtype=np.float64)
        return np.asarray(np.clip((level - 0.5) / (self.levels - 2), 0.0, 1.0))

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        return no_inclusion(outputs)

    def weights(self, outputs: Array, side: Side) -> Floats:
        """Compute unbiased weights, (n, K) float64: (f - E[f | not the label]) / (E[f | label] -
        E[f | not the label]), with a constant added to each row so that it sums to 1.

        f = tanh(half the log-likelihood ratio) of each class's score, which has nearly the least
        variance among functions of one score.
        """
        # A row's weights sum to 1 in expectation before the constant is added, so the constant has
        # expectation 0 and adds no bias.
        weights = self._weight_of_level()[np.asarray(outputs, dtype=np.intp)]
        return np.asarray(weights + (1.0 - weights.sum(axis=1, keepdims=True)) / self.n_classes)

    def _weight_of_level(self) -> Floats:
        """Compute the weight of each level, before a row's constant is added: (levels,)."""
        ratio, own, other = _score_table(self.epsilon, self.levels)
        f = np.tanh(0.5 * ratio)
        return np.asarray((f - float(f @ other)) / float(f @ (own - other)))

    def loss_range(self, losses: Floats, outputs: Array, side: Side) -> Floats:
        # The classes' levels vary independently, and the row's constant subtracts the mean loss.
        return np.asarray(
            np.abs(losses - losses.mean(axis=1, keepdims=True)).sum(axis=1)
            * np.ptp(self._weight_of_level())
        )

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        """List every probability, for few outputs (levels^K x K <= 10^6); `coordinate` has the same
        information at any size.

        Outputs with the same levels in another order are one kind of output, and a cell holds those
        with one level at the label.
        """
        self._require_few()
        words, k = level_words(self.epsilon, self.levels), self.n_classes
        cells = []
        for own, rest in product(
            range(self.levels), combinations_with_replacement(range(self.levels), k - 1)
        ):
            chance = Fraction(words[-1 - own], WORD) * math.prod(
                Fraction(words[j], WORD) for j in rest
            )
            orders = math.factorial(k - 1) // math.prod(
                math.factorial(n) for n in Counter(rest).values()
            )
            kind = " ".join(str(j) for j in sorted((own, *rest)))
            cells.append(Cell("class", kind, f"level {own}", chance, orders))
        return tuple(cells)

    def coordinate(self) -> tuple[Cell, ...]:
        """List the probabilities of each level of one class's score, if the class is the label
        ("own") and if it is not ("other").

        Scores are independent given the label, so the ratio of two labels at one output is the
        product of two ratios of these cells.
        """
        words = level_words(self.epsilon, self.levels)
        own = [
            Cell("own", f"level {j}", "score", Fraction(a, WORD), 1)
            for j, a in enumerate(reversed(words))
        ]
        return (
            *own,
            *(
                Cell("other", f"level {j}", "score", Fraction(b, WORD), 1)
                for j, b in enumerate(words)
            ),
        )

    def likeliest_chances(self) -> tuple[float, float, float]:
        """Compute the probabilities that the label is among the likeliest classes, that another
        given class is, and that a random one of the likeliest is the label."""
        _, own, other = _score_table(self.epsilon, self.levels)
        k, below_own, below = (
            self.n_classes,
            np.minimum(np.cumsum(own), 1.0),
            np.minimum(np.cumsum(other), 1.0),
        )
        with np.errstate(divide="ignore"):  # nothing is below the lowest level
            # 1 - (below the level / up to it)^k, also where that is tiny
            share = -np.expm1(k * np.log1p(-np.minimum(other / below, 1.0)))
        hit = own * below**k * share / (k * other)
        return (
            float(own @ below ** (k - 1)),
            float(other @ (below_own * below ** (k - 2))),
            float(hit.sum()),
        )

    def exact_epsilon(self, side_row: Side | None = None) -> float:
        """Compute the epsilon of the sampler, rounded up: ln of the square of the largest ratio of
        one score."""
        words = level_words(self.epsilon, self.levels)
        worst = max(Fraction(b, a) for b, a in zip(words, reversed(words), strict=True))
        return self._certified(worst * worst)

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        return {"output": (np.dtype(np.uint8), (self.n_classes,))}

    def table(self, side_row: Side) -> Table:
        self._require_few()
        words, k = level_words(self.epsilon, self.levels), self.n_classes
        outputs = np.array(list(product(range(self.levels), repeat=k)), dtype=np.uint8)
        found: dict[Fraction, int] = {}
        index = np.empty((k, len(outputs)), dtype=np.uint32)
        for j, output in enumerate(outputs):
            others = [Fraction(words[level], WORD) for level in output]
            for y, level in enumerate(output):
                chance = Fraction(words[-1 - int(level)], WORD) * math.prod(
                    others[:y] + others[y + 1 :]
                )
                index[y, j] = found.setdefault(chance, len(found))
        return Table(outputs, tuple(found), index)

    def _require_few(self) -> None:
        cells = self.n_classes * self.levels**self.n_classes
        if cells > MAX_CELLS:
            shown = f"{self.levels}^{self.n_classes} x {self.n_classes}"
            raise InvalidInput(
                f"Expected a matrix of at most {MAX_CELLS} cells, got {shown}. Use coordinate or"
                " log_likelihood instead."
            )

    def _information(self, prior: Floats, side: Side) -> Floats:
        """Compute E ln R_y - E ln sum_c p_c R_c, where R has the scores' likelihood ratios. Cost:
        O(200 K levels) a row."""
        # ln w is the integral of (e^-s - e^(-s w)) / s over s > 0. The mean of e^(-s sum p R) is a
        # product over classes, so that each s takes one sum over levels and classes; the integral
        # in ln s is a trapezoid sum of an analytic function. Below epsilon = 2^-10 the two means
        # agree in all digits of a double, so half the variance of R_y - sum_c p_c R_c is used,
        # right to one part in a thousand.
        if self.epsilon < 2.0**-10:
            words = level_words(self.epsilon, self.levels)
            variance = sum(
                (a - b) ** 2 / (b * WORD) for a, b in zip(reversed(words), words, strict=True)
            )
            return np.asarray(0.5 * variance * (1.0 - (prior * prior).sum(axis=1)))
        ratio, own, other = _score_table(self.epsilon, self.levels)
        told = float(own @ ratio)
        result = np.empty(len(prior))
        for i, row in enumerate(prior):
            weight, place, count = np.unique(row, return_inverse=True, return_counts=True)
            low, high = (
                -float(np.abs(ratio).max()) + math.log(_SMALL),
                float(np.abs(ratio).max()) + math.log(-4.0 * math.log(_SMALL)),
            )
            s = np.exp(np.arange(low, high + _STEP, _STEP))
            # (weights, s): ln E e^(-s p R)
            given, beside = (_transforms(s, weight, ratio, chance) for chance in (own, other))
            everyone = (count[:, None] * beside).sum(axis=0)
            mass = np.bincount(place.reshape(-1), weights=row, minlength=len(weight))
            mean = (mass[:, None] * np.exp(everyone + given - beside)).sum(axis=0)
            result[i] = max(0.0, told - float(_STEP * (np.exp(-s) - mean).sum()))
        return result


def _transforms(s: Floats, weight: Floats, ratio: Floats, chance: Floats) -> Floats:
    """Compute ln E e^(-s p R) for every p in `weight` and every s: (len(weight), len(s)), in
    logarithms to avoid underflow."""
    out = np.empty((len(weight), len(s)))
    size, logs = np.exp(ratio), np.log(chance)
    for i, p in enumerate(weight):
        exponent = logs - (s[:, None] * p) * size
        top = exponent.max(axis=1)
        out[i] = top + np.log(np.exp(exponent - top[:, None]).sum(axis=1))
    return out
