# SPDX-License-Identifier: Apache-2.0
"""Privatizes tables that do not fit in memory, in two passes: the first pins the input, then the
run is charged, and the second draws.

Raw labels enter as class codes, batch by batch, and leave as `NoisyLabels`. `labeldp.custody._run`
does the same in memory.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labeldp._hash import SetDigest, digest, public_hash
from labeldp.aggregates import Aggregate, Histogram
from labeldp.custody._answer import drawn_answer
from labeldp.custody._counts import GroupCounts
from labeldp.custody._draw import (
    FirstPass,
    Ids,
    PassSums,
    RunFacts,
    SecondPass,
    SecretParts,
    blocks_of_rows,
    check_contract,
    law_per_row,
)
from labeldp.custody._encode import declare
from labeldp.custody._request import (
    Account,
    Charge,
    Request,
    RunSecret,
    begin,
    fresh_secret,
    kept_secret,
)
from labeldp.custody._rows import keep_within_cap
from labeldp.custody._staged import Stage, StageTurn
from labeldp.errors import InvalidInput, LedgerError, ReleaseError
from labeldp.evidence import NoisyLabels
from labeldp.laws._base import Law, check_told_apart, law_from_dict, made_for_shares, within
from labeldp.laws._exact import Array
from labeldp.ledger._database import File
from labeldp.ledger._ledger import Ledger, RunRecord
from labeldp.ledger._rowset import RowSetBuilder
from labeldp.ledger._run_store import RunStore
from labeldp.noise._secrets import SecretHalves, UnknownReleaseSecret, new_secret
from labeldp.noise._words import Blocks, id_blocks, one_word
from labeldp.receipt import Receipt

# each needs a pin over all rows; a run older than these is not found, and a new one is charged
_CRASHED_RUNS_TRIED = 3
LOCAL_FIX = "Release a file that nobody writes to."
RELEASE = "release"
"""Name of the only stage of a release without a plan of stages."""
HISTOGRAM = "histogram"
"""The fact of a release, and the file in its run's folder, that hold its own histogram of all
labels."""
Divide = Callable[[int], tuple[Histogram, float]]
"""A function of the number of rows that divides epsilon between a histogram of all rows and the
draws with it as their prior."""


class TablePin:
    """The pass over a table before its charge. Its sums identify the labelled input.

    On one machine call `add` for every batch, then `charge`. On a cluster workers run `FirstPass`,
    and `absorb` merges their sums.

    Parameters
    ----------
    law : Law
        Its epsilon is the total for one unit.
    classes : sequence of K values
    account : Account
        It must have a ledger.
    unit_name : str
        "row" (default), or the name of the column of units.
    id_name : str, default="id"
        The name of the ids (`labeldp.custody._encode.joined`). Only ids of the same name can prove
        rows of two runs different.
    stage : Stage, optional
        One stage of a planned release: only the rows of its part are drawn, and stage 1 is charged
        for all stages.
    prior : str, optional
        The name of the prior in the request, for a prior that may give other weights if it is asked
        again. None: the digest of its sides.
    facts : mapping, optional
        Further public facts of the request.
    divide : Divide, optional
        Divides the law's epsilon: the run first answers a histogram of all rows, once, which is
        then the prior of every row.

    Notes
    -----
    Memory: the row set (`RowSetBuilder`), and 20 bytes a row if rows are capped per unit on one
    machine; with a histogram then also the class codes.
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
        divide: Divide | None = None,
    ) -> None:
        ledger, dataset, column, cap = (
            account.ledger,
            account.dataset,
            account.column,
            account.max_rows_per_unit,
        )
        if not dataset or ledger is None:
            raise InvalidInput(
                "Expected a ledger and a dataset name: the public name under which this data set's"
                " budget is kept."
            )
        row_law = law_per_row(law, cap)
        # Stage 1 is charged for all stages, so the laws of all are checked now: a law refused later
        # would leave epsilon unused.
        for each in (law,) if stage is None else stage.laws:
            check_contract(law_per_row(each, cap))
        share = None if stage is None else stage.share
        weights = None if divide is None else ()
        self.facts = RunFacts(
            dataset,
            column,
            unit_name,
            cap,
            declare(classes, law.n_classes),
            row_law,
            share,
            weights,
        )
        self._total, self._stage = law, stage
        self._divide, self._charged = divide, law
        self._query: Histogram | None = None
        self._counts = None if divide is None else _LabelCounts(law.n_classes)
        self._ledger, self._account = ledger, account
        self._turn = None if stage is None else StageTurn(ledger, dataset, column, stage)
        if self._turn is not None:
            self._turn.check(law, redraw=account.redraw)
        self._more = dict(facts or {})
        self._id_name, self._prior = id_name, prior
        # Whether the input belongs to a crashed run is known only after its last row, by the pin
        # under that run's secret. So the pin is computed under all candidates at once.
        crashed, self._fresh = self._crashed(), fresh_secret(ledger)
        self._halves = {each.run_id: each for each in (self._fresh, *crashed)}
        self.candidates = tuple(
            RunSecret(each.run_id, each.secret, self.facts) for each in self._halves.values()
        )
        self._first = FirstPass(self.facts, self.candidates)
        self._units = _Units()
        self._row_set: RowSetBuilder | None = None
        self._distinct = False
        self._rows = 0

    def __reduce__(self) -> NoReturn:
        raise TypeError("A pass over a table holds secrets, so it is never pickled.")

    @property
    def sums(self) -> PassSums:
        """The sums of the pass so far."""
        return self._first.sums

    @property
    def stage_name(self) -> str:
        """The name of the stage that is drawn."""
        return RELEASE if self._stage is None else self._stage.name

    def for_workers(self) -> SecretParts:
        """Return the parts from which workers compute this pass's secrets (`run_secrets_of`). Send
        them over a private channel only."""
        return [(run_id, *halves.for_worker()) for run_id, halves in self._halves.items()]

    # Rows
    # ----------------------------------------------------------------------------------------------

    def add(
        self,
        codes: NDArray[np.int32],
        *,
        ids: Ids | None = None,
        units: Ids | None = None,
        prior: Array | None = None,
    ) -> None:
        """Add a batch: (n,) codes, (n,) ids, (n,) units and (n, K) prior, the same that
        `TableDraw.draw` will get."""
        start, self._rows = self._rows, self._rows + len(codes)
        found = self._first.add(codes, ids, start, units, prior)
        if ids is not None or units is not None:
            self._row_set = self._row_set or self.row_set_builder()
            self._row_set.add(ids, units)
        if units is not None:
            words = {
                each.run_id: one_word(each.key("unit-cap"), blocks)
                for each, blocks in zip(self.candidates, found, strict=True)
            }
            # Units are only compared with each other here, so any key will do. `_Units` keeps 8 of
            # the 12 bytes, to save memory: if two units collide, they share one cap, and fewer rows
            # are drawn.
            self._units.add(id_blocks(units, self.candidates[0].key("ids")), words)
        if self._counts is not None:
            self._counts.add(codes, all_count=units is None)

    def absorb(self, sums: PassSums, rows: RowSetBuilder | None = None) -> None:
        """Merge the sums and the row set of a worker. The engine must call `require_distinct`
        afterwards."""
        self.sums.merge(sums)
        if rows is not None:
            if self._row_set is None:
                self._row_set = rows
            else:
                self._row_set.merge(rows)

    def row_set_builder(self, *, integers: bool = False) -> RowSetBuilder:
        """Make an empty builder for the set of the rows' ids and units."""
        return self._ledger.row_set_builder(self._id_name, self.facts.unit, integers=integers)

    def require_distinct(
        self,
        look: Callable[[], bool],
        said: Callable[[], str] = lambda: "some id occurs more than once",
    ) -> None:
        """Refuse repeated ids, after all rows.

        Parameters
        ----------
        look : function
            Compares the ids themselves, and tells whether one is repeated. Called only if the row
            set cannot tell: two hashes of text are equal, or there is no set.
        said : function
            Says which rows have the same id.
        """
        found = None if self._row_set is None else self._row_set.repeated
        if look() if found is None else found:
            raise InvalidInput(
                f"Expected different ids, but {said()}. Each row needs an id of its own."
            )
        self._distinct = True

    # The prior of all rows
    # ----------------------------------------------------------------------------------------------

    @property
    def prior_digest(self) -> str:
        """The digest of the side of all rows, or of the weights that they share; "" if the law uses
        no prior."""
        if not self._total.uses_prior:
            return ""
        return (
            self.sums.side.hexdigest()
            if self.facts.weights is None
            else digest({"weights": list(self.facts.weights)})
        )

    def take_side(self, side: SetDigest, told: NDArray[np.uint8] | None = None) -> None:
        """Set the digest of the side of all rows, if the prior was asked outside this pass; `told`
        as in `PassSums`."""
        self.sums.side, self.sums.told = side, self.sums.told if told is None else told

    def planned(self, public_digest: str = "") -> RunSecret | None:
        """Find the secret that `charge` will draw with, of a run to resume or a new one; None if
        this release was made before.

        For priors that are asked before the charge, and not asked again if a run is resumed.
        """
        known = self.lookup(public_digest)
        if self._turn is not None:
            return None if self._turn.is_done else self.candidates[-1]
        for secret in self.candidates[1:] if known is not None and known.state == "charged" else ():
            pin = RunStore(self._ledger.run_dir(secret.run_id)).read("pin")
            if (
                known is not None
                and secret.run_id == known.run_id
                and pin == self._pin_of(secret).encode()
            ):
                return secret
        identity = self._request(public_digest).identity
        runs = (
            []
            if self._account.redraw
            else self._ledger.runs(self.facts.dataset, self.facts.columns[0])
        )
        return (
            None
            if any(run.state == "settled" and run.identity == identity for run in runs)
            else self.candidates[0]
        )

    def check_may_ask(self, secret: RunSecret, noted: bool) -> None:
        """Refuse to ask a prior again if rows may have been drawn under its former answers.

        Parameters
        ----------
        secret : RunSecret
            The result of `planned`.
        noted : bool
            True if the run's folder names the answers that the prior gave before the charge.
        """
        if (
            self._stage is None
            and secret is not self.candidates[0]
            and (not noted or self._is_set_back(secret.run_id))
        ):
            raise lost_answers(secret.run_id, self._ledger)

    def _is_set_back(self, run_id: str) -> bool:
        """Tell whether the run's folder was restored from an older copy: the ledger has files of a
        draw that the folder does not know."""
        return (
            bool(self._ledger.parts(run_id))
            and RunStore(self._ledger.run_dir(run_id)).read(f"{RELEASE}.side") is None
        )

    def check_side(self, run_id: str, side: str) -> None:
        """Refuse another side than the one with which a draw of this run and stage has started:
        rows would be drawn twice."""
        if self._turn is not None:
            self._turn.check_side(side)
        elif RunStore(self._ledger.run_dir(run_id)).read(f"{RELEASE}.side") not in (
            None,
            side.encode(),
        ):
            raise lost_answers(run_id, self._ledger)

    # The charge
    # ----------------------------------------------------------------------------------------------

    def lookup(self, public_digest: str = "") -> RunRecord | None:
        """Find the charged or settled run that this input would resume or repeat, after all rows;
        charge nothing.

        `public_digest` is the digest of the public columns, for tables without ids.
        """
        # An engine that forgot `require_distinct` fails here, instead of drawing a row twice.
        if self.sums.ids.count and not self._distinct:
            self.require_distinct(lambda: True)
        self._set_share()
        request = self._request(public_digest)
        if self._turn is not None:
            self._turn.check_same(
                request.identity,
                lambda halves: self._pin_of(RunSecret(halves.run_id, halves.secret, self.facts)),
            )
        return self._ledger.find(self.facts.dataset, self.facts.columns[0], request.identity)

    def charge(self, public_digest: str = "") -> "TableDraw | RunRecord":
        """Charge a run, or resume the crashed one of this input; or return the settled run that the
        input repeats."""
        # repeated, although the engine has called it: another process may have charged since
        self.lookup(public_digest)
        if self._stage is None or self._stage.number == 1:
            check_told_apart(self.facts.law, self.sums.told, self.facts.values, self.sums.rows)
        coverage = None if self._row_set is None else self._row_set.finish()
        charge = begin(
            self._request(public_digest),
            self._account,
            pin_of=self._pin_of,
            fresh=self._fresh,
            coverage=coverage,
        )
        # The ledger has stored the row set; its memory is needed for the second pass.
        self._row_set = None
        settled = self._settled(charge)
        if settled is not None:
            return replace(settled, receipt=charge.receipt)
        if charge.secret is None:
            raise LedgerError(
                f"Expected a run that may still draw, but run {charge.run_id} has settled"
                " meanwhile. Run this again."
            )
        kept = self._units.kept(charge.run_id, self.facts.max_rows_per_unit)
        histogram = self._answer(
            charge, self._request(public_digest), None if kept is None else kept.kept
        )
        return TableDraw(
            charge, charge.secret, self, self._halves[charge.run_id], kept, self._turn, histogram
        )

    # The histogram of all rows
    # ----------------------------------------------------------------------------------------------

    def _set_share(self) -> None:
        """Divide epsilon between the histogram and the draws, once all rows are known; refuse,
        before the charge, what cannot be drawn."""
        if self._divide is None or self._query is not None:
            return
        cap = self.facts.max_rows_per_unit
        query, rest = self._divide(self.sums.rows)
        query.require_cap(cap)
        law = within(self._total.at(rest), rest)
        check_contract(law_per_row(law, cap))
        self._query, self._charged, self.facts = (
            query,
            law,
            replace(self.facts, law=law_per_row(law, cap)),
        )

    def _answer(
        self, charge: Charge, request: Request, kept: NDArray[np.bool_] | None
    ) -> Aggregate | None:
        """Ask for the histogram, or load the stored answer; it fixes the prior of all rows, and the
        law that is made for it."""
        query, counts, store = self._query, self._counts, charge.store
        if query is None or counts is None or store is None:
            return None
        text, self._counts = store.read(HISTOGRAM), None
        if text is None:
            if self._ledger.parts(charge.run_id):
                raise LedgerError(
                    f"Expected the histogram of run {charge.run_id} in its folder, since the ledger"
                    " has the files that were drawn with it, but it is gone: the folder was set"
                    " back. Restore it, or give the charge up with"
                    f" `{self._ledger.command('repair', '--abandon', charge.run_id)}`; its epsilon"
                    " stays spent."
                )
            # A secret of its own, which is never stored, as for every answer about groups. If the
            # process dies before the answer is stored, nobody has seen it, so it may be drawn
            # again; of two processes the first one's answer counts, for both.
            secret = RunSecret(charge.run_id, new_secret(), self.facts)
            answer = drawn_answer(request, query, counts.of(kept), charge, secret)
            shares = answer.prior([0])[0]
            law = (
                made_for_shares(self.facts.law, shares)
                if self.facts.law.kind == "number"
                else self.facts.law
            )
            # Weights and law are stored, too: another machine may compute others, and rows would be
            # drawn under two laws.
            facts = {
                "counts": answer.values[0].tolist(),
                "rows": int(answer.n_rows[0]),
                "weights": shares.tolist(),
                "law": law.to_dict(),
            }
            text = store.keep(HISTOGRAM, json.dumps(facts).encode())
        found = json.loads(text)
        self.facts = replace(
            self.facts, law=law_from_dict(found["law"]), weights=tuple(found["weights"])
        )
        return Aggregate(
            query,
            np.array([found["counts"]]),
            np.array([found["rows"]]),
            request.column.values,
            charge.receipt,
        )

    def _settled(self, charge: Charge) -> RunRecord | None:
        """Return the settled run, or that of a published stage; None if there is something to draw.
        Fixes the side of the draw on disk."""
        if self._turn is not None:
            return self._turn.begin(charge.run_id, self._named_prior, self.prior_digest)
        if self._prior is not None and charge.store is not None and charge.repeats is None:
            # Written once, before the first draw: whoever resumes this run draws with the same side
            # or not at all.
            charge.store.keep(f"{RELEASE}.side", self.prior_digest.encode())
            self.check_side(charge.run_id, self.prior_digest)
        return charge.repeats

    def _request(self, public_digest: str) -> Request:
        sums = self.sums
        drawn = (
            {"law": self._charged.to_dict(), "stage": RELEASE}
            if self._stage is None
            else self._stage.facts()
        )
        paid = {} if self._query is None else {HISTOGRAM: self._query.to_dict()}
        return Request(
            self.facts,
            self._total.epsilon,
            drawn | paid | self._more,
            prior=self._named_prior if self._stage is None else "",
            rows=sums.ids.hexdigest() if sums.ids.count else public_digest,
            units=sums.units.hexdigest() if sums.units.count else "",
            id_name=self._id_name if sums.ids.count else "",
        )

    @property
    def _named_prior(self) -> str:
        return self.prior_digest if self._prior is None else self._prior

    def _pin_of(self, secret: RunSecret) -> str:
        return (
            self.sums.pins[secret.run_id].hexdigest()
            if any(map(secret.is_of, self.candidates))
            else ""
        )

    def _crashed(self) -> list[SecretHalves]:
        """Load the secrets of the newest runs of this column that were charged and never
        settled."""
        found: list[SecretHalves] = []
        runs = (
            self._ledger.runs(self.facts.dataset, self.facts.columns[0])
            if self._turn is None
            else self._turn.runs
        )
        for record in reversed(runs):
            if record.state != "charged" or len(found) == _CRASHED_RUNS_TRIED:
                continue
            # raised again by `begin`, if this turns out to be the run to resume
            with contextlib.suppress(UnknownReleaseSecret):
                halves = kept_secret(self._ledger, record.run_id)
                found += [] if halves is None else [halves]
        return found


