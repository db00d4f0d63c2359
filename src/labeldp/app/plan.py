# SPDX-License-Identifier: Apache-2.0
"""`labeldp plan`: compare the utility of laws at given budgets, before anything is spent."""

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.custody._draw import check_contract
from labeldp.custody._request import large_epsilon
from labeldp.errors import InvalidInput
from labeldp.laws import Grid, Law, RandomizedResponse, SubsetSelection, law_named
from labeldp.laws._grid import grid_facts
from labeldp.laws._square_wave import MOST_ORDERED, law_of_numbers
from labeldp.ledger._database import per_row_epsilon
from labeldp.stats._power import mean_variance

COMPARED = ("rr", "subset", "split")
OF_NUMBERS = ("square-wave", "threshold", "unbiased", "rr-on-bins", "laplace", "rr")


Facts = dict[str, Any]
_CHANCES = ("keep_probability", "set_size", "noisy_accuracy")
_MEANING = {
    "epsilon": "total budget of one row, or of all rows of one unit",
    "epsilon_per_row": "what the law of each row runs at",
    "keep_probability": "that the output is the true label, or a set that holds it",
    "set_size": "labels in the output",
    "noisy_accuracy": "that the likeliest label given the output is the true one",
    "bits_per_row": "what an output tells of the label",
    "released_error": (
        "root mean squared distance of a released number from the true one; none where an interval"
        " or a bit is released"
    ),
    "row_error": (
        "standard error of the mean of all numbers (labeldp.stats.mean), times the root of the"
        " number of rows"
    ),
    "mean_error": "that standard error",
    "attacker_advantage": (
        "by how much an output helps to guess one label, at most, whatever is known of it"
    ),
    "rows_worth": "rows with true labels that tell as much as all noisy ones",
}


def _budgets(
    epsilons: Sequence[float], rows: int | None, cap: int
) -> Iterator[tuple[float, float, list[str]]]:
    """Yield each budget, what a row gets of it, and a warning if it is large."""
    if rows is not None:
        _validate.integer(rows=rows, low=1)
    _validate.integer(max_rows_per_unit=cap, low=1)
    for epsilon in map(_validate.epsilon, epsilons):
        per_row = per_row_epsilon(epsilon, cap)
        yield epsilon, per_row, [*filter(None, [large_epsilon(epsilon, per_row)])]


def plan(
    n_classes: int,
    epsilons: Sequence[float],
    *,
    laws: Sequence[str] = (),
    rows: int | None = None,
    max_rows_per_unit: int = 1,
) -> Facts:
    """Compare the laws under a uniform prior.

    Parameters
    ----------
    n_classes : int >= 2
    epsilons : sequence of float > 0
        Total budgets of a unit.
    laws : sequence of str, default=()
        Further laws to compare, by name: "rr-top-k:3", or a user's law after
        `labeldp.register_law`.
    rows : int >= 1, optional
        Number of rows of the table, to compute how many true labels the noisy ones are worth.
    max_rows_per_unit : int >= 1, default=1
        Cap on the rows of a unit: each row's law has epsilon divided by it.

    Returns
    -------
    dict
        JSON-ready: the laws at each budget, what each budget is worth, reasons, what to learn with,
        and what each name means.

    See Also
    --------
    labeldp.release : releases a table by one of these laws.

    Notes
    -----
    The attacker's largest advantage is the maximum over k of (E-1)(k-1) / (k(E+k-1)) with E =
    e^epsilon, reached by a prior that is uniform on k classes, and at most tanh(epsilon/4).
    """
    _validate.integer(n_classes=n_classes, low=2, fix="One class needs no privacy.")
    lines: list[Facts] = []
    budgets: list[Facts] = []
    reasons: list[str] = []
    learners: list[str] = []
    for epsilon, per_row, warned in _budgets(epsilons, rows, max_rows_per_unit):
        made = {name: law_named(name, n_classes, per_row) for name in (*COMPARED, *laws)}
        bits = {name: _bits(law) for name, law in made.items()}
        # the first within a thousandth of the best, since rounding would decide between equal laws
        enough = max(bits.values()) * (1 - 1e-3)
        best = next(name for name, found in bits.items() if found >= enough)
        lines += [
            {"epsilon": epsilon, "law": name, "epsilon_per_row": per_row}
            | dict(zip(_CHANCES, _chances(law), strict=True))
            | {"bits_per_row": bits[name], "recommended": name == best}
            for name, law in made.items()
        ]
        worth = None if rows is None else rows * bits[best] / math.log2(n_classes)
        gain = advantage(epsilon, n_classes)
        budgets.append({"epsilon": epsilon, "attacker_advantage": gain, "rows_worth": worth})
        reasons += [_reason(epsilon, best, bits[best] / bits[COMPARED[0]]), *warned]
        learners.append(_learner(epsilon, per_row, n_classes, worth))
    return {
        "n_classes": n_classes,
        "rows": rows,
        "laws": lines,
        "budgets": budgets,
        "reasons": reasons,
        "learners": [*learners, NEXT],
    } | _meaning(lines, budgets)


