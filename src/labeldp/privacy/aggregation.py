# SPDX-License-Identifier: Apache-2.0
"""The door's other wing: raw labels of many rows go in, private answers about groups of them come out.

An answer is computed from raw counts, so it cannot be drawn again as a row's output can: its secret is never stored. Charge, draw, store,
settle: whoever dies between the charge and the store has spent, and gets nothing.
"""

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import digest
from labeldp.aggregates import Aggregate, Query
from labeldp.aggregates.result import check_groups
from labeldp.errors import InvalidInput, LedgerError
from labeldp.privacy.counting import GroupCounts, LabelReader
from labeldp.privacy.custody import AggregatePlan, Begun, Covered, begin_once
from labeldp.privacy.door import check_account, check_rows, classes_for, covered_rows, set_digest, warn_once
from labeldp.privacy.encode import declare, encode
from labeldp.privacy.ledger import Ledger
from labeldp.privacy.noise import CHUNK, Key, RowWords, SeededNoise, derive_key, new_secret, one_word, row_blocks
from labeldp.privacy.run import Frame, keep_within_cap

_OUTPUT = "aggregate.parquet"
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
) -> Aggregate:
    """Answer a query about the labels of groups of rows, once.

    Parameters
    ----------
    labels : (n,) array of class values
        Raw, private. Every value must be declared.
    query : Histogram or Vote
        Its epsilon and delta are the total of one unit: with `max_rows_per_unit` = m the noise is for m changed labels.
    groups : (n,) integers in 0..query.n_groups-1
        Public: which group each row is in, for example its cluster. It must not depend on these labels. Groups may be empty.
    classes : sequence of K values, optional
        The public list of class values. None: the codes 0..K-1 if the labels are integers, else read off the labels with a warning.
    dataset : str, optional
        Public name of the data set; a durable ledger requires it.
    column : str
        Name of the label column.
    ids : (n,) or (n, columns) array, optional
        Public, different ids of the rows. With them a repeat is recognised in any order, and disjoint rows do not add up.
    unit : (n,) array, optional
        Who each row is about; None protects each row by itself.
    max_rows_per_unit : int
        Rows of one unit that are counted; further ones, chosen by a secret key, are left out.
    ledger : Ledger, optional
        Durable record. None: nothing is recorded, which a warning says once.
    noise : SeededNoise, optional
        For tests and benchmarks on public data only: no guarantee at all.
    redraw : bool
        Draw again, and be charged again, though the same request has settled.

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
    declared, inferred = classes_for(labels, classes, _checked(query).n_classes)
    return answer_groups(
        labels,
        query,
        groups,
        classes=declared,
        inferred=inferred,
        dataset=dataset,
        column=column,
        ids=ids,
        unit=unit,
        max_rows_per_unit=max_rows_per_unit,
        ledger=ledger,
        noise=noise,
        redraw=redraw,
    )


def answer_groups(
    labels: ArrayLike,
    query: Query,
    groups: ArrayLike,
    *,
    classes: Sequence[object],
    inferred: bool = False,
    dataset: str | None = None,
    column: str = "label",
    ids: ArrayLike | None = None,
    unit: ArrayLike | None = None,
    unit_name: str = "unit",
    max_rows_per_unit: int = 1,
    ledger: Ledger | None = None,
    noise: SeededNoise | None = None,
    redraw: bool = False,
) -> Aggregate:
    """`aggregate` for estimators, which have settled the classes and know what a unit is called.

    Parameters
    ----------
    labels, query, groups, dataset, column, ids, unit, max_rows_per_unit, ledger, noise, redraw
        As in `aggregate`.
    classes : sequence of K values
    inferred : bool
        They were read off the labels, which the ledger notes.
    unit_name : str
        Name of the unit in receipts.
    """
    declared = declare(classes, _checked(query).n_classes)
    codes = encode(labels, declared)
    check_rows(codes, ids, unit, max_rows_per_unit)
    where = _groups_of(groups, query, len(codes))
    plan = _plan(
        query,
        declared,
        _rows_digest(where, query) if ids is None else set_digest(ids, where),
        dataset=dataset,
        column=column,
        inferred=inferred,
        unit="row" if unit is None else unit_name,
        max_rows_per_unit=max_rows_per_unit,
        units="" if unit is None else set_digest(np.arange(len(codes)) if ids is None else ids, unit),
    )
    check_account(ledger, dataset)
    frame = Frame(plan, declared, len(codes), ids, unit, ledger)
    frame.check(new_secret())
    warn_once(ledger, noise)

    def counted(secret: bytes, run_id: str) -> GroupCounts:
        counts, kept = GroupCounts(query.n_groups, query.n_classes), _within_cap(frame, secret, run_id)
        counts.add(where if kept is None else where[kept], codes if kept is None else codes[kept])
        return counts

    covered = covered_rows(ledger, plan, ids if unit is None else unit)
    return _answered(plan, query, declared, counted, begin_once(plan, ledger, noise, redraw=redraw, covered=covered), ledger)


def aggregate_batches(
    source: "str | Path | pa.Table | Iterable[pa.RecordBatch]",
    query: Query,
    *,
    label: str,
    group: str,
    classes: Sequence[object],
    dataset: str | None = None,
    column: str | None = None,
    ledger: Ledger | None = None,
    noise: SeededNoise | None = None,
    redraw: bool = False,
) -> Aggregate:
    """`aggregate` for tables of any length: one pass over record batches, memory for one batch and the counts.

    Parameters
    ----------
    source : path of a Parquet file, Arrow table, or iterable of record batches
        With a label and a group column; other columns are not read from Parquet.
    query : Histogram or Vote
    label, group : str
        Names of the columns; groups are whole numbers in 0..query.n_groups-1 without nulls.
    classes : sequence of K values
        The public list of class values.
    dataset, ledger, noise, redraw
        As in `aggregate`; every row is its own unit, and the spend adds to every other one of the column.
    column : str, optional
        Name under which the ledger keeps the labels; that of the label column by default.

    Returns
    -------
    Aggregate
        As `aggregate` of the same rows in the same order: a repeat of either is recognised by the other.
    """
    check_account(ledger, dataset)
    declared = declare(classes, _checked(query).n_classes)
    reader, counts, rows = LabelReader(declared, label), GroupCounts(query.n_groups, query.n_classes), _RowsDigest(query)
    for batch in _batches(source, label, group):
        where = _group_column(batch, group, query, reader.rows)
        counts.add(where, reader.codes(batch))
        rows.update(where)
    if not reader.rows:
        raise InvalidInput("Expected at least one row, got none.")
    plan = _plan(query, declared, rows.hexdigest(), dataset=dataset, column=label if column is None else column)
    warn_once(ledger, noise)
    begun = begin_once(plan, ledger, noise, redraw=redraw, covered=Covered())
    return _answered(plan, query, declared, lambda *_: counts, begun, ledger)


def _checked(query: Query) -> Query:
    if not isinstance(query, Query):
        raise InvalidInput(f"Expected a query, Histogram or Vote, got {type(query).__name__}. See labeldp.aggregates.")
    return query


def _plan(
    query: Query,
    classes: tuple[object, ...],
    rows: str,
    *,
    dataset: str | None,
    column: str,
    inferred: bool = False,
    unit: str = "row",
    max_rows_per_unit: int = 1,
    units: str = "",
) -> AggregatePlan:
    return AggregatePlan(
        dataset=dataset or "",
        column=column,
        unit=unit,
        max_rows_per_unit=_validate.integer(max_rows_per_unit=max_rows_per_unit, low=1),
        epsilon=query.epsilon,
        delta=query.spent_delta(max_rows_per_unit),
        laws=query.to_dict() | ({"classes_inferred": True} if inferred else {}),
        classes=digest({"classes": list(map(repr, classes))}),
        rows=rows,
        units=units,
    )


def _groups_of(groups: ArrayLike, query: Query, n_rows: int) -> NDArray[np.int64]:
    where = check_groups(groups, query.n_groups)
    if len(where) != n_rows:
        raise InvalidInput(f"Expected groups of {n_rows} rows, got {len(where)}.")
    return where


def _within_cap(frame: Frame, secret: bytes, run_id: str) -> NDArray[np.bool_] | None:
    """(n,) bool: the rows within their unit's cap; None for all of them."""
    units = frame.unit_codes(secret, run_id)
    if units is None:
        return None
    words = one_word(derive_key(secret, purpose="unit-cap", facts=frame.facts(run_id)), frame.blocks(secret, run_id))
    return keep_within_cap(units, words, frame.plan.max_rows_per_unit)


