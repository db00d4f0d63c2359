# SPDX-License-Identifier: Apache-2.0
"""Labels in memory: one charge, and the draws of disjoint rows that it covers, each row at most once."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from labeldp._hash import array_digest, digest
from labeldp.custody._batches import Draw, RunSecret
from labeldp.custody._charge import Charge, begin, warn_of_repeat
from labeldp.custody._draw import Prior, check_contract, law_per_row, prepare_side
from labeldp.custody._request import Account, Request
from labeldp.custody._table_rows import TableRows
from labeldp.errors import InvalidInput, LedgerError
from labeldp.evidence import NoisyLabels
from labeldp.evidence._noisy import derived, places_of
from labeldp.laws._base import Array, Law
from labeldp.ledger._entries import Part
from labeldp.ledger._run_store import ROWS, RunStore
from labeldp.noise._words import Pin, partition
from labeldp.receipt import Receipt

_DRAW = "/draw"
"""Ending of the parts by which a run announces its stages in the ledger."""


class Run:
    """One charge and the draws that it covers, of disjoint rows; made by `open_run`.

    A context manager: leaving it settles the run, an exception leaves it charged, to be picked up by the same request.
    """

    def __init__(self, charge: Charge, codes: NDArray[np.int32], rows: TableRows) -> None:
        self._charge, self._codes, self._rows = charge, codes, rows
        self._stages: set[str] = set()
        self._drawn = self._drawn_before()
        self._kept = self._within_cap()

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
        return self._charge.receipt

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
        secret = self._secret
        parts = partition(secret.key("partition"), self._rows.blocks(secret), fractions)
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
        kept = self._store.load_side(stage) if self._store else None
        # what was decided before a crash stands: a model's prior need not come out the same twice
        side: dict[str, Array] = {}
        if kept is None:
            used = law_per_row(law, self.receipt.max_rows_per_unit)
            side = prepare_side(used, prior, len(rows), self._rows.words(used, rows))
        return self._draw(rows, law, side, stage)

    def draw_with_side(self, rows: NDArray[np.integer], law: Law, side: Mapping[str, Array], stage: str) -> NoisyLabels:
        """Like `privatize`, with the side that the law has already prepared."""
        stored = self._stored(stage, rows)
        return self._draw(rows, law, side, stage) if stored is None else stored

    def settle(self) -> None:
        """Mark the run as finished and destroy its secret: its outputs stand, and cannot be computed again."""
        self._charge.settle()

    def _draw(self, rows: NDArray[np.integer], law: Law, side: Mapping[str, Array], stage: str) -> NoisyLabels:
        rows = np.asarray(rows, np.int64)
        if self._drawn[rows].any() or len(np.unique(rows)) != len(rows):
            again = int(self._drawn[rows].sum())
            raise InvalidInput(f"Expected rows that this run has not drawn yet, got {again} drawn ones in stage {stage!r}.")
        side, prior = self._claimed(rows, law, side, stage)
        self._drawn[rows] = True
        inside = np.flatnonzero(self._kept[rows])
        chosen = rows[inside]
        part = {name: values[inside] for name, values in side.items()} if len(inside) < len(rows) else side
        blocks = self._rows.blocks(self._secret)
        if not np.array_equal(chosen, np.arange(self.n_rows)):  # a copy of the whole is spared
            blocks = blocks[chosen.astype(np.intp)]
        draw = Draw(self._secret, law_per_row(law, self.receipt.max_rows_per_unit), self.receipt, prior, stage)
        noisy = draw.release(self._codes[chosen], blocks, part, self._rows.ids[rows], rows=inside, explicit_ids=self._rows.explicit)
        if self._store:
            self._store.save_noisy(stage, noisy)
        return noisy

    def _claimed(self, rows: NDArray[np.integer], law: Law, side: Mapping[str, Array], stage: str) -> tuple[Mapping[str, Array], str]:
        """The side to draw with, and its digest, when it is on disk and in the ledger which rows this stage draws, and how.

        Then no other stage, of any handle or process, draws them again, and a run's folder that is set back is seen.
        """
        store = self._store
        if store is None:
            return side, array_digest(side) if side else ""
        order = self._rows.by_id(rows)
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
        ledger, run_id = self._charge.ledger, self.receipt.run_id
        mask = np.zeros(self.n_rows, bool)
        mask[rows] = True
        chosen = self._rows.in_id_order(mask)
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
        store, settled = self._store, self._charge.settled
        return store is not None and settled is not None and store.digest() == settled.artefact

    def _drawn_before(self) -> NDArray[np.bool_]:
        """(n,) bool: rows whose outputs an earlier attempt at this run has kept; no other stage may draw them again."""
        drawn = np.zeros(self.n_rows, bool)
        store = self._store
        for stage in store.stages() if store is not None and self._charge.secret is not None else ():
            noisy = store.load_noisy(stage) if store is not None else None
            drawn |= False if noisy is None else places_of(self._rows.ids, noisy.ids) >= 0
        return drawn

    def _save_by_id(self, name: str, array: NDArray[np.generic]) -> None:
        if self._store:
            self._store.save_array(name, self._rows.in_id_order(array))

    def _load_by_id(self, name: str) -> NDArray[np.generic] | None:
        """A kept array with a value for each row of the table, in the table's present order."""
        stored = self._store.load_array(name) if self._store else None
        return None if stored is None else self._rows.in_table_order(stored)

    def _stored(self, stage: str, rows: NDArray[np.integer]) -> NoisyLabels | None:
        if check_stage(stage) in self._stages:
            raise InvalidInput(f"Expected a name of its own for each stage of a run, got {stage!r} again.")
        self._stages.add(stage)
        noisy = self._store.load_noisy(stage) if self._store else None
        if self._charge.settled and (noisy is None or not self._intact):
            folder = self._store.folder if self._store else "its folder"
            raise LedgerError(
                f"Expected the stored outputs of run {self.receipt.run_id} (settled {self._charge.settled.settled_at}) in {folder}, but "
                f"stage {stage!r} is gone, or was changed. Restore it, or ask for a new, charged draw with redraw=True."
            )
        if noisy is None:
            return None
        self._drawn[rows] = True
        noisy = derived(noisy, blocks=tuple(replace(block, receipt=self.receipt) for block in noisy.blocks))
        return _reorder(noisy, self._rows.ids[rows])

    def _within_cap(self) -> NDArray[np.bool_]:
        """(n,) bool: rows within their unit's cap, as they were chosen first."""
        stored = self._load_by_id("kept")
        if stored is not None or self._charge.secret is None:
            return np.ones(self.n_rows, bool) if stored is None else stored.astype(bool)
        kept = self._rows.within_cap(self._charge.secret)
        if self._rows.given.unit is not None:
            self._save_by_id("kept", kept)
        return kept

    @property
    def _store(self) -> RunStore | None:
        return self._charge.store

    @property
    def _secret(self) -> RunSecret:
        if self._charge.secret is None:
            raise LedgerError(
                f"Expected a run that may still draw, but run {self.receipt.run_id} has settled. "
                "Ask for a new, charged draw with redraw=True."
            )
        return self._charge.secret

    def _check_law(self, law: Law) -> None:
        if law.n_classes != len(self._rows.column.values):
            raise InvalidInput(f"Expected a law over {len(self._rows.column.values)} classes, got {law}.")
        if not law.epsilon <= self.receipt.epsilon:
            raise InvalidInput(f"Expected a law within the run's epsilon={self.receipt.epsilon}, got {law}.")
        check_contract(law_per_row(law, self.receipt.max_rows_per_unit))


