# SPDX-License-Identifier: Apache-2.0
"""The one door for labels in memory: check everything, charge, and then draw, each row at most once.

What comes out is `NoisyLabels`; answers about groups come out in `labeldp.custody._aggregation`, tables in `labeldp.custody._stream`.
None of the three can leak labels: whatever happens after it (training, tuning, choosing models) is post-processing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import SetDigest, array_digest, digest
from labeldp.custody._draw import Draw, Prior, check_contract, law_per_row, prepare_side, question_words
from labeldp.custody._encode import Name, RowIds, classes_for, declare, encode
from labeldp.custody._request import Account, Charge, PrivateColumn, Request, RunSecret, begin, warn_of_repeat
from labeldp.errors import InvalidInput, LedgerError, LeftOutWarning, warn
from labeldp.evidence import NoisyLabels
from labeldp.evidence._noisy import derived, places_of
from labeldp.laws._base import Law, check_told_apart
from labeldp.laws._exact import Array
from labeldp.ledger._database import Part
from labeldp.ledger._ledger import Ledger
from labeldp.ledger._rowset import RowSet
from labeldp.ledger._run_store import ROWS, RunStore
from labeldp.noise._secrets import new_secret
from labeldp.noise._words import Blocks, Key, Pin, RowWords, SeededNoise, id_blocks, one_word, partition, row_blocks


def privatize(
    labels: ArrayLike,
    law: Law,
    *,
    classes: Sequence[object] | None = None,
    dataset: str | None = None,
    column: str = "label",
    ids: ArrayLike | None = None,
    unit: ArrayLike | None = None,
    max_rows_per_unit: int = 1,
    prior: Prior = None,
    stage: str | None = None,
    ledger: Ledger | None = None,
    noise: SeededNoise | None = None,
    redraw: bool = False,
    id_name: Name | None = None,
    unit_name: Name | None = None,
) -> NoisyLabels:
    """Release every label once through a law.

    Parameters
    ----------
    labels : (n,) array of class values
        Raw, private. Every value must be declared.
    law : Law
        Its epsilon is the total of one unit: with `max_rows_per_unit` = m each row's law runs at epsilon / m, rounded down.
    classes : sequence of K values, or "infer", optional
        The public list of class values. None: the codes 0..K-1, as the law has K classes, where the labels are integers; others must be
        declared. "infer" reads them off the labels, which tells everybody which classes occur: it warns, `privacy.except_for` says so,
        and floats, or more than sqrt(n) different values, are refused.
    dataset : str, optional
        Public name of the data set; a durable ledger requires it.
    column : str
        Name of the label column.
    ids : (n,) or (n, columns) array, column or table, optional
        Public, different ids of the rows. With them a repeat is recognised in any order, and disjoint rows do not add up.
    unit : (n,) array or column, optional
        Who each row is about; None protects each row by itself.
    max_rows_per_unit : int
        Rows of one unit that are used; further ones, chosen by a secret key, get no evidence.
    prior : (n, K) array, function of row positions, or iterator of batches, optional
        Public weights of the classes for each row; uniform if None. It must not depend on these raw labels.
    stage : str, optional
        Name of the round.
    ledger : Ledger, or its path, optional
        Durable record. None: nothing is recorded, which a warning says once.
    noise : SeededNoise, optional
        For tests and benchmarks on public data only: no guarantee at all.
    redraw : bool
        Draw again, and be charged again, though the same request has settled.
    id_name, unit_name : str or sequence of str, optional
        What the columns of `ids` and `unit` are called. None: as a column of pandas, polars or Arrow says; arrays and lists are the columns
        "id" and "unit". Ids of one name must be one numbering: the ledger takes two of them for two rows, or two people. Ids of another
        name are never taken for other rows, and units of another name are refused.

    Returns
    -------
    NoisyLabels of n rows, in the order of `labels`.

    Raises
    ------
    InvalidInput
        Before anything is charged, for whatever is wrong with the arguments.
    BudgetExceeded
        If the ledger refuses; nothing is drawn.
    LedgerError
        If the ledger cannot be used, or cannot tell whether these rows were released before.

    Notes
    -----
    Guarantee: epsilon-label-DP for each unit, pure, in exact arithmetic, of all but a list of classes that was inferred. With a durable
    ledger the charge is on disk before the first random word, a crashed call that is repeated draws the same outputs, and a settled one
    returns its stored outputs.
    Cost: O(n) time and memory for laws without a prior, O(n K) time with one; chunks of 32,768 rows.

    Examples
    --------
    >>> import labeldp as ldp
    >>> noisy = ldp.privatize([0, 2, 1], ldp.SubsetSelection(n_classes=4, epsilon=1.0), noise=ldp.SeededNoise(0))
    >>> noisy.likelihood().shape
    (3, 4)
    """
    if not isinstance(law, Law):
        raise InvalidInput(f"Expected a law, such as labeldp.RandomizedResponse(n_classes=2, epsilon=1.0), got {_validate.shown(law)}.")
    # Ids, units and classes are public and go into digests as they are, so labels among them are refused before anything else.
    given = RowIds.of(ids, unit, id_name, unit_name).beside(labels)
    declared, inferred = classes_for(labels, classes, law.n_classes)
    codes = encode(labels, declared)
    del labels  # what is shown of this frame, if something fails, shows none of them
    check_prior_use(law, prior)
    name = check_stage("release" if stage is None else stage)
    account = Account(dataset or "", column, max_rows_per_unit, ledger, noise, redraw)
    rows = TableRows(given, len(codes), account.private_column(declared, given))
    used = law_per_row(law, account.max_rows_per_unit)
    check_contract(used)
    side = prepare_side(used, prior, len(codes), rows.words(used))
    check_told_apart(used, used.told_apart(side), declared, len(codes))
    # In the order of ids: a repeat whose rows come in another order is the same request.
    order = rows.by_id() if rows.explicit and side else slice(None)
    request = Request(
        rows.column,
        law.epsilon,
        {"law": law.to_dict(), "stage": name} | ({"classes_inferred": True} if inferred else {}),
        prior=array_digest({what: values[order] for what, values in side.items()}) if side else "",
        rows=rows.digest,
        units=rows.units_digest,
        id_name=given.id_name,
    )
    # Everything that can be wrong was refused above: from here on epsilon may be spent.
    account.check()
    with charged_run(request, account, codes, rows) as run:
        return run.draw_with_side(np.arange(len(codes)), law, used, side, name)


def open_run(
    labels: ArrayLike,
    classes: Sequence[object],
    account: Account,
    given: RowIds | None = None,
    *,
    epsilon: float,
    laws: Mapping[str, object],
    prior_digest: str = "",
    public_digest: str = "",
) -> "Run":
    """Charge one run over all rows in memory, or pick up the run that this request repeats.

    Parameters
    ----------
    labels : (n,) array of class values, raw
    classes : sequence of K values
    account : Account
    given : RowIds, optional
        Ids and units; None: neither.
    epsilon : float
        The unit's total for everything that the run draws.
    laws : mapping
        The laws and how rows are divided among them, as JSON-ready data: part of what makes a request the same request.
    prior_digest : str
        Digest of the public prior, "" for none.
    public_digest : str
        Digest of the public columns, where there are no ids: labels in their order may then name the rows as well.

    Returns
    -------
    Run, charged (or settled before, if it is a repeat).
    """
    given = given or RowIds()
    column = account.private_column(declare(classes), given)
    codes = encode(labels, column.values)
    del labels
    rows = TableRows(given, len(codes), column)
    account.check()
    # Ids name rows. Without them public columns do, and if these differ, the labels in their order (the pin) may still tell.
    public = "" if rows.explicit else public_digest
    request = Request(
        column,
        _validate.epsilon(epsilon),
        laws,
        prior=prior_digest,
        rows=rows.digest or public,
        units=rows.units_digest,
        id_name=given.id_name,
    )
    return charged_run(request, account, codes, rows, by_labels=bool(public))


_DRAW = "/draw"
"""Ending of the parts by which a run announces the rows of its stages in the ledger."""


class Run:
    """A charged run over labels in memory, which `charged_run` makes: its draws are of disjoint rows.

    A context manager: leaving it settles the run, an exception leaves it charged, to be picked up by the same request.

    Attributes
    ----------
    receipt : Receipt
        The charge.
    n_rows : int
        Rows of the table, drawn or not.
    kept : (n,) bool
        Rows within their unit's cap.
    """

    def __init__(self, charge: Charge, codes: NDArray[np.int32], rows: "TableRows") -> None:
        self._charge, self._codes, self._rows = charge, codes, rows
        self._store, self.receipt, self.n_rows = charge.store, charge.receipt, len(codes)
        self._stages: set[str] = set()
        self._drawn = self._drawn_before()
        self.kept = self._within_cap()

    def __repr__(self) -> str:
        return f"Run({self.receipt!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A run holds raw labels and a secret, so it is never pickled. Pass its NoisyLabels on instead.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.settle()

    def partition(self, fractions: Sequence[float]) -> NDArray[np.int16]:
        """Divide the rows among parts by a secret key, independent of labels and of every seed: (n,) int16, each row's part."""
        # As it was drawn first: after a crash every row stays in its part, or it could be drawn in two stages.
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
        row_law = self._row_law(law)
        check_prior_use(law, prior)
        stored = self._take_stored(check_stage(stage), rows)
        if stored is not None:
            return stored
        # What was decided before a crash stands: a model's prior need not come out the same twice.
        earlier_side = self._store.load_side(stage) if self._store else None
        side: dict[str, Array] = {}
        if earlier_side is None:
            side = prepare_side(row_law, prior, len(rows), self._rows.words(row_law, rows))
        return self._draw(rows, law, row_law, side, stage)

    def draw_with_side(self, rows: NDArray[np.integer], law: Law, row_law: Law, side: Mapping[str, Array], stage: str) -> NoisyLabels:
        """Draw like `privatize`, by a law that was checked, and whose side was prepared, before the charge."""
        stored = self._take_stored(stage, rows)
        return self._draw(rows, law, row_law, side, stage) if stored is None else stored

    def settle(self) -> None:
        """Mark the run as finished and destroy its secret: its outputs stand, and cannot be computed again."""
        self._charge.settle()

    def _draw(self, rows: NDArray[np.integer], law: Law, row_law: Law, side: Mapping[str, Array], stage: str) -> NoisyLabels:
        """Claim these rows for a stage, draw them and store what comes out; `side` is of these rows, in their order."""
        rows = np.asarray(rows, np.int64)
        mask = np.zeros(self.n_rows, bool)
        mask[rows] = True
        # A row drawn twice under one charge would have spent twice what the receipt says.
        if (again := int(self._drawn[rows].sum())) or np.count_nonzero(mask) != len(rows):
            raise InvalidInput(f"Expected rows that this run has not drawn yet, got {again} drawn ones in stage {stage!r}.")
        # Claimed on disk before the first word: after a crash no other stage can take these rows, nor this one another prior.
        side, prior = self._claim_stage(rows, mask, law, side, stage)
        self._drawn[rows] = True
        # Rows over the cap are claimed with the others, and get no output: which they are is settled once for the run.
        inside = np.flatnonzero(self.kept[rows])
        chosen = rows[inside]
        part = {name: values[inside] for name, values in side.items()} if len(inside) < len(rows) else side
        blocks = self._rows.blocks(self._secret)
        if not np.array_equal(chosen, np.arange(self.n_rows)):  # a copy of the whole is spared
            blocks = blocks[chosen.astype(np.intp)]
        draw = Draw(self._secret, row_law, self.receipt, prior, stage)
        noisy = draw.release(self._codes[chosen], blocks, part, self._rows.ids[rows], rows=inside, explicit_ids=self._rows.explicit)
        if self._store:
            self._store.save_noisy(stage, noisy)
        return noisy

    def _claim_stage(
        self, rows: NDArray[np.integer], mask: NDArray[np.bool_], law: Law, side: Mapping[str, Array], stage: str
    ) -> tuple[Mapping[str, Array], str]:
        """Put on disk and into the ledger which rows this stage draws, and how; return the side to draw with, and its digest.

        Where an earlier attempt has kept a side, that one is returned.

        Then no other stage, of any handle or process, draws them again, and a run's folder that is set back is seen.
        """
        store = self._store
        if store is None:
            return side, array_digest(side) if side else ""
        order = self._rows.by_id(rows) if law.uses_prior else np.empty(0, np.intp)  # ids are sorted where a side needs it
        chosen = mask if mask.all() else self._rows.in_id_order(mask).astype(bool)
        mine = {name: np.ascontiguousarray(values[order]) for name, values in side.items()}
        # Alone: between looking at what other stages have claimed and writing this claim, nobody else may claim.
        with store.alone():
            earlier_side = store.load_side(stage)
            used = mine if earlier_side is None else earlier_side
            if any(len(values) != len(rows) for values in used.values()):
                raise LedgerError(f"Expected the rows that stage {stage!r} of run {self.receipt.run_id} began with, got other ones.")
            prior = array_digest(used) if used else ""
            self._claim_rows(store, chosen, {"law": law.to_dict(), "prior": prior}, stage)
            # After the claim, whose digest names it: whoever finds the side finds also what it belongs to.
            if used:
                store.keep_side(stage, used)
        inverse_order = np.empty_like(order)
        inverse_order[order] = np.arange(len(order))
        return {name: values[inverse_order] for name, values in used.items()}, prior

    def _claim_rows(self, store: RunStore, chosen: NDArray[np.bool_], drawn_by: Mapping[str, object], stage: str) -> None:
        """Note and announce the rows of a stage, unless it was done before; the caller keeps all others out of the run meanwhile.

        Parameters
        ----------
        store : RunStore
        chosen : (n,) bool
            The stage's rows, in the order of their ids.
        drawn_by : mapping
            The law, and the digest of the side under "prior": the stage may not be drawn in another way later.
        stage : str
        """
        ledger, run_id, n_chosen = self._charge.ledger, self.receipt.run_id, int(np.count_nonzero(chosen))
        announced = {} if ledger is None else {part.name: part for part in ledger.parts(run_id)}
        begun = {name.removesuffix(_DRAW) for name in announced if name.endswith(_DRAW)}
        for other in sorted(begun.union(store.claims()) - {stage}):
            theirs = store.load_array(f"{other}.{ROWS}")
            known = announced.get(f"{other}{_DRAW}")
            # The ledger cannot be set back without notice, the folder can: where they differ, the folder may have lost draws.
            if theirs is None or (known is not None and int(theirs.sum()) != known.rows):
                raise _set_back_error(run_id, other)
            again = int(np.count_nonzero(chosen[theirs.astype(bool)]))
            if again:
                raise InvalidInput(f"Expected rows that this run has not drawn yet, got {again} of its stage {other!r} in stage {stage!r}.")
        part = Part(0, f"{stage}{_DRAW}", n_chosen, digest({"rows": array_digest({"rows": chosen}), **drawn_by}))
        before = announced.get(part.name)
        if before is not None and before.sha256 != part.sha256:
            raise _set_back_error(run_id, stage)
        store.save_array(f"{stage}.{ROWS}", chosen)
        # A draw of all rows without a prior needs no announcement: drawn again it is the same.
        if ledger is not None and before is None and (drawn_by["prior"] or n_chosen < self.n_rows):
            ledger.intend(run_id, [*announced.values(), part])

    @cached_property
    def _intact(self) -> bool:
        """Tell whether a settled run's stored outputs are those that it settled with."""
        store, settled = self._store, self._charge.repeats
        return store is not None and settled is not None and store.digest() == settled.artefact

    def _drawn_before(self) -> NDArray[np.bool_]:
        """Mark the rows whose outputs an earlier attempt at this run has kept: no other stage may draw them again."""
        drawn = np.zeros(self.n_rows, bool)
        if self._store is None or self._charge.secret is None:
            return drawn
        for stage in self._store.stages():
            noisy = self._store.load_noisy(stage)
            if noisy is not None:
                drawn |= places_of(self._rows.ids, noisy.ids) >= 0
        return drawn

    def _save_by_id(self, name: str, array: NDArray[np.generic]) -> None:
        """Store an array with a value for each row, in the order of ids."""
        if self._store:
            self._store.save_array(name, self._rows.in_id_order(array))

    def _load_by_id(self, name: str) -> NDArray[np.generic] | None:
        """Load an array with a value for each row, in the table's present order."""
        stored = self._store.load_array(name) if self._store else None
        return None if stored is None else self._rows.in_table_order(stored)

    def _take_stored(self, stage: str, rows: NDArray[np.integer]) -> NoisyLabels | None:
        """Mark a stage as used, and load its stored outputs, if it has any, as drawn by this call; no stage is used twice."""
        if stage in self._stages:
            raise InvalidInput(f"Expected a name of its own for each stage of a run, got {stage!r} again.")
        self._stages.add(stage)
        noisy = self._store.load_noisy(stage) if self._store else None
        # A settled run's secret is gone, so nothing can be drawn in place of what is missing; and a changed file is nobody's evidence.
        settled = self._charge.repeats
        if settled and (noisy is None or not self._intact):
            folder = self._store.folder if self._store else "its folder"
            raise LedgerError(
                f"Expected the stored outputs of run {self.receipt.run_id} (settled {settled.settled_at}) in {folder}, but "
                f"stage {stage!r} is gone, or was changed. Restore it, or ask for a new, charged draw with redraw=True."
            )
        if noisy is None:
            return None
        self._drawn[rows] = True
        # The receipt of this call says whether it is a repeat; the stored one was written when it was not.
        noisy = derived(noisy, blocks=tuple(replace(block, receipt=self.receipt) for block in noisy.blocks))
        return _reorder(noisy, self._rows.ids[rows])

    def _within_cap(self) -> NDArray[np.bool_]:
        """Mark the rows within their unit's cap, as they were chosen first: (n,) bool."""
        # The choice needs the secret, which is gone once the run has settled: a repeat reads who was kept.
        stored = self._load_by_id("kept")
        if stored is not None or self._charge.secret is None:
            return np.ones(self.n_rows, bool) if stored is None else stored.astype(bool)
        kept = self._rows.within_cap(self._charge.secret)
        if self._rows.given.unit is not None:
            self._save_by_id("kept", kept)
        return kept

    @property
    def _secret(self) -> RunSecret:
        if self._charge.secret is None:
            raise LedgerError(
                f"Expected a run that may still draw, but run {self.receipt.run_id} has settled. "
                "Ask for a new, charged draw with redraw=True."
            )
        return self._charge.secret

    def _row_law(self, law: Law) -> Law:
        """Check that this run may draw by a law, and return the law of one row."""
        if law.n_classes != len(self._rows.column.values):
            raise InvalidInput(f"Expected a law over {len(self._rows.column.values)} classes, got {law}.")
        if not law.epsilon <= self.receipt.epsilon:
            raise InvalidInput(f"Expected a law within the run's epsilon={self.receipt.epsilon}, got {law}.")
        row_law = law_per_row(law, self.receipt.max_rows_per_unit)
        check_contract(row_law)
        return row_law


