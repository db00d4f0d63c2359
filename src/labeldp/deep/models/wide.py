# SPDX-License-Identifier: Apache-2.0
"""Wide residual networks."""

from torch import Tensor, nn
from torch.nn import functional

from labeldp.deep.models.resnet import PreActivationBlock
from labeldp.errors import InvalidInput


class WideResNet(nn.Module):
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
        super().__init__()
        each, left = divmod(depth - 4, 6)
        if left or each < 1:
            raise InvalidInput(f"Expected depth = 6 b + 4 with b >= 1 blocks a group, got depth={depth}. Use 16, 22, 28 or 40.")
        self.stem = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        n_in = 16
        for n_out, stride in ((16 * widen, 1), (32 * widen, 2), (64 * widen, 2)):
            blocks.append(PreActivationBlock(n_in, n_out, stride, dropout))
            blocks += [PreActivationBlock(n_out, n_out, 1, dropout) for _ in range(each - 1)]
            n_in = n_out
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(n_in)
        self.head = nn.Linear(n_in, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        features = functional.relu(self.norm(self.blocks(self.stem(x))))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits
