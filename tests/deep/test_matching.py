# SPDX-License-Identifier: Apache-2.0
"""Noisy labels meet their own rows: by ids, through DataLoaders and Subsets; what contradicts ids
is refused, or told."""

import re
import warnings

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from tests.deep.datasets import closed
from torch.utils.data import DataLoader, Subset, TensorDataset

import labeldp as ldp
from labeldp import deep
from labeldp.deep import Recipe, TorchClassifier, TorchRegressor, as_inputs, with_evidence
from labeldp.deep.models import Mlp

pytestmark = pytest.mark.usefixtures("same_noise")  # what is learned is judged
K, N = 3, 300
RNG = np.random.default_rng(0)
Y = RNG.integers(K, size=N)
X = (3 * np.eye(K)[Y] + RNG.normal(size=(N, K))).astype(np.float32)
ORDER = RNG.permutation(N)
NAMES = np.array([f"row {i}" for i in range(N)])


def noisy_of(order=ORDER, names=None):
    """Row j is that of item order[j]."""
    ids = order if names is None else names[order]
    return ldp.privatize(
        ldp.PrivateLabels(Y[order], classes=range(K), ids=ids, noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(K, 6.0),
    )


def classifier(**settings):
    recipe = Recipe(epochs=8, batch_size=32, rate=0.05, precision="float32", optimizer="sgd")
    return TorchClassifier(
        lambda k: Mlp(K, k, (8,)),
        **{"recipe": recipe, "random_state": 0} | settings,
    )


@pytest.fixture(scope="module")
def expected():
    """What rows that lie in order learn."""
    return classifier().fit(X, noisy_of(np.arange(N))).predict_proba(X)


@pytest.mark.parametrize("names", [None, NAMES], ids=["numbers", "texts"])
def test_ids_bring_rows_and_noisy_labels_together(names):
    noisy = noisy_of(names=names)
    with pytest.warns(ldp.errors.LabelDPWarning, match="Pass ids="):
        blind = classifier().fit(TensorDataset(torch.from_numpy(X)), noisy)
    model = classifier().fit(X, noisy, ids=np.arange(N) if names is None else names)
    assert blind.score(X, Y) < 0.6 < 0.85 < model.score(X, Y)
    # in the order of X
    assert np.array_equal(model.noisy_labels_.ids, np.arange(N) if names is None else names)
    assert np.array_equal(model.noisy_labels_.likelihood(), noisy[np.argsort(ORDER)].likelihood())


def test_arrays_are_in_the_order_in_which_this_process_privatized_and_datasets_need_not_be(
    tmp_path,
):
    """One rule with the estimators of scikit-learn."""
    noisy = noisy_of(np.arange(N), names=NAMES)
    noisy.save(tmp_path / "noisy.parquet")
    read = ldp.NoisyLabels.load(tmp_path / "noisy.parquet")
    linear = ldp.LabelDPClassifier(LogisticRegression())
    for model, told in ((classifier(), [X, torch.from_numpy(X)]), (linear, [X])):
        for given in told:
            with warnings.catch_warnings():
                warnings.simplefilter("error", ldp.errors.LabelDPWarning)
                model.fit(given, noisy)
        with pytest.warns(ldp.errors.LabelDPWarning, match="Pass ids="):
            model.fit(X, read)


SOME = RNG.permutation(N)[:120]
# without ids
FEW = ldp.privatize(
    ldp.PrivateLabels(Y[SOME], classes=range(K), noise=ldp.SeededNoise(0)),
    ldp.RandomizedResponse(K, 6.0),
)
NUMBERS = ldp.privatize(
    ldp.PrivateLabels(Y[SOME] / 1, classes=ldp.Grid(0, 2, 3), noise=ldp.SeededNoise(0)),
    ldp.RandomizedResponse(K, 6.0),
)
ITEMS, QUICK = TensorDataset(torch.from_numpy(X)), Recipe(epochs=1)
GENERATOR = torch.Generator()
DOORS = {
    "with_evidence": lambda: with_evidence(ITEMS, FEW),
    "with_evidence, ids": lambda: with_evidence(ITEMS, FEW, ids=np.arange(N)),
    "with_evidence, some rows": lambda: with_evidence(ITEMS, FEW[20:40]),
    "fit": lambda: classifier().fit(X, FEW),
    "fit, ids": lambda: classifier().fit(X, FEW, ids=np.arange(N)),
    "fit, dataset": lambda: classifier().fit(ITEMS, FEW, ids=np.arange(N)),
    "fit, own ids": lambda: classifier().fit(as_inputs(ITEMS, ids=np.arange(N)), FEW),
    "numbers": lambda: TorchRegressor(lambda k: Mlp(K, k, (8,))).fit(X, NUMBERS, ids=np.arange(N)),
    "score": lambda: classifier().fit(X[:120], FEW).score(X, FEW, ids=np.arange(N)),
    "train": lambda: deep.train(
        Mlp(K, K, (8,)), X, deep.evidence_of(FEW), QUICK, generator=GENERATOR
    ),
    "held out": lambda: deep.train(
        Mlp(K, K, (8,)),
        X[:120],
        deep.evidence_of(FEW),
        QUICK,
        generator=GENERATOR,
        held_out=(X, deep.evidence_of(FEW)),
    ),
    "loss": lambda: deep.likelihood_loss(torch.from_numpy(X), deep.evidence_of(FEW)),
    "weights": lambda: deep.debiased_loss(torch.from_numpy(X), deep.debias_weights(FEW)),
    "labels": lambda: deep.cross_entropy(torch.from_numpy(X), torch.from_numpy(FEW.hard_codes())),
    "neighbours": lambda: deep.neighbour_votes(torch.from_numpy(X), deep.evidence_of(FEW), K, 5),
    "groups": lambda: deep.group_votes(Y, deep.evidence_of(FEW), K),
    "consensus": lambda: deep.consensus(deep.evidence_of(FEW), torch.from_numpy(Y), K),
}


@pytest.mark.parametrize("door", DOORS)
def test_noisy_labels_without_ids_are_of_as_many_rows(door):
    """Of a random subset that was released without ids, item i is not the one of noisy label i."""
    with pytest.raises(ldp.InvalidInput):
        DOORS[door]()


def test_rows_without_a_noisy_label_are_left_out():
    noisy = noisy_of()[:200]
    model = classifier().fit(X, noisy, ids=np.arange(N))
    assert model.score(X, Y) > 0.85 and np.array_equal(
        model.noisy_labels_.ids, np.sort(ORDER[:200])
    )
    for ids, words in (
        ("id", "a column of 300 values, got one str"),
        (np.arange(N) + 1, "1 ids have none"),
        (np.arange(N - 1), "one id an item"),
        (np.zeros(N, int), "all different"),
    ):
        with pytest.raises(ldp.InvalidInput, match=words):
            classifier().fit(X, noisy_of(), ids=ids)


def test_what_lies_in_order_needs_no_ids_and_no_warning(expected):
    model = classifier().fit(X, noisy_of(np.arange(N)), ids=np.arange(N))
    assert np.array_equal(model.predict_proba(X), expected)
    # ids are positions
    classifier().fit(
        X[:100],
        ldp.privatize(
            ldp.PrivateLabels(Y, classes=range(K), noise=ldp.SeededNoise(0)),
            ldp.RandomizedResponse(K, 6.0),
        )[:100],
    )


def matched():
    return with_evidence(TensorDataset(torch.from_numpy(X)), noisy_of())


WRAPPED = {
    "itself": (lambda data: data, np.arange(N)),
    "a loader": (lambda data: DataLoader(data, 16, shuffle=True), np.arange(N)),
    "a subset": (lambda data: Subset(data, range(150)), np.arange(150)),
    "a loader of a subset of a subset": (
        lambda data: DataLoader(Subset(Subset(data, range(200)), [*range(99, -1, -1)])),
        np.arange(100)[::-1],
    ),
    "inputs": (as_inputs, np.arange(N)),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_dataset_with_evidence_is_found_however_it_is_wrapped(name):
    wrap, rows = WRAPPED[name]
    data = matched()
    assert classifier().fit(wrap(data), data.noisy[rows]).score(X, Y) > 0.85
    for other in (data.noisy[rows[::-1]], data.noisy[(rows + 1) % N]):
        with pytest.raises(ldp.InvalidInput, match=r"Pass dataset\.noisy"):
            classifier().fit(wrap(data), other)


def test_ids_that_contradict_a_dataset_with_evidence_are_refused():
    data = matched()
    half = Subset(data, range(150))
    assert (
        classifier().fit(half, data.noisy[:150][::-1], ids=data.noisy.ids[:150]).score(X, Y) > 0.85
    )
    with pytest.raises(ldp.InvalidInput, match="Leave ids= out"):
        classifier().fit(half, data.noisy[:150], ids=data.noisy.ids[150:])


def test_raw_labels_do_not_follow_the_order_of_noisy_ones(ledger):
    model = classifier(epsilon=6.0)
    for given in (matched(), DataLoader(matched())):
        with pytest.raises(ldp.InvalidInput, match="got raw labels"):
            model.fit(given, closed(Y, K, ledger=ledger))
    assert ledger.spent("d", "label") == 0
    # they say which is which
    named = closed(Y[ORDER], K, ids=ORDER, ledger=ledger)
    assert model.fit(matched(), named, ids=ORDER).score(X, Y) > 0.85
    same = with_evidence(TensorDataset(torch.from_numpy(X)), noisy_of(np.arange(N)))
    assert model.fit(same, closed(Y, K, ledger=ledger, dataset="e")).score(X, Y) > 0.85


class Named:
    """Items that change each time, and carry their names, in an order that may change."""

    def __init__(self):
        self.order = np.arange(N)

    def __len__(self):
        return N

    def __getitem__(self, i):
        at = self.order[i]
        return torch.from_numpy(X[at]) + 0.01 * torch.rand(K), NAMES[at]


def name_of(item):
    return item[1]


def test_items_that_name_themselves_are_watched_in_a_fit(tmp_path):
    data, model = Named(), classifier(epsilon=6.0)
    labels = closed(Y, K, ids=NAMES, ledger=ldp.Ledger(tmp_path / "ledger.db"))
    assert model.fit(data, labels, ids=NAMES, id_of=name_of).score(X, Y) > 0.85
    noisy = noisy_of(np.arange(N), NAMES)
    assert classifier().fit(data, noisy, ids=NAMES, id_of=name_of).score(X, Y) > 0.85
    data.order = np.roll(data.order, 1)
    for y, ids in ((labels, NAMES), (noisy, NAMES), (noisy, None)):
        with pytest.raises(ldp.InvalidInput, match="at position 0, got id 'row 299'"):
            model.fit(data, y, ids=ids, id_of=name_of)


@pytest.mark.parametrize("wrong", [None, np.nan, np.inf, "SENTINEL"], ids=str)
@pytest.mark.parametrize("kind", ["classes", "columns", "numbers"])
def test_labels_that_cannot_be_used_name_no_row(kind, wrong):
    """As of the estimators of scikit-learn, in tests/adversarial/test_bad_labels_name_no_row.py."""
    told = set()
    for rows in ([217], [123], [123, 217]):
        labels = Y.astype(object)
        labels[rows] = wrong
        y, declared = {
            "classes": (labels, {"classes": range(K)}),
            "columns": (
                {"y": labels, "other": Y % 2},
                {"classes": {"y": range(K), "other": [0, 1]}},
            ),
            "numbers": (labels, {"range": (0, 2)}),
        }[kind]
        with pytest.raises(
            ldp.InvalidInput, match="Which row it is would tell of its label"
        ) as caught:
            ldp.PrivateLabels(y, **declared)
        told.add(str(caught.value))
    assert len(told) == 1 and not re.search(r"217|218|219|123|124|125|SENTINEL", *told)
