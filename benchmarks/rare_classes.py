# SPDX-License-Identifier: Apache-2.0
"""Are probabilities of rare classes worth more than the class frequencies alone?

    python -m benchmarks rare-classes [--data made,adult,tail] [--seeds 6] [--report] [--known]

Conversions, fraud, illness: one row in a hundred, and few noisy labels. Each run learns from 20,000
rows with one of four methods at the same epsilon, and is scored by the log-loss of its
probabilities and by their mean:

* labeldp: `LabelDPClassifier` with its defaults;
* constant: the class frequencies, unbiased from labels by randomized response, at least 0.001 each;
* RR undone: the same estimator on labels by randomized response, its probabilities put through the
  inverse of the law, and clipped to 0.001..0.999: what a careful person does by hand;
* RR: the same estimator on those labels, as if they were true.

`made`: ten normal columns, five of which tell, with an interaction; scored by the expected log-loss
under the true probabilities, so that the bound ("truth") is known. `tail`: the same with ten
classes whose frequencies fall as 1 / k^2. `adult`: its rows, of one class so many left out that the
other has the rate; scored on true test labels. Results are kept run by run in
results/rare-classes.json.gz; labels are public, the noise is seeded, differences are paired over
seeds.

`--known`: what a known rate adds (`class_prior`) at 1 % of `made`, kept in
results/known-rate.json.gz; paired over seeds.
"""

import time
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit, softmax
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import labeldp as ldp
from benchmarks import data as datasets
from benchmarks.common import (
    RESULTS,
    Array,
    Run,
    load_runs,
    machine,
    now,
    parser,
    run_missing,
    save_runs,
)
from labeldp.learn import HistogramPrior

RESULT, KNOWN = RESULTS / "rare-classes.json.gz", RESULTS / "known-rate.json.gz"
METHODS = ("labeldp", "constant", "RR undone", "RR")
RATES, EPSILONS, SEEDS = (0.005, 0.01, 0.05, 0.12, 0.3), (0.5, 1.0, 2.0), 6
ROWS, TEST_ROWS = 20_000, 20_000
FLOOR = 1e-3
LEARNERS = {
    "regression": lambda: make_pipeline(
        SimpleImputer(strategy="most_frequent"), StandardScaler(), LogisticRegression()
    ),
    # of labeldp the trees that it takes where no estimator is given
    "trees": lambda: HistGradientBoostingClassifier(
        max_leaf_nodes=15, l2_regularization=1.0, early_stopping=False
    ),
}


Rows = tuple[Array, Array, Array, Array]


def made(rate: float, seed: int) -> Rows:
    """Features and labels to learn from, features and probabilities (n, 2) of the test rows."""
    rng = np.random.default_rng(1000 + seed)
    X = rng.normal(size=(ROWS + TEST_ROWS, 10))
    score = (
        X[:, :5] @ [0.8, -0.64, 0.48, 0.32, 0.24]
        + 0.6 * (X[:, 0] * X[:, 1] > 0)
        + 0.4 * np.maximum(X[:, 2], 0)
    )
    p = expit(score + brentq(lambda shift: expit(score + shift).mean() - rate, -20, 20))
    y = (rng.random(len(X)) < p).astype(int)
    return X[:ROWS], y[:ROWS], X[ROWS:], np.column_stack([1 - p, p])[ROWS:]


def tail(_: object, seed: int) -> Rows:
    """The same of ten classes with frequencies of about 1 / k^2."""
    rng = np.random.default_rng(2000 + seed)
    X = rng.normal(size=(ROWS + TEST_ROWS, 10))
    wanted = 1 / np.arange(1, 11) ** 2
    weights = np.random.default_rng(2).normal(size=(10, 10)) * 0.6
    shift = np.log(wanted)
    for _ in range(30):
        p = softmax(X @ weights + shift, axis=1)
        shift += np.log(wanted / wanted.sum()) - np.log(p.mean(axis=0))
    y = (rng.random(len(X))[:, None] > np.cumsum(p, axis=1)).sum(axis=1).clip(max=9)
    return X[:ROWS], y[:ROWS], X[ROWS:], p[ROWS:]


