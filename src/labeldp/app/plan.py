# SPDX-License-Identifier: Apache-2.0
"""`labeldp plan`: compare the utility of laws at given budgets, before anything is spent."""

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.app._ledger import table_text
from labeldp.custody._draw import check_contract
from labeldp.custody._request import large_epsilon
from labeldp.errors import InvalidInput
from labeldp.laws import Grid, Law, RandomizedResponse, SubsetSelection, law_named
from labeldp.laws._square_wave import MOST_ORDERED, law_of_numbers
from labeldp.ledger._database import per_row_epsilon
from labeldp.stats._power import mean_variance
from labeldp.tables.formats._parquet import open_table
from labeldp.tables.formats._table import check_columns, id_column

COMPARED = ("rr", "subset", "split")


@dataclass(frozen=True)
class LawAtBudget:
    """The utility of one law for one row under a uniform prior.

    Attributes
    ----------
    law : str
    epsilon : float
        Total budget of one unit.
    epsilon_per_row : float
    keep_probability : float
        Probability that the output is the true label, or a set that contains it.
    set_size : float
        Mean number of labels in the output.
    bits_per_row : float
        Mutual information between label and output.
    noisy_accuracy : float
        Probability that the most likely label given the output is the true one.
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
    """An attacker's largest gain over guessing the likeliest label, at a budget, over all
    priors."""

    epsilon: float
    attacker_advantage: float
    # number of true labels with as many bits as all outputs of the recommended law
    rows_worth: float | None


@dataclass(frozen=True)
class CapAtBudget:
    """The utility of one cap on rows per unit: a higher cap keeps more rows, a lower one leaves
    more epsilon for each row.

    Attributes
    ----------
    epsilon : float
        Total budget of one unit.
    max_rows_per_unit, rows_kept : int
    share_kept : float
        Share of all rows that is kept.
    epsilon_per_row, bits_per_row : float
        For the most informative law at this epsilon.
    bits : float
        Information of all kept rows together.
    recommended : bool
        Whether this cap has the most bits.
    """

    epsilon: float
    max_rows_per_unit: int
    rows_kept: int
    share_kept: float
    epsilon_per_row: float
    bits_per_row: float
    bits: float
    recommended: bool


@dataclass(frozen=True)
class Plan:
    """A comparison of laws with recommendations and reasons; with rows per unit, also a comparison
    of caps."""

    n_classes: int
    rows: int | None
    laws: tuple[LawAtBudget, ...]
    budgets: tuple[Advantage, ...]
    reasons: tuple[str, ...]
    learners: tuple[str, ...]
    caps: tuple[CapAtBudget, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the plan as JSON-ready data."""
        return asdict(self)

    def to_text(self) -> str:
        """Format the plan as text for people."""
        laws = [asdict(item) | {"": _mark(item.recommended)} for item in self.laws]
        worth = (
            "epsilon",
            "attacker_advantage",
            *(("rows_worth",) if self.rows or self.caps else ()),
        )
        said = "\n".join((*self.reasons, *self.learners, NEXT))
        parts = [
            table_text((*_LAW_COLUMNS, ""), laws),
            table_text(worth, [asdict(b) for b in self.budgets]),
            said,
        ]
        if self.caps:
            parts = [*_caps_text(self.caps), *parts]
        used = dict.fromkeys([*(_CAP_COLUMNS if self.caps else ()), *_LAW_COLUMNS, *worth])
        explained = "\n".join(f"  {name}: {_MEANING[name]}" for name in used if name in _MEANING)
        return "\n\n".join(
            [
                *parts,
                (
                    "What the columns mean, for a label that is each class with the same"
                    f" probability:\n{explained}"
                ),
            ]
        )


