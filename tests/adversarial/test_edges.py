# SPDX-License-Identifier: Apache-2.0
"""Numbers at the edge of what is allowed: a result that is right, or an error in words."""

import math
import warnings
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.aggregates.exact import report_law

import labeldp as ldp
from labeldp import Ledger, SeededNoise, aggregate, metrics
from labeldp._validate import exact
from labeldp.aggregates import Histogram
from labeldp.aggregates._gaussian import calibrated_variance, discrete_delta
from labeldp.custody._aggregation import aggregate_batches
from labeldp.errors import LabelDPWarning
from labeldp.papers.esfandiari2022 import PeerToPeer, corollary_2, split_budget

pytestmark = pytest.mark.filterwarnings("ignore::labeldp.errors.SeededNoiseWarning")


def test_a_split_budget_is_never_above_the_total() -> None:
    dice = np.random.default_rng(0)
    totals = [1.3266628503199076, *dice.uniform(0.05, 4.0, 20).tolist()]
    for total in totals:
        budget = split_budget(total, [600] * 100, 10, purity=0.5).budget
        assert exact(budget.epsilon) <= exact(total), total
        assert exact(budget.histogram_epsilon) + exact(budget.label_epsilon) <= exact(total), total
        budget.require(total)


def test_a_floor_above_uniform_is_refused() -> None:
    with pytest.raises(ldp.InvalidInput):
        corollary_2(10, 1.0, 0.2)


@pytest.mark.parametrize("epsilon", [60.0, 100.0, 500.0])
def test_a_delta_below_what_doubles_hold_is_not_zero(epsilon: float) -> None:
    with localcontext() as context:  # one term of the sum is a lower bound of the truth
        context.prec = 50
        truth = (-(Decimal(epsilon) ** 2) / 4).exp() * Decimal("1e-6")
    found = discrete_delta(Fraction(1), epsilon)
    assert Decimal(found) >= truth
    assert 0 < found < 1e-200
    assert discrete_delta(Fraction(1), epsilon, 2) > 0


def test_a_calibrated_variance_is_enough_and_the_continuous_one_at_least() -> None:
    for epsilon, delta in ((2.0, 1e-5), (10.0, 1e-5), (20.0, 1e-9)):
        assert discrete_delta(calibrated_variance(epsilon, delta), epsilon) <= delta


def test_peers_at_any_epsilon() -> None:
    for epsilon in (700.0, 710.0, 1e6, 1e308):
        assert 0 <= PeerToPeer(0.1).delta(10, epsilon) <= 1e-9
    with pytest.raises(ldp.InvalidInput):
        PeerToPeer(0.1).delta(10, math.inf)


def test_the_ends_are_not_the_worst() -> None:
    """By exact fractions: 20 users, flips of 0.3, epsilon 0.5."""
    gain = Fraction(math.exp(0.5))

    def delta(ones: int) -> float:
        here, there = (report_law(20, m, 20, Fraction(3, 10)) for m in (ones, ones + 1))
        return float(
            max(
                sum(max(a - gain * b, Fraction(0)) for a, b in zip(*pair, strict=True))
                for pair in ((here, there), (there, here))
            )
        )

    mechanism = PeerToPeer(0.3)
    assert delta(4) > 2 * delta(0)
    assert mechanism.delta(20, 0.5) >= delta(4) * (1 - 1e-12)
    assert mechanism.delta(20, 0.5, search="ends") < delta(4)


@pytest.mark.parametrize("confidence", [1 - 1e-16, 1 - 1e-15, 0.999999999])
def test_any_confidence_below_one(confidence: float) -> None:
    noisy = ldp.privatize(
        ldp.PrivateLabels(np.arange(50) % 2, classes=range(2), noise=SeededNoise(0)),
        ldp.RandomizedResponse(2, 2.0),
    )
    found = metrics.accuracy(noisy, np.arange(50) % 2, confidence=confidence)
    assert 0 <= found.low <= found.high <= 1
    assert metrics.log_loss(noisy, np.full((50, 2), 0.5), confidence=confidence).high < math.inf


@pytest.mark.parametrize("n_rows", [1, 2, 5, 12, 29])
def test_few_rows_name_no_lost_class(n_rows: int) -> None:
    law = ldp.PriorSplit(4, 1.0)
    proba = np.tile([0.5, 0.25, 0.249, 0.001], (n_rows, 1))
    for seed in range(200):
        noisy = ldp.privatize(
            ldp.PrivateLabels(np.arange(n_rows) % 3, classes=range(4), noise=SeededNoise(seed)),
            law,
            prior=proba,
        )
        assert metrics.lost_classes(noisy, proba) == []


@pytest.mark.deep
def test_compact_evidence_of_several_draws_is_the_log_likelihood() -> None:
    torch = pytest.importorskip("torch")
    from labeldp.deep import evidence_of

    labels = np.arange(40) % 6
    draws = [
        ldp.privatize(
            ldp.PrivateLabels(labels, classes=range(6), ids=np.arange(40), noise=SeededNoise(i)),
            law,
            stage=f"s{i}",
        )
        for i, law in enumerate(
            [
                ldp.RandomizedResponse(6, 2.0),
                ldp.SubsetSelection(6, 1.0),
                ldp.RandomizedResponse(6, 0.5),
            ]
        )
    ]
    noisy = draws[0].combine(draws[1]).combine(draws[2])
    found = evidence_of(noisy, form="compact").expand(6, torch.float32).numpy()
    np.testing.assert_allclose(found, noisy.log_likelihood(), atol=1e-6)


def gaussian(delta: float) -> Histogram:
    return Histogram(2, 1.0, 1, mechanism="gaussian", delta=delta)


def hundred(folder: Path) -> ldp.PrivateLabels:
    return ldp.PrivateLabels(
        np.arange(100) % 2,
        classes=[0, 1],
        dataset="d",
        column="label",
        ids=np.arange(100),
        ledger=Ledger(folder / "l.db"),
    )


@pytest.mark.parametrize("delta", [0.99, 0.01, 0.02])
def test_a_delta_that_could_be_the_labels_themselves_is_said_aloud(
    delta: float, tmp_path: Path
) -> None:
    with pytest.warns(LabelDPWarning, match=r"delta far below 1 over the number of rows, 0\.01"):
        aggregate(hundred(tmp_path), gaussian(delta), np.zeros(100, int))
    batch = pa.record_batch({"y": np.arange(100) % 2, "g": np.zeros(100, np.int64)})
    with pytest.warns(LabelDPWarning, match="delta far below"):
        aggregate_batches(
            [batch],
            gaussian(delta),
            label="y",
            group="g",
            classes=[0, 1],
            dataset="e",
            ledger=Ledger(tmp_path / "l.db"),
            redraw=True,
        )


def test_a_small_delta_warns_of_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        aggregate(hundred(tmp_path), gaussian(1e-6), np.zeros(100, int))
