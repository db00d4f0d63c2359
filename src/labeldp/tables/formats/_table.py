# SPDX-License-Identifier: Apache-2.0
"""A table as a release sees it: batches to read twice, labels as codes, ids, digests of what it holds, and a sink to write once."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labeldp import _hash, _validate
from labeldp.custody._draw import Ids
from labeldp.custody._encode import MOST_READ_OFF, near_miss, read_off
from labeldp.errors import InvalidInput
from labeldp.evidence._noisy import record_type
from labeldp.laws import Law
from labeldp.tables._place import Part, Place, Staging

EVIDENCE = "__evidence"
OWN = "__labeldp"
"""How columns begin that a release adds for its own use and drops again."""
WEIGHTS = "__labeldp_prior"
"""Column of a prior's whole weights, where a model was asked before the charge (`labeldp.tables._priors`)."""
DRAWN = "__labeldp_drawn"
"""Column of `drawn_words` that goes with released rows until they are written."""
BATCH_BYTES = 1 << 23
PART_BYTES = 1 << 28
TRUTH = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
_DIGITS = 19  # so many always fit into 64 bits


class Columns(Protocol):
    """Rows that give access to columns by name: a batch of any format, or an Arrow record batch."""

    def column(self, name: str) -> pa.Array:
        """One column."""
        ...


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
    shape: "Shape"  # what is written; after `plan`
    _planned: str | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(self.schema.names)

    def type_of(self, name: str) -> pa.DataType:
        """A column's type."""
        return self.schema.field(name).type

    @abstractmethod
    def batches(self, columns: Sequence[str] | None = None) -> "Iterator[Batch]":
        """The rows in order; only these columns can be asked for."""

    def public_digest(self, label: str) -> "ArrowDigest":
        """A digest of every column but the label."""
        return ArrowDigest(self.schema, tuple(name for name in self.names if name != label))

    def plan(self, codec: "LabelCodec", evidence_bytes: int) -> None:
        """Say what is written: the label by this codec, and evidence of this width (0: none)."""
        self.shape, self._planned = Shape(self.schema, codec, evidence_bytes), codec.column

    def rewrite(self, rows: pa.RecordBatch, codes: NDArray[np.integer], evidence: NDArray[np.uint8] | None) -> pa.RecordBatch:
        """The rows as they are written, with these labels and, right after the label, their evidence."""
        return self.shape.rewrite(rows, codes, evidence)

    @abstractmethod
    def sink(self, path: Path | Place, facts: str) -> "Sink":
        """A new file of the same format; `facts` is JSON that the file carries if the format can."""


class Batch:
    """Consecutive rows of a table; its extent is in rows unless it is given."""

    def __init__(self, rows: pa.RecordBatch, extent: int | None = None):
        self.rows = rows
        self.extent = len(rows) if extent is None else extent

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def raw(self, name: str) -> pa.Array:
        """One column as the file has it."""
        return self.rows.column(name)

    def column(self, name: str) -> pa.Array:
        """One column; text where the format is text."""
        return self.raw(name)


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
    codec: "LabelCodec"
    evidence_bytes: int

    def released(self) -> pa.Schema:
        """The output's schema: the label's field anew, and a binary column after it if there is evidence."""
        place = self.schema.get_field_index(self.codec.column)
        # A fresh field: the input's may carry metadata about the raw column, or promise that there are no nulls.
        fresh = pa.field(self.codec.column, self.codec.column_type, nullable=self.schema.field(place).nullable)
        schema = self.schema.set(place, fresh)
        # A model's answers came along to be drawn with; they are no column of the input.
        schema = pa.schema([field for field in schema if field.name != WEIGHTS])
        evidence = pa.field(self.codec.column + EVIDENCE, pa.binary(), nullable=False)
        return schema.insert(place + 1, evidence) if self.evidence_bytes else schema

    def rewrite(self, rows: pa.RecordBatch, codes: NDArray[np.integer], evidence: NDArray[np.uint8] | None) -> pa.RecordBatch:
        """The rows with these labels and, right after the label, their evidence."""
        columns = dict(zip(rows.schema.names, rows.columns, strict=True)) | {self.codec.column: self.codec.decode(codes)}
        if evidence is not None:
            columns[self.codec.column + EVIDENCE] = as_binary(evidence)
        schema = self.released()
        return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def as_binary(rows: NDArray[np.uint8]) -> pa.Array:
    """A binary column of (n, width) bytes."""
    n, width = rows.shape
    # All rows have one width: the column is made of the bytes as they are, without a copy for each row.
    offsets = np.arange(0, (n + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))])


