# SPDX-License-Identifier: Apache-2.0
"""Code that all commands share: errors as one message and an exit code, text or JSON output,
progress bars, and common options.

Exit codes: 0 ok, 1 internal error, or results that nobody read, 2 usage, 3 budget, 4 data, 5 files
or ledger, 6 missing extra, 7 checked and failed, 130 interrupted. Results go to stdout; messages,
warnings and progress go to stderr.
"""

import contextlib
import copy
import functools
import importlib
import inspect
import json
import os
import re
import select
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperGroup

from labeldp import _validate
from labeldp.errors import (
    BudgetExceeded,
    ClassMismatch,
    InvalidInput,
    LabelDPError,
    LabelDPWarning,
    LedgerError,
    MissingExtra,
    ReleaseError,
)
from labeldp.laws import LAWS, register_law, spellings
from labeldp.receipt import Receipt

CHECK_FAILED, UNREADABLE = 7, 5
CODES: tuple[tuple[type[BaseException], int], ...] = (
    (BudgetExceeded, 3),
    (LedgerError, UNREADABLE),
    (ReleaseError, UNREADABLE),
    (MissingExtra, 6),
    (InvalidInput, 4),
    (OSError, UNREADABLE),
    (KeyboardInterrupt, 130),
)

Made = TypeVar("Made")


class Commands(TyperGroup):
    """A group of commands that turns every error into one message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        with warnings.catch_warnings():
            # Python would show a warning once per line of code; a command shows each that it gets.
            warnings.simplefilter("always", LabelDPWarning)
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except (Exception, KeyboardInterrupt) as error:
                if (
                    hasattr(error, "exit_code")
                    or isinstance(error, typer.Abort)
                    or _is_unread(error)
                ):
                    # typer's own usage errors and exits; it ends silently if nobody reads the
                    # results
                    raise
                raise typer.Exit(
                    _report(error, as_json=bool(ctx.meta.get("labeldp.json")))
                ) from None


def _is_unread(error: BaseException) -> bool:
    """Tell whether whoever reads stdout has gone, as `head` does, and not a process or a database
    that the command needs."""
    if not isinstance(error, BrokenPipeError) or not hasattr(select, "poll"):  # Windows has none
        return False
    waiting = select.poll()
    waiting.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in waiting.poll(0))


def _report(error: BaseException, *, as_json: bool) -> int:
    code = next((code for kind, code in CODES if isinstance(error, kind)), 1)
    if isinstance(error, LabelDPError):
        message = error.cli or str(error)
    elif isinstance(error, KeyboardInterrupt):
        message = (
            "Interrupted. If it was charged, the same command goes on at no further cost. Only an"
            " answer about groups or clusters that was not yet stored is asked, and charged, again."
        )
    elif isinstance(error, OSError):
        message = f"{error.strerror or type(error).__name__}: {error.filename or ''}".rstrip(": ")
    else:
        # The text of an unforeseen error may quote raw labels, so only its type and its place are
        # shown.
        message = (
            f"Internal error ({type(error).__name__}). Set LABELDP_DEBUG=1 to see where, and please"
            " report it."
        )
        if os.environ.get("LABELDP_DEBUG"):
            typer.echo("".join(traceback.format_tb(error.__traceback__)), err=True)
    if as_json:
        typer.echo(
            json.dumps({"error": type(error).__name__, "message": message, "exit_code": code})
        )
    else:
        typer.echo(f"error: {message}", err=True)
    return code


def _show_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    if issubclass(category, LabelDPWarning):
        typer.echo(f"warning: {getattr(message, 'cli', '') or message}", err=True)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups of options: parameters that are dataclasses, whose fields become
    options of the command.

    The help shows each group as a panel, titled by the first line of the dataclass's docstring.
    """
    # typer reads options from a function's signature, so the command gets one in which each field
    # is a parameter.
    shown: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command).parameters.values():
        if not is_dataclass(parameter.annotation):
            shown.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = kind = parameter.annotation
        hints, panel = (
            get_type_hints(kind, include_extras=True),
            str(inspect.getdoc(kind)).split("\n")[0].rstrip("."),
        )
        for field in fields(kind):
            base, option = get_args(hints[field.name])
            titled = copy.copy(option)  # options are shared between commands, whose panels differ
            titled.rich_help_panel = panel
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            annotation = Annotated[base, titled]  # type: ignore[valid-type]
            shown.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=annotation,
                )
            )

    @functools.wraps(command)
    def call(**given: Any) -> None:
        made = {
            each: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for each, kind in groups.items()
        }
        command(**given, **made)

    # the help lists required options first
    shown.sort(key=lambda each: each.default is not inspect.Parameter.empty)
    call.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return call


def spec_of(kind: type[Made], options: Any, **more: object) -> Made:
    """Make a specification from the options with the names of its fields; `more` overrides them.
    Faults become usage errors."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    shared = {name: getattr(options, name) for name in names if hasattr(options, name)}
    return usage(lambda: kind(**shared | more))


def usage(make: Callable[[], Made]) -> Made:
    """Call a function that makes a value from options; an InvalidInput becomes a usage error."""
    try:
        return make()
    except InvalidInput as error:
        raise typer.BadParameter(error.cli or str(error)) from None


def answer(as_json: bool, facts: dict[str, object], text: str) -> None:
    if as_json:
        print_json(facts)
    else:
        typer.echo(text)


def account_text(ledger: Any, receipts: Sequence[Receipt]) -> str:
    """Name the data set of these charges and its ledger; and what it has spent over all columns, if
    that is more than these."""
    from labeldp.app._ledger import spent_together, together_text

    dataset, epsilon = receipts[0].dataset, _validate.sum_up(each.epsilon for each in receipts)
    more = [
        each
        for each in spent_together(ledger, dataset)
        if each["unit"] == receipts[0].unit and each["spent"] > epsilon
    ]
    return " ".join([f"Dataset {dataset!r} in {ledger.location}.", *map(together_text, more)])


def charge_text(ledger: Any, receipts: Sequence[Receipt], began: str) -> str:
    """Report what a command charged, of the receipts of what it returns; what was charged before it
    began, an earlier call has paid for."""
    drawn = [each for each in receipts if not each.repeated]
    earlier = {each.run_id for each in drawn if ledger.run(each.run_id).charged_at < began}
    before, paid = (
        _validate.sum_up(each.epsilon for each in drawn if (each.run_id in earlier) is first)
        for first in (True, False)
    )
    if not before:
        return f"Charged epsilon {paid:g}." if paid else "Nothing was drawn, nothing was charged."
    more = f"this one charged epsilon {paid:g} more" if paid else "nothing more was charged"
    return (
        f"Finished what an earlier call, which was killed or failed, had charged epsilon {before:g}"
        f" for; {more}."
    )


def print_json(facts: object) -> None:
    typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))


@contextlib.contextmanager
def progress_bars(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show progress bars on stderr, if it is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda phase, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done, total=total)

        yield show


# Options
# --------------------------------------------------------------------------------------------------


class Order(StrEnum):
    """Order of the rows in the output."""

    shuffle = "shuffle"
    keep = "keep"


class Split(StrEnum):
    """How several label columns share one epsilon."""

    one = "one"
    joint = "joint"
    equal = "equal"


class Overlap(StrEnum):
    """What to do with rows that were released before."""

    charge = "charge"
    refuse = "refuse"


class Engine(StrEnum):
    """Engine that runs the release."""

    local = "local"
    spark = "spark"
    ray = "ray"


class QueryName(StrEnum):
    """Query about a group of rows."""

    histogram = "histogram"
    vote = "vote"


def _remember_json(ctx: typer.Context, value: bool) -> bool:
    # The option is eager, so that errors of the other options are reported as JSON, too.
    ctx.meta["labeldp.json"] = value
    return value


_OWN_LAW = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):([A-Za-z_]\w*)(:.*)?")
LAW_NAMES = f"{', '.join(spellings())}; or your own: package.module:Class, which is imported"


def law_of_text(text: str | None) -> str | None:
    """Return the name of a law. A user's own law, package.module:Class[:NUMBER], is imported and
    registered under its name."""
    found = None if text is None else _OWN_LAW.fullmatch(text)
    # "subset:3" looks like a module, but is a law's name
    if text is None or found is None or text.partition(":")[0] in LAWS:
        return text
    module, name, number = found.groups(default="")
    try:
        cls: Any = getattr(importlib.import_module(module), name, None)
    # its text may be shown: no label has been read yet that it could quote
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        fix = "Name its folder in PYTHONPATH, or install it."
        raise typer.BadParameter(
            f"Expected a module that can be imported, got law {text!r} ({why}). {fix}"
        ) from None
    if cls is None:
        raise typer.BadParameter(
            f"Expected a class of module {module!r}, got law {text!r}, which is not there. Check"
            " its name."
        )
    return usage(lambda: str(register_law(cls).name)) + number


def laws_of_texts(texts: list[str] | None) -> list[str]:
    """Return the names of several laws (see `law_of_text`)."""
    return [name for name in map(law_of_text, texts or ()) if name is not None]


Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document.", callback=_remember_json, is_eager=True),
]
LedgerPath = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        help=(
            "Ledger file, or postgresql://USER@HOST/DATABASE. Default: your own (labeldp ledger"
            " where)."
        ),
    ),
]
Budget = Annotated[
    float | None, typer.Option(help="Total budget of this (dataset, column), if it has none yet.")
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        help=(
            "Place of the release secret: file:PATH, env:NAME or hook:package.module:function."
            " Default: LABELDP_KEY."
        ),
    ),
]


def label_of_text(text: str | None) -> str | None:
    """Read the name of one column as --label of several is written, if all of its commas have a
    backslash; else take it as it is."""
    return text if text is None or len(_parts(",", text)) > 1 else unescaped(text)


Label = Annotated[str, typer.Option(help="The private column.", callback=label_of_text)]
Labels = Annotated[
    str,
    typer.Option(
        "--label",
        help=(
            "The private column; or several under one epsilon: A,B,C. A comma in a name is"
            " written \\,"
        ),
    ),
]
ESCAPES = (
    "In a name or class write a comma as \\, a semicolon as \\; an equals sign as \\= and a blank"
    ' at an end as "\\ ".'
)
DatasetName = Annotated[str, typer.Option(help="Name in the ledger.")]
Dataset = Annotated[
    str | None,
    typer.Option(
        help="Name in the ledger. Default: that of the releases it is from, else the file's name."
    ),
]
Table = Annotated[
    str,
    typer.Argument(
        metavar="IN",
        help="Parquet or CSV file; or a folder or pattern of Parquet files; also s3://.",
    ),
]
RowOrder = Annotated[Order, typer.Option(help="keep: you state that order and layout are public.")]
InferClasses = Annotated[
    bool,
    typer.Option(
        "--infer-classes",
        help=(
            "Infer the classes from the private labels: which classes occur is then not protected."
        ),
    ),
]
Redraw = Annotated[
    bool, typer.Option("--redraw", help="Draw again what was released before, for another charge.")
]
ImagesFolder = Annotated[
    Path | None,
    typer.Option("--images", help="Folder of the image files. Default: the table's folder."),
]
Device = Annotated[
    str, typer.Option("--device", help="Device of a net: cpu, cuda, cuda:1 or auto.")
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help=(
            "Refuse, at no charge, what would give a warning before the charge, such as"
            " --infer-classes or --epsilon 9."
        ),
    ),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust", help="Type in the model's file that you trust although labeldp does not know it."
    ),
]


@dataclass(frozen=True, kw_only=True)
class LedgerOptions:
    """The ledger of the charge, and its budget."""

    ledger: LedgerPath = None
    budget: Budget = None

    def open(self, key: str | None = None) -> Any:
        """Open the ledger."""
        from labeldp.app._ledger import ledger_at

        return usage(lambda: ledger_at(self.ledger, self.budget, key))


@dataclass(frozen=True, kw_only=True)
class SecretOptions(LedgerOptions):
    """The ledger of the charge, its budget, and the release secret."""

    key: Key = None

    def open(self, key: str | None = None) -> Any:
        """Open the ledger with the place of its release secret."""
        return super().open(self.key)


@dataclass(frozen=True, kw_only=True)
class ClassOptions:
    """The label and its classes."""

    label: Label
    classes: Annotated[
        str | None,
        typer.Option(
            help=f"Values that a label can have: A,B,C. Required for raw labels. {ESCAPES}"
        ),
    ] = None
    classes_file: Annotated[
        Path | None, typer.Option(help="Values that a label can have, in a file, one a line.")
    ] = None

    def listed(self, *, null_class: bool = False, infer: bool = False) -> Sequence[object] | None:
        """Return the declared classes, or "infer"; None if neither is given."""
        from labeldp.custody._encode import INFER

        options = {
            "--classes": self.classes,
            "--classes-file": self.classes_file,
            "--infer-classes": infer or None,
        }
        given = [name for name, there in options.items() if there is not None]
        if len(given) > 1:
            raise typer.BadParameter(
                "Expected one of --classes, --classes-file and --infer-classes, got"
                f" {' and '.join(given)}. Leave one out."
            )
        if null_class and (infer or not given):
            raise typer.BadParameter(
                "Expected --null-class beside declared classes, got none. Add --classes."
            )
        if infer or not given:
            return INFER if infer else None
        if self.classes is not None:
            self._require_one_list(self.classes)
        names = split(self.classes) if self.classes_file is None else lines_of(self.classes_file)
        # others have no --null-class, and count missing labels of a CSV file as an empty class
        if isinstance(self, ColumnOptions):
            names = _without_empty(names, self.classes_file or self.classes)
        return [*(names or ()), *([None] if null_class else [])]

    def _require_one_list(self, classes: str) -> None:
        """Refuse, with one label column, what is written as the lists of several: NAME=A,B, or
        A;B."""
        label = unescaped(self.label)
        named = _named(classes, [label])
        name = _likely_name(classes) if named is None else named[0]
        if name is not None and (
            name.casefold() == label.casefold() or _validate.suggest(name, [label])
        ):
            raise typer.BadParameter(
                f"Expected classes alone with one label column, {label!r}, got {name!r} before"
                " them. Leave it out: --classes A,B. If it is a part of a class, write \\= for its"
                " equals sign."
            )
        if len(_parts(";", classes)) > 1:
            fix = (
                f"Write --classes '{classes.replace(';', ',')}'. "
                if len(split(classes) or ()) == 1
                else ""
            )
            raise typer.BadParameter(
                f"Expected classes with commas between them, got {classes!r}. {fix}A semicolon is"
                " between the lists of several label columns; in a class it is written \\;"
            )

    def required(self, *, null_class: bool = False, infer: bool = False) -> Sequence[object]:
        """Return the classes; a usage error without any."""
        from labeldp.custody._encode import undeclared

        found = self.listed(null_class=null_class, infer=infer)
        if found is None:
            raise typer.BadParameter(undeclared(numbers=isinstance(self, NumberOptions)).cli)
        return found


@dataclass(frozen=True, kw_only=True)
class ColumnOptions(ClassOptions):
    """The columns of the label, of ids and of the unit."""

    null_class: Annotated[
        bool,
        typer.Option(
            "--null-class", help="Make missing labels a class of their own, after the others."
        ),
    ] = False
    id: Annotated[
        list[str] | None,
        typer.Option("--id", help="Column that names a row; repeat it for several."),
    ] = None
    unit: Annotated[
        str | None,
        typer.Option(help="Column that names the person; epsilon covers all their rows."),
    ] = None
    max_rows_per_unit: Annotated[
        int, typer.Option("--max-rows-per-unit", help="Rows of one person that are used.")
    ] = 1


@dataclass(frozen=True, kw_only=True)
class NumberOptions(ColumnOptions):
    """The columns of the label, of ids and of the unit, and the range of a label that is a
    number."""

    range: Annotated[
        str | None,
        typer.Option(
            "--range",
            help=(
                "Public range of a number, instead of classes: LOW:HIGH. Numbers outside are"
                " clamped."
            ),
        ),
    ] = None
    grid: Annotated[
        str | None,
        typer.Option(
            "--grid",
            metavar="INTEGER",
            help="Number of evenly spaced points of the range, as classes. Default: 64.",
        ),
    ] = None

    def points(self, *, infer: bool = False) -> Any:
        """Make the Grid of --range; None without a range."""
        others = {
            "--classes": self.classes,
            "--classes-file": self.classes_file,
            "--infer-classes": infer or None,
        }
        others |= {"--null-class": self.null_class or None}
        if self.range is None:
            return number_grid(None, self.grid)
        if given := [name for name, there in others.items() if there is not None]:
            raise typer.BadParameter(
                f"Expected a range or classes, got --range and {' and '.join(given)}. Leave one"
                " out."
            )
        return number_grid(self.range, self.grid)

    def of_columns(self, names: Sequence[str], *, infer: bool = False) -> Any:
        """Return the classes of several columns: lists of classes in their order, or one for all of
        them, and ranges by name."""
        from labeldp.laws import LabelColumns

        if infer:
            raise typer.BadParameter(
                "Expected declared classes of several columns, got --infer-classes. Write --classes"
                " 'A,B;C,D'."
            )
        if len(set(names)) < len(names):
            raise typer.BadParameter(
                f"Expected different label columns, got one twice in {_validate.quoted(names)}."
                " Name each one once."
            )
        found: dict[str, Any] = usage(lambda: self._grids(names))
        plain = [name for name in names if name not in found]
        if not plain and (self.classes is not None or self.classes_file is not None):
            raise typer.BadParameter(
                "Expected a range or classes of each label column, got ranges of all of them, and"
                " classes. Leave one out."
            )
        found |= zip(plain, self._lists(names, plain) if plain else (), strict=True)
        return usage(lambda: LabelColumns({name: found[name] for name in names}))

    def _grids(self, names: Sequence[str]) -> dict[str, Any]:
        """Make the grids of those of several columns that have a range: --range
        NAME=LOW:HIGH;NAME=LOW:HIGH."""
        from labeldp.laws import Grid

        ranges = by_name(names, "--range", "LOW:HIGH", self.range)
        if self.grid is not None and not ranges:
            raise InvalidInput(
                f"Expected --grid beside a range, got none. Add --range {names[-1]}=LOW:HIGH."
            )
        # one number of points for all ranges
        alone = self.grid is not None and "=" not in self.grid
        points = {} if alone else by_name(list(ranges), "--grid", "POINTS", self.grid)
        return {
            name: Grid(*range_of(text), points=points_of(self.grid if alone else points.get(name)))
            for name, text in ranges.items()
        }

    def _lists(self, names: Sequence[str], plain: Sequence[str]) -> list[list[object]]:
        """Return the lists of classes of the columns without a range, which are `plain`."""
        more = [None] if self.null_class else []
        if self.classes is None and self.classes_file is None:
            raise typer.BadParameter(
                f"Expected classes of {len(plain)} columns ({', '.join(plain)}), got none. Declare"
                " a list each in their order, for example --classes 'no,yes;1,2,3,4,5', or one for"
                " all. A number has a range instead: --range NAME=LOW:HIGH."
            )
        if self.classes is None or self.classes_file is not None:
            return [[*self.required(null_class=self.null_class)]] * len(plain)
        parts = _parts(";", self.classes)
        by_names, likely = (
            any(_named(part, names) for part in parts),
            [name for name in map(_likely_name, parts) if name is not None],
        )
        # read by its place, a list with a wrong name would declare the name as a part of a class
        if likely and not by_names:
            usage(
                lambda: _validate.one_of(names, fix=ESCAPES, **{"column of --classes": likely[0]})
            )
        if by_names:
            parts = self._named_lists(names, plain)
        elif len(parts) == 1:
            parts = parts * len(plain)
        elif len(parts) == len(names):
            parts = _without_ranges(parts, names, plain)
        if len(parts) != len(plain):
            raise typer.BadParameter(
                f"Expected classes of {len(plain)} columns ({', '.join(plain)}), got {len(parts)}"
                " lists. Write one list for all, or one a column: 'A,B;C,D', or by name:"
                " 'NAME=A,B;NAME=C,D'. A number has a range instead: --range NAME=LOW:HIGH."
            )
        return [[*(_without_empty(split(part), part) or ()), *more] for part in parts]

    def _named_lists(self, names: Sequence[str], plain: Sequence[str]) -> list[str]:
        """Return the lists of --classes NAME=A,B;NAME=C,D in the order of the columns without a
        range."""
        named = usage(lambda: by_name(names, "--classes", "A,B", self.classes))
        if set(named) != set(plain):
            raise typer.BadParameter(
                f"Expected --classes of the columns without a range, {_validate.quoted(plain)},"
                f" each once, got those of {_validate.quoted(named)}. Name each of them, and no"
                " other."
            )
        return [named[name] for name in plain]


@dataclass(frozen=True, kw_only=True)
class LabelsOptions(NumberOptions):
    """The label column, or several under one epsilon, and how they share it."""

    label: Labels
    classes: Annotated[
        str | None,
        typer.Option(
            help=(
                "Values that a label can have: A,B,C. Of several label columns a list each,"
                f" 'A,B;C,D' or 'NAME=A,B;NAME=C,D', or one for all. {ESCAPES}"
            )
        ),
    ] = None
    range: Annotated[
        str | None,
        typer.Option(
            "--range",
            help=(
                "Public range of a number, instead of classes: LOW:HIGH. Numbers outside are"
                " clamped. Of several label columns NAME=LOW:HIGH, separated by semicolons."
            ),
        ),
    ] = None
    split: Annotated[
        Split | None,
        typer.Option(
            "--split",
            help=(
                "Of several label columns, how epsilon is divided: one (default: each row is asked"
                " about one column), joint (a set of combinations) or equal (a share each)."
            ),
        ),
    ] = None

    def require_several(self) -> None:
        """Refuse, with one label column, the option of several."""
        if self.split is not None:
            raise typer.BadParameter(
                "Expected --split with several label columns, got one. Write --label A,B."
            )

    def law_of(self, columns: Any, epsilon: float, law: str | None) -> Any:
        """Make the law of several label columns by --split."""
        return usage(lambda: columns.law(epsilon, self.split.value if self.split else "one", law))

    @contextlib.contextmanager
    def one_list_told(self) -> Iterator[None]:
        """If declared classes are not those of a column, say that one list was given for several,
        and how a list each is written."""
        try:
            yield
        except ClassMismatch as error:
            names = split(self.label) or []
            if len(names) > 1 and self.classes is not None and len(_parts(";", self.classes)) == 1:
                told = (
                    f"--classes {self.classes} is for all of {_validate.quoted(names)}; a list each"
                    " is written"
                )
                error.cli = f"{error.cli or error} {told} --classes 'no,yes;1,2,3,4,5'."
            raise


@dataclass(frozen=True, kw_only=True)
class PriorOptions:
    """Prior: public weights of the classes, from columns, a table or a model."""

    prior: Annotated[
        str | None,
        typer.Option(
            "--prior",
            help=(
                "Public columns with a weight for each class: A,B,C. Or histogram[,eps=E]: a part"
                " of epsilon pays for a noisy histogram of the label column, which is published,"
                " too. A rule sets what is not given."
            ),
        ),
    ] = None
    prior_table: Annotated[
        str | None,
        typer.Option(
            "--prior-table", help="Parquet or CSV table with the weights of each class by key."
        ),
    ] = None
    prior_key: Annotated[
        str | None, typer.Option("--prior-key", help="Key columns of both tables: COL[,COL].")
    ] = None
    prior_model: Annotated[
        str | None,
        typer.Option(
            "--prior-model",
            help=(
                "Model that predicts the weights: a folder of labeldp train, .skops, .pt2, or a"
                " state_dict of torch."
            ),
        ),
    ] = None
    prior_features: Annotated[
        str | None,
        typer.Option("--prior-features", help="Numeric columns that the model takes: A,B."),
    ] = None
    prior_factory: Annotated[
        str | None,
        typer.Option(
            "--prior-factory",
            help=(
                "package.module:function that makes the torch module of a state_dict. Its code is"
                " run."
            ),
        ),
    ] = None
    trust: Trust = None

    def value(self) -> Any:
        """Make the prior; None if no option asks for one."""
        from labeldp.app._model import prior_of

        columns, key, features = (
            split(self.prior),
            split(self.prior_key),
            split(self.prior_features),
        )
        return usage(
            lambda: prior_of(
                columns,
                self.prior_table,
                key,
                self.prior_model,
                features,
                self.prior_factory,
                self.trust or (),
            )
        )


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Engine that runs the release."""

    engine: Annotated[
        Engine,
        typer.Option(
            help="spark and ray take Parquet, need --id and --classes, and write a folder."
        ),
    ] = Engine.local
    master: Annotated[
        str | None,
        typer.Option(help="Spark's master or Ray's address. Default: all cores of this machine."),
    ] = None


