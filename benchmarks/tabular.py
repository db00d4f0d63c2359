# SPDX-License-Identifier: Apache-2.0
"""Accuracy on tables and pixels: labeldp's defaults against what people do today, the published
recipes and no privacy.

    python -m benchmarks tabular [--data adult,credit_default,digits,fashion_mnist] [--epsilon
    0.5,1,2,4] [--seeds 10] [--jobs 2] [--report]

Runs are kept in results/tabular.json.gz and not repeated, so the command can be stopped and started
again. `--report` only prints the numbers
and the tests. Labels are public here, so the noise is seeded, paired over seeds.

The recipes below are frozen: estimators are scikit-learn's with its own settings, the same for
every method, and nothing is tuned per cell. What labeldp chooses in a run it chooses on noisy
held-out rows of that run. Its defaults were first set in experiments that looked at test accuracy
on some of these data sets; `defaults` then compares them with their alternatives on noisy held-out
rows alone, also on data that had no part in setting them. "tuned C" is randomized response whose
penalty is cross-validated on its noisy labels, as a careful person would, so that the gain from
regularisation can be told from the rest. LP-1ST and LP-2ST are the recipes of Ghazi et al. 2021:
the second stage draws its rows around the first one's probabilities, sharpened by a temperature,
and rows of the first whose noisy label is not among the model's likely classes are left out; shares
and temperatures are those of the authors' code. "as many true labels" is the estimator on the true
labels of as many rows, at random, as the noisy labels of all are worth (label equivalents), a
yardstick and no bound; logistic regression chooses penalty and scale as in "labeldp", and its
transformers have seen all rows.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from scipy import stats
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import labeldp as ldp
from benchmarks import data as datasets
from benchmarks.common import (
    RESULTS,
    TRUE,
    Array,
    Run,
    load_runs,
    parser,
    parts,
    rows_worth,
    run_missing,
    worth,
)
from labeldp.learn import Prior
from labeldp.learn._corrections import exact_learner

RESULT = RESULTS / "tabular.json.gz"
EPSILONS = (0.5, 1.0, 2.0, 4.0)
NON_PRIVATE_SEEDS = 3

# Recipes
# --------------------------------------------------------------------------------------------------


def trees(dataset: datasets.DataSet) -> Any:
    return HistGradientBoostingClassifier(categorical_features=list(dataset.categorical))


def linear(dataset: datasets.DataSet) -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression())


def pixels(dataset: datasets.DataSet) -> Any:
    return make_pipeline(PCA(60, random_state=0), StandardScaler(), LogisticRegression())


ESTIMATORS: dict[str, Callable[[datasets.DataSet], Any]] = {
    "adult": trees,
    "credit_default": trees,
    "digits": linear,
    "fashion_mnist": pixels,
}

HARD: dict[str, Any] = {"correction": "none", "validation_fraction": 0.0}
METHODS: dict[str, dict[str, Any]] = {
    "randomized response": HARD | {"law": "rr", "stages": 1},
    "RR, tuned C": HARD | {"law": "rr", "stages": 1},
    "LP-1ST": HARD | {"law": "rr-with-prior", "stages": 1},
    "LP-2ST": HARD | {"law": "rr-with-prior", "stages": 2},
    "labeldp": {},
    TRUE: {},
    "non-private": {},
}
PAPER_STAGES = {0.0: (0.8, 0.6), 2.0: (0.7, 0.5), 4.0: (0.6, 0.5)}
"""Of LP-2ST, by the least epsilon: share of the rows in the first stage, temperature of the prior
(the authors' code, for CIFAR-10)."""


def settings_of(method: str, epsilon: float) -> dict[str, Any]:
    """Return the parameters of LabelDPClassifier."""
    if method != "LP-2ST":
        return METHODS[method]
    share, temperature = PAPER_STAGES[max(start for start in PAPER_STAGES if start <= epsilon)]
    prior = Prior(temperature=temperature, top_k="mean")
    return METHODS[method] | {"prior": prior, "stages": (share, round(1 - share, 3))}


TUNED = ("digits",)  # where few rows make the penalty decisive, and trying several is cheap


def tuned(estimator: Any) -> Any:
    """The pipeline with a penalty chosen by cross-validation."""
    search = LogisticRegressionCV(
        Cs=np.logspace(-5, 0, 11),
        cv=5,
        scoring="neg_log_loss",
        l1_ratios=(0.0,),
        use_legacy_attributes=False,
    )
    return Pipeline([*estimator.steps[:-1], ("logisticregressioncv", search)])


def fitted(name: str, method: str, epsilon: float, seed: int) -> Any:
    """The model of one run."""
    X, y, _, _, dataset = parts(name)
    estimator = ESTIMATORS[name](dataset)
    if method == "non-private":
        params = estimator.get_params()
        names = [
            p
            for p, value in params.items()
            if f"__{p}".endswith("__random_state") and value is None
        ]
        return clone(estimator).set_params(**dict.fromkeys(names, seed)).fit(X, y)
    if method == TRUE:
        few = rows_worth(y, dataset.n_classes, epsilon, seed)
        if not isinstance(estimator, Pipeline):
            return estimator.fit(X[few], y[few])
        features, last = estimator[:-1].fit(X), exact_learner(estimator[-1])  # as labeldp has them
        assert last is not None
        return make_pipeline(
            features, last.set_params(random_state=seed).fit(features.transform(X[few]), y[few])
        )
    if method == "RR, tuned C":
        estimator = tuned(estimator)
    model = ldp.LabelDPClassifier(
        estimator,
        epsilon=epsilon,
        random_state=seed,
        **settings_of(method, epsilon),
    )
    noise = ldp.SeededNoise(seed)
    return model.fit(X, ldp.PrivateLabels(y, classes=range(dataset.n_classes), noise=noise))


def measure(run: Run) -> Run:
    """One run: fits, and adds what was measured on true test labels."""
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    model = fitted(run["data"], run["method"], run["epsilon"], run["seed"])
    seconds = time.perf_counter() - start
    _, _, X_test, y_test, _ = parts(run["data"])
    proba = np.zeros((len(y_test), parts(run["data"]).dataset.n_classes))
    proba[:, model.classes_] = model.predict_proba(X_test)  # few true labels may lack a class
    found: Run = {
        "accuracy": float(np.mean(proba.argmax(axis=1) == y_test)),
        "log_loss": float(-np.log(np.maximum(proba[np.arange(len(y_test)), y_test], 1e-15)).mean()),
        "seconds": round(seconds, 2),
    }
    if run["method"] == "labeldp":
        estimate = model.estimated_accuracy_
        found["estimated_accuracy"] = (
            None if estimate is None else [estimate.value, estimate.low, estimate.high]
        )
    return run | found


# Runs
# --------------------------------------------------------------------------------------------------


def key(run: Run) -> tuple[Any, ...]:
    """Return a run's identity."""
    return run["data"], run["method"], run["epsilon"], run["seed"]


def wanted(names: Iterable[str], epsilons: Sequence[float], seeds: int) -> Iterator[Run]:
    """List the requested runs."""
    for name in names:
        for seed in range(seeds):
            for epsilon in epsilons:
                for method in METHODS:
                    if method == "RR, tuned C" and name not in TUNED:
                        continue
                    if method == "non-private":
                        if seed < NON_PRIVATE_SEEDS and epsilon == epsilons[0]:
                            yield {"data": name, "method": method, "epsilon": None, "seed": seed}
                    else:
                        yield {"data": name, "method": method, "epsilon": epsilon, "seed": seed}


def measured(run: Run) -> Run:
    """A run with the facts that are known before it starts."""
    estimator = str(ESTIMATORS[run["data"]](parts(run["data"]).dataset))
    settings = {
        name: asdict(value) if isinstance(value, Prior) else value
        for name, value in settings_of(run["method"], run["epsilon"]).items()
    }
    return measure(run | {"estimator": estimator, "settings": settings})


# Report
# --------------------------------------------------------------------------------------------------


def values(
    runs: Sequence[Run], name: str, method: str, epsilon: float | None, field: str
) -> dict[int, float]:
    """A field of a cell's finished runs, by seed."""
    return {
        run["seed"]: run[field]
        for run in runs
        if key(run)[:3] == (name, method, epsilon) and "finished" in run
    }


def paired(runs: Sequence[Run], name: str, epsilon: float, method: str, field: str) -> Array:
    """labeldp minus another method, over the seeds that both have."""
    ours, theirs = (values(runs, name, m, epsilon, field) for m in ("labeldp", method))
    return np.array([ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())])


