# SPDX-License-Identifier: Apache-2.0
"""Identical requests at once are one charge, and what one charge covers is drawn once: by several
handles, and from a folder set back."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from tests.runs import open_run

from labeldp import (
    InvalidInput,
    LabelDPClassifier,
    Ledger,
    LedgerError,
    PrivateLabels,
    RandomizedResponse,
    RRWithPrior,
)
from labeldp.custody._run import Run

BUDGET = 3.0  # of each column

N = 300

REQUEST = """
import sys, time, numpy as np
from labeldp import Ledger, PrivateLabels, RandomizedResponse, aggregate, privatize
from labeldp.aggregates import Histogram

ledger, what, ids = Ledger(sys.argv[1], budget=3.0), sys.argv[2], np.arange(2000)
labels = PrivateLabels(
    ids % 2, classes=[0, 1], dataset="d", column="label", ids=ids, ledger=ledger
)
while time.time() < float(sys.argv[3]):
    pass
if what == "privatize":
    found = privatize(labels, RandomizedResponse(2, 1.0))
    answer, run = found.hard_codes(), found.receipts[0].run_id
else:
    found = aggregate(labels, Histogram(2, 1.0, 4), ids % 4)
    answer, run = found.values, found.receipt.run_id
print(run, answer.tolist())
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ["privatize", "aggregate"])
def test_identical_requests_at_once_are_one_charge(what: str, ledger: Ledger) -> None:
    import time

    at = str(time.time() + 8.0)
    command = [sys.executable, "-W", "ignore", "-c", REQUEST, str(ledger.location), what, at]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    ends = [process.communicate(timeout=200) for process in started]
    assert [error for _, error in ends] == [""] * 8
    assert len({out for out, _ in ends}) == 1
    assert [(run.state, run.receipt.epsilon) for run in ledger.runs()] == [("settled", 1.0)]
    assert ledger.spent("d", "label") == 1.0
    assert ledger.verify() == []


def run_of(ledger: Ledger, **more: Any) -> Run:
    facts = {
        "classes": [0, 1],
        "epsilon": 2.0,
        "laws": {"name": "test"},
        "dataset": "d",
        "ids": np.arange(N),
        "ledger": ledger,
    }
    return open_run(np.arange(N) % 2, **facts | more)


def test_two_handles_of_a_run_draw_no_row_twice(ledger: Ledger) -> None:
    first, second = run_of(ledger), run_of(ledger)
    assert first.receipt.run_id == second.receipt.run_id
    law = RandomizedResponse(2, 2.0)
    a = first.privatize(np.arange(0, 200), law, stage="a")
    with pytest.raises(InvalidInput, match=r"got 50 of its stage 'a' in stage 'b'"):
        second.privatize(np.arange(150, 300), law, stage="b")
    with pytest.raises(LedgerError, match="another stage of that name"):
        run_of(ledger)._claim_rows(
            first._charge.store, np.arange(200, 300), {"law": law.to_dict(), "prior": ""}, "a"
        )
    same = second.privatize(np.arange(0, 200), law, stage="a")
    assert np.array_equal(a.hard_codes(), same.hard_codes())
    second.privatize(np.arange(200, 300), law, stage="c")
    second.settle()
    assert ledger.spent("d", "label") == 2.0
    assert ledger.verify() == []


def test_whole_tables_are_not_drawn_twice_under_two_names(ledger: Ledger) -> None:
    first, second = run_of(ledger), run_of(ledger)
    first.privatize(np.arange(N), RandomizedResponse(2, 2.0), stage="a")
    with pytest.raises(InvalidInput, match="got 300 of its stage 'a'"):
        second.privatize(np.arange(N), RandomizedResponse(2, 2.0), stage="b")


RACE = """
import sys, time, numpy as np
from labeldp import InvalidInput, Ledger, RandomizedResponse
from tests.runs import open_run
from labeldp.custody._encode import RowIds

name, ledger = sys.argv[2], Ledger(sys.argv[1])
run = open_run(
    np.arange(300) % 2, classes=[0, 1], epsilon=2.0, laws={"name": "test"}, dataset="d",
    ids=np.arange(300), ledger=ledger
)
while time.time() < float(sys.argv[3]):
    pass
try:
    run.privatize(np.arange(300), RandomizedResponse(2, 2.0), stage=name)
    print("drew")
except InvalidInput:
    print("refused")
"""


