# SPDX-License-Identifier: Apache-2.0
"""Two small networks: a convnet that trains in minutes on two cores, and a perceptron for tables."""

from collections.abc import Sequence

from torch import Tensor, nn

POOL = 0


def plain_layers(n_in: int, widths: Sequence[int], *, bias: bool) -> nn.Sequential:
    """3x3 convolutions of these widths, each normalised and rectified; POOL in their place halves the image."""
    layers: list[nn.Module] = []
    for width in widths:
        if width == POOL:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(n_in, width, 3, padding=1, bias=bias), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            n_in = width
    return nn.Sequential(*layers)


class SmallConvNet(nn.Module):
    """3x3 convolutions 32-32-pool-64-64-pool-128, each with batch normalisation and ReLU; global max pooling; linear.

    Parameters
    ----------
    n_classes : int
        K.
    in_channels : int

    Notes
    -----
    Input (n, in_channels, h, w), 28 x 28 or 32 x 32; any size of 4 or more works.
    """

    def __init__(self, n_classes: int = 10, in_channels: int = 1) -> None:
        super().__init__()
        self.features = plain_layers(in_channels, (32, 32, POOL, 64, 64, POOL, 128), bias=False)
        self.head = nn.Linear(128, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).amax(dim=(2, 3)))
        return logits


class Mlp(nn.Module):
    """Linear layers with batch normalisation, ReLU and dropout, for tables of numbers.

    Parameters
    ----------
    n_features : int
        d.
    n_classes : int
        K.
    hidden : sequence of int
        Widths; none makes it multinomial logistic regression on standardised columns.
    dropout : float
        After each hidden layer.

    Notes
    -----
    Input (n, d) float, of any scale: the first layer normalises each column over the batch.
    """

    def __init__(self, n_features: int, n_classes: int, hidden: Sequence[int] = (256, 128), dropout: float = 0.1) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.BatchNorm1d(n_features)]
        n_in = n_features
        for width in hidden:
            layers += [nn.Linear(n_in, width, bias=False), nn.BatchNorm1d(width), nn.ReLU(inplace=True), nn.Dropout(dropout)]
            n_in = width
        self.layers = nn.Sequential(*layers, nn.Linear(n_in, n_classes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits
