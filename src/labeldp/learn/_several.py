# SPDX-License-Identifier: Apache-2.0
"""Several private targets of one fit: one charge and one draw for all columns, then a classifier for each of them."""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Never, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.custody._encode import RowIds
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.evidence._noisy import Block, derived
from labeldp.laws import LabelColumns, Law
from labeldp.laws._base import Side
from labeldp.laws._columns import laws_of_columns
from labeldp.protocol._estimator import paid
from labeldp.protocol._fit import FitPlan, FitSettings, Floats, Rows, Stage, mixed, open_fit, run_stages
from labeldp.protocol._matching import take
from labeldp.protocol._several import law_of, share_right, stacked, untold

STAGE = "fit"
"""The name of the only stage of the draw."""
Belief: TypeAlias = list[Floats]
"""Weights of the classes of each of L columns: L arrays (n, K_l)."""
Maker: TypeAlias = Callable[[int], Any]
"""Makes the unfitted classifier of a column, by its number."""


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
    def fit(
        cls, X: Any, noisy: NoisyLabels, make: Maker, belief: Belief | None = None, sample_weight: Floats | None = None
    ) -> "SeveralModels":
        """Fit a classifier to each column.

        Parameters
        ----------
        X : n rows of features
        noisy : NoisyLabels of n rows
        make : function of a column's number
            Makes its unfitted classifier.
        belief : list of L arrays (n, K_l), optional
            How each column is distributed in each row, for draws that tell of the columns only together. None: uniformly at first; then all
            are fitted once more, with what the first models predict.
        sample_weight : (n,) float64, optional
            Public weights of the rows, for each column's classifier.
        """
        columns = columns_in(noisy)
        if lacking := untold(noisy):
            raise InvalidInput(
                f"Expected rows that were asked about every label column, got none about {_validate.quoted(lacking)}. Learn each of the "
                "others from noisy[name], or draw by another rule: law=columns.law(epsilon, 'joint')."
            )
        guess = belief or [np.ones((len(noisy), size)) for size in columns.sizes]
        numbers = range(len(columns.names))
        model = cls(columns, tuple(make(number).fit(X, told(noisy, number, guess), sample_weight) for number in numbers))
        if belief is None and drawn_together(noisy):
            return cls.fit(X, noisy, make, model.predict_proba(X), sample_weight)
        return model

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


def drawn_together(noisy: NoisyLabels) -> bool:
    """Tell whether some draw of several columns tells of them only together."""
    return not all(laws_of_columns(block.law, columns_in(noisy).sizes) for block in noisy.blocks)


def told(noisy: NoisyLabels, number: int, belief: Belief) -> NoisyLabels:
    """Read what noisy labels of several columns tell about one: by draws of it alone, and by those of all, given how the others are.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
    number : int
        The column, 0 to L - 1.
    belief : list of L arrays (n, K_l)
        Of the other columns; they count as independent given the features.
    """
    columns = columns_in(noisy)
    apart = [bool(laws_of_columns(block.law, columns.sizes)) for block in noisy.blocks]
    alone = derived(noisy, blocks=tuple(itertools.compress(noisy.blocks, apart))).column(columns.names[number])
    rest = [block for block, by_itself in zip(noisy.blocks, apart, strict=True) if not by_itself]
    return derived(alone, blocks=(*alone.blocks, *(_beside(block, columns.sizes, number, belief) for block in rest)))


def _beside(block: Block, sizes: Sequence[int], number: int, belief: Belief) -> Block:
    """Add up the likelihood of the combinations over the other columns, by how these are distributed."""
    others, found = [m for m in range(len(sizes)) if m != number], np.empty((len(block.rows), sizes[number]))
    done = 0
    for part in block.batches():
        n = len(part.rows)
        table = np.exp(part.law.log_likelihood(part.outputs, part.side)).reshape(n, *sizes)
        table = np.moveaxis(table, number + 1, 1)
        for m in reversed(others):
            table = (table * belief[m][part.rows].reshape(n, *(1,) * (table.ndim - 2), -1)).sum(axis=-1)
        found[done : done + n] = np.log(np.maximum(table, np.finfo(np.float64).tiny))
        done += n
    found -= found.max(axis=1, keepdims=True)
    return replace(block, law=BesideOthers(sizes[number], block.law.epsilon), outputs=found, side={})


