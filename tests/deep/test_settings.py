# SPDX-License-Identifier: Apache-2.0
"""What no training could use is refused when it is given, and a fit that cannot take a step is
refused before it is charged."""

import functools
import math
import random
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from tests.deep.datasets import Rows, closed, separated
from tests.naming import named
from torch import nn

import labeldp as ldp
from labeldp.deep import (
    Consistency,
    Optimizer,
    Recipe,
    TorchClassifier,
    augment,
    cross_entropy,
    debiased_loss,
    generalised_cross_entropy,
    likelihood_loss,
    posterior_loss,
)
from labeldp.deep._estimator import dry_run
from labeldp.deep.models import Mlp, SmallConvNet

K, N = 3, 300
QUICK = {"epochs": 1, "precision": "float32"}
NAN = math.nan

BAD_FIELDS = [
    *({"alpha": each} for each in (-1, NAN, math.inf, "x", True)),
    *({"average": each} for each in (2.0, 1.0, NAN, "0.9")),
    *(
        {"schedule": each}
        for each in (
            0.1,
            None,
            lambda t: NAN,
            lambda t: -t,
            lambda t: math.inf if t == 0.5 else 1.0,
        )
    ),
    *({"augment": each} for each in (3, "flip")),
    *({"loss": each} for each in ("likelihood", None)),
    *({"rate": each} for each in (NAN, 0, "1")),
    *({"epochs": each} for each in (1.5, True, 0)),
    {"batch_size": 0},
    {"precision": "fp16"},
    {"optimizer": "adam"},
]
BAD_STEPS = [
    *({"momentum": each} for each in (-1, NAN, 1.0, 5.0, None)),
    *({"weight_decay": each} for each in (-1, NAN, "0")),
    *({"clip": each} for each in (NAN, 0, -1.0, "a", True)),
]


@pytest.mark.parametrize("field", [*BAD_FIELDS, *BAD_STEPS], ids=named)
def test_a_recipe_is_checked_when_it_is_made(field):
    (name,) = field
    with pytest.raises(ldp.InvalidInput, match=name):
        (Optimizer if field in BAD_STEPS else Recipe)(**field)


@pytest.mark.parametrize("schedule", [lambda t: "a", lambda: 1, lambda t: 1 / (t - 0.5) ** 2])
def test_a_schedule_that_fails_does_so_when_the_recipe_is_made(schedule):
    with pytest.raises((TypeError, ZeroDivisionError)):
        Recipe(schedule=schedule)


@pytest.mark.parametrize(
    "loss",
    [
        cross_entropy,
        generalised_cross_entropy,
        partial(generalised_cross_entropy, q=0.5),
        debiased_loss,
    ],
)
def test_consistency_needs_a_loss_on_likelihoods(loss):
    with pytest.raises(
        ldp.InvalidInput,
        match=f"log-likelihoods with consistency, got {getattr(loss, 'func', loss).__name__}",
    ):
        Recipe(loss=loss, consistency=Consistency())
    assert Recipe(loss=posterior_loss, consistency=Consistency())


@pytest.mark.parametrize(
    "net", [SmallConvNet, "plain"], ids=["convnet", "without batch normalisation"]
)
def test_defaults_learn_from_few_rows_whatever_the_net(net):
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    make = {
        "plain": lambda k: nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, k),
        )
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error", ldp.errors.LostClassWarning)
        model = TorchClassifier(make.get(net, net), epsilon=2.0, random_state=0).fit(
            X[:1300].reshape(-1, 1, 8, 8), closed(y[:1300], 10)
        )
    accuracy = model.score(X[1300:].reshape(-1, 1, 8, 8), y[1300:])
    assert accuracy > 0.7  # SGD at 0.1 without a ramp: 0.3 and less without batch normalisation


def test_a_name_stands_for_an_optimizer():
    named, made = (Recipe(rate=0.1, optimizer=each) for each in ("sgd", Optimizer("sgd")))
    assert named == made != Recipe(rate=0.03)


class Dict(nn.Module):
    """Gives something that holds logits."""

    def __init__(self, kind=dict):
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(K, K)

    def forward(self, x):
        return {"logits": self.layer(x)} if self.kind is dict else (self.layer(x),)


