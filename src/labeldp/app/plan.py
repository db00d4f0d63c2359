# SPDX-License-Identifier: Apache-2.0
"""`labeldp plan`: what each law gives at each budget, before anything is spent."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from labeldp import _validate
from labeldp.app.ledger import table_text
from labeldp.laws import Alibi, Law, law_from_dict
from labeldp.privacy.events import per_row_epsilon

COMPARED = ("rr", "subset", "split", "alibi")


@dataclass(frozen=True)
class LawAtBudget:
    """What one law gives for one row under a uniform prior.

    Attributes
    ----------
    law : str
    epsilon : float
        Total of one unit.
    epsilon_per_row : float
    keep_probability : float
        That the output is the true label, or a set that holds it.
    set_size : float
        Labels in the output.
    bits_per_row : float
        Information between label and output.
    noisy_accuracy : float
        That the most likely label given the output is the true one.
    recommended : bool
    """

    law: str
    epsilon: float
    epsilon_per_row: float
    keep_probability: float
    set_size: float
    bits_per_row: float
    noisy_accuracy: float
    recommended: bool


@dataclass(frozen=True)
class Advantage:
    """What an attacker can gain at a budget: above guessing the likeliest label, over all priors."""

    epsilon: float
    attacker_advantage: float
    rows_worth: float | None  # rows with true labels that carry as many bits as the recommended law's rows


@dataclass(frozen=True)
class Plan:
    """The comparison, and why the recommended law is recommended."""

    n_classes: int
    rows: int | None
    laws: tuple[LawAtBudget, ...]
    budgets: tuple[Advantage, ...]
    reasons: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """JSON-ready data."""
        return asdict(self)

    def to_text(self) -> str:
        """For people."""
        names = ("epsilon", "law", "keep_probability", "set_size", "bits_per_row", "noisy_accuracy", "")
        lines = [asdict(item) | {"": "<- recommended" if item.recommended else ""} for item in self.laws]
        worth = ("epsilon", "attacker_advantage", *(("rows_worth",) if self.rows else ()))
        parts = [table_text(names, lines), table_text(worth, [asdict(b) for b in self.budgets]), "\n".join(self.reasons)]
        return "\n\n".join(parts)


def plan(n_classes: int, epsilons: Sequence[float], *, rows: int | None = None, max_rows_per_unit: int = 1) -> Plan:
    """Compare the laws under a uniform prior.

    Parameters
    ----------
    n_classes : int
    epsilons : sequence of float
        Total budgets of a unit.
    rows : int, optional
        Rows of the table, to say how many true labels the noisy ones are worth.
    max_rows_per_unit : int
        Each row's law runs at epsilon divided by this.

    Source: information is the law's own; the attacker's largest advantage is max over k of (E-1)(k-1) / (k(E+k-1)), E = e^epsilon,
    reached by a prior uniform on k classes, and bounded by tanh(epsilon/4).
    """
    _validate.integer(n_classes=n_classes, low=2, fix="One class needs no privacy.")
    if rows is not None:
        _validate.integer(rows=rows, low=1)
    lines: list[LawAtBudget] = []
    budgets: list[Advantage] = []
    reasons: list[str] = []
    for epsilon in epsilons:
        per_row = per_row_epsilon(_validate.epsilon(epsilon), max_rows_per_unit)
        made = [law_from_dict({"law": name, "n_classes": n_classes, "epsilon": per_row}) for name in COMPARED]
        best = _best(made)
        lines += [_line(law, epsilon, recommended=law is best) for law in made]
        bits = _bits(best)
        budgets.append(Advantage(epsilon, advantage(epsilon, n_classes), None if rows is None else rows * bits / math.log2(n_classes)))
        reasons.append(_reason(epsilon, best, made[0]))
    return Plan(n_classes, rows, tuple(lines), tuple(budgets), tuple(reasons))


def advantage(epsilon: float, n_classes: int) -> float:
    """Largest gain of an attacker over guessing, for any prior over at most this many classes."""
    shrink = math.exp(-epsilon)  # of E = e^epsilon, so that no epsilon overflows
    best = 1 + math.sqrt(math.exp(min(epsilon, 80.0)))
    candidates = {2, n_classes, *(min(max(int(best) + step, 2), n_classes) for step in (-1, 0, 1, 2))}
    return max((1 - shrink) * (k - 1) / (k * (1 + shrink * (k - 1))) for k in candidates)


def _best(laws: Sequence[Law]) -> Law:
    """The most informative; the first of those that are so up to a thousandth: of equal ones rounding would choose."""
    scores = [_bits(law) for law in laws]
    return next(law for law, score in zip(laws, scores, strict=True) if score >= max(scores) * (1 - 1e-3))


def _bits(law: Law) -> float:
    return float(np.asarray(law.information())) / math.log(2)


def _line(law: Law, epsilon: float, *, recommended: bool) -> LawAtBudget:
    inside, size, hit = _chances(law)
    return LawAtBudget(law.name, epsilon, law.epsilon, inside, size, _bits(law), hit, recommended)


def _chances(law: Law) -> tuple[float, float, float]:
    """(output holds the label, mean size of the output, its likeliest member is the label), for a uniform label."""
    n = law.n_classes
    if law.name == "split":
        # A side of a or b labels is the answer, and the label's own side with probability e^eps / (e^eps + 1).
        a, b, right = n // 2, n - n // 2, 1 / (1 + math.exp(-law.epsilon))
        return right, (right * (a * a + b * b) + (1 - right) * 2 * a * b) / n, 2 * right / n
    if isinstance(law, Alibi):
        inside, other, hit = law.likeliest_chances()  # of a row of scores, the likeliest classes are what is read as an answer
        return inside, inside + (n - 1) * other, hit
    kind, shape = law.layout()["output"]
    inside = float(law.inclusion(np.zeros((1, *shape), kind), {})[0][0])
    size = int(law.set_size) if law.kind == "set" else 1  # type: ignore[attr-defined]
    return inside, float(size), inside / size


def _reason(epsilon: float, best: Law, response: Law) -> str:
    gain = _bits(best) / _bits(response) if best is not response else 1.0
    if gain < 1.01:
        return f"epsilon {epsilon:g}: rr, since no other law tells more; any trainer can use its labels."
    return (
        f"epsilon {epsilon:g}: {best.name} tells {gain:.2f} times as much a row as rr. "
        "Take it if labeldp trains on the table; take rr if other trainers will."
    )
