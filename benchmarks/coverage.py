# SPDX-License-Identifier: Apache-2.0
"""Does every 95 % interval of `labeldp.stats` and `labeldp.metrics` cover the truth in 95 % of releases, with every law?

    python -m benchmarks coverage [--releases 2000] [--parts figures,numbers,effects,regressions,metrics] [--report]

Each release draws new labels from a known population and releases them by the law with new, seeded noise; the interval covers if the
population's figure is in it. A cell is the share of releases in which it does, with its distance from 95 % in binomial standard errors.
Intervals that hold together, those of quantiles (whose values are discrete) and those of means that reach the ends of the range may cover
more; so may those of metrics, whose rows are few for a class of 10 %. Results are kept in results/coverage.json, part by part.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
from scipy.special import expit, softmax
from sklearn.metrics import average_precision_score, roc_auc_score

import labeldp as ldp
from benchmarks.common import RESULTS, Array, Run, load_json, machine, parser, print_result, save_json
from labeldp.evidence import concat
from labeldp.laws import BoundedLaplace, RROnBins, SquareWave, UnbiasedRandomizer

RESULT = RESULTS / "coverage.json"
RELEASES, LEVEL = 2000, 0.95
SHARES = np.array([0.45, 0.3, 0.15, 0.1])
Covered = Mapping[str, bool]
Check = Callable[[ldp.NoisyLabels, Array], Covered]


def laws(k: int) -> dict[str, ldp.Law]:
    """The laws over k classes; without a prior, RRTopK and RRWithPrior are randomized response, and AutoLaw is one of the first two."""
    found = {
        "rr": ldp.RandomizedResponse(k, 2.0),
        "subset": ldp.SubsetSelection(k, 2.0),
        "alibi": ldp.Alibi(k, 3.0),
        "cluster-rr": ldp.ClusterRR.uniform(k, 2.0),
        "split": ldp.PriorSplit(k, 3.0),
        "threshold": ldp.Threshold(k, 3.0),
    }
    return {"split": found["split"], "rr": found["rr"], "alibi": found["alibi"]} if k == 2 else found


def inside(estimate: "ldp.metrics.Estimate", truth: float) -> bool:
    return estimate.low <= truth <= estimate.high


def figures(noisy: ldp.NoisyLabels, by: Array) -> Covered:
    """Shares, means, quantiles and tests: 900 rows, three groups of the same shares."""
    table, each = ldp.stats.crosstab(noisy, by), ldp.stats.frequencies(noisy, simultaneous=False)
    shares = table.shares
    return {
        "share of the largest class": inside(each[0], SHARES[0]),
        "share of the smallest class": inside(each[3], SHARES[3]),
        "mean": inside(ldp.stats.mean(noisy)["mean"], float(SHARES @ np.arange(4))),
        "quantile": inside(ldp.stats.quantiles(noisy, q=(0.5,))[0.5], 1.0),
        "shares together": bool(((shares.low <= SHARES) & (shares.high >= SHARES)).all()),
        "difference": inside(ldp.stats.difference(noisy, by, groups=[0, 1], of=0), 0.0),
        "independence": table.pvalue > 1 - LEVEL,
    }


def figure_cells(releases: int) -> Iterator[Run]:
    """Cells of shares, means, quantiles and tests."""
    n, rng = 900, np.random.default_rng(0)
    labels, by = rng.choice(4, p=SHARES, size=releases * n), np.arange(n) % 3
    for name, law in laws(4).items():
        noisy = ldp.privatize(labels, law, noise=ldp.SeededNoise(1))
        yield from counted(name, (figures(noisy[i * n : (i + 1) * n], by) for i in range(releases)))


def number_cells(releases: int) -> Iterator[Run]:
    """Cells of the mean of a skewed number on 64 points: 1,000 rows; "mixed" is half of them by thresholds and half by subset selection."""
    n, rng = 1000, np.random.default_rng(8)
    points = np.arange(64)
    shares = np.exp(-points / 12) / np.exp(-points / 12).sum()
    labels = rng.choice(64, p=shares, size=releases * n)
    for epsilon in (1.0, 4.0):
        asked: dict[str, ldp.Law] = {"threshold": ldp.Threshold(64, epsilon), "subset": ldp.SubsetSelection(64, epsilon)}
        asked |= {"unbiased": UnbiasedRandomizer(64, epsilon), "square-wave": SquareWave(64, epsilon)}
        asked |= {"laplace": BoundedLaplace(64, epsilon), "rr-on-bins": RROnBins(64, epsilon)}
        drawn = {name: ldp.privatize(labels, law, classes=range(64), noise=ldp.SeededNoise(9)) for name, law in asked.items()}

        def released(name: str, i: int, drawn: dict[str, ldp.NoisyLabels] = drawn) -> ldp.NoisyLabels:
            start, middle, end = i * n, i * n + n // 2, (i + 1) * n
            return concat([drawn["threshold"][start:middle], drawn["subset"][middle:end]]) if name == "mixed" else drawn[name][start:end]

        for name in (*drawn, "mixed"):
            means = (ldp.stats.mean(released(name, i))["mean"] for i in range(releases))
            yield from counted(name, ({f"mean of a number, eps {epsilon:g}": inside(mean, float(shares @ points))} for mean in means))


def effect_cells(releases: int) -> Iterator[Run]:
    """Cells of an A/B test of 1,000 rows, also adjusted for a covariate, and by units of two rows."""
    n, rng = 1000, np.random.default_rng(2)
    arm, units = np.arange(n) // 2 % 2, np.arange(n) // 2
    x = np.repeat(rng.normal(size=releases * n // 2), 2)
    bought = (rng.random(releases * n) < np.tile(0.3 + 0.1 * arm, releases) + 0.15 * np.tanh(x)).astype(int)
    for name, law in laws(2).items():
        noisy = ldp.privatize(bought, law, noise=ldp.SeededNoise(3))
        unbiased = noisy[:100].invertible.all()

        def covered(i: int, noisy: ldp.NoisyLabels = noisy, unbiased: bool = bool(unbiased)) -> Covered:
            rows = slice(i * n, (i + 1) * n)
            found = {"effect, by units": inside(ldp.stats.effect(noisy[rows], arm, units=units), 0.1)}
            if unbiased:
                found["effect, adjusted, by units"] = inside(ldp.stats.effect(noisy[rows], arm, X=x[rows], units=units), 0.1)
            return found

        yield from counted(name, (covered(i) for i in range(releases)))


MODELS = {"logistic": 2, "multinomial": 3, "linear": 8, "poisson": 8}


def population(model: str, x: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Labels that follow a model, and its coefficients."""
    n = len(x)
    if model == "logistic":
        return (rng.random(n) < expit(-0.4 + 0.7 * x)).astype(int), np.array([-0.4, 0.7])
    if model == "multinomial":
        p = softmax(np.column_stack([np.zeros(n), 0.3 + 0.6 * x, -0.2 - 0.5 * x]), axis=1)
        return (rng.random(n)[:, None] > p.cumsum(axis=1)).sum(axis=1), np.array([0.3, 0.6, -0.2, -0.5])
    if model == "linear":
        return np.clip(np.rint(3.5 + 0.8 * x + 1.2 * rng.normal(size=n)), 0, 7).astype(int), np.array([3.5, 0.8, np.log(1.2)])
    return np.minimum(rng.poisson(np.exp(0.8 + 0.3 * x)), 7), np.array([0.8, 0.3])


