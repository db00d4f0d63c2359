# SPDX-License-Identifier: Apache-2.0
"""The peer-to-peer mechanism: every user reports another user's noisy bit, and nobody collects the
labels.

Each of n users in a cluster flips their label once, with probability `flip`. Each then joins with
probability `join`, asks a uniformly drawn user of the cluster (perhaps themselves) for that noisy
bit, and sends it to the learner under their own name. The learner sees one bit of each joining
user, but not whose bit it is. Given the noisy bits, reports are independent draws from them, so all
information about the labels is in the number of ones among t reports; t itself does not depend on
labels. With m true ones among n,

    B ~ Bin(m, 1 - flip) + Bin(n - m, flip),    ones | B, t ~ Bin(t, B / n),    t ~ Bin(n, join),

and delta(epsilon) is the hockey-stick divergence between these laws at m and m + 1, the larger of
both directions, maximised over m. It is computed directly. Lemma 9 of the source treats a user's
bit as drawn anew for every request; its closed form is ten times worse where it applies at all.

Towards peers: a user learns one noisy bit of one peer, which costs at most ln((1 - flip) / flip),
and all users together learn no more.

Source: Esfandiari, Mirrokni, Syed, Vassilvitskii, "Label differential privacy via clustering"
(2021), Algorithm 2.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._validate import exact
from labeldp.aggregates._base import SMALLEST_EPSILON, Query
from labeldp.errors import InvalidInput
from labeldp.laws._exact import WORD, Words, below, log_ceil, whole_above, whole_below

Floats = NDArray[np.float64]

MOST_USERS = 1 << 14
FULL_SCAN = 300
"""Number of users up to which every m is tried with the random number of reports; beyond, all users
count as reporting."""

# numbers of a user's words; further words follow if the choice of a peer is rejected
_FLIP, _JOIN, _ASK = 0, 1, 2


@dataclass(frozen=True)
class PeerToPeer:
    """The public parameters of the peer-to-peer mechanism, and its guarantee.

    Parameters
    ----------
    flip : float
        Probability that a user's noisy bit is not their label, 0 < flip < 1/2.
    join : float, default=1.0
        Probability that a user reports, 0 < join <= 1.

    Notes
    -----
    Guarantee: towards the learner, (epsilon, delta) label DP by `epsilon` and `delta`, central, for
    one user's label, in a cluster of n users (n is public); clusters are disjoint, so the worst one
    decides. Towards a peer and against everyone together, pure `local_epsilon`. The learner must
    not see who asked whom.
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
        """The local epsilon of one noisy bit, ln((1 - flip) / flip) rounded up; it bounds every
        other epsilon of the mechanism."""
        words = flip_words(self.flip)
        return log_ceil(Fraction(WORD - words, words))

    def delta(
        self, n_users: int, epsilon: float, *, search: Literal["auto", "ends", "all"] = "auto"
    ) -> float:
        """Compute the smallest delta at this epsilon in a cluster of n users, rounded up.

        Parameters
        ----------
        n_users : int
            Users in the cluster, 1 to 16384.
        epsilon : float
            At least 0.
        search : {"auto", "ends", "all"}
            "all": every number m of true ones, which is what the guarantee asks for. "ends": m = 0,
            in both directions (m = n - 1 is its mirror image): two evaluations, and no bound:
            another m can be worse at any delta. With 20 users, flips of 0.3 and epsilon 0.5 the
            true delta is 9.7e-8 at m = 4 and 4.0e-8 at m = 0. At flips up to 0.25 no full scan
            found one. "auto", proven: all, and with more than 300 users as if all reported, since
            leaving out reports is post-processing. It takes seconds for 10,000 users, where "ends"
            takes one.

        Returns
        -------
        float in [0, 1]. Sums of floats are rounded up by a bound of their error, and the tails that
        are not summed count in full.
        """
        budget = 0.0 if epsilon == 0 else _validate.epsilon(epsilon)
        return max(pair.delta(budget) for pair in self._pairs(n_users, search))

    def epsilon(
        self, n_users: int, delta: float, *, search: Literal["auto", "ends", "all"] = "auto"
    ) -> float:
        """Compute an epsilon that holds with this `delta`: at most 2^-20 above the smallest
        certified one, and at most `local_epsilon`.

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

    def _pairs(self, n_users: int, search: str) -> "Iterator[LawPair]":
        n = _validate.integer(
            n_users=n_users,
            low=1,
            high=MOST_USERS,
            fix="More users only help: account for 16384 of them.",
        )
        name = _validate.one_of(("auto", "ends", "all"), search=search)
        every = name != "ends"
        # Leaving out reports is post-processing, so with join = 1 the delta can only be larger: a
        # proven bound that needs one t.
        reports = ReportLaws(n, self.flip, 1.0 if name == "auto" and n > FULL_SCAN else self.join)
        # Exchanging ones and zeros maps the pair (m, m + 1) to (n - m, n - m - 1): half of them
        # suffice.
        return reports.pairs((n + 1) // 2 if every else 1)


def flip_words(flip: float) -> int:
    """Return how many of the 2^64 words flip a bit, rounded up, so that the sampler is at least as
    private as requested."""
    return whole_above(exact(flip) * WORD)


# The protocol
# --------------------------------------------------------------------------------------------------


def run(
    mechanism: PeerToPeer,
    labels: Sequence[int] | NDArray[np.integer],
    groups: "ArrayLike",
    words: Words,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Run the protocol for the users of all clusters; a deployment runs it by messages among them.

    Parameters
    ----------
    mechanism : PeerToPeer
    labels : (n,) of 0 and 1
        Each user's own; a simulation holds all of them, a deployment none.
    groups : (n,) integers
        Public cluster of each user.
    words : Words
        One counter stream a user: word 0 flips, word 1 joins, words 2, 3, ... choose a peer
        uniformly (rejection, exact).

    Returns
    -------
    users : (t,) int64
        Those who report, in their order.
    bits : (t,) int64
        What each of them reports: the noisy bit of the peer whom they asked. Users and bits are all
        that the learner sees. Guarantee: the largest of `mechanism.epsilon(size, delta)` over the
        sizes of the clusters.
    """
    codes, clusters = np.asarray(labels), np.asarray(groups)
    if codes.ndim != 1 or codes.dtype.kind not in "iub" or not np.isin(codes, (0, 1)).all():
        raise InvalidInput("Expected labels of 0 and 1, one a user. Code two classes as 0 and 1.")
    if clusters.shape != codes.shape or clusters.dtype.kind not in "iu" or len(words) != len(codes):
        raise InvalidInput(
            f"Expected one whole-number cluster and one word stream for each of {len(codes)} users,"
            f" got {clusters.shape}."
        )
    # Integer thresholds on 64-bit words: the probabilities are exact, and rounded towards more
    # privacy. A bit is flipped once, so that every request gets the same answer.
    bits = codes.astype(np.int64) ^ (words.take(_FLIP) < np.uint64(flip_words(mechanism.flip)))
    threshold = whole_below(exact(mechanism.join) * WORD)
    joins = (
        np.ones(len(codes), np.bool_)
        if threshold == WORD
        else words.take(_JOIN) < np.uint64(threshold)
    )
    users = np.flatnonzero(joins)
    return users, bits[_asked(clusters, words)[users]]


