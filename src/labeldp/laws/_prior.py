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
_CELLS, _FEW_CELLS = 1 << 18, 1 << 17  # doubles of a chunk (2 MiB), and of one with at most 32 classes, which takes more passes
_TINY = {np.dtype(np.float32): 2.0**-100, np.dtype(np.float64): 2.0**-900}  # below, 2^-32 of the maximum is no longer exact
_LIFT = 2.0**900
_FOLDED = 16


def as_prior(prior: object, n_classes: int) -> Array:
    """Take the prior as a numeric (n, K) array, not copied; its values are checked when they are quantised."""
    array = np.asarray(prior)
    if array.ndim != 2 or array.shape[1] != n_classes:
        raise InvalidInput(f"Expected a prior of shape (n, {n_classes}), one weight a class; got shape {array.shape}.")
    if array.dtype.kind not in "fiu":
        raise InvalidInput(f"Expected a prior of numbers, got dtype {array.dtype}. Pass float weights of shape (n, {n_classes}).")
    return array


def checked(prior: Array, weight: Floats | None = None) -> tuple[Array, Floats, Floats]:
    """Check a prior: rint(values x scale) are its whole numbers; values is the prior itself where nothing had to change.

    Parameters
    ----------
    prior : (n, K) numbers
        Finite and non-negative, else InvalidInput. n >= 1.
    weight : (K,) float64, optional
        Multiplies every row first.

    Returns
    -------
    values : (n, K) float32 or float64; a row of zeros has become ones
    scale : (n,) float64, (2^32 - 1) / row maximum
    columns : (at most 16, or K up to 32; n) float64, maxima of `values` over disjoint groups of classes that cover them all
    """
    values = prior if prior.dtype in (np.float32, np.float64) else prior.astype(np.float64)
    if weight is not None:
        values = values * weight
    columns = _fold(values).T.astype(np.float64, order="C")
    top = columns.max(axis=0)
    if not (values.min() >= 0 and top.max() < np.inf):
        bad = np.flatnonzero(~((values >= 0) & (values < np.inf)).all(axis=1))[0]
        raise InvalidInput(f"Expected a finite prior >= 0 everywhere; row {bad} of this batch is not. Clip it, or pass uniform weights.")
    if not top.min() > _TINY[values.dtype]:
        values = values.astype(np.float64)
        values[top == 0] = 1.0
        values[(top > 0) & (top <= 1.0 / _LIFT)] *= _LIFT  # exact, and keeps the scale below from overflowing
        return checked(values)
    return values, TOP / top, columns


def _fold(values: Array) -> Array:
    """Fold classes to (n, at most 16) maxima over disjoint groups, by repeated halving; up to 32 classes are left as they are."""
    width = max(_FOLDED, values.shape[1] * (values.shape[1] <= 2 * _FOLDED))
    while values.shape[1] > width:
        rest = values.shape[1] // 2
        half = values.shape[1] - rest
        folded = np.empty((len(values), half), dtype=values.dtype)
        np.maximum(values[:, :rest], values[:, half:], out=folded[:, :rest])
        folded[:, rest:] = values[:, rest:half]
        values = folded
    return values


def quantise(prior: Array, weight: Floats | None = None) -> Floats:
    """Scale each row to whole numbers 0 .. 2^32 - 1, as float64 (n, K); a row of zeros becomes uniform. See `checked`."""
    if len(prior) == 0:
        return np.empty(prior.shape)
    values, scale, _ = checked(prior, weight)
    scaled = np.multiply(values, scale[:, None], dtype=np.float64)
    return np.rint(scaled, out=scaled)


def chunks(n_rows: int, n_classes: int, most: int | None = None) -> Iterator[slice]:
    """Yield slices of rows whose (rows, K) doubles fit the cache, of at most `most` rows."""
    step = max(1, (_FEW_CELLS if n_classes <= 2 * _FOLDED else _CELLS) // n_classes)
    step = step if most is None else min(step, most)
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def by_chunks(
    prior: object,
    n_classes: int,
    like: dict[str, tuple[np.dtype, tuple[int, ...]]],
    decide: Callable[[Array], dict[str, Array]],
    most: int | None = None,
) -> dict[str, Array]:
    """Apply `decide` to chunks of the prior and join the side arrays; where all rows are one row (stride 0), once and broadcast.

    `like` gives type and shape of one row of each side array. Memory: the side, plus a few chunks of 2 MiB.
    """
    array = as_prior(prior, n_classes)
    if array.strides[0] == 0 and len(array) > 1:
        one = decide(array[:1])
        return {name: np.broadcast_to(value[0], (len(array), *value.shape[1:])) for name, value in one.items()}
    side: dict[str, Array] = {name: np.empty((len(array), *shape), dtype) for name, (dtype, shape) in like.items()}
    for rows in chunks(len(array), n_classes, most):
        for name, value in decide(array[rows]).items():
            side[name][rows] = value
    return side


def heaviest(weights: Floats, size: NDArray[np.integer], threshold: Floats) -> NDArray[np.bool_]:
    """Mark the first `size` classes of each row by (weight descending, index ascending): (n, K) bool.

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
