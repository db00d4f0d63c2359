# SPDX-License-Identifier: Apache-2.0
"""An answer that an earlier run gave, to labels that nobody reads now, never comes back without a
word."""

import json
import logging
import pickle
import re
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_transformer
from sklearn.datasets import make_blobs
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import StackingClassifier
from sklearn.feature_selection import RFE, SelectFromModel, SelectKBest, VarianceThreshold
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import KFold, cross_val_score
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler, TargetEncoder
from tests.naming import named
from typer.testing import CliRunner

import labeldp as ldp
from labeldp.cli import app
from labeldp.custody import _request as charge
from labeldp.errors import RepeatWarning
from labeldp.learn import ClusterPrior, NoiseCluster, ProportionClassifier
from labeldp.papers.malek2021 import PATEClassifier

X, y3 = make_blobs(300, centers=3, random_state=0, cluster_std=1.0)
X = X.astype(np.float32)
FIRST, SECOND = (y3 == 0).astype(int), (y3 == 1).astype(int)
IDS = np.arange(300)
TWO, THREE = ldp.RandomizedResponse(2, 1.0), ldp.RandomizedResponse(3, 1.0)


@pytest.fixture(autouse=True)
def nothing_told_yet(monkeypatch):
    monkeypatch.setattr(charge, "_told", set())


@pytest.fixture
def ledger(tmp_path):
    return ldp.Ledger(tmp_path / "ledger.db", budget=100.0)


def labels(y, ledger, **facts):
    facts = {"classes": [0, 1], "dataset": "d", "column": "label", "ledger": ledger} | facts
    return ldp.PrivateLabels(y, **facts)


def linear(**settings):
    return ldp.LabelDPClassifier(LogisticRegression(), **{"epsilon": 1.0} | settings)


def net(**settings):
    torch = pytest.importorskip("torch")
    from labeldp.deep import Recipe, TorchClassifier

    recipe = Recipe(epochs=1, batch_size=64, precision="float32")
    return TorchClassifier(lambda k: torch.nn.Linear(2, k), **{"recipe": recipe} | settings)


def clustered(kind):
    return lambda **settings: kind(**{"n_clusters": 4} | settings)


ESTIMATORS = {
    "LabelDPClassifier": linear,
    "with a prior": lambda **settings: linear(
        **{"prior": ClusterPrior(n_clusters=4), "law": "auto"} | settings
    ),
    "TorchClassifier": net,
    "NoiseCluster": clustered(NoiseCluster),
    "ProportionClassifier": clustered(ProportionClassifier),
    "PATEClassifier": lambda **settings: PATEClassifier(
        **{"epsilon": 8.0, "n_teachers": 60, "n_queries": 10} | settings
    ),
}
OTHERS = {  # what asks anew where there is no redraw
    "with a prior": {"prior": ClusterPrior(n_clusters=4, random_state=1)},
    "NoiseCluster": {"random_state": 1},
    "ProportionClassifier": {"random_state": 1},
    "PATEClassifier": {"random_state": 1},
}


def ask_rows(y, ledger, redraw=False, **facts):
    return ldp.privatize(labels(y, ledger, ids=IDS, **facts), TWO, redraw=redraw).privacy


def ask_groups(y, ledger, redraw=False, **facts):
    query = ldp.aggregates.Histogram(n_classes=2, epsilon=1.0, n_groups=2)
    return ldp.aggregate(labels(y, ledger, **facts), query, IDS % 2, redraw=redraw).privacy


def fitted_by(make, **facts):
    return lambda y, ledger, column="label", **more: (
        make(**more).fit(X, labels(y, ledger, column=column, **facts)).privacy_
    )


def each(names):
    """Names as parameters; that of the net for `make test-deep`."""
    return [
        pytest.param(name, marks=pytest.mark.deep) if name == "TorchClassifier" else name
        for name in names
    ]


WAYS = {"privatize": ask_rows, "aggregate": ask_groups} | {
    name: fitted_by(make) for name, make in ESTIMATORS.items()
}


