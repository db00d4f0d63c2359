# SPDX-License-Identifier: Apache-2.0
"""What rows share, one factor at a time: neighbours, strong views, selection, private counts as a
prior; and the papers' methods by name.

On the 1,797 digits of scikit-learn, in seconds a run: 1,400 to learn from, of which 140 are held
out, the others to test. Every method has the same net, noise and number of epochs. The table shows
the last epoch, and beside it the epoch that the noisy labels of the held-out rows chose.

    python -m benchmarks deep-share                       all that has not finished
    python -m benchmarks deep-share --epsilon 0.5 --seeds 1 --methods evidence neighbours
    python -m benchmarks deep-share --report              the table of kept runs

Settings were chosen on the true labels of the same test rows with seeds 0 to 2, so that the table
compares methods on a small example; it is no estimate of what they reach elsewhere. Runs are kept
in results/deep-share.json.gz.
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

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
    save_runs,
)
from benchmarks.deep.train import probabilities, scores
from labeldp.deep import (
    Consistency,
    Form,
    Recipe,
    consensus,
    denoise,
    evidence_of,
    models,
    predict,
    train,
)
from labeldp.errors import LabelDPWarning
from labeldp.evidence import NoisyLabels
from labeldp.laws import AutoLaw, RandomizedResponse, SubsetSelection
from labeldp.learn import ProportionClassifier, find_clusters

PATH = RESULTS / "deep-share.json.gz"
FIRST_SEED, ROWS, HELD_OUT, EPOCHS = 100, 1400, 140, 12
EPSILONS = (0.5, 1.0)
COUNTS_SHARE = 0.5
"""Of epsilon, for private counts of clusters; the rows' labels get the rest."""


@dataclass(frozen=True)
class Method:
    """A way to learn from the digits.

    Attributes
    ----------
    title : str
    consistency : Consistency or None
    kind : str
        "": all noisy labels. "counts": a linear model of private counts is the prior. "denoise",
        "retrain": the labels that agree with the votes of clusters, or with a first net, and no
        others.
    """

    title: str
    consistency: Consistency | None = None
    kind: str = ""


METHODS = {
    "evidence": Method("likelihood of each row's noisy label alone"),
    "consistency": Method("+ posterior targets of strong views", Consistency(warm_up=4)),
    "neighbours": Method("+ neighbours' votes, once", Consistency(neighbours=40)),
    "revote": Method(
        "+ votes each epoch, balanced targets", Consistency(neighbours=100, revote=1, balance=True)
    ),
    "selection": Method("+ selection of sure rows (SSR)", Consistency.posterior_selection()),
    "counts": Method(
        "votes as above + prior from private counts",
        Consistency(neighbours=100, revote=1, balance=True),
        "counts",
    ),
    "fixmatch": Method("FixMatch (LDP-SSL)", Consistency.fixmatch(warm_up=4)),
    "adamatch": Method("AdaMatch", Consistency.adamatch(warm_up=4)),
    "dividemix": Method("DivideMix, AugDescent", Consistency.dividemix(warm_up=4)),
    "denoise": Method("DenoiseSSL", Consistency.adamatch(warm_up=4), "denoise"),
    "retrain": Method("consensus retraining", None, "retrain"),
}


@dataclass
class Watched:
    """The test predictions of each epoch, and its score by held-out noisy labels; true labels are
    looked at after training.

    Attributes
    ----------
    X_test : Tensor
    """

    X_test: Tensor
    proba: list[Array] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)

    def watch(self, number: int, net: nn.Module) -> None:
        """Keep what the net predicts."""
        self.proba.append(probabilities(net, self.X_test))

    def progress(self, epoch: Any) -> None:
        """Keep the score."""
        self.held_out.append(epoch.held_out)


def main(arguments: Sequence[str]) -> None:
    """Run what has not finished, or print the table."""
    options = parser("deep-share", __doc__)
    options.add_argument("--epsilon", type=float, nargs="*", default=EPSILONS)
    options.add_argument("--methods", nargs="*", choices=tuple(METHODS), default=tuple(METHODS))
    options.add_argument("--seeds", type=int, default=3, help="from 100 on (default 3)")
    options.add_argument("--epochs", type=int, default=EPOCHS)
    options.add_argument(
        "--report", action="store_true", help="print the table of kept runs and stop"
    )
    args = options.parse_args(arguments)
    for seed in range(FIRST_SEED, FIRST_SEED + args.seeds if not args.report else 0):
        for epsilon in args.epsilon:
            for name in args.methods:
                run_once({"method": name, "epsilon": epsilon, "seed": seed, "epochs": args.epochs})
    print(tables())


def run_once(asked: Run) -> None:
    """Run a method, unless that is done; each start and each end is on disk."""
    shared = METHODS[asked["method"]].consistency
    asked |= {
        "settings": (
            None
            if shared is None
            else {name: value for name, value in vars(shared).items() if name != "strong"}
        )
    }
    kept = load_runs(PATH)
    mine = [run for run in kept if all(run[key] == value for key, value in asked.items())]
    if any(run["status"] == "finished" for run in mine):
        return
    others = [run for run in kept if run not in mine]
    save_runs(PATH, [*others, asked | {"status": "started", "started": now()}])
    busy = time.process_time()
    try:
        found = fit(METHODS[asked["method"]], asked["epsilon"], asked["seed"], asked["epochs"])
    except Exception as error:
        save_runs(
            PATH, [*others, asked | {"status": "failed", "error": str(error), "machine": machine()}]
        )
        raise
    seconds = round(time.process_time() - busy, 2)
    save_runs(
        PATH,
        [
            *others,
            asked
            | {"status": "finished", "core_seconds": seconds}
            | found
            | {"machine": machine()},
        ],
    )
    print(
        f"{asked['method']} at {asked['epsilon']:g}, seed {asked['seed']}:"
        f" {100 * found['last']['accuracy']:.1f} %",
        flush=True,
    )


