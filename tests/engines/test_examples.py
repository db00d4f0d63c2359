# SPDX-License-Identifier: Apache-2.0
"""The examples run as they are."""

import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import labeldp as ldp

pytestmark = pytest.mark.engines
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SEEDED = Path(__file__).resolve().parents[1] / "entropy.py"


def test_two_stages_on_spark(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs labeldp[spark]")
    done = subprocess.run(
        [sys.executable, SEEDED, EXAMPLES / "two_stages_on_spark.py", tmp_path / "work"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    first, second = (float(found) for found in re.findall(r"accuracy (0\.\d+)", done.stdout))
    assert 0.7 < first < second + 0.03  # 0.79 and 0.83 on average
    assert "spent: epsilon 1\n" in done.stdout and "state: settled" in done.stdout
    parts = [
        set(pq.read_table(tmp_path / "work" / f"stage-{number}")["id"].to_pylist())
        for number in (1, 2)
    ]
    assert not parts[0] & parts[1] and len(parts[0] | parts[1]) == 8000
    assert [run.state for run in ldp.Ledger(tmp_path / "work" / "ledger" / "ledger.db").runs()] == [
        "settled"
    ]
