# SPDX-License-Identifier: Apache-2.0
"""Augmentation of whole batches of images, on the device they are on.

What is drawn comes from a `torch.Generator` alone. A CPU generator serves every device: a few numbers an image are drawn on the CPU and
sent over, so that a run gives the same pictures on every machine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from labeldp import _validate
from labeldp.errors import InvalidInput

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
"""(images (n, c, h, w), generator) to images of the same shape."""


def flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image left to right with probability one half.

    Parameters
    ----------
    images : (n, c, h, w) tensor
    generator : torch.Generator

    Returns
    -------
    (n, c, h, w), a new tensor. Cost O(pixels).
    """
    _require_images(images)
    chosen = torch.rand(len(images), generator=generator, device=generator.device) < 0.5
    return torch.where(chosen.to(images.device)[:, None, None, None], images.flip(3), images)


def shift(images: Tensor, generator: torch.Generator, *, pixels: int = 4, mode: str = "constant") -> Tensor:
    """Move each image by up to this many pixels each way: pad, then crop at random.

    Parameters
    ----------
    images : (n, c, h, w) tensor
    generator : torch.Generator
    pixels : int
        Every move in [-pixels, pixels] is equally likely, in each direction by itself.
    mode : {"constant", "reflect", "replicate"}
        What comes in from outside: zeros, the mirrored image, or its edge.

    Returns
    -------
    (n, c, h, w), a new tensor. Cost O(pixels).
    """
    _require_images(images)
    pad = _validate.integer(pixels=pixels, low=0)
    _validate.one_of(("constant", "reflect", "replicate"), mode=mode)
    n, c, h, w = images.shape
    moves = torch.randint(0, 2 * pad + 1, (2, n), generator=generator, device=generator.device).to(images.device)
    padded = functional.pad(images, (pad, pad, pad, pad), mode=mode)
    down = (moves[0][:, None] + torch.arange(h, device=images.device))[:, None, :, None]
    right = (moves[1][:, None] + torch.arange(w, device=images.device))[:, None, None, :]
    image = torch.arange(n, device=images.device)[:, None, None, None]
    channel = torch.arange(c, device=images.device)[None, :, None, None]
    return _like(images, padded[image, channel, down, right])


def cutout(images: Tensor, generator: torch.Generator, *, size: int = 8, shared: bool = False) -> Tensor:
    """Set a square of each image to zero; squares may hang over the edge.

    Parameters
    ----------
    images : (n, c, h, w) tensor
    generator : torch.Generator
    size : int
        Side of the square. Its centre is any pixel, all equally likely.
    shared : bool
        One square for the whole batch, as in the source paper's code; by default each image has its own.

    Returns
    -------
    (n, c, h, w), a new tensor. Cost O(pixels).

    Notes
    -----
    Source: DeVries and Taylor, "Improved regularization of convolutional neural networks with cutout" (2017).
    """
    _require_images(images)
    side = _validate.integer(size=size, low=0)
    n, _, h, w = images.shape
    draws = 1 if shared else n
    centre = [torch.randint(0, length, (draws, 1), generator=generator, device=generator.device).to(images.device) for length in (h, w)]
    hit = []
    for middle, length in zip(centre, (h, w), strict=True):
        offset = torch.arange(length, device=images.device) - (middle - side // 2)
        hit.append((offset >= 0) & (offset < side))
    square = hit[0][:, None, :, None] & hit[1][:, None, None, :]
    return _like(images, images.masked_fill(square, 0))


@dataclass(frozen=True, eq=False)
class Mixed:
    """A batch of mixed pairs.

    Attributes
    ----------
    inputs : (n, ...) tensor
        lam x[i] + (1 - lam) x[partner[i]].
    partner : (n,) int64 tensor, on the inputs' device
        Gives the second target: `mixup_loss(loss, logits, target, target[partner], lam)`.
    lam : float
    """

    inputs: Tensor
    partner: Tensor
    lam: float


def mixup(inputs: Tensor, generator: torch.Generator, *, alpha: float) -> Mixed:
    """Mix each input with a random other of the batch; one weight a batch, from Beta(alpha, alpha).

    Parameters
    ----------
    inputs : (n, ...) float tensor
    generator : torch.Generator
    alpha : float
        0 mixes nothing. The source paper takes 4 to 16: the noisier the labels, the larger.

    Returns
    -------
    Mixed. Cost O(size of the inputs); a generator on a GPU is waited for.

    Notes
    -----
    Source: Zhang et al., "mixup: beyond empirical risk minimization" (2018).
    """
    if not inputs.is_floating_point():
        raise InvalidInput(f"Expected floating inputs to mix, got {inputs.dtype}. Scale images to floats first.")
    if alpha == 0:
        return Mixed(inputs, torch.arange(len(inputs), device=inputs.device), 1.0)
    strength = _validate.positive(alpha=alpha)
    seed = int(torch.randint(0, 2**62, (1,), generator=generator, device=generator.device))
    lam = float(np.random.default_rng(seed).beta(strength, strength))  # torch draws Beta from its global generator only
    partner = torch.randperm(len(inputs), generator=generator, device=generator.device).to(inputs.device)
    return Mixed(torch.lerp(inputs[partner], inputs, lam), partner, lam)


def chain(*steps: Augmentation) -> Augmentation:
    """Several augmentations as one, from left to right.

    Parameters
    ----------
    *steps : functions (images, generator) -> images
        For options use functools.partial: `chain(flip, partial(shift, pixels=2))`.
    """

    def every(images: Tensor, generator: torch.Generator) -> Tensor:
        for step in steps:
            images = step(images, generator)
        return images

    return every


def _require_images(images: Any) -> None:
    if not isinstance(images, Tensor) or images.ndim != 4:
        found = f"shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise InvalidInput(f"Expected a batch of images (n, channels, height, width), got {found}. Add the axes that are missing.")


def _like(images: Tensor, made: Tensor) -> Tensor:
    """In the memory format of the images."""
    last = images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
    return made.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
