# SPDX-License-Identifier: Apache-2.0
"""Recipe: what a training may be asked for. Each setting is checked where it is given, long before a label is drawn for it."""

import math
import numbers
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from torch import Tensor

from labeldp import _validate
from labeldp.deep._losses import likelihood_loss
from labeldp.deep._placement import Precision
from labeldp.deep.augment import Augmentation
from labeldp.deep.schedules import Schedule, one_cycle
from labeldp.errors import HighRateWarning, InvalidInput


@dataclass(frozen=True)
class Recipe:
    """How a net is trained: public, and the same for every row.

    Attributes
    ----------
    epochs : int >= 1, default=10
    batch_size : int >= 1 or None, default=None
        None: a 64th of the rows, as a power of two from 32 to 256, so that few rows still make some hundred steps.
    rate : float > 0, default=0.003
        The schedule's peak.
    momentum : float in [0, 1), default=0.9
        AdamW's first beta.
    weight_decay : float >= 0, default=0.0005
    schedule : function of progress in [0, 1], `one_cycle(0.1)` if not given
        Asked at both ends when the recipe is made. By default a tenth of the training is a ramp: large first steps lose
        classes.
    alpha : float >= 0, default=0.0
        Of mixup; 0 for none.
    augment : function (images, generator) -> images, default=None
    loss : function (logits, evidence, reduction=...), `likelihood_loss` if not given
        Evidence is what `train` is given of these rows. From noisy labels, `TorchClassifier` gives `cross_entropy` and
        `generalised_cross_entropy` the most likely labels, (n,) int64, and so any function with an attribute `takes_labels = True`;
        `debiased_loss` its weights; all others log-likelihoods as a Form, whose table is `evidence.expand(K)`.
    clip : float > 0, default=1.0
        Largest norm of the gradient; inf for none. Where one wild step leaves a class no probability, its likelihood has no gradient any
        more.
    average : float in [0, 1) or None, default=None
        Decay of an exponential moving average of the weights, which is then the model that is scored and returned.
    precision : {"auto", "float32", "bf16"}, default="auto"
        "auto": bf16 autocast where the processor multiplies it natively. Under Fabric its own precision counts instead.
    channels_last : bool, default=True
        Memory format of images and nets.
    patience : int >= 1 or None, default=None
        With held-out rows: training ends after this many epochs without a larger held-out score, and the net of the epoch with the largest
        one is what comes of it. As many as `epochs` only chooses. None: all epochs, and the last net. Cost: predictions for the held-out
        rows each epoch, and one more copy of the net. The score of the chosen epoch is too good by the choice: judge by other rows.
    optimizer : {"adamw", "sgd"}, default="adamw"
        "sgd" has Nesterov momentum, and needs a rate of its own: 0.03 to 0.1 for nets with batch normalisation.

    Warns
    -----
    HighRateWarning
        AdamW at a rate above 0.03, which is one for SGD.

    Raises
    ------
    InvalidInput
        For a field that no training could use.
    """

    epochs: int = 10
    batch_size: int | None = None
    rate: float = 0.003
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Schedule = field(default_factory=partial(one_cycle, 0.1))
    alpha: float = 0.0
    augment: Augmentation | None = None
    loss: Callable[..., Tensor] = likelihood_loss
    clip: float = 1.0
    average: float | None = None
    precision: Precision = "auto"
    channels_last: bool = True
    patience: int | None = None
    optimizer: Literal["adamw", "sgd"] = "adamw"

    def __post_init__(self) -> None:
        _check(self)

    def rows_of_batch(self, n: int) -> int:
        """Batch size for a training on n rows."""
        return self.batch_size or min(256, max(32, 2 ** round(math.log2(max(n, 1) / 64))))


def default_recipe(n_classes: int) -> Recipe:
    """The recipe where none is given: `Recipe()`; with two classes five epochs, since their noise is learned by heart sooner."""
    return Recipe(epochs=5) if n_classes == 2 else Recipe()


def _check(recipe: Any) -> None:
    """Every field of a Recipe; its schedule is asked for the factors at both ends of a training.

    Raises
    ------
    InvalidInput
        For the first field that is not allowed.
    """
    _validate.integer(epochs=recipe.epochs, low=1)
    if recipe.batch_size is not None:
        _validate.integer(batch_size=recipe.batch_size, low=1, fix="None chooses by the number of rows.")
    _validate.positive(rate=recipe.rate)
    _validate.fraction(momentum=recipe.momentum, zero=True, fix="0 is plain SGD.")
    _validate.positive(zero=True, weight_decay=recipe.weight_decay)
    _validate.positive(zero=True, alpha=recipe.alpha, fix="0 mixes nothing.")
    _validate.one_of(("auto", "float32", "bf16"), precision=recipe.precision)
    _validate.one_of(("adamw", "sgd"), optimizer=recipe.optimizer)
    _tell_of_high_rate(recipe)
    if recipe.average is not None:
        _validate.fraction(average=recipe.average, zero=True, fix="None for no average.")
    if isinstance(recipe.clip, bool) or not isinstance(recipe.clip, numbers.Real) or not float(recipe.clip) > 0:
        raise InvalidInput(f"Expected clip > 0, got {_validate.shown(recipe.clip)}. Pass math.inf for no clipping.")
    if recipe.patience is not None:
        _validate.integer(patience=recipe.patience, low=1, fix="None trains for all epochs.")
    flag(channels_last=recipe.channels_last)
    function(augment=recipe.augment, takes="(images, generator)", none=True)
    function(loss=recipe.loss, takes="(logits, evidence, reduction=...)")
    function(schedule=recipe.schedule, takes="progress in [0, 1]")
    for progress in (0.0, 1.0):
        _require_factor(recipe.schedule, progress)


def flag(**named: object) -> bool:
    """True or False, and nothing that merely counts as such."""
    ((name, value),) = named.items()
    if not isinstance(value, bool):
        raise InvalidInput(f"Expected {name} as True or False, got {_validate.shown(value)}.")
    return value


def function(*, takes: str, none: bool = False, **named: object) -> None:
    """Something that can be called; None only if asked for.

    Parameters
    ----------
    takes : str
        What it is given, for the message.
    none : bool
    **named
        One name and its value.
    """
    ((name, value),) = named.items()
    if not callable(value) and not (none and value is None):
        raise InvalidInput(f"Expected {name} as a function of {takes}{' or None' if none else ''}, got {_validate.shown(value)}.")


def _tell_of_high_rate(recipe: Recipe) -> None:
    """A rate that is meant for SGD would lose classes under AdamW."""
    if recipe.optimizer == "adamw" and recipe.rate > _HIGH_FOR_ADAMW:
        warnings.warn(
            f"Expected a rate up to {_HIGH_FOR_ADAMW:g} with AdamW, got {recipe.rate:g}: its steps do not shrink with the gradient. Leave "
            'rate out, or pass optimizer="sgd".',
            HighRateWarning,
            stacklevel=5,
        )


_HIGH_FOR_ADAMW = 0.03  # ten times the default


def _require_factor(schedule: Any, progress: float) -> None:
    try:
        found = schedule(progress)
        factor = math.nan if isinstance(found, bool | str | bytes) else float(found)
    except Exception as error:
        raise InvalidInput(
            f"Expected a schedule that gives a number for progress from 0 to 1, got {type(error).__name__} at {progress}: {error}. "
            "See deep.schedules."
        ) from error
    if not 0 <= factor < math.inf:
        raise InvalidInput(
            f"Expected a schedule that gives a factor of the rate, 0 to 1, got {_validate.shown(found)} at {progress}. See deep.schedules."
        )
