# SPDX-License-Identifier: Apache-2.0
"""Runs that a ledger does not know although their results lie beside it: it was set back, or lost, and would charge too little.

A charge looks for them in one listing of the runs' folder, and refuses. `adopt` counts them again, from what their folders say.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from labeldp.aggregates import Aggregate
from labeldp.errors import InvalidInput, LabelDPError, LedgerError
from labeldp.evidence import NoisyLabels
from labeldp.ledger._charge import Spending, name, now
from labeldp.ledger._events import LabelDraw
from labeldp.ledger._rows import FILE
from labeldp.ledger._rowset import RowSet
from labeldp.ledger._run_store import CHARGE, RunStore, unknown_runs
from labeldp.ledger._session import Session
from labeldp.receipt import Receipt

_AGGREGATE: Final = "aggregate.parquet"


@dataclass(frozen=True)
class Statement:
    """What the user says of runs whose folders say nothing.

    Attributes
    ----------
    dataset, column : str
    epsilon : float
        Of each of these runs, which then count for every row.
    """

    dataset: str
    column: str
    epsilon: float

    def body(self, run_id: str) -> dict[str, object]:
        """The entry of such a run."""
        event = LabelDraw({}, self.epsilon).to_dict()
        return _body(Receipt(run_id, self.dataset, self.column, "row", 1, self.epsilon, 0.0, True, True, event))


def adopt(session: Session, runs_dir: Path, stated: Statement | None, where: str) -> list[dict[str, object]]:
    """Write a charge for each run that the ledger does not know: under its own facts and rows, or for every row.

    Parameters
    ----------
    session : Session
        The only writer.
    runs_dir : Path
    stated : Statement, optional
        For runs whose folders say nothing.
    where : str
        The ledger, for messages.

    Returns
    -------
    Facts of each adopted run: run_id, dataset, column, unit, epsilon, state, and rows (None: every row).
    """
    bodies: dict[str, dict[str, object]] = {}
    silent: list[str] = []
    for run_id in unknown_runs(runs_dir, session.unknown):
        found = _read(RunStore(runs_dir / run_id)) or (None if stated is None else stated.body(run_id))
        silent += [run_id] if found is None else []
        bodies |= {} if found is None else {run_id: found}
    if silent:
        raise LedgerError(
            f"Expected the folders in {runs_dir} to say what their runs have spent, got {len(silent)} that say nothing ({silent[0]}). "
            f"Nothing was written to {where}. Say it for them: labeldp ledger adopt --dataset NAME --label COLUMN --epsilon E."
        )
    return [_adopted(session, RunStore(runs_dir / run_id), body) for run_id, body in bodies.items()]


def _adopted(session: Session, store: RunStore, body: dict[str, object]) -> dict[str, object]:
    dataset, column = str(body["dataset"]), str(body["column"])
    balance = session.balance(dataset, column)
    if balance.unit not in (None, body["unit"]):
        body = {key: value for key, value in body.items() if key != "rows"}  # its rows are other units: they cannot be told apart
    balance.apply(session.append(body | {"adopted": True, "at": now()}))
    names = {"run_id": body["run_id"], "dataset": dataset, "column": column}
    artefact = None if store.stored_half() is not None else _artefact(store)
    state = "charged"  # its secret is there: the same request can finish it
    if store.stored_half() is None:
        end = {"kind": "settle", "artefact": artefact} if artefact else {"kind": "abandon", "reason": "adopted without a whole result"}
        balance.apply(session.append(names | end | {"at": now()}))
        state = "settled" if artefact else "abandoned"
    session.keep(balance)
    rows = body.get("rows")
    count = rows["row"]["count"] if isinstance(rows, Mapping) and "row" in rows else None
    return names | {"unit": body["unit"], "epsilon": float(str(body["epsilon"])), "state": state, "rows": count}


def _read(store: RunStore) -> dict[str, object] | None:
    """The entry that a run's folder speaks for, or None."""
    kept = _json(store.read(CHARGE))
    if kept.get("run_id") == store.folder.name:
        try:
            facts = {key: kept[key] for key in ("run_id", "dataset", "column", "unit", "max_rows_per_unit", "event")}
            receipt = Receipt(**facts, epsilon=float(kept["epsilon"]), delta=float(kept["delta"]), recorded=True, secure=True)
            body = _body(receipt, str(kept["identity"]), repeatable=bool(kept["repeatable"]))
            return body | _rows(store, kept.get("rows"))
        except (LabelDPError, ValueError, KeyError, TypeError):
            pass
    for receipt in _receipts(store):
        if receipt.run_id == store.folder.name:
            try:
                return _body(receipt) | _rows(store, None)
            except (LabelDPError, ValueError, KeyError, TypeError):
                continue
    return None


def _body(receipt: Receipt, identity: str = "", *, repeatable: bool = False) -> dict[str, object]:
    """The entry of a charge; without its identity the request is not known again, and a repeat is a new charge."""
    spending = Spending(
        dataset=receipt.dataset,
        column=receipt.column,
        unit=receipt.unit,
        max_rows_per_unit=receipt.max_rows_per_unit,
        epsilon=receipt.epsilon,
        delta=receipt.delta,
        event=receipt.event,
        identity=identity or f"adopted {name(run_id=receipt.run_id)}",
        run_id=receipt.run_id,
        repeatable=repeatable,
    )
    return spending.body()


def _rows(store: RunStore, facts: object) -> dict[str, object]:
    """The facts of a whole row set, or nothing: then the run counts for every row."""
    data = store.read(FILE)
    if data is None:
        return {}
    try:
        whole = RowSet.from_bytes(data, str(facts["digest"]) if isinstance(facts, dict) else hashlib.sha256(data).hexdigest())
        return {"rows": whole.facts()}
    except (LabelDPError, ValueError, KeyError, TypeError):
        return {}


def _receipts(store: RunStore) -> list[Receipt]:
    """The receipts that a run's results carry."""
    import pyarrow.parquet as pq

    found: list[Receipt] = []
    for path in sorted(store.folder.iterdir()):
        try:
            if path.name == _AGGREGATE:
                found.append(Aggregate.from_table(pq.read_table(path)).receipt)
            elif path.suffix == ".parquet":
                found += NoisyLabels.load(path).receipts
            elif path.name.endswith("manifest.json"):
                found.append(Receipt.from_dict(_json(path.read_bytes())["receipt"]))
        except (LabelDPError, OSError, ValueError, KeyError, TypeError, pa.ArrowException):
            continue
    return found


def _artefact(store: RunStore) -> str | None:
    """The digest that the run settled with, where its results tell it; a repeat checks them against it."""
    if any(path.suffix == ".parquet" for path in store.folder.iterdir()):
        return store.digest()
    output = _json(store.read("manifest.json")).get("digests", {})
    return str(output["output"]) if isinstance(output, Mapping) and output.get("output") else None


def _json(data: bytes | None) -> dict[str, Any]:
    try:
        facts = json.loads(data or b"{}")
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def stated(dataset: str | None, column: str | None, epsilon: float | None) -> Statement | None:
    """What the user says, all of it or nothing."""
    if dataset is None and column is None and epsilon is None:
        return None
    if dataset is None or column is None or epsilon is None:
        raise InvalidInput("Expected dataset, column and epsilon together for runs whose folders say nothing, got some of them. Give all.")
    return Statement(name(dataset=dataset), name(column=column), epsilon)
