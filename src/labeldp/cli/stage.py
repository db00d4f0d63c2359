# SPDX-License-Identifier: Apache-2.0
"""`labeldp stage`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from labeldp.cli.frame import Commands, answer, grouped, progress_bars, usage
from labeldp.cli.options import (
    LAW_NAMES,
    Budget,
    ColumnOptions,
    DatasetName,
    EngineOptions,
    Json,
    Key,
    Order,
    PriorOptions,
    RowOrder,
    SecretOptions,
    law_of_text,
    numbers_of,
)

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Release a table in stages under one charge, and train between them.")

PlanFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the plan.")]


@dataclass(frozen=True, kw_only=True)
class StageOptions(ColumnOptions):
    """What will be released in stages, and how."""

    epsilon: Annotated[float, typer.Option(help="Total budget of one row or unit, over all stages.")]
    id: Annotated[list[str], typer.Option("--id", help="Column that names a row; repeat it for several.")]
    dataset: DatasetName
    parts: Annotated[str, typer.Option(help="Share of the rows in each stage: F,F[,F...], sum 1.")]
    law: Annotated[str, typer.Option("--law", help=f"Of each stage: {LAW_NAMES}.", callback=law_of_text)] = "auto"
    first_law: Annotated[
        str | None,
        typer.Option("--first-law", help="Of the first stage, for example subset or rr. Default: what fits --law.", callback=law_of_text),
    ] = None
    order: RowOrder = Order.shuffle

    def facts(self) -> dict[str, Any]:
        """What `labeldp.app.stage.plan` is given of it."""
        listed = self.listed(null_class=self.null_class)
        if listed is None:
            raise typer.BadParameter("Expected the classes that a label can have, got none. A plan declares them: --classes no,yes.")
        return {
            "label": self.label,
            "classes": listed,
            "epsilon": self.epsilon,
            "id": self.id,
            "dataset": self.dataset,
            "parts": numbers_of(self.parts),
            "law": self.law,
            "first_law": self.first_law,
            "unit": self.unit,
            "max_rows_per_unit": self.max_rows_per_unit,
            "order": self.order,
        }


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The ledger of the plan, and the release secret."""

    law: Annotated[
        str | None, typer.Option("--law", help="Where the plan names a law of your own: its package.module:Class.", callback=law_of_text)
    ] = None
    ledger: Annotated[
        str | None, typer.Option("--ledger", help="The ledger that the plan was made with; the plan does not choose it. Default: your own.")
    ] = None
    key: Key = None

    def open(self, budget: float | None = None) -> Any:
        """The ledger."""
        from labeldp.app._ledger import ledger_at

        return ledger_at(self.ledger, budget, self.key)


@dataclass(frozen=True, kw_only=True)
class PaidPlanOptions(PlanOptions):
    """The ledger of the plan, its budget, and the release secret."""

    budget: Budget = None


@app.command("plan")
@grouped
def stage_plan(folder: PlanFolder, asked: StageOptions, ledger: SecretOptions, as_json: Json = False) -> None:
    """Write down what will be released and how; nothing is read, nothing is charged."""
    from labeldp.app import stage

    made = usage(lambda: stage.plan(folder, ledger=ledger.open(), **asked.facts()))
    text = f"{folder}: {made.n_stages} stages, {' then '.join(made.laws)}. Nothing was charged. Next: stage 1."
    answer(as_json, stage.status(folder, made.ledger), text)


@app.command("release")
@grouped
def stage_release(
    folder: PlanFolder,
    source: Annotated[str, typer.Argument(metavar="IN", help="The whole table, as for labeldp release; the same in every stage.")],
    stage: Annotated[int, typer.Option(help="Which one, from 1; in order.")],
    out: Annotated[str, typer.Option(help="Output: the rows of this stage alone.")],
    prior: PriorOptions,
    engine: EngineOptions,
    plan: PaidPlanOptions,
    as_json: Json = False,
) -> None:
    """Release the rows of one stage; the first one is charged for all. A prior is for stages from the second on."""
    from labeldp.app.stage import release as run

    weights = prior.value()
    with progress_bars(as_json) as progress:
        record, where = plan.open(plan.budget), engine.engine
        done = run(folder, source, stage, out, prior=weights, ledger=record, engine=where, master=engine.master, progress=progress)
    facts = {"path": str(done.path), "manifest": str(done.manifest_path), "repeated": done.repeated, "receipt": done.receipt.to_dict()}
    what = "Already released; nothing was drawn." if done.repeated else f"Manifest: {done.manifest_path}"
    cost = f"all stages together are {done.receipt.guarantee}"
    answer(as_json, facts, f"{done.path}: {done.manifest['rows']:,} rows of stage {stage}; {cost}. {what}")


@app.command("status")
@grouped
def stage_status(folder: PlanFolder, plan: PlanOptions, as_json: Json = False) -> None:
    """What is released, and what is next."""
    from labeldp.app.stage import status, status_text

    facts = status(folder, plan.open())
    answer(as_json, facts, status_text(facts))


@app.command("close")
@grouped
def stage_close(folder: PlanFolder, plan: PlanOptions, as_json: Json = False) -> None:
    """Give up the stages that are not released, and destroy the secret."""
    from labeldp.app.stage import close, status, status_text

    record = plan.open()
    close(folder, record)
    facts = status(folder, record)
    answer(as_json, facts, status_text(facts))
