# SPDX-License-Identifier: Apache-2.0
"""What a model is given: numbers, times and categories, pixels of image files, and names of files
that may not show a class."""

import datetime
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from labeldp.app._learners import MOST_CATEGORIES, Encoding, count_categories, fit_ordinal
from labeldp.deep._named import as_floats
from labeldp.errors import InvalidInput
from labeldp.inputs import inputs_from_dict
from labeldp.inputs._arrays import ArrayTable
from labeldp.inputs._columns import Column, ColumnInputs, learn_columns
from labeldp.inputs._images import ImageInputs, NamesOfFiles, pixels_of
from labeldp.learn._data import MAX_CATEGORIES


def read_back(inputs: ColumnInputs) -> ColumnInputs:
    """As a model's folder gives them."""
    return inputs_from_dict(json.loads(json.dumps(inputs.to_dict(), allow_nan=False)))


def test_numbers_are_standardised_and_categories_spread() -> None:
    inputs = read_back(
        ColumnInputs(
            (
                Column("a", "number"),
                Column("b", "category"),
                Column("c", "number"),
                Column("d", "number"),
            )
        )
    )
    columns = {
        "a": [1e18, 3e18, 2e18, np.inf],
        "b": ["x", "y", None, "x"],
        "c": [5, 5, 5, 5],
        "d": pa.nulls(4, pa.float32()),
    }
    table, s = inputs.read(pa.record_batch(columns)), np.sqrt(1.5)
    expected = [
        # b=x, b is missing, b=y, a, c, d, a is missing, d is missing
        [1, 0, 0, -s, 0, 0, 0, 1],
        [0, 0, 1, s, 0, 0, 0, 1],
        [0, 1, 0, 0, 0, 0, 0, 1],
        [1, 0, 0, 0, 0, 0, 1, 1],
    ]
    encoding = Encoding(inputs)
    found = as_floats(encoding.one_hot(table))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.array(expected), atol=1e-6)
    new = inputs.read(pa.record_batch({"a": [None], "b": ["z"], "c": [1e300], "d": [7.0]}))
    dense = as_floats(encoding.transformer.transform(new))
    assert np.isfinite(dense).all()
    assert not dense[0, :3].any()  # a category that is new is in no column


def test_categories_that_are_rarer_count_as_one() -> None:
    """The most frequent 254 are told apart, and for the linear model all that occur twice."""
    inputs = ColumnInputs((Column("c", "category"),))
    values = [f"k{i:03}" for i in range(300)] * 2 + [f"once{i}" for i in range(50)]
    table = inputs.read(pa.record_batch({"c": values}))
    codes, rarer = fit_ordinal(inputs, table, MAX_CATEGORIES)
    found = codes.transform(table)[:, 0]
    assert (
        rarer == {"c": 96}
        and np.isnan(found).sum() == 2 * 46 + 50
        and set(found[:254]) == set(range(254))
    )
    codes, rarer = fit_ordinal(inputs, table, MOST_CATEGORIES)
    assert rarer == {"c": 50} and np.isnan(codes.transform(table)).sum() == 50
    assert count_categories(inputs, table) == 300
    assert (
        count_categories(
            inputs, inputs.read(pa.record_batch({"c": [f"once{i}" for i in range(400)]}))
        )
        == 254
    )


class Rows:
    """A table in memory, as text or as what it is."""

    def __init__(self, written: bool, **columns: list[object]):
        self.text, self.table = written, pa.table(columns)

    def type_of(self, name: str) -> pa.DataType:
        return self.table.schema.field(name).type

    def batches(self, columns: list[str] | None = None) -> list[pa.RecordBatch]:
        return self.table.to_batches(max_chunksize=2)


