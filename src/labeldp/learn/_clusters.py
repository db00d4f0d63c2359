# SPDX-License-Identifier: Apache-2.0
"""Cluster rows by public features: k-means on an embedding; other rows go to the nearest centre. No
label is read."""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import pairwise_distances_argmin
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from labeldp import _validate
from labeldp._hash import digest
from labeldp._validate import left_of
from labeldp.aggregates import Aggregate, Histogram, Query
from labeldp.aggregates._histogram import histogram_of_all, three_digits
from labeldp.errors import InvalidInput
from labeldp.laws import Law
from labeldp.learn._corrections import Model, fit_last
from labeldp.learn._data import Codes, Estimator, Floats, features_digest
from labeldp.learn._softmax import softmax_of
from labeldp.protocol._fit import GroupPlan
from labeldp.protocol._matching import row_count, take

ALGORITHMS = ("auto", "k-means", "mini-batch")
EMBEDDERS = ("pca", "standard")
MOST_CLUSTERS = 2000  # of the rule; more are slow to find
_MANY_ROWS = 200_000  # above, k-means works in mini-batches
_COMPONENTS = 50
# up to here k-means starts several times: cheap, and a bad start would merge whole clusters
_FEW_CLUSTERS = 50
_ROWS_AT_ONCE = 1 << 16
_MANY_SETTINGS = 64  # a longer list counts as data, not as a setting
_PENALTY = 0.1  # C of the default learner of counts, for columns of variance 1

Order = NDArray[np.intp]


