# SPDX-License-Identifier: Apache-2.0
"""The demo runs as it is, with one seed, and its summary says what the runs say."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labeldp.app import demo
from labeldp.errors import InvalidInput, ReleaseError


def test_the_demo_writes_what_it_ran(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "labeldp",
            "demo",
            "--out",
            str(tmp_path / "out"),
            "--seeds",
            "1",
            "--workers",
            "2",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert len(result["runs"]) == result["fits"] == len(demo.TASKS) * (1 + 3 * len(demo.EPSILONS))
    assert result["insecure"]
    page = (tmp_path / "out" / "summary.md").read_text()
    printed = done.stdout
    assert len(page.splitlines()) < 60  # one page
    assert "percent, of one seed." in page and page in printed
    for row in result["rows"]:
        runs = [r for r in result["runs"] if r["task"] == row["task"]]
        for method in demo.METHODS:
            epsilon = None if method == "no privacy" else row["epsilon"]
            scores = [
                100 * r["accuracy"]
                for r in runs
                if (r["method"], r["epsilon"]) == (method, epsilon)
            ]
            assert statistics.mean(scores) == pytest.approx(row[method]["mean"])
            assert f"{row[method]['mean']:.1f}" in page
            assert f"{row[method]['mean']:.1f}" in printed
        # Far above guessing at each budget, and never above 100 %.
        assert 100 / (10 if row["task"] == "digits" else 2) < row["two stages"]["mean"] <= 100


def test_a_job_can_be_repeated() -> None:
    job = demo.Job("breast_cancer", "one stage", 2.0, 3)
    assert demo.run_job(job).accuracy == demo.run_job(job).accuracy


@pytest.mark.parametrize("option", ["seeds", "workers"])
def test_nothing_runs_without_seeds_or_workers(option: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=option):
        demo.run(tmp_path / "out", **{option: 0})
    assert not (tmp_path / "out").exists()


def test_one_seed_has_no_spread() -> None:
    row = {"epsilon": 1.0, **{method: {"mean": 80.0, "sd": 0.0} for method in demo.METHODS}}
    assert not any("±" in cell for cell in demo._cells(row))
    row = {"epsilon": 1.0, **{method: {"mean": 80.0, "sd": 1.25} for method in demo.METHODS}}
    assert all("80.0 ± 1.2" in cell for cell in demo._cells(row)[1:])


def test_a_folder_that_cannot_be_written_is_refused_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "run_all", lambda *_: pytest.fail("it trained"))
    (tmp_path / ".summary.json.labeldp").write_text(
        "in the way of the folder that is made beside the output"
    )
    with pytest.raises(ReleaseError):
        demo.run(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_an_interrupt_is_one_message(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to all processes of the command, of which each would have a
    traceback."""
    heard = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from labeldp.cli"
        " import main; main()"
    )
    begun = subprocess.Popen(
        [sys.executable, "-c", heard, "demo", "--out", str(tmp_path / "out"), "--workers", "6"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "out").exists():
        time.sleep(0.05)
    time.sleep(1.5)  # most workers are still starting
    os.killpg(begun.pid, signal.SIGINT)
    assert "Traceback" not in begun.communicate(timeout=60)[1]
    assert begun.returncode == 130
