# SPDX-License-Identifier: Apache-2.0
"""Laws on several columns: what they tell of one column, how epsilon is divided, and what is
refused."""

import itertools
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2

import labeldp as ldp
from labeldp.errors import InvalidInput
from labeldp.evidence._noisy import pack, unpack
from labeldp.laws import ColumnCounts, Independent, OneColumn, SubsetSelection, law_from_dict
from labeldp.laws._columns import SPLITS, classes_of, column_of, parts_of
from labeldp.laws._exact import exp_floor
from labeldp.testing import CounterWords

TWO = ldp.LabelColumns({"a": ["no", "yes"], "b": [1, 2, 3]})
FLAGS = ldp.LabelColumns({name: [0, 1] for name in "abc"})


@pytest.mark.parametrize(
    ("sizes", "epsilon", "size"),
    [((2, 3), 1.3, 2), ((3, 2), 0.2, 3), ((2, 2, 2), 2.0, 1), ((2, 2, 2), 0.5, 4)],
)
def test_counts_tell_of_a_column_the_same_whatever_the_others_are(sizes, epsilon, size):
    """Exactly: the sets with these counts have one probability together, for every combination with
    this class."""
    law = SubsetSelection(math.prod(sizes), epsilon, size)
    matrix, sets = law.matrix(exact=True), law.outputs()
    for number, n_classes in enumerate(sizes):
        view = ColumnCounts.of(law, n_classes)
        table, claimed = view.table({}), view.matrix(exact=True)
        counts = ColumnCounts.count(sets, sizes, number)
        own = parts_of(np.arange(law.n_classes), sizes)[number]
        for y, (j, output) in itertools.product(range(law.n_classes), enumerate(table.outputs)):
            assert sum(matrix[y][(counts == output).all(axis=1)], Fraction(0)) == claimed[own[y], j]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_ratio_of_any_two_combinations_is_within_epsilon_exactly(split, epsilon):
    law = TWO.law(epsilon, split)
    for row in range(3):
        side = {name: value[row] for name, value in law.prepare(np.ones((3, 6))).items()}
        table = law.table(side)
        values = np.array(table.values, dtype=object)[table.index]
        assert (values.sum(axis=1) == 1).all()
        assert all(max(column) <= exp_floor(epsilon) * min(column) for column in values.T)
        assert law.exact_epsilon(side) <= epsilon


@pytest.mark.parametrize("law", ["auto", "rr-with-prior", "rr-top-k:2", "split"])
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_the_ratio_is_within_epsilon_exactly_under_any_product_of_priors(law, epsilon):
    rng = np.random.default_rng(0)
    weights = {
        name: rng.dirichlet(np.full(size, 0.3), 12)
        for name, size in zip(TWO.names, TWO.sizes, strict=True)
    }
    weights[TWO.names[0]][0] = [1, 0]  # the prior knows this column, and nothing of the next row's
    weights[TWO.names[1]][1] = 0
    prior = TWO.prior(weights, 12)(np.arange(12))
    for split in ("joint", "equal", "one") if law != "rr-top-k:2" else ("joint",):
        made = TWO.law(epsilon, split, law)
        sides = made.prepare(prior)
        for row in range(12):
            side = {name: value[row] for name, value in sides.items()}
            table = made.table(side)
            values = np.array(table.values, dtype=object)[table.index]
            assert (values.sum(axis=1) == 1).all()
            assert all(max(column) <= exp_floor(epsilon) * min(column) for column in values.T)


