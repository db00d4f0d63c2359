# SPDX-License-Identifier: Apache-2.0
"""How labels are drawn: side from the prior, then outputs, batch by batch; the same code in memory, on tables, and on every engine.

A pass works on batches in any order and in any number of processes; its sums, which hold no secret and no label, add up in any order.
The pin's sums are keyed and stay between the workers and the driver.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp._hash import SetDigest
from labeldp.custody._request import PrivateColumn, RunSecret
from labeldp.errors import InvalidInput
from labeldp.evidence import Block, NoisyLabels
from labeldp.evidence._noisy import as_drawn
from labeldp.laws import LAWS
from labeldp.laws._base import Law
from labeldp.laws._exact import Array
from labeldp.ledger._database import per_row_epsilon
from labeldp.noise._secrets import KeySource, run_secret
from labeldp.noise._words import Blocks, Key, Pin, RowWords, derive_key, id_blocks, one_word, partition, pin_words, row_blocks, word_chunks
from labeldp.receipt import Receipt
from labeldp.testing import check_any_size

Prior = ArrayLike | Callable[[NDArray[np.int64]], ArrayLike] | Iterable[ArrayLike] | None
"""(n, K) weights; or a function of row positions that gives (m, K); or batches of rows in order; None for uniform."""

_CELLS = 1 << 23  # prior cells in one batch
_PUBLIC: Final = hashlib.sha256(b"labeldp public words").digest()


def check_contract(law: Law) -> None:
    """Refuse a user's own law that is not registered or whose sampler breaks its claim. Called before every charge.

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
        # Somebody else's sampler runs on raw labels with secret words: it is tried out, exactly, before the first charge.
        _check_once(law)
    except Exception as error:  # somebody else's code; no label was there to quote
        raise InvalidInput(
            f"Expected a law that keeps the contract of laws, got {law}: {error or type(error).__name__}. Nothing was drawn. Correct it "
            "until labeldp.testing.check_law(law) passes."
        ) from error


_check_once = lru_cache(maxsize=64)(check_any_size)  # laws are values


def question_words(law: Law, dataset: str, column: str, blocks: Callable[[Key], Blocks]) -> Callable[[slice], RowWords | None]:
    """Make the public words that a law draws its rows' questions with (`Law.draws_side`): not noise, and no secret.

    They depend on the law, the data set, the column and the row's id alone. So a retry, a repeat, another engine and another order of
    the rows ask each row the same question, and the digest of the side names the request. No word of a draw is among them: these keys
    come from a constant, those of draws from a run's secret.

    Parameters
    ----------
    law : Law
        Of one row.
    dataset, column : str
    blocks : function of a public key for ids
        Gives the blocks of n rows.

    Returns
    -------
    Function of a slice of these rows; it gives None where the law draws no questions.
    """
    ids_key = derive_key(_PUBLIC, purpose="ids", facts={})
    if not law.draws_side:
        return lambda rows: None
    key = derive_key(_PUBLIC, purpose="side", facts={"dataset": dataset, "column": column, "law": law.to_dict()})
    known = blocks(ids_key)
    return lambda rows: RowWords(key, known[rows])


def law_per_row(law: Law, max_rows_per_unit: int) -> Law:
    """Give each of a unit's m rows its share of the unit's epsilon, rounded down."""
    return law if max_rows_per_unit == 1 else replace(law, epsilon=per_row_epsilon(law.epsilon, max_rows_per_unit))


