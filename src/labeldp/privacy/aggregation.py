# SPDX-License-Identifier: Apache-2.0
"""The door's other wing: raw labels of many rows go in, private answers about groups of them come out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from labeldp._hash import digest
from labeldp.aggregates import Aggregate, Query
from labeldp.aggregates.result import check_groups
from labeldp.errors import InvalidInput
from labeldp.privacy.answering import (
    Asked,
    RowsDigest,
    answered,
    checked,
    drawn,
    groups_of,
    held_out_rows,
    kept_with,
    key_facts,
    plan_of,
    require_room,
    rows_digest,
    warn_of_delta,
)
from labeldp.privacy.counting import GroupCounts, LabelReader
from labeldp.privacy.custody import AggregatePlan, Covered, begin_once
from labeldp.privacy.door import check_account, check_rows, covered_rows, set_digest, units_digest, warn_once
from labeldp.privacy.encode import classes_for, declare, encode
from labeldp.privacy.ledger import Ledger, as_ledger
from labeldp.privacy.noise import SeededNoise, derive_key, new_secret, one_word
from labeldp.privacy.row_ids import Name, RowIds
from labeldp.privacy.run import Frame, id_order, keep_within_cap
from labeldp.privacy.tuned import aggregate_best
from labeldp.receipt import Receipt

if TYPE_CHECKING:
    import pyarrow.parquet as pq

__all__ = ["aggregate", "aggregate_batches", "aggregate_best", "answer_groups"]

_BATCH = 1 << 20


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
    query : Histogram, Vote or Peer
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
    return answer_groups(
        labels,
        query,
        groups,
        classes=declared,
        inferred=inferred,
        dataset=dataset,
        column=column,
        rows=RowIds.of(ids, unit, id_name, unit_name).beside(labels),
        max_rows_per_unit=max_rows_per_unit,
        ledger=ledger,
        noise=noise,
        redraw=redraw,
    ).answer


def answer_groups(
    labels: ArrayLike,
    query: Query,
    groups: ArrayLike,
    *,
    classes: Sequence[object],
    inferred: bool = False,
    dataset: str | None = None,
    column: str = "label",
    rows: RowIds,
    max_rows_per_unit: int = 1,
    ledger: Ledger | None = None,
    noise: SeededNoise | None = None,
    redraw: bool = False,
    held_out: float = 0.0,
    total: float | None = None,
    request: Callable[[NDArray[np.intp] | None], str] | None = None,
    kept: Mapping[str, NDArray[np.generic]] | None = None,
) -> Asked:
    """`aggregate` for estimators, which have settled the classes.

    Parameters
    ----------
    labels, query, groups, dataset, column, max_rows_per_unit, ledger, noise, redraw
        As in `aggregate`.
    classes : sequence of K values
    inferred : bool
        They were read off the labels, which the ledger notes.
    rows : RowIds
        Their ids and units.
    held_out : float in [0, 1)
        Share of the rows, chosen by secret key, that are not asked, so that something can be measured on them.
    total : float, optional
        Epsilon of this charge and of those that are to follow it on these rows: where it is not all left, nothing is charged.
    request : function of the order of the rows, optional
        Gives the digest of what the groups follow from. With a ledger a request is then known by it, and not by the groups, which need
        not come out the same: they are kept with the answer, and a repeat gets those.
    kept : mapping of arrays, optional
        Public facts that go with the groups, kept and read as they are.
    """
    declared, ledger = declare(classes, checked(query).n_classes), as_ledger(ledger)
    codes = encode(labels, declared)
    del labels
    check_rows(codes, rows, max_rows_per_unit, column)
    where = groups_of(groups, query, len(codes))
    query.require(np.bincount(where, minlength=query.n_groups), units=rows.unit is not None)
    warn_of_delta(query.spent_delta(query.require_cap(max_rows_per_unit)), len(where))
    plan = plan_of(
        query,
        declared,
        _rows(where, query, rows.ids) if ledger is None or request is None else _requested(request, rows.ids),
        dataset=dataset,
        column=column,
        inferred=inferred,
        unit=rows.unit_name,
        max_rows_per_unit=max_rows_per_unit,
        units=units_digest(rows, len(codes)),
        held_out=held_out,
        id_name=rows.id_name,
    )
    check_account(ledger, dataset)
    frame = Frame(plan, declared, len(codes), rows.ids, rows.unit, ledger)
    over = frame.check(new_secret())
    warn_once(ledger, noise)
    covered = covered_rows(ledger, rows)
    begun = begin_once(
        plan,
        ledger,
        noise,
        redraw=redraw,
        covered=covered,
        before_charge=lambda: require_room(ledger, plan, covered, total),
        total=total,
    ).with_left_out(over)
    out = held_out_rows(begun, frame, held_out)
    if request is not None:
        where, kept = kept_with(begun, frame, where, kept or {})

    def draw(secret: bytes, receipt: Receipt) -> Aggregate:
        counts, kept = GroupCounts(query.n_groups, query.n_classes), ~out & _within_cap(frame, secret, receipt.run_id)
        counts.add(where[kept], codes[kept])
        return _drawn(plan, query, declared, counts, secret, receipt)

    return Asked(answered(begun, ledger, draw), where, out, kept or {})


def _rows(where: NDArray[np.int64], query: Query, ids: ArrayLike | None) -> str:
    return rows_digest(where, query) if ids is None else set_digest(ids, where)


def _requested(request: Callable[[NDArray[np.intp] | None], str], ids: ArrayLike | None) -> str:
    return digest({"request": request(None if ids is None else id_order(ids)), "ids": "" if ids is None else set_digest(ids)})


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
    query : Histogram, Vote or Peer
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
    declared, ledger = declare(classes, checked(query).n_classes), as_ledger(ledger)
    check_account(ledger, dataset)
    if group == label:
        raise InvalidInput(
            f"Expected a public column of groups, got the label column {label!r}, whose counts would be exact. Name another."
        )
    reader, counts, rows = LabelReader(declared, label), GroupCounts(query.n_groups, query.n_classes), RowsDigest(query)
    for batch in _batches(source, label, group):
        where = _group_column(batch, group, query, reader.rows)
        counts.add(where, reader.codes(batch))
        rows.update(where)
    if not reader.rows:
        raise InvalidInput("Expected at least one row, got none.")
    query.require(counts.n_rows())
    warn_of_delta(query.spent_delta(), reader.rows)
    plan = plan_of(query, declared, rows.hexdigest(), dataset=dataset, column=label if column is None else column, inferred=inferred)
    warn_once(ledger, noise)
    begun = begin_once(plan, ledger, noise, redraw=redraw, covered=Covered(), before_charge=before_charge)
    return answered(begun, ledger, lambda secret, receipt: _drawn(plan, query, declared, counts, secret, receipt))


def _drawn(
    plan: AggregatePlan, query: Query, classes: tuple[object, ...], counts: GroupCounts, secret: bytes, receipt: Receipt
) -> Aggregate:
    """The answer from raw counts, with the words of a charged run."""
    key = derive_key(secret, purpose="aggregate", facts=key_facts(plan, receipt, query=query.to_dict()))
    return Aggregate(query, drawn(query, counts.table(), key, plan.max_rows_per_unit), counts.n_rows(), classes, receipt)


def _within_cap(frame: Frame, secret: bytes, run_id: str) -> NDArray[np.bool_]:
    """(n,) bool: the rows within their unit's cap."""
    units = frame.unit_codes(secret, run_id)
    if units is None:
        return np.ones(len(frame.ids), bool)
    words = one_word(derive_key(secret, purpose="unit-cap", facts=frame.facts(run_id)), frame.blocks(secret, run_id))
    return keep_within_cap(units, words, frame.plan.max_rows_per_unit)


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
