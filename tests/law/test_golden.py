# SPDX-License-Identifier: Apache-2.0
"""Vectors from the papers, from closed forms and from other projects' tests."""

import json
import math
import re
from collections import Counter
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from labeldp.laws import (
    PriorSplit,
    RandomizedResponse,
    RRTopK,
    RRWithPrior,
    SubsetSelection,
    exact_epsilon,
)
from labeldp.laws._exact import exp_floor
from labeldp.laws._response import response_words

VECTORS = json.loads((Path(__file__).parent.parent / "golden" / "vectors.json").read_text())
IN_E = {"1": 0.0, "2": math.log(2), "3": math.log(3), "9": math.log(9), "20": math.log(20)}


def fractions(row: list[str]) -> list[float]:
    return [float(Fraction(x)) for x in row]


@pytest.mark.parametrize("key", [k for k in VECTORS if re.fullmatch(r"rr\.E\d+K\d+", k)])
def test_rr_rows(key: str) -> None:
    e, k = re.fullmatch(r"rr\.E(\d+)K(\d+)", key).groups()
    wanted = fractions(VECTORS[key])
    row = RandomizedResponse(int(k), IN_E[e]).matrix()[0]
    assert row[: len(wanted)] == pytest.approx(wanted, rel=1e-14)


@pytest.mark.parametrize("key", [k for k in VECTORS if k.startswith("rr.acc.")])
def test_rr_keep_probability(key: str) -> None:
    eps, k = re.fullmatch(r"rr\.acc\.eps([\d.]+)\.K(\d+)", key).groups()
    assert RandomizedResponse(int(k), float(eps)).matrix()[0, 0] == pytest.approx(
        float(VECTORS[key]), rel=1e-13
    )


@pytest.mark.parametrize("key", [k for k in VECTORS if re.fullmatch(r"rr\.inv\..*", k)])
def test_rr_inverse(key: str) -> None:
    e, k = re.fullmatch(r"rr\.inv\.E(\d+)K(\d+)", key).groups()
    inverse = np.linalg.inv(RandomizedResponse(int(k), IN_E[e]).matrix())
    assert [inverse[0, 0], inverse[0, 1]] == pytest.approx(fractions(VECTORS[key]), rel=1e-12)


@pytest.mark.parametrize("key", [k for k in VECTORS if re.fullmatch(r"rr64\.eps[\d.]+\.K\d+", k)])
def test_integer_cells(key: str) -> None:
    eps, k = re.fullmatch(r"rr64\.eps([\d.]+)\.K(\d+)", key).groups()
    vector = VECTORS[key]
    assert response_words(float(eps), int(k)) == (vector["a"], vector["b"])
    assert RandomizedResponse(int(k), float(eps)).exact_epsilon() == pytest.approx(
        float(vector["eps_eff"]), rel=2e-16
    )


@pytest.mark.parametrize("key", ["rrwp.A", "rrwp.B", "rrwp.C", "rrwp.D", "rrwp.E"])
def test_rr_with_prior(key: str) -> None:
    vector = VECTORS[key]
    prior, epsilon = np.array(fractions(vector["p"])), IN_E[vector["E"]]
    law = RRWithPrior(len(prior), epsilon)
    k = int(law.side_row(prior)["size"])
    assert vector["k_small"] <= k <= vector["k_large"]
    matrix = law.matrix(prior)
    reached = sum(prior[y] * matrix[y, j] for j, y in enumerate(law.outputs(prior)))
    assert reached == pytest.approx(float(Fraction(vector["obj"])), rel=1e-9)
    for j, weight in enumerate(vector["w"], start=1):
        top = RRTopK(len(prior), epsilon, j)
        channel = top.matrix(prior)
        assert sum(
            prior[y] * channel[y, i] for i, y in enumerate(top.outputs(prior))
        ) == pytest.approx(float(Fraction(weight)), rel=1e-9)
    fixed = RRTopK(len(prior), epsilon, vector["k_small"])
    wanted = np.array([fractions(row) for row in vector["matrix"]])[:, fixed.outputs(prior)]
    assert np.allclose(fixed.matrix(prior), wanted, rtol=1e-12)
    assert math.exp(exact_epsilon(fixed.matrix(prior, exact=True))) == pytest.approx(
        float(Fraction(vector["maxratio"])), rel=1e-12
    )


