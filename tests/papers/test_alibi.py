# SPDX-License-Identifier: Apache-2.0
"""Alibi: published posteriors and accuracies, exactness at any size, and noisy scores as
evidence."""

import json
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from scipy.stats import chi2, laplace

import labeldp as ldp
from labeldp.laws import LAWS, exact_epsilon
from labeldp.laws._exact import WORD, exp_floor
from labeldp.papers._alibi import level_words
from labeldp.papers.malek2021 import Alibi
from labeldp.testing import CounterWords, check_law

VECTORS = json.loads((Path(__file__).parent.parent / "golden" / "vectors.json").read_text())


@pytest.mark.parametrize(
    ("epsilon", "levels", "outputs", "prior", "key"),
    [
        (
            2 * math.log(3),
            255,
            [254, 0, 127],
            [1, 1, 1],
            "alibi.(1.5, -0.2, 0.5).(0.333, 0.333, 0.333).eps2.197225",
        ),
        (
            2 * math.log(3),
            255,
            [254, 0, 127],
            [0.2, 0.3, 0.5],
            "alibi.(1.5, -0.2, 0.5).(0.2, 0.3, 0.5).eps2.197225",
        ),
        (1.0, 4, [1, 2], [1, 1], "alibi.(0.25, 0.75).(0.5, 0.5).eps1.000000"),
        (2.0, 256, [255, 0], [1, 1], "alibi.(10, -10).(0.5, 0.5).eps2.000000"),
    ],
)
def test_published_posteriors(
    epsilon: float, levels: int, outputs: list[int], prior: list[float], key: str
) -> None:
    law = Alibi(len(outputs), epsilon, levels)
    weights = np.exp(law.log_likelihood(np.array([outputs], dtype=np.uint8), {})[0]) * prior
    assert weights / weights.sum() == pytest.approx(VECTORS[key], abs=1e-11)


@pytest.mark.parametrize("key", [k for k in VECTORS if k.startswith("topacc.")])
def test_accuracy_of_the_likeliest_class(key: str) -> None:
    k, epsilon = (
        float(part[1:] if part[0] == "K" else part[3:])
        for part in key.split(".", 1)[1].split(".", 1)
    )
    assert Alibi(int(k), epsilon).likeliest_chances()[2] == pytest.approx(
        VECTORS[key]["ALIBI_MAP"], abs=2e-5
    )


@pytest.mark.parametrize("key", [k for k in VECTORS if k.startswith("var.")])
def test_frequency_variance_beside_whole_laplace_noise(key: str) -> None:
    """Of a class that the label is not: the clipped score says what the whole one does, so its
    weights vary less than 8 / epsilon^2; and Laplace noise is never the best."""
    k, epsilon = int(re.findall(r"K(\d+)", key)[0]), float(key.split("eps")[1])
    law, whole = Alibi(k, epsilon), VECTORS[key]["Lap"]
    assert whole == pytest.approx(2 * (2 / epsilon) ** 2, abs=5.1e-4)
    outputs = np.zeros((law.levels, k), np.uint8)
    outputs[:, 0] = np.arange(law.levels)
    weights = law.weights(outputs, {})
    own = weights[:, 0] - weights[:, 1]  # all of a row's weights are raised alike
    chance = np.array(
        [float(cell.probability) for cell in law.coordinate() if cell.label == "other"]
    )
    assert 4 / epsilon**2 < chance @ own**2 - (chance @ own) ** 2 < 0.65 * whole
    assert min(VECTORS[key]["RR"], VECTORS[key]["SubsetSel"][1]) < 4 / epsilon**2


@pytest.mark.parametrize("epsilon", [2e-7, 1e-3, 0.1, 1.0, 4.0, 40.0, 700.0])
@pytest.mark.parametrize("levels", [3, 4, 17, 256])
def test_every_level_is_whole_numbers_within_half_of_epsilon(epsilon: float, levels: int) -> None:
    words = level_words(epsilon, levels)
    assert sum(words) == WORD and min(words) >= 1 and len(words) == levels
    ratios = [Fraction(b, a) for b, a in zip(words, reversed(words), strict=True)]
    assert max(ratios) ** 2 <= exp_floor(epsilon) and max(ratios) == 1 / min(ratios)
    law = Alibi(7, epsilon, levels)
    assert law.exact_epsilon() <= epsilon
    if epsilon <= 40:
        assert law.exact_epsilon() == pytest.approx(epsilon, rel=1e-6)
    scale, inner = 2 / epsilon, np.linspace(0, 1, levels - 1)[1:-1]
    wanted = np.diff(
        [
            0.0,
            0.5,
            *laplace.cdf(inner, scale=scale),
            1 - 0.5 * math.exp(-min(epsilon, 700) / 2),
            1.0,
        ]
    )
    assert np.allclose(np.array(words, dtype=float) / WORD, wanted, atol=1e-15)


