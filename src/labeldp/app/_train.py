# SPDX-License-Identifier: Apache-2.0
"""`labeldp train` and `labeldp predict`: train a model on a table's rows and store its folder;
predict each row with it.

Raw labels are charged once, when the classifier draws them. Labels that were released before, or
are declared to be noisy, cost nothing.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from labeldp import _validate
from labeldp._files import path_text, private_file
from labeldp.app._learners import (
    AUTO,
    CLUSTER_MODELS,
    ESTIMATES,
    MODELS,
    NUMBER_MODELS,
    ClustersSpec,
    HistogramSpec,
    NetOptions,
    PaperSpec,
    learner_for,
    needs_torch,
    require_of_several,
)
from labeldp.app._model import (
    StoredModel,
    check_place,
    load_models,
    require_numbers,
    save_model,
    save_models,
)
from labeldp.custody._draw import law_per_row
from labeldp.custody._encode import INFER, infers
from labeldp.deep._named import require_torch
from labeldp.errors import ChargesUnwarned, DomainLeakWarning, InvalidInput, ReleaseError
from labeldp.evidence import NoisyLabels
from labeldp.evidence._noisy import derived, label_law
from labeldp.inputs import Inputs
from labeldp.inputs._arrays import ArrayTable, is_arrays, learn_array
from labeldp.inputs._columns import learn_columns
from labeldp.inputs._images import ImageInputs, NamesOfFiles, learn_images
from labeldp.laws import Grid, Law, parse_law
from labeldp.laws._columns import LabelColumns
from labeldp.laws._grid import grid_facts
from labeldp.learn._corrections import CORRECTIONS, heard_by
from labeldp.learn._several import drawn_together
from labeldp.ledger._database import per_row_epsilon
from labeldp.ledger._ledger import Ledger, ledger_of
from labeldp.protocol._estimator import TopK, quantiles_of
from labeldp.protocol._fit import stage_shares
from labeldp.receipt import WHICH_CLASSES, Receipt, guarantee_text
from labeldp.tables._evidence import (
    ProvenLabels,
    check_unchanged,
    matched,
    of_others,
    proven,
    proven_together,
    released_columns,
    unknown,
    warn_of_names,
)
from labeldp.tables._place import Place, manifest_path, workplace
from labeldp.tables._release import all_facts, check_raw, default_dataset
from labeldp.tables._spec import ReleaseSpec, declared_or_infer, law_of
from labeldp.tables.engines._local import Progress, declared_codec, silent
from labeldp.tables.formats._parquet import (
    DatasetSource,
    check_ending,
    is_parquet,
    open_table,
    table_writer,
)
from labeldp.tables.formats._table import (
    EVIDENCE,
    ColumnsCodec,
    LabelCodec,
    Readable,
    Source,
    check_columns,
    check_type,
    id_array,
    is_text,
    label_codec,
    parse_classes,
    row_id_array,
    value_type,
)

# usual number, for the progress bar: 2 rounds on each of two halves and on the whole, and the final
# refit
_EXPECTED_FITS = 7
DEFAULT_INPUTS = "X"
PREDICTION, PROBABILITY, QUANTILE = "prediction", "probability_", "quantile_"
ESTIMATES_OF_NUMBERS = ("estimated_rmse", "estimated_r2", "baseline_rmse")


@dataclass(frozen=True)
class InputsSpec:
    """The inputs of a training; by default all columns of a table except label, ids and unit.

    Parameters
    ----------
    features, exclude : sequence of str
        Columns of a table to learn from, and columns to leave out.
    image : str, optional
        Column of images: bytes of image files, or names of files.
    images : Path, optional
        Folder of these files; default: the table's folder.
    array : str, optional
        Name of the array of inputs in an .npz file; default: "X".
    labels : Path, optional
        Another .npz or .npy file, with the labels, ids and units for an array.
    """

    features: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    image: str | None = None
    images: Path | None = None
    array: str | None = None
    labels: Path | None = None

    def open(self, path: Path, label: str) -> Source | ArrayTable:
        """Open the table, or the array file with its labels' file."""
        if is_arrays(path):
            self._refuse(
                "a table",
                "arrays",
                image=self.image,
                images=self.images,
                features=self.features,
                exclude=self.exclude or None,
            )
            if self.labels is not None and not is_arrays(self.labels):
                raise InvalidInput(
                    f"Expected labels in an .npz or .npy file, got {self.labels.name}. Save them"
                    " with numpy.save or numpy.savez."
                )
            return ArrayTable(
                path,
                self.array or DEFAULT_INPUTS,
                None if self.labels is None else (self.labels, label),
            )
        self._refuse("an .npz or .npy file", path.name, inputs=self.array, labels=self.labels)
        if self.image is None and self.images is not None:
            raise InvalidInput(
                "Expected the column of images with their folder, got none. Name it (--image)."
            )
        if self.image is not None:
            self._refuse(
                "the columns of a table",
                "images",
                features=self.features,
                exclude=self.exclude or None,
            )
        return open_inputs(path)

    @staticmethod
    def _refuse(what: str, got: str, **options: object) -> None:
        if given := [f"--{name}" for name, value in options.items() if value is not None]:
            raise InvalidInput(
                f"Expected {' and '.join(given)} with {what}, got {got}. Leave"
                f" {'it' if len(given) == 1 else 'them'} out."
            )


@dataclass(frozen=True)
class EvidenceSpec:
    """The evidence that labels are noisy, other than the table's own manifest or metadata.

    Parameters
    ----------
    manifest : Path, optional
        The release's manifest.
    released : Path, optional
        The released table from which the rows were taken; their evidence is read there, by id.
    declared : bool, default=False
        Whether the user declares the label column noisy, by a law that the specification names.
    """

    manifest: Path | None = None
    released: Path | None = None
    declared: bool = False

    def __post_init__(self) -> None:
        if self.declared and (self.manifest or self.released):
            raise InvalidInput(
                "Expected declared labels without a manifest or released table, got both. What is"
                " released is not declared."
            )

    def read(self, source: Source, labels: Sequence[str], ledger: Ledger) -> ProvenLabels | None:
        """Read the proven noisy labels of a table, compared with the ledger; None if they are raw
        or declared."""
        original = source if self.released is None else open_table(self.released)
        label = labels[0]
        if len(labels) > 1:
            found = proven_together(original, labels, self.manifest, ledger)
        else:
            found = proven(original, label, self.manifest, ledger)
        if found is None and self.released is not None:
            raise unknown(original, label, ledger)
        if found is not None and self.declared:
            raise InvalidInput(
                f"Expected declared labels of another mechanism, got proven ones in {label!r}."
                " Leave it out (--noisy)."
            )
        if found is not None and self.released is not None:
            return replace(found, noisy=matched(source, found))
        return found


