# SPDX-License-Identifier: Apache-2.0
"""Clusters of public features: how they are found, how budgets are divided over them, and the
estimators that stand on them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.stats import binom, norm
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from tests.naming import named

import labeldp as ldp
from labeldp.learn import ClusterPrior, NoiseCluster, Prior, ProportionClassifier
from labeldp.learn._clusters import clustering_request, find_clusters

K = 4
X, Y = make_blobs(
    3000,
    centers=4 * np.array([[1, 1, 0], [-1, 1, 0], [1, -1, 0], [-1, -1, 0]]),
    random_state=0,
    cluster_std=0.9,
)
MISTAKE = 1e-6  # chance that a test of a random draw fails although all is right


def classifier(prior, estimator=None, **settings):
    return ldp.LabelDPClassifier(
        GaussianNB() if estimator is None else estimator,
        prior=prior,
        **{"epsilon": 0.5, "random_state": 0} | settings,
    )


def seeded(y=Y, **facts):
    return ldp.PrivateLabels(y, **{"classes": range(K), "noise": ldp.SeededNoise(0)} | facts)


def charged(ledger, y=Y, **facts):
    account = {"dataset": "people", "column": "class", "ledger": ledger}
    return ldp.PrivateLabels(y, **{"classes": range(K)} | account | facts)


# Clusters
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["k-means", "mini-batch"])
@pytest.mark.parametrize(
    "embedder", [None, "pca", "standard", PCA(2), lambda X: X[:, :2]], ids=named
)
def test_clusters_are_found_and_found_again(algorithm, embedder):
    clusters, again = (
        find_clusters(X, K, embedder=embedder, algorithm=algorithm, random_state=1)
        for _ in range(2)
    )
    groups = clusters.assign(X)
    assert np.array_equal(groups, again.assign(X))
    counts = np.zeros((K, K))
    np.add.at(counts, (groups, Y), 1)
    # standardised, the column that is noise counts as much as the others
    assert counts.max(axis=1).sum() > (0.6 if embedder == "standard" else 0.95) * len(Y)
    assert np.array_equal(clusters.assign(X[100:200]), groups[100:200])


def test_images_and_sparse_rows_are_clustered_too():
    flat = find_clusters(X, K).assign(X)
    assert np.array_equal(find_clusters(X.reshape(-1, 3, 1), K).assign(X.reshape(-1, 3, 1)), flat)
    assert (
        len(np.unique(find_clusters(csr_matrix(X), K, embedder="standard").assign(csr_matrix(X))))
        == K
    )
    assert (
        len(
            np.unique(
                find_clusters(X.reshape(-1, 3, 1), K, embedder="pca").assign(X.reshape(-1, 3, 1))
            )
        )
        == K
    )


def test_fewer_different_rows_than_clusters_leave_some_empty():
    X = np.repeat([[0.0], [5.0]], 50, axis=0)
    prior = find_clusters(X, 6)
    assert len(np.unique(prior.assign(X))) == 2
    model = NoiseCluster(epsilon=1.0, n_clusters=6).fit(
        X, seeded(np.repeat([0, 1], 50), classes=[0, 1])
    )
    assert model.score(X, np.repeat([0, 1], 50)) == 1.0
    assert (model.failure_[model.aggregate_.n_rows == 0] == 0.5).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_clusters": 3001}, "should be >= n_clusters"),
        ({"n_clusters": 0}, "n_clusters"),
        ({"algorithm": "magic"}, "algorithm"),
        ({"embedder": "magic"}, "embedder"),
        ({"embedder": 3}, "embedder"),
        ({"embedder": lambda X: X[:10]}, "a row for each of X"),
        ({"embedder": lambda X: X[:, 0]}, "a row for each of X"),
        ({"embedder": lambda X: np.where(X > 0, X, np.nan)}, "contains NaN"),
        ({"embedder": lambda X: np.full((len(X), 2), "a")}, "numbers"),
        (
            {"embedder": LinearDiscriminantAnalysis()},
            "'y'",
        ),
        (
            {"embedder": make_pipeline(StandardScaler(), SelectKBest(k=2), PCA(1))},
            "requires y",
        ),
        ({"embedder": SelectKBest(k=2)}, "requires y"),
        ({"embedder": PCA}, "instead of a class"),
        ({"random_state": None}, "random_state"),
    ],
    ids=named,
)
def test_what_cannot_be_clustered_is_refused_before_a_charge(settings, message, ledger):
    for model in (classifier(ClusterPrior(**settings)), NoiseCluster(**settings)):
        with pytest.raises((ValueError, TypeError), match=message):
            model.fit(X, charged(ledger))
    assert not ledger.runs()


# ClusterPrior
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stages": 2},
        {"law": "rr-with-prior", "stages": 2},
        {"law": "cluster-rr"},
        {"law": "cluster-rr", "prior": ClusterPrior(n_clusters=8, epsilon=0.2)},
        {"law": ldp.ClusterRR(K, 0.3, 0.05), "prior": ClusterPrior(n_clusters=8, epsilon=0.2)},
        {"prior": ClusterPrior(delta=1e-6, epsilon=0.25)},
        {"estimator": LogisticRegression()},
        {"correction": "none", "law": "rr-with-prior"},
        {"prior": Prior(ClusterPrior(), top_k=2), "stages": 2},
    ],
    ids=named,
)
def test_a_cluster_prior_learns_at_a_small_epsilon(settings):
    model = classifier(**{"prior": ClusterPrior()} | settings).fit(X, seeded())
    assert model.score(X, Y) > 0.9
    assert model.prior_.answer.epsilon == np.inf  # seeded
    assert model.prior_.answer.receipt.epsilon + model.noisy_labels_.receipts[0].epsilon <= 0.5
    assert model.predict_proba(X).shape == (len(X), K)


def test_both_charges_are_in_the_ledger_and_add_to_epsilon(ledger):
    model = classifier(ClusterPrior(n_clusters=8, epsilon=0.1)).fit(X, charged(ledger))
    first, second = ledger.runs("people", "class")
    assert (first.receipt.event["event"], first.receipt.epsilon, second.receipt.epsilon) == (
        "aggregate",
        0.1,
        0.4,
    )
    assert model.privacy_ == ldp.PrivacySpent(0.5, 0.0, "row", recorded=True, secure=True)
    assert ledger.spent("people", "class") == ledger.budget_of("people", "class") == 0.5
    assert {block.law.epsilon for block in model.noisy_labels_.blocks} == {0.4}


def test_a_model_of_the_histograms_is_a_prior_of_each_row():
    """A linear model of the counts tells the rows of a mixed cluster apart, so that it and what
    learns with it know more."""
    X, y = make_blobs(
        6000, centers=[(-1, 0), (1, 0), (0, 1), (0, -1)], random_state=3, cluster_std=0.45
    )
    given = {
        "estimator": DecisionTreeClassifier(max_leaf_nodes=16, random_state=0),
        "epsilon": 0.3,
        "validation_fraction": 0,
    }
    by_cluster, by_row = (
        classifier(ClusterPrior(n_clusters=9, epsilon=0.1, linear=linear), **given).fit(
            X, seeded(y)
        )
        for linear in (False, True)
    )
    np.testing.assert_array_equal(by_cluster.prior_.answer.values, by_row.prior_.answer.values)
    priors = [model.prior_.predict_proba(X) for model in (by_cluster, by_row)]
    assert len(np.unique(priors[0], axis=0)) == 9
    assert len(np.unique(priors[1], axis=0)) == len(X)
    assert (priors[1].argmax(1) == y).mean() > (priors[0].argmax(1) == y).mean() + 0.02
    assert by_row.score(X, y) > by_cluster.score(X, y)
    assert clone(by_row).prior.linear


def test_noisy_labels_show_what_their_prior_cost_wherever_they_go(tmp_path, ledger):
    prior = ClusterPrior(n_clusters=8, epsilon=0.1)
    model = classifier(prior, law="cluster-rr", stages=1).fit(X, charged(ledger))
    noisy = model.noisy_labels_
    noisy.save(tmp_path / "noisy.parquet")
    other = ldp.privatize(seeded(noise=None), ldp.RandomizedResponse(K, 0.25))
    for each in (
        noisy,
        noisy[:10],
        noisy[::2],
        ldp.NoisyLabels.load(tmp_path / "noisy.parquet"),
        ldp.concat([noisy[:5], noisy[5:]]),
    ):
        assert (
            each.privacy
            == model.privacy_
            == ldp.PrivacySpent(0.5, 0.0, "row", recorded=True, secure=True)
        )
    assert noisy.combine(other).privacy.epsilon == other.combine(noisy).privacy.epsilon == 0.75
    assert clone(model).fit(X, noisy).privacy_ == model.privacy_
    plain = classifier(None).fit(X, charged(ledger, dataset="others"))
    assert not plain.noisy_labels_.behind
    assert plain.privacy_ == plain.noisy_labels_.privacy


def test_a_repeat_is_not_charged_and_gets_what_was_stored(ledger):
    model, labels = classifier(ClusterPrior(n_clusters=8)), charged(ledger)
    first, second = clone(model).fit(X, labels), clone(model).fit(X, labels)
    assert np.array_equal(first.prior_.answer.values, second.prior_.answer.values)
    assert np.array_equal(first.noisy_labels_.likelihood(), second.noisy_labels_.likelihood())
    assert ledger.spent("people", "class") == 0.5
    assert len(ledger.runs()) == 2
    with pytest.raises(ldp.BudgetExceeded):
        clone(model).set_params(prior__n_clusters=9).fit(X, labels)
    assert len(ledger.runs()) == 2


def test_a_fit_that_died_between_its_charges_goes_on_with_the_answer_that_it_has(
    ledger, monkeypatch
):
    model = classifier(ClusterPrior(n_clusters=8, epsilon=0.1))
    with monkeypatch.context() as patched:
        patched.setattr("labeldp.protocol._estimator.run_stages", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            clone(model).fit(X, charged(ledger))
    assert [run.state for run in ledger.runs()] == ["settled", "charged"]
    again = clone(model).fit(X, charged(ledger))
    assert again.privacy_.epsilon == ledger.spent("people", "class") == 0.5
    assert [run.state for run in ledger.runs()] == ["settled", "settled"]


@pytest.mark.parametrize("budget", [0.3, None])
@pytest.mark.parametrize(
    "ids",
    [None, np.arange(3000), np.char.mod("row %d", np.arange(3000))],
    ids=["no ids", "numbers", "names"],
)
def test_no_charge_is_made_where_the_second_could_not_follow(tmp_path, budget, ids):
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=budget)
    if budget is None:
        ldp.privatize(charged(ledger, ids=ids), ldp.RandomizedResponse(K, 0.2))
    with pytest.raises(ldp.BudgetExceeded, match="in two charges"):
        classifier(ClusterPrior()).fit(X, charged(ledger, ids=ids))
    assert len(ledger.runs()) == (budget is None)


def test_rows_that_spent_nothing_have_room_though_others_have_none(tmp_path):
    ids = np.arange(3000)
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=0.5)
    for part in (slice(0, 1500), slice(1500, None)):
        classifier(ClusterPrior(n_clusters=4)).fit(X[part], charged(ledger, Y[part], ids=ids[part]))
    assert ledger.spent("people", "class") == 0.5
    some = slice(1000, 2000)
    with pytest.raises(ldp.BudgetExceeded, match="in two charges"):
        classifier(ClusterPrior(n_clusters=4)).fit(X[some], charged(ledger, Y[some], ids=ids[some]))
    assert len(ledger.runs()) == 4


@pytest.mark.parametrize(
    ("prior", "settings", "message"),
    [
        (ClusterPrior(epsilon=0.5), {}, "less than the total"),
        (ClusterPrior(epsilon=0.7), {}, "less than the total"),
        (ClusterPrior(linear=1), {}, "linear"),
        (ClusterPrior(), {"law": "rr"}, "does not read it"),
        (ClusterPrior(), {"law": ldp.SubsetSelection(K, 0.5)}, "does not read it"),
        (ClusterPrior(epsilon=0.1), {"law": ldp.RRWithPrior(K, 0.5)}, "leaves of 0.5"),
        (ClusterPrior(), {"correction": "debias"}, "invertible"),
        (ClusterPrior(), {"epsilon": -1.0}, "epsilon"),
    ],
    ids=named,
)
def test_wrong_settings_are_refused_before_a_charge(prior, settings, message, ledger):
    with pytest.raises(ldp.InvalidInput, match=message):
        classifier(prior, **settings).fit(X, charged(ledger))
    assert not ledger.runs()


def test_features_with_gaps_are_refused_unless_the_embedder_fills_them():
    gaps = np.where(np.arange(X.size).reshape(X.shape) % 7 == 0, np.nan, X)
    model = ldp.LabelDPClassifier(epsilon=0.5, prior=ClusterPrior())
    with pytest.raises(ValueError, match="contains NaN"):
        model.fit(gaps, seeded())
    fitted = model.set_params(prior__embedder=np.nan_to_num).fit(gaps, seeded())
    assert fitted.score(gaps, Y) > 0.8


def test_one_cluster_is_the_frequency_of_the_labels():
    model = classifier(ClusterPrior(n_clusters=1, epsilon=0.25)).fit(X, seeded(np.minimum(Y, 1)))
    frequencies = np.bincount(np.minimum(Y, 1), minlength=K) / len(Y)
    # four counts with Laplace noise of scale 8: beyond 150 with chance exp(-18) each
    assert np.abs(model.prior_.predict_proba(X[:1])[0] - frequencies).max() < 4 * 150 / len(Y)


def test_units_share_the_budget_of_both_charges():
    unit = np.arange(len(Y)) // 2
    model = classifier(ClusterPrior(n_clusters=4, epsilon=2.0), epsilon=6.0).fit(
        X, seeded(unit=unit, max_rows_per_unit=2)
    )
    assert model.prior_.answer.receipt.max_rows_per_unit == 2
    assert {block.law.epsilon for block in model.noisy_labels_.blocks} == {2.0}
    assert model.score(X, Y) > 0.9


@pytest.mark.parametrize(
    "settings", [{"stages": 1}, {"stages": 2, "law": "rr-with-prior"}], ids=named
)
def test_coin_flips_are_estimated_to_be_guessed(settings):
    """Nothing can be learned, so the truth is 1/2; a histogram that had counted the held-out rows'
    own labels would give 0.6 and more."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(6000, 4)), rng.integers(0, 2, 6000)
    prior = ClusterPrior(n_clusters=1000, epsilon=3.0)
    model = classifier(
        prior,
        KNeighborsClassifier(1),
        epsilon=6.0,
        validation_fraction=0.3,
        **settings,
    ).fit(X, seeded(y, classes=[0, 1]))
    found = model.estimated_accuracy_
    deviation = (found.high - found.low) / (2 * norm.ppf(0.975))
    assert abs(found.value - 0.5) < norm.isf(MISTAKE / 2) * deviation < 0.1
    assert model.prior_.answer.n_rows.sum() == len(y) - len(model.noisy_labels_.blocks[-1].rows)


