# SPDX-License-Identifier: Apache-2.0
"""Draws labels: the side from the prior, then outputs, batch by batch. Labels in memory, tables and
all engines share this code.

A pass reads batches in any order and in any number of processes, and its sums merge in any order.
They hold no secret and no label; those of the pin are keyed, and are exchanged between workers and
driver only.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import SetDigest, text_array
from labeldp.custody._encode import undrawn, unseen
from labeldp.custody._request import PrivateColumn, RunSecret
from labeldp.errors import InvalidInput
from labeldp.evidence import Block, NoisyLabels
from labeldp.evidence._noisy import as_drawn
from labeldp.laws import LAWS
from labeldp.laws._base import Law, require_sampler, within
from labeldp.laws._check import check_any_size
from labeldp.laws._exact import Array, as_prior
from labeldp.ledger._database import per_row_epsilon
from labeldp.noise._secrets import KeySource, run_secret
from labeldp.noise._words import (
    Blocks,
    Key,
    Pin,
    RowWords,
    derive_key,
    id_blocks,
    one_word,
    partition,
    pin_words,
    row_blocks,
    word_chunks,
)
from labeldp.receipt import Receipt

Prior = ArrayLike | Callable[[NDArray[np.int64]], ArrayLike] | Iterable[ArrayLike] | None
"""(n, K) weights; or a function from m row positions to (m, K) weights; or an iterator of batches
in order; None for uniform."""

_CELLS = 1 << 23  # prior cells in one batch: 64 MB as float64
_PUBLIC: Final = hashlib.sha256(b"labeldp public words").digest()
"""A constant in the place of a run's secret, for words that everybody may compute."""


def check_contract(law: Law) -> None:
    """Refuse a user's own law that is not registered or whose sampler breaks its claim. Called
    before every charge.

    Parameters
    ----------
    law : Law
        The law of one row.

    Notes
    -----
    Laws of labeldp are accepted at once, since its tests check them. Others run
    `labeldp.testing.check_law` once in a process, which takes about half a second.
    """
    require_sampler(law)
    if type(law).__module__.startswith(("labeldp.laws.", "labeldp.papers.")):
        for part in getattr(law, "parts", ()):  # the laws of several columns may be a user's own
            check_contract(part)
        return
    name = getattr(law, "name", None)
    if LAWS.get(str(name)) is not type(law):
        raise InvalidInput(
            f"Expected a registered law, got {type(law).__name__}, which is not registered by its"
            f" name {name!r}. Register it, so that what it draws can be read:"
            " labeldp.register_law(cls)."
        )
    try:
        # A foreign sampler will run on raw labels: its exact distribution is computed and compared
        # with its claim before the first charge.
        _check_once(law)
    # foreign code may raise anything; no label was passed to it yet, so its text is safe to show
    except Exception as error:
        raise InvalidInput(
            f"Expected a law that keeps the contract of laws, got {law}:"
            f" {error or type(error).__name__}. Nothing was drawn. Correct it until"
            " labeldp.testing.check_law(law) passes."
        ) from error


# a law is a frozen value, so one check holds for all equal ones
_check_once = lru_cache(maxsize=64)(check_any_size)


def question_words(
    law: Law, dataset: str, column: str, blocks: Callable[[Key], Blocks]
) -> Callable[[slice], RowWords | None]:
    """Make the public words from which a law draws each row's question (`Law.draws_side`). They are
    neither noise nor secret.

    Parameters
    ----------
    law : Law
        The law of one row.
    dataset, column : str
    blocks : function of a public key for ids
        Returns the blocks of n rows.

    Returns
    -------
    function of a slice of these rows
        Returns their words; None if the law draws no questions.
    """
    ids_key = derive_key(_PUBLIC, purpose="ids", facts={})
    if not law.draws_side:
        return lambda rows: None
    # The words depend on law, data set, column and id alone, so that a retry, another engine or
    # another order of rows asks each row the same question. They share no word with a draw: these
    # keys come from a constant, those of draws from a run's secret.
    key = derive_key(
        _PUBLIC, purpose="side", facts={"dataset": dataset, "column": column, "law": law.to_dict()}
    )
    known = blocks(ids_key)
    return lambda rows: RowWords(key, known[rows])


