# SPDX-License-Identifier: Apache-2.0
"""One event in a hundred, 10,000 campaigns, several rows a person: how well do models rank under
privacy?

    python -m benchmarks campaigns [--seeds 3] [--report]

Each run makes 300,000 rows of some 120,000 persons, and fits with one budget for each person: all
methods see the noisy label of one row a person (`max_rows_per_unit=1`), but "no privacy", which
sees all true labels. Scored on 100,000 rows of other persons by their true probabilities (expected
ROC-AUC, average precision and log-loss), so that test labels add no noise.

Three learners:

* boosting: LightGBM with categories, 8 leaves, learning rate 0.05 and large groups of categories,
  which did better than its own settings without privacy. Ours: `LabelDPClassifier`, the exact
  likelihood;
* regression: logistic regression on 65,536 hashed features, C chosen on held-out (noisy) rows.
  Ours: `LabelDPClassifier`;
* counts: the same regression, by `ProportionClassifier`, from private counts of clusters of rows.

"RR" is hard randomized response: the same learner trained on the same noisy labels as if they were
true. Its figures are those of the best of its variants in each cell by that true figure: as it is;
with balanced class weights; boosting also ended by noisy held-out rows. For its log-loss the law is
undone on its probabilities, clipped to 0.001..0.999: as they are they would be near one half. Two
classes make this monotone, so that ranks stay.

The population: each row has a campaign (10,000 levels of Zipf frequencies, in 40 public
categories), a site (1,000), a price and an hour; each person a region (50), an age, a number of
earlier visits, and a trait that nobody sees. The logit adds normal effects of category (0.6),
campaign (0.5), site (0.5), region (0.2) and trait (0.5), slopes of visits and price, a peak of the
evening and an interaction of age and category. Kept run by run in results/campaigns.json.gz; labels
are made, the noise is seeded, differences are paired over seeds.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import labeldp as ldp
from benchmarks.common import RESULTS, Array, Run, load_runs, parser, run_missing

RESULT = RESULTS / "campaigns.json.gz"
RATE, ROWS, TEST_ROWS = 0.01, 300_000, 100_000
EPSILONS, SEEDS = (0.5, 1.0, 2.0, 4.0), 3
CAMPAIGNS, SITES, REGIONS, CATEGORIES = 10_000, 1_000, 50, 40
TEXT, NUMBERS = ["campaign", "site", "region", "category"], ["age", "visits", "price", "evening"]
SCALES = (0.5, 0.5, 0.2, 0.6)  # of the normal effects of the columns of TEXT
HASHED = 2**16
FLOOR = 1e-3
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
Proba = Callable[[Any], Array]


@dataclass(frozen=True)
class Rows:
    """Rows of persons: public columns, the person, the event's probability, and whether it
    happened."""

    X: pd.DataFrame
    person: Array
    p: Array
    y: Array

    def part(self, rows: Array) -> "Rows":
        return Rows(
            self.X.iloc[rows].reset_index(drop=True), self.person[rows], self.p[rows], self.y[rows]
        )


@lru_cache(maxsize=1)
def population(seed: int) -> tuple[Rows, Rows]:
    """Rows to learn from, and rows of other persons to test on."""
    rng, n = np.random.default_rng(4000 + seed), ROWS + TEST_ROWS
    person = np.repeat(np.arange(n), 1 + rng.poisson(1.5, n))[:n]
    region, age, visits = (
        rng.integers(REGIONS, size=n),
        rng.uniform(18, 80, n).round(),
        rng.geometric(0.3, n),
    )
    campaign, site = (rng.choice(k, p=zipf(k), size=n) for k in (CAMPAIGNS, SITES))
    category = rng.integers(CATEGORIES, size=CAMPAIGNS)[campaign]
    price, hour = np.exp(rng.normal(3, 0.7, n)).round(2), rng.integers(24, size=n)
    levels = dict(
        zip(
            TEXT,
            (
                (campaign, CAMPAIGNS),
                (site, SITES),
                (region[person], REGIONS),
                (category, CATEGORIES),
            ),
            strict=True,
        )
    )
    X = pd.DataFrame({name: pd.Categorical(codes, range(k)) for name, (codes, k) in levels.items()})
    X = X.assign(age=age[person], visits=visits[person], price=price, evening=np.abs(hour - 20.0))
    logit = sum(
        rng.normal(scale=s, size=k)[codes]
        for s, (codes, k) in zip(SCALES, levels.values(), strict=True)
    )
    logit += (
        rng.normal(scale=0.5, size=n)[person]
        + 0.8 * np.log(X["visits"].to_numpy())
        - 0.5 * (np.log(price) - 3)
    )
    logit += 0.4 * (X["evening"].to_numpy() < 4) + 0.02 * (X["age"].to_numpy() - 45) * np.where(
        category % 2, 1, -1
    )
    p = expit(logit + brentq(lambda shift: expit(logit + shift).mean() - RATE, -20, 20))
    whole = Rows(X, person, p, (rng.random(n) < p).astype(int))
    return whole.part(np.flatnonzero(person < person[ROWS])), whole.part(
        np.flatnonzero(person > person[ROWS])
    )


def zipf(k: int) -> Array:
    weights = 1 / np.arange(5, k + 5)
    return np.asarray(weights / weights.sum())


# Learners
# --------------------------------------------------------------------------------------------------


def boosting(**settings: Any) -> Any:
    from lightgbm import LGBMClassifier

    chosen = {
        "num_leaves": 8,
        "learning_rate": 0.05,
        "min_data_per_group": 500,
        "min_child_samples": 200,
    }
    return LGBMClassifier(n_jobs=1, verbose=-1, random_state=0, **chosen | settings)


def words(X: pd.DataFrame) -> list[tuple[str, ...]]:
    return list(
        zip(*([f"{name}={value}" for value in X[name].to_numpy()] for name in X), strict=True)
    )


def hashing() -> Pipeline:
    """Categories hashed to one column each, numbers (and the logarithm of the number of visits)
    scaled."""
    hashed = make_pipeline(
        FunctionTransformer(words), FeatureHasher(HASHED, input_type="string", alternate_sign=False)
    )
    numbers = make_pipeline(FunctionTransformer(np.log1p), StandardScaler())
    return make_pipeline(
        ColumnTransformer([("hashed", hashed, TEXT), ("numbers", numbers, NUMBERS)])
    )


def regression(C: float = 1.0, **settings: Any) -> Pipeline:
    return make_pipeline(hashing(), LogisticRegression(C=C, max_iter=100, **settings))


def embedding() -> ColumnTransformer:
    """Where rows are near each other: public categories and numbers."""
    numbers = make_pipeline(FunctionTransformer(np.log1p), StandardScaler())
    return ColumnTransformer(
        [("category", OneHotEncoder(), ["category"]), ("numbers", numbers, NUMBERS)]
    )


def tuned(X: Any, y: Array) -> LogisticRegression:
    """Logistic regression on features, C chosen by the log-loss of every tenth row."""
    held = np.arange(len(y)) % 10 == 0
    best = min(
        PENALTIES,
        key=lambda C: log_loss(
            y[held],
            LogisticRegression(C=C, max_iter=100).fit(X[~held], y[~held]).predict_proba(X[held]),
        ),
    )
    return LogisticRegression(C=best, max_iter=100).fit(X, y)


def no_privacy(train: Rows, X_test: Any) -> Iterator[tuple[str, Array]]:
    """Both learners on all true labels."""
    yield "boosting", boosting().fit(train.X, train.y).predict_proba(X_test)[:, 1]
    head = hashing().fit(train.X)
    yield (
        "regression",
        tuned(head.transform(train.X), train.y).predict_proba(head.transform(X_test))[:, 1],
    )


def hard(X: Any, y: Array, X_test: Any) -> Iterator[tuple[str, str, Array]]:
    """Learner, variant and probabilities of models that take noisy labels for true ones."""
    yield "boosting", "as it is", boosting().fit(X, y).predict_proba(X_test)[:, 1]
    yield (
        "boosting",
        "balanced",
        boosting(class_weight="balanced").fit(X, y).predict_proba(X_test)[:, 1],
    )
    held = np.arange(len(y)) % 10 == 0
    early = boosting(n_estimators=300, early_stopping_round=10)
    early.fit(X[~held], y[~held], eval_X=X[held], eval_y=y[held])
    yield "boosting", "early stopping", early.predict_proba(X_test)[:, 1]
    head = hashing().fit(X)
    features, test = head.transform(X), head.transform(X_test)
    chosen = tuned(features, y)
    yield "regression", "as it is", chosen.predict_proba(test)[:, 1]
    yield (
        "regression",
        "balanced",
        chosen.set_params(class_weight="balanced").fit(features, y).predict_proba(test)[:, 1],
    )


def labels_of(train: Rows, seed: int) -> ldp.PrivateLabels:
    """The labels, at most one of each person."""
    noise = ldp.SeededNoise(seed)
    return ldp.PrivateLabels(train.y, classes=[0, 1], unit=train.person, noise=noise)


def ours(
    train: Rows, noisy: ldp.NoisyLabels, run: Run, X_test: Any
) -> Iterator[tuple[str, Array, float]]:
    """Learner, probabilities and seconds of labeldp's."""
    seed = run["seed"]
    for name, made in (("boosting", boosting), ("regression", regression)):
        start = time.process_time()
        model = ldp.LabelDPClassifier(made(), random_state=seed).fit(train.X, noisy)
        yield name, model.predict_proba(X_test)[:, 1], time.process_time() - start
    start = time.process_time()
    counts = ldp.learn.ProportionClassifier(
        regression(), epsilon=run["epsilon"], embedder=embedding(), random_state=seed
    )
    counts.fit(train.X, labels_of(train, seed))
    yield "counts", counts.predict_proba(X_test)[:, 1], time.process_time() - start


