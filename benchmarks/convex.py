# SPDX-License-Identifier: Apache-2.0
"""How good are the papers' convex methods, next to the exact likelihood and to one release of X'Y?

    python -m benchmarks convex [--data fashion_mnist,made-10,made-100] [--seeds 3] [--report]

Linear models with the logistic loss. Every method sees the same rows, cut to norm 1, and has the
same ball of coefficients:

* LP-RR-SGD: one pass over labels by randomized response, the mean iterate, steps by the exact
  second moment (published ones are shorter); subset selection, SGD: the same with that law;
  LP-Normal-SGD: the same with Gaussian label vectors, delta 1e-5;
* "..., minimum": the same release, learned from to the minimum of the unbiased empirical loss, as
  nothing forbids;
* X'Y: one release by `FeatureSums`, delta 1e-5, to the minimum; also of all images;
* likelihood: `SoftmaxRegression` on the exact likelihood of subset selection, with the best of five
  penalties, as the radii are chosen; "own penalty": it chooses among them on the noisy labels
  alone, as a user would;
* nothing: all coefficients 0.

`fashion_mnist`: 200 components of gradient histograms, scaled and cut as in `small-epsilon`, 15,000
rows; accuracy on true test labels. The methods may choose the radius, of 10, 40 and 160 (SGD: the
first two), on true test labels, in their favour: the mean at the best one. `made-K`: 20,000 rows on
the unit sphere in 20 dimensions, K classes by a softmax model of known coefficients, whose norm is
the radius, epsilon 1; excess risk over these coefficients in expectation over the labels of 20,000
test rows, next to the bound of `labeldp.papers.ghazi2021`.

Labels are public here, so the noise is seeded. Results are kept run by run in
results/convex.json.gz.
"""

import time
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_softmax
from sklearn.decomposition import PCA

import labeldp as ldp
from benchmarks.common import (
    RESULTS,
    Array,
    Run,
    equivalents,
    load_runs,
    machine,
    now,
    parser,
    parts,
    save_runs,
)
from benchmarks.small_epsilon.methods import DELTA, features
from labeldp.aggregates import FeatureSums, Histogram
from labeldp.learn import SoftmaxRegression
from labeldp.papers.ghazi2021 import (
    Problem,
    excess_risk,
    label_vectors,
    minimise,
    second_moment,
    sgd,
)

RESULT = RESULTS / "convex.json.gz"
DATA = {"fashion_mnist": (0.1, 0.5, 1.0), "made-10": (1.0,), "made-100": (1.0,)}
SEEDS = 3
ROWS = 15_000
RADII, STEPS = (10.0, 40.0, 160.0), 25
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
BY_LAW = ("LP-RR", "subset selection", "LP-Normal")
LIKELIHOODS = ("likelihood", "likelihood, own penalty")
EVERY_ROW = "X'Y, all 60,000 rows"
METHODS = (
    *(f"{name}{how}" for name in BY_LAW for how in (", SGD", ", minimum")),
    "X'Y",
    EVERY_ROW,
    *LIKELIHOODS,
    "no privacy",
    "nothing",
)


class Data(NamedTuple):
    """Rows of norm at most 1, labels, test rows with the probabilities of their classes, and the
    radii of the ball."""

    X: Array
    y: Array
    X_test: Array
    truth: Array
    radii: tuple[float, ...]
    best: float | None
    """The expected loss of the true coefficients on the test rows, where they are known."""


@cache
def data_of(name: str) -> Data:
    """Load or make a data set."""
    return _images(ROWS) if name == "fashion_mnist" else _made(int(name.removeprefix("made-")))


@cache
def _images(rows: int | None) -> Data:
    _, y, _, y_test, _ = parts("fashion_mnist", rows)
    X, X_test = features("fashion_mnist", "gradients", rows)
    pca = PCA(200, random_state=0).fit(X)
    spread = pca.explained_variance_
    seen = [
        np.column_stack(
            [pca.transform(part) / spread**0.25, np.full(len(part), np.mean(spread**0.5) ** 0.5)]
        )
        for part in (X, X_test)
    ]
    reach = np.median(np.linalg.norm(seen[0], axis=1))
    return Data(
        Problem("logistic", radius=1.0).rows(seen[0] / reach),
        y,
        seen[1] / reach,
        np.eye(10)[y_test],
        RADII,
        None,
    )


def _made(n_classes: int, n: int = 20_000, width: int = 20) -> Data:
    rng = np.random.default_rng(n_classes)
    X = rng.normal(size=(2 * n, width))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    W = rng.normal(size=(width, n_classes)) * 2
    p = np.exp(log_softmax(X @ W, axis=1))
    y = (rng.random(2 * n)[:, None] > np.cumsum(p, axis=1)).sum(axis=1).clip(max=n_classes - 1)
    return Data(X[:n], y[:n], X[n:], p[n:], (float(np.linalg.norm(W)),), _loss(X[n:] @ W, p[n:]))


