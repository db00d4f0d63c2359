# SPDX-License-Identifier: Apache-2.0
"""What every test shares: one thread per process, a ledger of its own, and Hypothesis without
deadlines."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.entropy import seeded

import labeldp as ldp

settings.register_profile(
    "labeldp",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("labeldp")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Names must not hold addresses: parallel runs compare the names that each process collected.
    What takes many repetitions waits for the night."""
    if not os.environ.get("LABELDP_NIGHTLY"):
        items[:] = [item for item in items if item.get_closest_marker("nightly") is None]
    unstable = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if unstable:
        raise pytest.UsageError(
            f"Expected names of tests that are the same in every process, got {unstable}. Give the"
            " parameters ids."
        )


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets of this process are from a seed, also behind a ledger."""
    monkeypatch.setattr(os, "urandom", seeded())


@pytest.fixture(autouse=True)
def own_ledger(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A default ledger in a folder of this test, so that no test spends from, or writes to, the
    user's own."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    monkeypatch.setenv("LABELDP_LEDGER", str(path))
    return path


@pytest.fixture
def ledger(tmp_path: Path, request: pytest.FixtureRequest) -> ldp.Ledger:
    """A ledger in a folder of its own, with the module's `BUDGET` for each column; without one a
    column has the budget of its first charge."""
    budget = getattr(request.module, "BUDGET", None)
    return ldp.Ledger(tmp_path / "private" / "ledger.db", budget=budget)
