# SPDX-License-Identifier: Apache-2.0
"""A training loop on noisy labels, on one device or many. It sees evidence only: no true label can reach it."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from labeldp.deep._inputs import Inputs, as_inputs
from labeldp.deep._losses import Form, likelihood_loss, mixup_loss
from labeldp.deep._placement import FabricPlacement, Placement, Precision, share
from labeldp.deep._recipe import Recipe
from labeldp.deep.augment import mixup
from labeldp.deep.schedules import set_rate, weight_average
from labeldp.errors import InvalidInput, UntrainedWarning


@dataclass(frozen=True)
class Epoch:
    """What is known after an epoch, from noisy labels alone.

    Attributes
    ----------
    number : int
        From 1.
    loss : float
        Mean over the epoch's batches.
    held_out : float or None
        Mean log-evidence of held-out rows under the model, larger is better; None without such rows.
    epochs : int
        How many the recipe has; 0 where that is not known.
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
) -> nn.Module:
    """Train a net in place.

    Parameters
    ----------
    module : nn.Module
        Gives logits (m, K); moved to the device.
    inputs : (n, ...) tensor or array, or Inputs, or what `as_inputs` makes them of
        Kept on the device where they fit, read batch by batch where not. uint8 of three axes or more, the rows' included, is taken
        as images and scaled to 0..1 batch by batch, so that they take a byte a pixel; floats are turned into the net's type; other numbers
        reach the net as they are.
    evidence : Form of n rows, or (n,) int64 tensor of noisy labels
        What the recipe's loss is given. Row i belongs to input i.
    recipe : Recipe
    generator : torch.Generator
        On the CPU: order of the rows, augmentation, mixup.
    device : torch.device or str
    held_out : (inputs, Form), optional
        Rows that are scored after each epoch and never learned from; a recipe with patience stops by them.
    progress : function of an Epoch, optional
        Called after each epoch, in every process with the same figures; may raise to stop. `logs.combine` makes one function of several.
    watch : function of an epoch's number and the net, optional
        Called after each epoch, before `progress`, with the averaged net where there is one: to predict with or to save, not to change.
    fabric : lightning.fabric.Fabric, optional
        Launched; decides device, precision and distribution. Each process calls `train` with the same arguments and learns from its share
        of every batch; batches are those of one process, in the order of the first process's generator.

    Returns
    -------
    nn.Module in evaluation mode: the averaged net if the recipe asks for one, else `module`; of the best epoch if it has patience. The same
    in every process.

    Raises
    ------
    InvalidInput
        If inputs and evidence differ in length, evidence differs between processes, a loss is not finite, or patience has no held-out rows.
    """
    require_generator(generator)
    _require_evidence(evidence, held_out, recipe)
    place = Placement(device, recipe.precision) if fabric is None else FabricPlacement(fabric)
    inputs = as_inputs(inputs)
    _require_pairs(inputs, evidence)
    place.require_same(evidence)
    layout = _layout(inputs, recipe)
    into: dict[str, Any] = {"device": place.device, "memory_format": layout}  # torch's own annotations lack the second
    module.to(**into)
    _tell_of_no_step(len(inputs), recipe)
    optimizer = _optimizer(module, recipe)
    net, steps = place.setup(module, optimizer)
    average = None if recipe.average is None else weight_average(module, recipe.average)
    order, draws = place.generators(generator)
    run = _Run(net, inputs.on(place.device, layout), evidence.to(place.device), recipe, place, optimizer, steps, draws, layout)
    if held_out is not None:
        _require_pairs(scored := as_inputs(held_out[0]), held_out[1])
        held_out = (scored.on(place.device, layout), held_out[1].to(place.device))
    best = None if recipe.patience is None else _Best(recipe.patience)
    for number in range(recipe.epochs):
        module.train()
        loss = run.epoch(number, order, average, module)
        model = module if average is None else average.module
        place.unite(model)
        if watch is not None:
            watch(number + 1, model)
        score = _report(number + 1, loss, model, held_out, recipe, place, progress)
        if best is not None and best.is_enough(score, model):
            break
    if best is not None:
        model.load_state_dict(best.weights)
    return model.eval()


