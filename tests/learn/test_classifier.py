# SPDX-License-Identifier: Apache-2.0
"""LabelDPClassifier end to end: what it learns, what it spends, and what it refuses."""

import warnings
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_classification
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info, threadpool_limits

import labeldp as ldp
from labeldp.errors import LostClassWarning, SeenRowsWarning
from labeldp.learn import ClusterPrior, HistogramPrior, LearnOptions, NoiseCluster, Prior
from labeldp.protocol.metrics import class_rates

pytestmark = pytest.mark.filterwarnings(
    "ignore::labeldp.errors.SeededNoiseWarning", "ignore::labeldp.errors.UnrecordedWarning"
)
K = 5
ANGLE = 2 * np.pi * np.arange(K) / K
X, Y = make_blobs(
    2000,
    centers=4 * np.column_stack([np.cos(ANGLE), np.sin(ANGLE)]),
    random_state=0,
    cluster_std=0.8,
)


def classifier(estimator=None, **settings):
    return ldp.LabelDPClassifier(
        GaussianNB() if estimator is None else estimator,
        **{"epsilon": 1.0, "random_state": 0} | settings,
    )


def seeded(y=Y, **facts):
    return ldp.PrivateLabels(y, **{"classes": range(K), "noise": ldp.SeededNoise(0)} | facts)


def charged(ledger, y=Y, **facts):
    given = {"classes": range(K), "dataset": "people", "column": "class", "ledger": ledger}
    return ldp.PrivateLabels(y, **given | facts)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stages": 2},
        {"stages": (2, 1, 1)},
        {"law": "subset", "correction": "debias"},
        {"law": "rr", "correction": "em", "validation_fraction": 0},
        {"law": "split", "correction": "em", "stages": 2},
        {"law": "rr-with-prior", "stages": 2},
        {"estimator": make_pipeline(StandardScaler(), LogisticRegression()), "stages": 2},
        {"estimator": LogisticRegression(), "correction": "likelihood"},
        {
            "prior": Prior(temperature=0.5, top_k=3),
            "options": LearnOptions(refit=False),
            "stages": 2,
        },
    ],
    ids=str,
)
def test_every_way_of_learning_finds_the_classes(settings):
    model = classifier(**settings).fit(X, seeded())
    assert model.score(X, Y) > 0.9


def test_the_published_recipes_are_one_line():
    first, second = (
        classifier(
            law="rr-with-prior", correction="none", stages=n_stages, validation_fraction=0
        ).fit(X, seeded())
        for n_stages in (1, 2)
    )
    assert [stage.name for stage in second.stages_] == ["stage-1", "stage-2"]
    assert {block.law for block in first.noisy_labels_.blocks} == {ldp.RRWithPrior(K, 1.0)}
    # what the prior is for
    assert (second.noisy_labels_.hard() == Y).mean() > (
        first.noisy_labels_.hard() == Y
    ).mean() + 0.04


def biased(y):
    """A prior that expects class 1, but for a tenth of the rows, which it knows nothing of: with
    one candidate in each, none would tell."""
    given = np.full((len(y), K), 0.1)
    given[:, 1] = 1.0
    given[: len(y) // 10] = 1.0
    return given


def test_classes_that_the_model_has_lost_are_told():
    blind = DummyClassifier(strategy="constant", constant=2)
    with pytest.warns(
        LostClassWarning,
        match=r"The model gives hardly any probability to 0, 1, 3, 4, .*not drawn again",
    ):
        classifier(blind, correction="none", epsilon=3.0).fit(X, seeded())
    weights = (Y == 2).astype(float)  # the model is told to learn this class alone
    classifier(blind, correction="none", epsilon=3.0).fit(X, seeded(), sample_weight=weights)


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("correction", ["none", "em"])
def test_a_class_that_does_not_occur_is_not_called_lost_however_wrong_the_model(
    epsilon, correction
):
    """False alarm below 3e-7 a class: an unbiased frequency above 5 standard errors whose mean is
    0. Warnings are errors here."""
    X = np.random.default_rng(0).normal(size=(8000, 4))
    # which a line cannot tell, and this model is sure of it all the same
    y = np.digitize(X[:, 0] * X[:, 1] + 0.5 * X[:, 2], [-0.4, 0.4])
    classifier(RidgeClassifier(), correction=correction, epsilon=epsilon).fit(X, seeded(y))


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [("weight", wrong) for wrong in (-0.1, 1.5, np.nan, "half", True)]
    + [("temperature", 0.0), ("top_k", 0), ("top_k", "median")],
)
def test_settings_of_a_prior_are_checked_where_it_is_made(setting, wrong):
    with pytest.raises(ldp.InvalidInput, match=setting):
        Prior(np.ones((len(X), K)), **{setting: wrong})


