# SPDX-License-Identifier: Apache-2.0
"""Public, unkeyed hashes: they break ties independently of labels, and name sets of ids and
columns.

Nothing here is secret and nothing here makes noise. Never hash a raw label with it: a few classes
can be guessed from their hashes. Text is read as bytes of one buffer, a chunk of rows at a time: no
Python object is made for a string, which would cost more than its hash.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput

_MIX1, _MIX2, _STEP = (
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
    np.uint64(0x9E3779B97F4A7C15),
)

CHUNK = 1 << 15
"""Rows processed at a time: few enough that their buffers stay in the processor's cache."""
REACH = 64
"""Number of bytes that may be read from any byte of a row on, although they go beyond its end:
every buffer is padded by so many."""


def digest(facts: Mapping[str, object]) -> str:
    """Digest public facts: SHA-256 of their canonical JSON, hexadecimal."""
    return hashlib.sha256(
        json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    ).hexdigest()


def array_digest(arrays: Mapping[str, NDArray[np.generic]]) -> str:
    """Digest public arrays with their names, types and shapes: SHA-256, hexadecimal."""
    state = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        # name, type and shape stand first: without them the same bytes, cut otherwise, would be
        # other arrays with one digest
        state.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        state.update(array.data if array.size else b"")
    return state.hexdigest()


def public_hash(salt: str, *ids: object) -> NDArray[np.uint64]:
    """Hash each id, or each row of several of them, to a well-mixed uint64: (n,), the same on every
    machine.

    Parameters
    ----------
    salt : str
        Public; another salt gives unrelated values.
    ids : columns of n rows
        (n,) or (n, columns) arrays, Arrow columns, tables, or lists of columns; of integers, or of
        strings and bytes. Equal bytes give equal hashes; NumPy's strings are compared without
        trailing NULs. A 2-D array of uint8 is a record of bytes for each row.
    """
    columns = _columns(ids)
    out = np.empty(_common_length(columns), np.uint64)
    for where, (state,) in _hash_chunks((salt,), columns):
        out[where] = state
    return out


_SET_SALTS = ("set/0", "set/1")


class SetDigest:
    """Digest of a set of ids that does not depend on their order: two 64-bit sums of hashes, and a
    count.

    Batches are added with `update`, digests of partitions with `merge`. It can be pickled.
    """

    def __init__(self) -> None:
        self.sums = np.zeros(2, np.uint64)
        self.count = 0

    def update(self, *ids: object) -> None:
        """Add ids, as `public_hash` takes them; several operands are columns that belong together,
        row by row."""
        columns = _columns(ids)
        # sums modulo 2^64: no order of rows or batches matters, and a row that comes twice counts
        # twice, where XOR would cancel it
        for _, states in _hash_chunks(_SET_SALTS, columns, exact=True):
            self.sums += np.array([state.sum(dtype=np.uint64) for state in states])
        self.count += _common_length(columns)

    @staticmethod
    def words(*ids: object) -> NDArray[np.uint64]:
        """Compute what each row adds to `sums`: (n, 2) uint64."""
        columns = _columns(ids)
        out = np.empty((_common_length(columns), 2), np.uint64)
        for where, states in _hash_chunks(_SET_SALTS, columns, exact=True):
            out[where, 0], out[where, 1] = states
        return out

    def merge(self, other: "SetDigest") -> None:
        """Add another digest, of other rows: a row that is in both counts twice."""
        self.sums += other.sums
        self.count += other.count

    def hexdigest(self) -> str:
        """Write count and sums as 48 hexadecimal digits."""
        return f"{self.count:016x}{int(self.sums[0]):016x}{int(self.sums[1]):016x}"

    @classmethod
    def from_hexdigest(cls, text: str) -> "SetDigest":
        """Read the digest that `hexdigest` wrote, to be merged or updated."""
        made = cls()
        made.count, *sums = (int(text[i : i + 16], 16) for i in (0, 16, 32))
        made.sums = np.array(sums, np.uint64)
        return made


