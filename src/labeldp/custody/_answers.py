# SPDX-License-Identifier: Apache-2.0
"""A private answer about groups of rows, from what is asked to what is stored: charge, draw, store, settle.

An answer is computed from raw counts, so it cannot be drawn again as a row's output can: its secret is never stored. Whoever dies between
the charge and the store has spent, and gets nothing.
"""

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from labeldp._hash import digest
from labeldp._rounding import exact
from labeldp.aggregates import Aggregate, Query
from labeldp.aggregates._result import check_groups
from labeldp.custody._batches import RunSecret
from labeldp.custody._charge import Charge, begin_once, warn_of_repeat
from labeldp.custody._encode import encode
from labeldp.custody._request import Account, PrivateColumn, Request
from labeldp.custody._row_ids import RowIds
from labeldp.custody._table_rows import TableRows, set_digest
from labeldp.errors import BudgetExceeded, InvalidInput, LabelDPWarning, LedgerError, warn
from labeldp.ledger._rowset import RowSet
from labeldp.noise._words import CHUNK, Key, RowWords, partition, row_blocks

_OUTPUT = "aggregate.parquet"
_HELD_OUT, _GROUPS = "held-out", "groups"
_BATCH = 1 << 20
_CELLS_CHUNK = 1 << 18  # rows whose cells fit the cache


@dataclass(frozen=True, eq=False)
class GroupQuestion:
    """What an estimator asks of groups of rows: public, and fixed before anything is charged.

    Attributes
    ----------
    query : Query
    groups : (n,) integers
        As in `aggregate`.
    held_out : float in [0, 1)
        Share of the rows, chosen by secret key, that are not asked, so that something can be measured on them.
    total : float or None
        Epsilon of this charge and of those that are to follow it on these rows: where it is not all left, nothing is charged.
    origin : function of the order of the rows, or None
        Gives the digest of what the groups follow from. With a ledger a request is then known by it, and not by the groups, which need
        not come out the same: they are kept with the answer, and a repeat gets those.
    kept : mapping of arrays
        Public facts that go with the groups, kept and read as they are.
    """

    query: Query
    groups: ArrayLike
    held_out: float = 0.0
    total: float | None = None
    origin: Callable[[NDArray[np.intp] | None], str] | None = None
    kept: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class GroupAnswer:
    """An answer, and which rows it is about.

    Attributes
    ----------
    answer : Aggregate
    groups : (n,) int64
        The group of each row, asked or not.
    held_out : (n,) bool
        Rows that were not asked.
    kept : mapping of arrays
        What goes with the groups.
    """

    answer: Aggregate
    groups: NDArray[np.int64]
    held_out: NDArray[np.bool_]
    kept: Mapping[str, NDArray[np.generic]]


def answer_groups(
    labels: ArrayLike, question: GroupQuestion, classes: Sequence[object], account: Account, given: RowIds, *, inferred: bool = False
) -> GroupAnswer:
    """Ask the labels of groups of rows once, and keep the answer.

    Parameters
    ----------
    labels : (n,) array of class values, raw
    question : GroupQuestion
    classes : sequence of K values
    account : Account
    given : RowIds
        Ids and units of the rows.
    inferred : bool
        The classes were read off the labels, which the ledger notes.
    """
    query = checked(question.query)
    column = account.private_column(classes, given, query.n_classes)
    codes = encode(labels, column.values)
    del labels
    rows = TableRows(given, len(codes), column)
    rows.check_distinct()
    groups = groups_of(question.groups, query, len(codes))
    query.require(np.bincount(groups, minlength=query.n_groups), units=given.unit is not None)
    query.require_cap(account.max_rows_per_unit)
    warn_of_delta(query.spent_delta(account.max_rows_per_unit), len(groups))
    by_origin = question.origin is not None and account.ledger is not None
    request = query_request(
        query,
        column,
        rows=_origin_digest(question, rows) if by_origin else groups_digest(groups, query, rows),
        units=rows.units_digest,
        id_name=given.id_name,
        noted=({"classes_inferred": True} if inferred else {}) | ({"held_out": question.held_out} if question.held_out else {}),
    )
    account.check()
    over, coverage = rows.over_the_cap, rows.coverage(account.ledger)
    charge = begin_once(
        request, account, coverage=coverage, before_charge=lambda: _require_room(account, coverage, question.total), total=question.total
    )
    charge = replace(charge, receipt=replace(charge.receipt, rows_over_the_cap=over))
    held_out = _held_out_rows(charge, rows, question.held_out)
    groups, kept = (groups, question.kept) if question.origin is None else _kept_with(charge, rows, groups, question.kept)

    def draw(secret: RunSecret) -> Aggregate:
        counts, asked = GroupCounts(query.n_groups, query.n_classes), ~held_out & rows.within_cap(secret)
        counts.add(groups[asked], codes[asked])
        return drawn_answer(request, query, counts, charge, secret)

    return GroupAnswer(answered(charge, draw), groups, held_out, kept)


