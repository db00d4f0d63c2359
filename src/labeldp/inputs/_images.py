# SPDX-License-Identifier: Apache-2.0
"""Read images as inputs: bytes of image files in a column, or names of files in a folder. Needs
Pillow."""

import io
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp.errors import InvalidInput, MissingExtra, ReleaseError
from labeldp.tables.formats._table import Readable, Rows, is_text, row_number

Pixels = NDArray[np.uint8]
# Pillow's modes that are read as 1 and as 3 channels
GREY, COLOUR = ("1", "L"), ("P", "RGB", "CMYK", "YCbCr", "HSV", "LAB")


@dataclass(frozen=True)
class ImageInputs:
    """Inputs that are images of one size.

    Attributes
    ----------
    column : str
        Column with the bytes of image files (as plain values or as field `bytes` of a struct), or
        with names of files.
    image : (int, int, int)
        Channels (1 grey, 3 colour), height and width.
    folder : Path or None
        Folder of the named files; it is not stored with a model.
    """

    column: str
    image: tuple[int, int, int]
    folder: Path | None = None

    @property
    def names(self) -> list[str]:
        """Name of the column, as a list."""
        return [self.column]

    def read(self, batch: Rows, start: int | None = None) -> Pixels:
        """Read m images: (m, channels, height, width) uint8; `start` is the first row's number, for
        messages."""
        files = _files(batch.column(self.column), self.column, self.folder)
        found = [
            self._checked(pixels_of(data, name := _row(start, i)), name)
            for i, data in enumerate(files)
        ]
        return np.stack(found) if found else np.empty((0, *self.image), np.uint8)

    def _checked(self, pixels: Pixels, name: str) -> Pixels:
        if pixels.shape == self.image:
            return pixels
        (c, h, w), (channels, height, width), kinds = (
            pixels.shape,
            self.image,
            {1: "grey", 3: "colour"},
        )
        if c != channels:
            raise InvalidInput(
                f"Expected {kinds[channels]} images ({channels} channels), as the first one is, got"
                f" a {kinds[c]} one ({c}) in {name}. Convert all to one kind."
            )
        raise InvalidInput(
            f"Expected images of one size, {height} x {width} pixels, got {h} x {w} in {name}."
            " Resize or crop them."
        )

    def to_dict(self) -> dict[str, object]:
        """Describe the inputs, except for the folder, as JSON-ready data."""
        return {"kind": "images", "column": self.column, "image": list(self.image)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ImageInputs":
        """Rebuild the inputs from the dict that `to_dict` wrote."""
        channels, height, width = map(int, data["image"])
        return cls(str(data["column"]), (channels, height, width))


def learn_images(table: Readable, column: str, folder: Path) -> ImageInputs:
    """Read the first image, whose number of channels and size all others must have."""
    _pillow()
    for batch in table.batches([column]):
        for first in _files(batch.column(column), column, folder):
            channels, height, width = pixels_of(first, _row(0, 0)).shape
            return ImageInputs(column, (channels, height, width), folder)
    raise InvalidInput(f"Expected rows, got none in {table.path.name}.")


def pixels_of(data: bytes, name: str) -> Pixels:
    """Decode an image file: (1 or 3, height, width) uint8."""
    image_module = _pillow()
    try:
        with warnings.catch_warnings():
            # Pillow only warns of a decompression bomb; here it is refused
            warnings.simplefilter("error")
            with image_module.open(io.BytesIO(data)) as image:
                image.load()
    except Exception as error:  # each of Pillow's format plugins raises errors of its own
        raise InvalidInput(
            f"Expected an image that can be read, got something else in {name}"
            f" ({type(error).__name__}). Write it again."
        ) from None
    if image.mode in GREY:
        return np.asarray(image.convert("L"))[None]
    if image.mode in COLOUR:
        return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))
    raise InvalidInput(
        "Expected grey or colour images of 8 bits without transparency, got one of Pillow's mode"
        f" {image.mode} in {name}. Convert it: image.convert('RGB')."
    )


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra(
            "Expected Pillow to read images, which is not installed. pip install 'labeldp[images]'"
        ) from None
    return Image


def _row(start: int | None, i: int) -> str:
    return row_number(None if start is None else start + i)


