# SPDX-License-Identifier: Apache-2.0
"""What a law is, and what follows from it.

A law is a frozen value: the number of classes, epsilon, and the rule P[output | label, side]. It does no input or output and owns no
randomness: it is handed uniform 64-bit words. Outputs and side are plain arrays with one entry a row:

* label-valued laws release `outputs` of shape (n,), int32 class codes;
* set-valued laws release `outputs` of shape (n, ceil(K/8)), uint8: the set as packed bits, class c in bit c % 8 of byte c // 8;
* `side` is a dict of arrays, first axis n: what the law must know of each row's public prior to read its output.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate

Array = NDArray[np.generic]
Side = Mapping[str, Array]


class Words(Protocol):
    """Uniform uint64 words for a chunk of rows: a counter stream for each row.

    The same counter of the same row is the same word whenever it is asked for; different counters and rows are independent.
    """

    def __len__(self) -> int:
        """Rows in the chunk."""
        ...

    def take(self, counter: int, rows: NDArray[np.intp] | None = None) -> NDArray[np.uint64]:
        """Word number `counter` of every row, or of the rows at these positions: (len(rows),) uint64."""
        ...

    def select(self, rows: NDArray[np.intp]) -> "Words":
        """The streams of the rows at these positions, as a chunk of its own."""
        ...


@dataclass(frozen=True)
class Cell:
    """Some outputs that share one probability, seen from one kind of label.

    Attributes
    ----------
    label : str
        The kind of label, for example "candidate" or "outside".
    output : str
        The kind of output. Cells with equal `output` can occur at the same output for two labels, so their ratio bounds epsilon.
    relation : str
        How output and label relate, for example "kept", "other", "contains", "lacks".
    probability : Fraction
        Of each single output of this cell, given such a label. Over one kind of label, sum of probability x outputs is 1.
    outputs : int
        How many outputs the cell stands for.
    """

    label: str
    output: str
    relation: str
    probability: Fraction
    outputs: int


@dataclass(frozen=True)
class Law(ABC):
    """A label-DP mechanism as a value.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float
        The claimed pure, local epsilon of one draw; finite and above 0. The running sampler never exceeds it, in exact arithmetic.
    """

    name: ClassVar[str]
    kind: ClassVar[Literal["label", "set"]]
    uses_prior: ClassVar[bool]

    n_classes: int
    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_classes", _validate.integer(n_classes=self.n_classes, low=2, fix="One class needs no privacy."))
        object.__setattr__(self, "epsilon", _validate.epsilon(self.epsilon))

    # What a mechanism writes ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self, prior: Array) -> dict[str, Array]:
        """Side of each row from its public prior.

        Parameters
        ----------
        prior : (n, K) float
            Non-negative weights, any scale; a zero-stride view is fine. Depends on public facts only, never on these raw labels.

        Returns
        -------
        dict of arrays, first axis n. Empty for laws that use no prior. Deterministic on every machine.
        """

    @abstractmethod
    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> Array:
        """Draw one output a row. labels: (n,) codes in [0, K), already checked; words and side: n rows."""

    @abstractmethod
    def log_likelihood(self, outputs: Array, side: Side) -> NDArray[np.float64]:
        """ln P[output | y] up to a constant a row: (n, K), row maximum 0, from the sampler's integers."""

    @abstractmethod
    def inclusion(self, outputs: Array, side: Side) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """How often a class is in the output: (own, other), each (n,).

        own[i] = P[y in output | label y], other[i] = P[y in output | label y'] for y' != y; both NaN where this depends on more than
        that, so that the row has no unbiased estimator.
        """

    @abstractmethod
    def profile(self, side_row: Side) -> tuple[Cell, ...]:
        """The distinct probabilities of the sampler that runs, exactly, for one row's side (arrays without the first axis)."""

    @abstractmethod
    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Type and shape of one row's output (key "output") and of each side array: what a file stores."""

    # What follows from it: members, matrix, outputs, information, event, to_dict (to be completed) -----------------------------------

    def to_dict(self) -> dict[str, object]:
        """The law as JSON-ready data; `law_from_dict` reads it back."""
        return {"law": self.name} | {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_fields(cls, data: Mapping[str, object]) -> Self:
        """The law with these fields (lists become tuples)."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items()})  # type: ignore[arg-type]
