# SPDX-License-Identifier: Apache-2.0
"""The learning rate of a step, and the moving average of a net's weights.

A schedule is a function from progress, the share of steps done, to a factor of the peak rate, 0 to
1; so one schedule serves every length of training. Other settings are given by `functools.partial`.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from labeldp import _validate

Schedule = Callable[[float], float]

_FIRST, _LAST = 1 / 25, 1 / (25 * 1e4)  # of OneCycleLR


def one_cycle(progress: float, peak_at: float = 0.1) -> float:
    """Rise along half a cosine to the peak, and fall along another to almost 0.

    Parameters
    ----------
    progress : float in [0, 1]
    peak_at : float in [0, 1), default=0.1
        Progress at the peak.

    Returns
    -------
    float

    Notes
    -----
    The factors are those of `torch.optim.lr_scheduler.OneCycleLR`: Smith and Topin (2018),
    "Super-convergence".
    """
    if progress < peak_at:
        return 1 + (_FIRST - 1) * _fall(progress / peak_at)
    return _LAST + (1 - _LAST) * _fall((progress - peak_at) / (1 - peak_at))


def cosine(progress: float, ramp: float = 0.0) -> float:
    """Rise linearly to the peak, and fall along half a cosine to 0.

    Parameters
    ----------
    progress : float in [0, 1]
    ramp : float in [0, 1), default=0.0
        Progress at the peak.

    Returns
    -------
    float

    Notes
    -----
    Source: Loshchilov and Hutter, "SGDR" (2017), equation 5, without restarts.
    """
    return progress / ramp if progress < ramp else _fall((progress - ramp) / (1 - ramp))


def _fall(t: float) -> float:
    """Fall from 1 at 0 to 0 at 1 along half a cosine."""
    return (1 + math.cos(math.pi * t)) / 2


def weight_average(model: nn.Module, decay: float = 0.999) -> AveragedModel:
    """Copy a model so that the copy's weights and batch-norm statistics follow it as an exponential
    moving average.

    Parameters
    ----------
    model : nn.Module
    decay : float in [0, 1), default 0.999
        Weight of the past at each update; at update t it is at most (1 + t) / (10 + t), so that the
        random initial weights are soon forgotten.

    Returns
    -------
    torch.optim.swa_utils.AveragedModel
        `module` is the averaged model, in evaluation mode, without gradients;
        `update_parameters(model)` adds the current weights.

    Notes
    -----
    Running means and variances are averaged like weights, since the model's own ones belong to
    other weights; counters are copied. Cost: one copy of the model, and one pass over it per
    update.
    """
    most = _validate.fraction(decay=decay, zero=True)

    def follow(mine: Any, theirs: Any, _: object) -> None:
        if mine[0].is_floating_point():
            # the argument is a tensor on the model's device, and reading it would wait for a GPU
            update = int(average.n_averaged)
            torch._foreach_lerp_(mine, theirs, 1 - min(most, (1 + update) / (10 + update)))
        else:
            torch._foreach_copy_(mine, theirs)

    average = AveragedModel(model, multi_avg_fn=follow, use_buffers=True)
    average.n_averaged += 1  # at 0 torch would replace the initial weights instead of averaging
    return average.eval().requires_grad_(False)
