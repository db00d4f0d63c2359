# SPDX-License-Identifier: Apache-2.0
"""Encodes raw labels as class codes, and collects the ids and units of their rows with the names of
these columns.

No message shows a label, or the number of labels of a class. Ids are compared only with ids of the
same name: ids of two columns, say of patients and of visits, do not prove rows different. The name
is what the caller says, or what a column of pandas, polars or Arrow carries.
"""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from numbers import Number
from typing import Any, NamedTuple, ParamSpec, TypeGuard, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import exact_array, text_array
from labeldp._validate import joined, suggest
from labeldp.errors import (
    DomainLeakWarning,
    InvalidInput,
    LabelDPError,
    LabelDPWarning,
    WrongType,
    warn,
)
from labeldp.laws._columns import LabelColumns, as_classes
from labeldp.laws._grid import Grid, as_numbers
from labeldp.ledger._database import ROW

INFER = "infer"
"""The value of `classes=` by which the classes are read off the private labels."""

Classes = Sequence[object] | NDArray[np.generic]

MOST_READ_OFF = 100_000
_SCALARS = (str, int, float, np.generic, Number)
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
_WHOLE = re.compile(r"[+-]?\d+")
EXACT = 2**53  # up to here every whole number is a float


class Codes(np.ndarray[Any, np.dtype[np.int32]]):
    """Class codes of raw labels, which messages and tracebacks with variables do not show."""

    def __repr__(self) -> str:
        return f"<{self.size} private labels>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)


class Closed:
    """What `PrivateLabels` are to modules that load nothing of the ledger."""

    __slots__ = ("__weakref__",)


def is_closed(labels: object) -> TypeGuard[Any]:
    """Tell whether labels are `PrivateLabels`."""
    return isinstance(labels, Closed)


def require_closed(labels: object, besides: str = "") -> None:
    """Refuse raw labels that are not closed; `besides` is what else the caller takes."""
    if not is_closed(labels):
        raise WrongType(
            f"Expected PrivateLabels{besides}, got {type(labels).__name__}. Close raw labels first:"
            " labels = labeldp.PrivateLabels(y, classes=[...]), of numbers range=(low, high). For"
            " public data add noise=labeldp.SeededNoise(0)."
        )


def infers(classes: object) -> bool:
    """Tell whether `classes` is "infer", by which the classes are read off the labels."""
    return isinstance(classes, str) and classes == INFER


def classes_for(labels: ArrayLike, classes: Classes | None) -> tuple[tuple[object, ...], bool]:
    """Determine the classes of some labels, and whether they were read off the labels.

    Parameters
    ----------
    labels : (n,) raw labels
        Their values are read with "infer" only; otherwise just their type.
    classes : sequence of K values, Grid, "infer", or None
        None is refused, with an example of the labels' type.

    Returns
    -------
    classes : tuple of K values
    inferred : bool

    Raises
    ------
    InvalidInput
        No classes are declared, or the declared or inferred values cannot be classes.
    """
    if classes is not None and not infers(classes):
        return declare(classes), False
    if isinstance(labels, Mapping) or (
        len(getattr(labels, "shape", ())) == 2 and np.shape(labels)[1] > 1
    ):
        raise InvalidInput(
            "Expected one column of labels, or several with their declared classes, got several"
            " without. Declare each column's: classes={'bought': [...], 'returned': [...]}."
        )
    array = as_array(labels)
    if not len(array):
        raise InvalidInput("Expected at least one label, got none.")
    kind = array.dtype.kind
    if classes is None:
        raise undeclared(kind)
    occurring = (
        array.tolist()
        if kind == "O"
        else list(np.unique(array))
        if kind in "mM"
        else np.unique(array).tolist()
    )
    return declare(read_off(occurring, len(array), floats=kind == "f")), True


