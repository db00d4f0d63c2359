# SPDX-License-Identifier: Apache-2.0
"""Raw labels as a closed value: who may open it, what it refuses, and what it keeps."""

import ast
import contextlib
import copy
import io
import os
import pickle
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import all_estimators

import labeldp as ldp
import labeldp.custody as door
import labeldp.papers.ghazi2021 as ghazi

ROOT = Path(__file__).resolve().parents[2]
N = 400
FRAME = pd.DataFrame(np.random.default_rng(0).normal(size=(N, 3)), columns=list("abc")).assign(
    visit=np.random.default_rng(1).permutation(N) + 1000,
    customer=np.arange(N) // 2,
    bought=lambda frame: np.where(frame.a + frame.b > 0, "yes", "no"),
    paid=lambda frame: frame.a + 3,
)
X = FRAME[["a", "b", "c"]]
LAW = ldp.RandomizedResponse(2, 1.0)
OPENERS = {"custody/_run.py", "custody/_answer.py"}  # one draws rows, one counts them


def closed(**more: Any) -> ldp.PrivateLabels:
    return ldp.PrivateLabels(FRAME.bought, **{"classes": ["no", "yes"]} | more)


def learner(**settings: Any) -> ldp.LabelDPClassifier:
    return ldp.LabelDPClassifier(LogisticRegression(), epsilon=2.0, random_state=0, **settings)


def openers(source: Path) -> set[str]:
    """The files that import what leads to the codes of private labels, or the module with it."""
    leads = {"opened", "_CODES", "_private", ".".join(["labeldp", "custody", "_private"])}
    return {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import)
        or (isinstance(node, ast.ImportFrom) and str(node.module).startswith("labeldp.custody"))
        if leads.intersection(each.name for each in node.names)
    }


def test_only_the_listed_places_open_the_value(tmp_path: Path) -> None:
    assert openers(ROOT / "src" / "labeldp") == OPENERS
    module = ".".join(["labeldp", "custody", "_private"])
    planted = (f"from {module} import opened", f"import {module}")
    for number, line in enumerate(planted):
        (tmp_path / f"reader{number}.py").write_text(f"{line} as found\n", encoding="utf-8")
    assert openers(tmp_path) == {"reader0.py", "reader1.py"}


READERS: dict[str, Callable[[Any], object]] = {
    "asarray": np.asarray,
    "list": list,
    "first": lambda labels: labels[0],
    "tolist": lambda labels: labels.tolist(),
    "series": pd.Series,
    "frame": lambda labels: pd.DataFrame({"y": labels}),
    "arrow": pa.array,
    "pickle": pickle.dumps,
    "joblib": lambda labels: joblib.dump(labels, io.BytesIO()),
    "hash": joblib.hash,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "unique": np.unique,
    "worker": lambda labels: joblib.Parallel(2)([joblib.delayed(len)(labels)] * 2),
    "privatized twice": ldp.PrivateLabels,
    "declared": lambda labels: ldp.NoisyLabels.from_labels(labels, LAW),
    "truth": lambda labels: ldp.metrics.accuracy(ldp.privatize(labels, LAW), labels),
    "groups": lambda labels: ldp.aggregate(labels, ldp.aggregates.Histogram(2, 1.0, 2), labels),
}


@pytest.mark.parametrize("name", READERS)
def test_no_reader_gets_a_label(name: str) -> None:
    labels = closed()
    with pytest.raises((TypeError, ValueError, AttributeError, pickle.PicklingError)) as caught:
        READERS[name](labels)
    text = "".join(traceback.format_exception(caught.value))
    assert "yes" not in text.replace("'no', 'yes'", "")
    assert labels.spent() == (1.0 if name == "truth" else 0.0)


def test_nothing_about_the_value_shows_labels() -> None:
    labels = closed(dataset="visits")
    assert repr(labels) == f"{labels}" == "400 labels of 2 classes, closed; dataset 'visits'"
    assert len(labels) == N and labels.shape == (N,)
    assert (labels.column, labels.unit, labels.classes) == ("bought", "row", ("no", "yes"))
    assert labels != closed() and labels == labels and len({labels, closed()}) == 2
    with pytest.raises(TypeError):
        vars(labels)
    for name in dir(labels):
        if not name.startswith("__") and name != "spent":
            held = getattr(labels, name)
            assert not isinstance(held, np.ndarray) or held.dtype.kind == "i", name
            assert "yes" not in str(held).replace("'no', 'yes'", ""), name


