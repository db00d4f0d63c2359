# SPDX-License-Identifier: Apache-2.0
"""What a model is given of each row: columns, an image, or an array; and how to read it by what the model's folder says."""

from collections.abc import Mapping
from typing import Any, Protocol

from labeldp.inputs._arrays import ArrayInputs
from labeldp.inputs._columns import ColumnInputs
from labeldp.inputs._images import ImageInputs
from labeldp.tables.formats._table import Rows


class Inputs(Protocol):
    """A way to read inputs, found from public columns; plain data, so that a model's folder holds it as JSON."""

    @property
    def names(self) -> list[str]:
        """Columns that are read."""
        ...

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Channels, height and width; None where rows are vectors."""
        ...

    def read(self, batch: Rows, start: int | None = None) -> Any:
        """m rows: an array, or an Arrow table of columns. `start` is the first row's number, for messages."""
        ...

    def to_dict(self) -> dict[str, object]:
        """JSON-ready data."""
        ...


def inputs_from_dict(data: Mapping[str, Any]) -> Inputs:
    """What `to_dict` of any of them wrote."""
    kinds: dict[object, type[ImageInputs | ArrayInputs | ColumnInputs]] = {"images": ImageInputs, "array": ArrayInputs}
    return kinds.get(data.get("kind"), ColumnInputs).from_dict(data)
