# SPDX-License-Identifier: Apache-2.0
"""Histograms, votes and priors as values: published vectors, exact laws, what the samplers do, and
what is refused."""

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from labeldp.aggregates import Aggregate, Histogram, Query, Vote, query_from_dict
from labeldp.errors import InvalidInput
from labeldp.noise import _words as noise
from labeldp.receipt import Receipt

VECTORS = json.loads(
    (Path(__file__).parents[1] / "golden" / "vectors.json").read_text(encoding="utf-8")
)
FALSE_ALARM = 1e-6
TWO_LN_2 = 2 * math.log(2)


def words(n: int, seed: int = 0) -> noise.RowWords:
    key = noise.derive_key(
        noise.SeededNoise(seed).secret(), purpose="aggregate", facts={"test": "queries"}
    )
    return noise.RowWords(key, noise.row_blocks(n))


def draw(query: Query, counts: tuple[int, ...], times: int, seed: int = 0) -> np.ndarray:
    return query.release(
        np.tile(np.array(counts, np.int64), (times, 1)), words(times * len(counts), seed)
    )


# Laws of the votes, written down from their definitions in exact arithmetic; base = e^(epsilon / 2)
# ---------------------------------


def exponential(counts: tuple[int, ...], base: Fraction) -> list[Fraction]:
    weights = [base ** (count - max(counts)) for count in counts]
    return [weight / sum(weights) for weight in weights]


def permute_and_flip(counts: tuple[int, ...], base: Fraction) -> list[Fraction]:
    """All orders of the classes; each class in turn is taken with probability base^-(its gap)."""
    heads = [base ** (count - max(counts)) for count in counts]
    chances = [Fraction(0)] * len(counts)
    for order in itertools.permutations(range(len(counts))):
        left = Fraction(1, math.factorial(len(counts)))
        for k in order:
            chances[k] += left * heads[k]
            left *= 1 - heads[k]
    return chances


LAWS = {"exponential": exponential, "permute-and-flip": permute_and_flip}


@pytest.mark.parametrize(("mechanism", "key"), [("exponential", "EM"), ("permute-and-flip", "PF")])
def test_published_votes(mechanism: str, key: str) -> None:
    published = [Fraction(text) for text in VECTORS["pf.counts(3,1).base2"][key]]
    assert LAWS[mechanism]((3, 1), Fraction(2)) == published
    query = Vote(2, TWO_LN_2, 1, mechanism)
    assert query.failure([[2]])[0] == pytest.approx(float(published[1]), rel=1e-12)
    assert query.failure([[2]])[0] >= float(published[1]) * (1 - 1e-15)


@pytest.mark.parametrize("mechanism", list(LAWS))
@given(st.lists(st.integers(0, 6), min_size=2, max_size=4), st.data())
def test_one_changed_label_changes_no_vote_by_more_than_epsilon(
    mechanism: str, counts: list[int], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(counts) - 1))
    end = data.draw(st.integers(0, len(counts) - 1))
    counts[start] += 1
    other = list(counts)
    other[start] -= 1
    other[end] += 1
    base = Fraction(3, 2)
    one, two = LAWS[mechanism](tuple(counts), base), LAWS[mechanism](tuple(other), base)
    assert all(p <= base**2 * q for p, q in zip(one, two, strict=True))


@pytest.mark.parametrize("mechanism", list(LAWS))
@pytest.mark.parametrize("counts", [(3, 1), (5, 5, 4, 2), (0, 0, 0), (7, 0, 0, 0)])
def test_votes_that_run_have_their_law_and_no_other(
    mechanism: str, counts: tuple[int, ...]
) -> None:
    """Drawn with base 2 and, so that the test can fail, compared with base 3 too."""
    seen = np.bincount(
        draw(Vote(len(counts), TWO_LN_2, 1, mechanism), counts, 60_000), minlength=len(counts)
    )
    chances, wrong = (np.array(LAWS[mechanism](counts, Fraction(base)), float) for base in (2, 3))
    assert stats.chisquare(seen, chances * seen.sum()).pvalue > FALSE_ALARM
    if len(set(counts)) > 1:
        assert stats.chisquare(seen, wrong * seen.sum()).pvalue < FALSE_ALARM


def test_the_noisy_argmax_that_runs_has_its_law() -> None:
    """Two classes, a lead of 3: the other one wins where the difference of two draws is larger, and
    every other time where it is equal."""
    query = Vote(2, 0.5, 1, "gaussian", 1e-3)
    variance = float(query._variance(1))
    y = np.arange(-300, 301)
    law = np.exp(-(y**2) / (2 * variance))
    difference = np.convolve(law, law) / law.sum() ** 2
    loses = difference[600 + 4 :].sum() + difference[600 + 3] / 2
    lost = int(draw(query, (3, 0), 60_000).sum())
    assert stats.binomtest(lost, 60_000, loses).pvalue > FALSE_ALARM
    assert stats.binomtest(lost, 60_000, loses * 1.1).pvalue < FALSE_ALARM
    assert loses <= query.failure([[3]])[0] <= loses + difference[600 + 3]


