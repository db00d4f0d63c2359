# SPDX-License-Identifier: Apache-2.0
"""Noisy labels as tensors: each row's likelihoods, or the weights of its unbiased loss, in the smallest form that holds them."""

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.deep._forms import Candidates, Dense, Form, PackedSets, Sum
from labeldp.errors import InvalidInput
from labeldp.evidence import Block, NoisyLabels
from labeldp.evidence._block import CELLS
from labeldp.laws import RandomizedResponse, RRTopK, RRWithPrior
from labeldp.laws import _sets as sets

Floats = NDArray[np.float32]
Shape = Literal["auto", "dense", "compact"]

_RESPONSES = (RandomizedResponse, RRTopK, RRWithPrior)
_DENSE_BYTES = 1 << 28  # a table up to this size is kept whole: picking its rows is the quickest


def evidence_of(noisy: NoisyLabels, *, device: torch.device | str = "cpu", form: Shape = "auto") -> Form:
    """Log-likelihoods of all rows, ready for the losses: `likelihood_loss(logits, evidence[rows])`.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
    device : torch.device or str
        Where the model is, so that no evidence crosses over in training.
    form : {"auto", "dense", "compact"}
        "dense": an (n, K) float32 table. "compact": about K/8 + 24 bytes a row, expanded batch by batch, for laws that release labels or
        sets; tables where a law gives more than three distinct likelihoods a row. "auto": dense up to 256 MiB.

    Returns
    -------
    Form of n rows, equal to `noisy.log_likelihood()`. Cost O(n K) time once, in batches; for a compact form of one draw of randomized
    response a row, O(n) and what there is of candidate sets.
    """
    require_noisy(noisy)
    return _form(noisy, lambda part: part.log_likelihood(), form).to(device)


def debias_weights(noisy: NoisyLabels, *, device: torch.device | str = "cpu", form: Shape = "auto") -> Form:
    """Weights of the classes whose loss, so weighted, is unbiased for the loss at the true label: for `debiased_loss`.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
    device : torch.device or str
    form : {"auto", "dense", "compact"}
        As in `evidence_of`.

    Returns
    -------
    Form of n rows that sum to 1; sum_y weights[i, y] losses[i, y] is `noisy.debias(losses)[i]`. Cost O(n K) time once.

    Raises
    ------
    InvalidInput
        If some row has no unbiased estimator: its law is not invertible, or it has no draw.
    """
    require_noisy(noisy)
    return _form(noisy, _weights, form).to(device)


def require_noisy(noisy: NoisyLabels) -> None:
    """Noisy labels of at least one row."""
    if not isinstance(noisy, NoisyLabels) or not len(noisy):
        found = "none of a row" if isinstance(noisy, NoisyLabels) else type(noisy).__name__
        raise InvalidInput(f"Expected NoisyLabels of at least one row, got {found}. Make them with privatize, or NoisyLabels.load(path).")


def _form(noisy: NoisyLabels, table: Callable[[NoisyLabels], Floats], form: Shape) -> Form:
    name = _validate.one_of(("auto", "dense", "compact"), form=form)
    if name == "dense" or (name == "auto" and 4 * len(noisy) * noisy.n_classes <= _DENSE_BYTES):
        return _dense(noisy, table)
    return _compact(noisy, table) or _by_draw(noisy, table)


