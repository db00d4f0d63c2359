# SPDX-License-Identifier: Apache-2.0
"""`labeldp demo` and `make demo`: on two real data sets at three budgets, compare labeldp with
plain randomized response.

The data are public, so the noise comes from seeds and every run can be repeated; for the same
reason nothing here is private.
"""

import json
import math
import multiprocessing
import os
import platform
import signal
import statistics
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from labeldp import _validate
from labeldp.errors import SeededNoiseWarning, UnrecordedWarning
from labeldp.tables._place import workplace

EPSILONS = (1.0, 2.0, 4.0)
METHODS = {
    "today": (
        "randomized response, then the same estimator on the noisy labels as if they were true"
        " (what people do today)"
    ),
    "one stage": "LabelDPClassifier(estimator, epsilon, n_stages=1)",
    "two stages": "LabelDPClassifier(estimator, epsilon, n_stages=2)",
    "no privacy": "the same estimator on the true labels: the bound",
}
TASKS = {
    "digits": "10 classes, 1797 rows; scaled logistic regression (C=0.01)",
    "breast_cancer": "2 classes, 569 rows; gradient boosting (50 stumps, at least 20 rows a leaf)",
}
TWO_CLASSES = (
    "With two classes every law is the same one and a second stage could not help, so labeldp runs"
    " one: those columns are equal."
)
TEST_SIZE = 0.3
DATA, PAGE = "summary.json", "summary.md"


@dataclass(frozen=True)
class Job:
    """One fit: its data, method, epsilon (infinite without privacy) and seed."""

    task: str
    method: str
    epsilon: float
    seed: int


@dataclass(frozen=True)
class Score:
    """The accuracy of one job on true test labels, and its time in seconds."""

    job: Job
    accuracy: float
    seconds: float


def jobs(seeds: int) -> list[Job]:
    """List every fit of the demo; for one seed all methods share the train and test rows."""
    listed = []
    for task in TASKS:
        for seed in range(seeds):
            listed.append(Job(task, "no privacy", math.inf, seed))
            listed += [
                Job(task, method, epsilon, seed)
                for epsilon in EPSILONS
                for method in list(METHODS)[:3]
            ]
    return listed


def estimator(task: str) -> Any:
    """Make the estimator of a task, the same for every method, regularised so that plain randomized
    response does well."""
    if task == "digits":
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        return make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    from sklearn.ensemble import GradientBoostingClassifier

    return GradientBoostingClassifier(
        n_estimators=50, max_depth=1, min_samples_leaf=20, random_state=0
    )


def _load(task: str) -> tuple[Any, Any]:
    from sklearn import datasets

    load = datasets.load_digits if task == "digits" else datasets.load_breast_cancer
    X, y = load(return_X_y=True)
    return X, y


def run_job(job: Job) -> Score:
    """Fit one model and score it on the true labels of the test rows."""
    from sklearn.model_selection import train_test_split

    X, y = _load(job.task)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=TEST_SIZE, random_state=job.seed, stratify=y
    )
    start = time.perf_counter()
    with warnings.catch_warnings():
        # the data are public, and the summary says so
        warnings.simplefilter("ignore", SeededNoiseWarning)
        warnings.simplefilter("ignore", UnrecordedWarning)
        model = fit(job, X_train, y_train, n_classes=int(y.max()) + 1)
    accuracy = float(np.mean(np.asarray(model.predict(X_test)) == y_test))
    return Score(job, accuracy, time.perf_counter() - start)


def fit(job: Job, X: Any, y: Any, n_classes: int) -> Any:
    """Fit the model of one job on features X (n, d) and labels y (n,) in 0..K-1."""
    from labeldp.custody._run import privatize
    from labeldp.laws import RandomizedResponse
    from labeldp.learn import LabelDPClassifier
    from labeldp.noise._words import SeededNoise

    noise = SeededNoise(job.seed)
    if job.method == "no privacy":
        return estimator(job.task).fit(X, y)
    if job.method == "today":
        noisy = privatize(
            y, RandomizedResponse(n_classes, job.epsilon), classes=range(n_classes), noise=noise
        )
        return estimator(job.task).fit(X, noisy.hard())
    model = LabelDPClassifier(
        estimator(job.task),
        epsilon=job.epsilon,
        n_stages=1 if job.method == "one stage" else 2,
        classes=range(n_classes),
        noise=noise,
        random_state=job.seed,
    )
    return model.fit(X, y)


