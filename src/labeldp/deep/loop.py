# SPDX-License-Identifier: Apache-2.0
"""A plain training loop on noisy labels, with the data on the device. It sees evidence only: no true label can reach it."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from labeldp import _validate
from labeldp.deep.augment import Augmentation, mixup
from labeldp.deep.average import WeightAverage
from labeldp.deep.forms import Form
from labeldp.deep.losses import likelihood_loss, mixup_loss
from labeldp.deep.schedules import Schedule, cosine, set_rate
from labeldp.errors import InvalidInput

Precision = Literal["auto", "float32", "bf16"]


@dataclass(frozen=True)
class Recipe:
    """How a net is trained: public, and the same for every row.

    Attributes
    ----------
    epochs, batch_size : int
    rate, momentum, weight_decay : float
        Of SGD with Nesterov momentum; `rate` is the schedule's peak.
    schedule : function of progress in [0, 1]
    alpha : float
        Of mixup; 0 for none.
    augment : function (images, generator) -> images, optional
    loss : function (logits, evidence, reduction=...)
    clip : float
        Largest norm of the gradient; inf for none.
    average : float, optional
        Decay of an exponential moving average of the weights, which is then the model that is scored and returned.
    precision : {"auto", "float32", "bf16"}
        "auto": bf16 autocast where the processor multiplies it natively.
    channels_last : bool
        Memory format of images and nets.
    """

    epochs: int = 10
    batch_size: int = 256
    rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Schedule = field(default_factory=cosine)
    alpha: float = 0.0
    augment: Augmentation | None = None
    loss: Callable[..., Tensor] = likelihood_loss
    clip: float = math.inf
    average: float | None = None
    precision: Precision = "auto"
    channels_last: bool = True

    def __post_init__(self) -> None:
        _validate.integer(epochs=self.epochs, low=1)
        _validate.integer(batch_size=self.batch_size, low=1)
        _validate.positive(rate=self.rate)
        _validate.one_of(("auto", "float32", "bf16"), precision=self.precision)
        if not self.clip > 0:
            raise InvalidInput(f"Expected clip > 0, got {self.clip!r}. Pass math.inf for no clipping.")


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
    """

    number: int
    loss: float
    held_out: float | None


