# SPDX-License-Identifier: Apache-2.0
"""A trained model as files: write its folder, read it without running code from it, use it as the
prior of a release.

A folder holds model.json (the facts) and the learned parameters, in formats that run no code:
model.skops is a scikit-learn pipeline from inputs to probabilities; weights.pt is the state_dict of
a net, whose name and parameters are in model.json; booster.txt and booster.json are LightGBM's and
XGBoost's trees, of numbers the sum of all pieces; steps.skops is the preprocessing of a net or of
boosted trees, if they have any.

A folder of models of several label columns holds model.json, with the facts that they share and
those of each, and a folder for each column, column-1 to column-L: a model of this column, which can
be used by itself.

The compiled code of scikit-learn trusts its arrays: a crafted file could make it read beyond their
ends. So every array of a file is checked before use, and only the types listed below are allowed,
unless the user names another one as trusted.
"""

import copy
import hashlib
import io
import json
import math
import os
import tempfile
import types
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE
from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor
from sklearn.preprocessing import OneHotEncoder

from labeldp import _validate
from labeldp._files import give_usual_rights, own_folder, sync, write_new
from labeldp._hash import digest
from labeldp.app._boosters import (
    BOOSTERS,
    SCIKIT_LEARN,
    BoostedLocations,
    BoostedModel,
    booster_from,
    booster_of,
    factor_of,
    locations_from,
    start_of,
)
from labeldp.custody._stream import HISTOGRAM
from labeldp.deep import _named as named
from labeldp.deep._named import load_module
from labeldp.errors import InvalidInput, LabelDPError, ReleaseError
from labeldp.inputs import Inputs, inputs_from_dict
from labeldp.inputs._columns import matrix_of
from labeldp.laws import Grid
from labeldp.laws._columns import MOST_COMBINATIONS, as_classes
from labeldp.laws._grid import classes_of
from labeldp.learn._boosting import HistogramScores
from labeldp.learn._corrections import Model
from labeldp.learn._location import Family, LocationBoosting, LocationModel
from labeldp.protocol._estimator import quantiles_on
from labeldp.tables._place import workplace
from labeldp.tables._priors import OwnHistogram, PriorTable, as_text, ordered_by_value

FORMAT = 2
ONE, SEVERAL = "model", "models"
"""Kinds of folders: the model of one label column, or those of several."""
MODEL, WEIGHTS, STEPS, FACTS = "model.skops", "weights.pt", "steps.skops", "model.json"
_MODELS = (MODEL, WEIGHTS, *BOOSTERS.values())
_DIGESTED = {FACTS: "facts", **dict.fromkeys(_MODELS, "model"), STEPS: "steps"}
_FOLDERS = tuple(f"column-{number}" for number in range(1, MOST_COMBINATIONS.bit_length()))
"""Folders of the models of several label columns: so many columns have two classes each."""
SAFE = frozenset(
    {
        # parts of scikit-learn's histogram gradient boosting and imputer that skops does not trust
        # by itself; `check_estimator` checks them
        "functools.partial",
        "labeldp.learn._location.LocationBoosting",  # a sum of them
        "numpy.dtype",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.utils.validation.check_array",
    }
)


class Predicts(Protocol):
    """A model that predicts probabilities of class codes."""

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict probabilities of the class codes: (n, K)."""
        ...


@dataclass(frozen=True, eq=False)
class NetModel:
    """A net, with its preprocessing if it has any, as a model of the true label."""

    module: Any
    steps: Any = None

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict probabilities of the true label: (n, K)."""
        return named.probabilities(
            self.module, X if self.steps is None else named.as_floats(self.steps.transform(X))
        )


@dataclass(frozen=True, eq=False)
class BoostedSteps:
    """Boosted trees with their preprocessing, as a classifier of class codes."""

    boosted: BoostedModel
    steps: Any = None

    @property
    def classes_(self) -> NDArray[np.int64]:
        """The codes 0..K-1."""
        return self.boosted.classes_

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict probabilities of the class codes: (n, K)."""
        return self.boosted.predict_proba(X if self.steps is None else self.steps.transform(X))


@dataclass(frozen=True, eq=False)
class LocationSteps:
    """Boosted trees with their preprocessing, as a regressor of locations."""

    boosted: BoostedLocations
    steps: Any = None

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predict locations: (n,)."""
        return self.boosted.predict(X if self.steps is None else self.steps.transform(X))


