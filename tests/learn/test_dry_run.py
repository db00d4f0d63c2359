# SPDX-License-Identifier: Apache-2.0
"""What would stop a training stops it before the charge; what stops it later leaves labels to go on
from; text columns are no fault."""

import random
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import labeldp as ldp
from labeldp.app._columns import learn_columns
from labeldp.errors import RepeatWarning, WrongType
from labeldp.learn import LearnOptions, NoiseCluster, ProportionClassifier
from labeldp.tables.formats._parquet import open_table

pytestmark = pytest.mark.usefixtures("same_noise")
N = 2400


@pytest.fixture(scope="module")
def people():
    """Income and gaps, trades as text, towns as categories; who buys depends on the trade most."""
    rng = np.random.default_rng(0)
    trade = rng.choice(["farm", "services", "trade", None], N, p=[0.3, 0.4, 0.2, 0.1]).astype(
        object
    )
    income = np.where(rng.random(N) < 0.1, np.nan, rng.normal(size=N))
    town = pd.Categorical(rng.choice([f"town {i}" for i in range(1500)], N))
    y = np.where(np.isin(trade, ["farm", "trade"]), "yes", "no")
    return (
        pd.DataFrame(
            {"income": income, "trade": trade, "town": town, "age": rng.integers(20, 80, N)}
        ),
        y,
    )


def classifier(estimator=None, **settings):
    return ldp.LabelDPClassifier(estimator, epsilon=3.0, random_state=0, **settings)


def closed(ledger, y, **facts):
    return ldp.PrivateLabels(
        y, classes=["no", "yes"], dataset="people", column="bought", ledger=ledger, **facts
    )


@pytest.fixture
def ledger(tmp_path):
    return ldp.Ledger(tmp_path / "ledger.db", budget=3.0)


def numbers(people):
    return people[0][["age", "income"]].fillna(0.0)


@pytest.mark.parametrize(
    ("estimator", "columns", "message"),
    [
        (GaussianNB(), ["trade", "age"], "could not convert string to float.*OneHotEncoder"),
        (LogisticRegression(), ["age", "income"], "NaN.*SimpleImputer"),
        (LogisticRegression(C=-1), ["age"], "C"),
        (RandomForestClassifier(n_estimators=-1), ["age"], "n_estimators"),
        (
            make_pipeline(ColumnTransformer([("a", StandardScaler(), ["absent"])]), GaussianNB()),
            ["age"],
            "absent|not a column",
        ),
        (
            make_pipeline(OneHotEncoder(), LogisticRegression()),
            ["town"],
            "unknown categor.*handle_unknown='ignore'",
        ),
        (HistGradientBoostingClassifier(categorical_features=["town"]), ["town", "age"], "town"),
    ],
    ids=[
        "text",
        "gaps",
        "a parameter",
        "a number",
        "a missing column",
        "rare categories",
        "too many categories",
    ],
)
@pytest.mark.parametrize("kind", ["classifier", "clusters"])
def test_what_cannot_be_fitted_is_refused_before_the_charge(
    people, ledger, estimator, columns, message, kind
):
    X, labels = people[0][columns], closed(ledger, people[1])
    if kind == "classifier":
        model = classifier(estimator)
    else:
        model = NoiseCluster(
            estimator,
            epsilon=3.0,
            n_clusters=4,
            embedder=lambda X: np.arange(len(X), dtype=float)[:, None],
        )
    if kind == "clusters" and "unknown" in message:
        model.fit(X, labels)  # it learns from all rows, which know all categories
        return
    with pytest.raises(ldp.InvalidInput, match=message):
        model.fit(X, labels)
    assert ledger.spent("people", "bought") == 0 and not ledger.runs("people", "bought")
    classifier(GaussianNB()).fit(numbers(people), labels)  # the budget is whole


def test_a_pipeline_that_fills_gaps_gets_them_and_one_that_does_not_is_refused_for_nothing(
    people, ledger
):
    X, labels = people[0][["age", "income"]].to_numpy(), closed(ledger, people[1])
    with pytest.raises(ldp.InvalidInput, match=r"NaN.*Nothing was charged"):
        classifier(make_pipeline(StandardScaler(), LogisticRegression())).fit(X, labels)
    with pytest.raises(ValueError, match="infinity"):
        classifier(make_pipeline(SimpleImputer(), LogisticRegression())).fit(
            np.where(X == 30, np.inf, X), labels
        )
    assert ledger.spent("people", "bought") == 0
    model = classifier(make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression())).fit(
        X, labels
    )
    assert np.isfinite(model.predict_proba(X)).all() and ledger.spent("people", "bought") == 3.0


