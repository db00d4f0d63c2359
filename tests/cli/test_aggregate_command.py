# SPDX-License-Identifier: Apache-2.0
"""`labeldp aggregate` as a person meets it: groups by their names, one charge, nothing half done,
and never a raw label."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import SENTINEL, run

import labeldp as ldp
from labeldp.aggregates import Aggregate, Histogram
from labeldp.ledger._ledger import Ledger, default_ledger

SITES = ["Aachen", "Zürich", "a, b", "Örebro"]  # in the order of their code points
RNG = np.random.default_rng(2)
SITE, KIND = RNG.integers(0, 4, 900), RNG.integers(0, 3, 900)
COUNTED = np.zeros((4, 3), int)
np.add.at(COUNTED, (SITE, KIND), 1)


def visits(path: Path, **replaced: object) -> Path:
    table = pa.table(
        {
            "visit": np.arange(900),
            "site": np.array(SITES)[SITE],
            "kind": np.array(["x", "y", "z"])[KIND],
        }
    )
    for name, column in replaced.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(column))
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=100)
    else:
        pyarrow.csv.write_csv(table, path)
    return path


@pytest.fixture(autouse=True)
def budget() -> None:
    default_ledger().set_budget("visits", "kind", 1000.0)


def command(source: Path, out: Path, *more: object, epsilon: object = 300) -> tuple[object, ...]:
    base = (
        "aggregate",
        source,
        "--label",
        "kind",
        "--group",
        "site",
        "--classes",
        "x,y,z",
        "--epsilon",
        epsilon,
        "--out",
        out,
    )
    return (*base, *more)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_counts_of_groups_by_name_and_a_free_repeat(tmp_path: Path, ending: str) -> None:
    source, out = visits(tmp_path / f"visits.{ending}"), tmp_path / "answer.parquet"
    code, said, _ = run(*command(source, out))
    assert code == 0
    assert "histogram of 'kind' in 4 groups of 900 rows; 300-label-DP for each row" in said
    assert f"Charged epsilon 300. Dataset 'visits' in {default_ledger().location}" in said
    found = Aggregate.load(out)
    assert (found.group_names, found.classes, found.epsilon) == (
        tuple(SITES),
        ("x", "y", "z"),
        300.0,
    )
    assert found.values.tolist() == COUNTED.tolist()
    assert pq.read_table(out).column_names == ["group", "n_rows", "count_x", "count_y", "count_z"]
    raw = out.read_bytes()
    code, said, _ = run(*command(source, out, "--json"))
    facts = json.loads(said)
    assert (code, facts["repeated"], facts["groups"], facts["rows"]) == (0, True, 4, 900)
    assert facts["receipt"]["run_id"] == found.receipt.run_id
    assert "nothing was charged" in run(*command(source, tmp_path / "copy.parquet"))[1]
    assert (tmp_path / "copy.parquet").read_bytes() == out.read_bytes() == raw
    assert default_ledger().spent("visits", "kind") == 300.0
    assert default_ledger().verify([found.receipt]) == []
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_same_question_in_python_finds_the_answer(tmp_path: Path) -> None:
    """Groups are numbered in the order of their names, and nothing but the counts' epsilon is drawn
    with."""
    source, place = visits(tmp_path / "visits.csv"), tmp_path / "ledger.db"
    assert (
        run(*command(source, tmp_path / "answer.parquet", "--ledger", place, epsilon=0.1))[0] == 0
    )
    labels = np.array(["x", "y", "z"])[KIND]
    query = Histogram(3, 0.1, 4)
    found = ldp.aggregate(
        ldp.PrivateLabels(
            labels, classes=["x", "y", "z"], dataset="visits", column="kind", ledger=Ledger(place)
        ),
        query,
        SITE,
    )
    named = Aggregate.load(tmp_path / "answer.parquet")
    assert (found.values.tolist(), found.receipt) == (named.values.tolist(), named.receipt)
    assert found.values.tolist() != COUNTED.tolist()
    assert Ledger(place).spent("visits", "kind") == 0.1
    assert named.prior(["Zürich", "Aachen"]).tolist() == found.prior([1, 0]).tolist()
    assert named.predict(np.array(SITES)).tolist() == found.predict([0, 1, 2, 3]).tolist()
    with pytest.raises(ldp.InvalidInput, match="another one in row 1"):
        named.prior(["Zürich", "Paris"])


def test_an_answer_as_text(tmp_path: Path) -> None:
    assert run(*command(visits(tmp_path / "visits.parquet"), tmp_path / "answer.csv"))[0] == 0
    table = pyarrow.csv.read_csv(tmp_path / "answer.csv")
    assert table.column_names == ["group", "n_rows", "count_x", "count_y", "count_z"]
    assert table["group"].to_pylist() == SITES
    assert table["count_y"].to_pylist() == COUNTED[:, 1].tolist()


@pytest.mark.parametrize("more", [(), ("--mechanism", "gaussian", "--delta", 1e-6)])
def test_a_vote_says_labels(tmp_path: Path, more: tuple[object, ...]) -> None:
    kind = np.where(RNG.random(900) < 0.9, np.array(["z", "x", "y", "z"])[SITE], "x")
    source = visits(tmp_path / "visits.csv", kind=kind)
    code, said, _ = run(*command(source, tmp_path / "answer.parquet", "--query", "vote", *more))
    assert code == 0 and ("(300, 1e-06)-label-DP" in said) == bool(more)
    found = Aggregate.load(tmp_path / "answer.parquet")
    assert found.predict(["a, b", "Örebro"]).tolist() == ["y", "z"]


VIEWS = pytest.param(
    pa.string_view(),
    marks=pytest.mark.skipif(
        int(pa.__version__.split(".")[0]) < 21, reason="pyarrow 20 writes none to Parquet"
    ),
)


@pytest.mark.parametrize(
    "kind",
    [pa.int8(), pa.bool_(), pa.large_string(), VIEWS, pa.dictionary(pa.int32(), pa.string())],
)
def test_groups_and_labels_of_other_types(tmp_path: Path, kind: pa.DataType) -> None:
    values = [False, True] if kind == pa.bool_() else [10, 9] if kind == pa.int8() else ["b", "a"]
    column = pa.array([values[i % 2] for i in range(900)]).cast(kind)
    source = visits(
        tmp_path / "visits.parquet",
        site=column,
        kind=pa.array(KIND.tolist(), pa.int16()),
        visit=column,
    )
    more = ("--classes", "0,1,2", "--epsilon", 300, "--out", tmp_path / "answer.parquet")
    assert run("aggregate", source, "--label", "kind", "--group", "site", *more)[0] == 0
    found = Aggregate.load(tmp_path / "answer.parquet")
    assert found.group_names == tuple(sorted(values))
    assert (found.classes, found.n_rows.tolist()) == ((0, 1, 2), [450, 450])
    assert (
        found.values[1 if values == [False, True] else 0].tolist()
        == np.bincount(KIND[1::2], minlength=3).tolist()
    )
    classes = ",".join(map(str, values))
    more = ("--classes", classes, "--epsilon", 300, "--out", tmp_path / "other.parquet")
    assert run("aggregate", source, "--label", "visit", "--group", "site", *more)[0] == 0
    assert np.abs(Aggregate.load(tmp_path / "other.parquet").values).sum() == 900


def test_a_folder_whose_partitions_are_the_groups(tmp_path: Path) -> None:
    for number, name in enumerate(SITES[:2]):
        folder = tmp_path / "visits" / f"site={name}"
        folder.mkdir(parents=True)
        pq.write_table(
            pa.table({"kind": np.array(["x", "y", "z"])[KIND[number == SITE]]}),
            folder / "part.parquet",
        )
    assert run(*command(tmp_path / "visits", tmp_path / "answer.parquet"))[0] == 0
    found = Aggregate.load(tmp_path / "answer.parquet")
    assert (found.group_names, found.receipt.dataset) == (tuple(SITES[:2]), "visits")
    assert found.values.tolist() == COUNTED[:2].tolist()
    swapped = [
        "kind" if each == "site" else "site" if each == "kind" else each
        for each in command(tmp_path / "visits", tmp_path / "b.csv")
    ]
    code, _, said = run(*swapped)
    assert (code, "partition" in said) == (4, True)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--epsilon", "0"), "epsilon"),
        (("--epsilon", "nan"), "epsilon"),
        (("--epsilon", "one"), "epsilon"),
        (("--query", "mean"), "histogram"),
        (("--mechanism", "exponential"), "laplace"),
        (("--mechanism", "gaussian"), "delta > 0"),
        (("--delta", "0.1"), "delta=0"),
        (("--delta", "2"), "delta"),
        (("--classes", "x"), "at least 2"),
        (("--classes", "x,y,x"), "different"),
        (("--group", "kind"), "label column"),
    ],
)
def test_wrong_options_are_usage(tmp_path: Path, more: tuple[str, str], said: str) -> None:
    arguments = list(command(visits(tmp_path / "visits.csv"), tmp_path / "a.csv"))
    if more[0] in arguments:
        arguments[arguments.index(more[0]) + 1] = more[1]
    else:
        arguments += more
    code, _, message = run(*arguments)
    assert code == 2
    assert said in message
    assert default_ledger().runs() == []


@pytest.mark.parametrize(("other", "warned"), [("y", True), ("w", False)])
def test_groups_that_are_called_like_classes_are_warned_of(
    tmp_path: Path, other: str, warned: bool
) -> None:
    """By their names alone: a column that agrees with no label is warned of like a copy."""
    source = visits(tmp_path / "visits.csv", site=np.array(["x", other])[SITE % 2])
    code, _, said = run(*command(source, tmp_path / "answer.csv"))
    assert (code, "is called like a class of 'kind'" in said) == (0, warned)


def test_classes_are_declared(tmp_path: Path) -> None:
    many = visits(tmp_path / "visits.csv", visit=np.arange(900))
    base = ("aggregate", many, "--group", "site", "--epsilon", 1, "--out", tmp_path / "a.parquet")
    code, _, said = run(*base, "--label", "kind")
    assert (code, "--classes no,yes" in said, "--classes infer" in said) == (2, True, True)
    assert run(*base, "--label", "visit", "--classes", "infer")[0] == 4
    code, answer, said = run(*base, "--label", "kind", "--classes", "infer", "--dataset", "other")
    assert code == 0 and "except which classes occur" in answer and "--classes A,B" in said
    assert Aggregate.load(tmp_path / "a.parquet").privacy.except_for == "which classes occur"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("replaced", "said"),
    [
        ({"site": [*np.array(SITES)[SITE[:-1]], None]}, "none in {}"),
        ({"kind": [*np.array(["x", "y", "z"])[KIND[:-1]], SENTINEL]}, "some label is not"),
        ({"kind": [*np.array(["x", "y", "z"])[KIND[:-1]], None]}, "some label is missing"),
    ],
)
def test_rows_of_bad_groups_are_named_those_of_bad_labels_not(
    tmp_path: Path, ending: str, replaced: dict[str, object], said: str
) -> None:
    source = visits(tmp_path / f"visits.{ending}", **replaced)
    code, _, message = run(*command(source, tmp_path / "a.csv"))
    assert code == 4
    assert (
        said.format("row 900 (line 901)" if ending == "csv" else "row 900 (the first is row 1)")
        in message
    )
    assert default_ledger().runs() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name]


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    source = visits(tmp_path / "visits.csv")
    (tmp_path / "mine.csv").write_text("keep me")
    for given, out, wanted in (
        (source, tmp_path / "none" / "a.csv", 5),
        (tmp_path / "none.csv", tmp_path / "a.csv", 5),
        (source, source, 5),
        (source, tmp_path / "a.txt", 4),
        (source, tmp_path / "mine.csv", 5),
    ):
        assert run(*command(given, out))[0] == wanted
    assert default_ledger().runs() == []
    assert run(*command(source, tmp_path / "a.csv"))[0] == 0
    # an answer is stored, but this is not it
    assert run(*command(source, tmp_path / "mine.csv"))[0] == 5
    assert (tmp_path / "mine.csv").read_text() == "keep me"


KILLED = """
import os, signal, sys
from labeldp.app import _aggregate as module
from labeldp.ledger._ledger import Ledger

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[4] == "before settling":
    Ledger.settle = die
else:
    module.Place.move = die
spec = module.AggregateSpec("kind", "site", ["x", "y", "z"], 0.5)
module.aggregate(sys.argv[1], sys.argv[2], spec, Ledger(sys.argv[3]))
"""


@pytest.mark.parametrize("where", ["before settling", "before publishing"])
def test_killed_before_the_file_is_there_the_same_command_writes_the_stored_answer(
    tmp_path: Path, where: str
) -> None:
    source, out, place = (
        visits(tmp_path / "visits.csv"),
        tmp_path / "answer.csv",
        tmp_path / "private" / "ledger.db",
    )
    arguments = [sys.executable, "-c", KILLED, source, out, place, where]
    died = subprocess.run(
        arguments, capture_output=True, timeout=60, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert not out.exists()
    code, said, _ = run(*command(source, out, "--ledger", place, epsilon=0.5))
    assert (code, "nothing was charged" in said) == (0, True), said
    (record,) = Ledger(place).runs()
    assert (record.state, record.receipt.epsilon) == ("settled", 0.5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "answer.csv",
        "private",
        "visits.csv",
    ]
