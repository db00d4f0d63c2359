# SPDX-License-Identifier: Apache-2.0
"""A fitted scikit-learn estimator as a model of the true label, and how to fit one on weighted classes."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.dummy import DummyClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter

from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.protocol.metrics import log_evidence

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
Estimator = Any  # scikit-learn has no types


@dataclass(frozen=True, eq=False)
class Model:
    """A fitted estimator that was trained on class codes.

    Attributes
    ----------
    estimator : fitted scikit-learn estimator
    n_classes : int
    channel : (own, other) or None
        How often the own class, and another one, is in a row's output, where the estimator predicts members of outputs; None where it
        predicts true labels.
    rounds : int
        Rounds of expectation-maximisation behind it.
    frequencies : (K,) array or None
        Of the classes, where they are known to the model.
    share : float in [0, 1]
        How much of the estimator's probabilities is taken; the rest is the frequencies.
    chose : bool
        Held-out rows, every other one, chose the rounds: those cannot measure it.
    """

    estimator: Estimator
    n_classes: int
    channel: tuple[float, float] | None = None
    rounds: int = 0
    frequencies: Floats | None = None
    share: float = 1.0
    chose: bool = False

    def predict_proba(self, X: object) -> Floats:
        """Probabilities of the true label: (n, K), rows sum to 1."""
        p = self._undone(self._aligned(X))
        return p if self.frequencies is None else np.asarray(self.share * p + (1.0 - self.share) * self.frequencies)

    def _undone(self, shares: Floats) -> Floats:
        """Probabilities of the true label, from those of members of outputs where the estimator predicts these; none below a floor."""
        if self.channel is None:
            return shares
        own, other = self.channel
        size = own + (self.n_classes - 1) * other  # of an output, on average
        floor = 0.01 / self.n_classes if self.frequencies is None else np.minimum(0.01 / self.n_classes, 0.5 * self.frequencies)
        p = np.maximum((shares * size - other) / (own - other), floor)
        return np.asarray(p / p.sum(axis=1, keepdims=True))

    def _aligned(self, X: object) -> Floats:
        """The estimator's probabilities with a column for each of the K classes; certain predictions where it has none."""
        if not hasattr(self.estimator, "predict_proba"):
            return np.eye(self.n_classes)[np.asarray(self.estimator.predict(X), np.int64)]
        found = np.asarray(self.estimator.predict_proba(X), np.float64)
        table = np.zeros((len(found), self.n_classes))
        table[:, np.asarray(self.estimator.classes_, np.int64)] = found
        return table

    def log_evidence(self, X: object, noisy: NoisyLabels) -> Floats:
        """Log-probability of what was released for each row, up to a constant a row: what models are chosen by."""
        return log_evidence(noisy, self.predict_proba(X))


_listener: ContextVar[Callable[[], object] | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def heard_by(listener: Callable[[], object] | None) -> Iterator[None]:
    """Call a function after each fit of an estimator in this context; None: nobody hears."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell_of_fit() -> None:
    """An estimator has been fitted."""
    listener = _listener.get()
    if listener is not None:
        listener()


def fit_codes(estimator: Estimator, X: object, rows: Codes, codes: Codes, weights: Floats | None = None) -> Estimator:
    """Fit a clone on these rows of X, each with a class code and a weight; a constant model where only one class is left.

    Parameters
    ----------
    estimator : scikit-learn classifier or pipeline, left as it is
    X : array, sparse matrix or data frame of n rows
    rows, codes : (m,) int
    weights : (m,) float, optional
        Only where `weight_keyword` finds that the estimator takes them.
    """
    keyword = weight_keyword(estimator) if weights is not None else None
    one_class = len(codes) == 0 or codes.min() == codes.max()
    fitted = DummyClassifier() if one_class else clone(estimator)
    keyword = "sample_weight" if one_class and keyword else keyword
    fitted = fitted.fit(take(X, rows), codes, **({keyword: weights} if keyword else {}))
    tell_of_fit()
    return fitted


def require_classifier(estimator: Estimator) -> None:
    """Refuse regressors, clusterers and classes instead of instances, which would be charged for and then predict nonsense."""
    try:
        fits = not isinstance(estimator, type) and hasattr(estimator, "fit") and is_classifier(estimator)
    except (AttributeError, TypeError):  # it has no tags
        fits = False
    if not fits:
        name = estimator.__name__ + " itself" if isinstance(estimator, type) else type(estimator).__name__
        raise InvalidInput(
            f"Expected a scikit-learn classifier, or a pipeline that ends in one, got {name}. A class of your own: derive it from "
            "ClassifierMixin and BaseEstimator, and pass an instance."
        )


def weight_keyword(estimator: Estimator) -> str | None:
    """The keyword under which `fit` takes sample weights, following pipelines to their last step; None if it takes none."""
    if isinstance(estimator, Pipeline):
        name, last = estimator.steps[-1]
        inner = None if isinstance(last, str) else weight_keyword(last)
        return None if inner is None else f"{name}__{inner}"
    return "sample_weight" if has_fit_parameter(estimator, "sample_weight") else None


def take(X: object, rows: Codes) -> object:
    """These rows of an array, a sparse matrix or a data frame."""
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    return X[rows] if hasattr(X, "__getitem__") and hasattr(X, "shape") else np.asarray(X)[rows]


def seeded(estimator: Estimator, random_state: np.random.RandomState | None) -> Estimator:
    """A clone in which every random_state that is None has a number from this generator."""
    copy = clone(estimator)
    if random_state is None:
        return copy
    params = copy.get_params().items()
    free = sorted(name for name, value in params if value is None and f"__{name}".endswith("__random_state"))
    return copy.set_params(**{name: int(random_state.randint(np.iinfo(np.int32).max)) for name in free})
