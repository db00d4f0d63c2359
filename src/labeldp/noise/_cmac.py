# SPDX-License-Identifier: Apache-2.0
"""AES-CMAC (RFC 4493) of many messages at once: how a string id becomes a block of fixed size."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from labeldp._strings import LongestFirst, Rows

CHUNK = 1 << 15
"""Rows worked on at a time: small enough that buffers stay in the processor's cache."""

WORD = np.dtype("<u8")


class Messages(Protocol):
    """Byte strings that are read a chunk at a time."""

    def chunks(self) -> Iterator[tuple[slice, Rows]]:
        """All rows in order, and where they stand."""


def encryptor(key: bytes) -> CipherContext:
    """A context that turns each 16-byte block into its AES encryption; it keeps no state between blocks."""
    # ECB is AES itself: a keyed permutation of blocks. Every block here is a distinct input, nothing is being hidden by it.
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor()


def space_for(n: int) -> NDArray[np.uint8]:
    """Space for the encryption of n blocks; AES asks for 15 spare bytes behind them."""
    return np.empty(16 * n + 15, np.uint8)


def encrypt(context: CipherContext, blocks: NDArray[np.uint64], into: NDArray[np.uint8] | None = None) -> NDArray[np.uint64]:
    """AES of each row of a C-contiguous (n, 2) array, byte order little-endian; (n, 2) of the same, in the space given or a new one."""
    out = space_for(len(blocks)) if into is None else into
    context.update_into(blocks.view(np.uint8).reshape(-1).data, out.data)
    return out[: blocks.nbytes].view(WORD).reshape(-1, 2)


def cmac_chunks(key: bytes, messages: Messages) -> Iterator[tuple[slice, NDArray[np.uint64]]]:
    """CMAC of each message, a chunk of rows at a time: where they stand, and (m, 2) uint64, little-endian, valid until the next chunk.

    Notes
    -----
    Source: RFC 4493. Cost: one AES call for each 16 bytes of the longest message of a chunk, over the rows that reach so far.
    """
    context = encryptor(key)
    ends = _Ends(context)
    space = space_for(0)
    for where, rows in messages.chunks():
        if len(space) < 16 * len(rows) + 15:
            space = space_for(len(rows))
        yield where, _chunk(context, ends, LongestFirst(rows), space)


def _chunk(context: CipherContext, ends: "_Ends", rows: LongestFirst, space: NDArray[np.uint8]) -> NDArray[np.uint64]:
    out = np.empty(len(rows), "V16")
    state: NDArray[np.uint64] | None = None
    running, place = len(rows), 0
    while running:
        further = rows.reach(place + 16)  # rows with a block after this one
        message = rows.at(place, 16, running).copy().view(WORD).reshape(-1, 2)
        ends.finish(message[further:], rows.lengths[further:running] - place)
        if state is not None:
            message ^= state[:running]
        state = encrypt(context, message, space)
        out[further:running] = state.view("V16")[further:running, 0]
        running, place = further, place + 16
    return rows.unsorted(out).view(WORD).reshape(-1, 2)


class _Ends:
    """How the last block of a message is padded and keyed, by the 0 to 16 bytes of the message in it."""

    def __init__(self, context: CipherContext) -> None:
        complete, padded = _subkeys(context)
        mark = np.vstack([np.diag(np.full(16, 0x80, np.uint8)), np.zeros((1, 16), np.uint8)]).view(WORD)  # 0x80 behind the message
        self._change = (mark ^ np.where(np.arange(17)[:, None] < 16, padded, complete)).view("V16")[:, 0]
        self._keep = np.tril(np.full((17, 16), 0xFF, np.uint8), -1).view("V16")[:, 0]

    def finish(self, message: NDArray[np.uint64], lengths: NDArray[np.int64]) -> None:
        """Pad and key last blocks in place."""
        message &= self._keep.take(lengths).view(WORD).reshape(-1, 2)
        message ^= self._change.take(lengths).view(WORD).reshape(-1, 2)


def _subkeys(context: CipherContext) -> NDArray[np.uint64]:
    """K1, for a complete last block, and K2, for a padded one (RFC 4493, section 2.3): (2, 2) uint64."""
    keys = []
    number = int.from_bytes(encrypt(context, np.zeros((1, 2), WORD)).tobytes(), "big")
    for _ in range(2):
        number = (number << 1) ^ (0x87 if number >> 127 else 0)
        number &= (1 << 128) - 1
        keys.append(np.frombuffer(number.to_bytes(16, "big"), WORD))
    return np.array(keys)
