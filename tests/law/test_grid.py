# SPDX-License-Identifier: Apache-2.0
"""A grid is a list of classes to whose nearest value numbers are rounded: exactly, ties downwards,
clamped, inside the door only."""

import copy
import decimal
import json
import pickle
import re
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import labeldp as ldp
from labeldp.custody._encode import declare, encode
from labeldp.errors import InvalidInput

ENDS = st.floats(-1e12, 1e12, allow_nan=False)


def test_points_are_even_and_of_one_type() -> None:
    assert list(ldp.Grid(0, 100, points=5)) == [0, 25, 50, 75, 100]
    assert all(type(point) is int for point in ldp.Grid(0.0, 100.0, points=5))
    assert list(ldp.Grid(0, 1, 3)) == [0.0, 0.5, 1.0]
    assert all(type(point) is float for point in ldp.Grid(0, 1, 3))
    assert ldp.Grid(0, 0.3, 4) == (0.0, 0.1, 0.2, 0.3), "computed in decimals, rounded once"
    assert ldp.Grid(0, 500_000).points == 64


def test_it_is_the_tuple_of_its_points_and_survives_copies() -> None:
    grid = ldp.Grid(np.int64(-10), np.float32(10), 5)
    assert grid == (-10, -5, 0, 5, 10)
    assert (grid.low, grid.high, grid.points, grid.resolution) == (-10, 10, 5, 5.0)
    assert repr(grid) == "Grid(-10, 10, points=5)"
    for other in (
        copy.deepcopy(grid),
        pickle.loads(pickle.dumps(grid)),
        eval(repr(grid), {"Grid": ldp.Grid}),
        ldp.Grid(**grid.to_dict()),
    ):
        assert isinstance(other, ldp.Grid)
        assert other == grid
    assert json.loads(json.dumps(grid)) == [-10, -5, 0, 5, 10]
    assert declare(grid, 5) is grid
    with pytest.raises(AttributeError):
        grid.low = 3


@given(
    low=ENDS,
    width=st.floats(1e-3, 1e9),
    points=st.integers(2, 40),
    place=st.lists(st.floats(-0.2, 1.2), min_size=1, max_size=20),
)
def test_the_nearest_point_is_found_exactly(
    low: float, width: float, points: int, place: list[float]
) -> None:
    """Against a search in exact fractions, also at the midpoints themselves and one float beside
    them."""
    try:
        grid = ldp.Grid(low, low + width, points)
    except ldp.InvalidInput:  # so narrow that floats do not tell its points apart
        return
    middles = [float((Fraction(a) + Fraction(b)) / 2) for a, b in pairwise(grid)]
    values = (
        [low + share * width for share in place]
        + middles
        + [np.nextafter(m, np.inf) for m in middles]
        + list(grid)
    )
    expected = [
        min(range(points), key=lambda c: (abs(Fraction(float(grid[c])) - Fraction(float(v))), c))
        for v in values
    ]
    assert grid.codes(values).tolist() == expected


def test_ties_go_down_and_values_outside_are_clamped() -> None:
    grid = ldp.Grid(0, 3, 4)
    assert grid.codes([0.5, 1.5, 2.5, 0.5000000001, -7, 99, -1e308, 1e308]).tolist() == [
        0,
        1,
        2,
        1,
        0,
        3,
        0,
        3,
    ]
    assert grid.codes([np.nan, np.inf, -np.inf]).tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"low": 5, "high": 1}, "low < high"),
        ({"low": 1, "high": 1}, "low < high"),
        ({"low": 0, "high": np.inf}, "high as a finite number"),
        ({"low": np.nan, "high": 1}, "low as a finite number"),
        ({"low": 0, "high": 10**400}, "high as a finite number"),
        ({"low": "0", "high": 1}, "low as a finite number"),
        ({"low": False, "high": 1}, "low as a finite number"),
        ({"low": None, "high": 1}, "low as a finite number"),
        ({"low": 0, "high": 1, "points": 1}, "points >= 2"),
        ({"low": 0, "high": 1, "points": 10_001}, "points >= 2 and <= 10000"),
        ({"low": 0, "high": 1, "points": 2.0}, "whole number points"),
        ({"low": 1.0, "high": float(np.nextafter(1.0, 2.0)), "points": 3}, "different floats"),
    ],
)
def test_ranges_that_are_none_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ldp.InvalidInput, match=re.escape(message)):
        ldp.Grid(**arguments)


