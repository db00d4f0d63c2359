# SPDX-License-Identifier: Apache-2.0
"""Draws of one law under one receipt: what noisy labels are made of."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp.laws.base import Array, Law
from labeldp.receipt import Receipt

CELLS = 1 << 22  # float64 cells in one batch of likelihoods: 32 MiB


@dataclass(frozen=True, eq=False)
class Block:
    """Draws of one law under one receipt.

    Attributes
    ----------
    law : Law
    outputs : (m,) int32 or (m, ceil(K/8)) uint8
        As the law released them.
    side : dict of arrays, first axis m
        What the law must know of each row's prior.
    rows : (m,) int64, all different
        Position of each draw in the `NoisyLabels` that holds the block.
    receipt : Receipt
    stage : str
        Name of the round that drew it.
    """

    law: Law
    outputs: Array
    side: Mapping[str, Array]
    rows: NDArray[np.int64]
    receipt: Receipt
    stage: str = ""

    def at(self, index: slice | NDArray[np.integer], rows: NDArray[np.int64]) -> "Block":
        """The draws at these places, standing at these rows."""
        return replace(self, outputs=self.outputs[index], side={k: v[index] for k, v in self.side.items()}, rows=rows)

    def read_only(self) -> "Block":
        """The same block, whose arrays cannot be written to."""
        side = {name: read_only(values) for name, values in self.side.items()}
        return replace(self, outputs=read_only(self.outputs), side=side, rows=read_only(self.rows))

    @property
    def invertible(self) -> NDArray[np.bool_]:
        """(m,) bool: draws with an unbiased estimator. Cost O(m) where set membership says all of an output, else O(m K)."""
        known = np.isfinite(self.law.inclusion(self.outputs, self.side)[0])
        if type(self.law).weights is Law.weights or known.all():
            return known
        parts = [np.isfinite(part.law.weights(part.outputs, part.side)).all(axis=1) for part in self.batches()]
        return np.asarray(known | np.concatenate(parts))

    def batches(self) -> Iterator["Block"]:
        """The block cut so that (rows, K) float64 stays small."""
        step = max(1, CELLS // self.law.n_classes)
        for start in range(0, len(self.rows), step):
            yield self.at(slice(start, start + step), self.rows[start : start + step])


def read_only(array: Array) -> Array:
    """The same values over memory that no flag makes writable: copied once, O(n), and not again. Python objects keep a flag."""
    if array.dtype.hasobject:
        found = array.view()
        found.flags.writeable = False
        return found
    return array if _fixed(array) else np.ndarray(array.shape, array.dtype, array.tobytes())


def _fixed(array: Array) -> bool:
    while isinstance(array.base, np.ndarray):
        array = array.base
    memory: Any = array.base
    if type(memory) is not bytes or array.flags.writeable:  # an array out of a pickle has bytes of its own, and writes to them
        return False
    try:
        array.flags.writeable = True
    except ValueError:
        return True
    array.flags.writeable = False
    return False


def places_of(ids: Array, known: Array) -> NDArray[np.int64]:
    """Where each of these ids stands among the known ones, whatever type either came in: (n,), -1 for those that do not."""
    if ids.ndim == 2 and "O" in known.dtype.kind + ids.dtype.kind:
        known, ids = known.astype(np.str_), ids.astype(np.str_)
    if {known.dtype.kind, ids.dtype.kind} == set("iu"):  # the same numbers, so they fit both; together they would become floats
        ids = ids.astype(known.dtype)
    _, inverse = np.unique(np.concatenate([known, ids]), axis=0 if ids.ndim == 2 else None, return_inverse=True)
    codes = inverse.reshape(-1)
    place = np.full(codes.max(initial=-1) + 1, -1)
    place[codes[: len(known)]] = np.arange(len(known))
    return np.asarray(place[codes[len(known) :]])


def merge(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Blocks of the same law, receipt and stage as one."""
    groups: dict[tuple[Law, str, str], list[Block]] = {}
    for block in blocks:
        groups.setdefault((block.law, block.receipt.run_id, block.stage), []).append(block)
    return tuple(group[0] if len(group) == 1 else _join(group) for group in groups.values())


def _join(group: Sequence[Block]) -> Block:
    side = {name: np.concatenate([block.side[name] for block in group]) for name in group[0].side}
    outputs = np.concatenate([block.outputs for block in group])
    return replace(group[0], outputs=outputs, side=side, rows=np.concatenate([block.rows for block in group]))
