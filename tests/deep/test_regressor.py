# SPDX-License-Identifier: Apache-2.0
"""TorchRegressor: its heads' mathematics, what it learns and spends, what it refuses before a
charge, and that it resumes.

Data, noise, weights and training are seeded wherever a result is measured, so that it is the same
in every run on one machine: no test fails by chance. Bounds on R^2 and errors are for these seeds;
they say how well nets learn, and are no confidence bounds.
"""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone, is_regressor
from sklearn.datasets import make_friedman1
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from tests.deep.datasets import closed
from torch import nn
from torch.nn import functional

import labeldp as ldp
from labeldp.deep import LocationHead, Recipe, TorchRegressor, debiased_loss
from labeldp.deep.models import Mlp
from labeldp.learn import ClusterPrior
from labeldp.learn._location import Answers, Family

QUICK = Recipe(epochs=8, rate=0.01, precision="float32")
RANGE = (0, 30)


def friedman(n: int, seed: int = 0, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_friedman1(n, noise=noise, random_state=seed)
    return ((X - 0.5) * 3.5).astype(np.float32), y


def regressor(net=lambda k: Mlp(10, k, (32,)), **settings) -> TorchRegressor:
    return TorchRegressor(net, **{"recipe": QUICK, "epsilon": 2.0, "random_state": 0} | settings)


# The heads' mathematics
# --------------------------------------------------------------------------------------------------


class Given(nn.Module):
    """Returns its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight


@pytest.mark.parametrize(("family", "law"), [("normal", stats.norm), ("logistic", stats.logistic)])
def test_a_head_gives_the_distribution_of_a_clamped_and_rounded_variable(family, law):
    low, high, G = 100_000.0, 100_030.0, 31
    points, outputs = (
        np.linspace(low, high, G),
        torch.tensor([[0.0, 0.0], [1.3, -1.0], [-3.0, 4.0], [1.0, -30.0]]),
    )
    found = LocationHead(Given(), points, family)(outputs)
    assert found.dtype == torch.float32 and torch.allclose(
        found.logsumexp(dim=1), torch.zeros(4), atol=1e-6
    )
    # the middle of the range and a quarter of it; the scale from half a step to the range
    location = 100_015 + 7.5 * outputs[:, 0].numpy()
    least, most, start = np.log(0.5), np.log(30), np.log(7.5)
    scale = np.exp(
        least
        + (most - least)
        * stats.logistic.cdf(outputs[:, 1].numpy() + np.log((start - least) / (most - start)))
    )
    assert scale[0] == pytest.approx(7.5) and scale[3] == pytest.approx(0.5)
    edges = np.concatenate([[-np.inf], (points[1:] + points[:-1]) / 2, [np.inf]])
    for row, at, width in zip(found.exp().detach().numpy(), location, scale, strict=True):
        assert np.allclose(row, np.diff(law.cdf(edges, at, width)), atol=1e-6)


def test_a_normal_head_and_the_location_model_of_tables_have_one_likelihood_and_one_slope():
    random, points = np.random.default_rng(0), np.linspace(0.0, 10.0, 11)
    likelihood, outputs = (
        random.random((40, 11)),
        torch.tensor(random.normal(size=(40, 1)), dtype=torch.float32, requires_grad=True),
    )
    head = LocationHead(Given(), points, "normal")(functional.pad(outputs, (0, 1)))
    found = (head.exp() * torch.tensor(likelihood)).sum(dim=1)
    found.sum().backward()
    value, slope = Family(points, 2.5, points[1:] - 0.5).evidence(
        5 + 2.5 * outputs[:, 0].detach().numpy(), Answers.of(likelihood)
    )
    assert np.allclose(found.detach().numpy(), value, atol=1e-5) and np.allclose(
        outputs.grad[:, 0].numpy(), 2.5 * slope, atol=1e-4
    )


@pytest.mark.parametrize("family", ["normal", "logistic"])
@pytest.mark.parametrize("points", [2, 64, 10_000])
def test_no_output_of_a_net_makes_a_probability_or_a_gradient_infinite(family, points):
    outputs = torch.tensor(
        [[a, b] for a in (-1e30, -50.0, 0.0, 3.0, 1e30) for b in (-1e30, -3.0, 0.0, 1e30)],
        requires_grad=True,
    )
    found = LocationHead(Given(), np.linspace(-7, 9, points), family)(outputs)
    assert found.shape == (20, points) and torch.isfinite(found).all()
    assert torch.allclose(
        found.double().logsumexp(dim=1), torch.zeros(20, dtype=torch.float64), atol=2e-3
    )
    (found.exp() @ torch.rand(points)).log().sum().backward()
    assert torch.isfinite(outputs.grad).all()


# What it learns and spends
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["logistic", "normal", "grid"])
def test_numbers_are_predicted_far_better_than_by_their_mean(head):
    X, y = friedman(1200)
    X_test, truth = friedman(1200, seed=1, noise=0.0)
    model = regressor(head=head).fit(X, closed(y, range=RANGE))
    # 0 is the mean's; with seeded noise and weights the result is always the same
    assert model.score(X_test, truth) > 0.5
    distribution = model.predict_distribution(X_test)
    assert distribution.shape == (1200, 64) and np.allclose(distribution.sum(axis=1), 1)
    assert np.allclose(model.predict(X_test), distribution @ model.grid_)
    median, (low, high) = (
        model.predict_quantile(X_test, 0.5),
        model.predict_quantile(X_test, [0.05, 0.95]).T,
    )
    assert (
        np.all((low <= median) & (median <= high))
        and 0.6 < np.mean((low <= truth) & (truth <= high)) < 1
    )
    assert {block.law.name for block in model.noisy_labels_.blocks} == {"square-wave"}
    assert model.estimated_rmse_ is None


@pytest.mark.parametrize(
    "settings",
    [
        {"law": "subset"},
        {"law": "rr", "recipe": Recipe(8, rate=0.01, loss=debiased_loss)},
        {"stages": 2},
    ],
)
def test_every_way_of_learning_finds_a_line(settings):
    X = np.random.default_rng(0).normal(size=(1500, 3)).astype(np.float32)
    y = 5 + X @ [1.5, -1.0, 0.5]
    model = regressor(lambda k: Mlp(3, k, (16,)), epsilon=4.0, **settings).fit(
        X, closed(y, range=(0, 10), points=11)
    )
    assert model.score(X, y) > 0.7 and len(model.history_) == len(model.stages_) == settings.get(
        "stages", 1
    )


def test_errors_are_estimated_on_noisy_rows_that_were_held_out():
    X, y = friedman(2000)
    model = regressor(
        epsilon=8.0,
        validation_fraction=0.3,
        recipe=Recipe(4, rate=0.01, precision="float32"),
    ).fit(X, closed(y, range=RANGE, points=16))
    stages = {block.stage: block.law.name for block in model.noisy_labels_.blocks}
    assert set(stages.values()) == {"square-wave"} and len(stages) == 2
    # the noise has a seed, so that the interval holds the error each time or never
    held_out = next(block.rows for block in model.noisy_labels_.blocks if block.stage != "stage-1")
    on_grid = np.array(ldp.Grid(*RANGE, points=16))[ldp.Grid(*RANGE, points=16).codes(y[held_out])]
    error = float(np.sqrt(np.mean((model.predict(X[held_out]) - on_grid) ** 2)))
    assert (
        model.estimated_rmse_.low <= error <= model.estimated_rmse_.high < model.baseline_rmse_.high
    )
    assert 0 < model.estimated_r2_.value < 1


def test_noisy_numbers_cost_nothing_and_bring_their_range(ledger):
    X, y = friedman(800)
    noisy = ldp.privatize(
        closed(y, range=RANGE, points=32, ids=np.arange(800), ledger=ledger),
        ldp.Threshold(32, 2.0),
    )
    model = regressor().fit(X, noisy, ids=np.arange(800))
    assert (
        model.privacy_.epsilon == 2.0
        and ledger.spent("d", "label") == 2.0
        and len(model.grid_) == 32
    )
    again = clone(model).fit(X[::-1], noisy, ids=np.arange(800)[::-1])
    assert again.predict(X).shape == (800,) and is_regressor(again) and "Mlp" not in repr(again)


# What it refuses, and that it resumes
# --------------------------------------------------------------------------------------------------

REFUSED = {
    "no range": (
        {},
        {"range": None, "classes": ["a", "b"], "y": np.where(np.arange(400) % 2, "a", "b")},
        "classes are increasing numbers",
    ),
    "a range reversed": ({}, {"range": (30, 0)}, "lower end first"),
    "an infinite range": ({}, {"range": (0, np.inf)}, "finite"),
    "a range of width zero": ({}, {"range": (1, 1)}, "low < high"),
    "a range as text": ({}, {"range": "0:30"}, "public range"),
    "one point": ({}, {"points": 1}, "points"),
    "another head": ({"head": "gaussian"}, {}, "logistic, normal, grid"),
    "a logit for each point without head": (
        {"net": lambda k: Mlp(10, 64, (8,))},
        {},
        "a location and a scale .* Give the net 2 outputs",
    ),
    "two outputs with a grid": (
        {"net": lambda k: Mlp(10, 2, (8,)), "head": "grid"},
        {},
        "Give the net 64 outputs",
    ),
    "a prior of clusters": ({"prior": ClusterPrior()}, {}, "one of clusters"),
    "text": ({}, {"y": np.full(400, "sentinel")}, "got text"),
    "a missing number": ({}, {"y": np.where(np.arange(400) == 7, np.nan, 1.0)}, "finite number"),
    "weights that bits lack": ({"recipe": Recipe(loss=debiased_loss)}, {}, "invertible"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_not_charged(ledger, name):
    settings, given, message = REFUSED[name]
    X, y = friedman(400)
    with pytest.raises(ldp.InvalidInput, match=message) as told:
        regressor(**settings).fit(X, closed(**{"y": y, "range": RANGE, "ledger": ledger} | given))
    assert ledger.spent("d", "label") == 0 and "sentinel" not in str(told.value)


def test_a_fit_that_was_stopped_goes_on_and_another_head_is_another_fit(tmp_path):
    X, y = friedman(400)

    def stop(epoch):
        if stop.left == 0:
            raise KeyboardInterrupt
        stop.left -= 1

    settings = {
        "stages": 2,
        "recipe": Recipe(2, precision="float32"),
        "folder": tmp_path / "fit",
        "progress": stop,
    }
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=2.0)
    labels = closed(y, range=RANGE, ledger=ledger)
    stop.left = 3  # one epoch of the second stage
    with pytest.raises(KeyboardInterrupt):
        regressor(**settings).fit(X, labels)
    with pytest.raises(ldp.InvalidInput, match="differs in module"):
        regressor(**settings | {"head": "normal"}).fit(X, labels)
    stop.left = 2  # the second stage alone
    model = regressor(**settings).fit(X, labels)
    assert stop.left == 0 and [len(each) for each in model.history_] == [2, 2]
    assert ledger.spent("d", "label") == 2.0
    assert np.array_equal(regressor(**settings).fit(X, labels).predict(X), model.predict(X))


def test_noisy_numbers_score_a_search_and_a_cross_validation():
    """Noise and training are seeded: the scores are the same in every run."""
    X, y = friedman(900)
    noisy = ldp.privatize(
        closed(y, range=RANGE, points=16),
        ldp.laws.SquareWave(16, 3.0),
    )
    still, quick = (Recipe(epochs=3, rate=rate, precision="float32") for rate in (1e-9, 0.01))
    model = regressor(recipe=quick)
    names = ("r2", "neg_mean_squared_error", "neg_root_mean_squared_error")
    scoring = {name: ldp.metrics.make_scorer(name) for name in names} | {
        "likelihood": ldp.metrics.likelihood_scorer
    }
    found = cross_validate(model, X, noisy, cv=KFold(2), scoring=scoring, error_score="raise")
    assert all(np.isfinite(found[f"test_{name}"]).all() for name in scoring)
    for scorer in (scoring["neg_mean_squared_error"], scoring["likelihood"]):
        search = GridSearchCV(
            model, {"recipe": [still, quick]}, cv=KFold(2), scoring=scorer, error_score="raise"
        ).fit(X, noisy)
        assert search.best_params_["recipe"] is quick
