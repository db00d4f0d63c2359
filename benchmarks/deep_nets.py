# SPDX-License-Identifier: Apache-2.0
"""The nets of the deep benchmarks, by name. Each returns logits (n, K)."""

from collections.abc import Callable

from deep_data import Data
from deep_ratings import rating_net
from torch import Tensor, nn

from labeldp.deep import models


class QuickNet(nn.Module):
    """SmallConvNet with its first two convolutions as one, so that most work is done at 14 x 14.

    Parameters
    ----------
    n_classes : int
        K.
    in_channels : int
    widths : (int, int, int)
        Channels at 28, 14 and 7 pixels.
    """

    def __init__(self, n_classes: int = 10, in_channels: int = 1, widths: tuple[int, int, int] = (24, 48, 128)) -> None:
        super().__init__()
        first, second, third = widths
        pool = nn.MaxPool2d(2)
        self.features = nn.Sequential(
            *_layer(in_channels, first), pool, *_layer(first, second), *_layer(second, second), pool, *_layer(second, third)
        )
        self.head = nn.Linear(third, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).amax(dim=(2, 3)))
        return logits


def _layer(n_in: int, n_out: int) -> list[nn.Module]:
    return [nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU(inplace=True)]


class FastResNet(nn.Module):
    """ResNet-9: four wide convolutions with pooling and two residual blocks, which trains CIFAR-10 in about a minute on one GPU.

    Parameters
    ----------
    n_classes : int
        K.
    in_channels : int
    width : int
        Channels of the first convolution; the last has eight times as many.

    Notes
    -----
    Source: Page, "How to train your ResNet" (2018), the DAWNBench entry. Logits are scaled by 1/8, as there.
    """

    def __init__(self, n_classes: int = 10, in_channels: int = 3, width: int = 64) -> None:
        super().__init__()
        w = width
        self.prepare = nn.Sequential(*_layer(in_channels, w), *_layer(w, 2 * w), nn.MaxPool2d(2))
        self.block1 = nn.Sequential(*_layer(2 * w, 2 * w), *_layer(2 * w, 2 * w))
        self.middle = nn.Sequential(*_layer(2 * w, 4 * w), nn.MaxPool2d(2), *_layer(4 * w, 8 * w), nn.MaxPool2d(2))
        self.block2 = nn.Sequential(*_layer(8 * w, 8 * w), *_layer(8 * w, 8 * w))
        self.head = nn.Linear(8 * w, n_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.prepare(x)
        x = self.middle(x + self.block1(x))
        x = x + self.block2(x)
        logits: Tensor = self.head(x.amax(dim=(2, 3))) / 8
        return logits


_IMAGE_NETS: dict[str, Callable[..., nn.Module]] = {
    "quick": QuickNet,
    "small-convnet": models.SmallConvNet,
    "small-inception": models.SmallInception,
    "cifar-resnet18": models.CifarResNet18,
    "fast-resnet": FastResNet,
}


def build(name: str, data: Data) -> nn.Module:
    """A fresh net for this data set, its weights from torch's global generator.

    Parameters
    ----------
    name : str
        A net's name, with widths after a colon where it takes them: "quick:24,48,96".
    data : Data
    """
    kind, _, text = name.partition(":")
    numbers = tuple(float(number) for number in text.split(",")) if text else ()
    if kind == "ncf":
        return models.NeuralCollaborativeFiltering(n_classes=data.n_classes)
    if kind == "ratings":
        return rating_net(data, *numbers)
    widths = {"widths": tuple(map(int, numbers))} if numbers else {}
    return _IMAGE_NETS[kind](n_classes=data.n_classes, in_channels=data.X.shape[1], **widths)


def n_parameters(net: nn.Module) -> int:
    """Number of weights."""
    return sum(p.numel() for p in net.parameters())
