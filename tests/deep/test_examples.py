# SPDX-License-Identifier: Apache-2.0
"""The examples run as they are, learn, and record what they spent."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import labeldp as ldp

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "dataset", "needs", "least"),
    [
        ("lightning_loop.py", "digits", ("pytorch_lightning",), 0.55),
        ("hugging_face_trainer.py", "texts", ("transformers", "accelerate"), 0.7),
    ],
)
def test_examples_learn_from_noisy_labels(name, dataset, needs, least, tmp_path):
    for package in needs:
        pytest.importorskip(package, reason=f"the example needs {package}: `make test-deep` installs it")
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, tmp_path], capture_output=True, text=True, stdin=subprocess.DEVNULL, env={**os.environ, **offline}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (accuracy,) = re.findall(r"2-label-DP, accuracy (\d\.\d+)", done.stdout)
    assert float(accuracy) > least
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    assert ledger.spent(dataset, "label") == 2.0
    assert [run.state for run in ledger.runs()] == ["settled"]
