# SPDX-License-Identifier: Apache-2.0
"""Published tables of counts: reading them by names of columns and levels, asking for several at
one cost, learning from them.

Groupings(rows, by) --aggregate--> CountTable, CountTable, ...
    (or CountTable.from_frame, for counts of somebody else)
CountsClassifier(estimator).fit(rows, tables)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.utils.validation import check_is_fitted

from labeldp import _validate
from labeldp._hash import exact_array
from labeldp.aggregates import Aggregate, Marginals
from labeldp.custody._encode import column_names
from labeldp.errors import InvalidInput, LabelDPWarning, warn
from labeldp.evidence import NoisyLabels
from labeldp.learn._clusters import learner_of_counts
from labeldp.learn._corrections import (
    Model,
    fit_codes,
    fit_last,
    require_classifier,
    weight_keyword,
)
from labeldp.learn._data import Codes, Estimator, Floats, as_seconds, text_columns, time_columns
from labeldp.learn._softmax import CountNoise, count_evidence
from labeldp.protocol._matching import require_public_beside, row_count, take, together
from labeldp.protocol.metrics import warn_of_constant

Level = object
Cell = tuple[Level, ...]
Frame = Any  # of pandas or polars, an Arrow table, or a mapping of names to columns

# standard deviations of the noise: a count is off by more to one side with probability below 2e-7,
# also for Laplace noise
_FAR = 10.5
# and by so many rows, since noise of whole numbers has a heavier tail than its small variance says
_WHOLE = 3.0


# Columns of frames
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Column:
    """A public column as codes of its levels."""

    codes: Codes
    levels: tuple[Level, ...]


def _values(frame: Frame, name: str, whose: str) -> Any:
    """Return a column of a frame by its name, as an array."""
    names = column_names(frame)
    if name not in names:
        known = (", ".join(names[:20]) or "none") + (", ..." if len(names) > 20 else "")
        raise InvalidInput(
            f"Expected a column {name!r} in {whose}, got columns"
            f" {known}.{_validate.suggest(name, names)}"
        )
    column = frame[name]
    return (
        column
        if isinstance(column, pa.ChunkedArray | pa.Array)
        else column.to_numpy()
        if hasattr(column, "to_numpy")
        else column
    )


def _encoded(frame: Frame, name: str, whose: str) -> _Column:
    """Encode a public column; refuse missing values and several types in one."""
    values = _values(frame, name, whose)
    try:
        column = (
            pa.array(values, from_pandas=True)
            if not isinstance(values, pa.ChunkedArray | pa.Array)
            else values
        )
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        raise InvalidInput(
            f"Expected column {name!r} of {whose} of text, numbers or booleans, got other or"
            " several types. Convert it to text."
        ) from None
    missing = np.asarray(pc.is_null(column, nan_is_null=True))
    if missing.any():
        raise InvalidInput(
            f"Expected a value of {name!r} in every row of {whose}, got none in row"
            f" {int(missing.argmax())}. Give missing ones the level that the published tables have"
            " for them."
        )
    found = column.dictionary_encode()
    return _Column(found.indices.to_numpy().astype(np.int64), tuple(found.dictionary.to_pylist()))


def _numbers(frame: Frame, name: str, whose: str) -> Floats:
    """Return a column of numbers, NaN where there is none."""
    values = _values(frame, name, whose)
    values = values.to_pylist() if isinstance(values, pa.ChunkedArray | pa.Array) else values
    column = np.asarray(
        [np.nan if value is None else value for value in np.asarray(values, object).tolist()],
        object,
    )
    try:
        found = column.astype(np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"Expected numbers in column {name!r} of {whose}, got text. Read a mark for suppressed"
            " cells, such as '*' or '<10', as missing, and pass suppressed_below=."
        ) from None
    if np.isinf(found).any():
        raise InvalidInput(
            f"Expected finite numbers in column {name!r} of {whose}, got an infinite one in row"
            f" {int(np.isinf(found).argmax())}."
        )
    return np.asarray(found, np.float64)


# A published table
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CountTable:
    """Label counts in the cells of a contingency table over public columns, with noise of a known
    variance.

    Parameters
    ----------
    by : tuple of c str
        Names of the public columns; none for a table of one cell, the totals.
    cells : tuple of g tuples of c values
        Levels of these columns in each cell, all different. Cells that are not listed are unknown,
        or suppressed.
    classes : tuple of K values
        The labels that are counted.
    counts : (g, K) float64
        Published counts, of any sign; NaN where a count is missing.
    variance : float or (g, K) float64 >= 0
        Variance of the noise on a count: 2 b^2 for Laplace noise of scale b, sigma^2 for Gaussian
        noise, 0 for exact counts.
    suppressed_below : float, optional
        Counts below this number are not published. None (default): nothing is known of a missing
        count, and that it is missing says nothing of it.
    share : float or (g,) float64 in [0, 1], default=1.0
        Share of the rows that the table counted, chosen at random; not 0 everywhere.

    See Also
    --------
    CountsClassifier : learns from several tables.
    Groupings : asks for several tables at one cost.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame(
    ...     {"city": ["Graz", "Wien"], "bought_no": [412.0, 1033.5], "bought_yes": [-3.2, 87.1]}
    ... )
    >>> table = CountTable.from_frame(
    ...     frame, by="city", counts={"no": "bought_no", "yes": "bought_yes"}, variance=200.0
    ... )
    >>> table.cells, table.classes, table.counts.shape
    ((('Graz',), ('Wien',)), ('no', 'yes'), (2, 2))
    """

    by: tuple[str, ...]
    cells: tuple[Cell, ...]
    classes: tuple[object, ...]
    counts: Floats
    variance: float | Floats
    suppressed_below: float | None = None
    share: float | Floats = 1.0

    def __post_init__(self) -> None:
        counts = np.asarray(self.counts, np.float64)
        if counts.shape != (len(self.cells), len(self.classes)) or np.isinf(counts).any():
            raise InvalidInput(
                f"Expected finite counts of {len(self.cells)} cells and {len(self.classes)}"
                f" classes, got {counts.shape}."
            )
        if np.isnan(counts).all():
            raise InvalidInput(f"Expected at least one count in {self}, got none.")
        for what, values in (
            ("cells", self.cells),
            ("classes", self.classes),
            ("columns", self.by),
        ):
            repeated = (
                [value for i, value in enumerate(values) if value in values[:i]]
                if len(set(values)) < len(values)
                else []
            )
            if repeated:
                raise InvalidInput(
                    f"Expected {what} that are all different in {self}, got {repeated[0]!r} twice."
                    " Add such rows up, or drop one."
                )
        variance = np.asarray(self.variance, np.float64)
        if variance.shape not in ((), counts.shape) or not np.all(
            (variance[()] >= 0) & (variance[()] < np.inf)
        ):
            raise InvalidInput(
                f"Expected 0 <= variance < inf of the noise in {self}, one number or one a count;"
                f" got {_validate.shown(self.variance)}. Laplace noise of scale b has 2 b^2."
            )
        share = np.asarray(self.share, np.float64)
        if (
            share.shape not in ((), (len(counts),))
            or not np.all((share >= 0) & (share <= 1))
            or not share.any()
        ):
            raise InvalidInput(
                f"Expected 0 <= share <= 1, not 0 everywhere, in {self}, got"
                f" {_validate.shown(self.share)}."
            )
        if self.suppressed_below is not None:
            _validate.positive(suppressed_below=self.suppressed_below)
        object.__setattr__(self, "counts", counts)

    def __repr__(self) -> str:
        return f"CountTable(by={self.by}, {len(self.cells)} cells of {len(self.classes)} classes)"

    @classmethod
    def from_frame(
        cls,
        frame: Frame,
        by: str | Sequence[str],
        counts: Mapping[Any, str],
        *,
        variance: float | str,
        suppressed_below: float | None = None,
        share: float = 1.0,
    ) -> Self:
        """Read a table that has a row for each cell.

        Parameters
        ----------
        frame : DataFrame of pandas or polars, Arrow table, or mapping of names to columns
        by : str or sequence of str
            Public columns whose levels make the cells.
        counts : mapping of class value to column
            A class without a column was not counted.
        variance : float or str
            Variance of the noise on a count, or the column that has it.
        suppressed_below, share
            As in `CountTable`.

        Raises
        ------
        InvalidInput
            A column is missing, or no numbers; a cell is listed twice; a variance is negative.
        """
        names = (by,) if isinstance(by, str) else tuple(by)
        if not isinstance(counts, Mapping) or not counts:
            raise InvalidInput(
                "Expected counts as a mapping of class values to columns, {'no': 'n_no', 'yes':"
                f" 'n_yes'}}, got {_validate.shown(counts)}."
            )
        table = np.column_stack(
            [_numbers(frame, column, "the table") for column in counts.values()]
        )
        columns = [_encoded(frame, name, "the table") for name in names]
        levels = [[each.levels[code] for code in each.codes.tolist()] for each in columns]
        cells = tuple(zip(*levels, strict=True)) if columns else ((),) * len(table)
        noise = (
            np.repeat(_numbers(frame, variance, "the table")[:, None], table.shape[1], axis=1)
            if isinstance(variance, str)
            else variance
        )
        return cls(names, cells, tuple(counts), table, noise, suppressed_below, share)


# Asking for several tables
# --------------------------------------------------------------------------------------------------


class _NamedGroups(np.ndarray):
    """Groups of rows with the names of the columns that made them, which `labeldp.aggregate`
    compares with the label's.

    Attributes
    ----------
    columns : tuple of str
    """

    columns: tuple[str, ...]

    def __array_finalize__(self, made_of: object) -> None:
        """Keep the names in a selection of rows."""
        self.columns = getattr(made_of, "columns", ())

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the names in a pickle."""
        made: Any = super().__reduce__()
        return *made[:2], (made[2], self.columns)

    def __setstate__(self, state: Any) -> None:
        array, self.columns = state
        super().__setstate__(array)