def declare(
    classes: Classes, n_classes: int | None = None, *, null: bool = False
) -> tuple[object, ...]:
    """Check declared classes and return them as a tuple of plain values; a `Grid` stays one.

    Parameters
    ----------
    classes : sequence of values, or Grid
    n_classes : int, optional
        The required number of classes.
    null : bool
        Allow None as a class. False by default.

    Raises
    ------
    InvalidInput
        They are fewer than two, not all different, of another number than `n_classes`, or some are
        missing or no plain values.
    """
    if isinstance(classes, LabelColumns):
        for values in classes.lists:
            declare(values)
        if n_classes not in (None, len(classes)):
            raise InvalidInput(
                f"Expected {n_classes} classes, as many as the law is about, got {len(classes)}"
                " combinations. Make the law with .law."
            )
        return classes
    listed = classes if isinstance(classes, Grid) else _listed(classes)
    if any(isinstance(v, np.datetime64) and isinstance(v.item(), int) for v in listed):
        # NumPy makes numbers of nanoseconds, which would be classes that no reader knows again.
        raise InvalidInput(
            "Expected classes that are plain values, got times in nanoseconds. Make labels and"
            " classes text, such as '2024-01-31'."
        )
    values = as_classes(listed)
    if any(is_missing(value) for value in values if not (null and value is None)):
        raise InvalidInput(
            "Expected classes without missing values; name a class for them and fill them in."
        )
    # Classes enter keys and digests by their repr, so they must be plain values that have the same
    # repr on every machine.
    if not all(value is None or type(value) in _validate.PLAIN for value in values):
        raise InvalidInput(
            "Expected classes that are plain values, text or numbers, got others, such as lists,"
            " times or bytes. Write classes=['no', 'yes'], and make text of the labels, too."
        )
    if len(set(values)) != len(values):
        raise InvalidInput(
            f"Expected different classes, got {len(values)} of which {len(set(values))} are"
            " different."
        )
    texts = {value for value in values if isinstance(value, str)}
    if not texts.isdisjoint(str(value) for value in values if not isinstance(value, str | None)):
        # NumPy makes a list of both text, and then nobody can tell which one a label is.
        raise InvalidInput(
            "Expected classes that differ as text, got two that are written alike, such as 1 and"
            " '1'. Rename one."
        )
    if len(set(exact_array(values).tolist())) != len(values):
        raise InvalidInput(
            "Expected classes that stay different in one array, got some that do not. Write all as"
            " text, without NULs."
        )
    if len(values) < 2:
        raise InvalidInput(
            f"Expected at least 2 classes, got {len(values)}. One class needs no privacy."
        )
    if n_classes is not None and len(values) != n_classes:
        raise InvalidInput(
            f"Expected {n_classes} classes, as many as the law or the query is about, got"
            f" {len(values)}."
        )
    return values


def _listed(classes: Any) -> tuple[object, ...]:
    """Return the members of a list of classes; refuse a text, a number, and a set, whose order (and
    so the codes) is not defined."""
    if isinstance(classes, bool | int | np.integer):
        fix = (
            f"Write classes=range({classes}) for the codes from 0 on, or list the values that a"
            " label can have."
        )
        raise InvalidInput(f"Expected classes to be a list of values, got {classes!r}. {fix}")
    if isinstance(classes, str | bytes | set | frozenset):
        what = (
            "a set, which has no order"
            if isinstance(classes, set | frozenset)
            else f"one text, {classes!r}"
        )
        raise InvalidInput(
            f"Expected classes to be a list of values, got {what}. Write classes=['no', 'yes'] with"
            " the values of yours."
        )
    try:
        return tuple(classes)
    except TypeError:
        raise InvalidInput(
            f"Expected classes to be a list of values, got {type(classes).__name__}. Write"
            " classes=['no', 'yes'] with the values of yours."
        ) from None


def is_missing(value: object) -> bool:
    """Tell whether a value is None, NaN, NaT or pandas.NA."""
    try:
        return value is None or bool(value != value)  # NaN and NaT differ from themselves
    except (TypeError, ValueError):
        return True  # pandas.NA is neither


