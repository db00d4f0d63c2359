# SPDX-License-Identifier: Apache-2.0
"""Answers queries about groups of rows from raw labels: charge, draw, store, settle.

The secret of an answer is never stored: the same noise on the counts of other labels would reveal
their difference. So an answer cannot be drawn again, and a process that dies between the charge and
the store has spent its epsilon for nothing.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import array_digest, digest
from labeldp._validate import exact
from labeldp.aggregates import Aggregate, FeatureSums, Marginals, Query, TeacherQuery, Tuning
from labeldp.aggregates._base import check_groups
from labeldp.custody._encode import (
    FINITE,
    MISSING,
    NO_NUMBER,
    UNDECLARED,
    RowIds,
    are_codes,
    as_array,
    bad_label,
    declare,
    one_of,
    require_closed,
    require_public_columns,
    undrawn,
    unseen,
)
from labeldp.custody._private import PrivateLabels, opened
from labeldp.custody._request import (
    REDRAW,
    RELEASE_ANEW,
    Account,
    Charge,
    PrivateColumn,
    Request,
    RunSecret,
    begin_once,
    charged_names,
    warn_of_repeat,
)
from labeldp.custody._rows import TableRows, set_digest
from labeldp.custody._silence import SILENCE
from labeldp.errors import BudgetExceeded, InvalidInput, LabelDPWarning, LedgerError, warn
from labeldp.laws._exact import below
from labeldp.laws._grid import Grid, as_classes, as_numbers
from labeldp.ledger._ledger import Ledger
from labeldp.ledger._rowset import RowSet
from labeldp.noise._words import (
    CHUNK,
    Key,
    RowWords,
    SeededNoise,
    new_run_id,
    partition,
    row_blocks,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq


__all__ = ["aggregate", "aggregate_batches", "aggregate_best"]

_BATCH = 1 << 20
_OTHER_CLUSTERS = (
    "ask about other clusters (another random_state= or n_clusters= of theirs), which is charged"
)
_OTHER_TEACHERS = "ask other teachers (another random_state=), which is charged"
_Candidates = list[tuple[Query, NDArray[np.int64]]]


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
    _require_classes(checked(query, features=True), labels)
    labels.require_public(groups, "groups")
    if isinstance(query, FeatureSums):
        return answer_sums(labels, query, groups, redraw=redraw)
    return answer_groups(labels, GroupQuestion(query, groups), redraw=redraw, anew=REDRAW).answer


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
    reader, counts, rows = (
        LabelReader(private.values, label),
        GroupCounts(query.n_groups, query.n_classes),
        GroupsDigest(query),
    )
    for batch in _batches(source, label, group):
        where = _group_column(batch, group, query, reader.rows)
        counts.add(where, reader.codes(batch))
        rows.update(where)
    if not reader.rows:
        raise InvalidInput("Expected at least one row, got none.")
    query.require(counts.n_rows())
    request = query_request(
        query,
        private,
        reader.rows,
        rows=rows.hexdigest(),
        noted={"classes_inferred": True} if inferred else {},
    )
    account.check()
    charge = begin_once(request, account, before_charge=before_charge)
    return answered(charge, lambda secret: drawn_answer(request, query, counts, charge, secret))


def _batches(
    source: str | Path | pa.Table | Iterable[pa.RecordBatch], label: str, group: str
) -> Iterator[pa.RecordBatch]:
    if isinstance(source, (str, Path)):
        with _parquet(source) as file:
            missing = [name for name in (label, group) if name not in file.schema_arrow.names]
            if missing:
                raise InvalidInput(
                    f"Expected columns {label!r} and {group!r} in {source}, but it has no"
                    f" {missing[0]!r}."
                )
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


def _group_column(batch: pa.RecordBatch, group: str, query: Query, start: int) -> NDArray[np.int64]:
    """Read and check the groups of a batch whose first row is row `start` of the table."""
    if group not in batch.schema.names:
        raise InvalidInput(
            f"Expected a column {group!r} of groups, got columns"
            f" {_validate.quoted(batch.schema.names)}."
        )
    column = batch.column(group)
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
    _require_classes(candidates[0][0], labels)
    # Noise covers one changed row, and no cap is drawn: a unit with more rows would not be hidden.
    if labels.rows.given.unit is not None:
        raise InvalidInput(
            "Expected labels whose rows are protected one by one, got some with unit=. Answer one"
            " query about them by labeldp.aggregate."
        )
    for _, groups in candidates:
        labels.require_public(groups, "groups")
    account, rows = replace(labels.account, redraw=redraw), labels.rows
    # A row that is there twice would be counted twice, with noise for one.
    rows.check_distinct()
    tried = [(query, query.groups_of_rows(groups, len(labels))) for query, groups in candidates]
    for query, where in tried:
        query.require(np.bincount(where.reshape(-1), minlength=query.n_groups))
    # One charge covers all candidates and all runs, because only the best answer is released.
    request = Request(
        rows.column,
        tuning.pure_epsilon(max(query.epsilon for query, _ in tried)),
        _facts(tried, tuning, score_name) | labels.noted,
        rows=digest({"rows": [groups_digest(where, query, rows) for query, where in tried]}),
        id_name=rows.given.id_name,
        of_groups=True,
    )
    account.check()
    charge = begin_once(request, account, coverage=rows.coverage(account.ledger))
    return answered(
        charge, lambda secret: _best(request, tried, score, tuning, labels, charge, secret)
    )


def _require_classes(query: Query, labels: PrivateLabels) -> None:
    if query.n_classes != len(labels.classes):
        raise InvalidInput(
            f"Expected a query over {len(labels.classes)} classes, as many as the labels have, got"
            f" {query}."
        )


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


def _facts(tried: _Candidates, tuning: Tuning, score_name: str) -> dict[str, object]:
    """Return the facts of the whole tuning for the ledger."""
    return {
        "query": "best-of",
        "candidates": [query.to_dict() for query, _ in tried],
        "tuning": tuning.to_dict(),
        "score": score_name,
    }


def _best(
    request: Request,
    tried: _Candidates,
    score: Callable[[Aggregate], float],
    tuning: Tuning,
    labels: PrivateLabels,
    charge: Charge,
    secret: RunSecret,
) -> Aggregate:
    """Run a charged tuning: the number of runs, their candidates and their noise come from the
    run's secret, each under its own key."""
    # The theorem needs runs that are independent of their number and of each other. With separate
    # keys, no answer that the score sees tells anything about further candidates, noise or runs.
    picks = secret.answer_key("tuning-candidates", request.identity)

    @lru_cache(maxsize=64)
    def counted(number: int) -> GroupCounts:
        query, where = tried[number]
        counts = GroupCounts(query.n_groups, query.n_classes)
        counts.add(where, opened(labels))
        return counts

    def run(repetition: int) -> tuple[float, Aggregate]:
        number = int(below(RowWords(picks, row_blocks(1, repetition)), len(tried), 0, 1)[0])
        query, counts = tried[number][0], counted(number)
        # The repetition enters the key, so that a candidate that is drawn twice gets fresh noise.
        key = secret.answer_key(
            "aggregate", request.identity, query=query.to_dict(), repetition=repetition
        )
        values = drawn(query, counts.table(), key, 1)
        answer = Aggregate(
            query, values, counts.n_rows(), request.column.values, charge.receipt, chosen=number
        )
        return _number(score(answer)), answer

    return tuning.select(
        run, RowWords(secret.answer_key("tuning-repeats", request.identity), row_blocks(1))
    )


