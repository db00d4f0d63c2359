# SPDX-License-Identifier: Apache-2.0
"""Boosting on the exact likelihood: how accurate is it, and what does it cost against a plain fit?

    python -m benchmarks boosting [--data adult,credit_default,made8,made26] [--seeds 10]
    [--curvature] [--columns] [--report]

Each run privatizes the training labels by the law that LabelDPClassifier chooses ("auto"), fits,
and is measured on true test labels:

* likelihood: `LabelDPClassifier` with its defaults, which boosts on the likelihood of the noisy
  labels;
* likelihood, 2 stages: the same with stages=2, a fit each; with two classes a prior tells the law
  nothing, and there is one stage;
* EM: with correction="em";
* hard: the same library's own fit on the most likely classes, as if they were true
  (correction="none");
* counts: `ProportionClassifier` with its defaults, a logistic regression from label counts of
  clusters, of a curator, for comparison;
* as many true labels: the library's own fit on the true labels of as many rows, at random, as the
  noisy labels of all are worth (label equivalents), a yardstick and no bound;
* no privacy: the library's own fit on the true labels, the bound, and the floor of the time.

`made8` and `made26`: 15,000 rows of 20 columns with 8 and 26 classes (`make_classification`). All
estimators have their library's own settings and one thread, and scikit-learn's histogram boosting
("histogram") is told which columns are categories. Times are processor time of the whole `fit`
(checks, noise, learning) over that of plain fits right before and after it. The constants of
`learn/_boosting.py` were chosen in trials that looked at test labels of adult, credit_default and
made8 (seeds 0 to 3; those of histogram boosting seeds 100 to 104, and of made26 at epsilon 1). Kept
run by run in results/boosting.json.gz; labels are public, the noise is seeded, and differences are
paired over seeds.

`--curvature` compares curvatures of Newton's step where `LikelihoodBoosting` adds a fixed number of
rounds with LightGBM, once with the library's own settings and once with those that follow the
noise: "information" is the product's, p (1 - p) that of expectation-maximisation, (p - q)^2 the
square of the gradient, and "mixture" the mean of the latter two. Kept in
results/boosting-curvature.json.gz.

`--columns` compares the columns that trees see: half of them by tree, as the product sets it under
noise, all of them, and 0.7 of them at each node, as users set these. Tables of 3,000 rows of 8 or
20 normal columns: "few", four classes by three of the columns, and "many", two classes of which
every column tells a little; and adult and credit_default. Kept in results/boosting-columns.json.gz.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy import stats
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import labeldp as ldp
from benchmarks import common
from benchmarks.common import (
    RESULTS,
    TRUE,
    Array,
    Run,
    equivalents,
    load_runs,
    parser,
    parts,
    rows_worth,
    run_missing,
)
from labeldp.learn import ProportionClassifier, _boosting

RESULT = RESULTS / "boosting.json.gz"
EPSILONS = (0.5, 1.0, 2.0, 4.0)
MADE = {"made8": 8, "made26": 26}
DATA = ("adult", "credit_default", *MADE)
NORMAL = ("few8", "few20", "many8", "many20")
SIZES = common.SIZES | {name: (15_000, k) for name, k in MADE.items()}
ASKED: dict[str, dict[str, Any]] = {
    "likelihood": {},
    "likelihood, 2 stages": {"stages": 2},
    "EM": {"correction": "em"},
    "hard": {"correction": "none"},
}


def lightgbm() -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_jobs=1, verbose=-1)


def xgboost() -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(n_jobs=1)


def histogram(data: str) -> Any:
    return HistGradientBoostingClassifier(
        categorical_features=None if data in MADE else list(parts(data).dataset.categorical)
    )


LIBRARIES: dict[str, Callable[[str], Any]] = {
    "LightGBM": lambda data: lightgbm(),
    "XGBoost": lambda data: xgboost(),
    "histogram": histogram,
}


def normal_columns(name: str) -> tuple[Array, Array, Array, Array, int]:
    """Make a table of normal columns: "few8" has four classes by three of them, "many8" two classes
    by all of them, at random."""
    columns = int(name.strip("abcdefghijklmnopqrstuvwxyz"))
    rng = np.random.default_rng(700 + columns)
    X = rng.normal(size=(13_000, columns))
    if name.startswith("few"):
        y, k = np.digitize(X[:, :3] @ [1, 0.5, -1], [-1, 0, 1]), 4
    else:
        y, k = (
            (rng.random(len(X)) < 1 / (1 + np.exp(-0.7 * X @ rng.normal(size=columns)))).astype(
                np.int64
            ),
            2,
        )
    return X[:3000], y[:3000], X[3000:], y[3000:], k


@cache
def rows_of(name: str) -> tuple[Array, Array, Array, Array, int]:
    """Give features and labels to learn from, those to test on, and the number of classes."""
    if name in NORMAL:
        return normal_columns(name)
    if name not in MADE:
        X, y, X_test, y_test, dataset = parts(name)
        return X, y, X_test, y_test, dataset.n_classes
    shape = {
        "n_samples": 25_000,
        "n_features": 20,
        "n_informative": 12,
        "n_redundant": 4,
        "n_classes": MADE[name],
    }
    X, y = make_classification(
        **shape, n_clusters_per_class=2, class_sep=1.6, flip_y=0.02, random_state=3
    )
    return X[:15_000], y[:15_000], X[15_000:], y[15_000:], MADE[name]


@cache
def plain(name: str, library: str) -> dict[str, float]:
    """Measure the accuracy of the library's own fit on true labels."""
    X, y, X_test, y_test, _ = rows_of(name)
    return scores(LIBRARIES[library](name).fit(X, y), X_test, y_test)


