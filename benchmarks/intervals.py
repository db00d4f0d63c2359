# SPDX-License-Identifier: Apache-2.0
"""Does every 95 % interval of `labeldp.stats` and `labeldp.metrics` cover the truth in 95 % of
releases, with every law?

    python -m benchmarks intervals [--releases 2000] [--parts
    figures,columns,numbers,effects,regressions,metrics] [--report]

Each release draws new labels from a known population and releases them by the law with new, seeded
noise; the interval covers if the population's figure is in it. A cell is the share of releases in
which it does, with its distance from 95 % in binomial standard errors. Where a law has no unbiased
estimator, so that a figure has no value or is refused, the cell says "none". Intervals that hold
together, those of quantiles (whose values are discrete) and those of means that reach the ends of
the range may cover more; so may those of metrics, whose rows are few for a class of 10 %. Results
are kept in results/intervals.json.gz, part by part.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from scipy.special import expit, softmax
from sklearn.metrics import average_precision_score, roc_auc_score

import labeldp as ldp
from benchmarks.common import (
    RESULTS,
    Array,
    Run,
    load_json,
    machine,
    parser,
    print_result,
    save_json,
)
from labeldp.errors import InvalidInput
from labeldp.evidence import concat
from labeldp.laws import Channel, PriorBins, SquareWave, UnbiasedRandomizer
from labeldp.papers.malek2021 import Alibi
from labeldp.papers.regression import BoundedLaplace, RROnBins

RESULT = RESULTS / "intervals.json.gz"
RELEASES, LEVEL = 2000, 0.95
SHARES = np.array([0.45, 0.3, 0.15, 0.1])
Covered = Mapping[str, bool | None]  # None: the figure is refused, or has no value


# Laws and releases
# --------------------------------------------------------------------------------------------------


def laws(k: int) -> dict[str, ldp.Law]:
    """The laws over k classes; those of READ_PRIOR are given one, without which they are one of the
    others."""
    found: dict[str, ldp.Law] = {
        "split": ldp.PriorSplit(k, 3.0),
        "rr": ldp.RandomizedResponse(k, 2.0),
        "alibi": Alibi(k, 3.0),
        "channel": channel(k),
        "rr-with-prior": ldp.RRWithPrior(k, 2.0),
    }
    if k == 2:  # the others are randomized response
        return found
    found |= {
        "rr-top-k": ldp.RRTopK(k, 2.0, k // 2 + 1),
        "auto": ldp.AutoLaw(k, 1.0),
        "subset": ldp.SubsetSelection(k, 2.0),
    }
    return found | {"cluster-rr": ldp.ClusterRR.uniform(k, 2.0), "threshold": ldp.Threshold(k, 3.0)}


READ_PRIOR = ("rr-with-prior", "rr-top-k", "auto")


def channel(k: int) -> Channel:
    """A survey by somebody else: a class is kept, or mistaken for one beside it, more often for
    some classes; or there is no answer."""
    near = np.exp(
        -np.abs(np.arange(k)[:, None] - np.arange(k)) * (1.0 + 0.3 * np.arange(k)[:, None])
    )
    silent = 0.1 + 0.1 * np.arange(k) / (k - 1)
    rows = np.column_stack([near / near.sum(axis=1, keepdims=True) * (1 - silent)[:, None], silent])
    return Channel(rows)


def released(
    labels: Array, law: ldp.Law, seed: int, k: int, prior: Array | None = None
) -> ldp.NoisyLabels:
    """Labels released with seeded noise; a channel only declares how others have drawn, so its
    outputs are drawn here."""
    if not isinstance(law, Channel):
        return ldp.privatize(
            ldp.PrivateLabels(labels, classes=range(k), noise=ldp.SeededNoise(seed)),
            law,
            prior=prior,
        )
    edges = law.matrix().cumsum(axis=1)[:, :-1]
    outputs = (np.random.default_rng(seed).random(len(labels))[:, None] > edges[labels]).sum(axis=1)
    return ldp.NoisyLabels.from_labels(outputs, law, range(k), outputs=range(edges.shape[1] + 1))


def any_prior(n: int, k: int, seed: int) -> Array:
    """Public weights that differ from row to row and do not tell labels apart, as figures without
    covariates take them."""
    return np.random.default_rng(seed).dirichlet(np.ones(k), size=n)


def inside(found: "Callable[[], ldp.metrics.Estimate]", truth: float) -> bool | None:
    """Whether an estimate's interval covers; None if it is refused, or has no value."""
    try:
        estimate = found()
    except InvalidInput:
        return None
    return None if np.isnan(estimate.value) else bool(estimate.low <= truth <= estimate.high)


