# SPDX-License-Identifier: Apache-2.0
"""The deep-learning tables: ours against the published recipes, DP-SGD and no privacy, one command
a table.

    python -m benchmarks deep --table fashion-mnist --size cpu [--epsilon 1 2] [--method ours-2
    paper-2st] [--seeds 3] [--report]
    # also ratings, splits, mixups, nets, precision
    python -m benchmarks deep --table why [--epsilon 1]
    # the README's figure
    python -m benchmarks deep --report --plot benchmarks/results/deep-fashion-mnist-cpu.png
    # try a command out: 600 rows, one epoch a stage, recorded elsewhere
    python -m benchmarks deep --table mnist --tiny

Each run is a process of its own and is recorded in results/deep.json.gz before it starts and after
it ends, with its seed, recipe, law of each stage, epochs, wall time, device and commit. A finished
run is not repeated, so the command can be stopped and started again. Recipes are frozen
(recipes.py) and were chosen on noisy held-out labels; seeds are others than those used there; noise
comes from a seed, on public data, and protects nothing; true test labels are looked at after
training only.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import parser
from benchmarks.deep.data import TABLES
from benchmarks.deep.dpsgd import available
from benchmarks.deep.published import EPSILONS
from benchmarks.deep.recipes import GRIDS, METHODS, SIZES
from benchmarks.deep.report import markdown, plot
from benchmarks.deep.runs import measure, run_all, wanted


def chosen(method: Sequence[str] | None, table: str) -> list[str]:
    """The methods to run: all by default, DP-SGD where Opacus is installed and the input is an
    image; "ours" and "paper" name families."""
    known = list(GRIDS[table](1.0)) if table in GRIDS else list(METHODS)
    if table == "movielens":
        of_images = [
            name
            for name in known
            if name.startswith("counts") or name.endswith(("-resnet9", "dp-sgd"))
        ]
        known = [name for name in known if name not in of_images]
    if method is None:
        return [name for name in known if name != "dp-sgd" or available()]
    families = tuple(word for word in method if word not in known)
    found = [name for name in known if name in method or name.startswith(families)]
    if not found:
        raise SystemExit(f"Expected --method among {', '.join(known)}; got {' '.join(method)}.")
    return found


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, and print."""
    options = parser("deep", __doc__)
    options.add_argument("--table", choices=[*TABLES, *GRIDS], default="fashion-mnist")
    options.add_argument("--size", choices=SIZES, default="cpu")
    options.add_argument("--epsilon", type=float, nargs="+", help="as published, by default")
    options.add_argument(
        "--method", nargs="+", help=f"{', '.join(METHODS)}; 'ours' and 'paper' name all of theirs"
    )
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument(
        "--at-once",
        type=int,
        default=1,
        help="runs side by side: a GPU that one small net leaves idle takes several",
    )
    options.add_argument("--device", default="cpu", help="cpu or cuda")
    options.add_argument(
        "--tiny", action="store_true", help="few rows, one epoch a stage; not kept with the results"
    )
    options.add_argument("--report", action="store_true", help="only print the table")
    options.add_argument("--plot", type=Path, help="draw accuracy against epsilon into this file")
    # what `run_all` starts: JSON in, JSON out
    options.add_argument("--one-run", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args(arguments)
    if args.one_run:
        print(json.dumps(measure(json.load(sys.stdin))))
        return
    if args.table in GRIDS and (args.size != "cpu" or args.plot):
        options.error(f"--table {args.table} has the size cpu only, and no plot")
    epsilons = args.epsilon or (EPSILONS[args.table] if args.table not in GRIDS else (1.0,))
    if not args.report:
        todo = list(
            wanted(
                args.table,
                args.size,
                chosen(args.method, args.table),
                epsilons,
                args.seeds,
                args.tiny,
            )
        )
        run_all(
            todo, tiny=args.tiny, threads=args.threads, device=args.device, at_once=args.at_once
        )
    print(markdown(args.table, args.size, epsilons, tiny=args.tiny))
    if args.plot:
        plot(args.table, args.size, args.plot)
