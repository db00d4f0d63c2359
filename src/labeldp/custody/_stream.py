# SPDX-License-Identifier: Apache-2.0
"""The door for tables that do not fit in memory: one pass to pin the input and charge, a second one to draw.

Part of the door (`labeldp.custody._door`): raw labels enter as class codes, batch by batch, and leave as `NoisyLabels`.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp._hash import SetDigest, public_hash
from labeldp.custody._batches import FirstPass, Ids, PassSums, RunFacts, RunSecret, SecondPass
from labeldp.custody._charge import Charge, begin, fresh_secret, kept_secret, warn_of_repeat
from labeldp.custody._draw import check_contract, law_per_row
from labeldp.custody._encode import declare
from labeldp.custody._request import Account, Request
from labeldp.custody._staged import Stage, StageTurn
from labeldp.custody._table_rows import keep_within_cap
from labeldp.errors import InvalidInput, LedgerError, ReleaseError
from labeldp.evidence import NoisyLabels
from labeldp.laws._base import Array, Law, check_told_apart
from labeldp.ledger._entries import File
from labeldp.ledger._ledger import RunRecord
from labeldp.ledger._rowset import RowSetBuilder
from labeldp.ledger._run_store import RunStore
from labeldp.noise._blocks import ROW
from labeldp.noise._secrets import KeySource, SecretHalves, UnknownReleaseSecret
from labeldp.noise._words import Blocks, id_blocks, one_word
from labeldp.receipt import Receipt

_CRASHED_RUNS_TRIED = 3
RELEASE = "release"
"""Name of the draw of a release in one stage."""


class StreamRun:
    """One charge over a table that is read twice.

    On one machine: call `pin` for every batch, then `charge`; if `settled` is None, `draw` every batch, `check_pin`, publish, and
    `settle`. On a cluster the workers run `FirstPass` and `SecondPass`, and `absorb` takes their sums in.

    Memory: what the row set takes (`RowSetBuilder`), 20 bytes a row where rows are capped per unit on one machine, nothing else that
    grows with n.

    Parameters
    ----------
    law : Law
        Its epsilon is the unit's total.
    classes : sequence of K values
    account : Account
        With a ledger.
    unit_name : str
        "row", or the name of the unit's column.
    id_name : str
        What the ids are called (`labeldp.custody._row_ids.joined`). The ledger tells rows of different runs apart where it is the same.
    stage : Stage, optional
        One stage of a planned release: only the rows of its part are drawn, and the first one is charged for all.
    prior : str, optional
        Names the prior in the request, where asking it again could give something else. None: what it decides of each row does.
    facts : mapping
        Further public facts that make requests different.
    """

    def __init__(
        self,
        law: Law,
        classes: Sequence[object],
        account: Account,
        *,
        unit_name: str = "row",
        id_name: str = "id",
        stage: Stage | None = None,
        prior: str | None = None,
        facts: Mapping[str, object] | None = None,
    ) -> None:
        ledger, dataset, column, cap = account.ledger, str(account.dataset), account.column, account.max_rows_per_unit
        if not dataset or ledger is None:
            raise InvalidInput("Expected a ledger and a dataset name: the public name under which this data set's budget is kept.")
        self.law = law_per_row(law, cap)
        for each in (law,) if stage is None else stage.laws:  # the first stage is charged for all
            check_contract(law_per_row(each, cap))
        share = None if stage is None else stage.share
        self.facts = RunFacts(dataset, column, unit_name, cap, declare(classes, law.n_classes), self.law, share)
        self.settled: RunRecord | None = None
        self._total, self._stage = law, stage
        self._ledger, self._account = ledger, account
        self._turn = None if stage is None else StageTurn(ledger, dataset, column, stage)
        if self._turn is not None:
            self._turn.check(law, redraw=account.redraw)
        self._more = dict(facts or {})
        self._halves: dict[str, SecretHalves] = {}
        crashed = self._crashed()
        self._fresh: SecretHalves | None = fresh_secret(ledger)
        self.candidates = (self._candidate(self._fresh), *crashed)
        self._first = FirstPass(self.facts, self.candidates)
        self._units = _Units()
        self._row_set: RowSetBuilder | None = None
        self._distinct = False
        self._id_name = id_name
        self._prior = prior
        self._rows = 0
        self._second: SecondPass | None = None
        self._charge: Charge | None = None
        self._kept: NDArray[np.bool_] | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("A run holds a secret, so it is never pickled.")

    @property
    def receipt(self) -> Receipt:
        """The charge; only after `charge`."""
        if self._charge is None:
            raise LedgerError("Expected charge() before this: nothing is drawn without a receipt.")
        return self._charge.receipt

    # First pass ---------------------------------------------------------------------------------------------------------------------

    def pin(self, codes: NDArray[np.int32], *, ids: Ids | None = None, units: Ids | None = None, prior: Array | None = None) -> None:
        """Take note of a batch: (n,) codes, (n,) ids, (n,) units, (n, K) prior, as `draw` will be given them."""
        start, self._rows = self._rows, self._rows + len(codes)
        found = self._first.add(codes, ids, start, units, prior)
        if ids is not None or units is not None:
            self._row_set = self._row_set or self.row_set_builder()
            self._row_set.add(ids, units)
        if units is not None:
            words = [one_word(secret.key("unit-cap"), blocks) for secret, blocks in zip(self.candidates, found, strict=True)]
            self._units.add(id_blocks(units, self.candidates[0].key("ids")), words)

    def absorb(self, sums: PassSums, rows: RowSetBuilder | None = None) -> None:
        """Take in what a worker added up over its part of the table; the engine calls `require_distinct`."""
        self._first.sums.merge(sums)
        if rows is not None:
            if self._row_set is None:
                self._row_set = rows
            else:
                self._row_set.merge(rows)

    def row_set_builder(self, *, integers: bool = False) -> RowSetBuilder:
        """An empty builder of the rows' ids, and of the units where these are named."""
        return self._ledger.row_set_builder(self._id_name, self.facts.unit, integers=integers)

    def require_distinct(self, look: Callable[[], bool]) -> None:
        """Refuse ids that occur twice, after the first pass: by the number of different ones.

        `look` tells where that cannot, since two hashes of text are equal, or no set is kept: whether some id occurs twice.
        """
        found = None if self._row_set is None else self._row_set.repeated
        if look() if found is None else found:
            raise InvalidInput("Expected different ids, but some id occurs more than once. Each row needs an id of its own.")
        self._distinct = True

    @property
    def prior_digest(self) -> str:
        """Digest of the side of all rows, "" where the law uses no prior."""
        return self.sums.side.hexdigest() if self._total.uses_prior else ""

    @property
    def sums(self) -> PassSums:
        """What the first pass has added up."""
        return self._first.sums

    def lookup(self, public_digest: str = "") -> RunRecord | None:
        """The charged or settled run that this input would repeat, after the first pass; charges nothing.

        `public_digest` names the public columns where there are no ids.
        """
        if self.sums.ids.count and not self._distinct:
            self.require_distinct(lambda: True)
        plan = self._plan(public_digest)
        if self._turn is not None:
            self._turn.check_same(plan.identity, lambda halves: self._pin_of(RunSecret(halves.run_id, halves.secret, self.facts)))
        return self._ledger.find(plan.column.dataset, plan.column.column, plan.identity)

    def planned(self, public_digest: str = "") -> RunSecret | None:
        """The secret that `charge` is about to draw with, of a run to pick up or a new one; None where this very release was made before.

        For priors that are asked before the charge, and not again where a run is picked up.
        """
        known = self.lookup(public_digest)
        if self._turn is not None:
            return None if self._turn.is_done else self.candidates[-1]
        for secret in self.candidates[1:] if known is not None and known.state == "charged" else ():
            pin = RunStore(self._ledger.run_dir(secret.run_id)).read("pin")
            if known is not None and secret.run_id == known.run_id and pin == self.sums.pins[secret.run_id].hexdigest().encode():
                return secret
        identity = self._plan(public_digest).identity
        runs = [] if self._account.redraw else self._ledger.runs(self.facts.dataset, self.facts.column)
        return None if any(run.state == "settled" and run.identity == identity for run in runs) else self.candidates[0]

    def take_side(self, side: SetDigest, told: NDArray[np.uint8] | None = None) -> None:
        """Take in what the prior decides of all rows, before `charge`, where the first pass has not asked it; `told` as in `PassSums`."""
        self.sums.side, self.sums.told = side, self.sums.told if told is None else told

    def check_may_ask(self, secret: RunSecret, noted: bool) -> None:
        """Refuse to ask a prior again of which it cannot be told whether something was drawn with former answers.

        `secret` is what `planned` gave; `noted`: the run's folder says what was asked before its charge. A stage notes in its turn.
        """
        if self._stage is None and secret is not self.candidates[0] and (not noted or self._is_set_back(secret.run_id)):
            raise lost_answers(secret.run_id)

    def _is_set_back(self, run_id: str) -> bool:
        """The ledger knows files of a draw that the run's folder does not."""
        return bool(self._ledger.parts(run_id)) and RunStore(self._ledger.run_dir(run_id)).read(f"{RELEASE}.side") is None

    def check_side(self, run_id: str, side: str) -> None:
        """Refuse another side than a draw of this run and stage has begun with: the same rows would be drawn twice."""
        if self._turn is not None:
            self._turn.check_side(side)
        elif RunStore(self._ledger.run_dir(run_id)).read(f"{RELEASE}.side") not in (None, side.encode()):
            raise lost_answers(run_id)

    def charge(self, public_digest: str = "") -> Receipt:
        """Charge the run, pick up the crashed one that this input belongs to, or find the settled one that it repeats (`settled`)."""
        self.lookup(public_digest)
        plan = self._plan(public_digest)
        if self._stage is None or self._stage.number == 1:
            check_told_apart(self.law, self.sums.told, self.facts.values, self.sums.rows)
        coverage = None if self._row_set is None else self._row_set.finish()
        charge = begin(plan, self._account, pin_of=self._pin_of, fresh=self._fresh, coverage=coverage)
        self._fresh = self._row_set = None
        self._charge, self.settled = charge, charge.settled
        if self._turn is not None:
            self.settled = self._turn.begin(charge.run_id, self._named_prior, self.prior_digest)
        elif self._prior is not None and charge.store is not None and charge.settled is None:
            # a prior that could be asked twice is drawn with once
            charge.store.keep(f"{RELEASE}.side", self.prior_digest.encode())
            self.check_side(charge.run_id, self.prior_digest)
        if self.settled is not None:
            warn_of_repeat(charge.receipt, "the labels of the table given now are not in it")
        if charge.secret is not None and self.settled is None:
            place, chosen = next((i, each) for i, each in enumerate(self.candidates) if each.run_id == charge.run_id)
            self.secret, self._rows = chosen, 0
            self._second = SecondPass(self.facts, chosen, charge.receipt, self.prior_digest, self.stage_name)
            self._kept = self._units.kept(place, self.facts.max_rows_per_unit)
        self._units.forget()
        self._halves = {} if self._second is None else {charge.run_id: self._halves[charge.run_id]}
        return charge.receipt

    def for_workers(self) -> list[tuple[str, bytes, KeySource | None]]:
        """What workers need to have the secrets of this pass (`labeldp.custody._batches.run_secrets_of`); send it to them privately."""
        return [(run_id, *halves.for_worker()) for run_id, halves in self._halves.items()]

    # Second pass ---------------------------------------------------------------------------------------------------------------------

    def draw(
        self,
        codes: NDArray[np.int32],
        *,
        ids: Ids | None = None,
        units: Ids | None = None,
        prior: Array | None = None,
        ordered: bool = True,
    ) -> tuple[NoisyLabels, NDArray[np.bool_], NDArray[np.uint64] | None]:
        """Draw a batch.

        Parameters
        ----------
        codes, ids, units, prior
            As in `pin`.
        ordered : bool
            Whether words are wanted.

        Returns
        -------
        noisy : NoisyLabels
            Of the rows within their unit's cap, and of the stage's part.
        kept : (n,) bool
            Marks these rows.
        words : uint64, one for each of these rows, or None
            Secret and random, to order the output by: the same whatever order the rows come in.
        """
        second = self.second
        start, self._rows = self._rows, self._rows + len(codes)
        drawn = second.draw(codes, ids, start, prior, self._kept_of(start, codes, ids), units=units)
        return drawn.noisy, drawn.kept, second.order_words(drawn.blocks) if ordered else None

    @property
    def second(self) -> SecondPass:
        """The pass that draws."""
        _ = self.receipt  # says what is missing
        if self._second is None:
            raise LedgerError("Expected a charged run that has not settled: call charge() first, and draw only if `settled` is None.")
        return self._second

    def check_pin(self, check: tuple[int, int, int] | None = None) -> None:
        """Refuse to publish if the second pass did not read what the first one did; `check` is what workers came to."""
        run_id = self.receipt.run_id
        if (self.second.sums.check(run_id) if check is None else check) != self.sums.check(run_id):
            raise changed_input()

    def announce(self, files: Sequence[File], drawn: str) -> None:
        """Write the output's files, and the digest of what was drawn, into the ledger, before the files get their final names."""
        intend = self._ledger.intend if self._turn is None else self._turn.announce
        intend(self.receipt.run_id, files, {self.stage_name: drawn})

    def settle(self, artefact: str) -> None:
        """Record the digest of the published output and destroy the secret; of stages, after the last one."""
        if self._turn is not None:
            self._turn.finish(artefact)
            return
        if self._charge is not None:
            self._charge.settle(artefact)

    # Details --------------------------------------------------------------------------------------------------------------------------

    @property
    def stage_name(self) -> str:
        """Name of the draw."""
        return RELEASE if self._stage is None else self._stage.name

    def _plan(self, public_digest: str) -> Request:
        sums = self.sums
        drawn = {"law": self._total.to_dict(), "stage": RELEASE} if self._stage is None else self._stage.facts()
        return Request(
            self.facts,
            self._total.epsilon,
            drawn | self._more,
            prior=self._named_prior if self._stage is None else "",
            rows=sums.ids.hexdigest() if sums.ids.count else public_digest,
            units=sums.units.hexdigest() if sums.units.count else "",
            id_name=self._id_name if sums.ids.count else "",
        )

    @property
    def _named_prior(self) -> str:
        return self.prior_digest if self._prior is None else self._prior

    def _pin_of(self, secret: RunSecret) -> str:
        return self.sums.pins[secret.run_id].hexdigest() if any(map(secret.is_of, self.candidates)) else ""

    def _candidate(self, halves: SecretHalves) -> RunSecret:
        self._halves[halves.run_id] = halves
        return RunSecret(halves.run_id, halves.secret, self.facts)

    def _crashed(self) -> list[RunSecret]:
        """Runs of this column that were charged and never settled, newest first."""
        found: list[RunSecret] = []
        runs = self._ledger.runs(self.facts.dataset, self.facts.column) if self._turn is None else self._turn.runs
        for record in reversed(runs):
            if record.state != "charged" or len(found) == _CRASHED_RUNS_TRIED:
                continue
            with contextlib.suppress(UnknownReleaseSecret):  # `begin` says so, if this is the run to pick up
                halves = kept_secret(self._ledger, record.run_id)
                found += [] if halves is None else [self._candidate(halves)]
        return found

    def _kept_of(self, start: int, codes: NDArray[np.int32], ids: Ids | None) -> NDArray[np.bool_]:
        """(n,) bool: which of these rows are within their unit's cap; they must stand where they stood in the first pass."""
        if self._kept is None:
            return np.ones(len(codes), bool)
        rows = slice(start, start + len(codes))
        blocks = Blocks(ROW, range(start, start + len(codes))) if ids is None else id_blocks(ids, self.secret.key("ids"))
        if not np.array_equal(one_word(self.secret.key("unit-cap"), blocks), self._units.words[rows]):
            raise changed_input()  # which the pin does not see: it knows no order
        return self._kept[rows]


