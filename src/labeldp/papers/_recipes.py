# SPDX-License-Identifier: Apache-2.0
"""Recipes of Ghazi et al. 2021 and of Malek et al. 2021, as parameters of an estimator.

    net = TorchClassifier(models.CifarResNet18, **ghazi2021.lp_2st("cifar10", epsilon=2.0))
    trees = LabelDPClassifier(
        forest, correction="none", **ghazi2021.stages("lp-2st", epsilon=2.0)
    )

`lp_1st`, `lp_2st`, `lp_3st` (Ghazi et al. 2021) and `alibi` (Malek et al. 2021) give the parameters
of a `TorchClassifier`, its recipes among them; `stages` gives those that have nothing to do with
nets, and needs no torch. Each value is the papers', or is named here as one that they leave open.

They are here to compare with: the benchmarks run these values. The default of both estimators is
the likelihood, in one stage.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from labeldp import _validate
from labeldp.errors import needs_torch
from labeldp.protocol._prior import Prior, stages_of

if TYPE_CHECKING:
    from torch import Generator, Tensor


LP_1ST, LP_2ST, LP_3ST, ALIBI = NAMES = ("lp-1st", "lp-2st", "lp-3st", "alibi")
_STAGES = {LP_1ST: 1, LP_2ST: 2, LP_3ST: 3, ALIBI: 1}


@dataclass(frozen=True)
class Multistage:
    """What Ghazi et al. (2021) choose by epsilon.

    Attributes
    ----------
    mixup : tuple of two float
        Parameter of mixup's beta distribution in the first stage, and in later ones.
    share : float
        Share of the rows in the first stage; later stages divide the rest equally.
    temperature : float
        The next stage's prior is softmax(logits / temperature).
    """

    mixup: tuple[float, float]
    share: float
    temperature: float


MULTISTAGE: Mapping[float, Multistage] = MappingProxyType(
    {
        1.0: Multistage((16.0, 8.0), 0.8, 0.6),
        2.0: Multistage((8.0, 8.0), 0.7, 0.5),
        4.0: Multistage((8.0, 4.0), 0.6, 0.5),
        8.0: Multistage((4.0, 4.0), 0.6, 0.5),
    }
)
"""By epsilon, from the authors' code (google-research/label-dp, profiles/p100_cifar10.py), which
has two stages of CIFAR-10 alone. Between two of these epsilons the lower one's values are used,
below the first its own; so they are for other data, and the third stage's share."""


@dataclass(frozen=True)
class Published:
    """How Ghazi et al. (2021, appendix B) train each stage on a data set: SGD with Nesterov
    momentum 0.9 and weight decay 1e-4.

    Attributes
    ----------
    epochs : int
    batch_size : int
    rate : float
        Reached after a ramp over the first 15 % of the stage.
    decays : bool
        Whether the rate is then divided by 10 twice (`paper_decays`); else it falls linearly to 0.
    images : bool
        Whether inputs are mirrored, shifted by up to 4 pixels and cut out, and mixed up.
    """

    epochs: int
    batch_size: int
    rate: float
    decays: bool = False
    images: bool = True


PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {
        **dict.fromkeys(("mnist", "fashion_mnist", "kmnist"), Published(40, 265, 0.02)),
        "cifar10": Published(200, 512, 0.4, decays=True),
        "cifar100": Published(200, 256, 0.2, decays=True),
        "movielens_1m": Published(200, 128, 0.2, decays=True, images=False),
    }
)
"""By the names of data sets. For MovieLens the paper says "trained similarly" to
CIFAR-100, so epochs and rate are those; ids of users and films are neither augmented nor mixed
up."""


def multistage(epsilon: float) -> Multistage:
    """Return the values of `MULTISTAGE` at the largest epsilon that is not above this one, or at
    the least.

    Parameters
    ----------
    epsilon : float > 0
    """
    budget = _validate.epsilon(epsilon)
    return MULTISTAGE[
        max((known for known in MULTISTAGE if known <= budget), default=min(MULTISTAGE))
    ]