# Figures
# --------------------------------------------------------------------------------------------------


def figures(noisy: ldp.NoisyLabels, by: Array) -> dict[str, bool | None]:
    """Shares, means, quantiles and tests: 900 rows, three groups of the same shares."""
    table, each = ldp.stats.crosstab(noisy, by), ldp.stats.frequencies(noisy, simultaneous=False)
    shares = table.shares
    return {
        "share of the largest class": inside(lambda: each[0], SHARES[0]),
        "share of the smallest class": inside(lambda: each[3], SHARES[3]),
        "mean": inside(lambda: ldp.stats.mean(noisy)["mean"], float(SHARES @ np.arange(4))),
        "quantile": inside(lambda: ldp.stats.quantiles(noisy, q=(0.5,))[0.5], 1.0),
        "shares together": bool(((shares.low <= SHARES) & (shares.high >= SHARES)).all()),
        "difference": inside(lambda: ldp.stats.difference(noisy, by, groups=[0, 1], of=0), 0.0),
        "independence": table.pvalue > 1 - LEVEL,
    }


def figure_cells(releases: int) -> Iterator[Run]:
    """Cells of shares, means, quantiles and tests."""
    n, rng = 900, np.random.default_rng(0)
    labels, by = rng.choice(4, p=SHARES, size=releases * n), np.arange(n) % 3
    for name, law in laws(4).items():
        noisy = released(
            labels, law, 1, 4, any_prior(len(labels), 4, 10) if name in READ_PRIOR else None
        )
        yield from counted(name, (figures(noisy[i * n : (i + 1) * n], by) for i in range(releases)))


def column_cells(releases: int) -> Iterator[Run]:
    """Cells of one of two columns that are released together, 900 rows, and of a share of their
    combinations."""
    n, rng = 900, np.random.default_rng(12)
    columns = ldp.LabelColumns({"a": range(4), "b": range(3)})
    first, by = rng.choice(4, p=SHARES, size=releases * n), np.arange(n) % 3
    labels = np.column_stack([first, np.minimum(first, rng.integers(3, size=len(first)))])
    share = float(SHARES[1] * 2 / 3)  # of (1, 1)
    for split in ("equal", "one", "joint"):
        law = columns.law(3.0, split)
        both = ldp.privatize(
            ldp.PrivateLabels(labels, classes=columns, noise=ldp.SeededNoise(13)), law
        )
        one = both["a"]

        def covered(i: int, both: ldp.NoisyLabels = both, one: ldp.NoisyLabels = one) -> Covered:
            rows = slice(i * n, (i + 1) * n)
            pairs = both[rows]
            return figures(one[rows], by) | {
                "share of a combination": inside(
                    lambda: ldp.stats.mean(pairs, of=(1, 1))["mean"], share
                )
            }

        yield from counted(
            one.blocks[0].law.name if split == "joint" else law.name,
            (covered(i) for i in range(releases)),
        )


# Numbers
# --------------------------------------------------------------------------------------------------


