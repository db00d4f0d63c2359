# SPDX-License-Identifier: Apache-2.0
"""Every field of a CSV comes out with the value that Python's own reader finds, and what readers
disagree on is refused."""

import csv
import io
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeldp.errors import InvalidInput
from labeldp.tables.formats import _csv as tables_csv
from labeldp.tables.formats._csv import CsvSource
from labeldp.tables.formats._table import LabelCodec

FIELD = st.text(alphabet=st.sampled_from('ab,"\n\r ü€x;\t\ufeff'), max_size=6)
TABLES = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(FIELD, min_size=width, max_size=width), min_size=1, max_size=12)
)
CHUNKS = st.sampled_from([3, 7, 1 << 20])


def written(rows: list[list[str]], quoting: int, line_end: str) -> bytes:
    """As Python writes them, after a header c0, c1, ..."""
    buffer = io.StringIO()
    if quoting == csv.QUOTE_MINIMAL:
        # Python 3.11 writes a bare one without quotes
        rows = [[field.replace("\r", "") for field in row] for row in rows]
    header = [f"c{i}" for i in range(len(rows[0]))]
    csv.writer(buffer, quoting=quoting, lineterminator=line_end).writerows([header, *rows])
    return buffer.getvalue().encode()


def as_python_reads(data: bytes) -> list[list[str]]:
    header, *rows = csv.reader(io.StringIO(data.decode(), newline=""))
    return [row for row in rows if row] if len(header) > 1 else [row or [""] for row in rows]


def opened(data: bytes, folder: str | Path, ending: str = "csv") -> CsvSource:
    path = Path(folder, f"t.{ending}")
    path.write_bytes(data)
    return CsvSource(path)


def read_all(source: CsvSource) -> list[list[str]]:
    return [
        list(row)
        for batch in source.batches()
        for row in zip(*(batch.column(name).to_pylist() for name in source.names), strict=True)
    ]


def released(
    source: CsvSource,
    codes: np.ndarray,
    evidence: np.ndarray | None = None,
    kept: np.ndarray | None = None,
) -> bytes:
    """What a release of these codes writes, batch by batch; `codes` and `evidence` are of the kept
    rows."""
    out, kept = (
        Path(source.path.path).parent / "out",
        (np.ones(len(codes), bool) if kept is None else kept),
    )
    sink, row, done = source.sink(out, ""), 0, 0
    for batch in source.batches():
        mine = kept[row : row + len(batch)]
        part, row = slice(done, done + int(mine.sum())), row + len(batch)
        rows = batch.rows.filter(pa.array(mine))
        sink.write(source.rewrite(rows, codes[part], None if evidence is None else evidence[part]))
        done = part.stop
    sink.close()
    data = out.read_bytes()
    out.unlink()
    return data


@given(
    TABLES,
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["\n", "\r\n"]),
    CHUNKS,
    st.booleans(),
)
def test_fields_are_those_that_python_reads(
    rows: list[list[str]], quoting: int, line_end: str, chunk: int, ended: bool
) -> None:
    data = written(rows, quoting, line_end)
    data = data if ended else data[: -len(line_end)]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(tables_csv, "CHUNK", chunk)
        assert read_all(opened(data, folder)) == as_python_reads(data)


@given(TABLES, st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.integers(0, 3), CHUNKS)
def test_only_the_label_changes(
    rows: list[list[str]], quoting: int, place: int, chunk: int
) -> None:
    place %= len(rows[0])
    data = written(rows, quoting, "\n")
    classes = ("yes", 'no, "really"')
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(tables_csv, "CHUNK", chunk)
        source = opened(data, folder)
        source.plan(LabelCodec(classes, f"c{place}", pa.string()), 0)
        expected = as_python_reads(data)
        codes = np.arange(len(expected)) % 2
        out = released(source, codes)
    assert as_python_reads(out) == [
        [*row[:place], classes[c], *row[place + 1 :]]
        for row, c in zip(expected, codes, strict=True)
    ]


