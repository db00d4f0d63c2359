# SPDX-License-Identifier: Apache-2.0
"""Which rows a run covers, kept beside its charge so that only rows in several runs pay for several.

Integer ids are kept exactly. Other ids (text, bytes, several columns) are kept as a keyed filter of 2 bytes a row, which proves two runs
disjoint or names the few rows to look up. Where a unit is named, the set is that of the units' ids. All of it is public: ids, no labels.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput, LedgerError
from labeldp.privacy.blocks import blocks_of_names
from labeldp.privacy.keys import derive_key
from labeldp.privacy.rowset_filter import NameFilter
from labeldp.privacy.rowset_integers import IntegerPile, IntegerSet, as_integers, distinct, ordered
from labeldp.privacy.rowset_names import HashPile

Words = NDArray[np.uint64]
Kind = Literal["integers", "names"]

_MAGIC: Final = b"labeldp rows 1\n"
_MAX_CANDIDATES: Final = 1 << 20  # names that are looked up in one earlier run; with more, the runs count as overlapping


class RowSet:
    """The rows, or units, of one run; `RowSetBuilder.finish` makes it.

    Attributes
    ----------
    kind : str
        "integers" (exact) or "names" (a filter).
    count : int
        Different ids.
    names : str
        What the ids are, in words (the id columns): sets of differently named ids never prove anything about each other.
    key_id : str
        Of the key that names were hashed with: filters of different keys never prove anything about each other.
    candidates : mapping of run id to (n,) uint64, or None
        For names: keyed hashes of those that are probably in an earlier run, None where they are too many. Runs that the builder did not
        know are not in it. Not part of the stored bytes.
    """

    def __init__(
        self,
        kind: Kind,
        count: int,
        members: "IntegerSet | NameFilter",
        names: str = "",
        candidates: "Mapping[str, Words | None] | None" = None,
        key_id: str = "",
    ) -> None:
        self.kind, self.count, self.names, self.key_id = kind, count, names, key_id
        self.candidates = dict(candidates or {})
        self._members = members
        self._bytes: bytes | None = None

    def __repr__(self) -> str:
        return f"RowSet({self.kind}, {self.count} rows)"

    @property
    def integers(self) -> IntegerSet:
        """The exact set."""
        if not isinstance(self._members, IntegerSet):
            raise InvalidInput("Expected a set of integer ids, got a filter of names. Only integers are kept exactly.")
        return self._members

    @property
    def filter(self) -> NameFilter:
        """The filter of names."""
        if not isinstance(self._members, NameFilter):
            raise InvalidInput("Expected a filter of names, got a set of integer ids. Integers need no filter.")
        return self._members

    def to_bytes(self) -> bytes:
        """The set with a header, as a run's folder keeps it. Equal sets give equal bytes."""
        if self._bytes is None:
            header = json.dumps({"kind": self.kind, "count": self.count, "names": self.names, "key_id": self.key_id}, sort_keys=True)
            self._bytes = _MAGIC + header.encode() + b"\n" + self._members.to_bytes()
        return self._bytes

    @classmethod
    def from_bytes(cls, data: bytes, digest: str | None = None) -> "RowSet":
        """The set that `to_bytes` wrote; LedgerError where its bytes do not have the digest or are something else."""
        if digest is not None and hashlib.sha256(data).hexdigest() != digest:
            raise LedgerError("Expected a row set with the digest that the ledger keeps, got other bytes: it was damaged or replaced.")
        if not data.startswith(_MAGIC):
            raise LedgerError("Expected a row set of labeldp, got something else.")
        end = data.index(b"\n", len(_MAGIC))
        facts, body = json.loads(data[len(_MAGIC) : end]), memoryview(data)[end + 1 :]
        members = IntegerSet.from_bytes(body) if facts["kind"] == "integers" else NameFilter.from_bytes(body)
        return cls(facts["kind"], facts["count"], members, facts["names"], key_id=facts["key_id"])

    def facts(self) -> dict[str, object]:
        """What the charge's entry says of it, JSON-ready and public: kind, count, names and the digest of the bytes."""
        digest = hashlib.sha256(self.to_bytes()).hexdigest()
        return {"kind": self.kind, "count": self.count, "names": self.names, "digest": digest}


