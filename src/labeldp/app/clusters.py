# SPDX-License-Identifier: Apache-2.0
"""Clusters on the command line: a prior of them, and models of nothing but what they were asked."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.tables.inputs import ColumnInputs, Inputs, StandardisedInputs
from labeldp.tables.passes import Progress
from labeldp.tables.standardised import Standardised, learn_standardised

NOISE_CLUSTER, PROPORTIONS = "noise-cluster", "proportions"
CLUSTER_MODELS = (NOISE_CLUSTER, PROPORTIONS)


@dataclass(frozen=True)
class ClustersSpec:
    """A prior of clusters of the inputs.

    Parameters
    ----------
    n_clusters : int, optional
        As many as the budget can tell the labels of, if None.
    epsilon : float, optional
        What their histograms cost, out of the total; a share by rule if None.
    """

    n_clusters: int | None = None
    epsilon: float | None = None

    def __post_init__(self) -> None:
        if self.n_clusters is not None:
            _validate.integer(n_clusters=self.n_clusters, low=1)
        if self.epsilon is not None:
            _validate.epsilon(self.epsilon)

    def require_less_than(self, epsilon: float | None) -> None:
        """Refuse what no training can pay for."""
        if epsilon is None:
            raise InvalidInput("Expected no prior of clusters with a released table: its labels are drawn and paid for. Leave it out.")
        if self.epsilon is not None and not self.epsilon < epsilon:
            raise InvalidInput(f"Expected clusters to cost less than the total epsilon={epsilon!r}, got eps={self.epsilon!r}. Lower it.")


def clusters_of(text: str | None) -> ClustersSpec | None:
    """The prior that an option says: clusters, clusters:NUMBER, clusters:NUMBER,eps=E or clusters,eps=E; None for none."""
    if text is None:
        return None
    name, *settings = text.replace("clusters:", "clusters,", 1).split(",")
    if name.strip() != "clusters":
        raise InvalidInput(f"Expected clusters[:NUMBER][,eps=E] as a prior, got {text!r}. For example clusters:100,eps=0.05.")
    numbers = [each.strip() for each in settings if "=" not in each]
    named = dict(each.strip().split("=", 1) for each in settings if "=" in each)
    if len(numbers) > 1 or set(named) - {"eps"} or len(numbers) + len(named) < len(settings):
        raise InvalidInput(f"Expected clusters[:NUMBER][,eps=E], got {text!r}. For example clusters:100,eps=0.05.")
    try:
        return ClustersSpec(int(numbers[0]) if numbers else None, float(named["eps"]) if named else None)
    except ValueError as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"Expected whole NUMBER and a number E in clusters[:NUMBER][,eps=E], got {text!r}.") from None


def prior_for(spec: ClustersSpec | None, embedder: Any) -> Any:
    """The ClusterPrior that a command asks for, or None."""
    if spec is None:
        return None
    from labeldp.learn import ClusterPrior

    return ClusterPrior(embedder, spec.n_clusters, spec.epsilon)


def standardised_by(inputs: Inputs, X: NDArray[Any]) -> Standardised:
    """How a matrix of numbers and categories becomes one of numbers alone, without gaps."""
    return learn_standardised(X, inputs.features if isinstance(inputs, ColumnInputs) else None)


class Embedding:
    """A matrix as k-means takes it: standardised, categories as columns, gaps filled.

    Parameters
    ----------
    standardised : Standardised
    """

    def __init__(self, standardised: Standardised):
        self._standardised = standardised

    def __call__(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """(n, width) float32."""
        return self._standardised.apply(X)


class ClusterLearner:
    """NoiseCluster on rows of numbers, kept as the nearest of labelled centres, or ProportionClassifier, kept as a logistic regression.

    Parameters
    ----------
    model : {"noise-cluster", "proportions"}
    inputs : Inputs
    """

    def __init__(self, model: str, inputs: Inputs):
        if inputs.image is not None:
            raise InvalidInput(
                f"Expected rows of numbers with --model {model}, got images, whose pixels cluster badly. Save features of them as an array "
                "(.npz), or use labeldp.learn with an embedder."
            )
        self.inputs, self._model = inputs, model

    def prepared(self, X: NDArray[Any]) -> NDArray[Any]:
        """Rows of numbers standardised."""
        standardised = standardised_by(self.inputs, X)
        self.inputs = StandardisedInputs(self.inputs, standardised)
        return standardised.apply(X)

    def classifier(self, seed: int, progress: Progress, **settings: Any) -> Any:
        """The classifier, which has no stages and no law of rows."""
        from labeldp.learn import NoiseCluster, ProportionClassifier

        if settings.pop("law") != "auto":
            raise InvalidInput(f"Expected no --law with --model {self._model}, which asks clusters. Leave it out.")
        if settings.pop("prior", None) is not None:
            raise InvalidInput(f"Expected no --prior with --model {self._model}, which asks clusters alone. Leave it out.")
        settings.pop("n_stages")
        return (NoiseCluster if self._model == NOISE_CLUSTER else ProportionClassifier)(random_state=seed, **settings)

    def result(self, model: Any) -> tuple[Any, dict[str, object]]:
        """What scikit-learn has for it: the nearest centre with the class codes that were voted, or a logistic regression."""
        answer = model.aggregate_
        sizes, query = answer.n_rows, answer.query
        if self._model == PROPORTIONS:
            deviation = query.standard_deviation(answer.receipt.max_rows_per_unit)
            facts = {"number": len(sizes), "mechanism": query.mechanism, "deviation": deviation}
            return as_logistic(model.estimator_), {"clusters": facts}
        from sklearn.neighbors import KNeighborsClassifier

        nearest = KNeighborsClassifier(1, algorithm="brute").fit(model.clusters_.centres, answer.codes())
        failure = float(model.failure_ @ sizes / sizes.sum())
        return nearest, {"clusters": {"number": len(sizes), "mechanism": query.chosen(), "failure": failure}}


def as_logistic(fitted: Any) -> Any:
    """A pipeline that ends in a SoftmaxRegression, with scikit-learn's own type at its end, so that whoever reads it knows all of it."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import Pipeline

    *before, (name, last) = fitted.steps
    two = len(last.classes_) == 2
    logistic = LogisticRegression(C=last.C_)
    logistic.classes_, logistic.n_features_in_, logistic.n_iter_ = last.classes_, last.n_features_in_, np.array([last.n_iter_], np.int32)
    logistic.coef_ = last.coef_[1:] - last.coef_[:1] if two else last.coef_
    logistic.intercept_ = last.intercept_[1:] - last.intercept_[:1] if two else last.intercept_
    return Pipeline([*before, (name, logistic)])
