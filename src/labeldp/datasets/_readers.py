# SPDX-License-Identifier: Apache-2.0
"""Readers of the files of data sets: images (idx, npz, CIFAR, WebP sheets), tables (Adult, credit
default, California housing, ratings)."""

import csv
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import MissingExtra, ReleaseError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Split = tuple[Images, Labels, Images, Labels]

_IDX_UBYTE = 8


def read_idx(path: Path) -> Images:
    """Read an idx file of unsigned bytes, gzipped or not, in the shape that its header gives."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    dimensions = data[3] if len(data) > 3 else 0
    start = 4 + 4 * dimensions
    # Header of an idx file: two zero bytes, the type of the values, the number of dimensions, then
    # each size as big-endian uint32.
    if len(data) < max(start, 4) or data[2] != _IDX_UBYTE or dimensions == 0:
        raise ReleaseError(
            f"Expected an idx file of unsigned bytes, got something else in {path}. Fetch the file"
            " again."
        )
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", dimensions, 4))
    if len(data) - start != int(np.prod(shape)):
        raise ReleaseError(
            f"Expected {int(np.prod(shape))} bytes of data in {path}, got {len(data) - start}."
            " Fetch the file again."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_idx_set(paths: Sequence[Path]) -> Split:
    """Read the four files of MNIST and its relatives: train images, train labels, test images, test
    labels."""
    train, train_labels, test, test_labels = (read_idx(path) for path in paths)
    return train, train_labels.astype(np.int64), test, test_labels.astype(np.int64)


def read_npz_set(paths: Sequence[Path]) -> Split:
    """Read KMNIST's four .npz files, or its two test files alone; then the train part has no
    rows."""
    arrays = [_npz(path) for path in paths]
    if len(arrays) == 2:
        arrays = [arrays[0][:0], arrays[1][:0], *arrays]
    train, train_labels, test, test_labels = arrays
    return train, train_labels.astype(np.int64), test, test_labels.astype(np.int64)


def _npz(path: Path) -> Images:
    with np.load(path, allow_pickle=False) as archive:
        return np.asarray(archive["arr_0"], np.uint8)


def _pixels(flat: NDArray[np.uint8]) -> Images:
    """Reorder (n, 3072) planes of red, green and blue to (n, 32, 32, 3)."""
    return np.ascontiguousarray(flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def read_cifar(archive: Path, *, label_bytes: int) -> Split:
    """Read the official binary archive. Of CIFAR-100's two label bytes, the second one, the fine
    label, is used."""
    parts: dict[str, list[tuple[str, NDArray[np.uint8]]]] = {"train": [], "test": []}
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            name = Path(member.name).name
            if member.isfile() and name.endswith(".bin"):
                records = np.frombuffer(_member(tar, member), np.uint8).reshape(
                    -1, label_bytes + 3072
                )
                parts["test" if name.startswith("test") else "train"].append((name, records))
    return _split(
        archive,
        {
            part: [(name, r[:, label_bytes:], r[:, label_bytes - 1]) for name, r in found]
            for part, found in parts.items()
        },
    )


def _split(archive: Path, parts: dict[str, list[tuple[str, Any, Any]]]) -> Split:
    if not (parts["train"] and parts["test"]):
        raise ReleaseError(
            f"Expected train and test batches in {archive}, found none of one kind. Fetch the file"
            " again."
        )
    joined: list[Any] = []
    for part in ("train", "test"):
        batches = sorted(parts[part], key=lambda batch: batch[0])
        joined.append(_pixels(np.concatenate([pixels for _, pixels, _ in batches])))
        joined.append(np.concatenate([np.asarray(labels, np.int64) for _, _, labels in batches]))
    return joined[0], joined[1], joined[2], joined[3]


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return b"" if file is None else file.read()


def read_cifar_sheets(paths: Sequence[Path]) -> Split:
    """Read CIFAR from lossless WebP sheets of 100 x 100 images: five train sheets, one test sheet,
    and the labels as .npz."""
    *sheets, labels = paths
    pixels = [_sheet(path) for path in sheets]
    with np.load(labels, allow_pickle=False) as archive:
        train_labels, test_labels = (
            archive["train"].astype(np.int64),
            archive["test"].astype(np.int64),
        )
    return np.concatenate(pixels[:-1]), train_labels, pixels[-1], test_labels


def read_sheet_names(labels: Path) -> tuple[str, ...]:
    """Read the class names beside the labels of CIFAR-100's sheets."""
    with np.load(labels, allow_pickle=False) as archive:
        return tuple(map(str, archive["names"]))


