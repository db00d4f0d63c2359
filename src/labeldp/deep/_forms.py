# SPDX-License-Identifier: Apache-2.0
"""Tables (n, K) with few distinct numbers a row, held in a few bytes a row: what losses are given where K is large.

The numbers are log-likelihoods for the likelihood and posterior losses, and weights for the debiased loss. A loss expands a form a few
rows at a time, so that n x K numbers never lie in memory beside the logits.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from labeldp.errors import InvalidInput

_WIDE = 256  # bytes a row from which a table of the row's 256 bytes pays


class Form(ABC):
    """A table (n, K) that can be indexed by rows, moved to a device, and expanded."""

    @abstractmethod
    def __len__(self) -> int:
        """n."""

    @abstractmethod
    def __getitem__(self, rows: Tensor | slice) -> Self:
        """The rows at these positions: a slice, or (m,) int64; in that order, repeats allowed."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Self:
        """The same table with its memory on this device."""

    @abstractmethod
    def expand(self, n_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The table as (n, K) numbers. It may share memory with the form: do not write into it."""

    def plus(self, logits: Tensor) -> Tensor:
        """The table plus logits (n, K), of their type: a new tensor."""
        return logits + self.expand(logits.shape[1], logits.dtype)

    @abstractmethod
    def fits(self, n_classes: int) -> bool:
        """Whether the stored shapes are those of a table with K columns; looks at no values."""

    def in_range(self, n_classes: int) -> bool:
        """Whether every stored class is in [0, K). Reads values, so it waits for the device."""
        return True

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """What is stored."""

    @property
    def n_bytes(self) -> int:
        """Bytes of what is stored."""
        return sum(t.numel() * t.element_size() for t in self.tensors)


@dataclass(frozen=True, eq=False)
class Dense(Form):
    """The table itself.

    Parameters
    ----------
    values : (n, K) float tensor
    """

    values: Tensor

    def __post_init__(self) -> None:
        _require(self.values, "values", "(n, K)", self.values.ndim == 2 and self.values.is_floating_point())

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Tensor | slice) -> Self:
        return type(self)(self.values[rows])

    def to(self, device: torch.device | str) -> Self:
        return type(self)(self.values.to(device))

    def expand(self, n_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.values.to(dtype)

    def fits(self, n_classes: int) -> bool:
        return bool(self.values.shape[1] == n_classes)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.values,)


@dataclass(frozen=True, eq=False)
class Candidates(Form):
    """A few classes of each row have values of their own; all others share one.

    Parameters
    ----------
    indices : (n, k) integer tensor
        Classes in [0, K). A class may occur twice with the same value, so rows are padded by repeating one.
    values : (n, k) float tensor
        At these classes.
    rest : (n,) float tensor
        At all other classes of the row.
    """

    indices: Tensor
    values: Tensor
    rest: Tensor

    def __post_init__(self) -> None:
        _require(self.indices, "indices", "(n, k), integers", self.indices.ndim == 2 and not self.indices.is_floating_point())
        _require(self.values, "values", f"{tuple(self.indices.shape)}", self.values.shape == self.indices.shape)
        _require(self.rest, "rest", f"({len(self.indices)},)", self.rest.shape == self.indices.shape[:1])

    def __len__(self) -> int:
        return len(self.rest)

    def __getitem__(self, rows: Tensor | slice) -> Self:
        return type(self)(self.indices[rows], self.values[rows], self.rest[rows])

    def to(self, device: torch.device | str) -> Self:
        return type(self)(self.indices.to(device), self.values.to(device), self.rest.to(device))

    def expand(self, n_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        table = self.rest.to(dtype)[:, None].repeat(1, n_classes)
        return table.scatter_(1, self.indices.long(), self.values.to(dtype))

    def plus(self, logits: Tensor) -> Tensor:
        at = self.indices.long()
        shifted = logits.gather(1, at) + self.values.to(logits.dtype)
        return (logits + self.rest.to(logits.dtype)[:, None]).scatter_(1, at, shifted)

    def fits(self, n_classes: int) -> bool:
        return True

    def in_range(self, n_classes: int) -> bool:
        return not self.indices.numel() or bool((self.indices.min() >= 0) & (self.indices.max() < n_classes))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.indices, self.values, self.rest)


@dataclass(frozen=True, eq=False)
class PackedSets(Form):
    """One value inside a set of classes, another outside, and possibly a third at one class.

    Parameters
    ----------
    bits : (n, ceil(K/8)) uint8 tensor
        Class c is bit c % 8 of byte c // 8, as the laws release sets.
    inside, outside : (n,) float tensors
    label : (n,) integer tensor, optional
        A class in [0, K) with a value of its own, inside the set or not.
    at_label : (n,) float tensor, optional
        That value; given if and only if `label` is.
    """

    bits: Tensor
    inside: Tensor
    outside: Tensor
    label: Tensor | None = None
    at_label: Tensor | None = None

    def __post_init__(self) -> None:
        _require(self.bits, "bits", "(n, ceil(K/8)), uint8", self.bits.ndim == 2 and self.bits.dtype == torch.uint8)
        if (self.label is None) != (self.at_label is None):
            raise InvalidInput("Expected label and at_label together, got one of them. Give both or neither.")
        for name in ("inside", "outside", "label", "at_label"):
            value = getattr(self, name)
            if value is not None:
                _require(value, name, f"({len(self.bits)},)", value.shape == self.bits.shape[:1])

    def __len__(self) -> int:
        return len(self.bits)

    def __getitem__(self, rows: Tensor | slice) -> Self:
        return type(self)(self.bits[rows], self.inside[rows], self.outside[rows], *(x[rows] for x in self._own))

    def to(self, device: torch.device | str) -> Self:
        return type(self)(*(x.to(device) for x in self.tensors))

    @property
    def _own(self) -> tuple[Tensor, ...]:
        return () if self.label is None or self.at_label is None else (self.label, self.at_label)

    def expand(self, n_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        table = self._by_row(dtype) if self.bits.shape[1] >= _WIDE else self._by_mask(dtype)
        table = table[:, :n_classes]
        if self.label is not None and self.at_label is not None:
            table.scatter_(1, self.label.long()[:, None], self.at_label.to(dtype)[:, None])
        return table

    def _by_mask(self, dtype: torch.dtype) -> Tensor:
        members = _unpacked(self.bits.device).index_select(0, self.bits.reshape(-1).int()).view(torch.bool)
        mask = members.view(len(self.bits), 8 * self.bits.shape[1])
        return torch.where(mask, self.inside.to(dtype)[:, None], self.outside.to(dtype)[:, None])

    def _by_row(self, dtype: torch.dtype) -> Tensor:
        """For many classes: each row's values of all 256 bytes, looked up; several times as quick as choosing class by class."""
        n = len(self.bits)
        every = _unpacked(self.bits.device).view(torch.bool).view(1, 256, 8)
        values = torch.where(every, self.inside.to(dtype)[:, None, None], self.outside.to(dtype)[:, None, None])
        place = self.bits.int() + 256 * torch.arange(n, dtype=torch.int32, device=self.bits.device)[:, None]
        return functional.embedding(place, values.view(256 * n, 8)).view(n, 8 * self.bits.shape[1])

    def fits(self, n_classes: int) -> bool:
        return bool(self.bits.shape[1] == -(-n_classes // 8))

    def in_range(self, n_classes: int) -> bool:
        return self.label is None or not len(self.label) or bool((self.label.min() >= 0) & (self.label.max() < n_classes))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.bits, self.inside, self.outside, *self._own)


@dataclass(frozen=True, eq=False)
class Sum(Form):
    """The sum of tables, less its maximum in each row: log-likelihoods of several independent draws of each row.

    Parameters
    ----------
    parts : tuple of Form
        At least one, all of n rows.
    """

    parts: tuple[Form, ...]

    def __post_init__(self) -> None:
        if not self.parts or len({len(part) for part in self.parts}) > 1:
            raise InvalidInput(f"Expected parts of one length, got {[len(part) for part in self.parts]}. Give each the same rows.")

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, rows: Tensor | slice) -> Self:
        return type(self)(tuple(part[rows] for part in self.parts))

    def to(self, device: torch.device | str) -> Self:
        return type(self)(tuple(part.to(device) for part in self.parts))

    def expand(self, n_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        total = self.parts[0].expand(n_classes, dtype)
        for part in self.parts[1:]:
            total = total + part.expand(n_classes, dtype)
        return total - total.amax(dim=-1, keepdim=True)  # as of `NoisyLabels.log_likelihood`

    def fits(self, n_classes: int) -> bool:
        return all(part.fits(n_classes) for part in self.parts)

    def in_range(self, n_classes: int) -> bool:
        return all(part.in_range(n_classes) for part in self.parts)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(t for part in self.parts for t in part.tensors)


@lru_cache(maxsize=16)
def _unpacked(device: torch.device) -> Tensor:
    """For each byte, its eight bits as the eight bytes of one (256,) int64: one look-up a byte is much quicker than eight shifts."""
    bits = (torch.arange(256)[:, None] >> torch.arange(8)) & 1
    return bits.to(torch.uint8).view(torch.int64)[:, 0].to(device)


def _require(value: Tensor, name: str, shape: str, good: bool) -> None:
    if not good:
        raise InvalidInput(f"Expected {name} of shape {shape}, got {tuple(value.shape)} of {value.dtype}. See the class's parameters.")