def lines_of(file: Path) -> list[str]:
    """Read the lines of a text file."""
    try:
        # Windows writes a mark before the first class
        return file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise InvalidInput(
            f"Expected text in UTF-8, one class a line, got other bytes in {file}."
        ) from None


def _without_empty(classes: list[str] | None, given: object) -> list[str] | None:
    """Refuse an empty class: after a comma or a line too many it would be one that no label has,
    and outputs would have it."""
    if classes is not None and "" in classes:
        raise typer.BadParameter(
            f"Expected classes that are not empty, got an empty one in {str(given)!r}. Leave out"
            " the comma or the line. Missing labels are a class with --null-class."
        )
    return classes


def _parts(mark: str, text: str) -> list[str]:
    """Split a text at a mark, except where a backslash stands before it."""
    return re.split(rf"(?<!\\){mark}", text)


def _without_ranges(parts: Sequence[str], names: Sequence[str], plain: Sequence[str]) -> list[str]:
    """Return the lists of classes by the places of all columns, empty where a column has a
    range."""
    both = [
        name for name, part in zip(names, parts, strict=True) if name not in plain and part.strip()
    ]
    if both:
        raise typer.BadParameter(
            f"Expected a range or classes of column {both[0]!r}, got both. Leave one out."
        )
    return [part for name, part in zip(names, parts, strict=True) if name in plain]


