# SPDX-License-Identifier: Apache-2.0
"""`labeldp release` as a person meets it: one message, the right exit code, nothing half done, and
never a raw label."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import SENTINEL, run
from typer.testing import CliRunner

from labeldp.cli import app
from labeldp.laws import LabelColumns
from labeldp.ledger._ledger import Ledger, default_ledger
from labeldp.tables import read_noisy

QUOTED = '"yes, daily"'


def people(path: Path, n: int = 400, bad: str | None = None) -> Path:
    rng = np.random.default_rng(5)
    labels = np.array(["ill", "well"])[rng.integers(0, 2, n)].tolist()
    if bad is not None:
        labels[n // 2] = bad
    table = pa.table({"patient": np.arange(n), "age": rng.integers(20, 90, n), "status": labels})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        path.write_text(
            "patient,age,status\n"
            + "".join(f"{a},{b},{c}\n" for a, b, c in zip(*table.to_pydict().values(), strict=True))
        )
    return path


def command(source: Path, out: Path, *more: object) -> tuple[object, ...]:
    return (
        "release",
        source,
        "--label",
        "status",
        "--epsilon",
        "1",
        "--classes",
        "ill,well",
        "--out",
        out,
        *more,
    )


def unboxed(told: str) -> str:
    return " ".join(told.replace("│", " ").split())


def test_rows_over_the_cap_are_told(tmp_path: Path) -> None:
    source = people(tmp_path / "in.parquet")
    table = pq.read_table(source)
    pq.write_table(table.append_column("family", pa.array(np.arange(400) // 4)), source)
    of = ("--id", "patient", "--unit", "family")
    for _ in range(2):  # a repeat tells it too
        code, said, told = run(*command(source, tmp_path / "out.parquet", *of))
        assert code == 0 and "300 rows over the cap were left out." in said
        assert "300 of 400 rows are over the cap of 1 row for each family" in told
        assert "(--max-rows-per-unit)" in told
    whole = run(*command(source, tmp_path / "all.parquet", *of, "--max-rows-per-unit", 4))
    assert "over the cap" not in "".join(whole[1:])
    asked = ("--label", "status", "--model", "linear", "--out")
    code, said, _ = run("train", tmp_path / "out.parquet", *asked, tmp_path / "m")
    assert code == 0 and "300 rows over the cap were left out when the table was released." in said
    facts = json.loads((tmp_path / "m" / "model.json").read_text())
    assert (facts["rows"], facts["rows_over_the_cap"]) == (100, 300)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_release_and_its_repeat(tmp_path: Path, ending: str) -> None:
    source, out = people(tmp_path / f"in.{ending}"), tmp_path / f"out.{ending}"
    code, said, _ = run(*command(source, out, "--id", "patient"))
    assert code == 0
    assert "1-label-DP for each row" in said
    raw = out.read_bytes()
    code, said, _ = run(*command(source, out, "--id", "patient", "--json"))
    assert code == 0
    facts = json.loads(said)
    assert facts["repeated"] is True
    assert facts["receipt"]["epsilon"] == 1.0
    assert out.read_bytes() == raw
    assert default_ledger().spent("in", "status") == 1.0
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        [source.name, out.name, out.name + ".manifest.json"]
    )
    code, said, _ = run("ledger", "verify", str(out) + ".manifest.json")
    agrees = (
        f"{out.name} is what was released, and agrees with {out.name}.manifest.json and the ledger"
    )
    assert (code, said) == (
        0,
        f"The history is whole.\n{agrees}: column 'status' is 1-label-DP for each row.\n",
    )


def test_a_copy_of_the_ledger_alone_verifies_what_it_can(tmp_path: Path) -> None:
    """With a code of its own: nothing is wrong, and budgets cannot be checked."""
    for part in range(2):
        source = tmp_path / f"in{part}.csv"
        source.write_text("id,y\n" + "".join(f"r{100 * part + i},{i % 2}\n" for i in range(100)))
        asked = (
            "release",
            source,
            "--label",
            "y",
            "--classes",
            "0,1",
            "--epsilon",
            1,
            "--id",
            "id",
            "--dataset",
            "d",
        )
        assert run(*asked, "--out", tmp_path / f"{part}.csv")[0] == 0
    copy, manifest = tmp_path / "officer" / "copy.db", tmp_path / "0.csv.manifest.json"
    copy.parent.mkdir()
    copy.write_bytes(Path(str(default_ledger().location)).read_bytes())
    assert run("ledger", "verify", manifest)[0] == 0
    code, said, _ = run("ledger", "verify", manifest, "--ledger", copy)
    assert code == 5 and "The history is whole." in said and "0.csv is what was released" in said
    assert "Budgets cannot be checked without row sets" in said and "exceed" not in said
    facts = json.loads(run("ledger", "verify", manifest, "--ledger", copy, "--json")[1])
    assert facts["whole"] is True and facts["problems"] == [] and len(facts["unchecked"]) == 1
    manifest.write_text(manifest.read_text().replace("1.0", "0.5"))
    code, said, _ = run("ledger", "verify", manifest, "--ledger", copy)
    assert code == 7 and "does not say what was charged" in said and "cannot be checked" in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--law", "rrr"), "rr"),
        *((("--epsilon", each), "epsilon") for each in ("0", "nan", "inf", "one")),
        (("--classes", "ill,well;ill,well"), "between the lists of several"),
        (("--classes", "status=ill,well"), "with one label column"),
        (("--range", "0:1"), "Leave one out"),
        (("--split", "one"), "--split with several label columns"),
        (("--engine", "flink"), "one of local, spark, ray"),
        (("--prior", "model:m,features=a"), "setting of --prior model"),
        (("--prior", "hist"), "Did you mean 'histogram'?"),
        (("--id", "status"), "Expected id to name public columns"),
        (("--order", "sorted"), "keep"),
        (("--max-rows-per-unit", "2"), "unit"),
        (("--prior", "age"), "prior"),
        (("--nonsense",), "nonsense"),
    ],
)
def test_wrong_options_are_usage(tmp_path: Path, more: tuple[str, ...], said: str) -> None:
    code, _, message = run(*command(people(tmp_path / "in.csv"), tmp_path / "o.csv", *more))
    assert code == 2
    assert said in unboxed(message)


def test_malformed_inputs_are_data_errors(tmp_path: Path) -> None:
    whole = people(tmp_path / "whole.parquet").read_bytes()
    for name, content in {
        "cut.parquet": whole[: len(whole) // 2],
        "empty.parquet": b"",
        "empty.csv": b"",
        "head.csv": b"patient,status\n",
        "x.txt": b"a",
    }.items():
        path = tmp_path / name
        path.write_bytes(content)
        code, _, said = run(*command(path, tmp_path / f"o{path.suffix}"))
        assert (name, code) == (name, 4)
        assert said.startswith("error: Expected")
    assert not any(p.name.startswith(("o.", ".o")) for p in tmp_path.iterdir())


def test_places_that_cannot_be_used_are_code_5(tmp_path: Path) -> None:
    source = people(tmp_path / "in.csv")
    (tmp_path / "mine.csv").write_text("keep me")
    cases = {
        "missing folder": (source, tmp_path / "none" / "o.csv"),
        "missing input": (tmp_path / "none.csv", tmp_path / "o.csv"),
        "same file": (source, source),
        "taken": (source, tmp_path / "mine.csv"),
        "folder": (tmp_path, tmp_path / "o.csv"),
    }
    for name, (given, out) in cases.items():
        code = run(*command(given, out))[0]
        assert (name, code) == (name, 4 if name == "folder" else 5)
    assert (tmp_path / "mine.csv").read_text() == "keep me"
    (tmp_path / "ledger.db").write_text("this is no ledger")
    assert run(*command(source, tmp_path / "o.csv", "--ledger", tmp_path / "ledger.db"))[0] == 5
    assert not (tmp_path / "o.csv").exists()
    assert default_ledger().runs() == []


def test_classes_from_a_file_and_inferred(tmp_path: Path) -> None:
    source = people(tmp_path / "in.csv")
    (tmp_path / "classes").write_bytes(b"\xef\xbb\xbfill\r\nwell\r\n")  # as Windows saves it
    base = ("release", source, "--label", "status", "--epsilon", "1")
    assert run(*base, "--classes", f"@{tmp_path / 'classes'}", "--out", tmp_path / "a.csv")[0] == 0
    code, _, said = run(*base, "--out", tmp_path / "b.csv")
    assert code == 2 and "--classes no,yes" in said and "classes=" not in said
    inferred = (*base, "--classes", "infer", "--out", tmp_path / "b.csv", "--dataset", "other")
    for more in ("--strict", "--null-class"):
        assert run(*inferred, more)[0] == 2
    code, answer, said = run(*inferred)
    assert code == 0 and said.count("warning: The classes are read off") == 1
    assert "--classes A,B" in said and "classes=" not in said
    assert "1-label-DP for each row, except which classes occur." in answer


@pytest.mark.parametrize("classes", ["@FILE", "ill,well,", "ill,,well", "@NONE"])
def test_a_line_or_a_comma_too_many_is_no_class(tmp_path: Path, classes: str) -> None:
    """It was declared as a class that no label has, drawn, and charged."""
    (tmp_path / "classes").write_text("ill\nwell\n\n")
    named = classes.replace("FILE", str(tmp_path / "classes"))
    wrong = command(people(tmp_path / "in.csv"), tmp_path / "a.csv", "--classes", named)
    assert run(*wrong)[0] == (5 if classes == "@NONE" else 2)
    assert not default_ledger().exists()


# A process killed at any point
# --------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from labeldp.app import _release as module
from labeldp.ledger._ledger import Ledger
from labeldp.tables._place import Staging
from labeldp.tables._spec import ReleaseSpec

source, out, ledger, where = sys.argv[1:]
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
calls = 0
def publishing(real):
    def publish(*given):
        global calls
        calls += 1
        if where == f"before publish {calls}":
            die()
        real(*given)
        if where == f"after publish {calls}":
            die()
    return publish
# The file, then the manifest.
Staging._move_to_final_name = publishing(Staging._move_to_final_name)
Staging.write_manifest = publishing(Staging.write_manifest)
def progress(phase, done, total):
    if where == phase:
        die()
redraw = where.startswith("redraw ")
where = where.removeprefix("redraw ")
spec = ReleaseSpec("status", ["ill", "well"], 1.0, id="patient" if "ids" in out else None)
module.release(source, out, spec, Ledger(ledger), redraw=redraw, progress=progress)
"""