def _bits(law: Law) -> float:
    check_contract(law)
    return float(np.asarray(law.information())) / math.log(2)


def _meaning(*tables: Sequence[Facts]) -> Facts:
    used = {name for rows in tables for name in rows[0]}
    return {"meaning": {name: text for name, text in _MEANING.items() if name in used}}


def plan_numbers(
    grid: Grid,
    epsilons: Sequence[float],
    *,
    laws: Sequence[str] = (),
    rows: int | None = None,
    max_rows_per_unit: int = 1,
) -> Facts:
    """Compare the laws of numbers of a public range; no number is read.

    Parameters
    ----------
    grid : Grid
    epsilons : sequence of float > 0
        Total budgets of a unit.
    laws : sequence of str, default=()
        Further laws to compare, by name.
    rows : int >= 1, optional
        Number of rows, to compute the error of their mean.
    max_rows_per_unit : int >= 1, default=1
        Each row's law has epsilon divided by it.

    Returns
    -------
    dict
        As of `plan`.

    Notes
    -----
    Errors of `UnbiasedRandomizer` and `RROnBins` are those of at most 32 points, which takes a
    second or two an epsilon. A law that does not exist at an epsilon, as some do not near 0, is
    named and left out.
    """
    lines: list[Facts] = []
    reasons: list[str] = []
    for epsilon, per_row, warned in _budgets(epsilons, rows, max_rows_per_unit):
        made: dict[str, Facts] = {}
        for name in dict.fromkeys((*OF_NUMBERS, *laws)):
            # laws that are found by a linear program, whose errors hardly change with more points
            few = 32 if name in ("unbiased", "rr-on-bins") else len(grid)
            points = np.linspace(grid.low, grid.high, min(len(grid), few))
            try:
                law = law_named(name, len(points), per_row)
            except InvalidInput as refusal:
                if name not in OF_NUMBERS:
                    raise
                warned = [f"epsilon {epsilon:g}: not {name}. {refusal}", *warned]
                continue
            check_contract(law)
            row = _row_error(law, points)
            mean = None if row is None or rows is None else row / math.sqrt(rows)
            made[name] = {"epsilon": epsilon, "law": name, "epsilon_per_row": per_row}
            made[name] |= {"released_error": _released_error(law, points), "row_error": row}
            made[name] |= {"mean_error": mean}
        lines += made.values()
        if (drawn := law_of_numbers(len(grid))) in made:
            reasons.append(_reason_of_numbers(epsilon, per_row, made, drawn))
        reasons += warned
    if not lines:
        raise InvalidInput(
            f"Expected an epsilon at which a law of numbers exists, got {list(epsilons)}. Take 1e-6"
            " or more."
        )
    away = _short(float(np.std(np.linspace(grid.low, grid.high, len(grid)))))
    reasons.append(f"Numbers spread evenly over the range are {away} off its middle.")
    return grid_facts(grid) | {"rows": rows, "laws": lines, "reasons": reasons} | _meaning(lines)


