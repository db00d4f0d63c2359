# SPDX-License-Identifier: Apache-2.0
"""The interface of tables for a release: batches that are read twice, labels as codes, ids, digests
of columns, and sinks."""

import contextlib
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labeldp import _hash, _validate
from labeldp.custody._draw import Ids
from labeldp.custody._encode import (
    FINITE,
    MISSING,
    MOST_READ_OFF,
    NO_NUMBER,
    UNDECLARED,
    bad_label,
    one_of,
    read_off,
)
from labeldp.custody._stream import HISTOGRAM
from labeldp.errors import ClassMismatch, InvalidInput
from labeldp.evidence._noisy import record_type
from labeldp.laws import Grid, Law
from labeldp.laws._columns import LabelColumns
from labeldp.tables._place import HashedFile, Part, Place, Staging

EVIDENCE = "__evidence"
OWN = "__labeldp"
"""The prefix of columns that a release adds for its own use and drops again."""
WEIGHTS = "__labeldp_prior"
"""The column of quantised weights in a model's stored answers (`labeldp.tables._priors`)."""
DRAWN = "__labeldp_drawn"
"""The column of `drawn_words`, which released rows have until they are written."""
BATCH_BYTES = 1 << 23
PART_BYTES = 1 << 28
TRUTH = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
_DIGITS = 19  # decimal digits that always fit into 64 bits


class Columns(Protocol):
    """Rows that give access to columns by name: a batch of any format, or an Arrow record batch."""

    def column(self, name: str) -> pa.Array:
        """Return a column."""


class Source(ABC):
    """A table of one file or many, which can be read more than once.

    Attributes
    ----------
    text : bool
        True if every value is text, as in CSV.
    files : sequence of Source
        The files, in order.
    extent : int
        Its size, for progress bars.
    schema : pyarrow.Schema
        The schema of the columns as `Batch.raw` returns them.
    types : mapping of column to type
        The types as the format has them, in words (`altered`).
    """

    text = False
    path: Place
    files: "Sequence[Source]"
    extent: int
    schema: pa.Schema
    types: Mapping[str, str]
    shape: "Shape"  # the shape of released batches; set by `plan`
    # whether `batches` of text refuse bytes that are no UTF-8, also in columns that are not read
    all_utf8 = False

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.schema.names)

    def type_of(self, name: str) -> pa.DataType:
        """Return a column's type."""
        return self.schema.field(name).type

    @abstractmethod
    def batches(self, columns: Sequence[str] | None = None) -> "Iterator[Batch]":
        """Iterate over the rows in order, with these columns only (None: all)."""

    def plan(self, codec: "LabelCodec", evidence_bytes: int) -> None:
        """Set the shape of the output: the label's codec, and the width of evidence (0: none)."""
        self.shape = Shape(self.schema, codec, evidence_bytes)

    def rewrite(
        self, rows: pa.RecordBatch, codes: NDArray[np.integer], evidence: NDArray[np.uint8] | None
    ) -> pa.RecordBatch:
        """Return rows as they are written, with these labels, and their evidence in the column
        after the label."""
        return self.shape.rewrite(rows, codes, evidence)

    @abstractmethod
    def sink(self, path: Path | Place, facts: str) -> "Sink":
        """Open a new file of the same format; `facts` is JSON that goes into its metadata, if the
        format has any."""


class Batch:
    """Consecutive rows of a table. Their extent is their number, unless it is given."""

    def __init__(self, rows: pa.RecordBatch, extent: int | None = None):
        self.rows = rows
        self.extent = len(rows) if extent is None else extent

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def raw(self, name: str) -> pa.Array:
        """Return a column as it is in the file."""
        return self.rows.column(name)

    def column(self, name: str) -> pa.Array:
        """Return a column; as text if the format is text."""
        return self.raw(name)


@dataclass(frozen=True)
class Shape:
    """The shape of released Arrow batches.

    Attributes
    ----------
    schema : pyarrow.Schema
        The schema of the input, without metadata.
    codec : LabelCodec
    evidence_bytes : int
        Width of a row's evidence; 0 for none.
    """

    schema: pa.Schema
    codec: "LabelCodec"
    evidence_bytes: int

    def released(self) -> pa.Schema:
        """Return the output's schema: the input's, with new label fields, and a binary column of
        evidence after them if there is any."""
        schema, last = self.schema, 0
        for name, kind in zip(self.codec.columns, self.codec.column_types, strict=True):
            place = schema.get_field_index(name)
            # A new field, because the input's may have metadata about the raw labels.
            schema, last = (
                schema.set(place, pa.field(name, kind, nullable=schema.field(place).nullable)),
                max(last, place),
            )
        # The column of a model's answers was joined for the draw, and is not released.
        schema = pa.schema([field for field in schema if field.name != WEIGHTS])
        evidence = pa.field(self.codec.column + EVIDENCE, pa.binary(), nullable=False)
        return schema.insert(last + 1, evidence) if self.evidence_bytes else schema

    def rewrite(
        self, rows: pa.RecordBatch, codes: NDArray[np.integer], evidence: NDArray[np.uint8] | None
    ) -> pa.RecordBatch:
        """Return rows with these labels, and their evidence in the column after the label."""
        columns = dict(zip(rows.schema.names, rows.columns, strict=True)) | self.codec.decoded(
            codes
        )
        if evidence is not None:
            columns[self.codec.column + EVIDENCE] = as_binary(evidence)
        schema = self.released()
        return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def altered(source: Mapping[str, str], written: Mapping[str, str]) -> dict[str, str]:
    """List the columns that have another type in what is written than in the source, and how.

    Parameters
    ----------
    source, written : mapping of column to type
        Types in words, of any engine or format, but the same words in both. A column that one of
        the two lacks is not listed.
    """
    return {
        name: f"{kind} -> {written[name]}"
        for name, kind in source.items()
        if written.get(name, kind) != kind
    }


def as_binary(rows: NDArray[np.uint8]) -> pa.Array:
    """Convert (n, width) uint8 to a binary Arrow column."""
    n, width = rows.shape
    # All rows have one width, so the column is built from the bytes and computed offsets, without
    # an object for each row.
    offsets = np.arange(0, (n + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), n, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    )


def plain(column: pa.Array) -> pa.Array:
    """Decode a column if it is dictionary-encoded."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def check_columns(source: Source, names: Sequence[str]) -> None:
    """Refuse names that are no columns of a table, and suggest the nearest ones."""
    for name in names:
        if name not in source.names:
            shown = [repr(each) if "," in each else each for each in source.names[:20]]
            listed = ", ".join(shown) + (" ..." if len(source.names) > 20 else "")
            other = next(
                (
                    mark
                    for mark in ";\t|"
                    if source.text and len(source.names) == 1 and mark in source.names[0]
                ),
                None,
            )
            if other is not None:
                raise InvalidInput(
                    "Expected columns with commas between them (tabs in .tsv), but the header of"
                    f" {source.path.name} has {other!r} between its names: it was read as one"
                    f" column, so none is {name!r}. Save the table with commas."
                )
            raise InvalidInput(
                f"Expected a column that {source.path.name} has, got"
                f" {name!r}.{_validate.suggest(name, source.names)} Its columns: {listed}."
            )
    check_own(source.names)


def check_own(names: Sequence[str]) -> None:
    """Refuse columns with the prefix of a release's own columns."""
    found = next((name for name in names if name.startswith(OWN)), None)
    if found is not None:
        raise InvalidInput(
            f"Expected columns whose names do not begin with {OWN!r}, got {found!r}. Rename it."
        )


# Labels as codes
# --------------------------------------------------------------------------------------------------


