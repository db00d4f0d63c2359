# SPDX-License-Identifier: Apache-2.0
"""Metrics of rare classes from noisy labels: intervals that cover, values that agree with
scikit-learn's where there is no noise."""

import math
import warnings

import numpy as np
import pytest
from sklearn import metrics as true
from sklearn.calibration import CalibratedClassifierCV, calibration_curve
from sklearn.ensemble import VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    KFold,
    TunedThresholdClassifierCV,
    cross_val_score,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC, LinearSVC

import labeldp as ldp
from labeldp import errors
from labeldp.papers.malek2021 import Alibi
from labeldp.protocol import metrics

SIGMAS = 4.9  # two-sided normal quantile of a false alarm of 1e-6
TRIALS, N, RATE = 200, 1000, 0.1
COSTS = [[0.0, 1.0], [8.0, 0.0]]


def population(n, k, seed):
    """Labels of k classes, of which the last has about RATE, scores of it, and predictions."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(k, p=np.append(np.full(k - 1, (1 - RATE) / (k - 1)), RATE), size=n)
    scores = np.round(rng.normal(size=n) + 1.5 * (labels == k - 1), 1)  # with ties
    return (
        labels,
        scores,
        (
            np.where(scores > 1.2, k - 1, labels * (rng.random(n) < 0.7))
            if k > 2
            else (scores > 1.2).astype(int)
        ),
    )


FIGURES = {
    "precision": lambda y, s, p, k: true.precision_score(y == k - 1, p == k - 1),
    "recall": lambda y, s, p, k: true.recall_score(y == k - 1, p == k - 1),
    "f1": lambda y, s, p, k: true.f1_score(y == k - 1, p == k - 1),
    "roc_auc": lambda y, s, p, k: true.roc_auc_score(y == k - 1, s),
    "average_precision": lambda y, s, p, k: true.average_precision_score(y == k - 1, s),
    "lift": lambda y, s, p, k: (y == k - 1)[top(s)].mean() / (y == k - 1).mean(),
    "balanced_accuracy": lambda y, s, p, k: true.balanced_accuracy_score(y, p),
}


def top(scores):
    return np.argsort(-scores, kind="stable")[: len(scores) // 10]


def found(name, noisy, scores, predictions, **given):
    positive = {"positive": noisy.classes[-1]}
    if name in ("roc_auc", "average_precision"):
        return getattr(metrics, name)(noisy, scores, **positive, **given)
    if name == "lift":
        return metrics.lift(noisy, scores, 0.1, **positive, **given)
    if name == "balanced_accuracy":
        return metrics.balanced_accuracy(noisy, predictions, **given)
    return getattr(metrics, name)(noisy, predictions, **positive, **given)


LAWS = {
    "rr, 2 classes, eps 1": ldp.RandomizedResponse(2, 1.0),
    "rr, 2 classes, eps 4": ldp.RandomizedResponse(2, 4.0),
    "subset, 6 classes, eps 2": ldp.SubsetSelection(6, 2.0),
    "alibi, 3 classes, eps 3": Alibi(3, 3.0),
}


@pytest.mark.nightly
@pytest.mark.parametrize("known", [False, True], ids=["rate unknown", "rate known"])
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_intervals_cover_what_is_true_of_the_population(law, known):
    """At least 93 % at a nominal 95 %, false alarm 1e-6 a figure whose coverage is 93 %; median
    width at most 1.5 times the spread."""
    k = law.n_classes
    labels, scores, predictions = population(TRIALS * N, k, 1)
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(k), noise=ldp.SeededNoise(1)), law
    )
    truth = {name: figure(labels, scores, predictions, k) for name, figure in FIGURES.items()}
    given = {"class_prior": float((labels == k - 1).mean())} if known else {}
    names = [
        name
        for name in FIGURES
        if not known or name in ("recall", "f1", "roc_auc", "average_precision", "lift")
    ]
    rows = np.arange(TRIALS * N).reshape(TRIALS, N)
    kept = {name: [] for name in names}
    for part in rows:
        few = noisy[part]
        for name in names:
            kept[name].append(found(name, few, scores[part], predictions[part], **given))
    for name, each in kept.items():
        covered = np.mean([e.low <= truth[name] <= e.high for e in each])
        assert covered > 0.93 - SIGMAS * math.sqrt(0.93 * 0.07 / TRIALS), (name, covered)
        values = np.array([e.value for e in each])
        needed = np.subtract(*np.percentile(values, [97.5, 2.5]))
        width = np.median([e.high - e.low for e in each])
        assert width < 1.5 * needed, (name, width / needed)


@pytest.mark.nightly
@pytest.mark.parametrize("epsilon", [1e-6, 0.001, 0.01, 0.05])
@pytest.mark.parametrize("shift", [3.0, 0.0], ids=["rare", "balanced"])
def test_areas_cover_where_noise_hides_the_class(shift, epsilon):
    """At least 95 % of 400 intervals, false alarm 1e-6; where nothing is told, the whole range."""
    trials, n, rng = 400, 500, np.random.default_rng(0)
    chance = 1 / (1 + np.exp(shift - 1.5 * rng.normal(size=(trials, n))))
    labels = (rng.random((trials, n)) < chance).astype(int)
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels.ravel(), classes=range(2), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(2, epsilon),
    )
    areas = [metrics.roc_auc(noisy[np.arange(n) + n * i], chance[i]) for i in range(trials)]
    covered = np.mean(
        [
            e.low <= true.roc_auc_score(y, p) <= e.high
            for e, y, p in zip(areas, labels, chance, strict=True)
        ]
    )
    assert covered > 0.95 - SIGMAS * math.sqrt(0.95 * 0.05 / trials)
    if epsilon < 0.01:
        assert all(
            str(e).startswith("cannot tell") and (e.low, e.high) == (0.0, 1.0) for e in areas
        )


@pytest.mark.nightly
@pytest.mark.parametrize("known", [False, True], ids=["rate unknown", "rate known"])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.2])
def test_average_precision_covers_under_much_noise(epsilon, known):
    """At least 93 % of 400 intervals at a nominal 95 %, false alarm 1e-6: of 83 % it would fail."""
    trials, n, rng = 400, 500, np.random.default_rng(0)
    chance = 1 / (1 + np.exp(-3 - 1.5 * rng.normal(size=(trials, n))))
    labels = (rng.random((trials, n)) < chance).astype(int)
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels.ravel(), classes=range(2), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(2, epsilon),
    )
    covered = []
    for i, (y, p) in enumerate(zip(labels, chance, strict=True)):
        found = metrics.average_precision(
            noisy[np.arange(n) + n * i], p, class_prior=y.mean() if known else None
        )
        covered.append(found.low <= true.average_precision_score(y, p) <= found.high)
    assert np.mean(covered) > 0.93 - SIGMAS * math.sqrt(0.93 * 0.07 / trials), np.mean(covered)


def known_labels(n=400, seed=3, k=2):
    """Labels that hardly any noise has touched, so that every metric is scikit-learn's."""
    labels, scores, predictions = population(n, k, seed)
    return (
        labels,
        scores,
        predictions,
        ldp.privatize(
            ldp.PrivateLabels(labels, classes=range(k), noise=ldp.SeededNoise(0)),
            ldp.RandomizedResponse(k, 35.0),
        ),
    )