def test_the_value_says_what_it_holds() -> None:
    numbers = ldp.PrivateLabels(FRAME.paid, range=(0, 6), points=13, noise=ldp.SeededNoise(0))
    assert repr(numbers) == "400 numbers from 0 to 6, closed; seeded: no guarantee"
    assert numbers.classes == ldp.Grid(0, 6, 13) and numbers.spent() == np.inf
    columns = {"bought": ["no", "yes"], "paid": ldp.Grid(0, 6)}
    both = ldp.PrivateLabels(FRAME, classes=columns)
    assert repr(both) == "400 labels of columns 'bought', 'paid', closed"
    assert both.column == "bought,paid" and both.classes.names == ("bought", "paid")


def test_bad_arguments_are_refused_where_the_value_is_made(tmp_path: Path) -> None:
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("classes that a label can have", {"classes": None}),
        ("both", {"range": (0, 1)}),
        ("only with range", {"points": 3}),
        ("low, high", {"classes": None, "range": 6}),
        ("some label is not", {"classes": ["no", "si"]}),
        ("dataset= and column=", {"ledger": ledger}),
        ("the labels themselves", {"ids": FRAME.bought}),
        ("2 rows|400 rows", {"ids": [1, 2]}),
    ]
    for message, given in wrong:
        with pytest.raises(ldp.InvalidInput, match=message):
            closed(**given)
    with pytest.raises(ldp.InvalidInput, match="dataset= and column="):
        ldp.PrivateLabels([0, 1], classes=[0, 1], dataset="d", ledger=ledger)
    assert not ledger.runs()