@pytest.mark.parametrize("name", ["out.csv", "ids.parquet"])
@pytest.mark.parametrize(
    "where", ["check", "draw", "write", "before publish 1", "after publish 1", "after publish 2"]
)
def test_killed_anywhere_then_run_again(tmp_path: Path, where: str, name: str) -> None:
    out, place = tmp_path / name, tmp_path / "private" / "ledger.db"
    source = people(tmp_path / f"in{out.suffix}")
    died = subprocess.run(
        [sys.executable, "-c", KILLED, source, out, place, where], capture_output=True, timeout=60
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert out.exists() == where.startswith("after publish")
    # the file, without the manifest that comes last: nobody takes its labels for raw ones
    if where == "after publish 1":
        # also where no ledger knows the file
        for record in (place, tmp_path / "other" / "ledger.db"):
            train = [
                "train",
                out,
                "--out",
                tmp_path / "model",
                "--label",
                "status",
                "--epsilon",
                "1",
                "--classes",
                "ill,well",
            ]
            code, _, said = run(*train, "--ledger", record)
            assert (
                code == 4
                and ("proven and paid for" if "ids" in name else "Expected a whole release") in said
            )
    charged = Ledger(place).runs()
    assert len(charged) == (0 if where == "check" else 1)
    before = out.read_bytes() if out.exists() else None
    code, told, said = run(
        *command(source, out, "--ledger", place, *(["--id", "patient"] if "ids" in name else []))
    )
    assert code == 0, said
    assert (
        "had charged epsilon 1 for; nothing more was charged."
        if charged
        else "\nCharged epsilon 1."
    ) in told
    (record,) = Ledger(place).runs()
    assert record.state == "settled"
    assert record.run_id == (charged or [record])[0].run_id
    assert Ledger(place).spent("in", "status") == 1.0
    assert before is None or out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        [source.name, out.name, out.name + ".manifest.json", "private"]
    )


