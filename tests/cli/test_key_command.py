# SPDX-License-Identifier: Apache-2.0
"""`labeldp key` and `--key`: a secret is created, used and destroyed, and no command ever shows
it."""

import json
import stat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import run
from tests.runs import table_pin

import labeldp as ldp
from labeldp.custody._stream import TableDraw
from labeldp.ledger._run_store import RunStore
from labeldp.noise._secrets import KeySource, key_id


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "secure" / "release.key"
    assert run("key", path)[0] == 0
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    path = tmp_path / "in.parquet"
    pq.write_table(
        pa.table(
            {
                "patient": np.arange(300),
                "age": rng.integers(20, 90, 300),
                "status": rng.choice(["ill", "well"], 300),
            }
        ),
        path,
    )
    return path


def release(table: Path, *more: object) -> tuple[int, str, str]:
    facts = (
        "--label",
        "status",
        "--epsilon",
        1,
        "--classes",
        "ill,well",
        "--id",
        "patient",
        "--ledger",
        table.with_name("ledger.sqlite"),
    )
    return run("release", table, *facts, *more)


def kept_ids(table: Path) -> list[str | None]:
    """Which release secret each run was charged under."""
    ledger = ldp.Ledger(table.with_name("ledger.sqlite"))
    return [RunStore(ledger.run_dir(each.run_id)).key_id() for each in ledger.runs()]


def crashed(table: Path, key: Path) -> str:
    """Id of a run that was charged and never finished."""
    ledger = ldp.Ledger(table.with_name("ledger.sqlite"), key=key)
    unfinished = table_pin(
        ldp.RandomizedResponse(2, 1.0),
        classes=["a", "b"],
        dataset="other",
        column="y",
        ledger=ledger,
    )
    unfinished.add(np.zeros(10, np.int32), ids=np.arange(10))
    return unfinished.charge().receipt.run_id


