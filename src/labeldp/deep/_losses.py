# SPDX-License-Identifier: Apache-2.0
"""Evidence as tensors, and the losses on it.

    Form               an (n, K) table in a few bytes per row: log-likelihoods, or the weights of
                       the debiased loss
    evidence_of        noisy labels as the smallest form that holds them
    likelihood_loss    and other losses: from logits and a form to a number and its gradient

A loss expands a form a few rows at a time, so that no second n x K table is in memory beside the
logits. With p = softmax(logits), every loss on a table has the gradient (sum of q) p - q, for a
target q that table and model determine:

    likelihood   q = posterior of the row's label, p L / sum(p L)
                 value -ln sum(p L): exact maximum likelihood
    posterior    q = posterior under a prior, held constant
                 value -sum(q ln p): cross-entropy, as in ALIBI
    debiased     q = unbiased weights, which may be negative
                 value -sum(q ln p): its expectation is the loss at the true label

So one function computes value and gradient together, in float32 even for logits in half precision.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.evidence._noisy import CELLS
from labeldp.laws import LabelColumns, RandomizedResponse, RRTopK, RRWithPrior
from labeldp.laws._columns import laws_of_columns
from labeldp.laws._exact import pack_sets, set_bytes, unpack_sets

# Forms: tables with few distinct numbers per row
# ------------------------------------------------------------------------------------

# bytes per row from which `PackedSets._by_row` is faster, although it tabulates all 256 values of a
# byte for each row
_WIDE = 256


class Form(ABC):
    """A table (n, K) of log-likelihoods or weights, stored in a few bytes per row.

    It can be indexed by rows, moved to a device, and expanded to numbers.

    See Also
    --------
    evidence_of, debias_weights : make one from noisy labels.
    """

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The stored tensors, in the order of the constructor's arguments, each with the rows as
        its first axis."""
        stored = [
            each
            for value in self.__dict__.values()
            for each in (value if isinstance(value, tuple | list) else (value,))
        ]
        return tuple(
            t
            for each in stored
            if isinstance(each, Tensor | Form)
            for t in (each.tensors if isinstance(each, Form) else (each,))
        )

    def _map(self, change: Callable[[Any], Any]) -> Self:
        """Return the same form of changed tensors and forms."""
        return type(self)(*(_changed(value, change) for value in self.__dict__.values()))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.tensors[0])

    def __getitem__(self, rows: Tensor | slice) -> Self:
        """Return the rows at these positions: a slice, or (m,) int64; in that order, repeats
        allowed."""
        return self._map(lambda part: part[rows])

    def to(self, device: torch.device | str) -> Self:
        """Return the same table on this device."""
        return self._map(lambda part: part.to(device))

    @abstractmethod
    def expand(self, n_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the table as (n, K) numbers. It may share memory with the form: do not write into
        it."""

    def plus(self, logits: Tensor) -> Tensor:
        """Return the table plus logits (n, K), in their type: a new tensor."""
        return logits + self.expand(logits.shape[1], logits.dtype)

    @abstractmethod
    def fits(self, n_classes: int) -> bool:
        """Return whether the stored shapes match a table with K columns; values are not read."""

    def in_range(self, n_classes: int) -> bool:
        """Return whether every stored class is in [0, K). This reads values, so it waits for the
        device."""
        return True


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple | list):
        return tuple(_changed(each, change) for each in value)
    return change(value) if isinstance(value, Tensor | Form) else value


@dataclass(frozen=True, eq=False)
class Dense(Form):
    """The table itself.

    Parameters
    ----------
    values : (n, K) float tensor
    """

    values: Tensor

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or not self.values.is_floating_point():
            raise InvalidInput(
                f"Expected values of shape (n, K), floats, got {tuple(self.values.shape)} of"
                f" {self.values.dtype}."
            )

    def expand(self, n_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.values.to(dtype)

    def fits(self, n_classes: int) -> bool:
        return bool(self.values.shape[1] == n_classes)


@dataclass(frozen=True, eq=False)
class Candidates(Form):
    """A table whose rows have individual values at a few classes, and one value at all others.

    Parameters
    ----------
    indices : (n, k) integer tensor
        Classes in [0, K). A class may repeat with the same value: so rows with fewer classes are
        padded.
    values : (n, k) float tensor
        Values at these classes.
    rest : (n,) float tensor
        Value at all other classes of the row.
    """

    indices: Tensor
    values: Tensor
    rest: Tensor

    def expand(self, n_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        table = self.rest.to(dtype)[:, None].repeat(1, n_classes)
        return _put(table, self.indices, self.values)

    def plus(self, logits: Tensor) -> Tensor:
        # one new table of the logits' size; adding the expanded table would make two
        at = self.indices.long()
        shifted = logits.gather(1, at) + self.values.to(logits.dtype)
        return (logits + self.rest.to(logits.dtype)[:, None]).scatter_(1, at, shifted)

    def fits(self, n_classes: int) -> bool:
        return True

    def in_range(self, n_classes: int) -> bool:
        return _all_in_range(self.indices, n_classes)


@dataclass(frozen=True, eq=False)
class PackedSets(Form):
    """A table whose rows have one value inside a set of classes, another outside, and optionally a
    third at one class.

    Parameters
    ----------
    bits : (n, ceil(K/8)) uint8 tensor
        Class c is bit c % 8 of byte c // 8, as in the outputs of set laws.
    inside, outside : (n,) float tensors
    label : (n,) integer tensor, optional
        A class in [0, K) with its own value, inside the set or not.
    at_label : (n,) float tensor, optional
        That value; given if and only if `label` is.
    """

    bits: Tensor
    inside: Tensor
    outside: Tensor
    label: Tensor | None = None
    at_label: Tensor | None = None

    def expand(self, n_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        table = self._by_row(dtype) if self.bits.shape[1] >= _WIDE else self._by_mask(dtype)
        table = table[:, :n_classes]  # the last byte may have bits beyond the last class
        if self.label is not None and self.at_label is not None:
            table = _put(table, self.label[:, None], self.at_label[:, None])
        return table

    def _by_mask(self, dtype: torch.dtype) -> Tensor:
        """Expand rows with few classes: look up each byte's eight members, then choose a value for
        each."""
        members = (
            _unpacked(self.bits.device)
            .index_select(0, self.bits.reshape(-1).int())
            .view(torch.bool)
        )
        mask = members.view(len(self.bits), 8 * self.bits.shape[1])
        return torch.where(mask, self.inside.to(dtype)[:, None], self.outside.to(dtype)[:, None])

    def _by_row(self, dtype: torch.dtype) -> Tensor:
        """Expand rows with many classes by a look-up of each byte's eight values, several times
        faster than class by class."""
        n = len(self.bits)
        every = _unpacked(self.bits.device).view(torch.bool).view(1, 256, 8)
        values = torch.where(
            every, self.inside.to(dtype)[:, None, None], self.outside.to(dtype)[:, None, None]
        )
        place = (
            self.bits.int()
            + 256 * torch.arange(n, dtype=torch.int32, device=self.bits.device)[:, None]
        )
        return functional.embedding(place, values.view(256 * n, 8)).view(n, 8 * self.bits.shape[1])

    def fits(self, n_classes: int) -> bool:
        return bool(self.bits.shape[1] == -(-n_classes // 8))

    def in_range(self, n_classes: int) -> bool:
        return self.label is None or _all_in_range(self.label, n_classes)


@dataclass(frozen=True, eq=False)
class Sum(Form):
    """The sum of tables, minus its maximum in each row: log-likelihoods of several independent
    draws of each row.

    Parameters
    ----------
    parts : tuple of Form
        At least one, all of n rows.
    """

    parts: tuple[Form, ...]

    def expand(self, n_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        total = self.parts[0].expand(n_classes, dtype)
        for part in self.parts[1:]:
            total = total + part.expand(n_classes, dtype)
        # as in `NoisyLabels.log_likelihood`: the loss is then at least 0
        return total - total.amax(dim=-1, keepdim=True)

    def fits(self, n_classes: int) -> bool:
        return all(part.fits(n_classes) for part in self.parts)

    def in_range(self, n_classes: int) -> bool:
        return all(part.in_range(n_classes) for part in self.parts)


@dataclass(frozen=True, eq=False)
class Heads(Form):
    """Tables of several label columns, for a net whose outputs are the columns' classes one after
    another: the losses of the heads add.

    Parameters
    ----------
    parts : tuple of L forms of n rows
        That of column l has K_l columns.
    sizes : tuple of L int
        K_1 .. K_L.

    See Also
    --------
    column_evidence : makes it.
    """

    parts: tuple[Form, ...]
    sizes: tuple[int, ...]

    def expand(self, n_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the columns' tables side by side: (n, K_1 + ... + K_L)."""
        return torch.cat(
            [part.expand(size, dtype) for part, size in zip(self.parts, self.sizes, strict=True)],
            dim=1,
        )

    def fits(self, n_classes: int) -> bool:
        return n_classes == sum(self.sizes)

    def loss(self, kind: "Kind", logits: Tensor, check: bool | None) -> Tensor:
        """Compute the rows' losses, summed over the heads: (n,)."""
        pairs = zip(logits.split(self.sizes, dim=1), self.parts, strict=True)
        return torch.stack([_loss(kind, head, part, "none", check) for head, part in pairs]).sum(
            dim=0
        )


@dataclass(frozen=True, eq=False)
class Combined(Form):
    """A table of the combinations of several label columns, for a net with a head a column, which
    are independent given the input.

    Parameters
    ----------
    form : Form of n rows
        Of the K = K_1 x ... x K_L combinations.
    sizes : tuple of L int

    Notes
    -----
    The probability of a combination is the product of the heads', so its logit is the sum of
    theirs. Cost: O(n K).
    """

    form: Form
    sizes: tuple[int, ...]

    def expand(self, n_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the table of the combinations: (n, K_1 x ... x K_L)."""
        return self.form.expand(math.prod(self.sizes), dtype)

    def fits(self, n_classes: int) -> bool:
        return n_classes == sum(self.sizes)

    def loss(self, kind: "Kind", logits: Tensor, check: bool | None) -> Tensor:
        """Compute the rows' losses over the combinations: (n,)."""
        first, *others = logits.split(self.sizes, dim=1)
        for head in others:
            first = (first[:, :, None] + head[:, None, :]).reshape(len(logits), -1)
        return _loss(kind, first, self.form, "none", check)


def _put(table: Tensor, classes: Tensor, values: Tensor) -> Tensor:
    """Write values (n, k) at classes (n, k) of a new table: in place, unless `torch.func` maps."""
    write: Callable[..., Tensor] = table.scatter if _transformed() else table.scatter_
    return write(1, classes.long(), values.to(table.dtype))


def _all_in_range(classes: Tensor, n_classes: int) -> bool:
    return not classes.numel() or bool((classes.min() >= 0) & (classes.max() < n_classes))


@lru_cache(maxsize=16)
def _unpacked(device: torch.device) -> Tensor:
    """Return the eight bits of every byte value as the eight bytes of an int64, (256,): one look-up
    is faster than eight shifts."""
    bits = (torch.arange(256)[:, None] >> torch.arange(8)) & 1
    return bits.to(torch.uint8).view(torch.int64)[:, 0].to(device)


# Evidence: noisy labels as a form
# --------------------------------------------------------------------------------------------------

Floats = NDArray[np.float32]
Shape = Literal["auto", "dense", "compact"]

_RESPONSES = (RandomizedResponse, RRTopK, RRWithPrior)
_DENSE_BYTES = 1 << 28  # a table up to this size stays dense: indexing its rows is fastest


def evidence_of(
    noisy: NoisyLabels, *, device: torch.device | str = "cpu", form: Shape = "auto"
) -> Form:
    """Convert noisy labels to tensors: the log-likelihood of each class for every row, for the
    losses.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
    device : torch.device or str, default="cpu"
        The model's device, so that no evidence is copied during training.
    form : {"auto", "dense", "compact"}, default="auto"
        "dense": an (n, K) float32 table. "compact": about K/8 + 24 bytes per row, expanded batch by
        batch; if a law has more than three distinct likelihoods per row, a dense table. "auto":
        dense up to 256 MiB.

    Returns
    -------
    Form
        n rows, equal to `noisy.log_likelihood()`. Takes O(n K) time once, in batches; O(n) plus the
        candidate sets for a compact form with one draw of randomized response per row.

    See Also
    --------
    likelihood_loss : `likelihood_loss(logits, evidence[rows])`.
    debias_weights : weights for the unbiased loss, in the same forms.
    """
    require_noisy(noisy)
    return _form(noisy, lambda part: part.log_likelihood(), form).to(device)


def column_evidence(
    noisy: NoisyLabels, *, device: torch.device | str = "cpu", form: Shape = "auto"
) -> Form:
    """Convert noisy labels of several columns to evidence for a net with a head each: outputs for
    all their classes, one after another.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
        Of several columns (`labeldp.LabelColumns`).
    device, form
        As in `evidence_of`.

    Returns
    -------
    Heads or Combined
        `Heads`: the exact likelihood of each column, which says nothing where a row was not asked
        about it; losses add up over the columns. `Combined`, where some draw tells a column only
        together with the others, as under a prior of combinations: the exact likelihood of the
        combinations, for heads that are independent given the input, at O(n K) a pass.

    See Also
    --------
    evidence_of : evidence of the combinations, for a net with an output each.
    """
    require_noisy(noisy)
    columns = noisy.classes
    if not isinstance(columns, LabelColumns):
        raise InvalidInput(
            "Expected noisy labels of several columns, got those of one. Call evidence_of(noisy)."
        )
    if not all(laws_of_columns(block.law, columns.sizes) for block in noisy.blocks):
        return Combined(evidence_of(noisy, device=device, form=form), columns.sizes)
    return Heads(
        tuple(evidence_of(noisy.column(name), device=device, form=form) for name in columns.names),
        columns.sizes,
    )


def debias_weights(
    noisy: NoisyLabels, *, device: torch.device | str = "cpu", form: Shape = "auto"
) -> Form:
    """Compute class weights with which the expectation of `debiased_loss` is the loss at the true
    label.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
    device : torch.device or str, default="cpu"
    form : {"auto", "dense", "compact"}, default="auto"
        As in `evidence_of`.

    Returns
    -------
    Form
        n rows that sum to 1; sum_y weights[i, y] losses[i, y] is `noisy.debias(losses)[i]`. Takes
        O(n K) time once.

    Raises
    ------
    InvalidInput
        If some row has no unbiased estimator: its law is not invertible, or it has no draw.
    """
    require_noisy(noisy)
    return _form(noisy, _weights, form).to(device)


def require_noisy(noisy: NoisyLabels) -> None:
    """Refuse anything but NoisyLabels of at least one row."""
    if not isinstance(noisy, NoisyLabels) or not len(noisy):
        found = "none of a row" if isinstance(noisy, NoisyLabels) else type(noisy).__name__
        raise InvalidInput(
            f"Expected NoisyLabels of at least one row, got {found}. Make them with privatize, or"
            " NoisyLabels.load(path)."
        )


def _form(noisy: NoisyLabels, table: Callable[[NoisyLabels], Floats], form: Shape) -> Form:
    """Make the form of a function that returns an (m, K) table for any rows."""
    name = _validate.one_of(("auto", "dense", "compact"), form=form)
    if name == "dense" or (name == "auto" and 4 * len(noisy) * noisy.n_classes <= _DENSE_BYTES):
        return _dense(noisy, table)
    return _compact(noisy, table) or _by_draw(noisy, table)


def _batches(noisy: NoisyLabels) -> Iterator[NoisyLabels]:
    """Yield the rows in batches, so that no (n, K) table is in memory beside the form."""
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
    """Make a sum of one form per draw, for rows whose draws together give more than three
    values."""
    # Log-likelihoods of draws add. Weights do not: they are averaged over the draws that have an
    # estimator, so they need a dense table.
    if len(noisy.blocks) < 2 or table is _weights:
        return _dense(noisy, table)
    alone = [
        NoisyLabels(len(noisy), noisy.classes, (block,), noisy.ids, noisy.explicit_ids)
        for block in noisy.blocks
    ]
    return Sum(tuple(_compact(each, table) or _dense(each, table) for each in alone))


def _compact(noisy: NoisyLabels, table: Callable[[NoisyLabels], Floats]) -> Form | None:
    """Store each row as a set of classes, two values, and one class with its own value; None if a
    row has more values."""
    drawn = np.sort(np.concatenate([block.rows for block in noisy.blocks]))
    one_each = np.array_equal(drawn, np.arange(len(noisy)))
    if one_each and all(type(block.law) in _RESPONSES for block in noisy.blocks):
        return _of_responses(noisy, table)
    found = [_levels(table(part)) for part in _batches(noisy)]
    known = [levels for levels in found if levels is not None]
    if len(known) < len(found):
        return None
    bits, inside, outside, label, at_label = (
        torch.from_numpy(np.concatenate(column)) for column in zip(*known, strict=True)
    )
    # the sets carry no information: one class and the rest, as in randomized response
    if torch.equal(inside, outside):
        return Candidates(label[:, None], at_label[:, None], outside)
    return PackedSets(bits, inside, outside, label, at_label)


def _of_responses(noisy: NoisyLabels, table: Callable[[NoisyLabels], Floats]) -> Form:
    """Make the form of rows with one response each, without a row of K numbers for each of them."""
    # Rows of one law with equally many candidates have the same three values, so one row of each
    # size is enough to read them off.
    n, wide = len(noisy), any(block.side for block in noisy.blocks)
    bits = np.zeros((n, set_bytes(noisy.n_classes) if wide else 0), np.uint8)
    label, (inside, outside, at_label) = np.empty(n, np.int32), np.empty((3, n), np.float32)
    for block in noisy.blocks:
        # Every row of a block has the same law, so the number of candidates alone determines its
        # three values.
        size = block.side.get("size", np.zeros(len(block.rows), np.int32))
        _, first, which = np.unique(size, return_index=True, return_inverse=True)
        values = [
            _response_values(part, table(part)) for part in _batches(noisy[block.rows[first]])
        ]
        inside[block.rows], outside[block.rows], at_label[block.rows] = np.concatenate(
            values, axis=1
        )[:, which]
        label[block.rows] = block.outputs
        if block.side:
            bits[block.rows] = block.side["candidates"]
    found = [torch.from_numpy(each) for each in (bits, inside, outside, label, at_label)]
    return (
        PackedSets(*found) if wide else Candidates(found[3][:, None], found[4][:, None], found[2])
    )


def _response_values(noisy: NoisyLabels, table: Floats) -> Floats:
    """Return each row's values inside its candidates, outside, and at its label: (3, n); a value
    without such a class repeats another."""
    (block,) = [each for each in noisy.blocks if len(each.rows)]
    every, others = np.arange(len(table)), np.ones(table.shape, bool)
    if block.side:
        others[block.rows] = unpack_sets(block.side["candidates"], noisy.n_classes)
    beyond = ~others
    at_label = table[block.rows, block.outputs]
    others[block.rows, block.outputs] = False
    inside = np.where(others.any(axis=1), table[every, others.argmax(axis=1)], at_label)
    return np.stack(
        [
            inside,
            np.where(beyond.any(axis=1), table[every, beyond.argmax(axis=1)], inside),
            at_label,
        ]
    )


def _levels(
    table: Floats,
) -> tuple[NDArray[np.uint8], Floats, Floats, NDArray[np.int32], Floats] | None:
    """Return each row's (bits, inside, outside, label, value at the label), the label being its
    first largest class; None if a row needs more."""
    every = np.arange(len(table))
    label = table.argmax(axis=1)
    at_label, low = table[every, label], table.min(axis=1)
    others = table.copy()
    others[every, label] = -np.inf
    high = others.max(axis=1)
    inside = others == high[:, None]
    known = inside | (others == low[:, None])
    known[every, label] = True
    return (pack_sets(inside), high, low, label.astype(np.int32), at_label) if known.all() else None


def _weights(noisy: NoisyLabels) -> Floats:
    """Average the laws' unbiased weights over the draws of each row that have an unbiased
    estimator."""
    return noisy.class_weights().astype(np.float32)


# Losses
# --------------------------------------------------------------------------------------------------

Reduction = Literal["mean", "sum", "none"]
Part = tuple[Tensor, Tensor, Tensor | None]
Kind = Callable[[Tensor, Form], Part]
"""A loss, as a function of logits (m, K) and a form of m rows.

It returns the value (m,) without its term ln sum exp(logits), the target q (m, K), and the sum of q
in each row (None for 1).
"""

# cells processed at a time: a few float32 tables of this size fit into the cache
_CELLS_CPU = 1 << 17
_CELLS_DEVICE = 1 << 25
_MANY = 20  # rows of evidence that noise does not all make certain
_TOP = 1e-3  # by which the largest log-likelihood of a row may miss 0, as in half precision


def likelihood_loss(
    logits: Tensor,
    log_likelihood: Tensor | Form,
    reduction: Reduction = "mean",
    *,
    check: bool | None = None,
) -> Tensor:
    """Compute the negative log-likelihood of the outputs, -ln sum_y softmax(logits)_y L_y.

    Its minimum is the exact maximum-likelihood fit to noisy labels, whatever their law.

    Parameters
    ----------
    logits : (n, K) float tensor, half precision allowed
    log_likelihood : (n, K) float tensor, or a form of n rows
        ln P[output | y], minus its maximum in each row; -inf where an output is impossible. A form
        (`Candidates`, `PackedSets`, ...) needs no n x K memory.
    reduction : {"mean", "sum", "none"}, default="mean"
    check : bool, optional
        Whether to look at values: log-likelihoods must be at most 0, and 0 at each row's likeliest
        class, and losses finite. A GPU makes the CPU wait for that. Default: only on the CPU, and
        not under `torch.func`.

    Returns
    -------
    Tensor
        float32 (float64 for float64 logits): a number, or (n,) for "none". At least 0.

    Raises
    ------
    InvalidInput
        If shapes do not match; with `check`, if logits are NaN or infinite, a row's likelihood is
        zero for every class, or the table is none of log-likelihoods.

    Notes
    -----
    The gradient is softmax - posterior. Cost: O(n K) time, and memory of one (n, K) table in the
    logits' type (float32 for float16), beside the logits. Derivatives of higher order
    (`create_graph=True`) and the transforms of `torch.func` take several such tables. This is the
    forward correction of Patrini et al. with each row's own law.

    References
    ----------
    Patrini, Rozza, Menon, Nock and Qu (2017), "Making deep neural networks robust to label noise: a
    loss correction approach".

    See Also
    --------
    evidence_of : the log-likelihoods of noisy labels.
    posterior_loss, debiased_loss : other corrections, which are statistically less efficient.

    Examples
    --------
    >>> ll = torch.tensor([[0.0, -1.0, -1.0]])
    >>> round(float(likelihood_loss(torch.zeros(1, 3), ll)), 4)
    0.5472
    """
    return _loss(_likelihood, logits, log_likelihood, reduction, check)


def posterior_loss(
    logits: Tensor,
    log_likelihood: Tensor | Form,
    reduction: Reduction = "mean",
    *,
    prior: Literal["model", "uniform"] | Tensor = "model",
    check: bool | None = None,
) -> Tensor:
    """Compute the cross-entropy to the posterior of each row's label: soft labels, as in ALIBI.

    Parameters
    ----------
    logits : (n, K) float tensor
    log_likelihood : (n, K) float tensor, or a form of n rows
    reduction : {"mean", "sum", "none"}, default="mean"
    prior : "model", "uniform", or (K,) or (n, K) tensor of non-negative weights, default="model"
        "model": softmax(logits), held constant; the gradient is then that of `likelihood_loss`.
        Weights are of one label column.
    check : bool, optional
        As in `likelihood_loss`.

    Returns
    -------
    Tensor
        As from `likelihood_loss`. Cost O(n K).

    References
    ----------
    Malek et al. (2021), "Antipodes of label differential privacy", section 3.
    """
    if isinstance(prior, Tensor):
        evidence = _as_form(log_likelihood, logits)
        if isinstance(evidence, Heads | Combined):
            raise InvalidInput(
                'Expected prior="model" or "uniform" with several label columns, got weights. Leave'
                " prior out."
            )
        log_prior = Dense(_log_prior(prior, logits, check))
        return _loss(_soft_labels, logits, Sum((evidence, log_prior)), reduction, check)
    kind = {"model": _model_posterior, "uniform": _soft_labels}[
        _validate.one_of(("model", "uniform"), prior=prior)
    ]
    return _loss(kind, logits, log_likelihood, reduction, check)


def debiased_loss(
    logits: Tensor,
    weights: Tensor | Form,
    reduction: Reduction = "mean",
    *,
    check: bool | None = None,
) -> Tensor:
    """Compute -sum_y w_y ln softmax(logits)_y, whose expectation over the law is the cross-entropy
    at the true label.

    Parameters
    ----------
    logits : (n, K) float tensor
    weights : (n, K) float tensor, or a form of n rows
        From `debias_weights`. Rows sum to 1, and some weights are negative, so the loss has no
        lower bound: stop early, or prefer `likelihood_loss`.
    reduction : {"mean", "sum", "none"}, default="mean"
    check : bool, optional
        As in `likelihood_loss`.

    Returns
    -------
    Tensor
        As from `likelihood_loss`, but of any sign. Cost O(n K).

    References
    ----------
    Ghazi et al. (2021), "Deep Learning with Label Differential Privacy", equation 7; Natarajan et
    al. (2013), "Learning with noisy labels".
    """
    return _loss(_weighted, logits, weights, reduction, check)


def cross_entropy(
    logits: Tensor, labels: Tensor, reduction: Reduction = "mean", *, check: bool | None = None
) -> Tensor:
    """Compute -ln softmax(logits) at hard noisy labels, as if they were true, as the published
    baselines do.

    Parameters
    ----------
    logits : (n, K) float tensor
    labels : (n,) int64 tensor in [0, K)
        Noisy labels, from `NoisyLabels.hard_codes`.
    reduction : {"mean", "sum", "none"}, default="mean"
    check : bool, optional
        As in `likelihood_loss`; also refuses labels out of range.

    Returns
    -------
    Tensor
        As from `likelihood_loss`. Cost O(n K).
    """
    look = _require_labels(logits, labels, check)
    rows = functional.cross_entropy(at_least_float32(logits), labels, reduction="none")
    return _reduced(rows, reduction, logits, None, look)


def generalised_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    reduction: Reduction = "mean",
    *,
    q: float = 0.7,
    check: bool | None = None,
) -> Tensor:
    """Compute (1 - p_label^q) / q at hard noisy labels: between cross-entropy (q near 0) and mean
    absolute error (q = 1).

    Parameters
    ----------
    logits : (n, K) float tensor
    labels : (n,) int64 tensor in [0, K)
    reduction : {"mean", "sum", "none"}, default="mean"
    q : float in (0, 1], default=0.7
    check : bool, optional
        As in `cross_entropy`.

    Returns
    -------
    Tensor
        As from `likelihood_loss`. Cost O(n K).

    References
    ----------
    Zhang and Sabuncu (2018), "Generalized cross entropy loss for training deep neural networks with
    noisy labels", equation 6.
    """
    power = _validate.fraction(q=q, one=True)
    look = _require_labels(logits, labels, check)
    log_p = functional.log_softmax(at_least_float32(logits), dim=1).gather(1, labels[:, None])[:, 0]
    # 1 - p^q by expm1, which keeps its digits where p is near 1.
    return _reduced(-torch.expm1(power * log_p) / power, reduction, logits, None, look)


def mixup_loss(
    loss: Callable[..., Tensor],
    logits: Tensor,
    a: Tensor | Form,
    b: Tensor | Form,
    lam: float | Tensor,
    reduction: Reduction = "mean",
    **options: Any,
) -> Tensor:
    """Compute the loss of mixed inputs, lam loss(logits, a) + (1 - lam) loss(logits, b), for any of
    the losses here.

    Evidence is mixed by its losses and not by its likelihoods; on hard labels this is the original
    mixup.

    Parameters
    ----------
    loss : function (logits, target, reduction="none", **options) -> (n,) tensor
    logits : (n, K) float tensor
        Logits of the mixed inputs, lam x_a + (1 - lam) x_b.
    a, b : targets of both members of each pair, in a form that the loss takes
    lam : float in [0, 1], or tensor of one number or of shape (n,)
    reduction : {"mean", "sum", "none"}, default="mean"
    **options
        Passed to the loss.

    Returns
    -------
    Tensor
        As from the loss. Cost: two losses.

    References
    ----------
    Zhang et al. (2018), "mixup: beyond empirical risk minimization".
    """
    if not isinstance(lam, Tensor):
        lam = _validate.fraction(lam=lam, zero=True, one=True)
    elif lam.ndim and lam.shape != logits.shape[:1]:
        raise InvalidInput(
            f"Expected lam of one number or of shape ({len(logits)},), got {tuple(lam.shape)}."
            " Flatten it."
        )
    elif looks(None, lam) and not bool(((lam >= 0) & (lam <= 1)).all()):
        raise InvalidInput(
            "Expected lam from 0 to 1, got others. Draw it from a Beta distribution, as"
            " augment.mixup does."
        )
    first = loss(logits, a, reduction="none", **options)
    second = loss(logits, b, reduction="none", **options)
    return _reduce(lam * first + (1 - lam) * second, reduction)


# The target of each loss, from logits and table
# -------------------------------------------------------------------------------------


def _likelihood(logits: Tensor, form: Form) -> Part:
    """Compute the posterior under the model; its normaliser is the likelihood itself."""
    target, log_total = _softmax(form.plus(logits))
    return -log_total, target, None


def _model_posterior(logits: Tensor, form: Form) -> Part:
    """Compute the posterior under the model as a constant: another value than the likelihood's,
    with the same gradient."""
    target = torch.softmax(form.plus(logits), dim=1)
    return -torch.linalg.vecdot(target, logits), target, None


def _soft_labels(logits: Tensor, form: Form) -> Part:
    """Compute the posterior under the prior that is part of the form."""
    target = torch.softmax(form.expand(logits.shape[1], logits.dtype), dim=1)
    return -torch.linalg.vecdot(target, logits), target, None


def _weighted(logits: Tensor, form: Form) -> Part:
    """Return the weights themselves; they sum to 1 up to rounding, but a user's own weights may sum
    to another number."""
    table = form.expand(logits.shape[1], logits.dtype)
    return -torch.linalg.vecdot(table, logits), table, table.sum(dim=1)


def _softmax(values: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the softmax (m, K) and ln sum exp (m,)."""
    # The largest entry of the softmax is exp(largest value - ln sum exp), so the exponentials are
    # computed only once.
    p = torch.softmax(values, dim=1)
    return p, values.amax(dim=1) - p.amax(dim=1).log()


# Value and gradient in one pass
# --------------------------------------------------------------------------------------------------


class _Rows(torch.autograd.Function):
    """Losses (n,) of the rows; the gradient is computed in the forward pass, while the exponentials
    are in memory. Only a backward pass that is differentiated itself computes it anew, by
    `_formula`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, form: Form, kind: Kind, needs_gradient: bool) -> Tensor:
        n, k = logits.shape
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        losses = torch.empty(n, dtype=wide, device=logits.device)
        # in float16 small gradients underflow until they are scaled
        kept = wide if logits.dtype == torch.float16 else logits.dtype
        gradient = torch.empty_like(logits, dtype=kept) if needs_gradient else None
        # no n x K float32 copy of the logits
        step = max(1, (_CELLS_CPU if logits.device.type == "cpu" else _CELLS_DEVICE) // k)
        # Forward and backward share the exponentials: a second pass over n x K would cost as much
        # as the first.
        for start in range(0, n, step):
            rows = slice(start, start + step)
            part = logits[rows].to(wide)
            p, log_total = _softmax(part)
            value, target, mass = kind(part, form if step >= n else form[rows])
            losses[rows] = value + (log_total if mass is None else mass * log_total)
            if gradient is not None:
                gradient[rows] = (p if mass is None else p.mul_(mass[:, None])).sub_(target)
        if gradient is not None:
            ctx.save_for_backward(logits, gradient)
            ctx.step, ctx.formula = step, partial(_formula, kind, form=form)
        return losses

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        logits, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the saved gradient is a constant
            alias = logits.view_as(logits)  # without the hooks of the user's tensor
            found = torch.autograd.grad(ctx.formula(alias), alias, upstream, create_graph=True)
            return *found, None, None, None
        if logits.dtype == upstream.dtype:
            return gradient * upstream[:, None], None, None, None
        scaled = torch.empty_like(gradient, dtype=logits.dtype)
        for start in range(0, len(gradient), ctx.step):  # multiplied in float32, then rounded once
            rows = slice(start, start + ctx.step)
            scaled[rows] = gradient[rows] * upstream[rows, None]
        return scaled, None, None, None


def _formula(kind: Kind, logits: Tensor, form: Form) -> Tensor:
    """Compute the rows' losses (n,) by torch's own operations, for derivatives of any order and the
    transforms of `torch.func`: several passes, and several tables of n x K."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    table = form.expand(logits.shape[1], wide.dtype)
    total = torch.logsumexp(wide, dim=1)
    if kind is _likelihood:
        return total - torch.logsumexp(wide + table, dim=1)
    _, target, mass = kind(wide.detach(), Dense(table))
    return (total if mass is None else mass * total) - (target * wide).sum(dim=1)


def _transformed() -> bool:
    """Return whether `torch.func` is at work, which sees neither into a form nor through
    `_Rows`."""
    return bool(torch._C._are_functorch_transforms_active())


def _loss(
    kind: Kind, logits: Tensor, table: Tensor | Form, reduction: Reduction, check: bool | None
) -> Tensor:
    form = _as_form(table, logits)
    if isinstance(form, Heads | Combined):
        return _reduce(form.loss(kind, logits, check), reduction)
    look = looks(check, logits)
    if look and not form.in_range(logits.shape[1]):
        raise InvalidInput(
            f"Expected classes from 0 to {logits.shape[1] - 1}, got others in the evidence. Give"
            " one output a class."
        )
    for part in (
        () if not look or kind is _weighted else form.parts if isinstance(form, Sum) else (form,)
    ):
        require_log_likelihood(part)
    rows: Tensor = (
        _formula(kind, logits, form)
        if _transformed()
        else _Rows.apply(logits, form, kind, logits.requires_grad and torch.is_grad_enabled())
    )
    return _reduced(rows, reduction, logits, form, look)


def _reduced(
    rows: Tensor, reduction: Reduction, logits: Tensor, form: Form | None, look: bool
) -> Tensor:
    # checks n numbers; reads n x K only for the message
    if look and not bool(torch.isfinite(rows.detach()).all()):
        raise why_not_finite(logits.detach(), form)
    return _reduce(rows, reduction)


def _reduce(rows: Tensor, reduction: Reduction) -> Tensor:
    if reduction == "mean":
        return rows.mean()
    if reduction == "sum":
        return rows.sum()
    _validate.one_of(("mean", "sum", "none"), reduction=reduction)
    return rows


def at_least_float32(values: Tensor) -> Tensor:
    """Convert values of half precision to float32; wider ones stay."""
    return values if values.dtype == torch.float64 else values.float()


def _log_prior(prior: Tensor, logits: Tensor, check: bool | None) -> Tensor:
    if prior.shape not in (logits.shape, logits.shape[1:]):
        raise InvalidInput(
            f"Expected a prior of shape {tuple(logits.shape[1:])} or {tuple(logits.shape)}, got"
            f" {tuple(prior.shape)}. Weigh each class."
        )
    weights = prior.detach().to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
    if looks(check, logits) and not bool(
        ((weights >= 0) & (weights < math.inf)).all() & (weights > 0).any(dim=-1).all()
    ):
        raise InvalidInput(
            "Expected a prior of finite weights, none negative and some above 0 in each row, got"
            " others. Give probabilities of the classes."
        )
    log_prior = weights.log()
    return (log_prior - log_prior.amax(dim=-1, keepdim=True)).expand(logits.shape)


def _require_logits(logits: Tensor) -> None:
    if (
        not isinstance(logits, Tensor)
        or logits.ndim != 2
        or not logits.is_floating_point()
        or not len(logits)
        or logits.shape[1] < 2
    ):
        found = (
            f"shape {tuple(logits.shape)} of {logits.dtype}"
            if isinstance(logits, Tensor)
            else type(logits).__name__
        )
        raise InvalidInput(
            f"Expected logits as a float tensor (n, K) with n >= 1 and K >= 2, got {found}. Give"
            " one output a class."
        )


def _as_form(table: Tensor | Form, logits: Tensor) -> Form:
    """Convert the table to a form that fits the logits; every fault of shapes is refused, without
    reading values."""
    _require_logits(logits)
    n, k = logits.shape
    if isinstance(table, Tensor):
        if table.shape != logits.shape:
            raise InvalidInput(
                f"Expected a table of the logits' shape {(n, k)}, got {tuple(table.shape)}. The"
                " model needs one output a class, and the batch's rows must be those of its"
                " evidence."
            )
        table = Dense(table)
    if not isinstance(table, Form):
        raise InvalidInput(
            f"Expected a tensor (n, K) or a form, got {type(table).__name__}. Make one of noisy"
            " labels: evidence_of(noisy)[rows]."
        )
    if len(table) != n:
        raise InvalidInput(
            f"Expected evidence of the batch's {n} rows, got {len(table)}. Index it with the rows"
            " of the batch."
        )
    if not table.fits(k):
        raise InvalidInput(
            f"Expected evidence over the model's {k} outputs, got another number of classes. Give"
            " the model K outputs."
        )
    if any(t.requires_grad for t in table.tensors):
        raise InvalidInput(
            "Expected evidence without a gradient, got a tensor that requires one: it would get"
            " none. Detach it."
        )
    return table


def looks(check: bool | None, values: Tensor) -> bool:
    """Return whether values are checked: by default not on a GPU, where each check would wait for
    the device, nor under `torch.func`, where values may be unknown."""
    return values.device.type == "cpu" and not _transformed() if check is None else check


def require_log_likelihood(form: Form) -> None:
    """Refuse numbers that are no log-likelihoods: these are at most 0, and 0 at the likeliest
    class.

    What is not finite is left to `why_not_finite`, which knows the logits, too.
    """
    for stored in filter(Tensor.is_floating_point, form.tensors):
        top = stored.amax(dim=1) if isinstance(form, Dense) else stored.clamp(min=0)
        wrong = top.isfinite() & (top.abs() > _TOP)
        if isinstance(form, Dense) and len(stored) >= _MANY:
            impossible = stored.isneginf().sum(dim=1)
            if bool((impossible == stored.shape[1] - 1).all()):
                raise InvalidInput(
                    "Expected log-likelihoods of noisy labels, got rows that leave one class"
                    " possible, each of them: labels without noise. Pass evidence_of(noisy)."
                )
        if bool(wrong.any()):
            raise InvalidInput(
                "Expected log-likelihoods, the largest 0 in each row, got a row whose largest is "
                f"{float(top[wrong][0]):g}. Take them as evidence_of(noisy) and with_evidence give "
                "them: no likelihoods (evidence.exp()), probabilities or one-hot labels. Of "
                "likelihoods of your own: log_l = l.log(); log_l - log_l.amax(1, keepdim=True)."
            )


def _require_labels(logits: Tensor, labels: Tensor, check: bool | None) -> bool:
    """Refuse labels that do not fit the logits; return whether values are checked."""
    _require_logits(logits)
    if (
        not isinstance(labels, Tensor)
        or labels.shape != logits.shape[:1]
        or labels.dtype != torch.int64
    ):
        found = (
            f"shape {tuple(labels.shape)} of {labels.dtype}"
            if isinstance(labels, Tensor)
            else type(labels).__name__
        )
        raise InvalidInput(
            f"Expected labels as ({len(logits)},) int64 codes, got {found}. Pass"
            " torch.from_numpy(noisy.hard_codes())."
        )
    look = looks(check, logits)
    if look and not bool(((labels >= 0) & (labels < logits.shape[1])).all()):
        raise InvalidInput(
            f"Expected label codes from 0 to {logits.shape[1] - 1}, got others. Give the model one"
            " output a class."
        )
    return look


def why_not_finite(logits: Tensor, form: Form | None) -> InvalidInput:
    """Make the error that says why a loss is not finite: the model, the evidence, or the two
    together."""
    wide = logits.float()
    if bool((bad := wide.isnan().any(dim=1) | (wide == torch.inf).any(dim=1)).any()):
        return InvalidInput(
            f"Expected finite logits, got NaN or inf in {_which(bad)}. Training has diverged or the"
            " inputs hold NaN: lower the learning rate, clip gradients, check the inputs."
        )
    if form is not None:
        table = form.expand(logits.shape[1])
        if bool((bad := (table.isnan() | (table == torch.inf)).any(dim=1)).any()):
            return InvalidInput(
                f"Expected evidence of numbers, got NaN or +inf in {_which(bad)}. Make it with"
                " evidence_of(noisy)."
            )
        if bool((bad := (table == -torch.inf).all(dim=1)).any()):
            return InvalidInput(
                "Expected a likelihood above 0 for some class of every row, got 0 for all in"
                f" {_which(bad)}. The evidence contradicts itself: were draws of different rows"
                " combined?"
            )
    return InvalidInput(
        "Expected some probability on classes that the evidence allows, got an infinite loss:"
        " logits are -inf there. Do not mask classes out that a label can be of."
    )


def _which(bad: Tensor) -> str:
    found = torch.nonzero(bad)[:, 0]
    return f"{len(found)} rows of the batch (first: row {int(found[0])})"
