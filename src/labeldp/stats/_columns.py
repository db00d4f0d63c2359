# SPDX-License-Identifier: Apache-2.0
"""Public columns beside noisy labels: groups, units, designs; and what of the outcome is asked
for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import exact_array, text_array
from labeldp.custody._encode import is_missing
from labeldp.errors import InvalidInput, LabelDPWarning, warn
from labeldp.evidence import NoisyLabels
from labeldp.protocol._matching import require_public_beside, together

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
Column = Any  # an array, or a column or table of pandas, polars or Arrow

INDEPENDENT = 1e-9  # share of a column's length that others must leave unexplained


@dataclass(frozen=True, eq=False)
class Levels:
    """A public column as codes.

    Attributes
    ----------
    codes : (n,) int64
        Position in `values`; -1 for rows of none of them.
    values : tuple
        The distinct values.
    """

    codes: Codes
    values: tuple[object, ...]


@dataclass(frozen=True, eq=False)
class Rows:
    """Noisy labels and public columns in one order.

    Attributes
    ----------
    noisy : NoisyLabels of n rows
    groups : Levels of n rows
        A single group of all rows if none are given.
    units : (n,) int64 or None
        Code of each row's unit; None: each row is its own unit.
    table : (n, p) float64
        Public numbers; of no column if none are given.
    """

    noisy: NoisyLabels
    groups: Levels
    units: Codes | None
    table: Floats


def rows_of(
    noisy: NoisyLabels,
    by: Column = None,
    *,
    groups: Sequence[object] | None = None,
    units: Column = None,
    ids: ArrayLike | None = None,
    X: Floats | None = None,
) -> Rows:
    """Match noisy labels, groups, units and numbers, by ids if they are given; leave out rows
    without evidence.

    Parameters
    ----------
    noisy : NoisyLabels
    by : (n,) or (n, columns) public column, optional
    groups : sequence of values of `by`, optional
        Only these, in this order, also those without rows. None (default): all values, sorted, or
        the categories of a categorical column.
    units : (n,) public column, optional
    ids : (n,) or (n, columns) array, optional

    Raises
    ------
    InvalidInput
        Lengths or ids do not match, values are missing, or a column has the name of the labels'
        own.
    """
    require_noisy(noisy)
    columns, told = matched(noisy, ids, by=by, units=units, X=X)
    kept = np.flatnonzero(told.evidenced)
    found = (
        levels_of(columns["by"], "by", groups)
        if by is not None
        else Levels(np.zeros(len(told), np.int64), ("all rows",))
    )
    people = None if units is None else levels_of(columns["units"], "units").codes[kept]
    if units is None:
        warn_of_units(told)
    return Rows(
        told if len(kept) == len(told) else told[kept],
        Levels(found.codes[kept], found.values),
        people,
        np.empty((len(kept), 0)) if X is None else columns["X"][kept],
    )


def matched(
    noisy: NoisyLabels, ids: ArrayLike | None, **columns: Column
) -> tuple[dict[str, Any], NoisyLabels]:
    """Bring public columns (None for one that is not given) and noisy labels into one order: by
    ids, or row by row."""
    found: dict[str, Any] = {}
    told = noisy
    for name, column in columns.items():
        if column is not None:
            require_public(column, name, noisy)
            found[name], told = together(_plain(column, name), noisy, ids, name)
    if not found and ids is not None:
        _, told = together(exact_array(ids), noisy, ids)
    return found, told


def _plain(column: Column, name: str) -> Any:
    """Return a column or table with `shape`: pandas as it is, anything else as a NumPy array."""
    if hasattr(column, "iloc") or _categories_of(column) is not None:
        return column
    if hasattr(column, "column_names") and hasattr(column, "to_pydict"):  # an Arrow table
        # in which each column keeps its type
        table = np.empty((column.num_rows, column.num_columns), object)
        for j, each in enumerate(column.column_names):
            table[:, j] = column[each].to_pylist()
        column = table
    # an Arrow column
    elif hasattr(column, "combine_chunks") or hasattr(column, "dictionary_encode"):
        column = np.asarray(column.to_pylist())
    _validate.unmasked(**{name: column})
    values = text_array(column)
    if values.ndim not in (1, 2):
        raise InvalidInput(
            f"Expected {name} as a column of one value a row, got shape {values.shape}."
        )
    return values


def require_public(column: object, name: str, noisy: NoisyLabels | None = None) -> None:
    """Refuse noisy labels in place of a public column, whose noise would be taken for values, and
    columns named as those of `noisy`."""
    if any(
        isinstance(each, NoisyLabels)
        for each in (column, *(column if isinstance(column, list | tuple) else ()))
    ):
        raise InvalidInput(
            f"Expected {name} as a public column, got NoisyLabels. How two private columns go"
            " together is in the frequencies of their combinations, if both were released together"
            " (labeldp.LabelColumns): labeldp.stats.frequencies(noisy)."
        )
    if noisy is not None:
        require_public_beside(noisy, column, name)


def levels_of(column: Any, name: str, wanted: Sequence[object] | None = None) -> Levels:
    """Encode a column by its distinct values; a table by its distinct rows, as tuples."""
    kinds = _categories_of(column)
    if kinds is not None:
        codes, values = np.asarray(kinds.codes, np.int64), tuple(kinds.categories.tolist())
        missing = codes < 0
    else:
        codes, values, missing = _encoded(
            text_array(column.to_numpy() if hasattr(column, "iloc") else column), name
        )
    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        raise InvalidInput(
            f"Expected a value of {name} in every row, got none in row {row}. Give missing ones a"
            " value of their own."
        )
    if wanted is None:
        return Levels(codes, values)
    names = tuple(wanted)
    place = {
        (
            _values(np.array([value]))[0]
            if isinstance(value, np.datetime64 | np.timedelta64)
            else value
        ): i
        for i, value in enumerate(names)
    }
    if len(place) != len(names) or not names:
        raise InvalidInput(
            f"Expected groups that are all different, at least one, got {len(names)} of which"
            f" {len(place)} differ."
        )
    if values and place.keys().isdisjoint(values):
        raise InvalidInput(
            f"Expected groups= to name values of {name}, got none that it has: {_listed(names)}. It"
            f" has {_listed(values)}."
        )
    return Levels(np.array([place.get(value, -1) for value in values], np.int64)[codes], names)


def _categories_of(column: Any) -> Any:
    """Return what has `codes` and `categories` of a categorical column of pandas, also one without
    a Series; None for all others."""
    found = getattr(column, "cat", column) if getattr(column, "ndim", 1) == 1 else None
    return found if hasattr(found, "codes") and hasattr(found, "categories") else None


def _encoded(
    values: NDArray[Any], name: str
) -> tuple[Codes, tuple[object, ...], NDArray[np.bool_]]:
    if values.ndim == 2:
        parts = [_encoded(values[:, j], name) for j in range(values.shape[1])]
        stacked = np.column_stack([codes for codes, _, _ in parts])
        unique, codes = np.unique(stacked, axis=0, return_inverse=True)
        found = tuple(tuple(parts[j][1][c] for j, c in enumerate(row)) for row in unique.tolist())
        return (
            np.asarray(codes, np.int64).reshape(-1),
            found,
            np.any([missing for _, _, missing in parts], axis=0),
        )
    kinds = "OfcmM"  # types of which a value can be missing
    gaps = np.array(
        [values.dtype.kind in kinds and is_missing(value) for value in values.tolist()], bool
    )
    try:
        unique, codes = np.unique(values[~gaps], return_inverse=True)
    except TypeError:
        raise InvalidInput(
            f"Expected {name} as a column of one type, got several. Convert it to text."
        ) from None
    full = np.zeros(len(values), np.int64)
    full[~gaps] = codes.reshape(-1)
    return full, _values(unique), gaps


def _values(unique: NDArray[Any]) -> tuple[object, ...]:
    """Return values as Python's; times that are finer than a microsecond, which Python does not
    know, as NumPy's."""
    if unique.dtype.kind in "mM" and np.datetime_data(unique.dtype)[0] in ("ns", "ps", "fs", "as"):
        rounded = unique.astype(f"{unique.dtype.kind}8[us]")
        return tuple(rounded.tolist() if (rounded == unique).all() else unique)
    return tuple(unique.tolist())