def test_texts_of_a_csv_are_numbers_times_or_categories() -> None:
    rows = Rows(
        True,
        number=["1", " 2.5", "", "NA"],
        day=["2024-01-01", "", "2024-01-02", "1969-12-31"],
        at=["2024-01-01 00:00:01", "2024-01-01T00:00:02.5", "NA", "2024-01-02"],
        zoned=["2024-01-01T01:00:00+01:00", "2024-01-01T00:00:01Z", "", ""],
        late=["1", "2", "3", "x"],
        mixed=["1", "2024-01-01", "2", "2024-01-01"],
        year=["2024", "1999", "2000", "2001"],
        word=["a", "b", "", "c"],
    )
    inputs = learn_columns(rows, rows.table.column_names)  # type: ignore[arg-type]
    kinds = {column.name: column.kind for column in inputs.columns}
    numbers, times = ("number", "year"), ("day", "at", "zoned")
    assert kinds == {
        name: "number" if name in numbers else "time" if name in times else "category"
        for name in rows.table.column_names
    }
    (found,) = (
        pa.concat_tables([inputs.read(batch) for batch in rows.batches()]).combine_chunks(),
    )
    start = 1704067200.0
    assert found["number"].to_pylist() == [1.0, 2.5, None, None]
    assert found["day"].to_pylist() == [start, None, start + 86400, -86400.0]
    assert found["at"].to_pylist() == [start + 1, start + 2.5, None, start + 86400]
    assert found["zoned"].to_pylist() == [start, start + 1, None, None]
    assert found["word"].to_pylist() == ["a", "b", "", "c"]


def test_text_of_a_typed_table_is_times_or_categories() -> None:
    """Dates are often text there, too; text of digits, such as codes, is text on purpose."""
    day = ["2024-01-01", None, "2024-01-02", "1969-12-31"]
    rows = Rows(
        False,
        day=day,  # type: ignore[arg-type]
        at=["2024-01-01 00:00:01", "2024-01-01T00:00:02.5", "", "2024-01-02"],
        year=["2024", "1999", "2000", "2001"],
        late=["2024-01-01", "2024-01-02", "2024-01-03", "soon"],
        none=pa.array([None, "", None, "NA"], pa.string()),  # type: ignore[arg-type]
        chosen=pa.array(day).dictionary_encode(),  # type: ignore[arg-type]
        number=[1, 2, 3, 4],
    )
    inputs = learn_columns(rows, rows.table.column_names)  # type: ignore[arg-type]
    kinds = {column.name: column.kind for column in inputs.columns}
    assert kinds == {"number": "number", "day": "time", "at": "time"} | dict.fromkeys(
        ("year", "late", "none", "chosen"), "category"
    )
    assert [*kinds] == rows.table.column_names
    written = learn_columns(Rows(True, day=["2024-01-01", "", "2024-01-02", "1969-12-31"]), ["day"])
    values = [value for batch in rows.batches() for value in inputs.read(batch)["day"].to_pylist()]
    assert written.columns == inputs.columns[:1] and values == [
        1704067200.0,
        None,
        1704153600.0,
        -86400.0,
    ]