@pytest.mark.parametrize("k", [2, 4])
def test_without_noise_values_are_those_of_scikit_learn(k):
    labels, scores, predictions, noisy = known_labels(k=k)
    for name in ("precision", "recall", "f1", "roc_auc", "average_precision", "balanced_accuracy"):
        assert found(name, noisy, scores, predictions).value == pytest.approx(
            FIGURES[name](labels, scores, predictions, k), abs=1e-9
        ), name
    proba = np.random.default_rng(0).dirichlet(np.ones(k), len(labels))
    assert metrics.brier_score(noisy, proba).value == pytest.approx(
        true.brier_score_loss(labels, proba, labels=range(k))
    )
    observed, predicted = calibration_curve(labels == k - 1, proba[:, -1], n_bins=7)
    found_curve = metrics.calibration_curve(noisy, proba, n_bins=7, positive=k - 1)
    np.testing.assert_allclose(found_curve.observed.value, observed, atol=1e-9)
    np.testing.assert_allclose(found_curve.predicted, predicted)
    assert found_curve.error.value == pytest.approx(
        found_curve.share @ np.abs(observed - predicted)
    )


def test_weights_count_as_in_scikit_learn():
    labels, scores, predictions, noisy = known_labels()
    weights = np.random.default_rng(0).integers(0, 4, len(labels))
    given = {"sample_weight": weights}
    pairs = {
        "accuracy": true.accuracy_score(labels, predictions, **given),
        "precision": true.precision_score(labels, predictions, **given),
        "recall": true.recall_score(labels, predictions, **given),
        "f1": true.f1_score(labels, predictions, **given),
        "balanced_accuracy": true.balanced_accuracy_score(labels, predictions, **given),
    }
    for name, expected in pairs.items():
        assert getattr(metrics, name)(noisy, predictions, **given).value == pytest.approx(
            expected
        ), name
    assert metrics.roc_auc(noisy, scores, **given).value == pytest.approx(
        true.roc_auc_score(labels, scores, **given)
    )
    expected = true.average_precision_score(labels, scores, **given)
    assert metrics.average_precision(noisy, scores, **given).value == pytest.approx(expected)
    p, repeated = np.clip(0.3 + 0.2 * scores, 0, 1), np.repeat(np.arange(400), weights)
    plain, weighted = (
        metrics.calibration_curve(noisy[repeated], p[repeated]),
        metrics.calibration_curve(noisy, p, **given),
    )
    for part in ("predicted", "share"):
        np.testing.assert_allclose(getattr(weighted, part), getattr(plain, part))
    np.testing.assert_allclose(weighted.observed.value, plain.observed.value)
    assert weighted.error.value == pytest.approx(plain.error.value) and weighted.noise > plain.noise
    alike = metrics.calibration_curve(noisy, p, sample_weight=np.full(400, 3.0)).error
    assert alike == metrics.calibration_curve(noisy, p).error
    counted = weights > 0  # what does not count moves no edge
    expected = metrics.calibration_curve(
        noisy[counted], p[counted], strategy="quantile", sample_weight=weights[counted]
    )
    np.testing.assert_allclose(
        metrics.calibration_curve(noisy, p, strategy="quantile", **given).predicted,
        expected.predicted,
    )
    for wrong in ([1.0], -np.ones(400), np.full(400, np.nan), np.zeros(400)):
        with pytest.raises(ldp.InvalidInput, match="sample_weight"):
            metrics.roc_auc(noisy, scores, sample_weight=wrong)