def verdict(runs: Sequence[Run], name: str, epsilon: float, n_classes: int) -> str:
    """The two tests of a cell against randomized response."""
    bound = np.mean(list(values(runs, name, "non-private", None, "accuracy").values()) or [np.nan])
    trails = (
        bound
        - np.mean(list(values(runs, name, "randomized response", epsilon, "accuracy").values()))
        > 0.01
    )
    accuracy, loss = (
        paired(runs, name, epsilon, "randomized response", field)
        for field in ("accuracy", "log_loss")
    )
    if len(accuracy) < 2:
        return "too few seeds"
    if n_classes > 2 and trails:
        p = stats.ttest_1samp(accuracy, 0, alternative="greater").pvalue
        first = (
            f"accuracy {100 * accuracy.mean():+.2f} points, p = {p:.1e}:"
            f" {'better' if p < 0.01 else 'NOT SHOWN'}"
        )
    else:
        low = accuracy.mean() - stats.t.ppf(0.975, len(accuracy) - 1) * accuracy.std(
            ddof=1
        ) / np.sqrt(len(accuracy))
        first = (
            f"accuracy {100 * accuracy.mean():+.2f} points, 95 % interval from {100 * low:+.2f}:"
            f" {'fine' if low > -0.005 else 'WORSE'}"
        )
    p = stats.ttest_1samp(loss, 0, alternative="less").pvalue
    second = f"log-loss {loss.mean():+.3f}, p = {p:.1e}" + (
        f": {'better' if p < 0.01 else 'NOT SHOWN'}" if trails else ""
    )
    return f"{first}; {second}"


