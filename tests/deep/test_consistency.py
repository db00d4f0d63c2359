# SPDX-License-Identifier: Apache-2.0
"""What rows share: posterior targets, votes of neighbours, strong changes, and a training with
them."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from tests.deep.datasets import closed

import labeldp as ldp
from labeldp.deep import (
    Consistency,
    Dense,
    Recipe,
    TorchClassifier,
    augment,
    consensus,
    cross_entropy,
    debiased_loss,
    denoise,
    evidence_of,
    group_votes,
    models,
    neighbour_votes,
    predict,
    train,
)
from labeldp.deep._consistency import Targets
from labeldp.deep._loop import require_one_process
from labeldp.errors import InvalidInput, LostClassWarning
from labeldp.learn import ClusterPrior, find_clusters

UNIFORM = torch.zeros(4, 2)


def evidence(*rows: list[float]) -> Dense:
    """Log-likelihoods of the classes, by row; the largest is 0."""
    found = torch.tensor(rows).log()
    return Dense(found - found.amax(1, keepdim=True))


def digits(n: int = 1400) -> tuple[torch.Tensor, np.ndarray, torch.Tensor, np.ndarray]:
    """Images and labels: n to learn from, and the others."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = torch.from_numpy(found.images[order]).float()[:, None] / 16
    return images[:n], found.target[order][:n], images[n:], found.target[order][n:]


# Targets
# --------------------------------------------------------------------------------------------------


def test_a_target_is_prediction_times_likelihood_sharpened():
    # equal frequencies are the likeliest
    likelihood = [[0.7, 0.3], [0.3, 0.7], [0.7, 0.3], [0.3, 0.7]]
    found = Targets(Consistency(memory=0.0, align=False), evidence(*likelihood), 2)
    rows = torch.tensor([0, 3])
    found.learn(rows, torch.tensor([[0.6, 0.4], [0.2, 0.8]]))
    first, second = 0.6 * 0.7, 0.4 * 0.3
    third, fourth = 0.2 * 0.3, 0.8 * 0.7
    wanted = [[first**2, second**2], [third**2, fourth**2]]  # temperature 1/2
    assert torch.allclose(
        found.of(rows), torch.tensor([[a / (a + b), b / (a + b)] for a, b in wanted]), atol=1e-6
    )


def test_without_the_own_label_a_target_is_the_prediction():
    found = Targets(
        Consistency(memory=0.0, align=False, own=False, temperature=1.0),
        evidence(*[[0.9, 0.1]] * 3),
        2,
    )
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
    found = Targets(
        Consistency(memory=0.75, align=False, own=False, temperature=1.0), Dense(UNIFORM), 2
    )
    row = torch.tensor([2])
    found.learn(row, torch.tensor([[0.8, 0.2]]))
    assert torch.allclose(found.of(row), torch.tensor([[0.8, 0.2]]), atol=1e-6)
    found.learn(row, torch.tensor([[0.4, 0.6]]))
    assert torch.allclose(found.of(row), torch.tensor([[0.7, 0.3]]), atol=1e-6)


def test_predictions_are_scaled_to_the_frequencies_that_noisy_labels_tell():
    frequencies = np.array([0.8, 0.2])
    labels = np.repeat([0, 1], [4000, 1000])
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(2), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(2, 3.0),
    )
    settings = Consistency(memory=0.0, own=False, temperature=1.0)
    found = Targets(settings, evidence_of(noisy), 2)
    rows = torch.arange(5000)
    for _ in range(300):  # a net that calls half of the rows 1
        found.learn(rows, torch.full((5000, 2), 0.5))
    assert np.allclose(found.of(rows).mean(0).numpy(), frequencies, atol=0.03)