@dataclass(frozen=True)
class TrainSpec:
    """What to train on, with which model, and at which cost.

    Parameters
    ----------
    label : str or sequence of str
        The label column: raw, or as `labeldp release` wrote it. Or several, of raw labels those of
        `classes`; of a released table some of those that were released together. Each has a model
        of its own, and one charge covers all.
    epsilon : float > 0, optional
        Total budget of one row or unit. None for a released table, whose labels are already
        charged.
    classes, id, unit, max_rows_per_unit, dataset
        As in `ReleaseSpec`, for raw labels; these need `classes`. With a `Grid` the model learns
        numbers. Several columns have `LabelColumns`.
    strict : bool
        Refuse, before the charge, what would give a warning before it, as in `ReleaseSpec`; also
        categories that the model counts as one, and a learning rate that is too high. False by
        default.
    law : str or Law, default="auto"
        A law's name, as in `ReleaseSpec`; of several columns also one of `LabelColumns.law`.
    n_stages, stage_sizes, prior_temperature, top_k_filter, correction
        As in `LabelDPClassifier`. A net's loss is its correction: "auto" and "likelihood" are the
        default, "em" is `posterior_loss`, "debias" `debiased_loss`, and "none" `cross_entropy`.
    random_state : int >= 0, default=0
        Seed of the training; the noise never depends on it.
    model : str, default="auto"
        One of `MODELS`: a net by name; "proportions", private label counts per cluster of rows;
        "noise-cluster", one private vote per cluster; "boosting", "lightgbm" or "xgboost", gradient
        boosting by scikit-learn or these libraries; "linear", a logistic regression with a weight
        for each category; or "auto": a small convnet for images, linear if a table's columns have
        many categories, else boosting. Numbers are learned by one of `NUMBER_MODELS`; "linear" is
        then a ridge regression.
    net : NetOptions, optional
    inputs : InputsSpec, optional
        The inputs to learn from.
    prior : ClustersSpec, or of numbers HistogramSpec, optional
        Prior from clusters of the inputs, paid from a part of epsilon.
    recipe : PaperSpec, optional
        Recipe of a source paper, which decides law, stages and correction, and trains on all rows,
        so that no quality is estimated. For raw labels.
    evidence : EvidenceSpec, optional
        Evidence that proves a released table; or the declaration that another mechanism drew the
        labels, by `law` at `epsilon`: then nothing is charged, and nothing is proven.
    """

    label: str | Sequence[str]
    epsilon: float | None = None
    classes: Sequence[object] | None = None
    id: str | Sequence[str] | None = None
    unit: str | None = None
    max_rows_per_unit: int = 1
    law: str | Law = "auto"
    n_stages: int = 1
    stage_sizes: tuple[float, ...] | None = None
    prior_temperature: float = 1.0
    top_k_filter: TopK | None = None
    correction: str = "auto"
    dataset: str | None = None
    strict: bool = False
    random_state: int = 0
    model: str = AUTO
    net: NetOptions = field(default_factory=NetOptions)
    inputs: InputsSpec = field(default_factory=InputsSpec)
    prior: ClustersSpec | HistogramSpec | None = None
    recipe: PaperSpec | None = None
    evidence: EvidenceSpec = field(default_factory=EvidenceSpec)

    def __post_init__(self) -> None:
        if self.evidence.declared and (
            self.epsilon is None
            or self.classes is None
            or infers(self.classes)
            or self.law == "auto"
        ):
            raise InvalidInput(
                "Expected law, epsilon and classes of noisy labels, got less: --law rr --epsilon E"
                " --classes A,B."
            )
        if self.epsilon is not None:
            _validate.epsilon(self.epsilon)
        _validate.integer(max_rows_per_unit=self.max_rows_per_unit, low=1)
        _validate.integer(n_stages=self.n_stages, low=1)
        self._check_stages()
        _validate.integer(random_state=self.random_state, low=0)
        _validate.one_of(MODELS, model=self.model)
        if self.prior is not None:
            self.prior.require_less_than(self.epsilon)
        if self.recipe is not None:
            self.recipe.require_alone([name for name, there in self._of_noise().items() if there])
            if self.model in CLUSTER_MODELS:
                raise InvalidInput(
                    f"Expected no recipe with model={self.model!r}, which asks clusters alone."
                    " Choose another model."
                )
        unused = (
            self.prior is not None
            or self.law != "auto"
            or self.n_stages > 1
            or self.correction != "auto"
        )
        if self.model in CLUSTER_MODELS and unused:
            raise InvalidInput(
                f"Expected no prior, law, stages or correction with model={self.model!r}, which"
                " asks clusters alone. Leave them out."
            )
        if self.max_rows_per_unit > 1 and self.unit is None:
            raise InvalidInput(
                "Expected unit= with max_rows_per_unit > 1, got none. Name the column that says"
                " whose row it is."
            )
        if self.classes is not None:
            object.__setattr__(self, "classes", declared_or_infer(self.classes, strict=self.strict))
        self._check_columns()
        if isinstance(self.classes, Grid):
            self.require_for_numbers()
        elif isinstance(self.prior, HistogramSpec):
            raise InvalidInput(
                "Expected --prior histogram with numbers only, got classes. Add --range, or take"
                " --prior clusters."
            )

    def _check_columns(self) -> None:
        """Refuse what several label columns cannot have."""
        labels, classes = self.labels, self.classes
        if len(set(labels)) < len(labels):
            raise InvalidInput(
                f"Expected different label columns, got one twice in {_validate.quoted(labels)}."
                " Name each one once."
            )
        names = classes.names if isinstance(classes, LabelColumns) else None
        if (
            not labels
            or (names is not None and names != labels)
            or (classes is not None and names is None and len(labels) > 1)
        ):
            raise InvalidInput(
                f"Expected classes of the label columns {_validate.quoted(labels)}, got those of"
                f" {_validate.quoted(names) if names else 'one column'}. Declare"
                " labeldp.LabelColumns of these names, in this order."
            )
        if len(labels) == 1:
            return
        if self.evidence.declared:
            raise InvalidInput(
                "Expected one column of labels that another mechanism drew, got several. Train for"
                " one at a time (--label)."
            )
        require_of_several(self.model)
        if needs_torch(self.model, images=self.inputs.image is not None):
            of_others = {
                "--prior": self.prior is not None,
                f"--correction {self.correction}": self.correction in ("debias", "none"),
            }
            if unfit := [name for name, there in of_others.items() if there]:
                raise InvalidInput(
                    f"Expected no {' or '.join(unfit)} with a net of several label columns, got"
                    " one. Leave it out, or take another model, such as --model linear."
                )
        given = {"--recipe": self.recipe is not None, "--filter": self.top_k_filter is not None}
        if found := [name for name, there in given.items() if there]:
            raise InvalidInput(
                f"Expected {' and '.join(found)} with one label column, got several. Leave it out."
            )
        if isinstance(self.law, Law) and self.prior is not None:
            raise InvalidInput(
                "Expected --split without a prior, which takes a part of epsilon, got both. Leave"
                " it out: the default divides what is left."
            )
        if isinstance(classes, LabelColumns):
            require_classes(labels, classes.lists)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The label columns: one, or several that are learned together."""
        return (self.label,) if isinstance(self.label, str) else tuple(self.label)

    @cached_property
    def name(self) -> str:
        """The name of the label column; of several all names in one text, as receipts show it."""
        return self.labels[0] if len(self.labels) == 1 else _validate.joined(self.labels)

    def require_for_numbers(self) -> None:
        """Refuse what is for classes alone, where the labels are numbers of a range."""
        if self.model not in NUMBER_MODELS:
            raise InvalidInput(
                f"Expected a model of numbers, got {self.model!r}. Choose one of"
                f" {', '.join(NUMBER_MODELS)} (--model)."
            )
        unused = {
            "--correction": self.correction not in (AUTO, "likelihood"),
            "--temperature": self.prior_temperature != 1.0,
            "--filter": self.top_k_filter is not None,
            "--prior clusters": isinstance(self.prior, ClustersSpec),
            "--recipe": self.recipe is not None,
        }
        if given := [name for name, found in unused.items() if found]:
            raise InvalidInput(
                f"Expected {', '.join(given)} with classes only, got numbers of a range. Leave it"
                " out."
            )

    def _of_noise(self) -> dict[str, bool]:
        """Return which options of a law, of stages and of a correction are set, by their names on
        the command line."""
        later = {
            "--stage-sizes": self.stage_sizes is not None,
            "--temperature": self.prior_temperature != 1.0,
            "--filter": self.top_k_filter is not None,
        }
        first = {
            "--law": self.law != "auto",
            "--prior": self.prior is not None,
            "--correction": self.correction != "auto",
        }
        return first | {"--stages": self.n_stages > 1} | later

    def _check_stages(self) -> None:
        """Refuse what says nothing about one stage, and values that no stages can have."""
        _validate.one_of(CORRECTIONS, correction=self.correction)
        _validate.positive(temperature=self.prior_temperature)
        if self.top_k_filter is not None and self.top_k_filter != "mean":
            _validate.integer(filter=self.top_k_filter, low=1)
        given = [
            name
            for name in ("--stage-sizes", "--temperature", "--filter")
            if self._of_noise()[name]
        ]
        if self.n_stages == 1 and given:
            raise InvalidInput(
                f"Expected two or more stages with {', '.join(given)}, got one. Add --stages 2."
            )
        stage_shares(self.n_stages, self.stage_sizes)

    @property
    def ids(self) -> tuple[str, ...]:
        """The id columns."""
        return () if self.id is None else (self.id,) if isinstance(self.id, str) else tuple(self.id)


def require_classes(
    labels: Sequence[str], lists: Sequence[Sequence[object]], *, released: str = ""
) -> None:
    """Refuse numbers among several label columns; of a table that was released together, `released`
    is the name."""
    if found := [
        name for name, values in zip(labels, lists, strict=True) if isinstance(values, Grid)
    ]:
        release = (
            "Release the columns together, which is one charge (labeldp release IN --label"
            f" {','.join(labels)} --range '{found[0]}=LOW:HIGH' ... --out noisy.csv), then learn"
            " each from that table, for free"
        )
        raise InvalidInput(
            f"Expected several label columns of classes, got numbers in {_validate.quoted(found)}. "
            f"{'Learn each column by itself, for free' if released else release} "
            f"(labeldp train {released or 'noisy.csv'} --label {found[0]} --out MODEL)."
        )


@dataclass(frozen=True)
class TrainedModel:
    """The result of a training: its folder, the facts in its model.json, and the released private
    columns, which were left out."""

    path: Path
    facts: Mapping[str, Any]
    noisy_columns: tuple[str, ...] = ()

    @property
    def guarantee(self) -> str:
        """The guarantee in words."""
        known = self.facts["guarantee"] or {"epsilon": math.inf, "delta": 1.0, "unit": "row"}
        return guarantee_text(
            known["epsilon"], known["delta"], known["unit"], known.get("except_for", "")
        )


def train(
    source: str | Path,
    out: str | Path,
    spec: TrainSpec,
    ledger: Ledger | None = None,
    progress: Progress = silent,
) -> TrainedModel:
    """Train a model on rows whose labels, classes or numbers, are private.

    Parameters
    ----------
    source : str or Path
        Parquet or CSV: numbers and categories, possibly missing, or a column of images. Or .npz or
        .npy: an array of numbers or of images. Ids and units are not inputs.
    out : str or Path
        A new folder for model.json and model.skops or, for a net, weights.pt. Of several label
        columns for model.json and a folder of such files for each.
    spec : TrainSpec
    ledger : Ledger, or its path, optional
        Default: the user's own.
    progress : function of (phase, done, total), optional

    Returns
    -------
    TrainedModel
        Returned when the folder is on disk.

    Guarantee
    ---------
    Raw labels: the model is epsilon-label-DP for one row or unit. Released table: post-processing,
    no cost.
    """
    path, target, known = Path(path_text(source)), Path(path_text(out)), ledger_of(ledger)
    _check_apart(target, spec.net.folder)
    with ChargesUnwarned(spec.strict):
        data = TrainingData(
            path, spec.inputs, Columns(spec.labels, spec.ids, spec.unit), spec.evidence, known
        )
        if needs_torch(spec.model, images=spec.inputs.image is not None):
            require_torch()  # before all rows are read, and long before a charge
        # Evidence decides what the labels are: proven noisy, declared noisy, or else raw. No option
        # can turn raw labels into proven ones.
        kind = (
            _Released
            if data.released is not None
            else _Declared
            if spec.evidence.declared
            else _Raw
        )
        labels: _Raw = kind(data, spec, path, known)
        inputs = data.learn_inputs(labels.dataset)
        labels.check_features(inputs.names)
        check_names(labels.codecs, labels.ids)
        learner = learner_for(spec.model, inputs, labels.codec.classes, spec.net, spec.recipe)
        rows = data.read(inputs, labels.codec, progress)
        X, n_rows = learner.prepared(rows.X), len(rows.X)
        model = learner.estimator(spec.random_state, progress, **labels.settings())
        with warnings.catch_warnings(), heard_by(_Fits(progress)):
            # the codec has warned already, when it inferred the classes
            warnings.simplefilter("ignore", DomainLeakWarning)
            labels.fit(model, X, rows)
    parts = learner.parts(model) if len(spec.labels) > 1 else ()
    facts = labels.facts(model, n_rows, parts) | {
        "features": inputs.to_dict(),
        "receipts": [each.to_dict() for each in model.receipts_],
    }
    if parts:
        save_models(target, [learner.result(part) for part in parts], facts)
    else:
        stored, more = learner.result(model)
        facts |= more
        save_model(target, stored, facts)
    return TrainedModel(target, facts, data.noisy_columns)


def _check_apart(out: Path, folder: Path | None) -> None:
    """Check that the model's folder is free, can be written, and does not contain the folder of the
    training's state."""
    check_place(out)
    if folder is not None and out.absolute() in (folder.absolute(), *folder.absolute().parents):
        raise InvalidInput(
            f"Expected the training's state apart from the model, got {folder} for {out}. Name"
            " another folder (--folder)."
        )