def prepare_side(law: Law, prior: Prior, n_rows: int, words: Callable[[slice], RowWords | None]) -> dict[str, Array]:
    """Decide the side of n rows from their prior, which is read a batch at a time and never copied whole.

    words : function of a slice of the rows
        Their public words (`question_words`), None where the law draws no questions.

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
    # A function or an iterator gives a batch at a time: (n, K) weights are never held whole.
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
    """Draw one output a row under this key: every word is used for this draw alone.

    Returns
    -------
    (n,) int32 or (n, ceil(K/8)) uint8
    """
    kind, shape = law.layout()["output"]
    outputs = np.empty((len(codes), *shape), kind)
    # Chunks that fit the cache; word and row belong together whatever the chunks are.
    for chunk, words in word_chunks(key, blocks):
        outputs[chunk] = law.sample(np.asarray(codes[chunk]), words, {name: values[chunk] for name, values in side.items()})
    return outputs


# The two passes over a table -------------------------------------------------------------------------------------------------------------


Ids = Array | list[Array]
"""(n,) or (n, columns), NumPy or Arrow; or a list of columns."""


@dataclass(frozen=True)
class Share:
    """The part of a run's rows that one draw is about: by a secret key and a row's id alone.

    Attributes
    ----------
    fractions : tuple of float
        Expected share of every part of the run; parts are disjoint and have all rows.
    number : int
        Of this part, from 0.
    """

    fractions: tuple[float, ...]
    number: int


@dataclass(frozen=True)
class RunFacts(PrivateColumn):
    """The public facts of a run that enter its keys and its outputs.

    Attributes
    ----------
    law : Law
        Of one row.
    share : Share or None
        Rows that are drawn; None: all.
    """

    law: Law
    share: Share | None = None


class Draw:
    """One draw of a charged run: its law, its key, and the facts stored with its outputs.

    Parameters
    ----------
    secret : RunSecret
    law : Law
        Of one row.
    receipt : Receipt
    prior : str
        Digest of the side of all rows, "" where the law uses none.
    stage : str
    """

    def __init__(self, secret: RunSecret, law: Law, receipt: Receipt, prior: str, stage: str) -> None:
        self._law, self._receipt, self._stage, self._values = law, receipt, stage, secret.column.values
        # Law, prior and stage are facts of the key: another law or side over the same rows gets words of its own. Equal words under two
        # laws would tell together more of a label than both budgets say.
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
        """Draw m rows, given by their codes, blocks and sides.

        Parameters
        ----------
        ids : (n,) or (n, columns) array
            Of the rows of the result.
        rows : (m,) int, optional
            Which of these are drawn; None: all. The others have no evidence.
        explicit_ids : bool
            They are the caller's, and not row numbers.
        """
        # The one call of a sampler on raw labels in all of labeldp, besides counts of groups; a test keeps it the only one.
        outputs = draw(self._law, codes, self._key, blocks, side)
        place = np.arange(len(codes)) if rows is None else rows
        block = Block(self._law, outputs, dict(side), place, self._receipt, self._stage)
        return as_drawn(NoisyLabels(len(ids), self._values, (block,), ids, explicit_ids))


SecretParts = Sequence[tuple[str, bytes, KeySource | None]]
"""Of each run: its id, what its folder stores of the secret, and where the other half is."""


def run_secrets_of(parts: SecretParts, facts: RunFacts) -> list[RunSecret]:
    """Put together the secrets that a driver sent to a worker."""
    return [RunSecret(run_id, run_secret(stored, key, run_id), facts) for run_id, stored, key in parts]


@dataclass
class PassSums:
    """The sums of one pass over a table's rows; sums of parts are merged in any order.

    Attributes
    ----------
    rows : int
    pins : dict
        For each run id, count and two sums modulo 2^64: which row has which label, under that run's key.
    ids, units, side : SetDigest
        Of the explicit ids; of which row is about whom; of each row's side.
    told : (ceil(K/8),) uint8, or None
        Of the law: see `Law.told_apart`.
    """

    rows: int = 0
    pins: dict[str, Pin] = field(default_factory=dict)
    ids: SetDigest = field(default_factory=SetDigest)
    units: SetDigest = field(default_factory=SetDigest)
    side: SetDigest = field(default_factory=SetDigest)
    told: NDArray[np.uint8] | None = None

    def check(self, run_id: str) -> tuple[int, int, int]:
        """Return the number of rows, and two sums modulo 2^64 over labels, units and sides: both passes must come to the same."""
        first, second = (sum(map(int, each)) for each in zip(self.pins[run_id].sums, self.units.sums, self.side.sums, strict=True))
        return self.rows, first % 2**64, second % 2**64

    def note(self, public: Mapping[str, list[Array]]) -> None:
        """Add rows to the digests of these names, as `_public` gives them."""
        for name, columns in public.items():
            getattr(self, name).update(*columns)

    def tell(self, told: NDArray[np.uint8] | None) -> None:
        """Add classes that further rows tell from all others."""
        self.told = told if self.told is None or told is None else self.told | told

    def merge(self, other: "PassSums") -> None:
        """Add another part's sums."""
        self.rows += other.rows
        # Sums and sets of classes: the order of merging does not matter, as engines promise none.
        self.tell(other.told)
        for run_id, pin in other.pins.items():
            if run_id in self.pins:
                self.pins[run_id].merge(pin)
            else:
                self.pins[run_id] = pin
        for mine, theirs in ((self.ids, other.ids), (self.units, other.units), (self.side, other.side)):
            mine.merge(theirs)


