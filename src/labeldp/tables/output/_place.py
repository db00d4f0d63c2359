# SPDX-License-Identifier: Apache-2.0
"""Where files are: a local path or a place in an object store, HDFS or any other pyarrow or fsspec file system."""

import hashlib
import importlib
import itertools
import os
import platform
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from labeldp._files import give_usual_rights, own_folder, private_file, sync
from labeldp.errors import InvalidInput, ReleaseError

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
RENAMES = ("local", "hdfs", "mock")  # a folder gets another name in one step; all others are taken for object stores
SCHEMES = {"gcs": "gs", "abfs": "abfs", "s3": "s3", "hdfs": "hdfs"}
CHUNK = 1 << 20
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

    @property
    def local(self) -> Path | None:
        """The path on this machine's own file system, or None."""
        return Path(self.path) if self.filesystem.type_name == "local" else None

    @property
    def renames(self) -> bool:
        """True if a whole folder can be given another name in one step."""
        return self.filesystem.type_name in RENAMES

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.path).name

    @property
    def stem(self) -> str:
        """The name without its ending."""
        return PurePosixPath(self.path).stem

    @property
    def suffix(self) -> str:
        """The name's ending, with its dot."""
        return PurePosixPath(self.path).suffix

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the path."""
        return PurePosixPath(self.path).parts

    @property
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
        """Size and time of the last change, as far as the file system keeps it: what a file has as long as nobody writes to it."""
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
        if self.renames:
            self.parent.make_folder()
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

    def make_folder(self, *, private: bool = False) -> None:
        """Make the folder and those above it; no effect in an object store, where prefixes need none.

        With `private`, a local one is the caller's own, closed to others, or an error (`own_folder`).
        """
        if self.local is not None and private:
            self.local.parent.mkdir(parents=True, exist_ok=True)
            own_folder(self.local)
        elif self.local is not None:
            self.local.mkdir(parents=True, exist_ok=True)
        elif self.renames:
            self.filesystem.create_dir(self.path)

    def move(self, target: "Place") -> None:
        """Give a file another name in the same file system, in place of what has it; local ones are on disk first, with usual rights."""
        if self.local is not None and target.local is not None:
            sync(self.local)
            give_usual_rights(self.local)
            os.replace(self.local, target.local)
            sync(target.local.parent)
        elif self.renames:
            self.filesystem.move(self.path, target.path)
        else:
            self.filesystem.copy_file(self.path, target.path)
            if target.size != self.size:
                raise ReleaseError(f"Expected a whole copy, got another size at {target}. Run the same command again.")
            self.delete()

    def delete(self) -> None:
        """Delete a file, or a folder with all that is in it, or a link itself; no effect if it is not there."""
        if self.local is not None and self.local.is_symlink():
            self.local.unlink()
            return
        kind = self.info.type
        if kind == pafs.FileType.Directory:
            self.filesystem.delete_dir(self.path)
        elif kind == pafs.FileType.File:
            self.filesystem.delete_file(self.path)


def unused_name() -> str:
    """A name that no other process, thread or machine makes up; not a secret."""
    made = (platform.node(), os.getpid(), threading.get_ident(), time.time_ns(), next(_COUNTER))
    return hashlib.sha256(repr(made).encode()).hexdigest()[:32]


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


@contextmanager
def reading(place: Place) -> Iterator[None]:
    """What goes wrong in the file system is told as an error that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise ReleaseError(f"Expected an existing file, got {place}. Check the path.") from None
    except OSError as error:
        raise ReleaseError(f"Expected a file that can be read, got {place} ({error.strerror or type(error).__name__}).") from None
