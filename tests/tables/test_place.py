# SPDX-License-Identifier: Apache-2.0
"""Places in several file systems, and files that are published all together: after a kill at any
step, the same call finishes."""

import datetime
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from labeldp.errors import InvalidInput, ReleaseError
from labeldp.tables import _place as places
from labeldp.tables._place import Part, Place, Staging, unfinished

RUN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(params=["local", "subtree", "mock", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty folder in each kind of file system; "memory" stands for all that cannot rename a
    folder."""
    if request.param == "local":
        yield Place.of(tmp_path)
    elif request.param == "subtree":
        yield Place.of((pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "below"))
    elif request.param == "mock":
        yield Place.of((pafs._MockFileSystem(current_time=datetime.datetime(2020, 1, 1)), "root"))
    else:
        memory = pytest.importorskip("fsspec").filesystem("memory")
        yield Place.of((memory, f"/{tmp_path.name}"))
        memory.store.clear()


def write(staging: Staging, text: str) -> Part:
    file = staging.new_file()
    with file.open_output() as stream:
        stream.write(text.encode())
    return Part(file.name, 1, len(text), hashlib.sha256(text.encode()).hexdigest())


def state(root: Place) -> dict[str, str]:
    return {"/".join(file.below(root)): file.read_bytes().decode() for file in root.files()}


DONE = {
    "out/part-00000.parquet": "one",
    "out/part-00001.parquet": "two",
    "out.manifest.json": "facts",
}


def test_parts_get_their_names_in_order_and_nothing_else_stays(root: Place) -> None:
    staging = Staging(root.child("out"), RUN)
    staging.prepare()
    two, lost, one = (write(staging, text) for text in ("two", "lost attempt", "one"))
    assert not any(name.startswith("out/part") for name in state(root))
    assert staging.publish([one, two], b"facts") == ("part-00000.parquet", "part-00001.parquet")
    assert state(root) == DONE
    assert lost.name not in str(state(root))
    assert not staging.folder.exists()
    assert staging.publish([one, two], b"facts")  # finished already
    assert state(root) == DONE


class _Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("single", [False, True])
def test_a_publication_killed_at_any_step_is_finished_by_the_same_call(
    root: Place, single: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = {"out": "one", "out.manifest.json": "facts"} if single else DONE
    for step in range(100):
        for file in root.files():
            file.delete()
        root.child("out").delete()
        staging = Staging(root.child("out"), RUN, single=single)
        staging.prepare()
        parts = [write(staging, text) for text in (["one"] if single else ["one", "two"])]
        write(staging, "lost")
        with monkeypatch.context() as patch:
            if not _dies_at(patch, step, lambda s=staging, p=parts: s.publish(p, b"facts")):
                break
        whole = state(root).items() >= done.items()
        assert whole or not root.child("out.manifest.json").exists()
        assert (
            whole
            or not any(name.startswith("out") for name in state(root))
            or unfinished(root.child("out"))
        ), step
        staging.publish(parts, b"facts")
        assert state(root) == done, step
        assert not staging.folder.exists() and not unfinished(root.child("out"))
    assert step >= 4


def _dies_at(patch: pytest.MonkeyPatch, step: int, act: Any) -> bool:
    """Run, and raise before the change number `step` to the file system; False if there were
    fewer."""
    left = [step]

    def dying(original: Any) -> Any:
        def change(*args: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise _Killed
            return original(*args, **named)

        return change

    for name in ("move", "delete", "write_bytes", "make_folder"):
        patch.setattr(Place, name, dying(getattr(Place, name)))
    try:
        act()
    except _Killed:
        return True
    return False


@pytest.mark.parametrize("other", ["somebody's", "two"])
@pytest.mark.parametrize("single", [False, True])
def test_what_somebody_put_there_after_a_kill_is_not_overwritten(
    root: Place, single: bool, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is as long as the file of the release."""
    staging = Staging(root.child("out"), RUN, single=single)
    staging.prepare()
    parts = [write(staging, "one")]
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "_move_to_final_name", lambda *_: (_ for _ in ()).throw(_Killed()))
        with pytest.raises(_Killed):
            staging.publish(parts, b"facts")
    assert staging.started
    target = root.child("out") if single else root.child("out", "part-00000.parquet")
    target.write_bytes(other.encode())
    with pytest.raises(ReleaseError, match="another name"):
        staging.publish(parts, b"facts")
    assert target.read_bytes() == other.encode()
    target.delete()
    staging.publish(parts, b"facts")
    assert target.read_bytes() == b"one" and not staging.folder.exists()


def test_files_of_an_earlier_attempt_with_other_bytes_are_known_as_ours(
    root: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice killed: each time after its list of files was written, the second time before anything
    was moved."""
    staging = Staging(root.child("out"), RUN)
    settle = Staging._move_to_final_name
    moved = []

    def dying(self: Staging, part: Part, target: Place) -> None:
        if moved:
            raise _Killed
        settle(self, part, target)
        moved.append(part.name)

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "_move_to_final_name", dying)
        for texts in (["one", "two"], ["eins", "zwei"]):
            staging.prepare()
            with pytest.raises(_Killed):
                staging.publish([write(staging, text) for text in texts], b"facts")
    assert state(root)["out/part-00000.parquet"] == "one"
    staging.prepare()
    staging.publish([write(staging, "one"), write(staging, "two")], b"facts")
    assert state(root) == DONE


def test_a_part_that_is_lost_or_changed_is_not_published(root: Place) -> None:
    staging = Staging(root.child("out"), RUN)
    staging.prepare()
    good, bad = write(staging, "one"), write(staging, "two")
    with staging.folder.child(bad.name).open_output() as stream:
        stream.write(b"cut short"[:1])
    with pytest.raises(ReleaseError, match="as it was written"):
        staging.publish([good, bad], b"facts")
    assert not root.child("out.manifest.json").exists()


def test_credentials_are_not_shown() -> None:
    store = pafs.S3FileSystem(
        access_key="AKIA-key",
        secret_key="secret-value",
        region="us-east-1",
        endpoint_override="localhost:1",
    )
    place = Place.of((store, "bucket/table"))
    assert repr(place) == "Place('s3://bucket/table')"
    with pytest.raises(InvalidInput) as error:
        Place.of(
            "s3://AKIA-key:secret-value@bucket/x?region=&endpoint_override=localhost:1&nonsense=1"
        )
    assert "secret-value" not in str(error.value) and error.value.__suppress_context__
    with pytest.raises(InvalidInput, match="bucket"):
        Staging(Place.of((store, "bucket")), RUN)


def test_a_late_attempt_does_not_come_into_the_published_folder(tmp_path, monkeypatch):
    """A speculative copy that writes while the driver publishes leaves nothing in the output."""
    staging = Staging(Place.of(tmp_path / "out"), "a" * 32)
    staging.prepare()
    made = staging.new_file()
    made.write_bytes(b"rows")
    part = Part(made.name, 1, 4, hashlib.sha256(b"rows").hexdigest())
    write = Staging.write_manifest

    def late(self, data):
        write(self, data)
        self.new_file().write_bytes(b"the same rows again")

    monkeypatch.setattr(Staging, "write_manifest", late)
    staging.publish([part], b"{}")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["part-00000.parquet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.manifest.json"]


def test_a_late_attempt_does_not_stop_a_publication(tmp_path, monkeypatch):
    """A speculative copy that writes while staging is deleted: the release is whole, and the next
    one there deletes the rest."""
    staging = Staging(Place.of(tmp_path / "out"), "a" * 32)
    staging.prepare()
    made = staging.new_file()
    made.write_bytes(b"rows")
    part = Part(made.name, 1, 4, hashlib.sha256(b"rows").hexdigest())
    clear = places._clear

    def late(folder, *given, **named):
        clear(folder, *given, **named)
        staging.new_file().write_bytes(b"the same rows again")

    monkeypatch.setattr(places, "_clear", late)
    staging.publish([part], b"{}")
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        staging.folder.name,
        "out",
        "out.manifest.json",
    ]
    with places.workplace(tmp_path / "out"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.manifest.json"]
