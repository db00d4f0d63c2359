# SPDX-License-Identifier: Apache-2.0
"""Channel: the law of labels that somebody else has randomised, as an explicit matrix."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, Literal, Never, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.laws._base import MAX_CELLS, Side, exact_epsilon
from labeldp.laws._exact import Array, Floats, Words
from labeldp.laws._matrix import OfMatrix

_NAN = float("nan")
# that a row's sum may be off 1, where probabilities are printed with few digits
_SLACK = Fraction(1, 10**6)

Rows = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True, init=False, repr=False)
class Channel(OfMatrix):
    """Declare the law by which somebody else has randomised labels, as the matrix of P[output |
    label].

    Parameters
    ----------
    matrix : (K, J) numbers > 0
        Row y holds the probabilities of the J outputs if the label is class y: J = K where labels
        were released, or any other number of answers. Floats count as the decimal numbers that they
        print as; fractions are exact. Each row sums to 1, within 1e-6, and is divided by its sum.

    Attributes
    ----------
    n_classes : int
        K.
    epsilon : float
        The largest log-ratio of two probabilities in a column, rounded up: pure epsilon-label-DP,
        if the matrix is true.
    rows : tuple of K tuples of J Fractions
        The matrix.

    Raises
    ------
    InvalidInput
        The matrix has another shape, a number below 0, or a row that does not sum to 1. Or a
        probability is 0, so that an output excludes a label for certain and no finite epsilon
        holds. Or all rows are equal: then outputs tell nothing.

    See Also
    --------
    labeldp.NoisyLabels.from_labels : declares labels by a law.

    Notes
    -----
    Declared only: it never draws, and whoever asks for a draw by it is refused before the charge.
    labeldp draws by laws whose sampler has exactly the stated probabilities; of labels that others
    drew, nobody can prove more than what they say.

    Likelihoods are the matrix's columns. With P of rank K, `weights` is the right inverse of P with
    the least variance under uniform labels, W = D^-1 P' (P D^-1 P')^-1 with D the diagonal of the
    outputs' mean probabilities; for J = K it is the inverse. Then P W = 1, so that debiased losses
    are unbiased. Of smaller rank they are NaN, but the likelihood still holds. Where J differs from
    K, an output stands for its likeliest classes. Cost: O(K^2 J) once, O(K) a row.

    References
    ----------
    Warner 1965, "Randomized response"; Chaudhuri and Mukerjee 1988, "Randomized Response: Theory
    and Techniques", for designs with other matrices.

    Examples
    --------
    >>> law = Channel(
    ...     [[0.8, 0.2], [0.1, 0.9]]
    ... )  # a coin decides whether to lie, more often for "no"
    >>> law
    Channel(2 classes, 2 outputs, epsilon=2.0794415416798...)
    """

    name: ClassVar[str] = "channel"
    declared_only: ClassVar[bool] = True

    rows: Rows

    def __init__(self, matrix: ArrayLike) -> None:
        rows = _probabilities(matrix)
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "n_classes", len(rows))
        epsilon = exact_epsilon(np.array(rows, dtype=object))
        if epsilon == 0:
            raise InvalidInput(
                "Expected a matrix whose rows differ, got equal ones: such outputs tell nothing"
                " about labels."
            )
        object.__setattr__(self, "epsilon", epsilon)
        super().__post_init__()

    def __repr__(self) -> str:
        return (
            f"Channel({self.n_classes} classes, {len(self.rows[0])} outputs,"
            f" epsilon={self.epsilon!r})"
        )

    @property
    def kind(self) -> Literal["label", "scores"]:  # type: ignore[override]
        """ "label" if outputs are as many as classes, each the noisy form of its class; else
        outputs are scores of the classes."""
        return "label" if len(self.rows[0]) == self.n_classes else "scores"

    @property
    def _rows(self) -> Rows:
        return self.rows

    def sample(self, labels: NDArray[np.integer], words: Words, side: Side) -> Never:
        raise InvalidInput(
            "Expected a law that draws, got a Channel, which only declares how others have drawn."
        )

    def inclusion(self, outputs: Array, side: Side) -> tuple[Floats, Floats]:
        own, other = _symmetric(self.rows)
        return np.full(len(outputs), own), np.full(len(outputs), other)

    def to_dict(self) -> dict[str, object]:
        return super().to_dict() | {"rows": [[str(p) for p in row] for row in self.rows]}

    @classmethod
    def from_fields(cls, data: Mapping[str, object]) -> Self:
        """Make the law with these fields, of which the matrix decides; the others must agree."""
        made = cls(data["rows"])  # type: ignore[arg-type]
        if {name: data.get(name) for name in ("n_classes", "epsilon")} != {
            "n_classes": made.n_classes,
            "epsilon": made.epsilon,
        }:
            raise InvalidInput(
                "Expected the classes and epsilon that follow from the channel's matrix, got"
                " others. Restore the file."
            )
        return made


def _probabilities(matrix: Any) -> Rows:
    """Check the matrix, and read it as exact fractions whose rows sum to 1."""
    shape = np.shape(np.asarray(matrix, dtype=object))
    if len(shape) != 2 or shape[0] < 2 or shape[1] < 2 or shape[0] * shape[1] > MAX_CELLS:
        raise InvalidInput(
            "Expected a matrix of K rows, one a class, and one column an output, 2 by 2 or more"
            f" and at most {MAX_CELLS} cells, got shape {shape}."
        )
    rows = [[_fraction(p) for p in row] for row in np.asarray(matrix, dtype=object).tolist()]
    totals = [sum(row, Fraction(0)) for row in rows]
    for y, total in enumerate(totals):
        if abs(total - 1) > _SLACK:
            raise InvalidInput(
                "Expected rows that sum to 1, each over the outputs of one class, got"
                f" {float(total):.6g} in row {y}."
            )
    for j, column in enumerate(zip(*rows, strict=True)):
        if min(column) == 0:
            raise InvalidInput(
                f"Expected probabilities above 0, got 0 in column {j}: "
                + (
                    "no label gives this output. Leave it out."
                    if max(column) == 0
                    else "such an output excludes a label for certain, "
                )
                + ("" if max(column) == 0 else "and no finite epsilon holds for it.")
            )
    return tuple(tuple(p / total for p in row) for row, total in zip(rows, totals, strict=True))


def _fraction(value: object) -> Fraction:
    """Read one probability: a fraction, a string of one, or a number by its decimal form."""
    try:
        if isinstance(value, Fraction | int | str):
            found = Fraction(value)
        else:
            found = _validate.exact(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        found = Fraction(-1)
    if found < Fraction(0) or isinstance(value, bool):
        raise InvalidInput(
            f"Expected probabilities as numbers in 0..1, got {_validate.shown(value)}."
        )
    return found


@lru_cache(maxsize=64)
def _symmetric(rows: Rows) -> tuple[float, float]:
    """Find P[own class] and P[any one other class], where these are the same for all classes; else
    NaN."""
    k = len(rows)
    own = {rows[y][y] for y in range(k)} if len(rows[0]) == k else set()
    other = {p for y, row in enumerate(rows) for j, p in enumerate(row) if y != j}
    if len(own) != 1 or len(other) != 1 or own == other:
        return _NAN, _NAN
    return float(own.pop()), float(other.pop())
