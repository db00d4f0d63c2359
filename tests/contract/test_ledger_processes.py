# SPDX-License-Identifier: Apache-2.0
"""Several processes and sudden ends: no charge is lost, none is made twice, no budget is
exceeded."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labeldp.ledger._ledger import Ledger

CHARGE = """
import sys
from labeldp.errors import BudgetExceeded
from labeldp.ledger._database import LabelDraw
from labeldp.ledger._ledger import Ledger, Spending
from labeldp.noise._words import new_run_id

ledger = Ledger(sys.argv[1], budget=float(sys.argv[2]))
for _ in range(int(sys.argv[3])):
    event = LabelDraw({"law": "rr"}, 0.1).to_dict()
    facts = {
        "dataset": "d", "column": "y", "epsilon": 0.1, "event": event, "identity": "same",
        "run_id": new_run_id(),
    }
    try:
        print(ledger.charge(Spending(**facts)).run_id, flush=True)
    except BudgetExceeded:
        print("refused", flush=True)
"""


def start(location: Path, budget: float, charges: int, then: str = "") -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", CHARGE + then, str(location), str(budget), str(charges)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_four_processes_on_a_new_ledger_lose_nothing_and_never_overspend(tmp_path: Path) -> None:
    location = tmp_path / "new" / "ledger.sqlite"
    ends = [
        process.communicate(timeout=120) for process in [start(location, 3.0, 10) for _ in range(4)]
    ]
    assert [error for _, error in ends] == [""] * 4
    answers = [line for out, _ in ends for line in out.split()]
    charged = [answer for answer in answers if answer != "refused"]
    ledger = Ledger(location)
    assert (len(answers), len(charged), len(set(charged))) == (40, 30, 30)
    assert {run.run_id for run in ledger.runs()} == set(charged)
    assert (ledger.spent("d", "y"), ledger.remaining("d", "y")) == (3.0, 0.0)
    assert ledger.verify([run.receipt for run in ledger.runs()]) == []
    assert list(location.parent.iterdir()) == [location]


@pytest.mark.parametrize("charges", [50, pytest.param(1000, marks=pytest.mark.nightly)])
def test_eight_drivers_lose_nothing_and_never_overspend_by_one_charge(
    tmp_path: Path, charges: int
) -> None:
    """One charge more than the budget allows is asked for by each; the budget is reached
    exactly."""
    location, allowed = tmp_path / "ledger.sqlite", 8 * charges - 8
    started = [start(location, allowed / 10, charges) for _ in range(8)]
    ends = [process.communicate(timeout=550) for process in started]
    assert [error for _, error in ends] == [""] * 8
    answers = [line for out, _ in ends for line in out.split()]
    charged = {answer for answer in answers if answer != "refused"}
    ledger = Ledger(location)
    assert (len(answers), len(charged), answers.count("refused")) == (8 * charges, allowed, 8)
    assert {run.run_id for run in ledger.runs()} == charged
    assert (ledger.spent("d", "y"), ledger.remaining("d", "y")) == (allowed / 10, 0.0)
    assert ledger.verify([run.receipt for run in ledger.runs()]) == []


def test_killed_between_charge_and_settle_leaves_a_run_that_is_found(tmp_path: Path) -> None:
    location = tmp_path / "ledger.sqlite"
    with start(location, 1.0, 1, then="\nsys.stdin.read()\nimport time; time.sleep(60)") as process:
        assert process.stdout is not None
        run_id = process.stdout.readline().strip()
        process.kill()
    ledger = Ledger(location)
    found = ledger.find("d", "y", "same")
    assert found is not None
    assert (found.run_id, found.state, ledger.spent("d", "y")) == (run_id, "charged", 0.1)
    ledger.settle(run_id, "digest")
    assert ledger.verify([found.receipt]) == []


@pytest.mark.parametrize("after", [0, 1, 3])
def test_killed_at_any_time_keeps_every_charge_that_returned(tmp_path: Path, after: int) -> None:
    """Whatever was printed had returned from `charge`; one further charge may have been on disk and
    not yet printed."""
    location = tmp_path / "ledger.sqlite"
    with start(location, 1000.0, 10_000) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline().strip() for _ in range(after)]
        os.kill(process.pid, signal.SIGKILL)
        printed += [line for line in process.stdout.read().split() if len(line) == 32]
    ledger = Ledger(location, budget=1000.0)
    runs = [run.run_id for run in ledger.runs()]
    assert runs[: len(printed)] == printed
    assert len(runs) - len(printed) in (0, 1)
    assert not runs or ledger.verify() == []
    again = start(location, 1000.0, 1)
    out, error = again.communicate(timeout=60)
    assert (error, len(ledger.runs())) == ("", len(runs) + 1)
    assert ledger.runs()[-1].run_id == out.strip()