def test_the_command_itself(tmp_path: Path) -> None:
    source = people(tmp_path / "in.csv")
    args = [sys.executable, "-m", "labeldp", *map(str, command(source, tmp_path / "o.csv"))]
    done = subprocess.run(
        args,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"LABELDP_LEDGER": str(tmp_path / "l.db")},
    )
    assert done.returncode == 0
    assert done.stderr.startswith("The budget of dataset 'in'")  # nobody chose it, so it is said
    assert done.stderr.count("\n") == 1
    args[args.index("--label") + 1] = "ages"
    args[args.index(str(tmp_path / "o.csv"))] = str(tmp_path / "o2.csv")
    failed = subprocess.run(args, capture_output=True, text=True, timeout=60)
    assert failed.returncode == 4
    assert failed.stderr.startswith("error: Expected")
    assert failed.stdout == ""


def test_an_interrupt_is_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from labeldp.tables._place import Staging

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Staging, "publish", interrupted)
    code, _, said = run(*command(people(tmp_path / "in.csv"), tmp_path / "o.csv"))
    assert code == 130
    assert (
        "Interrupted" in said
        and "an answer about groups or clusters that was not yet stored is asked,"
        " and charged, again"
        in said
    )
    assert not any(p.name.startswith(("o.", ".o")) for p in tmp_path.iterdir())


