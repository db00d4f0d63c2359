# SPDX-License-Identifier: Apache-2.0
"""Raw labels as `fit` gets them, read in the first process alone. Nothing here keeps or shows one."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp.deep.ranks import distributed, from_first, is_first
from labeldp.errors import DomainLeakWarning, InvalidInput
from labeldp.privacy.encode import as_array, infer_classes
from labeldp.protocol.fitting import check_count


def labels_here(y: Any, n_rows: int, *, declared: bool) -> NDArray[Any]:
    """Checked raw labels in the first process; in the others nothing is looked at, and they get what a plan needs in their place.

    Parameters
    ----------
    y : (n,) raw labels; in the other processes anything, such as None
    n_rows : int
    declared : bool
        Whether classes are; else the others get those that occur, which the plan makes public anyway.

    Raises
    ------
    InvalidInput
        In every process: labels that are missing, or not one a row, or that cannot be classes.
    """
    here: list[NDArray[Any]] = []

    def read() -> tuple[object, ...]:
        here.append(_checked(y, n_rows, declared))
        return () if declared or not distributed() else _classes_of(here[0])

    classes = from_first(read)
    return here[0] if is_first() else np.asarray(classes)


def _classes_of(labels: NDArray[Any]) -> tuple[object, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DomainLeakWarning)  # the plan gives it
        return infer_classes(labels)


def _checked(y: Any, n_rows: int, declared: bool) -> NDArray[Any]:
    """One a row, of a kind that can be classes; no message shows a label."""
    if y is None:
        raise InvalidInput(
            "Expected y: raw labels, or NoisyLabels; got None. Labels in a Dataset or DataLoader are not looked at: pass them as y; of a "
            "dataset of with_evidence pass dataset.noisy."
        )
    labels = as_array(y)
    check_count(len(labels), n_rows)
    if not declared and labels.dtype.kind == "f" and not np.array_equal(labels, np.round(labels)):
        raise InvalidInput("Expected labels of classes, got fractions or missing values. Bin them, or declare classes=.")
    return labels
