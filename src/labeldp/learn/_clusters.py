# SPDX-License-Identifier: Apache-2.0
"""Clusters of public features: rows grouped by k-means on an embedding, and other rows by the nearest centre. No label is ever seen."""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from labeldp import _validate
from labeldp._hash import digest
from labeldp.aggregates import Aggregate, Histogram, Query
from labeldp.errors import InvalidInput, MissingExtra
from labeldp.laws import ClusterRR, Law
from labeldp.laws.cluster_budget import split_budget
from labeldp.learn._data import Codes, Floats, features_digest, take
from labeldp.protocol._fit import GroupPlan, left_of

ALGORITHMS = ("auto", "k-means", "mini-batch", "faiss")
EMBEDDERS = ("pca", "standard")
MOST_CLUSTERS = 2000  # of the rule; more are slow to find
_MANY_ROWS = 200_000  # above, mini-batches
_COMPONENTS = 50
_FEW_CLUSTERS = 50  # up to here several starts are tried: they cost little, and a bad one much
_ROWS_AT_ONCE = 1 << 16
_MANY_SETTINGS = 64  # in one list: what is longer is data
_NEEDS_LABELS = ("positional argument: 'y'", "requires y to be passed", "y cannot be None")  # what scikit-learn's own fits say

Order = NDArray[np.intp]