class RowSetBuilder:
    """Collects the ids of a run, batch by batch, in any order and in several processes.

    Picklable and mergeable: workers fill copies of an empty one, and `merge` gives the same set in any order. `Ledger.row_set_builder`
    makes it, with the ledger's own key for names and the filters of earlier runs.

    Memory: for integers see `IntegerPile`: 32 MB and about a bit a row where ids lie close together, up to 16 bytes a row where they
    are scattered over 64 bits. For names 8 bytes a row until `finish`, 16 MB with `spill`, then 2 bytes a row; a pickled one is as large.

    Parameters
    ----------
    integers : bool, optional
        Whether ids are one column of integers; None: the first batch decides.
    names : str
        What the ids are: the public names of the id columns.
    secret : bytes, optional
        The ledger's 32 bytes for hashing names; without it only integers can be added.
    earlier : mapping of run id to NameFilter
        Filters of earlier runs, in which the names are looked up while they are added.
    spill : bool
        Many names may go to a temporary file meanwhile.
    """

    def __init__(
        self,
        integers: bool | None = None,
        *,
        names: str = "",
        secret: bytes | None = None,
        earlier: Mapping[str, NameFilter] | None = None,
        spill: bool = False,
    ) -> None:
        self.integers, self.names = integers, names
        self._secret = secret
        self._earlier = dict(earlier or {})
        self._pile = IntegerPile()
        self._hashes = HashPile(spill=spill)
        self._candidates: dict[str, list[Words] | None] = {run: [] for run in self._earlier}

    def __repr__(self) -> str:
        return f"RowSetBuilder({self.count} rows)"  # never the secret

    @property
    def count(self) -> int:
        """Rows so far."""
        return self._pile.count + self._hashes.count

    @property
    def repeated(self) -> bool | None:
        """Whether some id came twice: exact for integers, None for names, which need another search."""
        return None if self.integers is False else len(self._pile.result()) < self._pile.count

    def add(self, ids: object) -> None:
        """Add a batch: an Arrow or NumPy array, an (n, columns) array, or anything that `id_blocks` takes."""
        values = None if self.integers is False else as_integers(ids)
        if self.integers is None:
            self.integers = values is not None
        if not self.integers:
            self._add_names(ids)
        elif values is None:
            raise InvalidInput("Expected one column of integer ids, as in the batches before; got something else. Cast the ids.")
        else:
            self._pile.add(ordered(values))

    def merge(self, other: "RowSetBuilder") -> None:
        """Add what another builder of the same ledger collected."""
        if not other.count:
            return
        if self.integers is None or not self.count:
            self.integers = other.integers
        if self.integers != other.integers or self.names != other.names:
            raise InvalidInput("Expected builders of the same kind of ids, got different ones. Cast the ids to one type.")
        self._pile.merge(other._pile)
        self._hashes.merge(other._hashes)
        for run in list(self._candidates):
            theirs = other._candidates.get(run)
            mine = self._candidates[run]
            self._candidates[run] = None if mine is None or theirs is None else _bounded(mine + theirs)

    def finish(self) -> RowSet:
        """The set of what was added."""
        if self.integers is not False:
            members = self._pile.result()
            return RowSet("integers", len(members), members, self.names)
        none = np.empty(0, np.uint64)
        found = {run: None if each is None else distinct(np.concatenate([*each, none])) for run, each in self._candidates.items()}
        names, count = self._hashes.finish()
        return RowSet("names", count, names, self.names, found, key_id(self._secret))

    def _add_names(self, ids: object) -> None:
        hashes = name_hashes(ids, self._secret)
        self._hashes.add(hashes)
        for run, earlier in self._earlier.items():
            kept = self._candidates[run]
            if kept is not None and (hit := earlier.has(hashes)).any():
                self._candidates[run] = _bounded([*kept, hashes[hit]])


def name_hashes(ids: object, secret: bytes | None) -> Words:
    """The keyed 64-bit hash of each name: (n,). Names that read alike have one hash, whatever their type."""
    if secret is None:
        raise InvalidInput("Expected integer ids without a ledger's secret, got names. Take the builder from Ledger.row_set_builder.")
    key = derive_key(secret, purpose="ids", facts={"use": "row sets"})
    return blocks_of_names(ids, key.material("id_blocks")).halves()[0]


def key_id(secret: bytes | None) -> str:
    """A public name of a ledger's secret, which tells nothing of it."""
    return "" if secret is None else hashlib.sha256(b"labeldp row sets\n" + secret).hexdigest()[:16]


def _bounded(found: list[Words]) -> list[Words] | None:
    return found if sum(map(len, found)) <= _MAX_CANDIDATES else None
