# SPDX-License-Identifier: Apache-2.0
"""What a model is given of each row: columns, an image, or an array; and how to read it by what the model's folder says.

Each of the three is plain data, found from public columns, so that a model's folder holds it as JSON (`to_dict`). It has `names`, the
columns that are read; `image`, channels, height and width, or None where rows are vectors; and `read(batch, start)`, which gives m rows as
an array, or an Arrow table of columns (`start` is the first row's number, for messages).
"""

from collections.abc import Mapping
from typing import Any

from labeldp.inputs._arrays import ArrayInputs
from labeldp.inputs._columns import ColumnInputs
from labeldp.inputs._images import ImageInputs

Inputs = ColumnInputs | ImageInputs | ArrayInputs


def inputs_from_dict(data: Mapping[str, Any]) -> Inputs:
    """Build the inputs that `to_dict` of any of them wrote."""
    kinds: dict[object, type[ImageInputs | ArrayInputs]] = {"images": ImageInputs, "array": ArrayInputs}
    return kinds.get(data.get("kind"), ColumnInputs).from_dict(data)