def test_a_relative_threshold_is_a_share_of_the_mean_largest_posterior():
    settings = Consistency(
        memory=0.0, align=False, own=False, temperature=0.0, threshold=0.9, relative=True
    )
    found = Targets(settings, Dense(UNIFORM), 2)
    rows = torch.arange(4)
    # mean largest 0.545, of which 0.9 are 0.4905
    found.learn(rows, torch.tensor([[0.6, 0.4], [0.52, 0.48], [0.44, 0.56], [0.5, 0.5]]))
    assert found.of(rows).sum() == 4
    found.learn(rows, torch.tensor([[0.9, 0.1], [0.52, 0.48], [0.1, 0.9], [0.5, 0.5]]))
    # the mean follows slowly: 4 of 512 rows
    limit = 0.9 * (0.545 + 0.02 * 4 / 512 * (0.705 - 0.545))
    assert limit < 0.5
    assert found.of(rows).sum() == 4
    other = Targets(settings, Dense(UNIFORM), 2)
    # 0.9 x 0.705
    other.learn(rows, torch.tensor([[0.9, 0.1], [0.52, 0.48], [0.1, 0.9], [0.5, 0.5]]))
    assert other.of(rows).tolist() == [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]


def test_balanced_targets_have_the_class_shares_that_noisy_labels_tell():
    settings = Consistency(memory=0.0, align=False, own=False, temperature=0.0, balance=True)
    found = Targets(settings, Dense(torch.zeros(1000, 2)), 2)  # equal classes are the likeliest
    rows = torch.arange(1000)
    proba = torch.tensor([[0.9, 0.1]]).repeat(1000, 1)
    proba[:200] = torch.tensor([0.1, 0.9])
    found.learn(rows, proba)
    for _ in range(400):
        targets = found.of(rows)
    assert torch.allclose(targets.mean(0), torch.tensor([0.5, 0.5]), atol=0.02)
    assert targets[:200, 0].sum() == targets[200:, 1].sum() == 0


def test_a_mixture_of_losses_finds_the_rows_whose_label_is_right():
    """Predictions that are sure of a class: rows whose noisy label is another one have a large
    loss."""
    labels = np.repeat([0, 1, 2], 400)
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(3), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(3, 1.0),
    )
    found = Targets(
        Consistency(memory=0.0, own="mixture", temperature=1.0, align=False), evidence_of(noisy), 3
    )
    rows = torch.arange(1200)
    proba = torch.full((1200, 3), 0.1)
    proba[rows, torch.from_numpy(labels)] = 0.8
    found.learn(rows, proba)
    found.begin_epoch()
    targets, right = found.of(rows), noisy.hard_codes() == labels
    # the label alone
    assert torch.allclose(targets[right], torch.eye(3)[torch.from_numpy(labels[right])], atol=0.01)
    assert torch.allclose(targets[~right], proba[~right], atol=0.01)  # the prediction alone


def test_first_predictions_count_until_the_net_has_some():
    first = np.array([[9.0, 1.0], [0.0, 0.0], [0.2, 0.8]])
    found = Targets(
        Consistency(memory=0.0, align=False, own=False, temperature=1.0),
        Dense(UNIFORM[:3]),
        2,
        first,
    )
    assert torch.allclose(
        found.of(torch.arange(3)), torch.tensor([[0.9, 0.1], [0.55, 0.45], [0.2, 0.8]]), atol=0.01
    )
    found.learn(torch.tensor([0]), torch.tensor([[0.3, 0.7]]))
    assert torch.allclose(found.of(torch.tensor([0])), torch.tensor([[0.3, 0.7]]), atol=1e-6)


def test_first_predictions_without_consistency_are_refused():
    with pytest.raises(InvalidInput, match="Leave first out"):
        train(
            models.Mlp(2, 2),
            torch.rand(4, 2),
            Dense(UNIFORM),
            Recipe(),
            generator=torch.Generator(),
            first=np.ones((4, 2)),
        )


# Votes
# --------------------------------------------------------------------------------------------------


