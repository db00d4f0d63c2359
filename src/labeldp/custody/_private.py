# SPDX-License-Identifier: Apache-2.0
"""Raw labels as a closed value: custody draws from it, and nobody else reads it."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import exact_array, text_array
from labeldp.custody._encode import (
    Closed,
    Codes,
    Named,
    RowIds,
    classes_for,
    column_names,
    columns_of,
    encode,
    index_of,
    is_closed,
    not_plain,
    require_public_columns,
    require_same_order,
    unseen,
)
from labeldp.custody._request import UNNAMED, Account, Memory, charged_names
from labeldp.custody._rows import TableRows
from labeldp.errors import InvalidInput, WrongType
from labeldp.laws._columns import LabelColumns
from labeldp.laws._grid import Grid
from labeldp.ledger._ledger import Ledger
from labeldp.noise._words import SeededNoise


class PrivateLabels(Closed):
    """Raw labels, closed: they can be privatized, aggregated and learned from, and cannot be read.

    Parameters
    ----------
    y : (n,) array, list, or column of a data frame
        Raw, private. Of several columns a data frame or mapping with these columns.
    classes : sequence of K values, LabelColumns, mapping of str to classes, or "infer"
        The public list of class values; of several columns a mapping of each column's name to its
        list. "infer" reads them off the labels, which reveals the classes that occur: it warns.
    range : (low, high) or Grid
        For numbers, instead of `classes`: their public range. Each number is clamped to it and
        rounded to the nearest point.
    points : int, optional
        Number of evenly spaced points of the range; 64 by default.
    dataset : str, optional
        Public name of the data set; a ledger requires it.
    column : str, optional
        Name of the label column in the ledger. None (default): the name that a column of a data
        frame carries; a ledger requires one.
    ids : (n,) or (n, columns) array, column, table, or mapping of names to columns, optional
        Public, different ids of the rows. With them labels made anew, also in another process, are
        known as the same ones.
    unit : (n,) array, column, or mapping of a name to one, optional
        The person, or other unit of protection, of each row. None (default): each row is its own
        unit.
    max_rows_per_unit : int
        Largest number of rows of one unit that are drawn; 1 by default.
    ledger : Ledger, or its path, optional
        Durable record of what is spent. None (default): nothing is recorded.
    noise : SeededNoise, optional
        For tests and benchmarks on public data only: no guarantee at all.

    Attributes
    ----------
    classes : tuple of K values, Grid or LabelColumns
    dataset, column, unit : str
        The account, and the unit of protection: "row", or the name of the column of units.

    Raises
    ------
    InvalidInput
        A label is missing or not declared, or an argument is not allowed. No message says which row
        it is, what it holds, or how many such rows there are.

    Notes
    -----
    Guarantee: this keeps labels from accidental readers, such as an encoder in a pipeline, a search
    or a log. Whoever controls the process, or has the array that the value was made from, has the
    labels: `del` that array. Two values are equal only if they are one object. Cost: O(n), a copy
    of the labels as codes of four bytes.

    Examples
    --------
    >>> import labeldp as ldp
    >>> labels = ldp.PrivateLabels(["no", "yes", "no"], classes=["no", "yes"], dataset="visits")
    >>> labels
    3 labels of 2 classes, closed; dataset 'visits'
    """

    __slots__ = ("account", "inferred", "rows")

    account: Account  # what is charged, and the source of the noise
    rows: TableRows  # ids, units and index
    inferred: bool  # the classes were read off the labels

    @unseen(not_plain)
    def __init__(
        self,
        y: ArrayLike,
        *,
        classes: Sequence[object] | Mapping[str, Sequence[object]] | None = None,
        range: Sequence[float] | None = None,
        points: int | None = None,
        dataset: str | None = None,
        column: str | None = None,
        ids: ArrayLike | Mapping[str, ArrayLike] | None = None,
        unit: ArrayLike | Mapping[str, ArrayLike] | None = None,
        max_rows_per_unit: int = 1,
        ledger: Ledger | None = None,
        noise: SeededNoise | None = None,
    ) -> None:
        if isinstance(y, PrivateLabels):
            raise _closed()
        rows, units = Named.of(ids), Named.of(unit)
        given = RowIds.of(rows.table, units.table, rows.names, units.names)
        given = given.beside(y, [*rows.columns, *units.columns])
        declared, self.inferred = classes_for(y, _declared(classes, range, points))
        codes, index = encode(y, declared), index_of(y)
        require_same_order(index, "the labels", "ids", *rows.columns)
        require_same_order(index, "the labels", "unit", *units.columns)
        own = declared.name if isinstance(declared, LabelColumns) else given.label
        self.account = Account(
            dataset or "",
            column or own or UNNAMED,
            max_rows_per_unit,
            ledger,
            noise,
            memory=Memory() if ledger is None and noise is None else None,
        )
        private = self.account.private_column(declared, given)
        self.rows = TableRows(given, len(codes), private, index)
        _CODES[self] = os.getpid(), codes, _weak(y)
        if ledger is not None and not (self.dataset and (column or own)):
            raise InvalidInput(
                "Expected dataset= and column= with a ledger: the public names under which the"
                " budget of these labels is kept."
            )

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError("PrivateLabels have no subclasses: theirs could open the labels.")

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, "rows"):  # the last one that is set
            raise AttributeError(
                f"Expected labels as they were made, got another {name}. Make them anew with it."
            )
        super().__setattr__(name, value)

    @property
    def facts(self) -> LabelFacts:
        """What is public, and not the ledger: enough to plan a fit in another process."""
        return replace(self.account, ledger=None, memory=None), self.inferred, self.rows

    @property
    def noted(self) -> dict[str, object]:
        """What a charge notes of how the classes were declared."""
        return {"classes_inferred": True} if self.inferred else {}

    @property
    def classes(self) -> tuple[object, ...]:
        """The declared classes; a `Grid` of numbers, `LabelColumns` of several columns."""
        return self.rows.column.values

    @property
    def dataset(self) -> str:
        """The name of the data set; "" if it has none."""
        return self.rows.column.dataset

    @property
    def column(self) -> str:
        """The name of the label column; of several columns their joined names."""
        return self.rows.column.column

    @property
    def unit(self) -> str:
        """What is protected: "row", or the name of the column of units."""
        return self.rows.column.unit

    @property
    def ids(self) -> NDArray[Any]:
        """The ids of the rows, or their positions: (n,) or (n, columns)."""
        return self.rows.ids

    @property
    def explicit_ids(self) -> bool:
        """Whether the rows have ids of their own."""
        return self.rows.explicit

    @property
    def index(self) -> Any:
        """The index of the Series or frame that they were made from; None of anything else."""
        return self.rows.index

    def require_public(self, columns: Any, role: str) -> None:
        """Refuse these labels' own column, or one that the ledger has charged as private, in a
        public role, as far as the names that columns carry tell.

        Parameters
        ----------
        columns : column, table, mapping, or list of columns
        role : str
            What they are to be, such as "groups".
        """
        own = self in _CODES and columns is not None and _CODES[self][2]() is columns
        if own or is_closed(columns):
            raise InvalidInput(f"Expected public columns as {role}, got the labels themselves.")
        names = column_names(columns)
        private = {*self.rows.column.columns, self.rows.given.label}
        charged = charged_names(names, self.dataset, self.account.ledger)
        require_public_columns(names, private | charged, role)

    def spent(self) -> float:
        """Return the epsilon that one unit of these labels has spent: what the ledger has for their
        columns, or without one the sum of all charges in this process. Infinite with seeded
        noise."""
        ledger, memory = self.account.ledger, self.account.memory
        if ledger is not None:
            return ledger.spent(self.dataset, self.rows.column.columns)
        if memory is None:
            return math.inf
        return _validate.float_up(sum(map(_validate.exact, memory.spent), Fraction()))

    def subset(self, rows: ArrayLike) -> PrivateLabels:
        """Take some rows, closed, under the same account.

        Parameters
        ----------
        rows : (m,) different int positions, or (n,) bool
            Public: they must not depend on labels.
        """
        wanted, chosen = np.asarray(rows), None
        if wanted.ndim == 1 and wanted.dtype.kind in "biu":
            with contextlib.suppress(IndexError):
                chosen = np.arange(len(self))[wanted]
        if chosen is None or len(np.unique(chosen)) != len(chosen):
            raise InvalidInput(
                f"Expected rows as different positions below {len(self)}, or a mask of {len(self)}"
                f" truth values, got {_validate.shown(rows)}."
            )
        if self.account.ledger is not None and not self.explicit_ids:
            raise InvalidInput(
                "Expected labels with ids= to take some rows under a ledger, which knows rows by"
                " their ids. Make the labels with them."
            )
        given, memory = self.rows.given, self.account.memory
        part = replace(
            given,
            ids=None if given.ids is None else exact_array(given.ids)[chosen],
            unit=None if given.unit is None else text_array(given.unit)[chosen],
        )
        made = object.__new__(PrivateLabels)
        if memory is not None and not self.explicit_ids:
            memory = memory.of_some_rows()
        made.account, made.inferred = replace(self.account, memory=memory), self.inferred
        index = None if self.index is None else self.index[chosen]
        made.rows = TableRows(part, len(chosen), self.rows.column, index)
        made.rows.ids = self.rows.ids[chosen]
        if self in _CODES:  # not beside the process that has the labels
            process, codes, _ = _CODES[self]
            _CODES[made] = process, codes[chosen], _weak(None)
        return made

    def __len__(self) -> int:
        return self.rows.n_rows

    @property
    def shape(self) -> tuple[int]:
        """(n,), as an array of labels would have."""
        return (len(self),)

    def __repr__(self) -> str:
        if not hasattr(self, "rows"):  # which an error has left unfinished
            return "no labels"
        values = self.classes
        what = (
            f"numbers from {values.low:g} to {values.high:g}"
            if isinstance(values, Grid)
            else f"labels of columns {_validate.quoted(values.names)}"
            if isinstance(values, LabelColumns)
            else f"labels of {len(values)} classes"
        )
        named = f"; dataset {self.dataset!r}" if self.dataset else ""
        seeded = "" if self.account.noise is None else "; seeded: no guarantee"
        return f"{len(self):,} {what}, closed{named}{seeded}"

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise _closed()

    __array__ = __iter__ = __getitem__ = __reduce_ex__ = __copy__ = __deepcopy__ = _refuse
    __dataframe__ = __arrow_c_array__ = __arrow_c_stream__ = _refuse
    __dlpack__ = __dlpack_device__ = __delattr__ = _refuse


@unseen(not_plain)
def split_labels(
    frame: Any,
    label: str | Sequence[str],
    *,
    id: str | None = None,
    unit: str | None = None,
    keep: Sequence[str] = (),
    classes: Sequence[object] | Mapping[str, Sequence[object]] | None = None,
    range: Sequence[float] | None = None,
    points: int | None = None,
    dataset: str | None = None,
    max_rows_per_unit: int = 1,
    ledger: Ledger | None = None,
    noise: SeededNoise | None = None,
) -> tuple[Any, PrivateLabels]:
    """Split a data frame into public features and closed labels.

    Parameters
    ----------
    frame : pandas or polars data frame, or Arrow table
        It is unchanged, and still has the labels: `del frame`.
    label : str, or sequence of str
        Name of the label column, or of several.
    id, unit : str, optional
        Names of the columns of ids, and of people or other units of protection.
    keep : sequence of str
        Those of `id` and `unit` that are features, too. None by default: a model must not learn a
        customer's number.
    classes, range, points, dataset, max_rows_per_unit, ledger, noise
        As in `PrivateLabels`.

    Returns
    -------
    X : data frame of the same type
        Without the columns of labels, ids and units.
    labels : PrivateLabels
        In the order of X.

    Raises
    ------
    InvalidInput
        A column is not there, or an argument is not allowed.

    Examples
    --------
    >>> import labeldp as ldp, pandas as pd
    >>> frame = pd.DataFrame({"visit": [7, 8], "age": [30, 40], "bought": ["no", "yes"]})
    >>> X, labels = ldp.split_labels(frame, "bought", id="visit", classes=["no", "yes"])
    >>> X.columns.tolist(), labels.column
    (['age'], 'bought')
    """
    names = [label] if isinstance(label, str) else list(label)
    roles = [name for name in (id, unit) if name is not None]
    kept = [keep] if isinstance(keep, str) else list(keep)
    if not names or not set(kept) <= set(roles):
        raise InvalidInput(
            f"Expected label= as names of columns, and keep= of {_validate.quoted(roles)}, got"
            f" {label!r} and {keep!r}."
        )
    columns = dict(zip([*names, *roles], columns_of(frame, [*names, *roles]), strict=True))
    out = [name for name in columns if name not in kept]
    # A copy: a part of the frame would keep the whole of it alive, labels included.
    X = frame.drop(columns=out).copy() if hasattr(frame, "iloc") else frame.drop(out)
    y: Any = columns[label] if isinstance(label, str) else {name: columns[name] for name in names}
    labels = PrivateLabels(
        y,
        classes=classes,
        range=range,
        points=points,
        dataset=dataset,
        column=label if isinstance(label, str) else None,
        ids=None if id is None else {id: np.array(exact_array(columns[id]))},
        unit=None if unit is None else {unit: np.array(exact_array(columns[unit]))},
        max_rows_per_unit=max_rows_per_unit,
        ledger=ledger,
        noise=noise,
    )
    labels.rows.index = index_of(frame)
    return X, labels


LabelFacts = tuple[Account, bool, TableRows]
"""Account without its ledger, whether the classes were read off the labels, and rows."""


def of_facts(facts: LabelFacts) -> PrivateLabels:
    """Make a value that has no labels, for processes that train beside the one that has them."""
    made = object.__new__(PrivateLabels)
    made.account, made.inferred, made.rows = facts
    return made


_CODES: WeakKeyDictionary[PrivateLabels, tuple[int, Codes, Callable[[], Any]]] = WeakKeyDictionary()
"""The process that may open labels, the labels, and what they were made from while it is there.
They are kept here, so that no attribute of a value leads to them."""


def opened(labels: PrivateLabels) -> Codes:
    """Return the codes of private labels: (n,) int32. Custody alone calls this."""
    process, codes, _ = _CODES[labels]
    if process != os.getpid():  # a fork, whose account its parent does not see
        raise _closed()
    return codes


def _declared(classes: Any, range: Any, points: int | None) -> Any:
    """Return the classes, of a range of numbers its grid."""
    if range is None:
        if points is not None:
            raise InvalidInput("Expected points only with range=(low, high). Drop points=.")
        return LabelColumns(classes) if isinstance(classes, Mapping) else classes
    if classes is not None:
        raise InvalidInput(
            "Expected classes= of categories, or range=(low, high) of numbers, got both. Drop one."
        )
    if isinstance(range, Grid):
        return range
    if isinstance(range, str | bytes) or np.shape(range) != (2,):
        raise InvalidInput(
            f"Expected range=(low, high) with the public range of the numbers, got"
            f" {_validate.shown(range)}."
        )
    low, high = range
    return Grid(low, high, points)


def _weak(y: Any) -> Callable[[], Any]:
    """Refer to raw labels without keeping them; a list cannot be referred to."""
    try:
        return ref(y)
    except TypeError:
        return type(None)


def _closed() -> WrongType:
    return WrongType(
        "Expected code that does not read labels, got some that asks for the values of"
        " PrivateLabels, which are closed. In a search or cross-validation: privatize once,"
        " noisy = labeldp.privatize(labels, law), and pass noisy. An encoder or a selection of"
        " features that needs labels goes inside: LabelDPClassifier(make_pipeline(encoder,"
        " model)). A net: labeldp.deep.TorchClassifier().fit(X, labels), or noisy.likelihood() in"
        " a loop of yours. For another process, make them anew there, with the same ids."
    )