def fit(method: Method, epsilon: float, seed: int, epochs: int) -> Run:
    """Draw the labels from seeded noise, train, then look at the test labels."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images, labels = (
        torch.from_numpy(found.images[order]).float()[:, None] / 16,
        found.target[order],
    )
    X, y, seen = images[:ROWS], labels[:ROWS], Watched(images[ROWS:])
    with warnings.catch_warnings():
        # of seeded noise, and of classes that a method loses, which the table shows
        warnings.simplefilter("ignore", LabelDPWarning)
        noisy, first = drawn(method, X, y, epsilon, seed)
        learned, held_out = (
            slice(HELD_OUT, None),
            (
                X[:HELD_OUT],
                evidence_of(noisy[np.arange(HELD_OUT)]),
            ),
        )
        evidence = evidence_of(noisy[np.arange(HELD_OUT, ROWS)])
        recipe = Recipe(epochs=epochs, average=0.98, consistency=method.consistency)
        given: dict[str, Any] = {
            "generator": torch.Generator().manual_seed(seed),
            "held_out": held_out,
        }
        if method.kind == "retrain":
            net = train(
                made(seed),
                X[learned],
                evidence,
                recipe,
                generator=torch.Generator().manual_seed(seed),
            )
            evidence = consensus(evidence, predict(net, X[learned]).argmax(1), 10)
        if method.kind == "denoise":
            evidence = denoised(X[learned], evidence)
        if first is not None:
            given["first"] = first[learned]
        train(
            made(seed),
            X[learned],
            evidence,
            recipe,
            watch=seen.watch,
            progress=seen.progress,
            **given,
        )
    best = int(np.argmax(seen.held_out))
    tested = labels[ROWS:]
    return {
        "law": noisy.blocks[0].law.name,
        "last": scores(seen.proba[-1], tested),
        "best": scores(seen.proba[best], tested) | {"epoch": best + 1},
    }


def made(seed: int) -> nn.Module:
    """A net with fresh weights."""
    torch.manual_seed(seed)
    return models.SmallConvNet()


def drawn(
    method: Method, X: Tensor, y: Array, epsilon: float, seed: int
) -> tuple[NoisyLabels, Array | None]:
    """Noisy labels of all rows, and first predictions where private counts have taught some, at the
    same epsilon together."""
    noise = ldp.SeededNoise(seed)
    if method.kind == "counts":
        flat, share = X.flatten(1).numpy(), COUNTS_SHARE * epsilon
        first = (
            ProportionClassifier(epsilon=share)
            .fit(flat, ldp.PrivateLabels(y, classes=range(10), noise=noise))
            .predict_proba(flat)
        )
        return (
            ldp.privatize(
                ldp.PrivateLabels(y, classes=range(10), noise=ldp.SeededNoise(1000 + seed)),
                AutoLaw(10, epsilon - share),
                prior=first,
            ),
            first,
        )
    # a set agrees with half of all
    law = (
        RandomizedResponse(10, epsilon)
        if method.kind == "denoise"
        else SubsetSelection(10, epsilon)
    )
    return ldp.privatize(ldp.PrivateLabels(y, classes=range(10), noise=noise), law), None


def denoised(X: Tensor, evidence: Form) -> Form:
    """The labels that agree with the vote of their cluster of pixels."""
    flat = X.flatten(1).numpy()
    return denoise(find_clusters(flat, 20, random_state=0).assign(flat), evidence, 10)


def tables() -> str:
    """Kept runs by method: last epoch, and the one that noisy held-out rows chose."""
    runs = [
        run for run in load_runs(PATH) if run["status"] == "finished" and run["epochs"] == EPOCHS
    ]
    epsilons = sorted({run["epsilon"] for run in runs})
    heads = [
        f"eps = {e:g}: {what}"
        for e in epsilons
        for what in ("last epoch, %", "best by noisy rows, %", "worst class, %", "ECE, %")
    ]
    worth = [[f"{equivalents(ROWS - HELD_OUT, 10, e):,.0f}", "", "", ""] for e in epsilons]
    rows = [
        ["method", *heads, "seeds", "core seconds"],
        ["label equivalents", *chain(*worth), "", ""],
    ]
    for name, method in METHODS.items():
        cells, mine = [method.title], [run for run in runs if run["method"] == name]
        for epsilon in epsilons:
            found = [run for run in mine if run["epsilon"] == epsilon]
            last = [100 * run["last"]["accuracy"] for run in found]
            cells.append(
                f"{np.mean(last):.1f} ± {np.std(last, ddof=1):.1f}"
                if len(last) > 1
                else "".join(f"{each:.1f}" for each in last)
            )
            numbers = [("best", "accuracy"), ("last", "worst_class"), ("last", "calibration_error")]
            cells += [
                f"{100 * np.mean([run[at][what] for run in found]):.1f}" if found else ""
                for at, what in numbers
            ]
        if mine:
            seconds = np.median([run["core_seconds"] for run in mine])
            rows.append([*cells, str(len({run["seed"] for run in mine})), f"{seconds:.0f}"])
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
