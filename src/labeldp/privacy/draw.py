# SPDX-License-Identifier: Apache-2.0
"""From codes to outputs: side in batches of prior, then the draw in chunks that fit the cache."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp.errors import InvalidInput
from labeldp.laws.base import Array, Law
from labeldp.privacy.noise import Blocks, Key, word_chunks

Prior = ArrayLike | Callable[[NDArray[np.int64]], ArrayLike] | Iterable[ArrayLike] | None
"""(n, K) weights; or a function of row positions that gives (m, K); or batches of rows in order; None for uniform."""

_CELLS = 1 << 23  # prior cells in one batch


def prepare_side(law: Law, prior: Prior, n_rows: int) -> dict[str, Array]:
    """Side of n rows, reading the prior a batch at a time: it is never copied whole.

    Returns
    -------
    dict of arrays, first axis n; empty if the law uses no prior.
    """
    if not law.uses_prior:
        return {}
    side = {name: np.empty((n_rows, *shape), kind) for name, (kind, shape) in law.layout().items() if name != "output"}
    done = 0
    for batch in _batches(prior, n_rows, law.n_classes):
        part = law.prepare(batch)
        if done + len(batch) > n_rows:
            raise InvalidInput(f"Expected a prior for {n_rows} rows, got more.")
        for name, values in part.items():
            side[name][done : done + len(batch)] = values
        done += len(batch)
    if done != n_rows:
        raise InvalidInput(f"Expected a prior for {n_rows} rows, got {done}.")
    return side


def _batches(prior: Prior, n_rows: int, n_classes: int) -> Iterator[NDArray[np.generic]]:
    step = max(1, _CELLS // n_classes)
    if prior is None:
        prior = np.broadcast_to(1.0, (n_rows, n_classes))
    if callable(prior):
        for start in range(0, n_rows, step):
            yield np.asarray(prior(np.arange(start, min(start + step, n_rows))))
    elif isinstance(prior, Iterator):
        yield from (np.asarray(batch) for batch in prior)
    else:
        array = np.asarray(prior)
        if array.shape != (n_rows, n_classes):
            raise InvalidInput(
                f"Expected a prior of shape {(n_rows, n_classes)}, got {array.shape}: one row of class weights for each row."
            )
        yield from (array[start : start + step] for start in range(0, n_rows, step))


def draw(law: Law, codes: NDArray[np.int32], key: Key, blocks: Blocks, side: Mapping[str, Array]) -> Array:
    """One output a row under this key: every word is used for this draw alone.

    Returns
    -------
    (n,) int32 or (n, ceil(K/8)) uint8
    """
    kind, shape = law.layout()["output"]
    outputs = np.empty((len(codes), *shape), kind)
    for chunk, words in word_chunks(key, blocks):
        outputs[chunk] = law.sample(np.asarray(codes[chunk]), words, {name: values[chunk] for name, values in side.items()})
    return outputs