def split(listed: str | None) -> list[str] | None:
    """Split A,B,C into its parts, without blanks around them (see `unescaped`)."""
    return None if listed is None else [unescaped(_stripped(name)) for name in _parts(",", listed)]


def _stripped(name: str) -> str:
    """Take off blanks around a name, except one with a backslash before it."""
    return re.sub(r"(?<!\\)\s+$", "", name.lstrip())


def unescaped(name: str) -> str:
    """Read a class or name in which a comma, semicolon, equals sign or blank was written with a
    backslash; others stay as they are."""
    return re.sub(r"\\([,;= ])", r"\1", name)


def _named(part: str, names: Sequence[str]) -> tuple[str, str] | None:
    """Split NAME=VALUE at the last "=" before which one of these names stands, and nothing else; a
    name or a value can have its own."""
    for mark in reversed([*re.finditer(r"(?<!\\)=", part)]):
        written = part[: mark.start()]
        for name in (written.strip(), unescaped(_stripped(written))):
            if name in names:
                return name, _stripped(part[mark.end() :])
    return None


def _likely_name(part: str) -> str | None:
    """Return what stands before the last "=" of a list's first value, which may be a wrong name;
    None if there is only <=, >=, != or ==."""
    ends = [found.end() - 1 for found in re.finditer(r"[^\s<>!=\\]\s*=(?!=)", _parts(",", part)[0])]
    return unescaped(_stripped(part[: ends[-1]])) if ends else None


