# SPDX-License-Identifier: Apache-2.0
"""How recipes of the deep benchmarks are chosen: on noisy labels of held-out training rows, no true
label looked at.

    python -m benchmarks deep-choose --table movielens --method ours-2 --epsilon 1 --vary rate=0.5
    --vary "epochs=(4, 8); sizes=(0.1, 0.9)"

A sixth of the training rows is held out and its labels are drawn by subset selection at the same
epsilon. The frozen recipe and each variation learn from the rest; each is scored by the mean
log-probability of what was drawn for the held-out rows, in nats a row, and by its error (squared
error of ratings, else share of mistakes), unbiased through the law, both compared with the frozen
recipe row by row. Everything that was tried is kept in results/deep_choose.jsonl; `--report` prints
it. Seeds are 0, 1, ...: those of the reported runs are others.
"""

import ast
import hashlib
import json
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import labeldp as ldp
from benchmarks.common import RESULTS, Run, machine, parser
from benchmarks.deep.data import TABLES, Data, load
from benchmarks.deep.recipes import SIZES, Method, Training, method
from benchmarks.deep.runs import say
from benchmarks.deep.train import fit, precision_used, probabilities
from labeldp.errors import SeededNoiseWarning
from labeldp.evidence import NoisyLabels

RESULTS = RESULTS / "deep_choose.jsonl"
HELD_OUT = 1 / 6
_OF_STAGES = {field.name for field in fields(Training)}


def varied(recipe: Method, change: str) -> Method:
    """A recipe with fields replaced: "name=value; ...". A field of stages takes one value for all,
    or a tuple of one each."""
    for part in filter(None, (part.strip() for part in change.split(";"))):
        name, _, text = part.partition("=")
        value = ast.literal_eval(text)
        if name == "n_stages":
            last = recipe.stages[-1]
            recipe = replace(recipe, stages=(recipe.stages + (last,) * value)[:value])
        elif name in _OF_STAGES:
            each = value if isinstance(value, tuple) else (value,) * len(recipe.stages)
            recipe = replace(
                recipe,
                stages=tuple(
                    replace(stage, **{name: v})
                    for stage, v in zip(recipe.stages, each, strict=True)
                ),
            )
        else:
            recipe = replace(recipe, **{name: value})
    return recipe


def divided(data: Data, epsilon: float, seed: int) -> tuple[Data, torch.Tensor, NoisyLabels]:
    """Divide the training rows: the part to learn from, and the held-out inputs with their noisy
    labels."""
    order = np.random.default_rng(seed).permutation(len(data.y))
    held, rest = np.split(order, [int(len(order) * HELD_OUT)])
    law = ldp.SubsetSelection(data.n_classes, epsilon)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeededNoiseWarning)
        noisy = ldp.privatize(
            data.y[held], law, classes=range(data.n_classes), noise=ldp.SeededNoise(10_000 + seed)
        )
    return data.part(rest), data.X[torch.from_numpy(held)], noisy


def halved(data: Data) -> Data:
    """Images of half the height and width: a quarter of the work, to compare recipes when time is
    short."""
    return replace(data, X=functional.avg_pool2d(data.X.float(), 2).round().to(torch.uint8))


def scores(
    recipe: Method, data: Data, epsilon: float, seed: int, rows: int | None, device: str
) -> tuple[np.ndarray, np.ndarray, float]:
    """Log-probability of each held-out row's draw, its unbiased error, and the seconds of
    training."""
    data, inputs, noisy = divided(data, epsilon, seed)
    data = data.part(np.arange(len(data.y))[:rows])
    start = time.perf_counter()
    fitted = fit(data, recipe, epsilon, seed, device=device, progress=say)
    seconds = time.perf_counter() - start
    proba = probabilities(fitted.net, inputs, recipe.views)
    evidence = np.log((proba * noisy.likelihood(dtype="float64")).sum(axis=1))
    values = np.arange(data.n_classes)
    guess = proba @ values if data.rates else proba.argmax(axis=1)
    wrong = guess[:, None] - values
    return evidence, noisy.debias(wrong**2 if data.rates else (wrong != 0).astype(float)), seconds


