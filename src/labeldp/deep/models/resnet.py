# SPDX-License-Identifier: Apache-2.0
"""ResNet-18 v2 for small images."""

from torch import Tensor, nn
from torch.nn import functional


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


class CifarResNet18(nn.Module):
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
        super().__init__()
        self.stem = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        n_in = 64
        for n_out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [PreActivationBlock(n_in, n_out, stride), PreActivationBlock(n_out, n_out)]
            n_in = n_out
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(n_in)
        self.head = nn.Linear(n_in, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        features = functional.relu(self.norm(self.blocks(self.stem(x))))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits
