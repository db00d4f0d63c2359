# SPDX-License-Identifier: Apache-2.0
"""What rows share: posterior targets, votes of neighbours, strong changes, and a training with them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import labeldp as ldp
from labeldp.deep import (
    Consistency,
    Dense,
    Recipe,
    TorchClassifier,
    augment,
    cross_entropy,
    debiased_loss,
    evidence_of,
    models,
    neighbour_votes,
    predict,
    train,
)
from labeldp.deep._consistency import Targets
from labeldp.deep._loop import require_one_process
from labeldp.deep._stages import described
from labeldp.errors import InvalidInput

UNIFORM = torch.zeros(4, 2)


def evidence(*rows: list[float]) -> Dense:
    """Log-likelihoods of the classes, by row."""
    return Dense(torch.tensor(rows).log())


def digits(n: int = 1400) -> tuple[torch.Tensor, np.ndarray, torch.Tensor, np.ndarray]:
    """Images and labels: n to learn from, and the others."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = torch.from_numpy(found.images[order]).float()[:, None] / 16
    return images[:n], found.target[order][:n], images[n:], found.target[order][n:]


# Targets ------------------------------------------------------------------------------------------------------------------------------


def test_a_target_is_prediction_times_likelihood_sharpened():
    likelihood = [[0.7, 0.3], [0.3, 0.7], [0.7, 0.3], [0.3, 0.7]]  # equal frequencies are the likeliest
    found = Targets(Consistency(memory=0.0, align=False), evidence(*likelihood), 2)
    rows = torch.tensor([0, 3])
    found.learn(rows, torch.tensor([[0.6, 0.4], [0.2, 0.8]]))
    first, second = 0.6 * 0.7, 0.4 * 0.3
    third, fourth = 0.2 * 0.3, 0.8 * 0.7
    wanted = [[first**2, second**2], [third**2, fourth**2]]  # temperature 1/2
    assert torch.allclose(found.of(rows), torch.tensor([[a / (a + b), b / (a + b)] for a, b in wanted]), atol=1e-6)


def test_without_the_own_label_a_target_is_the_prediction():
    found = Targets(Consistency(memory=0.0, align=False, own=False, temperature=1.0), evidence(*[[0.9, 0.1]] * 3), 2)
    proba = torch.tensor([[0.3, 0.7]])
    found.learn(torch.tensor([1]), proba)
    assert torch.allclose(found.of(torch.tensor([1])), proba, atol=1e-6)


def test_temperature_zero_is_the_likeliest_class_and_rows_below_the_threshold_have_none():
    settings = Consistency(memory=0.0, align=False, own=False, temperature=0.0, threshold=0.8)
    found = Targets(settings, Dense(UNIFORM), 2)
    rows = torch.arange(4)
    found.learn(rows, torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.1, 0.9], [0.5, 0.5]]))
    assert found.of(rows).tolist() == [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]


def test_predictions_are_averaged_over_epochs_from_the_first_one_on():
    found = Targets(Consistency(memory=0.75, align=False, own=False, temperature=1.0), Dense(UNIFORM), 2)
    row = torch.tensor([2])
    found.learn(row, torch.tensor([[0.8, 0.2]]))
    assert torch.allclose(found.of(row), torch.tensor([[0.8, 0.2]]), atol=1e-6)
    found.learn(row, torch.tensor([[0.4, 0.6]]))
    assert torch.allclose(found.of(row), torch.tensor([[0.7, 0.3]]), atol=1e-6)


def test_predictions_are_scaled_to_the_frequencies_that_noisy_labels_tell():
    frequencies = np.array([0.8, 0.2])
    labels = np.repeat([0, 1], [4000, 1000])
    noisy = ldp.privatize(labels, ldp.RandomizedResponse(2, 3.0), noise=ldp.SeededNoise(0))
    settings = Consistency(memory=0.0, own=False, temperature=1.0)
    found = Targets(settings, evidence_of(noisy), 2)
    rows = torch.arange(5000)
    for _ in range(300):  # a net that calls half of the rows 1
        found.learn(rows, torch.full((5000, 2), 0.5))
    assert np.allclose(found.of(rows).mean(0).numpy(), frequencies, atol=0.03)


