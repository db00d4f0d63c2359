# SPDX-License-Identifier: Apache-2.0
"""Priors on the integer grid, and packed sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import labeldp as ldp
from labeldp.errors import InvalidInput
from labeldp.laws import (
    AutoLaw,
    Channel,
    ClusterRR,
    ColumnCounts,
    PriorSplit,
    RRTopK,
    RRWithPrior,
)
from labeldp.laws._exact import (
    TOP,
    as_prior,
    quantise,
)
from labeldp.testing import CounterWords

LAWS_WITH_PRIOR = [
    RRTopK(4, 1.0, 2),
    RRWithPrior(4, 1.0),
    PriorSplit(4, 1.0),
    AutoLaw(4, 1.0),
    ClusterRR(4, 1.0),
]


@given(st.lists(st.floats(0, 1e300), min_size=2, max_size=8))
def test_the_grid(row: list[float]) -> None:
    weights = quantise(np.array([row]))[0]
    assert weights.max() == TOP
    assert (weights == np.rint(weights)).all()
    top = max(row)
    if top > 0:
        assert np.abs(weights - np.array(row) / top * TOP).max() <= 0.51
    else:
        assert (weights == TOP).all()


@pytest.mark.parametrize("tiny", [5e-324, 1e-310, 1e-280])
def test_tiny_weights_keep_their_ratios(tiny: float) -> None:
    assert quantise(np.array([[tiny, 0.0, tiny]]))[0].tolist() == [TOP, 0.0, TOP]


@pytest.mark.parametrize("law", LAWS_WITH_PRIOR, ids=lambda law: law.name)
@pytest.mark.parametrize("bad", [np.nan, -1e-9, np.inf, -np.inf])
def test_bad_numbers_are_refused(law, bad: float) -> None:
    prior = np.ones((3, 4))
    prior[1, 2] = bad
    with pytest.raises(InvalidInput, match="row 1"):
        law.prepare(prior)


_COLUMNS = ldp.LabelColumns({"a": [0, 1], "b": [0, 1]})
MADE = {
    "rr-top-k": RRTopK(4, 1.0, 2),
    "channel": Channel([[0.4, 0.6], [0.5, 0.5], [0.6, 0.4], [0.45, 0.55]]),
}
MADE |= {
    "independent": _COLUMNS.law(1.0, "equal"),
    "one-column": _COLUMNS.law(1.0, "one"),
    "column-counts": ColumnCounts(4, 1.0, 2, 3),
}


@pytest.mark.parametrize("law", LAWS_WITH_PRIOR, ids=lambda law: law.name)
def test_priors_are_neither_changed_nor_copied_whole(law) -> None:
    prior = np.random.default_rng(0).random((50, 4))
    before = prior.copy()
    prior.flags.writeable = False
    words = CounterWords(np.arange(50))
    side = law.prepare(prior, words)
    assert (prior == before).all()
    assert all(
        (value[30:40] == law.prepare(prior[30:40], words.select(np.arange(30, 40)))[name]).all()
        for name, value in side.items()
    )
    assert as_prior(prior, 4) is prior
    if law.draws_side:
        one, many = (
            law.prepare(np.broadcast_to(prior[3], (n, 4)), CounterWords(np.full(n, 3)))
            for n in (1, 1000)
        )
        assert all(
            (value == one[name]).all() and (value[0] == side[name][3]).all()
            for name, value in many.items()
        )
    else:
        shared = law.prepare(np.broadcast_to(prior[3], (10**6, 4)))
        assert all(
            value.strides[0] == 0 and (value[0] == side[name][3]).all()
            for name, value in shared.items()
        )
    assert all(len(value) == 0 for value in law.prepare(np.empty((0, 4))).values())
