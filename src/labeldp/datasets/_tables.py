# SPDX-License-Identifier: Apache-2.0
"""Readers of the tabular formats: Adult, credit default and MovieLens-1M."""

import csv
import gzip
import io
import lzma
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import ReleaseError

Rows = list[list[str]]
Matrix = NDArray[np.float64]
Labels = NDArray[np.int64]
Categories = dict[str, tuple[str, ...]]

ADULT_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
)
ADULT_CATEGORICAL = frozenset({"workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "native-country"})
ADULT_CLASSES = ("<=50K", ">50K")
CREDIT_COLUMNS = (
    *("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", "PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"),
    *(f"BILL_AMT{month}" for month in range(1, 7)),
    *(f"PAY_AMT{month}" for month in range(1, 7)),
)
CREDIT_CATEGORICAL = frozenset({"SEX", "EDUCATION", "MARRIAGE"})
RATING_COLUMNS = ("user", "movie", "gender", "age", "occupation")
RATING_CATEGORICAL = frozenset({"gender", "occupation"})


def _text(path: Path, encoding: str = "utf-8") -> str:
    data = path.read_bytes()
    if path.suffix == ".xz":
        data = lzma.decompress(data)
    elif path.suffix == ".gz":
        data = gzip.decompress(data)
    return data.decode(encoding)


def encode(rows: Rows, columns: Sequence[str], categorical: frozenset[str], missing: str = "?") -> tuple[Matrix, Categories]:
    """Encode text fields as a float matrix (n, d): a categorical value as its index in the sorted list of values, a missing one as NaN."""
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
    """Read the UCI files adult.data and adult.test, plain or xz, without the test file's comment line and full stops after labels."""
    train, test = (_adult_rows(path) for path in paths)
    matrix, categories = encode([row[:-1] for row in train + test], ADULT_COLUMNS, ADULT_CATEGORICAL)
    labels = np.array([ADULT_CLASSES.index(row[-1]) for row in train + test], np.int64)
    return matrix[: len(train)], labels[: len(train)], matrix[len(train) :], labels[len(train) :], categories


def _adult_rows(path: Path) -> Rows:
    rows = [line.strip().rstrip(".").split(", ") for line in _text(path).splitlines()]
    rows = [row for row in rows if len(row) == len(ADULT_COLUMNS) + 1]
    if not rows:
        raise ReleaseError(f"Expected lines of {len(ADULT_COLUMNS) + 1} fields in {path}, found none. Fetch the file again.")
    return rows


def read_credit(paths: Sequence[Path]) -> tuple[Matrix, Labels, Categories]:
    """Read the credit-card data from CSV: an id, the 23 columns (by name, or X1..X23 as UCI serves them), and the label last."""
    (path,) = paths
    header, *rows = csv.reader(io.StringIO(_text(path)))
    if len(header) != len(CREDIT_COLUMNS) + 2 or not rows:
        raise ReleaseError(f"Expected {len(CREDIT_COLUMNS) + 2} columns in {path}, got {len(header)}. Fetch the file again.")
    matrix, categories = encode([row[1:-1] for row in rows], CREDIT_COLUMNS, CREDIT_CATEGORICAL)
    return matrix, np.array([int(row[-1]) for row in rows], np.int64), categories


def read_ratings_npz(paths: Sequence[Path]) -> tuple[Matrix, Labels, Categories]:
    """Read MovieLens-1M from arrays of users, movies and ratings, with the official users.dat, gzipped."""
    ratings, users = paths
    with np.load(ratings, allow_pickle=False) as archive:
        triples = np.stack([archive["user"], archive["movie"], archive["rating"]], axis=1).astype(np.int64)
    return _ratings(triples, _text(users, "latin-1").splitlines())


def read_ratings_zip(paths: Sequence[Path]) -> tuple[Matrix, Labels, Categories]:
    """Read MovieLens-1M as GroupLens serves it: ml-1m.zip with ratings.dat and users.dat, fields split by '::'."""
    (path,) = paths
    with zipfile.ZipFile(path) as archive:
        members = {Path(name).name: name for name in archive.namelist()}
        try:
            lines = {name: archive.read(members[name]).decode("latin-1") for name in ("ratings.dat", "users.dat")}
        except KeyError as problem:
            raise ReleaseError(f"Expected {problem} in {path}, found none. Fetch the file again.") from problem
    triples = np.array([line.split("::")[:3] for line in lines["ratings.dat"].splitlines()], dtype=np.int64)
    return _ratings(triples, lines["users.dat"].splitlines())


def _ratings(triples: NDArray[np.int64], user_lines: Iterable[str]) -> tuple[Matrix, Labels, Categories]:
    rows = [line.split("::")[:4] for line in user_lines]
    people, categories = encode(rows, ("user", "gender", "age", "occupation"), RATING_CATEGORICAL)
    of_user = np.full((int(people[:, 0].max()) + 1, 3), np.nan)
    of_user[people[:, 0].astype(np.int64)] = people[:, 1:]
    return np.column_stack([triples[:, :2], of_user[triples[:, 0]]]), triples[:, 2] - 1, categories
