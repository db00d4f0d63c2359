# SPDX-License-Identifier: Apache-2.0
"""Collects the hashes of names for a filter, in memory or, where there are many, in a temporary file."""

import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from labeldp.privacy.rowset_filter import NameFilter
from labeldp.privacy.rowset_integers import distinct

Words = NDArray[np.uint64]

HELD: Final = 1 << 21  # hashes in memory before they go to the file


class HashPile:
    """64-bit hashes, added in any order.

    Memory: 8 bytes each; with `spill` 16 MB, and the rest in a temporary file without a name, which is gone with the process.
    """

    def __init__(self, *, spill: bool = False) -> None:
        self.count = 0
        self._spill = spill
        self._held: list[Words] = []
        self._n_held = 0
        self._file: BinaryIO | None = None

    def add(self, hashes: Words) -> None:
        """Add hashes."""
        self.count += len(hashes)
        self._held.append(hashes)
        self._n_held += len(hashes)
        if self._spill and self._n_held >= HELD:
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the pile
            for piece in self._held:
                piece.tofile(self._file)
            self._held, self._n_held = [], 0

    def merge(self, other: "HashPile") -> None:
        """Add what another one collected."""
        for piece in other._pieces():
            self.add(piece)

    def finish(self) -> tuple[NameFilter, int]:
        """The filter, and how many different hashes there are; at least so many, where they went to a file."""
        if self._file is None:
            hashes = distinct(np.concatenate([*self._held, np.empty(0, np.uint64)]))
            return NameFilter.of(hashes), len(hashes)
        made, count = NameFilter.sized(self.count), 0
        for piece in self._pieces():
            different = distinct(piece.copy())
            made.add(different)
            count += len(different)
        return made, count

    def _pieces(self) -> Iterator[Words]:
        if self._file is not None:
            self._file.seek(0)
            while len(piece := np.fromfile(self._file, np.uint64, HELD)):
                yield piece
        yield from self._held

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"held": list(self._pieces()), "spill": self._spill}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(spill=state["spill"])  # type: ignore[misc]
        for piece in state["held"]:
            self.add(piece)
