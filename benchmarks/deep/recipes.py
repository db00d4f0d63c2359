# SPDX-License-Identifier: Apache-2.0
"""Frozen recipes: what each row of each table does, for every data set and size. Plain values, so
that a run's record holds all of it.

One recipe serves every epsilon of a data set but for `RATING_LAW` and what the paper varies. Ours
were chosen on noisy held-out labels (results/deep-choose.json.gz has what was tried). The
paper's are as published (Ghazi et al. 2021, Appendix B, and the authors' code, whose decays come at
45 and 75 % of a stage); their values are those of `labeldp.papers.ghazi2021`:
    --size gpu   its nets, epochs, rates, batch sizes, augmentation, penalty
    --size cpu   its law, loss, mixup, split, temperature, filter, augmentation and schedule; our
                 net, batch and peak rate, and about as many images trained on as ours, since its
                 own nets take hours on two cores
"tuned" is their law, loss, filter, split and temperature with the training that ours has: same net,
epochs, rates, averaged weights, clipped gradients and views, and no mixup, which noisy held-out
labels spoke against. ALIBI (Malek et al. 2021) is its law and its soft labels, with the model's own
probabilities as their prior, as its authors have it, and trained as ours in one stage. Mixup, split
and temperature are published for CIFAR-10 only and used for all. MovieLens has no mixup, since ids
cannot be mixed, and its rate is the one printed for CIFAR-100; at size cpu it trains for fewer
epochs than the 200 that seem meant.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from benchmarks.deep.views import chain
from labeldp.deep import (
    Consistency,
    augment,
    cross_entropy,
    debiased_loss,
    likelihood_loss,
    posterior_loss,
    schedules,
)
from labeldp.deep._loop import Optimizer, Recipe
from labeldp.papers import ghazi2021 as papers
from labeldp.papers._recipes import paper_decays, triangular
from labeldp.protocol._prior import stages_of

METHODS = (
    *(
        "paper-1st",
        "paper-2st",
        "paper-3st",
        "tuned-1st",
        "tuned-2st",
        "alibi",
        "ours-1",
        "ours-2",
        "ours-3",
    ),
    *(
        "ours-1-of-4",
        "ours-3-of-6",
        "ours-1-shared-adamatch",
        "ours-1-shared-selection",
        "counts",
        "counts-rows",
        "dp-sgd",
        "true-labels",
    ),
    *(
        "tuned-1st-resnet9",
        "tuned-2st-resnet9",
        "alibi-resnet9",
        "ours-1-resnet9",
        "counts-resnet9",
    ),
    *("non-private-of-4", "non-private-of-6", "non-private-resnet9", "non-private"),
)
SIZES = ("cpu", "gpu")


def batch_crop(images: Tensor, generator: torch.Generator, *, size: int) -> Tensor:
    """One random square of all images of a batch: shifts, and less work the smaller it is, for nets
    that take any size."""
    top, left = (
        int(torch.randint(0, length - size + 1, (1,), generator=generator))
        for length in images.shape[2:]
    )
    return images[:, :, top : top + size, left : left + size]


SCHEDULES: dict[str, schedules.Schedule] = {
    "triangular": partial(triangular, peak_at=0.2),
    "linear ramp": triangular,
    "paper decays": paper_decays,
    "cosine": partial(schedules.cosine, ramp=0.1),
    "one cycle": partial(schedules.one_cycle, peak_at=0.3),
}
AUGMENTATIONS: dict[str, augment.Augmentation | None] = {
    "none": None,
    "flip, shift 2": chain(augment.flip, partial(augment.shift, pixels=2)),
    "flip, shift 1": chain(augment.flip, partial(augment.shift, pixels=1)),
    "shift 2": partial(augment.shift, pixels=2),
    "flip, shift 2, cutout": chain(
        augment.flip, partial(augment.shift, pixels=2), partial(augment.cutout, size=8)
    ),
    "flip, shift 4": chain(augment.flip, partial(augment.shift, pixels=4, mode="reflect")),
    "flip, crop 24": chain(augment.flip, partial(batch_crop, size=24)),
    "crop 24": partial(batch_crop, size=24),
    "paper": papers.lp_1st("cifar10", epsilon=1.0)["recipe"].augment,
}
LOSSES: dict[str, Callable[..., Tensor]] = {
    "likelihood": likelihood_loss,
    "cross-entropy": cross_entropy,
    "debiased": debiased_loss,
    "posterior": posterior_loss,
}


SHARING: dict[str, Callable[[int], Consistency | None]] = {
    "none": lambda epochs: None,
    "adamatch": lambda epochs: Consistency.adamatch(warm_up=min(4, epochs - 1)),
    "selection": lambda epochs: Consistency.posterior_selection(warm_up=min(4, epochs - 1)),
}
"""What a stage learns from rows whose label it does not know."""


@dataclass(frozen=True)
class Training:
    """One stage's training, by names and numbers; see labeldp.deep._loop.Recipe.

    Gradients of ours on images are clipped: the likelihood of a class that the net gives no
    probability has no gradient, so that one wild step can lose a class for good.
    """

    epochs: int
    rate: float
    batch_size: int = 256
    schedule: str = "triangular"
    weight_decay: float = 5e-4
    alpha: float = 0.0
    augment: str = "none"
    loss: str = "likelihood"
    average: float | None = None
    clip: float | None = None
    precision: Literal["auto", "float32", "bf16"] = "auto"
    consistency: str = "none"

    def recipe(self) -> Recipe:
        """Make the Recipe of the training loop."""
        clip = math.inf if self.clip is None else self.clip
        return Recipe(
            epochs=self.epochs,
            batch_size=self.batch_size,
            rate=self.rate,
            schedule=SCHEDULES[self.schedule],
            alpha=self.alpha,
            augment=AUGMENTATIONS[self.augment],
            loss=LOSSES[self.loss],
            average=self.average,
            precision=self.precision,
            patience=None,
            optimizer=Optimizer("sgd", 0.9, self.weight_decay, clip),
            consistency=SHARING[self.consistency](self.epochs),
        )

    def described(self) -> dict[str, object]:
        """Return JSON-ready data; a norm is included where gradients are clipped, and what rows
        share where they do."""
        return {
            name: value
            for name, value in asdict(self).items()
            if (name, value) not in (("clip", None), ("consistency", "none"))
        }


@dataclass(frozen=True)
class Method:
    """One row of a table.

    Attributes
    ----------
    net : str
        See nets.py.
    stages : tuple of Training
        Of "true labels" of ratings: each is tried, and held-out rows choose.
    law : str
        A law's name; "none" trains on true labels, "true labels" on those of as many rows as the
        noisy labels are worth, and on the inputs of all images; "dp-sgd" with noise on gradients,
        "counts" on private counts of clusters, and on labels drawn of the other rows if there are
        two sizes.
    sizes : tuple of float
        Share of the rows in each stage.
    temperature : float
        The next stage's prior is softmax(logits / temperature).
    prior : "model" or "threshold"
        What a split asks about: sets of classes of about half the mass, or whether the class
        reaches a threshold, since such sets need not lie on two sides of anything.
    top_k_filter : bool
        The paper's: earlier rows whose noisy label is not among the model's top k are left out, k
        the mean that RRWithPrior kept.
    warm_start : bool
    views : "one", "flip", "shift 1" or "flip, shift 1"
        Images that a prediction averages over: the image, with its mirror image, with moves by a
        pixel, or all ten; no label is used.
    members : int
        Nets of a `models.Ensemble`, which learn from the same labels.
    """

    net: str
    stages: tuple[Training, ...]
    law: str
    sizes: tuple[float, ...] = (1.0,)
    temperature: float = 1.0
    prior: str = "model"
    top_k_filter: bool = False
    warm_start: bool = True
    views: str = "one"
    members: int = 1

    def described(self) -> dict[str, object]:
        """Return JSON-ready data, which is part of a run's identity; members are included where
        there are several."""
        found = asdict(self) | {
            "stages": [stage.described() for stage in self.stages],
            "sizes": list(self.sizes),
        }
        return (
            found
            if self.members > 1
            else {name: value for name, value in found.items() if name != "members"}
        )

    def shortened(self, epochs: int = 1) -> "Method":
        """So many epochs a stage: one to try a command out."""
        return replace(self, stages=tuple(replace(stage, epochs=epochs) for stage in self.stages))


# The paper
# --------------------------------------------------------------------------------------------------


def published(data: str) -> Training:
    """The package's published training of a data set, by the names of this module; without
    mixup."""
    made: Recipe = papers.lp_1st(data, epsilon=1.0, alpha=0.0)["recipe"]
    (schedule,) = (name for name, each in SCHEDULES.items() if each == made.schedule)
    augmented = "none" if made.augment is None else "paper"
    base = Training(
        made.epochs,
        made.rate,
        made.batch_size or 256,
        schedule,
        made.steps.weight_decay,
        precision=made.precision,
    )
    return replace(base, augment=augmented, loss="cross-entropy")


def paper(
    n_stages: int, epsilon: float, net: str, training: Training, *, mixes: bool = True
) -> Method:
    """LP-1ST, LP-2ST or LP-3ST; where a third stage is, it takes half of the rows that are not in
    the first."""
    name = ("lp-1st", "lp-2st", "lp-3st")[n_stages - 1]
    staged = papers.stages(name, epsilon=epsilon or 1.0)
    alphas = papers.mixups(name, epsilon=epsilon or 1.0) if mixes else (0.0,) * n_stages
    stages = tuple(replace(training, loss="cross-entropy", alpha=alpha) for alpha in alphas)
    # also where one stage makes no prior: part of the identity of kept runs
    temperature = papers.multistage(epsilon or 1.0).temperature
    return Method(
        net,
        stages,
        staged["law"],
        stages_of(staged["stages"]),
        temperature,
        top_k_filter=staged["prior"] is not None,
    )


# Frozen recipes, a data set and size each
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frozen:
    """The chosen settings of a data set and size.

    Attributes
    ----------
    ours : tuple of three tuples of Training
        For one, two and three stages.
    sizes : tuple of three tuples of float
    law : function of epsilon giving (law, prior) for one stage and for more
    paper : Training
        Of every stage of the paper's rows.
    clean : Training
        Of the row without privacy, as many epochs as ours in all stages; and DP-SGD's epochs.
    paper_net : str
    views : str
    mixes : bool
        Whether the paper's rows have mixup.
    paper_epochs : three int, optional
        Epochs of each of their stages, where there are one, two or three; else those of `paper`.
    tuned_rates : two float, optional
        Rates of their one and two stages where they are trained as ours, if others are better for
        hard labels.
    above : (epsilon, Frozen), optional
        What ours, and theirs trained as ours, use from this epsilon on; and what is not private.
    """

    net: str
    ours: tuple[tuple[Training, ...], ...]
    sizes: tuple[tuple[float, ...], ...]
    law: Callable[[int, float], tuple[str, str]]
    paper: Training
    clean: Training
    paper_net: str
    views: str = "one"
    mixes: bool = True
    paper_epochs: tuple[int, int, int] | None = None
    tuned_rates: tuple[float, float] | None = None
    above: tuple[float, "Frozen"] | None = None

    def method(self, name: str, epsilon: float | None) -> Method:
        """The recipe of one row.

        "NAME-of-4" is the mean of four nets that learn as NAME does, "NAME-resnet9" has a larger
        net, and "NAME-shared-adamatch" learns in its last stage from what rows share, too, by one
        of `SHARING`.
        """
        if name.endswith("-resnet9"):
            return replace(self.method(name.removesuffix("-resnet9"), epsilon), net=_LARGER)
        name, _, members = name.partition("-of-")
        if members:
            return replace(self.method(name, epsilon), members=int(members))
        name, _, shared = name.partition("-shared-")
        found = self._of_one_net(name, epsilon)
        if not shared:
            return found
        return replace(
            found, stages=(*found.stages[:-1], replace(found.stages[-1], consistency=shared))
        )

    def _of_one_net(self, name: str, epsilon: float | None) -> Method:
        kind, _, number = name.partition("-")
        if (
            self.above is not None
            and (epsilon is None or epsilon >= self.above[0])
            and kind in ("ours", "tuned", "alibi", "true", "non")
        ):
            return self.above[1]._of_one_net(name, epsilon)
        if name in _OF_TRUE_LABELS:
            return Method(self.net, (self.clean,), _OF_TRUE_LABELS[name], views=self.views)
        if name == "true-labels" and self.views == "one":
            ratings = replace(self.clean, epochs=60, rate=0.3)
            return Method(
                self.net,
                tuple(replace(ratings, weight_decay=decay) for decay in (0.002, 0.01, 0.03)),
                "true labels",
            )
        if name == "true-labels":
            return Method(
                self.net,
                (replace(self.ours[0][0], consistency="adamatch"),),
                "true labels",
                views=self.views,
            )
        if name == "counts":
            return Method(
                self.net,
                stages(self.ours[0][0], *_COUNTED_EPOCHS, later_rate=0.05),
                "counts",
                views=self.views,
            )
        if name == "counts-rows":
            return Method(
                self.net,
                stages(self.ours[0][0], *_COUNTED_EPOCHS, 10, later_rate=0.05),
                "counts",
                (0.5, 0.5),
                views=self.views,
            )
        if name == "alibi":
            return Method(
                self.net, (replace(self.ours[0][0], loss="posterior"),), "alibi", views=self.views
            )
        if kind == "paper":
            n = int(number[0])
            return paper(n, epsilon or 0.0, self.paper_net, self._theirs(n), mixes=self.mixes)
        if kind == "tuned":
            n = int(number[0])
            hard = tuple(replace(stage, loss="cross-entropy") for stage in self.ours[n - 1])
            if self.tuned_rates:
                hard = tuple(replace(stage, rate=self.tuned_rates[n - 1]) for stage in hard)
            return replace(
                paper(n, epsilon or 0.0, self.net, self.paper), stages=hard, views=self.views
            )
        n = int(number)
        law, prior = self.law(n, epsilon or 0.0)
        return Method(
            self.net, self.ours[n - 1], law, self.sizes[n - 1], prior=prior, views=self.views
        )

    def _theirs(self, n_stages: int) -> Training:
        """Return the published recipes for each of so many stages."""
        return (
            replace(self.paper, epochs=self.paper_epochs[n_stages - 1])
            if self.paper_epochs
            else self.paper
        )


def image_law(n_stages: int, epsilon: float) -> tuple[str, str]:
    """Choose the law of images: sets without a prior; with one, the most informative law of each
    row."""
    return ("subset" if n_stages == 1 else "auto"), "model"


RATING_LAW = {0: ("split", "threshold"), 2.5: ("auto", "model")}
"""By epsilon: a question about a threshold tells more of where a rating lies up to about 2.5, the
rating itself through noise beyond."""


def rating_law(n_stages: int, epsilon: float) -> tuple[str, str]:
    """Choose the law of ratings by epsilon; see `RATING_LAW`."""
    return RATING_LAW[max(start for start in RATING_LAW if start <= epsilon)]


def stages(training: Training, *epochs: int, later_rate: float) -> tuple[Training, ...]:
    """The same training for some epochs a stage; warm-started stages at a rate of their own."""
    return tuple(
        replace(training, epochs=n, rate=later_rate if i else training.rate)
        for i, n in enumerate(epochs)
    )


# methods that train on all of them, and their laws
_OF_TRUE_LABELS = {"non-private": "none", "dp-sgd": "dp-sgd"}
_SPLITS = ((1.0,), (0.6, 0.4), (0.4, 0.3, 0.3))
_COUNTED_EPOCHS = (8, 6)  # of a net that counts teach; see counts.py

_GREY = Training(10, 0.1, augment="flip, shift 2", average=0.998, clip=1.0)
_SMALL = "quick:16,32,96"
_LARGER = "fast-resnet:16"  # three to four times the training time of `_SMALL`
_DIGITS = replace(_GREY, augment="shift 2")
_COLOUR = Training(30, 0.4, batch_size=512, augment="flip, shift 4", average=0.999, clip=1.0)
_COLOUR_STAGED = replace(_COLOUR, weight_decay=5e-4)
_COLOUR_EPOCHS = ((20, 20), (15, 15, 20))
# bf16 moves the error more than seeds do
_RATINGS = Training(18, 2.0, batch_size=4096, weight_decay=2e-3, precision="float32")
_PAPER_GREY = published("fashion_mnist")
_PAPER_COLOUR = published("cifar10")


def _ours(
    training: Training, one: int, two: tuple[int, ...], three: tuple[int, ...], later_rate: float
) -> tuple[tuple[Training, ...], ...]:
    return tuple(
        stages(training, *epochs, later_rate=later_rate) for epochs in ((one,), two, three)
    )


FROZEN: dict[tuple[str, str], Frozen] = {
    ("fashion-mnist", "cpu"): Frozen(
        _SMALL,
        _ours(_GREY, 21, (10, 15), (10, 8, 11), 0.05),
        _SPLITS,
        image_law,
        replace(_PAPER_GREY, epochs=12, rate=0.1, batch_size=256),
        replace(_GREY, epochs=25),
        _SMALL,
        views="flip, shift 1",
        paper_epochs=(21, 12, 8),
    ),
    ("cifar10", "cpu"): Frozen(
        "quick",
        _ours(replace(_GREY, augment="flip, shift 4"), 10, (6, 6), (5, 4, 5), 0.05),
        _SPLITS,
        image_law,
        replace(_PAPER_COLOUR, epochs=6, rate=0.1, batch_size=256),
        replace(_GREY, epochs=10, augment="flip, shift 4"),
        "quick",
        views="flip",
        paper_epochs=(10, 6, 4),
    ),
    ("movielens", "cpu"): Frozen(
        "ratings:28,12,12",
        _ours(_RATINGS, 18, (3, 18), (3, 5, 18), 2.0),
        ((1.0,), (0.15, 0.85), (0.1, 0.3, 0.6)),
        rating_law,
        Training(
            12, 0.2, batch_size=128, schedule="paper decays", weight_decay=1e-4, precision="float32"
        ),
        replace(_RATINGS, epochs=30, rate=1.0),  # true ratings pull harder: at 2 it diverges
        "ncf",
        mixes=False,
        tuned_rates=(0.01, 0.01),
    ),
    ("fashion-mnist", "gpu"): Frozen(
        "small-inception",
        _ours(_GREY, 40, (30, 30), (20, 20, 30), 0.05),
        _SPLITS,
        image_law,
        _PAPER_GREY,
        replace(_GREY, epochs=40),
        "small-inception",
        views="flip, shift 1",
    ),
    ("cifar10", "gpu"): Frozen(
        "fast-resnet",
        (
            stages(_COLOUR, 60, later_rate=0.2),
            *(stages(_COLOUR_STAGED, *epochs, later_rate=0.2) for epochs in _COLOUR_EPOCHS),
        ),
        _SPLITS,
        image_law,
        _PAPER_COLOUR,
        replace(_COLOUR, epochs=60),
        "cifar-resnet18",
        views="flip",
    ),
}
FROZEN["movielens", "cpu"] = replace(
    FROZEN["movielens", "cpu"],
    above=(
        3.0,
        replace(
            FROZEN["movielens", "cpu"],
            net="ratings:20,12,24",
            ours=_ours(_RATINGS, 30, (3, 30), (3, 5, 30), 2.0),
        ),
    ),
)
FROZEN["mnist", "cpu"] = replace(
    FROZEN["fashion-mnist", "cpu"],
    ours=_ours(_DIGITS, 8, (4, 6), (4, 3, 4), 0.05),
    paper=replace(FROZEN["fashion-mnist", "cpu"].paper, epochs=5),
    clean=replace(_DIGITS, epochs=10),
    views="shift 1",
    paper_epochs=(8, 5, 3),
)
FROZEN["mnist", "gpu"] = replace(
    FROZEN["fashion-mnist", "gpu"],
    ours=_ours(_DIGITS, 40, (30, 30), (20, 20, 30), 0.05),
    clean=replace(_DIGITS, epochs=40),
    views="shift 1",
)
FROZEN["cifar100", "gpu"] = replace(FROZEN["cifar10", "gpu"], paper=published("cifar100"))
for _size in SIZES:
    FROZEN["kmnist", _size] = FROZEN["mnist", _size]
FROZEN["cifar100", "cpu"] = FROZEN["cifar10", "cpu"]
FROZEN["movielens", "gpu"] = replace(FROZEN["movielens", "cpu"], paper=published("movielens_1m"))


def method(table: str, size: str, name: str, epsilon: float | None) -> Method:
    """The frozen recipe of one row of a data set's table."""
    return FROZEN[table, size].method(name, epsilon)