def test_an_unforeseen_error_is_1_and_quotes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labeldp.tables._place import Staging

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError(SENTINEL)

    monkeypatch.setattr(Staging, "publish", broken)
    monkeypatch.setenv("LABELDP_DEBUG", "1")
    result = CliRunner().invoke(
        app, [str(a) for a in command(people(tmp_path / "in.csv"), tmp_path / "o.csv")]
    )
    assert result.exit_code == 1
    assert "RuntimeError" in result.output
    assert SENTINEL not in result.output


def test_a_comma_in_the_name_of_a_column_is_written_with_a_backslash(tmp_path: Path) -> None:
    source, years = tmp_path / "in.csv", ",".join(map(str, range(20, 70)))
    rows = (f"{i},{20 + i % 50},{'no' if i % 3 else QUOTED}\n" for i in range(60))
    source.write_text('id,"age, years",smokes\n' + "".join(rows))
    asked = ("--epsilon", 1, "--id", "id", "--ledger", tmp_path / "l.db")
    one = ("release", source, "--range", "0:100", *asked)
    code, said, wrong = run(
        *one, "--label", r"age\, years", "--dataset", "a", "--out", tmp_path / "a.csv"
    )
    assert code == 0 and "'age, years' is 1-label-DP" in said, wrong
    code, _, wrong = run(
        *one, "--label", "age, years", "--dataset", "b", "--out", tmp_path / "b.csv"
    )
    assert code == 2 and "a comma as \\," in wrong
    both = ("--label", r"age\, years,smokes", "--classes", rf"{years};no,yes\, daily")
    code, said, wrong = run(
        "release", source, *both, *asked, "--dataset", "c", "--out", tmp_path / "c.csv"
    )
    assert code == 0 and "'age, years', 'smokes' together" in said, wrong
    assert read_noisy(tmp_path / "c.csv", "smokes").classes == ("no", "yes, daily")


