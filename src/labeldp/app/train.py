# SPDX-License-Identifier: Apache-2.0
"""`labeldp train` and `labeldp predict`: learn a table's private labels, store the model, predict
other rows with it.

Raw labels are charged once, when the estimator draws them. Labels that were released before cost
nothing.

A model's folder holds model.json, the facts for people and programs, and model.skops, from which
alone is predicted; of several label columns column-1.skops and so on. Like a pickle such a file is
code: open those of people you trust.
"""

import copy
import itertools
import json
import math
import os
import warnings
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline

from labeldp import _validate
from labeldp._files import give_usual_rights, own_folder, private_file, sync, write_new
from labeldp.aggregates import Histogram
from labeldp.app._columns import MOST_CATEGORIES, Features, learn_columns, one_hot
from labeldp.custody._encode import INFER, infers
from labeldp.custody._private import PrivateLabels
from labeldp.errors import (
    ChargesUnwarned,
    DomainLeakWarning,
    InvalidInput,
    MissingExtra,
    ReleaseError,
)
from labeldp.evidence._noisy import derived
from labeldp.laws import Grid, Law
from labeldp.laws._columns import MOST_COMBINATIONS, LabelColumns
from labeldp.laws._grid import grid_facts
from labeldp.learn._boosting import LikelihoodBoosting
from labeldp.learn._classifier import FEW_ROWS, LabelDPClassifier
from labeldp.learn._cluster_estimators import ProportionClassifier
from labeldp.learn._corrections import heard_by
from labeldp.learn._data import MAX_CATEGORIES
from labeldp.learn._location import LocationBoosting, LocationModel
from labeldp.learn._regressor import MOST_ROUNDS, LabelDPRegressor, default_regressor
from labeldp.ledger._ledger import Ledger, ledger_of
from labeldp.protocol._estimator import quantiles_of
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
from labeldp.tables._place import Place, manifest_name, workplace
from labeldp.tables._priors import MODEL, answered, read_model
from labeldp.tables._release import all_facts, check_raw, default_dataset
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.engines._local import Progress, declared_codec, silent
from labeldp.tables.formats._parquet import format_of, open_table, table_writer
from labeldp.tables.formats._table import (
    EVIDENCE,
    ColumnsCodec,
    LabelCodec,
    Source,
    check_columns,
    check_type,
    id_array,
    is_text,
    label_codec,
    row_id_array,
    value_type,
)

AUTO, BOOSTING, LINEAR, LIGHTGBM, COUNTS = MODELS = (
    "auto",
    "boosting",
    "linear",
    "lightgbm",
    "counts",
)
# over all columns, from which "auto" is linear: trees could split so many in ways that fit the
# noise
MANY_CATEGORIES = 300
DRAWN, RELEASED = "labels that labeldp drew from raw ones", "released table"
FACTS, FORMAT = "model.json", 3
ESTIMATES = ("estimated_accuracy", "estimated_log_loss", "baseline_accuracy", "baseline_log_loss")
ESTIMATES_OF_NUMBERS = ("estimated_rmse", "estimated_r2", "baseline_rmse")
_FILES = tuple(f"column-{number}.skops" for number in range(1, MOST_COMBINATIONS.bit_length()))
_EXPECTED_FITS = 7  # usual number, for the progress bar


# What to train
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Learning:
    """How a table is learned.

    Parameters
    ----------
    model : {"auto", "boosting", "linear", "lightgbm", "counts"}
        Gradient boosting by scikit-learn or LightGBM; a regression with a weight for each category;
        "counts", private label counts of clusters of the rows, of classes alone; "auto": linear if
        the columns have many categories, else boosting.
    n_stages : int, default=1
        As in `LabelDPClassifier`.
    features, exclude : sequence of str
        Columns to learn from, by default all but label, ids and unit; and columns to leave out.
    """

    model: str = AUTO
    n_stages: int = 1
    features: Sequence[str] | None = None
    exclude: Sequence[str] = ()

    def __post_init__(self) -> None:
        _validate.one_of(MODELS, model=self.model)
        _validate.integer(n_stages=self.n_stages, low=1)
        if self.model == COUNTS and self.n_stages > 1:
            raise InvalidInput(
                "Expected one stage with model='counts', which asks clusters alone, got more. Leave"
                " them out (--stages)."
            )
        if self.model == LIGHTGBM and find_spec("lightgbm") is None:
            raise MissingExtra(
                "Expected lightgbm for this model, which is not installed. pip install"
                " 'labeldp[boost]'"
            )


