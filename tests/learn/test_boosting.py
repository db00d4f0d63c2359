# SPDX-License-Identifier: Apache-2.0
"""Boosting on the exact likelihood: gradient and curvature against enumeration, the libraries, and
what users bring."""

import pickle
from itertools import product

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.learn.datasets import log_loss, table

import labeldp as ldp
from labeldp.learn import _boosting
from labeldp.learn._boosting import LikelihoodBoosting, library_of
from labeldp.learn._corrections import exact_learner

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

LIBRARIES = {
    "lightgbm": lambda **settings: lightgbm.LGBMClassifier(n_jobs=1, random_state=0, **settings),
    "xgboost": lambda **settings: xgboost.XGBClassifier(
        n_jobs=1, random_state=0, learning_rate=0.1, **settings
    ),
    "sklearn": lambda n_estimators=100, **settings: HistGradientBoostingClassifier(
        max_iter=n_estimators, random_state=0, **settings
    ),
}
each = pytest.mark.parametrize("library", LIBRARIES)


# The loss
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "epsilon"), list(product((2, 3, 7), (0.1, 1.0, 4.0))))
def test_the_information_is_what_randomized_response_tells_of_one_class(k, epsilon):
    p = np.random.default_rng(0).dirichlet(np.ones(k), 50).T
    matrix = ldp.RandomizedResponse(k, epsilon).matrix()  # label, output
    own, other = matrix[0, 0], matrix[0, 1]
    found = _boosting.information(p, np.full(50, own), np.full(50, other))
    # by enumeration: the outputs that a class's score is about are "this class" and "another one"
    inside = matrix.T @ p
    posterior_in, posterior_out = own * p / inside, (1 - own) * p / (1 - inside)
    expected = inside * (posterior_in - p) ** 2 + (1 - inside) * (posterior_out - p) ** 2
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    # what the whole output tells is at least as much, and no more than a label without noise
    whole = sum(
        (matrix[:, o] @ p) * (matrix[:, o, None] * p / (matrix[:, o] @ p) - p) ** 2
        for o in range(k)
    )
    assert (found <= whole * (1 + 1e-9)).all() and (whole <= p * (1 - p) * (1 + 1e-9)).all()
    if k == 2:
        np.testing.assert_allclose(found, whole, rtol=1e-9)


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("law", ["rr", "subset", "auto"])
def test_the_gradient_is_that_of_the_likelihood(k, law):
    rng = np.random.default_rng(2)
    laws = {
        "rr": ldp.RandomizedResponse(k, 1.0),
        "subset": ldp.SubsetSelection(k, 1.0),
        "auto": ldp.AutoLaw(k, 1.0),
    }
    prior = rng.dirichlet(np.ones(k), 30) if law == "auto" else None
    noisy = ldp.privatize(
        ldp.PrivateLabels(rng.integers(k, size=30), classes=range(k), noise=ldp.SeededNoise(0)),
        laws[law],
        prior=prior,
    )
    loss = _boosting._Loss(_boosting._likelihoods(noisy.log_likelihood()))
    scores = rng.normal(size=30) if k == 2 else rng.normal(size=(30, k))

    def value(scores):
        logits = np.column_stack([np.zeros(30), scores]) if k == 2 else scores
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        return -np.log((p * noisy.likelihood(dtype="float64")).sum(axis=1)).sum()

    gradient, curvature = loss(None, scores)
    numeric = np.empty_like(scores)
    for place in np.ndindex(scores.shape):
        step = np.zeros_like(scores)
        step[place] = 1e-5
        numeric[place] = (value(scores + step) - value(scores - step)) / 2e-5
    np.testing.assert_allclose(gradient, numeric, atol=2e-5)
    assert (
        curvature.shape == scores.shape and (curvature > 0).all() and np.isfinite(curvature).all()
    )


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("epsilon", [1e-6, 60.0, 700.0])
def test_extreme_epsilons_give_finite_steps(k, epsilon):
    noisy = ldp.privatize(
        ldp.PrivateLabels(np.arange(60) % k, classes=range(k), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(k, epsilon),
    )
    loss = _boosting._Loss(_boosting._likelihoods(noisy.log_likelihood()))
    for scores in (
        (np.zeros(60), np.tile([800.0, -800.0], 30)),
        (np.zeros((60, 3)), np.tile([800.0, 0.0, -800.0], (60, 1))),
    )[k - 2]:
        assert all(
            np.isfinite(part).all() for part in (*loss(None, scores), loss.log_evidence(scores))
        )


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 60.0])
def test_steps_of_two_classes_are_exact_however_sure_the_model(epsilon):
    noisy = ldp.privatize(
        ldp.PrivateLabels(np.arange(80) % 2, classes=range(2), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(2, epsilon),
    )
    loss = _boosting._Loss(_boosting._likelihoods(noisy.log_likelihood()))
    scores = np.linspace(-30, 30, 80)
    p, table = 1 / (1 + np.exp(-scores)), np.exp(noisy.log_likelihood(dtype="float64"))
    gradient = p * (1 - p) * (table[:, 0] - table[:, 1]) / ((1 - p) * table[:, 0] + p * table[:, 1])
    own, other = loss.own.astype(np.float64), loss.other.astype(np.float64)
    curvature = _boosting.information(np.stack([1 - p, p]), own, other)[1]
    for found, exact in zip(loss(None, scores), (gradient, curvature), strict=True):
        np.testing.assert_allclose(found, exact, rtol=2e-5, atol=1e-12)


# Fits
# --------------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("k", [2, 4])
def test_labels_without_noise_give_the_librarys_own_fit(library, k):
    X, y, X_test, _ = table(k)
    plain = LIBRARIES[library]().fit(X, y)
    noisy = ldp.NoisyLabels.from_labels(y, ldp.RandomizedResponse(k, 60.0))
    ours = ldp.LabelDPClassifier(LIBRARIES[library](), validation_fraction=0).fit(X, noisy)
    assert isinstance(ours.estimator_, LikelihoodBoosting)
    # of several classes the libraries take another multiple of p (1 - p) for curvature, so that
    # their steps are shorter
    assert (plain.predict(X_test) == ours.predict(X_test)).mean() > (0.985 if k == 2 else 0.97)


@each
@pytest.mark.parametrize("k", [2, 3])
def test_probabilities_are_those_of_the_documented_formula(library, k):
    """The formula of `LabelDPClassifier` and of docs/guide/boosting.md, with each library's own raw
    scores."""
    X, y, X_test, _ = table(k, n=3000)
    # rare classes, for which the factor is not 1
    y = np.where((y > 0) & (np.arange(len(y)) % 4 > 0), 0, y)
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(k), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(k, 1.0),
    )
    model = ldp.LabelDPClassifier(LIBRARIES[library](n_estimators=20), random_state=0).fit(X, noisy)
    trees, start, factor = (
        model.estimator_.estimator_,
        model.estimator_.start_,
        model.estimator_.factor_,
    )
    raw = {
        "lightgbm": lambda: trees.booster_.predict(X_test, raw_score=True),
        "xgboost": lambda: trees.predict(
            X_test,
            output_margin=True,
            base_margin=np.zeros((len(X_test), k) if k > 2 else len(X_test)),
        ),
        "sklearn": lambda: trees.predict(X_test),
    }[library]()
    logits = (
        start + factor * raw
        if k > 2
        else np.column_stack([np.zeros(len(raw)), start[1] - start[0] + factor * raw])
    )
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(p, model.predict_proba(X_test), atol=1e-6)
    assert k > 2 or factor != 1
    without = 1 / (1 + np.exp(-raw)) if k == 2 else np.exp(raw)[:, 0] / np.exp(raw).sum(axis=1)
    # what the library alone makes of them
    assert np.abs(without - p[:, 1 if k == 2 else 0]).max() > 0.1


