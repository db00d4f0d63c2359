# SPDX-License-Identifier: Apache-2.0
"""VGG-16 with batch normalisation, for small images."""

from torch import Tensor, nn

_POOL = 0
_WIDTHS = (64, 64, _POOL, 128, 128, _POOL, 256, 256, 256, _POOL, 512, 512, 512, _POOL, 512, 512, 512, _POOL)


class Vgg16(nn.Module):
    """The thirteen convolutions of configuration D, each normalised, and one linear layer in place of three.

    Parameters
    ----------
    n_classes : int
        K.
    in_channels : int

    Notes
    -----
    Input (n, in_channels, h, w), 32 x 32 or larger; what is left of the image is averaged. The convolutions are torchvision's
    `vgg16_bn().features`. Source: Simonyan and Zisserman 2015, table 1; used by Tang et al. 2022, table 9.
    """

    def __init__(self, n_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        n_in = in_channels
        for width in _WIDTHS:
            if width == _POOL:
                layers.append(nn.MaxPool2d(2))
            else:
                layers += [nn.Conv2d(n_in, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
                n_in = width
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(n_in, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).mean(dim=(2, 3)))
        return logits
