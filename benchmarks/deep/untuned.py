# SPDX-License-Identifier: Apache-2.0
"""Are the defaults of TorchClassifier safe? Chosen without one true label: `python -m benchmarks
deep-untuned choose|judge [--report]`.

"choose" compares recipes, "stages" one, two and three stages: each run learns from some rows and is
scored on the noisy labels of 2,000 others (digits: 300), by their mean log-evidence and by the
classes that the net has lost. "judge" then prints true test accuracy, once, of the defaults beside
randomized response with hard labels in the same loop, the likelihood in a loop by hand (AdamW,
eight epochs), and no privacy. Images are halved to 14 x 14 where the name says so, so that a run
takes seconds. Results: results/deep-untuned.json.gz.
"""

import fcntl
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import labeldp as ldp
from benchmarks import data as datasets
from benchmarks.common import (
    RESULTS,
    Array,
    Run,
    equivalents,
    load_runs,
    machine,
    parser,
    save_runs,
)
from labeldp.deep import (
    Optimizer,
    Recipe,
    TorchClassifier,
    cross_entropy,
    evidence_of,
    likelihood_loss,
    models,
    predict,
    schedules,
)
from labeldp.deep._loop import Placement
from labeldp.deep.models import PreActivationBlock

RESULT = RESULTS / "deep-untuned.json.gz"
HELD_OUT, TESTED = 2000, 5000

# Data and nets
# --------------------------------------------------------------------------------------------------


