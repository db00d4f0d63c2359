# SPDX-License-Identifier: Apache-2.0
"""Sets of classes as packed bits: class c is bit c % 8 of byte c // 8; bits past K are zero.

Nothing here indexes memory by a class that could be a private label: `contains` and `single` compare against every byte of the row.
"""

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint8]
_BYTES = 1 << 18  # bytes of packed rows that are worked on at a time


def n_bytes(n_classes: int) -> int:
    """Count the bytes of a packed set."""
    return -(-n_classes // 8)


def pack(mask: NDArray[np.bool_]) -> Bits:
    """Pack (n, K) bool to (n, ceil(K/8)) uint8."""
    bits: Bits = np.packbits(mask, axis=1, bitorder="little")
    return bits


def pack_columns(mask: NDArray[np.bool_]) -> Bits:
    """Pack (K, n) bool, a class a row, to (n, ceil(K/8)) uint8: quicker than `pack` for a few classes."""
    out = np.zeros((mask.shape[1], n_bytes(len(mask))), dtype=np.uint8)
    for c, row in enumerate(mask.view(np.uint8)):
        out[:, c // 8] |= row << np.uint8(c % 8)
    return out


def unpack(packed: Bits, n_classes: int) -> NDArray[np.bool_]:
    """Unpack (n, ceil(K/8)) uint8 to (n, K) bool."""
    bits: Bits = np.unpackbits(packed.astype(np.uint8, copy=False), axis=1, count=n_classes, bitorder="little")
    mask: NDArray[np.bool_] = bits.view(np.bool_)
    return mask


def full(n_classes: int) -> Bits:
    """Make the set of all classes, one packed row."""
    return pack(np.ones((1, n_classes), dtype=np.bool_)).reshape(-1)


def popcount(packed: Bits) -> NDArray[np.int64]:
    """Count the classes of each row's set."""
    if packed.shape[1] <= 8:
        return np.bitwise_count(_word(packed)).astype(np.int64)
    return np.asarray(np.bitwise_count(packed).sum(axis=1, dtype=np.int64))


def single(labels: NDArray[np.integer], n_classes: int) -> Bits:
    """Make the sets that hold each label alone: (n, ceil(K/8))."""
    size = n_bytes(n_classes)
    index = labels.astype(np.int32, copy=False)
    bit = np.left_shift(np.uint8(1), (index & 7).astype(np.uint8))
    hit = (index >> 3)[:, None] == np.arange(size, dtype=np.int32)
    return np.asarray(hit.view(np.uint8) * bit[:, None])


def contains(packed: Bits, labels: NDArray[np.integer], n_classes: int) -> NDArray[np.bool_]:
    """Test whether each row's set holds the row's label: (n,). Cost: a few passes over the packed bytes, whatever the label."""
    if packed.shape[1] <= 8:  # one machine word holds the set: shift it by the label
        shifted = _word(packed) >> labels.astype(np.uint64)
        return np.asarray((shifted & np.uint64(1)).astype(np.bool_))
    found = np.empty(len(labels), dtype=np.bool_)
    for rows in row_slices(len(labels), packed.shape[1]):
        found[rows] = (single(labels[rows], n_classes) & packed[rows]).any(axis=1)
    return found


def _word(packed: Bits) -> NDArray[np.uint64]:
    """Read at most 8 bytes a row as one machine word: (n,)."""
    word = np.zeros((len(packed), 8), dtype=np.uint8)
    word[:, : packed.shape[1]] = packed
    return np.asarray(word.view("<u8")[:, 0], dtype=np.uint64)


def row_slices(n_rows: int, width: int) -> list[slice]:
    """Cut rows into slices that keep a few packed arrays of this width in the cache."""
    step = max(1, _BYTES // max(1, width))
    return [slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def _byte_select() -> NDArray[np.uint8]:
    """Tabulate [byte, j] = position of the j-th set bit of the byte (8 where there is none)."""
    table = np.full((256, 9), 8, dtype=np.uint8)
    for byte in range(256):
        positions = [bit for bit in range(8) if byte >> bit & 1]
        table[byte, : len(positions)] = positions
    return table


_SELECT = _byte_select()


def _bytes_passed(ends: NDArray[np.int32], wanted: NDArray[np.int32]) -> NDArray[np.int64]:
    """Count the bytes of each row that end before its wanted bit; a byte at a time where rows are short."""
    if ends.shape[1] > 8:
        return np.asarray((ends <= wanted[:, None]).sum(axis=1))
    passed = np.zeros(len(ends), dtype=np.int64)
    for column in ends.T:
        passed += column <= wanted
    return passed


def select(packed: Bits, *indices: NDArray[np.integer]) -> tuple[NDArray[np.int32], ...]:
    """Find the j-th class of each row's set, from 0, for each array of j given: int32 (n,); meaningless where the set is smaller."""
    out = tuple(np.empty(len(packed), dtype=np.int32) for _ in indices)
    last = packed.shape[1] - 1
    for rows in row_slices(len(packed), 4 * packed.shape[1]):
        part = packed[rows]
        # Members up to the end of each byte say which byte holds the wanted one; a table says which bit of that byte it is.
        ends = np.cumsum(np.bitwise_count(part), axis=1, dtype=np.int32)
        every = np.arange(len(part))
        for result, index in zip(out, indices, strict=True):
            wanted = index[rows].astype(np.int32)
            byte = np.minimum(_bytes_passed(ends, wanted), last)
            value = part[every, byte]
            within = wanted - ends[every, byte] + np.bitwise_count(value)
            result[rows] = 8 * byte + _SELECT[value, np.clip(within, 0, 8)]
    return out
