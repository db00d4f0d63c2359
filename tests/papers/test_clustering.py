# SPDX-License-Identifier: Apache-2.0
"""ClusterRR and what it costs with its histogram: published vectors, the refuted theorem, and the
budget splitter."""

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq

import labeldp as ldp
from labeldp.laws import LAWS, ClusterRR, RandomizedResponse
from labeldp.laws._cluster import GRID, resampling_words
from labeldp.laws._exact import WORD, exp_floor
from labeldp.papers.esfandiari2022 import (
    ClusterBudget,
    corollary_1,
    corollary_2,
    histogram_epsilon,
    resampling_epsilon,
    smoothed,
    split_budget,
)
from labeldp.testing import CounterWords, check_law

VECTORS = json.loads((Path(__file__).parent.parent / "golden" / "vectors.json").read_text())


def fractions(row: list[str]) -> np.ndarray:
    return np.array([Fraction(x) for x in row], dtype=object)


@pytest.mark.parametrize("key", [f"clusterrr.{name}" for name in "ABCDE"])
def test_clipping_and_renormalisation(key: str) -> None:
    vector = VECTORS[key]
    counts = np.array([Fraction(c) for c in vector["counts"]], dtype=object)
    noisy = counts / counts.sum() + fractions(vector["noise"])
    found = smoothed(noisy, Fraction(vector["tau"]))
    assert (found == fractions(vector["qtilde"])).all()
    assert smoothed(noisy.astype(float)[None], float(Fraction(vector["tau"])))[0] == pytest.approx(
        found.astype(float), abs=1e-15
    )


def inverse_channel(q: np.ndarray, beta: float | Fraction) -> np.ndarray:
    """(I - beta q 1^T) / (1 - beta), of the channel that keeps with 1 - beta and else draws from q;
    columns are labels."""
    return (np.eye(len(q), dtype=int) - beta * q[:, None]) / (1 - beta)


def test_the_inverse_is_closed_and_its_norm_does_not_grow_with_the_classes() -> None:
    for key, q, beta in (
        ("clusterrr.Qinv.b1/2.q3/4", ["3/4", "1/4"], Fraction(1, 2)),
        ("clusterrr.Qinv.b1/4.q(.5,.3,.2)", ["1/2", "3/10", "1/5"], Fraction(1, 4)),
    ):
        inverse = inverse_channel(fractions(q), beta)
        assert inverse.tolist() == [fractions(row).tolist() for row in VECTORS[key]]
        channel = (1 - beta) * np.eye(len(q), dtype=int) + beta * fractions(q)[:, None]
        assert (channel @ inverse == np.eye(len(q), dtype=int)).all()
        norms = np.abs(inverse).sum(axis=0)
        assert norms.tolist() == [(1 + beta - 2 * beta * y) / (1 - beta) for y in fractions(q)]
    losses = fractions(["1", "0", "1/2"])
    inverse = inverse_channel(fractions(["1/2", "3/10", "1/5"]), Fraction(1, 4))
    assert (losses @ inverse).tolist() == fractions(VECTORS["clusterrr.modloss"]).tolist()
    bound = VECTORS["clusterrr.bound_compare.b.5.K10"]
    for q in (np.full(10, 0.1), np.array([0.91] + [0.01] * 9)):
        inverse = inverse_channel(q, 0.5)
        assert np.abs(inverse).sum(axis=0).max() <= bound["tight"] < bound["paper"]
        assert np.abs(np.array([1.0] + [0.0] * 9) @ inverse).max() <= bound["sup_loss"]


def laplace_tail(x: float, scale: float) -> float:
    return 0.5 * math.exp(-x / scale) if x >= 0 else 1 - 0.5 * math.exp(x / scale)