def test_rows_that_a_prior_was_not_asked_of_are_kept_for_a_repeat(ledger):
    labels = charged(ledger, ids=np.random.default_rng(0).permutation(len(Y)))
    model = classifier(ClusterPrior(n_clusters=8), validation_fraction=0.3)
    first = clone(model).fit(X, labels)
    again = clone(model).fit(X, labels)
    assert again.estimated_accuracy_ == first.estimated_accuracy_
    assert np.array_equal(again.noisy_labels_.likelihood(), first.noisy_labels_.likelihood())
    assert ledger.spent("people", "class") == 0.5
    assert len(ledger.runs()) == 2
    with pytest.raises(ldp.BudgetExceeded):
        clone(model).set_params(validation_fraction=0.2).fit(X, labels)
    assert len(ledger.runs()) == 2


TRAINER = """
import sys, warnings
import numpy as np
import labeldp as ldp
from labeldp.learn import ClusterPrior, NoiseCluster
from sklearn.naive_bayes import GaussianNB
warnings.simplefilter("ignore")
X = np.random.default_rng(0).normal(size=(20_000, 30)).astype(np.float32)
y, ids = (X[:, 0] > 0).astype(int), np.arange(len(X))
order = ids if sys.argv[2] == "1" else ids[::-1]
shared = {"classes": [0, 1], "column": "class", "ledger": ldp.Ledger(sys.argv[1], budget=5)}
prior = ClusterPrior(n_clusters=60, epsilon=0.1)
votes = NoiseCluster(epsilon=0.1, n_clusters=60)
models = [
    votes.fit(X, ldp.PrivateLabels(y, dataset="votes", **shared)),
    ldp.LabelDPClassifier(GaussianNB(), epsilon=0.5, prior=prior, random_state=0).fit(
        X, ldp.PrivateLabels(y, dataset="rows", **shared)
    ),
    NoiseCluster(epsilon=0.1, n_clusters=60).fit(
        X[order], ldp.PrivateLabels(y[order], dataset="ids", ids=order, **shared)
    ),
]
for model in models:
    sys.stdout.write(str(model.predict(X[:5000]).tolist()))
"""


