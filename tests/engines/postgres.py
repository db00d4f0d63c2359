# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL server for tests: Debian's binaries, a data folder of its own, a Unix socket,
gone afterwards."""

import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


def binaries() -> Path | None:
    """The folder of initdb and pg_ctl, newest version first."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"),
        key=lambda path: int(path.parts[-3]),
        reverse=True,
    )
    return found[0].parent if found else None


def why_not() -> str:
    """Why there can be no server here; "" if there can."""
    if (
        importlib.util.find_spec("sqlalchemy") is None
        or importlib.util.find_spec("psycopg") is None
    ):
        return "sqlalchemy and psycopg are not installed: pip install 'labeldp[postgres]'"
    if binaries() is None:
        return "no PostgreSQL server: apt install postgresql"
    if os.geteuid() == 0 and not (_is_user("postgres") and shutil.which("runuser")):
        return "PostgreSQL does not run as root, and there is no user postgres"
    return ""


def _is_user(name: str) -> bool:
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam(name))
    return False


@contextlib.contextmanager
def server(more: str = "") -> Iterator[str]:
    """A running server: its URL, to be completed by `.format(name=DATABASE)`."""
    found = binaries()
    assert found is not None
    folder = Path(tempfile.mkdtemp(prefix="labeldp-pg-"))
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if as_user:
        shutil.chown(folder, "postgres")

    def run(*command: object) -> None:
        done = subprocess.run(
            [*as_user, *map(str, command)], cwd="/", capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr

    data = folder / "data"
    try:
        run(
            found / "initdb",
            "-D",
            data,
            "-U",
            "labeldp",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
        )
        options = f"-k {folder} -c listen_addresses= -c max_connections=40 {more}"
        run(
            found / "pg_ctl",
            "-D",
            data,
            "-w",
            "-t",
            "60",
            "-l",
            folder / "log",
            "-o",
            options,
            "start",
        )
        folder.chmod(0o755)
        yield f"postgresql://labeldp@/{{name}}?host={folder}"
    finally:
        with contextlib.suppress(Exception):
            run(found / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder, ignore_errors=True)