@pytest.mark.parametrize("way", each(WAYS), ids=named)
def test_an_old_answer_is_told_of_once_with_its_run_and_what_to_do(ledger, caplog, way):
    with warnings.catch_warnings():
        warnings.simplefilter("error", RepeatWarning)
        first = WAYS[way](FIRST, ledger)
    runs = ledger.runs()
    with (
        pytest.warns(RepeatWarning, match="not read") as told,
        caplog.at_level(logging.INFO, "labeldp"),
    ):
        second = WAYS[way](SECOND, ledger)
    told = [each for each in told if each.category is RepeatWarning]  # a net may have lost a class
    messages = [str(each.message) for each in told]
    assert [re.search("[0-9a-f]{32}", each).group() for each in messages] == [
        run.run_id for run in runs
    ]
    assert all(
        run.receipt.entry.charged_at[:10] in each and "column=" in each
        for run, each in zip(runs, messages, strict=True)
    )
    assert ("random_state=" if way in OTHERS else "redraw=True") in messages[0]
    assert {each.filename for each in told} == {__file__}  # the user's own line
    assert sum("not read" in record.message for record in caplog.records) == len(runs)
    assert (
        (first.repeated, second.repeated) == (False, True)
        and "repeated=True" in repr(second)
        and "repeated" not in repr(first)
    )
    assert first == second and ledger.runs() == runs
    with warnings.catch_warnings():
        warnings.simplefilter("error", RepeatWarning)
        assert WAYS[way](SECOND, ledger).repeated  # said once
        assert not WAYS[way](SECOND, ledger, column="other").repeated
    if way in ("privatize", "aggregate"):
        assert not WAYS[way](SECOND, ledger, redraw=True).repeated
    if way in OTHERS:
        assert not WAYS[way](SECOND, ledger, **OTHERS[way]).repeated


NEAR = {
    "law": ({"law": ldp.SubsetSelection(3, 1.0)}, "law"),
    "epsilon": ({"law": ldp.RandomizedResponse(3, 2.0)}, "epsilon"),
    "cap": ({"max_rows_per_unit": 2}, "max_rows_per_unit"),
    "order": ({"classes": [2, 1, 0]}, "classes or prior"),
    "name": ({"stage": "again"}, "stage"),
    "rows": ({"ids": IDS + 1}, ""),
    "redraw": ({"redraw": True}, ""),
}


@pytest.mark.parametrize("near", NEAR)
def test_a_spent_budget_names_what_differs_from_a_run_that_could_have_been_repeated(tmp_path, near):
    changed, told = NEAR[near]

    def drawn(law=THREE, **given):
        asked = {name: given.pop(name) for name in ("stage", "redraw") if name in given}
        facts = {"classes": [0, 1, 2], "ids": IDS, "unit": IDS // 2} | given
        return ldp.privatize(labels(y3, ldp.Ledger(tmp_path / "l.db"), **facts), law, **asked)

    first = drawn()
    assert drawn().receipts[0].repeated
    with pytest.raises(ldp.BudgetExceeded) as refused:
        drawn(**changed)
    run_id = first.receipts[0].run_id
    said = f"Expected the settings of run {run_id}, whose answer is free, got others: {told}."
    assert str(refused.value).endswith(said) is bool(told), refused.value
    assert (run_id in str(refused.value)) is bool(told)


def test_receipts_say_it_wherever_they_go(ledger, tmp_path):
    first, again = (ldp.privatize(labels(y, ledger, ids=IDS), TWO) for y in (FIRST, SECOND))
    assert [each.receipts[0].repeated for each in (first, again)] == [False, True]
    assert first.receipts == again.receipts and not ledger.verify(again.receipts)
    assert "repeated" not in first.receipts[0].to_dict() and again.receipts[0].to_dict()["repeated"]
    assert ldp.NoisyLabels.from_table(again.to_table()).privacy.repeated
    assert ldp.concat([first[:10], again[10:]]).privacy == first.privacy
    assert pickle.loads(pickle.dumps(again)).privacy.repeated
    query = ldp.aggregates.Histogram(n_classes=2, epsilon=1.0, n_groups=2)
    answers = [
        ldp.aggregate(labels(y, ledger, dataset="e"), query, IDS % 2) for y in (FIRST, SECOND)
    ]
    assert [each.receipt.repeated for each in answers] == [False, True]


@pytest.mark.filterwarnings("error::labeldp.errors.RepeatWarning")
@pytest.mark.parametrize("way", each(["LabelDPClassifier", "TorchClassifier"]), ids=named)
def test_a_fit_in_other_stages_is_another_request(ledger, way):
    fit = fitted_by(ESTIMATORS[way], classes=range(3))
    assert not fit(y3, ledger, stages=2).repeated
    assert not fit(y3, ledger).repeated  # the default is one stage
    assert ledger.spent("d", "label") == 2.0 and len(ledger.runs()) == 2
    with pytest.warns(RepeatWarning, match=ledger.runs()[0].run_id):
        assert fit(y3, ledger, stages=2).repeated
    with pytest.warns(RepeatWarning, match=ledger.runs()[1].run_id):
        assert fit(y3, ledger, stages=1).repeated
    assert ledger.spent("d", "label") == 2.0 and len(ledger.runs()) == 2


@pytest.mark.parametrize("way", each(["LabelDPClassifier", "TorchClassifier"]), ids=named)
def test_with_two_classes_all_numbers_of_stages_are_one_request(ledger, way):
    fit = fitted_by(ESTIMATORS[way])
    assert not fit(FIRST, ledger, stages=2).repeated
    assert fit(FIRST, ledger).repeated and len(ledger.runs()) == 1


def test_a_run_that_is_picked_up_reads_its_labels_and_is_no_old_answer(ledger, monkeypatch):
    from labeldp.custody._run import Run

    def die(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Run, "settle", die)
        linear().fit(X, labels(FIRST, ledger))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RepeatWarning)
        assert not linear().fit(X, labels(FIRST, ledger)).privacy_.repeated
    assert len(ledger.runs()) == 1