def _row_error(law: Law, points: NDArray[np.float64]) -> float | None:
    try:
        variance = mean_variance(law, points, np.full(len(points), 1 / len(points)))
    except InvalidInput:  # as of bins, whose numbers are drawn to the middle
        return None
    # below 0: lost in rounding, at a tiny epsilon
    return math.sqrt(variance) if variance >= 0 else None


def _released_error(law: Law, points: NDArray[np.float64]) -> float | None:
    if law.kind not in ("label", "number"):
        return None
    released = (
        np.asarray(law.released(Grid(points[0], points[-1], points=len(points))), np.float64)
        if law.kind == "number"
        else points
    )
    squares = (released - points[:, None]) ** 2
    return float(np.sqrt((law.matrix() * squares).sum(axis=1).mean()))


def _short(value: float) -> str:
    return f"{float(f'{value:.3g}'):,.10g}"


def _reason_of_numbers(
    epsilon: float, per_row: float, lines: Mapping[str, Facts], drawn: str
) -> str:
    rule = next(rule for rule in RULES if rule.data == NUMBERS and rule.holds(per_row))
    how = {"unbiased": "right on average", "rr-on-bins": "drawn to the middle"}
    others = [
        f"{name} (each number {_short(lines[name]['released_error'])} off, {how[name]})"
        for name in how
        if name in lines
    ]
    advice = f" For others, who use the column as it is: {', or '.join(others)}." if others else ""
    what = "thresholds" if drawn == "threshold" else "intervals"
    fewer = (
        f". Of {MOST_ORDERED} points or fewer (--range LOW:HIGH:POINTS) they draw intervals, which"
        " tell more"
    )
    return (
        f"epsilon {epsilon:g}: learn from {what}. labeldp train (best by {rule.learner}) and"
        f" labeldp release draw them by default{fewer if drawn == 'threshold' else ''}.{advice}"
    )


def advantage(epsilon: float, n_classes: int) -> float:
    """Compute the largest gain of an attacker over guessing, for any prior over at most this many
    classes."""
    shrink = math.exp(-epsilon)  # 1 / E for E = e^epsilon, so that no epsilon overflows
    # (E-1)(k-1) / (k(E+k-1)) is largest at the real k = 1 + sqrt(E): try its whole neighbours.
    best = 1 + math.sqrt(math.exp(min(epsilon, 80.0)))
    candidates = {
        2,
        n_classes,
        *(min(max(int(best) + step, 2), n_classes) for step in (-1, 0, 1, 2)),
    }
    return max((1 - shrink) * (k - 1) / (k * (1 + shrink * (k - 1))) for k in candidates)


def _chances(law: Law) -> tuple[float, float, float]:
    """Compute for a uniform label: P(output contains the label), the output's mean size, P(its
    likeliest member is the label)."""
    n = law.n_classes
    # a row of scores counts as the set of its likeliest classes
    if likeliest := getattr(law, "likeliest_chances", None):
        inside, other, hit = likeliest()
        return inside, inside + (n - 1) * other, hit
    if isinstance(law, RandomizedResponse | SubsetSelection):  # too many sets to list
        kind, shape = law.layout()["output"]
        inside = float(law.inclusion(np.zeros((1, *shape), kind), {})[0][0])
        size = float(law.set_size) if isinstance(law, SubsetSelection) else 1.0
        return inside, size, inside / size
    side, channel, outputs = law.side_row(), law.matrix(), law.outputs()
    rows = {
        name: np.broadcast_to(value, (len(outputs), *np.shape(value)))
        for name, value in side.items()
    }
    members = outputs if law.kind == "set" else law.members(outputs, rows)
    size = float((channel @ members.sum(axis=1)).mean())
    return float((channel * members.T).sum() / n), size, float(channel.max(axis=0).sum() / n)


