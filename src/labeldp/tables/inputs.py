# SPDX-License-Identifier: Apache-2.0
"""What a model is given of each row: columns as a matrix, an image, or an array; and how to read it from a model's own facts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from labeldp.tables.arrays import ArrayInputs
from labeldp.tables.features import Features
from labeldp.tables.images import ImageInputs
from labeldp.tables.standardised import Standardised
from labeldp.tables.table import Rows

Array = NDArray[Any]


class Inputs(Protocol):
    """A way to read inputs, learnt from public columns; plain data, so that a model's folder holds it as JSON."""

    @property
    def names(self) -> list[str]:
        """Columns that are read."""
        ...

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Channels, height and width; None where rows are vectors."""
        ...

    def read(self, batch: Rows, start: int | None = None) -> Array:
        """(m, ...); `start` is the first row's number, for messages."""
        ...

    def to_dict(self) -> dict[str, object]:
        """JSON-ready data."""
        ...


@dataclass(frozen=True)
class ColumnInputs:
    """Columns as a matrix.

    Attributes
    ----------
    features : Features
    """

    features: Features

    @property
    def names(self) -> list[str]:
        """The columns."""
        return self.features.names

    @property
    def image(self) -> None:
        """None."""

    def read(self, batch: Rows, start: int | None = None) -> Array:
        """(m, d) float64, NaN where a value is missing."""
        return self.features.matrix(batch)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready data."""
        return self.features.to_dict()


@dataclass(frozen=True)
class StandardisedInputs:
    """Vectors as a net takes them, or a linear model.

    Attributes
    ----------
    inner : ColumnInputs or ArrayInputs
    standardised : Standardised
    sparse : bool
        A sparse matrix: a linear model has a column for each of many categories.
    """

    inner: Inputs
    standardised: Standardised
    sparse: bool = False

    @property
    def names(self) -> list[str]:
        """The columns."""
        return self.inner.names

    @property
    def image(self) -> None:
        """None."""

    def read(self, batch: Rows, start: int | None = None) -> Any:
        """(m, d) float32."""
        found = self.inner.read(batch, start)
        return self.standardised.sparse(found) if self.sparse else self.standardised.apply(found)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready data."""
        return self.inner.to_dict() | {"standardised": self.standardised.to_dict()} | ({"sparse": True} if self.sparse else {})


def inputs_from_dict(data: Mapping[str, Any]) -> Inputs:
    """What `to_dict` of any of them wrote."""
    if data.get("kind") == "images":
        return ImageInputs.from_dict(data)
    inner: Inputs = ArrayInputs.from_dict(data) if data.get("kind") == "array" else ColumnInputs(Features.from_dict(data))
    if "standardised" not in data:
        return inner
    return StandardisedInputs(inner, Standardised.from_dict(data["standardised"]), bool(data.get("sparse", False)))