def checked(query: object) -> Query:
    """The query, if it is one."""
    if not isinstance(query, Query):
        raise InvalidInput(f"Expected a query, such as Histogram or Vote, got {type(query).__name__}. See labeldp.aggregates.")
    return query


def query_request(
    query: Query, column: PrivateColumn, *, rows: str, units: str = "", id_name: str = "", noted: Mapping[str, object] | None = None
) -> Request:
    """The request for one answer; a cap that the query cannot be answered at is refused.

    Parameters
    ----------
    query : Query
    column : PrivateColumn
    rows, units, id_name : str
        As in `Request`.
    noted : mapping, optional
        Further public facts that make requests different.
    """
    cap = query.require_cap(column.max_rows_per_unit)
    asked = query.to_dict() | dict(noted or {})
    return Request(column, query.epsilon, asked, rows=rows, units=units, delta=query.spent_delta(cap), id_name=id_name, of_groups=True)


def warn_of_delta(delta: float, n_rows: int) -> None:
    """Say aloud, before the charge, that a delta is so large that the labels of some rows may come out as they are."""
    if delta * n_rows >= 1:
        warn(
            LabelDPWarning(
                f"Expected delta far below 1 over the number of rows, {1 / n_rows:.3g}, got delta={delta!r}: at 1 / n and above, a release "
                "may tell some row's label as it is and still have this delta. Take for example 1 / n^2."
            )
        )


def groups_of(groups: ArrayLike, query: Query, n_rows: int) -> NDArray[np.int64]:
    """The checked group of each row: (n_rows,)."""
    where = check_groups(groups, query.n_groups)
    if len(where) != n_rows:
        raise InvalidInput(f"Expected groups of {n_rows} rows, got {len(where)}.")
    return where


class GroupsDigest:
    """Digest of which row, by its number, is in which group."""

    def __init__(self, query: Query) -> None:
        self._state, self._kind = hashlib.sha256(b"labeldp groups of rows"), "<u4" if query.n_groups <= 1 << 32 else "<u8"

    def update(self, groups: NDArray[np.int64]) -> None:
        """Add the next rows."""
        for start in range(0, len(groups), _BATCH):
            self._state.update(groups[start : start + _BATCH].astype(self._kind).data)

    def hexdigest(self) -> str:
        """SHA-256, hexadecimal."""
        return self._state.hexdigest()


def groups_digest(groups: NDArray[np.int64], query: Query, rows: TableRows) -> str:
    """Digest of which row is in which group: by their ids, or by their numbers."""
    if rows.explicit:
        return set_digest(rows.given.ids, groups)  # type: ignore[arg-type]  # explicit ids are not None
    found = GroupsDigest(query)
    found.update(groups)
    return found.hexdigest()


def _origin_digest(question: GroupQuestion, rows: TableRows) -> str:
    assert question.origin is not None
    return digest({"request": question.origin(rows.by_id() if rows.explicit else None), "ids": rows.digest})


def _require_room(account: Account, coverage: RowSet | None, total: float | None) -> None:
    """Refuse a first charge where the others of a total could not follow it on the same rows."""
    ledger = account.ledger
    if ledger is None or total is None:
        return
    left = ledger.remaining(str(account.dataset), account.column, coverage)
    if left < float("inf") and exact(left) < exact(total):
        raise BudgetExceeded(
            f"Expected epsilon <= {left!r}, which remains for these rows of dataset {account.dataset!r}, column {account.column!r} in "
            f"{ledger.location}; got epsilon={total!r} in two charges. Nothing was charged. Ask for less, or allow "
            "more with set_budget, or `labeldp ledger set-budget`."
        )


def _held_out_rows(charge: Charge, rows: TableRows, share: float) -> NDArray[np.bool_]:
    """(n,) bool: the rows that are not asked, by the run's secret, independent of labels; kept, since the secret is not."""
    if not share:
        return np.zeros(len(rows), bool)
    stored = None if charge.store is None else charge.store.load_array(_HELD_OUT)
    if stored is not None:
        return rows.in_table_order(stored).astype(bool)
    if charge.secret is None:
        raise LedgerError(
            f"Expected which rows run {charge.run_id} did not ask in its folder, but it is gone. Restore it, or ask for a new, "
            "charged draw with redraw=True."
        )
    held_out = np.asarray(partition(charge.secret.key("partition"), rows.blocks(charge.secret), (share, 1.0 - share)) == 0)
    if charge.store is not None:
        charge.store.save_array(_HELD_OUT, rows.in_id_order(held_out))
    return held_out


def _kept_with(
    charge: Charge, rows: TableRows, groups: NDArray[np.int64], kept: Mapping[str, NDArray[np.generic]]
) -> tuple[NDArray[np.int64], Mapping[str, NDArray[np.generic]]]:
    """The groups that are asked, and what goes with them: what was kept, of a request that was answered before."""
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
            f"Expected the groups that run {charge.run_id} asked in {store.folder}, but they are gone. Restore them, or ask for a "
            "new, charged draw with redraw=True."
        )
    groups = rows.in_table_order(np.asarray(found.pop(_GROUPS))).astype(np.int64)
    return groups, {name: np.asarray(array) for name, array in found.items()}


# Drawing, and what is stored ------------------------------------------------------------------------------------------------------------


def drawn_answer(request: Request, query: Query, counts: "GroupCounts", charge: Charge, secret: RunSecret) -> Aggregate:
    """The answer from raw counts, with the words of a charged run."""
    key = secret.answer_key("aggregate", request.identity, query=query.to_dict())
    values = drawn(query, counts.table(), key, request.column.max_rows_per_unit)
    return Aggregate(query, values, counts.n_rows(), request.column.values, charge.receipt)


def drawn(query: Query, counts: NDArray[np.int64], key: Key, max_rows_per_unit: int) -> NDArray[np.int64]:
    """All values, some groups at a time, each with streams of words of its own."""
    ends = np.append(0, np.cumsum(query.streams(counts.sum(axis=1))))
    parts, start = [], 0
    while start < query.n_groups:
        stop = max(start + 1, int(np.searchsorted(ends, ends[start] + CHUNK, side="right")) - 1)
        words = RowWords(key, row_blocks(int(ends[stop] - ends[start]), int(ends[start])))
        parts.append(query.release(counts[start:stop], words, max_rows_per_unit))
        start = stop
    return np.concatenate(parts)


def answered(charge: Charge, draw: Callable[[RunSecret], Aggregate]) -> Aggregate:
    """Draw, store, settle; or what was stored before. `draw` is called once, if at all."""
    if charge.secret is None:
        return _stored(charge)
    answer = draw(charge.secret)
    if charge.store is not None:
        charge.store.write(_OUTPUT, _as_file(answer))
    charge.settle()
    return answer


def _stored(charge: Charge) -> Aggregate:
    """The answer of a run that stored it; settles the run, if its process died before it could."""
    import pyarrow.parquet as pq

    store, run, ledger = charge.store, charge.settled, charge.ledger
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
    warn_of_repeat(charge.receipt)
    return replace(Aggregate.from_table(pq.read_table(pa.BufferReader(found))), receipt=charge.receipt)


def _as_file(answer: Aggregate) -> bytes:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(answer.to_table(), buffer)
    return buffer.getvalue()


# Raw counts, which never leave custody ---------------------------------------------------------------------------------------------------


class GroupCounts:
    """How often each class occurs in each group: raw, so it is neither shown nor stored."""

    def __init__(self, n_groups: int, n_classes: int) -> None:
        self._shape = n_groups, n_classes
        self._cells = np.zeros(n_groups * n_classes, np.int64)

    def __repr__(self) -> str:
        return f"GroupCounts{self._shape}"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Raw counts of labels are never pickled. Pass the private answer on instead.")

    def add(self, groups: NDArray[np.int64], codes: NDArray[np.integer]) -> None:
        """Count rows: (n,) groups and (n,) class codes, both checked."""
        step = max(_CELLS_CHUNK, 2 * len(self._cells))
        for start in range(0, len(codes), step):
            cells = groups[start : start + step] * self._shape[1]
            np.add(cells, np.asarray(codes[start : start + step]), out=cells, casting="unsafe")  # codes are small, whatever their type
            self._cells += np.bincount(cells, minlength=len(self._cells))

    def table(self) -> NDArray[np.int64]:
        """(n_groups, K) raw counts, for a query's release alone."""
        return np.asarray(self._cells.reshape(self._shape))

    def n_rows(self) -> NDArray[np.int64]:
        """(n_groups,) rows counted: public, as it does not depend on the labels."""
        return np.asarray(self.table().sum(axis=1))


class LabelReader:
    """Class codes of an Arrow label column, batch after batch; no message shows a label.

    Parameters
    ----------
    classes : sequence of K values
    label : str
        Name of the column.
    """

    def __init__(self, classes: Sequence[object], label: str) -> None:
        self._classes, self._label = tuple(classes), label
        self._are_codes = self._classes == tuple(range(len(self._classes)))
        self.rows = 0
        """Rows read so far."""

    def codes(self, batch: pa.RecordBatch) -> NDArray[np.integer]:
        """(n,) codes in 0..K-1 of a batch's rows."""
        if self._label not in batch.schema.names:
            raise InvalidInput(f"Expected a label column {self._label!r}, got columns {', '.join(batch.schema.names)}.")
        column = batch.column(self._label)
        if column.null_count:
            self._refuse(np.asarray(pc.is_null(column)))
        if pa.types.is_dictionary(column.type):
            codes: NDArray[np.integer] = self._searched(column.dictionary).take(column.indices.to_numpy())
        else:
            codes = column.to_numpy() if self._are_codes and pa.types.is_integer(column.type) else self._searched(column)
        bad = bool(len(codes)) and not (codes.min() >= 0 and codes.max() < len(self._classes))
        if bad:
            self._refuse((codes < 0) | (codes >= len(self._classes)))
        self.rows += len(codes)
        return codes

    def _searched(self, column: pa.Array) -> NDArray[np.int32]:
        try:
            values = pa.array(self._classes, column.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise InvalidInput(
                f"Expected classes of the type of label column {self._label!r}, which is {column.type}. Declare them as such values."
            ) from None
        return np.asarray(pc.fill_null(pc.index_in(column, value_set=values), -1))

    def _refuse(self, bad: NDArray[np.bool_]) -> NoReturn:
        rows = np.flatnonzero(bad)
        raise InvalidInput(
            f"Expected every label to be one of the {len(self._classes)} declared classes, but row {self.rows + rows[0]} is not (the "
            "first is row 0). Declare the class, or give missing labels a class of their own."
        )
