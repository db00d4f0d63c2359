# SPDX-License-Identifier: Apache-2.0
"""Changes of images that only the benchmarks use: several one after another, and SimCLR's view."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from labeldp.deep.augment import Augmentation, flip, resized_crop

_YIQ = ((0.299, 0.587, 0.114), (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))


@dataclass(frozen=True)
class Chain:
    """Augmentations, applied from left to right."""

    steps: tuple[Augmentation, ...]

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        for step in self.steps:
            images = step(images, generator)
        return images


def chain(*steps: Augmentation) -> Augmentation:
    return Chain(steps)


def simclr_view(images: Tensor, generator: torch.Generator) -> Tensor:
    """Crops with other colours; mirrored, too, where there are three channels."""
    cropped = resized_crop(images, generator)
    mirrored = flip(cropped, generator) if images.shape[1] == 3 else cropped
    return colour_jitter(mirrored, generator)


def colour_jitter(
    images: Tensor,
    generator: torch.Generator,
    *,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.1,
    chance: float = 0.8,
    grey: float = 0.2,
) -> Tensor:
    """Change the colours of each image of 0..1 with this chance; images without three channels
    change only in brightness and contrast.

    Hue, at most this share of a full turn, and saturation are one linear map of the chroma plane
    (YIQ), not a way through HSV. Source: Chen et al., "A simple framework for contrastive learning"
    (2020), Appendix A.
    """
    # Numbers are drawn for every change, whether or not it is applied, so that one setting does not
    # shift the others' draws.
    u = torch.rand(6, len(images), generator=generator, device=generator.device).to(images)
    on = (u[4] < chance).to(images.dtype)
    light, dark, colour, angle = (
        on * s * (2 * each - 1)
        for s, each in zip(
            (brightness, contrast, saturation, 2 * math.pi * hue), u[:4], strict=True
        )
    )
    x = images
    if x.shape[1] == 3:
        x = torch.einsum("nij,njhw->nihw", _chroma((1 + colour) * (u[5] >= grey), angle), x)
    x = (1 + light)[:, None, None, None] * x
    middle = x.mean((1, 2, 3), keepdim=True)
    return torch.lerp(middle, x, (1 + dark)[:, None, None, None]).clamp(0, 1)


def _chroma(factor: Tensor, angle: Tensor) -> Tensor:
    """Make matrices (n, 3, 3) that scale and rotate the chroma of red, green and blue and keep the
    luma."""
    to = torch.tensor(_YIQ, dtype=torch.float64)
    zero, one = torch.zeros_like(factor), torch.ones_like(factor)
    c, s = factor * angle.cos(), factor * angle.sin()
    turn = torch.stack(
        [torch.stack(row, 1) for row in ((one, zero, zero), (zero, c, -s), (zero, s, c))], 1
    )
    back, there = (each.to(factor) for each in (torch.linalg.inv(to), to))
    return back @ turn @ there
