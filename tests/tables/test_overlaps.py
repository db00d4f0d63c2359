# SPDX-License-Identifier: Apache-2.0
"""Releases of one column that share rows: only the rows they share pay twice."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import labeldp as ldp


def month(path: Path, ids: object) -> Path:
    """A table with these ids."""
    labels = np.random.default_rng(0).integers(2, size=len(ids))
    pq.write_table(pa.table({"row": ids, "bought": labels}), path)
    return path


def release(source: Path, ledger: ldp.Ledger, **options: object):
    spec = ldp.ReleaseSpec("bought", [0, 1], 1.0, id="row", dataset="visits", **options)
    return ldp.release(source, source.with_name(f"noisy-{source.name}"), spec, ledger)


def names(start: int, stop: int) -> pa.Array:
    return pa.array([f"visit-{i:08d}" for i in range(start, stop)])


def test_exactly_the_rows_that_were_released_before_are_at_twice_the_cost(tmp_path: Path) -> None:
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=2.0)
    release(month(tmp_path / "a.parquet", np.arange(1_000_000)), ledger)
    release(month(tmp_path / "b.parquet", np.arange(500_000, 2_000_000)), ledger)
    assert sorted(ledger.spent_by_rows("visits", "bought")) == [(1.0, 1_500_000), (2.0, 500_000)]
    assert ledger.spent("visits", "bought") == 2.0
    # new rows have their whole budget
    release(month(tmp_path / "c.parquet", np.arange(3_000_000, 3_000_010)), ledger)
    with pytest.raises(ldp.BudgetExceeded):
        release(month(tmp_path / "d.parquet", np.arange(999_999, 1_000_001)), ledger)
    assert len(ledger.runs()) == 3


@pytest.mark.parametrize("gone", [False, True], ids=["there", "moved away"])
def test_months_of_text_ids_do_not_add_up(tmp_path: Path, gone: bool) -> None:
    """Whatever became of the outputs: the ledger needs none of them."""
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=2.0)
    for i in range(3):
        done = release(
            month(tmp_path / f"{'abc'[i]}.parquet", names(20_000 * i, 20_000 * (i + 1))),
            ledger,
            overlap="refuse",
        )
        if gone:
            Path(done.path).unlink()
    assert ledger.spent_by_rows("visits", "bought") == [(1.0, 60_000)]
    again = month(tmp_path / "again.parquet", names(59_999, 60_010))
    with pytest.raises(ldp.errors.RowsOverlap, match="1 of them in run"):
        release(again, ledger, overlap="refuse")
    release(again, ledger)
    assert ledger.spent_by_rows("visits", "bought") == [(1.0, 60_009), (2.0, 1)]


def test_who_asks_for_it_is_refused_any_row_twice(tmp_path: Path) -> None:
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=9.0)
    release(month(tmp_path / "a.parquet", np.arange(100)), ledger)
    release(month(tmp_path / "b.parquet", np.arange(100, 200)), ledger, overlap="refuse")
    with pytest.raises(ldp.LedgerError, match="1 "):
        release(month(tmp_path / "c.parquet", np.arange(199, 300)), ledger, overlap="refuse")
    assert len(ledger.runs()) == 2


def test_people_are_told_apart_as_units(tmp_path: Path) -> None:
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=1.0)
    for i, name in enumerate("ab"):
        rows = np.arange(300 * i, 300 * (i + 1))
        table = pa.table({"row": rows, "who": rows // 3, "bought": rows % 2})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        release(tmp_path / f"{name}.parquet", ledger, unit="who", max_rows_per_unit=2)
    assert ledger.spent("visits", "bought") == 1.0
    # another row of a known person
    pq.write_table(pa.table({"row": [900], "who": [199], "bought": [1]}), tmp_path / "c.parquet")
    with pytest.raises(ldp.BudgetExceeded):
        release(tmp_path / "c.parquet", ledger, unit="who", max_rows_per_unit=2)


def test_people_are_told_apart_where_no_column_names_the_rows(tmp_path: Path) -> None:
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=1.0)
    for i, name in enumerate("abc"):
        who = pa.array([f"person {number // 2}" for number in range(200 * i, 200 * (i + 1))])
        pq.write_table(
            pa.table({"who": who, "bought": np.arange(200) % 2}), tmp_path / f"{name}.parquet"
        )
        spec = ldp.ReleaseSpec(
            "bought", [0, 1], 1.0, unit="who", max_rows_per_unit=2, dataset="visits"
        )
        ldp.release(tmp_path / f"{name}.parquet", tmp_path / f"noisy-{name}.parquet", spec, ledger)
    assert ledger.spent_by_rows("visits", "bought") == [(1.0, 300)]


def test_new_people_do_not_hide_rows_that_were_released_before(tmp_path: Path) -> None:
    ledger = ldp.Ledger(tmp_path / "ledger.db", budget=1.0)
    for name, who in (("a", np.arange(100)), ("b", 1000 + np.arange(100))):
        pq.write_table(
            pa.table({"row": np.arange(100), "who": who, "bought": np.arange(100) % 2}),
            tmp_path / f"{name}.parquet",
        )
    release(tmp_path / "a.parquet", ledger, unit="who")
    with pytest.raises(ldp.BudgetExceeded):
        release(tmp_path / "b.parquet", ledger, unit="who")


def test_a_unit_called_row_is_refused() -> None:
    """It would read as no unit at all."""
    with pytest.raises(ldp.InvalidInput, match="another name than 'row'"):
        ldp.ReleaseSpec("bought", [0, 1], 1.0, id="visit", unit="row", dataset="visits")
