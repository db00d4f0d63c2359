# SPDX-License-Identifier: Apache-2.0
"""Peer to peer: every user reports another user's noisy bit, and nobody collects the labels.

Each of n users in a cluster flips their label once, with probability `flip`. Each then joins with probability `join`, asks a user of the
cluster drawn uniformly (perhaps themselves) for that noisy bit, and hands it to the learner under their own name. The learner sees one
bit of each joining user, and not whom it was asked of. Given the noisy bits, reports are independent draws from them: all that the learner
has of the labels is how many of t reports are ones, and t itself does not depend on labels. With m true ones among n,

    B ~ Bin(m, 1 - flip) + Bin(n - m, flip),    ones | B, t ~ Bin(t, B / n),    t ~ Bin(n, join),

and delta(epsilon) is the hockey-stick divergence of these laws at m and m + 1, the larger of both directions, the largest over m. It is
computed here as it is, instead of Lemma 9 of the source, whose closed form treats a user's bit as drawn anew for every request and is ten
times worse where it applies at all.

What others see: a user learns one noisy bit of one peer, at most ln((1 - flip) / flip); no more is there to see for all of them together.

Source: Esfandiari, Mirrokni, Syed, Vassilvitskii, "Label differential privacy via clustering" (2021), Algorithm 2.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from labeldp import _validate
from labeldp._rounding import exact
from labeldp.errors import InvalidInput
from labeldp.laws import sampling
from labeldp.laws.base import Words
from labeldp.laws.exact import WORD, log_ceil, whole_above, whole_below

Floats = NDArray[np.float64]

MOST_USERS = 1 << 14
FULL_SCAN = 300
"""Users up to which every m is tried with the random number of reports; beyond, all are taken to report."""

_UNIT = 1 << 45  # ln k! in whole numbers of 1 / this, so that binomial coefficients are differences without cancellation
_TAIL = 1e-14  # probability that each window may leave out; what is left out counts as delta
_SHARES = 32  # shares of noisy ones that are worked on at a time: a few hundred kilobytes
_FLIP, _JOIN, _ASK = 0, 1, 2  # numbers of a user's words; further attempts at a uniform peer follow


@dataclass(frozen=True)
class PeerToPeer:
    """The mechanism's public parameters, and what it guarantees.

    Parameters
    ----------
    flip : float
        Chance that a user's noisy bit is not their label, 0 < flip < 1/2.
    join : float
        Chance that a user reports, 0 < join <= 1.

    Notes
    -----
    Guarantee: towards the learner, (epsilon, delta) label DP by `epsilon` and `delta`, central, for one user's label, in a cluster of n
    users (n is public); clusters are disjoint, so the worst one decides. Towards a peer and against everyone together, pure
    `local_epsilon`. The learner must not see who asked whom.
    """

    flip: float
    join: float = 1.0

    def __post_init__(self) -> None:
        fix = "At 1/2 a bit says nothing; at 0 it is the label."
        object.__setattr__(self, "flip", _validate.fraction(flip=self.flip, fix=fix))
        if not self.flip < 0.5:
            raise InvalidInput(f"Expected 0 < flip < 1/2, got flip={self.flip!r}. {fix}")
        object.__setattr__(self, "join", _validate.fraction(join=self.join, one=True))

    @property
    def local_epsilon(self) -> float:
        """ln((1 - flip) / flip), rounded up: what one bit can tell, and a bound of everything."""
        words = flip_words(self.flip)
        return log_ceil(Fraction(WORD - words, words))

    def delta(self, n_users: int, epsilon: float, *, search: Literal["auto", "ends", "all"] = "auto") -> float:
        """The least delta at this epsilon in a cluster of n users, rounded up.

        Parameters
        ----------
        n_users : int
            Users in the cluster, 1 to 16384.
        epsilon : float
            At least 0.
        search : {"auto", "ends", "all"}
            "all": every number m of true ones, which is what the guarantee asks for. "ends": m = 0, in both directions (m = n - 1 is its
            mirror image): two evaluations. At deltas below 1 / n every full scan found it the worst, which is no proof; near epsilon = 0
            another m can be worse, by 0.03 % at flips of 0.4. "auto", proven: all, and with more than 300 users as if all reported, since
            leaving out reports is post-processing. It takes half a minute for 10,000 users, where "ends" takes a second.

        Returns
        -------
        float in [0, 1]. Sums of floats are rounded up by a bound of their error, and the tails that are not summed count in full.
        """
        budget = _not_negative(epsilon)
        return max(pair.delta(budget) for pair in self._pairs(n_users, search))

    def epsilon(self, n_users: int, delta: float, *, search: Literal["auto", "ends", "all"] = "auto") -> float:
        """An epsilon at which `delta` suffices, at most 2^-20 above the least one that is certified; never above `local_epsilon`.

        Parameters
        ----------
        n_users : int
        delta : float
            0 < delta < 1, for example 1 / n^2.
        search : {"auto", "ends", "all"}
            As in `delta`.
        """
        target, bound = _validate.fraction(delta=delta), self.local_epsilon
        found = 0.0
        for pair in self._pairs(n_users, search):
            if pair.delta(found) > target:
                found = pair.epsilon(target, found, bound)
        return found

    def _pairs(self, n_users: int, search: str) -> "Iterator[_Pair]":
        n = _validate.integer(n_users=n_users, low=1, high=MOST_USERS, fix="More users only help: account for 16384 of them.")
        name = _validate.one_of(("auto", "ends", "all"), search=search)
        every = name != "ends"
        reports = _Reports(n, self.flip, 1.0 if name == "auto" and n > FULL_SCAN else self.join)
        # Exchanging ones and zeros maps the pair (m, m + 1) to (n - m, n - m - 1): half of them suffice.
        return (reports.pair(m, every) for m in range((n + 1) // 2 if every else 1))


def _not_negative(epsilon: float) -> float:
    return 0.0 if epsilon == 0 else _validate.epsilon(epsilon)


def flip_words(flip: float) -> int:
    """How many of the 2^64 words flip a bit: rounded up, so that the sampler is at least as private as asked."""
    return whole_above(exact(flip) * WORD)


def report_law(n_users: int, ones: int, reports: int, flip: Fraction) -> list[Fraction]:
    """The exact law of how many of `reports` reports are ones: t + 1 fractions, for small n.

    Parameters
    ----------
    n_users : int
    ones : int
        m, true ones among the users.
    reports : int
        t.
    flip : Fraction
    """
    bits = [Fraction(0)] * (n_users + 1)
    for kept in range(ones + 1):
        for flipped in range(n_users - ones + 1):
            bits[kept + flipped] += _binomial(ones, kept, 1 - flip) * _binomial(n_users - ones, flipped, flip)
    return [sum((p * _binomial(reports, k, Fraction(b, n_users)) for b, p in enumerate(bits)), Fraction(0)) for k in range(reports + 1)]


def _binomial(n: int, k: int, p: Fraction) -> Fraction:
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


# The accountant -------------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _log_factorials(most: int) -> NDArray[np.int64]:
    """ln k! for k up to `most` in whole numbers of 2^-45, each off by at most 1: from 30-digit logarithms."""
    total, found = Decimal(0), [0]
    with localcontext() as context:
        context.prec = 30
        for k in range(1, most + 1):
            total += Decimal(k).ln()
            found.append(int(total * _UNIT))
    return np.array(found, dtype=np.int64)


class _Reports:
    """The laws of (t, ones) for every m, on windows that leave out little."""

    def __init__(self, n: int, flip: float, join: float) -> None:
        self.n, self.flip, self.join = n, flip, join
        self.log_factorial = _log_factorials(1 << n.bit_length())
        chance = self.binomial(n, join)[:, 0] if join < 1 else np.ones(1)
        keep = _window(chance)
        self.times: NDArray[np.int64] = keep if join < 1 else np.array([n])
        self.time_chance = chance[keep] if join < 1 else chance
        self._next: tuple[int, Floats] = (-1, chance)  # number of true ones, and their law: pairs are asked for one after another

    def binomial(self, t: int, p: float | Floats, low: int = 0, high: int | None = None) -> Floats:
        """Bin(t, p)(k) for k from low to high: (high - low + 1, number of p).

        Relative error of a value that matters (above e^-40): the addends are below 0.7 t + 40 then, and rounded five times, p once, and
        three log-factorials are off by 2^-45: at most (t + 64) 2^-50 + 2^-43.
        """
        k, share = np.arange(low, (t if high is None else high) + 1), np.atleast_1d(np.asarray(p, dtype=np.float64))
        inside = (share > 0) & (share < 1)
        yes, no = np.log(np.where(inside, share, 0.5)), np.log1p(-np.where(inside, share, 0.5))
        exponent = np.multiply.outer(k.astype(np.float64), yes)
        exponent += np.multiply.outer((t - k).astype(np.float64), no)
        exponent += ((self.log_factorial[t] - self.log_factorial[k] - self.log_factorial[t - k]) / _UNIT)[:, None]
        np.exp(exponent, out=exponent)
        if not inside.all():  # a certain bit
            exponent[:, ~inside] = k[:, None] == np.where(share[~inside] > 0.5, t, 0)
        return exponent

    def bits(self, m: int) -> Floats:
        """Law of the number of noisy ones: (n + 1,)."""
        kept, flipped = self.binomial(m, 1 - self.flip)[:, 0], self.binomial(self.n - m, self.flip)[:, 0]
        some, others = _window(kept), _window(flipped)
        law = np.zeros(self.n + 1)
        both = np.convolve(kept[some], flipped[others])
        law[some[0] + others[0] :][: len(both)] = both
        return law

    def pair(self, m: int, one_of_many: bool) -> "_Pair":
        """The laws of the reports at m and at m + 1 true ones, on a common window."""
        here = self._next[1] if self._next[0] == m else self.bits(m)
        self._next = (m + 1, self.bits(m + 1))
        laws = np.stack([here, self._next[1]], axis=1)
        keep = _window(laws.sum(axis=1))
        laws = laws[keep]
        if one_of_many and len(self.times) == 1:
            table = self.kernel[:, keep[0] : keep[-1] + 1] @ laws
            table = table[table.any(axis=1)]
        else:
            share = keep / self.n
            found = [chance * self._given(t, share, laws) for t, chance in zip(self.times.tolist(), self.time_chance, strict=True)]
            table = np.concatenate(found)
        # Of each value: four binomials, a convolution and a sum of at most n + 1 positive terms, two products. The missing counts as delta.
        error = 5 * ((self.n + 64) * 2.0**-50 + 2.0**-43)
        return _Pair(table, error, np.maximum(0.0, 1.0 - table.sum(axis=0)) + error)

    @cached_property
    def kernel(self) -> sparse.csc_array:
        """Bin(n, b / n) for every number b of noisy ones, a column each, where they reach: (n + 1, n + 1)."""
        share, columns = np.arange(self.n + 1) / self.n, []
        for some in self._blocks(share):
            low, high = self._reach(self.n, share[some])
            values = self.binomial(self.n, share[some], low, high)
            columns.append((values.T.ravel(), np.tile(np.arange(low, high + 1), values.shape[1]), np.full(values.shape[1], len(values))))
        data, rows, sizes = (np.concatenate(part) for part in zip(*columns, strict=True))
        return sparse.csc_array((data, rows, np.append(0, np.cumsum(sizes))), shape=(self.n + 1, self.n + 1))

    @staticmethod
    def _blocks(share: Floats) -> list[slice]:
        return [slice(start, start + _SHARES) for start in range(0, len(share), _SHARES)]

    @staticmethod
    def _reach(t: int, share: Floats) -> tuple[int, int]:
        """Counts that cover Bin(t, p) for a few neighbouring p."""
        lows, highs = zip(*(_reach(t, p) for p in (share[0], share[-1])), strict=True)
        return min(lows), max(highs)

    def _given(self, t: int, share: Floats, laws: Floats) -> Floats:
        """Laws of the ones among t reports, from those of the noisy bits (len(share), 2); a few shares at a time, each where they reach."""
        blocks = self._blocks(share)
        reach = [self._reach(t, share[some]) for some in blocks]
        first = min(low for low, _ in reach)
        out = np.zeros((max(high for _, high in reach) - first + 1, 2))
        for some, (low, high) in zip(blocks, reach, strict=True):
            out[low - first : high - first + 1] += self.binomial(t, share[some], low, high) @ laws[some]
        return out


def _window(chance: Floats) -> NDArray[np.int64]:
    """Where a law is, but for twice _TAIL."""
    return np.flatnonzero((np.cumsum(chance) > _TAIL) & (np.cumsum(chance[::-1])[::-1] > _TAIL))


def _reach(t: int, p: float) -> tuple[int, int]:
    """Counts outside of which Bin(t, p) has less than _TAIL, by Bernstein's inequality: P[|X - t p| >= x] <= 2 e^(-x^2 / (2 v + x))."""
    spread, need = t * p * (1 - p), -math.log(_TAIL / 2)
    x = (need + math.sqrt(need * need + 8 * need * spread)) / 2 + 1
    return max(0, math.floor(t * p - x)), min(t, math.ceil(t * p + x))


