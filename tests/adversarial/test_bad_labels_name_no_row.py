# SPDX-License-Identifier: Apache-2.0
"""A raw label that cannot be used is refused before a charge, by a text that does not depend on its
row, or on how many there are."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import SENTINEL, run

import labeldp as ldp
from labeldp.errors import InvalidInput
from labeldp.ledger._ledger import default_ledger

N = 640
ROWS = (417, 523)
SHOWN = re.compile(r"\b(41[6789]|52[3-6]|\d+ (rows|labels))\b")
"""Numbers of these rows, from 0 and 1, and of their lines; and how many they are."""

RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3))
GROUPS = RNG.integers(0, 4, N)
CLASSES, GRID = ["no", "yes"], ldp.Grid(0, 8, points=5)
Y = {
    "classes": np.where(RNG.random(N) < 0.5, "no", "yes").astype(object),
    "numbers": (RNG.random(N) * 8).astype(object),
}
BAD: dict[str, dict[str, Any]] = {
    "classes": {"none": None, "nan": np.nan, "undeclared": SENTINEL, "number": 1.0},
    "numbers": {
        "none": None,
        "nan": np.nan,
        "infinite": -np.inf,
        "text": "12.5",
        "words": SENTINEL,
    },
}


def bad(kind: str, value: Any, rows: tuple[int, ...]) -> np.ndarray:
    labels = Y[kind].copy()
    for row in rows:
        labels[row] = value
    return labels


DECLARED: dict[str, dict[str, Any]] = {
    "classes": {"classes": CLASSES, "dataset": "d"},
    "numbers": {"range": GRID, "dataset": "d"},
}


def several(kind: str, y: Any) -> ldp.PrivateLabels:
    columns = {"y": GRID if kind == "numbers" else CLASSES, "other": [0, 1]}
    return ldp.PrivateLabels({"y": y, "other": np.arange(N) % 2}, classes=columns, dataset="d")


FORMS: dict[str, Callable[[str, Any], ldp.PrivateLabels]] = {
    "array": lambda kind, y: ldp.PrivateLabels(y, **DECLARED[kind]),
    "series": lambda kind, y: ldp.PrivateLabels(pd.Series(y), **DECLARED[kind]),
    "several": several,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("kind", "value"), [(kind, value) for kind, values in BAD.items() for value in values]
)
def test_the_door_of_python(form: str, kind: str, value: str) -> None:
    told = set()
    for rows in (ROWS[:1], ROWS[1:], ROWS):
        labels = bad(kind, BAD[kind][value], rows)
        with pytest.raises(InvalidInput) as caught:
            FORMS[form](kind, labels)
        text, seen = str(caught.value), caught.value.__context__ or caught.value.__cause__
        told.add((text, str(seen)))
        assert (
            not SHOWN.search(text) and SENTINEL not in text and "12.5" not in text and seen is None
        )
    assert len(told) == 1 and "Which row it is would tell of its label" in text
    assert not default_ledger().exists() or not default_ledger().runs()


def masked(labels: np.ndarray, row: int | None) -> Any:
    return np.ma.MaskedArray(labels, np.arange(N) == row)


@pytest.mark.parametrize("listed", [False, True])
# pandas makes NaN of what is masked
@pytest.mark.parametrize("form", ["array", "several"])
@pytest.mark.parametrize("kind", BAD)
def test_what_a_mask_hides_is_no_label(form: str, kind: str, listed: bool) -> None:
    told = set()
    for row in ROWS:
        labels = masked(Y[kind].astype(str if kind == "classes" else float), row)
        with pytest.raises(InvalidInput, match="masked") as caught:
            FORMS[form](kind, list(labels) if listed else labels)
        told.add(str(caught.value))
    assert len(told) == 1
    assert not default_ledger().exists() or not default_ledger().runs()


@pytest.mark.parametrize("form", [lambda Y: Y, list])
def test_what_a_mask_hides_in_an_array_of_several_columns_is_no_label(
    form: Callable[[Any], Any],
) -> None:
    Y = np.ma.stack(
        [masked(np.arange(N) % 2, ROWS[0]), masked(np.arange(N) // 2 % 2, None)], axis=1
    )
    with pytest.raises(InvalidInput, match="masked"):
        ldp.PrivateLabels(form(Y), classes={"y": [0, 1], "other": [0, 1]})


def test_a_mask_that_hides_nothing_is_none() -> None:
    numbers = Y["numbers"].astype(float)
    told, plain = (
        ldp.privatize(
            ldp.PrivateLabels(y, range=GRID, noise=ldp.SeededNoise(0)),
            ldp.RandomizedResponse(len(GRID), 1.0),
        ).hard()
        for y in (masked(numbers, None), numbers)
    )
    np.testing.assert_array_equal(told, plain)


@pytest.mark.parametrize("value", [None, np.nan, pd.NA, 3, True])
def test_the_first_row_is_as_any_other_if_classes_are_read_off(value: Any) -> None:
    told = set()
    for row in (0, *ROWS):
        with pytest.raises(InvalidInput) as caught:
            ldp.PrivateLabels(bad("classes", value, (row,)), classes="infer")
        told.add((str(caught.value), caught.value.__context__))
    assert len(told) == 1


@pytest.mark.parametrize("values", [("NO", SENTINEL), (" no", "NO"), (None, SENTINEL)])
def test_of_two_bad_labels_neither_is_the_first(tmp_path: Path, values: tuple[Any, Any]) -> None:
    told = set()
    for one, other in (ROWS, ROWS[::-1]):
        labels = bad("classes", values[0], (one,))
        labels[other] = values[1]
        with pytest.raises(InvalidInput) as caught:
            FORMS["array"]("classes", labels)
        pq.write_table(
            pa.table({"id": np.arange(N), "y": labels.tolist()}), tmp_path / "in.parquet"
        )
        code, _, text = run(
            *shlex.split(
                f"release {tmp_path}/in.parquet --label y --epsilon 1 --id id --classes no,yes"
                f" --out {tmp_path}/o.parquet"
            )
        )
        assert code == 4
        told.add((str(caught.value), text))
    assert len(told) == 1


def test_labels_that_are_no_text_are_as_any_others(tmp_path: Path) -> None:
    text = pa.Array.from_buffers(
        pa.string(),
        2,
        [None, pa.py_buffer(np.array([0, 2, 8], np.int32)), pa.py_buffer(b"no\xff\xfesecr")],
    )
    pq.write_table(pa.table({"id": [1, 2], "y": text}), tmp_path / "in.parquet")
    code, _, said = run(
        *shlex.split(
            f"release {tmp_path}/in.parquet --label y --epsilon 1 --id id --classes no,yes --out"
            f" {tmp_path}/o.parquet"
        )
    )
    assert code == 4 and "Which row it is would tell of its label" in said and "secr" not in said


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_labels_of_a_type_that_is_numeric(kind: str) -> None:
    """Arrays of floats take another way than objects."""
    classes = GRID if kind == "numbers" else [0.0, 1.0]
    for value in (np.nan, np.inf):
        told = set()
        for rows in (ROWS[:1], ROWS[1:], ROWS):
            labels = np.arange(N) % 2.0
            labels[list(rows)] = value
            for declared in ({"classes": classes}, {"classes": "infer"}, {"range": (0, 1)}):
                with pytest.raises(
                    InvalidInput,
                    match=r"Which row it is would tell of its label|names of classes where",
                ) as caught:
                    ldp.PrivateLabels(labels, **declared)
                assert not SHOWN.search(str(caught.value))
                told.add(str(caught.value))
        # what is read off, and numbers of a range, which a grid is; or classes, too
        assert len(told) == (2 if kind == "numbers" else 3)


def test_the_way_to_find_it_that_the_message_names_finds_it() -> None:
    for kind, value, expression in (
        ("classes", None, r"said: (.+) finds it"),
        ("numbers", None, r"said: make (.+), and (.+) finds it"),
        ("numbers", SENTINEL, r"said: make (.+), and (.+) finds it"),
        ("numbers", np.inf, r"said: make (.+), and (.+) finds it"),
    ):
        labels = bad(kind, value, ROWS)
        with pytest.raises(InvalidInput) as caught:
            FORMS["array"](kind, labels)
        told = re.search(expression, str(caught.value))
        assert told is not None
        names: dict[str, Any] = {
            "numpy": np,
            "pandas": pd,
            "labels": pd.Series(labels) if value is None else labels,
        }
        *first, last = told.groups()
        for each in first:
            exec(each, names)
        assert tuple(eval(last, names)) == ROWS


def table_of(kind: str, value: Any, rows: tuple[int, ...], ending: str) -> pa.Table | None:
    labels = bad(kind, value, rows)
    if ending == "csv":
        labels = np.array(["" if each is None else str(each) for each in labels], object)
    try:
        column = pa.array(labels.tolist())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None  # a column of one type cannot hold it
    return pa.table(
        {
            "id": [f"p{i}" for i in range(N)],
            "x": X[:, 0],
            "group": [f"g{g}" for g in GROUPS],
            "extra": ["u", "v"] * (N // 2),
            "y": column,
        }
    )


COMMANDS = {
    "release": "release {source} --label y --epsilon 1 --id id {classes} --out {out}",
    "several": "release {source} --label y,extra --epsilon 1 --id id {several} --out {out}",
    "train": (
        "train {source} --label y --features x --epsilon 1 {classes} --model {model} --out {out}"
    ),
    "aggregate": "aggregate {source} --label y --group group --epsilon 1 {classes} --out {out}",
}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("command", ["release", "several", "train", "aggregate"])
@pytest.mark.parametrize(
    ("kind", "value"), [(kind, value) for kind, values in BAD.items() for value in values]
)
def test_commands(tmp_path: Path, command: str, ending: str, kind: str, value: str) -> None:
    if kind == "numbers" and command == "aggregate":
        pytest.skip("has no range")
    told = set()
    for rows in (ROWS[:1], ROWS[1:], ROWS):
        source = tmp_path / f"in.{ending}"
        table = table_of(kind, BAD[kind][value], rows, ending)
        if table is None or (ending == "csv" and value == "text"):
            pytest.skip("no such column")
        if ending == "csv":
            pc_csv.write_csv(table, source, pc_csv.WriteOptions(quoting_style="needed"))
        else:
            pq.write_table(table, source)
        given = "--range 0:8" if kind == "numbers" else "--classes no,yes"
        several = "--range y=0:8 --classes u,v" if kind == "numbers" else "--classes 'no,yes;u,v'"
        told_by = COMMANDS[command].format(
            source=source,
            out=tmp_path / ("out" if command == "train" else f"out.{ending}"),
            classes=given,
            several=several,
            model="linear",
        )
        code, out, text = run(*shlex.split(told_by))
        assert code == 4, text
        said = text.replace(str(tmp_path), "")
        told.add(said)
        assert not SHOWN.search(said) and not re.search(r"\b(line|row) \d", said) and not out
    assert len(told) == 1 and "Which row it is would tell of its label" in said
    assert default_ledger().runs() == []
