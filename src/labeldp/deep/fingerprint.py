# SPDX-License-Identifier: Apache-2.0
"""Short digests of what a Dataset returns for its items, to see whether the same position still holds the same item."""

import hashlib
import pickle
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from labeldp.errors import InvalidInput, LabelDPWarning

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