def measure(run: Run) -> Run:
    """All methods on the same rows with the same noisy labels."""
    warnings.simplefilter("ignore")
    train, test = population(run["seed"])
    if run["epsilon"] is None:
        return run | {
            "scores": {
                f"{name}, no privacy": figures(p, test.p) for name, p in no_privacy(train, test.X)
            }
        }
    law = ldp.RandomizedResponse(2, run["epsilon"])
    noisy = ldp.privatize(labels_of(train, run["seed"]), law)
    scores, seconds = {}, {}
    for name, p, spent in ours(train, noisy, run, test.X):
        scores[f"{name}, labeldp"], seconds[name] = figures(p, test.p), round(spent, 1)
    kept = np.flatnonzero(noisy.evidenced)
    own, other = law.matrix()[0]
    for name, variant, p in hard(train.X.iloc[kept], noisy[kept].hard_codes(), test.X):
        scores[f"{name}, RR, {variant}"] = figures(
            np.clip((p - other) / (own - other), FLOOR, 1 - FLOOR), test.p, p
        )
    rate = ldp.metrics.class_frequencies(noisy[kept]).value[1]
    scores["constant"] = figures(np.full(len(test.p), np.clip(rate, FLOOR, 1 - FLOOR)), test.p)
    return run | {"scores": scores, "seconds": seconds}


