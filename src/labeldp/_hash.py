# SPDX-License-Identifier: Apache-2.0
"""Public, unkeyed hashes: ties that nobody can steer by a label, and names for sets of ids and for columns.

Nothing here is secret and nothing here makes noise. Never feed it a raw label.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp._strings import CHUNK, LongestFirst, Strings, decoded, from_arrow, from_numpy
from labeldp.errors import InvalidInput

_MIX1, _MIX2, _STEP = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15)


def digest(facts: Mapping[str, object]) -> str:
    """SHA-256 of public facts in canonical JSON, hexadecimal."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()).hexdigest()


def array_digest(arrays: Mapping[str, NDArray[np.generic]]) -> str:
    """SHA-256 of public arrays with their names, types and shapes, hexadecimal."""
    state = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        state.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        state.update(array.data if array.size else b"")
    return state.hexdigest()


def public_hash(salt: str, *ids: object) -> NDArray[np.uint64]:
    """A well-mixed uint64 for each id, or for each row of several of them: (n,), the same on every machine.

    Parameters
    ----------
    salt : str
        Public; another salt gives unrelated values.
    ids : columns of n rows
        (n,) or (n, columns) arrays, Arrow columns, tables, or lists of columns; of integers, or of strings and bytes. Equal bytes give
        equal hashes; NumPy's strings are compared without trailing NULs. A 2-D array of uint8 is a record of bytes for each row.
    """
    columns = _columns(ids)
    out = np.empty(_common_length(columns), np.uint64)
    for where, (state,) in _hash_chunks((salt,), columns):
        out[where] = state
    return out


Column = NDArray[np.integer] | Strings
"""(n,) integers, widened; (n, words) bytes of each row; or strings."""


def _columns(ids: Sequence[object]) -> list[Column]:
    return [column for part in ids for column in _parts(part)]


def _parts(part: Any) -> list[Column]:
    """The columns of one operand."""
    if isinstance(part, (list, tuple)):
        return _columns(part)
    if hasattr(part, "columns") and hasattr(part, "__arrow_c_stream__"):  # a table of Arrow, pandas or polars
        import pyarrow as pa

        return _columns(pa.table(part).columns)
    if hasattr(part, "__arrow_c_array__") or hasattr(part, "__arrow_c_stream__"):
        return [_arrow_column(part)]
    array = np.asarray(part)
    if array.ndim == 2 and array.dtype == np.uint8:
        return [_words(array)]
    return [_numpy_column(column) for column in (array.T if array.ndim == 2 else (array,))]


def _arrow_column(column: Any) -> Column:
    import pyarrow as pa

    if not isinstance(column, (pa.Array, pa.ChunkedArray)):
        column = pa.chunked_array(column) if hasattr(column, "__arrow_c_stream__") else pa.array(column)
    column = decoded(column) if pa.types.is_dictionary(column.type) else column
    if column.null_count:
        raise InvalidInput(f"Expected a value in every row to be hashed, got {column.null_count} nulls. Fill them or drop the rows.")
    found = from_arrow(column)
    return _numpy_column(column.to_numpy(zero_copy_only=False)) if found is None else found


def _numpy_column(column: NDArray[Any]) -> Column:
    if column.dtype.kind in "iu":
        return column.astype(np.int64 if column.dtype.kind == "i" else np.uint64, copy=False)
    return from_numpy(column if column.dtype.kind in "US" else column.astype(np.str_))


