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
from labeldp._hash import array_digest, digest
from labeldp.custody._draw import (
    Draw,
    Prior,
    check_contract,
    law_per_row,
    prepare_side,
)
from labeldp.custody._encode import require_closed, undrawn, unseen
from labeldp.custody._private import PrivateLabels, opened
from labeldp.custody._request import (
    REDRAW,
    RELEASE_ANEW,
    Account,
    Charge,
    Request,
    RunSecret,
    begin,
    warn_of_repeat,
)
from labeldp.errors import InvalidInput, LedgerError
from labeldp.evidence import NoisyLabels
from labeldp.evidence._noisy import derived, places_of
from labeldp.laws._base import Law, check_told_apart
from labeldp.laws._columns import LabelColumns
from labeldp.laws._exact import Array
from labeldp.ledger._database import Part
from labeldp.ledger._run_store import ROWS, RunStore
from labeldp.noise._words import (
    Pin,
    partition,
)


def privatize(
    labels: PrivateLabels,
    law: Law,
    *,
    prior: Prior | Mapping[str, ArrayLike] = None,
    stage: str | None = None,
    redraw: bool = False,
) -> NoisyLabels:
    """Randomise every label once, by a law, and charge the ledger.

    Parameters
    ----------
    labels : PrivateLabels
        n rows. They say the classes, the account that is charged, ids and units.
    law : Law
        The mechanism. Its epsilon is the total for one unit: with `max_rows_per_unit` = m, each
        row's law has epsilon / m, rounded down. Of several columns, one of `LabelColumns.law`:
        epsilon is the total for all columns of a unit.
    prior : (n, K) array, function of row positions, or iterator of batches, optional
        Public weights of the classes for each row; uniform if None. It must not depend on these raw
        labels. Of several columns also a mapping of a column's name to its (n, K_l) weights, which
        are multiplied (`LabelColumns.prior`).
    stage : str, optional
        Name of the stage; "release" by default.
    redraw : bool
        Draw and charge again even if the same request has settled. False by default.

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
    >>> labels = ldp.PrivateLabels([0, 2, 1], classes=range(4), noise=ldp.SeededNoise(0))
    >>> noisy = ldp.privatize(labels, ldp.SubsetSelection(n_classes=4, epsilon=1.0))
    >>> noisy.likelihood().shape
    (3, 4)
    """
    if not isinstance(law, Law):
        raise InvalidInput(
            "Expected a law, such as labeldp.RandomizedResponse(n_classes=2, epsilon=1.0), got"
            f" {_validate.shown(law)}."
        )
    require_closed(labels)
    account, rows = replace(labels.account, redraw=redraw), labels.rows
    declared = labels.classes
    if law.kind == "number":
        # refused here if the classes are no numbers on which it can be released
        law.released(declared)
    name = check_stage("release" if stage is None else stage)
    if law.n_classes != len(declared):
        raise InvalidInput(
            f"Expected a law over {len(declared)} classes, as many as the labels have, got {law}."
        )
    if isinstance(declared, LabelColumns):
        declared.check(law)
    if isinstance(prior, Mapping):
        if not isinstance(declared, LabelColumns):
            raise InvalidInput(
                "Expected weights by column of several label columns, got them for one. Pass an"
                " array (n, K)."
            )
        prior = declared.prior(prior, len(labels))
    check_prior_use(law, prior)
    used = law_per_row(law, account.max_rows_per_unit)
    check_contract(used)
    side = prepare_side(used, prior, len(labels), rows.words(used))
    check_told_apart(used, used.told_apart(side), declared, len(labels))
    # The digest of the side is taken in the order of ids, so that a repeat with its rows in another
    # order is the same request.
    order = rows.by_id() if rows.explicit and side else slice(None)
    request = Request(
        rows.column,
        law.epsilon,
        {"law": law.to_dict(), "stage": name} | labels.noted,
        prior=array_digest({what: values[order] for what, values in side.items()}) if side else "",
        rows=rows.digest,
        units=rows.units_digest,
        id_name=rows.given.id_name,
    )
    # Every invalid argument was refused above. From here on epsilon may be spent.
    account.check()
    if not rows.explicit:
        account.warn_of_no_ids()
    with charged_run(request, account, labels, REDRAW) as run:
        return run.draw_with_side(np.arange(len(labels)), law, used, side, name)


