# SPDX-License-Identifier: Apache-2.0
"""Raw label counts of groups, a batch at a time; they never leave custody."""

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labeldp.errors import InvalidInput

_CHUNK = 1 << 18  # rows whose cells fit the cache


class GroupCounts:
    """How often each class occurs in each group: raw, so it is neither shown nor stored."""

    def __init__(self, n_groups: int, n_classes: int) -> None:
        self._shape = n_groups, n_classes
        self._cells = np.zeros(n_groups * n_classes, np.int64)

    def __repr__(self) -> str:
        return f"GroupCounts{self._shape}"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Raw counts of labels are never pickled. Pass the private answer on instead.")

    def add(self, groups: NDArray[np.int64], codes: NDArray[np.integer]) -> None:
        """Count rows: (n,) groups and (n,) class codes, both checked."""
        step = max(_CHUNK, 2 * len(self._cells))
        for start in range(0, len(codes), step):
            cells = groups[start : start + step] * self._shape[1]
            np.add(cells, np.asarray(codes[start : start + step]), out=cells, casting="unsafe")  # codes are small, whatever their type
            self._cells += np.bincount(cells, minlength=len(self._cells))

    def table(self) -> NDArray[np.int64]:
        """(n_groups, K) raw counts, for a query's release alone."""
        return np.asarray(self._cells.reshape(self._shape))

    def n_rows(self) -> NDArray[np.int64]:
        """(n_groups,) rows counted: public, as it does not depend on the labels."""
        return np.asarray(self.table().sum(axis=1))


class LabelReader:
    """Class codes of an Arrow label column, batch after batch; no message shows a label.

    Parameters
    ----------
    classes : sequence of K values
    label : str
        Name of the column.
    """

    def __init__(self, classes: Sequence[object], label: str) -> None:
        self._classes, self._label = tuple(classes), label
        self._are_codes = self._classes == tuple(range(len(self._classes)))
        self.rows = 0
        """Rows read so far."""

    def codes(self, batch: pa.RecordBatch) -> NDArray[np.integer]:
        """(n,) codes in 0..K-1 of a batch's rows."""
        if self._label not in batch.schema.names:
            raise InvalidInput(f"Expected a label column {self._label!r}, got columns {', '.join(batch.schema.names)}.")
        column = batch.column(self._label)
        if column.null_count:
            self._refuse(np.asarray(pc.is_null(column)))
        if pa.types.is_dictionary(column.type):
            codes: NDArray[np.integer] = self._searched(column.dictionary).take(column.indices.to_numpy())
        else:
            codes = column.to_numpy() if self._are_codes and pa.types.is_integer(column.type) else self._searched(column)
        bad = bool(len(codes)) and not (codes.min() >= 0 and codes.max() < len(self._classes))
        if bad:
            self._refuse((codes < 0) | (codes >= len(self._classes)))
        self.rows += len(codes)
        return codes

    def _searched(self, column: pa.Array) -> NDArray[np.int32]:
        try:
            values = pa.array(self._classes, column.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise InvalidInput(
                f"Expected classes of the type of label column {self._label!r}, which is {column.type}. Declare them as such values."
            ) from None
        return np.asarray(pc.fill_null(pc.index_in(column, value_set=values), -1))

    def _refuse(self, bad: NDArray[np.bool_]) -> NoReturn:
        rows = np.flatnonzero(bad)
        raise InvalidInput(
            f"Expected every label to be one of the {len(self._classes)} declared classes, but row {self.rows + rows[0]} is not (the "
            "first is row 0). Declare the class, or give missing labels a class of their own."
        )