def test_cost_and_threshold():
    labels, scores, predictions, noisy = known_labels(4000)
    expected = np.asarray(COSTS)[labels, predictions].mean()
    assert metrics.cost(noisy, predictions, COSTS).value == pytest.approx(expected)
    assert metrics.cost(noisy, predictions, COSTS).constant == pytest.approx(
        min(labels.mean() * 8, 1 - labels.mean())
    )
    levels = np.unique(scores)
    by_cost = [np.asarray(COSTS)[labels, (scores >= level).astype(int)].mean() for level in levels]
    assert metrics.best_threshold(noisy, scores, costs=COSTS) == levels[int(np.argmin(by_cost))]
    by_f1 = [true.f1_score(labels, scores >= level) for level in levels]
    assert metrics.best_threshold(noisy, scores) == levels[int(np.argmax(by_f1))]
    # a miss gains: predict no row
    assert metrics.best_threshold(noisy, scores, costs=[[0, 1], [-1, 0]]) == math.inf
    with pytest.raises(ldp.InvalidInput, match=r"costs\[true, predicted\]"):
        metrics.cost(noisy, predictions, [[0, 1]])


def test_calibration_error_covers_and_names_what_noise_alone_shows():
    """At least 95 % by construction; false alarm 1e-6."""
    rng = np.random.default_rng(4)
    p = rng.beta(1, 9, 200 * N)
    labels = (rng.random(len(p)) < p).astype(int)
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(2), noise=ldp.SeededNoise(4)),
        ldp.RandomizedResponse(2, 1.0),
    )
    shown, errors = [], []
    for part in np.arange(len(p)).reshape(200, N):
        curve = metrics.calibration_curve(noisy[part], p[part], strategy="quantile")
        shown.append(curve.error.low == 0)  # the truth is 0
        errors.append(curve.error.value / curve.noise)
    assert np.mean(shown) > 0.95 - SIGMAS * math.sqrt(0.95 * 0.05 / 200)
    assert 0.8 < np.mean(errors) < 1.05
    off = metrics.calibration_curve(noisy, np.minimum(2 * p, 1))
    assert off.error.low > 0.02 and "observed" in str(off)


