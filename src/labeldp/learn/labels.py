# SPDX-License-Identifier: Apache-2.0
"""Raw labels as users have them: the checks that come before a charge. Nothing here keeps or shows a label."""

import warnings
from typing import Any

from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from labeldp.errors import InvalidInput
from labeldp.protocol.fitting import check_count


def len_of(X: Any) -> int:
    """Rows of an array, sparse matrix or data frame."""
    return int(X.shape[0])


def checked_labels(y: Any, n_rows: int, inferred: bool) -> Any:
    """Raw labels, one a row, of a kind that can be classes; no message shows a label, and no warning depends on them."""
    labels = column_or_1d(y, warn=True)
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
