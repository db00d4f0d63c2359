# SPDX-License-Identifier: Apache-2.0
"""A ledger that was deleted, or whose older copy was restored, charges nothing until the user says
which is right."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression
from tests.cli.commands import run

from labeldp import (
    LabelDPClassifier,
    Ledger,
    PrivateLabels,
    RandomizedResponse,
    aggregate,
    privatize,
)
from labeldp.aggregates import Histogram
from labeldp.errors import BudgetExceeded, LabelDPError, LedgerError

LAW = RandomizedResponse(2, 1.0)
IDS = np.arange(400)
Y = IDS % 2


def labels(ledger: Ledger, ids: np.ndarray = IDS, column: str = "label") -> PrivateLabels:
    return PrivateLabels(
        ids % 2, classes=range(2), dataset="d", column=column, ids=ids, ledger=ledger
    )


def draw(ledger: Ledger, ids: np.ndarray, column: str = "label") -> Any:
    return privatize(labels(ledger, ids, column), LAW)


def delete(ledger: Ledger) -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{ledger.location}{end}").unlink(missing_ok=True)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "l.db", budget=3.0)


def some(ledger: Ledger, what: str, tmp_path: Path) -> None:
    """One charge of 1.0 on 400 rows."""
    dice = np.random.default_rng(0)
    if what == "privatize":
        draw(ledger, IDS)
    elif what == "aggregate":
        aggregate(labels(ledger), Histogram(2, 1.0, 1), np.zeros(400, int))
    elif what == "fit":
        model = LabelDPClassifier(LogisticRegression(), epsilon=1.0, random_state=0)
        model.fit(dice.normal(size=(400, 2)), labels(ledger))
    else:
        pq.write_table(pa.table({"id": IDS, "label": Y}), tmp_path / "in.parquet")
        release = (
            "release",
            tmp_path / "in.parquet",
            "--label",
            "label",
            "--classes",
            "0,1",
            "--epsilon",
            "1",
            "--id",
            "id",
        )
        assert (
            run(
                *release,
                "--dataset",
                "d",
                "--out",
                tmp_path / "out.parquet",
                "--ledger",
                ledger.location,
            )[0]
            == 0
        )


KINDS = ("privatize", "aggregate", "fit", "release")


@pytest.mark.parametrize("what", KINDS)
def test_a_deleted_ledger_charges_nothing_until_its_runs_are_counted_again(
    what: str, tmp_path: Path, ledger: Ledger
) -> None:
    some(ledger, what, tmp_path)
    names = "id" if what == "release" else ""
    (run_id,) = [each.run_id for each in ledger.runs()]
    delete(ledger)
    with pytest.raises(
        LedgerError, match=rf"{run_id}.*new.*Nothing was charged.*labeldp ledger repair --adopt"
    ) as refused:
        draw(ledger, IDS, "other")
    assert "Restore" in str(refused.value)
    assert not ledger.exists()
    (facts,) = ledger.adopt()
    assert (facts["run_id"], facts["epsilon"], facts["state"], facts["rows"]) == (
        run_id,
        1.0,
        "settled",
        400,
    )
    assert ledger.verify() == []
    assert ledger.spent("d", "label") == 1.0
    assert ledger.adopt() == []
    draw(ledger, IDS, "other")
    if not names:
        draw(ledger, np.arange(1000, 1400))  # other rows: they do not add
        assert ledger.spent("d", "label") == 1.0


@pytest.mark.parametrize("what", ["privatize", "aggregate", "fit"])
def test_a_repeat_is_free_after_it_was_adopted(what: str, tmp_path: Path, ledger: Ledger) -> None:
    some(ledger, what, tmp_path)
    delete(ledger)
    ledger.adopt()
    some(ledger, what, tmp_path)
    assert len(ledger.runs("d")) == 1


def test_an_older_copy_is_refused_too_and_the_newer_one_is_not(
    tmp_path: Path, ledger: Ledger
) -> None:
    draw(ledger, IDS)
    shutil.copy(ledger.location, tmp_path / "older")
    draw(ledger, IDS, "second")
    ledger.set_budget("d", "label", 2.0)
    shutil.copy(ledger.location, tmp_path / "newer")
    delete(ledger)
    shutil.copy(tmp_path / "older", ledger.location)
    with pytest.raises(LedgerError, match="older than they are"):
        draw(ledger, IDS, "third")
    assert any("set back" in problem for problem in ledger.verify())
    delete(ledger)
    shutil.copy(tmp_path / "newer", ledger.location)
    draw(ledger, IDS, "third")
    assert ledger.verify() == []


def test_after_adopting_a_budget_is_asked_for_by_name(tmp_path: Path) -> None:
    """A request must not be the budget that it is measured by: each smaller one would be told of
    another remainder."""
    ledger = Ledger(tmp_path / "l.db")
    draw(ledger, IDS)
    delete(ledger)
    ledger.adopt()
    assert ledger.remaining("d", "label") == 0.0
    assert ledger.remaining("d", "other") == np.inf
    for epsilon in (5.0, 0.5):
        with pytest.raises(
            BudgetExceeded,
            match=rf"Expected a budget.*adopted.*set_budget\('d', 'label', {1 + epsilon}\)",
        ):
            privatize(labels(ledger), RandomizedResponse(2, epsilon))
    assert ledger.spent("d", "label") == 1.0
    ledger.set_budget("d", "label", 1.5)
    assert ledger.remaining("d", "label") == 0.5
    privatize(labels(ledger), RandomizedResponse(2, 0.5))
    assert ledger.verify() == []


def test_adopting_never_counts_less(tmp_path: Path, ledger: Ledger) -> None:
    """Every charge, over two accounts, one of them with its whole budget; then without row
    sets."""
    for step in range(3):
        draw(ledger, IDS + step)  # on most rows three times
    draw(ledger, IDS, "other")
    spent = {column: ledger.spent("d", column) for column in ("label", "other")}
    assert spent == {"label": 3.0, "other": 1.0}
    delete(ledger)
    shutil.copytree(ledger.runs_dir, tmp_path / "kept")
    ledger.adopt()
    assert {column: ledger.spent("d", column) for column in spent} == spent
    with pytest.raises(BudgetExceeded):
        draw(ledger, np.arange(401))
    delete(ledger)
    shutil.rmtree(ledger.runs_dir)
    shutil.copytree(tmp_path / "kept", ledger.runs_dir)
    for folder in ledger.runs_dir.glob("[0-9a-f]*"):
        (folder / "rows.bin").unlink()
    assert [each["rows"] for each in ledger.adopt()] == [None] * 4
    assert all(ledger.spent("d", column) >= spent[column] for column in spent)
    with pytest.raises(BudgetExceeded):
        draw(ledger, np.arange(401))
    assert ledger.verify() == []


def test_folders_that_say_nothing_are_refused(ledger: Ledger) -> None:
    noisy = draw(ledger, IDS)
    delete(ledger)
    folder = ledger.run_dir(noisy.receipts[0].run_id)
    for path in folder.iterdir():
        path.write_bytes(b"damaged")
    with pytest.raises(LedgerError, match="say nothing"):
        ledger.adopt()
    with pytest.raises(LedgerError, match="Nothing was charged"):
        draw(ledger, IDS)
    assert run("ledger", "repair", "--adopt", "--ledger", ledger.location)[0] == 5


KILLED = """
import os, signal, sys, numpy as np
from labeldp import Ledger, PrivateLabels, RandomizedResponse, privatize

