# SPDX-License-Identifier: Apache-2.0
"""Columns that were released one after another: the last table names all noisy ones, whatever
ledger and data set name are at hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import run
from tests.files import write
from tests.runs import manifest_path

import labeldp as ldp
from labeldp import Ledger, ReleaseSpec, read_noisy, release
from labeldp.app import stage
from labeldp.tables.engines._cluster import ClusterEngine
from labeldp.tables.formats._parquet import open_table

CLASSES = {"ill": ["no", "yes"], "stars": ["1", "2", "3"], "ward": ["a", "b"]}
pytestmark = pytest.mark.filterwarnings(
    "ignore:The rows were released before in data set:labeldp.errors.LabelDPWarning"
)
KINDS = ["csv", "parquet", "folder"]


def data(n: int = 300) -> pa.Table:
    rng = np.random.default_rng(0)
    private = {name: rng.choice(values, n) for name, values in CLASSES.items()}
    return pa.table(
        {
            "id": np.arange(n)[::-1] * 3,
            "x": rng.standard_normal(n).round(3),
            "y": rng.standard_normal(n).round(3),
            **private,
        }
    )


def read(path: Path) -> pa.Table:
    return (
        pc_csv.read_csv(
            path, convert_options=pc_csv.ConvertOptions(column_types={"stars": pa.string()})
        )
        if path.suffix == ".csv"
        else pq.read_table(path)
    )


def place(folder: Path, name: str, kind: str) -> Path:
    return folder / (name if kind == "folder" else f"{name}.{kind}")


def chain(
    folder: Path, kind: str = "csv", labels: str = "ill ward", own: bool = True, **changes: Any
) -> list[Path]:
    """Release columns one after another, each from the output of the one before; `own`: each under
    its own data set name and ledger."""
    tables = [write(data(), place(folder, "in", kind))]
    for number, label in enumerate(labels.split()):
        names = {"dataset": f"d{number if own else ''}", "id": "id"} | changes
        ledger = Ledger(folder / "private" / f"ledger{number if own else ''}.db")
        tables.append(place(folder, label, kind))
        release(tables[-2], tables[-1], ReleaseSpec(label, CLASSES[label], 1.0, **names), ledger)
    return tables


def listed(path: Path) -> list[tuple[str, float, str]]:
    said = json.loads(manifest_path(path).read_text()).get("earlier", [])
    return [
        (each["label"], each["receipt"]["epsilon"], each["receipt"]["dataset"]) for each in said
    ]


def trained(folder: Path, path: Path, label: str, *more: object) -> tuple[int, set[str], str]:
    """Train by the command line, with a ledger that knows nothing; return the exit code, the
    features and what was said."""
    out = folder / f"model-{len(list(folder.iterdir()))}"
    code, said, told = run(
        "train",
        path,
        "--label",
        label,
        "--model",
        "linear",
        "--ledger",
        folder / "new.db",
        "--out",
        out,
        *more,
    )
    names = (
        {
            each["name"]
            for each in json.loads((out / "model.json").read_text())["features"]["columns"]
        }
        if code == 0
        else set()
    )
    return code, names, " ".join((said + told).split())


@pytest.mark.parametrize("law", ["rr", "subset"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_last_table_names_all_noisy_columns(tmp_path: Path, kind: str, law: str) -> None:
    _, first, second, third = chain(tmp_path, kind, "ill ward stars", law=law)
    assert (
        listed(first) == []
        and listed(second) == [("ill", 1.0, "d0")]
        and sorted(listed(third)) == [("ill", 1.0, "d0"), ("ward", 1.0, "d1")]
    )
    for label, table in (("ill", first), ("ward", second)):
        once, now = read_noisy(table), read_noisy(third, label)
        assert now.privacy.evidence == "proven" and now.receipts == once.receipts
        assert np.array_equal(now.by_id(once.ids).likelihood(), once.likelihood())
        assert (
            len(
                read_noisy(
                    third,
                    label,
                    ledger=Ledger(tmp_path / "private" / f"ledger{'01'[label == 'ward']}.db"),
                )
            )
            == 300
        )
    for label in CLASSES:
        others = sorted(CLASSES.keys() - {label})
        code, names, said = trained(tmp_path, third, label)
        assert (code, names) == (0, {"x", "y"}), said
        left_out = said.partition("No features, since releases drew them from private columns: ")[
            2
        ].partition(".")[0]
        assert sorted(name for name in left_out.split(", ") if "__" not in name) == others
        code, _, said = trained(tmp_path, third, label, "--features", f"x,{others[0]}")
        assert code == 4 and f"got {others[0]!r}, which a release drew" in said
    assert not Ledger(tmp_path / "new.db").runs()


@pytest.mark.parametrize("own", [True, False])
def test_a_raw_label_beside_them_learns_from_none_of_them(tmp_path: Path, own: bool) -> None:
    *_, second = chain(tmp_path, own=own)
    code, names, said = trained(
        tmp_path, second, "stars", "--classes", "1,2,3", "--epsilon", "1", "--id", "id"
    )
    assert (code, names) == (0, {"x", "y"}) and "private columns: ill, ward" in said, said


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_an_earlier_release_drew_is_not_raw(tmp_path: Path, kind: str) -> None:
    *_, second = chain(tmp_path, kind)
    ledger = Ledger(tmp_path / "new.db")
    with pytest.raises(ldp.InvalidInput, match="'ill' was released already"):
        release(
            second,
            place(tmp_path, "again", kind),
            ReleaseSpec("ill", CLASSES["ill"], 1.0, id="id", dataset="new"),
            ledger,
        )
    with pytest.raises(ldp.InvalidInput, match="never declared"):
        read_noisy(second, "ill", law=ldp.RandomizedResponse(2, 3.0), classes=CLASSES["ill"])
    code, _, said = trained(tmp_path, second, "ill", "--classes", "no,yes", "--epsilon", "1")
    assert code == 4 and "Expected no --epsilon, --classes with a released table" in said
    code, _, said = run(
        "aggregate",
        second,
        "--label",
        "ill",
        "--classes",
        "no,yes",
        "--epsilon",
        "1",
        "--group",
        "x",
        "--out",
        tmp_path / "o.csv",
        "--ledger",
        tmp_path / "new.db",
    )
    assert code == 4 and "'ill' was released already" in said
    assert not ledger.runs()


class OnlyASchema:
    """A cluster that can be asked for its table's schema alone: all else comes after the charge."""

    name = "Spark"

    def schema(self, table: pa.Table) -> pa.Schema:
        return table.schema

    def files(self, table: pa.Table) -> list[str]:
        return []

    def altered(self, table: pa.Table) -> dict[str, str]:
        return {}