def test_an_empty_group_gets_a_class_at_random() -> None:
    for mechanism, delta in (("exponential", 0.0), ("permute-and-flip", 0.0), ("gaussian", 1e-5)):
        seen = np.bincount(
            draw(Vote(4, 1.0, 1, mechanism, delta), (0, 0, 0, 0), 20_000), minlength=4
        )
        assert stats.chisquare(seen).pvalue > FALSE_ALARM


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.floats(1e-3, 5))
def test_permute_and_flip_fails_no_more_often_than_the_exponential_mechanism(
    gaps: list[int], epsilon: float
) -> None:
    flip, other = (
        Vote(len(gaps) + 1, epsilon, 1, mechanism).failure([gaps])[0]
        for mechanism in ("permute-and-flip", "exponential")
    )
    assert flip <= other * (1 + 1e-9) + 1e-13


class Equal:
    """Words that are equal at first, and then as they are written down: implements
    `labeldp.laws._exact.Words`."""

    def __init__(self, *then: int) -> None:
        self.then = np.array(then, np.uint64)

    def __len__(self) -> int:
        return len(self.then)

    def take(self, counter: int, rows: np.ndarray | None = None) -> np.ndarray:
        words = np.full(len(self), 7, np.uint64) if counter < 2 else self.then
        return words if rows is None else words[rows]

    def select(self, rows: np.ndarray) -> "Equal":
        return Equal(*self.then[rows])


def test_classes_with_equal_words_are_ordered_by_further_ones() -> None:
    """Of two groups with all counts alike, each takes the class that comes first; the class's
    number never decides."""
    found = Vote(3, 1.0, 2, "permute-and-flip").release(
        np.zeros((2, 3), np.int64), Equal(5, 3, 9, 8, 6, 2)
    )
    assert found.tolist() == [1, 2]


def test_failure_probabilities_are_those_of_the_laws() -> None:
    for counts in ((9, 7, 6, 0), (4, 4, 1), (20, 1, 1, 1, 1)):
        gaps = [[counts[0] - count for count in counts[1:]]]
        for mechanism, law in LAWS.items():
            exact = float(1 - law(counts, Fraction(2))[0])
            found = Vote(len(counts), TWO_LN_2, 1, mechanism).failure(gaps)[0]
            assert exact * (1 - 1e-14) <= found <= exact * (1 + 1e-9) + 1e-13