# Rows
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """Names of the columns that are not inputs: labels, ids and unit."""

    labels: tuple[str, ...]
    ids: tuple[str, ...]
    unit: str | None

    def __post_init__(self) -> None:
        for role, names in {"id": self.ids, "unit": (self.unit,)}.items():
            if found := [label for label in self.labels if label in names]:
                raise InvalidInput(
                    f"Expected {role} to name public columns, got the label column {found[0]!r}."
                    " Leave it out."
                )

    @property
    def names(self) -> list[str]:
        """Names of all these columns."""
        return [*self.labels, *self.beside]

    @property
    def beside(self) -> list[str]:
        """Names of the columns of ids and units."""
        return [*self.ids, *([self.unit] if self.unit else [])]


@dataclass(frozen=True)
class TrainingRows:
    """All n rows, each field in the order of the table: inputs; class codes, ids and units if they
    are read."""

    X: Any
    codes: NDArray[np.generic] | None
    ids: NDArray[np.generic] | None
    units: NDArray[np.generic] | None


class TrainingData:
    """An open source of training rows, checked for the requested columns.

    Parameters
    ----------
    path : Path
    where : InputsSpec
    columns : Columns
    evidence : EvidenceSpec
    ledger : Ledger

    Attributes
    ----------
    table : Source or ArrayTable
    released : ProvenLabels or None
        The proven noisy labels of a released table; None if its labels are raw or declared.
    noisy_columns : tuple of str
        Columns that are no inputs, since they hold noisy labels of another column or their
        evidence; known with the inputs.
    """

    def __init__(
        self,
        path: Path,
        where: InputsSpec,
        columns: Columns,
        evidence: EvidenceSpec,
        ledger: Ledger,
    ):
        self._path, self._where, self._columns, self._ledger = path, where, columns, ledger
        self.noisy_columns: tuple[str, ...] = ()
        self.table = where.open(path, columns.labels[0])
        if isinstance(self.table, ArrayTable):
            self.released = None
            if evidence.manifest is not None or evidence.released is not None:
                raise InvalidInput(
                    "Expected --manifest and --released with a table, got arrays. Give the released"
                    " table."
                )
        else:
            # Before the label column is required: a released table's labels come from its evidence,
            # wherever the column lies in this copy.
            self.released = evidence.read(self.table, columns.labels, ledger)
            if (
                self.released is not None
                and len(columns.labels) == 1
                and isinstance(self.released.noisy.classes, LabelColumns)
            ):
                listed = _validate.quoted(self.released.noisy.classes.names)
                raise InvalidInput(
                    f"Expected one of the released columns {listed} to train for, got all of them."
                    " Name one (--label)."
                )
        check_columns(self.table, columns.names if self.released is None else columns.beside)
        if where.image is not None:
            check_columns(self.table, [where.image])
            if where.image in (*columns.labels, columns.unit):
                raise InvalidInput(
                    f"Expected a column of images, got {where.image!r}, which is the label or the"
                    " unit. Name another."
                )

    def learn_inputs(self, dataset: str) -> Inputs:
        """Decide from public columns alone how to read the inputs; the ledger knows the private
        ones of this data set."""
        if isinstance(self.table, ArrayTable):
            if self.table.key in self._columns.names:
                raise InvalidInput(
                    f"Expected inputs besides label, ids and unit, got {self.table.key!r} as both."
                    " Name them (--inputs)."
                )
            # Shape and type of the inputs follow from public columns, so the same model is made
            # whatever the labels are.
            return learn_array(self.table)
        if self._where.image is None:
            return learn_columns(self.table, self._feature_names(self.table, dataset))
        return learn_images(self.table, self._where.image, self._where.images or self._path.parent)

    def _feature_names(self, table: Source, dataset: str) -> list[str]:
        """Return the feature columns: all or the chosen ones, except label, ids, unit, and what
        releases drew or added."""
        known: Mapping[str, Any] = {} if self.released is None else self.released.facts
        ids, receipt = known.get("id"), known.get("receipt")
        evidence = known.get("evidence") or _validate.joined(self._columns.labels) + EVIDENCE
        out = {
            *self._columns.names,
            str(evidence),
            *(ids if isinstance(ids, (list, tuple)) else ()),
        }
        if isinstance(receipt, Mapping):
            out.add(receipt["unit"])
        chosen, exclude = self._where.features, self._where.exclude
        check_columns(table, [*(chosen or ()), *exclude])
        if found := sorted(out & set(chosen or ())):
            raise InvalidInput(
                f"Expected features besides label, ids and unit, got {_validate.quoted(found)}"
                " among them. Leave it out (--features)."
            )
        names = [
            name
            for name in (table.names if chosen is None else chosen)
            if name not in out and name not in exclude
        ]
        # No row to be predicted has noisy labels: it lacks the column, or holds raw ones, and its
        # prediction would tell about them.
        noisy = released_columns(table, names, dataset, self._ledger)
        noisy |= frozenset() if self.released is None else self.released.columns
        self.noisy_columns = tuple(name for name in names if name in noisy)
        if self.noisy_columns and chosen is not None:
            raise InvalidInput(
                f"Expected public features, got {_validate.quoted(self.noisy_columns)}, which a"
                " release drew from a private column: rows to be predicted hold it raw or not at"
                " all, and predictions from raw values would tell about them. Leave it out"
                " (--features)."
            )
        return [name for name in names if name not in noisy]

    def read(self, inputs: Inputs, codec: LabelCodec, progress: Progress) -> TrainingRows:
        """Read all rows; of a released table the ids, by which the labels that its evidence has are
        matched."""
        X: list[Any] = []
        beside: list[tuple[NDArray[np.generic] | None, ...]] = []  # codes, ids and units
        known = self._columns.names if self.released is None else self.released.id_names
        # a file named by its class would put the label among the public inputs
        names = self._names_of_files(codec)
        rows = done = 0
        for batch in self.table.batches(list(dict.fromkeys([*inputs.names, *known]))):
            for each in names:
                each.check(batch.column(each.column), rows)
            X.append(inputs.read(batch, rows))
            if self.released is None:
                units = id_array(batch, self._columns.unit) if self._columns.unit else None
                beside.append((codec.read(batch), row_id_array(batch, self._columns.ids), units))
            else:
                beside.append((None, row_id_array(batch, self.released.id_names), None))
            rows, done = rows + len(batch), done + batch.extent
            progress("read", done, self.table.extent)
        if not rows:
            raise InvalidInput(f"Expected rows, got none in {self._path.name}.")
        codes, ids, units = map(_joined, zip(*beside, strict=True))
        return TrainingRows(_joined(X), codes, ids, units)

    def _names_of_files(self, codec: LabelCodec) -> list[NamesOfFiles]:
        """Make the check that refuses image file names that reveal a label, one for each label
        column; none without images."""
        if self._where.image is None:
            return []
        names = [
            NamesOfFiles(self._where.image, each.column, each.classes) for each in codecs_of(codec)
        ]
        if isinstance(self.table, DatasetSource):
            for each in names:
                each.check_layout(self.table.layout)
        return names


