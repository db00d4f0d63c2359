# SPDX-License-Identifier: Apache-2.0
"""Ledger files that are broken, foreign or out of reach: one clear LedgerError, and nothing is
overwritten."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import runs

from labeldp.errors import LedgerError
from labeldp.ledger import _database as ledger_store
from labeldp.ledger._database import LabelDraw
from labeldp.ledger._ledger import Ledger
from labeldp.noise._words import derive_key, new_run_id, new_secret
from labeldp.receipt import Receipt


def charge(ledger: Ledger, **facts: str) -> Receipt:
    event = LabelDraw({"law": "rr"}, 0.5).to_dict()
    given = {"dataset": "d", "column": "y", "identity": "i", "run_id": new_run_id()} | facts
    return runs.charge(ledger, epsilon=0.5, event=event, **given)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A ledger with a few charges."""
    made = Ledger(tmp_path / "ledger.sqlite", budget=100.0)
    for _ in range(5):
        charge(made)
    return made


def text(path: Path) -> None:
    path.write_text("not a database, but longer than a header of one would be: " * 20)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE entries (seq)")
    connection.close()


def newer(path: Path, by: int = 1) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {ledger_store.VERSION + by}")
    connection.close()


def older(path: Path) -> None:
    newer(path, by=-1)


def no_wal(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def smeared(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\x5a" * (len(data) - 4096)
    path.write_bytes(data)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


BROKEN: list[Callable[[Path], None]] = [
    text,
    empty,
    foreign,
    newer,
    older,
    no_wal,
    half,
    smeared,
    folder,
]


@pytest.mark.parametrize("harm", BROKEN, ids=lambda harm: harm.__name__)
def test_broken_files(ledger: Ledger, harm: Callable[[Path], None]) -> None:
    path = Path(ledger.location)
    harm(path)
    before = path.read_bytes() if path.is_file() else None
    for call in (
        lambda: charge(ledger),
        lambda: ledger.spent("d", "y"),
        ledger.runs,
        ledger.history,
        ledger.verify,
    ):
        with pytest.raises(LedgerError, match="Expected") as caught:
            call()
        assert str(path) in str(caught.value)
        assert len(str(caught.value)) < 400
        assert "\n" not in str(caught.value)
    assert before is None or path.read_bytes() == before


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="Nothing was written"):
        charge(Ledger(tmp_path / "file" / "ledger.sqlite"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(LedgerError, match="Nothing was written"):
        charge(Ledger(tmp_path / "locked" / "ledger.sqlite"))


def test_a_full_disk_before_the_charge_is_on_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database may not grow: the charge raises, and nothing of it is left."""
    real = ledger_store._connect

    def limited(path: Path) -> sqlite3.Connection:
        connection = real(path)
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(ledger_store, "_connect", limited)
    done = [run.run_id for run in ledger.runs()]

    def until_full() -> None:
        while len(done) < 1000:
            done.append(charge(ledger).run_id)

    with pytest.raises(LedgerError, match="full"):
        until_full()
    assert [run.run_id for run in ledger.runs()] == done
    monkeypatch.undo()
    assert ledger.verify() == []
    charge(ledger)


def test_a_failed_creation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(LedgerError, match="No space left"):
        charge(Ledger(tmp_path / "ledger.sqlite"))
    assert list(tmp_path.iterdir()) == []


def test_creation_never_replaces_a_ledger(ledger: Ledger) -> None:
    """Another process made the file in between."""
    ledger_store._create(Path(ledger.location), {"kind": "open"})
    assert len(ledger.runs()) == 5


def test_no_secret_reaches_the_file(tmp_path: Path) -> None:
    secret = new_secret()
    ledger = Ledger(tmp_path / "ledger.sqlite")
    key = derive_key(secret, purpose="order", facts={})
    receipt = charge(ledger)
    with pytest.raises(Exception, match="Expected"):
        runs.charge(
            ledger,
            dataset="d",
            column="y",
            epsilon=0.5,
            event=LabelDraw({"law": "rr", "key": key}, 0.5).to_dict(),
            identity="i",
            run_id=new_run_id(),
        )
    ledger.settle(receipt.run_id, "digest")
    content = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for material in (secret, key.material("RowWords")):
        assert material not in content
        assert material.hex().encode() not in content


def test_names_cannot_inject(ledger: Ledger) -> None:
    """Names go through parameters and JSON escapes; the worst ones are names like any other."""
    for name in ("'; DROP TABLE entries; --", '"', "\\", '{"a": 1}', "$.dataset", "%", "日本語 🎲"):
        charge(ledger, dataset=name, column=name)
        assert ledger.spent(name, name) == 0.5
        assert [run.receipt.dataset for run in ledger.runs(name)] == [name]
    assert ledger.verify() == []
