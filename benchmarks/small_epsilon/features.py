# SPDX-License-Identifier: Apache-2.0
"""Features that a small net learns from the training images alone: SimCLR, and SCAN's ten clusters
on top. Needs torch, no label is read.

A training is kept in a cache by its data and recipe, so that the cells of all methods, seeds and
epsilons share it. Nothing of the recipes was chosen by looking at labels. Known of the data:
clothes may be mirrored, digits may not; a fifth of a digit, SimCLR's least crop, need not show
which it is. The net is small and the epochs are few, to be done in about ten minutes on one core.
Rates are those with the lowest loss, of SimCLR or SCAN, after a short training on the first MNIST
images.
"""

import fcntl
import hashlib
import json
import math
import os
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import ROOT, Array

CACHE = Path(os.environ.get("SMALL_EPSILON_CACHE", ROOT / "benchmarks" / ".cache"))
KINDS = ("self-supervised", "SCAN")


@dataclass(frozen=True)
class SimCLR:
    """The training of the net; every number is part of the cache's key."""

    widths: tuple[int, ...] = (16, 32, 64, 128)
    kernels: tuple[int, ...] = (5, 3, 3, 3)
    strides: tuple[int, ...] = (2, 2, 1, 2)
    epochs: int = 10
    batch: int = 256
    rate: float = 0.025
    temperature: float = 0.1
    least_crop: float = 0.5
    jitter: float = 0.4
    flip: bool = False
    seed: int = 0


@dataclass(frozen=True)
class SCAN:
    """The training of ten clusters on its features."""

    net: SimCLR
    clusters: int = 10
    neighbours: int = 20
    epochs: int = 6
    rate: float = 0.1
    self_label_epochs: int = 2
    self_label_rate: float = 0.01
    batch: int = 500
    seed: int = 0


RECIPES = {"mnist": SimCLR(), "fashion_mnist": SimCLR(flip=True)}


def recipe_of(name: str, kind: str) -> SimCLR | SCAN:
    """Return the recipe for learning features of a kind from the images of a data set."""
    return RECIPES[name] if kind == "self-supervised" else SCAN(RECIPES[name])


def learned(
    name: str, kind: str, X: Array, X_test: Array, recipe: SimCLR | SCAN | None = None
) -> tuple[Array, Array, dict[str, Any]]:
    """(train, test, facts): features of flat images in [0, 1], and what is kept with a cell.

    "self-supervised": rows of length 1. "SCAN": the cluster of each image, one-hot.
    """
    recipe = recipe_of(name, kind) if recipe is None else recipe
    path = _trained(name, kind, recipe, X, X_test)
    with np.load(path) as kept:
        facts = json.loads(str(kept["facts"])) | {"kind": kind, "recipe": asdict(recipe)}
        return kept["train"], kept["test"], facts


def _trained(name: str, kind: str, recipe: SimCLR | SCAN, X: Array, X_test: Array) -> Path:
    """The file of the features, the net's weights beside it; one process trains, others that want
    the same wait for it."""
    path = CACHE / f"{name}-{kind}-{_digest(recipe, X, X_test)}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _keep(path, name, recipe, X, X_test)
    return path


def _keep(path: Path, name: str, recipe: SimCLR | SCAN, X: Array, X_test: Array) -> None:
    """Train, and write the weights and the features; SCAN starts from the net of SimCLR."""
    import torch

    torch.set_num_threads(1)
    if isinstance(recipe, SCAN):
        below = _trained(name, "self-supervised", recipe.net, X, X_test)
    start, busy = time.perf_counter(), time.process_time()
    net, losses = _scan(recipe, below, X) if isinstance(recipe, SCAN) else _simclr(recipe, X)
    facts = {
        "training_seconds": round(time.perf_counter() - start, 1),
        "core_seconds": round(time.process_time() - busy, 1),
    }
    train, test = (_seen_by(net, part) for part in (X, X_test))
    if isinstance(recipe, SCAN):
        train, test = (
            np.eye(recipe.clusters, dtype=np.float32)[part.argmax(axis=1)] for part in (train, test)
        )
    torch.save(net.state_dict(), path.with_suffix(".pt"))
    part = path.with_suffix(".part.npz")
    np.savez(
        part,
        train=train,
        test=test,
        facts=json.dumps(facts | {"losses": losses, "torch": torch.__version__}),
    )
    part.replace(path)  # last: what has its name is whole


