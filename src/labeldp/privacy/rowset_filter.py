# SPDX-License-Identifier: Apache-2.0
"""A filter of names: 2 bytes a row that tell whether a name was surely not, or probably, among those of an earlier run.

It is a split block Bloom filter as in Apache Parquet (Putze, Sanders and Singler 2007): blocks of 256 bits, one bit in each of the
eight 32-bit words of a block. The hashes are keyed (`labeldp.privacy.noise.id_blocks`), so that whoever has only the filter learns
nothing of the names.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

FALSE_POSITIVES: Final = 0.002
"""At most this share of names that are not in the filter are reported (0.13 % expected at any size)."""

_SALTS: Final = np.array([0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32)
_PIECE: Final = 1 << 18


class NameFilter:
    """Split block Bloom filter over 64-bit keyed hashes; its size is fixed when it is made. No false negatives."""

    __slots__ = ("bits",)

    def __init__(self, bits: NDArray[np.uint32]) -> None:
        self.bits = bits  # (blocks, 8)

    @classmethod
    def of(cls, hashes: Words) -> "NameFilter":
        """The filter of these hashes."""
        made = cls.sized(len(hashes))
        made.add(np.sort(hashes))
        return made

    @classmethod
    def sized(cls, n: int) -> "NameFilter":
        """An empty filter for n hashes: 16 bits each."""
        return cls(np.zeros((max(1, n // 16), 8), np.uint32))

    def add(self, hashes: Words) -> None:
        """Add hashes that are sorted, so that the blocks are in order and each is written once a piece."""
        for start in range(0, len(hashes), _PIECE):
            piece = hashes[start : start + _PIECE]
            block = self._block(piece)
            first = np.flatnonzero(np.r_[True, block[1:] != block[:-1]])
            for word, salt in enumerate(_SALTS):
                self.bits[block[first], word] |= np.bitwise_or.reduceat(_mask(piece, salt), first)

    def has(self, hashes: Words) -> NDArray[np.bool_]:
        """(n,) bool: False where a hash is surely not in the filter."""
        found = np.ones(len(hashes), bool)
        for start in range(0, len(hashes), _PIECE):
            rows = np.arange(start, min(start + _PIECE, len(hashes)))
            for word, salt in enumerate(_SALTS):  # most of those that are not in it leave at the first words
                piece = hashes[rows]
                hit = self.bits[self._block(piece), word] & _mask(piece, salt) != 0
                found[rows[~hit]] = False
                rows = rows[hit]
        return found

    def to_bytes(self) -> bytes:
        """The bits, little-endian."""
        return self.bits.astype("<u4", copy=False).tobytes()

    @classmethod
    def from_bytes(cls, data: "bytes | memoryview") -> "NameFilter":
        """The filter that `to_bytes` wrote."""
        return cls(np.frombuffer(data, "<u4").reshape(-1, 8).astype(np.uint32, copy=False))

    def _block(self, hashes: Words) -> NDArray[np.intp]:
        return ((hashes >> np.uint64(32)) * np.uint64(len(self.bits)) >> np.uint64(32)).astype(np.intp)


def _mask(hashes: Words, salt: np.uint32) -> NDArray[np.uint32]:
    return np.uint32(1) << ((hashes.astype(np.uint32) * salt) >> np.uint32(27))
