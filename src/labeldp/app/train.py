# SPDX-License-Identifier: Apache-2.0
"""`labeldp train`: rows in, a model's folder out; the labels are charged once, or were released before and cost nothing."""

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from labeldp import _validate
from labeldp.app.learners import AUTO, CLUSTER_MODELS, MODELS, ClustersSpec, Learner, NetLearner, NetOptions, learner_for, needs_torch
from labeldp.app.model_store import check_free, save_model
from labeldp.app.release import declared_codec
from labeldp.app.training_data import Columns, EvidenceSpec, InputsSpec, TrainingData, TrainingRows
from labeldp.deep.named import require_torch
from labeldp.errors import DomainLeakWarning, InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.evidence.noisy import derived, label_law
from labeldp.inputs.arrays import ArrayTable
from labeldp.laws import Law, parse_law
from labeldp.learn.model import heard_by
from labeldp.privacy.draw import law_per_row
from labeldp.privacy.encode import INFER, infers
from labeldp.privacy.ledger import Ledger, ledger_of
from labeldp.receipt import WHICH_CLASSES, Receipt, guarantee_text
from labeldp.tables.evidence import Proven, check_raw
from labeldp.tables.formats import open_table
from labeldp.tables.labels import LabelCodec, check_type, parse_classes
from labeldp.tables.manifest import manifest_path
from labeldp.tables.passes import Progress, silent
from labeldp.tables.spec import ReleaseSpec, declared_or_infer, law_of

_FEW_ROWS = 20_000


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
        As in `ReleaseSpec`; for raw labels, which need `classes`.
    law : str
        A law's name, as in `ReleaseSpec`.
    n_stages : int
        As in `LabelDPClassifier`.
    random_state : int
        Of the training; the noise never depends on it.
    model : str
        One of `MODELS`: a net by name; "proportions", private label counts of clusters of rows of numbers, or "noise-cluster", one vote
        for each; "boosting", gradient boosting; "linear", a logistic regression with a weight for each category; or "auto": linear where
        columns of a table have many categories, else boosting for rows of numbers, and a small convnet for images.
    net : NetOptions
    inputs : InputsSpec
        What to learn from.
    prior : ClustersSpec, optional
        Ask clusters of the inputs first, at a part of epsilon.
    evidence : EvidenceSpec
        What proves a released table; or that labels were drawn by something else than labeldp, by `law` at `epsilon`: nothing is charged
        then, and nothing is proven.
    """

    label: str
    epsilon: float | None = None
    classes: Sequence[object] | None = None
    id: str | Sequence[str] | None = None
    unit: str | None = None
    max_rows_per_unit: int = 1
    law: str = "auto"
    n_stages: int = 1
    dataset: str | None = None
    strict: bool = False
    random_state: int = 0
    model: str = AUTO
    net: NetOptions = field(default_factory=NetOptions)
    inputs: InputsSpec = field(default_factory=InputsSpec)
    prior: ClustersSpec | None = None
    evidence: EvidenceSpec = field(default_factory=EvidenceSpec)

    def __post_init__(self) -> None:
        if self.noisy and (self.epsilon is None or self.classes is None or infers(self.classes) or self.law == "auto"):
            raise InvalidInput("Expected law, epsilon and classes of noisy labels, got less: --law rr --epsilon E --classes A,B.")
        if self.epsilon is not None:
            _validate.epsilon(self.epsilon)
        _validate.integer(max_rows_per_unit=self.max_rows_per_unit, low=1)
        _validate.integer(n_stages=self.n_stages, low=1)
        _validate.integer(random_state=self.random_state, low=0)
        _validate.one_of(MODELS, model=self.model)
        if self.prior is not None:
            self.prior.require_less_than(self.epsilon)
        if self.model in CLUSTER_MODELS and (self.prior is not None or self.law != "auto"):
            raise InvalidInput(f"Expected no prior and no law with model={self.model!r}, which asks clusters alone. Leave them out.")
        if self.max_rows_per_unit > 1 and self.unit is None:
            raise InvalidInput("Expected unit= with max_rows_per_unit > 1, got none. Name the column that says whose row it is.")
        if self.classes is not None:
            object.__setattr__(self, "classes", declared_or_infer(self.classes, strict=self.strict))

    @property
    def noisy(self) -> bool:
        """Whether the labels are declared to be noisy."""
        return self.evidence.declared

    @property
    def ids(self) -> tuple[str, ...]:
        """The id columns."""
        return () if self.id is None else (self.id,) if isinstance(self.id, str) else tuple(self.id)


@dataclass(frozen=True)
class Trained:
    """What a training left behind: the folder, and the facts in its model.json."""

    path: Path
    facts: Mapping[str, Any]

    @property
    def guarantee(self) -> str:
        """What is promised, in words."""
        known = self.facts["guarantee"] or {"epsilon": math.inf, "delta": 1.0, "unit": "row"}
        return guarantee_text(known["epsilon"], known["delta"], known["unit"], known.get("except_for", ""))


def train(source: str | Path, out: str | Path, spec: TrainSpec, ledger: Ledger | None = None, progress: Progress = silent) -> Trained:
    """Train a classifier on rows whose labels are private.

    Parameters
    ----------
    source : str or Path
        Parquet or CSV: numbers and categories, with gaps, or a column of images. Or .npz or .npy: an array of numbers or of images. Ids and
        units are no inputs.
    out : str or Path
        A new folder: model.json, and model.skops or, of a net, weights.pt.
    spec : TrainSpec
    ledger : Ledger, or its path, optional
        The user's own by default.

    Guarantee
    ---------
    Raw labels: the model is epsilon-label-DP for one row or unit. Released table: post-processing, no cost.
    """
    _check_apart(Path(out), spec.net.folder)
    task = _Task(Path(source), spec, ledger_of(ledger))
    model, facts = task.fit(progress)
    save_model(Path(out), model, facts)
    return Trained(Path(out), facts)


def _check_apart(out: Path, folder: Path | None) -> None:
    """The model's folder is free, and will be when the training ends."""
    check_free(out)
    if folder is not None and out.absolute() in (folder.absolute(), *folder.absolute().parents):
        raise InvalidInput(f"Expected the training's state apart from the model, got {folder} for {out}. Name another folder (--folder).")


