# SPDX-License-Identifier: Apache-2.0
"""Residual networks with pre-activation blocks, for small images: ResNet-18 v2 and wide ones."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from labeldp.errors import InvalidInput


class PreActivationBlock(nn.Module):
    """norm, ReLU, 3x3, norm, ReLU, 3x3, plus a shortcut; where the shape changes, the shortcut is a 1x1 of the activated input.

    Parameters
    ----------
    n_in, n_out : int
        Channels.
    stride : int
        Of the first convolution and the shortcut.
    dropout : float
        Before the second convolution.

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
        kept = x if self.shortcut is None else self.shortcut(active)
        out = self.conv2(self.dropout(functional.relu(self.norm2(self.conv1(active)))))
        total: Tensor = out + kept
        return total


class _ResNet(nn.Module):
    """A 3x3 stem, groups of blocks of which all but the first halve the image, normalisation, ReLU, global mean, linear."""

    def __init__(self, n_classes: int, in_channels: int, stem: int, groups: Sequence[int], blocks: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_channels, stem, 3, padding=1, bias=False)
        widths = [stem, *(width for width in groups for _ in range(blocks))]
        strides = [2 if i and i % blocks == 0 else 1 for i in range(len(widths) - 1)]
        self.blocks = nn.Sequential(*map(partial(PreActivationBlock, dropout=dropout), widths, widths[1:], strides))
        self.norm = nn.BatchNorm2d(widths[-1])
        self.head = nn.Linear(widths[-1], n_classes)

    def forward(self, x: Tensor) -> Tensor:
        features = functional.relu(self.norm(self.blocks(self.stem(x))))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


class CifarResNet18(_ResNet):
    """ResNet-18 v2 whose first layer is one 3x3 convolution of stride 1, as in the source paper for CIFAR.

    Parameters
    ----------
    n_classes : int
        K.
    in_channels : int

    Notes
    -----
    Input (n, in_channels, h, w), 32 x 32 in the papers. Source: Ghazi et al. 2021, Appendix B; He et al. 2016.
    """

    def __init__(self, n_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__(n_classes, in_channels, 64, (64, 128, 256, 512), 2)


class WideResNet(_ResNet):
    """WRN-d-k: three groups of (d - 4) / 6 pre-activation blocks, 16 k, 32 k and 64 k channels wide.

    Parameters
    ----------
    n_classes : int
        K.
    depth, widen : int
        d and k; by default WRN-28-4. d = 6 b + 4 for b blocks a group.
    dropout : float
        Inside the blocks.
    in_channels : int

    Raises
    ------
    InvalidInput
        If no number of blocks gives the depth.

    Notes
    -----
    Input (n, in_channels, h, w), 32 x 32 in the papers. Source: Zagoruyko and Komodakis, "Wide residual networks" (2016), table 1.
    """

    def __init__(self, n_classes: int = 10, depth: int = 28, widen: int = 4, dropout: float = 0.0, in_channels: int = 3) -> None:
        each, left = divmod(depth - 4, 6)
        if left or each < 1:
            raise InvalidInput(f"Expected depth = 6 b + 4 with b >= 1 blocks a group, got depth={depth}. Use 16, 22, 28 or 40.")
        super().__init__(n_classes, in_channels, 16, (16 * widen, 32 * widen, 64 * widen), each, dropout)