@dataclass(frozen=True)
class StoredModel:
    """A model that was read from its folder.

    Attributes
    ----------
    model : Predicts
    inputs : Inputs
        How a row is read.
    classes : tuple, or Grid
        Class values, by code; of numbers the points of their range.
    facts : mapping
        Content of model.json.
    """

    model: Predicts
    inputs: Inputs
    classes: tuple[object, ...]
    facts: Mapping[str, Any]

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict probabilities of the true label for n rows: (n, K). A damaged file raises
        InvalidInput."""
        return probabilities(self.model, X, len(self.classes))

    @property
    def of_numbers(self) -> bool:
        """Whether the labels are numbers of a range."""
        return isinstance(self.classes, Grid)

    def predict_numbers(self, X: Any, q: NDArray[np.float64]) -> NDArray[np.float64]:
        """Predict the mean of each row's number, and these quantiles of it: (n, 1 + m). A damaged
        file raises InvalidInput."""
        points = np.asarray(self.classes, np.float64)

        def predicted() -> NDArray[np.float64]:
            if isinstance(self.model, LocationModel):
                at = self.model.locations(X)
                return np.column_stack(
                    [self.model.family.mean(at), self.model.family.quantile(at, q)]
                )
            chances = self.model.predict_proba(X)
            return np.column_stack([chances @ points, quantiles_on(points, chances, q)])

        return _answered(predicted, (X.shape[0], 1 + len(q)), "a mean and its quantiles a row")


def check_free(out: Path) -> None:
    """Refuse a folder that exists and is not empty, and a link, which cannot be replaced in one
    step."""
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise ReleaseError(
            f"Expected a new or empty folder for the model, got {out}. Remove it, or choose another"
            " name."
        )


def check_place(out: Path) -> None:
    """Refuse a folder for a model that is taken or cannot be written, before there is a model."""
    check_free(out)
    with _place_of(out):
        pass


def _place_of(out: Path) -> AbstractContextManager[Path]:
    return workplace(out, "model", *_DIGESTED, *_FOLDERS)


def save_model(out: Path, model: Any, facts: Mapping[str, object]) -> None:
    """Write a model's folder, whole or not at all: an estimator, or what the facts name (a net,
    boosted trees) with its preprocessing."""
    _write(out, {"": _files_of(model, facts)})


def save_models(
    out: Path, models: Sequence[tuple[Any, Mapping[str, object]]], facts: Mapping[str, Any]
) -> None:
    """Write the folder of models of several label columns, whole or not at all.

    Parameters
    ----------
    out : Path
        A new or empty folder.
    models : sequence of L pairs (model, facts)
        As `save_model` takes them, with the facts that differ between the models of one training.
    facts : mapping
        The facts that all share; under "columns" a list of L mappings, the facts of each column.
    """
    columns: list[Mapping[str, object]] = facts["columns"]
    shared = {name: fact for name, fact in facts.items() if name not in ("label", "columns")}
    folders = {
        name: _files_of(model, {**shared, **column, **more})
        for name, column, (model, more) in zip(
            _FOLDERS[: len(columns)], columns, models, strict=True
        )
    }
    said = {"format": FORMAT, "kind": SEVERAL} | dict(facts)
    _write(out, {"": {FACTS: _text(said | {"digests": _digests_of_all(said, folders)})}} | folders)


def _files_of(model: Any, facts: Mapping[str, object]) -> dict[str, bytes]:
    """Make the files of one model: its parameters, then the facts with their digests."""
    files = _bytes_of(model, facts)
    said = {"format": FORMAT, "kind": ONE} | dict(facts)
    return files | {FACTS: _text(said | {"digests": _digests(said, files)})}


def _text(facts: Mapping[str, object]) -> bytes:
    return json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False).encode()


def _write(out: Path, folders: Mapping[str, Mapping[str, bytes]]) -> None:
    """Write a new folder with its files and those of folders within it, by their names; "" is the
    folder itself."""
    check_free(out)
    # All files are on disk in a private folder before one rename gives it its name: a crash leaves
    # no half of a model.
    with _place_of(out) as folder:
        made = folder / "model"
        for name, files in folders.items():
            own_folder(made / name)
            for each, data in files.items():
                write_new(made / name / each, data)
                give_usual_rights(made / name / each)
        for name in reversed([*folders]):
            give_usual_rights(made / name)
            sync(made / name)
        os.replace(made, out)
        sync(out.parent)


def _bytes_of(model: Any, facts: Mapping[str, object]) -> dict[str, bytes]:
    from skops import io

    learned, steps = model if isinstance(model, tuple) else (model, None)
    boosting = facts.get("boosting")
    if isinstance(boosting, Mapping) and boosting["library"] in BOOSTERS:
        made = {BOOSTERS[boosting["library"]]: booster_of(learned)}
    elif boosting is not None:
        made = {MODEL: bytes(io.dumps([list(piece) for piece in learned.pieces]))}
    else:
        made = (
            {WEIGHTS: named.weights_of(learned)}
            if "net" in facts
            else {MODEL: bytes(io.dumps(learned))}
        )
    return made | ({} if steps is None else {STEPS: bytes(io.dumps(steps))})


def _digests(facts: Mapping[str, object], files: Mapping[str, bytes]) -> dict[str, str]:
    # Against accidents alone: whoever changes a file on purpose can write its new digest, too.
    found = {_DIGESTED[name]: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}
    return {name: f"sha256:{each}" for name, each in ({"facts": digest(facts)} | found).items()}


def _digests_of_all(
    facts: Mapping[str, object], folders: Mapping[str, Mapping[str, bytes]]
) -> dict[str, str]:
    """Compute the digests of the facts that columns share, and of each column's facts, which have
    those of its files."""
    return {"facts": f"sha256:{digest(facts)}"} | {
        name: f"sha256:{hashlib.sha256(each[FACTS]).hexdigest()}" for name, each in folders.items()
    }


def files_of_model(folder: Path) -> list[Path]:
    """List the files of a model's folder."""
    facts = _facts(folder)
    if "net" not in facts and "boosting" not in facts:
        return [folder / FACTS, folder / MODEL]
    main = folder / (WEIGHTS if "net" in facts else BOOSTERS.get(_library(facts), MODEL))
    return [folder / FACTS, main, *([folder / STEPS] if (folder / STEPS).exists() else [])]


def _library(facts: Mapping[str, Any]) -> str:
    """Return the library of boosted trees."""
    boosting = facts["boosting"]
    if not isinstance(boosting, Mapping) or boosting.get("library") not in (
        SCIKIT_LEARN,
        *BOOSTERS,
    ):
        raise InvalidInput(
            "Expected boosted trees of scikit-learn, LightGBM or XGBoost, got others. The file is"
            " damaged or was changed."
        )
    return str(boosting["library"])


