# SPDX-License-Identifier: Apache-2.0
"""Where files are, on this machine or in a store, and how a release's files get there: the files first, the manifest last.

A `Place` is a path in any file system. `Staging` is the private folder of a run's files until they are published. `workplace` lets one
process of a POSIX machine at a time work on a local output.
"""

import hashlib
import importlib
import itertools
import json
import os
import platform
import queue
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from labeldp._files import clear_own, own_folder, private_file, private_opener, publish_file, replace_file, sync
from labeldp._hash import digest
from labeldp.errors import InvalidInput, ReleaseError

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_CAN_RENAME = ("local", "hdfs", "mock")  # a folder gets another name in one step; all others are taken for object stores
SCHEMES = {"gcs": "gs", "abfs": "abfs", "s3": "s3", "hdfs": "hdfs"}
CHUNK = 1 << 20
JOURNAL = "_publishing.json"
TEMPORARY = "_manifest.json"
"""Name in staging of a manifest, or of a new journal, until it is whole and gets its own."""
STAGING_PREFIX = "_labeldp_staging_"
LOCK = "lock"
BUCKET = r"bucket-\d{3}\.arrow"
"""What the files of a shuffle are called, as a pattern."""
_OURS = re.compile(rf"attempt-[0-9a-f]{{32}}[.\w]*|part-\d{{5,}}[.\w]*|{TEMPORARY}")
_AND_JOURNAL = re.compile(f"{_OURS.pattern}|{JOURNAL}")
_COUNTER = itertools.count()


