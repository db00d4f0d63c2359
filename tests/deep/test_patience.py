# SPDX-License-Identifier: Apache-2.0
"""Choosing an epoch by held-out noisy labels: which net comes of it, when training ends, and which
rows then judge it."""

import numpy as np
import pytest
import torch
from tests.deep.datasets import closed

import labeldp as ldp
from labeldp.deep import (
    Optimizer,
    Recipe,
    TorchClassifier,
    cross_entropy,
    evidence_of,
    predict,
    train,
)
from labeldp.deep.models import Mlp

K, N = 4, 600
RNG = np.random.default_rng(0)
Y = RNG.integers(K, size=N)
X = (2 * np.eye(K)[Y] + RNG.normal(size=(N, K))).astype(np.float32)
STEEP = {
    "batch_size": 32,
    "rate": 0.5,
    "precision": "float32",
    "optimizer": Optimizer("sgd", weight_decay=0.0),
}  # the net soon learns noise by heart


def trained(recipe, **options):
    """The net, what was told of each epoch, and what its net of the time predicted."""
    noisy = ldp.privatize(
        ldp.PrivateLabels(Y, classes=range(K), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(K, 1.0),
    )
    evidence, told, seen = evidence_of(noisy), [], []
    torch.manual_seed(0)
    net = train(
        Mlp(K, K, (64,)),
        X[200:],
        evidence[200:],
        recipe,
        generator=torch.Generator().manual_seed(0),
        held_out=(X[:200], evidence[:200]),
        progress=told.append,
        watch=lambda number, model: seen.append(predict(model, X, precision="float32")),
        **options,
    )
    return net, told, seen


@pytest.mark.parametrize("average", [None, 0.5])
def test_the_net_of_the_best_epoch_is_kept(average):
    recipe = Recipe(epochs=12, patience=12, average=average, **STEEP)
    net, told, seen = trained(recipe)
    scores = [epoch.held_out for epoch in told]
    best = int(np.argmax(scores))
    assert len(told) == 12 and scores[-1] < scores[best]
    assert torch.equal(predict(net, X, precision="float32"), seen[best])
    last, _, _ = trained(Recipe(epochs=12, average=average, **STEEP))
    assert torch.equal(predict(last, X, precision="float32"), seen[-1])


def test_training_ends_when_nothing_better_has_come_for_long_enough():
    every = [epoch.held_out for epoch in trained(Recipe(epochs=12, patience=12, **STEEP))[1]]
    for patience in (1, 2, 3):
        _, told, _ = trained(Recipe(epochs=12, patience=patience, **STEEP))
        scores = [epoch.held_out for epoch in told]
        assert (
            scores == every[: len(scores)]
            and len(scores) == int(np.argmax(scores)) + 1 + patience < 12
        )


def test_patience_needs_held_out_rows():
    with pytest.raises(ldp.InvalidInput, match="held-out rows with patience"):
        codes = torch.from_numpy(Y)
        train(
            Mlp(K, K), X, codes, Recipe(patience=3, loss=cross_entropy), generator=torch.Generator()
        )
    for bad in (0, -1, 1.5, True):
        with pytest.raises(ldp.InvalidInput, match="patience"):
            Recipe(patience=bad)


def test_the_classifier_judges_by_rows_that_chose_nothing():
    settings = {
        "epsilon": 2.0,
        "random_state": 0,
        "validation_fraction": 0.2,
    }
    recipes = Recipe(epochs=6, patience=2, **STEEP), Recipe(epochs=2, **STEEP)
    model = TorchClassifier(lambda k: Mlp(K, k, (64,)), recipe=recipes, stages=2, **settings).fit(
        X, closed(Y, K)
    )
    (block,) = [block for block in model.noisy_labels_.blocks if block.stage == "validation"]
    rows = np.sort(block.rows)
    chose, judged = rows[::2], rows[1::2]
    expected = ldp.metrics.accuracy(model.noisy_labels_[judged], model.predict(X[judged]))
    assert model.estimated_accuracy_ == expected
    assert len(model.history_[0]) <= 6 and len(model.history_[1]) == 2
    alone = TorchClassifier(lambda k: Mlp(K, k, (64,)), recipe=recipes[0], **settings).fit(
        X, closed(Y, K)
    )
    (block,) = [block for block in alone.noisy_labels_.blocks if block.stage == "validation"]
    chose = np.sort(block.rows)[::2]
    logits = predict(alone.module_, X[chose], precision="float32")
    score = -float(ldp.deep.likelihood_loss(logits, evidence_of(alone.noisy_labels_[chose])))
    assert score == pytest.approx(max(epoch.held_out for epoch in alone.history_[0]), abs=1e-6)


def test_a_fit_that_goes_on_from_its_folder_has_the_chosen_net(tmp_path):
    settings = {
        "random_state": 0,
        "validation_fraction": 0.2,
        "folder": tmp_path / "fit",
        "stages": 2,
        "recipe": Recipe(epochs=6, patience=1, **STEEP),
    }
    first, again = (
        TorchClassifier(lambda k: Mlp(K, k, (64,)), **settings).fit(
            X, closed(Y, K, ledger=ldp.Ledger(tmp_path / "ledger.db"))
        )
        for _ in range(2)
    )
    assert (
        np.array_equal(first.predict_proba(X), again.predict_proba(X))
        and first.history_ == again.history_
    )


def test_noisy_labels_of_too_few_held_out_rows_and_likelihoods_are_refused():
    noisy = ldp.privatize(
        ldp.PrivateLabels(Y, classes=range(K), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(K, 1.0),
    )
    model = TorchClassifier(lambda k: Mlp(K, k), recipe=Recipe(patience=2))
    for fit in (
        lambda: model.fit(X, noisy),
        lambda: model.fit_likelihood(X, noisy.log_likelihood()),
    ):
        with pytest.raises(ldp.InvalidInput, match="validation_fraction"):
            fit()


def test_fewer_held_out_rows_than_expected_are_no_reason_to_lose_a_charge():
    """Chance decides how many there are: of 200 rows a tenth is less than 20 in every other fit."""
    recipe = Recipe(epochs=1, patience=1)
    model = TorchClassifier(
        torch.nn.Linear(K, K),
        recipe=recipe,
        validation_fraction=0.1,
        random_state=0,
    )
    for seed in range(6):
        model.fit(X[:200], closed(Y[:200], K, noise=ldp.SeededNoise(seed)))
        assert model.history_[0][0].held_out is not None


def test_held_out_rows_are_counted_within_the_cap(ledger):
    settings = {"recipe": Recipe(epochs=1, patience=1), "validation_fraction": 0.1}
    labels = closed(Y, K, ledger=ledger, unit=np.arange(N) % 30)
    with pytest.raises(ldp.InvalidInput, match="at least 20 held-out rows with patience=1, got 3"):
        TorchClassifier(torch.nn.Linear(K, K), **settings).fit(X, labels)
    assert not ledger.runs()
