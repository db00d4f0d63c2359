# SPDX-License-Identifier: Apache-2.0
"""The papers' recipes by name: their published values, and a fit by one."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import labeldp as ldp
from labeldp.deep import Optimizer, Recipe, TorchClassifier, augment, cross_entropy, posterior_loss
from labeldp.errors import InvalidInput
from labeldp.papers import ghazi2021 as recipes
from labeldp.papers._recipes import moved_and_cut, paper_decays, triangular
from labeldp.papers.malek2021 import alibi

# google-research/label-dp, profiles/p100_cifar10.py: mixup of both stages, percent of the rows in
# the first, temperature.
CODE = {1: ((16, 8), 80, 0.6), 2: ((8, 8), 70, 0.5), 4: ((8, 4), 60, 0.5), 8: ((4, 4), 60, 0.5)}


@pytest.mark.parametrize("epsilon", CODE)
def test_lp_2st_on_cifar_10_is_the_authors_code(epsilon):
    found = recipes.lp_2st("cifar10", epsilon=epsilon)
    mixup, percent, temperature = CODE[epsilon]
    assert found["stages"] == (percent / 100, round(1 - percent / 100, 3))
    assert (found["prior"].temperature, found["prior"].top_k, found["law"]) == (
        temperature,
        "mean",
        "rr-with-prior",
    )
    assert tuple(recipe.alpha for recipe in found["recipe"]) == mixup
    for recipe in found["recipe"]:
        assert (recipe.epochs, recipe.batch_size, recipe.rate, recipe.loss, recipe.optimizer) == (
            200,
            512,
            0.4,
            cross_entropy,
            Optimizer("sgd", 0.9, 1e-4, math.inf),
        )
        assert recipe.schedule is paper_decays


def test_the_rates_and_the_augmentation_are_the_published_ones():
    """A schedule that restarts its count after the ramp decays at 15 % + 30, 60 and 90 %; the last
    is past the end."""
    points = [0, 0.075, 0.15, 0.3, 0.449, 0.45, 0.6, 0.749, 0.75, 0.9, 1]
    assert [paper_decays(t) for t in points] == pytest.approx(
        [0, 0.5, 1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01]
    )
    assert [triangular(t) for t in (0, 0.075, 0.15, 0.575, 1)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    images = torch.rand(9, 3, 16, 16) + 1
    draw = torch.Generator().manual_seed(0)
    moved = augment.shift(augment.flip(images, draw), draw, pixels=4)
    expected = augment.cutout(moved, draw, size=8, shared=True)
    assert torch.equal(moved_and_cut(images, torch.Generator().manual_seed(0)), expected)


@pytest.mark.parametrize("data", ["mnist", "fashion_mnist", "kmnist"])
def test_grey_images_are_trained_as_appendix_b_says(data):
    recipe = recipes.lp_1st(data, epsilon=3.0)["recipe"]
    assert (recipe.epochs, recipe.batch_size, recipe.rate, recipe.schedule) == (
        40,
        265,
        0.02,
        triangular,
    )


def test_between_published_epsilons_the_lower_one_decides_and_below_the_first():
    assert recipes.multistage(3.9) == recipes.multistage(2.0)
    assert recipes.multistage(0.5) == recipes.multistage(1.0)
    assert recipes.multistage(80.0) == recipes.multistage(8.0)


def test_one_and_three_stages():
    one, three = recipes.lp_1st("cifar10", epsilon=2.0), recipes.lp_3st("cifar10", epsilon=2.0)
    assert (one["law"], one["stages"], one["prior"]) == ("rr", 1, None)
    assert three["stages"] == (0.7, 0.15, 0.15)
    assert [recipe.alpha for recipe in three["recipe"]] == [8.0, 8.0, 8.0]


def test_alibi_learns_posteriors_of_its_own_law_in_one_stage():
    found = alibi(epsilon=1.0, epochs=3)
    assert (found["law"], found["stages"]) == ("alibi", 1)
    assert found["recipe"] == Recipe(epochs=3, loss=posterior_loss)
    assert recipes.mixups("alibi", epsilon=1.0) == (0.0,)
    found, published = alibi("mnist", epsilon=1.0), recipes.lp_1st("mnist", epsilon=1.0)["recipe"]
    assert (found["law"], found["recipe"].loss, found["recipe"].alpha) == (
        "alibi",
        posterior_loss,
        0.0,
    )
    assert replace(found["recipe"], loss=cross_entropy, alpha=16.0, augment=None) == replace(
        published, augment=None
    )
    assert alibi("mnist", epsilon=1.0, epochs=3)["recipe"].epochs == 3
    with pytest.raises(InvalidInput, match="Did you mean 'cifar10'"):
        alibi("cifar", epsilon=1.0)


def test_changes_replace_what_is_published_and_nothing_unknown():
    assert [r.epochs for r in recipes.lp_2st("mnist", epsilon=1.0, epochs=2)["recipe"]] == [2, 2]
    assert [r.alpha for r in recipes.lp_2st("mnist", epsilon=1.0, alpha=0.0)["recipe"]] == [
        0.0,
        0.0,
    ]
    with pytest.raises(InvalidInput, match=r"Did you mean 'epochs'"):
        recipes.lp_2st("mnist", epsilon=1.0, epoch=2)
    with pytest.raises(InvalidInput, match=r"one of mnist, .*Did you mean 'cifar10'"):
        recipes.lp_2st("cifar", epsilon=1.0)
    with pytest.raises(InvalidInput, match="Did you mean 'lp-2st'"):
        recipes.stages("lp2st", epsilon=1.0)
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(InvalidInput, match="epsilon"):
            recipes.multistage(wrong)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return (X / 16).astype(np.float32)[:900], y[:900]


def test_a_net_fitted_by_lp_2st_draws_and_filters_as_the_paper(digits):
    X, y = digits
    asked = recipes.lp_2st("mnist", epsilon=4.0, epochs=3, batch_size=64, rate=0.1, augment=None)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    with pytest.warns(ldp.errors.SeededNoiseWarning):
        model = TorchClassifier(net, **asked, random_state=0, device="cpu").fit(
            X, ldp.PrivateLabels(y, classes=range(10), noise=ldp.SeededNoise(0))
        )
    first, second = model.stages_
    # without a prior the first is randomized response
    assert (first.law.name, second.law.name) == ("rr-with-prior", "rr-with-prior")
    assert first.n_rows + second.n_rows == len(X)
    # five standard deviations; the parts follow from the seed
    assert abs(first.n_rows - 0.6 * len(X)) < 5 * math.sqrt(0.24 * len(X))
    assert {stage.law.epsilon for stage in model.stages_} == {4.0}
    kept = {block.stage: block.side["size"] for block in model.noisy_labels_.blocks}
    assert kept["stage-1"].min() == 10
    assert kept["stage-2"].min() < 10  # the first model's prior left out classes