@dataclass(frozen=True, eq=False)
class _Pair:
    """Two neighbouring laws on the same outcomes: (outcomes, 2), each value off by at most `error` of itself, `missing` outside."""

    table: Floats
    error: float
    missing: Floats

    def delta(self, epsilon: float) -> float:
        """The larger hockey-stick divergence, rounded up."""
        gain = math.exp(epsilon) * (1 - 2.0**-50)
        best = 0.0
        for here, there in ((0, 1), (1, 0)):
            gap = self.table[:, here] * (1 + self.error) - gain * (1 - self.error) * self.table[:, there]
            best = max(best, float(np.maximum(gap, 0.0).sum()) + float(self.missing[here]))
        return min(1.0, best * (1 + 2.0**-40))

    def epsilon(self, delta: float, low: float, high: float) -> float:
        """By bisection: an epsilon above `low` at which the divergence is certified to be at most delta; `high` if there is none below."""
        while high - low > 2.0**-20:
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high


# The protocol ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """What the learner receives: whose features the bit goes with, and the bit."""

    user: int
    bit: int


class Learner:
    """Sees reports and nothing else."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def receive(self, report: Report) -> None:
        """One report."""
        self.reports.append(report)


@dataclass
class User:
    """Knows their own label, and the addresses of the users of their cluster; flips once and answers every request with the same bit.

    Attributes
    ----------
    name : int
    asked : int
        How many requests were answered: who asked is not passed on to anyone.
    """

    name: int
    _label: int = field(repr=False)
    _flip: bool = field(repr=False)
    asked: int = 0

    def answer(self) -> int:
        """The noisy bit."""
        self.asked += 1
        return self._label ^ self._flip

    def take_part(self, peer: "User", learner: Learner) -> None:
        """Ask one peer and report the answer under one's own name."""
        learner.receive(Report(self.name, peer.answer()))


