# SPDX-License-Identifier: Apache-2.0
"""Convex methods on released labels: their vectors against published values, their gradients, what
they learn, and the published bounds."""

import json
import math
import warnings
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize as scipy_minimize
from scipy.special import log_softmax
from scipy.stats import binom, chi2, norm

import labeldp as ldp
from labeldp.aggregates import FeatureSums, Histogram
from labeldp.aggregates._gaussian import analytic_delta, analytic_sigma
from labeldp.errors import InvalidInput
from labeldp.papers.esfandiari2022 import association_limit
from labeldp.papers.ghazi2021 import (
    Problem,
    erm_lower_bound,
    excess_risk,
    generalisation_gap,
    label_vectors,
    local_lower_bound,
    minimise,
    sco_lower_bound,
    second_moment,
    sgd,
)

VECTORS = json.loads(
    (Path(__file__).parent.parent / "golden" / "vectors.json").read_text(encoding="utf-8")
)
FALSE_ALARM = 1e-6


def every_output(law: ldp.Law, prior: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The vector of each output, (outputs, K), and the law's matrix."""
    outputs = law.outputs(prior)
    codes = (
        np.asarray(outputs, np.int32)
        if outputs.ndim == 1
        else np.packbits(outputs, axis=1, bitorder="little")
    )
    side = law.prepare(np.tile(np.ones(law.n_classes) if prior is None else prior, (len(codes), 1)))
    noisy = ldp.NoisyLabels.from_labels(
        np.zeros(len(codes), int), ldp.RandomizedResponse(law.n_classes, 1.0)
    )
    block = replace(noisy.blocks[0], law=law, outputs=codes, side=side)
    return label_vectors(replace(noisy, blocks=(block,))), law.matrix(prior)


# Label vectors
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["debias.E3k2", "debias.E3k4", "debias.E2k3"])
@pytest.mark.parametrize("more", [0, 3])
def test_published_debiased_losses(key: str, more: int) -> None:
    """By randomized response, and by RRTop-k with classes that are no candidates: equation 17."""
    E, k = (int(part) for part in key[len("debias.E") :].split("k"))
    published = {
        name: [float(Fraction(v)) for v in VECTORS[key][name]] for name in ("l", "ltilde", "var")
    }
    wide = np.array([*published["l"], *[99.0] * more])
    law = ldp.RRTopK(k + more, math.log(E), k) if more else ldp.RandomizedResponse(k, math.log(E))
    vectors, matrix = every_output(law, np.r_[np.ones(k), np.zeros(more)] if more else None)
    debiased = vectors @ wide
    assert debiased == pytest.approx(published["ltilde"], rel=1e-12)
    mean = matrix[:k] @ debiased
    assert mean == pytest.approx(wide[:k], rel=1e-12)
    assert matrix[:k] @ np.square(debiased) - mean**2 == pytest.approx(published["var"], rel=1e-12)
    if more:  # a label outside: the mean over the candidates
        assert matrix[k:] @ debiased == pytest.approx(np.full(more, wide[:k].mean()), rel=1e-12)


@pytest.mark.parametrize(("epsilon", "K"), [(0.5, 2), (1.0, 2), (1.0, 10)])
def test_published_norms_of_the_gradient(epsilon: float, K: int) -> None:
    """The longest gradient of equation 7 is L (E + 2 K - 3) / (E - 1), where the proof of Theorem 9
    has up to 4 K L / epsilon."""
    published = VECTORS[f"lprrsgd.norm.eps{epsilon:g}.K{K}"]
    vectors, _ = every_output(ldp.RandomizedResponse(K, epsilon))
    longest = np.abs(vectors).sum(axis=1).max()  # of class gradients that are equal or opposite
    assert longest == pytest.approx(published["exact"], rel=1e-12)
    assert longest < published["paper_4K_over_eps"] == 4 * K / epsilon


