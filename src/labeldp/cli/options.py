# SPDX-License-Identifier: Apache-2.0
"""The options that commands share, in groups, and what is made of them."""

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from labeldp.cli.frame import usage
from labeldp.errors import InvalidInput
from labeldp.laws import LAWS, register_law, spellings


class Order(StrEnum):
    """Order of the rows in the output."""

    shuffle = "shuffle"
    keep = "keep"


class Overlap(StrEnum):
    """What to do with rows that were released before."""

    charge = "charge"
    refuse = "refuse"


class Engine(StrEnum):
    """What runs a release."""

    local = "local"
    spark = "spark"
    ray = "ray"


class QueryName(StrEnum):
    """What is asked of a group of rows."""

    histogram = "histogram"
    vote = "vote"


def _remember_json(ctx: typer.Context, value: bool) -> bool:
    ctx.meta["labeldp.json"] = value
    return value


_OWN_LAW = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):([A-Za-z_]\w*)(:.*)?")
LAW_NAMES = f"{', '.join(spellings())}; or your own: package.module:Class, which is imported"


def law_of_text(text: str | None) -> str | None:
    """A law's name; one of the user's own, as package.module:Class[:NUMBER], is imported and registered, and then has a name, too."""
    found = None if text is None else _OWN_LAW.fullmatch(text)
    if text is None or found is None or text.partition(":")[0] in LAWS:
        return text
    module, name, number = found.groups(default="")
    try:
        cls: Any = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # the module is the user's own: no label has been read that it could quote
        why = f"{type(error).__name__}: {error}"
        fix = "Name its folder in PYTHONPATH, or install it."
        raise typer.BadParameter(f"Expected a module that can be imported, got law {text!r} ({why}). {fix}") from None
    if cls is None:
        raise typer.BadParameter(f"Expected a class of module {module!r}, got law {text!r}, which is not there. Check its name.")
    return usage(lambda: str(register_law(cls).name)) + number


def laws_of_texts(texts: list[str] | None) -> list[str]:
    """The names of several laws."""
    return [name for name in map(law_of_text, texts or ()) if name is not None]


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.", callback=_remember_json, is_eager=True)]
LedgerPath = Annotated[
    str | None, typer.Option("--ledger", help="Ledger file, or postgresql://USER@HOST/DATABASE. Default: your own (labeldp ledger where).")
]
Budget = Annotated[float | None, typer.Option(help="Total budget of this (dataset, column), if it has none yet.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--key", help="Where the release secret is: file:PATH, env:NAME or hook:package.module:function. Default: what LABELDP_KEY says."
    ),
]
Label = Annotated[str, typer.Option(help="The private column.")]
DatasetName = Annotated[str, typer.Option(help="Name in the ledger.")]
Dataset = Annotated[str | None, typer.Option(help="Name in the ledger. Default: the input file's name without its ending.")]
Table = Annotated[str, typer.Argument(metavar="IN", help="Parquet or CSV; or a folder or pattern of Parquet files; s3:// too.")]
RowOrder = Annotated[Order, typer.Option(help="keep: you state that order and layout are public.")]
InferClasses = Annotated[
    bool,
    typer.Option("--infer-classes", help="Read the classes off the private labels instead: which classes occur is then not protected."),
]
Redraw = Annotated[bool, typer.Option("--redraw", help="Draw again what was released before; charged again.")]
ImagesFolder = Annotated[Path | None, typer.Option("--images", help="Folder of the files that the column names. Default: the table's.")]
Device = Annotated[str, typer.Option("--device", help="For a net: cpu, cuda, cuda:1 or auto.")]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse whatever would only be warned about, such as --infer-classes.")]
Trust = Annotated[list[str] | None, typer.Option("--trust", help="Type in the model's file to build although it is unknown.")]


@dataclass(frozen=True, kw_only=True)
class LedgerOptions:
    """The ledger of the charge, and its budget."""

    ledger: LedgerPath = None
    budget: Budget = None

    def open(self, key: str | None = None) -> Any:
        """The ledger."""
        from labeldp.app._ledger import ledger_at

        return usage(lambda: ledger_at(self.ledger, self.budget, key))


@dataclass(frozen=True, kw_only=True)
class SecretOptions(LedgerOptions):
    """The ledger of the charge, its budget, and the release secret."""

    key: Key = None

    def open(self, key: str | None = None) -> Any:
        """The ledger, which knows where the secret is."""
        return super().open(self.key)


