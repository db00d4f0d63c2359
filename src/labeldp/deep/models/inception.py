# SPDX-License-Identifier: Apache-2.0
"""The simplified Inception of the source paper for MNIST, Fashion-MNIST and KMNIST."""

import torch
from torch import Tensor, nn


def convolution(n_in: int, n_out: int, size: int, stride: int = 1) -> nn.Sequential:
    """Conv: convolution, batch normalisation, ReLU."""
    conv = nn.Conv2d(n_in, n_out, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(n_out), nn.ReLU(inplace=True))


class InceptionBlock(nn.Module):
    """Block(c1, c3): a 1x1 and a 3x3 convolution of the same input, side by side.

    Parameters
    ----------
    n_in, c1, c3 : int
        Channels of the input, and of the two convolutions; the output has c1 + c3.
    """

    def __init__(self, n_in: int, c1: int, c3: int) -> None:
        super().__init__()
        self.narrow, self.wide = convolution(n_in, c1, 1), convolution(n_in, c3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.narrow(x), self.wide(x)), dim=1)


_S1 = ((32, 32), (32, 48), 160)
_S2 = ((112, 48), (96, 64), (80, 80), (48, 96), 240)
_S3 = ((176, 160), (176, 160))


class SmallInception(nn.Module):
    """Conv(3x3, 96), S1, S2, S3, global max pooling, linear.

    Parameters
    ----------
    n_classes : int
        K.
    in_channels : int

    Notes
    -----
    S1 is Block(32, 32), Block(32, 48), Conv(3x3, 160, stride 2); S2 is Block(112, 48), Block(96, 64), Block(80, 80), Block(48, 96),
    Conv(3x3, 240, stride 2); S3 is Block(176, 160) twice. Input (n, in_channels, h, w), 28 x 28 in the paper.
    Source: Ghazi et al. 2021, Appendix B, after Zhang et al. 2017, figure 3.
    """

    def __init__(self, n_classes: int = 10, in_channels: int = 1) -> None:
        super().__init__()
        layers: list[nn.Module] = [convolution(in_channels, 96, 3)]
        n_in = 96
        for step in (*_S1, *_S2, *_S3):
            if isinstance(step, int):
                layers.append(convolution(n_in, step, 3, stride=2))
                n_in = step
            else:
                layers.append(InceptionBlock(n_in, *step))
                n_in = sum(step)
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(n_in, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).amax(dim=(2, 3)))
        return logits
