# SPDX-License-Identifier: Apache-2.0
"""AutoLaw chooses well, the same for all shapes of a prior, and within bounded memory."""

import tracemalloc

import numpy as np
import pytest

from labeldp.laws import AutoLaw, PriorSplit, RandomizedResponse, RRTopK, SubsetSelection
from labeldp.laws.auto import RR, SPLIT, SUBSET, TOP_K
from labeldp.laws.information import sizes_to_try, subset_scores, top_k_scores
from labeldp.testing import CounterWords


def mixed(priors: np.ndarray) -> np.ndarray:
    return 0.95 * priors / priors.sum(axis=1, keepdims=True) + 0.05 / priors.shape[1]


def test_uniform_prior_takes_subset_selection() -> None:
    side = AutoLaw(10, 1.0).side_row()
    assert int(side["choice"]) == SUBSET
    assert int(side["size"]) == 3
    assert AutoLaw(10, 1.0).information() == pytest.approx(0.1224, abs=5e-5)


def test_equal_scores_go_to_the_first_law() -> None:
    """At K = 2 all but the constant are randomized response; at a large epsilon subset selection of size 1 is."""
    assert (AutoLaw(2, 1.0).prepare(np.array([[1.0, 1.0], [9.0, 1.0]]))["choice"] == RR).all()
    assert int(AutoLaw(4, 6.0).side_row()["choice"]) == RR


@pytest.mark.parametrize("k", [3, 5, 8, 12])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_loses_at_most_five_percent(k: int, epsilon: float) -> None:
    rng = np.random.default_rng(k)
    priors = np.concatenate([rng.dirichlet(np.full(k, alpha), size=3) for alpha in (0.05, 0.3, 1.0, 8.0)])
    truth = mixed(priors)
    table = [RandomizedResponse(k, epsilon).information(truth), SubsetSelection(k, epsilon).information(truth)]
    split = PriorSplit(k, epsilon)
    table.append(split._information(truth, split.prepare(priors)))
    for size in range(1, k):
        law = RRTopK(k, epsilon, size)
        table.append(law._information(truth, law.prepare(priors)))
    scores = np.array(table)
    side = AutoLaw(k, epsilon).prepare(priors)
    every = np.arange(len(priors))
    place = np.select([side["choice"] == RR, side["choice"] == SUBSET, side["choice"] == SPLIT], [0, 1, 2], 2 + side["size"])
    assert (scores[place, every] >= 0.95 * scores.max(axis=0) - 2e-6).all()


@pytest.mark.parametrize("k", [40, 1000])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_scores_of_many_classes(k: int, epsilon: float) -> None:
    """Against exact sums for RRTopK, and against sampled subsets for subset selection."""
    rng = np.random.default_rng(3)
    priors = mixed(np.exp(2 * rng.normal(size=(5, k))))
    ordered = -np.sort(-priors, axis=1)
    tries = np.append(sizes_to_try(k), np.int32(k))
    found = top_k_scores(ordered, epsilon, tries)
    for j in (0, len(tries) // 2, len(tries) - 1):
        law = RRTopK(k, epsilon, int(tries[j]))
        assert found[:, j] == pytest.approx(law._information(ordered, law.prepare(ordered)), rel=0.01, abs=1e-4)
    size = SubsetSelection(k, epsilon).set_size
    if size > 1:
        ratio = np.exp(epsilon)
        inside = rng.random((20_000, k)).argsort(axis=1) < size
        x = 1 + (ratio - 1) * (inside @ ordered.T)
        share = size / k
        wanted = (ratio * epsilon * share - (x * np.log(x)).mean(axis=0)) / (1 + (ratio - 1) * share)
        assert subset_scores(ordered, epsilon, size) == pytest.approx(wanted, rel=0.05, abs=1e-3)


def test_every_law_is_chosen_somewhere_and_sampled_with_its_own_words() -> None:
    rng = np.random.default_rng(5)
    priors = np.concatenate([rng.dirichlet(np.full(12, alpha), size=150) for alpha in (0.05, 0.2, 1.0, 20.0)])
    law = AutoLaw(12, 2.0)
    side = law.prepare(priors)
    assert set(np.unique(side["choice"])) >= {TOP_K, SPLIT, SUBSET}
    outputs = law.sample(np.arange(600) % 12, CounterWords(np.arange(600)), side)
    rows = np.flatnonzero(side["choice"] == SUBSET)
    alone = SubsetSelection(12, 2.0).sample(rows % 12, CounterWords(rows), {})
    assert (outputs[rows] == alone).all()
    some = np.array([5, 400, 12])
    part = {name: value[some] for name, value in side.items()}
    assert (law.sample(some % 12, CounterWords(some), part) == outputs[some]).all()
    assert (law.log_likelihood(outputs, side)[some] == law.log_likelihood(outputs[some], part)).all()


def test_memory_is_bounded() -> None:
    """20,000 rows at K = 1000 from a float32 prior (80 MB): beyond side and outputs, a few chunks."""
    prior = np.random.default_rng(0).random((4_000, 1000), dtype=np.float32)
    law = AutoLaw(1000, 4.0)
    tracemalloc.start()
    side = law.prepare(prior)
    law.sample(np.zeros(len(prior), dtype=np.int32), CounterWords(np.arange(len(prior))), side)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 * 2**20


@pytest.mark.parametrize("n_classes", [3, 4, 6, 10, 26, 100])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 1.0, 4.0])
def test_classes_of_equal_prior_are_never_told_apart_by_their_index(n_classes: int, epsilon: float) -> None:
    """A split by index would be the same for all rows of a uniform prior, and nothing could tell the classes within a half apart."""
    law = AutoLaw(n_classes, epsilon)
    side = law.prepare(np.ones((1, n_classes)))
    assert side["choice"][0] != 2
    prior = np.ones((1, n_classes))
    prior[0, 0] = n_classes  # a split of the first class from the rest is one by the prior
    assert law.prepare(prior)["choice"][0] in range(4)
