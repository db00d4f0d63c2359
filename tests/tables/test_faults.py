# SPDX-License-Identifier: Apache-2.0
"""Disks that are full or read-only, files that are cut short, unreadable, or change while they are
read, workers that do not fit."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.files import read, write
from tests.runs import table_pin

from labeldp.app._release import release
from labeldp.errors import InvalidInput, LabelDPError, LedgerError, ReleaseError
from labeldp.ledger._ledger import Ledger
from labeldp.noise._secrets import KeySource
from labeldp.tables._place import Place, workplace
from labeldp.tables._spec import ReleaseSpec, law_of
from labeldp.tables.engines._cluster import PinJob, Shipment, Work, read_summaries, told_by_workers
from labeldp.tables.formats._table import LabelCodec, Shape

CLASSES = tuple("abcd")


def table(n: int) -> pa.Table:
    rng = np.random.default_rng(1)
    return pa.table(
        {
            "id": rng.permutation(n),
            "label": rng.choice(CLASSES, n),
            "x": rng.random(n),
            "z": rng.random(n),
        }
    )


def spec(**changes: Any) -> ReleaseSpec:
    return ReleaseSpec(
        **({"label": "label", "classes": CLASSES, "epsilon": 1.0, "id": "id"} | changes)
    )


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this machine mounts no file system for tests: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 8 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place))
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("order", ["shuffle", "keep"])
@pytest.mark.parametrize("name", ["t", "t.parquet", "t.csv"])
def test_a_full_disk_leaves_nothing_and_the_same_command_goes_on(
    tmp_path: Path, small_disk: Path, order: str, name: str
) -> None:
    source = write(table(400_000), tmp_path / name)
    place, out = tmp_path / "private", small_disk / f"out{source.suffix}"
    with pytest.raises(
        ReleaseError, match=r"no room is left.*charge that was made stands"
    ) as error:
        release(source, out, spec(order=order), Ledger(place / "ledger.db"))
    assert error.value.__suppress_context__
    assert list(small_disk.iterdir()) == []
    assert [run.state for run in Ledger(place / "ledger.db").runs()] == ["charged"]
    shutil.copytree(place, tmp_path / "elsewhere")
    expected = release(
        source,
        tmp_path / f"roomy{source.suffix}",
        spec(order=order),
        Ledger(tmp_path / "elsewhere" / "ledger.db"),
    )
    mount("-o", "remount,size=200m", str(small_disk))
    done = release(source, out, spec(order=order), Ledger(place / "ledger.db"))
    assert not done.repeated
    assert read(out).equals(read(Path(str(expected.path))))
    assert [run.run_id for run in Ledger(place / "ledger.db").runs()] == [done.receipt.run_id]
    assert Ledger(place / "ledger.db").spent("t", "label") == 1.0
    assert sorted(path.name for path in small_disk.iterdir()) == sorted(
        [out.name, f"{out.name}.manifest.json"]
    )


@pytest.mark.parametrize("name", ["t", "t.parquet", "t.csv"])
def test_a_read_only_output_is_refused_before_anything_is_charged(
    tmp_path: Path, small_disk: Path, ledger: Ledger, name: str
) -> None:
    mount("-o", "remount,ro", str(small_disk))
    source = write(table(400), tmp_path / name)
    with pytest.raises(ReleaseError, match="Read-only file system"):
        release(source, small_disk / f"out{source.suffix}", spec(), ledger)
    assert ledger.runs() == []


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def overwrite_pages(file: Path) -> None:
    """The footer is whole; what it points to is not."""
    data = bytearray(file.read_bytes())
    data[100 : len(data) // 2] = os.urandom(len(data) // 2 - 100)
    file.write_bytes(data)


@pytest.mark.parametrize(
    "harm",
    [
        cut,
        overwrite_pages,
        lambda f: f.write_bytes(b""),
        lambda f: f.write_text("no table at all " * 9),
    ],
)
def test_a_damaged_file_in_the_middle_is_named(
    tmp_path: Path, ledger: Ledger, harm: Callable[[Path], object]
) -> None:
    source = write(table(100_000), tmp_path / "t")
    harm(source / "part-2.parquet")
    with pytest.raises(InvalidInput, match=r"part-2\.parquet"):
        release(source, tmp_path / "out", spec(), ledger)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "private") == ["t"]
    assert ledger.runs() == []


def remove(file: Path) -> None:
    file.unlink()


def another(file: Path) -> None:
    """Other rows of as many bytes or not, in a file of its own that takes the name."""
    pq.write_table(table(100_000).slice(0, 25_000), file.with_name(".new"), row_group_size=50_000)
    file.with_name(".new").replace(file)


def same_size(file: Path) -> None:
    """One byte of a page changes."""
    with file.open("r+b") as stream:
        stream.seek(2000)
        byte = stream.read(1)
        stream.seek(2000)
        stream.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("when", ["check", "draw"])
@pytest.mark.parametrize("change", [remove, another, same_size, cut])
def test_a_file_that_changes_or_disappears_between_the_passes(
    tmp_path: Path, ledger: Ledger, change: Callable[[Path], None], when: str
) -> None:
    """`draw`: while the files before it are being drawn."""
    source = write(table(100_000), tmp_path / "t")
    done: list[str] = []

    def progress(phase: str, rows: int, total: int) -> None:
        if phase == when and (rows == total or when == "draw") and not done:
            done.append(phase)
            change(source / "part-2.parquet")

    with pytest.raises(LabelDPError, match=r"part-2\.parquet"):
        release(source, tmp_path / "out", spec(order="keep"), ledger, progress=progress)
    assert done
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "private") == ["t"]
    assert [run.state for run in ledger.runs()] == ["charged"]


def test_a_file_that_changes_is_drawn_again_under_the_same_charge_once_it_is_back(
    tmp_path: Path, ledger: Ledger
) -> None:
    source = write(table(100_000), tmp_path / "t")
    whole = (source / "part-2.parquet").read_bytes()

    def progress(phase: str, rows: int, total: int) -> None:
        if phase == "check" and rows == total:
            remove(source / "part-2.parquet")

    with pytest.raises(ReleaseError, match="existing file"):
        release(source, tmp_path / "out", spec(), ledger, progress=progress)
    (source / "part-2.parquet").write_bytes(whole)
    done = release(source, tmp_path / "out", spec(), ledger)
    assert [run.run_id for run in ledger.runs()] == [done.receipt.run_id]
    assert ledger.spent("t", "label") == 1.0


@contextmanager
def nobody() -> Iterator[None]:
    """As a user without rights."""
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can take on another user"
)
@pytest.mark.parametrize("name", ["t", "t.parquet", "t.csv"])
def test_an_unreadable_file_is_named(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        root = Path(folder)
        source = write(table(4000), root / name)
        (root / "own").mkdir()
        os.chown(root / "own", 65534, 65534)
        root.chmod(0o755)
        file = source / "part-2.parquet" if source.is_dir() else source
        file.chmod(0)
        ledger = Ledger(root / "own" / "ledger.db")
        with (
            nobody(),
            pytest.raises(ReleaseError, match=rf"can be read.*{file.name}.*Permission denied"),
        ):
            release(source, root / "own" / f"out{source.suffix}", spec(), ledger)
        assert [
            path.name for path in (root / "own").iterdir() if path.name.startswith(("out", ".out"))
        ] == []


@dataclass(frozen=True)
class Here:
    """A worker's handle in this process."""

    shipment: Shipment

    def fetch(self) -> Shipment:
        return self.shipment


