# SPDX-License-Identifier: Apache-2.0
"""Two small networks: a convnet that trains in minutes on two cores, and a perceptron for tables."""

from collections.abc import Sequence

from torch import Tensor, nn


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
        layers: list[nn.Module] = []
        n_in = in_channels
        for width in (32, 32, 0, 64, 64, 0, 128):
            if not width:
                layers.append(nn.MaxPool2d(2))
            else:
                layers += [nn.Conv2d(n_in, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
                n_in = width
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(n_in, n_classes)

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
