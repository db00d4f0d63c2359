# SPDX-License-Identifier: Apache-2.0
"""Laws for numbers and other ordered classes: thresholds, intervals, unbiased numbers."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import chi2, norm

import labeldp as ldp
from labeldp.laws import WORD, SquareWave, UnbiasedRandomizer, exp_floor, law_from_dict, law_named
from labeldp.laws._exact import pack_sets, unpack_sets
from labeldp.laws._optimal import unbiased_staircase
from labeldp.laws._square_wave import window_words
from labeldp.papers.regression import RROnBins
from labeldp.testing import CounterWords

FALSE_ALARM = 1e-6
VECTORS = json.loads((Path(__file__).parent.parent / "golden" / "vectors.json").read_text())


# Threshold
# --------------------------------------------------------------------------------------------------


def test_thresholds_without_a_prior_are_uniform() -> None:
    """Chi-square of 100,000 public thresholds over 1..K-1, false alarm 1e-6; words are fixed, so
    the result always is the same."""
    k, n = 20, 100_000
    law = ldp.Threshold(k, 1.0)
    split = unpack_sets(
        law.prepare(np.broadcast_to(1.0, (n, k)), CounterWords(np.arange(n)))["split"], k
    )
    assert (split[:, 1:] >= split[:, :-1]).all(), "each set is 'at least t'"
    assert not split[:, 0].any()
    assert split[:, -1].all()
    counts = np.bincount(k - split.sum(axis=1), minlength=k)[1:]
    assert ((counts - n / (k - 1)) ** 2 / (n / (k - 1))).sum() < chi2.isf(FALSE_ALARM, k - 2)


def test_thresholds_with_a_prior_are_those_of_the_ordered_split() -> None:
    rng = np.random.default_rng(0)
    prior = rng.dirichlet(np.ones(12), 500)
    words = CounterWords(np.arange(500))
    found, split = (
        law.prepare(prior, words)["split"]
        for law in (ldp.Threshold(12, 1.5), ldp.PriorSplit(12, 1.5, ordered=True))
    )
    assert np.array_equal(found, split)


def test_the_distribution_of_a_number_is_learned_from_thresholds() -> None:
    """For every t, the share of true answers to "at least t" among the rows that were asked
    estimates P[at least t] within 6 sigma."""
    grid, eps, n = ldp.Grid(0, 1, 9), 1.0, 40_000
    values = np.random.default_rng(1).beta(2, 5, n)
    noisy = ldp.privatize(
        ldp.PrivateLabels(values, classes=grid, noise=ldp.SeededNoise(5)), ldp.Threshold(9, eps)
    )
    (block,) = noisy.blocks
    t = 9 - unpack_sets(block.side["split"], 9).sum(axis=1)
    yes = (block.outputs == block.side["split"]).all(axis=1)
    p = np.exp(eps) / (1 + np.exp(eps))
    true = grid.codes(values)
    for threshold in range(1, 9):
        asked = t == threshold
        found, m = (yes[asked].mean() - (1 - p)) / (2 * p - 1), asked.sum()
        assert abs(found - (true >= threshold).mean()) < 6 * 0.5 / np.sqrt(m) / (2 * p - 1)


@pytest.mark.parametrize("k", [2, 9, 64])
def test_a_threshold_keeps_its_claim(k: int) -> None:
    law = ldp.Threshold(k, 0.7)
    assert ldp.exact_epsilon(law.matrix(exact=True)) <= 0.7
    assert law.exact_epsilon() <= 0.7
    assert law.outputs().shape == (2, k)


@pytest.mark.parametrize("epsilon", [0.3, 2.0, 30.0])
def test_chances_of_thresholds_are_those_of_their_words(epsilon: float) -> None:
    """Chi-square of 40,000 thresholds of each of five priors, false alarm 1e-7 each; words are
    fixed, so the result always is the same."""
    k, n = 9, 40_000
    law, rng = ldp.Threshold(k, epsilon), np.random.default_rng(1)
    peaked = np.full(k, 1e-4)
    peaked[2] = 1.0
    alone = np.zeros(k)
    alone[5] = 1.0
    for number, prior in enumerate(
        [np.ones(k), rng.dirichlet(np.ones(k)), 0.5 ** np.arange(k), peaked, alone]
    ):
        side = law.prepare(np.broadcast_to(prior, (n, k)), CounterWords(np.arange(n), seed=number))
        first = k - unpack_sets(side["split"], k).sum(axis=1)
        asked = law.questions(prior)
        chances = np.array([p for p, _ in asked])
        assert chances.sum() == pytest.approx(1.0, abs=1e-9) and chances.min() >= 0.1 / (k - 1) * (
            1 - 1e-9
        )
        assert np.array_equal(side["chance"], chances[first - 1])
        expected = n * chances
        statistic = ((np.bincount(first - 1, minlength=k - 1) - expected) ** 2 / expected).sum()
        assert statistic < chi2.isf(1e-7, k - 2)


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_one_answer_is_an_unbiased_estimate_of_any_function_of_the_number(epsilon: float) -> None:
    """The debiased losses of 60,000 rows, some with priors, against the true ones: 5 sigma of 2
    tests at 3e-7 each, two-sided 6e-7."""
    k, n = 12, 60_000
    rng = np.random.default_rng(5)
    labels = rng.binomial(k - 1, 0.3, n)
    prior = rng.dirichlet(np.ones(k), n)
    prior[: n // 2] = 1.0
    losses = (np.arange(k) - rng.uniform(0, k, n)[:, None]) ** 2
    values = ldp.PrivateLabels(labels, classes=range(k), noise=ldp.SeededNoise(3))
    noisy = ldp.privatize(values, ldp.Threshold(k, epsilon), prior=prior)
    assert noisy.invertible.all() and len(noisy.measurable.blocks) == 1
    off = noisy.debias(losses) - losses[np.arange(n), labels]
    for part in (off[: n // 2], off[n // 2 :]):
        assert abs(part.mean()) < 5.0 * part.std() / np.sqrt(len(part))
    ranges = noisy.loss_range(losses)
    centre = (losses[:, 0] + losses[:, -1]) / 2
    assert (np.abs(noisy.debias(losses) - centre) <= ranges / 2 * (1 + 1e-9)).all()
    flat = ranges[: n // 2]
    assert np.allclose(
        flat,
        np.abs(np.diff(losses[: n // 2], axis=1)).max(axis=1) * (k - 1) / np.tanh(epsilon / 2),
        rtol=1e-6,
    )


def test_the_range_of_a_loss_by_intervals_is_that_over_all_outputs() -> None:
    law, losses = SquareWave(21, 1.0), np.random.default_rng(0).uniform(-5, 5, (30, 21))
    outputs = pack_sets(law.outputs())
    every = losses @ law.weights(outputs, {}).T
    assert np.allclose(
        law.loss_range(losses, outputs[:1].repeat(30, axis=0), {}), np.ptp(every, axis=1)
    )


# SquareWave
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "epsilon", "size"),
    [
        (2, 0.1, 1),
        (5, 1.0, None),
        (64, 4.0, None),
        (64, 1e-9, 63),
        (1000, 0.5, None),
        (50, 40.0, 3),
    ],
)
def test_a_square_wave_is_certified_and_tight(k: int, epsilon: float, size: int | None) -> None:
    law = SquareWave(k, epsilon, size)
    b, m = window_words(epsilon, k, law.width)
    assert m + (k - 1) * b == WORD
    assert b <= m // law.width
    assert -(-m // law.width) <= exp_floor(epsilon) * b
    assert epsilon * (1 - 1e-6) - 1e-15 < law.exact_epsilon() <= epsilon or epsilon > 30


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_the_default_interval_tells_nearly_the_most_about_a_location(epsilon: float) -> None:
    """Fisher information about the mean of normal numbers, averaged over means, against that of the
    best size and of thresholds."""
    k, centres = 64, np.linspace(0.1, 0.9, 17)
    middles = (np.arange(k - 1) + 0.5) / (k - 1)

    def information(matrix: np.ndarray, scale: float) -> float:
        below = norm.cdf((middles - centres[:, None]) / scale)
        p = np.diff(below, axis=1, prepend=0, append=1)
        slope = np.diff(
            -norm.pdf((middles - centres[:, None]) / scale) / scale, axis=1, prepend=0, append=0
        )
        return float(((slope @ matrix) ** 2 / (p @ matrix)).sum(axis=1).mean())

    truthful = np.where(np.arange(k)[:, None] > np.arange(k - 1), 1, 0)
    keep = np.exp(epsilon) / (1 + np.exp(epsilon))
    bit = keep * truthful + (1 - keep) * (1 - truthful)
    thresholds = np.concatenate([bit, 1 - bit], axis=1) / (k - 1)
    for scale in (0.12, 0.18, 0.25):
        found = information(SquareWave(k, epsilon).matrix(), scale)
        assert found > 0.8 * max(
            information(SquareWave(k, epsilon, size).matrix(), scale) for size in range(4, 48, 4)
        )
        assert found > information(thresholds, scale)


def test_weights_of_a_square_wave_estimate_frequencies_and_a_mean_loss() -> None:
    """Unbiased: 6 standard errors (false alarm 2e-9 each, two-sided); the noise is seeded."""
    grid, n = ldp.Grid(0, 1, 16), 40_000
    values = np.random.default_rng(1).beta(2, 5, n)
    noisy = ldp.privatize(
        ldp.PrivateLabels(values, classes=grid, noise=ldp.SeededNoise(5)), SquareWave(16, 1.0)
    )
    points = np.asarray(grid)
    for losses in ((points - 0.3) ** 2, points, (points > 0.5) * 1.0):
        found = noisy.debias(np.broadcast_to(losses, (n, 16)))
        assert abs(found.mean() - losses[grid.codes(values)].mean()) < 6 * found.std() / np.sqrt(n)


# UnbiasedRandomizer
# --------------------------------------------------------------------------------------------------


def variance(law: UnbiasedRandomizer, prior: np.ndarray) -> float:
    values = np.array(law.values)
    return float(
        prior @ (law.matrix() * (values - np.arange(law.n_classes)[:, None]) ** 2).sum(axis=1)
    )


@pytest.mark.parametrize(
    ("key", "prior"), [("unbiased.Y01.E3", (0.5, 0.5)), ("unbiased.Y01.p(.9,.1).E3", (0.9, 0.1))]
)
def test_unbiased_bits_of_published_vectors(key: str, prior: tuple[float, float]) -> None:
    error, outputs = VECTORS[key]
    law = UnbiasedRandomizer(2, float(np.log(3.0)), prior)
    assert variance(law, np.array(prior)) == pytest.approx(error, abs=1e-6)
    if len(law.values or ()) == 2:  # else outputs were split, at the same error
        assert law.values == pytest.approx([value for value, _ in outputs], abs=1e-6)
        assert law.matrix() == pytest.approx(
            np.array([chances for _, chances in outputs]).T, abs=1e-9
        )


def test_unbiased_outputs_on_a_grid_of_published_vectors() -> None:
    error, outputs = VECTORS["unbiased.Y012.E3"]
    found = unbiased_staircase(np.arange(3.0), np.ones(3), 3.0, np.arange(-160, 181) * 0.05)
    assert found.values == pytest.approx([value for value, _ in outputs])
    matrix = np.where(found.high, 3.0, 1.0) * found.shares[:, None]
    assert matrix == pytest.approx(np.array([chances for _, chances in outputs]), abs=1e-9)
    assert float((matrix.sum(axis=1) / 3) @ found.values**2 - 5 / 3) == pytest.approx(error)
    assert variance(UnbiasedRandomizer(3, float(np.log(3.0))), np.ones(3) / 3) < error * 1.001


@pytest.mark.parametrize(("k", "ratio"), [(4, 1.7), (5, 6.0), (4, 50.0)])
def test_no_unbiased_mechanism_on_a_grid_has_less_variance(k: int, ratio: float) -> None:
    """Against the linear program over all probabilities of all outputs, solved as a whole."""
    prior, y = np.random.default_rng(k).dirichlet(np.ones(k)), np.arange(float(k))
    reach = 1.5 * k * (ratio + 1) / (ratio - 1)
    outputs = np.linspace(y.mean() - reach, y.mean() + reach, 81)
    found = unbiased_staircase(y, prior, ratio, outputs)
    m = len(outputs)
    pairs = [(a, b) for a in range(k) for b in range(k) if a != b]
    bounds = np.zeros((len(pairs), m, k, m))
    for i, (a, b) in enumerate(pairs):
        bounds[i, np.arange(m), a, np.arange(m)], bounds[i, np.arange(m), b, np.arange(m)] = (
            1.0,
            -ratio,
        )
    equal = np.vstack([np.kron(np.eye(k), np.ones(m)), np.kron(np.eye(k), outputs)])
    cost = prior[:, None] * (outputs - y[:, None]) ** 2
    whole = linprog(
        cost.ravel(),
        A_ub=bounds.reshape(-1, k * m),
        b_ub=np.zeros(len(pairs) * m),
        A_eq=equal,
        b_eq=np.append(np.ones(k), y),
    )
    matrix = np.where(found.high, ratio, 1.0).T * found.shares
    mine = float(prior @ (matrix * (found.values - y[:, None]) ** 2).sum(axis=1))
    assert whole.fun * (1 - 1e-6) <= mine <= whole.fun * 1.001


@pytest.mark.parametrize(
    ("k", "epsilon"), [(2, 1e-6), (3, 0.5), (16, 0.1), (16, 4.0), (24, 1.0), (5, 700.0)]
)
def test_unbiased_numbers_are_certified_in_whole_numbers(k: int, epsilon: float) -> None:
    """Rows sum to 1 and no ratio is above e^epsilon, exactly; the mean of what is released is the
    label up to the rounding of doubles."""
    law = UnbiasedRandomizer(k, epsilon)
    matrix = law.matrix(exact=True)
    assert (matrix.sum(axis=1) == 1).all()
    assert max(max(column) / min(column) for column in matrix.T) <= exp_floor(epsilon)
    assert law.exact_epsilon() <= epsilon
    values = [Fraction(value) for value in law.values or ()]
    bias = max(
        abs(sum(p * v for p, v in zip(row, values, strict=True)) - y)
        for y, row in enumerate(matrix)
    )
    assert bias <= law.bias <= 2.0**-50 * max(map(abs, law.values or ()))
    assert len(values) <= 2 * k and list(values) == sorted(set(values))


def test_released_numbers_are_unbiased() -> None:
    """The mean over 200,000 draws of each label is the label: two-sided, 2 x 5 tests at a false
    alarm of 1e-7 each; words are fixed."""
    grid, n = ldp.Grid(-50, 150, points=5), 200_000
    law = law_named("unbiased", 5, 1.0)
    numbers = np.array(law.released(grid))
    assert numbers.min() < -50 and numbers.max() > 150
    for code, label in enumerate(grid):
        drawn = numbers[
            law.sample(np.full(n, code, np.int32), CounterWords(np.arange(n), seed=code), {})
        ]
        assert abs(drawn.mean() - label) < norm.isf(0.5e-7) * drawn.std() / np.sqrt(n)
    noisy = ldp.privatize(
        ldp.PrivateLabels(np.repeat(grid, 4000), classes=grid, noise=ldp.SeededNoise(1)), law
    )
    assert noisy.released().dtype == np.float64 and set(noisy.released()) <= set(numbers)
    assert abs(noisy.released().mean() - 50) < norm.isf(0.5e-7) * noisy.released().std() / np.sqrt(
        20_000
    )
    declared = ldp.NoisyLabels.from_labels(noisy.released(), law, grid)
    with pytest.raises(
        ldp.InvalidInput,
        match=r"got another value in row 0\. Was it rounded, for example in a CSV file",
    ):
        ldp.NoisyLabels.from_labels(np.round(noisy.released(), 3), law, grid)
    assert np.array_equal(declared.likelihood(), noisy.likelihood())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_classes": 101}, "at most 100 points"),
        ({"prior": (0.0, 0.0, 0.0, 1.0)}, "two points above 0"),
        ({"epsilon": 1e-17}, "epsilon"),
        ({"values": (0.0, 1.0)}, "as many shares and sets"),
        (
            {"values": (0.0, 3.0), "shares": (0.25, 0.25), "sets": ("03", "0c")},
            "64-bit words|unbiased mechanism",
        ),
        ({"values": (0.0, 3.0), "shares": (0.25, 0.25), "sets": ("zz", "0c")}, "hexadecimal"),
    ],
)
def test_unbiased_numbers_that_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ldp.InvalidInput, match=message):
        UnbiasedRandomizer(**{"n_classes": 4, "epsilon": 1.0} | wrong)


def test_an_unbiased_law_is_solved_again_for_another_epsilon_and_refuses_unknown_ones() -> None:
    from dataclasses import replace

    law = UnbiasedRandomizer(6, 2.0)
    assert law_from_dict(json.loads(json.dumps(law.to_dict()))) == law
    assert law.at(1.0) == UnbiasedRandomizer(6, 1.0)
    with pytest.raises(ldp.InvalidInput, match=r"64-bit words can honour|law\.at"):
        replace(law, epsilon=1.0)


@pytest.mark.parametrize("classes", [["a", "b", "c"], [0, 1, 10], [2, 1, 0], [0, True, 2]])
def test_numbers_need_evenly_spaced_classes(classes: list) -> None:
    law = RROnBins(3, 1.0)
    with pytest.raises(ldp.InvalidInput, match="evenly spaced"):
        law.released(classes)
    with pytest.raises(ldp.InvalidInput, match="evenly spaced"):
        ldp.privatize(
            ldp.PrivateLabels([classes[0]], classes=classes, noise=ldp.SeededNoise(0)), law
        )
    assert law.released([1, 2, 3]) == law.released(ldp.Grid(1, 3, points=3))


def test_values_that_are_unbiased_only_if_two_are_equal_become_neighbouring_floats():
    rng = np.random.default_rng(0)
    prior = [
        np.maximum(rng.normal(0, 30, 32) + rng.integers(0, 200, 32), 0).astype(int)
        for _ in range(2)
    ][1]
    law = UnbiasedRandomizer(32, 0.45, prior=tuple(prior.tolist()))
    assert np.diff(law.values).min() > 0 and law.bias < 1e-14 * np.abs(law.values).max()
    assert law.exact_epsilon() <= 0.45
