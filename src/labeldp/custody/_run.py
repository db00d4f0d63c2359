# SPDX-License-Identifier: Apache-2.0
"""Privatizes labels in memory: check everything, charge, then draw each row at most once.

The result is `NoisyLabels`. `labeldp.custody._aggregation` answers queries about groups, and
`labeldp.custody._stream` privatizes tables. Everything that is computed from their results
(training, tuning, choosing models) is post-processing, which costs no privacy (Dwork and Roth 2014,
"The algorithmic foundations of differential privacy", proposition 2.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import SetDigest, array_digest, digest, exact_array, sortable, text_array
from labeldp.custody._draw import (
    Draw,
    Prior,
    check_contract,
    law_per_row,
    prepare_side,
    public_words,
    question_words,
)
from labeldp.custody._encode import Name, RowIds, classes_for, declare, encode
from labeldp.custody._request import (
    REDRAW,
    RELEASE_ANEW,
    Account,
    Charge,
    PrivateColumn,
    Request,
    RunSecret,
    begin,
    warn_of_repeat,
)
from labeldp.errors import InvalidInput, LedgerError, LeftOutWarning, warn
from labeldp.evidence import NoisyLabels
from labeldp.evidence._noisy import derived, places_of
from labeldp.laws._base import Law, check_told_apart
from labeldp.laws._columns import LabelColumns
from labeldp.laws._exact import Array
from labeldp.ledger._database import Part
from labeldp.ledger._ledger import Ledger
from labeldp.ledger._rowset import RowSet
from labeldp.ledger._run_store import ROWS, RunStore
from labeldp.noise._secrets import new_secret
from labeldp.noise._words import (
    Blocks,
    Key,
    Pin,
    RowWords,
    SeededNoise,
    id_blocks,
    one_word,
    partition,
    row_blocks,
)


def privatize(
    labels: ArrayLike,
    law: Law,
    *,
    classes: Sequence[object] | None = None,
    dataset: str | None = None,
    column: str = _validate.DEFAULT_COLUMN,
    ids: ArrayLike | None = None,
    unit: ArrayLike | None = None,
    max_rows_per_unit: int = 1,
    prior: Prior | Mapping[str, ArrayLike] = None,
    stage: str | None = None,
    ledger: Ledger | None = None,
    noise: SeededNoise | None = None,
    redraw: bool = False,
    id_name: Name | None = None,
    unit_name: Name | None = None,
) -> NoisyLabels:
    """Randomise every label once, by a law, and charge the ledger.

    Parameters
    ----------
    labels : (n,) array of class values
        Raw, private. Every value must be declared. Of several columns, with `LabelColumns`: a data
        frame or mapping with these columns, or an (n, L) array.
    law : Law
        The mechanism. Its epsilon is the total for one unit: with `max_rows_per_unit` = m, each
        row's law has epsilon / m, rounded down. Of several columns, one of `LabelColumns.law`:
        epsilon is the total for all columns of a unit.
    classes : sequence of K values, Grid, LabelColumns, or "infer", optional
        The public list of class values; for numbers a `Grid`, to whose nearest point each label is
        rounded. None (default): the codes 0..K-1 of the law's K classes, for integer labels only.
        "infer" reads them off the labels, which reveals the classes that occur: it warns,
        `privacy.except_for` says so, and floats, or more than sqrt(n) different values, are
        refused.
    dataset : str, optional
        Public name of the data set; a durable ledger requires it.
    column : str, default="label"
        Name of the label column. Several columns have their names from `LabelColumns`.
    ids : (n,) or (n, columns) array, column or table, optional
        Public, different ids of the rows. With them a repeat is recognised in any order, and
        disjoint rows do not add up.
    unit : (n,) array or column, optional
        The person, or other unit of protection, of each row. None (default): each row is its own
        unit.
    max_rows_per_unit : int
        Largest number of rows of one unit that are drawn; 1 by default. Further rows, chosen by a
        secret key, get no evidence.
    prior : (n, K) array, function of row positions, or iterator of batches, optional
        Public weights of the classes for each row; uniform if None. It must not depend on these raw
        labels. Of several columns also a mapping of a column's name to its (n, K_l) weights, which
        are multiplied (`LabelColumns.prior`).
    stage : str, optional
        Name of the stage; "release" by default.
    ledger : Ledger, or its path, optional
        Durable record. None (default): nothing is recorded, which a warning says once.
    noise : SeededNoise, optional
        For tests and benchmarks on public data only: no guarantee at all.
    redraw : bool
        Draw and charge again even if the same request has settled. False by default.
    id_name, unit_name : str or sequence of str, optional
        Names of the columns of `ids` and `unit`. None (default): the names that columns of pandas,
        polars or Arrow carry, else "id" and "unit". Two different ids of one name are two different
        rows (or people) to the ledger. Ids of different names cannot be compared, so their runs add
        up; units of different names in one account are refused.

    Returns
    -------
    NoisyLabels
        n rows, in the order of `labels`. Of several columns, those of the combinations:
        `noisy["name"]` reads one column.

    Raises
    ------
    InvalidInput
        An argument is not allowed; nothing was charged.
    BudgetExceeded
        Too little of the budget is left; nothing was drawn.
    LedgerError
        The ledger cannot be used, or cannot tell whether these rows were released before.

    See Also
    --------
    aggregate : Answers queries about groups of rows.
    labeldp.read_noisy : Reads the noisy labels of a released table.

    Notes
    -----
    Guarantee: pure epsilon-label-DP for each unit, in exact arithmetic; it does not cover a list of
    classes that was inferred. With a durable ledger the charge is on disk before the first random
    word, a call that is repeated after a crash draws the same outputs, and one that is repeated
    after it settled returns the stored outputs. Cost: O(n) time and memory for laws without a
    prior, O(n K) time with one; chunks of 32,768 rows.

    References
    ----------
    Label differential privacy: Chaudhuri and Hsu 2011, "Sample complexity bounds for differentially
    private learning"; Ghazi, Golowich, Kumar, Manurangsi and Zhang 2021, "Deep learning with label
    differential privacy".

    Examples
    --------
    >>> import labeldp as ldp
    >>> noisy = ldp.privatize(
    ...     [0, 2, 1], ldp.SubsetSelection(n_classes=4, epsilon=1.0), noise=ldp.SeededNoise(0)
    ... )
    >>> noisy.likelihood().shape
    (3, 4)
    """
    if not isinstance(law, Law):
        raise InvalidInput(
            "Expected a law, such as labeldp.RandomizedResponse(n_classes=2, epsilon=1.0), got"
            f" {_validate.shown(law)}."
        )
    # Ids, units and classes are public and enter unkeyed digests, so labels among them are refused
    # before anything else.
    given = RowIds.of(ids, unit, id_name, unit_name).beside(labels)
    declared, inferred = classes_for(labels, classes, law.n_classes)
    if law.kind == "number":
        # refused here if the classes are no numbers on which it can be released
        law.released(declared)
    codes = encode(labels, declared)
    # a traceback with variables prints this frame: `codes` hides its values, the user's array does
    # not
    del labels
    name = check_stage("release" if stage is None else stage)
    if isinstance(declared, LabelColumns):
        declared.check(law)
        column = declared.name if column == "label" else column
    if isinstance(prior, Mapping):
        if not isinstance(declared, LabelColumns):
            raise InvalidInput(
                "Expected weights by column of several label columns, got them for one. Pass an"
                " array (n, K)."
            )
        prior = declared.prior(prior, len(codes))
    check_prior_use(law, prior)
    account = Account(dataset or "", column, max_rows_per_unit, ledger, noise, redraw)
    rows = TableRows(given, len(codes), account.private_column(declared, given))
    used = law_per_row(law, account.max_rows_per_unit)
    check_contract(used)
    side = prepare_side(used, prior, len(codes), rows.words(used))
    check_told_apart(used, used.told_apart(side), declared, len(codes))
    # The digest of the side is taken in the order of ids, so that a repeat with its rows in another
    # order is the same request.
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
    # Every invalid argument was refused above. From here on epsilon may be spent.
    account.check()
    with charged_run(request, account, codes, rows, REDRAW) as run:
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
) -> Run:
    """Charge one run over all rows in memory, or resume or repeat an earlier run of this request.

    Parameters
    ----------
    labels : (n,) array of class values, raw
    classes : sequence of K values
    account : Account
    given : RowIds, optional
        Ids and units; None: neither.
    epsilon : float
        Total for one unit of all draws of the run.
    laws : mapping
        The laws and the shares of the rows that each draws, JSON-ready; a part of the request's
        identity.
    prior_digest : str, default=""
        Digest of the public prior, "" for none.
    public_digest : str, default=""
        Digest of the public columns, which name the rows if there are no ids.

    Returns
    -------
    Run
        Charged, or settled before if this is a repeat.
    """
    given = given or RowIds()
    column = account.private_column(declare(classes), given)
    codes = encode(labels, column.values)
    del labels
    rows = TableRows(given, len(codes), column)
    account.check()
    # Ids name rows. Without ids public columns do; and if these differ, the pin may still show that
    # the labels are the same.
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
    return charged_run(request, account, codes, rows, RELEASE_ANEW, by_labels=bool(public))


_DRAW = "/draw"
"""Ending of the names of parts under which a run announces the rows of its stages in the ledger."""


class Run:
    """A charged run over labels in memory, whose draws are of disjoint rows. Made by `charged_run`.

    It is a context manager: leaving the block settles the run. After an exception it stays charged,
    and the same request resumes it.

    Attributes
    ----------
    receipt : Receipt
    n_rows : int
        Number of rows of the table, drawn or not.
    kept : (n,) bool
        True for rows within their unit's cap.
    """

    def __init__(self, charge: Charge, codes: NDArray[np.int32], rows: TableRows) -> None:
        self._charge, self._codes, self._rows = charge, codes, rows
        self._store, self.receipt, self.n_rows = charge.store, charge.receipt, len(codes)
        self._stages: set[str] = set()
        self._drawn = self._drawn_before()
        self.kept = self._within_cap()

    def __repr__(self) -> str:
        return f"Run({self.receipt!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A run holds raw labels and a secret, so it is never pickled. Pass its NoisyLabels on"
            " instead."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.settle()

    def partition(self, fractions: Sequence[float]) -> NDArray[np.int16]:
        """Divide the rows at random into parts of these expected shares, by the run's secret: (n,)
        int16, the number of each row's part."""
        # Stored, since a repeat has no secret to compute it with. A row must never change its part:
        # it would be drawn in two stages.
        stored = self._load_by_id("partition")
        if stored is not None:
            return stored.astype(np.int16)
        secret = self._secret
        parts = partition(secret.key("partition"), self._rows.blocks(secret), fractions)
        self._save_by_id("partition", parts)
        return parts

    def privatize(
        self, rows: NDArray[np.integer], law: Law, prior: Prior = None, stage: str = "release"
    ) -> NoisyLabels:
        """Draw these rows. A run draws each row at most once.

        Parameters
        ----------
        rows : (m,) int
            Positions in the table.
        law : Law
            Its epsilon is the total for one unit.
        prior : as in `privatize`
            For these m rows.
        stage : str, default="release"
            A name that no other call of the run has. A repeat of the run returns the outputs stored
            under it.

        Returns
        -------
        NoisyLabels
            m rows.
        """
        row_law = self._row_law(law)
        check_prior_use(law, prior)
        stored = self._take_stored(check_stage(stage), rows)
        if stored is not None:
            return stored
        # A side that was stored before a crash is used again: a model trained anew may give another
        # prior, and another side would draw the rows a second time.
        earlier_side = self._store.load_side(stage) if self._store else None
        side: dict[str, Array] = {}
        if earlier_side is None:
            side = prepare_side(row_law, prior, len(rows), self._rows.words(row_law, rows))
        return self._draw(rows, law, row_law, side, stage)

    def draw_with_side(
        self,
        rows: NDArray[np.integer],
        law: Law,
        row_law: Law,
        side: Mapping[str, Array],
        stage: str,
    ) -> NoisyLabels:
        """Draw like `privatize`, with a law that was checked and a side that was prepared before
        the charge."""
        stored = self._take_stored(stage, rows)
        return self._draw(rows, law, row_law, side, stage) if stored is None else stored

    def settle(self) -> None:
        """Record in the ledger that the run is complete, and destroy its secret."""
        self._charge.settle()

    def _draw(
        self,
        rows: NDArray[np.integer],
        law: Law,
        row_law: Law,
        side: Mapping[str, Array],
        stage: str,
    ) -> NoisyLabels:
        """Claim these rows for a stage, draw them and store the outputs; `side` has these rows in
        this order."""
        rows = np.asarray(rows, np.int64)
        mask = np.zeros(self.n_rows, bool)
        mask[rows] = True
        # A row that is drawn twice spends twice the epsilon that was charged.
        if (again := int(self._drawn[rows].sum())) or np.count_nonzero(mask) != len(rows):
            raise InvalidInput(
                f"Expected rows that this run has not drawn yet, got {again} drawn ones in stage"
                f" {stage!r}."
            )
        # The claim is on disk before the first word: after a crash no other stage can draw these
        # rows, nor this one with another side.
        side, prior = self._claim_stage(rows, mask, law, side, stage)
        self._drawn[rows] = True
        # Rows over the cap are claimed with the others but get no output: which ones they are is
        # decided once for the run.
        inside = np.flatnonzero(self.kept[rows])
        chosen = rows[inside]
        part = (
            {name: values[inside] for name, values in side.items()}
            if len(inside) < len(rows)
            else side
        )
        blocks = self._rows.blocks(self._secret)
        if not np.array_equal(chosen, np.arange(self.n_rows)):  # all rows in order need no copy
            blocks = blocks[chosen.astype(np.intp)]
        draw = Draw(self._secret, row_law, self.receipt, prior, stage)
        noisy = draw.release(
            self._codes[chosen],
            blocks,
            part,
            self._rows.ids[rows],
            rows=inside,
            explicit_ids=self._rows.explicit,
        )
        if self._store:
            self._store.save_noisy(stage, noisy)
        return noisy

    def _claim_stage(
        self,
        rows: NDArray[np.integer],
        mask: NDArray[np.bool_],
        law: Law,
        side: Mapping[str, Array],
        stage: str,
    ) -> tuple[Mapping[str, Array], str]:
        """Record on disk and in the ledger the rows and the side of this stage, before it draws.

        No other stage, of any process, can draw these rows afterwards. Returns the side to draw
        with, in the order of `rows`, and its digest; if an earlier attempt has stored a side, that
        one.
        """
        store = self._store
        if store is None:
            return side, array_digest(side) if side else ""
        # sorting ids is slow, and only a side needs it
        order = self._rows.by_id(rows) if law.uses_prior else np.empty(0, np.intp)
        chosen = mask if mask.all() else self._rows.in_id_order(mask).astype(bool)
        mine = {name: np.ascontiguousarray(values[order]) for name, values in side.items()}
        # Under the lock, nobody else can claim rows between the check of other claims and the
        # writing of this one.
        with store.alone():
            earlier_side = store.load_side(stage)
            used = mine if earlier_side is None else earlier_side
            if any(len(values) != len(rows) for values in used.values()):
                raise LedgerError(
                    f"Expected the rows that stage {stage!r} of run {self.receipt.run_id} began"
                    " with, got other ones."
                )
            prior = array_digest(used) if used else ""
            self._claim_rows(store, chosen, {"law": law.to_dict(), "prior": prior}, stage)
            # The side is stored after the claim, which holds its digest: so a stored side always
            # has its claim.
            if used:
                store.keep_side(stage, used)
        inverse_order = np.empty_like(order)
        inverse_order[order] = np.arange(len(order))
        return {name: values[inverse_order] for name, values in used.items()}, prior

    def _claim_rows(
        self, store: RunStore, chosen: NDArray[np.bool_], drawn_by: Mapping[str, object], stage: str
    ) -> None:
        """Store and announce the rows of a stage, unless an earlier attempt has. The caller holds
        the run's lock.

        Parameters
        ----------
        store : RunStore
        chosen : (n,) bool
            The stage's rows, in the order of their ids.
        drawn_by : mapping
            The law, and the digest of the side under "prior". A later attempt with others is
            refused.
        stage : str
        """
        ledger, run_id, n_chosen = (
            self._charge.ledger,
            self.receipt.run_id,
            int(np.count_nonzero(chosen)),
        )
        announced = {} if ledger is None else {part.name: part for part in ledger.parts(run_id)}
        started = {name.removesuffix(_DRAW) for name in announced if name.endswith(_DRAW)}
        for other in sorted(started.union(store.claims()) - {stage}):
            theirs = store.load_array(f"{other}.{ROWS}")
            known = announced.get(f"{other}{_DRAW}")
            # A folder that was restored from a backup may have lost claims, whose rows would be
            # drawn again. The ledger has them, too.
            if theirs is None or (known is not None and int(theirs.sum()) != known.rows):
                raise _set_back_error(run_id, other)
            again = int(np.count_nonzero(chosen[theirs.astype(bool)]))
            if again:
                raise InvalidInput(
                    f"Expected rows that this run has not drawn yet, got {again} of its stage"
                    f" {other!r} in stage {stage!r}."
                )
        part = Part(
            0,
            f"{stage}{_DRAW}",
            n_chosen,
            digest({"rows": array_digest({"rows": chosen}), **drawn_by}),
        )
        before = announced.get(part.name)
        if before is not None and before.sha256 != part.sha256:
            raise _set_back_error(run_id, stage)
        store.save_array(f"{stage}.{ROWS}", chosen)
        # A draw of all rows without a prior needs no announcement: if the folder loses it, the same
        # secret draws the same outputs.
        if ledger is not None and before is None and (drawn_by["prior"] or n_chosen < self.n_rows):
            ledger.intend(run_id, [*announced.values(), part])

    @cached_property
    def _intact(self) -> bool:
        """True if the stored outputs of a settled run have the digest that it settled with."""
        store, settled = self._store, self._charge.repeats
        return store is not None and settled is not None and store.digest() == settled.artefact

    def _drawn_before(self) -> NDArray[np.bool_]:
        """Mark the rows whose outputs an earlier attempt at this run has stored, which no other
        stage may draw: (n,) bool."""
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
        """Load the stored outputs of a stage, None if it has none, and mark the stage as used;
        refuse a stage that is used already."""
        if stage in self._stages:
            raise InvalidInput(
                f"Expected a name of its own for each stage of a run, got {stage!r} again."
            )
        self._stages.add(stage)
        noisy = self._store.load_noisy(stage) if self._store else None
        # The secret of a settled run is gone, so missing outputs cannot be drawn again; and changed
        # ones are not what the law drew.
        settled = self._charge.repeats
        if settled and (noisy is None or not self._intact):
            folder = self._store.folder if self._store else "its folder"
            raise LedgerError(
                f"Expected the stored outputs of run {self.receipt.run_id} (settled"
                f" {settled.settled_at}) in {folder}, but stage {stage!r} is gone, or was changed."
                " Restore it, or ask for a new, charged draw with redraw=True."
            )
        if noisy is None:
            return None
        self._drawn[rows] = True
        # The stored receipt is of the first call. This call's receipt also says that it is a
        # repeat.
        noisy = derived(
            noisy,
            blocks=tuple(replace(block, receipt=self.receipt) for block in noisy.blocks),
            order="labels",
        )
        return _reorder(noisy, self._rows.ids[rows])

    def _within_cap(self) -> NDArray[np.bool_]:
        """Choose the rows within their unit's cap, or load the choice of an earlier attempt: (n,)
        bool."""
        # Choosing needs the secret, which is gone once the run has settled: a repeat loads the
        # choice.
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
            raise InvalidInput(
                f"Expected a law over {len(self._rows.column.values)} classes, got {law}."
            )
        if not law.epsilon <= self.receipt.epsilon:
            raise InvalidInput(
                f"Expected a law within the run's epsilon={self.receipt.epsilon}, got {law}."
            )
        row_law = law_per_row(law, self.receipt.max_rows_per_unit)
        check_contract(row_law)
        return row_law


