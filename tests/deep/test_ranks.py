# SPDX-License-Identifier: Apache-2.0
"""Of several processes the first one alone reads raw labels, and none waits for one that has
failed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.deep import rank_processes

import labeldp as ldp


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two processes of torchrun found, and their folder."""
    folder = tmp_path_factory.mktemp("two")
    program = Path(rank_processes.__file__)
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        program,
        folder,
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)], folder


def test_the_first_process_alone_has_labels(two):
    (first, second), folder = two
    for name in ("none elsewhere", "classes from the first"):
        assert len(first[name]) == rank_processes.N and first[name] == second[name]
    assert first["again"] == first["none elsewhere"]
    ledger = ldp.Ledger(folder / "ledger.db")
    assert ledger.spent("d", "label") == ledger.spent("e", "label") == 1.0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none anywhere", "Expected y: PrivateLabels"),
        ("too few", "numbers of samples"),
        ("a file", "Expected folder="),
    ],
)
def test_faults_of_labels_and_folders_are_told_in_every_process(two, name, words):
    found, folder = two
    assert all(each[name].startswith("InvalidInput") and words in each[name] for each in found)
    assert ldp.Ledger(folder / "ledger.db").spent("f", "label") == 0


def test_any_error_of_the_first_stops_all_and_its_text_stays_there(two):
    first, second = two[0]
    assert first["error"] == "OSError: text with sentinel-label"
    assert second["error"].startswith("LabelDPError") and "stopped with OSError" in second["error"]
    assert "sentinel" not in second["error"]
