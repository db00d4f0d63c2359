# SPDX-License-Identifier: Apache-2.0
"""Takes the labels out of a Dataset that has no list of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler

from labeldp.custody._encode import not_plain, unseen
from labeldp.custody._private import PrivateLabels
from labeldp.errors import InvalidInput
from labeldp.ledger._ledger import Ledger
from labeldp.noise._words import SeededNoise
from labeldp.protocol._matching import spread

_AGAIN = 64  # items that are read twice
_log = logging.getLogger("labeldp")


class InputsOf(Dataset[Any]):
    """The inputs of a Dataset of (input, label, ...) items, without their labels."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: int) -> Any:
        item = self.items[position]
        return item[0] if isinstance(item, tuple | list) else item


@unseen(not_plain)
def split_labels(
    items: Any,
    label_of: Callable[[Any], object] | None = None,
    *,
    classes: Sequence[object] | None = None,
    range: Sequence[float] | None = None,
    points: int | None = None,
    dataset: str | None = None,
    column: str | None = None,
    ids: ArrayLike | Mapping[str, ArrayLike] | None = None,
    unit: ArrayLike | Mapping[str, ArrayLike] | None = None,
    max_rows_per_unit: int = 1,
    ledger: Ledger | None = None,
    noise: SeededNoise | None = None,
) -> tuple[InputsOf, PrivateLabels]:
    """Split a Dataset into its inputs and closed labels, by reading each item once.

    Where the labels are a list, such as `dataset.targets`, `labeldp.PrivateLabels(dataset.targets)`
    beside the Dataset is faster.

    Parameters
    ----------
    items : map-style Dataset, or DataLoader of one that does not shuffle
        Each item is a tuple, the input first.
    label_of : function of an item, optional
        Returns its label. By default the label is the second part of the item.
    classes, range, points, dataset, column, ids, unit, max_rows_per_unit, ledger, noise
        As in `labeldp.PrivateLabels`; `dataset` is the name of the account.

    Returns
    -------
    X : Dataset of the inputs alone
    labels : PrivateLabels
        In the order of X.

    Raises
    ------
    InvalidInput
        The Dataset has no length or no order, an item cannot be read or has another label the
        second time, or an argument is not allowed. No message shows a label.

    Notes
    -----
    Cost: every item is read once, and 64 of them twice, in this process; a line of the log says how
    long it took. Transforms that draw at random must not change the label.

    Examples
    --------
    >>> import labeldp as ldp, torch
    >>> data = torch.utils.data.TensorDataset(torch.zeros(3, 2), torch.tensor([0, 1, 0]))
    >>> X, labels = ldp.deep.split_labels(data, classes=[0, 1])
    >>> len(X), labels
    (3, 3 labels of 2 classes, closed)
    """
    if isinstance(items, DataLoader):
        if not isinstance(items.sampler, SequentialSampler):
            raise InvalidInput(
                "Expected a DataLoader that does not shuffle, got one with another sampler. Pass"
                " its Dataset."
            )
        items = items.dataset
    if isinstance(items, IterableDataset) or not hasattr(items, "__len__"):
        raise InvalidInput(
            f"Expected a map-style Dataset, got {type(items).__name__}, whose items have no places."
            " Make the labels with labeldp.PrivateLabels."
        )
    labels = PrivateLabels(
        _labels_of(items, label_of),
        classes=classes,
        range=range,
        points=points,
        dataset=dataset,
        column=column,
        ids=ids,
        unit=unit,
        max_rows_per_unit=max_rows_per_unit,
        ledger=ledger,
        noise=noise,
    )
    return InputsOf(items), labels


def _labels_of(items: Any, label_of: Callable[[Any], object] | None) -> Any:
    """Read the label of each item, and of some of them twice."""
    begun, n = time.monotonic(), len(items)
    found = [_label(items[position], label_of) for position in np.arange(n).tolist()]
    _log.info("Read the labels of %s items in %.1f s.", f"{n:,}", time.monotonic() - begun)
    again = spread(n, 2, _AGAIN).tolist()
    if any(_label(items[position], label_of) != found[position] for position in again):
        raise InvalidInput(
            "Expected a Dataset whose item has the same label each time it is read, got one that"
            " gives others. Its transforms must not draw or move labels."
        )
    return found


def _label(item: Any, label_of: Callable[[Any], object] | None) -> object:
    label: Any = item[1] if label_of is None else label_of(item)
    return label.item() if getattr(label, "ndim", None) == 0 else label
