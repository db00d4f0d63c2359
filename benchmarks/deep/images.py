# SPDX-License-Identifier: Apache-2.0
"""Images at small epsilon, from targets that rows share: CIFAR-10, then CIFAR-100. Needs a GPU.

A net whose first weights were learned from the training images alone
(`labeldp.papers.tang2022.simclr`, once for all runs of a data set) is trained with `Consistency`:
neighbours' votes, then posterior targets. No other data, pure epsilon, one stage of the best law
without a prior, the last epoch; the test labels are looked at when a run is over.

    python -m benchmarks deep-images              all that has not finished, until it is done
    python -m benchmarks deep-images --table cifar10 --epsilon 1 --seeds 3
    python -m benchmarks deep-images --tiny       the smallest setting, on a CPU: 600 images, an
                                                  epoch or two; not kept with the results

Runs are kept in results/deep-images.json.gz; features, and trainings that are not over, in
benchmarks/.cache (or the folder that SMALL_EPSILON_CACHE names). The command may be killed: started
again, a training goes on behind its last saved epoch. Recipes were chosen by the noisy labels of
10,000 training images that were not learned from, at epsilon 1.
"""

import hashlib
import json
import math
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import labeldp as ldp
from benchmarks.common import RESULTS, Run, load_runs, machine, now, parser, save_runs, worth
from benchmarks.deep.data import Data, load
from benchmarks.deep.nets import build
from benchmarks.deep.train import probabilities, scores
from benchmarks.deep.views import chain, simclr_view
from benchmarks.small_epsilon.features import CACHE
from labeldp.deep import (
    Consistency,
    Form,
    Optimizer,
    Recipe,
    augment,
    evidence_of,
    schedules,
    train,
)
from labeldp.deep._consistency import labels_of_some
from labeldp.errors import SeededNoiseWarning
from labeldp.laws import SubsetSelection
from labeldp.papers import tang2022 as ssl

FIRST_SEED = 100
GOALS = {
    "cifar10": {0.75: 94.0, 1.0: 95.0, 2.0: 96.0, 4.0: 96.5},
    "cifar100": {2.5: 67.0, 3.25: 72.0, 4.6: 80.0, 6.0: 82.5},
}
"""Epsilons of each table, with the accuracy in percent that we aim at."""
LAW = SubsetSelection
ORDER: list[tuple[str, float | None]] = [("cifar10", epsilon) for epsilon in (1.0, 2.0, 4.0, 0.75)]
# None: without privacy
ORDER += [("cifar100", epsilon) for epsilon in GOALS["cifar100"]] + [(name, None) for name in GOALS]


@dataclass(frozen=True)
class Settings:
    """How a run is trained: public numbers, recorded with it."""

    feature_epochs: int = 120
    epochs: int = 70
    net: str = "fast-resnet:64"
    batch_size: int = 512
    rate: float = 0.1
    weight_decay: float = 5e-4
    neighbours: int = 200
    temperature: float = 0.5
    memory: float = 0.7
    rows: int | None = None

    def features(self) -> Recipe:
        """The training on images alone."""
        return replace(
            ssl.SIMCLR,
            epochs=self.feature_epochs,
            batch_size=self.batch_size,
            rate=0.3,
            optimizer=Optimizer("sgd", weight_decay=1e-4, clip=5.0),
            augment=simclr_view,
        )

    def recipe(self) -> Recipe:
        """The training on noisy labels."""
        return Recipe(
            epochs=self.epochs,
            batch_size=self.batch_size,
            rate=self.rate,
            schedule=partial(schedules.cosine, ramp=0.1),
            augment=chain(augment.flip, partial(augment.shift, pixels=4, mode="reflect")),
            average=0.999,
            optimizer=Optimizer("sgd", weight_decay=self.weight_decay),
            consistency=Consistency(
                neighbours=self.neighbours, temperature=self.temperature, memory=self.memory
            ),
        )


TINY = Settings(
    feature_epochs=1, epochs=2, net="fast-resnet:8", batch_size=64, neighbours=20, rows=600
)


