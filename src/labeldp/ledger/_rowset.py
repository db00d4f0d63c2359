# SPDX-License-Identifier: Apache-2.0
"""Row sets: the rows that a run covers, and the epsilon that rows have spent over several runs.

A row set is stored with its run's charge, so that runs on disjoint rows do not add. It holds the
ids of the rows, and of their units if these are named: integers as they are, other ids (text,
bytes, several columns) as keyed 64-bit hashes. If two ids have one hash, two runs seem to share a
row: more is counted, never less. All of it is public: ids, no labels.
"""

import contextlib
import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from labeldp._validate import exact
from labeldp.errors import InvalidInput, LedgerError
from labeldp.ledger._database import ROW, RunRecord
from labeldp.ledger._run_store import RunStore
from labeldp.noise._secrets import SentSecret, derive_key, new_secret
from labeldp.noise._words import Blocks, integers_or_names

Kind = Literal["integers", "names"]
Role = Literal["row", "unit"]
Space = tuple[str, str, str]
"""Kind, name of the column, and key of the hashes. Only sets of one space can be compared, and so
prove rows disjoint."""

_MAGIC: Final = b"labeldp rows 2\n"

Words = NDArray[np.uint64]

# numbers (32 MB) that wait to be sorted: a sorted batch changes each container of a bitmap once
_BUFFERED: Final = 1 << 22
# numbers to a container of 65,536 values, below which a container costs more than 8 bytes a number
_SPARSE: Final = 4
# scattered numbers that are compared with a bitmap at a time, which bounds the memory for their own
# bitmap
_PIECE: Final = 1 << 20

FILE: Final = "rows.bin"
"""The file in a run's folder that holds its row set."""
_SECRET: Final = ".ids-key"


@dataclass(frozen=True, eq=False, repr=False)
class IdSet:
    """The ids of one column, or of several columns that form one id.

    Attributes
    ----------
    kind : str
        "integers", or "names": hashes of ids of any other type.
    name : str
        The name of the columns.
    key_id : str
        Public id of the key of the hashes; "" for integers.
    members : NumberSet
    """

    kind: Kind
    name: str
    key_id: str
    members: "NumberSet"

    @property
    def space(self) -> Space:
        """The kind, name and key of the ids. Only sets that agree in all three can be compared."""
        return self.kind, self.name, self.key_id

    def shared(self, other: "IdSet") -> int | None:
        """Count the ids that are in both sets; None if the sets cannot be compared."""
        return self.members.shared(other.members) if self.space == other.space else None


class RowSet:
    """The rows that one run covers, and their units if these are named. Made by
    `RowSetBuilder.finish`.

    Attributes
    ----------
    sets : mapping of "row" or "unit" to IdSet
    """

    def __init__(self, sets: Mapping[Role, IdSet]) -> None:
        self.sets = dict(sets)
        self._bytes: bytes | None = None

    def shared(self, other: "RowSet") -> dict[Role, int | None]:
        """Count the rows, and the units, that are in both sets: None if they cannot be compared; no
        member if only one set has them."""
        return {
            role: ids.shared(other.sets[role])
            for role, ids in self.sets.items()
            if role in other.sets
        }

    def to_bytes(self) -> bytes:
        """Write the sets with a header: the content of the file in the run's folder."""
        if self._bytes is None:
            bodies = {role: ids.members.chunks() for role, ids in sorted(self.sets.items())}
            facts = self._facts()
            header = {
                role: facts[role] | {"key_id": ids.key_id, "bytes": sum(map(len, bodies[role]))}
                for role, ids in self.sets.items()
            }
            head = _MAGIC + json.dumps(header, sort_keys=True).encode() + b"\n"
            self._bytes = b"".join([head, *(chunk for body in bodies.values() for chunk in body)])
        return self._bytes

    @classmethod
    def from_bytes(cls, data: bytes, digest: str) -> "RowSet":
        """Read the sets that `to_bytes` wrote; LedgerError if the bytes have another digest or
        format."""
        # Before anything is parsed. A forged set with fewer rows would free the others of what they
        # have spent.
        if hashlib.sha256(data).hexdigest() != digest:
            raise LedgerError(
                "Expected a row set with the digest that the ledger keeps, got other bytes: it was"
                " damaged or replaced."
            )
        if not data.startswith(_MAGIC):
            raise LedgerError(
                "Expected a row set of this version of labeldp, got something else: it proves"
                " nothing."
            )
        end = data.index(b"\n", len(_MAGIC))
        sets, place = {}, end + 1
        for role, facts in sorted(json.loads(data[len(_MAGIC) : end]).items()):
            members = NumberSet.from_bytes(memoryview(data)[place : place + facts["bytes"]])
            sets[role] = IdSet(facts["kind"], facts["name"], facts["key_id"], members)
            place += facts["bytes"]
        return cls(sets)

    def facts(self) -> dict[str, object]:
        """Return the public facts for the charge's entry, JSON-ready: kind, name and count of each
        set, and the digest of the bytes."""
        return {**self._facts(), "digest": hashlib.sha256(self.to_bytes()).hexdigest()}

    def _facts(self) -> dict[str, dict[str, object]]:
        return {
            role: {"kind": ids.kind, "name": ids.name, "count": len(ids.members)}
            for role, ids in sorted(self.sets.items())
        }


