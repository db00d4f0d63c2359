# SPDX-License-Identifier: Apache-2.0
"""Places of files, on this machine or in a store, and the publication of a release: the files
first, the manifest last.

A `Place` is a path in any file system. `Staging` is the private folder of a run's files until they
are published. `workplace` locks a local output, so that one process of a POSIX machine at a time
works on it.
"""

import hashlib
import importlib
import itertools
import json
import os
import platform
import re
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from labeldp._files import (
    clear_own,
    give_usual_rights,
    own_folder,
    path_text,
    private_file,
    sync,
)
from labeldp._hash import digest
from labeldp.errors import InvalidInput, ReleaseError

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# file systems that rename a folder in one step; all others are treated as object stores
_CAN_RENAME = ("local", "hdfs", "mock")
SCHEMES = {"gcs": "gs", "abfs": "abfs", "s3": "s3", "hdfs": "hdfs"}
CHUNK = 1 << 20
WRITES = 16  # waiting for the thread of a file
JOURNAL = "_publishing.json"
TEMPORARY = "_manifest.json"
"""The temporary name in staging of a manifest, or a journal, that is being written."""
STAGING_PREFIX = "_labeldp_staging_"
LOCK = "lock"
BUCKET = r"bucket-\d{3}\.arrow"
"""The pattern of names of a shuffle's files."""
_OURS = re.compile(rf"attempt-[0-9a-f]{{32}}[.\w]*|part-\d{{5,}}[.\w]*|{TEMPORARY}")
_AND_JOURNAL = re.compile(f"{_OURS.pattern}|{JOURNAL}")
_COUNTER = itertools.count()