def load_model(folder: Path, trust: Collection[str] = (), device: str = "cpu") -> StoredModel:
    """Read a folder that `save_model` wrote.

    Parameters
    ----------
    trust : collection of str, default=()
        Types that the file may build although neither skops nor labeldp knows them.
    device : str, default="cpu"
        The device of a net; "auto" is the GPU if there is one.

    Raises
    ------
    InvalidInput
        If it is no model's folder, or a file was changed or needs types that are not trusted; the
        message lists these, and nothing is built.
    """
    facts = _facts(folder)
    try:
        files = {path.name: path.read_bytes() for path in files_of_model(folder)[1:]}
    except OSError as error:
        raise ReleaseError(
            f"Expected a model's file, got {error.filename} ({error.strerror})."
        ) from None
    # Before anything is built from the files.
    _check_digests(facts, files, folder)
    try:
        inputs, classes = inputs_from_dict(facts["features"]), classes_of(facts)
        made: Predicts
        if "net" in facts:
            made = _net(facts, files, folder, trust, device)
        elif isinstance(classes, Grid):
            read = _boosted_locations if "boosting" in facts else _scikit_learn
            made = _located(facts["location"], classes, read(facts, files, folder, trust))
        else:
            read = _boosted if "boosting" in facts else _scikit_learn
            made = _corrected(facts, read(facts, files, folder, trust))
        return StoredModel(made, inputs, classes, facts)
    except LabelDPError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
        raise _other_facts(folder) from None


def load_models(
    folder: Path, trust: Collection[str] = (), device: str = "cpu"
) -> tuple[StoredModel, ...]:
    """Read a folder that `save_model` or `save_models` wrote: the model of one label column, or
    that of each.

    See `load_model` for parameters and errors; the models of several columns have the same inputs.
    """
    facts = _facts(folder, (ONE, SEVERAL))
    if facts["kind"] == ONE:
        return (load_model(folder, trust, device),)
    columns = facts.get("columns")
    if (
        not isinstance(columns, list)
        or not 1 < len(columns) <= len(_FOLDERS)
        or not all(isinstance(each, dict) for each in columns)
    ):
        raise _other_facts(folder)
    names = _FOLDERS[: len(columns)]
    try:
        known = {name: {FACTS: (folder / name / FACTS).read_bytes()} for name in names}
    except OSError as error:
        raise ReleaseError(
            f"Expected a model's file, got {error.filename} ({error.strerror})."
        ) from None
    said = {name: fact for name, fact in facts.items() if name != "digests"}
    if "digests" in facts and facts["digests"] != _digests_of_all(said, known):
        raise _changed(folder / FACTS)
    models = tuple(load_model(folder / name, trust, device) for name in names)
    for column, each in zip(columns, models, strict=True):
        if each.facts.get("label") != column.get("label") or each.facts["features"] != facts.get(
            "features"
        ):
            raise _changed(folder / FACTS)
    labels = [each.facts.get("label") for each in models]
    if not all(isinstance(label, str) for label in labels) or len(set(labels)) < len(labels):
        raise _other_facts(folder)
    return models


def _other_facts(folder: Path) -> InvalidInput:
    return InvalidInput(
        f"Expected the facts of a model in {folder / FACTS}, got others. The file is damaged or was"
        " changed."
    )


def _changed(file: Path) -> InvalidInput:
    return InvalidInput(
        f"Expected {file} as it was written with the model, got one that was changed: classes,"
        " columns or numbers may stand for others. Restore the folder or train again; give"
        " predictions other names in their table."
    )


def _check_digests(facts: Mapping[str, Any], files: Mapping[str, bytes], folder: Path) -> None:
    """Refuse facts or files that were not written together."""
    if "digests" not in facts:
        return
    said = facts["digests"] if isinstance(facts["digests"], Mapping) else {}
    found = _digests({name: fact for name, fact in facts.items() if name != "digests"}, files)
    for file, name in _DIGESTED.items():
        if said.get(name) != found.get(name) and (file in files or file not in _MODELS):
            raise _changed(folder / file)


def require_numbers(folder: Path) -> None:
    """Refuse a model of classes where quantiles are wanted."""
    if _facts(folder, (ONE, SEVERAL)).get("grid") is None:
        raise InvalidInput(
            "Expected quantiles of numbers, got a model of classes, which have none. Leave them out"
            " (--quantile)."
        )


def _facts(folder: Path, kinds: Collection[str] = (ONE,)) -> dict[str, Any]:
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except OSError as error:
        raise ReleaseError(
            f"Expected the folder of a model, got {folder} ({error.strerror}: {FACTS})."
        ) from None
    except ValueError:
        facts = None
    if isinstance(facts, dict) and facts.get("kind") == SEVERAL and SEVERAL not in kinds:
        raise InvalidInput(
            f"Expected the model of one label column, got those of several in {folder}. Name the"
            f" folder of one: {folder / _FOLDERS[0]} is that of the first."
        )
    if (
        not isinstance(facts, dict)
        or facts.get("kind") not in (ONE, SEVERAL)
        or facts.get("format") not in (1, FORMAT)
    ):
        raise InvalidInput(
            f"Expected a model of format {FORMAT}, got something else in {folder / FACTS}."
        )
    if facts["format"] != FORMAT:
        raise InvalidInput(
            f"Expected a model of format {FORMAT}, got one of an earlier version in {folder}. Train"
            " again: with ids, the same rows cost nothing."
        )
    return facts


