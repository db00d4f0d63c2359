# SPDX-License-Identifier: Apache-2.0
"""Speed of private histograms and votes against pyarrow's counts: `python -m benchmarks
speed-aggregates [--rows N]` prints JSON.

Both sides get the same rows (32-bit group, 8-bit label), on one thread, alternately, and the figure
is the median of the rounds' ratios:

* file: from a Parquet file. Ours reads it in batches; pyarrow reads it whole and counts with
  `Table.group_by(group, label)`;
* batches: rows that are in memory already, so that counting alone is compared.

Ours is the whole call: checks, counting, digest of the groups, exact noise. Its peak memory is
taken before any table is loaded whole.
"""

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import machine, parser, print_result
from benchmarks.speed.release import peak_mb
from labeldp import SeededNoise
from labeldp.aggregates import Aggregate, Histogram, Query, Vote
from labeldp.custody._aggregation import aggregate_batches

BATCH = 1 << 20
TARGET = 0.5


def write(path: Path, rows: int, n_groups: int, n_classes: int) -> None:
    """Write rows whose label equals that of their group half of the time."""
    rng = np.random.default_rng(0)
    with pq.ParquetWriter(path, pa.schema([("group", pa.int32()), ("label", pa.int8())])) as file:
        for start in range(0, rows, BATCH):
            n = min(BATCH, rows - start)
            group = rng.integers(0, n_groups, n, dtype=np.int32)
            label = np.where(
                rng.random(n) < 0.5, group % n_classes, rng.integers(0, n_classes, n)
            ).astype(np.int8)
            file.write_batch(pa.record_batch({"group": group, "label": label}))


def counted(table: pa.Table) -> pa.Table:
    """The counts without privacy."""
    return table.group_by(["group", "label"], use_threads=False).aggregate([([], "count_all")])


def answered(source: Path | pa.Table, query: Query) -> Aggregate:
    """The private answer."""
    return aggregate_batches(
        source,
        query,
        label="label",
        group="group",
        classes=range(query.n_classes),
        noise=SeededNoise(0),
    )


def seconds(function: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compared(
    ours: Callable[[], object], theirs: Callable[[], object], repeats: int
) -> dict[str, float]:
    """Median seconds of each, and the median of the rounds' ratios, after a warm-up; who goes first
    changes."""
    rounds = []
    for i in range(repeats + 1):
        mine = seconds(ours) if i % 2 else 0.0
        other = seconds(theirs)
        rounds.append((mine or seconds(ours), other))
    mine, other = (statistics.median(column) for column in zip(*rounds[1:], strict=True))
    return {
        "seconds": mine,
        "pyarrow_seconds": other,
        "ratio": statistics.median(b / a for a, b in rounds[1:]),
    }


def measure(
    path: Path, rows: int, n_groups: int, n_classes: int, repeats: int
) -> dict[str, object]:
    """Measure all cases on one file."""
    write(path, rows, n_groups, n_classes)
    queries = {
        "histogram": Histogram(n_classes, 0.1, n_groups),
        "vote": Vote(n_classes, 0.1, n_groups),
    }
    before = peak_mb()
    for query in queries.values():
        answered(path, query)
    beyond = peak_mb() - before
    results: dict[str, dict[str, float]] = {}
    for name, query in queries.items():
        case = f"{name}, file"
        results[case] = compared(
            partial(answered, path, query),
            lambda: counted(pq.read_table(path, use_threads=False)),
            repeats,
        )
    table = pq.read_table(path)
    for name, query in queries.items():
        results[f"{name}, batches"] = compared(
            partial(answered, table, query), lambda: counted(table), repeats
        )
    shape = {
        "rows": rows,
        "n_groups": n_groups,
        "n_classes": n_classes,
        "mb_beyond": round(beyond),
        "mb_in_memory": round(table.nbytes / 2**20),
    }
    return {"machine": machine(), "target": TARGET, **shape, "results": results}


def main(arguments: Sequence[str]) -> None:
    """Measure, and print one JSON object."""
    options = parser("speed-aggregates", __doc__)
    options.add_argument("--rows", type=int, default=100_000_000)
    options.add_argument("--groups", type=int, default=1000)
    options.add_argument("--classes", type=int, default=10)
    options.add_argument("--repeats", type=int, default=3)
    args = options.parse_args(arguments)
    warnings.simplefilter("ignore")  # seeded noise, on made-up rows
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        result = measure(path, args.rows, args.groups, args.classes, args.repeats)
    print_result(result)
