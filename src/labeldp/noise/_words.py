# SPDX-License-Identifier: Apache-2.0
"""Random words: AES over blocks that name rows.

Each draw has its own key, derived from a secret and from all facts that distinguish the draw; each
row has its own block, made of its id. So no word is used twice, and a repeated draw gets the same
words on every machine, in any order of rows. docs/reference/noise.md is the exact format, with
test vectors.

References
----------
AES in counter mode as a counter-based random number generator: Salmon, Moraes, Dror and Shaw 2011,
"Parallel random numbers: as easy as 1, 2, 3". That AES is a pseudorandom permutation replaces true
randomness in the guarantee.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from labeldp import _hash, _validate
from labeldp._hash import CHUNK, REACH, LongestFirst, Rows, Strings
from labeldp.errors import InvalidInput
from labeldp.noise._secrets import (
    DRAW_FACTS,
    FORMAT,
    Key,
    SeededNoise,
    derive_key,
    new_run_id,
    new_secret,
)

__all__ = [
    "CHUNK",
    "DRAW_FACTS",
    "FORMAT",
    "Blocks",
    "Key",
    "Pin",
    "RowWords",
    "SeededNoise",
    "derive_key",
    "id_blocks",
    "new_run_id",
    "new_secret",
    "one_word",
    "partition",
    "partition_edges",
    "pin_words",
    "row_blocks",
    "word_chunks",
]

WORD: Final = np.dtype("<u8")

ROW, INTEGER, TEXT, BYTES, COMPOSITE = range(5)
"""The type tag of a block, its first byte."""

_BLOCK: Final = np.dtype(
    {
        "names": ["tag", "low", "high"],
        "formats": ["u1", "<u8", "<u4"],
        "offsets": [0, 1, 9],
        "itemsize": 16,
    }
)
"""A block as fields: one byte of type tag, twelve of id, little-endian. Bytes 13 to 15, the
counter, are no field."""

_MAX_COUNTER: Final = 1 << 25  # three bytes of counter, and two words in each block
Index = slice | NDArray[np.intp] | NDArray[np.bool_]


class Blocks:
    """The blocks of n rows with counter 0, kept as compactly as their ids.

    Made by `row_blocks` and `id_blocks`. `blocks[a:b]`, `blocks[positions]` and `blocks[mask]` are
    Blocks, too; a slice copies nothing.
    """

    __slots__ = ("_high", "_low", "_signed", "tag")

    def __init__(
        self,
        tag: int,
        low: "NDArray[np.uint64] | range",
        high: "NDArray[np.uint32] | None" = None,
        signed: bool = False,
    ) -> None:
        self.tag = tag
        self._low = low  # bytes 0..7 of the id; row numbers are a range, which takes no memory
        self._high = high  # bytes 8..11; None: the sign of `_low` if some are negative, else 0
        self._signed = signed

    def __len__(self) -> int:
        return len(self._low)

    def __getitem__(self, index: Index) -> "Blocks":
        if isinstance(self._low, range):
            if isinstance(index, slice) and index.step in (None, 1):
                return Blocks(self.tag, self._low[index])
            return Blocks(self.tag, _written_out(self._low)[index])
        return Blocks(
            self.tag,
            self._low[index],
            None if self._high is None else self._high[index],
            self._signed,
        )

    def templates(self, into: "NDArray[np.uint64] | None" = None) -> NDArray[np.uint64]:
        """Write the blocks out with counter 0: (n, 2) uint64, little-endian; as bytes, (n, 16).
        Cost: 16 bytes a row, so slice first.

        Parameters
        ----------
        into : (n or more, 2) uint64, optional
            Templates of another slice of the same blocks, which are overwritten. Only the ids are
            written, since all rows share the rest.
        """
        out = np.zeros((len(self), 2), WORD) if into is None else into[: len(self)]
        fields = out.reshape(-1).view(_BLOCK)
        if into is None:
            fields["tag"] = self.tag
        fields["low"] = _written_out(self._low)
        if self._high is not None or self._signed:
            fields["high"] = self.halves()[1]
        return out

    def halves(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Split the 96 bits of each id: bytes 0 to 7, and bytes 8 to 11."""
        low = _written_out(self._low)
        if self._high is not None:
            return low, self._high
        if self._signed:  # sign extension: -1 and 2^64 - 1 differ in these bytes
            return low, (low.view(np.int64) >> np.int64(63)).astype(np.uint32)
        return low, np.zeros(len(low), np.uint32)

    def first_repeat(self) -> int | None:
        """Find the first row whose id occurred before; None if all ids differ. Cost: a sort, O(n
        log n)."""
        if isinstance(self._low, range):
            return None
        low, high = self._low, self._high
        # first without positions, which is many times faster: most tables have no repeat
        ordered = np.sort(low)
        if not (ordered[1:] == ordered[:-1]).any():
            return None
        order = np.argsort(low, kind="stable") if high is None else np.lexsort((low, high))
        same = low[order[1:]] == low[order[:-1]]
        if high is not None:
            same &= high[order[1:]] == high[order[:-1]]
        return int(order[1:][same].min()) if same.any() else None