def test_a_prior_of_combinations_is_the_product_of_those_of_the_columns():
    rng = np.random.default_rng(1)
    first, second = rng.random((5, 2)), rng.random((5, 3))
    found = TWO.prior(dict(zip(TWO.names, (first, second), strict=True)))(np.array([3, 1]))
    wanted = (first[:, :, None] * second[:, None, :]).reshape(5, 6)[[3, 1]]
    np.testing.assert_allclose(found, wanted / wanted.max(axis=1, keepdims=True))
    for weights, part in zip((first, second), TWO.marginals(found), strict=True):
        np.testing.assert_allclose(
            part / part.sum(axis=1, keepdims=True),
            (weights / weights.sum(axis=1, keepdims=True))[[3, 1]],
        )
    # of all rows; the other column counts as uniform
    one = TWO.prior({TWO.names[1]: [1, 2, 4]})(np.arange(2))
    np.testing.assert_allclose(one, [[0.25, 0.5, 1.0] * 2] * 2)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"zz": np.ones((4, 2))}, "one of"),
        ({TWO.names[0]: np.ones((4, 3))}, r"weights \(n, 2\)"),
        ({TWO.names[0]: np.ones((5, 2))}, "weights of 4 rows, got 5"),
        ({TWO.names[0]: np.ones((4, 2)), TWO.names[1]: np.ones((3, 3))}, "rows"),
        ({TWO.names[0]: [-1, 1]}, ">= 0"),
        ({TWO.names[0]: [math.nan, 1]}, ">= 0"),
        ({TWO.names[0]: [math.inf, 1]}, ">= 0"),
    ],
)
def test_priors_of_columns_that_cannot_be_are_refused(weights, said):
    with pytest.raises(InvalidInput, match=said):
        TWO.prior(weights, 4)


@pytest.mark.filterwarnings("ignore")  # of the seed
def test_marginals_of_the_posterior_are_bayes_rule_under_the_prior():
    """Exact, by adding up the table of a law that no column can be read off alone."""
    weights = {TWO.names[1]: np.array([[0.7, 0.2, 0.1]] * 300)}
    labels = dict(zip(TWO.names, (["no", "yes", "yes"] * 100, [1, 2, 3] * 100), strict=True))
    law = TWO.law(2.0, "joint", "rr-with-prior")
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=TWO, noise=ldp.SeededNoise(0)), law, prior=weights
    )
    prior, block = TWO.prior(weights)(np.arange(300)), noisy.blocks[0]
    for row in range(0, 300, 37):
        table = law.table({name: value[row] for name, value in block.side.items()})
        chances = np.array([float(value) for value in table.values])[table.index][
            :, list(table.outputs).index(block.outputs[row])
        ]
        joint = (chances * prior[row]).reshape(2, 3)
        for axis, part in zip((1, 0), TWO.marginals(noisy.posterior(prior)), strict=True):
            np.testing.assert_allclose(part[row], joint.sum(axis=axis) / joint.sum(), rtol=1e-6)
    with pytest.raises(InvalidInput, match="marginals"):
        noisy[TWO.names[0]]
    with pytest.raises(InvalidInput, match="of 300 rows"):
        ldp.privatize(
            ldp.PrivateLabels(labels, classes=TWO, noise=ldp.SeededNoise(0)),
            law,
            prior={TWO.names[1]: np.ones((301, 3))},
        )
    with pytest.raises(InvalidInput, match="for one"):
        ldp.privatize(
            ldp.PrivateLabels([0, 1], classes=[0, 1], noise=ldp.SeededNoise(0)),
            ldp.RRWithPrior(2, 1.0),
            prior={"a": [1, 2]},
        )


