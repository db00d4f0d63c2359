# SPDX-License-Identifier: Apache-2.0
"""Embedders: whatever comes in and whatever the net gives, one finite row of features for each row; and clear words where not."""

from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import labeldp as ldp
from labeldp import InvalidInput
from labeldp.learn import ClusterPrior, NoiseCluster
from labeldp.research.embed import Embedder, SentenceEmbedder

MEAN, STD = (0.2, 0.4, 0.6), (0.5, 0.25, 2.0)


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


def pictures(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def test_every_layout_and_type_of_images_is_the_same_to_the_net():
    last = pictures(5, 8, 6, 3)
    first = np.moveaxis(last, 3, 1)
    forms = {
        "bytes": last,
        "channels first": first,
        "floats": (first / 255).astype(np.float32),
        "doubles": last / 255,
        "tensor": torch.from_numpy(first.copy()),
        "lists": last.tolist(),
        "data set": TensorDataset(torch.from_numpy(last), torch.arange(5)),
        "loader": DataLoader([(torch.from_numpy(each), 0) for each in last], batch_size=2, shuffle=True),
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


def test_grey_images_get_an_axis_and_flat_rows_get_their_shape():
    X = pictures(4, 5, 7)
    for rows, options in ((X, {}), (X[:, None], {}), (X[..., None], {}), (X.reshape(4, -1), {"image": (5, 7)})):
        net = Gives()
        Embedder(net, **options).transform(rows)
        torch.testing.assert_close(net.images, torch.from_numpy(X / 255).float()[:, None])


def test_layout_says_where_it_cannot_be_told():
    X = torch.rand(2, 3, 8, 3)
    with pytest.raises(InvalidInput, match="layout="):
        Embedder(Gives()).transform(X)
    with pytest.raises(InvalidInput, match="layout="):
        Embedder(Gives()).transform(torch.rand(2, 7, 8, 5))
    for layout, shape in (("first", (3, 8, 3)), ("last", (3, 3, 8))):
        net = Gives()
        Embedder(net, layout=layout).transform(X)
        assert net.images.shape[1:] == shape


def test_normalisation_is_that_of_each_channel_and_grey_becomes_colour():
    X = torch.rand(3, 3, 5, 5)
    net = Gives()
    Embedder(net, mean=MEAN, std=STD).transform(X)
    for channel in range(3):
        torch.testing.assert_close(net.images[:, channel], (X[:, channel] - MEAN[channel]) / STD[channel])
    net = Gives()
    Embedder(net, mean=MEAN, std=STD).transform(X[:, 0])
    torch.testing.assert_close(net.images[:, 2], (X[:, 0] - 0.6) / 2.0)


@pytest.mark.parametrize(("size", "shape"), [(8, (8, 8)), (40, (40, 40)), ((6, 9), (6, 9)), (16, (16, 16))])
def test_sizes(size, shape):
    ramp = torch.linspace(0, 1, 20)[None, None, None, :].expand(2, 3, 16, 20)
    net = Gives()
    Embedder(net, size=size).transform(ramp)
    made = net.images
    assert made.shape == (2, 3, *shape)
    assert made.min() >= 0 and made.max() <= 1
    assert (made[..., 1:] >= made[..., :-1] - 1e-6).all() and (made.std(2) < 1e-6).all()  # still a ramp
    if isinstance(size, int):  # the middle of it
        torch.testing.assert_close(made.mean(), torch.tensor(0.5), atol=0.01, rtol=0)
        assert made.max() - made.min() == pytest.approx(0.8, abs=0.08)
    else:
        assert made.max() > 0.9


def test_size_of_the_image_changes_nothing():
    X, net = torch.rand(2, 3, 8, 8), Gives()
    Embedder(net, size=8).transform(X)
    assert torch.equal(net.images, X)


TOKENS = torch.arange(24.0).reshape(2, 4, 3)
VECTOR = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
OUTPUTS = {
    "tensor": (VECTOR, "auto", VECTOR),
    "tuple": ((VECTOR, TOKENS), "auto", VECTOR),
    "tokens": (TOKENS, "auto", TOKENS[:, 0]),
    "mean of tokens": (TOKENS, "mean", TOKENS.mean(1)),
    "maps": (TOKENS[:, :, :, None], "auto", TOKENS.mean(2)),
    "last_hidden_state": (SimpleNamespace(last_hidden_state=TOKENS), "auto", TOKENS[:, 0]),
    "pooler_output": (SimpleNamespace(last_hidden_state=TOKENS, pooler_output=VECTOR), "auto", VECTOR),
    "no pooler": (SimpleNamespace(last_hidden_state=TOKENS, pooler_output=None), "auto", TOKENS[:, 0]),
    "tokens though pooled": (SimpleNamespace(last_hidden_state=TOKENS, pooler_output=VECTOR), "mean", TOKENS.mean(1)),
    "pooled maps": (SimpleNamespace(pooler_output=VECTOR[:, :, None, None]), "auto", VECTOR),
    "image_embeds": (OrderedDict(last_hidden_state=TOKENS, image_embeds=VECTOR), "auto", VECTOR),
    "function": ({"deep": {"inside": VECTOR}}, lambda found: found["deep"]["inside"], VECTOR),
    "half": (VECTOR.half(), "auto", VECTOR),
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
        assert net.training == training and [flags for _, *flags in net.seen] == [[False, False]] * 2


def test_the_net_s_own_type_is_what_it_is_given():
    net = nn.Conv2d(1, 3, 2).half()
    assert Embedder(net).transform(pictures(2, 4, 4)).dtype == np.float32


def test_methods_and_functions_do_too():
    net = Gives()
    net.double()
    for module in (net.forward, net.make, nn.Flatten()):
        assert Embedder(module).transform(np.zeros((2, 3, 3))).shape == (2, 9)
    assert net.images.dtype == torch.float64  # a method's net says the type


def test_rows_of_numbers_pass_unchanged():
    X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    np.testing.assert_array_equal(Embedder(nn.Identity(), batch_size=4).transform(X), X)


def test_it_is_a_transformer():
    X = pictures(30, 4, 4)
    embedder = Embedder(Gives(), batch_size=7)
    assert clone(embedder) is embedder  # no net is copied
    chain = clone(make_pipeline(embedder, PCA(3))).fit(X)
    assert chain.transform(X).shape == (30, 3)
    assert set(embedder.get_params()) >= {"module", "size", "mean", "std", "batch_size", "device"}
    assert embedder.set_params(batch_size=2).batch_size == 2
    assert KMeans(2, random_state=0, n_init=1).fit_predict(embedder.fit_transform(X)).shape == (30,)


def test_images_reach_a_net_that_clusters_them_and_one_that_starts_a_pipeline():
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 600)
    images = (generator.integers(0, 60, (600, 8, 8)) + 60 * y[:, None, None]).astype(np.uint8)
    embedder = Embedder(nn.AvgPool2d(4))
    noise, classes = ldp.SeededNoise(0), range(3)
    assert NoiseCluster(epsilon=0.2, n_clusters=3, embedder=embedder, classes=classes, noise=noise).fit(images, y).score(images, y) > 0.9
    pipeline = make_pipeline(clone(embedder), StandardScaler(), LogisticRegression())
    model = ldp.LabelDPClassifier(pipeline, epsilon=1.0, prior=ClusterPrior(embedder, n_clusters=3), classes=classes, noise=noise)
    assert model.fit(images, y).score(images, y) > 0.9


class Sparse(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, : 2 + int(x.sum() > 0)]


BAD = {
    "NaN": (lambda: Embedder(nn.Identity()).transform(np.array([[1.0], [np.nan], [2.0]])), r"NaN or infinity in 1 rows \(first: row 1\)"),
    "NaN in an image": (lambda: Embedder(Gives(), mean=[0.5], std=[1.0]).transform(np.full((1, 2, 2), np.nan)), "row 0"),
    "widths": (
        lambda: Embedder(Sparse(), batch_size=1).transform(np.array([[[0.0, 0.0, 0.0]], [[1.0, 1.0, 1.0]]])),
        "one width, got 2 and 3",
    ),
    "no rows": (lambda: Embedder(nn.Identity()).transform(np.zeros((0, 3))), "at least one row"),
    "integers": (lambda: Embedder(Gives()).transform(np.zeros((2, 3, 3), int)), "uint8"),
    "five axes": (lambda: Embedder(Gives()).transform(np.zeros((2, 1, 3, 3, 3))), r"got shape \(2, 1, 3, 3, 3\)"),
    "scale": (lambda: Embedder(Gives(), mean=MEAN, std=STD).transform(np.full((2, 3, 3), 255.0)), "divided by 255"),
    "channels": (lambda: Embedder(Gives(), mean=(0.5, 0.5), std=(1.0, 1.0)).transform(np.zeros((2, 3, 9, 9))), "2 channels"),
    "rows for images": (lambda: Embedder(Gives(), size=4).transform(np.zeros((2, 9))), "image="),
    "flat": (lambda: Embedder(Gives(), image=(3, 4)).transform(np.zeros((2, 9))), "12 numbers"),
    "mean alone": (lambda: Embedder(Gives(), mean=(0.5,)).transform(np.zeros((2, 3, 3))), "or neither"),
    "std of zero": (lambda: Embedder(Gives(), mean=(0.5,), std=(0.0,)).transform(np.zeros((2, 3, 3))), "0 < std"),
    "size": (lambda: Embedder(Gives(), size=0).transform(np.zeros((2, 3, 3))), "size >= 1"),
    "pool": (lambda: Embedder(Gives(), pool="max").transform(np.zeros((2, 3, 3))), "pool"),
    "batch size": (lambda: Embedder(Gives(), batch_size=0).transform(np.zeros((2, 3, 3))), "batch_size >= 1"),
    "not a net": (lambda: Embedder("dino").transform(np.zeros((2, 3, 3))), "torch module"),
    "one row too few": (lambda: Embedder(Gives(lambda x: x.flatten(1)[1:])).transform(np.zeros((2, 3, 3))), "features"),
    "text": (lambda: Embedder(Gives(lambda x: "cat")).transform(np.zeros((2, 3, 3))), "got str"),
    "layout": (lambda: Embedder(Gives(), layout="chw").transform(np.zeros((2, 1, 3, 3))), "layout"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    make, words = BAD[name]
    with pytest.raises(InvalidInput, match=words):
        make()


class Encoder:
    """Length and number of a's; in any container."""

    def __init__(self, wrap=np.array):
        self.wrap, self.calls = wrap, []

    def encode(self, texts, **options):
        assert isinstance(texts, list) and all(type(each) is str for each in texts)
        self.calls.append((len(texts), options))
        return self.wrap([[len(each), each.count("a")] for each in texts])


@pytest.mark.parametrize("wrap", [np.array, torch.tensor, list, lambda found: [torch.tensor(each) for each in found]])
def test_encoders(wrap):
    import pyarrow as pa

    texts, expected = ["banana", "", "Ätna"], [[6, 3], [0, 0], [4, 1]]
    for X in (texts, np.array(texts), np.array(texts, dtype=object)[:, None], pa.array(texts), pa.chunked_array([texts])):
        found = SentenceEmbedder(Encoder(wrap)).transform(X)
        assert found.dtype == np.float32 and found.tolist() == expected


def test_batches_and_options_reach_the_encoder():
    encoder = Encoder()
    embedder = SentenceEmbedder(encoder, batch_size=2, options={"prompt": "query"})
    assert clone(embedder) is embedder
    assert embedder(["a", "b", "c"]).tolist() == [[1, 1], [1, 0], [1, 0]]
    assert encoder.calls == [(2, {"prompt": "query"}), (1, {"prompt": "query"})]


@pytest.mark.parametrize(
    ("encoder", "X", "words"),
    [
        (object(), ["a"], "encode"),
        (Encoder(), ["a", None], "got NoneType in row 1"),
        (Encoder(), [], "n >= 1"),
        (Encoder(), [["a", "b"]], "one column"),
        (Encoder(lambda rows: rows[:1]), ["a", "b"], "2 texts"),
        (Encoder(lambda rows: [[1.0], [1.0, 2.0]]), ["a", "b"], "one width, got 1 and 2"),
        (Encoder(lambda rows: [[np.nan]] * len(rows)), ["a", "b"], "in 2 rows"),
    ],
)
def test_bad_texts_and_encoders(encoder, X, words):
    with pytest.raises(InvalidInput, match=words):
        SentenceEmbedder(encoder).transform(X)


def test_encoders_whose_width_changes_between_batches():
    class Grows(Encoder):
        def encode(self, texts):
            self.calls.append(0)
            return np.ones((len(texts), len(self.calls)))

    with pytest.raises(InvalidInput, match="one width, got 1 and 2"):
        SentenceEmbedder(Grows(), batch_size=1).transform(["a", "b"])