# What makes the difference
# --------------------------------------------------------------------------------------------------

GRID_DATA = "fashion-mnist"
# a stage, where many recipes are compared: they rank, and are not the best that each can do
GRID_EPOCHS = 4


def why(epsilon: float) -> dict[str, Method]:
    """Fashion-MNIST, one thing changed at a time, eight epochs in all but for the stages, no
    views."""
    one = replace(_GREY, epochs=8)
    two = stages(one, 5, 5, later_rate=0.05)
    three = stages(one, 4, 3, 4, later_rate=0.05)
    hard = replace(one, loss="cross-entropy")
    net = FROZEN[GRID_DATA, "cpu"].net
    hard_two = tuple(replace(stage, loss="cross-entropy") for stage in two)
    return {
        "loss: cross-entropy": Method(net, (hard,), "rr"),
        "LP-2ST: its law, filter, share and temperature": replace(
            paper(2, epsilon, net, one), stages=hard_two
        ),
        "loss: cross-entropy, mixup": Method(net, (replace(hard, alpha=8.0),), "rr"),
        "loss: debiased": Method(net, (replace(one, loss="debiased"),), "rr"),
        "loss: likelihood": Method(net, (one,), "rr"),
        "law: subset selection": Method(net, (one,), "subset"),
        "law: RRWithPrior, 2 stages": Method(net, two, "rr-with-prior", (0.6, 0.4)),
        "law: prior split, 2 stages": Method(net, two, "split", (0.6, 0.4)),
        "law: auto, 2 stages": Method(net, two, "auto", (0.6, 0.4)),
        "stages: auto, 1 stage": Method(net, (one,), "auto"),
        "stages: auto, 3 stages": Method(net, three, "auto", (0.4, 0.3, 0.3)),
    }


