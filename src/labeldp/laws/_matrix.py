# SPDX-License-Identifier: Apache-2.0
"""Laws whose probabilities are an explicit matrix, and nothing else: no side, and any number of
outputs."""

from abc import abstractmethod
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

import numpy as np

from labeldp.laws._base import Cell, Law, Side, Table, range_over
from labeldp.laws._exact import Array, Floats, Words, as_prior, set_bytes

Rows = tuple[tuple[int | Fraction, ...], ...]
"""For each of K labels the exact probability of each output, in units of 1 / `_whole`: K rows of m,
each of which sums to `_whole`."""


class WithoutSide(Law):
    """Base of laws without a side: their output is a packed set of classes, or by default one of m
    numbers."""

    uses_prior: ClassVar[bool] = False

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        as_prior(prior, self.n_classes)
        return {}

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        if self.kind == "set":
            return {"output": (np.dtype(np.uint8), (set_bytes(self.n_classes),))}
        return {"output": (np.dtype(np.int32), ())}


class OfMatrix(WithoutSide):
    """Base of laws whose probabilities are any matrix."""

    _whole: ClassVar[int] = 1

    @property
    @abstractmethod
    def _rows(self) -> Rows: ...

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        return scores_of(self._rows, self._whole)[np.asarray(outputs, dtype=np.intp)]

    def weights(self, outputs: Array, side: Side) -> Floats:
        """Compute unbiased weights, (n, K) float64: rows of the matrix's inverse, or of the one
        with least variance if outputs are more."""
        return inverse_of(self._rows, self._whole)[np.asarray(outputs, dtype=np.intp)]

    def loss_range(self, losses: Floats, outputs: Array, side: Side) -> Floats:
        return range_over(inverse_of(self._rows, self._whole), losses)

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        cells = ((y, j, share) for y, row in enumerate(self._rows) for j, share in enumerate(row))
        return tuple(
            Cell(f"class {y}", f"output {j}", "released", Fraction(share) / self._whole, 1)
            for y, j, share in cells
        )

    def table(self, side_row: Side) -> Table:
        place = {
            share: i
            for i, share in enumerate(sorted({share for row in self._rows for share in row}))
        }
        index = np.array([[place[share] for share in row] for row in self._rows], dtype=np.uint32)
        outputs = np.arange(len(self._rows[0]), dtype=np.int32)
        return Table(outputs, tuple(Fraction(share) / self._whole for share in place), index)


@lru_cache(maxsize=64)
def matrix_of(rows: Rows, whole: int) -> Floats:
    """Convert exact rows to probabilities: (K, m) float64."""
    return np.array(rows, dtype=np.float64) / whole


@lru_cache(maxsize=64)
def scores_of(rows: Rows, whole: int) -> Floats:
    """Compute ln P[output | y] for each output, (m, K), with maximum 0 in each row."""
    score = np.log(matrix_of(rows, whole)).T
    return np.asarray(score - score.max(axis=1, keepdims=True))


@lru_cache(maxsize=64)
def inverse_of(rows: Rows, whole: int) -> Floats:
    """Compute the (m, K) matrix X of least variance with matrix_of(rows) @ X = 1, for labels that
    are all equally likely; NaN without one.

    In floating point: the product is 1 up to 1e-9 of the largest entry.
    """
    matrix = matrix_of(rows, whole)
    scale = matrix.mean(axis=0)
    # Neighbouring rows are nearly equal at a small epsilon, so that their exact differences are
    # inverted.
    steps = (
        np.array(
            [[a - b for a, b in zip(upper, lower, strict=True)] for lower, upper in pairwise(rows)],
            dtype=np.float64,
        )
        / whole
    )
    known = np.vstack([matrix[:1], steps]) / np.sqrt(scale)
    wanted = np.eye(len(rows)) - np.eye(len(rows), k=-1)
    size = np.abs(known).max(axis=1, keepdims=True)
    found = np.linalg.lstsq(known / size, wanted / size, rcond=1e-12)[0] / np.sqrt(scale)[:, None]
    found += (1.0 - found.sum(axis=1, keepdims=True)) / len(rows)
    error = np.abs(matrix @ found - np.eye(len(rows))).max()
    return np.asarray(
        found
        if error <= 1e-9 * max(1.0, float(np.abs(found).max()))
        else np.full(found.shape, np.nan)
    )
