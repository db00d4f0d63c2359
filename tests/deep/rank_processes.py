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


def fitted(place, y, **settings):
    """Class probabilities, or the error."""
    ledger = ldp.Ledger(place / "ledger.db")
    options = {
        "n_stages": 2,
        "classes": range(K),
        "dataset": "d",
        "ledger": ledger,
        "random_state": 0,
    }
    options |= {"recipe": Recipe(epochs=2, precision="float32")}
    try:
        model = TorchClassifier(lambda k: Mlp(K, k, (8,)), **options | settings).fit(
            problem()[0], y
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
    mine = y if rank == 0 else None
    found = {
        "none elsewhere": fitted(folder, mine),
        "again": fitted(folder, mine),
        "classes from the first": fitted(folder, mine, classes="infer", dataset="e"),
        "no classes": fitted(folder, mine, classes=None, dataset="f"),
        "none anywhere": fitted(folder, None),
        "another class": fitted(folder, mine if mine is None else mine + 1, dataset="f"),
        "too few": fitted(folder, mine if mine is None else mine[1:], dataset="f"),
        "a file": fitted(folder, mine, folder="/dev/null"),
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