def report(names: Sequence[str], epsilons: Sequence[float]) -> None:
    """Print the numbers of each cell and the tests against randomized response."""
    runs = load_runs(RESULT)
    for name in names:
        n_classes = datasets.load(name).n_classes
        print(
            f"\n{name} ({n_classes} classes): accuracy in % and log-loss on true test labels, mean"
            " +- standard deviation over seeds"
        )
        for epsilon in epsilons:
            for method in METHODS:
                at = None if method == "non-private" else epsilon
                acc, loss, seconds = (
                    np.array(list(values(runs, name, method, at, f).values()))
                    for f in ("accuracy", "log_loss", "seconds")
                )
                if len(acc):
                    spread = [each.std(ddof=1) if len(each) > 1 else 0.0 for each in (acc, loss)]
                    numbers = (
                        f"{100 * acc.mean():6.2f} +- {100 * spread[0]:4.2f}   {loss.mean():6.3f} +-"
                        f" {spread[1]:5.3f}"
                    )
                    print(
                        f"  eps {epsilon:<4} {method:20} {numbers}   {len(acc):3} runs,"
                        f" {np.median(seconds):5.1f} s each"
                    )
            print(f"    labeldp - randomized response: {verdict(runs, name, epsilon, n_classes)}")


def cell(runs: Sequence[Run], name: str, method: str, epsilon: float, field: str) -> str:
    """Mean and standard deviation over the seeds; empty below two."""
    scale, digits = (100, 1) if field == "accuracy" else (1, 3)
    found = np.array(
        list(
            values(runs, name, method, None if method == "non-private" else epsilon, field).values()
        )
    )
    return (
        f"{scale * found.mean():.{digits}f} ± {scale * found.std(ddof=1):.{digits}f}"
        if len(found) > 1
        else ""
    )


def markdown(
    runs: Sequence[Run],
    epsilons: Sequence[float] = EPSILONS,
    methods: Sequence[str] = tuple(METHODS),
    field: str = "accuracy",
) -> str:
    """The table of a field as Markdown: mean and standard deviation over the seeds."""
    title = "accuracy, %" if field == "accuracy" else "log-loss"
    lines = [
        f"| {title} | eps | label equivalents | " + " | ".join(methods) + " |",
        "|---|---|---|" + "---|" * len(methods),
    ]
    for name in ESTIMATORS:
        for epsilon in epsilons:
            cells = [
                worth(name, epsilon),
                *(cell(runs, name, method, epsilon, field) for method in methods),
            ]
            lines.append(f"| {name} | {epsilon:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def tables(epsilons: Sequence[float] = EPSILONS, methods: Sequence[str] = tuple(METHODS)) -> str:
    """Accuracy and log-loss of the kept runs."""
    runs = load_runs(RESULT)
    return "\n\n".join(
        markdown(runs, epsilons, methods, field) for field in ("accuracy", "log_loss")
    )


def first() -> str:
    """README's table: log-loss at epsilon = 1."""
    runs, methods = load_runs(RESULT), ("randomized response", "labeldp", "non-private")
    lines = ["| log-loss | randomized response | labeldp | no privacy |", "|---|---|---|---|"]
    for name in ESTIMATORS:
        cells = [cell(runs, name, method, 1.0, "log_loss") for method in methods]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary() -> str:
    """The tables of what is gained: epsilon = 1."""
    return tables(
        (1.0,), ("randomized response", "RR, tuned C", "LP-2ST", "labeldp", TRUE, "non-private")
    )


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, and print."""
    options = parser("tabular", __doc__)
    options.add_argument("--data", default=",".join(ESTIMATORS))
    options.add_argument("--epsilon", default=",".join(map(str, EPSILONS)))
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument(
        "--report", action="store_true", help="only print the numbers and the tests"
    )
    args = options.parse_args(arguments)
    names, epsilons = args.data.split(","), tuple(float(e) for e in args.epsilon.split(","))
    if unknown := set(names) - set(ESTIMATORS):
        options.error(f"no data {', '.join(sorted(unknown))}; there are {', '.join(ESTIMATORS)}")
    if not args.report:
        run_missing(RESULT, wanted(names, epsilons, args.seeds), key, measured, args.jobs)
    report(names, epsilons)
