# SPDX-License-Identifier: Apache-2.0
"""No net leaves a fit worse than a constant in silence, where noisy rows that it has not seen say
so."""

import warnings

import numpy as np
import pytest
import torch
from tests.deep.datasets import closed
from torch import nn

import labeldp as ldp
from labeldp.deep import (
    Heads,
    Recipe,
    TorchClassifier,
    TorchRegressor,
    as_inputs,
    evidence_of,
    train,
)
from labeldp.deep.models import Ensemble, Mlp
from labeldp.errors import MisfitWarning

RNG = np.random.default_rng(0)
N, USERS, STARS = 12_000, 3_000, np.array([0.1, 0.1, 0.2, 0.3, 0.3])
WHO = RNG.integers(USERS, size=(N, 1))
# users do not differ, so that there is only noise to learn
RATINGS = 1 + RNG.choice(5, p=STARS, size=N)
TRAINED, REST = slice(0, 9_000), slice(9_000, N)
MEMORY = Recipe(epochs=20, batch_size=256, rate=0.03, precision="float32")
SETTINGS = {"validation_fraction": 0.3, "random_state": 0, "epsilon": 2.0}


class Table(nn.Module):
    """A vector for each user, as in a recommender."""

    def __init__(self, outputs):
        super().__init__()
        self.of, self.base = nn.Embedding(USERS, outputs), nn.Parameter(torch.zeros(outputs))
        nn.init.zeros_(self.of.weight)

    def forward(self, x):
        return self.base + self.of(x[:, 0])


def released(law=None, labels=None):
    law = ldp.RandomizedResponse(5, 2.0) if law is None else law
    return ldp.privatize(
        ldp.PrivateLabels(
            RATINGS if labels is None else labels, classes=range(1, 6), noise=ldp.SeededNoise(0)
        ),
        law,
    )


def silent(fit):
    with warnings.catch_warnings():
        warnings.simplefilter("error", MisfitWarning)
        return fit()


@pytest.mark.parametrize("head", ["logistic", "grid"])
def test_a_regressor_warns(head):
    model = TorchRegressor(Table, head=head, recipe=MEMORY, **SETTINGS)
    with pytest.warns(
        MisfitWarning, match=r"worse than a constant, the mean: .* patience and validation_fraction"
    ):
        model.fit(WHO, closed(RATINGS, range=(1, 5), points=5))
    assert model.estimated_rmse_.low > model.baseline_rmse_.value


def test_a_classifier_warns_once_whatever_the_number_of_stages():
    def fitted(**more):
        return TorchClassifier(Table, recipe=MEMORY, **SETTINGS | more).fit(
            WHO, closed(RATINGS, classes=range(1, 6))
        )

    for more in ({}, {"stages": 2}):
        with pytest.warns(
            MisfitWarning, match="the class frequencies: .* log-loss is larger"
        ) as told:
            model = fitted(**more)
        assert sum(each.category is MisfitWarning for each in told) == 1
        assert model.estimated_log_loss_.low > model.baseline_log_loss_.value
    silent(lambda: fitted(validation_fraction=0.0))  # nothing was measured


def columns():
    """Evidence of two label columns."""
    return Heads(tuple(evidence_of(released(labels=1 + (RATINGS + k) % 5)) for k in (0, 1)), (5, 5))


@pytest.mark.parametrize("kind", ["one column", "sets", "heads", "ensemble"])
def test_a_training_with_held_out_rows_warns(kind):
    law = ldp.SubsetSelection(5, 2.0) if kind == "sets" else None
    evidence, outputs = (columns(), 10) if kind == "heads" else (evidence_of(released(law)), 5)

    def trained(who=WHO, **more):
        net = Ensemble([Table(outputs), Table(outputs)]) if kind == "ensemble" else Table(outputs)
        generator = torch.Generator().manual_seed(0)
        held_out = (who[REST], evidence[REST])
        return train(
            net,
            as_inputs(who[TRAINED]),
            evidence[TRAINED],
            MEMORY,
            generator=generator,
            held_out=held_out,
            **more,
        )

    with pytest.warns(
        MisfitWarning, match="the class frequencies: on 1500 held-out noisy rows"
    ) as told:
        trained()
    assert sum(each.category is MisfitWarning for each in told) == 1
    silent(lambda: trained(WHO * 0))  # one user: the net is the constant


def test_a_net_that_learns_is_not_warned_of():
    X = RNG.normal(size=(2_000, 3)).astype(np.float32)
    y = np.clip(2 * X[:, 0], -3, 3)
    silent(
        lambda: TorchClassifier(lambda k: Mlp(3, k, (16,)), **SETTINGS).fit(
            X, closed(y > 0, classes=[False, True])
        )
    )
    silent(
        lambda: TorchRegressor(lambda k: Mlp(3, k, (16,)), **SETTINGS).fit(
            X, closed(y, range=(-3, 3))
        )
    )


def test_a_rare_class_that_is_ranked_well_is_no_misfit():
    """The constant is nearly always right; the log-loss decides."""
    y = np.arange(40_000) % 50 == 0
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=[False, True], noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(2, 4.0),
    )
    proba = np.where(y, 0.55, np.where(np.arange(40_000) % 40 == 1, 0.51, 0.001))
    proba = np.stack([1 - proba, proba], 1)
    rates = np.array([0.98, 0.02])
    assert silent(lambda: ldp.metrics.judge(noisy, proba, rates))["log_loss"].high < 0.05


def test_where_the_log_loss_does_not_tell_the_accuracy_does():
    y = np.arange(40_000) % 2
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=[0, 1], noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(2, 4.0),
    )
    # more often wrong than right, and as sure on average
    of_true = np.where(np.arange(40_000) % 10 < 6, 0.49, 0.5153)
    proba = np.where(y == 1, of_true, 1 - of_true)
    with pytest.warns(MisfitWarning, match="error rate is larger by 0[.]09"):
        ldp.metrics.judge(noisy, np.stack([1 - proba, proba], 1), np.array([0.5, 0.5]))