def test_votes_are_the_likeliest_frequencies_of_the_neighbours():
    likelihood = [[0.75, 0.25], [0.75, 0.25], [0.75, 0.25], [0.25, 0.75], [0.25, 0.75]]
    features = torch.tensor([[1.0, 0.01 * i] for i in range(5)])
    votes = neighbour_votes(features, evidence(*likelihood), 2, count=4)
    # of row 4 the neighbours are three with the first output and one with the second: (3/4 - 1/4) /
    # (3/4 - 1/4) = 1 for the first class
    assert votes[4, 0] > 0.97
    # of row 0 two and two: half and half
    assert torch.allclose(votes[0], torch.tensor([0.5, 0.5]), atol=1e-3)


def test_a_row_has_no_part_in_its_own_votes():
    features = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    chances = torch.rand(30, 3, generator=torch.Generator().manual_seed(1))
    table = evidence(*chances.tolist()).values
    other = table.clone()
    other[7] = torch.tensor([0.0, -9.0, -9.0])
    before, after = (neighbour_votes(features, Dense(each), 3, count=29) for each in (table, other))
    moved = (before - after).abs().amax(1) > 1e-4
    # all others have it as a neighbour; the start of EM moves a little, so not bit by bit
    assert moved.sum() == 29
    assert not moved[7]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (torch.full((4, 2), torch.nan), "finite features"),
        (torch.ones(3, 2), "of the 4 rows of evidence"),
        (torch.ones(4), "of the 4 rows of evidence"),
        (torch.ones(4, 2, dtype=torch.int64), "Expected features as a tensor of floats"),
    ],
)
def test_features_that_cannot_vote_are_refused(features, message):
    with pytest.raises(InvalidInput, match=message):
        neighbour_votes(features, Dense(UNIFORM), 2)


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


# Groups
# --------------------------------------------------------------------------------------------------


def test_the_votes_of_a_group_are_the_likeliest_frequencies_of_its_rows():
    groups = np.repeat([0, 2], 6000)  # number 1 is empty
    labels = np.concatenate([np.repeat([0, 1], [4500, 1500]), np.repeat([1], 6000)])
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(5), noise=ldp.SeededNoise(0)),
        ldp.SubsetSelection(5, 2.0),
    )
    votes = group_votes(groups, evidence_of(noisy), 5)
    wanted = torch.tensor([[0.75, 0.25, 0, 0, 0]] * 6000 + [[0, 1.0, 0, 0, 0]] * 6000)
    assert torch.allclose(votes, wanted, atol=0.06)
    assert torch.equal(votes[0], votes[5999])
    huge = np.where(groups == 2, 2**62, 0)  # such as digests of names
    assert torch.equal(group_votes(huge, evidence_of(noisy), 5), votes)


@pytest.mark.parametrize(
    ("right", "e", "truth"),
    [(0.9, 3.0, 27 / 28), (0.1, 3.0, 0.25), (0.5, 9.0, 0.9), (1.0, 3.0, 1.0), (0.0, 3.0, 0.0)],
)
def test_agreeing_rows_are_as_many_and_as_right_as_the_formula_says(right, e, truth):
    """Tang et al. 2022, equation 8; deviations above 5 standard errors, with fixed seeds."""
    n, k, rng = 100_000, 10, np.random.default_rng(0)
    labels = rng.integers(0, k, n)
    predicted = np.where(rng.random(n) < right, labels, (labels + rng.integers(1, k, n)) % k)
    law = ldp.RandomizedResponse(k, float(np.log(e)))
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(k), noise=ldp.SeededNoise(1)), law
    )
    found = consensus(evidence_of(noisy), predicted, k)
    agree = (found.rest < 0).numpy()
    keep = e / (e + k - 1)
    share = right * keep + (1 - right) * (1 - keep) / (k - 1)
    assert abs(agree.mean() - share) < 5 * np.sqrt(share * (1 - share) / n)
    assert abs((predicted == labels)[agree].mean() - truth) <= 5 * np.sqrt(
        truth * (1 - truth) / agree.sum()
    )
    assert np.array_equal(noisy.hard_codes() == predicted, agree)
    assert np.array_equal(
        found.expand(k)[torch.from_numpy(agree)].argmax(1).numpy(), predicted[agree]
    )
    assert (found.expand(k)[~torch.from_numpy(agree)] == 0).all()


