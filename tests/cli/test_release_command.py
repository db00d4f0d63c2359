# SPDX-License-Identifier: Apache-2.0
"""`labeldp release` as a person meets it: one message, the right exit code, nothing half done, and
never a raw label."""

import csv
import json
import logging
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
    for _ in range(2):  # a repeat tells it too
        code, said, told = run(
            *command(source, tmp_path / "out.parquet", "--id", "patient", "--unit", "family")
        )
        assert (
            code == 0
            and "1-label-DP for each family (at most 1 row each). 300 rows over the"
            " cap were left out."
            in said
        )
        assert (
            "300 of 400 rows are over the cap of 1 row for each family" in told
            and "--table FILE --unit family" in told
        )
    code, said, told = run(
        *command(
            source,
            tmp_path / "all.parquet",
            "--id",
            "patient",
            "--unit",
            "family",
            "--max-rows-per-unit",
            "4",
        )
    )
    assert "over the cap" not in said + told
    asked = (
        "--label",
        "status",
        "--classes",
        "ill,well",
        "--epsilon",
        1,
        "--unit",
        "family",
        "--dataset",
        "t",
        "--model",
        "linear",
    )
    code, said, told = run("train", source, *asked, "--out", tmp_path / "m")
    assert code == 0 and "300 of 400 rows are over the cap" in told
    assert (
        "a model of 100 rows, 1-label-DP for each family. 300 rows over the cap were left out."
        in said
    )
    code, said, _ = run(
        "train",
        tmp_path / "out.parquet",
        "--label",
        "status",
        "--model",
        "linear",
        "--out",
        tmp_path / "free",
    )
    assert (
        code == 0
        and "a model of 100 rows" in said
        and "300 rows over the cap were left out when the table was released." in said
    )
    for folder in (tmp_path / "m", tmp_path / "free"):
        facts = json.loads((folder / "model.json").read_text())
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


def test_an_undeclared_class_is_told_without_its_row_or_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for ending in ("csv", "parquet"):
        source = people(tmp_path / f"in.{ending}", bad=SENTINEL)
        code, _, said = run(*command(source, tmp_path / f"o.{ending}"))
        assert code == 4
        assert (
            "some label is not. Which row it is would tell of its label" in said
            and "201" not in said
        )
        code, said, _ = run(*command(source, tmp_path / f"o.{ending}", "--json"))
        assert json.loads(said)["exit_code"] == code == 4
    assert SENTINEL not in caplog.text
    assert default_ledger().runs() == []
    assert not any(p.name.startswith(("o.", ".o")) for p in tmp_path.iterdir())


