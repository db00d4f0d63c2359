# SPDX-License-Identifier: Apache-2.0
"""PriorBins: the bins are the best ones of each row, and a learner counts what they tell
exactly."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import norm

import labeldp as ldp
from labeldp.evidence._noisy import pack, unpack
from labeldp.laws import PriorBins, SquareWave, Threshold, law_named
from labeldp.laws._exact import pack_sets, unpack_sets
from labeldp.laws._prior_bins import CRITERIA
from labeldp.learn._location import Family, Partitions

K = 7
PRIORS = np.random.default_rng(0).dirichlet(np.full(K, 0.7), 12)


def channel(starts: np.ndarray, epsilon: float) -> np.ndarray:
    """Randomized response over bins: (K, m)."""
    bins = np.cumsum(starts) - 1
    m = bins[-1] + 1
    return np.where(bins[:, None] == np.arange(m), np.exp(epsilon), 1.0) / (np.exp(epsilon) + m - 1)


def gained(prior: np.ndarray, matrix: np.ndarray, criterion: str) -> float:
    """Information, or the variance that the output explains."""
    out = prior @ matrix
    if criterion == "location":
        step = 1e-4
        # where the classes end, if the label is normal
        at = norm.ppf(np.clip(np.cumsum(prior)[:-1], 1e-12, 1 - 1e-12))
        moved = [np.diff(norm.cdf(at - by), prepend=0, append=1) for by in (step, -step)]
        return float((((moved[0] - moved[1]) / (2 * step) @ matrix) ** 2 / out).sum())
    if criterion == "information":
        return float((prior[:, None] * matrix * np.log(matrix / out)).sum())
    number = np.arange(len(prior))
    return float(((prior * number) @ matrix) ** 2 @ (1 / out) - (prior @ number) ** 2)


def all_starts(k: int, most: int) -> list[np.ndarray]:
    cuts = [each for size in range(1, most) for each in combinations(range(1, k), size)]
    return [np.isin(np.arange(k), (0, *each)) for each in cuts]


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 2.0, 4.0, 8.0])
def test_no_other_bins_of_few_classes_are_better(criterion: str, epsilon: float) -> None:
    law, copies = PriorBins(K, epsilon, criterion), 60
    starts = law.bins(law.prepare(np.repeat(PRIORS, copies, axis=0)))
    for i, prior in enumerate(PRIORS):
        best = max(gained(prior, channel(each, epsilon), criterion) for each in all_starts(K, K))
        mine = [
            gained(prior, channel(np.diff(row, prepend=-1) > 0, epsilon), criterion)
            for row in starts[i * copies : (i + 1) * copies]
        ]
        # most rows get the best bins, the others any threshold; what these lose is a tenth at most,
        # on the average over public words
        assert max(mine) == pytest.approx(best, rel=1e-4, abs=1e-9)
        assert np.mean(mine) > 0.8 * best


@pytest.mark.parametrize(
    ("criterion", "epsilon"),
    [("location", 1.0), ("location", 4.0), ("squared_error", 4.0), ("information", 2.0)],
)
def test_bins_of_many_classes_are_nearly_the_best_and_differ(
    criterion: str, epsilon: float
) -> None:
    k = 40
    prior = np.exp(-0.5 * ((np.arange(k) - 13) / 5.0) ** 2)
    prior[20] += prior.sum()  # half of the mass is in one class
    prior /= prior.sum()
    law = PriorBins(k, epsilon, criterion)
    starts = law.prepare(np.repeat(prior[None], 400, axis=0))
    mine = [
        gained(prior, channel(np.diff(row, prepend=-1) > 0, epsilon), criterion)
        for row in law.bins(starts)
    ]
    best = max(gained(prior, channel(each, epsilon), criterion) for each in all_starts(k, 4))
    assert np.median(mine) > 0.97 * best and np.mean(mine) > 0.85 * best
    assert len(np.unique(starts["starts"], axis=0)) > 20


def test_any_threshold_is_asked_sometimes_and_certainty_is_no_trap() -> None:
    sure = np.zeros((4000, 12))
    sure[:, 3] = 1.0
    law = PriorBins(12, 4.0)
    starts = law.bins(law.prepare(sure))
    # the prior's variance is 0: all are equally good
    assert set(np.unique(starts.argmax(axis=1))) == set(range(1, 12))
    peaked = np.full((40_000, 12), 0.002)
    peaked[:, 3:5] = 0.5
    bins = law.bins(law.prepare(peaked))
    asked = np.bincount(bins[bins[:, -1] == 1].argmax(axis=1), minlength=12)[1:] / len(bins)
    assert (asked > 0.9 / (10 * 11)).all()  # an asked threshold's least chance is 1 / (10 (K - 1))


def test_the_learner_knows_the_expected_information_of_each_rows_bins() -> None:
    grid = ldp.Grid(0, 10, points=21)
    rng, epsilon = np.random.default_rng(1), 3.0
    prior = np.exp(
        -0.5 * ((np.array(grid) - rng.uniform(0, 10, (30, 1))) / rng.uniform(0.5, 3, (30, 1))) ** 2
    )
    y = rng.choice(np.array(grid), 30)
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=grid, noise=ldp.SeededNoise(0)),
        PriorBins(21, epsilon),
        prior=prior,
    )
    (block,) = noisy.blocks
    middles = (np.array(grid)[1:] + np.array(grid)[:-1]) / 2
    family, places = Family(np.array(grid), 1.3, middles), rng.uniform(-1, 11, 30)
    found = Partitions.of(noisy).information(family, places)
    step = 1e-5
    for i, place in enumerate(places):
        table = block.law.table({name: value[i] for name, value in block.side.items()})
        matrix = np.array(table.values, np.float64)[table.index]
        p, up, down = (
            family.probabilities(np.array([place + by])) @ matrix for by in (0, step, -step)
        )
        exact = float((((up - down) / (2 * step)) ** 2 / p).sum())
        assert found[i] == pytest.approx(exact, rel=1e-4)


def test_rows_with_a_bin_for_each_class_have_unbiased_weights() -> None:
    law, prior = PriorBins(4, 4.0, "information"), np.array([[1.0, 1, 1, 1], [9.0, 0.01, 0.01, 9]])
    noisy = ldp.privatize(
        ldp.PrivateLabels([0, 3] * 50, classes=range(4), noise=ldp.SeededNoise(0)),
        law,
        prior=np.tile(prior, (50, 1)),
    )
    single = law.counts(noisy.blocks[0].side) == 4
    assert single.any() and not single.all() and (noisy.invertible == single).all()
    losses = np.arange(4.0)
    table = law.table({name: value[single][0] for name, value in noisy.blocks[0].side.items()})
    chosen = np.repeat(np.flatnonzero(single)[:1], 4)
    side = {name: value[chosen] for name, value in noisy.blocks[0].side.items()}
    debiased = law.weights(pack_sets(table.outputs), side) @ losses
    assert np.array(table.values, float)[table.index] @ debiased == pytest.approx(losses)


@pytest.mark.parametrize("k", [2, 7, 8, 9, 64])
def test_evidence_that_was_never_drawn_is_refused(k: int) -> None:
    """Another likelihood would come of it without a word: one of more bins, of no bin, or of parts
    of bins."""
    law, rng = PriorBins(k, 4.0), np.random.default_rng(0)
    noisy = ldp.privatize(
        ldp.PrivateLabels(rng.integers(k, size=60), classes=range(k), noise=ldp.SeededNoise(0)),
        law,
        prior=rng.dirichlet(np.full(k, 0.5), 60),
    )
    (block,) = noisy.blocks
    raw, width = pack(law, block.outputs, block.side), block.outputs.shape[1]
    assert (unpack(law, raw)[0] == block.outputs).all()
    with pytest.raises(ldp.errors.InvalidInput, match="can have drawn in every row"):
        unpack(law, np.zeros_like(raw))
    for row in range(60):
        for bit in range(16 * width):  # each of output and starts
            changed = raw[row : row + 1].copy()
            changed[0, bit // 8] ^= np.uint8(1 << bit % 8)
            try:
                outputs, side = unpack(law, changed)
            except ldp.errors.InvalidInput:
                continue
            drawable = law.table({name: value[0] for name, value in side.items()}).outputs
            starts = np.unpackbits(side["starts"][0], bitorder="little")
            # other bins, drawn from as these are
            assert (
                bit >= 8 * width and starts[0] and not starts[k:].any() and 2 <= starts.sum() <= 8
            )
            assert unpack_sets(outputs, k)[0].tolist() in drawable.tolist()


def test_unlike_a_threshold_it_has_no_unbiased_weights() -> None:
    y = np.arange(200) % 9
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=ldp.Grid(0, 8, points=9), noise=ldp.SeededNoise(0)),
        PriorBins(9, 2.0),
    )
    assert not noisy.invertible.any() and noisy.blocks[0].law.kind == Threshold(9, 2.0).kind
    mean = ldp.stats.mean(noisy)["mean"]  # by maximum likelihood
    assert mean.low < y.mean() < mean.high


@pytest.mark.parametrize(
    "law",
    [
        ldp.SubsetSelection(5, 1.0),
        Threshold(5, 1.0),
        SquareWave(5, 1.0),
        ldp.RandomizedResponse(5, 1.0),
    ],
    ids=repr,
)
def test_evidence_of_no_class_is_refused(law: ldp.Law) -> None:
    noisy = ldp.privatize(
        ldp.PrivateLabels(np.arange(40) % 5, classes=range(5), noise=ldp.SeededNoise(0)), law
    )
    (block,) = noisy.blocks
    raw = pack(law, block.outputs, block.side)
    assert len(unpack(law, raw)[0]) == 40
    for byte in (0, 0xE0) if law.kind == "set" else (7, 0xFF):
        changed = raw.copy()
        changed[3, 0] = byte
        with pytest.raises(ldp.errors.InvalidInput, match="damaged"):
            unpack(law, changed)


@pytest.mark.parametrize("name", ["prior-bins:bogus", "prior-bins:", "prior-bins:3"])
def test_a_criterion_that_is_none_is_answered_by_the_accepted_spellings(name: str) -> None:
    accepted = ("prior-bins:squared_error", "prior-bins:location", "prior-bins:information")
    with pytest.raises(
        ldp.errors.InvalidInput, match=f"As the name of a law: {', '.join(accepted)}."
    ):
        law_named(name, 8, 1.0)
    assert {law_named(each, 8, 1.0).criterion for each in accepted} == {
        each.partition(":")[2] for each in accepted
    }


def test_combinations_of_columns_have_no_order_for_bins() -> None:
    columns = ldp.LabelColumns({"a": [0, 1], "b": [0, 1, 2]})
    with pytest.raises(ldp.errors.InvalidInput, match="without an order"):
        columns.law(1.0, "joint", "prior-bins")