def test_a_repeat_is_known_whatever_number_of_threads_and_order_found_the_clusters(tmp_path):
    said = []
    for threads in ("1", "2"):
        command = [sys.executable, "-c", TRAINER, str(tmp_path / "ledger.db"), threads]
        run = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": threads},
        )
        assert not run.returncode, run.stderr
        said.append(run.stdout)
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    assert [ledger.spent(dataset, "class") for dataset in ("votes", "rows", "ids")] == [
        0.1,
        0.5,
        0.1,
    ]
    first, again = (np.array(json.loads(f"[{each.replace('][', '],[')}]")) for each in said)
    # centres are the stored ones; only rounding between two of them differs
    assert (first == again).mean() > 0.999


@pytest.mark.parametrize(
    ("change", "anew"),
    [
        ({}, False),
        ({"embedder": PCA(2, svd_solver="full", random_state=0)}, False),
        ({"embedder": lambda rows: rows[:, :2]}, False),
        ({"random_state": 1}, True),
        ({"algorithm": "mini-batch"}, True),
        ({"embedder": "pca"}, True),
        ({"embedder": PCA(2, svd_solver="full", random_state=1)}, True),
        ({"embedder": lambda rows: rows[:, 1:]}, True),
    ],
    ids=named,
)
def test_another_clustering_is_another_request(tmp_path, change, anew):
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=5.0)
    embedder = change.get("embedder")
    before = (
        embedder
        if not anew or embedder is None
        else (lambda rows: rows[:, :2])
        if callable(embedder)
        else None
    )
    first = NoiseCluster(n_clusters=4, embedder=before)
    first.fit(X, charged(ledger))
    clone(first).set_params(**change).fit(X, charged(ledger))
    assert len(ledger.runs()) == 1 + anew
    first.fit(X + 1e-9, charged(ledger))
    assert len(ledger.runs()) == 2 + anew


