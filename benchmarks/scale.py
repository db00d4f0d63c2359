# SPDX-License-Identifier: Apache-2.0
"""Releases of large tables: `python -m benchmarks scale [--only PART]` keeps
benchmarks/results/scale.json.gz and prints the tables.

One machine: rows a second, time against reading and writing alone, and peak memory, for three laws
at 20 M rows and for growing rows and classes. Spark: against an identity that reads twice and
writes once with the same engine. Each measurement is a process of its own.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, Run, load_json, machine, measured_apart, parser, save_json
from benchmarks.speed.release import floor, generate, peak_mb

RESULT = RESULTS / "scale.json.gz"
MILLION = 1_000_000
LAWS: dict[str, dict[str, Any]] = {
    "randomized response, K = 1000": {"classes": 1000, "repeats": 3},
    "RRWithPrior, 10 prior columns": {
        "classes": 10,
        "law": "rr-with-prior",
        "weights": 10,
        "repeats": 1,
    },
    "subset selection, K = 100": {"classes": 100, "law": "subset", "repeats": 1},
}
SIZES: dict[str, dict[str, Any]] = {
    "laws": {"rows": 20 * MILLION, "repeats": 3},
    "rows": {"rows": [5 * MILLION, 20 * MILLION, 80 * MILLION], "repeats": 1},
    "classes": {"rows": 5 * MILLION, "classes": [10, 100, 1000, 10_000], "repeats": 1},
    "spark": {"rows": 20 * MILLION, "repeats": 2},
    "ledger": {},
}


def local(source: Path, folder: Path, task: dict[str, Any]) -> dict[str, float]:
    """One release, or reading and writing alone, in this process, with the imports that it
    needs."""
    import labeldp

    out, start = folder / "out.parquet", time.perf_counter()
    if task["order"] == "floor":
        floor(source, out)
    else:
        weights = [f"p{i}" for i in range(task.get("weights", 0))] or None
        named = {
            "law": task.get("law"),
            "prior": weights,
            "order": task["order"],
            "id": "row_id" if task.get("ids", True) else None,
        }
        spec = labeldp.ReleaseSpec(
            "label", range(task["classes"]), 2.0 if not task.get("law") else 1.0, **named
        )
        labeldp.release(source, out, spec, labeldp.Ledger(folder / "ledger.db"))
    return {"seconds": time.perf_counter() - start, "peak_mb": peak_mb()}


def spark(source: Path, folder: Path, task: dict[str, Any]) -> dict[str, float]:
    """On Spark: a release, or its floor, two reads and one write through the same Python workers;
    after a small one that warms up."""
    import labeldp
    from labeldp.tables import spark as engine
    from labeldp.tables._place import Place

    table = engine.read(engine.start(), Place.of(source))
    small = table.limit(1000)
    spec = labeldp.ReleaseSpec(
        "label", range(task["classes"]), 2.0, id="row_id", dataset="scale", order="keep"
    )
    for name, frame in (("warm", small), ("out", table)):
        start = time.perf_counter()
        if task["order"] == "floor":
            narrow = frame.select("row_id", "label")
            narrow.mapInArrow(_count, "n long").collect()
            frame.mapInArrow(_same, frame.schema).write.option(
                "parquet.enable.dictionary", "false"
            ).parquet(str(folder / name))
        else:
            engine.release_frame(frame, folder / name, spec, labeldp.Ledger(folder / f"{name}.db"))
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "peak_mb": 0.0}


def _count(batches: Any) -> Any:
    import pyarrow as pa

    yield pa.record_batch({"n": [sum(batch.num_rows for batch in batches)]})


def _same(batches: Any) -> Any:
    yield from batches


def measured(engine: str, source: Path, folder: Path, task: dict[str, Any]) -> Run:
    """One measurement in a fresh process and a fresh folder."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return measured_apart("scale", "--one", engine, str(source), place, json.dumps(task))


