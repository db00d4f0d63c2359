# SPDX-License-Identifier: Apache-2.0
"""A short digest of what a Dataset returns for an item, to see whether the same position still holds the same item."""

import hashlib
import pickle
from collections.abc import Mapping

import numpy as np
import torch


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
