# SPDX-License-Identifier: Apache-2.0
"""Raw labels to class codes, by the declared classes; no message ever shows a label."""

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp.errors import DomainLeakWarning, InvalidInput


def declare(classes: Sequence[object] | NDArray[np.generic], n_classes: int | None = None) -> tuple[object, ...]:
    """The declared classes as a tuple of plain values: at least two, all different, none missing.

    Raises
    ------
    InvalidInput
        Otherwise, or if their number is not `n_classes`.
    """
    values = tuple(value.item() if isinstance(value, np.generic) else value for value in classes)
    if any(value is None or value != value for value in values):  # NaN differs from itself
        raise InvalidInput("Expected classes without missing values; name a class for them and fill them in.")
    if len(set(values)) != len(values):
        raise InvalidInput(f"Expected different classes, got {len(values)} of which {len(set(values))} are different.")
    if len(values) < 2:
        raise InvalidInput(f"Expected at least 2 classes, got {len(values)}. One class needs no privacy.")
    if n_classes is not None and len(values) != n_classes:
        raise InvalidInput(f"Expected {n_classes} classes, as many as the law or the query is about, got {len(values)}.")
    return values


def infer_classes(labels: ArrayLike) -> tuple[object, ...]:
    """The distinct labels, sorted: reveals that each of them occurs, so it warns."""
    warnings.warn(
        "The classes were read off the private labels, which reveals that each of them occurs. Declare them: classes=[...].",
        DomainLeakWarning,
        stacklevel=3,
    )
    return declare(np.unique(as_array(labels)))


def encode(labels: ArrayLike, classes: Sequence[object]) -> NDArray[np.int32]:
    """Class codes of raw labels.

    Parameters
    ----------
    labels : (n,) array, list, or column of a data frame
    classes : sequence of K values

    Returns
    -------
    (n,) int32 in 0..K-1

    Raises
    ------
    InvalidInput
        If a label is missing or not declared: names its row, never its value.
    """
    array = as_array(labels)
    codes = _by_table(array, classes) if array.dtype.kind == "O" else _by_search(array, classes)
    bad = np.flatnonzero(codes < 0)
    if len(bad):
        raise InvalidInput(
            f"Expected every label to be one of the {len(classes)} declared classes, but row {bad[0]} is not (and {len(bad) - 1} more). "
            "Declare the class, or give missing labels a class of their own."
        )
    return codes


def as_array(labels: ArrayLike) -> NDArray[np.generic]:
    """Labels as a one-dimensional NumPy array; columns of data frames and of Arrow tables are fine."""
    if np.ma.is_masked(labels):
        raise InvalidInput("Expected a label in every row, got masked ones. Give missing labels a class of their own, or drop such rows.")
    array = np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InvalidInput(f"Expected a one-dimensional column of labels, got shape {array.shape}.")
    return np.asarray(array)


def _by_search(array: NDArray[np.generic], classes: Sequence[object]) -> NDArray[np.int32]:
    known = np.asarray(classes)
    if not (known.dtype.kind == array.dtype.kind or {known.dtype.kind, array.dtype.kind} <= set("biuf")):
        return _by_table(array.astype(object), classes)
    order = np.argsort(known)
    place = np.minimum(np.searchsorted(known[order], array), len(known) - 1)
    return np.where(known[order][place] == array, order[place], -1).astype(np.int32)


def _by_table(array: NDArray[np.generic], classes: Sequence[object]) -> NDArray[np.int32]:
    table = {value: code for code, value in enumerate(classes)}
    return np.fromiter((table.get(value, -1) if _hashable(value) else -1 for value in array.tolist()), np.int32, len(array))


def _hashable(value: object) -> bool:
    return not isinstance(value, (list, dict, set, np.ndarray))