class LabelCodec:
    """Converts a label column to class codes, and codes to a column.

    Parameters
    ----------
    classes : sequence of values
        The result of `parse_classes`.
    column : str
        The column's name, for messages.
    column_type : pyarrow.DataType
        The type of the column, also after `decode`.

    Attributes
    ----------
    columns, column_types : tuple
        The names of the label columns, one or several that are drawn together, and the type of
        each, also after `decoded`.
    """

    columns: tuple[str, ...]
    column_types: tuple[pa.DataType, ...]

    def __init__(self, classes: Sequence[object], column: str, column_type: pa.DataType):
        self.classes = tuple(classes)
        self.column = column
        self.column_type = column_type
        self.columns, self.column_types = (column,), (column_type,)
        kind = value_type(column_type)
        # Text classes are compared as large_string, for columns of any of Arrow's text types.
        self._values = pa.array(
            list(self.classes), type=pa.large_string() if is_text(kind) else kind
        )
        # The output's dictionary has the declared classes only. The input's may have values that no
        # row has any more, such as labels of deleted rows.
        if pa.types.is_dictionary(column_type):
            room = np.iinfo(column_type.index_type.to_pandas_dtype()).max
            if len(self.classes) - 1 > room:
                raise InvalidInput(
                    f"Expected at most {room + 1} classes in column {column!r} of type"
                    f" {column_type}, got {len(classes)}. Cast it."
                )

    def read(self, batch: Columns) -> NDArray[np.int32]:
        """Encode the labels of a batch; see `encode`."""
        return self.encode(batch.column(self.column))

    def decoded(self, codes: NDArray[np.integer]) -> dict[str, pa.Array]:
        """Convert codes to the label columns by their names; see `decode`."""
        return {self.column: self.decode(codes)}

    def encode(self, labels: pa.Array) -> NDArray[np.int32]:
        """Encode labels as class codes: (n,) int32.

        InvalidInput for an undeclared label says neither its row nor its value.
        """
        if pa.types.is_dictionary(labels.type):
            # Each entry of the dictionary is looked up once. Entries that no row has may be
            # undeclared.
            found = pc.take(self._find(labels.dictionary), labels.indices)
            if labels.indices.null_count and None in self.classes:
                found = pc.if_else(
                    labels.indices.is_null(), pa.scalar(self.classes.index(None), pa.int32()), found
                )
        else:
            found = self._find(labels)
        if found.null_count:
            self._refuse(labels, found)
        return np.asarray(found.to_numpy(zero_copy_only=False), np.int32)

    def listed(self, labels: pa.Array) -> pa.DictionaryArray:
        """Encode labels as a dictionary array whose dictionary is the list of classes; errors as
        `encode`."""
        return pa.DictionaryArray.from_arrays(pa.array(self.encode(labels)), self._values)

    def _find(self, labels: pa.Array) -> pa.Array:
        # Classes 0..K-1 are their own codes, so a check of the range replaces a search for each
        # row.
        if self._plain_codes and not labels.null_count:
            raw = labels.to_numpy(zero_copy_only=True)
            if len(raw) and raw.min() >= 0 and raw.max() < len(self.classes):
                return pa.array(raw.astype(np.int32, copy=False))
        if pa.types.is_floating(labels.type):
            labels = pc.add(labels, pa.scalar(0.0, labels.type))  # -0.0 is 0.0
        return pc.index_in(
            labels if labels.type == self._values.type else labels.cast(self._values.type),
            value_set=self._values,
        )

    @cached_property
    def _plain_codes(self) -> bool:
        return bool(pa.types.is_integer(self._values.type)) and self.classes == tuple(
            range(len(self.classes))
        )

    def _refuse(self, labels: pa.Array, found: pa.Array) -> None:
        values: list[object] = [b""]  # never shown
        with contextlib.suppress(UnicodeDecodeError):  # which holds the label
            values = labels.filter(found.is_null()).unique().to_pylist()
        if None in values or "" in values:
            fix = (
                "Declare the null class, classes=[..., None], or drop such rows if it is public"
                " which these are."
            )
            raise bad_label(MISSING, one_of(self.classes), column=self.column, fix=fix)
        raise bad_label(UNDECLARED, one_of(self.classes), column=self.column, kind=ClassMismatch)

    def decode(self, codes: NDArray[np.integer]) -> pa.Array:
        """Convert codes to a column of the label's type. The dictionary of a dictionary type has
        the declared classes only."""
        if self._plain_codes and self.column_type == pa.int32() and codes.dtype == np.int32:
            return pa.array(codes)
        if not pa.types.is_dictionary(self.column_type):
            return self._values.take(pa.array(codes)).cast(self.column_type)
        # The null class has no entry in the dictionary; its rows are null.
        present = [c is not None for c in self.classes]
        place = np.cumsum(present) - 1
        nulls = None if all(present) else ~np.array(present)[codes]
        indices = pa.array(place[codes], type=self.column_type.index_type, mask=nulls)
        return pa.DictionaryArray.from_arrays(
            indices,
            self._values.drop_null().cast(self.column_type.value_type),
            ordered=self.column_type.ordered,
        )

    def releasing(self, law: Law) -> "LabelCodec":
        """Return a codec that encodes labels as this one, and decodes the codes that a law releases
        (`Law.released`)."""
        return self