class Aimed(FunctionTransformer):
    """A transformer with labels among its settings."""

    def __init__(self, targets=None, func=None):
        super().__init__(func)
        self.targets = targets


@pytest.mark.parametrize(
    "wrap",
    [
        lambda part: part,
        lambda part: make_pipeline(part, PCA(2, svd_solver="full", random_state=0)),
    ],
    ids=named,
)
def test_a_ledger_knows_nothing_of_what_an_embedder_holds(wrap):
    """No digest of labels that somebody's transformer has among its settings, alone or in a
    pipeline."""
    clusters = find_clusters(X, 2, embedder=wrap(Aimed(Y)))
    known = [
        clustering_request(X, clusters, wrap(Aimed(each)), {})(None)
        for each in (Y, Y[::-1], Y.tolist(), int(Y.sum()))
    ]
    assert len(set(known)) == 1
    means = [PCA(2, svd_solver="full", random_state=0).fit(X), StandardScaler().fit(X)]
    # settings that say all are still told apart
    assert len({clustering_request(X, clusters, each, {})(None) for each in means}) == 2


def test_groups_that_are_gone_are_not_guessed(ledger):
    model = NoiseCluster(n_clusters=4).fit(X, charged(ledger))
    (ledger.run_dir(ledger.runs()[0].run_id) / "groups.npy").unlink()
    with pytest.raises(ldp.LedgerError, match="Restore"):
        model.fit(X, charged(ledger))