def charged_run(request: Request, account: Account, codes: NDArray[np.int32], rows: "TableRows", *, by_labels: bool = False) -> Run:
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

    # Before the charge: an id that comes twice is refused while nothing is spent.
    over, coverage = rows.over_the_cap, rows.coverage(account.ledger)
    charge = begin(request, account, pin_of=pin_of, coverage=coverage, by_labels=by_labels)
    charge = replace(charge, receipt=replace(charge.receipt, rows_over_the_cap=over))
    if charge.repeats is not None:
        warn_of_repeat(charge.receipt)
    return Run(charge, codes, rows)


def _set_back_error(run_id: str, stage: str) -> LedgerError:
    """Make the error for a stage that the ledger and the run's folder have differently."""
    return LedgerError(
        f"Expected stage {stage!r} of run {run_id} as the ledger has it, but its folder does not have it so: the folder was set back, or "
        "this is another stage of that name. Nothing more was drawn. Restore the folder, or ask for a new, charged draw with redraw=True."
    )


def check_stage(stage: str) -> str:
    """Check the name of a stage, which names files of the run too."""
    if not (isinstance(stage, str) and 0 < len(stage) <= 64 and stage.isprintable() and stage[0] != "." and not set(stage) & set("/\\:")):
        raise InvalidInput(f"Expected a stage named by 1 to 64 characters, without slashes or a leading dot; got {stage!r}.")
    return stage