def _net(
    facts: Mapping[str, Any],
    files: Mapping[str, bytes],
    folder: Path,
    trust: Collection[str],
    device: str,
) -> NetModel:
    steps = _steps(files, folder, trust)
    named.require_torch()
    from labeldp.deep._loop import device_of

    net = named.restored(
        facts["net"]["name"], facts["net"]["parameters"], files[WEIGHTS], str(folder / WEIGHTS)
    )
    if "head" in facts["net"]:
        net = named.with_head(net, classes_of(facts), facts["net"]["head"])
    return NetModel(net.to(device_of(device)), steps)


def _scikit_learn(
    facts: Mapping[str, Any], files: Mapping[str, bytes], folder: Path, trust: Collection[str]
) -> Any:
    return read_estimator(files[MODEL], str(folder / MODEL), trust)


def _steps(files: Mapping[str, bytes], folder: Path, trust: Collection[str]) -> Any:
    return read_estimator(files[STEPS], str(folder / STEPS), trust) if STEPS in files else None


def _boosted_locations(
    facts: Mapping[str, Any], files: Mapping[str, bytes], folder: Path, trust: Collection[str]
) -> LocationSteps:
    name = BOOSTERS[_library(facts)]
    return LocationSteps(
        locations_from(files[name], facts["boosting"], str(folder / name)),
        _steps(files, folder, trust),
    )


def _boosted(
    facts: Mapping[str, Any], files: Mapping[str, bytes], folder: Path, trust: Collection[str]
) -> BoostedSteps:
    steps = _steps(files, folder, trust)
    told, name = facts["boosting"], BOOSTERS.get(_library(facts), MODEL)
    if len(told["start"]) != len(facts["classes"]):
        raise ValueError("start")
    if name != MODEL:
        return BoostedSteps(booster_from(files[name], told, str(folder / name)), steps)
    pieces = read_estimator(files[MODEL], str(folder / MODEL), trust)
    start, known = start_of(told), type(pieces) is list and len(pieces) > 0
    count = 1 if len(start) == 2 else len(start)
    _require(
        known and all(_piece_fits(piece, count) for piece in pieces),
        str(folder / MODEL),
        "boosted trees",
    )
    scores = HistogramScores(tuple(tuple(piece) for piece in pieces))
    return BoostedSteps(
        BoostedModel(
            lambda X, started: scores.predict(X) + started,
            start,
            int(told["features"]),
            factor_of(told),
        ),
        steps,
    )


def _piece_fits(piece: Any, count: int) -> bool:
    return (
        type(piece) is list
        and len(piece) == count
        and all(type(each) is HistGradientBoostingRegressor for each in piece)
    )


def _corrected(facts: Mapping[str, Any], estimator: Any) -> Model:
    channel, n_classes = facts.get("channel"), len(facts["classes"])
    known = None if channel is None else (float(channel[0]), float(channel[1]))
    made = Model(estimator, n_classes, known)
    if drawn := facts.get("drawn"):  # probabilities are shrunk towards the class frequencies
        made = replace(
            made,
            share=float(_shares([drawn["share"]], 1)[0]),
            frequencies=_shares(drawn["frequencies"], n_classes),
        )
    return made


def _located(location: Mapping[str, Any], grid: Grid, estimator: Any) -> LocationModel:
    """Make the model of numbers around a regressor."""
    scale, centre = float(location["scale"]), float(location["centre"])
    cuts = None if location.get("cuts") is None else np.asarray(location["cuts"], np.float64)
    if not (0 < scale < math.inf and math.isfinite(centre)):
        raise ValueError("location")
    if cuts is not None and not (
        cuts.shape == (len(grid) - 1,) and np.isfinite(cuts).all() and (np.diff(cuts) >= 0).all()
    ):
        raise ValueError("cuts")
    return LocationModel(
        estimator,
        Family(np.asarray(grid, np.float64), scale, cuts),
        centre,
        float(_shares([location["share"]], 1)[0]),
    )


def _shares(values: Any, count: int) -> NDArray[np.float64]:
    found = np.asarray(values, np.float64)
    if found.shape != (count,) or not np.all((found >= 0) & (found <= 1)):
        raise ValueError("shares")
    return found


def read_estimator(raw: bytes, name: str, trust: Collection[str] = ()) -> Any:
    """Read an estimator in the format of skops; `name` is the file's, for messages. See
    `load_model`."""
    from skops import io

    try:
        check_archive(raw)
        # skops lists the types from the file's JSON before it builds anything, so an unknown one
        # never runs.
        unknown = sorted(set(io.get_untrusted_types(data=raw)) - SAFE - set(trust))
        made = None if unknown else io.loads(raw, trusted=sorted({*SAFE, *trust}))
    except Exception:
        raise InvalidInput(
            f"Expected a model in the format of skops, got something else in {name}."
        ) from None
    if unknown:
        raise untrusted(unknown)
    return check_estimator(made, name, trust)


# Checks before use
# --------------------------------------------------------------------------------------------------


