# SPDX-License-Identifier: Apache-2.0
"""Where random words come from: a run's secret, keys derived from it, and AES over blocks that name rows.

Every draw has its own key, derived from a secret and from every fact that makes it a different draw; every row of it has its own
block. So a word is never used twice, and the same draw asked for again gives the same words on every machine. docs/noise.md is the
exact format, with test vectors.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import CipherContext
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.noise._blocks import Blocks, blocks_of, row_blocks
from labeldp.noise._cmac import CHUNK, WORD, encrypt, encryptor, space_for
from labeldp.noise._keys import DRAW_FACTS, FORMAT, Key, SeededNoise, derive_key, new_run_id, new_secret

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

_MAX_COUNTER: Final = 1 << 25


def id_blocks(ids: object, key: Key) -> Blocks:
    """Blocks of explicit row ids: the same id is the same block in any order, file and machine.

    Parameters
    ----------
    ids : (n,) integers, strings or bytes
        A sequence, NumPy, Arrow, pandas or polars column. Or composite: a list of tuples (rows), a list of such columns, a 2-D array
        or a table. Nulls, floats and bools are refused. 1, "1", b"1" and ("1",) are four different ids; ("a", "bc") is not ("ab", "c").
    key : Key
        Of purpose "ids"; strings, bytes and composites are hashed with it, integers stand for themselves.

    Returns
    -------
    Blocks
        n rows. Repeated ids are not looked for here: see `Blocks.first_repeat`.

    Notes
    -----
    A hashed id is AES-CMAC cut to 96 bits: among n ids, two collide with probability at most about n^2 / 2^97 (1e-13 for a hundred
    million). Cost: no copy of 64-bit integers; 12 bytes a row otherwise.
    """
    material = key.material("id_blocks")
    return blocks_of(ids, lambda: material)


class RowWords:
    """The words of a chunk of rows under one key: implements `labeldp.laws._base.Words`.

    Words 2c and 2c + 1 of a row are the two halves of AES(block with counter c). For more than about `CHUNK` rows use
    `word_chunks`.

    Parameters
    ----------
    key : Key
        Of purpose "draw", or a further stream's own purpose.
    blocks : Blocks
        The rows.
    """

    __slots__ = ("_cache", "_context", "_space", "_templates")

    def __init__(self, key: Key, blocks: Blocks) -> None:
        self._start(encryptor(key.material("RowWords")), blocks.templates(), None)

    def _start(self, context: CipherContext, templates: NDArray[np.uint64], space: NDArray[np.uint8] | None) -> "RowWords":
        self._context, self._templates, self._space = context, templates, space
        self._cache: tuple[int, NDArray[np.intp] | None, NDArray[np.uint64]] | None = None
        return self

    def __len__(self) -> int:
        return len(self._templates)

    def take(self, counter: int, rows: NDArray[np.intp] | None = None) -> NDArray[np.uint64]:
        """Word number `counter` of every row, or of the rows at these positions: (len(rows),) uint64, the caller's own."""
        if not 0 <= counter < _MAX_COUNTER:
            raise InvalidInput(f"Expected 0 <= counter < 2^25, got counter={counter}. No law needs so many words of one row.")
        block, half = divmod(counter, 2)
        return self._pair(block, rows)[:, half].copy()

    def select(self, rows: NDArray[np.intp]) -> "RowWords":
        """The streams of the rows at these positions, as a chunk of its own."""
        return object.__new__(RowWords)._start(self._context, self._templates[rows], None)

    def _pair(self, block: int, rows: NDArray[np.intp] | None) -> NDArray[np.uint64]:
        """Both words of a block, (n, 2). The last block is kept: laws take word 2c and then 2c + 1."""
        if self._cache is not None and self._cache[0] == block:
            _, kept, words = self._cache
            if kept is None:
                return words if rows is None else words[rows]
            if rows is not None and np.array_equal(kept, rows):
                return words
        templates, space = (self._templates, self._space) if rows is None else (self._templates[rows], None)
        words = _words(self._context, templates, block, space)
        self._cache = (block, None if rows is None else np.array(rows), words)
        return words


def word_chunks(key: Key, blocks: Blocks) -> Iterator[tuple[slice, RowWords]]:
    """The words of any number of rows, a cache-sized chunk at a time: (which rows, their words).

    The chunks share memory, which so stays in the processor's cache: use one chunk's words before the next; what was taken stays.
    """
    context = encryptor(key.material("RowWords"))
    templates, space = blocks[:CHUNK].templates(), space_for(min(CHUNK, len(blocks)))
    for rows in _chunks(len(blocks)):
        yield rows, object.__new__(RowWords)._start(context, blocks[rows].templates(templates), space)


def _words(
    context: CipherContext, templates: NDArray[np.uint64], counter: int = 0, into: NDArray[np.uint8] | None = None
) -> NDArray[np.uint64]:
    """AES of the templates with this counter in bytes 13 to 15: (n, 2) uint64."""
    if counter:
        templates = templates | np.array([0, counter << 40], WORD)
    return encrypt(context, templates, into)


def _chunks(n: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK))


