# SPDX-License-Identifier: Apache-2.0
"""Alibi: Laplace noise on the one-hot label, clipped to [0, 1] and cut into levels, drawn exactly from whole numbers.

Of a noisy score only its place in [0, 1] tells anything: the likelihood ratio of Laplace noise is constant beyond. Cut into two ends and M
bins of equal width, a score's level has the probability of noise of scale 2 / epsilon to end there; level and class are then a channel
of two inputs (the class is the label, or not) with likelihood ratio e^(epsilon / 2 (2 x - 1)) at the middle x of a bin. Here, with H the
root of e^epsilon rounded down, the chances of a class that is not the label are whole numbers b_0 .. b_(M + 1) of 2^64: all but the first
rounded up, the first what is left, at most 2^63. Of the label they are the same in reverse. b_0 / b_(M + 1) <= H, and no other ratio is
larger (checked in whole numbers when a law is made), so two labels' ratio, a product of two of these, is at most H^2 <= e^epsilon.

Source: Malek, Mironov, Prasad, Shilov, Tramer, "Antipodes of Label Differential Privacy: PATE and ALIBI" (NeurIPS 2021).
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
from labeldp.laws._base import MAX_CELLS, Cell, Law, Side, Table
from labeldp.laws._exact import WORD, Array, Floats, Words, as_prior, exp_floor

_NAN = float("nan")
_STEP = 0.25  # of the trapezoid rule in ln s: its error is about e^(-pi^2 / step), below one in 10^17
_SMALL = 1e-18


@lru_cache(maxsize=256)
def level_words(epsilon: float, levels: int) -> tuple[int, ...]:
    """Count b, the words of 2^64 that give each level to a class that is not the label; in reverse, to the label.

    InvalidInput where rounding makes some ratio exceed e^(epsilon / 2): which happens at some epsilons below about 2e-7 with 256 levels.
    """
    bins = levels - 2
    with localcontext() as context:
        context.prec = 80
        ceiling = exp_floor(epsilon)
        root = (Decimal(ceiling.numerator) / Decimal(ceiling.denominator)).sqrt() * (1 - Decimal(10) ** -70)  # H, below the true root
        step = (-root.ln() / bins).exp()
        half = Decimal(WORD // 2)
        inner = [half * (step**j - step ** (j + 1)) for j in range(bins)]
        upper = [int(x.to_integral_value(rounding="ROUND_CEILING")) for x in [*inner, half / root]]
    words = (WORD - sum(upper), *upper)
    if min(words) < 1 or max(Fraction(b, a) for b, a in zip(words, reversed(words), strict=True)) ** 2 > ceiling:
        least = 2e-7 * levels / 256
        raise InvalidInput(
            f"Expected an epsilon that 64-bit words can honour with {levels} levels (any above {least:.1g}), got {epsilon!r}."
        )
    return words


@lru_cache(maxsize=256)
def _score_table(epsilon: float, levels: int) -> tuple[Floats, Floats, Floats]:
    """Tabulate ln of the likelihood ratio, chance for the label and chance for another class, of each level."""
    words = level_words(epsilon, levels)
    other = np.array([b / WORD for b in words])
    return np.array([math.log(a) - math.log(b) for a, b in zip(reversed(words), words, strict=True)]), other[::-1].copy(), other


@dataclass(frozen=True)
class Alibi(Law):
    """Release a noisy score for every class: the one-hot label plus Laplace noise of scale 2 / epsilon, clipped to [0, 1], in levels.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label. Above about 2e-7 (at 256 levels) 64-bit words
        honour any; below, what they cannot honour is refused.
    levels : int
        3 to 256: the two ends and levels - 2 bins of equal width. 256 lose less than a thousandth of the information.

    Notes
    -----
    Output: scores, (n, K) uint8, level j of 0 .. levels - 1. Side: none. Likelihood: e^(epsilon / 2 clip(2 x - 1, -1, 1)) at the score x
    (the middle of its bin), O(K) a row. Source: Malek et al. 2021, ALIBI. Cost: K words and K bytes a row. Laplace noise is never the most
    informative law at a given epsilon (compare `labeldp plan`); it is here because models are published with it.

    Examples
    --------
    >>> law = Alibi(2, 1.0, levels=3)                     # a low end, one bin, a high end
    >>> law.matrix().round(3)[:, :3]                      # the outputs (0, 0), (0, 1), (0, 2)
    array([[0.152, 0.098, 0.092],
           [0.152, 0.098, 0.25 ]])
    >>> law.exact_epsilon()
    1.0
    """

    name: ClassVar[str] = "alibi"
    parameter: ClassVar[str] = "levels"
    kind: ClassVar = "scores"
    uses_prior: ClassVar[bool] = False

    levels: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        fix = "A byte holds 256 levels; two would be randomized response on each bit."
        object.__setattr__(self, "levels", _validate.integer(levels=self.levels, low=3, high=256, fix=fix))
        level_words(self.epsilon, self.levels)

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        as_prior(prior, self.n_classes)
        return {}

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> NDArray[np.uint8]:
        edges = np.array(np.cumsum(level_words(self.epsilon, self.levels), dtype=object)[:-1], dtype=np.uint64)
        out = np.empty((len(labels), self.n_classes), dtype=np.uint8)
        top = np.uint8(self.levels - 1)
        # Each class has a word of its own, and both levels are looked up for it; only `where` looks at the label.
        for c in range(self.n_classes):
            r = words.take(c)
            other = np.searchsorted(edges, r, side="right").astype(np.uint8)
            own = top - np.searchsorted(edges, ~r, side="right").astype(np.uint8)  # the mirrored word has the mirrored level
            out[:, c] = np.where(labels == c, own, other)
        return out

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        ratio, _, _ = _score_table(self.epsilon, self.levels)
        score = ratio[np.asarray(outputs, dtype=np.intp)]
        return np.asarray(score - score.max(axis=1, keepdims=True))

    def scores(self, outputs: Array) -> Floats:
        """Read outputs as the middles of their bins in [0, 1], or the ends: (n, K) float64, for readers of noisy one-hot labels."""
        level = np.asarray(outputs, dtype=np.float64)
        return np.asarray(np.clip((level - 0.5) / (self.levels - 2), 0.0, 1.0))

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        return np.full(len(outputs), _NAN), np.full(len(outputs), _NAN)

    def weights(self, outputs: Array, side: Side) -> Floats:
        """Weigh without bias, (n, K) float64: (f - E[f | not the label]) / (E[f | label] - E[f | not the label]), raised alike to sum to 1.

        f = tanh(half the log-likelihood ratio) of each class's score: among functions of one score near the least variance. Before they are
        raised, a row's weights sum to 1 in expectation, so raising them keeps them unbiased.
        """
        weights = self._weight_of_level()[np.asarray(outputs, dtype=np.intp)]
        return np.asarray(weights + (1.0 - weights.sum(axis=1, keepdims=True)) / self.n_classes)

    def _weight_of_level(self) -> Floats:
        """Compute a class's weight before a row's are raised, by its level: (levels,)."""
        ratio, own, other = _score_table(self.epsilon, self.levels)
        f = np.tanh(0.5 * ratio)
        return np.asarray((f - float(f @ other)) / float(f @ (own - other)))

    def loss_range(self, losses: Floats, outputs: Array, side: Side) -> Floats:
        # each class's weight moves by itself, and raising them takes the mean loss off
        return np.asarray(np.abs(losses - losses.mean(axis=1, keepdims=True)).sum(axis=1) * np.ptp(self._weight_of_level()))

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        """List every probability, where the outputs are few (levels^K x K <= 10^6); `coordinate` says as much at any size.

        Outputs that hold the same levels in another order are one kind of output; of these, those with one level at the label are a cell.
        """
        self._require_few()
        words, k = level_words(self.epsilon, self.levels), self.n_classes
        cells = []
        for own, rest in product(range(self.levels), combinations_with_replacement(range(self.levels), k - 1)):
            chance = Fraction(words[-1 - own], WORD) * math.prod(Fraction(words[j], WORD) for j in rest)
            orders = math.factorial(k - 1) // math.prod(math.factorial(n) for n in Counter(rest).values())
            kind = " ".join(str(j) for j in sorted((own, *rest)))
            cells.append(Cell("class", kind, f"level {own}", chance, orders))
        return tuple(cells)

    def coordinate(self) -> tuple[Cell, ...]:
        """List the chances of each level of one class's score: where the class is the label ("own") and where it is not ("other").

        Scores are independent given the label, so the ratio of two labels at one output is the product of two of these cells' ratios.
        """
        words = level_words(self.epsilon, self.levels)
        own = [Cell("own", f"level {j}", "score", Fraction(a, WORD), 1) for j, a in enumerate(reversed(words))]
        return (*own, *(Cell("other", f"level {j}", "score", Fraction(b, WORD), 1) for j, b in enumerate(words)))

    def likeliest_chances(self) -> tuple[float, float, float]:
        """Compute three chances: the label is among the likeliest classes, another given class is, a random one of these is the label."""
        _, own, other = _score_table(self.epsilon, self.levels)
        k, below_own, below = self.n_classes, np.minimum(np.cumsum(own), 1.0), np.minimum(np.cumsum(other), 1.0)
        with np.errstate(divide="ignore"):  # nothing is below the lowest level
            share = -np.expm1(k * np.log1p(-np.minimum(other / below, 1.0)))  # 1 - (below the level / up to it)^k, also where that is tiny
        hit = own * below**k * share / (k * other)
        return float(own @ below ** (k - 1)), float(other @ (below_own * below ** (k - 2))), float(hit.sum())

    def exact_epsilon(self, side_row: Side | None = None) -> float:
        """Compute the epsilon of the sampler that runs, rounded up: the square of the largest ratio of one score, at any K."""
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
                chance = Fraction(words[-1 - int(level)], WORD) * math.prod(others[:y] + others[y + 1 :])
                index[y, j] = found.setdefault(chance, len(found))
        return Table(outputs, tuple(found), index)

    def _require_few(self) -> None:
        cells = self.n_classes * self.levels**self.n_classes
        if cells > MAX_CELLS:
            shown = f"{self.levels}^{self.n_classes} x {self.n_classes}"
            raise InvalidInput(f"Expected a matrix of at most {MAX_CELLS} cells, got {shown}. Use coordinate or log_likelihood instead.")

    def _information(self, prior: Floats, side: Side) -> Floats:
        """Compute E ln R_y - E ln sum_c p_c R_c, R the scores' likelihood ratios: ln w = integral of (e^-s - e^(-s w)) / s over s > 0.

        The mean of e^(-s sum p R) is a product over classes, so a sum over levels for each class and s is all it takes; the integral in
        ln s is a trapezoid sum of an analytic function. Cost O(K levels) for each of some 200 values of s, a row. Below epsilon = 2^-10,
        where the two means have no digits left that differ: half the variance of R_y - sum_c p_c R_c, right to one part in a thousand.
        """
        if self.epsilon < 2.0**-10:
            words = level_words(self.epsilon, self.levels)
            variance = sum((a - b) ** 2 / (b * WORD) for a, b in zip(reversed(words), words, strict=True))
            return np.asarray(0.5 * variance * (1.0 - (prior * prior).sum(axis=1)))
        ratio, own, other = _score_table(self.epsilon, self.levels)
        told = float(own @ ratio)
        result = np.empty(len(prior))
        for i, row in enumerate(prior):
            weight, place, count = np.unique(row, return_inverse=True, return_counts=True)
            result[i] = max(0.0, told - _mean_log(weight, row, place.reshape(-1), count, ratio, own, other))
        return result


def _mean_log(
    weight: Floats, row: Floats, place: NDArray[np.intp], count: NDArray[np.intp], ratio: Floats, own: Floats, other: Floats
) -> float:
    """Compute E ln sum_c p_c R_c over label and scores: p takes the values `weight`, each `count` times."""
    low, high = -float(np.abs(ratio).max()) + math.log(_SMALL), float(np.abs(ratio).max()) + math.log(-4.0 * math.log(_SMALL))
    s = np.exp(np.arange(low, high + _STEP, _STEP))
    given, beside = (_transforms(s, weight, ratio, chance) for chance in (own, other))  # (weights, s): ln E e^(-s p R)
    everyone = (count[:, None] * beside).sum(axis=0)
    mass = np.bincount(place, weights=row, minlength=len(weight))
    mean = (mass[:, None] * np.exp(everyone + given - beside)).sum(axis=0)
    return float(_STEP * (np.exp(-s) - mean).sum())


def _transforms(s: Floats, weight: Floats, ratio: Floats, chance: Floats) -> Floats:
    """Compute ln E e^(-s p R) for every p in weight and every s: (len(weight), len(s)), in logarithms so that nothing vanishes."""
    out = np.empty((len(weight), len(s)))
    size, logs = np.exp(ratio), np.log(chance)
    for i, p in enumerate(weight):
        exponent = logs - (s[:, None] * p) * size
        top = exponent.max(axis=1)
        out[i] = top + np.log(np.exp(exponent - top[:, None]).sum(axis=1))
    return out