def splits(epsilon: float) -> dict[str, Method]:
    """Fashion-MNIST, the paper's two stages by share and temperature (Ghazi et al. 2021, figure 4,
    left), four epochs a stage."""
    base = FROZEN[GRID_DATA, "cpu"].method("paper-2st", epsilon).shortened(GRID_EPOCHS)
    return {
        f"share {share:g}, temperature {temperature:g}": replace(
            base, sizes=(share, round(1 - share, 3)), temperature=temperature
        )
        for share in (0.4, 0.6, 0.8)
        for temperature in (0.3, 0.6, 1.0)
    }


def mixups(epsilon: float) -> dict[str, Method]:
    """Fashion-MNIST, the paper's two stages by mixup (Ghazi et al. 2021, figure 4, right), four
    epochs a stage."""
    base = FROZEN[GRID_DATA, "cpu"].method("paper-2st", epsilon).shortened(GRID_EPOCHS)
    first, second = base.stages
    return {
        f"mixup {one:g}, then {two:g}": replace(
            base, stages=(replace(first, alpha=one), replace(second, alpha=two))
        )
        for one in (0.0, 4.0, 16.0)
        for two in (0.0, 4.0, 16.0)
    }


def nets(epsilon: float) -> dict[str, Method]:
    """Fashion-MNIST, ours and the paper's two stages on other nets (as Tang et al. 2021, table 9;
    narrow ones), four epochs a stage."""
    rows = {
        name: FROZEN[GRID_DATA, "cpu"].method(name, epsilon).shortened(GRID_EPOCHS)
        for name in ("paper-2st", "ours-2")
    }
    return {
        f"{net}, {name}": replace(row, net=net)
        for net in (
            _SMALL,
            "quick",
            "small-convnet",
            "small-inception",
            _LARGER,
            "wide-resnet:16,1",
            "vgg16:16",
        )
        for name, row in rows.items()
    }


