# SPDX-License-Identifier: Apache-2.0
"""Queries about groups of rows: of labels in memory, and of tables of any length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp.aggregates import Aggregate, FeatureSums, Marginals, Query, TeacherQuery, Tuning
from labeldp.aggregates._base import check_groups
from labeldp.custody._answer import (
    BestQuestion,
    GroupQuestion,
    GroupsDigest,
    SumsQuestion,
    answer,
    answered,
    drawn_answer,
    query_request,
)
from labeldp.custody._counts import GroupCounts
from labeldp.custody._encode import (
    RowIds,
    declare,
    encode,
    require_closed,
    require_public_columns,
)
from labeldp.custody._private import PrivateLabels
from labeldp.custody._request import Account, begin_once, charged_names
from labeldp.errors import InvalidInput
from labeldp.ledger._ledger import Ledger
from labeldp.noise._words import SeededNoise

if TYPE_CHECKING:
    import pyarrow.parquet as pq


__all__ = ["aggregate", "aggregate_batches", "aggregate_best"]

_BATCH = 1 << 20


def aggregate(
    labels: PrivateLabels,
    query: Query,
    groups: ArrayLike,
    *,
    redraw: bool = False,
) -> Aggregate:
    """Answer a query about the labels of groups of rows privately, and charge the ledger.

    Parameters
    ----------
    labels : PrivateLabels
        n rows. They say the classes, the account that is charged, ids and units.
    query : Histogram, Vote or another Query
        Its epsilon and delta are the total for one unit: with `max_rows_per_unit` = m the noise
        covers m changed labels.
    groups : (n,) integers in 0..query.n_groups-1, (n, query.n_groups) features for FeatureSums, or
    (n, T) for Marginals of T tables
        The public group of each row, for example its cluster; for Marginals the group in each
        table, numbered from 0 in each. It must not depend on these labels. Groups may be empty.
    redraw : bool
        Draw and charge again even if the same request has settled. False by default.

    Returns
    -------
    Aggregate

    Raises
    ------
    InvalidInput
        An argument is not allowed; nothing was charged.
    BudgetExceeded
        Too little of the budget is left; nothing was drawn.
    LedgerError
        The ledger cannot be used, or the stored answer of a settled request is lost.

    See Also
    --------
    aggregate_batches : The same for tables of any length.
    aggregate_best : Chooses among answers to several queries, at one charge.
    privatize : Randomises every label.

    Notes
    -----
    Guarantee: (epsilon, delta)-label-DP for each unit, in exact arithmetic, with a trusted curator
    who sees the raw labels. It adds to all other charges on the same labels: a prior from a
    histogram and labels drawn with it cost the sum. With a durable ledger the charge is on disk
    before the first random word. The same request (query, rows, groups) returns the stored answer;
    a call that died before it stored its answer stays spent, and is charged anew. Cost: O(n) time;
    the labels are copied once, as codes.

    Examples
    --------
    >>> import labeldp as ldp
    >>> labels = ldp.PrivateLabels([0, 0, 1, 1, 1], classes=[0, 1], noise=ldp.SeededNoise(0))
    >>> query = ldp.aggregates.Histogram(n_classes=2, epsilon=20.0, n_groups=2)
    >>> ldp.aggregate(labels, query, [0, 0, 0, 1, 1]).values.tolist()
    [[2, 1], [0, 2]]
    """
    require_closed(labels)
    labels.require_public(groups, "groups")
    query = checked(query, features=True).about(len(labels.classes), groups)
    question = (
        SumsQuestion(query=query, features=groups)
        if isinstance(query, FeatureSums)
        else GroupQuestion(query=query, groups=groups)
    )
    return cast(Aggregate, answer(labels, question, redraw=redraw).answer)


def aggregate_batches(
    source: str | Path | pa.Table | Iterable[pa.RecordBatch],
    query: Query,
    *,
    label: str,
    group: str,
    classes: Sequence[object],
    inferred: bool = False,
    dataset: str | None = None,
    column: str | None = None,
    ledger: Ledger | None = None,
    noise: SeededNoise | None = None,
    redraw: bool = False,
    before_charge: Callable[[], None] | None = None,
) -> Aggregate:
    """Answer a query about a table of any length, as `aggregate`, in one pass and in memory for one
    batch and the counts.

    Parameters
    ----------
    source : path of a Parquet file, Arrow table, or iterable of record batches
        A table with a label and a group column. Other columns are not read from Parquet.
    query : Histogram, Vote or another Query
    label, group : str
        Names of the two columns. Groups are integers in 0..query.n_groups-1 without nulls, public,
        and independent of the labels.
    classes : sequence of K values
        The public list of class values.
    inferred : bool
        True if the classes were read off the labels, which the ledger records. False by default.
    dataset, ledger, noise, redraw
        As in `aggregate`. Every row is its own unit, and the charge adds to all others of the
        column.
    column : str, optional
        Name of the column in the ledger; that of the label column by default.
    before_charge : function, optional
        Called right before a new charge. If it raises, nothing is charged.

    Returns
    -------
    Aggregate
        The same as that of `aggregate` for the same rows in the same order; each of the two returns
        the stored answer of the other.
    """
    account = Account(dataset or "", label if column is None else column, 1, ledger, noise, redraw)
    private = account.private_column(declare(classes, checked(query).n_classes), RowIds())
    if isinstance(query, Marginals):
        raise InvalidInput(
            "Expected a query about one column of groups, got Marginals of several tables. Ask it"
            " by labeldp.aggregate."
        )
    if group == label:
        raise InvalidInput(
            f"Expected a public column of groups, got the label column {label!r}, whose counts"
            " would be exact. Name another."
        )
    require_public_columns([group], charged_names([group], dataset, ledger), "groups")
    # The only pass is before the charge. Raw counts stay in this process, and vanish with it if the
    # charge is refused.
    counts, rows, n_rows = (
        GroupCounts(query.n_groups, query.n_classes),
        GroupsDigest(query),
        0,
    )
    for batch in _batches(source, label, group):
        where = _group_column(batch, group, query, n_rows)
        counts.add(where, encode(_column(batch, label), private.values))
        rows.update(where)
        n_rows += len(where)
    if not n_rows:
        raise InvalidInput("Expected at least one row, got none.")
    query.require(counts.n_rows())
    request = query_request(
        query,
        private,
        n_rows,
        rows=rows.hexdigest(),
        facts=query.to_dict() | ({"classes_inferred": True} if inferred else {}),
    )
    account.check()
    charge = begin_once(request, account, before_charge=before_charge)
    return answered(charge, lambda secret: drawn_answer(request, query, counts, charge, secret))


def _batches(
    source: str | Path | pa.Table | Iterable[pa.RecordBatch], label: str, group: str
) -> Iterator[pa.RecordBatch]:
    if isinstance(source, (str, Path)):
        with _parquet(source) as file:
            yield from file.iter_batches(_BATCH, columns=[label, group])
        return
    batches: object = source.to_batches() if isinstance(source, pa.Table) else source
    for batch in batches if isinstance(batches, Iterable) else [batches]:
        if not isinstance(batch, pa.RecordBatch) or batch is source:
            given = type(batch).__name__
            raise InvalidInput(
                "Expected the path of a Parquet file, an Arrow table or its record batches, got"
                f" {given}. Pass [batch] for one batch."
            )
        yield batch


def _parquet(path: str | Path) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InvalidInput(
            f"Expected the path of a Parquet file, got {str(path)!r}: {error}."
        ) from None


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        raise InvalidInput(
            f"Expected a column {name!r}, got columns {_validate.quoted(batch.schema.names)}."
        )
    return batch.column(name)


def _group_column(batch: pa.RecordBatch, group: str, query: Query, start: int) -> NDArray[np.int64]:
    """Read and check the groups of a batch whose first row is row `start` of the table."""
    column = _column(batch, group)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise InvalidInput(
            f"Expected group column {group!r} of whole numbers without nulls, got {column.type}"
            f" with {column.null_count} nulls from row {start} on. Number the groups, and give rows"
            " of no group one of their own."
        )
    return check_groups(column.to_numpy(zero_copy_only=False), query.n_groups)


def aggregate_best(
    labels: PrivateLabels,
    candidates: Sequence[tuple[Query, ArrayLike]],
    score: Callable[[Aggregate], float],
    *,
    tuning: Tuning,
    score_name: str = "",
    redraw: bool = False,
) -> Aggregate:
    """Answer several queries about private labels and release the best answer, at one charge for
    all of them.

    Parameters
    ----------
    labels : PrivateLabels
        n rows, each protected by itself: without units.
    candidates : sequence of (query, (n,) groups)
        Public, as in `aggregate`. Each query is pure (delta = 0), and all have the same classes.
        Each run draws one at random, with fresh noise.
    score : function of an Aggregate, returning a number
        Rates an answer, from the answer and public facts alone, never from labels. The highest
        score wins; NaN never wins. It must not raise, print or store its argument: the guarantee
        does not cover answers that are not released, or their number. A score that is no number is
        refused after the charge.
    tuning : Tuning
        `labeldp.papers.ghazi2021.RepeatAndSelect(mean)`, whose number of runs is geometric.
    score_name : str, default=""
        Public name of the score, by which a repeat of the request is recognised. Two scores need
        two names.
    redraw : bool
        As in `aggregate`.

    Returns
    -------
    Aggregate
        The best answer. `chosen` is the number of its candidate, and its receipt is that of the
        whole tuning.

    Raises
    ------
    InvalidInput, BudgetExceeded, LedgerError
        As in `aggregate`; nothing was charged.

    Notes
    -----
    Guarantee: label-DP for each row at 3 times the largest epsilon among the candidates
    (`tuning.pure_epsilon`), whatever the number of runs. It is charged before the first run. If the
    score raises, or the process dies, it is spent and nothing is stored. The time that a call takes
    reveals the number of runs: do not let others measure it.

    References
    ----------
    Papernot and Steinke 2022, "Hyperparameter tuning with Renyi differential privacy" (ICLR),
    Corollary 3.

    Examples
    --------
    >>> from labeldp.aggregates import Histogram
    >>> from labeldp.papers.ghazi2021 import RepeatAndSelect
    >>> tries = [(Histogram(2, 50.0, 2), [0, 0, 0, 1, 1]), (Histogram(2, 50.0, 2), [0, 1, 0, 1, 0])]
    >>> purest = lambda found: float(found.values.max(axis=1).sum())
    >>> labels = PrivateLabels([0, 0, 0, 1, 1], classes=[0, 1], noise=SeededNoise(1))
    >>> best = aggregate_best(labels, tries, purest, tuning=RepeatAndSelect(30))
    >>> best.chosen, best.values.tolist(), best.receipt.epsilon
    (0, [[3, 0], [0, 2]], 150.0)
    """
    _check(candidates, score, tuning)
    require_closed(labels)
    # Noise covers one changed row, and no cap is drawn: a unit with more rows would not be hidden.
    if labels.rows.given.unit is not None:
        raise InvalidInput(
            "Expected labels whose rows are protected one by one, got some with unit=. Answer one"
            " query about them by labeldp.aggregate."
        )
    for _, groups in candidates:
        labels.require_public(groups, "groups")
    tried = [(query.about(len(labels.classes), groups), groups) for query, groups in candidates]
    question = BestQuestion(
        query=tried[0][0],
        tried=tried,
        score=score,
        tuning=tuning,
        score_name=score_name,
    )
    return cast(Aggregate, answer(labels, question, redraw=redraw).answer)


def _check(
    candidates: Sequence[tuple[Query, ArrayLike]],
    score: Callable[[Aggregate], float],
    tuning: Tuning,
) -> None:
    """Check the arguments of `aggregate_best`, before anything is charged."""
    if not callable(score):
        raise InvalidInput(
            f"Expected score to be a function of an Aggregate, got {type(score).__name__}. Name it"
            " with score_name=."
        )
    pairs = isinstance(candidates, Sequence) and all(
        isinstance(pair, Sequence) and len(pair) == 2 for pair in candidates
    )
    if not pairs:
        raise InvalidInput(
            "Expected candidates to be pairs of a query and the rows' groups, got others. [(query,"
            " groups)] tries one."
        )
    if not isinstance(tuning, Tuning):
        raise InvalidInput(
            "Expected tuning=labeldp.papers.ghazi2021.RepeatAndSelect(mean), got"
            f" {type(tuning).__name__}."
        )
    if not candidates:
        raise InvalidInput(
            "Expected at least one candidate, a pair of a query and the rows' groups; got none."
        )
    for query, _ in candidates:
        if checked(query).spent_delta() != 0:
            raise InvalidInput(
                f"Expected candidates with delta=0, got {query}. Take a pure mechanism: only those"
                " are charged for here."
            )
        if query.n_classes != candidates[0][0].n_classes:
            raise InvalidInput(
                f"Expected candidates of the same classes, got {candidates[0][0].n_classes} and"
                f" {query.n_classes}."
            )


def checked(query: object, *, features: bool = False) -> Query:
    """Refuse what is no query about groups of rows; with `features`, accept one about sums of
    features, too."""
    if not isinstance(query, Query):
        raise InvalidInput(
            f"Expected a query, such as Histogram or Vote, got {type(query).__name__}. See"
            " labeldp.aggregates."
        )
    if isinstance(query, TeacherQuery):
        fix = "labeldp.papers.malek2021.PATEClassifier asks it."
        raise InvalidInput(
            f"Expected a query about groups of rows, got one for teachers, {query}. {fix}"
        )
    if query.of_features and not features:
        raise InvalidInput(
            f"Expected a query about groups of rows, got one about features, {query}."
            " labeldp.aggregate answers it."
        )
    return query