def test_a_weight_needs_a_prior_and_is_part_of_what_was_asked(tmp_path):
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=3.0)
    asked = classifier(stages=2, law="rr-with-prior", prior=Prior(weight=0.5))
    with pytest.raises(ldp.InvalidInput, match=r"Expected Prior\(table, weight=0\.5"):
        asked.fit(X, charged(ledger))
    assert not ledger.runs()
    # a repeat is free, another weight is another draw
    for weight, runs in ((0.0, 1), (0.0, 1), (0.5, 2), (0.5, 2), (0.25, 3)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            asked.set_params(prior=Prior(biased(Y), weight=weight)).fit(X, charged(ledger))
        assert len(ledger.runs()) == runs
    assert ledger.spent("people", "class") == 3.0


def test_the_second_stage_draws_by_the_given_prior_alone_at_weight_1():
    model = classifier(law="rr-with-prior", stages=2, prior=Prior(biased(Y), weight=1.0)).fit(
        X, seeded()
    )
    (block,) = [block for block in model.noisy_labels_.blocks if block.stage == "stage-2"]
    # class 1 and no other
    assert len(np.unique(block.side["candidates"][block.side["size"] < K], axis=0)) == 1
    assert set(block.side["size"]) == {1, K}


def test_random_state_never_drives_noise_or_partition():
    first, second = (
        classifier(stages=2, random_state=seed).fit(X, seeded()).noisy_labels_ for seed in (0, 1)
    )
    assert np.array_equal(
        first.likelihood()[first.blocks[0].rows], second.likelihood()[second.blocks[0].rows]
    )
    assert [block.rows.tolist() for block in first.blocks] == [
        block.rows.tolist() for block in second.blocks
    ]
    fresh = [
        classifier(stages=2).fit(X, seeded(noise=None)).noisy_labels_.blocks[0].rows.tolist()
        for _ in range(2)
    ]
    assert fresh[0] != fresh[1]


def test_noisy_labels_cost_nothing_and_score_without_truth():
    noisy = ldp.privatize(seeded(noise=ldp.SeededNoise(1)), ldp.SubsetSelection(K, 2.0))
    model = classifier().fit(X[:1500], noisy[:1500])
    assert model.privacy_ == noisy.privacy
    assert model.stages_ == ()
    assert abs(model.score(X[1500:], noisy[1500:]) - model.score(X[1500:], Y[1500:])) < 0.1


def test_grid_search_on_noisy_labels():
    noisy = ldp.privatize(seeded(noise=ldp.SeededNoise(1)), ldp.RandomizedResponse(K, 2.0))
    grid = {"estimator__var_smoothing": [1e-9, 100.0]}
    for scoring in (
        None,
        ldp.metrics.make_scorer("accuracy"),
        ldp.metrics.make_scorer("neg_log_loss"),
        ldp.metrics.likelihood_scorer,
    ):
        search = GridSearchCV(
            classifier(), grid, scoring=scoring, cv=KFold(3), error_score="raise"
        ).fit(X, noisy)
        assert search.best_params_ == {"estimator__var_smoothing": 1e-9}
    with pytest.raises(ldp.InvalidInput, match="stratifies"):
        GridSearchCV(classifier(), grid, cv=3).fit(X, noisy)


def test_a_repeated_fit_is_not_charged_again(ledger):
    model = classifier()
    first = model.fit(X, charged(ledger))
    outputs, spent = first.noisy_labels_.likelihood(), ledger.spent("people", "class")
    second = clone(model).fit(X, charged(ledger))
    assert np.array_equal(outputs, second.noisy_labels_.likelihood())
    assert ledger.spent("people", "class") == spent == 1.0
    assert second.privacy_.recorded
    with pytest.raises(ldp.BudgetExceeded):
        clone(model).set_params(epsilon=0.5).fit(X, charged(ledger))


def test_priors_are_used_by_the_first_stage():
    sharp = np.full((len(Y), K), 0.01)
    sharp[np.arange(len(Y)), (Y + (np.arange(len(Y)) % 2)) % K] = 1.0
    sharp[:200] = 1.0  # with one candidate in every row nothing would be told, which is refused
    given, called = (
        classifier(law="rr-with-prior", stages=1, prior=prior, validation_fraction=0).fit(
            X, seeded()
        )
        for prior in (sharp, lambda X: sharp)
    )
    assert np.array_equal(given.noisy_labels_.hard(), called.noisy_labels_.hard())
    # a prior this sharp leaves one candidate
    assert 0.4 < (given.noisy_labels_.hard() == Y).mean() < 0.65
    with pytest.raises(ldp.InvalidInput, match="does not read it"):
        classifier(law="rr", prior=sharp).fit(X, seeded())
    with pytest.raises(ldp.InvalidInput, match="shape"):
        classifier(prior=sharp[:, :2]).fit(X, seeded())


@pytest.mark.filterwarnings("ignore::labeldp.errors.UnmeasuredWarning")  # five rows
def test_a_score_on_rows_that_were_learned_from_warns():
    model = classifier(law="subset", stages=1).fit(X, seeded())
    noisy = model.noisy_labels_
    for seen in (noisy, noisy[::3], noisy[-5:]):
        with pytest.warns(SeenRowsWarning, match=f"{len(seen)} of these {len(seen)}"):
            model.score(X[: len(seen)], seen)
    kept = classifier(law="subset", stages=1, options=LearnOptions(refit=False)).fit(X, seeded())
    parts = {block.stage: block.rows for block in kept.noisy_labels_.blocks}
    kept.score(X[parts["validation"]], kept.noisy_labels_[parts["validation"]])
    half = classifier().fit(X[:1000], noisy[:1000])
    half.score(X[1000:], noisy[1000:])
    half.score(X, ldp.privatize(seeded(noise=ldp.SeededNoise(5)), ldp.SubsetSelection(K, 1.0)))


@pytest.mark.parametrize("weight", [np.nan, -1.0, np.inf], ids=str)
@pytest.mark.parametrize("law", ["auto", "rr-with-prior", "split"])
@pytest.mark.parametrize(
    "given", [lambda weights: weights, lambda weights: lambda X: weights], ids=["array", "function"]
)
def test_a_prior_that_is_none_is_refused_before_the_charge(ledger, law, given, weight):
    weights = np.ones((len(Y), K))
    weights[7, 1] = weight
    with pytest.raises(ldp.InvalidInput, match="row 7 first"):
        classifier(prior=given(weights), law=law).fit(X, charged(ledger))
    assert not ledger.runs()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": float("nan")}, "epsilon"),
        ({"law": "rr-top-k"}, "rr-top-k:K"),
        ({"law": "roulette"}, "law"),
        ({"law": ldp.RandomizedResponse(K, 3.0)}, "agree"),
        ({"correction": "likelihood"}, "fit_likelihood"),
        ({"correction": "magic"}, "correction"),
        ({"correction": "debias", "stages": 2}, "invertible"),
        ({"stages": 0}, "stages"),
        ({"stages": ()}, "stages"),
        ({"stages": (1, float("nan"))}, "stages"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"validation_fraction": 0.999}, r"at least 20 rows to learn from, got about \d+ of \d+"),
    ],
    ids=str,
)
def test_what_is_refused(settings, message):
    with pytest.raises(ldp.InvalidInput, match=message):
        classifier(**settings).fit(X, seeded())


