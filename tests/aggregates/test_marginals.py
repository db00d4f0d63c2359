# SPDX-License-Identifier: Apache-2.0
"""Several tables of groups in one query: the law of its noise, its cost, and its way through the
door."""

import json
import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

import labeldp as ldp
from labeldp.aggregates import Aggregate, Histogram, Marginals, _gaussian, query_from_dict
from labeldp.custody._aggregation import aggregate_batches, aggregate_best
from labeldp.errors import InvalidInput
from labeldp.noise import _words as noise
from labeldp.papers.ghazi2021 import RepeatAndSelect

BUDGET = 2.0  # of each column

FALSE_ALARM = 1e-6
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 400)
GROUPS = np.column_stack(
    [RNG.integers(0, 4, 400), RNG.integers(0, 2, 400), RNG.integers(0, 5, 400)]
)
QUERY = Marginals.of(3, 0.5, [4, 2, 5])


def counted(labels: np.ndarray = LABELS, groups: np.ndarray = GROUPS) -> np.ndarray:
    table = np.zeros((11, 3), int)
    for column, start in zip(groups.T, (0, 4, 6), strict=True):
        np.add.at(table, (column + start, labels), 1)
    return table


def ask(
    ledger: ldp.Ledger | None = None,
    groups: object = GROUPS,
    query: Marginals = QUERY,
    **more: object,
) -> Aggregate:
    facts = {"classes": range(3), "dataset": "d", "column": "label", "ledger": ledger} | more
    return ldp.aggregate(ldp.PrivateLabels(LABELS, **facts), query, groups)


