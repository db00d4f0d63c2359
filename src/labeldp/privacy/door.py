# SPDX-License-Identifier: Apache-2.0
"""The one door: the only functions that read raw labels. They check everything, charge, and then draw.

What comes out is `NoisyLabels`, which cannot leak. Whatever happens after it (training, tuning, choosing models) is post-processing.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import SetDigest, array_digest, digest
from labeldp.errors import InvalidInput, LedgerError, SeededNoiseWarning, UnrecordedWarning
from labeldp.evidence import Block, NoisyLabels
from labeldp.laws.base import Array, Law
from labeldp.privacy import noise as noise_source
from labeldp.privacy.draw import Prior, draw, prepare_side
from labeldp.privacy.encode import as_array, declare, encode, infer_classes
from labeldp.privacy.events import per_row_epsilon
from labeldp.privacy.ledger import Ledger
from labeldp.privacy.noise import Blocks, Key, Pin, SeededNoise, derive_key, id_blocks, row_blocks
from labeldp.privacy.runs import Begun, RunPlan, begin
from labeldp.receipt import Receipt


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
) -> NoisyLabels:
    """Release every label once through a law.

    Parameters
    ----------
    labels : (n,) array of class values
        Raw, private. Every value must be declared.
    law : Law
        Its epsilon is the total of one unit: with `max_rows_per_unit` = m each row's law runs at epsilon / m, rounded down.
    classes : sequence of K values, optional
        The public list of class values. None: the codes 0..K-1 if the labels are integers, else read off the labels with a warning.
    dataset : str, optional
        Public name of the data set; a durable ledger requires it.
    column : str
        Name of the label column.
    ids : (n,) or (n, columns) array, optional
        Public, different ids of the rows. With them a repeat is recognised in any order.
    unit : (n,) array, optional
        Who each row is about; None protects each row by itself.
    max_rows_per_unit : int
        Rows of one unit that are used; further ones, chosen by a secret key, get no evidence.
    prior : (n, K) array, function of row positions, or iterator of batches, optional
        Public weights of the classes for each row; uniform if None. It must not depend on these raw labels.
    stage : str, optional
        Name of the round.
    ledger : Ledger, optional
        Durable record. None: nothing is recorded, which a warning says once.
    noise : SeededNoise, optional
        For tests and benchmarks on public data only: no guarantee at all.
    redraw : bool
        Draw again, and be charged again, though the same request has settled.

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
    Guarantee: epsilon-label-DP for each unit, pure, in exact arithmetic. With a durable ledger the charge is on disk before the first
    random word, a crashed call that is repeated draws the same outputs, and a settled one returns its stored outputs.
    Cost: O(n) time and memory for laws without a prior, O(n K) time with one; chunks of 32,768 rows.

    Examples
    --------
    >>> import labeldp as ldp
    >>> noisy = ldp.privatize([0, 2, 1], ldp.SubsetSelection(n_classes=4, epsilon=1.0), noise=ldp.SeededNoise(0))
    >>> noisy.likelihood().shape
    (3, 4)
    """
    declared = _classes_for(labels, classes, law.n_classes)
    codes = encode(labels, declared)
    _check_prior_use(law, prior)
    side = prepare_side(law_per_row(law, max_rows_per_unit), prior, len(codes))
    run = _open(
        codes,
        declared,
        epsilon=law.epsilon,
        laws={"law": law.to_dict(), "stage": stage or "release"},
        dataset=dataset,
        column=column,
        ids=ids,
        unit=unit,
        max_rows_per_unit=max_rows_per_unit,
        prior_digest=array_digest(side) if side else "",
        ledger=ledger,
        noise=noise,
        redraw=redraw,
    )
    with run:
        return run.draw_with_side(np.arange(len(codes)), law, side, stage or "release")


def law_per_row(law: Law, max_rows_per_unit: int) -> Law:
    """The law of one row when a unit's total is shared by m rows."""
    m = _validate.integer(max_rows_per_unit=max_rows_per_unit, low=1)
    return law if m == 1 else replace(law, epsilon=per_row_epsilon(law.epsilon, m))


