# SPDX-License-Identifier: Apache-2.0
"""`labeldp release`, `train`, `predict`, `plan` and `demo`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from labeldp import _validate
from labeldp.cli.frame import Commands, answer, print_json, progress_bars, usage
from labeldp.cli.options import (
    ArrayName,
    BatchSize,
    Budget,
    Classes,
    ClassesFile,
    ComparedLaws,
    Dataset,
    Device,
    Engine,
    Epochs,
    Ids,
    Image,
    ImagesFolder,
    InferClasses,
    Json,
    Key,
    Label,
    LabelsFile,
    LawName,
    LedgerPath,
    MaxRows,
    ModelName,
    NullClass,
    Order,
    Overlap,
    Prior,
    PriorFactory,
    PriorFeatures,
    PriorFile,
    PriorKey,
    PriorModelPath,
    Rate,
    Redraw,
    StateFolder,
    Strict,
    TrainLaw,
    TrainPrior,
    Trust,
    Unit,
    classes_of,
    numbers_of,
    required,
    split,
)

app = typer.Typer(cls=Commands)


@app.command()
def release(
    source: Annotated[str, typer.Argument(metavar="IN", help="Parquet or CSV; or a folder or pattern of Parquet files; s3:// too.")],
    label: Label,
    epsilon: Annotated[float, typer.Option(help="Total budget of one row or unit.")],
    out: Annotated[str, typer.Option(help="Output, of the same format (of many files a folder); a manifest is written beside it.")],
    classes: Classes = None,
    classes_file: ClassesFile = None,
    null_class: NullClass = False,
    infer_classes: InferClasses = False,
    id: Ids = None,
    unit: Unit = None,
    max_rows_per_unit: MaxRows = 1,
    law: LawName = None,
    prior: Prior = None,
    prior_table: PriorFile = None,
    prior_key: PriorKey = None,
    prior_model: PriorModelPath = None,
    prior_features: PriorFeatures = None,
    prior_factory: PriorFactory = None,
    trust: Trust = None,
    order: Annotated[Order, typer.Option(help="keep: you state that order and layout are public.")] = Order.shuffle,
    engine: Annotated[Engine, typer.Option(help="spark and ray take Parquet, need --id and --classes, and write a folder.")] = Engine.local,
    master: Annotated[str | None, typer.Option(help="Spark's master or Ray's address. Default: all cores of this machine.")] = None,
    dataset: Dataset = None,
    ledger: LedgerPath = None,
    budget: Budget = None,
    key: Key = None,
    overlap: Annotated[Overlap, typer.Option(help="refuse: no row of an earlier release of this column again.")] = Overlap.charge,
    redraw: Redraw = False,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Release a table whose label column is private; every other column passes unchanged."""
    from labeldp.app.ledger import ledger_at
    from labeldp.app.priors import prior_of
    from labeldp.app.release import release as run
    from labeldp.tables.spec import ReleaseSpec

    listed = required(classes_of(classes, classes_file, null_class=null_class, infer=infer_classes))
    weights = usage(
        lambda: prior_of(split(prior), prior_table, split(prior_key), prior_model, split(prior_features), prior_factory, trust or ())
    )
    spec = usage(
        lambda: ReleaseSpec(
            label,
            listed,
            epsilon,
            law,
            id or None,
            unit,
            max_rows_per_unit,
            weights,
            dataset,
            order,
            strict,
            overlap=overlap,
        )
    )
    record = usage(lambda: ledger_at(ledger, budget, key))
    with progress_bars(as_json) as progress:
        done = run(source, out, spec, record, engine, master=master, redraw=redraw, progress=progress)
    if as_json:
        print_json(
            {"path": str(done.path), "manifest": str(done.manifest_path), "repeated": done.repeated, "receipt": done.receipt.to_dict()}
        )
        return
    what = "Already released; nothing was drawn, nothing was charged." if done.repeated else f"Charged epsilon {done.receipt.epsilon:g}."
    over = done.manifest.get("rows_over_the_cap")
    left_out = f" {over:,} rows over the cap were left out." if over else ""
    typer.echo(f"{done.path}: {done.manifest['rows']:,} rows; column {label!r} is {done.receipt.guarantee}.{left_out}")
    typer.echo(f"{what} Dataset {done.receipt.dataset!r} in {record.location}. Manifest: {done.manifest_path}")