def by_name(names: Sequence[str], option: str, what: str, text: str | None) -> dict[str, str]:
    """Parse NAME=VALUE;NAME=VALUE, whose names are some of these columns, each once."""
    found: dict[str, str] = {}
    for part in () if text is None else _parts(";", text):
        named, wrong = _named(part, names), _likely_name(part)
        if named is None and wrong is None:
            raise InvalidInput(
                f"Expected {option} NAME={what} with several label columns,"
                f" {_validate.quoted(names)}, got {part!r}. For example {names[-1]}={what}."
                f" {ESCAPES}"
            )
        name, value = named or (
            _validate.one_of(names, fix=ESCAPES, **{f"column of {option}": wrong}),
            "",
        )
        if name in found:
            raise InvalidInput(
                f"Expected one {what} a column in {option}, got two of {name!r}. Leave one out."
            )
        found[name] = value
    return found


def points_of(text: str | None) -> int | None:
    """Parse the number of points of a grid; None if it is not given."""
    try:
        return None if text is None else int(text)
    except ValueError:
        raise InvalidInput(
            f"Expected --grid as a whole number of points, got {text!r}. For example 64."
        ) from None


def range_of(text: str) -> tuple[float, float]:
    """Parse LOW:HIGH."""
    low, colon, high = text.partition(":")
    try:
        ends = [
            int(end) if end.strip().lstrip("+-").isdecimal() else float(end) for end in (low, high)
        ]
    except ValueError:
        ends = []
    if not colon or len(ends) != 2:
        raise InvalidInput(f"Expected a range LOW:HIGH, got {text!r}. For example 0:500000.")
    return ends[0], ends[1]


