# SPDX-License-Identifier: Apache-2.0
"""Are LabelDPClassifier's defaults a good choice? Judged without one true label: `python -m
benchmarks defaults [--stages] [--report]`.

Each run learns from four fifths of some training rows and is scored on the noisy labels of the
rest, which it never saw: the mean log-evidence (larger is better) and the unbiased accuracy. Every
setting differs from the defaults in one thing. Trees are trained by expectation-maximisation
throughout, the default of few rows and of most estimators. MNIST and the KMNIST test images had no
part in setting the defaults. Test parts are not touched. Results are kept in
results/defaults.json.gz, run by run.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import labeldp as ldp
from benchmarks import data as datasets
from benchmarks.common import (
    RESULTS,
    Array,
    Run,
    equivalents,
    load_json,
    load_runs,
    machine,
    parser,
    save_json,
    save_runs,
    scaled,
)
from benchmarks.tabular import linear, pixels, trees
from labeldp.learn import LearnOptions

RESULT = RESULTS / "defaults.json.gz"
DATA: dict[str, Callable[[datasets.DataSet], Any]] = {
    "digits": linear,
    "mnist": pixels,
    "kmnist": pixels,
    "adult": trees,
    "credit_default": trees,
}
ROWS = 10_000  # at most, so that a run takes seconds; four fifths of them are learned from
LEARNED = {"digits": 1437}  # rows of those that have fewer
EM: dict[str, Any] = {"correction": "em"}  # of trees
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "two stages": {"stages": 2},
    "three stages": {"stages": 3},
    "law rr": {"law": "rr"},
    "law subset": {"law": "subset"},
    "correction em": {"correction": "em"},
    "no EM round": {"correction": "debias", "law": "subset"},
    "one EM round": {"options": LearnOptions(em_rounds=1)},
    "validation 0.2": {"validation_fraction": 0.2},
    "no refit": {"options": LearnOptions(refit=False)},
}
# A setting that cannot differ from the defaults is not run: two classes have one law and one stage,
# linear models no EM rounds.
SAME = {
    "trees": {"two stages", "three stages", "law rr", "law subset", "correction em"},
    "linear": {"one EM round"},
}


# Stages: where there are more than two classes, since with two one stage is used. Trees are the
# classifier's own.
STAGES_RESULT = RESULTS / "stages.json.gz"
STAGES_DATA = {
    "digits": ("softmax", "trees"),
    "mnist": ("softmax",),
    "fashion_mnist": ("softmax", "trees"),
    "kmnist": ("softmax",),
}
STAGES_ROWS = {"softmax": ROWS, "trees": 3750}
STAGES_EPSILONS = {"softmax": (0.5, 1.0, 2.0, 4.0), "trees": (1.0, 2.0)}
STAGES = (1, 2, 3)


loaded = cache(datasets.load)


def staged_estimator(dataset: datasets.DataSet, learner: str) -> Any:
    """None is the default, boosting."""
    if learner == "softmax":
        return linear(dataset) if dataset.name == "digits" else pixels(dataset)
    return None


def rows_of(
    name: str, seed: int, rows: int = ROWS
) -> tuple[datasets.DataSet, tuple[Array, Array], tuple[Array, Array]]:
    """The data set, and (learned from, scored on): features and labels of training rows, in a
    random order of this seed."""
    dataset = loaded(name)
    X, y = (
        (dataset.X_train, dataset.y_train)
        if len(dataset.y_train)
        else (dataset.X_test, dataset.y_test)
    )
    chosen = np.random.default_rng(seed).permutation(len(y))[:rows]
    X, y = X[chosen], y[chosen]
    if X.ndim > 2:
        X = scaled(X)
    cut = len(y) * 4 // 5
    return dataset, (X[:cut], y[:cut]), (X[cut:], y[cut:])


def measure(name: str, setting: str, epsilon: float, seed: int) -> Run:
    """One run."""
    warnings.simplefilter("ignore")
    dataset, (X, y), (X_held, y_held) = rows_of(name, seed)
    k = dataset.n_classes
    held_out = ldp.privatize(
        ldp.PrivateLabels(y_held, classes=range(k), noise=ldp.SeededNoise(seed + 1000)),
        ldp.SubsetSelection(k, epsilon),
    )
    start = time.perf_counter()
    settings = (EM if DATA[name] is trees else {}) | SETTINGS[setting]
    model = ldp.LabelDPClassifier(
        DATA[name](dataset),
        epsilon=epsilon,
        random_state=seed,
        **settings,
    ).fit(X, ldp.PrivateLabels(y, classes=range(k), noise=ldp.SeededNoise(seed)))
    proba = model.predict_proba(X_held)
    return {
        "data": name,
        "setting": setting,
        "epsilon": epsilon,
        "seed": seed,
        "evidence": ldp.metrics.mean_log_evidence(held_out, proba),
        "accuracy": ldp.metrics.accuracy(held_out, proba.argmax(axis=1)).value,
        "seconds": round(time.perf_counter() - start, 2),
    }


def measure_stages(name: str, learner: str, epsilon: float, seed: int, n_stages: int) -> Run:
    """One run in so many stages; trees of pixels get 20 principal components, so that it takes
    seconds."""
    warnings.simplefilter("ignore")
    dataset, (X, y), (X_held, y_held) = rows_of(name, seed, STAGES_ROWS[learner])
    k = dataset.n_classes
    if learner == "trees" and X.shape[1] > 64:
        reduce = make_pipeline(PCA(20, random_state=0), StandardScaler()).fit(X)
        X, X_held = reduce.transform(X), reduce.transform(X_held)
    held_out = ldp.privatize(
        ldp.PrivateLabels(y_held, classes=range(k), noise=ldp.SeededNoise(seed + 1000)),
        ldp.SubsetSelection(k, epsilon),
    )
    start = time.process_time()
    model = ldp.LabelDPClassifier(
        staged_estimator(dataset, learner),
        epsilon=epsilon,
        stages=n_stages,
        random_state=seed,
        **(EM if learner == "trees" else {}),
    ).fit(X, ldp.PrivateLabels(y, classes=range(k), noise=ldp.SeededNoise(seed)))
    proba = model.predict_proba(X_held)
    return {
        "data": name,
        "learner": learner,
        "epsilon": epsilon,
        "seed": seed,
        "stages": n_stages,
        "rows": len(y),
        "evidence": ldp.metrics.mean_log_evidence(held_out, proba),
        "accuracy": ldp.metrics.accuracy(held_out, proba.argmax(axis=1)).value,
        "core_seconds": round(time.process_time() - start, 2),
    }


def wanted_stages(seeds: int) -> Iterator[tuple[str, str, float, int, int]]:
    """Softmax first: its runs take seconds."""
    for learner, epsilons in STAGES_EPSILONS.items():
        for seed in range(seeds if learner == "softmax" else min(seeds, 2)):
            for name, learners in STAGES_DATA.items():
                if learner in learners:
                    yield from (
                        (name, learner, epsilon, seed, n) for epsilon in epsilons for n in STAGES
                    )


def wanted(seeds: int) -> Iterator[tuple[str, str, float, int]]:
    """Data, setting, epsilon and seed of each run."""
    for seed in range(seeds):
        for name, make in DATA.items():
            same = SAME["trees" if make is trees else "linear"]
            yield from ((name, setting, 1.0, seed) for setting in SETTINGS if setting not in same)


def _worth(name: str, rows: int, epsilon: float) -> str:
    """The label equivalents of so many rows; tables have two classes, images ten."""
    return f"{equivalents(rows, 2 if DATA.get(name) is trees else 10, epsilon):,.0f}"


def report(runs: Sequence[Run]) -> str:
    """Differences from the defaults, paired over seeds: evidence in thousandths of a nat a row,
    accuracy in points."""
    found = {(r["data"], r["setting"], r["seed"]): r for r in runs}
    blocks = []
    for name in DATA:
        seeds = sorted(
            {seed for data, setting, seed in found if data == name and setting == "defaults"}
        )
        base = {seed: found[name, "defaults", seed] for seed in seeds}
        if not base:
            continue
        accuracy = 100 * np.mean([r["accuracy"] for r in base.values()])
        worth = _worth(name, LEARNED.get(name, ROWS * 4 // 5), base[seeds[0]]["epsilon"])
        lines = [
            (
                f"{name}: defaults, estimated accuracy {accuracy:.1f} %, {len(seeds)} seeds, label"
                f" equivalents {worth}"
            )
        ]
        for setting in list(SETTINGS)[1:]:
            pairs = [
                (found[name, setting, seed], base[seed])
                for seed in seeds
                if (name, setting, seed) in found
            ]
            if pairs:
                gain = np.array([1000 * (a["evidence"] - b["evidence"]) for a, b in pairs])
                points = np.array([100 * (a["accuracy"] - b["accuracy"]) for a, b in pairs])
                error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else np.nan
                lines.append(
                    f"  {setting:26} evidence {gain.mean():+7.2f} +- {error:5.2f}   estimated"
                    f" accuracy {points.mean():+6.2f}"
                )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def report_stages(runs: Sequence[Run]) -> str:
    """Gains over one stage, paired over seeds: evidence in thousandths of a nat a row, accuracy in
    points; and what they cost."""
    found = {(r["data"], r["learner"], r["epsilon"], r["seed"], r["stages"]): r for r in runs}
    lines = [
        (
            "| data, learner | eps | label equivalents | 1 stage: accuracy, core s | 2 stages:"
            " evidence, accuracy, core s | 3 stages | seeds |"
        ),
        "|---" * 7 + "|",
    ]
    for name, learner, epsilon in dict.fromkeys(key[:3] for key in found):
        seeds = [key[3] for key in found if key[:3] == (name, learner, epsilon) and key[4] == 1]
        one = [found[name, learner, epsilon, seed, 1] for seed in seeds]
        cells = [
            (
                f"{100 * np.mean([r['accuracy'] for r in one]):.1f},"
                f" {np.mean([r['core_seconds'] for r in one]):.1f} s"
            )
        ]
        for n in STAGES[1:]:
            more = [found.get((name, learner, epsilon, seed, n)) for seed in seeds]
            pairs = [(a, b) for a, b in zip(more, one, strict=True) if a]
            if not pairs:
                cells.append("")
                continue
            gains = np.array([1000 * (a["evidence"] - b["evidence"]) for a, b in pairs])
            points = np.mean([100 * (a["accuracy"] - b["accuracy"]) for a, b in pairs])
            cells.append(
                f"{gains.mean():+.1f}, {points:+.1f},"
                f" {np.mean([a['core_seconds'] for a, _ in pairs]):.1f} s"
            )
        worth = _worth(name, one[0]["rows"], epsilon)
        lines.append(
            f"| {name}, {learner} | {epsilon:g} | {worth} | {' | '.join(cells)} | {len(seeds)} |"
        )
    softmax = [
        (run, [found.get((*key[:4], n)) for n in STAGES[1:]])
        for key, run in found.items()
        if key[1] == "softmax" and key[4] == 1
    ]
    told = []
    for at, n in enumerate(STAGES[1:]):
        pairs = [(again, run) for run, more in softmax if (again := more[at])]
        gains = np.array([1000 * (a["evidence"] - b["evidence"]) for a, b in pairs])
        times = sum(a["core_seconds"] for a, _ in pairs) / sum(b["core_seconds"] for _, b in pairs)
        told.append(
            f"{n} stages {gains.mean():+.1f} ± {gains.std(ddof=1) / np.sqrt(len(gains)):.1f},"
            f" {times:.1f} times the time"
        )
    return "\n".join(
        [
            *lines,
            "",
            f"All {len(softmax)} softmax runs, mean and standard error: {'; '.join(told)}.",
        ]
    )


def run_settings(seeds: int, names: Sequence[str]) -> None:
    """Run what is missing of the settings, and keep each."""
    kept: Run = load_json(RESULT) if RESULT.exists() else {"machine": machine(), "runs": []}
    done = {(r["data"], r["setting"], r["epsilon"], r["seed"]) for r in kept["runs"]}
    for run in wanted(seeds):
        if run not in done and run[0] in names:
            kept["runs"].append(measure(*run))
            save_json(RESULT, kept)


def run_stages(seeds: int, names: Sequence[str], learner: str) -> None:
    """Run what is missing of the stages, and keep each."""
    runs, conditions = load_runs(STAGES_RESULT), machine()
    done = {(r["data"], r["learner"], r["epsilon"], r["seed"], r["stages"]) for r in runs}
    for run in wanted_stages(seeds):
        if run not in done and run[0] in names and learner in ("", run[1]):
            runs.append(measure_stages(*run) | {"conditions": conditions})
            save_runs(STAGES_RESULT, runs)


def tables() -> str:
    """The differences of the kept runs, as a block of text."""
    return f"```text\n{report(load_runs(RESULT))}\n```"


def stages_tables() -> str:
    """The table of stages of the kept runs."""
    return report_stages(load_runs(STAGES_RESULT))


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, and print."""
    options = parser("defaults", __doc__)
    options.add_argument("--data", default=",".join(dict.fromkeys([*DATA, *STAGES_DATA])))
    options.add_argument("--seeds", type=int, default=4)
    options.add_argument(
        "--stages",
        action="store_true",
        help="one, two and three stages, instead of the other settings",
    )
    options.add_argument(
        "--learner", choices=list(STAGES_EPSILONS), default="", help="with --stages: this one alone"
    )
    options.add_argument("--report", action="store_true", help="only print what is kept")
    args = options.parse_args(arguments)
    if args.stages:
        if not args.report:
            run_stages(args.seeds, args.data.split(","), args.learner)
        print(stages_tables())
        return
    if not args.report:
        run_settings(args.seeds, args.data.split(","))
    print(report(load_runs(RESULT)))
