# SPDX-License-Identifier: Apache-2.0
"""The command line: arguments in, one call of `labeldp.app`, a few lines or JSON out. No logic of its own.

Exit codes: 0 ok, 1 internal error, 2 usage, 3 budget, 4 data, 5 files or ledger, 6 missing extra, 7 checked and failed, 130 interrupted.
Results go to stdout; messages, warnings and progress go to stderr.
"""

import contextlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from typer.core import TyperGroup

from labeldp import __version__, _validate
from labeldp.errors import BudgetExceeded, InvalidInput, LabelDPError, LabelDPWarning, LedgerError, MissingExtra, ReleaseError

CODES: tuple[tuple[type[BaseException], int], ...] = (
    (BudgetExceeded, 3),
    (LedgerError, 5),
    (ReleaseError, 5),
    (MissingExtra, 6),
    (InvalidInput, 4),
    (OSError, 5),
    (KeyboardInterrupt, 130),
)
CHECK_FAILED = 7

Made = TypeVar("Made")


class Order(StrEnum):
    """Order of the rows in the output."""

    shuffle = "shuffle"
    keep = "keep"


class Engine(StrEnum):
    """What runs a release."""

    local = "local"
    spark = "spark"
    ray = "ray"


class _Commands(TyperGroup):
    """Turns every error into one message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        with warnings.catch_warnings():
            warnings.simplefilter("always", LabelDPWarning)
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except (Exception, KeyboardInterrupt) as error:
                if hasattr(error, "exit_code") or isinstance(error, typer.Abort):
                    raise  # typer's own: usage errors and exits
                raise typer.Exit(_report(error, as_json=bool(ctx.meta.get("labeldp.json")))) from None


def _report(error: BaseException, *, as_json: bool) -> int:
    code = next((code for kind, code in CODES if isinstance(error, kind)), 1)
    if isinstance(error, LabelDPError):
        message = str(error)
    elif isinstance(error, KeyboardInterrupt):
        message = "Interrupted. Nothing is under the final name; the same command picks up where a charge was made."
    elif isinstance(error, OSError):
        message = f"{error.strerror or type(error).__name__}: {error.filename or ''}".rstrip(": ")
    else:
        # The text of an unforeseen error may quote data, so only its kind and its place are shown.
        message = f"Internal error ({type(error).__name__}). Set LABELDP_DEBUG=1 to see where, and please report it."
        if os.environ.get("LABELDP_DEBUG"):
            typer.echo("".join(traceback.format_tb(error.__traceback__)), err=True)
    if as_json:
        typer.echo(json.dumps({"error": type(error).__name__, "message": message, "exit_code": code}))
    else:
        typer.echo(f"error: {message}", err=True)
    return code


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if issubclass(category, LabelDPWarning):
        typer.echo(f"warning: {message}", err=True)


def _usage(make: Callable[[], Made]) -> Made:
    """A value made of options: what is wrong with it is a usage error."""
    try:
        return make()
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from None


def _remember_json(ctx: typer.Context, value: bool) -> bool:
    ctx.meta["labeldp.json"] = value
    return value


def _version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit()


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    help="Label differential privacy: release tables, train models, know the cost.",
)
ledger_app = typer.Typer(cls=_Commands, no_args_is_help=True, help="What was spent: history, budgets, and whether the record is whole.")
app.add_typer(ledger_app, name="ledger")
key_app = typer.Typer(cls=_Commands, no_args_is_help=True, help="The release secret: create it in a file, destroy it. It is never shown.")
app.add_typer(key_app, name="key")
stage_app = typer.Typer(cls=_Commands, no_args_is_help=True, help="Release a table in stages under one charge, and train between them.")
app.add_typer(stage_app, name="stage")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.", callback=_remember_json, is_eager=True)]
LedgerPath = Annotated[
    str | None, typer.Option("--ledger", help="Ledger file, or postgresql://USER@HOST/DATABASE. Default: your own (labeldp ledger where).")
]
Budget = Annotated[float | None, typer.Option(help="Total budget of this (dataset, column), if it has none yet.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--key", help="Where the release secret is: file:PATH, env:NAME or hook:package.module:function. Default: what LABELDP_KEY says."
    ),
]
Label = Annotated[str, typer.Option(help="The private column.")]
Classes = Annotated[str | None, typer.Option(help="Declared classes: A,B,C.")]
ClassesFile = Annotated[Path | None, typer.Option(help="Declared classes, one a line.")]
NullClass = Annotated[bool, typer.Option("--null-class", help="A missing label is a class of its own, after the others.")]
Ids = Annotated[list[str] | None, typer.Option("--id", help="Column that names a row; repeat it for several.")]
Unit = Annotated[str | None, typer.Option(help="Column that names the person; epsilon covers all their rows.")]
MaxRows = Annotated[int, typer.Option("--max-rows-per-unit", help="Rows of one person that are used.")]
Dataset = Annotated[str | None, typer.Option(help="Name in the ledger. Default: the input file's name without its ending.")]
Prior = Annotated[str | None, typer.Option("--prior", help="Public columns with a weight for each class: A,B,C.")]
PriorFile = Annotated[str | None, typer.Option("--prior-table", help="Parquet or CSV to look the weights of each class up in.")]
PriorKey = Annotated[str | None, typer.Option("--prior-key", help="Columns of both tables to look up by: COL[,COL].")]
PriorModelPath = Annotated[
    str | None, typer.Option("--prior-model", help="Model to ask: a folder of labeldp train, .skops, .pt2, or a state_dict of torch.")
]
PriorFeatures = Annotated[str | None, typer.Option("--prior-features", help="Numeric columns that the model takes: A,B.")]
PriorFactory = Annotated[
    str | None, typer.Option("--prior-factory", help="package.module:function that makes the torch module of a state_dict. It is run.")
]
Trust = Annotated[list[str] | None, typer.Option("--trust", help="Type in the model's file to build although it is unknown.")]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse to read classes off the private column.")]


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)] = False) -> None:
    pass


@app.command()
def release(
    source: Annotated[str, typer.Argument(metavar="IN", help="Parquet or CSV; or a folder or pattern of Parquet files; s3:// too.")],
    label: Label,
    epsilon: Annotated[float, typer.Option(help="Total budget of one row or unit.")],
    out: Annotated[str, typer.Option(help="Output, of the same format (of many files a folder); a manifest is written beside it.")],
    classes: Classes = None,
    classes_file: ClassesFile = None,
    null_class: NullClass = False,
    id: Ids = None,
    unit: Unit = None,
    max_rows_per_unit: MaxRows = 1,
    law: Annotated[
        str | None,
        typer.Option(help="rr, rr-top-k:K, rr-with-prior, subset[:SIZE], split or auto. Default: rr, or rr-with-prior with a prior."),
    ] = None,
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
    redraw: Annotated[bool, typer.Option("--redraw", help="Draw again what was released before; charged again.")] = False,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Release a table whose label column is private; every other column passes unchanged."""
    from labeldp.app.ledger import ledger_at
    from labeldp.app.priors import prior_of
    from labeldp.app.release import release as run
    from labeldp.tables.spec import ReleaseSpec

    listed = _classes(classes, classes_file, null_class)
    weights = _usage(
        lambda: prior_of(_split(prior), prior_table, _split(prior_key), prior_model, _split(prior_features), prior_factory, trust or ())
    )
    spec = _usage(
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
        )
    )
    record = _usage(lambda: ledger_at(ledger, budget, key))
    with _progress(as_json) as progress:
        done = run(source, out, spec, record, engine, master=master, redraw=redraw, progress=progress)
    if as_json:
        _print_json(
            {"path": str(done.path), "manifest": str(done.manifest_path), "repeated": done.repeated, "receipt": done.receipt.to_dict()}
        )
        return
    who = "row" if done.receipt.unit == "row" else f"{done.receipt.unit} (at most {done.receipt.max_rows_per_unit} rows each)"
    what = "Already released; nothing was drawn, nothing was charged." if done.repeated else f"Charged epsilon {done.receipt.epsilon:g}."
    typer.echo(f"{done.path}: {done.manifest['rows']:,} rows; column {label!r} is {done.receipt.epsilon:g}-label-DP for each {who}.")
    typer.echo(f"{what} Dataset {done.receipt.dataset!r} in {record.location}. Manifest: {done.manifest_path}")


