# SPDX-License-Identifier: Apache-2.0
"""The examples run as they are, learn, and record what they spent."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import labeldp as ldp

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SEEDED = Path(__file__).resolve().parents[1] / "entropy.py"


@pytest.mark.parametrize(
    ("name", "dataset", "needs", "least"),
    [
        ("lightning_loop.py", "digits", ("pytorch_lightning",), 0.55),
        ("hugging_face_trainer.py", "texts", ("transformers", "accelerate"), 0.7),
    ],
)
def test_examples_learn_from_noisy_labels(name, dataset, needs, least, tmp_path):
    for package in needs:
        pytest.importorskip(
            package, reason=f"the example needs {package}: `make test-deep` installs it"
        )
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, SEEDED, EXAMPLES / name, tmp_path],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **offline},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (accuracy,) = re.findall(r"2-label-DP, accuracy (\d\.\d+)", done.stdout)
    assert float(accuracy) > least
    assert_spent(tmp_path, dataset)


def test_a_fit_in_ray_train_draws_once_and_gives_every_worker_the_same_net(tmp_path):
    for package in ("ray", "lightning_fabric"):
        pytest.importorskip(
            package,
            reason=f"the example needs {package}: pip install 'labeldp[fabric]' 'ray[train]'",
        )
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
    }
    done = subprocess.run(
        [sys.executable, EXAMPLES / "ray_train.py", tmp_path],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert (
        float(
            re.findall(r"2-label-DP, accuracy (\d\.\d+), 2 workers", done.stdout + done.stderr)[0]
        )
        > 0.5
    )
    first, second = (torch.load(tmp_path / f"net-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert_spent(tmp_path, "digits")


def assert_spent(folder, dataset):
    """Twice the one epsilon would be a second draw."""
    ledger = ldp.Ledger(folder / "ledger.db")
    assert ledger.spent(dataset, "label") == 2.0
    assert [run.state for run in ledger.runs()] == ["settled"]