def test_edges_have_defined_results():
    labels, scores, predictions = population(3000, 2, 5)
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(2), noise=ldp.SeededNoise(5)),
        ldp.RandomizedResponse(2, 2.0),
    )
    constant = metrics.roc_auc(noisy, np.zeros(3000))
    assert (
        constant.value == pytest.approx(0.5)
        and constant.low == pytest.approx(0.5)
        and constant.constant == 0.5
    )
    assert metrics.average_precision(noisy, np.zeros(3000)).value == pytest.approx(
        metrics.precision(noisy, np.ones(3000, int)).value, rel=0.02
    )
    assert metrics.lift(noisy, np.zeros(3000), 0.1).value == pytest.approx(1.0)
    nothing = metrics.precision(noisy, np.zeros(3000, int))
    assert (
        math.isnan(nothing.value) and not nothing.tells and str(nothing).startswith("cannot tell")
    )
    assert (
        metrics.recall(noisy, np.zeros(3000, int)).value
        == metrics.f1(noisy, np.zeros(3000, int)).value
        == 0
    )
    none = ldp.privatize(
        ldp.PrivateLabels(np.zeros(3000, int), classes=[0, 1], noise=ldp.SeededNoise(6)),
        ldp.RandomizedResponse(2, 1.0),
    )
    for figure in (
        metrics.roc_auc(none, scores),
        metrics.average_precision(none, scores),
        metrics.recall(none, predictions),
    ):
        assert not figure.tells  # one class alone: nothing to say
    few = metrics.roc_auc(noisy[:5], scores[:5])
    assert (few.low, few.high) == (0.0, 1.0)
    assert metrics.roc_auc(noisy[:1], scores[:1]).low == 0.0
    assert metrics.roc_auc(noisy, np.where(scores > 0, np.inf, scores)).tells


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda noisy, s: metrics.roc_auc(noisy, np.where(s > 0, np.nan, s)), "NaN"),
        (lambda noisy, s: metrics.roc_auc(noisy, s[:4]), "shape"),
        (
            lambda noisy, s: metrics.roc_auc(noisy, s, positive="yes"),
            "positive= as one of the 2 classes",
        ),
        (lambda noisy, s: metrics.roc_auc(noisy, s, class_prior=1.0), "class_prior"),
        (
            lambda noisy, s: metrics.roc_auc(noisy, s, class_prior={1: 0.1}),
            "got class_prior=dict. Pass the rate of the positive class as one",
        ),
        (lambda noisy, s: metrics.lift(noisy, s, 0.0), "share"),
        (lambda noisy, s: metrics.lift(noisy, s, 5), "share"),
        (lambda noisy, s: metrics.calibration_curve(noisy, s), r"\[0, 1\]"),
        (
            lambda noisy, s: metrics.calibration_curve(noisy, np.abs(s) / 9, strategy="even"),
            "uniform",
        ),
        (lambda noisy, s: metrics.make_scorer("roc-auc"), "roc_auc"),
        (lambda noisy, s: metrics.roc_auc([0, 1], s), "Expected NoisyLabels"),
        (lambda noisy, s: metrics.accuracy(np.arange(2), np.arange(2)), "Expected NoisyLabels"),
    ],
)
def test_bad_input_is_refused(call, message):
    labels, scores, _ = population(100, 2, 0)
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=[0, 1], noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(2, 1.0),
    )
    with pytest.raises(ldp.InvalidInput, match=message):
        call(noisy, scores)


