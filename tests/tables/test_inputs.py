# SPDX-License-Identifier: Apache-2.0
"""What a model is given: standardised columns, pixels of image files, and names of files that may not show a class."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from labeldp.errors import InvalidInput
from labeldp.tables.features import Feature, Features
from labeldp.tables.images import ImageInputs, NamesOfFiles, pixels_of
from labeldp.tables.inputs import ColumnInputs, StandardisedInputs, inputs_from_dict
from labeldp.tables.standardised import learn_standardised


def test_numbers_are_standardised_and_categories_spread() -> None:
    features = Features((Feature("a", "number"), Feature("b", "category", ("x", "y")), Feature("c", "number"), Feature("d", "number")))
    matrix = np.array([[1e18, 0, 5, np.nan], [3e18, 1, 5, np.nan], [2e18, np.nan, 5, np.nan], [np.inf, 2, 5, np.nan]])
    learnt = learn_standardised(matrix, features)
    s = np.sqrt(1.5)
    expected = [
        # a, a is missing, b=x, b=y, b=other, c, d, d is missing
        [-s, 0, 1, 0, 0, 0, 0, 1],
        [s, 0, 0, 1, 0, 0, 0, 1],
        [0, 0, 0, 0, 0, 0, 0, 1],
        [0, 1, 0, 0, 1, 0, 0, 1],
    ]
    np.testing.assert_allclose(learnt.apply(matrix), np.array(expected), atol=1e-6)
    assert learnt.width == 8
    inputs = StandardisedInputs(ColumnInputs(features), learnt)
    again = inputs_from_dict(json.loads(json.dumps(inputs.to_dict(), allow_nan=False)))
    batch = pa.record_batch({"a": [1e18, None], "b": ["x", "z"], "c": [1e300, 5.0], "d": [1.0, None]})
    assert np.isfinite(again.read(batch)).all()
    np.testing.assert_array_equal(again.read(batch), inputs.read(batch))


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
    with pytest.raises(InvalidInput, match=r"row 1 .*Rename"):
        names("1.png", name, classes=("cat", "polar bear", "bird 7", None))


@pytest.mark.parametrize("name", ["7/1.png", "class_7/1.png", "x/label7.png", "digit-7-1.png", "x/digit=8/1.png"])
def test_names_that_show_a_number(name: str) -> None:
    with pytest.raises(InvalidInput, match="row 0"):
        names(name, classes=(7, 8), label="digit")


def test_names_that_say_nothing() -> None:
    names("7.png", "train/8.png", "x-7.png", "17/7.png", None, "", classes=(7, 8), label="digit")
    names("concatenate/1.png", "photos/1.png", "bear/1.png", "scat.png", classes=("cat", "polar bear"))


def test_modes_of_images() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)

    def written(mode: str, form: str = "PNG") -> bytes:
        stream = io.BytesIO()
        image.fromarray(pixels).convert(mode).save(stream, form)
        return stream.getvalue()

    np.testing.assert_array_equal(pixels_of(written("RGB"), "x"), pixels.transpose(2, 0, 1))
    assert pixels_of(written("L"), "x").shape == pixels_of(written("1"), "x").shape == (1, 4, 4)
    assert pixels_of(written("P"), "x").shape == pixels_of(written("CMYK", "TIFF"), "x").shape == (3, 4, 4)
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
        np.testing.assert_array_equal(inputs.read(pa.record_batch({"shot": column})), np.full((1, 1, 2, 3), 9))
    for name in ("../1.png", str(tmp_path / "in" / "1.png"), ""):
        with pytest.raises(InvalidInput, match="below"):
            inputs.read(pa.record_batch({"shot": pa.array([name])}))
    with pytest.raises(InvalidInput, match="--images"):
        ImageInputs("shot", (1, 2, 3)).read(pa.record_batch({"shot": pa.array(["in/1.png"])}))