COLUMNS = {
    "list": [12.4, 12.6, 99, -3],
    "float32": np.array([12.4, 12.6, 99, -3], np.float32),
    "int": [12, 13, 99, -3],
    "pandas": pd.Series([12.4, 12.6, 99, -3]),
    "nullable": pd.Series([12, 13, 99, -3], dtype="Int64"),
    "arrow": pa.array([12.4, 12.6, 99, -3]),
    "decimals": [
        decimal.Decimal("12.4"),
        decimal.Decimal("12.6"),
        decimal.Decimal(99),
        decimal.Decimal(-3),
    ],
    "fractions": [Fraction(62, 5), Fraction(63, 5), Fraction(99), Fraction(-3)],
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_numbers_are_encoded(name: str) -> None:
    assert encode(COLUMNS[name], ldp.Grid(0, 20, 5)).tolist() == [2, 3, 4, 0]


SECRET = 31415.9265
REFUSED = {
    "nan": ([SECRET, np.nan], "some label is not"),
    "infinite": ([SECRET, -np.inf], "some label is not"),
    "none": ([SECRET, None], "some label is not"),
    "NA": (pd.Series([SECRET, None], dtype="Float64"), "some label is not"),
    "null": (pa.array([SECRET, None]), "some label is not"),
    "huge": ([SECRET, 10**400], "some label is not"),
    "one text": (np.array([SECRET, "31415.9265"], object), "some label is not"),
    "one truth": (np.array([SECRET, True], object), "some label is not"),
    "text": (["31415.9265", "2"], "got text"),
    "truths": ([True, False], "got booleans"),
    "times": (np.array(["2020-01-01"], "datetime64[D]"), "got times"),
    "complex": ([1j, 31415.9265], "got complex"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_finite_number_is_refused_before_the_charge(name: str, tmp_path: object) -> None:
    labels, said = REFUSED[name]
    ledger = ldp.Ledger(f"{tmp_path}/ledger.db")
    with pytest.raises(ldp.InvalidInput) as error:
        ldp.privatize(
            ldp.PrivateLabels(
                labels, classes=ldp.Grid(0, 1e5, 5), dataset="pay", column="label", ledger=ledger
            ),
            ldp.RandomizedResponse(5, 1.0),
        )
    assert said in str(error.value)
    assert "31415" not in str(error.value)
    assert ledger.spent("pay", "label") == 0


def test_noisy_labels_keep_the_grid_through_files_and_selection(tmp_path: object) -> None:
    grid = ldp.Grid(0, 1, 9)
    noisy = ldp.privatize(
        ldp.PrivateLabels(
            np.linspace(-1, 2, 50), classes=grid, ids=np.arange(50), noise=ldp.SeededNoise(1)
        ),
        ldp.SubsetSelection(9, 2.0),
    )
    noisy.save(f"{tmp_path}/noisy.parquet")
    back = ldp.NoisyLabels.load(f"{tmp_path}/noisy.parquet")
    for found in (noisy, noisy[3:7], noisy.by_id([4, 2]), ldp.concat([noisy[:5], noisy[5:]]), back):
        assert isinstance(found.classes, ldp.Grid)
        assert found.classes == grid
    assert set(noisy.hard().tolist()) <= set(grid)
    declared = ldp.NoisyLabels.from_labels([0.5, 0.125], ldp.RandomizedResponse(9, 1.0), grid)
    assert isinstance(declared.classes, ldp.Grid)


def test_a_grid_that_does_not_match_its_classes_is_refused(tmp_path: object) -> None:
    noisy = ldp.privatize(
        ldp.PrivateLabels([0.1], classes=ldp.Grid(0, 1, 3), noise=ldp.SeededNoise(1)),
        ldp.RandomizedResponse(3, 2.0),
    )
    table = noisy.to_table()
    key = next(iter(table.schema.metadata))
    for change in ({"high": 2}, {"points": 4}, {"step": 1}):
        facts = json.loads(table.schema.metadata[key])
        facts["grid"] |= change
        with pytest.raises(ldp.InvalidInput):
            ldp.NoisyLabels.from_table(table.replace_schema_metadata({key: json.dumps(facts)}))


@pytest.mark.parametrize(
    ("low", "high"), [(-1e308, 1e308), (0, 1e-320), (0, 1e101), (1e-101, 2e-101)]
)
def test_a_range_whose_squares_are_no_floats_is_refused(low, high):
    with pytest.raises(InvalidInput, match="another unit"):
        ldp.Grid(low, high, points=3)
    assert ldp.Grid(-1e100, 1e100, points=3).high == 1e100
    assert ldp.Grid(0, 1e-100, points=3).high == 1e-100
