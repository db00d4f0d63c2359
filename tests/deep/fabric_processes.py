# SPDX-License-Identifier: Apache-2.0
"""What each process of test_fabric.py runs: trainings whose weights, scores and rows it writes
down."""

import os
import sys
from functools import partial

import numpy as np
import torch
from lightning_fabric import Fabric

import labeldp as ldp
from labeldp.deep import Optimizer, Recipe, Resident, as_inputs, augment, evidence_of, train
from labeldp.deep.models import Mlp, SmallConvNet

N, K = 192, 4  # three batches of 63, which two processes cannot halve, and one of 3
QUICK = Recipe(2, 63, 0.05, precision="float32", optimizer="sgd")
IMAGES = Recipe(
    2,
    63,
    0.02,
    alpha=1.0,
    average=0.9,
    augment=partial(augment.shift, pixels=1),
    precision="float32",
    optimizer="sgd",
)


class Watched(Resident):
    """Notes the rows that it is asked for."""

    def __init__(self, tensor):
        super().__init__(tensor)
        self.asked = []

    def on(self, *place):
        return self

    def batches(self, rows):
        self.asked.append(rows)
        return super().batches(rows)


def problem():
    rng = np.random.default_rng(0)
    labels = rng.integers(K, size=N)
    x = torch.from_numpy(np.eye(K)[labels] * 3 + rng.normal(size=(N, K))).float()
    noisy = ldp.privatize(
        ldp.PrivateLabels(labels, classes=range(K), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(K, 2.0),
    )
    return x, evidence_of(noisy)


def plain_net():
    """No batch statistics, which each process would count by itself."""
    return torch.nn.Sequential(torch.nn.Linear(K, 16), torch.nn.ReLU(), torch.nn.Linear(16, K))


def trainings(seed, rank=0, **options):
    """Weights and figures of several trainings, by name."""
    x, form = problem()
    images = (torch.arange(N * 64).reshape(N, 1, 8, 8) % 251).to(torch.uint8)
    found = {}

    def note(name, net, inputs, recipe, score=True):
        generator, told = torch.Generator().manual_seed(seed + 100 * rank), []
        held_out = (inputs.take(torch.arange(31)), form[:31]) if score else None
        options_here = {
            "generator": generator,
            "progress": told.append,
            "held_out": held_out,
            **options,
        }
        made = train(net, inputs, form, recipe, **options_here)
        found[name] = {
            "weights": {key: value.clone() for key, value in made.state_dict().items()},
            "told": [(epoch.loss, epoch.held_out) for epoch in told],
            "generator": generator.get_state(),
        }
        return made

    torch.manual_seed(seed + 100 * rank)
    note("plain", net := plain_net(), as_inputs(x), QUICK)
    note("again", net, as_inputs(x), QUICK)  # a second stage goes on with the same net
    note(
        "clipped",
        plain_net_of(0),
        as_inputs(x),
        Recipe(
            2, 63, 0.05, average=0.9, precision="float32", optimizer=Optimizer("sgd", clip=0.05)
        ),
    )
    torch.manual_seed(seed + 100 * rank)
    note("images", SmallConvNet(K, 1), as_inputs(images), IMAGES)
    note("tabular", Mlp(K, K, (16,)), as_inputs(x), QUICK)
    watched = Watched(x)
    note("rows", plain_net_of(1), watched, QUICK, score=False)
    found["rows"]["asked"] = watched.asked
    return found


def plain_net_of(seed):
    torch.manual_seed(seed)
    return plain_net()


def refused(fabric):
    """What each process is told when they do not have the same labels."""
    x, form = problem()
    form = form[torch.arange(N).roll(fabric.global_rank)]
    try:
        train(plain_net(), x, form, QUICK, generator=torch.Generator(), fabric=fabric)
    except ldp.InvalidInput as error:
        return str(error)
    return ""


def main(folder):
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    found = trainings(7, fabric.global_rank, fabric=fabric)
    found["refused"] = refused(fabric)
    torch.save(found, f"{folder}/{fabric.global_rank}.pt")
    fabric.barrier()
    os._exit(0)  # gloo's threads may still run, and would abort the interpreter's own end


if __name__ == "__main__":
    main(sys.argv[1])