class SmallResNet(nn.Module):
    """A 3x3 convolution of 16 channels, two pre-activation blocks of 16 and 32, mean over places,
    linear."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(PreActivationBlock(16, 16), PreActivationBlock(16, 32, 2))
        self.norm, self.head = nn.BatchNorm2d(32), nn.Linear(32, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(
            torch.relu(self.norm(self.blocks(self.stem(x)))).mean(dim=(2, 3))
        )
        return logits


def plain_mlp(n_features: int, n_classes: int) -> nn.Module:
    """Without batch normalisation."""
    return nn.Sequential(
        nn.Linear(n_features, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, n_classes),
    )


def net_of(net: str, width: int) -> Callable[[int], nn.Module]:
    """A function of the number of classes, as TorchClassifier takes it."""
    makers: dict[str, Callable[[int], nn.Module]] = {
        "convnet": models.SmallConvNet,
        "resnet": SmallResNet,
    }
    return makers.get(net) or partial(models.Mlp if net == "mlp, batch norm" else plain_mlp, width)


CELLS = {  # data, net: rows learned from
    ("digits", "convnet"): 1200,
    ("digits", "mlp, batch norm"): 1200,
    ("digits", "plain mlp"): 1200,
    ("mnist/14", "convnet"): 4000,
    ("fashion_mnist/14", "convnet"): 4000,
    ("kmnist/14", "resnet"): 4000,
    ("mnist/14", "plain mlp"): 7000,
    ("fashion_mnist/14", "mlp, batch norm"): 7000,
    ("adult", "mlp, batch norm"): 7000,
    ("adult", "plain mlp"): 7000,
    ("credit_default", "mlp, batch norm"): 7000,
    ("credit_default", "plain mlp"): 7000,
    ("digits:2", "convnet"): 1200,
    ("mnist/14:2", "convnet"): 4000,
    ("fashion_mnist/14:2", "mlp, batch norm"): 7000,
    ("mnist", "convnet"): 7000,
    ("fashion_mnist", "convnet"): 7000,
}
TABLES = ("adult", "credit_default")  # of two classes
# judged, too slow to choose by
FULL_SIZE = [
    cell for cell in CELLS if cell[1] == "convnet" and cell[0] in ("mnist", "fashion_mnist")
]


@cache
def loaded(name: str) -> tuple[Array, Array, int]:
    """(X, y, K): images of one channel 0..1, tables one-hot and standardised, by public features
    alone. Official parts are put together.

    A name with ":2" has two classes: the label is odd or even.
    """
    if name.endswith(":2"):
        whole = loaded(name.removesuffix(":2"))
        return whole[0], whole[1] % 2, 2
    dataset = datasets.load(name.split("/")[0])
    X, y = dataset.all_rows()
    if X.ndim == 3:
        if name.endswith("/14"):
            X = X.reshape(len(X), 14, 2, 14, 2).mean((2, 4))
        return np.true_divide(X, np.float32(255)).astype(np.float32), y, dataset.n_classes
    if name == "digits":
        return np.true_divide(X.reshape(-1, 8, 8), 16).astype(np.float32), y, dataset.n_classes
    columns = []
    for i, column in enumerate(np.nan_to_num(X, nan=-1.0).T):
        columns.append(
            np.eye(int(column.max()) + 2)[column.astype(int) + 1]
            if i in dataset.categorical
            else column[:, None]
        )
    X = np.concatenate(columns, axis=1)
    return ((X - X.mean(0)) / np.maximum(X.std(0), 1e-9)).astype(np.float32), y, dataset.n_classes


def rows_of(data: str, net: str, n: int, seed: int) -> tuple[list[tuple[Tensor, Array]], int]:
    """((X, y) learned from, held out, tested on), K: all in a random order of this seed."""
    X, y, k = loaded(data)
    held = 300 if data.startswith("digits") else HELD_OUT
    ends = np.cumsum([n, held, TESTED])
    inputs = torch.from_numpy(X)
    inputs = inputs.flatten(1) if "mlp" in net else inputs[:, None]
    parts = np.split(np.random.default_rng(seed).permutation(len(y))[: ends[-1]], ends[:2])
    return [(inputs[part], y[part]) for part in parts], k


# What is compared
# --------------------------------------------------------------------------------------------------

BEFORE: dict[str, Any] = {
    "rate": 0.1,
    "schedule": schedules.cosine,
    "batch_size": 256,
    "optimizer": Optimizer("sgd", clip=math.inf),
}
SGD: dict[str, Any] = {"rate": 0.03, "optimizer": "sgd"}
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "as before": BEFORE,
    "as before, clip 1": BEFORE | {"optimizer": "sgd"},
    "sgd .1, ramp, clip 1": SGD | {"rate": 0.1, "batch_size": 256},
    "sgd .03, ramp, clip 1": SGD | {"batch_size": 256},
    "sgd .03, small batches": SGD,
    "adamw .003, batches of 256": {"batch_size": 256},
    "adamw .001": {"rate": 0.001},
    "average .99": {"average": 0.99},
    "10 epochs": {"epochs": 10},
    "3 epochs": {"epochs": 3},
    "5 epochs": {"epochs": 5},
    "20 epochs": {"epochs": 20},
    "5 epochs, average .99": {"epochs": 5, "average": 0.99},
    "decay .05": {"optimizer": Optimizer(weight_decay=0.05)},
    "decay .3": {"optimizer": Optimizer(weight_decay=0.3)},
}
HARD = "hard labels"  # randomized response as if it were true, in the same loop
PUBLIC = "no privacy"
BY_HAND = "by hand"
JUDGED = ("defaults", "two stages", HARD, BY_HAND, PUBLIC)
EPSILONS = (0.5, 1.0, 2.0, 4.0)


Proba = Callable[[Tensor], Array]


def fitted(
    data: str, net: str, setting: str, epsilon: float, seed: int
) -> tuple[Proba, tuple[Tensor, Array], tuple[Tensor, Array], int, float]:
    """(a function of X that gives probabilities, held out, tested on, K) and the training's core
    seconds."""
    (learned, held, tested), k = rows_of(data, net, CELLS[data, net], seed)
    X, y = learned
    start = time.process_time()
    labels = ldp.PrivateLabels(y, classes=range(k), noise=ldp.SeededNoise(seed))
    if setting == BY_HAND:
        noisy = ldp.privatize(labels, ldp.SubsetSelection(k, epsilon))
        proba = by_hand(net_of(net, X.shape[1]), X, noisy, seed)
    else:
        fields = SETTINGS.get(setting, {}) | (
            {"loss": cross_entropy} if setting in (HARD, PUBLIC) else {}
        )
        model = TorchClassifier(
            net_of(net, X.shape[1]),
            epsilon=epsilon,
            stages=STAGES.get(setting, 1),
            law="rr" if setting == HARD else "auto",
            recipe=Recipe(**({"epochs": 5} if k == 2 else {}) | fields),
            random_state=seed,
        )
        given = (
            ldp.NoisyLabels.from_labels(y, ldp.RandomizedResponse(k, 50.0), classes=range(k))
            if setting == PUBLIC
            else labels
        )
        proba = model.fit(X, given).predict_proba
    return proba, held, tested, k, round(time.process_time() - start, 2)


STAGES = {"two stages": 2, "three stages": 3}


def by_hand(
    make: Callable[[int], nn.Module], X: Tensor, noisy: ldp.NoisyLabels, seed: int
) -> Proba:
    """Train as a user would write it: eight epochs of AdamW on likelihoods, in batches of 128, rate
    0.002."""
    torch.manual_seed(seed)
    net, evidence = make(noisy.n_classes), evidence_of(noisy)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    for _ in range(8):
        net.train()
        for rows in torch.randperm(len(X)).split(128):
            with Placement(X.device, "auto").autocast():
                logits = net(X[rows])
            optimizer.zero_grad()
            likelihood_loss(logits, evidence[rows]).backward()
            optimizer.step()
    return lambda X: torch.softmax(predict(net, X), 1).double().numpy()


def choose(data: str, net: str, setting: str, epsilon: float, seed: int) -> Run:
    """One run, scored on noisy held-out rows."""
    proba, (X, y), _, k, seconds = fitted(data, net, setting, epsilon, seed)
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(k), noise=ldp.SeededNoise(seed + 1000)),
        ldp.SubsetSelection(k, epsilon),
    )
    p = proba(X)
    return {
        "evidence": ldp.metrics.mean_log_evidence(noisy, p),
        "accuracy": ldp.metrics.accuracy(noisy, p.argmax(axis=1)).value,
        "lost": len(ldp.metrics.lost_classes(noisy, p)),
        "core_seconds": seconds,
    }


def judge(data: str, net: str, setting: str, epsilon: float, seed: int) -> Run:
    """One run, on true test labels; a class is lost where fewer than one in a hundred of its rows
    is found."""
    proba, _, (X, y), k, seconds = fitted(data, net, setting, epsilon, seed)
    found = proba(X).argmax(axis=1)
    lost = sum(np.mean(found[y == c] == c) < 0.01 for c in range(k))
    return {"test_accuracy": float(np.mean(found == y)), "lost": int(lost), "core_seconds": seconds}


MODES = {"choose": choose, "judge": judge}
KEYS = ("mode", "data", "net", "setting", "epsilon", "seed")


def wanted(
    mode: str,
    seeds: int,
    cells: Iterable[tuple[str, str]],
    epsilons: Sequence[float],
    settings: Iterable[str],
) -> Iterator[tuple[str, str, str, str, float, int]]:
    """Mode, data, net, setting, epsilon and seed of each run: the defaults' first, seed by seed."""
    for seed in range(seeds):
        for epsilon in epsilons:
            for cell in cells:
                for setting in settings:
                    yield mode, *cell, setting, epsilon, seed