@dataclass(frozen=True, repr=False)
class Place:
    """The path of a file or folder, which may not exist, in a pyarrow file system. It can be
    pickled if the file system can.

    Attributes
    ----------
    filesystem : pyarrow.fs.FileSystem
    path : str
        Path in the file system, with "/" between its parts; absolute if local.
    """

    filesystem: pafs.FileSystem
    path: str

    @classmethod
    def of(cls, where: Any) -> "Place":
        """Convert a path, a URI ("s3://bucket/key", "file:///...") or a pair (pyarrow or fsspec
        file system, path) to a place.

        Raises
        ------
        InvalidInput
            The file system is unknown or cannot be reached. The message does not show the URI,
            which may hold credentials.
        """
        if isinstance(where, Place):
            return where
        if isinstance(where, tuple):
            filesystem, path = where
            return cls._inside(_filesystem(filesystem), str(path))
        text = path_text(where, URI)
        if not URI.match(text):
            return cls(pafs.LocalFileSystem(), Path(text).absolute().as_posix())
        return cls._inside(*_from_uri(text))

    @classmethod
    def _inside(cls, filesystem: pafs.FileSystem, path: str) -> "Place":
        # Sub-trees are unwrapped, so that two places of one file are equal: else the check that an
        # output is not the input would fail.
        while isinstance(filesystem, pafs.SubTreeFileSystem):
            filesystem, path = (
                filesystem.base_fs,
                f"{filesystem.base_path.rstrip('/')}/{path.strip('/')}",
            )
        if isinstance(filesystem, pafs.LocalFileSystem):
            path = Path(path).absolute().as_posix()
        return cls(filesystem, path.rstrip("/") or "/")

    def __str__(self) -> str:
        kind = self.filesystem.type_name
        if kind == "local":
            return self.path
        address = f"{SCHEMES.get(kind, kind.removeprefix('py::fsspec+'))}://{self.path.lstrip('/')}"
        return re.sub(r"://[^/@]*@", "://", address)  # fsspec keeps a password in paths of the web

    def __repr__(self) -> str:
        # never the file system's options, which may hold credentials
        return f"Place({str(self)!r})"

    def __hash__(self) -> int:
        return hash((self.filesystem.type_name, self.path))

    # Names
    # ----------------------------------------------------------------------------------------------

    @cached_property
    def local(self) -> Path | None:
        """The path on this machine's own file system; None for another file system."""
        return Path(self.path) if self.filesystem.type_name == "local" else None

    @cached_property
    def can_rename(self) -> bool:
        """True if the file system can rename a folder in one step."""
        return self.filesystem.type_name in _CAN_RENAME

    @cached_property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.path).name

    @cached_property
    def suffix(self) -> str:
        """The suffix of the name, with its dot."""
        return PurePosixPath(self.path).suffix

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The parts of the path."""
        return PurePosixPath(self.path).parts

    @cached_property
    def parent(self) -> "Place":
        """The folder above."""
        parent = str(PurePosixPath(self.path).parent)
        return Place(self.filesystem, "" if parent == "." else parent)

    def child(self, *names: str) -> "Place":
        """Return a place below this folder."""
        return Place(
            self.filesystem,
            "/".join([self.path.rstrip("/"), *names]) if self.path else "/".join(names),
        )

    def beside(self, name: str) -> "Place":
        """Return a place in the same folder."""
        return self.parent.child(name)

    # State
    # ----------------------------------------------------------------------------------------------

    @property
    def info(self) -> pafs.FileInfo:
        """Type and size of the file or folder."""
        return self.filesystem.get_file_info(self.path)

    def exists(self) -> bool:
        """Tell whether a file or folder is there."""
        return bool(self.info.type != pafs.FileType.NotFound)

    def is_file(self) -> bool:
        """Tell whether a file is there."""
        return bool(self.info.is_file)

    def is_folder(self) -> bool:
        """Tell whether a folder is there; in an object store, whether any object has this
        prefix."""
        return bool(self.info.type == pafs.FileType.Directory)

    @property
    def size(self) -> int:
        """The size of the file in bytes; -1 if there is none."""
        info = self.info
        return int(info.size) if info.is_file else -1

    @property
    def stamp(self) -> tuple[int, int]:
        """Size and time of the last change (0 if unknown) of the file, by which a change is
        noticed."""
        info = self.info
        if not info.is_file:
            raise FileNotFoundError(self.path)
        return int(info.size), int(info.mtime_ns or 0)

    def files(self) -> list["Place"]:
        """List all files below this folder, sorted by path; none if there is no such folder."""
        selector = pafs.FileSelector(self.path, recursive=True, allow_not_found=True)
        paths = sorted(
            info.path for info in self.filesystem.get_file_info(selector) if info.is_file
        )
        return [Place(self.filesystem, path) for path in paths]

    def names(self) -> list[str]:
        """List the names in this folder, or under this prefix; none if there is no such folder."""
        selector = pafs.FileSelector(self.path or ".", allow_not_found=True)
        return [info.base_name for info in self.filesystem.get_file_info(selector)]

    def below(self, folder: "Place") -> tuple[str, ...]:
        """Return the parts of the path below a folder."""
        top = folder.path.strip("/")
        return PurePosixPath(self.path.strip("/")[len(top) :].strip("/")).parts

    # Content
    # ----------------------------------------------------------------------------------------------

    def open_input(self) -> pa.NativeFile:
        """Open the file for random reads."""
        return self.filesystem.open_input_file(self.path)

    def open_output(self) -> pa.NativeFile:
        """Open a file for writing, and make missing folders. Only its owner can read a new local
        file."""
        if self.can_rename:
            self.parent.make_folder()
        # pyarrow would create the file with the usual rights, so it is created privately before.
        if self.local is not None and not self.local.exists():
            private_file(self.local)
        return self.filesystem.open_output_stream(self.path)

    def read_bytes(self) -> bytes:
        """Read the whole file."""
        with self.filesystem.open_input_stream(self.path) as stream:
            return bytes(stream.read())

    def write_bytes(self, data: bytes) -> None:
        """Write the file, replacing an existing one."""
        with self.open_output() as stream:
            stream.write(data)

    def digest(self) -> str:
        """Compute the SHA-256 of the file, in hexadecimal."""
        state = hashlib.sha256()
        with self.filesystem.open_input_stream(self.path) as stream:
            while chunk := stream.read(CHUNK):
                state.update(chunk)
        return state.hexdigest()

    # Changes
    # ----------------------------------------------------------------------------------------------

    def make_folder(self, *, private: bool = False) -> None:
        """Make the folder and those above it; no effect in an object store. With `private`, a local
        folder is made or checked by `own_folder`."""
        if self.local is not None and private:
            self.local.parent.mkdir(parents=True, exist_ok=True)
            own_folder(self.local)
        elif self.can_rename:
            self.filesystem.create_dir(self.path)

    def move(self, target: "Place") -> None:
        """Rename a file in its file system, replacing a file of that name; a local file is synced
        before, and gets the usual rights."""
        if self.local is not None and target.local is not None:
            sync(self.local)
            give_usual_rights(self.local)
            os.replace(self.local, target.local)
            sync(target.local.parent)
        elif self.can_rename:
            self.filesystem.move(self.path, target.path)
        else:
            # An object store has no rename. A copy appears only when it is complete; the original
            # is deleted after the sizes agree.
            self.filesystem.copy_file(self.path, target.path)
            if target.size != self.size:
                raise ReleaseError(
                    f"Expected a whole copy, got another size at {target}. Run the same command"
                    " again."
                )
            self.delete()

    def delete(self) -> None:
        """Delete a file, a folder with its content, or a link; no effect if there is none."""
        # Of a link only the link is deleted: its target may be anybody's folder.
        if self.local is not None and self.local.is_symlink():
            self.local.unlink()
            return
        kind = self.info.type
        if kind == pafs.FileType.Directory:
            self.filesystem.delete_dir(self.path)
        elif kind == pafs.FileType.File:
            self.filesystem.delete_file(self.path)


def _filesystem(given: Any) -> pafs.FileSystem:
    """Return a pyarrow file system as it is, or wrap an fsspec one."""
    if isinstance(given, pafs.FileSystem):
        return given
    if not hasattr(given, "protocol"):
        raise InvalidInput(
            f"Expected a pyarrow or fsspec file system, got {type(given).__name__}. Give (file"
            " system, path)."
        )
    protocols = (given.protocol,) if isinstance(given.protocol, str) else tuple(given.protocol)
    return (
        pafs.LocalFileSystem()
        if "file" in protocols
        else pafs.PyFileSystem(pafs.FSSpecHandler(given))
    )


def _from_uri(uri: str) -> tuple[pafs.FileSystem, str]:
    scheme, rest = uri.split("://", 1)
    scheme = scheme.lower()
    uri = f"{scheme}://{rest}"
    try:
        filesystem, path = pafs.FileSystem.from_uri(uri)
        return filesystem, path
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass  # pyarrow does not know the scheme; fsspec may
    except OSError as error:
        raise InvalidInput(
            f"Expected a {scheme}:// address that can be reached, got {type(error).__name__}. Check"
            " the address, region, and credentials."
        ) from None
    try:
        found, path = importlib.import_module("fsspec.core").url_to_fs(uri)
    except (ImportError, ValueError, OSError):
        raise InvalidInput(
            "Expected a path or an address that pyarrow or fsspec knows, got one that starts with"
            f" {scheme}://. Install the fsspec package for it, or give (file system, path)."
        ) from None
    return _filesystem(found), path


def unused_name() -> str:
    """Return a name that no other process, thread or machine uses. It is not secret."""
    # Workers on several machines, and several attempts at one task, write into one folder.
    facts = (platform.node(), os.getpid(), threading.get_ident(), time.time_ns(), next(_COUNTER))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


@contextmanager
def reading(place: Place) -> Iterator[None]:
    """Translate errors of the file system into a ReleaseError that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise ReleaseError(f"Expected an existing file, got {place}. Check the path.") from None
    except OSError as error:
        raise ReleaseError(
            f"Expected a file that can be read, got {place}"
            f" ({error.strerror or type(error).__name__})."
        ) from None


