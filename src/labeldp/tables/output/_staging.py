# SPDX-License-Identifier: Apache-2.0
"""Files of a release in a private folder, and how they are published: the files first, the manifest last, on every file system."""

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from math import inf
from pathlib import Path

import numpy as np
import pyarrow as pa

from labeldp._files import clear_own, own_folder, sync, write_new
from labeldp._hash import digest
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.tables.engines._shuffle import BUCKET
from labeldp.tables.formats._digest import DRAWN, DrawnDigest
from labeldp.tables.formats._table import Sink
from labeldp.tables.output._place import Place, unused_name

JOURNAL, MANIFEST = "_publishing.json", "_manifest.json"
STAGING_PREFIX = "_labeldp_staging_"
PART_BYTES = 1 << 28
LOCK = "lock"
_OURS = re.compile(rf"attempt-[0-9a-f]{{32}}[.\w]*|part-\d{{5,}}[.\w]*|{MANIFEST}")
_AND_JOURNAL = re.compile(f"{_OURS.pattern}|{JOURNAL}")


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


def part_name(number: int, suffix: str = ".parquet") -> str:
    """part-00000.parquet."""
    return f"part-{number:05d}{suffix}"


def manifest_name(name: str) -> str:
    """OUT.manifest.json."""
    return f"{name}.manifest.json"


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
    """

    out: Place
    run_id: str
    single: bool = False

    def __post_init__(self) -> None:
        if "/" not in self.out.path.strip("/") and self.out.local is None:
            raise InvalidInput(f"Expected an output inside a bucket or folder, got {self.out} itself. Add a name to it.")

    @cached_property
    def folder(self) -> Place:
        """The staging folder."""
        if self.out.renames:
            return self.out.beside(f".{self.out.name}.labeldp-{self.run_id[:8]}")
        name = f"{STAGING_PREFIX}{self.run_id}"
        return self.out.beside(f"{name}_{self.out.name}") if self.single else self.out.child(name)

    @property
    def manifest(self) -> Place:
        """Beside the output: OUT.manifest.json."""
        return self.out.beside(manifest_name(self.out.name))

    def prepare(self) -> None:
        """An empty staging folder: what a killed attempt left in it is deleted. Only the driver calls this, before any worker writes.

        The list of files that a killed publication had begun to move stays, for `publish`.
        """
        local = self.folder.local
        self.folder.make_folder(private=True)
        if local is not None:
            _clear(local, _OURS)
            return
        for file in self.folder.files():
            if file.name != JOURNAL:
                file.delete()

    @property
    def begun(self) -> bool:
        """A publication of this very run was killed: some of the parts may be under their final names."""
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

        After a crash the same call finishes what was begun. Until the manifest is there, `unfinished` tells readers of a folder.

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
        begun, there = self._journal(), self._there()
        known = begun | dict(zip(names, parts, strict=True))
        if not replace and not all(name in known and self._is_ours(file, known[name], name in begun) for name, file in there.items()):
            raise ReleaseError(
                f"Expected a new name for the output, got {self.out}, which holds something else. Remove it, or choose another name."
            )
        if self.folder.files():  # else all was published before
            self._write_journal(json.dumps({name: asdict(part) for name, part in known.items()}).encode())
        if not self.single:
            self.out.make_folder()
            if self.out.local is not None:
                sync(self.out.local.parent)
        for part, name in zip(parts, names, strict=True):
            self._settle_name(part, self.out if self.single else self.out.child(name))
        for name in there.keys() - set(names):
            there[name].delete()
        self.write_manifest(manifest)
        remove(self.folder)
        return names

    def _write_journal(self, data: bytes) -> None:
        """It appears whole or not at all, and stays private."""
        journal, made = self.folder.child(JOURNAL), self.folder.child(MANIFEST)
        if journal.local is None or made.local is None:
            self._write_whole(journal, data)
            return
        made.local.unlink(missing_ok=True)
        write_new(made.local, data)
        made.local.replace(journal.local)
        sync(journal.local.parent)

    def _journal(self) -> dict[str, Part]:
        """What a publication of this run that was killed has begun to name."""
        journal = self.folder.child(JOURNAL)
        said = json.loads(journal.read_bytes()) if journal.exists() else {}
        return {name: Part(**facts) for name, facts in said.items()}

    def _there(self) -> dict[str, Place]:
        """The files under the output's name, by their names there."""
        if self.single:
            return {self.out.name: self.out} if self.out.exists() else {}
        found = {"/".join(file.below(self.out)): file for file in self.out.files()}
        return {name: file for name, file in found.items() if not name.startswith(STAGING_PREFIX)}

    def _is_ours(self, file: Place, part: Part, begun: bool) -> bool:
        """By its bytes, or, where this run has begun to name files, by its size: a store may hold terabytes."""
        return file.size == part.size and (begun or file.digest() == part.sha256)

    def _settle_name(self, part: Part, target: Place) -> None:
        """Move a part from where its worker wrote it; it may stand under its final name since a crash."""
        made = self.folder.child(part.name)
        if made.exists() and made.size == part.size:
            made.move(target)
        elif made.exists() or not self._is_ours(target, part, begun=False):
            raise ReleaseError(
                f"Expected the file {part.name} in {self.folder} as it was written, got none or another one. Run the same command again."
            )

    def write_manifest(self, data: bytes) -> None:
        """The manifest appears whole or not at all."""
        self._write_whole(self.manifest, data)

    def _write_whole(self, target: Place, data: bytes) -> None:
        if not self.out.renames:  # an object appears when it is complete
            target.write_bytes(data)
            return
        self.folder.make_folder(private=True)
        made = self.folder.child(MANIFEST)
        made.write_bytes(data)
        made.move(target)

    def abandon(self) -> None:
        """Delete everything in staging."""
        remove(self.folder)
        if not self.out.renames and not self.single and self.out.is_folder() and not self.out.files():
            self.out.delete()  # an object store's marker of an empty folder

    def tidy(self) -> None:
        """Delete the attempts in staging, and all of it unless a publication has begun, which the same run can finish."""
        if not self.begun:
            self.abandon()


