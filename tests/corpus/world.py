# SPDX-License-Identifier: Apache-2.0
"""A world that is the same each time: entropy, clock and rights of new files."""

import hashlib
import os
import pkgutil
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
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

RUN_ID = 16
_SECRET = 32
_OPTIONAL = {
    "torch",
    "lightning",
    "pyspark",
    "ray",
    "pandas",
    "sqlalchemy",
    "psycopg",
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
    """What a call is made in; it tells which infos of keys were used (`keys`)."""
    _load_all()
    seen = SimpleNamespace(keys=set())

    def derive(*args: Any, **facts: Any) -> HKDF:
        seen.keys.add(bytes(facts["info"] if "info" in facts else args[-1]).decode())
        return HKDF(*args, **facts)

    mask = os.umask(0o022)
    try:
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            same_entropy(patch)
            _everywhere(patch, "HKDF", HKDF, derive)
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