def undeclared(kind: str = "") -> InvalidInput:
    """Make the error that asks for declared classes; `kind` is the NumPy kind of the labels' type,
    which is public."""
    example = {"b": "classes=[False, True]", "i": "classes=[0, 1]", "u": "classes=[0, 1]"}.get(
        kind, "classes=['no', 'yes']"
    )
    return InvalidInput(
        "Expected the classes that a label can have, got none. Declare yours, for example"
        f" {example}; or say classes='infer' to have them read off the private labels, which tells"
        " everybody which classes occur."
    )


def most_read_off(n_rows: int) -> int:
    """Return the largest number of classes that may be read off the labels of n rows: sqrt(n), at
    least 2 and at most 100,000."""
    # With sqrt(n) classes, a class has sqrt(n) rows on average. Columns of measurements or free
    # text, where hardly two rows agree, exceed it, and their list of classes would publish the
    # labels. It depends on n alone, so exceeding it reveals little.
    return min(MOST_READ_OFF, max(2, math.isqrt(n_rows)))


def read_off(values: Collection[Any], n_rows: int, *, floats: bool = False) -> tuple[object, ...]:
    """Read the classes off the labels, sorted, and warn that this reveals which classes occur.

    Parameters
    ----------
    values : collection
        The labels, with or without repeats.
    n_rows : int
        Number of rows of the column.
    floats : bool, default=False
        True if the column's type is a floating-point type.

    Raises
    ------
    InvalidInput
        There are numbers with a fraction, or more values than `most_read_off` allows. The message
        shows neither a value nor their number.
    """
    found: list[Any] = []
    with contextlib.suppress(TypeError):  # whose text tells which of two types comes first
        found = sorted(set(values))
    if len(values) and not found:
        raise InvalidInput(
            "Expected labels of one type, none missing, got several types. Convert them, or declare"
            " the classes."
        )
    # Numbers with a fraction are measurements: a list of them would be the private column.
    if floats or any(
        isinstance(value, float) or (isinstance(value, str) and _is_fraction(value))
        for value in found
    ):
        raise _unfit(
            "labels that are names of classes", "numbers with a decimal point, or missing values"
        )
    # The bound is public and the number of values is private, so the message names only the bound.
    if len(found) > most_read_off(n_rows):
        raise _unfit(
            f"at most {most_read_off(n_rows)} distinct labels in {n_rows} rows (the square root)",
            "more",
        )
    warn(
        DomainLeakWarning(
            "The classes are read off the private labels: everybody learns which classes occur."
            " Declare them instead: classes=[...]."
        )
    )
    return tuple(found)


def _unfit(expected: str, given: str) -> InvalidInput:
    return InvalidInput(
        f"Expected {expected} where classes are read off them (classes='infer'), got {given}: such"
        " a list would publish the labels themselves. Declare the classes (classes=), or bin the"
        " labels first. Numbers have a range where they are released or learned from:"
        " classes=labeldp.Grid(low, high, points)."
    )


def _is_fraction(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text.strip())) and not _WHOLE.fullmatch(text.strip())


class Fault(NamedTuple):
    """What can be wrong with a raw label.

    Attributes
    ----------
    said : str
        What some label is.
    find, look : str
        How the user finds it: in an array, and in a column of a table.
    fix : str
    """

    said: str
    find: str
    look: str
    fix: str


_KNOWN = "drop such rows if it is public which these are"
MISSING = Fault(
    "is missing",
    "numpy.flatnonzero(pandas.isna(labels)) finds it",
    "look for empty fields in the column",
    f"Give missing labels a class of their own and fill them in, or {_KNOWN}.",
)
UNDECLARED = Fault(
    "is not",
    "list the different values of the labels",
    "list the different values of the column",
    "Declare the value as a class, or mend it.",
)
FINITE = "a finite number"
NO_NUMBER = Fault(
    "is not",
    "make numbers = numpy.array(pandas.to_numeric(labels, errors='coerce'), float), and"
    " numpy.flatnonzero(~numpy.isfinite(numbers)) finds it; numpy.flatnonzero([isinstance(label,"
    " str) for label in labels]) finds numbers written as text",
    "look for fields of the column that are empty or no plain number",
    "Pass numbers, not text. If numbers are missing, release two columns, whether there is one and"
    f" the number or 0 (docs/guide/numbers.md), or {_KNOWN}.",
)


