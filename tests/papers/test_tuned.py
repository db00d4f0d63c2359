# SPDX-License-Identifier: Apache-2.0
"""The best of many answers through the door: one charge before the first run, one stored answer,
and the law of what is tried."""

import math
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, chi2
from tests.aggregates.exact import geometric_law

import labeldp as ldp
from labeldp.aggregates import Aggregate, Histogram, Query, Vote
from labeldp.custody import aggregate_best
from labeldp.errors import InvalidInput
from labeldp.papers.esfandiari2022 import Peer, PeerToPeer
from labeldp.papers.ghazi2021 import RepeatAndSelect

FALSE_ALARM = 1e-6
RNG = np.random.default_rng(6)
LABELS = RNG.integers(0, 2, 400)
COARSE, FINE = np.zeros(400, int), np.where(RNG.random(400) < 0.9, LABELS, 1 - LABELS)
CANDIDATES: list[tuple[Query, np.ndarray]] = [
    (Histogram(2, 0.25, 1), COARSE),
    (Histogram(2, 0.5, 2), FINE),
    (Vote(2, 0.5, 2), FINE),
]
TUNING = RepeatAndSelect(8)
FACTS = ("classes", "dataset", "ids", "noise")


def purity(found: Aggregate) -> float:
    """From the noisy counts alone; votes say nothing of how sure they are."""
    return float(found.values.max(axis=1).sum()) if found.values.ndim == 2 else -math.inf


def private(y: np.ndarray = LABELS, **facts: object) -> ldp.PrivateLabels:
    return ldp.PrivateLabels(y, **{"classes": [0, 1], "dataset": "d", "column": "label"} | facts)


def best(ledger: ldp.Ledger | None = None, score: object = purity, **more: object) -> Aggregate:
    """`more` says something else of the request, or of the labels."""
    asked = {"candidates": CANDIDATES, "tuning": TUNING} | more
    facts = {name: asked.pop(name) for name in FACTS if name in asked}
    return aggregate_best(private(ledger=ledger, **facts), score=score, **asked)


@pytest.fixture
def ledger(tmp_path: Path) -> ldp.Ledger:
    return ldp.Ledger(tmp_path / "ledger.db", budget=4.0)


# The charge
# --------------------------------------------------------------------------------------------------


def test_one_charge_for_the_whole_tuning_and_a_free_repeat(ledger: ldp.Ledger) -> None:
    found = best(ledger)
    (run,) = ledger.runs()
    assert (run.state, run.receipt.epsilon, run.receipt.delta) == ("settled", 1.5, 0.0)
    assert (found.receipt.epsilon, found.epsilon, found.delta) == (1.5, 1.5, 0.0)
    assert run.receipt.event["query"] == {
        "query": "best-of",
        "candidates": [query.to_dict() for query, _ in CANDIDATES],
        "tuning": {"mean": 8.0, "shape": 1.0},
        "score": "",
    }
    assert sorted(path.name for path in ledger.run_dir(run.run_id).iterdir()) == [
        "aggregate.parquet",
        "charge.json",
    ]
    again = best(ledger, score=lambda _: pytest.fail("scored again"))
    assert (again.values.tolist(), again.chosen, again.query) == (
        found.values.tolist(),
        found.chosen,
        found.query,
    )
    assert again.receipt == found.receipt
    assert ledger.spent("d", "label") == 1.5
    assert ledger.verify([found.receipt]) == []


def test_it_is_charged_before_the_first_run_and_stays_spent_if_the_score_fails(
    ledger: ldp.Ledger,
) -> None:
    seen = []

    def failing(found: Aggregate) -> float:
        seen.append((ledger.spent("d", "label"), found.receipt.epsilon))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        best(ledger, score=failing)
    assert seen == [(1.5, 1.5)]
    (run,) = ledger.runs()
    assert run.state == "charged"
    assert [path.name for path in ledger.run_dir(run.run_id).iterdir()] == ["charge.json"]
    assert best(ledger).receipt.run_id != run.run_id
    assert ledger.spent("d", "label") == 3.0