def _sheet(path: Path) -> Images:
    try:
        from PIL import Image
    except ImportError as problem:
        raise MissingExtra(
            "These images are stored as WebP, which needs Pillow: pip install 'labeldp[images]'"
        ) from problem
    with Image.open(path) as image:
        array = np.asarray(image.convert("RGB"))
    rows, columns = array.shape[0] // 32, array.shape[1] // 32
    return array.reshape(rows, 32, columns, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)


def read_fine_names(archive: Path) -> tuple[str, ...]:
    """Read CIFAR-100's 100 class names from the official archive."""
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            name = Path(member.name).name
            if name == "fine_label_names.txt":
                return tuple(_member(tar, member).decode().split())
    raise ReleaseError(
        f"Expected the list of class names in {archive}, found none. Fetch the file again."
    )


# Tables
# --------------------------------------------------------------------------------------------------

Rows = list[list[str]]
Matrix = NDArray[np.float64]
Categories = dict[str, tuple[str, ...]]

ADULT_COLUMNS = (
    *(
        "age",
        "workclass",
        "fnlwgt",
        "education",
        "education-num",
        "marital-status",
        "occupation",
        "relationship",
    ),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
)
ADULT_CATEGORICAL = frozenset(
    {
        "workclass",
        "education",
        "marital-status",
        "occupation",
        "relationship",
        "race",
        "sex",
        "native-country",
    }
)
ADULT_CLASSES = ("<=50K", ">50K")
CREDIT_COLUMNS = (
    *(
        "LIMIT_BAL",
        "SEX",
        "EDUCATION",
        "MARRIAGE",
        "AGE",
        "PAY_0",
        "PAY_2",
        "PAY_3",
        "PAY_4",
        "PAY_5",
        "PAY_6",
    ),
    *(f"BILL_AMT{month}" for month in range(1, 7)),
    *(f"PAY_AMT{month}" for month in range(1, 7)),
)
CREDIT_CATEGORICAL = frozenset({"SEX", "EDUCATION", "MARRIAGE"})
HOUSING_COLUMNS = (
    *("longitude", "latitude", "housing_median_age", "total_rooms"),
    *("total_bedrooms", "population", "households", "median_income"),
)
RATING_COLUMNS = ("user", "movie", "gender", "age", "occupation")
RATING_CATEGORICAL = frozenset({"gender", "occupation"})


def _text(path: Path, encoding: str = "utf-8") -> str:
    data = path.read_bytes()
    if path.suffix == ".xz":
        data = lzma.decompress(data)
    elif path.suffix == ".gz":
        data = gzip.decompress(data)
    return data.decode(encoding)


def encode(
    rows: Rows, columns: Sequence[str], categorical: frozenset[str], missing: str = "?"
) -> tuple[Matrix, Categories]:
    """Encode text fields as a float matrix (n, d): a categorical value as its index in the sorted
    list of values, a missing one as NaN."""
    matrix = np.empty((len(rows), len(columns)))
    categories: Categories = {}
    for j, column in enumerate(columns):
        values = [row[j] for row in rows]
        if column in categorical:
            seen = sorted(set(values) - {missing}, key=_natural)
            code = {value: float(i) for i, value in enumerate(seen)} | {missing: np.nan}
            categories[column] = tuple(seen)
            matrix[:, j] = [code[value] for value in values]
        else:
            matrix[:, j] = [np.nan if value == missing else float(value) for value in values]
    return matrix, categories


def _natural(value: str) -> tuple[int, str]:
    return (int(value), "") if value.isdecimal() else (0, value)


def read_adult(paths: Sequence[Path]) -> tuple[Matrix, Labels, Matrix, Labels, Categories]:
    """Read the UCI files adult.data and adult.test, plain or xz, without the test file's comment
    line and full stops after labels."""
    train, test = (_adult_rows(path) for path in paths)
    matrix, categories = encode(
        [row[:-1] for row in train + test], ADULT_COLUMNS, ADULT_CATEGORICAL
    )
    labels = np.array([ADULT_CLASSES.index(row[-1]) for row in train + test], np.int64)
    return (
        matrix[: len(train)],
        labels[: len(train)],
        matrix[len(train) :],
        labels[len(train) :],
        categories,
    )


