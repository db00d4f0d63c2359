# SPDX-License-Identifier: Apache-2.0
"""Learning-rate schedules: functions from progress (the share of steps done, 0 to 1) to a factor of
the peak rate, 0 to 1.

As functions of progress and not of step counts, one schedule serves every length of training.
`set_rate` applies one to an optimizer. Schedules are values: equal if made from equal settings, and
picklable.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from labeldp import _validate
from labeldp.errors import InvalidInput

Schedule = Callable[[float], float]

PAPER_DECAYS = (0.45, 0.75)
"""Progress at which the published runs of Ghazi et al. 2021 divided the rate by 10. Their text says
30, 60 and 90 %; their code counts from the end of the 15 % ramp, so the decays come at 45 and 75 %,
and the third one, at 105 %, never."""


def triangular(peak_at: float = 0.3, *, start: float = 0.0, end: float = 0.0) -> Schedule:
    """Make a schedule that rises linearly from `start` to the peak, then falls linearly to `end`.

    With peak_at=0.15 it is the one of Ghazi et al. 2021 on MNIST, Fashion-MNIST and KMNIST.

    Parameters
    ----------
    peak_at : float in [0, 1), default=0.3
        Progress at the peak.
    start, end : float in [0, 1], default=0.0
        Factors at both ends.
    """
    top = _validate.fraction(peak_at=peak_at, zero=True)
    first, last = (
        _validate.fraction(start=start, zero=True, one=True),
        _validate.fraction(end=end, zero=True, one=True),
    )
    return _RiseAndFall(top, first, last, _line)


def piecewise_constant(
    decays: float | Sequence[float] = PAPER_DECAYS, *, ramp: float = 0.15, gamma: float = 0.1
) -> Schedule:
    """Make a schedule that rises linearly to the peak, and is multiplied by `gamma` at each decay
    point.

    It is the one of Ghazi et al. 2021 on CIFAR and MovieLens.

    Parameters
    ----------
    decays : float in (0, 1) or ascending sequence of them, default=PAPER_DECAYS
        Progress at each decay.
    ramp : float in [0, 1), default=0.15
        Progress at the end of the rise.
    gamma : float in (0, 1], default=0.1
    """
    points = [
        _validate.fraction(decays=point)
        for point in _validate.floats(decays=decays).reshape(-1).tolist()
    ]
    if points != sorted(set(points)):
        raise InvalidInput(f"Expected ascending decay points, got {tuple(points)}. Sort them.")
    rise, drop = _validate.fraction(ramp=ramp, zero=True), _validate.fraction(gamma=gamma, one=True)
    return _Steps(tuple(points), rise, drop)


def cosine(ramp: float = 0.0, *, end: float = 0.0) -> Schedule:
    """Make a schedule that rises linearly to the peak, and falls along half a cosine to `end`.

    Parameters
    ----------
    ramp : float in [0, 1), default=0.0
    end : float in [0, 1], default=0.0

    Notes
    -----
    Source: Loshchilov and Hutter, "SGDR" (2017), equation 5, without restarts.
    """
    rise, last = (
        _validate.fraction(ramp=ramp, zero=True),
        _validate.fraction(end=end, zero=True, one=True),
    )
    return _Cosine(rise, last)


def one_cycle(peak_at: float = 0.3, *, divide: float = 25.0, final_divide: float = 1e4) -> Schedule:
    """Make a schedule along half a cosine from peak / divide to the peak, and along another to peak
    / (divide x final_divide).

    Parameters
    ----------
    peak_at : float in [0, 1), default=0.3
    divide, final_divide : float, at least 1, default=25.0 and 10_000.0

    Notes
    -----
    The factors are those of `torch.optim.lr_scheduler.OneCycleLR` with the same numbers.

    References
    ----------
    Smith and Topin (2018), "Super-convergence".
    """
    top = _validate.fraction(peak_at=peak_at, zero=True)
    first, last = _validate.positive(divide=divide), _validate.positive(final_divide=final_divide)
    if not (first >= 1 and last >= 1):
        raise InvalidInput(
            f"Expected divide >= 1 and final_divide >= 1, got {first:g} and {last:g}. Use 25 and"
            " 1e4."
        )
    return _RiseAndFall(top, 1 / first, 1 / (first * last), _fall)


def set_rate(optimizer: torch.optim.Optimizer, schedule: Schedule, progress: float) -> None:
    """Set the rate of every group of the optimizer to its peak rate times the schedule's factor;
    call it before each step.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Its initial rates are the peaks; they are kept in its groups as "peak_lr".
    schedule : function of progress
    progress : float in [0, 1]
        Step / number of steps.
    """
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("peak_lr", group["lr"]) * schedule(progress)


@dataclass(frozen=True)
class _RiseAndFall:
    top: float
    first: float
    last: float
    fall: Callable[[float], float]
    """Falls from 1 at 0 to 0 at 1."""

    def __call__(self, progress: float) -> float:
        t = _clipped(progress)
        if t < self.top:
            return 1 + (self.first - 1) * self.fall(t / self.top)
        return self.last + (1 - self.last) * self.fall((t - self.top) / (1 - self.top))


@dataclass(frozen=True)
class _Steps:
    points: tuple[float, ...]
    rise: float
    drop: float

    def __call__(self, progress: float) -> float:
        t = _clipped(progress)
        factor: float = self.drop ** sum(t >= point for point in self.points)
        return (t / self.rise if t < self.rise else 1.0) * factor


@dataclass(frozen=True)
class _Cosine:
    rise: float
    last: float

    def __call__(self, progress: float) -> float:
        t = _clipped(progress)
        return (
            t / self.rise
            if t < self.rise
            else self.last + (1 - self.last) * _fall((t - self.rise) / (1 - self.rise))
        )


def _line(t: float) -> float:
    return 1 - t


def _fall(t: float) -> float:
    """Fall from 1 at 0 to 0 at 1 along half a cosine."""
    return (1 + math.cos(math.pi * t)) / 2


def _clipped(progress: float) -> float:
    """Clip progress to 1, since rounding may bring the last step above; refuse negative values and
    NaN."""
    if not progress >= 0:
        raise InvalidInput(
            f"Expected progress from 0 to 1, got {progress!r}. Pass step / number of steps."
        )
    return min(progress, 1.0)


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
