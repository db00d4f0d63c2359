# SPDX-License-Identifier: Apache-2.0
"""Parquet keeps the Arrow schema; digests name contents and nothing else; the label column keeps
its type and nothing of the raw one."""

from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labeldp.app._release import release
from labeldp.errors import DomainLeakWarning, InvalidInput
from labeldp.ledger._ledger import Ledger
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.formats._parquet import ParquetSource, table_writer
from labeldp.tables.formats._table import (
    ArrowDigest,
    Batch,
    LabelCodec,
    check_type,
    distinct_labels,
    parse_classes,
)

WIDE = pa.table(
    {
        "i": pa.array([1, None, 3], pa.int16()),
        "f": pa.array([1.5, float("nan"), None], pa.float32()),
        "s": pa.array(["a", None, "ü"], pa.large_string()),
        "b": pa.array([True, False, None]),
        "d": pa.array([date(2020, 1, 2), None, date(1969, 1, 1)]),
        "t": pa.array([1, 2, None], pa.timestamp("us", "Europe/Berlin")),
        "n": pa.array([Decimal("1.23"), None, Decimal("-9.99")], pa.decimal128(9, 2)),
        "l": pa.array([[1, 2], None, []], pa.list_(pa.int32())),
        "st": pa.array([{"x": 1, "y": "q"}, None, {"x": None, "y": "r"}]),
        "c": pa.array(["u", "v", "u"]).dictionary_encode(),
        "y": pa.array(["A", "B", "A"]),
    }
)


def released(
    path: Path, out: Path, label: str, classes: list[object], codes: list[int]
) -> pa.Table:
    source = ParquetSource(path)
    kind = source.type_of(label)
    source.plan(LabelCodec(parse_classes(classes, label, kind, text_table=False), label, kind), 0)
    sink = source.sink(out, '{"k": 1}')
    start = 0
    for batch in source.batches():
        sink.write(source.rewrite(batch.rows, np.array(codes[start : start + len(batch)]), None))
        start += len(batch)
    sink.close()
    return pq.read_table(out)


def test_other_columns_keep_value_and_type(tmp_path: Path) -> None:
    table = WIDE.replace_schema_metadata({"pandas": "A B raw"})
    pq.write_table(table, tmp_path / "i.parquet")
    out = released(tmp_path / "i.parquet", tmp_path / "o.parquet", "y", ["A", "B"], [1, 1, 0])
    assert out.schema.equals(WIDE.schema, check_metadata=False)
    assert out.drop_columns(["y"]).equals(WIDE.drop_columns(["y"])) or str(
        out.drop_columns(["y"]).to_pylist()
    ) == str(WIDE.drop_columns(["y"]).to_pylist())
    assert out["y"].to_pylist() == ["B", "B", "A"]
    assert ParquetSource(tmp_path / "o.parquet").facts == '{"k": 1}'
    assert b"pandas" not in (out.schema.metadata or {})


@pytest.mark.parametrize(
    ("labels", "kind", "classes"),
    [
        ([1, 5, 1], pa.int8(), ["1", "5"]),
        ([1, 5, 1], pa.uint64(), [1, 5]),
        ([0, 1, 0], pa.int32(), [0, 1]),
        ([0.0, 1.0, -0.0], pa.float32(), ["0", "1"]),
        ([True, False, True], pa.bool_(), ["true", "false"]),
        (["a", "b", "a"], pa.string_view(), ["a", "b"]),
        (["a", "b", "a"], pa.large_string(), ["a", "b"]),
        (["a", "b", "a"], pa.dictionary(pa.int8(), pa.string()), ["b", "a"]),
        ([3, 7, 3], pa.dictionary(pa.uint16(), pa.int64()), [7, 3]),
        (["a", None, "a"], pa.string(), ["a", "b", None]),
        (["a", None, "a"], pa.dictionary(pa.int32(), pa.string()), ["a", None, "b"]),
    ],
)
def test_codec_keeps_the_type_and_round_trips(
    labels: list[object], kind: pa.DataType, classes: list[object]
) -> None:
    check_type("y", kind)
    array = (
        pa.array(labels, kind.value_type).dictionary_encode().cast(kind)
        if pa.types.is_dictionary(kind)
        else pa.array(labels, kind)
    )
    codec = LabelCodec(parse_classes(classes, "y", kind, text_table=False), "y", kind)
    codes = codec.encode(array)
    assert codes.dtype == np.int32
    back = codec.decode(codes)
    assert back.type == kind
    assert back.to_pylist() == labels
    assert codec.decode(codes[1:2]).to_pylist() == labels[1:2]