class FirstPass:
    """Takes note of batches before anything is charged.

    Parameters
    ----------
    facts : RunFacts
    secrets : sequence of RunSecret
        Under which this input might be drawn: a new one, and those of crashed runs that it may belong to.
    """

    def __init__(self, facts: RunFacts, secrets: Sequence[RunSecret]) -> None:
        self.facts = facts
        self.sums = PassSums(pins={secret.run_id: Pin(secret.key("pin")) for secret in secrets})
        self._secrets = [(secret, secret.key("ids")) for secret in secrets]

    def add(
        self, codes: NDArray[np.int32], ids: Ids | None, start: int = 0, units: Ids | None = None, prior: Array | None = None
    ) -> list[Blocks]:
        """Add (n,) codes with their ids, or the row numbers from `start`; returns the rows' blocks under each secret."""
        found = []
        # The pin is summed under every secret that this input may turn out to belong to, so that finding out costs no further pass.
        for secret, ids_key in self._secrets:
            blocks = blocks_of_rows(len(codes), start, ids, ids_key)
            self.sums.pins[secret.run_id].update(blocks, codes)
            found.append(blocks)
        names = np.arange(start, start + len(codes)) if ids is None else ids
        if ids is not None:
            self.sums.ids.update(*_columns(ids))
        side = side_of(self.facts, prior, len(codes), start, ids)
        self.sums.note(_public(names, units, side))
        self.sums.tell(self.facts.law.told_apart(side))
        self.sums.rows += len(codes)
        return found


