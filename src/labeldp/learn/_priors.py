# SPDX-License-Identifier: Apache-2.0
"""ClusterPrior: what the labels of a row's cluster are like, asked privately, as the prior that the row is drawn with."""

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from labeldp import _validate
from labeldp.aggregates import Histogram
from labeldp.laws import ClusterRR, Law
from labeldp.laws.cluster_budget import split_budget
from labeldp.learn._clusters import clustering_request, clusters_for, find_clusters
from labeldp.protocol._groups import GroupPlan, left_of


class ClusterPrior(BaseEstimator):
    """A prior for `LabelDPClassifier` and `TorchClassifier`: the noisy label histogram of a row's cluster of public features.

    Parameters
    ----------
    embedder : "pca", "standard", transformer, or function of X, default=None
        What the rows are clustered by; see `labeldp.learn._clusters.find_clusters`. It must not have been made with these labels.
    n_clusters : int in 1..n, default=None
        None: as many as the budget can tell the labels of (`labeldp.learn._clusters.clusters_for`).
    epsilon : float > 0, default=None
        What the histogram costs, of the fit's total; it must be less than that. None: a share by rule, 1 / (1 + total): clusters are
        worth most where rows alone say little. With law="cluster-rr", what `labeldp.laws.cluster_budget.split_budget` finds best.
    delta : float in [0, 1), default=0.0
        0: discrete Laplace noise, pure. Above 0: discrete Gaussian noise.
    algorithm : {"auto", "k-means", "mini-batch", "faiss"}, default="auto"
    random_state : int >= 0, default=0
        Of the clustering; fixed, so that a repeat of a fit is recognised.

    Notes
    -----
    Guarantee: the histogram is `epsilon`-label-DP for each unit, one charge in the ledger, data set and column of the fit. The rows' draws
    are charged what is left, on the same labels: the two add to the fit's epsilon. Rows that the fit holds out are not asked, so that they
    measure a model that knows nothing of them. A repeat is known by the features and the settings (by what a function embeds, where that is
    the embedder; by the clusters' sizes too, where these divide the budget) and gets the groups and centres that were kept with the
    answer, whatever number of threads would find others. Rules use n, K and epsilon alone. Source: Algorithm 4 of Ghazi et al. 2021, with
    one draw of noise a bin, and noisy counts projected to the cluster's public size instead of clamped.

    Examples
    --------
    >>> import labeldp as ldp
    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(2000, centers=3, random_state=0, cluster_std=0.5)
    >>> prior = ClusterPrior(n_clusters=6, epsilon=0.2)
    >>> model = ldp.LabelDPClassifier(epsilon=0.5, prior=prior, classes=[0, 1, 2], noise=ldp.SeededNoise(0))
    >>> bool(model.fit(X, y).score(X, y) > 0.9)
    True
    """

    def __init__(
        self,
        embedder: Any = None,
        n_clusters: int | None = None,
        epsilon: float | None = None,
        *,
        delta: float = 0.0,
        algorithm: str = "auto",
        random_state: int = 0,
    ) -> None:
        self.embedder = embedder
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.algorithm = algorithm
        self.random_state = random_state

    def plan_groups(self, X: Any, *, n_rows: int, n_classes: int, epsilon: float, max_rows_per_unit: int, law: str | Law) -> GroupPlan:
        """Cluster the rows of X and divide the budget; nothing is charged, and everything that is wrong is refused here.

        Parameters
        ----------
        X : (n, ...) features
        n_rows, n_classes, max_rows_per_unit : int
        epsilon : float
            For the histogram and the law together.
        law : str or Law
        """
        share = _share(epsilon) if self.epsilon is None else _validate.epsilon(self.epsilon)
        rest = left_of(epsilon, share, "the prior (its own epsilon)")
        count = clusters_for(n_rows, n_classes, share / max_rows_per_unit) if self.n_clusters is None else self.n_clusters
        query = self._query(n_classes, share, _validate.integer(n_clusters=count, low=1))
        settings: dict[str, Any] = {"algorithm": self.algorithm, "random_state": self.random_state}
        clusters = find_clusters(X, count, embedder=self.embedder, **settings)
        request = clustering_request(X, clusters, self.embedder, settings | {"n_clusters": count})
        plan = GroupPlan(clusters.assign(X), query, rest, None, clusters, request)
        if law == ClusterRR.name and self.epsilon is None and self.delta == 0 and max_rows_per_unit == 1:
            return self._divided(plan, epsilon, n_classes)
        return plan

    def _query(self, n_classes: int, epsilon: float, n_clusters: int) -> Histogram:
        mechanism = "gaussian" if self.delta else "laplace"
        return Histogram(n_classes, epsilon, n_clusters, mechanism, self.delta)

    def _divided(self, plan: GroupPlan, epsilon: float, n_classes: int) -> GroupPlan:
        """The division between histogram and ClusterRR that the clusters' sizes, which are public, make best."""
        budget = split_budget(epsilon, np.bincount(plan.groups, minlength=plan.query.n_groups), n_classes).budget
        if not budget.histogram_epsilon:
            return plan
        share = float(f"{budget.histogram_epsilon:.3g}")
        rest = left_of(epsilon, share)
        return replace(plan, query=replace(plan.query, epsilon=share), epsilon=rest, law=ClusterRR(n_classes, rest, budget.floor))


def _share(epsilon: float) -> float:
    """The histogram's part of a budget, to three digits."""
    return float(f"{epsilon / (1 + epsilon):.3g}")
