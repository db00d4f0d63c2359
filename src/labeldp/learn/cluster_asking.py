# SPDX-License-Identifier: Apache-2.0
"""What estimators have in common that ask clusters of public features for their labels, once, and nothing of single rows."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import get_tags
from sklearn.utils.validation import validate_data

from labeldp import _validate
from labeldp.aggregates import Query
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.learn.cluster_request import clustering_request
from labeldp.learn.clusters import Clusters, clusters_for, find_clusters
from labeldp.learn.features import check_features, takes_images
from labeldp.learn.labels import checked_labels, len_of, together
from labeldp.learn.learners import require_plain_labels
from labeldp.learn.model import require_classifier
from labeldp.learn.rehearsal import rehearse
from labeldp.privacy.encode import classes_for, infers
from labeldp.privacy.ledger import Ledger
from labeldp.privacy.noise import SeededNoise
from labeldp.privacy.row_ids import Name, RowIds
from labeldp.protocol import metrics
from labeldp.protocol.fitting import require_own_labels
from labeldp.protocol.groups import GroupPlan, ask_groups


class ClusterAsking(ClassifierMixin, BaseEstimator, ABC):
    """Clusters found, one query of them asked and charged; what is learned from the answer is for a subclass to say.

    Parameters
    ----------
    See `labeldp.learn.NoiseCluster`.
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

    # What a subclass says ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _query(self, n_classes: int, n_clusters: int) -> Query:
        """The question, with what it costs; what is wrong with it is refused."""

    @abstractmethod
    def _learn(self, X: Any, groups: NDArray[np.int64]) -> None:
        """Learn from `aggregate_`, which is about these groups of the rows of X."""

    def _rehearse(self, X: Any, n_classes: int) -> None:
        """Refuse an estimator that will not be able to learn, before anything is charged."""
        if self.estimator is not None:
            rehearse(self.estimator, X, n_classes, len_of(X))

    # Fitting ----------------------------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        ids: ArrayLike | None = None,
        unit: ArrayLike | None = None,
        id_name: Name | None = None,
        unit_name: Name | None = None,
    ) -> Self:
        """Cluster the rows, ask each cluster for its labels, and learn from the answer.

        Parameters
        ----------
        X : (n, ...) array, sparse matrix or data frame; public
        y : (n,) raw labels, which are charged
        ids : (n,) or (n, columns) array, optional
            Public ids of the rows; their positions by default.
        unit : (n,) array, optional
            Who each row is about.
        id_name, unit_name : str, optional
            What the columns of ids and units are called, as in `labeldp.privatize`; columns of data frames say it themselves.
        """
        if self.estimator is not None:
            self._require_estimator()
        rows = RowIds.of(ids, unit, id_name, unit_name).beside(y)
        checked = self._checked(X, y, reset=True)
        require_own_labels(self)
        labels = checked_labels(y, len_of(checked), inferred=infers(self.classes))
        classes, inferred = classes_for(labels, self.classes)
        count = self._count(len_of(checked), len(classes))
        settings: dict[str, Any] = {"algorithm": self.algorithm, "random_state": self.random_state}
        clusters = find_clusters(checked, count, embedder=self.embedder, **settings)
        request = clustering_request(checked, clusters, self.embedder, settings | {"n_clusters": count})
        plan = GroupPlan(clusters.assign(checked), self._query(len(classes), clusters.n_clusters), 0.0, found=clusters, request=request)
        self._rehearse(checked, len(classes))
        asked = ask_groups(self, plan, labels, classes, inferred=inferred, rows=rows)
        self.classes_, self.aggregate_, self.privacy_ = np.asarray(classes), asked.answer, asked.answer.privacy
        self.clusters_: Clusters = clusters.restored(asked.kept)
        self._learn(checked, asked.groups)
        self._raw_rows = len_of(checked)
        return self

    def _require_estimator(self) -> None:
        require_classifier(self.estimator)
        require_plain_labels(self.estimator)

    def _count(self, n_rows: int, n_classes: int) -> int:
        if self.n_clusters is not None:
            return _validate.integer(n_clusters=self.n_clusters, low=1)
        m = _validate.integer(max_rows_per_unit=self.max_rows_per_unit, low=1)
        return clusters_for(n_rows, n_classes, _validate.epsilon(self.epsilon) / m)

    def _checked(self, X: Any, y: Any, *, reset: bool) -> Any:
        if reset and y is None:
            raise InvalidInput(f"This {type(self).__name__} requires y to be passed, but the target y is None.")
        if isinstance(y, NoisyLabels) and reset:
            raise InvalidInput(
                "Expected raw labels, got NoisyLabels, which are no counts of clusters. Learn from them with LabelDPClassifier."
            )
        checked = check_features(X, self, type(self).__name__)
        validate_data(self, X, reset=reset, skip_check_array=True)
        return checked

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, ids: ArrayLike | None = None) -> float:
        """Accuracy on true labels.

        Parameters
        ----------
        X : (n, ...) features, as in the fit
        y : NoisyLabels of n rows whose labels were not asked: unbiased through the law; or (n,) public true labels: plain
        sample_weight : (n,) array, optional
            With public labels only.
        ids : (n,) or (n, columns) array, optional
            Of the rows, with NoisyLabels, which are matched by them.
        """
        if isinstance(y, NoisyLabels):
            if sample_weight is not None:
                raise InvalidInput("Expected no sample_weight with NoisyLabels.")
            X, y = together(X, y, ids)
            return metrics.accuracy(y, self.predict(X)).value
        predicted = self.predict(X)
        metrics.warn_of_raw_labels(len(predicted), self._raw_rows, self.noise)
        return float(accuracy_score(y, predicted, sample_weight=sample_weight))
