# SPDX-License-Identifier: Apache-2.0
"""The ledger in PostgreSQL, for teams: one database, any number of machines.

An advisory lock, held until the transaction ends, lets in one writer at a time; a commit waits
until it is on the server's disk. The driver is psycopg, through SQLAlchemy's core. Each call opens
a connection, so that a ledger holds none and can be pickled.
"""

import contextlib
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from labeldp.errors import InvalidInput, LedgerError, MissingExtra
from labeldp.ledger._database import DERIVED, VERSION, LedgerUrl, Session, opening_entry

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

_PREFIX: Final = "labeldp_"
# any fixed number that other programs are unlikely to lock in the same database
_LOCK: Final = 0x6C44502F_4C656467
_WAIT_SECONDS: Final = 120

_ENTRIES: Final = """
CREATE TABLE {prefix}format (version BIGINT NOT NULL);
INSERT INTO {prefix}format VALUES ({version});
CREATE TABLE {prefix}entries (
    seq BIGINT PRIMARY KEY,
    previous TEXT NOT NULL,
    body TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE
);
CREATE INDEX {prefix}entries_account
    ON {prefix}entries ((CAST(body AS json) ->> 'dataset'), (CAST(body AS json) ->> 'column'));
CREATE INDEX {prefix}entries_run ON {prefix}entries ((CAST(body AS json) ->> 'run_id'));
"""


class PostgresSession(Session):
    """A transaction on a ledger's tables."""

    prefix = _PREFIX
    each = "json_array_elements_text(CAST(:texts AS json)) AS texts(value)"

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection

    def query(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows, if it has any."""
        from sqlalchemy import text

        result = self.connection.execute(text(statement), values)
        return [tuple(row) for row in result] if result.returns_rows else []

    def fact(self, name: str) -> str:
        """Return the SQL expression for a fact in an entry's text, spelt as in the indexes."""
        return f"(CAST(body AS json) ->> '{name}')"


@dataclass(frozen=True)
class PostgresStore:
    """The ledger in a database of a PostgreSQL server."""

    url: LedgerUrl

    def exists(self) -> bool:
        """Tell whether the database has a ledger."""
        with self.reading() as session:
            return session is not None

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session | None]:
        """Open a read transaction, with one consistent view; None if the database has no ledger.
        One that cannot be reached is an error."""
        with _errors(self.url), _engine(self.url).connect() as connection:
            connection = connection.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
            with connection.begin():
                session = PostgresSession(connection)
                yield None if self._checked(session) is None else session

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        """Open the only write transaction of all machines. What was written is on the server's disk
        when the block ends."""
        # READ COMMITTED: each statement sees all commits before it. A snapshot from the start of
        # the transaction, taken before the wait for the lock, would miss the charges that others
        # made meanwhile.
        with _errors(self.url), _engine(self.url).connect() as connection:
            session = PostgresSession(
                connection.execution_options(isolation_level="READ COMMITTED")
            )
            with self._locked(session) as version:
                if version is not None:
                    yield session
                    return
                # in its own transaction, so that a refused charge leaves a new ledger, as it does
                # with a file
                self._create(session)
            with self._locked(session):
                yield session

    @contextlib.contextmanager
    def _locked(self, session: PostgresSession) -> Iterator[int | None]:
        """Open a transaction that excludes other writers, and yield the ledger's format."""
        with session.connection.begin():
            session.query(f"SET LOCAL lock_timeout = '{_WAIT_SECONDS}s'")
            # the server's default may let a commit return before it is on disk
            session.query("SET LOCAL synchronous_commit = on")
            session.query("SELECT pg_advisory_xact_lock(:lock)", lock=_LOCK)
            yield self._checked(session)

    def _checked(self, session: PostgresSession) -> int | None:
        """Return the format of the ledger in the database; None if it has no ledger."""
        table = session.query("SELECT to_regclass(:name)", name=f"{_PREFIX}entries")[0][0]
        version = table and int(session.query(f"SELECT version FROM {_PREFIX}format")[0][0])
        if version not in (None, VERSION):
            raise LedgerError(
                f"Expected ledger format {VERSION}, got format {version} in {self.url}. Use the"
                " labeldp that wrote it."
            )
        if version is not None and session.query("SHOW fsync")[0][0] != "on":
            raise LedgerError(
                f"Expected a server with fsync on, got one that may lose charges at {self.url}."
                " Nothing was written."
            )
        return version

    def _create(self, session: PostgresSession) -> None:
        made = _ENTRIES.format(prefix=_PREFIX, version=VERSION) + DERIVED.format(prefix=_PREFIX)
        for statement in filter(str.strip, made.split(";")):
            session.query(statement)
        session.append(opening_entry())


@functools.lru_cache(maxsize=8)
def _engine(url: LedgerUrl) -> "Engine":
    try:
        import psycopg  # noqa: F401  (SQLAlchemy's own message would not say what to install)
        from sqlalchemy import create_engine, make_url
        from sqlalchemy.exc import ArgumentError
        from sqlalchemy.pool import NullPool
    except ImportError:
        raise MissingExtra(
            "A ledger in PostgreSQL needs SQLAlchemy and psycopg: pip install 'labeldp[postgres]'"
        ) from None
    try:
        made = make_url(url.url)
    # their messages can quote a part of a password, so they are not chained
    except (ArgumentError, ValueError):
        raise InvalidInput(
            f"Expected the URL of a PostgreSQL database, got {url}. Write"
            " postgresql://USER@HOST/DATABASE."
        ) from None
    driver = "postgresql+psycopg" if made.drivername == "postgresql" else made.drivername
    query = {"connect_timeout": "30", **made.query}
    # No pool: a pooled connection breaks if the process forks or the server restarts.
    # hide_parameters keeps entries out of error messages.
    return create_engine(
        made.set(drivername=driver, query=query), poolclass=NullPool, hide_parameters=True
    )


@contextlib.contextmanager
def _errors(url: LedgerUrl) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("sqlalchemy", "psycopg")):
            raise
        fix = (
            "Set PGPASSWORD or ~/.pgpass: a ledger, or an estimator with one, that was pickled or"
            " sent to a process holds no password."
            if "no password supplied" in str(error)
            else "If the connection broke while it was written, `labeldp ledger history` shows"
            " whether it was."
        )
        raise LedgerError(
            f"Expected a ledger that can be read and written at {url}, got: {_said(error)}. {fix}"
        ) from None


def _said(error: Exception) -> str:
    """Return the first line of the server's message, with passwords removed."""
    cause = getattr(error, "orig", None) or error
    line = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
    return re.sub(r"(password\s*=\s*)\S+|(://[^:/@\s]*):[^@\s]*@", r"\1\2***", line)[:200]
