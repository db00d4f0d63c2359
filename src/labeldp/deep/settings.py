# SPDX-License-Identifier: Apache-2.0
"""What a training may be asked for: each setting is looked at where it is given, long before a label is drawn for it."""

import math
import numbers
import warnings
from typing import Any

from labeldp import _validate
from labeldp.errors import HighRateWarning, InvalidInput


def check_recipe(recipe: Any) -> None:
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


def _tell_of_high_rate(recipe: Any) -> None:
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