def _answered(
    plan: AggregatePlan,
    query: Query,
    classes: tuple[object, ...],
    counted: Callable[[bytes, str], GroupCounts],
    begun: Begun,
    ledger: Ledger | None,
) -> Aggregate:
    """Draw, store, settle; or what was stored before."""
    if begun.secret is None:
        return _stored(begun, ledger)
    run_id = begun.receipt.run_id
    counts = counted(begun.secret, run_id)
    facts = {"run_id": run_id, "plan": plan.identity, "query": query.to_dict()}
    values = _drawn(query, counts.table(), derive_key(begun.secret, purpose="aggregate", facts=facts), plan.max_rows_per_unit)
    answer = Aggregate(query, values, counts.n_rows(), classes, begun.receipt)
    if begun.store is not None and ledger is not None:
        begun.store.write(_OUTPUT, _as_file(answer))
        ledger.settle(run_id, begun.store.digest())
    return answer


def _drawn(query: Query, counts: NDArray[np.int64], key: Key, max_rows_per_unit: int) -> NDArray[np.int64]:
    """All values, some groups at a time: a stream of words for each cell."""
    step, width = max(1, CHUNK // query.n_classes), query.n_classes
    parts = []
    for start in range(0, query.n_groups, step):
        part = counts[start : start + step]
        words = RowWords(key, row_blocks(part.size, start * width))
        parts.append(query.release(part, words, max_rows_per_unit))
    return np.concatenate(parts)


def _stored(begun: Begun, ledger: Ledger | None) -> Aggregate:
    """The answer of a run that stored it; settles the run, if its process died before it could."""
    store, run = begun.store, begun.settled
    assert store is not None
    assert run is not None
    assert ledger is not None
    found, artefact = store.read(_OUTPUT), store.digest()
    if found is None or (run.state == "settled" and run.artefact != artefact):
        raise LedgerError(
            f"Expected the stored answer of run {run.run_id} (settled {run.settled_at}) in {store.folder}, but it is gone, or was changed. "
            "Restore it, or ask for a new, charged draw with redraw=True."
        )
    ledger.settle(run.run_id, artefact)
    import pyarrow.parquet as pq

    return Aggregate.from_table(pq.read_table(pa.BufferReader(found)))


def _as_file(answer: Aggregate) -> bytes:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(answer.to_table(), buffer)
    return buffer.getvalue()


class _RowsDigest:
    """Digest of which row, by its number, is in which group."""

    def __init__(self, query: Query) -> None:
        self._state, self._kind = hashlib.sha256(b"labeldp groups of rows"), "<u4" if query.n_groups <= 1 << 32 else "<u8"

    def update(self, groups: NDArray[np.int64]) -> None:
        self._state.update(groups.astype(self._kind).data)

    def hexdigest(self) -> str:
        return self._state.hexdigest()


def _rows_digest(groups: NDArray[np.int64], query: Query) -> str:
    rows = _RowsDigest(query)
    for start in range(0, len(groups), _BATCH):
        rows.update(groups[start : start + _BATCH])
    return rows.hexdigest()


def _batches(source: "str | Path | pa.Table | Iterable[pa.RecordBatch]", label: str, group: str) -> Iterator[pa.RecordBatch]:
    if isinstance(source, (str, Path)):
        import pyarrow.parquet as pq

        with pq.ParquetFile(source) as file:
            missing = [name for name in (label, group) if name not in file.schema_arrow.names]
            if missing:
                raise InvalidInput(f"Expected columns {label!r} and {group!r} in {source}, but it has no {missing[0]!r}.")
            yield from file.iter_batches(_BATCH, columns=[label, group])
    else:
        yield from source.to_batches() if isinstance(source, pa.Table) else source


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
