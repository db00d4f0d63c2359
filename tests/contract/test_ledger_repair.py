# SPDX-License-Identifier: Apache-2.0
"""What killed processes leave is found and removed; what a charged run needs stays."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.contract.test_ledger_rows import charge

from labeldp.errors import InvalidInput, LedgerError
from labeldp.ledger._ledger import Ledger
from labeldp.ledger._repair import Orphan, orphans, repair
from labeldp.noise._words import new_run_id

HOUR = 3600


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger.sqlite")
    made.set_budget("clicks", "label", 9.0)
    return made


def age(path: Path, seconds: float) -> None:
    for each in (path, *(path.rglob("*") if path.is_dir() else ())):
        os.utime(each, (time.time() - seconds,) * 2)


def run_with_all(
    ledger: Ledger, state: str = "charged", old: float = 2 * HOUR
) -> tuple[str, Path, Path]:
    """A run whose folder holds everything that a killed process may leave: its id, its folder, its
    staging folder."""
    run_id = charge(ledger, np.arange(10)).run_id if state != "never" else new_run_id()
    folder = ledger.run_dir(run_id)
    folder.mkdir(parents=True, exist_ok=True)
    staging = Path(ledger.location).parent / f".out.labeldp-{run_id[:8]}"
    staging.mkdir()
    (staging / "part.parquet").write_bytes(b"noisy")
    if state == "settled":
        ledger.settle(run_id, "digest")
    if state == "abandoned":
        ledger.abandon(run_id, "test")  # and the process dies right after it is written
    for name, data in (
        ("secret", b"s" * 32),
        ("pin", b"p" * 48),
        ("release.side.npz", b"side"),
        (".secret.1.0123abcd.part", b"half"),
    ):
        (folder / name).write_bytes(data)
    (folder / "staging").write_text(str(staging))
    age(folder, old)
    age(staging, old)
    return run_id, folder, staging


def kinds(found: list[Orphan]) -> list[str]:
    return sorted(orphan.kind for orphan in found)


def test_a_charged_run_keeps_all_it_needs(ledger: Ledger) -> None:
    run_id, folder, staging = run_with_all(ledger)
    found = orphans(ledger)
    assert kinds(found) == ["part"]
    assert repair(ledger, found, shutil.rmtree) == found
    assert sorted(path.name for path in folder.iterdir()) == [
        "charge.json",
        "pin",
        "release.side.npz",
        "rows.bin",
        "secret",
        "staging",
    ]
    assert staging.exists()
    forged = [Orphan(kind, str(folder), run_id, "") for kind in ("folder", "secret")] + [
        Orphan("staging", str(staging), run_id, "")
    ]
    assert repair(ledger, forged, shutil.rmtree) == []
    assert (folder / "secret").read_bytes() == b"s" * 32
    assert staging.exists()


@pytest.mark.parametrize("state", ["settled", "abandoned"])
def test_a_run_that_has_ended_loses_its_secret_and_its_staging_folder(
    ledger: Ledger, state: str
) -> None:
    _, folder, staging = run_with_all(ledger, state)
    found = orphans(ledger)
    assert kinds(found) == ["part", "secret", "staging"]
    assert repair(ledger, found, shutil.rmtree) == found
    assert sorted(path.name for path in folder.iterdir()) == [
        "charge.json",
        "release.side.npz",
        "rows.bin",
    ]
    assert not staging.exists()
    assert orphans(ledger) == []
    assert ledger.verify() == []


def test_a_folder_that_was_never_charged_goes_when_it_is_old(ledger: Ledger) -> None:
    _, folder, staging = run_with_all(ledger, "never")
    _, young, _ = run_with_all(ledger, "never", old=60)
    found = orphans(ledger)
    assert kinds(found) == ["folder", "staging"]
    assert repair(ledger, found, shutil.rmtree) == found
    assert not folder.exists() and not staging.exists() and young.exists()
    assert kinds(orphans(ledger, minutes=0.5)) == ["folder", "staging"]
    for bad in (0, -1, float("nan")):
        with pytest.raises(InvalidInput, match="minutes"):
            orphans(ledger, minutes=bad)


def test_a_folder_that_is_charged_meanwhile_stays(ledger: Ledger) -> None:
    run_id, folder, _ = run_with_all(ledger, "never")
    found = [orphan for orphan in orphans(ledger) if orphan.kind == "folder"]
    charge(ledger, np.arange(5), run_id=run_id)
    assert repair(ledger, found, shutil.rmtree) == []
    assert (folder / "secret").exists()


def test_a_clock_that_was_set_back_makes_nothing_old(ledger: Ledger) -> None:
    _, folder, _ = run_with_all(ledger, "never", old=-10 * HOUR)
    assert orphans(ledger) == []
    assert folder.exists()


def test_half_files_beside_the_ledger(ledger: Ledger) -> None:
    parent = Path(ledger.location).parent
    names = [
        ".ledger.sqlite.123.0123abcd.part",
        ".ledger.sqlite.123.0123abcd.part-wal",
        ".other.sqlite.123.0123abcd.part",
        "mine.part",
    ]
    for name in names:
        (parent / name).write_bytes(b"")
        age(parent / name, 2 * HOUR)
    ledger.row_set_builder().add(["a"])
    (ledger.runs_dir / ".ids-key.7.0123abcd.part").write_bytes(b"")
    age(ledger.runs_dir, 2 * HOUR)
    found = orphans(ledger)
    assert sorted(Path(orphan.place).name for orphan in found) == [
        ".ids-key.7.0123abcd.part",
        *names[:2],
    ]
    assert repair(ledger, found, shutil.rmtree) == found
    assert sorted(path.name for path in parent.iterdir()) == [
        ".other.sqlite.123.0123abcd.part",
        "ledger.sqlite",
        "ledger.sqlite.runs",
        "mine.part",
    ]
    assert (ledger.runs_dir / ".ids-key").exists()


@pytest.mark.parametrize(
    "place",
    ["/", "/home", "relative", "s3://bucket/out", "/tmp/labeldp", "{run}"],
)
def test_only_a_staging_folder_of_the_run_is_removed(ledger: Ledger, place: str) -> None:
    run_id, folder, staging = run_with_all(ledger, "settled")
    (folder / "staging").write_text(place.format(run=run_id[:8]))
    found = [orphan for orphan in orphans(ledger) if orphan.kind == "staging"]
    assert repair(ledger, found, pytest.fail) == []
    assert staging.exists()
    assert (folder / "staging").exists()


def test_staging_elsewhere_is_removed_by_whom_the_caller_names(ledger: Ledger) -> None:
    run_id, folder, _ = run_with_all(ledger, "abandoned")
    place = f"s3://bucket/out/_labeldp_staging_{run_id}"
    (folder / "staging").write_text(place)
    found = [orphan for orphan in orphans(ledger) if orphan.kind == "staging"]
    removed: list[str] = []

    def refuse(_: str) -> None:
        raise OSError(13, "Permission denied")

    for remover, done in ((refuse, []), (removed.append, found)):
        assert repair(ledger, found, remover) == done
    assert removed == [place]
    assert not (folder / "staging").exists()


def test_where_the_staging_folder_stays_its_note_stays(ledger: Ledger) -> None:
    _, folder, staging = run_with_all(ledger, "never")
    found = orphans(ledger)

    def refuse(_: str) -> None:
        raise LedgerError("no")

    assert repair(ledger, found, refuse) == []
    assert folder.exists() and staging.exists()


@pytest.mark.parametrize(
    "harm", [lambda path: path.unlink(), lambda path: path.write_bytes(b"nothing of ours" * 100)]
)
def test_without_a_ledger_nothing_is_an_orphan(
    ledger: Ledger, harm: Callable[[Path], object]
) -> None:
    """Else every run's folder would look as if it had never been charged."""
    run_with_all(ledger)
    harm(Path(ledger.location))
    with pytest.raises(LedgerError, match="Expected"):
        orphans(ledger)


def test_strangers_in_the_folder_of_runs_stay(ledger: Ledger, tmp_path: Path) -> None:
    charge(ledger, np.arange(3))
    (ledger.runs_dir / "notes").mkdir()
    (ledger.runs_dir / "notes" / "a.txt").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (ledger.runs_dir / new_run_id()).symlink_to(tmp_path / "elsewhere")
    age(ledger.runs_dir, 2 * HOUR)
    assert orphans(ledger) == []
