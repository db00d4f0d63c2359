# SPDX-License-Identifier: Apache-2.0
"""Several label columns of one table, released together: one charge, one table with all noisy
columns, evidence of each."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import run
from tests.runs import manifest_path

import labeldp as ldp
from labeldp._validate import joined, parted
from labeldp.app._release import release
from labeldp.custody._staged import Stage
from labeldp.errors import InvalidInput, LedgerError, RawColumnWarning
from labeldp.ledger._ledger import Ledger
from labeldp.tables._evidence import released_columns
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.formats._parquet import open_table
from labeldp.tables.formats._table import EVIDENCE

N = 3000
COLUMNS = ldp.LabelColumns({"ill": [False, True], "stars": [1, 2, 3], "ward": ["a", "b"]})


def data(n: int = N) -> pa.Table:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "ward": pa.array(np.array(["a", "b"])[rng.integers(2, size=n)]).dictionary_encode(),
        "id": np.arange(n)[::-1] * 3,
        "stars": rng.choice([1, 2, 3], n, p=[0.6, 0.3, 0.1]).astype(np.int16),
        "x": rng.standard_normal(n).round(3),
        "ill": rng.random(n) < 0.2,
    }
    return pa.table(columns)


def write(table: pa.Table, path: Path) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        pc_csv.write_csv(table.set_column(0, "ward", table["ward"].cast(pa.string())), path)
    return path


def columns_for(ending: str) -> ldp.LabelColumns:
    return (
        COLUMNS
        if ending == "parquet"
        else ldp.LabelColumns(
            {"ill": ["false", "true"], "stars": ["1", "2", "3"], "ward": ["a", "b"]}
        )
    )


def spec(columns: ldp.LabelColumns = COLUMNS, split: str = "joint", **changes: Any) -> ReleaseSpec:
    law = columns.law(changes.get("epsilon", 2.0), split)
    return ReleaseSpec(
        **(
            {"label": columns.name, "classes": columns, "epsilon": 2.0, "law": law, "id": "id"}
            | changes
        )
    )


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("split", "id_column"), [("equal", "id"), ("equal", None), ("one", "id"), ("joint", "id")]
)
def test_each_column_is_read_back_with_its_evidence(
    tmp_path: Path, ledger: Ledger, ending: str, split: str, id_column: str | None
) -> None:
    columns, table = columns_for(ending), data()
    done = release(
        write(table, tmp_path / f"in.{ending}"),
        tmp_path / f"out.{ending}",
        spec(columns, split, id=id_column),
        ledger,
    )
    out = pq.read_table(done.path) if ending == "parquet" else pc_csv.read_csv(done.path)
    assert out.column_names == [*table.column_names, "ill,stars,ward__evidence"]
    if ending == "parquet":
        assert [out.schema.field(name).type for name in table.column_names] == [
            field.type for field in table.schema
        ]
    assert out.sort_by("id")["x"].equals(table.sort_by("id")["x"])
    assert [ledger.spent("in", name) for name in columns.names] == [2.0, 2.0, 2.0]
    whole = ldp.read_noisy(done.path, ledger=ledger)
    assert (whole.classes, whole.classes.names) == (columns, columns.names)
    truth = dict(zip(table["id"].to_pylist(), range(N), strict=True))
    order = [truth[i] for i in out["id"].to_pylist()]
    for number, name in enumerate(columns.names):
        noisy = ldp.read_noisy(done.path, name, ledger=ledger)
        assert noisy.privacy.evidence == "proven"
        np.testing.assert_array_equal(noisy.likelihood(), whole[name].likelihood())
        asked = np.flatnonzero(noisy.evidenced)
        labels = [
            columns.lists[number].index(value if ending == "parquet" else str(value).lower())
            for value in table[name].to_pylist()
        ]
        own = np.eye(len(noisy.classes))[np.array(labels)[order]][asked]
        error = noisy[asked].class_weights() - own
        # false alarm 2e-6 in all 56
        assert (np.abs(error.mean(axis=0)) < 5.5 * error.std(axis=0) / np.sqrt(len(asked))).all()
        written = [str(value).lower() for value in out[name].to_pylist()]
        codes = np.array(
            [[str(value).lower() for value in noisy.classes].index(value) for value in written]
        )
        likely = noisy.likelihood()[asked, codes[asked]]
        assert (likely == 1).all()
    assert ledger.verify() == []


def test_a_repeat_is_free_and_a_change_is_found(tmp_path: Path, ledger: Ledger) -> None:
    source = write(data(), tmp_path / "in.csv")
    columns = columns_for("csv")
    first = release(source, tmp_path / "out.csv", spec(columns), ledger)
    text = (tmp_path / "out.csv").read_text()
    assert release(source, tmp_path / "out.csv", spec(columns), ledger).repeated
    assert (tmp_path / "out.csv").read_text() == text
    assert ledger.spent("in", "ward") == 2.0
    head, row, rest = text.split("\n", 2)
    flipped = row.replace("true", "false") if "true" in row else row.replace("false", "true")
    (tmp_path / "out.csv").write_text("\n".join([head, flipped, rest]))
    for label in (None, "ward", "ill"):
        with pytest.raises(InvalidInput, match="has drawn, got something else"):
            ldp.read_noisy(tmp_path / "out.csv", label)
    assert first.receipt.columns == columns.names


def test_a_manifest_with_other_columns_is_refused(tmp_path: Path, ledger: Ledger) -> None:
    release(
        write(data(), tmp_path / "in.csv"),
        tmp_path / "out.csv",
        spec(columns_for("csv"), "equal"),
        ledger,
    )
    manifest = tmp_path / "out.csv.manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"true"', '"yes"').replace('"false"', '"no"'))
    with pytest.raises(InvalidInput):
        ldp.read_noisy(tmp_path / "out.csv", "ill")
    swapped = text.replace(
        '"columns": [\n    "ill",\n    "stars"', '"columns": [\n    "stars",\n    "ill"', 1
    )
    assert swapped != text
    manifest.write_text(swapped)
    with pytest.raises((InvalidInput, LedgerError)):
        ldp.read_noisy(tmp_path / "out.csv", "ward", ledger=ledger)


def test_a_null_class_is_one_of_its_own_column(tmp_path: Path, ledger: Ledger) -> None:
    table = data(60)
    holes = pa.array(
        [None if i % 3 == 0 else value for i, value in enumerate(table["stars"].to_pylist())],
        pa.int16(),
    )
    table = table.set_column(table.column_names.index("stars"), "stars", holes)
    source = write(table, tmp_path / "in.parquet")
    with pytest.raises(
        InvalidInput,
        match=r"'stars' to be one of the 3 declared classes .*, but some label is missing",
    ):
        release(source, tmp_path / "out.parquet", spec(), ledger)
    assert not ledger.exists() or ledger.runs() == []
    columns = ldp.LabelColumns({"ill": [False, True], "stars": [1, 2, 3, None], "ward": ["a", "b"]})
    done = release(source, tmp_path / "out.parquet", spec(columns, "equal", epsilon=600.0), ledger)
    out = pq.read_table(done.path)
    assert out.sort_by("id")["stars"].to_pylist() == table.sort_by("id")["stars"].to_pylist()
    assert ldp.read_noisy(done.path, "stars").classes == (1, 2, 3, None)


def test_a_table_that_was_released_is_not_released_again(tmp_path: Path, ledger: Ledger) -> None:
    done = release(write(data(), tmp_path / "in.parquet"), tmp_path / "out.parquet", spec(), ledger)
    for label, classes, said in (
        ("ill", [False, True], "column 'ill' was"),
        (COLUMNS.name, COLUMNS, "columns 'ill', 'stars', 'ward' were"),
    ):
        with pytest.raises(InvalidInput, match=f"{said} released already"):
            release(
                done.path,
                tmp_path / "more.parquet",
                ReleaseSpec(label, classes, 1.0, dataset="in"),
                ledger,
            )
    assert ledger.spent("in", "ill") == 2.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"label": "ill"}, "names of the declared columns"),
        ({"label": COLUMNS.names}, "Expected label to be a column's name"),
        ({"id": "ward"}, "label column 'ward'"),
        ({"unit": "ill"}, "label column 'ill'"),
        ({"prior": ["x"]}, "no prior with several"),
        ({"epsilon": 1.0, "law": COLUMNS.law(2.0)}, "epsilon to be 1.0"),
        ({"law": ldp.RandomizedResponse(5, 2.0)}, "over the 12 classes"),
        (
            {
                "dataset": "d",
                "law": Stage("0" * 32, 1, (COLUMNS.law(2.0, "joint"),) * 2, (0.5, 0.5)),
            },
            "without stages",
        ),
    ],
)
def test_illegal_specs_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        spec(**changes)


def test_without_a_law_a_spec_asks_about_one_column() -> None:
    made = ReleaseSpec(COLUMNS.name, COLUMNS, 1.0)
    assert (made.law_name, made.labels) == ("one-column", ("ill", "stars", "ward"))
    assert ReleaseSpec(COLUMNS.name, COLUMNS, 6.0).law_name == "one-column"
    assert ReleaseSpec(COLUMNS.name, COLUMNS, 1.0, "rr").law_name == "one-column"


def test_the_command_line_releases_and_trains_a_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LABELDP_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.chdir(tmp_path)
    write(data(), tmp_path / "in.csv")
    asked = [
        "release",
        "in.csv",
        "--label",
        "ill,stars",
        "--classes",
        "false,true;1,2,3",
        "--epsilon",
        "2",
        "--id",
        "id",
    ]
    code, out, err = run(*asked, "--split", "equal", "--out", "noisy.csv")
    assert code == 0, err
    assert "columns 'ill', 'stars' together are 2-label-DP for each row" in out
    budgets = [line for line in caplog.text.splitlines() if "The budget of" in line]
    for line, column in zip(budgets, ("ill", "stars"), strict=True):
        assert f"dataset 'in', column {column!r} is now 2.0 (first charge)" in line
    code, out, err = run("ledger", "spent")
    lines = [line.split() for line in out.splitlines()]
    assert [line[:4] for line in lines[1:3]] == [
        ["in", "ill", "row", "2"],
        ["in", "stars", "row", "2"],
    ]
    assert ["in", "row", "ill,", "stars", "2"] in lines  # one charge on both
    code, out, err = run(
        "train", "noisy.csv", "--label", "stars", "--exclude", "ward", "--out", "model"
    )
    assert code == 0, err
    assert "2-label-DP" in out
    code, out, err = run("train", "noisy.csv", "--label", "ill,stars", "--out", "both")
    assert code == 0 and "for 'ill', 'stars' together, 2-label-DP" in out, (
        out,
        err,
    )
    for wrong, said in (
        (["--range", "0:5"], "--range NAME=LOW:HIGH"),
        (["--prior", "x,x"], "prior"),
    ):
        code, out, err = run(*asked, *wrong, "--dataset", "other", "--out", "no.csv")
        assert code != 0 and said in err, (wrong, err)
    code, out, err = run(
        *[each.replace("ill,stars", "ill,ill") for each in asked], "--out", "no.csv"
    )
    assert code != 0 and "twice" in err
    code, out, err = run(
        "release",
        "in.csv",
        "--label",
        "ill",
        "--classes",
        "false,true",
        "--split",
        "one",
        "--epsilon",
        "1",
        "--out",
        "n.csv",
    )
    assert code != 0 and "several label columns" in err


def with_numbers(place: Path, ending: str) -> Path:
    table = data()
    numbers = np.clip(
        40 + 10 * np.asarray(table["x"]) + 20 * np.asarray(table["ill"]), -5, 99
    ).round(1)
    return write(table.append_column("income", pa.array(numbers)), place / f"people.{ending}")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_command_line_takes_numbers_among_several_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.chdir(tmp_path)
    source, flags = with_numbers(tmp_path, ending), "false,true"
    told = [
        "--epsilon",
        8,
        "--id",
        "id",
        "--ledger",
        "ledger.db",
        "--dataset",
        "d",
        "--split",
        "equal",
    ]
    columns = ["--label", "ill,income", "--classes", flags, "--range", "income=0:100:21"]
    code, _, err = run("release", source, *columns, "--out", f"noisy.{ending}", *told)
    assert code == 0, err
    noisy = ldp.read_noisy(f"noisy.{ending}", "income")
    assert noisy.classes == ldp.Grid(0, 100, points=21)
    estimates = noisy.class_weights() @ np.array(noisy.classes)  # unbiased
    truth = np.clip(
        np.asarray(
            pc_csv.read_csv(source)["income"]
            if ending == "csv"
            else pq.read_table(source)["income"]
        ),
        0,
        100,
    ).mean()
    error = estimates.std() / np.sqrt(N)
    # six standard errors: false alarm 2e-9; fresh noise
    assert abs(estimates.mean() - truth) < 6 * error < 12
    same = ["--label", "ill,income", "--classes", f"ill={flags}", "--range", "income=0:100:21"]
    code, _, err = run("release", source, *same, "--out", f"noisy.{ending}", *told)
    assert code == 0, err
    assert ldp.Ledger("ledger.db").spent("d", ["ill", "income"]) == 8.0
    code, said, err = run(
        "train",
        f"noisy.{ending}",
        "--label",
        "income",
        "--model",
        "linear",
        "--out",
        "model",
        "--ledger",
        "ledger.db",
    )
    assert code == 0 and "rmse" in said, err
    code, _, err = run("predict", "model", source, "--out", "predicted.csv")
    assert code == 0, err
    predicted = np.asarray(pc_csv.read_csv("predicted.csv")["prediction"])
    assert predicted.min() >= 0 and predicted.max() <= 100 and predicted.std() > 3


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (["--classes", "false,true", "--range", "0:100"], "--range NAME=LOW:HIGH"),
        (
            ["--classes", "false,true", "--range", "incme=0:100"],
            "--range NAME=LOW:HIGH once for a column",
        ),
        (["--classes", "false,true", "--range", "income=100:0"], "lower end first"),
        (["--classes", "false,true", "--range", "income=0"], "range LOW:HIGH"),
        (["--classes", "false,true", "--range", "income=0:9;income=0:8"], "once for a column"),
        (["--classes", "false,true", "--range", "income=0:100:x"], "LOW:HIGH:POINTS"),
        (["--classes", "false,true", "--range", "income=0:100:60000"], "points=60000"),
        (["--classes", "false,true;a,b", "--range", "income=0:100"], "got 2 lists"),
        (["--classes", "false,true;a,b;c,d", "--range", "income=0:100"], "got 3 lists"),
        (["--classes", "a,b", "--range", "income=0:100;ill=0:1"], "got both. Leave one out"),
        (["--range", "income=0:100"], "Expected classes of"),
    ],
)
def test_options_of_numbers_among_several_columns_are_checked(
    tmp_path: Path, told: list[str], said: str
) -> None:
    source = with_numbers(tmp_path, "csv")
    more = [
        "--epsilon",
        1,
        "--id",
        "id",
        "--out",
        tmp_path / "noisy.csv",
        "--ledger",
        tmp_path / "ledger.db",
    ]
    code, _, err = run("release", source, "--label", "ill,income", *told, *more)
    assert code == 2 and said in " ".join(err.replace("│", " ").split()), err
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_column_that_was_not_released_is_named_beside_those_that_were(
    tmp_path: Path, ledger: Ledger, ending: str
) -> None:
    source, out, one = (tmp_path / f"{name}.{ending}" for name in ("in", "out", "one"))
    write(data(60), source)
    columns = columns_for(ending)
    release(source, out, spec(columns), ledger)
    release(source, one, ReleaseSpec("ward", ["a", "b"], 2.0, id="id", dataset="other"), ledger)
    for path, label, said in [
        (out, "il", "columns 'ill', 'stars', 'ward'. Did you mean 'ill'?"),
        (one, "war", "column 'ward'. Did you mean 'ward'?"),
    ]:
        for more in ({}, {"manifest": manifest_path(path)}, {"released": path}):
            with pytest.raises(
                InvalidInput,
                match=re.escape(f"got '{label}': {path.name} was released with the label {said}"),
            ):
                ldp.read_noisy(path, label, **more)
        code, _, err = run(
            "train", path, "--label", "x", "--out", tmp_path / "model", "--ledger", ledger.location
        )
        assert code != 0 and f"got 'x': {path.name} was released with the label column" in " ".join(
            err.split()
        ), err


# One by one: the ledger knows which of the other columns are private
# ----------------------------------------------------------------------


def one(label: str, classes: Any, **changes: Any) -> ReleaseSpec:
    return ReleaseSpec(
        **(
            {"label": label, "classes": classes, "epsilon": 1.0, "id": "id", "dataset": "d"}
            | changes
        )
    )


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_private_column_does_not_pass_beside_another_label(
    tmp_path: Path, ledger: Ledger, ending: str
) -> None:
    source = write(data(300), tmp_path / f"in.{ending}")
    release(source, tmp_path / f"wards.{ending}", one("ward", ["a", "b"]), ledger)
    stars = one("stars", [1, 2, 3] if ending == "parquet" else ["1", "2", "3"])
    with pytest.raises(
        InvalidInput, match="got 'ward', which the ledger has charged as private in data set 'd'"
    ):
        release(source, tmp_path / f"stars.{ending}", stars, ledger)
    assert ledger.spent("d", "stars") == 0 and not (tmp_path / f"stars.{ending}").exists()
    assert release(source, tmp_path / f"wards.{ending}", one("ward", ["a", "b"]), ledger).repeated


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_noisy_columns_pass_into_the_next_release_as_they_were_drawn(
    tmp_path: Path, ledger: Ledger, ending: str
) -> None:
    """Each release starts from the last one's output; a file that still shows a raw column is
    named."""
    source, found = write(data(300), tmp_path / f"in.{ending}"), {}
    for label, classes in (("ward", "ab"), ("stars", "123"), ("ill", ["false", "true"])):
        typed = (
            {"stars": [1, 2, 3], "ill": [False, True]}.get(label, list(classes))
            if ending == "parquet"
            else list(classes)
        )
        out = tmp_path / f"{label}.{ending}"
        if found:
            with pytest.warns(
                RawColumnWarning, match=f"holds the private column {label} as it was"
            ):
                done = release(source, out, one(label, typed, law="subset"), ledger)
        else:
            done = release(source, out, one(label, typed, law="subset"), ledger)
        assert label not in done.unchanged and set(found) <= set(done.unchanged)
        found[label] = ldp.read_noisy(out, label)
        source = out
    for label, first in found.items():
        manifest = tmp_path / f"{label}.{ending}.manifest.json"
        assert np.array_equal(
            np.sort(ldp.read_noisy(source, label, manifest=manifest, ledger=ledger).hard_codes()),
            np.sort(first.hard_codes()),
        )


def test_a_changed_row_of_a_noisy_column_is_not_taken_for_a_drawn_one(
    tmp_path: Path, ledger: Ledger
) -> None:
    raw = data(300)
    release(
        write(raw, tmp_path / "in.parquet"),
        tmp_path / "wards.parquet",
        one("ward", ["a", "b"]),
        ledger,
    )
    noisy = pq.read_table(tmp_path / "wards.parquet").sort_by("id")
    raw = raw.sort_by("id")
    # The manifest, and the file's own facts, claim noisy labels; the column holds raw ones.
    table = noisy.set_column(noisy.schema.get_field_index("ward"), "ward", raw["ward"])
    pq.write_table(
        table.replace_schema_metadata(noisy.schema.metadata), tmp_path / "forged.parquet"
    )
    with pytest.raises(InvalidInput, match="got 'ward', which the ledger has charged"):
        release(
            tmp_path / "forged.parquet", tmp_path / "stars.parquet", one("stars", [1, 2, 3]), ledger
        )


def test_columns_of_a_joint_release_are_private_one_by_one(tmp_path: Path, ledger: Ledger) -> None:
    source = write(data(300), tmp_path / "in.parquet")
    release(source, tmp_path / "out.parquet", spec(dataset="d"), ledger)
    with pytest.raises(InvalidInput, match="got 'ward', 'stars', which"):
        release(source, tmp_path / "ill.parquet", one("ill", [False, True]), ledger)


@pytest.mark.parametrize(("ending", "law"), [("csv", "rr"), ("parquet", "subset")])
def test_a_column_of_an_earlier_or_later_release_is_no_feature(
    tmp_path: Path, ledger: Ledger, ending: str, law: str
) -> None:
    """Predictions of a table with the raw column would tell about it, so no model may read it."""
    source, wards, both = (
        write(data(300), tmp_path / f"in.{ending}"),
        tmp_path / f"wards.{ending}",
        tmp_path / f"both.{ending}",
    )
    release(source, wards, one("ward", ["a", "b"], law=law), ledger)
    with pytest.warns(RawColumnWarning, match="holds the private column stars"):
        release(
            wards,
            both,
            one("stars", [1, 2, 3] if ending == "parquet" else ["1", "2", "3"], law=law),
            ledger,
        )
    at, manifest = ("--ledger", ledger.location, "--model", "linear"), manifest_path(wards)
    for label, other, more in (("stars", "ward", ()), ("ward", "stars", ("--manifest", manifest))):
        released = ("train", both, "--label", label, *more, *at)
        code, said, told = run(*released, "--out", tmp_path / f"{label}-model")
        assert (
            code == 0
            and f"No features, since releases drew them from private columns: {other}" in said
        ), told
        model = tmp_path / f"{label}-model"
        assert {
            each["name"]
            for each in json.loads((model / "model.json").read_text())["features"]["columns"]
        } == {"x", "ill"}
        code, _, told = run(*released, "--features", f"x,{other}", "--out", tmp_path / "refused")
        assert (
            code == 4
            and f"got {other!r}, which a release drew from a private column"
            in " ".join(told.split())
        )
    raw = (
        "train",
        wards,
        "--label",
        "stars",
        "--classes",
        "1,2,3",
        "--epsilon",
        "1",
        *at,
        "--out",
        tmp_path / "raw",
    )
    code, said, told = run(*raw)
    assert code == 3 and "dataset 'd', column 'stars'" in " ".join(told.split()), (
        "the table's manifest names its data set"
    )
    ledger.set_budget("d", "stars", 2.0)
    code, said, told = run(*raw)
    assert (
        code == 0 and "No features, since releases drew them from private columns: ward" in said
    ), told


def test_commas_in_names_of_joint_columns(tmp_path: Path, ledger: Ledger) -> None:
    """The evidence of a joint release, the only trace in a copy without its manifest, is named by
    all columns."""
    names = ["a", "b,c", "d\\", "\\,e"]
    assert parted(joined(names)) == names
    columns = ldp.LabelColumns({"stars": ["1", "2", "3"], "ward, bed": ["a", "b"]})
    named = pc_csv.read_csv(write(data(300), tmp_path / "d.csv")).rename_columns(
        ["ward, bed", "id", "stars", "x", "ill"]
    )
    pc_csv.write_csv(named, tmp_path / "in.csv")
    release(tmp_path / "in.csv", tmp_path / "out.csv", spec(columns), ledger)
    copy = tmp_path / "copy.csv"
    copy.write_bytes((tmp_path / "out.csv").read_bytes())
    found = released_columns(
        open_table(copy), open_table(copy).names, "d", Ledger(tmp_path / "new.db")
    )
    assert found == {"stars", "ward, bed", columns.name + EVIDENCE}


def test_a_private_column_is_no_feature_and_no_group(tmp_path: Path) -> None:
    source, at = write(data(300), tmp_path / "d.csv"), ("--ledger", tmp_path / "ledger")
    declared = ("--classes", "1,2,3", "--epsilon", "1", *at)
    code, said, _ = run(
        "release",
        source,
        "--label",
        "stars",
        "--id",
        "id",
        "--out",
        tmp_path / "stars.csv",
        *declared,
    )
    assert code == 0 and "Unchanged, as they were: ward, id, x, ill." in said
    wards = ("--label", "ward", "--classes", "a,b", "--epsilon", "1", *at)
    code, _, told = run("train", source, *wards, "--id", "id", "--out", tmp_path / "model")
    assert code == 4 and "got 'stars', which the ledger has charged" in told and "--exclude" in told
    code, _, told = run(
        "aggregate", source, *wards, "--group", "stars", "--out", tmp_path / "counts.csv"
    )
    assert code == 4 and "got 'stars', which the ledger has charged" in told
    # A column that a later charge makes private is no feature of the table that was released
    # before.
    code, _, _ = run(
        "train", source, *wards, "--id", "id", "--exclude", "stars", "--out", tmp_path / "model"
    )
    assert code == 0
    code, _, told = run(
        "train", tmp_path / "stars.csv", "--label", "stars", "--out", tmp_path / "other", *at
    )
    assert code == 4 and "got 'ward', which the ledger has charged" in told
