# SPDX-License-Identifier: Apache-2.0
"""`labeldp key`."""

from pathlib import Path
from typing import Annotated

import typer

from labeldp.cli.frame import Commands, answer, usage
from labeldp.cli.options import Json, LedgerPath

app = typer.Typer(cls=Commands, no_args_is_help=True, help="The release secret: create it in a file, destroy it. It is never shown.")


@app.command("create")
def key_create(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="New file, readable by you only.")], as_json: Json = False
) -> None:
    """Write a new release secret into a file."""
    from labeldp.app._ledger import create_key

    facts = create_key(path)
    answer(as_json, facts, f"{facts['path']}: a new release secret, id {facts['key_id']}. Use it with --key {facts['source']}")


@app.command("destroy")
def key_destroy(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="File that labeldp key create wrote.")],
    ledger: LedgerPath = None,
    force: Annotated[bool, typer.Option("--force", help="Even if charged runs need it: they can never be finished.")] = False,
    as_json: Json = False,
) -> None:
    """Overwrite and remove a release secret, unless a charged run still needs it."""
    from labeldp.app._ledger import destroy_key, ledger_at

    facts = destroy_key(path, lambda: usage(lambda: ledger_at(ledger)), force)
    answer(as_json, facts, f"{facts['path']}: destroyed. Copies that were made of it elsewhere are not.")
