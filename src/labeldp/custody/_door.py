# SPDX-License-Identifier: Apache-2.0
"""The one door: the only functions that read raw labels. They check everything, charge, and then draw.

What comes out is `NoisyLabels` here, and an `Aggregate` in `labeldp.custody._aggregation`, the door's other wing: neither can leak.
Whatever happens after it (training, tuning, choosing models) is post-processing.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from labeldp import _validate
from labeldp._hash import array_digest
from labeldp.custody._draw import Prior, check_contract, law_per_row, prepare_side
from labeldp.custody._encode import classes_for, encode
from labeldp.custody._request import Account, Request
from labeldp.custody._row_ids import Name, RowIds
from labeldp.custody._run import Run, charged_run, check_prior_use, check_stage
from labeldp.custody._table_rows import TableRows
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.laws._base import Law, check_told_apart
from labeldp.ledger._ledger import Ledger
from labeldp.noise._words import SeededNoise


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
    given = RowIds.of(ids, unit, id_name, unit_name).beside(labels)
    declared, inferred = classes_for(labels, classes, law.n_classes)
    codes = encode(labels, declared)
    del labels  # what is shown of this frame, if something fails, shows none of them
    check_prior_use(law, prior)
    name = check_stage("release" if stage is None else stage)
    account = Account(dataset, column, max_rows_per_unit, ledger, noise, redraw)
    rows = TableRows(given, len(codes), account.private_column(declared, given))
    used = law_per_row(law, account.max_rows_per_unit)
    check_contract(used)
    side = prepare_side(used, prior, len(codes), rows.words(used))
    check_told_apart(used, used.told_apart(side), declared, len(codes))
    order = rows.by_id() if rows.explicit and side else slice(None)  # a repeat in another order is the same request
    request = Request(
        rows.column,
        law.epsilon,
        {"law": law.to_dict(), "stage": name} | ({"classes_inferred": True} if inferred else {}),
        prior=array_digest({what: values[order] for what, values in side.items()}) if side else "",
        rows=rows.digest,
        units=rows.units_digest,
        id_name=given.id_name,
    )
    account.check()
    with charged_run(request, account, codes, rows) as run:
        return run.draw_with_side(np.arange(len(codes)), law, side, name)


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
    """Charge one run over all rows of a table, or pick up the run that this request repeats.

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
    column = account.private_column(classes, given)
    codes = encode(labels, column.values)
    del labels
    rows = TableRows(given, len(codes), column)
    account.check()
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