def _single_threaded() -> None:
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: a terminal sends it to all of them, and each
    would print a traceback."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # processes inherit the mask of the thread that starts them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_all(listed: Sequence[Job], workers: int, console: Console) -> list[Score]:
    """Run the jobs in single-threaded worker processes, with a progress bar: a small fit on two
    threads is far slower than on one."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # the workers are started afresh and read these
    columns = (TextColumn("Training"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Forked workers would inherit thread pools that were already started with many threads.
    context = multiprocessing.get_context("spawn")
    scores = []
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_single_threaded) as pool:
        others, started = multiprocessing.active_children(), []
        try:
            with _deaf_to_interrupts():
                futures = [pool.submit(run_job, job) for job in listed]
                started = [each for each in multiprocessing.active_children() if each not in others]
            with Progress(*columns, console=console, transient=True) as progress:
                bar = progress.add_task("", total=len(listed))
                for future in as_completed(futures):
                    scores.append(future.result())
                    progress.advance(bar)
        except BaseException:
            for worker in started:
                worker.terminate()  # else it would go on with the fits that were handed to it
            pool.shutdown(cancel_futures=True)
            raise
    order = {job: i for i, job in enumerate(listed)}
    return sorted(scores, key=lambda score: order[score.job])


def summarise(scores: Iterable[Score]) -> list[dict[str, Any]]:
    """Compute one row for each task and epsilon: mean and standard deviation of each method's
    accuracy over the seeds, in percent."""
    found: dict[tuple[str, str, float], list[float]] = {}
    for score in scores:
        found.setdefault((score.job.task, score.job.method, score.job.epsilon), []).append(
            100 * score.accuracy
        )
    rows = []
    for task in TASKS:
        for epsilon in EPSILONS:
            row: dict[str, Any] = {"task": task, "epsilon": epsilon}
            for method in METHODS:
                values = found[task, method, math.inf if method == "no privacy" else epsilon]
                row[method] = {
                    "mean": statistics.mean(values),
                    "sd": statistics.stdev(values) if len(values) > 1 else 0.0,
                }
            rows.append(row)
    return rows


def _cells(row: Mapping[str, Any]) -> list[str]:
    best = max(row[method]["mean"] for method in list(METHODS)[:3])
    cells = []
    for method in METHODS:
        spread = row[method]["sd"]  # 0 for a single seed, which has no spread to show
        text = f"{row[method]['mean']:.1f}" + (f" ± {spread:.1f}" if spread else "")
        cells.append(
            f"**{text}**" if method != "no privacy" and row[method]["mean"] == best else text
        )
    return [f"{row['epsilon']:g}", *cells]


def findings(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """State the result of each row of the table in one sentence."""
    sentences = []
    for row in rows:
        way = max(("one stage", "two stages"), key=lambda method: row[method]["mean"])
        today, ours, bound = row["today"]["mean"], row[way]["mean"], row["no privacy"]["mean"]
        sentences.append(
            f"{row['task']}, eps {row['epsilon']:g}: {today:.1f} today, {ours:.1f} with labeldp in"
            f" {way} ({ours - today:+.1f}); {bound:.1f} without privacy."
        )
    return sentences


def _measure(result: Mapping[str, Any]) -> str:
    """Say what the numbers of the table are."""
    spread = (
        f", mean ± standard deviation over {result['seeds']} seeds"
        if result["seeds"] > 1
        else ", of one seed"
    )
    return f"Accuracy on true test labels in percent{spread}"


def markdown(result: Mapping[str, Any]) -> str:
    """Write the one-page summary."""
    lines = ["# labeldp demo", "", f"{_measure(result)}.", ""]
    heads = ["eps", *METHODS]
    for task, about in TASKS.items():
        lines += [
            f"## {task}: {about}",
            "",
            "| " + " | ".join(heads) + " |",
            "|" + "---|" * len(heads),
        ]
        lines += [
            "| " + " | ".join(_cells(row)) + " |" for row in result["rows"] if row["task"] == task
        ]
        lines.append("")
    lines += [
        "Bold: the best private way. The columns:",
        "",
        *(f"* **{name}**: {about}" for name, about in METHODS.items()),
        "",
    ]
    lines += [
        TWO_CLASSES,
        "",
        "What it says:",
        "",
        *(f"* {sentence}" for sentence in findings(result["rows"])),
        "",
    ]
    lines += [
        (
            f"{TEST_SIZE:.0%} of the rows are test rows, never privatized; within a seed all"
            " methods share the split and the estimator."
        ),
        (
            "eps bounds what a model tells of one training row's label: nobody's odds for a label"
            " change by more than a factor e^eps."
        ),
        (
            "The data are public and the noise is seeded so that this can be repeated: these runs"
            " protect nothing."
        ),
        "",
        (
            f"{result['fits']} fits in {result['seconds']:.0f} s, {result['workers']} workers of"
            f" one thread, {result['machine']}."
        ),
        ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + f". Every run is in `{DATA}`.",
        "",
    ]
    return "\n".join(lines)


def run(
    out: str | Path = "demo-out",
    *,
    seeds: int = 8,
    workers: int = 2,
    console: Console | None = None,
) -> dict[str, Any]:
    """Run the demo and write summary.md and summary.json.

    Parameters
    ----------
    out : path, default="demo-out"
        Folder to write to; created if missing.
    seeds : int, default=8
        Number of noise seeds and splits to average over.
    workers : int, default=2
        Number of single-threaded processes.
    console : rich Console, optional
        Console of the progress bar; default: standard error.

    Returns
    -------
    dict
        The content of summary.json: `rows` (a mean and spread per task, epsilon and method), `runs`
        (every fit), and the conditions.
    """
    seeds = _validate.integer(seeds=seeds, low=1)
    workers = _validate.integer(workers=workers, low=1)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    # a folder that cannot be written is refused before the training, not after it
    with workplace(folder / DATA):
        pass
    start, listed = time.perf_counter(), jobs(seeds)
    scores = run_all(listed, workers, console or Console(stderr=True))
    result: dict[str, Any] = {
        "rows": summarise(scores),
        "seeds": seeds,
        "workers": workers,
        "fits": len(listed),
        "seconds": time.perf_counter() - start,
        "insecure": "seeded noise on public data: these runs protect nothing",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": (
            {"python": platform.python_version()}
            | {name: version(name) for name in ("labeldp", "numpy", "scikit-learn")}
        ),
        "runs": [
            asdict(score.job)
            | {"accuracy": score.accuracy, "seconds": score.seconds}
            # JSON has no infinity
            | ({} if math.isfinite(score.job.epsilon) else {"epsilon": None})
            for score in scores
        ],
    }
    (folder / DATA).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (folder / PAGE).write_text(markdown(result), encoding="utf-8")
    return result
