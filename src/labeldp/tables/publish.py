# SPDX-License-Identifier: Apache-2.0
"""Files that appear under their final name only when complete and on disk."""

import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labeldp._files import sync
from labeldp.errors import ReleaseError
from labeldp.tables.place import Place, unused_name

LOCK = "lock"


@contextmanager
def workplace(out: Path) -> Iterator[Path]:
    """A private folder beside `out`, on the same file system, that is gone afterwards.

    What a killed process left there is removed. Two processes never work on one output at once.

    Raises
    ------
    ReleaseError
        The output's folder is missing or cannot be written, or another process works there.
    """
    folder = out.parent / f".{out.name}.labeldp"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ReleaseError(
            f"Expected a folder to write {out.name} to, got {out.parent} ({error.strerror}). Create it, or mend its permissions."
        ) from None
    try:
        _lock(lock, out)
        for stale in folder.iterdir():
            if stale.name != LOCK:
                stale.unlink()
        for left in glob.glob(f"{glob.escape(str(folder))}-*"):  # staging folders of killed runs
            shutil.rmtree(left, ignore_errors=True)
        yield folder
        shutil.rmtree(folder, ignore_errors=True)
    except _Busy:
        raise ReleaseError(f"Expected no other process to work on {out}, got one that does. Wait until it ends.") from None
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(lock)


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


def _lock(lock: int, out: Path) -> None:
    if os.name != "posix":
        return
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _Busy from None


def publish(made: Path, final: Path) -> None:
    """Give a finished file its final name, durably."""
    with made.open("rb") as stream:
        os.fsync(stream.fileno())
    os.replace(made, final)
    sync(final.parent)