def stages(name: str, *, epsilon: float) -> dict[str, Any]:
    """Return a recipe's budget, law, stages and filter: parameters of `TorchClassifier` and of
    `LabelDPClassifier`.

    Parameters
    ----------
    name : {"lp-1st", "lp-2st", "lp-3st", "alibi"}
    epsilon : float > 0

    Returns
    -------
    dict
        epsilon, law, stages, prior (of later stages), and validation_fraction=0, since the papers
        hold out no row.

    Notes
    -----
    Guarantee: that of the estimator. The values depend on epsilon alone, and on no label.
    """
    staged = _STAGES[_validate.one_of(NAMES, recipe=name)]
    found, more = multistage(epsilon), staged > 1
    rest = round((1 - found.share) / max(1, staged - 1), 3)
    return {
        "epsilon": epsilon,
        "law": "alibi" if name == ALIBI else "rr-with-prior" if more else "rr",
        "stages": (found.share, *[rest] * (staged - 1)) if more else 1,
        "prior": Prior(temperature=found.temperature, top_k="mean") if more else None,
        "validation_fraction": 0.0,
    }


def mixups(name: str, *, epsilon: float) -> tuple[float, ...]:
    """Return the parameter of mixup in each stage of a recipe; 0 is no mixup, as in ALIBI.

    Parameters
    ----------
    name : {"lp-1st", "lp-2st", "lp-3st", "alibi"}
    epsilon : float > 0
    """
    number = _STAGES[_validate.one_of(NAMES, recipe=name)]
    first, later = multistage(epsilon).mixup
    return (0.0,) if name == ALIBI else (first, later, later)[:number]


def correction(name: str) -> str:
    """Return how a recipe learns, in the words of `LabelDPClassifier`: noisy labels as if they were
    true ("none"), or "em" for ALIBI.

    Parameters
    ----------
    name : {"lp-1st", "lp-2st", "lp-3st", "alibi"}
    """
    return "em" if _validate.one_of(NAMES, recipe=name) == ALIBI else "none"


# For nets
# --------------------------------------------------------------------------------------------------


def lp_1st(data: str, *, epsilon: float, **changes: Any) -> dict[str, Any]:
    """Make LP-1ST, one stage of randomized response with mixup (Ghazi et al. 2021), as parameters
    of a `TorchClassifier`.

    Parameters
    ----------
    data : {"mnist", "fashion_mnist", "kmnist", "cifar10", "cifar100", "movielens_1m"}
        The data set (a name of `PUBLISHED`) whose published training is used; for other
        data the one that is most alike.
    epsilon : float > 0
    **changes
        Fields of a `Recipe` to set otherwise than published, such as epochs=2.

    Returns
    -------
    dict
        As of `lp_2st`, with one Recipe.
    """
    return _paper(LP_1ST, data, epsilon, changes)


def lp_2st(data: str, *, epsilon: float, **changes: Any) -> dict[str, Any]:
    """Make LP-2ST (Ghazi et al. 2021, algorithm 3 and appendix B) as parameters of a
    `TorchClassifier`.

    A first part of the rows goes through randomized response, the rest through RRWithPrior with the
    first model's sharpened predictions as prior. Cross-entropy takes noisy labels as if they were
    true, with mixup; labels of the first part that the first model finds unlikely are left out of
    the second training, which starts from the first model's weights.

    Parameters
    ----------
    data : {"mnist", "fashion_mnist", "kmnist", "cifar10", "cifar100", "movielens_1m"}
        The data set (a name of `PUBLISHED`) whose published training is used; for other
        data the one that is most alike.
    epsilon : float > 0
    **changes
        Fields of a `Recipe` to set otherwise than published, such as epochs=2.

    Returns
    -------
    dict
        Those of `stages`, and a Recipe for each stage.

    Notes
    -----
    Guarantee: that of the estimator, pure epsilon. Cost: the published epochs in each stage, 200 of
    all rows on CIFAR-10.

    References
    ----------
    Ghazi, Golowich, Kumar, Manurangsi and Zhang (2021), "Deep Learning with Label Differential
    Privacy", appendix B; and their code.

    Examples
    --------
    >>> found = lp_2st("cifar10", epsilon=2.0)
    >>> found["law"], found["stages"], found["prior"].temperature, found["prior"].top_k
    ('rr-with-prior', (0.7, 0.3), 0.5, 'mean')
    >>> [
    ...     (recipe.epochs, recipe.batch_size, recipe.rate, recipe.alpha)
    ...     for recipe in found["recipe"]
    ... ]
    [(200, 512, 0.4, 8.0), (200, 512, 0.4, 8.0)]
    """
    return _paper(LP_2ST, data, epsilon, changes)


