# SPDX-License-Identifier: Apache-2.0
"""Batches of images as people have them, made what nets take: channels first, of the size asked for, normalised."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from labeldp import _validate
from labeldp.errors import InvalidInput

Layout = Literal["auto", "first", "last"]

CHANNELS = (1, 3, 4)  # what an axis of channels is told by
_SLACK = 1e-3  # of values that rounding has put outside 0..1


def channels_first(images: Tensor, layout: Layout = "auto") -> Tensor:
    """Images with their channels before height and width: (n, c, h, w).

    Parameters
    ----------
    images : (n, h, w), (n, h, w, c) or (n, c, h, w) tensor
    layout : {"auto", "first", "last"}
        Where the channels of (n, a, b, c) are. "auto": that axis of the two whose length is 1, 3 or 4.
    """
    chosen = _validate.one_of(("auto", "first", "last"), layout=layout)
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4:
        raise InvalidInput(f"Expected images (n, h, w), (n, h, w, c) or (n, c, h, w), got shape {tuple(images.shape)}.")
    if chosen == "auto":
        first, last = images.shape[1] in CHANNELS, images.shape[3] in CHANNELS
        if first == last:
            raise InvalidInput(
                f"Expected one axis of 1, 3 or 4 channels, first or last, got shape {tuple(images.shape)}. Pass layout='first' or 'last'."
            )
        chosen = "first" if first else "last"
    return images if chosen == "first" else images.permute(0, 3, 1, 2)


def resized(images: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Images of another size, by antialiased bicubic interpolation; no value leaves the range that its image had.

    Parameters
    ----------
    images : (n, c, h, w) float tensor
    size : int or (int, int)
        A number: the shorter side becomes that long, and the middle square is cut out, as most pre-trained nets are given images.
        (h, w): that, whatever it does to the proportions.
    """
    wanted = (size, size) if isinstance(size, int) else size
    have = tuple(images.shape[2:])
    if have == wanted:
        return images
    if isinstance(size, int):
        scale = size / min(have)
        have = (max(size, round(have[0] * scale)), max(size, round(have[1] * scale)))
    else:
        have = wanted
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    whole = functional.interpolate(images, size=have, mode="bicubic", align_corners=False, antialias=True)
    top, left = (have[0] - wanted[0]) // 2, (have[1] - wanted[1]) // 2
    return whole[:, :, top : top + wanted[0], left : left + wanted[1]].clamp(low, high)


def require_unit_range(images: Tensor) -> None:
    """Values of 0..1, up to rounding."""
    low, high = (float(value) for value in images.aminmax())
    if low < -_SLACK or high > 1 + _SLACK:  # NaN passes, and is found in the features
        raise InvalidInput(
            f"Expected images of 0..1, got values from {low:.4g} to {high:.4g}. Pass bytes (uint8), or floats divided by 255."
        )


def normalised(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x - mean) / std of each channel; grey images are repeated for a net that was given colours.

    Parameters
    ----------
    images : (n, c, h, w) float tensor of values in 0..1
    mean, std : sequence of c floats
    """
    require_unit_range(images)
    if images.shape[1] not in (1, len(mean)):
        raise InvalidInput(f"Expected images of {len(mean)} channels, as mean has numbers, or of one, got {images.shape[1]}.")
    centre, spread = (torch.tensor(list(each), dtype=images.dtype, device=images.device)[:, None, None] for each in (mean, std))
    return (images - centre) / spread