def codecs_of(codec: LabelCodec) -> tuple[LabelCodec, ...]:
    """List the codecs of the label columns."""
    return codec.codecs if isinstance(codec, ColumnsCodec) else (codec,)


def _joined(parts: Sequence[Any]) -> Any:
    """Concatenate the batches of one column; None if it is absent."""
    if parts[0] is None:
        return None
    return pa.concat_tables(parts) if isinstance(parts[0], pa.Table) else np.concatenate(parts)


def has_column(path: Path, name: str) -> bool:
    """Tell whether a table has a column of this name."""
    return not is_arrays(path) and name in open_inputs(path).names


def open_inputs(path: Path) -> Source:
    """Open a table; for a folder of images, raise an error that says how to describe them in a
    table."""
    if path.is_dir() and not any(path.rglob("*.parquet")) and not any(path.rglob("*.pq")):
        raise InvalidInput(
            f"Expected a table, got the folder {path}. For images, write a CSV with a column of"
            " names of files and a column of labels, and give that file with --image COLUMN"
            f" --images {path}. No folder may be named like a class: it would show the label."
        )
    return open_table(path)


# Labels
# --------------------------------------------------------------------------------------------------


DRAWN = "labels that labeldp drew from raw ones"  # "raw labels" in model.json of earlier versions