def test_cost_weighted_form() -> None:
    prior, epsilon = [0.9, 0.1], math.log(3)
    for key, weight in (
        ("rrwp.weighted.plain", None),
        ("rrwp.weighted.balanced", (0.5 / 0.9, 0.5 / 0.1)),
    ):
        reached, k, members = VECTORS[key]
        law = RRWithPrior(2, epsilon, weight)
        assert law.outputs(prior).tolist() == members
        assert int(law.side_row(prior)["size"]) == int(k)
        value = sum(
            p * w * law.matrix(prior)[y, y]
            for y, (p, w) in enumerate(zip(prior, weight or (1, 1), strict=True))
            if y in members
        )
        assert value == pytest.approx(float(Fraction(reached)), rel=1e-9)


def test_posterior_and_forward_of_top_2() -> None:
    prior, law = np.array([0.5, 0.3, 0.2]), RRTopK(3, math.log(3), 2)
    side = {name: np.stack([value, value]) for name, value in law.side_row(prior).items()}
    likelihood = np.exp(law.log_likelihood(np.array([0, 1], dtype=np.int32), side)) * prior
    posterior = likelihood / likelihood.sum(axis=1, keepdims=True)
    assert posterior[0] == pytest.approx(fractions(VECTORS["posterior.RRTop2.z0"]), rel=1e-12)
    assert posterior[1] == pytest.approx(fractions(VECTORS["posterior.RRTop2.z1"]), rel=1e-12)
    # the vector's own distribution, as in the forward-correction example for K = 3
    model = np.array([0.7, 0.2, 0.1])
    assert model @ law.matrix(prior) == pytest.approx(
        fractions(VECTORS["fwd.RRTop2"])[:2], rel=1e-12
    )
    assert model @ RandomizedResponse(3, math.log(3)).matrix() == pytest.approx(
        fractions(VECTORS["fwd.E3K3"]), rel=1e-12
    )
    assert np.linalg.matrix_rank(law.matrix(prior)) == VECTORS["rrtop2.rank"]


@pytest.mark.parametrize(
    ("k", "epsilon", "changed"),
    [
        (2, math.log(3), 0.5),
        (3, math.log(3), 0.6),
        (2925, 14.0, 0.0024263221679834087),
        (3, 14.0, 0.000002494582008677539),
    ],
)
def test_attribution_reporting_randomisation_rate(k: int, epsilon: float, changed: float) -> None:
    """Their rate draws uniformly from all k, so it is K / (e^eps + K - 1)."""
    _, b = response_words(epsilon, k)
    assert k * b / 2**64 == pytest.approx(changed, rel=1e-11)


@pytest.mark.parametrize(
    ("k", "epsilon", "bits"),
    [
        (2, math.log(3), 0.18872187554086717),
        (2925, 14.0, 11.461727965384876),
        (3, 14.0, 1.584926511508231),
    ],
)
def test_information_in_bits(k: int, epsilon: float, bits: float) -> None:
    assert RandomizedResponse(k, epsilon).information() / math.log(2) == pytest.approx(
        bits, rel=1e-9
    )


PRIORS = [
    ([0.55, 0.45], 0.5, 2, 0.6224593312),
    ([0.9, 0.1], 1.0, 1, 0.9),
    ([0.9, 0.1], 3.0, 2, 0.9525741268),
    ([0.3, 0.25, 0.2, 0.15, 0.1], 0.5, 2, 0.3423526322),
    ([0.3, 0.25, 0.2, 0.15, 0.1], 2.0, 5, 0.6487856443),
    ([0.4, 0.3, 0.2, 0.1], 1.0, 3, 0.5185051963),
    ([0.1] * 10, 0.05, 10, 0.1045908608),
    ([0.1] * 10, 1.0, 10, 0.2319693167),
    ([0.5, 0.2, 0.1] + [0.2 / 7] * 7, 1.0, 2, 0.5117410050),
    ([0.5, 0.2, 0.1] + [0.2 / 7] * 7, 4.0, 10, 0.8584864498),
    ([0.97] + [0.03 / 9] * 9, 1.0, 1, 0.97),
    ([0.97] + [0.03 / 9] * 9, 6.0, 10, 0.9781780512),
]


