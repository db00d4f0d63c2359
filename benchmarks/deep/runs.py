# SPDX-License-Identifier: Apache-2.0
"""Runs of the deep benchmarks: each in a process of its own, recorded before it starts and after it
ends, failed ones too."""

import fcntl
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import (
    RESULTS,
    ROOT,
    Run,
    command,
    environment,
    load_runs,
    machine,
    now,
    save_runs,
)
from benchmarks.deep import dpsgd
from benchmarks.deep.counts import fit as taught_by_counts
from benchmarks.deep.data import load
from benchmarks.deep.nets import n_parameters
from benchmarks.deep.recipes import Method, data_of, recipe_of
from benchmarks.deep.train import (
    WATCHED_ROWS,
    best_by_noisy_labels,
    fit,
    precision_used,
    probabilities,
    scored,
    scores,
)

FIRST_SEED = 100  # seeds below were used to choose recipes
TINY_ROWS = 600
# grids of before precision was recorded: they compare recipes among themselves
OF_THEN = ("splits", "mixups")


def results_file(tiny: bool) -> Path:
    """Return the file of the recorded runs; trial runs of the commands have a file of their own."""
    return (
        Path(tempfile.gettempdir(), "labeldp-deep-tiny.json.gz")
        if tiny
        else RESULTS / "deep.json.gz"
    )


def record(path: Path, run: Run) -> None:
    """Add a run, or replace it by what is now known of it. One command at a time, and a kill leaves
    the old file."""
    with Path(tempfile.gettempdir(), "labeldp-deep.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        save_runs(path, [*(other for other in load_runs(path) if other["id"] != run["id"]), run])


def same(a: Run, b: Run) -> bool:
    """True for runs of one cell, seed and recipe."""
    return all(
        a.get(name) == b.get(name)
        for name in ("table", "size", "method", "epsilon", "seed", "recipe")
    )


def counts(run: Run) -> bool:
    """Whether a finished run is one of its table's. Before precision was recorded, laws were
    others, too; two grids have runs of then."""
    return run["table"] in OF_THEN or bool(run.get("precision"))


def wanted(
    table: str, size: str, methods: Sequence[str], epsilons: Sequence[float], seeds: int, tiny: bool
) -> Iterator[Run]:
    """Every run of a table, one seed of everything first."""
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for number, epsilon in enumerate(epsilons):
            for method in methods:
                private = not method.startswith("non-private")
                if not private and number:
                    continue
                at = float(epsilon) if private else None
                recipe = _recipe(table, size, method, at, tiny).described()
                yield {
                    "table": table,
                    "size": size,
                    "method": method,
                    "epsilon": at,
                    "seed": seed,
                    "recipe": recipe,
                    "tiny": tiny,
                }


def _recipe(table: str, size: str, name: str, epsilon: float | None, tiny: bool) -> Method:
    found = recipe_of(table, size, name, epsilon)
    assert found is not None, name
    return found.shortened() if tiny else found


def unfinished(todo: Sequence[Run], tiny: bool) -> list[Run]:
    """Those of some runs that are still to be done."""
    done = [
        run for run in load_runs(results_file(tiny)) if run["status"] == "finished" and counts(run)
    ]
    return [run for run in todo if not any(same(run, other) for other in done)]


def run_all(todo: list[Run], *, tiny: bool, threads: int, device: str, at_once: int = 1) -> None:
    """Start what has not finished yet, so many at once; each start and each end is on disk."""
    path, todo = results_file(tiny), unfinished(todo, tiny)
    conditions = {
        "device": device,
        "threads": threads,
        "at_once": at_once,
        "noise": "seeded: insecure, public data",
    }

    def start(number: int, run: Run) -> None:
        what = (
            f"{run['table']} {run['size']}: {run['method']}, eps {run['epsilon']}, seed"
            f" {run['seed']}"
        )
        print(f"[{number}/{len(todo)}] {what}", flush=True)
        run |= conditions | {"id": uuid.uuid4().hex, "status": "started", "started": now()}
        record(path, run)
        found = run_one(run)
        record(path, run | found)
        print(f"    {what}: {_summary(found)}", flush=True)

    with ThreadPoolExecutor(at_once) as pool:
        for each in [pool.submit(start, number, run) for number, run in enumerate(todo, 1)]:
            each.result()


def run_one(run: Run) -> Run:
    """Execute one run in a subprocess; return its measurements, or how it failed."""
    start = time.perf_counter()
    env = environment(run["threads"]) | {"MKL_NUM_THREADS": str(run["threads"])}
    done = subprocess.run(
        command("deep", "--one-run"),
        cwd=ROOT,
        input=json.dumps(run),
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    ended = {"finished": now(), "seconds": round(time.perf_counter() - start, 1)}
    if done.returncode:
        return ended | {"status": "failed", "error": f"exit status {done.returncode}"}
    return ended | {"status": "finished"} | dict(json.loads(done.stdout.strip().splitlines()[-1]))


def measure(run: Run) -> Run:
    """Train, and only then look at true test labels."""
    torch.set_num_threads(run["threads"])
    method = _recipe(run["table"], run["size"], run["method"], run["epsilon"], run["tiny"])
    data = load(data_of(run["table"]))
    if run["tiny"]:
        data = data.tiny(TINY_ROWS)
    learn = {"dp-sgd": dpsgd.fit, "counts": taught_by_counts}.get(method.law, fit)
    start, busy = time.perf_counter(), time.process_time()
    fitted = learn(data, method, run["epsilon"], run["seed"], device=run["device"], progress=say)
    training, busy = (
        time.perf_counter() - start - fitted.watch_seconds[0],
        time.process_time() - busy - fitted.watch_seconds[1],
    )
    proba = probabilities(fitted.net, data.X_test, method.views)
    seen = [proba[:WATCHED_ROWS].astype(np.float64) for proba in fitted.watched]
    watched = [
        scored(each, data.y_test[:WATCHED_ROWS], run["epsilon"], data.rates) for each in seen
    ]
    nothing: Run = {}
    epochs = [
        {**epoch, **curve}
        for epoch, curve in zip_longest(fitted.epochs, watched, fillvalue=nothing)
    ]
    found = scores(proba, data.y_test) | {
        "training_seconds": round(training, 1),
        "core_seconds": round(busy, 1),
        "parameters": n_parameters(fitted.net),
        "stages": [
            stage | fitted.hits(number, data.y, data.n_classes)
            for number, stage in enumerate(fitted.stages)
        ],
        "epochs": epochs,
        "precision": precision_used(method, run["device"]),
        "device_name": torch.cuda.get_device_name() if run["device"] == "cuda" else "cpu",
        "torch": torch.__version__,
        "machine": machine(),
    }
    if fitted.watched and fitted.validation_law is not None:
        judged = data.y_test[: len(fitted.watched[0])]
        found["validation"] = best_by_noisy_labels(
            fitted.watched, judged, fitted.validation_law, run["seed"], data.rates
        )
    if data.rates:
        mean = proba @ np.arange(data.n_classes)
        found["rmse"] = float(np.sqrt(np.mean((mean - data.y_test) ** 2)))
    return found


def say(line: str) -> None:
    """Progress, where somebody looks."""
    if not sys.stderr.isatty():
        return
    print(f"\r    {line}    ", end="", file=sys.stderr, flush=True)


def _summary(found: Run) -> str:
    if found["status"] != "finished":
        return str(found["error"])
    main = (
        f"RMSE {found['rmse']:.4f}"
        if "rmse" in found
        else f"accuracy {100 * found['accuracy']:.2f} %"
    )
    return f"{main}, {found['training_seconds'] / 60:.1f} minutes"
