# SPDX-License-Identifier: Apache-2.0
"""Raw labels that a user's functions and objects hold reach no file of a fit and no message:
whatever they are, all bytes are equal."""

import functools
import json
import types
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from tests.deep.datasets import closed
from tests.naming import named
from torch.utils.data import TensorDataset

import labeldp as ldp
from labeldp.custody import _draw as worker
from labeldp.deep import Recipe, TorchClassifier, likelihood_loss
from labeldp.deep.models import Mlp

K, N = 3, 60
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
LABELS = np.arange(N) % K
OTHER = np.where(np.arange(N) < 7, 1, 2)
"""No class 0, and other counts of the rest."""

RECIPE = Recipe(epochs=1, batch_size=32, rate=0.05, precision="float32", optimizer="sgd")
PARTS = {
    "maker": lambda k: Mlp(4, k, (4,)),
    "loss": lambda logits, evidence, reduction="mean": likelihood_loss(logits, evidence, reduction),
    "augment": lambda images, generator: images,
    "schedule": lambda t: 1.0,
}


@dataclass(frozen=True)
class Held:
    """What holds labels as a dataclass does."""

    base: object
    labels: object = field(repr=True)

    def __call__(self, *given, **more):
        return self.base(*given, **more)


class Experiment:
    """What holds labels as objects do."""

    def __init__(self, base, labels):
        self.base, self.labels, self.n_positive = base, labels.tolist(), int(labels.sum())
        self.by_label = {str(each): i for i, each in enumerate(labels)}
        setattr(self, f"mode_{np.bincount(labels).argmax()}", True)

    def __call__(self, *given, **more):
        return self.base(*given, **more)

    def method(self, *given, **more):
        return self.base(*given, **more)

    def __repr__(self):
        return f"Experiment({self.labels})"


class Net(torch.nn.Module):
    """A module with labels beside its weights."""

    def __init__(self, labels):
        super().__init__()
        self.register_buffer("labels", torch.from_numpy(labels))


def over(thing):
    """A function that closes over a thing."""
    return lambda base, labels: closing(base, thing(labels))


def closing(base, held):
    def call(*given, **more):
        return base(*given, **more) if held is not None else None

    return call


def with_argument(base, held, *given, **more):
    return base(*given, **more)


def with_defaults(base, labels):
    listed, mean = labels.tolist(), float(labels.mean())

    def call(*given, labels=listed, share=mean, **more):
        return base(*given, **more)

    return call


def with_attribute(base, labels):
    call = closing(base, 1)
    call.labels = labels.tolist()
    return call


def with_globals(base, labels):
    def call(*given, **more):
        return BASE(*given, **more) if FROM is not None and TEXT else None  # noqa: F821

    known = {
        "BASE": base,
        "FROM": labels.tolist(),
        "TEXT": f"mean {labels.mean()}",
        "__name__": __name__,
    }
    return types.FunctionType(call.__code__, known)


def cached(base, labels):
    @functools.lru_cache
    def n_positive():
        return int(labels.sum())

    n_positive()

    def call(*given, **more):
        return base(*given, **more) if n_positive() else None

    return call


def as_class(base, labels):
    class Holder:
        targets = labels.tolist()

        @classmethod
        def call(cls, *given, **more):
            return base(*given, **more)

    return Holder.call


WAYS = {
    "a list in a closure": over(lambda y: y.tolist()),
    "a long tuple in a closure": over(lambda y: tuple(y.tolist())),
    "an array in a closure": over(lambda y: y),
    "a tensor in a closure": over(torch.from_numpy),
    "a count in a closure": over(lambda y: int((y == 1).sum())),
    "a share in a closure": over(lambda y: float(y.mean())),
    "a text in a closure": over(str),
    "rows of a class in a closure": over(lambda y: np.flatnonzero(y == 1)),
    "the list of them": over(lambda y: np.flatnonzero(y == 1).tolist()),
    "a set in a closure": over(set),
    "a mapping in a closure": over(lambda y: {int(each): i for i, each in enumerate(y)}),
    "bytes in a closure": over(lambda y: y.tobytes()),
    "a dataset in a closure": over(lambda y: TensorDataset(torch.zeros(N, 1), torch.from_numpy(y))),
    "an object in a closure": over(lambda y: Experiment(None, y)),
    "a module in a closure": over(Net),
    "a function in a closure": over(lambda y: closing(int, y.tolist())),
    "a method of a list": over(lambda y: y.tolist().count),
    "a callable object": Experiment,
    "a bound method": lambda base, labels: Experiment(base, labels).method,
    "a dataclass": lambda base, labels: Held(base, labels.tolist()),
    "a number of a dataclass": lambda base, labels: Held(base, int(labels.sum())),
    "an argument of a partial": lambda base, labels: functools.partial(
        with_argument, base, labels.tolist()
    ),
    "a number of a partial": lambda base, labels: functools.partial(
        with_argument, base, float(labels.mean())
    ),
    "a partial of an object": lambda base, labels: functools.partial(Experiment(base, labels)),
    "a partial of a partial": lambda base, labels: functools.partial(
        functools.partial(with_argument, base), labels
    ),
    "defaults": with_defaults,
    "an attribute of a function": with_attribute,
    "globals": with_globals,
    "a cache": cached,
    "a class": as_class,
}