def _classes_for(labels: ArrayLike, classes: Sequence[object] | None, n_classes: int) -> tuple[object, ...]:
    if classes is not None:
        return declare(classes, n_classes)
    if not len(as_array(labels)):
        raise InvalidInput("Expected at least one label, got none.")
    if as_array(labels).dtype.kind in "iu":
        return tuple(range(n_classes))
    return declare(infer_classes(labels), n_classes)


def _check_prior_use(law: Law, prior: Prior) -> None:
    if prior is not None and not law.uses_prior:
        raise InvalidInput(f"Expected no prior with {law}, which does not read it. Use RRWithPrior, PriorSplit or AutoLaw, or drop prior=.")


class Run:
    """One charge and the draws that it covers, of disjoint rows; made by `open_run`.

    A context manager: leaving it settles the run, an exception leaves it charged, to be picked up by the same request.
    """

    def __init__(self, begun: Begun, codes: NDArray[np.int32], frame: "Frame") -> None:
        self._begun = begun
        self._codes = codes
        self._frame = frame
        self._drawn = np.zeros(len(codes), bool)
        self._stages: set[str] = set()
        self._blocks = None if begun.secret is None else frame.blocks(begun.secret, begun.receipt.run_id)
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
        stored = self._begun.store.load_array("partition") if self._begun.store else None
        if stored is not None:
            return stored.astype(np.int16)
        parts = noise_source.partition(self._key("partition"), self._live_blocks(), fractions)
        if self._begun.store:
            self._begun.store.save_array("partition", parts)
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
        _check_prior_use(law, prior)
        stored = self._stored(stage, rows)
        if stored is not None:
            return stored
        side = self._begun.store.load_side(stage) if self._begun.store else None
        if side is None:  # what was decided before a crash stands: a model's prior need not come out the same twice
            side = prepare_side(law_per_row(law, self.receipt.max_rows_per_unit), prior, len(rows))
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
            raise InvalidInput(f"Expected rows that this run has not drawn yet, got {int(self._drawn[rows].sum())} drawn ones in stage {stage!r}.")
        if self._begun.store:
            self._begun.store.save_side(stage, side)
        self._drawn[rows] = True
        inside = np.flatnonzero(self._kept[rows])
        chosen, used = rows[inside], law_per_row(law, self.receipt.max_rows_per_unit)
        part = {name: values[inside] for name, values in side.items()} if len(inside) < len(rows) else side
        key = self._key("draw", law=used.to_dict(), prior=array_digest(side) if side else "", stage=stage)
        everything = len(chosen) == self.n_rows and np.array_equal(chosen, np.arange(self.n_rows))
        blocks = self._live_blocks() if everything else self._live_blocks()[chosen]
        outputs = draw(used, self._codes[chosen], key, blocks, part)
        block = Block(used, outputs, dict(part), inside, self.receipt, stage)
        noisy = NoisyLabels(len(rows), self._frame.classes, (block,), self._frame.ids[rows], self._frame.explicit_ids)
        if self._begun.store:
            self._begun.store.save_noisy(stage, noisy)
        return noisy

    def _stored(self, stage: str, rows: NDArray[np.integer]) -> NoisyLabels | None:
        if stage in self._stages:
            raise InvalidInput(f"Expected a name of its own for each stage of a run, got {stage!r} again.")
        self._stages.add(stage)
        noisy = self._begun.store.load_noisy(stage) if self._begun.store else None
        if noisy is None and self._begun.settled:
            raise LedgerError(
                f"Expected the stored outputs of run {self.receipt.run_id} (settled {self._begun.settled.settled_at}) in "
                f"{self._begun.store.folder if self._begun.store else 'its folder'}, but stage {stage!r} is gone. Restore it, or ask for a new, "
                "charged draw with redraw=True."
            )
        if noisy is None:
            return None
        self._drawn[rows] = True
        noisy = replace(noisy, blocks=tuple(replace(block, receipt=self.receipt) for block in noisy.blocks))
        return _reorder(noisy, self._frame.ids[rows])

    def _keep_within_cap(self) -> NDArray[np.bool_]:
        stored = self._begun.store.load_array("kept") if self._begun.store else None
        if stored is not None:
            return stored.astype(bool)
        if self._frame.unit is None:
            return np.ones(self.n_rows, bool)
        words = noise_source.RowWords(self._key("unit-cap"), self._live_blocks()).take(0)
        kept = keep_within_cap(self._frame.unit, words, self.receipt.max_rows_per_unit)
        if self._begun.store:
            self._begun.store.save_array("kept", kept)
        return kept

    def _live_blocks(self) -> Blocks:
        if self._blocks is None:
            raise LedgerError(f"Expected a run that may still draw, but run {self.receipt.run_id} has settled. Ask for a new one with redraw=True.")
        return self._blocks

    def _key(self, purpose: str, **facts: object) -> Key:
        if self._begun.secret is None:
            raise LedgerError(f"Expected a run that may still draw, but run {self.receipt.run_id} has settled. Ask for a new one with redraw=True.")
        return derive_key(self._begun.secret, purpose=purpose, facts=self._frame.facts(self.receipt.run_id) | facts)

    def _check_law(self, law: Law) -> None:
        if law.n_classes != len(self._frame.classes):
            raise InvalidInput(f"Expected a law over {len(self._frame.classes)} classes, got {law}.")
        if not law.epsilon <= self.receipt.epsilon:
            raise InvalidInput(f"Expected a law within the run's epsilon={self.receipt.epsilon}, got {law}.")


