# SPDX-License-Identifier: Apache-2.0
"""The command line: parse arguments, make one call of `labeldp.app`, print a few lines or JSON. No
logic of its own."""

from typing import Annotated, NoReturn

import typer

from labeldp import __version__
from labeldp.cli import _ledger, _release, _train
from labeldp.cli._common import Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Label differential privacy: release tables, train models, know the cost.",
)
for part in (_release.app, _train.app, _ledger.keys):
    app.registered_commands += part.registered_commands
app.add_typer(_ledger.app, name="ledger")


def _version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Entry point of the command `labeldp`."""
    app()
    raise SystemExit(0)