@dataclass(frozen=True)
class BesideOthers(Law):
    """What draws of combinations tell about one column, given how the others are distributed: for learning alone, it draws nothing.

    Output: (n, K_l) float64 log-likelihoods, with maximum 0 in each row. They follow from outputs and models of outputs, at no cost.
    """

    name: ClassVar[str] = "beside-others"
    kind: ClassVar = "scores"
    uses_prior: ClassVar[bool] = True

    def log_likelihood(self, outputs: NDArray[Any], side: Side) -> Floats:
        return np.asarray(outputs)

    def inclusion(self, outputs: NDArray[Any], side: Side) -> tuple[Floats, Floats]:
        return np.full(len(outputs), np.nan), np.full(len(outputs), np.nan)

    def _refused(self, *_: object) -> Never:
        raise InvalidInput("Expected noisy labels as they were drawn, got what a model of several columns read. Take its noisy_labels_.")

    prepare = sample = profile = layout = table = _refused  # type: ignore[assignment]


# Drawing --------------------------------------------------------------------------------------------------------------------------------


def in_stages(
    plan: FitPlan,
    Y: Any,
    X: Any,
    public_digest: Callable[[], str],
    make: Maker,
    temperature: float,
    sample_weight: Floats | None = None,
) -> tuple[NoisyLabels, tuple[Stage, ...], Belief | None]:
    """Charge all columns once and draw each row once, by a prior, or by what models of the stages before predict.

    Parameters
    ----------
    plan : FitPlan
    Y : (n, L) raw labels, data frame or mapping
    X : n rows of features
    public_digest : function
        As for `drawn`.
    make : function of a column's number
        Makes its unfitted classifier, which holds no rows out: the plan does.
    temperature : float
        Of the models' probabilities as a prior.
    sample_weight : (n,) float64, optional
        Public weights of the rows, for learning alone.

    Returns
    -------
    noisy : NoisyLabels of n rows
    stages : tuple of Stage
    belief : list of L arrays (n, K_l), or None
        What models of the stages' rows predict, if some draw tells of the columns only together.
    """
    columns = cast(LabelColumns, plan.classes)
    models: list[Callable[[], SeveralModels]] = []

    def belief_of(model: Callable[[], SeveralModels] | None, rows: Rows) -> Belief | None:
        if model is not None:
            return model().predict_proba(take(X, rows))
        return None if plan.prior is None else columns.marginals(mixed(plan.prior[rows], plan.prior[rows], 0.0))  # scaled

    def fit(rows: Rows, noisy: NoisyLabels, model: Callable[[], SeveralModels] | None, _: object) -> Callable[[], SeveralModels]:
        # Trained where it is asked: the last stage's may not be needed, and a repeat draws nothing.
        weights = None if sample_weight is None else sample_weight[rows]
        models.append(functools.cache(lambda: SeveralModels.fit(take(X, rows), noisy, make, belief_of(model, rows), weights)))
        return models[-1]

    def prior_of(model: Callable[[], SeveralModels], rows: Rows) -> Floats:
        proba = model().predict_proba(take(X, rows))
        weights = {name: each ** (1.0 / temperature) for name, each in zip(columns.names, proba, strict=True)}
        return columns.prior(weights)(np.arange(len(rows)))

    with open_fit(plan, Y, public_digest=public_digest) as run, paid(run, plan.rows):
        found = run_stages(run, plan.stages, fit=fit, prior_of=prior_of, first_prior=plan.prior)
        # By the last stage's model, which has seen no held-out row: what is learned with it is measured without bias.
        belief = models[-1]().predict_proba(X) if drawn_together(found.noisy) else None
    return found.noisy, found.stages, belief


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