def test_laws_without_an_inverse_and_classes_without_a_name_are_refused():
    labels, scores, predictions = population(300, 3, 0)
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(3), noise=ldp.SeededNoise(0)),
        ldp.PriorSplit(3, 1.0),
    )
    for name in FIGURES:
        with pytest.raises(ldp.InvalidInput, match="unbiased estimator"):
            found(name, noisy, scores, predictions)
    with pytest.raises(ldp.InvalidInput, match="one against the rest"):
        metrics.roc_auc(noisy, scores)


# scikit-learn
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learned():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 4))
    labels = np.where(rng.random(3000) < 1 / (1 + np.exp(1 - 1.5 * X[:, 0])), "yes", "no")
    # not in sorted order
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=["yes", "no"], noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(2, 3.0),
    )
    return X, labels, noisy


def model():
    return ldp.LabelDPClassifier(LogisticRegression(), random_state=0)


# tests/learn/test_regressor.py tests these
OF_NUMBERS = ("r2", "neg_mean_squared_error", "neg_root_mean_squared_error")


@pytest.mark.parametrize("name", [name for name in metrics.SCORES if name not in OF_NUMBERS])
def test_every_scorer_works_in_a_cross_validation(learned, name):
    X, labels, noisy = learned
    given = {"lift": {"share": 0.1}, "neg_cost": {"costs": [[0, 5], [1, 0]]}}.get(name, {})
    if name in (
        "precision",
        "recall",
        "f1",
        "roc_auc",
        "average_precision",
        "lift",
    ):
        given = given | {"positive": "yes"}
    scores = cross_val_score(
        model(),
        X,
        noisy,
        cv=KFold(3),
        scoring=metrics.make_scorer(name, **given),
        error_score="raise",
    )
    assert np.isfinite(scores).all()
    fitted, weights = model().fit(X[:2000], noisy[:2000]), np.repeat([0.0, 1.0], 500)
    scorer = metrics.make_scorer(name, **given)
    assert scorer(fitted, X[2000:], noisy[2000:], weights) == pytest.approx(
        scorer(fitted, X[2500:], noisy[2500:])
    )
    # an estimator whose classes are in another order is read by their names
    other = LogisticRegression().fit(X, labels)
    if name == "roc_auc":
        assert metrics.make_scorer(name, **given)(other, X, noisy) == pytest.approx(
            true.roc_auc_score(labels == "yes", X[:, 0]), abs=0.05
        )