def _written_out(low: "NDArray[np.uint64] | range") -> NDArray[np.uint64]:
    return np.arange(low.start, low.stop, dtype=np.uint64) if isinstance(low, range) else low


def row_blocks(n: int, start: int = 0) -> Blocks:
    """Make the blocks of the row numbers start .. start + n - 1, for rows without ids. They take no
    memory for each row."""
    if not (n >= 0 and 0 <= start <= start + n < 1 << 63):
        raise InvalidInput(
            f"Expected n >= 0 rows numbered from start >= 0, below 2^63; got n={n}, start={start}."
        )
    return Blocks(ROW, range(start, start + n))


def id_blocks(ids: object, key: Key, name: str = "ids") -> Blocks:
    """Make the blocks of explicit row ids: the same id is the same block in any order, file and
    machine.

    Parameters
    ----------
    ids : (n,) integers, strings or bytes
        A sequence, NumPy, Arrow, pandas or polars column. Or composite: a list of tuples (rows), a
        list of such columns, a 2-D array or a table. Nulls, floats and bools are refused. 1, "1",
        b"1" and ("1",) are four different ids; ("a", "bc") is not ("ab", "c").
    key : Key
        A key of purpose "ids". Strings, bytes and composites are hashed with it; integers enter the
        block as they are.
    name : str
        What messages call them; "ids" by default.

    Returns
    -------
    Blocks
        n blocks. Repeated ids are not refused here: see `Blocks.first_repeat`.

    Notes
    -----
    A hashed id is AES-CMAC cut to 96 bits: among n ids, two collide with probability at most about
    n^2 / 2^97 (1e-13 for a hundred million). Cost: no copy of 64-bit integers; 12 bytes a row
    otherwise.
    """
    # checked for integers, too, which need no key: a caller's mistake must not depend on the data
    material = key.material("id_blocks")
    columns = _columns(ids)
    if columns is not None:
        return _mac_blocks(
            COMPOSITE,
            _joined([_typed(column, f"part {i} of {name}") for i, column in enumerate(columns)]),
            material,
        )
    if (
        isinstance(ids, pa.DictionaryArray)
        and not (ids.null_count or ids.dictionary.null_count)
        and len(ids.dictionary) < len(ids)
    ):
        # hashes each distinct text once
        return id_blocks(ids.dictionary, key, name)[ids.indices.to_numpy()]
    tag, values = _typed(ids, name)
    return (
        _integer_blocks(values)
        if isinstance(values, np.ndarray)
        else _mac_blocks(tag, values, material)
    )