def _number(score: object) -> float:
    """Convert a score to a float; refuse text, some of which `float` would accept."""
    try:
        return float(None if isinstance(score, str | bytes) else score)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InvalidInput(
            f"Expected a number from score, got {type(score).__name__}. The charge is spent and"
            " nothing is stored: mend the score, try it on an answer about public labels, and ask"
            " again."
        ) from None


# From the question to the stored answer
# --------------------------------------------------------------------------------------------------


_OUTPUT = "aggregate.parquet"
_HELD_OUT, _GROUPS = "held-out", "groups"
_CELLS_CHUNK = 1 << 18  # rows counted at a time: their cells (2 MB) stay in the cache


@dataclass(frozen=True, eq=False)
class GroupQuestion:
    """A query about groups of rows, with the public settings that an estimator fixes before the
    charge.

    Attributes
    ----------
    query : Query
    groups : (n,) or (n, T) integers
        As in `aggregate`.
    held_out : float in [0, 1)
        Expected share of the rows that are not counted, chosen by the run's secret, on which an
        estimator can be measured.
    total : float or None
        Epsilon of this charge and of the charges to follow on these rows. If less than that is
        left, nothing is charged.
    origin : function of the order of the rows, or None
        Returns the digest of the data that the groups were computed from. With a ledger it
        identifies the request instead of the groups, since a clustering may differ from run to run;
        a repeat returns the stored groups.
    kept : mapping of str to array
        Public arrays that are stored with the groups.
    """

    query: Query
    groups: ArrayLike
    held_out: float = 0.0
    total: float | None = None
    origin: Callable[[NDArray[np.intp] | None], str] | None = None
    kept: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class GroupAnswer:
    """A private answer, with the groups of the rows.

    Attributes
    ----------
    answer : Aggregate
    groups : (n,) or (n, T) int64
        The group of each row, or its T groups, counted or not; numbered over all tables.
    held_out : (n,) bool
        True for rows that were not counted.
    kept : mapping of str to array
        The arrays that were stored with the groups.
    """

    answer: Aggregate
    groups: NDArray[np.int64]
    held_out: NDArray[np.bool_]
    kept: Mapping[str, NDArray[np.generic]]