def charged_run(request: Request, account: Account, codes: NDArray[np.int32], rows: TableRows, *, by_labels: bool = False) -> Run:
    """Charge a run over the labels of these rows, or pick up the run that the request repeats.

    Parameters
    ----------
    request, account, by_labels
        As in `begin`.
    codes : (n,) int32
        Class codes: raw, private.
    rows : TableRows
    """

    def pin_of(secret: RunSecret) -> str:
        pin = Pin(secret.key("pin"))
        pin.update(rows.blocks(secret), codes)
        return pin.hexdigest()

    over, coverage = rows.over_the_cap, rows.coverage(account.ledger)
    charge = begin(request, account, pin_of=pin_of, coverage=coverage, by_labels=by_labels)
    charge = replace(charge, receipt=replace(charge.receipt, rows_over_the_cap=over))
    if charge.settled is not None:
        warn_of_repeat(charge.receipt)
    return Run(charge, codes, rows)


def _set_back(run_id: str, stage: str) -> LedgerError:
    return LedgerError(
        f"Expected stage {stage!r} of run {run_id} as the ledger has it, but its folder does not have it so: the folder was set back, or "
        "this is another stage of that name. Nothing more was drawn. Restore the folder, or ask for a new, charged draw with redraw=True."
    )


def check_stage(stage: str) -> str:
    """The name of a stage, which names files of the run too."""
    if not (isinstance(stage, str) and 0 < len(stage) <= 64 and stage.isprintable() and stage[0] != "." and not set(stage) & set("/\\:")):
        raise InvalidInput(f"Expected a stage named by 1 to 64 characters, without slashes or a leading dot; got {stage!r}.")
    return stage


def check_prior_use(law: Law, prior: Prior) -> None:
    """Refuse a prior that the law would silently ignore."""
    if prior is not None and not law.uses_prior:
        raise InvalidInput(f"Expected no prior with {law}, which does not read it. Use RRWithPrior, PriorSplit or AutoLaw, or drop prior=.")


def _reorder(noisy: NoisyLabels, ids: Array) -> NoisyLabels:
    """Stored noisy labels in the order of these ids."""
    if np.array_equal(noisy.ids, ids):
        return noisy
    found = places_of(ids, noisy.ids)
    if np.any(found < 0):
        raise LedgerError("Expected the same rows as in the settled run, but some ids have no stored output.")
    return noisy[found]