class HashedFile:
    """Writes a new binary file in a thread, and computes its SHA-256. After `finish` a local file
    is on disk."""

    def __init__(self, path: Path | Place):
        place = Place.of(path)
        self._local = place.local is not None
        self._file: Any
        if place.local is None:
            self._file = place.open_output()
        else:  # closed by its owner
            self._file = open(private_file(place.local), "wb")  # noqa: SIM115
        self._state, self._thread = hashlib.sha256(), ThreadPoolExecutor(1)
        self._waiting: deque[Future[None]] = deque()
        self.size = 0

    def write(self, data: bytes | memoryview) -> int:
        """Append data; raise the error of an earlier write."""
        # After an error a format's writer is closed, and may then write once more, in vain.
        if not self.closed:
            # An error stays in the queue, so that `finish` raises it, too.
            if len(self._waiting) == WRITES:
                self._waiting[0].result()
                self._waiting.popleft()
            # Mutable buffers are copied, because a writer reuses them as soon as this returns.
            whole = data if isinstance(data, bytes) else bytes(data)
            self._waiting.append(self._thread.submit(self._append, whole))
            self.size += len(data)
        return len(data)

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self._state.update(data)

    def finish(self) -> str:
        """Flush to disk, close, and return the digest."""
        for each in self._waiting:
            each.result()
        # On disk before the manifest is written, which declares the file complete.
        if self._local:
            self._file.flush()
            os.fsync(self._file.fileno())
        self.abandon()
        return self._state.hexdigest()

    @property
    def closed(self) -> bool:
        """True if the file is closed; pyarrow asks for it."""
        return bool(self._file.closed)

    def flush(self) -> None:
        """Do nothing; pyarrow calls it, and `finish` flushes."""

    def close(self) -> None:
        """Do nothing; pyarrow calls it, but only `finish` may close the file."""

    def abandon(self) -> None:
        """Close the file, and ignore further writes."""
        self._thread.shutdown(cancel_futures=True)
        self._file.close()