def test_a_class_that_no_row_has_gets_no_nan():
    found = Targets(Consistency(), evidence([0.7, 0.3], [0.7, 0.3]), 2)
    found.learn(torch.arange(2), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    assert torch.allclose(found.of(torch.arange(2)).sum(1), torch.ones(2))


# Votes --------------------------------------------------------------------------------------------------------------------------------


def test_votes_are_the_likeliest_frequencies_of_the_neighbours():
    likelihood = [[0.75, 0.25], [0.75, 0.25], [0.75, 0.25], [0.25, 0.75], [0.25, 0.75]]
    features = torch.tensor([[1.0, 0.01 * i] for i in range(5)])
    votes = neighbour_votes(features, evidence(*likelihood), 2, count=4)
    # of row 4 the neighbours are three with the first output and one with the second: (3/4 - 1/4) / (3/4 - 1/4) = 1 for the first class
    assert votes[4, 0] > 0.97
    # of row 0 two and two: half and half
    assert torch.allclose(votes[0], torch.tensor([0.5, 0.5]), atol=1e-3)


def test_a_row_has_no_part_in_its_own_votes():
    features = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    table = torch.rand(30, 3, generator=torch.Generator().manual_seed(1)).log()
    other = table.clone()
    other[7] = torch.tensor([0.0, -9.0, -9.0])
    before, after = (neighbour_votes(features, Dense(each), 3, count=29) for each in (table, other))
    moved = (before - after).abs().amax(1) > 1e-4
    assert moved.sum() == 29  # all others have it as a neighbour; the start of EM moves a little, so not bit by bit
    assert not moved[7]


def test_more_neighbours_than_rows_are_all_other_rows():
    features, table = torch.eye(5), evidence(*[[0.6, 0.4]] * 5)
    assert torch.equal(neighbour_votes(features, table, 2, count=99), neighbour_votes(features, table, 2, count=4))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (torch.full((4, 2), torch.nan), "finite features"),
        (torch.ones(3, 2), "of the 4 rows of evidence"),
        (torch.ones(4), "of the 4 rows of evidence"),
    ],
)
def test_features_that_cannot_vote_are_refused(features, message):
    with pytest.raises(InvalidInput, match=message):
        neighbour_votes(features, Dense(UNIFORM), 2)


