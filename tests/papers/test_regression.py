# SPDX-License-Identifier: Apache-2.0
"""Published laws for numbers: optimal bins, and bounded Laplace noise."""

import json
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

import labeldp as ldp
from labeldp.laws import WORD, exp_floor, law_from_dict
from labeldp.papers.regression import BoundedLaplace, RROnBins, laplace_words, optimal_bins

VECTORS = json.loads((Path(__file__).parent.parent / "golden" / "vectors.json").read_text())

# BoundedLaplace
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "epsilon"), [(2, 0.1), (16, 1.0), (64, 4.0), (100, 25.0), (200, 1e-3)]
)
def test_bounded_laplace_is_certified_and_tight(k: int, epsilon: float) -> None:
    """In whole numbers the worst ratio is at most e^epsilon, and within a millionth of it: no
    narrower noise of this form is allowed."""
    words = laplace_words(epsilon, k)
    assert all(sum(row) == WORD for row in words)
    worst = max(Fraction(max(column), min(column)) for column in zip(*words, strict=True))
    assert worst <= exp_floor(epsilon)
    assert epsilon * (1 - 1e-6) < BoundedLaplace(k, epsilon).exact_epsilon() <= epsilon


def test_bounded_laplace_is_the_formula() -> None:
    k, epsilon = 7, 1.3
    away = np.abs(np.arange(k)[:, None] - np.arange(k))
    wanted = np.exp(-epsilon * away / (k - 1))
    wanted /= wanted.sum(axis=1, keepdims=True)
    assert np.allclose(BoundedLaplace(k, epsilon).matrix(), wanted, rtol=1e-12, atol=0)


def test_bounded_laplace_refuses_what_it_cannot_honour() -> None:
    with pytest.raises(ldp.InvalidInput, match="64-bit words can honour"):
        BoundedLaplace(5, 60.0)
    with pytest.raises(ldp.InvalidInput, match="at most 1000 points"):
        BoundedLaplace(1001, 1.0)


# RROnBins
# --------------------------------------------------------------------------------------------------