@pytest.mark.parametrize(("prior", "epsilon", "k", "correct"), PRIORS)
def test_chosen_k(prior: list[float], epsilon: float, k: int, correct: float) -> None:
    law = RRWithPrior(len(prior), epsilon)
    assert int(law.side_row(prior)["size"]) == k
    matrix = law.matrix(prior)
    assert sum(prior[y] * matrix[y, j] for j, y in enumerate(law.outputs(prior))) == pytest.approx(
        correct, abs=1e-9
    )
    assert exact_epsilon(law.matrix(prior, exact=True)) == pytest.approx(
        epsilon if k > 1 else 0.0, rel=1e-12
    )


def test_figures_of_the_design() -> None:
    assert SubsetSelection(10, 1.0).set_size == 3
    assert SubsetSelection(10, 1.0).information() == pytest.approx(0.1224, abs=5e-5)
    assert RandomizedResponse(10, 1.0).information() == pytest.approx(0.0734, abs=5e-5)
    for epsilon, factor in ((1.0, 12.7), (2.0, 6.2), (3.0, 3.0)):
        ratio = (
            SubsetSelection(100, epsilon).information()
            / RandomizedResponse(100, epsilon).information()
        )
        assert ratio == pytest.approx(factor, abs=0.06)
    assert PriorSplit(2, 1.0).information() == pytest.approx(0.111, abs=5e-4)


@pytest.mark.parametrize("key", [k for k in VECTORS if re.fullmatch(r"var\.K\d+\.eps[\d.]+", k)])
def test_frequency_variance(key: str) -> None:
    """Per row and class the label is not: q (1 - q) / (p - q)^2, from inclusion."""
    k, eps = re.fullmatch(r"var\.K(\d+)\.eps([\d.]+)", key).groups()
    size, subset = VECTORS[key]["SubsetSel"]
    laws = (
        (RandomizedResponse(int(k), float(eps)), VECTORS[key]["RR"]),
        (SubsetSelection(int(k), float(eps), size), subset),
    )
    for law, wanted in laws:
        outputs = np.zeros((1, *law.layout()["output"][1]), dtype=law.layout()["output"][0])
        (p,), (q,) = law.inclusion(outputs, {})
        assert q * (1 - q) / (p - q) ** 2 == pytest.approx(wanted, abs=5.1e-4)


@pytest.mark.parametrize("key", [k for k in VECTORS if k.startswith("denoise.")])
def test_a_guess_that_a_noisy_label_confirms(key: str) -> None:
    """DenoiseSSL keeps the rows whose noisy label is the one that was guessed; how often it is
    right there is the posterior."""
    right, e = re.fullmatch(r"denoise\.Acc0=([\d/]+)\.E=(\d+)", key).groups()
    guess, wanted = float(Fraction(right)), float(Fraction(VECTORS[key]))
    for n_classes in (2, 5, 10):
        prior = np.full((1, n_classes), (1 - guess) / (n_classes - 1))
        prior[0, 0] = guess
        law = RandomizedResponse(n_classes, IN_E[e])
        posterior = prior * law.matrix()[:, 0]
        assert posterior[0, 0] / posterior.sum() == pytest.approx(wanted, rel=1e-13)


def test_pseudo_labels_voted_by_raw_labels_have_no_epsilon() -> None:
    """DenoiseSSL on one cluster of three rows: which of them are kept, and under which label.
    Exact, over all noisy labels."""
    channel = RandomizedResponse(2, 1.0).matrix(exact=True)
    data = list(product((0, 1), repeat=3))

    def kept(labels: tuple[int, ...], raw: bool) -> Counter[tuple[int, ...]]:
        law = Counter[tuple[int, ...]]()
        for noisy in data:
            vote = int(sum(labels if raw else noisy) >= 2)
            chance = math.prod(channel[y, z] for y, z in zip(labels, noisy, strict=True))
            law[vote, *(i for i, z in enumerate(noisy) if z == vote)] += chance
        return law

    neighbours = [
        (one, two)
        for one in data
        for two in data
        if sum(a != b for a, b in zip(one, two, strict=True)) == 1
    ]
    here, there = kept((0, 0, 1), True), kept((0, 1, 1), True)
    assert not here.keys() & there.keys()
    assert sum(here.values()) == sum(there.values()) == 1
    for one, two in neighbours:
        laws = kept(one, False), kept(two, False)
        assert max(laws[0][seen] / laws[1][seen] for seen in laws[0]) <= exp_floor(1.0)