def above(threshold: float, shares: tuple[float, float], scale: float, tau: float) -> float:
    """P[q~_1 > threshold] for two classes: quadrature over the second noisy share of the law of the
    first."""

    def least(second: float) -> float:
        def value(first):
            return float(smoothed(np.array([first, second]), tau)[0]) - threshold

        return 1.0 if value(1.0) <= 0 else brentq(value, tau, 1.0, xtol=1e-15)

    def chance(second: float) -> float:
        first = least(second)
        return laplace_tail(first - shares[0], scale) if first < 1 else 0.0

    density = lambda second: math.exp(-abs(second - shares[1]) / scale) / (2 * scale)  # noqa: E731
    atom = laplace_tail(shares[1] - tau, scale)  # by symmetry: P[second <= tau]
    inner, _ = quad(
        lambda s: chance(s) * density(s),
        tau,
        0.6,
        points=[0.42, 0.45, shares[1]],
        epsabs=1e-20,
        epsrel=1e-10,
        limit=400,
    )
    return atom * chance(tau) + inner


@pytest.mark.parametrize("threshold", [0.55, 0.58])
def test_theorem_1_is_refuted_and_our_accounting_refuses_its_claim(threshold: float) -> None:
    """Two data sets that differ in one label; an event on the released distribution alone that
    exceeds the claim for everything."""
    reached = VECTORS[f"E1.exact.tau.4.qt1>{threshold}"]
    chances = [above(threshold, shares, 0.01, 0.4) for shares in ((0.5, 0.5), (0.49, 0.51))]
    assert chances == pytest.approx(reached[:2], rel=1e-3)
    observed = math.log(chances[0] / chances[1])
    assert observed == pytest.approx(reached[2], abs=1e-6)
    for rate in (0.9, 0.99):
        published = ClusterBudget.of(2, sigma=1.0, floor=0.4, resample=rate).published_epsilon
        assert published == pytest.approx(
            VECTORS[f"E1.paper_eps.lam{rate}.tau.4.sigma1"], rel=1e-12
        )
    budget = ClusterBudget.of(2, sigma=1.0, floor=0.4, resample=0.9)
    assert budget.published_epsilon < 1.3 < observed - 1e-5 < budget.epsilon
    assert budget.epsilon == pytest.approx(budget.published_epsilon + 1.0, rel=1e-12)
    with pytest.raises(ldp.InvalidInput, match="a replaced label changes two counts"):
        budget.require(budget.published_epsilon)
    assert budget.require(budget.epsilon) is budget


def test_the_histogram_alone_costs_two_over_sigma() -> None:
    """Both noises of a swap push the same way: the first count's at or above 0, the second's at or
    below; discrete noise, exactly."""
    vector = VECTORS["clusterrr.M1.counterexample"]
    here, there = 0.25, laplace_tail(1, 1.0) ** 2
    assert (here, there) == pytest.approx((vector["P_D"], vector["P_Dprime"]), rel=1e-12)
    assert math.log(here / there) == pytest.approx(vector["log_ratio"], abs=1e-12)
    assert histogram_epsilon(1.0) == vector["correct_eps"] == 2 * vector["paper_eps"]
    # e^(-1 / sigma) of discrete Laplace noise: P[noise = k] = (1 - d) / (1 + d) d^|k|
    decay = Fraction(1, 2)
    chance = lambda k: (1 - decay) / (1 + decay) * decay ** abs(k)  # noqa: E731
    ratios = [
        chance(i - 5) * chance(j - 5) / (chance(i - 4) * chance(j - 6))
        for i in range(12)
        for j in range(12)
    ]
    assert max(ratios) == decay**-2


def test_named_settings_cost_what_they_cost() -> None:
    for key, k, epsilon in (("cor1.eps1.K10", 10, 1.0), ("cor1.eps2.K2", 2, 2.0)):
        budget = corollary_1(k, epsilon)
        assert budget.resample == pytest.approx(VECTORS[key]["lam"], rel=1e-12)
        assert budget.epsilon == epsilon
        assert budget.law == ClusterRR.uniform(k, epsilon)
        assert budget.law.matrix()[0, 0] == pytest.approx(VECTORS[key]["rr"], rel=1e-12)
    vector = VECTORS["cor2.eps0.5.phi.05"]
    budget = corollary_2(10, 0.5, 0.05)
    assert budget.resample == pytest.approx(vector["lam"], rel=1e-12)
    assert (budget.sigma, budget.published_epsilon, budget.epsilon) == (
        2.0,
        vector["paper_total"],
        vector["correct_total"],
    )
    of = ClusterBudget.of(10, sigma=2.0, floor=0.05, resample=budget.resample)
    assert of.epsilon == pytest.approx(1.5, rel=1e-14)
    assert corollary_2(10, 0.5, 0.1).epsilon == 0.5