# NoiseCluster
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "estimator",
    [None, DecisionTreeClassifier(max_depth=4, random_state=0), LogisticRegression()],
    ids=named,
)
def test_votes_label_clusters_where_rows_say_nothing(estimator):
    names = np.array(["north", "east", "south", "west"])
    model = NoiseCluster(estimator, epsilon=0.05, n_clusters=K).fit(
        X, seeded(names[Y], classes=names)
    )
    assert model.score(X, names[Y]) > 0.95
    assert set(model.predict(X[:50])) <= set(names)
    assert set(model.cluster_classes_) == set(names)
    proba = model.predict_proba(X)
    assert np.allclose(proba.sum(axis=1), 1)
    assert np.array_equal(model.classes_[proba.argmax(axis=1)], model.predict(X))
    # a vote of 750 rows at epsilon 0.05 fails with chance exp(-0.025 * lead), about 1e-4 at a lead
    # of half of them
    assert (model.failure_ < 1e-3).all()
    assert (model.failure(0.1) > model.failure(0.5)).all()
    before = model.failure()
    # of the answer, not of the next fit
    assert (model.set_params(epsilon=3.0).failure() == before).all()


def test_a_vote_is_charged_once_and_kept(ledger):
    model, labels = NoiseCluster(epsilon=0.02), charged(ledger, ids=np.arange(len(Y)))
    first = clone(model).fit(X, labels)
    second = clone(model).set_params(estimator=GaussianNB()).fit(X, labels)
    assert np.array_equal(first.cluster_classes_, second.cluster_classes_)
    assert (
        first.privacy_
        == second.privacy_
        == ldp.PrivacySpent(0.02, 0.0, "row", recorded=True, secure=True)
    )
    assert len(ledger.runs()) == 1
    with pytest.raises(ldp.BudgetExceeded):
        clone(model).set_params(epsilon=0.01).fit(X, labels)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": float("nan")}, "epsilon"),
        ({"epsilon": 0}, "epsilon"),
        ({"mechanism": "magic"}, "mechanism"),
        ({"mechanism": "gaussian"}, "delta"),
    ],
    ids=named,
)
def test_wrong_votes_are_refused(settings, message, ledger):
    with pytest.raises(ldp.InvalidInput, match=message):
        NoiseCluster(**settings).fit(X, charged(ledger))
    assert not ledger.runs()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"max_rows_per_unit": 0}, "max_rows_per_unit"),
        ({"max_rows_per_unit": 2}, "unit"),
        ({"dataset": None}, "dataset"),
        ({"classes": [0, 1]}, "codes 0 to 1"),
        ({"classes": None}, "classes that a label can have, got none"),
    ],
    ids=named,
)
def test_wrong_facts_are_refused_where_labels_are_closed(facts, message, ledger):
    with pytest.raises(ldp.InvalidInput, match=message):
        charged(ledger, **facts)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (LinearRegression(), "got LinearRegression"),
        (make_pipeline(StandardScaler(), LinearRegression()), "got Pipeline"),
        (KMeans(3), "got KMeans"),
        (StandardScaler(), "got StandardScaler"),
        (LogisticRegression, "LogisticRegression itself"),
        (object(), "got object"),
        (ldp.LabelDPClassifier(), "Expected PrivateLabels"),
        (NoiseCluster(), "Expected PrivateLabels"),
        (
            make_pipeline(StandardScaler(), ldp.LabelDPClassifier()),
            "Expected PrivateLabels",
        ),
        (GridSearchCV(ldp.LabelDPClassifier(), {}), "All the 5 fits failed"),
    ],
    ids=named,
)
def test_what_cannot_learn_classes_is_refused_before_a_charge(ledger, estimator, message):
    with pytest.raises(ldp.InvalidInput, match=message):
        NoiseCluster(estimator).fit(X, charged(ledger))
    for correction in ("auto", "em"):
        with pytest.raises(ldp.InvalidInput, match=message):
            ldp.LabelDPClassifier(estimator, correction=correction).fit(X, charged(ledger))
    assert not ledger.runs()


