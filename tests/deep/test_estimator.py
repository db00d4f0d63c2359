# SPDX-License-Identifier: Apache-2.0
"""TorchClassifier: what it takes, what it learns and spends, what it refuses before anything is
drawn, and where it works."""

import functools
import math

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.deep.datasets import closed, perceptron, separated
from tests.naming import named
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import labeldp as ldp
from labeldp.deep import (
    Optimizer,
    Recipe,
    TorchClassifier,
    cross_entropy,
    debiased_loss,
    generalised_cross_entropy,
    posterior_loss,
    with_evidence,
)
from labeldp.deep.models import Ensemble, Mlp, SmallConvNet
from labeldp.learn import ClusterPrior, HistogramPrior, Prior

K, N = 4, 1200
X, Y = separated(N, K)
QUICK = Recipe(epochs=4, batch_size=64, rate=0.05, precision="float32", optimizer="sgd")


def classifier(module=perceptron, **settings):
    return TorchClassifier(
        module, **{"recipe": QUICK, "epsilon": 2.0, "random_state": 0} | settings
    )


def noisy_of(y, law=None, **options):
    kept = closed(y, K, noise=ldp.SeededNoise(1), **options)
    return ldp.privatize(kept, law or ldp.SubsetSelection(K, 2.0))


class Items:
    """A map-style Dataset of pairs, of which only the first part may be looked at."""

    def __init__(self, X):
        self.X = X

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        return torch.from_numpy(self.X[i]), "raw label"


# What it learns and spends
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"law": "rr"},
        {"stages": 2},
        {"stages": (2, 1, 1), "validation_fraction": 0.1},
        {
            "module": perceptron(),
            "stages": 2,
            "law": "rr-with-prior",
            "recipe": Recipe(4, 64, 0.05, loss=cross_entropy, precision="float32", optimizer="sgd"),
        },
        {
            "law": "rr",
            "recipe": Recipe(4, 64, 0.02, loss=debiased_loss, precision="float32", optimizer="sgd"),
        },
        {
            "recipe": Recipe(
                4,
                64,
                0.05,
                loss=functools.partial(generalised_cross_entropy, q=0.5),
                alpha=0.5,
                precision="float32",
                optimizer="sgd",
            )
        },
        {
            "stages": 2,
            "recipe": Recipe(
                4, 64, 0.05, loss=posterior_loss, average=0.9, precision="float32", optimizer="sgd"
            ),
            "prior": Prior(top_k=2),
        },
    ],
    ids=named,
)
def test_every_way_of_learning_finds_the_classes(settings):
    model = classifier(**settings).fit(X, closed(Y, K))
    assert model.score(X, Y) > 0.85
    assert model.predict_proba(X).shape == (N, K)
    assert np.allclose(model.predict_proba(X[:9]).sum(axis=1), 1)
    assert len(model.history_) == len(model.stages_) and not model.module_.training
    assert all(weight.requires_grad for weight in model.module_.parameters())
    assert math.isinf(model.privacy_.epsilon) and not model.privacy_.secure  # the noise has a seed


def test_inputs_of_every_kind_give_the_same_model():
    tensor = torch.from_numpy(X)
    kinds = (
        X,
        X.astype(np.float64),
        tensor,
        X.tolist(),
        TensorDataset(tensor, torch.zeros(N)),
        Items(X),
        DataLoader(Items(X), 7, shuffle=True),
    )
    expected = classifier(stages=1).fit(X, closed(Y, K)).predict_proba(X)
    for kind in kinds:
        model = classifier(stages=1).fit(
            kind, closed(torch.from_numpy(Y) if kind is tensor else Y, K)
        )
        assert np.array_equal(model.predict_proba(kind), expected)


def test_images_as_bytes_and_as_numbers():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=300)
    images = (200 * y[:, None, None, None] + rng.integers(0, 50, (300, 1, 8, 8))).astype(np.uint8)
    recipe = Recipe(epochs=3, batch_size=32, precision="float32")
    model = classifier(SmallConvNet, recipe=recipe, epsilon=4.0).fit(images, closed(y, 2))
    assert model.score(images, y) > 0.9
    assert np.allclose(
        model.predict_proba(images), model.predict_proba(images / np.float32(255)), atol=1e-5
    )


def test_the_global_generator_and_the_given_net_stay_as_they_are():
    net = perceptron()
    before, weights = torch.get_rng_state(), [w.clone() for w in net.state_dict().values()]
    classifier(net).fit(X, closed(Y, K))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(weights, net.state_dict().values(), strict=True))


