# SPDX-License-Identifier: Apache-2.0
"""What can be done to a released table so that it still proves its labels, and what cannot:
docs/guide/tables.md, "What survives"."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
from tests.files import write

import labeldp as ldp
from labeldp.app._release import Release
from labeldp.tables._evidence import read_noisy

N, CLASSES = 400, ["no", "yes", "maybe"]
Change = Callable[[pa.Table], pa.Table]


def raw(classes: list[Any] = CLASSES) -> pa.Table:
    rng = np.random.default_rng(0)
    label = rng.integers(0, len(classes), N)
    columns = {
        "visit": rng.permutation(N) * 3 + 1,
        "x": rng.standard_normal(N),
        "y": [classes[i] for i in label],
        "z": rng.integers(0, 9, N),
    }
    return pa.table(columns)


def read(path: Path) -> pa.Table:
    """As another program reads it: CSV with its own idea of types."""
    return (
        pq.read_table(path)
        if path.suffix in (".parquet", "")
        else pa.Table.from_pandas(pd.read_csv(path), preserve_index=False)
    )


@pytest.fixture(params=["rr", "subset", "auto"])
def law(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def released(
    tmp_path: Path,
    ending: str,
    law: str = "rr",
    id: str | None = "visit",
    classes: list[Any] = CLASSES,
) -> Release:
    (tmp_path / "of").mkdir(exist_ok=True)
    source = write(raw(classes), tmp_path / "of" / f"raw.{ending}")
    spec = ldp.ReleaseSpec(
        label="y", classes=classes, epsilon=1.0, law=law, id=id, dataset=f"d-{ending}-{law}"
    )
    return ldp.release(
        source, tmp_path / f"noisy.{ending}", spec, ldp.Ledger(tmp_path / "ledger.db")
    )


def by_id(noisy: ldp.NoisyLabels) -> np.ndarray[Any, Any]:
    """Likelihoods in the order of the ids."""
    return noisy.log_likelihood()[np.argsort(noisy.ids.astype(np.int64))]


def same(one: ldp.NoisyLabels, other: ldp.NoisyLabels) -> None:
    np.testing.assert_array_equal(by_id(one), by_id(other))
    assert [str(c) for c in one.classes] == [
        str(c) for c in other.classes
    ] and one.privacy == other.privacy
    assert one.privacy.evidence == "proven"


KEEPS: dict[str, Change] = {
    "feature renamed": lambda t: t.rename_columns(
        ["price" if name == "x" else name for name in t.column_names]
    ),
    "features dropped": lambda t: t.drop_columns(["x", "z"]),
    "feature added": lambda t: t.append_column("new", pa.array(range(len(t)))),
    "columns in another order": lambda t: t.select(t.column_names[::-1]),
    "rows in another order": lambda t: t.sort_by("z"),
    "features changed": lambda t: t.set_column(
        t.column_names.index("x"), "x", pa.array(np.zeros(len(t)))
    ),
}


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("how", KEEPS)
def test_columns_and_order_are_free(tmp_path: Path, ending: str, how: str, law: str) -> None:
    done = released(tmp_path, ending, law)
    known = read_noisy(done.path)
    table = KEEPS[how](read(done.path))
    copy = write(table, tmp_path / f"copy.{ending}")
    same(read_noisy(copy, manifest=done.manifest_path), known)
    if ending == "parquet" and how != "feature renamed":
        # Arrow tables take the facts along, but where columns are renamed
        assert b"labeldp" in table.schema.metadata
        same(read_noisy(copy), known)
    copy.rename(done.path)
    same(read_noisy(done.path), known)


@pytest.mark.parametrize("name", ["y", "visit"])
def test_a_label_or_id_under_another_name_is_asked_for_by_name(tmp_path: Path, name: str) -> None:
    done = released(tmp_path, "parquet")
    table = read(done.path)
    write(
        table.rename_columns(["other" if each == name else each for each in table.column_names]),
        done.path,
    )
    with pytest.raises(ldp.InvalidInput, match=f"got '{name}'"):
        read_noisy(done.path)


def to_parquet_without_metadata(table: pa.Table, path: Path) -> Path:
    """What DuckDB, Spark and others write: their own metadata, none of the input's."""
    pq.write_table(table.replace_schema_metadata(None), path)
    return path


