# SPDX-License-Identifier: Apache-2.0
"""The same randomized response as machine code, where numba is installed (`pip install labeldp[fast]`): equal bytes, in one pass."""

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAYS_AFTER = 1 << 26
"""Rows that a process answers without it at first: compiling takes time and memory that a smaller table does not give back."""

Respond = Callable[[NDArray[Any], NDArray[np.uint64], np.uint64, np.int64, NDArray[np.int32]], None]


class _Answered:
    """How many rows this process has answered without machine code; about, where threads count at once."""

    rows = 0


def respond_compiled(rows: int) -> Respond | None:
    """`compiled`, for a call of so many rows; None where it would not pay, as well."""
    if _Answered.rows < PAYS_AFTER:
        _Answered.rows += rows
        return None
    return compiled()


@cache
def compiled() -> Respond | None:
    """A function of (labels, words, b, K, out) that fills `out` as `labeldp.laws.kernel` does; None without numba."""
    if importlib.util.find_spec("numba") is None:
        return None
    import numba

    return numba.njit(nogil=True, error_model="numpy")(_respond)  # type: ignore[no-any-return]


def _respond(labels: NDArray[Any], r: NDArray[np.uint64], b: np.uint64, n_classes: np.int64, out: NDArray[np.int32]) -> None:
    """The definition of `labeldp.laws.kernel`, row by row: counted from the top, a word's cell is q; above K - 2 it keeps the label."""
    for i in range(len(r)):
        q = np.int64(~r[i] // b)
        y = np.int64(labels[i])
        other = n_classes - 2 - q
        flipped = other + 1 if other >= y else other
        out[i] = y if q > n_classes - 2 else flipped
