# SPDX-License-Identifier: Apache-2.0
"""Runs of a column that share no rows do not add up on a cluster either, unless there are too many
text ids to tell."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import labeldp as ldp
from labeldp.tables import spark as engine
from labeldp.tables.engines import _cluster as distributed

pytestmark = pytest.mark.engines


@pytest.mark.parametrize(("most", "spent"), [(distributed.MOST_NAMES, 1.0), (10, 2.0)])
def test_months_of_text_ids_add_up_only_where_there_are_too_many(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, spent: float
) -> None:
    monkeypatch.setattr(distributed, "MOST_NAMES", most)
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=9.0)
    for i, month in enumerate(("june", "july")):
        ids = [f"visit-{row}" for row in range(5000 * i, 5000 * (i + 1))]
        pq.write_table(
            pa.table({"visit": ids, "bought": np.zeros(5000, int)}), tmp_path / f"{month}.parquet"
        )
        spec = ldp.ReleaseSpec("bought", [0, 1], 1.0, id="visit", dataset="visits")
        engine.release_frame(
            spark.read.parquet(str(tmp_path / f"{month}.parquet")),
            tmp_path / f"noisy-{month}",
            spec,
            ledger,
        )
    assert ledger.spent("visits", "bought") == spent


@pytest.mark.parametrize("text", [False, True], ids=["integers", "text"])
def test_rows_and_people_are_told_apart_side_by_side(
    spark: Any, tmp_path: Path, text: bool
) -> None:
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=1.0)

    def release(name: str, rows: range, people: range) -> None:
        who = [person for person in people for _ in range(2)]
        named = [
            [f"{kind} {value}" if text else value for value in values]
            for kind, values in (("row", rows), ("person", who))
        ]
        pq.write_table(
            pa.table({"visit": named[0], "who": named[1], "bought": np.arange(len(rows)) % 2}),
            tmp_path / f"{name}.parquet",
        )
        spec = ldp.ReleaseSpec(
            "bought", [0, 1], 1.0, id="visit", unit="who", max_rows_per_unit=2, dataset="visits"
        )
        engine.release_frame(
            spark.read.parquet(str(tmp_path / f"{name}.parquet")),
            tmp_path / f"noisy-{name}",
            spec,
            ledger,
        )

    release("june", range(200), range(100))
    release("july", range(200, 400), range(100, 200))
    assert ledger.spent_by_rows("visits", "bought") == [(1.0, 200)]
    for name, rows, people in (
        ("known people", range(400, 402), range(7, 8)),
        ("known rows", range(20, 22), range(900, 901)),
    ):
        with pytest.raises(ldp.BudgetExceeded):
            release(name, rows, people)


def test_text_ids_that_repeat_are_refused(spark: Any, tmp_path: Path) -> None:
    ids = [f"visit-{row % 4999}" for row in range(5000)]
    pq.write_table(
        pa.table({"visit": ids, "bought": np.zeros(5000, int)}), tmp_path / "june.parquet"
    )
    spec = ldp.ReleaseSpec("bought", [0, 1], 1.0, id="visit", dataset="visits")
    ledger = ldp.Ledger(tmp_path / "ledger.db")
    with pytest.raises(ldp.InvalidInput, match="more than once"):
        engine.release_frame(
            spark.read.parquet(str(tmp_path / "june.parquet")), tmp_path / "noisy", spec, ledger
        )
    assert ledger.runs() == []