def main(arguments: Sequence[str]) -> None:
    """Run what has not finished, or print the tables."""
    options = parser("deep-images", __doc__)
    options.add_argument("--table", choices=GOALS, help="one data set")
    options.add_argument("--epsilon", type=float, nargs="*", help="these only; 0: without privacy")
    options.add_argument("--seeds", type=int, default=1, help="from 100 on (default 1)")
    options.add_argument("--feature-epochs", type=int, default=Settings.feature_epochs)
    options.add_argument("--epochs", type=int, default=Settings.epochs)
    options.add_argument(
        "--net",
        default=Settings.net,
        help=f"default {Settings.net}; cifar-resnet18 is larger",
    )
    options.add_argument(
        "--tiny", action="store_true", help="the smallest setting, to try the command out"
    )
    options.add_argument(
        "--report", action="store_true", help="print the tables of kept runs and stop"
    )
    args = options.parse_args(arguments)
    if not args.report:
        settings = (
            TINY
            if args.tiny
            else Settings(feature_epochs=args.feature_epochs, epochs=args.epochs, net=args.net)
        )
        pieces = [
            piece
            for seed in range(FIRST_SEED, FIRST_SEED + args.seeds)
            for piece in wanted(seed)
            if args.table in (None, piece.table)
            if not args.epsilon or (piece.epsilon or 0.0) in args.epsilon
        ]
        if not pieces:
            there = {
                f"{piece.table} {piece.epsilon:g}": None
                for piece in wanted(FIRST_SEED)
                if piece.epsilon is not None
            }
            options.error(f"no run of that kind; there are {', '.join(there)}")
        for piece in pieces:
            _run(piece, settings, "cuda" if torch.cuda.is_available() else "cpu")
    print(tables())


@dataclass(frozen=True)
class Piece:
    """A run that is asked for; epsilon None: without privacy."""

    table: str
    epsilon: float | None
    seed: int


def wanted(seed: int) -> list[Piece]:
    """All runs of a seed, the most important first."""
    return [Piece(name, epsilon, seed) for name, epsilon in ORDER]


class Training:
    """A training in several pieces: the checkpoint that it goes on from, and the seconds of all
    pieces."""

    def __init__(self, path: Path) -> None:
        self.path, self._times = path, path.with_suffix(".json")
        self.seconds = float(json.loads(self._times.read_text())) if self._times.exists() else 0.0
        self._last = time.perf_counter()
        path.parent.mkdir(parents=True, exist_ok=True)

    def progress(self, epoch: Any) -> None:
        """Note the time."""
        taken = time.perf_counter() - self._last
        self._last, self.seconds = self._last + taken, self.seconds + taken
        self._times.write_text(json.dumps(self.seconds))
        if epoch.number % 10 == 0:
            print(f"    epoch {epoch.number} of {epoch.epochs}: loss {epoch.loss:.4f}", flush=True)


def forget(path: Path) -> None:
    """Delete a training's checkpoint, once what came of it is saved."""
    path.unlink(missing_ok=True)
    path.with_suffix(".json").unlink(missing_ok=True)


def _run(piece: Piece, settings: Settings, device: str) -> None:
    """Run a piece, unless that is done; each start and each end is on disk."""
    path = results_file(settings)
    asked = {
        "table": piece.table,
        "epsilon": piece.epsilon,
        "seed": piece.seed,
        "settings": asdict(settings),
    }
    kept = load_runs(path)
    mine = [run for run in kept if all(run[key] == value for key, value in asked.items())]
    if any(run["status"] == "finished" for run in mine):
        return
    stopped = [run for run in mine if run["status"] == "started"]
    kept = [run for run in kept if run not in stopped]
    asked |= {"status": "started", "started": stopped[0]["started"] if stopped else now()}
    save_runs(path, [*kept, asked | {"machine": machine()}])
    try:
        found = fit(piece, settings, device)
    except Exception as error:
        save_runs(
            path,
            [
                *kept,
                asked
                | {
                    "status": "failed",
                    "finished": now(),
                    "error": str(error),
                    "machine": machine(),
                },
            ],
        )
        raise
    asked |= {"status": "finished", "finished": now(), "device": _name(device)}
    save_runs(path, [*kept, asked | found | {"machine": machine()}])
    forget(_checkpoint(piece, settings))
    what = f"{piece.table} at {piece.epsilon}, seed {piece.seed}"
    print(f"{what}: {100 * found['accuracy']:.2f} % in {found['seconds']:.0f} s", flush=True)


def results_file(settings: Settings) -> Path:
    """The file of the recorded runs; trials of the command have a file of their own."""
    return (
        RESULTS / "deep-images.json.gz"
        if settings.rows is None
        else Path(tempfile.gettempdir(), "labeldp-deep-images-tiny.json.gz")
    )


def _data(table: str, settings: Settings) -> Data:
    data = load(table)
    return data if settings.rows is None else data.tiny(settings.rows)


def _trunk_file(data: Data, settings: Settings) -> Path:
    net = settings.net.replace(":", "-")
    return CACHE / f"{data.name}-{len(data.X)}-{settings.feature_epochs}-{net}.pt"


