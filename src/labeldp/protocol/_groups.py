# SPDX-License-Identifier: Apache-2.0
"""Priors that are paid for: which group each row is in is public, what the labels of a group are like is asked for once, privately.

The question is a histogram of the same labels that the law then draws from, in the same ledger, data set and column: the two add.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp._hash import array_digest, digest
from labeldp._rounding import exact, float_down
from labeldp.errors import InvalidInput
from labeldp.laws import Law

if TYPE_CHECKING:  # a machine that only trains has none of what custody and aggregates need
    from labeldp.aggregates import Aggregate, Query
    from labeldp.custody._aggregation import GroupAnswer


@dataclass(frozen=True, eq=False)
class GroupPlan:
    """A question about groups before it is paid for, of a prior or by itself: public, and fixed before anything is charged.

    Attributes
    ----------
    groups : (n,) int64
        Which group each row is in: a function of public features.
    query : Query
        The question, with what it costs; of a prior a Histogram.
    epsilon : float
        What it leaves for the law, rounded down; 0 where no law follows.
    law : Law or None
        A law that goes with this division of the budget; None: the one that the user asked for.
    found : Found or None
        How groups of other rows are found, for the estimator that asked.
    request : function of an order of the rows, or None
        Gives the digest of what the groups follow from, by which a ledger knows a repeat; None: the groups themselves.
    """

    groups: NDArray[np.int64]
    query: "Query"
    epsilon: float
    law: Law | None = None
    found: "Found | None" = None
    request: Callable[[NDArray[np.intp] | None], str] | None = None

    @property
    def digest(self) -> str:
        """Of the public facts that the prior follows from, but for the answer."""
        return digest({"groups": array_digest({"groups": self.groups}), "query": self.query.to_dict()})

    def as_asked(self, asked: "GroupAnswer") -> "GroupPlan":
        """The groups that were asked, which are older than these where an answer was found."""
        return replace(self, groups=asked.groups, found=None if self.found is None else self.found.restored(asked.kept))


class Found(Protocol):
    """How groups of other rows are found."""

    @property
    def kept(self) -> Mapping[str, NDArray[Any]]:
        """What is kept with the answer."""
        ...

    def restored(self, kept: Mapping[str, NDArray[Any]]) -> Self:
        """The same as it was when the groups were asked."""
        ...

    def model_of(self, answer: "Aggregate") -> Any:
        """What an answer about the groups says of any row: a model with `predict_proba`."""
        ...


class GroupPrior(Protocol):
    """What an estimator's `prior=` must have to be a prior of groups."""

    def plan_groups(self, X: Any, *, n_rows: int, n_classes: int, epsilon: float, max_rows_per_unit: int, law: "str | Law") -> GroupPlan:
        """Group the rows of X and divide the budget; everything that is wrong is refused here.

        Parameters
        ----------
        X : (n, ...) features
        n_rows, n_classes, max_rows_per_unit : int
        epsilon : float
            For the histogram and the law together.
        law : str or Law
            As the user asked for it.
        """
        ...


def is_group_prior(prior: Any) -> TypeGuard[GroupPrior]:
    """Whether a prior groups rows and asks the labels, instead of being known."""
    return hasattr(prior, "plan_groups")


def left_of(epsilon: float, part: float, what: str = "the prior") -> float:
    """What a part leaves of a budget: the two together, read as the decimals that they show, are not above it.

    Parameters
    ----------
    epsilon, part : float
    what : str
        Whose part it is, for the message.
    """
    total, first = exact(_validate.epsilon(epsilon)), exact(_validate.epsilon(part))
    if not first < total:
        raise InvalidInput(
            f"Expected {what} to cost less than the total epsilon={epsilon!r}, got {part!r}. Lower it: something must be left for labels."
        )
    rest = float_down(total - first)
    if not rest > 0:
        raise InvalidInput(f"Expected {what} to leave something of epsilon={epsilon!r}, got {part!r}. Lower it.")
    return rest