@pytest.mark.parametrize("name", ["roc_auc", "average_precision", "lift"])
def test_decision_functions_are_read_by_the_names_of_the_classes(name):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 2))
    labels = np.select([X[:, 0] > 0.5, X[:, 1] > 0], ["c", "a"], "b")
    # not sorted
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=["c", "a", "b"], noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(3, 30.0),
    )
    given = {"share": 0.2} if name == "lift" else {}
    constant = {"roc_auc": 0.5, "lift": 1.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.UnmeasuredWarning)
        for positive in noisy.classes:
            scorer = metrics.make_scorer(name, positive=positive, **given)
            all_three, two = (
                LinearSVC().fit(X, labels),
                LinearSVC().fit(X[labels != "b"], labels[labels != "b"]),
            )
            scores = all_three.decision_function(X)[:, all_three.classes_.tolist().index(positive)]
            wanted = getattr(metrics, name)(noisy, scores, *given.values(), positive=positive).value
            assert scorer(all_three, X, noisy) == wanted > 0.85
            # of two classes there is one column; the third one's rows tie
            scores = {"a": -1, "b": 0, "c": 1}[positive] * two.decision_function(X)
            wanted = getattr(metrics, name)(noisy, scores, *given.values(), positive=positive).value
            assert scorer(two, X, noisy) == wanted
            if positive == "b":
                assert wanted == pytest.approx(constant.get(name, (labels == "b").mean()), abs=0.01)
            pairs = SVC(decision_function_shape="ovo").fit(X[:500], np.append(labels[:499], "d"))
            with pytest.raises(ldp.InvalidInput, match="column for each of 4 classes"):
                scorer(
                    pairs,
                    X,
                    ldp.privatize(
                        ldp.PrivateLabels(labels, classes=[*"cabd"], noise=ldp.SeededNoise(0)),
                        ldp.RandomizedResponse(4, 30.0),
                    ),
                )
    with pytest.raises(ldp.InvalidInput, match="predict_distribution"):
        scorer(LinearRegression().fit(X, X[:, 0]), X, noisy)


def test_a_search_by_a_name_of_scikit_learn_says_what_to_pass(learned):
    X, _, noisy = learned
    grid = {"estimator__C": [0.01, 1.0]}
    for scoring in ("roc_auc", ["accuracy", "f1"]):
        search = GridSearchCV(
            model(), grid, scoring=scoring, refit=False, cv=KFold(2), error_score="raise"
        )
        with pytest.raises(ValueError, match=r"scoring=labeldp.metrics.make_scorer"):
            search.fit(X, noisy)
    search = GridSearchCV(
        model(), grid, scoring=metrics.make_scorer("roc_auc", positive="yes"), cv=KFold(2)
    ).fit(X, noisy)
    assert 0.6 < search.best_score_ < 1


def test_a_search_whose_scores_exclude_nothing_says_so_once(learned):
    X, labels, _ = learned
    X, labels = X[:300], labels[:300]
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=["no", "yes"], noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(2, 0.05),
    )
    grid = {"estimator__C": [0.01, 1.0]}
    # 100 rows a fold: the standard error of an accuracy is 2 or more
    for scoring in (None, metrics.make_scorer("accuracy")):
        with pytest.warns(
            errors.UnmeasuredWarning, match=r"of 100 noisy labels, .* whole range, 0.0000 to 1.0000"
        ) as said:
            search = GridSearchCV(model(), grid, cv=KFold(3), scoring=scoring).fit(X, noisy)
        told = [each for each in said if each.category is errors.UnmeasuredWarning]
        assert len(told) == 1 and not 0 <= search.cv_results_["split0_test_score"][0] <= 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics.make_scorer("accuracy")(search, X[:100], noisy[:100])  # said before of these labels
        metrics.likelihood_scorer(search, X[:100], noisy[:100])
    other = ldp.privatize(
        ldp.PrivateLabels(labels[:90], classes=["no", "yes"], noise=ldp.SeededNoise(1)),
        ldp.RandomizedResponse(2, 0.05),
    )
    # of others it is said again
    with pytest.warns(errors.UnmeasuredWarning, match="of 90 noisy labels"):
        metrics.make_scorer("accuracy")(search, X[:90], other)


