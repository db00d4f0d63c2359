# SPDX-License-Identifier: Apache-2.0
"""Public, unkeyed hashes: ties that nobody can steer by a label, and names for sets of ids and for columns.

Nothing here is secret and nothing here makes noise. Never feed it a raw label.
"""

import hashlib
import json
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

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


def table_digest(table: object) -> str:
    """SHA-256 of public features: an array, a sparse matrix, or a data frame of any library that speaks Arrow; hexadecimal.

    Cost: one pass over the values. Equal values of equal types in equal order give equal digests.
    """
    if hasattr(table, "__arrow_c_stream__"):
        import pyarrow as pa

        state = hashlib.sha256()
        found = pa.table(table).replace_schema_metadata(None).combine_chunks()
        with pa.ipc.new_stream(pa.PythonFile(_Feed(state), "w"), found.schema) as stream:
            stream.write_table(found, max_chunksize=1 << 16)
        return state.hexdigest()
    if hasattr(table, "tocsr"):
        rows = table.tocsr()
        return array_digest({"data": rows.data, "indices": rows.indices, "indptr": rows.indptr, "shape": np.array(rows.shape)})
    array = np.asarray(table)
    return array_digest({"x": array.astype(np.str_) if array.dtype.kind == "O" else array})


class _Feed:
    """A file that hashes what is written to it."""

    closed = False

    def __init__(self, state: "hashlib._Hash") -> None:
        self._state = state

    def write(self, data: bytes) -> int:
        self._state.update(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is kept back."""

    def close(self) -> None:
        """Nothing to close."""


def public_hash(salt: str, *ids: NDArray[np.generic]) -> NDArray[np.uint64]:
    """A well-mixed uint64 for each id, or for each row of several of them: (n,), the same on every machine.

    Parameters
    ----------
    salt : str
        Public; another salt gives unrelated values.
    ids : (n,) or (n, columns) array
        Integers, or strings and bytes (compared without trailing NULs).
    """
    ids = tuple(np.asarray(part) if isinstance(part, np.ndarray) else np.asarray(part).astype(np.str_) for part in ids)
    state = np.full(len(ids[0]), int.from_bytes(hashlib.sha256(salt.encode()).digest()[:8], "little"), np.uint64)
    for column in (column for part in ids for column in (part.T if part.ndim == 2 else (part,))):
        state = _hash_column(state, column)
    return state


def _hash_column(state: NDArray[np.uint64], column: NDArray[np.generic]) -> NDArray[np.uint64]:
    if column.dtype.kind in "iu":
        return _mix(state ^ column.astype(np.int64 if column.dtype.kind == "i" else np.uint64).view(np.uint64))
    encoded = column.astype(np.bytes_) if column.dtype.kind == "S" else np.char.encode(column.astype(np.str_), "utf-8")
    state = _mix(state ^ np.char.str_len(encoded).astype(np.uint64))
    width = -(-max(encoded.dtype.itemsize, 1) // 8) * 8
    for word in encoded.astype(f"S{width}").view("<u8").reshape(len(column), width // 8).T:
        # Only NULs left: the id has ended, and a longer neighbour in the array must not change its hash.
        state = np.where(word == 0, state, _mix(state ^ word.astype(np.uint64)))
    return state


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64 (Steele, Lea and Flood 2014), a bijection."""
    state = state + _STEP
    state = (state ^ (state >> np.uint64(30))) * _MIX1
    state = (state ^ (state >> np.uint64(27))) * _MIX2
    return state ^ (state >> np.uint64(31))


class SetDigest:
    """Order-free name of a set of ids, built batch by batch: two 64-bit sums of hashes and a count."""

    def __init__(self) -> None:
        self.sums = np.zeros(2, np.uint64)
        self.count = 0

    def update(self, *ids: NDArray[np.generic]) -> None:
        """Add ids: (n,) or (n, columns); or rows of several such arrays, which belong together."""
        for i, words in enumerate(self.words(*ids).T):
            self.sums[i : i + 1] += words.sum(dtype=np.uint64)  # a slice: arrays wrap around silently
        self.count += len(ids[0])

    @staticmethod
    def words(*ids: NDArray[np.generic]) -> NDArray[np.uint64]:
        """What each row adds to `sums`: (n, 2) uint64."""
        return np.column_stack([public_hash(salt, *ids) for salt in ("set/0", "set/1")])

    def merge(self, other: "SetDigest") -> None:
        """Add the rows of another set, which has none of these."""
        self.sums += other.sums
        self.count += other.count

    def hexdigest(self) -> str:
        """48 hexadecimal digits."""
        return f"{self.count:016x}{int(self.sums[0]):016x}{int(self.sums[1]):016x}"
