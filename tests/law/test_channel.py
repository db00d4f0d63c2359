# SPDX-License-Identifier: Apache-2.0
"""A law as an explicit matrix: labels that others have randomised are declared by it, and nothing
is ever drawn by it."""

import json
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import labeldp as ldp
from labeldp.laws import LAWS, Channel, _check, exact_epsilon, law_from_dict, spellings

THIRD = Fraction(1, 3)
SQUARE = Channel([[0.8, 0.2], [0.1, 0.9]])
WIDE = Channel([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])
CHANNELS = {
    "two classes": SQUARE,
    "randomized response": Channel([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]),
    "of three classes": Channel([[0.7, 0.2, 0.1], [0.15, 0.7, 0.15], [0.1, 0.3, 0.6]]),
    "more answers than classes": WIDE,
    "fractions": Channel([[THIRD, 2 * THIRD], [Fraction(3, 7), Fraction(4, 7)]]),
    "fewer answers than classes": Channel([[0.6, 0.4], [0.5, 0.5], [0.2, 0.8]]),
}
SIGMAS = 4.9  # two-sided normal quantile of a false alarm of 1e-6


@pytest.mark.parametrize("law", CHANNELS.values(), ids=CHANNELS)
def test_everything_but_the_sampler_keeps_the_contract(law):
    side = law.side_row()
    assert (
        law_from_dict(json.loads(json.dumps(law.to_dict())))
        == law
        == pickle.loads(pickle.dumps(law))
    )
    assert hash(law) == hash(law_from_dict(law.to_dict())) and len({law, SQUARE}) == 1 + (
        law != SQUARE
    )
    for check in (_check._check_privacy, _check._check_table, _check._check_likelihood):
        check(law, side)
    _check._check_weights(law, side, np.ones(law.n_classes))
    if law.kind == "label":
        _check._check_inclusion(law, side)
    assert law.epsilon == law.exact_epsilon() == exact_epsilon(law.matrix(exact=True))
    assert law.information() > 0


def test_epsilon_is_rounded_up_and_floats_count_as_the_decimals_that_they_print_as():
    law = Channel([[0.3, 0.7], [0.1, 0.9]])
    assert law.rows == ((Fraction(3, 10), Fraction(7, 10)), (Fraction(1, 10), Fraction(9, 10)))
    assert law.epsilon >= math.log(3) and math.nextafter(law.epsilon, 0) <= math.log(3)
    printed = Channel([[0.333333, 0.666667], [0.5, 0.5]])
    assert sum(printed.rows[0]) == 1
    assert Channel(ldp.RandomizedResponse(5, 1.3).matrix(exact=True)).epsilon <= 1.3


def test_weights_have_the_least_variance_and_need_full_rank():
    assert np.isnan(CHANNELS["fewer answers than classes"].weights(np.arange(2), {})).all()
    np.testing.assert_allclose(
        SQUARE.weights(np.arange(2), {}), np.linalg.inv(SQUARE.matrix()), rtol=1e-12
    )
    matrix, weights = WIDE.matrix(), WIDE.weights(np.arange(3), {})
    variance = matrix.mean(axis=0) @ weights**2
    # what is added in a direction that no label shows keeps weights unbiased, and costs variance
    for step in (-0.1, 0.1):
        other = weights + step * np.array([[3.0], [-7.0], [3.0]])
        np.testing.assert_allclose(matrix @ other, np.eye(2), atol=1e-12)
        assert (matrix.mean(axis=0) @ other**2 > variance).all()
    losses = np.array([[1.0, 4.0], [2.0, -1.0]])
    np.testing.assert_allclose(
        WIDE.loss_range(losses, np.array([0, 2]), {}), np.ptp(losses @ weights.T, axis=1)
    )


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[1.0, 0.0], [0.5, 0.5]], "no finite epsilon"),
        ([[0.5, 0.5, 0.0], [0.4, 0.6, 0.0]], "Leave it out"),
        ([[0.5, 0.5], [0.5, 0.5]], "tell nothing"),
        ([[0.5, 0.6], [0.5, 0.5]], "row 0"),
        ([[0.5, 0.5], [0.5, math.nan]], "numbers in 0..1"),
        ([[-0.5, 1.5], [0.5, 0.5]], "numbers in 0..1"),
        ([[0.5, 0.5], ["secret", 0.5]], "numbers in 0..1"),
        ([[True, 0.5], [0.5, 0.5]], "numbers in 0..1"),
        ([0.5, 0.5], "shape"),
        ([[0.5, 0.5]], "shape"),
        ([[1.0], [1.0]], "shape"),
        ([], "shape"),
    ],
)
def test_a_matrix_that_is_no_law_is_refused(matrix, message):
    with pytest.raises(ldp.InvalidInput, match=message):
        Channel(matrix)