@dataclass(frozen=True, repr=False)
class Place:
    """A file or folder, there or not, in a pyarrow file system. Pickles where the file system does.

    Attributes
    ----------
    filesystem : pyarrow.fs.FileSystem
    path : str
        Inside the file system, with "/" between its parts; absolute if local.
    """

    filesystem: pafs.FileSystem
    path: str

    @classmethod
    def of(cls, where: Any) -> "Place":
        """The place of a path, a URI ("s3://bucket/key", "file:///...") or a pair (pyarrow or fsspec file system, path).

        Raises
        ------
        InvalidInput
            No known file system, or not one that can be reached. The message leaves out what a URI may hold of credentials.
        """
        if isinstance(where, Place):
            return where
        if isinstance(where, tuple):
            filesystem, path = where
            return cls._inside(_filesystem(filesystem), str(path))
        text = os.fspath(where)
        if not URI.match(text):
            return cls(pafs.LocalFileSystem(), Path(text).absolute().as_posix())
        return cls._inside(*_from_uri(text))

    @classmethod
    def _inside(cls, filesystem: pafs.FileSystem, path: str) -> "Place":
        # One file has one name: a sub-tree is unwrapped, else two places of one file would not be equal, and the input could be
        # overwritten.
        while isinstance(filesystem, pafs.SubTreeFileSystem):
            filesystem, path = filesystem.base_fs, f"{filesystem.base_path.rstrip('/')}/{path.strip('/')}"
        if isinstance(filesystem, pafs.LocalFileSystem):
            path = Path(path).absolute().as_posix()
        return cls(filesystem, path.rstrip("/") or "/")

    def __str__(self) -> str:
        kind = self.filesystem.type_name
        if kind == "local":
            return self.path
        return f"{SCHEMES.get(kind, kind.removeprefix('py::fsspec+'))}://{self.path.lstrip('/')}"

    def __repr__(self) -> str:
        return f"Place({str(self)!r})"  # never the file system's options, which may hold credentials

    def __hash__(self) -> int:
        return hash((self.filesystem.type_name, self.path))

    # Names ------------------------------------------------------------------------------------------------------------------------

    @cached_property
    def local(self) -> Path | None:
        """The path on this machine's own file system, or None."""
        return Path(self.path) if self.filesystem.type_name == "local" else None

    @cached_property
    def can_rename(self) -> bool:
        """True if a whole folder can be given another name in one step."""
        return self.filesystem.type_name in _CAN_RENAME

    @cached_property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.path).name

    @cached_property
    def stem(self) -> str:
        """The name without its ending."""
        return PurePosixPath(self.path).stem

    @cached_property
    def suffix(self) -> str:
        """The name's ending, with its dot."""
        return PurePosixPath(self.path).suffix

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The parts of the path."""
        return PurePosixPath(self.path).parts

    @cached_property
    def parent(self) -> "Place":
        """The folder that it is in."""
        parent = str(PurePosixPath(self.path).parent)
        return Place(self.filesystem, "" if parent == "." else parent)

    def child(self, *names: str) -> "Place":
        """Something below this folder."""
        return Place(self.filesystem, "/".join([self.path.rstrip("/"), *names]) if self.path else "/".join(names))

    def beside(self, name: str) -> "Place":
        """Something in the same folder."""
        return self.parent.child(name)

    # What is there ----------------------------------------------------------------------------------------------------------------

    @property
    def info(self) -> pafs.FileInfo:
        """Type and size."""
        return self.filesystem.get_file_info(self.path)

    def exists(self) -> bool:
        """True for a file or a folder."""
        return bool(self.info.type != pafs.FileType.NotFound)

    def is_file(self) -> bool:
        """True for a file."""
        return bool(self.info.is_file)

    def is_folder(self) -> bool:
        """True for a folder; in an object store, where something has this prefix."""
        return bool(self.info.type == pafs.FileType.Directory)

    @property
    def size(self) -> int:
        """Bytes of a file; -1 if it is not there."""
        info = self.info
        return int(info.size) if info.is_file else -1

    @property
    def stamp(self) -> tuple[int, int]:
        """Size and time of the last change (0 where none is kept): they stay the same as long as nobody writes to the file."""
        info = self.info
        if not info.is_file:
            raise FileNotFoundError(self.path)
        return int(info.size), int(info.mtime_ns or 0)

    def files(self) -> list["Place"]:
        """All files below this folder, sorted by path; none if it is not there."""
        selector = pafs.FileSelector(self.path, recursive=True, allow_not_found=True)
        paths = sorted(info.path for info in self.filesystem.get_file_info(selector) if info.is_file)
        return [Place(self.filesystem, path) for path in paths]

    def names(self) -> list[str]:
        """Names of what is in this folder, or under this prefix; none if it is not there or is closed to the caller."""
        try:
            found = self.filesystem.get_file_info(pafs.FileSelector(self.path or ".", allow_not_found=True))
        except OSError:
            return []
        return [info.base_name for info in found]

    def below(self, folder: "Place") -> tuple[str, ...]:
        """The parts of the path below a folder."""
        top = folder.path.strip("/")
        return PurePosixPath(self.path.strip("/")[len(top) :].strip("/")).parts

    # Content ----------------------------------------------------------------------------------------------------------------------

    def open_input(self) -> pa.NativeFile:
        """The file, to read anywhere in it."""
        return self.filesystem.open_input_file(self.path)

    def open_output(self) -> pa.NativeFile:
        """A file to write; folders that it lacks are made where there are such things. A new local one is its owner's alone."""
        if self.can_rename:
            self.parent.make_folder()
        # pyarrow opens by name and with usual rights: the file is made private before anything is written to it.
        if self.local is not None and not self.local.exists():
            private_file(self.local)
        return self.filesystem.open_output_stream(self.path)

    def read_bytes(self) -> bytes:
        """The whole file."""
        with self.filesystem.open_input_stream(self.path) as stream:
            return bytes(stream.read())

    def write_bytes(self, data: bytes) -> None:
        """Make or replace the file."""
        with self.open_output() as stream:
            stream.write(data)

    def digest(self) -> str:
        """SHA-256 of the file, hexadecimal."""
        state = hashlib.sha256()
        with self.filesystem.open_input_stream(self.path) as stream:
            while chunk := stream.read(CHUNK):
                state.update(chunk)
        return state.hexdigest()

    # Changes ----------------------------------------------------------------------------------------------------------------------

    def make_folder(self, *, private: bool = False) -> bool:
        """Make the folder and those above it; no effect in an object store, where prefixes need none.

        With `private`, a local one is the caller's own, closed to others, or an error (`own_folder`). False if such a one was there.
        """
        if self.local is not None and private:
            self.local.parent.mkdir(parents=True, exist_ok=True)
            return own_folder(self.local)
        if self.local is not None:
            self.local.mkdir(parents=True, exist_ok=True)
        elif self.can_rename:
            self.filesystem.create_dir(self.path)
        return True

    def move(self, target: "Place") -> None:
        """Rename a file in the same file system and replace what has that name; a local one is on disk first, with usual rights."""
        if self.local is not None and target.local is not None:
            publish_file(self.local, target.local)
        elif self.can_rename:
            self.filesystem.move(self.path, target.path)
        else:
            # A store has no rename: the copy appears whole under its name, and the original goes only after the sizes agree.
            self.filesystem.copy_file(self.path, target.path)
            if target.size != self.size:
                raise ReleaseError(f"Expected a whole copy, got another size at {target}. Run the same command again.")
            self.delete()

    def delete(self) -> None:
        """Delete a file, or a folder with all that is in it, or a link itself; no effect if it is not there."""
        # The link goes, never what it leads to.
        if self.local is not None and self.local.is_symlink():
            self.local.unlink()
            return
        kind = self.info.type
        if kind == pafs.FileType.Directory:
            self.filesystem.delete_dir(self.path)
        elif kind == pafs.FileType.File:
            self.filesystem.delete_file(self.path)


