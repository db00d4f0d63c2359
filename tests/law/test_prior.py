# SPDX-License-Identifier: Apache-2.0
"""Priors on the integer grid, and packed sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import labeldp as ldp
from labeldp.errors import InvalidInput
from labeldp.laws import (
    LAWS,
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
    full_set,
    pack_sets,
    quantise,
    select_members,
    set_bytes,
    set_sizes,
    sets_contain,
    single_sets,
    unpack_sets,
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


def test_scale_and_type_do_not_matter() -> None:
    prior = np.array([[1, 2, 4, 8], [0, 0, 0, 0]])
    for other in (
        prior * 0.125,
        prior.astype(np.float32),
        prior.astype(np.uint8),
        np.asfortranarray(prior),
    ):
        assert (quantise(other) == quantise(prior)).all()
    assert quantise(prior)[1].tolist() == [TOP] * 4


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


@pytest.mark.parametrize("name", LAWS)
def test_bad_shapes_are_refused(name: str) -> None:
    law = MADE[name] if name in MADE else LAWS[name](4, 1.0)
    for bad in (np.ones((3, 5)), np.ones(4), np.ones((2, 4, 1)), np.array([["a"] * 4])):
        with pytest.raises(InvalidInput):
            law.prepare(bad)


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


@given(st.integers(1, 200), st.data())
def test_packed_sets(k: int, data: st.DataObject) -> None:
    members = sorted(data.draw(st.sets(st.integers(0, k - 1), min_size=1)))
    mask = np.zeros((3, k), dtype=bool)
    mask[:, members] = True
    packed = pack_sets(mask)
    assert packed.shape == (3, set_bytes(k))
    assert (unpack_sets(packed, k) == mask).all()
    assert (set_sizes(packed) == len(members)).all()
    j = data.draw(st.integers(0, len(members) - 1))
    (found,) = select_members(packed, np.full(3, j))
    assert (found == members[j]).all()
    label = data.draw(st.integers(0, k - 1))
    assert (sets_contain(packed, np.full(3, label), k) == (label in members)).all()
    assert (unpack_sets(single_sets(np.full(3, label), k), k) == (np.arange(k) == label)).all()
    assert (unpack_sets(full_set(k)[None], k)).all()