@pytest.mark.parametrize(
    "law",
    [
        ldp.SubsetSelection(6, 1.0),
        ldp.RRWithPrior(6, 1.0),
        ldp.AutoLaw(6, 1.0),
        ldp.PriorSplit(6, 1.0),
    ],
    ids=str,
)
def test_an_output_of_any_law_agrees_with_the_classes_that_it_speaks_for(law):
    labels = np.arange(600) % 6
    prior = np.random.default_rng(0).dirichlet(np.ones(6), 600) if law.uses_prior else None
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(6), noise=ldp.SeededNoise(0)), law, prior=prior
    )
    agree = (consensus(evidence_of(noisy), labels, 6).rest < 0).numpy()
    assert np.array_equal(agree, noisy.log_likelihood()[np.arange(600), labels] > -1e-5)
    assert 0.1 < agree.mean() < 1


def test_predictions_that_no_label_agrees_with_leave_nothing_to_learn():
    with pytest.raises(InvalidInput, match="agree with some noisy label"):
        consensus(evidence([0.7, 0.3], [0.7, 0.3]), np.array([1, 1]), 2)


def test_a_class_that_no_row_keeps_is_told_of():
    with pytest.warns(LostClassWarning, match=r"class 1, 2 \(by code\)"):
        consensus(evidence([0.5, 0.3, 0.2], [0.2, 0.5, 0.3]), np.array([0, 0]), 3)


@pytest.mark.parametrize(
    "wrong",
    [
        [0, 1],
        [0.0, 1.0, 0.0],
        [0, 1, 2],
        [0, -1, 1],
        np.eye(3, dtype=int),
        ["no", "yes", "no"],
        np.array([0, 1, 0], complex),
    ],
)
def test_what_is_no_class_a_row_is_refused(wrong):
    table, wrong = evidence([0.7, 0.3], [0.7, 0.3], [0.3, 0.7]), np.asarray(wrong)
    with pytest.raises(InvalidInput, match="predicted as 3 whole numbers"):
        consensus(table, wrong, 2)
    with pytest.raises(InvalidInput, match="evidence as a form"):
        consensus(table.values, np.array([0, 1, 1]), 2)
    with pytest.raises(InvalidInput, match="without masked values"):
        consensus(table, np.ma.array([0, 1, 1], mask=[0, 0, 1]), 2)
    if not np.array_equal(wrong, [0, 1, 2]):  # which are three groups
        with pytest.raises(InvalidInput, match="groups as 3 whole numbers"):
            group_votes(wrong, table, 2)


@pytest.mark.parametrize(
    "make",
    [
        Consistency.fixmatch,
        Consistency.adamatch,
        Consistency.posterior_selection,
        Consistency.dividemix,
    ],
)
def test_a_papers_settings_refuse_others_by_name(make):
    with pytest.raises(
        InvalidInput, match=r"one of strong, weight, .* got 'treshold'. Did you mean 'threshold'"
    ):
        make(treshold=0.9)
    assert make(threshold=0.8).threshold == 0.8


