# SPDX-License-Identifier: Apache-2.0
"""AutoLaw: for every row the best law under its prior, of those that tell all classes apart."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from labeldp.laws import _information as information
from labeldp.laws import _kernel as kernel
from labeldp.laws import _prior as priors
from labeldp.laws import _sets as sets
from labeldp.laws import _words as streams
from labeldp.laws._base import Array, Cell, Floats, Law, Side, Table, Words
from labeldp.laws._exact import WORD
from labeldp.laws._response import RandomizedResponse, RRWithPrior
from labeldp.laws._subset import PriorSplit, SubsetSelection, even_half

RR, TOP_K, SPLIT, SUBSET = range(4)  # the stored codes; none chooses TOP_K any more, files of earlier versions hold it
_PREFERRED = np.array([RR, SUBSET, SPLIT])  # of equal scores the first
_MIXED = 0.05  # share of the uniform distribution in the prior that scores are taken under
_ROWS = 1024  # scored at a time: 64 patterns of as many rows fit the cache


@dataclass(frozen=True)
class AutoLaw(Law):
    """Draw each row by the best law under its prior: RandomizedResponse, SubsetSelection or PriorSplit, which tell all classes apart.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        Guarantee: pure epsilon-label-DP, local, for each row's label: each of the three laws has it, and the choice uses the prior and
        public words alone.

    Notes
    -----
    The best has the largest product of two numbers: the information between label and output under the prior (mixed with 5 % uniform; see
    `labeldp.laws._information`), and the divergence between the outputs of two classes, whatever the prior. A split must so gain
    more under this prior than it loses where the prior is of no help. Information alone would choose one question for all rows of equal
    prior, and learn well what is asked and nothing else. Of equal products the first of rr, subset, split.
    Output: packed sets, (n, ceil(K/8)) uint8, a label as a set of one. Side: choice (n,) uint8 (0 rr, 2 split, 3 subset; 1, rr-top-k, in
    files of earlier versions), size (n,) int32, set (n, ceil(K/8)) uint8 packed: the split, all classes without one. Cost: one sort of
    the prior a row and some 80 sums of it, 3 K / 64 public words where a split is drawn, and the chosen law's words.
    """

    name: ClassVar[str] = "auto"
    kind: ClassVar = "set"
    uses_prior: ClassVar[bool] = True
    draws_side: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._parts

    @cached_property
    def _parts(self) -> tuple[Law, ...]:
        """The laws by code. RRWithPrior reads any candidate set, so it stands for RRTopK with every k."""
        return tuple(law(self.n_classes, self.epsilon) for law in (RandomizedResponse, RRWithPrior, PriorSplit, SubsetSelection))

    @cached_property
    def _apart(self) -> Floats:
        """How far apart the outputs of each law, by code, are for two classes; 0 for laws with candidates.

        P[the label is in the output] - P[a given other class is]. Of a split, two classes are on different sides in about half of the rows.
        """
        (kept, other), truth = kernel.cells(self.epsilon, self.n_classes), kernel.inside_words(self.epsilon, 2, 1)
        d = self._subset_size
        inside = Fraction(kernel.inside_words(self.epsilon, self.n_classes, d), WORD)
        apart = {RR: Fraction(kept - other, WORD), SPLIT: Fraction(2 * truth - WORD, 2 * WORD)}
        apart[SUBSET] = inside - (d - inside) / (self.n_classes - 1)
        return np.array([float(apart.get(code, Fraction(0))) for code in range(len(self._parts))])

    def prepare(self, prior: Array, words: Words | None = None) -> dict[str, Array]:
        array = priors.as_prior(prior, self.n_classes)
        stream = streams.PlainWords(np.arange(len(array))) if words is None else words
        like = {name: value for name, value in self.layout().items() if name != "output"}
        side: dict[str, Array] = {name: np.empty((len(array), *shape), dtype) for name, (dtype, shape) in like.items()}
        one = self._chosen(array[:1]) if array.strides[0] == 0 and len(array) else None
        if one is not None and (one[1] != SPLIT).all():
            found = self._settled(*one, stream.select(np.arange(1)))
            return {name: np.broadcast_to(value[0], (len(array), *value.shape[1:])) for name, value in found.items()}
        for rows in priors.chunks(len(array), self.n_classes, _ROWS):
            n = rows.stop - rows.start
            weights, choice = self._chosen(array[rows]) if one is None else (np.repeat(one[0], n, axis=0), np.repeat(one[1], n))
            for name, value in self._settled(weights, choice, stream.select(np.arange(rows.start, rows.stop))).items():
                side[name][rows] = value
        return side

    def _chosen(self, prior: Array) -> tuple[Floats, NDArray[np.uint8]]:
        """Choose the law of each row by its prior alone: whole-number weights (n, K), codes (n,)."""
        k, weights = self.n_classes, priors.quantise(prior)
        in_order = np.sort(weights, axis=1)[:, ::-1]
        ordered = in_order * ((1.0 - _MIXED) / weights.sum(axis=1, keepdims=True)) + _MIXED / k
        scores = np.full((len(weights), len(self._parts)), -1.0)
        scores[:, RR] = self._score(RR, information.response_scores(ordered, self.epsilon))
        if self._subset_size > 1:  # else it is randomized response
            scores[:, SUBSET] = self._score(SUBSET, information.subset_scores(ordered, self.epsilon, self._subset_size))
        most = self._score(SPLIT, information.split_scores(np.array(0.5), self.epsilon))
        rows = np.flatnonzero((scores.max(axis=1) < most) & (k > 2))
        scores[rows, SPLIT] = self._score(SPLIT, information.even_split_scores(in_order[rows], self.epsilon, _MIXED))
        return weights, _PREFERRED[scores[:, _PREFERRED].argmax(axis=1)].astype(np.uint8)

    def _score(self, code: int, nats: Floats) -> Floats:
        return np.asarray(information.on_grid(nats, self.epsilon) * self._apart[code])

    def _settled(self, weights: Floats, choice: NDArray[np.uint8], words: Words) -> dict[str, Array]:
        inside = np.ones(weights.shape, dtype=np.bool_)
        rows = np.flatnonzero(choice == SPLIT)
        if len(rows):
            inside[rows] = even_half(weights[rows], words.select(rows))
        size = np.where(choice == SUBSET, self._subset_size, inside.sum(axis=1)).astype(np.int32)
        return {"choice": choice, "size": size, "set": sets.pack(inside)}

    @property
    def _subset_size(self) -> int:
        law = self._parts[SUBSET]
        assert isinstance(law, SubsetSelection)
        return law.set_size

    def _groups(self, side: Side) -> Iterator[tuple[int, NDArray[np.intp], dict[str, Array]]]:
        """Yield (code, rows, the side that this code's law reads) for each law that some row uses."""
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
        """Unpack outputs to what the law with this code released."""
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


def _side_of(code: int, side: Side) -> dict[str, Array]:
    """Name the side as the law with this code does."""
    if code == TOP_K:
        return {"candidates": side["set"], "size": side["size"]}
    return {"split": side["set"]} if code == SPLIT else {}