def test_rows_of_any_size_vote_alike():
    features = torch.rand(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    table = evidence(*[[0.6, 0.4], [0.4, 0.6]] * 10)
    wanted = neighbour_votes(features, table, 2, count=5)
    for scale in (1e-30, 1e200):
        assert torch.allclose(neighbour_votes(features * scale, table, 2, count=5), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("features", "table", "n_classes"),
    [
        (np.ones((4, 2)), Dense(UNIFORM), 2),
        (torch.ones(4, 2), UNIFORM, 2),
        (torch.ones(4, 2), Dense(UNIFORM), 3),
        (torch.ones(4, 2), Dense(UNIFORM), 1),
        (torch.ones(4, 2), Dense(UNIFORM), 2.0),
    ],
)
def test_what_is_no_evidence_of_these_classes_is_refused(features, table, n_classes):
    with pytest.raises(InvalidInput):
        neighbour_votes(features, table, n_classes)


# Strong changes -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_strong_changes_keep_shape_and_range_and_follow_the_generator(channels):
    images = torch.rand(64, channels, 17, 12, generator=torch.Generator().manual_seed(0))
    one, again, other = (augment.rand_augment(images, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert one.shape == images.shape
    assert one.dtype == images.dtype
    assert float(one.min()) >= 0
    assert float(one.max()) <= 1
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert ((one - images).abs().flatten(1).amax(1) > 0).all()  # the square alone changes every image


def test_the_square_has_its_size():
    images = torch.zeros(2000, 1, 16, 16)
    found = augment.rand_augment(images, torch.Generator().manual_seed(0), hole=0.5, strength=1e-6)
    sizes = (found - 0.5).abs().lt(1e-3).sum((1, 2, 3))
    assert int(sizes.max()) == 64  # 8 x 8; less where it hangs over the edge


@pytest.mark.parametrize(
    "call",
    [
        lambda x, g: augment.rand_augment((x * 255).to(torch.uint8), g),
        lambda x, g: augment.rand_augment(x[0], g),
        lambda x, g: augment.rand_augment(x, g, count=0),
        lambda x, g: augment.rand_augment(x, g, strength=0.0),
        lambda x, g: augment.rand_augment(x, g, hole=1.5),
        lambda x, g: augment.rand_augment(255 * x, g),
        lambda x, g: augment.rand_augment(x - 0.5, g),
        lambda x, g: augment.rand_augment(x * torch.nan, g),
    ],
)
def test_strong_changes_of_something_else_are_refused(call):
    with pytest.raises(InvalidInput):
        call(torch.rand(2, 3, 8, 8), torch.Generator())


# Settings -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"strong": "flip"},
        {"weight": 0.0},
        {"weight": float("nan")},
        {"temperature": 1.5},
        {"threshold": 1.0},
        {"share": 0.0},
        {"memory": 1.0},
        {"align": 1},
        {"own": None},
        {"warm_up": -1},
        {"neighbours": 2.5},
    ],
)
def test_settings_that_no_training_could_use_are_refused(wrong):
    with pytest.raises(InvalidInput):
        Consistency(**wrong)


@pytest.mark.parametrize("loss", [cross_entropy, debiased_loss])
def test_losses_without_likelihoods_are_refused(loss):
    with pytest.raises(InvalidInput, match="log-likelihoods with consistency"):
        Recipe(loss=loss, consistency=Consistency())


def test_something_else_than_settings_is_refused():
    with pytest.raises(InvalidInput, match=r"deep\.Consistency or None"):
        Recipe(consistency=True)


def test_labels_are_no_evidence():
    with pytest.raises(InvalidInput, match="Pass evidence_of"):
        train(
            models.Mlp(2, 2),
            torch.rand(8, 2),
            torch.zeros(8, dtype=torch.int64),
            Recipe(consistency=Consistency()),
            generator=torch.Generator(),
        )


def test_a_net_without_a_linear_layer_has_no_features_to_vote_by():
    net = torch.nn.Conv1d(1, 2, 1)
    with pytest.raises(InvalidInput, match="linear layer"):
        train(net, torch.rand(4, 1, 1), Dense(UNIFORM), Recipe(consistency=Consistency(neighbours=2)), generator=torch.Generator())


def test_the_weight_rises_after_the_warm_up():
    settings = Consistency(weight=2.0, warm_up=4)
    assert [settings.weight_at(epochs) for epochs in (0, 3.9, 4, 6, 8, 20)] == [0, 0, 0, 1.0, 2.0, 2.0]
    assert Consistency(weight=2.0).weight_at(0) == 2.0


def test_a_warm_up_without_end_is_refused():
    with pytest.raises(InvalidInput, match="warm_up < epochs=5"):
        Recipe(epochs=5, consistency=Consistency(warm_up=5))


def test_many_processes_are_refused_before_anything_is_charged():
    require_one_process((Recipe(consistency=Consistency()),), 1)
    require_one_process((Recipe(),), 2)
    with pytest.raises(InvalidInput, match="one process with consistency, got 2"):
        require_one_process((Recipe(), Recipe(consistency=Consistency())), 2)


@pytest.mark.parametrize("strong", [lambda x, _: x[:1], lambda x, _: x[..., :4], lambda x, _: None])
def test_a_change_that_gives_other_rows_is_refused(strong):
    with pytest.raises(InvalidInput, match="Change each row by itself"):
        Consistency(strong=strong).views(torch.rand(8, 1, 8, 8), torch.Generator())


def test_a_batch_of_one_row_is_tried_without_neighbours(tmp_path):
    X, y, _, _ = digits(60)
    recipe = Recipe(epochs=1, batch_size=1, consistency=Consistency(neighbours=5))
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    model = TorchClassifier(net, recipe=recipe, epsilon=2.0, classes=range(10), ledger=ledger, dataset="d", random_state=0)
    assert model.fit(X.numpy(), y).predict(X.numpy()).shape == (60,)


def test_a_table_of_likelihoods_is_evidence_too():
    X, y, _, _ = digits(60)
    noisy = ldp.privatize(y, ldp.RandomizedResponse(10, 2.0), noise=ldp.SeededNoise(0))
    recipe = Recipe(epochs=1, consistency=Consistency(neighbours=5))
    nets = [torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    for net, given in zip(nets, (evidence_of(noisy), evidence_of(noisy).expand(10)), strict=True):
        train(net, X, given, recipe, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(nets[0][1].weight, nets[1][1].weight, atol=1e-5)


def test_other_settings_are_another_fit():
    recipe = Recipe(consistency=Consistency())
    other = replace(recipe, consistency=Consistency(memory=0.5))
    assert described(recipe) == described(Recipe(consistency=Consistency()))
    assert described(recipe) != described(other)


# Training -----------------------------------------------------------------------------------------------------------------------------


def test_what_rows_share_teaches_more_than_each_row_alone():
    X, y, X_test, y_test = digits()
    noisy = ldp.privatize(y, ldp.SubsetSelection(10, 1.0), noise=ldp.SeededNoise(0))
    right = {}
    for name, consistency in (("alone", None), ("shared", Consistency(neighbours=40))):
        torch.manual_seed(0)
        recipe = Recipe(epochs=12, average=0.98, consistency=consistency)
        net = train(models.SmallConvNet(), X, evidence_of(noisy), recipe, generator=torch.Generator().manual_seed(0))
        right[name] = float((predict(net, X_test).argmax(1).numpy() == y_test).mean())
    assert right["shared"] > 0.9
    assert right["shared"] > right["alone"] + 0.1


def test_mixup_and_warm_up_go_together_with_it():
    X, y, _, _ = digits(200)
    noisy = ldp.privatize(y, ldp.RandomizedResponse(10, 4.0), noise=ldp.SeededNoise(0))
    recipe = Recipe(epochs=3, alpha=0.5, consistency=Consistency(warm_up=1, threshold=0.5, temperature=0.0))
    losses = []
    train(
        models.SmallConvNet(),
        X,
        evidence_of(noisy),
        recipe,
        generator=torch.Generator().manual_seed(0),
        progress=lambda epoch: losses.append(epoch.loss),
    )
    assert len(losses) == 3
    assert np.isfinite(losses).all()


def test_the_classifier_learns_so_in_two_stages():
    X, y, X_test, y_test = digits()
    model = TorchClassifier(
        models.SmallConvNet,
        recipe=Recipe(epochs=8, average=0.98, consistency=Consistency(neighbours=40)),
        epsilon=2.0,
        classes=range(10),
        n_stages=2,
        noise=ldp.SeededNoise(0),
        random_state=0,
    ).fit(X.numpy(), y)
    assert model.score(X_test.numpy(), y_test) > 0.93
