# SPDX-License-Identifier: Apache-2.0
"""Public priors on an integer grid, so that every machine takes the same decision from the same prior.

A row is scaled by (2^32 - 1) / its maximum and rounded to whole numbers, in IEEE double. The whole numbers stay in float64: they and
their sums (K x 2^32 < 2^53 up to two million classes) are exact there, in whatever order they are added.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput

Array = NDArray[Any]
Floats = NDArray[np.float64]

TOP = float(2**32 - 1)  # the quantised prior of every row's heaviest class
_CELLS = 1 << 16  # a chunk of 2^16 doubles is 512 KiB: it stays in the cache from the first pass to the last
_TINY = 2.0**-900


def as_prior(prior: object, n_classes: int) -> Array:
    """The prior as a numeric (n, K) array, not copied; its values are checked when they are quantised."""
    array = np.asarray(prior)
    if array.ndim != 2 or array.shape[1] != n_classes:
        raise InvalidInput(f"Expected a prior of shape (n, {n_classes}), one weight a class; got shape {array.shape}.")
    if array.dtype.kind not in "fiu":
        raise InvalidInput(f"Expected a prior of numbers, got dtype {array.dtype}. Pass float weights of shape (n, {n_classes}).")
    return array


def quantise(prior: Array, weight: Floats | None = None) -> Floats:
    """Whole numbers 0 .. 2^32 - 1 proportional to each row, as float64 (n, K); a row of zeros becomes uniform.

    Parameters
    ----------
    prior : (n, K) numbers
        Finite and non-negative, else InvalidInput.
    weight : (K,) float64, optional
        Multiplies every row first.
    """
    scaled = np.array(prior, dtype=np.float64, order="C")
    if weight is not None:
        scaled *= weight
    if scaled.size == 0:
        return scaled
    top = scaled.max(axis=1, keepdims=True)
    if not (scaled.min() >= 0 and top.max() < np.inf):
        bad = np.flatnonzero(~((scaled >= 0) & (scaled < np.inf)).all(axis=1))[0]
        raise InvalidInput(f"Expected a finite prior >= 0 everywhere; row {bad} of this batch is not. Clip it, or pass uniform weights.")
    if not top.min() > _TINY:
        scaled[top[:, 0] == 0] = 1.0
        tiny = top[:, 0] <= _TINY
        scaled[tiny] *= np.where(top[tiny] == 0, 1.0, 2.0**900)  # exact, and keeps the division below from overflowing
        top = scaled.max(axis=1, keepdims=True)
    scaled *= TOP / top
    return np.rint(scaled, out=scaled)


def chunks(n_rows: int, n_classes: int, cells: int = _CELLS) -> Iterator[slice]:
    """Slices of rows whose (rows, K) doubles fit the cache."""
    step = max(1, cells // n_classes)
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def by_chunks(
    prior: object,
    n_classes: int,
    like: dict[str, tuple[np.dtype, tuple[int, ...]]],
    decide: Callable[[Floats], dict[str, Array]],
    weight: Floats | None = None,
) -> dict[str, Array]:
    """Side arrays from `decide` applied to quantised chunks; where all rows are one row (stride 0), decided once and broadcast.

    `like` gives type and shape of one row of each side array. Memory: the side, plus a few chunks of 512 KiB.
    """
    array = as_prior(prior, n_classes)
    if array.strides[0] == 0 and len(array) > 1:
        one = decide(quantise(array[:1], weight))
        return {name: np.broadcast_to(value[0], (len(array), *value.shape[1:])) for name, value in one.items()}
    side: dict[str, Array] = {name: np.empty((len(array), *shape), dtype) for name, (dtype, shape) in like.items()}
    for rows in chunks(len(array), n_classes):
        for name, value in decide(quantise(array[rows], weight)).items():
            side[name][rows] = value
    return side


def heaviest(weights: Floats, size: NDArray[np.integer], threshold: Floats) -> NDArray[np.bool_]:
    """The first `size` classes of each row by (weight descending, index ascending): (n, K) bool.

    threshold : (n,), the weight of the last class that is in; only among classes of that very weight does the index decide.
    """
    edge = threshold[:, None]
    inside = weights >= edge
    excess = inside.sum(axis=1) > size
    if excess.any():
        part, level, wanted = weights[excess], edge[excess], size[excess][:, None]
        above, tied = part > level, part == level
        rank = np.cumsum(tied, axis=1) + above.sum(axis=1, keepdims=True)
        inside[excess] = above | (tied & (rank <= wanted))
    return inside
