# SPDX-License-Identifier: Apache-2.0
"""NoiseCluster: clusters of public features, each labelled by one private vote. For budgets at which a single row's label says nothing."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from labeldp import _validate
from labeldp.aggregates import Vote
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.learn.cluster_request import clustering_request
from labeldp.learn.clusters import clusters_for, find_clusters
from labeldp.learn.features import check_features, takes_images
from labeldp.learn.labels import checked_labels, len_of
from labeldp.learn.learners import require_plain_labels
from labeldp.learn.model import Floats, Model, fit_codes, require_classifier
from labeldp.privacy.encode import declare, infer_classes
from labeldp.privacy.ledger import Ledger
from labeldp.privacy.noise import SeededNoise
from labeldp.protocol import metrics
from labeldp.protocol.groups import unit_name_of

if TYPE_CHECKING:
    from labeldp.privacy.answering import Asked


class NoiseCluster(ClassifierMixin, BaseEstimator):
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
    classes : sequence of K values, optional
        The public list of classes. None reads them off the labels, with a warning, since that reveals that each occurs.
    dataset, column : str
        What a durable ledger charges.
    max_rows_per_unit : int
        Rows of one unit that are counted, where `fit` gets `unit`.
    ledger : Ledger, optional
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

    takes_raw_labels: ClassVar[bool] = True
    """`fit` privatizes what it is given, so no other estimator may call it with labels of its own making."""

    def __init__(
        self,
        estimator: Any = None,
        *,
        epsilon: float = 0.1,
        n_clusters: int | None = None,
        embedder: Any = None,
        mechanism: str = "auto",
        delta: float = 0.0,
        algorithm: str = "auto",
        classes: Sequence[object] | None = None,
        dataset: str | None = None,
        column: str = "label",
        max_rows_per_unit: int = 1,
        ledger: Ledger | None = None,
        noise: SeededNoise | None = None,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.epsilon = epsilon
        self.n_clusters = n_clusters
        self.embedder = embedder
        self.mechanism = mechanism
        self.delta = delta
        self.algorithm = algorithm
        self.classes = classes
        self.dataset = dataset
        self.column = column
        self.max_rows_per_unit = max_rows_per_unit
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = None if self.estimator is None else get_tags(self.estimator).input_tags
        tags.input_tags.sparse = inner is None or inner.sparse
        tags.input_tags.three_d_array = inner is None or takes_images(self.estimator)
        tags.input_tags.allow_nan = self.embedder is not None and not isinstance(self.embedder, str) and (inner is None or inner.allow_nan)
        return tags

    # Fitting ----------------------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, *, ids: ArrayLike | None = None, unit: ArrayLike | None = None) -> Self:
        """Cluster the rows, and ask each cluster for its label.

        Parameters
        ----------
        X : (n, ...) array, sparse matrix or data frame; public
        y : (n,) raw labels, which are charged
        ids : (n,) or (n, columns) array, optional
            Public ids of the rows; their positions by default.
        unit : (n,) array, optional
            Who each row is about.
        """
        if self.estimator is not None:
            self._require_estimator()
        checked = self._checked(X, y, reset=True)
        labels = checked_labels(y, len_of(checked), declared=self.classes is not None)
        classes = infer_classes(labels) if self.classes is None else declare(self.classes)
        count = self._count(len_of(checked), len(classes))
        settings: dict[str, Any] = {"algorithm": self.algorithm, "random_state": self.random_state}
        clusters = find_clusters(checked, count, embedder=self.embedder, **settings)
        request = clustering_request(checked, clusters, self.embedder, settings | {"n_clusters": count})
        query = Vote(len(classes), self.epsilon, clusters.n_clusters, self.mechanism, self.delta)
        asked = self._asked(labels, query, clusters.assign(checked), classes, ids, unit, request, clusters.kept)
        answer, groups = asked.answer, asked.groups
        self.classes_, self.clusters_, self.aggregate_ = np.asarray(classes), clusters.restored(asked.kept), answer
        self.cluster_classes_, self.privacy_ = answer.labels(), answer.privacy
        self.failure_ = self.failure()
        self.estimator_ = None
        if self.estimator is not None:
            self._model = Model(fit_codes(self.estimator, checked, np.arange(len(groups)), answer.codes()[groups]), len(classes))
            self.estimator_ = self._model.estimator
        return self

    def _require_estimator(self) -> None:
        require_classifier(self.estimator)
        require_plain_labels(self.estimator)

    def _count(self, n_rows: int, n_classes: int) -> int:
        if self.n_clusters is not None:
            return _validate.integer(n_clusters=self.n_clusters, low=1)
        m = _validate.integer(max_rows_per_unit=self.max_rows_per_unit, low=1)
        return clusters_for(n_rows, n_classes, _validate.epsilon(self.epsilon) / m)

    def _asked(
        self, labels: Any, query: Vote, groups: NDArray[np.int64], classes: tuple[object, ...], ids: Any, unit: Any, request: Any, kept: Any
    ) -> "Asked":
        from labeldp.privacy.aggregation import answer_groups

        return answer_groups(
            labels,
            query,
            groups,
            classes=classes,
            inferred=self.classes is None,
            dataset=self.dataset,
            column=self.column,
            ids=ids,
            unit=unit,
            unit_name=unit_name_of(unit),
            max_rows_per_unit=self.max_rows_per_unit,
            ledger=self.ledger,
            noise=self.noise,
            request=request,
            kept=kept,
        )

    def _checked(self, X: Any, y: Any, *, reset: bool) -> Any:
        if reset and y is None:
            raise InvalidInput("This NoiseCluster requires y to be passed, but the target y is None.")
        if isinstance(y, NoisyLabels) and reset:
            raise InvalidInput("Expected raw labels, got NoisyLabels, which a vote cannot count. Learn from them with LabelDPClassifier.")
        checked = check_features(X, self, type(self).__name__)
        validate_data(self, X, reset=reset, skip_check_array=True)
        return checked

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

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy on true labels.

        Parameters
        ----------
        X : (n, ...) features, as in the fit
        y : NoisyLabels of n rows whose labels did not vote: unbiased through the law; or (n,) public true labels: plain
        sample_weight : (n,) array, optional
            With public labels only.
        """
        if isinstance(y, NoisyLabels):
            if sample_weight is not None:
                raise InvalidInput("Expected no sample_weight with NoisyLabels.")
            return metrics.accuracy(y, self.predict(X)).value
        return float(accuracy_score(y, self.predict(X), sample_weight=sample_weight))
