# SPDX-License-Identifier: Apache-2.0
"""Data sets: each one that is on this machine is read whole; official formats are read from tiny
files; what is missing is explained."""

import gzip
import io
import lzma
import os
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from benchmarks import data as datasets
from benchmarks.data import _catalogue as catalogue
from benchmarks.data import _readers as readers

from labeldp.errors import LabelDPWarning, MissingExtra, ReleaseError

# Data may lie in LABELDP_DATA or in a folder shared/data beside the checkout.
GIVEN = os.environ.get("LABELDP_DATA") or str(
    Path(__file__).resolve().parents[2] / "shared" / "data"
)

SHAPES = {  # train and test features, class counts of both (of numbers none)
    "adult": ((32561, 14), (16281, 14), [24720, 7841], [12435, 3846]),
    "breast_cancer": ((569, 30), (0, 30), [212, 357], [0, 0]),
    "california_housing": ((20640, 8), (0, 8), [], []),
    "cifar10": ((50000, 32, 32, 3), (10000, 32, 32, 3), [5000] * 10, [1000] * 10),
    "cifar100": ((50000, 32, 32, 3), (10000, 32, 32, 3), [500] * 100, [100] * 100),
    "credit_default": ((30000, 23), (0, 23), [23364, 6636], [0, 0]),
    "digits": ((1797, 64), (0, 64), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180], [0] * 10),
    "fashion_mnist": ((60000, 28, 28), (10000, 28, 28), [6000] * 10, [1000] * 10),
    "kmnist": ((60000, 28, 28), (10000, 28, 28), [6000] * 10, [1000] * 10),
    "mnist": (
        (60000, 28, 28),
        (10000, 28, 28),
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ),
    "movielens_1m": ((1000209, 5), (0, 5), [56174, 107557, 261197, 348971, 226310], [0] * 5),
}


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data anywhere, and a network that refuses."""
    monkeypatch.setattr(catalogue, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.delenv("LABELDP_DATA", raising=False)
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_data_set_on_this_machine_is_read_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABELDP_DATA", GIVEN)
    paths = datasets.where(name)
    if paths is None:
        pytest.skip(f"{name} is neither in LABELDP_DATA nor in {GIVEN} nor in the cache")
    train, test, train_counts, test_counts = SHAPES[name]
    if name == "kmnist" and len(paths) == 2:
        train, train_counts = (0, 28, 28), [0] * 10
        with pytest.warns(LabelDPWarning, match="Only the 10,000 test images"):
            data = datasets.load(name)
    else:
        data = datasets.load(name)
    assert (data.X_train.shape, data.X_test.shape) == (train, test)
    if data.classes:
        assert np.bincount(data.y_train, minlength=data.n_classes).tolist() == train_counts
        assert np.bincount(data.y_test, minlength=data.n_classes).tolist() == test_counts
    assert len(set(data.classes)) == data.n_classes == len(train_counts)
    assert data.X_train.dtype == (np.float64 if data.columns else np.uint8)
    assert len(data.columns) in (0, data.X_train.shape[1])
    assert data.all_rows()[0].shape[0] == train[0] + test[0]


def test_every_name_is_tested_and_described() -> None:
    assert datasets.names() == sorted(SHAPES)
    for entry in catalogue.ENTRIES.values():
        assert entry.description
        assert sum(form.downloadable for form in entry.forms) >= 1
        for file in next(form for form in entry.forms if form.downloadable).files:
            assert len(file.sha256[0]) == 64, f"a download must be checked: {file.name}"


def test_adult_as_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELDP_DATA", GIVEN)
    if datasets.where("adult") is None:
        pytest.skip("adult is not on this machine")
    table = datasets.load("adult").to_table("train", label="income")
    first = table.slice(0, 1).to_pylist()[0]
    assert (first["age"], first["workclass"], first["native-country"], first["income"]) == (
        39,
        "State-gov",
        "United-States",
        "<=50K",
    )
    assert table["workclass"].null_count == 1836  # the published number of "?"
    assert str(table.schema.field("age").type) == "int64"


def test_numbers_of_california_housing_are_the_published_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LABELDP_DATA", GIVEN)
    if datasets.where("california_housing") is None:
        pytest.skip("california_housing is not on this machine")
    data = datasets.load("california_housing")
    assert data.y_train.dtype == np.float64
    assert (data.y_train.min(), data.y_train.max()) == (14999, 500001)
    assert round(data.y_train.mean(), 1) == 206855.8  # scikit-learn's copy: 2.068558
    assert data.X_train[0].tolist() == [-122.23, 37.88, 41, 880, 129, 322, 126, 8.3252]
    table = data.to_table(label="value")
    assert table["total_bedrooms"].null_count in (0, 207)
    assert table["value"][:2].to_pylist() == [452600, 358500]


def test_california_housing_in_both_forms(tmp_path: Path) -> None:
    numbers = (
        "-122.230000,37.880000,41.000000,880.000000,129.000000,322.000000,126.000000,8.325200,"
        "452600.000000"
    )
    archive = pack(
        tmp_path / "cal_housing.tgz",
        {"CaliforniaHousing/cal_housing.data": f"{numbers}\n{numbers}\n".encode()},
    )
    header = ",".join([*readers.HOUSING_COLUMNS, "median_house_value", "ocean_proximity"])
    lines = [
        header,
        "-122.23,37.88,41.0,880.0,129.0,322.0,126.0,8.3252,452600.0,NEAR BAY",
        "-122,38,2,1,,3,4,5,6,INLAND",
    ]
    (tmp_path / "housing.csv").write_text("\n".join(lines) + "\n")
    X, y, _ = readers.read_housing_tgz([archive])
    other, values, _ = readers.read_housing_csv([tmp_path / "housing.csv"])
    assert np.array_equal(X[0], other[0])
    assert (y.tolist(), values.tolist()) == ([452600, 452600], [452600, 6])
    assert np.isnan(other[1]).tolist() == [False] * 4 + [True] + [False] * 3
    (tmp_path / "housing.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ReleaseError, match="Expected the columns longitude"):
        readers.read_housing_csv([tmp_path / "housing.csv"])
    with pytest.raises(ReleaseError, match=r"Expected cal_housing\.data"):
        readers.read_housing_tgz([pack(tmp_path / "other.tgz", {"x/readme": b""})])


# Without data, without a network.


def test_without_a_network_the_message_says_which_files_go_where(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert datasets.where("cifar10") is None
    monkeypatch.setenv("LABELDP_DATA", str(empty_cache / "mine"))
    with pytest.raises(ReleaseError) as caught:
        datasets.load("cifar10")
    text = str(caught.value)
    assert str(empty_cache / "mine" / "cifar10") in text
    assert "Put cifar-10-binary.tar.gz into a folder cifar10/ and set LABELDP_DATA" in text
    assert "Instead of these, cifar10-train-1.webp, " in text
    assert "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz" in text
    assert "ProxyError" in text


def test_a_damaged_file_is_refused(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELDP_DATA", str(empty_cache))
    folder = empty_cache / "credit-default"
    folder.mkdir()
    (folder / "data.csv").write_text("ID,X1,Y\n1,2,3\n")
    with pytest.raises(
        ReleaseError, match=r"Expected SHA-256 45bcf4df.*Delete the file and fetch it again"
    ):
        datasets.load("credit_default")


# Official formats, from tiny files.


def write_idx(path: Path, array: np.ndarray) -> Path:
    data = (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.astype(np.uint8).tobytes()
    )
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx(tmp_path: Path, suffix: str) -> None:
    pictures = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    labels = np.array([7, 1])
    paths = [
        write_idx(tmp_path / f"{i}{suffix}", array)
        for i, array in enumerate([pictures, labels, pictures[:1], labels[:1]])
    ]
    X, y, X_test, y_test = readers.read_idx_set(paths)
    assert np.array_equal(X, pictures)
    assert y.tolist() == [7, 1]
    assert (X_test.shape, y_test.tolist()) == ((1, 3, 4), [7])


def pack(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def planes(n: int, start: int = 0) -> np.ndarray:
    return ((np.arange(n * 3072).reshape(n, 3072) + start) % 251).astype(np.uint8)


def as_pixels(flat: np.ndarray) -> np.ndarray:
    return np.stack([row.reshape(3, 32, 32).transpose(1, 2, 0) for row in flat])


def test_a_cifar10_archive(tmp_path: Path) -> None:
    batches = {f"data_batch_{i}": (planes(2, i), [i, 9 - i]) for i in (2, 1)} | {
        "test_batch": (planes(1, 9), [4])
    }
    binary = {
        f"cifar-10-batches-bin/{name}.bin": b"".join(
            bytes([y]) + x.tobytes() for x, y in zip(X, labels, strict=True)
        )
        for name, (X, labels) in batches.items()
    }
    junk = {
        "cifar-10-batches-bin/readme.html": b"<html>",
        "cifar-10-batches-bin/batches.meta.txt": b"airplane\n",
    }
    X, y, X_test, y_test = readers.read_cifar(
        pack(tmp_path / "b.tar.gz", {**binary, **junk}), label_bytes=1
    )
    assert y.tolist() == [1, 8, 2, 7]  # batch 1 first, whatever the archive's order
    assert np.array_equal(X, np.concatenate([as_pixels(planes(2, 1)), as_pixels(planes(2, 2))]))
    assert np.array_equal(X_test, as_pixels(planes(1, 9)))
    assert y_test.tolist() == [4]


def test_a_cifar100_archive(tmp_path: Path) -> None:
    parts = {"train": (planes(2), [3, 99], [0, 1]), "test": (planes(1, 5), [42], [2])}
    binary = {
        f"cifar-100-binary/{name}.bin": b"".join(
            bytes([c, f]) + x.tobytes() for x, f, c in zip(X, fine, coarse, strict=True)
        )
        for name, (X, fine, coarse) in parts.items()
    }
    binary["cifar-100-binary/fine_label_names.txt"] = b"apple\nbear\n"
    archive = pack(tmp_path / "b.tar.gz", binary)
    X, y, X_test, y_test = readers.read_cifar(archive, label_bytes=2)
    assert (y.tolist(), y_test.tolist()) == ([3, 99], [42])
    assert np.array_equal(X, as_pixels(planes(2)))
    assert np.array_equal(X_test, as_pixels(planes(1, 5)))
    assert readers.read_fine_names(archive) == ("apple", "bear")


def test_sheets_without_pillow_name_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"pip install 'labeldp\[images\]'"):
        readers.read_cifar_sheets([tmp_path / "sheet.webp", tmp_path / "labels.npz"])


ADULT = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male,"
    " 2174, 0, 40, United-States, <=50K\n52, ?, 209642, HS-grad, 9, Married-civ-spouse, ?, Husband,"
    " White, Male, 0, 0, 45, ?, >50K\n\n"
)
ADULT_TEST = (
    "|1x3 Cross validator\n25, Private, 226802, 11th, 7, Never-married, Machine-op-inspct,"
    " Own-child, Black, Male, 0, 0, 40, United-States, <=50K.\n\n"
)


@pytest.mark.parametrize("suffix", ["", ".xz"])
def test_adult(tmp_path: Path, suffix: str) -> None:
    paths = [tmp_path / f"adult.data{suffix}", tmp_path / f"adult.test{suffix}"]
    for path, text in zip(paths, (ADULT, ADULT_TEST), strict=True):
        path.write_bytes(lzma.compress(text.encode()) if suffix else text.encode())
    X, y, X_test, y_test, categories = readers.read_adult(paths)
    assert (y.tolist(), y_test.tolist()) == ([0, 1], [0])
    assert X[:, 0].tolist() == [39, 52]
    assert categories["workclass"] == ("Private", "State-gov")
    assert X_test[0, 1] == 0
    assert np.isnan(X[1, [1, 6, 13]]).all()
    assert not np.isnan(X[0]).any()


@pytest.mark.parametrize(
    "header",
    [("ID", *readers.CREDIT_COLUMNS, "class"), ("ID", *(f"X{i}" for i in range(1, 24)), "Y")],
)
def test_credit(tmp_path: Path, header: tuple[str, ...]) -> None:
    row = [1, 20000, 2, 10, 1, 24, *range(2, -4, -1), *range(12), 1]
    other = [2, 120000, 1, 2, 1, 26, *range(2, -4, -1), *range(12), 0]
    (tmp_path / "data.csv").write_text(
        "\n".join(",".join(map(str, line)) for line in (header, row, other)) + "\n"
    )
    X, y, categories = readers.read_credit([tmp_path / "data.csv"])
    assert y.tolist() == [1, 0]
    assert X[:, 0].tolist() == [20000, 120000]
    assert categories["EDUCATION"] == ("2", "10")  # numbers in the order of numbers
    assert X[:, 2].tolist() == [1, 0]
    assert X[0, -1] == 11


USERS = "1::F::1::10::48067\n2::M::56::16::70072\n"


def test_movielens(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "ml-1m.zip", "w") as archive:
        archive.writestr("ml-1m/ratings.dat", "1::1193::5::978300760\n2::661::3::978302109\n")
        archive.writestr("ml-1m/users.dat", USERS)
    with gzip.open(tmp_path / "users.dat.gz", "wt", encoding="latin-1") as stream:
        stream.write(USERS)
    np.savez(
        tmp_path / "ratings.npz",
        user=np.array([1, 2], np.uint16),
        movie=np.array([1193, 661], np.uint16),
        rating=np.array([5, 3], np.uint8),
    )
    official = readers.read_ratings_zip([tmp_path / "ml-1m.zip"])
    packed = readers.read_ratings_npz([tmp_path / "ratings.npz", tmp_path / "users.dat.gz"])
    for X, y, categories in (official, packed):
        assert y.tolist() == [4, 2]
        assert categories == {"gender": ("F", "M"), "occupation": ("10", "16")}
        assert X.tolist() == [[1, 1193, 0, 1, 0], [2, 661, 1, 56, 1]]
