# SPDX-License-Identifier: Apache-2.0
"""One net with a head for each of several label columns: one charge, exact likelihoods that add up,
stages by products of the heads."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.deep.datasets import closed
from torch.nn import functional

import labeldp as ldp
from labeldp.deep import (
    Combined,
    Consistency,
    Heads,
    Recipe,
    TorchClassifier,
    TorchRegressor,
    column_evidence,
    cross_entropy,
    debiased_loss,
    evidence_of,
    likelihood_loss,
    mixup_loss,
    posterior_loss,
)
from labeldp.deep.models import Ensemble, Mlp
from labeldp.errors import InvalidInput, RepeatWarning, UntrainedWarning
from labeldp.learn import Prior

BUDGET = 4.0  # of each column

N = 1500
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, 4)).astype(np.float32)
COLUMNS = ldp.LabelColumns({"clicked": ["no", "yes"], "rating": [1, 2, 3]})
Y = {"clicked": np.where(X[:, 0] > 0, "yes", "no"), "rating": np.digitize(X[:, 1], [-0.7, 0.7]) + 1}
RECIPE = Recipe(epochs=8, batch_size=64, precision="float32")


def net(n_outputs):
    return Mlp(4, n_outputs, (16,))


def model(**changes):
    given = {"module": net, "epsilon": 4.0, "random_state": 0, "recipe": RECIPE}
    return TorchClassifier(**given | changes)


def labels_of(y=Y, **facts):
    return closed(y, **{"classes": COLUMNS, "column": None} | facts)


def noisy(split="joint", law=None, epsilon=3.0, **more):
    drawn = COLUMNS.law(epsilon, split, law)
    return ldp.privatize(labels_of(noise=ldp.SeededNoise(1)), drawn, **more)


# Losses
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["equal", "one", "joint"])
def test_the_loss_is_the_sum_of_the_exact_likelihoods_of_the_columns(split):
    labels = noisy(split)
    evidence = column_evidence(labels)
    assert isinstance(evidence, Heads)
    logits = torch.randn(N, 5, dtype=torch.float64, requires_grad=True)
    found = likelihood_loss(logits, evidence, "none")
    wanted = 0
    for head, name in zip(logits.split((2, 3), dim=1), COLUMNS.names, strict=True):
        likelihood = torch.from_numpy(labels[name].log_likelihood().astype(np.float64))
        wanted = wanted - torch.logsumexp(functional.log_softmax(head, dim=1) + likelihood, dim=1)
    torch.testing.assert_close(found, wanted)
    gradient, exact = (
        torch.autograd.grad(each.sum(), logits, retain_graph=True)[0] for each in (found, wanted)
    )
    torch.testing.assert_close(gradient, exact)
    if split == "one":  # a row says nothing to the head of the column that it was not asked about
        asked = torch.from_numpy(labels["clicked"].evidenced)
        assert (
            not gradient[~asked, :2].any()
            and gradient[asked, :2].any()
            and not gradient[asked, 2:].any()
        )


def test_of_draws_apart_the_sum_over_columns_is_the_likelihood_of_the_combinations():
    """Where no draw ties the columns, the two are one number up to a constant a row; of a joint
    draw they differ."""
    logits = torch.randn(N, 5, dtype=torch.float64)
    for split, equal in (("equal", True), ("one", True), ("joint", False)):
        labels = noisy(split)
        apart = likelihood_loss(logits, column_evidence(labels), "none")
        together = likelihood_loss(logits, Combined(evidence_of(labels), COLUMNS.sizes), "none")
        change = (apart - together) - (
            likelihood_loss(logits * 0, column_evidence(labels), "none")
            - likelihood_loss(logits * 0, Combined(evidence_of(labels), COLUMNS.sizes), "none")
        )
        assert (change.abs().max() < 1e-5) == equal


def test_under_a_prior_the_loss_is_the_likelihood_of_the_combinations_by_products_of_the_heads():
    labels = noisy(
        "joint", "rr-with-prior", prior=COLUMNS.prior({"rating": RNG.dirichlet(np.ones(3), N)})
    )
    evidence = column_evidence(labels)
    assert isinstance(evidence, Combined)
    logits = torch.randn(N, 5, dtype=torch.float64, requires_grad=True)
    found = likelihood_loss(logits, evidence, "none")
    heads = [torch.softmax(head, dim=1) for head in logits.split((2, 3), dim=1)]
    likelihood = torch.from_numpy(labels.likelihood().astype(np.float64))
    total = sum(
        heads[0][:, a] * heads[1][:, b] * likelihood[:, 3 * a + b]
        for a, b in itertools.product(range(2), range(3))
    )
    torch.testing.assert_close(found, -total.log())
    gradient, exact = (
        torch.autograd.grad(each.sum(), logits, retain_graph=True)[0]
        for each in (found, -total.log())
    )
    torch.testing.assert_close(gradient, exact)


def test_forms_of_several_columns_are_indexed_mixed_and_moved_like_others():
    logits = torch.randn(40, 5)
    for evidence in (column_evidence(noisy()), Combined(evidence_of(noisy()), COLUMNS.sizes)):
        rows, partner = torch.arange(40), torch.arange(40).flip(0)
        part = evidence[rows].to("cpu")
        assert len(part) == 40 and part.fits(5) and not part.fits(6) and part.tensors
        mixed = mixup_loss(likelihood_loss, logits, part, part[partner], 0.25)
        wanted = 0.25 * likelihood_loss(logits, part) + 0.75 * likelihood_loss(
            logits, part[partner]
        )
        torch.testing.assert_close(mixed, wanted)
        with pytest.raises(InvalidInput, match="6 outputs"):
            likelihood_loss(torch.randn(40, 6), part)
        with pytest.raises(InvalidInput, match="with several label columns, got weights"):
            posterior_loss(logits, part, prior=torch.ones(5))
    with pytest.raises(InvalidInput, match="those of one"):
        column_evidence(noisy()["rating"])


# The classifier
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "law"), [(None, None), ("equal", None), ("one", None), ("joint", "auto")]
)
def test_each_target_is_predicted_by_its_head(split, law):
    used = "auto" if split is None else COLUMNS.law(4.0, split, law)
    fitted = model(law=used, validation_fraction=0.2).fit(X, labels_of())
    predicted, proba = fitted.predict(X), fitted.predict_proba(X)
    assert predicted.shape == (N, 2) and [each.shape for each in proba] == [(N, 2), (N, 3)]
    assert [list(each) for each in fitted.classes_] == [["no", "yes"], [1, 2, 3]]
    for number, name in enumerate(COLUMNS.names):
        np.testing.assert_allclose(proba[number].sum(axis=1), 1.0, atol=1e-6)
        np.testing.assert_array_equal(
            predicted[:, number], fitted.classes_[number][proba[number].argmax(axis=1)]
        )
        right = (predicted[:, number] == Y[name]).mean()
        assert right > 0.75  # 0.5 is the share of the commonest class
        estimate = fitted.estimated_accuracy_[number]
        assert estimate is None or estimate.low - 0.1 < right < estimate.high + 0.1
    assert any(each is not None for each in fitted.estimated_accuracy_)
    assert (
        fitted.score(X, Y)
        == (predicted == np.column_stack([column.astype(object) for column in Y.values()]))
        .all(axis=1)
        .mean()
    )
    with pytest.raises(InvalidInput, match="one column"):
        fitted.score(X, fitted.noisy_labels_)
    assert sum(len(weights) for weights in (list(fitted.module_.parameters())[-1],)) == 5


def test_two_stages_draw_the_combinations_by_the_product_of_the_heads():
    fitted = model(epsilon=1.0, stages=2, law=COLUMNS.law(1.0, "joint", "auto")).fit(X, labels_of())
    assert [(stage.name, stage.law.name) for stage in fitted.stages_] == [
        ("stage-1", "auto"),
        ("stage-2", "auto"),
    ]
    assert fitted.score(X, Y) > 0.35  # a quarter is the share of the commonest combination
    second = next(block for block in fitted.noisy_labels_.blocks if block.stage == "stage-2")
    assert not all(
        np.array_equal(values, np.broadcast_to(values[:1], values.shape))
        for values in second.side.values()
    )
    apart = model(stages=2, law=COLUMNS.law(4.0, "equal", "auto")).fit(X, labels_of())
    assert len(apart.stages_) == 2 and apart.score(X, Y) > 0.5
    small = model(epsilon=0.5, stages=2).fit(X, labels_of())
    # the rule of one stage
    assert [stage.law.name for stage in small.stages_] == ["one-column", "one-column"]
    flags = ldp.LabelColumns({"a": [0, 1], "b": [0, 1]})
    assert (
        len(
            model(epsilon=0.5, stages=2)
            .fit(X, labels_of(np.eye(2, dtype=int)[X[:, 0].astype(int) % 2], classes=flags))
            .stages_
        )
        == 1
    )
    # it reads no prior
    assert len(model(stages=2, law=COLUMNS.law(4.0, "one")).fit(X, labels_of()).stages_) == 1


def test_a_public_prior_is_taken_by_column():
    weights = np.where((X[:, 0] > 0)[:, None], [0.2, 0.8], [0.8, 0.2])
    by_name = model(prior={"clicked": weights}).fit(X, labels_of())
    whole = model(prior=COLUMNS.prior({"clicked": weights})(np.arange(N))).fit(X, labels_of())
    np.testing.assert_array_equal(by_name.predict(X), whole.predict(X))
    assert by_name.score(X, Y) > 0.5


def test_the_ledger_has_one_charge_and_noisy_labels_cost_nothing(ledger):
    first = model(epsilon=2.0).fit(X, labels_of(ledger=ledger))
    assert (
        ledger.spent("d", "clicked"),
        ledger.spent("d", "rating"),
        ledger.spent("d", COLUMNS.names),
    ) == (2.0, 2.0, 2.0)
    assert len(ledger.runs()) == 1 and ledger.verify() == []
    assert first.privacy_ == ldp.PrivacySpent(2.0, 0.0, "row", recorded=True, secure=True)
    told = np.column_stack([Y[name].astype(object) for name in COLUMNS.names])
    with pytest.warns(RepeatWarning):
        again = model(epsilon=2.0).fit(X, labels_of(told, ledger=ledger))
    np.testing.assert_array_equal(again.predict(X), first.predict(X))
    other = model(validation_fraction=0.1).fit(X, first.noisy_labels_)
    assert other.privacy_.evidence == "proven" and other.predict(X).shape == (N, 2)
    assert ledger.spent("d", "rating") == 2.0
    # a net of one column, of the same labels
    alone = model().fit(X, first.noisy_labels_["rating"])
    assert alone.predict(X).shape == (N,)


def test_units_share_the_bill(ledger):
    labels = labels_of(ledger=ledger, max_rows_per_unit=2, unit=np.arange(N) // 3)
    fitted = model(epsilon=2.0).fit(X, labels)
    assert fitted.privacy_.epsilon == 2.0 and (~fitted.noisy_labels_.evidenced).sum() == N // 3


class Stopped(Exception):
    pass


@pytest.mark.parametrize("stages", [1, 2])
def test_a_fit_that_was_broken_off_goes_on_from_its_folder(stages, tmp_path):
    def stop(epoch):
        seen.append(epoch)
        if len(seen) > 9:
            raise Stopped

    seen = []
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    given = {
        "stages": stages,
        "folder": tmp_path / "fit",
        "recipe": replace(RECIPE, epochs=12 // stages),
    }
    with pytest.raises(Stopped):
        model(**given, progress=stop).fit(X, labels_of(ledger=ledger))
    fitted = model(**given).fit(X, labels_of(ledger=ledger))
    assert len(ledger.runs()) == 1 and ledger.spent("d", "rating") == 4.0
    whole = model(**given | {"folder": tmp_path / "other"}).fit(X, fitted.noisy_labels_)
    assert [proba.shape for proba in whole.predict_proba(X)] == [(N, 2), (N, 3)]
    if stages == 1:
        np.testing.assert_allclose(fitted.predict_proba(X)[1], whole.predict_proba(X)[1], atol=1e-6)
    with pytest.raises(InvalidInput, match="differs in"):
        model(**given | {"epsilon": 3.0}).fit(X, labels_of(ledger=ledger))


@pytest.mark.parametrize(
    ("changes", "facts", "said"),
    [
        ({"module": lambda k: net(6)}, {}, r"outputs of shape \(10, 5\)"),
        ({"recipe": replace(RECIPE, loss=cross_entropy)}, {}, "loss on log-likelihoods"),
        ({"recipe": replace(RECIPE, loss=debiased_loss)}, {}, "or likelihood_loss"),
        ({"recipe": replace(RECIPE, consistency=Consistency())}, {}, "without consistency"),
        ({"prior": Prior(top_k=2)}, {}, "top_k"),
        ({"law": ldp.RandomizedResponse(5, 4.0)}, {}, "6 combinations"),
        ({"law": COLUMNS.law(1.0)}, {}, "epsilon=4.0"),
        ({"law": "nothing"}, {}, "law"),
        ({"epsilon": np.nan}, {}, "epsilon"),
        ({"prior": np.ones((N, 5))}, {}, "prior of shape"),
        ({"prior": {"cliked": np.ones((N, 2))}}, {}, "'clicked'"),
        ({"prior": {"clicked": np.ones((N, 3))}}, {}, "column 'clicked'"),
        (
            {"prior": {"clicked": np.ones((N, 2))}, "law": COLUMNS.law(4.0, "one")},
            {},
            "does not read it",
        ),
        ({"prior": ldp.learn.ClusterPrior()}, {}, "prior of weights"),
        ({}, {"y": Y["clicked"]}, "2 columns"),
        ({}, {"y": {name: column[:-1] for name, column in Y.items()}}, "inconsistent"),
        ({}, {"y": {"clicked": Y["clicked"]}}, "'rating'"),
        (
            {},
            {"y": Y | {"rating": np.where(np.arange(N) == 3, 7, Y["rating"])}},
            "Column 'rating'.*some label is not",
        ),
        (
            {},
            {"y": Y | {"rating": np.where(np.arange(N) == 3, np.nan, Y["rating"])}},
            "Column 'rating'",
        ),
        ({}, {"column": "clicked"}, "under their own names"),
        ({"class_prior": [0.5, 0.5]}, {}, "mapping of label columns"),
        ({"class_prior": {"rating": [0.5, 0.5]}}, {}, "3 rates above 0"),
        (
            {},
            {
                "classes": None,
                "y": np.column_stack([column.astype(object) for column in Y.values()]),
            },
            "with their declared classes",
        ),
    ],
)
def test_faults_are_found_before_the_charge(ledger, changes, facts, said):
    with pytest.raises(InvalidInput, match=said):
        model(**changes).fit(X, labels_of(**{"ledger": ledger} | facts))
    assert not ledger.exists() or ledger.runs() == []


@pytest.mark.parametrize("ensemble", [False, True])
def test_known_rates_hold_the_heads_that_they_are_given_for(ensemble, tmp_path):
    rates = [0.2, 0.7, 0.1]
    module = (lambda k: Ensemble([net(k), net(k)], sizes=(2, 3))) if ensemble else net
    given = {
        "module": module,
        "stages": 2,
        "law": COLUMNS.law(4.0, "joint", "auto"),
    }
    free = model(**given).fit(X, labels_of())
    held = model(**given, class_prior={"rating": rates}, folder=tmp_path / "fit").fit(
        X, labels_of()
    )
    heads = held.module_.nets if ensemble else [held.module_]
    shifts = np.stack([each.shift.numpy() for each in heads])
    assert not shifts[:, :2].any() and np.abs(shifts[:, 2:]).min() > 0
    np.testing.assert_allclose(held.predict_proba(X)[1].mean(axis=0), rates, atol=1e-3)
    assert abs(free.predict_proba(X)[1].mean(axis=0)[1] - 0.7) > 0.1
    with pytest.raises(InvalidInput, match="differs in"):
        model(**given, class_prior={"rating": rates[::-1]}, folder=tmp_path / "fit").fit(
            X, labels_of()
        )


def test_a_head_that_learned_nothing_is_named():
    drawn = noisy("one")
    others = ~drawn["clicked"].evidenced
    with pytest.warns(UntrainedWarning, match="asked about 'clicked'"):
        model().fit(X[others], drawn[others])
    with pytest.raises(InvalidInput, match="one label column with TorchRegressor"):
        TorchRegressor(net).fit(X, noisy())


def test_a_true_number_is_scored_by_its_nearest_point():
    columns = ldp.LabelColumns({"clicked": ["no", "yes"], "paid": ldp.Grid(0, 60, 3)})
    truth = {"clicked": Y["clicked"], "paid": np.clip(30 + 28 * X[:, 2], -5, 65)}
    points = np.array([0, 30, 60])[np.digitize(truth["paid"], [15, 45])]
    fitted = model(epsilon=8.0).fit(X, labels_of(truth, classes=columns))
    predicted = fitted.predict(X)
    right = (predicted[:, 0] == truth["clicked"]) & (predicted[:, 1] == points)
    assert fitted.score(X, truth) == right.mean() > 0.3


def test_an_ensemble_averages_each_column_by_itself():
    """With sizes as many heads; without, or with others, nothing is charged."""
    several = lambda sizes: lambda k: Ensemble([net(k) for _ in range(2)], sizes)  # noqa: E731
    found = model(module=several((2, 3))).fit(X, labels_of())
    for part in found.predict_proba(X):
        np.testing.assert_allclose(part.sum(axis=1), 1, rtol=1e-6)
    assert found.score(X, Y) > 0.5
    with pytest.raises(InvalidInput, match=r"sizes=\(2, 3\)"):
        model(module=several(())).fit(X, labels_of())
