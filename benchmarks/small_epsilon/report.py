# SPDX-License-Identifier: Apache-2.0
"""The kept runs of `small-epsilon`, and their tables: means and standard deviations over the seeds,
published numbers beside."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.common import RESULTS, Run, worth
from benchmarks.small_epsilon.methods import DP_SGD, METHODS, PUBLISHED, SUMS

RESULT = RESULTS / "small-epsilon.json.gz"
IDENTITY = (
    "table",
    "data",
    "method",
    "epsilon",
    "seed",
    "rows",
    "beta",
    "share",
    "clusters",
    "features",
)
FOUND = {("main", "clusters"), ("beta", "beta")}
"""What is asked for in other tables, and comes out in these."""


def key(run: Run) -> tuple[Any, ...]:
    """Return a cell's identity."""
    return tuple(run.get(name) for name in IDENTITY if (run["table"], name) not in FOUND)


def load_runs() -> list[Run]:
    """The kept cells."""
    return common.load_runs(RESULT)


def mean_of(
    runs: Sequence[Run], field: str = "accuracy", scale: float = 100, digits: int = 1
) -> str:
    """Mean and standard deviation of a field; empty where there is nothing."""
    found = np.array([run[field] for run in runs if field in run])
    if not len(found):
        return ""
    spread = f" ± {scale * found.std(ddof=1):.{digits}f}" if len(found) > 1 else ""
    return f"{scale * found.mean():.{digits}f}" + spread


def markdown(runs: Sequence[Run], rows: int | None = None) -> str:
    """The main table as Markdown: mean and standard deviation over the seeds, the published number
    beside."""
    runs = [
        run
        for run in runs
        if run["table"] == "main" and run.get("rows") == rows and "finished" in run
    ]
    heads = ["accuracy, %", "eps", "label equivalents", *METHODS, "published"]
    lines = [_line(*heads), "|" + "---|" * len(heads)]
    for name in dict.fromkeys(run["data"] for run in runs):
        bound = mean_of(
            [run for run in runs if (run["data"], run["method"]) == (name, "non-private")]
        )
        for epsilon in sorted({run["epsilon"] for run in runs if run["data"] == name}):
            at = [run for run in runs if (run["data"], run["epsilon"]) == (name, epsilon)]
            cells = [
                bound if m == "non-private" else mean_of([run for run in at if run["method"] == m])
                for m in METHODS
            ]
            published = PUBLISHED.get((name, epsilon))
            said = "" if published is None else f"{published[0]} ({published[1]})"
            lines.append(
                _line(
                    name, f"{epsilon:g}", worth(name, epsilon) if rows is None else "", *cells, said
                )
            )
    return "\n".join(lines)


def table_of(runs: Sequence[Run], table: str, across: str, rows: int | None = None) -> str:
    """A smaller table as Markdown: a line for each setting, a column for each value of `across`,
    and one for what has none."""
    runs = [
        run
        for run in runs
        if run["table"] == table and run.get("rows") == rows and "finished" in run
    ]
    if not runs:
        return ""
    columns = list(dict.fromkeys(run.get(across) for run in runs))
    names = [
        name
        for name in IDENTITY
        if any(name in run for run in runs) and name not in ("table", "seed", "rows", across)
    ]
    titles = [*names, *(f"no {across}" if c is None else f"{across} {c}" for c in columns)]
    lines = [_line(*titles), "|---" * len(titles) + "|"]
    runs = [{"method": "NoiseCluster"} | run for run in runs]  # where others stand beside it
    for line in dict.fromkeys(tuple(run.get(name, "") for name in names) for run in runs):
        same = [run for run in runs if tuple(run.get(name, "") for name in names) == line]
        lines.append(
            _line(*line, *(mean_of([run for run in same if run.get(across) == c]) for c in columns))
        )
    return "\n".join(lines)


def beta_table(runs: Sequence[Run], rows: int | None = None) -> str:
    """Tabulate how another beta than lambda changes bias, spread and accuracy, one line each."""
    runs = [
        run
        for run in runs
        if run["table"] == "beta" and run.get("rows") == rows and "finished" in run
    ]
    if not runs:
        return ""
    titles = (
        "data",
        "epsilon",
        "lambda",
        "beta / lambda",
        "error of the mean loss (bias)",
        "spread of one row's loss",
        "accuracy, %",
    )
    lines = [_line(*titles), "|---" * len(titles) + "|"]
    for line in dict.fromkeys(
        (run["data"], run["epsilon"], f"{run['lambda']:.3f}", run["share"]) for run in runs
    ):
        same = [
            run
            for run in runs
            if (run["data"], run["epsilon"], run["share"]) == (*line[:2], line[3])
        ]
        lines.append(
            _line(
                *line,
                mean_of(same, "error_of_mean_loss", 1, 4),
                mean_of(same, "spread_of_one_loss", 1, 2),
                mean_of(same),
            )
        )
    return "\n".join(lines)


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


SUMMED_UP = (
    "randomized response",
    SUMS,
    DP_SGD,
    "NoiseCluster, then the learner",
    "ProportionClassifier",
    "ClusterPrior + RRWithPrior",
    "non-private",
)
TITLES = {"non-private": "no privacy", SUMS: f"{SUMS}, delta 1e-5", DP_SGD: f"{DP_SGD}, delta 1e-5"}


def summary() -> str:
    """README's table: where there is a published number, and ours was run."""
    runs = [
        run
        for run in load_runs()
        if run["table"] == "main" and "rows" not in run and "finished" in run
    ]
    titles = (
        "accuracy, %",
        "eps",
        "label equivalents",
        "published",
        *(TITLES.get(name, name) for name in SUMMED_UP),
    )
    lines = [_line(*titles), "|---" * len(titles) + "|"]
    for (name, epsilon), (number, said) in PUBLISHED.items():
        same = [run for run in runs if run["data"] == name]
        at = {
            m: [
                run
                for run in same
                if run["method"] == m and (m == "non-private" or run["epsilon"] == epsilon)
            ]
            for m in SUMMED_UP
        }
        if at["NoiseCluster, then the learner"]:
            lines.append(
                _line(
                    name,
                    f"{epsilon:g}",
                    worth(name, epsilon),
                    f"{number} ({said})",
                    *(mean_of(found) for found in at.values()),
                )
            )
    return "\n".join(lines)


ACROSS = {"figure": "method", "histogram": "epsilon", "clusters": "clusters"}


def tables(rows: int | None = None) -> str:
    """Return all tables of which some cell was run."""
    runs = load_runs()
    smaller = {
        f"{table}: accuracy, %": table_of(runs, table, across, rows)
        for table, across in ACROSS.items()
    }
    smaller["beta: bias and spread of the estimated loss"] = beta_table(runs, rows)
    return "\n\n".join(
        [markdown(runs, rows), *(f"{title}\n\n{body}" for title, body in smaller.items() if body)]
    )
