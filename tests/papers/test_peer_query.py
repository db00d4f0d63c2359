# SPDX-License-Identifier: Apache-2.0
"""Peer to peer through the door: the exact law of what is reported, the sizes that an epsilon holds
for, and one charge."""

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import chi2, ncx2
from tests.aggregates.exact import report_law

import labeldp as ldp
from labeldp.aggregates import Aggregate, Histogram, query_from_dict
from labeldp.custody import _answer as answers
from labeldp.custody._aggregation import aggregate_batches
from labeldp.errors import InvalidInput
from labeldp.noise import _secrets as keys
from labeldp.noise import _words as noise
from labeldp.papers.esfandiari2022 import Peer, PeerToPeer

FALSE_ALARM = 1e-9  # of each check; noise is the operating system's
QUARTER = Fraction(1, 4)
RNG = np.random.default_rng(4)
SIZES = [120, 80, 0, 100]
GROUPS = np.repeat(np.arange(4), SIZES)
LABELS = (RNG.random(300) < np.array([0.1, 0.8, 0.5, 0.5])[GROUPS]).astype(int)
PROTOCOL = PeerToPeer(0.1, 0.9)
QUERY = Peer.of(PROTOCOL, SIZES, delta=1e-4)


# Deltas of these tests are large, so that few rows serve.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Expected delta far below:labeldp.errors.LabelDPWarning"
)


@pytest.fixture
def ledger(tmp_path: Path) -> ldp.Ledger:
    return ldp.Ledger(tmp_path / "ledger.db", budget=10.0)


def ask(
    ledger: ldp.Ledger | None = None, query: Peer = QUERY, redraw: bool = False, **more: object
) -> Aggregate:
    facts = {"classes": [0, 1], "dataset": "d", "column": "label", "ledger": ledger} | more
    return ldp.aggregate(ldp.PrivateLabels(LABELS, **facts), query, GROUPS, redraw=redraw)


# The law
# --------------------------------------------------------------------------------------------------


def joint_law(labels: list[int], flip: Fraction, join: Fraction) -> dict[tuple[int, int], float]:
    """Of the reported (zeros, ones) of one group: how many take part is binomial, and what they
    report has `report_law`."""
    n, law = len(labels), {}
    for t in range(n + 1):
        chance = math.comb(n, t) * join**t * (1 - join) ** (n - t)
        for ones, p in enumerate(report_law(n, sum(labels), t, flip)):
            law[t - ones, ones] = float(chance * p)
    return {outcome: p for outcome, p in law.items() if p}


def fits(values: np.ndarray, law: dict[tuple[int, int], float]) -> bool:
    """Chi-square at the false-alarm rate."""
    seen = np.array([np.count_nonzero((values == outcome).all(axis=1)) for outcome in law])
    expected = len(values) * np.array(list(law.values()))
    assert expected.min() > 50
    return bool(
        seen.sum() == len(values)
        and ((seen - expected) ** 2 / expected).sum() < chi2.isf(FALSE_ALARM, len(law) - 1)
    )


@pytest.mark.parametrize(
    ("labels", "join"), [([1, 0, 0, 0], 1.0), ([1, 1, 0], 0.5), ([0], 1.0), ([1, 1], 1.0)]
)
def test_what_is_reported_has_the_exact_law_and_no_other(labels: list[int], join: float) -> None:
    """30,000 groups of the same labels, under the operating system's entropy: each check alarms
    once in 10^9 runs or less."""
    n, times = len(labels), 30_000
    query = Peer.of(PeerToPeer(0.25, join), np.full(times, n), delta=1e-3)
    order = RNG.permutation(n * times)  # who stands where says nothing
    answer = ldp.aggregate(
        ldp.PrivateLabels(np.tile(labels, times)[order], classes=range(query.n_classes)),
        query,
        np.repeat(np.arange(times), n)[order],
    )
    assert answer.n_rows.tolist() == [n] * times
    assert fits(answer.values, joint_law(labels, QUARTER, Fraction(join)))
    quieter = joint_law(labels, QUARTER * Fraction(2, 3), Fraction(join))
    true = joint_law(labels, QUARTER, Fraction(join))
    apart = times * sum((true[outcome] - p) ** 2 / p for outcome, p in quieter.items())
    # else chance would accept it
    assert ncx2.cdf(chi2.isf(FALSE_ALARM, len(quieter) - 1), len(quieter) - 1, apart) < FALSE_ALARM
    assert not fits(answer.values, quieter)
    if n > 2:
        assert not fits(
            answer.values, joint_law([1 - label for label in labels], QUARTER, Fraction(join))
        )