@dataclass(frozen=True, eq=False, init=False)
class Groupings:
    """Public rows, grouped by several sets of columns: the question for several contingency tables
    at one cost, and its answer by name.

    Parameters
    ----------
    rows : DataFrame of pandas or polars, Arrow table, or mapping of names to columns
        n rows of public columns.
    by : sequence of T (str or sequence of str)
        The columns of each table.

    Attributes
    ----------
    by : tuple of T tuples of str
    groups : (n, T) int64
        Group of each row in each table. The array knows the names of its columns, so that
        `labeldp.aggregate` refuses the label's.
    cells : tuple of T tuples of cells
        Levels of each group: those that occur in the rows, which are public.
    sizes : tuple of T int
        Number of groups of each table.

    Raises
    ------
    InvalidInput
        A column is missing or has missing values; one is a function of the others of its table, or
        two tables divide the rows alike, so that epsilon would be divided for nothing.

    Examples
    --------
    >>> import numpy as np, labeldp as ldp
    >>> rng = np.random.default_rng(0)
    >>> rows = {
    ...     "city": rng.choice(["Graz", "Wien"], 500),
    ...     "age": rng.choice(["young", "old"], 500),
    ...     "paid": rng.choice(["yes", "no"], 500),
    ... }
    >>> asked = Groupings(rows, by=[("city", "age"), ("age", "paid")])
    >>> y = rng.integers(0, 2, 500)
    >>> labels = ldp.PrivateLabels(y, classes=[0, 1], noise=ldp.SeededNoise(0))
    >>> answer = ldp.aggregate(labels, asked.query(2, epsilon=1.0), asked.groups)
    >>> asked.tables(answer)
    [CountTable(by=('city', 'age'), 4 cells of 2 classes), CountTable(by=('age', 'paid'), 4 cells of
    2 classes)]
    """

    by: tuple[tuple[str, ...], ...]
    groups: Codes
    cells: tuple[tuple[Cell, ...], ...]
    sizes: tuple[int, ...]

    def __init__(self, rows: Frame, by: Sequence[str | Sequence[str]]) -> None:
        wanted = tuple((each,) if isinstance(each, str) else tuple(each) for each in by)
        if not wanted or not all(wanted):
            raise InvalidInput(
                "Expected the columns of at least one table, by=[('age', 'city'), 'job'], got none."
            )
        columns = {
            name: _encoded(rows, name, "the rows")
            for name in dict.fromkeys(name for names in wanted for name in names)
        }
        found = [_grouped(names, [columns[name] for name in names]) for names in wanted]
        for names, (groups, cells) in zip(wanted, found, strict=True):
            _require_crossed(names, columns, groups, len(cells))
        _require_different(wanted, found)
        object.__setattr__(self, "by", wanted)
        named = np.column_stack([groups for groups, _ in found]).view(_NamedGroups)
        named.columns = tuple(columns)
        object.__setattr__(self, "groups", named)
        object.__setattr__(self, "cells", tuple(cells for _, cells in found))
        object.__setattr__(self, "sizes", tuple(len(cells) for _, cells in found))

    def __repr__(self) -> str:
        return (
            f"Groupings({len(self.groups)} rows, {len(self.by)} tables of {sum(self.sizes)} cells)"
        )

    def query(
        self, n_classes: int, epsilon: float, mechanism: str = "laplace", delta: float = 0.0
    ) -> Marginals:
        """Make the query for all tables, which `labeldp.aggregate` takes together with `groups`;
        epsilon is the total of all tables."""
        return Marginals.of(n_classes, epsilon, self.sizes, mechanism, delta)

    def tables(self, answer: Aggregate) -> list[CountTable]:
        """Divide the answer to `query` into its tables, with the variance of their noise.

        Parameters
        ----------
        answer : Aggregate
        """
        if (
            not isinstance(answer, Aggregate)
            or not isinstance(answer.query, Marginals)
            or answer.query.sizes != self.sizes
        ):
            raise InvalidInput(
                f"Expected the answer to Marginals of {self.sizes} groups, the query of these"
                " groupings; got another one."
            )
        variance = answer.query.standard_deviation(answer.receipt.max_rows_per_unit) ** 2
        tables = []
        for t, (names, cells, start) in enumerate(
            zip(self.by, self.cells, answer.query.starts.tolist(), strict=True)
        ):
            part = slice(start, start + len(cells))
            # Rows over their unit's cap are in the groups, but not in the counts.
            share = answer.n_rows[part] / np.bincount(self.groups[:, t], minlength=len(cells))
            tables.append(
                CountTable(
                    names,
                    cells,
                    answer.classes,
                    answer.values[part].astype(np.float64),
                    variance,
                    None,
                    share,
                )
            )
        return tables