def answer_groups(
    labels: PrivateLabels,
    question: GroupQuestion,
    *,
    redraw: bool = False,
    anew: str = RELEASE_ANEW,
) -> GroupAnswer:
    """Charge and answer a query about groups of rows in memory, or return the stored answer of an
    earlier request.

    Parameters
    ----------
    labels : PrivateLabels
        Of as many classes as the query has.
    question : GroupQuestion
    redraw : bool
        Ask and charge again even if the same request has settled. False by default.
    anew : (str, str)
        As in `warn_of_repeat`, of a question that names its groups; by default that of a fit.
    """
    query, rows, account = checked(question.query), labels.rows, labels.account
    rows.check_distinct()
    groups = query.groups_of_rows(question.groups, len(labels))
    # The sizes of the groups are public, because the groups do not depend on labels.
    query.require(
        np.bincount(groups.reshape(-1), minlength=query.n_groups), units=rows.given.unit is not None
    )
    # A clustering may come out differently on another machine. Its inputs name the request, so that
    # it is not charged again for that.
    by_origin = question.origin is not None and account.ledger is not None
    request = query_request(
        query,
        rows.column,
        len(labels),
        rows=_origin_digest(question, rows) if by_origin else groups_digest(groups, query, rows),
        units=rows.units_digest,
        id_name=rows.given.id_name,
        noted=labels.noted | ({"held_out": question.held_out} if question.held_out else {}),
    )
    charge = _charged(
        request,
        replace(account, redraw=redraw),
        rows,
        lambda coverage: _require_room(account, coverage, question.total),
        question.total,
    )
    # These need the run's secret, so they follow the charge.
    held_out = _held_out_rows(charge, rows, question.held_out)
    groups, kept = (
        (groups, question.kept)
        if question.origin is None
        else _kept_with(charge, rows, groups, question.kept)
    )

    def draw(secret: RunSecret) -> Aggregate:
        counts, asked = (
            GroupCounts(query.n_groups, query.n_classes),
            ~held_out & rows.within_cap(secret),
        )
        counts.add(groups[asked], opened(labels)[asked])
        return drawn_answer(request, query, counts, charge, secret)

    return GroupAnswer(
        answered(charge, draw, anew if question.origin is None else _OTHER_CLUSTERS),
        groups,
        held_out,
        kept,
    )


