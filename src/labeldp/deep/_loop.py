# SPDX-License-Identifier: Apache-2.0
"""Train a net on noisy labels: settings, the loop, and the device or processes that it runs on.

    Recipe             settings, checked when they are given, long before a label is drawn for them;
                       those of a step are an Optimizer
    train, predict     the loop, one epoch after another; logits of all rows
    Placement          one device with plain torch, or lightning's Fabric, in one process or many
    from_first         calls what only the first of many processes may do, such as reading raw
                       labels

The loop sees evidence only: no true label can reach it. In distributed training each process takes
its share of every batch, so that batches, gradients, losses and scores are the same as in one
process. Fabric is passed in: nothing here imports lightning.
"""

import io
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from labeldp import _validate
from labeldp._files import path_text, replace_file
from labeldp.deep._consistency import Consistency, Targets, frequencies_of, plain_numbers
from labeldp.deep._inputs import Inputs, as_inputs, fingerprint, inputs_digest, inputs_name
from labeldp.deep._losses import (
    Combined,
    Dense,
    Form,
    Heads,
    cross_entropy,
    debiased_loss,
    generalised_cross_entropy,
    likelihood_loss,
    mixup_loss,
    posterior_loss,
    require_log_likelihood,
)
from labeldp.deep.augment import Augmentation, mixup
from labeldp.deep.models import Ensemble
from labeldp.deep.schedules import Schedule, one_cycle, weight_average
from labeldp.errors import (
    InvalidInput,
    LabelDPError,
    LostClassWarning,
    MisfitWarning,
    UntrainedWarning,
    warn,
)
from labeldp.protocol._matching import spread
from labeldp.protocol._statistics import quantile
from labeldp.protocol.metrics import LEARNED_NOISE, LEAST_ROWS, RARELY, lost_codes, rarely

Precision = Literal["auto", "float32", "bf16"]

_PRECISIONS = get_args(Precision)
_LATE = 0.25  # of an epoch: what the net predicts before is not yet what it has become
_ENOUGH = 0.5  # of its share: a mean probability at which a class is won back
_ENOUGH_ROWS = 20_000  # to tell which classes are lost
# standard errors: a class that is won back for nothing gets a share that noise could explain, in
# one epoch
_DOUBT = 2.0
_LOOKS = 100  # times that a schedule is tried
_SAVED_EVERY = 20.0  # seconds: a write of all weights takes as long as an epoch of a fast net


@dataclass(frozen=True)
class Optimizer:
    """How a net takes a step along its gradient: `Recipe(optimizer=...)`.

    Attributes
    ----------
    name : {"adamw", "sgd"}, default="adamw"
        "sgd" has Nesterov momentum, and needs another rate: 0.03 to 0.1 for nets with batch
        normalisation.
    momentum : float in [0, 1), default=0.9
        AdamW's first beta.
    weight_decay : float >= 0, default=0.0005
    clip : float > 0, default=1.0
        Maximal norm of the gradient; inf: no clipping. If one large step takes all probability from
        a class, its likelihood has no gradient any more, and the class is lost.

    Raises
    ------
    InvalidInput
        If a field has a value that no training could use.

    Examples
    --------
    >>> from labeldp.deep import Optimizer, Recipe
    >>> recipe = Recipe(rate=0.05, optimizer=Optimizer("sgd", weight_decay=1e-4))
    """

    name: Literal["adamw", "sgd"] = "adamw"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip: float = 1.0

    def __post_init__(self) -> None:
        _validate.one_of(("adamw", "sgd"), optimizer=self.name)
        _validate.fraction(momentum=self.momentum, zero=True, fix="0 is plain SGD.")
        _validate.positive(zero=True, weight_decay=self.weight_decay)
        if self.clip != math.inf:
            _validate.positive(clip=self.clip, fix="math.inf for no clipping.")
        plain_numbers(self)

    def of(self, module: nn.Module, rate: float) -> torch.optim.Optimizer:
        """Make torch's optimizer of a net's weights."""
        weights, decay = module.parameters(), self.weight_decay
        if self.name == "adamw":
            return torch.optim.AdamW(weights, rate, (self.momentum, 0.999), weight_decay=decay)
        return torch.optim.SGD(
            weights, rate, self.momentum, weight_decay=decay, nesterov=self.momentum > 0
        )