@torch.no_grad()
def predict(module: nn.Module, inputs: Any, *, batch_size: int = 1024, precision: Precision = "auto", fabric: Any = None) -> Tensor:
    """Logits of all rows.

    Parameters
    ----------
    module : nn.Module
        Put into evaluation mode for the call.
    inputs : (n, ...) tensor or array on any device, or Inputs, or what `as_inputs` makes them of
    batch_size : int
    precision : {"auto", "float32", "bf16"}
    fabric : lightning.fabric.Fabric, optional
        Its precision counts instead. Each process predicts all rows.

    Returns
    -------
    (n, K) float32 tensor on the module's device.
    """
    inputs = as_inputs(inputs, watch=False)
    if not len(inputs):
        raise InvalidInput("Expected inputs of at least one row, got none. Give the rows to predict.")
    place = Placement(next(module.parameters()).device, precision) if fabric is None else FabricPlacement(fabric)
    every = torch.arange(len(inputs)).split(batch_size)
    return torch.cat(list(_logits(module, inputs, every, place)))


def _optimizer(module: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(module.parameters(), recipe.rate, (recipe.momentum, 0.999), weight_decay=recipe.weight_decay)
    return torch.optim.SGD(
        module.parameters(), recipe.rate, recipe.momentum, weight_decay=recipe.weight_decay, nesterov=recipe.momentum > 0
    )


@dataclass(frozen=True, eq=False)
class _Run:
    """What stays the same from epoch to epoch."""

    net: nn.Module
    inputs: Inputs
    evidence: Form | Tensor
    recipe: Recipe
    place: Placement
    optimizer: torch.optim.Optimizer
    steps: Any
    draws: torch.Generator
    layout: torch.memory_format

    def epoch(self, number: int, order: torch.Generator, average: AveragedModel | None, module: nn.Module) -> float:
        """One pass over all rows; the mean loss."""
        batches = list(_batches(len(self.inputs), self.recipe.rows_of_batch(len(self.inputs)), order))
        shares = [share(rows, self.place.rank, self.place.world) for rows in batches]
        total = torch.zeros((), device=self.place.device)
        found = zip(batches, shares, self.inputs.batches([rows for rows, _ in shares]), strict=True)
        for step, (batch, (rows, weight), x) in enumerate(found):
            set_rate(self.optimizer, self.recipe.schedule, (number + step / len(batches)) / self.recipe.epochs)
            loss = self.loss(rows, x)
            if weight != 1.0:
                loss = loss * weight
            self.step(loss)
            if average is not None:
                average.update_parameters(module)
            total += loss.detach() * (len(batch) / len(self.inputs))
        return float(self.place.total(total)) / self.place.world

    def loss(self, rows: Tensor, x: Tensor) -> Tensor:
        """Mean loss of some rows."""
        if len(x) != len(rows):
            raise InvalidInput(f"Expected the {len(rows)} inputs that were asked for, got {len(x)}. Correct Inputs.batches.")
        recipe, target = self.recipe, self.evidence[rows.to(self.place.device)]
        x = _ready(x, self.place.device, self.layout, self.dtype)
        if recipe.augment is not None:
            x = recipe.augment(x, self.draws)
        if not recipe.alpha:
            with self.place.autocast():
                logits = self.net(x)
            return recipe.loss(logits, target)
        mixed = mixup(x, self.draws, alpha=recipe.alpha)
        with self.place.autocast():
            logits = self.net(mixed.inputs)
        return mixup_loss(recipe.loss, logits, target, target[mixed.partner], mixed.lam)

    def step(self, loss: Tensor) -> None:
        """Gradients, and one step along them."""
        self.optimizer.zero_grad(set_to_none=True)
        self.place.backward(loss)
        if self.recipe.clip < math.inf:
            self.place.clip(self.net, self.steps, self.recipe.clip)
        self.steps.step()

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        found: torch.dtype = self.optimizer.param_groups[0]["params"][0].dtype
        return found


def _report(
    number: int,
    loss: float,
    model: nn.Module,
    held_out: tuple[Inputs, Form] | None,
    recipe: Recipe,
    place: Placement,
    progress: Progress | None,
) -> float | None:
    """Tell of an epoch; its held-out score, where somebody asks for it."""
    if not math.isfinite(loss):  # on a GPU the losses themselves are not looked at, so that nothing waits for it
        raise InvalidInput(f"Expected a finite loss, got {loss} in epoch {number}. Lower the rate, clip gradients, or check the inputs.")
    asked = progress is not None or recipe.patience is not None
    score = _score(model, *held_out, place) if asked and held_out is not None else None
    if progress is not None:
        progress(Epoch(number, loss, score, recipe.epochs))
    return score


@dataclass
class _Best:
    """The weights of the epoch with the largest held-out score so far."""

    patience: int
    score: float = -math.inf
    weights: dict[str, Tensor] = field(default_factory=dict)
    waited: int = 0

    def is_enough(self, score: float | None, model: nn.Module) -> bool:
        """Whether no larger score has come for long enough."""
        if not self.weights or (score is not None and score > self.score):
            self.score, self.waited = (-math.inf if score is None else score), 0
            self.weights = {name: values.detach().clone() for name, values in model.state_dict().items()}
        else:
            self.waited += 1
        return self.waited >= self.patience


@torch.no_grad()
def _score(model: nn.Module, inputs: Inputs, evidence: Form, place: Placement) -> float:
    """Mean log-evidence; each process reads its part of the rows."""
    total = torch.zeros((), device=place.device)
    mine = torch.arange(len(inputs)).tensor_split(place.world)[place.rank].split(1024)
    for rows, logits in zip(mine, _logits(model, inputs, mine, place), strict=True):
        total -= likelihood_loss(logits, evidence[rows.to(place.device)], "sum")
    return float(place.total(total)) / len(inputs)


def _logits(module: nn.Module, inputs: Inputs, batches: Sequence[Tensor], place: Placement) -> Iterator[Tensor]:
    """Batch by batch, in evaluation mode."""
    was_training, dtype = module.training, next(module.parameters()).dtype
    module.eval()
    try:
        for x in inputs.batches([rows for rows in batches if len(rows)]):
            with place.autocast():
                logits = module(_ready(x, place.device, torch.preserve_format, dtype))
            if not isinstance(logits, Tensor):
                raise InvalidInput(
                    f"Expected a net that returns a tensor of logits (n, K), got {type(logits).__name__}. Wrap it in a module that takes "
                    "the logits out, as in return self.net(x).logits."
                )
            yield logits.float()
    finally:
        module.train(was_training)


def _batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """All rows once in a random order; a last single row, of which batch normalisation knows no variance, joins the batch before it."""
    yield from torch.randperm(n, generator=generator).tensor_split(_ends(n, size))


def _ends(n: int, size: int) -> list[int]:
    """Where batches end but for the last one."""
    ends = list(range(size, n, size))
    return ends[:-1] if ends and n - ends[-1] == 1 else ends


def _tell_of_no_step(n: int, recipe: Recipe) -> None:
    """Warn of trainings so short that the schedule is 0 at each step."""
    steps = recipe.epochs * (len(_ends(n, recipe.rows_of_batch(n))) + 1)
    if not any(recipe.schedule(step / steps) > 0 for step in range(steps)):
        warnings.warn(
            f"The net stays as it is: the schedule is 0 at {steps} of {steps} steps. Train for more epochs, or in smaller batches.",
            UntrainedWarning,
            stacklevel=3,
        )


def _ready(x: Tensor, device: torch.device, layout: torch.memory_format, dtype: torch.dtype) -> Tensor:
    """On the device, images of bytes scaled to 0..1, floats of the net's type, other numbers, such as codes, as they are."""
    x = x.to(device, non_blocking=True, memory_format=layout)
    if x.dtype == torch.uint8 and x.ndim > 2:
        return x.to(dtype).div_(255)
    return x.to(dtype) if x.is_floating_point() else x


def _layout(inputs: Inputs, recipe: Recipe) -> torch.memory_format:
    return torch.channels_last if recipe.channels_last and inputs.ndim == 4 else torch.preserve_format


def require_generator(generator: object) -> None:
    """A torch.Generator."""
    if not isinstance(generator, torch.Generator):
        found = type(generator).__name__
        raise InvalidInput(f"Expected a torch.Generator, got {found}. Pass generator=torch.Generator().manual_seed(0).")


def _require_evidence(evidence: Any, held_out: tuple[Any, Any] | None, recipe: Recipe) -> None:
    for given in (evidence,) if held_out is None else (evidence, held_out[1]):
        if not isinstance(given, Form | Tensor):
            raise InvalidInput(f"Expected evidence as a form or a tensor, got {type(given).__name__}. Pass evidence_of(noisy).")
    if recipe.patience is not None and held_out is None:
        raise InvalidInput(f"Expected held-out rows with patience={recipe.patience}, got none. Pass held_out=, or leave out patience.")


def _require_pairs(inputs: Inputs, evidence: Form | Tensor) -> None:
    if len(inputs) != len(evidence) or not len(inputs):
        raise InvalidInput(f"Expected evidence of every input and at least one, got {len(evidence)} for {len(inputs)}. Index both alike.")