def _grouped(names: tuple[str, ...], columns: Sequence[_Column]) -> tuple[Codes, tuple[Cell, ...]]:
    """Number the combinations of levels that occur: the group of each row, and the levels of each
    group."""
    if len(set(names)) < len(names):
        raise InvalidInput(f"Expected different columns in a table, got {names}.")
    table = np.column_stack([column.codes for column in columns])
    distinct, groups = np.unique(table, axis=0, return_inverse=True)
    cells = tuple(
        tuple(column.levels[code] for column, code in zip(columns, row, strict=True))
        for row in distinct.tolist()
    )
    return np.asarray(groups, np.int64).reshape(-1), cells


def _require_crossed(
    names: tuple[str, ...], columns: Mapping[str, _Column], groups: Codes, size: int
) -> None:
    """Refuse a table of which one column follows from the others."""
    for name in reversed(names) if len(names) > 1 else ():
        others = tuple(each for each in names if each != name)
        if len(_grouped(others, [columns[each] for each in others])[1]) == size:
            raise InvalidInput(
                f"Expected columns that divide each other's levels, but {name!r} is a function of"
                f" {' and '.join(map(repr, others))}: the table of {names} is that of {others}."
                f" Leave {name!r} out."
            )


def _require_different(
    wanted: Sequence[tuple[str, ...]], found: Sequence[tuple[Codes, tuple[Cell, ...]]]
) -> None:
    """Refuse two tables that group the rows alike."""
    for a, b in combinations(range(len(found)), 2):
        (one, cells), (other, more) = found[a], found[b]
        if len(cells) == len(more) == len(np.unique(np.column_stack([one, other]), axis=0)):
            raise InvalidInput(
                f"Expected tables that divide the rows differently, but {wanted[a]} and {wanted[b]}"
                " have the same groups. Ask for one of them: the same epsilon then gives it less"
                " noise."
            )


