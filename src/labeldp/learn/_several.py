# SPDX-License-Identifier: Apache-2.0
"""Several private targets of one fit: one charge and one draw for all columns, then a classifier
for each of them."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Never, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.evidence._noisy import Block, derived
from labeldp.laws import LabelColumns, Law, SubsetSelection
from labeldp.laws._base import Side, no_inclusion
from labeldp.laws._columns import laws_of_columns
from labeldp.protocol._estimator import paid
from labeldp.protocol._fit import (
    FitPlan,
    FitSettings,
    Floats,
    Rows,
    Stage,
    answer_for,
    mixed,
    open_fit,
    run_stages,
)
from labeldp.protocol._matching import take
from labeldp.protocol._several import law_of, stacked, untold
from labeldp.protocol.metrics import accelerated

if TYPE_CHECKING:
    from labeldp.custody._private import PrivateLabels

STAGE = "fit"
"""The name of the only stage of the draw."""
Belief: TypeAlias = list[Floats]
"""Weights of the classes of each of L columns: L arrays (n, K_l)."""
# rows x combinations by which it is estimated how columns hang together
_TIED_CELLS: Final = 1 << 19
_FLOOR: Final = np.finfo(np.float64).tiny
# share of uniform classes in a belief: classifiers that only choose, such as ridge, give others no
# probability
_UNSURE: Final = 0.01
_STILL: Final = 1e-4  # a step of the shares of combinations that ends their estimate
Maker: TypeAlias = Callable[[int], Any]
"""Makes the unfitted classifier of a column, by its number."""


@dataclass(frozen=True, eq=False)
class SeveralModels:
    """A fitted classifier for each label column.

    Attributes
    ----------
    columns : LabelColumns of L columns
        Those that were learned: all of the noisy labels, or some of them.
    parts : tuple of L fitted LabelDPClassifier
    """

    columns: LabelColumns
    parts: tuple[Any, ...]

    @classmethod
    def fit(
        cls,
        X: Any,
        noisy: NoisyLabels,
        make: Maker,
        belief: Belief | None = None,
        sample_weight: Floats | None = None,
        counted: Rows | None = None,
        wanted: Sequence[str] | None = None,
    ) -> "SeveralModels":
        """Fit a classifier to each column, or to each of those that are wanted.

        Parameters
        ----------
        X : n rows of features
        noisy : NoisyLabels of n rows
        make : function of a column's number
            Makes its unfitted classifier.
        belief : list of L arrays (n, K_l), optional
            How each column is distributed in each row, for draws that are read for the columns
            together. None: what classifiers predict that are fitted first, to what the draws tell
            of each column alone, or if they tell nothing alone under uniform other columns.
        sample_weight : (n,) float64, optional
            Public weights of the rows, for each column's classifier.
        counted : (m,) positions, optional
            Rows whose sets of combinations are counted for each column, which measures without
            bias; they have no say in `belief`. None: all rows.
        wanted : sequence of str, optional
            Names of some of the columns, in any order. None: all.
        """
        columns = columns_in(noisy)
        chosen = columns if wanted is None else columns.some(wanted)
        if lacking := [name for name in untold(noisy) if name in chosen.names]:
            raise InvalidInput(
                "Expected rows that were asked about every label column, got none about"
                f" {_validate.quoted(lacking)}. Learn each of the others from noisy[name], or draw"
                " by another rule: law=columns.law(epsilon, 'joint')."
            )
        if belief is None and parted(noisy, counted)[1]:
            others = (
                np.arange(len(noisy))
                if counted is None
                else np.setdiff1d(np.arange(len(noisy)), counted)
            )
            uniform = [np.ones((len(others), size)) for size in columns.sizes]
            some = (
                take(X, others),
                noisy[others],
                None if sample_weight is None else sample_weight[others],
            )
            belief = cls._of(
                columns,
                *some,
                lambda number: make(number).set_params(validation_fraction=0.0),
                Reading(uniform),
            ).predict_proba(X)
        reading = Reading(
            [
                (1 - _UNSURE) * each / each.sum(axis=1, keepdims=True) + _UNSURE / each.shape[1]
                for each in belief or []
            ],
            counted,
        )
        return cls._of(
            chosen,
            X,
            noisy,
            sample_weight,
            make,
            reading.tied(noisy, sample_weight) if belief else reading,
        )

    @classmethod
    def _of(
        cls,
        wanted: LabelColumns,
        X: Any,
        noisy: NoisyLabels,
        sample_weight: Floats | None,
        make: Maker,
        reading: "Reading",
    ) -> "SeveralModels":
        numbers = map(columns_in(noisy).place, wanted.names)
        return cls(
            wanted,
            tuple(
                make(number).fit(X, reading.told(noisy, number), sample_weight)
                for number in numbers
            ),
        )

    def predict_proba(self, X: Any) -> list[Floats]:
        """Predict probabilities for each column: L arrays (n, K_l)."""
        return [part.predict_proba(X) for part in self.parts]

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most likely class of each column: (n, L), of objects if the columns' classes
        are of several types."""
        return stacked([part.predict(X) for part in self.parts])