def _classes(listed: str | None, file: Path | None, null_class: bool) -> list[object] | None:
    if listed is not None and file is not None:
        raise typer.BadParameter("Expected --classes or --classes-file, got both. Leave one out.")
    if listed is None and file is None:
        if null_class:
            raise typer.BadParameter("Expected --null-class beside declared classes, got none. Add --classes.")
        return None
    names = _split(listed) if file is None else _lines(file)
    return [*(names or ()), *([None] if null_class else [])]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InvalidInput(f"Expected text in UTF-8, one class a line, got other bytes in {file}.") from None


def _split(listed: str | None) -> list[str] | None:
    return None if listed is None else [name.strip() for name in listed.split(",")]


@app.command()
def train(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Parquet or CSV, with raw labels or as labeldp release wrote it.")],
    label: Label,
    out: Annotated[Path, typer.Option(help="New folder for the model.")],
    epsilon: Annotated[float | None, typer.Option(help="Total budget of one row or unit; none for a released table.")] = None,
    classes: Classes = None,
    classes_file: ClassesFile = None,
    null_class: NullClass = False,
    id: Ids = None,
    unit: Unit = None,
    max_rows_per_unit: MaxRows = 1,
    law: Annotated[str, typer.Option(help="rr, rr-with-prior, subset, split or auto.")] = "auto",
    stages: Annotated[int, typer.Option(help="Rounds; each one's model is the next one's prior.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the training; the noise never depends on it.")] = 0,
    dataset: Dataset = None,
    ledger: LedgerPath = None,
    budget: Budget = None,
    key: Key = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Train a classifier on private labels; numbers, categories and gaps are fine."""
    from labeldp.app.ledger import ledger_at
    from labeldp.app.train import TrainSpec
    from labeldp.app.train import train as run

    listed = _classes(classes, classes_file, null_class)
    spec = _usage(lambda: TrainSpec(label, epsilon, listed, id or None, unit, max_rows_per_unit, law, stages, dataset, strict, seed))
    record = _usage(lambda: ledger_at(ledger, budget, key))
    with _progress(as_json) as progress:
        done = run(source, out, spec, record, progress)
    cost = done.facts["guarantee"]
    accuracy = done.facts["estimated_accuracy"]
    said = "" if accuracy is None else f" Estimated accuracy {accuracy['value']:.3f} ({accuracy['low']:.3f} to {accuracy['high']:.3f})."
    text = f"{done.path}: a model of {done.facts['rows']:,} rows, {cost['epsilon']:g}-label-DP for each {cost['unit']}.{said}"
    _answer(as_json, {"path": str(done.path)} | dict(done.facts), text)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that labeldp train wrote.")],
    source: Annotated[Path, typer.Argument(metavar="IN", help="Parquet or CSV.")],
    out: Annotated[Path, typer.Option(help="Parquet or CSV: a class and its probabilities for each row.")],
    trust: Annotated[list[str] | None, typer.Option(help="Type in the model's file to build although it is unknown.")] = None,
    as_json: Json = False,
) -> None:
    """Predict with a trained model."""
    from labeldp.app.predict import predict as run

    with _progress(as_json) as progress:
        done = run(model, source, out, trust or (), progress)
    _answer(as_json, {"path": str(done.path), "rows": done.rows}, f"{done.path}: {done.rows:,} rows.")


@app.command()
def plan(
    classes: Annotated[int, typer.Option(help="Number of classes.")],
    epsilon: Annotated[str, typer.Option(help="Budgets to compare: E[,E...].")],
    rows: Annotated[int | None, typer.Option(help="Rows of the table.")] = None,
    max_rows_per_unit: MaxRows = 1,
    as_json: Json = False,
) -> None:
    """What each law gives at each budget, before anything is spent."""
    from labeldp.app.plan import plan as make

    budgets = _usage(lambda: _numbers(epsilon))
    made = _usage(lambda: make(classes, budgets, rows=rows, max_rows_per_unit=max_rows_per_unit))
    if as_json:
        _print_json(made.to_dict())
    else:
        typer.echo(made.to_text())


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(f"Expected numbers separated by commas, got {text!r}. For example 0.5,1,2.") from None


@ledger_app.command("where")
def ledger_where(ledger: LedgerPath = None, as_json: Json = False) -> None:
    """Where the ledger lies."""
    from labeldp.app.ledger import ledger_at

    record = _usage(lambda: ledger_at(ledger))
    facts: dict[str, object] = {"ledger": str(record.location), "exists": record.exists(), "runs": str(record.runs_dir)}
    _answer(as_json, facts, str(record.location))


@ledger_app.command("history")
def ledger_history(ledger: LedgerPath = None, as_json: Json = False) -> None:
    """Every charge, settlement and budget, in order."""
    from labeldp.app.ledger import history_text, ledger_at

    entries = ledger_at(ledger).history()
    _answer(as_json, {"entries": entries}, history_text(entries))


@ledger_app.command("spent")
def ledger_spent(
    dataset: Annotated[str | None, typer.Option()] = None,
    label: Annotated[str | None, typer.Option()] = None,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Spent, budget and what remains, for each dataset and column."""
    from labeldp.app.ledger import accounts, accounts_text, ledger_at

    found = accounts(ledger_at(ledger), dataset, label)
    _answer(as_json, {"accounts": found}, accounts_text(found))


@ledger_app.command("budget")
def ledger_budget(
    dataset: Annotated[str, typer.Option()], label: Annotated[str, typer.Option()], ledger: LedgerPath = None, as_json: Json = False
) -> None:
    """The budget of one dataset and column."""
    from labeldp.app.ledger import ledger_at

    found = ledger_at(ledger).budget_of(dataset, label)
    _answer(as_json, {"dataset": dataset, "column": label, "budget": found}, "none yet" if found is None else f"{found:g}")


@ledger_app.command("set-budget")
def ledger_set_budget(
    dataset: Annotated[str, typer.Option()],
    label: Annotated[str, typer.Option()],
    budget: Annotated[float, typer.Option()],
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Allow more, or less, for one dataset and column; the change stays in the history."""
    from labeldp.app.ledger import ledger_at

    record = ledger_at(ledger)
    _usage(lambda: record.set_budget(dataset, label, budget))
    left = record.remaining(dataset, label)
    _answer(as_json, {"dataset": dataset, "column": label, "budget": budget, "remaining": left}, f"budget {budget:g}, remaining {left:g}")


@ledger_app.command("abandon")
def ledger_abandon(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run that was charged and has not settled.")],
    reason: Annotated[str, typer.Option(help="Why; it stays in the history.")] = "given up on the command line",
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Give up a run that will never be finished. What it cost stays spent."""
    from labeldp.app.ledger import abandon, ledger_at

    abandon(ledger_at(ledger), run, reason)
    _answer(as_json, {"run_id": run, "state": "abandoned", "reason": reason}, f"{run}: abandoned. Its epsilon stays spent.")


@ledger_app.command("verify")
def ledger_verify(
    manifests: Annotated[list[Path] | None, typer.Argument(help="Manifests whose receipts and outputs the ledger must hold.")] = None,
    anchor: Annotated[list[Path] | None, typer.Option(help="File of labeldp ledger anchor; its heads must be in the history.")] = None,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Is the history whole, and does it hold these receipts, outputs and anchors? Exit code 7 if not."""
    from labeldp.app.ledger import ledger_at, verify

    problems = verify(ledger_at(ledger), manifests or [], anchor or [])
    _answer(as_json, {"whole": not problems, "problems": problems}, "\n".join(problems) or "The history is whole.")
    if problems:
        raise typer.Exit(CHECK_FAILED)


@ledger_app.command("anchor")
def ledger_anchor(
    file: Annotated[Path, typer.Argument(help="Text file to add a line to; keep it away from the ledger.")],
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Write down the head of the history, which stands for all of it, for verify --anchor."""
    from labeldp.app.ledger import anchor, ledger_at

    facts = anchor(ledger_at(ledger), file)
    _answer(as_json, facts, f"{file}: entry {facts['seq']}, {facts['hash']}")


@ledger_app.command("repair")
def ledger_repair(
    yes: Annotated[bool, typer.Option("--yes", help="Remove what is listed.")] = False,
    older_than: Annotated[float, typer.Option(help="Minutes that nothing has changed in what a living process may still need.")] = 60,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """List what killed processes left behind, and remove it with --yes. Nothing that a charged run needs."""
    from labeldp.app.ledger import ledger_at, repair, repair_text

    found = _usage(lambda: repair(ledger_at(ledger), older_than, yes))
    _answer(as_json, {"orphans": found}, repair_text(found))


@key_app.command("create")
def key_create(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="New file, readable by you only.")], as_json: Json = False
) -> None:
    """Write a new release secret into a file."""
    from labeldp.app.key import create

    facts = create(path)
    _answer(as_json, facts, f"{facts['path']}: a new release secret, id {facts['key_id']}. Use it with --key {facts['source']}")


@key_app.command("destroy")
def key_destroy(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="File that labeldp key create wrote.")],
    ledger: LedgerPath = None,
    force: Annotated[bool, typer.Option("--force", help="Even if charged runs need it: they can never be finished.")] = False,
    as_json: Json = False,
) -> None:
    """Overwrite and remove a release secret, unless a charged run still needs it."""
    from labeldp.app.key import destroy
    from labeldp.app.ledger import ledger_at

    facts = destroy(path, lambda: _usage(lambda: ledger_at(ledger)), force)
    _answer(as_json, facts, f"{facts['path']}: destroyed. Copies that were made of it elsewhere are not.")


PlanFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the plan.")]


@stage_app.command("plan")
def stage_plan(
    folder: PlanFolder,
    label: Label,
    epsilon: Annotated[float, typer.Option(help="Total budget of one row or unit, over all stages.")],
    id: Annotated[list[str], typer.Option("--id", help="Column that names a row; repeat it for several.")],
    dataset: Annotated[str, typer.Option(help="Name in the ledger.")],
    parts: Annotated[str, typer.Option(help="Share of the rows in each stage: F,F[,F...], sum 1.")],
    classes: Classes = None,
    classes_file: ClassesFile = None,
    null_class: NullClass = False,
    unit: Unit = None,
    max_rows_per_unit: MaxRows = 1,
    law: Annotated[str, typer.Option(help="Of each stage: auto, split, rr-with-prior, rr-top-k:K, subset[:SIZE] or rr.")] = "auto",
    first_law: Annotated[str | None, typer.Option(help="Of the first stage, for example subset or rr. Default: what fits --law.")] = None,
    order: Annotated[Order, typer.Option(help="keep: you state that order and layout are public.")] = Order.shuffle,
    ledger: LedgerPath = None,
    budget: Budget = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Write down what will be released and how; nothing is read, nothing is charged."""
    from labeldp.app import stage
    from labeldp.app.ledger import ledger_at

    listed = _classes(classes, classes_file, null_class)
    if listed is None:
        raise typer.BadParameter("Expected --classes or --classes-file, got none. A plan declares them.")
    made = _usage(
        lambda: stage.plan(
            folder,
            label=label,
            classes=listed,
            epsilon=epsilon,
            id=id,
            dataset=dataset,
            parts=_numbers(parts),
            law=law,
            first_law=first_law,
            unit=unit,
            max_rows_per_unit=max_rows_per_unit,
            order=order,
            ledger=ledger_at(ledger, budget, key),
        )
    )
    text = f"{folder}: {made.n_stages} stages, {' then '.join(made.laws)}. Nothing was charged. Next: stage 1."
    _answer(as_json, stage.status(folder), text)


@stage_app.command("release")
def stage_release(
    folder: PlanFolder,
    source: Annotated[str, typer.Argument(metavar="IN", help="The whole table, as for labeldp release; the same in every stage.")],
    stage: Annotated[int, typer.Option(help="Which one, from 1; in order.")],
    out: Annotated[str, typer.Option(help="Output: the rows of this stage alone.")],
    prior: Prior = None,
    prior_table: PriorFile = None,
    prior_key: PriorKey = None,
    prior_model: PriorModelPath = None,
    prior_features: PriorFeatures = None,
    prior_factory: PriorFactory = None,
    trust: Trust = None,
    engine: Annotated[Engine, typer.Option(help="spark and ray take Parquet and write a folder.")] = Engine.local,
    master: Annotated[str | None, typer.Option(help="Spark's master or Ray's address. Default: all cores of this machine.")] = None,
    as_json: Json = False,
) -> None:
    """Release the rows of one stage; the first one is charged for all. A prior is for stages from the second on."""
    from labeldp.app.priors import prior_of
    from labeldp.app.stage import release as run

    weights = _usage(
        lambda: prior_of(_split(prior), prior_table, _split(prior_key), prior_model, _split(prior_features), prior_factory, trust or ())
    )
    with _progress(as_json) as progress:
        done = run(folder, source, stage, out, prior=weights, engine=engine, master=master, progress=progress)
    facts = {"path": str(done.path), "manifest": str(done.manifest_path), "repeated": done.repeated, "receipt": done.receipt.to_dict()}
    what = "Already released; nothing was drawn." if done.repeated else f"Manifest: {done.manifest_path}"
    cost = f"all stages together are {done.receipt.epsilon:g}-label-DP for each {done.receipt.unit}"
    _answer(as_json, facts, f"{done.path}: {done.manifest['rows']:,} rows of stage {stage}; {cost}. {what}")


@stage_app.command("status")
def stage_status(folder: PlanFolder, as_json: Json = False) -> None:
    """What is released, and what is next."""
    from labeldp.app.stage import status, status_text

    facts = status(folder)
    _answer(as_json, facts, status_text(facts))


@stage_app.command("close")
def stage_close(folder: PlanFolder, as_json: Json = False) -> None:
    """Give up the stages that are not released, and destroy the secret."""
    from labeldp.app.stage import close, status, status_text

    close(folder)
    facts = status(folder)
    _answer(as_json, facts, status_text(facts))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for summary.md and summary.json.")] = Path("demo-out"),
    seeds: Annotated[int, typer.Option(help="Noise seeds and splits to average over.")] = 8,
    workers: Annotated[int, typer.Option(help="Processes of one thread each.")] = 2,
    as_json: Json = False,
) -> None:
    """Two real data sets at three budgets: what labeldp gains."""
    from labeldp.app.demo import run

    _usage(lambda: (_validate.integer(seeds=seeds, low=1), _validate.integer(workers=workers, low=1)))
    result = run(out, seeds=seeds, workers=workers)
    _answer(as_json, result, (out / "summary.md").read_text(encoding="utf-8"))


def _answer(as_json: bool, facts: dict[str, object], text: str) -> None:
    if as_json:
        _print_json(facts)
    else:
        typer.echo(text)


def _print_json(facts: object) -> None:
    typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on stderr for people; nothing where stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda phase, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:>8}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done, total=total)

        yield show


def main() -> NoReturn:
    """Entry point of the command `labeldp`."""
    app()
    raise SystemExit(0)


if __name__ == "__main__":
    main()
