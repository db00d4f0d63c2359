# SPDX-License-Identifier: Apache-2.0
"""Tang, Nasr, Mahloujifar, Shejwalkar, Song, Houmansadr and Mittal, "Machine Learning with
Differentially Private Labels" (PoPETs 2022).

Algorithms 1, 2   NoiseCluster: `NoiseCluster`, on clusters of `simclr` or `byol` features by `scan`
Algorithm 3       `RandRes`
Algorithms 4, 5   PATE-FM: `PATEClassifier(teacher=FixMatchTeacher(make_net))`
Algorithm 6       LDP-AlgName: `ldp_normal`, `ldp_ssl` (FixMatch), `aug_descent`
Algorithm 7       `denoise_ssl`, which keeps labels that agree with their cluster's vote

`ldp_normal`, `ldp_ssl` and `aug_descent` are parameters of a `TorchClassifier`, with RandRes as the
law; on noisy labels of PATE-FM the recipe among them trains by `labeldp.deep.train`. All names but
`RandRes`, `NoiseCluster` and `PATEClassifier` need torch, which is imported at their first use.
"""

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from labeldp import _validate
from labeldp.errors import needs_torch
from labeldp.laws import RandomizedResponse
from labeldp.learn import NoiseCluster
from labeldp.papers._pate import PATEClassifier

if TYPE_CHECKING:
    from labeldp.deep import Recipe
    from labeldp.deep import denoise as denoise_ssl
    from labeldp.papers._embed import Embedder
    from labeldp.papers._ssl import (
        BYOL,
        SCAN,
        SELF_LABEL,
        SIMCLR,
        ScanSettings,
        byol,
        scan,
        simclr,
        without_head,
    )
    from labeldp.papers._teacher import FixMatchTeacher

__all__ = [
    "BYOL",
    "SCAN",
    "SELF_LABEL",
    "SIMCLR",
    "Embedder",
    "FixMatchTeacher",
    "NoiseCluster",
    "PATEClassifier",
    "RandRes",
    "ScanSettings",
    "aug_descent",
    "byol",
    "denoise_ssl",
    "ldp_normal",
    "ldp_ssl",
    "scan",
    "simclr",
    "without_head",
]

RandRes = RandomizedResponse
"""RandRes (Algorithm 3) of K classes at epsilon: the label with probability e^epsilon / (e^epsilon
+ K - 1)."""

_TORCH = {
    "FixMatchTeacher": "labeldp.papers._teacher",
    "Embedder": "labeldp.papers._embed",
    "denoise_ssl": "labeldp.deep._consistency",
}
_WARM_UP = 4


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(
            "module 'labeldp.papers.tang2022' has no attribute"
            f" {name!r}.{_validate.suggest(name, __all__)}"
        )
    with needs_torch():
        module = import_module(_TORCH.get(name, "labeldp.papers._ssl"))
    return getattr(module, "denoise" if name == "denoise_ssl" else name)


def ldp_normal(*, epsilon: float, recipe: "Recipe | None" = None) -> dict[str, Any]:
    """Make LDP-Normal, which trains on noisy labels as if they were true, as parameters of a
    `TorchClassifier`.

    Parameters
    ----------
    epsilon : float > 0
    recipe : Recipe, optional
        The training besides its loss; the paper's is LP-1ST's, with mixup. None: the default one.

    Returns
    -------
    dict
        epsilon, law, recipe, and validation_fraction=0.
    """
    with needs_torch():
        from labeldp.deep import Recipe, cross_entropy

    return _with_rand_res(epsilon, replace(recipe or Recipe(), loss=cross_entropy))


def ldp_ssl(*, epsilon: float, recipe: "Recipe | None" = None) -> dict[str, Any]:
    """Make LDP-SSL, FixMatch on the noisy labels, as parameters of a `TorchClassifier`.

    Parameters
    ----------
    epsilon : float > 0
    recipe : Recipe, optional
        The training. One without `consistency` gets that of FixMatch, after a warm-up.

    Returns
    -------
    dict
        As of `ldp_normal`.

    Notes
    -----
    Simplified: noisy labels teach by their likelihood, where the paper takes cross-entropy.
    """
    return _with_rand_res(epsilon, _consistent("fixmatch", recipe))


def aug_descent(*, epsilon: float, recipe: "Recipe | None" = None) -> dict[str, Any]:
    """Make LDP-AugDescent, DivideMix with strong views, as parameters of a `TorchClassifier`.

    Parameters
    ----------
    epsilon : float > 0
    recipe : Recipe, optional
        The training. One without `consistency` gets that of DivideMix, after a warm-up.

    Returns
    -------
    dict
        As of `ldp_normal`.

    Notes
    -----
    Simplified: one net and its average stand for the paper's two nets, and noisy labels teach by
    their likelihood.
    """
    return _with_rand_res(epsilon, _consistent("dividemix", recipe))


def _consistent(method: str, recipe: "Recipe | None") -> "Recipe":
    with needs_torch():
        from labeldp.deep import Consistency, Recipe

    recipe = recipe or Recipe()
    if recipe.consistency is not None:
        return recipe
    # Before the net has seen some labels, its own beliefs teach nothing.
    made: Consistency = getattr(Consistency, method)(warm_up=min(_WARM_UP, recipe.epochs - 1))
    return replace(recipe, consistency=made)


def _with_rand_res(epsilon: float, recipe: "Recipe") -> dict[str, Any]:
    return {
        "epsilon": epsilon,
        "law": RandRes.name,
        "recipe": recipe,
        "validation_fraction": 0.0,
    }