def integers_or_names(ids: object, key: Callable[[], bytes]) -> "NDArray[np.integer] | Blocks":
    """Read ids for a row set: one column of integers as it is; any other ids as blocks of their
    text.

    "7", b"7" and ("7",) are one name, and the parts of a composite id are compared as text, too:
    another table may hold the same ids in another type, and its rows must not look different.
    """
    columns = _columns(ids)
    found = [_typed(column, "ids")[1] for column in ([ids] if columns is None else columns)]
    if len(found) == 1:
        return found[0] if isinstance(found[0], np.ndarray) else _mac_blocks(TEXT, found[0], key())
    return _mac_blocks(COMPOSITE, _joined([(TEXT, _text(values)) for values in found]), key())


# The words of rows
# --------------------------------------------------------------------------------------------------


class RowWords:
    """The words of a chunk of rows under one key; implements `labeldp.laws._exact.Words`.

    Words 2c and 2c + 1 of a row are the two halves of AES(block with counter c). For more than
    about `CHUNK` rows use `word_chunks`.

    Parameters
    ----------
    key : Key
        A key of purpose "draw", or of another stream of words.
    blocks : Blocks
        The blocks of the rows.
    """

    __slots__ = ("_cache", "_context", "_space", "_templates")

    def __init__(self, key: Key, blocks: Blocks) -> None:
        self._start(encryptor(key.material("RowWords")), blocks.templates(), None)

    def _start(
        self, context: CipherContext, templates: NDArray[np.uint64], space: NDArray[np.uint8] | None
    ) -> "RowWords":
        self._context, self._templates, self._space = context, templates, space
        self._cache: tuple[int, NDArray[np.intp] | None, NDArray[np.uint64]] | None = None
        return self

    def __len__(self) -> int:
        return len(self._templates)

    def take(self, counter: int, rows: NDArray[np.intp] | None = None) -> NDArray[np.uint64]:
        """Compute word number `counter` of every row, or of the rows at these positions:
        (len(rows),) uint64, a new array."""
        if not 0 <= counter < _MAX_COUNTER:
            raise InvalidInput(
                f"Expected 0 <= counter < 2^25, got counter={counter}. No law needs so many words"
                " of one row."
            )
        block, half = divmod(counter, 2)
        return self._pair(block, rows)[:, half].copy()

    def select(self, rows: NDArray[np.intp]) -> "RowWords":
        """Return the words of the rows at these positions as a chunk of its own."""
        return object.__new__(RowWords)._start(self._context, self._templates[rows], None)

    def _pair(self, block: int, rows: NDArray[np.intp] | None) -> NDArray[np.uint64]:
        """Compute both words of a block, (n, 2). The last block is cached, since laws take word 2c
        and then 2c + 1."""
        if self._cache is not None and self._cache[0] == block:
            _, kept, words = self._cache
            if kept is None:
                return words if rows is None else words[rows]
            if rows is not None and np.array_equal(kept, rows):
                return words
        templates, space = (
            (self._templates, self._space) if rows is None else (self._templates[rows], None)
        )
        if block:
            # the counter, in bytes 13 to 15
            templates = templates | np.array([0, block << 40], WORD)
        words = encrypt(self._context, templates, space)
        self._cache = (block, None if rows is None else np.array(rows), words)
        return words


def word_chunks(key: Key, blocks: Blocks) -> Iterator[tuple[slice, RowWords]]:
    """Iterate over the words of any number of rows, in chunks of `CHUNK` rows: (slice of the rows,
    their words).

    The chunks share buffers, so use a chunk before the next one. Arrays from `take` stay valid.
    """
    context = encryptor(key.material("RowWords"))
    # One buffer of blocks and one of words for all chunks: they stay in the processor's cache,
    # where new ones would be fetched from memory.
    templates, space = blocks[:CHUNK].templates(), space_for(min(CHUNK, len(blocks)))
    for rows in _chunks(len(blocks)):
        yield (
            rows,
            object.__new__(RowWords)._start(context, blocks[rows].templates(templates), space),
        )


def _chunks(n: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK))