class RowSetBuilder:
    """Collects the ids of a run, batch by batch, in any order and in several processes.

    It can be pickled: workers fill copies of an empty one, and `merge` gives the same set in any
    order. `Ledger.row_set_builder` makes it, with the ledger's key for hashing text.

    Parameters
    ----------
    id_name, unit_name : str
        The names of the columns (`labeldp.custody._encode`).
    secret : bytes or function, optional
        The ledger's 32 bytes for hashing names, or a function that returns them. It is called for
        the first names, and before the builder is pickled. Without a secret only integers can be
        added.

    Notes
    -----
    Memory, for rows and again for units: 32 MB; and for integers about a bit a row if they are
    dense, up to 8 bytes a row if they are scattered over 64 bits, as hashes are; twice that in
    `finish`. A pickled builder is as large as its set.
    """

    def __init__(
        self,
        id_name: str = "id",
        unit_name: str = "unit",
        *,
        secret: bytes | Callable[[], bytes] | None = None,
    ) -> None:
        self._names: dict[Role, str] = {"row": id_name, "unit": unit_name}
        self._secret = secret
        self._piles: dict[Role, _Pile] = {}

    @property
    def repeated(self) -> bool | None:
        """True if some row's id occurred twice, False if not; None if two rows have one 64-bit
        hash, which may be two ids."""
        rows = self._piles.get("row")
        if rows is None:
            return None
        # As many different numbers as were added: no repeat. If there are fewer hashes than names,
        # two ids may have one hash.
        return (
            False
            if len(rows.members()) == rows.count
            else True
            if rows.kind == "integers"
            else None
        )

    def add(self, ids: object = None, units: object = None) -> None:
        """Add the ids, units, or both, of a batch: each in any form that `id_blocks` takes; None if
        the table has none."""
        roles: tuple[tuple[Role, object], ...] = (("row", ids), ("unit", units))
        given = {role: each for role, each in roles if each is not None}
        if not given or (self._piles and given.keys() != self._piles.keys()):
            raise InvalidInput(
                "Expected ids, or units, or both, the same in every batch; got others. Pass what"
                " the first batch had."
            )
        for role, each in given.items():
            found = integers_or_names(each, self._key)
            pile = self._piles.setdefault(role, _Pile())
            pile.add(
                "names" if isinstance(found, Blocks) else "integers",
                found.halves()[0] if isinstance(found, Blocks) else found,
            )

    def merge(self, other: "RowSetBuilder") -> None:
        """Add the ids of another builder of the same ledger."""
        if self._names != other._names:
            raise InvalidInput(
                "Expected builders of the same columns of ids, got different ones. Make all of them"
                " in the same way."
            )
        for role, pile in other._piles.items():
            self._piles.setdefault(role, _Pile()).merge(pile)

    def finish(self) -> RowSet:
        """Make the set of all ids added so far; more may be added afterwards."""
        if not self._piles:
            raise InvalidInput("Expected ids or units of some rows, got none. Add them first.")
        sets: dict[Role, IdSet] = {}
        for role, pile in self._piles.items():
            kind: Kind = pile.kind or "integers"
            key_id = (
                hashlib.sha256(b"labeldp row sets\n" + self._bytes()).hexdigest()[:16]
                if kind == "names"
                else ""
            )
            sets[role] = IdSet(kind, self._names[role], key_id, pile.members())
        return RowSet(sets)

    def __getstate__(self) -> dict[str, Any]:
        # The function reads the ledger's folder, which a worker's machine may not have. So the
        # bytes are sent, as a `SentSecret`, which hides them when printed.
        return vars(self) | {"_secret": None if self._secret is None else self._bytes()}

    def _bytes(self) -> bytes:
        if self._secret is None:
            raise InvalidInput(
                "Expected integer ids without a ledger's secret, got others. Take the builder from"
                " Ledger.row_set_builder."
            )
        self._secret = self._secret if isinstance(self._secret, bytes) else self._secret()
        return self._secret

    def _key(self) -> bytes:
        return derive_key(self._bytes(), purpose="ids", facts={"use": "row sets"}).material(
            "id_blocks"
        )