def figures(p: Array, truth: Array, ranks: Array | None = None) -> dict[str, float]:
    """Expected figures on rows of known probability: each row counts as an event with its
    probability, and as none with the rest."""
    scores, labels = np.tile(p if ranks is None else ranks, 2), np.repeat([1, 0], len(p))
    weights = np.concatenate([truth, 1 - truth])
    loss = -(
        truth * np.log(np.maximum(p, 1e-15)) + (1 - truth) * np.log(np.maximum(1 - p, 1e-15))
    ).mean()
    return {
        "roc_auc": float(roc_auc_score(labels, scores, sample_weight=weights)),
        "average_precision": float(average_precision_score(labels, scores, sample_weight=weights)),
        "log_loss": float(loss),
        "mean": float(p.mean()),
    }


# Runs and tables
# --------------------------------------------------------------------------------------------------

METHODS = {  # column: its variants, of which the best in the cell counts
    "boosting, RR": (
        "boosting, RR, as it is",
        "boosting, RR, balanced",
        "boosting, RR, early stopping",
    ),
    "boosting, labeldp": ("boosting, labeldp",),
    "regression, RR": ("regression, RR, as it is", "regression, RR, balanced"),
    "regression, labeldp": ("regression, labeldp",),
    "counts, labeldp": ("counts, labeldp",),
    "constant": ("constant",),
}
FIGURES = {
    "ROC-AUC": ("roc_auc", 3),
    "average precision, %": ("average_precision", 2),
    "log-loss": ("log_loss", 4),
}


def wanted(seeds: int) -> Iterator[Run]:
    """List all runs; epsilon None is no privacy."""
    for seed in range(seeds):
        for epsilon in (None, *EPSILONS):
            yield {"epsilon": epsilon, "seed": seed}


def column(runs: Sequence[Run], method: str, figure: str) -> Array:
    """A method's figure in each run of a cell; of its variants the best in this cell."""
    better = min if figure == "log_loss" else max
    means = {
        name: np.mean([run["scores"][name][figure] for run in runs]) for name in METHODS[method]
    }
    return np.array(
        [run["scores"][better(means, key=lambda name: float(means[name]))][figure] for run in runs]
    )


def markdown(runs: Sequence[Run]) -> str:
    """A row for each figure and epsilon: mean and standard deviation over the seeds."""
    bound = [run for run in runs if run["epsilon"] is None]
    private = ("boosting, no privacy", "regression, no privacy")
    lines = [
        f"| figure | eps | {' | '.join((*METHODS, *private))} |",
        "|" + "---|" * (len(METHODS) + 4),
    ]
    for title, (figure, digits) in FIGURES.items():
        factor = 100 if title.endswith("%") else 1
        limits = [
            np.mean([run["scores"][name][figure] for run in bound]) * factor for name in private
        ]
        for epsilon in EPSILONS:
            group = [run for run in runs if run["epsilon"] == epsilon]
            found = [column(group, method, figure) * factor for method in METHODS]
            shown = [f"{each.mean():.{digits}f} ± {each.std(ddof=1):.{digits}f}" for each in found]
            shown += [f"{limit:.{digits}f}" for limit in limits]
            lines.append(f"| {title} | {epsilon:g} | {' | '.join(shown)} |")
    return "\n".join(lines)


def tables() -> str:
    """The table of the kept runs."""
    return markdown(load_runs(RESULT))


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, and print."""
    options = parser("campaigns", __doc__)
    options.add_argument("--seeds", type=int, default=SEEDS)
    options.add_argument(
        "--report", action="store_true", help="only print the table of the kept runs"
    )
    args = options.parse_args(arguments)
    if not args.report:
        run_missing(RESULT, wanted(args.seeds), lambda run: (run["epsilon"], run["seed"]), measure)
    print(tables())
