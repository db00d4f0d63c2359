# SPDX-License-Identifier: Apache-2.0
"""Learning without labels: losses to the digit, features that are better than pixels, clusters that
are found, and seeds that decide."""

import copy
import inspect
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from benchmarks.deep.views import colour_jitter
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from torch import nn

from labeldp import InvalidInput
from labeldp.deep import Optimizer, Recipe, augment, predict
from labeldp.papers import tang2022 as ssl
from labeldp.papers._ssl import byol_loss, nt_xent, scan_loss, self_label_loss
from labeldp.papers.tang2022 import Embedder

QUICK = Recipe(epochs=2, batch_size=64, rate=0.05, optimizer="sgd")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def value(loss):
    return loss.detach().item()


def purity(clusters, labels):
    counts = np.zeros((clusters.max() + 1, labels.max() + 1))
    np.add.at(counts, (clusters, labels), 1)
    return counts.max(1).sum() / len(labels)


def k_means_purity(features, labels, n_clusters=10):
    return purity(KMeans(n_clusters, n_init=3, random_state=0).fit_predict(features), labels)


def net(seed=0, width=24):
    torch.manual_seed(seed)
    layers = [
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, width, 3, padding=1),
        nn.BatchNorm2d(width),
    ]
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten())


def jitter_rows(x, draw):
    """A view of rows of numbers."""
    return x + 0.3 * torch.randn(x.shape, generator=draw).to(x)


def blobs(n=400, seed=0):
    draw = np.random.default_rng(seed)
    labels = np.arange(n) % 4
    return (4 * np.eye(4, 6)[labels] + draw.normal(size=(n, 6))).astype(np.float32), labels


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))


# Losses
# --------------------------------------------------------------------------------------------------


def rows(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed), requires_grad=True)


def test_nt_xent_is_the_equation():
    z, tau = rows(6, 4), 0.3
    unit = z.detach().numpy() / np.linalg.norm(z.detach().numpy(), axis=1, keepdims=True)
    expected = 0.0
    for i in range(6):
        others = [math.exp(unit[i] @ unit[k] / tau) for k in range(6) if k != i]
        expected -= math.log(math.exp(unit[i] @ unit[(i + 3) % 6] / tau) / sum(others)) / 6
    assert value(nt_xent(z, tau)) == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(partial(nt_xent, temperature=tau), (z,))
    torch.testing.assert_close(nt_xent(5 * z, tau), nt_xent(z, tau))  # lengths do not count


def test_byol_loss_is_the_equation_and_targets_get_no_gradient():
    p, z = rows(4, 3), rows(4, 3, seed=1)
    cosine = [
        value(p[i] @ z[j] / p[i].norm() / z[j].norm())
        for i, j in ((0, 2), (1, 3), (2, 0), (3, 1))  # each the other view of its image
    ]
    assert value(byol_loss(p, z)) == pytest.approx(2 - 2 * np.mean(cosine), rel=1e-12)
    byol_loss(p, z).backward()
    assert z.grad is None and p.grad.abs().sum() > 0
    assert torch.autograd.gradcheck(lambda p: byol_loss(p, z), (rows(4, 3),))
    assert value(byol_loss(p, p.roll(2, 0))) == pytest.approx(0, abs=1e-12)
    assert value(byol_loss(p, -p.roll(2, 0))) == pytest.approx(4)


def test_scan_loss_is_the_equation():
    logits = rows(6, 3)
    p = torch.softmax(logits, 1).detach().numpy()
    together, mean = (p[:3] * p[3:]).sum(1), p[:3].mean(0)
    expected = -np.log(together).mean() + 2.0 * (mean * np.log(mean)).sum()
    assert value(scan_loss(logits, 2.0)) == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(partial(scan_loss, entropy_weight=2.0), (logits,))
    assert torch.isfinite(
        scan_loss(torch.tensor([[500.0, 0.0], [0.0, 500.0], [500.0, 0.0], [0.0, 500.0]]))
    )


