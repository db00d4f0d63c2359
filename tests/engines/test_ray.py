# SPDX-License-Identifier: Apache-2.0
"""Releases on a real Ray with two workers."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.engines.cluster_contract import Contract, by_label, files_below, watch
from tests.engines.test_engines_agree import read, spec_of, table, write

from labeldp import Ledger, ReleaseSpec
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.tables import Place
from labeldp.tables import ray as on_ray

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
    rows = rows.append_column(
        "category", pa.array([f"c{i % 7}" for i in range(3000)]).dictionary_encode()
    )
    rows = rows.append_column("list", pa.array([[{"x": i}] for i in range(3000)]))
    source = write(rows, tmp_path / "in", 4)
    spec = spec_of(order="keep", id="id")
    out = on_ray.release(
        on_ray.read(Place.of(source)), tmp_path / "out", spec, Ledger(tmp_path / "ledger.db")
    )
    assert out.count() == 3000
    assert read(tmp_path / "out").drop_columns(["label"]).equals(rows.drop_columns(["label"]))


def test_other_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Ray Dataset, got Table"):
        on_ray.release(table(4), tmp_path / "out", spec_of(), Ledger(tmp_path / "ledger.db"))


def test_the_command_line(ray: Any, tmp_path: Path) -> None:
    from tests.cli.commands import run

    source = write(table(1000), tmp_path / "visits", 2)
    facts = (
        "--label",
        "label",
        "--epsilon",
        1,
        "--classes",
        ",".join(map(str, range(10))),
        "--engine",
        "ray",
        "--id",
        "id",
    )
    code, said, error = run(
        "release", source, *facts, "--out", tmp_path / "out", "--ledger", tmp_path / "ledger.db"
    )
    assert code == 0, error
    assert "1,000 rows" in said and "Dataset 'visits'" in said
    assert pq.read_table(tmp_path / "out").num_rows == 1000


def test_a_label_in_the_paths_is_refused_before_the_charge(ray: Any, tmp_path: Path) -> None:
    ledger, keys, named = (
        Ledger(tmp_path / "ledger.db"),
        by_label(tmp_path / "keys", "hive"),
        by_label(tmp_path / "named", None),
    )
    given = ray.data.read_parquet(str(keys))
    mapped = given.map_batches(lambda block: block, batch_format="pyarrow")
    for dataset in (
        given,
        on_ray.read(Place.of(keys)),
        mapped,
        given.union(mapped),
        mapped.repartition(3),
    ):
        with pytest.raises(InvalidInput, match="got 'label' as a partition's key"):
            on_ray.release(dataset, tmp_path / "out", spec_of(order="keep"), ledger)
    with pytest.raises(InvalidInput, match="named like a class"):
        on_ray.release(ray.data.read_parquet(str(named)), tmp_path / "out", spec_of(), ledger)
    assert ledger.runs() == []
    assert (
        on_ray.release(
            ray.data.read_parquet(str(named)), tmp_path / "out", spec_of(order="keep"), ledger
        ).count()
        == 400
    )


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.nulls(400, pa.month_day_nano_interval()), "month_day_nano_interval"),
        (pa.array([{}] * 400, pa.struct([])), "struct"),
        (pa.DictionaryArray.from_arrays([0] * 400, pa.array([[1, 2]])), "dictionary"),
    ],
)
def test_a_column_that_parquet_cannot_hold_is_named_before_the_charge(
    ray: Any, tmp_path: Path, column: pa.Array, kind: str
) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    dataset = ray.data.from_arrow(table(400).append_column("odd", column))
    with pytest.raises(InvalidInput, match=f"Parquet can hold, got 'odd' of type {kind}"):
        on_ray.release(dataset, tmp_path / "out", spec_of(), ledger)
    assert ledger.runs() == []


def test_units_may_be_categories(ray: Any, tmp_path: Path) -> None:
    rows = (
        table(200)
        .drop_columns(["who"])
        .append_column("who", pa.array([f"p{i // 4}" for i in range(200)]).dictionary_encode())
    )
    spec = spec_of(unit="who", max_rows_per_unit=3)
    done = on_ray.release_dataset(
        ray.data.from_arrow([rows.slice(0, 90), rows.slice(90)]),
        tmp_path / "out",
        spec,
        Ledger(tmp_path / "l.db"),
    )
    assert done.manifest["rows_over_the_cap"] == 50
    kept = read(tmp_path / "out")["who"].cast(pa.string()).to_pylist()
    assert len(kept) == 150 and max(map(kept.count, kept)) == 3


def test_blocks_may_lack_a_column(ray: Any, tmp_path: Path) -> None:
    rows = table(200).select(["id", "label"])
    first, more = rows.slice(0, 100), rows.slice(100).append_column("more", pa.array([1.5] * 100))
    on_ray.release_dataset(
        ray.data.from_arrow([first, more]), tmp_path / "out", spec_of(), Ledger(tmp_path / "l.db")
    )
    found = read(tmp_path / "out").sort_by("id")
    assert found.filter(found["more"].is_valid())["id"].to_pylist() == sorted(
        more["id"].to_pylist()
    )


def test_a_column_whose_type_does_not_hold_all_values_is_named(ray: Any, tmp_path: Path) -> None:
    rows = table(200).select(["id", "label"])
    first = rows["id"][0].as_py()

    def more(block: pa.Table) -> pa.Table:
        return block.append_column(
            "more", pa.array([1 if first in block["id"].to_pylist() else 1.5] * len(block))
        )

    blocks, ledger = (
        ray.data.from_arrow([rows.slice(0, 100), rows.slice(100)]),
        Ledger(tmp_path / "l.db"),
    )
    differ = blocks.map_batches(more, batch_format="pyarrow", batch_size=None)
    with pytest.raises(ReleaseError, match="Expected column 'more' of type int64 in all parts"):
        on_ray.release_dataset(differ, tmp_path / "out", spec_of(), ledger)
    done = on_ray.release_dataset(blocks, tmp_path / "out", spec_of(), ledger)
    assert not done.repeated and ledger.spent("d", "label") == 1.0


def test_ids_of_two_types_are_those_of_the_table(ray: Any, tmp_path: Path) -> None:
    rows = table(200).select(["id", "label"])
    first = rows["id"][0].as_py()

    def as_text(block: pa.Table) -> pa.Table:
        return (
            block
            if first in block["id"].to_pylist()
            else block.set_column(0, "id", block["id"].cast(pa.string()))
        )

    blocks = ray.data.from_arrow([rows.slice(0, 100), rows.slice(100)]).map_batches(
        as_text, batch_format="pyarrow", batch_size=None
    )
    on_ray.release_dataset(blocks, tmp_path / "out", spec_of(), Ledger(tmp_path / "l.db"))
    assert read(tmp_path / "out")["id"].sort().to_pylist() == list(range(200))
