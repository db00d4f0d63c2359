# SPDX-License-Identifier: Apache-2.0
"""The rows of labels in memory: their ids and units, which are public, without the labels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp._hash import SetDigest, exact_array, sortable, text_array
from labeldp.custody._draw import public_words, question_words
from labeldp.custody._encode import RowIds, require_public_columns
from labeldp.custody._request import PrivateColumn, RunSecret
from labeldp.errors import InvalidInput, LeftOutWarning, warn
from labeldp.laws._base import Law
from labeldp.laws._exact import Array
from labeldp.ledger._ledger import Ledger
from labeldp.ledger._rowset import RowSet
from labeldp.noise._secrets import new_secret
from labeldp.noise._words import Blocks, Key, RowWords, id_blocks, one_word, row_blocks


class TableRows:
    """The rows of a table in memory: their ids and units, which are public, without their labels.

    Parameters
    ----------
    given : RowIds
        Ids and units, as the caller gave them.
    n_rows : int
    column : PrivateColumn
    index : Index of pandas, or None
        That of the Series or frame that the labels were made from.

    Attributes
    ----------
    ids : (n,) or (n, columns) array
        The explicit ids, or the row numbers.
    n_rows : int
    explicit : bool
        True if the caller gave ids.

    Raises
    ------
    InvalidInput
        There are no rows; ids or units are the label column, of another length, or no columns; or
        there is a cap but no units.
    """

    def __init__(
        self, given: RowIds, n_rows: int, column: PrivateColumn, index: Any = None
    ) -> None:
        self.given, self.column, self.n_rows, self.explicit, self.index = (
            given,
            column,
            n_rows,
            given.ids is not None,
            index,
        )
        _check_columns(given, n_rows, column)
        ids = np.arange(n_rows) if given.ids is None else exact_array(given.ids)
        self.ids = ids[:, 0] if ids.ndim == 2 and ids.shape[1] == 1 else ids
        # NumPy drops trailing NULs of text, and converts 1 and "1" of one list to the same text.
        # Two ids must not become one.
        if (
            self.explicit
            and self.ids.dtype.kind in "USO"
            and len(np.unique(sortable(self.ids), axis=0)) < n_rows
        ):
            raise InvalidInput(
                "Expected ids that stay different as text of one type, without trailing NULs;"
                " rename some."
            )
        self._known_blocks: tuple[str, Blocks] | None = None

    # Public facts for the request and the charge
    # --------------------------------------------------------------------------------------

    @cached_property
    def digest(self) -> str:
        """The digest of the set of explicit ids, in any order; "" without ids."""
        return "" if self.given.ids is None else set_digest(self.given.ids)

    @property
    def units_digest(self) -> str:
        """The digest of the pairs (row, unit), in any order; "" if each row is its own unit."""
        if self.given.unit is None:
            return ""
        return set_digest(
            np.arange(self.n_rows) if self.given.ids is None else self.given.ids, self.given.unit
        )

    def coverage(self, ledger: Ledger | None) -> RowSet | None:
        """Build the set of rows and units that a charge covers, None without ids or units; refuse a
        repeated id."""
        given = self.given
        if ledger is None or (given.ids is None and given.unit is None):
            return None
        found = ledger.row_set_builder(given.id_name, given.unit_name)
        found.add(given.ids, given.unit)
        # None: two ids have one hash, so they may be equal or not. Then the ids themselves are
        # compared.
        if found.repeated is not False:
            self.check_distinct()
        return found.finish()

    # Under a run's secret
    # ----------------------------------------------------------------------------------------------

    def blocks(self, secret: RunSecret) -> Blocks:
        """Compute the block of each row under a run's secret; refuse a repeated id."""
        if not self.explicit:
            return row_blocks(self.n_rows)
        # One run's blocks are cached: hashing text takes longer than all other steps, and pin, cap,
        # parts and draw need them.
        if self._known_blocks is None or self._known_blocks[0] != secret.run_id:
            # not self.ids: in an array, 1 and "1" could become one id
            blocks = id_blocks(self.given.ids, secret.key("ids"))
            repeat = blocks.first_repeat()
            if repeat is not None:
                raise InvalidInput(
                    f"Expected different ids, but the id of row {repeat} occurred before. Each row"
                    " needs an id of its own."
                )
            self._known_blocks = secret.run_id, blocks
        return self._known_blocks[1]

    def check_distinct(self) -> None:
        """Refuse a repeated id."""
        if self.explicit:
            self.blocks(self._throwaway_secret())

    def words(
        self, law: Law, rows: NDArray[np.integer] | None = None
    ) -> Callable[[slice], RowWords | None]:
        """Make the public words from which a law draws the questions of these rows (None: all); see
        `question_words`."""

        def public_blocks(key: Key) -> Blocks:
            blocks = self._public_blocks(key)
            return blocks if rows is None else blocks[np.asarray(rows, np.intp)]

        return question_words(law, self.column.dataset, self.column.column, public_blocks)

    def _public_blocks(self, key: Key) -> Blocks:
        return id_blocks(self.given.ids, key) if self.explicit else row_blocks(self.n_rows)

    def public_order(self, what: str, seed: int) -> NDArray[np.int64]:
        """Place the rows in a public order that looks random and depends on their ids alone: (n,)
        places, all different.

        Parameters
        ----------
        what : str
            What the order is for; another one is another order.
        seed : int
        """
        return np.argsort(
            np.argsort(self._public_words(what, seed, self._public_blocks), kind="stable"),
            kind="stable",
        )

    def public_shards(self, n_shards: int, seed: int) -> NDArray[np.int64]:
        """Divide the rows among shards of equal numbers of units by a public rule on ids: (n,)
        int64, -1 for rows over their unit's cap.

        All rows of a unit are in one shard, so that changing all its labels changes one shard. No
        label decides where a row goes.
        """
        unit, codes = self.given.unit, self._unit_codes
        if codes is None:
            place, n_units = self.public_order("shards", seed), self.n_rows
        else:
            first = np.unique(codes, return_index=True)[1]
            words = self._public_words("shards", seed, lambda key: id_blocks(unit, key, "unit"))[
                first
            ]
            place, n_units = (
                np.argsort(np.argsort(words, kind="stable"), kind="stable")[codes],
                len(first),
            )
        if n_shards > n_units:
            whose = (
                f"row{'s' * (n_units != 1)}"
                if codes is None
                else f"different values of {self.column.unit}"
            )
            raise InvalidInput(
                f"Expected at most as many teachers as {n_units} {whose}, got"
                f" n_teachers={n_shards}. Lower it."
            )
        kept = np.ones(self.n_rows, bool)
        if codes is not None:
            kept = keep_within_cap(
                codes,
                self._public_words("cap", seed, self._public_blocks),
                self.column.max_rows_per_unit,
            )
        return np.where(kept, place % n_shards, -1)

    def _public_words(
        self, what: str, seed: int, blocks: Callable[[Key], Blocks]
    ) -> NDArray[np.uint64]:
        facts = {"dataset": self.column.dataset, "column": self.column.column, "seed": seed}
        return public_words(f"public-{what}", facts, blocks)

    def within_cap(self, secret: RunSecret) -> NDArray[np.bool_]:
        """Choose the rows within their unit's cap at random, by the run's secret: (n,) bool; all if
        each row is its own unit."""
        if self._unit_codes is None:
            return np.ones(self.n_rows, bool)
        return keep_within_cap(
            self._unit_codes,
            one_word(secret.key("unit-cap"), self.blocks(secret)),
            self.column.max_rows_per_unit,
        )

    @cached_property
    def over_the_cap(self) -> int:
        """The number of rows over their unit's cap, which are not drawn. The first call warns of
        them; it must precede the charge."""
        # A user may have made errors of warnings: after the charge of an answer about groups its
        # epsilon would be lost.
        if self._unit_codes is None:
            return 0
        cap = self.column.max_rows_per_unit
        over = int(np.maximum(np.bincount(self._unit_codes) - cap, 0).sum())
        warn_of_cap(over, self.n_rows, cap, self.column.unit)
        return over

    @cached_property
    def _unit_codes(self) -> NDArray[np.int64] | None:
        """A number for the unit of each row, (n,); None if each row is its own unit."""
        if self.given.unit is None:
            return None
        # As blocks, units of any type can be compared, also composite ones.
        key = self._throwaway_secret().key("ids")
        return np.unique(
            id_blocks(self.given.unit, key, "unit").templates(), axis=0, return_inverse=True
        )[1].reshape(-1)

    def _throwaway_secret(self) -> RunSecret:
        """Make a secret of no run, for one comparison of ids."""
        return RunSecret("check", new_secret(), self.column)

    # Order: a run stores arrays in the order of ids, so that a repeat with its rows in another
    # order can read them ---------------------

    def by_id(self, rows: NDArray[np.integer] | None = None) -> NDArray[np.intp]:
        """Return the positions of these rows (None: all) sorted by their ids: (m,)."""
        if rows is None or (
            len(rows) == self.n_rows and np.array_equal(rows, np.arange(self.n_rows))
        ):
            return self._order
        return np.arange(len(rows)) if not self.explicit else _order_of(self.ids[rows])

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        return np.arange(self.n_rows) if not self.explicit else _order_of(self.ids)

    def in_id_order(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """Put an array with a value for each row into the order in which it is stored."""
        return np.asarray(array[self.by_id()])

    def in_table_order(self, kept: NDArray[np.generic]) -> NDArray[np.generic]:
        """Put a stored array back into the table's present order; the inverse of `in_id_order`."""
        array = np.empty_like(kept)
        array[self.by_id()] = kept
        return array


def _order_of(ids: Array) -> NDArray[np.intp]:
    """Return the order that sorts ids of one column, or of several: (n,)."""
    ids = sortable(ids)
    return np.argsort(ids, kind="stable") if ids.ndim == 1 else np.lexsort(ids.T)


def set_digest(*columns: ArrayLike) -> str:
    """Compute the digest of a set of rows, given by their public columns, in any order."""
    named = SetDigest()
    # Objects are hashed as text; only what NumPy joins as floats is told apart.
    named.update(
        *(
            exact_array(column) if (array := text_array(column)).dtype.kind == "f" else array
            for column in columns
        )
    )
    return named.hexdigest()


def keep_within_cap(
    unit: NDArray[np.generic], words: NDArray[np.uint64], cap: int
) -> NDArray[np.bool_]:
    """Mark the `cap` rows of each unit with the smallest words: (n,) bool."""
    # Random words, and not the order of the rows: that may depend on the labels, and would decide
    # which of them are released.
    _, codes = np.unique(unit, return_inverse=True)
    # Sorted by unit and then by word, a row's rank within its unit is its distance from the unit's
    # first row.
    order = np.lexsort((words, codes))
    first = (
        np.r_[0, np.flatnonzero(np.diff(codes[order])) + 1] if len(codes) else np.empty(0, np.int64)
    )
    place = np.arange(len(codes)) - np.repeat(first, np.diff(np.r_[first, len(codes)]))
    kept = np.empty(len(codes), bool)
    kept[order] = place < cap
    return kept


def warn_of_cap(over: int, n_rows: int, cap: int, unit: str) -> None:
    """Warn of rows over their unit's cap. Their number is public, as the units are."""
    if not over:
        return
    rows = f"{cap} row{'s' * (cap != 1)}"
    warn(
        LeftOutWarning(
            f"{over:,} of {n_rows:,} rows are over the cap of {rows} for each {unit} and are left"
            " out: nothing is drawn for them. A higher cap (max_rows_per_unit=) keeps more of"
            " them, and leaves each row less epsilon."
        ),
        refusable=False,  # the cap was asked for
    )


def _check_columns(given: RowIds, n_rows: int, column: PrivateColumn) -> None:
    """Refuse an empty table, ids or units that are no public columns of n rows, and a cap without
    units."""
    if not n_rows:
        raise InvalidInput("Expected at least one label, got none.")
    require_public_columns(given.columns, column.columns, "ids and units")
    for name, values in (("ids", given.ids), ("unit", given.unit)):
        if values is None:
            continue
        if (
            np.ndim(array := text_array(values)) == 0
            or getattr(values, "nlevels", 1) > 1
            or array.dtype.kind == "T"
        ):
            fix = (
                "Pass a list, an array of integers or text, or a table of several columns (of a"
                " MultiIndex: to_frame(index=False))."
            )
            raise InvalidInput(
                f"Expected {name} as a column of {n_rows} rows, got {type(values).__name__}. {fix}"
            )
        if len(array) != n_rows:
            raise InvalidInput(f"Expected {name} of {n_rows} rows, got {len(array)}.")
    if given.unit is None and column.max_rows_per_unit != 1:
        raise InvalidInput(
            f"Expected unit= with max_rows_per_unit={column.max_rows_per_unit!r}: who each row is"
            " about. Without it each row is protected by itself."
        )