class Frame:
    """What a run needs to know of its rows besides their labels: all public."""

    def __init__(self, plan: RunPlan, classes: tuple[object, ...], n_rows: int, ids: ArrayLike | None, unit: ArrayLike | None, ledger: Ledger | None) -> None:
        self.plan = plan
        self.classes = classes
        self.explicit_ids = ids is not None
        self.ids = np.arange(n_rows) if ids is None else np.asarray(ids)
        self.unit = None if unit is None else np.asarray(unit)
        self.ledger = ledger

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
        blocks = id_blocks(self.ids, derive_key(secret, purpose="ids", facts=self.facts(run_id)))
        repeat = blocks.first_repeat()
        if repeat is not None:
            raise InvalidInput(f"Expected different ids, but the id of row {repeat} occurred before. Each row needs an id of its own.")
        return blocks


def open_run(
    labels: ArrayLike,
    *,
    classes: Sequence[object],
    epsilon: float,
    laws: Mapping[str, object],
    dataset: str | None = None,
    column: str = "label",
    ids: ArrayLike | None = None,
    public_digest: str = "",
    unit: ArrayLike | None = None,
    unit_name: str = "unit",
    max_rows_per_unit: int = 1,
    prior_digest: str = "",
    ledger: Ledger | None = None,
    noise: SeededNoise | None = None,
    redraw: bool = False,
) -> Run:
    """Charge one run over all rows of a table, or pick up the run that this request repeats.

    Parameters
    ----------
    labels : (n,) array of class values, raw
    classes : sequence of K values
    epsilon : float
        The unit's total for everything that the run draws.
    laws : mapping
        The laws and how rows are divided among them, as JSON-ready data: part of what makes a request the same request.
    dataset, column, ids, unit, max_rows_per_unit, ledger, noise, redraw
        As in `privatize`.
    public_digest : str
        Digest of the public columns, where there are no ids.
    unit_name : str
        Name of the unit in receipts.
    prior_digest : str
        Digest of the public prior, "" for none.

    Returns
    -------
    Run, charged (or settled before, if it is a repeat).
    """
    declared = declare(classes)
    return _open(
        encode(labels, declared),
        declared,
        epsilon=epsilon,
        laws=laws,
        dataset=dataset,
        column=column,
        ids=ids,
        public_digest=public_digest,
        unit=unit,
        unit_name=unit_name,
        max_rows_per_unit=max_rows_per_unit,
        prior_digest=prior_digest,
        ledger=ledger,
        noise=noise,
        redraw=redraw,
    )