# The law and its cost
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.5])
def test_another_label_changes_the_odds_of_all_tables_together_by_epsilon(
    epsilon: float, rows: int
) -> None:
    """A unit of m rows moves every one of T tables by at most m twice: the exact law's largest odds
    are e^(a 2 T m)."""
    query = Marginals.of(3, epsilon, [4, 2, 5])
    a = query.scale(rows)
    one, two = counted(), counted(np.concatenate([(LABELS[:rows] + 1) % 3, LABELS[rows:]]))
    moved = int(np.abs(one - two).sum())
    assert moved <= 2 * 3 * rows
    assert a * 2 * 3 * rows <= Fraction(str(epsilon)) and a * 2 * 3 * rows <= Fraction(epsilon)
    # The odds of an outcome are e^(a (|z - one| - |z - two|)), at most e^(a moved), which z = one
    # attains.
    outcomes = [one, two, (one + two) // 2, one - 7]
    odds = [np.abs(z - two).sum() - np.abs(z - one).sum() for z in outcomes]
    assert max(odds) == moved and float(a) * moved <= epsilon * (1 + 1e-15)
    assert query.standard_deviation(rows) == pytest.approx(
        Histogram(3, epsilon / 3, 11).standard_deviation(rows), rel=1e-9
    )


def test_noise_that_runs_has_its_law_and_no_other() -> None:
    query = Marginals.of(2, 3.0, [1, 1, 1])
    key = noise.derive_key(
        noise.SeededNoise(1).secret(), purpose="aggregate", facts={"test": "marginals"}
    )
    drawn = query.release(
        np.zeros((20_000, 2), np.int64), noise.RowWords(key, noise.row_blocks(40_000))
    ).ravel()
    seen = np.bincount(np.clip(drawn, -8, 8) + 8, minlength=17)
    # 1.5 is the noise of one table alone
    for a, fits in ((float(query.scale()), True), (1.5, False)):
        k = np.arange(-8, 9)
        law = math.tanh(a / 2) * np.exp(-a * np.abs(k))
        law[[0, -1]] /= 1 - math.exp(-a)  # with all beyond
        assert (stats.chisquare(seen, law * seen.sum()).pvalue > FALSE_ALARM) == fits


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("tables", [1, 3, 10])
def test_gaussian_noise_keeps_its_delta_and_is_less_than_that_of_the_tables_apart(
    rows: int, tables: int
) -> None:
    query = Marginals.of(2, 1.0, [5] * tables, "gaussian", 1e-6)
    variance = query.scale(rows)
    assert (
        _gaussian.composed_delta(2 * tables * rows**2 / (variance - 2), query.n_groups * 2, 1.0)
        <= 1e-6
    )
    # Continuous noise of this distance needs nearly as much; the squared distance is that of T
    # tables and m rows.
    least = _gaussian.analytic_sigma(1.0, 1e-6, math.sqrt(2 * tables) * rows) ** 2
    assert least <= float(variance) <= least * 1.001 + 2.1
    apart = Histogram(2, 1.0 / tables, 5, "gaussian", 1e-6 / tables).scale(rows)
    assert tables == 1 or float(variance) < 0.75 * float(apart)


def test_widths_that_leave_64_bits_are_refused() -> None:
    with pytest.raises(
        InvalidInput,
        match=r"max_rows_per_unit <= 70368 at epsilon=1e-06, got 1048576",
    ):
        Marginals.of(2, 1e-6, [2] * 1000).require_cap(1 << 20)
    assert Histogram(2, 1e-6, 2).require_cap(1 << 20) == 1 << 20


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"sizes": ()}, "sizes"),
        ({"sizes": (4, 2)}, "n_groups=6"),
        ({"sizes": (11, 0)}, "sizes"),
        ({"sizes": (5.5, 5.5)}, "sizes"),
        ({"sizes": 11}, "sizes"),
        ({"delta": 1e-6}, "pure"),
        ({"mechanism": "gaussian", "delta": 1e-310, "epsilon": 1e-6}, "that noise can give"),
    ],
)
def test_what_is_no_query_is_refused(facts: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        Marginals(**({"n_classes": 3, "epsilon": 0.5, "n_groups": 11, "sizes": (4, 2, 5)} | facts))


def test_json_form_is_read_back_and_kept() -> None:
    text = (
        '{"query":"marginals","n_classes":3,"epsilon":0.5,"n_groups":11,"mechanism":"laplace",'
        '"delta":0.0,"sizes":[4,2,5]}'
    )
    assert (
        query_from_dict(json.loads(text))
        == QUERY
        == query_from_dict(json.loads(json.dumps(QUERY.to_dict())))
    )


# Through the door
# --------------------------------------------------------------------------------------------------


def test_tables_are_counted_and_charged_once(ledger: ldp.Ledger) -> None:
    found = ask(ledger, query=Marginals.of(3, 2.0, [4, 2, 5]))
    assert found.n_rows.tolist() == counted().sum(axis=1).tolist()
    assert 0 < np.abs(found.values - counted()).max() < 60
    assert (found.epsilon, ledger.spent("d", "label"), len(ledger.runs())) == (2.0, 2.0, 1)
    exact = ask(query=Marginals.of(3, 500.0, [4, 2, 5]), noise=ldp.SeededNoise(0))
    assert exact.values.tolist() == counted().tolist()


@pytest.mark.parametrize(
    ("groups", "named"),
    [
        (GROUPS[:, 0], "3 tables"),
        (GROUPS[:, :2], "3 tables"),
        (GROUPS[:399], "400 rows"),
        (GROUPS + np.array([0, 1, 0]), "groups in 0..1"),
        (GROUPS - np.array([0, 0, 1]), "groups in 0..4"),
        (GROUPS.astype(float), "whole number"),
        (np.ma.masked_array(GROUPS, GROUPS == 1), "masked"),
    ],
)
def test_groups_that_are_none_are_refused_before_a_charge(
    ledger: ldp.Ledger, groups: object, named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        ask(ledger, groups)
    assert ledger.runs() == []


def test_streams_of_one_group_column_and_candidates(ledger: ldp.Ledger) -> None:
    table = pa.table({"y": LABELS, "g": GROUPS[:, 0]})
    with pytest.raises(InvalidInput, match=r"labeldp\.aggregate"):
        aggregate_batches(
            table, QUERY, label="y", group="g", classes=range(3), dataset="d", ledger=ledger
        )
    assert ledger.runs() == []
    tries = [(Marginals.of(3, 200.0, [4, 2, 5]), GROUPS)]
    best = aggregate_best(
        ldp.PrivateLabels(LABELS, classes=range(3), noise=ldp.SeededNoise(0)),
        tries,
        lambda found: 1.0,
        tuning=RepeatAndSelect(30),
    )
    assert best.values.tolist() == counted().tolist()
