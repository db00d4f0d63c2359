# SPDX-License-Identifier: Apache-2.0
"""Several private targets of one fit: one charge and one draw for all columns, then a classifier for each of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labeldp.custody._encode import RowIds, columns_of
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.laws import Law
from labeldp.laws._columns import LabelColumns
from labeldp.protocol._fit import FitSettings, Floats
from labeldp.protocol._matching import check_count

STAGE = "fit"
"""The name of the only stage of the draw."""


@dataclass(frozen=True, eq=False)
class SeveralModels:
    """A fitted classifier for each label column.

    Attributes
    ----------
    names : tuple of L str
    parts : tuple of L fitted LabelDPClassifier
    """

    names: tuple[str, ...]
    parts: tuple[Any, ...]

    @classmethod
    def fit(cls, X: Any, noisy: NoisyLabels, make: Callable[[], Any]) -> "SeveralModels":
        """Fit a classifier, from `make`, to the noisy labels of each column; `noisy` has the rows of X in their order."""
        columns = columns_in(noisy)
        return cls(columns.names, tuple(make().fit(X, noisy.column(name)) for name in columns.names))

    def predict_proba(self, X: Any) -> list[Floats]:
        """Predict probabilities for each column: L arrays (n, K_l)."""
        return [part.predict_proba(X) for part in self.parts]

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most likely class of each column: (n, L), of objects if the columns' classes are of several types."""
        found = [part.predict(X) for part in self.parts]
        kinds = {each.dtype.kind for each in found}
        return np.stack(found if len(kinds) == 1 else [each.astype(object) for each in found], axis=1)

    def score(self, X: Any, Y: Any, sample_weight: NDArray[np.float64] | None) -> float:
        """Compute the share of rows in which all columns are predicted rightly, on public true labels."""
        if isinstance(Y, NoisyLabels):
            raise InvalidInput(
                "Expected public true labels of all columns, got NoisyLabels: score one column, "
                "model.estimators_[0].score(X, noisy['name'])."
            )
        predicted, right = self.predict(X), np.ones(len(X), bool)
        for number, column in enumerate(columns_of(Y, self.names)):
            right &= np.asarray(column) == predicted[:, number]
        return float(np.average(right, weights=sample_weight))


def columns_in(noisy: NoisyLabels) -> LabelColumns:
    """Return the columns of noisy labels of combinations."""
    assert isinstance(noisy.classes, LabelColumns)
    return noisy.classes


def is_several(classes: object, y: object) -> bool:
    """Tell whether a fit has several targets: its declared classes, or its noisy labels, are those of several columns."""
    return isinstance(classes, LabelColumns) or (isinstance(y, NoisyLabels) and isinstance(y.classes, LabelColumns))


def law_of(columns: LabelColumns, law: str | Law, epsilon: float) -> Law:
    """Make the law of all columns: the given one, or by the rule "auto", with each column's law by its name."""
    if isinstance(law, Law):
        if law.n_classes != len(columns) or law.epsilon != epsilon:
            raise InvalidInput(
                f"Expected a law over {len(columns)} combinations with epsilon={epsilon!r}, got {law}. Make it with LabelColumns.law."
            )
        columns.check(law)
        return law
    return columns.law(epsilon, law=None if law == "auto" else law)


def check_settings(given: dict[str, Any]) -> None:
    """Refuse settings that a fit of several targets has no use for."""
    for name, plain in (("n_stages", 1), ("prior", None), ("top_k_filter", None), ("stage_sizes", None)):
        value = given[name]
        if value is not None if plain is None else value != plain:
            raise InvalidInput(f"Expected {name}={plain!r} with several label columns, which are drawn in one stage without a prior.")


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


def check_rows(Y: Any, columns: LabelColumns, n_rows: int) -> None:
    """Refuse labels of other columns or of another number of rows than X."""
    for column in columns_of(Y, columns.names):
        check_count(len(column), n_rows)
