# SPDX-License-Identifier: Apache-2.0
"""A world that is the same each time: entropy, clock, warnings and rights of new files, and a
process that dies where it is told to."""

import hashlib
import logging
import os
import pkgutil
import sqlite3
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, tzinfo
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

import labeldp
from labeldp.errors import LabelDPWarning

RUN_ID = 16
_SECRET = 32
_DIED = 77
_OPTIONAL = {
    "torch",
    "lightning",
    "pyspark",
    "ray",
    "pandas",
    "sqlalchemy",
    "psycopg",
    "faiss",
    "tensorboard",
    "PIL",
}


class Clock(datetime):
    """It stands still."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        """The first moment of 2026."""
        return cls(2026, 1, 1, tzinfo=tz)


def same_entropy(patch: pytest.MonkeyPatch) -> None:
    """The operating system's entropy and the clock give the same in every process.

    All secrets are one secret: however many are drawn to check something with, those that count
    stay the same. Ids count up, so that runs differ.
    """
    drawn: Counter[int] = Counter()

    real = os.urandom

    def entropy(size: int) -> bytes:
        if not str(sys._getframe(1).f_globals.get("__name__")).startswith(
            ("labeldp.", "tests.corpus.")
        ):
            return real(size)  # engines and other libraries draw how often they like
        drawn[size] += size != _SECRET
        return hashlib.shake_256(f"{size} bytes, draw {drawn[size]}".encode()).digest(size)

    patch.setattr("os.urandom", entropy)
    _everywhere(patch, "datetime", datetime, Clock)


@contextmanager
def world(folder: Path) -> Iterator[SimpleNamespace]:
    """What a call is made in; it tells which infos of keys were used (`keys`), what was warned of
    (`warned`), and logged (`logged`)."""
    _load_all()
    seen = SimpleNamespace(keys=set(), warned=[], logged=[])
    log = logging.Handler()
    log.emit = lambda record: seen.logged.append(
        f"{record.levelname} {record.name}: {record.getMessage()}"
    )  # type: ignore[method-assign]

    def derive(*args: Any, **facts: Any) -> HKDF:
        seen.keys.add(bytes(facts["info"] if "info" in facts else args[-1]).decode())
        return HKDF(*args, **facts)

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if issubclass(category, LabelDPWarning):  # other libraries' warnings are theirs
            seen.warned.append(f"{category.__name__}: {message}")

    mask = os.umask(0o022)
    try:
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("always")
            patch.setattr(warnings, "showwarning", show)
            patch.setattr(logging.getLogger("labeldp"), "handlers", [log])
            patch.setattr(logging.getLogger("labeldp"), "propagate", False)
            same_entropy(patch)
            _everywhere(patch, "HKDF", HKDF, derive)
            # nothing has been said yet in this process
            for name, module in list(sys.modules.items()):
                for said in (
                    {"_told", "_warned"} & vars(module).keys()
                    if name.startswith("labeldp.")
                    else ()
                ):
                    patch.setattr(module, said, set())
            patch.setenv("LABELDP_LEDGER", str(folder / "default.db"))
            patch.setenv("COLUMNS", "120")
            patch.setenv("NO_COLOR", "1")
            patch.delenv("LABELDP_KEY", raising=False)
            yield seen
    finally:
        os.umask(mask)


def _everywhere(patch: pytest.MonkeyPatch, name: str, old: object, new: object) -> None:
    """Replace what any module of the package has imported by name, so that it does not matter which
    one uses it."""
    for module in [each for path, each in sys.modules.items() if path.split(".")[0] == "labeldp"]:
        if vars(module).get(name) is old:
            patch.setattr(module, name, new)


@lru_cache(maxsize=1)
def _load_all() -> None:
    """Import every module of the package, so that none binds a name later."""
    for module in pkgutil.walk_packages(labeldp.__path__, "labeldp.", onerror=lambda name: None):
        if module.name.split(".")[1] == "deep" or module.name.endswith("__main__"):
            continue  # nothing secret is made there, and torch takes seconds
        try:
            import_module(module.name)
        except ImportError as error:
            if (
                getattr(error, "name", None) is not None
                and str(error.name).split(".")[0] not in _OPTIONAL
            ):
                raise


# A process that dies
# --------------------------------------------------------------------------------------------------


def dies(call: Callable[[], Any], at: int) -> bool:
    """Whether a process that makes the call came to its durable step of this number, and died
    before it; else the call was made.

    A fork of this process: its entropy goes on as here, and what is here has drawn nothing.
    """
    with warnings.catch_warnings():
        # of threads, which do not live on in the child
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.MonkeyPatch.context() as patch:
                _count_steps(patch, at)
                call()
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (
        0,
        _DIED,
    ), f"expected the call to end or to die at step {at}, got exit code {status}"
    return status == _DIED


def _count_steps(patch: pytest.MonkeyPatch, at: int) -> None:
    """Die before step `at` of those that another process, or the next start, can see."""
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1
        if taken == at:
            os._exit(_DIED)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            step()
            return real(*args, **more)

        return call

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
            if statement == "COMMIT":
                step()
            return super().execute(statement, *args)

    for name in ("fsync", "replace", "rename", "link", "unlink", "mkdir", "rmdir"):
        patch.setattr(os, name, counted(getattr(os, name)))
    connect = sqlite3.connect
    patch.setattr(
        sqlite3, "connect", lambda *args, **more: connect(*args, factory=Connection, **more)
    )
