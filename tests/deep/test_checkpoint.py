# SPDX-License-Identifier: Apache-2.0
"""A training that is stopped goes on from its checkpoint, to the same net, and from no other's."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import labeldp as ldp
from labeldp.deep import (
    Consistency,
    Optimizer,
    Recipe,
    _loop,
    as_inputs,
    evidence_of,
    models,
    train,
)
from labeldp.errors import InvalidInput, LabelDPWarning
from labeldp.papers import tang2022 as ssl

X = torch.randn(160, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long().numpy()


def noisy(seed: int = 0) -> Any:
    return evidence_of(
        ldp.privatize(
            ldp.PrivateLabels(Y, classes=range(2), noise=ldp.SeededNoise(seed)),
            ldp.RandomizedResponse(2, 2.0),
        )
    )


def jittered(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x + 0.1 * torch.randn(x.shape, generator=generator)


def net(width: int = 8) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, width),
        torch.nn.BatchNorm1d(width),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(width, 2),
    )


def stopping(after: int) -> Any:
    def told(epoch: Any) -> None:
        if epoch.number == after:
            raise KeyboardInterrupt

    return told


RECIPES = {
    "adamw": Recipe(epochs=6, batch_size=32),
    "sgd, mixup, average": Recipe(
        epochs=6, batch_size=32, alpha=1.0, average=0.9, optimizer="sgd", augment=jittered
    ),
    "posterior selection": Recipe(
        epochs=6,
        batch_size=32,
        consistency=Consistency.posterior_selection(strong=jittered, neighbours=5),
    ),
    "mixture": Recipe(epochs=6, batch_size=32, consistency=Consistency.dividemix(strong=jittered)),
    "patience": Recipe(epochs=6, batch_size=32, patience=2),
}


def run(
    recipe: Recipe,
    module: Any = None,
    evidence: Any = None,
    seed: int = 3,
    inputs: Any = X,
    **more: Any,
) -> dict[str, torch.Tensor]:
    held_out = {"held_out": (X[:40], noisy()[:40])} if recipe.patience else {}
    evidence = noisy() if evidence is None else evidence
    done = train(
        module or net(),
        inputs,
        evidence,
        recipe,
        generator=torch.Generator().manual_seed(seed),
        **held_out,
        **more,
    )
    return done.state_dict()


@pytest.mark.parametrize("name", RECIPES)
def test_a_stopped_training_ends_as_an_undisturbed_one(name: str, tmp_path: Path):
    path, recipe, epochs = tmp_path / "state.pt", RECIPES[name], []
    expected = run(recipe)
    for after in (1, 4):
        with pytest.raises(KeyboardInterrupt):
            run(recipe, checkpoint=path, progress=stopping(after))
    found = run(recipe, checkpoint=path, progress=lambda epoch: epochs.append(epoch.number))
    assert epochs[0] == 5
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    again = run(recipe, checkpoint=path, progress=lambda epoch: epochs.append(epoch.number))
    assert len(epochs) <= 2  # what is over is over
    assert all(torch.equal(again[key], expected[key]) for key in expected)
    assert [each.name for each in tmp_path.iterdir()] == ["state.pt"]
    assert path.stat().st_mode & 0o077 == 0


def test_it_is_written_in_between_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """For a process that is killed, which raises nothing."""
    seen, path = [], tmp_path / "new" / "state.pt"
    monkeypatch.setattr(_loop, "_SAVED_EVERY", -1.0)
    run(
        RECIPES["adamw"],
        checkpoint=path,
        progress=lambda _: seen.append(torch.load(path, weights_only=True)["number"]),
    )
    assert seen == [1, 2, 3, 4, 5, 6]
    monkeypatch.setattr(_loop, "_SAVED_EVERY", math.inf)
    path.unlink()
    run(
        RECIPES["adamw"],
        checkpoint=path,
        progress=lambda epoch: seen.append(path.exists() == (epoch.number == 6)),
    )
    assert seen[6:] == [True] * 6


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"recipe": replace(RECIPES["adamw"], rate=0.01)}, r"rate \(kept 0.003, now 0.01\)"),
        ({"evidence": noisy(1)}, "evidence"),
        ({"seed": 4}, "generator"),
        ({"inputs": X.flip(0)}, "inputs"),
        ({"inputs": TensorDataset(X.flip(0))}, "inputs"),
        ({"module": net(9)}, "another net's"),
        ({"recipe": RECIPES["mixture"]}, "consistency.align"),
    ],
    ids=["rate", "evidence", "generator", "inputs", "dataset", "net", "consistency"],
)
def test_another_training_is_refused(other: dict[str, Any], said: str, tmp_path: Path):
    path = tmp_path / "state.pt"
    with pytest.raises(KeyboardInterrupt):
        run(RECIPES["adamw"], checkpoint=path, progress=stopping(2))
    with pytest.raises(InvalidInput, match=said):
        run(**({"recipe": RECIPES["adamw"]} | other), checkpoint=path)


def test_the_same_inputs_in_another_container_are_the_same(tmp_path: Path):
    path, items = tmp_path / "state.pt", TensorDataset(X, torch.zeros(len(X)))
    expected = run(RECIPES["adamw"], checkpoint=path)
    for same in (X.numpy(), X.double(), as_inputs(items, features=lambda item: item[0])):
        found = run(RECIPES["adamw"], inputs=same, checkpoint=path)
        assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_inputs_that_differ_at_each_reading_are_compared_by_their_number(tmp_path: Path):
    class Jittered(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return len(X)

        def __getitem__(self, index: int) -> torch.Tensor:
            return X[index] + torch.randn(4)

    path = tmp_path / "state.pt"
    with pytest.warns(LabelDPWarning, match="differ each time"), pytest.raises(KeyboardInterrupt):
        run(RECIPES["adamw"], inputs=Jittered(), checkpoint=path, progress=stopping(2))
    with pytest.warns(LabelDPWarning, match="differ each time"):
        run(RECIPES["adamw"], inputs=Jittered(), checkpoint=path)
    with pytest.raises(InvalidInput, match="inputs"):
        run(RECIPES["adamw"], checkpoint=path)


def test_a_checkpoint_that_does_not_tell_its_inputs_is_refused(tmp_path: Path):
    path = tmp_path / "state.pt"
    run(RECIPES["adamw"], checkpoint=path)
    kept = torch.load(path, weights_only=True)
    del kept["facts"]["inputs"]
    torch.save(kept, path)
    with pytest.raises(
        InvalidInput, match=r"got another's: inputs \(kept null.*Delete it to begin anew"
    ):
        run(RECIPES["adamw"], checkpoint=path)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path):
    for number, thing in enumerate((b"nothing", b"")):
        path = tmp_path / str(number)
        path.write_bytes(thing)
        with pytest.raises(InvalidInput, match="got what is none"):
            run(RECIPES["adamw"], checkpoint=path)
    torch.save({"facts": {}}, tmp_path / "lacking")
    with pytest.raises(InvalidInput, match="got what is none"):
        run(RECIPES["adamw"], checkpoint=tmp_path / "lacking")


def test_nets_of_an_ensemble_have_a_file_each(tmp_path: Path):
    recipe, path = RECIPES["adamw"], tmp_path / "state"
    expected = run(recipe, models.Ensemble([net(), net()]))
    told = []

    def late(epoch: Any) -> None:
        told.append(epoch.number)
        if len(told) == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(recipe, models.Ensemble([net(), net()]), checkpoint=path, progress=late)
    found = run(recipe, models.Ensemble([net(), net()]), checkpoint=path)
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["state-0", "state-1"]


def test_features_without_labels_go_on_too(tmp_path: Path):
    images = torch.from_numpy(np.random.default_rng(0).random((40, 1, 8, 8), np.float32))
    recipe = Recipe(
        epochs=3,
        batch_size=20,
        optimizer=Optimizer("sgd", clip=math.inf),
        augment=lambda x, generator: jittered(x, generator),
    )

    def learned(**more: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 6))
        return ssl.simclr(
            module, images, recipe, generator=torch.Generator().manual_seed(0), **more
        ).state_dict()

    expected = learned()
    with pytest.raises(KeyboardInterrupt):
        learned(checkpoint=tmp_path / "state", progress=stopping(2))
    found = learned(checkpoint=tmp_path / "state")
    assert all(torch.equal(found[key], expected[key]) for key in expected)
