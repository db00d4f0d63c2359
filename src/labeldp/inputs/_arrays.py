# SPDX-License-Identifier: Apache-2.0
"""Read NumPy files (.npz, .npy) as tables: inputs of any shape; labels, ids and units with one
value per row."""

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.tables._place import Place

ARRAYS = (".npz", ".npy")
_ROWS = 1 << 12  # read together
_CHANNELS = (1, 2, 3, 4)
Array = NDArray[Any]
Channels = Literal["", "none", "first", "last"]


def is_arrays(path: str | Path) -> bool:
    """Return whether a file's suffix says that it holds NumPy arrays."""
    return Path(path).suffix.lower() in ARRAYS


class ArrayTable:
    """A table made of arrays of one length: row i is item i of each.

    Parameters
    ----------
    path : Path
        An .npz file, or an .npy file, whose one array gets the name `key`.
    key : str
        Name of the inputs' array, whose length is the number of rows.
    beside : (Path, str), optional
        A second such file, whose arrays replace those of the same name, except the inputs. If it is
        an .npy file, the str names its array.
    """

    text = False

    def __init__(self, path: Path, key: str, beside: tuple[Path, str] | None = None):
        self.path, self.key = Place.of(path), key
        more = {} if beside is None else _opened(*beside)
        self._readers = _opened(path, key) | {
            name: read for name, read in more.items() if name != key
        }
        self._arrays: dict[str, Array] = {}
        self.names = tuple(self._readers)
        if key not in self._readers:
            raise InvalidInput(
                f"Expected an array {key!r} of inputs in {path.name}, got"
                f" none.{_validate.suggest(key, self.names)} Its arrays: {', '.join(self.names)}."
                " Name it (--inputs)."
            )
        if not self.array(key).ndim:
            raise InvalidInput(
                f"Expected an array with an axis of rows as {key!r} in {path.name}, got a single"
                " number."
            )
        self.extent = len(self.array(key))

    def array(self, name: str) -> Array:
        """Read one array, whole and once: a zip member has to be unpacked from its beginning to
        reach any row."""
        if name not in self._arrays:
            self._arrays[name] = self._readers[name]()
        return self._arrays[name]

    def type_of(self, name: str) -> pa.DataType:
        """The Arrow type of one value."""
        return _arrow(self._column(name)[:1], name).type

    def _column(self, name: str) -> Array:
        found = self.array(name)
        flat = found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found
        if flat.shape != (self.extent,):
            raise InvalidInput(
                f"Expected one value for each of {self.extent} rows in array {name!r}, got shape"
                f" {found.shape}. Give one of as many rows as {self.key!r}."
            )
        return flat

    def batches(self, columns: Sequence[str] | None = None) -> Iterator["ArrayBatch"]:
        """Yield the rows in order, some thousands at a time."""
        for start in range(0, self.extent, _ROWS):
            yield ArrayBatch(self, slice(start, min(start + _ROWS, self.extent)))

    def column(self, name: str, rows: slice) -> pa.Array:
        """Return some rows of an array that has one value per row, as an Arrow array."""
        return _arrow(self._column(name)[rows], name)


@dataclass(frozen=True)
class ArrayBatch:
    """Consecutive rows of an `ArrayTable`."""

    table: ArrayTable
    rows: slice

    def __len__(self) -> int:
        return int(self.rows.stop - self.rows.start)

    @property
    def extent(self) -> int:
        """Number of rows."""
        return len(self)

    def column(self, name: str) -> pa.Array:
        """Return these rows of an array that has one value per row, as an Arrow array."""
        return self.table.column(name, self.rows)

    def array(self, name: str) -> Array:
        """Return these rows of an array of any shape."""
        return self.table.array(name)[self.rows]


def _arrow(values: Array, name: str) -> pa.Array:
    try:
        return pa.array(values)
    except pa.ArrowException:
        raise InvalidInput(
            f"Expected numbers or text in array {name!r}, got type {values.dtype}. Convert it."
        ) from None


def _opened(path: Path, key: str) -> dict[str, Callable[[], Array]]:
    """Return a reader for each array of a file, by name."""
    if not path.is_file():
        raise ReleaseError(f"Expected an existing file, got {path}. Check the path.")
    if path.suffix.lower() == ".npy":
        return {key: partial(_read, path, None)}
    try:
        # Pickled objects are refused here and in `_read`: unpickling runs code that the file
        # brings.
        with np.load(path, allow_pickle=False) as archive:
            names = list(archive.files)
    except (*_DAMAGED, TypeError):  # an array alone is no context manager
        raise _not_numpy(path) from None
    return {name: partial(_read, path, name) for name in names}


_DAMAGED = (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)