def test_repeated_and_empty_ids_are_data_errors(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("patient,status\n1,ill\n2,well\n1,ill\n")
    assert run(*command(tmp_path / "in.csv", tmp_path / "o.csv", "--id", "patient"))[0] == 4
    (tmp_path / "in.csv").write_text("patient,status\n1,ill\n,well\n")
    assert run(*command(tmp_path / "in.csv", tmp_path / "o.csv", "--id", "patient"))[0] == 4
    (tmp_path / "in.csv").write_text("patient,status\n1,ill\n2,\n")
    code, _, said = run(*command(tmp_path / "in.csv", tmp_path / "o.csv"))
    assert code == 4
    assert (
        "some label is missing" in said
        and "Declare the null class, --null-class (or --classes A,B" in said
        and "line" not in said
    )
    assert default_ledger().runs() == []


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
    (tmp_path / "classes").write_text("ill\nwell\n")
    base = ("release", source, "--label", "status", "--epsilon", "1")
    assert run(*base, "--classes", f"@{tmp_path / 'classes'}", "--out", tmp_path / "a.csv")[0] == 0
    code, _, said = run(*base, "--out", tmp_path / "b.csv")
    assert code == 2
    assert "--classes no,yes" in said and "--classes infer" in said and "classes=" not in said
    inferred = (*base, "--classes", "infer", "--out", tmp_path / "b.csv", "--dataset", "other")
    code, _, refused = run(*inferred, "--strict")
    assert code == 2 and "--strict" in refused
    assert run(*inferred, "--null-class")[0] == 2
    code, answer, said = run(*inferred)
    assert code == 0
    assert (
        said.count("warning: The classes are read off") == 1
        and "--classes A,B" in said
        and "classes=" not in said
    )
    assert "1-label-DP for each row, except which classes occur." in answer
    code, answer, _ = run(*inferred, "--json")
    assert json.loads(answer)["receipt"]["except_for"] == "which classes occur"
    assert run(*base, "--classes", f"@{tmp_path / 'none'}", "--out", tmp_path / "c.csv")[0] == 5


def test_a_line_or_a_comma_too_many_is_no_class(tmp_path: Path) -> None:
    """It was declared as a class that no label has, drawn, and charged."""
    source = people(tmp_path / "in.csv")
    base = ("release", source, "--label", "status", "--epsilon", "1", "--out", tmp_path / "a.csv")
    (tmp_path / "classes").write_text("ill\nwell\n\n")
    for wrong in (
        ("--classes", f"@{tmp_path / 'classes'}"),
        ("--classes", "ill,well,"),
        ("--classes", "ill,,well"),
    ):
        code, _, said = run(*base, *wrong)
        assert code == 2 and "got an empty one" in " ".join(said.replace("│", " ").split())
    several = ("--label", "status,age", "--classes", "ill,well;1,2,")
    assert run(*base[:2], *several, *base[4:])[0] == 2
    assert not default_ledger().exists()
    (tmp_path / "classes").write_bytes(b"\xef\xbb\xbfill\r\nwell\r\n")  # as Windows saves it
    assert run(*base, "--classes", f"@{tmp_path / 'classes'}")[0] == 0


@pytest.mark.parametrize(
    "words", [["-h"], ["release", "-h"], ["ledger", "verify", "-h"], ["--help"]]
)
def test_the_package_is_a_command_too(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "labeldp", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    called = " ".join(word for word in words if not word.startswith("-"))
    assert f"Usage: python -m labeldp {called}".strip() in done.stdout


# A process killed at any point
# --------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from labeldp.app import _release as module
from labeldp.ledger._ledger import Ledger
from labeldp.tables._place import Place, Staging
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
Place.move, Staging.write_manifest = publishing(Place.move), publishing(Staging.write_manifest)
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
                and (
                    "Expected no epsilon for a released table"
                    if "ids" in name
                    else "Expected a whole release"
                )
                in said
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


NAMES_WITH_MARKS = ["a, b", "eq=al", "se;mi", " blank ", "plain"]


@pytest.mark.parametrize("by_name", [False, True])
def test_marks_of_classes_and_names_have_a_backslash_before_them(
    tmp_path: Path, by_name: bool
) -> None:
    classes = [
        ["x, y", "a=b", "p;q", " r ", r"c:\dir"],
        ["<=50K", ">50K", "k=v"],
        ["u", "w"],
        ["plain=u", "w"],
        ["u", "w"],
    ]
    written = [r"x\, y,a=b,p\;q,\ r\ ,c:\dir", r"<=50K, >50K ,k=v", "u,w", r"plain\=u,w", "u, w "]
    names = [r"a\, b", r"eq\=al", r"se\;mi", r"\ blank\ ", "plain"]
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


def test_marks_of_the_classes_of_one_column_have_a_backslash_before_them(tmp_path: Path) -> None:
    classes = ["status=ill", "a, b", "p;q", " r "]
    pq.write_table(
        pa.table({"id": range(60), "status": [classes[i % 4] for i in range(60)]}),
        tmp_path / "in.parquet",
    )
    asked = ("--label", "status", "--epsilon", 1, "--id", "id", "--out", tmp_path / "o.parquet")
    code, _, wrong = run(
        "release", tmp_path / "in.parquet", *asked, "--classes", r"status\=ill,a\, b,p\;q,\ r\ "
    )
    assert code == 0, wrong
    assert read_noisy(tmp_path / "o.parquet").classes == tuple(classes)
    assert run("plan", "--classes", r"a\;b,c", "--epsilon", 1)[0] == 0


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
    """Also by another command; and nothing where the charge itself is all, as of other rows."""
    source, of = people(tmp_path / "in.csv"), ("--dataset", "people", "--id", "patient")
    code, said, _ = run(*command(source, tmp_path / "a.csv", *of))
    assert code == 0 and "Charged epsilon 1. Dataset 'people'" in said and "In all" not in said
    age = ("--label", "age", "--range", "20:90", "--epsilon", "0.5", *of)
    code, said, _ = run("release", tmp_path / "a.csv", *age, "--out", tmp_path / "b.csv")
    in_all = (
        "In all each row of dataset 'people' has spent up to epsilon 1.5, on columns 'status',"
        " 'age'."
    )
    assert (
        code == 0
        and f"Charged epsilon 0.5. Dataset 'people' in {default_ledger().location}. {in_all}"
        in said
    )
    told = {"dataset": "people", "unit": "row", "columns": ["status", "age"], "spent": 1.5}
    assert json.loads(
        run("release", tmp_path / "a.csv", *age, "--out", tmp_path / "b.csv", "--json")[1]
    )["together"] == [told]
    assert (
        in_all in run("ledger", "spent")[1]
        and "In all" not in run("ledger", "spent", "--label", "age")[1]
    )
    assert json.loads(run("ledger", "spent", "--json")[1])["together"] == [told]
    others = tmp_path / "others.csv"
    others.write_text(
        "patient,kind\n" + "".join(f"{1000 + number},{number % 2}\n" for number in range(50))
    )
    code, said, _ = run(
        "release",
        others,
        "--label",
        "kind",
        "--classes",
        "0,1",
        "--epsilon",
        "1.5",
        *of,
        "--out",
        tmp_path / "c.csv",
    )
    assert code == 0 and "Charged epsilon 1.5." in said and "In all" not in said


def test_what_was_drawn_in_a_table_is_inspected(tmp_path: Path) -> None:
    source, of = people(tmp_path / "in.csv"), ("--dataset", "people", "--id", "patient")
    assert run(*command(source, tmp_path / "a.csv", *of))[0] == 0
    age = ("--label", "age", "--range", "20:90:15", "--epsilon", "0.5", *of)
    assert run("release", tmp_path / "a.csv", *age, "--out", tmp_path / "b.csv")[0] == 0
    code, said, _ = run("inspect", tmp_path / "b.csv")
    lines = said.splitlines()
    assert code == 0 and lines[0] == f"{tmp_path / 'b.csv'}: 400 rows; unchanged columns: patient."
    law = (
        "by law square-wave, numbers from 20 to 90 in 15 points, evidence in age__evidence; data"
        " set 'people', run "
    )
    assert lines[1].startswith(f"age: 0.5-label-DP for each row, {law}")
    assert lines[2].startswith(
        "status: 1-label-DP for each row, by law rr, classes ill, well; data set 'people', run "
    )
    runs = [each.run_id for each in reversed(default_ledger().runs())]
    found = json.loads(run("inspect", tmp_path / "b.csv", "--json")[1])
    assert [each["receipt"]["run_id"] for each in found["drawn"]] == runs and all(
        map(str.__contains__, lines[1:3], runs)
    )
    (tmp_path / "copy.csv").write_bytes((tmp_path / "b.csv").read_bytes())
    assert (
        run("inspect", tmp_path / "copy.csv", "--manifest", tmp_path / "b.csv.manifest.json")[
            1
        ].splitlines()[1:]
        == lines[1:]
    )
    assert lines[-1].startswith(
        "The labels are those that its manifest or metadata say were drawn."
    )
    for column in (1, 2):  # raw labels of the last release, and of the earlier one
        raw, noisy = (
            list(csv.DictReader(path.read_text().splitlines()))
            for path in (source, tmp_path / "b.csv")
        )
        name, known = list(raw[0])[column], {each["patient"]: each for each in raw}
        edited = tmp_path / f"edited{column}.csv"
        with edited.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(noisy[0]))
            writer.writeheader()
            writer.writerows(each | {name: known[each["patient"]][name]} for each in noisy)
        (tmp_path / f"{edited.name}.manifest.json").write_bytes(
            (tmp_path / "b.csv.manifest.json").read_bytes()
        )
        code, said, told = run("inspect", edited)
        assert (
            code == 4
            and not said
            and f"got something else in {edited.name}: labels, evidence, ids or rows differ" in told
        )
    for unknown in (source, tmp_path / "copy.csv"):
        code, _, told = run("inspect", unknown)
        assert code == 4 and "of which no manifest or metadata says that it was released" in told
    (tmp_path / "copy.csv.manifest.json").write_text(
        '{"format": 1, "kind": "release", "label": "age"}'
    )
    code, _, told = run("inspect", tmp_path / "copy.csv")
    assert code == 4 and "as labeldp wrote it" in told


def test_strict_refuses_what_is_warned_of_before_the_charge(tmp_path: Path) -> None:
    source, out = people(tmp_path / "in.csv"), tmp_path / "out.csv"
    large = (
        "release",
        source,
        "--label",
        "status",
        "--epsilon",
        "9",
        "--classes",
        "ill,well",
        "--out",
        out,
    )
    code, _, told = run(*large, "--strict")
    assert (
        code == 4
        and "An epsilon of 9" in told
        and "What is strict is refused for this; nothing was charged." in told
    )
    assert (
        default_ledger().runs() == []
        and sorted(each.name for each in tmp_path.iterdir() if "out" in each.name) == []
    )
    code, _, told = run(*large)
    assert code == 0 and "warning: An epsilon of 9" in told
    assert run(*large, "--strict")[0] == 0  # a repeat: nothing is charged
    again = (
        "release",
        source,
        "--label",
        "age",
        "--range",
        "20:90",
        "--epsilon",
        "1",
        "--dataset",
        "other",
        "--out",
        tmp_path / "b.csv",
    )
    code, _, told = run(*again, "--strict")
    assert (
        code == 4
        and "names of private columns of other data sets" in told
        and not (tmp_path / "b.csv").exists()
    )
    assert [each.dataset for each in default_ledger().runs()] == ["in"]
    code, _, told = run(*again)
    assert code == 0 and "names of private columns of other data sets" in told


def test_numbers_and_several_columns_are_hinted_at(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text(
        "id,ill,rating,income\n"
        + "".join(f"{i},{'no' if i % 2 else 'yes'},{i % 5 + 1},{i * 10.5}\n" for i in range(60))
    )
    asked = ("release", source, "--epsilon", "1", "--out", tmp_path / "out.csv", "--label")
    code, _, told = run(*asked, "income")
    assert code == 2 and "--range LOW:HIGH" in unboxed(told)
    code, _, told = run(*asked, "income", "--classes", "infer")
    assert code == 4 and "--range LOW:HIGH" in unboxed(told)
    for classes in ((), ("--classes", "no,yes;1,2;3"), ("--classes", "rating=1,2")):
        code, _, told = run(*asked, "ill,rating", *classes)
        assert code == 2 and "one list for all" in unboxed(told)
    assert run(*asked, "ill,rating", "--classes", "no,yes;1,2,3,4,5")[0] == 0