NAMES_WITH_MARKS = ["a, b", "eq=al", "se;mi", "plain"]


@pytest.mark.parametrize("by_name", [False, True])
def test_marks_of_classes_and_names_have_a_backslash_before_them(
    tmp_path: Path, by_name: bool
) -> None:
    classes = [
        ["x, y", "a=b", "p;q", r"c:\dir"],
        ["<=50K", ">50K", "k=v"],
        ["u", "w"],
        ["plain=u", "w"],
    ]
    written = [r"x\, y,a=b,p\;q,c:\dir", r"<=50K, >50K ,k=v", "u, w ", r"plain\=u,w"]
    names = [r"a\, b", r"eq\=al", r"se\;mi", "plain"]
    table = {
        name: [values[i % len(values)] for i in range(60)]
        for name, values in zip(NAMES_WITH_MARKS, classes, strict=True)
    }
    pq.write_table(pa.table({"id": range(60)} | table), tmp_path / "in.parquet")
    parts = (
        [f"{name}= {values}" for name, values in zip(names, written, strict=True)][::-1]
        if by_name
        else written
    )
    asked = ("--label", ",".join(names), "--classes", ";".join(parts), "--epsilon", 1, "--id", "id")
    code, _, wrong = run(
        "release", tmp_path / "in.parquet", *asked, "--out", tmp_path / "o.parquet"
    )
    assert code == 0, wrong
    noisy = read_noisy(tmp_path / "o.parquet")
    assert isinstance(noisy.classes, LabelColumns)
    assert noisy.classes.names == tuple(NAMES_WITH_MARKS) and noisy.classes.lists == tuple(
        map(tuple, classes)
    )


def test_a_spent_budget_is_called_spent(tmp_path: Path) -> None:
    source = people(tmp_path / "in.csv")
    assert (
        run("ledger", "set-budget", "--dataset", "in", "--label", "status", "--budget", "1.5")[0]
        == 0
    )
    assert run(*command(source, tmp_path / "a.csv"))[0] == 0
    code, _, said = run(*command(source, tmp_path / "b.csv", "--redraw"))
    assert (
        code == 3
        and "Expected epsilon <= 0.5, which remains of budget 1.5" in said
        and "Ask for less" in said
    )
    assert (
        run("ledger", "set-budget", "--dataset", "in", "--label", "status", "--budget", "1")[0] == 0
    )
    code, _, said = run(*command(source, tmp_path / "b.csv", "--redraw"))
    assert (
        code == 3
        and "budget 1.0 for dataset 'in', column 'status'" in said
        and "is spent; got epsilon=1.0" in said
    )
    assert "<= 0" not in said and "Ask for less" not in said
    assert (
        said.index("--budget 2.0")
        < said.index("Do not give the same rows another name")
        < said.index("(--dataset)")
    )


def test_a_chain_of_releases_tells_what_was_spent_in_all(tmp_path: Path) -> None:
    """Also by another command; and nothing where the charge itself is all."""
    source, of = people(tmp_path / "in.csv"), ("--dataset", "people", "--id", "patient")
    code, said, _ = run(*command(source, tmp_path / "a.csv", *of))
    assert code == 0 and "Charged epsilon 1. Dataset 'people'" in said and "In all" not in said
    age = ("--label", "age", "--range", "20:90", "--epsilon", "0.5", *of)
    again = ("release", tmp_path / "a.csv", *age, "--out", tmp_path / "b.csv")
    code, said, _ = run(*again)
    assert code == 0 and "Charged epsilon 0.5. Dataset 'people' in" in said
    assert "has spent up to epsilon 1.5, on columns 'status', 'age'." in said
    told = {"dataset": "people", "unit": "row", "columns": ["status", "age"], "spent": 1.5}
    for asked in (again, ("ledger", "spent")):
        assert json.loads(run(*asked, "--json")[1])["together"] == [told]
    assert "status, age" in run("ledger", "spent")[1]


