# SPDX-License-Identifier: Apache-2.0
"""Speed of private histograms and votes against pyarrow's counts: `python benchmarks/speed_aggregates.py [--rows N]` prints JSON.

Both sides get the same rows (32-bit group, 8-bit label), on one thread, alternately, and the figure is the median of the rounds' ratios:

* file: from a Parquet file. Ours reads it in batches; pyarrow reads it whole and counts with `Table.group_by(group, label)`;
* batches: rows that are in memory already, so that counting alone is compared.

Ours is the whole call: checks, counting, digest of the groups, exact noise. Its peak memory is taken before any table is loaded whole.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from conditions import machine

from labeldp import SeededNoise
from labeldp.aggregates import Aggregate, Histogram, Query, Vote
from labeldp.privacy.aggregation import aggregate_batches

BATCH = 1 << 20
TARGET = 0.5


def write(path: Path, rows: int, n_groups: int, n_classes: int) -> None:
    """Rows whose label is half of the time that of their group."""
    rng = np.random.default_rng(0)
    with pq.ParquetWriter(path, pa.schema([("group", pa.int32()), ("label", pa.int8())])) as file:
        for start in range(0, rows, BATCH):
            n = min(BATCH, rows - start)
            group = rng.integers(0, n_groups, n, dtype=np.int32)
            label = np.where(rng.random(n) < 0.5, group % n_classes, rng.integers(0, n_classes, n)).astype(np.int8)
            file.write_batch(pa.record_batch({"group": group, "label": label}))


def counted(table: pa.Table) -> pa.Table:
    """The counts without privacy."""
    return table.group_by(["group", "label"], use_threads=False).aggregate([([], "count_all")])


def answered(source: object, query: Query) -> Aggregate:
    """The private answer."""
    return aggregate_batches(source, query, label="label", group="group", classes=range(query.n_classes), noise=SeededNoise(0))  # type: ignore[arg-type]


def seconds(function: Callable[[], object]) -> float:
    """Of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compared(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> dict[str, float]:
    """Median seconds of each, and the median of the rounds' ratios, after a warm-up; who goes first changes."""
    rounds = []
    for i in range(repeats + 1):
        mine = seconds(ours) if i % 2 else 0.0
        other = seconds(theirs)
        rounds.append((mine or seconds(ours), other))
    mine, other = (statistics.median(column) for column in zip(*rounds[1:], strict=True))
    return {"seconds": mine, "pyarrow_seconds": other, "ratio": statistics.median(b / a for a, b in rounds[1:])}


def peak_mb() -> float:
    """Of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(path: Path, rows: int, n_groups: int, n_classes: int, repeats: int) -> dict[str, object]:
    """All cases on one file."""
    write(path, rows, n_groups, n_classes)
    queries = {"histogram": Histogram(n_classes, 0.1, n_groups), "vote": Vote(n_classes, 0.1, n_groups)}
    before = peak_mb()
    for query in queries.values():
        answered(path, query)
    beyond = peak_mb() - before
    results: dict[str, dict[str, float]] = {}
    for name, query in queries.items():
        case = f"{name}, file"
        results[case] = compared(lambda q=query: answered(path, q), lambda: counted(pq.read_table(path, use_threads=False)), repeats)  # type: ignore[misc]
    table = pq.read_table(path)
    for name, query in queries.items():
        results[f"{name}, batches"] = compared(lambda q=query: answered(table, q), lambda: counted(table), repeats)  # type: ignore[misc]
    shape = {
        "rows": rows,
        "n_groups": n_groups,
        "n_classes": n_classes,
        "mb_beyond": round(beyond),
        "mb_in_memory": round(table.nbytes / 2**20),
    }
    return {"machine": machine(), "target": TARGET, **shape, "results": results}


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # seeded noise, on made-up rows
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        print(json.dumps(measure(path, options.rows, options.groups, options.classes, options.repeats), indent=1))


if __name__ == "__main__":
    main()
