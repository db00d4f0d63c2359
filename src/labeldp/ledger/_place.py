# SPDX-License-Identifier: Apache-2.0
"""Where a ledger lies: a file, or a database that a URL names; and whether a file is on a disk of this machine."""

import functools
import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs

from labeldp import _validate
from labeldp.errors import InvalidInput, LedgerError

_NETWORK: Final = re.compile(
    "nfs4?|cifs|smb3|smbfs|ncpfs|afs|auristorfs|ceph|glusterfs|lustre|gpfs|beegfs|orangefs|pvfs2|ocfs2|gfs2|coda|davfs|"
    r"fuse\.(sshfs|s3fs|s3|gcsfuse|goofys|mount-s3|rclone|glusterfs|ceph.*|juicefs|blobfuse.*|davfs|curlftpfs|smb.*|mfs|moosefs)"
)
# Left out: 9p and virtiofs, which virtual machines and sandboxes use for the host's own disk, and overlay, the disk of a container.
_URL: Final = re.compile(r"postgresql(\+\w+)?:")


@dataclass(frozen=True, repr=False)
class LedgerUrl:
    """The URL of a database, as a value that shows everything but its passwords, and is pickled without them.

    Parameters
    ----------
    url : str
        "postgresql://USER@HOST/DATABASE", as SQLAlchemy takes it. Better without a password: ~/.pgpass or PGPASSWORD keep it elsewhere, and
        there the server's client finds it after unpickling too.
    """

    url: str

    def __str__(self) -> str:
        kind, rest = self.url.split("://", 1)
        user, at, host = rest.rpartition("@")  # the last one: an unescaped @ or / in a password must not let a part of it through
        shown = re.sub(":.*", ":***", user, flags=re.DOTALL)
        return re.sub(r"(password=)[^&]*", r"\1***", f"{kind}://{shown}{at}{host}", flags=re.IGNORECASE)

    def __repr__(self) -> str:
        return repr(str(self))

    def __reduce__(self) -> tuple[object, ...]:
        return LedgerUrl, (self._without_password,)

    def __copy__(self) -> "LedgerUrl":
        return self

    def __deepcopy__(self, _: object) -> "LedgerUrl":
        return self  # within a process, as in a clone of an estimator, the password stays

    @property
    def name(self) -> str:
        """The URL without password and driver: what names the database."""
        return re.sub(r"^postgresql(\+\w+)?", "postgresql", self._without_password)

    @property
    def _without_password(self) -> str:
        return re.sub("password=\\*\\*\\*", "", str(self).replace(":***@", "@"), flags=re.IGNORECASE)


def location_of(given: object) -> Path | LedgerUrl:
    """The place that a text or path names."""
    if isinstance(given, LedgerUrl):
        return given
    if isinstance(given, str) and _URL.match(given):
        if "://" not in given or not given.isprintable():
            raise InvalidInput("Expected the URL of a PostgreSQL database, got another text. Write postgresql://USER@HOST/DATABASE.")
        return LedgerUrl(given)
    text = str(given) if isinstance(given, (str, Path)) else ""
    if not text.strip() or text.startswith(":"):
        raise InvalidInput(f"Expected the path of a file, got location={_validate.shown(given)}. Pass for example 'privacy/ledger.sqlite'.")
    if re.match(r"[a-z][a-z0-9+]+://", text):
        raise InvalidInput("Expected location as a path or the URL of a PostgreSQL database, got another URL. Use one of these.")
    path = Path(text).expanduser().absolute()
    return path.resolve() if path.is_symlink() else path  # else its runs would be looked for beside the link


def runs_folder(location: Path | LedgerUrl) -> Path:
    """The private folder of a ledger's runs: beside a file; for a database one of its own in LABELDP_RUNS or the user's data folder."""
    if isinstance(location, Path):
        return location.with_name(f"{location.name}.runs")
    chosen = os.environ.get("LABELDP_RUNS")
    base = Path(chosen).expanduser().absolute() if chosen else platformdirs.user_data_path("labeldp")
    return base / f"{hashlib.sha256(location.name.encode()).hexdigest()[:32]}.runs"  # no two ledgers share a folder


def check_local(path: Path) -> None:
    """Refuse a ledger file on a network file system, where that can be told."""
    kind = _kind_at(_existing(path.parent))
    if kind is not None:
        raise LedgerError(
            f"Expected the ledger on a disk of this machine, got {path} on a network file system ({kind}), where several machines can "
            "break it. Keep it on a local disk, or in PostgreSQL: postgresql://USER@HOST/DATABASE. Nothing was written."
        )


def _existing(folder: Path) -> str:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.path.realpath(folder)


@functools.lru_cache(maxsize=64)
def _kind_at(folder: str) -> str | None:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            return network_kind(folder, lines)
    except OSError:
        return None


def network_kind(folder: str, mountinfo: Iterable[str]) -> str | None:
    """The network file system that holds a folder, or None.

    Parameters
    ----------
    folder : str
        Absolute, without symbolic links.
    mountinfo : iterable of str
        The lines of /proc/self/mountinfo; of two mounts at one place the later one counts.
    """
    best, found = -1, ""
    for line in mountinfo:
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right.split():
            continue
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
        if len(point) >= best and (folder == point or folder.startswith(point.rstrip("/") + "/")):
            best, found = len(point), right.split()[0]
    return found if _NETWORK.fullmatch(found) else None