def test_what_stays_besides_values(tmp_path: Path) -> None:
    """The byte order mark, the header's line end, and whether an empty field was quoted, which
    other programs tell from a missing one."""
    lines = [
        b'id,"na me",y,z\r\n',
        b'1,"a, ""b""",A,\xc3\xbc\n',
        b'"2",  spaced ,B,""\r\n',
        b'3,"two\nlines","A",\r\n',
        b"4,,B,end",
    ]
    source = opened(b"\xef\xbb\xbf" + b"".join(lines), tmp_path)
    assert source.names == ("id", "na me", "y", "z")
    source.plan(LabelCodec(("A", "B"), "y", pa.string()), 0)
    first, last = source.batches()  # a last line without a line end comes by itself
    assert first.column("y").to_pylist() + last.column("y").to_pylist() == ["A", "B", "A", "B"]
    assert first.column("na me").to_pylist() == ['a, "b"', "  spaced ", "two\nlines"]
    expected = (
        b'\xef\xbb\xbfid,na me,y,z\r\n1,"a, ""b""",B,\xc3\xbc\r\n2,  spaced'
        b' ,B,""\r\n3,"two\nlines",A,\r\n4,,A,end\r\n'
    )
    assert released(source, np.array([1, 1, 0, 0])) == expected


def test_columns_that_are_not_asked_for_may_be_in_any_encoding(tmp_path: Path) -> None:
    source = opened(b'a,b,y\n\xff,1,A\n"\xfc, \xf6",2,B\n', tmp_path)
    source.plan(LabelCodec(("A", "B"), "y", pa.string()), 0)
    (batch,) = source.batches()
    assert batch.column("b").to_pylist() == ["1", "2"]
    with pytest.raises(InvalidInput, match="UTF-8"):
        batch.column("a")
    assert released(source, np.array([1, 0])) == b'a,b,y\n\xff,1,B\n"\xfc, \xf6",2,A\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("\n\n", "header"),
        ("a,a\n1,2\n", "twice"),
        ("a,b\n1\n", r"got 1 in row 1 \(line 2\)"),
        ("a,b\n1,2\n3,4,5\n", r"got 3 in row 2 \(line 3\)"),
        ("a,b\n\n1,2\n\n3,4,5\n", r"got 3 in row 2 \(line 5\)"),
        ('a,b\n1,x"y\n', r"inside a field in row 1 \(line 2\)"),
        ('a,b\n\n1,"\n"\n2,"x"y\n3,4\n', r"inside a field in row 2 \(line 5\)"),
        ('a,b\n1,"open\n', r"left open in row 1 \(line 2\)"),
        ('a,b\n1,2\n3,"open\n4,5\n', r"left open in row 2 \(line 3\)"),
        ("a,b\r1,2\r", "header"),
        ("a,b\n1,2\n3,4\r5,6\n7,8\n", r"carriage.* in row 2 \(line 3\)"),
        ("a\0,b\n", "NUL"),
    ],
)
@pytest.mark.parametrize("chunk", [3, 1 << 20])
def test_malformed_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str, chunk: int
) -> None:
    monkeypatch.setattr(tables_csv, "CHUNK", chunk)
    with pytest.raises(InvalidInput, match=said):
        list(opened(text.encode(), tmp_path).batches())


@pytest.mark.parametrize("chunk", [3, 1 << 20])
def test_bytes_that_are_no_text_are_named_by_their_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(tables_csv, "CHUNK", chunk)
    source = opened('a,b\n"1\n",2\n3,é\n5,6\n'.encode("latin-1"), tmp_path)
    assert [value for batch in source.batches() for value in batch.column("a").to_pylist()] == [
        "1\n",
        "3",
        "5",
    ]
    with pytest.raises(InvalidInput, match=r"UTF-8 in column 'b', got other bytes\. Save"):
        [batch.column("b") for batch in source.batches()]


def test_a_record_without_an_end_is_not_read_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_csv, "CHUNK", 100)
    monkeypatch.setattr(tables_csv, "LONGEST_RECORD", 1000)
    with pytest.raises(InvalidInput, match="quote left open"):
        list(opened(b'a,b\n1,"' + b"2,3\n" * 1000, tmp_path).batches())
