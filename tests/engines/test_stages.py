# SPDX-License-Identifier: Apache-2.0
"""Stages on Spark and Ray: the same parts and labels as on one machine, under one charge."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import labeldp as ldp
from labeldp.app import stage
from labeldp.custody._staged import StageTurn
from labeldp.errors import InvalidInput
from labeldp.ledger._ledger import Ledger
from labeldp.tables._evidence import read_noisy

pytestmark = [  # the engines leave sockets open, and warn of their own settings
    pytest.mark.engines,
    *(
        pytest.mark.filterwarnings(f"ignore::{kind}")
        for kind in ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning")
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
N, K = 4000, 4
PRIOR = [f"p{c}" for c in range(K)]


class Killed(BaseException):
    """What a process that is gone would have done is not done."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rng = np.random.default_rng(2)
    weights = rng.random((N, K)) + 0.1
    columns: dict[str, Any] = {
        "id": rng.permutation(10 * N)[:N],
        "who": np.arange(N) // 3,
        "y": rng.integers(0, K, N).astype(np.int32),
    }
    table = pa.table(columns | {name: weights[:, c] for c, name in enumerate(PRIOR)})
    (tmp_path / "in").mkdir()
    for part in range(4):
        pq.write_table(table.slice(part * 1000, 1000), tmp_path / "in" / f"file-{part}.parquet")
    return tmp_path / "in"


@pytest.fixture(params=["spark", "ray"])
def engine(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue(request.param)
    return str(request.param)


def plan(folder: Path, **changes: Any) -> Path:
    parts = changes.pop("parts", (0.7, 0.3))
    facts: dict[str, Any] = {
        "label": "y",
        "classes": range(K),
        "epsilon": 1.0,
        "id": "id",
        "dataset": "d",
    } | changes
    stage.plan(folder / "plan", ldp.ReleaseSpec(**facts), parts, ledger=Ledger(folder / "l.db"))
    return folder / "plan"


def released(path: Any) -> pa.Table:
    return pq.read_table(path).sort_by("id")


@pytest.mark.parametrize("order", ["shuffle", "keep"])
def test_a_stage_that_died_on_one_engine_is_finished_alike_by_another(
    tmp_path: Path, source: Path, engine: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, tables = plan(tmp_path, order=order), []
    for number in (1, 2):
        prior = PRIOR if number == 2 else None
        out = tmp_path / f"dead-{number}"
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(StageTurn, "finish", _kill)  # it is published, and on no record
            stage.release(
                stage.load(where, Ledger(tmp_path / "l.db")), source, number, out, prior=prior
            )
        done = stage.release(
            stage.load(where, Ledger(tmp_path / "l.db")),
            source,
            number,
            tmp_path / f"out-{number}",
            prior=prior,
            engine=engine,
        )
        tables.append(released(done.path))
        assert not done.repeated and tables[-1].equals(released(out))
        assert done.manifest["rows_of_other_stages_or_over_the_cap"] == N - len(tables[-1])
        again = stage.release(
            stage.load(where, Ledger(tmp_path / "l.db")),
            source,
            number,
            tmp_path / f"out-{number}",
            prior=prior,
            engine=engine,
        )
        assert again.repeated and again.manifest["rows"] == len(tables[-1])
    assert sorted(pa.concat_tables(tables)["id"].to_pylist()) == sorted(
        pq.read_table(source)["id"].to_pylist()
    )
    assert [run.state for run in Ledger(tmp_path / "l.db").runs()] == ["settled"] and Ledger(
        tmp_path / "l.db"
    ).spent("d", "y") == 1.0
    noisy = ldp.concat([read_noisy(tmp_path / f"out-{number}") for number in (1, 2)])
    assert noisy.privacy.epsilon == 1.0 and noisy.evidenced.all()


def _kill(*_: Any, **__: Any) -> Any:
    raise Killed


def test_units_are_capped_before_the_parts(tmp_path: Path, source: Path, engine: str) -> None:
    where = plan(tmp_path, unit="who", max_rows_per_unit=2, law="rr", parts=(0.5, 0.5))
    tables = [
        released(
            stage.release(
                stage.load(where, Ledger(tmp_path / "l.db")),
                source,
                1,
                tmp_path / "one",
                engine=engine,
            ).path
        ),
        released(
            stage.release(
                stage.load(where, Ledger(tmp_path / "l.db")), source, 2, tmp_path / "two"
            ).path
        ),
    ]
    both = pa.concat_tables(tables)
    assert len(set(both["id"].to_pylist())) == len(both)
    counts = np.bincount(both["who"].to_numpy())
    np.testing.assert_array_equal(counts, np.minimum(np.bincount(np.arange(N) // 3), 2))


def test_changed_labels_are_refused(tmp_path: Path, source: Path, engine: str) -> None:
    where = plan(tmp_path)
    stage.release(
        stage.load(where, Ledger(tmp_path / "l.db")), source, 1, tmp_path / "one", engine=engine
    )
    table = pq.read_table(source / "file-0.parquet")
    labels = table["y"].to_numpy().copy()
    labels[0] = (labels[0] + 1) % K
    pq.write_table(table.set_column(2, "y", pa.array(labels)), source / "file-0.parquet")
    with pytest.raises(InvalidInput, match="some have changed"):
        stage.release(
            stage.load(where, Ledger(tmp_path / "l.db")),
            source,
            2,
            tmp_path / "two",
            prior=PRIOR,
            engine=engine,
        )
