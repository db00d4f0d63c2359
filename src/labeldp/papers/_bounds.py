# SPDX-License-Identifier: Apache-2.0
"""Published bounds as numbers: excess risk of convex methods, lower bounds, generalisation, and the
label association problem.

Where a paper states an order of magnitude, its proof is followed with explicit constants; where a
claim does not hold as printed, the corrected one is computed (`docs/papers/errata.md`). An upper
bound may be too large, a lower bound too small, never the reverse, but for the rounding of doubles.

Sources: Ghazi, Golowich, Kumar, Manurangsi, Zhang, "Deep learning with label differential privacy"
(2021), appendices F and G; Shamir and Zhang, "Stochastic gradient descent for non-smooth
optimization" (2013), Theorem 2; Esfandiari, Mirrokni, Syed, Vassilvitskii, "Label differential
privacy via clustering" (2021), Theorem 5.
"""

import math
from typing import Literal

import numpy as np
from scipy.stats import binom

from labeldp import _validate
from labeldp.aggregates import Histogram
from labeldp.errors import InvalidInput
from labeldp.laws import Law, RandomizedResponse, RRTopK, SubsetSelection
from labeldp.laws._exact import WORD
from labeldp.laws._response import inside_words, response_words
from labeldp.papers._convex import Problem

_LARGEST = 700.0  # e^epsilon is finite in double precision up to here

# Upper bounds
# --------------------------------------------------------------------------------------------------


def second_moment(released: Law | Histogram) -> float:
    """Compute the largest E |sum_k v_k g_k|^2 over gradients g_1, ..., g_K of length at most 1, for
    the label's vectors v.

    Parameters
    ----------
    released : RandomizedResponse, SubsetSelection, RRTopK, or Histogram with Gaussian noise
        How labels are released. RRTopK: for labels among the k candidates.

    Returns
    -------
    float
        Exact: the least sum of a diagonal matrix that is above E v v' in the positive semi-definite
        order. Classes other than the label are exchangeable, so two values of the diagonal are
        enough, and the least sum has a closed form. Randomized response: about K^2 / epsilon^2 for
        small epsilon (the source bounds it by 36 K^2 / epsilon^2, for epsilon <= 1). Subset
        selection: about 4 K / epsilon^2, and K / e^epsilon above epsilon = 1.
    """
    if isinstance(released, Histogram) and released.mechanism == "gaussian":
        k, s = released.n_classes, float(released.scale())
        return _worst(k, 1 + s * (1 - 1 / k), -s / k, s * (1 - 1 / k), -s / k)
    if isinstance(released, RandomizedResponse):
        k, size, own = (
            released.n_classes,
            1,
            response_words(released.epsilon, released.n_classes)[0] / WORD,
        )
    elif isinstance(released, RRTopK):
        k, size, own = released.k, 1, response_words(released.epsilon, released.k)[0] / WORD
    elif isinstance(released, SubsetSelection):
        k, size = released.n_classes, released.set_size
        own = inside_words(released.epsilon, k, size) / WORD
    else:
        raise InvalidInput(
            "Expected randomized response, subset selection, RRTopK or a Gaussian Histogram, got"
            f" {released}."
        )
    return 1.0 if k == 1 else _of_sets(k, size, own)


def _of_sets(k: int, size: int, own: float) -> float:
    """The second moment for random sets of `size` of k classes that hold the label with probability
    `own`."""
    other = (size - own) / (k - 1)
    both = own * (size - 1) / (k - 1)  # P[label and another given class in the set]
    # P[two given others in the set]
    two = ((1 - own) * size + own * (size - 2)) * (size - 1) / ((k - 1) * (k - 2)) if k > 2 else 0.0
    gap = (own - other) ** 2
    return _worst(
        k,
        (own * (1 - 2 * other) + other**2) / gap,
        (both - other * own) / gap,
        (other - other**2) / gap,
        (two - other**2) / gap,
    )


def _worst(k: int, own: float, mixed: float, other: float, others: float) -> float:
    """Maximise <M, Gram> over Gram matrices with diagonal at most 1; M has these entries: label,
    label and other, other, two others."""
    # Dual: the least d + (k - 1) e with diag(d, e, ..., e) >= M. Over the mean of the others, of
    # moment m, this asks for (d - own) (e - m) >= (k - 1) mixed^2, and over their differences for e
    # >= other - others.
    m = other + (k - 2) * others
    e = max(m + abs(mixed), other - others if k > 2 else 0.0)
    return own + ((k - 1) * mixed**2 / (e - m) if mixed else 0.0) + (k - 1) * e


def excess_risk(
    released: Law | Histogram,
    problem: Problem,
    n: int,
    *,
    output: Literal["average", "last"] = "average",
    outside: float = 0.0,
) -> float:
    """Bound the expected excess risk of `labeldp.papers._convex.sgd` on n independent rows.

    Theorem 9 (informally Theorem 5) for randomized response, Corollary 10 for RRTopK, Proposition
    11 for the Gaussian histogram.

    Parameters
    ----------
    released : Law or Histogram
        As in `second_moment`.
    problem : Problem
    n : int
    output : {"average", "last"}
        "average": radius G / sqrt(n), the textbook bound for the mean iterate. "last": 2 D G (2 +
        ln n) / sqrt(n), as in the source.
    outside : float, default=0.0
        P[label not among the candidates] of RRTopK, which nobody knows: 2 D L times it is added
        (equation 9).

    Returns
    -------
    float
        With G^2 = L^2 `second_moment(released)`; the source has G = 6 K L / epsilon for randomized
        response, which holds for epsilon <= 1.
    """
    n, share = (
        _validate.integer(n=n, low=1),
        _validate.fraction(outside=outside, zero=True, one=True),
    )
    G = problem.lipschitz * math.sqrt(second_moment(released))
    bias = 2 * problem.diameter * problem.lipschitz * share
    if _validate.one_of(("average", "last"), output=output) == "average":
        return problem.radius * G / math.sqrt(n) + bias
    return 2 * problem.diameter * G * (2 + math.log(n)) / math.sqrt(n) + bias