def _loss(scores: Array, truth: Array) -> float:
    return float(-(truth * log_softmax(scores, axis=1)).sum(axis=1).mean())


def score(data: Data, W: Array) -> Run:
    """Accuracy on the test rows' classes, or the excess of the expected loss."""
    scores = data.X_test @ W
    if data.best is None:
        return {"accuracy": float(np.mean(scores.argmax(axis=1) == data.truth.argmax(axis=1)))}
    return {"excess": _loss(scores, data.truth) - data.best}


def convex(run: Run) -> dict[str, Run]:
    """The convex methods at one epsilon, with one noise."""
    data, epsilon, noise = data_of(run["data"]), run["epsilon"], ldp.SeededNoise(run["seed"])
    n, k = len(data.y), data.truth.shape[1]
    found: dict[str, Run] = {}
    releases: dict[str, Any] = {
        "LP-RR": ldp.RandomizedResponse(k, epsilon),
        "subset selection": ldp.SubsetSelection(k, epsilon),
        "LP-Normal": Histogram(k, epsilon, n, "gaussian", DELTA),
    }
    order = np.random.default_rng(run["seed"]).permutation(n)
    for name, law in releases.items():
        of_rows = isinstance(law, Histogram)
        released = (
            ldp.aggregate(
                ldp.PrivateLabels(data.y, classes=range(k), noise=noise), law, np.arange(n)
            )
            if of_rows
            else ldp.privatize(ldp.PrivateLabels(data.y, classes=range(k), noise=noise), law)
        )
        vectors = label_vectors(released)
        moment = second_moment(law)
        found[f"{name}, SGD"] = timed(
            lambda problem, v=vectors, m=moment: sgd(data.X[order], v[order], problem, m),
            data,
            data.radii[:2],
            bound=law,
        )
        sums = data.X.T @ vectors
        found[f"{name}, minimum"] = descended(data, sums)
    found["X'Y"] = by_sums(data, epsilon, noise)
    found["no privacy"] = descended(data, data.X.T @ np.eye(k)[data.y])
    return found | {
        "nothing": {"scores": {"": score(data, np.zeros((data.X.shape[1], k)))}, "seconds": 0.0}
    }


def likelihoods(run: Run) -> dict[str, Run]:
    """The exact likelihood of the same release by subset selection."""
    data = data_of(run["data"])
    classes = range(data.truth.shape[1])
    noisy = ldp.privatize(
        ldp.PrivateLabels(data.y, classes=classes, noise=ldp.SeededNoise(run["seed"])),
        ldp.SubsetSelection(len(classes), run["epsilon"]),
    )
    table = noisy.log_likelihood()

    def fit(C: float | tuple[float, ...]) -> Run:
        start = time.perf_counter()
        model = SoftmaxRegression(C=C, fit_intercept=False, max_iter=100).fit_likelihood(
            data.X, table
        )
        return score(data, model.coef_.T) | {"seconds": round(time.perf_counter() - start, 2)}

    one = {f"{C:g}": fit(C) for C in PENALTIES}
    return {
        "likelihood": {"scores": one},
        "likelihood, own penalty": {"scores": {"": fit(PENALTIES)}},
    }


def by_sums(data: Data, epsilon: float, noise: ldp.SeededNoise) -> Run:
    """One release of X'Y."""
    query = FeatureSums(data.truth.shape[1], epsilon, data.X.shape[1], delta=DELTA)
    answer = ldp.aggregate(
        ldp.PrivateLabels(data.y, classes=range(query.n_classes), noise=noise), query, data.X
    )
    return descended(data, query.sums(answer.values))


def every_row(run: Run) -> dict[str, Run]:
    """X'Y of all images."""
    return (
        {EVERY_ROW: by_sums(_images(None), run["epsilon"], ldp.SeededNoise(run["seed"]))}
        if run["data"] == "fashion_mnist"
        else {}
    )


def descended(data: Data, sums: Array) -> Run:
    """Learn from X'Y in each ball, starting from the minimum in the one before."""
    W = None

    def fit(problem: Problem) -> Array:
        nonlocal W
        W = minimise(
            data.X, sums, problem, steps=STEPS if len(data.radii) > 1 else 4 * STEPS, start=W
        )
        return W

    return timed(fit, data, data.radii)


