# SPDX-License-Identifier: Apache-2.0
"""Datasets whose items carry the evidence of their own row, matched by id and watched for a change of order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Dataset, IterableDataset

from labeldp.deep.evidence import Shape, evidence_of, require_noisy
from labeldp.deep.fingerprint import WATCHED, first_look, require_id, still_there, warn_unwatched
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.protocol.matching import positions_of


class MapDataset(Protocol):
    """A Dataset with positions: what torch calls map-style."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class WithEvidence(Dataset[tuple[Any, ...]]):
    """Items (x, i, log-likelihood row); made by `with_evidence`.

    Attributes
    ----------
    noisy : NoisyLabels of n rows
    evidence : Form of n rows
        What rows are taken from; `evidence.to(device)[i]` is the same on a device.
    positions : (n,) int64 array
        Where in the dataset each noisy row's item is.
    watched_by : {"id", "content", "nothing"}
        How a change of order is seen: by each item's own id, by the content of some items, or not at all, since reading an item several
        times gave different content (a random transform); then a warning says so.
    """

    def __init__(
        self,
        dataset: MapDataset,
        noisy: NoisyLabels,
        positions: NDArray[np.int64],
        *,
        features: Callable[[Any], Any],
        id_of: Callable[[Any], object] | None,
        rows: bool,
        form: Shape,
    ) -> None:
        self.dataset, self.noisy, self.positions, self.rows = dataset, noisy, positions, rows
        self.evidence = evidence_of(noisy, form=form)
        self._features, self._id_of = features, id_of
        self._marks = first_look(lambda i: features(dataset[int(positions[i])]), len(positions)) if id_of is None else {}
        self.watched_by = "id" if id_of is not None else "content" if self._marks else "nothing"
        if self.watched_by == "nothing":
            warn_unwatched()

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        """(x, i, (K,) float32), or (x, i) with `rows=False`; i is the row in `noisy`."""
        return self.__getitems__([i])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, ...]]:
        """Several items; DataLoaders ask for a batch at once."""
        wanted = [self._row(i) for i in indices]
        found = [(self._read(i), i) for i in wanted]
        if not self.rows:
            return found
        table = self.evidence[torch.tensor(wanted, dtype=torch.int64)].expand(self.noisy.n_classes)
        return [(x, i, table[j]) for j, (x, i) in enumerate(found)]

    def check_order(self) -> None:
        """Read the watched items again.

        Raises
        ------
        InvalidInput
            If one of them is not what stood at its position when the evidence was matched.
        """
        for i in self._marks or (range(0, len(self), -(-len(self) // WATCHED)) if self._id_of else ()):
            self._read(i)

    def _row(self, i: int) -> int:
        if not -len(self) <= i < len(self):
            raise IndexError(f"Expected a row of {len(self)}, got {i}.")
        return int(i) % len(self)

    def _read(self, i: int) -> Any:
        position = int(self.positions[i])
        item = self.dataset[position]
        if self._id_of is not None:
            require_id(self.noisy.ids[i], self._id_of(item), position)
        x = self._features(item)
        if i in self._marks and not still_there(self._marks[i], x, lambda: self._features(self.dataset[position])):
            raise InvalidInput(
                f"Expected the item that stood at position {position} when the evidence was matched, got another one: the "
                "dataset's order or content has changed, so that items would be trained with other rows' labels. Fix the dataset's "
                "order, or pass id_of= so that each item names itself."
            )
        return x


def with_evidence(
    dataset: MapDataset,
    noisy: NoisyLabels,
    *,
    ids: ArrayLike | None = None,
    features: Callable[[Any], Any] | None = None,
    id_of: Callable[[Any], object] | None = None,
    rows: bool = True,
    form: Shape = "auto",
) -> WithEvidence:
    """A Dataset of items (x, i, log-likelihood row), matched to noisy labels by id.

    Parameters
    ----------
    dataset : map-style Dataset
        Items that `noisy` does not know are left out.
    noisy : NoisyLabels of n rows
    ids : (len(dataset),) array, optional
        Id of each item, all different, as they were given to `privatize`. By default an item's id is its position.
    features : function of an item, optional
        What of an item is x. By default the first part of a tuple or list, which leaves labels behind, or the item itself.
    id_of : function of an item, optional
        The id that an item carries; then every item that is read is checked against its row.
    rows : bool
        False leaves the log-likelihood row out, for loops that keep the evidence on the device: `evidence.to(device)[i]`.
    form : {"auto", "dense", "compact"}
        See `evidence_of`.

    Returns
    -------
    WithEvidence of n items, in the order of `noisy`; works in a DataLoader with workers. Cost: 8 bytes a row, and the evidence.

    Raises
    ------
    InvalidInput
        Ids that repeat, do not match the dataset's length, or lack a noisy row; a dataset without positions; items that are mappings
        without `features`. Later, when reading: an item that is not the one that was matched, so that a dataset whose order changes
        between epochs stops the training.

    Examples
    --------
    >>> loader = DataLoader(with_evidence(images, noisy), batch_size=256, shuffle=True)  # doctest: +SKIP
    >>> for x, i, log_likelihood in loader:  # doctest: +SKIP
    ...     loss = likelihood_loss(model(x), log_likelihood)
    """
    require_noisy(noisy)
    require_positions(dataset)
    positions = positions_of(np.arange(len(dataset)) if ids is None else np.asarray(ids), len(dataset), noisy, given=ids is not None)
    return WithEvidence(dataset, noisy, positions, features=features or first_part, id_of=id_of, rows=rows, form=form)


def first_part(item: Any) -> Any:
    """What of a dataset's item is x, unless the user says otherwise: the first part of a tuple or list, which leaves labels behind."""
    if isinstance(item, Mapping):
        raise InvalidInput(
            f"Expected to know which part of an item is x, got a mapping with keys {', '.join(map(str, item))}. Say it to with_evidence or "
            "as_inputs, for example as_inputs(X, features=lambda item: item['pixel_values']), and leave the label out."
        )
    return item[0] if isinstance(item, tuple | list) else item


def require_positions(dataset: Any) -> None:
    """A map-style Dataset."""
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InvalidInput(
            f"Expected a map-style Dataset with __len__ and __getitem__, got {type(dataset).__name__}: a stream has no positions to match "
            "labels to. Put it into a map-style Dataset, or yield ids and use evidence_of(noisy) in your loop."
        )