def plain(column: pa.Array) -> pa.Array:
    """A column's values, without a dictionary around them."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def check_columns(source: Readable, names: Sequence[str]) -> None:
    """Refuse names that are no columns, and suggest the nearest ones."""
    for name in names:
        if name not in source.names:
            listed = ", ".join(source.names[:20]) + (" ..." if len(source.names) > 20 else "")
            raise InvalidInput(
                f"Expected a column that {source.path.name} has, got {name!r}."
                f"{_validate.suggest(name, source.names)} Its columns: {listed}."
            )
    check_own(source.names)


def check_own(names: Sequence[str]) -> None:
    """Refuse columns whose names a release would take for its own."""
    found = next((name for name in names if name.startswith(OWN)), None)
    if found is not None:
        raise InvalidInput(f"Expected columns whose names do not begin with {OWN!r}, got {found!r}. Rename it.")


# Labels as codes --------------------------------------------------------------------------------------------------------------------------


class LabelCodec:
    """Translates a label column to class codes, and codes to a column.

    Parameters
    ----------
    classes : sequence of values
        From `parse_classes`.
    column : str
        The column's name, for messages.
    column_type : pyarrow.DataType
        Kept by `decode`.
    name_row : function of a row's number, optional
        How a row is called in messages; by its number if None.
    """

    def __init__(self, classes: Sequence[object], column: str, column_type: pa.DataType, name_row: Callable[[int], str] | None = None):
        self._name_row = name_row
        self.classes = tuple(classes)
        self.column = column
        self.column_type = column_type
        kind = value_type(column_type)
        # Text classes are compared as large_string, whatever kind of text the column is.
        self._values = pa.array(list(self.classes), type=pa.large_string() if is_text(kind) else kind)
        # The output's dictionary lists the declared classes and nothing else: the input's could hold values that no row has any more.
        if pa.types.is_dictionary(column_type):
            room = np.iinfo(column_type.index_type.to_pandas_dtype()).max
            if len(self.classes) - 1 > room:
                raise InvalidInput(
                    f"Expected at most {room + 1} classes in column {column!r} of type {column_type}, got {len(classes)}. Cast it."
                )

    def encode(self, labels: pa.Array, start_row: int | None = 0) -> NDArray[np.int32]:
        """Class codes of some labels: (n,) int32. `start_row` is the first one's row number, for messages; None where rows have none.

        A label that is not declared is refused with its row number, or with what it differs by, never its value.
        """
        if pa.types.is_dictionary(labels.type):
            # Each entry is looked up once; entries that no row has may be undeclared.
            found = pc.take(self._find(labels.dictionary), labels.indices)
            if labels.indices.null_count and None in self.classes:
                found = pc.if_else(labels.indices.is_null(), pa.scalar(self.classes.index(None), pa.int32()), found)
        else:
            found = self._find(labels)
        if found.null_count:
            self._refuse(labels, found, start_row)
        codes: NDArray[np.int32] = found.to_numpy(zero_copy_only=False)
        return codes

    def listed(self, labels: pa.Array, start_row: int | None = 0) -> pa.DictionaryArray:
        """The labels as a dictionary that is the list of classes, checked as by `encode`."""
        return pa.DictionaryArray.from_arrays(pa.array(self.encode(labels, start_row)), self._values)

    def _find(self, labels: pa.Array) -> pa.Array:
        # Classes 0..K-1 are their own codes: a look at the range replaces a search for each row.
        if self._plain_codes and not labels.null_count:
            raw = labels.to_numpy(zero_copy_only=True)
            if len(raw) and raw.min() >= 0 and raw.max() < len(self.classes):
                return pa.array(raw.astype(np.int32, copy=False))
        if pa.types.is_floating(labels.type):
            labels = pc.add(labels, pa.scalar(0.0, labels.type))  # -0.0 is 0.0
        return pc.index_in(labels if labels.type == self._values.type else labels.cast(self._values.type), value_set=self._values)

    @cached_property
    def _plain_codes(self) -> bool:
        return bool(pa.types.is_integer(self._values.type)) and self.classes == tuple(range(len(self.classes)))

    def _refuse(self, labels: pa.Array, found: pa.Array, start_row: int | None) -> None:
        at = int(np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False))[0])
        row = row_number(None) if start_row is None else (self._name_row or row_number)(start_row + at)
        # It is looked at, and never shown: the message names the row, or how the value differs from a class.
        value = labels[at].as_py()
        if value is None or value == "":
            raise InvalidInput(
                f"Expected a label in every row of column {self.column!r}, got none in {row}. Drop such rows, or declare the null class."
            )
        hint = near_miss(value, self.classes)
        raise InvalidInput(
            f"Expected a declared class in column {self.column!r}, got another value in {'some row' if hint else row}. "
            f"{hint or 'Declare it, or mend the row.'}"
        )

    def decode(self, codes: NDArray[np.integer]) -> pa.Array:
        """The column of these codes, in the column's type; a dictionary lists the declared classes and nothing else."""
        if self._plain_codes and self.column_type == pa.int32() and codes.dtype == np.int32:
            return pa.array(codes)
        if not pa.types.is_dictionary(self.column_type):
            return _cast(self._values.take(pa.array(codes)), self.column_type)
        # The null class has no entry in the dictionary: its rows are null.
        present = [c is not None for c in self.classes]
        place = np.cumsum(present) - 1
        nulls = None if all(present) else ~np.array(present)[codes]
        indices = pa.array(place[codes], type=self.column_type.index_type, mask=nulls)
        return pa.DictionaryArray.from_arrays(
            indices, _cast(self._values.drop_null(), self.column_type.value_type), ordered=self.column_type.ordered
        )


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def row_number(row: int | None) -> str:
    """Name a row by its position, given from 0 and shown from 1, as lines of files are; None where rows have none."""
    return "some row" if row is None else f"row {row + 1} (the first is row 1)"