def require_noisy(noisy: object) -> NoisyLabels:
    """Return NoisyLabels; refuse anything else: raw labels above all, since a figure of them has no
    guarantee."""
    if not isinstance(noisy, NoisyLabels):
        raise InvalidInput(
            f"Expected NoisyLabels, got {type(noisy).__name__}. Release labels by"
            " labeldp.privatize, read a released table by labeldp.read_noisy, or declare another"
            " mechanism's by NoisyLabels.from_labels; for public labels use another library."
        )
    return noisy


def warn_of_units(noisy: NoisyLabels) -> None:
    """Warn that standard errors take rows for independent, although the release was by units of
    several rows."""
    kinds = sorted(
        {
            receipt.unit
            for receipt in noisy.receipts
            if receipt.unit != "row" and receipt.max_rows_per_unit > 1
        }
    )
    if kinds:
        warn(
            LabelDPWarning(
                f"The labels were released by units of several rows ({', '.join(kinds)}), whose"
                " labels may be alike, and standard errors take all rows for independent. Pass"
                " units= with the unit of each row."
            )
        )


# What of the outcome is asked for
# --------------------------------------------------------------------------------------------------


def numbers_of(noisy: NoisyLabels, of: object = None) -> Floats:
    """Return the number that each class counts as: (K,) float64.

    Parameters
    ----------
    noisy : NoisyLabels
    of : None, class value, collection of class values, or mapping of class value to number
        None: the class values themselves, which must be numbers. A class, or several: 1 for these
        and 0 for the others, so that a mean is their share. A mapping has a number for every class.

    Raises
    ------
    InvalidInput
        A class is not declared, a number is missing or not finite, or class values are no numbers.
    """
    classes = noisy.classes
    if of is None:
        found = [number_of(value) for value in classes]
        if None in found:
            raise InvalidInput(
                f"Expected class values that are finite numbers, got {_listed(classes)}. Say which"
                f" share is meant, of={classes[-1]!r}, or what each class counts as, of={{class:"
                " number, ...}."
            )
        return np.array(found, np.float64)
    if isinstance(of, Mapping):
        found = [number_of(of.get(value)) for value in classes]
        if None in found or set(of) - set(classes):
            raise InvalidInput(
                f"Expected a finite number for each of the classes {_listed(classes)}, and nothing"
                " else, in of=."
            )
        return np.array(found, np.float64)
    chosen = (
        list(of)
        if isinstance(of, list | tuple | set | frozenset) and not _is_class(of, classes)
        else [of]
    )
    for value in chosen:
        if not _is_class(value, classes):
            hint = _validate.suggest(value, [str(each) for each in classes])
            raise InvalidInput(
                f"Expected of= to name declared classes, {_listed(classes)}; got"
                f" {_validate.shown(value)}.{hint}"
            )
    return np.array([any(value == each for each in chosen) for value in classes], np.float64)


