# SPDX-License-Identifier: Apache-2.0
"""Are LabelDPClassifier's defaults a good choice? Judged without one true label: `python benchmarks/defaults.py [--report]`.

Each run learns from four fifths of some training rows and is scored on the noisy labels of the rest, which it never saw: the mean
log-evidence (larger is better) and the unbiased accuracy. Every setting differs from the defaults in one thing. MNIST and the KMNIST test
images had no part in setting the defaults. Test parts are not touched. Results are kept in results/defaults.json, run by run.
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from conditions import machine
from tabular import linear, pixels, trees

import labeldp as ldp
from labeldp.learn import LearnOptions

RESULT = Path(__file__).parent / "results" / "defaults.json"
DATA = {"digits": linear, "mnist": pixels, "kmnist": pixels, "adult": trees, "credit_default": trees}
ROWS = 10_000  # at most, so that a run takes seconds
SETTINGS: dict[str, dict[str, object]] = {
    "defaults": {},
    "one stage": {"n_stages": 1},
    "three stages": {"n_stages": 3},
    "law rr": {"law": "rr"},
    "law subset": {"law": "subset"},
    "correction em": {"correction": "em"},
    "no EM round": {"correction": "debias", "law": "subset"},
    "one EM round": {"options": LearnOptions(em_rounds=1)},
    "validation 0.2": {"validation_fraction": 0.2},
    "no refit": {"options": LearnOptions(refit=False)},
}
# A setting that cannot differ from the defaults is not run: two classes have one law and one stage, linear models no EM rounds.
SAME = {"trees": {"one stage", "three stages", "law rr", "law subset", "correction em"}, "linear": {"one EM round"}}


def rows_of(name, seed):
    """(learned from, scored on): features and labels of training rows, in a random order of this seed."""
    dataset = ldp.datasets.load(name)
    X, y = (dataset.X_train, dataset.y_train) if len(dataset.y_train) else (dataset.X_test, dataset.y_test)
    chosen = np.random.default_rng(seed).permutation(len(y))[:ROWS]
    X, y = X[chosen], y[chosen]
    if X.ndim > 2:
        X = X.reshape(len(X), -1) / np.float32(255)
    cut = len(y) * 4 // 5
    return dataset, (X[:cut], y[:cut]), (X[cut:], y[cut:])


def measure(name, setting, epsilon, seed):
    """One run."""
    warnings.simplefilter("ignore")
    dataset, (X, y), (X_held, y_held) = rows_of(name, seed)
    k = dataset.n_classes
    held_out = ldp.privatize(y_held, ldp.SubsetSelection(k, epsilon), noise=ldp.SeededNoise(seed + 1000))
    start = time.perf_counter()
    model = ldp.LabelDPClassifier(
        DATA[name](dataset), epsilon=epsilon, classes=range(k), noise=ldp.SeededNoise(seed), random_state=seed, **SETTINGS[setting]
    ).fit(X, y)
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


def wanted(seeds):
    for seed in range(seeds):
        for name, make in DATA.items():
            same = SAME["trees" if make is trees else "linear"]
            yield from ((name, setting, 1.0, seed) for setting in SETTINGS if setting not in same)


def report(runs):
    """Differences from the defaults, paired over seeds: evidence in thousandths of a nat a row, accuracy in points."""
    found = {(r["data"], r["setting"], r["seed"]): r for r in runs}
    for name in DATA:
        seeds = sorted({seed for data, setting, seed in found if data == name and setting == "defaults"})
        base = {seed: found[name, "defaults", seed] for seed in seeds}
        if not base:
            continue
        print(f"\n{name}: defaults, estimated accuracy {100 * np.mean([r['accuracy'] for r in base.values()]):.1f} %, {len(seeds)} seeds")
        for setting in SETTINGS:
            pairs = [(found[name, setting, seed], base[seed]) for seed in seeds if setting != "defaults" and (name, setting, seed) in found]
            if pairs:
                gain = np.array([1000 * (a["evidence"] - b["evidence"]) for a, b in pairs])
                points = np.array([100 * (a["accuracy"] - b["accuracy"]) for a, b in pairs])
                error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else np.nan
                print(f"  {setting:16} evidence {gain.mean():+7.2f} +- {error:5.2f}   estimated accuracy {points.mean():+6.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {"machine": machine(), "runs": []}
    done = {(r["data"], r["setting"], r["epsilon"], r["seed"]) for r in kept["runs"]}
    for run in () if args.report else wanted(args.seeds):
        if run not in done:
            kept["runs"].append(measure(*run))
            RESULT.parent.mkdir(exist_ok=True)
            RESULT.write_text(json.dumps(kept, indent=1) + "\n")
    report(kept["runs"])


if __name__ == "__main__":
    main()