def columns_in(noisy: NoisyLabels) -> LabelColumns:
    """Return the columns of noisy labels of combinations."""
    assert isinstance(noisy.classes, LabelColumns)
    return noisy.classes


def parted(noisy: NoisyLabels, counted: Rows | None) -> tuple[list[Block], list[Block]]:
    """Part draws into those that are read for each column alone, and those that are read for the
    columns together.

    The second are sets of combinations in rows that are not `counted`, and draws by laws that tell
    of no column alone.
    """
    alone: list[Block] = []
    together: list[Block] = []
    for block in noisy.blocks:
        if not laws_of_columns(block.law, columns_in(noisy).sizes):
            together.append(block)
        elif counted is None or not isinstance(block.law, SubsetSelection):
            alone.append(block)
        else:
            for found, mask in (
                (alone, np.isin(block.rows, counted)),
                (together, ~np.isin(block.rows, counted)),
            ):
                if mask.any():
                    found.append(block.at(np.flatnonzero(mask), block.rows[mask]))
    return alone, together


@dataclass(frozen=True, eq=False)
class Reading:
    """How draws of combinations are read for one column: given what is believed of the others, and
    how they hang together.

    Attributes
    ----------
    belief : list of L arrays (n, K_l)
    counted : (m,) positions, or None
        As in `SeveralModels.fit`.
    ties : (K_1, ..., K_L) float64, or None
        Factors R by which combinations are likelier than by independent columns: P[c | x] is in
        proportion to R_c prod_l P[c_l | x]. None: independent columns.
    """

    belief: Belief
    counted: Rows | None = None
    ties: Floats | None = None

    def tied(self, noisy: NoisyLabels, sample_weight: Floats | None) -> "Reading":
        """Estimate from weighted rows how the columns hang together, beyond what the belief
        explains, and read with it.

        Notes
        -----
        Columns that follow from one another would else be read with a bias: the others' belief, and
        the set, would count one fact twice. R maximises the likelihood of the draws given the
        belief, with one row a combination added that follows the belief: with fewer rows than
        combinations R stays near 1. It is post-processing. Cost: at most some hundred passes over
        2^19 cells; of more, every m-th row is taken.

        References
        ----------
        EM for log-linear models of incomplete tables: Fuchs 1982, "Maximum likelihood estimation
        and model selection in contingency tables with missing data"; accelerated as
        `labeldp.protocol.metrics.likeliest_frequencies`.
        """
        _, together = parted(noisy, self.counted)
        columns = columns_in(noisy)
        if not together:
            return self
        k = len(columns)
        step = max(1, -(-sum(len(block.rows) for block in together) * k // _TIED_CELLS))
        some = [block.at(slice(None, None, step), block.rows[::step]) for block in together]
        rows = np.concatenate([block.rows for block in some])
        chance = np.concatenate(
            [np.exp(block.law.log_likelihood(block.outputs, block.side)) for block in some]
        )
        weights = dict(zip(columns.names, (each[rows] for each in self.belief), strict=True))
        apart = columns.prior(weights)(np.arange(len(rows)))
        apart /= apart.sum(axis=1, keepdims=True)
        weight = np.ones(len(rows)) if sample_weight is None else sample_weight[rows]
        total = max(float(weight.sum()), _FLOOR)
        base = np.maximum(weight @ apart / total, _FLOOR)

        def move(shares: Floats) -> Floats:
            guess = apart * (shares / base)
            guess /= guess.sum(axis=1, keepdims=True)
            before = weight @ guess / total
            guess *= chance
            guess /= guess.sum(axis=1, keepdims=True)
            found = (
                shares * (weight @ guess + k * base) / ((total + k) * np.maximum(before, _FLOOR))
            )
            return np.asarray(found / found.sum())

        shares = accelerated(move, base / base.sum(), lambda step, found: step < _STILL)
        return replace(self, ties=(shares / base).reshape(columns.sizes))

    def told(self, noisy: NoisyLabels, number: int) -> NoisyLabels:
        """Read what noisy labels of several columns tell about one: by draws of it alone, and by
        those of all, given the others."""
        columns = columns_in(noisy)
        alone, together = parted(noisy, self.counted)
        found = derived(noisy, blocks=tuple(alone)).column(columns.names[number])
        return derived(
            found,
            blocks=(
                *found.blocks,
                *(self._beside(block, columns.sizes, number) for block in together),
            ),
        )

    def _beside(self, block: Block, sizes: Sequence[int], number: int) -> Block:
        """Add up the likelihood of the combinations over the other columns, by how these are
        distributed given this one."""
        found, done = np.empty((len(block.rows), sizes[number])), 0
        ties = np.ones((1, *sizes)) if self.ties is None else self.ties[None]
        for part in block.batches():
            near = [each[part.rows] for each in self.belief]
            chance = np.exp(part.law.log_likelihood(part.outputs, part.side)).reshape(
                len(part.rows), *sizes
            )
            both, scale = (_added(table, number, near) for table in (chance * ties, ties))
            found[done : done + len(part.rows)] = np.log(np.maximum(both, _FLOOR)) - np.log(
                np.maximum(scale, _FLOOR)
            )
            done += len(part.rows)
        found -= found.max(axis=1, keepdims=True)
        return replace(
            block, law=BesideOthers(sizes[number], block.law.epsilon), outputs=found, side={}
        )


def _added(table: Floats, number: int, belief: Belief) -> Floats:
    """Add up a table of combinations, (n or 1, K_1, ..., K_L), over all columns but one, by weights
    of the others: (n, K_l)."""
    table = np.moveaxis(table, number + 1, 1)
    for other in reversed([m for m in range(len(belief)) if m != number]):
        weights = belief[other].reshape(len(belief[other]), *(1,) * (table.ndim - 2), -1)
        table = (table * weights).sum(axis=-1)
    return table


@dataclass(frozen=True)
class BesideOthers(Law):
    """What draws of combinations tell about one column, given how the others are distributed: for
    learning alone, it draws nothing.

    Output: (n, K_l) float64 log-likelihoods, with maximum 0 in each row. They follow from outputs
    and models of outputs, at no cost.
    """

    name: ClassVar[str] = "beside-others"
    kind: ClassVar = "scores"
    uses_prior: ClassVar[bool] = True

    def log_likelihood(self, outputs: NDArray[Any], side: Side) -> Floats:
        return np.asarray(outputs)

    def inclusion(self, outputs: NDArray[Any], side: Side) -> tuple[Floats, Floats]:
        return no_inclusion(outputs)

    def _refused(self, *_: object) -> Never:
        raise InvalidInput(
            "Expected noisy labels as they were drawn, got what a model of several columns read."
            " Take its noisy_labels_."
        )

    prepare = sample = profile = layout = table = _refused  # type: ignore[assignment]


# Drawing
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Drawn:
    """The draws of a fit on several columns.

    Attributes
    ----------
    noisy : NoisyLabels of n rows
    stages : tuple of Stage
    belief : list of L arrays (n, K_l), or None
        What models of the stages' rows predict, if some draw tells of the columns only together.
    known : ClusterModel or None
        The answer of a prior of groups, as a model of the combinations.
    """

    noisy: NoisyLabels
    stages: tuple[Stage, ...] = ()
    belief: Belief | None = None
    known: Any = None


def in_stages(
    plan: FitPlan,
    X: Any,
    public_digest: Callable[[], str],
    make: Maker,
    temperature: float,
    sample_weight: Floats | None = None,
    counted: Rows | None = None,
) -> Drawn:
    """Charge all columns once and draw each row once, by a prior, or by what models of the stages
    before predict.

    A prior of groups of rows is asked for first, about the combinations, at its own charge in the
    accounts of the same columns.

    Parameters
    ----------
    plan : FitPlan
    X : n rows of features
    public_digest : function
        As for `drawn`.
    make : function of a column's number
        Makes its unfitted classifier, which holds no rows out: the plan does.
    temperature : float
        Of the models' probabilities as a prior.
    sample_weight : (n,) float64, optional
        Public weights of the rows, for learning alone.
    counted : empty array, or None
        As in `SeveralModels.fit`.

    Returns
    -------
    Drawn
    """
    columns = cast(LabelColumns, plan.classes)
    plan = plan.with_answer(answer_for(plan))
    models: list[Callable[[], SeveralModels]] = []

    def belief_of(model: Callable[[], SeveralModels] | None, rows: Rows) -> Belief | None:
        if model is not None:
            return model().predict_proba(take(X, rows))
        # scaled
        return (
            None
            if plan.prior is None
            else columns.marginals(mixed(plan.prior[rows], plan.prior[rows], 0.0))
        )

    def fit(
        rows: Rows, noisy: NoisyLabels, model: Callable[[], SeveralModels] | None, _: object
    ) -> Callable[[], SeveralModels]:
        # Trained where it is asked: the last stage's may not be needed, and a repeat draws nothing.
        weights = None if sample_weight is None else sample_weight[rows]
        models.append(
            functools.cache(
                lambda: SeveralModels.fit(
                    take(X, rows), noisy, make, belief_of(model, rows), weights, counted
                )
            )
        )
        return models[-1]

    def prior_of(model: Callable[[], SeveralModels], rows: Rows) -> Floats:
        proba = model().predict_proba(take(X, rows))
        weights = {
            name: each ** (1.0 / temperature)
            for name, each in zip(columns.names, proba, strict=True)
        }
        return columns.prior(weights)(np.arange(len(rows)))

    with open_fit(plan, public_digest=public_digest) as run, paid(run, plan.labels):
        found = run_stages(
            run,
            plan.stages,
            fit=fit,
            prior_of=prior_of,
            first_prior=plan.prior,
            held_out=plan.held_out,
        )
        # By the last stage's model, which has seen no held-out row: what is learned with it is
        # measured without bias.
        belief = models[-1]().predict_proba(X) if parted(found.noisy, None)[1] else None
    # Each row's side shows what the groups' answer was, so these noisy labels reveal both releases
    # and name both receipts.
    noisy = (
        found.noisy if plan.answer is None else derived(found.noisy, behind=(plan.answer.receipt,))
    )
    return Drawn(noisy, found.stages, belief, plan.known)


def drawn(
    settings: FitSettings,
    labels: "PrivateLabels",
    public_digest: Callable[[], str],
) -> Drawn:
    """Charge all columns once, and draw each row once; a repeat returns the stored outputs.

    Parameters
    ----------
    settings : FitSettings
    labels : PrivateLabels
        Of several columns.
    public_digest : function
        Computes the digest of the public columns, which names the rows if there are no ids.
    """
    from labeldp.custody._run import open_run

    law = law_of(cast(LabelColumns, labels.classes), settings.law, settings.epsilon)
    run = open_run(
        labels,
        epsilon=law.epsilon,
        laws={"law": law.to_dict(), "stage": STAGE},
        public_digest=public_digest,
    )
    with run:
        return Drawn(run.privatize(np.arange(run.n_rows), law, stage=STAGE))