def seconds_of(fit: Callable[[], object]) -> float:
    """Measure a fit's processor time."""
    start = time.process_time()
    fit()
    return time.process_time() - start


def scores(model: Any, X: Array, y: Array) -> dict[str, float]:
    proba = model.predict_proba(X)
    return {
        "accuracy": float(np.mean(proba.argmax(axis=1) == y)),
        "log_loss": float(-np.log(np.maximum(proba[np.arange(len(y)), y], 1e-15)).mean()),
    }


def own(run: Run) -> object:
    """Fit the library's own classifier to true labels."""
    X, y, *_ = rows_of(run["data"])
    return LIBRARIES[run["library"]](run["data"]).fit(X, y)


def measure(run: Run) -> Run:
    """Fit once, and add what was measured."""
    warnings.simplefilter("ignore")
    X, y, X_test, y_test, k = rows_of(run["data"])
    if run["method"] == TRUE:
        few = rows_worth(y, k, run["epsilon"], run["seed"])
        found = scores(LIBRARIES[run["library"]](run["data"]).fit(X[few], y[few]), X_test, y_test)
        return run | found
    labels = ldp.PrivateLabels(y, classes=range(k), noise=ldp.SeededNoise(run["seed"]))
    model: Any
    if run["method"] == "counts":
        model = make_pipeline(
            StandardScaler(),
            ProportionClassifier(epsilon=run["epsilon"], random_state=run["seed"]),
        )
    else:
        model = ldp.LabelDPClassifier(
            LIBRARIES[run["library"]](run["data"]),
            epsilon=run["epsilon"],
            random_state=run["seed"],
            **ASKED[run["method"]],
        )
    if run["method"] == "counts":  # whose time has no plain fit to be compared with
        return run | scores(model.fit(X, labels), X_test, y_test)
    bound = dict(plain(run["data"], run["library"]))
    before, seconds, after = (
        seconds_of(fit)
        for fit in (partial(own, run), partial(model.fit, X, labels), partial(own, run))
    )
    bound["seconds"] = (before + after) / 2  # other work slows all three alike
    took = {
        "seconds": round(seconds, 3),
        "ratio": round(seconds / bound["seconds"], 3),
        "plain": bound,
    }
    return run | scores(model, X_test, y_test) | took


