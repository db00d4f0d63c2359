# SPDX-License-Identifier: Apache-2.0
"""Tables and the plot of the deep benchmarks, from the runs in results/deep.json.gz."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Run, equivalents, load_runs
from benchmarks.deep.data import TABLES
from benchmarks.deep.published import EPSILONS, HOURS, PUBLISHED
from benchmarks.deep.recipes import GRIDS, METHODS, SIZES, data_of, recipe_of
from benchmarks.deep.runs import FIRST_SEED, counts, results_file

NAMES = {
    "paper-1st": "LP-1ST, the paper's recipe",
    "paper-2st": "LP-2ST, the paper's recipe",
    "paper-3st": "LP-3ST, the paper's recipe",
    "tuned-1st": "LP-1ST, trained as ours",
    "tuned-2st": "LP-2ST, trained as ours",
    "alibi": "ALIBI, trained as ours",
    "ours-1": "labeldp, 1 stage",
    "ours-2": "labeldp, 2 stages",
    "ours-3": "labeldp, 3 stages",
    "ours-1-of-4": "labeldp, 1 stage, mean of 4 nets",
    "ours-3-of-6": "labeldp, 3 stages, mean of 6 nets",
    "ours-1-shared-adamatch": "labeldp, 1 stage, and AdaMatch",
    "ours-1-shared-selection": "labeldp, 1 stage, and posterior selection",
    "counts": "labeldp, counts, then the net",
    "counts-rows": "labeldp, half counted, half drawn",
    "true-labels": "no privacy, but only as many labels",
    "dp-sgd": "DP-SGD, delta 1e-5",
    "tuned-1st-resnet9": "LP-1ST, trained as ours, ResNet-9",
    "tuned-2st-resnet9": "LP-2ST, trained as ours, ResNet-9",
    "alibi-resnet9": "ALIBI, trained as ours, ResNet-9",
    "ours-1-resnet9": "labeldp, 1 stage, ResNet-9",
    "counts-resnet9": "labeldp, counts, then the net, ResNet-9",
    "non-private-of-4": "no privacy, mean of 4 nets",
    "non-private-of-6": "no privacy, mean of 6 nets",
    "non-private-resnet9": "no privacy, ResNet-9",
    "non-private": "no privacy",
}


def cells(
    table: str, size: str, *, tiny: bool = False
) -> dict[tuple[str, float | None], list[Run]]:
    """Finished runs of the present recipes, by method and epsilon; with fresh seeds only."""
    found: dict[tuple[str, float | None], list[Run]] = {}
    for run in load_runs(results_file(tiny)):
        if (
            (run["table"], run["size"]) != (table, size)
            or run["status"] != "finished"
            or run["seed"] < FIRST_SEED
            or not counts(run)
        ):
            continue
        present = recipe_of(table, size, run["method"], run["epsilon"])
        if tiny or (present is not None and run["recipe"] == present.described()):
            found.setdefault((run["method"], run["epsilon"]), []).append(run)
    return found


def measured(table: str, runs: Sequence[Run]) -> np.ndarray:
    """The table's number of each run: RMSE for ratings, else accuracy in %."""
    return np.array([run["rmse"] if rates(table) else 100 * run["accuracy"] for run in runs])


def rates(table: str) -> bool:
    """True for tables of ratings."""
    return data_of(table) == "movielens"


def shown(values: np.ndarray, digits: int) -> str:
    """Mean, and standard deviation over seeds; empty if there is none."""
    if not len(values):
        return ""
    spread = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{spread}"


