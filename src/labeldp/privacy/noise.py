# SPDX-License-Identifier: Apache-2.0
"""Where random words come from: a run's secret, keys derived from it, and AES over blocks that name rows.

Every draw has its own key, derived from a secret and from every fact that makes it a different draw; every row of it has its own
block. So a word is never used twice, and the same draw asked for again gives the same words on every machine. docs/noise.md is the
exact format, with test vectors.
"""

import hashlib
import hmac
import json
import math
import numbers
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NoReturn

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import CipherContext
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.privacy.blocks import Blocks, blocks_of, row_blocks
from labeldp.privacy.cmac import CHUNK, WORD, encrypt, encryptor, space_for

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
    "public_hash",
    "row_blocks",
    "word_chunks",
]

FORMAT: Final = 1
"""Version of the format in docs/noise.md; it enters every key, so formats never share words."""

DRAW_FACTS: Final = ("run_id", "dataset", "column", "unit", "max_rows_per_unit", "law", "classes", "prior", "stage")
"""What makes two draws different draws; a key of purpose "draw" cannot be derived without each of them."""

_SECRET_BYTES: Final = 32
_KEY_BYTES: Final = 16
_MAX_COUNTER: Final = 1 << 25
_OWN_USE: Final = {"ids": "id_blocks", "partition": "partition", "pin": "Pin"}


def new_secret() -> bytes:
    """32 bytes of the operating system's entropy: the secret of one run or ledger."""
    return os.urandom(_SECRET_BYTES)


def new_run_id() -> str:
    """128 random bits in hexadecimal, the public name of one charge."""
    return os.urandom(16).hex()


@dataclass(frozen=True)
class SeededNoise:
    """Noise from a seed, for tests and for benchmarks on public data: it protects nothing, and what is made with it says so.

    Parameters
    ----------
    seed : int
        At least 0. The same seed and the same calls give the same noise; nothing of the operating system's entropy enters.
    """

    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", _validate.integer(seed=self.seed, low=0))

    def secret(self) -> bytes:
        """The 32 bytes that stand in for `new_secret()`."""
        return hashlib.sha256(b"labeldp seeded secret %d" % self.seed).digest()

    def run_id(self, facts: Mapping[str, object], counter: int = 0) -> str:
        """The id that stands in for `new_run_id()`: a hash of the seed, what the run is (JSON-like facts) and how many such there were."""
        info = _canonical({"counter": counter, "facts": dict(facts)})
        return hmac.new(self.secret(), b"labeldp seeded run id " + info, hashlib.sha256).hexdigest()[:32]


class Key:
    """A key that only `derive_key` makes: it shows its purpose, never its bytes, and refuses to be pickled or copied."""

    __slots__ = ("__bytes", "purpose")

    def __init__(self, purpose: str, material: bytes) -> None:
        self.purpose = purpose
        self.__bytes = material

    def __repr__(self) -> str:
        return f"Key(purpose={self.purpose!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"A labeldp key is never pickled or copied (purpose {self.purpose!r}). Derive it again where it is needed.")

    def material(self, used_by: str) -> bytes:
        """The key's 16 bytes, for a use that its purpose allows: a key that served two uses would give them the same words."""
        if _OWN_USE.get(self.purpose, "RowWords") != used_by:
            wanted = [purpose for purpose, use in _OWN_USE.items() if use == used_by] or ["draw"]
            raise InvalidInput(f"Expected a key of purpose {wanted[0]!r} for {used_by}, got {self.purpose!r}. Derive one for this use.")
        return self.__bytes


def derive_key(secret: bytes, *, purpose: str, facts: Mapping[str, object]) -> Key:
    """The key for one use of a run's secret.

    Parameters
    ----------
    secret : bytes
        32 bytes, from `new_secret()` or `SeededNoise.secret()`.
    purpose : str
        "draw" for the words of a law, "ids" for `id_blocks`, "partition", "pin"; any other name for a further stream of words.
    facts : mapping
        Everything that makes this use a different one: JSON-like (str, int, float, bool, None, lists, mappings with ASCII keys).
        A draw needs all of `DRAW_FACTS`.

    Returns
    -------
    Key
        HKDF-SHA256 (RFC 5869, no salt) of the secret, 16 bytes; its info is the canonical JSON of the facts, purpose and format.

    Notes
    -----
    Guarantee: keys whose facts differ in anything are independent, so two draws never share a word. If they did, two outputs of one
    row could reveal its label with certainty.
    """
    if not (isinstance(secret, bytes) and len(secret) == _SECRET_BYTES):
        raise InvalidInput(f"Expected a secret of {_SECRET_BYTES} bytes, got another value. Make one with new_secret().")
    missing = [name for name in DRAW_FACTS if name not in facts] if purpose == "draw" else []
    if missing:
        wanted = f"Expected the facts {', '.join(DRAW_FACTS)} for a draw"
        raise InvalidInput(f"{wanted}, got nothing for {', '.join(missing)}. Pass None where there is none.")
    clash = sorted({"format", "purpose"} & set(facts))
    if clash:
        raise InvalidInput(f"Expected facts other than format and purpose, got {', '.join(clash)}. Give it another name.")
    info = _canonical({"format": FORMAT, "purpose": purpose, **facts})
    return Key(purpose, HKDF(algorithm=hashes.SHA256(), length=_KEY_BYTES, salt=None, info=info).derive(secret))