def lp_3st(data: str, *, epsilon: float, **changes: Any) -> dict[str, Any]:
    """Make LP-3ST as parameters of a `TorchClassifier`: LP-2ST with half of its second part in a
    third stage.

    Parameters
    ----------
    data : {"mnist", "fashion_mnist", "kmnist", "cifar10", "cifar100", "movielens_1m"}
        The data set (a name of `PUBLISHED`) whose published training is used; for other
        data the one that is most alike.
    epsilon : float > 0
    **changes
        Fields of a `Recipe` to set otherwise than published, such as epochs=2.

    Returns
    -------
    dict
        As of `lp_2st`, with three Recipes. The paper publishes neither shares nor mixup of a third
        stage: see `MULTISTAGE`.
    """
    return _paper(LP_3ST, data, epsilon, changes)


def alibi(data: str | None = None, *, epsilon: float, **changes: Any) -> dict[str, Any]:
    """Make ALIBI (Malek et al. 2021) as parameters of a `TorchClassifier`.

    The law adds Laplace noise to the one-hot label, in our exact arithmetic. The loss is the
    cross-entropy against each label's posterior, with the net's own probabilities as prior.

    Parameters
    ----------
    data : {"mnist", "fashion_mnist", "kmnist", "cifar10", "cifar100", "movielens_1m"}, optional
        A data set whose training by Ghazi et al. is used, without mixup: that of `lp_1st`, so that
        law and loss alone differ. None: the defaults of `Recipe`. The authors' own training is not
        reproduced.
    epsilon : float > 0
    **changes
        Fields of a `Recipe` to set otherwise.

    Returns
    -------
    dict
        Those of `stages`, and one Recipe.

    References
    ----------
    Malek, Mironov, Prasad, Shilov and Tramer (2021), "Antipodes of Label Differential Privacy: PATE
    and ALIBI".
    """
    with needs_torch():
        from labeldp.deep._loop import Recipe
        from labeldp.deep._losses import posterior_loss

    changed = {"loss": posterior_loss} | changes
    if data is not None:
        return _paper(ALIBI, data, epsilon, changed)
    _require_fields(changes)
    return stages(ALIBI, epsilon=epsilon) | {"recipe": Recipe(**changed)}


def _paper(name: str, data: str, epsilon: float, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters of `stages` with the published training, changed where asked, of each
    stage."""
    known = PUBLISHED[_validate.one_of(PUBLISHED, data=data)]
    _require_fields(changes)
    from labeldp.deep._loop import Optimizer, Recipe
    from labeldp.deep._losses import cross_entropy

    staged = stages(name, epsilon=epsilon)
    base = Recipe(
        epochs=known.epochs,
        batch_size=known.batch_size,
        rate=known.rate,
        schedule=paper_decays if known.decays else triangular,
        augment=moved_and_cut if known.images else None,
        loss=cross_entropy,
        optimizer=Optimizer("sgd", weight_decay=1e-4, clip=float("inf")),
    )
    alphas = (
        mixups(name, epsilon=epsilon) if known.images else (0.0,) * len(stages_of(staged["stages"]))
    )
    changed: list[dict[str, Any]] = [{"alpha": alpha, **changes} for alpha in alphas]
    found = tuple(replace(base, **each) for each in changed)
    return staged | {"recipe": found if len(found) > 1 else found[0]}


def _require_fields(changes: Mapping[str, Any]) -> None:
    """Refuse changes of what a Recipe does not have; and name the extra where torch is missing."""
    with needs_torch():
        from labeldp.deep._loop import Recipe

    _validate.changes_of(Recipe, changes)


def triangular(progress: float, peak_at: float = 0.15) -> float:
    """Rise linearly to the peak rate, then fall linearly to 0: on MNIST, Fashion-MNIST and KMNIST.

    Parameters
    ----------
    progress : float in [0, 1]
    peak_at : float in (0, 1), default=0.15
    """
    return 1 - max(1 - progress / peak_at, (progress - peak_at) / (1 - peak_at))


def paper_decays(progress: float) -> float:
    """Rise linearly, and divide the rate by 10 at 45 and 75 %: on CIFAR and MovieLens.

    Their text says 30, 60 and 90 %; their code counts from the end of the 15 % ramp, so the third
    decay, at 105 %, never comes.

    Parameters
    ----------
    progress : float in [0, 1]
    """
    return min(1.0, progress / 0.15) * 0.1 ** sum(progress >= decay for decay in (0.45, 0.75))


def moved_and_cut(images: "Tensor", generator: "Generator") -> "Tensor":
    """Mirror and shift each image, and cut one square out of the whole batch, as their code does.

    Parameters
    ----------
    images : (n, c, h, w) tensor
    generator : torch.Generator
    """
    from labeldp.deep.augment import cutout, flip, shift

    return cutout(
        shift(flip(images, generator), generator, pixels=4), generator, size=8, shared=True
    )