def test_dictionary_lists_the_declared_classes_only(tmp_path: Path) -> None:
    raw = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 0], pa.int8()), pa.array(["A", "B", "SENTINEL-unused"])
    )
    pq.write_table(pa.table({"y": raw, "x": [1, 2, 3]}), tmp_path / "i.parquet")
    out = released(tmp_path / "i.parquet", tmp_path / "o.parquet", "y", ["C", "B", "A"], [0, 2, 2])
    assert out["y"].type == raw.type
    assert out["y"].to_pylist() == ["C", "A", "A"]
    assert b"SENTINEL" not in (tmp_path / "o.parquet").read_bytes()


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["A", "SECRET-7", "B"], "is not"),
        (["A", "B", None], "is missing"),
        (["A", "B", ""], "is missing"),
    ],
)
def test_bad_labels_are_refused_and_never_shown(labels: list[str | None], said: str) -> None:
    for array in (pa.array(labels), pa.array(labels).dictionary_encode()):
        codec = LabelCodec(("A", "B"), "y", array.type)
        with pytest.raises(InvalidInput, match=f"some label {said}. Which row") as error:
            codec.encode(array)
        assert "SECRET" not in str(error.value)


@pytest.mark.parametrize(
    ("classes", "kind"),
    [
        (["a"], pa.int32()),
        ([1.5], pa.int32()),
        ([300], pa.int8()),
        ([True], pa.int32()),
        (["x"], pa.bool_()),
        (["nan"], pa.float64()),
        (["1", 1], pa.int64()),
    ],
)
def test_classes_of_another_type_are_refused(classes: list[object], kind: pa.DataType) -> None:
    with pytest.raises(InvalidInput, match="classes"):
        parse_classes(classes, "y", kind, text_table=False)


@pytest.mark.parametrize(
    "kind", [pa.date32(), pa.list_(pa.int8()), pa.binary(), pa.decimal128(5, 2)]
)
def test_label_types_that_are_no_classes_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidInput, match="'y'"):
        check_type("y", kind)


def test_distinct_labels_leave_out_missing_ones() -> None:
    with pytest.warns(DomainLeakWarning):
        found = distinct_labels([pa.array([2, None]), pa.array([1, 2, 2])], pa.int64())
    assert found == (1, 2)
    with pytest.warns(DomainLeakWarning):
        assert distinct_labels(
            [pa.array(["b", "", "a"]).dictionary_encode(), pa.array(["a"] * 3)], pa.string()
        ) == ("a", "b")
    for kind in (pa.float32(), pa.float64(), pa.dictionary(pa.int8(), pa.float64())):
        with pytest.raises(InvalidInput, match="publish the labels"):
            distinct_labels([pa.array([1.0, 2.0] * 50)], kind)
    with pytest.raises(InvalidInput, match="at most 4 distinct"):
        distinct_labels([pa.array(range(20))], pa.int64())


def digest_of(table: pa.Table, path: Path, group: int) -> str:
    pq.write_table(table, path, row_group_size=group)
    source = ParquetSource(path)
    state = source.public_digest("y")
    for batch in source.batches():
        state.update(batch)
    return state.hexdigest()


def test_digest_names_contents_whatever_the_layout(tmp_path: Path) -> None:
    big = pa.concat_tables([WIDE] * 5)
    whole = digest_of(big, tmp_path / "a.parquet", 100)
    assert digest_of(big, tmp_path / "b.parquet", 2) == whole
    relabelled = big.set_column(big.schema.get_field_index("y"), "y", pa.array(["B"] * 15))
    assert digest_of(relabelled, tmp_path / "c.parquet", 100) == whole
    other_types = big.set_column(2, "s", big["s"].cast(pa.string())).set_column(
        9, "c", big["c"].cast(pa.string())
    )
    assert digest_of(other_types, tmp_path / "d.parquet", 4) == whole


