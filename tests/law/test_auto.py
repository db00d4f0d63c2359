# SPDX-License-Identifier: Apache-2.0
"""AutoLaw chooses well, the same for all shapes of a prior, and within bounded memory."""

import numpy as np
import pytest

from labeldp.laws import (
    AutoLaw,
    PriorSplit,
    RandomizedResponse,
    RRTopK,
    SubsetSelection,
    exact_epsilon,
)
from labeldp.laws._exact import quantise, unpack_sets
from labeldp.laws._subset import (
    RR,
    SPLIT,
    SUBSET,
    even_half,
    response_scores,
    split_information,
    split_scores,
    subset_scores,
)
from labeldp.testing import CounterWords


def mixed(priors: np.ndarray) -> np.ndarray:
    return 0.9 * priors / priors.sum(axis=1, keepdims=True) + 0.1 / priors.shape[1]


def test_uniform_prior_takes_subset_selection() -> None:
    side = AutoLaw(10, 1.0).side_row()
    assert int(side["choice"]) == SUBSET
    assert int(side["size"]) == 3
    assert AutoLaw(10, 1.0).information() == pytest.approx(0.1224, abs=5e-5)


def random_priors(k: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate(
        [rng.dirichlet(np.full(k, alpha), size=6) for alpha in (0.02, 0.05, 0.3, 1.0, 8.0)]
    )


EVERY_EPSILON = [1e-6, 1e-4, 9e-4, 1.1e-3, 0.02, 0.3, 1.0, 3.0, 8.0, 20.0]


@pytest.mark.parametrize("k", [3, 5, 8, 12])
@pytest.mark.parametrize("epsilon", EVERY_EPSILON)
def test_scores_are_the_information_up_to_five_percent(k: int, epsilon: float) -> None:
    """Against matrices (at small epsilon the second-order sum over them, where logarithms have no
    digits left)."""
    truth = mixed(random_priors(k, k))
    sizes = {SubsetSelection(k, epsilon).set_size, (k + 1) // 2} - {1}
    for law in (
        RandomizedResponse(k, epsilon),
        *(SubsetSelection(k, epsilon, size) for size in sizes),
    ):
        channel = law.matrix(exact=True)
        if epsilon < 0.02:
            mean = channel.mean(axis=0)
            off = ((channel - mean) / mean).astype(np.float64)
            wanted = (
                np.array(
                    [
                        p @ off**2 @ mean.astype(np.float64)
                        - (p @ off) ** 2 @ mean.astype(np.float64)
                        for p in truth
                    ]
                )
                / 2
            )
        else:
            wanted = law.information(truth)
        found = (
            subset_scores(truth_sorted(truth), epsilon, law.set_size)
            if law.name == "subset"
            else response_scores(truth, epsilon)
        )
        assert found == pytest.approx(wanted, rel=0.05)
    mass = np.linspace(0.001, 0.999, 50)
    assert split_scores(mass, epsilon) == pytest.approx(split_information(mass, epsilon), rel=0.002)


def truth_sorted(truth: np.ndarray) -> np.ndarray:
    return -np.sort(-truth, axis=1)


def told_by_each(priors: np.ndarray, truth: np.ndarray, epsilon: float) -> dict[int, np.ndarray]:
    """Nats of each law that AutoLaw chooses from, if labels follow the truth; of a split the mean
    over 500 sets a row."""
    k = priors.shape[1]
    subset = SubsetSelection(k, epsilon)
    sets_drawn = (
        even_half(quantise(priors), CounterWords(np.arange(len(priors)) + 1000 * i))
        for i in range(500)
    )
    return {
        RR: response_scores(truth, epsilon),
        SUBSET: subset_scores(truth_sorted(truth), epsilon, subset.set_size),
        SPLIT: np.mean(
            [split_scores((truth * inside).sum(axis=1), epsilon) for inside in sets_drawn], axis=0
        ),
    }


@pytest.mark.parametrize("k", [3, 4, 5, 8, 12])
@pytest.mark.parametrize("epsilon", EVERY_EPSILON)
def test_the_choice_tells_most(k: int, epsilon: float) -> None:
    """Where labels follow the prior as it is mixed, and as it is; what a split tells is estimated
    from 24 sets."""
    priors = random_priors(k, k)
    choice = AutoLaw(k, epsilon).prepare(priors)["choice"]
    for truth, least_of_row, least in ((mixed(priors), 0.85, 0.98), (priors, 0.6, 0.97)):
        scores = told_by_each(priors, truth, epsilon)
        chosen = np.array([scores[int(code)][i] for i, code in enumerate(choice)])
        best = np.max(list(scores.values()), axis=0)
        assert (
            chosen >= least_of_row * best - 1e-9 * epsilon**2
        ).all() and chosen.sum() >= least * best.sum()
    assert set(choice) <= {RR, SPLIT, SUBSET}


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("k", [4, 10, 50])
def test_what_telling_all_classes_apart_costs(k: int, epsilon: float) -> None:
    """Of the most informative question that is fixed by the prior, which tells only some classes
    apart: 0 to 11 % on average.

    Never less than the better of randomized response and subset selection tells, but for the few
    rows whose split is a poor one.
    """
    priors = np.concatenate([random_priors(k, seed) for seed in range(10)])
    truth = mixed(priors)
    ordered = truth_sorted(truth)
    law, subset = (
        AutoLaw(k, epsilon),
        subset_scores(ordered, epsilon, max(2, SubsetSelection(k, epsilon).set_size)),
    )
    prefix = split_scores(np.cumsum(ordered, axis=1)[:, :-1], epsilon).max(axis=1)
    top = [RRTopK(k, epsilon, size) for size in {2, 3, k // 2}]
    fixed = np.max(
        [prefix, *(each._information(truth, each.prepare(priors)) for each in top)], axis=0
    )
    side = law.prepare(priors)
    mass = (truth * unpack_sets(side["set"], k)).sum(axis=1)
    rr = response_scores(truth, epsilon)
    found = np.select(
        [side["choice"] == RR, side["choice"] == SUBSET], [rr, subset], split_scores(mass, epsilon)
    )
    best = np.maximum(fixed, np.maximum(rr, found))
    assert found.sum() >= 0.88 * best.sum()
    assert found.sum() >= 0.99 * np.maximum(rr, subset).sum()


def test_every_law_is_chosen_somewhere_and_sampled_with_its_own_words() -> None:
    rng = np.random.default_rng(5)
    priors = np.concatenate(
        [rng.dirichlet(np.full(12, alpha), size=150) for alpha in (0.01, 0.2, 1.0, 20.0)]
    )
    law = AutoLaw(12, 0.5)
    side = law.prepare(priors)
    assert set(np.unique(side["choice"])) == {SPLIT, SUBSET}
    assert set(np.unique(AutoLaw(12, 3.0).prepare(priors)["choice"])) == {RR}
    outputs = law.sample(np.arange(600) % 12, CounterWords(np.arange(600)), side)
    rows = np.flatnonzero(side["choice"] == SUBSET)
    alone = SubsetSelection(12, 0.5).sample(rows % 12, CounterWords(rows), {})
    assert (outputs[rows] == alone).all()
    some = np.array([5, 400, 12])
    part = {name: value[some] for name, value in side.items()}
    assert (law.sample(some % 12, CounterWords(some), part) == outputs[some]).all()
    assert (
        law.log_likelihood(outputs, side)[some] == law.log_likelihood(outputs[some], part)
    ).all()


PRIORS_OF_ALL_ROWS = {
    "uniform": np.ones,
    "1 / rank": lambda k: 1.0 / np.arange(1, k + 1),
    "one class has 90 %": lambda k: np.r_[0.9, np.full(k - 1, 0.1 / (k - 1))],
    "some never occur": lambda k: np.r_[np.ones(k - 1), 0.0],
    "two heavy ones": lambda k: np.r_[1.0, 1.0, np.full(k - 2, 1e-3)],
}


@pytest.mark.parametrize("n_classes", [3, 4, 6, 10, 26, 100])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("name", PRIORS_OF_ALL_ROWS)
@pytest.mark.parametrize("cls", [AutoLaw, PriorSplit], ids=lambda cls: cls.name)
def test_equal_priors_tell_all_classes_apart(
    cls: type, name: str, n_classes: int, epsilon: float
) -> None:
    """Over rows of one prior, every two classes are on different sides, in at least 0.38 of the
    rows that ask about a set.

    20,000 rows: below that where the chance is 0.4 with probability 1e-8 a pair; the words are
    fixed.
    """
    law, prior = cls(n_classes, epsilon), PRIORS_OF_ALL_ROWS[name](n_classes)
    side = law.prepare(np.broadcast_to(prior, (20_000, n_classes)), CounterWords(np.arange(20_000)))
    inside = unpack_sets(side["split" if cls is PriorSplit else "set"], n_classes)
    asked = inside if cls is PriorSplit else inside[side["choice"] == SPLIT]
    if not len(asked):
        return  # every row treats all classes alike
    together = asked.T.astype(np.float32) @ asked + (~asked).T.astype(np.float32) @ ~asked
    apart = 1 - together / len(asked) + np.eye(n_classes)
    assert apart.min() >= 0.38


@pytest.mark.parametrize("n_classes", [2, 3, 5, 10])
def test_thresholds_keep_the_order_and_are_all_asked_about(n_classes: int) -> None:
    law, rng = PriorSplit(n_classes, 1.0, ordered=True), np.random.default_rng(0)
    for prior in (
        np.ones(n_classes),
        rng.dirichlet(np.ones(n_classes)),
        np.r_[0.97, np.full(n_classes - 1, 0.03 / (n_classes - 1))],
    ):
        mass = prior / prior.sum()
        inside = unpack_sets(
            law.prepare(np.broadcast_to(prior, (20_000, n_classes)))["split"], n_classes
        )
        assert (
            (np.diff(inside.astype(int), axis=1) >= 0).all()
            and inside[:, -1].all()
            and not inside[:, 0].any()
        )
        shares = np.bincount(n_classes - inside.sum(axis=1), minlength=n_classes)[1:] / 20_000
        assert shares.min() > 0.05 / n_classes
        told, best = (
            law.information(np.tile(mass, (20_000, 1))).mean(),
            split_information(np.cumsum(mass)[:-1], 1.0).max(),
        )
        assert told >= 0.8 * best - 1e-12  # 10 % of rows near the best, and 10 % of the others


@pytest.mark.parametrize("name", PRIORS_OF_ALL_ROWS)
@pytest.mark.parametrize("n_classes", [2, 3, 4, 6, 10, 30])
def test_splits_tell_the_frequencies_of_all_classes(n_classes: int, name: str) -> None:
    """What splits ask of two mixtures of classes differs, whichever they are, in at least a quarter
    of the rows' variance.

    Sets with one class of each pair would tell any two classes apart and yet not half of one pair
    from half of another.
    """
    inside = even_half(
        quantise(np.tile(PRIORS_OF_ALL_ROWS[name](n_classes), (20_000, 1))),
        CounterWords(np.arange(20_000)),
    )
    assert inside.any(axis=1).all() and not inside.all(axis=1).any()
    signs = 2.0 * inside - 1
    # mixtures sum to 1, so only directions that sum to 0 matter
    centre = np.eye(n_classes) - 1 / n_classes
    spread = np.linalg.eigvalsh(centre @ (signs.T @ signs / len(signs)) @ centre)
    assert np.sort(spread)[1] > 0.25


@pytest.mark.parametrize("n_classes", [4, 10, 100])
def test_a_split_without_a_prior_tells_nearly_what_subset_selection_does(n_classes: int) -> None:
    told = PriorSplit(n_classes, 0.1).information(np.ones((2000, n_classes))).mean()
    assert told >= 0.9 * SubsetSelection(n_classes, 0.1, n_classes // 2).information()


def test_sides_come_from_prior_and_words_alone() -> None:
    """Other words, other sets; the same words, the same; and no set is above epsilon, exactly."""
    priors = random_priors(9)
    for law in (PriorSplit(9, 0.3), PriorSplit(9, 0.3, ordered=True), AutoLaw(9, 0.3)):
        first, again, other = (
            law.prepare(priors, CounterWords(np.arange(len(priors)), seed=seed))
            for seed in (1, 1, 2)
        )
        assert all((first[name] == again[name]).all() for name in first)
        assert any((first[name] != other[name]).any() for name in first)
        for i in range(len(priors)):
            row = {name: value[i] for name, value in first.items()}
            table = law.table(row)
            values = np.empty(len(table.values), dtype=object)
            values[:] = table.values
            assert exact_epsilon(values[table.index]) <= 0.3
            assert law.exact_epsilon(row) <= 0.3
