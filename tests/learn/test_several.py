# SPDX-License-Identifier: Apache-2.0
"""LabelDPClassifier on several targets: one charge for all of them, scikit-learn's conventions for
what comes out."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier

import labeldp as ldp
from labeldp.errors import (
    BudgetExceeded,
    InvalidInput,
    LeftOutWarning,
    RepeatWarning,
    SeededNoiseWarning,
)
from labeldp.learn import LabelDPClassifier, Prior, SoftmaxRegression
from labeldp.learn._several import Reading
from labeldp.papers.malek2021 import PATEClassifier
from labeldp.protocol.metrics import likeliest_frequencies

N = 1500
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, 4))
COLUMNS = ldp.LabelColumns({"clicked": ["no", "yes"], "rating": [1, 2, 3]})
Y = pd.DataFrame(
    {"clicked": np.where(X[:, 0] > 0, "yes", "no"), "rating": np.digitize(X[:, 1], [-0.7, 0.7]) + 1}
)


@pytest.fixture
def ledger(tmp_path):
    return ldp.Ledger(tmp_path / "ledger.db", budget=4.0)


def model(**changes):
    given = {"epsilon": 4.0, "random_state": 0, "estimator": LogisticRegression()}
    return LabelDPClassifier(**given | changes)


def closed(y=Y, classes=COLUMNS, **facts):
    """Closed labels; with seeded noise unless they have a ledger."""
    account = {"dataset": "d"} if "ledger" in facts else {"noise": ldp.SeededNoise(0)}
    return ldp.PrivateLabels(y, **{"classes": classes} | account | facts)


def of_three(law=None):
    """Noisy labels of the two columns and a third one, "high"."""
    three = ldp.LabelColumns(
        {**dict(zip(COLUMNS.names, COLUMNS.lists, strict=True)), "high": [0, 1]}
    )
    labels = closed({**Y, "high": (X[:, 2] > 0).astype(int)}, three)
    return ldp.privatize(labels, three.law(4.0, *([] if law is None else [law])))


@pytest.mark.parametrize("split", ["joint", "one", "equal"])
def test_some_columns_of_noisy_labels_are_learned_alone(split):
    """In the order of `columns`; each as when all are learned. Of a joint draw the others tell of
    them, too."""
    noisy = of_three(split)
    whole, some = model().fit(X, noisy), model(columns=["rating", "clicked"]).fit(X, noisy)
    assert len(some.estimators_) == 2 and len(whole.estimators_) == 3
    np.testing.assert_array_equal(some.predict(X), whole.predict(X)[:, 1::-1])
    assert 0 < some.score(X, Y) <= 1
    with pytest.raises(InvalidInput, match="column"):
        model(columns=["clicks"]).fit(X, noisy)


def test_a_column_that_no_row_was_asked_about_keeps_no_other_from_being_learned():
    drawn = of_three()
    others = ~drawn["high"].evidenced
    with pytest.raises(InvalidInput, match="none about 'high'"):
        model().fit(X[others], drawn[others])
    two = model(columns=COLUMNS.names).fit(X[others], drawn[others])
    assert two.predict(X).shape == (N, 2)


@pytest.mark.parametrize("split", [None, "equal", "one"])
def test_each_target_is_predicted_from_one_draw(split):
    law = "auto" if split is None else COLUMNS.law(4.0, split)
    fitted = model(law=law).fit(X, closed())
    predicted, proba = fitted.predict(X), fitted.predict_proba(X)
    assert predicted.shape == (N, 2)
    assert [each.shape for each in proba] == [(N, 2), (N, 3)]
    assert [list(each) for each in fitted.classes_] == [["no", "yes"], [1, 2, 3]]
    for number, name in enumerate(COLUMNS.names):
        np.testing.assert_allclose(proba[number].sum(axis=1), 1.0)
        np.testing.assert_array_equal(
            predicted[:, number], fitted.classes_[number][proba[number].argmax(axis=1)]
        )
        # 0.5 and 0.5 are the commonest classes
        assert (predicted[:, number] == Y[name]).mean() > 0.8
    assert fitted.score(X, Y) == (predicted == Y.to_numpy(object)).all(axis=1).mean()
    assert len({receipt.run_id for receipt in fitted.receipts_}) == 1
    assert fitted.noisy_labels_.classes is COLUMNS or fitted.noisy_labels_.classes == COLUMNS
    assert all(each is None or 0 < each.value < 1.5 for each in fitted.estimated_accuracy_)


def test_the_ledger_has_one_charge_and_a_repeat_is_free(ledger):
    first = model(epsilon=2.0).fit(X, closed(ledger=ledger))
    assert (
        ledger.spent("d", "clicked"),
        ledger.spent("d", "rating"),
        ledger.spent("d", COLUMNS.names),
    ) == (2.0, 2.0, 2.0)
    assert len(ledger.runs()) == 1
    assert first.privacy_ == ldp.PrivacySpent(2.0, 0.0, "row", recorded=True, secure=True)
    with pytest.warns(RepeatWarning):
        again = model(epsilon=2.0).fit(X, closed(Y.to_numpy(object), ledger=ledger))
    np.testing.assert_array_equal(again.predict(X), first.predict(X))
    assert ledger.spent("d", "rating") == 2.0
    with pytest.raises(BudgetExceeded):
        model(epsilon=3.0).fit(X, closed(ledger=ledger))
    # noisy labels cost nothing
    other = model(epsilon=2.0).fit(X, first.noisy_labels_)
    np.testing.assert_array_equal(other.predict(X), first.predict(X))
    assert other.privacy_.evidence == "proven"
    alone = LabelDPClassifier(LogisticRegression(), random_state=0).fit(
        X, first.noisy_labels_["rating"]
    )
    # which reads the sets for both columns together
    assert (alone.predict(X) == first.predict(X)[:, 1]).mean() > 0.9


@pytest.mark.parametrize("split", ["joint", "one", "equal"])
def test_later_stages_are_drawn_by_what_the_models_before_predict(ledger, split):
    """The second stage's rows hold exactly what its law makes of the product of the first models'
    probabilities, at one charge."""
    law = COLUMNS.law(3.0, split, "auto")
    given = {"epsilon": 3.0, "law": law, "stages": 2, "prior": Prior(temperature=0.8)}
    fitted = model(**given).fit(X, closed(ledger=ledger))
    assert [(stage.name, stage.law) for stage in fitted.stages_] == [
        ("stage-1", law),
        ("stage-2", law),
    ]
    assert [ledger.spent("d", name) for name in COLUMNS.names] == [3.0, 3.0] and len(
        ledger.runs()
    ) == 1
    assert fitted.privacy_ == ldp.PrivacySpent(3.0, 0.0, "row", recorded=True, secure=True)
    blocks = {block.stage: block for block in fitted.noisy_labels_.blocks}
    assert (
        set(blocks) == {"stage-1", "stage-2", "validation"}
        and sum(len(block.rows) for block in blocks.values()) == N
    )
    first, second = blocks["stage-1"].rows, blocks["stage-2"].rows
    before = model(validation_fraction=0.0).fit(X[first], fitted.noisy_labels_[first])
    weights = {
        name: each ** (1 / 0.8)
        for name, each in zip(COLUMNS.names, before.predict_proba(X[second]), strict=True)
    }
    prior = COLUMNS.prior(weights)(np.arange(len(second)))
    # the column is asked at random
    drawn = {name: values for name, values in blocks["stage-2"].side.items() if name != "column"}
    assert drawn
    for name, values in drawn.items():
        np.testing.assert_array_equal(law.prepare(prior)[name], values)
    with pytest.warns(RepeatWarning):
        again = model(**given).fit(X, closed(ledger=ledger))
    np.testing.assert_array_equal(again.predict_proba(X)[1], fitted.predict_proba(X)[1])
    assert ledger.spent("d", "rating") == 3.0
    assert fitted.score(X, Y) > 0.3  # a quarter is the share of the commonest combination
    # by held-out rows, drawn without a prior
    assert all(0 < each.value < 1.6 for each in fitted.estimated_accuracy_)


def test_a_public_prior_is_taken_by_column_as_a_whole_or_as_a_function(ledger):
    weights = np.where((X[:, 0] > 0)[:, None], [0.2, 0.8], [0.8, 0.2])
    whole = COLUMNS.prior({"clicked": weights})(np.arange(N))
    found = [
        model(prior=prior, law=COLUMNS.law(4.0, "joint", "auto")).fit(X, closed())
        for prior in (
            {"clicked": weights},
            whole,
            lambda inputs: {"clicked": np.where((inputs[:, :1] > 0), [0.2, 0.8], [0.8, 0.2])},
        )
    ]
    for each in found[1:]:
        np.testing.assert_array_equal(each.predict(X), found[0].predict(X))
    assert found[0].score(X, Y) > 0.5
    flat = model(prior=np.ones((N, 6)), law=COLUMNS.law(4.0, "joint", "auto")).fit(X, closed())
    assert (
        flat.noisy_labels_.blocks[-1].side.keys() == found[0].noisy_labels_.blocks[-1].side.keys()
    )
    charged = model(prior=Prior({"clicked": weights}, weight=0.5), stages=2).fit(
        X, closed(ledger=ledger)
    )
    assert (
        ledger.spent("d", "clicked") == ledger.spent("d", "rating") == 4.0
        and charged.privacy_.epsilon == 4.0
    )
    with pytest.raises(InvalidInput, match="as they were drawn"):
        found[0].estimators_[0].noisy_labels_.to_table()


@pytest.mark.parametrize(
    "prior",
    [ldp.learn.ClusterPrior(n_clusters=4, epsilon=1.0), ldp.learn.HistogramPrior(epsilon=1.0)],
)
@pytest.mark.parametrize(("split", "stages"), [("joint", 1), ("one", 2)])
def test_a_prior_that_is_paid_for_counts_the_combinations_of_its_groups(
    ledger, prior, split, stages
):
    """Two charges in the accounts of both columns, which add up to the fit's epsilon; rows are
    drawn by the noisy answer."""
    law = COLUMNS.law(3.0, split, "auto")
    given = {"prior": prior, "law": law, "stages": stages}
    fitted = model(**given).fit(X, closed(ledger=ledger))
    assert (
        [ledger.spent("d", name) for name in COLUMNS.names]
        == [4.0, 4.0]
        == [fitted.privacy_.epsilon] * 2
    )
    assert [receipt.epsilon for receipt in fitted.receipts_] == [1.0, 3.0] and len(
        ledger.runs()
    ) == 2
    blocks = {block.stage: block for block in fitted.noisy_labels_.blocks}
    assert set(blocks) == {"validation", *(f"stage-{number + 1}" for number in range(stages))}
    assert (
        len(
            {
                bytes(values)
                for name, side in blocks["stage-1"].side.items()
                if name != "column"
                for values in side
            }
        )
        > 1
    )
    assert (fitted.prior_ is None) == isinstance(prior, ldp.learn.HistogramPrior)
    if fitted.prior_ is not None:
        assert fitted.prior_.predict_proba(X).shape == (N, 6)
    assert (fitted.predict(X)[:, 0] == Y["clicked"]).mean() > 0.7
    assert all(each is not None for each in fitted.estimated_accuracy_)
    with pytest.warns(RepeatWarning):
        again = model(**given).fit(X, closed(ledger=ledger))
    np.testing.assert_array_equal(again.predict_proba(X)[1], fitted.predict_proba(X)[1])
    assert ledger.spent("d", "rating") == 4.0


def test_a_budget_without_room_for_the_whole_fit_pays_for_no_prior(tmp_path):
    small = ldp.Ledger(tmp_path / "small.db", budget=3.0)
    with pytest.raises(BudgetExceeded):
        model(prior=ldp.learn.ClusterPrior(n_clusters=4, epsilon=1.0)).fit(X, closed(ledger=small))
    assert small.runs() == []


def test_stages_take_frames_the_default_estimator_and_units():
    frame = pd.DataFrame(X, columns=list("abcd")).assign(kind=np.where(X[:, 0] > 0, "x", "y"))
    given = {"law": COLUMNS.law(4.0, "joint", "auto"), "stages": 3}
    weights = np.ones((N, 6))
    weights[0], weights[1] = 0.0, 1e308  # a row of zeros counts as uniform
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = model(estimator=None, prior=Prior(weights, weight=0.2), **given).fit(
            frame, closed(unit=np.arange(N) // 2, max_rows_per_unit=1)
        )
    assert {each.category for each in caught} == {SeededNoiseWarning, LeftOutWarning}
    assert [stage.name for stage in fitted.stages_] == ["stage-1", "stage-2", "stage-3"]
    assert (~fitted.noisy_labels_.evidenced).sum() == N // 2
    assert (fitted.predict(frame)[:, 0] == Y["clicked"]).mean() > 0.7


def test_what_a_draw_of_all_columns_tells_of_one_is_the_exact_sum_over_the_others():
    columns = ldp.LabelColumns({"a": [0, 1], "b": [0, 1, 2], "c": [0, 1]})
    rng = np.random.default_rng(1)
    labels = {
        name: rng.integers(len(values), size=40)
        for name, values in zip(columns.names, columns.lists, strict=True)
    }
    belief = [rng.dirichlet(np.ones(size), 40) for size in columns.sizes]
    noisy = ldp.privatize(
        closed(labels, columns),
        columns.law(1.0, "joint", "auto"),
        prior=rng.random((40, 12)),
    )
    whole = noisy.likelihood(dtype="float64").reshape(40, 2, 3, 2)
    for number, sum_over in enumerate(("nabc,nb,nc->na", "nabc,na,nc->nb", "nabc,na,nb->nc")):
        found = Reading(belief).told(noisy, number)
        expected = np.einsum(
            sum_over, whole, *(each for m, each in enumerate(belief) if m != number)
        )
        np.testing.assert_allclose(
            found.likelihood(dtype="float64"),
            expected / expected.max(axis=1, keepdims=True),
            rtol=1e-9,
        )
        assert found.privacy == noisy.privacy and not found.invertible.any()
    flat = ldp.privatize(
        closed(labels, columns),
        columns.law(1.0, "joint", "auto"),
    )
    apart = ldp.privatize(
        closed(labels, columns),
        columns.law(1.0, "joint"),
    )
    uniform = [np.ones((40, size)) for size in columns.sizes]
    assert np.ptp(Reading(uniform).told(flat, 1).likelihood(), axis=1).max() > 0
    # counts need no others
    np.testing.assert_array_equal(
        Reading(belief).told(apart, 1).likelihood(), apart["b"].likelihood()
    )


EQUAL = ldp.LabelColumns({"a": [0, 1], "b": [0, 1], "c": [0, 1]})


def predicted_of(labels, columns, epsilon):
    """The mean probabilities of each column by a model without useful features, which learns the
    rates."""
    noisy = ldp.privatize(
        closed(labels, columns),
        columns.law(epsilon, "joint"),
    )
    features = np.random.default_rng(5).standard_normal((len(labels), 2))
    fitted = LabelDPClassifier(SoftmaxRegression(C=0.01), random_state=0, validation_fraction=0.0)
    return [
        each[:, -1].mean() for each in fitted.fit(features, noisy).predict_proba(features)
    ], noisy


@pytest.mark.parametrize("epsilon", [2.0, 4.0])
def test_columns_that_follow_from_one_another_are_learned_without_bias(epsilon):
    """Three equal columns with a rate of 0.2. Read as if independent, the sets say less than half
    of it. Fixed noise; 6 deviations."""
    rng = np.random.default_rng(2)
    once = (rng.random(20_000) < 0.2).astype(int)
    rates, noisy = predicted_of(np.stack([once] * 3, axis=1), EQUAL, epsilon)
    np.testing.assert_allclose(rates, once.mean(), atol=0.04 if epsilon == 2.0 else 0.02)
    belief = [np.tile([0.8, 0.2], (20_000, 1))] * 3
    reading = Reading(belief, np.empty(0, np.int64)).tied(noisy, None)
    shares = reading.ties * EQUAL.prior({name: [0.8, 0.2] for name in "abc"})(np.arange(1)).reshape(
        2, 2, 2
    )
    shares /= shares.sum()
    assert (
        shares[0, 0, 0] > 0.7
        and shares[1, 1, 1] > 0.1
        and shares.sum() - shares[0, 0, 0] - shares[1, 1, 1] < 0.12
    )
    loosely = Reading(belief, np.empty(0, np.int64)).told(noisy, 0)
    assert likeliest_frequencies(loosely.likelihood())[1] < 0.1  # without what ties the columns
    apart = loosely.likelihood() @ [0.8, 0.2]
    tied = reading.told(noisy, 0).likelihood()
    own = tied[np.arange(20_000), once] / (tied @ [0.8, 0.2])
    loose = loosely.likelihood()[np.arange(20_000), once] / apart
    counts = noisy["a"].likelihood()[np.arange(20_000), once] / (
        noisy["a"].likelihood() @ [0.8, 0.2]
    )
    assert (
        np.log(own).mean() > 1.1 * np.log(counts).mean() > 0
        and np.log(own).mean() > np.log(loose).mean()
    )


@pytest.mark.filterwarnings("ignore::labeldp.errors.LostClassWarning")
@pytest.mark.parametrize("epsilon", [2.0, 8.0])
def test_classifiers_that_give_no_probability_to_a_class_do_not_ruin_the_reading(epsilon):
    """Ridge chooses one class in each row, here never the third."""
    rng = np.random.default_rng(0)
    third = np.where(rng.random(N) < 0.12, 2, X[:, 0] > 0).astype(int)
    columns = ldp.LabelColumns({"a": [0, 1, 2], "b": [0, 1]})
    fitted = model(estimator=RidgeClassifier(), law=columns.law(epsilon, "joint"), epsilon=epsilon)
    labels = closed({"a": third, "b": (X[:, 1] > 0).astype(int)}, columns)
    predicted = fitted.fit(X, labels).predict(X)
    assert (predicted[:, 0] == third).mean() > 0.8


def test_what_is_told_with_ties_is_the_conditional_law_of_the_set():
    rng = np.random.default_rng(3)
    columns = ldp.LabelColumns({"a": [0, 1], "b": [0, 1, 2], "c": [0, 1]})
    labels = {
        name: rng.integers(len(values), size=40)
        for name, values in zip(columns.names, columns.lists, strict=True)
    }
    belief, ties = (
        [rng.dirichlet(np.ones(size), 40) for size in columns.sizes],
        rng.random((2, 3, 2)) + 0.1,
    )
    noisy = ldp.privatize(
        closed(labels, columns),
        columns.law(1.0, "joint"),
    )
    joint = np.einsum("na,nb,nc,abc->nabc", *belief, ties)
    whole = noisy.likelihood(dtype="float64").reshape(40, 2, 3, 2)
    counted = np.arange(10)
    for number in range(3):
        axes = tuple(axis + 1 for axis in range(3) if axis != number)
        wanted = (joint * whole).sum(axis=axes) / joint.sum(axis=axes)
        found = Reading(belief, counted, ties).told(noisy, number).likelihood(dtype="float64")
        np.testing.assert_allclose(
            found[10:], (wanted / wanted.max(axis=1, keepdims=True))[10:], rtol=1e-9
        )
        np.testing.assert_array_equal(
            found[:10], noisy.column(columns.names[number]).likelihood(dtype="float64")[:10]
        )


def test_without_draws_enough_the_columns_count_as_independent():
    columns = ldp.LabelColumns({"a": list(range(20)), "b": list(range(20))})
    labels = np.stack([np.arange(30) % 20] * 2, axis=1)
    noisy = ldp.privatize(
        closed(labels, columns),
        columns.law(0.5, "joint"),
    )
    belief = [np.ones((30, 20))] * 2
    ties = Reading(belief, np.empty(0, np.int64)).tied(noisy, None).ties
    np.testing.assert_allclose(ties, 1.0, atol=0.2)
    certain = [np.eye(20)[labels[:, 0]], np.ones((30, 20))]  # weights of zero are allowed
    assert np.isfinite(
        Reading(certain, np.empty(0, np.int64)).tied(noisy, None).told(noisy, 1).likelihood()
    ).all()


def test_a_fit_to_one_target_leaves_nothing_of_several():
    fitted = model().fit(X, closed())
    one = fitted.fit(X, closed(np.arange(N) % 2, [0, 1]))
    assert hasattr(one, "estimator_") and not hasattr(one, "estimators_")
    several = one.fit(X, closed())
    assert hasattr(several, "estimators_") and not hasattr(several, "estimator_")


def test_units_share_the_bill(ledger):
    labels = closed(ledger=ledger, unit=np.arange(N) // 3, max_rows_per_unit=2)
    fitted = model(epsilon=2.0).fit(X, labels)
    assert fitted.privacy_.epsilon == 2.0
    assert (~fitted.noisy_labels_.evidenced).sum() == N // 3


@pytest.mark.parametrize(("law", "stages"), [("auto", 1), ("joint", 1), ("joint", 2)])
def test_public_weights_of_rows_weigh_in_learning_alone(law, stages):
    """A row of weight 0 has no say, in whatever order; the draws of the first stage do not
    change."""
    used = "auto" if law == "auto" else COLUMNS.law(4.0, "joint", "auto")
    given = {"law": used, "stages": stages, "validation_fraction": 0.0}
    given["estimator"] = SoftmaxRegression(C=1.0)
    counted = X[:, 2] > 0
    weights = np.where(counted, 1.0, 0.0)
    plain, fitted = (model(**given).fit(X, closed(), each) for each in (None, weights))
    outputs = [
        {block.stage: block.outputs for block in each.noisy_labels_.blocks}
        for each in (plain, fitted)
    ]
    first = next(iter(outputs[0]))
    np.testing.assert_array_equal(outputs[0][first], outputs[1][first])
    again = model(**given).fit(X, fitted.noisy_labels_, weights)
    alone = model(**given).fit(X[counted], fitted.noisy_labels_[counted])
    np.testing.assert_allclose(again.predict_proba(X)[1], alone.predict_proba(X)[1], atol=2e-3)
    assert (
        np.abs(
            again.predict_proba(X)[0]
            - model(**given).fit(X, fitted.noisy_labels_).predict_proba(X)[0]
        ).max()
        > 0.01
    )
    if stages == 1:
        np.testing.assert_array_equal(again.predict_proba(X)[1], fitted.predict_proba(X)[1])
    # weights go with the rows of X
    order, ids = np.random.default_rng(1).permutation(N), np.arange(N)
    by_id = model(**given).fit(
        X[order], fitted.noisy_labels_.by_id(ids), weights[order], ids=ids[order]
    )
    np.testing.assert_allclose(by_id.predict_proba(X)[1], again.predict_proba(X)[1], atol=2e-3)


def test_weights_that_cannot_be_used_are_refused_before_the_charge(ledger):
    for weights, estimator, said in (
        (np.ones(N - 1), LogisticRegression(), "1500"),
        (np.full(N, -1.0), LogisticRegression(), ">= 0"),
        (np.zeros(N), LogisticRegression(), "not all zero"),
        (np.ones(N), KNeighborsClassifier(), "takes sample_weight"),
    ):
        with pytest.raises(InvalidInput, match=said):
            model(estimator=estimator).fit(X, closed(ledger=ledger), weights)
    assert not ledger.exists() or ledger.runs() == []


@pytest.mark.parametrize("stages", [1, 2])
def test_known_rates_hold_the_columns_that_they_are_given_for(stages, ledger):
    given = {
        "law": "auto" if stages == 1 else COLUMNS.law(3.0, "joint", "auto"),
        "stages": stages,
        "epsilon": 3.0,
    }
    fitted = model(**given, class_prior={"rating": {1: 0.2, 2: 0.7, 3: 0.1}}).fit(
        X, closed(ledger=ledger)
    )
    np.testing.assert_allclose(fitted.predict_proba(X)[1].mean(axis=0), [0.2, 0.7, 0.1], atol=0.03)
    np.testing.assert_allclose(fitted.predict_proba(X)[0].mean(axis=0), [0.5, 0.5], atol=0.1)
    free = model(**given).fit(X, fitted.noisy_labels_)
    assert abs(free.predict_proba(X)[1].mean(axis=0)[1] - 0.7) > 0.1
    np.testing.assert_array_equal(
        free.predict_proba(X)[0],
        model(**given, class_prior={}).fit(X, fitted.noisy_labels_).predict_proba(X)[0],
    )
    assert ledger.spent("d", "rating") == 3.0


@pytest.mark.parametrize(
    ("changes", "y", "said"),
    [
        ({"stages": 2, "correction": "debias"}, Y, "one invertible law"),
        ({"stages": []}, Y, "stages"),
        ({"prior": np.ones((N, 5))}, Y, "prior of shape"),
        ({"prior": {"cliked": np.ones((N, 2))}}, Y, "'clicked'"),
        (
            {"prior": {"clicked": np.ones((N, 2))}, "law": COLUMNS.law(4.0, "one")},
            Y,
            "does not read it",
        ),
        ({"prior": ldp.learn.ClusterPrior(epsilon=4.0)}, Y, "less than the total"),
        (
            {
                "prior": ldp.learn.ClusterPrior(epsilon=1.0),
                "law": COLUMNS.law(4.0, "joint", "auto"),
            },
            Y,
            "epsilon=3.0",
        ),
        ({"stages": 2, "estimator": "trees"}, Y, "classifier"),
        ({"prior": Prior(top_k=2)}, Y, "top_k"),
        ({"law": ldp.RandomizedResponse(5, 4.0)}, Y, "6 combinations"),
        ({"law": COLUMNS.law(1.0)}, Y, "epsilon=4.0"),
        ({"law": "nothing"}, Y, "law"),
        ({}, Y["clicked"], "2 columns"),
        ({}, Y[:-1], "inconsistent"),
        ({}, Y.drop(columns="rating"), "'rating'"),
        ({}, Y.rename(columns={"rating": "ratings"}), "Did you mean 'ratings'"),
        (
            {},
            Y.assign(rating=np.where(np.arange(N) == 3, 7, Y["rating"])),
            "Column 'rating'.*some label is not",
        ),
        ({}, Y.assign(rating=np.where(np.arange(N) == 3, np.nan, Y["rating"])), "Column 'rating'"),
        ({"estimator": "trees"}, Y, "classifier"),
        ({"class_prior": [0.5, 0.5]}, Y, "mapping of label columns"),
        ({"class_prior": {"cliked": [0.5, 0.5]}}, Y, "'clicked'"),
        ({"class_prior": {"clicked": [0.5, 0.6]}}, Y, "2 rates above 0"),
        ({"class_prior": {"rating": {1: 0.5, 2: 0.5}}}, Y, "each of the 3 classes"),
        ({"class_prior": {"clicked": [0.5, 0.5]}, "correction": "none"}, Y, "class_prior=None"),
        ({"correction": "likelihood", "estimator": KNeighborsClassifier()}, Y, "take likelihoods"),
    ],
)
def test_faults_are_found_before_the_charge(ledger, changes, y, said):
    with pytest.raises((InvalidInput, TypeError), match=said):
        model(**changes).fit(X, closed(y, ledger=ledger))
    with pytest.raises(InvalidInput, match="under their own names"):
        closed(ledger=ledger, column="clicked")
    assert not ledger.exists() or ledger.runs() == []


def test_a_column_that_no_row_was_asked_about_is_named():
    noisy = ldp.privatize(closed(), COLUMNS.law(4.0))
    others = ~noisy["clicked"].evidenced
    with pytest.raises(InvalidInput, match="got none about 'clicked'"):
        model().fit(X[others], noisy[others])


@pytest.mark.parametrize(
    "kind", [ldp.learn.ProportionClassifier, ldp.learn.NoiseCluster, PATEClassifier]
)
def test_learners_of_one_column_say_so(kind, ledger):
    with pytest.raises(InvalidInput, match=f"one label column with {kind.__name__}"):
        kind(epsilon=1.0).fit(X, closed(ledger=ledger))
    assert not ledger.exists() or ledger.runs() == []
    noisy = ldp.privatize(closed(), COLUMNS.law(1.0))
    with pytest.raises(InvalidInput, match="one label column"):
        ldp.LabelDPRegressor(epsilon=1.0).fit(X, noisy)


def test_a_clone_is_scored_on_noisy_labels_one_column_at_a_time():
    fitted = clone(model()).fit(X, closed())
    with pytest.raises(InvalidInput, match="score one column"):
        fitted.score(X, fitted.noisy_labels_)
    assert fitted.estimators_[0].score(X, Y["clicked"]) > 0.8


def test_a_score_of_other_rows_or_without_weight_is_refused_in_words():
    fitted = model().fit(X, closed())
    with pytest.raises(InvalidInput, match="as many as X has"):
        fitted.score(X, Y[:5])
    with pytest.raises(InvalidInput, match="not all zero"):
        fitted.score(X, Y, sample_weight=np.zeros(len(X)))
    assert fitted.score(X, Y, sample_weight=np.ones(len(X))) == fitted.score(X, Y)


SPREAD = ldp.LabelColumns({"clicked": ["no", "yes"], "paid": ldp.Grid(0, 60, 3)})
PAID = Y[["clicked"]].assign(paid=np.clip(30 + 28 * X[:, 2], -5, 65))
POINTS = np.array([0, 30, 60])[np.digitize(PAID["paid"], [15, 45])]


def test_a_true_number_is_scored_by_its_nearest_point():
    several = model(epsilon=8.0).fit(X, closed(PAID, SPREAD))
    predicted = several.predict(X)
    right = (predicted[:, 0] == PAID["clicked"]) & (predicted[:, 1] == POINTS)
    assert (
        several.score(X, PAID) == several.score(X, PAID.assign(paid=POINTS)) == right.mean() > 0.5
    )
    assert several.score(X, PAID.to_numpy(object)) == right.mean()
    with pytest.raises(InvalidInput, match="some label is not"):
        several.score(X, PAID.assign(paid=np.where(np.arange(N) == 3, np.nan, PAID["paid"])))
    one = model(epsilon=8.0).fit(X, closed(PAID["paid"], SPREAD.lists[1]))
    assert one.score(X, PAID["paid"]) == (one.predict(X) == POINTS).mean() > 0.5
    # a fit on classes forgets the grid
    codes = one.fit(X, closed((X[:, 0] > 0).astype(int), [0, 1]))
    assert codes.score(X, np.full(N, 0.4)) == 0


def test_clusters_score_numbers_by_their_nearest_points():
    one = ldp.learn.ProportionClassifier(LogisticRegression(), epsilon=8.0, random_state=0)
    one.fit(X, closed(PAID["paid"], SPREAD.lists[1]))
    assert one.score(X, PAID["paid"]) == (one.predict(X) == POINTS).mean() > 0.3


def test_a_repeat_in_another_order_is_matched_without_a_warning(ledger):
    ids, order = np.arange(N) + 1000, np.random.default_rng(1).permutation(N)
    first = model().fit(X, closed(ledger=ledger, ids=ids))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        turned = closed(Y.iloc[order], ledger=ledger, ids=ids[order])
        again = model().fit(X[order], turned, ids=ids[order])
        model().fit(X[order], again.noisy_labels_)  # in the order of X
    assert [each.category for each in said] == [RepeatWarning]
    np.testing.assert_array_equal(again.noisy_labels_.ids, ids[order])
    np.testing.assert_array_equal(
        again.noisy_labels_.likelihood(), first.noisy_labels_.likelihood()[order]
    )
