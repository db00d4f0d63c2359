# SPDX-License-Identifier: Apache-2.0
"""The data sets of the deep benchmarks, as tensors. All of them are public, labels included."""

import zlib
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labeldp import datasets

TABLES = {
    "fashion-mnist": "fashion_mnist",
    "mnist": "mnist",
    "kmnist": "kmnist",
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "movielens": "movielens_1m",
}


@dataclass(frozen=True, eq=False)
class Data:
    """A data set in memory.

    Attributes
    ----------
    name : str
        One of `TABLES`.
    X, X_test : Tensor
        Images (n, channels, height, width) uint8; MovieLens: (n, 2) int64, user and movie.
    y, y_test : (n,) int64 array
        True labels. Training sees those of `X` through a law only (except where it is not private);
        those of `X_test` are looked at when training is over.
    n_classes : int
    people : (users, columns) float32 array
        MovieLens: what is known of each user besides ratings, one-hot; else empty.
    """

    name: str
    X: Tensor
    y: NDArray[np.int64]
    X_test: Tensor
    y_test: NDArray[np.int64]
    n_classes: int
    people: NDArray[np.float32]

    @property
    def rates(self) -> bool:
        """True where classes are ratings 1..K, and the error of the predicted mean is measured."""
        return self.name == "movielens"

    def part(self, rows: NDArray[np.int64]) -> "Data":
        """The same with these training rows only."""
        return replace(self, X=self.X[torch.from_numpy(rows)], y=self.y[rows])

    def tiny(self, n: int) -> "Data":
        """A few rows of both parts, to try a command out."""
        rows = np.random.default_rng(0).permutation(len(self.y))[:n]
        return replace(self.part(rows), X_test=self.X_test[:n], y_test=self.y_test[:n])


@cache
def load(table: str) -> Data:
    """A data set by the name of its table."""
    found = datasets.load(TABLES[table])
    if table == "movielens":
        return _ratings(found)
    if not len(found.y_train):
        raise SystemExit(
            f"{table}: no train images in LABELDP_DATA. Put the files that labeldp.datasets names"
            " there."
        )
    nobody = np.empty((0, 0), np.float32)
    return Data(
        table,
        _images(found.X_train),
        found.y_train,
        _images(found.X_test),
        found.y_test,
        found.n_classes,
        nobody,
    )


def _images(X: NDArray[np.generic]) -> Tensor:
    images = torch.from_numpy(np.array(X))
    return images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()


def _ratings(found: datasets.DataSet) -> Data:
    """MovieLens-1M: 80 % of the ratings at random to learn from and 20 % to test, one split for all
    runs, as Ghazi et al. 2021."""
    pairs, y = found.X_train[:, :2].astype(np.int64), found.y_train
    order = np.random.default_rng(zlib.crc32(b"movielens 80/20")).permutation(len(y))
    test, train = np.split(order, [len(y) // 5])
    # gender, age group, occupation
    levels = [np.unique(column, return_inverse=True)[1] for column in found.X_train[:, 2:].T]
    one_hot = np.concatenate(
        [np.eye(level.max() + 1, dtype=np.float32)[level] for level in levels], axis=1
    )
    people = np.zeros((int(pairs[:, 0].max()) + 1, one_hot.shape[1]), np.float32)
    people[pairs[:, 0]] = one_hot
    X = torch.from_numpy(pairs)
    return Data(
        "movielens",
        X[torch.from_numpy(train)],
        y[train],
        X[torch.from_numpy(test)],
        y[test],
        found.n_classes,
        people,
    )
