# SPDX-License-Identifier: Apache-2.0
"""Exponential moving average of a model."""

from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from labeldp import _validate


def weight_average(model: nn.Module, decay: float = 0.999) -> AveragedModel:
    """A copy of a model whose weights, and batch-norm statistics, follow the model's as an exponential moving average.

    Parameters
    ----------
    model : nn.Module
    decay : float in [0, 1), default 0.999
        Weight of the past at each update, after a start in which it is (1 + t) / (10 + t) at update t if that is less: the random first
        weights are soon forgotten.

    Returns
    -------
    torch.optim.swa_utils.AveragedModel
        `module` is the averaged model, in evaluation mode, without gradients; `update_parameters(model)` takes in present weights.

    Notes
    -----
    Running means and variances are averaged like weights, since the model's own belong to other weights; counters are copied. Cost: one
    copy of the model, and one pass over it an update.
    """
    most = _validate.fraction(decay=decay, zero=True)

    def follow(mine: Any, theirs: Any, _: object) -> None:
        if mine[0].is_floating_point():
            update = int(average.n_averaged)  # the count that is handed in lies on the model's device: to read it would wait for that
            torch._foreach_lerp_(mine, theirs, 1 - min(most, (1 + update) / (10 + update)))
        else:
            torch._foreach_copy_(mine, theirs)

    average = AveragedModel(model, multi_avg_fn=follow, use_buffers=True)
    average.n_averaged += 1  # at 0 torch would forget the first weights at once
    return average.eval().requires_grad_(False)
