# SPDX-License-Identifier: Apache-2.0
"""NoisyLabels: a sequence of rows whose evidence multiplies, whose spend composes, and which
survives a file."""

import itertools
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest

import labeldp as ldp
from labeldp.evidence import Block, NoisyLabels
from labeldp.evidence._noisy import places_of
from labeldp.papers.malek2021 import Alibi
from labeldp.receipt import LedgerEntry, Receipt

LAWS = [
    ldp.RandomizedResponse(4, 1.0),
    ldp.SubsetSelection(4, 1.0, size=2),
    ldp.RRTopK(4, 1.0, k=2),
    ldp.RRWithPrior(4, 1.0),
    ldp.PriorSplit(4, 1.0),
    ldp.AutoLaw(4, 1.0),
    ldp.ClusterRR(4, 1.0, 0.05),
    Alibi(4, 1.0),
]


def draw(law, n=200, seed=0, **options):
    rng = np.random.default_rng(seed)
    prior = rng.dirichlet(np.ones(law.n_classes), n) if law.uses_prior else None
    facts = {"classes": range(law.n_classes), "noise": ldp.SeededNoise(seed)} | options
    labels = ldp.PrivateLabels(rng.integers(law.n_classes, size=n), **facts)
    return ldp.privatize(labels, law, prior=prior)


def receipt(run_id, epsilon=1.0, **fields):
    facts = {
        "dataset": "d",
        "column": "y",
        "unit": "row",
        "max_rows_per_unit": 1,
        "entry": LedgerEntry(fields.pop("recorded", True)),
        "secure": True,
    }
    return Receipt(run_id=run_id, epsilon=epsilon, **(facts | fields))


def noisy_of(run_id, ids, epsilon=1.0, explicit=True, **fields):
    law = ldp.RandomizedResponse(3, epsilon)
    block = Block(
        law,
        np.zeros(len(ids), np.int32),
        {},
        np.arange(len(ids)),
        receipt(run_id, epsilon, **fields),
    )
    return NoisyLabels(len(ids), (0, 1, 2), (block,), np.asarray(ids), explicit)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_likelihood_has_row_maximum_one_and_picks_rows(law):
    noisy = draw(law)
    likelihood = noisy.likelihood()
    assert likelihood.shape == (200, 4) and likelihood.dtype == np.float32
    np.testing.assert_allclose(likelihood.max(axis=1), 1)
    rows = np.array([5, 3, 3, 199])
    np.testing.assert_array_equal(noisy.likelihood(rows), likelihood[rows])
    np.testing.assert_array_equal(noisy[rows].likelihood(), likelihood[rows])
    np.testing.assert_array_equal(
        noisy[likelihood[:, 0] == 1].likelihood(), likelihood[likelihood[:, 0] == 1]
    )


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_file_gives_back_the_same_evidence(law, tmp_path):
    noisy = draw(law)
    noisy.save(tmp_path / "noisy.parquet")
    again = NoisyLabels.load(tmp_path / "noisy.parquet")
    np.testing.assert_array_equal(again.log_likelihood(), noisy.log_likelihood())
    assert (
        again.receipts == noisy.receipts
        and again.privacy == noisy.privacy
        and again.classes == noisy.classes
    )
    assert pickle.loads(pickle.dumps(noisy)).receipts == noisy.receipts


def test_file_keeps_several_draws_string_ids_and_rows_without_evidence(tmp_path):
    ids = np.array([f"user-{i}" for i in range(200)])
    first, second = draw(LAWS[0], ids=ids), draw(LAWS[1], ids=ids, seed=1)
    both = ldp.concat([first.combine(second)[:150], first[150:]])
    both.save(tmp_path / "both.parquet")
    again = NoisyLabels.load(tmp_path / "both.parquet")
    np.testing.assert_array_equal(again.log_likelihood(), both.log_likelihood())
    np.testing.assert_array_equal(again.ids, ids)