def distinct_labels(arrays: Iterable[pa.Array], column_type: pa.DataType) -> tuple[object, ...]:
    """Read the distinct labels off a column, sorted, without null and empty text, where they may be its classes (`read_off`)."""
    seen: set[Any] = set()
    rows = 0
    for array in arrays:
        seen.update(pc.unique(plain(array)).to_pylist())
        rows += len(array)
        if len(seen) > MOST_READ_OFF + 2:
            break  # refused, however many rows follow
    return read_off(seen - {None, ""}, rows, floats=pa.types.is_floating(value_type(column_type)))


def value_type(column_type: pa.DataType) -> pa.DataType:
    """What one label is: the column's type, without a dictionary around it."""
    return column_type.value_type if pa.types.is_dictionary(column_type) else column_type


def check_type(column: str, column_type: pa.DataType) -> None:
    """Refuse a label column of other types than whole numbers, text, booleans, floats, or a dictionary of those."""
    kind, types = value_type(column_type), pa.types
    good = types.is_integer(kind) or types.is_boolean(kind) or types.is_float32(kind) or types.is_float64(kind) or is_text(kind)
    if not good:
        raise InvalidInput(
            f"Expected a label column of whole numbers, text, booleans or floats, got {column!r} of type {column_type}. Cast it."
        )