# A run's private folder, and publishing
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A finished file in staging, as described by the process that wrote it.

    Attributes
    ----------
    name : str
        Name in staging.
    rows, size : int
        Number of rows and of bytes.
    sha256 : str
        In hexadecimal.
    drawn : str
        Digest of the drawn rows in the file; "" if unknown.
    """

    name: str
    rows: int
    size: int
    sha256: str
    drawn: str = ""


@dataclass(frozen=True)
class Staging:
    """The private folder of one run's files, until they are published or given up.

    It is a hidden folder beside the output, or a prefix below it in an object store. Files are
    moved out of it one by one; then the manifest is written, which makes the release complete. The
    value can be pickled, so that the workers of a cluster write into the folder.

    Parameters
    ----------
    out : Place
        The released folder; with `single`, the released file.
    run_id : str
    single : bool
        True for one file, False (default) for a folder.
    occupied : bool, default=False
        True if the output existed when this attempt started.
    """

    out: Place
    run_id: str
    single: bool = False
    occupied: bool = False

    def __post_init__(self) -> None:
        # Staging and manifest are beside the output, so the output cannot be a whole bucket.
        if "/" not in self.out.path.strip("/") and self.out.local is None:
            raise InvalidInput(
                f"Expected an output inside a bucket or folder, got {self.out} itself. Add a name"
                " to it."
            )

    @cached_property
    def folder(self) -> Place:
        """The staging folder."""
        if self.out.can_rename:
            return self.out.beside(f".{self.out.name}.labeldp-{self.run_id[:8]}")
        # An object store lists by prefix. Files of a folder are staged below it, under a name with
        # an underscore, which readers skip.
        name = f"{STAGING_PREFIX}{self.run_id}"
        return self.out.beside(f"{name}_{self.out.name}") if self.single else self.out.child(name)

    def prepare(self) -> None:
        """Make the staging folder, or delete what a killed attempt left in it, except the journal,
        which `publish` needs.

        Only the driver may call this, before any worker writes.
        """
        self.folder.make_folder(private=True)
        if self.folder.local is None:
            for file in self.folder.files():
                if file.name != JOURNAL:
                    file.delete()
        else:
            _clear(self.folder.local, _OURS, kept=JOURNAL)

    @property
    def started(self) -> bool:
        """True if this run has started to publish and was killed: some of its files may have their
        final names."""
        return self.folder.child(JOURNAL).exists()

    @property
    def suffix(self) -> str:
        """The suffix of the files."""
        return self.out.suffix if self.single else ".parquet"

    def new_file(self) -> Place:
        """Return an unused place for the file of one attempt."""
        return self.folder.child(f"attempt-{unused_name()}{self.suffix}")

    def names(self, parts: Sequence[Part]) -> tuple[str, ...]:
        """Return the final names of parts, in their order."""
        return (self.out.name,) if self.single else tuple(map(part_name, range(len(parts))))

    def publish(
        self, parts: Sequence[Part], manifest: bytes, *, replace: bool = False
    ) -> tuple[str, ...]:
        """Move the parts to their final names, then write the manifest, and delete everything else
        in staging.

        After a crash the same call finishes the publication. Until then `unfinished` warns readers.

        Parameters
        ----------
        parts : sequence of Part
            The files of the attempts that count, in order. Those of other attempts are deleted.
        manifest : bytes
        replace : bool, default=False
            True if the existing output is an earlier state of this run, which may be replaced.

        Returns
        -------
        tuple of str
            The final names: part-00000.parquet and so on, or the name of the single file.

        Raises
        ------
        ReleaseError
            A part is missing or was changed, or the output exists and is not of this run.
        """
        names = self.names(parts)
        # Earlier attempts of this run may have moved files to the final names, with other bytes if
        # their batches differed. The journal has the digests of all of them. A file with any other
        # digest belongs to somebody else, and is not replaced.
        journal, there = self.folder.child(JOURNAL), self._there()
        known: dict[str, list[str]] = json.loads(journal.read_bytes()) if journal.exists() else {}
        for name, part in zip(names, parts, strict=True):
            known[name] = [*known.get(name, []), part.sha256]
        if not replace and not all(
            file.digest() in known.get(name, ()) for name, file in there.items()
        ):
            raise name_taken_error(self.out)
        if self.folder.files():  # an empty folder: everything was published before
            if self.single and not self.out.can_rename:
                # First the marker, then the journal, then the object, so that a reader at any
                # moment is warned.
                _marker(self.out).write_bytes(b"")
            # For each final name the SHA-256 of the files that this run's attempts give it; on disk
            # before the first move, so that every file under a final name can be recognised as this
            # run's.
            self._write_whole(journal, json.dumps(known).encode())
        if not self.single:
            # The folder's entry is on disk before files move into it: else power loss could take
            # them away with the folder.
            self.out.make_folder()
            if self.out.local is not None:
                sync(self.out.local.parent)
        for part, name in zip(parts, names, strict=True):
            self._move_to_final_name(part, self.out if self.single else self.out.child(name))
        # An earlier attempt may have had more files, whose rows would be read twice.
        for name in there.keys() - set(names):
            there[name].delete()
        # The manifest is last: a table with a manifest is complete.
        self.write_manifest(manifest)
        self._delete_folder()
        return names

    def _there(self) -> dict[str, Place]:
        """Return the files of the existing output by name."""
        if self.single:
            return {self.out.name: self.out} if self.out.exists() else {}
        found = {"/".join(file.below(self.out)): file for file in self.out.files()}
        return {name: file for name, file in found.items() if not name.startswith(STAGING_PREFIX)}

    def _move_to_final_name(self, part: Part, target: Place) -> None:
        """Move a part from staging to its final name, unless an earlier attempt has moved it."""
        staged = self.folder.child(part.name)
        # If it is not in staging any more, the file under the final name must have its digest.
        size = staged.size
        if size == part.size:
            staged.move(target)
        elif size >= 0 or target.size != part.size or target.digest() != part.sha256:
            raise ReleaseError(
                f"Expected the file {part.name} in {self.folder} as it was written, got none or"
                " another one. Run the same command again."
            )

    def write_manifest(self, data: bytes) -> None:
        """Write the manifest atomically."""
        self._write_whole(manifest_place(self.out), data)

    def _write_whole(self, target: Place, data: bytes) -> None:
        if not self.out.can_rename:  # an object store shows an object only when it is complete
            target.write_bytes(data)
            return
        self.folder.make_folder(private=True)
        temporary = self.folder.child(TEMPORARY)
        temporary.write_bytes(data)
        temporary.move(target)

    def delete(self) -> None:
        """Delete the staging folder, with its journal."""
        self._delete_folder()
        if (
            not self.out.can_rename
            and not self.single
            and self.out.is_folder()
            and not self.out.files()
        ):
            self.out.delete()  # an object store's marker of an empty folder

    def _delete_folder(self) -> None:
        if self.single and not self.out.can_rename:
            # The marker before the journal: a process killed in between leaves the journal, by
            # which the next attempt deletes both.
            _marker(self.out).delete()
        delete_folder(self.folder)

    def delete_unless_started(self) -> None:
        """Delete the staging folder, unless the run has started to publish: then it can finish, and
        needs the journal to know its files."""
        if not self.started:
            self.delete()


def delete_folder(folder: Place) -> None:
    """Delete a private folder with the files that labeldp made in it; no effect if it is not there.

    Raises
    ------
    ReleaseError
        A local folder is a link, or another user's, or holds other files, which are never deleted.
    """
    local = folder.local
    if local is None:
        folder.delete()
    elif local.exists() or local.is_symlink():
        # Checked right before the deletion: somebody may have put a link in its place since it was
        # made.
        own_folder(local)
        _clear(local, _AND_JOURNAL)
        # an attempt that a cluster has given up may have written once more; the next release here
        # deletes it
        with suppress(OSError):
            local.rmdir()


def _clear(folder: Path, ours: re.Pattern[str], *, kept: str = "") -> None:
    """Delete the files that labeldp made in a private folder, except `kept`; ReleaseError if there
    are others."""
    strangers = [path for path in clear_own(folder, ours) if path.name != kept]
    if strangers:
        raise ReleaseError(
            f"Expected only files that labeldp makes in {folder}, got {strangers[0].name}. Nothing"
            " else is deleted there: move it away."
        )


def unfinished(out: Place) -> bool:
    """Tell whether a release of this name is being published, or was killed meanwhile; by names
    alone, which anybody can list."""
    with suppress(OSError):  # the caller may not list there
        if out.can_rename:
            ours = re.compile(rf"\.{re.escape(out.name)}\.labeldp-[0-9a-f]{{8}}")
            return any(map(ours.fullmatch, out.parent.names()))
        if any(map(re.compile(rf"{STAGING_PREFIX}[0-9a-f]{{32}}").fullmatch, out.names())):
            return True
    with suppress(OSError):  # or may not read there
        return _marker(out).exists()
    return False


def _marker(out: Place) -> Place:
    """Return the place of the empty object that marks a single object as being published; a reader
    checks it without listing the bucket."""
    return out.beside(f"_labeldp_publishing_{out.name}")


def name_taken_error(out: Place) -> ReleaseError:
    """Make the error for an output whose name is taken."""
    return ReleaseError(
        f"Expected a new name for the output, got {out}, which holds something else. Remove it, or"
        " choose another name."
    )


def manifest_place(out: Place) -> Place:
    """Return the place of an output's manifest, beside it: OUT.manifest.json."""
    return out.beside(manifest_name(out.name))