def test_two_labels_ratio_is_the_square_of_one_scores() -> None:
    for law in (Alibi(2, 1.0, 5), Alibi(3, 2.5, 4)):
        assert exact_epsilon(law.matrix(exact=True)) == law.exact_epsilon()
    cells = Alibi(50, 1.0).coordinate()
    assert (
        sum(c.probability for c in cells if c.label == "own")
        == sum(c.probability for c in cells if c.label == "other")
        == 1
    )


@pytest.mark.parametrize("prior", [None, [0.7, 0.2, 0.1], [1.0, 1.0, 0.0]])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 8.0, 100.0])
def test_information_is_that_of_the_matrix(epsilon: float, prior: list[float] | None) -> None:
    law = Alibi(3, epsilon, 6)
    row = np.ones(3) / 3 if prior is None else np.array(prior) / sum(prior)
    assert law.information(prior) == pytest.approx(
        float(super(Alibi, law)._information(row[None], {})[0]), rel=1e-9, abs=1e-13
    )


def test_levels_lose_little_and_laplace_is_never_best() -> None:
    for k in (2, 10, 100):
        for epsilon in (0.5, 1.0, 4.0):
            fine, coarse = Alibi(k, epsilon).information(), Alibi(k, epsilon, 64).information()
            assert coarse <= fine <= coarse * 1.001
            assert fine < max(
                ldp.RandomizedResponse(k, epsilon).information(),
                ldp.SubsetSelection(k, epsilon).information(),
            )


def test_the_sampler_is_clipped_laplace_noise_and_not_1_3_times_as_much() -> None:
    """Against scipy's Laplace, binned: 40,000 draws a score; false alarm 1e-6, and 1.3 times the
    noise fails by far."""
    law, n = Alibi(3, 1.0, 16), 40_000
    drawn = law.sample(
        np.zeros(n, dtype=np.int32), CounterWords(np.arange(n, dtype=np.int64), seed=4), {}
    )

    def statistic(c: int, scale: float) -> float:
        inner = laplace.cdf(np.linspace(0, 1, 15), loc=float(c == 0), scale=scale)
        expected = n * np.diff([0.0, *inner, 1.0])
        return float(((np.bincount(drawn[:, c], minlength=16) - expected) ** 2 / expected).sum())

    limit = float(chi2.isf(1e-6, 15))
    for c in range(3):
        assert statistic(c, 2.0) < limit < statistic(c, 2.6)
    together = np.corrcoef(drawn.T.astype(float))
    assert np.abs(together[np.triu_indices(3, 1)]).max() < 5 / math.sqrt(n)


def test_scores_are_evidence_and_survive_a_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 5, 20_000)
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(5), noise=ldp.SeededNoise(3)), Alibi(5, 2.0)
    )
    losses = rng.random((20_000, 5))
    error = noisy.debias(losses) - losses[np.arange(20_000), labels]
    assert abs(error.mean()) < 5 * error.std() / math.sqrt(20_000)
    assert noisy.invertible.all()
    accuracy = ldp.metrics.accuracy(noisy, labels, confidence=0.999999)
    assert accuracy.low <= 1.0 <= accuracy.high and accuracy.low > 0.9
    hit = (noisy.hard() == labels).mean()
    assert hit == pytest.approx(
        Alibi(5, 2.0).likeliest_chances()[2], abs=5 * 0.5 / math.sqrt(20_000)
    )
    posterior = noisy.posterior()
    assert posterior[np.arange(20_000), labels].mean() > 0.25
    noisy.save(tmp_path / "scores.parquet")
    again = ldp.NoisyLabels.load(tmp_path / "scores.parquet")
    assert np.array_equal(again.blocks[0].outputs, noisy.blocks[0].outputs)
    assert np.array_equal(again.posterior(), posterior)
    scores = noisy.blocks[0].law.scores(noisy.blocks[0].outputs)
    assert scores.min() == 0.0 and scores.max() == 1.0


def test_float_noise_that_is_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class HalfTheNoise(Alibi):
        name: ClassVar[str] = "planted"

        def sample(self, labels, words, side):
            return Alibi(self.n_classes, 2 * self.epsilon, self.levels).sample(labels, words, side)

    monkeypatch.setitem(LAWS, "planted", HalfTheNoise)
    with pytest.raises(AssertionError, match="words give level"):
        check_law(HalfTheNoise(2, 1.0, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Alibi(3, 1.0, 2), "two would be"),
        (lambda: Alibi(3, 1.0, 257), "256 levels"),
        (lambda: Alibi(3, 1e-8), "64-bit words can honour"),
        (lambda: Alibi(3, math.nan), "epsilon"),
        (lambda: Alibi(3, 1.0).matrix(), "at most"),
        (lambda: Alibi(3, 1.0).profile({}), "coordinate"),
    ],
)
def test_bad_input(make, message: str) -> None:
    with pytest.raises(ldp.InvalidInput, match=message):
        make()
