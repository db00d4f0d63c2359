# SPDX-License-Identifier: Apache-2.0
"""Two draws that share words reveal labels with certainty; the run key keeps every two draws apart.

For each way to make the same words twice, the mutant leaves facts out of the key. Then the words
are equal, and the joint law of the two outputs, computed exactly by walking the cells of the one
shared word, has an infinite ratio between two labels. With the real key the words differ, and the
joint law of independent draws stays within the sum of the epsilons.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest

from labeldp.errors import InvalidInput
from labeldp.laws import RandomizedResponse
from labeldp.laws._exact import exp_floor
from labeldp.noise import _words as noise

K = 3
LAW, OTHER_LAW = RandomizedResponse(K, 1.0), RandomizedResponse(K, 2.0)
SECRET = noise.SeededNoise(0).secret()
BLOCKS = noise.row_blocks(1000)
FACTS = {
    "run_id": "0" * 32,
    "dataset": "d",
    "column": "label",
    "unit": "row",
    "max_rows_per_unit": 1,
    "law": LAW.to_dict(),
    "classes": "c",
    "prior": "",
    "stage": "stage 1",
}


@dataclass(frozen=True)
class Mutant:
    """Two draws, the facts by which they differ, and two pairs of labels that a neighbour may
    have."""

    name: str
    second: dict[str, object]
    law: RandomizedResponse
    labels: tuple[tuple[int, int], tuple[int, int]]


MUTANTS = [
    Mutant("two laws under one key", {"law": OTHER_LAW.to_dict()}, OTHER_LAW, ((0, 0), (1, 1))),
    Mutant("a redraw with one label changed", {"run_id": "1" * 32}, LAW, ((0, 0), (0, 1))),
    Mutant(
        "two files that share row numbers",
        {"run_id": "1" * 32, "dataset": "e"},
        LAW,
        ((0, 2), (1, 2)),
    ),
    Mutant("validation and stage 1 of one fit", {"stage": "validation"}, LAW, ((0, 2), (1, 2))),
]


class OneWord:
    """The same words in every row's stream: the shared word, cell by cell."""

    def __init__(self, words: list[int]) -> None:
        self.words = np.array(words, np.uint64)

    def __len__(self) -> int:
        return len(self.words)

    def take(self, counter, rows=None):
        return self.words if rows is None else self.words[rows]

    def select(self, rows):
        raise AssertionError("randomized response reads one word of every row")


def edges(law: RandomizedResponse) -> list[int]:
    """Where the output changes with the word: K cells, whose sizes the profile states."""
    sizes = [int(cell.probability * 2**64) for cell in law.profile({}) for _ in range(cell.outputs)]
    return [sum(sizes[:i]) for i in range(len(sizes) + 1)]


def joint_of_shared(
    law: RandomizedResponse, second: RandomizedResponse, labels: tuple[int, int]
) -> dict[tuple[int, int], Fraction]:
    """Exact joint law of two outputs drawn with one word."""
    cuts = sorted({*edges(law), *edges(second)})
    words = OneWord(cuts[:-1])
    first_out, second_out = (
        each.sample(np.full(len(words), y), words, {})
        for each, y in zip((law, second), labels, strict=True)
    )
    joint: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for i, pair in enumerate(zip(first_out.tolist(), second_out.tolist(), strict=True)):
        joint[pair] += Fraction(cuts[i + 1] - cuts[i], 2**64)
    assert sum(joint.values()) == 1
    return joint


def joint_of_independent(law, second, labels):
    first, other = law.matrix(exact=True)[labels[0]], second.matrix(exact=True)[labels[1]]
    return {(i, j): first[i] * other[j] for i in range(K) for j in range(K)}


def largest_ratio(
    one: dict[tuple[int, int], Fraction], two: dict[tuple[int, int], Fraction]
) -> Fraction | float:
    pairs = [
        (a.get(pair, Fraction(0)), b.get(pair, Fraction(0)))
        for a, b in ((one, two), (two, one))
        for pair in {*one, *two}
    ]
    return max(math.inf if q == 0 else p / q for p, q in pairs if p > 0)