def ratings(epsilon: float) -> dict[str, Method]:
    """MovieLens, our net in every row, with the rate that noisy held-out ratings chose for hard
    labels."""
    frozen = FROZEN["movielens", "cpu"]
    (one,), two = frozen.ours[:2]
    sizes = frozen.sizes[1]
    return {
        "RR, cross-entropy": frozen.method("tuned-1st", epsilon),
        "LP-2ST: RRWithPrior, cross-entropy, filter, 2 stages": frozen.method("tuned-2st", epsilon),
        "RR, likelihood": Method(frozen.net, (one,), "rr"),
        "subset selection, likelihood": Method(frozen.net, (one,), "subset"),
        "RRWithPrior, likelihood, 2 stages": Method(frozen.net, two, "rr-with-prior", sizes),
        "threshold questions, likelihood": Method(frozen.net, (one,), "split", prior="threshold"),
        "threshold questions, likelihood, 2 stages": Method(
            frozen.net, two, "split", sizes, prior="threshold"
        ),
    }


def precision(epsilon: float) -> dict[str, Method]:
    """MNIST, frozen recipes in float32 and as "auto" has it, which is bf16 where the processor
    computes in it."""
    rows = {name: FROZEN["mnist", "cpu"].method(name, epsilon) for name in ("ours-1", "tuned-2st")}
    return {
        f"{name}, {precision}": replace(
            row, stages=tuple(replace(stage, precision=precision) for stage in row.stages)
        )
        for name, row in rows.items()
        for precision in ("float32", "auto")
    }


GRIDS: dict[str, Callable[[float], dict[str, Method]]] = {
    "why": why,
    "ratings": ratings,
    "splits": splits,
    "mixups": mixups,
    "nets": nets,
    "precision": precision,
}
"""Tables at size cpu whose rows are recipes of their own, by name; what a function says of itself
is the table's title."""
_OTHER_DATA = {"ratings": "movielens", "precision": "mnist"}  # grids of other data than GRID_DATA


def data_of(table: str) -> str:
    """The data set of any table."""
    return _OTHER_DATA.get(table, GRID_DATA) if table in GRIDS else table


def recipe_of(table: str, size: str, name: str, epsilon: float | None) -> Method | None:
    """The present recipe of a row of any table; None if there is none of this name."""
    if table in GRIDS:
        return GRIDS[table](epsilon or 0.0).get(name)
    return method(table, size, name, epsilon) if name in METHODS else None
