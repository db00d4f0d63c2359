# SPDX-License-Identifier: Apache-2.0
"""The pieces of learning from likelihoods, each against what it must equal."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.datasets import make_blobs
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import labeldp as ldp
from labeldp.learn import SoftmaxRegression, em, likelihood, linear
from labeldp.learn.learners import LearnOptions
from labeldp.learn.model import Model, seeded, take, weight_keyword

pytestmark = pytest.mark.filterwarnings("ignore::labeldp.errors.SeededNoiseWarning")


def blobs(n=600, k=3, seed=0, spread=1.0):
    angle = 2 * np.pi * np.arange(k) / k
    return make_blobs(n, centers=4 * np.column_stack([np.cos(angle), np.sin(angle)]), random_state=seed, cluster_std=spread)


def noisy_of(y, law, seed=0):
    return ldp.privatize(y, law, noise=ldp.SeededNoise(seed))


@pytest.mark.parametrize("k", [2, 4])
def test_softmax_on_known_labels_is_logistic_regression(k):
    X, y = blobs(k=k)
    ours = SoftmaxRegression(C=0.1, tol=1e-9).fit(X, y).predict_proba(X)
    theirs = LogisticRegression(C=0.1, tol=1e-9, max_iter=1000).fit(X, y).predict_proba(X)
    assert np.allclose(ours, theirs, atol=2e-3)


def test_softmax_sparse_weights_and_impossible_classes():
    X, y = blobs()
    table = np.where(np.eye(3)[y] > 0, 0.0, -np.inf)
    dense = SoftmaxRegression().fit_likelihood(X, table, sample_weight=np.full(len(y), 2.0))
    sparse = SoftmaxRegression(C=2.0).fit_likelihood(csr_matrix(X), table)  # weights of 2 weigh like a penalty half as strong
    assert np.allclose(dense.coef_, sparse.coef_, atol=1e-3)
    with pytest.raises(ldp.InvalidInput, match="without NaN"):
        SoftmaxRegression().fit_likelihood(X, np.full((len(y), 3), np.nan))
    with pytest.raises(ldp.InvalidInput, match="zero"):
        SoftmaxRegression().fit_likelihood(X, table, sample_weight=np.zeros(len(y)))


def test_softmax_chooses_a_stronger_penalty_for_noisier_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 30))
    y = (X[:, :3].sum(axis=1) > 0).astype(int)
    strengths = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
    clean = SoftmaxRegression(C=strengths, random_state=0).fit(X, y)
    noisy = SoftmaxRegression(C=strengths, random_state=0).fit_likelihood(X, noisy_of(y, ldp.RandomizedResponse(2, 0.5)).log_likelihood())
    assert noisy.C_ < clean.C_


def test_linear_round_undoes_the_law():
    y = np.random.default_rng(0).choice(4, p=[0.5, 0.3, 0.15, 0.05], size=40_000)
    X = np.zeros((len(y), 1))
    for law in (ldp.RandomizedResponse(4, 1.0), ldp.SubsetSelection(4, 1.0, size=2)):
        noisy = noisy_of(y, law)
        model = linear.linear_round(DummyClassifier(), X, noisy, 10**6, np.random.RandomState(0))
        expected = ldp.metrics.class_frequencies(noisy).value  # the same inverse, reached the other way
        assert np.allclose(model.predict_proba(X[:1])[0], expected, atol=1e-6)
    thinned = linear.linear_round(DummyClassifier(), X, noisy, 40_000, np.random.RandomState(0))
    assert np.allclose(thinned.predict_proba(X[:1])[0], expected, atol=0.05)


def test_linear_round_needs_one_invertible_law():
    y = np.arange(50) % 4
    split = noisy_of(y, ldp.PriorSplit(4, 1.0))
    mixed = ldp.concat([noisy_of(y, ldp.RandomizedResponse(4, 1.0)), noisy_of(y, ldp.RandomizedResponse(4, 2.0))])
    assert linear.common_channel(split) is None
    assert linear.common_channel(mixed) is None


def test_posterior_and_heaviest_classes():
    belief = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    like = np.array([[1.0, 0.5, 1.0], [0.0, 1.0, 1.0]])
    assert np.allclose(em.posterior(belief, like), [[2 / 3, 1 / 3, 0], [0, 0.5, 0.5]])
    kept = em._heaviest(np.array([[0.6, 0.395, 0.005], [0.4, 0.3, 0.3]]))
    assert kept.tolist() == [[True, True, False], [True, True, True]]


def test_sampled_classes_follow_the_posterior():
    weights = np.tile([0.55, 0.3, 0.15], (20_000, 1))
    rows, codes = em._sampled(weights, 3, np.random.RandomState(0))
    assert len(rows) == 60_000
    assert np.allclose(np.bincount(codes) / len(codes), weights[0], atol=0.01)


def test_weights_reach_the_last_step_of_nested_pipelines():
    inner = make_pipeline(StandardScaler(), LogisticRegression())
    assert weight_keyword(inner) == "logisticregression__sample_weight"
    assert weight_keyword(make_pipeline(StandardScaler(), inner)) == "pipeline__logisticregression__sample_weight"
    assert weight_keyword(make_pipeline(KNeighborsClassifier())) is None


@pytest.mark.parametrize(
    "estimator",
    [
        KNeighborsClassifier(25),
        GaussianNB(),
        make_pipeline(StandardScaler(), GaussianNB()),
        RandomForestClassifier(20, min_samples_leaf=20),
    ],
    ids=lambda e: type(e).__name__,
)
def test_em_learns_with_and_without_sample_weights(estimator):
    X, y = blobs(1500, k=4, spread=0.6)
    noisy = noisy_of(y, ldp.SubsetSelection(4, 1.0, size=1))
    model = em.em_fit(estimator, X, noisy, start=None, held_out=None, rounds=1, row_budget=10**6, random_state=np.random.RandomState(0))
    assert np.mean(model.predict_proba(X).argmax(axis=1) == y) > 0.9
    capped = em.m_step(estimator, X, em.posterior(model.predict_proba(X), noisy.likelihood()), 1, 1500, np.random.RandomState(0))
    assert np.mean(capped.predict_proba(X).argmax(axis=1) == y) > 0.9


def test_em_keeps_a_round_only_if_held_out_rows_become_likelier():
    X, y = blobs(800, spread=0.6)
    noisy = noisy_of(y, ldp.RandomizedResponse(3, 2.0))
    held_out = (X[:200], noisy_of((y[:200] + 1) % 3, ldp.RandomizedResponse(3, 4.0)))  # says that every prediction is wrong
    model = em.em_fit(
        GaussianNB(), X, noisy, start=None, held_out=held_out, rounds=3, row_budget=10**6, random_state=np.random.RandomState(0)
    )
    assert model.rounds == 0


def test_logistic_regression_is_mapped_only_where_it_is_the_same_model():
    mapped = likelihood.exact_learner(make_pipeline(StandardScaler(), LogisticRegression(C=2.0)))
    assert isinstance(mapped[-1], SoftmaxRegression)
    assert max(mapped[-1].C) == 2.0
    assert likelihood.exact_learner(LogisticRegression(class_weight="balanced")) is None
    assert likelihood.exact_learner(LogisticRegression(l1_ratio=1.0, solver="saga")) is None
    assert likelihood.exact_learner(GaussianNB()) is None


def test_models_without_probabilities_and_with_missing_classes():
    X, y = blobs()
    only_two = GaussianNB().fit(X[y < 2], y[y < 2])
    assert Model(only_two, 3).predict_proba(X).shape == (len(X), 3)

    class Votes:
        def predict(self, X):
            return np.ones(len(X))

    assert Model(Votes(), 3).predict_proba(X[:2]).tolist() == [[0, 1, 0], [0, 1, 0]]


def test_seeded_fills_only_free_seeds():
    forest = make_pipeline(RandomForestClassifier(random_state=7), RandomForestClassifier())
    params = seeded(forest, np.random.RandomState(0)).get_params()
    assert params["randomforestclassifier-1__random_state"] == 7
    assert isinstance(params["randomforestclassifier-2__random_state"], int)


def test_take_rows_of_everything():
    X = np.arange(6).reshape(3, 2)
    rows = np.array([2, 2, 0])
    assert take(X, rows).tolist() == [[4, 5], [4, 5], [0, 1]]
    assert take(csr_matrix(X), rows).toarray().tolist() == [[4, 5], [4, 5], [0, 1]]
    assert take(X.tolist(), rows).tolist() == [[4, 5], [4, 5], [0, 1]]


@pytest.mark.parametrize(
    "wrong", [{"em_rounds": -1}, {"row_budget": 0}, {"temperature": float("nan")}, {"top_k_filter": 0}, {"consensus_rounds": 0.5}]
)
def test_options_are_checked(wrong):
    with pytest.raises(ldp.InvalidInput):
        LearnOptions(**wrong)