def wanted(names: Sequence[str], seeds: int) -> Iterator[Run]:
    """List the runs: few with two stages, and few by EM where it takes minutes."""

    def few(data: str, epsilon: float, library: str, method: str) -> int:
        if method == "likelihood, 2 stages":
            return 3 if data == "made8" else 0
        if method == TRUE:
            return 3 if data in MADE else seeds
        if method == "counts":
            return 2 if data in MADE and epsilon <= 2 else 0
        if method == "EM" and data in MADE:
            if library == "histogram":
                return seeds if data == "made8" else 2
            return 2 if epsilon in (1.0, 2.0) else 0
        return seeds

    for seed in range(seeds):
        for data in names:
            for epsilon in EPSILONS:
                for library, method in METHODS:
                    if seed < few(data, epsilon, library, method):
                        yield {
                            "data": data,
                            "epsilon": epsilon,
                            "library": library,
                            "method": method,
                            "seed": seed,
                        }


def key(run: Run) -> tuple[Any, ...]:
    return run["data"], run["epsilon"], run["library"], run["method"], run["seed"]


def found(
    runs: Sequence[Run], data: str, epsilon: float, library: str, method: str
) -> dict[int, Run]:
    """Give a cell's runs by seed."""
    return {
        run["seed"]: run
        for run in runs
        if key(run)[:4] == (data, epsilon, library, method) and "finished" in run
    }


METHODS: tuple[tuple[str, str], ...] = (
    ("LightGBM", "hard"),
    ("LightGBM", "EM"),
    ("LightGBM", "likelihood"),
    ("LightGBM", "likelihood, 2 stages"),
    ("XGBoost", "hard"),
    ("XGBoost", "likelihood"),
    ("XGBoost", "likelihood, 2 stages"),
    ("histogram", "EM"),
    ("histogram", "likelihood"),
    ("clusters", "counts"),
    ("LightGBM", TRUE),
)


def tables() -> str:
    """Tables of accuracy, log-loss and time over a plain fit."""
    runs = load_runs(RESULT)
    pages = []
    for title, field, scale, digits in (
        ("accuracy, %", "accuracy", 100, 1),
        ("log-loss", "log_loss", 1, 3),
        ("time", "ratio", 1, 1),
    ):
        columns = METHODS[:-2] if field == "ratio" else METHODS
        bounds = () if field == "ratio" else ("LightGBM, no privacy",)
        heads = [
            title,
            "eps",
            *(() if field == "ratio" else ("label equivalents",)),
            *(", ".join(column) for column in columns),
            *bounds,
        ]
        lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        for data in DATA:
            for epsilon in EPSILONS:
                cells = [
                    cell(found(runs, data, epsilon, *column), field, scale, digits)
                    for column in columns
                ]
                if any(cells):
                    mine = found(runs, data, epsilon, "LightGBM", "likelihood").values()
                    cells += (
                        [f"{scale * next(iter(mine))['plain'][field]:.{digits}f}"]
                        if bounds and mine
                        else []
                    )
                    told = (
                        [] if field == "ratio" else [f"{equivalents(*SIZES[data], epsilon):,.0f}"]
                    )
                    lines.append(f"| {data} | {epsilon:g} | " + " | ".join(told + cells) + " |")
        pages.append("\n".join(lines))
    return "\n\n".join(pages)


def cell(runs: dict[int, Run], field: str, scale: float, digits: int) -> str:
    values = scale * np.array([run[field] for run in runs.values() if field in run])
    if field == "ratio" and len(values) > 1:
        return f"{np.median(values):.{digits}f}"
    return (
        f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f} ({len(values)})"
        if len(values) > 1
        else ""
    )


def verdicts() -> str:
    """Compare the likelihood with EM and with hard labels of the same library, paired over
    seeds."""
    runs = load_runs(RESULT)
    lines = []
    for data in DATA:
        for epsilon in EPSILONS:
            for library, method in METHODS:
                ours, theirs = (
                    found(runs, data, epsilon, library, "likelihood"),
                    found(runs, data, epsilon, library, method),
                )
                seeds = sorted(ours.keys() & theirs.keys())
                if method != "likelihood" and len(seeds) > 1:
                    lines.append(
                        f"{data} eps {epsilon:g}, {library} against {method}: "
                        + "; ".join(difference(ours, theirs, seeds))
                    )
    return "\n".join(lines)


