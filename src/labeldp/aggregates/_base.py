# SPDX-License-Identifier: Apache-2.0
"""The base class of aggregate queries: frozen values that turn the label counts of groups into
private values."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import text_array
from labeldp._validate import exact
from labeldp.aggregates import _gaussian
from labeldp.errors import InvalidInput
from labeldp.laws._exact import Words, whole_below

Result = TypeVar("Result")

SMALLEST_EPSILON = 1e-6
LARGEST_EPSILON = 700.0
LARGEST_TABLE = 1 << 31  # counts: 16 GB as int64
WIDEST_LAPLACE = 1 << 47
"""The largest scale of Laplace noise. Gaussian noise at the same epsilon is less than 2^6 times as
wide for any delta, so all noise fits into 64-bit counts (`labeldp.aggregates._discrete.WIDEST`)."""


@dataclass(frozen=True)
class Query(ABC):
    """A query about the labels of each group of rows, with its mechanism and privacy cost.

    Parameters
    ----------
    n_classes : int
        K >= 2.
    epsilon : float
        Total for one unit over all groups, since a row is in one group only.
    n_groups : int
        Number of groups, which are numbered 0..n_groups-1 and may be empty.
    mechanism : str
        One of `mechanisms`.
    delta : float
        0 (default) for a pure mechanism; in (0, 1) for Gaussian noise.
    """

    name: ClassVar[str]
    mechanisms: ClassVar[tuple[str, ...]]
    pure: ClassVar[frozenset[str]]
    of_features: ClassVar[bool] = False
    """Public features of rows are summed for each class, where other queries count the rows of
    groups."""

    fills: ClassVar[bool] = False
    """The numbers of classes and groups may be left out: `aggregate` takes them from its
    arguments."""

    n_classes: int = None  # type: ignore[assignment]
    epsilon: float = None  # type: ignore[assignment]
    n_groups: int = None  # type: ignore[assignment]
    mechanism: str = ""
    delta: float = 0.0

    def __post_init__(self) -> None:
        for name, low in (("n_classes", 2), ("n_groups", 1)):
            value = getattr(self, name)
            if not (value is None and self.fills):
                object.__setattr__(self, name, _validate.integer(low=low, **{name: value}))
        object.__setattr__(self, "epsilon", _validate.epsilon(self.epsilon))
        object.__setattr__(self, "delta", _validate.fraction(delta=self.delta, zero=True))
        if not (self.n_groups or 1) * (self.n_classes or 1) <= LARGEST_TABLE:
            raise InvalidInput(
                f"Expected at most {LARGEST_TABLE} counts, got {self.n_groups} groups of"
                f" {self.n_classes} classes."
            )
        _validate.one_of(self.mechanisms, mechanism=self.mechanism)
        if not SMALLEST_EPSILON <= self.epsilon <= LARGEST_EPSILON:
            raise InvalidInput(
                f"Expected {SMALLEST_EPSILON} <= epsilon <= {LARGEST_EPSILON} for an aggregate, got"
                f" {self.epsilon!r}."
            )
        if self.mechanism in self.pure and self.delta != 0:
            raise InvalidInput(
                f"Expected delta=0 with mechanism={self.mechanism!r}, which is pure; got"
                f" delta={self.delta!r}. Drop it."
            )
        if self.mechanism == "gaussian" and not self.delta > 0:
            raise InvalidInput(
                "Expected delta > 0 with mechanism='gaussian', got delta=0. Pass for example"
                " delta=1e-6."
            )

    @abstractmethod
    def release(
        self, counts: NDArray[np.int64], words: Words, max_rows_per_unit: int = 1
    ) -> NDArray[np.int64]:
        """Draw private values of g groups from (g, K) raw counts, with the words of as many rows as
        the groups have `streams`."""

    @property
    def n_tables(self) -> int:
        """The number of tables in which each row is counted."""
        return 1

    def value_shape(self) -> tuple[int, ...]:
        """Return the shape of the values of all groups, by default (n_groups, K)."""
        return self.n_groups, self.n_classes

    def groups_of_rows(self, groups: "ArrayLike", n_rows: int) -> NDArray[np.int64]:
        """Check the groups of rows as a user gives them: (n_rows,) numbers, or (n_rows, T) for a
        query about T tables."""
        where = check_groups(groups, self.n_groups)
        if len(where) != n_rows:
            raise InvalidInput(f"Expected groups of {n_rows} rows, got {len(where)}.")
        return where

    def about(self, n_classes: int, groups: "ArrayLike") -> Self:
        """Fill in the numbers of classes and groups, where they were left out."""
        missing = [name for name in ("n_classes", "n_groups") if getattr(self, name) is None]
        filled: dict[str, Any] = {"n_classes": n_classes}
        if "n_groups" in missing:
            filled["n_groups"] = int(check_groups(groups, LARGEST_TABLE).max(initial=0)) + 1
        return replace(self, **{name: filled[name] for name in missing})

    def streams(self, n_rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of streams of words that groups of these sizes need: (g,) from (g,). By
        default one for each count."""
        return np.full(len(n_rows), self.n_classes)

    def finish(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Do what takes the values of all groups at once; it sees no counts. Nothing by default."""
        return values

    def require(self, n_rows: NDArray[np.int64], *, units: bool = False) -> None:
        """Refuse sizes of groups, (n_groups,), or units, for which the query's guarantee does not
        hold. By default none."""
        return None

    def require_cap(self, max_rows_per_unit: int) -> int:
        """Check the cap on rows of one unit, for which the noise must fit into 64-bit counts."""
        cap = _validate.integer(max_rows_per_unit=max_rows_per_unit, low=1)
        most = whole_below(exact_share(self.epsilon, 2 * self.n_tables) * WIDEST_LAPLACE)
        if not cap <= most:
            raise InvalidInput(
                f"Expected max_rows_per_unit <= {most} at epsilon={self.epsilon!r}, got {cap}: the"
                " noise would leave 64-bit counts. Pass the most rows that one unit has, or ask for"
                " fewer tables."
            )
        return cap

    def shares(
        self, values: NDArray[np.int64], n_rows: NDArray[np.int64], max_rows_per_unit: int = 1
    ) -> NDArray[np.float64]:
        """Estimate the class shares of groups of (g,) rows from their private values: (g, K)
        float64, rows sum to 1."""
        raise InvalidInput(
            f"Expected the answer to a Histogram for a prior, got one to {self}. Use labels() or"
            " predict()."
        )

    def spent_delta(self, max_rows_per_unit: int = 1) -> float:
        """Return the delta of a release, which may be below the declared one."""
        return self.delta

    def to_dict(self) -> dict[str, object]:
        """Return the query as JSON-ready data."""
        return {"query": self.name} | asdict(self)

    def _check(self, counts: NDArray[np.int64], words: Words) -> None:
        if counts.ndim != 2 or counts.shape[1] != self.n_classes or len(words) != counts.size:
            raise InvalidInput(
                f"Expected counts of {self.n_classes} classes and words for each, got"
                f" {counts.shape} and {len(words)}."
            )

    def _variance(self, max_rows_per_unit: int) -> Fraction:
        """Return sigma^2 of the Gaussian noise on each count."""
        return _gaussian.calibrated_variance(self.epsilon, self.delta, max_rows_per_unit)


@dataclass(frozen=True)
class TeacherQuery(Query):
    """A query whose groups are questions to teachers, and which counts their votes: only what
    trains teachers may ask it.

    Parameters
    ----------
    n_teachers : int
        Each learns from rows of its own and gives one vote to each question.
    """

    n_teachers: int = field(kw_only=True)

    @property
    def n_queries(self) -> int:
        """Count the questions; the groups of this query."""
        return self.n_groups


class Tuning(ABC):
    """A random number of runs of pure mechanisms, of which the best alone is released: what
    `aggregate_best` charges and draws."""

    @abstractmethod
    def pure_epsilon(self, epsilon: float) -> float:
        """Return the epsilon of the whole tuning, from that of one run."""

    @abstractmethod
    def select(self, run: Callable[[int], tuple[float, Result]], words: Words) -> Result:
        """Return the result of the best run, from a function of a run's number to (score, result),
        and the words of one row."""

    @abstractmethod
    def to_dict(self) -> dict[str, float]:
        """Return what a ledger records of it."""


def exact_share(epsilon: float, parts: int) -> Fraction:
    """Divide epsilon exactly: the smaller of its binary and its decimal value."""
    # The mechanism must be within both: the claim is read as a decimal, and other code computes
    # with the binary number.
    return min(Fraction(epsilon), exact(epsilon)) / parts


def facts_of(
    data: object, known: Mapping[str, type[Query]]
) -> tuple[type[Query], dict[str, object]]:
    """Return the class and the fields of a query from JSON data; refuse an unknown query."""
    if not (isinstance(data, Mapping) and data.get("query") in known):
        given = data.get("query") if isinstance(data, Mapping) else type(data).__name__
        raise InvalidInput(
            f"Expected a query that is one of {', '.join(known)}; got {given!r}. A newer labeldp"
            " may know others."
        )
    return known[str(data["query"])], {
        str(name): value for name, value in data.items() if name != "query"
    }


def check_groups(groups: ArrayLike, n_groups: int) -> NDArray[np.int64]:
    """Check groups of rows: (n,) int64, all in 0..n_groups-1; numbers that no row has are empty
    groups."""
    array = text_array(groups)
    if np.ma.is_masked(groups):
        raise InvalidInput(
            "Expected a group for every row, got a masked array with masked ones. Give rows of no"
            " group one of their own."
        )
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InvalidInput(
            "Expected one whole number a row for its group, without missing ones; got"
            f" {array.dtype} of shape {array.shape}. Number the groups, and give rows of no group"
            " one of their own."
        )
    bad = np.flatnonzero((array < 0) | (array >= n_groups))
    if len(bad):
        raise InvalidInput(
            f"Expected groups in 0..{n_groups - 1}, got {int(array[bad[0]])} in row {bad[0]} (and"
            f" {len(bad) - 1} more). Raise n_groups, or number the groups from 0."
        )
    return array.astype(np.int64)
