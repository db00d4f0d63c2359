# SPDX-License-Identifier: Apache-2.0
"""A matrix of `Features` as a net takes it: numbers standardised and without gaps, each category a column of its own."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack

from labeldp.tables.features import Features


@dataclass(frozen=True)
class Standardised:
    """How the columns of a matrix become columns for a net.

    Attributes
    ----------
    mean, scale : tuple of float
        Of each number in training; 0 and 1 for categories.
    gaps : tuple of bool
        Columns of numbers with values missing in training; each gets one more column, which says where.
    categories : tuple of int
        How many codes each column has, "any other" counted; 0 for numbers.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    gaps: tuple[bool, ...]
    categories: tuple[int, ...]

    @property
    def width(self) -> int:
        """Columns for the net."""
        return sum(self.categories) + self.categories.count(0) + sum(self.gaps)

    def apply(self, matrix: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """(n, width) float32, all finite. A missing or infinite number becomes the mean; a missing category is in none of its columns."""
        out = np.zeros((len(matrix), self.width), np.float32)
        at = 0
        for i, codes in enumerate(self.categories):
            there = np.isfinite(matrix[:, i])
            if codes:
                rows = np.flatnonzero(there)
                out[rows, at + matrix[rows, i].astype(np.int64)] = 1
                at += codes
                continue
            out[there, at] = np.clip((matrix[there, i] - self.mean[i]) / self.scale[i], -_FAR, _FAR)
            at += 1
            if self.gaps[i]:
                out[:, at] = ~there
                at += 1
        return out

    def sparse(self, matrix: NDArray[np.floating[Any]]) -> csr_matrix:
        """The same as a sparse matrix: with many categories nearly all of it is 0."""
        step = max(1, _CELLS // max(1, self.width))
        return vstack([csr_matrix(self.apply(matrix[i : i + step])) for i in range(0, len(matrix), step)], format="csr")

    def to_dict(self) -> dict[str, object]:
        """JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Standardised":
        """What `to_dict` wrote."""
        return cls(
            tuple(map(float, data["mean"])),
            tuple(map(float, data["scale"])),
            tuple(map(bool, data["gaps"])),
            tuple(map(int, data["categories"])),
        )


_CELLS = 1 << 24  # that are dense at a time
_FAR = 1e6  # standard deviations; float32 stays exact enough


def learn_standardised(matrix: NDArray[np.floating[Any]], features: Features | None = None) -> Standardised:
    """Means and scales of public columns, of which some are categories if `features` says so."""
    width = matrix.shape[1]
    codes = [0] * width if features is None else [len(f.categories) + 1 if f.kind == "category" else 0 for f in features.columns]
    mean, scale, gaps = [0.0] * width, [1.0] * width, [False] * width
    for i in np.flatnonzero(np.asarray(codes) == 0):
        values = matrix[:, i][np.isfinite(matrix[:, i])].astype(np.float64)
        gaps[i] = len(values) < len(matrix)
        if len(values):
            mean[i], spread = float(values.mean()), float(values.std())
            scale[i] = spread if np.isfinite(spread) and spread > 0 else 1.0
    return Standardised(tuple(mean), tuple(scale), tuple(gaps), tuple(codes))
