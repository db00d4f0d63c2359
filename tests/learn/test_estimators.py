# SPDX-License-Identifier: Apache-2.0
"""Estimators of private labels have equal names, defaults and attributes where these mean the same,
and their docstrings say them."""

import importlib
import inspect
import re
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression

import labeldp as ldp
from labeldp.learn import (
    ClusterPrior,
    LearnOptions,
    NoiseCluster,
    ProportionClassifier,
    SoftmaxRegression,
)
from labeldp.papers.malek2021 import PATEClassifier
from labeldp.protocol._estimator import LabelDPEstimator, StagedEstimator

TORCH = pytest.param("labeldp.deep.TorchClassifier", marks=pytest.mark.deep)
STAGED = ["labeldp.learn.LabelDPClassifier", TORCH]
ALL = [
    *STAGED,
    "labeldp.learn.NoiseCluster",
    "labeldp.papers.malek2021.PATEClassifier",
    "labeldp.learn.ProportionClassifier",
]

SHARED = {
    "epsilon": 1.0,
    "random_state": None,
}
OF_LABELS = {"classes", "dataset", "column", "max_rows_per_unit", "ledger", "noise", "unit"}
OF_STAGES = {
    "stages": 1,
    "law": "auto",
    "prior": None,
    "validation_fraction": 0.1,
}
OTHER = {  # defaults that mean something else in this estimator, and why
    # one answer for a whole cluster is worth its price at budgets where a row's own label says
    # nothing
    ("NoiseCluster", "epsilon"): 0.1,
    ("ProportionClassifier", "epsilon"): 0.1,
    ("NoiseCluster", "random_state"): 0,  # of the clusters, which a repeat must find again
    ("PATEClassifier", "random_state"): 0,  # of the shards and queries
    ("ProportionClassifier", "random_state"): 0,
    # a net does not learn from held-out rows after they have measured it
    ("TorchClassifier", "validation_fraction"): 0.0,
}


def kind_of(name: str) -> Any:
    """The class of this name."""
    module, _, attribute = name.rpartition(".")
    if module == "labeldp.deep":
        pytest.importorskip("torch")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", ALL)
def test_names_and_defaults_are_equal(name: str) -> None:
    kind = kind_of(name)
    expected = SHARED | (OF_STAGES if issubclass(kind, StagedEstimator) else {})
    expected |= {
        parameter: value for (owner, parameter), value in OTHER.items() if owner == kind.__name__
    }
    found = inspect.signature(kind).parameters
    assert {parameter: found[parameter].default for parameter in expected} == expected
    assert all(found[parameter].kind is inspect.Parameter.KEYWORD_ONLY for parameter in expected)
    assert issubclass(kind, LabelDPEstimator) and not OF_LABELS.intersection(found)


@pytest.mark.parametrize("name", ALL)
def test_calls_are_equal(name: str) -> None:
    kind = kind_of(name)
    called = {
        "fit": ["X", "y", "ids"],
        "score": ["X", "y", "sample_weight", "ids"],
        "predict": ["X"],
        "predict_proba": ["X"],
    }
    for method, names in called.items():
        # which not all can use
        own = ("self", "id_of", "others", *(["sample_weight"] if method == "fit" else []))
        found = [
            parameter
            for parameter in inspect.signature(getattr(kind, method)).parameters
            if parameter not in own
        ]
        assert found == names, method


RECIPE = pytest.param("labeldp.deep.Recipe", marks=pytest.mark.deep)
VALUES = [
    "labeldp.learn.ClusterPrior",
    "labeldp.learn.SoftmaxRegression",
    "labeldp.learn.LearnOptions",
    RECIPE,
]