def remove(folder: Place) -> None:
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
        own_folder(local)
        _clear(local, _AND_JOURNAL)
        local.rmdir()


def _clear(folder: Path, ours: re.Pattern[str]) -> None:
    strangers = [path for path in clear_own(folder, ours) if path.name != JOURNAL]
    if strangers:
        raise ReleaseError(
            f"Expected only files that labeldp makes in {folder}, got {strangers[0].name}. Nothing else is deleted there: move it away."
        )


def _suffix(name: str) -> str:
    return "".join(re.findall(r"\.\w+$", name)) or ".parquet"


def unfinished(out: Place) -> bool:
    """Whether a release of this name was killed, or goes on, while files and manifest get their final names; seen by anybody.

    Of one object in a store it is not seen: the store would have to be listed.
    """
    if out.renames:
        return any(re.fullmatch(rf"\.{re.escape(out.name)}\.labeldp-[0-9a-f]{{8}}", found) for found in out.parent.names())
    return any(re.fullmatch(rf"{STAGING_PREFIX}[0-9a-f]{{32}}", found) for found in out.names())


# Writing files into it -----------------------------------------------------------------------------------------------------------------


class PartsSink:
    """A release being written: one file, or files of about 256 MB.

    Parameters
    ----------
    staging : Staging
        Of one file: there is only one part.
    make : function
        Opens a sink at a place.
    suffix : str
        Ending of the files.
    ordered : bool
        Rows have no ids: what was drawn belongs to their places.

    Rows may come with a column `DRAWN`, which is not written: a file's digest of it goes into its facts.
    """

    def __init__(self, staging: Staging, make: Callable[[Place], Sink], suffix: str, *, ordered: bool = False):
        self.parts: list[Part] = []
        self._staging, self._make, self._suffix = staging, make, suffix
        self._limit = inf if staging.single else PART_BYTES
        self._open: tuple[str, Sink] | None = None
        self._drawn = DrawnDigest(ordered)

    @property
    def rows(self) -> int:
        """Rows so far."""
        return sum(part.rows for part in self.parts) + (self._open[1].rows if self._open else 0)

    @property
    def size(self) -> int:
        """Bytes so far, without what waits in memory."""
        return sum(part.size for part in self.parts) + (self._open[1].size if self._open else 0)

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows; a file that has become large enough is finished."""
        sink = self._current()
        if DRAWN in rows.schema.names:
            self._drawn.update(rows.column(DRAWN).to_numpy(zero_copy_only=False).view(np.uint64))
            rows = rows.drop_columns([DRAWN])
        sink.write(rows)
        if sink.size >= self._limit:
            self._finish()

    def _current(self) -> Sink:
        if self._open is None:
            place = self._staging.new_file(self._suffix)
            self._open = place.name, self._make(place)
        return self._open[1]

    def _finish(self) -> None:
        sink = self._current()
        assert self._open is not None
        drawn = self._drawn
        known = drawn.rows == sink.rows
        sha256 = sink.close(drawn.facts() if known else None)
        self.parts.append(Part(self._open[0], sink.rows, sink.size, sha256, drawn.hexdigest() if known else ""))
        self._open, self._drawn = None, drawn.following()

    def close(self) -> str:
        """Finish the last file; the digest of the release."""
        if self._open is not None or not self.parts:
            self._finish()
        return release_digest([part.sha256 for part in self.parts], single=self._staging.single)

    def abort(self) -> None:
        """Let go of an unfinished file; no effect after `close`."""
        if self._open is not None:
            self._open[1].abort()
            self._open = None


def release_digest(files: list[str], *, single: bool) -> str:
    """SHA-256 of a file, or of the list of the files' digests in their order; hexadecimal."""
    return files[0] if single else digest({"format": "parts/1", "files": files})


