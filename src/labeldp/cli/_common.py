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
import inspect
import json
import os
import pkgutil
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperGroup

from labeldp import _validate
from labeldp.errors import (
    BudgetExceeded,
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
                # typer's own usage errors and exits; it ends silently if nobody reads the results
                if hasattr(error, "exit_code") or isinstance(error, typer.Abort | BrokenPipeError):
                    raise
                raise typer.Exit(
                    _report(error, as_json=bool(ctx.meta.get("labeldp.json")))
                ) from None


def _report(error: BaseException, *, as_json: bool) -> int:
    code = next((code for kind, code in CODES if isinstance(error, kind)), 1)
    if isinstance(error, LabelDPError):
        message = in_options(str(error))
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
        typer.echo(f"warning: {in_options(str(message))}", err=True)


_WRITTEN = {
    "classes=['no', 'yes']": "--classes no,yes",
    "classes=[...]": "--classes A,B",
    "classes=[..., None]": "--null-class (or --classes A,B, with a comma at the end)",
    "classes='infer'": "--classes infer",
    "classes=labeldp.Grid(low, high, points)": "--range LOW:HIGH:POINTS",
    "redraw=True": "--redraw",
    "strict=True": "--strict",
}
_OPTIONS = {
    "classes": "--classes",
    "column": "--label",
    "dataset": "--dataset",
    "exclude": "--exclude",
    "id": "--id",
    "key": "--key",
    "ledger": "--ledger",
    "manifest": "--manifest",
    "max_rows_per_unit": "--max-rows-per-unit",
    "null_class": "--null-class",
    "order": "--order",
    "split": "--split",
    "trust": "--trust",
    "unit": "--unit",
}
"""What Python calls the options of commands in messages."""


def in_options(text: str) -> str:
    """Name the options in a message as they are written on the command line."""
    for python, option in _WRITTEN.items():
        text = text.replace(python, option)
    return re.sub(
        rf"\b({'|'.join(_OPTIONS)})=(?=(['\"\[\w]?))",
        lambda found: _OPTIONS[found[1]] + (" " if found[2] else ""),
        text,
    )


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
        raise typer.BadParameter(in_options(str(error))) from None


def answer(as_json: bool, facts: dict[str, Any], text: str | None = None) -> None:
    """Print the facts as JSON, or a text; by default what `facts_text` makes of the same facts."""
    if as_json:
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        typer.echo(facts_text(facts) if text is None else text)


def facts_text(facts: Mapping[str, Any]) -> str:
    """Format facts for people: lists of records as tables, sentences as they are, and other facts a
    line each; what is empty is left out."""
    lines = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            lines += [f"{name}:", *(f"  {each}: {cell(value[each])}" for each in value)]
        elif value and isinstance(value, list | tuple):
            table = isinstance(value[0], Mapping)
            lines += ["", *([_table_text(value)] if table else map(str, value))]
        elif value not in (None, [], ()):
            lines.append(f"{name}: {cell(value)}")
    return "\n".join(lines).strip()


def _table_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format records as an aligned table of what at least one of them has."""
    kept = [
        name
        for name in rows[0]
        if any(row.get(name) is not None and not isinstance(row[name], Mapping) for row in rows)
    ]
    cells = [kept] + [[cell(row.get(name)) for name in kept] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def cell(value: object) -> str:
    """Format one value; of a number four digits."""
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    known = {"True": "yes", "False": "no", "None": "-"}
    return value if isinstance(value, str) else known.get(str(value), str(value))


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
    earlier = {
        each.run_id for each in drawn if ledger.run(each.run_id).receipt.entry.charged_at < began
    }
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


@contextlib.contextmanager
def progress_bars(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show progress bars on stderr, if it is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda phase, done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done, total=total)

        yield show


# Options
# --------------------------------------------------------------------------------------------------


def _remember_json(ctx: typer.Context, value: bool) -> bool:
    # The option is eager, so that errors of the other options are reported as JSON, too.
    ctx.meta["labeldp.json"] = value
    return value


_OWN_LAW = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*:[A-Za-z_]\w*)(:.*)?")
LAW_NAMES = f"{', '.join(spellings())}; or your own: package.module:Class, which is imported"


def law_of_text(text: str | None) -> str | None:
    """Return the name of a law. A user's own law, package.module:Class[:NUMBER], is imported and
    registered under its name."""
    found = None if text is None else _OWN_LAW.fullmatch(text)
    # "subset:3" looks like a module, but is a law's name
    if text is None or found is None or text.partition(":")[0] in LAWS:
        return text
    name, number = found.groups(default="")
    try:
        cls: Any = pkgutil.resolve_name(name)
    # its text may be shown: no label has been read yet that it could quote
    except Exception as error:
        raise typer.BadParameter(
            f"Expected a class of a module that can be imported, got law {text!r}"
            f" ({type(error).__name__}: {error}). Name its folder in PYTHONPATH, or install it."
        ) from None
    return usage(lambda: str(register_law(cls).name)) + number


ESCAPES = "In a name or class write a comma as \\,, a semicolon as \\; and an equals sign as \\=."
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document.", callback=_remember_json, is_eager=True),
]
LedgerPath = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        help=(
            "Ledger file, or postgresql://USER@HOST/DATABASE. Default: your own, which labeldp"
            " ledger spent names."
        ),
    ),
]


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
Redraw = Annotated[
    bool, typer.Option("--redraw", help="Draw again what was released before, for another charge.")
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help=(
            "Refuse, at no charge, what would give a warning before the charge, such as --classes"
            " infer or --epsilon 9."
        ),
    ),
]
Range = Annotated[
    str | None,
    typer.Option(
        "--range",
        help=(
            "Public range of a number, instead of classes: LOW:HIGH[:POINTS], by default of 64"
            " points. Numbers outside are clamped. Of several label columns NAME=LOW:HIGH,"
            " separated by semicolons."
        ),
    ),
]


@dataclass(frozen=True, kw_only=True)
class LedgerOptions:
    """The ledger of the charge."""

    ledger: LedgerPath = None

    def open(self) -> Any:
        """Open the ledger, with the place of its release secret if there is an option for it."""
        from labeldp.app._ledger import ledger_at

        return usage(lambda: ledger_at(self.ledger, key=getattr(self, "key", None)))


@dataclass(frozen=True, kw_only=True)
class SecretOptions(LedgerOptions):
    """The ledger of the charge, and the release secret."""

    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            help="Place of the release secret: file:PATH or env:NAME. Default: LABELDP_KEY.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ClassOptions:
    """The label and its classes."""

    label: Annotated[
        str,
        typer.Option(
            "--label",
            help=(
                "The private column; or several under one epsilon: A,B,C. A comma in a name is"
                " written \\,"
            ),
        ),
    ]
    classes: Annotated[
        str | None,
        typer.Option(
            help=(
                "Values that a label can have: A,B,C; or @FILE, with one a line. Or infer: they"
                " are read off the private labels, and which classes occur is not protected. Of"
                " several label columns 'A,B;C,D', 'NAME=A,B;NAME=C,D', or one list for all."
                f" {ESCAPES}"
            )
        ),
    ] = None

    def declared(self, *, required: bool = True) -> Sequence[object] | None:
        """Return the declared classes of one column, or "infer"; None if none are needed or
        given."""
        from labeldp.custody._encode import INFER, undeclared

        if self.classes is None and required:
            of_number = (
                " A number has its range, --range LOW:HIGH." if hasattr(self, "range") else ""
            )
            raise typer.BadParameter(f"{in_options(str(undeclared()))}{of_number}")
        null = getattr(self, "null_class", False)
        if null and self.classes in (None, INFER):
            raise typer.BadParameter(
                "Expected --null-class beside declared classes, got none. Add --classes A,B."
            )
        if self.classes is None or self.classes == INFER:
            return self.classes
        if _named(self.classes, [unescaped(self.label)]):
            raise typer.BadParameter(
                f"Expected classes alone with one label column, got {self.classes!r}. Leave its"
                " name out."
            )
        classes = self.classes
        return [
            *usage(lambda: classes_of_text(classes, empty=not hasattr(self, "null_class"))),
            *([None] if null else []),
        ]


@dataclass(frozen=True, kw_only=True)
class ColumnOptions(ClassOptions):
    """The columns of the label, of ids and of the unit."""

    null_class: Annotated[
        bool,
        typer.Option(
            "--null-class", help="Make missing labels a class of their own, after the others."
        ),
    ] = False
    range: Range = None
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

    def values(self, names: Sequence[str], *, required: bool = True) -> Any:
        """Return the classes of one column, its Grid, or the LabelColumns of several; None if none
        are needed or given."""
        from labeldp.laws import LabelColumns

        if len(names) > 1:
            if self.classes is None and self.range is None and not required:
                return None
            return usage(lambda: LabelColumns(self._of_several(names)))
        if self.range is None:
            return self.declared(required=required)
        if self.classes is not None or self.null_class:
            raise typer.BadParameter("Expected a range or classes, got both. Leave one out.")
        return grid_of(self.range)

    def _of_several(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the classes of each of several columns: ranges by name; lists by name, in the
        order of the columns, or one for all."""
        if len(set(names)) < len(names):
            raise InvalidInput(
                f"Expected different label columns, got one twice in {_validate.quoted(names)}."
                " Name each one once."
            )
        found: dict[str, Any] = {
            name: grid_of(text)
            for name, text in by_name(names, "--range", "LOW:HIGH", self.range).items()
        }
        plain = [name for name in names if name not in found]
        if self.classes is not None and not plain:
            raise InvalidInput(
                "Expected a range or classes of each label column, got both. Leave one out."
            )
        parts = [] if self.classes is None else _parts(";", self.classes)
        if any(_named(part, names) for part in parts):
            lists = by_name(names, "--classes", "A,B", self.classes)
        else:
            parts = parts * len(plain) if len(parts) == 1 else parts
            lists = dict(zip(plain, parts, strict=False))
        if set(lists) != set(plain) or len(parts) != len(plain):
            raise InvalidInput(
                f"Expected classes of the columns {_validate.quoted(plain)}, got {len(parts)}"
                " lists. Write one list for all, or one for each column in their order: 'A,B;C,D',"
                " or by name: 'NAME=A,B;NAME=C,D'. A number has a range instead: --range"
                " NAME=LOW:HIGH."
            )
        more = [None] if self.null_class else []
        return {
            name: found[name] if name in found else [*classes_of_text(lists[name]), *more]
            for name in names
        }


def classes_of_text(text: str, *, empty: bool = False) -> list[str]:
    """Read A,B,C, or @FILE. An empty class is refused unless `empty`: outputs would have it, after
    a comma or a line too many."""
    file = text[1:] if text.startswith("@") and len(_parts(",", text)) == 1 else None
    if len(_parts(";", text)) > 1:
        raise InvalidInput(
            f"Expected classes with commas between them, got {text!r}. A semicolon is between the"
            " lists of several label columns; in a class it is written \\;"
        )
    found = (split(text) or []) if file is None else lines_of(Path(file))
    if "" in found and not empty:
        raise InvalidInput(
            f"Expected classes that are not empty, got an empty one in {text!r}. Leave out the"
            " comma or the line. Missing labels are a class with --null-class."
        )
    return found


def prior_of(text: str | None) -> Any:
    """Make the prior of --prior: columns, table:PATH, model:PATH or histogram; None without it."""
    from labeldp.tables._priors import OwnHistogram, PriorModel, PriorTable

    if text is None:
        return None
    first, *more = split(text) or [""]
    kind, colon, path = first.partition(":")
    allowed = {"table": ("key",), "model": ("feature", "trust"), "histogram": ("eps",)}.get(kind)
    if allowed is None or (kind == "histogram") == bool(colon):
        meant = (
            _validate.suggest(kind, ["table", "model", "histogram"])
            if colon or not more or more[0].startswith("eps=")
            else ""
        )
        if meant:
            raise InvalidInput(
                "Expected columns with a weight for each class, table:, model: or histogram, got"
                f" --prior {text}.{meant}"
            )
        return [first, *more]
    settings: dict[str, list[str]] = {name: [] for name in allowed}
    for each in more:
        name, _, value = each.partition("=")
        settings[_validate.one_of(allowed, **{f"setting of --prior {kind}": name})].append(value)
    if kind == "table":
        return PriorTable(path, settings["key"])
    if kind == "model":
        return PriorModel(path, settings["feature"] or None, trust=settings["trust"])
    if len(settings["eps"]) > 1:
        raise InvalidInput(
            f"Expected histogram, or histogram,eps=E with one number E, got --prior {text}. For"
            " example eps=0.1."
        )
    return OwnHistogram(numbers_of(settings["eps"][0])[0] if settings["eps"] else None)


def engine_of(text: str) -> tuple[str, str | None]:
    """Split --engine NAME[:ADDRESS]."""
    name, _, address = text.partition(":")
    return usage(lambda: _validate.one_of(("local", "spark", "ray"), engine=name)), address or None


def lines_of(file: Path) -> list[str]:
    """Read the lines of a text file."""
    try:
        # Windows writes a mark before the first class
        return file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise InvalidInput(
            f"Expected text in UTF-8, one class a line, got other bytes in {file}."
        ) from None


def _parts(mark: str, text: str) -> list[str]:
    """Split a text at a mark, except where a backslash stands before it."""
    return re.split(rf"(?<!\\){mark}", text)


def split(listed: str | None) -> list[str] | None:
    """Split A,B,C into its parts, without blanks around them (see `unescaped`)."""
    return None if listed is None else [unescaped(name.strip()) for name in _parts(",", listed)]


def unescaped(name: str) -> str:
    """Read a class or name in which a comma, semicolon or equals sign was written with a
    backslash; others stay as they are."""
    return re.sub(r"\\([,;=])", r"\1", name)


def _named(part: str, names: Sequence[str]) -> tuple[str, str] | None:
    """Split NAME=VALUE at the last "=" before which one of these names stands, and nothing else; a
    name or a value can have its own."""
    for mark in reversed([*re.finditer(r"(?<!\\)=", part)]):
        written = part[: mark.start()]
        for name in (written.strip(), unescaped(written.strip())):
            if name in names:
                return name, part[mark.end() :].strip()
    return None


def by_name(names: Sequence[str], option: str, what: str, text: str | None) -> dict[str, str]:
    """Parse NAME=VALUE;NAME=VALUE, whose names are some of these columns, each once."""
    found: dict[str, str] = {}
    for part in () if text is None else _parts(";", text):
        named = _named(part, names)
        if named is None or named[0] in found:
            raise InvalidInput(
                f"Expected {option} NAME={what} once for a column, of the label columns"
                f" {_validate.quoted(names)}, got {part!r}. For example {names[-1]}={what}."
                f" {ESCAPES}"
            )
        found[named[0]] = named[1]
    return found


def grid_of(text: str) -> Any:
    """Make the Grid of LOW:HIGH or LOW:HIGH:POINTS."""
    from labeldp.laws import Grid

    low, _, rest = text.partition(":")
    high, *points = rest.split(":")
    try:
        start, end = (
            int(each) if each.strip().lstrip("+-").isdecimal() else float(each)
            for each in (low, high)
        )
        (count,) = map(int, points) if points else (None,)
    except ValueError:
        raise typer.BadParameter(
            f"Expected a range LOW:HIGH or LOW:HIGH:POINTS, got {text!r}. For example 0:500000."
        ) from None
    return usage(lambda: Grid(start, end, points=count))


def numbers_of(text: str) -> list[float]:
    """Parse 0.5,1,2."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(
            f"Expected numbers separated by commas, got {text!r}. For example 0.5,1,2."
        ) from None