def _canonical(facts: Mapping[str, object]) -> bytes:
    """RFC 8785 JSON in UTF-8: keys sorted, no spaces; a float as {"float64": its 8 bytes, big-endian, in hexadecimal}."""
    tree = _plain(facts, "facts")
    try:
        return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise InvalidInput("Expected text in facts to be valid Unicode, got a lone surrogate. Repair the name.") from None


def _plain(value: object, name: str) -> object:
    if value is None or isinstance(value, (bool, str)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, (float, np.floating)) and math.isfinite(value):
        return {"float64": struct.pack(">d", float(value)).hex()}
    if isinstance(value, Mapping):
        bad = [key for key in value if not (isinstance(key, str) and key.isascii() and key != "float64")]
        if bad:
            raise InvalidInput(f"Expected ASCII keys other than 'float64' in {name}, got {bad[0]!r}. Rename it.")
        return {str(key): _plain(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{name}[{i}]") for i, item in enumerate(value)]
    raise InvalidInput(f"Expected JSON-like data with finite numbers, got {name} of type {type(value).__name__}. Convert it first.")


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
    """The words of a chunk of rows under one key: implements `labeldp.laws.base.Words`.

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
    shares = [Fraction(_validate.positive(fraction=share, fix="Give each part a share.")) for share in fractions]
    if not (0 < len(shares) < 1 << 15 and abs(sum(shares, Fraction(0)) - 1) <= Fraction(1, 10**9)):
        raise InvalidInput(f"Expected fractions that sum to 1, got {list(fractions)!r}. Divide them by their sum.")
    edges = [min(math.floor(sum(shares[: i + 1], Fraction(0)) * 2**64), 2**64 - 1) for i in range(len(shares) - 1)]
    context, out = encryptor(key.material("partition")), np.empty(len(blocks), np.int16)
    for rows, words in _first_words(context, blocks):
        out[rows] = np.searchsorted(np.array(edges, np.uint64), words[:, 0], side="right")
    return out


def public_hash(run_id: str, blocks: Blocks) -> NDArray[np.uint64]:
    """A number for each row that anyone who has its block can compute, to break ties without favouring a class: (n,) uint64.

    It is not secret and never used as noise: AES under the first 16 bytes of SHA-256(run id).
    """
    context = encryptor(hashlib.sha256(run_id.encode()).digest()[:_KEY_BYTES])
    out = np.empty(len(blocks), np.uint64)
    for rows, words in _first_words(context, blocks):
        out[rows] = words[:, 0]
    return out


class Pin:
    """A keyed digest of which row has which label, whatever their order: it shows whether an input is still the one charged for.

    It is kept with the run's secret and destroyed with it. Unlike a plain digest it confirms no guess to those without the key.

    Parameters
    ----------
    key : Key
        Of purpose "pin".
    """

    __slots__ = ("_context", "_sums", "count")

    def __init__(self, key: Key) -> None:
        self._context = encryptor(key.material("Pin"))
        self._sums = np.zeros(2, np.uint64)
        self.count = 0
        """Rows so far."""

    def __repr__(self) -> str:
        return f"Pin({self.count} rows)"

    def update(self, blocks: Blocks, codes: NDArray[np.integer]) -> None:
        """Add rows: n blocks and their (n,) class codes."""
        if len(blocks) != len(codes):
            raise InvalidInput(f"Expected one code for each of {len(blocks)} rows, got {len(codes)}.")
        for rows, state in _first_words(self._context, blocks):
            state[:, 0] ^= np.asarray(codes[rows], np.int64).view(np.uint64)
            self._sums += encrypt(self._context, state).sum(axis=0, dtype=np.uint64)
        self.count += len(blocks)

    def hexdigest(self) -> str:
        """Count and two sums modulo 2^64, 48 hexadecimal digits: equal for equal multisets of (row, label)."""
        return "".join(f"{int(number):016x}" for number in (self.count, *self._sums))
