# SPDX-License-Identifier: Apache-2.0
"""Run estimators on plain labels of public data, as harnesses pass them."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.utils import check_array, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from labeldp.custody._private import PrivateLabels
from labeldp.errors import InvalidInput
from labeldp.noise._words import SeededNoise


class PlainLabels(BaseEstimator):
    """Fit an estimator of labeldp to plain public labels, for harnesses that pass arrays, such as
    scikit-learn's `check_estimator`.

    The noise comes from a seed and the classes, or the range, from the labels: there is no
    guarantee.

    Parameters
    ----------
    estimator : LabelDPClassifier, LabelDPRegressor or another that takes PrivateLabels
    seed : int, default=0
        Seed of the noise.

    Attributes
    ----------
    estimator_ : the fitted estimator, whose fitted attributes this one has, too
    """

    def __init__(self, estimator: Any, seed: int = 0) -> None:
        self.estimator = estimator
        self.seed = seed

    def fit(self, X: Any, y: ArrayLike, **others: Any) -> Self:
        """Close the labels, and fit the estimator.

        Parameters
        ----------
        X : (n, ...) features
        y : (n,) public labels
        **others
            As of the estimator's `fit`, such as weights.
        """
        if y is None:
            raise InvalidInput(f"{self!r} requires y to be passed, but the target y is None.")
        labels = column_or_1d(check_array(y, ensure_2d=False, dtype=None), warn=True)
        check_consistent_length(X, labels)
        if len(labels) < 2:
            raise InvalidInput(f"Expected at least 2 rows, got n_samples={len(labels)}.")
        declared: dict[str, Any]
        if is_classifier(self.estimator):
            check_classification_targets(labels)
            declared = {"classes": np.unique(labels).tolist()}
        else:
            numbers = labels.astype(np.float64)
            declared = {"range": (numbers.min(), max(numbers.max(), numbers.min() + 1))}
        closed = PrivateLabels(labels, noise=SeededNoise(self.seed), **declared)
        self.estimator_ = clone(self.estimator).fit(X, closed, **others)
        return self

    def __getattr__(self, name: str) -> Any:
        fitted = name.endswith("_") and not name.endswith("__")
        if name in ("predict", "predict_proba", "score") or (fitted and name != "estimator_"):
            return getattr(self.__dict__.get("estimator_", self.__dict__.get("estimator")), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __sklearn_tags__(self) -> Any:
        return self.estimator.__sklearn_tags__()

    def __sklearn_is_fitted__(self) -> bool:
        return "estimator_" in vars(self)