def test_a_cluster_repeats_of_its_files_only_what_they_hold(tmp_path: Path) -> None:
    """A raw column that was joined back into the released files, whose manifest lists it as noisy,
    is refused; before, it was listed."""
    *_, last = chain(tmp_path, "folder")
    asked, ledger = (
        ReleaseSpec("stars", CLASSES["stars"], 1.0, id="id", dataset="new"),
        Ledger(tmp_path / "new.db"),
    )
    rows = read(last)
    engine = ClusterEngine(OnlyASchema(), rows, files=open_table(last))
    engine.codec(asked, ledger)
    engine.check_private(asked, "new", ledger)
    assert sorted(facts["label"] for facts in engine.earlier) == ["ill", "ward"]
    raw = dict(zip(data()["id"].to_pylist(), data()["ill"].to_pylist(), strict=True))
    joined = rows.set_column(
        rows.column_names.index("ill"),
        "ill",
        pa.array([raw[name] for name in rows["id"].to_pylist()]),
    )
    pq.write_table(joined, last / "part-00000.parquet")
    engine = ClusterEngine(OnlyASchema(), joined, files=open_table(last))
    engine.codec(asked, ledger)
    with pytest.raises(ldp.InvalidInput, match="Expected in column 'ill' what run"):
        engine.check_private(asked, "new", ledger)


@pytest.mark.parametrize("label", ["ill", "ward"])
@pytest.mark.parametrize("own", [True, False])
def test_some_rows_of_the_last_table_take_its_list(tmp_path: Path, own: bool, label: str) -> None:
    """Beside `--released` the rows may hold the other column raw: it is no feature in either
    case."""
    _, _, second = chain(tmp_path, own=own)
    for number, table in enumerate((read(second), data())):
        some = write(table.slice(0, 200), tmp_path / f"some-{number}.csv")
        code, names, said = trained(tmp_path, some, label, "--released", second)
        other = "ward" if label == "ill" else "ill"
        assert (code, names - {"stars"}) == (
            0,
            {"x", "y"},
        ) and f"No features, since releases drew them from private columns: {other}." in said


