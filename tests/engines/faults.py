# SPDX-License-Identifier: Apache-2.0
"""Jobs that go wrong once, or always, in the workers of an engine."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

SENTINEL = "zq-sentinel-label"
ONCE = ("raise-before", "raise-after", "kill-before", "kill-after", "twice")


@dataclass(frozen=True)
class Faulty:
    """A job of which one partition goes wrong once; "twice" runs every partition twice, as
    speculation does.

    The marker is a file that whoever comes first creates.
    """

    job: Any
    mode: str
    marker: Path

    @property
    def schema(self) -> pa.Schema:
        return self.job.schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = list(batches)
        if self.mode == "poison":
            yield from self.job(poisoned())
            return
        if self.mode == "twice":
            self.marker.touch()
            list(self.job(iter(given)))
        if self.mode.endswith("before"):
            self._fail()
        found = list(self.job(iter(given)))
        if self.mode.endswith("after"):
            self._fail()
        yield from found

    def _fail(self) -> None:
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            return
        if self.mode.startswith("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("once")


def poisoned() -> Iterator[pa.RecordBatch]:
    """Input that Arrow finds fault with, in words that quote it."""
    pa.array([SENTINEL]).cast(pa.int64())
    yield from ()


@contextmanager
def injected(engine: type, target: str, mode: str, marker: Path) -> Iterator[None]:
    """Jobs of one kind are faulty."""
    flow: Any = vars(engine)["flow"]
    ordered: Any = vars(engine)["ordered_summaries"]

    def wrapped(job: Any) -> Any:
        return Faulty(job, mode, marker) if type(job).__name__ == target else job

    def faulty(self: Any, table: Any, job: Any, schema: Any) -> Any:
        return flow(self, table, wrapped(job), schema)

    def faulty_ordered(self: Any, table: Any, by: str, rows: int, job: Any) -> Any:
        return ordered(self, table, by, rows, wrapped(job))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "flow", faulty)
        patch.setattr(engine, "ordered_summaries", faulty_ordered)
        yield
