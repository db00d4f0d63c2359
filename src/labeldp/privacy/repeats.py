# SPDX-License-Identifier: Apache-2.0
"""Exact search for repeated ids in a stream, in bounded memory: pages of flags for integers, buckets on disk for everything else."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labeldp.privacy.blocks import Blocks

_PAGE = 1 << 16  # integers one page of flags stands for
_SPARE_PAGES = 256  # pages beyond a byte for each row before integers are treated as scattered
_BUCKETS = 64


class RepeatFinder:
    """Tells whether any id came twice.

    Integer ids that lie close together cost a byte each of memory; other ids 16 bytes each of temporary disk, as AES-CMAC tags (or as
    the integers themselves), readable by the owner only and deleted when the search ends.
    """

    def __init__(self) -> None:
        self._pages: dict[int, NDArray[np.bool_]] | None = {}
        self._folder: Path | None = None
        self._rows = 0

    def add(self, blocks: Blocks, integers: NDArray[np.integer] | None = None) -> bool:
        """Add ids by their blocks, and as integers where they are; True if one of them is already known to be a repeat."""
        self._rows += len(blocks)
        if integers is not None and self._pages is not None and len(self._pages) * _PAGE <= self._rows + _SPARE_PAGES * _PAGE:
            return self._flag(integers)
        self._spill_pages()
        self._spill(blocks.templates())
        return False

    def any(self) -> bool:
        """True if some id came twice. Ends the search: temporary files are gone afterwards."""
        try:
            return self._folder is not None and any(
                _has_repeat(np.fromfile(path, np.uint64).reshape(-1, 2)) for path in self._folder.iterdir()
            )
        finally:
            self.close()

    def close(self) -> None:
        """Delete the temporary files."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _flag(self, integers: NDArray[np.integer]) -> bool:
        assert self._pages is not None
        values = np.sort(integers.astype(np.int64))
        if np.any(values[1:] == values[:-1]):
            return True
        number = values >> 16
        starts = np.r_[0, np.flatnonzero(np.diff(number)) + 1] if len(values) else np.empty(0, np.int64)
        for start, stop in zip(starts, np.r_[starts[1:], len(values)], strict=True):
            page = self._pages.setdefault(int(number[start]), np.zeros(_PAGE, bool))
            place = values[start:stop] & (_PAGE - 1)
            if page[place].any():
                return True
            page[place] = True
        return False

    def _spill_pages(self) -> None:
        """Integers turned out to be scattered, or other ids follow them: write the flagged ones out as blocks."""
        from labeldp.privacy.blocks import blocks_of

        for number, page in (self._pages or {}).items():
            self._spill(blocks_of(np.flatnonzero(page) + (number << 16), lambda: b"").templates())
        self._pages = None

    def _spill(self, templates: NDArray[np.uint64]) -> None:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="labeldp-ids-"))
        mixed = (templates[:, 0] ^ (templates[:, 1] << np.uint64(17))) * np.uint64(0x9E3779B97F4A7C15)
        bucket = (mixed >> np.uint64(58)).astype(np.int64)
        order = np.argsort(bucket, kind="stable")
        edges = np.searchsorted(bucket[order], np.arange(_BUCKETS + 1))
        for number in np.unique(bucket):
            with open(self._folder / str(number), "ab") as file:
                templates[order[edges[number] : edges[number + 1]]].tofile(file)


def _has_repeat(templates: NDArray[np.uint64]) -> bool:
    order = np.lexsort((templates[:, 0], templates[:, 1]))
    ordered = templates[order]
    return bool(np.any((ordered[1:] == ordered[:-1]).all(axis=1)))
