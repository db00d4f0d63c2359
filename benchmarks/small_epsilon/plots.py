# SPDX-License-Identifier: Apache-2.0
"""Plots of `small-epsilon`: of every table what is there, points with the standard deviation over
the seeds."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Panel, Run, save_plot
from benchmarks.small_epsilon.methods import METHODS, PUBLISHED
from benchmarks.small_epsilon.tables import BETAS, FIGURE

Grid = list[list[Panel]]
Runs = Sequence[Run]
SIZE = (4.8, 3.8)


def write(runs: Runs, folder: Path, rows: int | None = None) -> list[Path]:
    """A PNG for each table of which something was run. The files' paths; none without
    matplotlib."""
    finished = [run for run in runs if "finished" in run and run.get("rows") == rows]
    made = []
    for table, panels in PANELS.items():
        path = folder / f"small-epsilon-{table}{'' if rows is None else f'-{rows}-rows'}.png"
        own = [run for run in finished if run["table"] == table]
        names = list(dict.fromkeys(run["data"] for run in own))
        grid = panels([[run for run in own if run["data"] == name] for name in names])
        if grid and save_plot(path, grid, size=SIZE, legend=True):
            made.append(path)
    return made


def curve(
    axes: Any, runs: Runs, across: str, field: str = "accuracy", scale: float = 100.0, **style: Any
) -> None:
    """Mean and standard deviation of a field against another one; nothing where there is
    nothing."""
    found = {
        at: [scale * run[field] for run in runs if run.get(across) == at and field in run]
        for at in sorted(values(runs, across))
    }
    points = [
        (at, np.mean(each), np.std(each, ddof=1) if len(each) > 1 else 0.0)
        for at, each in found.items()
        if each
    ]
    if points:
        axes.errorbar(
            *zip(*points, strict=True), **{"marker": "o", "markersize": 4, "capsize": 3} | style
        )


def level(axes: Any, runs: Runs, **style: Any) -> None:
    """A mean accuracy that does not depend on what the axis shows."""
    found = [100 * run["accuracy"] for run in runs if "accuracy" in run]
    if found:
        axes.axhline(np.mean(found), **{"linestyle": "--", "linewidth": 1} | style)


def values(runs: Runs, field: str) -> list[Any]:
    """List the values of a field in these runs, in order of appearance."""
    return list(dict.fromkeys(run[field] for run in runs if field in run))


def of(runs: Runs, **wanted: object) -> list[Run]:
    """The runs whose fields have these values."""
    return [run for run in runs if all(run.get(name) == value for name, value in wanted.items())]


def colour(name: str, known: Sequence[str]) -> str:
    """The same for a line in every panel."""
    return f"C{known.index(name) % 10}" if name in known else "black"


def a_panel_for_each(draw: Callable[..., None]) -> Callable[[Sequence[Runs]], Grid]:
    """One row of panels, one for each data set."""
    return lambda parts: [[partial(draw, runs=runs) for runs in parts]] if parts else []


def of_main(axes: Any, runs: Runs) -> None:
    """Accuracy against epsilon, a line a method; published numbers as crosses."""
    name = runs[0]["data"]
    for number, method in enumerate(METHODS):
        if method == "non-private":
            level(axes, of(runs, method=method), label=method, color="black")
        else:
            curve(
                axes,
                of(runs, method=method),
                "epsilon",
                label=method,
                color=f"C{number % 10}",
                linestyle="--" if number > 9 else "-",
            )
    known = [(epsilon, value[0]) for (data, epsilon), value in PUBLISHED.items() if data == name]
    if known:
        axes.plot(*zip(*known, strict=True), "kx", label="best published")
    labelled(axes, name, "epsilon", ticks=values(runs, "epsilon"))


def of_figure(axes: Any, runs: Runs) -> None:
    """Figure 1 of Esfandiari et al. 2021."""
    for method in FIGURE:
        for beta, style in (("0", "-"), ("lambda", ":")):
            shown = f"{method}, beta = {beta}"
            curve(
                axes,
                of(runs, method=method, beta=beta),
                "epsilon",
                label=shown,
                color=colour(method, FIGURE),
                linestyle=style,
            )
    labelled(
        axes, runs[0]["data"], "epsilon, as each method counts it", ticks=values(runs, "epsilon")
    )


def of_histogram(axes: Any, runs: Runs) -> None:
    """Figure 2 of Ghazi et al. 2021: what private histograms say of the rows, by the number of
    clusters."""
    for number, epsilon in enumerate(sorted(values(runs, "epsilon"))):
        curve(
            axes,
            of(runs, epsilon=epsilon),
            "clusters",
            label=f"epsilon {epsilon:g}",
            color=f"C{number % 10}",
        )
    curve(
        axes,
        runs,
        "clusters",
        "purity",
        label="without noise",
        color="black",
        linestyle="--",
        marker="",
    )
    labelled(
        axes, runs[0]["data"], "clusters", "training rows told right, %", values(runs, "clusters")
    )


def of_clusters(axes: Any, runs: Runs) -> None:
    """NoiseCluster by the number of clusters, the last panel of figure 1 of Esfandiari et al.; what
    has no clusters is a level."""
    for number, kind in enumerate(values(runs, "features")):
        voted = [run for run in of(runs, features=kind) if "clusters" in run]
        curve(axes, voted, "clusters", label=f"NoiseCluster, {kind}", color=f"C{number}")
        for method in values(runs, "method"):
            level(
                axes,
                of(runs, features=kind, method=method),
                label=f"{method}, {kind}",
                color=f"C{number}",
            )
    labelled(axes, runs[0]["data"], "clusters", ticks=values(runs, "clusters"))


def of_beta(parts: Sequence[Runs]) -> Grid:
    """A row of panels for each data set: bias of the estimated mean loss, spread of one row's loss,
    accuracy."""
    fields = (
        ("error_of_mean_loss", 1.0, "error of the mean loss (bias)"),
        ("spread_of_one_loss", 1.0, "spread of one row's loss"),
        ("accuracy", 100.0, "test accuracy, %"),
    )
    return [
        [
            partial(_beta, runs=runs, field=field, scale=scale, shown=shown)
            for field, scale, shown in fields
        ]
        for runs in parts
    ]


def _beta(axes: Any, runs: Runs, field: str, scale: float, shown: str) -> None:
    for number, epsilon in enumerate(sorted(values(runs, "epsilon"))):
        curve(
            axes,
            of(runs, epsilon=epsilon),
            "share",
            field,
            scale,
            label=f"epsilon {epsilon:g}",
            color=f"C{number}",
        )
    axes.set_xticks(BETAS)
    labelled(axes, runs[0]["data"], "beta, as a share of lambda", shown)


def labelled(
    axes: Any, name: str, x: str, y: str = "test accuracy, %", ticks: Sequence[float] = ()
) -> None:
    """Titles; with ticks, a logarithmic axis that has these."""
    if len(ticks):
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.set(xlabel=x, ylabel=y, title=name)
    axes.grid(alpha=0.3)


PANELS = {
    "main": a_panel_for_each(of_main),
    "figure": a_panel_for_each(of_figure),
    "beta": of_beta,
    "histogram": a_panel_for_each(of_histogram),
    "clusters": a_panel_for_each(of_clusters),
}
