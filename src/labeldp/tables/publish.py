# SPDX-License-Identifier: Apache-2.0
"""Files that appear under their final name only when complete and on disk."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labeldp._files import sync
from labeldp.errors import ReleaseError

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
        yield folder
        shutil.rmtree(folder, ignore_errors=True)
    except _Busy:
        raise ReleaseError(f"Expected no other process to work on {out}, got one that does. Wait until it ends.") from None
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(lock)


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