def answer_sums(
    labels: PrivateLabels, query: FeatureSums, features: ArrayLike, *, redraw: bool = False
) -> Aggregate:
    """Charge and answer a query about sums of public features, or return the stored answer of an
    earlier request.

    Parameters
    ----------
    labels : PrivateLabels
    query : FeatureSums
    features : (n, query.n_groups) numbers
        Public.
    redraw : bool
        As in `answer_groups`.
    """
    rows = labels.rows
    rows.check_distinct()
    units = query.units(features)
    if len(units) != len(labels):
        raise InvalidInput(f"Expected features of {len(labels)} rows, got {len(units)}.")
    request = query_request(
        query,
        rows.column,
        len(labels),
        rows=(
            set_digest(rows.given.ids, units)
            if rows.given.ids is not None
            else array_digest({"features": units})
        ),
        units=rows.units_digest,
        id_name=rows.given.id_name,
        noted=labels.noted,
    )
    charge = _charged(request, replace(labels.account, redraw=redraw), rows)

    def draw(secret: RunSecret) -> Aggregate:
        sums, asked = RawSums(query.n_groups, query.n_classes), rows.within_cap(secret)
        sums.add(units[asked], opened(labels)[asked])
        return drawn_answer(request, query, sums, charge, secret)

    return answered(charge, draw)


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


def query_request(
    query: Query,
    column: PrivateColumn,
    n_rows: int,
    *,
    rows: str,
    units: str = "",
    id_name: str = "",
    noted: Mapping[str, object],
) -> Request:
    """Make the request for one answer; refuse a cap for which the query cannot be answered, and
    warn of a delta that is too large.

    Parameters
    ----------
    query : Query
    column : PrivateColumn
    n_rows : int
    rows, units, id_name : str
        As in `Request`.
    noted : mapping
        Further public facts of the request.
    """
    delta = query.spent_delta(query.require_cap(column.max_rows_per_unit))
    _warn_of_delta(delta, n_rows)
    asked = query.to_dict() | dict(noted)
    return Request(
        column,
        query.epsilon,
        asked,
        rows=rows,
        units=units,
        delta=delta,
        id_name=id_name,
        of_groups=True,
    )


def _charged(
    request: Request,
    account: Account,
    rows: TableRows,
    before_charge: Callable[[RowSet | None], None] | None = None,
    total: float | None = None,
) -> Charge:
    """Charge a request about these rows as `begin_once`, with the number of rows over the cap in
    its receipt.

    `before_charge` is called with the rows and units that a new charge covers.
    """
    account.check()
    over, coverage = rows.over_the_cap, rows.coverage(account.ledger)
    before = None if before_charge is None else partial(before_charge, coverage)
    charge = begin_once(request, account, coverage=coverage, before_charge=before, total=total)
    return replace(charge, receipt=replace(charge.receipt, rows_over_the_cap=over))


def _warn_of_delta(delta: float, n_rows: int) -> None:
    """Warn, before the charge, of a delta of 1 / n or more, which allows releasing a row's label as
    it is."""
    if delta * n_rows >= 1:
        warn(
            LabelDPWarning(
                f"Expected delta far below 1 over the number of rows, {1 / n_rows:.3g}, got"
                f" delta={delta!r}: at 1 / n and above, a release may tell some row's label as it"
                " is and still have this delta. Take for example 1 / n^2."
            )
        )


class GroupsDigest:
    """Digest of the group of each row, for rows without ids, computed batch by batch."""

    def __init__(self, query: Query) -> None:
        self._state, self._kind = (
            hashlib.sha256(b"labeldp groups of rows"),
            ("<u4" if query.n_groups <= 1 << 32 else "<u8"),
        )

    def update(self, groups: NDArray[np.int64]) -> None:
        """Add the next rows."""
        for start in range(0, len(groups), _BATCH):
            self._state.update(
                np.ascontiguousarray(groups[start : start + _BATCH], self._kind).reshape(-1).data
            )

    def hexdigest(self) -> str:
        """Return the SHA-256 of the rows so far, in hexadecimal."""
        return self._state.hexdigest()


def groups_digest(groups: NDArray[np.int64], query: Query, rows: TableRows) -> str:
    """Compute the digest of the group of each row, named by its id, or by its number without
    ids."""
    if rows.explicit:
        columns = groups.reshape(len(groups), -1).T
        return set_digest(rows.given.ids, *columns)  # type: ignore[arg-type] # ids are not None
    found = GroupsDigest(query)
    found.update(groups)
    return found.hexdigest()


def _origin_digest(question: GroupQuestion, rows: TableRows) -> str:
    assert question.origin is not None
    return digest(
        {"request": question.origin(rows.by_id() if rows.explicit else None), "ids": rows.digest}
    )