_LAW_COLUMNS = ("epsilon", "law", "keep_probability", "set_size", "bits_per_row", "noisy_accuracy")
_CAP_COLUMNS = (
    "epsilon",
    "max_rows_per_unit",
    "rows_kept",
    "share_kept",
    "epsilon_per_row",
    "bits_per_row",
    "bits",
)
_CAPS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
_MEANING = {
    "epsilon": "total budget of one row, or of all rows of one unit",
    "rows_kept": "rows within the cap; the others are left out",
    "epsilon_per_row": "what the law of each row runs at",
    "bits": "rows_kept times bits_per_row",
    "keep_probability": "that the output is the true label, or a set that holds it",
    "set_size": "labels in the output",
    "bits_per_row": "what an output tells of the label",
    "noisy_accuracy": "that the likeliest label given the output is the true one",
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


def _mark(recommended: bool) -> str:
    return "<- recommended" if recommended else ""


def _caps_text(caps: Sequence[CapAtBudget]) -> list[str]:
    lines = [
        asdict(cap)
        | {
            "rows_kept": f"{cap.rows_kept:,}",
            "share_kept": f"{cap.share_kept:.1%}",
            "": _mark(cap.recommended),
        }
        for cap in caps
    ]
    return [
        table_text((*_CAP_COLUMNS, ""), lines),
        "\n".join(map(_cap_reason, (cap for cap in caps if cap.recommended))),
    ]


def _cap_reason(cap: CapAtBudget) -> str:
    return (
        f"epsilon {cap.epsilon:g}: at most {cap.max_rows_per_unit}"
        f" row{'s' * (cap.max_rows_per_unit != 1)} of each unit (--max-rows-per-unit"
        f" {cap.max_rows_per_unit}) tells most, with {cap.share_kept:.1%} of the rows."
    )


def plan(
    n_classes: int,
    epsilons: Sequence[float],
    *,
    laws: Sequence[str] = (),
    rows: int | None = None,
    max_rows_per_unit: int | None = None,
    rows_per_unit: Mapping[int, int] | None = None,
) -> Plan:
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
        Number of rows of the table, to compute how many true labels the noisy ones are worth. With
        `rows_per_unit` those within the cap count instead.
    max_rows_per_unit : int >= 1, optional
        Cap on the rows of a unit: each row's law has epsilon divided by it. Default: 1, or with
        `rows_per_unit` the most informative cap.
    rows_per_unit : mapping of int to int, optional
        Number of units with each number of rows, from `count_rows_per_unit`, to compare caps.

    Returns
    -------
    Plan

    See Also
    --------
    labeldp.release : releases a table by one of these laws.

    Notes
    -----
    The attacker's largest advantage is the maximum over k of (E-1)(k-1) / (k(E+k-1)) with E =
    e^epsilon, reached by a prior that is uniform on k classes, and at most tanh(epsilon/4).
    """
    _validate.integer(n_classes=n_classes, low=2, fix="One class needs no privacy.")
    lines: list[LawAtBudget] = []
    caps: list[CapAtBudget] = []
    budgets: list[Advantage] = []
    reasons: list[str] = []
    learners: list[str] = []
    names = (*COMPARED, *laws)
    for epsilon, cap, kept, found in _at_each(
        n_classes, epsilons, names, rows, max_rows_per_unit, rows_per_unit
    ):
        caps += found
        made = _compared(n_classes, epsilon, cap, names)
        best = _best(made)
        lines += [_line(name, law, epsilon, recommended=name == best) for name, law in made.items()]
        bits, per_row = _bits(made[best]), per_row_epsilon(epsilon, cap)
        worth = None if kept is None else kept * bits / math.log2(n_classes)
        budgets.append(Advantage(epsilon, advantage(epsilon, n_classes), worth))
        reasons += [
            _reason(epsilon, best, bits / _bits(made[COMPARED[0]])),
            *filter(None, [large_epsilon(epsilon, per_row)]),
        ]
        learners.append(_learner(epsilon, per_row, n_classes, worth))
    return Plan(
        n_classes, rows, tuple(lines), tuple(budgets), tuple(reasons), tuple(learners), tuple(caps)
    )


# Numbers
# --------------------------------------------------------------------------------------------------

OF_NUMBERS = ("square-wave", "threshold", "unbiased", "rr-on-bins", "laplace", "rr")
# points of laws that are found by a linear program, whose errors hardly change with more
_SOLVED = 32


@dataclass(frozen=True)
class NumbersAtBudget:
    """The utility of one law of numbers, if all points of the range are equally frequent; errors
    are in the number's own unit.

    Attributes
    ----------
    law : str
    epsilon : float
        Total budget of one unit.
    epsilon_per_row : float
    released_error : float or None
        Root mean squared distance of a released number from the true one; None if the law releases
        an interval or a bit.
    row_error : float or None
        Standard error of the mean, as `labeldp.stats.mean` estimates it, times the root of the
        number of rows; None if the law has no unbiased estimate.
    mean_error : float or None
        That standard error; None if the number of rows is not known.
    """

    law: str
    epsilon: float
    epsilon_per_row: float
    released_error: float | None
    row_error: float | None
    mean_error: float | None


@dataclass(frozen=True)
class NumberPlan:
    """A comparison of laws of numbers, with what to use; with rows per unit, also of caps, for the
    law that training draws by."""

    grid: Grid
    rows: int | None
    laws: tuple[NumbersAtBudget, ...]
    reasons: tuple[str, ...]
    caps: tuple[CapAtBudget, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the plan as JSON-ready data."""
        grid = {"low": self.grid.low, "high": self.grid.high, "points": len(self.grid)}
        lists = {
            "laws": [asdict(law) for law in self.laws],
            "reasons": list(self.reasons),
            "caps": [asdict(cap) for cap in self.caps],
        }
        return {"grid": grid, "rows": self.rows, **lists}

    def to_text(self) -> str:
        """Format the plan as text for people."""
        columns = (
            "epsilon",
            "law",
            "released_error",
            "row_error",
            *(("mean_error",) if self.rows or self.caps else ()),
        )
        lines = [
            {name: "" if value is None else value for name, value in asdict(law).items()}
            for law in self.laws
        ]
        used = dict.fromkeys((*(_CAP_COLUMNS if self.caps else ()), *columns))
        explained = "\n".join(f"  {name}: {_MEANING[name]}" for name in used if name in _MEANING)
        away = _short(float(np.std(np.linspace(self.grid.low, self.grid.high, len(self.grid)))))
        return "\n\n".join(
            [
                *(_caps_text(self.caps) if self.caps else ()),
                table_text(columns, lines),
                "\n".join(self.reasons),
                (
                    f"Of numbers spread evenly over the range, which are {away} off its"
                    f" middle:\n{explained}"
                ),
            ]
        )


def plan_numbers(
    grid: Grid,
    epsilons: Sequence[float],
    *,
    laws: Sequence[str] = (),
    rows: int | None = None,
    max_rows_per_unit: int | None = None,
    rows_per_unit: Mapping[int, int] | None = None,
) -> NumberPlan:
    """Compare the laws of numbers of a public range; no number is read.

    Parameters
    ----------
    grid : Grid
    epsilons : sequence of float > 0
        Total budgets of a unit.
    laws : sequence of str, default=()
        Further laws to compare, by name.
    rows : int >= 1, optional
        Number of rows, to compute the error of their mean. With `rows_per_unit` those within the
        cap count instead.
    max_rows_per_unit : int >= 1, optional
        Each row's law has epsilon divided by it. Default: 1, or with `rows_per_unit` the most
        informative cap.
    rows_per_unit : mapping of int to int, optional
        Number of units with each number of rows, from `count_rows_per_unit`, to compare caps.

    Returns
    -------
    NumberPlan

    Notes
    -----
    Errors of `UnbiasedRandomizer` and `RROnBins` are those of at most 32 points, which takes a
    second or two an epsilon. A law that does not exist at an epsilon, as some do not near 0, is
    named and left out.
    """
    lines: list[NumbersAtBudget] = []
    reasons: list[str] = []
    caps: list[CapAtBudget] = []
    drawn = law_of_numbers(len(grid))
    for epsilon, cap, kept, found in _at_each(
        len(grid), epsilons, (drawn,), rows, max_rows_per_unit, rows_per_unit
    ):
        caps += found
        per_row = per_row_epsilon(epsilon, cap)
        made = [
            _line_of_numbers(name, grid, epsilon, per_row, kept)
            for name in dict.fromkeys((*OF_NUMBERS, *laws))
        ]
        by = {line.law: line for line in made if isinstance(line, NumbersAtBudget)}
        lines += by.values()
        reasons += [_reason_of_numbers(epsilon, per_row, by, drawn)] if drawn in by else []
        reasons += [
            *(line for line in made if isinstance(line, str)),
            *filter(None, [large_epsilon(epsilon, per_row)]),
        ]
    if not lines:
        raise InvalidInput(
            f"Expected an epsilon at which a law of numbers exists, got {list(epsilons)}. Take 1e-6"
            " or more."
        )
    return NumberPlan(grid, rows, tuple(lines), tuple(reasons), tuple(caps))


def _line_of_numbers(
    name: str, grid: Grid, epsilon: float, per_row: float, rows: int | None
) -> NumbersAtBudget | str:
    """Compute the errors of a law; of one that does not exist at this epsilon, say so."""
    points = np.linspace(
        grid.low,
        grid.high,
        min(len(grid), _SOLVED) if name in ("unbiased", "rr-on-bins") else len(grid),
    )
    try:
        law = law_named(name, len(points), per_row)
    except InvalidInput as refusal:
        if name not in OF_NUMBERS:
            raise
        return f"epsilon {epsilon:g}: not {name}. {refusal}"
    check_contract(law)
    shares = np.full(len(points), 1 / len(points))
    try:
        variance = mean_variance(law, points, shares)
        # below 0: lost in rounding, at a tiny epsilon
        row = math.sqrt(variance) if variance >= 0 else None
    except InvalidInput:  # as of bins, whose numbers are drawn to the middle
        row = None
    return NumbersAtBudget(
        name,
        epsilon,
        per_row,
        _released_error(law, points),
        row,
        None if row is None or rows is None else row / math.sqrt(rows),
    )


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
    epsilon: float, per_row: float, lines: Mapping[str, NumbersAtBudget], drawn: str
) -> str:
    stages = f" (best by {rule.learner})" if (rule := rule_of(NUMBERS, per_row)) else ""
    off = {
        name: _short(lines[name].released_error or 0.0)
        for name in ("unbiased", "rr-on-bins")
        if name in lines
    }
    how = {"unbiased": "right on average", "rr-on-bins": "drawn to the middle"}
    others = [f"{name} (each number {error} off, {how[name]})" for name, error in off.items()]
    advice = f" For others, who use the column as it is: {', or '.join(others)}." if others else ""
    by_default = f"labeldp train{stages} and labeldp release draw them by default"
    if drawn == "threshold":
        what = "thresholds"
        by_default += (
            f". Of {MOST_ORDERED} points or fewer (--range LOW:HIGH:POINTS) they draw intervals,"
            " which tell more"
        )
    else:
        what = "intervals"
    return f"epsilon {epsilon:g}: learn from {what}. {by_default}.{advice}"