def markdown(table: str, size: str, epsilons: Sequence[float], *, tiny: bool = False) -> str:
    """The table of a data set: ours and theirs as measured, the published number in brackets."""
    if table in GRIDS:
        return grid_markdown(table, tiny=tiny)
    found, published = cells(table, size, tiny=tiny), PUBLISHED[table]
    digits = 3 if rates(table) else 2
    title = "test RMSE" if rates(table) else "test accuracy, %"
    lines = [
        f"| {table}, {size}: {title} | "
        + " | ".join(f"eps = {e:g}" for e in epsilons)
        + " | seeds | minutes a run |"
    ]
    lines.append("|---" * (len(epsilons) + 3) + "|")
    lines.append(
        "| label equivalents | " + " | ".join(_worth(table, found, e) for e in epsilons) + " | | |"
    )
    for name in METHODS:
        if name.startswith("non-private"):
            continue
        row = [
            _cell(table, found.get((name, float(e)), []), published.beside(name, e), digits)
            for e in epsilons
        ]
        runs = [run for e in epsilons for run in found.get((name, float(e)), [])]
        if not runs and (
            "-of-" in name
            or "-shared-" in name
            or name.endswith("-resnet9")
            or name == "true-labels"
        ):
            continue  # some data sets have it
        lines.append(
            f"| {NAMES[name]} | " + " | ".join(row) + f" | {_seeds(runs)} | {_minutes(runs)} |"
        )
    for name in METHODS:
        if name == "non-private" or (name, None) in found:
            runs = found.get((name, None), [])
            bound = _cell(table, runs, published.beside(name, None), digits)
            lines.append(
                f"| {NAMES[name]} | {bound}"
                + " |" * len(epsilons)
                + f" {_seeds(runs)} | {_minutes(runs)} |"
            )
    for label, numbers in published.others.items():
        text = ", ".join(
            f"{value:g} at " + ("no privacy" if e is None else f"eps {e:g}")
            for e, value in numbers.items()
        )
        lines.append(f"\nPublished: {label}: {text}.")
    sources = ", ".join(sorted(set(published.source.values())))
    note = (
        "Mean ± standard deviation over seeds of true test labels, looked at after training; in"
        " brackets the published number"
    )
    said = "\n".join(lines) + f"\n\n{note} ({sources}; beside labeldp: LP-2ST's)."
    more = "" if rates(table) else quality(found)
    return f"{said}\n\n{more}" if more else said


CLASSES = {"movielens": 5, "cifar100": 100}  # ten in all others


def _worth(table: str, found: dict[tuple[str, float | None], list[Run]], epsilon: float) -> str:
    """Number of true labels that say as much as one noisy label of each row, which is the most that
    any learner has."""
    runs = [
        run
        for (name, e), some in found.items()
        if e and not name.startswith(("counts", "true"))
        for run in some
    ]
    rows = max((sum(stage["drawn"] for stage in run["stages"]) for run in runs), default=0)
    return f"{equivalents(rows, CLASSES.get(data_of(table), 10), epsilon):,.0f}" if rows else ""


def quality(found: dict[tuple[str, float | None], list[Run]]) -> str:
    """What the mean accuracy does not show: the worst class, calibration, and the epoch that noisy
    labels would have chosen."""
    heads = (
        "method",
        "eps",
        "last epoch, %",
        "worst class, %",
        "ECE, %",
        "of half the test rows: last epoch, %",
        "epoch by noisy rows, %",
    )
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name in METHODS:
        for epsilon in sorted({e for method, e in found if method == name}, key=lambda e: e or 0.0):
            runs = [run for run in found[name, epsilon] if "worst_class" in run]
            chosen = [run["validation"] for run in runs if run.get("validation")]
            if not runs:
                continue
            row = [
                _percent(runs, what) for what in ("accuracy", "worst_class", "calibration_error")
            ]
            row += [_percent(chosen, what) for what in ("last_accuracy", "accuracy")]
            lines.append(
                f"| {NAMES[name]} | {'' if epsilon is None else f'{epsilon:g}'} | "
                + " | ".join(row)
                + " |"
            )
    return "\n".join(lines) if len(lines) > 2 else ""


def _percent(runs: Sequence[Run], what: str) -> str:
    """Mean of a share, in %."""
    return f"{100 * np.mean([run[what] for run in runs]):.1f}" if runs else ""


def times() -> str:
    """Minutes of one run by method and data set, and what Tang et al. (2022) needed."""
    kept = {(run["table"], run["size"]) for run in load_runs(results_file(False))}
    columns = {
        (table, size): cells(table, size)
        for table in TABLES
        for size in SIZES
        if (table, size) in kept
    }
    lines = [
        "| minutes a run | " + " | ".join(f"{table}, {size}" for table, size in columns) + " |",
        "|---" * (1 + len(columns)) + "|",
    ]
    for name in METHODS:
        row = [
            _minutes([run for (method, _), runs in found.items() if method == name for run in runs])
            for found in columns.values()
        ]
        if any(row):
            lines.append(f"| {NAMES[name]} | " + " | ".join(row) + " |")
    hours = ", ".join(f"{name} {value:,.1f}" for name, value in HOURS.items())
    return (
        "\n".join(lines)
        + f"\n\nPublished, hours of a P100 on CIFAR-10 (Tang et al. 2022, tables 7 and 8): {hours}."
    )


