# SPDX-License-Identifier: Apache-2.0
"""Rows in the order of keyed 64-bit words, through files on disk, in bounded memory.

Rows are scattered by the leading bits of their word into buckets, and each bucket is sorted by word in memory: together the order of
a full sort. Since the words are uniform and secret, this is a uniformly random permutation that says nothing about the input's order.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

BUCKET_BYTES = 1 << 24
MAX_BITS = 9
WORD = "__labeldp_word"


class Shuffle:
    """An external sort by uniform words.

    Parameters
    ----------
    folder : Path
        Private, on a disk with room for the decoded rows; bucket files are deleted as they are read.
    total_bytes : int
        About how much all rows take; sets how many buckets there are.

    Cost: each row is written and read once, O(n log n) comparisons within buckets; memory about 5 buckets of 16 MiB, while the table
    is below 8 GiB, and 1/100 of the table above that.
    """

    def __init__(self, folder: Path, total_bytes: int):
        self._bits = min(max(int(np.ceil(np.log2(max(total_bytes, 1) / BUCKET_BYTES))), 0), MAX_BITS)
        self._paths = [folder / f"bucket-{i:03d}.arrow" for i in range(1 << self._bits)]
        self._files: list[pa.OSFile] = []
        self._writers: list[pa.RecordBatchStreamWriter] = []

    def scatter(self, rows: pa.RecordBatch, words: NDArray[np.uint64]) -> None:
        """Put rows into their buckets. words: (n,) uniform uint64."""
        worded = rows.append_column(WORD, pa.array(words))
        if not self._writers:
            self._open(worded.schema)
        if not self._bits:
            self._writers[0].write_batch(worded)
            return
        bucket = (words >> np.uint64(64 - self._bits)).astype(np.uint16)
        grouped = worded.take(pa.array(np.argsort(bucket, kind="stable")))
        edges = np.concatenate([[0], np.cumsum(np.bincount(bucket, minlength=len(self._paths)))])
        for writer, start, stop in zip(self._writers, edges[:-1], edges[1:], strict=True):
            if stop > start:
                writer.write_batch(grouped.slice(start, stop - start))

    def _open(self, schema: pa.Schema) -> None:
        for path in self._paths:
            self._files.append(pa.OSFile(str(path), "wb"))
            self._writers.append(pa.ipc.new_stream(self._files[-1], schema))

    def gather(self) -> Iterator[pa.RecordBatch]:
        """All rows in the order of their words; each bucket's file is deleted once read."""
        for writer, file in zip(self._writers, self._files, strict=True):
            writer.close()
            file.close()
        for path in self._paths if self._writers else ():
            yield from _sorted_bucket(path)
            path.unlink()
            pa.default_memory_pool().release_unused()


def _sorted_bucket(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as stream:
        table = stream.read_all()
    if not table.num_rows:
        return
    # Equal words, once in 2^64/n^2 tables, keep their input order.
    order = np.argsort(table.column(WORD).to_numpy(), kind="stable")
    yield from table.drop_columns([WORD]).unify_dictionaries().combine_chunks().take(pa.array(order)).to_batches()