def _require_room(account: Account, coverage: RowSet | None, total: float | None) -> None:
    """Refuse a charge after which too little is left for those that will follow on the same
    rows."""
    ledger = account.ledger
    if ledger is None or total is None:
        return
    left = ledger.remaining(account.dataset, account.column, coverage)
    # Compared as exact decimals, so that a budget that is just enough is accepted.
    if left < float("inf") and exact(left) < exact(total):
        of = (
            f"for these rows of dataset {account.dataset!r}, column {account.column!r} in"
            f" {ledger.location}"
        )
        said = f"got epsilon={total!r} in two charges. Nothing was charged."
        raise BudgetExceeded(
            (
                f"Expected epsilon <= {left!r}, which remains {of}; {said} Ask for less, or allow "
                if left > 0
                else f"Expected epsilon that remains, but the budget {of} is spent; {said} Allow "
            )
            + f"more with set_budget, or `{ledger.command('set-budget')}`."
        )


def _held_out_rows(charge: Charge, rows: TableRows, share: float) -> NDArray[np.bool_]:
    """Choose the rows that are not counted, at random by the run's secret: (n,) bool."""
    if not share:
        return np.zeros(rows.n_rows, bool)
    # Stored, since the secret is not: a repeat must measure on the same rows, none of which was
    # counted.
    stored = (charge.store.load_array if charge.store else charge.answers.get)(_HELD_OUT)
    if stored is not None:
        return rows.in_table_order(stored).astype(bool)
    if charge.secret is None:
        raise LedgerError(
            f"Expected the held-out rows of run {charge.run_id} in its folder, but they are gone."
            " Restore them, or ask for a new, charged draw with redraw=True."
        )
    held_out = np.asarray(
        partition(charge.secret.key("partition"), rows.blocks(charge.secret), (share, 1.0 - share))
        == 0
    )
    charge.answers[_HELD_OUT] = rows.in_id_order(held_out)
    if charge.store is not None:
        charge.store.save_array(_HELD_OUT, charge.answers[_HELD_OUT])
    return held_out


def _kept_with(
    charge: Charge,
    rows: TableRows,
    groups: NDArray[np.int64],
    kept: Mapping[str, NDArray[np.generic]],
) -> tuple[NDArray[np.int64], Mapping[str, NDArray[np.generic]]]:
    """Store the groups and the arrays that belong to them, and return them; for a repeat return the
    stored ones."""
    store = charge.store
    if store is None:
        return groups, kept
    if charge.secret is not None:
        store.save_array(_GROUPS, rows.in_id_order(groups))
        for name, array in kept.items():
            store.save_array(name, array)
    found = {name: store.load_array(name) for name in (_GROUPS, *kept)}
    if any(array is None for array in found.values()):
        raise LedgerError(
            f"Expected the groups of run {charge.run_id} in {store.folder}, but they are gone."
            " Restore them, or ask for a new, charged draw with redraw=True."
        )
    groups = rows.in_table_order(np.asarray(found.pop(_GROUPS))).astype(np.int64)
    return groups, {name: np.asarray(array) for name, array in found.items()}


# Teachers: models of disjoint rows, of which nothing leaves but the noisy majority of their votes
# --------------------------------------


@dataclass(frozen=True, eq=False)
class TeacherQuestion:
    """A query to teachers, with what trains them: all of it is public, and no label has entered it.

    Attributes
    ----------
    query : TeacherQuery
    teach : function (number, rows, codes, asked) -> (n_queries,) class codes
        Trains teacher `number` on these rows of the table and their raw class codes, and gives its
        votes for the rows `asked`: a function of these four alone. It must keep, print and send
        nothing.
    origin : function of the order of the rows
        Gives the digest of features and settings, by which a repeat is known.
    seed : int
        Public: another one is another division into shards and another choice of queries.
    """

    query: TeacherQuery
    teach: Callable[[int, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], ArrayLike]
    origin: Callable[[NDArray[np.intp] | None], str]
    seed: int = 0