def test_a_named_manifest_is_enough(tmp_path: Path) -> None:
    _, first, second = chain(tmp_path)
    copy = write(read(second), tmp_path / "copy.csv")
    for label, other in (("ill", "ward"), ("ward", "ill")):
        code, names, said = trained(tmp_path, copy, label, "--manifest", manifest_path(second))
        assert (code, names) == (0, {"x", "y", "stars"}) and f"private columns: {other}." in said
    assert read_noisy(copy, "ill", manifest=manifest_path(second)).privacy.evidence == "proven"
    # Nothing says there that the other column is noisy, so it has to be named.
    assert trained(tmp_path, copy, "ill", "--manifest", manifest_path(first))[1] == {
        "x",
        "y",
        "stars",
        "ward",
    }
    assert trained(tmp_path, copy, "ill", "--manifest", manifest_path(first), "--exclude", "ward")[
        1
    ] == {"x", "y", "stars"}


def test_parquet_says_so_without_its_manifest(tmp_path: Path) -> None:
    for kind in ("parquet", "folder"):
        folder = tmp_path / kind
        folder.mkdir()
        *_, second = chain(folder, kind)
        manifest_path(second).unlink()
        assert len(read_noisy(second, "ill")) == 300
        code, names, said = trained(folder, second, "ward")
        assert (code, names) == (0, {"x", "y", "stars"}) and "private columns: ill." in said


def test_a_list_without_its_name_proves_no_less(tmp_path: Path) -> None:
    """A manifest of the version before, or one from which a column was taken, is read as ever."""
    *_, second = chain(tmp_path, own=False)
    facts = json.loads(manifest_path(second).read_text())
    del facts["earlier"]
    manifest_path(second).write_text(json.dumps(facts))
    ledger = tmp_path / "private" / "ledger.db"
    assert read_noisy(second, "ward").privacy.evidence == "proven"
    assert run("ledger", "verify", manifest_path(second), "--ledger", ledger)[0] == 0
    code, _, told = run(
        "train", second, "--label", "ill", "--ledger", ledger, "--out", tmp_path / "refused"
    )
    assert code == 4 and "'ill' was released by itself" in told
    code, said, told = run(
        "train",
        second,
        "--label",
        "ward",
        "--model",
        "linear",
        "--ledger",
        ledger,
        "--out",
        tmp_path / "model",
    )
    assert code == 0 and "private columns: ill." in " ".join(said.split()), told  # by the ledger


@pytest.mark.parametrize("change", ["law", "digests", "receipt"])
def test_a_changed_entry_is_refused(tmp_path: Path, change: str) -> None:
    *_, second = chain(tmp_path)
    facts = json.loads(manifest_path(second).read_text())
    (entry,) = facts["earlier"]
    if change == "law":
        entry["law"]["epsilon"] = 3.0
    elif change == "digests":
        entry["digests"]["drawn"] = facts["digests"]["drawn"]
    else:
        entry["receipt"]["dataset"] = "other"
    manifest_path(second).write_text(json.dumps(facts))
    with pytest.raises(
        ldp.InvalidInput, match=r"Expected (the law, stage and guarantee that|what run)"
    ):
        read_noisy(second, "ill")


@pytest.mark.parametrize("value", [None, 7, {"a": 1}])
def test_a_damaged_list_is_told(tmp_path: Path, value: object) -> None:
    table, out = write(data(9), tmp_path / "in.csv"), tmp_path / "out.csv"
    release(
        table, out, ReleaseSpec("ill", CLASSES["ill"], 1.0, id="id"), Ledger(tmp_path / "ledger.db")
    )
    facts = json.loads(manifest_path(out).read_text())
    entry = {
        name: facts[name] for name in ("label", "classes", "law", "receipt", "stage", "digests")
    }
    for damaged in (
        value or 1,
        [value],
        *([entry | {fact: value}] for fact in ("law", "receipt", "digests")),
        [{"label": "ward"}],
    ):
        manifest_path(out).write_text(json.dumps(facts | {"earlier": damaged}))
        with pytest.raises(ldp.InvalidInput, match="Expected earlier releases in a manifest"):
            read_noisy(out, "ward")


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_table_says_was_drawn_must_be_there(tmp_path: Path, kind: str) -> None:
    """Or else the next manifest would call raw values noisy."""
    _, first = chain(tmp_path, kind, "ill")
    raw = read(tmp_path / "in" if kind == "folder" else tmp_path / f"in.{kind}").sort_by("id")
    noisy, out, ledger = (
        read(first).sort_by("id"),
        place(tmp_path, "out", kind),
        Ledger(tmp_path / "new.db"),
    )
    spec = ReleaseSpec("ward", CLASSES["ward"], 1.0, id="id", dataset="new")

    def replaced(table: pa.Table) -> None:
        pieces = [first] if kind != "folder" else sorted(first.iterdir())
        assert len(pieces) == 1
        write(
            table.replace_schema_metadata(
                pq.read_schema(pieces[0]).metadata if kind != "csv" else None
            ),
            pieces[0],
        )

    for changed in (
        noisy.set_column(noisy.schema.get_field_index("ill"), "ill", raw["ill"]),
        noisy.slice(0, 200),
    ):
        replaced(changed)
        with pytest.raises(
            ldp.InvalidInput, match=r"Expected in column 'ill' what run .* has drawn"
        ):
            release(first, out, spec, ledger)
    assert not ledger.runs() and not out.exists()
    replaced(noisy.drop_columns(["y"]))  # other columns are public, and may change
    release(first, out, spec, ledger)
    assert len(read_noisy(out, "ill")) == 300


