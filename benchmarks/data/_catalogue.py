# SPDX-License-Identifier: Apache-2.0
"""Catalogue of the data sets; find their files in the folder LABELDP_DATA, then in the cache, or
download them.

Every file is checked against its SHA-256.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from labeldp.errors import ReleaseError

VARIABLE = "LABELDP_DATA"


@dataclass(frozen=True)
class File:
    """A file: its name, its valid SHA-256 digests (several if it was repacked, none if unknown),
    and its official address."""

    name: str
    sha256: tuple[str, ...] = ()
    url: str | None = None


@dataclass(frozen=True)
class Form:
    """One form in which a data set is distributed, as a set of files; the preferred form comes
    first."""

    files: tuple[File, ...]
    reader: str

    @property
    def downloadable(self) -> bool:
        """Whether every file has an official address."""
        return all(file.url for file in self.files)


def cache_folder() -> Path:
    """Return the user's folder for downloads."""
    return Path(platformdirs.user_cache_dir("labeldp", appauthor=False)) / "data"


def roots() -> list[Path]:
    """Return the folders to search, in order."""
    given = os.environ.get(VARIABLE)
    return [*([Path(given).expanduser()] if given else []), cache_folder()]


def find(folder: str, forms: tuple[Form, ...]) -> tuple[Form, list[Path]] | None:
    """Find the first form whose files are all on this machine, and check each; None if there is
    none."""
    for form in forms:
        for root in roots():
            paths = [root / folder / file.name for file in form.files]
            # Forms are tried in all folders before the next form, since the first one is the
            # preferred one.
            if all(path.is_file() for path in paths):
                for file, path in zip(form.files, paths, strict=True):
                    _check(file, path)
                return form, paths
    return None


def _check(file: File, path: Path) -> None:
    if not file.sha256:
        return
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found not in file.sha256:
        expected = " or ".join(file.sha256)
        raise ReleaseError(
            f"Expected SHA-256 {expected} for {path}, got {found}. Delete the file and fetch it"
            " again."
        )


def download(name: str, folder: str, forms: tuple[Form, ...]) -> tuple[Form, list[Path]]:
    """Download the first form that has addresses into the cache, and check it; if that fails, say
    which files to put where."""
    form = next(form for form in forms if form.downloadable)
    try:
        return form, [_fetch(file, cache_folder() / folder) for file in form.files]
    # no network, no such page, wrong checksum, no room on the disk
    except (OSError, ValueError) as problem:
        raise ReleaseError(missing_message(name, folder, forms, problem)) from None


def _fetch(file: File, folder: Path) -> Path:
    import pooch

    # pooch logs to standard error by itself, in between the progress bar.
    pooch.get_logger().setLevel("WARNING")
    bar = DownloadBar(file.name)
    downloader = pooch.HTTPDownloader(progressbar=bar, timeout=30)
    try:
        return Path(
            pooch.retrieve(
                str(file.url),
                f"sha256:{file.sha256[0]}",
                fname=file.name,
                path=folder,
                downloader=downloader,
            )
        )
    finally:
        bar.close()


