# SPDX-License-Identifier: Apache-2.0
"""Datasets with evidence: every item meets its own row, whatever the order, and a dataset that
changes its order is stopped."""

import numpy as np
import pytest
import torch
from tests.deep.datasets import closed
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import labeldp as ldp
from labeldp.deep import evidence_of, with_evidence
from labeldp.deep._inputs import fingerprint

N, K = 200, 7


def privatized(**options):
    labels = np.random.default_rng(0).integers(K, size=N)
    return ldp.privatize(closed(labels, K, **options), ldp.SubsetSelection(K, 1.0, size=3))


NOISY = privatized()


class Items:
    """Item i is the vector (name of i, 1) with a label beside it; `order` may change, and so may
    the content."""

    def __init__(self, names=None, noise=0.0):
        self.names = np.arange(N) if names is None else np.asarray(names)
        self.noise = noise

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        return torch.tensor([float(self.names[i]), 1.0]) + self.noise * torch.rand(2), "raw label"


def everything(loader):
    x, i, table = (torch.cat(column) for column in zip(*loader, strict=True))
    return x, i, table


@pytest.mark.parametrize("workers", [0, 2])
def test_every_row_comes_once_with_its_own_evidence(workers):
    data = with_evidence(Items(), NOISY)
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=workers)
    x, i, table = everything(loader)
    assert sorted(i.tolist()) == list(range(N)) and i.tolist() != list(range(N))
    torch.testing.assert_close(x[:, 0], i.float())
    torch.testing.assert_close(table, torch.from_numpy(NOISY.log_likelihood())[i])
    assert data.watched_by == "content"


def test_items_are_single_rows_too_and_end_where_the_data_ends():
    data = with_evidence(Items(), NOISY, form="compact")
    x, i, row = data[-1]
    assert i == N - 1 and x[0] == N - 1
    torch.testing.assert_close(row, torch.from_numpy(NOISY.log_likelihood()[N - 1]))
    with pytest.raises(IndexError):
        data[N]
    assert len(list(data)) == N  # the old protocol of iteration ends by IndexError


def test_ids_match_rows_in_any_order_and_leave_the_others_out():
    names = np.random.default_rng(1).permutation(N)
    ids = np.array([f"img-{j}" for j in range(N)])
    noisy = privatized(ids=ids)[np.array([150, 3, 77])]
    data = with_evidence(Items(names), noisy, ids=ids[names])
    assert len(data) == 3
    assert [x[0].item() for x, _, _ in data] == [150, 3, 77]
    assert [i for _, i, _ in data] == [0, 1, 2]


def test_evidence_can_stay_on_the_device():
    data = with_evidence(Items(), NOISY, rows=False)
    evidence = evidence_of(NOISY)
    x, i = next(iter(DataLoader(data, batch_size=16, shuffle=True)))
    torch.testing.assert_close(x[:, 0], i.float())
    torch.testing.assert_close(evidence[i].expand(K), torch.from_numpy(NOISY.log_likelihood())[i])


def read_again(data):
    """Every item, in order."""
    for i in range(len(data)):
        data[i]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_changes_its_order_between_epochs_is_stopped(workers):
    items = Items()
    data = with_evidence(items, NOISY)
    loader = DataLoader(data, batch_size=50, shuffle=True, num_workers=workers)
    assert len(everything(loader)[0]) == N
    items.names = np.roll(items.names, 1)
    with pytest.raises(ldp.InvalidInput, match="order"):
        everything(loader)
    with pytest.raises(ldp.InvalidInput, match="order"):
        read_again(data)


def test_random_transforms_are_told_apart_from_a_change_of_order():
    items = Items(noise=0.1)
    with pytest.warns(ldp.errors.LabelDPWarning, match="nobody would see it"):
        data = with_evidence(items, NOISY)
    assert data.watched_by == "nothing"
    everything(DataLoader(data, batch_size=50))
    named = with_evidence(items, NOISY, id_of=lambda item: int(item[0][0]))
    assert named.watched_by == "id"
    everything(DataLoader(named, batch_size=50))
    read_again(named)
    items.names = np.roll(items.names, 1)
    with pytest.raises(ldp.InvalidInput, match="got id 199"):
        read_again(named)
    with pytest.raises(ldp.InvalidInput, match="position 5"):
        named[5]


