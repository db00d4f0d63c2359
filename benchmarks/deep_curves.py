# SPDX-License-Identifier: Apache-2.0
"""Learning curves: what each epoch's net says of some test rows, and, after training, how good that was (Ghazi et al. 2021, figure 3)."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from plots import save

from labeldp.laws import RRWithPrior

WATCHED_ROWS = 2000

Floats = NDArray[np.float64]


def scored(proba: Floats, labels: NDArray[np.int64], epsilon: float | None, rates: bool) -> dict[str, float]:
    """Accuracy of an epoch's net; and as a prior of RRWithPrior at this epsilon: mean k, and how often the label is among the k."""
    n_classes = proba.shape[1]
    found = {"accuracy": float(np.mean(proba.argmax(axis=1) == labels))}
    if rates:
        found["rmse"] = float(np.sqrt(np.mean((proba @ np.arange(n_classes) - labels) ** 2)))
    if epsilon is None:
        return found
    size = np.asarray(RRWithPrior(n_classes, epsilon).prepare(proba)["size"]).astype(np.int64)
    rank = (proba > proba[np.arange(len(labels)), labels][:, None]).sum(axis=1)
    return found | {"mean_k": float(size.mean()), "top_k_accuracy": float(np.mean(rank < size))}


def plot(runs: Sequence[dict], title: str, path: Path) -> bool:
    """One run's curves over the epochs of all its stages; False without matplotlib or without a run that was watched."""
    watched = [run for run in runs if run["epochs"] and "mean_k" in run["epochs"][-1]]
    if not watched:
        return False
    return save(path, [[partial(_draw, run=run) for run in watched]], size=(5.2, 4.2), title=title, sharey=True)


def _draw(axes, run: dict) -> None:
    at = np.arange(1, len(run["epochs"]) + 1)
    for name, label, style in (("accuracy", "accuracy", "o-"), ("top_k_accuracy", "label among the k that RRWithPrior keeps", "s--")):
        axes.plot(at, [100 * epoch[name] for epoch in run["epochs"]], style, markersize=3, label=label)
    right = axes.twinx()
    right.plot(at, [epoch["mean_k"] for epoch in run["epochs"]], "C2:", label="mean k (right)")
    right.set_ylim(1, 10)
    for place, epoch in enumerate(run["epochs"]):
        if epoch["epoch"] == 1 and place:
            axes.axvline(place + 0.5, color="grey", linewidth=0.8)
    axes.set(xlabel="epoch (a line where a stage begins)", ylabel="% of test rows", title=f"{run['method']}, eps {run['epsilon']:g}")
    lines = [*axes.get_lines()[:2], *right.get_lines()]
    axes.legend(lines, [line.get_label() for line in lines], fontsize=8, loc="center right")
