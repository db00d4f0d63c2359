# SPDX-License-Identifier: Apache-2.0
"""One training under a recipe: draws stage by stage from seeded noise, which protects nothing and
is for public data only."""

import copy
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

import labeldp as ldp
from benchmarks.common import rows_worth
from benchmarks.deep.data import Data
from benchmarks.deep.nets import build
from benchmarks.deep.recipes import Method, Training
from labeldp.custody._draw import Prior
from labeldp.custody._run import Run, open_run
from labeldp.deep import Form, debias_weights, evidence_of, likelihood_loss
from labeldp.deep._consistency import labels_of_some
from labeldp.deep._loop import Epoch, Placement, predict, train
from labeldp.deep.models import Ensemble
from labeldp.errors import SeededNoiseWarning
from labeldp.evidence import NoisyLabels
from labeldp.laws import LAWS, Law, PriorSplit, RRWithPrior
from labeldp.laws._exact import sets_contain
from labeldp.papers._teacher import UNLABELLED
from labeldp.protocol._estimator import in_top_k
from labeldp.protocol._fit import plan_stages, run_stages

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]
_INFORMATION_ROWS = 2000
WATCHED_ROWS = 2000
"""Test rows that a learning curve is of."""
JUDGED_ROWS = 10_000
"""Test rows that each epoch's net is asked about: noisy labels of the second half choose an epoch,
whose accuracy is of the first half."""


@dataclass
class Fitted:
    """The result of a training.

    Attributes
    ----------
    net : nn.Module
    stages : list of dict
        Law, rows drawn and learned from, mean bits of information a label, mean number of
        candidates.
    epochs : list of dict
        Stage, number and mean loss of each epoch.
    candidates : dict
        By stage, from 0: the rows drawn and their candidate sets, packed, where the law has any.
    watched : list of float32 arrays
        Each epoch's probabilities for the first test rows, one view of each, to be compared with
        their labels after training.
    watch_seconds : tuple of two float
        Time by the clock, and of the processor, that these predictions took: no part of a training.
    validation_law : Law or None
        The law of rows that an epoch is chosen by; None without privacy.
    """

    net: nn.Module
    stages: list[dict[str, object]] = field(default_factory=list)
    epochs: list[dict[str, object]] = field(default_factory=list)
    candidates: dict[int, tuple[Rows, NDArray[np.uint8]]] = field(default_factory=dict)
    watched: list[NDArray[np.float32]] = field(default_factory=list)
    watch_seconds: tuple[float, float] = (0.0, 0.0)
    validation_law: Law | None = None

    def hits(self, number: int, labels: NDArray[np.integer], n_classes: int) -> dict[str, float]:
        """Share of a stage's rows whose true label was among the candidates: top-k accuracy of the
        model before it. After training only."""
        if number not in self.candidates:
            return {}
        rows, packed = self.candidates[number]
        return {"label_in_candidates": float(sets_contain(packed, labels[rows], n_classes).mean())}


