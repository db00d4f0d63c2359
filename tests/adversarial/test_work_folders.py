# SPDX-License-Identifier: Apache-2.0
"""Folders that labeldp works in have names that others can guess: what somebody has put there is
neither used nor deleted."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import run

from labeldp import Ledger, NoisyLabels, PrivateLabels, RandomizedResponse, privatize
from labeldp.errors import LabelDPError, LedgerError, ReleaseError
from labeldp.ledger._run_store import RunStore
from labeldp.tables._place import Place, Staging, workplace
from labeldp.tables._priors import AnswersFolder

N = 300
RUN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    dice = np.random.default_rng(0)
    columns = {
        "id": np.arange(N),
        "x": dice.normal(size=N),
        "group": np.arange(N) % 3,
        "y": dice.integers(0, 2, N),
    }
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    return tmp_path / "in.parquet"


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder that nothing may touch."""
    folder = tmp_path / "precious"
    folder.mkdir()
    for name in ("thesis.tex", "bucket-000.arrow", "lock2"):
        (folder / name).write_text("years of work")
    return folder


def release(table: Path, out: Path) -> tuple[int, str, str]:
    common = ("--label", "y", "--classes", "0,1", "--epsilon", "1", "--dataset", "d")
    return run("release", table, "--id", "id", *common, "--out", out)


def train(table: Path, out: Path) -> tuple[int, str, str]:
    return run(
        "train",
        table,
        "--id",
        "id",
        "--label",
        "y",
        "--classes",
        "0,1",
        "--epsilon",
        "1",
        "--dataset",
        "t",
        "--out",
        out,
    )


def aggregate(table: Path, out: Path) -> tuple[int, str, str]:
    return run(
        "aggregate",
        table,
        "--label",
        "y",
        "--classes",
        "0,1",
        "--group",
        "group",
        "--epsilon",
        "1",
        "--dataset",
        "a",
        "--out",
        out,
    )


def predict(table: Path, out: Path) -> tuple[int, str, str]:
    model = table.parent / "a-model"
    if not model.exists():
        assert train(table, model)[0] == 0
    return run("predict", model, table, "--out", out)


COMMANDS = {"release": release, "train": train, "aggregate": aggregate, "predict": predict}
commands = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)


@commands
def test_a_link_of_the_folders_name_deletes_nothing(
    command: Callable[[Path, Path], tuple[int, str, str]], table: Path, precious: Path
) -> None:
    out = table.parent / "out.parquet"
    link = table.parent / f".{out.name}.labeldp"
    link.symlink_to(precious)
    code, _, said = command(table, out)
    assert code != 0
    assert "a link" in said
    assert str(link) in said.replace("\n", "")
    assert sorted(path.name for path in precious.iterdir()) == [
        "bucket-000.arrow",
        "lock2",
        "thesis.tex",
    ]
    assert not out.exists()
    link.unlink()
    assert command(table, out)[0] == 0


@commands
def test_a_folder_that_others_can_open_is_not_used(
    command: Callable[[Path, Path], tuple[int, str, str]], table: Path
) -> None:
    out = table.parent / "out.parquet"
    folder = table.parent / f".{out.name}.labeldp"
    folder.mkdir()
    folder.chmod(0o777)
    code, _, said = command(table, out)
    assert code != 0
    assert "mode 777" in said
    assert list(folder.iterdir()) == []
    folder.rmdir()
    assert command(table, out)[0] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(table: Path) -> None:
    folder = table.parent / ".out.parquet.labeldp"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, -1)
    code, _, said = release(table, table.parent / "out.parquet")
    assert code != 0
    assert "another user" in said


def test_files_that_labeldp_did_not_make_stay(table: Path) -> None:
    folder = table.parent / ".out.parquet.labeldp"
    folder.mkdir(mode=0o700)
    (folder / "notes.txt").write_text("mine")
    (folder / "bucket-003.arrow").write_text("left by a killed run")
    code, _, said = release(table, table.parent / "out.parquet")
    assert code != 0
    assert "notes.txt" in said
    assert [path.name for path in folder.iterdir() if path.name != "lock"] == ["notes.txt"]
    (folder / "notes.txt").unlink()
    assert release(table, table.parent / "out.parquet")[0] == 0
    assert not folder.exists()


def test_what_killed_runs_left_is_removed_and_no_stranger(table: Path, precious: Path) -> None:
    out = table.parent / "out.parquet"
    left = table.parent / ".out.parquet.labeldp-01234567"
    left.mkdir(mode=0o700)
    (left / f"attempt-{'0' * 32}.parquet").write_text("half")
    strange = table.parent / ".out.parquet.labeldp-notes"
    strange.mkdir()
    (strange / "mine").write_text("x")
    (table.parent / ".out.parquet.labeldp-89abcdef").symlink_to(precious)
    model = table.parent / ".m.labeldp"  # a training that was killed while it wrote
    (model / "model").mkdir(mode=0o700, parents=True)
    model.chmod(0o700)
    (model / "model" / "model.skops").write_text("half")
    assert release(table, out)[0] == 0
    assert not left.exists()
    assert (strange / "mine").exists()
    assert len(list(precious.iterdir())) == 3
    assert train(table, table.parent / "m")[0] == 0
    assert not model.exists()