# From tables to the rows
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Matched:
    """A table's counts in the order of the rows' groups, as `SoftmaxRegression.fit_counts` takes
    them."""

    groups: Codes
    counts: Floats
    variance: Floats
    counted: Floats
    below: Floats


def match_table(table: CountTable, rows: Frame, n_rows: int, classes: Sequence[object]) -> _Matched:
    """Find the cell of each public row in a table, by names of columns and levels; check the total.

    Parameters
    ----------
    table : CountTable
    rows : frame of public rows
    n_rows : int
    classes : sequence of K values
        In the order of the result's columns.

    Raises
    ------
    InvalidInput
        The rows lack a column or have no level of the table, or its counts cannot be theirs.
    """
    columns = [_encoded(rows, name, "the rows") for name in table.by]
    groups, present = (
        _grouped(table.by, columns) if columns else (np.zeros(n_rows, np.int64), ((),))
    )
    if len(groups) != n_rows:
        raise InvalidInput(f"Expected as many public rows as X has, {n_rows}, got {len(groups)}.")
    place = {cell: i for i, cell in enumerate(table.cells)}
    at = np.array([place.get(cell, -1) for cell in present])
    if (at < 0).all():
        raise InvalidInput(
            f"Expected cells of {table} that occur in the rows, got cells such as"
            f" {table.cells[0]!r} in the table and {present[0]!r} in the rows. Write levels alike."
        )
    _check_unmatched(table, np.setdiff1d(np.arange(len(table.cells)), at))
    order = [table.classes.index(value) if value in table.classes else -1 for value in classes]
    listed, known = at >= 0, np.array(order) >= 0
    counts = np.where(listed[:, None] & known, table.counts[at][:, order], np.nan)
    variance = np.broadcast_to(table.variance, table.counts.shape)[at][:, order]
    share = np.where(
        listed, np.broadcast_to(table.share, (len(table.cells),))[at], float(np.mean(table.share))
    )
    below = np.where(
        known & np.isnan(counts),
        np.nan if table.suppressed_below is None else table.suppressed_below,
        np.nan,
    )
    found = _Matched(
        groups, counts, variance, share * np.bincount(groups, minlength=len(present)), below
    )
    _check_total(table, found)
    return found


