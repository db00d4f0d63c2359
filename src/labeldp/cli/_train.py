# SPDX-License-Identifier: Apache-2.0
"""`labeldp train`, `predict`, `plan` and `demo`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from labeldp import _validate
from labeldp.cli._common import (
    LAW_NAMES,
    ColumnOptions,
    Commands,
    Dataset,
    Json,
    LedgerOptions,
    Range,
    Strict,
    account_text,
    answer,
    cell,
    charge_text,
    classes_of_text,
    grid_of,
    grouped,
    law_of_text,
    numbers_of,
    progress_bars,
    spec_of,
    split,
    unescaped,
    usage,
)
from labeldp.receipt import Receipt

app = typer.Typer(cls=Commands)
_SHOWN = 12  # columns in a line


# Train and predict
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TrainOptions(ColumnOptions):
    """Columns, cost and model."""

    epsilon: Annotated[
        float | None,
        typer.Option(help="Total budget of one row or unit; none for a released table."),
    ] = None
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help=(
                "auto (linear if columns have hundreds of categories, else boosting), boosting,"
                " linear, lightgbm; or for small budgets counts (private label counts of clusters"
                " of rows), of classes alone."
            ),
        ),
    ] = "auto"
    law: Annotated[
        str,
        typer.Option(
            "--law",
            help=f"{LAW_NAMES}. Of a released table: only to import your own.",
            callback=law_of_text,
        ),
    ] = "auto"
    stages: Annotated[
        int,
        typer.Option(
            help=(
                "Number of stages; the model of each stage is the prior of the next part of the"
                " rows."
            )
        ),
    ] = 1
    features: Annotated[
        str | None,
        typer.Option(help="Columns to learn from: A,B. Default: all but label, ids and unit."),
    ] = None
    exclude: Annotated[str | None, typer.Option(help="Columns not to learn from: A,B.")] = None
    manifest: Annotated[
        Path | None,
        typer.Option(help="Manifest of the release, if IN is a copy of it without the manifest."),
    ] = None
    released: Annotated[
        Path | None,
        typer.Option(
            help="Released table of which IN has some rows: its labels are matched by id."
        ),
    ] = None
    dataset: Dataset = None
    strict: Strict = False

    def spec(self) -> Any:
        """Make the TrainSpec."""
        from labeldp.app.train import Learning, TrainSpec

        names = split(self.label) or []
        learn = usage(
            lambda: Learning(
                self.model, self.stages, split(self.features), split(self.exclude) or ()
            )
        )
        label = names if len(names) > 1 else unescaped(self.label)
        return spec_of(
            TrainSpec,
            self,
            label=label,
            classes=self.values(names, required=False),
            learn=learn,
            id=self.id or None,
        )


@app.command()
@grouped
def train(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN", help="Parquet or CSV, with raw labels or as labeldp release wrote it."
        ),
    ],
    out: Annotated[Path, typer.Option(help="New folder for the model.")],
    asked: TrainOptions,
    ledger: LedgerOptions,
    as_json: Json = False,
) -> None:
    """Train a model on a table with private labels, classes or numbers. Several label columns share
    one charge; each has a model."""
    from labeldp.app.train import DRAWN
    from labeldp.app.train import train as run
    from labeldp.ledger._database import utc_now

    spec = asked.spec()
    record = ledger.open()
    began = utc_now()
    with progress_bars(as_json) as progress:
        done = run(source, out, spec, record, progress)
    facts = {"path": str(done.path)} | dict(done.facts)
    facts |= {"noisy_columns": list(done.noisy_columns)} if done.noisy_columns else {}
    raw, over = facts["trained_on"] == DRAWN, facts["rows_over_the_cap"]
    columns = facts.get("columns", [facts])
    together = " together" if len(columns) > 1 else ""
    how = "" if raw else f" ({facts['evidence']})"
    rows = f"a model of {facts['rows']:,} rows for {_validate.quoted(spec.labels)}"
    lines = [
        f"{done.path}: {rows}{together}, {done.guarantee}{how}.",
        *(f"{each['label']!r}: {quality_text(each)}" for each in columns),
    ]
    if over:
        where = "" if raw else " when the table was released"
        lines.append(f"{over:,} rows over the cap were left out{where}.")
    if found := facts.get("clusters"):
        lines.append(
            f"It learned from the label counts of {found['number']:,} clusters, each with noise of"
            f" {found['deviation']:.3g} rows."
        )
    names = [str(each["name"]) for each in facts["features"]["columns"]]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    lines.append(f"Features: {', '.join(names[:_SHOWN])}{more}.")
    if done.noisy_columns:
        listed = ", ".join(done.noisy_columns)
        lines.append(f"No features, since releases drew them from private columns: {listed}.")
    # a prior of clusters has a charge of its own
    receipts = [Receipt.from_dict(each) for each in facts["receipts"]] if raw else []
    lines.append(
        f"{charge_text(record, receipts, began)} {account_text(record, receipts) if raw else ''}"
    )
    answer(as_json, facts, "\n".join(lines).rstrip())


def quality_text(facts: Mapping[str, Any]) -> str:
    """Report the estimates of a model, with their intervals, beside those of a constant
    prediction."""
    said = []
    for name, found in facts.items():
        if not name.startswith("estimated_"):
            continue
        what = name.removeprefix("estimated_")
        if found is None or not found["tells"]:
            said.append(f"too few noisy rows were held out to tell its {what}")
            continue
        # An unbiased estimate may lie outside of its interval, which is cut to possible values; and
        # an error of 0 would look perfect where noise has carried its square below 0.
        low, high = found["low"], found["high"]
        value = min(max(found["value"], low), high)
        at = "at most " if what == "rmse" and not value else f"{cell(value)} ({cell(low)} to "
        said.append(f"{what} {at}{cell(high)}{'' if at.startswith('at') else ')'}")
        if constant := facts.get(f"baseline_{what}"):
            known = min(max(constant["value"], constant["low"]), constant["high"])
            better = "; cannot tell which is better" if low <= known <= high else ""
            said[-1] += f", without features {cell(known)}{better}"
    return "; ".join(said) + "."


@app.command()
def predict(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder that labeldp train wrote, or its file of one label column."
        ),
    ],
    source: Annotated[
        Path,
        typer.Argument(metavar="IN", help="Table with the columns that the model was trained on."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help=(
                "Parquet or CSV: a class and its probabilities for each row and label column, or"
                " the mean of a number."
            )
        ),
    ],
    quantile: Annotated[
        str | None,
        typer.Option("--quantile", help="Quantiles of a number, a column each: .05,.95."),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            "--trust",
            help="Type in the model's file that you trust although labeldp does not know it.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict with a trained model. A model is code, like any pickle: use those of people you
    trust."""
    from labeldp.app.train import predict as run
    from labeldp.protocol._estimator import quantiles_of

    wanted = [] if quantile is None else usage(lambda: quantiles_of(numbers_of(quantile)).tolist())
    with progress_bars(as_json) as progress:
        rows = run(model, source, out, trust or (), progress, quantiles=wanted)
    answer(as_json, {"path": str(out), "rows": rows}, f"{out}: {rows:,} rows.")


