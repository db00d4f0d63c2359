# SPDX-License-Identifier: Apache-2.0
"""Embedder: whatever comes in and whatever the net gives, one finite row of features for each row;
and clear words where not."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import labeldp as ldp
from labeldp import InvalidInput
from labeldp.learn import ClusterPrior, NoiseCluster
from labeldp.papers.tang2022 import Embedder


class Gives(nn.Module):
    """A net that keeps what it was given, and gives what it is told."""

    def __init__(self, make=lambda x: x.flatten(1)):
        super().__init__()
        self.make, self.seen = make, []
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        self.seen.append((x.clone(), self.training, torch.is_grad_enabled()))
        return self.make(x)

    @property
    def images(self):
        return torch.cat([x for x, _, _ in self.seen])


def test_every_layout_and_type_of_images_is_the_same_to_the_net():
    last = np.random.default_rng(0).integers(0, 256, (5, 8, 6, 3), dtype=np.uint8)
    first = np.moveaxis(last, 3, 1)
    forms = {
        "bytes": last,
        "channels first": first,
        "floats": (first / 255).astype(np.float32),
        "doubles": last / 255,
        "tensor": torch.from_numpy(first.copy()),
        "lists": last.tolist(),
        "data set": TensorDataset(torch.from_numpy(last), torch.arange(5)),
        "loader": DataLoader(
            [(torch.from_numpy(each), 0) for each in last], batch_size=2, shuffle=True
        ),
    }
    expected = torch.from_numpy(first / 255).float()
    for name, X in forms.items():
        if name == "lists":
            X = np.array(X, dtype=np.uint8)
        net = Gives()
        found = Embedder(net, batch_size=2)(X)
        assert found.dtype == np.float32 and found.shape == (5, 144), name
        torch.testing.assert_close(net.images, expected, rtol=0, atol=1e-6, msg=name)
        np.testing.assert_allclose(found, expected.flatten(1), atol=1e-6)


def test_a_layout_that_cannot_be_told_is_refused():
    for shape in ((2, 3, 8, 3), (2, 7, 8, 5)):
        with pytest.raises(InvalidInput, match="one axis of"):
            Embedder(Gives()).transform(torch.rand(shape))


TOKENS = torch.arange(24.0).reshape(2, 4, 3)
VECTOR = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
OUTPUTS = {
    "tensor": (VECTOR, None, VECTOR),
    "tokens": (TOKENS, None, TOKENS[:, 0]),
    "maps": (TOKENS[:, :, :, None], None, TOKENS.mean(2)),
    "pooler_output": (
        SimpleNamespace(pooler_output=VECTOR),
        lambda found: found.pooler_output,
        VECTOR,
    ),
    "half": (VECTOR.half(), None, VECTOR),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name):
    output, pool, expected = OUTPUTS[name]
    found = Embedder(Gives(lambda x: output), pool=pool).transform(np.zeros((2, 4, 4)))
    np.testing.assert_array_equal(found, expected.numpy())
    assert found.dtype == np.float32


def test_the_net_is_used_in_evaluation_mode_without_gradients_and_left_as_it_was():
    for training in (True, False):
        net = Gives().train(training)
        Embedder(net, batch_size=2).transform(np.zeros((3, 4, 4)))
        assert (
            net.training == training and [flags for _, *flags in net.seen] == [[False, False]] * 2
        )


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        lambda images: np.array([*images, None], object)[:-1],
        lambda images: [torch.from_numpy(each) for each in images],
    ],
    ids=["list", "tuple", "objects", "tensors"],
)
def test_images_of_several_sizes_are_refused(make):
    images = [np.zeros((size, 30, 3), np.uint8) for size in (40, 40, 32)]
    with pytest.raises(InvalidInput, match=r"rows of one shape.*bring images to one size"):
        Embedder(Gives()).transform(make(images))
    with pytest.raises(InvalidInput, match="tensors of one shape"):
        Embedder(Gives()).transform(DataLoader([(each, 0) for each in make(images)], batch_size=1))


def test_images_reach_a_net_that_clusters_them_and_one_that_starts_a_pipeline():
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 600)
    images = (generator.integers(0, 60, (600, 8, 8)) + 60 * y[:, None, None]).astype(np.uint8)
    embedder = Embedder(nn.AvgPool2d(4))
    labels = ldp.PrivateLabels(y, classes=range(3), noise=ldp.SeededNoise(0))
    assert (
        NoiseCluster(epsilon=0.2, n_clusters=3, embedder=embedder)
        .fit(images, labels)
        .score(images, y)
        > 0.9
    )
    pipeline = make_pipeline(clone(embedder), StandardScaler(), LogisticRegression())
    model = ldp.LabelDPClassifier(pipeline, epsilon=1.0, prior=ClusterPrior(embedder, n_clusters=3))
    assert model.fit(images, labels).score(images, y) > 0.9


class Sparse(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, : 2 + int(x.sum() > 0)]


BAD = {
    "NaN": (
        lambda: Embedder(nn.Identity()).transform(np.array([[1.0], [np.nan], [2.0]])),
        r"NaN or infinity in 1 rows \(first: row 1\)",
    ),
    "NaN in an image": (lambda: Embedder(Gives()).transform(np.full((1, 2, 2), np.nan)), "row 0"),
    "widths": (
        lambda: Embedder(Sparse(), batch_size=1).transform(
            np.array([[[0.0, 0.0, 0.0]], [[1.0, 1.0, 1.0]]])
        ),
        "one width, got 2 and 3",
    ),
    "no rows": (lambda: Embedder(nn.Identity()).transform(np.zeros((0, 3))), "at least one row"),
    "integers": (lambda: Embedder(Gives()).transform(np.zeros((2, 3, 3), int)), "uint8"),
    "five axes": (
        lambda: Embedder(Gives()).transform(np.zeros((2, 1, 3, 3, 3))),
        r"got shape \(2, 1, 3, 3, 3\)",
    ),
    "flat": (lambda: Embedder(Gives(), image=(3, 4)).transform(np.zeros((2, 9))), "12 numbers"),
    "batch size": (
        lambda: Embedder(Gives(), batch_size=0).transform(np.zeros((2, 3, 3))),
        "batch_size >= 1",
    ),
    "not a net": (
        lambda: Embedder(3).transform(np.zeros((2, 3, 3))),
        "module as a function of a batch, got",
    ),
    "one row too few": (
        lambda: Embedder(Gives(lambda x: x.flatten(1)[1:])).transform(np.zeros((2, 3, 3))),
        "features",
    ),
    "text": (lambda: Embedder(Gives(lambda x: "cat")).transform(np.zeros((2, 3, 3))), "got str"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    make, words = BAD[name]
    with pytest.raises(InvalidInput, match=words):
        make()
