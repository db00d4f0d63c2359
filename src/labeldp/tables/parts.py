# SPDX-License-Identifier: Apache-2.0
"""Rows into numbered files of bounded size, in a staging folder."""

from collections.abc import Callable
from math import inf

import numpy as np
import pyarrow as pa

from labeldp._hash import digest
from labeldp.tables.digest import DRAWN, DrawnDigest
from labeldp.tables.place import Place
from labeldp.tables.staging import Part, Staging
from labeldp.tables.table import Sink

PART_BYTES = 1 << 28


class PartsSink:
    """A release being written: one file, or files of about 256 MB.

    Parameters
    ----------
    staging : Staging
        Of one file: there is only one part.
    make : function
        Opens a sink at a place.
    suffix : str
        Ending of the files.
    ordered : bool
        Rows have no ids: what was drawn belongs to their places.

    Rows may come with a column `DRAWN`, which is not written: a file's digest of it goes into its facts.
    """

    def __init__(self, staging: Staging, make: Callable[[Place], Sink], suffix: str, *, ordered: bool = False):
        self.parts: list[Part] = []
        self._staging, self._make, self._suffix = staging, make, suffix
        self._limit = inf if staging.single else PART_BYTES
        self._open: tuple[str, Sink] | None = None
        self._drawn = DrawnDigest(ordered)

    @property
    def rows(self) -> int:
        """Rows so far."""
        return sum(part.rows for part in self.parts) + (self._open[1].rows if self._open else 0)

    @property
    def size(self) -> int:
        """Bytes so far, without what waits in memory."""
        return sum(part.size for part in self.parts) + (self._open[1].size if self._open else 0)

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows; a file that has become large enough is finished."""
        sink = self._current()
        if DRAWN in rows.schema.names:
            self._drawn.update(rows.column(DRAWN).to_numpy(zero_copy_only=False).view(np.uint64))
            rows = rows.drop_columns([DRAWN])
        sink.write(rows)
        if sink.size >= self._limit:
            self._finish()

    def _current(self) -> Sink:
        if self._open is None:
            place = self._staging.new_file(self._suffix)
            self._open = place.name, self._make(place)
        return self._open[1]

    def _finish(self) -> None:
        sink = self._current()
        assert self._open is not None
        drawn = self._drawn
        known = drawn.rows == sink.rows
        sha256 = sink.close(drawn.facts() if known else None)
        self.parts.append(Part(self._open[0], sink.rows, sink.size, sha256, drawn.hexdigest() if known else ""))
        self._open, self._drawn = None, drawn.following()

    def close(self) -> str:
        """Finish the last file; the digest of the release."""
        if self._open is not None or not self.parts:
            self._finish()
        return release_digest([part.sha256 for part in self.parts], single=self._staging.single)

    def abort(self) -> None:
        """Let go of an unfinished file; no effect after `close`."""
        if self._open is not None:
            self._open[1].abort()
            self._open = None


def release_digest(files: list[str], *, single: bool) -> str:
    """SHA-256 of a file, or of the list of the files' digests in their order; hexadecimal."""
    return files[0] if single else digest({"format": "parts/1", "files": files})