def open_run(
    labels: PrivateLabels,
    *,
    epsilon: float,
    laws: Mapping[str, object],
    prior_digest: str = "",
    public_digest: Callable[[], str] = str,
    resumes: str = "",
) -> Run:
    """Charge one run over all rows in memory, or resume or repeat an earlier run of this request.

    Parameters
    ----------
    labels : PrivateLabels
    epsilon : float
        Total for one unit of all draws of the run.
    laws : mapping
        The laws and the shares of the rows that each draws, JSON-ready; a part of the request's
        identity.
    prior_digest : str, default=""
        Digest of the public prior, "" for none.
    public_digest : function
        Computes the digest of the public columns, which name the rows if there are no ids.
    resumes : str, default=""
        Id of the run that must be reopened; "" for any run, or a new one.

    Returns
    -------
    Run
        Charged, or settled before if this is a repeat.
    """
    rows, account = labels.rows, replace(labels.account, resumes=resumes)
    account.check()
    # Ids name rows. Without ids public columns do; and if these differ, the pin may still show that
    # the labels are the same. Their digest costs a pass over all features, so it is computed only
    # where a repeat can occur.
    known = account.ledger is not None or account.noise is not None
    public = public_digest() if known and not rows.explicit else ""
    request = Request(
        rows.column,
        _validate.epsilon(epsilon),
        laws,
        prior=prior_digest,
        rows=rows.digest or public,
        units=rows.units_digest,
        id_name=rows.given.id_name,
    )
    return charged_run(request, account, labels, RELEASE_ANEW, by_labels=bool(public))


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

    def __init__(self, charge: Charge, labels: PrivateLabels) -> None:
        self._charge, self._labels, self._rows = charge, labels, labels.rows
        self._store, self.receipt, self.n_rows = charge.store, charge.receipt, len(labels)
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
            opened(self._labels)[chosen],
            blocks,
            part,
            self._rows.ids[rows],
            rows=inside,
            explicit_ids=self._rows.explicit,
        )
        self._charge.answers[stage] = noisy
        if self._store:
            self._store.save_noisy(stage, noisy)
        return self._indexed(noisy, rows)

    def _indexed(self, noisy: NoisyLabels, rows: NDArray[np.integer]) -> NoisyLabels:
        """Note the index of the rows that were drawn, where the labels have one."""
        index = self._rows.index
        return noisy if index is None else derived(noisy, index=index[rows])

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
        kept = self._rows.in_id_order(array)
        self._charge.answers[name] = kept
        if self._store:
            self._store.save_array(name, kept)

    def _load_by_id(self, name: str) -> NDArray[np.generic] | None:
        """Load an array with a value for each row, in the table's present order."""
        stored = self._store.load_array(name) if self._store else self._charge.answers.get(name)
        return None if stored is None else self._rows.in_table_order(stored)

    def _take_stored(self, stage: str, rows: NDArray[np.integer]) -> NoisyLabels | None:
        """Load the stored outputs of a stage, None if it has none, and mark the stage as used;
        refuse a stage that is used already."""
        if stage in self._stages:
            raise InvalidInput(
                f"Expected a name of its own for each stage of a run, got {stage!r} again."
            )
        self._stages.add(stage)
        noisy = self._store.load_noisy(stage) if self._store else self._charge.answers.get(stage)
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
        return self._indexed(_reorder(noisy, self._rows.ids[rows]), rows)

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
    labels: PrivateLabels,
    anew: str,
    *,
    by_labels: bool = False,
) -> Run:
    """Charge a run over private labels, or resume or repeat an earlier run of the request.

    Parameters
    ----------
    request, account, by_labels
        As in `begin`.
    labels : PrivateLabels
    anew : (str, str)
        As in `warn_of_repeat`.
    """

    rows = labels.rows

    @unseen(undrawn)
    def pin_of(secret: RunSecret) -> str:
        pin = Pin(secret.key("pin"))
        pin.update(rows.blocks(secret), opened(labels))
        return pin.hexdigest()

    # Before the charge, so that a repeated id is refused while nothing is spent.
    over, coverage = rows.over_the_cap, rows.coverage(account.ledger)
    charge = begin(request, account, pin_of=pin_of, coverage=coverage, by_labels=by_labels)
    charge = replace(charge, receipt=replace(charge.receipt, rows_over_the_cap=over))
    if charge.repeats is not None:
        warn_of_repeat(charge.receipt, anew=anew)
    return Run(charge, labels)


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
