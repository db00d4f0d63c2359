# SPDX-License-Identifier: Apache-2.0
"""What a release on any cluster must do; each engine's tests run it on the real engine."""

import contextlib
import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest
from tests.adversarial.test_keys_never_show import Watch, variables, watch
from tests.cli.commands import run
from tests.engines.faults import ONCE, SENTINEL, injected
from tests.engines.test_engines_agree import (
    CLASSES,
    crashed,
    read,
    spec_of,
    table,
    with_columns,
    write,
)

from labeldp.app._release import release
from labeldp.custody._stream import TablePin
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.laws import LAWS
from labeldp.ledger._ledger import Ledger
from labeldp.ledger._repair import orphans
from labeldp.tables._evidence import read_noisy
from labeldp.tables._spec import ReleaseSpec

__all__ = ["watch"]
ROWS = 4000


class Cluster(Protocol):
    """An engine and how the tests speak to it."""

    engine: Any

    def release(self, source: Path, out: Path, spec: ReleaseSpec, ledger: Ledger) -> Any:
        """Release the files of a folder, a partition for each file."""
        ...

    def logs(self) -> list[Path]:
        """What the engine has written beside data."""
        ...


class Contract:
    """Subclasses have a fixture `cluster`."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        return write(table(ROWS), tmp_path / "in", 3)

    @pytest.mark.parametrize("ids", ["id", "name", ("first", "second")])
    def test_repeated_ids_are_refused_before_any_charge(
        self, cluster: Cluster, tmp_path: Path, ledger: Ledger, ids: Any
    ) -> None:
        rows = table(ROWS)
        source = write(pa.concat_tables([rows, rows.slice(7, 1)]), tmp_path / "in", 3)
        with pytest.raises(InvalidInput, match="some id occurs more than once"):
            cluster.release(source, tmp_path / "out", spec_of(id=ids), ledger)
        assert list(ledger.runs()) == [] and not (tmp_path / "out").exists()

    def test_bad_rows_are_refused_before_any_charge_and_never_shown(
        self, cluster: Cluster, tmp_path: Path, ledger: Ledger
    ) -> None:
        rows = table(ROWS)
        labels = ["abc"[i % 3] for i in rows["label"].to_pylist()]
        labels[ROWS // 2] = SENTINEL
        source = write(
            rows.set_column(rows.schema.get_field_index("label"), "label", [labels]),
            tmp_path / "in",
            3,
        )
        with pytest.raises(InvalidInput, match="but some label is not") as caught:
            cluster.release(source, tmp_path / "out", spec_of(classes=list("abc")), ledger)
        assert SENTINEL not in f"{caught.value}{caught.value.__cause__}"
        assert list(ledger.runs()) == []

    def test_a_law_that_workers_cannot_import_is_refused_before_the_charge(
        self,
        cluster: Cluster,
        tmp_path: Path,
        source: Path,
        ledger: Ledger,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        folder = tmp_path / "of_the_driver"
        folder.mkdir()
        (folder / "law_of_the_driver.py").write_text(
            "from dataclasses import dataclass\nimport labeldp as ldp\nclass"
            " Own(ldp.RandomizedResponse):\n    name = 'of-the-driver'\nOwn ="
            " ldp.register_law(dataclass(frozen=True)(Own))\n"
        )
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setitem(LAWS, "of-the-driver", importlib.import_module("law_of_the_driver").Own)
        with pytest.raises(ReleaseError, match="Expected law_of_the_driver in the workers' Python"):
            cluster.release(source, tmp_path / "out", spec_of(law="of-the-driver"), ledger)
        assert list(ledger.runs()) == [] and not (tmp_path / "out").exists()

    @pytest.mark.parametrize("mode", ONCE)
    @pytest.mark.parametrize(
        ("target", "order"),
        [("PinJob", "keep"), ("DrawAndWriteJob", "keep"), ("WriteJob", "shuffle")],
    )
    def test_a_task_that_fails_once_changes_nothing(
        self, cluster: Cluster, tmp_path: Path, source: Path, mode: str, target: str, order: str
    ) -> None:
        if target == "PinJob" and mode not in ("kill-after", "raise-before"):
            pytest.skip("two ways are enough for the first pass")
        ledger = same_after_a_fault(cluster, tmp_path, source, spec_of(order=order), target, mode)
        assert ledger.spent("d", "label") == 1.0

    @pytest.mark.parametrize("mode", ["kill-after", "twice"])
    def test_several_columns_are_drawn_and_charged_once(
        self, cluster: Cluster, tmp_path: Path, mode: str
    ) -> None:
        rows, columns = with_columns(table(ROWS))
        spec = spec_of(label=columns.name, classes=columns, law=columns.law(1.0, "joint"))
        ledger = same_after_a_fault(
            cluster, tmp_path, write(rows, tmp_path / "in", 3), spec, "DrawJob", mode
        )
        assert [ledger.spent("d", name) for name in columns.names] == [1.0] * 3

    def test_several_columns_on_the_command_line(self, cluster: Cluster, tmp_path: Path) -> None:
        source, name = (
            write(with_columns(table(1000))[0], tmp_path / "visits", 2),
            cluster.engine.name.lower(),
        )
        facts = (
            "--label",
            "flag,number",
            "--classes",
            "a,b",
            "--range",
            "number=0:12:5",
            "--epsilon",
            1,
            "--id",
            "id",
        )
        code, said, error = run(
            "release",
            source,
            *facts,
            "--engine",
            name,
            "--out",
            tmp_path / "out",
            "--ledger",
            tmp_path / "ledger.db",
        )
        assert code == 0, error
        assert "columns 'flag', 'number' together are 1-label-DP for each row" in said
        released = read(tmp_path / "out")
        assert released.num_rows == 1000 and set(released["number"].to_pylist()) <= {0, 3, 6, 9, 12}
        # that a column was released is seen by its name in that of the evidence of both
        again = spec_of(label="flag", classes=["a", "b"], dataset="other")
        with pytest.raises(InvalidInput, match="column 'flag' was released already"):
            cluster.release(
                tmp_path / "out", tmp_path / "again", again, Ledger(tmp_path / "ledger.db")
            )

    def test_the_manifest_lists_a_noisy_column_of_the_files_that_were_read(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        rows = table(1000).append_column("ward", pa.array(["a", "b"] * 500))
        source, name, first = (
            write(rows, tmp_path / "visits", 2),
            cluster.engine.name.lower(),
            tmp_path / "first",
        )
        release(
            source,
            first,
            ReleaseSpec("ward", ["a", "b"], 1.0, id="id", dataset="wards"),
            Ledger(tmp_path / "wards.db"),
        )
        asked = (
            "--label",
            "label",
            "--classes",
            ",".join(map(str, range(10))),
            "--epsilon",
            1,
            "--id",
            "id",
            "--engine",
            name,
        )
        code, _, error = run(
            "release", first, *asked, "--out", tmp_path / "out", "--ledger", tmp_path / "ledger.db"
        )
        assert code == 0, error
        once, now = read_noisy(first), read_noisy(tmp_path / "out", "ward")
        assert np.array_equal(now.by_id(once.ids).likelihood(), once.likelihood())
        assert (
            "earlier"
            in pq.read_schema(tmp_path / "out" / "part-00000.parquet").metadata[b"labeldp"].decode()
        )
        noisy = pq.read_table(first / "part-00000.parquet")
        pq.write_table(
            noisy.set_column(
                noisy.column_names.index("ward"), "ward", pa.array(["b"] * len(noisy))
            ),
            first / "part-00000.parquet",
        )
        code, _, error = run(
            "release",
            first,
            *asked,
            "--dataset",
            "d",
            "--out",
            tmp_path / "no",
            "--ledger",
            tmp_path / "new.db",
        )
        assert code == 4 and "Expected in column 'ward' what run" in " ".join(error.split()), error

    def test_a_table_that_changes_between_the_passes_is_not_published(
        self,
        cluster: Cluster,
        tmp_path: Path,
        source: Path,
        ledger: Ledger,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        charge = TablePin.charge

        def then_changes(self: TablePin, *given: Any, **named: Any) -> Any:
            path = source / "00.parquet"
            rows = pq.read_table(path)
            labels = (rows["label"].to_numpy() + 1) % 10
            pq.write_table(
                rows.set_column(
                    rows.schema.get_field_index("label"), "label", [labels.astype(np.int32)]
                ),
                path,
            )
            return charge(self, *given, **named)

        monkeypatch.setattr(TablePin, "charge", then_changes)
        with pytest.raises(ReleaseError, match=r"changed while it was read|to finish"):
            cluster.release(source, tmp_path / "out", spec_of(), ledger)
        assert [run.state for run in ledger.runs()] == ["charged"]
        assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []

    def test_the_same_request_again_is_not_charged_again(
        self, cluster: Cluster, tmp_path: Path, source: Path, ledger: Ledger
    ) -> None:
        done = cluster.release(source, tmp_path / "out", spec_of(), ledger)
        again = cluster.release(source, tmp_path / "out", spec_of(), ledger)
        assert (done.repeated, again.repeated) == (False, True) and again.receipt == done.receipt
        assert ledger.spent("d", "label") == 1.0
        with pytest.raises(ReleaseError, match="Expected a new name"):
            cluster.release(source, tmp_path / "in", spec_of(), ledger)

    def test_empty_tables_and_partitions(
        self, cluster: Cluster, tmp_path: Path, ledger: Ledger
    ) -> None:
        rows = table(ROWS)
        empty = write(rows.slice(0, 0), tmp_path / "empty", 1)
        with pytest.raises(InvalidInput, match="the table is empty"):
            cluster.release(empty, tmp_path / "out", spec_of(), ledger)
        source = write(rows, tmp_path / "in", 2)
        pq.write_table(rows.slice(0, 0), source / "zz.parquet")
        cluster.release(source, tmp_path / "out", spec_of(unit="who"), ledger)
        released = read(tmp_path / "out")
        assert (
            len(released)
            == len(set(released["who"].to_pylist()))
            == len(set(rows["who"].to_pylist()))
        )

    def test_one_unit_for_all_rows(self, cluster: Cluster, tmp_path: Path, ledger: Ledger) -> None:
        rows = table(ROWS).append_column("all", pa.array(["x"] * ROWS))
        done = cluster.release(
            write(rows, tmp_path / "in", 3),
            tmp_path / "out",
            spec_of(unit="all", max_rows_per_unit=3),
            ledger,
        )
        assert len(read(tmp_path / "out")) == 3 and done.manifest["rows_over_the_cap"] == ROWS - 3

    @pytest.mark.parametrize("target", ["PinJob", "DrawJob", "WriteJob"])
    def test_unforeseen_errors_of_workers_show_no_data(
        self, cluster: Cluster, tmp_path: Path, source: Path, ledger: Ledger, target: str
    ) -> None:
        with (
            injected(cluster.engine, target, "poison", tmp_path / "marker"),
            pytest.raises(ReleaseError) as caught,
        ):
            cluster.release(source, tmp_path / "out", spec_of(), ledger)
        assert "got ArrowInvalid" in str(caught.value) and "\n" not in str(caught.value)
        assert type(caught.value) is ReleaseError
        assert SENTINEL not in f"{caught.value!r} {caught.value.__cause__!r}"
        assert found_in(cluster.logs(), [SENTINEL.encode()]) == []

    def test_keys_and_labels_never_show(
        self, cluster: Cluster, tmp_path: Path, ledger: Ledger, watch: Watch
    ) -> None:
        rows = table(ROWS)
        labels = [SENTINEL if i == 3 else f"class {i}" for i in rows["label"].to_pylist()]
        source = write(
            rows.set_column(rows.schema.get_field_index("label"), "label", [labels]),
            tmp_path / "in",
            3,
        )
        classes = [f"class {i}" for i in CLASSES if i != 3] + [SENTINEL]
        done = cluster.release(
            source, tmp_path / "out", spec_of(classes=classes, id="name", unit="who"), ledger
        )
        print(variables(done))
        assert {"secret", "pin", "ids"} <= watch.kinds
        files = contents(cluster.logs())
        assert len(files) > 2 and sum(map(len, files.values())) > 10_000
        for secret in watch.secrets:
            assert watch.shown_in(secret) != []
        assert [path for path, content in files.items() if watch.shown_in(content)] == []
        assert watch.check(tmp_path, private=("ledger.db.runs",)) > 3


def same_after_a_fault(
    cluster: Cluster, tmp_path: Path, source: Path, spec: ReleaseSpec, target: str, mode: str
) -> Ledger:
    """Release with a job that goes wrong, and compare with one machine; return the ledger, with one
    settled run."""
    kept = crashed(source, spec, tmp_path / "crashed")
    first = Ledger(Path(shutil.copytree(kept, tmp_path / "first")) / "ledger.db")
    release(source, tmp_path / "first" / "out", spec, first)
    ledger, marker = Ledger(kept / "ledger.db"), tmp_path / "marker"
    with injected(cluster.engine, target, mode, marker):
        cluster.release(source, kept / "out", spec, ledger)
    assert marker.exists()
    assert read(kept / "out").sort_by("id").equals(read(tmp_path / "first" / "out").sort_by("id"))
    assert [run.state for run in ledger.runs()] == ["settled"]
    assert [path.name for path in kept.iterdir() if path.name.startswith(".out")] == []
    assert orphans(ledger, minutes=0.0001) == []
    return ledger


def by_label(folder: Path, flavor: str | None) -> Path:
    """Write files in a folder for each label: "hive", whose names are its keys, or None, with the
    label in the files, too."""
    rows = table(400)
    rows = rows if flavor else rows.append_column("folder", rows["label"])
    key = rows.schema.field("label" if flavor else "folder")
    dataset.write_dataset(
        rows,
        folder,
        format="parquet",
        partitioning=dataset.partitioning(pa.schema([key]), flavor=flavor),
    )
    return folder


def found_in(files: list[Path], words: list[bytes]) -> list[Path]:
    return [
        path for path, content in contents(files).items() if any(word in content for word in words)
    ]


def contents(files: list[Path]) -> dict[Path, bytes]:
    """Read files, but for those that an engine removes meanwhile, as Spark does with shuffled
    blocks."""
    found = {}
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.read_bytes()
    return found


def files_below(*folders: Path) -> Iterator[Path]:
    return (path for folder in folders for path in folder.rglob("*") if path.is_file())
