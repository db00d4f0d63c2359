# SPDX-License-Identifier: Apache-2.0
"""What the likelihood loss costs: `python -m benchmarks deep-step [--size quick|cpu|gpu]
[--threads N] [--report]`, with torch.

Training steps (forward, loss, backward, SGD) of one net with the likelihood loss and with torch's
cross-entropy on hard labels, turn by turn in one process: the ratio of the two in each round, and
the median over rounds. A ResNet-18 at K = 10; a small net at K = 1000 and 100,000, with dense,
candidate and packed-set evidence; and the losses alone. Then an epoch of `labeldp.deep.train`
against a loop written by hand for the same net, device and precision, and a fit in two stages
(privatize, train, privatize the rest by the model, train) with its share of training and its peak
memory, in a process of its own. Results are kept in results/deep-step.json.gz.
"""

import json
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

import labeldp as ldp
from benchmarks.common import RESULTS, Run, load_json, machine, measured_apart, parser, save_json
from labeldp.deep import (
    Candidates,
    Dense,
    Optimizer,
    PackedSets,
    Recipe,
    TorchClassifier,
    likelihood_loss,
    train,
)
from labeldp.deep.models import CifarResNet18, SmallConvNet
from labeldp.deep.schedules import cosine

FIT = Recipe(
    epochs=2, batch_size=256, rate=0.05, schedule=cosine, optimizer=Optimizer("sgd", clip=math.inf)
)

RESULT = RESULTS / "deep-step.json.gz"
ROUNDS = {"quick": 9, "cpu": 31, "gpu": 101}
RESNET_BATCH = {"quick": 16, "cpu": 64, "gpu": 512}
WIDE_BATCH = {"quick": 64, "cpu": 128, "gpu": 512}
EPOCH_ROWS = {"quick": 512, "cpu": 4096, "gpu": 50_000}
TARGET = 1.03  # of a ResNet's step
LOOP_TARGET = 0.97  # images a second, of the loop by hand


