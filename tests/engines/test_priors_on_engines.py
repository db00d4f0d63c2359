# SPDX-License-Identifier: Apache-2.0
"""Priors from tables and models on real engines: the same draws as on one machine, and a model that
is asked once for each charge."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from skops import io as skops_io
from tests.prior_models import JITTERY, Jittery, asked

from labeldp.app._release import Release, release
from labeldp.custody import _request as charge
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.ledger._ledger import Ledger
from labeldp.noise._words import SeededNoise
from labeldp.tables._place import Staging
from labeldp.tables._priors import PriorModel, PriorTable
from labeldp.tables._release import Publication
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.formats._table import WEIGHTS

pytestmark = [
    pytest.mark.engines,
    # Spark's and Ray's own
    *(
        pytest.mark.filterwarnings(f"ignore::{kind}")
        for kind in ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning")
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
N, FILES, CLASSES = 6000, 3, ("ash", "birch", "cedar", "sentinel-zz")
ROOT = str(Path(__file__).resolve().parents[2])


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    """Workers find the models of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]))
        yield


@pytest.fixture(params=["spark", "ray"])
def engine(request: pytest.FixtureRequest, _importable: None) -> str:
    request.getfixturevalue(request.param)
    return str(request.param)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rng = np.random.default_rng(8)
    codes = rng.integers(0, len(CLASSES), N)
    table = pa.table(
        {
            "id": rng.permutation(N) * 5 + 2,
            "cluster": [f"c{i}" for i in rng.integers(0, 30, N)],
            "y": [CLASSES[c] for c in codes],
            "x": codes + rng.standard_normal(N),
            "z": rng.standard_normal(N).astype(np.float32),
            "day": pa.array(rng.integers(0, 10**9, N), pa.timestamp("us", "UTC")),
        }
    )
    (tmp_path / "in").mkdir()
    for number, start in enumerate(range(0, N, N // FILES)):
        pq.write_table(table.slice(start, N // FILES), tmp_path / "in" / f"{number}.parquet")
    return tmp_path / "in"


def clusters(folder: Path) -> PriorTable:
    rng = np.random.default_rng(9)
    pq.write_table(
        pa.table({"cluster": [f"c{i}" for i in range(30)]} | {c: rng.random(30) for c in CLASSES}),
        folder / "p.parquet",
    )
    return PriorTable(folder / "p.parquet", "cluster")


def model(folder: Path, **options: Any) -> PriorModel:
    made = Jittery(str(folder / "asked.log"), **options).fit(np.zeros((4, 2)), np.array(CLASSES))
    (folder / "m.skops").write_bytes(skops_io.dumps(made))
    return PriorModel(folder / "m.skops", ["x", "z"], trust=[JITTERY])


def spec(prior: Any, **changes: Any) -> ReleaseSpec:
    return ReleaseSpec(
        **(
            {
                "label": "y",
                "classes": CLASSES,
                "epsilon": 1.5,
                "id": "id",
                "prior": prior,
                "dataset": "d",
            }
            | changes
        )
    )


def released(done: Release) -> pa.Table:
    table = pq.read_table(done.path)
    return table.replace_schema_metadata(None)


def hidden(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("table", {"law": "auto", "unit": "cluster", "max_rows_per_unit": 150}),
        ("model", {"unit": "cluster", "max_rows_per_unit": 150}),
        ("model", {"law": "auto", "order": "keep"}),
    ],
)
def test_engines_draw_as_one_machine_does(
    tmp_path: Path, source: Path, engine: str, kind: str, options: dict[str, Any]
) -> None:
    """Under one secret. The model is the same everywhere but for what the machine rounds, which
    this one does not leave to chance."""
    prior = clusters(tmp_path) if kind == "table" else model(tmp_path, jitter=0.0)
    found = []
    for name in ("local", engine):
        ledger = Ledger(tmp_path / f"ledger-{name}" / "ledger.db")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(charge, "new_secret", SeededNoise(3).secret)
            patch.setattr(charge, "new_run_id", lambda: "cd" * 16)
            done = release(source, tmp_path / f"out-{name}", spec(prior, **options), ledger, name)
        found.append((done, released(done)))
        assert ledger.spent("d", "y") == 1.5
        assert release(
            source, tmp_path / f"out-{name}", spec(prior, **options), ledger, name
        ).repeated
    (local, mine), (other, theirs) = found
    assert mine.schema.names == theirs.schema.names and mine.num_rows == theirs.num_rows
    if options.get("order") != "keep":
        assert mine["id"].equals(theirs["id"].cast(mine["id"].type))
    for name in mine.schema.names:
        assert mine.sort_by("id")[name].to_pylist() == theirs.sort_by("id")[name].to_pylist(), name
    assert local.manifest["prior"] == other.manifest["prior"]
    assert local.manifest.get("rows_over_the_cap") == other.manifest.get("rows_over_the_cap")
    assert hidden(tmp_path) == []


class Died(Exception):
    """Stands for a kill."""


def test_a_model_is_asked_once_though_the_release_died(
    tmp_path: Path, source: Path, engine: str
) -> None:
    prior, ledger = model(tmp_path), Ledger(tmp_path / "private" / "ledger.db")
    first: list[pa.Table] = []

    def die(self: Publication, run: Any, staging: Staging, facts: Any, parts: Any) -> None:
        folder = Path(staging.folder.path)
        first.append(pa.concat_tables(pq.read_table(folder / part.name) for part in parts))
        raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Publication, "publish", die)
        with pytest.raises(Died):
            release(source, tmp_path / "out", spec(prior), ledger, engine)
    assert asked(tmp_path / "asked.log") == N
    (folder,) = hidden(tmp_path)
    files = sorted(folder.iterdir())
    assert files and not any(b"sentinel-zz" in file.read_bytes() for file in files)
    assert pq.read_table(folder).column_names == ["id", WEIGHTS]
    # of another attempt at the same partition
    (folder / f"attempt-{0:032x}.parquet").write_bytes(files[0].read_bytes())
    done = release(source, tmp_path / "out", spec(prior), ledger, engine)
    assert released(done).equals(first[0].replace_schema_metadata(None))
    assert asked(tmp_path / "asked.log") == N
    assert [run.state for run in ledger.runs()] == ["settled"] and hidden(tmp_path) == []
    assert release(source, tmp_path / "out", spec(prior), ledger, engine).repeated
    assert asked(tmp_path / "asked.log") == N


def test_what_is_wrong_is_said_before_the_charge(tmp_path: Path, source: Path, engine: str) -> None:
    ledger = Ledger(tmp_path / "private" / "ledger.db")
    few = PriorTable(clusters(tmp_path).path, "cluster")
    pq.write_table(pq.read_table(tmp_path / "p.parquet").slice(1), tmp_path / "p.parquet")
    for prior, message in (
        (few, "a prior for every 'cluster'"),
        (model(tmp_path, fault="nan"), "finite weights"),
        (PriorModel(tmp_path / "m.skops", ["x", "nowhere"], trust=[JITTERY]), "nowhere"),
    ):
        with pytest.raises(InvalidInput, match=message):
            release(source, tmp_path / "out", spec(prior), ledger, engine)
    with pytest.raises(ReleaseError, match="gone"):
        release(
            source,
            tmp_path / "out",
            spec(PriorModel(tmp_path / "gone.skops", ["x"])),
            ledger,
            engine,
        )
    assert not ledger.runs() and hidden(tmp_path) == []