def charged_run(
    request: Request,
    account: Account,
    codes: NDArray[np.int32],
    rows: TableRows,
    anew: str,
    *,
    by_labels: bool = False,
) -> Run:
    """Charge a run over the labels of these rows, or resume or repeat an earlier run of the
    request.

    Parameters
    ----------
    request, account, by_labels
        As in `begin`.
    codes : (n,) int32
        Class codes: raw, private labels.
    rows : TableRows
    anew : (str, str)
        As in `warn_of_repeat`.
    """

    def pin_of(secret: RunSecret) -> str:
        pin = Pin(secret.key("pin"))
        pin.update(rows.blocks(secret), codes)
        return pin.hexdigest()

    # Before the charge, so that a repeated id is refused while nothing is spent.
    over, coverage = rows.over_the_cap, rows.coverage(account.ledger)
    charge = begin(request, account, pin_of=pin_of, coverage=coverage, by_labels=by_labels)
    charge = replace(charge, receipt=replace(charge.receipt, rows_over_the_cap=over))
    if charge.repeats is not None:
        warn_of_repeat(charge.receipt, anew=anew)
    return Run(charge, codes, rows)


def _set_back_error(run_id: str, stage: str) -> LedgerError:
    """Make the error for a stage of which the ledger and the run's folder disagree."""
    return LedgerError(
        f"Expected stage {stage!r} of run {run_id} as the ledger has it, but its folder does not"
        " have it so: the folder was set back, or this is another stage of that name. Nothing more"
        " was drawn. Restore the folder, or ask for a new, charged draw with redraw=True."
    )