_PLAIN = (
    type(None),
    bool,
    int,
    float,
    str,
    bytes,
    slice,
    type,
    np.generic,
    np.dtype,
    np.ufunc,
    np.random.Generator,
    np.random.RandomState,
)
_CONTAINERS = (dict, list, tuple, set)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
# hold numbers only; scikit-learn 1.8 names the first "_loss."
_LOSSES = ("sklearn._loss.", "_loss.", "sklearn.linear_model._sgd_fast")
# fmt: off
_CHECKED = frozenset(
    {
        # predict with numpy, which checks what it indexes
        "Pipeline", "ColumnTransformer", "FunctionTransformer", "StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler",  # noqa: E501
        "Normalizer", "PCA", "SimpleImputer", "MissingIndicator", "OrdinalEncoder", "LabelEncoder", "LabelBinarizer", "LogisticRegression",  # noqa: E501
        "LogisticRegressionCV", "RidgeClassifier", "RidgeClassifierCV", "SGDClassifier", "Perceptron", "GaussianNB", "MultinomialNB",  # noqa: E501
        "ComplementNB", "BernoulliNB", "LinearDiscriminantAnalysis", "QuadraticDiscriminantAnalysis", "MLPClassifier", "DummyClassifier",  # noqa: E501
        # arrays are checked below
        "HistGradientBoostingClassifier", "HistGradientBoostingRegressor", "_BinMapper", "TreePredictor", "KNeighborsClassifier",  # noqa: E501
        "OneHotEncoder", "Ridge",
        # contain sklearn.tree._tree.Tree, which is built only if the user trusts it by name
        "DecisionTreeClassifier", "DecisionTreeRegressor", "ExtraTreeClassifier", "RandomForestClassifier", "ExtraTreesClassifier",  # noqa: E501
        "GradientBoostingClassifier",
    }
)
# fmt: on
_BITSET_WORDS = 8
# without arrays of their own
_METRICS = ("euclidean", "manhattan", "chebyshev", "minkowski", "cosine")
_LARGEST_RATIO = 200  # of an archive's unpacked size to its own: more is a decompression bomb


class CheckedPredictor(TreePredictor):
    """A tree that checks its inputs before compiled code walks it; its own nodes are checked when
    it is read."""

    def predict(
        self, X: Any, known_cat_bitsets: Any, f_idx_map: Any, n_threads: Any
    ) -> NDArray[np.float64]:
        """Predict as `TreePredictor` does: (n,) float64."""
        inner = self.nodes[self.nodes["is_leaf"] == 0]
        by_category = inner["feature_idx"][inner["is_categorical"] != 0]
        fits = (
            X.ndim == 2
            and np.all(inner["feature_idx"] < X.shape[1])
            and np.all(by_category < len(f_idx_map))
        )
        if not (fits and np.all(np.asarray(f_idx_map)[by_category] < len(known_cat_bitsets))):
            raise InvalidInput(
                "Expected trees that ask for features of the table, got others. The model's file is"
                " damaged or was changed."
            )
        return np.asarray(super().predict(X, known_cat_bitsets, f_idx_map, n_threads))


class CheckedOneHotEncoder(OneHotEncoder):
    """An encoder that checks its sparse output before compiled code reads what the indices point
    to."""

    def transform(self, X: Any) -> Any:
        """Encode as `OneHotEncoder` does: (n, categories), sparse or dense."""
        # A dense output would be filled by compiled code that trusts the indices; a sparse one only
        # holds them, so they can be checked.
        inner = copy.copy(self)
        inner.sparse_output = True
        found = OneHotEncoder.transform(inner, X)
        if not _sparse_fits(found):
            raise InvalidInput(
                "Expected categories that have a column each, got others. The model's file is"
                " damaged or was changed."
            )
        return found if self.sparse_output else found.toarray()


