# SPDX-License-Identifier: Apache-2.0
"""One batch of a table, from raw labels to what is written: the function that every engine runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labeldp.custody._draw import BatchDraw, Ids, SecondPass, filtered
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.evidence._noisy import pack, record_type
from labeldp.laws import Law
from labeldp.tables._priors import OpenPrior, weights_of
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.formats._digest import DRAWN, drawn_words
from labeldp.tables.formats._labels import LabelCodec
from labeldp.tables.formats._table import WEIGHTS, Shape


class Columns(Protocol):
    """Rows whose columns can be asked for: a batch of any format, or an Arrow record batch."""

    def column(self, name: str) -> pa.Array:
        """One column."""
        ...


@dataclass(frozen=True, repr=False)
class Facts:
    """What a release reads of a batch of n rows.

    Attributes
    ----------
    codes : (n,) int32
        Raw labels.
    ids, units : (n,) NumPy integers or Arrow text, or a list of such columns; None where none are named
    prior : (n, K) float64 or None
    """

    codes: NDArray[np.int32]
    ids: Ids | None
    units: Ids | None
    prior: NDArray[np.float64] | None


Read = Callable[[Columns, int | None], Facts]
"""Reads the facts of a batch whose first row has this number, if rows have one."""


@dataclass(frozen=True)
class Reader:
    """Reads facts off a table's own columns; a `Read`.

    Attributes
    ----------
    spec : ReleaseSpec
    codec : LabelCodec
    prior : OpenPrior or None
        Where the prior is no columns. None where it is, where there is none, and where it is not to be asked.
    answered : bool
        The rows come with a column `WEIGHTS`.
    """

    spec: ReleaseSpec
    codec: LabelCodec
    prior: OpenPrior | None = None
    answered: bool = False

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return list(dict.fromkeys([*self.spec.columns, *(self.prior.columns if self.prior else ())]))

    def __call__(self, batch: Columns, start: int | None) -> Facts:
        """Codes, ids, units and prior of a batch, checked; `start` is its first row's number, if rows have one, for messages."""
        spec, codes = self.spec, self.codec.encode(batch.column(self.spec.label), start)
        ids, units = row_ids(batch, spec.ids), None if spec.unit is None else id_column(batch, spec.unit)
        return Facts(codes, ids, units, self._prior(batch, start))

    def _prior(self, batch: Columns, start: int | None) -> NDArray[np.float64] | None:
        n_classes = len(self.codec.classes)
        if self.answered:
            return kept_weights(batch.column(WEIGHTS), n_classes)
        return _prior(batch, self.spec.prior_columns) if self.prior is None else weights_of(self.prior, batch, start, n_classes)


def release_batch(
    batch: pa.RecordBatch,
    spec: ReleaseSpec,
    shape: Shape,
    second: SecondPass,
    kept: NDArray[np.bool_] | None = None,
    *,
    salt: str,
    check_rows: bool = False,
    facts: Facts | None = None,
) -> tuple[pa.RecordBatch, BatchDraw]:
    """A batch with raw labels in, the same rows as they are published out, and a column `DRAWN`; each row needs an id.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
    spec, shape
        What is released and how it looks.
    second : SecondPass
        The charged run: its key, its receipt, its law.
    kept : (n,) bool, optional
        Rows within their unit's cap; others are left out, and so are those of other parts than the run draws.
    salt : str
        Of what is drawn (`draw_salt`).
    check_rows : bool
        As in `SecondPass.draw`.
    facts : Facts, optional
        Of the batch, where they are not to be read off its columns alone.
    """
    facts = facts or Reader(spec, shape.codec)(batch, None)
    drawn = second.draw(facts.codes, facts.ids, prior=facts.prior, kept=kept, check_rows=check_rows, units=facts.units)
    rows, prior, kept = batch, facts.prior, drawn.kept
    if not kept.all():
        rows, prior = batch.filter(pa.array(kept)), None if prior is None else prior[kept]
    codes, raw = written(drawn.noisy, prior)
    return with_words(shape.rewrite(rows, codes, raw), salt, kept_ids(facts, kept), codes, raw), drawn


def kept_ids(facts: Facts, kept: NDArray[np.bool_]) -> Ids | None:
    """Ids of the rows that got an output."""
    return facts.ids if facts.ids is None or kept.all() else filtered(facts.ids, kept)