class _Raw:
    """Raw labels, which the estimator charges and draws."""

    trained_on = DRAWN

    def __init__(self, data: TrainingData, spec: TrainSpec, path: Path, ledger: Ledger):
        self._data, self._spec, self._path, self._ledger = data, spec, path, ledger
        self._check()

    def _check(self) -> None:
        """Check as far as possible that the labels are raw, and that an epsilon is given for
        them."""
        manifest = ""
        if not isinstance(self._data.table, ArrayTable):
            check_raw(open_table(self._path), self._spec.labels, self._ledger)
            manifest = (
                f"If it was released, put its manifest ({manifest_path(self._path).name}) beside it"
                " again, or name it (--manifest). "
            )
        if self._spec.epsilon is None:
            tables = [] if isinstance(self._data.table, ArrayTable) else [self._data.table]
            others = (
                of_others(table, label, None, self._ledger)
                for table in tables
                for label in self._spec.labels
            )
            raise next(filter(None, others), None) or InvalidInput(
                "Expected a released table, or epsilon for raw labels, got neither: nothing says"
                f" that {self._path.name} was released. {manifest}If its labels are raw, pass the"
                " total budget (--epsilon)."
            )

    @cached_property
    def dataset(self) -> str:
        """The data set's name in the ledger."""
        table, own = self._data.table, self._path.stem
        return self._spec.dataset or (
            own if isinstance(table, ArrayTable) else default_dataset(table, own)
        )

    def check_features(self, names: Sequence[str]) -> None:
        """Refuse features, ids and units that are private in this data set: no charge covers a
        model of them, or ids beside predictions."""
        taken = list(
            dict.fromkeys(
                [*names, *self._spec.ids, *([self._spec.unit] if self._spec.unit else [])]
            )
        )
        # what is proven to be noisy is no feature
        check_unchanged(taken, self.dataset, self._ledger)
        table, charged = self._data.table, self.trained_on == DRAWN
        warn_of_names(
            taken,
            self.dataset,
            self._ledger,
            all_facts(table) if charged and not isinstance(table, ArrayTable) else (),
        )

    @cached_property
    def codec(self) -> LabelCodec:
        """The classes: declared, or inferred if the specification says so."""
        for label in self._spec.labels:
            check_type(label, self._data.table.type_of(label))
        if len(self._spec.labels) > 1 and self._spec.classes is None:
            listed = ", ".join(self._spec.labels)
            raise InvalidInput(
                f"Expected classes of {len(self._spec.labels)} columns ({listed}), got none."
                " Declare labeldp.LabelColumns({...}).",
                cli=(
                    f"Expected classes of {len(self._spec.labels)} columns ({listed}), got none."
                    " Declare a list each in their order, for example --classes"
                    " 'no,yes;1,2,3,4,5', or one for all."
                ),
            )
        return declared_codec(self._data.table, self._spec.name, self._spec.classes)

    @property
    def codecs(self) -> tuple[LabelCodec, ...]:
        """The classes of each label column."""
        return codecs_of(self.codec)

    @property
    def grid(self) -> Grid | None:
        """The points of the range, if the labels are numbers."""
        return self.codec.classes if isinstance(self.codec.classes, Grid) else None

    def settings(self) -> dict[str, Any]:
        """Return the parameters that all classifiers share, whose classes are codes, or all
        regressors."""
        spec = self._spec
        shared = {
            "epsilon": spec.epsilon,
            "law": spec.law,
            "n_stages": spec.n_stages,
            "stage_sizes": spec.stage_sizes,
            "max_rows_per_unit": spec.max_rows_per_unit,
            "dataset": self.dataset,
            "column": spec.name,
            "ledger": self._ledger,
        }
        if self.grid is not None:
            return shared | {"range": self.grid, "prior": spec.prior}
        of_paper = (
            {}
            if spec.recipe is None
            else spec.recipe.settings(per_row_epsilon(spec.epsilon or 0.0, spec.max_rows_per_unit))
        )
        of_classes = {
            "prior_temperature": spec.prior_temperature,
            "top_k_filter": spec.top_k_filter,
            "correction": spec.correction,
            # inferred classes all occur as codes
            "classes": INFER if infers(spec.classes) else self._codes,
            "prior": spec.prior,
        }
        return shared | of_classes | of_paper

    @property
    def _codes(self) -> Sequence[object]:
        codes = coded(self.codec.classes)
        return codes if isinstance(codes, LabelColumns) else list(codes)

    def fit(self, model: Any, X: Any, rows: TrainingRows) -> None:
        """Fit the estimator, which charges."""
        spec, labels = self._spec, cast(Any, rows.codes)
        if isinstance(self.codec.classes, LabelColumns):
            labels = dict(
                zip(self.codec.classes.names, self.codec.classes.parts(labels), strict=True)
            )
        if self.grid is not None:
            # a point of the grid has the code of the number that it stands for
            labels = np.asarray(self.grid, np.float64)[rows.codes]
        model.fit(
            X, labels, ids=rows.ids, unit=rows.units, id_name=spec.ids or None, unit_name=spec.unit
        )

    def facts(self, model: Any, n_rows: int, parts: Sequence[Any] = ()) -> dict[str, object]:
        """Return model.json's facts about labels, guarantee and quality; `parts`: the models of
        several label columns."""
        spent = model.privacy_
        guarantee = {"unit": spent.unit, "epsilon": spent.epsilon, "delta": spent.delta}
        guarantee |= {"except_for": spent.except_for} if spent.except_for else {}
        judged = {} if parts else self._judged(model)
        return {
            "guarantee": guarantee if spent.secure else None,
            "insecure": not spent.secure,
            **(
                {"label": self._spec.name, "columns": self._of_each(model, parts)}
                if parts
                else self._named(self.codec)
            ),
            "classes_inferred": WHICH_CLASSES in spent.except_for,
            "trained_on": self.trained_on,
            **(
                {}
                if self._spec.recipe is None
                else {"paper": {"recipe": self._spec.recipe.name, "data": self._spec.recipe.data}}
            ),
            "evidence": spent.evidence,
            # a released table has no rows over the cap
            "rows": n_rows - (spent.rows_over_the_cap if self._data.released is None else 0),
            "rows_over_the_cap": spent.rows_over_the_cap,
            **judged,
            "ids": list(self.ids),
        }

    @staticmethod
    def _named(codec: LabelCodec) -> dict[str, object]:
        """Return the facts about a label column."""
        classes = codec.classes
        return {
            "label": codec.column,
            "label_type": str(codec.column_type),
            "classes": list(classes),
            **grid_facts(classes),
        }

    def _judged(self, model: Any) -> dict[str, object]:
        """Return the estimated quality of one column's model."""
        return {
            name: _estimate(getattr(model, f"{name}_", None))
            for name in (ESTIMATES if self.grid is None else ESTIMATES_OF_NUMBERS)
        }

    def _of_each(self, model: Any, parts: Sequence[Any]) -> list[dict[str, object]]:
        """Return the facts about each of several label columns and its model; with the number of
        rows asked about it, if not all were."""
        noisy, found = model.noisy_labels_, []
        for codec, part in zip(self.codecs, parts, strict=True):
            own = noisy if drawn_together(noisy) else noisy.column(codec.column)
            asked = int(own.evidenced.sum())
            more = {"rows_asked": asked} if asked < noisy.evidenced.sum() else {}
            found.append(self._named(codec) | self._judged(part) | more)
        return found

    @property
    def ids(self) -> Sequence[str]:
        """The id columns, which predictions carry."""
        return self._spec.ids


