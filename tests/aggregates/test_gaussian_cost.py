# SPDX-License-Identifier: Apache-2.0
"""What Gaussian noise on counts costs: the bound against brute force, and the continuous formulas
against the published values."""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy import special

from labeldp.aggregates import Vote, _gaussian

VECTORS = json.loads(
    (Path(__file__).parents[1] / "golden" / "vectors.json").read_text(encoding="utf-8")
)


def brute_delta(variance: float, epsilon: float, shift: tuple[int, ...]) -> float:
    """Sum over all outputs of max(0, P - e^epsilon P shifted): the definition, cell by cell."""
    reach = math.ceil(14 * math.sqrt(variance)) + 8
    y = np.arange(-reach, reach + 1)
    law = np.exp(-(y**2) / (2 * variance))
    law /= law.sum()
    here, there = np.ones(1), np.ones(1)
    for v in shift:
        moved = np.zeros_like(law)
        moved[max(v, 0) : len(law) + min(v, 0)] = law[max(-v, 0) : len(law) - max(v, 0)]
        here, there = np.multiply.outer(here, law), np.multiply.outer(there, moved)
    return float(np.maximum(here - math.exp(epsilon) * there, 0).sum())


@pytest.mark.parametrize("variance", [0.3, 1.0, 2.7, 10.0, 60.0])
@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 2.5])
def test_delta_is_bounded_and_exact_for_one_changed_label(variance: float, epsilon: float) -> None:
    truth, bound = (
        brute_delta(variance, epsilon, (1, -1)),
        _gaussian.discrete_delta(Fraction(variance), epsilon),
    )
    assert truth * (1 - 1e-9) - 1e-15 <= bound <= truth * (1 + 1e-9) + 1e-14


@pytest.mark.parametrize("shift", [(2, -2), (1, 1, -2), (2, -1, -1), (1, -1, 1, -1)])
def test_delta_is_bounded_however_two_labels_of_a_unit_change(shift: tuple[int, ...]) -> None:
    for variance, epsilon in ((2.0, 1.0), (4.0, 0.5), (6.0, 2.0)):
        if len(shift) == 4 and variance > 2.0:
            continue
        assert brute_delta(variance, epsilon, shift) <= _gaussian.discrete_delta(
            Fraction(variance), epsilon, 2
        ) * (1 + 1e-9)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.003, 1e-5), (0.5, 1e-5), (1.0, 1e-9), (4.0, 1e-6), (20.0, 1e-6), (1e-4, 1e-3)],
)
def test_calibrated_noise_is_enough_and_not_much_more(
    epsilon: float, delta: float, rows: int
) -> None:
    variance = _gaussian.calibrated_variance(epsilon, delta, rows)
    assert _gaussian.discrete_delta(variance, epsilon, rows) <= delta
    assert _gaussian.discrete_delta(variance * Fraction(9998, 10000), epsilon, rows) > delta
    continuous = rows * _gaussian.analytic_sigma(epsilon, delta)
    assert math.sqrt(variance) < continuous * (1.01 if rows == 1 and continuous > 1 else 1.6)


@pytest.mark.parametrize(
    "name", sorted(name for name in VECTORS if name.startswith("noisecluster.sigma."))
)
def test_published_standard_deviations(name: str) -> None:
    epsilon = float(name.split(".eps")[1].split(".d1e-5")[0])
    assert _gaussian.analytic_sigma(epsilon, 1e-5) == pytest.approx(
        float(VECTORS[name]["analytic"]), rel=1e-9
    )


@pytest.mark.parametrize("sigma", [1, 2, 5, 10])
def test_published_epsilons(sigma: int) -> None:
    assert _gaussian.analytic_sigma(
        float(VECTORS[f"noisecluster.eps.sigma{sigma}"]), 1e-5
    ) == pytest.approx(sigma, rel=1e-9)


