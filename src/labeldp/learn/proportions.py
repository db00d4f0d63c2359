# SPDX-License-Identifier: Apache-2.0
"""ProportionClassifier: a model of single rows from private label counts of clusters of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from labeldp.aggregates import Histogram
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.learn.cluster_asking import ClusterAsking
from labeldp.learn.clusters import embedded
from labeldp.learn.labels import len_of
from labeldp.learn.likelihood import fit_last, softmax_of
from labeldp.learn.model import Estimator, Floats, Model
from labeldp.learn.rehearsal import rehearse

_PENALTY = 0.1  # C of the default, for columns of variance 1


class ProportionClassifier(ClusterAsking):
    """Cluster public features, ask every cluster once how many rows have each label, and learn single rows' labels from these counts.

    The counts of a cluster say what its rows' probabilities add up to, so a model is fitted to the likelihood of the noisy counts: learning
    from label proportions. A vote says of a mixed cluster only which class leads; counts also teach what tells its rows apart.

    Parameters
    ----------
    estimator : LogisticRegression, SoftmaxRegression, or pipeline that ends in one, optional
        It is cloned; so is any other whose last step has a method `fit_counts(X, groups, counts, variance=, counted=)` as
        `labeldp.learn.SoftmaxRegression` has it. None: logistic regression on the embedding, whose scale, as for
        the clusters, says what counts.
    epsilon : float
        Total label-DP budget of a fit, for one unit (a row, or a person with `fit(unit=...)`): all counts together.
    n_clusters : int, optional
        None: as many as the budget can tell the labels of (`labeldp.learn.clusters.clusters_for`).
    embedder : None, "pca", "standard", transformer, or function of X, optional
        What the rows are clustered by; see `labeldp.learn.clusters.find_clusters`.
    mechanism : {"auto", "laplace", "gaussian"}
        Of the noise on counts; "auto" is pure unless delta is above 0.
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
        Durable record of the spend. A fit that is repeated on the same rows then gets the stored counts at no further cost, for another
        estimator, too.
    noise : SeededNoise, optional
        For tests and benchmarks on public data only.
    random_state : int
        Of the clustering; fixed, so that a repeat is recognised. Never drives the noise.

    Attributes
    ----------
    classes_ : (K,) array
    clusters_ : Clusters
    aggregate_ : Aggregate
        The noisy counts, with the number of rows of each cluster.
    estimator_ : fitted estimator (of class codes)
    privacy_ : PrivacySpent
    n_features_in_, feature_names_in_

    Notes
    -----
    Guarantee: epsilon-label-DP of everything the fit leaves behind; a trusted curator counts raw labels. A row is in one cluster, so all
    counts cost what two of them do. Cost: k-means, one pass over the labels, and some tens of iterations of O(n K d). Source: learning
    from label proportions (Quadrianto et al. 2009; Yu et al. 2014), with label differential privacy in curated bags (Javanmard et al.
    2024); here the noise is in the likelihood.

    Examples
    --------
    >>> import labeldp as ldp
    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(3000, centers=3, random_state=0, cluster_std=1.0)
    >>> model = ProportionClassifier(epsilon=0.1, classes=[0, 1, 2], noise=ldp.SeededNoise(0)).fit(X, y)
    >>> bool(model.score(X, y) > 0.85)
    True
    """

    def _query(self, n_classes: int, n_clusters: int) -> Histogram:
        mechanism = ("gaussian" if self.delta else "laplace") if self.mechanism == "auto" else self.mechanism
        return Histogram(n_classes, self.epsilon, n_clusters, mechanism, self.delta)

    def _require_estimator(self) -> None:
        super()._require_estimator()
        learner_of_counts(self.estimator)

    def _rehearse(self, X: Any, n_classes: int) -> None:
        def fit(estimator: Estimator, few: Any, noisy: NoisyLabels) -> Model:
            groups = np.arange(len(noisy)) % 4
            counted = np.bincount(groups, minlength=4)
            counts = np.repeat(counted[:, None] / n_classes, n_classes, axis=1)
            told = {"variance": 1.0, "counted": counted}
            learner = learner_of_counts(estimator)
            return Model(fit_last(learner, few, lambda last, F: last.fit_counts(F, groups, counts, **told)), n_classes)

        if self.estimator is not None:
            rehearse(self.estimator, X, n_classes, len_of(X), fit)

    def _learn(self, X: Any, groups: NDArray[np.int64]) -> None:
        answer = self.aggregate_
        query = answer.query
        assert isinstance(query, Histogram)
        told = {"variance": query.standard_deviation(answer.receipt.max_rows_per_unit) ** 2, "counted": answer.n_rows}
        inputs = self._inputs(X)
        learner = learner_of_counts(_default_for(inputs) if self.estimator is None else self.estimator)
        fitted = fit_last(learner, inputs, lambda last, F: last.fit_counts(F, groups, answer.values, **told))
        self._model = Model(fitted, len(answer.classes))
        self.estimator_ = self._model.estimator

    def _inputs(self, X: Any) -> Any:
        """What the estimator sees: the embedding by default, else the features."""
        if self.estimator is not None:
            return X
        found = embedded(self.clusters_.embedder, X)
        return found.toarray() if hasattr(found, "toarray") else found

    def predict_proba(self, X: Any) -> Floats:
        """Probabilities of the classes: (n, K) float64, columns in the order of `classes_`.

        Parameters
        ----------
        X : (n, ...) features, as in the fit
        """
        check_is_fitted(self, "aggregate_")
        return self._model.predict_proba(self._inputs(self._checked(X, None, reset=False)))

    def predict(self, X: Any) -> NDArray[np.generic]:
        """The most likely class of each row: (n,) class values.

        Parameters
        ----------
        X : (n, ...) features, as in the fit
        """
        proba = self.predict_proba(X)
        return np.asarray(self.classes_[proba.argmax(axis=1)])


def _default_for(X: NDArray[np.floating[Any]]) -> Pipeline:
    """Logistic regression whose penalty is that of columns with variance 1 on average."""
    spread = float(X.var(axis=0, dtype=np.float64).mean())
    return make_pipeline(StandardScaler(with_std=False), LogisticRegression(C=_PENALTY / spread if spread > 0 else _PENALTY))


def learner_of_counts(estimator: Estimator) -> Estimator:
    """A clone, or its equal, whose last step has `fit_counts`; others are refused."""
    if isinstance(estimator, Pipeline):
        *before, (name, last) = estimator.steps
        return Pipeline([*((each, clone(step, safe=False)) for each, step in before), (name, learner_of_counts(last))])
    if hasattr(estimator, "fit_counts"):
        return clone(estimator)
    found = softmax_of(estimator)
    if found is None:
        raise InvalidInput(
            f"Expected an estimator that learns from counts of clusters, got {type(estimator).__name__}: its last step needs a method "
            "fit_counts, or to be a plain LogisticRegression. For any other classifier use NoiseCluster(estimator), or "
            "LabelDPClassifier(estimator, prior=ClusterPrior())."
        )
    return found
