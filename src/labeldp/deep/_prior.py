# SPDX-License-Identifier: Apache-2.0
"""A torch module as a function from a matrix of numbers to the weights of each class."""

import importlib
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]
ROWS = 1 << 13  # given to a module at once


def load_module(raw: bytes, name: str, factory: str | None = None, *, probabilities: bool = False) -> Callable[[Floats], Floats]:
    """A function of (n, d) numbers that gives (n, K) probabilities.

    Parameters
    ----------
    raw : bytes
        A program from `torch.export.save`, with a first dimension of any size; or, with `factory`, a state_dict from `torch.save`.
    name : str
        Of the file, for messages.
    factory : str, optional
        "package.module:function"; called without arguments, it gives the `torch.nn.Module` that the state_dict is of.
    probabilities : bool
        The module gives probabilities; else logits, of which the softmax is taken.

    Raises
    ------
    MissingExtra
        torch is not installed.
    InvalidInput
        It cannot be loaded. A state_dict is loaded with `weights_only=True`, which runs no code of the file.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtra(f"Expected torch for the model {name}, which is not installed. pip install torch.") from None
    module = _exported(raw, name) if factory is None else _from_state(raw, name, factory)

    def weights(matrix: Floats) -> Floats:
        found = []
        with torch.inference_mode():
            for start in range(0, len(matrix), ROWS):
                rows = torch.from_numpy(matrix[start : start + ROWS].astype(np.float32))
                found.append(_answer(module, rows, name, probabilities))
        return np.concatenate(found)

    return weights


def _answer(module: Any, rows: "torch.Tensor", name: str, probabilities: bool) -> Floats:
    import torch

    try:
        out = module(rows)
    except Exception as error:
        raise InvalidInput(
            f"Expected the model {name} to take {rows.shape[1]} features of any number of rows, got {type(error).__name__}. Check the "
            "features; export a program with a dynamic first dimension."
        ) from None
    if not isinstance(out, torch.Tensor) or out.ndim != 2 or len(out) != len(rows):
        raise InvalidInput(f"Expected the model {name} to give a matrix with one row for each row, got something else.")
    values = out.double() if probabilities else torch.softmax(out.double(), dim=1)
    return np.asarray(values.cpu().numpy(), np.float64)


def _exported(raw: bytes, name: str) -> Any:
    import torch

    try:
        return torch.export.load(io.BytesIO(raw)).module()
    except Exception as error:
        raise InvalidInput(
            f"Expected a program of torch.export.save in {name}, got something else ({type(error).__name__}). Export it again with this "
            f"version of torch, {torch.__version__}."
        ) from None


def _from_state(raw: bytes, name: str, factory: str) -> Any:
    import torch

    module = _made(factory)
    if not isinstance(module, torch.nn.Module):
        raise InvalidInput(f"Expected {factory} to give a torch.nn.Module, got {type(module).__name__}.")
    try:
        state = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
        module.load_state_dict(state)
    except Exception as error:
        raise InvalidInput(
            f"Expected a state_dict of the module that {factory} gives in {name}, got something else ({type(error).__name__}). Save it "
            "with torch.save(module.state_dict(), path); nothing else is loaded from such files."
        ) from None
    return module.eval()


def _made(factory: str) -> object:
    module, colon, name = factory.partition(":")
    if not (module and colon and name):
        raise InvalidInput(f"Expected package.module:function, got factory={factory!r}. Name the function that makes the module.")
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise InvalidInput(f"Expected a function that can be imported, got factory={factory!r}. Install its package here.") from None
    return make()