@dataclass(frozen=True, eq=False)
class TeacherAnswer:
    """A private answer of teachers.

    Attributes
    ----------
    answer : Aggregate
    queries : (n_queries,) int64
        Positions of the rows that were asked about, in the answer's order.
    """

    answer: Aggregate
    queries: NDArray[np.int64]


def answer_teachers(labels: PrivateLabels, question: TeacherQuestion) -> TeacherAnswer:
    """Train teachers on disjoint shards of the rows, and release the noisy majority of their votes
    once.

    Parameters
    ----------
    labels : PrivateLabels
        Of as many classes as the query has. A unit's rows are all with one teacher.
    question : TeacherQuestion

    Notes
    -----
    Teachers are trained before the charge, so that a training which dies, or lasts too long, costs
    nothing: nothing of it leaves this function. Only then is the query charged, whole, and the
    noise drawn. A repeat trains nobody and gets the stored answer.
    """
    query, rows, account = question.query, labels.rows, labels.account
    rows.check_distinct()
    if query.n_queries > len(labels):
        raise InvalidInput(
            f"Expected at most as many queries as {len(labels)} rows, got"
            f" n_queries={query.n_queries}. Lower it."
        )
    shards = rows.public_shards(query.n_teachers, question.seed)
    asked = np.argsort(rows.public_order("queries", question.seed))[: query.n_queries]
    # A digest of all features costs a pass over them: it is made only where something outlives this
    # call.
    named = (account.ledger, account.noise, account.memory) != (None, None, None)
    origin = question.origin(rows.by_id() if rows.explicit else None) if named else ""
    request = query_request(
        query,
        rows.column,
        len(labels),
        rows=digest({"request": origin, "ids": rows.digest}),
        units=rows.units_digest,
        id_name=rows.given.id_name,
        noted={"seed": question.seed} | labels.noted,
    )

    @cache
    def votes() -> GroupCounts:
        return _votes(question, shards, labels, asked)

    def before_charge(coverage: RowSet | None) -> None:
        assert account.ledger is not None
        # before a training of minutes, not after it
        account.ledger.require(request.spending(new_run_id()), rows=coverage)
        votes()

    charge = _charged(request, account, rows, before_charge)
    answer = answered(
        charge,
        lambda secret: drawn_answer(request, query, votes(), charge, secret),
        _OTHER_TEACHERS,
    )
    return TeacherAnswer(answer, asked)


def _votes(
    question: TeacherQuestion,
    shards: NDArray[np.int64],
    labels: PrivateLabels,
    asked: NDArray[np.int64],
) -> GroupCounts:
    """Count the votes of all teachers: raw, as any function of labels without noise is."""
    query = question.query
    counts = GroupCounts(query.n_queries, query.n_classes)
    order = np.argsort(shards, kind="stable")
    # rows over the cap are in shard -1
    parts = np.split(order, np.searchsorted(shards[order], np.arange(query.n_teachers + 1)))[1:-1]
    for number, rows in enumerate(parts):
        counts.add(
            np.arange(query.n_queries),
            _vote_of(question, number, rows, opened(labels)[rows].astype(np.int64), asked),
        )
    return counts


