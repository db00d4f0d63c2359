# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random moments of a fit in three stages: `python -m benchmarks deep-resume [--kills
N]`.

A moment is a count of what the fit does (batches, draws, files written), so that a seed says where
each kill falls. The fit is then called again, and perhaps killed again, until it is done, and must
be as if nothing had happened: labels, model and history equal to those of an undisturbed run under
the same secret, charged once, each row drawn under one key, no finished stage trained again,
nothing left behind after `labeldp ledger repair`. Each kill is kept in
benchmarks/results/deep-resume.json.gz; a run that is broken off goes on from there.
"""

import functools
import hashlib
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import labeldp
from benchmarks.common import RESULTS, Run, load_json, machine, parser, save_json
from labeldp.custody import _draw as worker
from labeldp.custody import _request as charge
from labeldp.custody import _run as run
from labeldp.deep import TorchClassifier, models
from labeldp.deep import _loop as loop
from labeldp.deep import _stages as stages
from labeldp.deep.schedules import cosine
from labeldp.ledger import _repair as ledger_repair
from labeldp.noise._secrets import Secret, run_secret_halves

RESULT = RESULTS / "deep-resume.json.gz"
KILLS, ROWS, K, STAGES = 50, 600, 4, 3
TRIES = 4
KILLED = -signal.SIGKILL

Notes = list[dict[str, Any]]


def fit(place: Path) -> TorchClassifier:
    """One attempt at the fit."""
    rng = np.random.default_rng(0)
    y = rng.integers(K, size=ROWS)
    X = (3 * np.eye(K)[y] + rng.normal(size=(ROWS, K))).astype(np.float32)
    net = TorchClassifier(
        lambda k: models.Mlp(K, k, (8,)),
        recipe=loop.Recipe(
            epochs=2,
            batch_size=64,
            rate=0.05,
            precision="float32",
            schedule=cosine,
            optimizer=loop.Optimizer("sgd", clip=math.inf),
        ),
        stages=STAGES,
        validation_fraction=0.1,
        random_state=0,
        folder=place / "fit",
    )
    labels = labeldp.PrivateLabels(
        y,
        classes=range(K),
        dataset="resume",
        column="label",
        ledger=labeldp.Ledger(place / "ledger.db"),
    )
    return net.fit(X, labels)


# A process of its own, which notes what it does and is killed at a moment
# -----------------------------------------------------------


def attempt(place: Path, moment: int | None = None, secret: dict[str, str] | None = None) -> int:
    """Fit in a forked process; its exit status, negative for the signal that ended it. What it did
    is added to `place / "notes"`.

    The parent must not have computed anything: threads do not survive a fork.
    """
    place.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            note_models(place)
            watch(place / "notes", moment, secret)
            model = fit(place)
            note_models(place)
            model.noisy_labels_.save(place / "noisy.parquet")
            history = [
                [[epoch.number, epoch.loss, epoch.held_out] for epoch in each]
                for each in model.history_
            ]
            torch.save(
                {"weights": model.module_.state_dict(), "history": history}, place / "model.pt"
            )
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def watch(file: Path, moment: int | None, secret: dict[str, str] | None) -> None:
    """Note draws, trainings and the run's secret, and kill this process at the given moment."""
    note = functools.partial(_note, file)
    count = 0

    def tick(what: str) -> None:
        nonlocal count
        count += 1
        if count == moment:
            note(killed=what, at=count)
            os.kill(os.getpid(), signal.SIGKILL)
        note(moment=what)

    for home, name in (
        (os, "fsync"),
        (os, "replace"),
        (os, "link"),
        (torch.optim.SGD, "step"),
        (worker, "draw"),
    ):
        setattr(home, name, _ticking(getattr(home, name), name, tick))
    _note_draws(note)
    _note_trainings(note)
    fresh = charge.fresh_secret

    def kept(ledger: Any) -> Any:
        halves = (
            fresh(ledger)
            if secret is None
            else run_secret_halves(Secret(bytes.fromhex(secret["secret"])), None, secret["run"])
        )
        note(run=halves.run_id, secret=bytes(halves.secret).hex())
        return halves

    charge.fresh_secret = kept


def _ticking(
    function: Callable[..., Any], name: str, tick: Callable[[str], None]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def ticking(*args: Any, **named: Any) -> Any:
        tick(f"before {name}")
        found = function(*args, **named)
        tick(f"after {name}")
        return found

    return ticking


def _note_draws(note: Callable[..., None]) -> None:
    begin, draw = run.Run._draw, worker.draw
    rows: list[int] = []

    def begun(self: Any, chosen: Any, *args: Any) -> Any:
        rows[:] = np.asarray(chosen).tolist()
        return begin(self, chosen, *args)

    def drawn(law: Any, codes: Any, key: Any, *args: Any) -> Any:
        note(key=hashlib.sha256(key.material("RowWords")).hexdigest(), rows=list(rows))
        return draw(law, codes, key, *args)

    run.Run._draw, worker.draw = begun, drawn


def _note_trainings(note: Callable[..., None]) -> None:
    learn = stages.Trainer.learn

    def learned(self: Any, module: Any, model: Any, *args: Any, **more: Any) -> Any:
        note(train=1 if model is None else model.number + 1)
        return learn(self, module, model, *args, **more)

    stages.Trainer.learn = learned


def note_models(place: Path) -> None:
    """Note which stages have a model on disk."""
    for path in sorted(place.glob("fit/model-*.pt")):
        _note(place / "notes", kept=int(path.stem.removeprefix("model-")))


def _note(file: Path, **facts: object) -> None:
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, json.dumps(facts).encode() + b"\n")
    finally:
        os.close(handle)


def notes_of(place: Path) -> Notes:
    """Read the notes that the attempts have left at a place."""
    return [json.loads(line) for line in (place / "notes").read_text().splitlines()]


# What must not have happened
# --------------------------------------------------------------------------------------------------


def problems(place: Path) -> list[str]:
    """List the differences from a run without kills."""
    found, notes, ledger = [], notes_of(place), labeldp.Ledger(place / "ledger.db")
    runs = ledger.runs()
    found += (
        []
        if [each.state for each in runs] == ["settled"]
        else [f"runs: {[each.state for each in runs]}"]
    )
    found += [] if ledger.spent("resume", "label") == 1.0 else ["charged more than once"]
    found += [f"ledger: {problem}" for problem in ledger.verify()]
    keys: dict[int, set[str]] = {row: set() for row in range(ROWS)}
    for each in notes:
        for row in each.get("rows", ()):
            keys[row].add(each["key"])
    found += (
        []
        if {len(each) for each in keys.values()} == {1}
        else ["a row was drawn under no key, or under several"]
    )
    done: set[int] = set()
    for each in notes:
        found += [f"stage {each['train']} was trained again"] if each.get("train") in done else []
        done |= {each["kept"]} if "kept" in each else set()
    return found + _differences(place, runs[0].run_id) + _left_behind(place, ledger)


def _differences(place: Path, run_id: str) -> list[str]:
    """List the differences from an undisturbed run under the same secret."""
    (secret,) = {each["secret"] for each in notes_of(place) if each.get("run") == run_id}
    other = place / "undisturbed"
    if attempt(other, secret={"run": run_id, "secret": secret}):
        return ["the undisturbed run failed"]
    # without the proof of each row, which names the charge and its time
    mine, theirs = (
        labeldp.NoisyLabels.load(folder / "noisy.parquet").to_table().drop_columns(["proof"])
        for folder in (place, other)
    )
    found = [] if mine.equals(theirs) else ["other labels than those of an undisturbed run"]
    kept, expected = (torch.load(folder / "model.pt") for folder in (place, other))
    same = all(torch.equal(w, expected["weights"][name]) for name, w in kept["weights"].items())
    return found + (
        []
        if same and kept["history"] == expected["history"]
        else ["another model than that of an undisturbed run"]
    )


def _left_behind(place: Path, ledger: labeldp.Ledger) -> list[str]:
    ledger_repair.repair(ledger, ledger_repair.orphans(ledger, minutes=1e-9), shutil.rmtree)
    left = [str(orphan) for orphan in ledger_repair.orphans(ledger, minutes=1e-9)]
    expected = {
        "plan.json",
        "initial.pt",
        "receipt.json",
        *(f"model-{n}.pt" for n in range(1, STAGES + 1)),
    }
    expected |= {
        f"drawn-{name}.json"
        for name in ("validation", *(f"stage-{n}" for n in range(1, STAGES + 1)))
    }
    return [
        f"left behind: {name}"
        for name in (*left, *sorted({path.name for path in (place / "fit").iterdir()} ^ expected))
    ]


def in_a_process(function: Callable[..., Any], *args: Any) -> Any:
    """Compute a function's result in a forked process, so that this one stays fit to be forked."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            os.write(write, json.dumps(function(*args)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(said or b'["the check itself failed"]')


def trial(place: Path, rng: random.Random, whole: int) -> dict[str, Any]:
    """Kill a fit once or twice, call it again until it is done, and look at what came of it."""
    codes = []
    for _ in range(rng.choice((1, 2))):
        codes.append(attempt(place, rng.randint(1, whole)))
    while codes[-1] and len(codes) < TRIES:
        codes.append(attempt(place))
    said = [
        {"at": each["at"], "what": each["killed"]} for each in notes_of(place) if "killed" in each
    ]
    facts = {"kills": said, "attempts": len(codes)}
    return facts | {"problems": in_a_process(problems, place) if codes[-1] == 0 else ["never done"]}


def moments(place: Path) -> int:
    """Count the moments of an undisturbed fit at which it can be killed."""
    if attempt(place):
        raise RuntimeError("The undisturbed fit failed; its error is above.")
    return sum("moment" in each for each in notes_of(place))


def table(kept: dict[str, Any]) -> str:
    """The kept kills, counted by what was going on."""
    kills = [kill["what"] for each in kept["trials"] for kill in each["kills"]]
    lines = [
        "| killed | times |",
        "|---|---|",
        *(f"| {what} | {kills.count(what)} |" for what in sorted(set(kills))),
    ]
    bad = sum(bool(each["problems"]) for each in kept["trials"])
    return "\n".join(
        [
            *lines,
            f"| all, of {len(kept['trials'])} fits | {len(kills)} |",
            f"| fits with problems | {bad} |",
        ]
    )


def tables() -> str:
    """The kept kills, counted."""
    return table(load_json(RESULT))


def main(arguments: Sequence[str]) -> None:
    """Make the kills that are still missing, keep each, print the table."""
    options = parser("deep-resume", __doc__)
    options.add_argument("--kills", type=int, default=KILLS)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--report", action="store_true", help="only print the table")
    args = options.parse_args(arguments)
    fresh: Run = {
        "conditions": {
            "rows": ROWS,
            "stages": STAGES,
            "torch": torch.__version__,
            "machine": machine(),
        },
        "trials": [],
    }
    kept = load_json(RESULT) if RESULT.exists() else fresh
    with tempfile.TemporaryDirectory() as folder:
        whole = 0 if args.report else moments(Path(folder) / "whole")
        while not args.report and sum(len(each["kills"]) for each in kept["trials"]) < args.kills:
            place, number = Path(folder) / "trial", len(kept["trials"])
            kept["trials"].append(trial(place, random.Random(f"{args.seed}/{number}"), whole))
            save_json(RESULT, kept)
            print(json.dumps(kept["trials"][-1]), file=sys.stderr, flush=True)
            shutil.rmtree(place)
    print(table(kept))