class _Pile:
    """Collects the ids of one role. Negative integers are collected apart, so that -1 and 2^64 - 1
    stay two ids."""

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

    def members(self) -> "NumberSet":
        return NumberSet(self._natural.result(), self._negative.result())

    def _take(self, kind: Kind) -> None:
        if self.kind not in (None, kind):
            raise InvalidInput(
                "Expected ids of one type in all batches, got integers in one and others in"
                " another. Cast them to one type."
            )
        self.kind = kind


# Row sets in the runs' folders
# --------------------------------------------------------------------------------------------------

# A set is written before its charge. The ledger stores its facts and digest, the run's folder its
# bytes. A set that is missing, has another digest or another format proves nothing: then its run
# counts for every row, which is more, never less.


class RowSets:
    """Keeps and reads the row sets of a ledger's runs.

    Parameters
    ----------
    folder : Path
        The private folder of all runs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, run_id: str, rows: RowSet) -> None:
        """Write the row set of a run, before its charge."""
        # An existing set belongs to a charge: replacing it would make that run cover other rows
        # than it has drawn.
        if (self.folder / run_id / FILE).exists():
            raise LedgerError(
                f"Expected a run id that was never charged, got {run_id}. Make one with"
                " new_run_id()."
            )
        RunStore(self.folder / run_id).write(FILE, rows.to_bytes(), last=False)

    def forget(self, run_id: str) -> None:
        """Remove the set of a run whose charge was refused."""
        (self.folder / run_id / FILE).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (self.folder / run_id).rmdir()  # fails, as it should, if anything else is in it

    def load(self, run: RunRecord) -> RowSet | None:
        """Read a run's set; None if it has none, or none that can be trusted."""
        if run.rows is None:
            return None
        try:
            data = RunStore(self.folder / run.run_id).read(FILE)
            return None if data is None else RowSet.from_bytes(data, str(run.rows["digest"]))
        except (LedgerError, OSError, ValueError, KeyError):
            return None

    def harmed(self, run: RunRecord) -> bool:
        """Tell whether the ledger names a set that is missing or damaged."""
        return run.rows is not None and self.load(run) is None

    def secret(self) -> bytes:
        """Read the ledger's own 32 bytes for hashing names; the first call makes them."""
        # One key for all runs, else their sets could not be compared. A key at all, because names
        # (of patients, say) can be guessed, and unkeyed hashes in a copied row set would confirm a
        # guess.
        path = self.folder / _SECRET
        if not path.exists():  # of two processes, the bytes of the first one count
            RunStore(self.folder).keep(_SECRET, new_secret())
        secret = SentSecret(path.read_bytes())
        if len(secret) != 32:
            raise LedgerError(
                f"Expected 32 bytes in {path}, got {len(secret)}. Restore it; without it names"
                " cannot be compared."
            )
        return secret


def overlaps(rows: RowSet | None, runs: Iterable[RunRecord], sets: RowSets) -> dict[str, str]:
    """Find the runs that may share a row or a unit with `rows`: for each run id, the number that
    they share, in words."""
    found: dict[str, str] = {}
    for run in runs:
        theirs = None if rows is None else sets.load(run)
        shared = {} if rows is None or theirs is None else rows.shared(theirs)
        # ids of another name, or a lost set: nothing proves the rows disjoint
        if not shared or None in shared.values():
            found[run.run_id] = "an unknown number of them"
        elif shared.get("row"):
            found[run.run_id] = f"{shared['row']:,} of them"
        elif shared.get("unit"):
            found[run.run_id] = f"{shared['unit']:,} of their units"
    return found