def _check_unmatched(table: CountTable, cells: Codes) -> None:
    """Warn of counts in cells of which the public rows have none: such rows are unknown, and the
    cells tell nothing."""
    counts = table.counts[cells]
    noise = np.broadcast_to(table.variance, table.counts.shape)[cells]
    known = ~np.isnan(counts)
    total, spread = float(counts[known].sum()), float(np.sqrt(noise[known].sum()))
    if total > _FAR * spread + 0.5:
        warn(
            LabelDPWarning(
                f"{table} counts about {total:,.0f} rows in {len(cells)} cells of which the public"
                f" rows have none, such as {table.cells[int(cells[0])]!r}. These cells are ignored."
                " If the rows were counted, add them to the public rows."
            )
        )


def _check_total(table: CountTable, found: _Matched) -> None:
    """Refuse counts that cannot be those of the rows: a total that is not their number, or counts
    of some classes above it or below 0.

    A table of the rows is refused with a probability below 1e-6: half of it is for the total of all
    classes, which may be off to two sides; a quarter for the sum of all counts; and a quarter for
    single counts.
    """
    known = ~np.isnan(found.counts)
    whole, some = (np.asarray(each) for each in (known.all(axis=1), known.any(axis=1)))
    sizes = np.bincount(found.groups, minlength=len(whole)).astype(np.float64)
    # at least the variance of a random part
    chance = sizes - found.counted if np.ndim(table.share) == 0 else np.zeros(len(sizes))
    # else what is published is the larger part of its noise
    if table.suppressed_below is None or known.all():
        for cells, exact in ((whole, True), (some, False)):
            if not cells.any():
                continue
            mine = known & cells[:, None]
            total, noise = (
                float(found.counts[mine].sum()),
                float(found.variance[mine].sum() + chance[cells].sum()),
            )
            expected, rows = float(found.counted[cells].sum()), float(sizes[cells].sum())
            if _off(total, expected if exact else 0.0, expected, noise):
                fix = (
                    f"if it counted a random part of them, pass share={total / rows:.3g}; else "
                    if exact and 0 < total < rows
                    else ""
                )
                wanted = (
                    f"add up to {'about' if exact else 'at most'} {expected:,.0f}, the rows in its"
                    " cells"
                )
                raise _other_rows(table, wanted, total, noise, fix)
    # then all of them are off as seldom as one would be: the tail of Laplace noise
    further = np.log(max(1, known.sum())) / np.sqrt(2)
    most, noises = found.counted[:, None], found.variance + chance[:, None]
    wrong = np.argwhere(
        known
        & _off(np.where(known, found.counts, 0.0), 0.0, most, np.where(known, noises, 0.0), further)
    )
    if len(wrong):
        i, j = wrong[0]
        wanted = (
            f"are at least 0 and at most the number of rows in the cell, {found.counted[i]:,.0f}"
        )
        raise _other_rows(table, wanted, float(found.counts[i, j]), float(noises[i, j]))