def check_archive(raw: bytes) -> None:
    """Refuse an archive that unpacks to far more than its own size."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        if sum(each.file_size for each in archive.infolist()) > _LARGEST_RATIO * len(raw):
            raise ValueError("too large")


def check_estimator(estimator: Any, name: str, trust: Collection[str] = ()) -> Any:
    """Check that nothing in an estimator can lead compiled code out of its arrays, and return it.

    Parameters
    ----------
    estimator : what skops has built
    name : str
        Name of its file, for messages.
    trust : collection of str, default=()
        Types that the user trusts.

    Raises
    ------
    InvalidInput
        If arrays do not fit together, or an object's type is not known to check its indices.
    """
    unknown: set[str] = set()
    for each in _everything(estimator):
        kind = type(each)
        if kind is TreePredictor:
            _require(_tree_fits(each), name, "a tree")
            # whether its features exist can be checked only when it predicts
            each.__class__ = CheckedPredictor
        elif kind is OneHotEncoder:
            each.__class__ = CheckedOneHotEncoder
        elif sp.issparse(each):
            _require(_sparse_fits(each), name, "a sparse matrix")
        elif kind.__name__ in ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor"):
            _require(_boosting_fits(each), name, kind.__name__)
        elif kind.__name__ == "_BinMapper":
            _require(_bins_fit(each), name, "the bins of its columns")
        elif kind.__name__ == "KNeighborsClassifier":
            _require(_neighbours_fit(each), name, kind.__name__)
        if not _is_known(each, trust):
            unknown.add(f"{kind.__module__}.{kind.__qualname__}")
    if unknown:
        raise untrusted(sorted(unknown))
    return estimator


def untrusted(names: list[str]) -> InvalidInput:
    """Make the error that lists the types that the user has to trust."""
    asked = " ".join(f"--trust {each}" for each in names)
    return InvalidInput(
        f"Expected a model of known types, got also {', '.join(names)}. If you trust who made the"
        f" file, add {asked}."
    )


def probabilities(model: Any, X: Any, n_classes: int) -> NDArray[np.float64]:
    """Predict probabilities of n rows with a model from a file: (n, K). Whatever it raises becomes
    an InvalidInput."""
    return _answered(
        lambda: model.predict_proba(X),
        (X.shape[0], n_classes),
        f"{n_classes} probabilities a row, one a class,",
    )


def _answered(predict: Callable[[], Any], shape: tuple[int, int], what: str) -> NDArray[np.float64]:
    try:
        found = np.asarray(predict(), np.float64)
    except LabelDPError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"Expected a model that can predict these rows, got {type(error).__name__} from it. Its"
            " file is damaged or was changed, or the rows are of another kind than it was"
            " trained on."
        ) from None
    if found.shape != shape:
        raise InvalidInput(f"Expected {what} from the model, got shape {found.shape}.")
    return found


def _require(fits: bool, name: str, what: str) -> None:
    if not fits:
        raise InvalidInput(
            f"Expected a model whose parts fit together in {name}, got {what} that does not. The"
            " file was changed."
        )


def _everything(root: Any) -> Iterator[Any]:
    """Yield each object inside an estimator, once."""
    # holds the objects, since Python gives the id of a freed one to another
    seen: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, _PLAIN):
            continue
        seen[id(each)] = each
        yield each
        if isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, _CONTAINERS):
            waiting += list(each)
        elif isinstance(each, np.ndarray):
            waiting += each.ravel().tolist() if each.dtype == object else []
        elif isinstance(each, types.MethodType):
            waiting.append(each.__self__)
        elif not isinstance(each, _FUNCTIONS):
            waiting += list(getattr(each, "__dict__", {}).values())
            waiting += (
                [each.func, each.args, each.keywords]
                if hasattr(each, "keywords") and hasattr(each, "func")
                else []
            )


def _is_known(each: Any, trust: Collection[str]) -> bool:
    kind = type(each)
    if (
        kind in _CONTAINERS
        or kind is np.ndarray
        or sp.issparse(each)
        or kind in (CheckedPredictor, CheckedOneHotEncoder, LocationBoosting)
        or isinstance(each, _FUNCTIONS)
    ):
        return True  # skops builds only functions that it or the user trusts by name
    module, name = kind.__module__, kind.__qualname__
    own = f"{getattr(each, '__module__', '')}.{getattr(each, '__qualname__', '')}"
    full = f"{module}.{name}"
    return (
        full in ("functools.partial", *trust)
        or own in trust
        or full.startswith(_LOSSES)
        or _is_checked(module, name)
    )


def _is_checked(module: str, name: str) -> bool:
    return module.startswith("sklearn.") and name in _CHECKED


def _tree_fits(tree: Any) -> bool:
    """Return whether children come after their parents, so that every walk ends, and all indices of
    the nodes exist."""
    nodes: Any = getattr(tree, "nodes", None)
    bitsets: list[Any] = [
        getattr(tree, f"{kind}_left_cat_bitsets", None) for kind in ("raw", "binned")
    ]
    if (
        type(nodes) is not np.ndarray
        or nodes.dtype != PREDICTOR_RECORD_DTYPE
        or nodes.ndim != 1
        or not len(nodes)
    ):
        return False
    if any(
        not _is_array(each, np.uint32, 2)
        or each.shape[1] != _BITSET_WORDS
        or not each.flags.c_contiguous
        for each in bitsets
    ):
        return False
    places = np.flatnonzero(nodes["is_leaf"] == 0)
    inner = nodes[places]
    by_category = inner["bitset_idx"][inner["is_categorical"] != 0]
    after = all(
        np.all((inner[side] > places) & (inner[side] < len(nodes))) for side in ("left", "right")
    )
    return bool(
        after
        and np.all(inner["feature_idx"] >= 0)
        and all(np.all(by_category < len(each)) for each in bitsets)
    )


def _boosting_fits(model: Any) -> bool:
    facts = vars(model)
    classes, trees, rounds = (
        facts.get("classes_"),
        facts.get("n_trees_per_iteration_"),
        facts.get("_predictors"),
    )
    if type(model).__name__ == "HistGradientBoostingRegressor":
        classes = np.arange(2)  # as many trees
    if not (
        isinstance(classes, np.ndarray)
        and classes.ndim == 1
        and len(classes) >= 2
        and isinstance(rounds, list)
    ):
        return False
    return trees == (1 if len(classes) == 2 else len(classes)) and all(
        isinstance(made, list)
        and len(made) == trees
        and all(isinstance(each, TreePredictor) for each in made)
        for made in rounds
    )


def _bins_fit(bins: Any) -> bool:
    """Return whether the table of known categories is consistent, with category codes below 256."""
    facts = vars(bins)
    flags, known = facts.get("is_categorical_"), facts.get("bin_thresholds_")
    if not (_is_array(flags, np.uint8, 1) and isinstance(known, list) and len(known) == len(flags)):
        return False
    categories = [known[i] for i in np.flatnonzero(flags)]
    return all(
        _is_array(each, np.floating, 1) and bool(np.all((each >= 0) & (each < 256)))
        for each in categories
    )


def _neighbours_fit(model: Any) -> bool:
    """Return whether the stored rows fit together. Only brute-force search is allowed; a search
    tree is a type that the user must trust."""
    facts = vars(model)
    rows, codes, classes, n = (
        facts.get(name) for name in ("_fit_X", "_y", "classes_", "n_neighbors")
    )
    if not (
        _is_array(rows, np.number, 2)
        and _is_array(codes, np.integer, 1)
        and isinstance(classes, np.ndarray)
        and classes.ndim == 1
    ):
        return False
    inside = len(codes) == len(rows) and bool(np.all((codes >= 0) & (codes < len(classes))))
    plain = (
        facts.get("outputs_2d_") is False
        and facts.get("n_features_in_") == rows.shape[1]
        and facts.get("n_samples_fit_") == len(rows)
    )
    # Metrics with arrays of their own, such as a covariance, would be indexed by compiled code
    # unchecked.
    metric = facts.get("effective_metric_") in _METRICS and set(
        facts.get("effective_metric_params_", ())
    ) <= {"p"}
    return inside and plain and metric and type(n) is int and 1 <= n <= len(rows)


def _sparse_fits(matrix: Any) -> bool:
    if matrix.format not in ("csr", "csc"):
        return False
    try:
        matrix.check_format(full_check=True)
    except (ValueError, IndexError, TypeError):
        return False
    return True


def _is_array(each: Any, kind: Any, ndim: int) -> bool:
    return type(each) is np.ndarray and np.issubdtype(each.dtype, kind) and each.ndim == ndim


# A model as the prior of a release
# -------------------------------------------------------------------------------------------------


Floats = NDArray[np.float64]
Predict = Callable[[pa.RecordBatch], Floats]
FOLDER, SKOPS, EXPORTED, STATE = "labeldp", "skops", "torch program", "torch state_dict"


@dataclass(frozen=True)
class PriorModel:
    """A trained model whose predicted probabilities are the prior of each row.

    It predicts once per charge. The predictions are stored until the release is published, and a
    release that resumes after a crash uses them again. The model must not have been trained on
    these labels, except on noisy ones from a release.

    Parameters
    ----------
    path : str or Path
        A folder of `labeldp train`; a scikit-learn classifier in the format of skops (.skops); a
        program of `torch.export.save` (.pt2), with a first dimension of any size; or, with
        `factory`, a state_dict of `torch.save`.
    features : sequence of str, optional
        Numeric columns, in the order in which the model takes them. Default: the names that the
        folder or the estimator records.
    factory : str, optional
        "package.module:function", which makes the `torch.nn.Module` for the state_dict. Its code is
        run, so it must be trusted.
    probabilities : bool, default=False
        Whether a torch model returns probabilities; otherwise it returns logits.
    trust : sequence of str, default=()
        Types in a skops file that the user trusts, beyond those that skops or labeldp knows.

    See Also
    --------
    labeldp.PriorTable : a prior that is looked up by a key.
    labeldp.ReleaseSpec : takes a prior.
    """

    path: str | Path
    features: Sequence[str] | None = None
    factory: str | None = None
    probabilities: bool = False
    trust: Sequence[str] = ()

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "path", str(self.path))
        put(self, "features", None if self.features is None else _names(self.features))
        put(self, "trust", tuple(self.trust))

    @property
    def reads(self) -> tuple[str, ...]:
        """The feature columns, if they are given."""
        return tuple(self.features or ())

    @property
    def kind(self) -> str:
        """The kind of file or folder at the path."""
        path = Path(self.path)
        if path.is_dir():
            return FOLDER
        if self.factory is not None:
            return STATE
        kinds = {".skops": SKOPS, ".pt2": EXPORTED}
        if path.suffix.lower() not in kinds:
            raise InvalidInput(
                "Expected a model's folder, a .skops or .pt2 file, or a state_dict with factory=,"
                f" got {path.name}. Say which function makes the module:"
                " factory='package.module:function' (--prior-factory)."
            )
        return kinds[path.suffix.lower()]

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON-ready data."""
        return {
            "model": self.path,
            "features": None if self.features is None else list(self.features),
            "factory": self.factory,
            "probabilities": self.probabilities,
            "trust": list(self.trust),
        }

    def open(self, classes: Sequence[object]) -> "OpenModel":
        """Read the files, and load the model once to see that they fit."""
        kind, path = self.kind, Path(self.path)
        paths = files_of_model(path) if kind == FOLDER else [path]
        files = tuple((each.name, _bytes(each)) for each in paths)
        given = OpenModel(
            kind,
            files,
            (),
            as_classes(classes),
            self.factory,
            self.probabilities,
            tuple(self.trust),
        )
        columns = self.features or given.own_columns()
        if not columns:
            raise InvalidInput(
                f"Expected the columns that {path.name} takes, got none. Name them in its order:"
                " features=[...] (--prior-features)."
            )
        made = OpenModel(
            kind,
            files,
            tuple(columns),
            as_classes(classes),
            self.factory,
            self.probabilities,
            tuple(self.trust),
        )
        made.predictor()
        return made