def test_noisy_labels_cost_nothing_and_score_without_truth():
    noisy = noisy_of(Y)
    model = classifier(validation_fraction=0.2).fit(X[:1000], noisy[:1000])
    assert model.privacy_ == noisy.privacy and model.stages_ == () and len(model.history_) == 1
    assert model.estimated_accuracy_.low <= model.score(X, Y) <= model.estimated_accuracy_.high
    assert model.history_[0][-1].held_out < 0
    assert (
        model.score(X[1000:], noisy[1000:])
        == ldp.metrics.accuracy(noisy[1000:], model.predict(X[1000:])).value
    )


def test_one_charge_covers_all_stages_and_a_repeat_is_free(ledger):
    model = classifier(
        stages=3,
        recipe=Recipe(1, 256, 0.05, optimizer="sgd"),
    )
    first, second = (
        each.fit(X, closed(Y, K, ledger=ledger)).noisy_labels_
        for each in (model, classifier(**model.get_params()))
    )
    assert np.array_equal(first.likelihood(), second.likelihood())
    assert ledger.spent("d", "label") == model.privacy_.epsilon == 2.0
    assert [run.state for run in ledger.runs()] == ["settled"]


def test_mean_probabilities_are_the_known_rates(tmp_path):
    rates = [0.4, 0.3, 0.2, 0.1]
    recipe = Recipe(epochs=4, batch_size=64, precision="float32", average=0.9)
    staged = {
        "stages": 2,
        "validation_fraction": 0.1,
        "folder": tmp_path / "fit",
        "recipe": recipe,
    }
    model = classifier(class_prior=rates, **staged).fit(X, closed(Y, K))
    assert model.predict_proba(X).mean(axis=0) == pytest.approx(rates, abs=1e-4)
    assert model.score(X, Y) > 0.6 and model.estimated_accuracy_ is not None
    again = classifier(class_prior=rates, **staged).fit(X, closed(Y, K))  # from the folder
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    with pytest.raises(ldp.InvalidInput, match=r"module.*rates=\(0\.4"):
        classifier(class_prior=rates[::-1], **staged).fit(X, closed(Y, K))
    several = classifier(
        module=lambda k: Ensemble([Mlp(K, k, (8,)) for _ in range(2)]), class_prior=rates
    ).fit(X, closed(Y, K))
    for net in (several.module_, *several.module_.nets):  # each by itself, and so their mean
        np.testing.assert_allclose(
            torch.softmax(ldp.deep.predict(net, torch.from_numpy(X)), 1).mean(dim=0).numpy(),
            rates,
            atol=0.01,
        )
    inside = ldp.LabelDPClassifier(
        classifier(), class_prior=dict(zip(range(K), rates, strict=True)), random_state=0
    ).fit(X, noisy_of(Y))
    assert inside.predict_proba(X).mean(axis=0) == pytest.approx(rates, abs=1e-4)
    with pytest.raises(ldp.InvalidInput, match="mapping of label columns"):
        classifier(class_prior=rates).fit(
            X, closed({"a": Y, "b": Y % 2}, classes={"a": range(K), "b": [0, 1]})
        )


def test_rates_are_asked_for_on_one_bill_and_again_from_the_folder(tmp_path, ledger):
    """At epsilon 400 a count is exact, but for a noise whose other values have probability
    e^-200."""
    asks = {
        "epsilon": 402.0,
        "class_prior": HistogramPrior(400.0),
        "folder": tmp_path / "fit",
    }
    labels = closed(Y, K, ledger=ledger, ids=np.arange(N))
    model = classifier(**asks).fit(X, labels)
    rates = np.bincount(Y, minlength=K) / N
    assert model.predict_proba(X).mean(axis=0) == pytest.approx(rates, abs=1e-4)
    assert [receipt.epsilon for receipt in model.receipts_] == [400.0, 2.0] and ledger.spent(
        "d", "label"
    ) == 402.0
    again = classifier(**asks).fit(X, labels)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert ledger.spent("d", "label") == 402.0
    staged = classifier(
        epsilon=402.0,
        class_prior=HistogramPrior(400.0),
        stages=2,
        law="rr",
        validation_fraction=0.1,
    ).fit(X, closed(Y, K))
    assert staged.estimated_accuracy_ is not None
    for refused, labels in (
        (classifier(class_prior=HistogramPrior()), closed(Y, K)),
        (classifier(class_prior=HistogramPrior(0.1)), noisy_of(Y)),
    ):
        with pytest.raises(ldp.InvalidInput, match="class_prior"):
            refused.fit(X, labels)
    with pytest.raises(ldp.InvalidInput, match="class_prior"):
        classifier(class_prior=HistogramPrior(0.1)).fit_likelihood(X, noisy_of(Y).log_likelihood())


