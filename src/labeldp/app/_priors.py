# SPDX-License-Identifier: Apache-2.0
"""`PriorModel`: a release's prior from a model's file, run on public columns of the table."""

import hashlib
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp.app._model_check import probabilities
from labeldp.app._model_store import files_of_model, load_model, read_estimator
from labeldp.deep._prior import load_module
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.inputs._columns import matrix_of
from labeldp.tables._priors import PriorTable, as_text, ordered_by_value

Floats = NDArray[np.float64]
Predict = Callable[[pa.RecordBatch], Floats]
FOLDER, SKOPS, EXPORTED, STATE = "labeldp", "skops", "torch program", "torch state_dict"


@dataclass(frozen=True)
class PriorModel:
    """A model whose probabilities are the prior of each row.

    It is asked once for each charge: what it said is kept until the release is published, and is used again if the release is picked up
    after a crash. It must not have seen these labels, but through a release of them.

    Parameters
    ----------
    path : str or Path
        A folder of `labeldp train`; a scikit-learn classifier in the format of skops (.skops); a program of `torch.export.save` (.pt2),
        with a first dimension of any size; or, with `factory`, a state_dict of `torch.save`.
    features : sequence of str, optional
        Numeric columns in the order in which the model takes them. A folder, and an estimator that learnt names, know them.
    factory : str, optional
        "package.module:function", which makes the `torch.nn.Module` that the state_dict is of. It is run: name only what you trust.
    probabilities : bool
        A torch model gives probabilities; else logits.
    trust : sequence of str
        Types in a file of skops to build although neither skops nor labeldp knows them.
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
        """The features, if they are given."""
        return tuple(self.features or ())

    @property
    def kind(self) -> str:
        """What the path is of."""
        path = Path(self.path)
        if path.is_dir():
            return FOLDER
        if self.factory is not None:
            return STATE
        kinds = {".skops": SKOPS, ".pt2": EXPORTED}
        if path.suffix.lower() not in kinds:
            raise InvalidInput(
                f"Expected a model's folder, a .skops or .pt2 file, or a state_dict with factory=, got {path.name}. Say which function "
                "makes the module: factory='package.module:function' (--prior-factory)."
            )
        return kinds[path.suffix.lower()]

    def to_dict(self) -> dict[str, object]:
        """JSON-ready data."""
        return {
            "model": self.path,
            "features": None if self.features is None else list(self.features),
            "factory": self.factory,
            "probabilities": self.probabilities,
            "trust": list(self.trust),
        }

    def open(self, classes: Sequence[object]) -> "OpenModel":
        """Read the files, and load them once to see that they fit."""
        kind, path = self.kind, Path(self.path)
        paths = files_of_model(path) if kind == FOLDER else [path]
        files = tuple((each.name, _bytes(each)) for each in paths)
        given = OpenModel(kind, files, (), tuple(classes), self.factory, self.probabilities, tuple(self.trust))
        columns = self.features or given.own_columns()
        if not columns:
            raise InvalidInput(
                f"Expected the columns that {path.name} takes, got none. Name them in its order: features=[...] (--prior-features)."
            )
        made = OpenModel(kind, files, tuple(columns), tuple(classes), self.factory, self.probabilities, tuple(self.trust))
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
) -> Sequence[str] | PriorTable | PriorModel | None:
    """The prior that the options of a command ask for: columns, a table with a key, a model, or none.

    Raises
    ------
    InvalidInput
        They ask for more than one, or for half of one.
    """
    asked = [name for name, value in (("--prior", columns), ("--prior-table", table), ("--prior-model", model)) if value]
    if len(asked) > 1:
        raise InvalidInput(f"Expected one prior, got {' and '.join(asked)}. Leave all but one out.")
    if bool(table) != bool(key):
        raise InvalidInput("Expected --prior-table and --prior-key together, got one of them. Say which columns both tables have.")
    if model is None and (features or factory or trust):
        raise InvalidInput("Expected --prior-features, --prior-factory and --trust beside --prior-model only, got none. Name the model.")
    if table is not None and key is not None:
        return PriorTable(table, key)
    return columns if model is None else PriorModel(model, features, factory, trust=trust)


@dataclass(frozen=True, repr=False)
class OpenModel:
    """A `PriorModel` in memory, as the bytes of its files: so workers need no access to them."""

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
        """What it is, with the SHA-256 of its files."""
        torch = {"factory": self.factory, "probabilities": self.probabilities} if self.kind in (EXPORTED, STATE) else {}
        sha256 = {name: hashlib.sha256(raw).hexdigest() for name, raw in self.files}
        return {"model": self.kind, "features": list(self.columns), "sha256": sha256} | torch

    def weights(self, rows: pa.RecordBatch, start: int | None) -> Floats:
        """The probabilities of each row's classes."""
        return self.predictor()(rows)

    def predictor(self) -> Predict:
        """The loaded model; a process loads it once."""
        name = repr((sorted(self.facts.items()), self.classes))
        if name not in _LOADED:
            made = self._load()
            _LOADED.clear()
            _LOADED[name] = made
        return _LOADED[name]

    def own_columns(self) -> tuple[str, ...]:
        """The columns that the model itself says it takes; empty if it says nothing."""
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
                    f"Expected a model's folder to name its own features, got features={list(self.columns)}. Leave them out."
                )
            return lambda rows: np.asarray(stored.predict_proba(stored.inputs.read(rows, None)))[:, order]
        if self.kind == SKOPS:
            return _of_estimator(self._estimator(), self.columns, self.classes)
        ((name, raw),) = self.files
        module = load_module(raw, name, self.factory, probabilities=self.probabilities)
        return lambda rows: module(matrix_of(rows, self.columns))

    def _estimator(self) -> Any:
        ((name, raw),) = self.files
        return read_estimator(raw, name, self.trust)

    def _folder(self) -> Any:
        with tempfile.TemporaryDirectory(prefix="labeldp-") as folder:
            for name, raw in self.files:
                (Path(folder) / name).write_bytes(raw)
            return load_model(Path(folder), self.trust)


