# SPDX-License-Identifier: Apache-2.0
"""Properties of every law over K, epsilon and priors."""

import contextlib
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labeldp.errors import InvalidInput
from labeldp.laws import (
    AutoLaw,
    ClusterRR,
    Law,
    PriorSplit,
    RandomizedResponse,
    RRTopK,
    RRWithPrior,
    SquareWave,
    SubsetSelection,
    Threshold,
    exact_epsilon,
)
from labeldp.laws._exact import WORD, exp_floor, pack_sets
from labeldp.laws._response import respond, respond_to_all, response_words
from labeldp.laws._subset import SUBSET
from labeldp.papers.malek2021 import Alibi
from labeldp.papers.regression import BoundedLaplace, RROnBins
from labeldp.testing import CounterWords

EPSILONS = st.floats(1e-6, 700) | st.floats(1e-3, 12)
WEIGHTS = st.sampled_from([0.0, 1.0, 0.5, 1e-9]) | st.floats(0, 1)
PLAIN = [RandomizedResponse, RRWithPrior, SubsetSelection, PriorSplit, AutoLaw]


@st.composite
def law_and_prior(draw: st.DrawFn, largest: int = 9) -> tuple[Law, list[float]]:
    k, epsilon = draw(st.integers(2, largest)), draw(EPSILONS)
    cls = draw(st.sampled_from([*PLAIN, RRTopK]))
    law = RRTopK(k, epsilon, draw(st.integers(1, k))) if cls is RRTopK else cls(k, epsilon)
    return law, draw(st.lists(WEIGHTS, min_size=k, max_size=k))


@given(law_and_prior())
def test_exact_epsilon_never_exceeds_the_claim(case: tuple[Law, list[float]]) -> None:
    law, prior = case
    matrix = law.matrix(prior, exact=True)
    assert (matrix.sum(axis=1) == 1).all()
    ratio = max(
        Fraction(high) / low
        for high, low in zip(matrix.max(axis=0), matrix.min(axis=0), strict=True)
    )
    assert ratio <= exp_floor(law.epsilon)
    assert exact_epsilon(matrix) == pytest.approx(law.exact_epsilon(law.side_row(prior)), rel=1e-15)
    assert law.exact_epsilon(law.side_row(prior)) <= law.epsilon