def test_published_failure() -> None:
    """A lead of 4000 at epsilon 0.003: continuous noise fails with 0.0173; the bound counts every
    tie as a failure."""
    failure = Vote(10, 0.003, 1, "gaussian", 1e-5).failure([[4000] * 9])[0]
    assert (
        VECTORS["noisecluster.flip.eps0.003.gap4000"]
        <= failure
        <= VECTORS["noisecluster.flip.eps0.003.gap4000"] * 1.002
    )


def test_tails_are_those_of_the_difference_of_two_draws() -> None:
    y = np.arange(-200, 201)
    law = np.exp(-(y**2) / (2 * 3.3))
    law /= law.sum()
    difference = np.convolve(law, law)
    for gap in (0, 1, 4, 11):
        truth = difference[400 + gap :].sum()
        assert (
            truth * (1 - 1e-12)
            <= _gaussian.gap_tail(Fraction(3.3), np.array([gap]))[0]
            <= truth * (1 + 1e-11)
        )


def test_very_wide_noise_is_bounded_without_a_sum() -> None:
    wide, narrow = Fraction(4 * 10**12), Fraction(2 * 10**12)
    assert _gaussian.discrete_delta(wide, 1e-6) < _gaussian.discrete_delta(narrow, 1e-6) < 1e-2
    # whose tails are those of the continuous law of twice the variance
    for variance in (narrow, Fraction(10) ** 30):
        deviation = math.sqrt(2 * variance)
        for gap in (0, int(deviation), int(8 * deviation)):
            truth = special.ndtr(-(gap - 0.5) / deviation)
            assert (
                truth * (1 - 1e-11)
                <= _gaussian.gap_tail(variance, np.array([gap]))[0]
                <= truth * (1 + 1e-5)
            )


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (0.5, 1e-5), (2.0, 1e-9)])
def test_the_continuous_formula_is_that_of_dp_accounting(epsilon: float, delta: float) -> None:
    accounting = pytest.importorskip("dp_accounting")
    theirs = accounting.get_sigma_gaussian(epsilon, delta) * math.sqrt(2)
    assert _gaussian.analytic_sigma(epsilon, delta) == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize(("sigma", "epsilon"), [(2.0, 0.3), (3.0, 0.5), (5.0, 0.05)])
def test_concentrated_privacy_covers_what_dp_accounting_finds_for_one_count(
    sigma: float, epsilon: float
) -> None:
    """One count that changes by m: its discrete Gaussian loss, composed by their accountant, stays
    below our bound for m rows."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    for rows in (2, 3):
        found = pld.from_discrete_gaussian_mechanism(sigma, sensitivity=rows).get_delta_for_epsilon(
            epsilon
        )
        assert found <= _gaussian.discrete_delta(Fraction(sigma) ** 2, epsilon, rows)


def test_noise_for_a_row_added_or_removed_is_not_enough_for_a_changed_label() -> None:
    """A logistic regression's two labels of one row: gradients of norm C in opposite directions,
    which a sum is told apart by 2 C."""
    clip, x, epsilon, delta = 1.0, np.array([3.0, -4.0]), 1.0, 1e-5
    gradients = [(0.5 - label) * x for label in (0, 1)]  # at a model that knows nothing: p = 0.5
    cut = [gradient * min(1.0, clip / np.linalg.norm(gradient)) for gradient in gradients]
    moved = float(np.linalg.norm(cut[1] - cut[0]))
    sigma = _gaussian.analytic_sigma(epsilon, delta, clip)
    assert moved == pytest.approx(2 * clip) and _gaussian.analytic_delta(
        sigma, epsilon, clip
    ) == pytest.approx(delta)
    assert _gaussian.analytic_delta(sigma, epsilon, moved) > 1000 * delta
    # what follows in general, and no more: twice the epsilon, (1 + e^epsilon) times the delta
    assert _gaussian.analytic_delta(sigma, 2 * epsilon, moved) <= (1 + math.exp(epsilon)) * delta
