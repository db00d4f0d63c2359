# SPDX-License-Identifier: Apache-2.0
"""Nets that return logits (n, K): a perceptron for tables; a small convnet, ResNets, Inception and
VGG for images; several nets as one."""

import math
from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from labeldp.errors import InvalidInput

__all__ = [
    "CifarResNet18",
    "Ensemble",
    "Mlp",
    "SmallConvNet",
    "SmallInception",
    "Vgg16",
    "WideResNet",
]

POOL = 0


def plain_layers(n_in: int, widths: Sequence[int], *, bias: bool) -> nn.Sequential:
    """Make 3x3 convolutions of these widths, each with batch normalisation and ReLU; POOL instead
    of a width halves the image."""
    layers: list[nn.Module] = []
    for width in widths:
        if width == POOL:
            layers.append(nn.MaxPool2d(2))
        else:
            # A bias before batch normalisation has no effect; VGG keeps it for the sake of
            # torchvision's weights.
            layers += [
                nn.Conv2d(n_in, width, 3, padding=1, bias=bias),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            n_in = width
    return nn.Sequential(*layers)


class Ensemble(nn.Module):
    """Several nets as one: each learns by itself from the same evidence, and the mean of their
    probabilities predicts.

    Parameters
    ----------
    nets : sequence of nn.Module
        Each returns logits (n, K), and has initial weights of its own.
    sizes : sequence of int, optional
        With several label columns: the number of classes of each. The probabilities of each column
        are averaged by themselves.

    Notes
    -----
    Guarantee: no cost in privacy; all nets learn from labels that were drawn once. `train` trains
    one net after another, with one generator, so that each has an order of rows and augmentations
    of its own; `progress` and `watch` are called for each net in turn. Cost: that of the nets
    together. Input as for the nets; the output, (n, K), is the logarithm of the mean probabilities.

    References
    ----------
    Lakshminarayanan, Pritzel and Blundell 2017, "Simple and scalable predictive uncertainty
    estimation using deep ensembles".

    Examples
    --------
    >>> nets = Ensemble([Mlp(4, 3, (8,)) for _ in range(5)])
    >>> torch.softmax(nets(torch.zeros(2, 4)), dim=1).sum(dim=1).allclose(torch.ones(2))
    True
    """

    def __init__(self, nets: Iterable[nn.Module], sizes: Sequence[int] = ()) -> None:
        super().__init__()
        # whose layers are no nets
        given = (
            list(nets) if hasattr(nets, "__iter__") and not isinstance(nets, nn.Sequential) else []
        )
        if not given or not all(isinstance(net, nn.Module) for net in given):
            raise InvalidInput(
                "Expected a list of at least one nn.Module for an Ensemble, got none, or something"
                " else."
            )
        weights = [{id(weight) for weight in net.parameters()} for net in given]
        if len(set().union(*weights)) < sum(map(len, weights)):
            raise InvalidInput(
                "Expected nets with weights of their own, got the same net several times. Make"
                " each: [Mlp(4, 3) for _ in range(5)]."
            )
        self.nets = nn.ModuleList(given)
        self.sizes = tuple(sizes)

    def forward(self, x: Tensor) -> Tensor:
        each = torch.stack([net(x).float() for net in self.nets])
        heads = each.split(self.sizes, dim=2) if self.sizes else (each,)
        return torch.cat(
            [torch.log_softmax(head, dim=2).logsumexp(dim=0) for head in heads], dim=1
        ) - math.log(len(self.nets))


class SmallConvNet(nn.Module):
    """3x3 convolutions 32-32-pool-64-64-pool-128, each with batch normalisation and ReLU; global
    max pooling; linear.

    Parameters
    ----------
    n_classes : int, default=10
        K.
    in_channels : int, default=1

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
    hidden : sequence of int, default=(256, 128)
        Widths; none makes it multinomial logistic regression on standardised columns.
    dropout : float, default=0.1
        After each hidden layer.

    Notes
    -----
    Input (n, d) float, of any scale: the first layer normalises each column over the batch.
    """

    def __init__(
        self,
        n_features: int,
        n_classes: int,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.BatchNorm1d(n_features)]
        n_in = n_features
        for width in hidden:
            layers += [
                nn.Linear(n_in, width, bias=False),
                nn.BatchNorm1d(width),
                nn.ReLU(inplace=True),
                nn.Dropout(dropout),
            ]
            n_in = width
        self.layers = nn.Sequential(*layers, nn.Linear(n_in, n_classes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


class PreActivationBlock(nn.Module):
    """Batch norm, ReLU, 3x3, batch norm, ReLU, 3x3, plus a shortcut; if the shape changes, the
    shortcut is a 1x1 of the activated input.

    Parameters
    ----------
    n_in, n_out : int
        Channels.
    stride : int, default=1
        Stride of the first convolution and the shortcut.
    dropout : float, default=0.0
        Dropout before the second convolution.

    Notes
    -----
    Source: He et al., "Identity mappings in deep residual networks" (2016), figure 4e.
    """

    def __init__(self, n_in: int, n_out: int, stride: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(n_in)
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_out)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        changes = stride != 1 or n_in != n_out
        self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = functional.relu(self.norm1(x))
        # Pre-activation: the shortcut of a changed shape reads the activated input, an identity
        # shortcut the raw one.
        kept = x if self.shortcut is None else self.shortcut(active)
        out = self.conv2(self.dropout(functional.relu(self.norm2(self.conv1(active)))))
        total: Tensor = out + kept
        return total


class _ResNet(nn.Module):
    """A 3x3 stem, groups of blocks of which all but the first halve the image, normalisation, ReLU,
    global mean, linear."""

    def __init__(
        self,
        n_classes: int,
        in_channels: int,
        stem: int,
        groups: Sequence[int],
        blocks: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_channels, stem, 3, padding=1, bias=False)
        widths = [stem, *(width for width in groups for _ in range(blocks))]
        strides = [2 if i and i % blocks == 0 else 1 for i in range(len(widths) - 1)]
        self.blocks = nn.Sequential(
            *map(partial(PreActivationBlock, dropout=dropout), widths, widths[1:], strides)
        )
        self.norm = nn.BatchNorm2d(widths[-1])
        self.head = nn.Linear(widths[-1], n_classes)

    def forward(self, x: Tensor) -> Tensor:
        features = functional.relu(self.norm(self.blocks(self.stem(x))))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


class CifarResNet18(_ResNet):
    """ResNet-18 v2 whose first layer is one 3x3 convolution of stride 1, as Ghazi et al. 2021 use
    for CIFAR.

    Parameters
    ----------
    n_classes : int, default=10
        K.
    in_channels : int, default=3

    Notes
    -----
    Input (n, in_channels, h, w), 32 x 32 in the papers. Source: Ghazi et al. 2021, Appendix B; He
    et al. 2016.
    """

    def __init__(self, n_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__(n_classes, in_channels, 64, (64, 128, 256, 512), 2)


class WideResNet(_ResNet):
    """WRN-d-k: three groups of (d - 4) / 6 pre-activation blocks, 16 k, 32 k and 64 k channels
    wide.

    Parameters
    ----------
    n_classes : int, default=10
        K.
    depth, widen : int
        d and k; by default WRN-28-4. d = 6 b + 4 for b blocks a group.
    dropout : float, default=0.0
        Inside the blocks.
    in_channels : int, default=3

    Raises
    ------
    InvalidInput
        If no number of blocks gives the depth.

    Notes
    -----
    Input (n, in_channels, h, w), 32 x 32 in the papers. Source: Zagoruyko and Komodakis, "Wide
    residual networks" (2016), table 1.
    """

    def __init__(
        self,
        n_classes: int = 10,
        depth: int = 28,
        widen: int = 4,
        dropout: float = 0.0,
        in_channels: int = 3,
    ) -> None:
        each, left = divmod(depth - 4, 6)
        if left or each < 1:
            raise InvalidInput(
                f"Expected depth = 6 b + 4 with b >= 1 blocks a group, got depth={depth}. Use 16,"
                " 22, 28 or 40."
            )
        super().__init__(
            n_classes, in_channels, 16, (16 * widen, 32 * widen, 64 * widen), each, dropout
        )


def convolution(n_in: int, n_out: int, size: int, stride: int = 1) -> nn.Sequential:
    """Make a convolution with batch normalisation and ReLU."""
    conv = nn.Conv2d(n_in, n_out, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(n_out), nn.ReLU(inplace=True))


class InceptionBlock(nn.Module):
    """A 1x1 and a 3x3 convolution of the same input, concatenated: Block(c1, c3).

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
    n_classes : int, default=10
        K.
    in_channels : int, default=1

    Notes
    -----
    S1 is Block(32, 32), Block(32, 48), Conv(3x3, 160, stride 2); S2 is Block(112, 48), Block(96,
    64), Block(80, 80), Block(48, 96), Conv(3x3, 240, stride 2); S3 is Block(176, 160) twice. Input
    (n, in_channels, h, w), 28 x 28 in the paper. Source: Ghazi et al. 2021, Appendix B, after Zhang
    et al. 2017, figure 3.
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


_VGG16 = (1, 1, POOL, 2, 2, POOL, 4, 4, 4, POOL, 8, 8, 8, POOL, 8, 8, 8, POOL)


class Vgg16(nn.Module):
    """VGG-16: the thirteen convolutions of configuration D with batch normalisation, and one linear
    layer instead of three.

    Parameters
    ----------
    n_classes : int, default=10
        K.
    in_channels : int, default=3
    width : int, default=64
        Channels of the first convolution; the last has eight times as many.

    Notes
    -----
    Input (n, in_channels, h, w), 32 x 32 or larger; the last feature maps are averaged. The
    convolutions are torchvision's `vgg16_bn().features`. Source: Simonyan and Zisserman 2015, table
    1; used by Tang et al. 2022, table 9.
    """

    def __init__(self, n_classes: int = 10, in_channels: int = 3, width: int = 64) -> None:
        super().__init__()
        self.features = plain_layers(
            in_channels, [each if each == POOL else width * each for each in _VGG16], bias=True
        )
        self.head = nn.Linear(8 * width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).mean(dim=(2, 3)))
        return logits