def _filesystem(given: Any) -> pafs.FileSystem:
    """A pyarrow file system, or an fsspec one behind pyarrow's interface."""
    if isinstance(given, pafs.FileSystem):
        return given
    if not hasattr(given, "protocol"):
        raise InvalidInput(f"Expected a pyarrow or fsspec file system, got {type(given).__name__}. Give (file system, path).")
    protocols = (given.protocol,) if isinstance(given.protocol, str) else tuple(given.protocol)
    return pafs.LocalFileSystem() if "file" in protocols else pafs.PyFileSystem(pafs.FSSpecHandler(given))


def _from_uri(uri: str) -> tuple[pafs.FileSystem, str]:
    scheme = uri.split("://", 1)[0].lower()
    try:
        filesystem, path = pafs.FileSystem.from_uri(uri)
        return filesystem, path
    except pa.ArrowInvalid:
        pass  # a scheme that only fsspec may know
    except OSError as error:
        raise InvalidInput(
            f"Expected a {scheme}:// address that can be reached, got {type(error).__name__}. Check the address, region, and credentials."
        ) from None
    try:
        found, path = importlib.import_module("fsspec.core").url_to_fs(uri)
    except (ImportError, ValueError, OSError):
        raise InvalidInput(
            f"Expected a path or an address that pyarrow or fsspec knows, got one that starts with {scheme}://. "
            "Install the fsspec package for it, or give (file system, path)."
        ) from None
    return _filesystem(found), path


def unused_name() -> str:
    """Return a name that no other process, thread or machine makes up; not a secret."""
    # Workers on several machines and attempts of one task write into one folder: the name must not come twice, but it hides nothing.
    facts = (platform.node(), os.getpid(), threading.get_ident(), time.time_ns(), next(_COUNTER))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


@contextmanager
def reading(place: Place) -> Iterator[None]:
    """Turn errors of the file system into ones that name the file."""
    try:
        yield
    except FileNotFoundError:
        raise ReleaseError(f"Expected an existing file, got {place}. Check the path.") from None
    except OSError as error:
        raise ReleaseError(f"Expected a file that can be read, got {place} ({error.strerror or type(error).__name__}).") from None