LAWS = [
    ldp.RandomizedResponse(5, 1.0),
    ldp.SubsetSelection(5, 0.7),
    ldp.SubsetSelection(6, 1.5, size=2),
    ldp.RandomizedResponse(2, 0.5),
]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_vectors_are_unbiased_and_sum_to_1(law: ldp.Law) -> None:
    vectors, matrix = every_output(law)
    np.testing.assert_allclose(vectors.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(matrix @ vectors, np.eye(law.n_classes), atol=1e-12)


@pytest.mark.parametrize(
    "prior", [[0.5, 0.4, 0.05, 0.05], [0.25, 0.25, 0.25, 0.25], [0.4, 0.3, 0.3, 0.0]]
)
def test_candidates_chosen_by_the_prior(prior: list[float]) -> None:
    """RRWithPrior: unbiased for the candidates, their mean for other labels, whatever their
    number."""
    law = ldp.RRWithPrior(4, 1.0)
    inside = np.isin(np.arange(4), law.outputs(prior))
    vectors, matrix = every_output(law, np.array(prior))
    np.testing.assert_allclose(matrix[inside] @ vectors, np.eye(4)[inside], atol=1e-12)
    np.testing.assert_allclose(
        matrix[~inside] @ vectors, np.tile(inside / inside.sum(), ((~inside).sum(), 1)), atol=1e-12
    )


def test_normal_vectors_have_noise_in_the_differences_alone() -> None:
    """LP-Normal-SGD: mean one-hot, K - 1 dimensions, and the variance that was charged for; with
    1.1 times it the test rejects."""
    n, K = 20_000, 4
    labels = np.arange(n) % K
    query = Histogram(K, 1.0, n, "gaussian", 1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = ldp.aggregate(
            ldp.PrivateLabels(labels, classes=range(query.n_classes), noise=ldp.SeededNoise(5)),
            query,
            np.arange(n),
        )
    noise = label_vectors(answer) - np.eye(K)[labels]
    np.testing.assert_allclose(noise.sum(axis=1), 0, atol=1e-9)
    variance = float(query.scale())
    z = noise.mean(axis=0) / math.sqrt(variance * (1 - 1 / K) / n)
    assert np.abs(z).max() < norm.isf(FALSE_ALARM / 2 / K)
    square = np.square(noise).sum() / variance

    def tail(value):
        return 2 * min(chi2.cdf(value, n * (K - 1)), chi2.sf(value, n * (K - 1)))

    assert tail(square) > FALSE_ALARM > tail(square / 1.1)


@pytest.mark.parametrize(("epsilon", "published"), [(0.5, 14.0636), (1.0, 7.46126), (2.0, 3.98762)])
def test_published_noise_of_gradients_is_twice_that_of_vectors(
    epsilon: float, published: float
) -> None:
    """For class gradients of length L the paper's sensitivity is 2 L; a one-hot vector moves by
    sqrt(2), so a gradient of length L gets at most half the variance in each direction."""
    assert analytic_sigma(epsilon, 1e-5, 2.0) == pytest.approx(published, rel=1e-5)
    vector = math.sqrt(float(Histogram(10, epsilon, 1, "gaussian", 1e-5).scale()))
    assert vector == pytest.approx(published / math.sqrt(2), rel=1e-3)


@pytest.mark.parametrize("constant", [1.0, 10.0, 1000.0])
def test_no_constant_makes_algorithm_6_private_for_every_delta(constant: float) -> None:
    """Proposition 11, sigma = C L sqrt(ln(1 / delta)) / epsilon "for delta in (0, 1)": whatever C,
    too little as delta nears 1."""
    epsilon = 0.5
    delta = 1 - min(1e-12, 1e-6 / constant**2)
    sigma = constant * math.sqrt(math.log(1 / delta)) / epsilon
    assert analytic_delta(sigma, epsilon, 2.0) > delta


def test_a_sensitivity_of_one_gradient_is_not_enough() -> None:
    """Noise for L instead of 2 L, at (1, 1e-5): the true delta is a thousand times the claimed
    one."""
    assert analytic_delta(analytic_sigma(1.0, 1e-5, 1.0), 1.0, 2.0) > 1e-2


# Learning
# --------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(1)
N, D, K = 3000, 4, 3
X = RNG.normal(size=(N, D))
TRUE = RNG.normal(size=(D, K)) * 2
Y = np.array([RNG.choice(K, p=p) for p in np.exp(log_softmax(X @ TRUE, axis=1))])
ONE_HOT = np.eye(K)[Y]


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize("radius", [0.5, 50.0])
def test_the_minimum_over_the_ball(loss: str, radius: float) -> None:
    """Against scipy: no feasible direction goes down, inside the ball and on its surface."""
    problem = Problem(loss, radius=radius, norm=10.0)
    found = minimise(X, X.T @ ONE_HOT, problem, steps=400)
    free = scipy_minimize(
        lambda w: problem.risk(X, ONE_HOT, w.reshape(D, K)) + 1e-12 * w @ w, np.zeros(D * K)
    ).fun
    risk = problem.risk(X, ONE_HOT, found)
    if radius == 50.0:
        assert risk == pytest.approx(free, abs=1e-5)
        return
    assert np.linalg.norm(found) == pytest.approx(radius)
    gradient = X.T @ (problem.fitted(X @ found) - ONE_HOT) / N
    # it points straight out of the ball
    assert np.vdot(gradient, found) == pytest.approx(-np.linalg.norm(gradient) * radius, rel=1e-6)
    assert risk > free


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_one_pass_keeps_its_bound(loss: str, last: bool) -> None:
    """On true labels, where the second moment is 1: the mean excess risk over shuffled passes is
    far below the bound."""
    problem = Problem(loss, radius=2.0, norm=2.0)
    best = problem.risk(X, ONE_HOT, minimise(X, problem.rows(X).T @ ONE_HOT, problem))
    # independent rows of this table's own distribution
    orders = [np.random.default_rng(seed).integers(0, N, N) for seed in range(3)]
    excess = (
        np.mean(
            [
                problem.risk(X, ONE_HOT, sgd(X[o], ONE_HOT[o], problem, 1.0, last=last))
                for o in orders
            ]
        )
        - best
    )
    law = ldp.RandomizedResponse(K, 40.0)
    assert second_moment(law) == pytest.approx(1, rel=1e-9)
    assert 0 < excess < excess_risk(law, problem, N, output="last" if last else "average")


@pytest.mark.parametrize(
    "law",
    [ldp.RandomizedResponse(K, 1.0), ldp.SubsetSelection(K, 0.5), ldp.RRTopK(K, 1.0, 2)],
    ids=str,
)
def test_one_pass_over_released_labels_keeps_its_bound(law: ldp.Law) -> None:
    """RRTopK with a prior that favours the true class: Corollary 10 with the share of labels
    outside, which is known here."""
    problem, prior = Problem("logistic", radius=2.0, norm=2.0), ONE_HOT * 2 + RNG.random((N, K))
    best = problem.risk(X, ONE_HOT, minimise(X, problem.rows(X).T @ ONE_HOT, problem))
    excess = []
    for seed in range(3):
        rows = np.random.default_rng(seed).integers(0, N, N)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            noisy = ldp.privatize(
                ldp.PrivateLabels(Y[rows], classes=range(K), noise=ldp.SeededNoise(seed)),
                law,
                prior=prior[rows] if law.uses_prior else None,
            )
        excess.append(
            problem.risk(
                X, ONE_HOT, sgd(X[rows], label_vectors(noisy), problem, second_moment(law))
            )
            - best
        )
    assert 0 < np.mean(excess) < excess_risk(law, problem, N, outside=0.0)


def test_a_model_is_learned_from_one_release_of_sums() -> None:
    problem, query = (
        Problem("logistic", radius=20.0, norm=3.0),
        FeatureSums(K, 1.0, D, delta=1e-6, norm=3.0),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = ldp.aggregate(
            ldp.PrivateLabels(Y, classes=range(query.n_classes), noise=ldp.SeededNoise(0)), query, X
        )
    private, public = (
        minimise(X, sums, problem)
        for sums in (query.sums(answer.values), problem.rows(X).T @ ONE_HOT)
    )
    agree = np.mean((X @ private).argmax(axis=1) == (X @ public).argmax(axis=1))
    assert 0.9 < agree <= 1


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: Problem("hinge", 1.0), "loss"),
        (lambda: Problem("logistic", 0.0), "radius"),
        (lambda: Problem("logistic", 1.0, norm=math.inf), "norm"),
        (lambda: label_vectors(Y), "NoisyLabels"),
        (
            lambda: label_vectors(
                ldp.aggregate(
                    ldp.PrivateLabels(Y, classes=range(K)), Histogram(K, 1.0, 1), np.zeros(N, int)
                )
            ),
            "one row in each group",
        ),
        (
            lambda: label_vectors(
                ldp.privatize(
                    ldp.PrivateLabels(Y, classes=range(K)),
                    ldp.PriorSplit(K, 1.0),
                    prior=np.ones((N, K)) + np.arange(K),
                )
            ),
            "others",
        ),
        (lambda: sgd(X, ONE_HOT[:5], Problem("logistic", 1.0), 1.0), "3000 rows"),
        (lambda: sgd(X, 2 * ONE_HOT, Problem("logistic", 1.0), 1.0), "sum to 1"),
        (lambda: sgd(X * np.nan, ONE_HOT, Problem("logistic", 1.0), 1.0), "finite"),
        (lambda: minimise(X, ONE_HOT, Problem("logistic", 1.0)), "sums of shape"),
        (lambda: second_moment(ldp.PriorSplit(3, 1.0)), "subset selection"),
        (
            lambda: excess_risk(
                ldp.RandomizedResponse(3, 1.0), Problem("logistic", 1.0), 10, outside=1.5
            ),
            "outside",
        ),
        (lambda: association_limit(10, 10, 1.0), "fewer rows"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_bad_input_is_refused(ask: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ask()


# Bounds
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "law",
    [*LAWS, ldp.SubsetSelection(3, 0.5), ldp.RandomizedResponse(3, 3.0), ldp.RRTopK(5, 1.0, 3)],
    ids=str,
)
def test_the_second_moment_is_the_largest_there_is(law: ldp.Law) -> None:
    """A search over class gradients of length 1 reaches it, and no more."""
    k = getattr(law, "k", law.n_classes)
    prior = np.r_[np.ones(k), np.zeros(law.n_classes - k)] if k < law.n_classes else None
    vectors, matrix = every_output(law, prior)
    M = ((vectors * matrix[0][:, None]).T @ vectors)[:k, :k]

    def below(flat: np.ndarray) -> float:
        g = flat.reshape(k, k)
        g = g / np.linalg.norm(g, axis=1, keepdims=True)
        return -float(np.sum((M @ g) * g))

    found = max(
        -scipy_minimize(below, np.random.default_rng(seed).normal(size=k * k)).fun
        for seed in range(4)
    )
    assert found == pytest.approx(second_moment(law), rel=1e-6)


def test_the_second_moment_of_gaussian_vectors() -> None:
    query = Histogram(4, 1.0, 1, "gaussian", 1e-5)
    s = float(query.scale())
    M = np.diag([1.0, 0, 0, 0]) + s * (np.eye(4) - 0.25)

    def below(flat: np.ndarray) -> float:
        g = flat.reshape(4, 4)
        g = g / np.linalg.norm(g, axis=1, keepdims=True)
        return -float(np.sum((M @ g) * g))

    found = max(
        -scipy_minimize(below, np.random.default_rng(seed).normal(size=16)).fun for seed in range(4)
    )
    assert found == pytest.approx(second_moment(query), rel=1e-6)


def test_subset_selection_grows_with_the_classes_and_randomized_response_with_their_square() -> (
    None
):
    """O(sqrt(K) / (epsilon sqrt(n))) and O(sqrt(K / (e^epsilon n))) against O(K / (epsilon
    sqrt(n)))."""
    for epsilon in (0.1, 0.5, 1.0):
        for K in (10, 100, 1000):
            assert second_moment(ldp.SubsetSelection(K, epsilon)) < 5 * K / epsilon**2
            assert (
                K**2 / (3 * epsilon**2)
                < second_moment(ldp.RandomizedResponse(K, epsilon))
                < 36 * K**2 / epsilon**2
            )
    for epsilon in (2.0, 4.0, 6.0):
        assert second_moment(ldp.SubsetSelection(1000, epsilon)) < 12 * 1000 / math.exp(epsilon)


def test_the_published_gradient_moment_is_wrong_above_its_range() -> None:
    """Theorem 9 is for epsilon in (0, 1): its 36 K^2 / epsilon^2 falls below 1, which no unbiased
    gradient can."""
    K, epsilon = 2, 20.0
    assert 36 * K**2 / epsilon**2 < 1 <= second_moment(ldp.RandomizedResponse(K, epsilon))


def test_the_local_bound_excludes_the_order_of_an_abstract() -> None:
    """arXiv 2605.10200 as its abstract has it, sqrt(K / (epsilon n)) for epsilon <= 1: with two
    classes the lower bound over it grows without limit as epsilon falls, while over sqrt(K) /
    (epsilon sqrt(n)) it stays."""
    n = 10**8
    found = np.array([local_lower_bound(n, epsilon) for epsilon in (1.0, 0.1, 0.01, 0.001)])
    claimed, other = np.array(
        [(math.sqrt(2 / (e * n)), math.sqrt(2 / n) / e) for e in (1.0, 0.1, 0.01, 0.001)]
    ).T
    assert (np.diff(found / claimed) > 0).all()
    assert found[-1] / claimed[-1] > 7 > 25 * found[0] / claimed[0]
    assert np.ptp(found / other) < 0.05 * (found / other).mean() + 0.02
    unit = Problem("logistic", radius=0.5, norm=0.5**0.5)  # D = L = 1
    assert (
        found
        < [excess_risk(ldp.RandomizedResponse(2, e), unit, n) for e in (1.0, 0.1, 0.01, 0.001)]
    ).all()


def test_the_local_bound_is_the_best_test_between_two_tables() -> None:
    """n = 3, all tables enumerated, at the t that the formula allows to be largest."""
    epsilon, found = 0.8, 0.0
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    for t in np.linspace(0.01, 0.5, 200):
        p = (0.5 + t) * keep + (0.5 - t) * (1 - keep)
        found = max(found, 2 * t * float(binom.cdf(1, 3, p)))
    assert 0.97 * found < local_lower_bound(3, epsilon) <= found * (1 + 1e-3)
    assert local_lower_bound(3, epsilon, lipschitz=2.0, diameter=5.0) == pytest.approx(
        10 * local_lower_bound(3, epsilon)
    )


def test_lower_bounds_of_empirical_and_population_risk() -> None:
    """Proposition 13 at m = 1, Lemma 15 as 1 / sqrt(epsilon n), Proposition 12 below both."""
    n = 10_000
    e = 1.0
    once = (1 - math.sqrt(math.exp(e) / (math.exp(e) + 1))) / (2 * math.sqrt(n))
    assert erm_lower_bound(n, e) >= once
    assert erm_lower_bound(1, e) == pytest.approx(
        (1 - math.sqrt(math.exp(e) / (math.exp(e) + 1))) / 2
    )
    small = [erm_lower_bound(10**6, e) * math.sqrt(e) for e in (0.1, 0.01, 0.001)]
    assert np.ptp(small) < 0.05 * small[0]
    assert erm_lower_bound(n, 1.0, 0.5) < erm_lower_bound(n, 1.0, 1e-6)
    assert 0 < sco_lower_bound(n, 0.1, 1e-30) < erm_lower_bound(n, 0.1, 1e-30)
    assert sco_lower_bound(n, 0.1, 0.4) == 0
    # every method's upper bound is above: the squared ball of Proposition 13 has D = 2 radius, L =
    # 1
    problem = Problem("logistic", radius=0.5, norm=0.5**0.5)
    assert sco_lower_bound(n, 0.1, 0.0) < excess_risk(ldp.RandomizedResponse(2, 0.1), problem, n)


def test_theorem_17_with_the_range_of_the_loss() -> None:
    """One hypothesis, two classes, all labels as predicted: the printed bound fails in 84 % of
    draws, the corrected one in 0.5 %."""
    n, epsilon, beta, E = 100, 0.1, 0.05, math.exp(0.1)
    corrected = generalisation_gap(n, 2, epsilon, complexity=0.0, beta=beta)
    printed = math.sqrt(math.log(2 / beta) / (2 * n))
    R = (E + 1) / (E - 1)
    flips = np.arange(n + 1)
    law, off = binom.pmf(flips, n, 1 / (E + 1)), np.abs(R * (flips / n - 1 / (E + 1)))
    assert law[off > printed].sum() == pytest.approx(
        VECTORS["thm17.eps0.1.n100"]["actual_fail_prob"], rel=1e-9
    )
    assert law[off > corrected].sum() == pytest.approx(
        VECTORS["thm17.eps0.1.n100"]["fail_prob_with_range"], rel=1e-9
    )
    published = VECTORS["thm17.eps0.1.n100"]
    assert printed == pytest.approx(published["claimed_dev"], rel=1e-12)
    assert pytest.approx(published["range"], rel=1e-12) == R
    assert corrected == pytest.approx(R * printed)
    assert generalisation_gap(n, 1, epsilon, complexity=0.1, outside=0.2) == pytest.approx(
        0.2 + 0.2 + printed
    )  # k = 1: nothing is debiased
    assert generalisation_gap(n, 2, epsilon, complexity=0.1) - corrected == pytest.approx(0.2 * R)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_bounds_hold_at_every_epsilon(delta: float) -> None:
    assert generalisation_gap(100, 1, 800.0, complexity=0.1) == pytest.approx(
        generalisation_gap(100, 9, 800.0, complexity=0.1)
    )
    assert generalisation_gap(100, 2, 1e-17, complexity=0.1) > 1e15
    assert (
        0
        <= erm_lower_bound(100, 800.0, delta)
        <= erm_lower_bound(100, 20.0, delta)
        < erm_lower_bound(100, 1e-17, delta)
    )


def test_the_lipschitz_constant_of_lemma_19_is_that_of_its_extremes() -> None:
    vectors, _ = every_output(ldp.RandomizedResponse(4, 1.0))
    E = math.e
    assert np.abs(vectors).sum(axis=1).max() == pytest.approx((E + 2 * 4 - 3) / (E - 1))
    assert (E + 2 * 4 - 3) / (E - 1) < (E + 2 * 4 - 1) / (E - 1)


def test_the_association_limit_is_reached_by_single_rows_and_below_the_published_one() -> None:
    for K in (2, 10, 1000):
        for epsilon in (0.1, 1.0, 4.0):
            # names the released class: right with the probability that it is kept
            law = ldp.RandomizedResponse(K, epsilon)
            assert association_limit(K, 1, epsilon) == pytest.approx(
                law.inclusion(np.zeros(1, np.int32), {})[0][0]
            )
    for s in (1, 10, 50):
        assert association_limit(100, s, 1.0) < association_limit(100, s, 1.0, published=True)
    assert association_limit(100, 99, 1.0, published=True) == 1
    assert association_limit(100, 50, 1000.0) == pytest.approx(1)


def test_the_association_limit_holds_for_a_noisy_histogram() -> None:
    """Clusters of 2 rows, 6 classes, discrete Laplace noise at epsilon 1, a class is named if its
    count is at least c: exact precision."""
    K, s, epsilon = 6, 2, 1.0
    a = epsilon / 2

    def tail(m: int) -> float:
        if m >= 0:
            return math.exp(-a * m) / (1 + math.exp(-a))
        return 1 - math.exp(-a * (1 - m)) / (1 + math.exp(-a))

    for c in range(-3, 9):
        right, wrong = tail(c - 1), tail(c)
        assert s * right / (s * right + (K - s) * wrong) <= association_limit(K, s, epsilon)
