# SPDX-License-Identifier: Apache-2.0
"""The dry run: one step with a copy of the net and made-up classes, so that what would stop the training is found before the charge."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from labeldp.deep._inputs import Resident
from labeldp.deep._loop import Recipe, train
from labeldp.deep._losses import Dense, debiased_loss
from labeldp.deep._stages import plain, seeded, takes_labels
from labeldp.errors import InvalidInput
from labeldp.protocol._estimator import undisturbed


def dry_run(module: nn.Module, few: Tensor, n_classes: int, recipes: Sequence[Recipe], device: torch.device, *, rows: int) -> None:
    """One step of each recipe, with labels made up here.

    Parameters
    ----------
    module : nn.Module
        Copied, never changed.
    few : (m, ...) tensor
        Inputs; repeated or cut to the number of rows.
    n_classes : int
    recipes : sequence of Recipe
    device : torch.device
        Where the fit trains.
    rows : int
        As few as a batch of the fit may have.

    Raises
    ------
    InvalidInput
        Whatever stops the step.

    Notes
    -----
    Random states are as before, so that a fit with a seed ends as it would without. Cost: a step, and a copy of the net.
    """
    if not any(weight.requires_grad for weight in module.parameters()):
        raise InvalidInput("Expected a net with weights to train, got one whose weights are all frozen. Call requires_grad_() on some.")
    inputs = Resident(few[torch.arange(rows) % len(few)])
    for recipe in {id(each): each for each in recipes}.values():
        _require_loss_of_evidence(recipe.loss)
        with undisturbed(), seeded(0, 0, device) as generator:  # its schedule may be 0, of which training itself warns
            step = replace(recipe, epochs=1, batch_size=max(2, rows), patience=None)
            try:
                train(copy.deepcopy(module), inputs, _target(recipe.loss, rows, n_classes), step, generator=generator, device=device)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                found = str(error) if isinstance(error, InvalidInput) else f"{type(error).__name__}: {error}"
                raise InvalidInput(
                    f"Expected a net and a recipe that can take a step on {rows} input{'s' * (rows > 1)} of shape {tuple(few.shape[1:])}, "
                    f"got: {found.removesuffix('.')}. Nothing was charged or drawn.{_MORE_ROWS if rows == 1 else ''}"
                ) from error


_MORE_ROWS = " So few rows may be left to a stage or a batch: give more, n_stages=1, or a net without batch normalisation."


def fewest(n_rows: int, batch_size: int, share: float) -> int:
    """Rows of the smallest batch to be expected: 1 or 2.

    Parameters
    ----------
    n_rows : int
    batch_size : int
    share : float
        Of the rows that the first stage gets, on average.
    """
    few = n_rows if share == 1 else 2 if n_rows * share > _CERTAIN else 1
    return min(2, few, batch_size)


_CERTAIN = 16  # rows of a part on average, of which it is left with a single one in less than one fit of a hundred thousand


def _target(loss: Any, rows: int, n_classes: int) -> Any:
    """What a loss is given of rows of known, made-up classes."""
    labels = torch.arange(rows) % n_classes
    if takes_labels(plain(loss)):
        return labels
    one = nn.functional.one_hot(labels, n_classes).float()
    return Dense(one if plain(loss) is debiased_loss else one - 1)


def _require_loss_of_evidence(loss: Any) -> None:
    home = str(getattr(plain(loss), "__module__", ""))
    if home.split(".")[0] == "torch":
        name = getattr(plain(loss), "__name__", type(loss).__name__)
        raise InvalidInput(
            f"Expected a loss of what was released, got torch's {name}, which takes true labels. Use deep.likelihood_loss, or "
            "deep.cross_entropy for noisy labels as if they were true."
        )
