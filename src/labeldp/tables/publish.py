# SPDX-License-Identifier: Apache-2.0
"""Files that appear under their final name only when complete and on disk."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labeldp._files import clear_own, give_usual_rights, own_folder, sync
from labeldp.errors import ReleaseError
from labeldp.tables.place import Place, unused_name
from labeldp.tables.shuffle import BUCKET
from labeldp.tables.staging import Staging

LOCK = "lock"


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
                Staging(Place.of(out), left.name[-8:], single=True).abandon()


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


def publish(made: Path, final: Path) -> None:
    """Give a finished file its final name, and the rights that new files have there, durably."""
    with made.open("rb") as stream:
        os.fsync(stream.fileno())
    give_usual_rights(made)
    os.replace(made, final)
    sync(final.parent)
