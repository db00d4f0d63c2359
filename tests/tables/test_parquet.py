# SPDX-License-Identifier: Apache-2.0
"""Parquet keeps the Arrow schema; digests name contents and nothing else; the label column keeps
its type and nothing of the raw one."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labeldp.app._release import release
from labeldp.errors import InvalidInput
from labeldp.ledger._ledger import Ledger
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.formats._parquet import ParquetSource
from labeldp.tables.formats._table import (
    ArrowDigest,
    Batch,
    LabelCodec,
    check_type,
    parse_classes,
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
    assert found == {"c4adff846bd74bfd817d339dd415192e858aabecd0371e9e001fc8c7d77aa037"}


INT128 = (
    "/////3gAAAAEAAAA8v///xQAAAAEAAEAAAAKAAsACAAKAAQA+P///wwAAAA"
    "IAAgAAAAEAAEAAAAEAAAA7P///zgAAAAgAAAAGAAAAAECAAAQABIABAAQABEACAAA"
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