def test_a_type_that_the_estimator_does_not_take_is_a_type_error_with_a_public_name(people, ledger):
    class Choosy(LogisticRegression):
        def fit(self, X, y, sample_weight=None):
            raise TypeError("no frames")

    with pytest.raises(TypeError, match=r"TypeError: no frames\. Nothing was charged") as told:
        classifier(Choosy()).fit(numbers(people), closed(ledger, people[1]))
    assert isinstance(told.value, ldp.InvalidInput) and type(told.value) is WrongType
    assert f"{WrongType.__module__}.{WrongType.__qualname__}" == "labeldp.errors.WrongType"


def test_counts_rehearse_too(people, ledger):
    class Picky(LogisticRegression):
        def fit_counts(self, X, groups, counts, *, variance, counted):
            raise ValueError("too many counts")

    model = ProportionClassifier(Picky(), epsilon=3.0, n_clusters=4)
    with pytest.raises(ldp.InvalidInput, match=r"too many counts.*Nothing was charged"):
        model.fit(numbers(people), closed(ledger, people[1]))
    assert ledger.spent("people", "bought") == 0
    model.set_params(estimator=make_pipeline(StandardScaler(), LogisticRegression())).fit(
        numbers(people), closed(ledger, people[1])
    )


@pytest.mark.parametrize(
    "frame", [lambda X: X, lambda X: X.to_numpy(object)], ids=["data frame", "array of objects"]
)
def test_columns_of_text_and_categories_train_by_default(people, ledger, frame):
    X, y = people
    model = classifier().fit(frame(X), closed(ledger, y))
    fresh = X.assign(town="somewhere new", income=np.nan)
    assert model.score(frame(X), y) > 0.93  # without the trade it is 0.5
    assert model.score(frame(fresh), y) > 0.9  # what is new counts as missing
    assert np.array_equal(model.estimator_.predict_proba(frame(X)).shape, (N, 2))
    again = ldp.LabelDPClassifier(random_state=0).fit(frame(X), model.noisy_labels_)
    assert again.score(frame(X), y) > 0.93


DATES = pd.Series(pd.Timestamp("2019-03-01") + pd.to_timedelta(np.arange(N) * 7919 % N, unit="D"))
AS_DATES = {
    "text": lambda: DATES.dt.strftime("%Y-%m-%d").where(DATES.index % 50 != 3),
    "text of times": lambda: DATES.dt.strftime("%Y-%m-%d %H:%M:%S"),
    "timestamps": lambda: DATES.where(DATES.index % 50 != 3),
    "timestamps in UTC": lambda: DATES.dt.tz_localize("UTC"),
    "dates": lambda: DATES.dt.date,
    "Arrow's dates": lambda: DATES.dt.date.astype("date32[pyarrow]"),
}


@pytest.mark.parametrize("kind", AS_DATES)
def test_dates_are_numbers_as_on_the_command_line(people, ledger, tmp_path, kind):
    X = people[0][["trade", "age"]].assign(since=AS_DATES[kind]())
    y = np.where(DATES.median() < DATES, "yes", "no")
    model = classifier().fit(X, closed(ledger, y))
    assert model.score(X, y) > 0.95  # of categories, rarer ones count as one
    X.to_csv(tmp_path / "in.csv", index=False)
    table = open_table(tmp_path / "in.csv")
    read = (
        learn_columns(table, ["since"])[0]
        .read(next(iter(table.batches(["since"]))))["since"]
        .to_numpy()
    )
    assert np.array_equal(model.estimator_[0].transform(X)[:, 1], read, equal_nan=True)
    if kind != "text":
        with pytest.raises(
            ldp.InvalidInput,
            match="Expected dates or times of ISO 8601 in column 'since', as in the fit",
        ):
            model.predict(X.assign(since="yesterday"))
    assert len(model.predict(X.assign(since=np.nan))) == N
    # the features name the rows, so their digest is the same
    again = classifier().fit(X, closed(ledger, y))
    assert ledger.spent("people", "bought") == 3.0 and np.array_equal(
        again.predict(X), model.predict(X)
    )