def coded(classes: Sequence[object]) -> tuple[object, ...]:
    """Return the codes of classes, of several columns those of each; the points of numbers among
    the columns stay."""
    if not isinstance(classes, LabelColumns):
        return tuple(range(len(classes)))
    lists = (values if isinstance(values, Grid) else range(len(values)) for values in classes.lists)
    return LabelColumns(dict(zip(classes.names, lists, strict=True)))


class _Noisy(_Raw, ABC):
    """Labels that are noisy already; training on them costs nothing."""

    def _check(self) -> None:
        if self._spec.model in CLUSTER_MODELS or self._spec.prior is not None:
            raise InvalidInput(
                f"Expected raw labels with model={self._spec.model!r} or a prior of clusters, got"
                " noisy ones, whose clusters cannot be asked. Choose another model."
            )
        if self._spec.recipe is not None:
            raise InvalidInput(
                f"Expected raw labels with --recipe {self._spec.recipe.name}, which draws them by a"
                " law of its own, got noisy ones. Leave it out; --correction none learns from"
                " labels of randomized response as LP-1ST does."
            )

    def settings(self) -> dict[str, Any]:
        """Return the parameters that all estimators of such labels share, without those of a
        charge."""
        kept = {"n_stages", "correction", "classes", "max_rows_per_unit", "prior", "range"}
        told = {name: value for name, value in super().settings().items() if name in kept}
        return told | {"epsilon": 1.0, "law": "auto"}  # unused, since nothing is drawn

    @abstractmethod
    def noisy(self, rows: TrainingRows) -> NoisyLabels:
        """Return the noisy labels with their law."""

    def fit(self, model: Any, X: Any, rows: TrainingRows) -> None:
        """Fit the estimator, which draws nothing."""
        noisy = self.noisy(rows)
        classes = coded(noisy.classes) if self.grid is None else self.grid
        # X was read from the same rows; where they have ids, these match each row to its label.
        model.fit(X, derived(noisy, classes=classes, order="labels"), ids=rows.ids)


class _Declared(_Noisy):
    """Labels that another mechanism drew, by a law that the user declares."""

    trained_on = "declared labels"

    def _check(self) -> None:
        super()._check()
        spec = self._spec
        if spec.n_stages > 1:
            raise InvalidInput(
                "Expected no stages of labels that were drawn already, got more than one. Leave"
                " them out (--stages)."
            )
        n_classes, cap = len(spec.classes or ()), spec.max_rows_per_unit
        made = ReleaseSpec(
            spec.name,
            range(n_classes),
            float(spec.epsilon or 0),
            spec.law,
            unit=spec.unit,
            max_rows_per_unit=cap,
        )
        self._law = label_law(law_per_row(law_of(made, n_classes), cap))

    def noisy(self, rows: TrainingRows) -> NoisyLabels:
        """Return the column's labels with the declared law."""
        assert rows.codes is not None
        cap = self._spec.max_rows_per_unit
        return NoisyLabels.from_labels(
            rows.codes,
            self._law,
            ids=rows.ids,
            unit=self._spec.unit or "row",
            max_rows_per_unit=cap,
        )


