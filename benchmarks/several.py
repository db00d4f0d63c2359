# SPDX-License-Identifier: Apache-2.0
"""Several label columns at one epsilon: which rule learns best, and does a prior of the
combinations tell more?

    python -m benchmarks several [--epsilon 1,2,4] [--seeds 2] [--report]

Made rows: 10 normal features, 2,000 rows and 5,000 test rows, columns by softmax models of known
coefficients; "apart" are columns that are independent given the features, "tied" ones share a
hidden normal number besides. Every method has the same epsilon for all columns of a row and the
same LogisticRegression in `LabelDPClassifier`; the scores are means over the columns on true test
labels, and over seeds.

* equal, one column: the rules of `LabelColumns.law`;
* joint, counted: sets of combinations, of which each column counts its classes;
* joint: the same draws, read for all columns together;
* "..., 2 stages": the second half of the rows is drawn by the product of the columns' probabilities
  by the first model, with the law "auto"; "the likeliest, 2 stages" with "rr-with-prior",
  randomized response on each row's likeliest combinations.

The noise is seeded; the runs are kept in results/several.json.gz.
"""

import warnings
from collections.abc import Callable, Sequence
from itertools import product
from operator import itemgetter
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

import labeldp as ldp
from benchmarks.common import RESULTS, Array, Run, load_runs, parser, run_missing

RESULT = RESULTS / "several.json.gz"
EPSILONS, SEEDS = (1.0, 2.0, 4.0), 2
ROWS, TEST_ROWS, FEATURES = 2000, 5000, 10
DATA = {
    f"{name}, {how}": (sizes, tie)
    for name, sizes in (("3 x 4", (4,) * 3), ("6 x 2", (2,) * 6))
    for how, tie in (("apart", 0.0), ("tied", 2.0))
}
SCORES = {"accuracy": "accuracy, %", "log_loss": "log-loss"}


def rows(sizes: Sequence[int], tie: float, n: int, seed: int) -> tuple[Array, Array]:
    """Made features (n, 10) and labels (n, L); the coefficients are the same for every seed."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(7)
    X, hidden = rng.standard_normal((n, FEATURES)), tie * rng.standard_normal((n, 1))
    made = []
    for size in sizes:
        score = X @ fixed.standard_normal((FEATURES, size)) * 0.7 + hidden * fixed.standard_normal(
            size
        )
        made.append((score + rng.gumbel(size=(n, size))).argmax(axis=1))
    return X, np.stack(made, axis=1)


def _fitted(
    columns: ldp.LabelColumns, X: Array, Y: Any, epsilon: float, seed: int, **settings: Any
) -> ldp.LabelDPClassifier:
    model = ldp.LabelDPClassifier(
        LogisticRegression(), epsilon=epsilon, random_state=seed, **settings
    )
    return model.fit(X, ldp.PrivateLabels(Y, classes=columns, noise=ldp.SeededNoise(seed)))


def _stages(split: str, law: str, n_stages: int = 2) -> Callable[..., list[Any]]:
    def method(
        columns: ldp.LabelColumns, X: Array, Y: Array, epsilon: float, seed: int
    ) -> list[Any]:
        used = columns.law(epsilon, split, law) if law else columns.law(epsilon, split)
        return list(_fitted(columns, X, Y, epsilon, seed, law=used, stages=n_stages).estimators_)

    return method


def _counted(columns: ldp.LabelColumns, X: Array, Y: Array, epsilon: float, seed: int) -> list[Any]:
    noisy = _fitted(columns, X, Y, epsilon, seed, law=columns.law(epsilon, "joint")).noisy_labels_
    return [
        ldp.LabelDPClassifier(LogisticRegression(), random_state=seed).fit(X, noisy[name])
        for name in columns.names
    ]


METHODS: dict[str, Callable[..., list[Any]]] = {
    "equal": _stages("equal", "", 1),
    "one column": _stages("one", "", 1),
    "joint, counted": _counted,
    "joint": _stages("joint", "", 1),
    "one column, 2 stages": _stages("one", "auto"),
    "joint, 2 stages": _stages("joint", "auto"),
    "the likeliest, 2 stages": _stages("joint", "rr-with-prior"),
}


ASPECTS = ("epsilon", "seed", "data", "method")


def measured(data: str, method: str, epsilon: float, seed: int) -> Run:
    """Draw, learn and score once."""
    sizes, tie = DATA[data]
    columns = ldp.LabelColumns({f"column {i}": range(size) for i, size in enumerate(sizes)})
    (X, Y), (X_test, Y_test) = (
        rows(sizes, tie, ROWS, seed),
        rows(sizes, tie, TEST_ROWS, 1000 + seed),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            model.predict_proba(X_test) for model in METHODS[method](columns, X, Y, epsilon, seed)
        ]
    true = [proba[np.arange(TEST_ROWS), Y_test[:, i]] for i, proba in enumerate(found)]
    accuracy = np.mean(
        [(proba.argmax(axis=1) == Y_test[:, i]).mean() for i, proba in enumerate(found)]
    )
    return {
        "accuracy": float(accuracy),
        "log_loss": float(-np.log(np.maximum(true, 1e-12)).mean()),
    }


def tables() -> str:
    """A table of each score, from the kept runs: mean and standard deviation over seeds."""
    runs, made = load_runs(RESULT), []
    for score, title in SCORES.items():
        made += [f"| {title} | eps | {' | '.join(METHODS)} |", "|" + "---|" * (len(METHODS) + 2)]
        for data in DATA:
            for epsilon in sorted({run["epsilon"] for run in runs if run["data"] == data}):
                cells = [_cell(runs, score, data, epsilon, method) for method in METHODS]
                made.append(f"| {data} | {epsilon:g} | {' | '.join(cells)} |")
        made.append("")
    return "\n".join(made).strip()


def _cell(runs: Sequence[Run], score: str, data: str, epsilon: float, method: str) -> str:
    values = [
        run[score]
        for run in runs
        if (run["data"], run["epsilon"], run["method"]) == (data, epsilon, method)
    ]
    if not values:
        return ""
    scale, digits = (100, 1) if score == "accuracy" else (1, 3)
    spread = f" ± {scale * np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{scale * np.mean(values):.{digits}f}{spread}"


def main(arguments: list[str]) -> None:
    """Measure what has not been measured yet, and print the tables."""
    options = parser("several", __doc__)
    options.add_argument("--epsilon", default=",".join(f"{each:g}" for each in EPSILONS))
    options.add_argument("--seeds", type=int, default=SEEDS)
    options.add_argument(
        "--report", action="store_true", help="print the tables of the kept runs alone"
    )
    given = options.parse_args(arguments)
    if not given.report:
        epsilons = [float(each) for each in given.epsilon.split(",")]
        cells = product(epsilons, range(given.seeds), DATA, METHODS)
        asked = [dict(zip(ASPECTS, cell, strict=True)) for cell in cells]
        run_missing(
            RESULT,
            asked,
            itemgetter(*ASPECTS),
            lambda run: run | measured(**{each: run[each] for each in ASPECTS}),
        )
    print(tables())