def part_name(number: int) -> str:
    """Return the name of a file of a released folder: part-00000.parquet."""
    return f"part-{number:05d}.parquet"


def manifest_name(name: str) -> str:
    """Return the name of the manifest of an output: NAME.manifest.json."""
    return f"{name}.manifest.json"


def release_digest(files: list[str], *, single: bool) -> str:
    """Compute the digest of a release: the SHA-256 of its file, or of the list of its files'
    digests in order; hexadecimal."""
    return files[0] if single else digest({"format": "parts/1", "files": files})


# The lock on a local output
# --------------------------------------------------------------------------------------------------


@contextmanager
def workplace(out: Path, *names: str) -> Iterator[Path]:
    """Make a private folder beside `out` for a `with` block, and lock it; delete it afterwards.

    Files that a killed process left there are deleted. The lock excludes other processes of a POSIX
    machine; other systems have none, and there is none between machines.

    Parameters
    ----------
    out : Path
    names : str
        Names of files that the caller makes in the folder, besides one of the output's own name. No
        other file is ever deleted.

    Raises
    ------
    ReleaseError
        The output's folder is missing or cannot be written, another process holds the lock, or the
        private folder exists and was not made by this user's labeldp.
    """
    folder = _workplace_of(out)
    ours = re.compile("|".join([LOCK, BUCKET, *map(re.escape, (out.name, *names))]))
    try:
        own_folder(folder)
        # O_NOFOLLOW: a link with the lock's name would make this process create or lock a file
        # elsewhere.
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except OSError as error:
        raise ReleaseError(
            f"Expected a folder to write {out.name} to, got {out.parent} ({error.strerror}). Create"
            " it, or mend its permissions."
        ) from None
    try:
        if not _locked(lock, folder):
            raise ReleaseError(
                f"Expected no other process to work on {out}, got one that does. Wait until it"
                " ends."
            )
        try:
            _clear_stale(folder, ours, out)
            yield folder
        finally:
            # unless it holds files of somebody else or the disk fails
            with suppress(OSError):
                if not clear_own(folder, ours):
                    folder.rmdir()
    finally:
        os.close(lock)