def threads_for(learner: Learner, n_rows: int) -> AbstractContextManager[object]:
    """One thread for small tables, where more gain nothing, and wait for each other most of the time if the machine has other work."""
    small = n_rows < _FEW_ROWS and not isinstance(learner, NetLearner)
    return threadpool_limits(1, user_api="openmp") if small else nullcontext()


def _other_law(name: str, released: Mapping[str, object]) -> bool:
    """Whether a name that was said is not that of a release's law. "auto" says nothing."""
    if name == "auto":
        return False
    cls, fields = parse_law(name)
    return any(released.get(key) != value for key, value in ({"law": cls.name} | fields).items())


class _Task:
    """One call of `train`."""

    def __init__(self, path: Path, spec: TrainSpec, ledger: Ledger):
        self._spec, self._ledger, self._path = spec, ledger, path
        self._data = TrainingData(path, spec.inputs, Columns(spec.label, spec.ids, spec.unit), spec.evidence, ledger)
        if needs_torch(spec.model, images=spec.inputs.image is not None):
            require_torch()
        self._released = self._data.released
        self._check_epsilon()
        self._inputs = self._data.learn_inputs()
        self._codec = self._read_codec()
        self._declared = self._declared_law()
        self._learner: Learner = learner_for(spec.model, self._inputs, len(self._codec.classes), spec.net)

    def _check_epsilon(self) -> None:
        epsilon = self._spec.epsilon
        table = self._data.table
        if self._released is None and not self._spec.noisy and not isinstance(table, ArrayTable):
            check_raw(open_table(self._path), self._spec.label, self._ledger)
        if self._released is None and epsilon is None:
            manifest = (
                ""
                if isinstance(table, ArrayTable)
                else (f"If it was released, put its manifest ({manifest_path(self._path).name}) beside it again, or name it (--manifest). ")
            )
            raise InvalidInput(
                f"Expected a released table, or epsilon for raw labels, got neither: nothing says that {self._path.name} was released. "
                f"{manifest}If its labels are raw, pass the total budget (--epsilon)."
            )
        if (self._released is not None or self._spec.noisy) and (self._spec.model in CLUSTER_MODELS or self._spec.prior is not None):
            raise InvalidInput(
                f"Expected raw labels with model={self._spec.model!r} or a prior of clusters, got noisy ones, whose clusters cannot be "
                "asked. Choose another model."
            )
        if self._released is not None and epsilon is not None:
            raise InvalidInput(
                f"Expected no epsilon for a released table, got {epsilon!r}: its labels are proven and paid for. Leave it out (--epsilon)."
            )
        if self._released is not None:
            self._check_told(self._released)
        if self._spec.noisy and self._spec.n_stages > 1:
            raise InvalidInput("Expected no stages of labels that were drawn already, got more than one. Leave them out (--stages).")

    def _check_told(self, released: Proven) -> None:
        """What is said of a released table must be what its release says: it decides, and nothing is passed over in silence."""
        spec, facts, receipt = self._spec, released.facts, Receipt.from_dict(released.facts["receipt"])
        ids, named = facts.get("id") or [], "classes in another order, or others"
        codec, declared = released.codec, () if spec.classes is None or infers(spec.classes) else spec.classes
        text = all(isinstance(value, str) for value in codec.classes)
        classes = parse_classes(declared, spec.label, codec.column_type, text_table=text) if declared else codec.classes
        checks = (
            ("--stages", spec.n_stages > 1, "one draw, made by the release", f"{spec.n_stages} stages"),
            ("--law", _other_law(spec.law, facts["law"]), f"the law of the release, {facts['law'].get('law')}", spec.law),
            ("--classes", classes != codec.classes, "the classes of the release", named),
            ("--infer-classes", infers(spec.classes), "the classes of the release", "that they be read off"),
            ("--id", bool(spec.ids) and [*spec.ids] != [*ids], f"ids as in the release, {', '.join(ids) or 'none'}", ", ".join(spec.ids)),
            ("--unit", spec.unit not in (None, receipt.unit), f"unit {receipt.unit!r} of the release", repr(spec.unit)),
            ("--max-rows-per-unit", spec.max_rows_per_unit not in (1, receipt.max_rows_per_unit), "the cap of the release", "another"),
        )
        for option, wrong, expected, got in checks:
            if wrong:
                out = " To keep a column out of the features, name it in --exclude." if option in ("--id", "--unit") else ""
                raise InvalidInput(f"Expected {expected}, got {got}: a released table says this itself. Leave it out ({option}).{out}")

    def _read_codec(self) -> LabelCodec:
        spec, kind = self._spec, self._data.label_type
        if self._released is not None:
            return self._released.codec
        check_type(spec.label, kind)
        return declared_codec(self._data.table, spec.label, spec.classes)

    def fit(self, progress: Progress) -> tuple[Any, dict[str, object]]:
        """What is stored of the fitted model, and model.json."""
        rows = self._data.read(self._inputs, self._codec, progress)
        X, n_rows = self._learner.prepared(rows.X), len(rows.X)
        model = self._learner.classifier(self._spec.random_state, progress, **self._settings())
        with threads_for(self._learner, n_rows), warnings.catch_warnings(), heard_by(_Fits(progress)):
            warnings.simplefilter("ignore", DomainLeakWarning)  # it was said when the codec read them
            if (noisy := self._noisy(rows)) is not None:
                model.fit(X, derived(noisy, classes=tuple(range(noisy.n_classes)), order="labels"))  # X was read from the same rows
            else:
                named = {"id_name": self._spec.ids or None, "unit_name": self._spec.unit}
                model.fit(X, rows.codes, ids=rows.ids, unit=rows.units, **named)
        stored, more = self._learner.result(model)
        return stored, self._facts(model, n_rows) | more

    def _noisy(self, rows: TrainingRows) -> NoisyLabels | None:
        """Labels that are noisy already: released and proven, or declared."""
        if self._released is not None:
            return self._released.noisy
        if not self._spec.noisy or rows.codes is None or self._declared is None:
            return None
        cap = self._spec.max_rows_per_unit
        return NoisyLabels.from_labels(rows.codes, self._declared, ids=rows.ids, unit=self._spec.unit or "row", max_rows_per_unit=cap)

    def _declared_law(self) -> Law | None:
        spec, n_classes = self._spec, len(self._codec.classes)
        if not spec.noisy:
            return None
        cap = spec.max_rows_per_unit
        made = ReleaseSpec(spec.label, range(n_classes), float(spec.epsilon or 0), spec.law, unit=spec.unit, max_rows_per_unit=cap)
        return label_law(law_per_row(law_of(made, n_classes), cap))

    def _settings(self) -> dict[str, Any]:
        """What every classifier is told, over class codes."""
        spec = self._spec
        paid: dict[str, Any] = {"dataset": spec.dataset or self._path.stem, "column": spec.label, "ledger": self._ledger}
        return {
            "epsilon": spec.epsilon or 1.0,
            "law": "auto" if spec.noisy else spec.law,
            "n_stages": spec.n_stages,
            "classes": INFER if infers(spec.classes) else list(range(len(self._codec.classes))),  # all codes occur that were read off
            "max_rows_per_unit": spec.max_rows_per_unit,
            "prior": spec.prior,
        } | (paid if self._released is None and not spec.noisy else {})

    def _facts(self, model: Any, n_rows: int) -> dict[str, object]:
        spent = model.privacy_
        guarantee = {"unit": spent.unit, "epsilon": spent.epsilon, "delta": spent.delta}
        guarantee |= {"except_for": spent.except_for} if spent.except_for else {}
        return {
            "guarantee": guarantee if spent.secure else None,
            "insecure": not spent.secure,
            "label": self._spec.label,
            "label_type": str(self._data.label_type),
            "classes": list(self._codec.classes),
            "classes_inferred": WHICH_CLASSES in spent.except_for,
            "trained_on": "released table" if self._released is not None else "declared labels" if self._spec.noisy else "raw labels",
            "evidence": spent.evidence,
            "rows": n_rows - (spent.rows_over_the_cap if self._released is None else 0),  # a released table has no rows over the cap
            "rows_over_the_cap": spent.rows_over_the_cap,
            **{name: _estimate(getattr(model, f"{name}_", None)) for name in ESTIMATES},
            "ids": list(self._spec.ids),
            "features": self._inputs.to_dict(),
            "receipts": [receipt.to_dict() for receipt in model.receipts_],
        }


class _Fits:
    """Fits of an estimator, one after another, as progress: how many there will be is known at the end."""

    def __init__(self, progress: Progress):
        self._progress, self._done = progress, 0

    def __call__(self) -> None:
        """After each fit."""
        self._done += 1
        self._progress("train", self._done, max(self._done + 1, _EXPECTED_FITS))


_EXPECTED_FITS = 7  # two halves and the whole, each with a linear round and a weighted one, and once more from all rows

ESTIMATES = ("estimated_accuracy", "estimated_log_loss", "baseline_accuracy", "baseline_log_loss")
"""What model.json says of held-out noisy rows: each an unbiased value with its interval, or null."""


def _estimate(found: Any) -> dict[str, float | bool] | None:
    return None if found is None else {"value": found.value, "low": found.low, "high": found.high, "tells": found.tells}
