# SPDX-License-Identifier: Apache-2.0
"""What each process of test_ranks.py does: fits of which the first one alone has the labels."""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import labeldp as ldp
from labeldp.deep import Recipe, TorchClassifier
from labeldp.deep._loop import from_first
from labeldp.deep.models import Mlp

K, N = 3, 200


def problem():
    rng = np.random.default_rng(0)
    y = rng.integers(K, size=N)
    return (3 * np.eye(K)[y] + rng.normal(size=(N, K))).astype(np.float32), y


def closed(place, y, **facts):
    """The labels of the first process; None in the others."""
    account = {"dataset": "d", "column": "label", "ledger": ldp.Ledger(place / "ledger.db")}
    rank = dist.get_rank()
    return ldp.PrivateLabels(y, **{"classes": range(K)} | account | facts) if rank == 0 else None


def fitted(labels, **settings):
    """Class probabilities, or the error."""
    options = {"stages": 2, "random_state": 0, "recipe": Recipe(epochs=2, precision="float32")}
    try:
        model = TorchClassifier(lambda k: Mlp(K, k, (8,)), **options | settings).fit(
            problem()[0], labels
        )
    except ldp.errors.LabelDPError as error:
        return f"{type(error).__name__}: {error}"
    return model.predict_proba(problem()[0]).round(6).tolist()


def broken():
    raise OSError("text with sentinel-label")


def main(folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, (_, y) = dist.get_rank(), problem()
    found = {
        "none elsewhere": fitted(closed(folder, y)),
        "again": fitted(closed(folder, y)),
        "classes from the first": fitted(closed(folder, y, classes="infer", dataset="e")),
        "none anywhere": fitted(None),
        "too few": fitted(closed(folder, y[1:], dataset="f")),
        "a file": fitted(closed(folder, y), folder="/dev/null"),
    }
    try:
        from_first(broken)
    except (OSError, ldp.errors.LabelDPError) as error:
        found["error"] = f"{type(error).__name__}: {error}"
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # gloo's threads may still run, and would abort the interpreter's own end


if __name__ == "__main__":
    main(Path(sys.argv[1]))