def test_a_bit_is_flipped_once_for_all_who_ask() -> None:
    """Were it drawn anew for each request, the ones of a group would be binomial."""
    times, share = 30_000, 0.25 * 0.75 + 0.75 * 0.25
    query = Peer.of(PeerToPeer(0.25), np.full(times, 4), delta=1e-3)
    values = ldp.aggregate(
        ldp.PrivateLabels(np.tile([1, 0, 0, 0], times), classes=range(query.n_classes)),
        query,
        np.repeat(np.arange(times), 4),
    ).values
    assert not fits(
        values, {(4 - k, k): math.comb(4, k) * share**k * (1 - share) ** (4 - k) for k in range(5)}
    )


def test_the_words_of_a_group_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many groups are drawn at a time, for every query."""
    for query in (QUERY, Histogram(2, 1.0, 4)):
        whole = ask(query=query, noise=ldp.SeededNoise(1)).values.tolist()
        for chunk in (1, 7, 150):
            monkeypatch.setattr(answers, "CHUNK", chunk)
            assert ask(query=query, noise=ldp.SeededNoise(1)).values.tolist() == whole
        monkeypatch.undo()


# What it is good for
# --------------------------------------------------------------------------------------------------


def test_priors_are_unbiased_shares_of_ones() -> None:
    found = ask()
    zeros, ones = found.values.T
    wanted = np.clip((ones[[0, 1, 3]] / (zeros + ones)[[0, 1, 3]] - 0.1) / 0.8, 0, 1)
    assert found.prior([0, 1, 3])[:, 1].tolist() == wanted.tolist()
    assert found.prior([0, 0, 2]).sum(axis=1).tolist() == [1, 1, 1]
    assert found.prior([2]).tolist() == [[0.5, 0.5]]
    assert found.values[2].tolist() == [0, 0]
    assert found.predict([0, 1]).tolist() == [0, 1]  # by more than ten standard deviations
    many = ldp.aggregate(
        ldp.PrivateLabels(np.tile([1, 0, 0, 0], 3000), classes=[0, 1]),
        Peer.of(PROTOCOL, [80] * 150, 1e-4),
        np.repeat(np.arange(150), 80),
    )
    deviation = math.sqrt(2 * 0.25 / (0.9 * 80)) / 0.8
    assert abs(many.prior(np.arange(150))[:, 1].mean() - 0.25) < 6 * deviation / math.sqrt(150)
    silent = Aggregate(QUERY, np.zeros((4, 2), int), np.array(SIZES), (0, 1), found.receipt)
    assert silent.prior([0]).tolist() == [[0.5, 0.5]]  # users, but none of them joined


# Sizes
# --------------------------------------------------------------------------------------------------


def test_epsilon_is_that_of_the_group_that_hides_least() -> None:
    assert QUERY.epsilon == PROTOCOL.epsilon(80, 1e-4)
    assert all(PROTOCOL.delta(size, QUERY.epsilon) <= 1e-4 for size in SIZES if size)
    assert (QUERY.n_groups, QUERY.n_classes, QUERY.delta, QUERY.flip, QUERY.join) == (
        4,
        2,
        1e-4,
        0.1,
        0.9,
    )


def test_what_was_made_for_larger_groups_is_refused_before_a_charge(ledger: ldp.Ledger) -> None:
    table = pa.table({"y": LABELS, "g": GROUPS})
    for query in (
        Peer.of(PROTOCOL, [200] * 4, 1e-4),
        replace(QUERY, epsilon=QUERY.epsilon * 0.99),
        replace(QUERY, delta=1e-5),
    ):
        with pytest.raises(InvalidInput, match="group of 80 users"):
            ask(ledger, query)
        with pytest.raises(InvalidInput, match="group of 80 users"):
            aggregate_batches(
                table, query, label="y", group="g", classes=[0, 1], dataset="d", ledger=ledger
            )
    assert ledger.runs() == []
    ask(ledger, Peer.of(PROTOCOL, [60] * 4, 1e-4))  # smaller groups hide less than these


def test_the_flips_alone_hold_for_every_group() -> None:
    query = Peer(2, PROTOCOL.local_epsilon, 1, flip=0.1, join=0.9)
    found = ldp.aggregate(
        ldp.PrivateLabels(np.tile(LABELS, 60), classes=[0, 1]), query, np.zeros(18_000, int)
    )
    assert (found.epsilon, found.delta) == (PROTOCOL.local_epsilon, 0.0)
    with pytest.raises(InvalidInput, match="group of 1 users"):
        ldp.aggregate(ldp.PrivateLabels([1], classes=[0, 1]), replace(query, epsilon=2.19), [0])
    with pytest.raises(InvalidInput, match="at most 16384 users"):
        Peer.of(PROTOCOL, [18_000], 1e-4)


# The ledger
# --------------------------------------------------------------------------------------------------


def test_it_is_charged_once_stored_and_repeated(ledger: ldp.Ledger, tmp_path: Path) -> None:
    one = ask(ledger)
    table = pa.table({"label": LABELS, "cluster": GROUPS})
    two = aggregate_batches(
        table, QUERY, label="label", group="cluster", classes=[0, 1], dataset="d", ledger=ledger
    )
    assert (two.values.tolist(), two.receipt, two.query) == (
        one.values.tolist(),
        one.receipt,
        QUERY,
    )
    assert (one.epsilon, one.delta, one.privacy.unit) == (QUERY.epsilon, 1e-4, "row")
    (run,) = ledger.runs()
    assert run.receipt.event == {"event": "aggregate", "query": QUERY.to_dict()} | {
        name: getattr(one.receipt, name)
        for name in ("epsilon", "delta", "unit", "max_rows_per_unit")
    }
    assert ledger.spent("d", "label") == QUERY.epsilon
    assert ledger.verify([one.receipt]) == []
    assert ask(ledger, redraw=True).values.tolist() != one.values.tolist()
    assert len(ledger.runs()) == 2
    one.save(tmp_path / "answer.parquet")
    again = Aggregate.load(tmp_path / "answer.parquet")
    assert (again.query, again.values.tolist(), again.receipt) == (
        QUERY,
        one.values.tolist(),
        one.receipt,
    )
    assert query_from_dict(QUERY.to_dict()) == QUERY


# What is refused
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"unit": np.arange(300)}, "a row a user"),
        ({"unit": np.arange(300) // 2, "max_rows_per_unit": 2}, "a row a user"),
        ({"max_rows_per_unit": 2}, "unit="),
        ({"classes": [0, 1, 2]}, "over 3 classes"),
    ],
)
def test_rows_that_are_no_users_are_refused(
    ledger: ldp.Ledger, more: dict[str, object], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        ask(ledger, **more)
    assert ledger.runs() == []


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Peer(3, 1.0, 1, flip=0.1), "two classes"),
        (lambda: Peer(2, 1.0, 1, flip=0.5), "says nothing"),
        (lambda: Peer(2, 1.0, 1, flip=0.1, join=0.0), "join"),
        (lambda: Peer(2, 1.0, 1, "laplace", flip=0.1), "peer-to-peer"),
        (lambda: Peer.of(PROTOCOL, [], 1e-4), "users of each group"),
        (lambda: Peer.of(PROTOCOL, [10.5], 1e-4), "users of each group"),
        (lambda: Peer.of(PROTOCOL, [-1], 1e-4), "users of each group"),
        (lambda: Peer.of(PROTOCOL, [10], 0.0), "delta"),
        (lambda: query_from_dict(QUERY.to_dict() | {"rounds": 2}), "fields of a peer query"),
        (
            lambda: QUERY.release(np.array([[1, 1]]), noise.RowWords(KEY, noise.row_blocks(3))),
            "words of each user",
        ),
        (
            lambda: QUERY.release(np.array([[1, 1]]), noise.RowWords(KEY, noise.row_blocks(2)), 2),
            "words of each user",
        ),
    ],
)
def test_bad_queries(make, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        make()


KEY = keys.Key("aggregate", bytes(16))
