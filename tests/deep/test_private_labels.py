# SPDX-License-Identifier: Apache-2.0
"""Nets learn from closed labels; what else torch does with them is refused."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import labeldp as ldp
from labeldp.deep import Recipe, TorchClassifier, TorchRegressor, with_evidence
from labeldp.deep.models import Mlp

N = 300
Y = np.random.default_rng(0).integers(3, size=N)
X = (4 * np.eye(3)[Y] + np.random.default_rng(1).normal(size=(N, 3))).astype(np.float32)
IDS = np.random.default_rng(2).permutation(N) + N


def closed(**more):
    return ldp.PrivateLabels(Y, **{"classes": range(3), "ids": {"visit": IDS}} | more)


def net(**more):
    settings = {"epsilon": 6.0, "recipe": Recipe(epochs=8), "random_state": 0} | more
    return TorchClassifier(lambda k: Mlp(3, k, (8,)), **settings)


def test_items_are_matched_by_ids_or_their_order():
    labels, order = closed(), np.argsort(X[:, 0])
    items = TensorDataset(torch.from_numpy(X[order]), torch.zeros(N))
    model = net().fit(items, labels, ids=IDS[order])
    assert model.noisy_labels_.ids.tolist() == IDS[order].tolist() and labels.spent() == 6.0
    with pytest.raises(ldp.InvalidInput):
        net().fit(X, labels, ids=IDS + 1)
    assert labels.spent() == 6.0 and model.score(X, Y) > 0.5


def test_numbers_and_several_columns_are_learned():
    numbers = ldp.PrivateLabels(Y, range=(0, 2), points=3)
    model = TorchRegressor(lambda k: Mlp(3, k, (8,)), epsilon=8.0, recipe=Recipe(epochs=8))
    assert np.corrcoef(model.fit(X, numbers).predict(X), Y)[0, 1] > 0.5 and numbers.spent() == 8.0
    both = ldp.PrivateLabels({"y": Y, "odd": Y % 2}, classes={"y": range(3), "odd": [0, 1]})
    assert net().fit(X, both).predict(X).shape == (N, 2) and both.spent() == 6.0


@pytest.mark.parametrize(
    "reader",
    [
        torch.as_tensor,
        torch.tensor,
        lambda labels: TensorDataset(torch.from_numpy(X), labels),
        lambda labels: next(iter(DataLoader(labels, batch_size=2))),
        lambda labels: next(iter(DataLoader(labels, batch_size=2, num_workers=1))),
        lambda labels: with_evidence(TensorDataset(torch.from_numpy(X)), labels),
        lambda labels: torch.save(labels, "/dev/null"),
        lambda labels: net().fit(pd.DataFrame({"a": X[:, 0]}), labels),
    ],
)
def test_no_reader_of_torch_gets_a_label(reader):
    labels = closed()
    with pytest.raises((TypeError, ValueError, AttributeError)):
        reader(labels)
    assert labels.spent() == 0.0