Ledger.settle = lambda *a: os.kill(os.getpid(), signal.SIGKILL)
facts = {
    "classes": range(2), "dataset": "d", "column": "label", "ids": np.arange(400),
    "ledger": Ledger(sys.argv[1], budget=3.0),
}
privatize(PrivateLabels(np.arange(400) % 2, **facts), RandomizedResponse(2, 1.0))
"""


def test_a_killed_run_is_finished_after_it_was_adopted(ledger: Ledger) -> None:
    """kill -9 between draw and settling; the ledger is lost; adopted, the same request gives the
    same labels at no further cost."""
    command = [sys.executable, "-c", KILLED, str(ledger.location)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    delete(ledger)
    with pytest.raises(LedgerError, match="Nothing was charged"):
        draw(ledger, IDS)
    (facts,) = ledger.adopt()
    assert facts["state"] == "charged"
    noisy = draw(ledger, IDS)
    assert noisy.receipts[0].run_id == facts["run_id"]
    assert [each.state for each in ledger.runs()] == ["settled"]


@pytest.mark.parametrize(
    "moved", [lambda path: path, lambda path: path.parent / "elsewhere" / "deep.db"]
)
def test_a_link_to_a_ledger_is_the_ledger(
    moved: Callable[[Path], Path], tmp_path: Path, ledger: Ledger
) -> None:
    first = draw(ledger, IDS)
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(ledger.location)
    through = Ledger(link, budget=3.0)
    assert through.runs_dir == ledger.runs_dir
    assert through.verify() == []
    with pytest.warns(UserWarning, match="at no cost"):
        again = draw(through, IDS)
    assert np.array_equal(first.hard_codes(), again.hard_codes())
    assert ledger.spent("d", "label") == 1.0
    assert not list(link.parent.glob("*.runs"))


def test_abandon_destroys_the_secret_and_the_pin(ledger: Ledger) -> None:
    command = [sys.executable, "-c", KILLED, str(ledger.location)]
    subprocess.run(command, capture_output=True, check=False)
    (charged,) = ledger.runs()
    folder = ledger.run_dir(charged.run_id)
    assert (folder / "secret").exists()
    ledger.abandon(charged.run_id, "tested")
    assert not (folder / "secret").exists()
    assert not (folder / "pin").exists()


def test_a_charge_lists_the_runs_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(3):
        draw(ledger, IDS + 1000 * step)
    listed: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(
        os, "scandir", lambda path: (listed.append(os.fspath(path)), scandir(path))[1]
    )
    draw(ledger, IDS + 5000)
    assert listed.count(str(ledger.runs_dir)) == 1


def test_runs_that_were_prepared_and_never_charged_stop_nobody(ledger: Ledger) -> None:
    folder = ledger.run_dir("0" * 32)
    folder.mkdir(parents=True, mode=0o700)
    ledger.runs_dir.chmod(0o700)
    (folder / "secret").write_bytes(bytes(32))
    (folder / "charge.json").write_text("{}")
    draw(ledger, IDS)


def test_a_refused_charge_leaves_no_folder(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.db", budget=0.5)
    with pytest.raises(LabelDPError):
        draw(ledger, IDS)
    assert list(ledger.runs_dir.glob("[0-9a-f]*")) == []
