# SPDX-License-Identifier: Apache-2.0
"""Log the figures of each epoch, which come from noisy labels alone: functions of an Epoch for
`train(..., progress=)`.

In distributed training only the first process writes.
"""

import csv
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from labeldp import _validate
from labeldp.deep._loop import Epoch, Progress, is_first
from labeldp.errors import InvalidInput, MissingExtra

_COLUMNS = ("number", "loss", "held_out")
_WIDTH = 24  # cells of the bar


class CsvLog:
    """Logs epochs to a CSV file, one line per epoch, written at once: number, loss, held_out.

    Parameters
    ----------
    path : str or path
        An existing log is continued.

    Raises
    ------
    InvalidInput
        If the path is a folder, or the file exists and is no log.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise InvalidInput(
                f"Expected the path of a file to write, got the folder {self.path}. Add a name:"
                f" {self.path / 'log.csv'}."
            )
        self._head()  # now, and not after labels were charged and drawn

    def __call__(self, epoch: Epoch) -> None:
        """Write one line."""
        if not is_first():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        head = self._head()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, _COLUMNS, extrasaction="ignore")
            if not head:
                writer.writeheader()
            writer.writerow(asdict(epoch))

    def _head(self) -> str:
        head = ""
        if self.path.exists():
            with self.path.open(encoding="utf-8") as file:
                head = file.readline().strip()
        if head and head != ",".join(_COLUMNS):
            raise InvalidInput(
                f"Expected a log of epochs, got {self.path} with other columns. Give the log a path"
                " of its own."
            )
        return head


class TensorBoardLog:
    """Logs epochs for TensorBoard: loss and held-out score as scalars, one step per epoch; a next
    training continues the steps.

    Parameters
    ----------
    folder : str or path

    Raises
    ------
    MissingExtra
        If tensorboard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            maker = import_module("torch.utils.tensorboard").SummaryWriter
        except ModuleNotFoundError as error:
            raise MissingExtra(
                f"Expected {error.name}, which is not installed. pip install 'labeldp[tensorboard]'"
            ) from None
        self._folder, self._writer = str(folder), maker(str(folder)) if is_first() else None
        self._steps = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy a log, as `clone` does, and pickle it without its writer, which has threads: the
        copy makes its own."""
        return type(self), (self._folder,), {"_steps": self._steps}

    def __call__(self, epoch: Epoch) -> None:
        """Write the figures."""
        self._steps += 1
        if self._writer is None:
            return
        for name in _COLUMNS[1:]:
            value = getattr(epoch, name)
            if value is not None:
                self._writer.add_scalar(f"noisy/{name}", value, self._steps)
        self._writer.flush()


def progress_bar(console: Any = None) -> Progress:
    """Make a progress bar of the epochs: on a terminal in one line, elsewhere one line per epoch.

    Parameters
    ----------
    console : rich.console.Console, optional
        By default one on standard error.

    Returns
    -------
    function of an Epoch

    Raises
    ------
    MissingExtra
        If rich is not installed.
    """
    bar = _Bar(console)
    bar.find()
    return bar


@dataclass(frozen=True)
class _Bar:
    console: Any  # None: a console is made at each call, so that the bar can be pickled

    def find(self) -> Any:
        """Return the console of the bar."""
        try:
            return self.console or import_module("rich.console").Console(stderr=True)
        except ModuleNotFoundError:
            raise MissingExtra("Expected rich, which is not installed. pip install rich") from None

    def __call__(self, epoch: Epoch) -> None:
        if is_first():
            console = self.find()
            last = not console.is_terminal or epoch.number >= epoch.epochs
            console.print(
                _line(epoch),
                end="\n" if last else "\r",
                markup=False,
                highlight=False,
                no_wrap=True,
                overflow="crop",
            )


def combine(*progress: Callable[[Epoch], object]) -> Progress:
    """Combine functions of an Epoch into one that calls them from left to right.

    Parameters
    ----------
    *progress : functions of an Epoch

    Returns
    -------
    function of an Epoch

    Examples
    --------
    >>> from labeldp.deep import Epoch
    >>> combine(lambda e: print("epoch", e.number), lambda e: print("loss", e.loss))(
    ...     Epoch(1, 0.5, None)
    ... )
    epoch 1
    loss 0.5
    """
    for each in progress:
        _validate.function(progress=each, takes="an Epoch")
    return _Combined(progress)


@dataclass(frozen=True)
class _Combined:
    progress: tuple[Callable[[Epoch], object], ...]

    def __call__(self, epoch: Epoch) -> None:
        for each in self.progress:
            each(epoch)


def _line(epoch: Epoch) -> str:
    done = round(_WIDTH * epoch.number / epoch.epochs) if epoch.epochs else 0
    bar = (
        f"{'━' * done}{' ' * (_WIDTH - done)}  epoch {epoch.number}/{epoch.epochs}"
        if epoch.epochs
        else f"epoch {epoch.number}"
    )
    score = "" if epoch.held_out is None else f"  held-out {epoch.held_out:.4f}"
    return f"{bar}  loss {epoch.loss:.4f}{score}"
