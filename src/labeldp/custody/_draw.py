# SPDX-License-Identifier: Apache-2.0
"""From codes to outputs: side in batches of prior, then the draw in chunks that fit the cache."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.laws import LAWS
from labeldp.laws._base import Array, Law
from labeldp.ledger._events import per_row_epsilon
from labeldp.noise._words import Blocks, Key, RowWords, derive_key, word_chunks
from labeldp.testing import check_any_size

Prior = ArrayLike | Callable[[NDArray[np.int64]], ArrayLike] | Iterable[ArrayLike] | None
"""(n, K) weights; or a function of row positions that gives (m, K); or batches of rows in order; None for uniform."""

_CELLS = 1 << 23  # prior cells in one batch
_PUBLIC: Final = hashlib.sha256(b"labeldp public words").digest()


def check_contract(law: Law) -> None:
    """Refuse a law of somebody else's that is not registered, or whose sampler does not keep its claims; asked before every charge.

    Parameters
    ----------
    law : Law
        Of one row, as it will be drawn with.

    Notes
    -----
    Laws of labeldp pass at once: the tests check them. Others pass `labeldp.testing.check_law` once in a process, about half a second.
    """
    if type(law).__module__.startswith("labeldp.laws."):
        return
    name = getattr(law, "name", None)
    if LAWS.get(str(name)) is not type(law):
        raise InvalidInput(
            f"Expected a registered law, got {type(law).__name__}, which is not registered by its name {name!r}. Register it, so that what "
            "it draws can be read: labeldp.register_law(cls)."
        )
    try:
        _check_once(law)
    except Exception as error:  # somebody else's code; no label was there to quote
        raise InvalidInput(
            f"Expected a law that keeps the contract of laws, got {law}: {error or type(error).__name__}. Nothing was drawn. Correct it "
            "until labeldp.testing.check_law(law) passes."
        ) from error


_check_once = lru_cache(maxsize=64)(check_any_size)  # laws are values


class Questions:
    """Where the public words come from that a law draws its rows' questions with (`Law.draws_side`): not noise, and no secret.

    They depend on the law, the data set, the column and the row's id alone. So a retry, a repeat, another engine and another order of
    the rows ask each row the same question, and the digest of the side names the request. No word of a draw is among them: these keys
    come from a constant, those of draws from a run's secret.

    Parameters
    ----------
    law : Law
        Of one row.
    dataset, column : str
    """

    def __init__(self, law: Law, dataset: str, column: str) -> None:
        facts = {"dataset": dataset, "column": column, "law": law.to_dict()}
        self._key = derive_key(_PUBLIC, purpose="side", facts=facts) if law.draws_side else None
        self._ids = derive_key(_PUBLIC, purpose="ids", facts={})

    def words(self, blocks: Callable[[Key], Blocks]) -> Callable[[slice], RowWords | None]:
        """Words of slices of the rows whose blocks this gives under a public key for ids; None where the law draws no questions."""
        if self._key is None:
            return lambda rows: None
        key, known = self._key, blocks(self._ids)
        return lambda rows: RowWords(key, known[rows])


def law_per_row(law: Law, max_rows_per_unit: int) -> Law:
    """The law of one row when a unit's total is shared by m rows."""
    m = _validate.integer(max_rows_per_unit=max_rows_per_unit, low=1)
    return law if m == 1 else replace(law, epsilon=per_row_epsilon(law.epsilon, m))


def prepare_side(law: Law, prior: Prior, n_rows: int, words: Callable[[slice], RowWords | None]) -> dict[str, Array]:
    """Side of n rows, reading the prior a batch at a time: it is never copied whole.

    words : function of a slice of the rows
        Their public words (`Questions`), None where the law draws no questions.

    Returns
    -------
    dict of arrays, first axis n; empty if the law uses no prior.
    """
    if not law.uses_prior:
        return {}
    side = {name: np.empty((n_rows, *shape), kind) for name, (kind, shape) in law.layout().items() if name != "output"}
    done = 0
    for batch in _batches(prior, n_rows, law.n_classes):
        if done + len(batch) > n_rows:
            raise InvalidInput(f"Expected a prior for {n_rows} rows, got more.")
        part = law.prepare(batch, words(slice(done, done + len(batch))))
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
