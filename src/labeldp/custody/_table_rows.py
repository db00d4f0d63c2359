# SPDX-License-Identifier: Apache-2.0
"""The rows of a table in memory, by what is public of them: their ids, their units, their order."""

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp._hash import SetDigest
from labeldp.custody._batches import RunSecret
from labeldp.custody._draw import Questions
from labeldp.custody._request import PrivateColumn
from labeldp.custody._row_ids import RowIds
from labeldp.errors import InvalidInput, LeftOutWarning, warn
from labeldp.laws._base import Law
from labeldp.ledger._ledger import Ledger
from labeldp.ledger._rowset import RowSet
from labeldp.noise._secrets import new_secret
from labeldp.noise._words import Blocks, Key, RowWords, id_blocks, one_word, row_blocks


class TableRows:
    """The rows of a table in memory, without their labels: all public.

    Parameters
    ----------
    given : RowIds
        Ids and units, as the caller gave them.
    n_rows : int
    column : PrivateColumn
        Whose labels they have.

    Attributes
    ----------
    ids : (n,) or (n, columns) array
        The explicit ids, or the row numbers.

    Raises
    ------
    InvalidInput
        No rows; ids or units that are the labels' column, of another length, or no columns; a cap without units.
    """

    def __init__(self, given: RowIds, n_rows: int, column: PrivateColumn) -> None:
        self.given, self.column = given, column
        _check(given, n_rows, column)
        names = np.arange(n_rows) if given.ids is None else np.asarray(given.ids)
        self.ids = names[:, 0] if names.ndim == 2 and names.shape[1] == 1 else names
        if self.explicit and self.ids.dtype.kind in "USO" and len(np.unique(self.ids.astype(np.str_), axis=0)) < n_rows:
            raise InvalidInput("Expected ids that stay different as text of one type, without trailing NULs; rename some.")
        self._known_blocks: tuple[str, Blocks] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def explicit(self) -> bool:
        """Whether the caller gave ids."""
        return self.given.ids is not None

    # What a request says of them --------------------------------------------------------------------------------------------------

    @property
    def digest(self) -> str:
        """Digest of the set of explicit ids, in whatever order; "" without ids."""
        return "" if self.given.ids is None else set_digest(self.given.ids)

    @property
    def units_digest(self) -> str:
        """Digest of which row is about whom; "" where each row is its own unit."""
        if self.given.unit is None:
            return ""
        return set_digest(np.arange(len(self)) if self.given.ids is None else self.given.ids, self.given.unit)

    def coverage(self, ledger: Ledger | None) -> RowSet | None:
        """Which rows and units a charge is about, where ids name them; an id that comes twice is refused."""
        given = self.given
        if ledger is None or (given.ids is None and given.unit is None):
            return None
        found = ledger.row_set_builder(given.id_name, given.unit_name)
        found.add(given.ids, given.unit)
        if found.repeated is not False:
            self.check_distinct()
        return found.finish()

    # What a run's keys make of them -------------------------------------------------------------------------------------------------

    def blocks(self, secret: RunSecret) -> Blocks:
        """Each row's name as a block, under a run's secret; an id that comes twice is refused."""
        if not self.explicit:
            return row_blocks(len(self))
        if self._known_blocks is None or self._known_blocks[0] != secret.run_id:  # hashing text takes longer than all else
            blocks = id_blocks(self.given.ids, secret.key("ids"))  # of an array, 1 and "1" could become one id
            repeat = blocks.first_repeat()
            if repeat is not None:
                raise InvalidInput(f"Expected different ids, but the id of row {repeat} occurred before. Each row needs an id of its own.")
            self._known_blocks = secret.run_id, blocks
        return self._known_blocks[1]

    def check_distinct(self) -> None:
        """Refuse an id that comes twice."""
        if self.explicit:
            self.blocks(RunSecret("check", new_secret(), self.column))

    def words(self, law: Law, rows: NDArray[np.integer] | None = None) -> Callable[[slice], RowWords | None]:
        """Public words of slices of these rows, None for all, for what the law asks each of them."""

        def public_blocks(key: Key) -> Blocks:
            blocks = id_blocks(self.given.ids, key) if self.explicit else row_blocks(len(self))
            return blocks if rows is None else blocks[np.asarray(rows, np.intp)]

        return Questions(law, self.column.dataset, self.column.column).words(public_blocks)

    def within_cap(self, secret: RunSecret) -> NDArray[np.bool_]:
        """(n,) bool: the rows within their unit's cap, chosen by the run's secret; all where each row is its own unit."""
        if self._unit_codes is None:
            return np.ones(len(self), bool)
        return keep_within_cap(self._unit_codes, one_word(secret.key("unit-cap"), self.blocks(secret)), self.column.max_rows_per_unit)

    @cached_property
    def over_the_cap(self) -> int:
        """Rows over their unit's cap, which nothing is drawn for; warns of them."""
        if self._unit_codes is None:
            return 0
        cap = self.column.max_rows_per_unit
        over = int(np.maximum(np.bincount(self._unit_codes) - cap, 0).sum())
        warn_of_cap(over, len(self), cap, self.column.unit)
        return over

    @cached_property
    def _unit_codes(self) -> NDArray[np.int64] | None:
        """Number of each row's unit, in no order that matters: (n,); None where each row is its own unit."""
        if self.given.unit is None:
            return None
        key = RunSecret("check", new_secret(), self.column).key("ids")  # any key tells units apart
        return np.unique(id_blocks(self.given.unit, key).templates(), axis=0, return_inverse=True)[1].reshape(-1)

    # Their order -------------------------------------------------------------------------------------------------------------------

    def by_id(self, rows: NDArray[np.integer] | None = None) -> NDArray[np.intp]:
        """Places among these rows, None for all, in the order of their ids: how a run keeps what it knows of each row."""
        names = self.ids if rows is None else self.ids[rows]
        if not self.explicit:
            return np.arange(len(names))
        names = names.astype(np.str_) if names.dtype.kind == "O" else names
        return np.argsort(names, kind="stable") if names.ndim == 1 else np.lexsort(names.T)

    def in_id_order(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """An array with a value for each row of the table, as it is kept."""
        return np.asarray(array[self.by_id()])

    def in_table_order(self, kept: NDArray[np.generic]) -> NDArray[np.generic]:
        """What `in_id_order` gave, in the table's present order."""
        array = np.empty_like(kept)
        array[self.by_id()] = kept
        return array


def set_digest(*columns: ArrayLike) -> str:
    """Digest of a set of rows by their public columns, whatever their order."""
    named = SetDigest()
    named.update(*map(np.asarray, columns))
    return named.hexdigest()


def keep_within_cap(unit: NDArray[np.generic], words: NDArray[np.uint64], cap: int) -> NDArray[np.bool_]:
    """(n,) bool: the `cap` rows of each unit with the smallest words."""
    _, codes = np.unique(unit, return_inverse=True)
    order = np.lexsort((words, codes))
    first = np.r_[0, np.flatnonzero(np.diff(codes[order])) + 1] if len(codes) else np.empty(0, np.int64)
    place = np.arange(len(codes)) - np.repeat(first, np.diff(np.r_[first, len(codes)]))
    kept = np.empty(len(codes), bool)
    kept[order] = place < cap
    return kept


def warn_of_cap(over: int, n_rows: int, cap: int, unit: str) -> None:
    """Warn of rows over their unit's cap; how many there are is public, as the units are."""
    if not over:
        return
    rows = f"{cap} row{'s' * (cap != 1)}"
    said = f"{over:,} of {n_rows:,} rows are over the cap of {rows} for each {unit} and are left out: nothing is drawn for them."
    warn(
        LeftOutWarning(
            f"{said} To compare caps: labeldp.app.plan.plan(K, [epsilon], rows_per_unit=...). To set one: max_rows_per_unit=.",
            cli=f"{said} To compare caps: labeldp plan --table FILE --unit {unit}. To set one: --max-rows-per-unit.",
        )
    )


def _check(given: RowIds, n_rows: int, column: PrivateColumn) -> None:
    if not n_rows:
        raise InvalidInput("Expected at least one label, got none.")
    given.require_public(column.column)
    for name, values in (("ids", given.ids), ("unit", given.unit)):
        if values is None:
            continue
        if np.ndim(array := np.asarray(values)) == 0 or getattr(values, "nlevels", 1) > 1 or array.dtype.kind == "T":
            fix = "Pass a list, an array of integers or text, or a table of several columns (of a MultiIndex: to_frame(index=False))."
            raise InvalidInput(f"Expected {name} as a column of {n_rows} rows, got {type(values).__name__}. {fix}")
        if len(array) != n_rows:
            raise InvalidInput(f"Expected {name} of {n_rows} rows, got {len(array)}.")
    if given.unit is None and column.max_rows_per_unit != 1:
        raise InvalidInput(
            f"Expected unit= with max_rows_per_unit={column.max_rows_per_unit!r}: who each row is about. Without it each row is protected "
            "by itself."
        )
