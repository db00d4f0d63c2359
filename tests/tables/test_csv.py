# SPDX-License-Identifier: Apache-2.0
"""CSV passes as it was written: fields are found at the right bytes, and everything but the label keeps its bytes."""

import csv
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeldp.errors import InvalidInput
from labeldp.tables import csv_text
from labeldp.tables.csv import CsvSource
from labeldp.tables.labels import LabelCodec

FIELD = st.text(alphabet=st.sampled_from('ab,"\n\r ü€x;\t'), max_size=6)
TABLES = st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(FIELD, min_size=width, max_size=width), min_size=1, max_size=12))


def written(rows: list[list[str]], quoting: int, line_end: str) -> bytes:
    buffer = io.StringIO()
    if quoting == csv.QUOTE_MINIMAL:
        rows = [[field.replace("\r", "") for field in row] for row in rows]  # Python 3.11 writes a bare one without quotes
    csv.writer(buffer, quoting=quoting, lineterminator=line_end).writerows(rows)  # type: ignore[arg-type]
    return buffer.getvalue().encode()


def read_all(data: bytes, chunk: int, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    monkeypatch.setattr(csv_text, "CHUNK", chunk)
    rows: list[list[str]] = []
    for records in csv_text.Splitter(",").split(io.BytesIO(data)):
        fields = [[value.decode() for value in records.text(i).to_pylist()] for i in range(records.ends.shape[1])]
        rows.extend(map(list, zip(*fields, strict=True)))
    return rows


@given(
    TABLES,
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([3, 7, 1 << 20]),
    st.booleans(),
)
def test_fields_are_those_that_python_reads(rows: list[list[str]], quoting: int, line_end: str, chunk: int, ended: bool) -> None:
    data = written(rows, quoting, line_end)
    data = data if ended else data[: -len(line_end)]
    expected = list(csv.reader(io.StringIO(data.decode(), newline="")))
    expected = [row for row in expected if row] if len(rows[0]) > 1 else [row or [""] for row in expected]
    with pytest.MonkeyPatch.context() as patch:
        assert read_all(data, chunk, patch) == expected


@given(TABLES, st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.integers(0, 3))
def test_only_the_label_field_changes(rows: list[list[str]], quoting: int, place: int) -> None:
    width = len(rows[0])
    place %= width
    data = written(rows, quoting, "\n")
    (records,) = csv_text.Splitter(",").split(io.BytesIO(data))
    source = CsvSource.__new__(CsvSource)
    source.delimiter, source.names = ",", tuple(f"c{i}" for i in range(width))
    source.plan(LabelCodec(("yes", 'no, "really"'), f"c{place}", pa.string()), 0)
    codes = np.arange(len(records)) % 2
    out = b"".join(source.rewrite(records, codes, None).to_pylist())
    new = [[*row[:place], ("yes", 'no, "really"')[code], *row[place + 1 :]] for row, code in zip(rows, codes, strict=True)]
    assert list(csv.reader(io.StringIO(out.decode(), newline=""))) == list(
        csv.reader(io.StringIO(written(new, quoting, "\n").decode(), newline=""))
    )
    around = records.pieces(place).to_pylist()
    cursor = 0
    for before, _, after in zip(around[0::3], around[1::3], around[2::3], strict=True):
        cursor = out.index(before, cursor) + len(before)
        cursor = out.index(after, cursor) + len(after)


def test_every_other_byte_stays(tmp_path: Path) -> None:
    lines = [b'id,"na me",y,z\r\n', b'1,"a, ""b""",A,\xc3\xbc\n', b'"2",  spaced ,B,""\r\n', b'3,"two\nlines","A",\r\n', b"4,,B,end"]
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbf" + b"".join(lines))
    source = CsvSource(path)
    assert source.names == ("id", "na me", "y", "z")
    source.plan(LabelCodec(("A", "B"), "y", pa.string()), 0)
    first, last = source.batches()  # a last line without a line end comes by itself
    assert first.column("y").to_pylist() + last.column("y").to_pylist() == ["A", "B", "A", "B"]
    assert first.column("na me").to_pylist() == ['a, "b"', "  spaced ", "two\nlines"]
    sink = source.sink(tmp_path / "o.csv", "")
    sink.write(first.release(np.array([1, 1, 0]), None, None))
    sink.write(last.release(np.array([0]), None, None))
    sink.close()
    expected = b'\xef\xbb\xbfid,"na me",y,z\r\n1,"a, ""b""",B,\xc3\xbc\n"2",  spaced ,B,""\r\n3,"two\nlines",A,\r\n4,,A,end\r\n'
    assert (tmp_path / "o.csv").read_bytes() == expected


def test_dropped_rows_and_evidence(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("y,x\nA,1\nB,2\nA,3\n")
    source = CsvSource(path)
    source.plan(LabelCodec(("A", "B"), "y", pa.string()), 2)
    (batch,) = source.batches()
    kept = np.array([True, False, True])
    released = batch.release(np.array([1, 0]), np.array([[0, 255], [1, 2]], np.uint8), kept)
    sink = source.sink(tmp_path / "o.csv", "")
    sink.write(released)
    sink.close()
    assert (tmp_path / "o.csv").read_text() == "y,y__evidence,x\nB,AP8,1\nA,AQI,3\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("\n\n", "header"),
        ("a,a\n1,2\n", "twice"),
        ("a,b\n1\n", "row 0"),
        ("a,b\n1,2\n3,4,5\n", "row 1"),
        ('a,b\n1,x"y\n', "inside a field"),
        ('a,b\n1,"open\n', "left open"),
        ("a,b\r1,2\r", "header"),
        ("a,b\n1,2\r3,4\n", "carriage"),
        ("a\0,b\n", "NUL"),
    ],
)
def test_malformed_text_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    with pytest.raises(InvalidInput, match=said):
        list(CsvSource(path).batches())


def test_other_encodings_are_refused_where_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n\xff,1\n")
    (batch,) = CsvSource(path).batches()
    assert batch.column("b").to_pylist() == ["1"]
    with pytest.raises(InvalidInput, match="UTF-8"):
        batch.column("a")


def test_digest_is_blind_to_labels_and_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest_of(text: str, chunk: int) -> str:
        path = tmp_path / "t.csv"
        path.write_text(text)
        monkeypatch.setattr(csv_text, "CHUNK", chunk)
        source = CsvSource(path)
        state = source.public_digest("y")
        for batch in source.batches():
            state.update(batch)
        return state.hexdigest()

    assert digest_of("x,y\n1,A\n2,B\n", 1 << 20) == digest_of("x,y\n1,BBB\n2,A\n", 5)
    assert digest_of("x,y\n1,A\n2,B\n", 1 << 20) != digest_of("x,y\n1,A\n3,B\n", 1 << 20)