@dataclass(frozen=True)
class TrainSpec:
    """What to train on, and at which cost.

    Parameters
    ----------
    label : str or sequence of str
        The label column: raw, or as `labeldp release` wrote it. Or several: raw ones those of
        `classes`, or some that were released together. Each has a model of its own, and one charge
        covers all.
    epsilon : float > 0, optional
        Total budget of one row or unit. None for a released table, whose labels are already
        charged.
    classes, id, unit, max_rows_per_unit, dataset, strict
        As in `ReleaseSpec`, for raw labels. With a `Grid` the model learns numbers. Several columns
        have `LabelColumns`.
    law : str or Law, default="auto"
        As in `ReleaseSpec`; of several columns also one of `LabelColumns.law`.
    learn : Learning, optional
    manifest : Path, optional
        The release's manifest, if it is not beside the table.
    released : Path, optional
        The released table from which the rows were taken; their evidence is read there, by id.
    """

    label: str | Sequence[str]
    epsilon: float | None = None
    classes: Sequence[object] | None = None
    id: str | Sequence[str] | None = None
    unit: str | None = None
    max_rows_per_unit: int = 1
    law: str | Law = AUTO
    dataset: str | None = None
    strict: bool = False
    learn: Learning = field(default_factory=Learning)
    manifest: Path | None = None
    released: Path | None = None

    def __post_init__(self) -> None:
        labels, classes = self.labels, self.classes
        names = classes.names if isinstance(classes, LabelColumns) else None
        if (
            not labels
            or len(set(labels)) < len(labels)
            or names not in (None, labels)
            or (classes and not names and len(labels) > 1)
        ):
            raise InvalidInput(
                f"Expected classes of different label columns {_validate.quoted(labels)}, got those"
                f" of {_validate.quoted(names) if names else 'one column'}. Declare"
                " labeldp.LabelColumns of these names, in this order."
            )
        if self.learn.model == COUNTS and (
            len(labels) > 1 or self.law != AUTO or isinstance(classes, Grid)
        ):
            raise InvalidInput(
                "Expected one label column of classes and no law with model='counts', got others."
                " Choose another (--model)."
            )
        if self.epsilon is not None and classes is not None:
            _ = self.as_release  # checks the values
        elif self.epsilon is not None:
            _validate.epsilon(self.epsilon)
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

    @cached_property
    def as_release(self) -> ReleaseSpec:
        """The same draw as a release would make it."""
        law = (
            None if self.law == AUTO and isinstance(self.classes, Grid | LabelColumns) else self.law
        )
        return ReleaseSpec(
            self.name,
            self.classes,  # type: ignore[arg-type]
            self.epsilon,  # type: ignore[arg-type]
            law,
            self.id,
            self.unit,
            self.max_rows_per_unit,
            dataset=self.dataset,
            strict=self.strict,
        )

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The id columns."""
        return () if self.id is None else (self.id,) if isinstance(self.id, str) else tuple(self.id)

    def proven(self, table: Source, ledger: Ledger) -> ProvenLabels | None:
        """Read the proven noisy labels of a released table, compared with the ledger; None if they
        are raw."""
        original, labels = (
            (table if self.released is None else open_table(self.released)),
            self.labels,
        )
        if len(labels) > 1:
            found = proven_together(original, labels, self.manifest, ledger)
        else:
            found = proven(original, labels[0], self.manifest, ledger)
        if found is None and self.released is not None:
            raise unknown(original, labels[0])
        if found is not None and len(labels) == 1 and isinstance(found.noisy.classes, LabelColumns):
            listed = _validate.quoted(found.noisy.classes.names)
            raise InvalidInput(
                f"Expected one of the released columns {listed} to train for, got all of them. Name"
                " one (--label)."
            )
        return (
            found
            if found is None or self.released is None
            else replace(found, noisy=matched(table, found))
        )


def require_classes(labels: Sequence[str], lists: Sequence[Sequence[object]]) -> None:
    """Refuse numbers among several label columns."""
    pairs = zip(labels, lists, strict=True)
    if found := [name for name, values in pairs if isinstance(values, Grid)]:
        raise InvalidInput(
            f"Expected several label columns of classes, got numbers in {_validate.quoted(found)}."
            " Release the columns together, which is one charge (labeldp release), then learn each"
            " from that table by itself, for free."
        )


# Labels
# --------------------------------------------------------------------------------------------------


class _Raw:
    """Raw labels, which the estimator charges and draws."""

    trained_on = DRAWN

    def __init__(
        self,
        table: Source,
        spec: TrainSpec,
        path: Path,
        ledger: Ledger,
        released: ProvenLabels | None,
    ):
        self._table, self._spec, self._path, self._ledger = table, spec, path, ledger
        self._found: Any = released
        self._check()
        self.beside = [*self.ids, *([spec.unit] if spec.unit else [])]
        """The columns of ids and units."""

    def _check(self) -> None:
        """Check as far as possible that the labels are raw, and that an epsilon is given for
        them."""
        spec, table = self._spec, self._table
        check_columns(table, [*spec.labels, *spec.ids, *([spec.unit] if spec.unit else [])])
        check_raw(table, spec.labels, self._ledger)
        if spec.epsilon is None:
            others = filter(None, (of_others(table, label) for label in spec.labels))
            raise next(others, None) or InvalidInput(
                "Expected a released table, or epsilon for raw labels, got neither: nothing says"
                f" that {self._path.name} was released. If it was released, put its manifest"
                f" ({manifest_name(self._path.name)}) beside it again, or name it (--manifest). If"
                " its labels are raw, pass the total budget (--epsilon)."
            )
        for label in spec.labels:
            check_type(label, table.type_of(label))
        _ = spec.as_release  # without classes, the error that says how they are declared

    @property
    def ids(self) -> Sequence[str]:
        """The id columns, which predictions carry."""
        return self._spec.ids

    @cached_property
    def dataset(self) -> str:
        """The data set's name in the ledger."""
        return self._spec.dataset or default_dataset(self._table, self._path.stem)

    @cached_property
    def codec(self) -> LabelCodec:
        """The classes, declared or inferred, or the points of a range."""
        return declared_codec(self._table, self._spec.name, self._spec.classes)

    @cached_property
    def codecs(self) -> tuple[LabelCodec, ...]:
        """The classes of each label column."""
        return self.codec.codecs if isinstance(self.codec, ColumnsCodec) else (self.codec,)

    @property
    def grid(self) -> Grid | None:
        """The points of the range, if the labels are numbers."""
        return self.codec.classes if isinstance(self.codec.classes, Grid) else None

    def feature_names(self) -> tuple[list[str], tuple[str, ...]]:
        """Return the public columns to learn from, and those that releases drew from private ones,
        which are left out."""
        known = {} if self._found is None else self._found.facts
        evidence = known.get("evidence") or _validate.joined(self._spec.labels) + EVIDENCE
        out = {
            *self._spec.labels,
            *self._spec.ids,
            *self.ids,
            str(evidence),
            str(self._spec.unit or ""),
        }
        out |= {Receipt.from_dict(known["receipt"]).unit} if known else set()
        chosen, exclude = self._spec.learn.features, self._spec.learn.exclude
        check_columns(self._table, [*(chosen or ()), *exclude])
        if found := sorted(out & set(chosen or ())):
            raise InvalidInput(
                f"Expected features besides label, ids and unit, got {_validate.quoted(found)}"
                " among them. Leave it out (--features)."
            )
        names = [
            name
            for name in (self._table.names if chosen is None else chosen)
            if name not in out and name not in exclude
        ]
        # No row to be predicted has noisy labels: it lacks the column, or holds raw ones, and its
        # prediction would tell about them.
        noisy = released_columns(self._table, names, self.dataset, self._ledger)
        noisy |= frozenset() if self._found is None else self._found.columns
        left = tuple(name for name in names if name in noisy)
        if left and chosen is not None:
            raise InvalidInput(
                f"Expected public features, got {_validate.quoted(left)}, which a release drew from"
                " a private column: rows to be predicted hold it raw or not at all, and"
                " predictions from raw values would tell about them. Leave it out (--features)."
            )
        return [name for name in names if name not in noisy], left

    def check_roles(self, names: Sequence[str]) -> None:
        """Refuse features, ids and units that are private in this data set: no charge covers a
        model of them, or ids of predictions. And ids and label columns for which two columns of the
        predictions would have one name."""
        taken = list(dict.fromkeys([*names, *self.beside]))
        # what is proven to be noisy is no feature
        check_unchanged(taken, self.dataset, self._ledger)
        facts = all_facts(self._table) if self.trained_on == DRAWN else ()
        warn_of_names(taken, self.dataset, self._ledger, facts)
        columns = [*dict.fromkeys(self.ids)]
        for codec in self.codecs:
            prediction, probabilities = _names_of(
                codec.classes, codec.column if len(self.codecs) > 1 else None
            )
            columns += [prediction, *([] if isinstance(codec.classes, Grid) else probabilities)]
        if again := next((name for name, count in Counter(columns).items() if count > 1), None):
            raise InvalidInput(
                f"Expected predictions of different names, got two columns {again!r} of the ids"
                f" {_validate.quoted(self.ids)}, the label columns"
                f" {_validate.quoted(codec.column for codec in self.codecs)} and their classes."
                " Rename a column."
            )

    def read(self, features: Features, progress: Progress) -> tuple[pa.Table, dict[str, Any]]:
        """Read all rows: the features, and what `fit` gets beside them."""
        spec, read, beside, done, raw = (
            self._spec,
            list[pa.Table](),
            list[Any](),
            0,
            self.trained_on == DRAWN,
        )
        names = [*spec.labels, *self.beside] if raw else self.ids
        for batch in self._table.batches(list(dict.fromkeys([*features.names, *names]))):
            read.append(features.read(batch))
            units = id_array(batch, spec.unit) if raw and spec.unit else None
            beside.append(
                (
                    self.codec.read(batch) if raw else None,
                    row_id_array(batch, tuple(self.ids)),
                    units,
                )
            )
            done += batch.extent
            progress("read", done, self._table.extent)
        if not read:
            raise InvalidInput(f"Expected rows, got none in {self._path.name}.")
        codes, ids, units = (
            None if each[0] is None else np.concatenate(each) for each in zip(*beside, strict=True)
        )
        return pa.concat_tables(read), {"codes": codes, "ids": ids, "units": units}

    def settings(self) -> dict[str, Any]:
        """Return the parameters of the draw."""
        spec, learn = self._spec, self._spec.learn
        own = {} if learn.model == COUNTS else {"law": spec.law, "stages": learn.n_stages}
        return own | {"epsilon": spec.epsilon}

    def fit(self, model: Any, X: Any, beside: Mapping[str, Any]) -> None:
        """Fit the estimator, which charges."""
        spec, codes, ids, units = self._spec, beside["codes"], beside["ids"], beside["units"]
        classes = self.codec.classes
        domain: dict[str, Any]
        if self.grid is not None:
            # a point has the code of the number that it stands for
            codes, domain = np.asarray(self.grid, np.float64)[codes], {"range": self.grid}
        else:
            # inferred ones all occur as codes
            domain = {"classes": INFER if infers(spec.classes) else _coded(classes)}
        if isinstance(classes, LabelColumns):
            codes = dict(zip(classes.names, classes.parts(codes), strict=True))
        if ids is not None:
            ids = dict(zip(spec.ids, ids.T if ids.ndim > 1 else [ids], strict=True))
        labels = PrivateLabels(
            codes,
            **domain,
            dataset=self.dataset,
            column=spec.name,
            ids=ids,
            unit=None if units is None else {str(spec.unit): units},
            max_rows_per_unit=spec.max_rows_per_unit,
            ledger=self._ledger,
        )
        model.fit(X, labels)

    def facts(self, model: Any, n_rows: int) -> dict[str, Any]:
        """Return model.json's facts about labels, guarantee and quality."""
        spent = model.privacy_
        guarantee = {"unit": spent.unit, "epsilon": spent.epsilon, "delta": spent.delta}
        guarantee |= {"except_for": spent.except_for} if spent.except_for else {}
        parts = model.estimators_ if len(self.codecs) > 1 else [model]
        names = ESTIMATES if self.grid is None else ESTIMATES_OF_NUMBERS
        columns = [
            {
                "label": codec.column,
                "label_type": str(codec.column_type),
                "classes": list(codec.classes),
            }
            | grid_facts(codec.classes)
            | {name: _estimate(getattr(part, f"{name}_", None)) for name in names}
            for codec, part in zip(self.codecs, parts, strict=True)
        ]
        return {
            "format": FORMAT,
            "guarantee": guarantee if spent.secure else None,
            "insecure": not spent.secure,
            **(columns[0] if len(columns) == 1 else {"label": self._spec.name, "columns": columns}),
            "classes_inferred": WHICH_CLASSES in spent.except_for,
            "trained_on": self.trained_on,
            "evidence": spent.evidence,
            # a released table has no rows over the cap
            "rows": n_rows - (spent.rows_over_the_cap if self.trained_on == DRAWN else 0),
            "rows_over_the_cap": spent.rows_over_the_cap,
            "ids": list(self.ids),
            "receipts": [each.to_dict() for each in model.receipts_],
        }