def _first_words(
    context: CipherContext, blocks: Blocks
) -> Iterator[tuple[slice, NDArray[np.uint64]]]:
    """Encrypt all blocks with counter 0, in chunks: (slice of the rows, (m, 2) uint64), valid until
    the next chunk."""
    templates, space = blocks[:CHUNK].templates(), space_for(min(CHUNK, len(blocks)))
    for rows in _chunks(len(blocks)):
        yield rows, encrypt(context, blocks[rows].templates(templates), space)


def one_word(key: Key, blocks: Blocks) -> NDArray[np.uint64]:
    """Compute word 0 of every row: (n,) uint64. Same as `RowWords(key, blocks).take(0)`, in less
    memory."""
    out = np.empty(len(blocks), np.uint64)
    for rows, words in word_chunks(key, blocks):
        out[rows] = words.take(0)
    return out


def partition(key: Key, blocks: Blocks, fractions: Sequence[float]) -> NDArray[np.int16]:
    """Assign each row to one part, at random and independently of the others, by one word.

    Parameters
    ----------
    key : Key
        A key of purpose "partition".
    blocks : Blocks
        n rows.
    fractions : sequence of float
        Expected share of each part: above 0, sum 1 (up to 1e-9; the last part takes the rest).

    Returns
    -------
    (n,) int16
        Number of the part. A row's part depends on its block alone, so a row keeps it in any order
        and on any machine.
    """
    edges = partition_edges(fractions)
    context, out = encryptor(key.material("partition")), np.empty(len(blocks), np.int16)
    for rows, words in _first_words(context, blocks):
        # part i has the words edge[i-1] <= word < edge[i]
        out[rows] = np.searchsorted(edges, words[:, 0], side="right")
    return out


def partition_edges(fractions: Sequence[float]) -> NDArray[np.uint64]:
    """Compute the smallest word of each part but the first, for `partition`, with the same
    `fractions`: (parts - 1,) uint64."""
    # Exact fractions: the engines compute the edges, too, and a float sum in another order could
    # put a row into another part.
    shares = [
        Fraction(_validate.positive(fraction=share, fix="Give each part a share."))
        for share in fractions
    ]
    if not (0 < len(shares) < 1 << 15 and abs(sum(shares, Fraction(0)) - 1) <= Fraction(1, 10**9)):
        raise InvalidInput(
            f"Expected fractions that sum to 1, got {list(fractions)!r}. Divide them by their sum."
        )
    edges = [
        min(math.floor(sum(shares[: i + 1], Fraction(0)) * 2**64), 2**64 - 1)
        for i in range(len(shares) - 1)
    ]
    return np.array(edges, np.uint64)


class Pin:
    """A keyed digest of (row, label) pairs in any order, by which a later attempt recognises the
    labels that its run was charged for.

    It is stored with the run's secret and destroyed with it. Without the key it confirms no guess
    of a label, as a plain digest would.

    Parameters
    ----------
    key : Key
        A key of purpose "pin".
    """

    __slots__ = ("_context", "count", "sums")

    def __init__(self, key: Key) -> None:
        self._context: CipherContext | None = encryptor(key.material("Pin"))
        self.sums = np.zeros(2, np.uint64)
        self.count = 0
        """Number of rows added so far."""

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        # workers return sums, which can be merged; the key never leaves the process that derived it
        return None, {"_context": None, "count": self.count, "sums": self.sums}

    def update(self, blocks: Blocks, codes: NDArray[np.integer]) -> None:
        """Add rows: n blocks and their (n,) class codes."""
        if len(blocks) != len(codes):
            raise InvalidInput(
                f"Expected one code for each of {len(blocks)} rows, got {len(codes)}."
            )
        if self._context is None:
            raise InvalidInput(
                "Expected a pin with its key, got one that was pickled: it holds the sums alone and"
                " can only be merged."
            )
        for _, words in _pinned(self._context, blocks, codes):
            # many times faster than sum(axis=0) of two columns
            self.sums += np.array([words[:, 0].sum(), words[:, 1].sum()])
        self.count += len(blocks)

    def merge(self, other: "Pin") -> None:
        """Add the rows of another pin under the same key."""
        self.sums += other.sums
        self.count += other.count

    def hexdigest(self) -> str:
        """Return count and two sums modulo 2^64 as 48 hexadecimal digits: equal for equal multisets
        of (row, label)."""
        return "".join(f"{int(number):016x}" for number in (self.count, *self.sums))


