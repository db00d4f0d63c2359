# SPDX-License-Identifier: Apache-2.0
"""`labeldp stage`."""

from pathlib import Path
from typing import Annotated

import typer

from labeldp.cli.frame import Commands, answer, progress_bars, usage
from labeldp.cli.options import (
    Budget,
    Classes,
    ClassesFile,
    Engine,
    FirstLaw,
    Json,
    Key,
    Label,
    LedgerPath,
    MaxRows,
    NullClass,
    Order,
    PlannedLaw,
    Prior,
    PriorFactory,
    PriorFeatures,
    PriorFile,
    PriorKey,
    PriorModelPath,
    StagesLaw,
    Trust,
    Unit,
    classes_of,
    numbers_of,
    split,
)

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Release a table in stages under one charge, and train between them.")


PlanFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the plan.")]
PlanLedger = Annotated[
    str | None, typer.Option("--ledger", help="The ledger that the plan was made with; the plan does not choose it. Default: your own.")
]


@app.command("plan")
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
    law: StagesLaw = "auto",
    first_law: FirstLaw = None,
    order: Annotated[Order, typer.Option(help="keep: you state that order and layout are public.")] = Order.shuffle,
    ledger: LedgerPath = None,
    budget: Budget = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Write down what will be released and how; nothing is read, nothing is charged."""
    from labeldp.app import stage
    from labeldp.app.ledger import ledger_at

    listed = classes_of(classes, classes_file, null_class=null_class)
    if listed is None:
        raise typer.BadParameter("Expected the classes that a label can have, got none. A plan declares them: --classes no,yes.")
    made = usage(
        lambda: stage.plan(
            folder,
            label=label,
            classes=listed,
            epsilon=epsilon,
            id=id,
            dataset=dataset,
            parts=numbers_of(parts),
            law=law,
            first_law=first_law,
            unit=unit,
            max_rows_per_unit=max_rows_per_unit,
            order=order,
            ledger=ledger_at(ledger, budget, key),
        )
    )
    text = f"{folder}: {made.n_stages} stages, {' then '.join(made.laws)}. Nothing was charged. Next: stage 1."
    answer(as_json, stage.status(folder, made.ledger), text)


@app.command("release")
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
    law: PlannedLaw = None,
    engine: Annotated[Engine, typer.Option(help="spark and ray take Parquet and write a folder.")] = Engine.local,
    master: Annotated[str | None, typer.Option(help="Spark's master or Ray's address. Default: all cores of this machine.")] = None,
    ledger: PlanLedger = None,
    budget: Budget = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Release the rows of one stage; the first one is charged for all. A prior is for stages from the second on."""
    from labeldp.app.ledger import ledger_at
    from labeldp.app.priors import prior_of
    from labeldp.app.stage import release as run

    weights = usage(
        lambda: prior_of(split(prior), prior_table, split(prior_key), prior_model, split(prior_features), prior_factory, trust or ())
    )
    with progress_bars(as_json) as progress:
        record = ledger_at(ledger, budget, key)
        done = run(folder, source, stage, out, prior=weights, ledger=record, engine=engine, master=master, progress=progress)
    facts = {"path": str(done.path), "manifest": str(done.manifest_path), "repeated": done.repeated, "receipt": done.receipt.to_dict()}
    what = "Already released; nothing was drawn." if done.repeated else f"Manifest: {done.manifest_path}"
    cost = f"all stages together are {done.receipt.guarantee}"
    answer(as_json, facts, f"{done.path}: {done.manifest['rows']:,} rows of stage {stage}; {cost}. {what}")


@app.command("status")
def stage_status(folder: PlanFolder, law: PlannedLaw = None, ledger: PlanLedger = None, key: Key = None, as_json: Json = False) -> None:
    """What is released, and what is next."""
    from labeldp.app.ledger import ledger_at
    from labeldp.app.stage import status, status_text

    facts = status(folder, ledger_at(ledger, None, key))
    answer(as_json, facts, status_text(facts))


@app.command("close")
def stage_close(folder: PlanFolder, law: PlannedLaw = None, ledger: PlanLedger = None, key: Key = None, as_json: Json = False) -> None:
    """Give up the stages that are not released, and destroy the secret."""
    from labeldp.app.ledger import ledger_at
    from labeldp.app.stage import close, status, status_text

    record = ledger_at(ledger, None, key)
    close(folder, record)
    facts = status(folder, record)
    answer(as_json, facts, status_text(facts))