WAYS: dict[str, Callable[[pa.Table, Path], Path]] = {
    "pandas": lambda t, to: (t.to_pandas().to_parquet(to / "copy.parquet"), to / "copy.parquet")[1],
    "pandas, CSV": lambda t, to: (
        t.to_pandas().to_csv(to / "copy.csv", index=False),
        to / "copy.csv",
    )[1],
    "DuckDB": lambda t, to: to_parquet_without_metadata(t, to / "copy.parquet"),
    "Spark, a folder of files": lambda t, to: _in_files(
        t.replace_schema_metadata(None), to / "copy"
    ),
    "int32 to int64 and dictionary to text": lambda t, to: to_parquet_without_metadata(
        _cast(_cast(t, "visit", pa.int32()), "visit", pa.int64()), to / "copy.parquet"
    ),
    "labels in a dictionary": lambda t, to: to_parquet_without_metadata(
        t.set_column(t.column_names.index("y"), "y", t["y"].dictionary_encode()),
        to / "copy.parquet",
    ),
    "ids as text": lambda t, to: to_parquet_without_metadata(
        _cast(t, "visit", pa.string()), to / "copy.parquet"
    ),
}


def _cast(table: pa.Table, name: str, kind: pa.DataType) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, table[name].cast(kind))


def _in_files(table: pa.Table, folder: Path) -> Path:
    folder.mkdir()
    for i in range(3):
        pq.write_table(table.slice(150 * i, 150), folder / f"part-{2 - i}-of-its-own.parquet")
    return folder


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("classes", [CLASSES, [0, 1, 2], [7, 11]], ids=["text", "codes", "numbers"])
@pytest.mark.parametrize("way", WAYS)
def test_other_programs_lose_the_metadata_and_the_manifest_proves_the_rest(
    tmp_path: Path, ending: str, way: str, classes: list[Any]
) -> None:
    done = released(tmp_path, ending, classes=classes)
    copy = WAYS[way](read(done.path), tmp_path)
    same(read_noisy(copy, manifest=done.manifest_path), read_noisy(done.path))
    with pytest.raises(ldp.InvalidInput, match="manifest="):
        read_noisy(copy)
    shutil.copy(done.manifest_path, tmp_path / f"{copy.name}.manifest.json")
    same(read_noisy(copy), read_noisy(done.path))


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_some_rows_are_proven_by_the_original_only(tmp_path: Path, ending: str, law: str) -> None:
    done = released(tmp_path, ending, law)
    known = read_noisy(done.path)
    part = read(done.path).sort_by("x").slice(10, 90)
    copy = write(part, tmp_path / f"copy.{ending}")
    shutil.copy(done.manifest_path, tmp_path / f"{copy.name}.manifest.json")
    with pytest.raises(ldp.InvalidInput, match=r"rows differ.*released="):
        read_noisy(copy)
    found = read_noisy(copy, released=done.path)
    place = {name: i for i, name in enumerate(known.ids.astype(np.int64).tolist())}
    rows = np.array([place[name] for name in part["visit"].to_pylist()])
    np.testing.assert_array_equal(found.log_likelihood(), known[rows].log_likelihood())
    assert found.privacy == known.privacy
    names = [name for name in part.column_names if not name.startswith("y")]
    # no label at all
    bare = read_noisy(write(part.select(names), tmp_path / f"bare.{ending}"), released=done.path)
    np.testing.assert_array_equal(bare.log_likelihood(), found.log_likelihood())
    with pytest.raises(ldp.InvalidInput, match=rf"twice.*again in row {len(part) + 1} "):
        read_noisy(
            write(pa.concat_tables([part, part.slice(3, 1)]), tmp_path / f"more.{ending}"),
            released=done.path,
        )
    strange = part.set_column(
        part.column_names.index("visit"), "visit", pa.array([0, *part["visit"].to_pylist()[1:]])
    )
    with pytest.raises(
        ldp.InvalidInput, match=r"another id in row 1 \((line 2|the first is row 1)\)"
    ):
        read_noisy(write(strange, tmp_path / f"strange.{ending}"), released=done.path)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_without_ids_a_row_is_its_place(tmp_path: Path, ending: str, law: str) -> None:
    done = released(tmp_path, ending, law, id=None)
    known = read_noisy(done.path)
    table = read(done.path)
    copy = write(table.drop_columns(["x"]), tmp_path / f"copy.{ending}")
    again = read_noisy(copy, manifest=done.manifest_path)
    np.testing.assert_array_equal(again.log_likelihood(), known.log_likelihood())
    with pytest.raises(ldp.InvalidInput, match="or their order"):
        read_noisy(
            write(table.take(np.arange(N)[::-1]), tmp_path / f"turned.{ending}"),
            manifest=done.manifest_path,
        )
    with pytest.raises(ldp.InvalidInput, match="with an id column"):
        read_noisy(copy, released=done.path)


