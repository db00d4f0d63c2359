# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random moments of a release: `python -m benchmarks faults [--engine local|spark|ray]
[--kills N]`.

Local: the driver is killed. Spark and Ray: one of the workers is. The same release is then asked
for again until it is done, and must be as if nothing had happened: equal to an undisturbed run
under the same secret, charged once, every row drawn under one key, nothing left behind after
`labeldp ledger repair`. Each kill is kept in results/faults.json.gz; a run that is broken off goes
on from there. `tests/tools/record_draws.py` notes the draws; the runs' secrets are drawn here.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.tools import record_draws

from benchmarks import common
from benchmarks.common import RESULTS, ROOT, command, load_json, machine, parser, save_json

RESULT = RESULTS / "faults.json.gz"
FULL = {"local": 200, "spark": 20, "ray": 20}
ROWS = {"local": 400_000, "spark": 400_000, "ray": 100_000}
K, FILES, TRIES = 10, 8, 5


def make_input(folder: Path, rows: int) -> None:
    """Several Parquet files with ids, labels and a feature, from a fixed seed."""
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "row": rng.permutation(rows),
            "label": rng.integers(0, K, rows, np.int32),
            "x": rng.random(rows, np.float32),
        }
    )
    folder.mkdir(parents=True)
    for i in range(FILES):
        pq.write_table(
            table.slice(i * rows // FILES, rows // FILES),
            folder / f"rows-{i}.parquet",
            row_group_size=1 << 15,
        )


def release(engine: str, table: Any, source: Path, place: Path) -> None:
    """One attempt at the release."""
    import labeldp

    spec = labeldp.ReleaseSpec("label", range(K), 1.0, id="row", dataset="faults")
    ledger = labeldp.Ledger(place / "ledger.db")
    if engine == "local":
        labeldp.release(source, place / "out", spec, ledger)
    elif engine == "spark":
        from labeldp.tables import spark

        spark.release_frame(table, place / "out", spec, ledger)
    else:
        from labeldp.tables import ray

        ray.release_dataset(table, place / "out", spec, ledger)


def release_when_told(source: Path, place: Path) -> None:
    """One attempt in this process; a line says when everything that it needs is imported."""
    import labeldp.app._release
    import labeldp.custody._request  # noqa: F401

    record_draws.install()
    print("ready", flush=True)
    with secrets_from(noted_secret):
        release("local", None, source, place)


@contextmanager
def secrets_from(fresh: Callable[[Any], Any]) -> Iterator[None]:
    """Let runs of this process have the secrets that a function of the ledger draws."""
    from labeldp.custody import _stream as stream

    before, stream.fresh_secret = stream.fresh_secret, fresh
    try:
        yield
    finally:
        stream.fresh_secret = before


def noted_secret(_: Any) -> Any:
    """A fresh secret, in the record too: the labels are made, and protect nobody."""
    from labeldp.noise._secrets import new_run_id, new_secret, run_secret_halves

    secret, run_id = new_secret(), new_run_id()
    record_draws.note({"run": run_id, "secret": bytes(secret).hex()})
    return run_secret_halves(secret, None, run_id)


def undisturbed(source: Path, place: Path, run_id: str, secret: bytes) -> pa.Table:
    """The same run, of the same secret, on one machine, with nothing in its way."""
    from labeldp.noise._secrets import Secret, run_secret_halves

    place.mkdir()
    with secrets_from(lambda ledger: run_secret_halves(Secret(secret), None, run_id)):
        release("local", None, source, place)
    return pq.read_table(place / "out")


def problems(source: Path, place: Path, record: Path, rows: int) -> list[str]:
    """List the differences from a run without the kill."""
    import labeldp
    from labeldp.ledger._repair import orphans

    ledger = labeldp.Ledger(place / "ledger.db")
    notes = [json.loads(line) for line in record.read_text().splitlines()]
    runs = ledger.runs()
    found = (
        []
        if [run.state for run in runs] == ["settled"]
        else [f"runs: {[run.state for run in runs]}"]
    )
    found += [] if ledger.spent("faults", "label") == 1.0 else ["charged more than once"]
    found += [f"ledger: {problem}" for problem in ledger.verify()]
    keys = {(note["run"], note["key"]) for note in notes if "key" in note}
    found += [] if len(keys) == 1 else [f"{len(keys)} keys drew"]
    out = pq.read_table(place / "out")
    secrets = {
        note["secret"] for note in notes if note.get("secret") and note["run"] == runs[0].run_id
    }
    expected = undisturbed(
        source, place / "undisturbed", runs[0].run_id, bytes.fromhex(secrets.pop())
    )
    found += (
        []
        if out.num_rows == rows and out.equals(expected)
        else ["not the rows of an undisturbed run"]
    )
    repair(ledger)
    found += [f"left behind: {orphan}" for orphan in orphans(ledger, minutes=1e-6)]
    strange = {path.name for path in place.iterdir()} - {
        "out",
        "out.manifest.json",
        "undisturbed",
        "record",
    }
    found += [f"left behind: {name}" for name in strange if not name.startswith("ledger.db")]
    return found


def repair(ledger: Any) -> None:
    """`labeldp ledger repair --yes`, of everything however new."""
    words = [
        sys.executable,
        "-m",
        "labeldp",
        "ledger",
        "repair",
        "--yes",
        "--older-than",
        "1e-6",
        "--ledger",
        str(ledger.location),
    ]
    subprocess.run(words, check=True, capture_output=True)


def environment(record: Path) -> dict[str, str]:
    """Return the environment of processes that note what they draw."""
    return common.environment() | {"LABELDP_RECORD": str(record)}


def kill_a_driver(source: Path, place: Path, moment: float | None) -> dict[str, object]:
    """Kill the process of a local release `moment` seconds after its start; None: let it be, and
    take the time."""
    release_alone = command("faults", "--release", str(source), str(place))
    env = environment(place / "record")
    with subprocess.Popen(
        release_alone, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        if child.stdout.readline().strip() != b"ready":
            raise RuntimeError("The release did not start; run it by hand.")
        start = time.perf_counter()
        if moment is None:
            return {"code": child.wait(), "seconds": time.perf_counter() - start}
        try:
            child.wait(moment)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
        code = child.wait()
    return {"killed": code == -signal.SIGKILL, "published": (place / "out").exists()}


def kill_a_worker(
    run: Callable[[], None], workers: Callable[[], list[int]], moment: float, rng: random.Random
) -> dict[str, object]:
    """Run a release and kill one of the engine's workers after `moment` seconds, or as soon as
    there is one."""
    killed: list[int] = []
    done = threading.Event()

    def kill() -> None:
        if done.wait(moment):
            return
        while not done.wait(0.01):
            found = workers()
            if found:
                killed.append(rng.choice(found))
                os.kill(killed[0], signal.SIGKILL)
                return

    thread = threading.Thread(target=kill)
    thread.start()
    failed = ""
    try:
        run()
    except Exception as error:
        failed = type(error).__name__
    finally:
        done.set()
        thread.join()
    return {"killed": bool(killed), "driver_saw": failed}


def processes(*marks: str) -> list[int]:
    """List the processes whose command line contains one of these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue
            if any(mark in line for mark in marks):
                found.append(int(entry.name))
    return found


class Local:
    """Releases in processes of their own."""

    def __init__(self, source: Path) -> None:
        self.source = source

    def disturb(self, place: Path, moment: float, rng: random.Random) -> dict[str, object]:
        """Kill the driver, then run it again until it is done."""
        said = kill_a_driver(self.source, place, moment)
        for attempt in range(1, TRIES + 1):
            if kill_a_driver(self.source, place, None)["code"] == 0:
                return said | {"attempts": attempt + 1}
        return said | {"attempts": TRIES + 1}


class Cluster:
    """Releases in one session, whose workers are killed."""

    def __init__(self, engine: str, source: Path, record: Path) -> None:
        from labeldp.tables._place import Place

        self.engine = engine
        self.marks: tuple[str, ...]
        os.environ.update(environment(record))
        if engine == "spark":
            from labeldp.tables import spark

            daemon = f"spark.python.daemon.module={record_draws.__name__}"
            os.environ["PYSPARK_SUBMIT_ARGS"] = f"--conf {daemon} pyspark-shell"
            session = spark.start()
            self.table = spark.read(session, Place.of(source)).repartition(6)
            self.marks = (record_draws.__name__,)
        else:
            import ray as engine_of_ray

            from labeldp.tables import ray

            hook = f"{record_draws.__name__}.install"
            engine_of_ray.init(
                include_dashboard=False,
                log_to_driver=False,
                runtime_env={"worker_process_setup_hook": hook},
            )
            ray.start()
            self.table, self.marks = ray.read(Place.of(source)), ("ray::",)
        self.source, self.record = source, record

    def workers(self) -> list[int]:
        """Processes that run our code now; of Spark the children of its daemon, of Ray those that
        have a task.

        Ray's agents are left alone: a node does not outlive them, and the only one here is the
        driver's.
        """
        found = processes(*self.marks)
        if self.engine == "ray":
            return [
                pid
                for pid in found
                if not any(name in _command(pid) for name in (b"IDLE", b"_Keeper", b"Agent"))
            ]
        return [pid for pid in found if _parent(pid) in found] or []

    def release(self, place: Path) -> None:
        """One attempt."""
        with secrets_from(noted_secret):
            release(self.engine, self.table, self.source, place)

    def disturb(self, place: Path, moment: float, rng: random.Random) -> dict[str, object]:
        """Kill a worker; where the engine gave up, ask again."""
        self.record.write_text("")
        said = kill_a_worker(lambda: self.release(place), self.workers, moment, rng)
        attempts = 1
        while (
            said["driver_saw"] and attempts < TRIES and not (place / "out.manifest.json").exists()
        ):
            attempts += 1
            try:
                self.release(place)
                break
            except Exception as error:
                said["driver_saw"] = f"{said['driver_saw']}, {type(error).__name__}"
        (place / "record").write_bytes(self.record.read_bytes())
        return said | {"attempts": attempts}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b"IDLE"


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return -1


def take(
    engine: str, kills: int, folder: Path, keep: Callable[[dict[str, object]], None], seed: int = 0
) -> None:
    """Make so many kills of running processes on an engine and keep what came of each attempt at
    one."""
    source, rows = folder / "in", ROWS[engine]
    make_input(source, rows)
    subject = Local(source) if engine == "local" else Cluster(engine, source, folder / "record")
    rng = random.Random(seed)
    whole = _seconds(subject, folder / "whole", rng)
    for i in itertools.count():
        if not kills:
            return
        place = folder / f"{engine}-{i}"
        place.mkdir()
        moment = rng.uniform(0, 1.02 * whole)
        said = subject.disturb(place, moment, rng)
        facts = {
            "moment": round(moment, 3),
            "of": round(whole, 3),
            **said,
            "problems": problems(source, place, place / "record", rows),
        }
        keep(facts)
        kills -= bool(said["killed"])
        shutil.rmtree(place)


def _seconds(subject: "Local | Cluster", place: Path, rng: random.Random) -> float:
    """Time an undisturbed release: the second one, since the first one warms up."""
    for _ in range(2):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        start = time.perf_counter()
        if isinstance(subject, Local):
            seconds = float(str(kill_a_driver(subject.source, place, None)["seconds"]))
        else:
            subject.release(place)
            seconds = time.perf_counter() - start
    return seconds


def table(kept: dict[str, Any]) -> str:
    """The kept kills, counted."""
    lines = ["| engine | killed | while running | attempts | problems |", "|---|---|---|---|---|"]
    for engine, each in kept.items():
        runs = each["kills"]
        killed = [run for run in runs if run["killed"]]
        bad = sum(bool(run["problems"]) for run in runs)
        lines.append(
            f"| {engine} | {len(runs)} | {len(killed)} | {sum(run['attempts'] for run in runs)} |"
            f" {bad} |"
        )
    return "\n".join(lines)


def tables() -> str:
    """The kept kills, counted."""
    return table(load_json(RESULT))


def main(arguments: Sequence[str]) -> None:
    """Make the kills that are still missing, keep each, print the table."""
    options = parser("faults", __doc__)
    options.add_argument(
        "--engine", choices=FULL, action="append", help="only this one; repeat it for several"
    )
    options.add_argument(
        "--kills",
        type=int,
        help="of each engine, while running; default: 200 locally, 20 on Spark and on Ray",
    )
    options.add_argument("--afresh", action="store_true", help="forget the kills that are kept")
    options.add_argument("--report", action="store_true", help="only print the table")
    options.add_argument("--release", nargs=2, type=Path, help=argparse.SUPPRESS)
    args = options.parse_args(arguments)
    if args.release:
        release_when_told(*args.release)
        return
    kept = load_json(RESULT) if RESULT.exists() and not args.afresh else {}
    for engine in () if args.report else args.engine or FULL:
        mine = kept.setdefault(
            engine, {"conditions": {"rows": ROWS[engine], "machine": machine()}, "kills": []}
        )
        wanted = args.kills or FULL[engine]

        def keep(facts: dict[str, object], mine: dict[str, Any] = mine) -> None:
            mine["kills"].append(facts)
            save_json(RESULT, kept)
            print(json.dumps(facts), file=sys.stderr, flush=True)

        missing = wanted - sum(run["killed"] for run in mine["kills"])
        with tempfile.TemporaryDirectory() as folder:
            take(engine, max(missing, 0), Path(folder), keep, seed=len(mine["kills"]))
    print(table(kept))
