# SPDX-License-Identifier: Apache-2.0
"""Exact sets of 64-bit integers: compressed bitmaps where they lie close together, sorted numbers where they are scattered."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

Words = NDArray[np.uint64]

_BUFFERED: Final = 1 << 22  # numbers that wait, so that a bitmap's container is touched once for many of them
_SPARSE: Final = 4  # numbers to a container of 65,536 values below which bitmaps cost more than 8 bytes a number
_PIECE: Final = 1 << 20


@dataclass(frozen=True, eq=False, repr=False)
class IntegerSet:
    """A set of uint64; `members` is a bitmap, or a sorted array without repeats where the numbers are scattered."""

    members: "BitMap64 | Words"

    def __len__(self) -> int:
        return len(self.members)

    def __and__(self, other: "IntegerSet") -> "IntegerSet":
        return self._with(other, keep=True)

    def __sub__(self, other: "IntegerSet") -> "IntegerSet":
        return self._with(other, keep=False)

    def __or__(self, other: "IntegerSet") -> "IntegerSet":
        mine, theirs = self.members, other.members
        if isinstance(mine, BitMap64) and isinstance(theirs, BitMap64):
            return IntegerSet(mine | theirs)
        pile = IntegerPile()
        for each in (self, other):
            pile.add_set(each)
        return pile.result()

    def _with(self, other: "IntegerSet", *, keep: bool) -> "IntegerSet":
        mine, theirs = self.members, other.members
        if isinstance(mine, BitMap64) and isinstance(theirs, BitMap64):
            return IntegerSet(mine & theirs if keep else mine - theirs)
        if isinstance(mine, np.ndarray):
            return IntegerSet(mine[_inside(mine, theirs) == keep])
        common = BitMap64()  # a bitmap and scattered numbers: what they share is small
        for piece in _pieces(np.asarray(theirs, np.uint64)):
            common |= mine & _bitmap(piece)
        return IntegerSet(common if keep else mine - common)

    def shared(self, other: "IntegerSet") -> int:
        """How many numbers are in both."""
        if isinstance(self.members, BitMap64) and isinstance(other.members, BitMap64):
            return int(self.members.intersection_cardinality(other.members))
        return len(self & other)

    def chunks(self) -> list[memoryview]:
        """Its bytes: one of form, then roaring's portable format or little-endian numbers. Equal sets of one form give equal bytes."""
        if isinstance(self.members, np.ndarray):
            return [memoryview(b"n"), self.members.astype("<u8", copy=False).view(np.uint8).data]
        self.members.run_optimize()
        return [memoryview(b"b"), memoryview(self.members.serialize())]

    @classmethod
    def from_bytes(cls, data: "bytes | memoryview") -> "IntegerSet":
        """The set of such bytes. The caller has checked a digest: the formats themselves are not proof against harm."""
        form, rest = bytes(data[:1]), data[1:]
        if form == b"n":
            return cls(np.frombuffer(rest, "<u8").astype(np.uint64, copy=False))
        return cls(BitMap64.deserialize(bytes(rest)))


@dataclass(frozen=True, eq=False, repr=False)
class NumberSet:
    """A set of whole numbers from -2^63 to 2^64 - 1, the ids that columns of any integer type can hold.

    Attributes
    ----------
    natural, negative : IntegerSet
        Those from 0 on as they are; those below 0 as the 64 bits of their two's complement.
    """

    natural: IntegerSet
    negative: IntegerSet

    def __len__(self) -> int:
        return len(self.natural) + len(self.negative)

    def __and__(self, other: "NumberSet") -> "NumberSet":
        return NumberSet(self.natural & other.natural, self.negative & other.negative)

    def __sub__(self, other: "NumberSet") -> "NumberSet":
        return NumberSet(self.natural - other.natural, self.negative - other.negative)

    def __or__(self, other: "NumberSet") -> "NumberSet":
        return NumberSet(self.natural | other.natural, self.negative | other.negative)

    def shared(self, other: "NumberSet") -> int:
        """How many numbers are in both."""
        return self.natural.shared(other.natural) + self.negative.shared(other.negative)

    def chunks(self) -> list[memoryview]:
        """Its bytes: the length of the first part as 8 bytes, then both."""
        natural = self.natural.chunks()
        return [memoryview(sum(map(len, natural)).to_bytes(8, "little")), *natural, *self.negative.chunks()]

    @classmethod
    def from_bytes(cls, data: "bytes | memoryview") -> "NumberSet":
        """The set of such bytes; see `IntegerSet.from_bytes`."""
        end = 8 + int.from_bytes(data[:8], "little")
        return cls(IntegerSet.from_bytes(data[8:end]), IntegerSet.from_bytes(data[end:]))


