# SPDX-License-Identifier: Apache-2.0
"""Datasets whose items carry the evidence of their own row, matched by id and watched for a change of order."""

import hashlib
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Dataset, IterableDataset

from labeldp.deep._losses import Shape, evidence_of, require_noisy
from labeldp.errors import InvalidInput, LabelDPWarning
from labeldp.evidence import NoisyLabels
from labeldp.protocol._matching import positions_of


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


WATCHED = 64  # items that stand for a whole dataset: their content is compared each time they are read
_LOOKS = 4  # times that each of them is read again before it is trusted; more where there are fewer of them
_AGAIN = 8  # times that an item which has changed is read again before it counts as another one


def fingerprint(item: object) -> bytes:
    """16 bytes that depend on the item's content: tensors, arrays, images, and tuples, lists and mappings of such things.

    Parameters
    ----------
    item : object
        Features only. Anything else is pickled.
    """
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest, item)
    return digest.digest()


def _feed(digest: "hashlib.blake2b", item: object) -> None:
    if isinstance(item, torch.Tensor):
        digest.update(f"t{item.dtype}{tuple(item.shape)}".encode())
        digest.update(item.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(item, Mapping):
        for key in item:
            _feed(digest, str(key))
            _feed(digest, item[key])
    elif isinstance(item, tuple | list):
        digest.update(f"s{len(item)}".encode())
        for part in item:
            _feed(digest, part)
    elif hasattr(item, "__array_interface__") and not np.asarray(item).dtype.hasobject:  # arrays, and PIL's images
        array = np.asarray(item)
        digest.update(f"a{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    else:
        digest.update(pickle.dumps(item))


def first_look(read: Callable[[int], object], n: int) -> dict[int, bytes]:
    """Fingerprints of some items, by position; none where an item differs from itself when it is read again, as with random transforms.

    A transform that rarely changes an item would be taken for none by a short look, so each of the items is read several times.

    Parameters
    ----------
    read : function of a position in [0, n)
        Gives the features of the item there.
    n : int
        At least 1.
    """
    chosen = np.unique(np.linspace(0, n - 1, min(WATCHED, n)).round().astype(np.int64)).tolist()
    marks = {i: fingerprint(read(i)) for i in chosen}
    passes = -(-_LOOKS * WATCHED // len(chosen))
    steady = all(fingerprint(read(i)) == marks[i] for _ in range(passes) for i in chosen)
    return marks if steady else {}


def still_there(mark: bytes, item: object, again: Callable[[], object]) -> bool:
    """Whether an item is the one that was marked; one that a rare random transform has changed is, since it comes back as it was.

    Parameters
    ----------
    mark : bytes
    item : object
        The features that were read.
    again : function
        Reads them once more.
    """
    return fingerprint(item) == mark or any(fingerprint(again()) == mark for _ in range(_AGAIN))


def require_id(expected: Any, found: object, position: int) -> None:
    """Refuse an item that names itself by another id than the one that was to stand there."""
    if not np.array_equal(np.asarray(found).reshape(-1), np.asarray(expected).reshape(-1)):
        raise InvalidInput(
            f"Expected the item with id {np.asarray(expected).tolist()!r} at position {position}, got id {np.asarray(found).tolist()!r}: "
            "the dataset's order has changed. Match the evidence again, or fix the dataset's order."
        )


def warn_unwatched() -> None:
    """Say that nobody would see it if the order of a dataset changed."""
    warnings.warn(
        "Items of the dataset differ each time they are read, as with random transforms: if its order changed, items would be trained with "
        "other rows' labels, and nobody would see it. Pass id_of=, by which each item names itself, or transform batches: "
        "Recipe(augment=...).",
        LabelDPWarning,
        stacklevel=4,
    )
