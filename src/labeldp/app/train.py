# SPDX-License-Identifier: Apache-2.0
"""`labeldp train`: a table in, a model's folder out; the labels are charged once, or were released before and cost nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.app.model_store import check_free, save_model
from labeldp.app.release import declared_codec
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.privacy.ledger import Ledger, default_ledger
from labeldp.tables.batch import id_array, row_id_array
from labeldp.tables.evidence import read_noisy, released_facts
from labeldp.tables.features import learn_features
from labeldp.tables.formats import open_table
from labeldp.tables.labels import LabelCodec, check_type
from labeldp.tables.passes import Progress, silent
from labeldp.tables.table import EVIDENCE, check_columns


@dataclass(frozen=True)
class TrainSpec:
    """What to train on, and at what cost.

    Parameters
    ----------
    label : str
        The label column: raw, or as `labeldp release` wrote it.
    epsilon : float or None
        Total budget of one row or unit. None for a released table, whose labels are paid for.
    classes, id, unit, max_rows_per_unit, dataset, strict
        As in `ReleaseSpec`; for raw labels.
    law : str
        As in `LabelDPClassifier`.
    n_stages : int
    random_state : int
        Of the training; the noise never depends on it.
    """

    label: str
    epsilon: float | None = None
    classes: Sequence[object] | None = None
    id: str | Sequence[str] | None = None
    unit: str | None = None
    max_rows_per_unit: int = 1
    law: str = "auto"
    n_stages: int = 2
    dataset: str | None = None
    strict: bool = False
    random_state: int = 0

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            _validate.epsilon(self.epsilon)
        _validate.integer(max_rows_per_unit=self.max_rows_per_unit, low=1)
        _validate.integer(n_stages=self.n_stages, low=1)
        _validate.integer(random_state=self.random_state, low=0)
        if self.max_rows_per_unit > 1 and self.unit is None:
            raise InvalidInput("Expected unit= with max_rows_per_unit > 1, got none. Name the column that says whose row it is.")
        if self.strict and self.classes is None and self.epsilon is not None:
            raise InvalidInput("Expected declared classes, got none. Pass classes=; strict training never reads them off private labels.")

    @property
    def ids(self) -> tuple[str, ...]:
        """The id columns."""
        return () if self.id is None else (self.id,) if isinstance(self.id, str) else tuple(self.id)


@dataclass(frozen=True)
class Trained:
    """What a training left behind: the folder, and the facts in its model.json."""

    path: Path
    facts: Mapping[str, Any]


def train(source: str | Path, out: str | Path, spec: TrainSpec, ledger: Ledger | None = None, progress: Progress = silent) -> Trained:
    """Train a classifier on a table whose labels are private.

    Parameters
    ----------
    source : str or Path
        Parquet or CSV; numbers and categories, with gaps. Ids and units are no features.
    out : str or Path
        A new folder: model.skops and model.json.
    spec : TrainSpec
    ledger : Ledger, optional
        The user's own by default.

    Guarantee
    ---------
    Raw labels: the model is epsilon-label-DP for one row or unit. Released table: post-processing, no cost.
    """
    task = _Task(Path(source), spec, ledger or default_ledger())
    check_free(Path(out))
    model, labels = task.fit(progress)
    facts = task.facts(model, labels)
    save_model(Path(out), model.estimator_, facts)
    return Trained(Path(out), facts)


class _Task:
    """One call of `train`."""

    def __init__(self, path: Path, spec: TrainSpec, ledger: Ledger):
        self._spec, self._ledger, self._path = spec, ledger, path
        self._table = open_table(path)
        check_columns(self._table, [spec.label, *spec.ids, *([spec.unit] if spec.unit else [])])
        self._released = released_facts(path)
        if self._released is None and spec.epsilon is None:
            raise InvalidInput(
                f"Expected epsilon for raw labels, got none: {path.name} is no released table. Pass the total budget (--epsilon)."
            )
        if self._released is not None and spec.epsilon is not None:
            raise InvalidInput(
                f"Expected no epsilon for a released table, got {spec.epsilon!r}: its labels are paid for. Leave it out (--epsilon)."
            )
        self._features = learn_features(self._table, self._feature_names())
        self._codec = self._read_codec()

    def _feature_names(self) -> list[str]:
        known = self._released or {}
        ids = known.get("id") or self._spec.ids
        receipt = known.get("receipt")
        unit = receipt["unit"] if isinstance(receipt, Mapping) else self._spec.unit
        out = {
            self._spec.label,
            self._spec.label + EVIDENCE,
            self._spec.unit,
            unit,
            *self._spec.ids,
            *(ids if isinstance(ids, (list, tuple)) else ()),
        }
        return [name for name in self._table.names if name not in out]

    def _read_codec(self) -> LabelCodec:
        spec, kind = self._spec, self._table.type_of(self._spec.label)
        if self._released is not None:
            return LabelCodec(tuple(self._released["classes"]), spec.label, kind)  # type: ignore[arg-type]
        check_type(spec.label, kind)
        return declared_codec(self._table, spec.label, spec.classes)

    def fit(self, progress: Progress) -> tuple[Any, NoisyLabels]:
        """The fitted classifier over class codes, and its noisy labels."""
        from labeldp.learn import LabelDPClassifier

        spec, rows = self._spec, self._read(progress)
        paid: dict[str, Any] = (
            {} if self._released is not None else {"dataset": spec.dataset or self._path.stem, "column": spec.label, "ledger": self._ledger}
        )
        model = LabelDPClassifier(
            self._estimator(),
            epsilon=spec.epsilon or 1.0,
            law=spec.law,
            n_stages=spec.n_stages,
            classes=list(range(len(self._codec.classes))),
            max_rows_per_unit=spec.max_rows_per_unit,
            random_state=spec.random_state,
            **paid,
        )
        if self._released is not None:
            noisy = read_noisy(self._path, spec.label)
            model.fit(rows.matrix, replace(noisy, classes=tuple(range(noisy.n_classes))))
        else:
            model.fit(rows.matrix, rows.codes, ids=rows.ids, unit=None if rows.units is None else _Column(rows.units, str(spec.unit)))
        return model, model.noisy_labels_

    def _estimator(self) -> Any:
        """The classifier's own default, told which columns are categories."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        categories = self._features.categorical or None
        return HistGradientBoostingClassifier(
            max_leaf_nodes=15,
            l2_regularization=1.0,
            early_stopping=False,
            categorical_features=categories,
            random_state=self._spec.random_state,
        )

    def _read(self, progress: Progress) -> "_Rows":
        matrices, codes, ids, units, start, done = [], [], [], [], 0, 0
        wanted = [*self._features.names, self._spec.label, *self._spec.ids, *([self._spec.unit] if self._spec.unit else [])]
        for batch in self._table.batches(list(dict.fromkeys(wanted))):
            matrices.append(self._features.matrix(batch))
            if self._released is None:
                codes.append(self._codec.encode(batch.column(self._spec.label), start))
                ids.append(row_id_array(batch, self._spec.ids))
                units.append(id_array(batch, self._spec.unit) if self._spec.unit else None)
            start, done = start + len(batch), done + batch.extent
            progress("read", done, self._table.extent)
        if not matrices:
            raise InvalidInput(f"Expected rows, got none in {self._path.name}.")
        return _Rows(np.concatenate(matrices), _joined(codes), _joined(ids), _joined(units))

    def facts(self, model: Any, noisy: NoisyLabels) -> dict[str, object]:
        """model.json."""
        spent = model.privacy_
        accuracy = getattr(model, "estimated_accuracy_", None)
        guarantee = {"unit": spent.unit, "epsilon": spent.epsilon, "delta": spent.delta}
        return {
            "guarantee": guarantee if spent.secure else None,
            "insecure": not spent.secure,
            "label": self._spec.label,
            "label_type": str(self._table.type_of(self._spec.label)),
            "classes": list(self._codec.classes),
            "classes_inferred": self._released is None and self._spec.classes is None,
            "trained_on": "released table" if self._released is not None else "raw labels",
            "rows": len(noisy),
            "estimated_accuracy": None if accuracy is None else {"value": accuracy.value, "low": accuracy.low, "high": accuracy.high},
            "channel": model._model.channel,
            "ids": list(self._spec.ids),
            "features": self._features.to_dict(),
            "receipts": [receipt.to_dict() for receipt in noisy.receipts],
        }


@dataclass(frozen=True)
class _Column:
    """A column with its name, which the ledger keeps as the unit's."""

    values: NDArray[np.generic]
    name: str

    def __len__(self) -> int:
        return len(self.values)

    def to_numpy(self) -> NDArray[np.generic]:
        """The values."""
        return self.values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.generic]:
        return np.asarray(self.values, dtype)


@dataclass(frozen=True)
class _Rows:
    matrix: NDArray[np.float64]
    codes: NDArray[np.generic] | None
    ids: NDArray[np.generic] | None
    units: NDArray[np.generic] | None


def _joined(parts: Sequence[NDArray[np.generic] | None]) -> NDArray[np.generic] | None:
    found = [part for part in parts if part is not None]
    return np.concatenate(found) if found else None
