# SPDX-License-Identifier: Apache-2.0
"""The inputs of a fit, looked at before anything is charged, and what names them."""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labeldp.deep.inputs import Inputs, Resident, as_inputs
from labeldp.errors import InvalidInput

_CHECKED = 1 << 24  # numbers looked at together
_ROWS = 1024  # read together


def inputs_of(X: Any, *, watch: bool = True, id_of: Callable[[Any], object] | None = None, ids: Any = None) -> Inputs:
    """The inputs as users have them: an array, a tensor, a map-style Dataset of items x or (x, ...), a DataLoader of one, or Inputs.

    Parameters
    ----------
    X : such inputs
    watch, id_of, ids : as in `as_inputs`

    Raises
    ------
    InvalidInput
        Anything else; no rows; an array or tensor with numbers that are not finite.
    """
    inputs = as_inputs(X, watch=watch, id_of=id_of, ids=ids)
    if not len(inputs):
        raise InvalidInput("Expected X of at least one row, got none.")
    if not isinstance(inputs, Resident):
        return inputs
    values = inputs.tensor.detach()
    if values.is_floating_point():
        _require_finite(values)
    return Resident(_single(values))


def inputs_digest(inputs: Inputs) -> str:
    """SHA-256 of all inputs, by which a repeat of a fit without ids is recognised; a Dataset is read once for it.

    The same rows have the same digest in an array, a tensor or a Dataset.

    Raises
    ------
    InvalidInput
        A Dataset whose items differ each time they are read; numbers that are not finite.
    """
    if not inputs.steady:
        raise InvalidInput(
            "Expected ids= with a Dataset whose items differ each time they are read, as random transforms do: without ids nobody could "
            "tell whether these rows were drawn before. Pass ids=, or augment in the recipe."
        )
    state = hashlib.sha256()
    for number, x in enumerate(inputs.batches(torch.arange(len(inputs)).split(_ROWS))):
        values = _single(x)
        if values.is_floating_point():
            _require_finite(values)
        if not number:
            state.update(f"{values.dtype}:{(len(inputs), *values.shape[1:])};".encode())
        state.update(values.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


def inputs_name(inputs: Inputs, digest: Callable[[], str] | None = None) -> str:
    """What a folder knows inputs by: their digest, for which a Dataset is read once; their number alone where items are random.

    Parameters
    ----------
    inputs : Inputs
    digest : function, optional
        Gives the digest, where it is wanted elsewhere too.
    """
    if not inputs.steady:
        return f"{len(inputs)} rows that differ each time they are read"
    return inputs_digest(inputs) if digest is None else digest()


def _single(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.float64, torch.bool) else values


def _require_finite(values: Tensor) -> None:
    flat = values.reshape(-1)
    for start in range(0, len(flat), _CHECKED):
        if not bool(torch.isfinite(flat[start : start + _CHECKED]).all()):
            raise InvalidInput("Expected finite inputs, got NaN or infinity in X. Fill or drop them.")