def regression_laws(model: str) -> dict[str, tuple[ldp.Law, bool]]:
    """Laws of a regression, and whether they read a prior that a model of x has made."""
    k = MODELS[model]
    if k == 2:
        return {"rr": (ldp.RandomizedResponse(2, 2.0), False), "alibi": (ldp.Alibi(2, 3.0), False)}
    chosen = {"subset": (ldp.SubsetSelection(k, 2.0), False), "threshold": (ldp.Threshold(k, 3.0), False)}
    if model == "poisson":
        return chosen
    chosen |= {"auto": (ldp.AutoLaw(k, 2.0), True), "split": (ldp.PriorSplit(k, 3.0, ordered=k > 3), True)}
    return chosen if k > 3 else chosen | {"rr-with-prior": (ldp.RRWithPrior(k, 2.0), True), "cluster-rr": (ldp.ClusterRR(k, 3.0), True)}


def regression_cells(releases: int, model: str) -> Iterator[Run]:
    """Cells of the last column's coefficient, with either standard error in turn: 700 rows."""
    n, rng = 700, np.random.default_rng(4)
    x = rng.normal(size=releases * n)
    labels, truth = population(model, x, rng)
    k = MODELS[model]
    guess = np.maximum(softmax(0.3 * x[:, None] * (np.arange(k) - (k - 1) / 2), axis=1), 0.02)  # a poor public model
    for name, (law, asked) in regression_laws(model).items():
        noisy = ldp.privatize(labels, law, classes=range(k), prior=guess if asked else None, noise=ldp.SeededNoise(5))

        def covered(i: int, noisy: ldp.NoisyLabels = noisy) -> Covered:
            rows = slice(i * n, (i + 1) * n)
            kind = "sandwich" if i % 2 else "observed"
            low, high = ldp.stats.regress(noisy[rows], x[rows], model, standard_errors=kind).conf_int()[1]
            return {f"{model}, {kind}": bool(low <= truth[1] <= high)}

        yield from counted(name, (covered(i) for i in range(releases)))


COSTS = [[0.0, 1.0], [8.0, 0.0]]
METRICS = {  # the metric of a release, and what is true of labels, scores and predictions
    "accuracy": (lambda noisy, p, guess: ldp.metrics.accuracy(noisy, guess), lambda y, p, guess: np.mean(y == guess)),
    "log-loss": (lambda noisy, p, guess: ldp.metrics.log_loss(noisy, p), lambda y, p, guess: -np.log(p[np.arange(len(y)), y]).mean()),
    "Brier score": (lambda noisy, p, guess: ldp.metrics.brier_score(noisy, p), lambda y, p, guess: brier(y, p)),
    "precision": (lambda noisy, p, guess: ldp.metrics.precision(noisy, guess), lambda y, p, guess: np.mean(y[guess == 1])),
    "recall": (lambda noisy, p, guess: ldp.metrics.recall(noisy, guess), lambda y, p, guess: np.mean(guess[y == 1])),
    "F1": (lambda noisy, p, guess: ldp.metrics.f1(noisy, guess), lambda y, p, guess: 2 * (y * guess).sum() / (y.sum() + guess.sum())),
    "balanced accuracy": (
        lambda noisy, p, guess: ldp.metrics.balanced_accuracy(noisy, guess),
        lambda y, p, guess: (np.mean(guess[y == 1]) + np.mean(1 - guess[y == 0])) / 2,
    ),
    "ROC-AUC": (lambda noisy, p, guess: ldp.metrics.roc_auc(noisy, p[:, 1]), lambda y, p, guess: roc_auc_score(y, p[:, 1])),
    "average precision": (
        lambda noisy, p, guess: ldp.metrics.average_precision(noisy, p[:, 1]),
        lambda y, p, guess: average_precision_score(y, p[:, 1]),
    ),
    "lift of the top 10 %": (
        lambda noisy, p, guess: ldp.metrics.lift(noisy, p[:, 1], 0.1),
        lambda y, p, guess: y[p[:, 1] >= np.quantile(p[:, 1], 0.9)].mean() / y.mean(),
    ),
    "cost": (lambda noisy, p, guess: ldp.metrics.cost(noisy, guess, COSTS), lambda y, p, guess: np.mean(np.asarray(COSTS)[y, guess])),
}
AT_LEAST = ("quantile", "shares together", "mean of a number, eps 1", "mean of a number, eps 4", *METRICS)  # may cover more


def brier(y: Array, p: Array) -> float:
    """The mean square of the second class's error, as scikit-learn counts it for two classes."""
    return float(np.mean((p[:, 1] - y) ** 2))


