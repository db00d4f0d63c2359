# SPDX-License-Identifier: Apache-2.0
"""Find a data set's files: in the folder LABELDP_DATA, then in the cache, then at their official address; every file is checked."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from labeldp.errors import ReleaseError

VARIABLE = "LABELDP_DATA"


@dataclass(frozen=True)
class File:
    """A file: its name, its valid SHA-256 digests (several if it was repacked, none if unknown), and its address."""

    name: str
    sha256: tuple[str, ...] = ()
    url: str | None = None


@dataclass(frozen=True)
class Form:
    """One form in which a data set is distributed; all its files are needed. The best form comes first."""

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
    """Find the first form whose files are all here, and check each; None if there is none."""
    for form in forms:
        for root in roots():
            paths = [root / folder / file.name for file in form.files]
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
        raise ReleaseError(f"Expected SHA-256 {expected} for {path}, got {found}. Delete the file and fetch it again.")


def download(name: str, folder: str, forms: tuple[Form, ...]) -> tuple[Form, list[Path]]:
    """Download the first form that has addresses into the cache, and check it; without a network, say which files to put where."""
    form = next(form for form in forms if form.downloadable)
    try:
        return form, [_fetch(file, cache_folder() / folder) for file in form.files]
    except (OSError, ValueError) as problem:  # no network, no such page, wrong checksum, no room on the disk
        raise ReleaseError(missing_message(name, folder, forms, problem)) from None


def _fetch(file: File, folder: Path) -> Path:
    import pooch

    pooch.get_logger().setLevel("WARNING")
    bar = DownloadBar(file.name)
    downloader = pooch.HTTPDownloader(progressbar=bar, timeout=30)
    try:
        return Path(pooch.retrieve(str(file.url), f"sha256:{file.sha256[0]}", fname=file.name, path=folder, downloader=downloader))
    finally:
        bar.close()


class DownloadBar:
    """A progress bar on standard error for one file, with the interface that pooch expects: `total`, update, reset and close.

    Parameters
    ----------
    name : str
        What to call the file.
    """

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
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
        """Go back to zero, as pooch does before it fills the bar at the end."""
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
        f"Expected the files of {name} in {searched}, found none, and they could not be downloaded ({type(problem).__name__}: {reason}).",
        f"Put {first} into a folder {folder}/ and set {VARIABLE} to the folder that holds it.",
        *(f"Instead of these, {other} will do." for other in others),
        "They come from:",
        *(f"  {address}" for address in addresses),
    ]
    return "\n".join(lines)
