# SPDX-License-Identifier: Apache-2.0
"""Releases in an S3-compatible store: a real server on this machine, reached through pyarrow's own
S3 client."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from labeldp.app._release import release
from labeldp.cli import app
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.ledger._ledger import Ledger
from labeldp.tables._evidence import read_noisy
from labeldp.tables._place import Part, Place, Staging
from labeldp.tables._spec import ReleaseSpec

pytestmark = pytest.mark.engines
N, FILES, CLASSES = 4000, 4, tuple("abcd")
KEY, SECRET = "AKIATESTKEY", "secret-of-the-store"
BUCKETS = itertools.count()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = pytest.importorskip("moto.server", reason="needs moto[server,s3]").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str) -> Place:
    store = pafs.S3FileSystem(
        endpoint_override=endpoint,
        scheme="http",
        access_key=KEY,
        secret_key=SECRET,
        region="us-east-1",
        allow_bucket_creation=True,
    )
    name = f"tables-{next(BUCKETS)}"
    store.create_dir(name)
    return Place.of((store, name))


def table() -> pa.Table:
    rng = np.random.default_rng(1)
    return pa.table(
        {"id": rng.permutation(N), "label": rng.choice(CLASSES, N), "x": rng.standard_normal(N)}
    )


def folder(
    bucket: Place, whole: pa.Table, name: Callable[[int], str] = "p{}.parquet".format
) -> Place:
    step = N // FILES
    for i in range(FILES):
        with bucket.child("in", name(i)).open_output() as stream:
            pq.write_table(whole.slice(i * step, step), stream, row_group_size=300)
    return bucket.child("in")


def names(place: Place) -> list[str]:
    return ["/".join(file.below(place)) for file in place.files()]


def read(place: Place) -> pa.Table:
    return pa.concat_tables([pq.read_table(file.open_input()) for file in place.files()])


def spec(**changes: Any) -> ReleaseSpec:
    return ReleaseSpec(
        **({"label": "label", "classes": CLASSES, "epsilon": 1.0, "id": "id"} | changes)
    )


class _Killed(BaseException):
    """Stands for the end of the process."""


def test_a_partitioned_folder(
    bucket: Place, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labeldp.tables.formats._table.PART_BYTES", 10_000)
    monkeypatch.setattr("labeldp.tables.formats._parquet.GROUP_BYTES", 8_000)
    monkeypatch.setattr("labeldp.tables.engines._local.BUCKET_BYTES", 8_000)
    whole = table()
    source = folder(bucket, whole, "day={}/p.parquet".format)
    done = release(source, bucket.child("out"), spec(), ledger)
    out = read(bucket.child("out")).sort_by("id")
    assert out.select(["id", "x"]).equals(whole.sort_by("id").select(["id", "x"]))
    assert sorted(set(out["day"].to_pylist())) == list(range(FILES))
    written: Any = done.manifest["parts"]
    assert len(written) > 2
    assert names(bucket) == [
        *[f"in/day={i}/p.parquet" for i in range(FILES)],
        "out.manifest.json",
        *(f"out/{p['name']}" for p in written),
    ]
    assert json.loads(bucket.child("out.manifest.json").read_bytes()) == done.manifest
    assert len(read_noisy(bucket.child("out"))) == N
    assert release(source, bucket.child("out"), spec(), ledger).repeated
    assert release(source, bucket.child("copy"), spec(), ledger).repeated
    assert read(bucket.child("copy")).equals(read(bucket.child("out")))


def test_the_same_table_as_on_disk(bucket: Place, tmp_path: Path) -> None:
    """One charge, drawn once to the store and, by another machine that holds the same ledger, once
    to disk."""
    import shutil

    whole = table()
    source = folder(bucket, whole)
    (tmp_path / "a").mkdir(mode=0o700)

    def die(phase: str, done: int, total: int) -> None:
        if phase == "draw":
            raise _Killed

    with pytest.raises(_Killed):
        release(
            source, bucket.child("out"), spec(), Ledger(tmp_path / "a" / "ledger.db"), progress=die
        )
    assert names(bucket) == [f"in/p{i}.parquet" for i in range(FILES)]
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    release(source, bucket.child("out"), spec(), Ledger(tmp_path / "a" / "ledger.db"))
    (tmp_path / "in").mkdir()
    for file in source.files():
        (tmp_path / "in" / file.name).write_bytes(file.read_bytes())
    release(tmp_path / "in", tmp_path / "out", spec(), Ledger(tmp_path / "b" / "ledger.db"))
    assert read(bucket.child("out")).equals(read(Place.of(tmp_path / "out")))


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_single_file(bucket: Place, ledger: Ledger, ending: str) -> None:
    source = bucket.child(f"in.{ending}")
    with source.open_output() as stream:
        if ending == "parquet":
            pq.write_table(table(), stream)
        else:
            stream.write(_csv(table()))
    done = release(source, bucket.child(f"out.{ending}"), spec(), ledger)
    assert names(bucket) == [f"in.{ending}", f"out.{ending}", f"out.{ending}.manifest.json"]
    assert len(read_noisy(bucket.child(f"out.{ending}"))) == N
    assert str(done.path) == f"{bucket!s}/out.{ending}"
    assert release(source, bucket.child(f"out.{ending}"), spec(), ledger).repeated
    with pytest.raises(ReleaseError, match="input"):
        release(source, source, spec(dataset="again"), ledger)


def _csv(rows: pa.Table) -> bytes:
    import pyarrow.csv

    buffer = pa.BufferOutputStream()
    pyarrow.csv.write_csv(rows, buffer)
    return bytes(buffer.getvalue())


def test_a_run_killed_while_it_publishes_is_finished_by_the_same_command(
    bucket: Place, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labeldp.tables.formats._table.PART_BYTES", 10_000)
    monkeypatch.setattr("labeldp.tables.formats._parquet.GROUP_BYTES", 8_000)
    monkeypatch.setattr("labeldp.tables.engines._local.BUCKET_BYTES", 8_000)
    source = folder(bucket, table())
    real, moves = Place.move, itertools.count()

    def move(self: Place, target: Place) -> None:
        if next(moves) == 2:
            raise _Killed
        real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Place, "move", move)
        # a killed process tidies nothing
        patch.setattr(Staging, "delete_unless_started", lambda self: None)
        with pytest.raises(_Killed):
            release(source, bucket.child("out"), spec(), ledger)
    assert sum(name.startswith("out/part-") for name in names(bucket)) == 2
    assert "out.manifest.json" not in names(bucket)
    done = release(source, bucket.child("out"), spec(), ledger)
    written: Any = done.manifest["parts"]
    assert [name for name in names(bucket) if name.startswith("out")] == [
        "out.manifest.json",
        *(f"out/{p['name']}" for p in written),
    ]
    assert ledger.spent("in", "label") == 1.0
    assert len(ledger.runs()) == 1
    assert len(read(bucket.child("out"))) == N


def test_staging_is_published_abandoned_and_named_by_worker_copies(bucket: Place) -> None:
    import pickle

    staging = Staging(bucket.child("deep", "out"), "f" * 32)
    staging.prepare()
    worker = pickle.loads(pickle.dumps(staging))
    parts = []
    for text in (b"one", b"two", b"lost"):
        file = worker.new_file()
        file.write_bytes(text)
        parts.append(Part(file.name, 1, 3, hashlib.sha256(text).hexdigest()))
    assert all("_labeldp_staging_" in name for name in names(bucket))
    staging.publish(parts[:2], b"facts")
    assert names(bucket) == [
        "deep/out.manifest.json",
        "deep/out/part-00000.parquet",
        "deep/out/part-00001.parquet",
    ]
    other = Staging(bucket.child("none"), "e" * 32)
    other.prepare()
    other.new_file().write_bytes(b"one")
    other.delete()
    assert not bucket.child("none").exists()


def test_the_command_takes_addresses(
    bucket: Place, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(bucket, table())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    more = f"?region=us-east-1&scheme=http&endpoint_override={endpoint}"
    line = [
        "release",
        f"s3://{bucket.path}/in{more}",
        "--label",
        "label",
        "--classes",
        "a,b,c,d",
        "--epsilon",
        "1",
        "--id",
        "id",
    ]
    line += ["--out", f"s3://{bucket.path}/out{more}", "--ledger", str(tmp_path / "l.db"), "--json"]
    for repeated in (False, True):
        done = CliRunner().invoke(app, line)
        assert done.exit_code == 0, done.output
        said = json.loads(done.stdout)
        assert said["path"] == f"s3://{bucket.path}/out"
        assert said["repeated"] is repeated
    assert SECRET not in done.output + bucket.child("out.manifest.json").read_bytes().decode()


def test_a_store_that_refuses_is_told_before_the_charge(bucket: Place, ledger: Ledger) -> None:
    source = folder(bucket, table())
    nowhere = Place(bucket.filesystem, "no-such-bucket/out")
    with pytest.raises(ReleaseError, match="rights"):
        release(source, nowhere, spec(), ledger)
    with pytest.raises(InvalidInput, match="inside a bucket"):
        release(source, Place(bucket.filesystem, "other-bucket"), spec(), ledger)
    with pytest.raises(ReleaseError, match="existing file"):
        release(bucket.child("gone.parquet"), bucket.child("out.parquet"), spec(), ledger)
    assert ledger.runs() == []


def test_a_file_that_is_replaced_between_the_passes(bucket: Place, ledger: Ledger) -> None:
    source = folder(bucket, table())

    def replace(phase: str, done: int, total: int) -> None:
        if phase == "check" and done == total:
            with source.child("p2.parquet").open_output() as stream:
                pq.write_table(table().slice(0, 10), stream)

    with pytest.raises(ReleaseError, match=r"p2\.parquet changed"):
        release(source, bucket.child("out"), spec(), ledger, progress=replace)
    assert names(bucket) == [f"in/p{i}.parquet" for i in range(FILES)]