def _adult_rows(path: Path) -> Rows:
    rows = [line.strip().rstrip(".").split(", ") for line in _text(path).splitlines()]
    rows = [row for row in rows if len(row) == len(ADULT_COLUMNS) + 1]
    if not rows:
        raise ReleaseError(
            f"Expected lines of {len(ADULT_COLUMNS) + 1} fields in {path}, found none. Fetch the"
            " file again."
        )
    return rows


def read_credit(paths: Sequence[Path]) -> tuple[Matrix, Labels, Categories]:
    """Read the credit-card data from CSV: an id, the 23 columns (by name, or X1..X23 as UCI serves
    them), and the label last."""
    (path,) = paths
    header, *rows = csv.reader(io.StringIO(_text(path)))
    if len(header) != len(CREDIT_COLUMNS) + 2 or not rows:
        raise ReleaseError(
            f"Expected {len(CREDIT_COLUMNS) + 2} columns in {path}, got {len(header)}. Fetch the"
            " file again."
        )
    matrix, categories = encode([row[1:-1] for row in rows], CREDIT_COLUMNS, CREDIT_CATEGORICAL)
    return matrix, np.array([int(row[-1]) for row in rows], np.int64), categories


def read_housing_csv(paths: Sequence[Path]) -> tuple[Matrix, Matrix, Categories]:
    """Read California housing from CSV with a header: the eight columns, the house value, and more
    that is left out."""
    (path,) = paths
    header, *rows = csv.reader(io.StringIO(_text(path)))
    wanted = (*HOUSING_COLUMNS, "median_house_value")
    if tuple(header[: len(wanted)]) != wanted or not rows:
        raise ReleaseError(
            f"Expected the columns {', '.join(wanted)} in {path}, got others. Fetch the file again."
        )
    matrix, _ = encode([row[: len(wanted)] for row in rows], wanted, frozenset(), missing="")
    return matrix[:, :-1], matrix[:, -1], {}


def read_housing_tgz(paths: Sequence[Path]) -> tuple[Matrix, Matrix, Categories]:
    """Read California housing as StatLib served it: cal_housing.tgz with lines of nine numbers, the
    house value last."""
    (path,) = paths
    with tarfile.open(path) as tar:
        found = next(
            (member for member in tar.getmembers() if Path(member.name).name == "cal_housing.data"),
            None,
        )
        if found is None:
            raise ReleaseError(
                f"Expected cal_housing.data in {path}, found none. Fetch the file again."
            )
        rows = [line.split(",") for line in _member(tar, found).decode("ascii").split()]
    matrix = np.array(rows, np.float64)
    return matrix[:, :-1], matrix[:, -1], {}


def read_ratings_npz(paths: Sequence[Path]) -> tuple[Matrix, Labels, Categories]:
    """Read MovieLens-1M from arrays of users, movies and ratings, with the official users.dat,
    gzipped."""
    ratings, users = paths
    with np.load(ratings, allow_pickle=False) as archive:
        triples = np.stack([archive["user"], archive["movie"], archive["rating"]], axis=1).astype(
            np.int64
        )
    return _ratings(triples, _text(users, "latin-1").splitlines())


def read_ratings_zip(paths: Sequence[Path]) -> tuple[Matrix, Labels, Categories]:
    """Read MovieLens-1M as GroupLens serves it: ml-1m.zip with ratings.dat and users.dat, fields
    split by '::'."""
    (path,) = paths
    with zipfile.ZipFile(path) as archive:
        members = {Path(name).name: name for name in archive.namelist()}
        try:
            lines = {
                name: archive.read(members[name]).decode("latin-1")
                for name in ("ratings.dat", "users.dat")
            }
        except KeyError as problem:
            raise ReleaseError(
                f"Expected {problem} in {path}, found none. Fetch the file again."
            ) from problem
    triples = np.array(
        [line.split("::")[:3] for line in lines["ratings.dat"].splitlines()], dtype=np.int64
    )
    return _ratings(triples, lines["users.dat"].splitlines())


def _ratings(
    triples: NDArray[np.int64], user_lines: Iterable[str]
) -> tuple[Matrix, Labels, Categories]:
    rows = [line.split("::")[:4] for line in user_lines]
    people, categories = encode(rows, ("user", "gender", "age", "occupation"), RATING_CATEGORICAL)
    of_user = np.full((int(people[:, 0].max()) + 1, 3), np.nan)
    of_user[people[:, 0].astype(np.int64)] = people[:, 1:]
    return np.column_stack([triples[:, :2], of_user[triples[:, 0]]]), triples[:, 2] - 1, categories