def test_raw_labels_only():
    noisy = ldp.privatize(seeded(noise=ldp.SeededNoise(1)), ldp.SubsetSelection(K, 2.0))
    with pytest.raises(ldp.InvalidInput, match="LabelDPClassifier"):
        NoiseCluster().fit(X, noisy)
    with pytest.raises(ldp.InvalidInput, match="Expected PrivateLabels"):
        ldp.LabelDPClassifier(NoiseCluster(), correction="em").fit(X, seeded(noise=None))
    model = NoiseCluster(epsilon=1.0).fit(X, seeded())
    assert abs(model.score(X, noisy) - model.score(X, Y)) < 0.1
    assert model.score(X, noisy, sample_weight=np.ones(len(Y))) == pytest.approx(
        model.score(X, noisy)
    )


def test_a_wrong_vote_is_as_rare_as_it_says():
    """Two clusters of 40 rows, each of one class, 400 seeds: wrong votes are as many as stated, not
    a quarter or four times as many."""
    X = np.repeat([[0.0], [9.0]], 40, axis=0)
    y = np.repeat([0, 1], 40)
    wrong, stated = 0, 0.0
    for seed in range(400):
        model = NoiseCluster(epsilon=0.1, n_clusters=2).fit(
            X, ldp.PrivateLabels(y, classes=[0, 1], noise=ldp.SeededNoise(seed))
        )
        wrong += int((model.predict(X[[0, -1]]) != [0, 1]).sum())
        stated = float(model.failure(1.0).mean())
    assert binom.ppf(MISTAKE, 800, stated) <= wrong <= binom.isf(MISTAKE, 800, stated)
    assert binom.isf(MISTAKE, 800, stated / 4) < wrong < binom.ppf(MISTAKE, 800, 4 * stated)


