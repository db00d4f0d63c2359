# SPDX-License-Identifier: Apache-2.0
"""Tables of many files: what is read, what comes out, what is refused; in several file systems."""

import datetime
import itertools
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from labeldp.app._release import release
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.ledger._ledger import Ledger
from labeldp.ledger._repair import orphans
from labeldp.tables._evidence import read_noisy
from labeldp.tables._place import Place, Staging
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.formats._parquet import layout_of_paths, open_table

N, K, FILES = 4000, 4, 5
CLASSES = tuple("abcd")


@pytest.fixture(params=["local", "mock", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty folder; "memory" stands for all file systems that cannot rename a folder."""
    if request.param == "local":
        (tmp_path / "root").mkdir()
        yield Place.of(tmp_path / "root")
    elif request.param == "mock":
        yield Place.of((pafs._MockFileSystem(current_time=datetime.datetime(2020, 1, 1)), "root"))
    else:
        memory = pytest.importorskip("fsspec").filesystem("memory")
        yield Place.of((memory, f"/{tmp_path.name}"))
        memory.store.clear()


def table(n: int = N) -> pa.Table:
    rng = np.random.default_rng(1)
    return pa.table(
        {
            "id": pa.array(rng.permutation(n)),
            "label": pa.array(rng.choice(CLASSES, n)),
            "x": pa.array(rng.standard_normal(n)),
            "text": pa.array([f"t{i}" for i in range(n)]),
        }
    )


def pieces(whole: pa.Table, n: int = FILES) -> list[pa.Table]:
    edges = np.linspace(0, len(whole), n + 1).astype(int)
    return [whole.slice(start, stop - start) for start, stop in itertools.pairwise(edges)]


def write(rows: pa.Table, place: Place) -> Place:
    with place.open_output() as stream:
        pq.write_table(rows, stream)
    return place


def folder(
    root: Place, whole: pa.Table, name: Callable[[int], str] = "part-{}.parquet".format
) -> Place:
    for number, piece in enumerate(pieces(whole)):
        write(piece, root.child("in", name(number)))
    return root.child("in")


def read(place: Place | Path) -> pa.Table:
    files = Place.of(place).files()
    return pa.concat_tables([pq.read_table(file.open_input()) for file in files])


def spec(**changes: Any) -> ReleaseSpec:
    return ReleaseSpec(
        **({"label": "label", "classes": CLASSES, "epsilon": 1.0, "id": "id"} | changes)
    )


def names(root: Place) -> list[str]:
    return ["/".join(file.below(root)) for file in root.files()]


def test_a_folder_comes_out_as_a_folder(
    root: Place, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labeldp.tables.formats._table.PART_BYTES", 20_000)
    monkeypatch.setattr("labeldp.tables.formats._parquet.GROUP_BYTES", 10_000)
    monkeypatch.setattr("labeldp.tables.engines._local.BUCKET_BYTES", 10_000)
    whole = table()
    done = release(folder(root, whole), root.child("out"), spec(), ledger)
    out = read(root.child("out")).sort_by("id")
    assert out.drop_columns("label").equals(whole.sort_by("id").drop_columns("label"))
    assert 0.3 < np.mean(out["label"].to_numpy() == whole.sort_by("id")["label"].to_numpy()) < 0.65
    written: Any = done.manifest["parts"]
    assert len(written) > 2
    assert [f"out/{part['name']}" for part in written] == [
        name for name in names(root) if name.startswith("out/")
    ]
    assert written[1]["name"] == "part-00001.parquet"
    for part in written:
        assert Place.of(done.path).child(part["name"]).digest() == part["sha256"]
    assert sum(part["rows"] for part in written) == N == done.manifest["rows"]
    assert "out.manifest.json" in names(root)
    assert len(names(root)) == FILES + len(written) + 1
    assert ledger.spent("in", "label") == 1.0
    assert orphans(ledger, minutes=1e-9) == []


# after each of them a process may be dead
move, write_manifest = Place.move, Staging.write_manifest


class Killed(BaseException):
    """Stands for the end of the process."""


def test_nobody_takes_a_part_of_a_release_for_the_whole(
    root: Place, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies anywhere between the first file's final name and the manifest leaves what
    readers refuse, and it is finished."""
    monkeypatch.setattr("labeldp.tables.formats._table.PART_BYTES", 20_000)
    monkeypatch.setattr("labeldp.tables.formats._parquet.GROUP_BYTES", 10_000)
    source, moved = folder(root, table()), 0
    made: list[str] = []
    before_manifest = False
    for dies in range(1, 100):
        done = len(made)

        def counted(self: Any, *given: Any, last: int = dies, step: Any) -> None:
            nonlocal moved, before_manifest
            moved += 1
            if moved == last:
                before_manifest |= step is write_manifest
                raise Killed
            step(self, *given)

        moved = 0
        with monkeypatch.context() as patch:
            patch.setattr(Place, "move", partialmethod(counted, step=move))
            patch.setattr(Staging, "write_manifest", partialmethod(counted, step=write_manifest))
            # a dead process tidies nothing up
            patch.setattr(Staging, "delete_unless_started", lambda self: None)
            try:
                release(source, root.child("out"), spec(order="keep"), ledger)
            except Killed:
                pass
            else:
                break
        made = [name for name in names(root) if name.startswith("out/part-")]
        assert len(made) >= done and not root.child("out.manifest.json").exists()
        if made:
            for reader in (
                lambda: read_noisy(root.child("out")),
                lambda: read_noisy(root.child("out"), ledger=ledger),
            ):
                with pytest.raises(
                    InvalidInput, match="The same labeldp release command finishes it"
                ):
                    reader()
    assert dies > 3 and before_manifest and len(read_noisy(root.child("out"), ledger=ledger)) == N
    assert len(ledger.runs()) == 1 and not [name for name in names(root) if "labeldp" in name]


@pytest.mark.parametrize("name", ["out", "out.parquet"])
def test_a_manifest_that_was_removed_is_written_again_beside_the_very_table(
    root: Place, ledger: Ledger, name: str
) -> None:
    source, out = folder(root, table()), root.child(name)
    one = root.child("in.parquet") if name.endswith(".parquet") else source
    if one is not source:
        with one.open_output() as sink:
            pq.write_table(table(), sink)
    manifest = root.child(f"{name}.manifest.json")
    release(one, out, spec(dataset="in"), ledger)

    def files() -> list[str]:
        return [file.digest() for file in (out.files() if out.is_folder() else [out])]

    first, written = manifest.read_bytes(), files()
    manifest.delete()
    again = release(one, out, spec(dataset="in"), ledger)
    assert again.repeated and manifest.read_bytes() == first and files() == written
    assert len(ledger.runs()) == 1 and ledger.spent("in", "label") == 1.0
    # A table of somebody else without a manifest is still refused.
    manifest.delete()
    changed = out.child("part-00000.parquet") if out.is_folder() else out
    changed.write_bytes(changed.read_bytes() + b" ")
    with pytest.raises(ReleaseError, match="holds something else"):
        release(one, out, spec(dataset="in"), ledger)


def test_a_repeat_reads_what_is_there_and_copies_it_elsewhere(root: Place, ledger: Ledger) -> None:
    source = folder(root, table())
    release(source, root.child("out"), spec(), ledger)
    first = read(root.child("out"))
    assert release(source, root.child("out"), spec(), ledger).repeated
    root.child("deep").make_folder()
    again = release(source, root.child("deep", "copy"), spec(), ledger)
    assert again.repeated
    assert read(root.child("deep", "copy")).equals(first)
    assert (
        root.child("deep", "copy.manifest.json").read_bytes()
        == root.child("out.manifest.json").read_bytes()
    )
    for place in (root.child("out"), root.child("deep", "copy")):
        place.files()[0].delete()
    with pytest.raises(ReleaseError, match="redraw"):
        release(source, root.child("out"), spec(), ledger)
    assert ledger.spent("in", "label") == 1.0


def test_a_copy_that_was_killed_is_finished(
    root: Place, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labeldp.tables.formats._table.PART_BYTES", 20_000)
    monkeypatch.setattr("labeldp.tables.formats._parquet.GROUP_BYTES", 10_000)
    source = folder(root, table())
    release(source, root.child("out"), spec(order="keep"), ledger)
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "write_manifest", lambda self, data: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            release(source, root.child("copy"), spec(order="keep"), ledger)
    with pytest.raises(InvalidInput, match="The same labeldp release command finishes it"):
        read_noisy(root.child("copy"))
    assert release(source, root.child("copy"), spec(order="keep"), ledger).repeated
    assert read(root.child("copy")).equals(read(root.child("out")))
    assert not [name for name in names(root) if "labeldp" in name]


def test_what_else_is_under_the_name_is_refused_before_the_charge(
    root: Place, ledger: Ledger
) -> None:
    source = folder(root, table(200))
    write(table(200), root.child("out", "part-00000.parquet"))
    with pytest.raises(ReleaseError, match="another name"):
        release(source, root.child("out"), spec(), ledger)
    with pytest.raises(ReleaseError, match="folder name"):
        release(source, write(table(200), root.child("file.parquet")), spec(), ledger)
    with pytest.raises(ReleaseError, match="apart from"):
        release(source, source.child("out"), spec(), ledger)
    with pytest.raises((ReleaseError, InvalidInput), match=r"apart from|inside a bucket"):
        release(source, root, spec(), ledger)
    assert ledger.runs() == []


class _Killed(BaseException):
    """Stands for the end of the process."""


def _dies_in(where: str) -> Callable[[str, int, int], None]:
    def progress(phase: str, done: int, total: int) -> None:
        if phase == where:
            raise _Killed

    return progress


@pytest.mark.parametrize("order", ["shuffle", "keep"])
def test_rows_of_one_run_are_the_same_in_any_order_of_files(tmp_path: Path, order: str) -> None:
    """Two ledgers that hold the same charge and secret: as if the same run were finished by two
    machines."""
    import shutil

    whole, tables = table(), []
    source = folder(Place.of(tmp_path / "a" / "x"), whole)
    (tmp_path / "private").mkdir(mode=0o700)
    with pytest.raises(_Killed):
        release(
            source,
            tmp_path / "lost",
            spec(order=order),
            Ledger(tmp_path / "private" / "ledger.db"),
            progress=_dies_in("draw"),
        )
    for number, places in enumerate(([0, 1, 2, 3, 4], [3, 0, 4, 2, 1])):
        shutil.copytree(tmp_path / "private", tmp_path / f"private{number}")
        mixed = folder(
            Place.of(tmp_path / f"b{number}" / "x"),
            whole,
            lambda i, places=places: f"f{places[i]}.parquet",
        )
        ledger = Ledger(tmp_path / f"private{number}" / "ledger.db")
        done = release(mixed, tmp_path / f"out{number}", spec(order=order, dataset="in"), ledger)
        assert len(ledger.runs()) == 1
        tables.append(read(Place.of(done.path)))
    if order == "shuffle":
        assert tables[0].equals(tables[1])
    assert tables[0].sort_by("id").equals(tables[1].sort_by("id"))


def test_hive_partitions_become_columns(root: Place, ledger: Ledger) -> None:
    whole = table()
    source = folder(
        root, whole, lambda i: f"country={['de', 'fr'][i % 2]}/year={2000 + i}/p.parquet"
    )
    write(
        whole.slice(0, 0), source.child("country=__HIVE_DEFAULT_PARTITION__", "year=1", "p.parquet")
    )
    for hidden in ("_SUCCESS", ".part.crc", "_delta_log/x.json"):
        with source.child(*hidden.split("/")).open_output() as stream:
            stream.write(b"no table")
    done = release(source, root.child("out"), spec(order="keep"), ledger)
    out = read(root.child("out"))
    assert out.schema.field("year").type == pa.int32()
    assert out.schema.field("country").type == pa.string()
    rows = [len(piece) for piece in pieces(whole)]
    order = sorted(range(FILES), key=lambda i: (i % 2, i))
    assert out["year"].to_pylist() == [2000 + i for i in order for _ in range(rows[i])]
    assert set(out["country"].to_pylist()) == {"de", "fr"}
    assert out.column_names == [*whole.column_names, "country", "year"]
    assert len(read_noisy(root.child("out"))) == N
    assert done.manifest["dataset_from"] == "name of the input folder"


def test_partition_values_enter_what_is_the_same_table(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db", budget=2.0)
    for country in ("de", "fr"):
        write(table(300), Place.of(tmp_path / country / "in" / f"c={country}" / "p.parquet"))
        done = release(
            tmp_path / country / "in", tmp_path / f"out-{country}", spec(id=None), ledger
        )
        assert not done.repeated
    assert ledger.spent("in", "label") == 2.0


def test_patterns_and_lists(tmp_path: Path, ledger: Ledger) -> None:
    whole = table()
    source = folder(Place.of(tmp_path), whole, lambda i: f"day={i}/p.parquet")
    some = release(
        f"{source}/day=[12]/*.parquet".replace("[12]", "*"), tmp_path / "a", spec(), ledger
    )
    assert some.manifest["rows"] == N
    assert "day" in read(Place.of(tmp_path / "a")).column_names
    files = [file.local for file in source.files()]
    listed = release([files[3], files[1]], tmp_path / "b", spec(dataset="two"), ledger)
    assert listed.manifest["rows"] == 2 * N // FILES
    with pytest.raises(InvalidInput, match="twice"):
        open_table([files[0], files[0]])
    with pytest.raises(InvalidInput, match="at least one"):
        open_table([])
    with pytest.raises(InvalidInput, match="none in"):
        open_table(tmp_path / "private" / "*.parquet")


def test_a_label_in_the_layout_is_refused(tmp_path: Path, ledger: Ledger) -> None:
    whole = table(300)
    for order in ("shuffle", "keep"):
        source = folder(
            Place.of(tmp_path / order),
            whole.drop_columns("label"),
            lambda i: f"label={CLASSES[i % K]}/p{i}.parquet",
        )
        with pytest.raises(InvalidInput, match="partition's key"):
            release(source, tmp_path / "out", spec(order=order), ledger)
    hive = folder(
        Place.of(tmp_path / "hive"),
        whole.drop_columns("label"),
        lambda i: f"paid%3F={CLASSES[i % K]}/p{i}.parquet",
    )
    with pytest.raises(InvalidInput, match="partition's key"):
        release(hive, tmp_path / "out", spec(label="paid?"), ledger)
    one = folder(Place.of(tmp_path / "LABEL=a" / "day=1"), whole, lambda i: f"p{i}.parquet")
    for given in (one, one.files()[0], one.files(), one.child("*.parquet")):
        with pytest.raises(InvalidInput, match="another part of the path"):
            release(
                given,
                tmp_path / ("out.parquet" if given == one.files()[0] else "out"),
                spec(order="keep"),
                ledger,
            )
    for number, name in enumerate(("b/p{}.parquet", "x/c/{}.parquet", "p{}/d.parquet")):
        source = folder(Place.of(tmp_path / f"n{number}"), whole, name.format)
        with pytest.raises(InvalidInput, match="named like a class"):
            release(source, tmp_path / "out", spec(), ledger)
    assert ledger.runs() == []
    assert release(source, tmp_path / "out", spec(order="keep"), ledger).manifest["rows"] == 300


def test_of_paths_whose_start_is_not_known_the_parts_from_the_tables_folder_on_count() -> None:
    files = ["/home/a/visits/ward=1/day=2/p.parquet", "/home/a/visits/ward=1/day=3/q.parquet"]
    assert layout_of_paths(files) == {
        "visits",
        "ward=1",
        "day=2",
        "day=3",
        "p.parquet",
        "q.parquet",
    }
    assert layout_of_paths(["/home/a/visits/p.parquet"]) == {"visits", "p.parquet"}
    assert layout_of_paths(["bucket/a/p.parquet", "bucket/b/p.parquet"]) == {
        "bucket",
        "a",
        "b",
        "p.parquet",
    }
    assert layout_of_paths([]) == set()


def bad_type(whole: pa.Table) -> pa.Table:
    return whole.set_column(2, "x", whole["x"].cast(pa.float32()))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (bad_type, "'x' of type float in .*part-3.*, and double"),
        (lambda t: t.drop_columns("text"), "'text' of type no such column in .*part-3.*"),
        (
            lambda t: t.append_column("more", t["x"]),
            "'more' of type double in .*part-3.*no such column",
        ),
    ],
)
def test_files_that_disagree_are_named(
    tmp_path: Path, ledger: Ledger, change: Callable[[pa.Table], pa.Table], said: str
) -> None:
    source = folder(Place.of(tmp_path), table())
    file = source.child("part-3.parquet")
    write(change(pq.read_table(file.path)), file)
    with pytest.raises(InvalidInput, match=said):
        release(source, tmp_path / "out", spec(), ledger)
    assert ledger.runs() == []


def test_columns_in_another_order_and_nullability_are_the_same_schema(
    tmp_path: Path, ledger: Ledger
) -> None:
    whole = table()
    source = folder(Place.of(tmp_path), whole)
    last = pieces(whole)[-1].select(["text", "x", "label", "id"])
    strict = pa.schema([field.with_nullable(False) for field in last.schema])
    write(last.cast(strict), source.child("part-4.parquet"))
    release(source, tmp_path / "out", spec(order="keep"), ledger)
    out = read(Place.of(tmp_path / "out"))
    assert out.drop_columns("label").equals(whole.drop_columns("label"))


def test_other_files_in_the_folder_are_refused(tmp_path: Path, ledger: Ledger) -> None:
    source = folder(Place.of(tmp_path), table(300))
    (tmp_path / "in" / "more.csv").write_text("id,label\n1,a\n")
    with pytest.raises(InvalidInput, match=r"more\.csv"):
        release(source, tmp_path / "out", spec(), ledger)
    (tmp_path / "in" / "more.csv").unlink()
    with pytest.raises(InvalidInput, match="folder for the output"):
        release(source, tmp_path / "out.csv", spec(), ledger)
    with pytest.raises(InvalidInput, match="in both"):
        write(table(10), source.child("x=1", "p.parquet"))
        (tmp_path / "one").mkdir()
        (tmp_path / "in" / "x=1").rename(tmp_path / "one" / "x=1")
        release(tmp_path / "one", tmp_path / "out", spec(), ledger)
    with pytest.raises(InvalidInput, match="without 'y'"):
        open_table(
            [
                write(table(10), Place.of(tmp_path / "mixed" / part / "p.parquet"))
                for part in ("y=1", "z")
            ]
        )
    assert ledger.runs() == []
