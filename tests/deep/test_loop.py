# SPDX-License-Identifier: Apache-2.0
"""The loop: it learns from noise, repeats exactly, sees every row, and stops where training has
gone wrong."""

import math
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import labeldp as ldp
from labeldp.deep import (
    Consistency,
    Heads,
    Recipe,
    augment,
    column_evidence,
    evidence_of,
    likelihood_loss,
    posterior_loss,
    predict,
    train,
)
from labeldp.deep.models import Ensemble, Mlp, SmallConvNet
from labeldp.papers._recipes import triangular

K = 4


def problem(n=3000, seed=0, epsilon=1.0):
    """Four clusters, and noisy labels that are wrong in half of the rows."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(K, size=n)
    x = np.eye(K)[labels] * 3 + rng.normal(size=(n, K))
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(K), noise=ldp.SeededNoise(seed)),
        ldp.RandomizedResponse(K, epsilon),
    )
    return torch.from_numpy(x).float(), labels, noisy


def fitted(recipe, x, form, seed=0, **options):
    torch.manual_seed(seed)
    return train(
        Mlp(K, K, (16,)), x, form, recipe, generator=torch.Generator().manual_seed(seed), **options
    )


def accuracy(net, x, labels):
    return float((predict(net, x).argmax(1).numpy() == labels).mean())


QUICK = Recipe(epochs=4, batch_size=128, rate=0.05, precision="float32", optimizer="sgd")
RECIPES = {
    "likelihood": QUICK,
    "average, clip, mixup": Recipe(
        4, 128, 0.05, alpha=1.0, average=0.9, precision="float32", optimizer="sgd"
    ),
    "model posterior": Recipe(
        4, 128, 0.05, loss=posterior_loss, precision="float32", optimizer="sgd"
    ),
    "bf16": Recipe(4, 128, 0.05, precision="bf16", optimizer="sgd"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_nets_learn_the_truth_from_noise(name):
    x, labels, noisy = problem()
    assert (noisy.hard() == labels).mean() < 0.55
    net = fitted(RECIPES[name], x, evidence_of(noisy, form="compact"))
    assert not net.training
    assert accuracy(net, x, labels) > 0.88  # the best possible is about 0.95


def test_a_seed_gives_the_same_weights_and_another_others():
    x, _, noisy = problem(300)
    form, recipe = (
        evidence_of(noisy),
        Recipe(2, 64, 0.05, alpha=1.0, precision="float32", optimizer="sgd"),
    )
    first, again, other = (predict(fitted(recipe, x, form, seed), x) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_images_are_scaled_augmented_and_kept_channels_last():
    seen = []

    def watch(images, generator):
        seen.append(images)
        return augment.shift(augment.flip(images, generator), generator, pixels=1)

    x = torch.randint(0, 256, (33, 2, 8, 8), dtype=torch.uint8)
    noisy = ldp.privatize(
        ldp.PrivateLabels(np.arange(33) % K, classes=range(K), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(K, 1.0),
    )
    generator = torch.Generator().manual_seed(0)
    train(
        SmallConvNet(K, 2),
        x,
        evidence_of(noisy),
        Recipe(1, 16, 0.01, augment=watch, precision="float32", optimizer="sgd"),
        generator=generator,
    )
    assert [len(images) for images in seen] == [16, 17]
    assert all(images.is_contiguous(memory_format=torch.channels_last) for images in seen)
    assert max(float(images.max()) for images in seen) <= 1.0


def test_a_training_whose_only_step_has_no_rate_is_told_of():
    x, _, noisy = problem(60)
    form, ramp = evidence_of(noisy), partial(triangular, peak_at=0.2)
    with pytest.warns(ldp.errors.UntrainedWarning, match="0 at 1 of 1 steps"):
        net = fitted(
            Recipe(1, 64, 1e30, schedule=ramp, precision="float32", optimizer="sgd"), x, form
        )
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        more = fitted(
            Recipe(1, 32, 0.1, schedule=ramp, precision="float32", optimizer="sgd"), x, form
        )
    assert not torch.equal(predict(net, x), predict(more, x))
    with pytest.raises(ldp.InvalidInput, match=r"torch.Generator, got int"):
        train(net, x, form, QUICK, generator=0)


def test_progress_tells_noisy_figures_only_and_may_stop():
    x, _, noisy = problem(600)
    form, told = evidence_of(noisy), []

    class Enough(Exception):
        pass

    def progress(epoch):
        told.append(epoch)
        if epoch.number == 2:
            raise Enough

    with pytest.raises(Enough):
        fitted(QUICK, x[:400], form[:400], held_out=(x[400:], form[400:]), progress=progress)
    assert [epoch.number for epoch in told] == [1, 2]
    assert all(0 < epoch.loss < 2 and -2 < epoch.held_out < 0 for epoch in told)


def test_held_out_score_is_the_mean_log_evidence():
    x, _, noisy = problem(600)
    form, told = evidence_of(noisy), []
    net = fitted(QUICK, x[:400], form[:400], held_out=(x[400:], form[400:]), progress=told.append)
    proba = torch.softmax(predict(net, x[400:], precision="float32"), 1).double().numpy()
    assert told[-1].held_out == pytest.approx(
        ldp.metrics.mean_log_evidence(noisy[400:], proba), abs=1e-5
    )


def test_what_cannot_be_trained_is_refused():
    x, _, noisy = problem(300)
    form = evidence_of(noisy)
    with pytest.raises(ldp.InvalidInput, match="200 for 300"):
        fitted(QUICK, x, form[:200])
    with pytest.raises(ldp.InvalidInput, match="finite"):
        fitted(QUICK, x * math.nan, form)
    # where losses are not looked at one by one
    with pytest.raises(ldp.InvalidInput, match="epoch 1"):
        fitted(
            Recipe(1, 64, loss=partial(likelihood_loss, check=False), precision="float32"),
            x * math.nan,
            form,
        )
    with pytest.raises(ldp.InvalidInput, match=r"logits' shape|K outputs"):
        train(nn.Linear(K, K + 1), x, form, QUICK, generator=torch.Generator())
    for bad in ({"batch_size": 0}, {"batch_size": 2.5}, {"precision": "fp16"}):
        with pytest.raises(ldp.InvalidInput, match=f"Expected .*{next(iter(bad))}"):
            predict(nn.Linear(K, K), x, **bad)
    for bad in ({"epochs": 0}, {"rate": math.nan}, {"precision": "fp8"}):
        with pytest.raises(ldp.InvalidInput, match="Expected"):
            Recipe(**bad)


# Classes that are lost
# --------------------------------------------------------------------------------------------------


def blind(low=-15.0, seed=0):
    """A net that begins without its last class: the likelihood has no gradient there."""
    torch.manual_seed(seed)
    net = Mlp(K, K, (16,))
    with torch.no_grad():
        [layer for layer in net.modules() if isinstance(layer, nn.Linear)][-1].bias[-1] = low
    return net


def share_of_last(net, x):
    return float(torch.softmax(predict(net, x), 1).mean(0)[-1])


SIX = replace(QUICK, epochs=6)


def unhelped(recipe):
    """The recipe with its loss as a function of the user's own: no class is won back."""
    return replace(recipe, loss=lambda *given, **more: recipe.loss(*given, **more))