def public_words(
    purpose: str, facts: Mapping[str, object], blocks: Callable[[Key], Blocks]
) -> NDArray[np.uint64]:
    """Take one public word of each row, for choices that need no secret and must not depend on
    labels: (n,) uint64.

    Parameters
    ----------
    purpose : str
        Of the key; not that of any draw.
    facts : mapping
        JSON-ready; other facts, other words.
    blocks : function of a public key for ids
        Gives the blocks of n rows.
    """
    key = derive_key(_PUBLIC, purpose=purpose, facts=facts)
    return one_word(key, blocks(derive_key(_PUBLIC, purpose="ids", facts={})))


def law_per_row(law: Law, max_rows_per_unit: int) -> Law:
    """Return the law of one row of a unit with m rows: the same law at epsilon / m, rounded
    down."""
    require_sampler(law)
    return (
        law
        if max_rows_per_unit == 1
        else within(law.at(share := per_row_epsilon(law.epsilon, max_rows_per_unit)), share)
    )


def prepare_side(
    law: Law, prior: Prior, n_rows: int, words: Callable[[slice], RowWords | None]
) -> dict[str, Array]:
    """Compute the side of n rows from their prior, which is read in batches and never copied as a
    whole.

    Parameters
    ----------
    law : Law
    prior : as in `labeldp.privatize`
    n_rows : int
    words : function of a slice of the rows
        Returns their public words (`question_words`); None if the law draws no questions.

    Returns
    -------
    dict of str to array
        Arrays of n rows; empty if the law uses no prior.
    """
    if not law.uses_prior:
        return {}
    side = {
        name: np.zeros((n_rows, *shape), kind)  # not memory that labels have left
        for name, (kind, shape) in law.layout().items()
        if name != "output"
    }
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
    # A function or an iterator returns one batch at a time, so that (n, K) weights need not fit in
    # memory.
    if callable(prior):
        for start in range(0, n_rows, step):
            yield _batch(prior(np.arange(start, min(start + step, n_rows))), n_classes)
    elif isinstance(prior, Iterator):
        yield from (_batch(weights, n_classes) for weights in prior)
    else:
        _validate.unmasked(prior=prior)
        array = text_array(prior)
        if array.shape != (n_rows, n_classes):
            raise InvalidInput(
                f"Expected a prior of shape {(n_rows, n_classes)}, got {array.shape}: one row of"
                " class weights for each row."
            )
        yield from (array[start : start + step] for start in range(0, n_rows, step))


def _batch(weights: ArrayLike, n_classes: int) -> NDArray[np.generic]:
    _validate.unmasked(prior=weights)
    return as_prior(weights, n_classes)


@unseen(undrawn)
def draw(
    law: Law, codes: NDArray[np.int32], key: Key, blocks: Blocks, side: Mapping[str, Array]
) -> Array:
    """Draw one output for each row, (n,) int32 or (n, ceil(K/8)) uint8. No other draw may use this
    key."""
    kind, shape = law.layout()["output"]
    outputs = np.empty((len(codes), *shape), kind)
    # Chunks fit the processor's cache. A row's words depend on its block, not on its chunk.
    for chunk, words in word_chunks(key, blocks):
        outputs[chunk] = law.sample(
            np.asarray(codes[chunk]), words, {name: values[chunk] for name, values in side.items()}
        )
    return outputs


# The two passes over a table
# --------------------------------------------------------------------------------------------------


Ids = Array | list[Array]
"""(n,) or (n, columns), NumPy or Arrow; or a list of columns."""


@dataclass(frozen=True)
class Share:
    """The part of a run's rows that one stage draws, chosen at random by the run's secret.

    Attributes
    ----------
    fractions : tuple of float
        Expected share of the rows in each part. The parts are disjoint and together have all rows.
    number : int
        Number of this part, from 0.
    """

    fractions: tuple[float, ...]
    number: int


@dataclass(frozen=True)
class RunFacts(PrivateColumn):
    """The public facts of a run that enter its keys and its outputs.

    Attributes
    ----------
    law : Law
        The law of one row.
    share : Share or None
        The part of the rows that is drawn; None: all.
    weights : (K,) floats or None
        The prior of every row, from a histogram that the run itself asks for after the first pass;
        () until then. None: there is none.
    """

    law: Law
    share: Share | None = None
    weights: tuple[float, ...] | None = None