@pytest.mark.parametrize("kind", [Staging, AnswersFolder])
def test_staging_folders_are_our_own(kind: type[Staging], tmp_path: Path, precious: Path) -> None:
    staging = kind(Place.of(tmp_path / "out"), RUN)
    folder = Path(staging.folder.path)
    folder.symlink_to(precious)
    for call in (staging.prepare, staging.delete, lambda: staging.write_manifest(b"{}")):
        with pytest.raises(ReleaseError, match="a link"):
            call()
    assert len(list(precious.iterdir())) == 3
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o770)
    with pytest.raises(ReleaseError, match="mode 770"):
        staging.prepare()


def test_everything_inside_is_for_the_owners_eyes_while_it_runs(tmp_path: Path) -> None:
    """A release is stopped in the middle, with umask 0; then it goes on, and what is published has
    the usual rights."""
    n = 400_000
    pq.write_table(
        pa.table(
            {
                "id": np.arange(n),
                "x": np.random.default_rng(0).normal(size=n),
                "y": np.arange(n) % 2,
            }
        ),
        tmp_path / "in.parquet",
    )
    code = (
        "import os; os.umask(0)\nfrom labeldp.cli import app\napp(['release',"
        f" {str(tmp_path / 'in.parquet')!r}, '--label', 'y', '--classes', '0,1', '--epsilon', '1',"
        f" '--id', 'id', '--dataset', 'd', '--out', {str(tmp_path / 'out.parquet')!r}, '--ledger',"
        f" {str(tmp_path / 'l.db')!r}])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    seen: dict[str, int] = {}
    try:
        while process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            for folder in (path for path in tmp_path.iterdir() if path.name.startswith(".out")):
                seen[folder.name] = stat.S_IMODE(folder.stat().st_mode)
                # as it was made: the finished table gets its rights just before its final name
                for path in folder.iterdir():
                    seen.setdefault(path.name, stat.S_IMODE(path.stat().st_mode))
            process.send_signal(signal.SIGCONT)
            time.sleep(0.01)
    finally:
        process.kill()
    assert process.returncode == 0
    assert any(name.startswith("bucket-") for name in seen)
    assert any(name.startswith("attempt-") for name in seen)
    public = {"_manifest.json", "_publishing.json"}  # texts without labels
    assert {name: mode for name, mode in seen.items() if mode & 0o077 and name not in public} == {}
    assert stat.S_IMODE((tmp_path / "out.parquet").stat().st_mode) == 0o666
    assert stat.S_IMODE((tmp_path / "out.parquet.manifest.json").stat().st_mode) == 0o666


def test_one_process_at_a_time_works_on_a_name(tmp_path: Path) -> None:
    with (
        workplace(tmp_path / "out"),
        pytest.raises(ReleaseError, match="other process"),
        workplace(tmp_path / "out"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def drawn(ledger: Ledger) -> NoisyLabels:
    facts = {"dataset": "d", "column": "label", "ids": [1, 2], "ledger": ledger}
    return privatize(PrivateLabels([0, 1], classes=range(2), **facts), RandomizedResponse(2, 1.0))


def test_a_runs_folder_that_others_can_write_to_takes_no_secret(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.db", budget=2.0)
    ledger.runs_dir.mkdir()
    ledger.runs_dir.chmod(0o777)
    for call in (
        lambda: drawn(ledger),
        lambda: RunStore(ledger.run_dir(RUN)).write("x", b"1"),
    ):
        with pytest.raises(LedgerError, match=r"mode 777.*chmod 700"):
            call()
    assert not ledger.exists()
    ledger.runs_dir.chmod(0o700)
    drawn(ledger)


def test_outputs_kept_in_a_runs_folder_are_for_the_owners_eyes(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        noisy = drawn(Ledger(tmp_path / "l.db"))
    finally:
        os.umask(before)
    kept = [*(tmp_path / "l.db.runs" / noisy.receipts[0].run_id).iterdir()]
    assert kept
    assert {path.name for path in kept if path.stat().st_mode & 0o077} == set()


def test_a_fit_does_not_go_on_from_a_folder_that_others_can_write_to(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from labeldp.deep._stages import opened

    with opened(tmp_path / "fit"):
        assert stat.S_IMODE((tmp_path / "fit").stat().st_mode) == 0o700
    (tmp_path / "fit").chmod(0o777)
    with pytest.raises(LabelDPError, match="nobody else can write"), opened(tmp_path / "fit"):
        pass