def _workplace_of(out: Path) -> Path:
    # beside the output, so on the same file system, where a rename is atomic
    return out.parent / f".{out.name}.labeldp"


def can_work_on(out: Place) -> bool:
    """Tell whether this process, a worker, sees the `workplace` that the driver has made for a
    local output, and may write there."""
    return out.local is None or os.access(_workplace_of(out.local), os.W_OK | os.X_OK)


def _clear_stale(folder: Path, ours: re.Pattern[str], out: Path) -> None:
    """Delete what killed runs have left in this folder, and their staging folders beside it."""
    _clear(folder, re.compile(f"(?!{LOCK}$)(?:{ours.pattern})"), kept=LOCK)
    for left in sorted(out.parent.iterdir()):
        if re.fullmatch(rf"{re.escape(folder.name)}-[0-9a-f]{{8}}", left.name):
            with suppress(OSError, ReleaseError):  # another user's, or no folder: it stays
                # If the output exists, its run may have been killed while publishing, and needs its
                # journal to finish.
                stale = Staging(Place.of(out), left.name[-8:], single=True)
                stale.delete_unless_started() if out.exists() else stale.delete()


def _locked(lock: int, folder: Path) -> bool:
    """Take the lock; False if another process has it, True on systems without `flock`."""
    if os.name != "posix":
        return True
    import fcntl

    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process that held the lock before may have deleted its folder since this one opened
        # the file: such a lock excludes nobody.
        return os.path.samestat(os.fstat(lock), os.stat(folder / LOCK))
    return False


@contextmanager
def scratch(out: Place) -> Iterator[Path]:
    """Make a private folder for temporary files: `workplace` of a local output, else one of the
    system's, without a lock.

    Raises
    ------
    ReleaseError
        The output's place cannot be written, or another process works there.
    """
    if out.local is not None:
        with workplace(out.local) as folder:
            yield folder
        return
    # A small object is written before the first pass: a release that cannot be written should not
    # be charged.
    probe = out.beside(f"_labeldp_probe_{unused_name()}")
    try:
        probe.write_bytes(b"")
        probe.delete()
    except OSError as error:
        raise ReleaseError(
            f"Expected a place to write {out} to, got an error ({type(error).__name__}). Check that"
            " it exists, and your rights."
        ) from None
    with tempfile.TemporaryDirectory(prefix="labeldp-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