class Sometimes(Items):
    """Mirrors an item now and then."""

    def __init__(self, chance, seed):
        super().__init__()
        self.chance, self.random = chance, np.random.default_rng(seed)

    def __getitem__(self, i):
        x, label = super().__getitem__(i)
        return (x.flip(0) if self.random.random() < self.chance else x), label


@pytest.mark.filterwarnings("ignore:Items of the dataset differ")
@pytest.mark.parametrize("chance", [0.002, 0.01, 0.05, 0.1, 0.2, 0.5])
def test_rare_random_transforms_are_not_taken_for_a_change_of_order(chance):
    for seed in range(10):
        data = with_evidence(Sometimes(chance, seed), NOISY)
        for _ in range(5):
            read_again(data)
            everything(DataLoader(data, batch_size=50, shuffle=True))


@pytest.mark.filterwarnings("ignore:Items of the dataset differ")
def test_rare_random_transforms_that_are_watched_do_not_hide_a_change_of_order():
    every = [with_evidence(Sometimes(0.002, seed), NOISY) for seed in range(10)]
    watched = [data for data in every if data.watched_by == "content"]
    assert watched
    for data in watched:
        data.dataset.names = np.roll(data.dataset.names, 1)
        with pytest.raises(ldp.InvalidInput, match="order"):
            read_again(data)


def test_the_label_of_an_item_is_left_behind_and_mappings_need_a_function():
    assert with_evidence(TensorDataset(torch.arange(N), torch.zeros(N)), NOISY)[5][0] == 5
    assert with_evidence(torch.arange(N), NOISY)[5][0] == 5
    rows = [{"pixel_values": torch.tensor(j), "label": 0} for j in range(N)]
    with pytest.raises(ldp.InvalidInput, match="pixel_values"):
        with_evidence(rows, NOISY)
    assert with_evidence(rows, NOISY, features=lambda item: item["pixel_values"])[5][0] == 5


def test_data_that_do_not_match_are_refused():
    stream = type("Stream", (IterableDataset,), {"__iter__": lambda self: iter(range(3))})()
    for dataset, options, words in [
        (stream, {}, "map-style"),
        (Items(np.arange(N - 1)), {}, "as many as X has, got 200"),
        (Items(), {"ids": np.arange(N - 1)}, "one id an item"),
        (Items(), {"ids": np.arange(N) // 2}, r"100 that repeat, first in items 0 and 1"),
        (Items(), {"ids": np.arange(N) + 1}, "such as 0"),
    ]:
        with pytest.raises(ldp.InvalidInput, match=words):
            with_evidence(dataset, NOISY, **options)
    with pytest.raises(ldp.InvalidInput, match="NoisyLabels"):
        with_evidence(Items(), np.arange(N))


def test_string_ids_need_ids_of_the_dataset():
    noisy = privatized(ids=np.array([f"img-{j}" for j in range(N)]))
    with pytest.raises(ldp.InvalidInput, match="200 ids have none"):
        with_evidence(Items(), noisy)


DIFFERENT = [
    torch.zeros(2),
    torch.zeros(2, dtype=torch.int32),
    torch.zeros(1, 2),
    torch.tensor([0.0, 1e-30]),
    torch.zeros(2, dtype=torch.bfloat16),
    np.zeros(2),
    np.zeros(2, np.float32),
    np.array(["a", "b"]),
    (torch.zeros(1), torch.zeros(1)),
    [(torch.zeros(1),), torch.zeros(1)],
    {"a": 1, "b": 2},
    {"a": 2, "b": 1},
    "text",
    b"text",
    None,
    3,
    torch.tensor(3),
]


def test_fingerprints_differ_where_items_do_and_only_there():
    marks = [fingerprint(item) for item in DIFFERENT]
    assert len(set(marks)) == len(marks)
    # a view with strides
    assert marks[3] == fingerprint(torch.tensor([9.0, 0.0, 9.0, 1e-30])[1::2])
    assert marks[5] == fingerprint(np.zeros((2, 2))[:, 0])