class HashedFile:
    """Writes a new binary file in a thread of its own; its SHA-256 is known when it is closed, and a local one is on disk by then."""

    def __init__(self, path: Path | Place):
        place = Place.of(path)
        self._local = place.local is not None
        self._file: Any = place.open_output() if place.local is None else open(place.local, "xb", opener=private_opener)  # noqa: SIM115 (closed by its owner)
        self._state = hashlib.sha256()
        self._waiting: queue.Queue[bytes | None] = queue.Queue(16)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._abandoned = False
        self.size = 0

    def write(self, data: bytes | memoryview) -> int:
        """Append; what is not immutable is copied, since its owner may use the memory again. Raises what an earlier write met."""
        # A format's writer may write once more while it is closed after an error; nobody wants that any more.
        if self._abandoned:
            return len(data)
        if self._error is not None:
            raise self._error
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        # Bytes do not change; the buffer of a writer is used again as soon as this returns.
        self._waiting.put(data if isinstance(data, bytes) else bytes(data))
        self.size += len(data)
        return len(data)

    def _work(self) -> None:
        while (data := self._waiting.get()) is not None:
            if self._error is not None:
                continue  # emptied, so that whoever writes does not wait for ever
            try:
                self._file.write(data)
            except Exception as error:
                self._error = error
            self._state.update(data)

    def _join(self) -> None:
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def finish(self) -> str:
        """Flush to disk, close, and return the digest."""
        self._join()
        if self._error is not None:
            raise self._error
        # The manifest may be written only after the file is on disk.
        if self._local:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()
        return self._state.hexdigest()

    @property
    def closed(self) -> bool:
        """For pyarrow."""
        return bool(self._file.closed)

    def flush(self) -> None:
        """For pyarrow; `finish` flushes."""

    def close(self) -> None:
        """For pyarrow, which must not close it before `finish`."""

    def abandon(self) -> None:
        """Close without waiting for the disk; what a writer still holds back is taken and forgotten."""
        self._join()
        self._abandoned = True
        self._file.close()


# A run's private folder, and publishing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A finished file in staging, as whoever wrote it says.

    Attributes
    ----------
    name : str
        In staging.
    rows, size : int
    sha256 : str
        Hexadecimal.
    drawn : str
        Digest of what was drawn for its rows; "" where that is not known.
    """

    name: str
    rows: int
    size: int
    sha256: str
    drawn: str = ""


@dataclass(frozen=True)
class Staging:
    """The private folder of one run's files, until they are published or given up.

    It stands beside the output, hidden; in an object store, which has no folders, below it. Files are moved out of it one by one, and
    the manifest, written last, is what makes the release complete. It is a frozen value that pickles, so that the workers of a cluster
    can write to it.

    Parameters
    ----------
    out : Place
        The released folder; with `single`, the released file.
    run_id : str
        Of the charge.
    single : bool
    occupied : bool
        The output's name held something when this attempt began.
    """

    out: Place
    run_id: str
    single: bool = False
    occupied: bool = False

    def __post_init__(self) -> None:
        # Staging and manifest stand beside the output, so it cannot be a whole bucket.
        if "/" not in self.out.path.strip("/") and self.out.local is None:
            raise InvalidInput(f"Expected an output inside a bucket or folder, got {self.out} itself. Add a name to it.")

    @cached_property
    def folder(self) -> Place:
        """The staging folder."""
        if self.out.can_rename:
            return self.out.beside(f".{self.out.name}.labeldp-{self.run_id[:8]}")
        # A store lists by prefix: files of a folder are staged below it, where readers that know the underscore pass them over.
        name = f"{STAGING_PREFIX}{self.run_id}"
        return self.out.beside(f"{name}_{self.out.name}") if self.single else self.out.child(name)

    def prepare(self) -> None:
        """Make the staging folder, or delete what a killed attempt left in it. Only the driver calls this, before any worker writes.

        The journal of a killed publication stays, for `publish`.
        """
        # A folder that was made this moment has nothing to clear.
        is_new, local = self.folder.make_folder(private=True), self.folder.local
        if local is None:
            for file in self.folder.files():
                if file.name != JOURNAL:
                    file.delete()
        elif not is_new:
            _clear(local, _OURS, kept=JOURNAL)

    @property
    def begun(self) -> bool:
        """True if a publication of this very run was killed: some of the parts may be under their final names."""
        return self.folder.child(JOURNAL).exists()

    @property
    def suffix(self) -> str:
        """Ending of the files."""
        return self.out.suffix if self.single else ".parquet"

    def new_file(self, suffix: str = ".parquet") -> Place:
        """A name for one attempt's file, like no other."""
        return self.folder.child(f"attempt-{unused_name()}{suffix}")

    def names(self, parts: Sequence[Part]) -> tuple[str, ...]:
        """The final names of parts, in this order."""
        return (self.out.name,) if self.single else tuple(part_name(i, _suffix(part.name)) for i, part in enumerate(parts))

    def publish(self, parts: Sequence[Part], manifest: bytes, *, replace: bool = False) -> tuple[str, ...]:
        """Give the parts, in this order, their final names, then write the manifest, and delete everything else in staging.

        After a crash the same call finishes what was begun. Until the manifest is there, `unfinished` tells readers.

        Parameters
        ----------
        parts : sequence of Part
            The committed attempts; files of other attempts are deleted.
        manifest : bytes
        replace : bool
            What lies under the output's name is an earlier state of this very run, and may go.

        Returns
        -------
        The final names, part-00000.parquet and so on; of a single file, its name.

        Raises
        ------
        ReleaseError
            A part is missing or is not what was written, or the output's name holds something else.
        """
        names = self.names(parts)
        if self.single and len(parts) != 1:
            raise ReleaseError(f"Expected one file for {self.out.name}, got {len(parts)}.")
        # Earlier attempts of this run may have moved files to the final names, with other bytes if rows were batched otherwise: the
        # journal lists the digests of them all. A file with any other digest is somebody's, whatever its name and size.
        known, there = self._journal(), self._there()
        for name, part in zip(names, parts, strict=True):
            known[name] = [*known.get(name, []), part.sha256]
        if not replace and not all(file.digest() in known.get(name, ()) for name, file in there.items()):
            raise name_taken_error(self.out)
        if self.folder.files():  # else all was published before
            self._write_journal(known)
        if not self.single:
            # The folder's own entry must be on disk before the files in it are called published.
            self.out.make_folder()
            if self.out.local is not None:
                sync(self.out.local.parent)
        for part, name in zip(parts, names, strict=True):
            self._move_to_final_name(part, self.out if self.single else self.out.child(name))
        # Fewer files than an earlier attempt had: its last ones would be read as rows of this release.
        for name in there.keys() - set(names):
            there[name].delete()
        # Last of all: a table with a manifest is whole.
        self.write_manifest(manifest)
        self._delete_folder()
        return names

    def _write_journal(self, known: dict[str, list[str]]) -> None:
        """Write down the SHA-256 of every file that this run's attempts gave each name, or will give: whole or not at all, in private."""
        journal, data = self.folder.child(JOURNAL), json.dumps(known).encode()
        if journal.local is not None:
            # Before the first move, so that whoever finds a file under its name can tell that it is ours.
            replace_file(journal.local.with_name(TEMPORARY), journal.local, data)
            return
        if self.single and not self.out.can_rename:
            # First the marker, then the journal, then the object: a reader between any two of them is warned.
            _marker(self.out).write_bytes(b"")
        self._write_whole(journal, data)

    def _journal(self) -> dict[str, list[str]]:
        """Read the journal of this run, if a publication of it was killed; empty otherwise."""
        journal = self.folder.child(JOURNAL)
        said: dict[str, list[str]] = json.loads(journal.read_bytes()) if journal.exists() else {}
        return said

    def _there(self) -> dict[str, Place]:
        """The files under the output's name, by their names there."""
        if self.single:
            return {self.out.name: self.out} if self.out.exists() else {}
        found = {"/".join(file.below(self.out)): file for file in self.out.files()}
        return {name: file for name, file in found.items() if not name.startswith(STAGING_PREFIX)}

    def _move_to_final_name(self, part: Part, target: Place) -> None:
        """Move a part from staging to its final name, where it may stand already since a crash."""
        staged = self.folder.child(part.name)
        # No file there: an earlier attempt has moved it, and it is told by its bytes.
        size = staged.size
        if size == part.size:
            staged.move(target)
        elif size >= 0 or target.size != part.size or target.digest() != part.sha256:
            raise ReleaseError(
                f"Expected the file {part.name} in {self.folder} as it was written, got none or another one. Run the same command again."
            )

    def write_manifest(self, data: bytes) -> None:
        """Write the manifest, which appears whole or not at all."""
        self._write_whole(manifest_place(self.out), data)

    def _write_whole(self, target: Place, data: bytes) -> None:
        if not self.out.can_rename:  # an object appears when it is complete
            target.write_bytes(data)
            return
        self.folder.make_folder(private=True)
        temporary = self.folder.child(TEMPORARY)
        if temporary.local is not None and target.local is not None:
            replace_file(temporary.local, target.local, data, public=True)
            return
        temporary.write_bytes(data)
        temporary.move(target)

    def delete(self) -> None:
        """Delete staging with all that is in it, the journal too."""
        self._delete_folder()
        if not self.out.can_rename and not self.single and self.out.is_folder() and not self.out.files():
            self.out.delete()  # an object store's marker of an empty folder

    def _delete_folder(self) -> None:
        if self.single and not self.out.can_rename:
            # The marker goes before the journal: killed in between, the next attempt still finds the journal and deletes both.
            _marker(self.out).delete()
        delete_folder(self.folder)

    def delete_unless_begun(self) -> None:
        """Delete staging, unless a publication has begun: the same run finishes that one, and the journal says which files are its own."""
        if not self.begun:
            self.delete()