def _files(column: pa.Array, name: str, folder: Path | None) -> Iterable[bytes]:
    """Return an iterator over the bytes of each row's file, one at a time: a batch of photos at
    once may not fit into memory."""
    values, types = _field(column, "bytes"), pa.types
    if values.null_count:
        raise InvalidInput(
            f"Expected an image in every row of column {name!r}, got none in one. Drop such rows."
        )
    if (
        types.is_binary(values.type)
        or types.is_large_binary(values.type)
        or types.is_binary_view(values.type)
    ):
        return (value.as_py() for value in values)
    if is_text(values.type):
        if folder is None:
            raise InvalidInput(
                f"Expected the bytes of images in column {name!r}, got names of files. Say where"
                " they are (--images)."
            )
        return (_content(folder, value.as_py()) for value in values)
    raise InvalidInput(
        f"Expected bytes of images, or names of files, in column {name!r}, got type {column.type}."
        " Name another (--image)."
    )


def _field(column: pa.Array, name: str) -> pa.Array:
    """Return a column's values, with dictionaries decoded; of structs that have it, this field."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return (
        column.field(name)
        if pa.types.is_struct(column.type) and column.type.get_field_index(name) >= 0
        else column
    )


def _content(folder: Path, name: str) -> bytes:
    # The names come from a table that somebody else may have written: none may lead out of the
    # folder (path traversal).
    parts = _parts(name)
    if not name or Path(name).is_absolute() or ".." in parts:
        raise InvalidInput(
            f"Expected names of files below {folder}, got {name!r}. Name them from there, or"
            " another folder (--images)."
        )
    try:
        return folder.joinpath(*parts).read_bytes()
    except OSError as error:
        raise ReleaseError(
            f"Expected the image {name!r} in {folder}, got {error.strerror}. Say where it is"
            " (--images)."
        ) from None


def _parts(name: str) -> list[str]:
    return name.replace("\\", "/").split("/")


class NamesOfFiles:
    """Refuses file names that reveal the label, as folders named by class do.

    A class with letters may be neither a folder nor a word in a name. A class that is a number may
    not be a folder, nor follow the word "class", "label" or the label's column name; other numbers
    are allowed, since they count files.

    Parameters
    ----------
    column, label : str
        Names of the column of images and of the label column.
    classes : sequence
    """

    def __init__(self, column: str, label: str, classes: Sequence[object]):
        self.column = column
        texts = [text for text in (str(c).casefold() for c in classes if c is not None) if text]
        self._folders = set(texts)
        self._key = f"{label}=".casefold()
        wordy = [_words(text) for text in texts if any(map(str.isalpha, text))]
        heads = [("class",), ("label",), _words(label.casefold())]
        self._phrases = {phrase for phrase in wordy if phrase}
        self._phrases |= {
            (*head, *_words(text)) for head in heads for text in texts if _words(text)
        }
        self._lengths = sorted({len(phrase) for phrase in self._phrases})

    def check(self, column: pa.Array, start: int) -> None:
        """Check the names in a column of images, if it has any; `start` is the first row's
        number."""
        # Structs of Hugging Face's image type keep the name of the original file beside the bytes.
        names = _field(column, "path")  # of images with their bytes, where they are known
        for i, name in enumerate(names.to_pylist() if is_text(names.type) else ()):
            if name is not None and self._shows(name.casefold()):
                raise InvalidInput(
                    "Expected names of files that say nothing about the labels in column"
                    f" {self.column!r}, got one with a folder or a word named like a class in"
                    f" {_row(start, i)}. Rename the files, for example by their numbers."
                )

    def check_layout(self, layout: Iterable[Sequence[str]]) -> None:
        """Check the paths of the files of a table; each path is given as its parts."""
        if any(self._shows("/".join(parts).casefold()) for parts in layout):
            raise InvalidInput(
                "Expected a table whose paths say nothing about the labels, got one with a folder"
                " or file named like a class. Write it without these folders."
            )

    def _shows(self, name: str) -> bool:
        parts = _parts(name)
        if any(part in self._folders or part.startswith(self._key) for part in parts[:-1]):
            return True
        for words in map(_words, parts):
            for size in self._lengths:
                if any(words[i : i + size] in self._phrases for i in range(len(words) - size + 1)):
                    return True
        return False


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[^\W\d_]+|\d+", text))