def _vote_of(
    question: TeacherQuestion,
    number: int,
    rows: NDArray[np.int64],
    codes: NDArray[np.int64],
    asked: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Train a teacher and give its votes; one that fails votes for its shard's most frequent class,
    in every query.

    That a training fails, and with which message, can depend on labels, so neither may leave. A
    constant vote is a function of the shard alone, as every other one is: one changed label still
    changes one teacher.
    """
    n_classes = question.query.n_classes

    def constant() -> NDArray[np.int64]:
        return np.full(len(asked), np.bincount(codes, minlength=n_classes).argmax())

    # by the machine or the user; raised below without the frames of the training
    stopped: BaseException | None = None
    try:
        with SILENCE:
            votes = np.asarray(question.teach(number, rows, codes, asked))
    except MemoryError:
        stopped = MemoryError("The training of a teacher ran out of memory. Nothing was charged.")
    except KeyboardInterrupt:
        stopped = KeyboardInterrupt()
    except BaseException:  # SystemExit, too, has a text
        return constant()
    if stopped is not None:
        raise stopped
    good = (
        votes.shape == asked.shape
        and votes.dtype.kind in "iu"
        and votes.min() >= 0
        and votes.max() < n_classes
    )
    return votes.astype(np.int64) if good else constant()


# Drawing and storing
# --------------------------------------------------------------------------------------------------


def drawn_answer(
    request: Request, query: Query, counts: GroupCounts, charge: Charge, secret: RunSecret
) -> Aggregate:
    """Draw the answer from raw counts, under a charged run's secret."""
    key = secret.answer_key("aggregate", request.identity, query=query.to_dict())
    # All rows of a unit are with one teacher, so whatever their number they change one vote.
    values = drawn(
        query,
        counts.table(),
        key,
        1 if isinstance(query, TeacherQuery) else request.column.max_rows_per_unit,
    )
    return Aggregate(query, values, counts.n_rows(), request.column.values, charge.receipt)


@unseen(undrawn)
def drawn(
    query: Query, counts: NDArray[np.int64], key: Key, max_rows_per_unit: int
) -> NDArray[np.int64]:
    """Draw the values of all groups, in chunks of groups, each group from its own streams of
    words."""
    ends = np.append(0, np.cumsum(query.streams(counts.sum(axis=1))))
    parts, start = [], 0
    # Streams are numbered over all groups, so the values do not depend on the size of a chunk.
    while start < query.n_groups:
        stop = max(start + 1, int(np.searchsorted(ends, ends[start] + CHUNK, side="right")) - 1)
        words = RowWords(key, row_blocks(int(ends[stop] - ends[start]), int(ends[start])))
        parts.append(query.release(counts[start:stop], words, max_rows_per_unit))
        start = stop
    return query.finish(np.concatenate(parts))


def answered(
    charge: Charge, draw: Callable[[RunSecret], Aggregate], anew: str = REDRAW
) -> Aggregate:
    """Draw an answer, store it and settle; or load the stored answer, without a call of `draw`, and
    tell how to ask `anew`."""
    if _OUTPUT in charge.answers:
        stored: Aggregate = charge.answers[_OUTPUT]
        return replace(stored, receipt=charge.receipt)
    if charge.secret is None:
        return _stored(charge, anew)
    answer = draw(charge.secret)
    charge.answers[_OUTPUT] = answer
    # Stored before settling: if the process dies in between, a repeat finds the answer and settles.
    if charge.store is not None:
        charge.store.write(_OUTPUT, _as_file(answer))
    charge.settle()
    return answer


def _stored(charge: Charge, anew: str) -> Aggregate:
    """Load the stored answer of a run, and settle the run if its process died before that."""
    import pyarrow.parquet as pq

    store, run, ledger = charge.store, charge.repeats, charge.ledger
    assert store is not None
    assert run is not None
    assert ledger is not None
    found, artefact = store.read(_OUTPUT), store.digest()
    # A lost or changed answer is never drawn anew under the old charge: its secret is gone, and
    # fresh noise would be a second answer.
    if found is None or (run.state == "settled" and run.artefact != artefact):
        raise LedgerError(
            f"Expected the stored answer of run {run.run_id} (settled {run.settled_at}) in"
            f" {store.folder}, but it is gone, or was changed. Restore it, or ask for a new,"
            " charged draw with redraw=True."
        )
    ledger.settle(run.run_id, artefact)
    warn_of_repeat(charge.receipt, anew=anew)
    return replace(
        Aggregate.from_table(pq.read_table(pa.BufferReader(found))), receipt=charge.receipt
    )


def _as_file(answer: Aggregate) -> bytes:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(answer.to_table(), buffer)
    return buffer.getvalue()


# Raw counts, which never leave custody
# --------------------------------------------------------------------------------------------------


class GroupCounts:
    """Raw counts of each class in each group. They are private: neither printed, pickled nor
    stored."""

    def __init__(self, n_groups: int, n_classes: int) -> None:
        self._shape = n_groups, n_classes
        self._cells = np.zeros(n_groups * n_classes, np.int64)

    def __repr__(self) -> str:
        return f"GroupCounts{self._shape}"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "Raw counts of labels are never pickled. Pass the private answer on instead."
        )

    @unseen(undrawn)
    def add(self, groups: NDArray[np.int64], codes: NDArray[np.integer]) -> None:
        """Count rows: (n,) groups, or (n, T) of several tables, and (n,) class codes, both
        checked."""
        if groups.ndim == 2:
            for column in groups.T:
                self.add(column, codes)
            return
        step = max(_CELLS_CHUNK, 2 * len(self._cells))
        for start in range(0, len(codes), step):
            # In chunks, whose cells stay in the cache; but of at least twice as many rows as there
            # are counts, because `bincount` returns all counts each time.
            cells = groups[start : start + step] * self._shape[1]
            # codes are small, whatever their type
            np.add(cells, np.asarray(codes[start : start + step]), out=cells, casting="unsafe")
            self._cells += np.bincount(cells, minlength=len(self._cells))

    def table(self) -> NDArray[np.int64]:
        """Return the raw counts, (n_groups, K), which only a query's `release` may read."""
        return np.asarray(self._cells.reshape(self._shape))

    def n_rows(self) -> NDArray[np.int64]:
        """Return the number of rows of each group, (n_groups,), which is public since it does not
        depend on labels."""
        return np.asarray(self.table().sum(axis=1))


