# SPDX-License-Identifier: Apache-2.0
"""AutoLaw: for every row the most informative law under its prior."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from labeldp.laws import information, sets
from labeldp.laws import prior as priors
from labeldp.laws.base import Array, Cell, Floats, Law, Side, Table, Words
from labeldp.laws.response import RandomizedResponse, RRWithPrior
from labeldp.laws.subset import PriorSplit, SubsetSelection, half, split_information

RR, TOP_K, SPLIT, SUBSET = range(4)  # the order of preference among equal scores, and the stored codes
_MIXED = 0.05  # share of the uniform distribution in the prior that scores are taken under
_ROWS = 1024  # scored at a time: 64 patterns of as many rows fit the cache
_PER_NAT = 2.0**20  # scores are compared on this grid


@dataclass(frozen=True)
class AutoLaw(Law):
    """Per row, the most informative of RandomizedResponse, RRTopK (best k), PriorSplit and SubsetSelection under the row's prior.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label: each of the four laws has it, and the choice uses the prior alone.

    Notes
    -----
    Scores are nats between label and output under the prior mixed with 5 % uniform (see `labeldp.laws.information`), rounded to a grid of
    2^-20 nats; of equal ones the first of rr, rr-top-k, split, subset, and the smallest k. A split that would part classes of equal prior
    is not used. Output: packed sets, (n, ceil(K/8)) uint8, a
    label as a set of one. Side: choice (n,) uint8 (0 rr, 1 rr-top-k, 2 split, 3 subset), size (n,) int32, set (n, ceil(K/8)) uint8
    packed: the candidates or the split. Cost: one sort of the prior a row, and the chosen law's words.
    """

    name: ClassVar[str] = "auto"
    kind: ClassVar = "set"
    uses_prior: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._parts

    @cached_property
    def _parts(self) -> tuple[Law, ...]:
        """The laws by code; RRWithPrior reads any candidate set, so it stands for RRTopK with every k."""
        return tuple(law(self.n_classes, self.epsilon) for law in (RandomizedResponse, RRWithPrior, PriorSplit, SubsetSelection))

    def prepare(self, prior: Array) -> dict[str, Array]:
        like = {name: value for name, value in self.layout().items() if name != "output"}
        return priors.by_chunks(prior, self.n_classes, like, self._decide, most=_ROWS)

    def _decide(self, prior: Array) -> dict[str, Array]:
        k, weights = self.n_classes, priors.quantise(prior)
        sorted_weights = np.sort(weights, axis=1)[:, ::-1]
        total = weights.sum(axis=1, keepdims=True)
        ordered = sorted_weights * ((1.0 - _MIXED) / total) + _MIXED / k
        split = half(weights, sorted_weights)
        tries = np.append(information.sizes_to_try(k), np.int32(k))
        scores = _on_grid(information.top_k_scores(ordered, self.epsilon, tries))
        best = scores[:, :-1].argmax(axis=1)
        subset = self._subset_size
        every = np.arange(len(weights))
        table = np.empty((len(weights), 4))
        table[:, RR], table[:, TOP_K] = scores[:, -1], scores[every, best]
        in_split, number = (weights * split).sum(axis=1) / total[:, 0], split.sum(axis=1)
        table[:, SPLIT] = _on_grid(split_information((1.0 - _MIXED) * in_split + _MIXED * number / k, self.epsilon))
        # A cut between equal weights would be by class index: the same one for all such rows, which could never tell the classes on one
        # side of it apart. Such rows are left to the laws that treat equal classes alike.
        table[sorted_weights[every, number - 1] == sorted_weights[every, number], SPLIT] = -1.0
        table[:, SUBSET] = _on_grid(information.subset_scores(ordered, self.epsilon, subset))
        choice = table.argmax(axis=1).astype(np.uint8)
        size = np.select([choice == RR, choice == TOP_K, choice == SPLIT], [k, tries[best], number], subset).astype(np.int32)
        return {"choice": choice, "size": size, "set": self._sets(weights, sorted_weights, choice, size, split)}

    def _sets(
        self, weights: Floats, ordered: Floats, choice: NDArray[np.uint8], size: NDArray[np.int32], split: NDArray[np.bool_]
    ) -> sets.Bits:
        """The candidates or the split of each row; all classes where the law needs no set."""
        found = np.ones_like(split)
        found[choice == SPLIT] = split[choice == SPLIT]
        some = np.flatnonzero(choice == TOP_K)
        if len(some):
            found[some] = priors.heaviest(weights[some], size[some], ordered[some, size[some] - 1])
        return sets.pack(found)

    @property
    def _subset_size(self) -> int:
        law = self._parts[SUBSET]
        assert isinstance(law, SubsetSelection)
        return law.set_size

    def _groups(self, side: Side) -> Iterator[tuple[int, NDArray[np.intp], dict[str, Array]]]:
        """(code, rows, the side that this code's law reads) for each law that some row uses."""
        for code in range(len(self._parts)):
            rows = np.flatnonzero(side["choice"] == code)
            if len(rows):
                yield code, rows, _side_of(code, {name: value[rows] for name, value in side.items()})

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> sets.Bits:
        out = np.empty((len(labels), sets.n_bytes(self.n_classes)), dtype=np.uint8)
        for code, rows, own in self._groups(side):
            law = self._parts[code]
            drawn = law.sample(labels[rows], words.select(rows), own)
            out[rows] = drawn if law.kind == "set" else sets.single(drawn, self.n_classes)
        return out

    def log_likelihood(self, outputs: Array, side: Side) -> Floats:
        result = np.empty((len(outputs), self.n_classes))
        for code, rows, own in self._groups(side):
            result[rows] = self._parts[code].log_likelihood(self._native(code, outputs[rows]), own)
        return result

    def likeliest(self, outputs: Array, side: Side) -> sets.Bits:
        result = np.empty_like(outputs)
        for code, rows, own in self._groups(side):
            result[rows] = self._parts[code].likeliest(self._native(code, outputs[rows]), own)
        return result

    def _native(self, code: int, outputs: sets.Bits) -> NDArray[np.uint8] | NDArray[np.int32]:
        """Packed outputs as the law with this code released them."""
        if self._parts[code].kind == "set":
            return outputs
        return np.asarray(sets.unpack(outputs, self.n_classes).argmax(axis=1), dtype=np.int32)

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        own, other = np.empty(len(outputs)), np.empty(len(outputs))
        for code, rows, part in self._groups(side):
            own[rows], other[rows] = self._parts[code].inclusion(outputs[rows], part)
        return own, other

    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        code = int(side_row["choice"])
        return self._parts[code].profile(_side_of(code, side_row))

    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        packed = (np.dtype(np.uint8), (sets.n_bytes(self.n_classes),))
        return {"output": packed, "choice": (np.dtype(np.uint8), ()), "size": (np.dtype(np.int32), ()), "set": packed}

    def table(self, side_row: Side) -> Table:
        code = int(side_row["choice"])
        table = self._parts[code].table(_side_of(code, side_row))
        if self._parts[code].kind == "set":
            return table
        return Table(table.outputs[:, None] == np.arange(self.n_classes), table.values, table.index)

    def _information(self, prior: Floats, side: Side) -> Floats:
        result = np.empty(len(prior))
        for code, rows, own in self._groups(side):
            result[rows] = self._parts[code]._information(prior[rows], own)
        return result


def _on_grid(scores: Floats) -> Floats:
    return np.rint(scores * _PER_NAT)


def _side_of(code: int, side: Side) -> dict[str, Array]:
    """The side as the law with this code names it."""
    if code == TOP_K:
        return {"candidates": side["set"], "size": side["size"]}
    return {"split": side["set"]} if code == SPLIT else {}
