# SPDX-License-Identifier: Apache-2.0
"""`labeldp train`, `predict`, `plan` and `demo`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from labeldp import _validate
from labeldp.cli._common import (
    LAW_NAMES,
    Commands,
    Dataset,
    Device,
    ImagesFolder,
    InferClasses,
    Json,
    LabelsOptions,
    SecretOptions,
    Strict,
    Trust,
    account_text,
    answer,
    charge_text,
    count_of,
    grouped,
    law_of_text,
    laws_of_texts,
    number_grid,
    numbers_of,
    print_json,
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
class InputOptions:
    """Inputs of the model."""

    features: Annotated[
        str | None,
        typer.Option(help="Columns to learn from: A,B. Default: all but label, ids and unit."),
    ] = None
    exclude: Annotated[str | None, typer.Option(help="Columns not to learn from: A,B.")] = None
    image: Annotated[
        str | None,
        typer.Option(
            "--image",
            help="Column of images: bytes of image files, or names of files; the only input.",
        ),
    ] = None
    images: ImagesFolder = None
    inputs: Annotated[
        str | None, typer.Option("--inputs", help="Array of inputs in an .npz file. Default: X.")
    ] = None
    labels: Annotated[
        Path | None,
        typer.Option(
            "--labels", help="Another .npz or .npy file, with the labels, ids and units of arrays."
        ),
    ] = None

    def value(self) -> Any:
        """Make the InputsSpec."""
        from labeldp.app._train import InputsSpec

        return InputsSpec(
            split(self.features),
            split(self.exclude) or (),
            self.image,
            self.images,
            self.inputs,
            self.labels,
        )


@dataclass(frozen=True, kw_only=True)
class EvidenceOptions:
    """Evidence that labels are noisy."""

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
    noisy: Annotated[
        bool,
        typer.Option(
            "--noisy",
            help=(
                "Declare that another mechanism drew the labels, by --law at --epsilon. Nothing is"
                " charged."
            ),
        ),
    ] = False

    def value(self) -> Any:
        """Make the EvidenceSpec."""
        from labeldp.app._train import EvidenceSpec

        return EvidenceSpec(self.manifest, self.released, self.noisy)


@dataclass(frozen=True, kw_only=True)
class NoiseOptions:
    """How the model learns from noise, and stages."""

    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="NAME[:DATA]",
            help=(
                "Recipe of a paper, in place of --law and the options below: lp-1st, lp-2st or"
                " lp-3st (Ghazi et al. 2021), or alibi (Malek et al. 2021). With DATA a net is"
                " trained as published for mnist, fashion_mnist, kmnist, cifar10, cifar100 or"
                " movielens_1m."
            ),
        ),
    ] = None
    stages: Annotated[
        int | None,
        typer.Option(
            help=(
                "Number of stages; the model of each stage is the prior of the next part of the"
                " rows. Default: 1."
            )
        ),
    ] = None
    stage_sizes: Annotated[
        str | None,
        typer.Option(
            "--stage-sizes",
            help="Share of the rows in each stage: .6,.4 for two. Default: equal shares.",
        ),
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            help=(
                "Of a model's probabilities as the next stage's prior; below 1 sharpens them."
                " Default: 1."
            ),
        ),
    ] = None
    top_k: Annotated[
        str | None,
        typer.Option(
            "--filter",
            help=(
                "Leave out rows of earlier stages whose output has none of the model's K likeliest"
                " classes: K, or mean, the mean number of candidates of the latest stage (with"
                " --law rr-with-prior)."
            ),
        ),
    ] = None
    correction: Annotated[
        str | None,
        typer.Option(
            "--correction",
            help=(
                "likelihood (exact), em (expectation-maximisation), debias (unbiased weights), none"
                " (noisy labels taken as true); auto (default): likelihood where the model has one,"
                " else em."
            ),
        ),
    ] = None

    def of_stages(self, law: str | None) -> dict[str, Any]:
        """Return the TrainSpec's fields of law, stages, correction and recipe; those that are not
        given keep its defaults."""
        from labeldp.app._learners import paper_of

        paper = usage(lambda: paper_of(self.recipe))
        given = {
            "--law": law,
            "--stages": self.stages,
            "--stage-sizes": self.stage_sizes,
            "--temperature": self.temperature,
            "--filter": self.top_k,
            "--correction": self.correction,
        }
        if paper is not None:
            usage(
                lambda: paper.require_alone(
                    [name for name, value in given.items() if value is not None]
                )
            )
        fields = {
            "law": law,
            "n_stages": self.stages,
            "stage_sizes": (
                None
                if self.stage_sizes is None
                else tuple(usage(lambda: numbers_of(self.stage_sizes or "")))
            ),
            "prior_temperature": self.temperature,
            "top_k_filter": (
                int(self.top_k) if self.top_k is not None and self.top_k.isdecimal() else self.top_k
            ),
            "correction": self.correction,
            "recipe": paper,
        }
        return {"law": "auto", "correction": "auto", "recipe": None} | {
            name: value for name, value in fields.items() if value is not None
        }


@dataclass(frozen=True, kw_only=True)
class NetSettings:
    """Training of a net."""

    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Epochs of a net in each stage.")
    ] = None
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Batch size of a net.")] = (
        None
    )
    rate: Annotated[
        float | None, typer.Option("--rate", help="Largest learning rate of a net.")
    ] = None
    nets: Annotated[
        int | None,
        typer.Option("--nets", help="Number of nets whose mean probabilities predict. Default: 1."),
    ] = None
    device: Device = "auto"
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            help="Folder for the state of a net's training, which resumes it after a kill.",
        ),
    ] = None

    def value(self) -> Any:
        """Make the NetOptions."""
        from labeldp.app._learners import NetOptions

        return spec_of(NetOptions, self)


@dataclass(frozen=True, kw_only=True)
class TrainOptions(NoiseOptions, LabelsOptions):
    """Columns, cost and model."""

    epsilon: Annotated[
        float | None,
        typer.Option(help="Total budget of one row or unit; none for a released table."),
    ] = None
    infer_classes: InferClasses = False
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help=(
                "auto (linear if columns have hundreds of categories, else boosting; for images"
                " small-convnet), boosting, lightgbm, xgboost, linear; for small budgets"
                " proportions (label counts of clusters of rows) or noise-cluster (one vote for"
                " each); or a net, which needs torch: mlp, small-convnet, resnet18, wrn-28-4, vgg16"
                " or small-inception. Numbers have all but proportions and noise-cluster."
            ),
        ),
    ] = "auto"
    law: Annotated[
        str | None,
        typer.Option(
            "--law",
            help=f"{LAW_NAMES}. Default: auto. Of a released table: only to import your own.",
            callback=law_of_text,
        ),
    ] = None
    prior: Annotated[
        str | None,
        typer.Option(
            "--prior",
            help=(
                "clusters[:NUMBER][,eps=E]: first ask for label counts of clusters of the inputs,"
                " at E of the total. Of numbers histogram[,eps=E]: first ask for a histogram of all"
                " of them, for which --law rr-on-bins or unbiased is made. A rule sets what you"
                " leave out."
            ),
        ),
    ] = None
    seed: Annotated[
        int, typer.Option(help="Seed of the training; the noise never depends on it.")
    ] = 0
    dataset: Dataset = None
    strict: Strict = False

    def spec(
        self, source: Path, inputs: InputOptions, evidence: EvidenceOptions, net: NetSettings
    ) -> Any:
        """Make the TrainSpec for a table or a file of arrays."""
        from labeldp.app._learners import prior_of_text
        from labeldp.app._train import TrainSpec

        more = {
            "net": net.value(),
            "inputs": inputs.value(),
            "evidence": evidence.value(),
            "prior": usage(lambda: prior_of_text(self.prior)),
        }
        more |= self.of_stages(self.law) | {"id": self.id or None, "random_state": self.seed}
        names = self._names(source)
        if len(names) > 1:
            return spec_of(TrainSpec, self, **more | {"label": names} | self._of_columns(names))
        self.require_several()
        listed = self.points(infer=self.infer_classes) or self.listed(
            null_class=self.null_class, infer=self.infer_classes
        )
        return spec_of(TrainSpec, self, **more | {"label": names[0], "classes": listed})

    def _names(self, source: Path) -> list[str]:
        """Return the label columns; one where the table has a column of this very name, with
        commas."""
        from labeldp.app._train import has_column

        names = split(self.label) or []
        if len(names) < 2:
            return [unescaped(self.label)]
        return [self.label] if has_column(source, self.label) else names

    def _of_columns(self, names: list[str]) -> dict[str, Any]:
        """Return the TrainSpec's fields of classes and law of several columns, as far as they are
        given."""
        given = (
            self.classes,
            self.classes_file,
            self.range,
            self.grid,
            self.infer_classes or None,
            self.null_class or None,
        )
        columns = (
            None
            if all(value is None for value in given)
            else self.of_columns(names, infer=self.infer_classes)
        )
        if self.split is None:
            return {"classes": columns}
        if columns is None or self.epsilon is None:
            raise typer.BadParameter(
                "Expected --epsilon and --classes with --split, which is for raw labels, got less."
                " Of a released table leave it out: it says itself how its epsilon was divided."
            )
        # Only a law that reads a prior can be asked by what the stages before predict.
        law = self.law or ("auto" if (self.stages or 1) > 1 else None)
        return {"classes": columns, "law": self.law_of(columns, self.epsilon, law)}


@app.command()
@grouped
def train(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="Parquet or CSV, with raw labels or as labeldp release wrote it; or .npz or .npy.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="New folder for the model.")],
    asked: TrainOptions,
    inputs: InputOptions,
    evidence: EvidenceOptions,
    net: NetSettings,
    ledger: SecretOptions,
    as_json: Json = False,
) -> None:
    """Train a model on private labels, classes or numbers: of a table, with categories and gaps; of
    images; or of arrays.

    Several label columns share one charge, and each has a model.
    """
    from labeldp.app._train import DRAWN
    from labeldp.app._train import train as run
    from labeldp.inputs._arrays import is_arrays
    from labeldp.ledger._database import utc_now

    spec = asked.spec(source, inputs, evidence, net)
    usage(
        lambda: spec.net.require_net(
            spec.model, images=spec.inputs.image is not None or is_arrays(source)
        )
    )
    record = ledger.open()
    began = utc_now()
    with progress_bars(as_json) as progress, asked.one_list_told():
        done = run(source, out, spec, record, progress)
    how = f" ({done.facts['evidence']})" if done.facts["trained_on"] != DRAWN else ""
    asked_of = (
        f" ({done.facts['rows_asked']:,} of them asked about this column)"
        if "rows_asked" in done.facts
        else ""
    )
    if len(spec.labels) > 1:
        which = (
            f"a model of {done.facts['rows']:,} rows for each of the columns"
            f" {_validate.quoted(spec.labels)}, together"
        )
        said = "".join(map(column_text, done.facts["columns"]))
    else:
        which = f"a model of {done.facts['rows']:,} rows{asked_of},"
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


def column_text(column: Mapping[str, Any]) -> str:
    """Report, in a line of its own, the model of one of several label columns."""
    asked = f" ({column['rows_asked']:,} rows asked)" if "rows_asked" in column else ""
    return f"\n{column['label']!r}{asked}:{quality_text(column)}"


def features_text(facts: Mapping[str, Any]) -> str:
    """List the columns that the model learned from, the first dozen of them; nothing for arrays and
    images."""
    names = [str(each["name"]) for each in facts["features"].get("columns", ())]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"\nFeatures: {', '.join(names[:_SHOWN])}{more}." if names else ""


def left_out_text(facts: Mapping[str, Any]) -> str:
    """Report how many rows were over their unit's cap; rows left out of a release are not in its
    table."""
    over = facts["rows_over_the_cap"]
    where = " when the table was released" if facts["trained_on"] == "released table" else ""
    return f" {over:,} rows over the cap were left out{where}." if over else ""


def cost_text(facts: Mapping[str, Any], ledger: Any, began: str) -> str:
    """Report the charge of the training, and what its data set has spent in all."""
    from labeldp.app._train import DRAWN

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

    why = (
        "; --recipe holds out none"
        if "paper" in facts
        else "; answers about clusters have none"
        if facts.get("clusters")
        else ""
    )
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
    if "deviation" in asked:
        return (
            f" It learned from the label counts of {asked['number']:,} clusters, each with noise of"
            f" {asked['deviation']:.3g} rows."
        )
    wrong = f"{math.ceil(1000 * asked['failure']) / 10:g} %"
    return (
        f" {asked['number']:,} clusters voted; if the first class led by half of a cluster, noise"
        f" overruled it for {wrong} of the rows."
    )


@app.command()
@grouped
def predict(
    model: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that labeldp train wrote.")],
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="Rows of the kind that the model was trained on.")
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
    images: ImagesFolder = None,
    device: Device = "auto",
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Predict with a trained model."""
    from labeldp.app._model import require_numbers
    from labeldp.app._train import predict as run
    from labeldp.protocol._estimator import quantiles_of

    wanted = [] if quantile is None else usage(lambda: quantiles_of(numbers_of(quantile)).tolist())
    if wanted:
        usage(lambda: require_numbers(model))
    with progress_bars(as_json) as progress:
        done = run(
            model,
            source,
            out,
            trust or (),
            progress,
            images=images,
            device=device,
            quantiles=wanted,
        )
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


