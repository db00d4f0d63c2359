# SPDX-License-Identifier: Apache-2.0
"""Speed of row ids: blocks, the digest of their set and their row set, by which repeats are found,
against two floors. One thread.

    python -m benchmarks speed-ids [--rows 4000000] [--repeats 5] [--out FILE]

Every round runs every method once, in turn; seconds are of the processor, not of the clock, so that
other work on the machine counts little; medians of the rounds and of the ratios within a round. The
floors of a kind of ids are one AES pass over its bytes, filled up to blocks of 16, and a copy of
its bytes.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.common import machine, parser, print_result
from benchmarks.speed.noise import measure
from labeldp._hash import SetDigest, public_hash
from labeldp.ledger._rowset import RowSetBuilder
from labeldp.noise._words import (
    CHUNK,
    WORD,
    Key,
    SeededNoise,
    derive_key,
    encrypt,
    encryptor,
    id_blocks,
    space_for,
)

BATCH = 1 << 17
"""Rows of a table's batch."""

Column = Any
"""(n,) int64 array, or a pyarrow StringArray."""
Ids = list[Column]
"""The columns of an id."""


def uuids(n: int) -> pa.StringArray:
    """n texts of 36 bytes."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    text = digits[np.random.default_rng(0).integers(0, 16, (n, 36), dtype=np.uint8)]
    text[:, [8, 13, 18, 23]] = ord("-")
    return _text(text.reshape(-1), np.arange(0, 36 * n + 1, 36))


def ragged(n: int) -> pa.StringArray:
    """n texts of 5 to 40 bytes."""
    generator = np.random.default_rng(1)
    ends = np.r_[0, np.cumsum(generator.integers(5, 41, n))]
    return _text(generator.integers(97, 123, ends[-1], dtype=np.uint8), ends)


def _text(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> pa.StringArray:
    return pa.StringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)
    )


def kinds(n: int) -> dict[str, Ids]:
    """Ids of n rows by what they are."""
    shuffled, text = np.random.default_rng(2).permutation(n), uuids(n)
    return {
        "integers in order": [np.arange(n)],
        "integers, shuffled": [shuffled],
        "integers, scattered": [np.random.default_rng(3).integers(-(2**62), 2**62, n)],
        "UUIDs": [text],
        "texts of 5 to 40 bytes": [ragged(n)],
        "integer and UUID": [shuffled, text],
        "integer and text of 5 to 40 bytes": [shuffled, ragged(n)],
    }


def batches(ids: Ids) -> Iterator[Ids]:
    """The ids as a table's batches bring them."""
    for start in range(0, len(ids[0]), BATCH):
        yield [column[start : start + BATCH] for column in ids]


def one(ids: Ids) -> Any:
    """An id of a single column as that column."""
    return ids[0] if len(ids) == 1 else ids


def blocks(ids: Ids, key: Key) -> None:
    """Blocks of every batch."""
    for batch in batches(ids):
        id_blocks(one(batch), key)


def hashed(ids: Ids) -> None:
    """Hash every id publicly."""
    for batch in batches(ids):
        public_hash("salt", *batch)


def digest(ids: Ids) -> None:
    """Digest of the set of ids."""
    found = SetDigest()
    for batch in batches(ids):
        found.update(*batch)


def row_set(ids: Ids) -> bool | None:
    """The row set that a ledger keeps, and whether any id came twice."""
    builder = RowSetBuilder(secret=bytes(32))
    for batch in batches(ids):
        builder.add(one(batch))
    builder.finish().facts()
    return builder.repeated


def aes_floor(ids: Ids) -> None:
    """AES of as many blocks as the ids fill, ready in the cache, and nothing else."""
    context, space, ready = encryptor(bytes(16)), space_for(CHUNK), np.zeros((CHUNK, 2), WORD)
    for _ in range(0, sum(map(blocks_filled, ids)), CHUNK):
        encrypt(context, ready, space)


def blocks_filled(column: Column) -> int:
    """16-byte blocks that the values of a column fill, each for itself."""
    if isinstance(column, np.ndarray):
        return len(column)
    lengths = np.diff(np.frombuffer(column.buffers()[1], np.int32))
    return int(np.maximum(1, -(-lengths // 16)).sum())


def copy_floor(ids: Ids) -> None:
    """A copy of the bytes of the ids, batch by batch."""
    for column in ids:
        data = (
            column
            if isinstance(column, np.ndarray)
            else np.frombuffer(column.buffers()[2], np.uint8)
        )
        step = BATCH * len(data) // len(column)
        space = np.empty(step, data.dtype)
        for start in range(0, len(data), step):
            part = data[start : start + step]
            np.copyto(space[: len(part)], part)


def compare(ids: Ids, key: Key, repeats: int) -> dict[str, object]:
    """The figures of one kind of ids."""
    methods: dict[str, Callable[[], object]] = {
        "blocks": lambda: blocks(ids, key),
        "public hash": lambda: hashed(ids),
        "set digest": lambda: digest(ids),
        "row set": lambda: row_set(ids),
        "AES floor": lambda: aes_floor(ids),
        "copy floor": lambda: copy_floor(ids),
    }
    seconds = measure(methods, repeats, time.process_time)
    floor, n = seconds["AES floor"], len(ids[0])
    return {
        "million rows a processor second, median": {
            name: round(n / 1e6 / statistics.median(values), 1) for name, values in seconds.items()
        },
        "times as long as the AES floor, median of rounds": {
            name: round(statistics.median(a / b for a, b in zip(values, floor, strict=True)), 2)
            for name, values in seconds.items()
        },
        "seconds": {
            name: [round(value, 5) for value in values] for name, values in seconds.items()
        },
    }


def run(n: int, repeats: int) -> dict[str, object]:
    """The result as JSON data."""
    key = derive_key(SeededNoise(0).secret(), purpose="ids", facts={})
    conditions = machine()
    return {
        "what": f"row ids of {n} rows in batches of {BATCH}, one thread",
        "machine": conditions,
        "rounds": repeats,
        "ids": {name: compare(ids, key, repeats) for name, ids in kinds(n).items()},
    }


def main(arguments: Sequence[str]) -> None:
    """Measure, and print one JSON object."""
    options = parser("speed-ids", __doc__)
    options.add_argument("--rows", type=int, default=4_000_000)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--out", type=Path, help="keep the JSON here")
    args = options.parse_args(arguments)
    print_result(run(args.rows, args.repeats), args.out)