@pytest.mark.parametrize(
    ("epsilon", "recipe"),
    [
        (1.0, SIX),
        (3.0, replace(QUICK, epochs=6, loss=posterior_loss)),
        (3.0, replace(QUICK, epochs=100, batch_size=3000)),
    ],
    ids=["likelihood", "posterior", "one batch an epoch"],
)
def test_a_lost_class_is_won_back(epsilon, recipe):
    x, labels, noisy = problem(epsilon=epsilon)
    found = []
    for each in (unhelped(recipe), recipe):
        generator = torch.Generator().manual_seed(0)
        net = train(blind(), x, evidence_of(noisy), each, generator=generator)
        found += [accuracy(net, x, labels), share_of_last(net, x)]
    assert found[0] < 0.75 and found[1] < 1e-3
    assert found[2] > 0.8 and 0.15 < found[3] < 0.35


def test_a_class_that_is_won_back_in_part_is_told_of():
    x, _, noisy = problem(epsilon=3.0)
    with pytest.warns(
        ldp.errors.LostClassWarning,
        match=r"had given up class 3 \(by code\), and has won it back in part",
    ):
        train(
            blind(-30.0),
            x,
            evidence_of(noisy),
            replace(QUICK, epochs=3),
            generator=torch.Generator().manual_seed(0),
        )