@each
def test_noisy_labels_are_learned_from_better_than_as_if_true(library):
    X, y, X_test, y_test = table(5, n=6000)
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(5), noise=ldp.SeededNoise(0)),
        ldp.SubsetSelection(5, 1.0),
    )
    ours = ldp.LabelDPClassifier(LIBRARIES[library](), random_state=0).fit(X, noisy)
    hard = ldp.LabelDPClassifier(LIBRARIES[library](), correction="none", random_state=0).fit(
        X, noisy
    )
    assert ours.score(X_test, y_test) > hard.score(X_test, y_test) + 0.05
    assert log_loss(ours, X_test, y_test) < log_loss(hard, X_test, y_test) - 0.3
    p = ours.predict_proba(X_test)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    # calibrated on the whole
    assert np.abs(p.mean(axis=0) - np.bincount(y_test) / len(y_test)).max() < 0.06
    assert ours.estimated_accuracy_.low < ours.score(X_test, y_test) < ours.estimated_accuracy_.high


@each
def test_more_rounds_do_not_ruin_a_model(library):
    X, y, X_test, y_test = table(4)
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(4), noise=ldp.SeededNoise(1)),
        ldp.RandomizedResponse(4, 1.0),
    )
    few, many = (
        ldp.LabelDPClassifier(LIBRARIES[library](n_estimators=rounds), random_state=0).fit(X, noisy)
        for rounds in (60, 600)
    )
    assert log_loss(many, X_test, y_test) < log_loss(few, X_test, y_test) + 0.05