def kept_scores(
    recipe: Method, data: Data, epsilon: float, seed: int, rows: int | None, device: str
) -> tuple[np.ndarray, np.ndarray, float]:
    """`scores`, or what they were when the same recipe was last tried on this machine."""
    what = json.dumps(
        [data.name, list(data.X.shape), recipe.described(), epsilon, seed, rows, device]
    )
    path = Path(
        tempfile.gettempdir(),
        "labeldp-deep-choose",
        hashlib.sha256(what.encode()).hexdigest()[:16] + ".npz",
    )
    if not path.exists():
        evidence, error, seconds = scores(recipe, data, epsilon, seed, rows, device)
        path.parent.mkdir(exist_ok=True)
        np.savez(path, evidence=evidence, error=error, seconds=seconds)
    with np.load(path) as file:
        return file["evidence"], file["error"], float(file["seconds"])


def main(arguments: Sequence[str]) -> None:
    """Compare variations of a recipe with the frozen one, and keep each."""
    options = parser("deep-choose", __doc__)
    options.add_argument("--table", choices=TABLES, default="fashion-mnist")
    options.add_argument("--size", choices=SIZES, default="cpu")
    options.add_argument("--method", default="ours-2")
    options.add_argument("--epsilon", type=float, default=1.0)
    options.add_argument("--seed", type=int, nargs="+", default=[0])
    options.add_argument("--vary", action="append", default=[], metavar="CHANGES")
    options.add_argument("--rows", type=int, help="learn from so many rows only")
    options.add_argument(
        "--always",
        default="",
        metavar="CHANGES",
        help="made to the frozen recipe first, as for --rows a smaller batch",
    )
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--device", default="cpu", help="cpu or cuda")
    options.add_argument("--half", action="store_true", help="images of half the height and width")
    options.add_argument("--report", action="store_true")
    args = options.parse_args(arguments)
    if args.report:
        print(report())
        return
    torch.set_num_threads(args.threads)
    data = halved(load(args.table)) if args.half else load(args.table)
    frozen = varied(method(args.table, args.size, args.method, args.epsilon), args.always)
    for seed in args.seed:
        base = None
        for change in ["", *args.vary]:
            recipe = varied(frozen, change)
            found, error, seconds = kept_scores(
                recipe, data, args.epsilon, seed, args.rows, args.device
            )
            base = (found, error) if base is None else base
            gain, change_of_error = found - base[0], error - base[1]
            record = {
                "table": args.table,
                "size": args.size,
                "method": args.method,
                "epsilon": args.epsilon,
                "seed": seed,
                "half": args.half,
                "learned_from": args.rows,
                "always": args.always,
                "change": change,
                "recipe": recipe.described(),
                "rows": len(found),
                "held_out": float(found.mean()),
                "gain": float(gain.mean()),
                "standard_error": float(gain.std() / np.sqrt(len(gain))),
                "error": float(error.mean()),
                "error_change": float(change_of_error.mean()),
                "error_standard_error": float(change_of_error.std() / np.sqrt(len(gain))),
                "training_seconds": round(seconds, 1),
                "threads": args.threads,
                "device": args.device,
                "precision": precision_used(recipe, args.device),
                "machine": machine(),
            }
            save(record)
            print(line(record), flush=True)


def save(record: Run) -> None:
    """Add one to what was tried, a line each."""
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(record) + "\n")


def line(record: Run) -> str:
    """Format one comparison: evidence in thousandths of a nat a row, error in thousandths."""
    gain, error = f"{'':16}", ""
    if record["change"]:
        gain = f"{1000 * record['gain']:+7.2f} +- {1000 * record['standard_error']:4.2f}"
    if "error" in record:
        error = f"error {1000 * record['error']:7.1f}"
        error += (
            f" {1000 * record['error_change']:+6.1f} +-"
            f" {1000 * record['error_standard_error']:4.1f}"
            if record["change"]
            else " " * 15
        )
    half = "half size, " if record.get("half") else ""
    half += f"{record['learned_from']} rows, " if record.get("learned_from") else ""
    where = f"{record['table']} {record['method']} eps {record['epsilon']:g} seed {record['seed']}"
    what = f"{half}{record['change'] or 'frozen'}"
    return (
        f"{where}: {1000 * record['held_out']:9.2f} {gain}  {error}"
        f" {record['training_seconds']:6.0f} s  {what}"
    )


def report() -> str:
    """Everything that was tried, in order."""
    return "\n".join(line(record) for record in map(json.loads, RESULTS.read_text().splitlines()))