def compared(
    engine: str,
    source: Path,
    folder: Path,
    rows: int,
    tasks: dict[str, dict[str, Any]],
    repeats: int,
) -> dict[str, Any]:
    """Rounds of the floor and of each task in turn: medians, and ratios to the floor of the same
    round."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ("floor", *tasks)}
    for _ in range(repeats):
        for name in runs:
            task = (
                next(iter(tasks.values())) | {"order": "floor"} if name == "floor" else tasks[name]
            )
            runs[name].append(measured(engine, source, folder, task))
            print(f"... {engine} {rows} {name} {runs[name][-1]}", file=sys.stderr, flush=True)
    found = {}
    for name, each in runs.items():
        ratios = [
            run["seconds"] / base["seconds"] for run, base in zip(each, runs["floor"], strict=True)
        ]
        seconds = statistics.median(run["seconds"] for run in each)
        found[name] = {
            "seconds": round(seconds, 2),
            "ratio": round(statistics.median(ratios), 2),
            "million_rows_per_second": round(rows / seconds / MILLION, 2),
            "peak_mb": round(max(run["peak_mb"] for run in each)),
        }
    return {
        "rows": rows,
        "bytes_a_row": round(source.stat().st_size / rows, 2),
        "results": found,
        "runs": runs,
        "machine": machine(),
    }


def part(name: str, size: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One part of the page: name of a case to what was measured."""
    source, made = folder / "in.parquet", {}
    if name == "laws":
        for title, law in LAWS.items():
            generate(source, size["rows"], law["classes"], law.get("weights", 0))
            tasks = {order: law | {"order": order} for order in ("keep", "shuffle")}
            made[title] = compared(
                "local", source, folder, size["rows"], tasks, min(size["repeats"], law["repeats"])
            )
    elif name == "rows":
        for rows in size["rows"]:
            generate(source, rows)
            tasks = {order: {"classes": 1000, "order": order} for order in ("keep", "shuffle")}
            made[f"{rows / MILLION:g} M rows"] = compared(
                "local", source, folder, rows, tasks, size["repeats"]
            )
    elif name == "classes":
        for classes in size["classes"]:
            generate(source, size["rows"], classes)
            tasks = {"keep": {"classes": classes, "order": "keep"}}
            made[f"K = {classes}"] = compared(
                "local", source, folder, size["rows"], tasks, size["repeats"]
            )
    else:
        generate(source, size["rows"])
        made["randomized response, K = 1000"] = compared(
            "spark",
            source,
            folder,
            size["rows"],
            {"keep": {"classes": 1000, "order": "keep"}},
            size["repeats"],
        )
    return made


def markdown(kept: dict[str, Any]) -> str:
    """The kept measurements as one table; the floor is reading and writing alone."""
    lines = [
        "| what | rows | order | M rows/s | against reading and writing | peak MB |",
        "|---|---|---|---|---|---|",
    ]
    for name in (name for name in SIZES if name in kept and name != "ledger"):
        for title, case in kept[name].items():
            for order, found in case["results"].items():
                where = "Spark, " if name == "spark" else ""
                peak = "" if name == "spark" else found["peak_mb"]
                shown = f"| {where}{title} | {case['rows'] / MILLION:g} M | {order} "
                lines.append(
                    f"{shown}| {found['million_rows_per_second']} | {found['ratio']} | {peak} |"
                )
    return "\n".join(lines)


PLANNED = 100_000 * MILLION
PART_BYTES = 256 << 20  # of an output file, see labeldp.tables._place