def epsilons_of(table: str, size: str) -> list[float]:
    """The columns of a data set's table: what was published, and what was run besides."""
    return sorted(
        {*EPSILONS[table], *(epsilon for _, epsilon in cells(table, size) if epsilon is not None)}
    )


def tables() -> str:
    """Every table of which something was run: data sets, their times, then grids."""
    kept = {(run["table"], run["size"]) for run in load_runs(results_file(False))}
    blocks = [
        markdown(table, size, epsilons_of(table, size))
        for table in TABLES
        for size in SIZES
        if (table, size) in kept
    ]
    blocks.append(times())
    for table, grid in GRIDS.items():
        if (table, "cpu") in kept:
            blocks.append(f"`{table}`: {grid.__doc__}\n\n{grid_markdown(table)}")
    return "\n\n".join(blocks)


THEIRS, OURS = ("tuned-1st", "tuned-2st", "alibi"), ("counts", "ours-1", "ours-2")
BEST = "best of LP-1ST, LP-2ST and ALIBI, trained as ours"
SEVERAL = ("ours-1-of-4", "ours-3-of-6")  # of a data set one of them was run
SUMMED_UP = (1.0, 2.0)


def summary() -> str:
    """One line for each table, size and net at which ours was run with an epsilon of SUMMED_UP: the
    README's. Seeds in brackets."""
    columns = {NAMES[name]: (name,) for name in OURS} | {
        "labeldp, several nets": SEVERAL,
        NAMES["true-labels"]: ("true-labels",),
    }
    titles = (
        "data, net, weights, precision",
        "eps",
        "label equivalents",
        "LP-2ST, published",
        BEST,
        *columns,
        NAMES["non-private"],
    )
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    kept = {(run["table"], run["size"]) for run in load_runs(results_file(False))}
    for table, size, net in sorted((*place, net) for place in kept for net in ("", "-resnet9")):
        if table in GRIDS:
            continue
        found, digits = cells(table, size), 3 if rates(table) else 2
        for epsilon in sorted(
            {e for name, e in found if e in SUMMED_UP and name in [each + net for each in OURS]}
        ):
            ours = [run for name in OURS for run in found.get((name + net, epsilon), [])]
            cited = PUBLISHED[table].beside("paper-2st", epsilon)
            row = [
                _what(table, size, ours),
                f"{epsilon:g}",
                _worth(table, found, epsilon),
                "" if cited is None else f"{cited:.{digits}f}",
            ]
            shown_runs = [
                [run for name in names for run in found.get((name + net, epsilon), [])]
                for names in columns.values()
            ]
            shown_runs.append(found.get(("non-private" + net, None), []))
            row += [
                _best(
                    table, {name: found.get((name + net, epsilon), []) for name in THEIRS}, digits
                )
            ]
            row += [_counted(table, runs, digits) for runs in shown_runs]
            lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def _counted(table: str, runs: Sequence[Run], digits: int) -> str:
    """Mean and deviation of runs, with their number."""
    return shown(measured(table, runs), digits) + (f" ({len(runs)})" if runs else "")


def _best(table: str, found: dict[str, list[Run]], digits: int) -> str:
    """The best method by its mean, and its name."""
    means = {name: float(measured(table, runs).mean()) for name, runs in found.items() if runs}
    if not means:
        return ""
    best = min(means, key=lambda name: means[name] if rates(table) else -means[name])
    return f"{_counted(table, found[best], digits)}, {NAMES[best].partition(',')[0]}"


def _what(table: str, size: str, runs: Sequence[Run]) -> str:
    """Data set, size, net with its number of weights, and precision where the run has recorded
    it."""
    net = runs[0]["recipe"]["net"].partition(":")[0]
    number = "RMSE" if rates(table) else "accuracy, %"
    precision = sorted({run["precision"] for run in runs if run.get("precision")})
    return ", ".join(
        [f"{table} {size}: {number}", net, f"{runs[0]['parameters'] / 1000:,.0f} k", *precision]
    )


def _cell(table: str, runs: list[Run], published: float | None, digits: int) -> str:
    own = shown(measured(table, runs), digits)
    return own + (f" ({published:.{digits}f})" if published is not None else "")