def test_without_the_column_nothing_is_said_of_it(tmp_path: Path) -> None:
    _, first = chain(tmp_path, "parquet", "ill")
    table = pq.read_table(first)
    pq.write_table(table.drop_columns(["ill"]), tmp_path / "less.parquet")  # with the metadata
    release(
        tmp_path / "less.parquet",
        tmp_path / "ward.parquet",
        ReleaseSpec("ward", CLASSES["ward"], 1.0, id="id"),
        Ledger(tmp_path / "new.db"),
    )
    assert listed(tmp_path / "ward.parquet") == []


def test_rows_that_a_later_release_left_out(tmp_path: Path, ledger: Ledger) -> None:
    """The earlier column stays on the list, also where its rows can no longer be proven."""
    _, first = chain(tmp_path, "csv", "ill")
    people = read(first).append_column("person", pa.array(np.arange(300) // 2))
    write(people, first)
    second, third = tmp_path / "ward.csv", tmp_path / "stars.csv"
    release(
        first,
        second,
        ReleaseSpec("ward", CLASSES["ward"], 1.0, id="id", unit="person", dataset="d1"),
        ledger,
    )
    release(
        second, third, ReleaseSpec("stars", CLASSES["stars"], 1.0, id="id", dataset="d2"), ledger
    )
    assert sorted(listed(third)) == [("ill", 1.0, "d0"), ("ward", 1.0, "d1")]
    with pytest.raises(ldp.InvalidInput, match=r"Expected what run .* has drawn"):
        read_noisy(third, "ill")
    assert trained(tmp_path, third, "stars")[1] == {"x", "y", "person"}
    assert len(read_noisy(second, "ward")) == len(read_noisy(third, "ward")) == 150


def test_stages_list_them_too(tmp_path: Path) -> None:
    _, first = chain(tmp_path, "csv", "ill")
    spec = ReleaseSpec("ward", CLASSES["ward"], 1.0, law="rr", id="id", dataset="d1")
    planned = stage.plan(tmp_path / "plan", spec, (0.5, 0.5), ledger=Ledger(tmp_path / "new.db"))
    out = tmp_path / "stage.csv"
    stage.release(planned, first, 1, out)
    assert listed(out) == [("ill", 1.0, "d0")]
    assert trained(tmp_path, out, "ward")[1] == {"x", "y", "stars"}


def test_the_command_says_what_is_noisy_already(tmp_path: Path) -> None:
    _, first = chain(tmp_path, "csv", "ill")
    asked = (
        "release",
        first,
        "--label",
        "ward",
        "--classes",
        "a,b",
        "--epsilon",
        "2",
        "--id",
        "id",
        "--ledger",
        tmp_path / "new.db",
    )
    code, said, told = run(*asked, "--out", tmp_path / "ward.csv")
    noisy = "ill (epsilon 1 in data set 'd0'; stated, not proven)."
    assert code == 0 and f"Noisy already, by earlier releases: {noisy}" in " ".join(said.split()), (
        told
    )
    (raw,) = (line for line in said.splitlines() if line.startswith("Unchanged, as they were: "))
    assert set(raw.removesuffix(".").partition(": ")[2].split(", ")) == {"id", "x", "y", "stars"}
    code, said, _ = run(*asked, "--out", tmp_path / "ward.csv", "--json")
    assert [each["label"] for each in json.loads(said)["earlier"]] == ["ill"]


@pytest.mark.parametrize("name", ["d0", "people"])
def test_a_charge_under_another_name_is_warned_of(tmp_path: Path, name: str) -> None:
    """The ledger adds up what rows cost by the name of their data set."""
    _, first = chain(tmp_path, "csv", "ill")
    declared = (
        "--label",
        "ward",
        "--classes",
        "a,b",
        "--id",
        "id",
        "--dataset",
        name,
        "--ledger",
        tmp_path / "new.db",
    )
    ldp.Ledger(tmp_path / "new.db").set_budget(name, "ward", 9.0)
    for asked in (
        ("release", first, "--out", tmp_path / "ward.csv"),
        ("train", first, "--model", "linear", "--out", tmp_path / "model"),
    ):
        code, _, told = run(*asked, *declared, "--epsilon", 1)
        said = (
            "warning: The rows were released before in data set 'd0', and are charged now in data"
            " set 'people'" in " ".join(told.split())
        )
        assert code == 0 and said == (name == "people"), told


def test_a_raw_column_that_is_private_under_another_name_is_warned_of(tmp_path: Path) -> None:
    source, _ = chain(tmp_path, "csv", "ill")
    ledger = ("--ledger", tmp_path / "private" / "ledger0.db")
    declared = ("--label", "ward", "--classes", "a,b", "--epsilon", "1", *ledger)
    for number, asked in enumerate(
        (("release", "--id", "id"), ("train", "--model", "linear"), ("aggregate", "--group", "ill"))
    ):
        code, _, told = run(
            *asked,
            source,
            *declared,
            "--dataset",
            f"other {number}",
            "--out",
            tmp_path / f"out-{number}.csv",
        )
        assert (
            code == 0
            and "names of private columns of other data sets in the ledger: 'ill' (in 'd0')"
            in " ".join(told.split())
        ), told
    code, _, told = run(
        "train",
        source,
        *declared,
        "--dataset",
        "more",
        "--exclude",
        "ill",
        "--model",
        "linear",
        "--out",
        tmp_path / "model",
    )
    assert code == 0 and "other data sets" not in told


def test_an_id_or_unit_is_no_private_column(tmp_path: Path) -> None:
    """Predictions carry the ids."""
    source, _ = chain(tmp_path, "csv", "ill")
    asked = (
        "--label",
        "ward",
        "--classes",
        "a,b",
        "--epsilon",
        "1",
        "--dataset",
        "d0",
        "--ledger",
        tmp_path / "private" / "ledger0.db",
    )
    for role in ("--id", "--unit"):
        code, _, told = run(
            "train", source, *asked, role, "ill", "--exclude", "stars", "--out", tmp_path / "model"
        )
        assert code == 4 and "got 'ill', which the ledger has charged as private" in " ".join(
            told.split()
        )


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_joint_columns_and_numbers_of_earlier_releases(tmp_path: Path, kind: str) -> None:
    columns = ldp.LabelColumns({name: CLASSES[name] for name in ("ill", "ward")})
    people = (
        data()
        .append_column("person", pa.array(np.arange(300) // 2))
        .append_column("income", pa.array(np.arange(300) % 100))
    )
    source, joint, numbers, last = (
        tmp_path / f"{name}.{kind}" for name in ("in", "joint", "numbers", "last")
    )
    ledger, shared = Ledger(tmp_path / "new.db"), {"id": "id", "dataset": "d"}
    release(
        write(people, source),
        joint,
        ReleaseSpec(columns.name, columns, 2.0, law=columns.law(2.0, "joint"), **shared),
        ledger,
    )
    release(
        joint,
        numbers,
        ReleaseSpec(
            "income", ldp.Grid(0, 100, 11), 1.0, unit="person", max_rows_per_unit=2, **shared
        ),
        ledger,
    )
    release(numbers, last, ReleaseSpec("stars", CLASSES["stars"], 1.0, **shared), ledger)
    for label, table in (("ill", joint), ("ward", joint), ("ill,ward", joint), ("income", numbers)):
        once, now = read_noisy(table, label), read_noisy(last, label, ledger=ledger)
        assert now.privacy.evidence == "proven" and np.array_equal(
            now.by_id(once.ids).likelihood(), once.likelihood()
        )
        assert now.privacy.unit == ("person" if label == "income" else "row")
    code, names, said = trained(tmp_path, last, "income")
    assert (code, names) == (0, {"x", "y"}), said
    assert trained(tmp_path, last, "ward")[1] == {"x", "y", "person"}
