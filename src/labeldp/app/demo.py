# SPDX-License-Identifier: Apache-2.0
"""`labeldp demo` and `make demo`: on two real data sets at three budgets, compare labeldp with
plain randomized response.

The data are public, so the noise comes from seeds and every run can be repeated; for the same
reason nothing here is private.
"""

import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.console import Console
from rich.progress import track
from sklearn import datasets
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from labeldp import _validate
from labeldp.custody._private import PrivateLabels
from labeldp.custody._run import privatize
from labeldp.errors import SeededNoiseWarning, UnrecordedWarning
from labeldp.laws import RandomizedResponse
from labeldp.learn import LabelDPClassifier
from labeldp.noise._words import SeededNoise
from labeldp.tables._place import workplace

EPSILONS = (1.0, 2.0, 4.0)
PRIVATE = {
    "today": (
        "randomized response, then the same estimator on the noisy labels as if they were true"
        " (what people do today)"
    ),
    "one stage": "LabelDPClassifier(estimator, epsilon, stages=1)",
    "two stages": "LabelDPClassifier(estimator, epsilon, stages=2)",
}
METHODS = PRIVATE | {"no privacy": "the same estimator on the true labels: the bound"}
TASKS = {
    "digits": "10 classes, 1797 rows; scaled logistic regression (C=0.01)",
    "breast_cancer": "2 classes, 569 rows; gradient boosting (50 stumps, at least 20 rows a leaf)",
}
TEST_SIZE = 0.3
DATA, PAGE = "summary.json", "summary.md"
_PAGE = """# labeldp demo

Accuracy on true test labels in percent{spread}.

{tables}
Bold: the best private way. The columns:

{methods}

With two classes every law is the same one and a second stage could not help, so labeldp runs one:
those columns are equal.

{test:.0%} of the rows are test rows, never privatized; within a seed all methods share the split
and the estimator.
eps bounds what a model tells of one training row's label: nobody's odds for a label change by more
than a factor e^eps.
The data are public and the noise is seeded so that this can be repeated: these runs protect
nothing.

{fits} fits in {seconds:.0f} s on one thread, {machine}.
{versions}. Every run is in `{data}`.
"""


def estimator(task: str) -> Any:
    """Make the estimator of a task, the same for every method, regularised so that plain randomized
    response does well."""
    if task == "digits":
        return make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    return GradientBoostingClassifier(
        n_estimators=50, max_depth=1, min_samples_leaf=20, random_state=0
    )


def accuracy(task: str, method: str, epsilon: float | None, seed: int) -> float:
    """Fit one model and score it on the true labels of the test rows; for one seed all methods
    share the train and test rows."""
    load = {"digits": datasets.load_digits, "breast_cancer": datasets.load_breast_cancer}[task]
    X, y = load(return_X_y=True)
    X, X_test, y, y_test = train_test_split(
        X, y, test_size=TEST_SIZE, random_state=seed, stratify=y
    )
    model, labels, n_classes = estimator(task), y, int(y.max()) + 1
    private = PrivateLabels(y, classes=range(n_classes), noise=SeededNoise(seed))
    with warnings.catch_warnings():
        # the data are public, and the summary says so
        warnings.simplefilter("ignore", SeededNoiseWarning)
        warnings.simplefilter("ignore", UnrecordedWarning)
        if method == "today":
            law = RandomizedResponse(n_classes, cast(float, epsilon))
            labels = privatize(private, law).hard()
        elif method != "no privacy":
            labels = private
            model = LabelDPClassifier(
                model,
                epsilon=cast(float, epsilon),
                stages=1 if method == "one stage" else 2,
                random_state=seed,
            )
        model.fit(X, labels)
    return float(np.mean(np.asarray(model.predict(X_test)) == y_test))


def summarise(runs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compute one row for each task and epsilon: mean and standard deviation of each method's
    accuracy over the seeds, in percent."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for run in runs:
        key = run["task"], run["method"], run["epsilon"]
        found.setdefault(key, []).append(100 * run["accuracy"])
    rows: list[dict[str, Any]] = [{"task": task, "epsilon": e} for task in TASKS for e in EPSILONS]
    for row in rows:
        for method in METHODS:
            values = found[row["task"], method, row["epsilon"] if method in PRIVATE else None]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            row[method] = {"mean": statistics.mean(values), "sd": spread}
    return rows


def _cells(row: Mapping[str, Any]) -> list[str]:
    best = max(row[method]["mean"] for method in PRIVATE)
    cells = [f"{row['epsilon']:g}"]
    for method in METHODS:
        spread = row[method]["sd"]  # 0 for a single seed, which has no spread to show
        text = f"{row[method]['mean']:.1f}" + (f" ± {spread:.1f}" if spread else "")
        cells.append(f"**{text}**" if method in PRIVATE and row[method]["mean"] == best else text)
    return cells


def markdown(result: Mapping[str, Any]) -> str:
    """Write the one-page summary."""
    tables = ""
    for task, about in TASKS.items():
        rows = [_cells(row) for row in result["rows"] if row["task"] == task]
        lines = [["eps", *METHODS], ["---"] * (len(METHODS) + 1), *rows]
        tables += f"## {task}: {about}\n\n"
        tables += "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"
    facts = dict(result) | {
        "spread": (
            f", mean ± standard deviation over {result['seeds']} seeds"
            if result["seeds"] > 1
            else ", of one seed"
        ),
        "tables": tables,
        "methods": "\n".join(f"* **{name}**: {about}" for name, about in METHODS.items()),
        "versions": ", ".join(f"{name} {found}" for name, found in result["versions"].items()),
    }
    return _PAGE.format(test=TEST_SIZE, data=DATA, **facts)


def run(out: str | Path = "demo-out", *, seeds: int = 8) -> dict[str, Any]:
    """Run the demo on one thread, with a progress bar, and write summary.md and summary.json.

    Parameters
    ----------
    out : path, default="demo-out"
        Folder to write to; created if missing.
    seeds : int, default=8
        Number of noise seeds and splits to average over.

    Returns
    -------
    dict
        The content of summary.json: `rows` (a mean and spread per task, epsilon and method), `runs`
        (every fit), and the conditions.
    """
    numbers, folder = range(_validate.integer(seeds=seeds, low=1)), Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    # a folder that cannot be written is refused before the training, not after it
    with workplace(folder / DATA):
        pass
    ways = [(method, epsilon) for epsilon in EPSILONS for method in PRIVATE]
    fits: list[tuple[str, str, float | None, int]] = [
        (task, method, epsilon, seed)
        for task in TASKS
        for seed in numbers
        for method, epsilon in (("no privacy", None), *ways)
    ]
    start, console = time.perf_counter(), Console(stderr=True)
    with threadpool_limits(1):  # a small fit on two threads is far slower than on one
        runs = [
            dict(zip(("task", "method", "epsilon", "seed"), fit, strict=True))
            | {"accuracy": accuracy(*fit)}
            for fit in track(fits, "Training", console=console, transient=True)
        ]
    result: dict[str, Any] = {
        "rows": summarise(runs),
        "seeds": seeds,
        "fits": len(fits),
        "seconds": time.perf_counter() - start,
        "insecure": "seeded noise on public data: these runs protect nothing",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("labeldp", "numpy", "scikit-learn")},
        "runs": runs,
    }
    (folder / DATA).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (folder / PAGE).write_text(markdown(result), encoding="utf-8")
    return result