@dataclass(frozen=True)
class Recipe:
    """Settings of a training, checked when they are given. They are public.

    Attributes
    ----------
    epochs : int >= 1, default=10
    batch_size : int >= 1 or None, default=None
        None: a 64th of the rows, as a power of two from 32 to 256, so that few rows still make some
        hundred steps.
    rate : float > 0, default=0.003
        Peak learning rate, multiplied by the schedule. For AdamW at most 0.03: its steps do not
        shrink with the gradient, as those of SGD do.
    schedule : function of progress in [0, 1], `one_cycle` if not given
        Factor of the learning rate. The default ramps up over the first tenth of the training,
        since large first steps lose classes.
    alpha : float >= 0, default=0.0
        Parameter of mixup's beta distribution; 0: no mixup.
    augment : function (images, generator) -> images, default=None
    loss : function (logits, evidence, reduction=...), `likelihood_loss` if not given
        Evidence is that of these rows, as passed to `train`. From noisy labels, `TorchClassifier`
        passes to `debiased_loss` its weights; to `cross_entropy`, `generalised_cross_entropy` and
        any function with an attribute `takes_labels = True` the most likely labels, (n,) int64; to
        all others log-likelihoods as a Form, whose table is `evidence.expand(K)`.
    average : float in [0, 1) or None, default=None
        Decay of an exponential moving average of the weights, which is then the model that is
        scored and returned.
    precision : {"auto", "float32", "bf16"}, default="auto"
        "auto": bf16 autocast if the processor multiplies it natively. Fabric uses its own precision
        instead.
    patience : int >= 1 or None, default=None
        Number of epochs without a larger held-out score after which training stops; the net of the
        best epoch is returned. With patience=epochs all epochs are trained, and the best one is
        returned. None: all epochs, and the last net. Cost: predictions for the held-out rows in
        each epoch, and a copy of the net. The best epoch's score is biased upwards: measure on
        other rows.
    optimizer : Optimizer, "adamw" or "sgd", default="adamw"
        A name stands for the `Optimizer` of this name with its defaults.
    consistency : Consistency or None, default=None
        Also learn targets on which an averaged net, the row's noisy label and its neighbours agree:
        for images at small epsilon, and long trainings. With it, `average` is 0.999 if not given.
        In one process only, and with losses on log-likelihoods.

    Raises
    ------
    InvalidInput
        If a field has a value that no training could use.
    """

    epochs: int = 10
    batch_size: int | None = None
    rate: float = 0.003
    schedule: Schedule = one_cycle
    alpha: float = 0.0
    augment: Augmentation | None = None
    loss: Callable[..., Tensor] = likelihood_loss
    average: float | None = None
    precision: Precision = "auto"
    patience: int | None = None
    optimizer: Optimizer | Literal["adamw", "sgd"] = "adamw"
    consistency: Consistency | None = None

    def __post_init__(self) -> None:
        _validate.integer(epochs=self.epochs, low=1)
        if self.batch_size is not None:
            _validate.integer(
                batch_size=self.batch_size, low=1, fix="None chooses by the number of rows."
            )
        _validate.positive(rate=self.rate)
        _validate.positive(zero=True, alpha=self.alpha, fix="0 mixes nothing.")
        _validate.one_of(_PRECISIONS, precision=self.precision)
        object.__setattr__(self, "optimizer", self.steps)
        if self.average is not None:
            _validate.fraction(average=self.average, zero=True, fix="None for no average.")
        if self.patience is not None:
            _validate.integer(patience=self.patience, low=1, fix="None trains for all epochs.")
        _validate.function(augment=self.augment, takes="(images, generator)", none=True)
        _validate.function(loss=self.loss, takes="(logits, evidence, reduction=...)")
        if self.consistency is not None:
            if not isinstance(self.consistency, Consistency):
                raise InvalidInput(
                    "Expected consistency as a deep.Consistency or None, got"
                    f" {_validate.shown(self.consistency)}."
                )
            require_likelihoods(self.loss, "with consistency")
            if self.consistency.warm_up >= self.epochs:
                raise InvalidInput(
                    f"Expected warm_up < epochs={self.epochs}, got {self.consistency.warm_up}: no"
                    " target would be learned. Lower warm_up."
                )
        _validate.function(schedule=self.schedule, takes="progress in [0, 1]")
        # a schedule that fails must fail here, and not after labels were charged and drawn
        for step in range(_LOOKS + 1):
            factor = self.schedule(step / _LOOKS)
            if not 0 <= factor < math.inf:
                raise InvalidInput(
                    "Expected a schedule that gives a finite factor of the rate, 0 or more, got"
                    f" {_validate.shown(factor)} at {step / _LOOKS}. See deep.schedules."
                )
        plain_numbers(self)

    @property
    def steps(self) -> Optimizer:
        """The optimizer; of a name that one with its defaults."""
        made = self.optimizer
        return made if isinstance(made, Optimizer) else Optimizer(made)

    def rows_of_batch(self, n: int) -> int:
        """Return the batch size for a training on n rows."""
        return self.batch_size or min(256, max(32, 2 ** round(math.log2(max(n, 1) / 64))))


def takes_labels(loss: Any) -> bool:
    """Return whether a loss takes hard noisy labels, rather than likelihoods or weights."""
    return plain(loss) in (cross_entropy, generalised_cross_entropy) or bool(
        getattr(plain(loss), "takes_labels", False)
    )


def plain(loss: Any) -> Any:
    """Return the function inside `functools.partial`, or the function itself."""
    return plain(loss.func) if isinstance(loss, partial) else loss


def require_likelihoods(loss: Any, where: str) -> None:
    """Refuse a loss on labels or weights where the law's likelihoods are needed."""
    if takes_labels(loss) or plain(loss) is debiased_loss:
        name = getattr(plain(loss), "__name__", type(loss).__name__)
        raise InvalidInput(
            f"Expected a loss on log-likelihoods {where}, got {name}. Use likelihood_loss."
        )


# The loop
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Epoch:
    """Figures of an epoch, computed from noisy labels alone.

    Attributes
    ----------
    number : int
        Number of the epoch, from 1.
    loss : float
        Mean loss over the epoch's batches.
    held_out : float or None
        Mean log-evidence of held-out rows under the model, larger is better; None without such
        rows.
    epochs : int
        Number of epochs of the recipe; 0 if unknown.
    """

    number: int
    loss: float
    held_out: float | None
    epochs: int = 0


Progress = Callable[[Epoch], object]
Watch = Callable[[int, nn.Module], object]


