# SPDX-License-Identifier: Apache-2.0
"""Which candidates and splits are chosen: against brute force over subsets, and against the linear
program of the optimality theorem."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from labeldp.errors import InvalidInput
from labeldp.laws import RRTopK, RRWithPrior
from labeldp.laws._exact import exp_floor, quantise, set_sizes
from labeldp.testing import CounterWords

WEIGHTS = st.integers(0, 6).map(float) | st.floats(0, 1)
PRIORS = st.integers(2, 12).flatmap(lambda k: st.lists(WEIGHTS, min_size=k, max_size=k))


@given(PRIORS, st.floats(1e-6, 20))
@settings(max_examples=150)
def test_no_subset_of_classes_is_better(prior: list[float], epsilon: float) -> None:
    """In exact integers; and of subsets that are as good, none is smaller (within what a double can
    tell)."""
    weights = [int(w) for w in quantise(np.array([prior]))[0]]
    gain = exp_floor(epsilon)
    chosen = RRWithPrior(len(prior), epsilon).outputs(prior).tolist()
    reached = sum(weights[y] for y in chosen) / (gain + len(chosen) - 1)
    for k in range(1, len(prior) + 1):
        best = max(sum(s) for s in combinations(weights, k)) / (gain + k - 1)
        assert best <= reached * (1 + 4e-16)
        if k < len(chosen):
            assert best < reached * (1 + 4e-16)


@pytest.mark.parametrize("seed", range(6))
def test_no_private_matrix_is_better(seed: int) -> None:
    """Theorem 3: maximise sum_y p_y T[y, y] over all eps-DP matrices T."""
    rng = np.random.default_rng(seed)
    k, epsilon = int(rng.integers(2, 6)), float(rng.uniform(0.1, 4))
    prior = rng.dirichlet(np.full(k, 0.7))
    rows = []
    for z in range(k):
        for y in range(k):
            for other in range(k):
                if other != y:
                    row = np.zeros((k, k))
                    row[y, z], row[other, z] = 1.0, -np.exp(epsilon)
                    rows.append(row.ravel())
    sums = np.kron(np.eye(k), np.ones(k))
    best = linprog(
        -np.diag(prior).ravel(),
        A_ub=np.array(rows),
        b_ub=np.zeros(len(rows)),
        A_eq=sums,
        b_eq=np.ones(k),
        bounds=(0, 1),
    )
    law = RRWithPrior(k, epsilon)
    matrix = law.matrix(prior)
    assert sum(prior[y] * matrix[y, j] for j, y in enumerate(law.outputs(prior))) == pytest.approx(
        -best.fun, abs=1e-8
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda r: np.exp(3 * r.normal(size=(40, 500))),
        lambda r: np.abs(r.normal(size=(40, 500))),
        lambda r: r.integers(0, 4, (40, 500)) + 0.0,
    ],
)
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 5.0, 50.0])
def test_sets_are_those_of_the_sorted_prior(make, epsilon: float) -> None:
    """The iteration, by folded maxima and survivors, and a scan of all prefixes of the sorted prior
    give the same sets."""
    prior = make(np.random.default_rng(1))
    weights = quantise(prior)
    side = RRWithPrior(500, epsilon).prepare(prior)
    ordered = -np.sort(-weights, axis=1)
    ratio = np.cumsum(ordered, axis=1) / (float(exp_floor(epsilon)) - 1 + np.arange(1, 501))
    every = np.arange(40)
    assert np.allclose(ratio[every, side["size"] - 1], ratio.max(axis=1), rtol=1e-15)
    inside = np.unpackbits(side["candidates"], axis=1, count=500, bitorder="little").astype(bool)
    assert (inside == (weights >= ordered[every, side["size"] - 1][:, None])).all()
    single = RRWithPrior(500, epsilon).prepare(prior.astype(np.float32))
    exact = RRWithPrior(500, epsilon).prepare(prior.astype(np.float32).astype(np.float64))
    assert all((single[name] == exact[name]).all() for name in single)


@pytest.mark.parametrize("scale", [1e-45, 1e-44, 1e-42, 1e-38, 1e-31])
def test_tiny_single_precision_weights_have_the_sets_of_the_same_weights_in_double(
    scale: float,
) -> None:
    """Below the normal range a float32 bound rounds up to the weights themselves, and the heaviest
    class would be left out."""
    prior = np.random.default_rng(5).random((50, 100)).astype(np.float32)
    prior[20] *= np.float32(scale)
    prior[20, 7] = scale
    for epsilon in (1e-3, 1.0, 5.0):
        side, exact = (
            RRWithPrior(100, epsilon).prepare(prior),
            RRWithPrior(100, epsilon).prepare(prior.astype(np.float64)),
        )
        np.testing.assert_array_equal(side["candidates"], exact["candidates"])
        np.testing.assert_array_equal(set_sizes(side["candidates"]), side["size"])


def test_a_side_whose_size_is_not_its_set_is_refused() -> None:
    law, words = RRWithPrior(5, 1.0), CounterWords(np.arange(2))
    side = law.prepare(np.array([[4.0, 3, 2, 1, 0], [4, 3, 2, 1, 0]]))
    for harm in (
        {"size": side["size"] + np.array([0, 1], np.int32)},
        {"candidates": side["candidates"] * np.uint8(0), "size": side["size"] * 0},
    ):
        with pytest.raises(InvalidInput, match="candidates"):
            law.sample(np.array([0, 1]), words, side | harm)


@given(PRIORS, st.data())
def test_top_k_cuts_ties_by_index(prior: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(prior)))
    weights = quantise(np.array([prior]))[0]
    order = sorted(range(len(prior)), key=lambda c: (-weights[c], c))
    assert RRTopK(len(prior), 1.0, k).outputs(prior).tolist() == sorted(order[:k])