class Draw:
    """One draw of a charged run: its law, its key, and the facts stored with its outputs.

    Parameters
    ----------
    secret : RunSecret
    law : Law
        The law of one row.
    receipt : Receipt
    prior : str
        Digest of the side of all rows; "" if the law uses none.
    stage : str
    """

    def __init__(
        self, secret: RunSecret, law: Law, receipt: Receipt, prior: str, stage: str
    ) -> None:
        self._law, self._receipt, self._stage, self._values = (
            law,
            receipt,
            stage,
            secret.column.values,
        )
        # Law, prior and stage enter the key, so that another law or side over the same rows gets
        # other words. From the outputs of two laws on the same words more could be learned about a
        # label than both epsilons allow.
        self._key = secret.key("draw", law=law.to_dict(), prior=prior, stage=stage)

    def release(
        self,
        codes: NDArray[np.int32],
        blocks: Blocks,
        side: Mapping[str, Array],
        ids: Array,
        *,
        rows: NDArray[np.int64] | None = None,
        explicit_ids: bool,
    ) -> NoisyLabels:
        """Draw m rows.

        Parameters
        ----------
        codes, blocks, side
            The raw class codes, blocks and side of these m rows.
        ids : (n,) or (n, columns) array
            The ids of the rows of the result.
        rows : (m,) int, optional
            Positions in the result of the rows that are drawn; None: all. The other rows have no
            evidence.
        explicit_ids : bool
            True if the ids are the caller's, False for row numbers.
        """
        # The only place in labeldp that calls a law's sampler on raw labels; a test keeps it so.
        outputs = draw(self._law, codes, self._key, blocks, side)
        place = np.arange(len(codes)) if rows is None else rows
        block = Block(self._law, outputs, dict(side), place, self._receipt, self._stage)
        return as_drawn(NoisyLabels(len(ids), self._values, (block,), ids, explicit_ids))


SecretParts = Sequence[tuple[str, bytes, KeySource | None]]
"""For each run: its id, the stored half of its secret, and the source of the release secret."""


def run_secrets_of(parts: SecretParts, facts: RunFacts) -> list[RunSecret]:
    """Compute the runs' secrets on a worker, from the parts that the driver has sent."""
    return [
        RunSecret(run_id, run_secret(stored, key, run_id), facts) for run_id, stored, key in parts
    ]


@dataclass
class PassSums:
    """The running sums of one pass over a table. Sums of partitions merge in any order.

    Attributes
    ----------
    rows : int
        Number of rows.
    pins : dict of str to Pin
        For each run id, the keyed digest of the (row, label) pairs.
    ids, units, side : SetDigest
        Digests of the explicit ids, of the (row, unit) pairs, and of the (row, side) pairs.
    told : (ceil(K/8),) uint8, or None
        The classes that some row distinguishes from all others; see `Law.told_apart`.
    """

    rows: int = 0
    pins: dict[str, Pin] = field(default_factory=dict)
    ids: SetDigest = field(default_factory=SetDigest)
    units: SetDigest = field(default_factory=SetDigest)
    side: SetDigest = field(default_factory=SetDigest)
    told: NDArray[np.uint8] | None = None

    def check(self, run_id: str) -> tuple[int, int, int]:
        """Return the number of rows, and two sums modulo 2^64 over labels, units and sides, which
        must be equal in both passes."""
        # One pair of sums for all three: engines carry two numbers a row through a shuffle, not
        # six.
        first, second = (
            sum(map(int, each))
            for each in zip(self.pins[run_id].sums, self.units.sums, self.side.sums, strict=True)
        )
        return self.rows, first % 2**64, second % 2**64

    def note(self, public: Mapping[str, list[Array]]) -> None:
        """Add rows to the digests of these names; `public` is the result of `_public`."""
        for name, columns in public.items():
            getattr(self, name).update(*columns)

    def tell(self, told: NDArray[np.uint8] | None) -> None:
        """Add the classes that further rows distinguish from all others; None: all classes."""
        self.told = told if self.told is None or told is None else self.told | told

    def merge(self, other: "PassSums") -> None:
        """Add the sums of another partition."""
        self.rows += other.rows
        # Sums and unions only, which do not depend on the order of merging: engines promise none.
        self.tell(other.told)
        for run_id, pin in other.pins.items():
            if run_id in self.pins:
                self.pins[run_id].merge(pin)
            else:
                self.pins[run_id] = pin
        for mine, theirs in (
            (self.ids, other.ids),
            (self.units, other.units),
            (self.side, other.side),
        ):
            mine.merge(theirs)