def test_a_time_is_the_same_number_in_every_type() -> None:
    day, second = datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2)
    columns = {
        "text": pa.array(["2024-01-02"]),
        "date32": pa.array([day], pa.date32()),
        "date64": pa.array([day], pa.date64()),
        **{unit: pa.array([second], pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")},
        "zoned": pa.array([second], pa.timestamp("ms", "America/Lima")),
    }
    inputs = ColumnInputs(tuple(Column(name, "time") for name in columns))
    assert {values[0].as_py() for values in inputs.read(pa.record_batch(columns)).columns} == {
        1704153600.0
    }
    assert learn_columns(Rows(False, **columns), list(columns)).names == list(columns)
    lasting = ColumnInputs((Column("d", "time"), Column("t", "time")))
    rows = pa.record_batch(
        {"d": pa.array([1500], pa.duration("ms")), "t": pa.array([90], pa.time32("s"))}
    )
    assert [values[0].as_py() for values in lasting.read(rows).columns] == [1.5, 90.0]
    for wrong in ([1.0], ["soon"]):
        with pytest.raises(InvalidInput, match="dates or times in column 'text'"):
            inputs.read(pa.record_batch(columns | {"text": pa.array(wrong)}))


def names(*given: str, classes: tuple[object, ...], label: str = "animal") -> None:
    NamesOfFiles("file", label, classes).check(pa.array(given), 0)


@pytest.mark.parametrize(
    "name",
    [
        "cat/1.png",
        "a/CAT/1.png",
        "a\\cat\\1.png",
        "cat.1.jpg",
        "1_cat.png",
        "photo-cat12.png",
        "animal=cat/1.png",
        "polar bear/1.png",
        "1-polar_bear.png",
        "x/bird 7/1.png",
    ],
)
def test_names_that_show_a_class(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"row 2 \(the first is row 1\).*Rename"):
        names("1.png", name, classes=("cat", "polar bear", "bird 7", None))


@pytest.mark.parametrize(
    "name", ["7/1.png", "class_7/1.png", "x/label7.png", "digit-7-1.png", "x/digit=8/1.png"]
)
def test_names_that_show_a_number(name: str) -> None:
    with pytest.raises(InvalidInput, match="row 1 "):
        names(name, classes=(7, 8), label="digit")


def test_names_that_say_nothing() -> None:
    names("7.png", "train/8.png", "x-7.png", "17/7.png", None, "", classes=(7, 8), label="digit")
    names(
        "concatenate/1.png", "photos/1.png", "bear/1.png", "scat.png", classes=("cat", "polar bear")
    )


def test_modes_of_images() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)

    def written(mode: str, form: str = "PNG") -> bytes:
        stream = io.BytesIO()
        image.fromarray(pixels).convert(mode).save(stream, form)
        return stream.getvalue()

    np.testing.assert_array_equal(pixels_of(written("RGB"), "x"), pixels.transpose(2, 0, 1))
    assert pixels_of(written("L"), "x").shape == pixels_of(written("1"), "x").shape == (1, 4, 4)
    assert (
        pixels_of(written("P"), "x").shape
        == pixels_of(written("CMYK", "TIFF"), "x").shape
        == (3, 4, 4)
    )
    for mode in ("RGBA", "LA", "I", "F"):
        with pytest.raises(InvalidInput, match=rf"mode {mode} in row 3"):
            pixels_of(written(mode, "TIFF"), "row 3")


def test_columns_of_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.fromarray(np.full((2, 3), 9, np.uint8)).save(stream, "PNG")
    data = stream.getvalue()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.png").write_bytes(data)
    inputs = ImageInputs("shot", (1, 2, 3), tmp_path)
    columns = [
        pa.array([data], pa.binary()),
        pa.array([data], pa.large_binary()),
        pa.array([{"bytes": data, "path": "1.png"}]),
        pa.array(["in/1.png"]),
        pa.array(["in\\1.png"]).dictionary_encode(),
    ]
    for column in columns:
        np.testing.assert_array_equal(
            inputs.read(pa.record_batch({"shot": column})), np.full((1, 1, 2, 3), 9)
        )
    for name in ("../1.png", str(tmp_path / "in" / "1.png"), ""):
        with pytest.raises(InvalidInput, match="below"):
            inputs.read(pa.record_batch({"shot": pa.array([name])}))
    with pytest.raises(InvalidInput, match="--images"):
        ImageInputs("shot", (1, 2, 3)).read(pa.record_batch({"shot": pa.array(["in/1.png"])}))


@pytest.mark.parametrize("name", ["array.npz", "archive.npy"])
def test_arrays_under_the_ending_of_the_other_kind_are_refused(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as file:
        np.save(file, np.ones((3, 2))) if name == "array.npz" else np.savez(file, X=np.ones((3, 2)))
    with pytest.raises(
        InvalidInput,
        match=(
            rf"as numpy.savez or numpy.save writes them, got something else, or objects, in {name}"
        ),
    ):
        ArrayTable(tmp_path / name, "X")
