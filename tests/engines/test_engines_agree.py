# SPDX-License-Identifier: Apache-2.0
"""One charged run, picked up on every engine: the same rows, and in the keyed order the same order,
whatever the partitions."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labeldp.app._release import release
from labeldp.laws import Grid, LabelColumns
from labeldp.ledger._ledger import Ledger
from labeldp.tables import read_noisy
from labeldp.tables._release import Publication
from labeldp.tables._spec import ReleaseSpec

pytestmark = pytest.mark.engines
CLASSES = tuple(range(10))


def table(n: int) -> pa.Table:
    rng = np.random.default_rng(3)
    weights = rng.random((n, len(CLASSES)))
    ids = rng.permutation(n)
    columns: dict[str, Any] = {
        "id": ids,
        "name": [f"row-{i}" for i in ids],
        "first": ids // 1000,
        "second": [f"{i % 1000}" for i in ids],
        "label": rng.integers(0, len(CLASSES), n).astype(np.int32),
        "who": [f"person {i}" for i in rng.integers(0, n // 4, n)],
        "x": rng.standard_normal(n),
    }
    return pa.table(columns | {f"w{k}": weights[:, k] for k in CLASSES})


def narrow(n: int) -> pa.Table:
    """What a release of many rows needs."""
    rng = np.random.default_rng(4)
    labels = rng.integers(0, len(CLASSES), n).astype(np.int32)
    return pa.table(
        {"id": rng.permutation(n), "label": labels, "x": rng.standard_normal(n).astype(np.float32)}
    )


def write(rows: pa.Table, folder: Path, files: int, *, backwards: bool = False) -> Path:
    """The rows in numbered files; `backwards`: in another order of rows and files, and in many
    small row groups."""
    folder.mkdir(parents=True)
    rows = rows.take(np.arange(len(rows))[::-1]) if backwards else rows
    step = -(-len(rows) // files)
    for i in range(files):
        pq.write_table(
            rows.slice(i * step, step),
            folder / f"{i:02d}.parquet",
            row_group_size=step // 3 if backwards else None,
        )
    return folder


def crashed(source: Path, spec: ReleaseSpec, place: Path) -> Path:
    """The folder of a ledger with one run that was charged and died before it published."""
    place.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Publication, "publish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            release(source, place / "out", spec, Ledger(place / "ledger.db"))
    return place


def read(folder: Path) -> pa.Table:
    """The files in the order of their names, one after the other."""
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.iterdir())])


def outputs(
    tmp_path: Path,
    rows: pa.Table,
    spec: ReleaseSpec,
    run_on: dict[str, Callable[[Path, Path, Ledger], Any]],
) -> dict[str, pa.Table]:
    source = write(rows, tmp_path / "in", 3)
    other = write(rows, tmp_path / "other", 5, backwards=True)
    kept = crashed(source, spec, tmp_path / "crashed")
    found, ids = {}, set()
    for name, run in run_on.items():
        place = Path(shutil.copytree(kept, tmp_path / name))
        ledger = Ledger(place / "ledger.db")
        done = run(source if name == "local" else other, place / "out", ledger)
        (record,) = ledger.runs()
        assert record.state == "settled"
        ids.add(done.receipt.run_id)
        assert sorted(path.name for path in place.iterdir() if "labeldp" in path.name) == []
        found[name] = read(place / "out")
    assert len(ids) == 1
    return found


def engines(
    spec: ReleaseSpec, spark: Any, ray: Any
) -> dict[str, Callable[[Path, Path, Ledger], Any]]:
    from labeldp.tables import ray as on_ray
    from labeldp.tables import spark as on_spark
    from labeldp.tables._place import Place

    def with_spark(source: Path, out: Path, ledger: Ledger) -> Any:
        return on_spark.release_frame(
            spark.read.parquet(str(source)).repartition(4), out, spec, ledger
        )

    def with_ray(source: Path, out: Path, ledger: Ledger) -> Any:
        return on_ray.release_dataset(on_ray.read(Place.of(source)), out, spec, ledger)

    def here(source: Path, out: Path, ledger: Ledger) -> Any:
        return release(source, out, spec, ledger)

    return {"local": here, "again": here, "spark": with_spark, "ray": with_ray}


def spec_of(**changes: Any) -> ReleaseSpec:
    return ReleaseSpec(
        **(
            {"label": "label", "classes": CLASSES, "epsilon": 1.0, "id": "id", "dataset": "d"}
            | changes
        )
    )


def check(tmp_path: Path, rows: pa.Table, spark: Any, ray: Any, **changes: Any) -> pa.Table:
    spec = spec_of(**changes)
    found = outputs(tmp_path, rows, spec, engines(spec, spark, ray))
    first = found.pop("local")
    if spec.order == "keep":
        first, found = (
            first.sort_by("id"),
            {name: each.sort_by("id") for name, each in found.items()},
        )
    for name, each in found.items():
        assert each.schema.remove_metadata() == first.schema.remove_metadata(), name
        assert each.equals(first), name
    return first


@pytest.mark.nightly
def test_many_rows(tmp_path: Path, spark: Any, ray: Any) -> None:
    n = 300_000  # nine chunks
    rows = narrow(n)
    first = check(tmp_path, rows, spark, ray)
    assert first.num_rows == n
    ids = first["id"].to_numpy()
    assert np.array_equal(np.sort(ids), np.arange(n))
    assert abs(np.corrcoef(ids, np.arange(n))[0, 1]) < 0.01
    raw = rows.sort_by("id")["label"].to_numpy()
    kept = (first.sort_by("id")["label"].to_numpy() == raw).mean()
    assert abs(kept - np.e / (np.e + 9)) < 0.005  # six standard deviations


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"id": "name", "order": "keep"}, id="text"),
        pytest.param({"id": ("first", "second")}, id="composite"),
        pytest.param({"law": "subset"}, id="subset"),
        pytest.param({"prior": tuple(f"w{k}" for k in CLASSES)}, id="prior"),
        pytest.param({"unit": "who", "max_rows_per_unit": 2}, id="units"),
        pytest.param(
            {"unit": "who", "id": "name", "order": "keep", "law": "subset"}, id="units-kept"
        ),
    ],
)
def test_other_requests(tmp_path: Path, spark: Any, ray: Any, changes: dict[str, Any]) -> None:
    first = check(tmp_path, table(50_000), spark, ray, **changes)
    assert first.num_rows == 50_000 if "unit" not in changes else 10_000 < first.num_rows < 50_000
    assert ("label__evidence" in first.schema.names) is bool({"law", "prior"} & set(changes))


@pytest.mark.parametrize(
    ("column", "grid", "law"),
    [
        pytest.param("x", Grid(-2, 2, points=33), None, id="floats by interval"),
        pytest.param("first", Grid(0, 40, points=17), "rr", id="whole numbers that become floats"),
    ],
)
def test_numbers_of_a_range(
    tmp_path: Path, spark: Any, ray: Any, column: str, grid: Grid, law: str | None
) -> None:
    """Numbers between points are rounded, and those outside of the range clamped, alike
    everywhere."""
    rows = table(6000)
    first = check(tmp_path, rows, spark, ray, label=column, classes=grid, law=law, epsilon=30.0)
    assert first.num_rows == 6000 and first.schema.field(column).type == pa.float64()
    for engine in ("local", "spark", "ray"):
        noisy = read_noisy(tmp_path / engine / "out").by_id(rows["id"].to_numpy())
        assert noisy.classes == grid and isinstance(noisy.classes, Grid)
        # at epsilon 30 some of the 6,000 answers is wrong with a probability of 1e-8 at most
        codes = grid.codes(rows[column].to_numpy())
        assert (noisy.likelihood()[np.arange(6000), codes] == 1).all()


def with_columns(rows: pa.Table) -> tuple[pa.Table, LabelColumns]:
    """Further private columns, of text and numbers, and the declared classes of all."""
    rng, n = np.random.default_rng(5), len(rows)
    rows = rows.append_column("flag", pa.array(rng.choice(["a", "b"], n))).append_column(
        "number", pa.array(rng.normal(6, 3, n))
    )
    return rows, LabelColumns(
        {"flag": ["a", "b"], "label": list(CLASSES), "number": Grid(0, 12, points=5)}
    )


@pytest.mark.parametrize("split", ["joint", "one", "equal"])
def test_several_label_columns(tmp_path: Path, spark: Any, ray: Any, split: str) -> None:
    rows, columns = with_columns(table(2000))
    named = {
        "label": columns.name,
        "classes": columns,
        "law": columns.law(1.0, split),
        "id": "name",
        "unit": "who",
    }
    first = check(tmp_path, rows, spark, ray, **named, max_rows_per_unit=1)
    assert first.schema.names[-3:] == ["flag", "number", f"{columns.name}__evidence"]
    facts = []
    for engine in ("local", "spark", "ray"):
        noisy = read_noisy(tmp_path / engine / "out")
        assert noisy.classes == columns and noisy["number"].classes == columns.lists[2]
        ledger = Ledger(tmp_path / engine / "ledger.db")
        assert [ledger.spent("d", name) for name in columns.names] == [1.0] * 3
        facts.append(json.loads((tmp_path / engine / "out.manifest.json").read_text()))
    # the files are each engine's own, all else is the same: what was drawn, the law, the columns,
    # the charge
    drawn = [each.pop("digests")["drawn"] for each in facts]
    assert drawn == drawn[:1] * 3
    assert [sum(part["rows"] for part in each.pop("parts")) for each in facts] == [len(first)] * 3
    assert facts == facts[:1] * 3
