# SPDX-License-Identifier: Apache-2.0
"""A run: one charge, and the draws that it covers, each row at most once."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import array_digest, digest
from labeldp.errors import InvalidInput, LedgerError, LeftOutWarning
from labeldp.evidence import Block, NoisyLabels
from labeldp.evidence.block import places_of
from labeldp.evidence.noisy import as_drawn, derived
from labeldp.laws.base import Array, Law
from labeldp.privacy import noise as noise_source
from labeldp.privacy.custody import Begun, RunPlan, depth_outside
from labeldp.privacy.draw import Prior, Questions, draw, prepare_side
from labeldp.privacy.events import per_row_epsilon
from labeldp.privacy.ledger import Ledger
from labeldp.privacy.ledger_entries import Part
from labeldp.privacy.noise import Blocks, Key, RowWords, derive_key, id_blocks, row_blocks
from labeldp.privacy.run_store import ROWS, RunStore
from labeldp.receipt import Receipt

_DRAW = "/draw"
"""Ending of the parts by which a run announces its stages in the ledger."""


class Frame:
    """What a run needs to know of its rows besides their labels: all public."""

    def __init__(
        self,
        plan: RunPlan,
        classes: tuple[object, ...],
        n_rows: int,
        ids: ArrayLike | None,
        unit: ArrayLike | None,
        ledger: Ledger | None,
    ) -> None:
        self.plan = plan
        self.classes = classes
        self.explicit_ids = ids is not None
        names = np.arange(n_rows) if ids is None else np.asarray(ids)
        self.ids = names[:, 0] if names.ndim == 2 and names.shape[1] == 1 else names
        self.ledger = ledger
        self._given_ids = ids  # as an array, 1 and "1" could become one id
        self._unit = unit

    def facts(self, run_id: str) -> dict[str, object]:
        """What enters every key of the run."""
        plan = self.plan
        return {
            "run_id": run_id,
            "dataset": plan.dataset,
            "column": plan.column,
            "unit": plan.unit,
            "max_rows_per_unit": plan.max_rows_per_unit,
            "classes": plan.classes,
        }

    def blocks(self, secret: bytes, run_id: str) -> Blocks:
        """Each row's name as a block."""
        if not self.explicit_ids:
            return row_blocks(len(self.ids))
        blocks = id_blocks(self._given_ids, self._ids_key(secret, run_id))
        repeat = blocks.first_repeat()
        if repeat is not None:
            raise InvalidInput(f"Expected different ids, but the id of row {repeat} occurred before. Each row needs an id of its own.")
        return blocks

    def words(self, law: Law, rows: NDArray[np.integer]) -> Callable[[slice], RowWords | None]:
        """Public words of slices of these rows, for what the law asks each of them."""
        ids = self._given_ids if self.explicit_ids else None
        return Questions(law, self.plan.dataset, self.plan.column).words(
            lambda key: public_blocks(len(self.ids), ids, key)[np.asarray(rows, np.intp)]
        )

    def check(self, secret: bytes) -> int:
        """Refuse ids and units that cannot name rows, before anything is charged, and tell of rows over the cap; any secret serves.

        Returns
        -------
        int
            Rows over the cap.
        """
        self.blocks(secret, "check")
        units, over = self.unit_codes(secret, "check"), 0
        if units is not None:
            over = int(np.maximum(np.bincount(units) - self.plan.max_rows_per_unit, 0).sum())
            tell_of_cap(over, len(units), self.plan.max_rows_per_unit, self.plan.unit)
        if self.explicit_ids and self.ids.dtype.kind in "USO" and len(np.unique(self.ids.astype(np.str_), axis=0)) < len(self.ids):
            raise InvalidInput("Expected ids that stay different as text of one type, without trailing NULs; rename some.")
        return over

    def unit_codes(self, secret: bytes, run_id: str) -> NDArray[np.int64] | None:
        """Number of each row's unit: (n,), or None where each row is its own unit."""
        if self._unit is None:
            return None
        templates = id_blocks(self._unit, self._ids_key(secret, run_id)).templates()
        return np.unique(templates, axis=0, return_inverse=True)[1].reshape(-1)

    def by_id(self, rows: NDArray[np.integer]) -> NDArray[np.intp]:
        """Places among these rows in the order of their ids: how a run keeps what it knows of each row, whatever order the table is in."""
        return id_order(self.ids[rows]) if self.explicit_ids else np.arange(len(rows))

    def in_id_order(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """An array with a value for each row of the table, as it is kept."""
        return np.asarray(array[self.by_id(np.arange(len(self.ids)))])

    def in_table_order(self, kept: NDArray[np.generic]) -> NDArray[np.generic]:
        """What `in_id_order` gave, in the table's present order."""
        array = np.empty_like(kept)
        array[self.by_id(np.arange(len(self.ids)))] = kept
        return array

    def _ids_key(self, secret: bytes, run_id: str) -> Key:
        return derive_key(secret, purpose="ids", facts=self.facts(run_id))


class Run:
    """One charge and the draws that it covers, of disjoint rows; made by `open_run`.

    A context manager: leaving it settles the run, an exception leaves it charged, to be picked up by the same request.
    """

    def __init__(self, begun: Begun, codes: NDArray[np.int32], frame: Frame) -> None:
        self._begun = begun
        self._codes = codes
        self._frame = frame
        self._stages: set[str] = set()
        self._blocks = None if begun.secret is None else frame.blocks(begun.secret, begun.receipt.run_id)
        self._drawn = self._drawn_before()
        self._kept = self._keep_within_cap()

    def __repr__(self) -> str:
        return f"Run({self.receipt!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A run holds raw labels and a secret, so it is never pickled. Pass its NoisyLabels on instead.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.settle()

    @property
    def receipt(self) -> Receipt:
        """The charge."""
        return self._begun.receipt

    @property
    def n_rows(self) -> int:
        """Rows of the table, drawn or not."""
        return len(self._codes)

    @property
    def kept(self) -> NDArray[np.bool_]:
        """(n,) bool: rows within their unit's cap."""
        return self._kept

    def partition(self, fractions: Sequence[float]) -> NDArray[np.int16]:
        """Number of the part that each row is in: (n,) int16, by secret key, independent of labels and of every seed."""
        stored = self._load_by_id("partition")
        if stored is not None:
            return stored.astype(np.int16)
        parts = noise_source.partition(self._key("partition"), self._live_blocks(), fractions)
        self._save_by_id("partition", parts)
        return parts

    def privatize(self, rows: NDArray[np.integer], law: Law, prior: Prior = None, stage: str = "release") -> NoisyLabels:
        """Draw these rows, each at most once in a run; `law.epsilon` is the unit's total.

        Parameters
        ----------
        rows : (m,) int positions
        law : Law
        prior : as in `privatize`, for these m rows
        stage : str
            Different for each call of a run; a repeat of the run returns what was stored under it.

        Returns
        -------
        NoisyLabels of m rows.
        """
        self._check_law(law)
        check_prior_use(law, prior)
        stored = self._stored(stage, rows)
        if stored is not None:
            return stored
        kept = self._begun.store.load_side(stage) if self._begun.store else None
        # what was decided before a crash stands: a model's prior need not come out the same twice
        side: dict[str, Array] = {}
        if kept is None:
            used = law_per_row(law, self.receipt.max_rows_per_unit)
            side = prepare_side(used, prior, len(rows), self._frame.words(used, rows))
        return self._draw(rows, law, side, stage)

    def draw_with_side(self, rows: NDArray[np.integer], law: Law, side: Mapping[str, Array], stage: str) -> NoisyLabels:
        """Like `privatize`, with the side that the law has already prepared."""
        stored = self._stored(stage, rows)
        return self._draw(rows, law, side, stage) if stored is None else stored

    def settle(self) -> None:
        """Mark the run as finished and destroy its secret: its outputs stand, and cannot be computed again."""
        if self._begun.store is None or self._begun.settled or self._frame.ledger is None:
            return
        self._frame.ledger.settle(self.receipt.run_id, self._begun.store.digest())
        self._begun.store.forget_secret()

    def _draw(self, rows: NDArray[np.integer], law: Law, side: Mapping[str, Array], stage: str) -> NoisyLabels:
        rows = np.asarray(rows, np.int64)
        if self._drawn[rows].any() or len(np.unique(rows)) != len(rows):
            again = int(self._drawn[rows].sum())
            raise InvalidInput(f"Expected rows that this run has not drawn yet, got {again} drawn ones in stage {stage!r}.")
        side, prior = self._claimed(rows, law, side, stage)
        self._drawn[rows] = True
        inside = np.flatnonzero(self._kept[rows])
        chosen, used = rows[inside], law_per_row(law, self.receipt.max_rows_per_unit)
        part = {name: values[inside] for name, values in side.items()} if len(inside) < len(rows) else side
        key = self._key("draw", law=used.to_dict(), prior=prior, stage=stage)
        everything = len(chosen) == self.n_rows and np.array_equal(chosen, np.arange(self.n_rows))
        blocks = self._live_blocks() if everything else self._live_blocks()[chosen.astype(np.intp)]
        outputs = draw(used, self._codes[chosen], key, blocks, part)
        block = Block(used, outputs, dict(part), inside, self.receipt, stage)
        noisy = as_drawn(NoisyLabels(len(rows), self._frame.classes, (block,), self._frame.ids[rows], self._frame.explicit_ids))
        if self._begun.store:
            self._begun.store.save_noisy(stage, noisy)
        return noisy

    def _claimed(self, rows: NDArray[np.integer], law: Law, side: Mapping[str, Array], stage: str) -> tuple[Mapping[str, Array], str]:
        """The side to draw with, and its digest, when it is on disk and in the ledger which rows this stage draws, and how.

        Then no other stage, of any handle or process, draws them again, and a run's folder that is set back is seen.
        """
        store = self._begun.store
        if store is None:
            return side, array_digest(side) if side else ""
        order = self._frame.by_id(rows)
        mine = {name: np.ascontiguousarray(values[order]) for name, values in side.items()}
        with store.alone():
            kept = store.load_side(stage)
            kept = mine if kept is None else kept
            if any(len(values) != len(rows) for values in kept.values()):
                raise LedgerError(f"Expected the rows that stage {stage!r} of run {self.receipt.run_id} began with, got other ones.")
            prior = array_digest(kept) if kept else ""
            self._claim(store, rows, {"law": law.to_dict(), "prior": prior}, stage)
            if kept:
                store.keep_side(stage, kept)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return {name: values[back] for name, values in kept.items()}, prior

    def _claim(self, store: RunStore, rows: NDArray[np.integer], how: Mapping[str, object], stage: str) -> None:
        """Note and announce the rows of a stage, unless it was done before; alone in the run."""
        ledger, run_id = self._frame.ledger, self.receipt.run_id
        mask = np.zeros(self.n_rows, bool)
        mask[rows] = True
        chosen = self._frame.in_id_order(mask)
        announced = {} if ledger is None else {part.name: part for part in ledger.parts(run_id)}
        begun = {name.removesuffix(_DRAW) for name in announced if name.endswith(_DRAW)}
        for other in sorted(begun.union(store.claims()) - {stage}):
            theirs = store.load_array(f"{other}.{ROWS}")
            known = announced.get(f"{other}{_DRAW}")
            if theirs is None or (known is not None and int(theirs.sum()) != known.rows):
                raise _set_back(run_id, other)
            again = int(np.count_nonzero(chosen[theirs.astype(bool)]))
            if again:
                raise InvalidInput(f"Expected rows that this run has not drawn yet, got {again} of its stage {other!r} in stage {stage!r}.")
        part = Part(0, f"{stage}{_DRAW}", len(rows), digest({"rows": array_digest({"rows": chosen}), **how}))
        before = announced.get(part.name)
        if before is not None and before.sha256 != part.sha256:
            raise _set_back(run_id, stage)
        store.save_array(f"{stage}.{ROWS}", chosen)
        if ledger is not None and before is None and (how["prior"] or len(rows) < self.n_rows):
            ledger.intend(run_id, [*announced.values(), part])

    @cached_property
    def _intact(self) -> bool:
        """True if a settled run's stored outputs are those that it settled with."""
        store, settled = self._begun.store, self._begun.settled
        return store is not None and settled is not None and store.digest() == settled.artefact

    def _drawn_before(self) -> NDArray[np.bool_]:
        """(n,) bool: rows whose outputs an earlier attempt at this run has kept; no other stage may draw them again."""
        drawn = np.zeros(self.n_rows, bool)
        store = self._begun.store
        for stage in store.stages() if store is not None and self._begun.secret is not None else ():
            noisy = store.load_noisy(stage) if store is not None else None
            drawn |= False if noisy is None else places_of(self._frame.ids, noisy.ids) >= 0
        return drawn

    def _save_by_id(self, name: str, array: NDArray[np.generic]) -> None:
        if self._begun.store:
            self._begun.store.save_array(name, self._frame.in_id_order(array))

    def _load_by_id(self, name: str) -> NDArray[np.generic] | None:
        """A kept array with a value for each row of the table, in the table's present order."""
        stored = self._begun.store.load_array(name) if self._begun.store else None
        return None if stored is None else self._frame.in_table_order(stored)

    def _stored(self, stage: str, rows: NDArray[np.integer]) -> NoisyLabels | None:
        if check_stage(stage) in self._stages:
            raise InvalidInput(f"Expected a name of its own for each stage of a run, got {stage!r} again.")
        self._stages.add(stage)
        noisy = self._begun.store.load_noisy(stage) if self._begun.store else None
        if self._begun.settled and (noisy is None or not self._intact):
            folder = self._begun.store.folder if self._begun.store else "its folder"
            raise LedgerError(
                f"Expected the stored outputs of run {self.receipt.run_id} (settled {self._begun.settled.settled_at}) in {folder}, but "
                f"stage {stage!r} is gone, or was changed. Restore it, or ask for a new, charged draw with redraw=True."
            )
        if noisy is None:
            return None
        self._drawn[rows] = True
        noisy = derived(noisy, blocks=tuple(replace(block, receipt=self.receipt) for block in noisy.blocks))
        return _reorder(noisy, self._frame.ids[rows])

    def _keep_within_cap(self) -> NDArray[np.bool_]:
        stored = self._load_by_id("kept")
        if stored is not None:
            return stored.astype(bool)
        units = None if self._begun.secret is None else self._frame.unit_codes(self._begun.secret, self.receipt.run_id)
        if units is None:
            return np.ones(self.n_rows, bool)
        words = noise_source.one_word(self._key("unit-cap"), self._live_blocks())
        kept = keep_within_cap(units, words, self.receipt.max_rows_per_unit)
        self._save_by_id("kept", kept)
        return kept

    def _live_blocks(self) -> Blocks:
        self._secret()
        assert self._blocks is not None
        return self._blocks

    def _key(self, purpose: str, **facts: object) -> Key:
        return derive_key(self._secret(), purpose=purpose, facts=self._frame.facts(self.receipt.run_id) | facts)

    def _secret(self) -> bytes:
        if self._begun.secret is None:
            raise LedgerError(
                f"Expected a run that may still draw, but run {self.receipt.run_id} has settled. "
                "Ask for a new, charged draw with redraw=True."
            )
        return self._begun.secret

    def _check_law(self, law: Law) -> None:
        if law.n_classes != len(self._frame.classes):
            raise InvalidInput(f"Expected a law over {len(self._frame.classes)} classes, got {law}.")
        if not law.epsilon <= self.receipt.epsilon:
            raise InvalidInput(f"Expected a law within the run's epsilon={self.receipt.epsilon}, got {law}.")


def public_blocks(n_rows: int, ids: ArrayLike | None, key: Key) -> Blocks:
    """Blocks of rows by their ids, or by their numbers, under a key of purpose "ids" that is public."""
    return row_blocks(n_rows) if ids is None else id_blocks(ids, key)


def _set_back(run_id: str, stage: str) -> LedgerError:
    return LedgerError(
        f"Expected stage {stage!r} of run {run_id} as the ledger has it, but its folder does not have it so: the folder was set back, or "
        "this is another stage of that name. Nothing more was drawn. Restore the folder, or ask for a new, charged draw with redraw=True."
    )


def id_order(ids: ArrayLike) -> NDArray[np.intp]:
    """Places of rows in the order of their ids."""
    names = np.asarray(ids)
    names = names.astype(np.str_) if names.dtype.kind == "O" else names
    return np.argsort(names, kind="stable") if names.ndim == 1 else np.lexsort(names.T)


def law_per_row(law: Law, max_rows_per_unit: int) -> Law:
    """The law of one row when a unit's total is shared by m rows."""
    m = _validate.integer(max_rows_per_unit=max_rows_per_unit, low=1)
    return law if m == 1 else replace(law, epsilon=per_row_epsilon(law.epsilon, m))


def check_stage(stage: str) -> str:
    """The name of a stage, which names files of the run too."""
    if not (isinstance(stage, str) and 0 < len(stage) <= 64 and stage.isprintable() and stage[0] != "." and not set(stage) & set("/\\:")):
        raise InvalidInput(f"Expected a stage named by 1 to 64 characters, without slashes or a leading dot; got {stage!r}.")
    return stage


def check_prior_use(law: Law, prior: Prior) -> None:
    """Refuse a prior that the law would silently ignore."""
    if prior is not None and not law.uses_prior:
        raise InvalidInput(f"Expected no prior with {law}, which does not read it. Use RRWithPrior, PriorSplit or AutoLaw, or drop prior=.")


def tell_of_cap(over: int, n_rows: int, cap: int, unit: str) -> None:
    """Warn of rows over their unit's cap; how many there are is public, as the units are."""
    if not over:
        return
    rows = f"{cap} row{'s' * (cap != 1)}"
    said = f"{over:,} of {n_rows:,} rows are over the cap of {rows} for each {unit} and are left out: nothing is drawn for them."
    warnings.warn(
        LeftOutWarning(
            f"{said} To compare caps: labeldp.app.plan.plan(K, [epsilon], rows_per_unit=...). To set one: max_rows_per_unit=.",
            cli=f"{said} To compare caps: labeldp plan --table FILE --unit {unit}. To set one: --max-rows-per-unit.",
        ),
        stacklevel=depth_outside(),
    )


def keep_within_cap(unit: NDArray[np.generic], words: NDArray[np.uint64], cap: int) -> NDArray[np.bool_]:
    """(n,) bool: the `cap` rows of each unit with the smallest words."""
    _, codes = np.unique(unit, return_inverse=True)
    order = np.lexsort((words, codes))
    first = np.r_[0, np.flatnonzero(np.diff(codes[order])) + 1] if len(codes) else np.empty(0, np.int64)
    place = np.arange(len(codes)) - np.repeat(first, np.diff(np.r_[first, len(codes)]))
    kept = np.empty(len(codes), bool)
    kept[order] = place < cap
    return kept


def _reorder(noisy: NoisyLabels, ids: Array) -> NoisyLabels:
    """Stored noisy labels in the order of these ids."""
    if np.array_equal(noisy.ids, ids):
        return noisy
    found = places_of(ids, noisy.ids)
    if np.any(found < 0):
        raise LedgerError("Expected the same rows as in the settled run, but some ids have no stored output.")
    return noisy[found]