def difference(ours: dict[int, Run], theirs: dict[int, Run], seeds: Sequence[int]) -> Iterator[str]:
    for field in ("accuracy", "log_loss"):
        values = np.array([ours[seed][field] - theirs[seed][field] for seed in seeds])
        half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
        yield (
            f"{field} {values.mean():+.4f} (95 % {values.mean() - half:+.4f} to"
            f" {values.mean() + half:+.4f}, {len(values)} seeds)"
        )


# Curvatures
# --------------------------------------------------------------------------------------------------

CURVED = RESULTS / "boosting-curvature.json.gz"
CELLS = (("adult", 0.5), ("made8", 0.5), ("made26", 2.0))
ROUNDS = (60, 150)
SETTINGS = ("noise", "library")
CURVATURES: dict[str, Callable[[Array, Array], Array] | None] = {
    "information": None,
    "p (1 - p)": lambda p, gradient: p * (1 - p),
    "(p - q)^2": lambda p, gradient: gradient**2,
    "mixture": lambda p, gradient: (p * (1 - p) + gradient**2) / 2,
}


@contextmanager
def bent(curvature: Callable[[Array, Array], Array] | None, settings: str) -> Iterator[None]:
    """Replace the curvature of the loss, and the settings that follow the noise, for a trial."""
    of_product = _boosting._Loss.__call__

    def loss(self: _boosting._Loss, y_true: object, y_pred: Array) -> tuple[Array, Array]:
        gradient, found = of_product(self, y_true, y_pred)
        if curvature is not None:
            p = _boosting.probabilities_of(y_pred)
            found = np.maximum(curvature(p[:, 1] if y_pred.ndim == 1 else p, gradient), 1e-12)
        return gradient, np.asarray(found, np.float32, order="F")

    with patch.object(_boosting._Loss, "__call__", loss):
        if settings == "noise":
            yield
            return
        with patch.object(_boosting, "noisy_settings", lambda *given: {}):
            yield


def measure_curvature(run: Run) -> Run:
    """Fit once with a curvature, on all rows, for so many rounds."""
    warnings.simplefilter("ignore")
    X, y, X_test, y_test, k = rows_of(run["data"])
    law = ldp.laws.law_named("subset" if k > 2 else "rr", k, run["epsilon"])
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(k), noise=ldp.SeededNoise(run["seed"])), law
    )
    with bent(CURVATURES[run["curvature"]], run["settings"]):
        model = _boosting.LikelihoodBoosting(lightgbm().set_params(n_estimators=run["rounds"]))
        model.fit_likelihood(X, noisy.log_likelihood(dtype="float64"))
    return run | scores(model, X_test, y_test)


ASPECTS = ("settings", "seed", "data", "epsilon", "rounds", "curvature")


def curvature_key(run: Run) -> tuple[Any, ...]:
    return tuple(run[name] for name in ASPECTS)


def wanted_curvatures() -> list[Run]:
    cells = product(SETTINGS, range(3), CELLS, ROUNDS, CURVATURES)
    runs = [
        dict(zip(ASPECTS, (settings, seed, *cell, *others), strict=True))
        for settings, seed, cell, *others in cells
    ]
    # large trees of 26 classes take minutes
    return [run for run in runs if run["settings"] == "noise" or run["data"] != "made26"]


def mean_of(runs: Sequence[Run], asked: Run) -> tuple[str, int]:
    """Give the mean accuracy, in brackets the mean log-loss, of the runs that have these settings,
    and their number."""
    mine = [run for run in runs if asked.items() <= run.items()]
    told = (
        [np.mean([run[field] for run in mine]) for field in ("accuracy", "log_loss")]
        if mine
        else []
    )
    return (f"{100 * told[0]:.1f} ({told[1]:.3f})" if told else ""), len(mine)