@pytest.fixture
def first_pass(tmp_path: Path) -> Callable[..., list[Any]]:
    """The first pass of a cluster over one partition, on a worker of a version."""
    rows, spec = table(20), ReleaseSpec("label", CLASSES, 1.0, id="id", dataset="d")
    pin = table_pin(
        law_of(spec, 4),
        classes=CLASSES,
        dataset="d",
        column="label",
        ledger=Ledger(tmp_path / "ledger.db"),
    )
    shape = Shape(rows.schema, LabelCodec(CLASSES, "label", pa.string()), 0)

    def run(**facts: Any) -> list[Any]:
        work = Work(pin.facts, spec, shape, Here(Shipment(pin.for_workers())), **facts)
        (found,) = PinJob(work, Place.of(tmp_path / "out"))(iter(rows.to_batches()))
        return read_summaries(found.column("summary").to_pylist())

    return run


def test_a_worker_that_cannot_write_the_output_says_so_in_the_first_pass(
    tmp_path: Path, first_pass: Callable[..., list[Any]]
) -> None:
    with pytest.raises(
        InvalidInput, match=rf"all workers can write to, got {re.escape(str(tmp_path / 'out'))}"
    ):
        first_pass()  # as on a disk that the driver has not made a folder on
    with workplace(tmp_path / "out"):
        ((sums, _),) = first_pass()
    assert sums.rows == 20


def test_a_worker_of_another_version_draws_nothing(
    tmp_path: Path, first_pass: Callable[..., list[Any]]
) -> None:
    with (
        workplace(tmp_path / "out"),
        pytest.raises(ReleaseError, match=r"Expected labeldp 0\.0\.1 in the workers' Python"),
    ):
        first_pass(version="0.0.1")


def test_a_worker_with_another_release_secret_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELDP_TEST_KEY", "0123456789abcdef" * 4)
    with pytest.raises(LabelDPError) as caught:
        KeySource("env:LABELDP_TEST_KEY", "an id").fetch()
    kind = type(caught.value)
    told = told_by_workers(
        f"Traceback ...\n{kind.__module__}.{kind.__name__}: {caught.value}\n SQLSTATE: 38000"
    )
    assert isinstance(told, LedgerError) and str(told) == str(caught.value)
