# SPDX-License-Identifier: Apache-2.0
"""The nets of the deep benchmarks, by name. Each returns logits (n, K).

The net of ratings knows their order and who rated what: under label privacy that is public, only
how well is not. It is given each user's and movie's place in the table of who rated what, from the
training rows alone.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import svds
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.deep.data import Data
from labeldp.deep import models
from labeldp.errors import InvalidInput

Floats = NDArray[np.floating]
DIRECTIONS = 32


class NeuralCollaborativeFiltering(nn.Module):
    """A net of two branches with separate embeddings, the product of user and item and a
    perceptron, and a linear layer on both.

    Parameters
    ----------
    n_users, n_items : int
        6040 and 3706 in MovieLens-1M; ids run to 3952 there.
    n_classes : int
        K, the number of ratings; five in MovieLens-1M.
    factors : int
        Width of the product branch.
    hidden : sequence of int, the first even
        Widths of the perceptron: the concatenated embeddings, then each layer.

    Notes
    -----
    Input (n, 2) int64: user and item. A rating is predicted by the mean under the softmax.

    References
    ----------
    He et al. (2017), "Neural collaborative filtering", section 3.4 (NeuMF); Ghazi et al. (2021),
    Appendix B.
    """

    def __init__(
        self,
        n_users: int = 6041,
        n_items: int = 3953,
        n_classes: int = 5,
        factors: int = 8,
        hidden: Sequence[int] = (64, 32, 16, 8),
    ) -> None:
        super().__init__()
        if len(hidden) < 2 or hidden[0] % 2:
            raise InvalidInput(
                "Expected hidden to start with an even width and have a layer, got"
                f" {tuple(hidden)}. Use (64, 32, 16, 8)."
            )
        half = hidden[0] // 2
        self.user_factors, self.item_factors = (
            nn.Embedding(n_users, factors),
            nn.Embedding(n_items, factors),
        )
        self.user_inputs, self.item_inputs = (
            nn.Embedding(n_users, half),
            nn.Embedding(n_items, half),
        )
        layers: list[nn.Module] = []
        for n_in, n_out in pairwise(hidden):
            layers += [nn.Linear(n_in, n_out), nn.ReLU()]
        self.perceptron = nn.Sequential(*layers)
        self.head = nn.Linear(factors + hidden[-1], n_classes)
        for table in (self.user_factors, self.item_factors, self.user_inputs, self.item_inputs):
            # as in the reference code; torch's default std of 1 is far too large
            nn.init.normal_(table.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        user, item = x.unbind(dim=1)
        product = self.user_factors(user) * self.item_factors(item)
        deep = self.perceptron(torch.cat((self.user_inputs(user), self.item_inputs(item)), dim=1))
        logits: Tensor = self.head(torch.cat((product, deep), dim=1))
        return logits


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

    def __init__(
        self,
        n_classes: int = 10,
        in_channels: int = 1,
        widths: tuple[int, int, int] = (24, 48, 128),
    ) -> None:
        super().__init__()
        first, second, third = widths
        pool = nn.MaxPool2d(2)
        self.features = nn.Sequential(
            *_layer(in_channels, first),
            pool,
            *_layer(first, second),
            *_layer(second, second),
            pool,
            *_layer(second, third),
        )
        self.head = nn.Linear(third, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).amax(dim=(2, 3)))
        return logits


def _layer(n_in: int, n_out: int) -> list[nn.Module]:
    return [
        nn.Conv2d(n_in, n_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(inplace=True),
    ]


class FastResNet(nn.Module):
    """ResNet-9: four wide convolutions with pooling and two residual blocks, which trains CIFAR-10
    in about a minute on one GPU.

    Parameters
    ----------
    n_classes : int
        K.
    in_channels : int
    width : int
        Channels of the first convolution; the last has eight times as many.

    Notes
    -----
    Source: Page, "How to train your ResNet" (2018), the DAWNBench entry. Logits are scaled by 1/8,
    as there.
    """

    def __init__(self, n_classes: int = 10, in_channels: int = 3, width: int = 64) -> None:
        super().__init__()
        w = width
        self.prepare = nn.Sequential(*_layer(in_channels, w), *_layer(w, 2 * w), nn.MaxPool2d(2))
        self.block1 = nn.Sequential(*_layer(2 * w, 2 * w), *_layer(2 * w, 2 * w))
        self.middle = nn.Sequential(
            *_layer(2 * w, 4 * w), nn.MaxPool2d(2), *_layer(4 * w, 8 * w), nn.MaxPool2d(2)
        )
        self.block2 = nn.Sequential(*_layer(8 * w, 8 * w), *_layer(8 * w, 8 * w))
        self.head = nn.Linear(8 * w, n_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.prepare(x)
        x = self.middle(x + self.block1(x))
        x = x + self.block2(x)
        logits: Tensor = self.head(x.amax(dim=(2, 3))) / 8
        return logits


class RatingNet(nn.Module):
    """Logits of ordered classes: where the rating lies and how spread it is, each a user's part
    plus a movie's, with products of factors.

    Parameters
    ----------
    users, items : (n, columns) float32 arrays
        What is publicly known of each.
    n_classes : int
        K.
    factors : int
    reach : (float, float)
        Free vectors are stored divided by this, their first two columns and their factors: steps
        and penalties of plain SGD then suit vectors that a few rows move.

    Notes
    -----
    Input (n, 2) int64: user and movie. logits_k = base_k + place t_k + spread (t_k^2 - mean), t
    from -1 to 1: ordinal, with two numbers a row; place = a_u + b_i + p_u q_i. Source: biased
    matrix factorisation, Koren et al. 2009, under a categorical likelihood.
    """

    t: Tensor
    t2: Tensor
    users: Tensor
    items: Tensor
    reach: Tensor

    def __init__(
        self,
        users: Floats,
        items: Floats,
        n_classes: int,
        factors: int = 12,
        reach: tuple[float, float] = (20.0, 10.0),
    ) -> None:
        super().__init__()
        self.register_buffer("users", torch.from_numpy(users))
        self.register_buffer("items", torch.from_numpy(items))
        t = torch.linspace(-1, 1, n_classes)
        self.register_buffer("t", t)
        self.register_buffer("t2", t**2 - (t**2).mean())
        self.register_buffer("reach", torch.tensor([reach[0]] * 2 + [reach[1]] * factors))
        width = 2 + factors
        self.base = nn.Parameter(torch.zeros(n_classes))
        self.of_user, self.of_item = (
            nn.Linear(users.shape[1], width),
            nn.Linear(items.shape[1], width),
        )
        self.user, self.item = nn.Embedding(len(users), width), nn.Embedding(len(items), width)
        for layer in (self.of_user, self.of_item):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.05 / reach[1])

    def forward(self, x: Tensor) -> Tensor:
        user, item = x.unbind(dim=1)
        # whole tables first: a batch is about as long as they are, and narrow rows are picked
        # faster than wide ones
        u = functional.embedding(user, self.of_user(self.users) + self.reach * self.user.weight)
        i = functional.embedding(item, self.of_item(self.items) + self.reach * self.item.weight)
        place = u[:, 0] + i[:, 0] + (u[:, 2:] * i[:, 2:]).sum(dim=1)
        spread = u[:, 1] + i[:, 1]
        return self.base + place[:, None] * self.t + spread[:, None] * self.t2


def rating_net(
    data: Data, reach: float = 20.0, factor_reach: float = 10.0, factors: float = 12
) -> RatingNet:
    """A fresh net with the public columns of this data set."""
    users, items = _public_columns(data)
    return RatingNet(users, items, data.n_classes, int(factors), (reach, factor_reach))


def _public_columns(data: Data) -> tuple[Floats, Floats]:
    """Standardised columns of users and movies: how many rows each has, its leading directions in
    who rated what, and who users are."""
    user, item = data.X.numpy().T
    seen = sparse.csr_matrix((np.ones(len(user)), (user, item)), shape=(len(data.people), 3953))
    n_user, n_item = (np.asarray(seen.sum(axis=axis)).ravel() for axis in (1, 0))
    scaled = sparse.diags(1 / np.sqrt(n_user + 10)) @ seen @ sparse.diags(1 / np.sqrt(n_item + 10))
    left, strength, right = svds(scaled, k=DIRECTIONS, rng=np.random.default_rng(0))
    left, right = (
        left * strength / np.sqrt(n_user + 10)[:, None],
        right.T * strength / np.sqrt(n_item + 10)[:, None],
    )
    users = np.column_stack(
        [_standard(np.column_stack([np.log1p(n_user), left]), n_user), data.people]
    )
    return users.astype(np.float32), _standard(
        np.column_stack([np.log1p(n_item), right]), n_item
    ).astype(np.float32)


def _standard(columns: Floats, weights: Floats) -> Floats:
    """Columns of mean 0 and variance 1 over the training rows, cut at 4."""
    mean = np.average(columns, axis=0, weights=weights)
    spread = np.sqrt(np.average((columns - mean) ** 2, axis=0, weights=weights))
    return np.clip((columns - mean) / spread, -4, 4)


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


_VGG16 = (1, 1, None, 2, 2, None, 4, 4, 4, None, 8, 8, 8, None, 8, 8, 8, None)


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
        # A bias before batch normalisation has no effect; it is there for torchvision's weights.
        layers: list[nn.Module] = []
        n_in = in_channels
        for each in _VGG16:
            if each is None:
                layers.append(nn.MaxPool2d(2))
            else:
                conv = nn.Conv2d(n_in, width * each, 3, padding=1)
                layers += [conv, nn.BatchNorm2d(width * each), nn.ReLU(inplace=True)]
                n_in = width * each
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(8 * width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).mean(dim=(2, 3)))
        return logits


class WideResNet(models.ResNet):
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


_IMAGE_NETS: dict[str, Callable[..., nn.Module]] = {
    "quick": QuickNet,
    "small-convnet": models.SmallConvNet,
    "small-inception": SmallInception,
    "cifar-resnet18": models.CifarResNet18,
    "fast-resnet": FastResNet,
    "wide-resnet": WideResNet,
    "vgg16": Vgg16,
}
# what stands after the colon; else widths
_NUMBERS = {"fast-resnet": ("width",), "wide-resnet": ("depth", "widen"), "vgg16": ("width",)}


def build(name: str, data: Data) -> nn.Module:
    """A fresh net for this data set, its weights from torch's global generator.

    Parameters
    ----------
    name : str
        A net's name, with widths after a colon where it takes them: "quick:24,48,96",
        "wide-resnet:16,1".
    data : Data
    """
    kind, _, text = name.partition(":")
    numbers = tuple(float(number) for number in text.split(",")) if text else ()
    if kind == "ncf":
        return NeuralCollaborativeFiltering(n_classes=data.n_classes)
    if kind == "ratings":
        return rating_net(data, *numbers)
    named = (
        dict(zip(_NUMBERS.get(kind, ()), map(int, numbers), strict=True))
        if kind in _NUMBERS and numbers
        else {}
    )
    widths: dict[str, Any] = named if named or not numbers else {"widths": tuple(map(int, numbers))}
    net = _IMAGE_NETS[kind](n_classes=data.n_classes, in_channels=data.X.shape[1], **widths)
    # it halves images five times
    return (
        nn.Sequential(nn.ZeroPad2d(2), net) if kind == "vgg16" and data.X.shape[-1] == 28 else net
    )


def n_parameters(net: nn.Module) -> int:
    """Number of weights."""
    return sum(p.numel() for p in net.parameters())
