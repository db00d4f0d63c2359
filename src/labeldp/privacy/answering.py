# SPDX-License-Identifier: Apache-2.0
"""A private answer about groups of rows, from what is asked to what is stored: charge, draw, store, settle.

An answer is computed from raw counts, so it cannot be drawn again as a row's output can: its secret is never stored. Whoever dies between
the charge and the store has spent, and gets nothing.
"""

import hashlib
import io
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from labeldp._hash import digest
from labeldp._rounding import exact
from labeldp.aggregates import Aggregate, Query
from labeldp.aggregates.result import check_groups
from labeldp.errors import BudgetExceeded, InvalidInput, LabelDPWarning, LedgerError
from labeldp.privacy.custody import AggregatePlan, Begun, Covered, tell_of_repeat
from labeldp.privacy.ledger import Ledger
from labeldp.privacy.noise import CHUNK, Key, RowWords, derive_key, partition, row_blocks
from labeldp.privacy.run import Frame
from labeldp.receipt import Receipt

_OUTPUT = "aggregate.parquet"
_HELD_OUT, _GROUPS = "held-out", "groups"
_BATCH = 1 << 20


@dataclass(frozen=True, eq=False)
class Asked:
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
    kept: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)


def checked(query: object) -> Query:
    """The query, if it is one."""
    if not isinstance(query, Query):
        raise InvalidInput(f"Expected a query, Histogram, Vote or Peer, got {type(query).__name__}. See labeldp.aggregates.")
    return query


def plan_of(
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
    held_out: float = 0.0,
    id_name: str = "",
) -> AggregatePlan:
    """What makes a request for one answer the same request again; a cap that the query cannot be answered at is refused."""
    cap = query.require_cap(max_rows_per_unit)
    return AggregatePlan(
        dataset=dataset or "",
        column=column,
        unit=unit,
        max_rows_per_unit=cap,
        epsilon=query.epsilon,
        delta=query.spent_delta(cap),
        laws=query.to_dict() | ({"classes_inferred": True} if inferred else {}) | ({"held_out": held_out} if held_out else {}),
        classes=classes_digest(classes),
        rows=rows,
        units=units,
        id_name=id_name,
    )


def warn_of_delta(delta: float, n_rows: int) -> None:
    """Say aloud, before the charge, that a delta is so large that the labels of some rows may come out as they are."""
    if delta * n_rows >= 1:
        warnings.warn(
            f"Expected delta far below 1 over the number of rows, {1 / n_rows:.3g}, got delta={delta!r}: at 1 / n and above, a release may "
            "tell some row's label as it is and still have this delta. Take for example 1 / n^2.",
            LabelDPWarning,
            stacklevel=5,
        )


def classes_digest(classes: tuple[object, ...]) -> str:
    """Digest of the declared classes in their order."""
    return digest({"classes": list(map(repr, classes))})


def groups_of(groups: ArrayLike, query: Query, n_rows: int) -> NDArray[np.int64]:
    """The checked group of each row: (n_rows,)."""
    where = check_groups(groups, query.n_groups)
    if len(where) != n_rows:
        raise InvalidInput(f"Expected groups of {n_rows} rows, got {len(where)}.")
    return where


class RowsDigest:
    """Digest of which row, by its number, is in which group."""

    def __init__(self, query: Query) -> None:
        self._state, self._kind = hashlib.sha256(b"labeldp groups of rows"), "<u4" if query.n_groups <= 1 << 32 else "<u8"

    def update(self, groups: NDArray[np.int64]) -> None:
        """Add the next rows."""
        self._state.update(groups.astype(self._kind).data)

    def hexdigest(self) -> str:
        """SHA-256, hexadecimal."""
        return self._state.hexdigest()


def rows_digest(groups: NDArray[np.int64], query: Query) -> str:
    """The digest of all rows at once."""
    rows = RowsDigest(query)
    for start in range(0, len(groups), _BATCH):
        rows.update(groups[start : start + _BATCH])
    return rows.hexdigest()


