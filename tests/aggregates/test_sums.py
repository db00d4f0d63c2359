# SPDX-License-Identifier: Apache-2.0
"""Sums of features by class: the rows that are summed, the noise and what it costs, the ledger, and
what is refused."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.aggregates.test_gaussian_cost import brute_delta
from tests.aggregates.test_queries import words

import labeldp as ldp
from labeldp.aggregates import Aggregate, FeatureSums, Histogram, _gaussian, query_from_dict
from labeldp.aggregates._sums import UNITS
from labeldp.custody import aggregate_batches, aggregate_best
from labeldp.errors import BudgetExceeded, InvalidInput
from labeldp.papers.ghazi2021 import RepeatAndSelect

FALSE_ALARM = 1e-6
RNG = np.random.default_rng(0)
N, D, K = 400, 5, 3
X = RNG.normal(size=(N, D)) * 0.3
Y = RNG.integers(0, K, N)
QUERY = FeatureSums(K, 1.0, D, delta=1e-6)


def labels(**facts: object) -> ldp.PrivateLabels:
    return ldp.PrivateLabels(Y, **{"classes": range(K)} | facts)


def cut(features: np.ndarray, norm: float) -> np.ndarray:
    """Rows that are no longer than the norm, in doubles."""
    return (
        features
        * np.minimum(1, norm / np.maximum(np.linalg.norm(features, axis=1), 1e-300))[:, None]
    )


@given(
    st.lists(st.floats(-1e30, 1e30), min_size=3, max_size=3), st.sampled_from([1e-9, 0.3, 1.0, 7e5])
)
def test_no_row_is_longer_than_the_bound_in_integers(row: list[float], norm: float) -> None:
    whole = FeatureSums(2, 1.0, 3, delta=1e-6, norm=norm).units(
        [row, [norm, 0, 0], [norm, norm, norm], [0, 0, -norm * (1 + 1e-15)]]
    )
    assert whole.dtype == np.int64
    assert all(sum(int(v) ** 2 for v in each) <= UNITS**2 for each in whole)
    assert (np.sign(whole[0]) * np.sign(row) >= 0).all()
    np.testing.assert_allclose(
        whole[0] * (norm / UNITS), cut(np.array([row]), norm)[0], atol=2 * norm / UNITS
    )


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.1, 1e-5), (1.0, 1e-6), (5.0, 1e-9), (1e-3, 1e-3)]
)
def test_the_noise_is_enough_and_not_much_more(epsilon: float, delta: float, rows: int) -> None:
    query = FeatureSums(10, epsilon, 50, delta=delta, norm=3.0)
    variance = query._variance(rows)

    def bound(s: Fraction) -> Fraction:
        return _gaussian.composed_delta(Fraction(2 * (rows * UNITS) ** 2) / (s - 2), 500, epsilon)

    assert bound(variance) <= delta < bound(variance * Fraction(9999, 10000))
    sigma = query.standard_deviation(rows)
    assert sigma == pytest.approx(3.0 * rows * _gaussian.analytic_sigma(epsilon, delta), rel=1e-6)
    assert _gaussian.analytic_delta(sigma, epsilon, np.sqrt(2) * 3.0 * rows) <= delta


@pytest.mark.parametrize("shift", [(1, 1, -1), (2, -2), (2, 1, -1)])
def test_the_bound_covers_rows_of_several_numbers(shift: tuple[int, ...]) -> None:
    """A changed label moves a whole row: the delta of the discrete law itself, summed over all
    outputs, against the bound."""
    squared = Fraction(sum(v * v for v in shift))
    truth = brute_delta(2.5, 1.5, shift)
    assert 1e-3 < truth <= _gaussian.composed_delta(squared / (Fraction(5, 2) - 2), len(shift), 1.5)
    assert (
        brute_delta(9.0, 0.5, shift) <= _gaussian.composed_delta(squared / 7, len(shift), 0.5) < 1
    )


def test_the_noise_that_runs_has_its_variance_and_no_other() -> None:
    """Sums of squares of 40,000 draws, against chi-square; the same with a tenth more noise is
    rejected."""
    query = FeatureSums(4, 1.0, 10_000, delta=1e-6)
    noise = query.release(np.zeros((10_000, 4), np.int64), words(40_000)).astype(float)
    square = np.square(noise).sum() / float(query._variance(1))

    def tail(value):
        return 2 * min(stats.chi2.cdf(value, 40_000), stats.chi2.sf(value, 40_000))

    assert tail(square) > FALSE_ALARM > tail(square / 1.1)


def test_the_answer_is_the_sum_with_noise(tmp_path: Path) -> None:
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=1.5)
    found = ldp.aggregate(labels(dataset="d", column="label", ledger=ledger), QUERY, X)
    truth = cut(X, 1.0).T @ np.eye(K)[Y]
    off = (QUERY.sums(found.values) - truth) / QUERY.standard_deviation()
    assert found.values.shape == (D, K)
    assert found.n_rows.tolist() == [N] * D
    assert np.abs(off).max() < stats.norm.isf(FALSE_ALARM / (2 * D * K)) + 1e-3
    assert (found.epsilon, found.delta) == (1.0, 1e-6)
    assert (ledger.spent("d", "label"), ledger.spent_delta("d", "label")) == (1.0, 1e-6)
    with pytest.raises(BudgetExceeded):
        ldp.aggregate(labels(dataset="d", column="label", ledger=ledger), QUERY, X + 1e-3)
    found.save(tmp_path / "sums.parquet")
    again = Aggregate.load(tmp_path / "sums.parquet")
    assert again.query == QUERY == query_from_dict(QUERY.to_dict())
    assert (again.values == found.values).all()


def test_one_hot_features_are_a_histogram_with_the_same_noise() -> None:
    """Up to what the exact bound for one changed label saves."""
    sums, counts = FeatureSums(4, 0.5, 7, delta=1e-6), Histogram(4, 0.5, 7, "gaussian", 1e-6)
    assert sums.standard_deviation() == pytest.approx(counts.standard_deviation(), rel=1e-2)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: FeatureSums(3, 1.0, 5), "delta > 0"),
        (lambda: FeatureSums(3, 1.0, 5, delta=1e-6, norm=0.0), "norm"),
        (lambda: FeatureSums(3, 1.0, 5, delta=1e-6, norm=np.nan), "norm"),
        (lambda: FeatureSums(3, 1.0, 5, delta=1e-6, norm="2"), r"got norm='2'\.$"),
        (lambda: FeatureSums(3, 1.0, 5, delta=1e-6, norm=1e-305), "norm >= 1e-300"),
        (lambda: FeatureSums(3, 1.0, 5, "laplace", 1e-6), "mechanism"),
        (
            lambda: ldp.aggregate(labels(), QUERY, X[:, :4]),
            "row of 5 numbers",
        ),
        (
            lambda: ldp.aggregate(labels(), QUERY, np.arange(N)),
            "row of 5 numbers",
        ),
        (
            lambda: ldp.aggregate(labels(), QUERY, X[:10]),
            "features of 400 rows, got 10",
        ),
        (
            lambda: ldp.aggregate(labels(), QUERY, np.where(X > 0.5, np.nan, X)),
            "finite features",
        ),
        (
            lambda: ldp.aggregate(labels(), QUERY, np.ma.masked_greater(X, 0.5)),
            "features without masked",
        ),
        (
            lambda: ldp.aggregate(labels(), QUERY, X.astype(str)),
            "row of 5 numbers",
        ),
        (
            lambda: ldp.aggregate(labels(classes=range(2)), FeatureSums(2, 1.0, D, delta=1e-6), X),
            "codes 0 to 1",
        ),
        (
            lambda: aggregate_batches([], QUERY, label="y", group="g", classes=range(K)),
            "about groups of rows",
        ),
        (
            lambda: aggregate_best(labels(), [(QUERY, X)], len, tuning=RepeatAndSelect(3)),
            "about groups of rows",
        ),
        (
            lambda: ldp.aggregate(
                labels(unit=np.arange(N) % 7, max_rows_per_unit=1 << 40), QUERY, X
            ),
            "max_rows_per_unit",
        ),
    ],
)
def test_bad_input_is_refused(ask: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ask()


def test_nothing_is_charged_for_what_is_refused(ledger: ldp.Ledger) -> None:
    for features in (X[:, :4], X[:10], np.full_like(X, np.inf)):
        with pytest.raises(InvalidInput):
            ldp.aggregate(labels(dataset="d", column="label", ledger=ledger), QUERY, features)
    assert ledger.spent("d", "label") == 0


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_row_whose_square_is_no_float_is_shortened_like_any_other() -> None:
    units = FeatureSums(2, 1.0, 2, delta=1e-6).units(
        np.array([[3e200, 4e200], [3.0, 4.0], [0.0, 0.0]])
    )
    assert (
        abs(units[0] - units[1]).max() <= 1
        and abs(units[1] / UNITS - [0.6, 0.8]).max() < 1e-5
        and not units[2].any()
    )