def test_a_damaged_file_is_refused(tmp_path):
    table = draw(LAWS[0]).to_table()
    with pytest.raises(ldp.InvalidInput, match="format"):
        NoisyLabels.from_table(table.replace_schema_metadata(None))
    other = table.set_column(
        table.column_names.index("evidence_0"), "evidence_0", draw(LAWS[1]).to_table()["evidence_0"]
    )
    with pytest.raises(ldp.InvalidInput, match="bytes of evidence"):
        NoisyLabels.from_table(other)


def test_independent_draws_multiply_and_one_draw_never_counts_twice():
    first, second = draw(LAWS[0]), draw(LAWS[1], seed=1)
    both = first.combine(second)
    expected = first.log_likelihood(dtype="float64") + second.log_likelihood(dtype="float64")
    np.testing.assert_allclose(
        both.log_likelihood(dtype="float64"),
        expected - expected.max(axis=1, keepdims=True),
        atol=1e-12,
    )
    with pytest.raises(ldp.InvalidInput, match="twice"):
        both.combine(first)
    with pytest.raises(ldp.InvalidInput, match="same rows"):
        first.combine(second[::-1])


def test_posterior_is_prior_times_likelihood():
    noisy = draw(LAWS[0])
    prior = np.random.default_rng(1).dirichlet(np.ones(4), 200)
    expected = prior * noisy.likelihood(dtype="float64")
    np.testing.assert_allclose(
        noisy.posterior(prior), expected / expected.sum(axis=1, keepdims=True)
    )
    np.testing.assert_allclose(noisy.posterior().sum(axis=1), 1)


@pytest.mark.parametrize("what", ["posterior", "hard"])
def test_a_prior_that_is_no_array_is_refused(what):
    noisy = draw(LAWS[0])
    for prior in (ldp.metrics.class_frequencies(noisy), ["a", "b", "c", "d"], {"a": 1.0}):
        with pytest.raises(ldp.InvalidInput, match="Expected prior as an array of real numbers"):
            getattr(noisy, what)(prior)
    prior = ldp.metrics.likeliest_frequencies(noisy.likelihood())
    np.testing.assert_allclose(noisy.posterior(prior).sum(axis=1), 1)


def test_ties_do_not_favour_a_class():
    n = 20_000
    noisy = ldp.privatize(
        ldp.PrivateLabels(np.zeros(n, int), classes=range(6), noise=ldp.SeededNoise(5)),
        ldp.SubsetSelection(6, 0.01, size=3),
    )
    members = noisy.blocks[0].law.members(noisy.blocks[0].outputs, {})
    codes = noisy.hard_codes()
    assert members[np.arange(n), codes].all()
    rank = (members.cumsum(axis=1)[np.arange(n), codes]) - 1
    counts = np.bincount(rank, minlength=3)
    # 5.3 standard deviations: false alarm about 1e-7 a cell, and the seed is fixed
    assert np.all(np.abs(counts - n / 3) < 5.3 * math.sqrt(n * 2 / 9))


def test_a_released_label_is_the_hard_label_in_any_company():
    """Also where the prior left one candidate, so that all classes are equally likely, and with
    rows of other draws beside it."""
    prior = np.tile([0.97, 0.01, 0.01, 0.01], (50, 1))
    prior[-1] = 0.25  # a draw in which no row tells anything is refused
    constant = ldp.privatize(
        ldp.PrivateLabels(np.full(50, 2), classes=range(4), noise=ldp.SeededNoise(0)),
        ldp.RRWithPrior(4, 0.1),
        prior=prior,
    )
    other = ldp.privatize(
        ldp.PrivateLabels(np.full(50, 2), classes=range(4), noise=ldp.SeededNoise(1)),
        ldp.RandomizedResponse(4, 0.1),
    )
    assert (constant.hard_codes()[:-1] == 0).all()
    both = ldp.concat([constant, other])
    assert np.array_equal(
        both.hard_codes(), np.concatenate([constant.hard_codes(), other.hard_codes()])
    )
    assert np.array_equal(both[::-1].hard_codes(), both.hard_codes()[::-1])