@pytest.mark.parametrize("n_classes", [2, 3, 10, 25, 26, 49, 60, 200])
def test_failure_of_permute_and_flip_is_the_integral_of_a_polynomial(n_classes: int) -> None:
    """Gauss and Legendre's rule of K / 2 + 1 points is exact for a polynomial of degree K - 1."""
    nodes, weights = np.polynomial.legendre.leggauss(n_classes // 2 + 1)
    gaps = np.random.default_rng(n_classes).integers(0, 12, (5, n_classes - 1))
    gaps[0], gaps[1] = 0, np.arange(n_classes - 1)
    kept = np.exp(-0.5 * gaps)
    exact = np.array(
        [1 - weights / 2 @ np.prod(1 - (nodes[:, None] + 1) / 2 * row, axis=1) for row in kept]
    )
    found = Vote(n_classes, 1.0, 5, "permute-and-flip").failure(gaps)
    assert (exact <= found).all()
    assert (found <= exact * (1 + 2.0**-40) + 2.0**-44 + 1e-14).all()  # as it is rounded up
    assert Vote(n_classes, 1.0, 1, "permute-and-flip").failure(gaps[:1]) == pytest.approx(
        [1 - 1 / n_classes], rel=1e-12
    )


@pytest.mark.parametrize("ties", [0, 1, 30, 5_000, 99_998])
def test_failure_among_a_hundred_thousand_classes(ties: int) -> None:
    """Some classes tie with the best, which comes first of them once in so many times; the others
    never stand a chance."""
    query = Vote(100_000, 1.0, 1, "permute-and-flip")
    gaps = np.where(np.arange(99_999) < ties, 0, 10**6)
    assert query.failure([gaps])[0] == pytest.approx(ties / (ties + 1), rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("lead", [0, 5, 20, 30])
def test_failure_where_all_of_a_hundred_thousand_classes_are_alike(lead: int) -> None:
    n, kept = 100_000, math.exp(-lead / 2)
    exact = 1 + math.expm1(n * math.log1p(-kept)) / (n * kept) if lead else 1 - 1 / n
    assert Vote(n, 1.0, 1, "permute-and-flip").failure(np.full((1, n - 1), lead))[
        0
    ] == pytest.approx(exact, rel=1e-10, abs=2e-13)


@pytest.mark.parametrize(("gap", "epsilon"), [(10, 0.5), (100, 0.05), (4000, 0.003)])
def test_published_failure_of_the_exponential_mechanism(gap: int, epsilon: float) -> None:
    published = VECTORS[f"em.gap{gap}.K10.eps{epsilon}"]
    assert 1 - Vote(10, epsilon, 1, "exponential").failure([[gap] * 9])[0] == pytest.approx(
        published, rel=1e-9
    )


def test_auto_takes_what_fails_less_often_and_is_charged_for_that() -> None:
    assert Vote(10, 0.5, 1).chosen() == "permute-and-flip"
    many, few = Vote(300, 0.003, 1, delta=1e-3), Vote(2, 0.5, 1, delta=1e-6)
    assert (many.chosen(), many.spent_delta()) == ("gaussian", 1e-3)
    assert (few.chosen(), few.spent_delta()) == ("permute-and-flip", 0.0)


# Histograms and priors
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("a", ["0.025", "0.5", "1.0"])
def test_published_laplace_noise(a: str) -> None:
    chance, _, _, variance = VECTORS[f"dlaplace.pmf0.a{a}"]
    query = Histogram(2, 2 * float(a), 1)
    assert query.scale() == Fraction(a)
    assert math.tanh(float(query.scale()) / 2) == pytest.approx(chance, rel=1e-12)
    assert query.standard_deviation() ** 2 == pytest.approx(variance, rel=1e-12)


def bins_are_apart(drawn: np.ndarray) -> bool:
    """No two bins of (g, K) draws move together, and none is shifted: 10 sigma."""
    deviation = max(drawn.std(), 1e-9)
    pairs = drawn[:, 1:] - drawn[:, :1]
    return bool(
        np.all(pairs.std(axis=0) > deviation)
        and np.abs(drawn.mean(axis=0)).max() < 10 * deviation / math.sqrt(len(drawn))
    )


def test_every_bin_has_noise_of_its_own() -> None:
    """Not as the algorithm is printed: `scipy.stats.dlaplace.rvs(a, K)` is one number for all bins,
    shifted by K."""
    ours = Histogram(10, 1.0, 300).release(np.zeros((300, 10), np.int64), words(3000))
    rng = np.random.default_rng(0)
    printed = np.array([stats.dlaplace.rvs(0.5, 10, random_state=rng) for _ in range(300)])
    assert printed.shape == (300,)
    meant = stats.dlaplace.rvs(0.5, size=(300, 10), random_state=rng)
    assert bins_are_apart(ours)
    assert bins_are_apart(meant)
    assert not bins_are_apart(np.repeat(printed[:, None], 10, axis=1))


@pytest.mark.parametrize("rows", [1, 2])
def test_the_odds_that_run_change_by_epsilon(rows: int) -> None:
    """Counts (6, 4) against (5, 5), and (7, 3) for a unit of two rows: of all events, this one is
    likelier by e^epsilon exactly."""
    query, times = Histogram(2, 1.0, 1), 400_000
    seen = []
    for seed, counts in enumerate([(5 + rows, 5 - rows), (5, 5)]):
        drawn = query.release(np.tile(np.array(counts), (times, 1)), words(2 * times, seed), rows)
        seen.append(int(np.sum((drawn[:, 0] >= 5 + rows) & (drawn[:, 1] <= 5 - rows))))
    error = 5.5 * math.sqrt(sum(1 / count - 1 / times for count in seen))
    assert abs(math.log(seen[0] / seen[1]) - 1.0) < error < 0.25


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_a_unit_of_many_rows_gets_noise_for_all_of_them(mechanism: str) -> None:
    query = Histogram(3, 0.9, 1, mechanism, 0.0 if mechanism == "laplace" else 1e-6)
    ratio = query.standard_deviation(3) / query.standard_deviation()
    assert query.scale(3) == query.scale() / 3 if mechanism == "laplace" else 3 < ratio < 4.5


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 1.0, 30.0, 700.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-12, 0.5])
def test_noise_for_as_many_rows_as_a_unit_may_have_is_drawn(epsilon: float, delta: float) -> None:
    pure, noisy = Histogram(2, epsilon, 1), Histogram(2, epsilon, 1, "gaussian", delta)
    most = math.floor(Fraction(epsilon) * 2**46)
    assert pure.require_cap(most) == noisy.require_cap(most) == most
    for query in (pure, noisy):
        assert np.abs(query.release(np.zeros((1, 2), np.int64), words(2), most)).max() > 2**20
        for cap in (most + 10, 0, -1, 2.0, True):
            with pytest.raises(InvalidInput, match="max_rows_per_unit"):
                query.require_cap(cap)