class TableDraw:
    """The pass over a table after its charge, which draws. Made by `TablePin.charge`, so that
    nothing is drawn before it is charged.

    On one machine call `draw` for every batch, `check_pin`, publish the output, and `settle`. On a
    cluster workers run `SecondPass`.

    Attributes
    ----------
    receipt : Receipt
    facts : RunFacts
    secret : RunSecret
    prior : str
        Digest of the side of all rows; "" if the law uses no prior.
    stage_name : str
        Name of the stage that is drawn.
    n_rows : int
        Number of rows of the table.
    histogram : Aggregate or None
        The run's own histogram of all labels, the prior of every row.
    """

    def __init__(
        self,
        charge: Charge,
        secret: RunSecret,
        pin: TablePin,
        halves: SecretHalves,
        kept: "_KeptRows | None",
        turn: StageTurn | None,
        histogram: Aggregate | None,
    ) -> None:
        assert charge.ledger is not None
        self.receipt: Receipt = charge.receipt
        self.facts, self.secret, self.prior, self.stage_name = (
            pin.facts,
            secret,
            pin.prior_digest,
            pin.stage_name,
        )
        self.n_rows, self.histogram = pin.sums.rows, histogram
        self._charge, self._ledger, self._turn = charge, charge.ledger, turn
        self._pinned, self._halves, self._kept = pin.sums.check(charge.run_id), halves, kept
        self._second = SecondPass(self.facts, secret, self.receipt, self.prior, self.stage_name)
        self._rows = 0

    def __reduce__(self) -> NoReturn:
        raise TypeError("A draw holds a secret, so it is never pickled.")

    def for_workers(self) -> SecretParts:
        """Return the parts from which workers compute the run's secret, as
        `TablePin.for_workers`."""
        return [(self._halves.run_id, *self._halves.for_worker())]

    def draw(
        self,
        codes: NDArray[np.int32],
        *,
        ids: Ids | None = None,
        units: Ids | None = None,
        prior: Array | None = None,
        ordered: bool = True,
    ) -> tuple[NoisyLabels, NDArray[np.bool_], NDArray[np.uint64] | None]:
        """Draw a batch of rows.

        Parameters
        ----------
        codes, ids, units, prior
            As in `TablePin.add`.
        ordered : bool
            Return words to sort the output by. True by default.

        Returns
        -------
        noisy : NoisyLabels
            The drawn labels of the m kept rows.
        kept : (n,) bool
            True for rows within their unit's cap and in the stage's part.
        words : (m,) uint64, or None
            Secret random words of these rows: an output sorted by them does not show the order of
            the input.
        """
        start, self._rows = self._rows, self._rows + len(codes)
        drawn = self._second.draw(
            codes, ids, start, prior, self._within_cap(start, len(codes), ids), units=units
        )
        return drawn.noisy, drawn.kept, self._second.order_words(drawn.blocks) if ordered else None

    def _within_cap(self, start: int, n: int, ids: Ids | None) -> NDArray[np.bool_] | None:
        """Mark which of these rows are within their unit's cap. They must be in the order of the
        first pass."""
        if self._kept is None:
            return None
        words = one_word(
            self.secret.key("unit-cap"), blocks_of_rows(n, start, ids, self.secret.key("ids"))
        )
        rows = slice(start, start + n)
        # The choice is stored by position. With another order in the second pass, more rows of a
        # unit than its cap could be drawn; the pin would not notice, since it does not depend on
        # the order. So each row's word is compared with that of the first pass.
        if not np.array_equal(words, self._kept.words[rows]):
            raise changed_input()
        return self._kept.kept[rows]

    def check_pin(self, check: tuple[int, int, int] | None = None, fix: str = LOCAL_FIX) -> None:
        """Refuse to publish if this pass has read other rows than the first one; `check` has the
        sums of workers (`PassSums.check`)."""
        # The next attempt may draw the pinned labels with the same words. If changed ones were
        # published, the two outputs would show which.
        if (
            self._second.sums.check(self.receipt.run_id) if check is None else check
        ) != self._pinned:
            raise changed_input(fix)

    def announce(self, files: Sequence[File], drawn: str) -> None:
        """Record the output's files, and the digest of the drawn rows, in the ledger, before the
        files are published."""
        # In this order: a process that dies while it publishes may leave a file that anybody can
        # read. By its digest the ledger knows that its labels are noisy and charged.
        intend = self._ledger.intend if self._turn is None else self._turn.announce
        intend(self.receipt.run_id, files, {self.stage_name: drawn})

    def settle(self, artefact: str) -> None:
        """Record the digest of the published output, and destroy the secret; in a plan of stages,
        after the last one."""
        if self._turn is not None:
            self._turn.finish(artefact)
        else:
            self._charge.settle(artefact)


