# SPDX-License-Identifier: Apache-2.0
"""Public columns: what a repeat does if they are others, and which are said to be unchanged."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.files import write

from labeldp.app._release import release
from labeldp.errors import InvalidInput, LabelDPWarning
from labeldp.ledger._ledger import Ledger
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.formats._parquet import open_table, parquet_types, written_types
from labeldp.tables.formats._table import altered

N = 60
SPEC = ReleaseSpec("y", ["no", "yes"], 1.0, dataset="d", id="id")


def table() -> pa.Table:
    columns: dict[str, Any] = {
        "id": [f"r{i}" for i in range(N)],
        "x": [i / 7 for i in range(N)],
        "when": pa.array([None if i % 5 == 0 else i for i in range(N)], pa.timestamp("ns")),
        "flag": [None, True, False] * 20,
        "price": pa.array([i * 100 for i in range(N)], pa.decimal128(9, 2)),
        "words": [None if i % 7 == 0 else f"w{i}" for i in range(N)],
        "y": ["no", "yes"] * (N // 2),
    }
    nested = {"list": pa.array([[i, None] for i in range(N)]), "raw": pa.array([b"\x00\xff"] * N)}
    return pa.table(columns | nested)


def with_column(rows: pa.Table, name: str, values: Any) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, values)


def zeroed(name: str, row: int, value: object) -> Callable[[pa.Table], pa.Table]:
    def change(rows: pa.Table) -> pa.Table:
        values = rows[name].to_pylist()
        values[row] = value
        return with_column(rows, name, pa.array(values, rows[name].type))

    return change


CHANGES: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "a new column": (lambda t: t.append_column("new", t["x"]), "'new'"),
    "a column that went": (lambda t: t.drop_columns(["x"]), "'x'"),
    "one value": (zeroed("x", 8, -1.0), "'x'"),
    "all values": (lambda t: with_column(t, "x", pc.add(t["x"], 1)), "'x'"),
    "two columns": (lambda t: zeroed("words", 3, "new")(zeroed("x", 8, -1.0)(t)), "'x', 'words'"),
    "values of two rows": (
        lambda t: zeroed("words", 1, "w2")(zeroed("words", 2, "w1")(t)),
        "'words'",
    ),
}
TYPED: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "a null for a zero": (zeroed("when", 0, 0), "'when'"),
    "a time": (zeroed("when", 8, 9), "'when'"),
    "a boolean": (zeroed("flag", 0, False), "'flag'"),
    "an empty text for a null": (zeroed("words", 0, ""), "'words'"),
    "inside of a list": (zeroed("list", 3, [3, 4]), "'list'"),
    "bytes": (zeroed("raw", 3, b"\x00"), "'raw'"),
    "a decimal": (zeroed("price", 3, None), "'price'"),
    "another type": (lambda t: with_column(t, "x", t["x"].cast(pa.float32())), "'x'"),
    "a list for its values": (
        lambda t: with_column(t, "x", pa.array([[each] for each in t["x"].to_pylist()])),
        "'x'",
    ),
}


CASES = [
    *((change, ending, False) for change in CHANGES for ending in (".parquet", ".csv", "")),
    *((change, ".parquet", False) for change in TYPED),
    *(("one value", ending, True) for ending in (".parquet", ".csv", "")),
]


@pytest.mark.parametrize(("change", "ending", "same_name"), CASES)
def test_a_repeat_with_other_public_columns_is_refused(
    tmp_path: Path, change: str, ending: str, same_name: bool
) -> None:
    """It gave the old table, and said of the new columns that they are unchanged in it."""
    rows = table() if ending != ".csv" else table().drop_columns(["list", "raw"])
    ledger, made = Ledger(tmp_path / "l.db"), (CHANGES | TYPED)[change]
    first = release(write(rows, tmp_path / f"in{ending}"), tmp_path / f"a{ending}", SPEC, ledger)
    again = write(made[0](rows), tmp_path / f"again{ending}")
    out = tmp_path / f"{'a' if same_name else 'b'}{ending}"
    with pytest.raises(InvalidInput, match="Expected the public columns that run") as told:
        release(again, out, SPEC, ledger)
    assert f"got others: {made[1]} changed" in str(told.value) and first.receipt.run_id in str(
        told.value
    )
    assert "redraw" in str(told.value) and "by id" in str(told.value)
    assert len(ledger.runs()) == 1 and (tmp_path / "b").exists() is False
    assert not (tmp_path / f"b{ending}").exists()
    # The first table is as it was, and the first request still repeats.
    assert release(tmp_path / f"in{ending}", tmp_path / f"c{ending}", SPEC, ledger).repeated


@pytest.mark.parametrize("ending", [".parquet", ".csv", ""], ids=["parquet", "csv", "folder"])
def test_the_same_rows_in_another_order_are_a_repeat(tmp_path: Path, ending: str) -> None:
    rows, ledger = table(), Ledger(tmp_path / "l.db")
    rows = rows if ending != ".csv" else rows.drop_columns(["list", "raw"])
    first = release(write(rows, tmp_path / f"in{ending}"), tmp_path / f"a{ending}", SPEC, ledger)
    again = rows.sort_by([("x", "descending")]).select(rows.column_names[::-1])
    done = release(write(again, tmp_path / f"again{ending}"), tmp_path / f"b{ending}", SPEC, ledger)
    assert done.repeated and done.receipt == first.receipt
    assert (
        sorted(done.unchanged) == sorted(first.unchanged) == sorted(set(rows.column_names) - {"y"})
    )


def test_rows_over_the_cap_are_not_in_the_table_and_may_change(tmp_path: Path) -> None:
    rows = table().append_column("who", pa.array([f"p{i // 2}" for i in range(N)]))
    spec, ledger = (
        ReleaseSpec("y", ["no", "yes"], 1.0, dataset="d", id="id", unit="who"),
        Ledger(tmp_path / "l.db"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = release(write(rows, tmp_path / "in.parquet"), tmp_path / "a.parquet", spec, ledger)
        kept = set(pq.read_table(first.path)["id"].to_pylist())
        row = next(i for i in range(N) if f"r{i}" not in kept)
        write(zeroed("x", row, -1.0)(rows), tmp_path / "in.parquet")
        assert release(tmp_path / "in.parquet", tmp_path / "b.parquet", spec, ledger).repeated
        row = next(i for i in range(N) if f"r{i}" in kept)
        write(zeroed("x", row, -1.0)(rows), tmp_path / "in.parquet")
        with pytest.raises(InvalidInput, match="got others: 'x' changed"):
            release(tmp_path / "in.parquet", tmp_path / "c.parquet", spec, ledger)


def test_a_repeat_writes_back_a_manifest_that_was_changed(tmp_path: Path, ledger: Ledger) -> None:
    """And returns what was released, not what somebody wrote there."""
    first = release(write(table(), tmp_path / "in.parquet"), tmp_path / "a.parquet", SPEC, ledger)
    said = Path(first.manifest_path).read_text()
    Path(first.manifest_path).write_text(said.replace('"rows": 60', '"rows": 9'))
    again = release(tmp_path / "in.parquet", tmp_path / "a.parquet", SPEC, ledger)
    assert again.manifest == first.manifest and Path(first.manifest_path).read_text() == said


# Types
# --------------------------------------------------------------------------------------------------


def odd_columns(path: Path) -> dict[str, str]:
    """Write columns that Arrow does not write as they are; return what is said of each."""
    rows = table().select(["id", "x", "y"])
    clock = pa.array([1000 * i for i in range(N)], pa.time64("us"))
    rows = rows.append_column("clock", clock).append_column("kind", pa.array([0, 1, 2] * 20))
    rows = rows.append_column("kinds", pa.array([[0], [1], [2]] * 20)).append_column(
        "where", pa.array([b"w"] * N)
    )
    value = {"dtype": "int64", "_type": "Value"}
    features = {
        "x": value,
        "kind": {"names": ["a", "b", "c"], "_type": "ClassLabel"},
        "kinds": {"feature": {"names": ["a", "b", "c"], "_type": "ClassLabel"}, "_type": "List"},
        "id": {"feature": value, "_type": "Sequence"},
    }
    metadata = {
        "huggingface": json.dumps({"info": {"features": features}}),
        "geo": json.dumps({"primary_column": "where", "columns": {"where": {"encoding": "WKB"}}}),
        "pandas": "{}",
    }
    rows = rows.replace_schema_metadata(metadata)
    pq.write_table(rows, path, write_time_adjusted_to_utc=True)
    at = "timeUnit=microseconds)"
    return {
        "clock": f"Time(isAdjustedToUTC=true, {at} -> Time(isAdjustedToUTC=false, {at}",
        "kind": "INT64 (ClassLabel) -> INT64",
        "kinds": "list<INT64> (ClassLabel) -> list<INT64>",
        "where": "BYTE_ARRAY (geometry) -> BYTE_ARRAY",
    }


def test_what_a_release_alters_is_named_before_the_charge_and_not_called_unchanged(
    tmp_path: Path,
) -> None:
    said, ledger = odd_columns(tmp_path / "in.parquet"), Ledger(tmp_path / "l.db")
    strict = ReleaseSpec("y", ["no", "yes"], 1.0, dataset="d", id="id", strict=True)
    with pytest.raises(InvalidInput, match="nothing was charged") as refused:
        release(tmp_path / "in.parquet", tmp_path / "a.parquet", strict, ledger)
    assert ledger.runs() == []
    with pytest.warns(LabelDPWarning, match="in another type") as told:
        done = release(tmp_path / "in.parquet", tmp_path / "a.parquet", SPEC, ledger)
    for text in (
        str(refused.value),
        *(str(each.message) for each in told if "another type" in str(each.message)),
    ):
        assert all(f"{name!r} ({how})" in text for name, how in said.items())
        assert "'x'" not in text and "'id'" not in text
    assert done.unchanged == ("id", "x")
    again = release(tmp_path / "in.parquet", tmp_path / "b.parquet", SPEC, ledger)
    assert again.repeated and again.unchanged == ("id", "x")


def test_columns_of_duckdb_that_arrow_reads_otherwise_are_named(tmp_path: Path) -> None:
    # INTERVAL, TIMETZ and VARIANT, which Arrow cannot write
    source = Path(__file__).parent / "duckdb.parquet"
    with pytest.warns(LabelDPWarning, match="in another type") as told:
        done = release(source, tmp_path / "a.parquet", SPEC, Ledger(tmp_path / "l.db"))
    assert done.unchanged == ("id", "key", "note", "n")
    text = "".join(str(each.message) for each in told)
    assert "'span' (Interval -> FIXED_LEN_BYTE_ARRAY(12))" in text
    assert "'clock' (Time(isAdjustedToUTC=true" in text and "'any' (Variant<" in text
    assert "'inside' (struct<Interval> -> struct<FIXED_LEN_BYTE_ARRAY(12)>)" in text
    written = pq.ParquetFile(tmp_path / "a.parquet").schema
    assert "Interval" not in str(written) and "Variant" not in str(written)


def test_a_type_of_one_file_of_many_counts(tmp_path: Path) -> None:
    said = odd_columns(tmp_path / "one.parquet")
    plain = pq.read_table(tmp_path / "one.parquet").replace_schema_metadata(None)
    for number in range(3):
        folder = tmp_path / f"in{number}"
        folder.mkdir()
        for part in range(3):
            path = folder / f"{part}.parquet"
            if part == number:
                path.write_bytes((tmp_path / "one.parquet").read_bytes())
            else:
                pq.write_table(plain, path)
        source = open_table(folder)
        assert altered(source.types, written_types(source.schema)).keys() == said.keys()


def test_no_type_that_arrow_writes_as_it_is_counts_as_altered(
    tmp_path: Path, ledger: Ledger
) -> None:
    """Neither do old layouts of lists, widths of decimals, dictionaries, or views of text."""
    rows = table()
    more = {
        "small": pa.array([1] * N, pa.int8()),
        "unsigned": pa.array([1] * N, pa.uint32()),
        "half": pa.array([1.0] * N, pa.float16()),
        "day": pa.array([1] * N, pa.date32()),
        "clock": pa.array([1] * N, pa.time32("ms")),
        "zone": pa.array([1] * N, pa.timestamp("us", "UTC")),
        "span": pa.array([1] * N, pa.duration("s")),
        "kind": pa.array(["a", "b"] * (N // 2)).dictionary_encode(),
        "view": pa.array(["a"] * N, pa.string_view()),
        "struct": pa.array([{"a": 1, "b.c": "x"}] * N),
        "map": pa.array([[("k", 1)]] * N, pa.map_(pa.string(), pa.int32())),
        "fixed": pa.array([[1, 2]] * N, pa.list_(pa.int32(), 2)),
        "bytes": pa.array([b"12"] * N, pa.binary(2)),
        "a.b": pa.array([1] * N),
    }
    for name, values in more.items():
        rows = rows.append_column(name, values)
    for number, options in enumerate(
        (
            {},
            {"store_decimal_as_integer": True, "use_compliant_nested_type": False},
            {"store_schema": False},
        )
    ):
        pq.write_table(rows, tmp_path / f"{number}.parquet", **options)
        source = open_table(tmp_path / f"{number}.parquet")
        assert altered(source.types, written_types(source.schema)) == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = release(tmp_path / "0.parquet", tmp_path / "out.parquet", SPEC, ledger)
    assert sorted(done.unchanged) == sorted(set(rows.column_names) - {"y"})
    assert (
        parquet_types(pq.ParquetFile(done.path)).items()
        >= {k: v for k, v in open_table(tmp_path / "0.parquet").types.items() if k != "y"}.items()
    )