def test_other_times_beside_text_are_refused_by_name(people, ledger):
    with pytest.raises(ldp.InvalidInput, match=r"'since' of period\[M\]. Make a number of it"):
        classifier().fit(people[0].assign(since=pd.Period("2020-01")), closed(ledger, people[1]))
    assert ledger.spent("people", "bought") == 0


class Late(ClassifierMixin, BaseEstimator):
    """Fails where there are many rows: after the dry run on a few."""

    def fit(self, X, y, sample_weight=None):
        if len(X) > 500:
            raise RuntimeError("the machine is on fire")
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.zeros(len(X), int)


class LateOfCounts(LogisticRegression):
    """Learns from counts of clusters, and fails where there are many rows."""

    def fit_counts(self, X, groups, counts, *, variance, counted):
        if len(X) > 500:
            raise RuntimeError("the machine is on fire")
        return super().fit(X, np.arange(len(X)) % counts.shape[1])


@pytest.mark.parametrize(
    ("kind", "settings", "late", "noisy"),
    [
        (ldp.LabelDPClassifier, {"estimator": LogisticRegression()}, Late(), False),
        (ldp.LabelDPClassifier, {"estimator": LogisticRegression()}, Late(), True),
        (NoiseCluster, {"n_clusters": 4}, Late(), False),
        (ProportionClassifier, {"n_clusters": 4}, LateOfCounts(), False),
    ],
)
def test_a_fit_that_fails_leaves_the_estimator_as_it_was(people, kind, settings, late, noisy):
    X, y = numbers(people), people[1]
    labels, other = (
        ldp.PrivateLabels(each, classes=["no", "yes"], noise=ldp.SeededNoise(seed))
        for seed, each in enumerate((y, y if noisy else y[::-1]))
    )
    if noisy:
        other = ldp.privatize(other, ldp.RandomizedResponse(2, 1.0))
    model = kind(**settings, epsilon=3.0, random_state=0)
    wider = X.assign(constant=1.0)
    for fitted in (False, True):
        if fitted:
            model.fit(X, labels)
        usual, before = model.estimator, vars(model) | {"estimator": late}
        with pytest.raises(RuntimeError, match="on fire"):
            model.set_params(estimator=late).fit(wider, other)
        assert {name: id(value) for name, value in vars(model).items()} == {
            name: id(value) for name, value in before.items()
        }
        with pytest.raises(ValueError, match="infinity"):
            model.fit(np.full((N, 3), np.inf), other)
        model.set_params(estimator=usual)
        if fitted:
            assert model.predict(X).shape == (N,) and model.n_features_in_ == 2
        else:
            with pytest.raises(NotFittedError):
                model.predict(X)


def test_after_a_late_failure_other_features_go_on_with_the_same_ids(people, ledger):
    X, y = people
    labels = closed(ledger, y, ids=np.arange(N) + 7)
    with pytest.raises(RuntimeError, match="on fire") as told:
        classifier(Late()).fit(X, labels)
    assert "X and the estimator may be others" in told.value.__notes__[0]
    assert ledger.spent("people", "bought") == 3.0
    model = classifier().fit(X.assign(town="none"), labels)  # mended
    assert ledger.spent("people", "bought") == 3.0 and model.score(X, y) > 0.9


def test_after_a_late_failure_other_features_go_on_without_ids(people, ledger):
    """The run has a keyed digest of the labels in their order, so that they name the rows as well
    as X does."""
    X, labels = people[0], closed(ledger, people[1])
    with pytest.raises(RuntimeError, match="on fire"):
        classifier(Late()).fit(X, labels)
    (run,) = ledger.runs("people", "bought")
    first = ldp.NoisyLabels.load(ledger.run_dir(run.run_id) / "stage-1.parquet")
    mended = X.assign(town="none", age=X["age"] + 1)
    model = classifier().fit(mended, labels)
    assert not model.privacy_.repeated and model.privacy_.evidence == "proven"
    drawn = next(block for block in model.noisy_labels_.blocks if block.stage == "stage-1")
    assert np.array_equal(drawn.outputs, first.blocks[0].outputs) and np.array_equal(
        drawn.rows, first.ids
    )
    with pytest.warns(
        RepeatWarning,
        match=(r"anew with redraw=True .*, which is charged, and learn from the noisy labels"),
    ):
        assert classifier().fit(mended, labels).privacy_.repeated
    assert classifier().fit(X, labels).privacy_.repeated
    assert ledger.spent("people", "bought") == 3.0 and len(ledger.runs("people", "bought")) == 1
    with pytest.raises(ldp.BudgetExceeded):
        classifier().fit(X.assign(town="nobody has said this one"), labels)  # the run is over