def _open(
    codes: NDArray[np.int32],
    declared: tuple[object, ...],
    *,
    epsilon: float,
    laws: Mapping[str, object],
    dataset: str | None,
    column: str,
    ids: ArrayLike | None,
    public_digest: str = "",
    unit: ArrayLike | None,
    unit_name: str = "unit",
    max_rows_per_unit: int,
    prior_digest: str,
    ledger: Ledger | None,
    noise: SeededNoise | None,
    redraw: bool,
) -> Run:
    """`open_run` on codes."""
    _check_rows(codes, ids, unit, max_rows_per_unit)
    if ledger is not None and not dataset:
        raise InvalidInput("Expected dataset= with a ledger: the public name under which this data set's budget is kept.")
    _warn_once(ledger, noise)
    plan = RunPlan(
        dataset=dataset or "",
        column=column,
        unit="row" if unit is None else unit_name,
        max_rows_per_unit=_validate.integer(max_rows_per_unit=max_rows_per_unit, low=1),
        epsilon=_validate.epsilon(epsilon),
        laws=laws,
        classes=digest({"classes": list(map(repr, declared))}),
        prior=prior_digest,
        rows=_rows_digest(ids, unit, public_digest),
    )
    frame = Frame(plan, declared, len(codes), ids, unit, ledger)

    def pin_of(secret: bytes, run_id: str) -> str:
        pin = Pin(derive_key(secret, purpose="pin", facts=frame.facts(run_id)))
        pin.update(frame.blocks(secret, run_id), codes)
        return pin.hexdigest()

    frame.blocks(noise_source.new_secret(), "check") if ids is not None else None  # refuse repeated ids before the charge
    begun = begin(plan, ledger, noise, redraw=redraw, pin_of=pin_of, names_rows=bool(plan.rows))
    return Run(begun, codes, frame)


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
    _, inverse = np.unique(np.concatenate([noisy.ids, ids]), axis=0 if ids.ndim == 2 else None, return_inverse=True)
    place = np.full(inverse.max() + 1, -1)
    place[inverse.reshape(-1)[: len(noisy)]] = np.arange(len(noisy))
    found = place[inverse.reshape(-1)[len(noisy) :]]
    if np.any(found < 0):
        raise LedgerError("Expected the same rows as in the settled run, but some ids have no stored output.")
    return noisy[found]


def _check_rows(codes: NDArray[np.int32], ids: ArrayLike | None, unit: ArrayLike | None, cap: int) -> None:
    if not len(codes):
        raise InvalidInput("Expected at least one label, got none.")
    for name, values in (("ids", ids), ("unit", unit)):
        if values is not None and len(np.asarray(values)) != len(codes):
            raise InvalidInput(f"Expected {name} of {len(codes)} rows, got {len(np.asarray(values))}.")
    if unit is None and cap != 1:
        raise InvalidInput(f"Expected unit= with max_rows_per_unit={cap!r}: who each row is about. Without it each row is protected by itself.")


def _rows_digest(ids: ArrayLike | None, unit: ArrayLike | None, public_digest: str) -> str:
    if ids is None:
        return public_digest
    named = SetDigest()
    named.update(np.asarray(ids))
    return named.hexdigest() + ("" if unit is None else array_digest({"unit": np.sort(np.asarray(unit).astype(np.str_))}))


_warned: set[str] = set()


def _warn_once(ledger: Ledger | None, noise: SeededNoise | None) -> None:
    if noise is not None:
        warnings.warn("The noise comes from a seed: nothing is protected. For tests and public data only.", SeededNoiseWarning, stacklevel=4)
    elif ledger is None and "unrecorded" not in _warned:
        _warned.add("unrecorded")
        warnings.warn(
            "No ledger: nothing records this spend, so the same labels can be drawn again and each draw adds to the total. "
            "Pass ledger=labeldp.Ledger(path) and dataset='name'. (Said once.)",
            UnrecordedWarning,
            stacklevel=4,
        )

