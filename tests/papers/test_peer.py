# SPDX-License-Identifier: Apache-2.0
"""Peer to peer: the exact accountant against fractions and published values, and the protocol as it
runs."""

import json
import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2
from tests.aggregates.exact import report_law

from labeldp.errors import InvalidInput
from labeldp.papers._peer import LawPair, ReportLaws
from labeldp.papers.esfandiari2022 import PeerToPeer, ones_errors, run
from labeldp.testing import CounterWords

VECTORS = json.loads((Path(__file__).parent.parent / "golden" / "vectors.json").read_text())
QUARTER = Fraction(1, 4)


@pytest.mark.parametrize(
    "key", [k for k in VECTORS if re.fullmatch(r"p2p\.memo\.n\dm\da1/4t\d", k)]
)
def test_exact_laws(key: str) -> None:
    n, m, t = (int(v) for v in re.fullmatch(r"p2p\.memo\.n(\d)m(\d)a1/4t(\d)", key).groups())
    assert report_law(n, m, t, QUARTER) == [Fraction(v) for v in VECTORS[key]]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_worst_pure_ratio(n: int) -> None:
    laws = [report_law(n, m, n, QUARTER) for m in range(n + 1)]
    pairs = [
        (laws[m], laws[m + step]) for m in range(n + 1) for step in (-1, 1) if 0 <= m + step <= n
    ]
    worst = max(p / q for here, there in pairs for p, q in zip(here, there, strict=True))
    assert worst == Fraction(VECTORS[f"p2p.memo.pure_ratio.n{n}"][0])
    assert math.log(worst) <= PeerToPeer(0.25).local_epsilon


VALUES = [
    ("p2p.full.n100.a0.25.theta1", 100, 0.25, 1.0),
    ("p2p.full.n100.a0.25.theta0.5", 100, 0.25, 0.5),
    ("p2p.full.n50.a0.2.theta0.5", 50, 0.2, 0.5),
    ("p2p.full.n300.a0.1.theta1", 300, 0.1, 1.0),
    ("p2p.full.n600.a0.1.theta1", 600, 0.1, 1.0),
    ("p2p.n100.alpha0.1.t100.delta1/n2", 100, 0.1, 1.0),
    ("p2p.n100.alpha0.25.t100.delta1/n2", 100, 0.25, 1.0),
    ("p2p.n300.alpha0.1.t300.delta1/n2", 300, 0.1, 1.0),
    ("p2p.n1000.alpha0.1.t1000.delta1/n2", 1000, 0.1, 1.0),
    ("p2p.n1000.alpha0.05.t1000.delta1/n2", 1000, 0.05, 1.0),
]


@pytest.mark.parametrize(("key", "n", "flip", "join"), VALUES)
def test_published_epsilons_from_above(key: str, n: int, flip: float, join: float) -> None:
    wanted = VECTORS[key][0][0] if key.startswith("p2p.full") else VECTORS[key]["memo"][0]
    found = PeerToPeer(flip, join).epsilon(n, 1 / n**2)
    assert wanted - 1e-9 <= found <= wanted + 2.0**-19
    if key.startswith("p2p.n1000.alpha0.1."):
        lemma, local = VECTORS[key]["lemma9"][0], VECTORS[key]["local"]
        # the closed form is worse than the flips alone
        assert 11 * found < lemma and found < local < lemma


PUBLISHED = [
    (key, *re.fullmatch(r"p2p\.n(\d+)\.alpha([\d.]+)\.t(\d+)\.delta1/n2", key).groups())
    for key in VECTORS
    if ".alpha" in key
]


def test_published_epsilon_of_half_as_many_reports_as_users() -> None:
    """A number of reports that is fixed, as published: the least of the accountant's pairs is at
    the ends."""
    reports = ReportLaws(100, 0.25, 1.0)
    reports.times = np.array([50])
    epsilons = [pair.epsilon(1e-4, 0.0, 2.0) for pair in reports.pairs(50)]
    published = VECTORS["p2p.n100.alpha0.25.t50.delta1/n2"]["memo"][0]
    assert published - 1e-9 <= max(epsilons) == epsilons[0] <= published + 2.0**-19