@pytest.fixture(scope="module")
def asked():
    """Features, true labels, and noisy labels of a column about which only some rows were asked."""
    rng = np.random.default_rng(1)
    # so that much shrinkage hides the feature that tells
    X = rng.normal(size=(3000, 2)) * [0.02, 1.0]
    labels = {
        "ill": np.where(X[:, 0] > 0, "yes", "no"),
        "rating": rng.choice(["low", "fair", "high"], 3000),
    }
    columns = ldp.LabelColumns({"ill": ["no", "yes"], "rating": ["low", "fair", "high"]})
    noisy = ldp.privatize(
        ldp.PrivateLabels(
            np.column_stack([*labels.values()]), classes=columns, noise=ldp.SeededNoise(0)
        ),
        columns.law(6.0, "one"),
    )
    return X, labels["ill"], noisy["ill"]


@pytest.mark.parametrize(
    "scoring",
    [
        None,
        metrics.make_scorer("roc_auc"),
        metrics.make_scorer("neg_log_loss"),
        metrics.likelihood_scorer,
    ],
)
def test_a_search_scores_the_rows_that_were_asked(asked, scoring):
    X, _, noisy = asked
    assert 0 < noisy.evidenced.sum() < len(noisy)
    # C = 1e-6 leaves the feature without a weight
    search = GridSearchCV(
        model(), {"estimator__C": [1e-6, 10.0]}, cv=KFold(3), scoring=scoring, error_score="raise"
    ).fit(X, noisy)
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all() and search.best_params_ == {"estimator__C": 10.0}


def test_rows_without_evidence_count_in_no_score(asked):
    X, labels, noisy = asked
    kept, weights = noisy.evidenced, np.linspace(1, 2, len(noisy))
    fitted = LogisticRegression(C=1e4).fit(X, labels)
    for scorer in (metrics.make_scorer("accuracy"), metrics.make_scorer("roc_auc")):
        alone = scorer(fitted, X[kept], noisy[kept])
        assert scorer(fitted, X, noisy) == pytest.approx(alone, abs=1e-12)
        assert scorer(fitted, X, noisy, weights) == pytest.approx(
            scorer(fitted, X[kept], noisy[kept], weights[kept]), abs=1e-12
        )
    own = model().fit(X[:1500], noisy[:1500])
    X, noisy, kept = X[1500:], noisy[1500:], kept[1500:]
    assert own.score(X, noisy) == pytest.approx(own.score(X[kept], noisy[kept]), abs=1e-12)
    for none in (
        lambda: own.score(X[~kept], noisy[~kept]),
        lambda: metrics.likelihood_scorer(own, X[~kept], noisy[~kept]),
    ):
        with pytest.raises(ldp.InvalidInput, match="evidence for at least one row to score by"):
            none()
    with pytest.raises(ldp.InvalidInput, match="predictions of 1500 rows"):
        metrics.make_scorer("accuracy")(own, X[:7], noisy)
    with pytest.raises(ldp.InvalidInput, match=r"noisy\.evidenced"):
        metrics.accuracy(noisy, own.predict(X))


def test_what_takes_fitted_models_works_and_the_rest_goes_inside(learned):
    X, labels, noisy = learned
    fitted = model().fit(X, noisy)
    threshold = metrics.best_threshold(noisy, fitted.predict_proba(X), positive="yes")
    fixed = FixedThresholdClassifier(
        FrozenEstimator(fitted),
        threshold=threshold,
        pos_label="yes",
        response_method="predict_proba",
    )
    assert np.mean(fixed.predict(X) == labels) > 0.6
    assert FrozenEstimator(fitted).fit(X, noisy).score(X, labels) > 0.7
    votes = VotingClassifier(
        [("a", LogisticRegression()), ("b", LogisticRegression(C=0.01))], voting="soft"
    )
    inside = ldp.LabelDPClassifier(votes, random_state=0).fit(X, noisy)
    assert true.roc_auc_score(labels == "yes", inside.predict_proba(X)[:, 0]) > 0.75
    calibrated = ldp.LabelDPClassifier(
        CalibratedClassifierCV(LogisticRegression(), cv=3), random_state=0
    ).fit(X, noisy)
    assert (
        metrics.calibration_curve(noisy, calibrated.predict_proba(X), positive="yes").error.low
        < 0.05
    )
    for around in (
        VotingClassifier([("a", model())]),
        CalibratedClassifierCV(model(), cv=KFold(2)),
        CalibratedClassifierCV(FrozenEstimator(fitted)),
        TunedThresholdClassifierCV(model(), scoring=metrics.make_scorer("f1"), cv=KFold(2)),
        FixedThresholdClassifier(model()),
    ):
        with pytest.raises(ldp.InvalidInput, match=r"go inside.*best_threshold"):
            around.fit(X, noisy)
    half = model().fit(X[:1500], noisy[:1500])
    rest, weights = slice(1500, None), np.repeat([0.0, 1.0], 750)
    assert half.score(X[rest], noisy[rest], sample_weight=weights) == pytest.approx(
        half.score(X[2250:], noisy[2250:])
    )