# Columns of text
# --------------------------------------------------------------------------------------------------


class Rows:
    """Byte strings data[begins[i]:][:lengths[i]] of one buffer, which goes on for at least `REACH`
    bytes after each."""

    __slots__ = ("begins", "data", "lengths")

    def __init__(
        self, data: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> None:
        self.data, self.begins, self.lengths = data, begins, lengths

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def stride(self) -> int:
        """The distance in bytes between the begins of two rows; 0 if it differs."""
        stride = int(self.begins[1] - self.begins[0]) if len(self) > 1 else 1
        return stride if (self.begins[1:] - self.begins[:-1] == stride).all() else 0

    def leading(self, width: int) -> NDArray[np.void]:
        """View the first `width` bytes of each row, at most `REACH` more than it has: (n,) void."""
        if stride := self.stride:
            return np.ndarray(
                len(self),
                f"V{width}",
                self.data,
                offset=int(self.begins[0]) if len(self) else 0,
                strides=(stride,),
            )
        return self.windows(width)[self.begins]

    def windows(self, width: int) -> NDArray[np.void]:
        """View the `width` bytes from each byte of the buffer on, without a copy."""
        return np.ndarray(len(self.data) - width + 1, f"V{width}", self.data, strides=(1,))


class LongestFirst:
    """Rows sorted by length, longest first: those with a byte at some place are a leading slice,
    which needs no mask.

    Attributes
    ----------
    order : (n,) intp or None
        Position of the i-th longest row; None if all have one length and are not sorted.
    lengths : (n,) int64
        The lengths in this order.
    """

    __slots__ = (
        "_begins",
        "_first",
        "_group",
        "_rows",
        "_shortness",
        "_stride",
        "_wide",
        "lengths",
        "order",
    )

    def __init__(self, rows: Rows) -> None:
        self._rows, self._group = rows, -1
        self.order: NDArray[np.intp] | None = None
        self.lengths, self._begins = rows.lengths, rows.begins
        if len(rows) and rows.lengths.min() != (longest := rows.lengths.max()):
            # a stable sort of 16-bit numbers is a radix sort, three times as fast as one by
            # comparison
            self.order = np.argsort(
                (longest - rows.lengths).astype(np.uint16) if longest < 1 << 16 else -rows.lengths,
                kind="stable",
            )
            self.lengths, self._begins = rows.lengths.take(self.order), rows.begins.take(self.order)
            self._shortness = -self.lengths
        self._first = int(rows.begins[0]) if len(rows) else 0
        self._stride = rows.stride if self.order is None else 0

    def __len__(self) -> int:
        return len(self.lengths)

    def reach(self, place: int) -> int:
        """Count the rows that are longer than `place` bytes."""
        if self.order is None:
            return len(self.lengths) if len(self.lengths) and self.lengths[0] > place else 0
        return int(np.searchsorted(self._shortness, -place, side="left"))

    def at(self, place: int, width: int, n: int) -> NDArray[np.void]:
        """View the `width` bytes from byte `place` on, of the first n rows: (n,) void.

        `width` is a power of two up to `REACH`, and `place` a multiple of it. All n rows must have
        a byte at `place`, or `place` be 0. Bytes behind a row's end are arbitrary.
        """
        if self._stride:
            return np.ndarray(
                n, f"V{width}", self._rows.data, offset=self._first + place, strides=(self._stride,)
            )
        group, inside = divmod(place, REACH)
        # One gather of 64 bytes serves the next 64 / width calls: it costs as much as one of 8, as
        # both fetch a line of the cache.
        if group != self._group:
            left = int(self.lengths[0]) - REACH * group if n else 0
            span = REACH if left > REACH // 2 else REACH // 2
            self._wide = self._rows.windows(span)[self._begins[:n] + REACH * group]
            self._group = group
        return np.ndarray(n, f"V{width}", self._wide, offset=inside, strides=(self._wide.itemsize,))

    def unsorted(self, values: NDArray[Any]) -> NDArray[Any]:
        """Put values of this order back into the rows' original order."""
        if self.order is None:
            return values
        out = np.empty_like(values)
        out[self.order] = values
        return out


class _Part(NamedTuple):
    """Byte strings of one buffer: data[begins[i]:ends[i]]."""

    data: NDArray[np.uint8]
    begins: NDArray[np.integer]
    ends: NDArray[np.integer]

    def rows(self, start: int, stop: int) -> Rows:
        # A buffer may end right behind its last row, where nothing may be read: then these rows are
        # copied into a padded one.
        begins, ends = (
            self.begins[start:stop].astype(np.int64),
            self.ends[start:stop].astype(np.int64),
        )
        low, high = (int(begins.min()), int(ends.max())) if len(begins) else (0, 0)
        if high + REACH <= len(self.data):
            return Rows(self.data, begins, ends - begins)
        padded = np.zeros(high - low + REACH, np.uint8)
        padded[: high - low] = self.data[low:high]
        return Rows(padded, begins - low, ends - begins)


class Strings:
    """A column of n byte strings, in one or several buffers.

    Parameters
    ----------
    parts : sequence of (data, begins, ends)
        A buffer of bytes, (bytes,) uint8, with the offsets at which its strings begin and end.
    """

    __slots__ = ("_parts", "_starts")

    def __init__(
        self, parts: Sequence[tuple[NDArray[np.uint8], NDArray[np.integer], NDArray[np.integer]]]
    ) -> None:
        self._parts = [_Part(*part) for part in parts]
        self._starts = [0, *np.cumsum([len(part.begins) for part in self._parts]).tolist()]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def rows(self, start: int, stop: int) -> Rows:
        """Return the strings start .. stop - 1."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        found = []
        for part, begin in zip(self._parts[first:], self._starts[first:], strict=False):
            if begin >= stop:
                break
            found.append(part.rows(max(start - begin, 0), stop - begin))
        return found[0] if len(found) == 1 else _together(found)

    def chunks(self) -> Iterator[tuple[slice, Rows]]:
        """Iterate over chunks of `CHUNK` rows, each with its slice of the column."""
        for start in range(0, len(self), CHUNK):
            where = slice(start, min(start + CHUNK, len(self)))
            yield where, self.rows(where.start, where.stop)

    @staticmethod
    def joined(columns: "Sequence[Strings]") -> "Strings":
        """Concatenate columns, without a copy."""
        return Strings([part for column in columns for part in column._parts])


def _together(found: list[Rows]) -> Rows:
    """Copy rows of several buffers into one."""
    data, begins, filled = [np.empty(0, np.uint8)], [np.empty(0, np.int64)], 0
    for rows in found:
        low, high = (
            (int(rows.begins.min()), int((rows.begins + rows.lengths).max()))
            if len(rows)
            else (0, 0)
        )
        data.append(rows.data[low:high])
        begins.append(rows.begins + (filled - low))
        filled += high - low
    lengths = np.concatenate([np.empty(0, np.int64), *(rows.lengths for rows in found)])
    return Rows(np.concatenate([*data, np.zeros(REACH, np.uint8)]), np.concatenate(begins), lengths)


def from_arrow(column: Any) -> Strings | None:
    """Read the strings of an Arrow array or chunked array of text or bytes, also
    dictionary-encoded; None for any other type.

    Only views and dictionaries are copied. Nulls read as empty strings, so the caller must refuse
    them first.
    """
    import pyarrow as pa

    kind = pa.types
    if isinstance(column, pa.ChunkedArray):
        parts = [from_arrow(chunk) for chunk in column.chunks or [pa.array([], column.type)]]
        found = [part for part in parts if part is not None]
        return Strings.joined(found) if len(found) == len(parts) else None
    if kind.is_dictionary(column.type):
        return from_arrow(decoded(column))
    if kind.is_string_view(column.type) or kind.is_binary_view(column.type):
        column = column.cast(
            pa.large_string() if kind.is_string_view(column.type) else pa.large_binary()
        )
    short = kind.is_string(column.type) or kind.is_binary(column.type)
    if short or kind.is_large_string(column.type) or kind.is_large_binary(column.type):
        places, content = column.buffers()[1:]
        if not len(column):  # Arrow may leave out the offsets
            return Strings([])
        offsets: NDArray[Any] = np.frombuffer(places, np.int32 if short else np.int64)[
            column.offset : column.offset + len(column) + 1
        ]
        return Strings([(_bytes_of(content), offsets[:-1], offsets[1:])])
    if kind.is_fixed_size_binary(column.type):
        width = column.type.byte_width
        begins = np.arange(len(column), dtype=np.int64) * width + column.offset * width
        return Strings([(_bytes_of(column.buffers()[1]), begins, begins + width)])
    return None


def decoded(column: Any) -> Any:
    """Decode a dictionary-encoded Arrow array or chunked array; a null in the dictionary becomes a
    null of the column."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        kind = (
            pa.large_string()
            if pa.types.is_string_view(column.type.value_type)
            else column.type.value_type
        )
        return pa.chunked_array([decoded(chunk) for chunk in column.chunks], kind)
    if pa.types.is_string_view(column.dictionary.type):  # which Arrow cannot take from
        column = pa.DictionaryArray.from_arrays(
            column.indices, column.dictionary.cast(pa.large_string())
        )
    return column.dictionary_decode()


