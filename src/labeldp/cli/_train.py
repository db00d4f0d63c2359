# SPDX-License-Identifier: Apache-2.0
"""`labeldp train`, `predict`, `plan` and `demo`."""

import math
import re
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
    charge_text,
    grid_of,
    grouped,
    law_of_text,
    numbers_of,
    print_json,
    progress_bars,
    spec_of,
    split,
    unescaped,
    usage,
)
from labeldp.errors import InvalidInput
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
        classes = self.values(names, required=False)
        return spec_of(
            TrainSpec, self, label=label, classes=classes, learn=learn, id=self.id or None
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
    how = f" ({done.facts['evidence']})" if done.facts["trained_on"] != DRAWN else ""
    if len(spec.labels) > 1:
        which = (
            f"a model of {done.facts['rows']:,} rows for each of the columns"
            f" {_validate.quoted(spec.labels)}, together"
        )
        said = "".join(
            f"\n{each['label']!r}{_asked_text(each)}:{quality_text(each)}"
            for each in done.facts["columns"]
        )
    else:
        which = f"a model of {done.facts['rows']:,} rows{_asked_text(done.facts)},"
        said = quality_text(done.facts) + clusters_text(done.facts.get("clusters"))
    text = (
        f"{done.path}: {which}"
        f" {done.guarantee}{how}.{left_out_text(done.facts)}{said}{features_text(done.facts)}"
    )
    told = {"path": str(done.path)} | dict(done.facts)
    if done.noisy_columns:
        text += (
            "\nNo features, since releases drew them from private columns:"
            f" {', '.join(done.noisy_columns)}."
        )
        told["noisy_columns"] = list(done.noisy_columns)
    answer(as_json, told, f"{text}\n{cost_text(done.facts, record, began)}")


def _asked_text(column: Mapping[str, Any]) -> str:
    """Say how many rows were asked about a column, if not all were."""
    return (
        f" ({column['rows_asked']:,} of them asked about this column)"
        if "rows_asked" in column
        else ""
    )


def features_text(facts: Mapping[str, Any]) -> str:
    """List the columns that the model learned from, the first dozen of them."""
    names = [str(each["name"]) for each in facts["features"]["columns"]]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"\nFeatures: {', '.join(names[:_SHOWN])}{more}."


def left_out_text(facts: Mapping[str, Any]) -> str:
    """Report how many rows were over their unit's cap; rows left out of a release are not in its
    table."""
    over = facts["rows_over_the_cap"]
    where = " when the table was released" if facts["trained_on"] == "released table" else ""
    return f" {over:,} rows over the cap were left out{where}." if over else ""


def cost_text(facts: Mapping[str, Any], ledger: Any, began: str) -> str:
    """Report the charge of the training, and what its data set has spent in all."""
    from labeldp.app.train import DRAWN

    if facts["trained_on"] != DRAWN:
        return "Nothing was drawn, nothing was charged."
    # a prior of clusters has a charge of its own
    receipts = [Receipt.from_dict(each) for each in facts["receipts"]]
    return f"{charge_text(ledger, receipts, began)} {account_text(ledger, receipts)}"


def quality_text(facts: Mapping[str, Any]) -> str:
    """Report the estimated accuracy and log-loss of the model, or the errors of numbers, next to
    those of a constant prediction."""
    if "estimated_rmse" in facts:
        return _quality_of_numbers(facts)
    if facts["estimated_accuracy"] is None:
        return _not_estimated("How accurate it is", facts)
    if not facts["estimated_accuracy"]["tells"]:
        return (
            " At this epsilon the noisy rows that were held out are too few to tell how accurate"
            " it is."
        )
    accuracy = _beside(
        "accuracy",
        facts["estimated_accuracy"],
        "always the commonest class",
        facts["baseline_accuracy"],
    )
    return accuracy + _beside(
        "log-loss",
        facts["estimated_log_loss"],
        "the class frequencies alone",
        facts["baseline_log_loss"],
    )


def _not_estimated(what: str, facts: Mapping[str, Any]) -> str:
    from labeldp.protocol._fit import MIN_VALIDATION_ROWS

    why = "; answers about clusters have none" if facts.get("clusters") else ""
    return (
        f" {what} was not estimated: that takes at least {MIN_VALIDATION_ROWS} noisy rows that are"
        f" held out{why}."
    )


def _beside(name: str, found: Mapping[str, Any], what: str, constant: Mapping[str, Any]) -> str:
    """Report an estimate beside that of a constant prediction; the interval first if it holds that
    one."""
    known = min(max(constant["value"], constant["low"]), constant["high"])
    if found["low"] <= known <= found["high"]:
        interval = f"{found['low']:.3f} to {found['high']:.3f}"
        interval += (
            f" (estimate {found['value']:.3f})"
            if found["low"] < found["value"] < found["high"]
            else ""
        )
        return (
            f" Estimated {name} {interval}: cannot tell whether it is better than {what},"
            f" {known:.3f}."
        )
    return f" Estimated {name} {_measured(found)}; {what}: {known:.3f}."


def _quality_of_numbers(facts: Mapping[str, Any]) -> str:
    """Report the estimated RMSE and R^2 of the model, and the RMSE of the mean alone."""
    error, constant, share = facts["estimated_rmse"], facts["baseline_rmse"], facts["estimated_r2"]
    if error is None:
        return _not_estimated("How large its errors are", facts)
    if not error["tells"]:
        return (
            " At this epsilon the noisy rows that were held out are too few to tell how large its"
            " errors are."
        )
    # three digits of the largest figure
    places = max(0, 2 - math.floor(math.log10(max(error["high"], constant["high"], 1e-12))))
    rmse = (
        f" Estimated RMSE {_error_of_numbers(error, places)}; always the mean:"
        f" {_error_of_numbers(constant, places)}."
    )
    if not share["tells"]:
        return f"{rmse} At this epsilon the noisy rows that were held out are too few to tell R^2."
    return f"{rmse} Estimated R^2 {_measured(share)}."


def _error_of_numbers(found: Mapping[str, Any], places: int) -> str:
    """Format a root mean squared error; 0 would look perfect where noise has carried the estimate
    of the square below 0."""
    return (
        _measured(found, places=places)
        if found["value"] > 0
        else f"at most {found['high']:,.{places}f}"
    )


def _measured(found: Mapping[str, Any], places: int = 3) -> str:
    """Format an estimate with its interval."""
    low, high = found["low"], found["high"]
    # An unbiased estimate may lie outside of its interval, which is cut to possible values.
    value, low, high = (
        f"{each:,.{places}f}" for each in (min(max(found["value"], low), high), low, high)
    )
    return f"{value} ({low} to {high})"


def clusters_text(asked: Mapping[str, Any] | None) -> str:
    """Report the number of clusters that were asked about, and how reliable the answers are."""
    if asked is None:
        return ""
    return (
        f" It learned from the label counts of {asked['number']:,} clusters, each with noise of"
        f" {asked['deviation']:.3g} rows."
    )


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
        done = run(model, source, out, trust or (), progress, quantiles=wanted)
    answer(
        as_json, {"path": str(done.path), "rows": done.rows}, f"{done.path}: {done.rows:,} rows."
    )


# Plan and demo
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RowCounts:
    """Numbers of rows, in all and per unit, from a table or as text."""

    rows: Annotated[int | None, typer.Option(help="Rows of the table.")] = None
    table: Annotated[
        str | None,
        typer.Option(
            help=(
                "Table whose rows are counted; with --unit, its rows per unit choose the most"
                " informative cap."
            )
        ),
    ] = None
    unit: Annotated[
        str | None, typer.Option("--unit", help="Its column that names the person.")
    ] = None
    rows_per_unit: Annotated[
        str | None,
        typer.Option(
            help="Number of units with each number of rows: ROWS:UNITS[,...], as 1:5000,2:800."
        ),
    ] = None

    def value(self) -> dict[str, Any]:
        """Return the number of rows, and that of units with each number of rows, as parameters of a
        plan."""
        from labeldp.app.plan import count_rows, count_rows_per_unit, parse_rows_per_unit

        text, table, unit = self.rows_per_unit, self.table, self.unit
        if (unit is not None and table is None) or (table is not None and text is not None):
            raise typer.BadParameter(
                "Expected --table, with or without --unit, or --rows-per-unit, got another choice."
                " Add or drop one."
            )
        if table is not None and self.rows is not None:
            raise typer.BadParameter(
                "Expected --rows or --table, which counts them, got both. Leave one out."
            )
        if table is not None:
            return (
                {"rows": count_rows(table)}
                if unit is None
                else {"rows_per_unit": count_rows_per_unit(table, unit)}
            )
        return {
            "rows": self.rows,
            "rows_per_unit": None if text is None else usage(lambda: parse_rows_per_unit(text)),
        }


@app.command()
@grouped
def plan(
    epsilon: Annotated[str, typer.Option(help="Budgets to compare: E[,E...].")],
    counts: RowCounts,
    classes: Annotated[
        str | None, typer.Option(help="Number of classes, or their names: A,B,C.")
    ] = None,
    range: Range = None,
    law: Annotated[
        list[str] | None,
        typer.Option("--law", help=f"Further law to compare; repeat it for several: {LAW_NAMES}."),
    ] = None,
    max_rows_per_unit: Annotated[
        int | None,
        typer.Option(
            "--max-rows-per-unit",
            help="Rows of one person that are used. Default: 1, or the most informative cap.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """What each law gives at each budget, before anything is spent; and which cap on the rows of a
    unit."""
    from labeldp.app import plan as plans

    if (classes is None) == (range is None):
        raise typer.BadParameter(
            "Expected classes or a range, got both or none. Give --classes K, or --range LOW:HIGH"
            " of a number."
        )
    made: plans.Plan | plans.NumberPlan
    budgets, laws = usage(lambda: numbers_of(epsilon)), [law_of_text(each) for each in law or ()]
    more: dict[str, Any] = {"laws": laws, "max_rows_per_unit": max_rows_per_unit} | counts.value()
    if range is not None:
        made = usage(lambda: plans.plan_numbers(grid_of(range), budgets, **more))
    else:
        made = usage(lambda: plans.plan(_count_of(classes or ""), budgets, **more))
    if as_json:
        print_json(made.to_dict())
    else:
        typer.echo(made.to_text())


def _count_of(text: str) -> int:
    """Count classes that are given as their number K, or by their names A,B,C."""
    names = split(text) or []
    if len(names) == 1 and names[0].lstrip("+-").isdecimal():
        return int(names[0])
    if (
        len(names) == 1
        or "" in names
        or len(set(names)) < len(names)
        or re.search(r"(?<!\\);", text)
    ):
        raise InvalidInput(
            f"Expected the number of classes of one column, or their different names, got {text!r}."
            " For example --classes 2, or --classes no,yes."
        )
    return len(names)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for summary.md and summary.json.")] = Path(
        "demo-out"
    ),
    seeds: Annotated[int, typer.Option(help="Noise seeds and splits to average over.")] = 8,
    workers: Annotated[int, typer.Option(help="Processes of one thread each.")] = 2,
    as_json: Json = False,
) -> None:
    """Two real data sets at three budgets: what labeldp gains."""
    from labeldp.app.demo import PAGE, run

    usage(
        lambda: (_validate.integer(seeds=seeds, low=1), _validate.integer(workers=workers, low=1))
    )
    result = run(out, seeds=seeds, workers=workers)
    if as_json:
        print_json(result)
        return
    typer.echo((out / PAGE).read_text(encoding="utf-8"))
    typer.echo(
        f"{result['fits']} fits in {result['seconds']:.0f} s. Written: {out}/summary.md,"
        f" {out}/summary.json"
    )
