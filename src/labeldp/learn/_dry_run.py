# SPDX-License-Identifier: Apache-2.0
"""The dry run: a training on a few rows with made-up classes, so that what would stop the real one is found before the charge."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.laws import RandomizedResponse
from labeldp.learn._features import text_columns
from labeldp.learn._labels import len_of
from labeldp.learn._model import Estimator, Model, fit_codes, heard_by, take
from labeldp.protocol._estimator import undisturbed

_FEW, _ROUNDS, _CATEGORIES = 60, 5, 300
_LENGTHS = ("max_iter", "n_estimators", "iterations", "n_iter", "num_boost_round")

Fit = Callable[[Estimator, Any, NoisyLabels], Model]


def dry_run(estimator: Estimator, X: Any, n_classes: int, rows: int, fit: Fit | None = None) -> None:
    """Fit a copy to some rows of X with made-up labels, and predict all of X: first few rows and rounds, then as many as the fit will have.

    Parameters
    ----------
    estimator : scikit-learn classifier or pipeline
        Cloned, never changed.
    X : array, sparse matrix or data frame of n rows
    n_classes : int
    rows : int
        As many as the smallest part of the fit is expected to have.
    fit : function of an estimator, inputs and noisy labels, optional
        How the fit will learn; None: from class codes.

    Raises
    ------
    InvalidInput
        Whatever stops both of them. A few rows can be too few for an estimator, so that they do not decide.

    Notes
    -----
    No label is read. Cost: a fit of a few rounds on a few rows and a prediction of X; a whole fit only where that fails. Global random
    states are as before.
    """
    n = len_of(X)
    few = min(max(2, rows), max(_FEW, 4 * n_classes))
    tries = [_some_rows(X, few), *([_of_each_category(X)] if text_columns(X) else [])]
    failures = (_failure(_short(estimator), X, some, n_classes, fit) for some in tries)
    found = next((failure for failure in failures if failure is not None), None)
    if found is not None and few < rows:
        found = _failure(_stateless(clone(estimator)), X, _some_rows(X, rows), n_classes, fit)
    if found is not None:
        what = str(found).strip().split("\n")[0].removesuffix(".") or type(found).__name__
        raise (_WrongType if isinstance(found, TypeError) else InvalidInput)(
            f"Expected an estimator that can be fitted to some rows of X and predict all {n}, got {type(found).__name__}: {what}. "
            f"Nothing was charged or drawn.{_advice(what)}"
        ) from found


class _WrongType(InvalidInput, TypeError):
    """What was a TypeError is one still."""


def _failure(estimator: Estimator, X: Any, rows: NDArray[np.int64], n_classes: int, fit: Fit | None) -> Exception | None:
    codes = np.arange(len(rows)) % n_classes
    try:
        with undisturbed(), heard_by(None):
            if fit is None:
                model = Model(fit_codes(estimator, X, rows, codes), n_classes)
            else:
                model = fit(estimator, take(X, rows), NoisyLabels.from_labels(codes, RandomizedResponse(n_classes, 1.0)))
            model.predict_proba(X)
    except MemoryError:
        raise
    except Exception as error:
        return error
    return None


def _some_rows(X: Any, count: int) -> NDArray[np.int64]:
    """So many rows, spread evenly, and for each column the first one in which a value is missing."""
    n = len_of(X)
    return np.union1d(np.linspace(0, n - 1, min(count, n)).astype(np.int64), _first_missing(X))


def _first_missing(X: Any) -> NDArray[np.int64]:
    if hasattr(X, "isna"):
        missing = X.isna().to_numpy()
    elif isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind == "f":
        missing = np.isnan(X)
    else:
        return np.empty(0, np.int64)
    return np.asarray(missing.argmax(axis=0)[missing.any(axis=0)], np.int64)


def _of_each_category(X: Any) -> NDArray[np.int64]:
    """The first row of every value of columns of text and categories, up to some hundreds each: a number of them can be too large."""
    found = [np.arange(min(2, len_of(X)))]
    for j in text_columns(X):
        values = np.asarray(X.iloc[:, j] if hasattr(X, "iloc") else X[:, j], object)
        found.append(np.sort(np.unique([str(value) for value in values], return_index=True)[1])[:_CATEGORIES])
    return np.unique(np.concatenate(found))


def _short(estimator: Estimator) -> Estimator:
    """A clone that stops after a few rounds, where it has a number of them."""
    copy = _stateless(clone(estimator))
    numbers = {name: value for name, value in copy.get_params().items() if f"__{name}".endswith(tuple(f"__{each}" for each in _LENGTHS))}
    return copy.set_params(**{name: _ROUNDS for name, value in numbers.items() if isinstance(value, int) and value > _ROUNDS})


def _stateless(estimator: Estimator) -> Estimator:
    """Without a folder where a training keeps its state, and without a listener, which hears of the real one alone."""
    kept = [name for name in estimator.get_params() if f"__{name}".endswith(("__folder", "__progress"))]
    return estimator.set_params(**dict.fromkeys(kept)) if kept and getattr(estimator, "takes_raw_labels", False) else estimator


def _advice(what: str) -> str:
    if "could not convert string" in what or "dtype" in what:
        return " Encode text columns, as OneHotEncoder(handle_unknown='ignore') in a ColumnTransformer does; estimator=None does it itself."
    if "NaN" in what or "missing values" in what:
        return " Fill the gaps, for example with SimpleImputer() as the first step of a pipeline; estimator=None takes them as they are."
    if "unknown categor" in what:
        return " Categories that are rare are new to a part of the rows: OneHotEncoder(handle_unknown='ignore') takes them."
    return ""