def timed(fit: Any, data: Data, radii: Sequence[float], bound: Any = None) -> Run:
    """Scores and bounds by radius, and seconds."""
    start, scores = time.perf_counter(), {}
    for radius in radii:
        problem = Problem("logistic", radius=radius)
        scores[f"{radius:g}"] = score(data, fit(problem))
        if bound is not None:
            scores[f"{radius:g}"] |= {"bound": excess_risk(bound, problem, len(data.y))}
    return {"scores": scores, "seconds": round(time.perf_counter() - start, 2)}


def wanted(seeds: int = SEEDS) -> Iterator[Run]:
    """List all runs."""
    for seed in range(seeds):
        for name, epsilons in DATA.items():
            for epsilon in epsilons:
                yield {"data": name, "epsilon": epsilon, "seed": seed}


def key(run: Run) -> tuple[Any, ...]:
    """Return a run's identity."""
    return run["data"], run["epsilon"], run["seed"]


def run_all(seeds: int, names: Sequence[str]) -> None:
    """Run what is missing, and keep each."""
    warnings.simplefilter("ignore")
    runs = {key(run): run for run in load_runs(RESULT)}
    for run in [run for run in wanted(seeds) if run["data"] in names]:
        kept = runs.setdefault(key(run), run | {"methods": {}})
        for part in (convex, likelihoods, every_row):
            if part.__name__ in kept:
                continue
            start = time.perf_counter()
            kept["methods"] |= part(run)
            kept[part.__name__] = {
                "machine": machine(),
                "finished": now(),
                "seconds": round(time.perf_counter() - start, 1),
            }
            save_runs(RESULT, list(runs.values()))
            print(f"{part.__name__} {key(run)} {kept[part.__name__]['seconds']} s", flush=True)


def at_best_radius(runs: Sequence[Run], method: str, field: str) -> tuple[Array, str]:
    """The figures of a method over seeds at the radius with the best mean, and that radius."""
    scores = [run["methods"][method]["scores"] for run in runs]
    sign = 1 if field == "accuracy" else -1
    best = max(
        scores[0],
        key=lambda radius: sign * float(np.mean([each[radius][field] for each in scores])),
    )
    return np.array([each[best][field] for each in scores]), best


def _shown(values: Array, scale: float, digits: int) -> str:
    return (
        f"{scale * values.mean():.{digits}f} ±"
        f" {scale * values.std(ddof=1 if len(values) > 1 else 0):.{digits}f}"
    )


def tables() -> str:
    """The tables of the kept runs."""
    runs = load_runs(RESULT)
    fashion = accuracies([run for run in runs if run["data"] == "fashion_mnist"])
    return f"{fashion}\n\n{risks([run for run in runs if 'made' in run['data']])}"


def accuracies(runs: Sequence[Run]) -> str:
    """Accuracy by method and epsilon, mean and deviation over seeds."""
    epsilons = sorted({run["epsilon"] for run in runs})
    lines = [
        f"| Fashion-MNIST, accuracy, % | {' | '.join(f'eps {e:g}' for e in epsilons)} |",
        "|---" * (len(epsilons) + 1) + "|",
    ]
    lines.append(
        "| label equivalents |"
        f" {' | '.join(f'{equivalents(ROWS, 10, e):,.0f}' for e in epsilons)} |"
    )
    for method in METHODS:
        measured = [
            [run for run in runs if run["epsilon"] == epsilon and method in run["methods"]]
            for epsilon in epsilons
        ]
        cells = [
            _shown(at_best_radius(same, method, "accuracy")[0], 100, 1) if same else ""
            for same in measured
        ]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def risks(runs: Sequence[Run]) -> str:
    """Excess risk by method and number of classes, next to its bound."""
    names = [name for name in DATA if any(run["data"] == name for run in runs)]
    heads = [
        f"{name.removeprefix('made-')} classes, {what}"
        for name in names
        for what in ("excess risk", "bound")
    ]
    lines = [f"| made, eps 1 | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for method in [method for method in METHODS if method != EVERY_ROW]:
        cells = []
        for name in names:
            same = [run for run in runs if run["data"] == name and method in run["methods"]]
            if not same:
                cells += ["", ""]
                continue
            first = next(iter(same[0]["methods"][method]["scores"].values()))
            bound = f"{first['bound']:.1f}" if "bound" in first else ""
            cells += [_shown(at_best_radius(same, method, "excess")[0], 1, 3), bound]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, and print."""
    options = parser("convex", __doc__)
    options.add_argument("--data", default=",".join(DATA))
    options.add_argument("--seeds", type=int, default=SEEDS)
    options.add_argument("--report", action="store_true", help="only print the tables")
    args = options.parse_args(arguments)
    if unknown := set(args.data.split(",")) - set(DATA):
        options.error(f"no data {', '.join(sorted(unknown))}; there are {', '.join(DATA)}")
    if not args.report:
        run_all(args.seeds, args.data.split(","))
    print(tables())
