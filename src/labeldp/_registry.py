# SPDX-License-Identifier: Apache-2.0
"""Classes by the names that files, ledgers and users call them by."""

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeVar

Kind = TypeVar("Kind")


class Registry(UserDict[str, type[Kind]]):
    """Classes by name, some of them by their place, from which they are imported at first use."""

    data: dict[str, Any]

    def place(self, places: Mapping[str, str]) -> None:
        """Name classes of parts that this one must not import: "package.module:Class" by name."""
        self.data.update(places)

    def __getitem__(self, name: str) -> type[Kind]:
        found = self.data[name]
        if isinstance(found, str):
            module, _, cls = found.partition(":")
            found = self.data[name] = getattr(import_module(module), cls)
        kind: type[Kind] = found
        return kind