@each
def test_columns_of_categories_and_gaps_are_the_librarys(library):
    pd = pytest.importorskip("pandas")
    X, y, *_ = table(2, n=2000)
    frame = pd.DataFrame(X[:, :4], columns=list("abcd"))
    frame["kind"] = pd.Categorical(np.where(X[:, 4] > 0, "high", "low"))
    frame.loc[::7, "a"] = np.nan
    settings = {"enable_categorical": True} if library == "xgboost" else {}
    model = ldp.LabelDPClassifier(LIBRARIES[library](**settings), epsilon=4.0, random_state=0).fit(
        frame, ldp.PrivateLabels(y, classes=[0, 1], noise=ldp.SeededNoise(0))
    )
    assert model.score(frame, y) > 0.75


@each
def test_a_fitted_model_is_pickled_without_its_rows(library):
    X, y, X_test, _ = table(3)
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(3), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(3, 2.0),
    )
    model = ldp.LabelDPClassifier(
        make_pipeline(StandardScaler(), LIBRARIES[library](n_estimators=3)), random_state=0
    ).fit(X, noisy)
    stored = pickle.dumps(model)
    np.testing.assert_array_equal(
        pickle.loads(stored).predict_proba(X_test), model.predict_proba(X_test)
    )
    fewer = ldp.LabelDPClassifier(
        make_pipeline(StandardScaler(), LIBRARIES[library](n_estimators=3)), random_state=0
    )
    fewer.fit(X[:2000], noisy[:2000])
    sizes = [len(pickle.dumps(made.estimator_.steps[-1][1])) for made in (model, fewer)]
    # half of the bytes that 2,000 more rows have in the table of likelihoods
    assert sizes[0] - sizes[1] < 2000 * 3 * 4 / 2


@pytest.mark.parametrize(
    ("library", "given", "follows"),
    [
        ("lightgbm", {"colsample_bytree": 0.9}, "colsample_bytree"),
        ("lightgbm", {"feature_fraction": 1.0}, "colsample_bytree"),
        ("lightgbm", {"feature_fraction_bynode": 0.7}, "colsample_bytree"),
        ("lightgbm", {"min_gain_to_split": 0.0}, "min_split_gain"),
        ("lightgbm", {"lambda_l2": 0.0}, "reg_lambda"),
        ("lightgbm", {"num_leaf": 31}, "num_leaves"),
        ("xgboost", {"colsample_bytree": 1.0}, "colsample_bytree"),
        ("xgboost", {"colsample_bynode": 0.7}, "colsample_bytree"),
        ("xgboost", {"min_split_loss": 0.0}, "gamma"),
        ("xgboost", {"reg_lambda": 1.0}, "reg_lambda"),
    ],
)
def test_what_the_user_set_by_another_name_stays_too(library, given, follows):
    ours = LikelihoodBoosting(LIBRARIES[library]())._settings(library, 20, 0.1, early=False)
    kept = LikelihoodBoosting(LIBRARIES[library](**given))._settings(library, 20, 0.1, early=False)
    assert set(ours) - set(kept) == {follows}


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_trees_see_four_columns_or_all_where_there_are_fewer(library):
    """Half of two columns would be one, of which no tree learns a class that depends on both."""
    chosen = LikelihoodBoosting(LIBRARIES[library]())
    seen = [
        columns * chosen._settings(library, columns, 0.0, early=False)["colsample_bytree"]
        for columns in (1, 2, 4, 6, 8, 40)
    ]
    assert seen == pytest.approx([1, 2, 4, 4, 4, 20])
    random = np.random.default_rng(0)
    X = random.normal(size=(4000, 2))
    y = np.digitize(X @ [1, 0.5], [-1, 0, 1])
    noisy = ldp.privatize(
        ldp.PrivateLabels(y[:2000], classes=range(4), noise=ldp.SeededNoise(0)),
        ldp.AutoLaw(4, 2.0),
    )
    model = ldp.LabelDPClassifier(LIBRARIES[library](), random_state=0).fit(X[:2000], noisy)
    assert model.score(X[2000:], y[2000:]) > 0.88  # one column alone tells far less


