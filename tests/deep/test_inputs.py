# SPDX-License-Identifier: Apache-2.0
"""Inputs of every kind come row by row as asked, so that no sampler, worker or change of order can
give a row another's label."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import labeldp as ldp
from labeldp.deep import (
    Recipe,
    Streamed,
    as_inputs,
    evidence_of,
    predict,
    train,
    with_evidence,
)
from labeldp.deep import _inputs as inputs
from labeldp.deep._inputs import Inputs
from labeldp.deep.models import Mlp, SmallConvNet

N, K = 90, 3
X = torch.arange(2.0 * N).reshape(N, 2) / N
ROWS = [torch.tensor([5, 3, 80]), torch.tensor([0]), torch.tensor([7, 7])]


class Items(Dataset):
    """Item i is (x, a label that must not be read)."""

    def __init__(self, x=X):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], "raw label"


class Several(Items):
    """Gives a batch at once, and counts how often."""

    asked = 0

    def __getitems__(self, rows):
        self.asked += 1
        return [self[i] for i in rows]


class Own(Inputs):
    """What the two methods of a subclass are enough for."""

    def __len__(self):
        return N

    def batches(self, rows):
        return (X[chosen] for chosen in rows)


def first_of(items):
    return torch.stack([x for x, _ in items]), "labels"


KINDS = {
    "tensor": lambda: X,
    "array": lambda: X.numpy(),
    "list": lambda: X.tolist(),
    "inputs": Own,
    "tensor dataset": lambda: TensorDataset(X, torch.zeros(N)),
    "loader of tensors": lambda: DataLoader(
        TensorDataset(X, torch.zeros(N)), batch_size=7, shuffle=True
    ),
    "dataset": Items,
    "several at once": Several,
    "shuffled loader": lambda: DataLoader(Items(), batch_size=7, shuffle=True, drop_last=True),
    "workers": lambda: DataLoader(
        Items(), batch_size=7, shuffle=True, num_workers=2, collate_fn=first_of
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_the_rows_that_were_asked_for(kind):
    found = as_inputs(KINDS[kind]())
    assert len(found) == N and found.ndim == 2
    for data, wanted in (
        (found, X),
        (found.on("cpu"), X),
        (found.take(torch.arange(N).flip(0)), X.flip(0)),
    ):
        got = list(data.batches(ROWS))
        assert len(got) == len(ROWS)
        for rows, batch in zip(ROWS, got, strict=True):
            torch.testing.assert_close(batch.float(), wanted[rows])
    part = found.take(torch.arange(10, 20)).on("cpu").take(torch.tensor([2, 0]))
    torch.testing.assert_close(next(part.batches([torch.tensor([1, 0])])).float(), X[[10, 12]])
    assert len(part) == 2 and part.ndim == 2


def test_features_choose_x():
    found = as_inputs(Items(), features=lambda item: item[0] * 2)
    torch.testing.assert_close(next(found.batches(ROWS)), 2 * X[ROWS[0]])
    mappings = [{"x": row} for row in X]
    data = Streamed(mappings, features=lambda item: item["x"])
    torch.testing.assert_close(next(data.batches(ROWS)), X[ROWS[0]])
    with pytest.raises(ldp.InvalidInput, match="features="):
        Streamed(mappings)


def test_what_does_not_fit_stays_where_it_is(monkeypatch):
    """A device of which little is free: the loop sends batches one by one."""
    monkeypatch.setattr(inputs, "_room", lambda device: 4 * X.numel())
    elsewhere = as_inputs(X).on("meta")
    assert elsewhere.tensor.device.type == "cpu"
    torch.testing.assert_close(next(elsewhere.batches(ROWS)), X[ROWS[0]])
    monkeypatch.setattr(inputs, "_room", lambda device: 8 * X.numel())
    assert as_inputs(X).on("meta").tensor.device.type == "meta"


class Stream(IterableDataset):
    def __iter__(self):
        return iter(X)


class Objects(Items):
    def __getitem__(self, i):
        return object(), 0


class Ragged(Items):
    def __getitem__(self, i):
        return self.x[i][: 1 + i % 2]


def read(data):
    return list(as_inputs(data).batches(ROWS))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (Stream, "map-style"),
        (lambda: DataLoader(Stream()), "map-style"),
        (
            lambda: DataLoader(Items(), sampler=WeightedRandomSampler(torch.ones(N), 5)),
            "with sampler=WeightedRandomSampler, which may leave rows out",
        ),
        (
            lambda: DataLoader(Items(), batch_sampler=[[0, 1], [2]]),
            "with batch_sampler=list, which may leave rows out",
        ),
        (
            lambda: DataLoader(Items(), batch_size=None),
            "with batch_sampler=None, which may leave rows out",
        ),
        (lambda: np.array(["a", "b"]), "numbers"),
        (lambda: {"x": X}, "an item a row"),
        (lambda: X.to_sparse(), r"sparse Tensor.*to_dense\(\)"),
        (lambda: csr_matrix(np.eye(3)), r"sparse csr_matrix.*toarray\(\)"),
        (lambda: DataLoader(Items(), collate_fn=lambda items: X[:1]), "tensor of 3 rows"),
        (lambda: DataLoader(Items(), collate_fn=lambda items: ["x"]), "one tensor"),
    ],
)
def test_what_has_no_positions_or_no_tensors_is_refused(make, match):
    with pytest.raises(ldp.InvalidInput, match=match):
        read(make())


def test_items_that_make_no_tensor_are_refused_with_what_to_do():
    for data in (Objects(), Ragged()):
        with pytest.raises(ldp.InvalidInput, match="collate_fn"):
            list(Streamed(data, watch=False).batches(ROWS))


class Noisy(Items):
    """A random transform: the same item differs from itself."""

    def __getitem__(self, i):
        return self.x[i] + torch.rand(2), 0


class Shuffled(Noisy):
    """Items of a random transform that carry their names, in an order that may change."""

    def __init__(self):
        super().__init__()
        self.order = list(range(N))

    def __getitem__(self, i):
        return super().__getitem__(self.order[i])[0], f"item {self.order[i]}"


@pytest.mark.parametrize("loaded", [False, True])
def test_items_that_name_themselves_are_checked_by_their_names(loaded):
    data, names = Shuffled(), [f"item {i}" for i in range(N)]
    found = as_inputs(
        DataLoader(data, 8) if loaded else data, id_of=lambda item: item[1], ids=names
    )
    assert torch.cat(list(found.batches(torch.arange(N).split(40)))).shape == (N, 2)
    data.order[3], data.order[4] = 4, 3
    with pytest.raises(ldp.InvalidInput, match="id 'item 3' at position 3, got id 'item 4'"):
        list(found.batches(torch.arange(N).split(40)))
    with pytest.raises(ldp.InvalidInput, match="one id an item"):
        as_inputs(data, id_of=lambda item: item[1], ids=names[1:])
    with pytest.raises(ldp.InvalidInput, match="Expected a Dataset"):
        as_inputs(torch.zeros(3, 2), id_of=len)


def test_positions_are_the_names_where_no_others_are_given():
    tensors = TensorDataset(torch.zeros(N, 2), torch.arange(N).flip(0))
    assert len(as_inputs(tensors, id_of=lambda item: N - 1 - int(item[1]))) == N
    with pytest.raises(ldp.InvalidInput, match="id 0 at position 0"):
        list(as_inputs(tensors, id_of=lambda item: int(item[1])).batches([torch.arange(2)]))


class Backwards(Streamed):
    """Reads each batch in the wrong order, as a faulty worker would."""

    def __init__(self, dataset):
        super().__init__(dataset)
        items = self._items
        self._items = type(
            "Wrong",
            (),
            {
                "__len__": lambda _: len(items),
                "__getitems__": lambda _, rows: items.__getitems__(rows[::-1]),
            },
        )()


def test_batches_in_another_order_are_refused():
    with pytest.raises(ldp.InvalidInput, match="order that was asked for"):
        list(Backwards(Items()).batches(ROWS))


def evidence(n=N):
    labels = np.random.default_rng(0).integers(K, size=n)
    return ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(K), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(K, 1.0),
    )


def fitted(data, recipe=None, net=Mlp, **options):
    torch.manual_seed(0)
    made = Mlp(2, K) if net is Mlp else net(K, 2)
    recipe = recipe or Recipe(2, 32, 0.05, precision="float32", optimizer="sgd")
    return train(
        made,
        data,
        evidence_of(evidence()),
        recipe,
        generator=torch.Generator().manual_seed(0),
        **options,
    )


def test_every_kind_of_inputs_trains_the_same_net():
    expected = predict(fitted(X), X)
    for kind, make in KINDS.items():
        torch.testing.assert_close(predict(fitted(make()), make()), expected, msg=kind)
    torch.testing.assert_close(
        predict(fitted(with_evidence(Items(), evidence())), X.double()), expected
    )
    # floats become the net's
    torch.testing.assert_close(predict(fitted(X.double().numpy()), X), expected)


def test_images_are_bytes_wherever_they_come_from():
    images = torch.randint(0, 256, (N, 2, 8, 8), dtype=torch.uint8)
    whole = predict(fitted(images, net=SmallConvNet), images)
    streamed = fitted(Items(images), net=SmallConvNet)
    torch.testing.assert_close(predict(streamed, Items(images)), whole)
    assert next(p for p in streamed.parameters() if p.ndim == 4).is_contiguous(
        memory_format=torch.channels_last
    )


def test_a_pair_of_unlike_lengths_and_no_rows_are_refused():
    form = evidence_of(evidence())
    with pytest.raises(ldp.InvalidInput, match="90 for 89"):
        fitted(Subset(Items(), range(N - 1)))
    with pytest.raises(ldp.InvalidInput, match="90 for 10"):
        fitted(X, held_out=(X[:10], form))
    with pytest.raises(ldp.InvalidInput, match="at least one row"):
        predict(nn.Linear(2, K), X[:0])

    class Short(Own):
        def batches(self, rows):
            return (X[chosen][1:] for chosen in rows)

    with pytest.raises(ldp.InvalidInput, match="asked for"):
        fitted(Short())