# Strong changes
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_strong_changes_keep_shape_and_range_and_follow_the_generator(channels):
    images = torch.rand(64, channels, 17, 12, generator=torch.Generator().manual_seed(0))
    one, again, other = (
        augment.rand_augment(images, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert one.shape == images.shape
    assert one.dtype == images.dtype
    assert 0 <= float(one.min()) <= float(one.max()) <= 1
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    # the square alone changes every image
    assert ((one - images).abs().flatten(1).amax(1) > 0).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda x, g: augment.rand_augment((x * 255).to(torch.uint8), g),
        lambda x, g: augment.rand_augment(x[0], g),
        lambda x, g: augment.rand_augment(255 * x, g),
        lambda x, g: augment.rand_augment(x - 0.5, g),
        lambda x, g: augment.rand_augment(x * torch.nan, g),
    ],
)
def test_strong_changes_of_something_else_are_refused(call):
    with pytest.raises(InvalidInput):
        call(torch.rand(2, 3, 8, 8), torch.Generator())


# Settings
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"strong": "flip"},
        {"weight": 0.0},
        {"weight": float("nan")},
        {"temperature": 1.5},
        {"threshold": 1.0},
        {"memory": 1.0},
        {"align": 1},
        {"own": None},
        {"warm_up": -1},
        {"neighbours": 2.5},
        {"own": "likelihood"},
        {"revote": -1},
        {"revote": 1},  # without neighbours: it failed in that epoch, after the charge
        {"relative": None},
        {"balance": 1},
    ],
)
def test_settings_that_no_training_could_use_are_refused(wrong):
    with pytest.raises(InvalidInput):
        Consistency(**wrong)


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
        train(
            net,
            torch.rand(4, 1, 1),
            Dense(UNIFORM),
            Recipe(consistency=Consistency(neighbours=2)),
            generator=torch.Generator(),
        )


def test_the_weight_rises_after_the_warm_up():
    settings = Consistency(weight=2.0, warm_up=4)
    assert [settings.weight_at(epochs) for epochs in (0, 3.9, 4, 6, 8, 20)] == [
        0,
        0,
        0,
        1.0,
        2.0,
        2.0,
    ]
    assert Consistency(weight=2.0).weight_at(0) == 2.0


def test_a_warm_up_without_end_is_refused():
    with pytest.raises(InvalidInput, match="warm_up < epochs=5"):
        Recipe(epochs=5, consistency=Consistency(warm_up=5))


def test_a_fit_with_a_warm_up_is_tried_with_targets(tmp_path):
    """The step on trial has one epoch, which no warm-up would fit into; a change that does not work
    is found before the charge."""
    X, y, _, _ = digits(60)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    settings = {
        "epsilon": 2.0,
        "random_state": 0,
    }
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    labels = closed(y, 10, ledger=ledger)
    wrong = Recipe(epochs=3, consistency=Consistency(warm_up=2, strong=lambda x, _: x[:1]))
    with pytest.raises(InvalidInput, match="Change each row by itself"):
        TorchClassifier(net, recipe=wrong, **settings).fit(X.numpy(), labels)
    assert not ledger.runs()
    model = TorchClassifier(
        net, recipe=Recipe(epochs=3, consistency=Consistency(warm_up=2)), **settings
    ).fit(X.numpy(), labels)
    assert model.predict(X.numpy()).shape == (60,)


def test_many_processes_are_refused_before_anything_is_charged():
    require_one_process((Recipe(consistency=Consistency()),), 1)
    require_one_process((Recipe(),), 2)
    with pytest.raises(InvalidInput, match="one process with consistency, got 2"):
        require_one_process((Recipe(), Recipe(consistency=Consistency())), 2)


def test_a_table_of_likelihoods_is_evidence_too():
    X, y, _, _ = digits(60)
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(10), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(10, 2.0),
    )
    recipe = Recipe(epochs=1, consistency=Consistency(neighbours=5))
    nets = [torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    for net, given in zip(nets, (evidence_of(noisy), evidence_of(noisy).expand(10)), strict=True):
        train(net, X, given, recipe, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(nets[0][1].weight, nets[1][1].weight, atol=1e-5)


# Training
# --------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_what_rows_share_teaches_more_than_each_row_alone():
    X, y, X_test, y_test = digits()
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(10), noise=ldp.SeededNoise(0)),
        ldp.SubsetSelection(10, 1.0),
    )
    right = {}
    for name, consistency in (("alone", None), ("shared", Consistency(neighbours=40))):
        torch.manual_seed(0)
        recipe = Recipe(epochs=12, average=0.98, consistency=consistency)
        net = train(
            models.SmallConvNet(),
            X,
            evidence_of(noisy),
            recipe,
            generator=torch.Generator().manual_seed(0),
        )
        right[name] = float((predict(net, X_test).argmax(1).numpy() == y_test).mean())
    assert right["shared"] > 0.9
    assert right["shared"] > right["alone"] + 0.1


