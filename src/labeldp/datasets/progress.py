# SPDX-License-Identifier: Apache-2.0
"""A progress bar for downloads, in the form that pooch asks for."""

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn


class DownloadBar:
    """Shows one file's download on standard error; pooch sets `total` and calls update, reset and close.

    Parameters
    ----------
    name : str
        What to call the file.
    """

    def __init__(self, name: str) -> None:
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
        """Another n bytes are here."""
        self._progress.advance(self._task, n)

    def reset(self) -> None:
        """Back to zero: pooch does so at the end, before it fills the bar."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()