@given(st.integers(2, 100_000), EPSILONS)
@settings(max_examples=60)
def test_profiles_hold_at_any_size(k: int, epsilon: float) -> None:
    laws: list[Law] = [
        RandomizedResponse(k, epsilon),
        RRTopK(k, epsilon, (k + 1) // 2),
        PriorSplit(k, epsilon),
        SubsetSelection(k, epsilon, min(k - 1, 50)),
    ]
    for law in laws:
        side = {"size": np.int32((k + 1) // 2)}
        cells = law.profile(side)
        assert {
            sum(c.probability * c.outputs for c in cells if c.label == label)
            for label in {c.label for c in cells}
        } == {1}
        assert law.exact_epsilon(side) <= epsilon


@given(st.integers(2, 100_000), st.floats(1e-6, 25), st.integers(0, 2**32), st.data())
@settings(max_examples=60)
def test_fast_response_is_the_definition(
    k: int, epsilon: float, seed: int, data: st.DataObject
) -> None:
    """Random words and the words at cell boundaries, through the fast path and by integer
    division."""
    a, b = response_words(epsilon, k)
    cells = data.draw(st.lists(st.integers(0, k - 1), min_size=20, max_size=20))
    edges = [(a + j * b + d) % WORD for j in cells for d in (-1, 0, 1)] + [0, WORD - 1]
    words = np.concatenate(
        [CounterWords(np.arange(500), seed).take(0), np.array(edges, dtype=np.uint64)]
    )
    labels = CounterWords(np.arange(len(words)), seed + 1).take(0) % np.uint64(k)
    out = respond_to_all(labels.astype(np.int64), words, epsilon, k)
    for y, r, z in zip(labels.tolist(), words.tolist(), out.tolist(), strict=True):
        other = (r - a) // b
        assert z == (y if r < a else other + (other >= y))


@given(st.integers(2, 40), st.floats(1e-3, 50), st.data())
@settings(max_examples=60)
def test_response_on_candidates_is_the_definition(
    k: int, epsilon: float, data: st.DataObject
) -> None:
    candidates = sorted(data.draw(st.sets(st.integers(0, k - 1), min_size=1, max_size=k)))
    size = len(candidates)
    a, b = response_words(epsilon, size)
    edges = [(a + j * b + d) % WORD for j in range(size) for d in (-1, 0)] + [
        (j * WORD // size + d) % WORD for j in range(size) for d in (-1, 0)
    ]
    words = np.array([*edges, *CounterWords(np.arange(200)).take(0).tolist()], dtype=np.uint64)
    mask = np.zeros((len(words), k), dtype=bool)
    mask[:, candidates] = True
    packed = np.packbits(mask, axis=1, bitorder="little")
    labels = np.arange(len(words)) % k
    out = respond(labels, words, packed, np.full(len(words), size, dtype=np.int32), epsilon, k)
    for y, r, z in zip(labels.tolist(), words.tolist(), out.tolist(), strict=True):
        if y not in candidates:
            expected = candidates[((r + 1) * size - 1) // WORD]
            j = candidates.index(expected)
            assert j * WORD // size <= r < (j + 1) * WORD // size
        elif r < a:
            expected = y
        else:
            expected = [c for c in candidates if c != y][(r - a) // b]
        assert z == expected


@given(law_and_prior(6))
@settings(max_examples=40)
def test_information_is_that_of_the_matrix(case: tuple[Law, list[float]]) -> None:
    law, prior = case
    weights = np.array(prior) if sum(prior) else np.ones(len(prior))
    weights = weights / weights.sum()
    channel = law.matrix(prior)
    out = weights @ channel
    terms = np.where(
        channel > 0,
        channel * np.log(np.where(channel > 0, channel, 1) / np.where(out > 0, out, 1)),
        0,
    )
    assert law.information(prior) == pytest.approx(
        float(weights @ terms.sum(axis=1)), rel=1e-6, abs=1e-12
    )


@pytest.mark.parametrize("epsilon", [1e-6, 1.0, 40.0, 700.0])
@pytest.mark.parametrize("k", [2, 1000, 100_000])
def test_extremes_work(k: int, epsilon: float) -> None:
    prior = np.exp(3 * np.random.default_rng(k).normal(size=(3, k)))
    for law in (
        RandomizedResponse(k, epsilon),
        RRTopK(k, epsilon, min(k, 7)),
        RRWithPrior(k, epsilon),
        PriorSplit(k, epsilon),
        AutoLaw(k, epsilon),
    ):
        side = law.prepare(prior)
        if law.name == "auto" and k > 1000 and (side["choice"] == SUBSET).any():
            # a third of the classes: seconds a row
            side = {name: value[side["choice"] != SUBSET] for name, value in side.items()}
        n = len(side["size"]) if "size" in side else 3
        outputs = law.sample(np.zeros(n, dtype=np.int64), CounterWords(np.arange(n)), side)
        likelihood = law.log_likelihood(outputs, side)
        assert likelihood.shape == (n, k)
        assert (likelihood.max(axis=1, initial=-math.inf) == 0).all()
        assert likelihood.min(initial=0) >= -epsilon * (1 + 1e-9)


def test_subset_at_100_000_classes() -> None:
    law = SubsetSelection(100_000, 8.0)
    assert law.set_size == 235
    outputs = law.sample(np.array([0, 99_999]), CounterWords(np.arange(2)), {})
    assert (law.members(outputs, {}).sum(axis=1) == law.set_size).all()


@pytest.mark.parametrize("epsilon", [math.nan, math.inf, 0.0, -1.0, True, "1"])
@pytest.mark.parametrize("cls", PLAIN)
def test_illegal_epsilon_is_refused(cls: type[Law], epsilon: object) -> None:
    with pytest.raises(InvalidInput):
        cls(3, epsilon)


def test_what_words_cannot_honour_is_refused() -> None:
    with pytest.raises(InvalidInput, match="64-bit words"):
        RandomizedResponse(100_000, 1e-12)
    with pytest.raises(InvalidInput, match="64-bit words"):
        SubsetSelection(100_000, 1e-18, 1)
    assert RandomizedResponse(2, 1e300).exact_epsilon() < 45


def test_parameters_are_checked() -> None:
    for build in (
        lambda: RRTopK(3, 1.0, 0),
        lambda: RRTopK(3, 1.0, 4),
        lambda: SubsetSelection(3, 1.0, 3),
        lambda: SubsetSelection(3, 1.0, 0),
        lambda: RandomizedResponse(1, 1.0),
        lambda: RRWithPrior(3, 1.0, (1.0, 2.0)),
        lambda: RRWithPrior(2, 1.0, (1.0, 0.0)),
        lambda: RandomizedResponse(2000, 1.0).matrix(),
        lambda: SubsetSelection(40, 1.0).matrix(),
    ):
        with pytest.raises(InvalidInput):
            build()


def test_exact_epsilon_of_plain_matrices() -> None:
    assert exact_epsilon([[0.5, 0.5], [0.5, 0.5]]) == 0.0
    assert exact_epsilon([[1.0, 0.0], [0.5, 0.5]]) == math.inf
    assert exact_epsilon([[1.0, 0.0], [1.0, 0.0]]) == 0.0
    assert exact_epsilon([[Fraction(3, 4), Fraction(1, 4)], [Fraction(1, 4), Fraction(3, 4)]]) in (
        math.log(3),
        math.nextafter(math.log(3), math.inf),
    )
    for bad in ([[0.5, -0.5]], [[math.nan]], [0.5, 0.5], [[]]):
        with pytest.raises(InvalidInput):
            exact_epsilon(bad)


def test_the_order_of_a_subset_sample_is_uniform() -> None:
    """All 60 ordered samples of 3 out of 5 classes, two-sided: chi-square at 1e-6 (59 degrees:
    129.6) and not suspiciously even."""
    from labeldp.laws._exact import ordered_sample

    n = 60_000
    drawn = ordered_sample(CounterWords(np.arange(n), seed=5), 5, 3, first=1).astype(np.int64)
    counts = np.unique(drawn[0] * 25 + drawn[1] * 5 + drawn[2], return_counts=True)[1]
    assert len(counts) == 60
    assert 15 < ((counts - n / 60) ** 2 / (n / 60)).sum() < 129.6


def test_rejected_words_are_replaced_by_their_next_attempt() -> None:
    """Bound 3: the word 0 has low product 0 < 2^64 mod 3 = 1 and is rejected; attempt t of step i
    uses counter first + i + t steps."""
    from labeldp.laws._exact import below

    words = CounterWords(
        np.arange(4, dtype=np.int64),
        fixed={
            1: np.array([0, 1, 2**63, 0], dtype=np.uint64),
            5: np.array([2**64 - 1] * 4, dtype=np.uint64),
        },
    )
    assert below(words, 3, 1, 4).tolist() == [2, 0, 1, 2]
    assert words.asked == [(1, (0, 1, 2, 3)), (5, (0, 3))]


@pytest.mark.parametrize("epsilon", [1e-3, 1e-5, 1e-7, 1e-9])
def test_information_at_small_budgets(epsilon: float) -> None:
    """Against the second-order expansion, in which the next term is smaller by a factor of epsilon;
    cancellation once left nothing."""
    prior = np.array([0.5, 0.3, 0.15, 0.05])
    k, squares = 4, float((prior**2).sum())
    mass = prior[:2].sum()
    laws = {
        RandomizedResponse(k, epsilon): (1 - squares) / (2 * k),
        RRTopK(k, epsilon, 2): (mass + mass**2 - 2 * float((prior[:2] ** 2).sum())) / 8,
        SubsetSelection(k, epsilon, 2): (1 - squares) / 6,
    }
    for law, wanted in laws.items():
        if law.name != "subset":  # whose information under a prior comes from the matrix
            assert law.information(prior) == pytest.approx(
                wanted * epsilon**2, rel=2 * epsilon + 1e-6
            )
    split = PriorSplit(k, epsilon)
    inside = split.outputs(prior)[0]
    share = prior[inside].sum()
    assert split.information(prior) == pytest.approx(
        share * (1 - share) / 2 * epsilon**2, rel=2 * epsilon + 1e-6
    )


@pytest.mark.parametrize("epsilon", [5e-324, 1e-320, 1e-308, 1e-100, 1e-60])
def test_tiny_epsilons_are_kept_or_refused(epsilon: float) -> None:
    """By our own error, wherever 64-bit words cannot honour them; a half of the classes against the
    other always can."""
    for cls in (
        RandomizedResponse,
        RRWithPrior,
        SubsetSelection,
        PriorSplit,
        AutoLaw,
        Alibi,
        ClusterRR,
    ):
        with contextlib.suppress(InvalidInput):
            assert cls(3, epsilon).exact_epsilon() <= epsilon
    with pytest.raises(InvalidInput, match="64-bit words can honour"):
        Alibi(3, epsilon)


@pytest.mark.parametrize(
    ("cls", "k"),
    [
        (RandomizedResponse, 2),
        (RandomizedResponse, 4),
        (SubsetSelection, 2),
        (SubsetSelection, 4),
        (PriorSplit, 3),
        (Threshold, 3),
        (SquareWave, 2),
        (SquareWave, 3),
        (BoundedLaplace, 2),
        (RROnBins, 2),
        (AutoLaw, 3),
    ],
)
def test_an_epsilon_at_which_outputs_tell_nothing_is_refused(cls: type[Law], k: int) -> None:
    """It would be charged, and every label would give the same outputs."""
    with pytest.raises(
        InvalidInput, match=r"64-bit words can honour|64 bits are too few|epsilon at which a number"
    ):
        cls(k, 1e-300)
    least = cls(k, 1e-8)
    assert least.uses_prior or 0 < least.exact_epsilon() <= 1e-8


@pytest.mark.parametrize("epsilon", [1e-5, 1e-8, 1e-12, 1e-15])
@pytest.mark.parametrize(("n_classes", "size"), [(4, None), (64, None), (64, 1), (64, 63)])
def test_the_weights_of_intervals_are_unbiased_at_a_tiny_epsilon(epsilon, n_classes, size):
    law = SquareWave(n_classes, epsilon, size=size)
    table = law.table({})
    weights = law.weights(pack_sets(table.outputs), {})
    words = [[int(table.values[i] * 2**64) for i in row] for row in table.index]
    # Differences of rows are exact whole numbers; in floats of the rows themselves they would be
    # lost.
    steps = (
        np.array(
            [[a - b for a, b in zip(upper, words[0], strict=True)] for upper in words[1:]], float
        )
        / 2.0**64
    )
    np.testing.assert_allclose(
        steps @ weights, np.eye(n_classes)[1:] - np.eye(n_classes)[0], atol=1e-6
    )
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-12 * np.abs(weights).max())
