# SPDX-License-Identifier: Apache-2.0
"""The door for tables that do not fit in memory: one pass to pin the input and charge, a second one to draw.

Part of the door (`labeldp.privacy.door`): raw labels enter as class codes, batch by batch, and leave as `NoisyLabels`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import SetDigest, digest
from labeldp.errors import InvalidInput, LedgerError, ReleaseError
from labeldp.evidence import Block, NoisyLabels
from labeldp.laws.base import Array, Law
from labeldp.privacy.blocks import ROW
from labeldp.privacy.custody import RunPlan, RunStore, begin
from labeldp.privacy.draw import draw
from labeldp.privacy.encode import declare
from labeldp.privacy.ledger import Ledger, RunRecord
from labeldp.privacy.noise import Blocks, Key, Pin, derive_key, id_blocks, new_run_id, new_secret, one_word, row_blocks
from labeldp.privacy.repeats import RepeatFinder
from labeldp.privacy.run import keep_within_cap, law_per_row
from labeldp.receipt import Receipt

_CRASHED_RUNS_TRIED = 3


@dataclass(repr=False)
class _Candidate:
    """A secret under which this input might be drawn: a new one, or that of a crashed run whose input this may be."""

    secret: bytes
    run_id: str
    pin: Pin
    ids_key: Key
    cap_words: list[NDArray[np.uint64]] = field(default_factory=list)


class StreamRun:
    """One charge over a table that is read twice.

    Call `pin` for every batch, then `charge`; if `settled` is None, `draw` every batch in the same order, `check_pin`, publish, and
    `settle`. Memory: a byte a row for integer ids, 20 bytes a row where rows are capped per unit, nothing else that grows with n.

    Parameters
    ----------
    law : Law
        Its epsilon is the unit's total.
    classes : sequence of K values
    dataset, column : str
    unit_name : str
        "row", or the name of the unit's column.
    max_rows_per_unit : int
    ledger : Ledger
    redraw : bool
    """

    def __init__(
        self,
        law: Law,
        *,
        classes: Sequence[object],
        dataset: str,
        column: str,
        ledger: Ledger,
        unit_name: str = "row",
        max_rows_per_unit: int = 1,
        redraw: bool = False,
        facts: Mapping[str, object] | None = None,
    ) -> None:
        if not dataset:
            raise InvalidInput("Expected a dataset name: the public name under which this data set's budget is kept.")
        self.law = law_per_row(law, max_rows_per_unit)
        self.classes = declare(classes, law.n_classes)
        self.settled: RunRecord | None = None
        self._total = law
        self._ledger, self._redraw = ledger, redraw
        self._public: dict[str, object] = {
            "dataset": dataset,
            "column": column,
            "unit": unit_name,
            "max_rows_per_unit": _validate.integer(max_rows_per_unit=max_rows_per_unit, low=1),
            "classes": digest({"classes": list(map(repr, self.classes))}),
        }
        self._facts = dict(facts or {})
        self._candidates = [self._candidate(new_secret(), new_run_id()), *self._crashed()]
        self._id_set, self._unit_set, self._repeats, self._rows = SetDigest(), SetDigest(), RepeatFinder(), 0
        self._side_digest, self._unit_codes = _SideDigest(), list[NDArray[np.uint64]]()
        self._pinned_rows = 0
        self._chosen: _Candidate | None = None
        self._receipt: Receipt | None = None
        self._kept: NDArray[np.bool_] | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("A run holds a secret, so it is never pickled.")

    @property
    def receipt(self) -> Receipt:
        """The charge; only after `charge`."""
        if self._receipt is None:
            raise LedgerError("Expected charge() before this: nothing is drawn without a receipt.")
        return self._receipt

    # First pass ---------------------------------------------------------------------------------------------------------------------

    def pin(
        self, codes: NDArray[np.int32], *, ids: ArrayLike | None = None, units: ArrayLike | None = None, prior: Array | None = None
    ) -> None:
        """Take note of a batch: (n,) codes, (n,) ids, (n,) units, (n, K) prior, as `draw` will be given them."""
        start, self._rows = self._rows, self._rows + len(codes)
        for candidate in self._candidates:
            blocks = _blocks(len(codes), start, ids, candidate.ids_key)
            candidate.pin.update(blocks, codes)
            if units is not None:
                candidate.cap_words.append(one_word(self._key(candidate, "unit-cap"), blocks))
        if ids is not None:
            self._note_ids(ids, start)
        if units is not None:
            self._unit_set.update(np.arange(start, self._rows) if ids is None else np.asarray(ids), np.asarray(units))
            self._unit_codes.append(id_blocks(units, self._candidates[0].ids_key).templates()[:, 0].copy())
        self._side_digest.update(self._prepare(prior, len(codes)))

    def lookup(self, public_digest: str = "") -> RunRecord | None:
        """The charged or settled run that this input would repeat, after the first pass; charges nothing.

        `public_digest` names the public columns where there are no ids.
        """
        if self._repeats.any():
            raise InvalidInput("Expected different ids, but some id occurs more than once. Each row needs an id of its own.")
        plan = self._plan(public_digest)
        return self._ledger.find(plan.dataset, plan.column, plan.identity)

    def charge(self, public_digest: str = "") -> Receipt:
        """Charge the run, pick up the crashed one that this input belongs to, or find the settled one that it repeats (`settled`)."""
        self.lookup(public_digest)
        plan = self._plan(public_digest)
        known = {candidate.secret: candidate for candidate in self._candidates}

        def pin_of(secret: bytes, run_id: str) -> str:
            return known[secret].pin.hexdigest() if secret in known else ""

        fresh = self._candidates[0]
        begun = begin(
            plan, self._ledger, None, redraw=self._redraw, pin_of=pin_of, names_rows=bool(plan.rows), fresh=(fresh.run_id, fresh.secret)
        )
        self._receipt, self.settled = begun.receipt, begun.settled
        if begun.secret is not None:
            self._chosen = known[begun.secret]
            if self._unit_codes:
                self._cap_words = np.concatenate(self._chosen.cap_words)
                self._kept = keep_within_cap(np.concatenate(self._unit_codes), self._cap_words, begun.receipt.max_rows_per_unit)
            self._begin_second_pass()
        self._candidates, self._unit_codes = [], []
        return begun.receipt

    # Second pass ---------------------------------------------------------------------------------------------------------------------

    def draw(
        self, codes: NDArray[np.int32], *, ids: ArrayLike | None = None, prior: Array | None = None
    ) -> tuple[NoisyLabels, NDArray[np.bool_]]:
        """Draw a batch: noisy labels of the rows within their unit's cap, and (n,) bool that marks these rows."""
        chosen = self._live()
        start, self._rows = self._rows, self._rows + len(codes)
        blocks = _blocks(len(codes), start, ids, chosen.ids_key)
        self._pin_again.update(blocks, codes)
        side = self._prepare(prior, len(codes))
        self._side_digest.update(side)
        kept = self._kept_of(start, blocks)
        names = np.arange(start, start + len(codes)) if ids is None else np.asarray(ids)
        if not kept.all():
            codes, blocks, names, side = codes[kept], blocks[kept], names[kept], {name: values[kept] for name, values in side.items()}
        outputs = draw(self.law, codes, self._draw_key, blocks, side)
        block = Block(self.law, outputs, side, np.arange(len(codes)), self.receipt, "release")
        return NoisyLabels(len(codes), self.classes, (block,), names, ids is not None), kept

    @property
    def n_kept(self) -> int:
        """Rows within their unit's cap; only after `charge`."""
        return self._pinned_rows if self._kept is None else int(self._kept.sum())

    def order_words(self, noisy: NoisyLabels) -> NDArray[np.uint64]:
        """A secret random word for each drawn row, to order the output by: (n,) uint64, the same whatever order the rows come in."""
        chosen = self._live()
        blocks = id_blocks(noisy.ids, chosen.ids_key) if noisy.explicit_ids else Blocks(ROW, noisy.ids.astype(np.uint64))
        return one_word(self._key(chosen, "order"), blocks)

    def check_pin(self) -> None:
        """Refuse to publish if the second pass did not read what the first one did."""
        changed = self._pin_again.hexdigest() != self._live().pin.hexdigest()
        if changed or (self._total.uses_prior and self._side_digest.hexdigest() != self._prior_digest):
            raise _changed()

    def settle(self, artefact: str) -> None:
        """Record the digest of the published output and destroy the secret."""
        self._ledger.settle(self.receipt.run_id, artefact)
        RunStore(self._ledger.run_dir(self.receipt.run_id)).forget_secret()

    def close(self) -> None:
        """Delete temporary files; safe to call at any time."""
        self._repeats.close()

    # Details --------------------------------------------------------------------------------------------------------------------------

    def _plan(self, public_digest: str) -> RunPlan:
        self._pinned_rows = max(self._rows, self._pinned_rows)
        self._prior_digest = self._side_digest.hexdigest() if self._total.uses_prior else ""
        return RunPlan(
            **{name: self._public[name] for name in ("dataset", "column", "unit", "max_rows_per_unit", "classes")},  # type: ignore[arg-type]
            epsilon=self._total.epsilon,
            laws={"law": self._total.to_dict(), "stage": "release"} | self._facts,
            prior=self._prior_digest,
            rows=self._id_set.hexdigest() if self._id_set.count else public_digest,
            units=self._unit_set.hexdigest() if self._unit_set.count else "",
        )

    def _candidate(self, secret: bytes, run_id: str) -> _Candidate:
        facts = self._public | {"run_id": run_id}
        pin = Pin(derive_key(secret, purpose="pin", facts=facts))
        return _Candidate(secret, run_id, pin, derive_key(secret, purpose="ids", facts=facts))

    def _crashed(self) -> list[_Candidate]:
        """Runs of this column that were charged and never settled, newest first."""
        found: list[_Candidate] = []
        for record in reversed(self._ledger.runs(str(self._public["dataset"]), str(self._public["column"]))):
            secret = RunStore(self._ledger.run_dir(record.run_id)).read("secret") if record.state == "charged" else None
            if secret is not None and len(found) < _CRASHED_RUNS_TRIED:
                found.append(self._candidate(secret, record.run_id))
        return found

    def _key(self, candidate: _Candidate, purpose: str, **facts: object) -> Key:
        return derive_key(candidate.secret, purpose=purpose, facts=self._public | {"run_id": candidate.run_id} | facts)

    def _kept_of(self, start: int, blocks: Blocks) -> NDArray[np.bool_]:
        """(n,) bool: which of these rows are within their unit's cap; they must stand where they stood in the first pass."""
        if self._kept is None:
            return np.ones(len(blocks), bool)
        rows = slice(start, start + len(blocks))
        if not np.array_equal(one_word(self._key(self._live(), "unit-cap"), blocks), self._cap_words[rows]):
            raise _changed()  # which the pin does not see: it knows no order
        return self._kept[rows]

    def _begin_second_pass(self) -> None:
        chosen = self._live()
        self._pin_again = Pin(self._key(chosen, "pin"))
        self._side_digest, self._rows = _SideDigest(), 0
        self._draw_key = self._key(chosen, "draw", law=self.law.to_dict(), prior=self._prior_digest, stage="release")

    def _live(self) -> _Candidate:
        if self._chosen is None:
            raise LedgerError("Expected a charged run that has not settled: call charge() first, and draw only if `settled` is None.")
        return self._chosen

    def _note_ids(self, ids: ArrayLike, start: int) -> None:
        names = np.asarray(ids)
        self._id_set.update(names)
        integers = names if names.ndim == 1 and names.dtype.kind == "i" else None
        if self._repeats.add(_blocks(len(names), start, ids, self._candidates[0].ids_key), integers):
            raise InvalidInput(f"Expected different ids, but an id within rows {start} to {start + len(names) - 1} occurred before.")

    def _prepare(self, prior: Array | None, n_rows: int) -> dict[str, Array]:
        if not self.law.uses_prior:
            return {}
        return self.law.prepare(np.broadcast_to(1.0, (n_rows, self.law.n_classes)) if prior is None else prior)


class _SideDigest:
    """Digest of the side of all rows in order, whatever the batches."""

    def __init__(self) -> None:
        self._states: dict[str, hashlib._Hash] = {}

    def update(self, side: Mapping[str, Array]) -> None:
        for name, values in side.items():
            self._states.setdefault(name, hashlib.sha256()).update(np.ascontiguousarray(values).tobytes())

    def hexdigest(self) -> str:
        return digest({name: state.hexdigest() for name, state in self._states.items()})


def _changed() -> ReleaseError:
    return ReleaseError(
        "Expected the same input in both passes, but it changed while it was read. Nothing was published; the charge stands. "
        "Release a file that nobody writes to."
    )


def _blocks(n: int, start: int, ids: ArrayLike | None, key: Key) -> Blocks:
    return row_blocks(n, start) if ids is None else id_blocks(ids, key)