def train(
    module: nn.Module,
    inputs: Tensor,
    evidence: Form,
    recipe: Recipe,
    *,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
    held_out: tuple[Tensor, Form] | None = None,
    progress: Callable[[Epoch], object] | None = None,
) -> nn.Module:
    """Train a net in place.

    Parameters
    ----------
    module : nn.Module
        Gives logits (m, K); moved to the device.
    inputs : (n, ...) tensor
        Kept on the device whole; uint8 is scaled to 0..1 batch by batch, so that images take a byte a pixel.
    evidence : Form of n rows
        What the recipe's loss is given.
    recipe : Recipe
    generator : torch.Generator
        On the CPU: order of the rows, augmentation, mixup.
    device : torch.device or str
    held_out : (inputs, Form), optional
        Rows that are scored after each epoch and never learned from.
    progress : function of an Epoch, optional
        Called after each epoch; may raise to stop.

    Returns
    -------
    nn.Module in evaluation mode: the averaged net if the recipe asks for one, else `module`.

    Raises
    ------
    InvalidInput
        If inputs and evidence differ in length, or a loss is not finite.
    """
    if len(inputs) != len(evidence) or not len(inputs):
        raise InvalidInput(f"Expected evidence of every input and at least one, got {len(evidence)} for {len(inputs)}. Index both alike.")
    layout = torch.channels_last if recipe.channels_last and inputs.ndim == 4 else torch.preserve_format
    place: dict[str, Any] = {"device": device, "memory_format": layout}  # torch's own annotations lack the second
    module.to(**place)
    inputs, evidence = inputs.to(device, memory_format=layout), evidence.to(device)
    optimizer = torch.optim.SGD(
        module.parameters(), recipe.rate, recipe.momentum, weight_decay=recipe.weight_decay, nesterov=recipe.momentum > 0
    )
    average = None if recipe.average is None else WeightAverage(module, recipe.average)
    per_epoch = -(-len(inputs) // recipe.batch_size)
    for number in range(recipe.epochs):
        module.train()
        total = torch.zeros((), device=device)
        for step, rows in enumerate(_batches(len(inputs), recipe.batch_size, generator)):
            set_rate(optimizer, recipe.schedule, (number * per_epoch + step) / (recipe.epochs * per_epoch))
            loss = _loss(module, inputs[rows.to(device)], evidence[rows.to(device)], recipe, generator)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if recipe.clip < math.inf:
                nn.utils.clip_grad_norm_(module.parameters(), recipe.clip)
            optimizer.step()
            if average is not None:
                average.update(module)
            total += loss.detach() * (len(rows) / len(inputs))
        _report(number + 1, float(total), module if average is None else average.module, held_out, recipe, progress)
    return (module if average is None else average.module).eval()


@torch.no_grad()
def predict(module: nn.Module, inputs: Tensor, *, batch_size: int = 1024, precision: Precision = "auto") -> Tensor:
    """Logits of all rows.

    Parameters
    ----------
    module : nn.Module
        Put into evaluation mode for the call.
    inputs : (n, ...) tensor on any device
    batch_size : int
    precision : {"auto", "float32", "bf16"}

    Returns
    -------
    (n, K) float32 tensor on the module's device.
    """
    device = next(module.parameters()).device
    was_training = module.training
    module.eval()
    found = []
    for start in range(0, len(inputs), batch_size):
        with _autocast(device, precision):
            found.append(module(_scaled(inputs[start : start + batch_size].to(device))).float())
    module.train(was_training)
    return torch.cat(found)


def _loss(module: nn.Module, x: Tensor, target: Form, recipe: Recipe, generator: torch.Generator) -> Tensor:
    x = _scaled(x)
    if recipe.augment is not None:
        x = recipe.augment(x, generator)
    if not recipe.alpha:
        with _autocast(x.device, recipe.precision):
            logits = module(x)
        return recipe.loss(logits, target)
    mixed = mixup(x, generator, alpha=recipe.alpha)
    with _autocast(x.device, recipe.precision):
        logits = module(mixed.inputs)
    return mixup_loss(recipe.loss, logits, target, target[mixed.partner], mixed.lam)


def _report(
    number: int,
    loss: float,
    model: nn.Module,
    held_out: tuple[Tensor, Form] | None,
    recipe: Recipe,
    progress: Callable[[Epoch], object] | None,
) -> None:
    if not math.isfinite(loss):  # on a GPU the losses themselves are not looked at, so that nothing waits for it
        raise InvalidInput(f"Expected a finite loss, got {loss} in epoch {number}. Lower the rate, clip gradients, or check the inputs.")
    if progress is not None:
        score = None
        if held_out is not None:
            logits = predict(model, held_out[0], precision=recipe.precision)
            score = -float(likelihood_loss(logits, held_out[1].to(logits.device)))
        progress(Epoch(number, loss, score))


def _batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """All rows once in a random order; a last single row, of which batch normalisation knows no variance, joins the batch before it."""
    order = torch.randperm(n, generator=generator)
    ends = list(range(size, n, size))
    if ends and n - ends[-1] == 1:
        ends.pop()
    yield from order.tensor_split(ends)


def _scaled(x: Tensor) -> Tensor:
    return x.float().div_(255) if x.dtype == torch.uint8 else x


def _autocast(device: torch.device, precision: Precision) -> "torch.autocast | nullcontext[None]":
    wanted = precision == "bf16" or (precision == "auto" and _has_bf16(device.type))
    return torch.autocast(device.type, torch.bfloat16) if wanted else nullcontext()


def _has_bf16(kind: str) -> bool:
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return kind == "cpu" and bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