@app.command()
def train(
    source: Annotated[
        Path,
        typer.Argument(metavar="IN", help="Parquet or CSV, with raw labels or as labeldp release wrote it; or .npz or .npy."),
    ],
    label: Label,
    out: Annotated[Path, typer.Option(help="New folder for the model.")],
    epsilon: Annotated[float | None, typer.Option(help="Total budget of one row or unit; none for a released table.")] = None,
    manifest: Annotated[Path | None, typer.Option(help="Manifest of the release that IN is a copy of, if it is not beside IN.")] = None,
    released: Annotated[Path | None, typer.Option(help="Released table that IN has some rows of: labels are read there, by id.")] = None,
    noisy: Annotated[
        bool, typer.Option("--noisy", help="You declare that another mechanism drew the labels, by --law at --epsilon. Nothing is charged.")
    ] = False,
    features: Annotated[str | None, typer.Option(help="Columns to learn from: A,B. Default: all but label, ids and unit.")] = None,
    exclude: Annotated[str | None, typer.Option(help="Columns not to learn from: A,B.")] = None,
    model: ModelName = "auto",
    image: Image = None,
    images: ImagesFolder = None,
    inputs: ArrayName = None,
    labels: LabelsFile = None,
    classes: Classes = None,
    classes_file: ClassesFile = None,
    null_class: NullClass = False,
    infer_classes: InferClasses = False,
    id: Ids = None,
    unit: Unit = None,
    max_rows_per_unit: MaxRows = 1,
    law: TrainLaw = "auto",
    prior: TrainPrior = None,
    stages: Annotated[int, typer.Option(help="With more than one, each one's model is the prior of the next part of the rows.")] = 1,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    rate: Rate = None,
    device: Device = "auto",
    folder: StateFolder = None,
    seed: Annotated[int, typer.Option(help="Of the training; the noise never depends on it.")] = 0,
    dataset: Dataset = None,
    ledger: LedgerPath = None,
    budget: Budget = None,
    key: Key = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Train a classifier on private labels: of a table, with categories and gaps; of images; or of arrays."""
    from labeldp.app.learners import NetOptions, clusters_of
    from labeldp.app.ledger import ledger_at
    from labeldp.app.train import TrainSpec
    from labeldp.app.train import train as run
    from labeldp.app.training_data import EvidenceSpec, InputsSpec

    listed = classes_of(classes, classes_file, null_class=null_class, infer=infer_classes)
    net = usage(lambda: NetOptions(epochs, batch_size, rate, device, folder))
    where = InputsSpec(split(features), split(exclude) or (), image, images, inputs, labels)
    evidence = EvidenceSpec(manifest, released, noisy)
    spec = usage(
        lambda: TrainSpec(
            label,
            epsilon,
            listed,
            id or None,
            unit,
            max_rows_per_unit,
            law,
            stages,
            dataset,
            strict,
            seed,
            model,
            net,
            where,
            clusters_of(prior),
            evidence,
        )
    )
    record = usage(lambda: ledger_at(ledger, budget, key))
    with progress_bars(as_json) as progress:
        done = run(source, out, spec, record, progress)
    said = quality_text(done.facts) + clusters_text(done.facts.get("clusters"))
    how = f" ({done.facts['evidence']})" if done.facts["trained_on"] != "raw labels" else ""
    text = f"{done.path}: a model of {done.facts['rows']:,} rows, {done.guarantee}{how}.{left_out_text(done.facts)}{said}"
    answer(as_json, {"path": str(done.path)} | dict(done.facts), f"{text}\n{charge_text(done.facts, str(record.location))}")


def left_out_text(facts: Mapping[str, Any]) -> str:
    """How many rows were over their unit's cap, as a sentence; those of a release are in its table no more."""
    over = facts["rows_over_the_cap"]
    where = " when the table was released" if facts["trained_on"] == "released table" else ""
    return f" {over:,} rows over the cap were left out{where}." if over else ""


def charge_text(facts: Mapping[str, Any], ledger: str) -> str:
    """What a training was charged, as sentences."""
    if facts["trained_on"] != "raw labels":
        return "Nothing was drawn, nothing was charged."
    paid = [each["epsilon"] for each in facts["receipts"] if not each.get("repeated")]
    what = f"Charged epsilon {math.fsum(paid):g}." if paid else "Nothing was drawn, nothing was charged."
    return f"{what} Dataset {facts['receipts'][0]['dataset']!r} in {ledger}."


def quality_text(facts: Mapping[str, Any]) -> str:
    """What is known of the model's accuracy and log-loss, each beside a constant's, as sentences."""
    if facts["estimated_accuracy"] is None:
        return ""
    if not facts["estimated_accuracy"]["tells"]:
        return " At this epsilon the noisy rows that were held out are too few to tell how accurate it is."
    accuracy, loss = _measured(facts["estimated_accuracy"]), _measured(facts["estimated_log_loss"])
    constant = _measured(facts["baseline_accuracy"], interval=False), _measured(facts["baseline_log_loss"], interval=False)
    return (
        f" Estimated accuracy {accuracy}; always the commonest class: {constant[0]}."
        f" Estimated log-loss {loss}; the class frequencies alone: {constant[1]}."
    )


def _measured(found: Mapping[str, Any], interval: bool = True) -> str:
    """A number, inside of its interval, where an unbiased estimate need not be."""
    low, high = found["low"], found["high"]
    value = f"{min(max(found['value'], low), high):.3f}"
    return f"{value} ({low:.3f} to {high:.3f})" if interval else value


def clusters_text(asked: Mapping[str, Any] | None) -> str:
    """How many clusters were asked, and how far their answers can be trusted, as a sentence."""
    if asked is None:
        return ""
    if "deviation" in asked:
        return f" It learned from the label counts of {asked['number']:,} clusters, each with noise of {asked['deviation']:.3g} rows."
    wrong = f"{math.ceil(1000 * asked['failure']) / 10:g} %"
    return f" {asked['number']:,} clusters voted; if the first class led by half of a cluster, noise overruled it for {wrong} of the rows."


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that labeldp train wrote.")],
    source: Annotated[Path, typer.Argument(metavar="IN", help="Of the kind that the model was trained on.")],
    out: Annotated[Path, typer.Option(help="Parquet or CSV: a class and its probabilities for each row.")],
    images: ImagesFolder = None,
    device: Device = "auto",
    trust: Annotated[list[str] | None, typer.Option(help="Type in the model's file to build although it is unknown.")] = None,
    as_json: Json = False,
) -> None:
    """Predict with a trained model."""
    from labeldp.app.predict import predict as run

    with progress_bars(as_json) as progress:
        done = run(model, source, out, trust or (), progress, images=images, device=device)
    answer(as_json, {"path": str(done.path), "rows": done.rows}, f"{done.path}: {done.rows:,} rows.")