@dataclass(frozen=True, kw_only=True)
class PlannedLabel:
    """The classes of a label, or the range of a number."""

    classes: Annotated[
        str | None, typer.Option(help="Number of classes, or their names: A,B,C.")
    ] = None
    range: Annotated[
        str | None,
        typer.Option("--range", help="Public range of a number, instead of classes: LOW:HIGH."),
    ] = None
    grid: Annotated[
        str | None,
        typer.Option(
            "--grid",
            metavar="INTEGER",
            help="Number of evenly spaced points of the range. Default: 64.",
        ),
    ] = None

    def points(self) -> Any:
        """Make the Grid of a number; None of classes."""
        found = number_grid(self.range, self.grid)
        if (self.classes is None) == (found is None):
            raise typer.BadParameter(
                "Expected classes or a range, got both or none. Give --classes K, or --range"
                " LOW:HIGH of a number."
            )
        return found


@app.command()
@grouped
def plan(
    epsilon: Annotated[str, typer.Option(help="Budgets to compare: E[,E...].")],
    label: PlannedLabel,
    counts: RowCounts,
    law: Annotated[
        list[str] | None,
        typer.Option(
            "--law",
            help=f"Further law to compare; repeat it for several: {LAW_NAMES}.",
            callback=laws_of_texts,
        ),
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

    made: plans.Plan | plans.NumberPlan
    budgets, points = usage(lambda: numbers_of(epsilon)), label.points()
    more: dict[str, Any] = {
        "laws": law or (),
        "max_rows_per_unit": max_rows_per_unit,
    } | counts.value()
    if points is not None:
        made = usage(lambda: plans.plan_numbers(points, budgets, **more))
    else:
        made = usage(lambda: plans.plan(count_of(label.classes or ""), budgets, **more))
    if as_json:
        print_json(made.to_dict())
    else:
        typer.echo(made.to_text())


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
    from rich.console import Console

    from labeldp.app.demo import run, show

    usage(
        lambda: (_validate.integer(seeds=seeds, low=1), _validate.integer(workers=workers, low=1))
    )
    result = run(out, seeds=seeds, workers=workers)
    if as_json:
        print_json(result)
        return
    show(result, Console())
    typer.echo(
        f"{result['fits']} fits in {result['seconds']:.0f} s. Written: {out}/summary.md,"
        f" {out}/summary.json"
    )