def _seeds(runs: list[Run]) -> str:
    counts: dict[float | None, int] = {}
    for run in runs:
        counts[run["epsilon"]] = counts.get(run["epsilon"], 0) + 1
    low, high = (min(counts.values()), max(counts.values())) if counts else (0, 0)
    return "" if not counts else str(low) if low == high else f"{low} to {high}"


def _minutes(runs: Sequence[Run]) -> str:
    """Median of runs that had a core of their own, in its time, if there are any; else of runs on a
    GPU or side by side, by the clock."""
    alone = [run["core_seconds"] for run in runs if run["device"] == "cpu" and run["at_once"] == 1]
    seconds = alone or [run["training_seconds"] for run in runs]
    beside = " (side by side)" if seconds and not alone and runs[0]["size"] == "cpu" else ""
    return f"{np.median(seconds) / 60:.1f}{beside}" if seconds else ""


def grid_markdown(table: str, *, tiny: bool = False) -> str:
    """A recipe a row: accuracy, bits a label of each stage, and of the last: how many candidates a
    row had, how often the label was one."""
    found = cells(table, "cpu", tiny=tiny)
    epsilons = sorted({epsilon for _, epsilon in found if epsilon is not None})
    number, digits = ("RMSE", 3) if rates(table) else ("accuracy, %", 2)
    lines = [
        "| what | "
        + " | ".join(
            f"eps = {e:g}: {number} | bits a label, by stage | mean k | label among k, %"
            for e in epsilons
        )
        + " |"
    ]
    lines.append("|---" * (1 + 4 * len(epsilons)) + "|")
    worth = [[_worth(table, found, epsilon), "", "", ""] for epsilon in epsilons]
    lines.append(f"| label equivalents | {' | '.join(chain(*worth))} |")
    for name in GRIDS[table](1.0):
        row = []
        for epsilon in epsilons:
            runs = found.get((name, epsilon), [])
            row += [shown(measured(table, runs), digits), _bits(runs)]
            row += [_mean(runs, "mean_size", 1), _mean(runs, "label_in_candidates", 100)]
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def _mean(runs: Sequence[Run], name: str, factor: float) -> str:
    known = [
        factor * run["stages"][-1][name] for run in runs if run["stages"][-1].get(name) is not None
    ]
    return f"{np.mean(known):.2f}" if known else ""


def _bits(runs: Sequence[Run]) -> str:
    """Mean bits that a label's output tells, a number for each stage, "?" where it was not
    measured.

    Each is under its stage's prior, uniform in the first and the model's in later ones, which
    leaves less to tell; so a mean over stages would compare priors, not laws.
    """
    known = [
        [run["stages"][i]["bits"] for run in runs]
        for i in range(min((len(run["stages"]) for run in runs), default=0))
    ]
    return ", ".join(f"{np.mean(bits):.3f}" if None not in bits else "?" for bits in known)


def plot(table: str, size: str, path: Path) -> None:
    """Accuracy, or RMSE, against epsilon. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9.0, 4.2), layout="constrained")
    _draw(axes, table, size)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw(axes: Any, table: str, size: str) -> None:
    """Of one net, theirs, ours and DP-SGD: measured as lines with spread, published as crosses."""
    found, published, epsilons = cells(table, size), PUBLISHED[table], EPSILONS[table]
    for number, name in enumerate(("paper-1st", "paper-2st", *THEIRS, *OURS, "ours-3", "dp-sgd")):
        points = [
            (e, measured(table, found[name, float(e)]))
            for e in epsilons
            if (name, float(e)) in found
        ]
        colour = f"C{number}"
        if points:
            x, means, spreads = zip(
                *((e, v.mean(), v.std(ddof=1) if len(v) > 1 else 0.0) for e, v in points),
                strict=True,
            )
            axes.errorbar(x, means, spreads, marker="o", capsize=3, label=NAMES[name], color=colour)
        known = {e: v for e, v in published.rows.get(name, {}).items() if e is not None}
        if known:
            axes.plot(
                list(known),
                list(known.values()),
                "x:",
                color=colour,
                label=f"{NAMES[name]}, published",
            )
    clean = found.get(("non-private", None))
    if clean:
        axes.axhline(
            measured(table, clean).mean(),
            color="black",
            linestyle="--",
            linewidth=1,
            label=NAMES["non-private"],
        )
    axes.set(
        xlabel="epsilon",
        ylabel="test RMSE" if rates(table) else "test accuracy, %",
        title=f"{table} ({size})",
    )
