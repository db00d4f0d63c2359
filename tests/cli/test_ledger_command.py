# SPDX-License-Identifier: Apache-2.0
"""`labeldp ledger`: manifests and outputs compared, and repair."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.commands import run
from tests.contract.test_ledger import charge

from labeldp.ledger._ledger import Ledger
from labeldp.noise._words import new_run_id


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(place: Path) -> Ledger:
    made = Ledger(place)
    made.set_budget("clicks", "label", 9.0)
    return made


def released(ledger: Ledger, path: Path) -> Path:
    """A settled run and its manifest."""
    receipt = charge(ledger)
    ledger.settle(receipt.run_id, "sha256:1234")
    path.write_text(
        json.dumps({"receipt": receipt.to_dict(), "digests": {"output": "sha256:1234"}})
    )
    return path


def test_manifests_are_compared_with_what_was_settled(
    ledger: Ledger, place: Path, tmp_path: Path
) -> None:
    manifest = released(ledger, tmp_path / "m.json")
    assert run("ledger", "verify", manifest, "--ledger", place)[0] == 0
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(facts | {"digests": {"output": "sha256:other"}}))
    code, said, _ = run("ledger", "verify", manifest, "--ledger", place)
    assert (code, "names another digest" in said) == (7, True)
    unfinished = charge(ledger)
    manifest.write_text(
        json.dumps({"receipt": unfinished.to_dict(), "digests": {"output": "sha256:1234"}})
    )
    code, said, _ = run("ledger", "verify", manifest, "--ledger", place)
    assert (code, "is not settled" in said) == (7, True)
    manifest.write_text("[]")
    assert run("ledger", "verify", manifest, "--ledger", place)[0] == 4


def test_repair_lists_and_removes_with_yes_only(ledger: Ledger, place: Path) -> None:
    assert run("ledger", "repair", "--ledger", place)[1].strip() == "Nothing to repair."
    folder = ledger.run_dir(new_run_id())
    folder.mkdir(parents=True)
    (folder / "secret").write_bytes(b"x" * 32)
    old = time.time() - 7200
    os.utime(folder / "secret", (old, old))
    os.utime(folder, (old, old))
    code, said, _ = run("ledger", "repair", "--ledger", place)
    assert (code, str(folder) in said, "--yes removes" in said, folder.exists()) == (
        0,
        True,
        True,
        True,
    )
    assert (
        run("ledger", "repair", "--ledger", place, "--older-than", 600)[1].strip()
        == "Nothing to repair."
    )
    code, said, _ = run("ledger", "repair", "--ledger", place, "--yes", "--json")
    orphan = {
        "kind": "folder",
        "place": str(folder),
        "run_id": folder.name,
        "why": "its run was never charged",
        "removed": True,
    }
    assert (code, json.loads(said)) == (0, {"orphans": [orphan]})
    assert not folder.exists()
    assert run("ledger", "repair", "--ledger", place, "--older-than", 0)[0] == 2


def test_repair_removes_staging_folders_of_ended_runs(
    ledger: Ledger, place: Path, tmp_path: Path
) -> None:
    run_id = charge(ledger).run_id
    staging = tmp_path / f".out.labeldp-{run_id[:8]}"
    staging.mkdir(mode=0o700)
    ledger.run_dir(run_id).mkdir(parents=True)
    (ledger.run_dir(run_id) / "staging").write_text(str(staging))
    assert run("ledger", "repair", "--ledger", place, "--yes")[1].strip() == "Nothing to repair."
    assert run("ledger", "repair", "--abandon", run_id, "--ledger", place)[0] == 0
    assert "removed" in run("ledger", "repair", "--ledger", place, "--yes")[1]
    assert not staging.exists()


def test_a_database_is_named_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("psycopg")
    monkeypatch.setenv("LABELDP_RUNS", str(tmp_path))
    url = f"postgresql://anna:s3cr3t@/x?host={tmp_path}/nowhere"
    code, said, problem = run("ledger", "spent", "--ledger", url)
    assert code == 5
    assert "anna:***@" in problem and "s3cr3t" not in said + problem


def test_a_budget_of_an_unknown_name_is_told(ledger: Ledger, place: Path) -> None:
    charge(ledger)
    known = run(
        "ledger",
        "set-budget",
        "--dataset",
        "clicks",
        "--label",
        "label",
        "--budget",
        "8",
        "--ledger",
        place,
    )
    typed = run(
        "ledger",
        "set-budget",
        "--dataset",
        "cliks",
        "--label",
        "label",
        "--budget",
        "8",
        "--ledger",
        place,
    )
    assert known[0] == typed[0] == 0
    assert (
        "right name" not in known[1]
        and "nothing is charged to dataset 'cliks', column 'label' yet" in typed[1]
    )


def test_an_unknown_run_is_looked_up_in_the_history(place: Path) -> None:
    code, _, told = run("ledger", "repair", "--abandon", "deadbeef", "--ledger", place)
    assert code and "labeldp ledger history" in told and "new_run_id" not in told


def test_a_name_that_nothing_is_charged_to_gets_the_names_that_there_are(
    ledger: Ledger, place: Path, tmp_path: Path
) -> None:
    charge(ledger)
    # whoever asks before the first charge gets no error
    assert ledger.spent("nope", "label") == 0.0
    for asked in (
        ("--dataset", "nope", "--label", "label"),
        ("--dataset", "clicks", "--label", "lable"),
    ):
        code, said, _ = run("ledger", "spent", *asked, "--ledger", place)
        assert (
            code == 0 and f"othing was spent on dataset {asked[1]!r}, column {asked[3]!r}." in said
        )
        assert said.rstrip().endswith("knows dataset 'clicks', column 'label'.")
    Ledger(tmp_path / "new.db").set_budget("clicks", "label", 1.0)
    code, said, _ = run("ledger", "spent", "--dataset", "nope", "--ledger", tmp_path / "new.db")
    assert code == 0 and "on dataset 'nope'" in said and said.rstrip().endswith("knows no charge.")
    assert (
        run("ledger", "spent", "--ledger", tmp_path / "new.db")[1].strip() == "Nothing was spent."
    )
    assert "clicks" in run("ledger", "spent", "--ledger", place)[1]


@pytest.mark.parametrize("what", [("spent",), ("history",), ("verify",)])
@pytest.mark.parametrize("named", [True, False])
def test_no_figures_of_a_ledger_that_is_not_there(
    tmp_path: Path, what: tuple[str, ...], named: bool
) -> None:
    ledger = ("--ledger", tmp_path / "typo.db") if named else ()
    code, said, told = run("ledger", *what, *ledger)
    assert (code, said) == (5, "") and "no such file" in told
    assert json.loads(run("ledger", *what, *ledger, "--json")[1])["exit_code"] == 5
    assert not (tmp_path / "typo.db").exists()


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_reader_that_has_gone_is_no_error_of_files(place: Path, more: tuple[str, ...]) -> None:
    """As `labeldp ledger history | head` ends."""
    Ledger(place).set_budget("d", "y", 1.0)
    command = [sys.executable, "-m", "labeldp", "ledger", "spent", "--ledger", place, *more]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as begun:
        assert begun.stdout is not None and begun.stderr is not None
        begun.stdout.close()
        assert (begun.stderr.read(), begun.wait(timeout=60)) == ("", 1)