def clusters_for(n_rows: int, n_classes: int, epsilon: float) -> int:
    """Choose how many clusters to ask: as many as the budget can tell the labels of, from public facts alone.

    A cluster of s rows whose most frequent label leads by most of them is told right by noise of epsilon where epsilon s is well above
    2 ln K, so s = 3 (3 + ln K) / epsilon: 16 / epsilon for ten classes. More and smaller clusters are purer, but are drowned by noise.

    Parameters
    ----------
    n_rows, n_classes : int
    epsilon : float
        For the histogram or the vote, of one row.
    """
    size = 3.0 * (3.0 + math.log(n_classes)) / epsilon
    return int(np.clip(round(n_rows / size), 1, min(MOST_CLUSTERS, max(1, n_rows // 2))))


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters of rows: their centres, and what embeds a row beside them.

    Attributes
    ----------
    embedder : fitted transformer, function, or None
    centres : (n_clusters, width) float64
    """

    embedder: Any
    centres: Floats

    @property
    def kept(self) -> dict[str, Floats]:
        """The centres, which a ledger keeps with the answer: found again, they could differ by rounding, and the answer be of others."""
        return {"centres": self.centres}

    def restored(self, kept: Mapping[str, NDArray[Any]]) -> "Clusters":
        """Give the clusters with the centres that were kept."""
        return replace(self, centres=np.asarray(kept["centres"], np.float64))

    @property
    def n_clusters(self) -> int:
        """Number of clusters, empty ones too."""
        return len(self.centres)

    def model_of(self, answer: Aggregate) -> "ClusterModel":
        """Make a model of the true label of any row, by the histogram of its cluster."""
        return ClusterModel(self, answer)

    def assign(self, X: Any) -> Codes:
        """Find the nearest centre of each row: (n,) int64.

        Parameters
        ----------
        X : (n, ...) features, as in the fit
        """
        features = embedded(self.embedder, X)
        if features.shape[1] != self.centres.shape[1]:
            raise InvalidInput(
                f"Expected embeddings of width {self.centres.shape[1]}, as the clusters were found on, got {features.shape[1]}."
            )
        # in parts, as all distances at once would take n x n_clusters numbers; in the features' own precision, or they would be copied
        parts = [features[start : start + _ROWS_AT_ONCE] for start in range(0, features.shape[0], _ROWS_AT_ONCE)]
        found = [pairwise_distances_argmin(part, self.centres.astype(part.dtype)) for part in parts]
        return np.concatenate(found).astype(np.int64) if found else np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class ClusterModel:
    """A model of the true label that knows a row's cluster alone: the cluster's noisy histogram.

    Attributes
    ----------
    clusters : Clusters
    answer : Aggregate
        Of a histogram.
    """

    clusters: Clusters
    answer: Aggregate

    @property
    def classes_(self) -> NDArray[np.int64]:
        """The class codes 0..K-1."""
        return np.arange(len(self.answer.classes))

    def predict_proba(self, X: Any) -> Floats:
        """Predict by the histogram of each row's nearest cluster: (n, K), by `labeldp.aggregates.Aggregate.prior`.

        Parameters
        ----------
        X : (n, ...) features
        """
        return self.answer.prior(self.clusters.assign(X))


def find_clusters(X: Any, n_clusters: int, *, embedder: Any = None, algorithm: str = "auto", random_state: int = 0) -> Clusters:
    """Embed the rows and find clusters among them.

    Parameters
    ----------
    X : (n, ...) features; public
    n_clusters : int
        At most as many as rows.
    embedder : None, "pca", "standard", transformer, or function of X
        None: the features as they are, images as rows of pixels. "pca": 50 principal components. "standard": every column standardised,
        then 50 principal components. A transformer of scikit-learn is cloned and fitted; a net that is trained already comes as a
        function. Nothing of it may have been chosen or trained by looking at these labels.
    algorithm : {"auto", "k-means", "mini-batch", "faiss"}
        "auto": k-means, in mini-batches above 200,000 rows.
    random_state : int
        The same number finds the same clusters on one machine with one number of threads; elsewhere rounding can move rows at borders.

    Notes
    -----
    Cost: an iteration of k-means is n x n_clusters x width multiplications.
    """
    method = _validate.one_of(ALGORITHMS, algorithm=algorithm)
    seed = _validate.integer(random_state=random_state, low=0, fix="Clusters must come out the same for a repeat to be recognised.")
    fitted = _fitted(embedder, X)
    features = embedded(fitted, X)
    count = _validate.integer(n_clusters=n_clusters, low=1)
    if count > features.shape[0]:
        raise InvalidInput(f"Expected at most as many clusters as rows, {features.shape[0]}, got n_clusters={count}. Lower it.")
    if method == "faiss":
        return Clusters(fitted, _faiss(features, count, seed))
    many = method == "mini-batch" or (method == "auto" and features.shape[0] > _MANY_ROWS)
    starts = 1 if count > _FEW_CLUSTERS else 5
    shared = {"n_clusters": count, "n_init": starts, "random_state": seed}
    finder = MiniBatchKMeans(batch_size=10_240, **shared) if many else KMeans(**shared)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than clusters: some are empty, which is fine
        finder.fit(features)
    return Clusters(fitted, np.asarray(finder.cluster_centers_, np.float64))


def embedded(embedder: Any, X: Any) -> Any:
    """Embed rows: (n, width) finite floats, or a sparse matrix of them.

    Parameters
    ----------
    embedder : fitted transformer, function, or None
    X : (n, ...) features
    """
    found = embedder.transform(X) if hasattr(embedder, "transform") else X if embedder is None else embedder(X)
    if hasattr(found, "tocsr"):
        sparse = found.tocsr()
        _require_finite(sparse.data)
        return sparse
    if hasattr(found, "detach"):
        found = found.detach().cpu().numpy()
    if not hasattr(found, "__array__") and not isinstance(found, (list, tuple)):
        raise InvalidInput(
            f"Expected an array, tensor, sparse matrix or data frame to cluster, got {type(found).__name__}. Give embedder=."
        )
    try:
        array = np.asarray(found)
        array = array if array.dtype == np.float32 else array.astype(np.float64)
    except ValueError:
        raise InvalidInput(
            "Expected numbers to cluster, got columns of other kinds. Give an embedder=, for example a ColumnTransformer that encodes them."
        ) from None
    if array.ndim < 2 or array.shape[0] != _rows_of(X) or not array.size:
        raise InvalidInput(f"Expected an embedding of shape ({_rows_of(X)}, width), a row for each of X; got shape {array.shape}.")
    _require_finite(array)
    return array.reshape(len(array), -1)


def _rows_of(X: Any) -> int:
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def _require_finite(values: NDArray[np.floating[Any]]) -> None:
    if not np.isfinite(values).all():
        raise InvalidInput(
            "Expected finite features to cluster, got NaN or infinity. Give an embedder= that fills the gaps, for example "
            "make_pipeline(SimpleImputer(), StandardScaler())."
        )


def _fitted(embedder: Any, X: Any) -> Any:
    """Fit the embedder to these rows, where it is a transformer or the name of one."""
    if isinstance(embedder, type):
        raise InvalidInput(f"Expected an embedder that was made, got the class {embedder.__name__} itself. Pass {embedder.__name__}(...).")
    if isinstance(embedder, str):
        name = _validate.one_of(EMBEDDERS, embedder=embedder, fix="Or give a transformer, or a function of X.")
        plain = _plain(X)
        pca = PCA(min(_COMPONENTS, *plain.shape), random_state=0)
        scale = StandardScaler(with_mean=not hasattr(plain, "tocsr"))
        return _Flat((make_pipeline(scale, pca) if name == "standard" else make_pipeline(pca)).fit(plain))
    if hasattr(embedder, "fit") and hasattr(embedder, "transform"):
        return _fitted_alone(embedder, X)
    if embedder is None or callable(embedder):
        return embedder
    raise InvalidInput(
        f"Expected an embedder that is a transformer, a function of X, or one of {', '.join(EMBEDDERS)}; got {_validate.shown(embedder)}."
    )


def _fitted_alone(embedder: Any, X: Any) -> Any:
    """Fit a transformer to features; one that asks for labels is refused, since no embedder sees any."""
    try:
        return clone(embedder).fit(X)
    except (TypeError, ValueError) as error:
        if not any(said in str(error) for said in _NEEDS_LABELS):
            raise
        raise InvalidInput(
            f"Expected an embedder that is fitted to features alone, since none sees labels; got {type(embedder).__name__}, which needs "
            "them. Use one without supervision, such as PCA, or a function that was trained on other, public labels."
        ) from None


def _plain(X: Any) -> Any:
    """Make rows of numbers; a narrow sparse matrix becomes a dense one, since PCA of a sparse one cannot have all components."""
    plain = embedded(None, X)
    return plain.toarray() if hasattr(plain, "tocsr") and plain.shape[1] <= _COMPONENTS else plain


@dataclass(frozen=True, eq=False)
class _Flat:
    """A transformer that is given images as rows of pixels."""

    inner: Any

    def transform(self, X: Any) -> Any:
        return self.inner.transform(_plain(X))


def _faiss(features: Any, n_clusters: int, seed: int) -> Floats:
    """Find centres by the k-means of faiss."""
    try:
        import faiss
    except ImportError:
        raise MissingExtra("Expected faiss for algorithm='faiss', got none. pip install faiss-cpu, or leave it out.") from None
    if hasattr(features, "tocsr"):
        raise InvalidInput("Expected dense features with algorithm='faiss', got a sparse matrix. Give embedder=TruncatedSVD(...).")
    rows = np.ascontiguousarray(features, np.float32)
    finder = faiss.Kmeans(rows.shape[1], n_clusters, niter=25, seed=seed, max_points_per_centroid=1 << 30, min_points_per_centroid=1)
    finder.train(rows)
    return np.asarray(finder.centroids, np.float64)


def plan_clusters(X: Any, query: Query, left: float, *, embedder: Any, algorithm: str, random_state: int) -> GroupPlan:
    """Find as many clusters as a question has groups, and plan to ask it of them.

    Parameters
    ----------
    X : (n, ...) features
    query : Query
    left : float
        Epsilon for a law that follows; 0 for none.
    embedder, algorithm, random_state : as in `find_clusters`
    """
    settings: dict[str, Any] = {"algorithm": algorithm, "random_state": random_state}
    clusters = find_clusters(X, query.n_groups, embedder=embedder, **settings)
    request = clustering_request(X, clusters, embedder, settings | {"n_clusters": query.n_groups})
    return GroupPlan(clusters.assign(X), query, left, None, clusters, request)


# When two clusterings are the same request: by features and settings, not by groups, which other rounding can move --------------------


def clustering_request(X: Any, clusters: Clusters, embedder: Any, settings: Mapping[str, object]) -> Callable[[Order | None], str]:
    """Name the request by a digest: a function of the order of the rows, called only where a ledger may know it.

    Parameters
    ----------
    X : (n, ...) features
    clusters : Clusters
    embedder : as it was given
        Settings that say all of it stand for what it gives; of a function, and of a transformer with functions, arrays or objects of the
        user's, or without a fixed random_state, the embedding itself is taken, which must then come out the same, bit by bit, for a
        repeat to be recognised.
    settings : mapping
        The other ones, as JSON-ready data.
    """

    def named(order: Order | None) -> str:
        known = _settings_of(embedder) if _is_table(X) else None
        if known is None:
            rows = {"embedding": features_digest(_ordered(embedded(clusters.embedder, X), order))}
        else:
            rows = {"features": features_digest(_ordered(X, order)), "embedder": known}
        return digest({"clusters": dict(settings), **rows})

    return named


def _ordered(table: Any, order: Order | None) -> Any:
    return table if order is None else take(table, order)


def _is_table(X: Any) -> bool:
    return hasattr(X, "tocsr") or hasattr(X, "iloc") or (isinstance(X, np.ndarray) and X.ndim > 1 and X.dtype.kind in "biuf")


def _settings_of(embedder: Any) -> str | None:
    """Name an embedder by its settings; None where they do not say all of it.

    An object of the user's may hold anything, also labels, and a digest of labels in a ledger would confirm a guess at them.
    """
    if embedder is None or isinstance(embedder, str):
        return repr(embedder)
    if not hasattr(embedder, "get_params"):
        return None
    settings = embedder.get_params()
    parts = [embedder, *(value for value in settings.values() if hasattr(value, "get_params"))]
    if not all(_name_of(part).startswith("sklearn.") for part in parts):
        return None  # whose settings may be anything, also data
    facts = {name: _setting(value) for name, value in settings.items()}
    free = any(value is None and f"__{name}".endswith("__random_state") for name, value in settings.items())
    return None if free or None in facts.values() else digest({_name_of(embedder): facts})


def _setting(value: object) -> str | None:
    """Write a setting as text that stands for nothing else; None where there is none, such as of an array, which is data."""
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        return repr(value)
    if isinstance(value, list | tuple) and len(value) <= _MANY_SETTINGS:
        parts = [_setting(each) for each in value]
        return None if None in parts else f"{type(value).__name__}{parts}"
    if isinstance(value, type):
        return _name_of(value)
    return _name_of(value) if hasattr(value, "get_params") else None  # whose own settings are among the others


def _name_of(thing: object) -> str:
    kind = thing if isinstance(thing, type) else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"


# As a prior -------------------------------------------------------------------------------------------------------------------------------


class ClusterPrior(BaseEstimator):
    """A prior for `LabelDPClassifier` and `TorchClassifier`: the noisy label histogram of a row's cluster of public features.

    Parameters
    ----------
    embedder : "pca", "standard", transformer, or function of X, default=None
        What the rows are clustered by; see `labeldp.learn.find_clusters`. It must not have been made with these labels.
    n_clusters : int in 1..n, default=None
        None: as many as its budget can tell the labels of, 3 (3 + ln K) / epsilon rows in each on average, and 2000 at most.
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
        mechanism = "gaussian" if self.delta else "laplace"
        query = Histogram(n_classes, share, _validate.integer(n_clusters=count, low=1), mechanism, self.delta)
        plan = plan_clusters(X, query, rest, embedder=self.embedder, algorithm=self.algorithm, random_state=self.random_state)
        if law == ClusterRR.name and self.epsilon is None and self.delta == 0 and max_rows_per_unit == 1:
            return self._divided(plan, epsilon, n_classes)
        return plan

    def _divided(self, plan: GroupPlan, epsilon: float, n_classes: int) -> GroupPlan:
        """Divide the budget between histogram and ClusterRR as suits the clusters' sizes, which are public, best."""
        budget = split_budget(epsilon, np.bincount(plan.groups, minlength=plan.query.n_groups), n_classes).budget
        if not budget.histogram_epsilon:
            return plan
        share = float(f"{budget.histogram_epsilon:.3g}")
        rest = left_of(epsilon, share)
        return replace(plan, query=replace(plan.query, epsilon=share), epsilon=rest, law=ClusterRR(n_classes, rest, budget.floor))


def _share(epsilon: float) -> float:
    """Give the histogram's part of a budget, to three digits."""
    return float(f"{epsilon / (1 + epsilon):.3g}")