def test_of_processes_that_draw_the_same_rows_as_other_stages_one_does(tmp_path: Path) -> None:
    import time

    run_of(Ledger(tmp_path / "l.db"))
    at = str(time.time() + 6.0)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path / "l.db"), f"s{i}", at],
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(6)
    ]
    said = sorted(process.communicate(timeout=200)[0].strip() for process in started)
    assert said == ["drew"] + ["refused"] * 5


FIT = """
import os, signal, sys, numpy as np
from sklearn.linear_model import LogisticRegression
from labeldp import LabelDPClassifier, Ledger, PrivateLabels
from labeldp.custody._run import Run

X = np.random.default_rng(0).normal(size=(1200, 3))
y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
Run.settle = lambda self: os.kill(os.getpid(), signal.SIGKILL)
facts = {
    "classes": range(3), "dataset": "d", "column": "label", "ids": np.arange(1200),
    "ledger": Ledger(sys.argv[1]),
}
model = LabelDPClassifier(
    LogisticRegression(), epsilon=2.0, law="rr-with-prior", stages=2, random_state=0
)
model.fit(X, PrivateLabels(y, **facts))
"""


def test_a_fits_folder_that_was_set_back_is_seen_and_a_killed_one_goes_on(tmp_path: Path) -> None:
    """kill -9 before settling; stage 2 is taken out of the folder; another estimator would draw its
    rows again, under another prior."""
    done = subprocess.run(
        [sys.executable, "-c", FIT, str(tmp_path / "l.db")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    ledger = Ledger(tmp_path / "l.db")
    (charged,) = ledger.runs()
    folder = ledger.run_dir(charged.run_id)
    shutil.copytree(folder, tmp_path / "whole")
    X = np.random.default_rng(0).normal(size=(1200, 3))
    y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)

    def fit(estimator: Any) -> LabelDPClassifier:
        facts = {"dataset": "d", "column": "label", "ids": np.arange(1200), "ledger": ledger}
        model = LabelDPClassifier(
            estimator, epsilon=2.0, law="rr-with-prior", stages=2, random_state=0
        )
        return model.fit(X, PrivateLabels(y, classes=range(3), **facts))

    for ends in ((".side.npz", ".parquet"), (".side.npz", ".parquet", ".rows-drawn.npy")):
        for end in ends:
            (folder / f"stage-2{end}").unlink()
        with pytest.raises(LedgerError, match=r"stage-2.*set back"):
            fit(GaussianNB())
        assert not (folder / "stage-2.side.npz").exists()  # nothing of the refused attempt stays
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "whole", folder)
    (folder / "stage-1.rows-drawn.npy").unlink()
    (folder / "stage-2.parquet").unlink()
    with pytest.raises(LedgerError, match=r"stage-1.*set back"):
        fit(LogisticRegression())
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "whole", folder)
    fit(GaussianNB())  # another learner from the same draws is free
    assert [run.state for run in ledger.runs()] == ["settled"]
    assert ledger.spent("d", "label") == 2.0
    assert ledger.verify() == []


def test_what_is_announced_holds_no_label(tmp_path: Path) -> None:
    """All labels differ, and the entries of the history are the same but for run, time and hash."""
    said = []
    for flip in (0, 1):
        ledger = Ledger(tmp_path / f"{flip}.db")
        facts = {
            "classes": [0, 1],
            "epsilon": 2.0,
            "laws": {"name": "test"},
            "dataset": "d",
            "ids": np.arange(N),
        }
        run = open_run((np.arange(N) + flip) % 2, **facts, ledger=ledger)
        run.privatize(np.arange(100), RandomizedResponse(2, 2.0), stage="a")
        own = ("run_id", "at", "hash", "ledger")
        said.append(
            json.dumps(
                [
                    {name: value for name, value in entry.items() if name not in own}
                    for entry in ledger.history()
                ]
            )
        )
    assert said[0] == said[1]
    assert "parts" in said[0]


def test_a_prior_is_announced_too(ledger: Ledger) -> None:
    run = run_of(ledger)
    run.privatize(np.arange(N), RRWithPrior(2, 2.0), np.tile([0.9, 0.1], (N, 1)), stage="a")
    folder = ledger.run_dir(run.receipt.run_id)
    for end in ("side.npz", "parquet", "rows-drawn.npy"):
        (folder / f"a.{end}").unlink()
    with pytest.raises(LedgerError, match="set back"):
        run_of(ledger).privatize(
            np.arange(N), RRWithPrior(2, 2.0), np.tile([0.1, 0.9], (N, 1)), stage="a"
        )
