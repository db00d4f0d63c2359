# SPDX-License-Identifier: Apache-2.0
"""What a GPU is needed for, the most important first: images at small epsilon, from targets that rows share.

Each run takes a net whose first weights were learned from the training images alone (`labeldp.research.ssl.simclr`, once for all runs of
a data set), and trains it with `Consistency`: neighbours' votes, then posterior targets. No other data, pure epsilon, one stage of the
best law without a prior, the last epoch; the test labels are looked at when a run is over.

    python -m benchmarks gpu                      all that has not finished, until it is done
    python -m benchmarks gpu --seconds 540        starts no piece that would not end in time: for machines that are lent by the minute
    python -m benchmarks gpu --table cifar10 --epsilon 1 --seeds 3
    python -m benchmarks gpu --tiny               the smallest setting, on a CPU: 600 images, two epochs

Runs are kept in results/gpu.json, features in benchmarks/.cache. Recipes were chosen by the noisy labels of 10,000 training images that
were not learned from, at epsilon 1.
"""

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import labeldp as ldp
from benchmarks.common import RESULTS, Run, load_runs, machine, now, parser, save_runs, worth
from benchmarks.deep.data import Data, load
from benchmarks.deep.nets import FastResNet
from benchmarks.deep.train import probabilities, scores
from benchmarks.small_epsilon.features import CACHE
from labeldp.deep import Consistency, Recipe, augment, evidence_of, schedules, train
from labeldp.errors import SeededNoiseWarning
from labeldp.evidence import NoisyLabels
from labeldp.laws import SubsetSelection
from labeldp.research import ssl

FIRST_SEED = 100
GOALS = {
    "cifar10": {0.75: 94.0, 1.0: 95.0, 2.0: 96.0, 4.0: 96.5},
    "cifar100": {2.5: 67.0, 3.25: 72.0, 4.6: 80.0, 6.0: 82.5},
}
"""Epsilons of each table, with the accuracy in percent that we aim at."""
ORDER = [("cifar10", epsilon) for epsilon in (1.0, 2.0, 4.0, 0.75)] + [("cifar100", epsilon) for epsilon in GOALS["cifar100"]]


@dataclass(frozen=True)
class Settings:
    """How a run is trained: public numbers, recorded with it."""

    feature_epochs: int = 120
    epochs: int = 90
    batch_size: int = 512
    rate: float = 0.1
    weight_decay: float = 5e-4
    neighbours: int = 200
    temperature: float = 0.5
    memory: float = 0.7
    width: int = 64
    rows: int | None = None

    def features(self) -> Recipe:
        """The training on images alone."""
        return replace(ssl.SIMCLR, epochs=self.feature_epochs, batch_size=self.batch_size, rate=0.3, clip=5.0)

    def recipe(self) -> Recipe:
        """The training on noisy labels."""
        return Recipe(
            epochs=self.epochs,
            batch_size=self.batch_size,
            rate=self.rate,
            weight_decay=self.weight_decay,
            schedule=schedules.cosine(0.1),
            augment=augment.chain(augment.flip, partial(augment.shift, pixels=4, mode="reflect")),
            average=0.999,
            optimizer="sgd",
            momentum=0.9,
            consistency=Consistency(neighbours=self.neighbours, temperature=self.temperature, memory=self.memory),
        )


TINY = Settings(feature_epochs=1, epochs=2, batch_size=64, neighbours=20, width=8, rows=600)


def main(arguments: Sequence[str]) -> None:
    """Run what has not finished, or print the table."""
    options = parser("gpu", __doc__)
    options.add_argument("--table", choices=tuple(GOALS), help="one data set")
    options.add_argument("--epsilon", type=float, nargs="*", help="these only")
    options.add_argument("--seeds", type=int, default=1, help="from 100 on (default 1)")
    options.add_argument("--seconds", type=float, default=math.inf, help="start nothing that would not end in this time")
    options.add_argument("--feature-epochs", type=int, default=Settings.feature_epochs)
    options.add_argument("--epochs", type=int, default=Settings.epochs)
    options.add_argument("--tiny", action="store_true", help="the smallest setting, to try the command out")
    options.add_argument("--report", action="store_true", help="print the table of kept runs and stop")
    args = options.parse_args(arguments)
    if not args.report:
        settings = TINY if args.tiny else Settings(feature_epochs=args.feature_epochs, epochs=args.epochs)
        wanted = [
            (name, epsilon, seed)
            for seed in range(FIRST_SEED, FIRST_SEED + args.seeds)
            for name, epsilon in ORDER
            if args.table in (None, name) and (not args.epsilon or epsilon in args.epsilon)
        ]
        if not wanted:
            options.error(f"no run of that kind; tables and epsilons are {', '.join(f'{name} {epsilon:g}' for name, epsilon in ORDER)}")
        run_all(wanted, settings, args.seconds)
    print(tables())


