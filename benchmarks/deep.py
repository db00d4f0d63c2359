# SPDX-License-Identifier: Apache-2.0
"""The deep-learning tables: ours against the published recipes, DP-SGD and no privacy, one command a table.

    python benchmarks/deep.py --table fashion-mnist --size cpu [--epsilon 1 2] [--method ours-2 paper-2st] [--seeds 3] [--report]
    python benchmarks/deep.py --table why [--epsilon 1]       # also ratings, splits, mixups, nets, precision
    python benchmarks/deep.py --summary                       # of what was run: ours in two stages beside the published numbers
    python benchmarks/deep.py --table mnist --tiny            # try a command out: 600 rows, one epoch a stage, recorded elsewhere

Each run is a process of its own and is recorded in results/deep.json before it starts and after it ends, with its seed, recipe, law of
each stage, epochs, wall time, device and commit. A finished run is not repeated, so the command can be stopped and started again. Recipes
are frozen (deep_recipes.py) and were chosen on noisy held-out labels (deep_choose.py); seeds are others than those used there; noise comes
from a seed, on public data, and protects nothing; true test labels are looked at after training only.
"""

import argparse
from collections.abc import Sequence

from deep_cells import results_file, run_all, wanted
from deep_curves import WATCHED_ROWS
from deep_curves import plot as plot_curves
from deep_data import TABLES
from deep_published import EPSILONS
from deep_recipes import GRIDS, METHODS, SIZES
from deep_report import cells, markdown, plot, summary


def chosen(method: Sequence[str] | None, table: str) -> list[str]:
    """The methods to run: all by default, DP-SGD where Opacus is installed and the input is an image; a prefix names a family."""
    known = list(GRIDS[table](1.0)) if table in GRIDS else list(METHODS)
    if method is None:
        from deep_dpsgd import available

        return [name for name in known if name != "dp-sgd" or (available() and table != "movielens")]
    found = [name for name in known if any(name == word or name.startswith(word) for word in method)]
    if not found:
        raise SystemExit(f"Expected --method among {', '.join(known)}; got {' '.join(method)}.")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", choices=[*TABLES, *GRIDS], default="fashion-mnist")
    parser.add_argument("--size", choices=SIZES, default="cpu")
    parser.add_argument("--epsilon", type=float, nargs="+", help="as published, by default")
    parser.add_argument("--method", nargs="+", help=f"{', '.join(METHODS)}; 'ours' and 'paper' name all of theirs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side: a GPU that one small net leaves idle takes several")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--tiny", action="store_true", help="few rows, one epoch a stage; not kept with the results")
    parser.add_argument("--report", action="store_true", help="only print the table and draw the plot")
    parser.add_argument("--summary", action="store_true", help="only print the README's table")
    args = parser.parse_args()
    if args.summary:
        print(summary())
        return
    if args.table in GRIDS and args.size != "cpu":
        raise SystemExit(f"--table {args.table} has the size cpu only.")
    epsilons = args.epsilon or (EPSILONS[args.table] if args.table not in GRIDS else (1.0,))
    if not args.report:
        todo = list(wanted(args.table, args.size, chosen(args.method, args.table), epsilons, args.seeds, args.tiny))
        run_all(todo, tiny=args.tiny, threads=args.threads, device=args.device, at_once=args.at_once)
    print(markdown(args.table, args.size, epsilons, tiny=args.tiny))
    if args.report:
        draw(args.table, args.size, epsilons, tiny=args.tiny)


def draw(table: str, size: str, epsilons: Sequence[float], *, tiny: bool) -> None:
    """The table as a plot, and the learning curves of the first seed in two stages, theirs beside ours."""
    path = results_file(tiny).parent / f"deep-{table}-{size}.png"
    print(f"\nPlot: {path}" if plot(table, size, epsilons, path, tiny=tiny) else "\nNo plot: pip install matplotlib.")
    found = cells(table, size, tiny=tiny)
    runs = [found[name, float(epsilons[0])][0] for name in ("paper-2st", "tuned-2st", "ours-2") if (name, float(epsilons[0])) in found]
    path = path.with_name(f"deep-{table}-{size}-epochs.png")
    if plot_curves(runs, f"{table}, {size}: the first {WATCHED_ROWS} test rows after each epoch", path):
        print(f"Learning curves: {path}")


if __name__ == "__main__":
    main()
