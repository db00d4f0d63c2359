# SPDX-License-Identifier: Apache-2.0
"""The ledger's file: SQLite in WAL mode with full synchronisation, one append-only table, a connection for each call.

WAL with synchronous=FULL is on disk when a transaction returns, and survives power loss; BEGIN IMMEDIATE lets one writer in at a time,
across processes.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

from labeldp._files import sync
from labeldp.errors import LedgerError
from labeldp.privacy.ledger_entries import GENESIS, Row, entry_hash, text

VERSION = 1
_APPLICATION = 0x6C44502F  # marks the file as ours among SQLite files
_WAIT_SECONDS = 60

_SCHEMA = """
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY,
    previous TEXT NOT NULL,
    body TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE
);
CREATE INDEX entries_account ON entries (json_extract(body, '$.dataset'), json_extract(body, '$.column'));
CREATE INDEX entries_run ON entries (json_extract(body, '$.run_id'));
"""
# the indexes look into the text that is hashed, so that there is no second copy of a fact that could be changed unseen

_ROW = "SELECT seq, previous, body, hash FROM entries"


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to an existing ledger, in one consistent read."""
    with _errors(path), contextlib.closing(_connect(path)) as connection:
        connection.execute("BEGIN")
        yield connection


@contextlib.contextmanager
def writing(path: Path, opening: Mapping[str, object]) -> Iterator[sqlite3.Connection]:
    """A connection that holds the only write lock; what was appended is on disk when the block ends, or not at all if it raises.

    A missing file is created with `opening` as its first entry.
    """
    with _errors(path):
        if not path.exists():
            _create(path, opening)
        with contextlib.closing(_connect(path)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")


def append(connection: sqlite3.Connection, body: Mapping[str, object]) -> str:
    """Add an entry behind the last one; returns the new head."""
    last = connection.execute(f"{_ROW} ORDER BY seq DESC LIMIT 1").fetchone()
    seq, head = (0, GENESIS) if last is None else (last[0], last[3])
    if last is not None and entry_hash(last[1], last[2]) != head:
        raise LedgerError(f"Expected the ledger's last entry, {seq}, to have its hash; it was rewritten. Run `verify`.")
    written = text({"seq": seq + 1, **body})
    new = entry_hash(head, written)
    connection.execute("INSERT INTO entries (seq, previous, body, hash) VALUES (?, ?, ?, ?)", (seq + 1, head, written, new))
    return new


def rows(connection: sqlite3.Connection, dataset: str | None = None, column: str | None = None) -> list[Row]:
    """The entries in order, of all or of one dataset and column."""
    given = {name: value for name, value in (("dataset", dataset), ("column", column)) if value is not None}
    where = " AND ".join(f"json_extract(body, '$.{name}') = ?" for name in given)
    return connection.execute(f"{_ROW}{' WHERE ' + where if where else ''} ORDER BY seq", tuple(given.values())).fetchall()


def charge_of(connection: sqlite3.Connection, run_id: str) -> tuple[str, str] | None:
    """Dataset and column of the run with this id."""
    names = "json_extract(body, '$.dataset'), json_extract(body, '$.column')"
    query = f"SELECT {names} FROM entries WHERE json_extract(body, '$.run_id') = ? LIMIT 1"
    found: tuple[str, str] | None = connection.execute(query, (run_id,)).fetchone()
    return found


def exists(path: Path) -> bool:
    """Whether there is such a file; a folder that cannot be looked into is an error, not an absent ledger."""
    with _errors(path):
        return path.exists()


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(f"Expected a labeldp ledger that can be read and written at {path}, got: {error}. Nothing was written.") from None
    except OSError as error:
        raise LedgerError(f"Expected to reach the ledger {path}, got: {error.strerror}. Nothing was written. Check the folder.") from None


def _connect(path: Path) -> sqlite3.Connection:
    if path.is_file() and path.stat().st_size == 0:
        raise LedgerError(f"Expected a labeldp ledger, got the empty file {path}: its history is gone. Restore it, or choose another path.")
    connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=_WAIT_SECONDS)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        _check_schema(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    (application,), (version,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version"))
    if application != _APPLICATION:
        raise LedgerError(f"Expected a labeldp ledger, got another SQLite database at {path}. Give the ledger a file of its own.")
    if version != VERSION:
        raise LedgerError(f"Expected ledger format {VERSION}, got format {version} at {path}. Use the labeldp that wrote it.")
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        raise LedgerError(f"Expected the ledger {path} in SQLite's WAL mode, got {mode}. Keep it on a local disk.")


def _create(path: Path, opening: Mapping[str, object]) -> None:
    """Make the file whole under another name, then link it into place: no process ever sees half a ledger, and one of several wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {VERSION}; BEGIN; {_SCHEMA} COMMIT;")
            append(connection, opening)
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
        sync(path.parent)
    finally:
        for name in (part, *(part.with_name(part.name + end) for end in ("-wal", "-shm"))):
            name.unlink(missing_ok=True)