@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no ids"])
def test_a_table_that_was_released_before_says_it(ledger, tmp_path, capsys, ids):
    import pyarrow as pa
    import pyarrow.parquet as pq

    source, out = tmp_path / "t.parquet", tmp_path / "noisy.parquet"
    spec = ldp.ReleaseSpec(
        label="y", classes=[0, 1], epsilon=1.0, id="id" if ids else None, dataset="d"
    )
    pq.write_table(pa.table({"id": IDS, "y": FIRST}), source)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RepeatWarning)
        first = ldp.release(source, out, spec, ledger)
    pq.write_table(pa.table({"id": IDS, "y": SECOND}), source)  # corrected, or of another target
    with pytest.warns(
        RepeatWarning,
        match=r"Later changes to the table.s labels are not in it.*redraw=True",
    ) as told:
        again = ldp.release(source, out, spec, ledger)
    assert [each.filename for each in told] == [__file__] and first.receipt.run_id in str(
        told[0].message
    )
    assert again.repeated and again.receipt.repeated and again.receipt == first.receipt
    with warnings.catch_warnings():
        warnings.simplefilter("error", RepeatWarning)
        assert ldp.release(source, out, spec, ledger).repeated  # said once
        assert not ldp.release(
            source, tmp_path / "anew.parquet", spec, ldp.Ledger(ledger.location), redraw=True
        ).repeated


def test_train_says_it_and_its_model_too(tmp_path):
    table = pytest.importorskip("pandas").DataFrame(X, columns=["a", "b"]).assign(id=IDS, y=FIRST)
    run = [
        "train",
        "t.csv",
        "--label",
        "y",
        "--classes",
        "0,1",
        "--epsilon",
        "1",
        "--id",
        "id",
        "--ledger",
        str(tmp_path / "l.db"),
    ]
    run[1], results = str(tmp_path / "t.csv"), []
    for name, y in (("one", FIRST), ("two", SECOND)):
        table.assign(y=y).to_csv(run[1], index=False)
        results.append(CliRunner().invoke(app, [*run, "--out", str(tmp_path / name)]))
        assert results[-1].exit_code == 0, results[-1].output
    facts = [json.loads((tmp_path / name / "model.json").read_text()) for name in ("one", "two")]
    run_id = facts[0]["receipts"][0]["run_id"]
    assert "not read" not in results[0].output
    said = results[1].stderr
    assert (
        f"warning: Run {run_id} of " in said
        and "The labels given now were not read" in said
        and "not read" not in results[1].stdout
    )
    assert "release them anew with --redraw (of" in said and "column=" not in said
    assert facts[1]["receipts"][0]["repeated"] is True and "repeated" not in facts[0]["receipts"][0]


