# SPDX-License-Identifier: Apache-2.0
"""The training methods of Tang et al. by name: what they are made of, and that they learn."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import labeldp as ldp
from labeldp.deep import Consistency, Recipe, TorchClassifier, cross_entropy, models, train
from labeldp.learn import find_clusters
from labeldp.papers import tang2022

X, Y = load_digits(return_X_y=True)
X = (X[:900] / 16).astype(np.float32)
Y = Y[:900]
QUICK = {"epochs": 8, "batch_size": 64, "rate": 0.02}


def private() -> ldp.PrivateLabels:
    return ldp.PrivateLabels(Y, classes=range(10), noise=ldp.SeededNoise(0))


def jittered(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x + 0.1 * torch.randn(x.shape, generator=generator)


MADE = {
    "ldp_normal": None,
    "ldp_ssl": Consistency.fixmatch(warm_up=4),
    "aug_descent": Consistency.dividemix(warm_up=4),
}


@pytest.mark.parametrize("name", MADE)
def test_a_method_is_its_parts(name: str) -> None:
    made = getattr(tang2022, name)(epsilon=2.0)
    assert (made["law"], made["epsilon"], made["validation_fraction"]) == ("rr", 2.0, 0.0)
    loss = {"loss": cross_entropy} if MADE[name] is None else {"consistency": MADE[name]}
    assert made["recipe"] == Recipe(**loss)
    own = Recipe(epochs=2, consistency=Consistency.adamatch(warm_up=1))
    kept = getattr(tang2022, name)(epsilon=2.0, recipe=own if MADE[name] else Recipe(epochs=2))
    assert kept["recipe"].epochs == 2
    assert kept["recipe"].consistency == (own.consistency if MADE[name] else None)


@pytest.mark.parametrize("name", MADE)
def test_a_method_learns(name: str) -> None:
    own = replace(MADE[name], strong=jittered) if MADE[name] else None
    asked = getattr(tang2022, name)(epsilon=6.0, recipe=Recipe(**QUICK, consistency=own))
    net = TorchClassifier(lambda n: models.Mlp(64, n, (64,)), **asked, device="cpu").fit(
        X, private()
    )
    assert net.score(X, Y) > 0.6


def test_denoise_ssl_keeps_what_clusters_and_noise_agree_on() -> None:
    """Most labels that are kept are right, where most released ones are wrong."""
    noisy = ldp.privatize(private(), tang2022.RandRes(10, 2.0))
    clusters = find_clusters(X, 40).assign(X)
    kept = tang2022.denoise_ssl(clusters, ldp.deep.evidence_of(noisy), 10)
    some = (kept.rest < 0).numpy()  # a row that is kept has one candidate
    released = np.asarray(noisy.blocks[0].outputs)
    assert 100 < some.sum() < len(Y)
    assert (released[some] == Y[some]).mean() > 0.7 > 0.55 > (released == Y).mean()
    recipe = Recipe(**QUICK, consistency=Consistency.fixmatch(strong=jittered, warm_up=2))
    net = train(
        models.Mlp(64, 10, (64,)),
        torch.from_numpy(X),
        kept,
        recipe,
        generator=torch.Generator().manual_seed(0),
    )
    assert (net(torch.from_numpy(X)).argmax(1).numpy() == Y).mean() > 0.7