def train(
    module: nn.Module,
    inputs: Any,
    evidence: Form | Tensor,
    recipe: Recipe,
    *,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
    held_out: tuple[Any, Form] | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
    fabric: Any = None,
    first: Any = None,
    checkpoint: str | Path | None = None,
) -> nn.Module:
    """Train a net in place, on evidence alone: it takes no true label.

    Parameters
    ----------
    module : nn.Module
        Returns logits (m, K); moved to the device. The nets of a `models.Ensemble` are trained one
        after another.
    inputs : (n, ...) tensor or array, Inputs, or anything that `as_inputs` takes
        Kept on the device if they fit, otherwise sent batch by batch. uint8 with three or more axes
        (the rows' included) counts as images and is scaled to [0, 1] batch by batch; floats are
        cast to the net's type; other numbers are passed unchanged.
    evidence : Form of n rows, or (n,) int64 tensor of noisy labels
        Evidence for the recipe's loss. Row i belongs to input i.
    recipe : Recipe
    generator : torch.Generator
        On the CPU. It draws the order of the rows, augmentations and mixup.
    device : torch.device or str, default="cpu"
    held_out : (inputs, Form), optional
        Rows that are scored after each epoch and never learned from; a recipe with patience stops
        by them.
    progress : function of an Epoch, optional
        Called after each epoch, in every process with the same figures; may raise an error to stop.
    watch : function of an epoch's number and the net, optional
        Called after each epoch, before `progress`, with the averaged net if there is one. It may
        predict or save, but must not change the net.
    fabric : lightning.fabric.Fabric, optional
        A launched Fabric; decides device, precision and distribution. Each process calls `train`
        with the same arguments and learns from its share of every batch; batches are those of one
        process, in the order of the first process's generator.
    first : (n, K) tensor or array of weights >= 0, optional
        With `Recipe(consistency=...)`: the predictions to begin with, such as those of a model that
        private counts have taught. The neighbours' votes, if any, are multiplied by them.
    checkpoint : str or Path, optional
        A file that keeps the state of the training, so that the same call goes on behind the last
        epoch that is in it: written after an epoch if the last write is 20 seconds ago, after the
        last epoch, and where `progress` raises an error. It stays when the training is over; delete
        it then. Inputs, evidence, the generator's state and the recipe's numbers are compared with
        it; first weights, held-out rows and functions are not. A Dataset is read once for that; if
        its items differ at each reading, only their number is compared. The nets of an `Ensemble`
        have a file each, numbered. One process only.

    Returns
    -------
    nn.Module
        In evaluation mode: the averaged net if the recipe asks for one, else `module`; with
        patience, of the best epoch. The same in every process.

    Raises
    ------
    InvalidInput
        If inputs and evidence differ in length, evidence differs between processes, a loss is not
        finite, patience has no held-out rows, or the checkpoint is of another training.

    Warns
    -----
    MisfitWarning
        If the held-out rows are likelier under the class frequencies than under the net: half of
        them tell these, the others judge. Not for laws on combinations of several label columns.

    See Also
    --------
    TorchClassifier : privatizes labels and trains, in one stage or several.
    evidence_of : evidence of noisy labels.

    Notes
    -----
    Guarantee: post-processing of noisy labels, at no further budget; a checkpoint is made of them,
    too. Cost: `recipe.epochs` passes over the rows, and a prediction of the held-out rows per
    epoch, and of up to 20,000 rows after an epoch that hardly predicts some class. On a CPU, a
    training that goes on from a checkpoint gives the same net as one that was not stopped.

    Classes that the net has given up by the end of an epoch, though the evidence speaks for them
    (as in `metrics.lost_classes`, but by two standard errors), are won back in the next ones: a
    term of the loss draws their mean probability to their estimated share, until it is half of it.
    Where no class is lost the training is the same. A class that is lost in the last epoch stays
    so. This holds for `likelihood_loss` and `posterior_loss`, without consistency, whose targets
    would bring the class back down; not for laws on combinations of several label columns.
    """
    place = Placement(device, recipe.precision, fabric)
    done = train_at(
        place,
        module,
        inputs,
        evidence,
        recipe,
        generator=generator,
        held_out=held_out,
        progress=progress,
        watch=watch,
        first=first,
        checkpoint=checkpoint,
    )
    return _told_of(done, held_out, place)


def train_at(
    place: "Placement",
    module: nn.Module,
    inputs: Any,
    evidence: Form | Tensor,
    recipe: Recipe,
    *,
    generator: torch.Generator,
    held_out: tuple[Any, Form] | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
    first: Any = None,
    checkpoint: str | Path | None = None,
    win_back: bool = True,
) -> nn.Module:
    """Train a net in place, as `train` does, without a warning where it is worse than a constant.

    Parameters
    ----------
    place : Placement
    module, inputs, evidence, recipe, generator, held_out, progress, watch, first, checkpoint
        As in `train`.
    win_back : bool, default=True
        Whether classes that the net has given up are won back.
    """
    if isinstance(module, Ensemble):
        files = [
            None if checkpoint is None else f"{checkpoint}-{number}"
            for number in range(len(module.nets))
        ]
        one = partial(
            train_at,
            place,
            generator=generator,
            held_out=held_out,
            progress=progress,
            watch=watch,
            first=first,
            win_back=win_back,
        )
        done = [
            one(net, inputs, evidence, recipe, checkpoint=file)
            for net, file in zip(module.nets, files, strict=True)
        ]
        return Ensemble(done, module.sizes).eval()
    require_generator(generator)
    if recipe.patience is not None and held_out is None:
        raise InvalidInput(
            f"Expected held-out rows with patience={recipe.patience}, got none. Pass held_out=, or"
            " leave out patience."
        )
    if checkpoint is not None and place.world > 1:
        raise InvalidInput(
            f"Expected one process with checkpoint=, got {place.world}, each with a state of its"
            " own. Leave it out."
        )
    inputs = _paired(inputs, evidence)
    # processes that drew their own labels would have paid for two draws, and learn from a mixture
    place.require_same(evidence)
    _tell_of_no_step(len(inputs), recipe)
    if first is not None and recipe.consistency is None:
        raise InvalidInput(
            "Expected a recipe with consistency for first predictions, got one without. Leave first"
            " out."
        )
    training = _Training(module, inputs, evidence, recipe, place, generator, first, win_back)
    if held_out is not None:
        if isinstance(held_out[1], Form) and held_out[1].tensors[0].device.type == "cpu":
            require_log_likelihood(held_out[1])
        held_out = (training.placed(_paired(*held_out)), held_out[1].to(place.device))
    best = None if recipe.patience is None else _Best(recipe.patience)
    kept = _Checkpoint(checkpoint, training, best)
    model = training.model
    for number in range(kept.restored() + 1, recipe.epochs + 1):
        loss = training.epoch(number)
        # before the net is scored, saved or shown: each process has its own batch statistics
        place.unite(model)
        training.look_for_lost_classes()
        if watch is not None:
            watch(number, model)
        wanted = progress is not None or best is not None  # a score costs predictions
        score = _score(model, *held_out, place) if wanted and held_out is not None else None
        ended = (best is not None and best.is_enough(score, model)) or number == recipe.epochs
        with kept.after(number, ended):
            if progress is not None:
                progress(Epoch(number, loss, score, recipe.epochs))
        if ended:
            break
    training.tell()
    if best is not None:
        model.load_state_dict(best.weights)
    return model.eval()