def _bytes_of(buffer: Any) -> NDArray[np.uint8]:
    return (
        np.frombuffer(buffer, np.uint8)
        if buffer is not None and buffer.size
        else np.empty(0, np.uint8)
    )


def from_numpy(column: NDArray[np.generic]) -> Strings:
    """Read the strings of an array of np.str_, as UTF-8, or of np.bytes_; UnicodeError for lone
    surrogates.

    Trailing NULs do not count, as in NumPy.
    """
    if column.dtype.kind == "U":
        # NumPy keeps text as UTF-32. Of ASCII the lowest byte of each is its UTF-8, so one cast
        # replaces an encoder that makes objects.
        points = np.ascontiguousarray(
            column.astype(column.dtype.newbyteorder("="), copy=False)
        ).view(np.uint32)
        if points.size and points.max() >= 128:
            return from_numpy(np.char.encode(column.astype(np.str_), "utf-8"))
        raw = points.astype(np.uint8)
    else:
        raw = np.ascontiguousarray(column).view(np.uint8)
    matrix = raw.reshape(len(column), -1) if raw.size else np.zeros((len(column), 1), np.uint8)
    begins = np.arange(len(matrix), dtype=np.int64) * matrix.shape[1]
    return Strings([(matrix.reshape(-1), begins, begins + _lengths(matrix))])