@pytest.mark.parametrize(("key", "n", "flip", "t"), PUBLISHED)
def test_published_epsilons_of_fresh_bits_are_larger(key: str, n: str, flip: str, t: str) -> None:
    """What the closed form bounds: bits drawn anew for every request, so that reports are
    binomial."""
    users, a, reports = int(n), float(flip), int(t)
    pairs = [
        [((users - ones) * a + ones * (1 - a)) / users for ones in (m, m + 1)]
        for m in (0, users - 1)
    ]
    tables = [ReportLaws(users, a, 1.0).binomial(reports, np.array(shares)) for shares in pairs]
    fresh = max(
        LawPair(table, 1e-12, np.zeros(2)).epsilon(1 / users**2, 0.0, 3.0) for table in tables
    )
    assert VECTORS[key]["fresh"][0] == pytest.approx(fresh, abs=2.0**-19)
    assert (
        VECTORS[key]["memo"][0]
        < fresh
        < PeerToPeer(a).local_epsilon
        == pytest.approx(VECTORS[key]["local"], rel=1e-15)
    )


def closed_form(s: float, flip: float, join: float, xi: float) -> tuple[float, float]:
    """Lemma 9 of the source: (epsilon, delta). Not what labeldp accounts with."""
    epsilon = join * math.log(math.e + 3 / (s * flip)) + math.sqrt(join) * xi * math.log(
        1 + 3 / math.sqrt(s * flip)
    )
    return epsilon, math.exp(-flip * xi**2 / (4 * (flip + 1 / s) * (1 - flip)))


@pytest.mark.parametrize(("key", "n", "flip", "t"), PUBLISHED)
def test_the_closed_form_where_it_applies_is_worse_than_the_flips(
    key: str, n: str, flip: str, t: str
) -> None:
    s, a = int(n), float(flip)
    xi = math.sqrt(4 * (a + 1 / s) * (1 - a) * 2 * math.log(s) / a)  # so that delta is 1 / n^2
    most = 3 * a * math.sqrt(s * (1 - a))
    if t != n or xi > most:
        assert VECTORS[key]["lemma9"] is None
        return
    epsilon, delta = closed_form(s, a, 1.0, xi)
    assert [epsilon, xi, most] == pytest.approx(VECTORS[key]["lemma9"], rel=1e-12)
    assert delta == pytest.approx(1 / s**2, rel=1e-9)
    assert epsilon > PeerToPeer(a).local_epsilon