def prior_of(
    columns: Sequence[str] | None = None,
    table: str | None = None,
    key: Sequence[str] | None = None,
    model: str | None = None,
    features: Sequence[str] | None = None,
    factory: str | None = None,
    trust: Sequence[str] = (),
) -> Sequence[str] | PriorTable | PriorModel | OwnHistogram | None:
    """Make the prior from a command's options: columns, histogram[,eps=E], a table with a key, a
    model, or None.

    Raises
    ------
    InvalidInput
        If they name more than one prior, or an option is missing.
    """
    asked = [
        name
        for name, value in (
            ("--prior", columns),
            ("--prior-table", table),
            ("--prior-model", model),
        )
        if value
    ]
    if len(asked) > 1:
        raise InvalidInput(f"Expected one prior, got {' and '.join(asked)}. Leave all but one out.")
    if bool(table) != bool(key):
        raise InvalidInput(
            "Expected --prior-table and --prior-key together, got one of them. Say which columns"
            " both tables have."
        )
    if model is None and (features or factory or trust):
        raise InvalidInput(
            "Expected --prior-features, --prior-factory and --trust beside --prior-model only, got"
            " none. Name the model."
        )
    if table is not None and key is not None:
        return PriorTable(table, key)
    if columns and columns[0] == HISTOGRAM and all(each.startswith("eps=") for each in columns[1:]):
        return OwnHistogram(_cost_of(columns[1:]))
    # One column cannot hold a weight for each of several classes.
    if (
        columns
        and all(each.startswith("eps=") for each in columns[1:])
        and (meant := _validate.suggest(columns[0], [HISTOGRAM]))
    ):
        raise InvalidInput(
            "Expected columns with a weight for each class, or histogram[,eps=E], got --prior"
            f" {','.join(columns)}.{meant}"
        )
    return columns if model is None else PriorModel(model, features, factory, trust=trust)


