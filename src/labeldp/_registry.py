# SPDX-License-Identifier: Apache-2.0
"""Classes by the names that files, ledgers and users call them by."""

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import TypeVar

Kind = TypeVar("Kind")


class Registry(MutableMapping[str, type[Kind]]):
    """Classes by name, some of them by their place, from which they are imported at first use."""

    def __init__(self) -> None:
        self._known: dict[str, type[Kind] | str] = {}

    def place(self, places: Mapping[str, str]) -> None:
        """Name classes of parts that this one must not import: "package.module:Class" by name."""
        self._known.update(places)

    def __getitem__(self, name: str) -> type[Kind]:
        found = self._known[name]
        if isinstance(found, str):
            module, _, cls = found.partition(":")
            found = self._known[name] = getattr(import_module(module), cls)
        return found

    def __setitem__(self, name: str, kind: type[Kind]) -> None:
        self._known[name] = kind

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
