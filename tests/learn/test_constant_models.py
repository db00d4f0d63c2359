# SPDX-License-Identifier: Apache-2.0
"""A fitted model that predicts nearly the same for all rows is named, whatever made it."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression
from sklearn.tree import DecisionTreeClassifier

import labeldp as ldp
from labeldp.errors import MisfitWarning, UntrainedWarning
from labeldp.learn import (
    CountsClassifier,
    Groupings,
    NoiseCluster,
    ProportionClassifier,
)
from labeldp.papers.malek2021 import PATEClassifier

SEED = ldp.SeededNoise(0)
SHRUNK = LogisticRegression(C=1e-12)


def told(fit):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model = fit()
    return model, [str(each.message) for each in found if each.category is UntrainedWarning]


def groups(n=2000):
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    return rng.normal(size=(n, 3)) + y[:, None], y


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_boosting_that_finds_no_split_for_a_rare_class_says_so(library):
    module = pytest.importorskip(library)
    kind = module.LGBMClassifier if library == "lightgbm" else module.XGBClassifier
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 6))
    y = (rng.random(20_000) < expit(X @ [0.6, 0.5, -0.4, 0, 0, 0] - 5.55)).astype(int)
    model, said = told(
        lambda: ldp.LabelDPClassifier(kind(n_jobs=1), random_state=0).fit(
            X, ldp.PrivateLabels(y, classes=[0, 1], noise=SEED)
        )
    )
    assert np.ptp(model.predict_proba(X), axis=0).max() == 0
    assert len(said) == 1 and "nearly the same for each of 20,000 training rows" in said[0]
    assert said[0].endswith("at no further cost; else more rows or a larger epsilon.")


FITS = {
    "rows": lambda e: ldp.LabelDPClassifier(e, random_state=0, correction="em"),
    "votes": lambda e: NoiseCluster(e, epsilon=1.0),
    "counts": lambda e: ProportionClassifier(e, epsilon=1.0),
    "teachers": lambda e: PATEClassifier(e, teacher=LogisticRegression(), epsilon=4.0),
}


@pytest.mark.parametrize("frame", [False, True])
@pytest.mark.parametrize("way", FITS)
def test_every_estimator_names_a_constant_model(way, frame):
    X, y = groups()
    X = pd.DataFrame(X, columns=["a", "b", "c"]) if frame else X
    labels = ldp.PrivateLabels(y, classes=[0, 1], noise=SEED)
    model, said = told(lambda: FITS[way](SHRUNK).fit(X, labels))
    assert (
        len(said) == 1
        and np.ptp(model.predict_proba(X)) < 1
        and np.ptp(model.predict_proba(X), axis=0).max() < 1e-3
    )
    assert told(lambda: FITS[way](LogisticRegression()).fit(X, labels))[1] == []


def test_tables_of_counts_name_a_constant_model_and_a_constant_student():
    X, y = groups()
    rows = pd.DataFrame(
        {name: np.where(X[:, j] > 0.5, "high", "low") for j, name in enumerate("abc")}
    )
    asked = Groupings(rows, by=["a", "b"])
    tables = asked.tables(
        ldp.aggregate(
            ldp.PrivateLabels(y, classes=[0, 1], noise=SEED),
            asked.query(2, epsilon=1.0),
            asked.groups,
        )
    )
    assert told(lambda: CountsClassifier().fit(rows, tables))[1] == []
    assert len(told(lambda: CountsClassifier(student=DummyClassifier()).fit(rows, tables))[1]) == 1


def test_numbers_are_compared_by_their_mean():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 3))
    y = 50 + 10 * X[:, 0] + rng.normal(size=4000)

    def fit(estimator):
        return told(
            lambda: ldp.LabelDPRegressor(estimator, random_state=0).fit(
                X, ldp.PrivateLabels(y, range=(0, 100), noise=SEED)
            )
        )[1]

    assert len(fit(Lasso(alpha=1e6))) == 1 and fit(LinearRegression()) == []


def test_each_of_several_targets_is_looked_at():
    X, y = groups()
    columns = {"a": y, "b": np.random.default_rng(1).integers(0, 2, len(y))}
    labels = ldp.PrivateLabels(columns, classes={"a": [0, 1], "b": [0, 1]}, noise=SEED)
    fit = ldp.LabelDPClassifier(SHRUNK, correction="em", epsilon=4.0, random_state=0).fit
    assert len(told(lambda: fit(X, labels))[1]) >= 2


def test_a_model_that_tells_a_few_rows_apart_is_not_constant():
    X = np.zeros((5000, 1))
    X[np.arange(1, 2000, 5)] = 1.0  # none of the thousand rows that are looked at first
    model, said = told(
        lambda: ldp.LabelDPClassifier(
            DecisionTreeClassifier(max_depth=1), epsilon=8.0, correction="em", random_state=0
        ).fit(X, ldp.PrivateLabels(X[:, 0].astype(int), classes=[0, 1], noise=SEED))
    )
    assert model.predict_proba(np.ones((1, 1)))[0, 1] > 0.9 and said == []


@pytest.mark.parametrize("library", ["lightgbm", "xgboost", "scikit-learn"])
def test_what_learned_the_noise_is_said_to_be_worse_than_a_constant(library):
    """Trees to the last row know the noisy label of each: far from the 95 % interval's edge."""
    if library == "scikit-learn":
        learner = DecisionTreeClassifier(random_state=0)
    else:
        module = pytest.importorskip(library)
        deep = {"n_estimators": 60, "max_depth": 12, "learning_rate": 1.0, "n_jobs": 1}
        kind = module.LGBMClassifier if library == "lightgbm" else module.XGBClassifier
        learner = kind(**deep, **({"num_leaves": 255} if library == "lightgbm" else {}))
    labels = ldp.PrivateLabels(np.arange(8000) % 2, classes=[0, 1], noise=SEED)
    with pytest.warns(MisfitWarning, match="worse than a constant"):
        ldp.LabelDPClassifier(learner, epsilon=1.0, correction="none", random_state=0).fit(
            np.random.default_rng(0).normal(size=(8000, 3)), labels
        )