class InTraining(nn.Module):
    """Fails in training alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(K, K)

    def forward(self, x):
        if self.training:
            raise RuntimeError("only in training")
        return self.layer(x)


def with_recipe(**fields):
    return {"recipe": Recipe(**QUICK | fields)}


REFUSED = {
    "augmentation of images": (
        with_recipe(augment=augment.flip),
        {},
        "batch of images.*Nothing was charged",
    ),
    "torch's loss": (
        with_recipe(loss=nn.functional.cross_entropy),
        {},
        "torch's cross_entropy, which takes true labels",
    ),
    "torch's loss as an object": (
        with_recipe(loss=nn.CrossEntropyLoss()),
        {},
        "torch's CrossEntropyLoss",
    ),
    "a part of torch's loss": (
        with_recipe(loss=functools.partial(nn.functional.nll_loss, reduction="sum")),
        {},
        "torch's nll_loss",
    ),
    "a loss without logits": (
        with_recipe(loss=lambda logits, evidence: torch.zeros(())),
        {},
        "does not require grad",
    ),
    "a loss a row": (
        with_recipe(loss=lambda z, e, reduction="mean": likelihood_loss(z, e, "none")),
        {},
        "scalar|single",
    ),
    "a loss that mixup cannot call": (
        with_recipe(loss=lambda z, e: likelihood_loss(z, e), alpha=1.0),
        {},
        "reduction",
    ),
    "cuda that is not there": (
        {"device": "cuda:77"},
        {},
        "device that torch can use here, got 'cuda:77'",
    ),
    "a device without numbers": ({"device": "meta"}, {}, "got 'meta'"),
    "a device that is not one": ({"device": torch.device("meta")}, {}, "got 'meta'"),
    "no device": ({"device": None}, {}, "got 'None'"),
    "another word": ({"device": "gpu"}, {}, "got 'gpu'"),
    "a frozen net": ({"module": nn.Linear(K, K).requires_grad_(False)}, {}, "frozen"),
    "a net that cannot train": ({"module": InTraining()}, {}, "only in training"),
    "a mapping of logits": ({"module": Dict()}, {}, "tensor of logits .*, got dict"),
    "a tuple of logits": ({"module": Dict(tuple)}, {}, "tensor of logits .*, got tuple"),
    "progress": ({"progress": 3}, {}, "progress as a function"),
    "batches of one row": (
        with_recipe(batch_size=1),
        {},
        "step on 1 input .*without batch normalisation",
    ),
    "few rows in stages": (
        {"stages": 2},
        {"rows": 3},
        "step on 1 input .*without batch normalisation",
    ),
    "NaN in a late item": ({}, {"late": NAN}, "finite inputs"),
}


class Codes(nn.Module):
    """Knows the codes 0..K-1."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Embedding(K, K)

    def forward(self, x):
        return self.layer(x).sum(1)


# so few noisy labels can say nothing of a class
@pytest.mark.filterwarnings("ignore::labeldp.errors.LostClassWarning")
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("columns", [1, 2, 40])
def test_a_code_without_an_embedding_in_a_late_row_is_not_charged(tmp_path, kind, columns):
    ledger, X = ldp.Ledger(tmp_path / "ledger.db"), np.arange(N * columns).reshape(N, columns) % K
    model = TorchClassifier(Codes(), recipe=Recipe(**QUICK))
    labels, wrong = closed(np.arange(N) % K, K, ledger=ledger), X.copy()
    wrong[N - 7, -1] = K
    with pytest.raises(ldp.InvalidInput, match=r"index out of range in self.*Nothing was drawn"):
        model.fit(kind(wrong), labels)
    assert ledger.spent("d", "label") == 0
    assert model.fit(kind(X), labels).privacy_.epsilon == 1


@pytest.mark.parametrize("bad", [-0.1, 1.1])
def test_a_pixel_of_another_scale_in_a_late_row_is_not_charged(tmp_path, bad):
    ledger, images = ldp.Ledger(tmp_path / "ledger.db"), np.full((N, 1, 8, 8), 0.5, np.float32)
    recipe = Recipe(**QUICK | {"epochs": 2}, consistency=Consistency())
    model = TorchClassifier(lambda k: SmallConvNet(k), recipe=recipe)
    images[N - 7, 0, 3, 3] = bad
    with pytest.raises(
        ldp.InvalidInput, match=r"images of 0\.\.1, got other values.*Nothing was charged"
    ):
        model.fit(images, closed(np.arange(N) % K, K, ledger=ledger))
    assert ledger.spent("d", "label") == 0


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_take_a_step_is_not_charged(ledger, name):
    settings, given, words = REFUSED[name]
    X, y = separated(given.get("rows", N), K)
    if "late" in given:
        X[-1] = given["late"]
        X = Rows(X)
    defaults = {
        "module": lambda k: Mlp(K, k, (8,)),
        "recipe": Recipe(**QUICK),
    }
    with pytest.raises(ldp.InvalidInput, match=words):
        TorchClassifier(**defaults | settings).fit(X, closed(y, K, ledger=ledger))
    assert ledger.spent("d", "label") == 0


def test_every_stage_has_its_recipe_tried(ledger):
    X, y = separated(N, K)
    recipes = [Recipe(**QUICK), Recipe(**QUICK, augment=augment.flip)]
    model = TorchClassifier(nn.Linear(K, K), recipe=recipes, stages=2, law="rr-with-prior")
    with pytest.raises(ldp.InvalidInput, match="batch of images"):
        model.fit(X, closed(y, K, ledger=ledger))
    assert ledger.spent("d", "label") == 0


