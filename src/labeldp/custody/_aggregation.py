# SPDX-License-Identifier: Apache-2.0
"""The door's other wing: raw labels of many rows go in, private answers about groups of them come out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from labeldp._hash import digest
from labeldp.aggregates import Aggregate, Query
from labeldp.aggregates._result import check_groups
from labeldp.aggregates._tuning import RepeatAndSelect
from labeldp.custody._answers import (
    GroupCounts,
    GroupQuestion,
    GroupsDigest,
    LabelReader,
    answer_groups,
    answered,
    checked,
    drawn,
    drawn_answer,
    groups_digest,
    groups_of,
    query_request,
    warn_of_delta,
)
from labeldp.custody._batches import RunSecret
from labeldp.custody._charge import Charge, begin_once
from labeldp.custody._encode import classes_for, encode
from labeldp.custody._request import Account, Request
from labeldp.custody._row_ids import Name, RowIds
from labeldp.custody._table_rows import TableRows
from labeldp.errors import InvalidInput
from labeldp.laws._words import below
from labeldp.ledger._ledger import Ledger
from labeldp.noise._words import RowWords, SeededNoise, row_blocks

if TYPE_CHECKING:
    import pyarrow.parquet as pq

__all__ = ["aggregate", "aggregate_batches", "aggregate_best"]

_BATCH = 1 << 20
_Candidates = list[tuple[Query, NDArray[np.int64]]]


def aggregate(
    labels: ArrayLike,
    query: Query,
    groups: ArrayLike,
    *,
    classes: Sequence[object] | None = None,
    dataset: str | None = None,
    column: str = "label",
    ids: ArrayLike | None = None,
    unit: ArrayLike | None = None,
    max_rows_per_unit: int = 1,
    ledger: Ledger | None = None,
    noise: SeededNoise | None = None,
    redraw: bool = False,
    id_name: Name | None = None,
    unit_name: Name | None = None,
) -> Aggregate:
    """Answer a query about the labels of groups of rows, once.

    Parameters
    ----------
    labels : (n,) array of class values
        Raw, private. Every value must be declared.
    query : Histogram, Vote or another Query
        Its epsilon and delta are the total of one unit: with `max_rows_per_unit` = m the noise is for m changed labels.
    groups : (n,) integers in 0..query.n_groups-1
        Public: which group each row is in, for example its cluster. It must not depend on these labels. Groups may be empty.
    classes : sequence of K values, or "infer", optional
        The public list of class values. None: the codes 0..K-1, as the query has K classes, where the labels are integers; others must be
        declared. "infer" reads them off the labels, as in `privatize`.
    dataset : str, optional
        Public name of the data set; a durable ledger requires it.
    column : str
        Name of the label column.
    ids : (n,) or (n, columns) array, column or table, optional
        Public, different ids of the rows. With them a repeat is recognised in any order, and disjoint rows do not add up.
    unit : (n,) array or column, optional
        Who each row is about; None protects each row by itself.
    max_rows_per_unit : int
        Rows of one unit that are counted; further ones, chosen by a secret key, are left out.
    ledger : Ledger, or its path, optional
        Durable record. None: nothing is recorded, which a warning says once.
    noise : SeededNoise, optional
        For tests and benchmarks on public data only: no guarantee at all.
    redraw : bool
        Draw again, and be charged again, though the same request has settled.
    id_name, unit_name : str or sequence of str, optional
        What the columns of `ids` and `unit` are called, as in `privatize`.

    Returns
    -------
    Aggregate

    Raises
    ------
    InvalidInput
        Before anything is charged, for whatever is wrong with the arguments.
    BudgetExceeded
        If the ledger refuses; nothing is drawn.
    LedgerError
        If the ledger cannot be used, or the stored answer of a settled request is gone.

    Notes
    -----
    Guarantee: (epsilon, delta)-label-DP for each unit, in exact arithmetic; a trusted curator sees the raw labels. It adds to every other
    spend on the same labels: a prior from a histogram and labels drawn with it cost the sum. With a durable ledger the charge is on disk
    before the first random word; the same request (query, rows, groups) returns the stored answer, and a call that died before its answer
    was stored stays spent and is charged anew. Cost: O(n) time, no copy of the labels beyond their codes.

    Examples
    --------
    >>> import labeldp as ldp
    >>> query = ldp.aggregates.Histogram(n_classes=2, epsilon=20.0, n_groups=2)
    >>> ldp.aggregate([0, 0, 1, 1, 1], query, [0, 0, 0, 1, 1], noise=ldp.SeededNoise(0)).values.tolist()
    [[2, 1], [0, 2]]
    """
    declared, inferred = classes_for(labels, classes, checked(query).n_classes)
    given = RowIds.of(ids, unit, id_name, unit_name).beside(labels)
    account = Account(dataset, column, max_rows_per_unit, ledger, noise, redraw)
    return answer_groups(labels, GroupQuestion(query, groups), declared, account, given, inferred=inferred).answer


def aggregate_batches(
    source: "str | Path | pa.Table | Iterable[pa.RecordBatch]",
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
    """`aggregate` for tables of any length: one pass over record batches, memory for one batch and the counts.

    Parameters
    ----------
    source : path of a Parquet file, Arrow table, or iterable of record batches
        With a label and a group column; other columns are not read from Parquet.
    query : Histogram, Vote or another Query
    label, group : str
        Names of two columns; groups are whole numbers in 0..query.n_groups-1 without nulls, public, and not made from the labels.
    classes : sequence of K values
        The public list of class values.
    inferred : bool
        They were read off the labels, which the ledger notes.
    dataset, ledger, noise, redraw
        As in `aggregate`; every row is its own unit, and the spend adds to every other one of the column.
    column : str, optional
        Name under which the ledger keeps the labels; that of the label column by default.
    before_charge : function, optional
        Called right before a charge, where no answer is stored: what it raises stops the call, and nothing is charged.

    Returns
    -------
    Aggregate
        As `aggregate` of the same rows in the same order: a repeat of either is recognised by the other.
    """
    account = Account(dataset, label if column is None else column, 1, ledger, noise, redraw)
    private = account.private_column(classes, RowIds(), checked(query).n_classes)
    if group == label:
        raise InvalidInput(
            f"Expected a public column of groups, got the label column {label!r}, whose counts would be exact. Name another."
        )
    reader, counts, rows = LabelReader(private.values, label), GroupCounts(query.n_groups, query.n_classes), GroupsDigest(query)
    for batch in _batches(source, label, group):
        where = _group_column(batch, group, query, reader.rows)
        counts.add(where, reader.codes(batch))
        rows.update(where)
    if not reader.rows:
        raise InvalidInput("Expected at least one row, got none.")
    query.require(counts.n_rows())
    warn_of_delta(query.spent_delta(), reader.rows)
    request = query_request(query, private, rows=rows.hexdigest(), noted={"classes_inferred": True} if inferred else None)
    account.check()
    charge = begin_once(request, account, before_charge=before_charge)
    return answered(charge, lambda secret: drawn_answer(request, query, counts, charge, secret))


def _batches(source: "str | Path | pa.Table | Iterable[pa.RecordBatch]", label: str, group: str) -> Iterator[pa.RecordBatch]:
    if isinstance(source, (str, Path)):
        with _parquet(source) as file:
            missing = [name for name in (label, group) if name not in file.schema_arrow.names]
            if missing:
                raise InvalidInput(f"Expected columns {label!r} and {group!r} in {source}, but it has no {missing[0]!r}.")
            yield from file.iter_batches(_BATCH, columns=[label, group])
        return
    batches: object = source.to_batches() if isinstance(source, pa.Table) else source
    for batch in batches if isinstance(batches, Iterable) else [batches]:
        if not isinstance(batch, pa.RecordBatch) or batch is source:
            given = type(batch).__name__
            raise InvalidInput(
                f"Expected the path of a Parquet file, an Arrow table or its record batches, got {given}. Pass [batch] for one batch."
            )
        yield batch


def _parquet(path: str | Path) -> "pq.ParquetFile":
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InvalidInput(f"Expected the path of a Parquet file, got {str(path)!r}: {error}.") from None


def _group_column(batch: pa.RecordBatch, group: str, query: Query, start: int) -> NDArray[np.int64]:
    """The groups of a batch that begins at row `start`."""
    if group not in batch.schema.names:
        raise InvalidInput(f"Expected a column {group!r} of groups, got columns {', '.join(batch.schema.names)}.")
    column = batch.column(group)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise InvalidInput(
            f"Expected group column {group!r} of whole numbers without nulls, got {column.type} with {column.null_count} nulls from row "
            f"{start} on. Number the groups, and give rows of no group one of their own."
        )
    return check_groups(column.to_numpy(zero_copy_only=False), query.n_groups)


def aggregate_best(
    labels: ArrayLike,
    candidates: Sequence[tuple[Query, ArrayLike]],
    score: Callable[[Aggregate], float],
    *,
    tuning: RepeatAndSelect,
    score_name: str = "",
    classes: Sequence[object] | None = None,
    dataset: str | None = None,
    column: str = "label",
    ids: ArrayLike | None = None,
    ledger: Ledger | None = None,
    noise: SeededNoise | None = None,
    redraw: bool = False,
    id_name: Name | None = None,
) -> Aggregate:
    """Try queries and groups on private labels, and release the best answer, at one charge for all that was tried.

    Parameters
    ----------
    labels : (n,) array of class values
        Raw, private. Every row is protected by itself.
    candidates : sequence of (query, (n,) groups)
        Public, as in `aggregate`: each query pure (delta = 0), all of the same classes. Each run takes one at random, and fresh noise.
    score : function of an Aggregate to a number
        How good an answer is, from the answer and public facts alone, never from labels; the highest wins, NaN never. It must not raise,
        print or keep what it is shown: answers that are not released, and their number, are covered by nothing. What is no number is
        refused when it comes, and the charge is spent by then.
    tuning : RepeatAndSelect
        Expected number of runs, of shape 1 (geometric).
    score_name : str
        Public name of the score, a part of what makes a request the same again. Two scores need two names.
    classes, dataset, column, ids, ledger, noise, redraw, id_name
        As in `aggregate`.

    Returns
    -------
    Aggregate
        The best answer; `chosen` is the number of its candidate, and its receipt is that of the whole tuning.

    Raises
    ------
    InvalidInput, BudgetExceeded, LedgerError
        As in `aggregate`: before anything is charged.

    Notes
    -----
    Guarantee: `tuning.pure_epsilon` of the largest epsilon among the candidates, which is 3 times that epsilon, for each row's label;
    however many runs there were. It is charged before the first run. If the score raises, or the process dies, it is spent and nothing is
    stored; a repeat returns what was stored. The time that a call takes tells the number of runs: do not let others measure it.
    Source: Papernot and Steinke (ICLR 2022), Corollary 3.

    Examples
    --------
    >>> from labeldp.aggregates import Histogram
    >>> tries = [(Histogram(2, 50.0, 2), [0, 0, 0, 1, 1]), (Histogram(2, 50.0, 2), [0, 1, 0, 1, 0])]
    >>> purest = lambda found: float(found.values.max(axis=1).sum())
    >>> best = aggregate_best([0, 0, 0, 1, 1], tries, purest, tuning=RepeatAndSelect(30), noise=SeededNoise(1))
    >>> best.chosen, best.values.tolist(), best.receipt.epsilon
    (0, [[3, 0], [0, 2]], 150.0)
    """
    _check(candidates, score, tuning)
    given = RowIds.of(ids, None, id_name).beside(labels)
    declared, inferred = classes_for(labels, classes, candidates[0][0].n_classes)
    codes = encode(labels, declared)
    del labels
    account = Account(dataset, column, 1, ledger, noise, redraw)
    rows = TableRows(given, len(codes), account.private_column(declared, given))
    rows.check_distinct()
    tried = [(query, groups_of(groups, query, len(codes))) for query, groups in candidates]
    for query, where in tried:
        query.require(np.bincount(where, minlength=query.n_groups))
    request = Request(
        rows.column,
        tuning.pure_epsilon(max(query.epsilon for query, _ in tried)),
        _facts(tried, tuning, score_name) | ({"classes_inferred": True} if inferred else {}),
        rows=digest({"rows": [groups_digest(where, query, rows) for query, where in tried]}),
        id_name=given.id_name,
        of_groups=True,
    )
    account.check()
    charge = begin_once(request, account, coverage=rows.coverage(account.ledger))
    return answered(charge, lambda secret: _best(request, tried, score, tuning, codes, charge, secret))


def _check(candidates: Sequence[tuple[Query, ArrayLike]], score: Callable[[Aggregate], float], tuning: RepeatAndSelect) -> None:
    """Refuse what cannot be charged for beforehand."""
    if not callable(score):
        raise InvalidInput(f"Expected score to be a function of an Aggregate, got {type(score).__name__}. Name it with score_name=.")
    pairs = isinstance(candidates, Sequence) and all(isinstance(pair, Sequence) and len(pair) == 2 for pair in candidates)
    if not pairs:
        raise InvalidInput("Expected candidates to be pairs of a query and the rows' groups, got others. [(query, groups)] tries one.")
    if not isinstance(tuning, RepeatAndSelect) or tuning.shape != 1:
        raise InvalidInput(f"Expected tuning=RepeatAndSelect(mean) of shape 1, the only one that is drawn exactly; got {tuning!r}.")
    if not candidates:
        raise InvalidInput("Expected at least one candidate, a pair of a query and the rows' groups; got none.")
    for query, _ in candidates:
        if checked(query).spent_delta() != 0:
            raise InvalidInput(f"Expected candidates with delta=0, got {query}. Take a pure mechanism: only those are charged for here.")
        if query.n_classes != candidates[0][0].n_classes:
            raise InvalidInput(f"Expected candidates of the same classes, got {candidates[0][0].n_classes} and {query.n_classes}.")


def _facts(tried: _Candidates, tuning: RepeatAndSelect, score_name: str) -> dict[str, object]:
    """The whole tuning as the ledger keeps it."""
    return {
        "query": "best-of",
        "candidates": [query.to_dict() for query, _ in tried],
        "tuning": {"mean": float(tuning.mean), "shape": float(tuning.shape)},
        "score": score_name,
    }


def _best(
    request: Request,
    tried: _Candidates,
    score: Callable[[Aggregate], float],
    tuning: RepeatAndSelect,
    codes: NDArray[np.int32],
    charge: Charge,
    secret: RunSecret,
) -> Aggregate:
    """All runs of a charged tuning: how many, which candidates, and their noise are words of the run's secret, each of a key of its own."""
    picks = secret.answer_key("tuning-candidates", request.identity)

    @lru_cache(maxsize=64)
    def counted(number: int) -> GroupCounts:
        query, where = tried[number]
        counts = GroupCounts(query.n_groups, query.n_classes)
        counts.add(where, codes)
        return counts

    def run(repetition: int) -> tuple[float, Aggregate]:
        number = int(below(RowWords(picks, row_blocks(1, repetition)), len(tried), 0, 1)[0])
        query, counts = tried[number][0], counted(number)
        key = secret.answer_key("aggregate", request.identity, query=query.to_dict(), repetition=repetition)
        values = drawn(query, counts.table(), key, 1)
        answer = Aggregate(query, values, counts.n_rows(), request.column.values, charge.receipt, chosen=number)
        return _number(score(answer)), answer

    return tuning.select(run, RowWords(secret.answer_key("tuning-repeats", request.identity), row_blocks(1)))


def _number(score: object) -> float:
    """What a score returned; text is no number, though float reads some."""
    try:
        return float(None if isinstance(score, str | bytes) else score)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InvalidInput(
            f"Expected a number from score, got {type(score).__name__}. The charge is spent and nothing is stored: mend the score, try it "
            "on an answer about public labels, and ask again."
        ) from None
