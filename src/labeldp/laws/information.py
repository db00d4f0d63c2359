# SPDX-License-Identifier: Apache-2.0
"""How much each law says about a label under a prior: the scores AutoLaw chooses by, for many rows at once.

Exact where that costs O(1) a class or less; else the heaviest classes are treated exactly and the rest by a second-order term around
their mean. For K <= 12 the law chosen by these scores loses at most 5 % of the information of the best one (tested by brute force);
under a uniform prior every score is exact.
"""

from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from labeldp.laws import kernel
from labeldp.laws.exact import WORD, log_ratio
from labeldp.laws.prior import Floats
from labeldp.laws.subset import inside_words

_HEAD = 16  # classes that are a segment of their own
_GROWTH = 1.25  # beyond, a segment of the sorted prior ends at this multiple of where it starts
_PATTERN_HEAD = 6  # classes whose inclusion patterns are enumerated: 2^6
_GRID = 12  # values of k that are scored where K is above _HEAD


@lru_cache(maxsize=256)
def sizes_to_try(n_classes: int) -> NDArray[np.int32]:
    """Values of k below K that RRTopK is scored at: all of them for small K, else a geometric grid."""
    if n_classes <= _HEAD:
        return np.arange(1, n_classes, dtype=np.int32)
    return np.unique(np.rint(np.geomspace(2, n_classes // 2, _GRID)).astype(np.int32))


@lru_cache(maxsize=256)
def _segments(n_classes: int, ks: tuple[int, ...]) -> NDArray[np.intp]:
    """Where the segments of the sorted classes start, and K: single classes first, then growing ones that never straddle a k."""
    cuts = set(range(min(_HEAD, n_classes))) | {min(k, n_classes) for k in ks} | {n_classes}
    edge = float(_HEAD)
    while edge < n_classes:
        cuts.add(int(edge))
        edge *= _GROWTH
    return np.array(sorted(cuts), dtype=np.intp)


@lru_cache(maxsize=256)
def _cells(epsilon: float, ks: tuple[int, ...]) -> tuple[Floats, Floats, Floats]:
    """For each k: P[kept] - P[other], P[other], and the entropy of the output given a candidate label."""
    a, b = (np.array(part, dtype=np.float64) / WORD for part in zip(*(kernel.cells(epsilon, k) for k in ks), strict=True))
    entropy = -a * np.log(a) - (np.array(ks) - 1) * b * np.log(b)
    return a - b, b, entropy


def top_k_scores(ordered: Floats, epsilon: float, ks: NDArray[np.int32]) -> Floats:
    """Nats of randomized response on the k heaviest classes, for each k: (n, len(ks)).

    ordered : (n, K), each row descending and summing to 1. Entropy terms are summed by segments of the order, each with the mean of its
    classes and a second-order term; up to 16 classes, every segment is one class.
    """
    names = tuple(int(k) for k in ks)
    lift, other, entropy = _cells(epsilon, names)
    edges = _segments(ordered.shape[1], names)
    count = np.diff(edges)
    mass = np.add.reduceat(ordered, edges[:-1], axis=1)
    mean = mass / count
    spread = np.maximum(0.0, np.add.reduceat(ordered * ordered, edges[:-1], axis=1) - mass * mean)
    inside = np.minimum(np.cumsum(mass, axis=1)[:, np.searchsorted(edges, ks) - 1], 1.0)
    base = other * inside + (1.0 - inside) / ks
    total = np.zeros_like(base)
    for j, k in enumerate(names):
        upto = int(np.searchsorted(edges, k))
        chance = base[:, j, None] + lift[j] * mean[:, :upto]
        total[:, j] = (count[:upto] * chance * np.log(chance) + lift[j] ** 2 * spread[:, :upto] / (2.0 * chance)).sum(axis=1)
    return np.asarray(-total - inside * entropy - (1.0 - inside) * np.log(ks))


@lru_cache(maxsize=256)
def _patterns(n_classes: int, size: int) -> tuple[Floats, Floats, Floats]:
    """Patterns of a uniform `size`-subset on the heaviest classes: (patterns, h), their chances, and how many others are in."""
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
    """Nats of subset selection: (n,); -inf at size 1, which is randomized response itself.

    With R the sampler's ratio and A a uniform subset of `size` classes, X = 1 + (R - 1) p(A):
    I = (R ln R size / K - E[X ln X]) / E[X]. Patterns of the heaviest classes are enumerated; given one, X has the mean and variance of a
    sample without replacement from the others, and E[X ln X] is that of a log-normal with these two (to second order, of any law).
    """
    k = ordered.shape[1]
    if size == 1:
        return np.full(len(ordered), -np.inf)
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