def test_the_classifier_learns_so_in_two_stages():
    X, y, X_test, y_test = digits()
    model = TorchClassifier(
        models.SmallConvNet,
        recipe=Recipe(epochs=8, average=0.98, consistency=Consistency(neighbours=40)),
        epsilon=2.0,
        stages=2,
        random_state=0,
    ).fit(X.numpy(), ldp.PrivateLabels(y, classes=range(10), noise=ldp.SeededNoise(0)))
    assert model.score(X_test.numpy(), y_test) > 0.93


def trained(recipe, epsilon, held_out=0):
    """Test accuracy of each epoch and of what comes out, the share of the largest predicted class,
    for a small net on digits."""
    X, y, X_test, y_test = digits()
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(10), noise=ldp.SeededNoise(0)),
        ldp.SubsetSelection(10, epsilon),
    )
    evidence, curve = evidence_of(noisy), []
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    net = train(
        net,
        X[held_out:],
        evidence[held_out:],
        recipe,
        generator=torch.Generator().manual_seed(0),
        held_out=(X[:held_out], evidence[:held_out]) if held_out else None,
        watch=lambda _, now: curve.append(
            float((predict(now, X_test).argmax(1).numpy() == y_test).mean())
        ),
    )
    predicted = predict(net, X_test).argmax(1).numpy()
    return (
        curve,
        float((predicted == y_test).mean()),
        float(np.bincount(predicted).max() / len(predicted)),
    )


def gently(images, generator):
    """For images of 8 x 8 pixels."""
    return augment.rand_augment(images, generator, strength=0.5, hole=0.3)


@pytest.mark.nightly
def test_naive_fixmatch_collapses_at_a_small_epsilon_and_posterior_selection_does_not():
    """Epsilon 0.5: a threshold on the net's own belief lets one class take over, after a rise, and
    the loop tells of it; votes of neighbours, and predictions aligned to the class frequencies,
    hold the others."""
    with pytest.warns(LostClassWarning, match="no row was sure enough"):
        curve, naive, largest = trained(
            Recipe(epochs=20, consistency=Consistency.fixmatch(strong=gently, weight=3.0)), 0.5
        )
    assert largest > 0.5
    assert naive < 0.25 < max(curve)
    _, shared, largest = trained(
        Recipe(epochs=20, consistency=Consistency.posterior_selection(strong=gently)), 0.5
    )
    assert largest < 0.2
    assert shared > 0.65


def test_five_times_the_usual_epochs_do_not_ruin_the_likelihood_where_noisy_rows_choose():
    """The likelihood learns the noise in time: what is lost at the end, held-out noisy labels find
    and avoid."""
    epochs = 5 * Recipe().epochs
    curve, chosen, _ = trained(Recipe(epochs=epochs, patience=epochs), 1.0, held_out=300)
    assert len(curve) == epochs
    assert curve[-1] > 0.6  # it declines, and does not collapse
    assert curve[-1] < max(curve) - 0.04
    assert chosen > curve[-1] + 0.03


