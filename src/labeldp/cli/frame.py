# SPDX-License-Identifier: Apache-2.0
"""What all commands share: errors as one message and an exit code, answers for people or as JSON, progress bars.

Exit codes: 0 ok, 1 internal error, 2 usage, 3 budget, 4 data, 5 files or ledger, 6 missing extra, 7 checked and failed, 130 interrupted.
Results go to stdout; messages, warnings and progress go to stderr.
"""

import contextlib
import copy
import functools
import inspect
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperGroup

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


class Commands(TyperGroup):
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
        message = error.cli or str(error)
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
        typer.echo(f"warning: {getattr(message, 'cli', '') or message}", err=True)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups of options: parameters that are dataclasses, whose fields typer sees as options of the command.

    In the help each group has a panel, whose title is the first line of the group's docstring.
    """
    shown: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command).parameters.values():
        if not is_dataclass(parameter.annotation):
            shown.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = kind = parameter.annotation
        hints, panel = get_type_hints(kind, include_extras=True), str(inspect.getdoc(kind)).split("\n")[0].rstrip(".")
        for field in fields(kind):
            base, option = get_args(hints[field.name])
            titled = copy.copy(option)
            titled.rich_help_panel = panel
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            annotation = Annotated[base, titled]  # type: ignore[valid-type]
            shown.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation))

    @functools.wraps(command)
    def call(**given: Any) -> None:
        made = {each: kind(**{field.name: given.pop(field.name) for field in fields(kind)}) for each, kind in groups.items()}
        command(**given, **made)

    shown.sort(key=lambda each: each.default is not inspect.Parameter.empty)  # in the help, what is required comes first
    call.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return call


def usage(make: Callable[[], Made]) -> Made:
    """A value made of options: what is wrong with it is a usage error."""
    try:
        return make()
    except InvalidInput as error:
        raise typer.BadParameter(error.cli or str(error)) from None


def answer(as_json: bool, facts: dict[str, object], text: str) -> None:
    if as_json:
        print_json(facts)
    else:
        typer.echo(text)


def print_json(facts: object) -> None:
    typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))


@contextlib.contextmanager
def progress_bars(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
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