# What to learn with
# --------------------------------------------------------------------------------------------------

TABLES, EVENTS, EMBEDDINGS, NUMBERS = (
    "tables",
    "rare events",
    "images, texts and embeddings",
    "numbers",
)
_HOLDS = {"below": operator.lt, "up to": operator.le, "from": operator.ge, "above": operator.gt}


@dataclass(frozen=True)
class Rule:
    """What the benchmarks found best for a kind of data at some epsilon. The README's section on
    accuracy says the same.

    Attributes
    ----------
    data : str
    word : "below", "up to", "from" or "above"
    epsilon : float
        Of one row.
    learner : str
    model : str
        What `labeldp train --model` calls it, or "".
    """

    data: str
    word: str
    epsilon: float
    learner: str
    model: str = ""

    def holds(self, epsilon: float) -> bool:
        """Whether the rule is about this epsilon."""
        return bool(_HOLDS[self.word](epsilon, self.epsilon))


_COUNTED = (
    "counts of clusters (ProportionClassifier; of images, then a net that learns its probabilities)"
)
_PHOTOGRAPHS = (
    "; with a GPU, photographs without features of others by TorchClassifier with Consistency"
)
RULES = (
    Rule(TABLES, "below", 0.5, "counts of clusters (ProportionClassifier)", "counts"),
    Rule(TABLES, "from", 0.5, "LightGBM in LabelDPClassifier", "lightgbm"),
    Rule(EVENTS, "up to", 2.0, "counts of clusters (ProportionClassifier)", "counts"),
    Rule(EMBEDDINGS, "up to", 1.0, _COUNTED + _PHOTOGRAPHS),
    Rule(
        EMBEDDINGS,
        "above",
        1.0,
        "the likelihood (LabelDPClassifier on features, TorchClassifier)" + _PHOTOGRAPHS,
    ),
    Rule(NUMBERS, "up to", 2.0, "LabelDPRegressor in two stages: --stages 2"),
    Rule(NUMBERS, "above", 2.0, "LabelDPRegressor in one stage"),
)
# true labels a class: where single rows are worth less, counts were ahead on tables, too
FEW = 30.0
_RARE = "where one row in a hundred is an event, and categories have many levels,"
NEXT = (
    "Next: labeldp train TABLE --label COLUMN --classes A,B --id COLUMN --epsilon E --model MODEL"
    " --out FOLDER. With --id, another model on the same rows costs nothing more, unless it learns"
    " from counts."
)


def _learner(epsilon: float, per_row: float, n_classes: int, worth: float | None) -> str:
    """Say what to learn with at a budget, in the README's order; `worth`: true labels that say as
    much as all rows, if known."""
    few = worth is not None and worth < FEW * n_classes
    held = {
        rule.data: rule
        for rule in RULES
        if rule.data != NUMBERS and rule.holds(0.0 if few and rule.data == TABLES else per_row)
    }
    if n_classes > 2 or held[TABLES].model == "counts":  # then tables are counted anyway
        held.pop(EVENTS, None)
    said = "; ".join(
        f"{_RARE if data == EVENTS else data} by {rule.learner}"
        + (f" (--model {rule.model})" if rule.model else "")
        for data, rule in held.items()
    )
    rows = "" if worth is None else f" Single rows are worth {_short(worth / n_classes)} true"
    return f"epsilon {epsilon:g}: learn {said}.{rows and rows + ' labels a class.'}"


def _reason(epsilon: float, best: str, gain: float) -> str:
    if gain < 1.01:
        return (
            f"epsilon {epsilon:g}: rr, the default of labeldp release, since no other law tells"
            " more; any trainer can use its labels."
        )
    return (
        f"epsilon {epsilon:g}: {best} tells {gain:.2f} times as much a row as rr. Take it (--law"
        f" {best}) if labeldp trains on the table; take rr, the default of labeldp release, if"
        " other trainers will."
    )
