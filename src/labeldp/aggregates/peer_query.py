# SPDX-License-Identifier: Apache-2.0
"""Peer to peer as a query: what the users of each group reported, at the epsilon that the exact accountant proves for the groups' sizes."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp.aggregates.base import SMALLEST_EPSILON, Query
from labeldp.aggregates.peer import MOST_USERS, PeerToPeer, ones_shares, reported, run
from labeldp.errors import InvalidInput
from labeldp.laws.base import Words


@dataclass(frozen=True)
class Peer(Query):
    """How many zeros and ones the users of each group report, if each hands on one noisy bit of a random one of them. Make it with `of`.

    Parameters
    ----------
    n_classes : int
        2.
    epsilon : float
        Total of one user, over all groups. What asks refuses groups of sizes that it does not hold for.
    n_groups : int
        Groups are numbered 0..n_groups-1; an empty one reports nothing.
    mechanism : {"peer-to-peer"}
    delta : float
        0 only where epsilon is that of the flips alone.
    flip, join : float
        As in `labeldp.aggregates.peer.PeerToPeer`.

    Notes
    -----
    Guarantee: towards whoever sees the answer, (epsilon, delta)-label-DP for each user, a row each, by `PeerToPeer.delta` at the size of
    every group, with every number of ones tried. Here a trusted curator runs the protocol that a deployment runs among the users.

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
                f"Expected two classes peer to peer, whose reports are bits; got n_classes={self.n_classes}. Use a Histogram."
            )
        protocol = self.protocol
        object.__setattr__(self, "flip", protocol.flip)
        object.__setattr__(self, "join", protocol.join)

    @classmethod
    def of(cls, mechanism: PeerToPeer, sizes: ArrayLike, delta: float) -> Self:
        """The query over groups of these sizes, at an epsilon that is proven for each of them.

        Parameters
        ----------
        mechanism : PeerToPeer
        sizes : (n_groups,) whole numbers
            Users of each group: public, as the groups are. 0 for empty ones, at most 16384.
        delta : float
            0 < delta < 1, for example 1 / n^2.

        Returns
        -------
        Peer. Cost: that of `mechanism.epsilon`, once as a rule, and of `mechanism.delta` for every other size, which grows fast with it.
        """
        users = np.asarray(sizes)
        if users.ndim != 1 or not len(users) or users.dtype.kind not in "iu" or users.min() < 0:
            raise InvalidInput("Expected the number of users of each group, whole and at least 0. For example np.bincount(groups).")
        target, epsilon = _validate.fraction(delta=delta), SMALLEST_EPSILON
        for n in np.unique(users[users > 0]).tolist():
            if not _covers(mechanism, n, epsilon, target):
                epsilon = max(epsilon, mechanism.epsilon(n, target))
        return cls(2, epsilon, len(users), delta=target, flip=mechanism.flip, join=mechanism.join)

    @property
    def protocol(self) -> PeerToPeer:
        """What runs."""
        return PeerToPeer(self.flip, self.join)

    def value_shape(self) -> tuple[int, ...]:
        """(n_groups, 2): reported zeros and ones."""
        return self.n_groups, 2

    def require(self, n_rows: NDArray[np.int64], *, units: bool = False) -> None:
        """Refuse rows that are not users of their own, and sizes of groups that epsilon and delta are not proven for."""
        if units:
            raise InvalidInput("Expected a row a user peer to peer, got unit=. Give one row a user, named by ids=, or use a Histogram.")
        for n in np.unique(n_rows[n_rows > 0]).tolist():
            if not _covers(self.protocol, n, self.epsilon, self.delta):
                raise InvalidInput(
                    f"Expected an epsilon that holds for a group of {n} users at delta={self.delta!r}, got epsilon={self.epsilon!r}, made "
                    "for others. Make the query for these groups: Peer.of(mechanism, np.bincount(groups), delta)."
                )

    def streams(self, n_rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """A stream of words for each user: (g,) from (g,) rows of some groups."""
        return n_rows

    def release(self, counts: NDArray[np.int64], words: Words, max_rows_per_unit: int = 1) -> NDArray[np.int64]:
        """Reported zeros and ones of some groups: (g, 2) int64, from (g, 2) raw counts and words of as many rows as there are users."""
        if counts.ndim != 2 or counts.shape[1] != 2 or len(words) != counts.sum() or max_rows_per_unit != 1:
            raise InvalidInput(f"Expected counts of 2 classes and the words of each user, got {counts.shape} and {len(words)}.")
        if not len(words):
            return np.zeros_like(counts)
        # Users of a group differ in nothing but their labels, each asks a uniform one of them, and draws words of their own: so who has
        # which label changes nothing in the law of the reports, and zeros may come first. In the same way a bit says nothing of the user
        # who reports it, and all that the learner has of the labels is how many zeros and ones there are.
        groups = np.repeat(np.arange(len(counts)), counts.sum(axis=1))
        labels = np.repeat(np.tile([0, 1], len(counts)), counts.reshape(-1))
        return reported(run(self.protocol, labels, groups, words), groups, len(counts))

    def shares(self, values: NDArray[np.int64], n_rows: NDArray[np.int64], max_rows_per_unit: int = 1) -> NDArray[np.float64]:
        """The unbiased share of ones, clipped to [0, 1], and that of zeros; 1/2 where nobody reported: (g, 2)."""
        ones = ones_shares(self.protocol, values)
        return np.stack([1 - ones, ones], axis=1)


def _covers(mechanism: PeerToPeer, n_users: int, epsilon: float, delta: float) -> bool:
    """Whether (epsilon, delta) is proven for a group of n users."""
    if epsilon >= mechanism.local_epsilon:
        return True
    if n_users > MOST_USERS:
        raise InvalidInput(
            f"Expected groups of at most {MOST_USERS} users, of which the exact accountant keeps count; got one of {n_users}. Divide it by "
            "public facts."
        )
    return _delta(mechanism, n_users, epsilon) <= delta


@lru_cache(maxsize=1 << 12)
def _delta(mechanism: PeerToPeer, n_users: int, epsilon: float) -> float:
    return mechanism.delta(n_users, epsilon)