def draws_from_everywhere(images, generator):
    """An augmentation that uses every source of random numbers there is."""
    return (
        images
        + torch.rand(1)
        + np.random.random()
        + random.random()
        + torch.rand(1, generator=generator)
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"loss": likelihood_loss, "augment": draws_from_everywhere},
        {"loss": cross_entropy, "alpha": 1.0},
        {"loss": debiased_loss},
    ],
    ids=named,
)
def test_a_step_that_is_tried_leaves_no_trace(fields):
    net = nn.Sequential(SmallConvNet(K, 1), nn.Dropout(0.5))
    before = {name: w.clone() for name, w in net.state_dict().items()}
    torch.manual_seed(3)
    few = torch.rand(2, 1, 8, 8)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    dry_run(net, few, (K,), [Recipe(**QUICK | fields)], torch.device("cpu"), rows=2)
    assert all(torch.equal(w, before[name]) for name, w in net.state_dict().items())
    assert torch.equal(states[0], torch.get_rng_state()) and np.array_equal(
        states[1], np.random.get_state()[1]
    )
    assert states[2] == random.getstate()


@pytest.mark.parametrize(("n_classes", "epochs"), [(2, 5), (3, 10)])
def test_two_classes_train_for_fewer_epochs_where_no_recipe_is_given(n_classes, epochs):
    """A net and the command's MLP; a recipe of one's own is followed."""
    y = np.arange(60) % n_classes
    noisy = ldp.NoisyLabels.from_labels(
        y, ldp.RandomizedResponse(n_classes, 2.0), classes=range(n_classes)
    )
    X = np.eye(n_classes, dtype=np.float32)[y]
    net = TorchClassifier(lambda k: Mlp(n_classes, k, (4,)), random_state=0).fit(X, noisy)
    own = TorchClassifier(
        lambda k: Mlp(n_classes, k, (4,)), recipe=Recipe(epochs=2), random_state=0
    ).fit(X, noisy)
    assert len(net.history_[0]) == epochs and len(own.history_[0]) == 2


@pytest.mark.parametrize(
    ("axes", "kind"), [((0, 1, 2, 3), "int64"), ((0, 2, 3, 1), "uint8"), ((0, 2, 1, 3), "float32")]
)
def test_inputs_that_a_net_does_not_take_are_told_with_their_shape_and_type(axes, kind):
    X = np.random.default_rng(0).integers(0, 255, (30, 3, 8, 8)).transpose(axes).astype(kind)
    model = TorchClassifier(lambda k: SmallConvNet(k, 3), recipe=Recipe(**QUICK))
    told = rf"type torch.{kind}, got .*Nothing was drawn.*X\.astype.*X\.transpose"
    with pytest.raises(ldp.InvalidInput, match=told):
        model.fit(X, closed(np.arange(len(X)) % 3, 3))


def ending(*last, zero=False):
    def made(k):
        net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, k), *last)
        if zero:
            nn.init.zeros_(net[2].weight)
            nn.init.zeros_(net[2].bias)
        return net

    return made


class Heads(nn.Module):
    """Two heads of probabilities side by side."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 3)])

    def forward(self, x):
        return torch.cat([head(x).softmax(1) for head in self.heads], dim=1)


@pytest.mark.parametrize(
    ("module", "classes"),
    [
        (ending(nn.Softmax(1)), range(K)),
        (ending(nn.Sigmoid()), range(K)),
        (Heads(), ldp.LabelColumns({"a": [0, 1], "b": [0, 1, 2]})),
    ],
    ids=["softmax", "sigmoid", "heads"],
)
def test_a_net_that_returns_probabilities_is_warned_of_before_the_charge(module, classes, tmp_path):
    X, y = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32), np.arange(N) % K
    told = {"a": y % 2, "b": y} if isinstance(classes, ldp.LabelColumns) else y
    column = None if isinstance(classes, ldp.LabelColumns) else "label"
    facts = {"classes": classes, "column": column, "ids": np.arange(N)}
    labels = closed(told, ledger=tmp_path / "ledger.db", **facts)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The net returns probabilities")
        with pytest.raises(ldp.errors.LabelDPWarning, match="Leave the last layer out"):
            TorchClassifier(module, recipe=Recipe(**QUICK)).fit(X, labels)
    assert ldp.Ledger(tmp_path / "ledger.db").runs() == []


@pytest.mark.parametrize(
    "module",
    [
        ending(),
        ending(zero=True),
        ending(nn.Softmax(1), zero=True),
        ending(nn.LogSoftmax(1)),
        ending(nn.ReLU()),
    ],
)
def test_a_net_that_returns_logits_is_not_warned_of(module):
    """Log-probabilities are logits, too: their softmax is the same."""
    X, y = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32), np.arange(N) % K
    TorchClassifier(module, recipe=Recipe(**QUICK)).fit(X, closed(y, K))


def test_the_warning_of_probabilities_comes_once():
    X, y = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32), np.arange(N) % K
    model = TorchClassifier(ending(nn.Softmax(1)), recipe=Recipe(**QUICK), stages=2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model.fit(X, closed(y, K))
    assert sum("returns probabilities" in str(each.message) for each in seen) == 1