def curvature_table() -> str:
    """Table of the curvatures: accuracy, and log-loss in brackets, means over seeds."""
    runs = [run for run in load_runs(CURVED) if "finished" in run]
    lines = [
        "| data | eps | rounds | settings | " + " | ".join(CURVATURES) + " | seeds |",
        "|" + "---|" * (5 + len(CURVATURES)),
    ]
    for (data, epsilon), settings, rounds in product(CELLS, SETTINGS, ROUNDS):
        cells, seeds = [], 0
        for curvature in CURVATURES:
            asked = {
                "data": data,
                "epsilon": epsilon,
                "rounds": rounds,
                "settings": settings,
                "curvature": curvature,
            }
            cell, n = mean_of(runs, asked)
            cells.append(cell)
            seeds = max(seeds, n)
        if seeds:
            lines.append(
                f"| {data} | {epsilon:g} | {rounds} | {settings} | "
                + " | ".join(cells)
                + f" | {seeds} |"
            )
    return "\n".join(lines)


# Columns that trees see
# --------------------------------------------------------------------------------------------------

SEEN = RESULTS / "boosting-columns.json.gz"
SHARES: dict[str, dict[str, dict[str, float]]] = {
    "half, by tree": {"LightGBM": {}, "XGBoost": {}},
    "all": {"LightGBM": {"feature_fraction": 1.0}, "XGBoost": {"colsample_bytree": 1.0}},
    "0.7, by node": {
        "LightGBM": {"feature_fraction_bynode": 0.7},
        "XGBoost": {"colsample_bynode": 0.7},
    },
}
FACTS = ("seed", "data", "epsilon", "library", "share")


def measure_columns(run: Run) -> Run:
    """Fit once, with a share of the columns as users set it."""
    warnings.simplefilter("ignore")
    X, y, X_test, y_test, k = rows_of(run["data"])
    estimator = LIBRARIES[run["library"]](run["data"]).set_params(
        **SHARES[run["share"]][run["library"]]
    )
    labels = ldp.PrivateLabels(y, classes=range(k), noise=ldp.SeededNoise(run["seed"]))
    model = ldp.LabelDPClassifier(estimator, epsilon=run["epsilon"], random_state=run["seed"])
    model.fit(X, labels)
    return run | scores(model, X_test, y_test)


def columns_key(run: Run) -> tuple[Any, ...]:
    return tuple(run[name] for name in FACTS)


def wanted_columns() -> list[Run]:
    cells = product(
        range(3), (*NORMAL, "adult", "credit_default"), EPSILONS, ("LightGBM", "XGBoost"), SHARES
    )
    return [dict(zip(FACTS, cell, strict=True)) for cell in cells]


def columns_table() -> str:
    """Table of the shares: accuracy, and log-loss in brackets, means over seeds."""
    runs = [run for run in load_runs(SEEN) if "finished" in run]
    heads = [f"{library}, {share}" for library, share in product(("LightGBM", "XGBoost"), SHARES)]
    lines = ["| data | eps | " + " | ".join(heads) + " | seeds |", "|" + "---|" * (3 + len(heads))]
    for data, epsilon in product((*NORMAL, "adult", "credit_default"), EPSILONS):
        cells, seeds = [], 0
        for library, share in product(("LightGBM", "XGBoost"), SHARES):
            asked = {"data": data, "epsilon": epsilon, "library": library, "share": share}
            cell, n = mean_of(runs, asked)
            cells.append(cell)
            seeds = max(seeds, n)
        if seeds:
            lines.append(f"| {data} | {epsilon:g} | " + " | ".join(cells) + f" | {seeds} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, and print."""
    options = parser("boosting", __doc__)
    options.add_argument("--data", default=",".join(DATA))
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument(
        "--curvature", action="store_true", help="compare curvatures instead, 3 seeds"
    )
    options.add_argument(
        "--columns", action="store_true", help="compare shares of the columns instead, 3 seeds"
    )
    options.add_argument("--report", action="store_true", help="only print")
    args = options.parse_args(arguments)
    if args.curvature:
        path, wished, key_of, measured = (
            CURVED,
            wanted_curvatures(),
            curvature_key,
            measure_curvature,
        )
    elif args.columns:
        path, wished, key_of, measured = SEEN, wanted_columns(), columns_key, measure_columns
    else:
        path, key_of, measured = RESULT, key, measure
        wished = list(wanted(args.data.split(","), args.seeds))
    if not args.report:
        run_missing(path, wished, key_of, measured)
    print(
        columns_table()
        if args.columns
        else curvature_table()
        if args.curvature
        else f"{tables()}\n\n{verdicts()}"
    )
