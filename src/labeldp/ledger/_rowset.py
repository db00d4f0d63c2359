# SPDX-License-Identifier: Apache-2.0
"""Which rows a run covers, kept beside its charge so that only rows in several runs pay for several.

The set of the rows' ids, and that of the units' where these are named, each exact: integers as they are, other ids (text, bytes, several
columns) as keyed 64-bit hashes. Two different ids with one hash make two runs share a row that they do not: more is counted, never less.
All of it is public: ids, no labels.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput, LedgerError
from labeldp.ledger._integers import IntegerPile, NumberSet
from labeldp.noise._secrets import derive_key
from labeldp.noise._words import Blocks, integers_or_names

Kind = Literal["integers", "names"]
Role = Literal["row", "unit"]
Space = tuple[str, str, str]
"""Kind, name of the column, and key of the hashes: only sets of one space can prove rows disjoint."""

_MAGIC: Final = b"labeldp rows 2\n"


@dataclass(frozen=True, eq=False, repr=False)
class IdSet:
    """The ids of one column, or of several together.

    Attributes
    ----------
    kind : str
        "integers", or "names": hashes of ids of any other type.
    name : str
        What the columns are called.
    key_id : str
        Of the key that names were hashed with, "" for integers.
    members : NumberSet
    """

    kind: Kind
    name: str
    key_id: str
    members: NumberSet

    @property
    def space(self) -> Space:
        """What two sets must have in common for one to prove anything about the other."""
        return self.kind, self.name, self.key_id

    def shared(self, other: "IdSet") -> int | None:
        """How many ids are in both; None where that cannot be told."""
        return self.members.shared(other.members) if self.space == other.space else None


class RowSet:
    """The rows of one run, and the units they belong to where units are named; `RowSetBuilder.finish` makes it.

    Attributes
    ----------
    sets : mapping of "row" or "unit" to IdSet
    """

    def __init__(self, sets: Mapping[Role, IdSet]) -> None:
        self.sets = dict(sets)
        self._bytes: bytes | None = None

    def __repr__(self) -> str:
        return f"RowSet({', '.join(f'{len(ids.members)} {role}s' for role, ids in sorted(self.sets.items()))})"

    def shared(self, other: "RowSet") -> dict[Role, int | None]:
        """How many rows, and units, are in both sets, None where that cannot be told; empty where they know nothing in common."""
        return {role: ids.shared(other.sets[role]) for role, ids in self.sets.items() if role in other.sets}

    def to_bytes(self) -> bytes:
        """The sets with a header, as a run's folder keeps them."""
        if self._bytes is None:
            bodies = {role: ids.members.chunks() for role, ids in sorted(self.sets.items())}
            facts = self._facts()
            header = {role: facts[role] | {"key_id": ids.key_id, "bytes": sum(map(len, bodies[role]))} for role, ids in self.sets.items()}
            head = _MAGIC + json.dumps(header, sort_keys=True).encode() + b"\n"
            self._bytes = b"".join([head, *(chunk for body in bodies.values() for chunk in body)])
        return self._bytes

    @classmethod
    def from_bytes(cls, data: bytes, digest: str) -> "RowSet":
        """The sets that `to_bytes` wrote; LedgerError where the bytes do not have the digest or are something else."""
        if hashlib.sha256(data).hexdigest() != digest:
            raise LedgerError("Expected a row set with the digest that the ledger keeps, got other bytes: it was damaged or replaced.")
        if not data.startswith(_MAGIC):
            raise LedgerError("Expected a row set of this version of labeldp, got something else: it proves nothing.")
        end = data.index(b"\n", len(_MAGIC))
        sets, place = {}, end + 1
        for role, facts in sorted(json.loads(data[len(_MAGIC) : end]).items()):
            members = NumberSet.from_bytes(memoryview(data)[place : place + facts["bytes"]])
            sets[role] = IdSet(facts["kind"], facts["name"], facts["key_id"], members)
            place += facts["bytes"]
        return cls(sets)

    def facts(self) -> dict[str, object]:
        """What the charge's entry says of it, JSON-ready and public: kind, name and count of each set, and the digest of the bytes."""
        return {**self._facts(), "digest": hashlib.sha256(self.to_bytes()).hexdigest()}

    def _facts(self) -> dict[str, dict[str, object]]:
        return {role: {"kind": ids.kind, "name": ids.name, "count": len(ids.members)} for role, ids in sorted(self.sets.items())}