class _Released(_Noisy):
    """Labels of a released table, proven to be those that were drawn."""

    trained_on = "released table"

    @property
    def dataset(self) -> str:
        """The data set's name in the ledger, by the receipt."""
        return Receipt.from_dict(self._proven.facts["receipt"]).dataset

    @property
    def _proven(self) -> ProvenLabels:
        assert self._data.released is not None
        return self._data.released

    @cached_property
    def codec(self) -> LabelCodec:
        """The classes of the release, or the range of its numbers."""
        found, grid = self._proven.codec, self._proven.noisy.classes
        if isinstance(found, ColumnsCodec):
            return ColumnsCodec(
                [found.codecs[found.columns.index(label)] for label in self._spec.labels]
            )
        if not isinstance(grid, Grid):
            return found
        return label_codec(
            grid, found.column, found.column_type, text_table=is_text(value_type(found.column_type))
        )

    @property
    def ids(self) -> Sequence[str]:
        return self._proven.id_names

    def noisy(self, rows: TrainingRows) -> NoisyLabels:
        """Return the labels of the release."""
        return self._proven.noisy

    def settings(self) -> dict[str, Any]:
        """Return the parameters; a net has a head for every column that was released, of which the
        wanted ones are kept."""
        told, heads = (
            super().settings(),
            len(self.codecs) > 1
            and needs_torch(self._spec.model, images=self._spec.inputs.image is not None),
        )
        return told | ({"classes": coded(self._proven.noisy.classes)} if heads else {})

    def facts(self, model: Any, n_rows: int, parts: Sequence[Any] = ()) -> dict[str, object]:
        """Return model.json's facts, with the number of rows that were asked about this column, if
        others were asked about others."""
        asked = int(self._proven.noisy.evidenced.sum())
        return super().facts(model, n_rows, parts) | (
            {"rows_asked": asked} if asked < n_rows and len(self.codecs) == 1 else {}
        )

    def _check(self) -> None:
        """Compare the specification with the release: a contradiction is an error, since ignoring
        it would mislead."""
        super()._check()
        if isinstance(self.codec.classes, Grid):
            self._spec.require_for_numbers()
        if isinstance(self._proven.noisy.classes, LabelColumns):
            known = dict(
                zip(self._proven.noisy.classes.names, self._proven.noisy.classes.lists, strict=True)
            )
            require_classes(
                self._spec.labels,
                [known[label] for label in self._spec.labels],
                released=self._path.name,
            )
        spec, facts, receipt = (
            self._spec,
            self._proven.facts,
            Receipt.from_dict(self._proven.facts["receipt"]),
        )
        if spec.epsilon is not None:
            raise InvalidInput(
                f"Expected no epsilon for a released table, got {spec.epsilon!r}: its labels are"
                " proven and paid for. Leave it out (--epsilon)."
            )
        ids, law, quoted = facts.get("id") or [], facts["law"], _validate.quoted
        checks = (
            (
                "--stages",
                spec.n_stages > 1,
                "one draw, made by the release",
                f"{spec.n_stages} stages",
            ),
            (
                "--law",
                _other_law(spec.law, law),
                f"the law of the release, {law.get('law')}",
                spec.law,
            ),
            (
                "--range" if isinstance(spec.classes, Grid) else "--classes",
                self._other_classes(),
                *self._differing,
            ),
            (
                "--infer-classes",
                infers(spec.classes),
                "the classes of the release",
                "that they be read off",
            ),
            (
                "--id",
                bool(spec.ids) and [*spec.ids] != [*ids],
                f"ids as in the release, {quoted(ids) or 'none'}",
                quoted(spec.ids),
            ),
            (
                "--unit",
                spec.unit not in (None, receipt.unit),
                f"unit {receipt.unit!r} of the release",
                repr(spec.unit),
            ),
            (
                "--max-rows-per-unit",
                spec.max_rows_per_unit not in (1, receipt.max_rows_per_unit),
                "the cap of the release",
                "another",
            ),
        )
        for option, wrong, expected, got in checks:
            if wrong:
                out = (
                    " To keep a column out of the features, name it in --exclude."
                    if option in ("--id", "--unit")
                    else ""
                )
                raise InvalidInput(
                    f"Expected {expected}, got {got}: a released table says this itself. Leave it"
                    f" out ({option}).{out}"
                )

    @property
    def _differing(self) -> tuple[str, str]:
        if self.grid is not None:
            return (
                (
                    f"the range of the release, {self.grid.low:g} to {self.grid.high:g} in"
                    f" {self.grid.points} points"
                ),
                "another",
            )
        return "the classes of the release", "classes in another order, or others"

    def _other_classes(self) -> bool:
        spec = self._spec
        if spec.classes is None or infers(spec.classes):
            return False
        if isinstance(spec.classes, Grid) or self.grid is not None:
            return spec.classes != self.grid
        lists = spec.classes.lists if isinstance(spec.classes, LabelColumns) else (spec.classes,)
        return any(_differ(values, codec) for values, codec in zip(lists, self.codecs, strict=True))


def _differ(values: Sequence[object], codec: LabelCodec) -> bool:
    """Return whether a user's classes differ from those of a released column."""
    text = all(isinstance(value, str) for value in codec.classes)
    return parse_classes(values, codec.column, codec.column_type, text_table=text) != codec.classes


def _other_law(name: str | Law, released: Mapping[str, object]) -> bool:
    """Return whether the user's law differs from that of the release; "auto" never does."""
    if isinstance(name, Law):
        return name.to_dict() != released
    if name == "auto":
        return False
    cls, fields = parse_law(name)
    return any(released.get(key) != value for key, value in ({"law": cls.name} | fields).items())


# Facts about the model
# --------------------------------------------------------------------------------------------------


class _Fits:
    """Reports successive fits of an estimator as progress; their number is known only at the
    end."""

    def __init__(self, progress: Progress):
        self._progress, self._done = progress, 0

    def __call__(self) -> None:
        self._done += 1
        self._progress("train", self._done, max(self._done + 1, _EXPECTED_FITS))


def _estimate(found: Any) -> dict[str, float | bool | None] | None:
    """Return an estimate as JSON-ready data; null for what is not finite, as a bound of R^2 may
    be."""
    if found is None:
        return None
    numbers = {"value": found.value, "low": found.low, "high": found.high}
    return {
        name: float(value) if math.isfinite(value) else None for name, value in numbers.items()
    } | {"tells": bool(found.tells)}


# Predict
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Predictions:
    """The file of predictions, and its number of rows."""

    path: Path
    rows: int


