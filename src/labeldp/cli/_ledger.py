# SPDX-License-Identifier: Apache-2.0
"""`labeldp ledger` and `labeldp key`."""

from pathlib import Path
from typing import Annotated

import typer

from labeldp.cli._common import (
    CHECK_FAILED,
    UNREADABLE,
    Commands,
    Json,
    LedgerPath,
    answer,
    facts_text,
    unescaped,
    usage,
)

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Show and check what was spent: history, budgets, integrity.",
)


_SHOWN = ("at", "kind", "dataset", "column", "unit", "epsilon", "budget", "run_id", "reason")


@app.command("history")
def ledger_history(ledger: LedgerPath = None, as_json: Json = False) -> None:
    """Every charge, settlement and budget, in order."""
    from labeldp.app._ledger import existing_ledger

    entries = existing_ledger(ledger).history()
    shown = [{name: entry.get(name) for name in _SHOWN} for entry in entries]
    answer(as_json, {"entries": entries}, facts_text({"entries": shown}) or "No entries.")


@app.command("spent")
def ledger_spent(
    dataset: Annotated[str | None, typer.Option(help="Only this data set.")] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Only this column.", callback=lambda text: text and unescaped(text)),
    ] = None,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Spent, budget and what remains, for each dataset and column; and what was spent on all
    columns of a dataset together."""
    from labeldp.app._ledger import accounts, existing_ledger, known_names, spent_together

    record = existing_ledger(ledger)
    found = accounts(record, dataset, label)
    facts: dict[str, object] = {
        "accounts": found,
        "together": [] if label else spent_together(record, dataset),
        "ledger": str(record.location),
        "runs": str(record.runs_dir),
    }
    asked = {"dataset": dataset, "column": label}
    on = ", ".join(f"{what} {name!r}" for what, name in asked.items() if name is not None)
    nothing = (
        f"Nothing was spent{on and ' on '}{on}. {record.location} knows {known_names(record)}."
    )
    answer(as_json, facts, None if found else nothing)


@app.command("set-budget")
def ledger_set_budget(
    dataset: Annotated[str, typer.Option(help="Name in the ledger.")],
    label: Annotated[str, typer.Option(help="The private column.", callback=unescaped)],
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


@app.command("verify")
def ledger_verify(
    manifests: Annotated[
        list[Path] | None,
        typer.Argument(help="Manifests, beside their tables, to compare with the ledger."),
    ] = None,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Is the history whole, does it hold these receipts, and are the tables beside the
    manifests what was released? Exit code 7 if not; 5 if the runs' private folders are missing,
    without which budgets cannot be checked."""
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
    abandon: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help=(
                "Instead: give up this run, which was charged and will never be finished. Its cost"
                " stays spent."
            ),
        ),
    ] = None,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help=(
                "Instead: count runs again whose results lie beside a ledger that was set back or"
                " lost; nothing is counted less."
            ),
        ),
    ] = False,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """List what killed processes left behind, and remove it with --yes: nothing that a charged run
    needs."""
    from labeldp.app._ledger import ledger_at, repair

    if yes + (abandon is not None) + adopt > 1:
        raise typer.BadParameter(
            "Expected --yes, --abandon or --adopt, got several. Repair one thing at a time."
        )
    record = ledger_at(ledger)
    if abandon is not None:
        record.abandon(abandon, "given up on the command line")
        answer(
            as_json,
            {"run_id": abandon, "state": "abandoned"},
            f"{abandon}: abandoned. Its epsilon stays spent.",
        )
    elif adopt:
        adopted = record.adopt()
        answer(
            as_json,
            {"adopted": adopted},
            None if adopted else "Nothing to adopt: the ledger knows every run.",
        )
    else:
        found = usage(lambda: repair(record, older_than, yes))
        text = facts_text({"orphans": found}) or "Nothing to repair."
        more = "" if yes or not found else "\nNothing was removed; --yes removes these."
        answer(as_json, {"orphans": found}, text + more)


# Key
# --------------------------------------------------------------------------------------------------

keys = typer.Typer(cls=Commands)


@keys.command("key")
def key(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="New file, readable by you only; or with --destroy one that holds a key.",
        ),
    ],
    destroy: Annotated[
        bool,
        typer.Option(
            "--destroy",
            help="Overwrite and remove the release secret, unless a charged run still needs it.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Destroy it even if charged runs need it; they can then never be finished.",
        ),
    ] = False,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Write a new release secret into a file; it is never shown."""
    from labeldp.app._ledger import create_key, destroy_key, ledger_at

    if destroy:
        facts = destroy_key(path, lambda: usage(lambda: ledger_at(ledger)), force)
        answer(
            as_json,
            facts,
            f"{facts['path']}: destroyed. Copies that were made of it elsewhere are not.",
        )
        return
    if force or ledger is not None:
        raise typer.BadParameter(
            "Expected --force and --ledger beside --destroy, got neither of a new key. Leave them"
            " out."
        )
    facts = create_key(path)
    answer(
        as_json,
        facts,
        f"{facts['path']}: a new release secret, id {facts['key_id']}. Use it with --key"
        f" {facts['source']}",
    )
