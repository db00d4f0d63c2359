# SPDX-License-Identifier: Apache-2.0
"""Exact search for repeated ids in a stream, in bounded memory: pages of flags for integers, buckets on disk for everything else."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from labeldp.privacy.blocks import INTEGER, Blocks, has_equal

BUFFERED = 1 << 21
"""Ids that wait in memory before they are written to their buckets, 12 bytes each."""
SEARCHED = 1 << 22
"""Ids of a bucket that are compared at a time; a larger bucket is read more than once."""

_PAGE = 1 << 16  # integers one page of flags stands for
_SPARE_PAGES = 256  # pages beyond a byte for each row before integers are treated as scattered
_CHUNK = 1 << 16  # rows worked on at a time
_BUCKETS = 256
_ID = np.dtype([("low", "<u8"), ("high", "<u4")])
_MIX = np.uint64(0x9E3779B97F4A7C15)


class RepeatFinder:
    """Tells whether any id came twice.

    Integer ids that lie close together cost a byte each of memory; other ids 12 bytes each of temporary disk, as the first 96 bits of
    their AES-CMAC (or as the integers themselves), in files without a name, which are gone when the search or the process ends. Beyond
    that, memory is some 100 MB however many ids there are.

    Parameters
    ----------
    folder : Path, optional
        Whose disk is used; the system's folder for temporary files if not given.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._pages: _Pages | None = _Pages()
        self._folder = folder
        self._spills: dict[int, _Spill] = {}
        self._rows = 0
        self._found = False

    def add(self, blocks: Blocks, integers: NDArray[np.integer] | None = None) -> bool:
        """Add ids; True if one of them is already known to be a repeat. `integers` is not needed: the blocks tell."""
        return self.add_blocks(blocks)

    def add_blocks(self, blocks: Blocks) -> bool:
        """Add ids by their blocks, in any order and from any part of a table; True if one of them is already known to be a repeat.

        Blocks of text must be made under one key.
        """
        for start in range(0, len(blocks), _CHUNK):
            self._found = self._found or self._add_chunk(blocks[start : start + _CHUNK])
        return self._found

    def _add_chunk(self, blocks: Blocks) -> bool:
        self._rows += len(blocks)
        if blocks.tag == INTEGER and self._pages is not None:
            numbers = blocks.numbers()
            found = None if numbers is None else self._pages.flag(numbers, self._rows // _PAGE + _SPARE_PAGES)
            if found is not None:
                return found
            for page in self._pages.numbers():  # scattered integers, or above 2^63: all integers go on in one place
                self._spill(INTEGER).add(Blocks(INTEGER, page.view(np.uint64), signed=True))
            self._pages = None
        self._spill(blocks.tag).add(blocks)
        return False

    def any(self) -> bool:
        """True if some id came twice. Ends the search: what was on disk is gone afterwards."""
        try:
            return self._found or any(spill.any() for spill in self._spills.values())
        finally:
            self.close()

    def close(self) -> None:
        """Give up the search and what it keeps on disk."""
        for spill in self._spills.values():
            spill.close()
        self._spills = {}

    def _spill(self, tag: int) -> "_Spill":
        return self._spills.setdefault(tag, _Spill(self._folder))


class _Pages:
    """A flag for each integer of the pages that are in use."""

    def __init__(self) -> None:
        self._known = np.empty(0, np.int64)  # numbers of the pages in use, ascending
        self._slots = np.empty(0, np.int64)  # where the flags of each lie
        self._flags = np.zeros((0, _PAGE), np.uint8)

    def flag(self, values: NDArray[np.int64], allowed: int) -> bool | None:
        """Flag these; True if one was flagged before. None, and nothing is changed, if more pages than allowed would be in use."""
        if not np.all(values[1:] > values[:-1]):
            values = np.sort(values)
            if np.any(values[1:] == values[:-1]):
                return True
        first, last = int(values[0]), int(values[-1])
        if last - first == len(values) - 1:  # all integers from first to last
            pages = np.arange(first >> 16, (last >> 16) + 1)
            edges = (pages[1:] << 16) - first
        else:
            numbers = values >> 16
            edges = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
            pages = numbers[np.r_[0, edges]]
        new = np.setdiff1d(pages, self._known, assume_unique=True)
        if len(self._known) + len(new) > allowed:
            return None
        self._open(new)
        slots, edges = self._slots[np.searchsorted(self._known, pages)], np.r_[0, edges, len(values)]
        if last - first == len(values) - 1:
            return self._flag_ranges(slots.tolist(), edges.tolist(), first % _PAGE)
        places = values + np.repeat((slots - pages) << 16, np.diff(edges))
        flags = self._flags.reshape(-1)
        found = bool(flags.take(places).any())
        flags[places] = 1
        return found

    def _flag_ranges(self, slots: list[int], edges: list[int], begin: int) -> bool:
        """The same for integers in a row, page by page."""
        found = False
        for slot, start, stop in zip(slots, edges[:-1], edges[1:], strict=True):
            flags = self._flags[slot, begin : begin + stop - start]
            found |= bool(flags.any())
            flags[:] = 1
            begin = 0
        return found

    def _open(self, new: NDArray[np.int64]) -> None:
        used = len(self._known)
        if not len(new):
            return
        if used + len(new) > len(self._flags):
            # in place: a large array is moved by its page table, so that memory never holds it twice; no view of it is kept
            self._flags.resize((used + len(new) + used // 8, _PAGE), refcheck=False)
        known = np.r_[self._known, new]
        order = np.argsort(known)
        self._known, self._slots = known[order], np.r_[self._slots, np.arange(used, used + len(new))][order]

    def numbers(self) -> Iterator[NDArray[np.int64]]:
        """The flagged integers, page by page."""
        for page, slot in zip(self._known.tolist(), self._slots.tolist(), strict=True):
            yield np.flatnonzero(self._flags[slot]) + (page << 16)


class _Spill:
    """Ids of one kind in a file that has no name, in runs sorted by bucket: equal ids are of one bucket."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, list[int]]] = []  # where each begins in the file, and its buckets in it, in ids
        self._waiting: list[tuple[NDArray[np.void], list[int]]] = []  # ids by bucket, and where each bucket begins
        self._n_waiting = 0

    def add(self, blocks: Blocks) -> None:
        """Add a chunk of rows: small, so that sorting it stays in the processor's cache."""
        ids = blocks.packed().view(_ID)[:, 0]
        bucket = (_mixed(ids) >> np.uint64(56)).astype(np.uint8)
        order = np.argsort(bucket, kind="stable")  # of bytes: a radix sort
        self._waiting.append((ids.view("V12").take(order), [0, *np.cumsum(np.bincount(bucket, minlength=_BUCKETS)).tolist()]))
        self._n_waiting += len(ids)
        if self._n_waiting >= BUFFERED:
            self._write()

    def any(self) -> bool:
        """True if some id came twice."""
        return any(_has_repeat(ids) for number in range(_BUCKETS) for ids in self._parts(number))

    def close(self) -> None:
        """Delete what is on disk."""
        self._waiting, self._runs = [], []
        if self._file is not None:
            self._file.close()

    def _write(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="labeldp-ids-", dir=self._folder, buffering=0)  # noqa: SIM115 (it outlives this call)
        pieces = [ids[edges[number] : edges[number + 1]] for number in range(_BUCKETS) for ids, edges in self._waiting]
        edges = np.sum([edges for _, edges in self._waiting], axis=0).tolist()
        self._runs.append((self._file.seek(0, 2), edges))
        np.concatenate(pieces).tofile(self._file)
        self._waiting, self._n_waiting = [], 0

    def _parts(self, number: int) -> Iterator[NDArray[np.void]]:
        """The ids of a bucket, equal ones together: in several parts where they are too many."""
        n = sum(edges[number + 1] - edges[number] for _, edges in (*self._runs, *self._waiting))
        n_parts = max(-(-n // SEARCHED), 1)
        for part in range(n_parts):
            found = [np.empty(0, "V12")]
            for ids in self._pieces(number):
                found.append(ids if n_parts == 1 else ids[(_mixed(ids.view(_ID)) >> np.uint64(24)) % np.uint64(n_parts) == part])
            yield np.concatenate(found).view(_ID)

    def _pieces(self, number: int) -> Iterator[NDArray[np.void]]:
        for begin, edges in self._runs:
            assert self._file is not None
            self._file.seek(begin + _ID.itemsize * edges[number])
            yield np.frombuffer(self._file.read(_ID.itemsize * (edges[number + 1] - edges[number])), "V12")
        for ids, edges in self._waiting:
            yield ids[edges[number] : edges[number + 1]]


def _mixed(ids: NDArray[np.void]) -> NDArray[np.uint64]:
    """A hash of ids for spreading them; of CMACs and of integers."""
    mixed: NDArray[np.uint64] = (ids["low"] ^ (ids["high"].astype(np.uint64) << np.uint64(17))) * _MIX
    return mixed


def _has_repeat(ids: NDArray[np.void]) -> bool:
    low = np.ascontiguousarray(ids["low"])
    if not has_equal(low):  # the rule: two different ids hardly ever agree in 64 bits
        return False
    order = np.lexsort((ids["high"], low))
    ordered = ids.view("V12")[order]
    return bool(np.any(ordered[1:] == ordered[:-1]))
