# SPDX-License-Identifier: Apache-2.0
"""What changes between a crash and the next attempt, and must not have a row's label drawn twice
for one charge."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import labeldp as ldp
from labeldp.app import stage
from labeldp.custody._stream import TableDraw
from labeldp.errors import BudgetExceeded, InvalidInput, LedgerError, ReleaseError
from labeldp.ledger._ledger import Ledger
from labeldp.tables._priors import PriorTable

N, K = 400, 4


class Killed(BaseException):
    """What a process that is gone would have done is not done."""


def dies(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """From now on a process ends where it would call this."""

    def end(*args: object, **options: object) -> None:
        raise Killed

    patch.setattr(owner, name, end)


def table(segments: int = 7) -> pa.Table:
    rng = np.random.default_rng(0)
    columns = {"id": np.arange(N), "segment": np.arange(N) % segments, "y": rng.integers(0, K, N)}
    return pa.table(columns | {f"p{c}": rng.random(N) + 0.1 for c in range(K)})


def weights(path: Path) -> Path:
    rng = np.random.default_rng(1)
    pq.write_table(
        pa.table({"segment": np.arange(20)} | {str(c): rng.random(20) ** 4 for c in range(K)}), path
    )
    return path


@pytest.mark.parametrize("dies_at", ["announce", "settle"])
def test_a_looked_up_prior_whose_keys_change_is_a_new_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    ledger, source = Ledger(tmp_path / "l.db"), tmp_path / "in.parquet"
    prior = PriorTable(weights(tmp_path / "prior.parquet"), key="segment")
    spec = ldp.ReleaseSpec(
        "y", list(range(K)), 1.0, "rr-with-prior", id="id", prior=prior, dataset="d"
    )
    pq.write_table(table(), source)
    with monkeypatch.context() as killing, pytest.raises(Killed):
        dies(killing, TableDraw, dies_at)
        ldp.release(source, tmp_path / "out.parquet", spec, ledger)
    # the same ids and labels, but the prior says something else of them
    pq.write_table(table(segments=11), source)
    with pytest.raises(BudgetExceeded):
        ldp.release(source, tmp_path / "other.parquet", spec, ledger)
    pq.write_table(table(), source)
    ldp.release(source, tmp_path / "out.parquet", spec, ledger)
    assert len(ledger.runs()) == 1


def test_a_stage_whose_folder_was_set_back_is_not_drawn_under_another_prior(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, source, where = Ledger(tmp_path / "l.db"), tmp_path / "in.parquet", tmp_path / "plan"
    pq.write_table(table(), source)
    stage.plan(
        where,
        ldp.ReleaseSpec("y", range(K), 1.0, "rr-with-prior", "id", dataset="d"),
        (0.3, 0.3, 0.4),
        ledger=ledger,
    )
    stage.release(stage.load(where, ledger), source, 1, tmp_path / "one.parquet")
    shutil.copytree(ledger.runs_dir, tmp_path / "backup")
    names = [f"p{c}" for c in range(K)]
    stage.release(stage.load(where, ledger), source, 2, tmp_path / "two.parquet", prior=names)
    shutil.rmtree(ledger.runs_dir)
    shutil.copytree(tmp_path / "backup", ledger.runs_dir)
    with pytest.raises((LedgerError, InvalidInput, ReleaseError)):
        stage.release(
            stage.load(where, ledger), source, 2, tmp_path / "again.parquet", prior=names[::-1]
        )
    assert not (tmp_path / "again.parquet").exists()
