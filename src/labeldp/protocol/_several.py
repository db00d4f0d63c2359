# SPDX-License-Identifier: Apache-2.0
"""Several private targets of one fit: what the estimators that learn them share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp.custody._encode import FINITE, NO_NUMBER, bad_label, columns_of, is_closed
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.evidence._noisy import derived
from labeldp.laws import Grid, LabelColumns, Law
from labeldp.laws._columns import laws_of_columns
from labeldp.laws._grid import as_numbers
from labeldp.laws._square_wave import law_of_numbers
from labeldp.protocol.metrics import checked_weights, class_rates


def is_several(y: object) -> bool:
    """Tell whether noisy or private labels are of several columns."""
    return (isinstance(y, NoisyLabels) or is_closed(y)) and isinstance(y.classes, LabelColumns)


def law_of(columns: LabelColumns, law: str | Law, epsilon: float, *, prior: bool = False) -> Law:
    """Make the law of all columns: the given one, or that of "one", with each column's law by its
    name.

    With a prior, such as that of a stage before, "auto" draws each row by what tells most under it.
    """
    if isinstance(law, Law):
        if law.n_classes != len(columns) or law.epsilon != epsilon:
            raise InvalidInput(
                f"Expected a law over {len(columns)} combinations with epsilon={epsilon!r}, got"
                f" {law}. Make it with LabelColumns.law."
            )
        columns.check(law)
        return law
    if law != "auto" or not prior:
        return columns.law(epsilon, law=None if law == "auto" else law)
    each = [
        law_of_numbers(len(values), prior=True) if isinstance(values, Grid) else "auto"
        for values in columns.lists
    ]
    return columns.law(epsilon, law=each)


def rates_of(class_prior: Any, columns: LabelColumns) -> list[NDArray[np.float64] | None]:
    """Check known rates of the classes of several label columns: a mapping of columns to them; None
    for a column that is left out."""
    if class_prior is None:
        return [None] * len(columns.names)
    if not isinstance(class_prior, Mapping):
        raise InvalidInput(
            "Expected class_prior as a mapping of label columns to the rates of their classes,"
            f" such as {{{columns.names[0]!r}: [...]}}, got a {type(class_prior).__name__}."
        )
    given = {columns.place(name): rates for name, rates in class_prior.items()}
    return [
        class_rates(given[number], values) if number in given else None
        for number, values in enumerate(columns.lists)
    ]


def columns_told(noisy: NoisyLabels) -> list[NoisyLabels]:
    """Read each column of noisy labels of several, by the draws that tell of it without the others;
    none of noisy labels of one column."""
    columns = noisy.classes
    if not isinstance(columns, LabelColumns):
        return []
    alone = derived(
        noisy,
        blocks=tuple(block for block in noisy.blocks if laws_of_columns(block.law, columns.sizes)),
    )
    return [alone.column(name) for name in columns.names]


def untold(noisy: NoisyLabels) -> list[str]:
    """List the columns of which no row tells, alone or together with others: by the rule "one",
    that no row was asked about."""
    columns = noisy.classes
    if not isinstance(columns, LabelColumns) or not all(
        laws_of_columns(block.law, columns.sizes) for block in noisy.blocks
    ):
        return []
    return [
        name
        for name, each in zip(columns.names, columns_told(noisy), strict=True)
        if not each.evidenced.any()
    ]


def stacked(found: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Put the predictions of L columns side by side: (n, L), of objects if their classes are of
    several types."""
    kinds = {each.dtype.kind for each in found}
    return np.stack(found if len(kinds) == 1 else [each.astype(object) for each in found], axis=1)


def equals(predicted: NDArray[Any], truth: NDArray[Any], classes: object) -> NDArray[np.bool_]:
    """Compare predicted classes with public true labels, row by row: (n,) bool; of a `Grid` a
    number counts as its nearest point."""
    if not isinstance(classes, Grid):
        return np.asarray(predicted == truth)
    points = classes.codes(as_numbers(truth))
    if (points < 0).any():
        # they are public, but those of the training rows may be passed
        raise bad_label(NO_NUMBER, FINITE)
    return np.asarray(classes.codes(as_numbers(predicted)) == points)


def share_right(
    predicted: NDArray[Any],
    Y: Any,
    columns: LabelColumns,
    sample_weight: NDArray[np.float64] | None,
) -> float:
    """Compute the share of rows in which all of L columns are predicted rightly, on public true
    labels."""
    if isinstance(Y, NoisyLabels):
        raise InvalidInput(
            "Expected public true labels of all columns, got NoisyLabels: score one column, "
            "metrics.accuracy(noisy['name'], predicted[:, 0])."
        )
    right = np.ones(len(predicted), bool)
    for number, column in enumerate(map(np.asarray, columns_of(Y, columns.names))):
        if column.shape != right.shape:
            raise InvalidInput(
                f"Expected labels of {len(right)} rows, as many as X has, got shape {column.shape}"
                f" of {columns.names[number]!r}."
            )
        right &= equals(predicted[:, number], column, columns.lists[number])
    return float(
        np.average(
            right,
            weights=None if sample_weight is None else checked_weights(sample_weight, len(right)),
        )
    )