def _batches(noisy: NoisyLabels) -> Iterator[NoisyLabels]:
    step = max(1, CELLS // noisy.n_classes)
    return (noisy[start : start + step] for start in range(0, len(noisy), step))


def _dense(noisy: NoisyLabels, table: Callable[[NoisyLabels], Floats]) -> Form:
    whole = torch.empty(len(noisy), noisy.n_classes)
    done = 0
    for part in _batches(noisy):
        whole[done : done + len(part)] = torch.from_numpy(table(part))
        done += len(part)
    return Dense(whole)


def _by_draw(noisy: NoisyLabels, table: Callable[[NoisyLabels], Floats]) -> Form:
    """Where several draws of a row give it more than three values, each draw alone may have fewer: likelihoods add, weights do not."""
    if len(noisy.blocks) < 2 or table is _weights:
        return _dense(noisy, table)
    alone = [NoisyLabels(len(noisy), noisy.classes, (block,), noisy.ids, noisy.explicit_ids) for block in noisy.blocks]
    return Sum(tuple(_compact(each, table) or _dense(each, table) for each in alone))


def _compact(noisy: NoisyLabels, table: Callable[[NoisyLabels], Floats]) -> Form | None:
    """The table as a set a row with two values and one class with its own; None where a row has more."""
    if _one_response_each(noisy):
        return _of_responses(noisy, table)
    found = [_levels(table(part)) for part in _batches(noisy)]
    known = [levels for levels in found if levels is not None]
    if len(known) < len(found):
        return None
    bits, inside, outside, label, at_label = (torch.from_numpy(np.concatenate(column)) for column in zip(*known, strict=True))
    if torch.equal(inside, outside):
        return Candidates(label[:, None], at_label[:, None], outside)
    return PackedSets(bits, inside, outside, label, at_label)


def _one_response_each(noisy: NoisyLabels) -> bool:
    drawn = np.sort(np.concatenate([block.rows for block in noisy.blocks]))
    return all(type(block.law) in _RESPONSES for block in noisy.blocks) and np.array_equal(drawn, np.arange(len(noisy)))


def _of_responses(noisy: NoisyLabels, table: Callable[[NoisyLabels], Floats]) -> Form:
    """One draw of randomized response a row: rows of a law with as many candidates have the same values: one of them is read."""
    n, wide = len(noisy), any(block.side for block in noisy.blocks)
    bits = np.zeros((n, sets.n_bytes(noisy.n_classes) if wide else 0), np.uint8)
    label, (inside, outside, at_label) = np.empty(n, np.int32), np.empty((3, n), np.float32)
    for block in noisy.blocks:
        size = block.side.get("size", np.zeros(len(block.rows), np.int32))
        _, first, which = np.unique(size, return_index=True, return_inverse=True)
        values = [_response_values(part, table(part)) for part in _batches(noisy[block.rows[first]])]
        inside[block.rows], outside[block.rows], at_label[block.rows] = np.concatenate(values, axis=1)[:, which]
        label[block.rows] = block.outputs
        if block.side:
            bits[block.rows] = block.side["candidates"]
    found = [torch.from_numpy(each) for each in (bits, inside, outside, label, at_label)]
    return PackedSets(*found) if wide else Candidates(found[3][:, None], found[4][:, None], found[2])


def _response_values(noisy: NoisyLabels, table: Floats) -> Floats:
    """Of each row: the value inside its candidates, outside, and at its label; (3, n)."""
    (block,) = [each for each in noisy.blocks if len(each.rows)]
    every, others = np.arange(len(table)), np.ones(table.shape, bool)
    if block.side:
        others[block.rows] = sets.unpack(block.side["candidates"], noisy.n_classes)
    beyond = ~others
    at_label = table[block.rows, block.outputs]
    others[block.rows, block.outputs] = False
    inside = np.where(others.any(axis=1), table[every, others.argmax(axis=1)], at_label)
    return np.stack([inside, np.where(beyond.any(axis=1), table[every, beyond.argmax(axis=1)], inside), at_label])


def _levels(table: Floats) -> tuple[NDArray[np.uint8], Floats, Floats, NDArray[np.int32], Floats] | None:
    """(bits, inside, outside, label, value at the label) of each row: the label is its first largest class."""
    every = np.arange(len(table))
    label = table.argmax(axis=1)
    at_label, low = table[every, label], table.min(axis=1)
    others = table.copy()
    others[every, label] = -np.inf
    high = others.max(axis=1)
    inside = others == high[:, None]
    known = inside | (others == low[:, None])
    known[every, label] = True
    return (sets.pack(inside), high, low, label.astype(np.int32), at_label) if known.all() else None


def _weights(noisy: NoisyLabels) -> Floats:
    """The laws' unbiased weights, averaged over the draws of a row that have an unbiased estimator."""
    total, draws = np.zeros((len(noisy), noisy.n_classes)), np.zeros(len(noisy))
    for block in noisy.blocks:
        rows, weights = _block_weights(block)
        total[rows] += weights
        draws[rows] += 1
    if not (draws > 0).all():
        noisy.debias(np.zeros((len(noisy), noisy.n_classes)))  # raises, with its reasons
    return (total / draws[:, None]).astype(np.float32)


def _block_weights(block: Block) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    weights = block.law.weights(block.outputs, block.side)
    known = np.isfinite(weights).all(axis=1)
    return block.rows[known], weights[known]