PLAIN: dict[str, Callable[[Any], object]] = {
    "privatize": lambda y: ldp.privatize(y, LAW),
    "aggregate": lambda y: ldp.aggregate(y, ldp.aggregates.Histogram(2, 1.0, 1), np.zeros(N, int)),
    "best": lambda y: door.aggregate_best(
        y,
        [(ldp.aggregates.Histogram(2, 1.0, 1), np.zeros(N, int))],
        len,
        tuning=ghazi.RepeatAndSelect(2),
    ),
    "classifier": lambda y: learner().fit(X, y),
    "regressor": lambda y: ldp.LabelDPRegressor(LinearRegression()).fit(X, y),
    "votes": lambda y: ldp.learn.NoiseCluster(epsilon=1.0).fit(X, y),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_labels_are_refused_with_the_line_to_write(name: str) -> None:
    for y in (FRAME.bought, FRAME.bought.tolist(), None):
        with pytest.raises(ldp.InvalidInput, match=r"PrivateLabels\(y, classes=") as caught:
            PLAIN[name](y)
        assert "yes" not in str(caught.value)


def test_without_a_ledger_the_value_keeps_its_account() -> None:
    labels = closed()
    first, again = ldp.privatize(labels, LAW), ldp.privatize(labels, LAW)
    assert first.hard().tolist() == again.hard().tolist() and labels.spent() == 1.0
    assert [each.receipts[0].repeated for each in (first, again)] == [False, True]
    anew = ldp.privatize(labels, LAW, redraw=True)
    assert anew.hard().tolist() != first.hard().tolist() and labels.spent() == 2.0
    models = [learner(stages=2, validation_fraction=0.2).fit(X, labels) for _ in range(2)]
    released = [model.noisy_labels_.likelihood() for model in models]
    assert np.array_equal(*released) and labels.spent() == 4.0
    query, where = ldp.aggregates.Histogram(2, 0.5, 2), np.arange(N) % 2
    counts = [ldp.aggregate(labels, query, where).values for _ in range(2)]
    assert np.array_equal(*counts) and labels.spent() == 4.5
    ldp.aggregate(labels, query, 1 - where)
    assert labels.spent() == 5.0
    ldp.privatize(labels.subset(np.arange(9)), LAW)
    assert labels.spent() == 6.0


def test_values_of_the_same_ids_are_the_same_labels(tmp_path: Path) -> None:
    ledger, ids = ldp.Ledger(tmp_path / "ledger.db"), FRAME.visit
    given = {"dataset": "visits", "ids": ids, "ledger": ledger}
    first = ldp.privatize(closed(**given), LAW)
    changed = FRAME.bought.mask(FRAME.index < 9, "no")
    with pytest.warns(UserWarning, match="has answered this request"):
        again = ldp.privatize(ldp.PrivateLabels(changed, classes=["no", "yes"], **given), LAW)
    assert first.hard().tolist() == again.hard().tolist()
    assert closed(**given).spent() == 1.0 and len(ledger.runs()) == 1
    other = closed(**given | {"ids": ids + N})
    ldp.privatize(other, LAW)
    assert len(ledger.runs()) == 2 and other.spent() == 1.0  # of disjoint rows the most used counts


def test_some_rows_stay_closed_under_the_same_account(tmp_path: Path) -> None:
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    labels = closed(dataset="d", ids={"visit": FRAME.visit}, unit=FRAME.customer, ledger=ledger)
    ledger.set_budget("d", "bought", 3.0)
    even, odd = labels.subset(np.arange(N) % 4 < 2), labels.subset(np.flatnonzero(X.index % 4 > 1))
    for some in (even, odd):
        ldp.privatize(some, LAW)
    assert ledger.spent("d", "bought") == 1.0 and even.unit == "customer"
    model = learner().fit(X[X.index % 4 < 2], even)
    assert len(model.noisy_labels_) == N // 2 and ledger.spent("d", "bought") == 3.0


MADE: dict[str, Callable[[], tuple[Any, Any]]] = {
    "sorted": lambda: (X.sort_values("a"), {}),
    "filtered": lambda: (X[X.a > 0], {}),
    "reset": lambda: (X.set_index("a"), {}),
    "cut": lambda: (X.to_numpy()[:9], {}),
    "other ids": lambda: (X, {"ids": FRAME.visit + 1}),
    "some ids": lambda: (X[:9], {"ids": FRAME.visit[:9]}),
    "its own label": lambda: (FRAME[["a", "bought"]], {}),
    "private ids": lambda: (X, {"ids": FRAME.bought}),
}


@pytest.mark.parametrize("name", MADE)
def test_rows_that_are_not_those_of_the_labels_are_refused(name: str) -> None:
    labels = closed(ids={"visit": FRAME.visit})
    features, more = MADE[name]()
    for model in (learner(), ldp.learn.ProportionClassifier(epsilon=1.0, n_clusters=3)):
        with pytest.raises(ldp.InvalidInput):
            model.fit(features, labels, **more)
    assert labels.spent() == 0.0


def test_rows_of_x_are_matched_by_their_ids() -> None:
    labels, order = closed(ids={"visit": FRAME.visit}), np.argsort(FRAME.a.to_numpy())
    model = learner().fit(X.iloc[order], labels, ids=FRAME.visit.iloc[order])
    assert model.noisy_labels_.ids.tolist() == FRAME.visit.iloc[order].tolist()
    assert model.score(X, FRAME.bought.to_numpy()) > 0.9


WRONG_ROWS: tuple[Any, ...] = ([], [0, 0], [-1, N - 1], [N], [0.5], 3, [[0], [1]], [True], None)


@pytest.mark.parametrize("rows", WRONG_ROWS, ids=str)
def test_only_different_rows_make_a_part(rows: Any, tmp_path: Path) -> None:
    with pytest.raises(ldp.InvalidInput, match="different positions"):
        closed().subset(rows)
    with pytest.raises(ldp.InvalidInput, match="ids="):
        closed(dataset="d", ledger=ldp.Ledger(tmp_path / "ledger.db")).subset([0])


def test_labels_are_no_groups_also_as_the_array_that_they_were_made_from() -> None:
    y = FRAME.bought.to_numpy() == "yes"
    labels = ldp.PrivateLabels(y, classes=[False, True])
    with pytest.raises(ldp.InvalidInput, match="the labels themselves"):
        ldp.aggregate(labels, ldp.aggregates.Histogram(2, 1.0, 2), y)
    assert labels.spent() == 0.0


def test_a_choice_among_answers_has_no_units() -> None:
    query = ldp.aggregates.Histogram(2, 1.0, 1)
    # every row of a unit would be counted, with noise for one
    units, tries = closed(unit=FRAME.customer), [(query, np.zeros(N, int))]
    with pytest.raises(ldp.InvalidInput, match="with unit="):
        door.aggregate_best(units, tries, len, tuning=ghazi.RepeatAndSelect(2))
    assert units.spent() == 0.0


PUBLIC: dict[str, tuple[str, Callable[[Any, Any], object]]] = {
    "score": ("labeldp.privatize", lambda model, y: model.score(X, y)),
    "weights of a score": ("sample_weight", lambda model, y: model.score(X, FRAME.bought, y)),
    "weights of a fit": ("sample_weight", lambda model, y: learner().fit(X, y, y)),
    "metric": ("NoisyLabels", lambda model, y: ldp.metrics.roc_auc(y, np.ones(N), positive="no")),
    "scorer": ("NoisyLabels", lambda model, y: ldp.metrics.make_scorer("accuracy")(model, X, y)),
    "prior": ("closed", lambda model, y: ldp.privatize(y, ldp.AutoLaw(2, 1.0), prior=y)),
    "prior of a fit": ("prior", lambda model, y: learner(prior=y).fit(X, y)),
    "rates": ("class_prior", lambda model, y: learner(class_prior=y).fit(X, y)),
    "features": ("the labels themselves", lambda model, y: learner().fit(y, y)),
    "ids of a fit": ("the labels themselves", lambda model, y: learner().fit(X, y, ids=y)),
    "ids": ("closed", lambda model, y: closed(ids=y)),
    "rows": ("closed", lambda model, y: y.subset(y)),
    "no column": ("Expected each named column", lambda *_: ldp.split_labels(FRAME, "a", id="vist")),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_labels_are_refused_where_public_values_belong(name: str) -> None:
    labels, (said, act) = closed(), PUBLIC[name]
    noisy = ldp.privatize(closed(), LAW)
    with pytest.raises(ldp.InvalidInput, match=said):
        act(learner().fit(X, noisy), labels)
    assert labels.spent() == 0.0


def test_attributes_cannot_be_set() -> None:
    labels = closed(dataset="visits")
    for name in (name for name in dir(labels) if name[:2] != "__"):
        with pytest.raises(AttributeError, match="Make them anew"):
            setattr(labels, name, "other")
        with pytest.raises(TypeError, match="closed"):
            delattr(labels, name)
    assert labels.dataset == "visits" and len(ldp.privatize(labels, LAW)) == N


def test_features_do_not_keep_the_labels_alive() -> None:
    features, labels = ldp.split_labels(FRAME, "paid", id="visit", range=(0, 6))
    numbers = features[["a", "b", "c"]].to_numpy()
    base = numbers if numbers.base is None else numbers.base
    assert not any(np.array_equal(row, FRAME.paid) for row in base)
    assert np.ndim(labels.ids.base) <= 1


def test_a_repeat_by_ids_costs_nothing_and_a_fork_opens_nothing() -> None:
    labels = closed(ids={"visit": FRAME.visit})
    for _ in range(2):
        learner().fit(X, labels, ids={"visit": FRAME.visit})
    assert labels.spent() == 2.0
    with pytest.raises(TypeError, match="subclasses"):
        type("Reader", (ldp.PrivateLabels,), {})
    if (child := os.fork()) == 0:
        try:
            ldp.privatize(labels, LAW)
        except TypeError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_numbers_and_several_columns_are_learned() -> None:
    paid = ldp.PrivateLabels(FRAME.paid, range=(0, 6))
    model = ldp.LabelDPRegressor(LinearRegression(), epsilon=8.0, random_state=0).fit(X, paid)
    assert np.corrcoef(model.predict(X), FRAME.paid)[0, 1] > 0.9 and paid.spent() == 8.0
    both = ldp.PrivateLabels(FRAME, classes={"bought": ["no", "yes"], "paid": ldp.Grid(0, 6, 4)})
    assert learner().fit(X, both).predict(X).shape == (N, 2) and both.spent() == 2.0


def test_a_frame_is_split_into_features_and_labels() -> None:
    table = pa.Table.from_pandas(FRAME, preserve_index=False)
    for frame in (FRAME, table):
        features, labels = ldp.split_labels(
            frame, "bought", id="visit", unit="customer", keep=["visit"], classes=["no", "yes"]
        )
        names = features.columns if frame is FRAME else features.column_names
        assert list(names) == ["a", "b", "c", "visit", "paid"] and type(features) is type(frame)
        assert (labels.column, labels.unit, labels.rows.given.id_name) == (
            "bought",
            "customer",
            "visit",
        )
    features, both = ldp.split_labels(
        FRAME, ["bought", "paid"], classes={"bought": ["no", "yes"], "paid": ldp.Grid(0, 6)}
    )
    assert list(features) == ["a", "b", "c", "visit", "customer"] and len(both) == N
    with pytest.raises(ldp.InvalidInput, match=r"'vist'.*'visit'"):
        ldp.split_labels(FRAME, "bought", id="vist", classes=["no", "yes"])


def outcome(model: Any, X: Any, labels: ldp.PrivateLabels) -> str:
    """What a fit says as it fails; "" if it does not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, labels)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Reads(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer of the user's that needs labels."""

    def fit(self, X: Any, y: Any) -> "Reads":
        self.rate_ = np.asarray(y).mean()
        return self

    def transform(self, X: Any) -> Any:
        return X


def wrappers() -> list[Any]:
    """scikit-learn's meta-estimators around a classifier of ours, where one can be made so."""
    found: list[Any] = [make_pipeline(Reads(), learner())]
    for name, kind in all_estimators():
        for given in ({"estimator": learner()}, {"estimators": [("a", learner())]}):
            with warnings.catch_warnings(), contextlib.suppress(TypeError):
                warnings.simplefilter("ignore")  # of what is deprecated
                found.append(clone(kind(**given)))
        if name.endswith("SearchCV"):
            grid = {"C": [1.0]}
            found += [kind(learner(), grid, cv=KFold(2)), kind(learner(), grid, cv=3)]
    return found


def test_no_wrapper_of_scikit_learn_reads_labels() -> None:
    """Each stops before a charge, or makes exactly the charges of the fits inside it."""
    inside = []

    class Counting(ldp.LabelDPClassifier):  # type: ignore[misc]
        def _fit_private(self, X: Any, inputs: Any, labels: Any) -> None:
            super()._fit_private(X, inputs, labels)
            inside.append(labels)

    tried = wrappers()
    assert len(tried) >= 30
    for wrapper in tried:
        for part in ("estimator", "estimators"):
            if part in wrapper.get_params(deep=False):
                own = Counting(LogisticRegression(), epsilon=2.0)
                wrapper.set_params(**{part: own if part == "estimator" else [("a", own)]})
        inside.clear()
        labels = closed()
        told = outcome(wrapper, X, labels)
        assert "yes" not in told.replace("'no', 'yes'", ""), wrapper
        assert labels.spent() == 2.0 * min(1, len(inside)), wrapper


def test_no_transformer_of_scikit_learn_reads_labels() -> None:
    learned = 0
    for name, kind in all_estimators(type_filter="transformer"):
        try:
            step = kind()
        except TypeError:  # of what wraps others
            continue
        labels, pipeline = closed(), make_pipeline(step, learner())
        needs = step.__sklearn_tags__().target_tags.required
        told = outcome(pipeline, X.abs(), labels)
        assert "yes" not in told.replace("'no', 'yes'", "") and (told or not needs), name
        learned += not told
        assert labels.spent() in ((0.0,) if needs else (0.0, 2.0)), name
    assert learned > 20


def test_what_the_refusal_says_works() -> None:
    labels = closed()
    noisy = ldp.privatize(labels, ldp.RandomizedResponse(2, 4.0))
    assert cross_val_score(learner(), X, noisy, cv=KFold(3)).mean() > 0.8
    search = GridSearchCV(learner(), {"epsilon": [2.0, 3.0]}, cv=KFold(2)).fit(X, noisy)
    assert search.best_score_ > 0.8 and labels.spent() == 4.0
    inner = make_pipeline(StandardScaler(), LogisticRegression())
    assert ldp.LabelDPClassifier(inner, epsilon=2.0).fit(X, labels).score(X, FRAME.bought) > 0.8