class _LabelCounts:
    """The raw labels of all rows, counted for a histogram: as private as labels, so neither printed
    nor pickled.

    Where units are capped, only the charge tells which rows count. Until then this holds the rows'
    codes.
    """

    def __init__(self, n_classes: int) -> None:
        self._counts, self._kind = GroupCounts(1, n_classes), np.min_scalar_type(n_classes - 1)
        self._codes: list[NDArray[np.unsignedinteger]] = []

    def __reduce__(self) -> NoReturn:
        raise TypeError("Raw counts of labels are never pickled.")

    def add(self, codes: NDArray[np.int32], *, all_count: bool) -> None:
        """Add the (n,) codes of further rows."""
        if all_count:
            self._counts.add(np.zeros(len(codes), np.int64), codes)
        else:
            self._codes.append(codes.astype(self._kind))

    def of(self, kept: NDArray[np.bool_] | None) -> GroupCounts:
        """Return the counts of the kept rows, (n,) bool; None: all rows."""
        if kept is not None:
            codes, self._codes = np.concatenate(self._codes)[kept], []
            self._counts.add(np.zeros(len(codes), np.int64), codes)
        return self._counts


@dataclass(frozen=True, eq=False)
class _KeptRows:
    """The choice of rows within their unit's cap, (n,) bool, and the random words that decided it,
    (n,) uint64."""

    kept: NDArray[np.bool_]
    words: NDArray[np.uint64]