def bad_label(
    fault: Fault,
    expected: str,
    *,
    column: str = "",
    fix: str = "",
    kind: type[InvalidInput] = InvalidInput,
) -> InvalidInput:
    """Make the error for a raw label that cannot be used. It names no row, shows no value, and does
    not say how many such labels there are.

    Whether a label is missing, or is text among numbers, is a part of the label: with its row, a
    message or a log would tell it.

    Parameters
    ----------
    fault : Fault
    expected : str
        What every label should be, such as "a finite number".
    column : str
        The label's column of a table; "" (default) for an array.
    fix : str, default=""
        What to do, instead of the fault's own words.
    kind : type of the error
    """
    start = (
        f"Expected every label{f' of column {column!r}' if column else ''} to be {expected}, but"
        f" some label {fault.said}."
    )
    look = (
        "Which row it is would tell of its label, so that is not said:"
        f" {fault.look if column else fault.find}."
    )
    return kind(f"{start} {look} {fix or fault.fix}")


def encode(labels: ArrayLike, classes: Sequence[object]) -> Codes:
    """Encode raw labels as class codes.

    Parameters
    ----------
    labels : (n,) array, list, or column of a data frame
        For `LabelColumns` a data frame or mapping with these columns, or an (n, L) array with the
        columns in their order.
    classes : sequence of K values, Grid, or LabelColumns
        With a grid each label is a number, and its code is that of the nearest point.

    Returns
    -------
    Codes
        (n,) int32 in 0..K-1, an array that does not print its values.

    Raises
    ------
    InvalidInput
        A label is missing or not declared; the message shows neither a row nor a value, nor how
        many such labels there are.
    """
    return (
        _of_columns(labels, classes)
        if isinstance(classes, LabelColumns)
        else _of_one(labels, classes)
    )


def _of_one(labels: ArrayLike, classes: Sequence[object]) -> Codes:
    quick = _of_text(labels, classes)
    if quick is not None:
        return quick.view(Codes)
    array = as_array(labels)
    if isinstance(classes, Grid):
        return _on_grid(array, classes)
    codes = _by_table(array, classes) if array.dtype.kind == "O" else _by_search(array, classes)
    bad = array[codes < 0]
    if len(bad):
        missing = any(map(is_missing, bad.tolist()))
        raise bad_label(
            MISSING if missing else UNDECLARED,
            one_of(classes),
        )
    return codes.view(Codes)


def _of_text(labels: Any, classes: Sequence[object]) -> NDArray[np.int32] | None:
    """Encode text by Arrow, ten times as fast as value by value; None where labels are anything
    else, or where one is missing or undeclared."""
    wide = isinstance(labels, np.ndarray) and labels.dtype.kind != "O"  # NumPy is faster with it
    if wide or not all(type(value) is str for value in classes):
        return None
    import pyarrow as pa
    import pyarrow.compute as pc

    # Arrow would take a text for its letters, and a mapping for its names.
    if not (
        hasattr(labels, "shape") or isinstance(labels, list | tuple | pa.Array | pa.ChunkedArray)
    ):
        return None
    found, hidden = None, False
    with UNTOLD:
        hidden = _validate.hides(labels)
        column = labels if isinstance(labels, pa.Array | pa.ChunkedArray) else pa.array(labels)
        indices = None
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if pa.types.is_dictionary(column.type):
            column, indices = column.dictionary, column.indices
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            found = pc.index_in(column, value_set=pa.array(classes, column.type))
            found = found if indices is None else found.take(indices)
    if found is None or found.null_count or hidden:
        return None
    return np.asarray(found.to_numpy(), np.int32)


def one_of(classes: Sequence[object]) -> str:
    """Say which values a label can have, and of which types they are, for messages."""
    if are_codes(classes):
        return f"one of the codes 0 to {len(classes) - 1}"
    kinds = " or ".join(sorted({type(value).__name__ for value in classes if value is not None}))
    listed = _validate.told([repr(value) for value in classes], ", ")
    return f"one of the {len(classes)} declared classes ({kinds}: {listed})"


