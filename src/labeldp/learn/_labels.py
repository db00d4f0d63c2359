# SPDX-License-Identifier: Apache-2.0
"""Labels as users have them: what raw ones are checked for before a charge, and which row of X a noisy one belongs to; none is shown."""

import contextlib
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from labeldp.custody._encode import infers, not_plain
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.learn._model import take
from labeldp.protocol._fitting import FitSettings, check_count, settled_classes
from labeldp.protocol._matching import matched_by_id, require_same_rows, warn_of_order


def len_of(X: Any) -> int:
    """Rows of an array, sparse matrix or data frame."""
    return int(X.shape[0])


def checked_labels(y: Any, n_rows: int, inferred: bool) -> Any:
    """Raw labels, one a row, of a kind that can be classes; no message shows a label, and no warning depends on them."""
    labels = None
    with contextlib.suppress(UnicodeError):  # left behind, not chained: it holds and quotes a label
        labels = column_or_1d(y, warn=True)
    if labels is None:
        raise not_plain()
    check_count(len(labels), n_rows)
    if labels.dtype.kind == "f":
        assert_all_finite(labels, input_name="y")
    if inferred:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it warns by how many labels are different
                check_classification_targets(labels)
        except TypeError:
            raise InvalidInput("Expected labels of one type, none missing, got several types. Convert them, or declare classes=.") from None
    return labels


def read_labels(settings: FitSettings, y: Any, n_rows: int) -> tuple[NDArray[Any], tuple[tuple[object, ...], bool]]:
    """Checked raw labels, the classes, and whether these were read off the labels.

    Parameters
    ----------
    settings : FitSettings
    y : (n_rows,) raw labels
    n_rows : int
    """
    labels = checked_labels(y, n_rows, inferred=infers(settings.classes))
    return labels, settled_classes(settings, labels)


def together(X: Any, noisy: NoisyLabels, ids: ArrayLike | None) -> tuple[Any, NoisyLabels]:
    """Rows of X and noisy labels of the same rows, in the order of X; rows without a noisy label are left out where ids are given.

    Parameters
    ----------
    X : array, sparse matrix or data frame
    noisy : NoisyLabels
    ids : (len of X,) or (len of X, columns) array, optional
        They decide. Without them the order does: a named index that has the ids of `noisy` vouches for it or speaks against it, and where
        nothing does, a warning says so.

    Raises
    ------
    InvalidInput
        Other ids, another number of rows, or an index that shows another order.
    """
    n_rows = len_of(X)
    if ids is not None:
        places, noisy = matched_by_id(ids, n_rows, noisy)
        return (X if np.array_equal(places, np.arange(n_rows)) else take(X, places)), noisy
    require_same_rows(n_rows, noisy)
    index = _named_index(X)
    if index is None or not noisy.explicit_ids or not _same_set(index, noisy.ids):
        warn_of_order(noisy, own=True)
    elif not np.array_equal(index, noisy.ids):
        raise InvalidInput(
            "Expected the rows of X in the order of the noisy labels, got an index that has their ids in another order. Pass ids=X.index, "
            "and they are matched."
        )
    return X, noisy


def _named_index(X: Any) -> Any:
    """The index of a data frame that somebody has made of a column; None otherwise."""
    index = getattr(X, "index", None) if hasattr(X, "iloc") else None
    return None if index is None or getattr(index, "name", None) is None else np.asarray(index)


def _same_set(these: Any, those: Any) -> bool:
    return these.shape == those.shape and set(these.tolist()) == set(those.tolist())