class GridCodec(LabelCodec):
    """Converts a column of numbers to the codes of a grid's nearest points, and codes to a column
    of numbers.

    Whole numbers become floats if the points are no whole numbers; a text table keeps its text.

    Parameters
    ----------
    grid : Grid
    column, column_type
        As of `LabelCodec`.
    text_table : bool
        Whether the column's numbers are text.
    """

    def __init__(self, grid: Grid, column: str, column_type: pa.DataType, *, text_table: bool):
        kind, types = value_type(column_type), pa.types
        if not (text_table or types.is_integer(kind) or types.is_floating(kind)):
            raise InvalidInput(
                f"Expected a column of numbers with a range, got {column!r} of type {column_type}."
                " Cast it, or list classes."
            )
        fine = types.is_integer(kind) and any(isinstance(point, float) for point in grid)
        self.column, self.classes = column, grid
        self.column_type = pa.large_string() if text_table else pa.float64() if fine else kind
        self.columns, self.column_types = (column,), (self.column_type,)
        self._values = _stored(
            [str(point) for point in grid] if text_table else list(grid), self.column_type, column
        )

    def releasing(self, law: Law) -> LabelCodec:
        if law.kind != "number":
            return self
        made, text = copy(self), is_text(self.column_type)
        numbers = law.released(self.classes)
        made.column_type = self.column_type if text else pa.float64()
        made.column_types = (made.column_type,)
        made._values = pa.array(
            [str(number) for number in numbers] if text else list(numbers), made.column_type
        )
        return made

    def _find(self, labels: pa.Array) -> pa.Array:
        if is_text(labels.type):
            # Text that is no number becomes null here: a message of Arrow's cast would show it.
            trimmed = pc.utf8_trim_whitespace(labels)
            labels = pc.cast(
                pc.if_else(pc.match_substring_regex(trimmed, _NUMBER), trimmed, None), pa.float64()
            )
        numbers = pc.cast(labels, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        codes = cast(Grid, self.classes).codes(numbers)
        return pa.array(codes, mask=codes < 0)

    def _refuse(self, labels: pa.Array, found: pa.Array) -> None:
        written = (
            "Numbers are written as 45000.5 or 4.5e4, without units or separators of thousands."
        )
        raise bad_label(NO_NUMBER, FINITE, column=self.column, fix=f"{written} {NO_NUMBER.fix}")


class ColumnsCodec(LabelCodec):
    """Converts several label columns to the codes of their combinations, and codes to these
    columns.

    Parameters
    ----------
    codecs : sequence of LabelCodec
        One for each column, in the order of the combinations.
    """

    def __init__(self, codecs: Sequence[LabelCodec]):
        self.codecs = tuple(codecs)
        self.classes = LabelColumns({codec.column: codec.classes for codec in self.codecs})
        self.column, self.columns = self.classes.name, self.classes.names
        self.column_types = tuple(codec.column_type for codec in self.codecs)

    def read(self, batch: Columns) -> NDArray[np.int32]:
        return cast(LabelColumns, self.classes).codes([codec.read(batch) for codec in self.codecs])

    def decoded(self, codes: NDArray[np.integer]) -> dict[str, pa.Array]:
        parts = cast(LabelColumns, self.classes).parts(codes)
        return {
            codec.column: codec.decode(part) for codec, part in zip(self.codecs, parts, strict=True)
        }


_NUMBER = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$"


def _stored(points: Sequence[object], kind: pa.DataType, column: str) -> pa.Array:
    """Return a grid's points as the column stores them; refuse a type that does not hold them, or
    not apart."""
    try:
        stored = pa.array(points, kind)
    except (pa.ArrowInvalid, OverflowError):
        raise InvalidInput(
            f"Expected a range that column {column!r} of type {kind} can hold, got a wider one."
            " Cast the column."
        ) from None
    if len(stored.unique()) < len(points):
        raise InvalidInput(
            f"Expected points that column {column!r} of type {kind} holds apart, got nearer ones."
            " Cast it, or use fewer points."
        )
    return stored


def label_codec(
    classes: Sequence[object], column: str, column_type: pa.DataType, *, text_table: bool
) -> LabelCodec:
    """Make the codec of declared classes, which are parsed as values of the column's type, or of a
    grid.

    Parameters
    ----------
    classes : sequence of values, or Grid
    column, column_type
        As of `LabelCodec`.
    text_table : bool
        As of `parse_classes`.
    """
    check_type(column, column_type)
    if isinstance(classes, Grid):
        return GridCodec(classes, column, column_type, text_table=text_table)
    return LabelCodec(
        parse_classes(classes, column, column_type, text_table=text_table), column, column_type
    )


def codec_of(
    classes: Sequence[object],
    label: str,
    type_of: Callable[[str], pa.DataType],
    *,
    text_table: bool,
) -> LabelCodec:
    """Make the codec of a declared label column, or of several, whose types a function returns by
    name."""
    if not isinstance(classes, LabelColumns):
        return label_codec(classes, label, type_of(label), text_table=text_table)
    return ColumnsCodec(
        [
            label_codec(values, name, type_of(name), text_table=text_table)
            for name, values in zip(classes.names, classes.lists, strict=True)
        ]
    )


def row_number(row: int | None) -> str:
    """Return a row's name for messages: its position, given from 0 and shown from 1, as lines of
    files are; None if rows have none."""
    return "some row" if row is None else f"row {row + 1} (the first is row 1)"


def distinct_labels(arrays: Iterable[pa.Array], column_type: pa.DataType) -> tuple[object, ...]:
    """Return the distinct labels of a column as inferred classes, without null and empty text;
    InvalidInput as `read_off`."""
    seen: set[Any] = set()
    rows = 0
    for array in arrays:
        seen.update(pc.unique(plain(array)).to_pylist())
        rows += len(array)
        if len(seen) > MOST_READ_OFF + 2:
            break  # already more than any number of rows allows
    return read_off(seen - {None, ""}, rows, floats=pa.types.is_floating(value_type(column_type)))


def value_type(column_type: pa.DataType) -> pa.DataType:
    """Return the type of a column's values, which for a dictionary type is that of its
    dictionary."""
    return column_type.value_type if pa.types.is_dictionary(column_type) else column_type


def check_type(column: str, column_type: pa.DataType) -> None:
    """Refuse a label column whose type is none of integers, text, booleans, floats, and
    dictionaries of these."""
    kind, types = value_type(column_type), pa.types
    if not (
        types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or is_text(kind)
    ):
        raise InvalidInput(
            f"Expected a label column of whole numbers, text, booleans or floats, got {column!r} of"
            f" type {column_type}. Cast it."
        )


def is_text(kind: pa.DataType) -> bool:
    """Tell whether a type is one of Arrow's text types, which dictionary types are not."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def parse_classes(
    classes: Sequence[object], column: str, column_type: pa.DataType, *, text_table: bool
) -> tuple[object, ...]:
    """Convert the declared classes to values of the column's type.

    In a text table (CSV) every class is text, and a null class is the empty field.
    """
    kind = value_type(column_type)
    values: tuple[object, ...]
    if text_table:
        values = tuple("" if c is None else str(c) for c in classes)
    else:
        values = tuple(None if c is None else _parse(c, kind, column) for c in classes)
    # A column of 32-bit floats rounds the declared values, so that two classes could become one.
    stored = values if text_table else pa.array(values, kind).to_pylist()
    if len(set(stored)) < len(values):
        raise InvalidInput(
            f"Expected distinct classes, got two that are the same value of type {kind}. List each"
            " one once."
        )
    return values


def _parse(value: object, kind: pa.DataType, column: str) -> object:
    if is_text(kind):
        return str(value)
    try:
        parsed: object = (
            TRUTH[str(value).strip().lower()] if pa.types.is_boolean(kind) else _number(value, kind)
        )
        pa.scalar(parsed, kind)  # raises if it is out of the type's range
    except (ValueError, KeyError, TypeError, OverflowError, pa.ArrowInvalid):
        raise ClassMismatch(
            f"Expected classes of type {kind}, as column {column!r} has, got {value!r}. Declare"
            " values of that type."
        ) from None
    return parsed


def _number(value: Any, kind: pa.DataType) -> float | int:
    # In Python True is an int, but it does not mean the class 1.
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError
    number = int(value) if pa.types.is_integer(kind) else float(value)
    # a whole number may be written as 1.0, but not as 1.5
    if not isfinite(number) or (isinstance(value, float) and number != value):
        raise ValueError
    return number + 0  # -0.0 becomes 0.0


# Ids of rows and units
# --------------------------------------------------------------------------------------------------


def row_ids(batch: Columns, names: tuple[str, ...]) -> Ids | None:
    """Read the ids of the rows: a column, a list of several columns, or None without names."""
    if not names:
        return None
    columns = [id_column(batch, name) for name in names]
    # Parts of a composite id are compared as text, because a copy may hold 1 as "1".
    return (
        columns[0]
        if len(columns) == 1
        else [pa.array(column).cast(pa.large_string()) for column in columns]
    )


def id_column(batch: Columns, name: str) -> NDArray[np.integer] | pa.Array:
    """Read a column of ids or units, of integers (as NumPy) or text (as Arrow); refuse empty
    values."""
    column = plain(batch.column(name))
    text = is_text(column.type)
    if not (text or pa.types.is_integer(column.type)):
        raise InvalidInput(
            f"Expected ids and units of whole numbers or text, got column {name!r} of type"
            f" {column.type}. Cast it."
        )
    # Rows with an empty id would share one id, and be drawn with the same words.
    if column.null_count or (text and pc.any(pc.equal(pc.binary_length(column), 0)).as_py()):
        raise InvalidInput(
            f"Expected a value in every row of column {name!r}, got empty ones. Fill them, or drop"
            " such rows."
        )
    return column.cast(pa.large_string()) if text else column.to_numpy(zero_copy_only=False)


def id_array(batch: Columns, name: str) -> NDArray[np.generic]:
    """Read an id column as a NumPy array; see `id_column`."""
    column = id_column(batch, name)
    return column if isinstance(column, np.ndarray) else np.asarray(column).astype(np.str_)


def row_id_array(batch: Columns, names: tuple[str, ...]) -> NDArray[np.generic] | None:
    """Read the ids of the rows as a NumPy array: (n,), or (n, columns) of text for several columns;
    None without names."""
    columns = [id_array(batch, name) for name in names]
    if not columns:
        return None
    return (
        columns[0]
        if len(columns) == 1
        else np.column_stack([column.astype(np.str_) for column in columns])
    )


# The digest of drawn rows
# --------------------------------------------------------------------------------------------------


def needs_evidence(law: Law) -> bool:
    """Tell whether a law's output and side are more than the released label, so that the table
    needs a column of evidence."""
    return not law.releases_codes or set(law.layout()) != {"output"}


def evidence_width(law: Law) -> int:
    """Return the width of a row's evidence in bytes; 0 if the label is the whole output."""
    return record_type(law).itemsize if needs_evidence(law) else 0


def draw_salt(facts: Mapping[str, object]) -> str:
    """Return the salt that binds the digest of drawn rows to classes, law, receipt, stage and
    histogram of a table's shared facts."""
    # A manifest in which one of these facts was changed has another salt, so that its digest does
    # not fit the rows.
    bound = ("classes", "law", "receipt", "stage", *({HISTOGRAM} & facts.keys()))
    return "drawn/" + _hash.digest({name: facts[name] for name in bound})


def drawn_words(
    salt: str, ids: Ids | None, codes: NDArray[np.integer], evidence: NDArray[np.uint8] | None
) -> NDArray[np.uint64]:
    """Compute the word that each row adds to the digest of drawn rows: (n,) uint64.

    Parameters
    ----------
    salt : str
        The result of `draw_salt`.
    ids : (n,) NumPy integers or Arrow text, a list of such columns, or None
        An integer and its decimal text are the same id, because a copy may hold the ids as text.
    codes : (n,) integers
        Noisy labels.
    evidence : (n, width) uint8 or None
        None if the label is the whole output.
    """
    columns = (
        []
        if ids is None
        else [_named(column) for column in (ids if isinstance(ids, list) else [ids])]
    )
    return _hash.public_hash(
        salt,
        *columns,
        codes.astype(np.int64, copy=False),
        *([] if evidence is None else [evidence]),
    )


class DrawnDigest:
    """Digest of the drawn rows of a table: of ids, noisy labels and evidence, in any order of rows.

    Without ids a row is named by its number, so the order matters. The digest finds accidental
    changes. A forger can make other rows with the same digest, or write a new digest into a file;
    against that there are the SHA-256 of whole files and the ledger.

    Parameters
    ----------
    ordered : bool
        True if rows have no ids.
    first : int, default=0
        Number of the first row.
    """

    def __init__(self, ordered: bool, first: int = 0) -> None:
        self._set, self._ordered, self.first, self.rows = _hash.SetDigest(), ordered, first, 0

    def update(self, words: NDArray[np.uint64]) -> None:
        """Add the next rows, given by their `drawn_words`."""
        # The sum does not depend on the order, so rows without ids are hashed with their numbers.
        start = self.first + self.rows
        self._set.update(*([np.arange(start, start + len(words))] if self._ordered else []), words)
        self.rows += len(words)

    def following(self) -> "DrawnDigest":
        """Return an empty digest of the rows after these."""
        return DrawnDigest(self._ordered, self.first + self.rows)

    def facts(self) -> dict[str, object]:
        """Return the facts for a file's metadata, by which it can be proven without the other
        files."""
        return {"drawn": self.hexdigest()} | ({"first_row": self.first} if self._ordered else {})

    def hexdigest(self) -> str:
        """Return the digest as 48 hexadecimal digits."""
        return self._set.hexdigest()


def drawn_in_all(digests: Iterable[str]) -> str:
    """Add up the digests of a release's files."""
    total = _hash.SetDigest()
    for each in digests:
        total.merge(_hash.SetDigest.from_hexdigest(each))
    return total.hexdigest()


def id_words(ids: Any) -> NDArray[np.uint64]:
    """Hash each row's ids to one word that does not depend on their types: (n,) uint64."""
    columns = [_named(column) for column in (ids if isinstance(ids, list) else [ids])]
    return columns[0] if len(columns) == 1 else _hash.public_hash("names", *columns)


def _named(ids: NDArray[np.generic] | pa.Array) -> NDArray[np.uint64]:
    """Convert an id column to words: integers >= 0 of up to 19 digits, also as text, stay as they
    are; all other ids are hashed as text."""
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu":
        # Negative and larger integers are hashed as their text.
        if not len(ids) or (ids.min() >= 0 and ids.max() < 10**_DIGITS):
            return ids.astype(np.uint64, copy=False)
        ids = pa.array(ids).cast(pa.large_string())
    text = ids if isinstance(ids, pa.Array) else pa.array(ids)
    length = pc.binary_length(text)
    decimal = pc.and_(pc.ascii_is_decimal(text), pc.less_equal(length, _DIGITS))
    # "007" is not the id 7: only text without leading zeros is taken for a number.
    decimal = pc.and_(decimal, pc.or_(pc.equal(length, 1), pc.invert(pc.starts_with(text, "0"))))
    numbers = np.asarray(decimal.to_numpy(zero_copy_only=False), bool)
    if numbers.all():
        return np.asarray(text.cast(pa.uint64()).to_numpy(zero_copy_only=False))
    words = _hash.public_hash("name", text)
    if numbers.any():
        words[numbers] = text.filter(decimal).cast(pa.uint64()).to_numpy(zero_copy_only=False)
    return words


def row_words(batch: Columns, names: Sequence[str]) -> NDArray[np.uint64]:
    """Hash the values of each row in columns of any types: (n,) uint64."""
    found = []
    for column in (_unwrapped(batch.column(name)) for name in names):
        kind = column.type
        if number := pa.types.is_primitive(kind) and 8 <= kind.bit_width <= 64:
            column = column.view(f"int{kind.bit_width}")
        elif not pa.types.is_large_string(kind):
            column = pa.array([repr(value) for value in column.to_pylist()], pa.large_string())
        # A null is two different values, and no other value is.
        found += [column.fill_null(each) for each in ((0, 1) if number else ("", " "))]
    return _hash.public_hash("rows", *found)


# Writing
# --------------------------------------------------------------------------------------------------


class Sink(ABC):
    """A writer of one file.

    Attributes
    ----------
    name : str
        The file's name.
    rows : int
        Number of rows so far.
    """

    def __init__(self, path: Path | Place):
        self._file, self.name, self.rows = HashedFile(path), Place.of(path).name, 0

    @property
    def size(self) -> int:
        """Number of bytes written so far, without rows in memory."""
        return self._file.size

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows that `Source.rewrite` made."""

    @abstractmethod
    def close(self, more: Mapping[str, object] | None = None) -> str:
        """Finish the file, wait until it is on disk, and return its SHA-256. `more`: facts for its
        metadata, if the format has any."""

    def abort(self) -> None:
        """Close an unfinished file; no effect after `close`."""
        self._file.abandon()


class PartsSink:
    """A writer of a release: one file, or files of about 256 MB.

    Rows may have a column `DRAWN`, which is not written; its digest goes into the file's facts.

    Parameters
    ----------
    staging : Staging
        With `single`, there is one file.
    make : function
        Opens a sink at a place.
    ordered : bool
        True if rows have no ids, so that the digest of drawn rows depends on their order. False by
        default.
    """

    def __init__(self, staging: Staging, make: Callable[[Place], Sink], *, ordered: bool = False):
        self.parts: list[Part] = []
        self._staging, self._make = staging, make
        # Large enough for fast reading, small enough to be written again after a failed task.
        self._limit = inf if staging.single else PART_BYTES
        self._open: Sink | None = None
        self._drawn = DrawnDigest(ordered)

    @property
    def rows(self) -> int:
        """Number of rows so far."""
        return sum(part.rows for part in self.parts) + (self._open.rows if self._open else 0)

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows, if any, and finish a file that is large enough."""
        if not len(rows):
            return
        sink = self._current()
        if DRAWN in rows.schema.names:
            self._drawn.update(rows.column(DRAWN).to_numpy(zero_copy_only=False).view(np.uint64))
            rows = rows.drop_columns([DRAWN])
        sink.write(rows)
        if sink.size >= self._limit:
            self._finish()

    def _current(self) -> Sink:
        if self._open is None:
            self._open = self._make(self._staging.new_file())
        return self._open

    def _finish(self) -> None:
        sink, drawn = self._current(), self._drawn
        # Without the words of all rows there is no digest of the file.
        facts = drawn.facts() if drawn.rows == sink.rows else {}
        sha256 = sink.close(facts or None)
        self.parts.append(
            Part(sink.name, sink.rows, sink.size, sha256, str(facts.get("drawn", "")))
        )
        self._open, self._drawn = None, drawn.following()

    def close(self) -> None:
        """Finish the last file, of which there is always one."""
        if self._open is not None or not self.parts:
            self._finish()

    def abort(self) -> None:
        """Close an unfinished file; no effect after `close`."""
        if self._open is not None:
            self._open.abort()
            self._open = None


# The digest of public columns
# --------------------------------------------------------------------------------------------------


class ArrowDigest:
    """SHA-256 of named columns, computed batch by batch. It does not depend on the sizes of
    batches.

    Cost: one pass over the bytes, and 8 bytes a row for text.
    """

    def __init__(self, schema: pa.Schema, names: tuple[str, ...]):
        self._columns = {name: _ColumnDigest(schema.field(name).type) for name in names}

    def update(self, batch: Batch) -> None:
        """Add the next rows."""
        for name, state in self._columns.items():
            state.update(batch.raw(name))

    def hexdigest(self) -> str:
        """Return the SHA-256 of names, types and values, in hexadecimal."""
        return _hash.digest(
            {
                "columns": [[name, state.facts()] for name, state in self._columns.items()],
                "format": "arrow/1",
            }
        )


class _ColumnDigest:
    """Digest of one column: of its nulls, lengths, values and nested columns, each as a stream of
    its own."""

    def __init__(self, kind: pa.DataType):
        # Readers choose freely between text and large text, dictionary and plain values, so these
        # have one digest.
        self._kind = _plain_type(kind)
        self._rows = 0
        # Separate streams, so that ["ab"] and ["a", "b"], or null and "", have different digests.
        self._nulls, self._lengths, self._values = (
            hashlib.sha256(),
            hashlib.sha256(),
            hashlib.sha256(),
        )
        kind, types = self._kind, pa.types
        listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        inner = kind.num_fields if listed or types.is_struct(kind) else 0
        self._children = [_ColumnDigest(kind.field(i).type) for i in range(inner)]

    def update(self, array: pa.Array) -> None:
        array = _unwrapped(array)
        if array.null_count:
            self._nulls.update(
                (np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)) + self._rows)
                .astype("<i8")
                .data
            )
        self._rows += len(array)
        types, kind = pa.types, array.type
        if types.is_struct(kind):
            for child, values in zip(self._children, array.flatten(), strict=True):
                child.update(values)
        elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            self._lengths.update(
                pc.fill_null(pc.list_value_length(array), 0)
                .cast(pa.int64())
                .to_numpy(zero_copy_only=False)
            )
            self._children[0].update(array.flatten())
        elif types.is_large_string(kind) or types.is_large_binary(kind):
            array = pc.fill_null(array, b"" if types.is_large_binary(kind) else "")
            here = slice(array.offset, array.offset + len(array) + 1)
            if len(array):  # Arrow may leave out the offsets of no rows
                offsets = np.frombuffer(array.buffers()[1], np.int64)[here]
                self._lengths.update(np.diff(offsets).data)
                values = memoryview(array.buffers()[2] or b"")
                self._values.update(values[offsets[0] : offsets[-1]])
        elif types.is_boolean(kind):
            self._values.update(
                pc.fill_null(array, False).cast(pa.uint8()).to_numpy(zero_copy_only=False)
            )
        elif types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
            array = array.drop_null()  # the stream of nulls has their positions
            if len(array):
                width, start = array.type.bit_width // 8, array.offset
                here = slice(start * width, (start + len(array)) * width)
                self._values.update(memoryview(array.buffers()[1])[here])
        elif not types.is_null(kind):
            for value in array.to_pylist():  # where a batch ends must not show
                self._values.update(json.dumps(value, default=str).encode() + b"\n")

    def facts(self) -> list[object]:
        streams = [self._nulls, self._lengths, self._values]
        return [
            str(self._kind),
            self._rows,
            [s.hexdigest() for s in streams],
            [c.facts() for c in self._children],
        ]


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the one type that stands for all types of the same values."""
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