def are_codes(classes: Sequence[object]) -> bool:
    """Tell whether classes are their own codes, 0..K-1."""
    return not isinstance(classes, Grid) and tuple(classes) == tuple(range(len(classes)))


def _of_columns(labels: Any, classes: LabelColumns) -> Codes:
    """Encode the labels of several columns as codes of combinations."""
    found = []
    for name, column, values in zip(
        classes.names, columns_of(labels, classes.names), classes.lists, strict=True
    ):
        problem = ""
        try:
            found.append(_of_one(column, values))
        # its text shows no label; raised anew outside, without what it was raised from
        except InvalidInput as error:
            problem = str(error)
        if problem:
            raise InvalidInput(f"Column {name!r}: {problem}")
    if len(set(map(len, found))) > 1:
        raise InvalidInput(
            "Expected label columns of one length, got"
            f" {', '.join(str(len(each)) for each in found)} rows."
        )
    return classes.codes(found).view(Codes)


def columns_of(labels: Any, names: Sequence[str]) -> list[Any]:
    """Take the columns with these names from a data frame or mapping, or the columns of an (n, L)
    array in this order."""
    own, found = None, None
    with UNTOLD:
        own = (
            list(labels)
            if isinstance(labels, Mapping)
            else _own_names(labels)
            if hasattr(labels, "columns")
            else None
        )
        found = None if own is None else [labels[name] for name in names]
    if own is not None:
        lacking = [name for name in names if own.count(name) != 1]
        if lacking:
            # The names of columns are public, and only those of text are shown.
            near = (
                suggest(lacking[0], [name for name in own if isinstance(name, str)])
                if lacking[0] not in own
                else ""
            )
            raise InvalidInput(
                f"Expected each named column once, got {own.count(lacking[0])} of the name"
                f" {lacking[0]!r}.{near}"
            )
        if found is None:
            raise not_plain()
        return found
    array = converted(labels)
    if array.ndim != 2 or array.shape[1] != len(names):
        raise InvalidInput(
            f"Expected the labels of {len(names)} columns as a data frame or mapping with"
            f" {_validate.quoted(names)}, or as an array of shape (n, {len(names)}), got shape"
            f" {array.shape}."
        )
    return list(array.T)


def _on_grid(array: NDArray[np.generic], grid: Grid) -> Codes:
    codes = grid.codes(as_numbers(array))
    if (codes < 0).any():
        raise bad_label(NO_NUMBER, FINITE)
    return codes.view(Codes)


def as_array(labels: ArrayLike) -> NDArray[np.generic]:
    """Convert labels to a one-dimensional NumPy array; columns of data frames and of Arrow tables
    are accepted."""
    array = converted(labels)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        several = (
            " Declare several label columns by classes=labeldp.LabelColumns({...})."
            if array.ndim == 2
            else ""
        )
        raise InvalidInput(
            f"Expected a one-dimensional column of labels, got shape {array.shape}.{several}"
        )
    return np.asarray(array)


UNTOLD = contextlib.suppress(Exception, SystemExit)
"""Where raw labels are read by code of others, whose errors can hold labels.

NumPy's quote values, a UnicodeDecodeError holds one, and a container of the user's may say
anything. Raised from an `except` block, ours would carry them along as its context; so they are
suppressed, and ours is raised afterwards.
"""


def converted(labels: Any) -> NDArray[Any]:
    """Convert raw labels to an array of any shape.

    Masked ones are refused, also within a list: they would be the values beneath the mask. An array
    whose mask hides none is as any other.
    """
    masked, array = False, None
    with UNTOLD:
        masked = _validate.hides(labels)
        array = text_array(labels)
        if (
            isinstance(labels, list | tuple)
            and array.dtype.kind == "f"
            and array.size
            and np.nanmax(np.abs(array), initial=0) >= EXACT
        ):
            # whole numbers of which NumPy knows no common type
            array = np.asarray(labels, dtype=object)
    if masked:
        raise InvalidInput(f"Expected a label in every row, got masked ones. {MISSING.fix}")
    if array is None or isinstance(labels, Mapping):  # of which NumPy would take the names
        raise not_plain()
    return array


