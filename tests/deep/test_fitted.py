# SPDX-License-Identifier: Apache-2.0
"""What a TorchClassifier says of itself and of inputs, as scikit-learn's conventions and its users
expect."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from tests.deep.datasets import closed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import labeldp as ldp
from labeldp.deep import Recipe, TorchClassifier, as_inputs
from labeldp.deep.models import Mlp, SmallConvNet

K, N = 3, 120
RNG = np.random.default_rng(0)
Y = RNG.integers(K, size=N)
X = (3 * np.eye(K)[Y] + RNG.normal(size=(N, K))).astype(np.float32)


def classifier(module=lambda k: Mlp(K, k, (8,)), **settings):
    recipe = Recipe(epochs=1, precision="float32")
    return TorchClassifier(module, recipe=recipe, **settings)


def test_an_unfitted_one_says_so_in_both_languages():
    for kind in (NotFittedError, ldp.InvalidInput):
        with pytest.raises(kind, match="Call fit first") as error:
            classifier().predict(X)
    assert isinstance(pickle.loads(pickle.dumps(error.value)), NotFittedError)


def test_tables_have_a_number_of_features_and_images_none():
    model = classifier().fit(X, closed(Y, K))
    assert model.n_features_in_ == K
    images = RNG.random((N, 1, 8, 8)).astype(np.float32)
    model.set_params(module=lambda k: SmallConvNet(k, 1)).fit(images, closed(Y, K))
    assert not hasattr(model, "n_features_in_")
    # a net that takes other sizes may
    assert model.predict(RNG.random((5, 1, 9, 9)).astype(np.float32)).shape == (5,)
    learned = classifier().fit_likelihood(X, np.zeros((N, K)))
    assert learned.n_features_in_ == K


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (X[:, :2], "X has 2 features, but TorchClassifier is expecting 3"),
        (X[0], r"rows of shape \(3,\) and type torch.float32, as in fit, got \(\) .*X\[:1\]"),
        (X[:, :, None, None], r"got \(3, 1, 1\)"),
        (DataLoader(TensorDataset(torch.from_numpy(X[:, :2]))), "X has 2 features"),
    ],
)
def test_inputs_of_another_shape_are_told(given, words):
    with pytest.raises(ldp.InvalidInput, match=words):
        classifier(lambda k: nn.Linear(K, k)).fit(X, closed(Y, K)).predict(given)


@pytest.mark.parametrize("kind", ["int64", "uint8"])
def test_whole_numbers_where_floats_were_learned_from_are_told(kind):
    model = classifier(lambda k: nn.Sequential(nn.BatchNorm1d(K), nn.Linear(K, k))).fit(
        X, closed(Y, K)
    )
    with pytest.raises(
        ldp.InvalidInput,
        match=rf"float32, as in fit, got \(3,\) and torch.{kind}, .*X.astype\('float32'\)",
    ):
        model.predict(abs(10 * X).astype(kind))


def test_images_with_the_channels_last_are_told():
    images = RNG.random((N, 3, 8, 8)).astype(np.float32)
    model = classifier(lambda k: SmallConvNet(k, 3)).fit(images, closed(Y, K))
    with pytest.raises(
        ldp.InvalidInput,
        match=r"got \(8, 8, 3\) .*X.transpose\(0, 3, 1, 2\)",
    ):
        model.predict(images.transpose(0, 2, 3, 1))


class Fragile(nn.Linear):
    """Breaks once it is told to."""

    broken = False

    def forward(self, x):
        if self.broken:
            raise RuntimeError("of its own")
        return super().forward(x)


def test_faults_of_the_net_itself_are_not_taken_for_others():
    model = classifier(Fragile(K, K)).fit(X, closed(Y, K))
    model.module_.broken = True
    with pytest.raises(RuntimeError, match="of its own"):
        model.predict(X)


def test_labels_in_a_loader_are_not_looked_at():
    loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)))
    with pytest.raises(
        ldp.InvalidInput, match="Labels in a Dataset or DataLoader are not looked at"
    ):
        classifier().fit(loader)


class Mappings:
    """Items with several parts."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return {"pixels": X[i], "label": Y[i]}


def test_items_of_several_parts_are_told_where_to_say_which():
    with pytest.raises(ldp.InvalidInput, match=r"as_inputs\(X, features="):
        classifier().fit(Mappings(), closed(Y, K))
    assert (
        classifier()
        .fit(as_inputs(Mappings(), features=lambda item: item["pixels"]), closed(Y, K))
        .n_features_in_
        == K
    )


@pytest.mark.parametrize(
    "given",
    [
        TensorDataset(torch.from_numpy(X)),
        DataLoader(TensorDataset(torch.from_numpy(X))),
        Mappings(),
    ],
)
def test_label_dp_classifier_takes_no_datasets(given):
    with pytest.raises(ldp.InvalidInput, match="by itself takes Datasets"):
        ldp.LabelDPClassifier(classifier()).fit(given, closed(Y, K))
