# SPDX-License-Identifier: Apache-2.0
"""NoiseCluster and ProportionClassifier: release one aggregate per cluster of public features, and
no label of a single row."""

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from labeldp import _validate
from labeldp.aggregates import Histogram, Query, Vote
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.learn._classifier import dry_run
from labeldp.learn._clusters import (
    Clusters,
    clusters_for,
    dense,
    learned_from_counts,
    learner_of_counts,
    plan_clusters,
)
from labeldp.learn._corrections import (
    Model,
    fit_codes,
    fit_last,
    require_classifier,
)
from labeldp.learn._data import (
    Estimator,
    Floats,
    check_features,
    explained,
    takes_images,
    threads_for,
)
from labeldp.protocol._estimator import ClassifierEstimator
from labeldp.protocol._fit import ask_groups
from labeldp.protocol._matching import row_count, take
from labeldp.protocol.metrics import warn_of_constant

if TYPE_CHECKING:
    from labeldp.custody._private import PrivateLabels


class CuratorEstimator(ClassifierEstimator):
    """An estimator whose raw labels a trusted curator looks at together, so that it takes no labels
    that are noisy already."""

    estimator: Any
    _not_noisy: ClassVar[str]

    @abstractmethod
    def _require_estimator(self) -> None:
        """Refuse an estimator that cannot learn here."""

    def _inputs(self, X: Any, y: Any) -> Any:
        self._require_estimator()
        if isinstance(y, NoisyLabels):
            raise InvalidInput(
                f"Expected PrivateLabels, got NoisyLabels, {self._not_noisy}. Learn from them with"
                " LabelDPClassifier."
            )
        return self._checked(X, y, reset=True)

    def _threads(self, inputs: Any) -> AbstractContextManager[object]:
        return threads_for(inputs)

    def _fit(self, X: Any, inputs: Any, *others: Any) -> Self:
        super()._fit(X, inputs, *others)
        # What was checked has rows to take; a frame keeps the names of its columns.
        table = X if hasattr(X, "columns") else inputs
        warn_of_constant(
            lambda rows: self.predict_proba(take(table, rows)),
            row_count(table),
            self._grid or self.classes_.tolist(),
        )
        return self

    def _fit_noisy(self, inputs: Any, noisy: NoisyLabels) -> None:
        raise AssertionError("refused by _inputs")

    def _checked(self, X: Any, y: Any = "no_validation", *, reset: bool) -> Any:
        with explained(fitted=not reset):
            checked = check_features(X, self, type(self).__name__)
            validate_data(self, X, y, reset=reset, skip_check_array=True)
        return checked


