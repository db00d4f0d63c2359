# SPDX-License-Identifier: Apache-2.0
"""What a table format offers to a release: batches to read twice, and a sink to write once."""

import hashlib
import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp import _validate
from labeldp._files import private_opener
from labeldp.errors import InvalidInput
from labeldp.tables.formats._digest import ArrowDigest
from labeldp.tables.formats._labels import LabelCodec
from labeldp.tables.output._place import Place

EVIDENCE = "__evidence"
OWN = "__labeldp"
"""How columns begin that a release adds for its own use and drops again."""
BATCH_BYTES = 1 << 23
WEIGHTS = "__labeldp_prior"
"""Column of a prior's whole weights, where a model was asked before the charge (`labeldp.tables.engines._prior_answers`)."""


class Rows(Protocol):
    """Consecutive rows of anything that has columns."""

    def __len__(self) -> int:
        """Rows."""
        ...

    @property
    def extent(self) -> int:
        """How much of the whole the rows are, in the units of `Readable.extent`."""
        ...

    def column(self, name: str) -> pa.Array:
        """One column; text where the format is text."""
        ...


class Sink(Protocol):
    """A file being written."""

    @property
    def rows(self) -> int:
        """Rows so far."""
        ...

    @property
    def size(self) -> int:
        """Bytes so far, without what waits in memory."""
        ...

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows that `Batch.release` made."""
        ...

    def close(self, more: Mapping[str, object] | None = None) -> str:
        """Finish the file, on disk when this returns; SHA-256 of its bytes. `more`: facts that the file carries if the format can."""
        ...

    def abort(self) -> None:
        """Let go of an unfinished file; no effect after `close`."""
        ...


class Readable(Protocol):
    """Rows with named columns that can be read more than once: a table, or arrays of one length."""

    path: Place
    text: bool  # every value is text, as in CSV
    extent: int  # how much there is to read, for progress bars

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        ...

    def type_of(self, name: str) -> pa.DataType:
        """A column's type."""
        ...

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Rows]:
        """The rows in order; only these columns can be asked for."""
        ...


class Source(ABC):
    """A table, of one file or many, that can be released; a `Readable`.

    Attributes
    ----------
    schema : pyarrow.Schema
        Of the file's columns, as `Batch.raw` gives them.
    """

    text = False
    path: Place
    extent: int
    schema: pa.Schema
    _shape: "Shape | None" = None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(self.schema.names)

    def type_of(self, name: str) -> pa.DataType:
        """A column's type."""
        return self.schema.field(name).type

    @abstractmethod
    def batches(self, columns: Sequence[str] | None = None) -> "Iterator[Batch]":
        """The rows in order; only these columns can be asked for."""

    def public_digest(self, label: str) -> ArrowDigest:
        """A digest of every column but the label."""
        return ArrowDigest(self.schema, tuple(name for name in self.names if name != label))

    def plan(self, codec: LabelCodec, evidence_bytes: int) -> None:
        """Say what is written: the label by this codec, and evidence of this width (0: none)."""
        self._shape = Shape(self.schema, codec, evidence_bytes)

    @property
    def shape(self) -> "Shape":
        """What is written; only after `plan`."""
        assert self._shape is not None
        return self._shape

    def rewrite(self, rows: pa.RecordBatch, codes: NDArray[np.integer], evidence: NDArray[np.uint8] | None) -> pa.RecordBatch:
        """The rows as they are written, with these labels and, right after the label, their evidence."""
        return self.shape.rewrite(rows, codes, evidence)

    @abstractmethod
    def sink(self, path: Path | Place, facts: str) -> Sink:
        """A new file of the same format; `facts` is JSON that the file carries if the format can."""


class Batch:
    """Consecutive rows of a table; its extent is in rows unless it is given."""

    def __init__(self, source: Source, rows: pa.RecordBatch, extent: int | None = None):
        self._source, self.rows = source, rows
        self.extent = len(rows) if extent is None else extent

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def raw(self, name: str) -> pa.Array:
        """One column as the file has it."""
        return self.rows.column(name)

    def column(self, name: str) -> pa.Array:
        """One column; text where the format is text."""
        return self.raw(name)

    def release(self, codes: NDArray[np.integer], evidence: NDArray[np.uint8] | None, kept: NDArray[np.bool_] | None) -> pa.RecordBatch:
        """The rows as they are written, with another label (codes of the kept rows), evidence bytes, and only the kept rows."""
        rows = self.rows if kept is None or kept.all() else self.rows.filter(pa.array(kept))
        return self._source.rewrite(rows, codes, evidence)


