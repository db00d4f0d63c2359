# SPDX-License-Identifier: Apache-2.0
"""Speed and memory of releasing a Parquet table: `python -m benchmarks speed-release [--rows N]
[--repeats R]` prints JSON.

Each measurement is a process of its own, in turn: the floor (read and write the same columns with
the same reader and writer settings), a release with order="keep", one with the default shuffle, and
one with ids. Medians of wall-clock time, of processor time, and the largest peak of resident
memory. Bars: keep <= 1.5 x the floor, shuffle <= 3 x, 400 MB.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import machine, measured_apart, parser, print_result

CLASSES = 1000
SCHEMA = pa.schema(
    [("row_id", pa.int64()), ("label", pa.int32())] + [(f"x{i}", pa.float32()) for i in range(4)]
)
BARS = {"keep": 1.5, "shuffle": 3.0, "peak_mb": 400.0}
TASKS = ("floor", "keep", "shuffle", "shuffle with ids")


def generate(path: Path, rows: int, classes: int = CLASSES, weights: int = 0) -> None:
    """A table of row_id, label and four floats, and as many columns p0, p1, ... of positive
    weights."""
    rng = np.random.default_rng(0)
    schema = pa.schema([*SCHEMA, *((f"p{i}", pa.float32()) for i in range(weights))])
    with pq.ParquetWriter(path, schema, use_dictionary=["label"]) as writer:
        for start in range(0, rows, 1 << 20):
            n = min(1 << 20, rows - start)
            columns = [
                np.arange(start, start + n),
                rng.integers(0, classes, n, np.int32),
                *rng.standard_normal((4, n), np.float32),
            ]
            peaked = np.exp(3 * rng.standard_normal((weights, n), np.float32))
            writer.write_table(pa.table([*columns, *peaked], schema=schema))


def floor(source: Path, out: Path) -> None:
    """Read and write with pyarrow alone: the reader's and the writer's settings, batches and row
    groups of a release, and no more."""
    from labeldp.tables.formats._parquet import GROUP_ROWS, read_buffer

    waiting: list[pa.RecordBatch] = []
    buffer = read_buffer(pq.read_metadata(source))
    with (
        pq.ParquetFile(source, pre_buffer=False, buffer_size=buffer) as table,
        pq.ParquetWriter(out, table.schema_arrow, use_dictionary=["label"]) as writer,
    ):
        for batch in table.iter_batches(1 << 18):
            waiting.append(batch)
            if sum(map(len, waiting)) >= GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))
    with out.open("rb") as file:
        os.fsync(file.fileno())


def one(task: str, source: Path, folder: Path) -> dict[str, float]:
    """One measurement, in this process: imports are not counted, for either side."""
    from labeldp.app._release import release
    from labeldp.ledger._ledger import Ledger
    from labeldp.tables._spec import ReleaseSpec

    out = folder / "out.parquet"
    wall, cpu = time.perf_counter(), time.process_time()
    if task == "floor":
        floor(source, out)
    else:
        spec = ReleaseSpec(
            "label",
            range(CLASSES),
            2.0,
            order=task.split()[0],
            id="row_id" if "ids" in task else None,
        )
        release(source, out, spec, Ledger(folder / "ledger.db"))
    return {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mb": peak_mb(),
    }


def peak_mb() -> float:
    """Largest resident memory of this program; where /proc tells, without what the process held
    before it became this program."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    found = [float(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    return found[0] / 1024 if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(task: str, source: Path, folder: Path) -> dict[str, float]:
    """One measurement in a fresh process and a fresh folder."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return measured_apart("speed-release", "--one", task, str(source), place)


def summary(rows: int, runs: dict[str, list[dict[str, float]]]) -> dict[str, object]:
    """Medians, ratios to the floor of the same round, and the conditions."""
    results = {}
    for task, found in runs.items():
        ratios = [
            run["seconds"] / base["seconds"] for run, base in zip(found, runs["floor"], strict=True)
        ]
        cpu = [
            run["cpu_seconds"] / base["cpu_seconds"]
            for run, base in zip(found, runs["floor"], strict=True)
        ]
        results[task] = {
            "seconds": round(statistics.median(run["seconds"] for run in found), 2),
            "ratio": round(statistics.median(ratios), 2),
            "cpu_ratio": round(statistics.median(cpu), 2),
            "million_rows_per_second": round(
                rows / statistics.median(run["seconds"] for run in found) / 1e6, 2
            ),
            "peak_mb": round(max(run["peak_mb"] for run in found)),
        }
    conditions = {"rows": rows, "repeats": len(runs["floor"]), "machine": machine()}
    return {"bars": BARS, "results": results, "conditions": conditions, "runs": runs}


def main(arguments: Sequence[str]) -> None:
    """Measure, and print one JSON object."""
    options = parser("speed-release", __doc__)
    options.add_argument("--rows", type=int, default=20_000_000)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="where the tables are written",
    )
    options.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = options.parse_args(arguments)
    if args.one:
        print(json.dumps(one(args.one[0], Path(args.one[1]), Path(args.one[2]))))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        source = Path(place) / "in.parquet"
        generate(source, args.rows)
        runs: dict[str, list[dict[str, float]]] = {task: [] for task in TASKS}
        for _ in range(args.repeats):
            for task in TASKS:
                runs[task].append(measured(task, source, Path(place)))
    print_result(summary(args.rows, runs))