# Exact sets of 64-bit integers
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class IntegerSet:
    """A set of uint64.

    Attributes
    ----------
    members : BitMap64 or (n,) uint64 array
        A compressed bitmap if the numbers are dense, else sorted numbers without repeats. The form
        of a small set depends on how it was filled; every operation takes both.
    """

    members: "BitMap64 | Words"

    def __len__(self) -> int:
        return len(self.members)

    def __and__(self, other: "IntegerSet") -> "IntegerSet":
        return self._with(other, keep=True)

    def __sub__(self, other: "IntegerSet") -> "IntegerSet":
        return self._with(other, keep=False)

    def __or__(self, other: "IntegerSet") -> "IntegerSet":
        pile = IntegerPile()
        for each in (self, other):
            pile.add_set(each)
        return pile.result()

    def _with(self, other: "IntegerSet", *, keep: bool) -> "IntegerSet":
        mine, theirs = self.members, other.members
        if isinstance(mine, BitMap64) and isinstance(theirs, BitMap64):
            return IntegerSet(mine & theirs if keep else mine - theirs)
        if isinstance(mine, np.ndarray):
            return IntegerSet(mine[_inside(mine, theirs) == keep])
        common = BitMap64()  # the common numbers are at most as many as the scattered ones
        for piece in _pieces(np.asarray(theirs, np.uint64)):
            common |= mine & _bitmap(piece)
        return IntegerSet(common if keep else mine - common)

    def shared(self, other: "IntegerSet") -> int:
        """Count the numbers that are in both sets."""
        if isinstance(self.members, BitMap64) and isinstance(other.members, BitMap64):
            return int(self.members.intersection_cardinality(other.members))
        return len(self & other)

    def chunks(self) -> list[memoryview]:
        """Write the set: one byte of form, then roaring's portable format or little-endian numbers.

        Equal sets of one form give equal bytes.
        """
        if isinstance(self.members, np.ndarray):
            return [memoryview(b"n"), self.members.astype("<u8", copy=False).view(np.uint8).data]
        # picks the smallest containers, the same however the set was filled
        self.members.run_optimize()
        return [memoryview(b"b"), memoryview(self.members.serialize())]

    @classmethod
    def from_bytes(cls, data: "bytes | memoryview") -> "IntegerSet":
        """Read the set that `chunks` wrote. The caller must have checked a digest: the formats do
        not detect damage."""
        form, rest = bytes(data[:1]), data[1:]
        if form == b"n":
            return cls(np.frombuffer(rest, "<u8").astype(np.uint64, copy=False))
        return cls(BitMap64.deserialize(bytes(rest)))


@dataclass(frozen=True, eq=False, repr=False)
class NumberSet:
    """A set of integers from -2^63 to 2^64 - 1, which holds ids of every integer type.

    Attributes
    ----------
    natural, negative : IntegerSet
        The members from 0 on; the members below 0, as the 64 bits of their two's complement.
    """

    natural: IntegerSet
    negative: IntegerSet

    def __len__(self) -> int:
        return len(self.natural) + len(self.negative)

    def __and__(self, other: "NumberSet") -> "NumberSet":
        return NumberSet(self.natural & other.natural, self.negative & other.negative)

    def __sub__(self, other: "NumberSet") -> "NumberSet":
        return NumberSet(self.natural - other.natural, self.negative - other.negative)

    def __or__(self, other: "NumberSet") -> "NumberSet":
        return NumberSet(self.natural | other.natural, self.negative | other.negative)

    def shared(self, other: "NumberSet") -> int:
        """Count the numbers that are in both sets."""
        return self.natural.shared(other.natural) + self.negative.shared(other.negative)

    def chunks(self) -> list[memoryview]:
        """Write the set: the length of the first part as 8 bytes, then both parts."""
        natural = self.natural.chunks()
        return [
            memoryview(sum(map(len, natural)).to_bytes(8, "little")),
            *natural,
            *self.negative.chunks(),
        ]

    @classmethod
    def from_bytes(cls, data: "bytes | memoryview") -> "NumberSet":
        """Read the set that `chunks` wrote; see `IntegerSet.from_bytes`."""
        end = 8 + int.from_bytes(data[:8], "little")
        return cls(IntegerSet.from_bytes(data[8:end]), IntegerSet.from_bytes(data[end:]))


