# SPDX-License-Identifier: Apache-2.0
"""Neural collaborative filtering: predict a user's rating of an item."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from labeldp.errors import InvalidInput


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