def number_cells(releases: int) -> Iterator[Run]:
    """Cells of a skewed number on 64 points, and of predictions of it: 1,000 rows; "mixed" is half
    by thresholds, half by subset."""
    n, rng = 1000, np.random.default_rng(8)
    points = np.arange(64)
    shares = np.exp(-points / 12) / np.exp(-points / 12).sum()
    labels = rng.choice(64, p=shares, size=releases * n)
    mean = float(shares @ points)
    variance = float(shares @ (points - mean) ** 2)
    guesses = mean + 0.7 * (labels - mean) + 4 * rng.normal(size=len(labels))
    error = 0.3**2 * variance + 4**2
    for epsilon in (1.0, 4.0):
        asked: dict[str, ldp.Law] = {
            "threshold": ldp.Threshold(64, epsilon),
            "subset": ldp.SubsetSelection(64, epsilon),
        }
        asked |= {
            "unbiased": UnbiasedRandomizer(64, epsilon),
            "square-wave": SquareWave(64, epsilon),
            "prior-bins": PriorBins(64, epsilon),
        }
        asked |= {"laplace": BoundedLaplace(64, epsilon), "rr-on-bins": RROnBins(64, epsilon)}
        drawn = {name: released(labels, law, 9, 64) for name, law in asked.items()}

        def covered(
            name: str, i: int, drawn: dict[str, ldp.NoisyLabels] = drawn, epsilon: float = epsilon
        ) -> Covered:
            start, middle, end = i * n, i * n + n // 2, (i + 1) * n
            mixed = name == "mixed"
            noisy = (
                concat([drawn["threshold"][start:middle], drawn["subset"][middle:end]])
                if mixed
                else drawn[name][start:end]
            )
            guess = guesses[start:end]
            found = {
                "mean of a number": inside(lambda: ldp.stats.mean(noisy)["mean"], mean),
                "mean squared error": inside(
                    lambda: ldp.metrics.mean_squared_error(noisy, guess), error
                ),
                "root mean squared error": inside(
                    lambda: ldp.metrics.root_mean_squared_error(noisy, guess), np.sqrt(error)
                ),
                "R^2": inside(lambda: ldp.metrics.r2(noisy, guess), 1 - error / variance),
            }
            return {f"{each}, eps {epsilon:g}": hit for each, hit in found.items()}

        for name in (*drawn, "mixed"):
            yield from counted(name, (covered(name, i) for i in range(releases)))


# Effects and regressions
# --------------------------------------------------------------------------------------------------


def effect_cells(releases: int) -> Iterator[Run]:
    """Cells of an A/B test of 1,000 rows, also adjusted for a covariate, and by units of two
    rows."""
    n, rng = 1000, np.random.default_rng(2)
    arm, units = np.arange(n) // 2 % 2, np.arange(n) // 2
    x = np.repeat(rng.normal(size=releases * n // 2), 2)
    bought = (
        rng.random(releases * n) < np.tile(0.3 + 0.1 * arm, releases) + 0.15 * np.tanh(x)
    ).astype(int)
    for name, law in laws(2).items():
        noisy = released(
            bought, law, 3, 2, any_prior(len(bought), 2, 11) if name in READ_PRIOR else None
        )

        def covered(i: int, noisy: ldp.NoisyLabels = noisy) -> Covered:
            rows = slice(i * n, (i + 1) * n)
            mine, covariate = noisy[rows], x[rows]
            return {
                "effect, by units": inside(lambda: ldp.stats.effect(mine, arm, units=units), 0.1),
                "effect, adjusted, by units": inside(
                    lambda: ldp.stats.effect(mine, arm, X=covariate, units=units), 0.1
                ),
            }

        yield from counted(name, (covered(i) for i in range(releases)))


MODELS = {"logistic": 2, "multinomial": 3, "linear": 8, "poisson": 8, "least-squares": 8}


def population(model: str, x: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Labels that follow a model, and its coefficients; of skewed numbers, whose mean no model
    describes, those of all rows."""
    n = len(x)
    if model == "logistic":
        return (rng.random(n) < expit(-0.4 + 0.7 * x)).astype(int), np.array([-0.4, 0.7])
    if model == "multinomial":
        p = softmax(np.column_stack([np.zeros(n), 0.3 + 0.6 * x, -0.2 - 0.5 * x]), axis=1)
        return (rng.random(n)[:, None] > p.cumsum(axis=1)).sum(axis=1), np.array(
            [0.3, 0.6, -0.2, -0.5]
        )
    if model == "linear":
        return np.clip(np.rint(3.5 + 0.8 * x + 1.2 * rng.normal(size=n)), 0, 7).astype(
            int
        ), np.array([3.5, 0.8, np.log(1.2)])
    if model == "least-squares":
        skewed = np.minimum(np.rint(rng.lognormal(0.4 + 0.3 * x, 0.7)), 7).astype(int)
        return skewed, np.polynomial.polynomial.polyfit(x, skewed, 1)
    return np.minimum(rng.poisson(np.exp(0.8 + 0.3 * x)), 7), np.array([0.8, 0.3])


def regression_laws(model: str) -> dict[str, tuple[ldp.Law, bool]]:
    """Laws of a regression, and whether they read a prior that a model of x has made."""
    k = MODELS[model]
    if k == 2:
        return {
            name: (law, False)
            for name, law in laws(2).items()
            if name in ("rr", "alibi", "channel")
        }
    chosen = {
        "subset": (ldp.SubsetSelection(k, 2.0), False),
        "threshold": (ldp.Threshold(k, 3.0), False),
        "channel": (channel(k), False),
    }
    if model == "poisson":
        return chosen
    if model in ("linear", "least-squares"):
        chosen |= {
            "square-wave": (SquareWave(k, 2.0), False),
            "laplace": (BoundedLaplace(k, 2.0), False),
        }
        chosen |= {
            "unbiased": (UnbiasedRandomizer(k, 2.0), False),
            "rr-on-bins": (RROnBins(k, 4.0), False),
        }
    if model == "least-squares":
        return chosen | {"split": (ldp.PriorSplit(k, 3.0, ordered=True), True)}
    chosen |= {
        "split": (ldp.PriorSplit(k, 3.0, ordered=k > 3), True),
        "rr-top-k": (ldp.RRTopK(k, 2.0, k // 2 + 1), True),
    }
    if k > 3:  # of three classes AutoLaw makes no splits
        return chosen | {
            "auto": (ldp.AutoLaw(k, 1.0), True),
            "prior-bins": (PriorBins(k, 3.0), True),
        }
    return chosen | {
        "rr-with-prior": (ldp.RRWithPrior(k, 2.0), True),
        "cluster-rr": (ldp.ClusterRR(k, 3.0), True),
    }


def regression_cells(releases: int, model: str) -> Iterator[Run]:
    """Cells of the last column's coefficient, with either standard error: 700 rows."""
    n, rng = 700, np.random.default_rng(4)
    x = rng.normal(size=releases * n)
    labels, truth = population(model, x, rng)
    k = MODELS[model]
    # a poor public model
    guess = np.maximum(softmax(0.6 * x[:, None] * (np.arange(k) - (k - 1) / 2), axis=1), 0.02)
    kinds = ("observed", "sandwich") if model != "least-squares" else ("sandwich",)
    for name, (law, asked) in regression_laws(model).items():
        noisy = released(labels, law, 5, k, guess if asked else None)

        def coefficient(noisy: ldp.NoisyLabels, x: Array, kind: str) -> ldp.metrics.Estimate:
            found = ldp.stats.regress(noisy, x, model, standard_errors=kind)
            low, high = found.conf_int(names=[found.names[1]])[0]
            return ldp.metrics.Estimate(float(found.params[1]), float(low), float(high))

        def covered(i: int, noisy: ldp.NoisyLabels = noisy) -> Covered:
            rows = slice(i * n, (i + 1) * n)
            return {
                f"{model}, {kind}": inside(
                    partial(coefficient, noisy[rows], x[rows], kind), truth[1]
                )
                for kind in kinds
            }

        yield from counted(name, (covered(i) for i in range(releases)))


# Metrics
# --------------------------------------------------------------------------------------------------


class Judged(NamedTuple):
    """What a model says of rows, which of the classes is rare, and its known rate."""

    p: Array
    guess: Array
    rare: int
    rate: float

    def of(self, rows: slice) -> "Judged":
        return self._replace(p=self.p[rows], guess=self.guess[rows])

    @property
    def score(self) -> Array:
        return self.p[:, self.rare]

    @property
    def costs(self) -> Array:
        """A miss of the rare class costs 8, every other error 1."""
        table = 1.0 - np.eye(self.p.shape[1])
        table[self.rare] *= 8
        return table


METRICS: dict[
    str,
    tuple[
        Callable[[ldp.NoisyLabels, Judged], ldp.metrics.Estimate], Callable[[Array, Judged], float]
    ],
] = {
    # the metric of a release, and what is true of labels
    "accuracy": (
        lambda noisy, of: ldp.metrics.accuracy(noisy, of.guess),
        lambda y, of: np.mean(y == of.guess),
    ),
    "log-loss": (
        lambda noisy, of: ldp.metrics.log_loss(noisy, of.p),
        lambda y, of: -np.log(of.p[np.arange(len(y)), y]).mean(),
    ),
    "Brier score": (
        lambda noisy, of: ldp.metrics.brier_score(noisy, of.p),
        lambda y, of: brier(y, of.p),
    ),
    "precision": (
        lambda noisy, of: ldp.metrics.precision(noisy, of.guess, positive=of.rare),
        lambda y, of: np.mean(y[of.guess == of.rare] == of.rare),
    ),
    "recall": (
        lambda noisy, of: ldp.metrics.recall(noisy, of.guess, positive=of.rare),
        lambda y, of: np.mean(of.guess[y == of.rare] == of.rare),
    ),
    "recall, rate known": (
        lambda noisy, of: ldp.metrics.recall(
            noisy, of.guess, positive=of.rare, class_prior=of.rate
        ),
        lambda y, of: np.mean(of.guess[y == of.rare] == of.rare),
    ),
    "F1": (
        lambda noisy, of: ldp.metrics.f1(noisy, of.guess, positive=of.rare),
        lambda y, of: (
            2
            * np.sum((y == of.rare) & (of.guess == of.rare))
            / (np.sum(y == of.rare) + np.sum(of.guess == of.rare))
        ),
    ),
    "balanced accuracy": (
        lambda noisy, of: ldp.metrics.balanced_accuracy(noisy, of.guess),
        lambda y, of: np.mean([np.mean(of.guess[y == c] == c) for c in range(of.p.shape[1])]),
    ),
    "ROC-AUC": (
        lambda noisy, of: ldp.metrics.roc_auc(noisy, of.score, positive=of.rare),
        lambda y, of: roc_auc_score(y == of.rare, of.score),
    ),
    "ROC-AUC, rate known": (
        lambda noisy, of: ldp.metrics.roc_auc(
            noisy, of.score, positive=of.rare, class_prior=of.rate
        ),
        lambda y, of: roc_auc_score(y == of.rare, of.score),
    ),
    "average precision": (
        lambda noisy, of: ldp.metrics.average_precision(noisy, of.score, positive=of.rare),
        lambda y, of: average_precision_score(y == of.rare, of.score),
    ),
    "lift of the top 10 %": (
        lambda noisy, of: ldp.metrics.lift(noisy, of.score, 0.1, positive=of.rare),
        lambda y, of: (
            np.mean(y[of.score >= np.quantile(of.score, 0.9)] == of.rare) / np.mean(y == of.rare)
        ),
    ),
    "cost": (
        lambda noisy, of: ldp.metrics.cost(noisy, of.guess, of.costs),
        lambda y, of: float(np.mean(of.costs[y, of.guess])),
    ),
    "a cell of the confusion matrix": (
        lambda noisy, of: one_of(ldp.metrics.confusion_matrix(noisy, of.guess), (of.rare, of.rare)),
        lambda y, of: np.mean((y == of.rare) & (of.guess == of.rare)),
    ),
    "rate in a bin of probabilities": (
        lambda noisy, of: one_of(
            ldp.metrics.calibration_curve(noisy, of.p, n_bins=5, positive=of.rare).observed, 0
        ),
        lambda y, of: np.mean(y[of.score <= 0.2] == of.rare),
    ),
    "expected calibration error": (
        lambda noisy, of: (
            ldp.metrics.calibration_curve(noisy, of.p, n_bins=5, positive=of.rare).error
        ),
        lambda y, of: calibration_error(y == of.rare, of.score),
    ),
}
"""Metrics of labels; those of numbers are among the cells of numbers."""


def one_of(found: "ldp.metrics.Estimates", place: int | tuple[int, int]) -> "ldp.metrics.Estimate":
    return ldp.metrics.Estimate(
        *(float(part[place]) for part in (found.value, found.low, found.high))
    )


def brier(y: Array, p: Array) -> float:
    """The mean square of all classes' errors; for two classes half of it, as scikit-learn counts
    it."""
    return float(
        ((p - np.eye(p.shape[1])[y]) ** 2).sum(axis=1).mean() * (0.5 if p.shape[1] == 2 else 1.0)
    )


def calibration_error(yes: Array, score: Array) -> float:
    """The expected calibration error in five bins of equal width."""
    place = np.searchsorted(np.linspace(0, 1, 6)[1:-1], score, side="left")
    return float(np.abs(np.bincount(place, yes - score)).sum() / len(yes))


def binary_rows(n: int, rng: np.random.Generator) -> tuple[Array, Judged]:
    """Labels of which 10 % are of the second class, and a model that knows the probabilities up to
    a factor."""
    p = rng.beta(0.5, 4.5, size=n)
    guessed = np.clip(1.3 * p, 0.01, 0.99)
    return (rng.random(n) < p).astype(int), Judged(
        np.column_stack([1 - guessed, guessed]), (guessed > 0.25).astype(int), 1, 0.1
    )


def multiclass_rows(n: int, rng: np.random.Generator) -> tuple[Array, Judged]:
    """Labels of four classes, the last one of about 10 %, and a model that is too sure of
    itself."""
    scores = rng.normal(size=(n, 4)) + np.log(SHARES)
    labels = (rng.random(n)[:, None] > softmax(scores, axis=1).cumsum(axis=1)[:, :-1]).sum(axis=1)
    p = softmax(1.3 * scores, axis=1)
    return labels, Judged(
        p, np.where(p[:, 3] > 0.25, 3, p[:, :3].argmax(axis=1)), 3, float(np.mean(labels == 3))
    )


def metric_cells(releases: int) -> Iterator[Run]:
    """Cells of metrics of a class of 10 %, one of two classes, and by the laws that are another
    with four, one of four: 1,500 rows."""
    n = 1500
    for k, what, rows_of in ((2, "", binary_rows), (4, ", four classes", multiclass_rows)):
        y, judged = rows_of(releases * n, np.random.default_rng(6))
        truth = {name: float(true(y, judged)) for name, (_, true) in METRICS.items()}
        for name, law in laws(k).items():
            if k > 2 and name in laws(2):
                continue
            noisy = released(y, law, 7, k, any_prior(len(y), k, 14) if name in READ_PRIOR else None)

            def covered(
                i: int,
                noisy: ldp.NoisyLabels = noisy,
                judged: Judged = judged,
                what: str = what,
                truth: Run = truth,
            ) -> Covered:
                rows = slice(i * n, (i + 1) * n)
                mine = noisy[rows], judged.of(rows)
                return {
                    each + what: inside(partial(found, *mine), truth[each])
                    for each, (found, _) in METRICS.items()
                }

            yield from counted(name, (covered(i) for i in range(releases)))


# Counts
# --------------------------------------------------------------------------------------------------

WIDER = (
    "quantile",
    "shares together",
    "mean of a number",
    "mean squared error",
    "root mean squared error",
    "R^2",
    *METRICS,
)


def may_cover_more(interval: str, law: str) -> bool:
    """Whether an interval is one of WIDER, or counts a scale that `laplace` hides; these may cover
    more than they say."""
    return (law == "laplace" and interval.startswith("linear")) or interval.split(", eps")[
        0
    ].removesuffix(", four classes") in WIDER


def counted(law: str, covered: Iterator[Covered]) -> Iterator[Run]:
    """Count the releases in which each interval covers; one without a value is the whole range, and
    covers."""
    hits: dict[str, list[bool | None]] = {}
    for each in covered:
        for name, hit in each.items():
            hits.setdefault(name, []).append(hit)
    for name, found in hits.items():
        cell = {
            "law": law,
            "interval": name,
            "releases": len(found),
            "covered": sum(hit is not False for hit in found),
        }
        yield cell | ({"without": found.count(None)} if None in found else {})


def defined(cell: Run) -> bool:
    """Whether the law has the figure: some release had a value."""
    return bool(cell.get("without", 0) < cell["releases"])


def distance(cell: Run) -> float:
    """The distance of a cell's share from 95 %, in binomial standard errors."""
    n = cell["releases"]
    return float((cell["covered"] / n - LEVEL) / np.sqrt(LEVEL * (1 - LEVEL) / n))


PARTS: dict[str, Callable[[int], Iterator[Run]]] = {
    "figures": figure_cells,
    "columns": column_cells,
    "numbers": number_cells,
    "effects": effect_cells,
    "regressions": lambda releases: chain.from_iterable(
        regression_cells(releases, model) for model in MODELS
    ),
    "metrics": metric_cells,
}


def measure(releases: int, parts: Sequence[str]) -> Run:
    """Count every cell of these parts."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cells = [{"part": part} | cell for part in parts for cell in PARTS[part](releases)]
    return {"cells": cells, "seconds": round(time.process_time() - start, 1), "machine": machine()}


def merged(kept: Run, new: Run) -> Run:
    """A kept result with the parts of a new one in the place of its own, and each machine that
    counted."""
    counted = {cell["part"] for cell in new["cells"]}
    others = [cell for cell in kept["cells"] if cell["part"] not in counted]
    return new | {
        "cells": others + new["cells"],
        "earlier": [*kept.get("earlier", []), kept["machine"]] if others else [],
    }


def tables() -> str:
    """Coverage in percent of each interval with each law, from the kept result."""
    return markdown(load_json(RESULT)["cells"])


def markdown(cells: Sequence[Run]) -> str:
    """A table a part: a row for each interval, a column for each law, and the farthest cell in
    binomial standard errors."""
    found = {part: [cell for cell in cells if cell["part"] == part] for part in PARTS}
    return "\n\n".join(_of_part(mine) for mine in found.values() if mine)


def _of_part(cells: Sequence[Run]) -> str:
    names, columns = (
        list(dict.fromkeys(cell[field] for cell in cells)) for field in ("interval", "law")
    )
    lines = [
        "| interval | " + " | ".join(columns) + " | farthest, standard errors |",
        "|" + "---|" * (len(columns) + 2),
    ]
    for name in names:
        mine = {cell["law"]: cell for cell in cells if cell["interval"] == name}
        shown = [_share(mine[law]) if law in mine else "" for law in columns]
        far = max((distance(cell) for cell in mine.values() if defined(cell)), key=abs, default=0.0)
        lines.append(f"| {name} | {' | '.join(shown)} | {far:+.1f} |")
    return "\n".join(lines)


def _share(cell: Run) -> str:
    return f"{100 * cell['covered'] / cell['releases']:.1f}" if defined(cell) else "none"


def main(arguments: Sequence[str]) -> None:
    """Count, keep and print."""
    options = parser("intervals", __doc__)
    options.add_argument("--releases", type=int, default=RELEASES)
    options.add_argument("--parts", default=",".join(PARTS))
    options.add_argument(
        "--report", action="store_true", help="only print the table of the kept result"
    )
    args = options.parse_args(arguments)
    if args.report:
        print(tables())
        return
    result = measure(args.releases, args.parts.split(","))
    result = merged(load_json(RESULT), result) if RESULT.exists() else result
    print_result({"seconds": result["seconds"]})
    print(markdown(result["cells"]))
    save_json(RESULT, result)