def _lengths(matrix: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Count the bytes of each row up to its last one that is not 0."""
    width = matrix.shape[1]
    if len(matrix) and matrix[:, -1].all():
        return np.full(len(matrix), width, np.int64)
    return np.strings.str_len(matrix.view(f"S{width}")[:, 0]).astype(np.int64)


def sortable(ids: NDArray[np.generic]) -> NDArray[np.generic]:
    """Convert ids to an array that can be sorted: objects, which Python cannot always compare,
    become text, or bytes that are no ASCII."""
    if ids.dtype.kind != "O":
        return ids
    try:
        return ids.astype(np.str_)
    except UnicodeDecodeError:
        return ids.astype(np.bytes_)


_PLAIN: dict[type, Callable[[Any], object]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
}


def plain_value(value: Any) -> Any:
    """Return text or a number as such, also that of NumPy or of an Enum with such a base; anything
    else as it is."""
    value = (
        value.item() if isinstance(value, np.generic) and value.dtype.kind not in "mM" else value
    )
    for kind, plain in _PLAIN.items():
        if isinstance(value, kind) and not isinstance(value, bool):
            return plain(value)
    return value


def text_array(values: Any) -> NDArray[Any]:
    """Convert to an array as NumPy does, but text of a type of its own, such as an Enum's members,
    by its value."""
    try:
        found = np.asarray(values)
    except RuntimeError:
        raise InvalidInput(
            "Expected values of an array, got a tensor that requires grad. Pass .detach() of it."
        ) from None
    if found.dtype.kind not in "OUS" or (found.dtype.kind != "O" and hasattr(values, "dtype")):
        return found
    objects = found if found.dtype.kind == "O" else _as_objects(values)
    if not any(
        issubclass(kind, str) and kind not in (str, np.str_)
        for kind in set(map(type, objects.flat))
    ):
        return found
    # NumPy takes the length from the value and the text from str(), so that different members
    # become one.
    plain = np.fromiter(map(plain_value, objects.flat), object, objects.size).reshape(objects.shape)
    return plain if found.dtype.kind == "O" else plain.astype(np.str_)


def exact_array(values: Any) -> NDArray[Any]:
    """Convert ids or classes to an array in which different ones stay different; integers and bytes
    are no objects in it."""
    found = text_array(values)
    if found.dtype.kind == "f":
        # NumPy has joined numbers of 2^63 or more with others as floats, in which large ones are
        # equal. What was floats stays so.
        exact = _as_objects(values)
        return (
            _of_integers(exact)
            if all(isinstance(value, Integral) for value in exact.flat)
            else found
        )
    kinds = {type(value) for value in found.flat} if found.dtype.kind == "O" else set()
    if kinds and all(issubclass(kind, Integral) and not issubclass(kind, bool) for kind in kinds):
        return _of_integers(found)
    return found.astype(np.bytes_) if kinds == {bytes} else found


def _as_objects(values: Any) -> NDArray[Any]:
    # a table, which may be made an array by way of floats
    if hasattr(values, "columns") and hasattr(values, "__arrow_c_stream__"):
        import pyarrow as pa

        return np.array(
            list(zip(*(column.to_pylist() for column in pa.table(values).columns), strict=True)),
            dtype=object,
        )
    return np.asarray(values, dtype=object)


def _of_integers(objects: NDArray[Any]) -> NDArray[Any]:
    """Convert whole numbers to 64-bit integers of one type; to text, where no type holds all of
    them."""
    # NumPy's own would wrap around
    plain = np.array([int(value) for value in objects.flat], dtype=object).reshape(objects.shape)
    for kind in (np.int64, np.uint64):
        with suppress(OverflowError):
            return plain.astype(kind)
    return plain.astype(np.str_)


# Columns of ids
# --------------------------------------------------------------------------------------------------


Column = NDArray[np.integer] | Strings
"""(n,) integers of 64 bits; (n, words) uint64 with the bytes of a record; or strings."""


def _columns(ids: Sequence[object]) -> list[Column]:
    return [column for part in ids for column in _parts(part)]


def _parts(part: Any) -> list[Column]:
    """Split one operand of `public_hash` into its columns."""
    if isinstance(part, (list, tuple)):
        return _columns(part)
    # a table of Arrow, pandas or polars
    if hasattr(part, "columns") and hasattr(part, "__arrow_c_stream__"):
        import pyarrow as pa

        return _columns(pa.table(part).columns)
    if hasattr(part, "__arrow_c_array__") or hasattr(part, "__arrow_c_stream__"):
        return [_arrow_column(part)]
    array = text_array(part)
    if array.ndim == 2 and array.dtype == np.uint8:
        return [_words(array)]
    return [_numpy_column(column) for column in (array.T if array.ndim == 2 else (array,))]


def _arrow_column(column: Any) -> Column:
    import pyarrow as pa

    if not isinstance(column, (pa.Array, pa.ChunkedArray)):
        column = (
            pa.chunked_array(column) if hasattr(column, "__arrow_c_stream__") else pa.array(column)
        )
    column = decoded(column) if pa.types.is_dictionary(column.type) else column
    if column.null_count:
        raise InvalidInput(
            f"Expected a value in every row to be hashed, got {column.null_count} nulls. Fill them"
            " or drop the rows."
        )
    found = from_arrow(column)
    return _numpy_column(column.to_numpy(zero_copy_only=False)) if found is None else found


def _numpy_column(column: NDArray[Any]) -> Column:
    if column.dtype.kind in "iu":
        return column.astype(np.int64 if column.dtype.kind == "i" else np.uint64, copy=False)
    return from_numpy(sortable(column) if column.dtype.kind in "USO" else column.astype(np.str_))


def _words(record: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Read (n, width) bytes as words: (n, ceil(width / 8) + 1) uint64."""
    # The last word is the width: else records that differ by trailing zeros alone would have one
    # hash.
    n, width = record.shape
    words = np.zeros((n, -(-width // 8) + 1), "<u8")
    words.view(np.uint8)[:, :width] = record
    words[:, -1] = width
    return words


def _common_length(columns: Sequence[Column]) -> int:
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise InvalidInput(
            f"Expected columns of one length, got lengths {sorted(lengths)}. Pass one value of each"
            " for every row."
        )
    return lengths.pop()


def _hash_chunks(
    salts: Sequence[str], columns: Sequence[Column], exact: bool = False
) -> Iterator[tuple[slice, list[NDArray[np.uint64]]]]:
    """Hash all rows under each salt, in chunks of rows: (slice of the rows, one (m,) array for each
    salt).

    With `exact` an unsigned number of 2^63 or more, which has the 64 bits of a negative one, gets a
    different hash.
    """
    seeds = [int.from_bytes(hashlib.sha256(salt.encode()).digest()[:8], "little") for salt in salts]
    n = _common_length(columns)
    # all columns of a few rows, not all rows of a column: what is mixed stays in the cache
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
                    rows = np.flatnonzero(column[where] >> np.uint64(63))
                    for state in states if len(rows) else ():
                        part = state[rows]
                        _absorb([part], np.ones(len(rows), np.uint64))
                        state[rows] = part
        yield where, states


def _absorb_text(states: list[NDArray[np.uint64]], rows: LongestFirst) -> list[NDArray[np.uint64]]:
    """Mix in the length, then the bytes as words of 8, the last one padded with zeros; a word of
    zeros leaves the state as it is."""
    if rows.order is not None:
        states = [state.take(rows.order) for state in states]
    _absorb(states, rows.lengths.view(np.uint64))
    place, running = 0, rows.reach(0)
    while running:
        words = rows.at(place, 8, running).copy().view("<u8")
        complete = rows.reach(place + 7)
        # clears the arbitrary bytes behind a row's end
        words[complete:] &= _KEEP.take(rows.lengths[complete:running] - place)
        # The format of published hashes skips words of zeros, and a vectorised step cannot skip:
        # such rows get their old state back.
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


def _absorb(states: Sequence[NDArray[np.uint64]], words: NDArray[np.uint64]) -> None:
    """Mix a word into each state, in place: the finalizer of splitmix64 (Steele, Lea and Flood
    2014), a bijection."""
    # In place, with one spare array that stays in the cache: the steps are so cheap that fetching
    # memory for new arrays would dominate.
    spare = np.empty(len(words), np.uint64)
    for state in states:
        state ^= words
        state += _STEP
        for shift, factor in ((30, _MIX1), (27, _MIX2)):
            state ^= np.right_shift(state, np.uint64(shift), out=spare)
            state *= factor
        state ^= np.right_shift(state, np.uint64(31), out=spare)