@pytest.mark.parametrize("split", ["equal", "one", "joint"])
def test_samples_of_the_tuple_fit_its_exact_matrix(split):
    """Chi-square of 30,000 draws for each of 6 combinations, and for each question; false alarm
    1e-6 each, 3e-5 in all. Fixed words."""
    law = TWO.law(1.5, split)
    sides = law.prepare(np.ones((8, 6)))
    for row in (0, 1) if sides else (0,):
        side = {name: value[row] for name, value in sides.items()}
        table = law.table(side)
        outputs = (
            np.packbits(table.outputs, axis=1, bitorder="little")
            if law.kind == "set"
            else table.outputs
        )
        place = {output.tobytes(): j for j, output in enumerate(outputs)}
        for label in range(6):
            words = CounterWords(np.arange(30_000), seed=label + 1)
            drawn = law.sample(
                np.full(30_000, label),
                words,
                {name: np.broadcast_to(v, 30_000) for name, v in side.items()},
            )
            counts = np.bincount([place[each.tobytes()] for each in drawn], minlength=len(outputs))
            wanted = 30_000 * np.array(table.values, float)[table.index[label]]
            statistic = ((counts - wanted) ** 2 / wanted).sum()
            assert chi2.ppf(5e-7, len(wanted) - 1) <= statistic <= chi2.isf(5e-7, len(wanted) - 1)


def test_columns_draw_with_words_of_their_own():
    """Two columns of one law and one label, whose draws would be equal if they shared words."""
    law = Independent(4, 2.0, (2, 2), ("rr", "rr"))
    drawn = law.sample(np.zeros(20_000, int), CounterWords(np.arange(20_000)), {})
    first, second = (law.column(number, drawn, {})[1] for number in (0, 1))
    both = float(((first == 1) & (second == 1)).mean())
    flip = 1 / (1 + math.e)
    # words are fixed; 5 deviations: 6e-7
    assert abs(both - flip**2) < 5 * math.sqrt(flip**2 * (1 - flip**2) / 20_000)


def test_every_row_is_asked_about_one_column_equally_often():
    law = FLAGS.law(1.0, "one")
    side = law.prepare(np.ones((40_000, 8)), CounterWords(np.arange(40_000)))
    shares = np.bincount(side["column"], minlength=3) / 40_000
    assert np.abs(shares - 1 / 3).max() < 5 * math.sqrt(0.25 / 40_000)
    outputs = law.sample(np.full(40_000, 7), CounterWords(np.arange(40_000), seed=1), side)
    asked = [column_of(law, (2, 2, 2), number, outputs, side)[3] for number in range(3)]
    assert (np.sum(asked, axis=0) == 1).all()
    assert not outputs[~asked[0], 0].any()


def test_combinations_are_the_product_in_order_and_survive_files():
    assert list(TWO) == list(itertools.product(["no", "yes"], [1, 2, 3]))
    codes = np.arange(6)
    np.testing.assert_array_equal(TWO.codes(TWO.parts(codes)), codes)
    grid = ldp.LabelColumns({"a": ["no", "yes"], "b": ldp.Grid(0, 10, points=3)})
    for each in (TWO, grid):
        again = classes_of(each.facts())
        assert (again, again.names, again.lists) == (each, each.names, each.lists)
        copy = pickle.loads(pickle.dumps(each))
        assert (copy, copy.names, copy.lists) == (each, each.names, each.lists)
    assert grid.law(1.0, "equal").laws == ("subset", "square-wave")
    for split in SPLITS:
        assert law_from_dict(grid.law(1.0, split).to_dict()) == grid.law(1.0, split)


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ({"a": [0, 1]}, "two or more"),
        ([("a", [0, 1])], "two or more"),
        ({"a": [0, 1], "b": "no,yes"}, "list of values"),
        ({"a": [0, 1], "b": [1, 1]}, "column 'b', got 1 more than once"),
        ({"a": [0, 1], "b": [1]}, "at least 2"),
        ({"a": [0, 1], "": [0, 1]}, "printable"),
        ({str(i): [0, 1] for i in range(17)}, "100,000 combinations"),
        ({"a": range(1000), "b": range(101)}, "100,000 combinations"),
    ],
)
def test_columns_that_cannot_be_are_refused(classes, said):
    with pytest.raises(InvalidInput, match=said):
        ldp.LabelColumns(classes)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"split": "half"}, "split"),
        ({"split": "joint", "law": ["rr", "rr"]}, "one law of the combinations"),
        ({"split": "joint", "law": "nothing"}, "law"),
        ({"split": "equal", "law": ["rr"]}, "each of 2"),
        ({"split": "equal", "law": "nothing"}, "law"),
        ({"split": "equal", "law": "independent"}, "Law instance"),
        ({"split": "equal", "epsilon": math.inf}, "epsilon"),
    ],
)
def test_rules_that_do_not_fit_are_refused(options, said):
    with pytest.raises(InvalidInput, match=said):
        TWO.law(**{"epsilon": 1.0} | options)


