# SPDX-License-Identifier: Apache-2.0
"""The one door: the only functions that read raw labels. They check everything, charge, and then draw.

What comes out is `NoisyLabels` here, and an `Aggregate` in `labeldp.privacy.aggregation`, the door's other wing: neither can leak.
Whatever happens after it (training, tuning, choosing models) is post-processing.
"""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import SetDigest, array_digest, digest
from labeldp.errors import InvalidInput, SeededNoiseWarning, UnrecordedWarning
from labeldp.evidence import NoisyLabels
from labeldp.laws.base import Array, Law, check_told_apart
from labeldp.privacy.custody import Covered, RunPlan, begin, tell_of_repeat
from labeldp.privacy.draw import Prior, Questions, prepare_side
from labeldp.privacy.encode import classes_for, declare, encode
from labeldp.privacy.ledger import Ledger, as_ledger
from labeldp.privacy.noise import Pin, SeededNoise, derive_key, new_secret
from labeldp.privacy.row_ids import Name, RowIds
from labeldp.privacy.run import Frame, Run, check_prior_use, check_stage, id_order, law_per_row, public_blocks


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
    rows = RowIds.of(ids, unit, id_name, unit_name).beside(labels)
    declared, inferred = classes_for(labels, classes, law.n_classes)
    codes = encode(labels, declared)
    del labels  # what is shown of this frame, if something fails, shows none of them
    check_prior_use(law, prior)
    name = check_stage("release" if stage is None else stage)
    check_rows(codes, rows, max_rows_per_unit, column)
    used = law_per_row(law, max_rows_per_unit)
    words = Questions(used, dataset or "", column).words(lambda key: public_blocks(len(codes), ids, key))
    side = prepare_side(used, prior, len(codes), words)
    check_told_apart(used, used.told_apart(side), declared, len(codes))
    run = _open(
        codes,
        declared,
        epsilon=law.epsilon,
        laws={"law": law.to_dict(), "stage": name} | ({"classes_inferred": True} if inferred else {}),
        dataset=dataset,
        column=column,
        rows=rows,
        max_rows_per_unit=max_rows_per_unit,
        prior_digest=_side_digest(side, ids),
        ledger=ledger,
        noise=noise,
        redraw=redraw,
    )
    with run:
        return run.draw_with_side(np.arange(len(codes)), law, side, name)


def _side_digest(side: Mapping[str, Array], ids: ArrayLike | None) -> str:
    """Digest of a side, by id where rows have one, so that a repeat in another order is the same request; "" for none."""
    if not side or ids is None:
        return array_digest(side) if side else ""
    order = id_order(ids)
    return array_digest({name: values[order] for name, values in side.items()})