class ClusterEstimator(CuratorEstimator):
    """Base of estimators that cluster the rows and ask one question about the clusters; a subclass
    gives the question and the learning.

    Parameters
    ----------
    See `labeldp.learn.NoiseCluster`.
    """

    _not_noisy = "which hold no counts of clusters"

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
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.epsilon = epsilon
        self.n_clusters = n_clusters
        self.embedder = embedder
        self.mechanism = mechanism
        self.delta = delta
        self.algorithm = algorithm
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = None if self.estimator is None else get_tags(self.estimator).input_tags
        tags.input_tags.sparse = inner is None or inner.sparse
        tags.input_tags.three_d_array = inner is None or takes_images(self.estimator)
        tags.input_tags.allow_nan = (
            self.embedder is not None
            and not isinstance(self.embedder, str)
            and (inner is None or inner.allow_nan)
        )
        return tags

    # What a subclass implements
    # ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _query(self, n_classes: int, n_clusters: int) -> Query:
        """Make the question, with its cost; refuse faults of its settings."""

    @abstractmethod
    def _learn(self, X: Any, groups: NDArray[np.int64]) -> None:
        """Learn from `aggregate_`, the answer about these groups of the rows of X."""

    def _dry_run(self, X: Any, n_classes: int) -> None:
        """Refuse an estimator that cannot learn, before anything is charged."""
        if self.estimator is not None:
            dry_run(self.estimator, X, n_classes, X.shape[0])

    # Fitting
    # ----------------------------------------------------------------------------------------------

    def _fit_private(self, X: Any, inputs: Any, labels: "PrivateLabels") -> None:
        classes = labels.classes
        count = self._count(labels)
        clustering = {
            "embedder": self.embedder,
            "algorithm": self.algorithm,
            "random_state": self.random_state,
        }
        plan = plan_clusters(inputs, self._query(len(classes), count), 0.0, **clustering)
        # Before `ask_groups`, which charges.
        self._dry_run(inputs, len(classes))
        asked = ask_groups(labels, plan)
        self._set_classes(classes)
        self.aggregate_, self.privacy_ = asked.answer, asked.answer.privacy
        self.receipts_, self._learned = (asked.answer.receipt,), None
        # A repeat gets the stored centres, since clusters found again may differ by rounding from
        # those that were asked about.
        self.clusters_: Clusters = plan.as_asked(asked).found
        self._learn(inputs, asked.groups)

    def _require_estimator(self) -> None:
        if self.estimator is not None:
            require_classifier(self.estimator)

    def _count(self, labels: "PrivateLabels") -> int:
        if self.n_clusters is not None:
            return _validate.integer(n_clusters=self.n_clusters, low=1)
        m = labels.account.max_rows_per_unit
        counted = labels.rows.given.within(m, len(labels))
        return clusters_for(counted, len(labels.classes), _validate.epsilon(self.epsilon) / m)


