# SPDX-License-Identifier: Apache-2.0
"""Labels are taken out of a Dataset that has no list of them, and its inputs stay."""

import logging
import traceback

import numpy as np
import pytest
import torch
from tests.deep.datasets import closed
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import labeldp as ldp
from labeldp.deep import Recipe, TorchClassifier, split_labels
from labeldp.deep.models import Mlp

pytestmark = pytest.mark.deep

X = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
PAIRS = TensorDataset(X, Y)
FACTS = {"classes": [0, 1], "noise": ldp.SeededNoise(0)}


@pytest.mark.parametrize("items", [PAIRS, DataLoader(PAIRS, batch_size=7)], ids=["set", "loader"])
def test_a_net_learns_from_the_parts_as_from_a_list_beside_the_dataset(items, caplog):
    with caplog.at_level(logging.INFO, "labeldp"):
        inputs, labels = split_labels(items, **FACTS)
    assert "300 items" in caplog.text
    assert len(inputs) == len(labels) == 300 and torch.equal(inputs[7], X[7])
    net = TorchClassifier(Mlp(3, 2, (4,)), recipe=Recipe(epochs=1), epsilon=4.0, random_state=0)
    found = net.fit(inputs, labels).predict_proba(X)
    beside = net.fit(PAIRS, closed(Y, 2)).predict_proba(X)
    np.testing.assert_array_equal(found, beside)


def test_label_of_says_where_a_label_is():
    class Items(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return {"x": torch.zeros(2), "bought": ["no", "yes"][i % 2]}

    _, labels = split_labels(Items(), lambda item: item["bought"], classes=["no", "yes"])
    assert len(labels) == 4 and labels.classes == ("no", "yes")


def test_what_has_no_order_is_refused():
    class Endless(IterableDataset):
        def __iter__(self):
            return iter(PAIRS)

    class Changing(Dataset):
        def __len__(self):
            return 300

        def __getitem__(self, i):
            self.read = getattr(self, "read", 0) + 1
            return X[i], self.read % 3

    class Failing(Changing):
        def __getitem__(self, i):
            raise ValueError("4711")

    for items, match in (
        (DataLoader(PAIRS, shuffle=True), "does not shuffle"),
        (Endless(), "map-style"),
        (Changing(), "same label each time"),
        (Failing(), "one a row"),
        (TensorDataset(X, Y + 4711), "codes 0 to 1"),
    ):
        with pytest.raises(ldp.InvalidInput, match=match) as caught:
            split_labels(items, **FACTS)
        told = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
        shown = [str(each.locals) for each in told.stack if "/src/labeldp/" in each.filename]
        assert shown and not [text for text in shown if "4711" in text or "found" in text]