def _asked(clusters: NDArray[np.integer], words: Words) -> NDArray[np.int64]:
    """Draw for each user a uniform user of the same cluster: (n,)."""
    _, of, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    # Users sorted by cluster: a uniform member is a uniform offset from the cluster's first place.
    members, first = np.argsort(of, kind="stable"), np.append(0, np.cumsum(sizes))
    peers = np.empty(len(clusters), dtype=np.int64)
    for size in np.unique(sizes).tolist():
        users = np.flatnonzero(sizes[of] == size)
        peers[users] = members[first[of[users]] + below(words.select(users), size, _ASK, 1)]
    return peers


def ones_shares(mechanism: PeerToPeer, counts: NDArray[np.int64]) -> Floats:
    """Estimate the share of ones in each cluster without bias: (ones / reports - flip) / (1 - 2
    flip). Post-processing, so it costs nothing.

    Parameters
    ----------
    mechanism : PeerToPeer
    counts : (g, 2) int64
        Zeros and ones that were reported.

    Returns
    -------
    (g,) float64, clipped to [0, 1]; 1/2 where nobody reported. Train on these rather than on the
    reports one by one: same privacy, less variance, since a report holds its user's own label only
    with weight 1 / n.
    """
    total = counts.sum(axis=1)
    share = (counts[:, 1] / np.maximum(total, 1) - mechanism.flip) / (1 - 2 * mechanism.flip)
    return np.where(total > 0, np.clip(share, 0.0, 1.0), 0.5)