def _checkpoint(piece: Piece, settings: Settings) -> Path:
    key = hashlib.sha256(json.dumps([asdict(piece), asdict(settings)]).encode()).hexdigest()[:16]
    return CACHE / f"{piece.table}-{key}.checkpoint"


def features(data: Data, settings: Settings, device: str) -> dict[str, Any]:
    """Weights of a net that has seen the training images and no label; trained once, then kept."""
    path = _trunk_file(data, settings)
    if not path.exists():
        work = Training(path.with_suffix(".checkpoint"))
        torch.manual_seed(0)
        trunk = ssl.without_head(build(settings.net, data))
        generator = torch.Generator().manual_seed(0)
        more: dict[str, Any] = {
            "device": device,
            "progress": work.progress,
            "checkpoint": work.path,
        }
        ssl.simclr(trunk, data.X, settings.features(), generator=generator, temperature=0.2, **more)
        print(f"{data.name}: features in {work.seconds:.0f} s", flush=True)
        weights = {name: values.cpu() for name, values in trunk.state_dict().items()}
        part = path.with_suffix(".part")
        torch.save({"weights": weights, "seconds": work.seconds}, part)
        part.replace(path)
        forget(work.path)
    return dict(torch.load(path, map_location="cpu"))


def fit(piece: Piece, settings: Settings, device: str) -> Run:
    """Draw the labels from seeded noise, train, then look at the test labels."""
    data = _data(piece.table, settings)
    trunk = features(data, settings, device)
    labels = labels_of(data, piece.epsilon, piece.seed)
    work = Training(_checkpoint(piece, settings))
    torch.manual_seed(piece.seed)
    net = build(settings.net, data)
    net.load_state_dict(trunk["weights"], strict=False)  # all but the head
    generator = torch.Generator().manual_seed(piece.seed)
    more: dict[str, Any] = {
        "device": device,
        "progress": work.progress,
        "checkpoint": work.path,
    }
    proba = probabilities(
        train(net, data.X, labels, settings.recipe(), generator=generator, **more),
        data.X_test,
        "flip",
    )
    taken = {
        "seconds": round(work.seconds, 1),
        "feature_seconds": round(float(trunk["seconds"]), 1),
    }
    return (
        {"law": "none" if piece.epsilon is None else LAW.name} | taken | scores(proba, data.y_test)
    )


def labels_of(data: Data, epsilon: float | None, seed: int) -> Form:
    """All labels, drawn once by the best law without a prior; without privacy the true ones."""
    if epsilon is None:
        return labels_of_some(torch.from_numpy(data.y), torch.ones(len(data.y), dtype=torch.bool))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeededNoiseWarning)
        labels = ldp.PrivateLabels(
            data.y, classes=range(data.n_classes), noise=ldp.SeededNoise(seed)
        )
        return evidence_of(ldp.privatize(labels, LAW(data.n_classes, epsilon)))


def tables() -> str:
    """Kept runs by data set, net and epsilon."""
    kept = [
        run
        for run in load_runs(results_file(Settings()))
        if run["status"] == "finished" and run["settings"]["rows"] is None
    ]
    heads = [
        "data",
        "net",
        "eps",
        "label equivalents",
        "accuracy, %",
        "goal",
        "worst class, %",
        "log-loss",
        "calibration error, %",
    ]
    heads += ["seeds", "minutes a run"]
    rows = [heads, ["---"] * len(heads)]
    # without privacy last
    for name, net, at in sorted({(*_where(run), run["epsilon"] or math.inf) for run in kept}):
        epsilon = None if at == math.inf else at
        found = [run for run in kept if (*_where(run), run["epsilon"]) == (name, net, epsilon)]
        mean = {
            key: np.mean([run[key] for run in found])
            for key in ("accuracy", "worst_class", "log_loss", "calibration_error", "seconds")
        }
        spread = (
            f" ± {100 * np.std([run['accuracy'] for run in found], ddof=1):.2f}"
            if len(found) > 1
            else ""
        )
        noise, told, goal = (
            ("no privacy", "", "")
            if epsilon is None
            else (f"{epsilon:g}", worth(name, epsilon), f"{GOALS[name][epsilon]:g}")
        )
        cells = [
            name,
            net.split(":")[0],
            noise,
            told,
            f"{100 * mean['accuracy']:.2f}{spread}",
            goal,
            f"{100 * mean['worst_class']:.1f}",
        ]
        cells += [
            f"{mean['log_loss']:.3f}",
            f"{100 * mean['calibration_error']:.1f}",
            str(len(found)),
            f"{mean['seconds'] / 60:.1f}",
        ]
        rows.append(cells)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def _where(run: Run) -> tuple[str, str]:
    return run["table"], run["settings"]["net"]


def _name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device
