# SPDX-License-Identifier: Apache-2.0
"""Names what columns hold, whatever the batches, chunks, dictionaries and 32- or 64-bit offsets were: public ones, and what was drawn."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labeldp import _hash
from labeldp.custody._draw import Ids

DRAWN = "__labeldp_drawn"
"""Column of `drawn_words` that goes with released rows until they are written."""
_DIGITS = 19  # so many always fit into 64 bits


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


# What was drawn ---------------------------------------------------------------------------------------------------------------------


def draw_salt(facts: Mapping[str, object]) -> str:
    """Binds what was drawn to the classes, law, receipt and stage that a table's shared facts state."""
    return "drawn/" + _hash.digest({name: facts[name] for name in ("classes", "law", "receipt", "stage")})


def drawn_words(salt: str, ids: Ids | None, codes: NDArray[np.integer], evidence: NDArray[np.uint8] | None) -> NDArray[np.uint64]:
    """What each row adds to the digest of what was drawn: (n,) uint64.

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
    """The digest of all files of a release, from those of each."""
    total = _hash.SetDigest()
    for each in digests:
        total += _hash.SetDigest.from_hexdigest(each)
    return total.hexdigest()


def id_words(ids: Any) -> NDArray[np.uint64]:
    """One word for each row's ids, the same whatever their types: (n,) uint64."""
    columns = [_named(column) for column in (ids if isinstance(ids, list) else [ids])]
    return columns[0] if len(columns) == 1 else _hash.public_hash("names", *columns)


def _named(ids: NDArray[np.generic] | pa.Array) -> NDArray[np.uint64]:
    """One id column as words: whole numbers of up to 19 digits are themselves, in any type and as text; everything else is hashed text."""
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu":
        if not len(ids) or (ids.min() >= 0 and ids.max() < 10**_DIGITS):
            return ids.astype(np.uint64, copy=False)
        ids = pa.array(ids).cast(pa.large_string())
    text = ids if isinstance(ids, pa.Array) else pa.array(ids)
    length = pc.binary_length(text)
    plain = pc.and_(pc.ascii_is_decimal(text), pc.less_equal(length, _DIGITS))
    plain = pc.and_(plain, pc.or_(pc.equal(length, 1), pc.invert(pc.starts_with(text, "0"))))
    numbers = np.asarray(plain.to_numpy(zero_copy_only=False), bool)
    if numbers.all():
        return np.asarray(text.cast(pa.uint64()).to_numpy(zero_copy_only=False))
    words = _hash.public_hash("name", text)
    if numbers.any():
        words[numbers] = text.filter(plain).cast(pa.uint64()).to_numpy(zero_copy_only=False)
    return words