def ones_errors(
    mechanism: PeerToPeer, counts: NDArray[np.int64], n_users: NDArray[np.int64]
) -> Floats:
    """Estimate the standard error of `ones_shares` before clipping, from what was reported: (g,)
    float64, NaN where nobody reported.

    Parameters
    ----------
    mechanism : PeerToPeer
    counts : (g, 2) int64
        Zeros and ones that were reported.
    n_users : (g,) int64
        Users of each cluster.

    Notes
    -----
    Each of the n noisy bits has variance f (1 - f), and t reports are drawn from them with
    replacement. If a report is 1 with probability r over everything, then Var(ones / t) = r (1 - r)
    / t + (1 - 1 / t) f (1 - f) / n. The labels themselves are fixed.
    """
    total, flip = counts.sum(axis=1), mechanism.flip
    reports, one = np.maximum(total, 1), counts[:, 1] / np.maximum(total, 1)
    variance = one * (1 - one) / reports + (1 - 1 / reports) * flip * (1 - flip) / np.maximum(
        n_users, 1
    )
    return np.where(total > 0, np.sqrt(variance) / (1 - 2 * flip), np.nan)


# The query
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer(Query):
    """A query: the numbers of zeros and ones that the users of each group report under the
    peer-to-peer protocol. Make it with `of`.

    Parameters
    ----------
    n_classes : int
        2.
    epsilon : float
        Total of one user, over all groups. What asks refuses groups of sizes that it does not hold
        for.
    n_groups : int
        Groups are numbered 0..n_groups-1; an empty one reports nothing.
    mechanism : {"peer-to-peer"}
    delta : float
        0 only where epsilon is that of the flips alone.
    flip, join : float
        As in `PeerToPeer`.

    Notes
    -----
    Guarantee: towards whoever sees the answer, (epsilon, delta)-label-DP for each user, a row each,
    by `PeerToPeer.delta` at the size of every group, with every number of ones tried. Here a
    trusted curator runs the protocol that a deployment runs among the users.

    Examples
    --------
    >>> query = Peer.of(PeerToPeer(flip=0.1), sizes=[100, 60], delta=1e-4)
    >>> query.n_groups, round(query.epsilon, 3)
    (2, 0.808)
    """

    name: ClassVar[str] = "peer"
    mechanisms: ClassVar[tuple[str, ...]] = ("peer-to-peer",)
    pure: ClassVar[frozenset[str]] = frozenset()

    mechanism: str = "peer-to-peer"
    flip: float = field(kw_only=True)
    join: float = field(kw_only=True, default=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_classes != 2:
            raise InvalidInput(
                "Expected two classes peer to peer, whose reports are bits; got"
                f" n_classes={self.n_classes}. Use a Histogram."
            )
        protocol = self.protocol
        object.__setattr__(self, "flip", protocol.flip)
        object.__setattr__(self, "join", protocol.join)

    @classmethod
    def of(cls, mechanism: PeerToPeer, sizes: "ArrayLike", delta: float) -> Self:
        """Make the query over groups of these sizes, at an epsilon that is proven for each of them.

        Parameters
        ----------
        mechanism : PeerToPeer
        sizes : (n_groups,) whole numbers
            Users of each group: public, as the groups are. 0 for empty ones, at most 16384.
        delta : float
            0 < delta < 1, for example 1 / n^2.

        Returns
        -------
        Peer. Cost: that of `mechanism.epsilon`, once as a rule, and of `mechanism.delta` for every
        other size, which grows fast with it.
        """
        users = np.asarray(sizes)
        if users.ndim != 1 or not len(users) or users.dtype.kind not in "iu" or users.min() < 0:
            raise InvalidInput(
                "Expected the number of users of each group, whole and at least 0. For example"
                " np.bincount(groups)."
            )
        target, epsilon = _validate.fraction(delta=delta), SMALLEST_EPSILON
        for n in np.unique(users[users > 0]).tolist():
            if not _covers(mechanism, n, epsilon, target):
                epsilon = max(epsilon, mechanism.epsilon(n, target))
        return cls(2, epsilon, len(users), delta=target, flip=mechanism.flip, join=mechanism.join)

    @property
    def protocol(self) -> PeerToPeer:
        """The parameters of the protocol."""
        return PeerToPeer(self.flip, self.join)

    def value_shape(self) -> tuple[int, ...]:
        """(n_groups, 2): reported zeros and ones."""
        return self.n_groups, 2

    def require(self, n_rows: NDArray[np.int64], *, units: bool = False) -> None:
        """Refuse rows that are not one per user, and group sizes for which epsilon and delta are
        not proven."""
        if units:
            raise InvalidInput(
                "Expected a row a user peer to peer, got unit=. Give one row a user, named by ids=,"
                " or use a Histogram."
            )
        for n in np.unique(n_rows[n_rows > 0]).tolist():
            if not _covers(self.protocol, n, self.epsilon, self.delta):
                raise InvalidInput(
                    f"Expected an epsilon that holds for a group of {n} users at"
                    f" delta={self.delta!r}, got epsilon={self.epsilon!r}, made for others. Make"
                    " the query for these groups: Peer.of(mechanism, np.bincount(groups), delta)."
                )

    def streams(self, n_rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of word streams for groups with these numbers of rows, (g,): one per
        user."""
        return n_rows

    def release(
        self, counts: NDArray[np.int64], words: Words, max_rows_per_unit: int = 1
    ) -> NDArray[np.int64]:
        """Draw the reported zeros and ones of some groups: (g, 2) int64, from (g, 2) raw counts and
        one stream of words a user."""
        if (
            counts.ndim != 2
            or counts.shape[1] != 2
            or len(words) != counts.sum()
            or max_rows_per_unit != 1
        ):
            raise InvalidInput(
                f"Expected counts of 2 classes and the words of each user, got {counts.shape} and"
                f" {len(words)}."
            )
        if not len(words):
            return np.zeros_like(counts)
        # Users of a group differ only in their labels, and each asks a uniform one of them with
        # words of their own. So the law of the reports does not depend on who has which label, and
        # zeros may come first. For the same reason a bit says nothing about the user who reports
        # it: the learner's information about labels is the number of zeros and ones.
        groups = np.repeat(np.arange(len(counts)), counts.sum(axis=1))
        labels = np.repeat(np.tile([0, 1], len(counts)), counts.reshape(-1))
        users, bits = run(self.protocol, labels, groups, words)
        return np.bincount(2 * groups[users] + bits, minlength=counts.size).reshape(counts.shape)

    def shares(
        self, values: NDArray[np.int64], n_rows: NDArray[np.int64], max_rows_per_unit: int = 1
    ) -> NDArray[np.float64]:
        """Estimate the shares of ones, clipped to [0, 1], and of zeros; 1/2 in groups without
        reports: (g, 2)."""
        ones = ones_shares(self.protocol, values)
        return np.stack([1 - ones, ones], axis=1)


def _covers(mechanism: PeerToPeer, n_users: int, epsilon: float, delta: float) -> bool:
    """Return whether (epsilon, delta) is proven for a group of n users."""
    if epsilon >= mechanism.local_epsilon:
        return True
    if n_users > MOST_USERS:
        raise InvalidInput(
            f"Expected groups of at most {MOST_USERS} users, of which the exact accountant keeps"
            f" count; got one of {n_users}. Divide it by public facts."
        )
    return _delta(mechanism, n_users, epsilon) <= delta


@lru_cache(maxsize=1 << 12)
def _delta(mechanism: PeerToPeer, n_users: int, epsilon: float) -> float:
    return mechanism.delta(n_users, epsilon)


# The accountant: laws of the numbers of reports in floating point, with error bounds, rounded up
# -----------------------------------

# ln k! in integer multiples of 1 / this, so that differences, as in binomial coefficients, lose no
# digits
_UNIT = 1 << 45
_LARGEST = 700.0  # e^epsilon is finite in double precision up to here
_TAIL = 1e-14  # probability that each window may omit; omitted probability is added to delta
# numbers of true ones that are processed at a time, over the numbers of reports: a few megabytes
_PAIRS = 64
_SHARES = 32  # shares of noisy ones that are processed at a time: a few hundred kilobytes


@lru_cache(maxsize=4)
def _log_factorials(most: int) -> NDArray[np.int64]:
    """Compute ln k! for k up to `most` in whole multiples of 2^-45, each off by at most 1: from
    30-digit logarithms."""
    total, found = Decimal(0), [0]
    with localcontext() as context:
        context.prec = 30
        for k in range(1, most + 1):
            total += Decimal(k).ln()
            found.append(int(total * _UNIT))
    return np.array(found, dtype=np.int64)


class ReportLaws:
    """The laws of (t, ones) for every m, on windows that omit little of their mass."""

    def __init__(self, n: int, flip: float, join: float) -> None:
        self.n, self.flip, self.join = n, flip, join
        self.log_factorial = _log_factorials(1 << n.bit_length())
        chance = self.binomial(n, join)[:, 0] if join < 1 else np.ones(1)
        keep = _window(chance)
        self.times: NDArray[np.int64] = keep if join < 1 else np.array([n])
        self.time_chance = chance[keep] if join < 1 else chance

    def binomial(self, t: int, p: float | Floats, low: int = 0, high: int | None = None) -> Floats:
        """Compute Bin(t, p)(k) for k from low to high: (high - low + 1, number of p).

        Relative error of a value above e^-100: the addends are below 0.7 t + 100 then, and rounded
        five times, p once, and three log-factorials are off by 2^-45: at most (t + 64) 2^-50 +
        2^-43. All values below, (t + 1)^2 times e^-100 at most, are far below the 2^-40 of itself
        by which `LawPair` raises a delta that is never less than this error.
        """
        k, share = (
            np.arange(low, (t if high is None else high) + 1),
            np.atleast_1d(np.asarray(p, dtype=np.float64)),
        )
        inside = (share > 0) & (share < 1)
        yes, no = np.log(np.where(inside, share, 0.5)), np.log1p(-np.where(inside, share, 0.5))
        exponent = np.multiply.outer(k.astype(np.float64), yes)
        exponent += np.multiply.outer((t - k).astype(np.float64), no)
        exponent += (
            (self.log_factorial[t] - self.log_factorial[k] - self.log_factorial[t - k]) / _UNIT
        )[:, None]
        np.exp(exponent, out=exponent)
        if not inside.all():  # a certain bit
            exponent[:, ~inside] = k[:, None] == np.where(share[~inside] > 0.5, t, 0)
        return exponent

    def bits(self, m: int) -> Floats:
        """Compute the law of the number of noisy ones, except for 4 x _TAIL of its mass: (n +
        1,)."""
        some, others = (_reach(t, p) for t, p in ((m, 1 - self.flip), (self.n - m, self.flip)))
        kept, flipped = (
            self.binomial(m, 1 - self.flip, *some)[:, 0],
            self.binomial(self.n - m, self.flip, *others)[:, 0],
        )
        law = np.zeros(self.n + 1)
        both = np.convolve(kept, flipped)
        law[some[0] + others[0] :][: len(both)] = both
        return law

    def pairs(self, count: int) -> "Iterator[LawPair]":
        """Yield the laws of the reports at m and m + 1 true ones, for every m below `count`.

        Many m are processed together, on a common window: each law is computed once for both of its
        pairs, and Bin(t, b / n), which takes most of the time, once for all.
        """
        step = max(2, _PAIRS // len(self.times))
        for start in range(0, count, step):
            table = self._table(range(start, min(start + step, count) + 1))
            # Of each value: four binomials, a convolution and a sum of at most n + 1 positive
            # terms, two products. The missing counts as delta.
            error = 5 * ((self.n + 64) * 2.0**-50 + 2.0**-43)
            missing = np.maximum(0.0, 1.0 - table.sum(axis=0)) + error
            for i in range(table.shape[1] - 1):
                yield LawPair(table[:, i : i + 2], error, missing[i : i + 2])

    def _table(self, true: range) -> Floats:
        """Compute the law of the reports for each of these numbers of true ones: (outcomes,
        numbers), contiguous by column."""
        laws = np.stack([self.bits(m) for m in true], axis=1)
        keep = _window(laws.sum(axis=1))
        found = [
            chance * self._given(t, keep / self.n, laws[keep])
            for t, chance in zip(self.times.tolist(), self.time_chance, strict=True)
        ]
        return np.asfortranarray(np.concatenate(found))

    @staticmethod
    def _blocks(share: Floats) -> list[slice]:
        return [slice(start, start + _SHARES) for start in range(0, len(share), _SHARES)]

    @staticmethod
    def _reach(t: int, share: Floats) -> tuple[int, int]:
        """Return the counts that cover Bin(t, p) for a few neighbouring p."""
        lows, highs = zip(*(_reach(t, p) for p in (share[0], share[-1])), strict=True)
        return min(lows), max(highs)

    def _given(self, t: int, share: Floats, laws: Floats) -> Floats:
        """Compute the laws of the ones among t reports, from (len(share), ...) of the noisy bits, a
        few shares at a time."""
        blocks = self._blocks(share)
        reach = [self._reach(t, share[some]) for some in blocks]
        first = min(low for low, _ in reach)
        out = np.zeros((max(high for _, high in reach) - first + 1, laws.shape[1]))
        for some, (low, high) in zip(blocks, reach, strict=True):
            out[low - first : high - first + 1] += (
                self.binomial(t, share[some], low, high) @ laws[some]
            )
        return out


def _window(chance: Floats) -> NDArray[np.int64]:
    """Return the range of a law outside of which its probability is at most 2 x _TAIL."""
    return np.flatnonzero((np.cumsum(chance) > _TAIL) & (np.cumsum(chance[::-1])[::-1] > _TAIL))


def _reach(t: int, p: float) -> tuple[int, int]:
    """Return counts outside of which Bin(t, p) has less than _TAIL, by Bernstein: P[|X - t p| >= x]
    <= 2 exp(-x^2 / (2 v + x))."""
    spread, need = t * p * (1 - p), -math.log(_TAIL / 2)
    x = (need + math.sqrt(need * need + 8 * need * spread)) / 2 + 1
    return max(0, math.floor(t * p - x)), min(t, math.ceil(t * p + x))


@dataclass(frozen=True, eq=False)
class LawPair:
    """Two neighbouring laws on the same outcomes, (outcomes, 2): relative error at most `error`,
    probability outside at most `missing`."""

    table: Floats
    error: float
    missing: Floats

    def delta(self, epsilon: float) -> float:
        """Compute the larger hockey-stick divergence of the two directions, rounded up."""
        # a smaller epsilon has a larger delta
        gain = math.exp(min(epsilon, _LARGEST)) * (1 - 2.0**-50)
        best = 0.0
        for here, there in ((0, 1), (1, 0)):
            # Each error in the direction that makes delta larger.
            gap = (
                self.table[:, here] * (1 + self.error)
                - gain * (1 - self.error) * self.table[:, there]
            )
            best = max(best, float(np.maximum(gap, 0.0).sum()) + float(self.missing[here]))
        return min(1.0, best * (1 + 2.0**-40))

    def epsilon(self, delta: float, low: float, high: float) -> float:
        """Find by bisection an epsilon above `low` with certified divergence at most delta; `high`
        if none below is certified."""
        while high - low > 2.0**-20:
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high