def with_words(
    rows: pa.RecordBatch, salt: str, ids: Ids | None, codes: NDArray[np.integer], raw: NDArray[np.uint8] | None
) -> pa.RecordBatch:
    """Released rows, and the column `DRAWN` of what each adds to the digest of what was drawn."""
    return rows.append_column(DRAWN, pa.array(drawn_words(salt, ids, codes, raw).view(np.int64)))


def written(
    noisy: NoisyLabels, prior: NDArray[np.float64] | None, words: NDArray[np.uint64] | None = None
) -> tuple[NDArray[np.integer], NDArray[np.uint8] | None]:
    """Codes of the released labels, and evidence bytes where the law needs them.

    Without an id column ties are broken by secret words: a row's place in the input, which the public could hash too, is not released.
    """
    (block,) = noisy.blocks
    named = noisy if noisy.explicit_ids or words is None else replace(noisy, ids=words)
    codes = block.outputs if block.law.kind == "label" else named.hard_codes(prior)
    raw = pack(block.law, block.outputs, block.side) if needs_evidence(block.law) else None
    return codes, raw


def needs_evidence(law: Law) -> bool:
    """True if a released label alone does not say all that the law released."""
    return law.kind != "label" or set(law.layout()) != {"output"}


def evidence_bytes(law: Law) -> int:
    """Width of a row's evidence; 0 where the label says all."""
    return record_type(law).itemsize if needs_evidence(law) else 0


def row_ids(batch: Columns, names: tuple[str, ...]) -> Ids | None:
    """Ids of the rows, a list of columns where several name them, or None where none does."""
    if not names:
        return None
    columns = [id_column(batch, name) for name in names]
    return columns[0] if len(columns) == 1 else [_as_text(column) for column in columns]


def id_column(batch: Columns, name: str) -> NDArray[np.integer] | pa.Array:
    """Whole numbers (NumPy) or text (Arrow) that name rows or units; never empty."""
    column = batch.column(name)
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    kind = pa.types
    text = kind.is_string(column.type) or kind.is_large_string(column.type) or kind.is_string_view(column.type)
    if not (text or kind.is_integer(column.type)):
        raise InvalidInput(f"Expected ids and units of whole numbers or text, got column {name!r} of type {column.type}. Cast it.")
    if column.null_count or (text and pc.any(pc.equal(pc.binary_length(column), 0)).as_py()):
        raise InvalidInput(f"Expected a value in every row of column {name!r}, got empty ones. Fill them, or drop such rows.")
    return column.cast(pa.large_string()) if text else column.to_numpy(zero_copy_only=False)


def id_array(batch: Columns, name: str) -> NDArray[np.generic]:
    """`id_column` as a NumPy array."""
    column = id_column(batch, name)
    return column if isinstance(column, np.ndarray) else np.asarray(column).astype(np.str_)


def row_id_array(batch: Columns, names: tuple[str, ...]) -> NDArray[np.generic] | None:
    """`row_ids` as a NumPy array: (n,), or (n, columns) of text where several columns name the rows."""
    columns = [id_array(batch, name) for name in names]
    if not columns:
        return None
    return columns[0] if len(columns) == 1 else np.column_stack([column.astype(np.str_) for column in columns])


def _as_text(column: NDArray[np.integer] | pa.Array) -> pa.Array:
    return pa.array(column).cast(pa.large_string()) if isinstance(column, np.ndarray) else column


def _prior(batch: Columns, names: Sequence[str] | None) -> NDArray[np.float64] | None:
    if not names:
        return None
    weights = np.column_stack([_number_column(batch, name) for name in names])
    if not np.all((weights >= 0) & (weights < np.inf)):  # before the charge, also where the law ignores the prior
        raise InvalidInput(f"Expected finite weights >= 0 in the prior's columns {', '.join(names)}, got others. Mend those rows.")
    return weights


def _number_column(batch: Columns, name: str) -> NDArray[np.float64]:
    try:
        return np.asarray(pc.cast(batch.column(name), pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidInput(
            f"Expected numbers in the prior's column {name!r}, got something else. Each row needs a weight for every class."
        ) from None


def kept_weights(column: pa.Array, n_classes: int) -> NDArray[np.float64]:
    """(n, K) weights of a column `WEIGHTS`: rows of K little-endian numbers of 32 bits."""
    fixed = column.cast(pa.binary()).cast(pa.binary(4 * n_classes))
    raw = np.frombuffer(fixed.buffers()[1], "<u4").reshape(-1, n_classes)
    return raw[fixed.offset : fixed.offset + len(fixed)].astype(np.float64)
