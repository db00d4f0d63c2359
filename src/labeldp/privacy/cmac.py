# SPDX-License-Identifier: Apache-2.0
"""AES-CMAC (RFC 4493) of many messages at once: how a string id becomes a block of fixed size."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

CHUNK = 1 << 15
"""Rows worked on at a time: small enough that buffers stay in the processor's cache."""

WORD = np.dtype("<u8")


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


def cmac(key: bytes, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
    """CMAC of each message data[offsets[i]:offsets[i + 1]].

    Parameters
    ----------
    key : bytes
        16 bytes.
    data : (m,) uint8
        The messages, end to end.
    offsets : (n + 1,) int64
        Where each begins and the last one ends.

    Returns
    -------
    (n, 16) uint8

    Notes
    -----
    Source: RFC 4493. Cost: one AES call for each 16 bytes of the longest message of a chunk, over the rows that reach so far.
    """
    context = encryptor(key)
    out = np.empty((len(offsets) - 1, 16), np.uint8)
    for start in range(0, len(out), CHUNK):
        stop = min(start + CHUNK, len(out))
        out[start:stop] = _chunk(context, data, offsets[start : stop + 1])
    return out


def _chunk(context: CipherContext, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
    padded = np.zeros(offsets[-1] - offsets[0] + 16, np.uint8)
    padded[:-16] = data[offsets[0] : offsets[-1]]
    windows = np.ndarray(len(padded) - 15, "V16", padded, strides=(1,))  # the 16 bytes from each place, without copies
    lengths = np.diff(offsets)
    order = np.argsort(-lengths, kind="stable")  # longest first: the rows still running are always the leading ones
    begins, lengths = (offsets[:-1] - offsets[0])[order], lengths[order]
    blocks = np.maximum(1, -(-lengths // 16))
    state, keys = np.zeros((len(order), 2), WORD), _subkeys(context)
    running = len(order)
    for j in range(int(blocks[0]) if len(blocks) else 0):
        further = int(np.searchsorted(-blocks, -j - 1, side="left"))  # rows with a block after this one
        message = windows[begins[:running] + 16 * j].view(WORD).reshape(-1, 2)
        _finish(message[further:], lengths[further:running] - 16 * j, keys)
        state[:running] = encrypt(context, state[:running] ^ message)
        running = further
    out = np.empty((len(order), 16), np.uint8)
    out[order] = state.view(np.uint8)
    return out


_KEEP = np.tril(np.full((17, 16), 0xFF, np.uint8), -1).view(WORD)
"""Row m keeps the first m bytes of a block."""
_MARK = np.vstack([np.diag(np.full(16, 0x80, np.uint8)), np.zeros((1, 16), np.uint8)]).view(WORD)
"""Row m puts 0x80 behind m bytes; a complete block takes none."""


def _finish(message: NDArray[np.uint64], lengths: NDArray[np.int64], keys: NDArray[np.uint64]) -> None:
    """Pad and key last blocks in place, which have 0 to 16 bytes of the message."""
    message &= _KEEP[lengths]
    message ^= _MARK[lengths] ^ keys[(lengths < 16).astype(np.intp)]


def _subkeys(context: CipherContext) -> NDArray[np.uint64]:
    """K1, for a complete last block, and K2, for a padded one (RFC 4493, section 2.3): (2, 2) uint64."""
    keys = []
    number = int.from_bytes(encrypt(context, np.zeros((1, 2), WORD)).tobytes(), "big")
    for _ in range(2):
        number = (number << 1) ^ (0x87 if number >> 127 else 0)
        number &= (1 << 128) - 1
        keys.append(np.frombuffer(number.to_bytes(16, "big"), WORD))
    return np.array(keys)
