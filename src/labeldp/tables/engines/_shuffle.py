# SPDX-License-Identifier: Apache-2.0
"""Rows in the order of keyed 64-bit words, through files on disk, in bounded memory.

Rows are scattered by the leading bits of their word into buckets, and each bucket is sorted by word in memory: together the order of
a full sort. Since the words are uniform and secret, this is a uniformly random permutation that says nothing about the input's order.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labeldp._files import private_file

BUCKET_BYTES = 1 << 24
MAX_BITS = 9
WORD = "__labeldp_word"
BUCKET = r"bucket-\d{3}\.arrow"
"""What the files are called, as a pattern."""


class Shuffle:
    """An external sort by uniform words.

    Parameters
    ----------
    folder : Path
        Private, on a disk with room for the decoded rows; bucket files are deleted as they are read.
    total_rows : int
        How many rows will come; with the width of the first ones it sets how many buckets there are.

    Cost: each row is written and read once, O(n log n) comparisons within buckets; memory about 5 buckets of 16 MiB, while the table
    is below 8 GiB, and 1/100 of the table above that.
    """

    def __init__(self, folder: Path, total_rows: int):
        self._folder, self._rows, self._bits = folder, total_rows, 0
        self._paths: list[Path] = []
        self._files: list[pa.OSFile] = []
        self._writers: list[pa.RecordBatchStreamWriter] = []

    def scatter(self, rows: pa.RecordBatch, words: NDArray[np.uint64]) -> None:
        """Put rows into their buckets. words: (n,) uniform uint64."""
        worded = rows.append_column(WORD, pa.array(words))
        if not self._writers:
            self._open(worded)
        if not self._bits:
            self._writers[0].write_batch(worded)
            return
        bucket = (words >> np.uint64(64 - self._bits)).astype(np.uint16)
        grouped = pc.take(worded, pa.array(np.argsort(bucket, kind="stable")), boundscheck=False)
        edges = np.concatenate([[0], np.cumsum(np.bincount(bucket, minlength=len(self._paths)))])
        for writer, start, stop in zip(self._writers, edges[:-1], edges[1:], strict=True):
            if stop > start:
                writer.write_batch(grouped.slice(start, stop - start))

    def _open(self, first: pa.RecordBatch) -> None:
        total = self._rows * first.nbytes / max(len(first), 1)
        self._bits = min(max(int(np.ceil(np.log2(max(total, 1) / BUCKET_BYTES))), 0), MAX_BITS)
        self._paths = [self._folder / f"bucket-{i:03d}.arrow" for i in range(1 << self._bits)]
        for path in self._paths:
            self._files.append(pa.OSFile(str(private_file(path)), "wb"))
            self._writers.append(pa.ipc.new_stream(self._files[-1], first.schema))

    def gather(self) -> Iterator[pa.RecordBatch]:
        """All rows in the order of their words; each bucket's file is deleted once read."""
        for writer, file in zip(self._writers, self._files, strict=True):
            writer.close()
            file.close()
        for path in self._paths:
            yield from _sorted_bucket(path, self._bits)
            path.unlink()


def _sorted_bucket(path: Path, bits: int) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as stream:
        table = stream.read_all()
    if not table.num_rows:
        return
    order = order_of(table.column(WORD).to_numpy(), bits)
    rows = table.drop_columns([WORD]).unify_dictionaries().combine_chunks()
    yield from pc.take(rows, pa.array(order), boundscheck=False).to_batches()


def order_of(words: NDArray[np.uint64], bits: int = 0) -> NDArray[np.int64]:
    """Positions that sort words whose first `bits` bits are equal: (n,) int64.

    The position takes the place of each word's last bits, so that one plain sort does, many times faster than an argsort; where two
    words then look equal, the whole words decide.
    """
    width = np.uint64(max(len(words) - 1, 1).bit_length())
    keys = ((words << np.uint64(bits)) >> width << width) | np.arange(len(words), dtype=np.uint64)
    keys.sort()
    leading = keys >> width
    if (leading[1:] == leading[:-1]).any():
        return np.argsort(words, kind="stable")
    return (keys & ((np.uint64(1) << width) - np.uint64(1))).view(np.int64)