def test_nets_of_an_ensemble_and_of_consistency_train_as_they_are_told():
    x, _, noisy = problem(epsilon=3.0)

    def share(net, recipe):
        steps = {"generator": torch.Generator().manual_seed(0)}
        return share_of_last(train(net, x, evidence_of(noisy), recipe, **steps), x)

    assert (
        share(Ensemble([blind(), blind(seed=1)]), unhelped(SIX))
        < 1e-3
        < 0.1
        < share(Ensemble([blind(), blind(seed=1)]), SIX)
    )
    shared = replace(SIX, consistency=Consistency(strong=None, warm_up=2))
    assert share(blind(), shared) == share(blind(), unhelped(shared))


def test_a_lost_class_of_one_of_several_columns_is_won_back():
    x, labels, _ = problem()
    columns = ldp.LabelColumns({"first": range(2), "second": range(K)})
    law = columns.law(6.0, "equal")
    both = ldp.privatize(
        ldp.PrivateLabels(
            {"first": labels % 2, "second": labels}, classes=columns, noise=ldp.SeededNoise(0)
        ),
        law,
    )
    form = column_evidence(both)
    assert isinstance(form, Heads)
    found = {}
    for win_back in (False, True):
        torch.manual_seed(0)
        net = Mlp(K, 2 + K, (16,))
        with torch.no_grad():
            [layer for layer in net.modules() if isinstance(layer, nn.Linear)][-1].bias[-1] = -15.0
        train(
            net,
            x,
            form,
            SIX if win_back else unhelped(SIX),
            generator=torch.Generator().manual_seed(0),
        )
        found[win_back] = float((predict(net, x)[:, 2:].argmax(1).numpy() == labels).mean())
    assert found[False] < 0.75 and found[True] > 0.85


def test_a_class_that_does_not_occur_is_not_won_back():
    x, labels, _ = problem(n=6000)
    some = labels < K - 1
    for seed in range(3):
        drawn = ldp.privatize(
            ldp.PrivateLabels(labels[some], classes=range(K), noise=ldp.SeededNoise(seed)),
            ldp.RandomizedResponse(K, 1.0),
        )
        forms, steps = evidence_of(drawn), torch.Generator().manual_seed(0)
        nets = [
            train(blind(), x[some], forms, each, generator=steps.manual_seed(0))
            for each in (QUICK, unhelped(QUICK))
        ]
        for first, second in zip(*(net.state_dict().values() for net in nets), strict=True):
            assert torch.equal(first, second)


def test_a_training_goes_on_winning_a_class_back_after_a_stop(tmp_path):
    x, _, noisy = problem(epsilon=3.0)
    recipe, file = replace(QUICK, epochs=5), tmp_path / "net.pt"

    def run(**given):
        return train(
            blind(),
            x,
            evidence_of(noisy),
            recipe,
            generator=torch.Generator().manual_seed(0),
            **given,
        )

    def stop(epoch):
        if epoch.number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=file, progress=stop)
    assert torch.load(file)["state"]["lost"].keys() == {K - 1}
    for first, second in zip(
        run().state_dict().values(), run(checkpoint=file).state_dict().values(), strict=True
    ):
        assert torch.equal(first, second)


def test_a_training_that_is_over_tells_of_lost_classes_again(tmp_path):
    x, _, noisy = problem(epsilon=3.0)
    given = {"recipe": replace(QUICK, epochs=3), "checkpoint": tmp_path / "net.pt"}
    for _ in range(2):
        with pytest.warns(ldp.errors.LostClassWarning, match="won it back in part"):
            train(
                blind(-30.0),
                x,
                evidence_of(noisy),
                **given,
                generator=torch.Generator().manual_seed(0),
            )