def test_self_labels_count_where_they_are_sure_and_clusters_weigh_the_same():
    sure, unsure = 9.0, 0.1
    rows_ = [[sure, 0, 0], [sure, 0, 0], [0, sure, 0], [0, unsure, 0]]
    views = rows(4, 3)
    logits = torch.cat((torch.tensor(rows_, dtype=torch.float64), views))
    cost = -torch.log_softmax(views, 1).detach()
    expected = ((cost[0, 0] + cost[1, 0]) / 2 + cost[2, 1]) / 2
    assert value(self_label_loss(logits)) == pytest.approx(float(expected), rel=1e-12)
    self_label_loss(logits).backward()
    assert views.grad[3].abs().sum() == 0
    none = torch.zeros(4, 3, requires_grad=True)
    self_label_loss(none).backward()
    assert value(self_label_loss(none)) == 0 and none.grad.abs().sum() == 0


@pytest.mark.parametrize("loss", [nt_xent, scan_loss, self_label_loss, lambda z: byol_loss(z, z)])
def test_losses_refuse_what_has_no_two_halves(loss):
    for bad in (
        torch.zeros(3, 2),
        torch.zeros(0, 2),
        torch.zeros(4),
        torch.zeros(4, 2, dtype=torch.int64),
        "views",
    ):
        with pytest.raises(InvalidInput, match="both halves"):
            loss(bad)


# What is learned
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def moved_digits():
    """Digits, each somewhere on a larger canvas: pixels say little of which digit it is."""
    X, y = load_digits(return_X_y=True)
    images = torch.nn.functional.pad(
        torch.from_numpy(X.reshape(-1, 1, 8, 8) / 16).float(), (2, 2, 2, 2)
    )
    return augment.shift(images, generator(5), pixels=2)[:500], y[:500]


def moved(x, draw):
    return colour_jitter(augment.shift(x, draw, pixels=2), draw)


LEARN = Recipe(
    epochs=10,
    batch_size=64,
    schedule=ssl.SIMCLR.schedule,
    optimizer=Optimizer("sgd", clip=math.inf),
)
METHODS = {
    "simclr": (partial(ssl.simclr, temperature=0.2), 0.1),
    "byol": (partial(ssl.byol, decay=0.9), 0.3),
}


@pytest.mark.parametrize("name", METHODS)
def test_features_are_better_than_pixels_and_than_those_of_the_untrained_net(name, moved_digits):
    X, y = moved_digits
    losses, module = [], net()
    before = k_means_purity(Embedder(copy.deepcopy(module).eval())(X), y)
    method, rate = METHODS[name]
    recipe = replace(LEARN, rate=rate, augment=moved)
    trained = method(
        module, X, recipe, generator=generator(), progress=lambda epoch: losses.append(epoch.loss)
    )
    after, pixels = k_means_purity(Embedder(trained)(X), y), k_means_purity(X.flatten(1).numpy(), y)
    print(name, round(pixels, 3), round(before, 3), round(after, 3), losses[0], losses[-1])
    assert trained is module and not trained.training
    assert losses[-1] < losses[0]
    assert after > pixels + 0.05 and after > before


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_scan_finds_clusters_and_gives_their_probabilities(precision):
    X, y = blobs()
    recipe = Recipe(
        epochs=20,
        batch_size=100,
        rate=0.05,
        augment=jitter_rows,
        precision=precision,
        optimizer="sgd",
    )
    found = ssl.scan(
        mlp(),
        X,
        4,
        ssl.ScanSettings(recipe, 10, self_label=replace(recipe, epochs=3)),
        generator=generator(),
    )
    p = predict(found, X, precision=precision)
    assert p.shape == (400, 4) and not found.training
    torch.testing.assert_close(p.sum(1), torch.ones(400))
    assert purity(p.argmax(1).numpy(), y) > 0.97
    assert len(np.unique(p.argmax(1))) == 4
    # as an embedder, its clusters are those of k-means
    assert k_means_purity(Embedder(found, precision=precision)(X), y, 4) > 0.97


# What is given to the net
# --------------------------------------------------------------------------------------------------