class _Released(_Raw):
    """Labels of a released table, proven to be those that were drawn; training on them costs
    nothing."""

    trained_on = RELEASED

    def _check(self) -> None:
        """Refuse what the release says itself: ignoring a contradiction would mislead."""
        spec, facts = self._spec, self._found.facts
        receipt = Receipt.from_dict(facts["receipt"])
        if spec.learn.model == COUNTS:
            raise InvalidInput(
                "Expected raw labels with model='counts', got noisy ones, whose clusters cannot be"
                " asked. Choose another."
            )
        if isinstance(classes := self._found.noisy.classes, LabelColumns):
            known = dict(zip(classes.names, classes.lists, strict=True))
            require_classes(spec.labels, [known[label] for label in spec.labels])
        name = spec.law.name if isinstance(spec.law, Law) else spec.law.partition(":")[0]
        given = {
            "epsilon": spec.epsilon is not None,
            "classes": spec.classes is not None,
            "id": spec.ids not in ((), tuple(facts.get("id") or ())),
            "unit": spec.unit not in (None, receipt.unit),
            "max-rows-per-unit": spec.max_rows_per_unit not in (1, receipt.max_rows_per_unit),
            "stages": spec.learn.n_stages > 1,
            "law": name not in (AUTO, facts["law"]["law"]),
        }
        if stated := [f"--{option}" for option, is_given in given.items() if is_given]:
            raise InvalidInput(
                f"Expected no {', '.join(stated)} with a released table, which says this itself:"
                " its labels are proven and paid for. Leave it out."
            )

    @property
    def ids(self) -> Sequence[str]:
        """The id columns of the release."""
        return tuple(self._found.id_names)

    @cached_property
    def dataset(self) -> str:
        """The data set's name in the ledger, by the receipt."""
        return Receipt.from_dict(self._found.facts["receipt"]).dataset

    @cached_property
    def codec(self) -> LabelCodec:
        """The classes of the release, or the range of its numbers."""
        grid = self._found.noisy.classes
        found: LabelCodec = self._found.codec
        if isinstance(found, ColumnsCodec):
            return ColumnsCodec(
                [found.codecs[found.columns.index(label)] for label in self._spec.labels]
            )
        if not isinstance(grid, Grid):
            return found
        return label_codec(
            grid, found.column, found.column_type, text_table=is_text(value_type(found.column_type))
        )

    def settings(self) -> dict[str, Any]:
        """Return the parameters without those of a draw; of several columns those to learn."""
        columns = self.codec.classes
        wanted = {"columns": columns.names} if isinstance(columns, LabelColumns) else {}
        return {"epsilon": 1.0} | wanted  # epsilon is unused

    def fit(self, model: Any, X: Any, beside: Mapping[str, Any]) -> None:
        """Fit the estimator, which draws nothing."""
        noisy = self._found.noisy
        classes = _coded(noisy.classes) if self.grid is None else self.grid
        # X was read from the same rows; where they have ids, these match each row to its label.
        model.fit(X, derived(noisy, classes=classes, order="labels"), ids=beside["ids"])