@dataclass
class _Units:
    """Who each row of a table on one machine is about, and the words that decide which rows of a unit are kept."""

    codes: list[NDArray[np.uint64]] = field(default_factory=list)
    per_candidate: list[list[NDArray[np.uint64]]] = field(default_factory=list)
    words: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))

    def add(self, units: Blocks, words: Sequence[NDArray[np.uint64]]) -> None:
        self.codes.append(units.halves()[0].copy())
        self.per_candidate = self.per_candidate or [[] for _ in words]
        for known, new in zip(self.per_candidate, words, strict=True):
            known.append(new)

    def kept(self, place: int, cap: int) -> NDArray[np.bool_] | None:
        """(n,) bool: rows within the cap, by the words of this candidate; None where no units were given."""
        if not self.codes:
            return None
        self.words = np.concatenate(self.per_candidate[place])
        return keep_within_cap(np.concatenate(self.codes), self.words, cap)

    def forget(self) -> None:
        self.codes, self.per_candidate = [], []


def ids_repeat(batches: Callable[[], Iterable[Ids]]) -> bool:
    """Whether two rows have one id, by the ids themselves; for text, or several columns of text.

    Cost: two passes over the batches, a sort of 8 bytes a row.
    """
    words = np.concatenate([public_hash("ids", ids) for ids in batches()])
    words.sort()
    suspects = words[1:][words[1:] == words[:-1]]
    seen: set[tuple[object, ...]] = set()
    for ids in batches():
        rows = np.flatnonzero(np.isin(public_hash("ids", ids), suspects))
        columns = ids if isinstance(ids, list) else [ids]
        for name in zip(*(pa.array(column).take(pa.array(rows)).to_pylist() for column in columns), strict=True):
            if name in seen:
                return True
            seen.add(name)
    return False


def lost_answers(run_id: str) -> ReleaseError:
    """What is said where a model's answers are gone and other ones must not take their place."""
    return ReleaseError(
        f"Expected the prior that run {run_id} was charged with, as its model gave it, but the files of it are gone or not whole, and "
        f"something may have been drawn with it: a row is never drawn under two priors. Restore them, or give the charge up with "
        f"`labeldp ledger abandon {run_id}`; its epsilon stays spent."
    )


def changed_input() -> ReleaseError:
    """What is said of a table that was not the same in both passes."""
    return ReleaseError(
        "Expected the same input in both passes, but it changed while it was read. Nothing was published; the charge stands. "
        "Release a file that nobody writes to."
    )