def plan(kept: dict[str, Any]) -> str:
    """Extrapolate the measurements to 10^11 rows."""
    spark, local = (
        kept["spark"]["randomized response, K = 1000"],
        kept["laws"]["randomized response, K = 1000"],
    )
    per_core = spark["results"]["keep"]["million_rows_per_second"] / spark["machine"]["cores"]
    parts = math.ceil(PLANNED * local["bytes_a_row"] / PART_BYTES)
    ledger = kept["ledger"]
    rows = [
        ("rows a core and second on Spark, both passes", f"{per_core:.2f} M"),
        ("core hours", f"{PLANNED / per_core / MILLION / 3600:,.0f}"),
        (
            "core hours of reading twice and writing once with Spark alone",
            f"{PLANNED / per_core / MILLION / 3600 / spark['results']['keep']['ratio']:,.0f}",
        ),
        ("output", f"{PLANNED * local['bytes_a_row'] / 1e12:.1f} TB in {parts:,} files"),
        (
            "rows that one process with 2 cores releases in a day",
            f"{local['results']['keep']['million_rows_per_second'] * 86_400:,.0f} M",
        ),
        ("charges, whatever the number of rows", f"1, {ledger['bytes_of_a_charge']:,} bytes"),
        (
            "rows of the table of parts",
            f"{parts:,}, {parts * ledger['bytes_of_a_part'] / 1e6:.1f} MB",
        ),
        ("row set, ids in ranges", f"{ledger['row_set_bytes_in_ranges']:,} bytes"),
        (
            "row set, every second id",
            f"{PLANNED * ledger['row_set_bytes_a_row_every_second'] / 1e9:.1f} GB on the driver",
        ),
    ]
    return "\n".join(
        [
            "| for 100,000 M rows | |",
            "|---|---|",
            *(f"| {what} | {value} |" for what, value in rows),
        ]
    )


def ledger_sizes(folder: Path) -> dict[str, Any]:
    """Bytes of a charge, of a part and of a row set, measured on a ledger with many of them."""
    import numpy as np

    import labeldp
    from labeldp.ledger._ledger import Part, Spending
    from labeldp.ledger._rowset import RowSetBuilder

    ledger, sizes = labeldp.Ledger(folder / "ledger.db", budget=1e6), []
    law, charges, files, ids = labeldp.RandomizedResponse(1000, 1.0), 200, 20_000, 10 * MILLION
    event = {
        "event": "label-draw",
        "law": {"law": law.to_dict(), "stage": "release"},
        "epsilon": 1.0,
    }
    for i in range(charges + 1):
        ledger.charge(Spending("d", "y", 1.0, event, identity=f"{i:064x}", run_id=f"{i:032x}"))
        sizes += [_size(folder)] if i in (0, charges) else []
    ledger.intend(
        f"{0:032x}", [Part(i, f"part-{i:05d}.parquet", 10**7, "0" * 64) for i in range(files)]
    )
    sizes.append(_size(folder))
    made = {"in_ranges": np.arange(ids), "every_second": np.arange(0, 2 * ids, 2)}
    found = {}
    for name, values in made.items():
        rows = RowSetBuilder()
        rows.add(values)
        found[name] = len(rows.finish().to_bytes())
    return {
        "bytes_of_a_charge": round((sizes[1] - sizes[0]) / charges),
        "bytes_of_a_part": round((sizes[2] - sizes[1]) / files),
        "row_set_bytes_in_ranges": found["in_ranges"],
        "row_set_bytes_a_row_every_second": round(found["every_second"] / ids, 3),
        "machine": machine(),
    }


def _size(folder: Path) -> int:
    import sqlite3

    with sqlite3.connect(folder / "ledger.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return (folder / "ledger.db").stat().st_size


def tables() -> str:
    """The kept measurements."""
    return markdown(load_json(RESULT))


def planned() -> str:
    """The plan that follows from the kept measurements."""
    return plan(load_json(RESULT))


def main(arguments: Sequence[str]) -> None:
    """Measure the parts one after the other, keep each, print the table."""
    options = parser("scale", __doc__)
    options.add_argument(
        "--only",
        choices=list(SIZES),
        action="append",
        help="measure this part; the others stay as they are kept",
    )
    options.add_argument("--report", action="store_true", help="only print the table")
    options.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = options.parse_args(arguments)
    if args.one:
        engine, source, folder, task = args.one
        print(
            json.dumps(
                {"local": local, "spark": spark}[engine](
                    Path(source), Path(folder), json.loads(task)
                )
            )
        )
        return
    kept = load_json(RESULT) if RESULT.exists() else {}
    for name in () if args.report else args.only or SIZES:
        with tempfile.TemporaryDirectory() as place:
            kept[name] = (
                ledger_sizes(Path(place))
                if name == "ledger"
                else part(name, SIZES[name], Path(place))
            )
        save_json(RESULT, kept)
    print(markdown(kept))
    if {"laws", "spark", "ledger"} <= set(kept):
        print(plan(kept))