# One process at a time --------------------------------------------------------------------------------------------------------------------


@contextmanager
def workplace(out: Path, *names: str) -> Iterator[Path]:
    """A private folder beside `out`, on the same file system, that is gone afterwards.

    What a killed process left there is removed. Two processes never work on one output at once.

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
    folder = out.parent / f".{out.name}.labeldp"
    ours = re.compile("|".join([LOCK, BUCKET, *map(re.escape, (out.name, *names))]))
    try:
        own_folder(folder)
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
        _leave(folder, ours)
        raise
    else:
        _leave(folder, ours)
    finally:
        os.close(lock)


def _clear_stale(folder: Path, ours: re.Pattern[str], out: Path) -> None:
    """Remove what killed runs have left: here, and in their staging folders."""
    kept = re.compile(f"(?!{LOCK}$)(?:{ours.pattern})")
    strangers = [path for path in clear_own(folder, kept) if path.name != LOCK]
    if strangers:
        raise ReleaseError(
            f"Expected only files that labeldp makes in {folder}, got {strangers[0].name}. Nothing else is deleted there: move it away."
        )
    for left in sorted(out.parent.iterdir()):
        if re.fullmatch(rf"{re.escape(folder.name)}-[0-9a-f]{{8}}", left.name):
            with suppress(OSError, ReleaseError):  # of another user, or no folder: it stays
                stale = Staging(Place.of(out), left.name[-8:], single=True)
                stale.tidy() if out.exists() else stale.abandon()


def _leave(folder: Path, ours: re.Pattern[str]) -> None:
    with suppress(OSError):
        if not clear_own(folder, ours):
            folder.rmdir()


@contextmanager
def scratch(out: Place) -> Iterator[Path]:
    """`workplace` of a local output. Of any other one, a private folder for temporary files; the output's place is tried first.

    Raises
    ------
    ReleaseError
        Nothing can be written there, or another process works there.
    """
    if out.local is not None:
        with workplace(out.local) as folder:
            yield folder
        return
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


class _Busy(Exception):
    """Another process holds the lock."""


def _lock(lock: int, folder: Path) -> None:
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