def least_loss(
    points: np.ndarray, prior: np.ndarray, ratio: float, loss: str, outputs: np.ndarray
) -> float:
    """The least expected loss of any mechanism onto these outputs, by the linear program over all
    its probabilities."""
    k, m = len(points), len(outputs)
    v, y = outputs[None], points[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = {
            "squared": (v - y) ** 2,
            "absolute": abs(v - y),
            "poisson": v - np.where(y > 0, y * np.log(v), 0.0),
        }[loss]
    pairs = [(a, b) for a in range(k) for b in range(k) if a != b]
    bounds = np.zeros((len(pairs) * m, k * m))
    for i, (a, b) in enumerate(pairs):
        for j in range(m):
            bounds[i * m + j, [a * m + j, b * m + j]] = 1.0, -ratio
    rows = np.kron(np.eye(k), np.ones(m))
    found = linprog(
        (prior[:, None] * losses).ravel(),
        A_ub=bounds,
        b_ub=np.zeros(len(bounds)),
        A_eq=rows,
        b_eq=np.ones(k),
    )
    return float(found.fun)


def expected_loss(
    points: np.ndarray,
    prior: np.ndarray,
    starts: tuple[int, ...],
    values: tuple[float, ...],
    ratio: float,
    loss: str,
) -> float:
    bins = np.searchsorted(starts, np.arange(len(points)), side="right") - 1
    chances = np.where(bins[:, None] == np.arange(len(starts)), ratio, 1.0) / (
        ratio + len(starts) - 1
    )
    v, y = np.array(values)[None], points[:, None]
    losses = {
        "squared": (v - y) ** 2,
        "absolute": abs(v - y),
        "poisson": v - np.where(y > 0, y * np.log(np.maximum(v, 1e-300)), 0.0),
    }[loss]
    return float(prior @ (chances * losses).sum(axis=1))


@pytest.mark.parametrize("key", ["A", "B", "C", "D", "E"])
def test_optimal_bins_of_published_vectors(key: str) -> None:
    """Bins and outputs as computed in fractions; of two mirrored optima of a flat prior either is
    right."""
    vector = VECTORS[f"rrbins.{key}"]
    points = np.array(vector["Y"], dtype=float)
    prior = np.array([float(Fraction(p)) for p in vector["p"]])
    starts, values = optimal_bins(tuple(points), tuple(prior), float(vector["E"]), "squared")
    assert starts == tuple(first for first, _ in vector["bins"])
    assert values == pytest.approx([float(Fraction(v)) for v in vector["outputs"]], rel=1e-14)
    assert expected_loss(
        points, prior, starts, values, float(vector["E"]), "squared"
    ) == pytest.approx(vector["loss_f"], rel=1e-12)


@pytest.mark.parametrize("loss", ["squared", "absolute", "poisson"])
@pytest.mark.parametrize("ratio", [1.5, 4.0, 30.0])
def test_no_mechanism_is_better_than_optimal_bins(loss: str, ratio: float) -> None:
    """Against the linear program over every mechanism on a fine grid of outputs, and against every
    other set of bins."""
    rng = np.random.default_rng(3)
    points, prior = np.array([0.0, 1.0, 2.0, 4.0, 7.0]), rng.dirichlet(np.ones(5))
    starts, values = optimal_bins(tuple(points), tuple(prior), ratio, loss)
    found = expected_loss(points, prior, starts, values, ratio, loss)
    outputs = np.union1d(np.linspace(0.05, 7, 30), np.maximum(values, 1e-9))
    assert found == pytest.approx(least_loss(points, prior, ratio, loss, outputs), abs=1e-7)
    every = [(0, *inner) for d in range(1, 5) for inner in combinations(range(1, 5), d)]
    assert starts in every
    tries = np.linspace(0.01, 7, 141)
    for other in every:  # each bin's best number is among the tries, to a twentieth
        bins = np.searchsorted(other, np.arange(5), side="right") - 1
        weights = (
            prior[:, None]
            * np.where(bins[:, None] == np.arange(len(other)), ratio, 1.0)
            / (ratio + len(other) - 1)
        )
        v, y = tries[None], points[:, None]
        losses = {
            "squared": (v - y) ** 2,
            "absolute": abs(v - y),
            "poisson": v - np.where(y > 0, y * np.log(v), 0.0),
        }[loss]
        assert (weights.T @ losses).min(axis=1).sum() >= found - 1e-9


def test_bins_are_kept_in_files_and_found_again_for_another_epsilon() -> None:
    prior = tuple(np.random.default_rng(0).dirichlet(np.ones(20)))
    law = RROnBins(20, 2.0, prior=prior)
    assert law_from_dict(json.loads(json.dumps(law.to_dict()))) == law
    assert law.at(0.5) == RROnBins(20, 0.5, prior=prior) and law.at(5.0).starts != law.starts
    own = RROnBins(20, 2.0, starts=(0, 3, 12), values=(1.0, 7.0, 15.5))
    assert own.matrix().shape == (20, 3) and own.exact_epsilon() <= 2.0
    assert own.released(ldp.Grid(-10, 28, points=20)) == (-8.0, 4.0, 21.0)
    assert "prior" not in repr(law)


def test_bins_of_a_scaled_range_are_the_same() -> None:
    """The Poisson loss depends on where the range begins, the others do not; and with an origin its
    bins are those of the numbers."""
    shifted = optimal_bins(tuple(5.0 + i for i in range(8)), (1.0,) * 8, 3.0, "poisson")
    law = RROnBins(8, float(np.log(3.0)), "poisson", origin=5.0)
    assert law.starts == shifted[0] and np.allclose(
        law.released(ldp.Grid(10, 24, points=8)), 2 * np.array(shifted[1]), rtol=1e-9
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prior": (0.0, 1.0, 0.0, 0.0)}, "two points above 0"),
        ({"prior": (1.0, 1.0)}, "prior of 4 weights"),
        ({"prior": (1.0, float("nan"), 1.0, 1.0)}, "prior"),
        ({"loss": "huber"}, "loss"),
        ({"starts": (0, 2)}, "values"),
        ({"starts": (1, 2), "values": (0.0, 1.0)}, "starts of bins"),
        ({"starts": (0, 2, 2), "values": (0.0, 1.0, 2.0)}, "starts of bins"),
        ({"starts": (0, 2), "values": (1.0, 1.0)}, "increasing"),
        ({"n_classes": 5, "loss": "absolute", "epsilon": 1e-3}, "better than a constant"),
        ({"n_classes": 1001}, "at most 1000 points"),
        ({"n_classes": 1}, "n_classes"),
    ],
)
def test_bins_that_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ldp.InvalidInput, match=message):
        RROnBins(**{"n_classes": 4, "epsilon": 1.0} | wrong)