def delete_folder(folder: Place) -> None:
    """Delete a private folder, with all that is ours in it; no effect if it is not there.

    Raises
    ------
    ReleaseError
        A local one is a link, or somebody else's, or holds what labeldp did not make: that is never deleted.
    """
    local = folder.local
    if local is None:
        folder.delete()
    elif local.exists() or local.is_symlink():
        # Checked again before anything is deleted: somebody may have put a link in its place meanwhile.
        own_folder(local)
        _clear(local, _AND_JOURNAL)
        local.rmdir()


def _clear(folder: Path, ours: re.Pattern[str], *, kept: str = "") -> None:
    """Delete what labeldp made in a private folder; refuse files of anybody else's, but for one of the name `kept`, which stays."""
    strangers = [path for path in clear_own(folder, ours) if path.name != kept]
    if strangers:
        raise ReleaseError(
            f"Expected only files that labeldp makes in {folder}, got {strangers[0].name}. Nothing else is deleted there: move it away."
        )


def unfinished(out: Place) -> bool:
    """Tell whether a release of this name was killed, or goes on, while files and manifest get their final names; anybody can see that."""
    if out.can_rename:
        return any(map(re.compile(rf"\.{re.escape(out.name)}\.labeldp-[0-9a-f]{{8}}").fullmatch, out.parent.names()))
    if any(map(re.compile(rf"{STAGING_PREFIX}[0-9a-f]{{32}}").fullmatch, out.names())):
        return True
    with suppress(OSError):  # closed to the caller
        return _marker(out).exists()
    return False


def _marker(out: Place) -> Place:
    """The empty object beside a single object in a store while that gets its name; a reader asks for this one name and lists nothing."""
    return out.beside(f"_labeldp_publishing_{out.name}")


def name_taken_error(out: Place) -> ReleaseError:
    """The error for an output whose name holds something else."""
    return ReleaseError(f"Expected a new name for the output, got {out}, which holds something else. Remove it, or choose another name.")


def manifest_place(out: Place) -> Place:
    """Return the place of an output's manifest, beside it: OUT.manifest.json."""
    return out.beside(manifest_name(out.name))


def manifest_path(out: Path) -> Path:
    """Return the path of an output's manifest, as `manifest_place` does."""
    return out.with_name(manifest_name(out.name))


def part_name(number: int, suffix: str = ".parquet") -> str:
    """Name a file of a released folder: part-00000.parquet."""
    return f"part-{number:05d}{suffix}"


def manifest_name(name: str) -> str:
    """Name the manifest of an output of this name: NAME.manifest.json."""
    return f"{name}.manifest.json"


def release_digest(files: list[str], *, single: bool) -> str:
    """Digest a release: the SHA-256 of its file, or of the list of its files' digests in their order; hexadecimal."""
    return files[0] if single else digest({"format": "parts/1", "files": files})