def run(mechanism: PeerToPeer, labels: Sequence[int] | NDArray[np.integer], groups: ArrayLike, words: Words) -> list[Report]:
    """Let the users of all clusters take part, by messages between objects that each see what the protocol gives them.

    Parameters
    ----------
    mechanism : PeerToPeer
    labels : (n,) of 0 and 1
        Each user's own; a simulation holds all of them, a deployment none.
    groups : (n,) integers
        Public cluster of each user.
    words : Words
        One counter stream a user: word 0 flips, word 1 joins, words 2, 3, ... choose a peer uniformly (rejection, exact).

    Returns
    -------
    list of Report, in the order of users: everything that the learner sees. Guarantee: the largest of `mechanism.epsilon(size, delta)` over
    the sizes of the clusters.
    """
    codes, clusters = np.asarray(labels), np.asarray(groups)
    if codes.ndim != 1 or codes.dtype.kind not in "iub" or not np.isin(codes, (0, 1)).all():
        raise InvalidInput("Expected labels of 0 and 1, one a user. Code two classes as 0 and 1.")
    if clusters.shape != codes.shape or clusters.dtype.kind not in "iu" or len(words) != len(codes):
        raise InvalidInput(f"Expected one whole-number cluster and one word stream for each of {len(codes)} users, got {clusters.shape}.")
    flips = words.take(_FLIP) < np.uint64(flip_words(mechanism.flip))
    threshold = whole_below(exact(mechanism.join) * WORD)
    joins = np.ones(len(codes), dtype=np.bool_) if threshold == WORD else words.take(_JOIN) < np.uint64(threshold)
    users = [User(i, int(label), bool(flipped)) for i, (label, flipped) in enumerate(zip(codes, flips, strict=True))]
    peers = np.empty(len(codes), dtype=np.int64)
    for cluster in np.unique(clusters):
        members = np.flatnonzero(clusters == cluster)
        peers[members] = members[sampling.below(words.select(members), len(members), _ASK, 1)]
    learner = Learner()
    for user, peer, joined in zip(users, peers, joins, strict=True):
        if joined:
            user.take_part(users[peer], learner)
    return learner.reports


def frequencies(mechanism: PeerToPeer, reports: Sequence[Report], groups: ArrayLike, n_groups: int) -> Floats:
    """Share of ones in each cluster, unbiased: (ones / reports - flip) / (1 - 2 flip). Post-processing: free.

    Parameters
    ----------
    mechanism : PeerToPeer
    reports : what `run` returned
    groups : (n,) integers below n_groups
    n_groups : int

    Returns
    -------
    (n_groups,) float64, clipped to [0, 1]; 1/2 where nobody reported. Train on these rather than on the reports one by one: same privacy,
    less variance, since a report holds its user's own label only with weight 1 / n.
    """
    clusters = np.asarray(groups)
    of = np.array([clusters[report.user] for report in reports], dtype=np.int64)
    ones = np.bincount(of, weights=[report.bit for report in reports], minlength=n_groups)
    count = np.bincount(of, minlength=n_groups)
    share = (ones / np.maximum(count, 1) - mechanism.flip) / (1 - 2 * mechanism.flip)
    return np.where(count > 0, np.clip(share, 0.0, 1.0), 0.5)