def _coded(classes: Sequence[object]) -> Sequence[object]:
    """Return the codes of classes, of several columns those of each; the points of numbers among
    the columns stay."""
    if not isinstance(classes, LabelColumns):
        return tuple(range(len(classes)))
    lists = (values if isinstance(values, Grid) else range(len(values)) for values in classes.lists)
    return LabelColumns(dict(zip(classes.names, lists, strict=True)))


def _estimate(found: Any) -> dict[str, float | bool | None] | None:
    """Return an estimate as JSON-ready data; null for what is not finite, as a bound of R^2 may
    be."""
    if found is None:
        return None
    numbers = {"value": found.value, "low": found.low, "high": found.high}
    return {
        name: float(value) if math.isfinite(value) else None for name, value in numbers.items()
    } | {"tells": bool(found.tells)}


# Models
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TableModel:
    """A model of one label column, as its file holds it.

    Attributes
    ----------
    label : str
    classes : list
        By code; of numbers the points of their range.
    ids : list of str
        The id columns of the training.
    features : Features
    steps : fitted transformer from the features' matrix to the model's, or None
    model : fitted model of class codes, or of numbers
    """

    label: str
    classes: list[Any]
    ids: list[str]
    features: Features
    steps: Any
    model: Any

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that are read."""
        return self.features.names

    def predict_proba(self, rows: Any) -> NDArray[np.float64]:
        """Predict probabilities of the true label for n rows of a table: (n, K)."""
        return answered(
            lambda: self.model.predict_proba(self._inputs(rows)), (len(rows), len(self.classes))
        )

    def predict_numbers(self, rows: Any, q: NDArray[np.float64]) -> NDArray[np.float64]:
        """Predict the mean of each row's number, and these quantiles of it: (n, 1 + m)."""

        def predicted() -> NDArray[np.float64]:
            at, family = self.model.locations(self._inputs(rows)), self.model.family
            return np.column_stack([family.mean(at), family.quantile(at, q)])

        return answered(predicted, (len(rows), 1 + len(q)))

    @property
    def of_numbers(self) -> bool:
        """Whether the labels are numbers of a range."""
        return isinstance(self.model, LocationModel)

    def _inputs(self, rows: Any) -> Any:
        matrix = self.features.matrix(self.features.read(rows))
        return matrix if self.steps is None else self.steps.transform(matrix)


