# SPDX-License-Identifier: Apache-2.0
"""Silences this process while models are trained on raw labels: what a training says, such as its
loss, can tell labels."""

import contextlib
import ctypes
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from types import TracebackType

__all__ = ["SILENCE"]

_OUTPUTS = (1, 2)  # what C calls stdout and stderr, wherever Python's own point


class _Silence:
    """Send nowhere what this process prints, logs and warns of in a `with` block, code in C
    included.

    Standard output and error, filters of warnings and the level of logging belong to the whole
    process: other threads are silent meanwhile, too. Blocks of several threads may overlap in any
    order; the last one to end puts everything back. A process that is started or forked in a block
    stays silent. What a library writes elsewhere, into a file or to the system's log, is not
    caught.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._blocks:
                self._undo.enter_context(_silent())
            self._blocks += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                self._undo.close()


SILENCE = _Silence()
"""The one silence of this process: `with SILENCE: ...`."""


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        warnings.catch_warnings(),
        contextlib.ExitStack() as stack,
    ):
        warnings.simplefilter("ignore")
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        _flush()  # what was said before is heard
        for output in _OUTPUTS:
            stack.callback(_restore, output, _copy(output))
            os.dup2(nowhere.fileno(), output)
        # Before the outputs are restored: text that waits in a buffer would come out after the
        # block.
        stack.callback(_flush)
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            yield


def _copy(output: int) -> int | None:
    """Duplicate a file descriptor; None if it is closed, as in a service without a terminal."""
    try:
        return os.dup(output)
    except OSError:
        return None


def _restore(output: int, copy: int | None) -> None:
    if copy is None:
        os.close(output)
        return
    os.dup2(copy, output)
    os.close(copy)


def _flush() -> None:
    """Write out what Python and C have buffered. A stream may be gone or closed, and a C library
    without `fflush` has no buffers."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
        library.fflush(None)
