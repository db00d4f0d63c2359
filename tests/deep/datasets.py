# SPDX-License-Identifier: Apache-2.0
"""Datasets and nets of the tests."""

import numpy as np
import torch

import labeldp as ldp
from labeldp.deep.models import Mlp


def perceptron(classes=4):
    """A net of four features with the same first weights in every run of the tests."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Mlp(4, classes, (16,))


def separated(rows, classes):
    """Features and labels of classes that a small net tells apart."""
    rng = np.random.default_rng(0)
    labels = rng.integers(classes, size=rows)
    return (3 * np.eye(classes)[labels] + rng.normal(size=(rows, classes))).astype(
        np.float32
    ), labels


def closed(y, k=0, **facts):
    """Labels of k classes, drawn with noise from a seed, or as the ledger has it that is given."""
    classes = {"classes": range(k)} if k else {}
    named = {"dataset": "d", "column": "label"}
    account = named if "ledger" in facts else {"noise": ldp.SeededNoise(0)}
    return ldp.PrivateLabels(y, **classes | account | facts)


class Rows:
    """A Dataset of rows."""

    def __init__(self, X):
        self.X = X

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        return self.X[i]