def written(folder, way, labels):
    """All bytes that a fit leaves in its folder, and what it tells of its epochs."""
    parts = {name: WAYS[way](base, labels) for name, base in PARTS.items()}
    recipe = replace(
        RECIPE,
        loss=parts["loss"],
        augment=parts["augment"],
        schedule=parts["schedule"],
    )
    folder.mkdir()
    told = []
    TorchClassifier(
        parts["maker"],
        recipe=(recipe, replace(recipe, rate=0.04)),
        stages=2,
        validation_fraction=0.4,
        random_state=0,
        folder=folder / "fit",
        progress=told.append,
    ).fit(X, closed(labels, K))
    return {"epochs": repr(told).encode()} | {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def blind(monkeypatch):
    """A draw that looks at no label, so that nothing that follows from it differs."""
    draw = worker.draw
    monkeypatch.setattr(
        worker, "draw", lambda law, codes, *rest: draw(law, np.zeros_like(codes), *rest)
    )


@pytest.mark.parametrize("way", WAYS, ids=named)
def test_no_byte_of_a_fit_depends_on_labels_that_a_users_code_holds(tmp_path, blind, way):
    first, second = (
        written(tmp_path / "first", way, LABELS),
        written(tmp_path / "second", way, OTHER),
    )
    assert {
        "fit/plan.json",
        "fit/initial.pt",
        "fit/receipt.json",
        "fit/model-2.pt",
    } <= first.keys()
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_the_bytes_would_differ_if_a_description_told_them(tmp_path, blind, monkeypatch):
    """A planted leak is seen: the test above can fail."""
    from labeldp.deep import _stages as describe

    monkeypatch.setattr(describe, "_of_object", lambda value, within: {"is": repr(value)})
    first, second = (
        written(tmp_path / str(i), "a list in a closure", y) for i, y in enumerate((LABELS, OTHER))
    )
    assert [name for name in first if first[name] != second[name]] == ["fit/plan.json"]


def test_a_plan_that_told_what_code_holds_is_refused_without_its_values(tmp_path):
    model = TorchClassifier(
        Experiment(PARTS["maker"], LABELS).method,
        recipe=RECIPE,
        random_state=0,
        folder=tmp_path / "fit",
    )
    model.fit(X, closed(LABELS, K))
    plan = json.loads((tmp_path / "fit" / "plan.json").read_text())
    plan["facts"]["maker"]["self"] = {"is": "Experiment", "labels": LABELS.tolist()}
    old = {name: value for name, value in plan.items() if name != "format"}
    for kept in (old, plan):
        (tmp_path / "fit" / "plan.json").write_text(json.dumps(kept))
        with pytest.raises(ldp.InvalidInput, match=r"of format 1|differs in maker\.self") as caught:
            model.fit(X, closed(LABELS, K))
        assert "[" not in str(caught.value) and "kept 0" not in str(caught.value)


@pytest.mark.parametrize(
    "setting",
    ["augment", "loss", "schedule", "optimizer", "rate", "epochs", "precision"],
)
def test_messages_name_the_type_of_what_was_given_in_the_wrong_place(setting):
    with pytest.raises(ldp.InvalidInput) as caught:
        Recipe(**{setting: LABELS.tolist()})
    assert (
        "got" in str(caught.value)
        and "list" in str(caught.value)
        and "0, 1, 2" not in str(caught.value)
    )
