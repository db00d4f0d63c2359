# SPDX-License-Identifier: Apache-2.0
"""Several private targets of one fit: one charge and one draw for all columns, then a classifier for each of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp.custody._encode import RowIds
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.laws._columns import LabelColumns
from labeldp.protocol._fit import FitSettings, Floats
from labeldp.protocol._several import law_of, share_right, stacked, untold

STAGE = "fit"
"""The name of the only stage of the draw."""


@dataclass(frozen=True, eq=False)
class SeveralModels:
    """A fitted classifier for each label column.

    Attributes
    ----------
    columns : LabelColumns of L columns
    parts : tuple of L fitted LabelDPClassifier
    """

    columns: LabelColumns
    parts: tuple[Any, ...]

    @classmethod
    def fit(cls, X: Any, noisy: NoisyLabels, make: Callable[[], Any]) -> "SeveralModels":
        """Fit a classifier, from `make`, to the noisy labels of each column; `noisy` has the rows of X in their order."""
        columns = columns_in(noisy)
        if lacking := untold(noisy):
            raise InvalidInput(
                f"Expected rows that were asked about every label column, got none about {', '.join(lacking)}. Learn each of the others "
                "from noisy[name], or draw by another rule: law=columns.law(epsilon, 'joint')."
            )
        return cls(columns, tuple(make().fit(X, noisy.column(name)) for name in columns.names))

    def predict_proba(self, X: Any) -> list[Floats]:
        """Predict probabilities for each column: L arrays (n, K_l)."""
        return [part.predict_proba(X) for part in self.parts]

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most likely class of each column: (n, L), of objects if the columns' classes are of several types."""
        return stacked([part.predict(X) for part in self.parts])

    def score(self, X: Any, Y: Any, sample_weight: NDArray[np.float64] | None) -> float:
        """Compute the share of rows in which all columns are predicted rightly, on public true labels."""
        return share_right(self.predict(X), Y, self.columns, sample_weight)


def columns_in(noisy: NoisyLabels) -> LabelColumns:
    """Return the columns of noisy labels of combinations."""
    assert isinstance(noisy.classes, LabelColumns)
    return noisy.classes


def drawn(settings: FitSettings, columns: LabelColumns, Y: Any, rows: RowIds, public_digest: Callable[[], str]) -> NoisyLabels:
    """Charge all columns once, and draw each row once; a repeat returns the stored outputs.

    Parameters
    ----------
    settings : FitSettings
    columns : LabelColumns
    Y : (n, L) raw labels, data frame or mapping
    rows : RowIds
    public_digest : function
        Computes the digest of the public columns, which names the rows if there are no ids.
    """
    from labeldp.custody._run import open_run

    law = law_of(columns, settings.law, settings.epsilon)
    known = settings.ledger is not None or settings.noise is not None
    run = open_run(
        Y,
        columns,
        settings.account(),
        rows,
        epsilon=law.epsilon,
        laws={"law": law.to_dict(), "stage": STAGE},
        public_digest=public_digest() if known and rows.ids is None else "",
    )
    with run:
        return run.privatize(np.arange(run.n_rows), law, stage=STAGE)
