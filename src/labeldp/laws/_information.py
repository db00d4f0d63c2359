# SPDX-License-Identifier: Apache-2.0
"""How much a law says about a label under a prior: the scores AutoLaw chooses by, for many rows at once.

Those of randomized response and of a split are exact, that of subset selection treats the six heaviest classes exactly and the others by
a second-order term around their mean. For K <= 12 and epsilon from 1e-6 to 20 none is off by more than 5 % (tested against matrices);
under a uniform prior every score is exact. Below epsilon = 2^-10 a score is the leading term of its expansion.
"""

from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from labeldp.laws import _kernel as kernel
from labeldp.laws._exact import WORD, log_quotient, log_ratio
from labeldp.laws._prior import Floats
from labeldp.laws._words import hashed

TRIES = 3
"""Random sets of which a split takes the one nearest half the mass. More would be fewer different ones, each a little more informative."""

_DRAWS = 24  # of such sets, to estimate what they tell
_PATTERN_HEAD = 6  # classes whose inclusion patterns are enumerated: 2^6
_PER_UNIT = 2.0**20  # scores are compared on this grid
_SMALL = 2.0**-10  # below this epsilon a score is its leading term, epsilon^2 times a closed form: right to one part in a thousand


def on_grid(scores: Floats, epsilon: float) -> Floats:
    """Round scores to whole numbers, so that machines whose logarithms differ in the last place compare alike.

    The grid is 2^-20 nats from epsilon 1 on, and 2^-20 epsilon^2 nats below, as information is of order epsilon^2.
    """
    return np.asarray(np.rint(scores / min(1.0, epsilon) ** 2 * _PER_UNIT))


def response_scores(prior: Floats, epsilon: float) -> Floats:
    """Compute the nats of randomized response on all classes: (n,). prior : (n, K), each row sums to 1."""
    k = prior.shape[1]
    if epsilon < _SMALL:
        return np.asarray(epsilon**2 / (2.0 * k) * (1.0 - (prior * prior).sum(axis=1)))
    a, b = (part / WORD for part in kernel.cells(epsilon, k))
    chance = b + (a - b) * prior
    return np.asarray(a * np.log(a) + (k - 1) * b * np.log(b) - (chance * np.log(chance)).sum(axis=1))


@lru_cache(maxsize=256)
def _patterns(n_classes: int, size: int) -> tuple[Floats, Floats, Floats]:
    """List the patterns of a uniform `size`-subset on the heaviest classes, (patterns, h), their chances, and how many others are in."""
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
    """Compute the nats of subset selection: (n,); -inf at size 1, which is randomized response itself.

    With R the sampler's ratio and A a uniform subset of `size` classes, X = 1 + (R - 1) p(A):
    I = (R ln R size / K - E[X ln X]) / E[X]. Patterns of the heaviest classes are enumerated; given one, X has the mean and variance of a
    sample without replacement from the others, and E[X ln X] is that of a log-normal with these two (to second order, of any law).
    """
    k = ordered.shape[1]
    if size == 1:
        return np.full(len(ordered), -np.inf)
    if epsilon < _SMALL:
        return np.asarray(epsilon**2 / 2.0 * (1.0 - (ordered * ordered).sum(axis=1)) * (size * (k - size) / (k * (k - 1.0))))
    m = kernel.inside_words(epsilon, k, size)
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
    """Compute the nats of one bit about a set of this prior mass, any shape."""
    if epsilon < _SMALL:
        return np.asarray(epsilon**2 / 2.0 * mass * (1.0 - mass))
    return split_information(mass, epsilon)


def nearest_half(inside: Floats, total: Floats) -> NDArray[np.intp]:
    """Find the set, on the last axis of `inside`, that weighs nearest to half the total: the first of equal ones; whole numbers exactly."""
    return np.asarray(np.abs(2.0 * inside - total[..., None]).argmin(axis=-1))


@lru_cache(maxsize=256)
def _trials(n_classes: int) -> Floats:
    """Make random sets to estimate with, the same everywhere: (TRIES x _DRAWS, K) of 0 and 1."""
    words = np.stack([hashed(np.arange(TRIES * _DRAWS), i, 1) for i in range(-(-n_classes // 64))], axis=1).astype("<u8", copy=False)
    return np.unpackbits(words.view(np.uint8), axis=1, count=n_classes, bitorder="little").astype(np.float64)


def even_split_scores(weights: Floats, epsilon: float, mixed: float) -> Floats:
    """Estimate the expected nats of a split by a set that is drawn as `subset.even_half` does, from a few such sets: (n,).

    weights : (n, K) whole numbers, each row sorted; the label follows them mixed with a share `mixed` of the uniform distribution.
    """
    trials, total = _trials(weights.shape[1]), weights.sum(axis=1)
    inside = (weights @ trials.T).reshape(len(weights), _DRAWS, TRIES)
    number = np.broadcast_to(trials.sum(axis=1).reshape(_DRAWS, TRIES), inside.shape)
    chosen = nearest_half(inside, np.broadcast_to(total[:, None], inside.shape[:2]))[:, :, None]
    mass, count = (np.take_along_axis(part, chosen, axis=2)[:, :, 0] for part in (inside, number))
    return np.asarray(split_scores((1.0 - mixed) * mass / total[:, None] + mixed * count / weights.shape[1], epsilon).mean(axis=1))


def split_information(mass: Floats, epsilon: float) -> Floats:
    """Compute the nats of one keyed bit about a set of this prior mass."""
    m = kernel.inside_words(epsilon, 2, 1)
    truth, lie = m / WORD, (WORD - m) / WORD
    rest, lift = 1.0 - mass, (2 * m - WORD) / WORD
    yes, no = mass * truth + rest * lie, mass * lie + rest * truth
    cases = ((mass, truth, yes, rest), (rest, lie, yes, -mass), (mass, lie, no, -rest), (rest, truth, no, mass))
    return np.asarray(np.maximum(0.0, sum(w * p * log_quotient(p, out, gap * lift) for w, p, out, gap in cases)))