def _first_words(context: CipherContext, blocks: Blocks) -> Iterator[tuple[slice, NDArray[np.uint64]]]:
    """AES of every block with counter 0, a chunk at a time: (which rows, (m, 2) uint64)."""
    templates, space = blocks[:CHUNK].templates(), space_for(min(CHUNK, len(blocks)))
    for rows in _chunks(len(blocks)):
        yield rows, encrypt(context, blocks[rows].templates(templates), space)


def one_word(key: Key, blocks: Blocks) -> NDArray[np.uint64]:
    """Word 0 of every row, for orders and choices that need one: (n,) uint64. As `RowWords(key, blocks).take(0)`, in less memory."""
    out = np.empty(len(blocks), np.uint64)
    for rows, words in word_chunks(key, blocks):
        out[rows] = words.take(0)
    return out


def partition(key: Key, blocks: Blocks, fractions: Sequence[float]) -> NDArray[np.int16]:
    """Put each row into one part, at random and independently of the others, by one keyed word.

    Parameters
    ----------
    key : Key
        Of purpose "partition".
    blocks : Blocks
        n rows.
    fractions : sequence of float
        Expected share of each part: above 0, sum 1 (up to 1e-9; the last part takes the rest).

    Returns
    -------
    (n,) int16
        Number of the part. A row's part depends on its block alone, so a row keeps it in any order and on any machine.
    """
    edges = partition_edges(fractions)
    context, out = encryptor(key.material("partition")), np.empty(len(blocks), np.int16)
    for rows, words in _first_words(context, blocks):
        out[rows] = np.searchsorted(edges, words[:, 0], side="right")
    return out


def partition_edges(fractions: Sequence[float]) -> NDArray[np.uint64]:
    """Where one part ends and the next begins, for `partition`, which says what fractions are allowed: one edge less than parts."""
    shares = [Fraction(_validate.positive(fraction=share, fix="Give each part a share.")) for share in fractions]
    if not (0 < len(shares) < 1 << 15 and abs(sum(shares, Fraction(0)) - 1) <= Fraction(1, 10**9)):
        raise InvalidInput(f"Expected fractions that sum to 1, got {list(fractions)!r}. Divide them by their sum.")
    edges = [min(math.floor(sum(shares[: i + 1], Fraction(0)) * 2**64), 2**64 - 1) for i in range(len(shares) - 1)]
    return np.array(edges, np.uint64)


class Pin:
    """A keyed digest of which row has which label, whatever their order: it shows whether an input is still the one charged for.

    It is kept with the run's secret and destroyed with it. Unlike a plain digest it confirms no guess to those without the key.

    Parameters
    ----------
    key : Key
        Of purpose "pin".
    """

    __slots__ = ("_context", "count", "sums")

    def __init__(self, key: Key) -> None:
        self._context: CipherContext | None = encryptor(key.material("Pin"))
        self.sums = np.zeros(2, np.uint64)
        self.count = 0
        """Rows so far."""

    def __repr__(self) -> str:
        return f"Pin({self.count} rows)"

    def __reduce__(self) -> tuple[object, ...]:
        return _sums_alone, (self.count, self.sums)

    def update(self, blocks: Blocks, codes: NDArray[np.integer]) -> None:
        """Add rows: n blocks and their (n,) class codes."""
        if len(blocks) != len(codes):
            raise InvalidInput(f"Expected one code for each of {len(blocks)} rows, got {len(codes)}.")
        if self._context is None:
            raise InvalidInput("Expected a pin with its key, got one that was pickled: it holds the sums alone and can only be merged.")
        for _, words in _pinned(self._context, blocks, codes):
            self.sums += np.array([words[:, 0].sum(), words[:, 1].sum()])  # many times faster than sum(axis=0) of two columns
        self.count += len(blocks)

    def merge(self, other: "Pin") -> None:
        """Add the rows of another pin under the same key."""
        self.sums += other.sums
        self.count += other.count

    def hexdigest(self) -> str:
        """Count and two sums modulo 2^64, 48 hexadecimal digits: equal for equal multisets of (row, label)."""
        return "".join(f"{int(number):016x}" for number in (self.count, *self.sums))


def pin_words(key: Key, blocks: Blocks, codes: NDArray[np.integer]) -> NDArray[np.uint64]:
    """What each row adds to the sums of a `Pin` under this key: (n, 2) uint64."""
    out = np.empty((len(blocks), 2), np.uint64)
    for rows, words in _pinned(encryptor(key.material("Pin")), blocks, codes):
        out[rows] = words
    return out


def _pinned(context: CipherContext, blocks: Blocks, codes: NDArray[np.integer]) -> Iterator[tuple[slice, NDArray[np.uint64]]]:
    for rows, state in _first_words(context, blocks):
        state[:, 0] ^= np.asarray(codes[rows], np.int64).view(np.uint64)
        yield rows, encrypt(context, state)


def _sums_alone(count: int, sums: NDArray[np.uint64]) -> Pin:
    """A pin without its key: it adds up with others, and takes no rows."""
    pin = object.__new__(Pin)
    pin._context, pin.count, pin.sums = None, count, sums
    return pin
