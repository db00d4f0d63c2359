# SPDX-License-Identifier: Apache-2.0
"""Learning from private label counts of clusters: the likelihood of counts, and the classifier that
asks for them."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import check_grad
from scipy.sparse import csr_matrix
from scipy.stats import norm
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import labeldp as ldp
from labeldp.learn import NoiseCluster, ProportionClassifier, SoftmaxRegression
from labeldp.learn._softmax import CountNoise, RowEvidence, count_evidence, objective

K = 3
X, Y = make_blobs(4000, centers=[(-1, -1), (1, -1), (0, 1)], cluster_std=0.55, random_state=1)
"""Overlapping classes: about 0.955 of the rows can be told."""
MISTAKE = 1e-6  # chance that a right implementation fails a statistical test


# The likelihood of counts
# --------------------------------------------------------------------------------------------------


def rows_evidence(rng):
    return RowEvidence(np.log(rng.random((40, 4))), rng.random(40))


def counts_evidence(rng):
    groups = np.concatenate([np.arange(6), rng.integers(0, 6, 34)])
    counted = np.bincount(groups) * [1.0, 1.0, 0.5, 0.0, 0.9, 1.0]
    return count_evidence(groups, rng.normal(3, 4, (6, 4)), CountNoise(2.5, counted), 40)


@pytest.mark.parametrize("make", [rows_evidence, counts_evidence])
def test_gradient(make):
    rng = np.random.default_rng(0)
    X, at = rng.normal(size=(40, 3)), rng.normal(size=16)
    loss = objective(X, make(rng), rng.random((4, 4)), True, rng.normal(size=4))
    assert check_grad(lambda w: loss(w)[0], lambda w: loss(w)[1], at) < 1e-5


@pytest.mark.parametrize(("epsilon", "share"), [(0.2, 1.0), (2.0, 1.0), (1.0, 0.5)])
def test_counts_scatter_as_the_likelihood_says(epsilon, share):
    """At the true probabilities squared residuals are the stated variance on average: 20 groups of
    100 rows, 300 draws."""
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(K), 2000)
    groups = np.repeat(np.arange(20), 100)
    query = ldp.aggregates.Histogram(K, epsilon, 20)
    counted = p * share
    expected = np.add.reduceat(counted, np.arange(0, 2000, 100))
    variance = (
        np.add.reduceat(counted * (1 - counted), np.arange(0, 2000, 100))
        + query.standard_deviation() ** 2
    )
    ratios = []
    for seed in range(300):
        y = (rng.random((2000, 1)) > np.cumsum(p, axis=1)[:, :-1]).sum(axis=1)
        some = np.flatnonzero(rng.random(2000) < share)
        answer = ldp.aggregate(
            ldp.PrivateLabels(y[some], classes=range(K), noise=ldp.SeededNoise(seed)),
            query,
            groups[some],
        )
        ratios.append(float(((answer.values - expected) ** 2 / variance).mean()))
    z = (np.mean(ratios) - 1) / (np.std(ratios) / np.sqrt(300))
    assert abs(z) < norm.isf(MISTAKE / 2)


def test_groups_of_one_row_are_known_labels():
    known = SoftmaxRegression().fit(X, Y).predict(X)
    counts = (
        SoftmaxRegression().fit_counts(X, np.arange(len(Y)), np.eye(K)[Y], variance=0.0).predict(X)
    )
    assert (known == counts).mean() > 0.98


def test_mixed_groups_teach_what_tells_their_rows_apart():
    """Each group has all classes in it, in other proportions: no vote of groups says anything,
    their counts do."""
    rng = np.random.default_rng(3)
    y = np.concatenate([rng.choice(K, 100, p=mix) for mix in rng.dirichlet(np.full(K, 20.0), 100)])
    X = np.array([(-1, -1), (1, -1), (0, 1)])[y] + rng.normal(0, 0.3, (len(y), 2))
    groups = np.repeat(np.arange(100), 100)
    counts = np.array([np.bincount(y[groups == group], minlength=K) for group in range(100)])
    voted = counts.argmax(axis=1)[groups]
    assert (voted == y).mean() < 0.5
    model = SoftmaxRegression(C=0.1).fit_counts(X, groups, counts, variance=1.0)
    assert (model.predict(X) == y).mean() > 0.95
    chosen = SoftmaxRegression(C=(1e-4, 1e-2, 1.0), random_state=0).fit_counts(
        csr_matrix(X), groups, counts, variance=1.0
    )
    assert chosen.C_ > 1e-3
    assert (chosen.predict(X) == y).mean() > 0.95


def test_groups_of_which_a_part_was_counted():
    # two numbers have no rows, and neither has the last
    groups = np.random.default_rng(4).permutation(len(Y)) % 40 + 2
    counts = np.array([np.bincount(Y[groups == group][::2], minlength=K) for group in range(43)])
    model = SoftmaxRegression().fit_counts(
        X, groups, counts, variance=1.0, counted=counts.sum(axis=1)
    )
    assert np.allclose(model.predict_proba(X).mean(axis=0), np.bincount(Y) / len(Y), atol=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups": np.zeros(5, int)}, "groups of 6 rows"),
        ({"groups": np.zeros(6)}, "integers"),
        ({"groups": np.full(6, 2)}, "groups in 0..1"),
        ({"groups": np.full(6, -1)}, "groups in 0..1"),
        ({"counts": np.zeros((2, 1))}, "K >= 2"),
        ({"counts": np.full((2, 3), np.nan)}, "finite counts"),
        ({"variance": -1.0}, "variance"),
        ({"variance": np.nan}, "variance"),
        ({"counted": [7, 0]}, "counted"),
        ({"counted": [1]}, "counted"),
    ],
)
def test_counts_that_make_no_sense(settings, message):
    given = {
        "groups": np.array([0, 0, 0, 1, 1, 1]),
        "counts": np.ones((2, 3)),
        "variance": 1.0,
    } | settings
    groups, counts = given.pop("groups"), given.pop("counts")
    with pytest.raises(ldp.InvalidInput, match=message):
        SoftmaxRegression().fit_counts(np.arange(12.0).reshape(6, 2), groups, counts, **given)


# The classifier
# --------------------------------------------------------------------------------------------------


def test_counts_beat_votes_where_clusters_are_mixed():
    names = np.array(["north", "east", "south"])
    found, voted = (
        [
            kind(epsilon=0.2, n_clusters=5).fit(
                X, ldp.PrivateLabels(names[Y], classes=names, noise=ldp.SeededNoise(seed))
            )
            for seed in range(5)
        ]
        for kind in (ProportionClassifier, NoiseCluster)
    )
    scores, others = ([model.score(X, names[Y]) for model in models] for models in (found, voted))
    assert np.mean(scores) > np.mean(others) + 0.02
    assert min(scores) > 0.88
    proba = found[0].predict_proba(X)
    assert np.allclose(proba.sum(axis=1), 1)
    assert np.array_equal(found[0].classes_[proba.argmax(axis=1)], found[0].predict(X))
    assert found[0].aggregate_.values.shape == (5, K)


@pytest.mark.parametrize(
    "estimator", [None, LogisticRegression(), make_pipeline(StandardScaler(), SoftmaxRegression())]
)
def test_counts_are_charged_once_for_every_estimator(ledger, estimator):
    labels = ldp.PrivateLabels(
        Y,
        classes=range(K),
        dataset="people",
        column="class",
        ids=np.arange(len(Y)),
        ledger=ledger,
    )
    model = ProportionClassifier(estimator, epsilon=0.3)
    first = clone(model).fit(X, labels)
    other = clone(model).set_params(estimator=LogisticRegression(C=0.5)).fit(X, labels)
    assert np.array_equal(first.aggregate_.values, other.aggregate_.values)
    assert (
        first.privacy_
        == other.privacy_
        == ldp.PrivacySpent(0.3, 0.0, "row", recorded=True, secure=True)
    )
    assert ledger.spent("people", "class") == 0.3


def test_what_cannot_learn_from_counts_is_refused_before_the_charge(ledger):
    labels = ldp.PrivateLabels(Y, classes=range(K), dataset="people", column="class", ledger=ledger)
    for wrong in (
        GaussianNB(),
        make_pipeline(StandardScaler(), GaussianNB()),
        LogisticRegression(class_weight="balanced"),
    ):
        with pytest.raises(ldp.InvalidInput, match="learns from counts"):
            ProportionClassifier(wrong).fit(X, labels)
    with pytest.raises(ldp.InvalidInput, match="mechanism"):
        ProportionClassifier(mechanism="permute-and-flip").fit(X, labels)
    with pytest.raises(ldp.InvalidInput, match="NoisyLabels"):
        ProportionClassifier().fit(
            X,
            ldp.privatize(
                ldp.PrivateLabels(Y, classes=range(K), noise=ldp.SeededNoise(1)),
                ldp.SubsetSelection(K, 2.0),
            ),
        )
    with pytest.raises(ldp.InvalidInput, match="PrivateLabels"):
        ProportionClassifier().fit(X, None)
    assert ledger.runs() == []


def test_gaussian_noise_where_delta_is_given():
    model = ProportionClassifier(epsilon=0.3, delta=1e-5).fit(
        X, ldp.PrivateLabels(Y, classes=range(K), noise=ldp.SeededNoise(0))
    )
    assert model.aggregate_.query.mechanism == "gaussian"
    assert model.score(X, Y) > 0.85


def test_inputs_of_all_kinds():
    labels = ldp.PrivateLabels(Y, classes=range(K), noise=ldp.SeededNoise(0))
    model = ProportionClassifier(epsilon=1.0, n_clusters=10)
    plain = clone(model).fit(X, labels).predict(X)
    assert (model.fit(csr_matrix(X), labels).predict(csr_matrix(X)) == plain).mean() > 0.98
    frame = pd.DataFrame(
        {"a": X[:, 0], "b": X[:, 1], "side": np.where(X[:, 0] > 0, "right", "left")}
    )
    encoder = make_column_transformer(
        (StandardScaler(), ["a", "b"]), (OneHotEncoder(sparse_output=False), ["side"])
    )
    assert model.set_params(embedder=encoder).fit(frame, labels).score(frame, Y) > 0.85
    images = np.repeat(X, 2, axis=1).reshape(-1, 2, 2)
    assert model.set_params(embedder="pca").fit(images, labels).score(images, Y) > 0.85