def check_prior_use(law: Law, prior: Prior) -> None:
    """Refuse a prior that the law would silently ignore."""
    if prior is not None and not law.uses_prior:
        raise InvalidInput(f"Expected no prior with {law}, which does not read it. Use RRWithPrior, PriorSplit or AutoLaw, or drop prior=.")


def _reorder(noisy: NoisyLabels, ids: Array) -> NoisyLabels:
    """Bring stored noisy labels into the order of these ids."""
    if np.array_equal(noisy.ids, ids):
        return noisy
    found = places_of(ids, noisy.ids)
    if np.any(found < 0):
        raise LedgerError("Expected the same rows as in the settled run, but some ids have no stored output.")
    return noisy[found]


# The rows of a table in memory -----------------------------------------------------------------------------------------------------------


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
    n_rows : int
    explicit : bool
        Whether the caller gave ids.

    Raises
    ------
    InvalidInput
        No rows; ids or units that are the labels' column, of another length, or no columns; a cap without units.
    """

    def __init__(self, given: RowIds, n_rows: int, column: PrivateColumn) -> None:
        self.given, self.column, self.n_rows, self.explicit = given, column, n_rows, given.ids is not None
        _check_columns(given, n_rows, column)
        ids = np.arange(n_rows) if given.ids is None else np.asarray(given.ids)
        self.ids = ids[:, 0] if ids.ndim == 2 and ids.shape[1] == 1 else ids
        # NumPy drops trailing NULs of text, and turns 1 and "1" of one list into the same text: two ids must not become one.
        if self.explicit and self.ids.dtype.kind in "USO" and len(np.unique(self.ids.astype(np.str_), axis=0)) < n_rows:
            raise InvalidInput("Expected ids that stay different as text of one type, without trailing NULs; rename some.")
        self._known_blocks: tuple[str, Blocks] | None = None

    # What a request says of them --------------------------------------------------------------------------------------------------

    @cached_property
    def digest(self) -> str:
        """Digest the set of explicit ids, in whatever order; "" without ids."""
        return "" if self.given.ids is None else set_digest(self.given.ids)

    @property
    def units_digest(self) -> str:
        """Digest which row is about whom; "" where each row is its own unit."""
        if self.given.unit is None:
            return ""
        return set_digest(np.arange(self.n_rows) if self.given.ids is None else self.given.ids, self.given.unit)

    def coverage(self, ledger: Ledger | None) -> RowSet | None:
        """Collect which rows and units a charge is about, where ids name them; refuse an id that comes twice."""
        given = self.given
        if ledger is None or (given.ids is None and given.unit is None):
            return None
        found = ledger.row_set_builder(given.id_name, given.unit_name)
        found.add(given.ids, given.unit)
        # None: a set of hashes cannot tell, as two ids have one hash. Then the ids themselves are compared.
        if found.repeated is not False:
            self.check_distinct()
        return found.finish()

    # What a run's keys make of them -------------------------------------------------------------------------------------------------

    def blocks(self, secret: RunSecret) -> Blocks:
        """Name each row by a block, under a run's secret; refuse an id that comes twice."""
        if not self.explicit:
            return row_blocks(self.n_rows)
        # One run's blocks are kept: hashing text takes longer than everything else, and pin, cap, parts and draw all need them.
        if self._known_blocks is None or self._known_blocks[0] != secret.run_id:
            blocks = id_blocks(self.given.ids, secret.key("ids"))  # of an array, 1 and "1" could become one id
            repeat = blocks.first_repeat()
            if repeat is not None:
                raise InvalidInput(f"Expected different ids, but the id of row {repeat} occurred before. Each row needs an id of its own.")
            self._known_blocks = secret.run_id, blocks
        return self._known_blocks[1]

    def check_distinct(self) -> None:
        """Refuse an id that comes twice."""
        if self.explicit:
            self.blocks(self._throwaway_secret())

    def words(self, law: Law, rows: NDArray[np.integer] | None = None) -> Callable[[slice], RowWords | None]:
        """Make the public words that a law draws the questions of these rows with, None for all; see `question_words`."""

        def public_blocks(key: Key) -> Blocks:
            blocks = id_blocks(self.given.ids, key) if self.explicit else row_blocks(self.n_rows)
            return blocks if rows is None else blocks[np.asarray(rows, np.intp)]

        return question_words(law, self.column.dataset, self.column.column, public_blocks)

    def within_cap(self, secret: RunSecret) -> NDArray[np.bool_]:
        """Choose the rows within their unit's cap by the run's secret: (n,) bool; all where each row is its own unit."""
        if self._unit_codes is None:
            return np.ones(self.n_rows, bool)
        return keep_within_cap(self._unit_codes, one_word(secret.key("unit-cap"), self.blocks(secret)), self.column.max_rows_per_unit)

    @cached_property
    def over_the_cap(self) -> int:
        """Count the rows over their unit's cap, for which nothing is drawn, and warn of them."""
        if self._unit_codes is None:
            return 0
        cap = self.column.max_rows_per_unit
        over = int(np.maximum(np.bincount(self._unit_codes) - cap, 0).sum())
        warn_of_cap(over, self.n_rows, cap, self.column.unit)
        return over

    @cached_property
    def _unit_codes(self) -> NDArray[np.int64] | None:
        """Number the units, in no order that matters: (n,); None where each row is its own unit."""
        if self.given.unit is None:
            return None
        # Units of any type are compared as blocks.
        key = self._throwaway_secret().key("ids")
        return np.unique(id_blocks(self.given.unit, key).templates(), axis=0, return_inverse=True)[1].reshape(-1)

    def _throwaway_secret(self) -> RunSecret:
        """Make a secret that is of no run, and is gone after one comparison: nobody can compute its blocks again."""
        return RunSecret("check", new_secret(), self.column)

    # Their order -------------------------------------------------------------------------------------------------------------------

    def by_id(self, rows: NDArray[np.integer] | None = None) -> NDArray[np.intp]:
        """Sort these rows, None for all, by their ids: the order in which a run keeps what it knows of each row."""
        if rows is None or (len(rows) == self.n_rows and np.array_equal(rows, np.arange(self.n_rows))):
            return self._order
        return np.arange(len(rows)) if not self.explicit else _order_of(self.ids[rows])

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        """Sort all rows by their ids, once."""
        return np.arange(self.n_rows) if not self.explicit else _order_of(self.ids)

    def in_id_order(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """Bring an array with a value for each row into the order in which it is kept."""
        return np.asarray(array[self.by_id()])

    def in_table_order(self, kept: NDArray[np.generic]) -> NDArray[np.generic]:
        """Bring an array that `in_id_order` gave back into the table's present order."""
        array = np.empty_like(kept)
        array[self.by_id()] = kept
        return array


def _order_of(ids: Array) -> NDArray[np.intp]:
    """Sort ids of one column, or of several: (n,)."""
    ids = ids.astype(np.str_) if ids.dtype.kind == "O" else ids
    return np.argsort(ids, kind="stable") if ids.ndim == 1 else np.lexsort(ids.T)


def set_digest(*columns: ArrayLike) -> str:
    """Digest a set of rows by their public columns, whatever their order."""
    named = SetDigest()
    named.update(*map(np.asarray, columns))
    return named.hexdigest()


def keep_within_cap(unit: NDArray[np.generic], words: NDArray[np.uint64], cap: int) -> NDArray[np.bool_]:
    """Mark the `cap` rows of each unit with the smallest words: (n,) bool."""
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


def _check_columns(given: RowIds, n_rows: int, column: PrivateColumn) -> None:
    """Refuse no rows, ids or units that are no public columns of this many rows, and a cap without units."""
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
