# SPDX-License-Identifier: Apache-2.0
"""Feature tables as users have them: the checks that come before a charge, and a digest that names the rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array, get_tags

from labeldp._hash import array_digest
from labeldp.errors import InvalidInput
from labeldp.learn.model import Estimator

_TABLES = ("shape", "iloc", "__array__", "__array_interface__", "__dataframe__", "__arrow_c_stream__")


def check_features(X: Any, estimator: Estimator, name: str) -> Any:
    """X as it goes to the estimator: data frames and object arrays pass as they are, numbers are checked for what it refuses.

    Arrays of more than two dimensions pass where it `takes_images`; `name` is whom messages speak of.
    """
    if not isinstance(X, Sequence) and hasattr(X, "__len__") and not any(hasattr(X, name) for name in _TABLES):
        raise InvalidInput(
            f"Expected X as an array, a sparse matrix or a data frame, got {type(X).__name__}. Pass its rows as one array; "
            "labeldp.deep.TorchClassifier by itself takes Datasets and DataLoaders."
        )
    if hasattr(X, "iloc") or (isinstance(X, np.ndarray) and X.dtype.kind in "OUS" and X.ndim == 2):
        return X
    tags = get_tags(estimator).input_tags
    return check_array(
        X,
        accept_sparse=["csr", "csc"] if tags.sparse else False,
        ensure_all_finite="allow-nan" if tags.allow_nan else True,
        allow_nd=takes_images(estimator),
        dtype=None if getattr(X, "dtype", np.dtype(object)).kind != "O" else "numeric",
        estimator=name,
        input_name="X",
    )


def takes_images(estimator: Any) -> bool:
    """Whether it, or the first step of a pipeline, says by its tags that arrays may have three dimensions and more."""
    if isinstance(estimator, Pipeline):
        return takes_images(estimator.steps[0][1])
    return hasattr(estimator, "__sklearn_tags__") and bool(get_tags(estimator).input_tags.three_d_array)


def features_digest(X: Any) -> str:
    """SHA-256 of the public columns, so that a repeat of a fit is recognised."""
    if hasattr(X, "tocsr"):
        rows = X.tocsr(copy=True)
        rows.sort_indices()
        return array_digest({"data": rows.data, "indices": rows.indices.astype(np.int64), "indptr": rows.indptr.astype(np.int64)})
    columns = [X.iloc[:, j].to_numpy() for j in range(X.shape[1])] if hasattr(X, "iloc") else np.asarray(X).T
    return array_digest({str(j): _plain(column) for j, column in enumerate(columns)})


def _plain(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """Objects as text, so that bytes stand for values and not for addresses."""
    return values.astype(np.str_) if values.dtype.kind == "O" else values