def test_dictionaries_inside_of_nested_columns_pass_unchanged(tmp_path: Path) -> None:
    words = pa.array([f"v{i % 9}" for i in range(3000)]).dictionary_encode()
    lists = pa.ListArray.from_arrays(pa.array(range(3001), pa.int32()), words)
    rows = pa.table(
        {
            "id": range(3000),
            "y": ["A", "B"] * 1500,
            "list": lists,
            "struct": pa.StructArray.from_arrays([lists], ["x"]),
        }
    )
    # pyarrow itself cannot read this file as a whole
    pq.write_table(rows, tmp_path / "in.parquet", row_group_size=1200)
    release(
        tmp_path / "in.parquet",
        tmp_path / "out.parquet",
        ReleaseSpec("y", ["A", "B"], 1.0, id="id"),
        Ledger(tmp_path / "ledger.db"),
    )
    found = pa.Table.from_batches(ParquetSource(tmp_path / "out.parquet").record_batches()).sort_by(
        "id"
    )
    assert found.drop_columns(["y"]).to_pylist() == rows.drop_columns(["y"]).to_pylist()


def test_the_digest_of_maps_does_not_depend_on_batches() -> None:
    entries = [None if i % 5 == 0 else [("k", i)] * (i % 3) for i in range(60)]
    maps = pa.array(entries, pa.map_(pa.string(), pa.int64()))
    rows = pa.record_batch({"m": maps, "s": pa.StructArray.from_arrays([maps], ["m"])})
    found = set()
    for size in (1, 7, 60):
        state = ArrowDigest(rows.schema, ("m", "s"))
        for start in range(0, 60, size):
            state.update(Batch(rows.slice(start, size)))
        found.add(state.hexdigest())
    assert found == {"3fc41cbe91610909a14796d84c8426f65a449ef6f42dda2a7ee559d9c9baac20"}


@pytest.mark.parametrize("name", [name for name in WIDE.column_names if name != "y"])
def test_digest_sees_every_column(tmp_path: Path, name: str) -> None:
    place = WIDE.schema.get_field_index(name)
    changed = WIDE.set_column(place, WIDE.schema.field(name), WIDE[name].take([1, 0, 2]))
    assert digest_of(WIDE, tmp_path / "a.parquet", 10) != digest_of(
        changed, tmp_path / "b.parquet", 10
    )


def test_digest_sees_where_nulls_and_lengths_are(tmp_path: Path) -> None:
    def one(values: list[object]) -> str:
        return digest_of(
            pa.table({"x": pa.array(values), "y": [1] * len(values)}), tmp_path / "t.parquet", 10
        )

    assert (
        len(
            {
                one(["ab", "c"]),
                one(["a", "bc"]),
                one(["abc", None]),
                one([None, "abc"]),
                one(["abc", ""]),
            }
        )
        == 5
    )


@pytest.mark.parametrize("content", [b"not parquet at all", b"PAR1"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="Parquet"):
        ParquetSource(path)


INT128 = (
    "/////3gAAAAEAAAA8v///xQAAAAEAAEAAAAKAAsACAAKAAQA+P///wwAAAAIAAgAAAAEAAEAAAAEAAAA7P///zgAAAAgAAAAGAAAAAECAAAQABIABAAQABEACAAA"
    "AAwAAAAAAPT///+AAAAAAQAAAAgACQAEAAgAAwAAAGJpZwA="
)
"""The Arrow schema that Polars 2.1 writes for a column "big" of its type Int128."""


def test_types_that_arrow_lacks_are_refused_by_name(tmp_path: Path) -> None:
    rows = pa.table({"big": pa.array([bytes(16)], pa.binary(16))})
    with pq.ParquetWriter(tmp_path / "x.parquet", rows.schema, store_schema=False) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({b"ARROW:schema": INT128})
    with pytest.raises(
        InvalidInput, match=r"types that pyarrow reads.*x.parquet .Integers with more than 64 bits"
    ):
        ParquetSource(tmp_path / "x.parquet")


def test_damaged_pages_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"y": np.arange(100_000)}), path, compression="zstd")
    raw = bytearray(path.read_bytes())
    raw[200:20_000] = bytes(19_800)
    path.write_bytes(raw)
    with pytest.raises(InvalidInput, match="damaged"):
        list(ParquetSource(path).batches())


def test_row_groups_and_compression(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(30_000), "y": np.zeros(30_000, np.int32)})
    pq.write_table(table, tmp_path / "i.parquet", compression="zstd", row_group_size=1000)
    released(tmp_path / "i.parquet", tmp_path / "o.parquet", "y", [0, 1], [0] * 30_000)
    meta = pq.ParquetFile(tmp_path / "o.parquet").metadata
    assert meta.num_row_groups == 1
    assert meta.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize("name", ["t.orc", "t"])
def test_no_file_is_written_under_an_ending_of_no_format(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"ends in \.parquet, \.pq, \.csv, \.tsv; got t"):
        table_writer(tmp_path / name, WIDE.schema)
    assert not list(tmp_path.iterdir())