Given = ParamSpec("Given")
Result = TypeVar("Result")


def unseen(
    instead: Callable[[], Exception],
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Decorate a function that reads raw labels: its errors, and an interrupt, are raised anew,
    without the frames and causes whose variables hold labels.

    The text of another library's error may hold labels, too: it becomes the error `instead`.
    """

    def decorated(function: Callable[Given, Result]) -> Callable[Given, Result]:
        @wraps(function)
        def _call(*given: Given.args, **named: Given.kwargs) -> Result:
            problem: BaseException
            try:
                return function(*given, **named)
            except (LabelDPError, LabelDPWarning) as error:
                problem = type(error)(str(error))
            except SystemExit:
                problem = SystemExit(1)
            except Exception:
                problem = instead()
            except BaseException:  # one of others may need arguments, and would fail in here
                problem = KeyboardInterrupt()
            del given, named
            raise problem

        return _call

    return decorated


def undrawn() -> InvalidInput:
    """Make the error for a sampler, or a count, that has raised one."""
    return InvalidInput(
        "Expected a sampler that draws from any labels, got one that raised an error, whose text"
        " could tell labels. Try it on made-up ones: labeldp.testing.check_law."
    )


def not_plain() -> InvalidInput:
    """Make the error for labels that are no column of plain values."""
    return InvalidInput(
        "Expected a column of labels of one type, one a row, got what is no array: lists within it,"
        " bytes beside text, or a tensor that requires grad. Convert them."
    )


def _by_search(array: NDArray[np.generic], classes: Sequence[object]) -> NDArray[np.int32]:
    # Only types that NumPy compares by value are searched as arrays: it would compare 1 with "1" as
    # text, and find them equal.
    known = np.asarray(classes)
    if array.dtype.kind in "iu" and are_codes(classes):
        outside = np.less(array, 0) | np.greater_equal(array, len(classes))
        codes = array.astype(np.int32)
        codes[outside] = -1
        return codes
    if not (
        known.dtype.kind == array.dtype.kind or {known.dtype.kind, array.dtype.kind} <= set("biuf")
    ):
        return _by_table(array.astype(object), classes)
    # Labels of 32 bits hold a class as its nearest one.
    if (
        known.dtype == np.float64
        and array.dtype.kind == "f"
        and len(np.unique(known.astype(array.dtype))) == len(known)
    ):
        known = known.astype(array.dtype)
    # As floats, which signed and unsigned numbers have in common, large whole numbers would be
    # equal.
    if np.result_type(known, array).kind == "f" and any(
        isinstance(value, int) and abs(value) > EXACT for value in classes
    ):
        return _by_table(array.astype(object), classes)
    order = np.argsort(known)
    place = np.minimum(np.searchsorted(known[order], array), len(known) - 1)
    return np.where(known[order][place] == array, order[place], -1).astype(np.int32)


def _by_table(array: NDArray[np.generic], classes: Sequence[object]) -> NDArray[np.int32]:
    table = {value: code for code, value in enumerate(classes)}
    # Of anything else, such as a list, there may be no hash.
    return np.fromiter(
        (table.get(v, -1) if isinstance(v, _SCALARS) else -1 for v in array.tolist()),
        np.int32,
        len(array),
    )


# Ids and units
# --------------------------------------------------------------------------------------------------


PLAIN = "id"
"""The name of ids that have none."""

Name = str | Sequence[str]
"""The name of a column, or the names of several."""


def index_of(table: Any) -> Any:
    """Return the index of a pandas Series or frame; None of anything else."""
    index = getattr(table, "index", None)
    return index if hasattr(index, "is_unique") else None


def require_same_order(index: Any, of: str, what: str, *columns: Any) -> None:
    """Refuse columns of pandas whose index is this one in another order: they would be taken by
    position.

    Parameters
    ----------
    index : Index, or None
        None refuses nothing.
    of, what : str
        What has the index, and the argument that the columns are, for the message.
    *columns
    """
    for theirs in map(index_of, columns):
        if index is None or theirs is None or theirs.equals(index) or len(theirs) != len(index):
            continue
        if theirs.isin(index).all():
            raise InvalidInput(
                f"Expected {what} in the order of {of}, got its index in another order. Write"
                f" {what}.loc[index] with the index of {of}; if the rows are in one order all the"
                f" same, {what}.to_numpy()."
            )


@dataclass(frozen=True, eq=False, repr=False)
class RowIds:
    """The ids and units of n rows, with the names of their columns. Made by `RowIds.of`.

    Attributes
    ----------
    ids : (n,) or (n, columns) array, column, table, or None
    unit : (n,) array, column, or None
    id_name : str
        "" without ids.
    unit_name : str
        "row" without units.
    columns : tuple of str
        The names of the columns of both: the caller's, and those that they carry; not the default
        ones.
    label : str
        The name that the labels beside them carry; "" if they have none.
    """

    ids: ArrayLike | None = None
    unit: ArrayLike | None = None
    id_name: str = ""
    unit_name: str = ROW
    columns: tuple[str, ...] = ()
    label: str = ""

    @classmethod
    def of(
        cls,
        ids: ArrayLike | None,
        unit: ArrayLike | None = None,
        id_name: Name | None = None,
        unit_name: Name | None = None,
    ) -> "RowIds":
        """Collect ids and units as the caller gave them. The default name is the one that the
        column carries, else "id" or "unit"."""
        id_names = [] if ids is None else _names(PLAIN, ids, id_name)
        unit_names = [] if unit is None else _names("unit", unit, unit_name)
        # Another name makes no other column, so those that the columns carry count, too.
        columns = (
            *(id_names if id_name else ()),
            *(unit_names if unit_name else ()),
            *column_names(ids, unit),
        )
        return cls(
            ids, unit, joined(id_names), unit_of(joined(unit_names)) if unit_names else ROW, columns
        )

    def beside(self, labels: Any, others: Sequence[Any] = ()) -> "RowIds":
        """Refuse the labels, or a column of their name, as ids or units; keep the labels' own name.

        `others` are the columns of ids and units one by one, as in `Named`.
        """
        named = label_names(labels)
        own = named[0] if len(named) == 1 else ""
        # Ids and units enter public, unkeyed digests: labels among them could be guessed from
        # these. `require_public` knows only the name that `column=` gives; here the object and its
        # own name are compared.
        same = any(each is not None and each is labels for each in (self.ids, self.unit, *others))
        columns = (*self.columns, *column_names(*others))
        if same or (own and own in columns):
            raise InvalidInput(
                "Expected ids and units of public columns, got the labels themselves among them."
                " Leave them out."
            )
        return replace(self, columns=columns, label=own)

    def within(self, cap: int, n_rows: int) -> int:
        """Count the rows that get a label: all, or with units those within each one's cap."""
        found = np.empty(0) if self.unit is None else np.asarray(self.unit, object)
        # what is no unit is refused where labels are read
        if found.ndim == 0 or len(found) != n_rows:
            return n_rows
        return sum(min(rows, cap) for rows in Counter(map(repr, found.tolist())).values())


def require_public_columns(
    names: Collection[str], private: Collection[str], what: str, so: str = ""
) -> None:
    """Refuse columns by the names of private ones; `what` are the columns that they are among, `so`
    what follows for the caller."""
    found = [name for name in dict.fromkeys(names) if name in private]
    if found:
        raise InvalidInput(
            f"Expected public columns as {what}, got {_validate.quoted(found)}, whose labels are"
            f" private: no epsilon covers what raw labels tell.{so} Leave the column out, as"
            f" frame.drop(columns={found!r}) of pandas does, or, if it is another one, rename it."
        )


class Named(NamedTuple):
    """Columns of ids or units, and their names.

    Attributes
    ----------
    table : one column, or a table of several
    names : list of str, or None
        The names in the caller's mapping; None without a mapping.
    columns : list
        The columns one by one. Each may carry a name of its own.
    """

    table: Any
    names: list[str] | None
    columns: list[Any]

    @classmethod
    def of(cls, columns: Any) -> "Named":
        """Split a mapping of names to columns; anything else is one column, or a table."""
        if not isinstance(columns, Mapping):
            return cls(columns, None, [columns])
        import pyarrow as pa

        each, names = list(columns.values()), [str(name) for name in columns]
        if len(each) == 1:
            return cls(each[0], names, each)
        with contextlib.suppress(TypeError, ValueError):  # Arrow's are among them
            return cls(pa.table(each, names=names), names, each)
        raise InvalidInput(
            "Expected columns of one length, each of one type, in a mapping of names to columns,"
            " got others."
        )


def column_names(*columns: Any) -> list[str]:
    """List the names that columns, tables of pandas, polars or Arrow, mappings, or lists of columns
    carry; only those that are text.

    A name of several levels, of a MultiIndex, is all of its levels: any may be that of a private
    column.
    """
    return [level for each in columns for levels in _carried(each) for level in levels]


def label_names(labels: Any) -> list[str]:
    """List the names that labels carry, of several levels the last one: the others are shared with
    other columns."""
    return [levels[-1] for levels in _carried(labels) if levels]


def _carried(columns: Any) -> list[list[str]]:
    """List the levels of each column's name."""
    own: list[object] = []
    with UNTOLD:  # a Dataset, or another object of the user's, may have `columns` of its own
        odd = hasattr(columns, "columns") and not hasattr(columns, "shape")
        own = list(columns) if isinstance(columns, Mapping) else [] if odd else _own_names(columns)
    parts = [name if isinstance(name, tuple) else (name,) for name in own]
    return [[level for level in levels if isinstance(level, str) and level] for levels in parts]


def unit_of(name: str) -> str:
    """Check the name of a column of units; "row" has a meaning of its own."""
    if name == ROW:
        raise InvalidInput(
            "Expected a unit by another name than 'row', which stands for rows that are protected"
            " one by one. Give the column another name."
        )
    return name


def _names(what: str, columns: Any, given: Name | None) -> list[str]:
    """Return a name for each column: the caller's, the one that it carries, or a numbered
    default."""
    own = _own_names(columns)
    if given is not None:
        named = [given] if isinstance(given, str) else list(given)
        if len(named) != len(own):
            raise InvalidInput(
                f"Expected a name for each of {len(own)} columns of {what}s, got {len(named)}. Name"
                " each one."
            )
    else:
        plain = (
            [what] if len(own) == 1 else [f"{what} {number}" for number in range(1, len(own) + 1)]
        )
        named = [
            default if name is None or name == "" else str(name)
            for name, default in zip(own, plain, strict=True)
        ]
    for name in named:
        if not (isinstance(name, str) and name and name.isprintable()):
            raise InvalidInput(
                f"Expected printable names for the columns of {what}s, got {name!r}. Pass a"
                " mapping of names to columns."
            )
    return named


def _own_names(columns: Any) -> list[object]:
    """Return the name that each column carries; None if it has none."""
    if hasattr(columns, "columns"):  # a table of pandas, polars or Arrow
        return list(columns.column_names if hasattr(columns, "column_names") else columns.columns)
    if getattr(columns, "ndim", 1) == 2:
        return [None] * int(columns.shape[1])
    if isinstance(columns, (list, tuple)) and len(columns):
        if isinstance(columns[0], tuple):  # rows
            return [None] * len(columns[0])
        if all(
            hasattr(column, "__len__") and not isinstance(column, (str, bytes))
            for column in columns
        ):
            return [_own_name(column) for column in columns]
    return [_own_name(columns)]


def _own_name(column: Any) -> object:
    """Return the name that a column of a data frame, or an Arrow array taken from a table, carries;
    None if it has none."""
    return getattr(column, "name", getattr(column, "_name", None))