def _read(path: Path, name: str | None) -> Array:
    try:
        loaded = np.load(path, allow_pickle=False)
        if name is not None:
            with loaded:
                found: Array = loaded[name]
        elif isinstance(loaded, np.ndarray):
            found = loaded
        else:
            loaded.close()
            raise ValueError
    except _DAMAGED:
        raise _not_numpy(path) from None
    # Arrow and torch refuse the other byte order
    return found.astype(found.dtype.newbyteorder("="), copy=False)


def _not_numpy(path: Path) -> InvalidInput:
    return InvalidInput(
        "Expected arrays of numbers or text as numpy.savez or numpy.save writes them, got"
        f" something else, or objects, in {path.name}. Save plain arrays."
    )


@dataclass(frozen=True)
class ArrayInputs:
    """Inputs from one array: a matrix, or images, which are read as (n, channels, height, width).

    Attributes
    ----------
    key : str
    shape : tuple of int
        Shape of one row in the file.
    dtype : {"uint8", "float32"}
        Images of bytes stay bytes (nets scale them to [0, 1]); a matrix is always read as floats.
    channels : {"", "none", "first", "last"}
        Axis of the channels in the file's images: none, first or last; "" for a matrix.
    """

    key: str
    shape: tuple[int, ...]
    dtype: str
    channels: Channels = ""

    @property
    def names(self) -> list[str]:
        """Name of the array, as a list."""
        return [self.key]

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Channels, height and width; None for a matrix."""
        if not self.channels:
            return None
        if self.channels == "none":
            return (1, *self.shape)  # type: ignore[return-value]
        return self.shape if self.channels == "first" else (self.shape[2], *self.shape[:2])  # type: ignore[return-value]

    def read(self, batch: Any, start: int | None = None) -> Array:
        """Read m rows: (m, d), with NaN where a number is missing or infinite; or (m, channels,
        height, width)."""
        if not isinstance(batch, ArrayBatch):
            raise InvalidInput(
                f"Expected inputs as the array {self.key!r} of an .npz or .npy file, got a table."
                " The model was trained so."
            )
        found = batch.array(self.key)
        if (
            found.shape[1:] != self.shape
            or _kind(found, self.key, image=bool(self.channels)) != self.dtype
        ):
            raise InvalidInput(
                f"Expected rows of shape {self.shape} and type {self.dtype} in array {self.key!r},"
                f" as in training; got {found.shape[1:]} and {found.dtype}. Convert them."
            )
        values = found.astype(self.dtype, copy=False)
        if not self.channels:
            # Infinity becomes a missing value, which trees and imputers accept.
            return np.where(np.isfinite(values), values, np.float32(np.nan))
        if self.channels == "none":
            return values[:, None]
        return (
            values
            if self.channels == "first"
            else np.ascontiguousarray(values.transpose(0, 3, 1, 2))
        )

    def to_dict(self) -> dict[str, object]:
        """Describe the inputs as JSON-ready data."""
        return {
            "kind": "array",
            "key": self.key,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "channels": self.channels,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ArrayInputs":
        """Rebuild the inputs from the dict that `to_dict` wrote."""
        return cls(
            str(data["key"]), tuple(map(int, data["shape"])), str(data["dtype"]), data["channels"]
        )


def learn_array(table: ArrayTable) -> ArrayInputs:
    """Decide by the array's shape whether it is a matrix (n, d), or images (n, h, w), (n, c, h, w)
    or (n, h, w, c) with 1 to 4 channels."""
    found = table.array(table.key)
    if not len(found):
        raise InvalidInput(f"Expected rows, got none in {table.path.name}.")
    shape, channels = found.shape[1:], _channels(found.shape[1:])
    if channels is None:
        raise InvalidInput(
            "Expected inputs of shape (n, d), or images (n, h, w), (n, c, h, w) or (n, h, w, c) of"
            f" 1 to 4 channels, got {found.shape} as {table.key!r}. Reshape them."
        )
    return ArrayInputs(table.key, shape, _kind(found, table.key, image=bool(channels)), channels)


def _channels(shape: tuple[int, ...]) -> Channels | None:
    """Return the axis of the channels for rows of this shape; None if it is neither a matrix nor
    images, or could be images both ways."""
    if len(shape) == 3:
        first, last = shape[0] in _CHANNELS, shape[2] in _CHANNELS
        return None if first == last else "first" if first else "last"
    return "none" if len(shape) == 2 else "" if len(shape) == 1 and shape[0] else None


def _kind(values: Array, key: str, *, image: bool) -> str:
    if image and values.dtype == np.uint8:
        return "uint8"
    if values.dtype.kind == "f" or (not image and values.dtype.kind in "iub"):
        return "float32"
    wanted = "bytes from 0 to 255 (uint8), or floats" if image else "numbers"
    raise InvalidInput(
        f"Expected {wanted} in array {key!r}, got {values.dtype}. Convert it, for example with"
        " astype('uint8')."
    )
