# SPDX-License-Identifier: Apache-2.0
"""Exponential moving average of a model."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from labeldp import _validate
from labeldp.errors import InvalidInput


class WeightAverage:
    """A copy of a model whose weights, and batch-norm statistics, are an exponential moving average of the model's.

    Parameters
    ----------
    model : nn.Module
    decay : float in [0, 1)
        Weight of the past at each update, after a start in which it is (1 + t) / (10 + t) at update t if that is less: the random first
        weights are soon forgotten.

    Attributes
    ----------
    module : nn.Module
        The averaged model, in evaluation mode, without gradients.
    updates : int

    Notes
    -----
    Running means and variances are averaged like weights, since the model's own belong to other weights; counters are copied. Cost: one
    copy of the model, and one pass over it an update; no wait for the device.
    """

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        self.decay, self.updates = _validate.fraction(decay=decay, zero=True), 0
        self.module = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the model's present weights.

        Parameters
        ----------
        model : nn.Module
            The one that is trained.
        """
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        mine, theirs = self._pairs(model)
        smooth = [(a, b) for a, b in zip(mine, theirs, strict=True) if a.is_floating_point()]
        torch._foreach_lerp_([a for a, _ in smooth], [b for _, b in smooth], 1 - decay)
        for a, b in zip(mine, theirs, strict=True):
            if not a.is_floating_point():
                a.copy_(b)

    def _pairs(self, model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
        mine, theirs = self.module.state_dict(), model.state_dict()
        if mine.keys() != theirs.keys():
            raise InvalidInput(f"Expected the model that the average is of, got a {type(model).__name__} with other weights.")
        return list(mine.values()), list(theirs.values())

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` reads: the average and how many updates it saw."""
        return {"module": self.module.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.module.load_state_dict(state["module"])
        self.updates = int(state["updates"])
