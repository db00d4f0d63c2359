# SPDX-License-Identifier: Apache-2.0
"""A label column's values as class codes, and back in the same type."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labeldp.custody._encode import MOST_READ_OFF, near_miss, read_off
from labeldp.errors import InvalidInput

TRUTH = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


def value_type(column_type: pa.DataType) -> pa.DataType:
    """What one label is: the column's type, without a dictionary around it."""
    return column_type.value_type if pa.types.is_dictionary(column_type) else column_type


def check_type(column: str, column_type: pa.DataType) -> None:
    """Only types whose values are classes: whole numbers, text, booleans, floats, or a dictionary of those."""
    kind, types = value_type(column_type), pa.types
    good = types.is_integer(kind) or types.is_boolean(kind) or types.is_float32(kind) or types.is_float64(kind) or is_text(kind)
    if not good:
        raise InvalidInput(
            f"Expected a label column of whole numbers, text, booleans or floats, got {column!r} of type {column_type}. Cast it."
        )


def is_text(kind: pa.DataType) -> bool:
    """Whether Arrow says so, without a dictionary around it."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def parse_classes(classes: Sequence[object], column: str, column_type: pa.DataType, *, text_table: bool) -> tuple[object, ...]:
    """The declared classes as values of the column's type.

    In a text table (CSV) every class is text, and a null class is the empty field.
    """
    kind = value_type(column_type)
    values: tuple[object, ...]
    if text_table:
        values = tuple("" if c is None else _text(c) for c in classes)
    else:
        values = tuple(None if c is None else _parse(c, kind, column) for c in classes)
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


class LabelCodec:
    """Codes of a label column and the column of some codes.

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
        self._values = pa.array(list(self.classes), type=pa.large_string() if is_text(kind) else kind)
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
        row = "some row" if start_row is None else (self._name_row or row_number)(start_row + at)
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


def row_number(row: int) -> str:
    """How a row is called where nothing but its number is known."""
    return f"row {row} (the first is row 0)"


def distinct_labels(arrays: Iterable[pa.Array], column_type: pa.DataType) -> tuple[object, ...]:
    """The distinct labels of a column, sorted, without null and empty text, where they may be its classes (`read_off`)."""
    seen: set[Any] = set()
    rows = 0
    for array in arrays:
        seen.update(pc.unique(array.dictionary_decode() if pa.types.is_dictionary(array.type) else array).to_pylist())
        rows += len(array)
        if len(seen) > MOST_READ_OFF + 2:
            break  # refused, however many rows follow
    return read_off(seen - {None, ""}, rows, floats=pa.types.is_floating(value_type(column_type)))
