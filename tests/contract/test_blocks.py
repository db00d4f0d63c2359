# SPDX-License-Identifier: Apache-2.0
"""Ids of text become the blocks that docs/reference/noise.md says, one id at a time, in
whatever form and company they come."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers import algorithms
from cryptography.hazmat.primitives.cmac import CMAC
from hypothesis import given
from hypothesis import strategies as st

from labeldp._hash import CHUNK
from labeldp.errors import InvalidInput
from labeldp.noise._words import SeededNoise, derive_key, id_blocks

KEY = derive_key(SeededNoise(2).secret(), purpose="ids", facts={})
MATERIAL = KEY.material("id_blocks")


def reference(tag: int, message: bytes) -> bytes:
    mac = CMAC(algorithms.AES(MATERIAL))
    mac.update(message)
    return bytes([tag]) + mac.finalize()[:12] + bytes(3)


def reference_part(value: object) -> bytes:
    tag, data = (
        (1, value.to_bytes(12, "little", signed=True))
        if isinstance(value, int)
        else ((2, value.encode()) if isinstance(value, str) else (3, bytes(value)))
    )
    return bytes([tag]) + len(data).to_bytes(8, "little") + data


def made(ids: object) -> list[bytes]:
    return [row.tobytes() for row in id_blocks(ids, KEY).templates()]


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)
numbers = st.integers(-(2**63), 2**63 - 1)
FORMS: dict[str, Callable[[pa.Array], object]] = {
    "string": lambda whole: whole,
    "large": lambda whole: whole.cast(pa.large_string()),
    "view": lambda whole: whole.cast(pa.string_view()),
    "dictionary": lambda whole: whole.dictionary_encode(),
    "few of many": lambda whole: pa.concat_arrays(
        [pa.array(["before"] * 3), whole, pa.array(["behind"])]
    )[3:-1],
    "chunks": lambda whole: pa.chunked_array([whole[:1], whole[1:1], whole[1:]]),
    "dictionaries": lambda whole: pa.chunked_array(
        [whole[:1].dictionary_encode(), whole[1:].dictionary_encode()]
    ),
    "long dictionary": lambda whole: pa.DictionaryArray.from_arrays(
        pa.array(range(len(whole)), pa.int16()), pa.concat_arrays([whole, pa.array(["x"] * 50)])
    ),
    "objects": lambda whole: np.array(whole.to_pylist(), object),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@given(st.lists(text, min_size=1, max_size=20))
def test_text_in_any_form_is_the_cmac_of_its_utf8(form, values):
    assert made(form(pa.array(values, pa.string()))) == [
        reference(2, value.encode()) for value in values
    ]


@given(st.lists(text.map(lambda value: value.rstrip("\0")), min_size=1, max_size=20))
def test_numpy_text_is_the_cmac_of_its_utf8(values):
    expected = [reference(2, value.encode()) for value in values]
    array = np.array(values)
    assert made(array) == made(array.astype(array.dtype.newbyteorder())) == expected
    assert made(np.repeat(array, 2)[::2]) == expected
    assert made(np.array([value.encode() for value in values])) == [
        reference(3, value.encode()) for value in values
    ]


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=20))
def test_bytes_in_any_form_are_their_cmac(values):
    expected = [reference(3, value) for value in values]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        assert made(pa.array(values, kind)) == expected
    fixed = [value.ljust(100)[:7] for value in values]
    assert made(pa.array([b"before.", *fixed], pa.binary(7))[1:]) == [
        reference(3, value) for value in fixed
    ]


@given(
    st.lists(
        st.tuples(numbers, text, st.binary(max_size=100), st.integers(-5, 5)),
        min_size=1,
        max_size=20,
    )
)
def test_composites_are_the_cmac_of_their_parts(rows):
    expected = [reference(4, b"".join(map(reference_part, row))) for row in rows]
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    assert (
        made(columns)
        == made(tuple(columns))
        == made(rows)
        == made(pa.table(columns, names=list("abcd")))
        == expected
    )
    in_pieces = [pa.chunked_array([column[:1], column[1:]]) for column in columns]
    in_pieces[1] = pa.chunked_array([columns[1].dictionary_encode()])
    assert made([np.array(columns[0]), *in_pieces[1:3], columns[3].cast(pa.int8())]) == expected
    alone = [reference(4, reference_part(row[1])) for row in rows]
    assert made([columns[1]]) == alone


@given(
    st.lists(
        st.tuples(numbers, text.map(lambda value: value.rstrip("\0"))), min_size=1, max_size=20
    )
)
def test_columns_of_text_are_the_array_of_text(rows):
    """What a table's id columns become: numbers in several columns are compared as text."""
    first, second = (list(column) for column in zip(*rows, strict=True))
    array = np.column_stack([np.array(first).astype(np.str_), np.array(second)])
    assert made([pa.array(first).cast(pa.string()), pa.array(second)]) == made(array)


@pytest.mark.parametrize("lengths", ["equal", "ragged", "nearly equal", "one is long"])
def test_every_row_of_many_is_hashed_as_if_alone(lengths):
    n, rng = 2 * CHUNK + 5, np.random.default_rng(4)
    sizes = {
        "equal": np.full(n, 36),
        "ragged": rng.integers(0, 101, n),
        "nearly equal": np.where(np.arange(n) == CHUNK, 35, 36),
        "one is long": np.where(np.arange(n) == CHUNK + 1, 70_000, 9),
    }[lengths]
    ends = np.cumsum(sizes)
    everything = rng.integers(32, 127, ends[-1], dtype=np.uint8).tobytes()
    offsets = pa.py_buffer(np.r_[0, ends].astype(np.int32))
    # exactly as long as its text: nothing to read behind it
    column = pa.StringArray.from_buffers(n, offsets, pa.py_buffer(everything))
    whole = id_blocks(column, KEY).templates()
    pairs = id_blocks([np.arange(n), column, column], KEY).templates()
    for i in {0, 1, CHUNK - 1, CHUNK, CHUNK + 1, n - 1, *rng.integers(0, n, 60).tolist()}:
        value = everything[ends[i] - sizes[i] : ends[i]].decode()
        assert whole[i].tobytes() == reference(2, value.encode())
        assert pairs[i].tobytes() == reference(4, b"".join(map(reference_part, (i, value, value))))


@pytest.mark.parametrize(
    "ids",
    [
        pa.DictionaryArray.from_arrays(pa.array([0, None]), pa.array(["a"])),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 1]), pa.array(["a", None])),
        pa.chunked_array([["a"], [None]]),
        [pa.array(["a"]), pa.array([None], pa.string())],
        [pa.array(["a"]), pa.array(["a", "b"])],
        np.array(["a", "\ud800"]),
        pa.array([True]),
        pa.array([1.0]).dictionary_encode(),
    ],
    ids=[
        "null index",
        "null in dictionary",
        "null in chunk",
        "null in part",
        "lengths",
        "surrogate",
        "bool",
        "float",
    ],
)
def test_what_is_no_id_is_refused(ids):
    with pytest.raises(InvalidInput, match="Expected"):
        id_blocks(ids, KEY)


def test_a_null_of_a_dictionary_that_no_row_has_is_no_null():
    ids = pa.DictionaryArray.from_arrays(pa.array([0, 2, 0, 2]), pa.array(["a", None, "b"]))
    assert made(ids) == [reference(2, value) for value in (b"a", b"b", b"a", b"b")]