_LOADED: dict[str, Predict] = {}


def _of_estimator(estimator: Any, columns: Sequence[str], classes: Sequence[object]) -> Predict:
    known = getattr(estimator, "classes_", None)
    if not hasattr(estimator, "predict_proba") or known is None:
        raise InvalidInput(f"Expected a fitted classifier with predict_proba, got {type(estimator).__name__}.")
    order = _order(list(known), classes, values_only=False)

    def predict(rows: pa.RecordBatch) -> Floats:
        matrix = matrix_of(rows, columns)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have valid feature names", category=UserWarning)
            found = probabilities(estimator, matrix, len(order))
        return found[:, order]

    return predict


def _order(known: Sequence[object], classes: Sequence[object], *, values_only: bool) -> list[int]:
    """Where each declared class stands among the model's; a model of codes 0 to K - 1 has them in the order of the declaration."""
    if len(known) != len(classes):
        raise InvalidInput(f"Expected a model of the {len(classes)} declared classes, got one of {len(known)}. Train it on all of them.")
    order = ordered_by_value(known, classes)
    if order is not None:
        return order
    codes = [as_text(value) for value in known] == [str(code) for code in range(len(classes))]
    if values_only or not codes:
        raise InvalidInput("Expected a model of the declared classes, got one of other values. Declare the classes that it was trained on.")
    return list(range(len(classes)))


def _names(features: Sequence[str]) -> tuple[str, ...]:
    names = (features,) if isinstance(features, str) else tuple(features)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise InvalidInput(f"Expected different columns' names as features, got {list(names)!r}.")
    return names


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ReleaseError(f"Expected a model's file, got {path} ({error.strerror}). Check the path.") from None
