# SPDX-License-Identifier: Apache-2.0
"""Raw labels as `fit` gets them, read in the first process alone. Nothing here keeps or shows one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp.deep.ranks import from_first, is_first
from labeldp.errors import InvalidInput
from labeldp.privacy.encode import as_array
from labeldp.protocol.fitting import FitSettings, check_count, settled_classes

Settled = tuple[tuple[object, ...], bool]


def labels_here(settings: FitSettings, y: Any, n_rows: int) -> tuple[NDArray[Any], Settled]:
    """Checked raw labels in the first process, none in the others, where nothing is looked at; and in all of them what the classes are.

    Parameters
    ----------
    settings : FitSettings
    y : (n,) raw labels; in the other processes anything, such as None
    n_rows : int

    Raises
    ------
    InvalidInput
        In every process: labels that are missing, or not one a row, or whose classes are neither declared nor can be read off them.
    """
    here: list[NDArray[Any]] = []

    def read() -> Settled:
        here.append(_checked(y, n_rows))
        return settled_classes(settings, here[0])

    settled = from_first(read)
    return here[0] if is_first() else np.empty(0), settled


def _checked(y: Any, n_rows: int) -> NDArray[Any]:
    """One a row; no message shows a label."""
    if y is None:
        raise InvalidInput(
            "Expected y: raw labels, or NoisyLabels; got None. Labels in a Dataset or DataLoader are not looked at: pass them as y; of a "
            "dataset of with_evidence pass dataset.noisy."
        )
    labels = as_array(y)
    check_count(len(labels), n_rows)
    return labels