class Watched:
    """A run that remembers what it drew last."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.n_rows, self.partition = run.n_rows, run.partition
        self.rows: Rows = np.empty(0, np.int64)
        self.noisy: NoisyLabels | None = None

    def privatize(
        self, rows: Rows, law: Law, prior: Prior = None, stage: str = "release"
    ) -> NoisyLabels:
        """Privatize as a run does."""
        self.rows, self.noisy = rows, self._run.privatize(rows, law, prior, stage)
        return self.noisy


class Stages:
    """A method's stages on a data set: the functions that `run_stages` calls."""

    def __init__(
        self, data: Data, method: Method, seed: int, device: str, progress: Callable[[str], object]
    ) -> None:
        torch.manual_seed(seed)
        self.data, self.method, self.device, self.progress = data, method, device, progress
        self.generator = torch.Generator().manual_seed(seed)
        self.found = Fitted(self.built())
        self.run: Watched | None = None
        self._proba: list[Floats] = []  # the model's, of the rows that are drawn next

    def fit(
        self, rows: Rows, noisy: NoisyLabels, model: nn.Module | None, held_out: object
    ) -> nn.Module:
        """Learn from all rows drawn so far."""
        training = self.method.stages[len(self.found.stages)]
        kept = (
            self._in_top_k(model, rows, noisy)
            if model is not None and self.method.top_k_filter
            else np.arange(len(rows))
        )
        self.found.stages.append(self._drawn() | {"learned_from": len(kept)})
        warm = model if self.method.warm_start else None
        # an averaged net needs no gradient
        net = self.built() if warm is None else copy.deepcopy(warm).requires_grad_(True)
        return self.learn(net, rows[kept], target_of(training.loss, noisy[kept]), training)

    def built(self) -> nn.Module:
        """Make the method's net, or its nets, with new weights."""
        nets = [build(self.method.net, self.data) for _ in range(self.method.members)]
        return nets[0] if len(nets) == 1 else Ensemble(nets)

    def learn(
        self, net: nn.Module, rows: Rows, target: Tensor | Form, training: Training
    ) -> nn.Module:
        """Train a net on these rows."""
        inputs, recipe = self.data.X[torch.from_numpy(rows)], training.recipe()
        # an epoch of one net is none of their mean
        watch = self._watch if self.method.members == 1 else None
        return train(
            net,
            inputs,
            target,
            recipe,
            generator=self.generator,
            device=self.device,
            progress=self._progress,
            watch=watch,
        )

    def prior_of(self, model: nn.Module, rows: Rows) -> Floats:
        """Return the law's prior for rows whose labels the model has not seen."""
        proba = probabilities(
            model, self.data.X[torch.from_numpy(rows)], self.method.views, self.method.temperature
        )
        self._proba.append(proba)
        return proba

    def _in_top_k(self, model: nn.Module, rows: Rows, noisy: NoisyLabels) -> Rows:
        """Return positions of the latest rows, and of earlier ones whose noisy label is among the
        model's top k."""
        return in_top_k(
            noisy,
            probabilities(model, self.data.X[torch.from_numpy(rows)], self.method.views),
            "mean",
        )

    def _drawn(self) -> dict[str, object]:
        """Describe this stage's draw, with the mean information of its outputs if labels follow its
        prior: the model's, or uniform."""
        assert self.run is not None
        assert self.run.noisy is not None
        (block,) = self.run.noisy.blocks
        proba = np.concatenate(self._proba)[:_INFORMATION_ROWS] if self._proba else None
        self._proba.clear()
        if block.side:
            # What the questions that these rows were asked tell, not those that another draw would
            # have asked.
            side = {name: values[:_INFORMATION_ROWS] for name, values in block.side.items()}
            rows = len(next(iter(side.values())))
            prior = (
                np.full((rows, block.law.n_classes), 1.0 / block.law.n_classes)
                if proba is None
                else proba
            )
            nats = float(np.mean(block.law._information(prior.astype(np.float64), side)))
        else:
            nats = float(np.mean(block.law.information(proba)))
        size = float(block.side["size"].mean()) if "size" in block.side else None
        if "candidates" in block.side:
            self.found.candidates[len(self.found.stages)] = (
                self.run.rows,
                block.side["candidates"],
            )
        return {
            "law": block.law.name,
            "drawn": len(self.run.rows),
            "bits": nats / math.log(2),
            "mean_size": size,
        }

    def _watch(self, number: int, net: nn.Module) -> None:
        wall, busy = time.perf_counter(), time.process_time()
        self.found.watched.append(
            probabilities(net, self.data.X_test[:JUDGED_ROWS]).astype(np.float32)
        )
        before = self.found.watch_seconds
        self.found.watch_seconds = (
            before[0] + time.perf_counter() - wall,
            before[1] + time.process_time() - busy,
        )

    def _progress(self, epoch: Epoch) -> None:
        stage = max(1, len(self.found.stages))
        self.found.epochs.append(
            {"stage": stage, "epoch": epoch.number, "loss": round(epoch.loss, 5)}
        )
        self.progress(f"stage {stage}, epoch {epoch.number}: loss {epoch.loss:.4f}")


def target_of(loss: str, noisy: NoisyLabels) -> Tensor | Form:
    """Make the targets of a loss."""
    if loss == "cross-entropy":
        return torch.from_numpy(noisy.hard_codes())
    return debias_weights(noisy) if loss == "debiased" else evidence_of(noisy)