class FirstPass:
    """Adds up the batches of a table before anything is charged.

    Parameters
    ----------
    facts : RunFacts
    secrets : sequence of RunSecret
        The candidates to draw with: a new secret, and those of crashed runs that this input may
        belong to.
    """

    def __init__(self, facts: RunFacts, secrets: Sequence[RunSecret]) -> None:
        self.facts = facts
        self.sums = PassSums(pins={secret.run_id: Pin(secret.key("pin")) for secret in secrets})
        self._secrets = [(secret, secret.key("ids")) for secret in secrets]

    def add(
        self,
        codes: NDArray[np.int32],
        ids: Ids | None,
        start: int = 0,
        units: Ids | None = None,
        prior: Array | None = None,
    ) -> list[Blocks]:
        """Add a batch of (n,) codes with their ids, or with the row numbers from `start`; return
        the rows' blocks under each secret."""
        found = []
        # Only after the last row is known which run this input belongs to. The pin is computed
        # under all candidates, to save a third pass.
        for secret, ids_key in self._secrets:
            blocks = blocks_of_rows(len(codes), start, ids, ids_key)
            self.sums.pins[secret.run_id].update(blocks, codes)
            found.append(blocks)
        names = np.arange(start, start + len(codes)) if ids is None else ids
        if ids is not None:
            self.sums.ids.update(*_columns(ids))
        side = side_of(self.facts, prior, len(codes), start, ids)
        self.sums.note(_public(self.facts, names, units, side))
        self.sums.tell(self.facts.law.told_apart(side))
        self.sums.rows += len(codes)
        return found


@dataclass(frozen=True)
class BatchDraw:
    """A batch after its draw.

    Attributes
    ----------
    noisy : NoisyLabels
        The drawn labels of the kept rows.
    blocks : Blocks
        The blocks of the kept rows.
    check : (n, 2) uint64, or None
        The addends of each row to `PassSums.check`, with `check_rows`; else None, since the pass
        has added them.
    kept : (n,) bool
        True for rows within their unit's cap and in the part that is drawn.
    """

    noisy: NoisyLabels
    blocks: Blocks
    check: NDArray[np.uint64] | None
    kept: NDArray[np.bool_]


