# SPDX-License-Identifier: Apache-2.0
"""Releases on a real Ray with two workers."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.engines.cluster_contract import Contract, files_below, watch
from tests.engines.test_engines_agree import read, spec_of, table, write

from labeldp.errors import InvalidInput
from labeldp.ledger._ledger import Ledger
from labeldp.tables import ray as on_ray
from labeldp.tables._place import Place
from labeldp.tables._spec import ReleaseSpec

__all__ = ["watch"]
pytestmark = pytest.mark.engines


class OnRay:
    engine = on_ray._Ray

    def __init__(self, ray: Any) -> None:
        self.ray = ray

    def release(self, source: Path, out: Path, spec: ReleaseSpec, ledger: Ledger) -> Any:
        return on_ray.release_dataset(on_ray.read(Place.of(source)), out, spec, ledger)

    def logs(self) -> list[Path]:
        return list(files_below(Path("/tmp/ray/session_latest/logs").resolve()))


class TestRay(Contract):
    @pytest.fixture
    def cluster(self, ray: Any) -> OnRay:
        return OnRay(ray)


def test_columns_and_order_are_kept(ray: Any, tmp_path: Path) -> None:
    rows = table(3000)
    rows = rows.append_column("category", pa.array([f"c{i % 7}" for i in range(3000)]).dictionary_encode())
    rows = rows.append_column("list", pa.array([[{"x": i}] for i in range(3000)]))
    source = write(rows, tmp_path / "in", 4)
    spec = spec_of(order="keep", id="id")
    out = on_ray.release(on_ray.read(Place.of(source)), tmp_path / "out", spec, Ledger(tmp_path / "ledger.db"))
    assert out.count() == 3000
    assert read(tmp_path / "out").drop_columns(["label"]).equals(rows.drop_columns(["label"]))


def test_other_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Ray Dataset, got Table"):
        on_ray.release(table(4), tmp_path / "out", spec_of(), Ledger(tmp_path / "ledger.db"))


def test_the_command_line(ray: Any, tmp_path: Path) -> None:
    from tests.cli.commands import run

    source = write(table(1000), tmp_path / "visits", 2)
    facts = ("--label", "label", "--epsilon", 1, "--classes", ",".join(map(str, range(10))), "--engine", "ray", "--id", "id")
    code, said, error = run("release", source, *facts, "--out", tmp_path / "out", "--ledger", tmp_path / "ledger.db")
    assert code == 0, error
    assert "1,000 rows" in said and "Dataset 'visits'" in said
    assert pq.read_table(tmp_path / "out").num_rows == 1000