def _suffix(name: str) -> str:
    return "".join(re.findall(r"\.\w+$", name)) or ".parquet"


# One process at a time --------------------------------------------------------------------------------------------------------------------


class _Busy(Exception):
    """Another process holds the lock."""


@contextmanager
def workplace(out: Path, *names: str) -> Iterator[Path]:
    """A private folder beside `out`, on the same file system, that is gone afterwards.

    What a killed process left there is deleted. On one POSIX machine two processes never work on one output at once; other systems have
    no such lock, and neither is one promised between machines.

    Parameters
    ----------
    out : Path
    names : str
        What the caller makes in it, besides a file of the output's own name: nothing else is ever deleted.

    Raises
    ------
    ReleaseError
        The output's folder is missing or cannot be written, another process works there, or what has the private folder's name is not one
        that this user's labeldp made.
    """
    # On the same file system as the output, so that a rename is one step.
    folder = out.parent / f".{out.name}.labeldp"
    ours = re.compile("|".join([LOCK, BUCKET, *map(re.escape, (out.name, *names))]))
    try:
        own_folder(folder)
        # A link in the place of the lock would make us create a file elsewhere.
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except OSError as error:
        raise ReleaseError(
            f"Expected a folder to write {out.name} to, got {out.parent} ({error.strerror}). Create it, or mend its permissions."
        ) from None
    try:
        _lock(lock, folder)
        _clear_stale(folder, ours, out)
        yield folder
    except _Busy:
        raise ReleaseError(f"Expected no other process to work on {out}, got one that does. Wait until it ends.") from None
    except BaseException:
        _delete_workplace(folder, ours)
        raise
    else:
        _delete_workplace(folder, ours)
    finally:
        os.close(lock)


def _clear_stale(folder: Path, ours: re.Pattern[str], out: Path) -> None:
    """Delete what killed runs have left: here, and in their staging folders."""
    # The lock that this process holds stays.
    _clear(folder, re.compile(f"(?!{LOCK}$)(?:{ours.pattern})"), kept=LOCK)
    for left in sorted(out.parent.iterdir()):
        if re.fullmatch(rf"{re.escape(folder.name)}-[0-9a-f]{{8}}", left.name):
            with suppress(OSError, ReleaseError):  # of another user, or no folder: it stays
                # An output that is there may be half published: its journal is then needed by the run that comes back.
                stale = Staging(Place.of(out), left.name[-8:], single=True)
                stale.delete_unless_begun() if out.exists() else stale.delete()


def _delete_workplace(folder: Path, ours: re.Pattern[str]) -> None:
    """Delete the folder with what is ours in it; with anything else in it, or an error of the disk, it stays."""
    with suppress(OSError):
        if not clear_own(folder, ours):
            folder.rmdir()


def _lock(lock: int, folder: Path) -> None:
    """Take the lock, or raise `_Busy`; no effect where the system has no `flock`."""
    if os.name != "posix":
        return
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        here = os.path.samestat(os.fstat(lock), os.stat(folder / LOCK))  # and not one whose folder is gone by now
    except (BlockingIOError, FileNotFoundError):
        raise _Busy from None
    if not here:
        raise _Busy


@contextmanager
def scratch(out: Place) -> Iterator[Path]:
    """`workplace` of a local output. Of any other one a private folder for temporary files, without a lock; a file is written there first.

    Raises
    ------
    ReleaseError
        Nothing can be written there, or another process works there.
    """
    if out.local is not None:
        with workplace(out.local) as folder:
            yield folder
        return
    # Tried before the first pass: a release that cannot be written should not be charged.
    probe = out.beside(f"_labeldp_probe_{unused_name()}")
    try:
        probe.write_bytes(b"")
        probe.delete()
    except OSError as error:
        raise ReleaseError(
            f"Expected a place to write {out} to, got an error ({type(error).__name__}). Check that it exists, and your rights."
        ) from None
    with tempfile.TemporaryDirectory(prefix="labeldp-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
