# SPDX-License-Identifier: Apache-2.0
"""NoiseCluster: clusters of public features, each labelled by one private vote. For budgets at which a single row's label says nothing."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from labeldp import _validate
from labeldp.aggregates import Vote
from labeldp.learn.cluster_asking import ClusterAsking
from labeldp.learn.model import Floats, Model, fit_codes


class NoiseCluster(ClusterAsking):
    """Cluster public features, ask every cluster for its most frequent label once, and predict that.

    Parameters
    ----------
    estimator : classifier or pipeline, optional
        None: a row is predicted as its nearest centre's cluster. Else it is cloned and trained on the training rows with their clusters'
        labels, at no cost: it smooths over borders between clusters, and over votes that went wrong.
    epsilon : float
        Total label-DP budget of a fit, for one unit (a row, or a person with `fit(unit=...)`): all votes together.
    n_clusters : int, optional
        None: as many as the budget can tell the labels of (`labeldp.learn.clusters.clusters_for`).
    embedder : None, "pca", "standard", transformer, or function of X, optional
        What the rows are clustered by; see `labeldp.learn.clusters.find_clusters`. Good features are worth more than anything else here.
    mechanism : {"auto", "permute-and-flip", "exponential", "gaussian"}
        Of the votes; "auto" is pure unless delta is above 0.
    delta : float
    algorithm : {"auto", "k-means", "mini-batch", "faiss"}
    classes : sequence of K values, or "infer"
        The public list of classes; raw labels need one. "infer" reads it off them, which tells everybody which classes occur: it warns,
        `privacy_.except_for` says so, and floats, or more than sqrt(n) different values, are refused.
    dataset, column : str
        What a durable ledger charges.
    max_rows_per_unit : int
        Rows of one unit that are counted, where `fit` gets `unit`.
    ledger : Ledger, or its path, optional
        Durable record of the spend. A fit that is repeated on the same rows then gets the stored votes at no further cost.
    noise : SeededNoise, optional
        For tests and benchmarks on public data only.
    random_state : int
        Of the clustering; fixed, so that a repeat is recognised. Never drives the noise.

    Attributes
    ----------
    classes_ : (K,) array
    clusters_ : Clusters
    aggregate_ : Aggregate
        The votes, with the number of rows of each cluster.
    cluster_classes_ : (n_clusters,) array
        The class value that each cluster's vote gave.
    failure_ : (n_clusters,) float64
        Chance that noise overruled a cluster's most frequent label, supposing that it led by half of the cluster's rows: from the public
        sizes alone. 1 - 1/K for an empty cluster. `failure(lead)` supposes another lead.
    estimator_ : fitted estimator (of class codes), or None
    privacy_ : PrivacySpent
    n_features_in_, feature_names_in_

    Notes
    -----
    Guarantee: epsilon-label-DP of everything the fit leaves behind; a trusted curator counts raw labels. A row is in one cluster, so all
    votes cost what one does. Cost: k-means, one pass over the labels, and the estimator's own fit. Source: Tang et al. 2022, Algorithm 2,
    with votes by permute-and-flip (McKenna and Sheldon 2020).

    Examples
    --------
    >>> import labeldp as ldp
    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(3000, centers=3, random_state=0, cluster_std=0.5)
    >>> model = NoiseCluster(epsilon=0.02, n_clusters=3, classes=[0, 1, 2], noise=ldp.SeededNoise(0)).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    def _query(self, n_classes: int, n_clusters: int) -> Vote:
        return Vote(n_classes, self.epsilon, n_clusters, self.mechanism, self.delta)

    def _learn(self, X: Any, groups: NDArray[np.int64]) -> None:
        answer = self.aggregate_
        self.cluster_classes_ = answer.labels()
        self.failure_ = self.failure()
        self.estimator_ = None
        if self.estimator is not None:
            self._model = Model(fit_codes(self.estimator, X, np.arange(len(groups)), answer.codes()[groups]), len(answer.classes))
            self.estimator_ = self._model.estimator

    def failure(self, lead: float = 0.5) -> Floats:
        """Chance that noise overruled the most frequent label of each cluster, for a supposed lead: (n_clusters,) float64.

        Parameters
        ----------
        lead : float in (0, 1]
            By how large a share of the cluster's rows its most frequent label leads over each other one. The true leads are private.
        """
        check_is_fitted(self, "aggregate_")
        share = _validate.fraction(lead=lead, one=True)
        sizes, place = np.unique(self.aggregate_.n_rows, return_inverse=True)
        query = self.aggregate_.query
        assert isinstance(query, Vote)
        gaps = np.repeat(np.floor(share * sizes).astype(np.int64)[:, None], query.n_classes - 1, axis=1)
        found = np.where(sizes > 0, query.failure(gaps, self.max_rows_per_unit), 1 - 1 / query.n_classes)
        return np.asarray(found[place.reshape(-1)])

    # Predicting -------------------------------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> Floats:
        """Probabilities of the classes: (n, K) float64, columns in the order of `classes_`.

        Parameters
        ----------
        X : (n, ...) features, as in the fit

        Returns
        -------
        Those of the estimator; without one, 1 - `failure_` for the class of the row's cluster, and the rest shared by the others.
        """
        check_is_fitted(self, "aggregate_")
        checked = self._checked(X, None, reset=False)
        if self.estimator_ is not None:
            return self._model.predict_proba(checked)
        groups = self.clusters_.assign(checked)
        k = len(self.classes_)
        doubt = np.minimum(self.failure_, 1 - 1 / k - 2.0**-20)[groups]  # the vote stays the likeliest class
        table = np.repeat((doubt / (k - 1))[:, None], k, axis=1)
        table[np.arange(len(groups)), self.aggregate_.codes()[groups]] = 1 - doubt
        return table

    def predict(self, X: Any) -> NDArray[np.generic]:
        """The class of each row: (n,) class values.

        Parameters
        ----------
        X : (n, ...) features, as in the fit
        """
        check_is_fitted(self, "aggregate_")
        if self.estimator_ is not None:
            return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])
        return np.asarray(self.aggregate_.predict(self.clusters_.assign(self._checked(X, None, reset=False))))