def answered(begun: Begun, ledger: Ledger | None, draw: Callable[[bytes, Receipt], Aggregate]) -> Aggregate:
    """Draw, store, settle; or what was stored before.

    Parameters
    ----------
    begun : Begun
        Charged, or found.
    ledger : Ledger or None
    draw : function of (secret, receipt)
        Called once, if at all.
    """
    if begun.secret is None:
        return _stored(begun, ledger)
    answer = draw(begun.secret, begun.receipt)
    if begun.store is not None and ledger is not None:
        begun.store.write(_OUTPUT, _as_file(answer))
        ledger.settle(begun.receipt.run_id, begun.store.digest())
    return answer


def require_room(ledger: Ledger | None, plan: AggregatePlan, covered: Covered | None, total: float | None) -> None:
    """Refuse a first charge where the others of a total could not follow it on the same rows."""
    if ledger is None or total is None:
        return
    left = ledger.remaining(plan.dataset, plan.column, None if covered is None else covered.rows)
    if left < float("inf") and exact(left) < exact(total):
        raise BudgetExceeded(
            f"Expected epsilon <= {left!r}, which remains for these rows of dataset {plan.dataset!r}, column {plan.column!r} in "
            f"{ledger.location}; got epsilon={total!r} in two charges. Nothing was charged. Ask for less, or allow "
            "more with set_budget, or `labeldp ledger set-budget`."
        )


def held_out_rows(begun: Begun, frame: Frame, share: float) -> NDArray[np.bool_]:
    """(n,) bool: the rows that are not asked, by the run's secret, independent of labels; kept, since the secret is not."""
    if not share:
        return np.zeros(len(frame.ids), bool)
    stored = None if begun.store is None else begun.store.load_array(_HELD_OUT)
    if stored is not None:
        return frame.in_table_order(stored).astype(bool)
    if begun.secret is None:
        raise LedgerError(
            f"Expected which rows run {begun.receipt.run_id} did not ask in its folder, but it is gone. Restore it, or ask for a new, "
            "charged draw with redraw=True."
        )
    run_id = begun.receipt.run_id
    key = derive_key(begun.secret, purpose="partition", facts=frame.facts(run_id))
    rows = np.asarray(partition(key, frame.blocks(begun.secret, run_id), (share, 1.0 - share)) == 0)
    if begun.store is not None:
        begun.store.save_array(_HELD_OUT, frame.in_id_order(rows))
    return rows


def kept_with(
    begun: Begun, frame: Frame, groups: NDArray[np.int64], kept: Mapping[str, NDArray[np.generic]]
) -> tuple[NDArray[np.int64], Mapping[str, NDArray[np.generic]]]:
    """The groups that are asked, and what goes with them: what was kept, of a request that was answered before."""
    store = begun.store
    if store is None:
        return groups, kept
    if begun.secret is not None:
        store.save_array(_GROUPS, frame.in_id_order(groups))
        for name, array in kept.items():
            store.save_array(name, array)
    found = {name: store.load_array(name) for name in (_GROUPS, *kept)}
    if any(array is None for array in found.values()):
        raise LedgerError(
            f"Expected the groups that run {begun.receipt.run_id} asked in {store.folder}, but they are gone. Restore them, or ask for a "
            "new, charged draw with redraw=True."
        )
    groups = frame.in_table_order(np.asarray(found.pop(_GROUPS))).astype(np.int64)
    return groups, {name: np.asarray(array) for name, array in found.items()}


def key_facts(plan: AggregatePlan, receipt: Receipt, **more: object) -> Mapping[str, object]:
    """What makes the words of one run's draw its own."""
    return {"run_id": receipt.run_id, "plan": plan.identity} | more


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

    tell_of_repeat(begun.receipt)
    return replace(Aggregate.from_table(pq.read_table(pa.BufferReader(found))), receipt=begun.receipt)


def _as_file(answer: Aggregate) -> bytes:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(answer.to_table(), buffer)
    return buffer.getvalue()