def is_text(kind: pa.DataType) -> bool:
    """True for each of Arrow's types of text, without a dictionary around it."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def parse_classes(classes: Sequence[object], column: str, column_type: pa.DataType, *, text_table: bool) -> tuple[object, ...]:
    """Convert the declared classes to values of the column's type.

    In a text table (CSV) every class is text, and a null class is the empty field.
    """
    kind = value_type(column_type)
    values: tuple[object, ...]
    if text_table:
        values = tuple("" if c is None else _text(c) for c in classes)
    else:
        values = tuple(None if c is None else _parse(c, kind, column) for c in classes)
    # A column of 32-bit floats rounds what is declared: two classes could become one.
    stored = values if text_table else pa.array(values, kind).to_pylist()  # a float of 32 bits holds fewer values than one of 64
    if len(set(stored)) < len(values):
        raise InvalidInput(f"Expected distinct classes, got two that are the same value of type {kind}. List each one once.")
    return values


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value)


def _parse(value: object, kind: pa.DataType, column: str) -> object:
    if is_text(kind):
        return _text(value)
    try:
        parsed: object = _truth(value) if pa.types.is_boolean(kind) else _number(value, kind)
        pa.scalar(parsed, kind)  # in range of the type
    except (ValueError, TypeError, OverflowError, pa.ArrowInvalid):
        raise InvalidInput(
            f"Expected classes of type {kind}, as column {column!r} has, got {value!r}. Declare values of that type."
        ) from None
    return parsed


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    found = TRUTH.get(str(value).strip().lower())
    if found is None:
        raise ValueError
    return found


def _number(value: object, kind: pa.DataType) -> float | int:
    # True is an int in Python, but not the class 1.
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError
    if pa.types.is_integer(kind):
        whole = int(value)
        if isinstance(value, float) and whole != value:
            raise ValueError
        return whole
    number = float(value)
    if not np.isfinite(number):
        raise ValueError
    return number + 0.0  # one zero, not two


# Ids of rows and units --------------------------------------------------------------------------------------------------------------------


def row_ids(batch: Columns, names: tuple[str, ...]) -> Ids | None:
    """Read the ids of the rows: a column, a list of columns where several name them, or None where none does."""
    if not names:
        return None
    columns = [id_column(batch, name) for name in names]
    # Of several columns 1 and "1" are the same part of an id, in whatever type a copy holds them.
    return columns[0] if len(columns) == 1 else [_as_text(column) for column in columns]


def id_column(batch: Columns, name: str) -> NDArray[np.integer] | pa.Array:
    """Read a column of whole numbers (NumPy) or text (Arrow) that names rows or units; empty values are refused."""
    column = plain(batch.column(name))
    kind = pa.types
    text = kind.is_string(column.type) or kind.is_large_string(column.type) or kind.is_string_view(column.type)
    if not (text or kind.is_integer(column.type)):
        raise InvalidInput(f"Expected ids and units of whole numbers or text, got column {name!r} of type {column.type}. Cast it.")
    # A row without an id has no block of noise; an empty one would be shared by all rows that have none.
    if column.null_count or (text and pc.any(pc.equal(pc.binary_length(column), 0)).as_py()):
        raise InvalidInput(f"Expected a value in every row of column {name!r}, got empty ones. Fill them, or drop such rows.")
    return column.cast(pa.large_string()) if text else column.to_numpy(zero_copy_only=False)


def id_array(batch: Columns, name: str) -> NDArray[np.generic]:
    """`id_column` as a NumPy array."""
    column = id_column(batch, name)
    return column if isinstance(column, np.ndarray) else np.asarray(column).astype(np.str_)


def row_id_array(batch: Columns, names: tuple[str, ...]) -> NDArray[np.generic] | None:
    """`row_ids` as a NumPy array: (n,), or (n, columns) of text where several columns name the rows."""
    columns = [id_array(batch, name) for name in names]
    if not columns:
        return None
    return columns[0] if len(columns) == 1 else np.column_stack([column.astype(np.str_) for column in columns])


def _as_text(column: NDArray[np.integer] | pa.Array) -> pa.Array:
    return pa.array(column).cast(pa.large_string()) if isinstance(column, np.ndarray) else column


# What was drawn ---------------------------------------------------------------------------------------------------------------------------


def needs_evidence(law: Law) -> bool:
    """True if a released label alone does not say all that the law released."""
    return law.kind != "label" or set(law.layout()) != {"output"}


def evidence_width(law: Law) -> int:
    """Width of a row's evidence; 0 where the label says all."""
    return record_type(law).itemsize if needs_evidence(law) else 0


def draw_salt(facts: Mapping[str, object]) -> str:
    """Make the salt that binds what was drawn to the classes, law, receipt and stage that a table's shared facts state."""
    # Whoever changes law, classes, receipt or stage in a manifest changes the salt, and no row matches any more.
    return "drawn/" + _hash.digest({name: facts[name] for name in ("classes", "law", "receipt", "stage")})


def drawn_words(salt: str, ids: Ids | None, codes: NDArray[np.integer], evidence: NDArray[np.uint8] | None) -> NDArray[np.uint64]:
    """Compute what each row adds to the digest of what was drawn: (n,) uint64.

    Parameters
    ----------
    salt : str
        From `draw_salt`.
    ids : (n,) NumPy integers or Arrow text, or a list of such columns; None where no column names the rows
        A number and its decimal text are the same id.
    codes : (n,) integers
        Noisy labels.
    evidence : (n, width) uint8, or None where the label says all
    """
    # A copy may hold ids as text that were numbers: both give one word.
    columns = [] if ids is None else [_named(column) for column in (ids if isinstance(ids, list) else [ids])]
    return _hash.public_hash(salt, *columns, codes.astype(np.int64, copy=False), *([] if evidence is None else [evidence]))