class Watches(nn.Module):
    """Keeps the batches that it was trained on."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(12, 5), []

    def forward(self, x):
        if self.training:
            self.seen.append(x.detach().clone())
        return self.layer(x.flatten(1)[:, :12])


def test_two_views_of_each_image_are_trained_on_and_they_differ():
    X = torch.rand(20, 1, 6, 6)
    for method in (ssl.simclr, ssl.byol):
        module = Watches()
        method(module, X, replace(QUICK, epochs=1, batch_size=20), generator=generator())
        (batch,) = module.seen
        assert batch.shape == (40, 1, 6, 6) and batch.min() >= 0 and batch.max() <= 1
        assert ((batch[:20] - batch[20:]).abs().amax((1, 2, 3)) > 1e-3).all()
    module = Watches()
    ssl.simclr(
        module, X, replace(QUICK, epochs=1, augment=lambda x, draw: x), generator=generator()
    )
    (batch,) = module.seen
    assert torch.equal(batch[:20], batch[20:])
    assert {tuple(each.flatten().tolist()) for each in batch} == {
        tuple(each.flatten().tolist()) for each in X
    }


@pytest.mark.parametrize("name", ["simclr", "byol", "scan"])
def test_seeds_decide_and_the_global_generator_is_left_alone(name):
    X, _ = blobs(60)
    recipe = replace(QUICK, augment=jitter_rows)
    made = []
    for seed in (1, 1, 2):
        module = mlp()
        state = torch.get_rng_state()
        settings = ssl.ScanSettings(recipe, n_neighbours=5, self_label=recipe)
        run = (
            partial(ssl.scan, n_clusters=3, settings=settings)
            if name == "scan"
            else partial(getattr(ssl, name), recipe=recipe)
        )
        made.append(predict(run(module, X, generator=generator(seed)), X))
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


def test_no_argument_could_take_labels():
    for method in (ssl.simclr, ssl.byol, ssl.scan):
        names = set(inspect.signature(method).parameters)
        assert not names & {"y", "labels", "noisy", "evidence", "held_out", "target"}


X = torch.rand(8, 1, 4, 4)
FLAT = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
BAD = {
    "one image": (lambda: ssl.simclr(FLAT, X[:1], QUICK, generator=generator()), "at least two"),
    "no weights": (
        lambda: ssl.byol(nn.Flatten(), X, QUICK, generator=generator()),
        "weights to train",
    ),
    "maps": (
        lambda: ssl.simclr(nn.Conv2d(1, 2, 2), X, QUICK, generator=generator()),
        r"got shape \(2, 2, 3, 3\)",
    ),
    "no rule for views": (
        lambda: ssl.simclr(mlp(), blobs(8)[0], QUICK, generator=generator()),
        r"augment=",
    ),
    "mixup": (
        lambda: ssl.simclr(FLAT, X, replace(QUICK, alpha=1.0), generator=generator()),
        "without mixup",
    ),
    "loss": (
        lambda: ssl.simclr(FLAT, X, replace(QUICK, loss=nt_xent), generator=generator()),
        "without a loss",
    ),
    "temperature": (
        lambda: ssl.simclr(FLAT, X, QUICK, generator=generator(), temperature=0.0),
        "0 < temperature",
    ),
    "decay": (lambda: ssl.byol(FLAT, X, QUICK, generator=generator(), decay=1.0), "decay"),
    "one cluster": (
        lambda: ssl.scan(FLAT, X, 1, ssl.ScanSettings(QUICK), generator=generator()),
        "n_clusters >= 2",
    ),
    "too many clusters": (
        lambda: ssl.scan(FLAT, X, 9, ssl.ScanSettings(QUICK), generator=generator()),
        "<= 8",
    ),
    "too many neighbours": (
        lambda: ssl.scan(FLAT, X, 2, ssl.ScanSettings(QUICK, 8), generator=generator()),
        "n_neighbours",
    ),
    "integers": (
        lambda: ssl.simclr(FLAT, (255 * X).long(), QUICK, generator=generator()),
        r"bytes \(uint8\).*got torch.int64",
    ),
    "bytes as floats": (
        lambda: ssl.byol(FLAT, 255 * X, QUICK, generator=generator()),
        "images of 0..1",
    ),
    "a seed": (lambda: ssl.simclr(FLAT, X, QUICK, generator=0), "torch.Generator, got int"),
    "a seed for clusters": (
        lambda: ssl.scan(FLAT, X, 2, ssl.ScanSettings(QUICK), generator=0),
        "torch.Generator, got int",
    ),
    "NaN": (lambda: ssl.simclr(FLAT, X * math.nan, QUICK, generator=generator()), "images of 0..1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    make, words = BAD[name]
    with pytest.raises(InvalidInput, match=words):
        make()