def adult(rate: float, seed: int) -> Rows:
    """Adult, thinned at random to the rate; the test rows' probabilities are their labels."""
    data, rng = _adult(), np.random.default_rng(3000 + seed)
    X_train, y_train = _thinned(data.X_train, data.y_train, rate, rng)
    X_test, y_test = _thinned(data.X_test, data.y_test, rate, rng)
    return X_train[:ROWS], y_train[:ROWS], X_test, np.eye(2)[y_test]


@cache
def _adult() -> datasets.DataSet:
    return datasets.load("adult")


def _thinned(X: Array, y: Array, rate: float, rng: np.random.Generator) -> tuple[Array, Array]:
    rare, common = np.flatnonzero(y == 1), np.flatnonzero(y == 0)
    most = int(min(len(rare) / rate, len(common) / (1 - rate)))
    rows = np.concatenate(
        [
            rng.permutation(rare)[: round(rate * most)],
            rng.permutation(common)[: most - round(rate * most)],
        ]
    )
    return X[rows := rng.permutation(rows)], y[rows]


DATA = {"made": made, "tail": tail, "adult": adult}


def wanted(seeds: int = SEEDS) -> Iterator[Run]:
    """List all runs, cheap ones first."""
    for learner in LEARNERS:
        for seed in range(seeds):
            for epsilon in EPSILONS:
                for rate in RATES:
                    yield {
                        "data": "made",
                        "learner": learner,
                        "rate": rate,
                        "epsilon": epsilon,
                        "seed": seed,
                    }
    for learner in LEARNERS:
        for seed in range(seeds):
            for rate in RATES:
                yield {
                    "data": "adult",
                    "learner": learner,
                    "rate": rate,
                    "epsilon": 1.0,
                    "seed": seed,
                }
    for epsilon in EPSILONS:
        for seed in range(seeds):
            yield {
                "data": "tail",
                "learner": "regression",
                "rate": None,
                "epsilon": epsilon,
                "seed": seed,
            }
    for seed in range(seeds):
        yield {"data": "tail", "learner": "trees", "rate": None, "epsilon": 2.0, "seed": seed}


def key(run: Run) -> tuple[Any, ...]:
    """Return a run's identity."""
    return run["data"], run["learner"], run["rate"], run["epsilon"], run["seed"]


def measure(run: Run) -> Run:
    """One run: all methods on the same rows."""
    warnings.simplefilter("ignore")
    X, y, X_test, truth = DATA[run["data"]](run["rate"], run["seed"])
    classes, epsilon, seed, k = range(truth.shape[1]), run["epsilon"], run["seed"], truth.shape[1]
    estimator = LEARNERS[run["learner"]]()
    start = time.perf_counter()
    given = None if run["learner"] == "trees" else estimator
    model = ldp.LabelDPClassifier(given, epsilon=epsilon, random_state=seed).fit(
        X, ldp.PrivateLabels(y, classes=classes, noise=ldp.SeededNoise(seed))
    )
    seconds = time.perf_counter() - start
    law = ldp.RandomizedResponse(k, epsilon)
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=classes, noise=ldp.SeededNoise(10_000 + seed)), law
    )
    plain = np.zeros((len(X_test), k))
    fitted = clone(estimator).fit(X, noisy.hard_codes())
    plain[:, fitted.classes_] = fitted.predict_proba(X_test)
    own, other = law.matrix()[0, 0], law.matrix()[0, 1]
    found = {
        "labeldp": model.predict_proba(X_test),
        "constant": _clipped(np.tile(ldp.metrics.class_frequencies(noisy).value, (len(X_test), 1))),
        "RR undone": _clipped((plain - other) / (own - other)),
        "RR": plain,
    }
    scores = {
        name: {"log_loss": _loss(p, truth), "mean": float(p[:, -1].mean())}
        for name, p in found.items()
    }
    bound = None if run["data"] == "adult" else _loss(truth, truth)
    return run | {
        "scores": scores,
        "truth": bound,
        "true_mean": float(truth[:, -1].mean()),
        "seconds": round(seconds, 2),
    }