def generalisation_gap(
    n: int,
    k: int,
    epsilon: float,
    *,
    complexity: float,
    lipschitz: float = 1.0,
    beta: float = 0.05,
    outside: float = 0.0,
) -> float:
    """Bound the difference of debiased empirical risk and risk, over all hypotheses, with
    probability 1 - beta (Theorem 17, corrected).

    Parameters
    ----------
    n, k : int
        Rows, and candidates of RRTop-k.
    epsilon : float
    complexity : float
        Rademacher complexity of the hypotheses on n rows.
    lipschitz : float
        Of the loss, whose values are in [0, 1].
    beta : float
    outside : float
        P[label not among the candidates].

    Returns
    -------
    float
        R (2 L complexity + sqrt(ln(2 / beta) / (2 n))) + outside, with R = (e^epsilon + 2 k - 3) /
        (e^epsilon - 1): both the length of the interval of the debiased loss, which the source
        takes for 1, and its Lipschitz constant over L (the source: + 2 k - 1).
    """
    n, k = _validate.integer(n=n, low=1), _validate.integer(k=k, low=1)
    R = 1 + 2 * (k - 1) / math.expm1(min(_validate.epsilon(epsilon), _LARGEST))
    b = _validate.fraction(beta=beta)
    return R * (
        2 * lipschitz * complexity + math.sqrt(math.log(2 / b) / (2 * n))
    ) + _validate.fraction(outside=outside, zero=True, one=True)


# Lower bounds
# --------------------------------------------------------------------------------------------------


def erm_lower_bound(
    n: int, epsilon: float, delta: float = 0.0, *, lipschitz: float = 1.0, diameter: float = 1.0
) -> float:
    """Bound from below the excess empirical risk that some data set of n rows forces on every
    (epsilon, delta)-label-DP method.

    Returns
    -------
    float
        The largest over m copies of each row of D L / (2 sqrt(N)) (1 - sqrt((e^a + d) / (e^a + 1)))
        N m / n, where N = floor(n / m) rows differ, and a = m epsilon, d = delta (e^(m epsilon) -
        1) / (e^epsilon - 1) by group privacy. m = 1 is Proposition 13, and m = 1 / epsilon Lemma
        15, which grows as 1 / sqrt(epsilon n). Rows that are left over get a loss of 0.
    """
    n, e, d = (
        _validate.integer(n=n, low=1),
        _validate.epsilon(epsilon),
        _validate.fraction(delta=delta, zero=True),
    )
    best = 0.0
    for copies in range(1, min(n, math.ceil(4 / e)) + 1):
        ratio = math.exp(min(copies * e, _LARGEST))
        known = (
            ratio
            + min(1.0, d * math.expm1(min(copies * e, _LARGEST)) / math.expm1(min(e, _LARGEST)))
        ) / (ratio + 1)
        rows = n // copies
        best = max(best, (1 - math.sqrt(known)) / (2 * math.sqrt(rows)) * (rows * copies / n))
    return lipschitz * diameter * best


def sco_lower_bound(
    n: int, epsilon: float, delta: float, *, lipschitz: float = 1.0, diameter: float = 1.0
) -> float:
    """Bound from below the excess population risk of every (epsilon, delta)-label-DP method on n
    independent rows (Proposition 12).

    By Lemma 16: a method with (a / (4 ln(2 / d)), e^-a d / (8 ln(2 / d))) and this risk makes one
    for the empirical risk with (a, d) and the same risk. The largest bound over d is taken; 0 where
    delta is too large for each of them.
    """
    e, small = _validate.epsilon(epsilon), _validate.fraction(delta=delta, zero=True)
    best = 0.0
    for d in np.geomspace(1e-30, 0.49, 200).tolist():
        whole = 4 * math.log(2 / d) * e
        if whole < _LARGEST and small <= math.exp(-whole) * d / (8 * math.log(2 / d)):
            best = max(best, erm_lower_bound(n, whole, d, lipschitz=lipschitz, diameter=diameter))
    return best


def local_lower_bound(
    n: int, epsilon: float, *, lipschitz: float = 1.0, diameter: float = 1.0
) -> float:
    """Bound from below the excess population risk of every method on n labels, each released with
    local epsilon; already for two classes.

    Returns
    -------
    float
        Every epsilon-DP release of a binary label is made from one by randomized response (Kairouz,
        Oh, Viswanath 2015). Let the loss be L w or -L w, by the label, for w in an interval of
        length D, and P[label 1] = 1/2 + t or 1/2 - t. A method that takes the wrong end loses 2 t D
        L, and the best test between the two errs with the probability that the binomial law gives.
        The largest value over t is about 0.17 D L / (tanh(epsilon / 2) sqrt(n)), so of the order 1
        / (epsilon sqrt(n)) for small epsilon.
    """
    n, e = _validate.integer(n=n, low=1), _validate.epsilon(epsilon)
    keep = math.tanh(e / 2)
    best = 0.0
    for u in np.linspace(0.3, 1.3, 21).tolist():
        t = min(0.5, u / (2 * keep * math.sqrt(n)))
        # The test takes the majority; of an even split it takes either end.
        p = 0.5 + t * keep
        wrong = float(binom.cdf((n - 1) // 2, n, p)) + (
            0.0 if n % 2 else float(binom.pmf(n // 2, n, p)) / 2
        )
        best = max(best, 2 * t * wrong)
    return lipschitz * diameter * best