@pytest.mark.parametrize(
    "other",
    [
        "another order",
        "corrected labels",
        "fewer rows",
        "another prior",
        "other people",
        "another cap",
    ],
)
def test_what_is_not_the_failed_fit_is_charged(people, ledger, other):
    X, y, unit = numbers(people), people[1], np.arange(N) // 2
    prior, most = np.tile([0.7, 0.3], (N, 1)), 1
    model = classifier(Late(), law="rr-with-prior", stages=1, prior=prior)
    with pytest.raises(RuntimeError, match="on fire"):
        model.fit(X, closed(ledger, y, unit=unit))
    X = X + 1.0
    if other == "another order":
        X, y, unit = X[::-1], y[::-1], unit[::-1]
    elif other == "corrected labels":
        y = np.where(np.arange(N) == 3, np.where(y == "yes", "no", "yes"), y)
    elif other == "fewer rows":
        X, y, unit, prior = X[:-2], y[:-2], unit[:-2], prior[:-2]
    elif other == "another prior":
        prior = np.tile([0.6, 0.4], (N, 1))
    elif other == "other people":
        unit = np.arange(N) % (N // 2)
    else:
        most = 2
    with pytest.raises(ldp.BudgetExceeded):
        model.set_params(estimator=GaussianNB(), prior=prior).fit(
            X, closed(ledger, y, unit=unit, max_rows_per_unit=most)
        )
    assert ledger.spent("people", "bought") == 3.0


class Counting(GaussianNB):
    """Notes what it was given, and draws from the global generators."""

    seen: ClassVar[list] = []

    def fit(self, X, y, sample_weight=None):
        Counting.seen.append((len(X), len(np.unique(y)), sample_weight is not None))
        np.random.random()
        random.random()
        return super().fit(X, y, sample_weight)


def test_a_rehearsal_is_small_has_all_classes_and_weights_and_leaves_no_trace(people, ledger):
    Counting.seen = []
    np.random.seed(3)
    random.seed(3)
    classifier(Counting(), options=LearnOptions(em_rounds=1)).fit(
        numbers(people), closed(ledger, people[1])
    )
    tried = [each for each in Counting.seen if each[0] <= 240]
    assert tried and {each[1] for each in tried} == {2} and any(each[2] for each in tried)
    real = len(Counting.seen) - len(tried)
    drawn = np.random.random()
    np.random.seed(3)
    assert drawn == np.random.random(real + 1)[-1]


def test_a_rehearsal_tells_nothing_of_the_labels(people, monkeypatch):
    """Its rows and classes are the same whatever the labels are."""
    given = []
    monkeypatch.setattr(
        Counting,
        "fit",
        lambda self, X, y, sample_weight=None: given.append((np.array(X), np.array(y))) or 1 / 0,
    )
    for labels in (people[1], people[1][::-1]):
        with pytest.raises(ldp.InvalidInput, match="ZeroDivisionError"):
            classifier(Counting()).fit(numbers(people), closed(None, labels))
    half = len(given) // 2
    assert half and all(
        np.array_equal(a, b)
        for one, two in zip(given[:half], given[half:], strict=True)
        for a, b in zip(one, two, strict=True)
    )


class Copying(LogisticRegression):
    """Copies a parameter, as CatBoost does lists: scikit-learn refuses to clone it."""

    def __init__(self, columns: Any = None) -> None:
        super().__init__()
        self.columns = None if columns is None else list(columns)


def test_an_estimator_that_cannot_be_cloned_is_refused_before_the_charge(tmp_path: Path) -> None:
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    X = np.random.default_rng(0).normal(size=(200, 3))
    labels = closed(ledger, np.where(X[:, 0] > 0, "yes", "no"))
    with pytest.raises(RuntimeError, match=r"Cannot clone object .*parameter columns"):
        classifier(Copying([1])).fit(X, labels)
    assert ledger.runs() == []