def test_classes_read_off_labels_warn_and_every_guarantee_says_so():
    with pytest.warns(ldp.errors.DomainLeakWarning):
        labels = seeded(classes="infer")
    model = classifier().fit(X, labels)
    assert model.privacy_.except_for == "which classes occur"
    assert "except_for='which classes occur'" in repr(model.privacy_)
    asked = classifier(prior=ClusterPrior(n_clusters=4)).fit(X, labels)
    assert asked.prior_.answer.privacy.except_for == "which classes occur"
    # noisy labels bring their classes
    again = classifier().fit(X, model.noisy_labels_)
    assert again.privacy_ == model.privacy_
    assert classifier().fit(X, seeded()).privacy_.except_for == ""


def test_undeclared_classes_are_refused():
    names = np.array(["no", "yes", "maybe", "never"])[np.unique(Y, return_inverse=True)[1] % 4]
    for labels in (Y, Y[0] == Y, Y.astype(float), names, np.array(names, object)):
        with pytest.raises(
            ldp.InvalidInput,
            match=r"classes that a label can have, got none.*classes=.*classes='infer'",
        ):
            ldp.PrivateLabels(labels)


def test_no_warning_depends_on_the_labels(recwarn):
    # as many classes as rows: scikit-learn would warn about these raw labels
    many = [str(i) for i in range(len(X))]
    with pytest.raises(ldp.InvalidInput, match="some label is not"):
        seeded(many, classes=["a", "b"])
    assert not [w for w in recwarn if "unique classes" in str(w.message)]


