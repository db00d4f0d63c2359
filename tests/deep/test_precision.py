# SPDX-License-Identifier: Apache-2.0
"""What precision a fit predicts in, and what becomes of bytes."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from tests.deep.datasets import closed
from torch import nn

import labeldp as ldp
from labeldp.deep import Recipe, TorchClassifier, likelihood_loss, predict, train
from labeldp.deep.models import Mlp
from labeldp.papers.tang2022 import Embedder

K, N = 4, 300


class Told(nn.Module):
    """A net that notes, when it predicts, whether it is called in bf16."""

    found: list[bool]

    def __init__(self, k):
        super().__init__()
        self.net = Mlp(K, k, (8,))

    def forward(self, x):
        if not self.training:
            Told.found.append(torch.is_autocast_enabled("cpu"))
        return self.net(x)


def fitted(device, precision):
    rng = np.random.default_rng(0)
    y = rng.integers(K, size=N)
    X = (2 * np.eye(K)[y] + rng.normal(size=(N, K))).astype(np.float32)
    Told.found = []
    recipe = Recipe(epochs=1, rate=0.05, precision=precision, optimizer="sgd")
    settings = {
        "random_state": 0,
        "validation_fraction": 0.1,
        "device": device,
    }
    model = TorchClassifier(Told, recipe=recipe, **settings).fit(X, closed(y, K))
    during = Told.found[1:]  # the first one is the look at the untrained net
    Told.found = []
    model.predict_proba(X)
    return during, Told.found, model, X


@pytest.mark.parametrize(("precision", "low"), [("bf16", True), ("float32", False)])
def test_priors_estimates_and_predictions_are_made_in_the_recipes_precision(precision, low):
    during, after, model, X = fitted("cpu", precision)
    assert set(during) == set(after) == {low}
    logits = predict(model.module_, X, precision=precision).double()
    assert np.array_equal(model.predict_proba(X), torch.softmax(logits, 1).numpy())


@pytest.mark.parametrize(("precision", "low"), [("bf16-mixed", True), ("32-true", False)])
def test_under_fabric_they_are_made_in_its_own(precision, low):
    if find_spec("lightning_fabric") is None:
        pytest.skip("needs lightning-fabric: pip install 'labeldp[fabric]'")
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    fabric.launch()
    during, after, *_ = fitted(fabric, "float32" if low else "bf16")
    assert set(during) == set(after) == {low}


class Codes(nn.Module):
    """A net of byte codes, such as characters."""

    def __init__(self, k):
        super().__init__()
        self.table = nn.Embedding(256, k)

    def forward(self, x):
        assert x.dtype == torch.uint8
        return self.table(x.int()).mean(1)


def test_bytes_in_rows_are_codes_and_stay_so():
    rng = np.random.default_rng(0)
    y = rng.integers(K, size=N)
    X = (60 * y[:, None] + rng.integers(0, 20, (N, 5))).astype(np.uint8)
    recipe = Recipe(epochs=40, batch_size=32, rate=2.0, precision="float32", optimizer="sgd")
    model = TorchClassifier(Codes, recipe=recipe, epsilon=5.0, random_state=0).fit(X, closed(y, K))
    assert model.score(X, y) > 0.9


def test_flat_images_of_bytes_are_embedded_as_images():
    X = np.random.default_rng(0).integers(0, 256, (3, 36), dtype=np.uint8)
    flat = Embedder(nn.Flatten(), image=(6, 6)).transform(X)
    np.testing.assert_allclose(flat, X / np.float32(255), rtol=1e-6)
    assert np.array_equal(flat, Embedder(nn.Flatten()).transform(X.reshape(3, 6, 6)))


def test_noisy_labels_themselves_are_no_evidence():
    y = np.arange(20) % K
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(K), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(K, 1.0),
    )
    X, good = torch.rand(20, K), ldp.deep.evidence_of(noisy)
    recipe = Recipe(epochs=1, loss=likelihood_loss)
    for evidence, held_out in ((noisy, None), (good, (X, noisy))):
        with pytest.raises(ldp.InvalidInput, match=r"got NoisyLabels. Pass evidence_of\(noisy\)"):
            train(Mlp(K, K), X, evidence, recipe, generator=torch.Generator(), held_out=held_out)