@pytest.mark.parametrize("name", [*ALL, "labeldp.learn.LabelDPRegressor", *VALUES])
def test_docstrings_state_type_and_default_of_each_parameter(name: str) -> None:
    kind = kind_of(name)
    section = re.search(
        r"(Parameters|Attributes)\n-+\n(.*?)(\n\n[A-Z]|$)", inspect.getdoc(kind) or "", re.DOTALL
    )
    assert section is not None
    told = {
        each.strip(): what
        for names, what in re.findall(r"^(\w[\w, ]*) : (.*)$", section[2], re.MULTILINE)
        for each in names.split(",")
    }
    parameters = inspect.signature(kind).parameters
    assert [parameter for parameter in parameters if parameter not in told] == []
    for parameter, value in parameters.items():
        stated = re.search(r"default=(.*)$", told[parameter])
        if value.default is inspect.Parameter.empty:
            assert stated is None, parameter
        # a function, or what one makes
        elif callable(value.default) or "factory" in repr(value.default):
            assert re.search(r"`\w+(\(.*\))?` if not given$", told[parameter]), parameter
        else:
            assert stated is not None, f"{parameter}: no default"
            assert stated[1].replace('"', "'").replace(",", "").replace("_", "") == repr(
                value.default
            ).replace("_", ""), parameter


FITTED = {
    ldp.LabelDPClassifier: {
        "estimator": LogisticRegression(),
        "prior": ClusterPrior(n_clusters=4, epsilon=0.4),
    },
    NoiseCluster: {"n_clusters": 4},
    PATEClassifier: {"n_teachers": 20, "n_queries": 10, "threshold": 0},
    ProportionClassifier: {"n_clusters": 4},
}


@pytest.mark.filterwarnings("ignore::labeldp.errors.NoisyVotesWarning")
@pytest.mark.parametrize("kind", FITTED)
def test_receipts_are_those_of_the_ledger_and_add_up_to_what_was_spent(
    kind: Any, ledger: ldp.Ledger
) -> None:
    X, y = make_blobs(300, centers=3, random_state=0)
    labels = ldp.PrivateLabels(
        y, classes=range(3), dataset="d", column="label", ids=np.arange(300), ledger=ledger
    )
    model = kind(**FITTED[kind], epsilon=1.5).fit(X, labels, ids=np.arange(300))
    assert [receipt.run_id for receipt in model.receipts_] == [run.run_id for run in ledger.runs()]
    assert (
        sum(receipt.epsilon for receipt in model.receipts_)
        == pytest.approx(model.privacy_.epsilon)
        == ledger.spent("d", "label")
    )
    if kind is ldp.LabelDPClassifier:
        assert model.prior_.answer.receipt == model.receipts_[0]


@pytest.mark.parametrize("kind", FITTED)
def test_a_wrong_parameter_is_corrected_and_no_value_is_shown(kind: Any) -> None:
    model = kind(random_state="secret")
    with pytest.raises(ldp.InvalidInput, match=r"epsilom.*epsilon") as error:
        model.set_params(epsilom=2.0)
    assert "secret" not in str(error.value)
    assert model.set_params(epsilon=2.0).epsilon == 2.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_clusters": 0},
        {"n_clusters": 2.5},
        {"epsilon": -1.0},
        {"epsilon": float("nan")},
        {"delta": 1.0},
        {"algorithm": "k-mean"},
        {"random_state": None},
        {"embedder": "pac"},
    ],
    ids=str,
)
def test_wrong_settings_of_a_prior_of_clusters_are_refused_before_the_charge(
    wrong: Any, ledger: ldp.Ledger
) -> None:
    prior = clone(ClusterPrior(n_clusters=4, epsilon=0.5)).set_params(**wrong)
    X, y = make_blobs(300, centers=3, random_state=0)
    with pytest.raises(ldp.InvalidInput, match=next(iter(wrong))):
        ldp.LabelDPClassifier(LogisticRegression(), prior=prior).fit(
            X, ldp.PrivateLabels(y, classes=range(3), dataset="d", column="label", ledger=ledger)
        )
    assert ledger.runs() == []


def test_options_and_the_softmax_regression_are_values_beside_them() -> None:
    assert not {"prior", "stages"} & set(inspect.signature(LearnOptions).parameters)
    # it learns from evidence and privatizes nothing
    assert not issubclass(SoftmaxRegression, LabelDPEstimator)