def _seen_by(net: Any, X: Array) -> Array:
    from labeldp.papers.tang2022 import Embedder

    found = Embedder(net).transform(_images(X))
    return np.asarray(found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12))


def _simclr(recipe: SimCLR, X: Array) -> tuple[Any, list[float]]:
    import torch

    from labeldp.deep import Optimizer, Recipe
    from labeldp.deep.schedules import cosine
    from labeldp.papers import tang2022 as ssl

    losses: list[float] = []
    torch.manual_seed(recipe.seed)
    how = Recipe(
        epochs=recipe.epochs,
        batch_size=recipe.batch,
        rate=recipe.rate,
        schedule=partial(cosine, ramp=0.05),
        augment=_view(recipe),
        optimizer=Optimizer("sgd", weight_decay=1e-4, clip=math.inf),
    )
    more: dict[str, Any] = {
        "generator": torch.Generator().manual_seed(recipe.seed),
        "progress": lambda epoch: losses.append(round(epoch.loss, 4)),
    }
    return ssl.simclr(_net(recipe), _images(X), how, temperature=recipe.temperature, **more), losses


def _scan(recipe: SCAN, below: Path, X: Array) -> tuple[Any, list[float]]:
    import torch

    from labeldp.deep import Optimizer, Recipe
    from labeldp.deep.schedules import cosine
    from labeldp.papers import tang2022 as ssl

    losses: list[float] = []
    net = _net(recipe.net)
    net.load_state_dict(torch.load(below.with_suffix(".pt"), weights_only=True))
    shared: dict[str, Any] = {
        "batch_size": recipe.batch,
        "augment": _view(recipe.net),
        "schedule": cosine,
        "optimizer": Optimizer("sgd", weight_decay=1e-4, clip=5.0),
    }
    first = Recipe(epochs=recipe.epochs, rate=recipe.rate, **shared)
    last = Recipe(epochs=recipe.self_label_epochs, rate=recipe.self_label_rate, **shared)
    more: dict[str, Any] = {
        "generator": torch.Generator().manual_seed(recipe.seed),
        "progress": lambda epoch: losses.append(round(epoch.loss, 4)),
    }
    settings = ssl.ScanSettings(first, n_neighbours=recipe.neighbours, self_label=last)
    return ssl.scan(net, _images(X), recipe.clusters, settings, **more), losses


def _net(recipe: SimCLR) -> Any:
    """Strided convolutions, so that most work is done at 14 x 14 and 7 x 7 pixels, and the mean
    over the image."""
    from torch import nn

    layers: list[Any] = []
    n_in = 1
    for width, kernel, stride in zip(recipe.widths, recipe.kernels, recipe.strides, strict=True):
        layers += [
            nn.Conv2d(n_in, width, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        ]
        n_in = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _view(recipe: SimCLR) -> Any:
    """Crops, brightness and contrast; mirrored images where a mirror image is of the same kind."""
    from benchmarks.deep.views import chain, colour_jitter
    from labeldp.deep.augment import flip, resized_crop

    crop = partial(resized_crop, scale=(recipe.least_crop, 1.0))
    light = partial(colour_jitter, brightness=recipe.jitter, contrast=recipe.jitter)
    return chain(crop, light, *([flip] if recipe.flip else []))


def _images(X: Array) -> Array:
    side = round(X.shape[1] ** 0.5)
    return np.ascontiguousarray(X, np.float32).reshape(len(X), 1, side, side)


def _digest(recipe: SimCLR | SCAN, *arrays: Array) -> str:
    """Digest the recipe and the images."""
    found = hashlib.sha256(
        json.dumps([type(recipe).__name__, asdict(recipe)], sort_keys=True).encode()
    )
    for part in arrays:
        found.update(str(part.shape).encode() + np.ascontiguousarray(part).tobytes())
    return found.hexdigest()[:16]
