# SPDX-License-Identifier: Apache-2.0
"""Tables, names and places that a release must refuse before it charges, and what is seen of those
that it takes."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import labeldp as ldp
from labeldp.app import stage
from labeldp.custody._staged import Stage
from labeldp.errors import InvalidInput, LabelDPError
from labeldp.tables._evidence import read_noisy
from labeldp.tables.engines._cluster import CHECK, KEPT, NAME, ROW_COUNT, WORD
from labeldp.tables.engines._local import Facts
from labeldp.tables.formats._parquet import open_table
from labeldp.tables.formats._table import WEIGHTS

SPEC = ldp.ReleaseSpec("y", [0, 1, 2], 1.0, id="id", dataset="d")


def write(path: Path, n: int = 50, **columns: object) -> Path:
    rng = np.random.default_rng(0)
    pq.write_table(pa.table({"id": np.arange(n), "y": rng.integers(0, 3, n), **columns}), path)
    return path


@pytest.mark.parametrize("name", [WEIGHTS, WORD, KEPT, ROW_COUNT, NAME, *CHECK])
def test_columns_that_a_release_would_take_for_its_own(
    tmp_path: Path, ledger: ldp.Ledger, name: str
) -> None:
    with pytest.raises(InvalidInput, match="begin with"):
        ldp.release(
            write(tmp_path / "in.parquet", **{name: np.zeros(50)}),
            tmp_path / "out.parquet",
            SPEC,
            ledger,
        )
    assert not ledger.exists()


def test_stages_of_different_cost_are_no_plan() -> None:
    with pytest.raises(InvalidInput, match="one epsilon"):
        Stage(
            "0" * 32,
            1,
            [ldp.RandomizedResponse(3, 1.0), ldp.RandomizedResponse(3, 5.0)],
            (0.5, 0.5),
        )


def test_a_stage_without_rows_is_an_empty_table(tmp_path: Path) -> None:
    source, ledger = write(tmp_path / "in.parquet", n=3), ldp.Ledger(tmp_path / "l.db")
    spec = ldp.ReleaseSpec("y", [0, 1, 2], 1.0, "rr", "id", dataset="d")
    stage.plan(tmp_path / "plan", spec, (1 - 1e-12, 1e-12), ledger=ledger)
    for number, rows in ((1, 3), (2, 0)):
        done = stage.release(
            stage.load(tmp_path / "plan", ledger), source, number, tmp_path / f"{number}.parquet"
        )
        assert done.manifest["rows"] == pq.read_table(done.path).num_rows == rows
    assert len(read_noisy(tmp_path / "1.parquet")) == 3
    assert ledger.runs()[0].state == "settled"


def test_what_holds_raw_labels_does_not_show_them(tmp_path: Path) -> None:
    facts = Facts(np.array([31337], np.int32), None, None, None)
    (tmp_path / "t.csv").write_text("y\nsentinel\n")
    (batch,) = open_table(tmp_path / "t.csv").batches()
    assert batch.column("y").to_pylist() == ["sentinel"]
    assert (
        "31337" not in repr(facts)
        and "array" not in repr(facts)
        and "sentinel" not in repr(batch) + str(batch)
    )


@pytest.mark.parametrize("to", ["the input", "nowhere", "another file"])
@pytest.mark.parametrize("many", [False, True])
def test_a_link_in_the_outputs_place(
    tmp_path: Path, ledger: ldp.Ledger, to: str, many: bool
) -> None:
    if many:
        (tmp_path / "in").mkdir()
    source = write(tmp_path / "in" / "a.parquet" if many else tmp_path / "in.parquet")
    given = source.parent if many else source
    before = source.read_bytes()
    target = {
        "the input": given,
        "nowhere": tmp_path / "nowhere",
        "another file": tmp_path / "mine",
    }[to]
    if to == "another file":
        target.mkdir() if many else target.write_text("mine")
        if many:
            (target / "mine").write_text("mine")
    out = tmp_path / ("out" if many else "out.parquet")
    os.symlink(target, out)
    try:
        ldp.release(given, out, SPEC, ledger)
    except LabelDPError:
        pass
    else:
        assert not out.is_symlink()
    assert source.read_bytes() == before
    if to == "another file":
        assert ((target / "mine") if many else target).read_text() == "mine"


@pytest.mark.parametrize("how", ["symbolic link", "hard link", "two names"])
def test_one_file_by_two_names_is_not_drawn_twice(
    tmp_path: Path, ledger: ldp.Ledger, how: str
) -> None:
    (tmp_path / "in").mkdir()
    file, other = write(tmp_path / "in" / "a.parquet"), tmp_path / "in" / "latest.parquet"
    given: object = tmp_path / "in"
    if how == "two names":
        given = [file, tmp_path / "in" / ".." / "in" / "a.parquet"]
    elif how == "hard link":
        os.link(file, other)
    else:
        os.symlink(file, other)
    with pytest.raises(InvalidInput, match="one twice"):
        ldp.release(
            given, tmp_path / "out", ldp.ReleaseSpec("y", [0, 1, 2], 1.0, dataset="d"), ledger
        )
    assert not ledger.exists()


def test_partitions_whose_key_begins_with_an_underscore_are_read(tmp_path: Path) -> None:
    for day in range(2):
        (tmp_path / "in" / f"_day={day}").mkdir(parents=True)
        write(tmp_path / "in" / f"_day={day}" / "a.parquet", at=np.arange(50) + 100 * day)
    (tmp_path / "in" / "_SUCCESS").touch()
    spec = ldp.ReleaseSpec("y", [0, 1, 2], 1.0, id="at", dataset="d")
    done = ldp.release(tmp_path / "in", tmp_path / "out", spec, ldp.Ledger(tmp_path / "l.db"))
    assert done.manifest["rows"] == 100 and set(
        pq.read_table(done.path).column("_day").to_pylist()
    ) == {0, 1}


def test_a_cluster_does_not_write_into_its_input(tmp_path: Path, ledger: ldp.Ledger) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.parquet")
    for engine in ("spark", "ray"):
        with pytest.raises(ldp.ReleaseError, match="apart"):
            ldp.release(tmp_path / "in", tmp_path / "in" / "out", SPEC, ledger, engine)
    assert not ledger.exists()


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_labels_that_are_noisy_already(tmp_path: Path, ending: str) -> None:
    ledger, source = (
        ldp.Ledger(tmp_path / "l.db", budget=9.0),
        write(tmp_path / "in.parquet", other=np.zeros(50, int)),
    )
    if ending == "csv":
        pa_csv.write_csv(pq.read_table(source), source := tmp_path / "in.csv")
    once = ldp.release(source, tmp_path / f"once.{ending}", SPEC, ledger).path
    with pytest.raises(InvalidInput, match="released already"):
        ldp.release(once, tmp_path / f"twice.{ending}", SPEC, ledger)
    ldp.release(
        once,
        tmp_path / f"both.{ending}",
        ldp.ReleaseSpec("other", [0, 1], 1.0, id="id", dataset="d"),
        ledger,
    )


def test_classes_that_are_one_value_of_the_column(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(pa.table({"id": [1, 2], "y": pa.array([0.1, 0.2], pa.float32())}), source)
    with pytest.raises(InvalidInput, match="same value"):
        ldp.release(
            source,
            tmp_path / "out.parquet",
            ldp.ReleaseSpec("y", [0.1, 0.1 + 1e-12, 0.2], 1.0, id="id"),
            ldp.Ledger(tmp_path / "l.db"),
        )