@pytest.mark.parametrize("kind", [ldp.LabelDPClassifier, ldp.LabelDPRegressor])
def test_faults_of_features_are_named_with_what_to_do_and_cost_nothing(
    kind, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(100, 3)), columns=list("abc"))
    gaps, endless, text = X.mask(X > 2).to_numpy(), X.assign(a=np.inf).to_numpy(), X.assign(a="x")
    declared = {"classes": [0, 1]} if kind is ldp.LabelDPClassifier else {"range": (0, 1)}
    model = kind(LogisticRegression() if kind is ldp.LabelDPClassifier else LinearRegression())
    ledger, y = ldp.Ledger(tmp_path / "ledger.sqlite"), rng.integers(0, 2, 100)
    labels = ldp.PrivateLabels(y, **declared, dataset="d", column="class", ledger=ledger)
    faults = (
        (gaps, "SimpleImputer"),
        (endless, "finite"),
        (text, "OneHotEncoder"),
        (text.to_numpy().tolist(), "OneHotEncoder"),
    )
    for wrong, advice in faults:
        with pytest.raises(ldp.InvalidInput, match=f"Nothing was charged or drawn.*{advice}"):
            model.fit(wrong, labels)
    assert ledger.runs() == []
    model.fit(X, ldp.PrivateLabels(y, **declared, noise=ldp.SeededNoise(0)))
    for wrong, advice in (
        (X[["a", "b"]], "feature names should match"),
        (X.mask(X > 2), "contains NaN"),
        (text, "could not convert string"),
    ):
        with pytest.raises(ldp.InvalidInput, match=advice):
            model.predict(wrong)


@pytest.mark.parametrize(
    "estimator", [LogisticRegression(), HistGradientBoostingClassifier(max_iter=20)]
)
def test_mean_probabilities_are_the_known_rates(estimator) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 3))
    y = np.where(X[:, 0] + 0.3 * rng.normal(size=4000) > 1.7, "yes", "no")
    noisy = ldp.privatize(seeded(y, classes=["no", "yes"]), ldp.RandomizedResponse(2, 1.0))
    means = [
        ldp.LabelDPClassifier(estimator, class_prior=rates, random_state=0)
        .fit(X, noisy)
        .predict_proba(X)[:, 1]
        .mean()
        for rates in (None, {"yes": 0.05, "no": 0.95}, [0.95, 0.05])
    ]
    assert abs(means[0] - 0.05) > 3e-3 and means[1:] == pytest.approx([0.05, 0.05], abs=2e-3)
    frequencies = (
        ldp.LabelDPClassifier(GaussianNB(), class_prior=[0.95, 0.05], random_state=0)
        .fit(X, noisy)
        ._model.frequencies
    )
    assert frequencies.tolist() == pytest.approx([0.95, 0.05])


