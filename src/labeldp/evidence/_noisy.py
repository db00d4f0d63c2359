# SPDX-License-Identifier: Apache-2.0
"""Noisy labels: outputs, the laws that made them, and the public side needed to read them.

All that a learner can use of an output is the likelihood vector L[y] = P[output | y], known up to a factor a row. It needs no inverse,
works where the law is not invertible, and mixes rows of different laws, stages and budgets: likelihoods of independent draws multiply.
Nothing here can leak: everything is a function of what has already been released.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from labeldp._hash import array_digest, digest, public_hash, sortable
from labeldp._rounding import sum_up
from labeldp.errors import InvalidInput
from labeldp.evidence._block import CELLS, Block, merge, read_only
from labeldp.laws import _sets as sets
from labeldp.laws._base import Array, Law
from labeldp.receipt import DECLARED, PrivacySpent, Receipt, spent_in_sequence, spent_together

if TYPE_CHECKING:
    import pyarrow as pa


ORDERS = ("labels", "file", "drawn")


class Records(Protocol):
    """A ledger, as far as evidence asks it."""

    def looked_up(self, receipt: Receipt) -> Receipt:
        """Return the receipt, `recorded` if its charge is there."""
        ...

    def check_drawn(self, block: Block, ids: Array) -> None:
        """Raise LedgerError if a run that is known there has drawn something else for these ids."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class NoisyLabels:
    """Privatized labels of n rows; made by `labeldp.privatize` or read from a release, not by hand.

    Attributes
    ----------
    n_rows : int
    classes : tuple
        The K declared class values; code c stands for classes[c].
    blocks : tuple of Block
        The draws. A row may be in none (no evidence: all classes equally likely) or in several (independent draws).
    ids : (n,) or (n, columns) array
        Id of each row: as given, or the row's position in the table that was privatized.
    explicit_ids : bool
        True if the ids were given, so that they name the same row everywhere.
    behind : tuple of Receipt
        Charges of other answers about the same labels that a side came of, such as the histogram of a `ClusterPrior`: it shows them.
    order : str
        Whose order the rows have: "labels", that of the labels as they were given here; "file", that of a file they were read from;
        "drawn", that of a released table, whose rows were shuffled.

    Notes
    -----
    What labeldp has drawn, or has read and proven, is known as such, and so are rows chosen of it; its arrays cannot be written to.
    Whatever is put together by hand, with this constructor or `dataclasses.replace`, is "declared, not proven".
    """

    n_rows: int
    classes: tuple[object, ...]
    blocks: tuple[Block, ...]
    ids: Array = field(default_factory=lambda: np.empty(0, np.int64))
    explicit_ids: bool = False
    behind: tuple[Receipt, ...] = ()
    order: str = "labels"
    _drawn: bool = field(default=False, init=False)  # so that `dataclasses.replace` drops it

    def __post_init__(self) -> None:
        if len(self.ids) != self.n_rows:
            raise InvalidInput(f"Expected one id a row, got {len(self.ids)} ids for {self.n_rows} rows.")
        for block in self.blocks:
            if block.law.n_classes != len(self.classes):
                raise InvalidInput(f"Expected laws over {len(self.classes)} classes, got {block.law}.")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore from a pickle or a deep copy, whose arrays could be written to otherwise."""
        self.__dict__.update(state)
        if self._drawn:
            self.__dict__.update(as_drawn(self).__dict__)

    @classmethod
    def from_labels(
        cls,
        labels: ArrayLike,
        law: Law,
        classes: Sequence[object] | None = None,
        *,
        ids: ArrayLike | None = None,
        unit: str = "row",
        max_rows_per_unit: int = 1,
    ) -> Self:
        """Declare labels that something else than labeldp has drawn, by their law: nothing proves it, and reports say so.

        Parameters
        ----------
        labels : (n,) class values
            Noisy labels. Raw ones stay raw: what is learned from them has no guarantee, whatever is declared.
        law : Law
            Of each row, such as `RandomizedResponse(K, epsilon)`: one that releases a label and nothing else.
        classes : sequence of K values, optional
            By code; 0..K-1 if None.
        ids : (n,) or (n, columns) array, optional
        unit, max_rows_per_unit
            What the mechanism protected. A unit's epsilon is that of all its rows.

        Raises
        ------
        InvalidInput
            The law releases something else than labels, or a label is none of the classes.
        """
        label_law(law)
        values = tuple(range(law.n_classes)) if classes is None else tuple(classes)
        given, place = np.unique(np.asarray(labels), return_inverse=True)
        known = {value: code for code, value in enumerate(values)}
        codes = np.array([known.get(value, -1) for value in given.tolist()], np.int32)[place.reshape(-1)]
        if codes.size and codes.min() < 0:
            raise InvalidInput(f"Expected a declared class in every row, got another value in row {int(np.argmin(codes))}. Declare it.")
        names = np.arange(len(codes)) if ids is None else np.asarray(ids)
        facts = {"law": law.to_dict(), "classes": list(map(repr, values)), "labels": array_digest({"codes": codes, "ids": names})}
        event = {"event": DECLARED, "law": law.to_dict()}
        epsilon = sum_up(law.epsilon for _ in range(max_rows_per_unit))
        receipt = Receipt(digest(facts)[:32], "", "", unit, max_rows_per_unit, epsilon, event=event)
        block = Block(law, codes, {}, np.arange(len(codes)), receipt, DECLARED)
        return as_drawn(cls(len(codes), values, (block,), names, ids is not None))

    # A sequence of rows ---------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        laws = ", ".join(sorted({str(block.law) for block in self.blocks}))
        return f"NoisyLabels(n_rows={self.n_rows}, n_classes={self.n_classes}, laws=[{laws}])"

    @property
    def n_classes(self) -> int:
        """K."""
        return len(self.classes)

    @property
    def shape(self) -> tuple[int]:
        """(n,): indexed like an array of labels."""
        return (self.n_rows,)

    @property
    def ndim(self) -> int:
        """1."""
        return 1

    def __array__(self, *_: object, **__: object) -> Never:
        raise InvalidInput(
            "NoisyLabels cannot become an array of labels, since a row's output need not be a label. For cross-validation pass a splitter "
            "that does not look at labels, for example cv=KFold(5): an integer cv stratifies, which would need true labels. For the most "
            "likely class of each row call .hard(), for likelihoods .likelihood()."
        )

    def __getitem__(self, rows: Any) -> "NoisyLabels":
        """Choose the rows at these positions (slice, integers or bool mask), in that order; repeats are allowed."""
        if isinstance(rows, tuple) and len(rows) == 2 and rows[1] is Ellipsis:  # how scikit-learn indexes a one-dimensional array
            rows = rows[0]
        wanted = self._positions(rows)
        found = [place[wanted] for place in self._places]
        blocks = tuple(block.at(at[at >= 0], np.flatnonzero(at >= 0)) for block, at in zip(self.blocks, found, strict=True))
        chosen = NoisyLabels(len(wanted), self.classes, blocks, self.ids[wanted], self.explicit_ids, self.behind, self.order)
        return as_drawn(chosen) if self._drawn else chosen

    def by_id(self, ids: ArrayLike) -> "NoisyLabels":
        """Choose the rows with these ids, in that order; others are left out. From then on their order is known: it is that of `ids`.

        Parameters
        ----------
        ids : (m,) or (m, columns) array
            As they were given when the labels were privatized, or as they are in the released table.

        Raises
        ------
        InvalidInput
            An id has no noisy label, or more than one.
        """
        place = {value: row for row, value in enumerate(id_keys(self.ids, ids))}
        if len(place) < len(self):
            raise InvalidInput(f"Expected noisy labels whose ids are all different, got {len(self) - len(place)} that repeat.")
        wanted = id_keys(ids, self.ids)
        found = np.array([place.get(value, -1) for value in wanted], np.int64)
        missing = np.flatnonzero(found < 0)
        if len(missing):
            raise InvalidInput(
                f"Expected ids that have a noisy label, got {len(missing)} without one, such as {wanted[missing[0]]!r}. Leave them out, or "
                "give the ids that were given when the labels were privatized."
            )
        return derived(self[found], order="labels")

    def _positions(self, rows: Any) -> NDArray[np.int64]:
        if isinstance(rows, slice):
            return np.arange(*rows.indices(self.n_rows))
        wanted = np.atleast_1d(np.asarray(rows))
        if wanted.dtype.kind == "b":
            return np.flatnonzero(wanted) if len(wanted) == self.n_rows else np.arange(self.n_rows)[wanted]  # numpy's own error
        if wanted.dtype.kind not in "iu" and wanted.size:
            raise InvalidInput(f"Expected positions of rows as a slice, integers or a bool mask, got an array of {wanted.dtype}.")
        wanted = wanted.astype(np.int64)
        if wanted.size and not (-self.n_rows <= wanted.min() and wanted.max() < self.n_rows):
            raise IndexError(f"Expected positions of {self.n_rows} rows, got {wanted.min()} to {wanted.max()}.")
        return np.where(wanted < 0, wanted + self.n_rows, wanted)

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], ...]:
        """For each block: where in it each row's draw is, -1 for rows without one."""
        places = []
        for block in self.blocks:
            place = np.full(self.n_rows, -1, np.int64)
            place[block.rows] = np.arange(len(block.rows))
            places.append(place)
        return tuple(places)

    def combine(self, other: "NoisyLabels") -> "NoisyLabels":
        """Combine both draws of each row as evidence: likelihoods multiply, budgets add.

        Raises
        ------
        InvalidInput
            If rows, classes or ids differ, or if a receipt occurs in both: one draw never counts twice.
        """
        if len(self) != len(other) or self.classes != other.classes or not np.array_equal(self.ids, other.ids):
            raise InvalidInput("Expected noisy labels of the same rows: equal length, classes and ids, in the same order.")
        if {r.run_id for r in self.receipts} & {r.run_id for r in other.receipts}:
            raise InvalidInput("Expected independent draws, but a receipt occurs in both: the same draw cannot count as evidence twice.")
        both = replace(self, blocks=self.blocks + other.blocks, behind=_distinct(self.behind + other.behind))
        return as_drawn(both) if self._drawn and other._drawn else both

    # What was spent ---------------------------------------------------------------------------------------------------------------

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """The distinct receipts behind these rows, in order of first use."""
        return _distinct(block.receipt for block in self.blocks)

    @property
    def privacy(self) -> PrivacySpent:
        """What one unit has spent over the distinct receipts: exact per row where given ids prove who was drawn, else their sum.

        What is `behind` is added to either.
        """
        drawn = self._drawn_privacy
        return spent_in_sequence(spent_together(self.behind), drawn) if self.behind else drawn

    @property
    def _drawn_privacy(self) -> PrivacySpent:
        receipts = self.receipts
        if not receipts:
            return PrivacySpent(0.0, 0.0, "row", recorded=True, secure=True)
        units = {receipt.unit for receipt in receipts}
        secure = all(receipt.secure for receipt in receipts)
        epsilon, delta = self._per_row_total() if self._ids_identify_units() else _total(receipts)
        recorded = all(receipt.recorded for receipt in receipts)
        together = spent_together(receipts)
        declared = not self._drawn or any(receipt.declared for receipt in receipts)
        unit, spent = " and ".join(sorted(units)), (epsilon, delta) if secure else (math.inf, 1.0)
        over = together.rows_over_the_cap
        return PrivacySpent(*spent, unit, recorded, secure, together.repeated, together.except_for, declared, over)

    def looked_up(self, ledger: "Records | None") -> "NoisyLabels":
        """Look receipts up in a ledger: what it does not know is not recorded. No effect without a ledger.

        Laws are compared with what was charged for, and ids, outputs and side with what the run's folder has kept of the draw, where it is
        beside this ledger: O(n log n) time.

        Raises
        ------
        InvalidInput
            A path in the place of a ledger.
        LedgerError
            The ledger has charged something else for a run, or the run has drawn something else.
        """
        if ledger is None:
            return self
        if not callable(getattr(ledger, "looked_up", None)):
            given = type(ledger).__name__
            raise InvalidInput(f"Expected a ledger, got {given}. Open it at its path: noisy.looked_up(labeldp.Ledger('ledger.db')).")
        found = {receipt: ledger.looked_up(receipt) for receipt in (*self.receipts, *self.behind) if not receipt.declared}
        blocks = tuple(replace(block, receipt=found.get(block.receipt, block.receipt)) for block in self.blocks)
        for block in blocks:
            if block.receipt.recorded:
                ledger.check_drawn(block, self.ids[block.rows])
        return derived(self, blocks=blocks, behind=tuple(found.get(receipt, receipt) for receipt in self.behind))

    def _ids_identify_units(self) -> bool:
        columns = {(receipt.dataset, receipt.column) for receipt in self.receipts}
        return self.explicit_ids and len(columns) == 1 and all(receipt.unit == "row" for receipt in self.receipts)

    def _per_row_total(self) -> tuple[float, float]:
        """Find the largest total over row ids, each receipt counted once an id."""
        order = {receipt.run_id: i for i, receipt in enumerate(self.receipts)}
        _, codes = np.unique(sortable(self.ids), axis=0 if self.ids.ndim == 2 else None, return_inverse=True)
        drawn = np.zeros((codes.max(initial=-1) + 1, len(order)), bool)
        for block in self.blocks:
            drawn[codes.reshape(-1)[block.rows], order[block.receipt.run_id]] = True
        totals = [_total([r for r, used in zip(self.receipts, pattern, strict=True) if used]) for pattern in np.unique(drawn, axis=0)]
        return max((t[0] for t in totals), default=0.0), max((t[1] for t in totals), default=0.0)

    # Evidence -----------------------------------------------------------------------------------------------------------------------

    @property
    def evidenced(self) -> NDArray[np.bool_]:
        """(n,) bool: rows that have at least one draw."""
        found = np.zeros(self.n_rows, bool)
        for block in self.blocks:
            found[block.rows] = True
        return found

    @property
    def left_out(self) -> int:
        """Rows without evidence: those over their unit's cap."""
        return int(self.n_rows - self.evidenced.sum())

    def log_likelihood(self, rows: Any = None, dtype: DTypeLike = "float32") -> NDArray[np.floating]:
        """Compute ln P[outputs | y] up to a constant a row.

        Parameters
        ----------
        rows : slice, integers or bool mask, optional
            Which rows; all by default. Ask in batches where n x K is large.
        dtype : numpy float type

        Returns
        -------
        (len(rows), K) array, row maximum 0. Cost O(n K) time and memory.
        """
        noisy = self if rows is None else self[rows]
        total = np.zeros((len(noisy), self.n_classes), dtype)
        for block in noisy.blocks:
            for part in block.batches():
                total[part.rows] += part.law.log_likelihood(part.outputs, part.side).astype(dtype)
        total -= total.max(axis=1, keepdims=True) if self.n_classes else 0
        return total

    def likelihood(self, rows: Any = None, dtype: DTypeLike = "float32") -> NDArray[np.floating]:
        """Compute P[outputs | y] up to a factor a row: (len(rows), K), row maximum 1."""
        found: NDArray[np.floating] = np.exp(self.log_likelihood(rows, dtype))
        return found

    def posterior(self, prior: ArrayLike | None = None) -> NDArray[np.float64]:
        """Compute P[y | outputs] under a prior.

        Parameters
        ----------
        prior : (n, K) or (K,) array, optional
            Non-negative weights; uniform if None.

        Returns
        -------
        (n, K) float64, rows sum to 1. A row whose prior is zero wherever its likelihood is not gets its likelihood alone.
        """
        weights = self.likelihood(dtype="float64")
        if prior is not None:
            weighted = weights * _as_prior(prior, self.n_rows, self.n_classes)
            weights = np.where(weighted.sum(axis=1, keepdims=True) > 0, weighted, weights)
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def hard(self, prior: ArrayLike | None = None) -> NDArray[np.generic]:
        """Return the most likely class of each row, as class values: (n,).

        Without a prior, a label that was released is its own most likely class. Among equally likely classes a public hash of receipt and
        row id decides, never the order of the classes.
        """
        return np.asarray(self.classes)[self.hard_codes(prior)]

    def hard_codes(self, prior: ArrayLike | None = None) -> NDArray[np.int64]:
        """Return `hard` as codes 0..K-1: (n,) int64."""
        salt = "hard/" + "/".join(receipt.run_id for receipt in self.receipts)
        if prior is None and len(self.blocks) == 1 and len(self.blocks[0].rows) == self.n_rows:
            return self._hard_codes_of_one_draw(self.blocks[0], salt)
        codes = np.empty(self.n_rows, np.int64)
        weights = None if prior is None else _as_prior(prior, self.n_rows, self.n_classes)
        step = max(1, CELLS // self.n_classes)
        for start in range(0, self.n_rows, step):
            batch = slice(start, min(start + step, self.n_rows))
            score = self.log_likelihood(batch, "float64")
            if weights is not None:
                with np.errstate(divide="ignore"):
                    score = score + np.log(weights[batch])
            best = score == score.max(axis=1, keepdims=True)
            pick = public_hash(salt, self.ids[batch]) % best.sum(axis=1).astype(np.uint64)
            codes[batch] = np.argmax(best.cumsum(axis=1) > pick[:, None].astype(np.int64), axis=1)
        return codes if prior is not None else self._with_released(codes)

    def _with_released(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give rows that were drawn once the label that was released, also where that is a constant and tells no class from another."""
        draws = np.bincount(np.concatenate([block.rows for block in self.blocks]), minlength=self.n_rows)
        for block in self.blocks:
            if block.law.kind == "label":
                once = draws[block.rows] == 1
                codes[block.rows[once]] = block.outputs[once]
        return codes

    def _hard_codes_of_one_draw(self, block: Block, salt: str) -> NDArray[np.int64]:
        """Decide without a table of likelihoods: a released label is its own most likely class, and a set knows its members."""
        codes = np.empty(self.n_rows, np.int64)
        if block.law.kind == "label":
            codes[block.rows] = block.outputs
            return codes
        for part in block.batches():
            likeliest = part.law.likeliest(part.outputs, part.side)
            pick = public_hash(salt, self.ids[part.rows]) % sets.popcount(likeliest).astype(np.uint64)
            (codes[part.rows],) = sets.select(likeliest, pick.astype(np.int32))
        return codes

    def inclusion(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Compute how often the row's own class, and another one, is in its output: (own, other), each (n,) float64.

        NaN where no draw of the row has an unbiased estimator; the first draw that has one where there are several.
        """
        own, other = np.full(self.n_rows, np.nan), np.full(self.n_rows, np.nan)
        for block in self.blocks:
            mine, theirs = block.law.inclusion(block.outputs, block.side)
            new = np.isnan(own[block.rows]) & ~np.isnan(mine)
            own[block.rows[new]], other[block.rows[new]] = mine[new], theirs[new]
        return own, other

    @property
    def invertible(self) -> NDArray[np.bool_]:
        """(n,) bool: rows that `debias` can take. Cost O(n) where set membership says all of an output, else O(n K)."""
        known = np.zeros(self.n_rows, bool)
        for block in self.blocks:
            known[block.rows] |= block.invertible
        return known

    @property
    def measurable(self) -> "NoisyLabels":
        """The same rows with those draws alone that can measure a model without a choice of rows: of blocks that are invertible throughout.

        A law that reads priors (AutoLaw, RRWithPrior) can be inverted only where a row's prior was flat, that is in the rows that a model
        finds hard: those by themselves, and draws that come on top of others in those rows, give a biased picture of all rows.
        """
        return derived(self, blocks=tuple(block for block in self.blocks if block.invertible.all()))

    def debias(self, losses: ArrayLike) -> NDArray[np.float64]:
        """Estimate each row's loss at its true label, without bias.

        Parameters
        ----------
        losses : (n, K) float
            Loss of each row for each possible label; must not depend on the row's own outputs.

        Returns
        -------
        (n,) float64 whose expectation over the law is losses[i, true label of i]; draws of one row are averaged.
        Each row's losses are weighted by its law's unbiased weights (`Law.weights`).

        Raises
        ------
        InvalidInput
            If some row has no unbiased estimator: its law is not invertible (RRTop-k with k < K, PriorSplit), or it has no draw.
        """
        return self._over_draws(losses, lambda part, table: (part.law.weights(part.outputs, part.side) * table).sum(axis=1))

    def loss_range(self, losses: ArrayLike) -> NDArray[np.float64]:
        """Bound how far apart the values are that `debias` could give each row, over all that its laws can release: (n,) float64.

        Parameters
        ----------
        losses : (n, K) float
            As for `debias`; the same rows are refused.
        """
        return self._over_draws(losses, lambda part, table: part.law.loss_range(table, part.outputs, part.side))

    def _over_draws(self, losses: ArrayLike, value: Callable[[Block, NDArray[np.float64]], NDArray[np.float64]]) -> NDArray[np.float64]:
        """Average over each row's draws a value that is NaN where there is none."""
        table = np.asarray(losses, np.float64)
        if table.shape != (self.n_rows, self.n_classes):
            raise InvalidInput(f"Expected losses of shape {(self.n_rows, self.n_classes)}, got {table.shape}.")
        total, draws = np.zeros(self.n_rows), np.zeros(self.n_rows)
        for part in (part for block in self.blocks for part in block.batches()):
            estimate = value(part, table[part.rows])
            known = np.isfinite(estimate)
            total[part.rows[known]] += estimate[known]
            draws[part.rows[known]] += 1
        self._require_invertible(draws > 0)
        return total / draws

    def _require_invertible(self, known: NDArray[np.bool_]) -> None:
        if known.all():
            return
        laws = ", ".join(sorted({block.law.name for block in self.blocks})) or "none"
        raise InvalidInput(
            f"Expected every row to have an unbiased estimator, but {int((~known).sum())} of {self.n_rows} rows have none (laws: {laws}): "
            "a law that answers within a subset of the classes cannot be inverted. Measure on rows of a stage that was drawn without a "
            "prior (noisy.measurable has such draws alone): the invertible rows of a later stage are the hard ones, which would give a "
            "biased number. Or learn from likelihoods."
        )

    # Files ------------------------------------------------------------------------------------------------------------------------

    def to_table(self) -> "pa.Table":
        """Write an Arrow table that `from_table` reads: ids, an evidence column a block, a proof a row, shared facts in the metadata."""
        from labeldp.evidence import _table as table

        return table.write(self.ids, self.explicit_ids, self.classes, self.blocks, self.behind, by_hand=not self._drawn)

    @classmethod
    def from_table(cls, table: "pa.Table") -> Self:
        """Read the noisy labels that `to_table` wrote, or some of the rows, in any order and with any other columns.

        Raises
        ------
        InvalidInput
            The metadata is gone, a row's id or evidence is not what was written, or a row occurs more often than it did.
        """
        from labeldp.evidence import _table as stored

        parts, by_hand = stored.read(table)
        noisy = cls(*parts, order="file")
        return noisy if by_hand else as_drawn(noisy)

    def save(self, path: str | Path) -> None:
        """Write `to_table()` as a Parquet file."""
        import pyarrow.parquet as pq

        pq.write_table(self.to_table(), path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read the file that `save` wrote."""
        import pyarrow.parquet as pq

        return cls.from_table(pq.read_table(path))


Evidence = TypeVar("Evidence", bound=NoisyLabels)


def as_drawn(noisy: Evidence) -> Evidence:
    """Mark noisy labels as drawn or proven by labeldp, for whoever drew them, or read and proved them. Their arrays become read-only."""
    fixed = tuple(block.read_only() for block in noisy.blocks)
    found = replace(noisy, blocks=fixed, ids=read_only(noisy.ids))
    object.__setattr__(found, "_drawn", True)
    return found


def derived(noisy: Evidence, **changes: Any) -> Evidence:
    """Replace fields that change neither what was drawn nor what was spent, and keep whether it is known as drawn."""
    found = replace(noisy, **changes)
    return as_drawn(found) if noisy._drawn else found


def label_law(law: Law) -> Law:
    """Check that labels can be declared by a law: it releases a label and nothing else."""
    if law.kind != "label" or set(law.layout()) != {"output"}:
        raise InvalidInput(f"Expected a law that releases a label and nothing else, such as RandomizedResponse (rr), got {law}.")
    return law


def concat(parts: Sequence[NoisyLabels]) -> NoisyLabels:
    """Join the rows of all parts, one after the other.

    Parameters
    ----------
    parts : sequence of NoisyLabels
        At least one, all with the same declared classes.

    Raises
    ------
    InvalidInput
        If there are none, their classes differ, or one draw of a row is in two parts: it never counts as evidence twice.
    """
    if not parts:
        raise InvalidInput("Expected at least one NoisyLabels to concatenate, got none.")
    first = parts[0]
    if any(part.classes != first.classes for part in parts):
        raise InvalidInput("Expected the same declared classes in every part; declare the same list when privatizing.")
    _check_distinct(parts)
    starts = np.cumsum([0, *(len(part) for part in parts)])
    blocks = [replace(block, rows=block.rows + start) for part, start in zip(parts, starts, strict=False) for block in part.blocks]
    ids = np.concatenate([part.ids for part in parts])
    behind = _distinct([receipt for part in parts for receipt in part.behind])
    order = max((part.order for part in parts), key=ORDERS.index)
    explicit = all(part.explicit_ids for part in parts)
    whole = NoisyLabels(int(starts[-1]), first.classes, merge(blocks), ids, explicit, behind, order)
    return as_drawn(whole) if all(part._drawn for part in parts) else whole


def id_keys(ids: ArrayLike, others: ArrayLike) -> list[Any]:
    """Turn ids into keys of a mapping that compare with others: numbers as text where the others are text, as those of a CSV file are."""
    mine, theirs = np.asarray(ids), np.asarray(others)
    mine = mine[:, 0] if mine.ndim == 2 and mine.shape[1] == 1 else mine
    found = (mine.astype(np.str_) if mine.dtype.kind in "iu" and theirs.dtype.kind in "USO" else mine).tolist()
    return [tuple(value) for value in found] if mine.ndim == 2 else list(found)


def _check_distinct(parts: Sequence[NoisyLabels]) -> None:
    drawn: dict[tuple[str, str], list[Array]] = {}
    for part in parts:
        mine: dict[tuple[str, str], list[Array]] = {}
        for block in part.blocks:
            mine.setdefault((block.receipt.run_id, block.stage), []).append(part.ids[block.rows])
        for name, ids in mine.items():
            drawn.setdefault(name, []).append(np.unique(sortable(np.concatenate(ids)), axis=0))
    for ids in drawn.values():
        if len(ids) > 1 and len(np.unique(whole := sortable(np.concatenate(ids)), axis=0)) < len(whole):
            raise InvalidInput("Expected each draw once, got a row's draw in two parts: it cannot count as evidence twice. Drop one part.")


def _distinct(receipts: Iterable[Receipt]) -> tuple[Receipt, ...]:
    return tuple({receipt.run_id: receipt for receipt in receipts}.values())


def _total(receipts: Sequence[Receipt]) -> tuple[float, float]:
    return sum_up(r.epsilon for r in receipts), sum_up(r.delta for r in receipts)


def _as_prior(prior: ArrayLike, n_rows: int, n_classes: int) -> NDArray[np.float64]:
    wanted = f"Expected a prior of finite, non-negative numbers of shape {(n_rows, n_classes)} or {(n_classes,)}, got"
    try:
        array = np.asarray(prior, np.float64)
    except (TypeError, ValueError):
        fix = "Pass an array, such as ldp.metrics.likeliest_frequencies(noisy.likelihood())."
        raise InvalidInput(f"{wanted} {type(prior).__name__}. {fix}") from None
    if array.shape not in {(n_rows, n_classes), (n_classes,)} or not np.all((array >= 0) & (array < np.inf)):
        raise InvalidInput(f"{wanted} shape {array.shape}.")
    return np.broadcast_to(array, (n_rows, n_classes))