class RowSetBuilder:
    """Collects the ids of a run, batch by batch, in any order and in several processes.

    Picklable and mergeable: workers fill copies of an empty one, and `merge` gives the same set in any order. `Ledger.row_set_builder`
    makes it, with the ledger's own key for names.

    Memory, for the rows and again for the units: 32 MB, and for integers about a bit a row where they lie close together, up to 8 bytes a
    row where they are scattered over 64 bits, as hashes of names always are; twice that while the set is finished. A pickled one is as
    large as its set.

    Parameters
    ----------
    id_name, unit_name : str
        What the columns are called (`labeldp.custody._encode`).
    secret : bytes, or function that gives them, optional
        The ledger's 32 bytes for hashing names; without it only integers can be added. A function is called for the first names, and
        before the builder is sent to another process.
    """

    def __init__(self, id_name: str = "id", unit_name: str = "unit", *, secret: bytes | Callable[[], bytes] | None = None) -> None:
        self._names: dict[Role, str] = {"row": id_name, "unit": unit_name}
        self._secret = secret
        self._piles: dict[Role, _Pile] = {}

    def __repr__(self) -> str:
        return f"RowSetBuilder({', '.join(f'{pile.count} {role}s' for role, pile in self._piles.items())})"  # never the secret

    @property
    def repeated(self) -> bool | None:
        """Whether some row's id came twice; None where two rows have one hash, which another search must look into."""
        rows = self._piles.get("row")
        if rows is None:
            return None
        return False if len(rows.members()) == rows.count else True if rows.kind == "integers" else None

    def add(self, ids: object = None, units: object = None) -> None:
        """Add a batch: each an Arrow or NumPy array, an (n, columns) array, or anything else that `id_blocks` takes; None for none."""
        given: dict[Role, object] = {role: each for role, each in (("row", ids), ("unit", units)) if each is not None}  # type: ignore[misc]
        if not given or (self._piles and given.keys() != self._piles.keys()):
            raise InvalidInput("Expected ids, or units, or both, the same in every batch; got others. Pass what the first batch had.")
        for role, each in given.items():
            found = integers_or_names(each, self._key)
            pile = self._piles.setdefault(role, _Pile())
            pile.add("names" if isinstance(found, Blocks) else "integers", found.halves()[0] if isinstance(found, Blocks) else found)

    def merge(self, other: "RowSetBuilder") -> None:
        """Add what another builder of the same ledger collected."""
        if self._names != other._names:
            raise InvalidInput("Expected builders of the same columns of ids, got different ones. Make all of them in the same way.")
        for role, pile in other._piles.items():
            self._piles.setdefault(role, _Pile()).merge(pile)

    def finish(self) -> RowSet:
        """The set of what was added."""
        if not self._piles:
            raise InvalidInput("Expected ids or units of some rows, got none. Add them first.")
        sets: dict[Role, IdSet] = {}
        for role, pile in self._piles.items():
            kind: Kind = pile.kind or "integers"
            key_id = hashlib.sha256(b"labeldp row sets\n" + self._bytes()).hexdigest()[:16] if kind == "names" else ""
            sets[role] = IdSet(kind, self._names[role], key_id, pile.members())
        return RowSet(sets)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_secret": None if self._secret is None else self._bytes()}

    def _bytes(self) -> bytes:
        if self._secret is None:
            raise InvalidInput("Expected integer ids without a ledger's secret, got others. Take the builder from Ledger.row_set_builder.")
        self._secret = self._secret if isinstance(self._secret, bytes) else self._secret()
        return self._secret

    def _key(self) -> bytes:
        return derive_key(self._bytes(), purpose="ids", facts={"use": "row sets"}).material("id_blocks")


class _Pile:
    """The ids of one role so far."""

    def __init__(self) -> None:
        self.kind: Kind | None = None
        self._natural, self._negative = IntegerPile(), IntegerPile()

    @property
    def count(self) -> int:
        return self._natural.count + self._negative.count

    def add(self, kind: Kind, values: NDArray[np.integer]) -> None:
        if not len(values):
            return
        self._take(kind)
        if values.dtype.kind == "i" and values.min() < 0:
            below = values < 0
            self._negative.add(values[below].astype(np.int64).view(np.uint64))
            values = values[~below]
        self._natural.add(np.ascontiguousarray(values).astype(np.uint64, copy=False))

    def merge(self, other: "_Pile") -> None:
        if other.kind is not None:
            self._take(other.kind)
        self._natural.merge(other._natural)
        self._negative.merge(other._negative)

    def members(self) -> NumberSet:
        return NumberSet(self._natural.result(), self._negative.result())

    def _take(self, kind: Kind) -> None:
        if self.kind not in (None, kind):
            raise InvalidInput("Expected ids of one type in all batches, got integers in one and others in another. Cast them to one type.")
        self.kind = kind