class IntegerPile:
    """Collects integers for an `IntegerSet`.

    Memory: 32 MB of waiting numbers, and the set so far: a bit or less a number if they are dense,
    at most 2 bytes if every 65,536 values hold a few, 8 bytes a number if they are scattered (16 in
    `result`).
    """

    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[Words] = []
        self._n_waiting = 0
        self._bitmap = BitMap64()
        self._scattered: list[Words] = []

    def add(self, values: Words) -> None:
        """Add numbers in any order."""
        if not len(values):
            return
        self.count += len(values)
        # Consecutive numbers, which most tables have, go into the bitmap as one range: nothing is
        # sorted or copied.
        first, last = int(values[0]), int(values[-1])
        if (
            last - first == len(values) - 1
            and last < 2**64 - 1
            and bool((values[1:] - values[:-1] == 1).all())
        ):
            self._bitmap.add_range(first, last + 1)
            return
        self._waiting.append(values)
        self._n_waiting += len(values)
        if self._n_waiting >= _BUFFERED:
            self._flush()

    def add_set(self, other: IntegerSet) -> None:
        """Add the numbers of a set."""
        self.count += len(other)
        if isinstance(other.members, BitMap64):
            self._bitmap |= other.members
        else:
            self._scattered.append(other.members)

    def merge(self, other: "IntegerPile") -> None:
        """Add the numbers of another pile."""
        other._flush()
        self._bitmap |= other._bitmap
        self._scattered += other._scattered
        self.count += other.count

    def result(self) -> IntegerSet:
        """Make the set of all numbers so far; more may be added afterwards."""
        self._flush()
        # Batches that were sparse one by one may be dense together, so the form is chosen once
        # more, for all of them.
        if self._scattered and (len(self._scattered) > 1 or self._bitmap):
            self._scattered.append(np.asarray(self._bitmap.to_array(), np.uint64))
            values = np.concatenate(self._scattered)
            self._scattered, self._bitmap = [], BitMap64()
            self._keep(distinct(values))
        return IntegerSet(self._scattered[0] if self._scattered else self._bitmap.copy())

    def __getstate__(self) -> dict[str, Any]:
        self._flush()
        return {
            "count": self.count,
            "bitmap": bytes(self._bitmap.serialize()),
            "scattered": self._scattered,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.count, self._scattered = state["count"], list(state["scattered"])
        self._bitmap = BitMap64.deserialize(state["bitmap"])

    def _flush(self) -> None:
        if self._waiting:
            values = np.concatenate(self._waiting)
            self._waiting, self._n_waiting = [], 0
            self._keep(distinct(values))

    def _keep(self, values: Words) -> None:
        """Keep sorted numbers as an array or as a bitmap, whichever takes less memory, by their
        mean number in a container of 65,536 values."""
        containers = 1 + int(np.count_nonzero((values[1:] ^ values[:-1]) >> np.uint64(16)))
        if len(values) < _SPARSE * containers:
            self._scattered.append(values)
        else:
            self._bitmap |= _bitmap(values)


def distinct(values: Words) -> Words:
    """Sort numbers in place and return them without repeats; many times faster than np.unique,
    which hashes."""
    values.sort()
    fresh = values[1:] != values[:-1]
    return values if fresh.all() else values[np.r_[True, fresh]]


def _pieces(values: Words) -> Iterator[Words]:
    return (values[start : start + _PIECE] for start in range(0, len(values), _PIECE))


def _inside(values: Words, other: "BitMap64 | Words") -> NDArray[np.bool_]:
    """Tell which of the sorted values are in the other set: (n,) bool."""
    if isinstance(other, np.ndarray):
        if not len(other):
            return np.zeros(len(values), bool)
        return np.asarray(
            other[np.minimum(np.searchsorted(other, values), len(other) - 1)] == values
        )
    found = [np.zeros(0, bool)]
    for piece in _pieces(values):
        common = np.asarray((_bitmap(piece) & other).to_array(), np.uint64)
        found.append(_inside(piece, common))
    return np.concatenate(found)


def _bitmap(values: Words) -> BitMap64:
    # an array is read as it is; of anything else each number would become an object first
    return BitMap64(array("Q", values.tobytes()))


# Epsilon by rows
# --------------------------------------------------------------------------------------------------

# The epsilon of the most used row is the maximum over rows of the sum over the runs that cover the
# row. It is computed exactly for runs whose ids are of one space (kind, name and key), and bounded
# from above otherwise: sets of two spaces cannot be compared, so the maxima of several spaces add;
# a run without a set that can be trusted counts for every row. If units are named, units and rows
# are counted side by side, and the larger sum counts: else renaming all people in the column of
# units would make the same rows look new.


class Spend:
    """Adds the epsilon, or delta, of the runs of one (dataset, column), by the rows that they
    cover.

    Parameters
    ----------
    set_of : function of a run
        Reads its row set; None if it has none that can be trusted.
    runs : iterable of RunRecord, default=()
    cost : {"epsilon", "delta"}
        What is added, as the exact decimal number that its float prints as.
    """

    def __init__(
        self,
        set_of: Callable[[RunRecord], RowSet | None],
        runs: Iterable[RunRecord] = (),
        cost: Literal["epsilon", "delta"] = "epsilon",
    ) -> None:
        self._set_of, self._cost = set_of, cost
        self._everywhere = Fraction(0)
        self._spaces: dict[Role, dict[Space, Levels]] = {}
        for run in runs:
            self.add(run)

    def add(self, run: RunRecord) -> None:
        """Add a run."""
        rows, cost = self._set_of(run), exact(getattr(run.receipt, self._cost))
        # the set does not name the units of protection
        if rows is None or (ROW if run.receipt.unit == ROW else "unit") not in rows.sets:
            self._everywhere += cost
            return
        for role, ids in rows.sets.items():
            self._spaces.setdefault(role, {}).setdefault(ids.space, Levels()).add(cost, ids.members)

    @property
    def most(self) -> Fraction:
        """The sum for the most used row, or unit."""
        return self._everywhere + max(map(_most, self._spaces.values()), default=Fraction(0))

    def covered(self, rows: RowSet | None) -> Fraction:
        """Return the sum for the most used of these rows; None: of all rows."""
        protected = "unit" if "unit" in self._spaces else ROW
        if rows is None or protected not in rows.sets:  # the most used row may be among them
            return self.most
        found = [
            _covered(self._spaces[role], ids)
            for role, ids in rows.sets.items()
            if role in self._spaces
        ]
        return self._everywhere + max(found, default=Fraction(0))

    def by_rows(self) -> list[tuple[Fraction, int | None]]:
        """List (sum, number of rows or units), least first, if all runs are of one space; else one
        bound for all rows, without a number."""
        spaces = self._spaces.get("unit", self._spaces.get("row", {}))
        if len(spaces) != 1 or not _most(spaces) or self._everywhere + _most(spaces) < self.most:
            return [(self.most, None)]
        (levels,) = spaces.values()
        return [
            (spent + self._everywhere, len(members))
            for spent, members in sorted(levels.rows.items())
        ]


def _most(spaces: "dict[Space, Levels]") -> Fraction:
    return sum((levels.most for levels in spaces.values()), Fraction(0))


def _covered(spaces: "dict[Space, Levels]", ids: IdSet) -> Fraction:
    return sum(
        (
            levels.covered(ids.members) if space == ids.space else levels.most
            for space, levels in spaces.items()
        ),
        Fraction(0),
    )


class Levels:
    """Partitions the rows of one space by their sum, so that a sum is stored once for a set of rows
    and not for each row."""

    def __init__(self) -> None:
        self.rows: dict[Fraction, NumberSet] = {}
        """The rows of each sum; no level is empty."""

    @property
    def most(self) -> Fraction:
        """The highest level."""
        return max(self.rows, default=Fraction(0))

    def covered(self, members: NumberSet) -> Fraction:
        """Return the highest level that contains any of these rows; 0 if none does."""
        for spent in sorted(self.rows, reverse=True):
            if self.rows[spent].shared(members):
                return spent
        return Fraction(0)

    def add(self, cost: Fraction, members: NumberSet) -> None:
        """Add a cost to these rows: each level splits into its rows that are among them and the
        others."""
        # `rest` is what no level has yet: rows that spend for the first time.
        made: dict[Fraction, NumberSet] = {}
        rest = members
        for spent, rows in self.rows.items():
            both = rows & members
            _join(made, spent + cost, both)
            _join(made, spent, rows - both if len(both) else rows)
            rest = rest - both if len(both) else rest
        _join(made, cost, rest)
        self.rows = made


def _join(levels: dict[Fraction, NumberSet], spent: Fraction, rows: NumberSet) -> None:
    if len(rows):
        levels[spent] = levels[spent] | rows if spent in levels else rows
