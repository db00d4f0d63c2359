# SPDX-License-Identifier: Apache-2.0
"""The external shuffle is a sort by words; publishing is all or nothing."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from labeldp.tables.engines._local import Shuffle


@pytest.mark.parametrize("total_rows", [0, 1 << 18, 1 << 23, 1 << 40])
def test_rows_come_out_sorted_by_word(tmp_path: Path, total_rows: int) -> None:
    rng = np.random.default_rng(1)
    shuffle = Shuffle(tmp_path, total_rows)
    words = rng.integers(0, 1 << 64, 5000, np.uint64, endpoint=False)
    for part in np.array_split(np.arange(5000), 7):
        text = pa.array([f"r{i}" for i in part]).dictionary_encode()
        shuffle.scatter(pa.record_batch({"i": pa.array(part), "s": text}), words[part])
    out = pa.Table.from_batches(list(shuffle.gather()))
    np.testing.assert_array_equal(out["i"].to_numpy(), np.argsort(words))
    assert out["s"].to_pylist() == [f"r{i}" for i in np.argsort(words)]
    assert out.column_names == ["i", "s"]
    assert not list(tmp_path.iterdir())