@dataclass
class _Units:
    """The unit of each row of a local table, and for each candidate run the words that would choose
    the rows within the cap."""

    codes: list[NDArray[np.uint64]] = field(default_factory=list)
    words: dict[str, list[NDArray[np.uint64]]] = field(default_factory=dict)

    def add(self, units: Blocks, words: Mapping[str, NDArray[np.uint64]]) -> None:
        self.codes.append(units.halves()[0].copy())
        for run_id, new in words.items():
            self.words.setdefault(run_id, []).append(new)

    def kept(self, run_id: str, cap: int) -> _KeptRows | None:
        """Choose the rows within the cap by the words of this run, and free the memory; None if no
        units were given."""
        if not self.codes:
            return None
        words, codes = np.concatenate(self.words.pop(run_id)), np.concatenate(self.codes)
        self.codes, self.words = [], {}
        return _KeptRows(keep_within_cap(codes, words, cap), words)


def repeated_rows(batches: Callable[[], Iterable[Ids]]) -> tuple[int, int] | None:
    """Find two rows that have the same id, by comparing the ids themselves; None if there are none.

    Cost: two passes over the batches, and a sort of 8 bytes a row.
    """
    # The first pass keeps a hash of 8 bytes a row, the second only the ids whose hashes repeat: a
    # set of all ids may not fit in memory.
    words = np.concatenate([public_hash("ids", ids) for ids in batches()])
    words.sort()
    suspects = words[1:][words[1:] == words[:-1]]
    seen: dict[tuple[object, ...], int] = {}
    start = 0
    for ids in batches():
        hashes = public_hash("ids", ids)
        rows = np.flatnonzero(np.isin(hashes, suspects))
        columns = ids if isinstance(ids, list) else [ids]
        names = zip(
            *(pa.array(column).take(pa.array(rows)).to_pylist() for column in columns), strict=True
        )
        for row, name in zip((rows + start).tolist(), names, strict=True):
            if name in seen:
                return seen[name], row
            seen[name] = row
        start += len(hashes)
    return None


def lost_answers(run_id: str, ledger: Ledger) -> ReleaseError:
    """Make the error for a run whose stored answers of a model are lost: drawing with new ones
    would draw rows twice."""
    return ReleaseError(
        f"Expected the prior that run {run_id} was charged with, as its model gave it, but the"
        " files of it are gone or not whole, and something may have been drawn with it: a row is"
        " never drawn under two priors. Restore them, or give the charge up with"
        f" `{ledger.command('repair', '--abandon', run_id)}`; its epsilon stays spent."
    )


def changed_input(fix: str = LOCAL_FIX) -> ReleaseError:
    """Make the error for a table that differed between the two passes."""
    return ReleaseError(
        "Expected the same input in both passes, but it changed while it was read. Nothing was"
        f" published; the charge stands. {fix}"
    )