def in_parts(tmp_path: Path, id: str | None, monkeypatch: pytest.MonkeyPatch) -> Release:
    """A folder of several files."""
    monkeypatch.setattr("labeldp.tables.formats._table.PART_BYTES", 1)
    monkeypatch.setattr("labeldp.tables.formats._parquet.GROUP_ROWS", 100)
    monkeypatch.setattr("labeldp.tables.formats._parquet.BATCH_BYTES", 100)
    (tmp_path / "raw").mkdir()
    for i in range(4):
        write(raw().slice(100 * i, 100), tmp_path / "raw" / f"{i}.parquet")
    spec = ldp.ReleaseSpec(
        label="y", classes=CLASSES, epsilon=1.0, law="subset", id=id, dataset="d", order="keep"
    )
    return ldp.release(
        tmp_path / "raw", tmp_path / "noisy", spec, ldp.Ledger(tmp_path / "ledger.db")
    )


@pytest.mark.parametrize("id", [None, "visit"])
def test_each_file_of_a_folder_proves_itself(
    tmp_path: Path, id: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = in_parts(tmp_path, id, monkeypatch)
    files = sorted(tmp_path.joinpath("noisy").iterdir())
    assert len(files) > 2
    known = read_noisy(done.path)
    done.manifest_path.rename(tmp_path / "elsewhere.json")
    np.testing.assert_array_equal(read_noisy(done.path).log_likelihood(), known.log_likelihood())
    alone = read_noisy(files[1])
    start = pq.read_metadata(files[0]).num_rows
    np.testing.assert_array_equal(
        alone.log_likelihood(), known[start : start + len(alone)].log_likelihood()
    )
    np.testing.assert_array_equal(alone.ids, known.ids[start : start + len(alone)])
    files[0].unlink()  # fewer files: the others are what they were
    np.testing.assert_array_equal(
        read_noisy(done.path).log_likelihood(), known[start:].log_likelihood()
    )
    shutil.copy(files[1], tmp_path / "noisy" / "part-99999.parquet")
    with pytest.raises(ldp.InvalidInput, match="twice"):
        read_noisy(done.path)
    with pytest.raises(ldp.InvalidInput, match="rows differ"):
        read_noisy(done.path, manifest=tmp_path / "elsewhere.json")


def test_files_of_two_releases_are_told_apart(tmp_path: Path) -> None:
    one = released(tmp_path, "parquet")
    folder = tmp_path / "both"
    folder.mkdir()
    shutil.copy(one.path, folder / "a.parquet")
    again = ldp.ReleaseSpec(label="y", classes=CLASSES, epsilon=1.0, id="visit", dataset="again")
    other = ldp.release(
        tmp_path / "of" / "raw.parquet",
        tmp_path / "other.parquet",
        again,
        ldp.Ledger(tmp_path / "ledger.db"),
    )
    shutil.copy(other.path, folder / "b.parquet")
    with pytest.raises(ldp.InvalidInput, match="files of one release"):
        read_noisy(folder)


ARROW: dict[str, Change] = {
    "filtered": lambda t: t.filter(pa.compute.greater(t["id"], 100)),
    "sorted": lambda t: t.sort_by([("id", "descending")]),
    "joined": lambda t: t.append_column("id_of_shop", pa.array(range(len(t)))),
    "features first": (
        lambda t: t.add_column(0, "x", pa.array(range(len(t)))).select(["x", *t.column_names])
    ),
}


@pytest.mark.parametrize("how", ARROW)
@pytest.mark.parametrize(
    "law", [ldp.RandomizedResponse(4, 1.0), ldp.SubsetSelection(4, 1.0)], ids=["rr", "subset"]
)
def test_tables_of_noisy_labels_keep_their_proof(how: str, law: ldp.Law) -> None:
    noisy = ldp.privatize(
        ldp.PrivateLabels(np.arange(300) % 4, classes=range(law.n_classes), ids=np.arange(300) + 7),
        law,
    )
    again = ldp.NoisyLabels.from_table(ARROW[how](noisy.to_table()))
    place = np.searchsorted(noisy.ids, again.ids)
    np.testing.assert_array_equal(again.log_likelihood(), noisy[place].log_likelihood())
    assert again.receipts == noisy.receipts


def test_pandas_loses_the_facts_of_noisy_labels(tmp_path: Path) -> None:
    noisy = ldp.privatize(
        ldp.PrivateLabels(np.arange(30) % 4, classes=range(4)), ldp.RandomizedResponse(4, 1.0)
    )
    with pytest.raises(ldp.InvalidInput, match="metadata"):
        ldp.NoisyLabels.from_table(pa.Table.from_pandas(noisy.to_table().to_pandas()))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