def _clipped(p: Array) -> Array:
    p = np.clip(p, FLOOR, 1 - FLOOR)
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def _loss(p: Array, truth: Array) -> float:
    return float(-(truth * np.log(np.maximum(p, 1e-15))).sum(axis=1).mean())


GIVEN = ("estimated", "given", "estimated, alone", "given, alone")
ASKED, SHARE = "asked", 0.1  # of epsilon, for a histogram


def run_known(seeds: int) -> None:
    """Run what is missing of a known rate at 1 % of made, and keep each: log-loss with the rate
    estimated, given, asked for, and alone."""
    warnings.simplefilter("ignore")
    runs = load_runs(KNOWN)
    wanted = [
        (learner, epsilon, seed)
        for seed in range(seeds)
        for learner in LEARNERS
        for epsilon in EPSILONS
    ]
    done = {(run["learner"], run["epsilon"], run["seed"]) for run in runs}
    for learner, epsilon, seed in (cell for cell in wanted if cell not in done):
        X, y, X_test, truth = made(0.01, seed)
        noisy = ldp.privatize(
            ldp.PrivateLabels(y, classes=range(2), noise=ldp.SeededNoise(seed)),
            ldp.RandomizedResponse(2, epsilon),
        )
        rates, said = truth.mean(axis=0), ldp.metrics.likeliest_frequencies(noisy.likelihood())
        given = None if learner == "trees" else LEARNERS[learner]()
        models = [
            ldp.LabelDPClassifier(given, class_prior=prior, random_state=seed).fit(X, noisy)
            for prior in (None, rates)
        ]
        found = [model.predict_proba(X_test) for model in models] + [
            np.tile(each, (len(X_test), 1)) for each in (said, rates)
        ]
        losses = dict(zip(GIVEN, (_loss(p, truth) for p in found), strict=True))
        run = {
            "learner": learner,
            "epsilon": epsilon,
            "seed": seed,
            "log_loss": losses,
            "told": float(said[1]),
        }
        runs.append(run | {"machine": machine(), "finished": now()})
        save_runs(KNOWN, runs)
        print(f"{learner}, eps {epsilon:g}, seed {seed}: {losses}", flush=True)
    for each in runs:
        if ASKED not in each["log_loss"]:
            each["log_loss"][ASKED] = _asked(each["learner"], each["epsilon"], each["seed"])
            save_runs(KNOWN, runs)
            print(
                f"{each['learner']}, eps {each['epsilon']:g}, seed {each['seed']}: asked"
                f" {each['log_loss'][ASKED]:.4f}",
                flush=True,
            )


def _asked(learner: str, epsilon: float, seed: int) -> float:
    """Return the log-loss of a fit of raw labels that asks for the rate."""
    X, y, X_test, truth = made(0.01, seed)
    model = ldp.LabelDPClassifier(
        None if learner == "trees" else LEARNERS[learner](),
        epsilon=epsilon,
        class_prior=HistogramPrior(SHARE * epsilon),
        random_state=seed,
    )
    labels = ldp.PrivateLabels(y, classes=range(2), noise=ldp.SeededNoise(seed))
    return _loss(model.fit(X, labels).predict_proba(X_test), truth)