def _compared(n_classes: int, epsilon: float, cap: int, names: Sequence[str]) -> dict[str, Law]:
    """Make the laws to compare for one row, by the names under which they were requested."""
    per_row = per_row_epsilon(epsilon, cap)
    found = {name: law_named(name, n_classes, per_row) for name in names}
    for law in found.values():
        check_contract(law)
    return found


def _caps(
    n_classes: int, epsilon: float, rows_per_unit: Mapping[int, int], names: Sequence[str]
) -> list[CapAtBudget]:
    for rows, units in rows_per_unit.items():
        _validate.integer(rows_per_unit=rows, low=1)
        _validate.integer(units=units, low=0)
    most, total = (
        max(rows_per_unit, default=0),
        sum(rows * units for rows, units in rows_per_unit.items()),
    )
    if not total:
        raise InvalidInput("Expected units with rows, got none.")
    found = []
    for cap in sorted({min(cap, most) for cap in _CAPS}):
        made = _compared(n_classes, epsilon, cap, names)
        # For each cap the most informative law, since the best law may change with the epsilon that
        # a row gets.
        law = made[_best(made)]
        kept = _kept(rows_per_unit, cap)
        found.append(
            CapAtBudget(
                epsilon,
                cap,
                kept,
                kept / total,
                law.epsilon,
                _bits(law),
                kept * _bits(law),
                recommended=False,
            )
        )
    best = max(found, key=lambda cap: cap.bits)
    return [replace(cap, recommended=cap is best) for cap in found]


