# SPDX-License-Identifier: Apache-2.0
"""Runs of a column that share no rows do not add up on a cluster either, unless there are too many text ids to tell."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import labeldp as ldp
from labeldp.tables import distributed
from labeldp.tables import spark as engine

pytestmark = pytest.mark.engines


@pytest.mark.parametrize(("most", "spent"), [(distributed.MOST_NAMES, 1.0), (10, 2.0)])
def test_months_of_text_ids_add_up_only_where_there_are_too_many(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, spent: float
) -> None:
    monkeypatch.setattr(distributed, "MOST_NAMES", most)
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=9.0)
    for i, month in enumerate(("june", "july")):
        ids = [f"visit-{row}" for row in range(5000 * i, 5000 * (i + 1))]
        pq.write_table(pa.table({"visit": ids, "bought": np.zeros(5000, int)}), tmp_path / f"{month}.parquet")
        spec = ldp.ReleaseSpec("bought", [0, 1], 1.0, id="visit", dataset="visits")
        engine.release_frame(spark.read.parquet(str(tmp_path / f"{month}.parquet")), tmp_path / f"noisy-{month}", spec, ledger)
    assert ledger.spent("visits", "bought") == spent