@pytest.mark.filterwarnings("ignore::labeldp.errors.LostClassWarning")
@pytest.mark.parametrize("name", ["fixmatch", "adamatch", "posterior_selection", "dividemix"])
@pytest.mark.parametrize("kind", [ldp.RandomizedResponse, ldp.SubsetSelection, ldp.PriorSplit])
def test_every_method_takes_every_law(name, kind):
    X, y, _, _ = digits(120)
    law = kind(10, 2.0)
    prior = np.random.default_rng(0).dirichlet(np.ones(10), 120) if law.uses_prior else None
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(10), noise=ldp.SeededNoise(0)), law, prior=prior
    )
    losses = []
    settings = getattr(Consistency, name)(warm_up=1, threshold=0.0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    recipe = Recipe(epochs=3, alpha=0.5, consistency=settings)
    train(
        net,
        X,
        evidence_of(noisy),
        recipe,
        generator=torch.Generator().manual_seed(0),
        progress=lambda epoch: losses.append(epoch.loss),
    )
    assert len(losses) == 3 and np.isfinite(losses).all()


def test_consensus_of_clusters_and_then_of_the_net_learns_from_rows_that_agree():
    """DenoiseSSL's labels, by k-means on the pixels; then a round of consensus retraining."""
    X, y, X_test, y_test = digits()
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(10), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(10, 1.0),
    )
    flat, evidence = X.flatten(1).numpy(), evidence_of(noisy)
    clusters = find_clusters(flat, 20).assign(flat)
    kept = denoise(clusters, evidence, 10)
    agree = (kept.rest < 0).numpy()
    assert (kept.indices[:, 0].numpy() == y)[agree].mean() > (noisy.hard_codes() == y).mean() + 0.4
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    generator = torch.Generator().manual_seed(0)
    train(net, X, kept, Recipe(epochs=10), generator=generator)
    first = (predict(net, X_test).argmax(1).numpy() == y_test).mean()
    train(
        net,
        X,
        consensus(evidence, predict(net, X).argmax(1), 10),
        Recipe(epochs=5),
        generator=generator,
    )
    assert first > 0.6
    assert (predict(net, X_test).argmax(1).numpy() == y_test).mean() > first - 0.05


def test_private_counts_are_the_prior_of_a_net_at_one_bill(ledger):
    """And not of the draws alone: without counts, or forgetting them, the net is right in less than
    half of all rows at this epsilon."""
    X, y, X_test, y_test = digits()
    flat, flat_test = X.flatten(1).numpy(), X_test.flatten(1).numpy()
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    settings = {
        "epsilon": 0.5,
        "random_state": 0,
        "prior": ClusterPrior(epsilon=0.25, linear=True),
    }
    asked = TorchClassifier(net, **settings).fit(flat, closed(y, 10, ledger=ledger))
    assert [(run.receipt.event["event"], run.receipt.epsilon) for run in ledger.runs()] == [
        ("aggregate", 0.25),
        ("label-draw", 0.25),
    ]
    assert asked.privacy_.epsilon == ledger.spent("d", "label") == 0.5
    for recipe in (
        None,
        Recipe(consistency=Consistency(strong=lambda x, _: x + 0.1)),
        Recipe(epochs=20),
    ):
        model = TorchClassifier(net, recipe=recipe, **settings).fit(flat, closed(y, 10))
        assert model.score(flat_test, y_test) > 0.85


def test_losses_of_labels_take_a_cluster_prior_as_before():
    X, y, _, _ = digits(300)
    net = torch.nn.Sequential(torch.nn.Linear(64, 10))
    for loss in (cross_entropy, debiased_loss):
        model = TorchClassifier(
            net,
            recipe=Recipe(epochs=1, loss=loss),
            prior=ClusterPrior(epsilon=1.0),
            law="rr-with-prior",
            epsilon=4.0,
            random_state=0,
        )
        if loss is debiased_loss:
            with pytest.raises(InvalidInput, match="invertible"):
                model.fit(X.flatten(1).numpy(), closed(y, 10))
        else:
            assert len(model.fit(X.flatten(1).numpy(), closed(y, 10)).history_[0]) == 1