def clusters_for(n_rows: int, n_classes: int, epsilon: float) -> int:
    """Choose the number of clusters from public facts alone: as many as the budget can measure the
    labels of.

    Noise of epsilon leaves the most frequent label of a pure cluster of s rows in the lead if
    epsilon s is well above 2 ln K, so s = 3 (3 + ln K) / epsilon: 16 / epsilon for ten classes.
    Smaller clusters are purer, but the noise exceeds their counts.

    Parameters
    ----------
    n_rows, n_classes : int
    epsilon : float
        Budget of the histogram or the vote, for one row.
    """
    size = 3.0 * (3.0 + math.log(n_classes)) / epsilon
    return int(np.clip(round(n_rows / size), 1, min(MOST_CLUSTERS, max(1, n_rows // 2))))


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters of rows: an embedder of rows, and the clusters' centres.

    Attributes
    ----------
    embedder : fitted transformer, function, or None
    centres : (n_clusters, width) float64
    X : (n, ...) features, or None
        Of the rows that are clustered, where their histograms teach a logistic regression, which
        tells the rows of a cluster apart.
    """

    embedder: Any
    centres: Floats
    X: Any = None

    @property
    def kept(self) -> dict[str, Floats]:
        """The centres, to store with the answer: found again, they could differ by rounding, and
        the answer would be about other clusters."""
        return {"centres": self.centres}

    def restored(self, kept: Mapping[str, NDArray[Any]]) -> Self:
        """Return the clusters with the stored centres."""
        return replace(self, centres=np.asarray(kept["centres"], np.float64))

    @property
    def n_clusters(self) -> int:
        """Number of clusters, including empty ones."""
        return len(self.centres)

    def model_of(self, answer: Aggregate, groups: Codes) -> tuple["ClusterModel", Floats]:
        """Make a model that predicts any row's label by the histogram of its cluster, or by what
        the histograms teach; and the prior (n, K) of rows in these clusters."""
        if self.X is None:
            return ClusterModel(self, answer), answer.prior(groups)
        learned = learned_from_counts(None, dense(self.embedder, self.X), groups, answer)
        # an estimator keeps the clusters, without the rows
        model = ClusterModel(replace(self, X=None), answer, learned)
        return model, model.predict_proba(self.X)

    def assign(self, X: Any) -> Codes:
        """Find the nearest centre of each row: (n,) int64.

        Parameters
        ----------
        X : (n, ...) features, as in the fit
        """
        features = embedded(self.embedder, X)
        # In parts, since all distances at once would take n x n_clusters numbers; in the features'
        # precision, to avoid a copy of them.
        parts = [
            features[start : start + _ROWS_AT_ONCE]
            for start in range(0, features.shape[0], _ROWS_AT_ONCE)
        ]
        found = [pairwise_distances_argmin(part, self.centres.astype(part.dtype)) for part in parts]
        return np.concatenate(found).astype(np.int64) if found else np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class ClusterModel:
    """Predicts the label of a row by the noisy histogram of its cluster, or by a regression learned
    from the histograms.

    Attributes
    ----------
    clusters : Clusters
    answer : Aggregate
        The answer to a Histogram.
    linear : Model or None
        What a logistic regression on the embedding has learned from the histograms; None: the
        histogram itself is the prediction.
    """

    clusters: Clusters
    answer: Aggregate
    linear: Model | None = None

    @property
    def classes_(self) -> NDArray[np.int64]:
        """The class codes 0..K-1."""
        return np.arange(len(self.answer.classes))

    def predict_proba(self, X: Any) -> Floats:
        """Predict by the regression; without one, by the histogram of each row's nearest cluster:
        (n, K).

        Parameters
        ----------
        X : (n, ...) features
        """
        if self.linear is not None:
            return self.linear.predict_proba(dense(self.clusters.embedder, X))
        return self.answer.prior(self.clusters.assign(X))


def find_clusters(
    X: Any, n_clusters: int, *, embedder: Any = None, algorithm: str = "auto", random_state: int = 0
) -> Clusters:
    """Embed the rows and find clusters among them.

    Parameters
    ----------
    X : (n, ...) features; public
    n_clusters : int
        At most the number of rows.
    embedder : None, "pca", "standard", transformer, or function of X, default=None
        None: the features as they are, images as rows of pixels. "pca": 50 principal components.
        "standard": every column standardised, then 50 principal components. A scikit-learn
        transformer is cloned and fitted; pass a trained net as a function. The embedder must not
        have been chosen or trained with these labels.
    algorithm : {"auto", "k-means", "mini-batch"}, default="auto"
        "auto": k-means, in mini-batches above 200,000 rows.
    random_state : int, default=0
        One seed finds the same clusters again on one machine with the same number of threads;
        elsewhere rounding can move rows at borders.

    Returns
    -------
    Clusters

    Notes
    -----
    Cost: an iteration of k-means is n x n_clusters x width multiplications.
    """
    method = _validate.one_of(ALGORITHMS, algorithm=algorithm)
    seed = _validate.integer(
        random_state=random_state,
        low=0,
        fix="Clusters must come out the same for a repeat to be recognised.",
    )
    fitted = _fitted(embedder, X)
    features = embedded(fitted, X)
    count = _validate.integer(n_clusters=n_clusters, low=1)
    many = method == "mini-batch" or (method == "auto" and features.shape[0] > _MANY_ROWS)
    starts = 1 if count > _FEW_CLUSTERS else 5
    shared = {"n_clusters": count, "n_init": starts, "random_state": seed}
    finder = MiniBatchKMeans(batch_size=10_240, **shared) if many else KMeans(**shared)
    with warnings.catch_warnings():
        # fewer distinct rows than clusters: some are empty, which is allowed
        warnings.simplefilter("ignore", ConvergenceWarning)
        finder.fit(features)
    return Clusters(fitted, np.asarray(finder.cluster_centers_, np.float64))


def embedded(embedder: Any, X: Any) -> Any:
    """Embed rows: (n, width) finite floats, or a sparse matrix of them.

    Parameters
    ----------
    embedder : fitted transformer, function, or None
    X : (n, ...) features
    """
    found = (
        embedder.transform(X)
        if hasattr(embedder, "transform")
        else X
        if embedder is None
        else embedder(X)
    )
    if hasattr(found, "tocsr"):
        return found.tocsr()
    if hasattr(found, "detach"):
        found = found.detach().cpu().numpy()
    _validate.unmasked(X=found)
    try:
        array = np.asarray(found)
        # float32 stays float32: images as float64 would take twice the memory for nothing, since
        # k-means works in either.
        array = array if array.dtype == np.float32 else array.astype(np.float64)
    except ValueError:
        raise InvalidInput(
            f"Expected an array, tensor, sparse matrix or data frame of numbers to cluster, got"
            f" others in a {type(found).__name__}. Give an embedder=, for example a"
            " ColumnTransformer that encodes columns."
        ) from None
    if array.ndim < 2 or array.shape[0] != row_count(X) or not array.size:
        raise InvalidInput(
            f"Expected an embedding of shape ({row_count(X)}, width), a row for each of X; got"
            f" shape {array.shape}."
        )
    return array.reshape(len(array), -1)


def dense(embedder: Any, X: Any) -> NDArray[np.floating[Any]]:
    """Embed rows as a dense matrix (n, width)."""
    found = embedded(embedder, X)
    return np.asarray(found.toarray() if hasattr(found, "toarray") else found)


def _fitted(embedder: Any, X: Any) -> Any:
    """Fit the embedder to these rows if it is a transformer or the name of one; return functions as
    they are."""
    if isinstance(embedder, str):
        name = _validate.one_of(
            EMBEDDERS, embedder=embedder, fix="Or give a transformer, or a function of X."
        )
        plain = _plain(X)
        pca = PCA(min(_COMPONENTS, *plain.shape), random_state=0)
        scale = StandardScaler(with_mean=not hasattr(plain, "tocsr"))
        return _Flat(
            (make_pipeline(scale, pca) if name == "standard" else make_pipeline(pca)).fit(plain)
        )
    if hasattr(embedder, "fit") and hasattr(embedder, "transform"):
        return clone(embedder).fit(X)
    if embedder is None or callable(embedder):
        return embedder
    raise InvalidInput(
        "Expected an embedder that is a transformer, a function of X, or one of"
        f" {', '.join(EMBEDDERS)}; got {_validate.shown(embedder)}."
    )


def _plain(X: Any) -> Any:
    """Return rows of numbers, dense if they are few columns."""
    plain = embedded(None, X)
    # PCA of a sparse matrix cannot return all components.
    return plain.toarray() if hasattr(plain, "tocsr") and plain.shape[1] <= _COMPONENTS else plain


@dataclass(frozen=True, eq=False)
class _Flat:
    """A fitted transformer that flattens images to rows of pixels first."""

    inner: Any

    def transform(self, X: Any) -> Any:
        return self.inner.transform(_plain(X))


def plan_clusters(
    X: Any, query: Query, left: float, *, embedder: Any, algorithm: str, random_state: int
) -> GroupPlan:
    """Find as many clusters as the question has groups, and plan to ask it about them.

    Parameters
    ----------
    X : (n, ...) features
    query : Query
    left : float
        Epsilon left for a law; 0 if none follows.
    embedder, algorithm, random_state : as in `find_clusters`
    """
    settings: dict[str, Any] = {"algorithm": algorithm, "random_state": random_state}
    clusters = find_clusters(X, query.n_groups, embedder=embedder, **settings)
    request = clustering_request(X, clusters, embedder, settings | {"n_clusters": query.n_groups})
    return GroupPlan(clusters.assign(X), query, left, None, clusters, request)


# Learning from the counts of clusters
# --------------------------------------------------------------------------------------------------


def _default_for(X: NDArray[np.floating[Any]]) -> Pipeline:
    """Make a logistic regression with the penalty that suits columns of variance 1, rescaled to the
    mean variance of these."""
    spread = float(X.var(axis=0, dtype=np.float64).mean())
    return make_pipeline(
        StandardScaler(with_std=False),
        LogisticRegression(C=_PENALTY / spread if spread > 0 else _PENALTY),
    )


def learned_from_counts(
    estimator: Estimator | None, X: Any, groups: Codes, answer: Aggregate
) -> Model:
    """Fit a model of single rows' labels to the noisy counts of their groups.

    Parameters
    ----------
    estimator : as in `labeldp.learn.ProportionClassifier`
    X : n rows of the estimator's features
    groups : (n,) int64
    answer : Aggregate
        The answer to a Histogram.
    """
    query = answer.query
    assert isinstance(query, Histogram)
    told = {
        "variance": query.standard_deviation(answer.receipt.max_rows_per_unit) ** 2,
        "counted": answer.n_rows,
    }
    learner = learner_of_counts(_default_for(X) if estimator is None else estimator)
    return Model(
        fit_last(learner, X, lambda last, F, _: last.fit_counts(F, groups, answer.values, **told)),
        len(answer.classes),
    )


def learner_of_counts(estimator: Estimator) -> Estimator:
    """Clone an estimator so that its last step has `fit_counts` (LogisticRegression becomes
    SoftmaxRegression); refuse others."""
    if isinstance(estimator, Pipeline):
        *before, (name, last) = estimator.steps
        return Pipeline(
            [
                *((each, clone(step, safe=False)) for each, step in before),
                (name, learner_of_counts(last)),
            ]
        )
    if hasattr(estimator, "fit_counts"):
        return clone(estimator)
    found = softmax_of(estimator)
    if found is None:
        raise InvalidInput(
            "Expected an estimator that learns from counts, got"
            f" {type(estimator).__name__}: its last step needs a method fit_counts, or to be a"
            " plain LogisticRegression. For any other classifier use NoiseCluster(estimator),"
            " LabelDPClassifier(estimator, prior=ClusterPrior()), or"
            " CountsClassifier(student=estimator)."
        )
    return found


# Recognising a repeat: by features and settings, not by groups, since rounding can move rows
# between these --------------------------------


def clustering_request(
    X: Any, clusters: Clusters, embedder: Any, settings: Mapping[str, object]
) -> Callable[[Order | None], str]:
    """Return a function from the rows' order to a digest of the clustering request; it is called
    only if a ledger may know the request.

    Parameters
    ----------
    X : (n, ...) features
    clusters : Clusters
    embedder : the user's `embedder=`
    settings : mapping
        The other settings, as JSON-ready data.

    Notes
    -----
    The digest covers features and settings if these determine the embedding. Otherwise (a function;
    a transformer with functions, arrays or objects of the user's, or without a fixed random_state)
    it covers the embedding itself, which must then be the same bit by bit for a repeat to be
    recognised.
    """

    def named(order: Order | None) -> str:
        # Settings are preferred to the embedding, whose last bits differ between machines and
        # numbers of threads.
        table = (
            hasattr(X, "tocsr")
            or hasattr(X, "iloc")
            or (isinstance(X, np.ndarray) and X.ndim > 1 and X.dtype.kind in "biuf")
        )
        known = _settings_of(embedder) if table else None
        if known is None:
            rows = {"embedding": features_digest(_ordered(embedded(clusters.embedder, X), order))}
        else:
            rows = {"features": features_digest(_ordered(X, order)), "embedder": known}
        return digest({"clusters": dict(settings), **rows})

    return named


def _ordered(table: Any, order: Order | None) -> Any:
    return table if order is None else take(table, order)


def _settings_of(embedder: Any) -> str | None:
    """Return a digest of an embedder's settings; None if they do not determine it."""
    if embedder is None or isinstance(embedder, str):
        return repr(embedder)
    if not hasattr(embedder, "get_params"):
        return None
    settings = embedder.get_params()
    parts = [embedder, *(value for value in settings.values() if hasattr(value, "get_params"))]
    # An object of the user's may hold anything, also labels, and a digest of labels in a ledger
    # would confirm a guess at them.
    if not all(_name_of(part).startswith("sklearn.") for part in parts):
        return None
    facts = {name: setting_text(value) for name, value in settings.items()}
    free = any(
        value is None and f"__{name}".endswith("__random_state") for name, value in settings.items()
    )
    return None if free or None in facts.values() else digest({_name_of(embedder): facts})


def setting_text(value: object) -> str | None:
    """Write a setting as text that determines it; None if there is no such text, as for an array,
    which is data."""
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        return repr(value)
    if isinstance(value, list | tuple) and len(value) <= _MANY_SETTINGS:
        parts = [setting_text(each) for each in value]
        return None if None in parts else f"{type(value).__name__}{parts}"
    if isinstance(value, type):
        return _name_of(value)
    # `get_params` of the whole lists its settings one by one
    return _name_of(value) if hasattr(value, "get_params") else None


def _name_of(thing: object) -> str:
    kind = thing if isinstance(thing, type) else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"


# ClusterPrior
# --------------------------------------------------------------------------------------------------


class ClusterPrior(BaseEstimator):
    """A prior for `LabelDPClassifier` and `TorchClassifier`: the noisy label histogram of each
    row's cluster of public features.

    Parameters
    ----------
    embedder : "pca", "standard", transformer, or function of X, default=None
        Embedding by which the rows are clustered; see `labeldp.learn.find_clusters`. It must not
        have been made with these labels.
    n_clusters : int in 1..n, default=None
        None: at most 2000, with 3 (3 + ln K) / epsilon counted rows per cluster on average.
    epsilon : float > 0, default=None
        Cost of the histogram, less than the fit's total. None: total / (1 + total), a share of 1 /
        (1 + total), since clusters are worth most where single rows tell little.
    delta : float in [0, 1), default=0.0
        0: discrete Laplace noise, pure. Above 0: discrete Gaussian noise.
    algorithm : {"auto", "k-means", "mini-batch"}, default="auto"
    random_state : int >= 0, default=0
        Seed of the clustering; fixed, so that a repeat of a fit is recognised.
    linear : bool, default=False
        Whether a logistic regression on the embedding, learned from the histograms as in
        `ProportionClassifier`, gives each row a prior of its own, at no further cost; else all rows
        of a cluster have its histogram. A repeat that differs in this alone gets the labels that
        were drawn before.

    See Also
    --------
    labeldp.learn.NoiseCluster, labeldp.learn.ProportionClassifier : learn from the clusters alone.

    Notes
    -----
    Guarantee: the histogram is `epsilon`-label-DP for each unit, one charge in the ledger, data set
    and column of the fit. The rows' draws are charged the rest, on the same labels: the two add to
    the fit's epsilon. The histogram does not count the rows that the fit holds out, so that these
    measure the model without bias. A ledger recognises a repeat by features and settings (for a
    function, by its embedding; if the clusters' sizes divide the budget, by these, too) and returns
    the groups and centres that it stored with the answer. The rules use n, K and epsilon alone.

    References
    ----------
    Ghazi et al. (2021), "Deep Learning with Label Differential Privacy", Algorithm 4. Here each bin
    gets one draw of noise, and noisy counts are projected to the cluster's public size instead of
    clamped.

    Examples
    --------
    >>> import labeldp as ldp
    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(2000, centers=3, random_state=0, cluster_std=0.5)
    >>> prior = ClusterPrior(n_clusters=6, epsilon=0.2)
    >>> labels = ldp.PrivateLabels(y, classes=[0, 1, 2], noise=ldp.SeededNoise(0))
    >>> model = ldp.LabelDPClassifier(epsilon=0.5, prior=prior).fit(X, labels)
    >>> bool(model.score(X, y) > 0.9)
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
        linear: bool = False,
    ) -> None:
        self.embedder = embedder
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.algorithm = algorithm
        self.random_state = random_state
        self.linear = linear

    def plan_groups(
        self,
        X: Any,
        *,
        n_rows: int,
        n_counted: int,
        n_classes: int,
        epsilon: float,
        max_rows_per_unit: int,
        law: str | Law,
    ) -> GroupPlan:
        """Cluster the rows of X and divide the budget, as `labeldp.protocol._fit.GroupPrior` says;
        nothing is charged."""
        share = (
            three_digits(epsilon / (1 + epsilon))
            if self.epsilon is None
            else _validate.epsilon(self.epsilon)
        )
        rest = left_of(epsilon, share, "the prior (its own epsilon)")
        count = (
            clusters_for(n_counted, n_classes, share / max_rows_per_unit)
            if self.n_clusters is None
            else self.n_clusters
        )
        mechanism = "gaussian" if self.delta else "laplace"
        query = Histogram(
            n_classes, share, _validate.integer(n_clusters=count, low=1), mechanism, self.delta
        )
        plan = plan_clusters(
            X,
            query,
            rest,
            embedder=self.embedder,
            algorithm=self.algorithm,
            random_state=self.random_state,
        )
        if _validate.boolean(linear=self.linear):
            plan = replace(plan, found=replace(plan.found, X=X))
        return plan


class HistogramPrior(BaseEstimator):
    """A prior for `LabelDPRegressor`, `TorchRegressor` and `ReleaseSpec`: the noisy histogram of
    all labels, at a part of epsilon.

    As `class_prior=` of a classifier it asks for the rates of the classes.

    Parameters
    ----------
    epsilon : float > 0, default=None
        Cost of the histogram, less than the total of the fit or release. None: sqrt(4 K / n), at
        most half of the total: then what noise adds to the shares of K points among n rows is about
        as much as what the law loses by a smaller epsilon. `class_prior=` needs a number, since how
        exact rates must be depends on how rare a class is; the standard error of one is 2.8 /
        (epsilon n).

    See Also
    --------
    labeldp.papers.regression.RROnBins, labeldp.laws.UnbiasedRandomizer : laws that are made for one
    prior of all rows.

    Notes
    -----
    Guarantee: the histogram is `epsilon`-label-DP for each unit, one charge in the ledger, data set
    and column of the fit; the rows' draws are charged the rest, on the same labels: the two add to
    the fit's epsilon. It does not count rows that the fit holds out. A law that releases numbers is
    made for it once; one that reads a prior of each row, such as `Threshold`, gets it for every
    row. A release of a table (`labeldp.release`) charges both at once.

    References
    ----------
    Ghazi et al. 2023, "Regression with label differential privacy" (ICLR), whose prior of
    RR-on-Bins is estimated so.

    Examples
    --------
    >>> import labeldp as ldp
    >>> from sklearn.datasets import make_friedman1
    >>> X, y = make_friedman1(3000, random_state=0)
    >>> labels = ldp.PrivateLabels(y, range=(0, 30), points=16, noise=ldp.SeededNoise(0))
    >>> model = ldp.LabelDPRegressor(law="rr-on-bins", prior=HistogramPrior())
    >>> model.fit(X, labels).privacy_.epsilon, [receipt.epsilon for receipt in model.receipts_]
    (inf, [0.146, 0.854])
    """

    of_all_rows = True

    def __init__(self, epsilon: float | None = None) -> None:
        self.epsilon = epsilon

    def plan_groups(
        self,
        X: Any,
        *,
        n_rows: int,
        n_counted: int,
        n_classes: int,
        epsilon: float,
        max_rows_per_unit: int,
        law: str | Law,
    ) -> GroupPlan:
        """Put all rows into one group and divide the budget, as `labeldp.protocol._fit.GroupPrior`
        says; nothing is charged."""
        query, rest = histogram_of_all(epsilon, n_classes, n_counted, self.epsilon)
        return GroupPlan(np.zeros(n_rows, np.int64), query, rest)
