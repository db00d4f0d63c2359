# SPDX-License-Identifier: Apache-2.0
"""Ratings: a net that knows their order and who rated what, and questions about them that tell where a rating lies.

Who rated what is public under label privacy, only how well is not; so the net is given each user's and movie's place in the table of who
rated what, from the training rows alone.
"""

import numpy as np
import torch
from deep_data import Data
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import svds
from torch import Tensor, nn
from torch.nn import functional

Floats = NDArray[np.floating]

DIRECTIONS = 32


class RatingNet(nn.Module):
    """Logits of ordered classes: where the rating lies and how spread it is, each a user's part plus a movie's, with products of factors.

    Parameters
    ----------
    users, items : (n, columns) float32 arrays
        What is publicly known of each.
    n_classes : int
        K.
    factors : int
    reach : (float, float)
        Free vectors are stored divided by this, their first two columns and their factors: steps and penalties of plain SGD then suit
        vectors that a few rows move.

    Notes
    -----
    Input (n, 2) int64: user and movie. logits_k = base_k + place t_k + spread (t_k^2 - mean), t from -1 to 1: ordinal, with two numbers a
    row; place = a_u + b_i + p_u q_i. Source: biased matrix factorisation, Koren et al. 2009, under a categorical likelihood.
    """

    t: Tensor
    t2: Tensor
    users: Tensor
    items: Tensor
    reach: Tensor

    def __init__(self, users: Floats, items: Floats, n_classes: int, factors: int = 12, reach: tuple[float, float] = (20.0, 10.0)) -> None:
        super().__init__()
        self.register_buffer("users", torch.from_numpy(users))
        self.register_buffer("items", torch.from_numpy(items))
        t = torch.linspace(-1, 1, n_classes)
        self.register_buffer("t", t)
        self.register_buffer("t2", t**2 - (t**2).mean())
        self.register_buffer("reach", torch.tensor([reach[0]] * 2 + [reach[1]] * factors))
        width = 2 + factors
        self.base = nn.Parameter(torch.zeros(n_classes))
        self.of_user, self.of_item = nn.Linear(users.shape[1], width), nn.Linear(items.shape[1], width)
        self.user, self.item = nn.Embedding(len(users), width), nn.Embedding(len(items), width)
        for layer in (self.of_user, self.of_item):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.05 / reach[1])

    def forward(self, x: Tensor) -> Tensor:
        user, item = x.unbind(dim=1)
        # whole tables first: a batch is about as long as they are, and narrow rows are picked faster than wide ones
        u = functional.embedding(user, self.of_user(self.users) + self.reach * self.user.weight)
        i = functional.embedding(item, self.of_item(self.items) + self.reach * self.item.weight)
        place = u[:, 0] + i[:, 0] + (u[:, 2:] * i[:, 2:]).sum(dim=1)
        spread = u[:, 1] + i[:, 1]
        return self.base + place[:, None] * self.t + spread[:, None] * self.t2


def rating_net(data: Data, reach: float = 20.0, factor_reach: float = 10.0, factors: float = 12) -> RatingNet:
    """A fresh net with the public columns of this data set."""
    users, items = _public_columns(data)
    return RatingNet(users, items, data.n_classes, int(factors), (reach, factor_reach))


def _public_columns(data: Data) -> tuple[Floats, Floats]:
    """Standardised columns of users and movies: how many rows each has, its leading directions in who rated what, and who users are."""
    user, item = data.X.numpy().T
    seen = sparse.csr_matrix((np.ones(len(user)), (user, item)), shape=(len(data.people), 3953))
    n_user, n_item = (np.asarray(seen.sum(axis=axis)).ravel() for axis in (1, 0))
    scaled = sparse.diags(1 / np.sqrt(n_user + 10)) @ seen @ sparse.diags(1 / np.sqrt(n_item + 10))
    left, strength, right = svds(scaled, k=DIRECTIONS, rng=np.random.default_rng(0))
    left, right = left * strength / np.sqrt(n_user + 10)[:, None], right.T * strength / np.sqrt(n_item + 10)[:, None]
    users = np.column_stack([_standard(np.column_stack([np.log1p(n_user), left]), n_user), data.people])
    return users.astype(np.float32), _standard(np.column_stack([np.log1p(n_item), right]), n_item).astype(np.float32)


def _standard(columns: Floats, weights: Floats) -> Floats:
    """Columns of mean 0 and variance 1 over the training rows, cut at 4."""
    mean = np.average(columns, axis=0, weights=weights)
    spread = np.sqrt(np.average((columns - mean) ** 2, axis=0, weights=weights))
    return np.clip((columns - mean) / spread, -4, 4)