@torch.no_grad()
def predict(
    module: nn.Module,
    inputs: Any,
    *,
    batch_size: int = 1024,
    precision: Precision = "auto",
    fabric: Any = None,
) -> Tensor:
    """Compute the logits of all rows.

    Parameters
    ----------
    module : nn.Module
        In evaluation mode during the call.
    inputs : (n, ...) tensor or array on any device, Inputs, or anything that `as_inputs` takes
    batch_size : int, default=1024
    precision : {"auto", "float32", "bf16"}, default="auto"
    fabric : lightning.fabric.Fabric, optional
        Its precision is used instead. Each process predicts all rows.

    Returns
    -------
    (n, K) float32 tensor on the module's device.
    """
    size = _validate.integer(batch_size=batch_size, low=1)
    _validate.one_of(_PRECISIONS, precision=precision)
    inputs = as_inputs(inputs, watch=False)
    if not len(inputs):
        raise InvalidInput(
            "Expected inputs of at least one row, got none. Give the rows to predict."
        )
    place = Placement(next(module.parameters()).device, precision, fabric)
    every = torch.arange(len(inputs)).split(size)
    return torch.cat(list(_logits(module, inputs, every, place)))


class _Training:
    """A net, its optimizer and its training rows, on their device.

    Attributes
    ----------
    model : nn.Module
        The result: the averaged net if the recipe asks for one, else the given net.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Inputs,
        evidence: Form | Tensor,
        recipe: Recipe,
        place: "Placement",
        generator: torch.Generator,
        first: Any = None,
        win_back: bool = True,
    ) -> None:
        # Convolutions are faster with channels last in memory, if net and images agree.
        self._layout = torch.channels_last if inputs.ndim == 4 else torch.preserve_format
        # torch's own annotations lack the second
        into: dict[str, Any] = {"device": place.device, "memory_format": self._layout}
        module.to(**into)
        self._module, self._recipe, self._place = module, recipe, place
        self._optimizer = recipe.steps.of(module, recipe.rate)
        self._net, self._steps = place.setup(module, self._optimizer)
        self._dtype = next(module.parameters()).dtype  # which Fabric may have changed
        decay = (
            0.999 if recipe.average is None and recipe.consistency is not None else recipe.average
        )
        # An average of the given net and not of Fabric's wrapper, whose weights have other names.
        self._average = None if decay is None else weight_average(module, decay)
        self.model: nn.Module = module if self._average is None else self._average.module
        self._order, self._draws = place.generators(generator)
        self._inputs, self._evidence = self.placed(inputs), evidence.to(place.device)
        self._passed = 0.0  # epochs so far
        self._targets = (
            None if recipe.consistency is None else self._first_targets(recipe.consistency, first)
        )
        likely = plain(recipe.loss) in (likelihood_loss, posterior_loss) and isinstance(
            evidence, Form
        )
        if likely and isinstance(evidence, Form) and evidence.tensors[0].device.type == "cpu":
            require_log_likelihood(evidence)  # here, for a GPU: no loss looks there
        # not against the targets of consistency, which would bring the class back down, and others
        # with it
        self._wins_back = (
            win_back
            and likely
            and not isinstance(evidence, Combined)
            and recipe.consistency is None
        )
        self._seen: Tensor | None = None  # sum of the probabilities of each class late in the epoch
        # classes that the net has given up, with the shares that the evidence gives them
        self._lost: dict[int, float] = {}

    @torch.no_grad()
    def _first_targets(self, settings: Consistency, first: Any) -> Targets:
        """Make the targets before the first step: class frequencies, `first`, the neighbours' votes
        by the net's features, or both."""
        require_one_process((self._recipe,), self._place.world)
        if (
            isinstance(self._evidence, Tensor)
            and self._evidence.ndim == 2
            and self._evidence.is_floating_point()
        ):
            self._evidence = Dense(self._evidence)
        if not isinstance(self._evidence, Form):
            raise InvalidInput(
                "Expected evidence with consistency, got labels. Pass evidence_of(noisy)."
            )
        found = Targets(settings, self._evidence, self._outputs(), first)
        if settings.neighbours:
            features = self._features(self._module)
            if len(features) > 1:  # one row, as a step on trial may have, has no neighbour
                found.vote(features, before=True)
        return found

    def _outputs(self) -> int:
        """How many outputs the net has."""
        return next(_logits(self._module, self._inputs, [torch.arange(1)], self._place)).shape[1]

    def _features(self, net: nn.Module) -> Tensor:
        """What the last linear layer of a net reads of all rows."""
        with torch.no_grad(), _reads_of_last_layer(net) as features:
            for _ in _logits(
                net, self._inputs, torch.arange(len(self._inputs)).split(1024), self._place
            ):
                pass
        if not features:
            raise _no_features(net)
        return torch.cat(features)

    @property
    def epochs(self) -> int:
        """Number of epochs of the recipe."""
        return self._recipe.epochs

    def facts(self) -> dict[str, object]:
        """What another training would have other values of: inputs, evidence, the generator's
        state, and the recipe's numbers and words."""
        named = vars(self._recipe) | {"win_back": self._wins_back}
        for part in ("optimizer", "consistency"):
            inner = {} if named[part] is None else vars(named[part])
            named |= {f"{part}.{name}": value for name, value in inner.items()}
        settings: dict[str, object] = {
            name: value
            for name, value in named.items()
            if isinstance(value, int | float | str | None)
        }
        # a net may take NaN
        settings["inputs"] = inputs_name(
            self._inputs, lambda: inputs_digest(self._inputs, finite=False)
        )
        return settings | {
            "evidence": _digest(self._evidence).hex(),
            "generator": _digest(self._draws.get_state()).hex(),
        }

    def state(self) -> dict[str, Any]:
        """Everything that the next epoch follows from, besides inputs and evidence."""
        found = {
            "net": self._module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "draws": self._draws.get_state(),
        }
        found |= {"global": torch.get_rng_state()}
        if self._average is not None:
            found["average"] = self._average.state_dict()
        return (
            found
            | {"lost": self._lost}
            | ({} if self._targets is None else {"targets": self._targets.state()})
        )

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._module.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._draws.set_state(state["draws"].cpu())
        torch.set_rng_state(state["global"].cpu())
        if self._average is not None:
            self._average.load_state_dict(state["average"])
        if self._targets is not None:
            self._targets.restore(state["targets"])
        self._lost = state["lost"]

    def tell(self) -> None:
        """Warn of classes that no target was of, and of those that were lost and are won back in
        part."""
        if self._targets is not None:
            self._targets.tell()
        if codes := sorted(self._spoken_for(5.0, list(self._lost))) if self._lost else []:
            warnings.warn(
                f"The net had given up class {', '.join(map(str, codes))} (by code), and has won it"
                " back in part: the noisy labels speak for more of it. Train for more epochs, at a"
                " lower rate, or from other first weights.",
                LostClassWarning,
                stacklevel=4,
            )

    def placed(self, inputs: Inputs) -> Inputs:
        """Move inputs to the device if they fit, in the net's memory format."""
        return inputs.on(self._place.device, self._layout)

    def epoch(self, number: int) -> float:
        """Make one pass over all rows; return the mean loss. The first epoch is 1."""
        recipe, place, n = self._recipe, self._place, len(self._inputs)
        if self._targets is not None and recipe.consistency is not None:
            if recipe.consistency.votes_in(number) and n > 1:
                self._targets.vote(self._features(self.model))
            self._targets.begin_epoch()
        self._module.train()
        self._seen = None
        # All batches of the epoch are chosen before the first is read, so that a Dataset's workers
        # can read ahead.
        batches = _batches(n, recipe.rows_of_batch(n), self._order)
        shares = [share(rows, place.rank, place.world) for rows in batches]
        factors = [
            recipe.schedule((number - 1 + step / len(batches)) / recipe.epochs)
            for step in range(len(batches))
        ]
        # summed on the device: reading each loss would wait for the GPU
        total = torch.zeros((), device=place.device)
        read = self._inputs.batches([rows for rows, _ in shares])
        for step, (batch, (rows, weight), factor, x) in enumerate(
            zip(batches, shares, factors, read, strict=True)
        ):
            self._passed = number - 1 + step / len(batches)
            for group in self._optimizer.param_groups:
                # a checkpoint cannot be read with numbers of NumPy in it
                group["lr"] = float(recipe.rate * factor)
            loss = self._loss(rows, x, late=step >= int((1 - _LATE) * len(batches)))
            if weight != 1.0:  # distributed, and the processes' shares of this batch differ in size
                # Fabric averages gradients over processes; the weight makes this the mean over the
                # rows.
                loss = loss * weight
            self._optimizer.zero_grad(set_to_none=True)
            place.backward(loss)
            if recipe.steps.clip < math.inf:
                place.clip(self._net, self._steps, recipe.steps.clip)
            self._steps.step()
            if self._average is not None:
                self._average.update_parameters(self._module)
            total += loss.detach() * (len(batch) / n)
        mean = float(place.total(total)) / place.world
        # checked once per epoch, since a check of each loss would wait for the GPU
        if not math.isfinite(mean):
            raise InvalidInput(
                f"Expected a finite loss, got {mean} in epoch {number}. Lower the rate, clip"
                " gradients, or check the inputs."
            )
        return mean

    @torch.no_grad()
    def look_for_lost_classes(self) -> None:
        """Find the classes that the net has given up in the last epoch, beside those that are not
        won back yet."""
        if self._seen is None:
            return
        heads = [each / each.sum() for each in self._heads(self._place.total(self._seen)[None])]
        means = torch.cat(heads, dim=1)[0].tolist()
        self._lost = {
            code: share for code, share in self._lost.items() if means[code] < _ENOUGH * share
        }
        if any(bool((each < RARELY / each.shape[1]).any()) for each in heads):
            self._lost |= self._spoken_for(_DOUBT)

    @torch.no_grad()
    def _spoken_for(self, errors: float, back: Sequence[int] | None = None) -> dict[int, float]:
        """Find the classes of which the evidence wants more, with their shares: of those hardly
        predicted, or of these that are again."""
        found: dict[int, float] = {}
        assert isinstance(self._evidence, Form)
        rows = torch.from_numpy(spread(len(self._inputs), self._outputs(), _ENOUGH_ROWS))
        logits = torch.cat(list(_logits(self._module, self._inputs, rows.split(1024), self._place)))
        tables = self._heads(self._evidence[rows.to(self._place.device)].expand(logits.shape[1]))
        first = 0  # code of the head's first class
        for table, head in zip(tables, self._heads(logits), strict=True):
            likelihood, proba = (
                torch.softmax(each, dim=1).double().cpu().numpy() for each in (table, head)
            )
            asked = (
                rarely(proba)
                if back is None
                else np.isin(first + np.arange(head.shape[1]), back) & ~rarely(proba)
            )
            found |= {
                first + code: share
                for code, share in lost_codes(likelihood, proba, asked, errors).items()
            }
            first += head.shape[1]
        return found

    def _heads(self, values: Tensor) -> Sequence[Tensor]:
        """Split what has a column for each output into those of each label column."""
        return (
            values.split(self._evidence.sizes, dim=1)
            if isinstance(self._evidence, Heads)
            else (values,)
        )

    def _won_back(self, logits: Tensor) -> Tensor:
        """Compute the cross-entropy between the shares of lost classes and their mean
        probabilities."""
        codes, shares = (
            list(self._lost),
            torch.tensor(list(self._lost.values()), device=logits.device),
        )
        logs = torch.cat(
            [torch.log_softmax(head.float(), dim=1) for head in self._heads(logits)], dim=1
        )
        means = logs[:, codes].logsumexp(dim=0) - math.log(len(logits))
        return -(shares * means + (1 - shares) * torch.log1p(-means.exp().clamp(max=0.999))).sum()

    def _loss(self, rows: Tensor, x: Tensor, late: bool) -> Tensor:
        """Compute the mean loss of some rows, whose inputs are x."""
        if len(x) != len(rows):
            raise InvalidInput(
                f"Expected the {len(rows)} inputs that were asked for, got {len(x)}. Correct"
                " Inputs.batches."
            )
        recipe, rows = self._recipe, rows.to(self._place.device)
        x = _ready(x, self._place.device, self._layout, self._dtype)
        if recipe.augment is not None:
            x = recipe.augment(x, self._draws)
        targets, weight = None, 0.0
        if recipe.consistency is not None:
            weight = recipe.consistency.weight_at(self._passed)
            targets = self._learned_targets(rows, x)
            x = recipe.consistency.views(x, self._draws)
        mixed = mixup(x, self._draws, alpha=recipe.alpha) if recipe.alpha else None
        with self._place.autocast():  # the net alone, since the losses need float32
            logits = self._net(x if mixed is None else mixed[0])

        def mean(loss: Callable[..., Tensor], given: Any) -> Tensor:
            return (
                loss(logits, given)
                if mixed is None
                else mixup_loss(loss, logits, given, given[mixed[1]], mixed[2])
            )

        if late and self._wins_back:
            part = torch.cat(
                [torch.softmax(head.detach().float(), dim=1) for head in self._heads(logits)], dim=1
            ).sum(dim=0)
            self._seen = part if self._seen is None else self._seen + part
        found = mean(recipe.loss, self._evidence[rows])
        if self._lost:
            found = found + self._won_back(logits)
        # debiased_loss(logits, w) is -sum(w ln p): cross-entropy to the targets, with all weights 0
        # for rows without a target.
        return (
            found
            if targets is None or not weight
            else found + weight * mean(debiased_loss, targets)
        )

    @torch.no_grad()
    def _learned_targets(self, rows: Tensor, x: Tensor) -> Tensor:
        """Update the rows' targets by the averaged net's predictions for their inputs, and return
        them: (m, K)."""
        assert self._targets is not None
        with self._place.autocast():
            logits = self.model(x)
        self._targets.learn(rows, torch.softmax(logits.float(), dim=1))
        return self._targets.of(rows)


@dataclass
class _Best:
    """The weights of the epoch with the largest held-out score so far."""

    patience: int
    score: float = -math.inf
    weights: dict[str, Tensor] = field(default_factory=dict)
    waited: int = 0

    def is_enough(self, score: float | None, model: nn.Module) -> bool:
        """Keep the net if it is the best so far; return whether no larger score has come for
        `patience` epochs."""
        if not self.weights or (score is not None and score > self.score):
            self.score, self.waited = (-math.inf if score is None else score), 0
            # Copies, since the next step changes the weights in place.
            self.weights = {
                name: values.detach().clone() for name, values in model.state_dict().items()
            }
        else:
            self.waited += 1
        return self.waited >= self.patience


class _Checkpoint:
    """The file from which a training goes on: its state after an epoch. Without a path nothing is
    kept."""

    def __init__(self, path: str | Path | None, training: _Training, best: _Best | None) -> None:
        self._path = None if path is None else Path(path_text(path))
        self._training, self._best, self._written = training, best, time.monotonic()
        if path is not None:
            self._facts = training.facts()

    @contextmanager
    def after(self, number: int, ended: bool) -> Iterator[None]:
        """Keep the state after an epoch, if the last write is long ago or the block raises an
        error."""
        if ended or time.monotonic() - self._written > _SAVED_EVERY:
            self._save(number, ended)
        try:
            yield
        except BaseException:
            self._save(number, ended)
            raise

    def _save(self, number: int, ended: bool) -> None:
        if self._path is None:
            return
        best = {} if self._best is None else vars(self._best)
        buffer = io.BytesIO()
        torch.save(
            {
                "facts": self._facts,
                "number": number,
                "ended": ended,
                "best": best,
                "state": self._training.state(),
            },
            buffer,
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(
            self._path.with_name(f".{self._path.name}.part"), self._path, buffer.getvalue()
        )
        self._written = time.monotonic()

    def restored(self) -> int:
        """Go on from the file, if there is one; return how many epochs are done, all of them if the
        training is over."""
        if self._path is None or not self._path.exists():
            return 0
        advice = "Delete it to begin anew, or name another file."
        try:
            found = torch.load(self._path, map_location="cpu", weights_only=True)
            kept, number, ended, best, state = (
                found[name] for name in ("facts", "number", "ended", "best", "state")
            )
        except Exception as error:  # of torch's, zip's and pickle's many
            raise InvalidInput(
                f"Expected a checkpoint of train in {self._path}, got what is none"
                f" ({type(error).__name__}). {advice}"
            ) from None
        if changed := list(_validate.differences(kept, self._facts)):
            raise InvalidInput(
                f"Expected the checkpoint of this training in {self._path}, got another's:"
                f" {_validate.told(changed)}. {advice}"
            )
        try:
            self._training.restore(state)
        # torch's message has lines of names and shapes
        except (RuntimeError, ValueError, KeyError) as error:
            raise InvalidInput(
                f"Expected a checkpoint of this net in {self._path}, got another net's"
                f" ({type(error).__name__}). {advice}"
            ) from None
        if self._best is not None:
            vars(self._best).update(best)
        return self._training.epochs if ended else int(number)


@torch.no_grad()
def _score(model: nn.Module, inputs: Inputs, evidence: Form, place: "Placement") -> float:
    """Compute the mean log-evidence of held-out rows; each process predicts its part of them."""
    total = torch.zeros((), device=place.device)
    mine = torch.arange(len(inputs)).tensor_split(place.world)[place.rank].split(1024)
    for rows, logits in zip(mine, _logits(model, inputs, mine, place), strict=True):
        total -= likelihood_loss(logits, evidence[rows.to(place.device)], "sum")
    return float(place.total(total)) / len(inputs)


@torch.no_grad()
def _told_of(net: nn.Module, held_out: tuple[Any, Form] | None, place: "Placement") -> nn.Module:
    """Return the net; warn if held-out rows are likelier under a constant. Of many, some are looked
    at."""
    if (
        held_out is None
        or place.rank
        or isinstance(held_out[1], Combined | Tensor)
        or len(held_out[1]) < 2 * LEAST_ROWS
    ):
        return net
    inputs, form = as_inputs(held_out[0], watch=False), held_out[1]
    k = next(_logits(net, inputs, [torch.arange(1)], place)).shape[1]
    some = torch.from_numpy(spread(len(inputs), k, _ENOUGH_ROWS))
    choosing, judging = (
        form[rows.to(form.tensors[0].device)].to(place.device) for rows in (some[::2], some[1::2])
    )
    heads = (
        zip(choosing.parts, choosing.sizes, strict=True)
        if isinstance(choosing, Heads)
        else [(choosing, k)]
    )
    constant = (
        torch.cat([frequencies_of(part, size) for part, size in heads]).log().to(place.device)
    )
    logits = torch.cat(list(_logits(net, inputs, some[1::2].split(1024), place)))
    own, others = (
        likelihood_loss(each, judging, "none", check=False).double()
        for each in (logits, constant.expand_as(logits))
    )
    more, error = float((own - others).mean()), float((own - others).std()) / math.sqrt(len(own))
    if more > quantile(0.95) * error:
        warn(
            MisfitWarning(
                f"The net is worse than a constant, the class frequencies: on {len(own)} held-out"
                f" noisy rows its mean log-evidence is smaller by {more:.3g}, standard error"
                f" {error:.2g}. {LEARNED_NOISE}"
            )
        )
    return net


def _logits(
    module: nn.Module, inputs: Inputs, batches: Sequence[Tensor], place: "Placement"
) -> Iterator[Tensor]:
    """Yield logits batch by batch, in evaluation mode; the net's mode is restored, as between two
    epochs."""
    was_training, dtype = module.training, next(module.parameters()).dtype
    module.eval()
    try:
        for x in inputs.batches([rows for rows in batches if len(rows)]):
            with place.autocast():
                logits = module(_ready(x, place.device, torch.preserve_format, dtype))
            if not isinstance(logits, Tensor):
                raise InvalidInput(
                    "Expected a net that returns a tensor of logits (n, K), got"
                    f" {type(logits).__name__}. Wrap it in a module that takes the logits out, as"
                    " in return self.net(x).logits."
                )
            yield logits.float()
    finally:
        module.train(was_training)


@contextmanager
def _reads_of_last_layer(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the inputs of the last linear layer during this context: the features of each
    batch."""
    found: list[Tensor] = []
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise _no_features(module)
    hook = linear[-1].register_forward_pre_hook(
        lambda _, given: found.append(given[0].detach().float())
    )
    try:
        yield found
    finally:
        hook.remove()


def _no_features(module: nn.Module) -> InvalidInput:
    return InvalidInput(
        "Expected a net whose last linear layer is used, for neighbours, got"
        f" {type(module).__name__}. Leave neighbours out."
    )


def require_one_process(recipes: Sequence[Recipe], world: int) -> None:
    """Refuse consistency in many processes: each would know only the predictions for its own
    rows."""
    if world > 1 and any(recipe.consistency is not None for recipe in recipes):
        raise InvalidInput(
            f"Expected one process with consistency, got {world}: rows' targets are kept in one."
            " Start one."
        )


def _batches(n: int, size: int, generator: torch.Generator) -> Sequence[Tensor]:
    """Split all rows, in random order, into batches. A last one of one row joins the batch before,
    since batch normalisation needs two rows."""
    found: Sequence[Tensor] = torch.randperm(n, generator=generator).tensor_split(_ends(n, size))
    return found


def _ends(n: int, size: int) -> list[int]:
    """Return the ends of all batches but the last."""
    ends = list(range(size, n, size))
    return ends[:-1] if ends and n - ends[-1] == 1 else ends


def _tell_of_no_step(n: int, recipe: Recipe) -> None:
    """Warn of a training so short that the schedule is 0 at each step."""
    steps = recipe.epochs * (len(_ends(n, recipe.rows_of_batch(n))) + 1)
    if not any(recipe.schedule(step / steps) > 0 for step in range(steps)):
        warnings.warn(
            f"The net stays as it is: the schedule is 0 at {steps} of {steps} steps. Train for more"
            " epochs, or in smaller batches.",
            UntrainedWarning,
            stacklevel=4,
        )


def _ready(
    x: Tensor, device: torch.device, layout: torch.memory_format, dtype: torch.dtype
) -> Tensor:
    """Move inputs to the device: image bytes are scaled to [0, 1], floats get the net's type, and
    integers stay unchanged."""
    x = x.to(device, non_blocking=True, memory_format=layout)
    if x.dtype == torch.uint8 and x.ndim > 2:
        return x.to(dtype).div_(255)
    return x.to(dtype) if x.is_floating_point() else x


def require_generator(generator: object) -> None:
    if not isinstance(generator, torch.Generator):
        found = type(generator).__name__
        raise InvalidInput(
            f"Expected a torch.Generator, got {found}. Pass"
            " generator=torch.Generator().manual_seed(0)."
        )


def _paired(inputs: Any, evidence: Any) -> Inputs:
    """Make inputs of the user's value, and check that there is one for each row of evidence."""
    if not isinstance(evidence, Form | Tensor):
        raise InvalidInput(
            f"Expected evidence as a form or a tensor, got {type(evidence).__name__}. Pass"
            " evidence_of(noisy)."
        )
    found = as_inputs(inputs)
    if len(found) != len(evidence) or not len(found):
        raise InvalidInput(
            f"Expected evidence of every input and at least one, got {len(evidence)} for"
            f" {len(found)}. Index both alike."
        )
    return found


# Devices and processes
# --------------------------------------------------------------------------------------------------


class Placement:
    """Where a training runs: one process, one device and plain torch; or where a launched
    `lightning.fabric.Fabric` says: device, precision and distribution.

    Parameters
    ----------
    device : torch.device or str
    precision : {"auto", "float32", "bf16"}
        "auto": bf16 if the processor multiplies it natively.
    fabric : lightning.fabric.Fabric, optional
        Decides device and precision instead. Every process must hold the whole net: one device, or
        data-parallel ("ddp").

    Attributes
    ----------
    device : torch.device
    rank, world : int
        Number of this process, and of all processes.
    autocast : function that makes the context in which the net is called
    backward : function of a process's share of a loss, which computes its gradients
    """

    def __init__(
        self, device: torch.device | str, precision: Precision, fabric: Any = None
    ) -> None:
        self._fabric, self.rank, self.world = fabric, 0, 1
        self.autocast: Callable[[], AbstractContextManager[Any]]
        self.backward: Callable[[Tensor], None]
        if fabric is None:
            self.device, self.backward = torch.device(device), Tensor.backward
            bf16 = precision == "bf16" or (precision == "auto" and _has_bf16(self.device.type))
            self.autocast = (
                partial(torch.autocast, self.device.type, torch.bfloat16) if bf16 else nullcontext
            )
            return
        strategy = type(fabric.strategy).__name__
        if fabric.world_size > 1 and strategy != "DDPStrategy":
            raise InvalidInput(
                f"Expected processes that each hold the whole net, got {strategy}. Make it"
                " Fabric(strategy='ddp', ...)."
            )
        self.device, self.autocast, self.backward = fabric.device, fabric.autocast, fabric.backward
        self.rank, self.world = int(fabric.global_rank), int(fabric.world_size)

    def setup(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        """Return the net and the optimizer as the loop calls them."""
        if self._fabric is None:
            return module, optimizer
        net, steps = self._fabric.setup(module, optimizer)
        return net, steps

    def generators(self, generator: torch.Generator) -> tuple[torch.Generator, torch.Generator]:
        """Return two generators: for the order of rows, equal in all processes, and for
        augmentation, different in each."""
        if self.world == 1:
            return generator, generator
        # even if the processes passed different seeds
        generator.set_state(self._fabric.broadcast(generator.get_state(), src=0))
        # the seed is drawn from a copy, so that the order of rows stays that of one process
        own = torch.Generator()
        seed = int(torch.randint(0, 2**62, (1,), generator=own.set_state(generator.get_state())))
        return generator, own.manual_seed(seed + self.rank)

    def clip(self, module: nn.Module, optimizer: Any, norm: float) -> None:
        """Limit the norm of the whole batch's gradient."""
        if self._fabric is None:
            nn.utils.clip_grad_norm_(module.parameters(), norm)
        else:
            self._fabric.clip_gradients(module, optimizer, max_norm=norm, error_if_nonfinite=False)

    def total(self, value: Tensor) -> Tensor:
        """Return the sum over all processes, the same to the bit in each."""
        return value if self.world == 1 else self._fabric.all_reduce(value, reduce_op="sum")

    def unite(self, module: nn.Module) -> None:
        """Average over all processes the buffers that each has computed by itself, such as batch
        statistics."""
        for buffer in module.buffers() if self.world > 1 else ():
            if buffer.is_floating_point():
                buffer.copy_(self.total(buffer.clone()) / self.world)

    def require_same(self, evidence: Form | Tensor) -> None:
        """Refuse processes that learn from different outputs, or from the same ones in different
        orders."""
        if self.world == 1:
            return
        mine = torch.frombuffer(bytearray(_digest(evidence)), dtype=torch.uint8).to(self.device)
        every = self._fabric.all_gather(mine).reshape(self.world, -1)
        if not bool((every == mine).all()):  # every process finds the same, so all of them stop
            raise InvalidInput(
                "Expected the same evidence in every process, got different ones. Draw labels once,"
                " in one process, and give all the same saved NoisyLabels: two draws of a label"
                " would also cost twice."
            )


def device_of(name: Any) -> Any:
    """Return a device that torch can use on this machine; "auto" is the GPU if there is one.

    Parameters
    ----------
    name : str or torch.device

    Raises
    ------
    InvalidInput
        If torch does not know the device, or cannot put a number on it.
    """
    if isinstance(name, str) and name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        good = isinstance(name, str | torch.device) and float(torch.ones(1, device=name)) == 1
    # torch built without the device asserts
    except (RuntimeError, AssertionError, ValueError, NotImplementedError):
        good = False
    if not good:
        raise InvalidInput(
            f"Expected a device that torch can use here, got {str(name)!r}. Use cpu or auto"
            " (device=)."
        )
    return name


def share(rows: Tensor, rank: int, world: int) -> tuple[Tensor, float]:
    """Return a process's part of a batch and the weight of its mean loss, so that the mean over
    processes is the mean over the batch.

    Parameters
    ----------
    rows : (m,) tensor
    rank, world : int

    Returns
    -------
    part : tensor of rows
        At least two if the batch has two, since batch normalisation cannot use one.
    weight : float
        Number of these rows x world / m.
    """
    if world == 1:
        return rows, 1.0
    # A small batch makes fewer parts than processes. The others repeat the first part at weight 0:
    # a process that skipped the step would leave the rest waiting for its gradients.
    parts = rows.tensor_split(max(1, min(world, len(rows) // 2)))
    return (
        (parts[rank], len(parts[rank]) * world / len(rows))
        if rank < len(parts)
        else (parts[0], 0.0)
    )


def _has_bf16(kind: str) -> bool:
    """Return whether such a device multiplies bf16 natively."""
    if kind == "cuda":
        # Emulated bf16 is slower than float32.
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return kind == "cpu" and bool(
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )


def _digest(evidence: Form | Tensor) -> bytes:
    """Hash all evidence in its order; processes compare the hash instead of the evidence."""
    return fingerprint(evidence.tensors if isinstance(evidence, Form) else evidence)


# The first of many processes
# --------------------------------------------------------------------------------------------------

Result = TypeVar("Result")


def is_first() -> bool:
    """Return whether this process opens runs and writes files: the first one, or the only one."""
    return not distributed() or dist.get_rank() == 0


def from_first(make: Callable[[], Result]) -> Result:
    """Call a function in the first process alone, and return its result in every process.

    An error is raised in all processes, so that none waits in vain.

    Parameters
    ----------
    make : function without arguments
        Called in the first process only. Its result is sent to the others, so it must hold nothing
        secret.
    """
    if not distributed():
        return make()
    box: list[object] = [None, None]
    if is_first():
        try:
            box[0] = make()
        except LabelDPError as error:
            box[1] = error
        except Exception as error:
            # The other processes get only the type of a foreign error: its text may quote raw
            # labels, which only the first process may read.
            box[1] = LabelDPError(
                "Expected the first process to go on, but it has stopped with"
                f" {type(error).__name__}. See what it says."
            )
            dist.broadcast_object_list(box, src=0)
            raise
    dist.broadcast_object_list(box, src=0)
    if isinstance(box[1], LabelDPError):
        raise box[1]
    return cast(Result, box[0])


def distributed() -> bool:
    """Return whether several processes train together."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
