# SPDX-License-Identifier: Apache-2.0
"""Releases of tables: their specification (`ReleaseSpec`), their place (`Place`), and readers of
released tables (`read_noisy`).

`labeldp.release` releases files, `labeldp.tables.spark` and `labeldp.tables.ray` tables of a
cluster. Names are imported at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labeldp.tables._evidence import read_histogram, read_noisy
    from labeldp.tables._place import Place
    from labeldp.tables._priors import PriorTable
    from labeldp.tables._spec import ReleaseSpec

_HOME = {
    "Place": "_place",
    "PriorTable": "_priors",
    "ReleaseSpec": "_spec",
    "read_histogram": "_evidence",
    "read_noisy": "_evidence",
}

__all__ = ["Place", "PriorTable", "ReleaseSpec", "read_histogram", "read_noisy"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"labeldp.tables.{_HOME[name]}"), name)