# Histograms as priors
# --------------------------------------------------------------------------------------------------


def answer_of(values, n_rows, epsilon=1.0):
    values = np.asarray(values, np.int64)
    query = ldp.aggregates.Histogram(values.shape[1], epsilon, len(values))
    receipt = ldp.Receipt("0" * 32, "", "label", "row", 1, epsilon)
    return ldp.aggregates.Aggregate(
        query, values, np.asarray(n_rows, np.int64), tuple(range(values.shape[1])), receipt
    )


def test_noise_is_projected_off_a_histogram():
    exact_counts = answer_of([[60, 30, 10]], [100], epsilon=700.0).prior([0])
    np.testing.assert_allclose(exact_counts, [[0.6, 0.3, 0.1]])
    # 7 too many in all: taken off evenly, and what is negative stays at 0; by hand, the level is
    # 3.5
    np.testing.assert_allclose(
        answer_of([[63, 44, -5]], [100], epsilon=700.0).prior([0]), [[0.595, 0.405, 0]], atol=1e-12
    )
    np.testing.assert_allclose(
        answer_of([[5, -7, 3], [9, 9, 9]], [0, 2], epsilon=0.01).prior([0, 1]), 1 / 3
    )


def test_projected_histograms_are_nearer_to_the_truth_than_clamped_ones():
    rng = np.random.default_rng(0)
    true = rng.dirichlet(np.full(10, 0.1), 400)
    groups = np.repeat(np.arange(400), 100)
    labels = (rng.random((len(groups), 1)) > true[groups].cumsum(axis=1)).sum(axis=1).clip(max=9)
    answer = ldp.aggregate(
        ldp.PrivateLabels(labels, classes=range(10), noise=ldp.SeededNoise(0)),
        ldp.aggregates.Histogram(10, 0.4, 400),
        groups,
    )
    positive = np.maximum(answer.values, 0.0)
    clamped, projected = (
        positive / positive.sum(axis=1, keepdims=True),
        answer.prior(np.arange(400)),
    )
    found = np.zeros((400, 10))
    np.add.at(found, (groups, labels), 0.01)
    np.testing.assert_allclose(projected.sum(axis=1), 1)
    assert projected.min() >= 0
    assert np.abs(projected - found).sum() < 0.8 * np.abs(clamped - found).sum()


@pytest.mark.parametrize("kind", [NoiseCluster, ProportionClassifier, "prior"])
def test_clusters_are_as_many_as_the_counted_rows_can_measure(kind):
    """Six rows a person, of which one is counted."""
    X = np.random.default_rng(0).normal(size=(1200, 3))
    y, person = (X[:, 0] > 0).astype(int), np.arange(1200) // 6
    found, given = [], {"epsilon": 1.0, "random_state": 0}
    for rows, unit in ((1200, person), (200, None)):
        labels = seeded(y[:rows], classes=[0, 1], unit=unit)
        if kind == "prior":
            prior = ClusterPrior(epsilon=0.5)
            fitted = ldp.LabelDPClassifier(GaussianNB(), prior=prior, **given).fit(X[:rows], labels)
            found.append(fitted.prior_.answer.query.n_groups)
        else:
            found.append(kind(**given).fit(X[:rows], labels).clusters_.n_clusters)
    assert found[0] == found[1] > 1