KILLED = """
import os, signal, sys
import numpy as np
import labeldp as ldp
from labeldp.aggregates import Histogram
from labeldp.papers.ghazi2021 import RepeatAndSelect
from labeldp.custody import aggregate_best

def die(found):
    os.kill(os.getpid(), signal.SIGKILL)

tries = [(Histogram(2, 0.5, 1), np.zeros(6, int))]
facts = {"dataset": "d", "column": "label", "ledger": ldp.Ledger(sys.argv[1])}
labels = ldp.PrivateLabels([0, 1] * 3, classes=[0, 1], **facts)
aggregate_best(labels, tries, die, tuning=RepeatAndSelect(8))
"""


def test_killed_between_the_charge_and_the_store_it_is_spent(ledger: ldp.Ledger) -> None:
    arguments = [sys.executable, "-c", KILLED, str(ledger.location)]
    died = subprocess.run(
        arguments, capture_output=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    (run,) = ledger.runs()
    assert (run.state, run.receipt.epsilon) == ("charged", 1.5)
    assert [path.name for path in ledger.run_dir(run.run_id).iterdir()] == ["charge.json"]


@pytest.mark.parametrize(
    "other",
    [
        {"redraw": True},
        {"score_name": "another"},
        {"tuning": RepeatAndSelect(9)},
        {"candidates": CANDIDATES[:2]},
        {"candidates": [*CANDIDATES[:2], (Vote(2, 0.5, 2), FINE[::-1])]},
        {"classes": [1, 0]},
    ],
)
def test_another_request_is_another_charge(ledger: ldp.Ledger, other: dict[str, object]) -> None:
    best(ledger)
    best(ledger, **other)
    assert ledger.spent("d", "label") == 3.0


def test_ids_recognise_a_repeat_in_another_order_and_keep_disjoint_rows_apart(
    ledger: ldp.Ledger,
) -> None:
    ids, order = np.arange(400), RNG.permutation(400)
    one = best(ledger, ids=ids)
    moved = [(query, groups[order]) for query, groups in CANDIDATES]
    labels = private(LABELS[order], ids=ids[order], ledger=ledger)
    two = aggregate_best(labels, moved, purity, tuning=TUNING)
    assert two.receipt == one.receipt
    best(ledger, ids=ids + 1000)
    assert ledger.spent("d", "label") == 1.5


# What comes out
# --------------------------------------------------------------------------------------------------


def test_the_best_candidate_comes_out_with_its_number(tmp_path: Path) -> None:
    """At hardly any noise: unless all of 40 expected runs miss it, which the seed does not."""
    tries = [(Histogram(2, 100.0, query.n_groups), groups) for query, groups in CANDIDATES]
    found = best(candidates=tries, tuning=RepeatAndSelect(40), noise=ldp.SeededNoise(0))
    assert found.chosen in (1, 2)  # equal ones
    counted = np.zeros((2, 2), int)
    np.add.at(counted, (FINE, LABELS), 1)
    assert found.values.tolist() == counted.tolist()
    found.save(tmp_path / "best.parquet")
    assert Aggregate.load(tmp_path / "best.parquet").chosen == found.chosen


def test_runs_have_candidates_and_noise_of_their_own() -> None:
    """Over 60 tunings candidates are uniform, and no answer comes twice: 200 cells of wide
    noise."""
    tries = [(Histogram(2, 0.1, 100), COARSE)] * 3
    picked, seen = Counter[int](), set()

    def score(found: Aggregate) -> float:
        picked[found.chosen] += 1
        seen.add(found.values.tobytes())
        return 0.0

    for _ in range(60):
        best(candidates=tries, score=score)
    total = picked.total()
    assert len(seen) == total
    assert all(
        binom.ppf(FALSE_ALARM / 6, total, 1 / 3)
        <= picked[i]
        <= binom.isf(FALSE_ALARM / 6, total, 1 / 3)
        for i in range(3)
    )


def test_the_number_of_runs_is_geometric() -> None:
    """800 tunings under the operating system's entropy, chi-square: one false alarm in a million;
    1.5 times the mean is rejected."""
    times, runs = 800, []

    def score(found: Aggregate) -> float:
        runs[-1] += 1
        return 0.0

    for _ in range(times):
        runs.append(0)
        tries = [(Histogram(2, 1.0, 1), [0, 0])]
        aggregate_best(private([0, 1]), tries, score, tuning=RepeatAndSelect(3))
    drawn = np.bincount(np.minimum(runs, 9), minlength=10)[1:]
    assert min(runs) == 1

    def statistic(mean: float) -> float:
        law = np.array([float(p) for p in geometric_law(mean, 8)])
        expected = times * np.append(law, 1 - law.sum())
        return float(((drawn - expected) ** 2 / expected).sum())

    assert statistic(3.0) < chi2.isf(FALSE_ALARM, 8) < statistic(4.5)


def test_a_score_that_is_nan_never_wins() -> None:
    tries = [(Histogram(2, 1.0, 1), COARSE), (Histogram(2, 1.0, 2), FINE)]
    found = best(
        candidates=tries,
        tuning=RepeatAndSelect(60),
        score=lambda answer: math.nan if answer.chosen else 0.0,
        noise=ldp.SeededNoise(0),
    )
    assert found.chosen == 0


@pytest.mark.parametrize("wrong", [None, "0.5", [1.0, 2.0], 1j])
def test_a_score_that_is_no_number_is_refused_and_the_charge_is_spent(
    ledger: ldp.Ledger, wrong: object
) -> None:
    with pytest.raises(
        InvalidInput, match=f"number from score, got {type(wrong).__name__}. The charge is spent"
    ):
        best(ledger, score=lambda _: wrong)
    assert ledger.spent("d", "label") == 1.5
    assert best(ledger, score=lambda found: np.float32(purity(found))).epsilon == 1.5


# What is refused
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"candidates": []}, "at least one candidate"),
        ({"candidates": [(Histogram(2, 0.5, 1, "gaussian", 1e-6), COARSE)]}, "pure mechanism"),
        ({"candidates": [(Peer.of(PeerToPeer(0.3), [20], 1e-3), COARSE)]}, "pure mechanism"),
        ({"candidates": [(Peer(2, 0.5, 1, flip=0.3), COARSE)]}, "group of 400 users"),
        ({"candidates": [*CANDIDATES, (Histogram(3, 0.5, 1), COARSE)]}, "same classes"),
        ({"candidates": [("histogram", COARSE)]}, "Expected a query"),
        ({"candidates": [Histogram(2, 0.5, 1)]}, "pairs of a query and"),
        ({"candidates": Histogram(2, 0.5, 1)}, "pairs of a query and"),
        ({"candidates": [(Histogram(2, 0.5, 1), COARSE, FINE)]}, "pairs of a query and"),
        ({"score": "purity"}, "a function of an Aggregate, got str"),
        ({"score": None}, "a function of an Aggregate, got NoneType"),
        ({"candidates": [(Histogram(2, 0.5, 1), FINE)]}, "groups in 0..0"),
        ({"candidates": [(Histogram(2, 0.5, 1), COARSE[:3])]}, "groups of 400 rows"),
        ({"tuning": 8}, "RepeatAndSelect.*got int"),
        ({"classes": ["a", "b"]}, "declared classes"),
        ({"ids": np.zeros(400, int)}, "different ids"),
        ({"dataset": None}, "dataset="),
        ({"noise": ldp.SeededNoise(0)}, "noise=None"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_charged(
    ledger: ldp.Ledger, more: dict[str, object], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        best(ledger, **more)
    assert ledger.runs() == []