@pytest.mark.parametrize("join", [1.0, 0.5, 0.1])
def test_theorem_3_needs_many_users_and_labels_that_are_nearly_coins(join: float) -> None:
    """Its flips, 4 sqrt(2) ln s / sqrt(join s), are below 1/2 only from so many users on; with
    them, epsilon is still above join. The vectors' numbers of users are the first of a coarse grid
    at which they are."""
    flips = lambda s: 4 * math.sqrt(2) * math.log(s) / math.sqrt(join * s)  # noqa: E731
    least, a, published = VECTORS[f"thm3.min_s.theta{join:g}"]
    assert flips(least) == pytest.approx(a, rel=1e-12)
    assert flips(least) < 0.5 < flips(least - least // 100)
    assert join != 1 or flips(11_108) < 0.5 < flips(11_107)
    epsilon, delta = closed_form(least, a, join, 4 * math.sqrt(math.log(least)))
    assert [epsilon, delta] == pytest.approx(published, rel=1e-9)
    assert epsilon > join
    assert closed_form(10**6, flips(10**6), join, 4 * math.sqrt(math.log(10**6)))[0] > join
    if join == 1:
        at, both = VECTORS["thm3.s1e6"]
        assert flips(10**6) == pytest.approx(at, rel=1e-12)
        assert closed_form(10**6, at, 1.0, 4 * math.sqrt(math.log(10**6))) == pytest.approx(
            tuple(both), rel=1e-9
        )


@pytest.mark.parametrize(
    ("n", "flip", "join"),
    [(40, 0.25, 1.0), (40, 0.1, 0.5), (200, 0.3, 1.0), (1, 0.2, 1.0), (2, 0.2, 0.3)],
)
def test_the_ends_are_the_worst_of_all(n: int, flip: float, join: float) -> None:
    mechanism = PeerToPeer(flip, join)
    for epsilon in (0.0, 0.05, 0.3):
        every, ends = (mechanism.delta(n, epsilon, search=search) for search in ("all", "ends"))
        assert every == pytest.approx(ends, rel=1e-6, abs=1e-11)
        assert mechanism.delta(n, epsilon) == every


def test_near_fair_coins_at_epsilon_zero_the_ends_are_not_the_worst() -> None:
    """Why two evaluations are no proof: with flips of 0.4 a cluster of mixed labels hides one of
    them a little worse than a uniform one."""
    mechanism = PeerToPeer(0.4)
    every, ends = (mechanism.delta(300, 0.0, search=search) for search in ("all", "ends"))
    assert 1.0003 < every / ends < 1.0004
    assert mechanism.delta(300, 0.0) == every


@pytest.mark.parametrize(("n", "join"), [(6, 1), (9, 1), (5, Fraction(1, 2))])
def test_delta_is_rounded_up_from_the_exact_sum(n: int, join: Fraction) -> None:
    """Against fractions: every m, both directions; t binomial where users join by chance."""
    for epsilon in (0.0, 0.1, 0.5):
        gain, total = Fraction(math.exp(epsilon)), Fraction(0)
        for m in range(n):
            for here, there in ((m, m + 1), (m + 1, m)):
                found = Fraction(0)
                for t in range(n + 1):
                    chance = math.comb(n, t) * Fraction(join) ** t * (1 - Fraction(join)) ** (n - t)
                    if chance:
                        laws = report_law(n, here, t, QUARTER), report_law(n, there, t, QUARTER)
                        found += chance * sum(
                            max(Fraction(0), p - gain * q) for p, q in zip(*laws, strict=True)
                        )
                total = max(total, found)
        claim = PeerToPeer(0.25, float(join)).delta(n, epsilon)
        assert total <= claim <= float(total) + 1e-10


def test_what_is_claimed_by_default_is_proven() -> None:
    """Above 300 users, a random number of reports is bounded by all of them: never below the two
    evaluations that prove nothing."""
    mechanism = PeerToPeer(0.1, 0.5)
    assert (
        mechanism.delta(400, 0.2)
        == PeerToPeer(0.1).delta(400, 0.2, search="all")
        >= mechanism.delta(400, 0.2, search="ends")
    )


def test_nothing_is_claimed_below_what_the_pure_ratio_needs() -> None:
    """At a tiny delta, epsilon is that of the worst outcome: ln 11/5 for two users."""
    assert PeerToPeer(0.25).epsilon(2, 1e-9) == pytest.approx(math.log(11 / 5), abs=2e-6)
    assert PeerToPeer(0.25).epsilon(2, 1e-9) >= math.log(11 / 5) - 1e-8


# The protocol
# --------------------------------------------------------------------------------------------------


def counts_of_ones(mechanism: PeerToPeer, labels: list[int], rounds: int, seed: int) -> np.ndarray:
    """How often each number of ones was reported, over independent clusters of the same labels."""
    n = len(labels)
    words = CounterWords(np.arange(n * rounds, dtype=np.int64), seed=seed)
    groups = np.repeat(np.arange(rounds), n)
    users, bits = run(mechanism, np.tile(labels, rounds), groups, words)
    ones = np.bincount(groups[users], weights=bits, minlength=rounds).astype(int)
    return np.bincount(ones, minlength=n + 1)


def test_reports_follow_the_exact_law_and_not_that_of_fresh_noise() -> None:
    """20,000 clusters of four users, chi-square at 1e-6. Were a bit drawn anew for every request,
    ones would be binomial: rejected."""
    labels, rounds = [1, 0, 0, 0], 20_000
    seen = counts_of_ones(PeerToPeer(0.25), labels, rounds, seed=1)
    wanted = rounds * np.array([float(p) for p in report_law(4, 1, 4, QUARTER)])
    limit = float(chi2.isf(1e-6, 4))
    assert ((seen - wanted) ** 2 / wanted).sum() < limit
    share = 0.25 * 0.75 + 0.75 * 0.25
    fresh = rounds * np.array(
        [math.comb(4, k) * share**k * (1 - share) ** (4 - k) for k in range(5)]
    )
    assert ((seen - fresh) ** 2 / fresh).sum() > limit
    louder = rounds * np.array(
        [float(p) for p in report_law(4, 1, 4, Fraction(1, 4) / Fraction(13, 10))]
    )
    assert ((seen - louder) ** 2 / louder).sum() > limit


def test_users_join_and_ask_uniformly() -> None:
    n = 30_000
    words = CounterWords(np.arange(n, dtype=np.int64), seed=3)
    groups = np.arange(n) // 3
    users, told = run(PeerToPeer(1e-9, 0.3), (np.arange(n) % 3 == 0).astype(int), groups, words)
    assert abs(len(users) - 0.3 * n) < 5 * math.sqrt(0.21 * n)
    # whoever asks, one of the three has a one; with flips next to never, a third of the answers are
    # ones
    for place in range(3):
        bits = told[users % 3 == place]
        assert abs(bits.mean() - 1 / 3) < 5 * math.sqrt(2 / 9 / len(bits))
    assert len(set(users.tolist())) == len(users)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PeerToPeer(0.0), "flip"),
        (lambda: PeerToPeer(0.5), "says nothing"),
        (lambda: PeerToPeer(math.nan), "flip"),
        (lambda: PeerToPeer(0.1, 0.0), "join"),
        (lambda: PeerToPeer(0.1).delta(0, 1.0), "n_users"),
        (lambda: PeerToPeer(0.1).delta(20_000, 1.0), "only help"),
        (lambda: PeerToPeer(0.1).delta(10, -1.0), "epsilon"),
        (lambda: PeerToPeer(0.1).epsilon(10, 0.0), "delta"),
        (lambda: PeerToPeer(0.1).epsilon(10, 0.1, search="some"), "search"),
        (lambda: run(PeerToPeer(0.1), [0, 2], [0, 0], CounterWords(np.arange(2))), "0 and 1"),
        (lambda: run(PeerToPeer(0.1), [0, 1], [0.5, 0.5], CounterWords(np.arange(2))), "cluster"),
        (lambda: run(PeerToPeer(0.1), [0, 1], [0, 0], CounterWords(np.arange(3))), "word stream"),
    ],
)
def test_bad_input(make, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


@pytest.mark.parametrize(("n", "m", "t"), [(4, 2, 4), (3, 1, 6), (5, 5, 2), (1, 0, 1)])
def test_the_standard_error_is_that_of_the_exact_law(n: int, m: int, t: int) -> None:
    law = report_law(n, m, t, QUARTER)
    mean = sum(k * p for k, p in enumerate(law)) / t
    variance = sum((Fraction(k, t) - mean) ** 2 * p for k, p in enumerate(law))
    # so that the observed share can be the mean; the law of t reports is then put back by hand
    scaled = 1000 * t
    ones = mean * scaled
    many = (
        ones_errors(
            PeerToPeer(0.25), np.array([[scaled - float(ones), float(ones)]]), np.array([n])
        )[0]
        ** 2
        / 4
    )
    drawn = float(mean * (1 - mean) / t + (1 - Fraction(1, t)) * QUARTER * (1 - QUARTER) / n)
    assert drawn == pytest.approx(float(variance), rel=1e-12)
    assert many == pytest.approx(
        float(mean * (1 - mean) / scaled + (1 - Fraction(1, scaled)) * QUARTER * (1 - QUARTER) / n),
        rel=1e-12,
    )