class DownloadBar:
    """A progress bar on standard error for one file, with pooch's interface: `total`, update, reset
    and close.

    Parameters
    ----------
    name : str
        Name of the file.
    """

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(f"Downloading {name}", total=None)

    @property
    def total(self) -> float | None:
        """The size in bytes, once it is known."""
        return self._progress.tasks[0].total

    @total.setter
    def total(self, size: float) -> None:
        self._progress.update(self._task, total=size)
        self._progress.start()

    def update(self, n: int) -> None:
        """Add n bytes to the progress."""
        self._progress.advance(self._task, n)

    def reset(self) -> None:
        """Go back to zero: pooch does so before it fills the bar at the end."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


def missing_message(name: str, folder: str, forms: tuple[Form, ...], problem: Exception) -> str:
    """Say which files are missing, why they could not be downloaded, and where to put them."""
    first, *others = [", ".join(file.name for file in form.files) for form in forms]
    addresses = [file.url for form in forms if form.downloadable for file in form.files]
    searched = " and ".join(f"{root / folder}" for root in roots())
    reason = str(problem).split("\n", 1)[0][:200]
    lines = [
        (
            f"Expected the files of {name} in {searched}, found not all, and could not download"
            f" them ({type(problem).__name__}: {reason})."
        ),
        f"Put {first} into a folder {folder}/ and set {VARIABLE} to the folder that holds it.",
        *(f"Instead of these, {other} will do." for other in others),
        "They come from:",
        *(f"  {address}" for address in addresses),
    ]
    return "\n".join(lines)


@dataclass(frozen=True)
class Entry:
    """One data set that is distributed as files."""

    folder: str
    forms: tuple[Form, ...]
    description: str
    classes: tuple[str, ...] = ()


def _idx(base: str, *digests: tuple[str, ...]) -> Form:
    names = (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    )
    return Form(
        tuple(File(name, sha, f"{base}/{name}") for name, sha in zip(names, digests, strict=True)),
        "idx",
    )


_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"


_KMNIST_TEST = (
    File(
        "kmnist-test-imgs.npz",
        ("692d824896bec8f3c357ebf7a0fe904ed67ac632ce953d0b58f7fbef7bb27d87",),
    ),
    File(
        "kmnist-test-labels.npz",
        ("660f13a4705431ea2a6391c41ecbe384cd0d932c595a101ec4f3b8989e785046",),
    ),
)

_CIFAR10_SHEETS = (
    File(
        "cifar10-train-1.webp",
        ("0c540445580e2b4751a4fb5e79175f3eced765d47d186c46cf6aaa7a076c47d9",),
    ),
    File(
        "cifar10-train-2.webp",
        ("ecd97fbddf53a95c7a487a46490001fbae20af0d14e0978cf2a8c74001ef5eb5",),
    ),
    File(
        "cifar10-train-3.webp",
        ("577efcbfc9a4ea051e4f915841300a1c1943948d918318615797528bd1931ae3",),
    ),
    File(
        "cifar10-train-4.webp",
        ("a362cd3478100abaef253b26a1c6c0979ac43379b30b03c5c774900ed8f3025c",),
    ),
    File(
        "cifar10-train-5.webp",
        ("dca43ff04bd60b6081d36b131a960c0ab9d7a4c2f6be4dc305f4248586327eb4",),
    ),
    File(
        "cifar10-test.webp", ("ff9de491fc23a41297e1e58c42a552efb04f949758a185cc7541e5a51cf1c35f",)
    ),
    File(
        "cifar10-labels.npz", ("100457827cb30b2869dbdce3761c5279714820de9a8c6fa4d0dcc7cbc3037527",)
    ),
)
_CIFAR100_SHEETS = (
    File(
        "cifar100-train-1.webp",
        ("5a0cfdaf78c8908c829b812fb2711c488fe4a753c8f121e8c352de088e3dfa3f",),
    ),
    File(
        "cifar100-train-2.webp",
        ("4e45cc61fff08640f03e0eeb5525a2839a0c805c5483a1d6324baefc1742129e",),
    ),
    File(
        "cifar100-train-3.webp",
        ("c8c0195319e8b6074cb9ea5dc2fa33cc54b7fee226fdcfac735a85959b187951",),
    ),
    File(
        "cifar100-train-4.webp",
        ("c048dd49f0e1a0334294e2569f0d832136c57fe630772e1a1a08ac035170844a",),
    ),
    File(
        "cifar100-train-5.webp",
        ("2aaa9be74034da3fa3db0d629384a932decea143f841e39692c7906f8d3b39fe",),
    ),
    File(
        "cifar100-test.webp", ("e2e810cbb179ae55f8d233e97034164877d2ab15a41cfeb2632eb6c47734c352",)
    ),
    File(
        "cifar100-labels.npz", ("258b11dc049e87f7a5303cd468cdbc7b6b57e785c957ce2d5d3a4f58a3689da8",)
    ),
)

ENTRIES: dict[str, Entry] = {
    "fashion_mnist": Entry(
        "fashion-mnist",
        (
            _idx(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",),
                ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",),
                ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",),
                ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",),
            ),
        ),
        "Fashion-MNIST: 60,000 + 10,000 grey images 28 x 28 of clothes, 10 balanced classes. MIT"
        " licence, Zalando SE, 2017.",
        (
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
    ),
    "mnist": Entry(
        "mnist",
        (
            _idx(
                "https://storage.googleapis.com/cvdf-datasets/mnist",
                (
                    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                    # the same images, compressed again
                    "db8f937d487057fb14a9f0fbe97f0bc8d311ab41b750d41e1ff37c43b9e55e19",
                ),
                ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",),
                ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",),
                ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",),
            ),
        ),
        "MNIST: 60,000 + 10,000 grey images 28 x 28 of handwritten digits. LeCun, Cortes and"
        " Burges, 1998.",
        tuple("0123456789"),
    ),
    "kmnist": Entry(
        "kmnist",
        (
            _idx(
                "http://codh.rois.ac.jp/kmnist/dataset/kmnist",
                ("51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",),
                ("e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",),
                ("edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",),
                ("20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",),
            ),
            Form(
                (File("kmnist-train-imgs.npz"), File("kmnist-train-labels.npz"), *_KMNIST_TEST),
                "npz",
            ),
            Form(_KMNIST_TEST, "npz"),
        ),
        "KMNIST: 60,000 + 10,000 grey images 28 x 28 of cursive Japanese characters, 10 balanced"
        " classes. CC BY-SA 4.0, CODH.",
        ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    ),
    "cifar10": Entry(
        "cifar10",
        (
            Form(
                (
                    File(
                        "cifar-10-binary.tar.gz",
                        ("c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",),
                        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                    ),
                ),
                "cifar10-binary",
            ),
            Form(_CIFAR10_SHEETS, "cifar10-sheets"),
        ),
        "CIFAR-10: 50,000 + 10,000 colour images 32 x 32, 10 balanced classes. Krizhevsky, Learning"
        " Multiple Layers of Features, 2009.",
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    "cifar100": Entry(
        "cifar100",
        (
            Form(
                (
                    File(
                        "cifar-100-binary.tar.gz",
                        ("58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",),
                        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                    ),
                ),
                "cifar100-binary",
            ),
            Form(_CIFAR100_SHEETS, "cifar100-sheets"),
        ),
        "CIFAR-100: 50,000 + 10,000 colour images 32 x 32, 100 balanced classes (the fine labels)."
        " Krizhevsky, 2009.",
    ),
    "movielens_1m": Entry(
        "movielens-1m",
        (
            Form(
                (
                    File(
                        "ml-1m.zip",
                        ("a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",),
                        "https://files.grouplens.org/datasets/movielens/ml-1m.zip",
                    ),
                ),
                "ratings-zip",
            ),
            Form(
                (
                    File(
                        "ratings.npz",
                        ("86631252fb38636db1c9e83b01f65c656f520515f39fea1a6a0cebea085d2607",),
                    ),
                    File(
                        "users.dat.gz",
                        ("df63979475e3caa2ec931a8fb00be809a5a4b87d23130aed28bb70229e949024",),
                    ),
                ),
                "ratings-npz",
            ),
        ),
        "MovieLens-1M: 1,000,209 ratings 1..5 of 3,706 movies by 6,040 users, with each user's"
        " gender, age group and occupation. No official split: all rows are in the train part."
        " GroupLens: research use with acknowledgement, no redistribution, no commercial use.",
        ("1", "2", "3", "4", "5"),
    ),
    "adult": Entry(
        "adult",
        (
            Form(
                (
                    File(
                        "adult.data.xz",
                        ("ec549ae2b5a16d43ba82a7dfc67e97c1eb77be366dff66490cac7109582c2663",),
                    ),
                    File(
                        "adult.test.xz",
                        ("6744069ac8213fa2a4437cf8a240b768ec587abd0e1d16c02d49e7168b07e761",),
                    ),
                ),
                "adult",
            ),
            Form(
                (
                    File(
                        "adult.data",
                        ("5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",),
                        f"{_UCI}/adult/adult.data",
                    ),
                    File(
                        "adult.test",
                        ("a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",),
                        f"{_UCI}/adult/adult.test",
                    ),
                ),
                "adult",
            ),
        ),
        "Adult census income: 32,561 + 16,281 people, 14 columns; is the income above 50,000"
        " dollars? Becker and Kohavi, UCI, 1996.",
        ("<=50K", ">50K"),
    ),
    "credit_default": Entry(
        "credit-default",
        (
            Form(
                (
                    File(
                        "UCI_Credit_Card.csv.xz",
                        ("b75742e7a043bca65e70f3187c8a9e42c262757e1a794d06e6fb0a5dd7ee061a",),
                    ),
                ),
                "credit",
            ),
            Form(
                (
                    File(
                        "data.csv",
                        ("45bcf4df62ff2e237a74eb155cabfb4bbbc171219a0637daef44fdad07503dd0",),
                        "https://archive.ics.uci.edu/static/public/350/data.csv",
                    ),
                ),
                "credit",
            ),
        ),
        "Credit-card default, Taiwan 2005: 30,000 clients, 23 columns; will the next payment be"
        " missed? No official split: all rows are in the train part. Yeh and Lien, 2009.",
        ("0", "1"),
    ),
    "california_housing": Entry(
        "california-housing",
        (
            Form(
                (
                    File(
                        "cal_housing.tgz",
                        ("aaa5c9a6afe2225cc2aed2723682ae403280c4a3695a2ddda4ffb5d8215ea681",),
                        "https://ndownloader.figshare.com/files/5976036",
                    ),
                ),
                "housing-tgz",
            ),
            Form(
                (
                    File(
                        "california-housing.csv.xz",
                        ("ed9937e71c789b3b4ecf9c8bc6e7225021a55e32b8a68ae319b3ad125bc67dd8",),
                    ),
                ),
                "housing-csv",
            ),
        ),
        "California housing: 20,640 census blocks of 1990, 8 columns; the label is a number, the"
        " median house value in dollars (14,999 to 500,001, capped). The CSV form lacks 207 numbers"
        " of bedrooms. No official split: all rows are in the train part. Pace and Barry, Sparse"
        " Spatial Autoregressions, 1997.",
    ),
}
