# SPDX-License-Identifier: Apache-2.0
"""Shares, means, quantiles, cross tables and effects from noisy labels: right, covered, and defined
where rows are missing.

Noise is seeded, so each test passes always or never; a correct one is rejected with probability
below 1e-6 (SIGMAS).
"""

import datetime as dt
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.stats import chi2_contingency

import labeldp as ldp
from labeldp.errors import InvalidInput, LabelDPWarning
from labeldp.evidence import concat
from labeldp.laws import SquareWave
from labeldp.papers.malek2021 import Alibi

SIGMAS = 4.9  # two-sided normal quantile of 1e-6
SEED = ldp.SeededNoise(0)
P = np.array([0.5, 0.3, 0.15, 0.05])
LAWS = [
    ldp.RandomizedResponse(4, 1.5),
    ldp.SubsetSelection(4, 1.0),
    Alibi(4, 2.0),
    ldp.AutoLaw(4, 1.0),
    ldp.PriorSplit(4, 2.0),
]
LAWS += [ldp.ClusterRR.uniform(4, 1.5), ldp.RRWithPrior(4, 1.5)]


def private(labels, n_classes, **facts):
    return ldp.PrivateLabels(labels, **{"classes": range(n_classes), "noise": SEED} | facts)


def drawn(law, n, seed=0, classes=None):
    labels = np.random.default_rng(seed).choice(4, p=P, size=n)
    return labels, ldp.privatize(private(labels, law.n_classes, noise=ldp.SeededNoise(seed)), law)


def assert_coverage(covered, level=0.95, slack=0.005):
    """Within five standard errors of the nominal level, and half a point of the normal
    approximation."""
    assert (
        abs(np.mean(covered) - level)
        < SIGMAS * math.sqrt(level * (1 - level) / np.size(covered)) + slack
    ), np.mean(covered)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_intervals_of_shares_cover_with_every_law(law):
    """400 releases of 800 rows; and half of the width does not cover."""
    _, noisy = drawn(law, 400 * 800)
    found = [
        ldp.stats.frequencies(noisy[i * 800 : (i + 1) * 800], simultaneous=False)
        for i in range(400)
    ]
    value, low, high = (
        np.array([getattr(each, part)[0] for each in found]) for part in ("value", "low", "high")
    )
    for c in range(4):
        assert_coverage((low[:, c] <= P[c]) & (P[c] <= high[:, c]))
        assert abs(value[:, c].mean() - P[c]) < SIGMAS * value[:, c].std() / 20
    half = np.abs(value[:, 0] - P[0]) < (high - low)[:, 0] / 4
    assert half.mean() < 0.85


def test_simultaneous_intervals_hold_together():
    """400 releases of six groups of 300 rows."""
    _, noisy = drawn(LAWS[0], 400 * 1800)
    groups = np.arange(1800) % 6
    held = []
    for i in range(400):
        found = ldp.stats.mean(noisy[i * 1800 : (i + 1) * 1800], groups, of=0)
        held.append(((found.low <= P[0]) & (P[0] <= found.high)).all())
    assert_coverage(held, slack=0.01)


def test_units_widen_intervals_as_they_must():
    """300 releases of 300 units of four equal labels: intervals by rows miss, those by units
    cover."""
    rng = np.random.default_rng(1)
    labels = np.repeat((rng.random(300 * 300) < 0.3).astype(int), 4)
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(2), noise=SEED), ldp.RandomizedResponse(2, 3.0)
    )
    units = np.repeat(np.arange(300), 4)
    found = {True: [], False: []}
    for i in range(300):
        part = noisy[i * 1200 : (i + 1) * 1200]
        for by in found:
            one = ldp.stats.mean(part, units=units if by else None)["mean"]
            found[by].append(one.low <= 0.3 <= one.high)
    assert_coverage(found[True], slack=0.01)
    assert np.mean(found[False]) < 0.9


