# SPDX-License-Identifier: Apache-2.0
"""Short digests of what a Dataset returns for its items, to see whether the same position still holds the same item."""

import hashlib
import pickle
from collections.abc import Callable, Mapping

import numpy as np
import torch

WATCHED = 64  # items that stand for a whole dataset: their content is compared each time they are read


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
    """Fingerprints of some items, by position; none where an item differs from itself when it is read twice, as with random transforms.

    Parameters
    ----------
    read : function of a position in [0, n)
        Gives the features of the item there.
    n : int
        At least 1.
    """
    chosen = np.unique(np.linspace(0, n - 1, min(WATCHED, n)).round().astype(np.int64)).tolist()
    first = fingerprint(read(chosen[0]))
    marks = {i: fingerprint(read(i)) for i in chosen}
    steady = first == marks[chosen[0]] and all(fingerprint(read(i)) == marks[i] for i in chosen[-3:])
    return marks if steady else {}