def test_held_out_rows_end_xgboosts_training_and_its_settings_stay():
    X, y, _, _ = table(2)
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(2), noise=ldp.SeededNoise(1)),
        ldp.RandomizedResponse(2, 2.0),
    )
    heard = []
    told = type(
        "Told",
        (xgboost.callback.TrainingCallback,),
        {"after_iteration": lambda self, model, epoch, log: heard.append(epoch)},
    )()
    settings = {
        "gamma": 1e-9,
        "reg_lambda": 1e-9,
        "n_estimators": 200,
        "callbacks": [told],
        "early_stopping_rounds": 4,
    }
    learner = exact_learner(xgboost.XGBClassifier(n_jobs=1, **settings))
    held_out = X[:500], noisy[:500].log_likelihood()
    fitted = learner.fit_likelihood(X[500:], noisy[500:].log_likelihood(), held_out=held_out)
    assert fitted.n_iter_ + 4 == len(heard) < 200  # four rounds more, against which the rows spoke
    kept = fitted.estimator_.get_params()
    assert [type(each) for each in kept["callbacks"]] == [type(told)] and kept[
        "early_stopping_rounds"
    ] == 4


@pytest.mark.parametrize("held", [False, True])
@each
def test_the_rounds_are_those_that_were_made(library, held):
    """Under much noise LightGBM finds no further split; that held-out rows do not speak against
    more rounds makes none."""
    X, y, _, _ = table(3, 1000)
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(3), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(3, 0.5),
    )
    model = LikelihoodBoosting(LIBRARIES[library](n_estimators=300))
    told = {"held_out": (X[:200], noisy[:200].log_likelihood())} if held else {}
    fitted = model.fit_likelihood(X[200:], noisy[200:].log_likelihood(), **told).estimator_
    made = {
        "lightgbm": lambda: fitted.booster_.num_trees() // 3,
        "xgboost": (
            lambda: (
                getattr(fitted, "best_iteration", len(fitted.get_booster().get_dump()) // 3 - 1) + 1
            )
        ),
        "sklearn": lambda: sum(piece[0].n_iter_ for piece in fitted.pieces),
    }[library]()
    assert model.n_iter_ == made and 0 < made < (100 if library == "lightgbm" else 301)


@pytest.mark.parametrize("correction", ["none", "em", "debias"])
@pytest.mark.parametrize("steps", [(), (StandardScaler(),)], ids=["alone", "in a pipeline"])
def test_xgboost_takes_labels_of_which_noise_left_a_class_out(steps, correction, tmp_path):
    """That a class is drawn at epsilon 20 for one of 600 rows has a probability of 3e-6."""
    X, y, _, _ = table(2, 600)
    ledger, inner = ldp.Ledger(tmp_path / "ledger.db"), LIBRARIES["xgboost"](n_estimators=20)
    model = make_pipeline(*steps, inner) if steps else inner
    names = np.array(["a", "c"])[y]
    fitted = ldp.LabelDPClassifier(
        model, epsilon=20.0, law="rr", random_state=0, correction=correction
    ).fit(
        X,
        ldp.PrivateLabels(
            names, classes=["a", "b", "c"], dataset="d", column="class", ledger=ledger
        ),
    )
    assert set(fitted.noisy_labels_.hard()) == {"a", "c"} and len(list(ledger.runs())) == 1
    assert fitted.score(X, names) > 0.9
    p = fitted.predict_proba(X)
    assert p.shape == (600, 3) and (p[:, 1] < 0.01).all() and np.allclose(p.sum(axis=1), 1)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(X), p)


def test_a_metric_of_xgboosts_changes_nothing():
    """Many set one to silence old versions; on labels that say nothing it would measure nothing."""
    X, y, _, _ = table(2)
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(2), noise=ldp.SeededNoise(1)),
        ldp.RandomizedResponse(2, 2.0),
    )
    plain, measured = (
        {"n_jobs": 1, "early_stopping_rounds": 4} | more
        for more in ({}, {"eval_metric": ["auc", "logloss"]})
    )
    fits = [
        ldp.LabelDPClassifier(xgboost.XGBClassifier(**each), random_state=0).fit(X, noisy)
        for each in (plain, measured)
    ]
    assert np.array_equal(*(fit.predict_proba(X) for fit in fits))
    assert fits[1].estimator_.estimator_.get_params()["eval_metric"] == ["auc", "logloss"]


@pytest.mark.parametrize(
    "estimator",
    [
        lightgbm.LGBMClassifier(class_weight="balanced"),
        lightgbm.LGBMClassifier(is_unbalance=True),
        lightgbm.LGBMClassifier(objective="multiclassova"),
        lightgbm.LGBMClassifier(boosting_type="rf", subsample=0.5, subsample_freq=1),
        lightgbm.LGBMClassifier(boosting_type="dart"),
        xgboost.XGBClassifier(scale_pos_weight=3.0),
        xgboost.XGBClassifier(booster="gblinear"),
        lightgbm.LGBMRegressor(),
        HistGradientBoostingClassifier(class_weight="balanced"),
        HistGradientBoostingClassifier(scoring="roc_auc"),
        type("Own", (HistGradientBoostingClassifier,), {})(),
    ],
    ids=repr,
)
def test_settings_that_count_labels_are_left_to_expectation_maximisation(estimator):
    assert library_of(estimator) is None and exact_learner(estimator) is None