def _is_class(value: object, classes: tuple[object, ...]) -> bool:
    try:
        return value in classes
    except ValueError:  # an array compares element by element
        return False


def number_of(value: Any) -> float | None:
    """Return a class value as a finite number; None if it is none. True and False count as 1 and
    0."""
    if isinstance(value, str | bytes):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if np.isfinite(number) else None


def _listed(classes: Sequence[object]) -> str:
    return ", ".join(map(repr, classes[:5])) + (
        f" and {len(classes) - 5} more" if len(classes) > 5 else ""
    )


# Designs
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Design:
    """Public numeric columns of a regression.

    Attributes
    ----------
    table : (n, p) float64
    names : tuple of p str
    """

    table: Floats
    names: tuple[str, ...]


def design_of(
    X: Any, names: Sequence[str] | None = None, *, intercept: bool, noisy: NoisyLabels | None = None
) -> Design:
    """Check public columns and make a design.

    Parameters
    ----------
    X : (n, d) array, pandas or polars frame or Arrow table; or (n,) for one column
        Numbers or booleans. Text must be encoded first, for example by
        pandas.get_dummies(drop_first=True).
    names : sequence of d str, optional
        None: the frame's, else x1, x2, ...
    intercept : bool
        Put a column of ones, "intercept", first.
    noisy : NoisyLabels, optional
        The labels beside them.

    Raises
    ------
    InvalidInput
        A column has the name of the labels' own, values are no finite numbers, or a column is a
        linear combination of others.
    """
    require_public(X, "X", noisy)
    table, found = _numbers(X)
    wanted = tuple(map(str, names)) if names is not None else found
    if len(wanted) != table.shape[1] or len(set(wanted)) != len(wanted):
        raise InvalidInput(
            f"Expected {table.shape[1]} different names, one a column of X, got {len(wanted)}."
        )
    if not np.isfinite(table).all():
        row, column = map(int, np.argwhere(~np.isfinite(table))[0])
        raise InvalidInput(
            f"Expected finite numbers in X, got none in row {row} of {wanted[column]!r}. Fill or"
            " drop it."
        )
    if intercept:
        table, wanted = np.column_stack([np.ones(len(table)), table]), ("intercept", *wanted)
    return Design(table, wanted)