def known_tables() -> str:
    """The table of a known rate, from the kept runs; and how far the rate that labels tell is from
    the true one."""
    runs = load_runs(KNOWN)
    names = (*GIVEN[:2], ASKED, *GIVEN[2:])
    lines = [
        "| log-loss at 1 % | eps | "
        + " | ".join(f"rate {name}" for name in names)
        + " | gain | seeds |",
        "|" + "---|" * 9,
    ]
    for learner in LEARNERS:
        for epsilon in EPSILONS:
            mine = [run for run in runs if (run["learner"], run["epsilon"]) == (learner, epsilon)]
            losses = np.array([[run["log_loss"][name] for name in names] for run in mine]).reshape(
                -1, len(names)
            )
            gain = losses[:, 0] - losses[:, 1]
            told = (
                f"{gain.mean():.4f} ± {gain.std(ddof=1) / np.sqrt(len(gain)):.4f}"
                if len(gain) > 1
                else ""
            )
            means = (
                " | ".join(f"{loss:.4f}" for loss in losses.mean(axis=0))
                if len(losses)
                else " | " * 4
            )
            lines.append(f"| {learner} | {epsilon:g} | {means} | {told} | {len(mine)} |")
    return "\n".join(lines)


def cells(runs: Sequence[Run]) -> dict[tuple[Any, ...], list[Run]]:
    """The runs of each cell, in the order they are wanted."""
    found: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        found.setdefault(key(run)[:4], []).append(run)
    return found


def column(runs: Sequence[Run], method: str, field: str = "log_loss") -> Array:
    return np.array([run["scores"][method][field] for run in runs])


def worse(runs: Sequence[Run], method: str) -> float:
    """One-sided p of labeldp's log-loss not being above the other method's, paired over seeds."""
    return float(
        stats.ttest_rel(column(runs, "labeldp"), column(runs, method), alternative="greater").pvalue
    )


def markdown(runs: Sequence[Run]) -> str:
    """The table: log-loss of each method, mean difference and its standard error, mean probability
    of the rare class."""
    head = (
        "| data | learner | rarest class | eps | truth | labeldp | constant | RR undone | RR | gain"
        " on constant | on RR undone | mean p |"
    )
    lines = [head, "|" + "---|" * 12]
    for (data, learner, _, epsilon), group in (
        (at, group) for at, group in cells(runs).items() if len(group) == SEEDS
    ):
        losses = {method: column(group, method) for method in METHODS}
        gains = [
            f"{d.mean():+.4f} ± {d.std(ddof=1) / np.sqrt(len(d)):.4f}"
            for d in (losses[method] - losses["labeldp"] for method in METHODS[1:3])
        ]
        truth = (
            "" if group[0]["truth"] is None else f"{np.mean([run['truth'] for run in group]):.4f}"
        )
        rate = np.mean([run["true_mean"] for run in group])
        shown = " | ".join(f"{losses[method].mean():.4f}" for method in METHODS)
        mean = column(group, "labeldp", "mean").mean()
        lines.append(
            f"| {data} | {learner} | {100 * rate:.2g} % | {epsilon:g} | {truth} | {shown} |"
            f" {' | '.join(gains)} | {100 * mean:.2g} % |"
        )
    return "\n".join(lines)


def tables() -> str:
    """The table of the kept runs."""
    return markdown(load_runs(RESULT))


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, and print."""
    options = parser("rare-classes", __doc__)
    options.add_argument("--data", default=",".join(DATA))
    options.add_argument("--seeds", type=int, default=SEEDS)
    options.add_argument(
        "--report",
        action="store_true",
        help="only print the table, and where labeldp is worse (p < 0.01)",
    )
    options.add_argument("--known", action="store_true", help="what a known rate adds")
    args = options.parse_args(arguments)
    if args.known:
        if not args.report:
            run_known(args.seeds)
        print(known_tables())
        return
    if not args.report:
        asked = [run for run in wanted(args.seeds) if run["data"] in args.data.split(",")]
        run_missing(RESULT, asked, key, measure)
    runs = load_runs(RESULT)
    print(markdown(runs))
    for at, group in cells(runs).items():
        for method in METHODS[1:]:
            if len(group) > 1 and (p := worse(group, method)) < 0.01:
                print(f"worse than {method}: {at}, p = {p:.1e}")