@pytest.mark.parametrize("kind", [TunedThresholdClassifierCV, FixedThresholdClassifier])
@pytest.mark.parametrize(
    "wrap",
    [lambda inner: inner, make_pipeline, lambda inner: VotingClassifier([("a", inner)])],
    ids="apv",
)
def test_a_threshold_inside_is_refused_before_any_charge(learned, ledger, kind, wrap):
    X, labels, noisy = learned
    inside = ldp.LabelDPClassifier(wrap(kind(LogisticRegression())))
    facts = {"classes": ["no", "yes"], "dataset": "d", "column": "label", "ledger": ledger}
    for y in (ldp.PrivateLabels(labels, **facts), noisy):
        with pytest.raises(
            ldp.InvalidInput, match=rf"got {kind.__name__}, whose threshold .*best_threshold"
        ):
            inside.fit(X, y)
    assert ledger.spent("d", "label") == 0


def test_a_fitted_model_is_calibrated_by_the_likelihood_of_other_noisy_rows():
    """Of a model whose odds are exaggerated. Noise and training are seeded: the losses, 0.540 and
    0.521, are the same in every run."""
    rng = np.random.default_rng(0)
    # one feature, counted eight times by naive Bayes
    X = np.repeat(rng.normal(size=(9000, 1)), 8, axis=1)
    p = 1 / (1 + np.exp(1 - 1.5 * X[:, 0]))
    labels = (rng.random(9000) < p).astype(int)
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=[0, 1], noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(2, 2.0),
    )
    train, other, test = slice(0, 3000), slice(3000, 6000), slice(6000, None)
    fitted = ldp.LabelDPClassifier(GaussianNB(), random_state=0).fit(X[train], noisy[train])

    def log_odds(rows):
        found = np.clip(fitted.predict_proba(rows), 1e-9, 1)
        return np.log(found[:, 1:] / found[:, :1])

    calibrated = (
        model().fit(log_odds(X[other]), noisy[other]).predict_proba(log_odds(X[test]))[:, 1]
    )
    losses = [
        -np.mean(p[test] * np.log(q) + (1 - p[test]) * np.log1p(-q))
        for q in (fitted.predict_proba(X[test])[:, 1], calibrated)
    ]
    assert losses[1] < losses[0] - 0.01


@pytest.mark.parametrize("class_weight", [{0: 1.0, 1: 5.0}, "balanced"])
def test_class_weights_of_an_estimator_see_noisy_labels_alone(learned, class_weight):
    """Raw labels are not there to be read; the weights move the mean probability of the weighted
    class up."""
    X, labels, _ = learned
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels == "yes", classes=[False, True], noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(2, 3.0),
    )
    weighted = ldp.LabelDPClassifier(
        LogisticRegression(class_weight=class_weight), random_state=0
    ).fit(X, noisy)
    assert (
        weighted.predict_proba(X)[:, 1].mean()
        > model().fit(X, noisy).predict_proba(X)[:, 1].mean() + 0.05
    )