class DrawnDigest:
    """Digest of what was drawn, batch by batch: of ids, noisy labels and evidence in any order; without ids, in this order.

    It finds what accident or carelessness changed. Whoever sets out to can make other rows with the same digest, and can write a new one
    into a file: against forging there are SHA-256 of whole files and the ledger.

    Parameters
    ----------
    ordered : bool
        Rows have no ids: a row is its place.
    first : int
        Number of the first row.
    """

    def __init__(self, ordered: bool, first: int = 0) -> None:
        self._set, self._ordered, self.first, self.rows = _hash.SetDigest(), ordered, first, 0

    def update(self, words: NDArray[np.uint64]) -> None:
        """Add the next rows, by their `drawn_words`."""
        # A sum knows no order: where rows have no ids their places are added in.
        start = self.first + self.rows
        self._set.update(*([np.arange(start, start + len(words))] if self._ordered else []), words)
        self.rows += len(words)

    def following(self) -> "DrawnDigest":
        """An empty one of the rows after these."""
        return DrawnDigest(self._ordered, self.first + self.rows)

    def facts(self) -> dict[str, object]:
        """What a file says of itself, so that it can be proven without the others."""
        return {"drawn": self.hexdigest()} | ({"first_row": self.first} if self._ordered else {})

    def hexdigest(self) -> str:
        """48 hexadecimal digits."""
        return self._set.hexdigest()


def drawn_in_all(digests: Iterable[str]) -> str:
    """Add up the digests of a release's files."""
    total = _hash.SetDigest()
    for each in digests:
        total += _hash.SetDigest.from_hexdigest(each)
    return total.hexdigest()


def id_words(ids: Any) -> NDArray[np.uint64]:
    """Hash each row's ids to one word, the same whatever their types: (n,) uint64."""
    columns = [_named(column) for column in (ids if isinstance(ids, list) else [ids])]
    return columns[0] if len(columns) == 1 else _hash.public_hash("names", *columns)


def _named(ids: NDArray[np.generic] | pa.Array) -> NDArray[np.uint64]:
    """Turn an id column into words: whole numbers of up to 19 digits are themselves, in any type and as text; all else is hashed text."""
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu":
        # Larger and negative numbers go the way of text, which holds any of them.
        if not len(ids) or (ids.min() >= 0 and ids.max() < 10**_DIGITS):
            return ids.astype(np.uint64, copy=False)
        ids = pa.array(ids).cast(pa.large_string())
    text = ids if isinstance(ids, pa.Array) else pa.array(ids)
    length = pc.binary_length(text)
    decimal = pc.and_(pc.ascii_is_decimal(text), pc.less_equal(length, _DIGITS))
    # "007" is not 7: only text that a number prints as is that number.
    decimal = pc.and_(decimal, pc.or_(pc.equal(length, 1), pc.invert(pc.starts_with(text, "0"))))
    numbers = np.asarray(decimal.to_numpy(zero_copy_only=False), bool)
    if numbers.all():
        return np.asarray(text.cast(pa.uint64()).to_numpy(zero_copy_only=False))
    words = _hash.public_hash("name", text)
    if numbers.any():
        words[numbers] = text.filter(decimal).cast(pa.uint64()).to_numpy(zero_copy_only=False)
    return words


# Writing ----------------------------------------------------------------------------------------------------------------------------------


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
        """Append rows that `Source.rewrite` made."""
        ...

    def close(self, more: Mapping[str, object] | None = None) -> str:
        """Finish the file, on disk when this returns; SHA-256 of its bytes. `more`: facts that the file carries if the format can."""
        ...

    def abort(self) -> None:
        """Let go of an unfinished file; no effect after `close`."""
        ...


