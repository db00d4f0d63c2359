# SPDX-License-Identifier: Apache-2.0
"""The options that commands share, and what is made of them."""

import importlib
import re
from collections.abc import Sequence
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
_LAWS = f"{', '.join(spellings())}; or your own: package.module:Class, which is imported"


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


def _laws_of_texts(texts: list[str] | None) -> list[str]:
    return [name for name in map(law_of_text, texts or ()) if name is not None]


LawName = Annotated[str | None, typer.Option("--law", help=f"{_LAWS}. Default: rr, or rr-with-prior with a prior.", callback=law_of_text)]
TrainLaw = Annotated[str, typer.Option("--law", help=f"{_LAWS}. Of a released table: only to import your own.", callback=law_of_text)]
StagesLaw = Annotated[str, typer.Option("--law", help=f"Of each stage: {_LAWS}.", callback=law_of_text)]
FirstLaw = Annotated[
    str | None,
    typer.Option("--first-law", help="Of the first stage, for example subset or rr. Default: what fits --law.", callback=law_of_text),
]
ComparedLaws = Annotated[
    list[str] | None,
    typer.Option("--law", help=f"Compared, too; repeat it for several: {_LAWS}.", callback=_laws_of_texts),
]
PlannedLaw = Annotated[
    str | None, typer.Option("--law", help="Where the plan names a law of your own: its package.module:Class.", callback=law_of_text)
]
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
Classes = Annotated[str | None, typer.Option(help="The values that a label can have: A,B,C. Required for raw labels.")]
ClassesFile = Annotated[Path | None, typer.Option(help="The same in a file, one a line.")]
InferClasses = Annotated[
    bool,
    typer.Option("--infer-classes", help="Read the classes off the private labels instead: which classes occur is then not protected."),
]
NullClass = Annotated[bool, typer.Option("--null-class", help="A missing label is a class of its own, after the others.")]
Ids = Annotated[list[str] | None, typer.Option("--id", help="Column that names a row; repeat it for several.")]
Unit = Annotated[str | None, typer.Option(help="Column that names the person; epsilon covers all their rows.")]
MaxRows = Annotated[int, typer.Option("--max-rows-per-unit", help="Rows of one person that are used.")]
Dataset = Annotated[str | None, typer.Option(help="Name in the ledger. Default: the input file's name without its ending.")]
Redraw = Annotated[bool, typer.Option("--redraw", help="Draw again what was released before; charged again.")]
Prior = Annotated[str | None, typer.Option("--prior", help="Public columns with a weight for each class: A,B,C.")]
PriorFile = Annotated[str | None, typer.Option("--prior-table", help="Parquet or CSV to look the weights of each class up in.")]
PriorKey = Annotated[str | None, typer.Option("--prior-key", help="Columns of both tables to look up by: COL[,COL].")]
PriorModelPath = Annotated[
    str | None, typer.Option("--prior-model", help="Model to ask: a folder of labeldp train, .skops, .pt2, or a state_dict of torch.")
]
PriorFeatures = Annotated[str | None, typer.Option("--prior-features", help="Numeric columns that the model takes: A,B.")]
PriorFactory = Annotated[
    str | None, typer.Option("--prior-factory", help="package.module:function that makes the torch module of a state_dict. It is run.")
]
Trust = Annotated[list[str] | None, typer.Option("--trust", help="Type in the model's file to build although it is unknown.")]
TrainPrior = Annotated[
    str | None,
    typer.Option("--prior", help="clusters[:NUMBER][,eps=E]: ask clusters of the inputs first, at E of the total; by rule if not given."),
]
ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        help="proportions: label counts of clusters of rows, or noise-cluster: one vote for each, for small budgets; mlp, small-convnet, "
        "resnet18, wrn-28-4, vgg16 or small-inception, which need torch; boosting; linear; or auto: linear where columns have hundreds of "
        "categories, else boosting, and for images small-convnet.",
    ),
]
Image = Annotated[str | None, typer.Option("--image", help="Column of images: bytes of image files, or names of files; the only input.")]
ImagesFolder = Annotated[Path | None, typer.Option("--images", help="Folder of the files that the column names. Default: the table's.")]
ArrayName = Annotated[str | None, typer.Option("--inputs", help="Array of inputs in an .npz file. Default: X.")]
LabelsFile = Annotated[Path | None, typer.Option("--labels", help="Another .npz or .npy file, with the labels, ids and units of arrays.")]
Epochs = Annotated[int | None, typer.Option("--epochs", help="Of a net, in each stage.")]
BatchSize = Annotated[int | None, typer.Option("--batch-size", help="Of a net.")]
Rate = Annotated[float | None, typer.Option("--rate", help="Learning rate of a net, at its peak.")]
Device = Annotated[str, typer.Option("--device", help="For a net: cpu, cuda, cuda:1 or auto.")]
StateFolder = Annotated[Path | None, typer.Option("--folder", help="Where a net's training keeps its state, to go on if it was killed.")]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse whatever would only be warned about, such as --infer-classes.")]


def classes_of(listed: str | None, file: Path | None, *, null_class: bool = False, infer: bool = False) -> Sequence[object] | None:
    """The declared classes, or "infer"; None where neither is given."""
    from labeldp.privacy.encode import INFER

    given = [
        name for name, there in (("--classes", listed), ("--classes-file", file), ("--infer-classes", infer or None)) if there is not None
    ]
    if len(given) > 1:
        raise typer.BadParameter(
            f"Expected one of --classes, --classes-file and --infer-classes, got {' and '.join(given)}. Leave one out."
        )
    if null_class and (infer or not given):
        raise typer.BadParameter("Expected --null-class beside declared classes, got none. Add --classes.")
    if infer or not given:
        return INFER if infer else None
    names = split(listed) if file is None else lines_of(file)
    return [*(names or ()), *([None] if null_class else [])]


def required(classes: Sequence[object] | None) -> Sequence[object]:
    """The classes, where a command cannot go on without."""
    from labeldp.privacy.encode import undeclared

    if classes is None:
        raise typer.BadParameter(undeclared().cli)
    return classes


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