def test_the_uniform_floor_is_randomized_response_word_for_word() -> None:
    labels = np.arange(1000, dtype=np.int32) % 7
    for epsilon in (0.1, 1.0, 8.0):
        law, response = ClusterRR.uniform(7, epsilon), RandomizedResponse(7, epsilon)
        words = CounterWords(np.arange(1000, dtype=np.int64))
        assert law.prepare(np.random.default_rng(0).random((1000, 7))) == {}
        assert np.array_equal(law.sample(labels, words, {}), response.sample(labels, words, {}))
        assert (law.matrix(exact=True) == response.matrix(exact=True)).all()
        assert law.exact_epsilon({}) == response.exact_epsilon()
        assert law.information() == pytest.approx(response.information(), rel=1e-14)
        outputs = np.array([3], dtype=np.int32)
        assert np.allclose(
            law.log_likelihood(outputs, {}), response.log_likelihood(outputs, {}), rtol=1e-14
        )
        assert np.allclose(law.weights(outputs, {}), response.weights(outputs, {}), rtol=1e-12)


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 8.0, 60.0, 700.0])
@pytest.mark.parametrize("floor", [2.0**-32, 1e-5, 0.01, 0.12])
def test_no_share_of_the_least_class_exceeds_epsilon(epsilon: float, floor: float) -> None:
    """In whole numbers, for the least cell that a share can have: (kept + cell) / cell <= e^epsilon
    rounded down."""
    if epsilon < 1e-3 and floor < 1e-4:
        return
    for least in {max(1, int(floor * GRID)), int(0.12 * GRID)}:
        resampling = resampling_words(epsilon, least)
        cell = least * resampling // GRID
        assert resampling < WORD
        assert WORD - resampling + cell <= exp_floor(epsilon) * cell
        share = least / GRID
        assert resampling / WORD == pytest.approx(
            1 / (1 + share * math.expm1(epsilon)), rel=1e-6, abs=2 / (WORD * share)
        )


