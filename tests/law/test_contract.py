# SPDX-License-Identifier: Apache-2.0
"""Every law keeps the contract, and a law that breaks it in one place is caught."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest

from labeldp.laws import (
    LAWS,
    AutoLaw,
    Cell,
    ClusterRR,
    ColumnCounts,
    Independent,
    Law,
    OneColumn,
    PriorBins,
    PriorSplit,
    RandomizedResponse,
    RRTopK,
    RRWithPrior,
    SquareWave,
    SubsetSelection,
    Threshold,
    UnbiasedRandomizer,
    exact_epsilon,
    law_from_dict,
    register_law,
)
from labeldp.laws._exact import sets_contain
from labeldp.papers.malek2021 import Alibi
from labeldp.papers.regression import BoundedLaplace, RROnBins
from labeldp.testing import CounterWords, check_law

SMALL: list[Law] = [
    RandomizedResponse(2, 1e-6),
    RandomizedResponse(4, 1.0),
    RandomizedResponse(3, 50.0),
    RRTopK(4, 1.0, 2),
    RRTopK(3, 700.0, 1),
    RRWithPrior(4, 0.7),
    RRWithPrior(3, 4.0, (1.0, 5.0, 2.0)),
    SubsetSelection(5, 1.0),
    SubsetSelection(4, 8.0, 3),
    SubsetSelection(3, 1e-6),
    PriorSplit(4, 1.0),
    PriorSplit(2, 30.0),
    AutoLaw(4, 1.0),
    AutoLaw(2, 0.5),
    ClusterRR(3, 1.0),
    ClusterRR(4, 0.3, 0.1, realised=False),
    ClusterRR(4, 2.0, 0.25),
    ClusterRR(4, 10.0, 0.001),  # cells of a few 2^-15 between wide ones
    ClusterRR(4, 30.0),
    PriorSplit(5, 0.7, ordered=True),
    PriorSplit(5, 0.7),
    Threshold(6, 0.7),
    BoundedLaplace(2, 1.0),
    BoundedLaplace(5, 0.7),
    BoundedLaplace(6, 20.0),
    BoundedLaplace(4, 1e-6),
    RROnBins(5, 6.0),
    RROnBins(6, 1.5, prior=(0.0, 1.0, 0.0, 2.0, 1.0, 0.5)),
    RROnBins(5, 2.0, "absolute"),
    RROnBins(5, 1e-6),
    RROnBins(4, 600.0, "poisson", origin=2.0),
    UnbiasedRandomizer(2, 1.0),
    UnbiasedRandomizer(5, 0.7, (1.0, 0.0, 2.0, 3.0, 1.0)),
    UnbiasedRandomizer(4, 30.0),
    UnbiasedRandomizer(3, 1e-6),
    Threshold(2, 3.0),
    PriorBins(2, 1.0),
    PriorBins(5, 1e-6),
    PriorBins(5, 0.7, "information"),
    PriorBins(4, 4.0, "information"),  # a bin for each class, where the prior is flat
    PriorBins(9, 3.0),
    PriorBins(20, 6.0, "information"),
    SquareWave(2, 1.0),
    SquareWave(5, 0.7),
    SquareWave(6, 3.0, 2),
    SquareWave(7, 0.3, 6),
    SquareWave(8, 20.0),
    SquareWave(4, 1e-6),
    AutoLaw(6, 0.5),
    ClusterRR(2, 1e-6, 0.2),
    ClusterRR(5, 4.0, 0.08),
    Alibi(2, 1.0, 8),
    Alibi(3, 3.0, 5),
    Alibi(3, 1e-3, 4),
    Alibi(2, 50.0, 3),
]


SEVERAL: list[Law] = [  # of several columns, which read no prior unless a column's law does
    Independent(6, 1.0, (2, 3), ("rr", "subset")),
    Independent(8, 2.3, (2, 2, 2), ("rr", "rr", "subset")),
    Independent(6, 0.1, (3, 2), ("threshold", "alibi:3")),
    OneColumn(6, 1.0, (2, 3), ("rr", "subset")),
    OneColumn(6, 3.0, (2, 3), ("alibi:4", "threshold")),
    ColumnCounts(2, 1.0, 3, 2),
    ColumnCounts(3, 2.0, 2, 1),
    ColumnCounts(2, 0.1, 2, 3),
]


@pytest.mark.parametrize("law", SMALL, ids=repr)
def test_contract(law: Law) -> None:
    check_law(law)


@pytest.mark.parametrize("law", SEVERAL, ids=repr)
def test_contract_of_several_columns(law: Law) -> None:
    check_law(law, [[1.0] * law.n_classes])


def test_contract_of_columns_whose_laws_read_a_prior() -> None:
    check_law(Independent(6, 1.0, (2, 3), ("rr", "auto")))


def test_every_registered_law_is_tested() -> None:
    # a law that only declares has no sampler; test_channel.py tests the rest of it
    assert {law.name for law in SMALL + SEVERAL} == {
        name for name, law in LAWS.items() if not law.declared_only
    }
    assert next(iter(LAWS)) == "rr"


# Planted defects: each has been seen in released code
# -----------------------------------------------------------------------------------


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch):
    def plant(cls: type[Law]) -> type[Law]:
        monkeypatch.setitem(LAWS, cls.name, cls)
        return cls

    return plant


def test_falling_back_to_all_classes_is_infinite() -> None:
    """RRTop-k that answers a label outside the candidates with any of the K classes."""
    good = RRTopK(4, 1.0, 2).matrix([4, 3, 2, 1], exact=True)
    bad = np.full((4, 4), Fraction(0), dtype=object)
    bad[:2, :2], bad[2:, :] = good[:2], Fraction(1, 4)
    assert exact_epsilon(good) == pytest.approx(1.0)
    assert exact_epsilon(bad) == math.inf


def test_sampler_that_falls_back_to_all_classes_is_caught(planted) -> None:
    @planted
    @dataclass(frozen=True)
    class FallBack(RRTopK):
        name: ClassVar[str] = "planted"

        def sample(self, labels, words, side):
            inside = sets_contain(side["candidates"], labels, self.n_classes)
            return np.where(
                inside, super().sample(labels, words, side), words.take(0) >> np.uint64(62)
            ).astype(np.int32)

    with pytest.raises(AssertionError, match="does not hold"):
        check_law(FallBack(4, 1.0, 2))


def test_k_off_by_one_is_caught(planted) -> None:
    """Weights with a denominator off by one, as released elsewhere, choose another k, and a worse
    one."""
    prior, gain, k = np.array([0.4, 0.3, 0.2, 0.1]), math.e, np.arange(1, 5)
    right = np.cumsum(prior) * gain / (gain + k - 1)
    shifted = int(np.argmax(np.cumsum(prior) / (1 + (k - 2) / gain))) + 1
    chosen = int(RRWithPrior(4, 1.0).side_row(prior)["size"])
    assert chosen == int(np.argmax(right)) + 1 == 3
    assert chosen != shifted
    assert right[shifted - 1] < right[chosen - 1]

    @planted
    @dataclass(frozen=True)
    class OffByOne(RRTopK):
        name: ClassVar[str] = "planted"

        def profile(self, side_row):
            return RRTopK(self.n_classes, self.epsilon, self.k + 1).profile(
                {"size": np.int32(self.k + 1)}
            )

    with pytest.raises(AssertionError):
        check_law(OffByOne(5, 1.0, 2))


@pytest.mark.parametrize("epsilon", [8.0, 20.0, 50.0, 700.0])
def test_large_epsilon_stays_private(epsilon: float, planted) -> None:
    """Drawing with 53-bit floats loses every other class above epsilon = 37; skipping the noise
    loses it everywhere."""
    for law in (
        RandomizedResponse(10, epsilon),
        SubsetSelection(10, epsilon),
        PriorSplit(10, epsilon),
        RRTopK(10, epsilon, 3),
    ):
        assert exact_epsilon(law.matrix(exact=True)) <= epsilon

    @planted
    @dataclass(frozen=True)
    class Bypass(RandomizedResponse):
        name: ClassVar[str] = "planted"

        def sample(self, labels, words, side):
            words.take(0)
            return labels.astype(np.int32)

    with pytest.raises(AssertionError, match="words give"):
        check_law(Bypass(3, epsilon))


def test_sampler_other_than_the_table_is_caught(planted) -> None:
    @planted
    @dataclass(frozen=True)
    class Louder(RandomizedResponse):
        name: ClassVar[str] = "planted"

        def sample(self, labels, words, side):
            return RandomizedResponse(self.n_classes, self.epsilon * 1.0000001).sample(
                labels, words, side
            )

    with pytest.raises(AssertionError, match="words give"):
        check_law(Louder(3, 1.0))


def test_argmax_of_laplace_is_not_randomized_response(planted) -> None:
    """Released as "randomized response" elsewhere: its own table, taken as the claim, shows another
    epsilon."""
    rng = np.random.default_rng(0)
    epsilon, draws = 1.0, 200_000
    noisy = rng.laplace(scale=2 / epsilon, size=(draws, 3)) + np.array([1.0, 0, 0])
    keep = (noisy.argmax(axis=1) == 0).mean()
    matrix = np.full((3, 3), (1 - keep) / 2) + np.eye(3) * (keep - (1 - keep) / 2)
    assert exact_epsilon(matrix) < 0.9 * epsilon

    @planted
    @dataclass(frozen=True)
    class Laplace(RandomizedResponse):
        name: ClassVar[str] = "planted"

        def sample(self, labels, words, side):
            uniform = (
                np.stack([words.take(0) + np.uint64(c * 7919) for c in range(3)], axis=1) / 2.0**64
            )
            noise = (
                -np.sign(uniform - 0.5)
                * np.log1p(-2 * np.abs(uniform - 0.5).clip(max=0.4999999))
                * 2
            )
            return (np.eye(3)[labels] + noise).argmax(axis=1).astype(np.int32)

    with pytest.raises(AssertionError):
        check_law(Laplace(3, epsilon))


def test_words_that_depend_on_the_label_are_caught(planted) -> None:
    @planted
    @dataclass(frozen=True)
    class Peeking(RandomizedResponse):
        name: ClassVar[str] = "planted"

        def sample(self, labels, words, side):
            words.take(1, np.flatnonzero(labels == 0))
            return super().sample(labels, words, side)

    with pytest.raises(AssertionError, match="depends on the label"):
        check_law(Peeking(3, 1.0), priors=[[1.0, 1.0, 1.0]])


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        (
            "profile",
            lambda self, side: (
                Cell("class", "x", "kept", Fraction(1, 4), 1),
                Cell("class", "x", "other", Fraction(1, 8), 2),
            ),
            "sum to",
        ),
        (
            "profile",
            lambda self, side: RandomizedResponse(self.n_classes, 3.0).profile(side),
            "above the claim",
        ),
        (
            "log_likelihood",
            lambda self, outputs, side: np.zeros((len(outputs), self.n_classes)),
            "proportional",
        ),
        (
            "inclusion",
            lambda self, outputs, side: (np.full(len(outputs), 0.5), np.full(len(outputs), 0.2)),
            "inclusion is not",
        ),
        (
            "inclusion",
            lambda self, outputs, side: (np.full(len(outputs), np.nan),) * 2,
            "has an unbiased estimator",
        ),
    ],
)
def test_a_wrong_part_is_named(planted, method: str, value: object, message: str) -> None:
    cls = dataclass(frozen=True)(
        type(
            "Wrong",
            (RandomizedResponse,),
            {"name": "planted", method: value, "__annotations__": {}},
        )
    )
    with pytest.raises(AssertionError, match=message):
        check_law(planted(cls)(3, 1.0))


def test_names_are_unique_and_unknown_data_is_refused() -> None:
    with pytest.raises(ValueError, match="Rename"):
        register_law(
            dataclass(frozen=True)(type("Other", (RandomizedResponse,), {"__annotations__": {}}))
        )
    assert register_law(RandomizedResponse) is RandomizedResponse
    with pytest.raises(ValueError, match="Did you mean"):
        law_from_dict({"law": "rr-with-priors", "n_classes": 2, "epsilon": 1.0})
    with pytest.raises(ValueError, match="also seed"):
        law_from_dict({"law": "rr", "n_classes": 2, "epsilon": 1.0, "seed": 3})
    with pytest.raises(ValueError, match="fields"):
        law_from_dict({"law": "rr-top-k", "n_classes": 2, "epsilon": 1.0})
    assert law_from_dict(RandomizedResponse(3, 1.0).event()) == RandomizedResponse(3, 1.0)


def test_counter_words_keep_their_streams() -> None:
    words = CounterWords(np.arange(10, dtype=np.int64))
    rows = np.array([7, 2])
    assert (words.take(3)[rows] == words.take(3, rows)).all()
    assert (words.select(rows).take(3) == words.take(3, rows)).all()
    assert len(set(words.take(0)) | set(words.take(1))) == 20