def _estimator(
    name: str, n_rows: int, n_codes: int, grid: Grid | None, settings: dict[str, Any]
) -> Any:
    """Make the estimator to fit; trees are told the columns of category codes."""
    codes = list(range(n_codes)) or None
    if name == COUNTS:
        return ProportionClassifier(random_state=0, **settings)
    if name == LIGHTGBM:
        import lightgbm

        # LightGBM times two orders of summing up and takes the faster one, so a loaded machine
        # could give another model.
        same = {"deterministic": True, "force_row_wise": True, "verbose": -1, "random_state": 0}
    if grid is not None:
        base: Any = (
            Ridge() if name == LINEAR else default_regressor(n_rows, categorical_features=codes)
        )
        if name == LIGHTGBM:
            base = LocationBoosting(lightgbm.LGBMRegressor(n_estimators=MOST_ROUNDS, **same), codes)
        return LabelDPRegressor(base, random_state=0, **settings)
    if name == LIGHTGBM:
        return LabelDPClassifier(
            LikelihoodBoosting(lightgbm.LGBMClassifier(**same), codes), random_state=0, **settings
        )
    if name == LINEAR:
        return LabelDPClassifier(
            make_pipeline(LogisticRegression(max_iter=200)), random_state=0, **settings
        )
    few = n_rows < FEW_ROWS
    # No early stopping of scikit-learn's own: it would measure by noisy labels as if they were
    # true.
    shape = {"max_leaf_nodes": 15, "l2_regularization": 1.0, "early_stopping": False} if few else {}
    trees = HistGradientBoostingClassifier(categorical_features=codes, random_state=0, **shape)
    return LabelDPClassifier(trees, correction="em" if few else "auto", random_state=0, **settings)


