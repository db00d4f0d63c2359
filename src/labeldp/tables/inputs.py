# SPDX-License-Identifier: Apache-2.0
"""What a model is given of each row: columns as a matrix, an image, or an array; and how to read it from a model's own facts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
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
    """Vectors as a net takes them.

    Attributes
    ----------
    inner : ColumnInputs or ArrayInputs
    standardised : Standardised
    """

    inner: Inputs
    standardised: Standardised

    @property
    def names(self) -> list[str]:
        """The columns."""
        return self.inner.names

    @property
    def image(self) -> None:
        """None."""

    def read(self, batch: Rows, start: int | None = None) -> NDArray[np.float32]:
        """(m, d) float32."""
        return self.standardised.apply(self.inner.read(batch, start))

    def to_dict(self) -> dict[str, object]:
        """JSON-ready data."""
        return self.inner.to_dict() | {"standardised": self.standardised.to_dict()}


def inputs_from_dict(data: Mapping[str, Any]) -> Inputs:
    """What `to_dict` of any of them wrote."""
    if data.get("kind") == "images":
        return ImageInputs.from_dict(data)
    inner: Inputs = ArrayInputs.from_dict(data) if data.get("kind") == "array" else ColumnInputs(Features.from_dict(data))
    return StandardisedInputs(inner, Standardised.from_dict(data["standardised"])) if "standardised" in data else inner