class NoiseCluster(ClusterEstimator):
    """Cluster public features, release each cluster's most frequent label by one private vote, and
    predict it.

    Parameters
    ----------
    estimator : classifier or pipeline, default=None
        None: a row gets the label of its nearest centre. Else it is cloned and trained on the
        training rows with their clusters' labels, at no cost: it smooths over borders between
        clusters, and over wrong votes.
    epsilon : float > 0, default=0.1
        Total label-DP budget of a fit, for one unit (a row, or the labels' own unit): all
        votes together.
    n_clusters : int in 1..n, default=None
        None: at most 2000, with 3 (3 + ln K) / epsilon counted rows per cluster on average, so that
        most votes are right.
    embedder : "pca", "standard", transformer, or function of X, default=None
        Embedding by which the rows are clustered; see `labeldp.learn.find_clusters`. Good features
        matter most here.
    mechanism : {"auto", "permute-and-flip", "exponential", "gaussian"}, default="auto"
        Mechanism of the votes; "auto" is pure unless delta is above 0.
    delta : float in [0, 1), default=0.0
        Above 0: Gaussian noise.
    algorithm : {"auto", "k-means", "mini-batch"}, default="auto"
        Finds the clusters; "auto" works in mini-batches above 200,000 rows.
    random_state : int >= 0, default=0
        Seed of the clustering, never of the noise; fixed, so that a repeat is recognised.

    Attributes
    ----------
    classes_ : (K,) array
    clusters_ : Clusters
    aggregate_ : Aggregate
        The votes, with the number of rows of each cluster.
    cluster_classes_ : (n_clusters,) array
        The class value that each cluster's vote released.
    failure_ : (n_clusters,) float64
        Probability that noise overruled a cluster's most frequent label if it leads by half of the
        cluster's rows, from the public sizes alone. 1 - 1/K for an empty cluster. `failure(lead)`
        takes another lead.
    estimator_ : fitted estimator (of class codes), or None
    privacy_ : PrivacySpent
    receipts_ : tuple of Receipt
        The receipt of the one charge.
    n_features_in_, feature_names_in_

    See Also
    --------
    ProportionClassifier : learns from counts per cluster, which also tell rows of a mixed cluster
    apart.
    ClusterPrior : counts per cluster as the prior with which each row is drawn.

    References
    ----------
    Tang et al. (2022), "Machine Learning with Differentially Private Labels", Algorithm 2; McKenna
    and Sheldon (2020), "Permute-and-Flip", for the votes.

    Notes
    -----
    Guarantee: everything that the fit returns or stores is epsilon-label-DP (central model: a
    trusted curator counts raw labels). A row is in one cluster, so by parallel composition all
    votes cost as much as one. Cost: k-means, one pass over the labels, and the estimator's own fit.

    Examples
    --------
    >>> import labeldp as ldp
    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(3000, centers=3, random_state=0, cluster_std=0.5)
    >>> labels = ldp.PrivateLabels(y, classes=[0, 1, 2], noise=ldp.SeededNoise(0))
    >>> model = NoiseCluster(epsilon=0.02, n_clusters=3).fit(X, labels)
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
            self._model = Model(
                fit_codes(self.estimator, X, np.arange(len(groups)), answer.codes()[groups]),
                len(answer.classes),
            )
            self.estimator_ = self._model.estimator

    def failure(self, lead: float = 0.5) -> Floats:
        """Compute the probability that noise overruled each cluster's most frequent label, for an
        assumed lead: (n_clusters,) float64.

        Parameters
        ----------
        lead : float in (0, 1], default=0.5
            Assumed lead of the most frequent label over each other one, as a share of the cluster's
            rows. The true leads are private.
        """
        check_is_fitted(self, "aggregate_")
        share = _validate.fraction(lead=lead, one=True)
        # Once per distinct size: the exact probability is slow, and many clusters have equal sizes.
        sizes, place = np.unique(self.aggregate_.n_rows, return_inverse=True)
        query = self.aggregate_.query
        assert isinstance(query, Vote)
        gaps = np.repeat(
            np.floor(share * sizes).astype(np.int64)[:, None], query.n_classes - 1, axis=1
        )
        found = np.where(
            sizes > 0,
            query.failure(gaps, self.aggregate_.receipt.max_rows_per_unit),
            1 - 1 / query.n_classes,
        )
        return np.asarray(found[place.reshape(-1)])

    # Predicting
    # ----------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> Floats:
        """Predict probabilities of the classes: (n, K) float64, columns in the order of `classes_`.

        Parameters
        ----------
        X : (n, ...) features, as in the fit

        Returns
        -------
        The estimator's probabilities; without one, 1 - `failure_` for the class of the row's
        cluster, and equal shares for the others.
        """
        check_is_fitted(self, "aggregate_")
        checked = self._checked(X, reset=False)
        if self.estimator_ is not None:
            return self._model.predict_proba(checked)
        groups = self.clusters_.assign(checked)
        k = len(self.classes_)
        # the vote stays the likeliest class
        doubt = np.minimum(self.failure_, 1 - 1 / k - 2.0**-20)[groups]
        table = np.repeat((doubt / (k - 1))[:, None], k, axis=1)
        table[np.arange(len(groups)), self.aggregate_.codes()[groups]] = 1 - doubt
        return table


class ProportionClassifier(ClusterEstimator):
    """Cluster public features, release noisy label counts per cluster, and learn single rows'
    labels from these counts.

    This is learning from label proportions: the probabilities of a cluster's rows sum to its
    expected counts, and a model is fitted to the likelihood of the noisy counts. A vote names only
    the leading class of a mixed cluster; counts also teach what tells its rows apart.

    Parameters
    ----------
    estimator : LogisticRegression, SoftmaxRegression, or pipeline that ends in one, default=None
        Any estimator whose last step has a method `fit_counts(X, groups, counts, variance=,
        counted=)`, as `labeldp.learn.SoftmaxRegression` has, is allowed, too. It is cloned. None:
        logistic regression on the embedding, whose columns keep their scale.
    epsilon : float > 0, default=0.1
        Total label-DP budget of a fit, for one unit (a row, or the labels' own unit): all
        counts together.
    n_clusters : int in 1..n, default=None
        None: at most 2000, with 3 (3 + ln K) / epsilon counted rows per cluster on average.
    embedder : "pca", "standard", transformer, or function of X, default=None
        Embedding by which the rows are clustered; see `labeldp.learn.find_clusters`.
    mechanism : {"auto", "laplace", "gaussian"}, default="auto"
        Mechanism of the noise on counts; "auto" is pure unless delta is above 0.
    delta : float in [0, 1), default=0.0
        Above 0: Gaussian noise.
    algorithm : {"auto", "k-means", "mini-batch"}, default="auto"
        Finds the clusters; "auto" works in mini-batches above 200,000 rows.
    random_state : int >= 0, default=0
        Seed of the clustering, never of the noise; fixed, so that a repeat is recognised.

    Attributes
    ----------
    classes_ : (K,) array
    clusters_ : Clusters
    aggregate_ : Aggregate
        The noisy counts, with the number of rows of each cluster.
    estimator_ : fitted estimator (of class codes)
    privacy_ : PrivacySpent
    receipts_ : tuple of Receipt
        The receipt of the one charge.
    n_features_in_, feature_names_in_

    See Also
    --------
    NoiseCluster : one vote of each cluster, for any classifier.
    SoftmaxRegression : the model that is fitted to the counts.

    References
    ----------
    Quadrianto et al. (2009), "Estimating Labels from Label Proportions"; Yu et al. (2014), "On
    Learning from Label Proportions"; Javanmard et al. (2024), label differential privacy in curated
    bags.

    Notes
    -----
    Guarantee: everything that the fit returns or stores is epsilon-label-DP (central model: a
    trusted curator counts raw labels). Another label of a row changes two counts by one each, and
    all counts cost as much as these two. Cost: k-means, one pass over the labels, and some tens of
    iterations of O(n K d). The published methods correct the counts for noise; here the noise is
    part of the likelihood.

    Examples
    --------
    >>> import labeldp as ldp
    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(3000, centers=3, random_state=0, cluster_std=1.0)
    >>> labels = ldp.PrivateLabels(y, classes=[0, 1, 2], noise=ldp.SeededNoise(0))
    >>> model = ProportionClassifier(epsilon=0.1).fit(X, labels)
    >>> bool(model.score(X, y) > 0.85)
    True
    """

    def _query(self, n_classes: int, n_clusters: int) -> Histogram:
        mechanism = (
            ("gaussian" if self.delta else "laplace")
            if self.mechanism == "auto"
            else self.mechanism
        )
        return Histogram(n_classes, self.epsilon, n_clusters, mechanism, self.delta)

    def _require_estimator(self) -> None:
        super()._require_estimator()
        if self.estimator is not None:
            learner_of_counts(self.estimator)

    def _dry_run(self, X: Any, n_classes: int) -> None:
        def fit(estimator: Estimator, few: Any, noisy: NoisyLabels) -> Model:
            groups = np.arange(len(noisy)) % 4
            counted = np.bincount(groups, minlength=4)
            counts = np.repeat(counted[:, None] / n_classes, n_classes, axis=1)
            told = {"variance": 1.0, "counted": counted}
            learner = learner_of_counts(estimator)
            return Model(
                fit_last(
                    learner, few, lambda last, F, _: last.fit_counts(F, groups, counts, **told)
                ),
                n_classes,
            )

        if self.estimator is not None:
            dry_run(self.estimator, X, n_classes, X.shape[0], fit)

    def _learn(self, X: Any, groups: NDArray[np.int64]) -> None:
        self._model = learned_from_counts(
            self.estimator, self._embedded(X), groups, self.aggregate_
        )
        self.estimator_ = self._model.estimator

    def _embedded(self, X: Any) -> Any:
        """Return the model's inputs: the embedding for the default estimator, else the features."""
        return X if self.estimator is not None else dense(self.clusters_.embedder, X)

    def predict_proba(self, X: Any) -> Floats:
        """Predict probabilities of the classes: (n, K) float64, columns in the order of `classes_`.

        Parameters
        ----------
        X : (n, ...) features, as in the fit
        """
        check_is_fitted(self, "aggregate_")
        return self._model.predict_proba(self._embedded(self._checked(X, reset=False)))
