# SPDX-License-Identifier: Apache-2.0
"""VGG-16 with batch normalisation, for small images."""

from torch import Tensor, nn

from labeldp.deep.models.small import POOL, plain_layers

_WIDTHS = (64, 64, POOL, 128, 128, POOL, 256, 256, 256, POOL, 512, 512, 512, POOL, 512, 512, 512, POOL)


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
        self.features = plain_layers(in_channels, _WIDTHS, bias=True)
        self.head = nn.Linear(_WIDTHS[-2], n_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).mean(dim=(2, 3)))
        return logits