def report(runs: Sequence[Run], mode: str) -> str:
    """A table of means: evidence (choose) or test accuracy (judge), and in brackets how many
    classes were lost in all."""
    value, scale, digits = ("evidence", 1, 3) if mode == "choose" else ("test_accuracy", 100, 1)
    mine = [run for run in runs if run["mode"] == mode]
    settings = list(dict.fromkeys(run["setting"] for run in mine))
    lines = [
        f"| {mode}: data, net | eps | label equivalents | {' | '.join(settings)} |",
        "|---" * (3 + len(settings)) + "|",
    ]
    for data, net, epsilon in dict.fromkeys(
        (run["data"], run["net"], run["epsilon"]) for run in mine
    ):
        cells = []
        for setting in settings:
            some = [
                r
                for r in mine
                if (r["data"], r["net"], r["epsilon"], r["setting"])
                == (data, net, epsilon, setting)
            ]
            lost = sum(r["lost"] for r in some)
            mean = f"{scale * np.mean([r[value] for r in some]):.{digits}f}" if some else ""
            cells.append(mean + (f" ({lost} lost)" if lost else ""))
        k = 2 if data.endswith(":2") or data in TABLES else 10
        lines.append(
            f"| {data}, {net} | {epsilon:g} | {equivalents(CELLS[data, net], k, epsilon):,.0f} |"
            f" {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def tables(mode: str = "judge") -> str:
    """The table of the kept runs."""
    return report(load_runs(RESULT), mode)


def add(run: Run) -> None:
    """Keep one more run: two commands may run side by side."""
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(RESULT.parent, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    save_runs(RESULT, [*load_runs(RESULT), run])
    os.close(lock)


def main(arguments: Sequence[str]) -> None:
    """Run what is missing, and print."""
    options = parser("deep-untuned", __doc__)
    options.add_argument("mode", choices=MODES, nargs="?", default="choose")
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--data", default="", help="only cells with this in their name")
    options.add_argument("--net", default="", help="only nets with this in their name")
    options.add_argument(
        "--full-size",
        action="store_true",
        help="28 x 28 pixels, minutes a run, instead of all others",
    )
    options.add_argument("--epsilon", default=",".join(map(str, EPSILONS)))
    options.add_argument("--settings", default="", help="separated by semicolons")
    options.add_argument("--report", action="store_true", help="only print what is kept")
    args = options.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    conditions = machine() | {
        "torch": torch.__version__,
        "bf16": torch.cpu._is_avx512_bf16_supported(),
    }
    cells = [
        cell
        for cell in CELLS
        if (cell in FULL_SIZE) == args.full_size and args.data in cell[0] and args.net in cell[1]
    ]
    settings = (
        args.settings.split(";")
        if args.settings
        else (JUDGED if args.mode == "judge" else SETTINGS)
    )
    epsilons = [float(each) for each in args.epsilon.split(",")]
    for run in () if args.report else wanted(args.mode, args.seeds, cells, epsilons, settings):
        if run not in {tuple(each[key] for key in KEYS) for each in load_runs(RESULT)}:
            add(
                dict(zip(KEYS, run, strict=True))
                | MODES[args.mode](*run[1:])
                | {"conditions": conditions}
            )
    print(
        "\n\n".join(
            tables(mode) for mode in dict.fromkeys(run["mode"] for run in load_runs(RESULT))
        )
    )