@dataclass(frozen=True, kw_only=True)
class ClassOptions:
    """Which values a label can have."""

    classes: Annotated[str | None, typer.Option(help="The values that a label can have: A,B,C. Required for raw labels.")] = None
    classes_file: Annotated[Path | None, typer.Option(help="The same in a file, one a line.")] = None

    def listed(self, *, null_class: bool = False, infer: bool = False) -> Sequence[object] | None:
        """The declared classes, or "infer"; None where neither is given."""
        from labeldp.custody._encode import INFER

        options = {"--classes": self.classes, "--classes-file": self.classes_file, "--infer-classes": infer or None}
        given = [name for name, there in options.items() if there is not None]
        if len(given) > 1:
            raise typer.BadParameter(
                f"Expected one of --classes, --classes-file and --infer-classes, got {' and '.join(given)}. Leave one out."
            )
        if null_class and (infer or not given):
            raise typer.BadParameter("Expected --null-class beside declared classes, got none. Add --classes.")
        if infer or not given:
            return INFER if infer else None
        names = split(self.classes) if self.classes_file is None else lines_of(self.classes_file)
        return [*(names or ()), *([None] if null_class else [])]

    def required(self, *, null_class: bool = False, infer: bool = False) -> Sequence[object]:
        """The classes, where a command cannot go on without."""
        from labeldp.custody._encode import undeclared

        found = self.listed(null_class=null_class, infer=infer)
        if found is None:
            raise typer.BadParameter(undeclared().cli)
        return found


@dataclass(frozen=True, kw_only=True)
class ColumnOptions(ClassOptions):
    """The columns of the label, of ids and of the unit."""

    label: Label
    null_class: Annotated[bool, typer.Option("--null-class", help="A missing label is a class of its own, after the others.")] = False
    id: Annotated[list[str] | None, typer.Option("--id", help="Column that names a row; repeat it for several.")] = None
    unit: Annotated[str | None, typer.Option(help="Column that names the person; epsilon covers all their rows.")] = None
    max_rows_per_unit: Annotated[int, typer.Option("--max-rows-per-unit", help="Rows of one person that are used.")] = 1


@dataclass(frozen=True, kw_only=True)
class PriorOptions:
    """Public weights of the classes: columns, a table to look them up in, or a model to ask."""

    prior: Annotated[str | None, typer.Option("--prior", help="Public columns with a weight for each class: A,B,C.")] = None
    prior_table: Annotated[str | None, typer.Option("--prior-table", help="Parquet or CSV to look the weights of each class up in.")] = None
    prior_key: Annotated[str | None, typer.Option("--prior-key", help="Columns of both tables to look up by: COL[,COL].")] = None
    prior_model: Annotated[
        str | None, typer.Option("--prior-model", help="Model to ask: a folder of labeldp train, .skops, .pt2, or a state_dict of torch.")
    ] = None
    prior_features: Annotated[str | None, typer.Option("--prior-features", help="Numeric columns that the model takes: A,B.")] = None
    prior_factory: Annotated[
        str | None, typer.Option("--prior-factory", help="package.module:function that makes the torch module of a state_dict. It is run.")
    ] = None
    trust: Trust = None

    def value(self) -> Any:
        """The prior, or None."""
        from labeldp.app._model import prior_of

        columns, key, features = split(self.prior), split(self.prior_key), split(self.prior_features)
        return usage(lambda: prior_of(columns, self.prior_table, key, self.prior_model, features, self.prior_factory, self.trust or ()))


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What runs a release."""

    engine: Annotated[Engine, typer.Option(help="spark and ray take Parquet, need --id and --classes, and write a folder.")] = Engine.local
    master: Annotated[str | None, typer.Option(help="Spark's master or Ray's address. Default: all cores of this machine.")] = None


def lines_of(file: Path) -> list[str]:
    """The lines of a text file."""
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InvalidInput(f"Expected text in UTF-8, one class a line, got other bytes in {file}.") from None


def split(listed: str | None) -> list[str] | None:
    """The parts of A,B,C."""
    return None if listed is None else [name.strip() for name in listed.split(",")]


def numbers_of(text: str) -> list[float]:
    """The numbers of 0.5,1,2."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(f"Expected numbers separated by commas, got {text!r}. For example 0.5,1,2.") from None