class IntegerPile:
    """Collects integers for an `IntegerSet`.

    Memory: 32 MB of waiting numbers, and the set so far: a bit or less a number where they lie close together, at most 2 bytes where
    each 65,536 values hold a few; 8 bytes a number where they are scattered (16 while the set is finished).
    """

    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[Words] = []
        self._n_waiting = 0
        self._bitmap = BitMap64()
        self._scattered: list[Words] = []

    def add(self, values: Words) -> None:
        """Add numbers in any order."""
        if not len(values):
            return
        self.count += len(values)
        first, last = int(values[0]), int(values[-1])
        if last - first == len(values) - 1 and last < 2**64 - 1 and bool((values[1:] - values[:-1] == 1).all()):
            self._bitmap.add_range(first, last + 1)
            return
        self._waiting.append(values)
        self._n_waiting += len(values)
        if self._n_waiting >= _BUFFERED:
            self._flush()

    def add_set(self, other: IntegerSet) -> None:
        """Add the numbers of a set."""
        self.count += len(other)
        if isinstance(other.members, BitMap64):
            self._bitmap |= other.members
        else:
            self._scattered.append(other.members)

    def merge(self, other: "IntegerPile") -> None:
        """Add what another one collected."""
        other._flush()
        self._bitmap |= other._bitmap
        self._scattered += other._scattered
        self.count += other.count

    def result(self) -> IntegerSet:
        """The set of all numbers so far; more may be added afterwards."""
        self._flush()
        if self._scattered and (len(self._scattered) > 1 or self._bitmap):
            self._scattered.append(np.asarray(self._bitmap.to_array(), np.uint64))
            values = np.concatenate(self._scattered)
            self._scattered, self._bitmap = [], BitMap64()
            self._keep(distinct(values))
        return IntegerSet(self._scattered[0] if self._scattered else self._bitmap.copy())

    def __getstate__(self) -> dict[str, Any]:
        self._flush()
        return {"count": self.count, "bitmap": bytes(self._bitmap.serialize()), "scattered": self._scattered}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.count, self._scattered = state["count"], list(state["scattered"])
        self._bitmap = BitMap64.deserialize(state["bitmap"])

    def _flush(self) -> None:
        if self._waiting:
            values = np.concatenate(self._waiting)
            self._waiting, self._n_waiting = [], 0
            self._keep(distinct(values))

    def _keep(self, values: Words) -> None:
        if _is_sparse(values):
            self._scattered.append(values)
        else:
            self._bitmap |= _bitmap(values)


def distinct(values: Words) -> Words:
    """The different ones of these numbers, sorted, which are sorted in place; many times faster than np.unique, which hashes."""
    values.sort()
    fresh = values[1:] != values[:-1]
    return values if fresh.all() else values[np.r_[True, fresh]]


def _is_sparse(values: Words) -> bool:
    return len(values) < _SPARSE * (1 + int(np.count_nonzero((values[1:] ^ values[:-1]) >> np.uint64(16))))


def _pieces(values: Words) -> Iterator[Words]:
    return (values[start : start + _PIECE] for start in range(0, len(values), _PIECE))


def _inside(values: Words, other: "BitMap64 | Words") -> NDArray[np.bool_]:
    """(n,) bool: which of the sorted values are in the other set."""
    if isinstance(other, np.ndarray):
        if not len(other):
            return np.zeros(len(values), bool)
        return np.asarray(other[np.minimum(np.searchsorted(other, values), len(other) - 1)] == values)
    found = [np.zeros(0, bool)]
    for piece in _pieces(values):
        common = np.asarray((_bitmap(piece) & other).to_array(), np.uint64)
        found.append(_inside(piece, common))
    return np.concatenate(found)


def _bitmap(values: Words) -> BitMap64:
    return BitMap64(array("Q", values.tobytes()))  # an array is read as it is; of anything else each number would become an object first