def test_laws_on_several_columns_are_not_offered_by_name():
    with pytest.raises(InvalidInput) as caught:
        ldp.laws.law_named("nothing", 2, 1.0)
    assert "one-column" not in str(caught.value)


def test_a_prior_that_no_column_reads_is_refused():
    with pytest.raises(InvalidInput, match="read none"):
        OneColumn(6, 1.0, (2, 3), ("rr", "rr")).prepare(np.tile(np.arange(1.0, 7.0), (4, 1)))


MIXED = ldp.LabelColumns({"a": ["no", "yes"], "b": ldp.Grid(0, 4, points=5)})


def packed(law):
    """The evidence of 60 rows, and its bytes."""
    rng = np.random.default_rng(0)
    labels = {"a": rng.choice(["no", "yes"], 60), "b": rng.integers(5, size=60)}
    (block,) = ldp.privatize(
        ldp.PrivateLabels(labels, classes=MIXED, noise=ldp.SeededNoise(0)), law
    ).blocks
    raw = pack(law, block.outputs, block.side)
    assert (unpack(law, raw)[0] == block.outputs).all()
    return block, raw


@pytest.mark.parametrize("split", ["equal", "one"])
def test_of_evidence_with_a_changed_bit_what_the_columns_cannot_have_drawn_is_refused(split):
    """By brute force: what is read is in the exact table of the row's side. Else it would have
    another likelihood without a word."""
    law = MIXED.law(2.0, split, ["rr", "prior-bins"])
    block, raw = packed(law)
    read = 0
    for row, bit in itertools.product(range(20), range(8 * block.outputs.shape[1])):
        changed = raw[row : row + 1].copy()
        changed[0, bit // 8] ^= np.uint8(1 << bit % 8)
        try:
            outputs, side = unpack(law, changed)
        except InvalidInput:
            continue
        read += 1
        assert (
            outputs[0].tolist()
            in law.table({name: value[0] for name, value in side.items()}).outputs.tolist()
        )
    assert read  # the other class of two


@pytest.mark.parametrize("split", ["equal", "one"])
def test_empty_sets_and_classes_beyond_those_of_a_column_are_refused(split):
    # a byte for the set of each column, then of "one" the column that was asked about
    law = MIXED.law(2.0, split)
    block, raw = packed(law)
    asked = (
        {0: 0, 1: 0}
        if split == "equal"
        else {each: int(np.flatnonzero(block.side["column"] == each)[0]) for each in (0, 1)}
    )
    wrong = [(row, column, value) for column, row in asked.items() for value in (0, 0xFF)]
    if split == "one":
        wrong += [(asked[0], 1, 1), (asked[1], 0, 1)]  # of a column that was not asked about
        wrong += [(asked[0], 2, value) for value in (1, 2, 0xFF)]  # another column, or none
    for row, byte, value in wrong:
        changed = raw.copy()
        changed[row, byte] = value
        with pytest.raises(InvalidInput, match="can have drawn in every row"):
            unpack(law, changed)


def test_counts_that_no_set_has_are_refused():
    law = ColumnCounts.of(SubsetSelection(6, 1.0, 2), 3)
    assert law.possible(np.array([[2, 0, 0], [1, 1, 0]], np.int32), {}).all()
    assert not law.possible(np.array([[0, 0, 0], [3, -1, 0], [1, 1, 1]], np.int32), {}).any()