@dataclass(frozen=True)
class Shape:
    """What a released Arrow batch looks like.

    Attributes
    ----------
    schema : pyarrow.Schema
        Of the input, without metadata.
    codec : LabelCodec
    evidence_bytes : int
        Width of a row's evidence, 0 for none.
    """

    schema: pa.Schema
    codec: LabelCodec
    evidence_bytes: int

    def released(self) -> pa.Schema:
        """The output's schema: the label's field anew, and a binary column after it if there is evidence."""
        place = self.schema.get_field_index(self.codec.column)
        # A fresh field: the input's may carry metadata about the raw column, or promise that there are no nulls.
        fresh = pa.field(self.codec.column, self.codec.column_type, nullable=self.schema.field(place).nullable)
        schema = self.schema.set(place, fresh)
        schema = pa.schema([field for field in schema if field.name != WEIGHTS])
        evidence = pa.field(self.codec.column + EVIDENCE, pa.binary(), nullable=False)
        return schema.insert(place + 1, evidence) if self.evidence_bytes else schema

    def rewrite(self, rows: pa.RecordBatch, codes: NDArray[np.integer], evidence: NDArray[np.uint8] | None) -> pa.RecordBatch:
        """The rows with these labels and, right after the label, their evidence."""
        columns = dict(zip(rows.schema.names, rows.columns, strict=True)) | {self.codec.column: self.codec.decode(codes)}
        if evidence is not None:
            columns[self.codec.column + EVIDENCE] = _binary(evidence)
        schema = self.released()
        return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _binary(evidence: NDArray[np.uint8]) -> pa.Array:
    n, width = evidence.shape
    offsets = np.arange(0, (n + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(evidence))])


def check_columns(source: Readable, names: Sequence[str]) -> None:
    """Every named column exists, or the nearest names are suggested."""
    for name in names:
        if name not in source.names:
            listed = ", ".join(source.names[:20]) + (" ..." if len(source.names) > 20 else "")
            raise InvalidInput(
                f"Expected a column that {source.path.name} has, got {name!r}."
                f"{_validate.suggest(name, source.names)} Its columns: {listed}."
            )
    check_own(source.names)


def check_own(names: Sequence[str]) -> None:
    """No column has a name that a release would take for one of its own."""
    found = next((name for name in names if name.startswith(OWN)), None)
    if found is not None:
        raise InvalidInput(f"Expected columns whose names do not begin with {OWN!r}, got {found!r}. Rename it.")


class HashedFile:
    """A new binary file, written in a thread of its own, whose SHA-256 is known when it is closed; a local one is on disk by then."""

    def __init__(self, path: Path | Place):
        place = Place.of(path)
        self._local = place.local is not None
        self._file: Any = place.open_output() if place.local is None else open(place.local, "xb", opener=private_opener)  # noqa: SIM115 (closed by its owner)
        self._state = hashlib.sha256()
        self._waiting: queue.Queue[bytes | None] = queue.Queue(16)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._abandoned = False
        self.size = 0

    def write(self, data: bytes | memoryview) -> int:
        """Append; what is not immutable is copied, since its owner may use the memory again. Raises what an earlier write met."""
        if self._abandoned:
            return len(data)
        if self._error is not None:
            raise self._error
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        self._waiting.put(data if isinstance(data, bytes) else bytes(data))
        self.size += len(data)
        return len(data)

    def _work(self) -> None:
        while (data := self._waiting.get()) is not None:
            if self._error is not None:
                continue  # emptied, so that whoever writes does not wait for ever
            try:
                self._file.write(data)
            except Exception as error:
                self._error = error
            self._state.update(data)

    def _join(self) -> None:
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def finish(self) -> str:
        """Flush to disk, close, and return the digest."""
        self._join()
        if self._error is not None:
            raise self._error
        if self._local:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()
        return self._state.hexdigest()

    @property
    def closed(self) -> bool:
        """For pyarrow."""
        return bool(self._file.closed)

    def flush(self) -> None:
        """For pyarrow; `finish` flushes."""

    def close(self) -> None:
        """For pyarrow, which must not close it before `finish`."""

    def abandon(self) -> None:
        """Close without waiting for the disk; what a writer still holds back is taken and forgotten."""
        self._join()
        self._abandoned = True
        self._file.close()