def metric_cells(releases: int) -> Iterator[Run]:
    """Cells of metrics of a class of 10 %: 1,500 rows, and a model that knows the probabilities up to a factor."""
    n, rng = 1500, np.random.default_rng(6)
    p = rng.beta(0.5, 4.5, size=releases * n)
    y = (rng.random(releases * n) < p).astype(int)
    guessed = np.clip(1.3 * p, 0.01, 0.99)
    table, guess = np.column_stack([1 - guessed, guessed]), (guessed > 0.25).astype(int)
    truth = {name: float(true(y, table, guess)) for name, (_, true) in METRICS.items()}
    for name, law in laws(2).items():
        noisy = ldp.privatize(y, law, noise=ldp.SeededNoise(7))
        if not noisy[:100].invertible.all():
            continue

        def covered(i: int, noisy: ldp.NoisyLabels = noisy) -> Covered:
            rows = slice(i * n, (i + 1) * n)
            return {each: inside(found(noisy[rows], table[rows], guess[rows]), truth[each]) for each, (found, _) in METRICS.items()}

        yield from counted(name, (covered(i) for i in range(releases)))


def counted(law: str, covered: Iterator[Covered]) -> Iterator[Run]:
    """Count the releases in which each interval covers."""
    hits: dict[str, list[bool]] = {}
    for each in covered:
        for name, hit in each.items():
            hits.setdefault(name, []).append(hit)
    for name, found in hits.items():
        yield {"law": law, "interval": name, "releases": len(found), "covered": int(np.sum(found))}


def distance(cell: Run) -> float:
    """The distance of a cell's share from 95 %, in binomial standard errors."""
    n = cell["releases"]
    return float((cell["covered"] / n - LEVEL) / np.sqrt(LEVEL * (1 - LEVEL) / n))


PARTS: dict[str, Callable[[int], Iterator[Run]]] = {
    "figures": figure_cells,
    "numbers": number_cells,
    "effects": effect_cells,
    "regressions": lambda releases: chain.from_iterable(regression_cells(releases, model) for model in MODELS),
    "metrics": metric_cells,
}


def measure(releases: int, parts: Sequence[str]) -> Run:
    """Count every cell of these parts."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cells = list(chain.from_iterable(PARTS[part](releases) for part in parts))
    return {"cells": cells, "seconds": round(time.process_time() - start, 1), "machine": machine()}


def merged(kept: Run, new: Run) -> Run:
    """A kept result with the cells of a new one in the place of its own, and each machine that counted."""
    counted = {(cell["law"], cell["interval"]) for cell in new["cells"]}
    others = [cell for cell in kept["cells"] if (cell["law"], cell["interval"]) not in counted]
    return new | {"cells": others + new["cells"], "earlier": [*kept.get("earlier", []), kept["machine"]] if others else []}


def tables() -> str:
    """Coverage in percent of each interval with each law, from the kept result."""
    return markdown(load_json(RESULT)["cells"])


def markdown(cells: Sequence[Run]) -> str:
    """The table: a row for each interval, a column for each law, and the farthest cell in binomial standard errors."""
    names, columns = (list(dict.fromkeys(cell[field] for cell in cells)) for field in ("interval", "law"))
    lines = ["| interval | releases | " + " | ".join(columns) + " | farthest, standard errors |", "|" + "---|" * (len(columns) + 3)]
    for name in names:
        mine = {cell["law"]: cell for cell in cells if cell["interval"] == name}
        shown = [f"{100 * mine[law]['covered'] / mine[law]['releases']:.1f}" if law in mine else "" for law in columns]
        far = max((distance(cell) for cell in mine.values()), key=abs)
        releases = max(cell["releases"] for cell in mine.values())
        lines.append(f"| {name} | {releases} | {' | '.join(shown)} | {far:+.1f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Count, keep and print."""
    options = parser("coverage", __doc__)
    options.add_argument("--releases", type=int, default=RELEASES)
    options.add_argument("--parts", default=",".join(PARTS))
    options.add_argument("--report", action="store_true", help="only print the table of the kept result")
    args = options.parse_args(arguments)
    if args.report:
        print(tables())
        return
    result = measure(args.releases, args.parts.split(","))
    result = merged(load_json(RESULT), result) if RESULT.exists() else result
    print_result({"seconds": result["seconds"]})
    print(markdown(result["cells"]))
    save_json(RESULT, result)