def words_of(facts: dict[str, object]) -> np.ndarray:
    return noise.RowWords(noise.derive_key(SECRET, purpose="draw", facts=facts), BLOCKS).take(0)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_left_out_facts_share_words_and_reveal_labels(mutant: Mutant) -> None:
    left_out = dict.fromkeys(mutant.second)
    np.testing.assert_array_equal(
        words_of(FACTS | left_out), words_of(FACTS | mutant.second | left_out)
    )
    joints = [joint_of_shared(LAW, mutant.law, labels) for labels in mutant.labels]
    assert largest_ratio(*joints) == math.inf


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_real_key_separates_them(mutant: Mutant) -> None:
    one, two = words_of(FACTS), words_of(FACTS | mutant.second)
    assert not np.isin(one, two).any()
    joints = [joint_of_independent(LAW, mutant.law, labels) for labels in mutant.labels]
    assert largest_ratio(*joints) <= exp_floor(LAW.epsilon) * exp_floor(mutant.law.epsilon)


@pytest.mark.parametrize("fact", noise.DRAW_FACTS)
def test_no_fact_can_be_forgotten_or_ignored(fact: str) -> None:
    with pytest.raises(InvalidInput, match=fact):
        noise.derive_key(
            SECRET,
            purpose="draw",
            facts={name: value for name, value in FACTS.items() if name != fact},
        )
    assert not np.isin(words_of(FACTS), words_of(FACTS | {fact: "another"})).any()


def test_the_shared_word_walk_sees_every_output() -> None:
    """The exact joint law has the law's own marginals, so an infinite ratio is not an artefact of
    the walk."""
    joint = joint_of_shared(LAW, OTHER_LAW, (0, 1))
    for output in range(K):
        assert (
            sum(p for (i, _), p in joint.items() if i == output)
            == LAW.matrix(exact=True)[0][output]
        )
        assert (
            sum(p for (_, j), p in joint.items() if j == output)
            == OTHER_LAW.matrix(exact=True)[1][output]
        )


def test_an_epsilon_one_float_away_is_another_law() -> None:
    near = replace(LAW, epsilon=math.nextafter(LAW.epsilon, 2))
    assert not np.isin(words_of(FACTS), words_of(FACTS | {"law": near.to_dict()})).any()


def test_the_door_never_derives_one_key_for_two_draws(tmp_path, monkeypatch) -> None:
    """The four situations again, through the public door and one ledger: every draw has a key of
    its own."""
    from tests.runs import open_run

    import labeldp as ldp

    drawn: list[bytes] = []
    make = noise.Key.__init__

    def record(self, purpose, material):
        make(self, purpose, material)
        if purpose == "draw":
            drawn.append(material)

    monkeypatch.setattr(noise.Key, "__init__", record)
    ledger = ldp.Ledger(tmp_path / "ledger.sqlite", budget=100.0)
    labels, ids = np.zeros(20, int), np.arange(20)
    for law, changed, dataset, redraw in (
        (LAW, 0, "d", False),
        (OTHER_LAW, 0, "d", False),
        (LAW, 1, "d", True),
        (LAW, 0, "e", False),
    ):
        labels[0] = changed
        ldp.privatize(
            ldp.PrivateLabels(
                labels, classes=range(K), dataset=dataset, column="label", ids=ids, ledger=ledger
            ),
            law,
            redraw=redraw,
        )
    with open_run(
        labels,
        classes=range(K),
        epsilon=1.0,
        laws={"law": LAW.to_dict()},
        dataset="fit",
        ids=ids,
        ledger=ledger,
    ) as run:
        parts = run.partition([0.5, 0.5])
        for part, stage in enumerate(("validation", "stage 1")):
            run.privatize(np.flatnonzero(parts == part), LAW, stage=stage)
    assert len(drawn) == len(set(drawn)) == 6
