# SPDX-License-Identifier: Apache-2.0
"""Names what the columns of an Arrow table hold, whatever the batches, chunks, dictionaries and 32- or 64-bit offsets were."""

import hashlib
import json
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from labeldp import _hash


class ArrowDigest:
    """SHA-256 over named columns, fed batch by batch.

    Cost: one pass over the bytes; strings add 8 bytes a row.
    """

    def __init__(self, schema: pa.Schema, names: tuple[str, ...]):
        self._columns = {name: _ColumnDigest(schema.field(name).type) for name in names}

    def update(self, columns: Mapping[str, pa.Array]) -> None:
        """Add the next rows of every column."""
        for name, state in self._columns.items():
            state.update(columns[name])

    def hexdigest(self) -> str:
        """SHA-256 of names, types and contents, hexadecimal."""
        return _hash.digest({"columns": [[name, state.facts()] for name, state in self._columns.items()], "format": "arrow/1"})


class _ColumnDigest:
    """One column: places of its nulls, lengths, values, and what is nested in it, each as a stream of its own."""

    def __init__(self, kind: pa.DataType):
        self._kind = _plain(kind)
        self._rows = 0
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


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type that stands for all types of the same values."""
    types = pa.types
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if types.is_string(kind) or types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary(kind) or types.is_binary_view(kind):
        return pa.large_binary()
    return _plain(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else kind


def _unwrapped(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        return _unwrapped(array.storage)
    if pa.types.is_dictionary(array.type):
        return _unwrapped(array.dictionary_decode())
    plain = _plain(array.type)
    return array if plain == array.type else array.cast(plain)


def _nested(kind: pa.DataType) -> list[pa.Field]:
    types = pa.types
    if types.is_struct(kind):
        return [kind.field(i) for i in range(kind.num_fields)]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [kind.value_field]
    return []
