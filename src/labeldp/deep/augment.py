# SPDX-License-Identifier: Apache-2.0
"""Augmentations of whole batches of images, on the images' device.

`Recipe(augment=...)` takes any function of images and generator; these are what the papers' recipes
and `Consistency` need, and torchvision and kornia have others. All random numbers come from a
`torch.Generator`. A CPU generator serves every device: a few numbers per image are drawn on the CPU
and copied over, so that a run gives the same images on every machine.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from labeldp import _validate
from labeldp.errors import InvalidInput

_SLACK = 1e-3  # by which values may be beyond 0..1: interpolation and half precision round

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


def shift(
    images: Tensor, generator: torch.Generator, *, pixels: int = 4, mode: str = "constant"
) -> Tensor:
    """Shift each image by up to this many pixels each way: pad, then crop at random.

    Parameters
    ----------
    images : (n, c, h, w) tensor
    generator : torch.Generator
    pixels : int, default=4
        Shifts in [-pixels, pixels] are equally likely, independently for both axes.
    mode : str, default="constant"
        Padding, as in `torch.nn.functional.pad`: "constant" is zeros, "reflect" the mirrored image.

    Returns
    -------
    (n, c, h, w), a new tensor. Cost O(pixels).
    """
    _require_images(images)
    pad = _validate.integer(pixels=pixels, low=0)
    # One gather for the whole batch instead of a crop per image.
    moves = torch.randint(
        0, 2 * pad + 1, (2, len(images)), generator=generator, device=generator.device
    ).to(images.device)
    rows, columns = (
        move[:, None] + torch.arange(length, device=images.device)
        for move, length in zip(moves, images.shape[2:], strict=True)
    )
    image = torch.arange(len(images), device=images.device)[:, None, None]
    padded = functional.pad(images, (pad, pad, pad, pad), mode=mode)
    shifted = padded[image, :, rows[:, :, None], columns[:, None, :]]
    return _like(images, shifted.permute(0, 3, 1, 2))


def cutout(
    images: Tensor, generator: torch.Generator, *, size: int = 8, shared: bool = False
) -> Tensor:
    """Set a square of each image to zero; squares may extend beyond the edge.

    Parameters
    ----------
    images : (n, c, h, w) tensor
    generator : torch.Generator
    size : int, default=8
        Side of the square. Its centre is uniform over the pixels.
    shared : bool, default=False
        One square for the whole batch, as in the code of Ghazi et al. 2021; by default each image
        has its own.

    Returns
    -------
    (n, c, h, w), a new tensor. Cost O(pixels).

    Notes
    -----
    Source: DeVries and Taylor, "Improved regularization of convolutional neural networks with
    cutout" (2017).
    """
    _require_images(images)
    side = _validate.integer(size=size, low=0)

    def hit(length: int) -> Tensor:
        middle = torch.randint(
            0,
            length,
            (1 if shared else len(images), 1),
            generator=generator,
            device=generator.device,
        ).to(images.device)
        offset = torch.arange(length, device=images.device) - (middle - side // 2)
        return (offset >= 0) & (offset < side)

    rows, columns = map(hit, images.shape[2:])
    return _like(images, images.masked_fill(rows[:, None, :, None] & columns[:, None, None, :], 0))


def mixup(
    inputs: Tensor, generator: torch.Generator, *, alpha: float
) -> tuple[Tensor, Tensor, float]:
    """Mix each input with a random other one of the batch; the weight, one per batch, is drawn from
    Beta(alpha, alpha).

    Parameters
    ----------
    inputs : (n, ...) float tensor
    generator : torch.Generator
    alpha : float > 0
        Ghazi et al. 2021 use 4 to 16, larger for noisier labels.

    Returns
    -------
    (n, ...) tensor
        lam x[i] + (1 - lam) x[partner[i]].
    (n,) int64 tensor
        partner, the index of the second target, on the inputs' device.
    float
        lam: the loss is `mixup_loss(loss, logits, target, target[partner], lam)`.

    Notes
    -----
    Cost O(size of the inputs); with a generator on a GPU, the CPU waits for it. Source: Zhang et
    al., "mixup: beyond empirical risk minimization" (2018).
    """
    if not inputs.is_floating_point():
        raise InvalidInput(
            f"Expected floating inputs to mix, got {inputs.dtype}. Scale images to floats first."
        )
    strength = _validate.positive(alpha=alpha)
    seed = int(torch.randint(0, 2**62, (1,), generator=generator, device=generator.device))
    # torch's Beta uses the global generator only
    lam = float(np.random.default_rng(seed).beta(strength, strength))
    partner = torch.randperm(len(inputs), generator=generator, device=generator.device).to(
        inputs.device
    )
    return torch.lerp(inputs[partner], inputs, lam), partner, lam


def resized_crop(
    images: Tensor,
    generator: torch.Generator,
    *,
    scale: tuple[float, float] = (0.2, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """Crop a random part of each image and resize it to the image's size.

    Parameters
    ----------
    images : (n, c, h, w) float tensor
    generator : torch.Generator
    scale : (float, float), default=(0.2, 1.0)
        Range of the crop's share of the area, which is uniform.
    ratio : (float, float), default=(3 / 4, 4 / 3)
        Range of the crop's aspect ratio relative to the image's, which is log-uniform. A side is at
        most the image's.

    Returns
    -------
    (n, c, h, w), a new tensor, bilinearly interpolated. Cost O(pixels).

    Notes
    -----
    Source: Szegedy et al., "Going deeper with convolutions" (2015), as used by SimCLR and BYOL.
    """
    _require_images(images)
    (low, high), (narrow, wide), u = scale, ratio, _uniform(images, generator, 4)
    area, shape = low + (high - low) * u[0], narrow * (wide / narrow) ** u[1]
    sides = ((area * shape).sqrt().clamp(max=1), (area / shape).sqrt().clamp(max=1))
    zero = torch.zeros_like(area)
    rows = [
        (sides[0], zero, (1 - sides[0]) * (2 * u[2] - 1)),
        (zero, sides[1], (1 - sides[1]) * (2 * u[3] - 1)),
    ]
    grid = functional.affine_grid(
        torch.stack([torch.stack(row, 1) for row in rows], 1),
        list(images.shape),
        align_corners=False,
    )
    return _like(
        images, functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    )


_LUMA = (0.299, 0.587, 0.114)


def rand_augment(
    images: Tensor,
    generator: torch.Generator,
    *,
    count: int = 2,
    strength: float = 1.0,
    hole: float = 0.5,
) -> Tensor:
    """Change each image strongly: random geometric moves, random changes of its tones, and a grey
    square.

    Parameters
    ----------
    images : (n, c, h, w) float tensor of values in 0..1
    generator : torch.Generator
    count : int, default=2
        Number of moves, and of changes of tones, one after the other.
    strength : float in [0, 1], default=1.0
        Share of each change's full range.
    hole : float in [0, 1], default=0.5
        Side of the grey square relative to the image's; its centre is uniform.

    Returns
    -------
    (n, c, h, w) in 0..1, a new tensor. Cost O(count x pixels).

    Notes
    -----
    A move is the identity, a rotation up to 30 degrees, a shear up to 0.35 or a shift up to 30 %
    along an axis. A change of tones is the identity, brightness, contrast, saturation (for three
    channels), solarisation, posterisation, sharpness, or contrast stretching to 0..1. All are
    equally likely, with uniform magnitude. No policy was searched with labels, which would leak
    them.

    References
    ----------
    Cubuk et al. (2020), "RandAugment", here with another set of operations; the square as in
    FixMatch (Sohn et al. 2020).
    """
    _require_images(images, unit=True)
    if not len(images):
        return images.clone()
    n, _, h, w = images.shape
    moves = torch.eye(3).repeat(n, 1, 1)
    for _ in range(count):
        moves = moves @ _move(generator, n, strength)
    grid = functional.affine_grid(moves[:, :2].to(images), list(images.shape), align_corners=False)
    x = functional.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
    for _ in range(count):
        x = _tones(x, _uniform(images, generator, 2), strength)
    u = _uniform(images, generator, 2)
    hit = [
        (
            (torch.arange(length, device=x.device) + 0.5 - place[:, None] * length).abs()
            < hole * length / 2
        )
        for place, length in zip(u, (h, w), strict=True)
    ]
    return _like(images, x.masked_fill(hit[0][:, None, :, None] & hit[1][:, None, None, :], 0.5))


def _move(generator: torch.Generator, n: int, part: float) -> Tensor:
    """Draw a move of each image, (n, 3, 3) on the CPU: the identity, a rotation, a shear or a shift
    along one axis, of random size."""
    kind = torch.randint(0, 6, (n,), generator=generator, device=generator.device).cpu()
    size = part * (2 * torch.rand(n, generator=generator, device=generator.device).cpu() - 1)
    angle = torch.where(kind == 1, size * math.pi / 6, 0.0)
    found = torch.eye(3).repeat(n, 1, 1)
    found[:, 0, 0] = found[:, 1, 1] = angle.cos()
    found[:, 0, 1] = torch.where(kind == 2, 0.35 * size, -angle.sin())
    found[:, 1, 0] = torch.where(kind == 3, 0.35 * size, angle.sin())
    # of a side of length 2
    found[:, 0, 2], found[:, 1, 2] = (torch.where(kind == each, 0.6 * size, 0.0) for each in (4, 5))
    return found


def _tones(x: Tensor, u: Tensor, part: float) -> Tensor:
    """Make one random change of the tones of each image; u (2, n) gives its kind and its size."""
    kind, size = (
        (u[0] * 8).long()[:, None, None, None],
        (0.9 * part * (2 * u[1] - 1))[:, None, None, None],
    )
    grey = x.mean(dim=1, keepdim=True)
    if x.shape[1] == 3:
        grey = (x * x.new_tensor(_LUMA)[:, None, None]).sum(dim=1, keepdim=True)
    blurred = functional.avg_pool2d(functional.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)
    middle = grey.mean(dim=(2, 3), keepdim=True)
    low, high = x.amin(dim=(2, 3), keepdim=True), x.amax(dim=(2, 3), keepdim=True)
    levels = 2 ** (8 - (5 * size.abs()).round())
    # Kinds 1 to 7: brightness, contrast, saturation, solarisation, posterisation, sharpness,
    # stretched contrast. Kind 0 changes nothing.
    changes = (
        x * (1 + size),
        middle + (x - middle) * (1 + size),
        grey + (x - grey) * (1 + size),
        torch.where(x >= 1 - 0.9 * size.abs(), 1 - x, x),
        (x * levels).floor() / levels,
        blurred + (x - blurred) * (1 + size),
        (x - low) / (high - low + 1e-3),
    )
    for number, changed in enumerate(changes, 1):
        x = torch.where(kind == number, changed, x)
    return x.clamp(0, 1)


def _require_images(images: Any, *, unit: bool = False) -> None:
    """Refuse what is no batch of images; with `unit`, also bytes and values outside 0..1. The
    values only on the CPU, since a GPU would have to be waited for in each batch."""
    if not isinstance(images, Tensor) or images.ndim != 4:
        found = (
            f"shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        )
        raise InvalidInput(
            f"Expected a batch of images (n, channels, height, width), got {found}. Add the axes"
            " that are missing."
        )
    seen = images if unit and images.device.type == "cpu" else images[:0]
    if (unit and not images.is_floating_point()) or not bool(
        ((seen >= -_SLACK) & (seen <= 1 + _SLACK)).all()
    ):
        raise InvalidInput(
            "Expected images of 0..1, got other values. Pass bytes (uint8), floats divided by 255,"
            " or a change of your own."
        )


def _uniform(images: Tensor, generator: torch.Generator, count: int) -> Tensor:
    """Draw (count, n) numbers in [0, 1), on the images' device."""
    return torch.rand(count, len(images), generator=generator, device=generator.device).to(images)


def _like(images: Tensor, made: Tensor) -> Tensor:
    """Return the result in the memory format of the images."""
    last = images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
    return made.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
