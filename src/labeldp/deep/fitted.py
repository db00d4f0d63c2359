# SPDX-License-Identifier: Apache-2.0
"""What a fitted classifier knows of the inputs that it was fitted on, and says of others."""

from typing import Any

import numpy as np
import torch
from torch import nn

from labeldp.deep.inputs import Inputs
from labeldp.deep.placement import Precision
from labeldp.deep.stages import Floats, softmax
from labeldp.errors import InvalidInput, LabelDPError


def note_features(model: Any, row_shape: tuple[int, ...]) -> None:
    """Of tables, the number of columns by scikit-learn's name."""
    if len(row_shape) == 1:
        model.n_features_in_ = int(row_shape[0])
    elif hasattr(model, "n_features_in_"):
        del model.n_features_in_


def probabilities_of(
    module: nn.Module, inputs: Inputs, fitted_on: tuple[int, ...] | None, *, precision: Precision = "auto", fabric: Any = None
) -> Floats:
    """Probabilities of all rows; where a net cannot take them and they have another shape than in `fit`, that is what is said.

    Parameters
    ----------
    module : nn.Module
    inputs : Inputs
    fitted_on : tuple of int, optional
        Shape of a row in `fit`.
    precision, fabric : as of `labeldp.deep.loop.predict`
    """
    try:
        return softmax(module, inputs, np.arange(len(inputs)), precision=precision, fabric=fabric)
    except LabelDPError:
        raise
    except Exception as error:
        found = tuple(next(inputs.batches([torch.zeros(1, dtype=torch.int64)])).shape[1:])
        if fitted_on is None or found == fitted_on:
            raise
        if len(found) == len(fitted_on) == 1:
            raise InvalidInput(f"X has {found[0]} features, but TorchClassifier is expecting {fitted_on[0]} features as input.") from error
        raise InvalidInput(
            f"Expected rows of shape {fitted_on}, as in fit, got {found}. Give X an axis of rows first, also for one row: X[:1]."
        ) from error


def not_fitted() -> Exception:
    """InvalidInput; where scikit-learn is installed also its NotFittedError."""
    message = "Expected a fitted TorchClassifier. Call fit first."
    try:
        from sklearn.exceptions import NotFittedError
    except ImportError:
        return InvalidInput(message)
    kind = type("NotFitted", (InvalidInput, NotFittedError), {"__module__": __name__, "__reduce__": lambda self: (not_fitted, ())})
    made: Exception = kind(message)
    return made
