# SPDX-License-Identifier: Apache-2.0
"""Labels that wait on disk between a charge's passes: each is added to a pad word that no other one is ever added to.

A writer has a random nonce of its own, and so a key of its own; each row has its own block. So a pad word is used once, also where a
task is tried again. Once the run's secret is destroyed, what was sealed tells nothing.
"""

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import ReleaseError
from labeldp.privacy.noise import Blocks, one_word
from labeldp.privacy.worker import RunSecret

NONCE_BYTES = 16


def fresh_nonce() -> bytes:
    """128 bits of the operating system's entropy, public."""
    return os.urandom(NONCE_BYTES)


def seal(secret: RunSecret, nonce: bytes, blocks: Blocks, codes: NDArray[np.int32]) -> NDArray[np.int32]:
    """Class codes of n different rows, sealed: (n,) int32. A nonce serves one table with different rows, in any number of calls."""
    return np.asarray(codes, np.int32) ^ _pad(secret, nonce, blocks)


def unseal(
    secret: RunSecret, nonces: Sequence[bytes], which: NDArray[np.integer], blocks: Blocks, sealed: NDArray[np.int32], n_classes: int
) -> NDArray[np.int32]:
    """The class codes again; `which` says for each row which of the nonces it was sealed with.

    Raises
    ------
    ReleaseError
        What comes out is no class code: these rows were sealed otherwise, or were changed.
    """
    codes = np.empty(len(sealed), np.int32)
    if len(nonces) == 1:
        codes[:] = sealed ^ _pad(secret, nonces[0], blocks)
    else:
        order = np.argsort(which, kind="stable")
        edges = np.searchsorted(which[order], np.arange(len(nonces) + 1))
        for i, nonce in enumerate(nonces):
            rows = order[edges[i] : edges[i + 1]]
            codes[rows] = sealed[rows] ^ _pad(secret, nonce, blocks[rows])
    if len(codes) and not (codes.min() >= 0 and codes.max() < n_classes):
        raise ReleaseError("Expected the sealed copy of the table as it was written, got another one. Nothing was published.")
    return codes


def _pad(secret: RunSecret, nonce: bytes, blocks: Blocks) -> NDArray[np.int32]:
    words = one_word(secret.key("seal", nonce=nonce.hex()), blocks)
    return (words & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)