@dataclass(frozen=True)
class BatchDraw:
    """A batch after its draw.

    Attributes
    ----------
    noisy : NoisyLabels
        Of the kept rows.
    blocks : Blocks
        Of the kept rows.
    check : (n, 2) uint64, or None
        What each row adds to `PassSums.check`, where it was asked for; else the pass has added it up itself.
    kept : (n,) bool
        Marks the kept rows: those within their unit's cap and of the part that is drawn.
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
    prior : str
        Digest of the side of all rows, "" where the law uses none.
    stage : str
    """

    def __init__(self, facts: RunFacts, secret: RunSecret, receipt: Receipt, prior: str = "", stage: str = "release") -> None:
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
        """Draw (n,) codes, each with its own id or row number; only rows that are `kept`, and of the run's part, get an output.

        `units` must be those of the first pass. `check_rows` asks for what each row adds to the sums, for engines that know only later
        which rows they keep.
        """
        # The same reading of ids and units as in the first pass, whose sums it must come to.
        blocks = blocks_of_rows(len(codes), start, ids, self._ids_key)
        names = np.arange(start, start + len(codes)) if ids is None else ids
        side = side_of(self.facts, prior, len(codes), start, ids)
        check = self._note(blocks, codes, _public(names, units, side), check_rows)
        # Sums are over all rows, kept or not: rows that are left out are part of the input that was charged, too.
        kept = self._chosen(blocks, kept)
        if not kept.all():
            codes, blocks, names = codes[kept], blocks[kept], filtered(names, kept)
            side = {name: values[kept] for name, values in side.items()}
        noisy = self._draw.release(codes, blocks, side, _names(names, self.facts.law, len(codes)), explicit_ids=ids is not None)
        return BatchDraw(noisy, blocks, check, kept)

    def _chosen(self, blocks: Blocks, within_cap: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        """Mark the rows that get an output: (n,) bool."""
        kept = np.ones(len(blocks), bool) if within_cap is None else within_cap
        share = self.facts.share
        return kept if share is None else kept & (partition(self._part_key, blocks, share.fractions) == share.number)

    def _note(
        self, blocks: Blocks, codes: NDArray[np.int32], public: Mapping[str, list[Array]], check_rows: bool
    ) -> NDArray[np.uint64] | None:
        # An engine that tries tasks again must not add a row twice, so each row's share travels with the row until it is final.
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
        """Draw a secret random word for each row, to order the output by: (n,) uint64."""
        return one_word(self._order_key, blocks)


def blocks_of_rows(n: int, start: int, ids: Ids | None, ids_key: Key) -> Blocks:
    """Name n rows by blocks: of their ids, or of the row numbers from `start`."""
    return row_blocks(n, start) if ids is None else id_blocks(ids, ids_key)


def side_of(facts: RunFacts, prior: Array | None, n_rows: int, start: int, ids: Ids | None) -> dict[str, Array]:
    """Let the law decide the side of n rows from their prior, uniform if None, and their public words; {} where it uses no prior."""
    law = facts.law
    if not law.uses_prior:
        return {}
    words = question_words(law, facts.dataset, facts.column, lambda key: blocks_of_rows(n_rows, start, ids, key))
    return law.prepare(np.broadcast_to(1.0, (n_rows, law.n_classes)) if prior is None else prior, words(slice(0, n_rows)))


def packed(side: Mapping[str, Array]) -> NDArray[np.uint8]:
    """Pack every row's side into bytes, its arrays by name, little-endian: (n, width) uint8."""
    parts = [np.ascontiguousarray(side[name], side[name].dtype.newbyteorder("<")) for name in sorted(side)]
    return np.hstack([part.reshape(len(part), -1).view(np.uint8) for part in parts])


def _public(names: Ids, units: Ids | None, side: Mapping[str, Array]) -> dict[str, list[Array]]:
    """Collect what both passes must read of each row besides its label, by the digest of `PassSums` that it enters."""
    # Units and sides are public, but they decide who is kept and how a row is drawn: if they changed between the passes, rows would
    # be drawn that nobody charged for.
    found = {} if units is None else {"units": [*_columns(names), *_columns(units)]}
    return found | ({"side": [*_columns(names), packed(side)]} if side else {})


def filtered(ids: Ids, kept: NDArray[np.bool_]) -> Ids:
    """Choose the ids of the kept rows."""
    return [_of_rows(column, kept) for column in ids] if isinstance(ids, list) else _of_rows(ids, kept)


def _of_rows(column: Array, kept: NDArray[np.bool_]) -> Array:
    return column[kept] if isinstance(column, np.ndarray) else column.take(np.flatnonzero(kept))


def _columns(ids: Ids) -> list[Array]:
    return ids if isinstance(ids, list) else [ids]


def _names(ids: Ids, law: Law, n_rows: int) -> Array:
    """Turn the ids into a NumPy array, as ties are broken by them; where a law knows no ties, row numbers stand for text."""
    if isinstance(ids, np.ndarray):
        return ids
    # Ids break ties between equally likely classes; a released label has none.
    if law.kind == "label":
        return np.arange(n_rows)
    return np.column_stack([np.asarray(c).astype(np.str_) for c in ids]) if isinstance(ids, list) else np.asarray(ids).astype(np.str_)