def fit(
    data: Data,
    method: Method,
    epsilon: float | None,
    seed: int,
    *,
    device: str = "cpu",
    progress: Callable[[str], object] = str,
) -> Fitted:
    """Train as a method says.

    Parameters
    ----------
    data : Data
    method : Method
    epsilon : float or None
        None: no privacy, on true labels.
    seed : int
        Of the noise, the weights and the order of rows.
    device : str
    progress : function of a line of text
    """
    stages = Stages(data, method, seed, device, progress)
    if method.law == "none" or epsilon is None:
        training = replace(method.stages[0], loss="cross-entropy")
        stages.found.net = stages.learn(
            stages.found.net, np.arange(len(data.y)), torch.from_numpy(data.y), training
        )
        return stages.found
    if method.law == "true labels":
        return fit_true_labels(stages, epsilon, seed)
    law = (
        PriorSplit(data.n_classes, epsilon, ordered=True)
        if method.prior == "threshold"
        else LAWS[method.law](data.n_classes, epsilon)
    )
    plan = plan_stages(
        law,
        sizes=method.sizes,
        validation_fraction=0.0,
        n_rows=len(data.y),
    )
    stages.found.validation_law = plan.validation_law
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeededNoiseWarning)
        labels = ldp.PrivateLabels(
            data.y, classes=range(data.n_classes), column="label", noise=ldp.SeededNoise(seed)
        )
        opened = open_run(labels, epsilon=epsilon, laws=plan.to_dict())
    with opened as run:
        stages.run = Watched(run)
        stages.found.net = run_stages(
            stages.run, plan, fit=stages.fit, prior_of=stages.prior_of
        ).model
    return stages.found