def answer(values: list[list[int]], n_rows: list[int], epsilon: float = 700.0) -> Aggregate:
    query = Histogram(len(values[0]), epsilon, len(values))
    receipt = Receipt("0" * 32, "d", "y", "row", 1, 1.0)
    return Aggregate(
        query, np.array(values), np.array(n_rows), tuple(range(len(values[0]))), receipt
    )


def test_priors_of_rows_follow_their_groups() -> None:
    """By hand: from counts of 6 rows, 1 too many each is taken off; to those of 4 rows, 2.5 each is
    added; what is below 0 then is 0."""
    found = answer([[5, -2, 3], [-1, -4, 0], [9, 0, 0]], [6, 4, 0])
    first, second = [2 / 3, 0, 1 / 3], [3 / 8, 0, 5 / 8]
    np.testing.assert_allclose(
        found.prior([1, 0, 2, 0]), [second, first, [1 / 3] * 3, first], atol=1e-12
    )
    assert found.codes().tolist() == [0, 2, 0]
    noisy = answer([[5, -2, 3]], [6], epsilon=1.0)
    # of a histogram
    doubt = (noisy.query.standard_deviation() / 6) ** 2
    np.testing.assert_allclose(noisy.prior([0]), [(1 - doubt) * np.array(first) + doubt / 3])


@pytest.mark.parametrize("name", sorted(name for name in VECTORS if name.startswith("sslprior.")))
def test_where_the_positive_counts_add_up_the_prior_is_the_published_one(name: str) -> None:
    counts = json.loads(name.removeprefix("sslprior."))
    found = answer([counts], [sum(count for count in counts if count > 0)]).prior([0])[0]
    assert found.tolist() == pytest.approx(
        [float(Fraction(text)) for text in VECTORS[name]], abs=1e-12
    )


@pytest.mark.parametrize(
    "groups",
    [[0, 3], [-1], [0.0, 1.0], [[0]], np.ma.masked_array([0, 1], [False, True]), [None, 1], ["a"]],
)
def test_groups_that_are_none_are_refused(groups: object) -> None:
    with pytest.raises(InvalidInput, match=r"groups in|whole number|masked array"):
        answer([[1, 2], [3, 4], [5, 6]], [1, 1, 1]).prior(groups)


# What is not a query
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"n_classes": 1}, "n_classes"),
        ({"n_groups": 0}, "n_groups"),
        ({"n_groups": 2.5}, "n_groups"),
        ({"n_groups": 1 << 31}, "counts"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": 1e-9}, "epsilon"),
        ({"delta": 1e-5}, "pure"),
        ({"delta": math.nan}, "delta"),
        ({"mechanism": "gaussian"}, "delta > 0"),
        ({"mechanism": "gaussian", "delta": 1.0}, "delta"),
        ({"mechanism": "gauss"}, "Did you mean 'gaussian'"),
    ],
)
@pytest.mark.parametrize("kind", [Histogram, Vote])
def test_what_is_no_query_is_refused(
    kind: type[Query], facts: dict[str, object], named: str
) -> None:
    if kind is Vote and named == "pure":
        facts |= {"mechanism": "exponential"}
    with pytest.raises(InvalidInput, match=named):
        kind(**({"n_classes": 3, "epsilon": 1.0, "n_groups": 4} | facts))


@pytest.mark.parametrize(
    "query",
    [
        Histogram(3, 0.1, 4),
        Histogram(3, 0.1, 4, "gaussian", 1e-6),
        Vote(5, 0.1, 4),
        Vote(5, 2.0, 1, delta=1e-6),
    ],
)
def test_json_form_is_read_back(query: Query) -> None:
    assert query_from_dict(json.loads(json.dumps(query.to_dict()))) == query


def test_json_form_is_kept() -> None:
    """What one release wrote, every later one reads."""
    text = (
        '{"query":"histogram","n_classes":3,"epsilon":0.1,"n_groups":4,"mechanism":"laplace",'
        '"delta":0.0}'
    )
    assert query_from_dict(json.loads(text)) == Histogram(3, 0.1, 4)
    assert Histogram(3, 0.1, 4).to_dict() == json.loads(text)


@pytest.mark.parametrize(
    "data",
    [{"query": "median"}, {}, None, {**Vote(2, 1.0, 1).to_dict(), "weights": 1}, {"query": "vote"}],
)
def test_unknown_queries_are_refused(data: object) -> None:
    with pytest.raises(InvalidInput, match=r"newer labeldp|epsilon=None"):
        query_from_dict(data)


@pytest.mark.parametrize("gaps", [[[1]], [1, 2], [[1.0, 2.0]], [[-1, 2]]])
def test_leads_that_are_none_are_refused(gaps: object) -> None:
    with pytest.raises(InvalidInput, match="leads"):
        Vote(3, 1.0, 1).failure(gaps)
