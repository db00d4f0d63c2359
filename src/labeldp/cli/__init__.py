# SPDX-License-Identifier: Apache-2.0
"""The command line: arguments in, one call of `labeldp.app`, a few lines or JSON out. No logic of its own."""

from typing import Annotated, NoReturn

import typer

from labeldp import __version__
from labeldp.cli import aggregate, key, ledger, stage, tables
from labeldp.cli.frame import Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    help="Label differential privacy: release tables, train models, know the cost.",
)
app.registered_commands += tables.app.registered_commands + aggregate.app.registered_commands
app.add_typer(ledger.app, name="ledger")
app.add_typer(key.app, name="key")
app.add_typer(stage.app, name="stage")


def _version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit()


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)] = False) -> None:
    pass


def main() -> NoReturn:
    """Entry point of the command `labeldp`."""
    app()
    raise SystemExit(0)
