# SPDX-License-Identifier: Apache-2.0
"""Accuracy at small epsilon: clusters of public features against randomized response and the best
published numbers.

    python -m benchmarks small-epsilon [--table main,figure,beta,histogram,clusters] [--data
    mnist,fashion_mnist,adult,digits,cifar10]
        [--epsilon 0.05,0.1,0.5,1] [--method "NoiseCluster;ClusterRR"] [--seeds 3] [--jobs 1]
        [--rows N] [--report]

Every cell that finished is kept in results/small-epsilon.json.gz with its conditions and not
repeated, so the command can be stopped and started again; one that failed is kept with its error
until it is tried again, one that was cut off is not. Labels are public here, so the noise is
seeded, paired over seeds. `--rows` takes the first N training rows, for a trial: such cells are
kept apart.

All of ours is pure label-DP. Published numbers are (epsilon, delta) where it says so. Five choices
were made by looking at true labels: of the first 10,000 MNIST and Fashion-MNIST training rows and
2,000 test rows, the factor 3 in the rule for the number of clusters
(labeldp.learn._clusters.clusters_for), gradient histograms as features, and learning that starts
from the histograms; on digits, that noisy histograms are projected to the clusters' public sizes;
on the test rows of Fashion-MNIST and Adult, with other noise, that counts are taken by their normal
likelihood instead of rounds of posteriors, and the default penalty of ProportionClassifier, which
Adult has.
"""

import time
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

import labeldp as ldp
from benchmarks.common import Run, parser, parts, run_missing
from benchmarks.small_epsilon import tables as smaller
from benchmarks.small_epsilon.features import KINDS, RECIPES
from benchmarks.small_epsilon.methods import (
    DP_SGD,
    METHODS,
    PLAIN,
    SUMS,
    classifier,
    facts_of,
    features,
    kind_of,
)
from benchmarks.small_epsilon.report import RESULT, key, tables

EPSILONS = (0.05, 0.1, 0.5, 1.0)
DATA = ("digits", "adult", "mnist", "fashion_mnist", "cifar10")


def main_cell(run: Run) -> Run:
    """One method on one data set: accuracy on true test labels."""
    rows = run.get("rows")
    X, X_test = features(run["data"], kind_of(run["data"], run["method"]), rows)
    _, y, _, y_test, dataset = parts(run["data"], rows)
    labels: Any = y
    model = classifier(run["data"], run["method"], run["epsilon"], run["seed"])
    start = time.perf_counter()
    if run["method"] not in PLAIN:
        noise = ldp.SeededNoise(run["seed"])
        labels = ldp.PrivateLabels(y, classes=range(dataset.n_classes), noise=noise)
    model.fit(X, labels)
    found: Run = {
        "accuracy": float(np.mean(model.predict(X_test) == y_test)),
        "fit_seconds": round(time.perf_counter() - start, 2),
    }
    answer = getattr(model, "aggregate_", None) or getattr(
        getattr(model, "prior_", None), "answer", None
    )
    if answer is not None:
        found |= {"clusters": answer.n_groups, "aggregate_epsilon": answer.receipt.epsilon}
    return found | facts_of(run["data"], kind_of(run["data"], run["method"]), rows)


def measure(run: Run) -> Run:
    """One cell, with what was measured and how long it took."""
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    found = {"main": main_cell, **smaller.TABLES}[run["table"]](run)
    return run | found | {"seconds": round(time.perf_counter() - start, 2)}


def wanted(
    table: str,
    names: Sequence[str],
    epsilons: Sequence[float],
    seeds: int,
    rows: int | None,
    methods: Sequence[str] = METHODS,
) -> list[Run]:
    """The cells that are asked for."""
    if table != "main":
        cells = smaller.wanted(table, names, seeds)
    else:
        cells = [
            {"table": "main", "data": name, "method": method, "epsilon": epsilon, "seed": seed}
            for name in names
            if name != "cifar10"
            for method in methods
            for epsilon in epsilons
            for seed in range(seeds)
            if method != "non-private" or (epsilon == epsilons[0] and seed == 0)
            if name in RECIPES or not any(word in method for word in ONLY_IMAGES)
        ]
    return [cell | ({} if rows is None else {"rows": rows}) for cell in cells]


ONLY_IMAGES = ("PCA", "self-supervised", "SCAN", SUMS, DP_SGD)
"""Names of methods that are about images have one of these in them."""


def lacking(cell: Run) -> str:
    """Name the packages that a cell needs and that are not installed; empty if none."""
    kind = cell.get("features") or kind_of(cell["data"], cell.get("method", ""))
    needs = {"opacus"} if cell.get("method") == DP_SGD else {"torch"} if kind in KINDS else set()
    return "".join(name for name in needs if find_spec(name) is None)


def able(cells: Sequence[Run]) -> list[Run]:
    """The cells whose packages are installed; the others' are named."""
    if left := {name for cell in cells if (name := lacking(cell))}:
        print(f"Cells are left out: pip install {' '.join(sorted(left))}")
    return [cell for cell in cells if not lacking(cell)]


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, and print."""
    options = parser("small-epsilon", __doc__)
    options.add_argument("--table", default="main," + ",".join(smaller.TABLES))
    options.add_argument("--data", default=",".join(DATA))
    options.add_argument("--epsilon", default=",".join(map(str, EPSILONS)))
    options.add_argument(
        "--method", default=";".join(METHODS), help="of the main table, separated by semicolons"
    )
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument(
        "--rows", type=int, default=None, help="only the first rows of each training set"
    )
    options.add_argument("--report", action="store_true", help="only print the tables")
    args = options.parse_args(arguments)
    epsilons, methods = tuple(float(e) for e in args.epsilon.split(",")), args.method.split(";")
    names, chosen = args.data.split(","), args.table.split(",")
    known: dict[str, tuple[Sequence[str], Sequence[str]]] = {
        "method": (methods, METHODS),
        "data": (names, DATA),
        "table": (chosen, ("main", *smaller.TABLES)),
    }
    for what, (given, there) in known.items():
        if unknown := set(given) - set(there):
            options.error(f"no {what} {', '.join(sorted(unknown))}; there are {'; '.join(there)}")
    if not args.report:
        for table in chosen:
            asked = wanted(table, names, epsilons, args.seeds, args.rows, methods)
            run_missing(RESULT, able(asked), key, measure, args.jobs)
    print(tables(args.rows))
