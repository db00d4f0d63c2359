# SPDX-License-Identifier: Apache-2.0
"""Raw labels as `fit` gets them, read in the first process alone. Nothing here keeps or shows one."""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import DataLoader, Subset

from labeldp.custody._encode import as_array
from labeldp.deep._data import WithEvidence
from labeldp.deep._inputs import Inputs, Streamed
from labeldp.deep._loop import from_first, is_first
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.protocol._fitting import FitSettings, check_count, settled_classes
from labeldp.protocol._matching import matched_by_id, require_same_rows, warn_of_order

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


def together(X: Any, inputs: Inputs, noisy: NoisyLabels, ids: ArrayLike | None) -> tuple[Inputs, NoisyLabels]:
    """Inputs and noisy labels of the same rows, in the order of X.

    Parameters
    ----------
    X : what `inputs` was made of
    inputs : Inputs
    noisy : NoisyLabels
    ids : (len(inputs),) or (len(inputs), columns) array, optional
        Of the inputs: they decide, and inputs without a noisy label are left out. Without them a dataset of `with_evidence` must have the
        ids of `noisy`, and all else the rows of `noisy` in their order.

    Raises
    ------
    InvalidInput
        Other ids, or another number of rows.
    """
    known = _names(X, inputs)
    if ids is not None:
        if known is not None and not np.array_equal(known, np.asarray(ids)):
            raise InvalidInput("Expected the ids of the rows that X has, got others than the dataset was matched by. Leave ids= out.")
        places, noisy = matched_by_id(ids, len(inputs), noisy)
        same = np.array_equal(places, np.arange(len(inputs)))
        return (inputs if same else inputs.take(torch.from_numpy(places))), noisy
    require_same_rows(len(inputs), noisy)
    if known is None:
        warn_of_order(noisy, own=False)  # a Dataset has an order of its own
    elif not np.array_equal(known, noisy.ids):
        raise InvalidInput(
            "Expected the noisy labels that the dataset was matched to, got those of other ids. Pass dataset.noisy, or ids=."
        )
    return inputs, noisy


def require_own_order(X: Any, ids: ArrayLike | None) -> None:
    """Refuse raw labels with a dataset whose items `with_evidence` has put into another order, unless ids say which is which.

    Parameters
    ----------
    X : what `fit` was given
    ids : array, optional
        Of the rows.
    """
    found = _matched(X)
    if found is None:
        return
    data, rows = found
    named = ids is not None and np.array_equal(np.asarray(ids), data.noisy.ids[rows])
    if not named and not np.array_equal(data.positions, np.arange(len(data.positions))):
        raise InvalidInput(
            "Expected noisy labels with a dataset of with_evidence, whose items are in the order of its noisy labels; got raw labels. Pass "
            "dataset.noisy, or the dataset that it was made of."
        )


def _matched(X: Any) -> tuple[WithEvidence, NDArray[np.int64]] | None:
    """The dataset of `with_evidence` that X is, or is made of, and which of its rows X has."""
    if isinstance(X, DataLoader | Streamed):
        return _matched(X.dataset)
    if isinstance(X, Subset):
        found = _matched(X.dataset)
        return None if found is None else (found[0], found[1][np.asarray(X.indices, np.int64)])
    return (X, np.arange(len(X))) if isinstance(X, WithEvidence) else None


def _names(X: Any, inputs: Inputs) -> NDArray[Any] | None:
    """Ids by which inputs were matched, or name themselves."""
    if isinstance(inputs, Streamed) and inputs.names is not None:
        return inputs.names
    found = _matched(X)
    return None if found is None else found[0].noisy.ids[found[1]]