class RawSums(GroupCounts):
    """Raw sums of each feature over the rows of each class, in whole units. As private as
    counts."""

    def __init__(self, n_features: int, n_classes: int) -> None:
        super().__init__(n_features, n_classes)
        self._rows = 0

    @unseen(undrawn)
    def add(self, groups: NDArray[np.int64], codes: NDArray[np.integer]) -> None:
        """Add rows: (n, d) features in whole units for the groups, and (n,) class codes, both
        checked."""
        for k in range(self._shape[1]):
            self._cells.reshape(self._shape)[:, k] += groups[codes == k].sum(axis=0)
        self._rows += len(codes)

    def n_rows(self) -> NDArray[np.int64]:
        """Return the number of rows that were summed, for each feature: (d,)."""
        return np.full(self._shape[0], self._rows)


class LabelReader:
    """Reads class codes from an Arrow label column, batch by batch. No message shows a label.

    Parameters
    ----------
    classes : sequence of K values
    label : str
        Name of the column.
    """

    def __init__(self, classes: Sequence[object], label: str) -> None:
        self._classes, self._label = as_classes(classes), label
        self._are_codes = are_codes(self._classes)
        self.rows = 0
        """Number of rows read so far, by which messages name a row of the groups."""

    def codes(self, batch: pa.RecordBatch) -> NDArray[np.integer]:
        """Read the codes of a batch's rows: (n,) in 0..K-1."""
        if self._label not in batch.schema.names:
            raise InvalidInput(
                f"Expected a label column {self._label!r}, got columns"
                f" {_validate.quoted(batch.schema.names)}."
            )
        column = batch.column(self._label)
        grid = isinstance(self._classes, Grid)
        expected = FINITE if grid else one_of(self._classes)
        if column.null_count:
            raise bad_label(
                MISSING, expected, column=self._label, fix=NO_NUMBER.fix if grid else ""
            )
        if pa.types.is_dictionary(column.type):
            codes: NDArray[np.integer] = self._searched(column.dictionary).take(
                column.indices.to_numpy()
            )
        else:
            codes = (
                column.to_numpy()
                if self._are_codes and pa.types.is_integer(column.type)
                else self._searched(column)
            )
        bad = bool(len(codes)) and not (codes.min() >= 0 and codes.max() < len(self._classes))
        if bad:
            raise bad_label(NO_NUMBER if grid else UNDECLARED, expected, column=self._label)
        self.rows += len(codes)
        return codes

    def _searched(self, column: pa.Array) -> NDArray[np.int32]:
        if isinstance(self._classes, Grid):
            return self._classes.codes(as_numbers(as_array(column)))
        try:
            values = pa.array(self._classes, column.type)
        except (pa.ArrowException, ArithmeticError):
            values = pa.nulls(0)
        if len(values.unique()) < len(self._classes):  # a column of 32-bit floats rounds them
            raise InvalidInput(
                f"Expected classes of the type of label column {self._label!r}, which is"
                f" {column.type}. Declare them as such values."
            )
        return np.asarray(pc.fill_null(pc.index_in(column, value_set=values), -1))
