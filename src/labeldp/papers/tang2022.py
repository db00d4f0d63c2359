# SPDX-License-Identifier: Apache-2.0
"""Tang, Nasr, Mahloujifar, Shejwalkar, Song, Houmansadr and Mittal, "Machine Learning with
Differentially Private Labels" (PoPETs 2022).

Algorithms 1, 2   NoiseCluster: `NoiseCluster`, on clusters of `simclr` or `byol` features by `scan`
Algorithm 3       `RandRes`
Algorithms 4, 5   PATE-FM: `pate_fm` makes its `PATEClassifier`, of `FixMatchTeacher`s
Algorithm 6       LDP-AlgName: `ldp_normal`, `ldp_ssl` (FixMatch), `aug_descent`
Algorithm 7       `denoise_ssl`, which keeps labels that agree with their cluster's vote

`ldp_normal`, `ldp_ssl` and `aug_descent` are parameters of a `TorchClassifier`, with RandRes as the
law; on noisy labels of PATE-FM the recipe among them trains by `labeldp.deep.train`. All names but
`RandRes` and `NoiseCluster` need torch, which is imported at their first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labeldp import _validate
from labeldp.errors import InvalidInput, needs_torch
from labeldp.laws import RandomizedResponse
from labeldp.learn import NoiseCluster
from labeldp.papers._pate import PATEClassifier

if TYPE_CHECKING:
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
    "pate_fm",
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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(
            "module 'labeldp.papers.tang2022' has no attribute"
            f" {name!r}.{_validate.suggest(name, __all__)}"
        )
    with needs_torch():
        module = import_module(_TORCH.get(name, "labeldp.papers._ssl"))
    return getattr(module, "denoise" if name == "denoise_ssl" else name)


def ldp_normal(*, epsilon: float, **changes: Any) -> dict[str, Any]:
    """Make LDP-Normal, which trains on noisy labels as if they were true, as parameters of a
    `TorchClassifier`.

    Parameters
    ----------
    epsilon : float > 0
    **changes
        Fields of the Recipe to set otherwise than its defaults; the paper's training is LP-1ST's,
        with mixup.

    Returns
    -------
    dict
        epsilon, law, recipe, and validation_fraction=0.
    """
    from labeldp.deep import cross_entropy

    return _algorithm(epsilon, {"loss": cross_entropy}, changes)


def ldp_ssl(*, epsilon: float, **changes: Any) -> dict[str, Any]:
    """Make LDP-SSL, FixMatch on the noisy labels, as parameters of a `TorchClassifier`.

    Parameters
    ----------
    epsilon : float > 0
    **changes
        As in `ldp_normal`.

    Returns
    -------
    dict
        As of `ldp_normal`.

    Notes
    -----
    Simplified: noisy labels teach by their likelihood, where the paper takes cross-entropy.
    """
    from labeldp.deep import Consistency

    return _algorithm(
        epsilon, {"consistency": Consistency.fixmatch(warm_up=_warm_up(changes))}, changes
    )


def aug_descent(*, epsilon: float, **changes: Any) -> dict[str, Any]:
    """Make LDP-AugDescent, DivideMix with strong views, as parameters of a `TorchClassifier`.

    Parameters
    ----------
    epsilon : float > 0
    **changes
        As in `ldp_normal`.

    Returns
    -------
    dict
        As of `ldp_normal`.

    Notes
    -----
    Simplified: one net and its average stand for the paper's two nets, and noisy labels teach by
    their likelihood.
    """
    from labeldp.deep import Consistency

    return _algorithm(
        epsilon, {"consistency": Consistency.dividemix(warm_up=_warm_up(changes))}, changes
    )


def pate_fm(
    net: Any, recipe: Any = None, *, shape: tuple[int, ...] | None = None, **settings: Any
) -> PATEClassifier:
    """Make PATE-FM: teachers that learn by FixMatch from all inputs and the labels of their own
    shard.

    Parameters
    ----------
    net : function () -> nn.Module
        A new net for each teacher.
    recipe : Recipe, optional
        The teachers' training.
    shape : tuple of int, optional
        Shape of one input, if rows are flat.
    **settings
        Parameters of `PATEClassifier`, such as its student, epsilon, delta and n_teachers.

    Returns
    -------
    PATEClassifier
    """
    if "teacher" in settings:
        raise InvalidInput(
            "Expected settings without a teacher, which is a FixMatchTeacher of this net. Use"
            " PATEClassifier."
        )
    with needs_torch():
        from labeldp.papers._teacher import FixMatchTeacher
    given = {} if recipe is None else {"recipe": recipe}
    return PATEClassifier(teacher=FixMatchTeacher(net, shape=shape, **given), **settings)


def _algorithm(epsilon: float, own: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    from labeldp.deep import Recipe

    _validate.changes_of(Recipe, changes)
    recipe = Recipe(**(own | changes))
    return {"epsilon": epsilon, "law": RandRes.name, "recipe": recipe, "validation_fraction": 0.0}


def _warm_up(changes: dict[str, Any]) -> int:
    """Return the epochs before the net's own beliefs teach: fewer in a training of fewer."""
    return min(_WARM_UP, max(0, int(changes.get("epochs", _WARM_UP + 1)) - 1))
