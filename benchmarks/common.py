# SPDX-License-Identifier: Apache-2.0
"""Shared by the benchmarks: conditions of a run, kept results, data as arrays, subprocesses."""

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import labeldp as ldp
from benchmarks import data as datasets

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(os.environ.get("BENCHMARK_RESULTS", ROOT / "benchmarks" / "results"))
"""Where results are kept. The environment variable names another folder, to try a benchmark out."""
PACKAGES = ("labeldp", "numpy", "scipy", "scikit-learn", "pyarrow", "cryptography")

Run = dict[str, Any]
"""One run as JSON holds it: what was asked for, what was measured, and under which conditions."""
Array = NDArray[Any]


# Conditions
# --------------------------------------------------------------------------------------------------


def machine() -> dict[str, object]:
    """Processor, load, versions, commit and time: kept beside every result."""
    info = Path("/proc/cpuinfo")
    names = (
        [
            line.split(":")[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        if info.exists()
        else []
    )
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "commit": commit(),
        "at": now(),
    }


def commit() -> str:
    """The commit of the working tree, with a plus if files have changed since; what
    BENCHMARK_COMMIT says in a copy without its history."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return os.environ.get("BENCHMARK_COMMIT", "")
    return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*words: str) -> str:
    try:
        return subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
        ).stdout.strip()
    except FileNotFoundError:  # no git here
        return ""


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


# Kept results
# --------------------------------------------------------------------------------------------------


def load_runs(path: Path) -> list[Run]:
    """All runs in a JSON file; none where there is no file."""
    return list(load_json(path)["runs"]) if path.exists() else []


def save_runs(path: Path, runs: Sequence[Run]) -> None:
    """Replace the file by these runs."""
    save_json(path, {"runs": list(runs)})


def load_json(path: Path) -> dict[str, Any]:
    """A kept result; `zcat` shows it to people."""
    return dict(json.loads(gzip.decompress(path.read_bytes())))


def save_json(path: Path, result: object) -> None:
    """Replace a file whole, so that a stop in between loses nothing. What is equal has equal bytes:
    the compressed file has no time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(gzip.compress((json.dumps(result, indent=1) + "\n").encode(), mtime=0))
    part.replace(path)


def run_missing(
    path: Path,
    wanted: Iterable[Run],
    key: Callable[[Run], Hashable],
    measure: Callable[[Run], Run],
    jobs: int = 1,
) -> None:
    """Measure those of the wanted runs that are not kept as finished, in so many processes, and
    keep each as it comes."""
    warnings.simplefilter("ignore")
    runs = load_runs(path)
    done = {key(run) for run in runs if "finished" in run}
    todo = [run | {"started": now()} for run in wanted if key(run) not in done]
    with ProcessPoolExecutor(jobs) as pool:
        for number, run in enumerate((pool.map if jobs > 1 else map)(measure, todo), 1):
            runs.append(run | {"machine": machine(), "finished": now()})
            save_runs(path, runs)
            print(f"{number}/{len(todo)} {key(run)}", flush=True)


# Commands
# --------------------------------------------------------------------------------------------------


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark's options; `--help` shows its module's docstring."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def command(name: str, *arguments: str) -> list[str]:
    """The command line of a benchmark, for a process of its own; run it in `ROOT`."""
    return [sys.executable, "-W", "ignore", "-m", "benchmarks", name, *arguments]


def environment(threads: int = 1) -> dict[str, str]:
    """Return a subprocess's environment: its number of threads, and the path by which its workers
    find this package."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": path,
    }


def measured_apart(name: str, *arguments: str) -> Run:
    """Run a benchmark in a fresh process and return the JSON object that it prints last."""
    done = subprocess.run(
        command(name, *arguments),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def print_result(result: object) -> None:
    """Print JSON, on one line where a program reads it."""
    print(json.dumps(result, indent=1 if sys.stdout.isatty() else None))


# Data
# --------------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """A data set's train and test rows, flat."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array
    dataset: datasets.DataSet


def equivalents(n: int, k: int, epsilon: float) -> float:
    """How many true labels of k classes say as much as n draws at this epsilon, each by subset
    selection without a prior."""
    return float(n * ldp.SubsetSelection(k, epsilon).information() / np.log(k))


TRUE = "as many true labels"
"""The method that learns from the true labels of `rows_worth`: a yardstick, no bound."""


def rows_worth(y: Array, k: int, epsilon: float, seed: int) -> Array:
    """Choose random rows, as many as the noisy labels of all rows are worth true ones, and one more
    where all are of one class."""
    rows = np.random.default_rng(seed).permutation(len(y))[
        : max(2, round(equivalents(len(y), k, epsilon)))
    ]
    return rows if len(set(y[rows])) > 1 else np.append(rows, np.flatnonzero(y != y[rows[0]])[0])


SIZES = {
    "adult": (32_561, 2),
    "credit_default": (20_000, 2),
    "digits": (1_198, 10),
    "mnist": (60_000, 10),
    "fashion_mnist": (60_000, 10),
    "cifar10": (50_000, 10),
    "cifar100": (50_000, 100),
}
"""Training rows, as `parts` gives them, and classes: tables are printed without the data."""


def worth(name: str, epsilon: float) -> str:
    """The label equivalents of a data set's training rows, as a cell of a table."""
    return f"{equivalents(*SIZES[name], epsilon):,.0f}"


@cache
def parts(name: str, rows: int | None = None) -> Parts:
    """Train and test rows of a data set, images flat in [0, 1]; sets without an official split are
    split once, two thirds to one third.

    Parameters
    ----------
    name : str
        As `benchmarks.data` has it.
    rows : int, optional
        Only the first training rows, for a trial.
    """
    dataset = datasets.load(name)
    X, y, X_test, y_test = dataset.X_train, dataset.y_train, dataset.X_test, dataset.y_test
    if not len(y_test):
        order = np.random.default_rng(0).permutation(len(y))
        train, test = order[: 2 * len(y) // 3], order[2 * len(y) // 3 :]
        X, y, X_test, y_test = X[train], y[train], X[test], y[test]
    if X.ndim > 2:
        X, X_test = (scaled(part) for part in (X, X_test))
    return Parts(X[:rows], y[:rows], X_test, y_test, dataset)


def scaled(images: Array) -> Array:
    """Flat images, bytes in [0, 1]: (n, pixels)."""
    return np.asarray(np.true_divide(images.reshape(len(images), -1), np.float32(255)))
