# SPDX-License-Identifier: Apache-2.0
"""Ways to have rows released twice while the ledger takes them for different rows: none may make it count less than was spent."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import labeldp as ldp
from labeldp.app import stage
from labeldp.privacy.ledger_repair import orphans, repair
from labeldp.privacy.ledger_store import SqliteStore

N = 20_000  # so many names that a filter takes some of them for known, and they are looked up


def names(start: int, stop: int) -> list[str]:
    return [f"visit-{i:08d}" for i in range(start, stop)]


def write(path: Path, **columns: object) -> Path:
    n = len(next(iter(columns.values())))  # type: ignore[arg-type]
    pq.write_table(pa.table({**columns, "bought": np.arange(n) % 2}), path)
    return path


def release(source: Path, ledger: ldp.Ledger, row: object = "row", **options: object) -> Path:
    spec = ldp.ReleaseSpec("bought", [0, 1], 1.0, id=row, dataset="visits", **options)  # type: ignore[arg-type]
    return Path(ldp.release(source, source.with_name(f"noisy-{source.name}"), spec, ledger).path)


def test_another_table_in_an_outputs_place_proves_nothing(tmp_path: Path) -> None:
    ledger = ldp.Ledger(tmp_path / "l.db", budget=1.0)
    out = release(write(tmp_path / "a.parquet", row=names(0, N)), ledger)
    write(out, row=names(5 * N, 6 * N))
    with pytest.raises(ldp.BudgetExceeded):
        release(write(tmp_path / "b.parquet", row=names(N - 10, N + 10)), ledger)
    assert ledger.spent("visits", "bought") == 1.0


def test_another_table_in_a_stages_place_proves_nothing(tmp_path: Path) -> None:
    ledger, source = ldp.Ledger(tmp_path / "l.db", budget=1.0), write(tmp_path / "a.parquet", row=names(0, N))
    facts = {"label": "bought", "classes": [0, 1], "epsilon": 1.0, "id": "row", "dataset": "visits", "parts": (0.5, 0.5)}
    stage.plan(tmp_path / "plan", law="rr", ledger=ledger, **facts)  # type: ignore[arg-type]
    for number in (1, 2):
        stage.release(tmp_path / "plan", source, number, tmp_path / f"{number}.parquet")
    mine = pq.read_table(tmp_path / "2.parquet").column("row").to_pylist()[:10]
    write(tmp_path / "2.parquet", row=names(5 * N, 6 * N))
    with pytest.raises(ldp.BudgetExceeded):
        release(write(tmp_path / "b.parquet", row=mine + names(N, N + 10)), ledger)


def test_one_column_whose_name_reads_like_two_is_another_space(tmp_path: Path) -> None:
    ledger = ldp.Ledger(tmp_path / "l.db", budget=1.0)
    release(write(tmp_path / "a.parquet", day=names(0, 9), shop=names(0, 9)), ledger, ("day", "shop"))
    with pytest.raises(ldp.BudgetExceeded):
        release(write(tmp_path / "b.parquet", **{"day,shop": names(0, 9)}), ledger, "day,shop")


@pytest.mark.parametrize(
    "ids",
    [
        np.array([b"b", b"c"]),
        pa.array([b"b", b"c"]),
        pa.array(["b", "c"]).dictionary_encode(),
        [("b",), ("c",)],
        np.array([["b"], ["c"]]),
        pa.array([b"b", b"c"], pa.binary(1)),
    ],
    ids=["bytes", "binary", "dictionary", "tuples", "column", "fixed"],
)
def test_names_of_another_type_may_be_the_same_rows(tmp_path: Path, ids: object) -> None:
    ledger, law = ldp.Ledger(tmp_path / "l.db", budget=1.0), ldp.RandomizedResponse(2, 1.0)
    ldp.privatize([0, 1], law, dataset="d", ids=["a", "b"], ledger=ledger)
    with pytest.raises(ldp.BudgetExceeded):
        ldp.privatize([1, 1], law, dataset="d", ids=ids, ledger=ledger)
    ldp.privatize([1, 1], law, dataset="d", ids=["d", "e"], ledger=ledger)


@pytest.mark.parametrize("ids", [[("2", "b"), ("3", "c")], [(b"2", b"b"), (b"3", b"c")]], ids=["text", "bytes"])
def test_numbers_as_text_may_be_the_same_rows(tmp_path: Path, ids: object) -> None:
    ledger, law = ldp.Ledger(tmp_path / "l.db", budget=1.0), ldp.RandomizedResponse(2, 1.0)
    ldp.privatize([0, 1], law, dataset="d", ids=[(1, "a"), (2, "b")], ledger=ledger)
    with pytest.raises(ldp.BudgetExceeded):
        ldp.privatize([1, 1], law, dataset="d", ids=ids, ledger=ledger)
    ldp.privatize([1, 1], law, dataset="d", ids=[(2, "a"), (1, "b")], ledger=ledger)


@pytest.mark.parametrize("of", ["an entry of another account", "the opening"])
def test_a_forged_standing_is_not_believed_and_is_seen(tmp_path: Path, of: str) -> None:
    path = tmp_path / "l.db"
    ledger, law = ldp.Ledger(path), ldp.RandomizedResponse(2, 1.0)
    ldp.privatize([0, 1], law, dataset="mine", ids=[1, 2], ledger=ledger)
    ldp.privatize([0, 1], law, dataset="other", ids=[1, 2], ledger=ledger)
    assert ledger.verify() == []
    entry = ledger.history()[0 if of == "the opening" else -1]
    store = SqliteStore(path)
    with store.writing({}) as session:
        true = session.standing("mine", "label")
        session.keep(replace(true, seq=int(str(entry["seq"])), head=str(entry["hash"]), total=true.total * 0, runs=0))
    with pytest.raises(ldp.BudgetExceeded):
        ldp.privatize([1, 1], law, dataset="mine", ids=[1, 2], ledger=ledger, redraw=True)


def test_a_ledger_that_was_set_back_is_seen_and_repair_keeps_the_traces(tmp_path: Path) -> None:
    ledger = ldp.Ledger(tmp_path / "l.db", budget=1.0)
    release(write(tmp_path / "a.parquet", row=np.arange(9)), ledger)
    shutil.copy(tmp_path / "l.db", tmp_path / "backup.db")
    release(write(tmp_path / "b.parquet", row=np.arange(9, 18)), ledger)
    ldp.privatize([0, 1], ldp.RandomizedResponse(2, 1.0), dataset="other", ids=[30, 31], ledger=ledger)
    assert ledger.verify() == []
    for name in ("l.db-wal", "l.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup.db", tmp_path / "l.db")
    for _ in range(2):
        assert [problem for problem in ledger.verify() if "set back" in problem] == ledger.verify() and len(ledger.verify()) == 2
        found = orphans(ledger, minutes=1e-9)
        assert repair(ledger, found) == found == []