def predict(
    model: str | Path,
    source: str | Path,
    out: str | Path,
    trust: Collection[str] = (),
    progress: Progress = silent,
    *,
    images: Path | None = None,
    device: str = "auto",
    quantiles: Sequence[float] = (),
) -> Predictions:
    """Predict every row of a table and write the predictions.

    Parameters
    ----------
    model : str or Path
        A folder that `train` wrote.
    source : str or Path
        Rows of the kind that the model was trained on: a table, in Parquet or CSV; or .npz or .npy.
    out : str or Path
        Parquet or CSV, with one row for each row of `source`, in the same order: the id columns of
        the training that `source` has, `prediction`, and `probability_CLASS` for each class; of
        several label columns `prediction_LABEL` and `probability_LABEL_CLASS` for each of them. Of
        numbers the prediction is the mean, and `quantile_Q` a quantile. Ids keep their type; whole
        numbers from CSV become int64 in Parquet.
    trust : collection of str, default=()
        Types in the model's file that the user trusts, beyond those that labeldp knows.
    progress : function of (phase, done, total), optional
    images : Path, optional
        Folder of the images that a column names; default: the table's folder.
    device : str, default="auto"
        Device of a net; "auto" is the GPU if there is one.
    quantiles : sequence of float in (0, 1), default=()
        Of a model of numbers.

    Returns
    -------
    Predictions
        Returned when the file is on disk.

    Raises
    ------
    InvalidInput
        If the folder is no model or was changed, the rows lack its columns, or quantiles are wanted
        that it does not have.
    ReleaseError
        If the output exists or cannot be written.
    """
    wanted = _quantiles(quantiles)
    if wanted:
        require_numbers(Path(model))
    models, path, target = (
        load_models(Path(model), trust, device),
        Path(path_text(source)),
        Path(path_text(out)),
    )
    stored = models[0]  # all read the same inputs
    table: Readable = (
        ArrayTable(path, stored.inputs.names[0]) if is_arrays(path) else open_inputs(path)
    )
    check_columns(table, stored.inputs.names, known="which the model was trained on")
    if isinstance(stored.inputs, ImageInputs):
        models = tuple(
            replace(each, inputs=replace(stored.inputs, folder=images or path.parent))
            for each in models
        )
    check_ending(target)
    if target.exists():
        raise ReleaseError(
            f"Expected a new name for the output, got {target}, which exists. Remove it, or choose"
            " another name."
        )
    with workplace(target) as folder:
        # The file gets its name in one step when it is complete, so a kill leaves no half of it
        # under this name.
        kinds = _kinds_of_ids(table, stored.facts.get("ids", []), target)
        rows = _write(
            _predictions(models, table, kinds, wanted, progress),
            private_file(folder / target.name),
            table,
        )
        Place.of(folder / target.name).move(Place.of(target))
    return Predictions(target, rows)


def _quantiles(asked: Sequence[float]) -> dict[str, float]:
    """Check quantiles, and name their columns."""
    names = {
        f"{QUANTILE}{float(q):g}": float(q) for q in (quantiles_of(asked) if len(asked) else ())
    }
    if len(names) < len(asked):
        raise InvalidInput(
            "Expected different quantiles, got one twice. Leave one out (--quantile)."
        )
    return names


def _predictions(
    models: Sequence[StoredModel],
    table: Readable,
    kinds: Mapping[str, pa.DataType],
    quantiles: Mapping[str, float],
    progress: Progress,
) -> Iterator[pa.RecordBatch]:
    several, inputs = len(models) > 1, models[0].inputs
    answers = [
        (
            _answers_of_numbers(each, quantiles)
            if each.of_numbers
            else _answers_of_classes(each, str(each.facts["label"]) if several else None)
        )
        for each in models
    ]
    start = done = 0
    for batch in table.batches(list(dict.fromkeys([*inputs.names, *kinds]))):
        columns = {name: batch.column(name).cast(kind) for name, kind in kinds.items()}
        X = inputs.read(batch, start)
        for answer in answers:
            columns |= answer(X)
        yield pa.record_batch(columns)
        start, done = start + len(batch), done + batch.extent
        progress("predict", done, table.extent)


def _names_of_classes(classes: Sequence[object], label: str | None) -> tuple[str, list[str]]:
    """Name the columns of the prediction and of each class's probability; with the label of one of
    several label columns."""
    told = "" if label is None else f"{label}_"
    prediction = PREDICTION if label is None else f"{PREDICTION}_{label}"
    return prediction, [f"{PROBABILITY}{told}{'' if value is None else value}" for value in classes]


def check_names(codecs: Sequence[LabelCodec], ids: Sequence[str]) -> None:
    """Refuse ids with the name of a column of the predictions, and several label columns whose
    predictions would have one name."""
    several, made = len(codecs) > 1, list[str]()
    for codec in codecs:
        prediction, probabilities = _names_of_classes(
            codec.classes, codec.column if several else None
        )
        made += [prediction, *([] if isinstance(codec.classes, Grid) else probabilities)]
    if not several:
        if taken := next((name for name in ids if name in made), None):
            raise InvalidInput(
                f"Expected ids of other names than the predictions' columns, got {taken!r}. Rename"
                " the column (--id)."
            )
        return
    names = [*dict.fromkeys(ids), *made]
    if again := next((name for name, count in Counter(names).items() if count > 1), None):
        raise InvalidInput(
            f"Expected predictions of different names, got two columns {again!r} of the label"
            f" columns {_validate.quoted(codec.column for codec in codecs)} and their classes."
            " Rename a label column."
        )


def _answers_of_classes(
    stored: StoredModel, label: str | None
) -> Callable[[Any], dict[str, pa.Array]]:
    """Make a function of inputs that returns each row's likeliest class and the probabilities of
    all; `label` as for the names."""
    classes = pa.array(list(stored.classes))
    prediction, names = _names_of_classes(stored.classes, label)

    def answers(X: Any) -> dict[str, pa.Array]:
        chances = stored.predict_proba(X)
        return {prediction: classes.take(pa.array(chances.argmax(axis=1)))} | dict(
            zip(names, map(pa.array, chances.T), strict=True)
        )

    return answers


def _answers_of_numbers(
    stored: StoredModel, quantiles: Mapping[str, float]
) -> Callable[[Any], dict[str, pa.Array]]:
    """Make a function of inputs that returns each row's mean and quantiles."""
    q = np.array(list(quantiles.values()), np.float64)
    return lambda X: dict(
        zip([PREDICTION, *quantiles], map(pa.array, stored.predict_numbers(X, q).T), strict=True)
    )


def _kinds_of_ids(table: Readable, names: Sequence[str], target: Path) -> dict[str, pa.DataType]:
    """Choose the output types of the ids: those of the table, and int64 for a text column that
    holds whole numbers only."""
    kinds = {name: table.type_of(name) for name in names if name in table.names}
    if not table.text or not is_parquet(target):
        return kinds
    whole = set(kinds)
    for batch in table.batches(list(kinds)) if kinds else ():
        # A first pass, since one type must hold for all batches of the output.
        whole -= {name for name in whole if not _are_whole(batch.column(name))}
    return kinds | dict.fromkeys(whole, pa.int64())


def _are_whole(text: pa.Array) -> bool:
    try:
        return bool(text.cast(pa.int64()).cast(text.type).equals(text))
    except pa.ArrowInvalid:
        return False


def _write(batches: Iterator[pa.RecordBatch], path: Path, table: Readable) -> int:
    # The first batch is made before the file, whose schema follows from it; an error of the model
    # then leaves no file.
    first = next(batches, None)
    if first is None:
        raise InvalidInput(f"Expected rows to predict, got none in {table.path.name}.")
    with table_writer(path, first.schema) as writer:
        writer.write_batch(first)
        rows = int(first.num_rows)
        for batch in batches:
            writer.write_batch(batch)
            rows += int(batch.num_rows)
    return rows