def number_grid(ends: str | None, points: str | None) -> Any:
    """Make the Grid of --range and --grid; None without a range."""
    from labeldp.laws import Grid

    if ends is None:
        if points is not None:
            raise typer.BadParameter(
                "Expected --grid beside a range, got none. Add --range LOW:HIGH."
            )
        return None
    return usage(lambda: Grid(*range_of(ends), points=points_of(points)))


def count_of(text: str) -> int:
    """Count classes that are given as their number K, or by their names A,B,C."""
    first, *more = _parts(";", text)
    if more:
        raise InvalidInput(
            f"Expected the classes of one column, got {text!r}, lists of several. Plan one column"
            f" at a time, with its share of epsilon: --classes {first.strip()}."
        )
    names = split(text) or []
    if len(names) == 1 and names[0].lstrip("+-").isdecimal():
        return int(names[0])
    if len(names) == 1 or "" in names:
        raise InvalidInput(
            f"Expected the number of classes or their names, got {text!r}. For example --classes 2,"
            " or --classes no,yes."
        )
    if len(set(names)) < len(names):
        raise InvalidInput(
            f"Expected classes that differ, got {text!r}. Name each once, or give their number."
        )
    return len(names)


def numbers_of(text: str) -> list[float]:
    """Parse 0.5,1,2."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(
            f"Expected numbers separated by commas, got {text!r}. For example 0.5,1,2."
        ) from None
