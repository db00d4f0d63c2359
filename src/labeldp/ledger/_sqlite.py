# SPDX-License-Identifier: Apache-2.0
"""The ledger in a file: SQLite in WAL mode with full synchronisation, a connection for each call.

WAL with synchronous=FULL is on disk when a transaction returns, and survives power loss; BEGIN IMMEDIATE lets one writer in at a time,
across processes. Both need the locks and the shared memory of one machine, so network file systems are refused.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labeldp._files import sync
from labeldp.errors import LedgerError
from labeldp.ledger._place import check_local
from labeldp.ledger._session import DERIVED, VERSION, Session

_APPLICATION = 0x6C44502F  # marks the file as ours among SQLite files
_WAIT_SECONDS = 120

_ENTRIES = """
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


class SqliteSession(Session):
    """A transaction on a ledger file."""

    each = "json_each(:texts)"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def query(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        """Run a statement."""
        return self.connection.execute(statement, values).fetchall()

    def fact(self, name: str) -> str:
        """A fact in an entry's text."""
        return f"json_extract(body, '$.{name}')"


@dataclass(frozen=True)
class SqliteStore:
    """The ledger in a file of this machine."""

    path: Path

    def exists(self) -> bool:
        """Whether there is such a file; a folder that cannot be looked into is an error, not an absent ledger."""
        with _errors(self.path):
            return self.path.exists()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """A connection to an existing ledger, in one consistent read."""
        with _errors(self.path), contextlib.closing(_connect(self.path)) as connection:
            connection.execute("BEGIN")
            yield SqliteSession(connection)

    @contextlib.contextmanager
    def writing(self, opening: Mapping[str, object]) -> Iterator[Session]:
        """A connection that holds the only write lock."""
        with _errors(self.path):
            check_local(self.path)
            if not self.path.exists():
                _create(self.path, opening)
            with contextlib.closing(_connect(self.path)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield SqliteSession(connection)
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")


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
            head = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {VERSION};"
            connection.executescript(f"{head} BEGIN; {_ENTRIES} {DERIVED.format(prefix='')} COMMIT;")
            SqliteSession(connection).append(opening)
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
        sync(path.parent)
    finally:
        for name in (part, *(part.with_name(part.name + end) for end in ("-wal", "-shm"))):
            name.unlink(missing_ok=True)