def evidence(form: str, n: int, k: int, device: str) -> Dense | Candidates | PackedSets:
    """Made-up evidence of n rows in one form."""
    label = torch.randint(0, k, (n,))
    if form == "candidates":
        return Candidates(label[:, None], torch.zeros(n, 1), -torch.ones(n)).to(device)
    packed = PackedSets(
        torch.randint(0, 256, (n, -(-k // 8)), dtype=torch.uint8), torch.zeros(n), -torch.ones(n)
    )
    return packed.to(device) if form == "packed sets" else Dense(packed.expand(k)).to(device)


def seconds(step: Callable[[], object], device: str) -> float:
    """Time one call, including the device's work."""
    start = time.perf_counter()
    step()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(
    steps: Mapping[str, Callable[[], object]], rounds: int, device: str
) -> dict[str, dict[str, float]]:
    """Each step's median milliseconds, and the median over rounds of its time against the first
    one's in the same round."""
    for step in steps.values():
        step(), step()
    names = list(steps)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names if turn % 2 else reversed(names):  # who goes first alternates
            times[name].append(seconds(steps[name], device))
    base = times[names[0]]
    return {
        name: {
            "milliseconds": round(1000 * statistics.median(taken), 3),
            "ratio": round(statistics.median(t / b for t, b in zip(taken, base, strict=True)), 4),
        }
        for name, taken in times.items()
    }


def training_step(
    net: nn.Module, x: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor], bf16: bool
) -> Callable[[], None]:
    """One step of SGD with momentum."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
            logits = net(x)
        loss(logits).backward()
        optimizer.step()

    return step


def loss_step(
    logits: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[], None]:
    """The loss and its gradient alone."""

    def step() -> None:
        logits.grad = None
        loss(logits).backward()

    return step


def losses(
    forms: tuple[str, ...], n: int, k: int, device: str
) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Cross-entropy first, then the likelihood loss on each form."""
    labels = torch.randint(0, k, (n,), device=device)
    found: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    found["cross-entropy"] = lambda z: functional.cross_entropy(z.float(), labels)
    for form in forms:
        found[f"likelihood, {form}"] = partial(_likelihood, held=evidence(form, n, k, device))
    return found


def _likelihood(logits: torch.Tensor, held: Dense | Candidates | PackedSets) -> torch.Tensor:
    return likelihood_loss(logits, held)


def channels_last(net: nn.Module) -> nn.Module:
    """The net with its weights in the order that convolutions are fastest in."""
    move: Callable[..., nn.Module] = net.to  # torch's types do not name this argument
    return move(memory_format=torch.channels_last)


def resnet(size: str, device: str, bf16: bool) -> dict[str, object]:
    """A step of ResNet-18 on 32 x 32 images, K = 10."""
    n = RESNET_BATCH[size]
    net = channels_last(CifarResNet18().to(device))
    x = torch.randn(n, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    steps = {
        name: training_step(net, x, loss, bf16)
        for name, loss in losses(("dense", "packed sets"), n, 10, device).items()
    }
    rounds = ROUNDS[size] if size != "cpu" else 11
    return {
        "what": f"step of ResNet-18, K = 10, batch {n}, {'bf16' if bf16 else 'float32'}",
        "steps": compare(steps, rounds, device),
    }


def wide_head(size: str, device: str, k: int) -> list[dict[str, object]]:
    """A step of a small net with many classes, and the losses alone on its logits."""
    n = WIDE_BATCH[size] if k < 10_000 else WIDE_BATCH[size] // 4
    rounds = ROUNDS[size] if k < 10_000 else max(5, ROUNDS[size] // 3)
    forms = ("dense", "candidates", "packed sets")
    net = nn.Sequential(
        nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, k)
    ).to(device)
    x = torch.randn(n, 256, device=device)
    logits = torch.randn(n, k, device=device, requires_grad=True)
    compared = losses(forms, n, k, device)
    whole = {name: training_step(net, x, loss, False) for name, loss in compared.items()}
    alone = {name: loss_step(logits, loss) for name, loss in compared.items()}
    return [
        {
            "what": f"step of a small net (256-256-K), K = {k}, batch {n}, float32",
            "steps": compare(whole, rounds, device),
        },
        {
            "what": f"loss and gradient alone, K = {k}, batch {n}, float32",
            "steps": compare(alone, rounds, device),
        },
    ]


def loops(size: str, device: str, precision: Literal["float32", "bf16"]) -> dict[str, object]:
    """An epoch of our loop against the least that one would write: the same net, rows, loss,
    optimizer and precision."""
    n, batch = EPOCH_ROWS[size], 256
    images = torch.randint(0, 256, (n, 1, 28, 28), dtype=torch.uint8)
    held = evidence("dense", n, 10, "cpu")
    assert isinstance(held, Dense)
    ours, theirs = SmallConvNet().to(device), channels_last(SmallConvNet().to(device))
    recipe = Recipe(
        epochs=1,
        batch_size=batch,
        rate=1e-3,
        precision=precision,
        schedule=cosine,
        optimizer=Optimizer("sgd", clip=math.inf),
    )
    resident, table = images.to(device), held.values.to(device)
    optimizer = torch.optim.SGD(
        theirs.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    generator = torch.Generator().manual_seed(0)

    def by_hand() -> None:
        theirs.train()
        for rows in torch.randperm(n).split(batch):
            rows = rows.to(device)
            x = resident[rows].float().div_(255).contiguous(memory_format=torch.channels_last)
            with torch.autocast(
                torch.device(device).type, torch.bfloat16, enabled=precision == "bf16"
            ):
                logits = theirs(x)
            loss = likelihood_loss(logits, table[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    steps = {
        "loop by hand": by_hand,
        "labeldp.deep.train": lambda: train(
            ours, images, held, recipe, generator=generator, device=device
        ),
    }
    found = compare(steps, {"quick": 5, "cpu": 15, "gpu": 21}[size], device)
    for each in found.values():
        each["images_per_second"] = round(1000 * n / each["milliseconds"])
    return {
        "what": f"epoch of SmallConvNet, {n} images of 28 x 28, batch {batch}, {precision}",
        "steps": found,
    }


def two_stages(size: str, device: str) -> dict[str, object]:
    """A fit in two stages, from raw labels to a model, and the share of it that is training."""
    n = EPOCH_ROWS[size]
    images = torch.randint(0, 256, (n, 1, 28, 28), dtype=torch.uint8)
    made = torch.randint(0, 10, (n,)).numpy()
    labels = ldp.PrivateLabels(made, classes=range(10), noise=ldp.SeededNoise(0))
    net = TorchClassifier(
        SmallConvNet,
        recipe=FIT,
        epsilon=1.0,
        stages=2,
        device=device,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seeded noise: made-up labels
        whole = seconds(lambda: net.fit(images, labels), device)
    peak = peak_mb(device)
    evidence_rows = evidence("dense", n, 10, device)
    half = torch.arange(n // 2)
    again = SmallConvNet().to(device)

    def training() -> None:
        for x, table in ((images[half], evidence_rows[half]), (images, evidence_rows)):
            train(again, x, table, FIT, generator=torch.Generator().manual_seed(0), device=device)

    alone = seconds(training, device)
    return {
        "what": f"LP-2ST of SmallConvNet, {n} images of 28 x 28, 2 epochs a stage",
        "seconds": round(whole, 2),
        "training_seconds": round(alone, 2),
        "peak_mb": peak,
    }


def peak_mb(device: str) -> int:
    """Most memory so far: of this process on a CPU (the kernel's count since it began, without its
    parent's), of tensors on a GPU."""
    if device != "cpu":
        return round(int(torch.cuda.max_memory_allocated()) / 2**20)
    (line,) = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    ]
    return round(int(line.split()[1]) / 1024)


def markdown(kept: Run) -> str:
    """Format the measurements of one size as a table."""
    lines = ["| what | of it | milliseconds | against the first |", "|---|---|---|---|"]
    for case in kept["cases"]:
        for name, found in case["steps"].items():
            lines.append(
                f"| {case['what']} | {name} | {found['milliseconds']:.1f} | {found['ratio']:.2f} |"
            )
    fit = kept["two_stages"]
    said = (
        f"A whole fit, {fit['what']}: {fit['seconds']:.0f} s, of which training"
        f" {fit['training_seconds']:.0f} s; peak {fit['peak_mb']} MB."
    )
    return "\n".join(lines) + "\n\n" + said


def tables(size: str) -> str:
    """Return the latest measurements of one size."""
    return markdown(load_json(RESULT)[size])


def main(arguments: Sequence[str]) -> None:
    """Measure, print the table, keep the JSON."""
    options = parser("deep-step", __doc__)
    options.add_argument(
        "--size", choices=list(ROUNDS), default="cpu", help="quick: a minute, keeps nothing"
    )
    options.add_argument(
        "--threads",
        type=int,
        default=os.cpu_count(),
        help="of torch; 1 where the machine is shared",
    )
    options.add_argument(
        "--two-stages", action="store_true", help="only the fit in two stages, printed as JSON"
    )
    options.add_argument("--report", action="store_true", help="only print what was measured")
    args = options.parse_args(arguments)
    size = args.size
    if args.report:
        print(tables(size))
        return
    torch.set_num_threads(args.threads)
    device = "cuda" if size == "gpu" else "cpu"
    torch.manual_seed(0)
    if args.two_stages:
        print(json.dumps(two_stages(size, device)))
        return
    cases = [
        resnet(size, device, bf16=size == "gpu"),
        *wide_head(size, device, 1000),
        *wide_head(size, device, 100_000),
    ]
    cases.append(loops(size, device, "bf16" if size == "gpu" else "float32"))
    # in a process that has done nothing else, so that the peak is its own
    fit = measured_apart(
        "deep-step", "--two-stages", "--size", size, "--threads", str(args.threads)
    )
    print(markdown({"cases": cases, "two_stages": fit}))
    if size != "quick":
        kept = load_json(RESULT) if RESULT.exists() else {}
        conditions = {
            "machine": machine(),
            "torch": torch.__version__,
            "device": (
                torch.cuda.get_device_name()
                if device == "cuda"
                else f"cpu, {torch.get_num_threads()} threads"
            ),
            "resnet_target": TARGET,
            "loop_target": LOOP_TARGET,
        }
        kept[size] = conditions | {"cases": cases, "two_stages": fit}
        save_json(RESULT, kept)
