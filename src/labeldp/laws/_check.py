# SPDX-License-Identifier: Apache-2.0
"""Test the contract of a law: `check_law(law)`.

Write a law, give it few classes, and call `check_law` in a test. It compares the law's own
description (profile, table, likelihood, inclusion) with its sampler: in exact arithmetic if the
sampler's words can be enumerated, otherwise statistically.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.laws import law_from_dict
from labeldp.laws._base import Law, Side, worst_ratio
from labeldp.laws._exact import WORD, Array, exp_floor, hashed, unpack_sets

# probability that one chi-square test here rejects a correct law; words are fixed, so a law passes
# always or never
FALSE_ALARM = 1e-6
_DRAWS = 20_000  # per label
_QUESTIONS = 3  # number of sides tried for a law that draws its side
_FEW_CLASSES = (5, 8)  # numbers of classes whose outputs are enumerated in a moment


@dataclass
class CounterWords:
    """A stream of random words from a public hash, for tests only: it protects nothing.

    Attributes
    ----------
    rows : (n,) int64
        Row numbers; equal numbers get equal words.
    seed : int
        Seed of the stream; streams of different seeds are independent.
    fixed : mapping of counter to (n,) uint64
        Words to return instead of the hash.
    asked : list
        Log of every (counter, rows) that was read, in order; shared with the streams that `select`
        returns.
    """

    rows: NDArray[np.int64]
    seed: int = 0
    fixed: dict[int, NDArray[np.uint64]] = field(default_factory=dict)
    asked: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, counter: int, rows: NDArray[np.intp] | None = None) -> NDArray[np.uint64]:
        """Return word number `counter` of the rows at these positions."""
        which = self.rows if rows is None else self.rows[rows]
        self.asked.append((counter, tuple(which.tolist())))
        if counter in self.fixed:
            return self.fixed[counter].copy() if rows is None else self.fixed[counter][rows]
        return hashed(which, counter, self.seed)

    def select(self, rows: NDArray[np.intp]) -> "CounterWords":
        """Return the streams of the rows at these positions."""
        fixed = {counter: value[rows] for counter, value in self.fixed.items()}
        return CounterWords(self.rows[rows], self.seed, fixed, self.asked)


def check_law(law: Law, priors: Sequence[Sequence[float]] | None = None) -> None:
    """Check that a law keeps the contract of `labeldp.laws.Law`; an AssertionError says what is
    wrong.

    Parameters
    ----------
    law : Law
        Its matrix must have at most a few thousand cells (K up to about 8), so that everything can
        be enumerated.
    priors : rows of K weights, optional
        Priors to test with; the default is a uniform, a peaked, a graded, a tied and a partly-zero
        one.

    Raises
    ------
    AssertionError
        If the law breaks the contract.

    See Also
    --------
    labeldp.register_law : registers a law under a name.

    Notes
    -----
    Checked, per prior: exact epsilon <= claim (against a certified lower bound of e^eps);
    probabilities sum to exactly 1; table and profile agree; the sampler's word intervals have
    exactly the claimed measure; samples fit the matrix (chi-square, false alarm 1e-6); likelihoods
    are proportional to matrix columns; inclusion gives exactly unbiased estimates, weights unbiased
    ones; prepare depends on prior and public words alone, and fits the layout; the law survives
    JSON, and `at` stays within the epsilon that it is asked for; the label never changes which
    words are read.
    """
    data = json.loads(json.dumps(law.to_dict()))
    _require(
        law_from_dict(data) == law, "to_dict does not survive JSON: law_from_dict gives another law"
    )
    # no rounding up keeps to all of them
    for asked in law.epsilon * np.array([1, 0.99, 0.7, 1 / 2, 1 / 3, 1 / 7]):
        with suppress(InvalidInput):  # a law may be impossible at a small epsilon
            _require(
                law.at(float(asked)).epsilon <= asked,
                f"law.at({asked}) claims more than it was asked for",
            )
    _require(hash(law) == hash(law_from_dict(data)), "equal laws must have equal hashes")
    for part in getattr(law, "parts", ()):  # of a law on several columns
        check_law(part)
    for prior in _default_priors(law.n_classes) if priors is None else priors:
        row = np.asarray(prior, dtype=np.float64)
        for number in range(_QUESTIONS if law.draws_side else 1):
            side = _check_prepare(law, row, number)
            _check_privacy(law, side)
            _check_table(law, side)
            _check_word_measure(law, side)
            _check_samples(law, side)
            _check_likelihood(law, side)
            _check_inclusion(law, side)
            _check_weights(law, side, row)
            _check_words(law, side)


def check_any_size(law: Law) -> None:
    """Check the contract of a law over any number of classes; if they are many, the sampler is
    tested on a copy with few.

    Raises
    ------
    AssertionError
        If the law breaks the contract.
    InvalidInput
        If even the copy's matrix has too many cells to enumerate.
    """
    if law.n_classes <= _FEW_CLASSES[-1]:
        return check_law(law)
    # The exact probabilities follow from profile and prior, without a matrix, so epsilon is checked
    # over the law's own classes.
    for prior in _default_priors(law.n_classes):
        for number in range(_QUESTIONS if law.draws_side else 1):
            _check_privacy(law, _check_prepare(law, np.asarray(prior, dtype=np.float64), number))
    for n_classes in _FEW_CLASSES:
        # a law may need more classes, for example at least as many as candidates
        with suppress(InvalidInput):
            return check_law(replace(law, n_classes=n_classes))
    return check_law(law)


def _require(kept: object, message: str) -> None:
    """Raise AssertionError unless a condition holds, even under Python's -O: charges rest on these
    checks."""
    if not kept:
        raise AssertionError(message)


def _default_priors(k: int) -> list[list[float]]:
    graded = [0.5**i for i in range(k)]
    return [
        [1.0] * k,
        [0.97] + [0.03 / (k - 1)] * (k - 1),
        graded[::-1],
        [1.0, 1.0] + [0.25] * (k - 2),
        [1.0] * (k - 1) + [0.0],
    ]


def _check_prepare(law: Law, prior: NDArray[np.float64], number: int) -> dict[str, Array]:
    """Return the side of the row with this number; check that one row, many equal rows and a
    stride-0 view agree."""
    side = law.prepare(prior[None], CounterWords(np.array([number])))
    layout = {name: value for name, value in law.layout().items() if name != "output"}
    _require(
        side.keys() == layout.keys(),
        f"prepare gives {sorted(side)}, layout promises {sorted(layout)}",
    )
    for batch in (
        np.tile(prior, (5, 1)),
        np.broadcast_to(prior, (5, law.n_classes)),
        3.0 * prior[None],
    ):
        again = law.prepare(batch, CounterWords(np.full(len(batch), number)))
        for name, (dtype, shape) in layout.items():
            _require(
                (again[name].dtype, again[name].shape) == (dtype, (len(batch), *shape)),
                f"side {name!r} does not fit the layout",
            )
            _require(
                (again[name] == side[name][0]).all(),
                f"side {name!r} differs between equal priors and equal words",
            )
    if not law.draws_side:
        other = law.prepare(prior[None], CounterWords(np.array([number + 1])))
        _require(
            all((other[name] == side[name]).all() for name in side),
            "the side depends on words: set draws_side = True",
        )
    return {name: value[0] for name, value in side.items()}


def _check_privacy(law: Law, side: Side) -> None:
    cells = law.profile(side)
    ratio = worst_ratio(cells)
    if ratio is None:
        raise AssertionError("an output is possible for one label and impossible for another")
    _require(
        ratio <= exp_floor(law.epsilon),
        f"exact epsilon {law.exact_epsilon(side)} is above the claim {law.epsilon}",
    )
    _require(
        law.exact_epsilon(side) <= law.epsilon and law.exact_epsilon() <= law.epsilon,
        "exact_epsilon is above the claim",
    )
    for label in {cell.label for cell in cells}:
        total = sum(cell.probability * cell.outputs for cell in cells if cell.label == label)
        _require(total == 1, f"probabilities of a {label!r} label sum to {total}, not 1")


def _exact_matrix(law: Law, side: Side) -> NDArray[np.object_]:
    table = law.table(side)
    values = np.empty(len(table.values), dtype=object)
    values[:] = table.values
    return np.asarray(values[table.index])


def _check_table(law: Law, side: Side) -> None:
    matrix = _exact_matrix(law, side)
    _require((matrix.sum(axis=1) == 1).all(), "rows of the exact matrix do not sum to 1")
    low, high = matrix.min(axis=0), matrix.max(axis=0)
    _require(
        all(h <= exp_floor(law.epsilon) * v for h, v in zip(high, low, strict=True)),
        "the matrix exceeds epsilon",
    )
    claimed = {cell.probability for cell in law.profile(side)}
    _require(
        set(matrix.flat) <= claimed, "the matrix holds a probability that the profile does not"
    )


def _column_of(law: Law, side: Side) -> Callable[[Array], NDArray[np.int64]]:
    """Return a function from outputs to columns of the matrix; it fails for an output without a
    column."""
    keys = _outputs_in_columns(law, side)
    known = {key.tobytes(): j for j, key in enumerate(keys)}

    def find(outputs: Array) -> NDArray[np.int64]:
        columns = [known.get(output.tobytes(), -1) for output in outputs]
        _require(min(columns) >= 0, "the sampler released an output that the table does not hold")
        return np.array(columns, dtype=np.int64)

    return find


def _draw(law: Law, side: Side, label: int, words: CounterWords) -> Array:
    n = len(words)
    rows = {name: np.broadcast_to(value, (n, *np.shape(value))) for name, value in side.items()}
    outputs = law.sample(np.full(n, label, dtype=np.int32), words, rows)
    dtype, shape = law.layout()["output"]
    _require(
        (outputs.dtype, outputs.shape) == (dtype, (n, *shape)), "outputs do not fit the layout"
    )
    return outputs


def _check_word_measure(law: Law, side: Side) -> None:
    """Check that the number of first words that lead to each output, over 2^64, is exactly the
    claimed probability.

    If the sampler reads more words, "output" is here only whether the output contains the label;
    for scores, each class's level.
    """
    if law.kind == "scores":
        return _check_level_measure(law, side)
    if law.kind == "columns":  # the words of its columns' laws were measured one by one
        return None
    find, matrix, table = _column_of(law, side), _exact_matrix(law, side), law.table(side)
    words = CounterWords(np.arange(4, dtype=np.int64))
    _draw(law, side, 0, words)
    one_word = {counter for counter, _ in words.asked} == {0}
    for label in range(law.n_classes):
        holds = table.outputs[:, label] if law.kind == "set" else table.outputs == label

        def code(words: list[int], label: int = label, holds: Array = holds) -> list[int]:
            fixed = {0: np.array(words, dtype=np.uint64)}
            columns = find(
                _draw(
                    law,
                    side,
                    label,
                    CounterWords(np.zeros(len(words), dtype=np.int64), fixed=fixed),
                )
            )
            return [int(v) for v in (columns if one_word else holds[columns])]

        # Words at which one output may give way to the next, if the outputs' intervals lie end to
        # end from either side: the bisection starts from these, and misses no narrow interval.
        least = matrix.min(axis=0)  # the part of each output's probability that every label shares
        found: set[int] = set()
        for chances in (matrix[label], least):
            parts = [int(chance * WORD) for chance in chances]
            found |= {
                *itertools.accumulate(parts),
                *(WORD - done for done in itertools.accumulate(reversed(parts))),
            }
        measured = _measure(code, [edge + step for edge in found for step in (-1, 0, 1)])
        for value in range(matrix.shape[1] if one_word else 2):
            claim = (
                matrix[label, value]
                if one_word
                else sum(matrix[label][holds == bool(value)], Fraction(0))
            )
            _require(
                Fraction(measured.get(value, 0), WORD) == claim,
                f"label {label}: words give {measured.get(value, 0)} / 2^64, not {claim}",
            )


def _check_level_measure(law: Law, side: Side) -> None:
    """Check the number of words c that lead to each level of class c, whatever the other words
    are."""
    matrix, levels = _exact_matrix(law, side), law.table(side).outputs
    for label, c in itertools.product(range(law.n_classes), repeat=2):

        def code(words: list[int], label: int = label, c: int = c) -> list[int]:
            fixed = {c: np.array(words, dtype=np.uint64)}
            drawn = _draw(
                law, side, label, CounterWords(np.zeros(len(words), dtype=np.int64), fixed=fixed)
            )
            return [int(v) for v in drawn[:, c]]

        measured = _measure(code, [])
        for level in range(int(levels.max()) + 1):
            claim = sum(matrix[label][levels[:, c] == level], Fraction(0))
            found = measured.get(level, 0)
            _require(
                Fraction(found, WORD) == claim,
                f"label {label}, class {c}: words give level {level} {found} / 2^64, not {claim}",
            )


def _measure(code: Callable[[list[int]], list[int]], edges: list[int]) -> dict[int, int]:
    """Count the first words of each code by bisection, assuming that a code's words form one or two
    intervals or lie near an edge."""
    known = {0, WORD - 1} | {i << 58 for i in range(64)} | {WORD - (1 << i) for i in range(64)}
    marks = sorted(known | {edge for edge in edges if 0 <= edge < WORD})
    spans = [
        (lo, hi, a, b)
        for (lo, a), (hi, b) in itertools.pairwise(zip(marks, code(marks), strict=True))
    ]
    counts: dict[int, int] = {}
    while spans:
        done = [s for s in spans if s[2] == s[3] or s[1] - s[0] == 1]
        for lo, hi, a, _ in done:
            counts[a] = counts.get(a, 0) + hi - lo
        spans = [s for s in spans if not (s[2] == s[3] or s[1] - s[0] == 1)]
        if spans:
            middles = [(lo + hi) // 2 for lo, hi, _, _ in spans]
            found = code(middles)
            spans = [
                part
                for (lo, hi, a, b), m, c in zip(spans, middles, found, strict=True)
                for part in ((lo, m, a, c), (m, hi, c, b))
            ]
    last = code([WORD - 1])[0]
    counts[last] = counts.get(last, 0) + 1
    return counts


def _check_samples(law: Law, side: Side) -> None:
    """Test samples against the matrix by chi-square; rare outputs are pooled."""
    from scipy.stats import chi2

    find, matrix = _column_of(law, side), _exact_matrix(law, side).astype(np.float64)
    for label in range(law.n_classes):
        words = CounterWords(np.arange(_DRAWS, dtype=np.int64), seed=label + 1)
        counts = np.bincount(find(_draw(law, side, label, words)), minlength=matrix.shape[1])
        expected = _DRAWS * matrix[label]
        rare = expected < 10
        pooled = (
            np.append(counts[~rare], counts[rare].sum()),
            np.append(expected[~rare], expected[rare].sum()),
        )
        keep = pooled[1] > 0
        observed, wanted = pooled[0][keep], pooled[1][keep]
        statistic = float(((observed - wanted) ** 2 / wanted).sum())
        limit = float(chi2.isf(FALSE_ALARM, max(1, len(wanted) - 1)))
        # a pool of few expected draws has a Poisson tail, heavier than the chi-square's
        small = wanted.min() < 10
        _require(
            statistic <= limit * (3 if small else 1),
            f"label {label}: samples do not fit the matrix (chi-square {statistic:.1f} >"
            f" {limit:.1f})",
        )


def _outputs_in_columns(law: Law, side: Side) -> Array:
    outputs = law.table(side).outputs
    return np.packbits(outputs, axis=1, bitorder="little") if law.kind == "set" else outputs


def _check_likelihood(law: Law, side: Side) -> None:
    matrix = _exact_matrix(law, side).astype(np.float64)
    outputs = _outputs_in_columns(law, side)
    rows = {
        name: np.broadcast_to(value, (len(outputs), *np.shape(value)))
        for name, value in side.items()
    }
    found = law.log_likelihood(outputs, rows)
    _require(
        (found.dtype, found.shape) == (np.dtype(np.float64), (len(outputs), law.n_classes)),
        "log_likelihood must be (n, K) float64",
    )
    _require((found.max(axis=1) == 0).all(), "the row maximum of log_likelihood must be 0")
    wanted = np.log(matrix.T) - np.log(matrix.T).max(axis=1, keepdims=True)
    _require(
        np.allclose(found, wanted, rtol=1e-9, atol=1e-12),
        "log_likelihood is not proportional to the matrix's columns",
    )
    likeliest = unpack_sets(law.likeliest(outputs, rows), law.n_classes)
    _require(
        np.array_equal(likeliest, found == 0),
        "likeliest must be the classes where log_likelihood is 0",
    )
    members = law.table(side).outputs
    shown = law.members(outputs, rows)
    wanted_members = {
        "set": members,
        "scores": found == 0,
        "columns": found == 0,
        "number": found == 0,
    }.get(law.kind, members[..., None] == np.arange(law.n_classes))
    _require((shown == wanted_members).all(), "members disagrees with the outputs")


def _check_inclusion(law: Law, side: Side) -> None:
    """Check that (own, other) are the exact inclusion probabilities, so that (1{y in output} -
    other) / (own - other) is unbiased."""
    matrix, outputs = _exact_matrix(law, side), _outputs_in_columns(law, side)
    rows = {
        name: np.broadcast_to(value, (len(outputs), *np.shape(value)))
        for name, value in side.items()
    }
    own, other = law.inclusion(outputs, rows)
    members = law.members(outputs, rows)
    k = law.n_classes
    if law.kind in ("scores", "columns", "number") and np.isnan(own).all():
        # the number of likeliest classes differs between outputs, so only `weights` gives an
        # estimator
        return
    chance = np.array(
        [[sum(matrix[y][members[:, c]], Fraction(0)) for c in range(k)] for y in range(k)],
        dtype=object,
    )
    same, different = (
        {chance[c, c] for c in range(k)},
        {chance[y, c] for y in range(k) for c in range(k) if y != c},
    )
    if np.isnan(own).all() and np.isnan(other).all():
        _require(
            len(same) > 1 or len(different) > 1 or same == different,
            "inclusion is NaN, but this row has an unbiased estimator",
        )
        return
    _require(
        (len(same), len(different)) == (1, 1),
        "inclusion gives numbers, but it depends on more than label and class being equal",
    )
    p, q = same.pop(), different.pop()
    _require(
        ((own == float(p)) & (other == float(q))).all(),
        f"inclusion is not ({float(p)}, {float(q)})",
    )
    for y in range(k):
        for c in range(k):
            estimate = sum(
                (matrix[y, j] * ((int(members[j, c]) - q) / (p - q)) for j in range(len(outputs))),
                Fraction(0),
            )
            _require(estimate == (y == c), "the estimator built from inclusion is biased")


def _check_weights(law: Law, side: Side, prior: NDArray[np.float64]) -> None:
    """Check that the weights give unbiased estimates of every class's loss, up to rounding; NaN is
    allowed only for a law without inverse."""
    asked = law.questions(prior) or ((1.0, side),)
    same = [
        p for p, other in asked if all(np.array_equal(other[name], side[name]) for name in side)
    ]
    _require(
        len(same) == 1, "questions does not list the side that prepare drew, or lists it twice"
    )
    _require(
        abs(sum(p for p, _ in asked) - 1.0) <= 1e-9,
        "probabilities of the questions do not sum to 1",
    )
    mean, scale = np.zeros((law.n_classes, law.n_classes)), 1.0
    for p, each in asked:
        outputs = _outputs_in_columns(law, each)
        rows = {
            name: np.broadcast_to(value, (len(outputs), *np.shape(value)))
            for name, value in each.items()
        }
        weights = law.weights(outputs, rows)
        _require(
            (weights.dtype, weights.shape) == (np.dtype(np.float64), (len(outputs), law.n_classes)),
            "weights must be (n, K) float64",
        )
        if np.isnan(weights).all():
            return
        scale = max(scale, float(np.abs(weights).max()))
        _require(
            np.allclose(weights.sum(axis=1), 1.0, rtol=0, atol=1e-9 * scale),
            "weights of a row must sum to 1",
        )
        mean += p * (_exact_matrix(law, each).astype(np.float64) @ weights)
    _require(
        np.allclose(mean, np.eye(law.n_classes), rtol=0, atol=1e-9 * scale),
        "the estimator built from weights is biased",
    )


def _check_words(law: Law, side: Side) -> None:
    """Check that the label changes neither which words are read nor their order, and that equal
    words give equal outputs."""
    asked = []
    for label in range(law.n_classes):
        words = CounterWords(np.arange(300, dtype=np.int64), seed=99)
        first = _draw(law, side, label, words)
        again = _draw(law, side, label, CounterWords(np.arange(300, dtype=np.int64), seed=99))
        _require((first == again).all(), "the same words gave other outputs")
        asked.append(words.asked)
    _require(all(a == asked[0] for a in asked), "which words are asked for depends on the label")
