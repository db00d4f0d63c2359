# SPDX-License-Identifier: Apache-2.0
"""Public data sets for examples, tests and benchmarks: `load("fashion_mnist")`.

Two are embedded in scikit-learn (digits, breast_cancer). The others are looked up in the folder
that the environment variable LABELDP_DATA names, then in a cache folder, then downloaded from their
official address; every file is checked against its SHA-256.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.datasets import _readers as readers
from labeldp.datasets._catalogue import ENTRIES, Entry, Form, download, find
from labeldp.errors import InvalidInput, LabelDPWarning

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DataSet", "load", "names", "where"]

_EMBEDDED = ("breast_cancer", "digits")


@dataclass(frozen=True, eq=False)
class DataSet:
    """A public data set with its labels, for examples, tests and benchmarks.

    Attributes
    ----------
    name : str
        The name it was loaded by.
    X_train, X_test : ndarray
        Images: (n, height, width) or (n, height, width, 3) uint8. Tables: (n, d) float64, a
        categorical column as the position of its value in `categories`, NaN where a value is
        missing. A set without an official split has all its rows in `X_train`, and 0 rows in
        `X_test`.
    y_train, y_test : (n,) int64, or float64
        Labels, as positions in `classes`; where these are none, numbers.
    classes : tuple of str
        The K class values; none of a set whose labels are numbers.
    description : str
        Content, source, and notes on its use.
    columns : tuple of str
        The d column names of a table; empty for images.
    categories : mapping of str to tuple of str
        For each categorical column of a table, its values.
    """

    name: str
    X_train: NDArray[np.generic]
    y_train: NDArray[Any]
    X_test: NDArray[np.generic]
    y_test: NDArray[Any]
    classes: tuple[str, ...]
    description: str
    columns: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def n_classes(self) -> int:
        """Number of classes, K; 0 of a set whose labels are numbers."""
        return len(self.classes)

    @property
    def categorical(self) -> tuple[int, ...]:
        """The positions of the categorical columns, as scikit-learn's `categorical_features` takes
        them."""
        return tuple(i for i, column in enumerate(self.columns) if column in self.categories)

    def all_rows(self) -> tuple[NDArray[np.generic], NDArray[Any]]:
        """Return all features (n, ...) and labels (n,), the train rows first.

        Cost: one copy of both.
        """
        return np.concatenate([self.X_train, self.X_test]), np.concatenate(
            [self.y_train, self.y_test]
        )

    def to_table(self, part: str = "train", label: str = "label") -> "pa.Table":
        """Return one part of a tabular set as an Arrow table: categorical columns as text, class
        values or numbers in the last column.

        Parameters
        ----------
        part : {"train", "test"}, default="train"
            Which rows.
        label : str, default="label"
            The name of the label column, which comes last.

        Cost: O(n d).
        """
        import pyarrow as pa

        _validate.one_of(["train", "test"], part=part)
        if not self.columns:
            raise InvalidInput(
                f"Expected a data set with columns, got the images of {self.name}. Use X_{part} and"
                f" y_{part}."
            )
        X, y = (self.X_train, self.y_train) if part == "train" else (self.X_test, self.y_test)
        named = {
            column: self._arrow_column(column, X[:, i].astype(np.float64))
            for i, column in enumerate(self.columns)
        }
        named[label] = _decode(y, self.classes) if self.classes else self._arrow_column(label, y)
        return pa.table(named)

    def _arrow_column(self, column: str, values: NDArray[np.float64]) -> "pa.Array":
        import pyarrow as pa

        missing = np.isnan(values)
        if column in self.categories:
            return _decode(np.where(missing, -1, values).astype(np.int64), self.categories[column])
        whole = bool(np.all(values[~missing] == np.rint(values[~missing])))
        return pa.array(
            np.where(missing, 0, values),
            pa.int64() if whole else pa.float64(),
            mask=missing,
            safe=False,
        )


def _decode(codes: NDArray[np.int64], values: tuple[str, ...]) -> "pa.Array":
    import pyarrow as pa

    return pa.array(values, pa.string()).take(pa.array(codes, mask=codes < 0))


def names() -> list[str]:
    """Return the names that `load` takes, sorted."""
    return sorted([*_EMBEDDED, *ENTRIES])


def where(name: str) -> list[Path] | None:
    """Return the checked files that `load(name)` would read; None if it would download them, an
    empty list for an embedded data set.

    Parameters
    ----------
    name : str
        One of `names()`.

    Cost: one pass over the files for their checksums.
    """
    _validate.one_of(names(), name=name)
    if name in _EMBEDDED:
        return []
    found = find(ENTRIES[name].folder, ENTRIES[name].forms)
    return None if found is None else found[1]


def load(name: str) -> DataSet:
    """Load a data set by name, from this machine if it is here; otherwise download and keep it.

    Parameters
    ----------
    name : str
        One of `names()`.

    Returns
    -------
    DataSet
        Features and labels of both parts; see `DataSet` for shapes.

    Guarantee: none is needed, these data are public. Source: see each set's `description`. Cost:
    one read of the files.

    Examples
    --------
    >>> from labeldp import datasets
    >>> digits = datasets.load("digits")
    >>> digits.X_train.shape, digits.n_classes
    ((1797, 64), 10)
    """
    _validate.one_of(names(), name=name)
    if name in _EMBEDDED:
        return _embedded(name)
    entry = ENTRIES[name]
    form, paths = find(entry.folder, entry.forms) or download(name, entry.folder, entry.forms)
    return _READERS[form.reader](name, entry, form, paths)


def _embedded(name: str) -> DataSet:
    from sklearn import datasets as embedded

    bunch: Any = embedded.load_digits() if name == "digits" else embedded.load_breast_cancer()
    X, y = bunch.data.astype(np.float64), bunch.target.astype(np.int64)
    text = {
        "digits": (
            "Digits: 1,797 grey images 8 x 8 of handwritten digits as 64 columns 0..16, 10 classes."
            " Alpaydin and Kaynak, UCI, 1998."
        ),
        "breast_cancer": (
            "Breast cancer Wisconsin: 569 tumours, 30 columns; malignant or benign. Wolberg, Street"
            " and Mangasarian, 1995."
        ),
    }[name]
    classes = tuple(str(value) for value in bunch.target_names)
    return DataSet(
        name,
        X,
        y,
        X[:0],
        y[:0],
        classes,
        f"{text} No official split.",
        tuple(map(str, bunch.feature_names)),
    )


def _image_set(
    split: readers.Split, name: str, entry: Entry, classes: tuple[str, ...] = ()
) -> DataSet:
    return DataSet(name, *split, classes or entry.classes, entry.description)


def _npz(name: str, entry: Entry, form: Form, paths: list[Path]) -> DataSet:
    if len(form.files) == 2:
        warnings.warn(
            f"Only the 10,000 test images of KMNIST are in {paths[0].parent}; the train part is"
            " empty. Split them yourself, and say so in results: it is not the KMNIST benchmark.",
            LabelDPWarning,
            stacklevel=3,
        )
    return _image_set(readers.read_npz_set(paths), name, entry)


def _table(
    read: Callable[[list[Path]], tuple[Any, Any, dict[str, tuple[str, ...]]]],
    columns: tuple[str, ...],
) -> "_Reader":
    def reader(name: str, entry: Entry, form: Form, paths: list[Path]) -> DataSet:
        X, y, categories = read(paths)
        return DataSet(
            name, X, y, X[:0], y[:0], entry.classes, entry.description, columns, categories
        )

    return reader


def _adult(name: str, entry: Entry, form: Form, paths: list[Path]) -> DataSet:
    X, y, X_test, y_test, categories = readers.read_adult(paths)
    return DataSet(
        name,
        X,
        y,
        X_test,
        y_test,
        entry.classes,
        entry.description,
        readers.ADULT_COLUMNS,
        categories,
    )


def _cifar100(name: str, entry: Entry, form: Form, paths: list[Path]) -> DataSet:
    return _image_set(
        readers.read_cifar(paths[0], label_bytes=2), name, entry, readers.read_fine_names(paths[0])
    )


_Reader = Callable[[str, Entry, Form, list[Path]], DataSet]
_READERS: dict[str, _Reader] = {
    "idx": lambda name, entry, form, paths: _image_set(readers.read_idx_set(paths), name, entry),
    "npz": _npz,
    "cifar10-binary": lambda name, entry, form, paths: _image_set(
        readers.read_cifar(paths[0], label_bytes=1), name, entry
    ),
    "cifar10-sheets": lambda name, entry, form, paths: _image_set(
        readers.read_cifar_sheets(paths), name, entry
    ),
    "cifar100-binary": _cifar100,
    "cifar100-sheets": lambda name, entry, form, paths: _image_set(
        readers.read_cifar_sheets(paths), name, entry, readers.read_sheet_names(paths[-1])
    ),
    "ratings-zip": _table(readers.read_ratings_zip, readers.RATING_COLUMNS),
    "ratings-npz": _table(readers.read_ratings_npz, readers.RATING_COLUMNS),
    "housing-csv": _table(readers.read_housing_csv, readers.HOUSING_COLUMNS),
    "housing-tgz": _table(readers.read_housing_tgz, readers.HOUSING_COLUMNS),
    "credit": _table(readers.read_credit, readers.CREDIT_COLUMNS),
    "adult": _adult,
}
