# SPDX-License-Identifier: Apache-2.0
"""Files that are on disk when a call returns, and files and folders that nobody else can read or
has prepared."""

import contextlib
import os
import re
import stat
import tempfile
from pathlib import Path

from labeldp.errors import InvalidInput, ReleaseError

_PROBE = re.compile(r"\.labeldp-rights-\w+")
# with one slash, if it was made a Path
_ADDRESS = re.compile(r"\s*([A-Za-z][\w+.-]*)?://|\s*[A-Za-z][\w+.-]+:/")
STORES = re.compile(r"(s3|gs|gcs|abfss?|hdfs|viewfs|file)://", re.IGNORECASE)
"""The addresses that pyarrow opens."""


def path_text(where: object, known: re.Pattern[str] | None = None) -> str:
    """Check a path of this machine, or an address of a `known` form, and return its text.

    An address of another form is refused, and not shown: it may hold a password, which would stand
    in the name of a folder.
    """
    text = os.fspath(where) if isinstance(where, str | os.PathLike) else None
    if not isinstance(text, str) or "\0" in text:
        raise InvalidInput(
            f"Expected a path as text without NULs, got {type(where).__name__}. Write for example"
            " 'folder/name'."
        )
    if _ADDRESS.match(text) and not (known and known.match(text)):
        raise InvalidInput(
            "Expected a path of this machine, or an address as text of a scheme that is known here,"
            " got another one, not shown here. Check how it begins; a file with such a name is"
            " written ./NAME."
        )
    return text


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that does not exist yet, readable by its owner only, and wait until its content
    is on disk."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(made: Path, path: Path, data: bytes, *, last: bool = True) -> None:
    """Replace a file, which only its owner can read, atomically and durably: write it under the
    private name `made`, then rename it to `path`.

    Parameters
    ----------
    made, path : Path
        The temporary and the final name, in one folder.
    data : bytes
    last : bool, default=True
        Wait for the folder, too. Of several files that count together only the last needs to.
    """
    made.unlink(missing_ok=True)
    # The content is on disk before the rename: else a crash of the system could leave the final
    # name with an empty file.
    write_new(made, data)
    os.replace(made, path)
    if last:
        sync(path.parent)  # one sync of a folder writes all renames in it so far


def private_file(path: Path) -> Path:
    """Make a new, empty file that its owner alone can read, for writers that open it by its
    name."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return path


def give_usual_rights(path: Path) -> None:
    """Give a private file or folder the rights of an ordinary new one, before it is published. Its
    parent must be private: there a new one is made to see them, which `clear_own` removes after a
    crash."""
    # os.umask() cannot read the mask without setting it, for all threads: a file that another
    # thread makes meanwhile would be public.
    # mktemp is safe: O_EXCL and mkdir refuse a taken name
    probe = Path(tempfile.mktemp(prefix=".labeldp-rights-", dir=path.parent))
    if of_folders := path.is_dir():
        probe.mkdir()
    else:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        path.chmod(stat.S_IMODE(probe.stat().st_mode))
    finally:
        probe.rmdir() if of_folders else probe.unlink()


def own_folder(path: Path) -> None:
    """Make a folder that only its owner can open; accept an existing one that is so.

    Raises
    ------
    ReleaseError
        Under this name is a link, a file, a folder of somebody else, or one that others may look
        into: whoever made it could read or replace what is written there.
    OSError
        It cannot be made.
    """
    try:
        # made with its rights: between a mkdir and a chmod others could look in
        os.mkdir(path, 0o700)
        return
    except FileExistsError:
        # not stat: whoever plants a link here would choose where private files are written
        facts = os.lstat(path)
    what = (
        "a link"
        if stat.S_ISLNK(facts.st_mode)
        else "no folder"
        if not stat.S_ISDIR(facts.st_mode)
        else ""
    )
    if os.name == "posix" and not what:
        mode = stat.S_IMODE(facts.st_mode)
        what = (
            "one of another user"
            if facts.st_uid != os.geteuid()
            else f"one of mode {mode:o}"
            if mode & 0o077
            else ""
        )
    if what:
        raise ReleaseError(
            f"Expected {path} to be a folder of your own that nobody else can open, since private"
            f" files are written there; got {what}. Nothing in it was touched. Look who made it,"
            " then remove it or move it away."
        )


def clear_own(folder: Path, ours: re.Pattern[str]) -> list[Path]:
    """Delete the files and folders whose names match `ours`; return the paths that somebody else
    put there, which stay."""
    left: list[Path] = []
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # another process may be doing the same
            # a link is never followed, whatever its name: it could lead the deletion out of the
            # folder
            if not (ours.fullmatch(path.name) or _PROBE.fullmatch(path.name)) or path.is_symlink():
                left.append(path)
            elif path.is_dir():
                inside = clear_own(path, ours)
                left += inside
                if not inside:
                    path.rmdir()
            else:
                path.unlink()
    return left