def test_create_says_where_and_never_what(tmp_path: Path) -> None:
    path = tmp_path / "new" / "release.key"
    code, said, _ = run("key", path, "--json")
    assert code == 0
    facts = json.loads(said)
    assert facts == {
        "path": str(path),
        "source": f"file:{path}",
        "key_id": key_id(KeySource.of(path).fetch()),
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_text()
    assert before.strip() not in said
    code, _, error = run("key", path)
    assert code == 5
    assert "never overwritten" in error
    assert path.read_text() == before
    code, said, _ = run("key", tmp_path / "second.key")
    assert f"--key file:{tmp_path}/second.key" in said
    assert (tmp_path / "second.key").read_text().strip() not in said


def test_no_command_shows_a_key(key: Path) -> None:
    assert run("key", key, "--show")[0] == 2 and run("key", key, "--force")[0] == 2 and key.exists()


def test_release_with_a_key_and_without_one(
    table: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = key_id(KeySource.of(key).fetch())
    assert release(table, "--out", tmp_path / "a.parquet", "--key", f"file:{key}")[0] == 0
    ldp.Ledger(table.with_name("ledger.sqlite")).set_budget("in", "status", 9.0)
    assert release(table, "--out", tmp_path / "b.parquet", "--redraw")[0] == 0
    monkeypatch.setenv("LABELDP_KEY", f"file:{key}")
    assert release(table, "--out", tmp_path / "c.parquet", "--redraw")[0] == 0
    monkeypatch.setenv("HELD", "1f" * 16 + "0123456789abcdef" * 2)
    assert release(table, "--out", tmp_path / "d.parquet", "--redraw", "--key", "env:HELD")[0] == 0
    assert kept_ids(table) == [named, None, named, key_id(KeySource("env:HELD").fetch())]


def test_train_with_a_key(
    table: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = (
        "--label",
        "status",
        "--epsilon",
        1,
        "--classes",
        "ill,well",
        "--id",
        "patient",
        "--ledger",
        table.with_name("ledger.sqlite"),
    )
    monkeypatch.setenv("LABELDP_KEY", f"file:{key}")
    assert run("train", table, *facts, "--out", tmp_path / "model", "--model", "linear")[0] == 0
    assert kept_ids(table) == [key_id(KeySource.of(key).fetch())]


@pytest.mark.parametrize("variable", [False, True])
def test_a_secret_in_the_place_of_a_source_is_not_shown(
    table: Path, key: Path, variable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = key.read_text().strip()
    if variable:
        monkeypatch.setenv("LABELDP_KEY", secret)
    code, said, error = release(
        table, "--out", table.with_name("out.parquet"), *(() if variable else ("--key", secret))
    )
    assert code == 2
    assert "Expected a key source" in " ".join(error.replace("│", " ").split())
    assert secret[:20] not in said + error
    assert not ldp.Ledger(table.with_name("ledger.sqlite")).runs()


def test_a_key_that_is_not_there_charges_nothing(table: Path, key: Path) -> None:
    key.chmod(0o644)
    code, _, error = release(table, "--out", table.with_name("out.parquet"), "--key", f"file:{key}")
    assert code == 5
    assert f"chmod 600 {key}" in error
    code, _, error = release(
        table, "--out", table.with_name("out.parquet"), "--key", "file:none", "--json"
    )
    assert code == 5
    assert not ldp.Ledger(table.with_name("ledger.sqlite")).runs()


def test_destroy_waits_for_the_runs_that_need_the_key(
    table: Path, key: Path, tmp_path: Path
) -> None:
    first, second = crashed(table, key), crashed(table, key)
    assert first == second, "the same request is the same run"
    place = table.with_name("ledger.sqlite")
    code, _, error = run("key", key, "--destroy", "--ledger", place)
    assert code == 5
    assert first in error
    assert key.exists()
    half = ldp.Ledger(place).run_dir(first) / "secret"
    assert half.exists()
    code, said, _ = run("ledger", "repair", "--abandon", first, "--ledger", place, "--json")
    assert (code, json.loads(said)["state"]) == (0, "abandoned")
    assert not half.exists()
    assert run("ledger", "repair", "--abandon", first, "--ledger", place)[0] == 0, (
        "again has no effect"
    )
    assert run("ledger", "repair", "--abandon", "0" * 32, "--ledger", place)[0] == 5
    code, said, _ = run("key", key, "--destroy", "--ledger", place, "--json")
    assert code == 0
    assert json.loads(said)["destroyed"] is True
    assert not key.exists()


def test_destroy_does_not_wait_for_others(table: Path, key: Path, tmp_path: Path) -> None:
    crashed(table, key)
    assert run("key", tmp_path / "other.key")[0] == 0
    assert (
        release(
            table, "--out", tmp_path / "out.parquet", "--key", f"file:{tmp_path / 'other.key'}"
        )[0]
        == 0
    )
    # its run has settled
    assert (
        run(
            "key", tmp_path / "other.key", "--destroy", "--ledger", table.with_name("ledger.sqlite")
        )[0]
        == 0
    )
    assert release(table, "--out", tmp_path / "out.parquet")[0] == 0  # and is repeated without it
    assert len(kept_ids(table)) == 2


def test_destroyed_by_force_the_run_can_never_be_finished(table: Path, key: Path) -> None:
    out = ("--out", table.with_name("out.parquet"), "--key", f"file:{key}")
    real = TableDraw.settle
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableDraw, "settle", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert release(table, *out)[0] == 130
    assert TableDraw.settle is real
    (run_id,) = [each.run_id for each in ldp.Ledger(table.with_name("ledger.sqlite")).runs()]
    assert run("key", key, "--destroy", "--force")[0] == 0
    code, _, error = release(table, *out)
    assert code == 5
    assert run_id in error
    assert "never be finished" in error
    assert "labeldp ledger repair --abandon" in error


def test_destroy_asks_for_the_ledger(key: Path, tmp_path: Path) -> None:
    for more in ((), ("--ledger", tmp_path / "mistyped.sqlite")):
        code, _, error = run("key", key, "--destroy", *more)
        assert code == 5
        assert "--ledger" in error
        assert key.exists()
    assert not (tmp_path / "mistyped.sqlite").exists()
    assert run("key", key, "--destroy", "--force")[0] == 0
