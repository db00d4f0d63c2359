# SPDX-License-Identifier: Apache-2.0
"""Counts raw labels. The counts are as private as the labels, and never leave custody."""

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from labeldp.custody._encode import undrawn, unseen

_CELLS_CHUNK = 1 << 18  # rows counted at a time: their cells (2 MB) stay in the cache


class GroupCounts:
    """Raw counts of each class in each group. They are private: neither printed, pickled nor
    stored."""

    def __init__(self, n_groups: int, n_classes: int) -> None:
        self._shape = n_groups, n_classes
        self._cells = np.zeros(n_groups * n_classes, np.int64)

    def __repr__(self) -> str:
        return f"GroupCounts{self._shape}"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "Raw counts of labels are never pickled. Pass the private answer on instead."
        )

    @unseen(undrawn)
    def add(self, groups: NDArray[np.int64], codes: NDArray[np.integer]) -> None:
        """Count rows: (n,) groups, or (n, T) of several tables, and (n,) class codes, both
        checked."""
        if groups.ndim == 2:
            for column in groups.T:
                self.add(column, codes)
            return
        step = max(_CELLS_CHUNK, 2 * len(self._cells))
        for start in range(0, len(codes), step):
            # In chunks, whose cells stay in the cache; but of at least twice as many rows as there
            # are counts, because `bincount` returns all counts each time.
            cells = groups[start : start + step] * self._shape[1]
            # codes are small, whatever their type
            np.add(cells, np.asarray(codes[start : start + step]), out=cells, casting="unsafe")
            self._cells += np.bincount(cells, minlength=len(self._cells))

    def table(self) -> NDArray[np.int64]:
        """Return the raw counts, (n_groups, K), which only a query's `release` may read."""
        return np.asarray(self._cells.reshape(self._shape))

    def n_rows(self) -> NDArray[np.int64]:
        """Return the number of rows of each group, (n_groups,), which is public since it does not
        depend on labels."""
        return np.asarray(self.table().sum(axis=1))


class RawSums(GroupCounts):
    """Raw sums of each feature over the rows of each class, in whole units. As private as
    counts."""

    def __init__(self, n_features: int, n_classes: int) -> None:
        super().__init__(n_features, n_classes)
        self._rows = 0

    @unseen(undrawn)
    def add(self, groups: NDArray[np.int64], codes: NDArray[np.integer]) -> None:
        """Add rows: (n, d) features in whole units for the groups, and (n,) class codes, both
        checked."""
        for k in range(self._shape[1]):
            self._cells.reshape(self._shape)[:, k] += groups[codes == k].sum(axis=0)
        self._rows += len(codes)

    def n_rows(self) -> NDArray[np.int64]:
        """Return the number of rows that were summed, for each feature: (d,)."""
        return np.full(self._shape[0], self._rows)
