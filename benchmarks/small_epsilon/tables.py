# SPDX-License-Identifier: Apache-2.0
"""The smaller tables of `small-epsilon`: figures of the source papers made again, and what the
clusters' number and beta change."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.decomposition import PCA

import labeldp as ldp
from benchmarks.common import Array, Run, parts
from benchmarks.small_epsilon.methods import DP_SGD, DpSgd, embedder_for, facts_of, features
from labeldp.learn import NoiseCluster
from labeldp.learn._clusters import find_clusters
from labeldp.papers.esfandiari2022 import (
    ClusterBudget,
    corollary_1,
    corollary_2,
    smoothed,
    split_budget,
)

PAPER_CLUSTERS = 100
PHI = 0.02  # the paper's least P(label | features), which nobody knows: a public guess
COMPONENTS = 60


@cache
def grouped(name: str, kind: str, n_clusters: int, rows: int | None) -> Array:
    """Groups of the training rows by k-means."""
    X = features(name, kind, rows)[0]
    return find_clusters(X, n_clusters, embedder=embedder_for(name)).assign(X)


@cache
def components(name: str, rows: int | None) -> tuple[Array, Array]:
    """Principal components of the train and test rows, scaled to variance 1."""
    X, X_test = features(name, "plain", rows)
    pca = PCA(min(COMPONENTS, X.shape[1]), random_state=0).fit(X)
    scale = pca.transform(X).std(axis=0)
    return pca.transform(X) / scale, pca.transform(X_test) / scale


def logistic(X: Array, weights: Array, penalty: float = 1e-3) -> Array:
    """Logistic regression on class weights (n, K) that sum to 1 and may be negative: the loss stays
    convex. Coefficients (K, d + 1)."""
    n, k = weights.shape
    Z = np.column_stack([X, np.ones(n)])
    target = weights.T @ Z / n

    def loss(flat: Array) -> tuple[float, Array]:
        W = flat.reshape(k, -1)
        log_p = log_softmax(Z @ W.T, axis=1)
        value = -np.einsum("nk,nk->", weights, log_p) / n + 0.5 * penalty * np.sum(W**2)
        return value, (np.exp(log_p).T @ Z / n - target + penalty * W).ravel()

    found = minimize(
        loss, np.zeros(k * Z.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 150}
    )
    return np.asarray(found.x.reshape(k, -1))


def accuracy(W: Array, X: Array, y: Array) -> float:
    """Compute the accuracy of the linear model with these coefficients."""
    return float(np.mean((np.column_stack([X, np.ones(len(X))]) @ W.T).argmax(axis=1) == y))


# Figure 1 of Esfandiari et al.
# --------------------------------------------------------------------------------------------------

FIGURE = (
    "UniformRR",
    "ClusterRR, as published, not private",
    "ClusterRR, corrected",
    "ClusterRR, divided by us",
)


def budget_of(method: str, epsilon: float, n_classes: int, sizes: Array) -> ClusterBudget:
    """Divide epsilon between the two parts, as a line of the figure does."""
    if method == "UniformRR":
        return corollary_1(n_classes, epsilon)
    if method == "ClusterRR, divided by us":
        return split_budget(epsilon, sizes, n_classes, criterion="agreement").budget
    return corollary_2(n_classes, epsilon if "published" in method else epsilon / 3, PHI)


def figure(run: Run) -> Run:
    """ClusterRR against UniformRR with logistic regression and 100 clusters, at the paper's
    settings and at what they really cost."""
    rows = run.get("rows")
    _, y, _, y_test, dataset = parts(run["data"], rows)
    X, X_test = components(run["data"], rows)
    groups = grouped(run["data"], "plain", PAPER_CLUSTERS, rows)
    budget = budget_of(run["method"], run["epsilon"], dataset.n_classes, np.bincount(groups))
    noisy = draw(y, groups, budget, dataset.n_classes, run["seed"])
    beta = 0.0 if run["beta"] == "0" else None
    block = noisy.blocks[0]
    weights = _law(block).debiasing_weights(block.outputs, block.side, beta)
    return {
        "accuracy": accuracy(logistic(X, weights), X_test, y_test),
        "true_epsilon": budget.epsilon,
        "published_epsilon": budget.published_epsilon,
        "agreement": float(np.mean(noisy.hard() == y)),
    }


def draw(
    y: Array, groups: Array, budget: ClusterBudget, n_classes: int, seed: int
) -> ldp.NoisyLabels:
    """Both parts of the mechanism at this budget."""
    law = ldp.ClusterRR(n_classes, budget.label_epsilon, budget.floor, realised=False)
    prior = None
    if not law.is_uniform:
        query = ldp.aggregates.Histogram(n_classes, budget.histogram_epsilon, int(groups.max()) + 1)
        answer = ldp.aggregate(
            ldp.PrivateLabels(y, classes=range(n_classes), noise=ldp.SeededNoise(seed)),
            query,
            groups,
        )
        sizes = np.maximum(answer.n_rows, 1)[:, None]
        prior = smoothed(answer.values / sizes, budget.floor)[groups]
    return ldp.privatize(
        ldp.PrivateLabels(y, classes=range(n_classes), noise=ldp.SeededNoise(seed)),
        law,
        prior=prior,
    )


def _law(block: Any) -> ldp.ClusterRR:
    assert isinstance(block.law, ldp.ClusterRR)
    return block.law


# Beta against lambda
# --------------------------------------------------------------------------------------------------

SWEEP_FLOOR = 0.05
BETAS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)  # of lambda


def beta_sweep(run: Run) -> Run:
    """Measure another beta than lambda by the estimated mean loss of a fixed model, and by the
    accuracy of a trained one."""
    rows = run.get("rows")
    _, y, _, y_test, dataset = parts(run["data"], rows)
    X, X_test = components(run["data"], rows)
    groups = grouped(run["data"], "plain", PAPER_CLUSTERS, rows)
    budget = ClusterBudget(dataset.n_classes, run["epsilon"] / 2, SWEEP_FLOOR, run["epsilon"] / 2)
    noisy = draw(y, groups, budget, dataset.n_classes, run["seed"])
    block = noisy.blocks[0]
    beta = run["share"] * budget.resample
    weights = _law(block).debiasing_weights(block.outputs, block.side, beta)
    fixed = reference(run["data"], rows)
    losses = -log_softmax(np.column_stack([X, np.ones(len(X))]) @ fixed.T, axis=1)
    true = losses[np.arange(len(y)), y]
    each = (weights * losses).sum(axis=1)
    return {
        "lambda": budget.resample,
        "beta": beta,
        "error_of_mean_loss": float(each.mean() - true.mean()),
        "spread_of_one_loss": float(each.std()),
        "accuracy": accuracy(logistic(X, weights), X_test, y_test),
    }


@cache
def reference(name: str, rows: int | None) -> Array:
    """Train the model whose losses are estimated, on the first thousand labels, which are public
    here."""
    _, y, _, _, dataset = parts(name, rows)
    return logistic(
        components(name, rows)[0][:1000], np.eye(dataset.n_classes)[y[:1000]], penalty=0.1
    )


# Clusters
# --------------------------------------------------------------------------------------------------

NUMBERS = (10, 30, 100, 300, 1000, 2000)


def histogram_error(run: Run) -> Run:
    """Measure the error of noisy cluster histograms, and how often they name a cluster's most
    frequent label."""
    rows = run.get("rows")
    _, y, _, _, dataset = parts(run["data"], rows)
    groups = grouped(run["data"], "gradients", run["clusters"], rows)
    query = ldp.aggregates.Histogram(dataset.n_classes, run["epsilon"], run["clusters"])
    answer = ldp.aggregate(
        ldp.PrivateLabels(y, classes=range(dataset.n_classes), noise=ldp.SeededNoise(run["seed"])),
        query,
        groups,
    )
    counts = np.zeros((run["clusters"], dataset.n_classes))
    np.add.at(counts, (groups, y), 1)
    true = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    clamped = np.maximum(answer.values, 0.0)  # as published; `answer.prior` is nearer
    clamped[clamped.sum(axis=1) == 0] = 1.0
    clamped /= clamped.sum(axis=1, keepdims=True)
    return {
        "purity": float(counts.max(axis=1).sum() / len(y)),
        "accuracy": float(np.mean(answer.predict(groups) == y)),
        "total_variation": float(0.5 * np.abs(clamped[groups] - true[groups]).sum(axis=1).mean()),
    }


def number_of_clusters(run: Run) -> Run:
    """Test accuracy of NoiseCluster by the number of clusters, at epsilon 0.5; and of what has
    none."""
    if run.get("method") == DP_SGD:
        return without_clusters(run)
    rows = run.get("rows")
    X, X_test = features(run["data"], run["features"], rows)
    _, y, _, y_test, dataset = parts(run["data"], rows)
    model = NoiseCluster(
        epsilon=run["epsilon"],
        n_clusters=run["clusters"],
        embedder=embedder_for(run["data"]),
    )
    labels = ldp.PrivateLabels(
        y, classes=range(dataset.n_classes), noise=ldp.SeededNoise(run["seed"])
    )
    return {"accuracy": model.fit(X, labels).score(X_test, y_test)} | facts_of(
        run["data"], run["features"], rows
    )


def without_clusters(run: Run) -> Run:
    """Logistic regression by DP-SGD."""
    import torch

    from benchmarks.deep.dpsgd import BATCH, CLIP, DELTA, RATE

    rows = run.get("rows")
    X, X_test = features(run["data"], run["features"], rows)
    _, y, _, y_test, dataset = parts(run["data"], rows)
    model = DpSgd(dataset.n_classes, run["epsilon"], run["seed"]).fit(X, y)
    settings = {"delta": DELTA, "epochs": model.EPOCHS, "batch": BATCH, "rate": RATE, "clip": CLIP}
    found = float(np.mean(model.predict(X_test) == y_test))
    return {
        "accuracy": found,
        "last_loss": model.losses[-1],
        "settings": settings,
        "torch": torch.__version__,
    }


TABLES: dict[str, Callable[[Run], Run]] = {
    "figure": figure,
    "beta": beta_sweep,
    "histogram": histogram_error,
    "clusters": number_of_clusters,
}


def wanted(table: str, names: Sequence[str], seeds: int) -> list[Run]:
    """The cells of a table."""
    images = [name for name in names if name in ("mnist", "fashion_mnist")]
    spaces: dict[str, list[Run]] = {
        "figure": [
            {"data": name, "method": method, "epsilon": epsilon, "beta": beta}
            for name in [*images, *(["cifar10"] if "cifar10" in names else [])]
            for epsilon in (0.1, 0.5, 1.0, 2.0)
            for method in FIGURE
            for beta in ("0", "lambda")
        ],
        "beta": [
            {"data": name, "epsilon": epsilon, "share": share}
            for name in images
            for epsilon in (0.5, 1.0)
            for share in BETAS
        ],
        "histogram": [
            {"data": name, "clusters": number, "epsilon": epsilon}
            for name in images
            for number in (20, 50, 100, 200, 500, 1000)
            for epsilon in (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
        ],
        "clusters": (
            [
                {"data": name, "features": kind, "clusters": number, "epsilon": 0.5}
                for name in images
                for kind in ("plain", "gradients", "self-supervised")
                for number in NUMBERS
            ]
            + [
                {"data": name, "method": DP_SGD, "features": kind, "epsilon": 0.5}
                for name in images
                for kind in ("plain", "gradients")
            ]
        ),
    }
    return [
        {"table": table} | cell | {"seed": seed} for cell in spaces[table] for seed in range(seeds)
    ]
