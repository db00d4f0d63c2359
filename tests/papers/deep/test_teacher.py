# SPDX-License-Identifier: Apache-2.0
"""FixMatchTeacher: it learns from all inputs, its shard's labels move its votes alone, and it says
nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import labeldp as ldp
from labeldp.deep import Consistency, Recipe, models
from labeldp.errors import InvalidInput
from labeldp.papers import _teacher
from labeldp.papers.malek2021 import ConfidentGNMax, PATEClassifier
from labeldp.papers.tang2022 import FixMatchTeacher

RNG = np.random.default_rng(0)
Y = np.arange(300) % 2
X = np.column_stack([3.0 * Y, 1.0 - Y]) + RNG.normal(0, 1, (300, 2))
FEW: dict[str, Any] = {
    "n_teachers": 4,
    "n_queries": 12,
    "threshold": 0,
    "epsilon": 40.0,
}


def private(y: np.ndarray = Y) -> ldp.PrivateLabels:
    return ldp.PrivateLabels(y, classes=range(2), noise=ldp.SeededNoise(0))


def jittered(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x + 0.15 * torch.randn(x.shape, generator=generator)


def made() -> torch.nn.Module:
    return models.Mlp(2, 2, (32,))


def teacher(epochs: int, consistency: Consistency | None = None) -> FixMatchTeacher:
    shared = consistency or Consistency.fixmatch(strong=jittered, warm_up=epochs // 4)
    return FixMatchTeacher(
        made, Recipe(epochs=epochs, batch_size=100, rate=0.02, average=0.9, consistency=shared)
    )


def test_it_learns_from_inputs_without_a_label():
    """28 labels of digits: a net that also learns the other 1,372 images is better than one that is
    taught the labels alone."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images, labels = (found.data[order] / 16).astype(np.float32), found.target[order]
    shard, asked = np.random.default_rng(2).permutation(1400)[:28], np.arange(1400, 1797)
    right = []
    for shared in (
        Consistency.fixmatch(strong=jittered, threshold=0.8, warm_up=3),
        Consistency(strong=None, weight=1e-9),
    ):
        torch.manual_seed(2)
        learner = FixMatchTeacher(
            lambda: models.Mlp(64, 10, (64,)), replace(teacher(10, shared).recipe, batch_size=128)
        )
        right.append((learner(images, shard, labels[shard], asked) == labels[asked]).mean())
    assert right[0] > right[1] + 0.05, right


def test_a_changed_label_changes_the_votes_of_one_teacher(monkeypatch: pytest.MonkeyPatch):
    seen, release = [], ConfidentGNMax.release

    def watched(self: ConfidentGNMax, counts: np.ndarray, *rest: Any) -> np.ndarray:
        seen.append(counts.copy())
        return release(self, counts, *rest)

    monkeypatch.setattr(ConfidentGNMax, "release", watched)
    other = np.where(np.arange(300) == 7, 1 - Y, Y)
    for labels in (Y, Y, other):
        PATEClassifier(teacher=teacher(4), **FEW).fit(X, private(labels))
    assert (seen[0] == seen[1]).all()
    assert (abs(seen[0] - seen[2]).sum(axis=1) <= 2).all()
    assert (seen[0].sum(axis=1) == 4).all()


def test_it_is_silent_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """Even where FixMatch loses a class, of which it warns elsewhere: which one follows from raw
    labels."""
    monkeypatch.chdir(tmp_path)
    unsure = teacher(2, Consistency.fixmatch(strong=jittered, threshold=0.999999))
    model = PATEClassifier(teacher=unsure, **FEW).fit(X, private())
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert model.teacher is unsure
    assert not [value for value in vars(unsure).values() if isinstance(value, torch.nn.Module)]


def test_flat_rows_get_their_shape_and_few_inputs_have_a_label_of_eight(
    monkeypatch: pytest.MonkeyPatch,
):
    shapes, sizes = set(), []

    class Seeing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shapes.add(tuple(x.shape[1:]))
            sizes.append(len(x))
            return self.last(x.flatten(1))

    rows = np.array([3, 5])
    flat = np.random.default_rng(0).random((70, 4), np.float32)
    votes = FixMatchTeacher(Seeing, Recipe(epochs=2, batch_size=1000), shape=(1, 2, 2))(
        flat, rows, np.array([0, 2]), np.arange(6)
    )
    assert votes.shape == (6,) and votes.dtype == np.int64
    assert shapes == {(1, 2, 2)}
    assert max(sizes) == 80
    given = []
    monkeypatch.setattr(
        _teacher, "train", lambda *args, **options: given.append(args[3]) or args[0]
    )
    FixMatchTeacher(
        Seeing, replace(teacher(2).recipe, consistency=Consistency(weight=2.0)), shape=(1, 2, 2)
    )(flat, rows, rows // 5, rows)
    # beside the mean over all inputs of the loss of the labels
    assert given[0].consistency == Consistency(weight=2.0 / 8)
    assert [FixMatchTeacher(made, Recipe(epochs=n)).recipe.consistency for n in (1, 9)] == [
        Consistency.fixmatch(warm_up=n) for n in (0, 1)
    ]


def test_settings_are_checked():
    with pytest.raises(InvalidInput, match="a function that makes a net for each teacher, got Mlp"):
        FixMatchTeacher(made())
    with pytest.raises(InvalidInput, match="net as a function"):
        FixMatchTeacher(3)
    with pytest.raises(InvalidInput, match="Expected a Recipe, got dict"):
        FixMatchTeacher(made, {})
    with pytest.raises(
        InvalidInput,
        match=r"numbers of shape \(1, 8, 8\), got rows of shape \(2,\). Nothing was charged",
    ):
        PATEClassifier(teacher=FixMatchTeacher(made, shape=(1, 8, 8)), **FEW).fit(X, private())


@pytest.mark.parametrize("n_outputs", [2, 4, 7])
def test_a_net_with_other_outputs_than_classes_is_refused_before_the_charge(
    n_outputs: int, tmp_path: Path
):
    wrong = FixMatchTeacher(lambda: models.Mlp(2, n_outputs, (8,)), teacher(2).recipe)
    ledger = tmp_path / "ledger.db"
    labels = ldp.PrivateLabels(
        np.arange(300) % 3,
        classes=range(3),
        dataset="rows",
        column="label",
        ids=np.arange(300),
        ledger=ledger,
    )
    with pytest.raises(InvalidInput, match="Give the net 3 outputs"):
        PATEClassifier(teacher=wrong, **FEW | {"epsilon": 200.0}).fit(X, labels)
    assert ldp.Ledger(ledger).runs() == []
