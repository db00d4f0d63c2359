# SPDX-License-Identifier: Apache-2.0
"""Nets that return logits (n, K): a perceptron for tables; a small convnet and a ResNet for
images; several nets as one."""

import math
from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from labeldp.errors import InvalidInput

__all__ = ["CifarResNet18", "Ensemble", "Mlp", "SmallConvNet"]


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
        layers: list[nn.Module] = []
        n_in = in_channels
        for width in (32, 32, None, 64, 64, None, 128):
            if width is None:
                layers.append(nn.MaxPool2d(2))
            else:
                layers += [
                    nn.Conv2d(n_in, width, 3, padding=1, bias=False),
                    nn.BatchNorm2d(width),
                    nn.ReLU(inplace=True),
                ]
                n_in = width
        self.features = nn.Sequential(*layers)
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


class ResNet(nn.Module):
    """A 3x3 stem, groups of blocks of which all but the first halve the image, normalisation, ReLU,
    global mean, linear.

    Parameters
    ----------
    n_classes, in_channels : int
    stem : int
        Width of the first convolution.
    groups : sequence of int
        Width of each group.
    blocks : int
        Number of `PreActivationBlock` in each group.
    dropout : float, default=0.0
        Inside the blocks.
    """

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


class CifarResNet18(ResNet):
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