def _at_each(
    n_classes: int,
    epsilons: Sequence[float],
    names: Sequence[str],
    rows: int | None,
    cap: int | None,
    rows_per_unit: Mapping[int, int] | None,
) -> Iterator[tuple[float, int, int | None, list[CapAtBudget]]]:
    """Yield each budget, its cap, by default the recommended one, the rows that this keeps, None if
    not known, and all caps compared."""
    if rows is not None:
        _validate.integer(rows=rows, low=1)
    given = None if cap is None else _validate.integer(max_rows_per_unit=cap, low=1)
    for epsilon in map(_validate.epsilon, epsilons):
        caps = [] if rows_per_unit is None else _caps(n_classes, epsilon, rows_per_unit, names)
        chosen = given or next((each.max_rows_per_unit for each in caps if each.recommended), 1)
        yield epsilon, chosen, rows if rows_per_unit is None else _kept(rows_per_unit, chosen), caps


def _kept(rows_per_unit: Mapping[int, int], cap: int) -> int:
    """Count the rows within the cap."""
    return sum(min(rows, cap) * units for rows, units in rows_per_unit.items())


def parse_rows_per_unit(text: str) -> dict[int, int]:
    """Parse the histogram ROWS:UNITS[,...]."""
    try:
        pairs = [
            (int(rows), int(units)) for rows, units in (part.split(":") for part in text.split(","))
        ]
    except ValueError:
        raise InvalidInput(f"Expected rows and units, as 1:5000,2:800, got {text!r}.") from None
    if len(found := dict(pairs)) < len(pairs):
        raise InvalidInput(
            f"Expected each number of rows once, got one twice in {text!r}. Add up its units."
        )
    return found


def count_rows(source: Any) -> int:
    """Count the rows of a table, which are public; no column is looked at. `source` as in
    `count_rows_per_unit`."""
    return sum(len(batch) for batch in open_table(source).batches([]))