@given(
    st.integers(2, 12),
    st.floats(1e-3, 12.0),
    st.floats(1e-6, 1.0),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_the_running_sampler_stays_within_its_claim(
    k: int, epsilon: float, part: float, realised: bool, seed: int
) -> None:
    """Whole numbers of words, for any prior: they add up to 2^64, no class is below the floor, and
    no ratio is above e^epsilon."""
    law = ClusterRR(k, epsilon, min(max(part / k, 2.0**-32), 1.0 / k), realised)
    if law.is_uniform:
        return
    rng = np.random.default_rng(seed)
    side = law.prepare(
        rng.dirichlet(np.full(k, rng.choice([0.05, 0.5, 5.0])), 20) * rng.choice([1e-30, 1.0, 1e30])
    )
    kept, cells = law.cells(side, len(side["q"]))
    assert [int(a) + sum(int(c) for c in row) for a, row in zip(kept, cells, strict=True)] == [
        WORD
    ] * 20
    ceiling = exp_floor(epsilon)
    assert all(
        int(a) + int(row.min()) <= ceiling * int(row.min())
        for a, row in zip(kept, cells, strict=True)
    )
    assert (side["q"] >= int(law.floor * GRID)).all()
    if realised:
        once = ClusterRR(k, epsilon, law.floor, realised=False)
        assert (once.cells(side, len(kept))[0] <= kept).all()


@pytest.mark.parametrize(
    "prior",
    [[0.7, 0.2, 0.1, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 5.0], [0.4, 0.3, 0.2, 0.1]],
)
@pytest.mark.parametrize("realised", [True, False])
def test_matrix_is_the_formula(prior: list[float], realised: bool) -> None:
    law = ClusterRR(4, 1.2, 0.06, realised)
    q = smoothed(np.array(prior) / sum(prior), 0.06)
    share = min(q) if realised else 0.06
    rate = 1 / (1 + share * (math.e**1.2 - 1))
    wanted = (1 - rate) * np.eye(4) + rate * q
    assert np.allclose(law.matrix(prior), wanted, atol=2e-4 if realised else 1e-8)
    assert ldp.exact_epsilon(law.matrix(prior, exact=True)) <= 1.2
    assert law.exact_epsilon(law.side_row(prior)) == ldp.exact_epsilon(
        law.matrix(prior, exact=True)
    )
    by_matrix = super(ClusterRR, law)._information(
        np.array([prior]) / sum(prior), law.prepare(np.array([prior]))
    )
    assert law.information(prior) == pytest.approx(float(by_matrix[0]), rel=1e-10)


def test_randomized_response_tells_at_least_as_much_to_whoever_knows_the_distribution() -> None:
    """600 random priors, sizes and budgets: no floor below 1 / K beats it in information, which the
    documentation says."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        k, epsilon = int(rng.integers(2, 12)), float(rng.choice([0.05, 0.3, 1.0, 2.0, 4.0, 8.0]))
        prior = rng.dirichlet(np.full(k, rng.choice([0.2, 1.0, 5.0])))
        most = RandomizedResponse(k, epsilon).information(prior) * (1 + 1e-9) + 1e-12
        assert all(
            ClusterRR(k, epsilon, part / k).information(prior) <= most for part in (0.01, 0.5, 0.95)
        )


def test_any_beta_trades_bias_for_variance_as_computed() -> None:
    law, prior, losses = (
        ClusterRR(3, 1.0, 0.1),
        np.array([0.7, 0.2, 0.1]),
        np.array([1.0, 0.25, 0.5]),
    )
    outputs = np.arange(3, dtype=np.int32)
    side = law.prepare(np.tile(prior, (3, 1)))
    matrix, q = law.matrix(prior), side["q"][0] / GRID
    rate = float(law.resampling(side, 3)[0]) / WORD
    for beta in (None, 0.0, 0.3, rate, 0.95):
        b = rate if beta is None else beta
        weights = law.debiasing_weights(outputs, side, beta)
        assert np.allclose(weights, inverse_channel(q, b).T, atol=1e-8)
        bias = matrix @ weights @ losses - losses
        assert np.allclose(bias, (rate - b) / (1 - b) * (q @ losses - losses), atol=1e-8)
    with pytest.raises(ldp.InvalidInput, match="beta"):
        law.debiasing_weights(outputs, side, 1.0)


def test_noisy_labels_are_unbiased_and_survive_a_file(tmp_path: Path) -> None:
    """20,000 rows: the mean debiased loss is within 5 standard errors of the truth (false alarm
    below 1e-6)."""
    rng = np.random.default_rng(5)
    clusters = rng.integers(0, 4, 20_000)
    shares = np.array(
        [
            [0.8, 0.1, 0.05, 0.05],
            [0.1, 0.7, 0.1, 0.1],
            [0.0, 0.0, 0.5, 0.5],
            [0.25, 0.25, 0.25, 0.25],
        ]
    )
    labels = (rng.random(20_000)[:, None] > shares.cumsum(axis=1)[clusters]).sum(axis=1).clip(0, 3)
    law = ClusterRR(4, 1.0, 0.05)
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(4), noise=ldp.SeededNoise(1)),
        law,
        prior=shares[clusters],
    )
    losses = rng.random((20_000, 4))
    found, truth = noisy.debias(losses), losses[np.arange(20_000), labels]
    error = found - truth
    assert abs(error.mean()) < 5 * error.std() / math.sqrt(20_000)
    guess = ldp.metrics.accuracy(noisy, shares.argmax(axis=1)[clusters], confidence=0.999999)
    assert guess.low <= (labels == shares.argmax(axis=1)[clusters]).mean() <= guess.high
    assert (noisy.hard() == np.asarray(noisy.blocks[0].outputs)).all()
    noisy.save(tmp_path / "noisy.parquet")
    again = ldp.NoisyLabels.load(tmp_path / "noisy.parquet")
    assert np.array_equal(again.log_likelihood(), noisy.log_likelihood())
    assert again.blocks[0].law == law


def test_a_sampler_at_another_epsilon_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Louder(ClusterRR):
        name: ClassVar[str] = "planted"

        def sample(self, labels, words, side):
            return ClusterRR(self.n_classes, 1.3 * self.epsilon, self.floor, self.realised).sample(
                labels, words, side
            )

    monkeypatch.setitem(LAWS, "planted", Louder)
    with pytest.raises(AssertionError, match="words give"):
        check_law(Louder(3, 1.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClusterRR(4, 1.0, 0.26), "floors of all classes must fit"),
        (lambda: ClusterRR(4, 1.0, 0.0), "0 < floor"),
        (lambda: ClusterRR(4, 1.0, math.nan), "0 < floor"),
        (lambda: ClusterRR(4, 1e-15, 2.0**-32), "64-bit words can honour"),
        (lambda: ClusterRR(4, 1.0, realised="yes"), "True or False"),
        (lambda: ClusterRR(1, 1.0), "One class"),
        (lambda: ClusterRR(1 << 17, 1.0), "SubsetSelection"),
        (lambda: resampling_epsilon(0.1, 0.0), "as they are"),
        (lambda: ClusterBudget.of(4, sigma=1.0, floor=0.3, resample=0.5), "must fit"),
        (lambda: ClusterBudget.of(1, sigma=1.0, floor=0.3, resample=0.5), "One class"),
        (lambda: ClusterBudget.of(4, sigma=1.0, floor=0.0, resample=0.5), "Without a floor"),
        (
            lambda: ClusterBudget.of(4, sigma=1.0, floor=0.0, resample=1.0).law,
            "Expected lambda < 1",
        ),
        (
            lambda: ClusterBudget.of(4, sigma=1.0, floor=0.1, resample=1.0).law,
            "Expected lambda < 1",
        ),
        (lambda: ClusterBudget(3, -5.0, 0.1, 1.0), "histogram_epsilon >= 0, got -5.0"),
        (lambda: ClusterBudget(3, math.nan, 0.1, 1.0), "histogram_epsilon >= 0, got nan"),
        (lambda: ClusterBudget(3, True, 0.1, 1.0), "histogram_epsilon >= 0"),
        (lambda: ClusterBudget(3, 1.0, 0.1, -1.0), "0 < label_epsilon < inf"),
        (lambda: ClusterBudget(3, 1.0, 0.1, math.inf), "0 < label_epsilon < inf"),
        (lambda: ClusterBudget(3, 1.0, 0.1, math.nan), "0 < label_epsilon < inf"),
        (lambda: ClusterBudget(3, 1.0, 0.0, 1.0), "Without a floor"),
        (lambda: ClusterBudget(3, 1.0, 0.4, 1.0), "must fit"),
        (lambda: ClusterBudget(3, 1.0, -0.1, 0.0), "Without a floor"),
        (lambda: ClusterBudget(1, 1.0, 0.1, 1.0), "One class"),
        (lambda: histogram_epsilon(-1.0), "sigma >= 0"),
        (lambda: histogram_epsilon(math.nan), "sigma >= 0"),
        (lambda: smoothed([[math.nan, 1.0]], 0.1), "finite frequencies, got NaN"),
        (lambda: smoothed([math.nan, 1.0], 0.1), "finite frequencies, got NaN"),
        (lambda: smoothed([0.5, -math.inf], 0.1), "finite frequencies, got NaN or inf"),
        (lambda: smoothed([[1.0]], 0.1), "K >= 2"),
        (lambda: smoothed([[0.5, 0.5]], 0.6), "must fit"),
        (lambda: split_budget(1.0, [10, 0], 4, purity=0.1), "purity"),
        (lambda: split_budget(1.0, [0, 0], 4), "sizes"),
        (lambda: split_budget(1.0, [-1, 5], 4), "sizes"),
        (lambda: split_budget(math.inf, [5], 4), "epsilon"),
        (lambda: split_budget(1.0, [5], 100_000), "SubsetSelection"),
        (lambda: split_budget(1.0, [5], 4, criterion="luck"), "criterion"),
    ],
)
def test_bad_input(make, message: str) -> None:
    with pytest.raises(ldp.InvalidInput, match=message):
        make()


def test_ends_of_the_parameters() -> None:
    assert (
        histogram_epsilon(0.0)
        == ClusterBudget.of(4, sigma=0.0, floor=0.1, resample=0.5).epsilon
        == math.inf
    )
    assert histogram_epsilon(math.inf) == 0.0
    assert resampling_epsilon(0.0, 0.5) == math.inf
    assert resampling_epsilon(0.0, 1.0) == resampling_epsilon(0.1, 1.0) == 0.0
    assert ClusterBudget.of(4, sigma=0.0, floor=0.25, resample=0.5).histogram_epsilon == 0.0
    for floor in (0.0, 0.1):  # the clusters' distributions alone
        budget = ClusterBudget.of(4, sigma=4.0, floor=floor, resample=1.0)
        assert (budget.epsilon, budget.label_epsilon, budget.resample) == (0.5, 0.0, 1.0)


def test_a_changed_side_is_refused() -> None:
    law = ClusterRR(3, 1.0, 0.1)
    side = law.prepare(np.ones((5, 3)))
    words = CounterWords(np.arange(5, dtype=np.int64))
    for column, by in ((0, 5), (1, 1 << 31)):
        changed = side["q"].astype(np.int64)
        changed[2, column] -= by
        changed[2, 2] += by * (column == 1)
        with pytest.raises(ldp.InvalidInput, match="side was changed"):
            law.sample(np.zeros(5, dtype=np.int32), words, {"q": changed.astype(np.uint32)})


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0, 8.0])
@pytest.mark.parametrize("criterion", ["information", "agreement"])
def test_the_split_stays_within_its_budget_and_beats_the_named_settings(
    epsilon: float, criterion: str
) -> None:
    sizes = [600] * 90 + [0, 3]
    split = split_budget(epsilon, sizes, 10, purity=0.8, criterion=criterion)
    assert split.budget.require(epsilon).epsilon <= epsilon
    assert split.budget.law.epsilon == split.budget.label_epsilon
    assert split == split_budget(epsilon, np.array(sizes), 10, purity=0.8, criterion=criterion)
    assert getattr(split, criterion) >= getattr(
        split_budget(epsilon, [1], 10, purity=0.8, criterion=criterion), criterion
    )
    if criterion == "agreement":
        assert split.agreement >= RandomizedResponse(10, epsilon).matrix()[0, 0]


def test_the_prediction_is_what_happens() -> None:
    """200 clusters of 500 rows with real noise: agreement and information within 0.02 and 0.05 of
    the prediction."""
    split = split_budget(1.0, [500] * 200, 5, purity=0.6)
    budget, rng = split.budget, np.random.default_rng(7)
    shares = np.array([0.6, 0.1, 0.1, 0.1, 0.1])
    q = smoothed(shares + rng.laplace(scale=budget.sigma / 500, size=(200, 5)), budget.floor)
    law = budget.law
    agreement = np.mean([shares @ np.diag(law.matrix(row)) for row in q])
    posterior = [row[:, None] * law.matrix(row) / (row @ law.matrix(row)) for row in q]
    told = np.mean(
        [
            (shares[:, None] * law.matrix(row) * np.log(p)).sum()
            for row, p in zip(q, posterior, strict=True)
        ]
    )
    assert agreement == pytest.approx(split.agreement, abs=0.02)
    assert math.log(5) + told == pytest.approx(split.information, abs=0.05)