@pytest.mark.parametrize("n_classes", [2, 4])
def test_catboost_learns_by_expectation_maximisation(
    n_classes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With categories, gaps and names of classes; its probabilities are better than those of noisy
    labels taken as true."""
    catboost = pytest.importorskip("catboost")
    monkeypatch.chdir(tmp_path)
    X, y = make_classification(
        3000, 8, n_informative=6, n_classes=n_classes, class_sep=1.5, random_state=0
    )
    frame = pd.DataFrame(X, columns=list("abcdefgh"))
    frame["h"] = np.where(frame["h"] > 0, "high", "low")
    frame.loc[::7, "a"] = np.nan
    names = np.array(list("wxyz"))[y]
    found = {}
    for correction in ("auto", "none"):
        settings = {
            "iterations": 15,
            "thread_count": 1,
            "verbose": 0,
            "random_seed": 0,
            "allow_writing_files": False,
        }
        model = ldp.LabelDPClassifier(
            catboost.CatBoostClassifier(cat_features=("h",), **settings),
            epsilon=1.0,
            correction=correction,
            random_state=0,
        ).fit(frame[:2000], seeded(names[:2000], classes=list("wxyz")[:n_classes]))
        proba = model.predict_proba(frame[2000:])
        np.testing.assert_allclose(proba.sum(axis=1), 1)
        loss = float(-np.log(proba[np.arange(1000), y[2000:]]).mean())
        found[correction] = float(np.mean(model.predict(frame[2000:]) == names[2000:])), loss
    assert found["auto"][0] > (0.8 if n_classes == 2 else 0.6)
    assert found["auto"][1] < found["none"][1] - 0.05
    assert list(tmp_path.iterdir()) == []


# Rates that are asked for
# --------------------------------------------------------------------------------------------------


def rare(n: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, (rng.random(n) < 1 / (1 + np.exp(3 - 1.5 * X[:, 0]))).astype(int)


@pytest.mark.parametrize(
    "estimator", [LogisticRegression(), None, GaussianNB()], ids=["likelihood", "trees", "em"]
)
def test_rates_are_asked_for_on_one_bill(tmp_path: Path, estimator: object) -> None:
    X, y = rare()
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=2.0)
    labels = charged(ledger, y, classes=[0, 1], ids=np.arange(len(y)))
    settings = {"epsilon": 2.0, "class_prior": HistogramPrior(0.4), "random_state": 0}
    model = ldp.LabelDPClassifier(estimator, **settings).fit(X, labels)
    assert [receipt.epsilon for receipt in model.receipts_] == [0.4, 1.6]
    assert model.privacy_.epsilon == ledger.spent("people", "class") == 2.0
    assert {block.law.epsilon for block in model.noisy_labels_.blocks} == {
        1.6
    } and model.noisy_labels_.measurable.evidenced.all()
    assert model.estimated_log_loss_ is not None and model.prior_ is None
    # the same answers, at no cost
    again = ldp.LabelDPClassifier(estimator, **settings).fit(X, labels)
    assert ledger.spent("people", "class") == 2.0
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


@pytest.mark.usefixtures("same_noise")
@pytest.mark.parametrize(
    "settings", [{}, {"law": "rr", "stages": 2}, {"correction": "em"}], ids=str
)
def test_models_are_held_to_the_rates_of_the_rows_that_were_counted(settings: dict) -> None:
    """At epsilon 400 a count is exact, but for a noise whose other values have probability
    e^-200."""
    X, y = rare()
    asks = {
        "epsilon": 401.0,
        "class_prior": HistogramPrior(400.0),
        "options": LearnOptions(refit=False),
    } | settings
    model = ldp.LabelDPClassifier(LogisticRegression(), **asks, random_state=0).fit(
        X, ldp.PrivateLabels(y, classes=[0, 1])
    )
    held_out = np.concatenate(
        [block.rows for block in model.noisy_labels_.blocks if block.stage == "validation"]
    )
    counted = np.setdiff1d(np.arange(len(y)), held_out)
    assert 200 < len(held_out) < 400
    if settings.get("correction") == "em":
        assert model._model.frequencies == pytest.approx([1 - y[counted].mean(), y[counted].mean()])
    else:
        assert model.predict_proba(X[counted])[:, 1].mean() == pytest.approx(
            y[counted].mean(), abs=1e-5
        )


def test_a_class_that_noise_hides_has_the_rate_of_the_noise() -> None:
    """Of 2,000 rows none is of class 2; the standard error of a count at epsilon 0.5 is 5.6. Every
    answer of any seed is above it."""
    X, y = rare(2000)
    asked = classifier(class_prior=HistogramPrior(0.5), correction="em", validation_fraction=0.0)
    for seed in range(5):
        labels = seeded(y, classes=[0, 1, 2], noise=ldp.SeededNoise(seed))
        rates = asked.fit(X, labels)._model.frequencies
        assert rates.min() > 5.6 / 2000 * 0.98 and rates.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"class_prior": [0.5, 0.6]}, "sum is 1"),
        ({"class_prior": [1.0, 0.0]}, "above 0"),
        ({"class_prior": [float("nan"), 0.5]}, "above 0"),
        ({"class_prior": {0: 0.5, 2: 0.5}}, "other names"),
        ({"class_prior": [0.9, 0.1], "correction": "none"}, "correction='none'"),
        ({"class_prior": HistogramPrior()}, r"HistogramPrior\(epsilon\) with the cost"),
        ({"class_prior": HistogramPrior(1.0)}, "epsilon"),
        ({"class_prior": ClusterPrior(epsilon=0.1)}, "got a ClusterPrior"),
        ({"prior": HistogramPrior(0.1), "law": "split"}, "Expected prior=None"),
        ({"correction": "none"}, "correction='none'"),
    ],
    ids=[
        "a sum above 1",
        "a rate of 0",
        "no number",
        "another class",
        "rates beside labels taken as true",
        "no cost",
        "all of epsilon",
        "clusters",
        "two questions",
        "labels taken as true",
    ],
)
def test_rates_that_cannot_be_or_cannot_be_asked_for_are_refused_before_a_charge(
    ledger: ldp.Ledger, settings: dict, message: str
) -> None:
    X, y = rare(400)
    model = classifier(LogisticRegression(), **{"class_prior": HistogramPrior(0.1)} | settings)
    with pytest.raises(ldp.InvalidInput, match=message):
        model.fit(X, charged(ledger, y, classes=[0, 1]))
    assert not ledger.runs()


def test_rates_of_several_columns_are_refused_before_a_charge(ledger: ldp.Ledger) -> None:
    X, y = rare(400)
    labels = charged(ledger, {"a": y, "b": y}, classes={"a": [0, 1], "b": [0, 1]}, column=None)
    with pytest.raises(ldp.InvalidInput, match="mapping of label columns"):
        classifier(LogisticRegression(), class_prior=HistogramPrior(0.1)).fit(X, labels)
    assert not ledger.runs()


def test_noisy_labels_are_not_asked_for_rates() -> None:
    X, y = rare(400)
    noisy = ldp.privatize(seeded(y, classes=[0, 1]), ldp.RandomizedResponse(2, 1.0))
    with pytest.raises(ldp.InvalidInput, match="which asks raw labels"):
        ldp.LabelDPClassifier(LogisticRegression(), class_prior=HistogramPrior(0.1)).fit(X, noisy)


def test_given_rates_say_what_is_wrong_with_a_mapping() -> None:
    with pytest.raises(ldp.InvalidInput, match=r"one for each class, got a dict of others\.$"):
        class_rates({"no": 0.5, "yes": 0.4}, ["no", "yes"])
    with pytest.raises(ldp.InvalidInput, match="got other names"):
        class_rates({"no": 0.5, "yess": 0.5}, ["no", "yes"])
    with pytest.raises(ldp.InvalidInput, match="only some of them"):
        class_rates({"no": 1.0}, ["no", "yes"])
    assert class_rates({"yes": 0.4, "no": 0.6}, ["no", "yes"]).tolist() == [0.6, 0.4]


class Watching(LogisticRegression):
    """Notes the number of threads at each fit."""

    seen: ClassVar[set[int]] = set()

    def fit(self, X, y, sample_weight=None):
        self.seen.update(
            pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "openmp"
        )
        return super().fit(X, y, sample_weight)


@pytest.mark.parametrize(("columns", "threads"), [(2, {1}), (600, {2})])
def test_a_small_table_is_learned_from_by_one_thread(columns, threads):
    """More threads wait for each other on a busy machine, for longer than the fit takes."""
    X = np.random.default_rng(0).normal(size=(2000, columns))
    labels = seeded((X[:, 0] > 0).astype(int), classes=[0, 1])
    Watching.seen.clear()
    with threadpool_limits(2, user_api="openmp"):
        for kind in (ldp.LabelDPClassifier, NoiseCluster):
            kind(Watching(C=1e-3, max_iter=1000), epsilon=2.0, random_state=0).fit(X, labels)
        assert {
            pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "openmp"
        } == {2}
    assert Watching.seen == threads
