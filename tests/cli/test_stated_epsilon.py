# SPDX-License-Identifier: Apache-2.0
"""Every command that prints an epsilon proves it, or says that it is only stated: over changed
manifests, metadata and plans."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.cli.test_release_command import run

from labeldp.ledger._ledger import Ledger

N = 300
Facts = dict[str, Any]


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("LABELDP_LEDGER", str(tmp_path / "l.db"))
    return Ledger(tmp_path / "l.db")


def released(folder: Path, ending: str) -> Path:
    """Release two columns, one after the other, at 4 and at 3."""
    source, names = folder / f"in.{ending}", ("--id", "id", "--dataset", "d")
    rows = pa.table(
        {
            "id": [f"r{i}" for i in range(N)],
            "x": [i % 9 for i in range(N)],
            "y": [i % 2 for i in range(N)],
            "z": [i % 3 for i in range(N)],
        }
    )
    pq.write_table(rows, source) if ending == "parquet" else pa.csv.write_csv(rows, source)
    first = (
        "release",
        source,
        "--label",
        "y",
        "--classes",
        "0,1",
        "--epsilon",
        4,
        *names,
        "--out",
        folder / f"first.{ending}",
    )
    second = (
        "release",
        folder / f"first.{ending}",
        "--label",
        "z",
        "--classes",
        "0,1,2",
        "--epsilon",
        3,
        *names,
        "--out",
        folder / f"n.{ending}",
    )
    assert [run(*each)[0] for each in (first, second)] == [0, 0]
    return folder / f"n.{ending}"


def everywhere(text: str) -> str:
    return text.replace("4.0", "0.1").replace("3.0", "0.1")


def at(*path: str | int, value: object) -> Callable[[str], str]:
    def change(text: str) -> str:
        facts = json.loads(text)
        inner = facts
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return json.dumps(facts)

    return change


LIES: dict[str, Callable[[str], str]] = {
    "every epsilon": everywhere,
    "the receipt": at("receipt", "epsilon", value=0.1),
    "the law": at("law", "epsilon", value=0.1),
    "the guarantee": at("guarantee", "epsilon", value=0.1),
    "the guarantee's unit": at("guarantee", "unit", value="person"),
    "the cap": at("receipt", "max_rows_per_unit", value=5),
    "the unit": at("receipt", "unit", value="person"),
    "the data set": at("dataset", value="other"),
    "a seed": at("insecure", value=True),
    "the classes": at("classes_inferred", value=True),
    "another run": at("receipt", "run_id", value="0" * 32),
    "no guarantee": lambda text: json.dumps(
        {k: v for k, v in json.loads(text).items() if k != "guarantee"}
    ),
    "the receipt of the earlier release": at("earlier", 0, "receipt", "epsilon", value=0.1),
    "the law of the earlier release": at("earlier", 0, "law", "epsilon", value=0.1),
}
COMMANDS: dict[str, tuple[object, ...]] = {
    "inspect": ("inspect", "TABLE"),
    "inspect --json": ("inspect", "TABLE", "--json"),
    "inspect of a copy": ("inspect", "COPY", "--manifest", "MANIFEST"),
    "verify": ("ledger", "verify", "MANIFEST"),
    "train": (
        "train",
        "TABLE",
        "--label",
        "z",
        "--features",
        "x",
        "--model",
        "linear",
        "--out",
        "NEW",
    ),
    "train --released": (
        "train",
        "SOME",
        "--label",
        "z",
        "--features",
        "x",
        "--model",
        "linear",
        "--released",
        "TABLE",
        "--out",
        "NEW",
    ),
    "train on the earlier column": (
        "train",
        "TABLE",
        "--label",
        "y",
        "--features",
        "x",
        "--model",
        "linear",
        "--out",
        "NEW",
    ),
    "the next release": (
        "release",
        "TABLE",
        "--label",
        "x",
        "--range",
        "0:8",
        "--epsilon",
        1,
        "--id",
        "id",
        "--out",
        "NEW.ENDING",
    ),
}
# A command that does not print what was changed may go on.
SILENT = {
    ("verify", "earlier"),
    ("train", "earlier"),
    ("train --released", "earlier"),
    ("train on the earlier column", "own"),
}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("lie", LIES)
def test_no_command_confirms_an_epsilon_that_a_manifest_makes_up(
    tmp_path: Path, ending: str, lie: str
) -> None:
    table = released(tmp_path, ending)
    manifest = tmp_path / f"{table.name}.manifest.json"
    shutil.copy(table, tmp_path / f"copy.{ending}")
    shutil.copy(table, tmp_path / f"some.{ending}")
    truth = manifest.read_text()
    places = {
        "TABLE": table,
        "MANIFEST": manifest,
        "COPY": tmp_path / f"copy.{ending}",
        "SOME": tmp_path / f"some.{ending}",
    }
    for number, (name, words) in enumerate(COMMANDS.items()):
        if ending == "parquet" and "SOME" in words:
            continue  # this copy proves itself by its metadata
        new = {"NEW": tmp_path / f"new{number}", "NEW.ENDING": tmp_path / f"new{number}.{ending}"}
        command = [(places | new).get(str(each), each) for each in words]
        manifest.write_text(LIES[lie](truth))
        code, said, told = run(*command)
        if code == 0:
            silent = (name, "earlier" if "earlier" in lie else "own") in SILENT
            assert silent or "stated, not proven" in said, (name, said)
        assert "0.1-label-DP" not in said and "epsilon 0.1" not in said, (name, said)
        assert code in (0, 4, 5, 7), (name, told)
        manifest.write_text(truth)
    for name in ("inspect", "verify"):
        assert run(*((places).get(str(each), each) for each in COMMANDS[name]))[0] == 0


def test_metadata_and_manifest_must_agree(tmp_path: Path) -> None:
    """Whichever of the two was changed, and whether its digest was made anew or not."""
    table = released(tmp_path, "parquet")
    whole = pq.read_table(table)
    facts = json.loads(whole.schema.metadata[b"labeldp"])
    for change in (
        everywhere,
        at("receipt", "epsilon", value=0.1),
        at("earlier", 0, "receipt", "epsilon", value=0.1),
    ):
        changed = whole.replace_schema_metadata({"labeldp": change(json.dumps(facts))})
        pq.write_table(changed, table)
        code, said, told = run("inspect", table)
        assert code == 4 and not said and "the same in manifest and metadata" in told
        (tmp_path / "alone").mkdir(exist_ok=True)
        pq.write_table(changed, tmp_path / "alone" / "n.parquet")
        assert run("inspect", tmp_path / "alone" / "n.parquet")[0] == 4
    pq.write_table(whole, table)
    assert run("inspect", table)[0] == 0


def test_an_earlier_release_of_which_rows_are_missing_is_stated_only(tmp_path: Path) -> None:
    """The cap of the second release leaves rows out, so the digest of the first one proves nothing
    here."""
    rows = "".join(f"r{i},p{i // 2},{i % 9},{i % 2},{i % 3}\n" for i in range(N))
    (tmp_path / "in.csv").write_text("id,who,x,y,z\n" + rows)
    names = ("--id", "id", "--unit", "who", "--dataset", "d")
    first = (
        "release",
        tmp_path / "in.csv",
        "--label",
        "y",
        "--classes",
        "0,1",
        "--epsilon",
        4,
        *names,
        "--max-rows-per-unit",
        2,
        "--out",
        tmp_path / "a.csv",
    )
    second = (
        "release",
        tmp_path / "a.csv",
        "--label",
        "z",
        "--classes",
        "0,1,2",
        "--epsilon",
        3,
        *names,
        "--out",
        tmp_path / "b.csv",
    )
    assert [run(*each)[0] for each in (first, second)] == [0, 0]
    code, said, _ = run("inspect", tmp_path / "b.csv")
    lines = said.splitlines()
    assert (
        code == 0
        and lines[0] == f"{tmp_path / 'b.csv'}: {N // 2} rows; unchanged columns: id, who, x."
    )
    assert lines[1].startswith("z: 3-label-DP for each who (at most 1 row each), by law")
    assert lines[2].startswith(
        "y: 4-label-DP for each who (at most 2 rows each) (stated, not proven), by law"
    )
    found = json.loads(run("inspect", tmp_path / "b.csv", "--json")[1])
    assert [each["proven"] for each in found["drawn"]] == [True, False]


def test_a_release_says_which_earlier_epsilon_its_ledger_does_not_know(tmp_path: Path) -> None:
    table = released(tmp_path, "csv")
    age = ("release", table, "--label", "x", "--range", "0:8", "--epsilon", 1, "--id", "id")
    code, said, _ = run(*age, "--out", tmp_path / "here.csv")
    assert (
        code == 0
        and "z (epsilon 3 in data set 'd'), y (epsilon 4" not in said
        and "stated" not in said
    )
    code, said, _ = run(*age, "--out", tmp_path / "there.csv", "--ledger", tmp_path / "other.db")
    assert (
        code == 0
        and "z (epsilon 3 in data set 'd'; stated, not proven);"
        " y (epsilon 4 in data set 'd'; stated, not proven)"
        in said
    )