def open_run(
    labels: ArrayLike,
    *,
    classes: Sequence[object],
    epsilon: float,
    laws: Mapping[str, object],
    dataset: str | None = None,
    column: str = "label",
    rows: RowIds | None = None,
    public_digest: str = "",
    max_rows_per_unit: int = 1,
    prior_digest: str = "",
    ledger: Ledger | None = None,
    noise: SeededNoise | None = None,
    redraw: bool = False,
    resumes: str = "",
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
    dataset, column, max_rows_per_unit, ledger, noise, redraw
        As in `privatize`.
    rows : RowIds, optional
        Ids and units; None: neither.
    public_digest : str
        Digest of the public columns, where there are no ids.
    prior_digest : str
        Digest of the public prior, "" for none.
    resumes : str
        Run id of the run that must be picked up: where this request is not that run's, labels included, nothing is charged. "" for any.

    Returns
    -------
    Run, charged (or settled before, if it is a repeat).
    """
    declared = declare(classes)
    codes = encode(labels, declared)
    del labels
    return _open(
        codes,
        declared,
        epsilon=epsilon,
        laws=laws,
        dataset=dataset,
        column=column,
        rows=rows or RowIds(),
        public_digest=public_digest,
        max_rows_per_unit=max_rows_per_unit,
        prior_digest=prior_digest,
        ledger=ledger,
        noise=noise,
        redraw=redraw,
        resumes=resumes,
    )


def _open(
    codes: NDArray[np.int32],
    declared: tuple[object, ...],
    *,
    epsilon: float,
    laws: Mapping[str, object],
    dataset: str | None,
    column: str,
    rows: RowIds,
    public_digest: str = "",
    max_rows_per_unit: int,
    prior_digest: str,
    ledger: Ledger | None,
    noise: SeededNoise | None,
    redraw: bool,
    resumes: str = "",
) -> Run:
    """`open_run` on codes."""
    ledger = as_ledger(ledger)
    check_rows(codes, rows, max_rows_per_unit, column)
    check_account(ledger, dataset)
    warn_once(ledger, noise)
    plan = RunPlan(
        dataset=dataset or "",
        column=column,
        unit=rows.unit_name,
        max_rows_per_unit=_validate.integer(max_rows_per_unit=max_rows_per_unit, low=1),
        epsilon=_validate.epsilon(epsilon),
        laws=laws,
        classes=digest({"classes": list(map(repr, declared))}),
        prior=prior_digest,
        rows=public_digest if rows.ids is None else set_digest(rows.ids),
        units=units_digest(rows, len(codes)),
        id_name=rows.id_name,
    )
    frame = Frame(plan, declared, len(codes), rows.ids, rows.unit, ledger)

    def pin_of(secret: bytes, run_id: str) -> str:
        pin = Pin(derive_key(secret, purpose="pin", facts=frame.facts(run_id)))
        pin.update(frame.blocks(secret, run_id), codes)
        return pin.hexdigest()

    over = frame.check(new_secret())
    begun = begin(
        plan,
        ledger,
        noise,
        redraw=redraw,
        pin_of=pin_of,
        names_rows=bool(plan.rows),
        covered=covered_rows(ledger, rows),
        resumes=resumes,
        by_labels=rows.ids is None and bool(public_digest),
    ).with_left_out(over)
    if begun.settled is not None:
        tell_of_repeat(begun.receipt)
    return Run(begun, codes, frame)


def covered_rows(ledger: Ledger | None, rows: RowIds) -> Covered | None:
    """Which rows and units a charge is about, where ids name them."""
    if ledger is None or (rows.ids is None and rows.unit is None):
        return None
    found = ledger.row_set_builder(rows.id_name, rows.unit_name)
    found.add(rows.ids, rows.unit)
    return Covered(found.finish())


def check_account(ledger: Ledger | None, dataset: str | None) -> None:
    """Refuse a charge that nobody could find again."""
    if ledger is not None and not dataset:
        raise InvalidInput("Expected dataset= with a ledger: the public name under which this data set's budget is kept.")


def check_rows(codes: NDArray[np.int32], rows: RowIds, cap: int, column: str) -> None:
    """Refuse no labels, ids and units that are the labels' column, of another length or no columns, and a cap without units."""
    if not len(codes):
        raise InvalidInput("Expected at least one label, got none.")
    rows.require_public(column)
    for name, values in (("ids", rows.ids), ("unit", rows.unit)):
        if values is None:
            continue
        if np.ndim(array := np.asarray(values)) == 0 or getattr(values, "nlevels", 1) > 1 or array.dtype.kind == "T":
            fix = "Pass a list, an array of integers or text, or a table of several columns (of a MultiIndex: to_frame(index=False))."
            raise InvalidInput(f"Expected {name} as a column of {len(codes)} rows, got {type(values).__name__}. {fix}")
        if len(array) != len(codes):
            raise InvalidInput(f"Expected {name} of {len(codes)} rows, got {len(array)}.")
    if rows.unit is None and cap != 1:
        raise InvalidInput(
            f"Expected unit= with max_rows_per_unit={cap!r}: who each row is about. Without it each row is protected by itself."
        )


def set_digest(*columns: ArrayLike) -> str:
    """Digest of a set of rows by their public columns, whatever their order."""
    named = SetDigest()
    named.update(*map(np.asarray, columns))
    return named.hexdigest()


def units_digest(rows: RowIds, n_rows: int) -> str:
    """Digest of which row is about whom; "" where each row is its own unit."""
    return "" if rows.unit is None else set_digest(np.arange(n_rows) if rows.ids is None else rows.ids, rows.unit)


_warned: set[str] = set()


def warn_once(ledger: Ledger | None, noise: SeededNoise | None) -> None:
    """Say aloud that noise is seeded, or that nothing is recorded, to whoever called the caller's caller."""
    if noise is not None:
        warnings.warn(
            "The noise comes from a seed: nothing is protected. For tests and public data only.", SeededNoiseWarning, stacklevel=4
        )
    elif ledger is None and "unrecorded" not in _warned:
        _warned.add("unrecorded")
        warnings.warn(
            "No ledger: nothing records this spend, so the same labels can be drawn again and each draw adds to the total. "
            "Pass ledger=labeldp.Ledger(path) and dataset='name'. (Said once.)",
            UnrecordedWarning,
            stacklevel=4,
        )