class PartsSink:
    """Writes a release: one file, or files of about 256 MB.

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
        # Large enough to read fast, small enough to write again after a failed task.
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
        # The words of all rows must have come, or the digest would not be that of the file.
        facts = drawn.facts() if drawn.rows == sink.rows else {}
        sha256 = sink.close(facts or None)
        self.parts.append(Part(self._open[0], sink.rows, sink.size, sha256, str(facts.get("drawn", ""))))
        self._open, self._drawn = None, drawn.following()

    def close(self) -> None:
        """Finish the last file."""
        if self._open is not None or not self.parts:
            self._finish()

    def abort(self) -> None:
        """Let go of an unfinished file; no effect after `close`."""
        if self._open is not None:
            self._open[1].abort()
            self._open = None


# What public columns hold -----------------------------------------------------------------------------------------------------------------


class RawColumns(Protocol):
    """Rows whose columns can be asked for as they are."""

    def raw(self, name: str) -> pa.Array:
        """One column."""
        ...


class ArrowDigest:
    """SHA-256 over named columns, fed batch by batch.

    Cost: one pass over the bytes; strings add 8 bytes a row.
    """

    def __init__(self, schema: pa.Schema, names: tuple[str, ...]):
        self._columns = {name: _ColumnDigest(schema.field(name).type) for name in names}

    def update(self, batch: RawColumns) -> None:
        """Add the next rows."""
        for name, state in self._columns.items():
            state.update(batch.raw(name))

    def hexdigest(self) -> str:
        """SHA-256 of names, types and contents, hexadecimal."""
        return _hash.digest({"columns": [[name, state.facts()] for name, state in self._columns.items()], "format": "arrow/1"})


class _ColumnDigest:
    """Digests one column: places of its nulls, lengths, values, and what is nested in it, each as a stream of its own."""

    def __init__(self, kind: pa.DataType):
        # Readers choose between text and large text, dictionary and plain: the values are the same, so the digest must be.
        self._kind = _plain_type(kind)
        self._rows = 0
        # Streams of their own, so that ["ab"] and ["a", "b"], or null and "", never come to the same bytes.
        self._nulls, self._lengths, self._values = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
        self._children = [_ColumnDigest(f.type) for f in _nested(self._kind)]

    def update(self, array: pa.Array) -> None:
        array = _unwrapped(array)
        if array.null_count:
            self._nulls.update((np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)) + self._rows).astype("<i8").data)
        self._rows += len(array)
        self._feed(array)

    def _feed(self, array: pa.Array) -> None:
        types, kind = pa.types, array.type
        if types.is_struct(kind):
            for child, values in zip(self._children, array.flatten(), strict=True):
                child.update(values)
        elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            self._lengths.update(pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64()).to_numpy(zero_copy_only=False))
            self._children[0].update(array.flatten())
        elif types.is_large_string(kind) or types.is_large_binary(kind):
            self._feed_text(pc.fill_null(array, b"" if types.is_large_binary(kind) else ""))
        elif types.is_boolean(kind):
            self._values.update(pc.fill_null(array, False).cast(pa.uint8()).to_numpy(zero_copy_only=False))
        elif types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
            self._feed_fixed(array)
        elif not types.is_null(kind):
            self._values.update(json.dumps(array.to_pylist(), default=str).encode())

    def _feed_text(self, array: pa.Array) -> None:
        offsets = (
            np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
            if len(array)
            else np.zeros(1, np.int64)
        )
        self._lengths.update(np.diff(offsets).data)
        if offsets[-1] > offsets[0]:
            self._values.update(memoryview(array.buffers()[2])[offsets[0] : offsets[-1]])

    def _feed_fixed(self, array: pa.Array) -> None:
        if array.null_count:
            array = array.drop_null()  # their places are in a stream of their own
        if len(array):
            width = array.type.bit_width // 8
            self._values.update(memoryview(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width])

    def facts(self) -> list[object]:
        streams = [self._nulls, self._lengths, self._values]
        return [str(self._kind), self._rows, [s.hexdigest() for s in streams], [c.facts() for c in self._children]]


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that stands for all types of the same values."""
    types = pa.types
    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if types.is_string(kind) or types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary(kind) or types.is_binary_view(kind):
        return pa.large_binary()
    return _plain_type(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else kind


def _unwrapped(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        return _unwrapped(array.storage)
    if pa.types.is_dictionary(array.type):
        return _unwrapped(plain(array))
    kind = _plain_type(array.type)
    return array if kind == array.type else array.cast(kind)


def _nested(kind: pa.DataType) -> list[pa.Field]:
    types = pa.types
    if types.is_struct(kind):
        return [kind.field(i) for i in range(kind.num_fields)]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [kind.value_field]
    return []
