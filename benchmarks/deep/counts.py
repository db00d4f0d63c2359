# SPDX-License-Identifier: Apache-2.0
"""A net taught by private counts: all of epsilon goes into label counts of clusters of the images, and no label of a single row is drawn.

1. Gradient histograms of the images, 200 principal components of them, and clusters of those. No label is looked at.
2. `ProportionClassifier` asks how many rows of each cluster have each label, and fits a linear model to the noisy counts.
3. The net learns the linear model's probabilities of the training rows, as first predictions of `Consistency`, by cross-entropy.
4. Each later stage moves the net's probabilities, cluster by cluster, towards the noisy counts, and the net learns these.

Steps 3 and 4 are post-processing. How the budget is divided (all of it to counts, instead of half of it, or of the rows, to single labels)
and how the net is taught were chosen on true labels of the 10,000 images of KMNIST's test part, 8,000 of them to learn from, at epsilon 1;
so a run on KMNIST would be no fair one. The trials are in results/deep_counts_trials.jsonl, as they were printed. Gradient histograms and
the rule for the number of clusters were once chosen on true labels of 10,000 rows each of MNIST and Fashion-MNIST (see
`benchmarks.small_epsilon.command`).
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from sklearn.decomposition import PCA
from torch import nn

import labeldp as ldp
from benchmarks.common import Array
from benchmarks.deep.data import Data
from benchmarks.deep.nets import build
from benchmarks.deep.recipes import Method, Training
from benchmarks.deep.train import Fitted, probabilities
from benchmarks.pretrained import choosing
from benchmarks.small_epsilon.methods import oriented
from labeldp.aggregates import Histogram
from labeldp.deep import Consistency, Dense
from labeldp.deep._loop import train
from labeldp.learn import ProportionClassifier

COMPONENTS = 200
SHARING = Consistency(strong=None, temperature=1.0, memory=0.97)
_LEAST = 0.02  # of a cluster's expected count that remains where the noisy one is lower


def fit(data: Data, method: Method, epsilon: float, seed: int, *, device: str = "cpu", progress: Callable[[str], object] = str) -> Fitted:
    """Count, fit the linear model, and teach the net stage by stage."""
    Z = embedded(data)
    linear = ProportionClassifier(choosing(), epsilon=epsilon, classes=range(data.n_classes), noise=ldp.SeededNoise(seed))
    proba = linear.fit(Z, data.y).predict_proba(Z)
    groups, asked = linear.clusters_.assign(Z), linear.aggregate_
    assert isinstance(asked.query, Histogram)
    counts, variance = asked.values.astype(np.float64), asked.query.standard_deviation() ** 2
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    found = Fitted(build(method.net, data))
    for number, training in enumerate(method.stages):
        if number:
            proba = towards(probabilities(found.net, data.X), groups, counts, variance)
        found.stages.append({"law": "histogram", "counted": len(data.y), "clusters": len(counts)})
        found.net = _taught(found, data, training, proba, generator, device, progress)
    return found


def embedded(data: Data) -> Array:
    """Components of the images' gradient histograms, whose mean square is 1: (n, 200)."""
    pixels = data.X.permute(0, 2, 3, 1).reshape(len(data.X), -1).numpy().astype(np.float32) / 255
    F = oriented(pixels)
    pca = PCA(min(COMPONENTS, len(F)), svd_solver="covariance_eigh").fit(F)
    return np.asarray(pca.transform(F) / np.sqrt(pca.explained_variance_.mean()))


def towards(proba: Array, groups: Array, counts: Array, variance: float) -> Array:
    """Probabilities (n, K) whose sums in each group are moved from what they are towards the noisy counts.

    Sums and counts are weighed by their variances: that of labels drawn by the probabilities, and that of the noise.
    """
    expected, spread = np.zeros_like(counts), np.zeros_like(counts)
    np.add.at(expected, groups, proba)
    np.add.at(spread, groups, proba * (1 - proba))
    wanted = np.maximum(expected + spread / (spread + variance) * (counts - expected), _LEAST * expected + 1e-6)
    moved = proba * (wanted / np.maximum(expected, 1e-9))[groups]
    return np.asarray(moved / moved.sum(axis=1, keepdims=True))


def _taught(
    found: Fitted,
    data: Data,
    training: Training,
    proba: Array,
    generator: torch.Generator,
    device: str,
    progress: Callable[[str], object],
) -> nn.Module:
    """The net after a stage of these targets. Single rows have no evidence: all classes are as likely."""
    nothing = Dense(torch.zeros(len(data.y), data.n_classes))
    stage = len(found.stages)

    def tell(epoch: ldp.deep.Epoch) -> None:
        found.epochs.append({"stage": stage, "epoch": epoch.number, "loss": round(epoch.loss, 5)})
        progress(f"stage {stage}, epoch {epoch.number}: loss {epoch.loss:.4f}")

    recipe = replace(training.recipe(), consistency=SHARING)
    net = found.net.requires_grad_(True)
    return train(net, data.X, nothing, recipe, generator=generator, device=device, progress=tell, first=proba)
