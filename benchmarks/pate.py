# SPDX-License-Identifier: Apache-2.0
"""Do teachers that vote beat counts of clusters and the likelihood of noisy labels at the same
epsilon and delta?

    python -m benchmarks pate [--data mnist,adult] [--seeds 3] [--report]

All methods get the same features and the same learner, logistic regression: of MNIST gradient
histograms, of Adult its encoded columns, both in 60 principal components of the training rows.
delta is 1e-5, but for `likelihood`, which is pure. The rule of `PATEClassifier` for its numbers was
chosen on the labels of both, in its favour. "self-training" gives the student the rows without an
answer, too. Results are kept run by run in results/pate.json.gz; labels are public, the noise is
seeded.
"""

import time
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.semi_supervised import SelfTrainingClassifier

import labeldp as ldp
from benchmarks.common import (
    RESULTS,
    Array,
    Run,
    load_runs,
    parser,
    parts,
    run_missing,
    worth,
)
from benchmarks.small_epsilon.methods import embedder_for, features
from labeldp.learn import ProportionClassifier
from labeldp.papers.malek2021 import ConfidentGNMax, PATEClassifier

RESULT = RESULTS / "pate.json.gz"
DATA, EPSILONS, SEEDS, DELTA = ("mnist", "adult"), (0.5, 1.0, 2.0), 3, 1e-5
TEACHERS, SELF_TRAINED, COUNTS, LIKELIHOOD, PUBLIC = (
    "PATE",
    "PATE, self-training",
    "counts",
    "likelihood",
    "no privacy",
)
METHODS = (TEACHERS, SELF_TRAINED, COUNTS, LIKELIHOOD, PUBLIC)
ASKED = (TEACHERS, COUNTS, LIKELIHOOD, PUBLIC)  # self-training learns from the same answers
COMPONENTS = 60


@cache
def embedded(name: str) -> tuple[Array, Array]:
    """(train, test) features, found without labels."""
    X, X_test = features(name, "gradients" if name == "mnist" else "plain")
    if name == "adult":
        encoder = embedder_for(name).fit(X)
        X, X_test = encoder.transform(X), encoder.transform(X_test)
    pca = PCA(COMPONENTS, random_state=0).fit(X)
    return pca.transform(X), pca.transform(X_test)


def learner(strength: float = 1.0) -> LogisticRegression:
    """The learner of all methods; with few rows, as a teacher has, a weaker penalty is better."""
    return LogisticRegression(C=strength, max_iter=200)


def model_of(method: str, epsilon: float, seed: int) -> Any:
    """Make the model of a method, to be fitted on raw labels."""
    shared: dict[str, Any] = {"epsilon": epsilon, "random_state": seed}
    if method == TEACHERS:
        return PATEClassifier(learner(10.0), delta=DELTA, **shared)
    if method == COUNTS:
        return ProportionClassifier(delta=DELTA, algorithm="mini-batch", **shared)
    return ldp.LabelDPClassifier(learner(), **shared) if method == LIKELIHOOD else learner()


def wanted(seeds: int) -> Iterator[Run]:
    """List all runs."""
    for seed in range(seeds):
        for name in DATA:
            for epsilon in EPSILONS:
                for method in ASKED:
                    if method != PUBLIC or (epsilon, seed) == (EPSILONS[0], 0):
                        yield {"data": name, "method": method, "epsilon": epsilon, "seed": seed}


def key(run: Run) -> tuple[Any, ...]:
    """Return a run's identity."""
    return run["data"], run["method"], run["epsilon"], run["seed"]


def measure(run: Run) -> Run:
    """Run one method."""
    warnings.simplefilter("ignore")
    found, (X, X_test) = parts(run["data"]), embedded(run["data"])
    model = model_of(run["method"], run["epsilon"], run["seed"])
    labels: Any = found.y
    if run["method"] != PUBLIC:
        noise = ldp.SeededNoise(run["seed"])
        labels = ldp.PrivateLabels(found.y, classes=range(found.dataset.n_classes), noise=noise)
    start = time.perf_counter()
    model.fit(X, labels)
    seconds = time.perf_counter() - start
    facts: dict[str, Any] = {
        "accuracy": float(np.mean(model.predict(X_test) == found.y_test)),
        "seconds": round(seconds, 2),
    }
    if isinstance(model, PATEClassifier):
        answer, query = model.aggregate_, model.aggregate_.query
        assert isinstance(query, ConfidentGNMax)
        right = answer.codes()[answer.answered] == found.y[model.queries_[answer.answered]]
        facts |= {
            "teachers": query.n_teachers,
            "queries": query.n_queries,
            "answers": int(answer.answered.sum()),
        }
        facts |= {
            "right_answers": float(right.mean()),
            "self_trained": self_trained(model, X, X_test, found.y_test),
        }
    return run | facts


def self_trained(model: PATEClassifier, X: Array, X_test: Array, y_test: Array) -> float:
    """Train another student on the same answers, and the rows without one; post-processing."""
    answered = model.aggregate_.answered
    every = np.full(len(X), -1)
    every[model.queries_[answered]] = model.aggregate_.codes()[answered]
    student = SelfTrainingClassifier(learner(10.0), threshold=0.9).fit(X, every)
    return float(np.mean(student.predict(X_test) == y_test))


def markdown(runs: Sequence[Run]) -> str:
    """Write the table: mean accuracies with their standard errors, and what the teachers
    answered."""
    heads = ["data", "eps", "label equivalents", "teachers", "answers", "right answers", *METHODS]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name in DATA:
        for epsilon in EPSILONS:
            group = {
                method: [r for r in runs if r["data"] == name and r["method"] == method]
                for method in ASKED
            }
            group = {
                method: [r for r in of if method == PUBLIC or r["epsilon"] == epsilon]
                for method, of in group.items()
            }
            group[SELF_TRAINED] = [r | {"accuracy": r["self_trained"]} for r in group[TEACHERS]]
            if not all(group.values()):
                continue
            asked = group[TEACHERS]
            numbers = (
                f"{asked[0]['teachers']} | {np.mean([r['answers'] for r in asked]):.0f} of"
                f" {asked[0]['queries']}"
            )
            right = f"{100 * np.mean([r['right_answers'] for r in asked]):.1f} %"
            cells = [
                name,
                f"{epsilon:g}",
                worth(name, epsilon),
                numbers,
                right,
                *(_accuracy(group[m]) for m in METHODS),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _accuracy(runs: Sequence[Run]) -> str:
    values = 100 * np.array([run["accuracy"] for run in runs])
    return f"{values.mean():.1f}" + (
        f" ± {values.std(ddof=1) / np.sqrt(len(values)):.1f}" if len(values) > 1 else ""
    )


def tables() -> str:
    """Write the table of the kept runs."""
    return markdown(load_runs(RESULT))


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, and print the table."""
    options = parser("pate", __doc__)
    options.add_argument("--data", default=",".join(DATA))
    options.add_argument("--seeds", type=int, default=SEEDS)
    options.add_argument("--report", action="store_true", help="only print the table")
    args = options.parse_args(arguments)
    if not args.report:
        asked = [run for run in wanted(args.seeds) if run["data"] in args.data.split(",")]
        run_missing(RESULT, asked, key, measure)
    print(tables())