@each
@pytest.mark.parametrize("columns", ["constant", "few rows"])
def test_without_a_column_to_split_the_frequencies_are_the_model(library, columns):
    n = 400 if columns == "constant" else 15
    X = np.zeros((n, 2)) if columns == "constant" else np.random.default_rng(0).normal(size=(n, 2))
    noisy = ldp.privatize(
        ldp.PrivateLabels(np.arange(n) % 4 == 0, classes=[False, True], noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(2, 8.0),
    )
    fitted = exact_learner(LIBRARIES[library]()).fit_likelihood(X, noisy.log_likelihood())
    p = fitted.predict_proba(X[:3])
    assert p.shape == (3, 2) and np.allclose(p.sum(axis=1), 1)
    if columns == "constant":
        assert np.abs(p[:, 1] - 0.25).max() < 0.15


@pytest.mark.parametrize("name", _boosting.EARLY_STOPPING)
def test_early_stopping_goes_by_every_name_that_lightgbm_has(name):
    X, y, _, _ = table(2, n=2000)
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(2), noise=ldp.SeededNoise(1)),
        ldp.RandomizedResponse(2, 2.0),
    )
    free = {"min_split_gain": 1e-9, "reg_lambda": 1e-9, "n_estimators": 200, "verbose": -1}
    fitted = (
        ldp.LabelDPClassifier(LIBRARIES["lightgbm"](**free, **{name: 4}), random_state=0)
        .fit(X, noisy)
        .estimator_
    )
    assert fitted.n_iter_ < 200
    learner = LikelihoodBoosting(LIBRARIES["lightgbm"](**{name: 4}))
    asked, whole = (learner._settings("lightgbm", 10, 0.1, early=early) for early in (True, False))
    assert asked["early_stopping_round"] == 4 and whole["early_stopping_round"] is None
    everything = ldp.LabelDPClassifier(
        LIBRARIES["lightgbm"](**free, **{name: 4}), validation_fraction=0, random_state=0
    ).fit(X, noisy)
    assert everything.estimator_.n_iter_ == 200


@pytest.mark.filterwarnings("ignore:The number of unique classes")  # of codes, not of labels
@pytest.mark.parametrize(
    "estimator",
    [
        lightgbm.LGBMClassifier(n_estimators=3, n_jobs=1, verbose=-1),
        xgboost.XGBClassifier(n_estimators=3, n_jobs=1),
    ],
)
def test_a_thousand_classes_of_a_few_hundred_rows(estimator, monkeypatch) -> None:
    """Rows that are added so that the libraries find each class say nothing: they have no gradient,
    and no weight in what rows tell."""
    k, n, heard = 1000, 240, []
    library = library_of(estimator)
    fit = _boosting._FITS[library]

    def listening(model, X, loss, *others):
        gradient, curvature = loss(None, np.zeros((loss.n, k)))
        heard.append((loss.n, loss.weights.sum(), np.abs(gradient[n:]).max(), curvature[n:].max()))
        return fit(model, X, loss, *others)

    monkeypatch.setitem(_boosting._FITS, library, listening)
    X, y = np.random.default_rng(0).normal(size=(n, 3)), np.arange(n) % 4
    X[:, 0] += 3 * y
    model = LikelihoodBoosting(estimator).fit_likelihood(
        X, np.where(np.arange(k) == y[:, None], 0.0, -6.0)
    )
    assert heard == [(k, n, 0.0, pytest.approx(_boosting._LEAST))]
    proba = model.predict_proba(X)
    assert proba.shape == (n, k) and np.allclose(proba.sum(axis=1), 1)
    # XGBoost makes no leaf of so little curvature
    assert library == "xgboost" or np.mean(proba.argmax(axis=1) == y) > 0.6


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_rounds_are_refused_before_the_charge(library, ledger):
    X, y = np.random.default_rng(0).normal(size=(200, 3)), np.arange(200) % 3
    labels = ldp.PrivateLabels(y, classes=range(3), dataset="people", column="class", ledger=ledger)
    with pytest.raises(ldp.InvalidInput):
        ldp.LabelDPClassifier(LIBRARIES[library](n_estimators=0), epsilon=1.0).fit(X, labels)
    assert ledger.spent("people") == 0