# Plan and demo
# --------------------------------------------------------------------------------------------------


@app.command()
def plan(
    epsilon: Annotated[str, typer.Option(help="Budgets to compare: E[,E...].")],
    classes: Annotated[
        str | None, typer.Option(help="Number of classes, or their names: A,B,C.")
    ] = None,
    range: Range = None,
    law: Annotated[
        list[str] | None,
        typer.Option("--law", help=f"Further law to compare; repeat it for several: {LAW_NAMES}."),
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Rows of the table.")] = None,
    max_rows_per_unit: Annotated[
        int, typer.Option("--max-rows-per-unit", help="Rows of one person that are used.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """What each law gives at each budget, before anything is spent."""
    from labeldp.app import plan as plans

    if (classes is None) == (range is None):
        raise typer.BadParameter(
            "Expected classes or a range, got both or none. Give --classes K, or --range LOW:HIGH"
            " of a number."
        )
    budgets = usage(lambda: numbers_of(epsilon))
    more: dict[str, Any] = {
        "laws": [law_of_text(each) for each in law or ()],
        "rows": rows,
        "max_rows_per_unit": max_rows_per_unit,
    }
    if range is not None:
        made = usage(lambda: plans.plan_numbers(grid_of(range), budgets, **more))
    else:
        text = classes or ""
        number = text.strip().lstrip("+-").isdecimal()
        n = int(text) if number else usage(lambda: len(set(classes_of_text(text))))
        made = usage(lambda: plans.plan(n, budgets, **more))
    answer(as_json, made)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for summary.md and summary.json.")] = Path(
        "demo-out"
    ),
    seeds: Annotated[int, typer.Option(help="Noise seeds and splits to average over.")] = 8,
    as_json: Json = False,
) -> None:
    """Two real data sets at three budgets: what labeldp gains."""
    from labeldp.app.demo import PAGE, run

    usage(lambda: _validate.integer(seeds=seeds, low=1))
    result = run(out, seeds=seeds)
    answer(as_json, result, f"{(out / PAGE).read_text(encoding='utf-8')}\nWritten to {out}.")
