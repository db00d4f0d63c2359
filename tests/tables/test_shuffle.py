# SPDX-License-Identifier: Apache-2.0
"""The external shuffle is a sort by words; publishing is all or nothing."""

import multiprocessing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from labeldp.errors import ReleaseError
from labeldp.tables._place import Place, workplace
from labeldp.tables.engines import _local as shuffle_module
from labeldp.tables.engines._local import Shuffle, order_of


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


def test_order_of_is_a_sort_also_where_words_are_nearly_equal() -> None:
    rng = np.random.default_rng(2)
    for words in (
        rng.integers(0, 1 << 64, 3000, np.uint64),
        rng.integers(0, 9, 500, np.uint64),
        np.zeros(1, np.uint64),
        np.zeros(0, np.uint64),
    ):
        np.testing.assert_array_equal(order_of(words), np.argsort(words, kind="stable"))
    same_prefix = rng.integers(0, 1 << 60, 3000, np.uint64) | np.uint64(5 << 60)
    np.testing.assert_array_equal(order_of(same_prefix, 4), np.argsort(same_prefix))


def test_buckets_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle_module, "BUCKET_BYTES", 8_000)
    shuffle = Shuffle(tmp_path, 10_000)
    shuffle.scatter(
        pa.record_batch({"i": np.arange(10_000)}),
        np.random.default_rng(0).integers(0, 1 << 64, 10_000, np.uint64),
    )
    assert max(batch.num_rows for batch in shuffle.gather()) < 1000


def test_nothing_scattered_is_nothing_gathered(tmp_path: Path) -> None:
    assert list(Shuffle(tmp_path, 100).gather()) == []


def test_workplace_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    out = tmp_path / "o.csv"
    with pytest.raises(ValueError, match="stop"), workplace(out) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "o.csv").write_text("x")
        raise ValueError("stop")
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "o.csv"
    left = tmp_path / ".o.csv.labeldp"
    left.mkdir(mode=0o700)
    (left / "bucket-000.arrow").write_text("old")
    with workplace(out) as folder:
        assert folder == left
        assert not (folder / "bucket-000.arrow").exists()
        (folder / "o.csv").write_text("done")
        Place.of(folder / "o.csv").move(Place.of(out))
    assert out.read_text() == "done"
    assert list(tmp_path.iterdir()) == [out]


def _hold(
    path: str, ready: "multiprocessing.synchronize.Event", go: "multiprocessing.synchronize.Event"
) -> None:
    with workplace(Path(path)):
        ready.set()
        go.wait(20)


def test_two_processes_do_not_share_an_output(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, go = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(str(tmp_path / "o.csv"), ready, go))
    other.start()
    assert ready.wait(30)
    with pytest.raises(ReleaseError, match="other process"), workplace(tmp_path / "o.csv"):
        pass
    go.set()
    other.join(20)
    assert other.exitcode == 0


def test_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="folder"), workplace(tmp_path / "none" / "o.csv"):
        pass
