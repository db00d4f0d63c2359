# SPDX-License-Identifier: Apache-2.0
"""Noisy labels: outputs, the laws that made them, and the public side needed to read them.

A learner uses an output through its likelihood vector L[y] = P[output | y], known up to a factor
for each row. It exists for every law, also one that is not invertible, and likelihoods of
independent draws multiply, so rows of different laws, stages and budgets can be combined.
Everything here is a function of released outputs, so it costs no privacy.

In files, a row's evidence is bytes: its output and then its side arrays sorted by name,
little-endian, without padding (`Law.layout` has dtypes and shapes). In an Arrow table, the schema's
metadata holds the facts that all rows share, each block is a binary column, and each row has a
proof: a public hash of the shared facts, the row's ids and all of its evidence. Rows may be
dropped, sorted and joined with other columns, but a row that was changed is found.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from labeldp import _validate
from labeldp._files import STORES, path_text
from labeldp._hash import array_digest, digest, exact_array, public_hash, sortable
from labeldp._validate import sum_up
from labeldp.errors import InvalidInput
from labeldp.laws import law_from_dict
from labeldp.laws._base import Law
from labeldp.laws._columns import LabelColumns, as_classes, class_facts, classes_of, column_of
from labeldp.laws._exact import Array
from labeldp.receipt import DECLARED, PrivacySpent, Receipt, spent_in_sequence, spent_together

if TYPE_CHECKING:
    import pyarrow as pa

CELLS = 1 << 22  # float64 numbers in one batch of likelihoods: 32 MiB
ORDERS = ("labels", "file", "drawn")
METADATA_KEY = b"labeldp"
PROOF = "proof"
FORMAT = 1


@dataclass(frozen=True, eq=False)
class Block:
    """The draws of one law, under one receipt, in one stage.

    Attributes
    ----------
    law : Law
    outputs : (m,) int32, (m, ceil(K/8)) uint8 or (m, K) uint8
        The outputs of the law (see `labeldp.laws._base`).
    side : dict of str to array
        Arrays of m rows: what the law derived from each row's prior.
    rows : (m,) int64, all different
        Position of each draw in the `NoisyLabels` that holds the block.
    receipt : Receipt
    stage : str
        Name of the stage that drew it.
    """

    law: Law
    outputs: Array
    side: Mapping[str, Array]
    rows: NDArray[np.int64]
    receipt: Receipt
    stage: str = ""

    def at(self, index: slice | NDArray[np.integer], rows: NDArray[np.int64]) -> Block:
        """Choose the draws at these places, and give them new row positions."""
        return replace(
            self,
            outputs=self.outputs[index],
            side={k: v[index] for k, v in self.side.items()},
            rows=rows,
        )

    def read_only(self) -> Block:
        """Copy the block to arrays that cannot be written to."""
        side = {name: read_only(values) for name, values in self.side.items()}
        return replace(self, outputs=read_only(self.outputs), side=side, rows=read_only(self.rows))

    @property
    def invertible(self) -> NDArray[np.bool_]:
        """Mark draws with unbiased weights: (m,) bool. Cost: O(m), or O(m K) for laws with weights
        of their own."""
        known = np.isfinite(self.law.inclusion(self.outputs, self.side)[0])
        if type(self.law).weights is Law.weights or known.all():
            return known
        parts = [
            np.isfinite(part.law.weights(part.outputs, part.side)).all(axis=1)
            for part in self.batches()
        ]
        return np.asarray(known | np.concatenate(parts))

    def batches(self) -> Iterator[Block]:
        """Iterate over parts of the block, whose (rows, K) float64 arrays have at most `CELLS`
        numbers."""
        step = max(1, CELLS // self.law.n_classes)
        for start in range(0, len(self.rows), step):
            yield self.at(slice(start, start + step), self.rows[start : start + step])


@dataclass(frozen=True, eq=False, repr=False)
class NoisyLabels:
    """The noisy labels of n rows. Made by `labeldp.privatize`, an estimator, or a reader of
    released tables.

    Attributes
    ----------
    n_rows : int
    classes : tuple, or Grid
        The K declared class values; code c stands for classes[c].
    blocks : tuple of Block
        The draws. A row may be in no block (no evidence: all classes are equally likely) or in
        several (independent draws).
    ids : (n,) or (n, columns) array
        Id of each row: the given one, or else the row's position in the table that was privatized.
    explicit_ids : bool
        True if ids were given. Then an id names the same row everywhere.
    behind : tuple of Receipt
        Receipts of other answers about the same labels from which a prior was computed, such as the
        histogram of a `ClusterPrior`: the side reveals them, so their cost is added.
    order : str
        The order of the rows: "labels", that of the labels as they were given; "file", that of the
        file they were read from; "drawn", that of a released table, whose rows were shuffled.
    index : Index of pandas, or None
        That of the Series or frame whose labels were privatized; a file does not keep it.

    Notes
    -----
    Labels that labeldp has drawn, or has read and proven, are marked as such, and so are rows
    chosen from them; their arrays are read-only. Labels that are put together with this constructor
    or `dataclasses.replace` count as "declared, not proven".

    See Also
    --------
    labeldp.read_noisy : Reads and proves the noisy labels of a released table.
    """

    n_rows: int
    classes: tuple[object, ...]
    blocks: tuple[Block, ...]
    ids: Array = field(default_factory=lambda: np.empty(0, np.int64))
    explicit_ids: bool = False
    behind: tuple[Receipt, ...] = ()
    order: str = "labels"
    index: Any = None
    _drawn: bool = field(default=False, init=False)  # so that `dataclasses.replace` drops it

    def __post_init__(self) -> None:
        if len(self.ids) != self.n_rows:
            raise InvalidInput(
                f"Expected one id a row, got {len(self.ids)} ids for {self.n_rows} rows."
            )
        for block in self.blocks:
            if block.law.n_classes != len(self.classes):
                raise InvalidInput(
                    f"Expected laws over {len(self.classes)} classes, got {block.law}."
                )

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
        outputs: Sequence[object] | None = None,
        ids: ArrayLike | None = None,
        unit: str = "row",
        max_rows_per_unit: int = 1,
    ) -> Self:
        """Declare labels that another mechanism has drawn, by their law. Nothing proves it, and
        reports say so.

        Parameters
        ----------
        labels : (n,) class values
            Noisy labels; for a law that releases numbers, its numbers. If they are raw, a model
            that learns from them has no guarantee, whatever is declared here.
        law : Law
            The law of each row, such as `RandomizedResponse(K, epsilon)`, or any matrix:
            `laws.Channel(matrix)`. It must release a label without a side.
        classes : sequence of K values, optional
            The classes in the order of their codes; 0..K-1 if None (default).
        outputs : sequence of values, optional
            What the labels can be, in the order of the law's outputs (the columns of its matrix),
            where they are not the classes themselves: answers such as "heads", or more answers than
            classes. None (default): the classes.
        ids : (n,) or (n, columns) array, optional
        unit, max_rows_per_unit
            The unit of protection of the mechanism, and how many rows of one unit it has drawn at
            most, 1 or more. The declared epsilon of a unit is that of all its rows.

        Raises
        ------
        InvalidInput
            The law releases no labels, a label is none of the classes, or of the outputs, or
            another argument is not allowed.
        """
        # A set or a score has a side and a meaning that no list of labels can declare.
        if (
            not isinstance(law, Law)
            or not (law.releases_codes or law.declared_only)
            or set(law.layout()) != {"output"}
        ):
            raise InvalidInput(
                "Expected a law that releases a label or a number and nothing else, such as"
                f" RandomizedResponse (rr), got {law}."
            )
        # A claim of fewer rows than one would be a smaller epsilon than that of one draw, or none
        # at all.
        cap = _validate.integer(max_rows_per_unit=max_rows_per_unit, low=1)
        if not (isinstance(unit, str) and unit):
            raise InvalidInput(
                f"Expected unit to be 'row' or a column's name, got unit={_validate.shown(unit)}."
            )
        if isinstance(classes, str | bytes | set | frozenset):
            raise InvalidInput(
                "Expected classes in the order of their codes, got one text, or a set, which has no"
                " order. Pass a list."
            )
        values = tuple(range(law.n_classes)) if classes is None else as_classes(classes)
        shown = _outputs_of(law, values, outputs)
        _validate.unmasked(labels=labels)
        array = exact_array(labels)
        array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
        if array.ndim != 1:
            raise InvalidInput(
                f"Expected a one-dimensional column of noisy labels, got shape {array.shape}."
            )
        known = {value: code for code, value in enumerate(shown)}
        if len(set(exact_array(shown).tolist())) < len(shown):
            raise InvalidInput("Expected different classes, got one twice. List each one once.")
        codes = np.fromiter(
            (known.get(value, -1) for value in array.tolist()), np.int32, len(array)
        )
        if codes.size and codes.min() < 0:
            raise InvalidInput(
                "Expected a declared class or output in every row, got another value in row"
                f" {int(np.argmin(codes))}. Was it rounded, for example in a CSV file? Numbers are"
                " known by their exact value. Else declare it, in the order of the codes, such as"
                ' classes=["no", "yes"].'
            )
        names = np.arange(len(codes)) if ids is None else exact_array(ids)
        facts = {
            "law": law.to_dict(),
            "classes": list(map(repr, values)),
            "labels": array_digest({"codes": codes, "ids": names}),
        }
        event = {"event": DECLARED, "law": law.to_dict()}
        epsilon = sum_up(law.epsilon for _ in range(cap))
        # The receipt's id is a digest of what is declared: the same declaration made twice is one
        # receipt, and its cost counts once.
        receipt = Receipt(digest(facts)[:32], "", "", unit, cap, epsilon, event=event)
        block = Block(law, codes, {}, np.arange(len(codes)), receipt, DECLARED)
        return as_drawn(cls(len(codes), values, (block,), names, ids is not None))

    # A sequence of rows
    # ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        laws = ", ".join(sorted({str(block.law) for block in self.blocks}))
        return f"NoisyLabels(n_rows={self.n_rows}, n_classes={self.n_classes}, laws=[{laws}])"

    @property
    def n_classes(self) -> int:
        """The number of classes, K."""
        return len(self.classes)

    @property
    def shape(self) -> tuple[int]:
        """The shape (n,), as of an array of labels, by which scikit-learn indexes."""
        return (self.n_rows,)

    @property
    def ndim(self) -> int:
        """The number of dimensions, 1."""
        return 1

    def __array__(self, *_: object, **__: object) -> Never:
        raise InvalidInput(
            "NoisyLabels cannot become an array of labels, since a row's output need not be a"
            " label. For cross-validation pass a splitter that does not look at labels, for example"
            " cv=KFold(5): an integer cv stratifies, which would need true labels. Score by"
            " scoring=labeldp.metrics.make_scorer('roc_auc') or the like. Calibrators and votes go"
            " inside: LabelDPClassifier(VotingClassifier(...)). A threshold is chosen by"
            " labeldp.metrics.best_threshold. For the most likely class of each row call .hard(),"
            " for likelihoods .likelihood()."
        )

    def __getitem__(self, rows: Any) -> NoisyLabels:
        """Choose the rows at these positions (slice, integers or bool mask), in that order, repeats
        allowed; a text chooses a column."""
        if isinstance(rows, str):
            return self.column(rows)
        # scikit-learn indexes so
        if isinstance(rows, tuple) and len(rows) == 2 and rows[1] is Ellipsis:
            rows = rows[0]
        places = rows if isinstance(rows, slice) else np.atleast_1d(np.asarray(rows))
        if not isinstance(places, slice) and places.dtype.kind not in "biu":
            if places.size:
                raise InvalidInput(
                    "Expected positions of rows as a slice, integers or a bool mask, got an array"
                    f" of {places.dtype}."
                )
            places = places.astype(np.int64)
        # Repeats of a row are allowed, since a bootstrap means them as weights; `concat` refuses
        # them, where one draw would count as two.
        wanted = np.arange(self.n_rows)[places]
        found = [place[wanted] for place in self._places]
        blocks = tuple(
            block.at(at[at >= 0], np.flatnonzero(at >= 0))
            for block, at in zip(self.blocks, found, strict=True)
        )
        index = None if self.index is None else self.index[wanted]
        return derived(self, n_rows=len(wanted), blocks=blocks, ids=self.ids[wanted], index=index)

    def column(self, name: str) -> NoisyLabels:
        """Read what these labels of several columns tell about one of them; also noisy[name].

        Parameters
        ----------
        name : str
            One of the columns that were drawn together (`labeldp.LabelColumns`).

        Returns
        -------
        NoisyLabels
            The same rows over the classes of this column, under the same receipts, for every
            learner and statistic. Rows that were not asked about it have no evidence. `privacy` is
            that of all columns, which are charged together.

        Raises
        ------
        InvalidInput
            There is no such column; or the law tells a column's likelihood only with how the others
            are distributed.
        """
        if not isinstance(self.classes, LabelColumns):
            raise InvalidInput(
                f"Expected noisy labels of several columns to choose {name!r} from, got those of"
                " one."
            )
        number = self.classes.place(name)
        blocks = tuple(column_block(block, self.classes.sizes, number) for block in self.blocks)
        return derived(self, classes=self.classes.lists[number], blocks=blocks)

    def by_id(self, ids: ArrayLike) -> NoisyLabels:
        """Choose the rows with these ids, in this order.

        Parameters
        ----------
        ids : (m,) or (m, columns) array
            Ids as they were given when the labels were privatized, or as they are in the released
            table.

        Returns
        -------
        NoisyLabels
            m rows, whose `order` is "labels".

        Raises
        ------
        InvalidInput
            An id has no noisy label, or more than one.
        """
        # Matched by value, because a released table is shuffled: by position, features would get
        # the labels of other rows.
        place = {value: row for row, value in enumerate(id_keys(self.ids, ids))}
        if len(place) < len(self):
            raise InvalidInput(
                f"Expected noisy labels whose ids are all different, got {len(self) - len(place)}"
                " that repeat."
            )
        wanted = id_keys(ids, self.ids)
        found = np.array([place.get(value, -1) for value in wanted], np.int64)
        missing = np.flatnonzero(found < 0)
        if len(missing):
            raise InvalidInput(
                f"Expected ids that have a noisy label, got {len(missing)} without one, such as"
                f" {wanted[missing[0]]!r}. Leave them out, or give the ids that were given when the"
                " labels were privatized."
            )
        return derived(self[found], order="labels", index=None)

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], ...]:
        """For each block the index of each row's draw in it, (n,) int64; -1 for rows that it
        lacks."""
        places = []
        for block in self.blocks:
            place = np.full(self.n_rows, -1, np.int64)
            place[block.rows] = np.arange(len(block.rows))
            places.append(place)
        return tuple(places)

    def combine(self, other: NoisyLabels) -> NoisyLabels:
        """Combine independent draws of the same rows: their likelihoods multiply, and their budgets
        add.

        Raises
        ------
        InvalidInput
            Rows, classes or ids differ, or a receipt occurs in both.
        """
        if (
            len(self) != len(other)
            or self.classes != other.classes
            or not np.array_equal(self.ids, other.ids)
        ):
            raise InvalidInput(
                "Expected noisy labels of the same rows: equal length, classes and ids, in the same"
                " order."
            )
        # The likelihood of one draw, multiplied with itself, would pretend to twice the evidence.
        if {r.run_id for r in self.receipts} & {r.run_id for r in other.receipts}:
            raise InvalidInput(
                "Expected independent draws, but a receipt occurs in both: the same draw cannot"
                " count as evidence twice."
            )
        both = replace(
            self, blocks=self.blocks + other.blocks, behind=_distinct(self.behind + other.behind)
        )
        return as_drawn(both) if self._drawn and other._drawn else both

    # Privacy
    # ----------------------------------------------------------------------------------------------

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """The distinct receipts of these rows, in order of first use."""
        return _distinct(block.receipt for block in self.blocks)

    @property
    def privacy(self) -> PrivacySpent:
        """The privacy that one unit has spent on these labels.

        If ids were given, it is the largest sum over the receipts of a row; else the sum over all
        receipts. The cost of `behind` is added.
        """
        drawn = (
            self._privacy_of(self.receipts)
            if self.receipts
            else PrivacySpent(0.0, 0.0, "row", recorded=True, secure=True)
        )
        return spent_in_sequence(spent_together(self.behind), drawn) if self.behind else drawn

    def _privacy_of(self, receipts: tuple[Receipt, ...]) -> PrivacySpent:
        units = {receipt.unit for receipt in receipts}
        secure = all(receipt.secure for receipt in receipts)
        columns = {(receipt.dataset, receipt.column) for receipt in receipts}
        by_row = self.explicit_ids and len(columns) == 1 and units == {"row"}
        epsilon, delta = self._per_row_total() if by_row else _total(receipts)
        recorded = all(receipt.recorded for receipt in receipts)
        together = spent_together(receipts)
        declared = not self._drawn or any(receipt.declared for receipt in receipts)
        unit, spent = " and ".join(sorted(units)), (epsilon, delta) if secure else (math.inf, 1.0)
        over = together.rows_over_the_cap
        return PrivacySpent(
            *spent, unit, recorded, secure, together.repeated, together.except_for, declared, over
        )

    def looked_up(self, ledger: Any) -> NoisyLabels:
        """Look up the receipts in a ledger, and return the labels with `recorded` set accordingly;
        unchanged for None.

        Laws are compared with the charges, and ids, outputs and side with the stored outputs of the
        run, if its folder lies beside this ledger. Cost: O(n log n) time.

        Raises
        ------
        InvalidInput
            The argument is no ledger, for example a path.
        LedgerError
            The ledger has other facts of a run, or the run has drawn other labels.
        """
        if ledger is None:
            return self
        # No import, because evidence is below the ledger: a machine that only trains needs no
        # ledger installed.
        if not callable(getattr(ledger, "looked_up", None)):
            given = type(ledger).__name__
            raise InvalidInput(
                f"Expected a ledger, got {given}. Open it at its path:"
                " noisy.looked_up(labeldp.Ledger('ledger.db'))."
            )
        found = {
            receipt: ledger.looked_up(receipt)
            for receipt in (*self.receipts, *self.behind)
            if not receipt.declared
        }
        blocks = tuple(
            replace(block, receipt=found.get(block.receipt, block.receipt)) for block in self.blocks
        )
        for block in blocks:
            if block.receipt.recorded:
                ledger.check_drawn(block, self.ids[block.rows])
        return derived(
            self,
            blocks=blocks,
            behind=tuple(found.get(receipt, receipt) for receipt in self.behind),
        )

    def _per_row_total(self) -> tuple[float, float]:
        """Compute the largest (epsilon, delta) over row ids, with each receipt counted once for an
        id."""
        # Parallel composition: a receipt costs only the rows that it has drawn, and the ids prove
        # which these are. Rows with the same set of receipts have the same sum, and there are few
        # such sets: one sum for each pattern.
        order = {receipt.run_id: i for i, receipt in enumerate(self.receipts)}
        _, codes = np.unique(
            sortable(self.ids), axis=0 if self.ids.ndim == 2 else None, return_inverse=True
        )
        drawn = np.zeros((codes.max(initial=-1) + 1, len(order)), bool)
        for block in self.blocks:
            drawn[codes.reshape(-1)[block.rows], order[block.receipt.run_id]] = True
        totals = [
            _total([r for r, used in zip(self.receipts, pattern, strict=True) if used])
            for pattern in np.unique(drawn, axis=0)
        ]
        return max((t[0] for t in totals), default=0.0), max((t[1] for t in totals), default=0.0)

    # Evidence
    # ----------------------------------------------------------------------------------------------

    @property
    def evidenced(self) -> NDArray[np.bool_]:
        """True for rows that have at least one draw: (n,) bool."""
        return np.asarray(self._draws > 0)

    def log_likelihood(
        self, rows: Any = None, dtype: DTypeLike = "float32"
    ) -> NDArray[np.floating]:
        """Compute ln P[outputs | y], up to a constant for each row.

        Parameters
        ----------
        rows : slice, integers or bool mask, optional
            The rows; all by default. Call it in batches if n x K is large.
        dtype : numpy float type
            "float32" by default.

        Returns
        -------
        (len(rows), K) array
            The maximum of each row is 0. Cost: O(n K) time and memory.
        """
        noisy = self if rows is None else self[rows]
        total = np.zeros((len(noisy), self.n_classes), dtype)
        for block in noisy.blocks:
            for part in block.batches():
                total[part.rows] += part.law.log_likelihood(part.outputs, part.side).astype(dtype)
        # Only ratios within a row matter. With a maximum of 1, the likelihood of a row with many
        # draws does not underflow.
        total -= total.max(axis=1, keepdims=True) if self.n_classes else 0
        return total

    def likelihood(self, rows: Any = None, dtype: DTypeLike = "float32") -> NDArray[np.floating]:
        """Compute P[outputs | y], up to a factor for each row: (len(rows), K), with maximum 1 in
        each row."""
        return np.asarray(np.exp(self.log_likelihood(rows, dtype)))

    def posterior(self, prior: ArrayLike | None = None) -> NDArray[np.float64]:
        """Compute P[y | outputs] under a prior.

        Parameters
        ----------
        prior : (n, K) or (K,) array, optional
            Weights >= 0; uniform if None (default).

        Returns
        -------
        (n, K) float64
            Rows sum to 1. A row whose prior excludes all classes that its output allows is computed
            with the uniform prior.
        """
        weights = self.likelihood(dtype="float64")
        if prior is not None:
            weighted = weights * _as_prior(prior, self.n_rows, self.n_classes)
            weights = np.where(weighted.sum(axis=1, keepdims=True) > 0, weighted, weights)
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def hard(self, prior: ArrayLike | None = None) -> NDArray[np.generic]:
        """Return the most likely class value of each row, (n,), under a prior as in `posterior`.

        Without a prior it is the released label, for laws that release one. Among equally likely
        classes a public hash of receipt and row id decides, so that no class is preferred for its
        position.
        """
        return exact_array(self.classes)[self.hard_codes(prior)]

    def hard_codes(self, prior: ArrayLike | None = None) -> NDArray[np.int64]:
        """Return `hard` as codes 0..K-1: (n,) int64."""
        # Salted by the runs, so that the ties of a row are broken independently in independent
        # draws.
        salt = "hard/" + "/".join(receipt.run_id for receipt in self.receipts)
        codes, draws = np.full(self.n_rows, -1), self._draws
        # A label that a row's only draw has released is taken: with a single candidate (RRWithPrior
        # with k = 1) all classes are equally likely, and the tie-break would ignore the output.
        for block in self.blocks:
            if prior is None and block.law.kind == "label":
                once = draws[block.rows] == 1
                codes[block.rows[once]] = block.outputs[once]
        left = np.flatnonzero(codes < 0)
        weights = None if prior is None else _as_prior(prior, self.n_rows, self.n_classes)
        step = max(1, CELLS // self.n_classes)
        for start in range(0, len(left), step):
            batch = left[start : start + step]
            score = self.log_likelihood(batch, "float64")
            if weights is not None:
                with np.errstate(divide="ignore"):
                    weighted = score + np.log(weights[batch])
                # as `posterior` does
                score = np.where(np.isfinite(weighted).any(axis=1, keepdims=True), weighted, score)
            best = score == score.max(axis=1, keepdims=True)
            # Ties are broken by a public hash: reproducible, and without a preference for the first
            # class, as argmax has.
            pick = public_hash(salt, self.ids[batch]) % best.sum(axis=1).astype(np.uint64)
            codes[batch] = np.argmax(best.cumsum(axis=1) > pick[:, None].astype(np.int64), axis=1)
        return codes

    @property
    def _draws(self) -> NDArray[np.intp]:
        """The number of draws of each row: (n,)."""
        return np.bincount(
            np.concatenate([np.empty(0, np.int64), *(block.rows for block in self.blocks)]),
            minlength=self.n_rows,
        )

    def released(self) -> NDArray[np.generic]:
        """Return what each row's law has released, in the unit of the classes: a label, or a
        number, which may lie between or outside them.

        Returns
        -------
        (n,) array
            float64 for laws of numbers (`labeldp.laws.UnbiasedRandomizer`,
            `labeldp.laws.RROnBins`), by which any regressor can be trained.

        Raises
        ------
        InvalidInput
            A row has no draw or several, or its law releases neither labels nor numbers.
        """
        if not (self._draws == 1).all() or not all(
            block.law.releases_codes for block in self.blocks
        ):
            laws = ", ".join(sorted({block.law.name for block in self.blocks})) or "none"
            raise InvalidInput(
                "Expected rows with one draw each, by a law that releases a label or a number, got"
                f" others (laws: {laws}). Learn from likelihoods, or take .hard() for the most"
                " likely class of each row."
            )
        parts = [
            (block.rows, exact_array(block.law.released(self.classes))[block.outputs])
            for block in self.blocks
        ]
        found = np.empty(
            self.n_rows,
            (
                np.result_type(*(values.dtype for _, values in parts))
                if parts
                else exact_array(self.classes).dtype
            ),
        )
        for rows, values in parts:
            found[rows] = values
        return found

    def inclusion(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Compute the probabilities that a row's own class, and another class, is in its output:
        (own, other), each (n,) float64.

        See `Law.inclusion`. Of a row's draws the first one with such probabilities counts; NaN if
        there is none.
        """
        own, other = np.full(self.n_rows, np.nan), np.full(self.n_rows, np.nan)
        for block in self.blocks:
            mine, theirs = block.law.inclusion(block.outputs, block.side)
            new = np.isnan(own[block.rows]) & ~np.isnan(mine)
            own[block.rows[new]], other[block.rows[new]] = mine[new], theirs[new]
        return own, other

    @property
    def invertible(self) -> NDArray[np.bool_]:
        """True for rows that `debias` accepts: (n,) bool. Cost: O(n), or O(n K) for laws with
        weights of their own."""
        known = np.zeros(self.n_rows, bool)
        for block in self.blocks:
            known[block.rows] |= block.invertible
        return known

    @property
    def measurable(self) -> NoisyLabels:
        """The same rows, with the draws of blocks that are invertible in all rows, by which a model
        can be measured without bias."""
        # A law that reads priors (AutoLaw, RRWithPrior) is invertible only in rows of a flat prior,
        # which are those that a model finds hard. A mean over these rows is no mean over all rows.
        return derived(self, blocks=tuple(block for block in self.blocks if block.invertible.all()))

    def debias(self, losses: ArrayLike) -> NDArray[np.float64]:
        """Estimate each row's loss at its true label, without bias, by its law's weights
        (`Law.weights`).

        Parameters
        ----------
        losses : (n, K) float
            The loss of each row for each possible label. It must not depend on the row's own
            outputs, or the estimate is biased.

        Returns
        -------
        (n,) float64
            The expectation over the law, and over the public words from which `Threshold` draws its
            question, is losses[i, true label of i]. Several draws of a row are averaged.

        Raises
        ------
        InvalidInput
            Some row has no unbiased weights: its law is not invertible (RRTopK with k < K,
            PriorSplit), or it has no draw.

        References
        ----------
        Natarajan, Dhillon, Ravikumar and Tewari 2013, "Learning with noisy labels".
        """
        table = self._losses(losses)
        return self._over_draws(
            (),
            lambda part: (part.law.weights(part.outputs, part.side) * table[part.rows]).sum(axis=1),
        )

    def class_weights(self) -> NDArray[np.float64]:
        """Compute the weights of the classes by which `debias` sums losses: (n, K) float64, rows
        sum to 1.

        The expectation of row i over the law is the indicator of its true label, so the mean over
        rows is an unbiased estimate of the class frequencies, and weights @ values one of the mean
        of any (K,) values of the classes. Errors as `debias`. Cost: O(n K).
        """
        return self._over_draws(
            (self.n_classes,), lambda part: part.law.weights(part.outputs, part.side)
        )

    def loss_range(self, losses: ArrayLike) -> NDArray[np.float64]:
        """Compute the range of `debias` in each row, over all outputs of its laws, for confidence
        intervals: (n,) float64.

        Parameters
        ----------
        losses : (n, K) float
            As for `debias`, with the same errors.
        """
        table = self._losses(losses)
        return self._over_draws(
            (), lambda part: part.law.loss_range(table[part.rows], part.outputs, part.side)
        )

    def _losses(self, losses: ArrayLike) -> NDArray[np.float64]:
        table = _validate.floats(losses=losses)
        if table.shape != (self.n_rows, self.n_classes):
            raise InvalidInput(
                f"Expected losses of shape {(self.n_rows, self.n_classes)}, got {table.shape}."
            )
        if not np.isfinite(table).all():
            raise InvalidInput(
                "Expected finite losses, got NaN or infinity. Clip probabilities before their"
                " logarithm is taken."
            )
        return table

    def _over_draws(
        self, shape: tuple[int, ...], value: Callable[[Block], NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """Average a value of this shape over each row's draws, leaving out draws for which it is
        NaN: (n, *shape)."""
        total, draws = np.zeros((self.n_rows, *shape)), np.zeros(self.n_rows)
        for part in (part for block in self.blocks for part in block.batches()):
            estimate = value(part)
            known = np.isfinite(estimate).all(axis=tuple(range(1, estimate.ndim)))
            total[part.rows[known]] += estimate[known]
            draws[part.rows[known]] += 1
        self._require_invertible(draws > 0)
        return total / draws.reshape(-1, *(1 for _ in shape))

    def _require_invertible(self, known: NDArray[np.bool_]) -> None:
        if known.all():
            return
        drawn = self.evidenced
        if known[drawn].all():
            raise InvalidInput(
                f"Expected evidence for every row, but {int((~drawn).sum())} of {self.n_rows} rows"
                " have none: they are over their unit's cap, or were asked about another column."
                " Leave them out of labels and predictions alike, with the mask noisy.evidenced:"
                " noisy[noisy.evidenced]."
            )
        laws = ", ".join(sorted({block.law.name for block in self.blocks})) or "none"
        raise InvalidInput(
            f"Expected every row to have an unbiased estimator, but {int((~known).sum())} of"
            f" {self.n_rows} rows have none (laws: {laws}): a law that answers within a subset of"
            " the classes cannot be inverted. Measure on rows of a stage that was drawn without a"
            " prior (noisy.measurable has such draws alone): the invertible rows of a later stage"
            " are the hard ones, which would give a biased number. Or learn from likelihoods."
        )

    # Files
    # ----------------------------------------------------------------------------------------------

    def to_table(self) -> pa.Table:
        """Convert to an Arrow table that `from_table` reads.

        Columns: id (or id_0, id_1, ...), evidence_0, evidence_1, ... for the blocks (null for rows
        that a block lacks), and proof. The metadata has the facts that all rows share.
        """
        import pyarrow as pa

        held = exact_array(self.ids)  # as they are read back, since proofs are made of them
        ids = (
            [("id", held)]
            if held.ndim == 1
            else [(f"id_{j}", held[:, j]) for j in range(held.shape[1])]
        )
        columns = {name: pa.array(values) for name, values in ids}
        found = [
            {"law": block.law.to_dict(), "receipt": block.receipt.to_dict(), "stage": block.stage}
            for block in self.blocks
        ]
        facts: dict[str, object] = (
            {"format": FORMAT}
            | class_facts(self.classes)
            | {"explicit_ids": self.explicit_ids, "blocks": found}
        )
        facts |= {"behind": [receipt.to_dict() for receipt in self.behind]} if self.behind else {}
        facts |= {} if self._drawn else {"by_hand": True}
        # Whether rows repeat is recorded: else a reader could not tell a bootstrap from a row that
        # was copied later.
        facts |= {"ids": list(columns), "repeats": _repeats(held)}
        pieces = []
        for i, (block, place) in enumerate(zip(self.blocks, self._places, strict=True)):
            raw, present = (
                np.zeros((self.n_rows, record_type(block.law).itemsize), np.uint8),
                place >= 0,
            )
            raw[block.rows] = pack(block.law, block.outputs, block.side)
            validity = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
            columns[f"evidence_{i}"] = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(raw.shape[1]),
                len(raw),
                [validity, pa.py_buffer(np.ascontiguousarray(raw))],
            )
            pieces.append((raw, present))
        columns[PROOF] = pa.array(_proof(facts, held, pieces))
        return pa.table(columns).replace_schema_metadata({METADATA_KEY: json.dumps(facts)})

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """Read noisy labels from the table that `to_table` made, or some of its rows, in any order
        and with any other columns.

        Raises
        ------
        InvalidInput
            The metadata is missing, a row's id or evidence was changed, or a row was repeated.
        """
        import pyarrow as pa

        facts = read_facts((table.schema.metadata or {}).get(METADATA_KEY))
        names = [str(name) for name in facts.get("ids", ())]
        wanted = [*names, *(f"evidence_{i}" for i in range(len(facts["blocks"]))), PROOF]
        if not names or not set(wanted) <= set(table.column_names):
            raise InvalidInput(
                "Expected a table written by NoisyLabels.to_table, with the columns"
                f" {', '.join(wanted)}. Write it again."
            )
        columns = [
            exact_array(
                table[name].to_pylist()
                if pa.types.is_string(table[name].type)
                else table[name].to_numpy()
            )
            for name in names
        ]
        ids = columns[0] if names == ["id"] else np.column_stack(columns)
        laws = [law_from_dict(found["law"]) for found in facts["blocks"]]
        pieces = [
            _whole(table[f"evidence_{i}"], record_type(law).itemsize) for i, law in enumerate(laws)
        ]
        # Each row has its own proof, so that rows may be dropped or sorted, but no byte of their
        # evidence changed.
        proofs = table[PROOF]
        if not pa.types.is_uint64(proofs.type) or proofs.null_count:
            raise InvalidInput(
                f"Expected a number of 64 bits in every row of column {PROOF!r}, got something"
                " else. Write the table again."
            )
        good = _proof(facts, ids, pieces) == np.asarray(proofs.to_numpy())
        if not good.all():
            raise InvalidInput(
                "Expected the evidence that was written, got another in row"
                f" {int(np.argmin(good))}: ids or evidence were changed. Read the table that"
                " NoisyLabels.to_table or save wrote. Labels that another mechanism drew are"
                " declared: NoisyLabels.from_labels."
            )
        if not facts["repeats"] and _repeats(ids):
            raise InvalidInput(
                "Expected each row once, as it was written, got one twice: evidence counts once."
                " Drop repeated rows."
            )
        blocks = tuple(
            _read_block(law, *piece, found)
            for law, piece, found in zip(laws, pieces, facts["blocks"], strict=True)
        )
        behind = tuple(Receipt.from_dict(receipt) for receipt in facts.get("behind", ()))
        noisy = cls(
            table.num_rows,
            classes_of(facts),
            blocks,
            ids,
            bool(facts["explicit_ids"]),
            behind,
            "file",
        )
        return noisy if facts.get("by_hand") else as_drawn(noisy)

    def save(self, path: str | Path) -> None:
        """Write `to_table()` as a Parquet file."""
        import pyarrow.parquet as pq

        pq.write_table(self.to_table(), path_text(path, STORES))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read the file that `save` wrote."""
        import pyarrow.parquet as pq

        return cls.from_table(pq.read_table(path_text(path, STORES)))


Evidence = TypeVar("Evidence", bound=NoisyLabels)


def as_drawn(noisy: Evidence) -> Evidence:
    """Mark noisy labels as drawn, or read and proven, by labeldp, and make their arrays
    read-only."""
    # The mark holds for these bytes: if the arrays could be written to, raw labels could be put
    # under a proven receipt.
    fixed = tuple(block.read_only() for block in noisy.blocks)
    found = replace(noisy, blocks=fixed, ids=read_only(noisy.ids))
    object.__setattr__(found, "_drawn", True)
    return found


def column_block(block: Block, sizes: Sequence[int], number: int) -> Block:
    """Read the draws of one of several columns from those of their combinations."""
    law, outputs, side, asked = column_of(block.law, sizes, number, block.outputs, block.side)
    return replace(block, law=law, outputs=outputs, side=side, rows=block.rows[asked])


def derived(noisy: Evidence, **changes: Any) -> Evidence:
    """Replace fields of noisy labels and keep the mark of `as_drawn`; for changes of neither
    evidence nor cost."""
    found = replace(noisy, **changes)
    return as_drawn(found) if noisy._drawn else found


def _outputs_of(
    law: Law, classes: tuple[object, ...], outputs: Sequence[object] | None
) -> tuple[object, ...]:
    """Give the values of a law's outputs, which are the classes, or the law's numbers, unless
    others are named."""
    known = law.released(classes)
    count = (
        len(law.outputs())
        if law.declared_only
        else len(known)
        if law.kind == "number"
        else law.n_classes
    )
    if outputs is None and law.declared_only and count != law.n_classes:
        raise InvalidInput(
            f"Expected outputs= with the {count} values that labels can have, in the order of the"
            " law's outputs, got none."
        )
    shown = known if outputs is None else as_classes(outputs)
    if outputs is not None and len(dict.fromkeys(shown)) != count:
        raise InvalidInput(
            f"Expected {count} different outputs, in the order of the law's, got {len(shown)}."
        )
    return shown


def concat(parts: Sequence[NoisyLabels]) -> NoisyLabels:
    """Join the rows of all parts, one after the other.

    Parameters
    ----------
    parts : sequence of NoisyLabels
        At least one; all with the same classes.

    Raises
    ------
    InvalidInput
        There are no parts, their classes differ, or one draw of a row is in two parts, which would
        count it twice.
    """
    if not parts:
        raise InvalidInput("Expected at least one NoisyLabels to concatenate, got none.")
    first = parts[0]
    if any(part.classes != first.classes for part in parts):
        raise InvalidInput(
            "Expected the same declared classes in every part; declare the same list when"
            " privatizing."
        )
    _check_distinct(parts)
    starts = np.cumsum([0, *(len(part) for part in parts)])
    blocks = [
        replace(block, rows=block.rows + start)
        for part, start in zip(parts, starts, strict=False)
        for block in part.blocks
    ]
    ids = np.concatenate([part.ids for part in parts])
    behind = _distinct([receipt for part in parts for receipt in part.behind])
    # the least reliable order holds for the whole
    order = max((part.order for part in parts), key=ORDERS.index)
    explicit = all(part.explicit_ids for part in parts)
    indices = [part.index for part in parts]
    index = None if any(each is None for each in indices) else indices[0].append(indices[1:])
    whole = NoisyLabels(
        int(starts[-1]), first.classes, _merged(blocks), ids, explicit, behind, order, index
    )
    return as_drawn(whole) if all(part._drawn for part in parts) else whole


def id_keys(ids: ArrayLike, others: ArrayLike) -> list[Any]:
    """Convert ids to dictionary keys that compare with others: all become text if the others are
    text, as in a CSV file."""
    _validate.unmasked(ids=ids)
    mine, theirs = exact_array(ids), exact_array(others)
    mine = mine[:, 0] if mine.ndim == 2 and mine.shape[1] == 1 else mine
    as_text = (mine.dtype.kind in "iu" and theirs.dtype.kind in "USO") or (
        mine.dtype.kind == "O" and theirs.dtype.kind in "US"
    )
    found = (sortable(mine.astype(object)) if as_text else mine).tolist()
    return [tuple(value) for value in found] if mine.ndim == 2 else list(found)


def _check_distinct(parts: Sequence[NoisyLabels]) -> None:
    drawn: dict[tuple[str, str], list[Array]] = {}
    for part in parts:
        mine: dict[tuple[str, str], list[Array]] = {}
        for block in part.blocks:
            mine.setdefault((block.receipt.run_id, block.stage), []).append(part.ids[block.rows])
        for name, ids in mine.items():
            drawn.setdefault(name, []).append(np.concatenate(ids))
    for found in drawn.values():
        # Repeats within a part are a bootstrap's; only a draw that is in two parts is refused.
        if len(found) > 1 and _repeats(
            np.concatenate([np.unique(sortable(ids), axis=0) for ids in found])
        ):
            raise InvalidInput(
                "Expected each draw once, got a row's draw in two parts: it cannot count as"
                " evidence twice. Drop one part."
            )


def _distinct(receipts: Iterable[Receipt]) -> tuple[Receipt, ...]:
    return tuple({receipt.run_id: receipt for receipt in receipts}.values())


def _total(receipts: Sequence[Receipt]) -> tuple[float, float]:
    return sum_up(r.epsilon for r in receipts), sum_up(r.delta for r in receipts)


def _as_prior(prior: ArrayLike, n_rows: int, n_classes: int) -> NDArray[np.float64]:
    array = _validate.floats(prior=prior)
    if array.shape not in {(n_rows, n_classes), (n_classes,)} or not np.all(
        (array >= 0) & (array < np.inf)
    ):
        raise InvalidInput(
            "Expected a prior of finite, non-negative numbers of shape"
            f" {(n_rows, n_classes)} or {(n_classes,)}, got shape {array.shape}."
        )
    return np.broadcast_to(array, (n_rows, n_classes))


def places_of(ids: Array, known: Array) -> NDArray[np.int64]:
    """Find the position of each id among the known ones, of whatever types: (n,) int64, -1 if it is
    not known."""
    if ids.ndim == 2 and "O" in known.dtype.kind + ids.dtype.kind:
        known, ids = sortable(known), sortable(ids)
    apart: NDArray[np.bool_] = np.zeros(len(ids), bool)
    # NumPy would join them as floats, in which large ids become equal
    if {known.dtype.kind, ids.dtype.kind} == set("iu"):
        known, ids = (each.astype(f"{each.dtype.kind}8").view(np.int64) for each in (known, ids))
        # What is negative now is so in one type only, or above what the other one holds: it has no
        # equal.
        apart = np.asarray(ids < 0 if ids.ndim == 1 else (ids < 0).any(axis=1))
    _, inverse = np.unique(
        np.concatenate([known, ids]), axis=0 if ids.ndim == 2 else None, return_inverse=True
    )
    codes = inverse.reshape(-1)
    place = np.full(codes.max(initial=-1) + 1, -1)
    place[codes[: len(known)]] = np.arange(len(known))
    return np.asarray(np.where(apart, -1, place[codes[len(known) :]]))


def _merged(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Join blocks of the same law, receipt and stage."""
    groups: dict[tuple[Law, str, str], list[Block]] = {}
    for block in blocks:
        groups.setdefault((block.law, block.receipt.run_id, block.stage), []).append(block)
    return tuple(group[0] if len(group) == 1 else _join(group) for group in groups.values())


def _join(group: Sequence[Block]) -> Block:
    side = {name: np.concatenate([block.side[name] for block in group]) for name in group[0].side}
    outputs = np.concatenate([block.outputs for block in group])
    return replace(
        group[0], outputs=outputs, side=side, rows=np.concatenate([block.rows for block in group])
    )


def read_only(array: Array) -> Array:
    """Copy an array, unless that was done before, to memory that NumPy cannot make writable. An
    array of objects gets a flag only."""
    if array.dtype.hasobject:
        found = array.view()
        found.flags.writeable = False
        return found
    return array if _fixed(array) else np.ndarray(array.shape, array.dtype, array.tobytes())


def _fixed(array: Array) -> bool:
    while isinstance(array.base, np.ndarray):
        array = array.base
    memory: Any = array.base
    # `setflags(write=True)` works for arrays that own their memory, but never for a view of
    # `bytes`.
    # an unpickled array is a writable view of bytes
    if type(memory) is not bytes or array.flags.writeable:
        return False
    try:
        array.flags.writeable = True
    except ValueError:
        return True
    array.flags.writeable = False
    return False


# Bytes
# --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def record_type(law: Law) -> np.dtype[np.void]:
    """Return the NumPy dtype of the packed record of one row."""
    layout = law.layout()
    names = ["output", *sorted(name for name in layout if name != "output")]
    return np.dtype(
        [(name, np.dtype(layout[name][0]).newbyteorder("<"), layout[name][1]) for name in names]
    )


def pack(law: Law, outputs: Array, side: Mapping[str, Array]) -> NDArray[np.uint8]:
    """Pack the output and side of each row into bytes: (n, width) uint8."""
    records = np.empty(len(outputs), record_type(law))
    for name in records.dtype.names or ():
        records[name] = outputs if name == "output" else side[name]
    return records.view(np.uint8).reshape(len(outputs), records.dtype.itemsize)


def unpack(law: Law, raw: NDArray[np.uint8]) -> tuple[Array, dict[str, Array]]:
    """Unpack outputs and side from (n, width) uint8."""
    kind = record_type(law)
    if raw.ndim != 2 or raw.shape[1] != kind.itemsize:
        raise InvalidInput(
            f"Expected {kind.itemsize} bytes of evidence a row for {law}, got {raw.shape[1:]}: the"
            " file is damaged."
        )
    records = np.ascontiguousarray(raw).view(kind).reshape(len(raw))
    native = {
        name: records[name].astype(records[name].dtype.newbyteorder("="))
        for name in kind.names or ()
    }
    outputs = native.pop("output")
    if not law.possible(outputs, native).all():
        raise InvalidInput(
            f"Expected evidence that {law} can have drawn in every row, got other bytes in some:"
            " the file is damaged."
        )
    return outputs, native


def from_arrow(
    column: pa.Array | pa.ChunkedArray, width: int
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Read the bytes of the rows that are not null, (m, width) uint8, and the mask of these rows,
    (n,) bool."""
    import pyarrow as pa
    import pyarrow.compute as pc

    present = np.asarray(pc.is_valid(column))
    found = column.drop_null().cast(pa.binary())
    chunks = found.chunks if isinstance(found, pa.ChunkedArray) else [found]
    parts = [_chunk_bytes(chunk, width) for chunk in chunks if len(chunk)]
    return (np.concatenate(parts) if parts else np.empty((0, width), np.uint8)), present


def _chunk_bytes(chunk: pa.Array, width: int) -> NDArray[np.uint8]:
    offsets = np.frombuffer(chunk.buffers()[1], np.int32)[
        chunk.offset : chunk.offset + len(chunk) + 1
    ]
    if not np.array_equal(np.diff(offsets), np.full(len(chunk), width)):
        raise InvalidInput(
            f"Expected {width} bytes of evidence in every row: the evidence column was cut or"
            " belongs to another law."
        )
    return np.frombuffer(chunk.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].reshape(
        len(chunk), width
    )


# As an Arrow table
# --------------------------------------------------------------------------------------------------


def read_facts(raw: bytes | str | None) -> dict[str, Any]:
    """Parse the shared facts, and refuse a format that this version does not read."""
    try:
        facts = json.loads(raw) if raw else {}
    except ValueError:
        facts = {}
    if facts.get("format") != FORMAT:
        raise InvalidInput(
            f"Expected labeldp evidence of format {FORMAT} in the table's metadata, got"
            f" {facts.get('format', 'none')}."
        )
    return dict(facts)


def _read_block(
    law: Law, raw: NDArray[np.uint8], present: NDArray[np.bool_], facts: dict[str, Any]
) -> Block:
    outputs, side = unpack(law, raw[present])
    return Block(
        law,
        outputs,
        side,
        np.flatnonzero(present),
        Receipt.from_dict(facts["receipt"]),
        str(facts["stage"]),
    )


def _whole(column: pa.ChunkedArray, width: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Read the bytes of all rows, (n, width) uint8 with zeros for null rows, and the mask of the
    others."""
    found, present = from_arrow(column, width)
    raw = np.zeros((len(present), width), np.uint8)
    raw[present] = found
    return raw, present


def _proof(
    facts: dict[str, Any], ids: Array, pieces: Sequence[tuple[NDArray[np.uint8], NDArray[np.bool_]]]
) -> NDArray[np.uint64]:
    """Compute each row's proof, a hash of the shared facts and the row's ids and evidence: (n,)
    uint64."""
    # Law, receipt and classes enter the salt, so a changed epsilon in the metadata invalidates
    # every row. "by_hand" and "columns" enter only where they are present.
    more = [name for name in ("by_hand", "columns") if name in facts]
    shared = {name: facts[name] for name in ("classes", "explicit_ids", "blocks", *more)}
    salt = "proof/" + digest(shared | {"behind": facts.get("behind", [])})
    return public_hash(
        salt, ids, *(part for raw, present in pieces for part in (present.astype(np.int64), raw))
    )


def _repeats(ids: Array) -> bool:
    # sorting takes a tenth of the time of np.unique, which hashes
    if ids.ndim == 1 and ids.dtype.kind in "iu":
        ordered = np.sort(ids)
        return bool((ordered[1:] == ordered[:-1]).any())
    return len(np.unique(sortable(ids), axis=0)) < len(ids)