def test_a_file_whose_epsilon_or_classes_do_not_fit_the_matrix_is_refused():
    for name, value in (
        ("epsilon", 0.1),
        ("n_classes", 3),
        ("rows", [["1/2", "1/2"], ["1/3", "2/3"]]),
    ):
        with pytest.raises(ldp.InvalidInput, match="follow from"):
            law_from_dict(SQUARE.to_dict() | {name: value})


def test_nothing_is_drawn_or_charged_by_a_channel(ledger):
    for m in (1, 3):
        labels = ldp.PrivateLabels(
            np.arange(100) % 2,
            classes=[0, 1],
            dataset="answers",
            column="label",
            unit=None if m == 1 else np.arange(100) // 3,
            max_rows_per_unit=m,
            ledger=ledger,
        )
        with pytest.raises(ldp.InvalidInput, match="Nothing was drawn"):
            ldp.privatize(labels, SQUARE)
        for law in (SQUARE, "channel"):
            model = ldp.LabelDPClassifier(law=law, epsilon=SQUARE.epsilon)
            with pytest.raises(ldp.InvalidInput, match="Nothing was drawn"):
                model.fit(np.zeros((100, 1)), labels)
    with pytest.raises(ldp.InvalidInput, match="Nothing was drawn"):
        ldp.ReleaseSpec(
            label="bought",
            classes=["no", "yes"],
            epsilon=1.0,
            id="visit",
            dataset="visits",
            law="channel",
        ).law_of(2)
    with pytest.raises(ldp.InvalidInput, match="only declares"):
        SQUARE.sample(labels, None, {})
    assert not ledger.runs() and "channel" in LAWS and "channel" not in spellings()


def answers(n=60_000, seed=0):
    """Rows of one feature, true classes, and answers that three outputs of WIDE give."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    y = (rng.random(n) < 1 / (1 + np.exp(1.5 - 2 * x))).astype(int)
    drawn = (rng.random(n)[:, None] > np.cumsum(WIDE.matrix(), axis=1)[y]).sum(axis=1)
    return x, y, np.array(["never", "perhaps", "often"])[drawn]


def test_answers_that_are_no_classes_are_measured_and_learned_from(tmp_path):
    """Two estimates and one coefficient, each with a false alarm of 1e-6."""
    x, y, given = answers()
    noisy = ldp.NoisyLabels.from_labels(
        given, WIDE, classes=["no", "yes"], outputs=["never", "perhaps", "often"]
    )
    assert noisy.privacy.epsilon == WIDE.epsilon and noisy.privacy.declared
    share = ldp.metrics.class_frequencies(noisy)
    assert abs(share.value[1] - y.mean()) < SIGMAS * share.stderr[1]
    guess = np.where(x > 0.75, "yes", "no")
    found = ldp.metrics.accuracy(noisy, guess)
    assert abs(found.value - np.mean((guess == "yes") == y)) < SIGMAS * found.stderr
    slope = ldp.stats.regress(noisy, x, "logistic")
    low, high = slope.conf_int(confidence=1 - 1e-6)[1]
    assert low <= 2 <= high and high - low < 1
    model = ldp.LabelDPClassifier(LogisticRegression(), random_state=0).fit(x[:, None], noisy)
    assert abs(model.predict_proba([[0.75]])[0, 1] - 0.5) < 0.1
    noisy.save(tmp_path / "answers.npz")
    again = ldp.NoisyLabels.load(tmp_path / "answers.npz")
    assert (again.likelihood() == noisy.likelihood()).all() and again.privacy.declared


@pytest.mark.parametrize(
    ("labels", "law", "given", "message"),
    [
        (["a"], WIDE, {}, "outputs="),
        (["a"], WIDE, {"outputs": ["a", "b"]}, "3 different outputs"),
        (["a"], WIDE, {"outputs": ["a", "b", "b"]}, "3 different outputs"),
        (
            ["d"],
            WIDE,
            {"outputs": ["a", "b", "c"]},
            "declared class or output in every row, got another value in row 0",
        ),
        (["no"], ldp.SubsetSelection(2, 1.0), {"classes": ["no", "yes"]}, "releases a label"),
        (["no"], SQUARE, {"classes": ["no", "yes", "perhaps"]}, "over 3 classes"),
    ],
)
def test_declarations_that_do_not_fit_are_refused(labels, law, given, message):
    with pytest.raises(ldp.InvalidInput, match=message):
        ldp.NoisyLabels.from_labels(labels, law, **given)