def test_what_was_drawn_in_a_table_is_inspected(tmp_path: Path) -> None:
    source, of = people(tmp_path / "in.csv"), ("--dataset", "people", "--id", "patient")
    assert run(*command(source, tmp_path / "a.csv", *of))[0] == 0
    age = ("--label", "age", "--range", "20:90:15", "--epsilon", "0.5", *of)
    assert run("release", tmp_path / "a.csv", *age, "--out", tmp_path / "b.csv")[0] == 0
    manifest = tmp_path / "b.csv.manifest.json"
    lines = run("inspect", tmp_path / "b.csv")[1].splitlines()
    assert lines[0] == f"{tmp_path / 'b.csv'}: 400 rows; unchanged columns: patient."
    runs = [each.run_id for each in reversed(default_ledger().runs())]
    for line, start, run_id in zip(
        lines[1:3],
        (
            "age: 0.5-label-DP for each row, by law square-wave;",
            "status: 1-label-DP for each row, by law rr;",
        ),
        runs,
        strict=True,
    ):
        assert line.startswith(start) and run_id in line
    found = json.loads(run("inspect", tmp_path / "b.csv", "--json")[1])
    assert [each["receipt"]["run_id"] for each in found["drawn"]] == runs
    (tmp_path / "copy.csv").write_bytes((tmp_path / "b.csv").read_bytes())
    copied = run("inspect", tmp_path / "copy.csv", "--manifest", manifest)[1]
    assert copied.splitlines()[1:] == lines[1:]
    for unknown in (source, tmp_path / "copy.csv"):
        assert run("inspect", unknown)[0] == 4
    header, first, *rest = (tmp_path / "b.csv").read_text().splitlines(keepends=True)
    edited = first.replace("ill", "ILL").replace("well", "ill").replace("ILL", "well")
    (tmp_path / "b.csv").write_text("".join((header, edited, *rest)))
    code, said, told = run("inspect", tmp_path / "b.csv")
    assert code == 4 and not said and "labels, evidence, ids or rows differ" in told


@pytest.mark.parametrize("verb", ["release", "train"])
def test_strict_refuses_what_is_warned_of_before_the_charge(tmp_path: Path, verb: str) -> None:
    source, out = people(tmp_path / "in.csv"), tmp_path / "out.csv"
    asked = (*command(source, out, "--id", "patient")[1:], "--epsilon", 9)
    code, _, told = run(verb, *asked, "--strict")
    assert code == 4 and "An epsilon of 9" in told and "nothing was charged." in told
    assert default_ledger().runs() == [] and not out.exists()
    code, _, told = run(verb, *asked)
    assert code == 0 and "warning: An epsilon of 9" in told
    named = ("--out", tmp_path / "again.csv", "--strict")
    assert run(verb, *asked, *named)[0] == 0  # a repeat: nothing is charged


@pytest.mark.parametrize(
    ("asked", "code", "hint"),
    [
        ("income", 2, "--range LOW:HIGH"),
        ("income --classes infer", 4, "--range LOW:HIGH"),
        ("ill,rating", 2, "one list for all"),
        ("ill,rating --classes no,yes;1,2;3", 2, "one list for all"),
        ("ill,rating --classes rating=1,2", 2, "one list for all"),
    ],
)
def test_numbers_and_several_columns_are_hinted_at(
    tmp_path: Path, asked: str, code: int, hint: str
) -> None:
    rows = (f"{i},{'no' if i % 2 else 'yes'},{i % 5 + 1},{i * 10.5}\n" for i in range(60))
    (tmp_path / "in.csv").write_text("id,ill,rating,income\n" + "".join(rows))
    base = ("release", tmp_path / "in.csv", "--epsilon", 1, "--out", tmp_path / "o.csv", "--label")
    found, _, told = run(*base, *asked.split())
    assert found == code and hint in unboxed(told)