class Wrapper:
    """A user's own estimator around one of ours."""

    def __init__(self, model):
        self.model = model

    def fit(self, X, y):
        self.model.fit(X, y)
        return self


HANDED_ON = {
    "a pipeline": lambda model: make_pipeline(StandardScaler(), model),
    "columns": lambda model: Pipeline(
        [("c", ColumnTransformer([("s", StandardScaler(), [0, 1])])), ("m", model)]
    ),
    "a clone": lambda model: clone(
        make_pipeline(make_column_transformer((StandardScaler(), [0])), model)
    ),
    "a wrapper": Wrapper,
}


@pytest.mark.parametrize("way", HANDED_ON, ids=named)
def test_pipelines_hand_labels_on(ledger, way):
    HANDED_ON[way](linear()).fit(X, labels(FIRST, ledger))
    assert len(ledger.runs()) == 1


LEARNS = {
    "discriminants": LinearDiscriminantAnalysis(),
    "neighbours": NeighborhoodComponentsAnalysis(n_components=1, max_iter=2),
    "means of the target": TargetEncoder(cv=2),
    "the best column": SelectKBest(k=1),
    "a model's choice": SelectFromModel(LogisticRegression()),
    "eliminated": RFE(LogisticRegression(), n_features_to_select=1),
    "a stack": StackingClassifier([("l", LogisticRegression())], cv=KFold(2)),
    "in columns": ColumnTransformer([("s", StandardScaler(), [0])], remainder=SelectKBest(k=1)),
    "in a union": FeatureUnion(
        [("s", StandardScaler()), ("p", make_pipeline(StandardScaler(), SelectKBest(k=1)))]
    ),
}


@pytest.mark.parametrize("recorded", [True, False], ids=["ledger", "no ledger"])
@pytest.mark.parametrize("way", LEARNS, ids=named)
def test_a_step_that_would_learn_from_the_raw_labels_is_refused(ledger, way, recorded):
    """What such a step learned would leave the fit without any noise, under a guarantee that does
    not cover it."""
    closed = labels(FIRST, ledger if recorded else None)
    with pytest.raises(
        ldp.InvalidInput,
        match=r"does not read labels.*: LabelDPClassifier\(make_pipeline\(encoder,",
    ):
        make_pipeline(clone(LEARNS[way]), linear()).fit(np.round(X), closed)
    assert closed.spent() == 0.0 and not ledger.runs()


def test_what_transforms_targets_goes_behind_the_noise():
    y = ldp.PrivateLabels(np.linspace(1, 5, len(X)), range=(-6, 6))
    transformed = TransformedTargetRegressor(LinearRegression(), transformer=StandardScaler())
    with pytest.raises(ldp.InvalidInput, match="does not read labels"):
        TransformedTargetRegressor(
            ldp.LabelDPRegressor(LinearRegression()), transformer=StandardScaler()
        ).fit(X, y)
    assert y.spent() == 0.0
    ldp.LabelDPRegressor(transformed).fit(X, y)


def test_a_step_behind_the_noise_learns_from_noisy_labels(ledger):
    inner = make_pipeline(SelectKBest(k=1), LogisticRegression())
    model = ldp.LabelDPClassifier(inner, random_state=0)
    make_pipeline(StandardScaler(), VarianceThreshold(), model).fit(X, labels(FIRST, ledger))
    assert ledger.spent("d", "label") == 1.0


@pytest.mark.filterwarnings("ignore::labeldp.errors.SeenRowsWarning")
def test_searches_over_noisy_labels_are_free(ledger):
    noisy = ldp.privatize(labels(FIRST, ledger, ids=IDS), TWO)
    scores = cross_val_score(
        linear(validation_fraction=0), X, noisy, cv=KFold(3), error_score="raise"
    )
    assert np.isfinite(scores).all() and len(ledger.runs()) == 1
