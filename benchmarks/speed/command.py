# SPDX-License-Identifier: Apache-2.0
"""Speed and memory: `python -m benchmarks speed [--only PART]` prints the table and keeps
results/speed.json.gz.

Every figure is a ratio within one run, against what people write in NumPy or against a floor, and
the median of several rounds. The parts run one after the other, each in a process of its own: keyed
randomized response (`speed-noise`), the choice of candidates (`speed-laws`), a release of a Parquet
table (`speed-release`), private counts of groups (`speed-aggregates`), and the memory of a million
rows with a thousand classes.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.common import RESULTS, Run, load_json, machine, measured_apart, parser, save_json

RESULT = RESULTS / "speed.json.gz"
FULL = {
    "noise": ["--labels", "50000000", "--repeats", "7"],
    "laws": ["--repeats", "5"],
    "release": ["--rows", "20000000"],
    "aggregates": ["--rows", "100000000", "--repeats", "3"],
}


def memory(rows: int, n_classes: int) -> dict[str, object]:
    """Measure in this process the peak memory of a draw whose prior comes in batches, beyond labels
    and outputs."""
    from labeldp import AutoLaw, PrivateLabels, SeededNoise, privatize

    rng = np.random.default_rng(0)
    labels = rng.integers(0, n_classes, rows, dtype=np.int32)
    scores = rng.normal(size=(997, n_classes))
    law = AutoLaw(n_classes, 1.0)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, time.perf_counter()
    noisy = privatize(
        PrivateLabels(labels, classes=range(law.n_classes), noise=SeededNoise(0)),
        law,
        prior=lambda positions: np.exp(2 * scores[positions % 997]),
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    kept = (
        sum(
            array.nbytes
            for block in noisy.blocks
            for array in (block.outputs, *block.side.values())
        )
        / 2**20
    )
    return {
        "machine": machine(),
        "what": f"privatize of {rows} rows, K = {n_classes}, law auto, prior from a function",
        "seconds": round(time.perf_counter() - start, 1),
        "mb_before": round(before),
        "mb_peak": round(peak),
        "mb_of_outputs_and_side": round(kept),
        "mb_beyond": round(peak - before),
    }


def part(name: str, arguments: list[str]) -> Run:
    """Run one part and return its JSON."""
    print(f"... {name} {' '.join(arguments)}", file=sys.stderr, flush=True)
    return measured_apart(name, *arguments)


def lines(result: Run) -> list[tuple[str, float, str]]:
    """(what, measured, target) for each target."""
    rows = []
    faster = result["noise"]["labeldp by row id, times as fast as, median of rounds"]
    for name, target in result["noise"]["targets"].items():
        rows.append((f"keyed randomized response against {name}", faster[name], f">= {target}"))
    targets = {("peaked", 100): 2.0, ("peaked", 1000): 5.0, ("peaked", 100_000): 10.0}
    for case in result["laws"]["rr_with_prior"]:
        target = targets.get((case["prior"], case["n_classes"]), 0.9)
        what = (
            f"RRWithPrior choice and draw, {case['prior']} priors, K = {case['n_classes']}, against"
            " sorting"
        )
        rows.append((what, round(case["choice_and_draw_ratio"], 2), f">= {target}"))
    bars, release = result["release"]["bars"], result["release"]["results"]
    for task in ("keep", "shuffle"):
        rows.append(
            (
                f"release, order {task}, time against reading and writing",
                release[task]["ratio"],
                f"<= {bars[task]}",
            )
        )
    rows.append(
        (
            "release, peak memory in MB",
            max(release[task]["peak_mb"] for task in ("keep", "shuffle")),
            f"<= {bars['peak_mb']}",
        )
    )
    aggregates = result.get("aggregates", {"results": {}})
    for case, found in aggregates["results"].items():
        what = (
            f"private {case}, {aggregates['rows']:,} rows in {aggregates['n_groups']:,} groups,"
            " against pyarrow's counts"
        )
        rows.append((what, round(found["ratio"], 2), f">= {aggregates['target']}"))
    rows.append(
        (
            result["memory"]["what"] + ", MB beyond the caller's",
            result["memory"]["mb_beyond"],
            "a few hundred",
        )
    )
    return rows


def markdown(result: Run) -> str:
    """Format the measurements beside their targets as a table."""
    rows = [f"| {row['what']} | {row['measured']} | {row['target']} |" for row in result["targets"]]
    return "\n".join(["| what | measured | target |", "|---|---|---|", *rows])


def tables() -> str:
    """The table of the kept result."""
    return markdown(load_json(RESULT))


def main(arguments: Sequence[str]) -> None:
    """Run the parts, print the table, keep the JSON."""
    options = parser("speed", __doc__)
    options.add_argument(
        "--only",
        choices=[*FULL, "memory"],
        help="measure this part again; the others stay as they are kept",
    )
    options.add_argument("--report", action="store_true", help="only print the table")
    options.add_argument("--memory", nargs=2, type=int, help=argparse.SUPPRESS)
    args = options.parse_args(arguments)
    if args.memory:
        print(json.dumps(memory(*args.memory)))
        return
    if args.report:
        print(tables())
        return
    result = load_json(RESULT) if args.only else {}
    result |= {
        name: part(f"speed-{name}", FULL[name]) for name in FULL if args.only in (None, name)
    }
    if args.only in (None, "memory"):
        result["memory"] = part("speed", ["--memory", "1000000", "1000"])
    result["targets"] = [
        {"what": what, "measured": measured, "target": target}
        for what, measured, target in lines(result)
    ]
    print(markdown(result))
    save_json(RESULT, result)