def test_quantiles_of_rounded_numbers_are_those_of_the_numbers():
    """Practically without noise, so that the interval of the rounded number is one point."""
    values = np.random.default_rng(0).lognormal(10.5, 0.6, 20_001)
    grid = ldp.Grid(0, 100_000, points=21)
    noisy = ldp.privatize(
        ldp.PrivateLabels(values, classes=grid, noise=SEED), ldp.RandomizedResponse(21, 40.0)
    )
    found = ldp.stats.quantiles(noisy, q=(0.001, 0.1, 0.5, 0.999))
    for q in (0.1, 0.5):
        one, truth = found[q], np.quantile(values, q)
        assert (
            one.value % 5000 == 0
            and one.low <= one.value - 2500 <= truth <= one.value + 2500 <= one.high
        )
    assert found[0.999].high == 100_000 and found[0.001].low >= 0
    assert "e+0" not in str(found) and "12,500" in str(found)
    rounded = ldp.privatize(
        ldp.PrivateLabels(np.asarray(grid)[grid.codes(values)], classes=list(grid), noise=SEED),
        noisy.blocks[0].law,
    )
    exact = ldp.stats.quantiles(rounded, q=(0.1,))[0.1]  # classes that are no grid
    assert exact.low == exact.value == exact.high


@pytest.mark.nightly
def test_quantiles_cover():
    """300 releases; at least the nominal level, since values are discrete."""
    rng = np.random.default_rng(2)
    values = rng.binomial(20, 0.4, 300 * 800)
    noisy = ldp.privatize(
        ldp.PrivateLabels(values, classes=range(21), noise=SEED), ldp.SubsetSelection(21, 2.0)
    )
    held = []
    for i in range(300):
        one = ldp.stats.quantiles(noisy[i * 800 : (i + 1) * 800], q=(0.5,))[0.5]
        held.append(one.low <= 8 <= one.high)
    assert np.mean(held) > 0.95 - SIGMAS * math.sqrt(0.0475 / 300)


def test_groups_without_rows_have_a_defined_result():
    labels, noisy = drawn(LAWS[0], 400)
    by = pd.Series(pd.Categorical(np.where(labels == 0, "a", "b"), categories=["a", "b", "none"]))
    found = ldp.stats.frequencies(noisy, by)
    assert found.groups == ("a", "b", "none") and found.n_rows.tolist()[2] == 0
    one = found["none", 2]
    assert math.isnan(one.value) and (one.low, one.high) == (0.0, 1.0) and not one.tells
    assert "none" in str(found) and len(found.rows()) == 12
    assert ldp.stats.crosstab(noisy, by).df == 3
    numbers = ldp.stats.quantiles(noisy, by)
    assert math.isnan(numbers["none", 0.5].value)
    named = ldp.stats.mean(noisy, by.to_numpy().astype(str), groups=["b", "z"])
    assert named.groups == ("b", "z") and named.n_rows[1] == 0


def test_a_group_without_rows_widens_no_interval():
    """Its own interval is the whole range, which holds anyway."""
    _, noisy = drawn(LAWS[0], 400)
    plain = pd.Categorical(np.where(np.arange(400) % 2, "a", "b"))
    for call in (ldp.stats.frequencies, ldp.stats.mean, ldp.stats.quantiles):
        wanted = call(noisy, plain)
        for more in (plain.add_categories(["z"]), pd.Series(plain.add_categories(["z"]))):
            found = call(noisy, more)
            assert found.groups == ("a", "b", "z") and found.n_rows[2] == 0
            np.testing.assert_array_equal(found.low[:2], wanted.low)
            np.testing.assert_array_equal(found.high[:2], wanted.high)


