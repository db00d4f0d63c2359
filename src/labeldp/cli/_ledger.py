# SPDX-License-Identifier: Apache-2.0
"""`labeldp ledger` and `labeldp key`."""

from pathlib import Path
from typing import Annotated

import typer

from labeldp.cli._common import (
    CHECK_FAILED,
    UNREADABLE,
    Commands,
    DatasetName,
    Json,
    Label,
    LedgerPath,
    answer,
    label_of_text,
    usage,
)

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Show and check what was spent: history, budgets, integrity.",
)


@app.command("where")
def ledger_where(ledger: LedgerPath = None, as_json: Json = False) -> None:
    """Where the ledger lies."""
    from labeldp.app._ledger import ledger_at

    record = usage(lambda: ledger_at(ledger))
    facts: dict[str, object] = {
        "ledger": str(record.location),
        "exists": record.exists(),
        "runs": str(record.runs_dir),
    }
    answer(as_json, facts, str(record.location))


@app.command("history")
def ledger_history(ledger: LedgerPath = None, as_json: Json = False) -> None:
    """Every charge, settlement and budget, in order."""
    from labeldp.app._ledger import existing_ledger, history_text

    entries = existing_ledger(ledger).history()
    answer(as_json, {"entries": entries}, history_text(entries))


@app.command("spent")
def ledger_spent(
    dataset: Annotated[str | None, typer.Option(help="Only this data set.")] = None,
    label: Annotated[
        str | None, typer.Option(help="Only this column.", callback=label_of_text)
    ] = None,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Spent, budget and what remains, for each dataset and column; and what was spent on all
    columns of a dataset together."""
    from labeldp.app._ledger import accounts, accounts_text, existing_ledger, spent_together

    record = existing_ledger(ledger)
    found, together = (
        accounts(record, dataset, label),
        ([] if label else spent_together(record, dataset)),
    )
    answer(
        as_json,
        {"accounts": found, "together": together},
        accounts_text(found, together, record, dataset, label),
    )


@app.command("budget")
def ledger_budget(
    dataset: DatasetName, label: Label, ledger: LedgerPath = None, as_json: Json = False
) -> None:
    """The budget of one dataset and column."""
    from labeldp.app._ledger import existing_ledger, other_names

    record = existing_ledger(ledger)
    found = record.budget_of(dataset, label)
    text = (
        f"none yet: nothing was spent{other_names(record, dataset, label)}."
        if found is None
        else f"{found:g}"
    )
    answer(as_json, {"dataset": dataset, "column": label, "budget": found}, text)


@app.command("set-budget")
def ledger_set_budget(
    dataset: DatasetName,
    label: Label,
    budget: Annotated[float, typer.Option(help="The total that may be spent.")],
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Allow more, or less, for one dataset and column; the change stays in the history."""
    from labeldp.app._ledger import ledger_at

    record = ledger_at(ledger)
    usage(lambda: record.set_budget(dataset, label, budget))
    left = record.remaining(dataset, label)
    unknown = (
        ""
        if record.runs(dataset, label)
        else (
            f"; nothing is charged to dataset {dataset!r}, column {label!r} yet: is it the right"
            " name?"
        )
    )
    answer(
        as_json,
        {"dataset": dataset, "column": label, "budget": budget, "remaining": left},
        f"budget {budget:g}, remaining {left:g}{unknown}",
    )


@app.command("abandon")
def ledger_abandon(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Id of a run that was charged and has not settled.")
    ],
    reason: Annotated[
        str, typer.Option(help="Reason, kept in the history.")
    ] = "given up on the command line",
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Give up a run that will never be finished. Its cost stays spent."""
    from labeldp.app._ledger import ledger_at

    ledger_at(ledger).abandon(run, reason)
    answer(
        as_json,
        {"run_id": run, "state": "abandoned", "reason": reason},
        f"{run}: abandoned. Its epsilon stays spent.",
    )


@app.command("adopt")
def ledger_adopt(
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Data set of runs whose folders record none; with --label and --epsilon."
        ),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Their label column.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Epsilon that each of them has spent, on every row.")
    ] = None,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Count runs again whose results lie beside a ledger that was set back or lost. Nothing is ever
    counted less."""
    from labeldp.app._ledger import adopted_text, ledger_at

    record = ledger_at(ledger)
    found = usage(lambda: record.adopt(dataset=dataset, column=label, epsilon=epsilon))
    answer(as_json, {"adopted": found}, adopted_text(found, record))


@app.command("verify")
def ledger_verify(
    manifests: Annotated[
        list[Path] | None,
        typer.Argument(help="Manifests, beside their tables, to compare with the ledger."),
    ] = None,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Is the history whole, does it hold these receipts, and are the tables beside the manifests
    what was released? Exit code 7 if not; 5 if the runs' private folders are missing, without which
    budgets cannot be checked."""
    from labeldp.app._ledger import ledger_at, verified_text, verify
    from labeldp.ledger._check import Unchecked

    found = verify(ledger_at(ledger), manifests or [])
    unchecked = [each for each in found if isinstance(each, Unchecked)]
    problems = [each for each in found if each not in unchecked]
    text = "\n".join([*(problems or [verified_text(manifests or [])]), *unchecked])
    answer(as_json, {"whole": not problems, "problems": problems, "unchecked": unchecked}, text)
    if problems or unchecked:
        raise typer.Exit(CHECK_FAILED if problems else UNREADABLE)


@app.command("repair")
def ledger_repair(
    yes: Annotated[bool, typer.Option("--yes", help="Remove what is listed.")] = False,
    older_than: Annotated[
        float,
        typer.Option(help="Minutes without a change, after which files count as left behind."),
    ] = 60,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """List what killed processes left behind, and remove it with --yes. Nothing that a charged run
    needs."""
    from labeldp.app._ledger import ledger_at, repair, repair_text

    found = usage(lambda: repair(ledger_at(ledger), older_than, yes))
    answer(as_json, {"orphans": found}, repair_text(found))


# Key
# --------------------------------------------------------------------------------------------------

keys = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="The release secret: create it in a file, destroy it. It is never shown.",
)


@keys.command("create")
def key_create(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="New file, readable by you only.")],
    as_json: Json = False,
) -> None:
    """Write a new release secret into a file."""
    from labeldp.app._ledger import create_key

    facts = create_key(path)
    answer(
        as_json,
        facts,
        f"{facts['path']}: a new release secret, id {facts['key_id']}. Use it with --key"
        f" {facts['source']}",
    )


@keys.command("destroy")
def key_destroy(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="File that labeldp key create wrote.")
    ],
    ledger: LedgerPath = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Destroy it even if charged runs need it; they can then never be finished.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Overwrite and remove a release secret, unless a charged run still needs it."""
    from labeldp.app._ledger import destroy_key, ledger_at

    facts = destroy_key(path, lambda: usage(lambda: ledger_at(ledger)), force)
    answer(
        as_json,
        facts,
        f"{facts['path']}: destroyed. Copies that were made of it elsewhere are not.",
    )