def count_rows_per_unit(source: Any, unit: str) -> dict[int, int]:
    """Count the units of a table by their number of rows. Units are public, and no other column is
    read.

    Parameters
    ----------
    source : str, Path or Place
        Parquet or CSV; or a folder or pattern of Parquet files.
    unit : str
        The column that names the person.

    Returns
    -------
    dict of int to int
        Number of units with each number of rows. Memory: that column.
    """
    table = open_table(source)
    check_columns(table, [unit])
    # Read as a release reads them: rows of an empty unit, which it refuses, would count as those of
    # one person.
    column = pa.chunked_array(
        [pa.array(id_column(batch, unit)) for batch in table.batches([unit])] or [[]]
    )
    counts = pc.value_counts(column).field("counts").to_numpy(zero_copy_only=False)
    return dict(
        zip(*(values.tolist() for values in np.unique(counts, return_counts=True)), strict=True)
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


def _best(laws: Mapping[str, Law]) -> str:
    """Return the name of the most informative law."""
    scores = {name: _bits(law) for name, law in laws.items()}
    # The first within a thousandth of the best, since rounding would decide between equal laws.
    return next(
        name for name, score in scores.items() if score >= max(scores.values()) * (1 - 1e-3)
    )


def _bits(law: Law) -> float:
    return float(np.asarray(law.information())) / math.log(2)


def _line(name: str, law: Law, epsilon: float, *, recommended: bool) -> LawAtBudget:
    inside, size, hit = _chances(law)
    return LawAtBudget(name, epsilon, law.epsilon, inside, size, _bits(law), hit, recommended)


def _chances(law: Law) -> tuple[float, float, float]:
    """Compute for a uniform label: P(output contains the label), the output's mean size, P(its
    likeliest member is the label)."""
    n = law.n_classes
    if law.name == "split":
        # The output is a side of a or b labels: the label's own side with probability e^eps /
        # (e^eps + 1).
        a, b, right = n // 2, n - n // 2, 1 / (1 + math.exp(-law.epsilon))
        return right, (right * (a * a + b * b) + (1 - right) * 2 * a * b) / n, 2 * right / n
    # a row of scores counts as the set of its likeliest classes
    if likeliest := getattr(law, "likeliest_chances", None):
        inside, other, hit = likeliest()
        return inside, inside + (n - 1) * other, hit
    if not isinstance(law, RandomizedResponse | SubsetSelection):
        return _enumerated_chances(law)
    kind, shape = law.layout()["output"]
    inside = float(law.inclusion(np.zeros((1, *shape), kind), {})[0][0])
    size = law.set_size if isinstance(law, SubsetSelection) else 1
    return inside, float(size), inside / size


def _enumerated_chances(law: Law) -> tuple[float, float, float]:
    """Compute `_chances` from the matrix of a law."""
    side, channel, outputs = law.side_row(), law.matrix(), law.outputs()
    rows = {
        name: np.broadcast_to(value, (len(outputs), *np.shape(value)))
        for name, value in side.items()
    }
    members = outputs if law.kind == "set" else law.members(outputs, rows)
    size = float((channel @ members.sum(axis=1)).mean())
    return (
        float((channel * members.T).sum() / law.n_classes),
        size,
        float(channel.max(axis=0).sum() / law.n_classes),
    )


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


def rule_of(data: str, epsilon: float) -> Rule | None:
    """Return the rule for this data at this epsilon of one row, or None."""
    return next((rule for rule in RULES if rule.data == data and rule.holds(epsilon)), None)


def _learner(epsilon: float, per_row: float, n_classes: int, worth: float | None) -> str:
    """Say what to learn with at a budget, in the README's order; `worth`: true labels that say as
    much as all rows, if known."""
    few = worth is not None and worth < FEW * n_classes
    rules = {
        data: rule_of(data, 0.0 if few and data == TABLES else per_row)
        for data in (TABLES, EVENTS, EMBEDDINGS)
    }
    found = [rule for rule in rules.values() if rule]
    if n_classes > 2 or found[0].model == "counts":  # then tables are counted anyway
        found = [rule for rule in found if rule.data != EVENTS]
    said = []
    for rule in found:
        option = f" (--model {rule.model})" if rule.model else ""
        said.append(f"{_RARE if rule.data == EVENTS else rule.data} by {rule.learner}{option}")
    rows = (
        ""
        if worth is None
        else f" Single rows are worth {_short(worth / n_classes)} true labels a class."
    )
    return f"epsilon {epsilon:g}: learn {'; '.join(said)}.{rows}"


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