@app.command()
def plan(
    classes: Annotated[int, typer.Option(help="Number of classes.")],
    epsilon: Annotated[str, typer.Option(help="Budgets to compare: E[,E...].")],
    law: ComparedLaws = None,
    rows: Annotated[int | None, typer.Option(help="Rows of the table.")] = None,
    max_rows_per_unit: Annotated[
        int | None, typer.Option("--max-rows-per-unit", help="Rows of one person that are used. Default: 1, or what tells most.")
    ] = None,
    table: Annotated[str | None, typer.Option(help="Table whose rows per unit say which cap tells most; with --unit.")] = None,
    unit: Annotated[str | None, typer.Option("--unit", help="Its column that names the person.")] = None,
    rows_per_unit: Annotated[str | None, typer.Option(help="The same in numbers: ROWS:UNITS[,...], as 1:5000,2:800.")] = None,
    as_json: Json = False,
) -> None:
    """What each law gives at each budget, before anything is spent; and which cap on the rows of a unit."""
    from labeldp.app.plan import count_rows_per_unit, parse_rows_per_unit
    from labeldp.app.plan import plan as make

    if (table is None) != (unit is None) or (table is not None and rows_per_unit is not None):
        raise typer.BadParameter("Expected --table with --unit, or --rows-per-unit alone, got one of two, or both. Add or drop one.")
    budgets = usage(lambda: numbers_of(epsilon))
    found = None if rows_per_unit is None else usage(lambda: parse_rows_per_unit(rows_per_unit))
    if table is not None and unit is not None:
        found = count_rows_per_unit(table, unit)
    made = usage(lambda: make(classes, budgets, laws=law or (), rows=rows, max_rows_per_unit=max_rows_per_unit, rows_per_unit=found))
    if as_json:
        print_json(made.to_dict())
    else:
        typer.echo(made.to_text())


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for summary.md and summary.json.")] = Path("demo-out"),
    seeds: Annotated[int, typer.Option(help="Noise seeds and splits to average over.")] = 8,
    workers: Annotated[int, typer.Option(help="Processes of one thread each.")] = 2,
    as_json: Json = False,
) -> None:
    """Two real data sets at three budgets: what labeldp gains."""
    from labeldp.app.demo import run

    usage(lambda: (_validate.integer(seeds=seeds, low=1), _validate.integer(workers=workers, low=1)))
    result = run(out, seeds=seeds, workers=workers)
    answer(as_json, result, (out / "summary.md").read_text(encoding="utf-8"))