def _stored(model: Any) -> Any:
    """Return a fitted estimator's model without what the fit kept and no prediction needs, as the
    likelihood of each row."""
    found = model._model
    if isinstance(found, LocationModel):
        return replace(found, path=None, folds=None)
    boosting: Any = getattr(found.estimator, "estimator_", None)
    if not hasattr(boosting, "booster_"):
        return found
    trees = copy.copy(found.estimator)
    trees.estimator_ = copy.copy(boosting).set_params(objective=None)
    return replace(found, estimator=trees)


# Train
# --------------------------------------------------------------------------------------------------


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
    """Train a model on rows of a table whose labels, classes or numbers, are private.

    Parameters
    ----------
    source : str or Path
        Parquet or CSV: numbers, times and categories, possibly missing.
    out : str or Path
        A new folder for model.json and model.skops, or of several label columns a file for each.
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
    path, target, record, name = Path(source), Path(out), ledger_of(ledger), spec.learn.model
    with _place_of(target):
        pass  # a folder that is taken or cannot be written is refused before there is a model
    with ChargesUnwarned(spec.strict):
        table = open_table(path)
        # Evidence decides what the labels are: proven noisy, or else raw. No option can turn raw
        # labels into proven ones.
        released = spec.proven(table, record)
        labels = (_Raw if released is None else _Released)(table, spec, path, record, released)
        names, noisy_columns = labels.feature_names()
        features, left_out = learn_columns(table, names)
        labels.check_roles(features.names)
        rows, beside = labels.read(features, progress)
        name = (
            (LINEAR if features.n_weights(rows) >= MANY_CATEGORIES else BOOSTING)
            if name == AUTO
            else name
        )
        features = features.fitted(
            rows, MAX_CATEGORIES if name in (BOOSTING, LIGHTGBM) else MOST_CATEGORIES
        )
        X, n_rows, steps = features.matrix(rows), len(rows), None
        model = _estimator(name, n_rows, len(features.categories), labels.grid, labels.settings())
        if name in (LINEAR, COUNTS):
            steps = one_hot(len(features.categories), X.shape[1], sparse=name == LINEAR)
            # a column without any value has mean NaN, which is not used
            with np.errstate(invalid="ignore"):
                X = steps.fit_transform(X)
        fits = itertools.count(1)  # how many there will be is known only at the end
        with (
            warnings.catch_warnings(),
            heard_by(lambda: progress("train", n := next(fits), max(n + 1, _EXPECTED_FITS))),
        ):
            # the codec has warned already, when it inferred the classes
            warnings.simplefilter("ignore", DomainLeakWarning)
            labels.fit(model, X, beside)
    facts = labels.facts(model, n_rows) | {"features": features.to_dict() | {"left_out": left_out}}
    if isinstance(model, ProportionClassifier):
        answer, query = model.aggregate_, cast(Histogram, model.aggregate_.query)
        noise = query.standard_deviation(answer.receipt.max_rows_per_unit)
        facts["clusters"] = {
            "number": len(answer.n_rows),
            "mechanism": query.mechanism,
            "deviation": noise,
        }
    parts = model.estimators_ if len(labels.codecs) > 1 else [model]
    made = [
        TableModel(
            codec.column, list(codec.classes), list(labels.ids), features, steps, _stored(part)
        )
        for codec, part in zip(labels.codecs, parts, strict=True)
    ]
    _save(target, made, facts)
    return TrainedModel(target, facts, noisy_columns)


def _place_of(out: Path) -> Any:
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise ReleaseError(
            f"Expected a new or empty folder for the model, got {out}. Remove it, or choose another"
            " name."
        )
    return workplace(out, "model", FACTS, MODEL, *_FILES)


def _save(out: Path, models: Sequence[TableModel], facts: Mapping[str, object]) -> None:
    """Write the folder, whole or not at all: one rename gives it its name when all files are on
    disk."""
    from skops import io

    names = [MODEL] if len(models) == 1 else _FILES
    files = {
        name: bytes(io.dumps(each, compression=zipfile.ZIP_DEFLATED))
        for name, each in zip(names, models, strict=False)
    }
    files[FACTS] = json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False).encode()
    with _place_of(out) as folder:
        made = folder / "model"
        own_folder(made)
        for name, data in files.items():
            write_new(made / name, data)
            give_usual_rights(made / name)
        give_usual_rights(made)
        sync(made)
        os.replace(made, out)
        sync(out.parent)


# Predict
# --------------------------------------------------------------------------------------------------


def load(path: str | Path, trust: Collection[str] = ()) -> list[TableModel]:
    """Read the models of a folder that `train` wrote, one for each label column; or of one of its
    files."""
    place = Path(path)
    files = (
        [place]
        if place.is_file()
        else [place / name for name in (MODEL, *_FILES) if (place / name).exists()]
    )
    if not files:
        raise ReleaseError(
            f"Expected the folder of a model, got {place}, which has no {MODEL}. Check the path."
        )
    found = [read_model(file.read_bytes(), str(file), trust) for file in files]
    if not all(isinstance(each, TableModel) for each in found):
        raise InvalidInput(
            f"Expected a model that labeldp train wrote, got another one in {place}."
        )
    return found


def predict(
    model: str | Path,
    source: str | Path,
    out: str | Path,
    trust: Collection[str] = (),
    progress: Progress = silent,
    *,
    quantiles: Sequence[float] = (),
) -> int:
    """Predict every row of a table and write the predictions.

    Parameters
    ----------
    model : str or Path
        A folder that `train` wrote, or its file of one label column.
    source : str or Path
        A table with the columns that the model was trained on, in Parquet or CSV.
    out : str or Path
        Parquet or CSV, with one row for each row of `source`, in the same order: the id columns of
        the training that `source` has, `prediction`, and `probability_CLASS` for each class; of
        several label columns `prediction_LABEL` and `probability_LABEL_CLASS` for each of them. Of
        numbers the prediction is the mean, and `quantile_Q` a quantile. Ids keep their type.
    trust : collection of str, default=()
        Types in the model's file that the user trusts, beyond those that labeldp knows.
    progress : function of (phase, done, total), optional
    quantiles : sequence of float in (0, 1), default=()
        Of a model of numbers.

    Returns
    -------
    int
        The number of rows; returned when the file is on disk.

    Raises
    ------
    InvalidInput
        If the folder is no model, the rows lack its columns, or quantiles are wanted that it does
        not have.
    ReleaseError
        If the output exists or cannot be written.
    """
    wanted = {
        f"quantile_{float(q):g}": float(q)
        for q in (quantiles_of(quantiles) if len(quantiles) else ())
    }
    models, table, target = load(model, trust), open_table(Path(source)), Path(out)
    if wanted and not all(each.of_numbers for each in models):
        raise InvalidInput(
            "Expected quantiles of numbers, got a model of classes, which have none. Leave them out"
            " (--quantile)."
        )
    check_columns(table, models[0].reads)
    format_of(target)  # refuses any other ending
    if target.exists():
        raise ReleaseError(
            f"Expected a new name for the output, got {target}, which exists. Remove it, or choose"
            " another name."
        )
    with workplace(target) as folder:
        # The file gets its name in one step when it is complete, so a kill leaves no half of it
        # under this name.
        ids = [name for name in models[0].ids if name in table.names]
        rows = _write(
            _predictions(models, table, ids, wanted, progress),
            private_file(folder / target.name),
            table,
        )
        Place.of(folder / target.name).move(Place.of(target))
    return rows


def _predictions(
    models: Sequence[TableModel],
    table: Source,
    ids: Sequence[str],
    quantiles: Mapping[str, float],
    progress: Progress,
) -> Iterator[pa.RecordBatch]:
    done, q = 0, np.array(list(quantiles.values()), np.float64)
    for batch in table.batches(list(dict.fromkeys([*models[0].reads, *ids]))):
        columns = {name: batch.column(name) for name in ids}
        for each in models:
            prediction, names = _names_of(each.classes, each.label if len(models) > 1 else None)
            if each.of_numbers:
                names, found = [prediction, *quantiles], each.predict_numbers(batch, q)
            else:
                found = each.predict_proba(batch)
                columns[prediction] = pa.array(each.classes).take(pa.array(found.argmax(axis=1)))
            columns |= dict(zip(names, map(pa.array, found.T), strict=True))
        yield pa.record_batch(columns)
        done += batch.extent
        progress("predict", done, table.extent)


def _names_of(classes: Sequence[object], label: str | None) -> tuple[str, list[str]]:
    """Name the columns of the prediction and of each class's probability; with the label of one of
    several label columns."""
    told = "" if label is None else f"_{label}"
    return f"prediction{told}", [
        f"probability{told}_{'' if value is None else value}" for value in classes
    ]


def _write(batches: Iterator[pa.RecordBatch], path: Path, table: Source) -> int:
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