def _words(record: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """(n, width) bytes as words, (n, ceil(width / 8)), and a last one that tells the width."""
    n, width = record.shape
    words = np.zeros((n, -(-width // 8) + 1), "<u8")
    words.view(np.uint8)[:, :width] = record
    words[:, -1] = width
    return words


def _common_length(columns: Sequence[Column]) -> int:
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise InvalidInput(f"Expected columns of one length, got lengths {sorted(lengths)}. Pass one value of each for every row.")
    return lengths.pop()


def _hash_chunks(salts: Sequence[str], columns: Sequence[Column], exact: bool = False) -> Iterator[tuple[slice, list[NDArray[np.uint64]]]]:
    """The hashes of all rows under each salt, a chunk of rows at a time, and where they stand.

    A number of 2^63 or more has the 64 bits of a negative one; with `exact` it has another hash.
    """
    seeds = [int.from_bytes(hashlib.sha256(salt.encode()).digest()[:8], "little") for salt in salts]
    n = _common_length(columns)
    for start in range(0, n, CHUNK):
        where = slice(start, min(start + CHUNK, n))
        states = [np.full(where.stop - start, seed, np.uint64) for seed in seeds]
        for column in columns:
            if isinstance(column, Strings):
                states = _absorb_text(states, LongestFirst(column.rows(where.start, where.stop)))
            else:
                for word in column[where].T if column.ndim == 2 else (column[where],):
                    _absorb(states, word.view(np.uint64))
                if exact and column.ndim == 1 and column.dtype.kind == "u":
                    _absorb_at(states, np.flatnonzero(column[where] >> np.uint64(63)))
        yield where, states


def _absorb_text(states: list[NDArray[np.uint64]], rows: LongestFirst) -> list[NDArray[np.uint64]]:
    """Length, then words of 8 bytes, the last one filled up with NULs; a word of nothing but NULs leaves the state as it is."""
    if rows.order is not None:
        states = [state.take(rows.order) for state in states]
    _absorb(states, rows.lengths.view(np.uint64))
    place, running = 0, rows.reach(0)
    while running:
        words = rows.at(place, 8, running).copy().view("<u8")
        complete = rows.reach(place + 7)
        words[complete:] &= _KEEP.take(rows.lengths[complete:running] - place)
        empty = None if words.min() else np.flatnonzero(words == 0)
        before = [] if empty is None else [state[empty] for state in states]
        _absorb([state[:running] for state in states], words)
        for state, old in zip(states, before, strict=False):
            state[empty] = old
        place += 8
        running = rows.reach(place)
    return [rows.unsorted(state) for state in states]


_KEEP = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
"""Entry n keeps the first n bytes of a word."""


def _absorb_at(states: Sequence[NDArray[np.uint64]], rows: NDArray[np.intp]) -> None:
    """Mix one more word into the states of some rows."""
    for state in states if len(rows) else ():
        part = state[rows]
        _absorb([part], np.ones(len(rows), np.uint64))
        state[rows] = part


def _absorb(states: Sequence[NDArray[np.uint64]], words: NDArray[np.uint64]) -> None:
    """Mix a word into each state, in place: the finalizer of splitmix64 (Steele, Lea and Flood 2014), a bijection."""
    spare = np.empty(len(words), np.uint64)
    for state in states:
        state ^= words
        state += _STEP
        for shift, factor in ((30, _MIX1), (27, _MIX2)):
            state ^= np.right_shift(state, np.uint64(shift), out=spare)
            state *= factor
        state ^= np.right_shift(state, np.uint64(31), out=spare)


_SET_SALTS = ("set/0", "set/1")


class SetDigest:
    """Order-free name of a set of ids, built batch by batch and from parts: two 64-bit sums of hashes and a count. It can be pickled."""

    def __init__(self) -> None:
        self.sums = np.zeros(2, np.uint64)
        self.count = 0

    def update(self, *ids: object) -> None:
        """Add ids, as `public_hash` takes them; several operands are columns that belong together, row by row."""
        columns = _columns(ids)
        for _, states in _hash_chunks(_SET_SALTS, columns, exact=True):
            self.sums += np.array([state.sum(dtype=np.uint64) for state in states])
        self.count += _common_length(columns)

    @staticmethod
    def words(*ids: object) -> NDArray[np.uint64]:
        """What each row adds to `sums`: (n, 2) uint64."""
        columns = _columns(ids)
        out = np.empty((_common_length(columns), 2), np.uint64)
        for where, states in _hash_chunks(_SET_SALTS, columns, exact=True):
            out[where, 0], out[where, 1] = states
        return out

    def merge(self, other: "SetDigest") -> None:
        """Add the rows of another set, which has none of these."""
        self.sums += other.sums
        self.count += other.count

    def __iadd__(self, other: "SetDigest") -> "SetDigest":
        self.merge(other)
        return self

    def hexdigest(self) -> str:
        """48 hexadecimal digits."""
        return f"{self.count:016x}{int(self.sums[0]):016x}{int(self.sums[1]):016x}"

    @classmethod
    def from_hexdigest(cls, text: str) -> "SetDigest":
        """The digest that `hexdigest` wrote, to be merged or updated."""
        made = cls()
        made.count, *sums = (int(text[i : i + 16], 16) for i in (0, 16, 32))
        made.sums = np.array(sums, np.uint64)
        return made
