# SPDX-License-Identifier: Apache-2.0
"""Encoders and samplers of other libraries, and IPython's tracebacks, get no label."""

import inspect
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import TargetEncoder
from tests.adversarial.test_debuggers import by_ipython, check_draws, check_faults

import labeldp as ldp

pytestmark = pytest.mark.engines
N = 200
X = pd.DataFrame(
    {
        "town": np.random.default_rng(0).choice(["oslo", "rome", "lima"], N),
        "age": np.random.default_rng(1).uniform(20, 60, N),
        "income": np.random.default_rng(2).uniform(1, 9, N),
    }
)
TRUTH = np.where(X.age + 5 * X.income > 65, "SENTINEL-yes", "SENTINEL-no")
LIBRARIES = {
    "feature_engine": ("creation", "discretisation", "encoding", "imputation", "outliers",
                       "selection", "transformation", "wrappers"),
    "category_encoders": ("",),
    "imblearn": ("over_sampling", "under_sampling", "combine", "ensemble"),
    "skrub": ("",),
}  # fmt: skip
FEWEST = {"feature_engine": 40, "category_encoders": 15, "imblearn": 20, "skrub": 8}


class Planted(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A reader: it takes labels by `np.asarray`."""

    def fit(self, X: Any, y: Any) -> "Planted":
        raise ValueError(f"got {np.asarray(y).tolist()}")

    def transform(self, X: Any) -> Any:
        return X


class Open(np.ndarray):  # type: ignore[type-arg]
    """Raw labels that are not closed."""

    spent = staticmethod(lambda: 0.0)


def kinds(library: str) -> Iterator[type]:
    """The classes of a library that learn from a table."""
    found: dict[str, type] = {}
    for part in LIBRARIES[library]:
        module: ModuleType = pytest.importorskip(f"{library}.{part}".rstrip("."))
        found |= {
            name: kind
            for name, kind in inspect.getmembers(module, inspect.isclass)
            if kind.__module__.startswith(library) and hasattr(kind, "fit") and name[0] != "_"
        }
    return iter(found.values())


def made(kind: type) -> Any:
    """One of this class, around an estimator where it wants one; None where it wants more."""
    for given in ({}, {"estimator": LogisticRegression()}, {"variables": ["age"]}):
        try:
            return kind(**given)
        except (TypeError, ValueError):
            continue
    return None


def attempts(step: Any) -> Iterator[Any]:
    """What users write with a step: alone, and in a pipeline in front of a model of ours."""
    learner = ldp.LabelDPClassifier(LogisticRegression(), epsilon=2.0, random_state=0)
    yield step.fit
    for name in ("fit_transform", "fit_resample"):
        if hasattr(step, name):
            yield getattr(step, name)
    yield make_pipeline(step, learner).fit
    if hasattr(step, "fit_resample"):
        yield pytest.importorskip("imblearn.pipeline").make_pipeline(step, learner).fit


def outcome(call: Any, labels: Any, table: Any = X) -> str:
    """What a call says as it fails; "" if it does not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(table, labels)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def readers(steps: list[Any], close: Any) -> list[str]:
    """Those steps that show a label, spend what no fit inside them has charged, or, where plain
    labels work, stop without saying what to do."""
    found = []
    for step in steps:
        for call in attempts(step):
            for table in (X, X[["age", "income"]].to_numpy(), X["town"]):
                labels = close(TRUTH)
                said = outcome(call, labels, table)
                if (
                    "SENTINEL" in said.replace("'SENTINEL-no', 'SENTINEL-yes'", "")
                    or labels.spent() not in ((0.0,) if said else (0.0, 2.0))
                    or (said and "privatize once" not in said and not outcome(call, TRUTH, table))
                ):
                    found.append(f"{type(step).__name__}: {said}")
    return found


def closed(y: Any) -> ldp.PrivateLabels:
    return ldp.PrivateLabels(y, classes=["SENTINEL-no", "SENTINEL-yes"], column="bought")


@pytest.mark.filterwarnings("ignore")  # theirs, of old names
@pytest.mark.parametrize("library", LIBRARIES)
def test_no_encoder_or_sampler_reads_labels(library: str) -> None:
    steps = [step for step in map(made, kinds(library)) if step is not None]
    assert len(steps) >= FEWEST[library]
    assert not readers(steps, closed)


def test_a_vectorizer_learns_from_labels_only_inside() -> None:
    skrub = pytest.importorskip("skrub")
    learner = ldp.LabelDPClassifier(LogisticRegression(), epsilon=2.0, random_state=0)
    labels, outside = closed(TRUTH), skrub.TableVectorizer(low_cardinality=TargetEncoder())
    assert "privatize once" in outcome(make_pipeline(outside, learner).fit, labels)
    assert labels.spent() == 0.0
    assert not outcome(skrub.tabular_pipeline(learner).fit, labels) and labels.spent() == 2.0


def test_tracebacks_of_ipython_show_no_label(monkeypatch: pytest.MonkeyPatch) -> None:
    check_faults(by_ipython)
    check_draws(by_ipython, monkeypatch, ["privatize", "aggregate"])


def test_a_planted_reader_is_found() -> None:
    assert readers([Planted()], lambda y: y.view(Open)) and not readers([Planted()], closed)