def test_columns_of_every_library_are_taken_alike():
    _, noisy = drawn(LAWS[0], 200)
    by = np.where(np.arange(200) % 3 == 0, "x", "y")
    wanted = ldp.stats.mean(noisy, by).value
    for column in (
        pd.Series(by),
        pa.array(by),
        pa.chunked_array([by[:50], by[50:]]),
        by.tolist(),
        by.astype(object),
    ):
        np.testing.assert_array_equal(ldp.stats.mean(noisy, column).value, wanted)
    for frame in (
        pd.DataFrame({"a": by, "b": np.arange(200) % 2}),
        pa.table({"a": by, "b": np.arange(200) % 2}),
    ):
        assert ldp.stats.mean(noisy, frame).groups == (("x", 0), ("x", 1), ("y", 0), ("y", 1))
    days = [dt.date(2024, 1, 1), dt.date(2024, 1, 2)] * 100
    assert ldp.stats.mean(noisy, pa.table({"day": days, "b": [0] * 200})).groups == (
        (days[0], 0),
        (days[1], 0),
    )


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_groups_of_times_are_named_by_times(unit):
    _, noisy = drawn(LAWS[0], 200)
    first, second = (np.datetime64(day, unit) for day in ("2024-01-01", "2024-02-01"))
    by = np.where(np.arange(200) % 2, second, first)
    days = dt.datetime(2024, 1, 1), dt.datetime(2024, 2, 1)
    wanted = ldp.stats.mean(noisy, by)
    assert wanted.groups == days and wanted.value[0] != wanted.value[1]
    assert ldp.stats.mean(noisy, by - first).groups == (dt.timedelta(0), dt.timedelta(31))
    assert ldp.stats.mean(noisy, pd.DataFrame({"a": by, "b": by})).groups == tuple(
        (day, day) for day in days
    )
    for pair in (days, (first, second), tuple(map(pd.Timestamp, days))):
        found = ldp.stats.mean(noisy, by, groups=pair[::-1])
        assert found.groups == pair[::-1]
        np.testing.assert_array_equal(found.value, wanted.value[::-1])
    fine = np.array(["2024-01-01T00:00:00.000000001", "2024-01-01T00:00:00.000000002"], "M8[ns]")
    found = ldp.stats.mean(noisy, fine[np.arange(200) % 2])
    np.testing.assert_array_equal(found.value, wanted.value)
    assert found.groups == tuple(fine) and found[fine[1]].value == wanted.value[1]


def test_groups_of_which_none_occurs_are_refused():
    _, noisy = drawn(LAWS[0], 200)
    by = pd.Series(
        pd.Categorical(np.where(np.arange(200) % 2, "a", "b"), categories=["a", "b", "none"])
    )
    for column, groups in (
        (by, ["A", "B"]),
        (by.to_numpy().astype(str), ["A"]),
        (np.arange(200) % 2, ["0", "1"]),
    ):
        with pytest.raises(
            InvalidInput, match=r"groups= to name values of by, got none that it has: '[A0]'"
        ):
            ldp.stats.mean(noisy, column, groups=groups)
    # a category without rows
    assert ldp.stats.mean(noisy, by, groups=["none"]).n_rows.tolist() == [0]
    assert ldp.stats.mean(
        noisy[:0], by[:0].to_numpy().astype(str), groups=["a"]
    ).n_rows.tolist() == [0]


def test_rows_are_matched_by_ids():
    labels, _ = drawn(LAWS[0], 300)
    ids = np.arange(1000, 1300)
    noisy = ldp.privatize(private(labels, 4, ids=ids), LAWS[0])
    order = np.random.default_rng(0).permutation(300)
    by = labels % 2
    wanted = ldp.stats.mean(noisy, by, ids=ids)
    found = ldp.stats.mean(noisy, by[order], ids=ids[order])
    np.testing.assert_allclose(found.value, wanted.value, rtol=1e-12)


def test_the_test_of_independence_is_pearsons_for_randomized_response():
    _, noisy = drawn(LAWS[0], 2000)
    by = np.random.default_rng(3).integers(3, size=2000)
    table = np.zeros((3, 4))
    np.add.at(table, (by, noisy.hard()), 1)
    found = ldp.stats.crosstab(noisy, by)
    wanted = chi2_contingency(table, correction=False)
    assert (found.df, found.statistic) == (wanted.dof, pytest.approx(wanted.statistic, rel=1e-9))
    assert found.pvalue == pytest.approx(wanted.pvalue, rel=1e-9)
    np.testing.assert_allclose(found.counts.sum(axis=1), np.bincount(by))


@pytest.mark.nightly
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_test_of_independence_has_its_level_and_power(law):
    """400 releases of 900 rows in three groups: 5 % false alarms; a strong dependence is found."""
    labels, noisy = drawn(law, 400 * 900, seed=5)
    by = np.arange(900) % 3
    pvalues = np.array(
        [ldp.stats.crosstab(noisy[i * 900 : (i + 1) * 900], by).pvalue for i in range(400)]
    )
    assert_coverage(pvalues > 0.05, slack=0.01)
    assert ldp.stats.crosstab(noisy[:9000], labels[:9000] % 2).pvalue < 1e-6