def _numbers(X: Any) -> tuple[Floats, tuple[str, ...]]:
    if hasattr(X, "column_names") and hasattr(X, "to_pydict"):  # an Arrow table
        columns, names = (
            [np.asarray(X[name].to_numpy()) for name in X.column_names],
            tuple(map(str, X.column_names)),
        )
    elif hasattr(X, "columns") and hasattr(X, "shape"):  # a frame of pandas or polars
        names = tuple(map(str, X.columns))
        columns = [
            np.asarray((X.iloc[:, j] if hasattr(X, "iloc") else X[:, j]).to_numpy())
            for j in range(X.shape[1])
        ]
    else:
        _validate.unmasked(X=X)
        values = np.asarray(X.toarray() if hasattr(X, "toarray") else X)
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2:
            raise InvalidInput(
                "Expected X with a row for each noisy label and a column for each variable, got"
                f" shape {values.shape}."
            )
        columns, names = (
            [values[:, j] for j in range(values.shape[1])],
            tuple(f"x{j + 1}" for j in range(values.shape[1])),
        )
        names = (
            (str(X.name),) if getattr(X, "name", None) is not None and len(names) == 1 else names
        )
    for name, column in zip(names, columns, strict=True):
        if column.dtype.kind not in "biuf" and not _numeric(column):
            raise InvalidInput(
                f"Expected columns of numbers, got {name!r} of {column.dtype}. Encode categories"
                " first, for example by pandas.get_dummies(X, drop_first=True)."
            )
    rows = len(columns[0]) if columns else len(X)
    return (np.column_stack(columns).astype(np.float64) if columns else np.empty((rows, 0))), names


def _numeric(column: NDArray[Any]) -> bool:
    if column.dtype.kind != "O" or any(isinstance(value, str | bytes) for value in column.tolist()):
        return False
    try:
        column.astype(np.float64)
    except (TypeError, ValueError):
        return False
    return True


def require_rank(design: Design) -> None:
    """Refuse a design of fewer rows than columns, or with a column that is a linear combination of
    those before it, by name."""
    n, p = design.table.shape
    if n <= p:
        raise InvalidInput(
            f"Expected more rows with evidence than columns, got {n} rows for {p} columns. Drop"
            " columns."
        )
    length = np.sqrt((design.table**2).sum(axis=0))
    # Without pivoting, the diagonal is the distance of each column from the span of those before
    # it.
    left = np.abs(
        np.diagonal(np.linalg.qr(design.table / np.where(length > 0, length, 1.0), mode="r"))
    )
    bad = np.flatnonzero(~(left > INDEPENDENT))
    if len(bad):
        j = int(bad[0])
        flat = np.ptp(design.table[:, j]) == 0
        why = (
            "is 0 in every row"
            if not length[j]
            else "is constant"
            if flat
            else "is a linear combination of the columns before it"
        )
        raise InvalidInput(
            f"Expected linearly independent columns, but {design.names[j]!r} {why}, so that no data"
            " tell its coefficient. Drop it, or the intercept."
        )