def fit_true_labels(stages: Stages, epsilon: float, seed: int) -> Fitted:
    """Train without privacy on the true labels of as many rows as noisy labels of all are worth.

    Images: and on those of all rows, by AdaMatch. As in FixMatch one of eight inputs has a label,
    for which these rows are repeated. Ratings, which have no views: a tenth of the labelled rows
    chooses among the method's trainings, and the epoch.
    """
    data = stages.data
    n = len(data.y)
    known = rows_worth(data.y, data.n_classes, epsilon, seed)
    stages.found.stages.append(
        {"law": "none", "drawn": 0, "learned_from": len(known), "bits": None, "mean_size": None}
    )
    if data.rates:
        stages.found.net = best_by_held_out(stages, *np.split(known, [len(known) // 10]))
        return stages.found
    labelled = np.tile(known, -(-n // (UNLABELLED * len(known))))
    rows = np.concatenate([np.arange(n), labelled])
    target = labels_of_some(torch.from_numpy(data.y[rows]), torch.arange(len(rows)) >= n)
    stages.found.net = stages.learn(stages.found.net, rows, target, stages.method.stages[0])
    return stages.found


def best_by_held_out(stages: Stages, held: Rows, rows: Rows) -> nn.Module:
    """Train by each of the method's trainings, and return the net whose best epoch makes true
    labels of held-out rows the likeliest."""

    def certain(rows: Rows) -> Form:
        return labels_of_some(
            torch.from_numpy(stages.data.y[rows]), torch.ones(len(rows), dtype=torch.bool)
        )

    def scored(training: Training) -> tuple[float, nn.Module]:
        epochs: list[Epoch] = []
        recipe = replace(training.recipe(), patience=training.epochs)
        net = train(
            stages.built(),
            inputs[rows],
            certain(rows),
            recipe,
            generator=stages.generator,
            device=stages.device,
            held_out=(inputs[held], certain(held)),
            progress=epochs.append,
        )
        return max(epoch.held_out for epoch in epochs if epoch.held_out is not None), net

    inputs = stages.data.X
    return max((scored(training) for training in stages.method.stages), key=lambda found: found[0])[
        1
    ]


def precision_used(method: Method, device: str) -> str:
    """What "auto" comes to on this machine, in the order of stages: "bf16", "float32"; DP-SGD has a
    loop of its own, without autocast."""
    found = {}
    for training in method.stages if method.law != "dp-sgd" else ():
        with Placement(device, training.precision).autocast():
            found["bf16" if torch.is_autocast_enabled(device) else "float32"] = True
    return ", ".join(found) or "float32"


def probabilities(
    net: nn.Module, inputs: Tensor, views: str = "one", temperature: float = 1.0
) -> Floats:
    """Predict class probabilities: (n, K) float64, averaged over the views of an image."""
    seen = seen_as(inputs, views)
    zero = torch.zeros((), dtype=torch.float64)
    total = sum((torch.softmax(predict(net, x).double() / temperature, dim=1) for x in seen), zero)
    return np.asarray((total / len(seen)).cpu())


def seen_as(inputs: Tensor, views: str) -> list[Tensor]:
    """The inputs; mirrored too; and each of them moved by a pixel in four directions, zeros coming
    in."""
    seen = [inputs, inputs.flip(3)] if "flip" in views else [inputs]
    if "shift 1" not in views:
        return seen
    moves = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
    height, width = inputs.shape[2:]
    return [
        functional.pad(x, (1, 1, 1, 1))[:, :, down : down + height, right : right + width]
        for x in seen
        for down, right in moves
    ]


def scored(
    proba: Floats, labels: NDArray[np.int64], epsilon: float | None, rates: bool
) -> dict[str, float]:
    """Accuracy of an epoch's net; and as a prior of RRWithPrior at this epsilon: mean k, and how
    often the label is among the k."""
    n_classes = proba.shape[1]
    found = {"accuracy": float(np.mean(proba.argmax(axis=1) == labels))}
    if rates:
        found["rmse"] = float(np.sqrt(np.mean((proba @ np.arange(n_classes) - labels) ** 2)))
    if epsilon is None:
        return found
    size = np.asarray(RRWithPrior(n_classes, epsilon).prepare(proba)["size"]).astype(np.int64)
    rank = (proba > proba[np.arange(len(labels)), labels][:, None]).sum(axis=1)
    return found | {"mean_k": float(size.mean()), "top_k_accuracy": float(np.mean(rank < size))}


def best_by_noisy_labels(
    watched: Sequence[NDArray[np.float32]],
    labels: NDArray[np.int64],
    law: Law,
    seed: int,
    rates: bool,
) -> dict[str, object]:
    """Choose an epoch as a fit with held-out rows would, by mean log-evidence of noisy labels, and
    compare it with the last epoch.

    Parameters
    ----------
    watched : sequence of (m, K) arrays
        Each epoch's probabilities for the first test rows, over all stages.
    labels : (m,) int64 array
        True labels of these rows. Those of the second half are privatized by the law, with seeded
        noise, and choose; those of the first half score the epoch that was chosen and the last one,
        without bias.
    law : Law
        One that needs no prior.
    seed : int
    rates : bool
        Whether classes are ratings.

    Returns
    -------
    dict
        Number of the rows that chose, their law, number of the best epoch of so many, its accuracy
        (and RMSE) and the last one's.
    """
    half = len(labels) // 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeededNoiseWarning)
        noise = ldp.SeededNoise(seed + 1_000_000)  # other words than those of the training rows
        noisy = ldp.privatize(
            ldp.PrivateLabels(labels[half:], classes=range(law.n_classes), noise=noise), law
        )
    evidence = evidence_of(noisy)
    losses = [
        float(likelihood_loss(torch.from_numpy(proba[half:]).clamp_min(1e-12).log(), evidence))
        for proba in watched
    ]
    best = int(np.argmin(losses))
    found: dict[str, object] = {
        "rows": len(labels) - half,
        "law": law.name,
        "epoch": best + 1,
        "epochs": len(watched),
    }
    for name, epoch in (("", best), ("last_", len(watched) - 1)):
        found |= {
            name + key: value
            for key, value in scored(
                watched[epoch][:half].astype(np.float64), labels[:half], None, rates
            ).items()
        }
    return found


def scores(proba: Floats, labels: NDArray[np.int64]) -> dict[str, float]:
    """Accuracy, that of the worst class, log-loss, and the expected calibration error over 15 bins
    of confidence."""
    hit, sure = proba.argmax(axis=1) == labels, proba.max(axis=1)
    bins = np.minimum((sure * 15).astype(int), 14)
    gaps = [
        abs(hit[bins == number].mean() - sure[bins == number].mean()) * (bins == number).mean()
        for number in np.unique(bins)
    ]
    chosen = np.maximum(proba[np.arange(len(labels)), labels], 1e-15)
    return {
        "accuracy": float(hit.mean()),
        "worst_class": float(min(hit[labels == label].mean() for label in np.unique(labels))),
        "log_loss": float(-np.log(chosen).mean()),
        "calibration_error": float(sum(gaps)),
    }