@pytest.mark.nightly
def test_a_small_group_of_two_kinds_of_law_keeps_the_level():
    """300 releases of 30 rows beside 600, half of them by thresholds and half by subset selection:
    at most 5 % false alarms."""
    labels = np.random.default_rng(11).choice(4, p=P, size=300 * 630)
    asked, others = (
        ldp.privatize(ldp.PrivateLabels(labels, classes=range(law.n_classes), noise=SEED), law)
        for law in (ldp.Threshold(4, 2.0), ldp.SubsetSelection(4, 2.0))
    )
    by, pvalues = np.where(np.arange(630) % 21, "many", "few"), []
    for start in range(0, len(labels), 630):
        rows = slice(start, start + 315), slice(start + 315, start + 630)
        pvalues.append(ldp.stats.crosstab(concat([asked[rows[0]], others[rows[1]]]), by).pvalue)
    alarms = np.mean(np.array(pvalues) < 0.05)
    assert alarms < 0.05 + SIGMAS * math.sqrt(0.05 * 0.95 / 300), alarms


def test_rows_of_two_kinds_of_law_are_unbiased_and_covered():
    """300 releases of 600 rows on 32 points, half of them by thresholds and half by subset
    selection; and a handful of thresholds."""
    points = np.arange(32)
    shares = np.exp(-points / 6) / np.exp(-points / 6).sum()
    truth, labels = (
        float(shares @ points),
        np.random.default_rng(7).choice(32, p=shares, size=300 * 600),
    )
    asked, others = (
        ldp.privatize(ldp.PrivateLabels(labels, classes=range(law.n_classes), noise=SEED), law)
        for law in (ldp.Threshold(32, 4.0), ldp.SubsetSelection(32, 4.0))
    )
    found = [
        ldp.stats.mean(concat([asked[i : i + 300], others[i + 300 : i + 600]]))["mean"]
        for i in range(0, len(labels), 600)
    ]
    assert_coverage([each.low <= truth <= each.high for each in found], slack=0.02)
    values = np.array([each.value for each in found])
    assert abs(values.mean() - truth) < SIGMAS * values.std() / np.sqrt(len(values)) + 0.1
    few = ldp.stats.mean(concat([asked[:5], others[300:600]]))["mean"]
    assert few.value == pytest.approx(ldp.stats.mean(others[300:600])["mean"].value, abs=1.0)


@pytest.mark.parametrize(
    ("n_bits", "n_others"), [(990, 10), (400, 1), (10, 400), (3, 1), (1, 3), (1, 1)]
)
@pytest.mark.parametrize("epsilon", [1e-9, 0.01, 1.0, 8.0, 50.0])
def test_a_few_rows_of_one_kind_with_the_same_output_are_not_exact(n_bits, n_others, epsilon):
    """They have no variance of their own: it would outweigh all rows of the other kind, or leave
    intervals without a length."""
    for bits, others, k in (
        (ldp.PriorSplit, ldp.RandomizedResponse, 5),
        (ldp.Threshold, SquareWave, 20),
        (ldp.PriorSplit, ldp.SubsetSelection, 3),
    ):
        labels = np.zeros(n_bits + n_others, np.int64)
        first = private(labels[:n_bits], k, noise=ldp.SeededNoise(1))
        rest = private(labels[n_bits:], k, noise=ldp.SeededNoise(2))
        noisy = concat(
            [ldp.privatize(first, bits(k, epsilon)), ldp.privatize(rest, others(k, epsilon))]
        )
        found = ldp.stats.frequencies(noisy)
        assert np.isfinite(found.value).all() and found.low[0, 0] <= 1 <= found.high[0, 0] + 1e-9
        assert (found.high - found.low).min() > (0.4 / len(labels) if epsilon < 50 else -1)
        table = ldp.stats.crosstab(noisy, np.arange(len(labels)) % 2)
        assert not np.isnan(table.shares.low).any()


@pytest.mark.nightly
def test_units_keep_the_level_of_the_test():
    rng = np.random.default_rng(4)
    labels = np.repeat(rng.choice(4, p=P, size=300 * 250), 4)
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(4), noise=SEED), ldp.RandomizedResponse(4, 4.0)
    )
    units, by = np.repeat(np.arange(250), 4), np.repeat(np.arange(250) % 2, 4)
    parts = [noisy[i * 1000 : (i + 1) * 1000] for i in range(300)]
    assert_coverage(
        [ldp.stats.crosstab(part, by, units=units).pvalue > 0.05 for part in parts], slack=0.015
    )
    assert np.mean([ldp.stats.crosstab(part, by).pvalue > 0.05 for part in parts]) < 0.8