def run_all(wanted: Sequence[tuple[str, float, int]], settings: Settings, seconds: float) -> None:
    """Run each piece that has not finished, as long as the time is enough for one like the last."""
    started, longest = time.perf_counter(), 0.0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path = RESULTS / "gpu.json"
    for name, epsilon, seed in wanted:
        asked = {"table": name, "epsilon": epsilon, "seed": seed, "settings": asdict(settings)}
        kept = load_runs(path)
        if any(run["status"] == "finished" and all(run[key] == value for key, value in asked.items()) for run in kept):
            continue
        if time.perf_counter() - started + longest >= seconds:
            print(f"{name} at {epsilon:g} would not end in time: start the command again", flush=True)
            return
        save_runs(path, [*kept, asked | {"status": "started", "started": now(), "machine": machine()}])
        data = load(name)
        if settings.rows is not None:
            data = data.tiny(settings.rows)
        try:
            trunk = features(data, settings, device)
            begun = time.perf_counter()
            found = fit(data, epsilon, seed, trunk, settings, device)
        except Exception as error:
            save_runs(path, [*kept, asked | {"status": "failed", "finished": now(), "error": str(error), "machine": machine()}])
            raise
        longest = time.perf_counter() - begun
        ended = {"status": "finished", "finished": now(), "seconds": round(longest, 1), "device": _name(device)}
        save_runs(path, [*kept, asked | ended | found | {"machine": machine()}])
        print(f"{name} at {epsilon:g}, seed {seed}: {100 * found['accuracy']:.2f} % in {longest:.0f} s", flush=True)


def features(data: Data, settings: Settings, device: str) -> dict[str, torch.Tensor]:
    """Weights of a net that has seen the training images and no label; trained once, then kept."""
    path = CACHE / f"gpu-{data.name}-{len(data.X)}-{settings.feature_epochs}-{settings.width}.pt"
    if not path.exists():
        torch.manual_seed(0)
        start = time.perf_counter()
        trunk = ssl.without_head(FastResNet(data.n_classes, data.X.shape[1], settings.width))
        generator = torch.Generator().manual_seed(0)
        ssl.simclr(trunk, data.X, settings.features(), generator=generator, temperature=0.2, device=device, progress=_say)
        print(f"{data.name}: features in {time.perf_counter() - start:.0f} s", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        weights = {name: values.cpu() for name, values in trunk.state_dict().items()}
        torch.save({"weights": weights, "seconds": time.perf_counter() - start}, path)
    return dict(torch.load(path, map_location="cpu"))


def fit(data: Data, epsilon: float, seed: int, trunk: dict[str, Any], settings: Settings, device: str) -> Run:
    """Draw the labels from seeded noise, train, then look at the test labels."""
    noisy = drawn(data, epsilon, seed)
    torch.manual_seed(seed)
    net: nn.Module = FastResNet(data.n_classes, data.X.shape[1], settings.width)
    net.load_state_dict(trunk["weights"], strict=False)  # all but the head
    generator = torch.Generator().manual_seed(seed)
    net = train(net, data.X, evidence_of(noisy), settings.recipe(), generator=generator, device=device, progress=_say)
    proba = probabilities(net, data.X_test, "flip")
    return {"law": noisy.blocks[0].law.name, "feature_seconds": round(float(trunk["seconds"]), 1)} | scores(proba, data.y_test)


def drawn(data: Data, epsilon: float, seed: int) -> NoisyLabels:
    """All labels once, by the best law without a prior."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeededNoiseWarning)
        return ldp.privatize(data.y, SubsetSelection(data.n_classes, epsilon), noise=ldp.SeededNoise(seed))


def tables() -> str:
    """Kept runs by data set and epsilon."""
    runs = [run for run in load_runs(RESULTS / "gpu.json") if run["status"] == "finished" and run["settings"]["rows"] is None]
    rows = []
    for name, epsilon in sorted({(run["table"], run["epsilon"]) for run in runs}):
        found = [run for run in runs if (run["table"], run["epsilon"]) == (name, epsilon)]
        mean = {
            key: np.mean([run[key] for run in found]) for key in ("accuracy", "worst_class", "log_loss", "calibration_error", "seconds")
        }
        spread = f" ± {100 * np.std([run['accuracy'] for run in found], ddof=1):.2f}" if len(found) > 1 else ""
        cells = [
            name,
            f"{epsilon:g}",
            worth(name, epsilon),
            f"{100 * mean['accuracy']:.2f}{spread}",
            f"{GOALS[name][epsilon]:g}",
            f"{100 * mean['worst_class']:.1f}",
        ]
        cells += [f"{mean['log_loss']:.3f}", f"{100 * mean['calibration_error']:.1f}", str(len(found)), f"{mean['seconds'] / 60:.1f}"]
        rows.append(cells)
    heads = [
        "data",
        "eps",
        "label equivalents",
        "accuracy, %",
        "goal",
        "worst class, %",
        "log-loss",
        "calibration error, %",
        "seeds",
        "minutes a run",
    ]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heads, ["---"] * len(heads), *rows])


def _name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


def _say(epoch: Any) -> None:
    if epoch.number % 10 == 0:
        print(f"    epoch {epoch.number} of {epoch.epochs}: loss {epoch.loss:.4f}", flush=True)