def test_hard_gives_large_numbers_as_they_are():
    classes = [2**63 + 1, 2**63, 5]
    noisy = ldp.privatize(
        ldp.PrivateLabels(classes, classes=classes, noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(3, 30.0),
    )
    assert noisy.hard().tolist() == noisy.released().tolist() == classes


@pytest.mark.parametrize("law", LAWS[:2], ids=lambda law: law.name)
def test_debias_is_exactly_unbiased_over_the_law(law):
    """Every possible output once, weighted by its exact probability: the expectation is the true
    loss."""
    matrix = law.matrix(exact=True)
    outputs = law.outputs()
    if outputs.ndim == 2:
        outputs = np.packbits(outputs, axis=1, bitorder="little")
    m = len(outputs)
    block = Block(law, outputs, {}, np.arange(m), receipt("r"))
    noisy = NoisyLabels(m, tuple(range(law.n_classes)), (block,), np.arange(m))
    losses = np.array([0.3, 1.7, -0.4, 2.0])
    estimates = noisy.debias(np.broadcast_to(losses, (m, 4)))
    for label in range(law.n_classes):
        expected = sum(
            Fraction(p) * Fraction(e) for p, e in zip(matrix[label], estimates, strict=True)
        )
        assert float(expected) == pytest.approx(losses[label], abs=1e-12)


@pytest.mark.parametrize("law", [LAWS[2], LAWS[4]], ids=lambda law: law.name)
def test_debias_refuses_laws_that_cannot_be_inverted(law):
    with pytest.raises(ldp.InvalidInput, match="unbiased estimator"):
        draw(law).debias(np.zeros((200, 4)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_debias_refuses_losses_that_are_no_numbers(value):
    losses = np.zeros((200, 4))
    losses[7, 1] = value
    # the law was said to have no estimator
    with pytest.raises(ldp.InvalidInput, match="finite losses"):
        draw(ldp.RandomizedResponse(4, 1.0)).debias(losses)


def test_spend_counts_a_receipt_once_and_adds_different_ones():
    first, second = noisy_of("a", [1, 2], 0.1), noisy_of("b", [1, 2], 0.2)
    assert first.combine(second).privacy.epsilon == 0.3
    assert first[[0, 1, 0]].privacy.epsilon == 0.1  # a sample with repeats, as a bootstrap takes it
    with pytest.raises(ldp.InvalidInput, match="evidence twice"):
        ldp.concat([first, first[:1]])


def test_spend_is_the_maximum_only_where_ids_prove_the_rows_disjoint():
    first = noisy_of("a", [1, 2], 1.0)
    assert ldp.concat([first, noisy_of("b", [3], 2.0)]).privacy.epsilon == 2.0
    assert ldp.concat([first, noisy_of("b", [2, 3], 2.0)]).privacy.epsilon == 3.0
    assert ldp.concat([first, noisy_of("b", [3], 2.0, explicit=False)]).privacy.epsilon == 3.0
    assert ldp.concat([first, noisy_of("b", [3], 2.0, dataset="other")]).privacy.epsilon == 3.0
    assert ldp.concat([first, noisy_of("b", [3], 2.0, unit="person")]).privacy.epsilon == 3.0


def test_spend_in_three_overlapping_runs_is_the_largest_total_of_a_row():
    runs = [noisy_of("a", [1, 2], 1.0), noisy_of("b", [2, 3], 2.0), noisy_of("c", [3, 4], 4.0)]
    for order in itertools.permutations(runs):
        assert ldp.concat(list(order)).privacy.epsilon == 6.0


def test_seeded_noise_has_no_guarantee():
    privacy = draw(LAWS[0]).privacy
    assert privacy.epsilon == math.inf and not privacy.secure and not privacy.recorded
    assert noisy_of("a", [1], recorded=False).privacy.recorded is False


def test_noisy_labels_do_not_turn_into_an_array_by_accident():
    with pytest.raises(ldp.InvalidInput, match=r"KFold"):
        np.asarray(draw(LAWS[0]))


def test_concat_wants_the_same_classes():
    with pytest.raises(ldp.InvalidInput, match="same declared classes"):
        ldp.concat([noisy_of("a", [1]), NoisyLabels(0, ("x", "y", "z"), ())])
    with pytest.raises(ldp.InvalidInput, match="at least one"):
        ldp.concat([])


@pytest.mark.parametrize(
    ("ids", "known", "wanted"),
    [
        (np.array([2**64 - 1, 5], np.uint64), np.array([-1, 5]), [-1, 1]),
        (np.array([-1, 5]), np.array([2**64 - 1, 5], np.uint64), [-1, 1]),
        (np.array([256, 2**63 - 1]), np.array([0, 2**63 - 1, 2**63], np.uint64), [-1, 1]),
        (np.array([300, 44]), np.array([44], np.uint8), [-1, 0]),
        (np.array([255, 7], np.uint8), np.array([-1, 7], np.int8), [-1, 1]),
        (np.array([[2**64 - 1, 1], [2, 3]], np.uint64), np.array([[2, 3], [-1, 1]]), [-1, 0]),
        (np.empty(0, np.uint64), np.array([-1]), []),
        (np.empty((0, 2), np.uint64), np.array([[-1, 1]]), []),
    ],
)
def test_ids_that_a_type_does_not_hold_are_none_of_its_ids(ids, known, wanted):
    assert places_of(ids, known).tolist() == wanted


def test_ids_of_several_types_name_rows_in_memory_as_in_a_ledger(tmp_path):
    pd = pytest.importorskip("pandas")
    ids, ledger = (
        pd.DataFrame({"shop": [f"s{i // 5}" for i in range(200)], "visit": np.arange(200) % 5}),
        ldp.Ledger(tmp_path / "l.db"),
    )
    facts = {"dataset": "d", "column": "label", "ids": ids, "ledger": ledger}
    noisy = ldp.privatize(ldp.PrivateLabels(np.arange(200) % 4, classes=range(4), **facts), LAWS[0])
    again = ldp.concat([noisy[150:], noisy[:150]])
    assert again.privacy == noisy.looked_up(ledger).privacy and noisy.privacy.evidence == "proven"
    with pytest.raises(ldp.InvalidInput, match="evidence twice"):
        ldp.concat([noisy, noisy[:1]])
    noisy.save(tmp_path / "noisy.parquet")
    assert (
        NoisyLabels.load(tmp_path / "noisy.parquet")[::-1].looked_up(ledger).privacy
        == noisy.privacy
    )


@pytest.mark.parametrize(
    ("labels", "facts", "said"),
    [
        # it was declared as "0-label-DP"
        ([0, 1], {"max_rows_per_unit": 0}, "max_rows_per_unit >= 1"),
        ([0, 1], {"max_rows_per_unit": -3}, "max_rows_per_unit >= 1"),
        ([0, 1], {"max_rows_per_unit": 1.5}, "max_rows_per_unit >= 1"),
        ([0, 1], {"unit": ""}, "unit to be 'row'"),
        ([0, 1], {"unit": 5}, "unit to be 'row'"),
        ([[0, 1], [1, 0]], {}, "one-dimensional column of noisy labels, got shape"),
        (np.array(["a", None], object), {"classes": ["a", "b"]}, "another value in row 1"),
        (["a", "a"], {"classes": ["a", "a"]}, "different classes"),
        (["a", "b"], {"classes": {"a", "b"}}, "has no order"),
        (["a", "b"], {"classes": "ab"}, "one text"),
    ],
)
def test_labels_of_another_mechanism_are_declared_in_full(labels, facts, said):
    with pytest.raises(ldp.InvalidInput, match=said):
        NoisyLabels.from_labels(labels, ldp.RandomizedResponse(2, 1.0), **facts)


def test_declared_labels_are_kept_in_a_file_whatever_numbers_declare_them(tmp_path):
    law = ldp.RandomizedResponse(2, 1.0)
    NoisyLabels.from_labels(
        np.array([[3], [4]]), law, np.array([3, 4]), max_rows_per_unit=np.int64(2)
    ).save(tmp_path / "a.parquet")
    noisy = NoisyLabels.load(tmp_path / "a.parquet")
    assert noisy.privacy.epsilon == 2.0 and noisy.hard().tolist() == [3, 4]
    with pytest.raises(ldp.InvalidInput, match="law that releases"):
        NoisyLabels.from_labels([0, 1], None)