@pytest.mark.parametrize("adjusted", [False, True])
def test_effects_cover(adjusted):
    """400 experiments of 1,000 rows with an effect of .15."""
    rng = np.random.default_rng(6)
    n = 400 * 1000
    x, arm = rng.normal(size=n), np.tile(np.arange(1000) % 2, 400)
    bought = (rng.random(n) < np.clip(0.4 + 0.15 * arm + 0.1 * np.tanh(x), 0, 1)).astype(int)
    noisy = ldp.privatize(
        ldp.PrivateLabels(np.array(["no", "yes"])[bought], classes=["no", "yes"], noise=SEED),
        ldp.RandomizedResponse(2, 2.0),
    )
    held = []
    for i in range(400):
        rows = slice(i * 1000, (i + 1) * 1000)
        one = ldp.stats.effect(noisy[rows], arm[rows], of="yes", X=x[rows] if adjusted else None)
        held.append(one.low <= 0.15 <= one.high)
    assert_coverage(held)
    assert one.adjusted is adjusted and 0 <= one.pvalue <= 1 and "minus" in str(one)


def test_a_difference_of_which_the_evidence_tells_nothing_has_no_value():
    few = ldp.privatize(private(np.arange(8) % 6, 6), ldp.PriorSplit(6, 0.5))
    found = ldp.stats.difference(few, np.arange(8) % 2)
    assert all(map(math.isnan, (found.value, *found.means, found.pvalue)))
    assert (found.low, found.high, found.stderr) == (-5.0, 5.0, math.inf) and not found.tells
    assert "cannot tell" in str(found)
    labels, noisy = drawn(ldp.PriorSplit(4, 2.0), 1004)
    half = ldp.stats.difference(noisy, np.arange(1004) < 4)  # the second group's rows are too few
    assert (
        math.isnan(half.value)
        and half.means[0] == pytest.approx(labels[4:].mean(), abs=0.5)
        and math.isnan(half.means[1])
    )


def test_bad_input_is_refused_clearly():
    labels, noisy = drawn(LAWS[0], 400)
    arm, units = np.arange(400) % 2, np.arange(400) // 4
    cases = [
        (
            lambda: ldp.stats.effect(noisy, arm, units=units),
            "each unit in one arm, got 100 in both",
        ),
        (lambda: ldp.stats.effect(noisy, np.arange(400) % 3), "two arms, got 3"),
        (lambda: ldp.stats.difference(noisy, np.arange(400) % 3), r"two groups, got 3.*groups=\("),
        (lambda: ldp.stats.difference(noisy, arm, groups=[0, 7]), "none in 7"),
        (lambda: ldp.stats.mean(noisy, arm[:5]), "400 rows|as many as"),
        (lambda: ldp.stats.mean(noisy, of=9), "declared classes"),
        (lambda: ldp.stats.mean(noisy, of={0: 1.0}), "finite number for each"),
        (lambda: ldp.stats.mean(noisy, np.where(arm, np.nan, 1.0)), "none in row 1"),
        (
            lambda: ldp.stats.mean(noisy, pd.Series(["a", None] * 200, dtype="string")),
            "none in row 1",
        ),
        (lambda: ldp.stats.mean(noisy, pd.Series([1, None] * 200, dtype="Int64")), "none in row 1"),
        (lambda: ldp.stats.quantiles(noisy, q=(1.5,)), "q="),
        (lambda: ldp.stats.frequencies(labels), "NoisyLabels, got ndarray"),
        (lambda: ldp.stats.frequencies(noisy, confidence=1.0), "confidence"),
    ]
    for call, message in cases:
        with pytest.raises(InvalidInput, match=message):
            call()
    texts = ldp.privatize(
        ldp.PrivateLabels(["a", "b"] * 9, classes=["a", "b"], noise=SEED),
        ldp.RandomizedResponse(2, 1.0),
    )
    with pytest.raises(InvalidInput, match="class values that are finite numbers"):
        ldp.stats.mean(texts)