def test_other_columns_of_ids_or_units_hide_no_rows(tmp_path):
    numbers = np.arange(200)
    frame = pa.table(
        {"visit": numbers, "barcode": 1000 + numbers, "person": numbers, "ward": 900 + numbers // 9}
    )

    def fit(name, **rows):
        ledger = ldp.Ledger(tmp_path / f"{name}.db", budget=2.0)
        cap = 9 if "unit" in rows else 1
        labels = closed(Y[:200], K, ledger=ledger, max_rows_per_unit=cap, **rows)
        classifier(stages=1, recipe=Recipe(epochs=1)).fit(X[:200], labels)
        return ledger.runs()[-1].receipt.unit

    assert fit("rows", ids=frame["visit"]) == "row"
    for ids in (frame["barcode"], {"barcode": frame["barcode"].to_numpy()}):
        with pytest.raises(ldp.BudgetExceeded):
            fit("rows", ids=ids)
    assert fit("d", ids=frame["visit"], unit=frame["person"]) == "person"
    with pytest.raises(ldp.LedgerError, match="Expected unit 'person'"):
        fit("d", ids=frame["visit"], unit=frame["ward"])
    with pytest.raises(ldp.BudgetExceeded):
        fit("d", ids=frame["visit"], unit={"person": frame["ward"].to_numpy()})


# With scikit-learn, and without
# --------------------------------------------------------------------------------------------------


def test_scikit_learn_clones_searches_and_knows_it():
    model = classifier(perceptron())
    copy = clone(model)
    assert (
        copy is not model
        and copy.get_params().keys() == model.get_params().keys()
        and is_classifier(model)
    )
    assert copy.recipe == QUICK and copy.module is not model.module
    with pytest.raises(ldp.InvalidInput, match="epsilon"):
        model.set_params(epsilom=1)
    grid = {"recipe": [QUICK, Recipe(epochs=1, rate=1e-9, precision="float32", optimizer="sgd")]}
    search = GridSearchCV(
        classifier(),
        grid,
        scoring=ldp.metrics.likelihood_scorer,
        cv=KFold(2),
        error_score="raise",
    )
    assert search.fit(X, noisy_of(Y)).best_params_ == {"recipe": QUICK}


def test_inside_label_dp_classifier_alone_and_in_a_pipeline():
    for wrapped in (classifier(), make_pipeline(StandardScaler(), classifier())):
        model = ldp.LabelDPClassifier(wrapped, epsilon=2.0, stages=2, random_state=0).fit(
            X, closed(Y, K)
        )
        assert model.score(X, Y) > 0.85
        assert [stage.name for stage in model.stages_] == ["stage-1", "stage-2"]


@pytest.mark.parametrize("wrapped", [classifier(), None], ids=["net", "default"])
def test_label_dp_classifier_takes_a_tensor(wrapped):
    model = ldp.LabelDPClassifier(wrapped, epsilon=4.0, random_state=0)
    expected, tensor = model.fit(X, closed(Y, K)).predict(X), torch.from_numpy(X)
    assert (model.fit(tensor, closed(Y, K)).predict(tensor) == expected).all()


@pytest.mark.parametrize(
    "settings",
    [{"correction": "em"}, {"correction": "none"}],
)
def test_what_would_add_noise_to_noise_is_refused(settings):
    with pytest.raises(ldp.InvalidInput, match="got WrongType: Expected PrivateLabels"):
        ldp.LabelDPClassifier(classifier(), **settings).fit(X, closed(Y, K))


# What is refused before anything is drawn
# -------------------------------------------------------------------------------------------------


class Infinite(IterableDataset):
    def __iter__(self):
        yield torch.zeros(K)


class Swapped(Items):
    """Changes its order once it was read whole."""

    def __init__(self, X, after):
        super().__init__(X)
        self.reads, self.after = 0, after

    def __getitem__(self, i):
        self.reads += 1
        return super().__getitem__(i if self.reads <= self.after else len(self.X) - 1 - i)


def nan_net():
    net = nn.Linear(K, K)
    nn.init.constant_(net.weight, math.nan)
    return net


class Ragged(Items):
    def __getitem__(self, i):
        return torch.zeros(2 + i % 2)


REFUSED = {
    "net with other outputs": ({"module": nn.Linear(K, K + 1)}, {}, "4 outputs"),
    "net of other inputs": ({"module": nn.Linear(K + 1, K)}, {}, r"inputs of shape \(4,\)"),
    "net with NaN": ({"module": nan_net()}, {}, "finite outputs"),
    "no net": ({"module": "resnet"}, {}, "nn.Module"),
    "net without weights": ({"module": nn.Identity()}, {}, "nn.Module"),
    "epsilon": ({"epsilon": math.nan}, {}, "epsilon"),
    "law": ({"law": ldp.RandomizedResponse(K, 1.0)}, {}, "agree"),
    "prior": ({"prior": np.ones((3, K))}, {}, "prior of shape"),
    "prior that is none": ({"prior": np.full((N, K), np.nan)}, {}, "finite weights"),
    "prior that is not read": ({"law": "rr", "prior": np.ones((N, K))}, {}, "does not read it"),
    "stages": ({"stages": 0}, {}, "stages"),
    "recipes": ({"recipe": [QUICK, QUICK]}, {}, "each of 1 stages"),
    "recipe": ({"recipe": "quick"}, {}, "Expected a Recipe"),
    "debiasing": (
        {"stages": 2, "recipe": Recipe(loss=functools.partial(debiased_loss, check=True))},
        {},
        "invertible",
    ),
    "patience without rows": ({"recipe": Recipe(patience=2)}, {}, "validation_fraction"),
    "patience with few rows": (
        {"recipe": Recipe(patience=2), "validation_fraction": 0.01},
        {},
        "validation_fraction",
    ),
    "mean filter": ({"prior": Prior(top_k="mean"), "stages": 2}, {}, "rr-with-prior"),
    "random_state": ({"random_state": "0"}, {}, "random_state"),
    "a class that is not declared": ({}, {"classes": range(K - 1)}, "codes 0 to"),
    "labels of another type than the classes": (
        {},
        {"y": Y.astype(str)},
        "codes 0 to 3, but some label is not",
    ),
    "fractions as labels": ({}, {"classes": None, "y": np.linspace(0, 1, N)}, "classes"),
    "no labels": ({}, {"y": None}, "Expected y: PrivateLabels"),
    "too few labels": ({}, {"y": np.zeros(N - 1, int)}, "numbers of samples"),
    "inputs with NaN": ({}, {"X": np.full((N, K), np.nan)}, "finite inputs"),
    "text": ({}, {"X": np.full((N, K), "a")}, "numbers"),
    "a stream": ({}, {"X": Infinite()}, "stream"),
    "items of several shapes": ({}, {"X": Ragged(np.zeros((N, 2)))}, "one shape"),
    "no items": ({}, {"X": Items(np.zeros((0, 2)))}, "at least one row"),
    "items of text": ({}, {"X": ["a"] * N}, "numbers"),
    "a Dataset whose order changes": ({}, {"X": "swapped"}, "order or content"),
    "ids that repeat": ({}, {"ids": np.zeros(N, int)}, "different ids"),
    "rates that are none": ({"class_prior": [0.4, 0.4, 0.1, 0.2]}, {}, "sum is 1"),
    "rates of other classes": ({"class_prior": {"a": 0.5, "b": 0.5}}, {}, "other names"),
    "rates beside labels taken for true": (
        {"class_prior": [0.25] * K, "recipe": Recipe(loss=cross_entropy)},
        {},
        "hard labels",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_not_charged(tmp_path, ledger, name):
    settings, given, message = REFUSED[name]
    facts = {"X": X, "y": Y, "k": K, "ledger": ledger} | given
    found = facts.pop("X")
    with pytest.raises(ldp.InvalidInput, match=message):
        classifier(folder=tmp_path / "fit", **settings).fit(
            Swapped(X, N) if isinstance(found, str) else found,
            None if facts["y"] is None else closed(**facts),
        )
    assert ledger.spent("d", "label") == 0


def test_likelihoods_are_checked():
    table = noisy_of(Y).log_likelihood()
    zero = table.copy()
    zero[5] = -np.inf
    nan = table.copy()
    nan[5, 0] = np.nan
    for bad, message in (
        (table[1:], "shape"),
        (table[:, 0], "shape"),
        (table > 0, "shape"),
        (zero, "likelihood above 0"),
        (nan, "NaN"),
    ):
        with pytest.raises(ldp.InvalidInput, match=message):
            classifier().fit_likelihood(X, bad)
    with pytest.raises(ldp.InvalidInput, match="loss on log-likelihoods in fit_likelihood"):
        classifier(recipe=Recipe(loss=cross_entropy)).fit_likelihood(X, table)
    fitted = classifier().fit_likelihood(X, table)
    assert fitted.classes_.tolist() == list(range(K)) and fitted.score(X, Y) > 0.85


def test_likelihoods_of_unknown_origin_get_no_guarantee_of_an_earlier_fit():
    """Raw labels can be written as likelihoods: what a former fit said of its noisy labels does not
    hold of them."""
    model = classifier().fit(X, noisy_of(Y))
    assert model.privacy_.epsilon
    model.fit_likelihood(X, np.where(np.arange(K) == np.asarray(Y)[:, None], 0.0, -20.0))
    for name in ("privacy_", "noisy_labels_", "stages_", "estimated_accuracy_"):
        assert not hasattr(model, name)


def test_noisy_labels_are_checked():
    noisy = noisy_of(Y)
    for given, options, message in (
        (noisy[1:], {}, "noisy labels of 1200 rows"),
        (noisy, {"ids": np.arange(1, N + 1)}, "1 ids have none"),
    ):
        with pytest.raises(ldp.InvalidInput, match=message):
            classifier().fit(X, given, **options)
    with pytest.raises(ldp.InvalidInput, match="fitted"):
        classifier().predict(X)


def test_training_that_diverges_stops_and_keeps_what_was_drawn(ledger):
    model = classifier(
        recipe=Recipe(2, 128, 1e12, precision="float32", optimizer=Optimizer("sgd", momentum=0.0)),
    )
    labels = closed(Y, K, ledger=ledger)
    with pytest.raises(ldp.InvalidInput, match="finite"):
        model.fit(X * 1e6, labels)
    assert [run.state for run in ledger.runs()] == ["charged"]
    model.set_params(recipe=QUICK).fit(X * 1e6, labels)
    assert [run.state for run in ledger.runs()] == ["settled"]
    assert ledger.spent("d", "label") == 2.0


@pytest.mark.parametrize("given", ["raw labels", "noisy labels", "likelihoods"])
def test_a_fit_that_fails_leaves_the_estimator_as_it_was(given):
    wider = np.concatenate([X, X], axis=1)

    def stop(epoch):
        raise RuntimeError("the machine is on fire")

    model = classifier(lambda k: Mlp(2 * K, k, (16,)), progress=stop)
    refit = {
        "raw labels": lambda: model.fit(wider, closed(Y[::-1], K)),
        "noisy labels": lambda: model.fit(wider, noisy_of(Y)),
        "likelihoods": lambda: model.fit_likelihood(wider, np.zeros((N, K))),
    }[given]
    for fitted in (False, True):
        if fitted:
            model.set_params(module=perceptron, progress=None).fit(X, closed(Y, K))
            model.set_params(module=lambda k: Mlp(2 * K, k, (16,)), progress=stop)
        before = {name: id(value) for name, value in vars(model).items()}
        with pytest.raises(RuntimeError, match="on fire"):
            refit()
        assert {name: id(value) for name, value in vars(model).items()} == before
        if fitted:
            assert model.predict(X).shape == (N,) and model.n_features_in_ == K
        else:
            with pytest.raises(ldp.InvalidInput, match="Call fit first"):
                model.predict(X)


# Datasets and ids
# --------------------------------------------------------------------------------------------------


class Blind(nn.Module):
    """A net that cannot give its last class any probability."""

    def __init__(self, k):
        super().__init__()
        self.net = perceptron(k)

    def forward(self, x):
        return self.net(x) * torch.arange(K).lt(K - 1) - 50.0 * torch.eye(K)[-1]


def test_a_class_that_the_net_has_lost_is_told():
    with pytest.warns(
        ldp.errors.LostClassWarning,
        match=r"stage 1 the net gives hardly any probability to 3,.*random_state",
    ):
        classifier(Blind, stages=1).fit(X, closed(Y, K))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused_before_the_charge_where_items_are_read_before_it(
    bad, ledger
):
    """All items without ids; with ids those that are looked at for their order. Later ones stop the
    training, and the labels stay."""

    def fit(row, **given):
        wrong = X.copy()
        wrong[row, 1] = bad
        return classifier().fit(Items(wrong), closed(Y, K, ledger=ledger, **given))

    for row, ids in ((N - 1, np.arange(N)), (7, None)):
        with pytest.raises(ldp.InvalidInput, match=r"finite inputs, got NaN or infinity in "):
            fit(row, ids=ids)
        assert not ledger.runs()
    with pytest.raises(ldp.InvalidInput, match="finite logits") as told:
        fit(7, ids=np.arange(N))
    assert (
        "Fit again at no further cost" in told.value.__notes__[0]
        and ledger.spent("d", "label") == 2.0
    )
    model = classifier().fit(Items(X), closed(Y, K, ledger=ledger, ids=np.arange(N)))
    assert model.privacy_.epsilon == ledger.spent("d", "label") == 2.0


@pytest.mark.parametrize(("units", "stages"), [(1, 1), (3, 2)])
def test_a_net_that_needs_two_rows_is_refused_before_the_charge_where_the_cap_may_leave_one(
    units, stages, ledger
):

    def norm(k):
        return torch.nn.Sequential(torch.nn.BatchNorm1d(K), torch.nn.Linear(K, k))

    model, facts = classifier(norm, stages=stages), {"unit": np.arange(N) % units}
    with pytest.raises(ldp.InvalidInput, match="So few rows may be left"):
        model.fit(X, closed(Y, K, ledger=ledger, **facts))
    assert not ledger.runs()
    model.fit(X, closed(Y, K, ledger=ledger, max_rows_per_unit=40, **facts))
    assert model.privacy_.rows_over_the_cap == N - 40 * units


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, Items])
def test_numbers_beyond_single_precision_are_refused_before_the_charge(kind, tmp_path):
    wrong, ledger = X.astype(np.float64), ldp.Ledger(tmp_path / "ledger.db")
    wrong[N - 1, 1] = 1e39  # finite in double precision
    with pytest.raises(
        ldp.InvalidInput, match=r"finite inputs, got NaN or infinity in .*X, or numbers beyond"
    ):
        classifier().fit(kind(wrong), closed(Y, K, ledger=ledger, ids=np.arange(N)))
    assert not ledger.runs()


def test_items_are_matched_by_id_and_a_change_of_order_is_seen():
    order = np.random.default_rng(1).permutation(N)
    noisy = noisy_of(Y, ids=np.arange(N))
    shuffled = with_evidence(Items(X[order]), noisy, ids=order)
    assert np.array_equal(
        classifier().fit(shuffled, noisy).predict_proba(X),
        classifier().fit(X, noisy).predict_proba(X),
    )
    with pytest.raises(ldp.InvalidInput, match="matched to"):
        classifier().fit(shuffled, noisy[::-1])

    class Named(Items):
        def __getitem__(self, i):
            return torch.from_numpy(self.X[i]), int(self.names[i])

    items = Named(X)
    items.names = np.arange(N)
    matched = with_evidence(items, noisy, ids=np.arange(N), id_of=lambda item: item[1])
    items.names = order
    with pytest.raises(ldp.InvalidInput, match="order"):
        classifier().fit(matched, noisy)


def test_a_cluster_prior_is_paid_for_out_of_epsilon(ledger):
    net = classifier(epsilon=1.0, prior=ClusterPrior(n_clusters=8, epsilon=0.4))
    net.fit(X, closed(Y, K, ledger=ledger))
    assert [(run.receipt.event["event"], run.receipt.epsilon) for run in ledger.runs()] == [
        ("aggregate", 0.4),
        ("label-draw", 0.6),
    ]
    assert net.privacy_.epsilon == ledger.spent("d", "label") == 1.0
    again = clone(net).fit(X, closed(Y, K, ledger=ledger))
    assert np.array_equal(again.noisy_labels_.likelihood(), net.noisy_labels_.likelihood())
    assert len(ledger.runs()) == 2
    held_out = clone(net).set_params(validation_fraction=0.4).fit(X, closed(Y, K))
    measured = sum(
        len(block.rows) for block in held_out.noisy_labels_.blocks if block.stage == "validation"
    )
    # who is measured was not asked
    assert held_out.prior_.answer.n_rows.sum() == N - measured < 0.7 * N
    with pytest.raises(ldp.InvalidInput, match="embedder"):
        clone(net).fit(Items(X), closed(Y, K))