def _cost_of(settings: Sequence[str]) -> float | None:
    """Read the cost of a histogram from eps=E; None if it is not given."""
    try:
        (cost,) = (float(each.removeprefix("eps=")) for each in settings) if settings else (None,)
    except ValueError:
        raise InvalidInput(
            "Expected --prior histogram, or histogram,eps=E with one number E, got"
            f" {_validate.quoted(settings)}. For example eps=0.1."
        ) from None
    return cost


@dataclass(frozen=True, repr=False)
class OpenModel:
    """A `PriorModel` in memory, as the bytes of its files, so that workers of a cluster need no
    access to the files."""

    kind: str
    files: tuple[tuple[str, bytes], ...]
    columns: tuple[str, ...]
    classes: tuple[object, ...]
    factory: str | None
    probabilities: bool
    trust: tuple[str, ...]

    exact: ClassVar[bool] = False

    @property
    def facts(self) -> Mapping[str, object]:
        """The kind of model, with the SHA-256 of its files."""
        torch = (
            {"factory": self.factory, "probabilities": self.probabilities}
            if self.kind in (EXPORTED, STATE)
            else {}
        )
        sha256 = {name: hashlib.sha256(raw).hexdigest() for name, raw in self.files}
        return {"model": self.kind, "features": list(self.columns), "sha256": sha256} | torch

    def weights(self, rows: pa.RecordBatch, start: int | None) -> Floats:
        """Predict the probabilities of each row's classes."""
        return self.predictor()(rows)

    def predictor(self) -> Predict:
        """Return the loaded model; a process loads it once."""
        name = repr((sorted(self.facts.items()), self.classes))
        if name not in _LOADED:
            made = self._load()
            _LOADED.clear()  # one model per process: nets are large, and a release has one prior
            _LOADED[name] = made
        return _LOADED[name]

    def own_columns(self) -> tuple[str, ...]:
        """Return the columns that the model's file records; empty if it records none."""
        if self.kind == FOLDER:
            return tuple(self._folder().inputs.names)
        if self.kind == SKOPS:
            return tuple(map(str, getattr(self._estimator(), "feature_names_in_", ())))
        return ()

    def _load(self) -> Predict:
        if self.kind == FOLDER:
            stored = self._folder()
            order = _order(stored.classes, self.classes, values_only=True)
            if list(self.columns) != stored.inputs.names:
                raise InvalidInput(
                    "Expected a model's folder to name its own features, got"
                    f" features={list(self.columns)}. Leave them out."
                )
            return lambda rows: np.asarray(stored.predict_proba(stored.inputs.read(rows, None)))[
                :, order
            ]
        if self.kind == SKOPS:
            return _of_estimator(self._estimator(), self.columns, self.classes)
        ((name, raw),) = self.files
        module = load_module(raw, name, self.factory, probabilities=self.probabilities)
        return lambda rows: module(matrix_of(rows, self.columns))

    def _estimator(self) -> Any:
        ((name, raw),) = self.files
        return read_estimator(raw, name, self.trust)

    def _folder(self) -> Any:
        # `load_model` reads a folder, and a worker of a cluster has the bytes only.
        with tempfile.TemporaryDirectory(prefix="labeldp-") as folder:
            for name, raw in self.files:
                (Path(folder) / name).write_bytes(raw)
            return load_model(Path(folder), self.trust)


_LOADED: dict[str, Predict] = {}


def _of_estimator(estimator: Any, columns: Sequence[str], classes: Sequence[object]) -> Predict:
    known = getattr(estimator, "classes_", None)
    if not hasattr(estimator, "predict_proba") or known is None:
        raise InvalidInput(
            f"Expected a fitted classifier with predict_proba, got {type(estimator).__name__}."
        )
    order = _order(list(known), classes, values_only=False)

    def predict(rows: pa.RecordBatch) -> Floats:
        matrix = matrix_of(rows, columns)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=".*does not have valid feature names", category=UserWarning
            )
            found = probabilities(estimator, matrix, len(order))
        return found[:, order]

    return predict


def _order(known: Sequence[object], classes: Sequence[object], *, values_only: bool) -> list[int]:
    """Return the position of each declared class among the model's classes; a model of codes 0 to K
    - 1 has the declared order."""
    if isinstance(classes, Grid) and list(known) != list(classes):
        text = (
            f"Expected a model of the declared {classes!r}, got one of other numbers. Declare the"
            " range{} that it was trained on{}."
        )
        raise InvalidInput(
            text.format(" and points", ""),
            cli=text.format("", ", with as many points (--range, --grid)"),
        )
    if len(known) != len(classes):
        raise InvalidInput(
            f"Expected a model of the {len(classes)} declared classes, got one of {len(known)}."
            " Train it on all of them."
        )
    order = ordered_by_value(known, classes)
    if order is not None:
        return order
    codes = [as_text(value) for value in known] == [str(code) for code in range(len(classes))]
    if values_only or not codes:
        raise InvalidInput(
            "Expected a model of the declared classes, got one of other values. Declare the classes"
            " that it was trained on."
        )
    return list(range(len(classes)))


def _names(features: Sequence[str]) -> tuple[str, ...]:
    names = (features,) if isinstance(features, str) else tuple(features)
    if (
        not names
        or not all(isinstance(name, str) and name for name in names)
        or len(set(names)) < len(names)
    ):
        raise InvalidInput(f"Expected different columns' names as features, got {list(names)!r}.")
    return names


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ReleaseError(
            f"Expected a model's file, got {path} ({error.strerror}). Check the path."
        ) from None