def _off(counts: Any, least: Any, most: Any, noise: Any, further: float = 0.0) -> Any:
    """Tell whether counts lie outside of a range by more than noise of this variance explains."""
    reach = (_FAR + further) * np.sqrt(noise) + np.where(np.equal(noise, 0), 0.5, _WHOLE)
    return (counts < least - reach) | (counts > most + reach)


def _other_rows(
    table: CountTable, expected: str, got: float, noise: float, fix: str = ""
) -> InvalidInput:
    """Make the error for counts of other rows than those given."""
    return InvalidInput(
        f"Expected counts of {table} that {expected}, got {got:,.0f} with noise of standard"
        f" deviation {np.sqrt(noise):.3g}. If the variance is right, the table counted other rows:"
        f" {fix}pass the rows that it counted."
    )


# The classifier
# --------------------------------------------------------------------------------------------------


class CountsClassifier(ClassifierMixin, BaseEstimator):
    """Learn single rows' labels from published noisy tables of counts, which may overlap, and from
    noisy labels of further rows, if any.

    The model's probabilities of the rows in a cell sum to the cell's expected counts; the model
    maximises the likelihood of all counts of all tables together. The public rows must be known, as
    features. Nothing here reads a label or costs epsilon.

    Parameters
    ----------
    estimator : LogisticRegression, SoftmaxRegression, or pipeline that ends in one, default=None
        It is cloned; its penalty is its own. None: columns of text as indicators, others
        standardized (dates and times, also such as text, as seconds), then LogisticRegression.
    student : classifier or pipeline whose fit takes sample weights, default=None
        A second model, such as gradient boosting, which learns `posterior_` and then predicts.
        None: the estimator predicts.
    classes : sequence of K values, default=None
        All class values. None: those of the tables.

    Attributes
    ----------
    classes_ : (K,) array
    estimator_ : fitted estimator (of class codes)
    student_ : fitted student (of class codes), if there is one
    posterior_ : (n, K) float64
        Probabilities of the rows' labels given features and tables: the estimator's, drawn to the
        counts as far as their noise says. Soft targets for any learner, for example a net.
    tables_ : tuple of CountTable

    See Also
    --------
    ProportionClassifier : finds clusters, asks for their counts, and learns from them.
    SoftmaxRegression.fit_counts : the same from arrays.

    References
    ----------
    Quadrianto et al. (2009), "Estimating Labels from Label Proportions"; composite likelihood:
    Varin, Reid and Firth (2011).

    Notes
    -----
    Each count is taken as normal, with the variance of the noise plus that of the labels, and
    counts are taken as independent: see `labeldp.learn._softmax.CountEvidence`. A suppressed count
    has the probability of being below the limit. Cost: some tens of iterations of O(n K (d + T))
    for T tables.

    Examples
    --------
    >>> import numpy as np, pandas as pd, labeldp as ldp
    >>> rng = np.random.default_rng(0)
    >>> rows = pd.DataFrame(
    ...     {
    ...         "city": rng.choice(["Graz", "Linz", "Wien"], 3000),
    ...         "age": rng.choice(["young", "old"], 3000),
    ...     }
    ... )
    >>> y = np.where((rows.age == "young") ^ (rng.random(3000) < 0.1), "yes", "no")
    >>> asked = Groupings(rows, by=["city", "age"])
    >>> labels = ldp.PrivateLabels(y, classes=["no", "yes"], noise=ldp.SeededNoise(0))
    >>> answer = ldp.aggregate(labels, asked.query(2, epsilon=0.2), asked.groups)
    >>> model = CountsClassifier().fit(rows, asked.tables(answer))
    >>> bool(model.score(rows, y) > 0.85)
    True
    """

    def __init__(
        self, estimator: Any = None, *, student: Any = None, classes: Sequence[object] | None = None
    ) -> None:
        self.estimator = estimator
        self.student = student
        self.classes = classes

    def fit(
        self,
        X: Any,
        tables: Sequence[CountTable],
        *,
        rows: Frame = None,
        released: "tuple[Any, NoisyLabels] | None" = None,
    ) -> Self:
        """Fit on tables.

        Parameters
        ----------
        X : (n, ...) features
            A data frame, or what the estimator takes.
        tables : sequence of CountTable
        rows : frame of n rows, optional
            The public columns by which the tables count. None (default): X itself.
        released : (X of m rows, NoisyLabels of these rows), optional
            Rows whose labels were released one by one, with their features in the columns of X.

        Raises
        ------
        InvalidInput
            A table does not fit the rows, or the tables do not have the same classes.
        """
        listed = [tables] if isinstance(tables, CountTable) else [*tables]
        if not listed or not all(isinstance(each, CountTable) for each in listed):
            raise InvalidInput(
                "Expected one or more CountTable, got others. CountTable.from_frame reads a data"
                " frame of counts."
            )
        classes = self._classes(listed, released)
        if released is not None:
            for frame in (X, rows, released[0]):
                require_public_beside(released[1], frame, "features")
        public = X if rows is None else rows
        if not column_names(public):
            raise InvalidInput(
                f"Expected rows= with the public columns by name, since X is {type(X).__name__}"
                " without names; got none."
            )
        found = [match_table(table, public, row_count(X), classes) for table in listed]
        told: dict[str, Any] = {
            name: [getattr(each, name) for each in found]
            for name in ("variance", "counted", "below")
        }
        groups, counts = (
            np.column_stack([each.groups for each in found]),
            [each.counts for each in found],
        )
        learner = self._learner(X)

        def fit(last: Estimator, F: Any, through: Any) -> Estimator:
            if released is None:
                return last.fit_counts(F, groups, counts, **told)
            more, noisy = together(*released, None)
            return last.fit_counts(
                F, groups, counts, **told, released=(through(more), noisy.log_likelihood())
            )

        self._model = Model(fit_last(learner, X, fit), len(classes))
        self.estimator_, self.classes_, self.tables_ = (
            self._model.estimator,
            exact_array(classes),
            tuple(listed),
        )
        log_p = np.log(np.maximum(self._model.predict_proba(X), np.finfo(np.float64).tiny))
        self.posterior_ = count_evidence(
            groups, counts, CountNoise(**told), row_count(X)
        ).posterior(log_p)
        self.__dict__.pop("student_", None)  # of an earlier fit
        if self.student is not None:
            n, k = self.posterior_.shape
            # each row once for each class, weighted by its probability
            rows, codes = np.tile(np.arange(n), k), np.repeat(np.arange(k), n)
            taught = fit_codes(self.student, X, rows, codes, self.posterior_.T.reshape(-1))
            self._model = Model(taught, k)
            self.student_ = self._model.estimator
        warn_of_constant(
            lambda some: self._model.predict_proba(take(X, some)), row_count(X), classes
        )
        return self

    def _learner(self, X: Any) -> Estimator:
        if self.student is not None:
            require_classifier(self.student)
            if weight_keyword(self.student) is None:
                raise InvalidInput(
                    "Expected a student whose fit takes sample_weight, got"
                    f" {type(self.student).__name__}. Teach it posterior_."
                )
        return learner_of_counts(_default_for(X) if self.estimator is None else self.estimator)

    def _classes(
        self, tables: Sequence[CountTable], released: "tuple[Any, NoisyLabels] | None"
    ) -> tuple[object, ...]:
        if released is not None and not (
            isinstance(released, tuple)
            and len(released) == 2
            and isinstance(released[1], NoisyLabels)
        ):
            raise InvalidInput(
                "Expected released=(features, NoisyLabels), got others. labeldp.read_noisy reads a"
                " released table."
            )
        known = tuple(dict.fromkeys(value for table in tables for value in table.classes))
        drawn = () if released is None else tuple(released[1].classes)
        wanted = tuple(self.classes) if self.classes is not None else drawn or known
        other = [value for value in (*known, *drawn) if value not in wanted]
        if other or (drawn and drawn != wanted):
            raise InvalidInput(
                f"Expected the same classes in all tables and labels, {wanted}, got {other[0]!r}"
                " too."
                if other
                else f"Expected classes= in the order of the noisy labels, {drawn}, got {wanted}."
            )
        if len(wanted) < 2:
            raise InvalidInput(
                f"Expected at least 2 classes, got {wanted}. If the tables count one of several,"
                " pass classes=."
            )
        return wanted

    def predict_proba(self, X: Any) -> Floats:
        """Predict probabilities of the classes: (n, K) float64, columns in the order of
        `classes_`."""
        check_is_fitted(self, "classes_")
        return self._model.predict_proba(X)

    def predict(self, X: Any) -> NDArray[np.generic]:
        """Predict the most likely class of each row: (n,) class values."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])


def _default_for(X: Any) -> Pipeline:
    """Make a logistic regression for columns of text and numbers, and of dates and times, which
    become seconds."""
    times = time_columns(X)
    texts = [j for j in text_columns(X) if j not in times]
    seconds = make_pipeline(FunctionTransformer(as_seconds), SimpleImputer(), StandardScaler())
    parts = [(OneHotEncoder(handle_unknown="ignore"), texts), (seconds, times)]
    encoder = (
        make_column_transformer(*parts, remainder=StandardScaler())
        if texts or times
        else StandardScaler()
    )
    return make_pipeline(encoder, LogisticRegression())
