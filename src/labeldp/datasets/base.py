# SPDX-License-Identifier: Apache-2.0
"""What a data set is once it is in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class DataSet:
    """A public data set with its labels, for examples, tests and benchmarks.

    Attributes
    ----------
    name : str
        The name it was loaded by.
    X_train, X_test : ndarray
        Images: (n, height, width) or (n, height, width, 3) uint8. Tables: (n, d) float64, a categorical column as the position of its
        value in `categories`, NaN where a value is missing. A set without an official split has all its rows in `X_train`, and 0 rows in
        `X_test`.
    y_train, y_test : (n,) int64
        Labels, as positions in `classes`.
    classes : tuple of str
        The K class values.
    description : str
        What it is, who made it, and what to know before using it.
    columns : tuple of str
        The d column names of a table; empty for images.
    categories : mapping of str to tuple of str
        For each categorical column of a table, its values.
    """

    name: str
    X_train: NDArray[np.generic]
    y_train: NDArray[np.int64]
    X_test: NDArray[np.generic]
    y_test: NDArray[np.int64]
    classes: tuple[str, ...]
    description: str
    columns: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def n_classes(self) -> int:
        """K, the number of classes."""
        return len(self.classes)

    @property
    def categorical(self) -> tuple[int, ...]:
        """The positions of the categorical columns, as scikit-learn's `categorical_features` takes them."""
        return tuple(i for i, column in enumerate(self.columns) if column in self.categories)

    def all_rows(self) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """All features (n, ...) and labels (n,), the train rows first.

        Cost: one copy of both.
        """
        return np.concatenate([self.X_train, self.X_test]), np.concatenate([self.y_train, self.y_test])

    def to_table(self, part: str = "train", label: str = "label") -> "pa.Table":
        """One part of a tabular set as an Arrow table of n rows, categorical columns as text, and the class values in the column `label`.

        Parameters
        ----------
        part : {"train", "test"}
            Which rows.
        label : str
            The name of the label column, which comes last.

        Cost: O(n d).
        """
        import pyarrow as pa

        _validate.one_of(["train", "test"], part=part)
        if not self.columns:
            raise InvalidInput(f"Expected a data set with columns, got the images of {self.name}. Use X_{part} and y_{part}.")
        X, y = (self.X_train, self.y_train) if part == "train" else (self.X_test, self.y_test)
        named = {column: self._arrow_column(column, X[:, i].astype(np.float64)) for i, column in enumerate(self.columns)}
        named[label] = _decode(y, self.classes)
        return pa.table(named)

    def _arrow_column(self, column: str, values: NDArray[np.float64]) -> "pa.Array":
        import pyarrow as pa

        missing = np.isnan(values)
        if column in self.categories:
            return _decode(np.where(missing, -1, values).astype(np.int64), self.categories[column])
        whole = bool(np.all(values[~missing] == np.rint(values[~missing])))
        return pa.array(np.where(missing, 0, values), pa.int64() if whole else pa.float64(), mask=missing, safe=False)


def _decode(codes: NDArray[np.int64], values: tuple[str, ...]) -> "pa.Array":
    import pyarrow as pa

    return pa.array(values, pa.string()).take(pa.array(codes, mask=codes < 0))