def pin_words(key: Key, blocks: Blocks, codes: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Compute what each row adds to the sums of a `Pin` under this key: (n, 2) uint64."""
    out = np.empty((len(blocks), 2), np.uint64)
    for rows, words in _pinned(encryptor(key.material("Pin")), blocks, codes):
        out[rows] = words
    return out


def _pinned(
    context: CipherContext, blocks: Blocks, codes: NDArray[np.integer]
) -> Iterator[tuple[slice, NDArray[np.uint64]]]:
    # CBC-MAC of (row, label): AES twice. With one AES of row XOR label, two different pairs could
    # be one input.
    for rows, state in _first_words(context, blocks):
        state[:, 0] ^= np.asarray(codes[rows], np.int64).view(np.uint64)
        yield rows, encrypt(context, state)


# How ids become blocks
# --------------------------------------------------------------------------------------------------


def _text(values: "NDArray[np.integer] | Strings") -> Strings:
    found = (
        values
        if isinstance(values, Strings)
        else _hash.from_arrow(pa.array(values).cast(pa.large_string()))
    )
    assert found is not None
    return found


def _integer_blocks(values: NDArray[np.integer]) -> Blocks:
    # The same number must be the same id in every integer type, so it is widened to 64 bits, and
    # its sign to 96.
    signed = values.dtype.kind == "i"
    wide = np.ascontiguousarray(values.astype(np.int64 if signed else np.uint64, copy=False))
    return Blocks(
        INTEGER, wide.view(np.uint64), signed=bool(signed and len(wide) and wide.min() < 0)
    )


def _mac_blocks(tag: int, messages: "Strings | Composites", key: bytes) -> Blocks:
    """Make blocks of messages of any length: AES-CMAC under the run's key, cut to the 96 bits of an
    id."""
    low, high = np.empty(len(messages), WORD), np.empty(len(messages), "<u4")
    for where, macs in cmac_chunks(key, messages):
        low[where] = macs[:, 0]
        high[where] = macs.view("<u4")[:, 2]
    return Blocks(tag, low, high)


def _columns(ids: object) -> list[Any] | None:
    """Split a composite id into its columns; None if `ids` is one column."""
    if isinstance(ids, np.ndarray) and ids.ndim == 2:
        return [ids[:, i] for i in range(ids.shape[1])]
    if hasattr(ids, "columns"):  # a table of Arrow, pandas or polars
        table = pa.table(ids)
        return [table.column(i) for i in range(table.num_columns)]
    if isinstance(ids, (list, tuple)) and ids:
        if all(isinstance(row, tuple) for row in ids):
            if len({len(row) for row in ids}) != 1 or not len(ids[0]):
                raise InvalidInput(
                    "Expected composite ids of one length, at least 1; got tuples of several"
                    " lengths, or empty ones."
                )
            return [list(part) for part in zip(*ids, strict=True)]
        if all(
            hasattr(column, "__len__") and not isinstance(column, (str, bytes)) for column in ids
        ):
            if any(isinstance(column, list) for column in ids):
                raise InvalidInput(
                    "Expected a composite id as a list of tuples (rows) or of arrays (columns), got"
                    " a list of lists."
                )
            return list(ids)
    return None


def _joined(parts: "list[tuple[int, NDArray[np.integer] | Strings]]") -> "Composites":
    if len({len(values) for _, values in parts}) > 1:
        raise InvalidInput(
            "Expected the columns of a composite id to have equal lengths, got"
            f" {[len(v) for _, v in parts]}."
        )
    return Composites(
        [
            (tag, values if isinstance(values, Strings) else _integer_blocks(values).halves())
            for tag, values in parts
        ]
    )


_FIX = "Pass integers, strings or bytes, or several such columns."


def _typed(column: Any, name: str) -> "tuple[int, NDArray[np.integer] | Strings]":
    """Read one column as (INTEGER, (n,) integer array), or (TEXT or BYTES, n strings); refuse
    everything else."""
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "iuUS":
        return _typed_numpy(column, name)
    values = _arrow(column, name)
    values = _hash.decoded(values) if pa.types.is_dictionary(values.type) else values
    kind = values.type
    if values.null_count:
        raise InvalidInput(
            f"Expected a value in every row of {name}, got {values.null_count} nulls. Fill them or"
            " drop the rows."
        )
    if pa.types.is_null(kind):  # an empty list has no type
        return INTEGER, np.empty(0, np.int64)
    if pa.types.is_integer(kind):
        return INTEGER, np.asarray(values.to_numpy())
    found = _hash.from_arrow(values)
    if found is None:
        raise InvalidInput(f"Expected {name} of integers, strings or bytes, got {kind}. {_FIX}")
    is_text = (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )
    return TEXT if is_text else BYTES, found


def _typed_numpy(column: NDArray[Any], name: str) -> "tuple[int, NDArray[np.integer] | Strings]":
    if np.ma.is_masked(column):
        raise InvalidInput(
            f"Expected a value in every row of {name}, got masked ones. Fill them or drop the rows."
        )
    if column.dtype.kind in "iu":
        return INTEGER, column
    try:
        return TEXT if column.dtype.kind == "U" else BYTES, _hash.from_numpy(column)
    except UnicodeError:
        raise InvalidInput(
            f"Expected {name} of text, got an array with broken characters (lone surrogates)."
            f" {_FIX}"
        ) from None


def _arrow(column: Any, name: str) -> "pa.Array | pa.ChunkedArray":
    if isinstance(column, (list, tuple)) and any(
        isinstance(value, (bool, np.bool_)) for value in column
    ):
        raise InvalidInput(f"Expected {name} of integers, strings or bytes, got bool. {_FIX}")
    try:
        return column if isinstance(column, (pa.Array, pa.ChunkedArray)) else _from_python(column)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, UnicodeError):
        # `from None`: Arrow's message can quote values
        got = f"a {type(column).__name__} that mixes types or exceeds 64 bits"
        raise InvalidInput(
            f"Expected one column of {name}, all of one type, got {got}. {_FIX}"
        ) from None


def _from_python(column: Any) -> "pa.Array | pa.ChunkedArray":
    if hasattr(column, "__arrow_c_stream__"):
        return pa.chunked_array(column)
    if hasattr(column, "to_numpy") and not hasattr(column, "__arrow_c_array__"):
        column = column.to_numpy()
    try:
        return pa.array(column)
    except (pa.ArrowInvalid, OverflowError):
        # Arrow guesses int64 for a list, also where all of it is unsigned
        return pa.array(column, pa.uint64())


# Ids of several columns
# --------------------------------------------------------------------------------------------------

# messages built at a time: with their parts they take twice the memory of a single column
_COMPOSITE_CHUNK: Final = CHUNK // 2
_HEADER = np.dtype([("tag", "u1"), ("length", "<u8")])
_INTEGER = np.dtype([("tag", "u1"), ("length", "<u8"), ("low", "<u8"), ("high", "<u4")])
_INTEGER_BYTES = 12
# bytes that are copied at once: NumPy moves items of one fixed width fast
_WIDTHS = (8, 16, 24, 32, 40, 48, REACH)


class Composites:
    """n composite ids as messages: each part as type (1 byte), length (8 bytes) and bytes, so that
    different ids give different messages.

    Parameters
    ----------
    parts : sequence of (tag, column)
        n strings; or n integers as (low, high), bytes 0..7 and 8..11 of their two's complement, as
        in a block.
    """

    def __init__(
        self, parts: "Sequence[tuple[int, Strings | tuple[NDArray[np.uint64], NDArray[np.uint32]]]]"
    ) -> None:
        self._parts = parts
        self._n = len(parts[0][1] if isinstance(parts[0][1], Strings) else parts[0][1][0])

    def __len__(self) -> int:
        return self._n

    def chunks(self) -> Iterator[tuple[slice, Rows]]:
        """Iterate over all messages in chunks: (slice of the rows, messages)."""
        for start in range(0, self._n, _COMPOSITE_CHUNK):
            where = slice(start, min(start + _COMPOSITE_CHUNK, self._n))
            yield where, self._rows(where)

    def _rows(self, where: slice) -> Rows:
        pieces = [piece for tag, column in self._parts for piece in _pieces(tag, column, where)]
        ragged = [int(piece.lengths.max()) for piece in pieces if isinstance(piece, Rows)]
        return _joined_pieces(pieces, where.stop - where.start, max(ragged, default=0))


Piece = NDArray[np.void] | Rows
"""Bytes of one width for every row, or bytes that differ in length."""


def _pieces(
    tag: int, column: "Strings | tuple[NDArray[np.uint64], NDArray[np.uint32]]", where: slice
) -> list[Piece]:
    """Encode a chunk of one part: its headers, and its bytes unless all are empty."""
    n = where.stop - where.start
    if isinstance(column, Strings):
        rows, header = column.rows(where.start, where.stop), np.empty(n, _HEADER)
        header["tag"], header["length"] = tag, rows.lengths
        length = int(rows.lengths[0])
        if (rows.lengths != length).any():
            return [_void(header), rows]
        return [_void(header), rows.leading(length)] if length else [_void(header)]
    record = np.empty(n, _INTEGER)
    record["tag"], record["length"], record["low"], record["high"] = (
        tag,
        _INTEGER_BYTES,
        column[0][where],
        column[1][where],
    )
    return [_void(record)]


def _void(records: NDArray[np.void]) -> NDArray[np.void]:
    return records.view(f"V{records.itemsize}")


def _joined_pieces(pieces: Sequence[Piece], n: int, longest: int) -> Rows:
    """Join pieces into messages, whose lengths may differ."""
    # Copying each row's exact number of bytes would need a loop in Python. Instead each part is
    # copied in steps of one width, beyond its end: the next part overwrites the excess, and behind
    # the last part there is room for it that is never read.
    width = next(width for width in _WIDTHS if width >= min(longest, REACH))
    lengths = np.zeros(n, np.int64)
    for piece in pieces:
        lengths += piece.lengths if isinstance(piece, Rows) else piece.itemsize
    begins = np.r_[0, np.cumsum(lengths + width)]
    messages, at = (
        Rows(np.empty(begins[-1] + REACH, np.uint8), begins[:-1], lengths),
        begins[:-1].copy(),
    )
    for piece in pieces:
        if isinstance(piece, Rows):
            _put(piece, messages.windows(width), at)
            at += piece.lengths
        else:
            messages.windows(piece.itemsize)[at] = piece
            at += piece.itemsize
    return messages


def _put(rows: Rows, target: NDArray[np.void], at: NDArray[np.int64]) -> None:
    """Copy each row to its place, and up to one width of arbitrary bytes after it."""
    width = target.itemsize
    source = rows.windows(width)
    target[at] = source[rows.begins]
    for place in range(width, int(rows.lengths.max()), width):
        further = np.flatnonzero(rows.lengths > place)
        target[at[further] + place] = source[rows.begins[further] + place]


# AES and AES-CMAC
# --------------------------------------------------------------------------------------------------


def encryptor(key: bytes) -> CipherContext:
    """Make a context that encrypts each 16-byte block with AES; it keeps no state between
    blocks."""
    # ECB is plain AES, a keyed permutation of blocks. Its known weakness, that equal blocks give
    # equal ciphertexts, is what is wanted here: blocks are public names of rows, and a row must get
    # its word again.
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor()


def space_for(n: int) -> NDArray[np.uint8]:
    """Allocate a buffer for the encryption of n blocks; the library requires 15 spare bytes after
    them."""
    return np.empty(16 * n + 15, np.uint8)


def encrypt(
    context: CipherContext, blocks: NDArray[np.uint64], into: NDArray[np.uint8] | None = None
) -> NDArray[np.uint64]:
    """Encrypt each row of a C-contiguous, little-endian (n, 2) uint64 array: (n, 2), in the given
    buffer or a new one."""
    out = space_for(len(blocks)) if into is None else into
    context.update_into(blocks.view(np.uint8).reshape(-1).data, out.data)
    return out[: blocks.nbytes].view(WORD).reshape(-1, 2)


def cmac_chunks(
    key: bytes, messages: Strings | Composites
) -> Iterator[tuple[slice, NDArray[np.uint64]]]:
    """Compute the AES-CMAC of each message, in chunks: (slice of the rows, (m, 2) uint64,
    little-endian), valid until the next chunk.

    Notes
    -----
    Cost: one call of AES for each 16 bytes of the longest message of a chunk, over the rows that
    are so long.

    References
    ----------
    RFC 4493, "The AES-CMAC algorithm".
    """
    context = encryptor(key)
    ends = _Ends(context)
    space = space_for(0)
    for where, rows in messages.chunks():
        if len(space) < 16 * len(rows) + 15:
            space = space_for(len(rows))
        yield where, _chunk(context, ends, LongestFirst(rows), space)


def _chunk(
    context: CipherContext, ends: "_Ends", rows: LongestFirst, space: NDArray[np.uint8]
) -> NDArray[np.uint64]:
    # The longest rows come first: the rows that have a further block are a leading slice, on which
    # AES runs without a mask.
    out = np.empty(len(rows), "V16")
    state: NDArray[np.uint64] | None = None
    running, place = len(rows), 0
    while running:
        further = rows.reach(place + 16)  # rows with a block after this one
        message = rows.at(place, 16, running).copy().view(WORD).reshape(-1, 2)
        ends.finish(message[further:], rows.lengths[further:running] - place)
        if state is not None:
            message ^= state[:running]
        state = encrypt(context, message, space)
        out[further:running] = state.view("V16")[further:running, 0]
        running, place = further, place + 16
    return rows.unsorted(out).view(WORD).reshape(-1, 2)


class _Ends:
    """Tables to pad and key the last block of each message, indexed by the 0 to 16 bytes of the
    message in it (RFC 4493, section 2.4)."""

    def __init__(self, context: CipherContext) -> None:
        complete, padded = _subkeys(context)
        # 0x80 behind the message
        mark = np.vstack([np.diag(np.full(16, 0x80, np.uint8)), np.zeros((1, 16), np.uint8)]).view(
            WORD
        )
        self._change = (mark ^ np.where(np.arange(17)[:, None] < 16, padded, complete)).view("V16")[
            :, 0
        ]
        self._keep = np.tril(np.full((17, 16), 0xFF, np.uint8), -1).view("V16")[:, 0]

    def finish(self, message: NDArray[np.uint64], lengths: NDArray[np.int64]) -> None:
        """Pad and key these last blocks in place: clear the bytes after the message, then XOR the
        padding mark and the subkey."""
        message &= self._keep.take(lengths).view(WORD).reshape(-1, 2)
        message ^= self._change.take(lengths).view(WORD).reshape(-1, 2)


def _subkeys(context: CipherContext) -> NDArray[np.uint64]:
    """Derive K1, for a complete last block, and K2, for a padded one (RFC 4493, section 2.3): (2,
    2) uint64."""
    keys = []
    number = int.from_bytes(encrypt(context, np.zeros((1, 2), WORD)).tobytes(), "big")
    for _ in range(2):
        number = (number << 1) ^ (0x87 if number >> 127 else 0)
        number &= (1 << 128) - 1
        keys.append(np.frombuffer(number.to_bytes(16, "big"), WORD))
    return np.array(keys)
