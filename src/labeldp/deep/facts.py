# SPDX-License-Identifier: Apache-2.0
"""The public facts by which a folder tells one fit of a TorchClassifier from another, and the seed that is kept with them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn
from torch.nn.parameter import is_lazy

from labeldp import _validate
from labeldp._hash import digest
from labeldp.deep.checkpoint import ids_digest
from labeldp.deep.describe import architecture, described
from labeldp.deep.recipe import Recipe
from labeldp.errors import InvalidInput
from labeldp.protocol.fitting import FitPlan


def facts_of_training(model: Any, inputs: Callable[[], str], recipes: tuple[Recipe, ...], template: nn.Module) -> dict[str, object]:
    """Of inputs, net and training.

    Parameters
    ----------
    model : TorchClassifier
    inputs : function
        Gives their name.
    recipes : tuple of Recipe
    template : nn.Module
        Before training.
    """
    seed = model.random_state
    return {
        "inputs": inputs(),
        "module": architecture(template),
        "maker": None if isinstance(model.module, nn.Module) else described(model.module),
        "recipe": _alike([described(recipe) for recipe in recipes]),
        "warm_start": model.warm_start,
        "prior_temperature": model.prior_temperature,
        "top_k_filter": model.top_k_filter,
        "validation_fraction": model.validation_fraction,
        "random_state": None if seed is None else int(seed) if isinstance(seed, int | np.integer) else type(seed).__name__,
    }


def weights_given(model: Any) -> bool:
    """Whether somebody gave the first weights; else they follow from a seed, or from what a function does."""
    return isinstance(model.module, nn.Module) and not any(is_lazy(weight) for weight in model.module.parameters())


def facts_of_labels(plan: FitPlan) -> dict[str, object]:
    """Of what is drawn.

    Parameters
    ----------
    plan : FitPlan
    """
    settings, rows = plan.settings, plan.rows
    return {
        "epsilon": settings.epsilon,
        "classes": digest({"classes": list(map(repr, plan.classes))}),
        "dataset": settings.dataset,
        "column": settings.column,
        "max_rows_per_unit": settings.max_rows_per_unit,
        "ids": ids_digest(rows.ids),
        "unit": ids_digest(rows.unit),
        "names": [rows.id_name, rows.unit_name],
        "prior": plan.prior_digest,
        "seeded_noise": described(settings.noise),
        **plan.to_dict(),
    }


def _alike(recipes: list[object]) -> object:
    """One recipe, where all stages have the same."""
    return recipes[0] if all(each == recipes[0] for each in recipes) else recipes


def seed_of(random_state: Any) -> int:
    """The number that a fit's random numbers follow from: as given, drawn from what was given, or from the system."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        return _validate.integer(random_state=random_state, low=0)
    if hasattr(random_state, "randint"):
        return int(random_state.randint(np.iinfo(np.int32).max))
    raise InvalidInput(f"Expected random_state as a number >= 0, a RandomState or None, got {type(random_state).__name__}.")
