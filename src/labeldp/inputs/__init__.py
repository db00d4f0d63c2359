# SPDX-License-Identifier: Apache-2.0
"""Inputs of a model from a table: columns, an image per row, or an array.

Each of the three kinds is plain data, found from public columns, so that a model's folder stores it
as JSON (`to_dict`). It has `names`, the columns that are read; `image`, (channels, height, width),
or None if rows are vectors; and `read(batch, start)`, which returns m rows as an array, or as an
Arrow table of columns (`start` is the first row's number, for messages).
"""

from collections.abc import Mapping
from typing import Any

from labeldp.inputs._arrays import ArrayInputs
from labeldp.inputs._columns import ColumnInputs
from labeldp.inputs._images import ImageInputs

Inputs = ColumnInputs | ImageInputs | ArrayInputs


def inputs_from_dict(data: Mapping[str, Any]) -> Inputs:
    """Rebuild the inputs from the dict that their `to_dict` wrote."""
    kinds: dict[object, type[ImageInputs | ArrayInputs]] = {
        "images": ImageInputs,
        "array": ArrayInputs,
    }
    return kinds.get(data.get("kind"), ColumnInputs).from_dict(data)