def check_stage(stage: str) -> str:
    """Check the name of a stage, which is a part of names of files."""
    if not (
        isinstance(stage, str)
        and 0 < len(stage) <= 64
        and stage.isprintable()
        and stage[0] != "."
        and not set(stage) & set("/\\:")
    ):
        raise InvalidInput(
            "Expected a stage named by 1 to 64 characters, without slashes or a leading dot; got"
            f" {stage!r}."
        )
    return stage


def check_prior_use(law: Law, prior: Prior) -> None:
    """Refuse a prior that the law would silently ignore."""
    if prior is not None and not law.uses_prior:
        raise InvalidInput(
            f"Expected no prior with {law}, which does not read it. Use RRWithPrior, PriorSplit or"
            " AutoLaw, or drop prior=."
        )


def _reorder(noisy: NoisyLabels, ids: Array) -> NoisyLabels:
    """Put stored noisy labels into the order of these ids."""
    if np.array_equal(noisy.ids, ids):
        return noisy
    found = places_of(ids, noisy.ids)
    if np.any(found < 0):
        raise LedgerError(
            "Expected the same rows as in the settled run, but some ids have no stored output."
        )
    return noisy[found]


# The rows of a table in memory
# --------------------------------------------------------------------------------------------------


class TableRows:
    """The rows of a table in memory: their ids and units, which are public, without their labels.

    Parameters
    ----------
    given : RowIds
        Ids and units, as the caller gave them.
    n_rows : int
    column : PrivateColumn

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

    def __init__(self, given: RowIds, n_rows: int, column: PrivateColumn) -> None:
        self.given, self.column, self.n_rows, self.explicit = (
            given,
            column,
            n_rows,
            given.ids is not None,
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
            f" out: nothing is drawn for them. To compare caps: labeldp plan --table FILE --unit"
            f" {unit}. To set one: max_rows_per_unit=."
        ),
        refusable=False,  # the cap was asked for
    )


def _check_columns(given: RowIds, n_rows: int, column: PrivateColumn) -> None:
    """Refuse an empty table, ids or units that are no public columns of n rows, and a cap without
    units."""
    if not n_rows:
        raise InvalidInput("Expected at least one label, got none.")
    for name in column.columns:
        given.require_public(name)
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