def test_a_unit_may_have_rows_in_both_groups_of_a_difference():
    _, noisy = drawn(LAWS[0], 400)
    found = ldp.stats.difference(noisy, np.arange(400) % 2, of=0, units=np.arange(400) // 4)
    assert found.low < found.value < found.high


def test_rows_over_the_cap_are_left_out_and_units_are_asked_for():
    labels = np.arange(300) % 4
    noisy = ldp.privatize(
        ldp.PrivateLabels(
            labels, classes=range(4), unit=np.arange(300) // 3, max_rows_per_unit=2, noise=SEED
        ),
        ldp.RandomizedResponse(4, 4.0),
    )
    with pytest.warns(LabelDPWarning, match="Pass units="):
        found = ldp.stats.frequencies(noisy)
    assert found.n_rows[0] == 200


@pytest.mark.parametrize(
    "law", [ldp.Threshold(16, 2.0), ldp.laws.SquareWave(16, 2.0)], ids=lambda law: law.name
)
def test_a_draw_of_numbers_without_a_prior_is_not_warned_of(law):
    grid = ldp.Grid(0, 30, points=16)
    numbers = np.random.default_rng(0).uniform(5, 25, 3000)
    alone = ldp.privatize(ldp.PrivateLabels(numbers, classes=grid, noise=SEED), law)
    columns = ldp.LabelColumns({"income": grid, "kind": [0, 1]})
    beside = [
        ldp.privatize(
            ldp.PrivateLabels(
                {"income": numbers, "kind": np.arange(3000) % 2}, classes=columns, noise=SEED
            ),
            columns.law(4.0, split),
        )
        for split in ("equal", "one")
    ]
    for noisy in (alone, *(each["income"] for each in beside)):
        found = ldp.stats.mean(noisy)["mean"]
        assert found.low < 15 < found.high and found.tells
        assert ldp.stats.quantiles(noisy)[0.5].tells


@pytest.mark.parametrize(("points", "n"), [(21, 1000), (64, 200)])
def test_means_of_thresholds_are_told_where_all_answers_to_some_question_are_alike(points, n):
    """400 releases at epsilon 4: few rows a threshold (16 or more, then 3, where unbiased weights
    must help), all of them cover."""
    law = ldp.Threshold(points, 4.0)
    labels = np.random.default_rng(3).binomial(points - 1, 0.4, 400 * n)
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(points), noise=ldp.SeededNoise(9)), law
    )
    parts = [noisy[i * n : (i + 1) * n] for i in range(400)]
    found = [ldp.stats.mean(part)["mean"] for part in parts]
    truth = 0.4 * (points - 1)
    assert all(one.tells and one.high - one.low < points - 1 for one in found)
    assert_coverage([one.low <= truth <= one.high for one in found])
    values, stderr = (
        np.array([getattr(one, part) for one in found]) for part in ("value", "stderr")
    )
    assert abs(values.mean() - truth) < SIGMAS * values.std() / 20
    if n == 1000:  # more precise than the weights
        weighed = np.array([(part.class_weights() @ np.arange(points)).mean() for part in parts])
        assert stderr.mean() < 0.8 * weighed.std()


def test_combinations_are_not_estimated_from_one_column_a_row():
    columns = ldp.LabelColumns({"a": ["no", "yes"], "b": [1, 2, 3]})
    labels = {"a": np.array(["no", "yes"])[np.arange(3000) % 2], "b": np.arange(3000) % 3 + 1}
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=columns, noise=SEED), columns.law(3.0, "one")
    )
    for ask in (
        lambda: ldp.stats.frequencies(noisy),
        lambda: ldp.stats.crosstab(noisy, np.arange(3000) % 2),
        lambda: ldp.stats.mean(noisy, of=("yes", 3)),
    ):
        with pytest.raises(InvalidInput, match=r"split 'one'.*noisy\[name\].*'joint'"):
            ask()
    # a sum over columns is told
    both = ldp.stats.mean(noisy, of={(a, b): (a == "yes") + b for a, b in columns})["mean"]
    assert both.low < 2.5 < both.high and both.tells
    assert ldp.stats.frequencies(noisy["b"])[2].tells
    for split in ("joint", "equal"):
        told = ldp.privatize(
            ldp.PrivateLabels(labels, classes=columns, noise=SEED), columns.law(3.0, split)
        )
        assert ldp.stats.frequencies(told)["yes", 2].tells