class SecondPass:
    """Draws batches of a charged run.

    Parameters
    ----------
    facts : RunFacts
    secret : RunSecret
    receipt : Receipt
    prior : str, default=""
        Digest of the side of all rows; "" if the law uses none.
    stage : str, default="release"
    """

    def __init__(
        self,
        facts: RunFacts,
        secret: RunSecret,
        receipt: Receipt,
        prior: str = "",
        stage: str = "release",
    ) -> None:
        self.facts, self.receipt, self.stage = facts, receipt, stage
        self._ids_key, self._pin_key = secret.key("ids"), secret.key("pin")
        self._draw = Draw(secret, facts.law, receipt, prior, stage)
        self._order_key, self._part_key = secret.key("order"), secret.key("partition")
        self.sums = PassSums(pins={secret.run_id: Pin(self._pin_key)})

    def draw(
        self,
        codes: NDArray[np.int32],
        ids: Ids | None,
        start: int = 0,
        prior: Array | None = None,
        kept: NDArray[np.bool_] | None = None,
        check_rows: bool = False,
        units: Ids | None = None,
    ) -> BatchDraw:
        """Draw a batch.

        Parameters
        ----------
        codes : (n,) int32
        ids, units, prior
            As in the first pass. Without ids the row numbers count from `start`.
        kept : (n,) bool, optional
            True for rows within their unit's cap; None: all. The others, and those outside the
            run's part, get no output.
        check_rows : bool, default=False
            Return the addends of each row instead of adding them, for engines that retry tasks.
        """
        # Everything is read and digested again, because the input may have changed since the first
        # pass: then nothing is published.
        blocks = blocks_of_rows(len(codes), start, ids, self._ids_key)
        names = np.arange(start, start + len(codes)) if ids is None else ids
        side = side_of(self.facts, prior, len(codes), start, ids)
        check = self._note(blocks, codes, _public(self.facts, names, units, side), check_rows)
        # The sums are over all rows, kept or not, as in the first pass, which did not know who is
        # kept.
        kept = self._chosen(blocks, kept)
        if not kept.all():
            codes, blocks, names = codes[kept], blocks[kept], filtered(names, kept)
            side = {name: values[kept] for name, values in side.items()}
        noisy = self._draw.release(
            codes,
            blocks,
            side,
            _names(names, self.facts.law, len(codes)),
            explicit_ids=ids is not None,
        )
        return BatchDraw(noisy, blocks, check, kept)

    def _chosen(self, blocks: Blocks, within_cap: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        """Mark the rows that get an output: (n,) bool."""
        kept = np.ones(len(blocks), bool) if within_cap is None else within_cap
        share = self.facts.share
        return (
            kept
            if share is None
            else kept & (partition(self._part_key, blocks, share.fractions) == share.number)
        )

    def _note(
        self,
        blocks: Blocks,
        codes: NDArray[np.int32],
        public: Mapping[str, list[Array]],
        check_rows: bool,
    ) -> NDArray[np.uint64] | None:
        # An engine may run a task twice. Sums would then count its rows twice, so each row carries
        # its addends until the rows are final.
        if check_rows:
            words = pin_words(self._pin_key, blocks, codes)
            for columns in public.values():
                words += SetDigest.words(*columns)
            return words
        self.sums.rows += len(codes)
        self.sums.pins[self.receipt.run_id].update(blocks, codes)
        self.sums.note(public)
        return None

    def order_words(self, blocks: Blocks) -> NDArray[np.uint64]:
        """Draw a secret word for each row, by which the output is sorted: (n,) uint64."""
        return one_word(self._order_key, blocks)


def blocks_of_rows(n: int, start: int, ids: Ids | None, ids_key: Key) -> Blocks:
    """Make the blocks of n rows, from their ids, or else from the row numbers from `start`."""
    return row_blocks(n, start) if ids is None else id_blocks(ids, ids_key)


def side_of(
    facts: RunFacts, prior: Array | None, n_rows: int, start: int, ids: Ids | None
) -> dict[str, Array]:
    """Compute the law's side of n rows from their prior (None: uniform) and their public words; {}
    if it uses no prior, or none yet."""
    law = facts.law
    if not law.uses_prior or facts.weights == ():
        return {}
    words = question_words(
        law, facts.dataset, facts.column, lambda key: blocks_of_rows(n_rows, start, ids, key)
    )
    shared = np.broadcast_to(np.array(facts.weights or 1.0), (n_rows, law.n_classes))
    return law.prepare(shared if prior is None or facts.weights else prior, words(slice(0, n_rows)))


def packed(side: Mapping[str, Array]) -> NDArray[np.uint8]:
    """Pack the side of each row into bytes, arrays sorted by name, little-endian: (n, width)
    uint8."""
    parts = [
        np.ascontiguousarray(side[name], side[name].dtype.newbyteorder("<"))
        for name in sorted(side)
    ]
    return np.hstack([part.reshape(len(part), -1).view(np.uint8) for part in parts])


def _public(
    facts: RunFacts, names: Ids, units: Ids | None, side: Mapping[str, Array]
) -> dict[str, list[Array]]:
    """Return the public columns that both passes must read alike, by the name of their digest in
    `PassSums`."""
    # Units decide which rows are kept, and sides how a row is drawn. If they changed between the
    # passes, rows would be drawn that were not charged, or drawn in another way.
    found = {} if units is None else {"units": [*_columns(names), *_columns(units)]}
    # The first pass does not know sides that follow from the run's own histogram. They follow from
    # it and from the ids, which are digested.
    return found | (
        {"side": [*_columns(names), packed(side)]} if side and facts.weights is None else {}
    )


def filtered(ids: Ids, kept: NDArray[np.bool_]) -> Ids:
    """Choose the ids of the kept rows."""
    return (
        [_of_rows(column, kept) for column in ids] if isinstance(ids, list) else _of_rows(ids, kept)
    )


def _of_rows(column: Array, kept: NDArray[np.bool_]) -> Array:
    return column[kept] if isinstance(column, np.ndarray) else column.take(np.flatnonzero(kept))


def _columns(ids: Ids) -> list[Array]:
    return ids if isinstance(ids, list) else [ids]


def _names(ids: Ids, law: Law, n_rows: int) -> Array:
    """Convert the ids to a NumPy array, by which ties are broken; a law without ties gets row
    numbers."""
    if isinstance(ids, np.ndarray):
        return ids
    # Ids break ties between equally likely classes. An output that is a label has no ties, so the
    # slow conversion of text is spared.
    if law.releases_codes:
        return np.arange(n_rows)
    return (
        np.column_stack([np.asarray(c).astype(np.str_) for c in ids])
        if isinstance(ids, list)
        else np.asarray(ids).astype(np.str_)
    )
