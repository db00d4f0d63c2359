# SPDX-License-Identifier: Apache-2.0
"""Multi-stage training: privatize a part, learn from everything so far, and let the model be the prior of the next part.

Source: LP-MST, Algorithm 3 of Ghazi et al. 2021 (with the prior from the model of the stage before). The parts are disjoint, so the
whole costs one epsilon by parallel composition, models and all outputs included. The one loop for every framework.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels, concat
from labeldp.laws import AutoLaw, Law, PriorSplit, RandomizedResponse, RRTopK, SubsetSelection

if TYPE_CHECKING:  # a machine that only trains has none of what custody needs
    from labeldp.custody._draw import Prior

Model = TypeVar("Model")
Rows = NDArray[np.int64]
PriorOfRows = Callable[[Rows], ArrayLike]


class StageRun(Protocol):
    """What the loop needs of a run (see `labeldp.custody._run.Run`)."""

    @property
    def n_rows(self) -> int: ...

    def partition(self, fractions: tuple[float, ...]) -> NDArray[np.int16]: ...

    def privatize(self, rows: Rows, law: Law, prior: "Prior" = None, stage: str = "release") -> NoisyLabels: ...


@dataclass(frozen=True)
class StagePlan:
    """How the rows are divided and which law each part is drawn with: public, and fixed before anything is drawn.

    Attributes
    ----------
    law : Law
        Of every stage (see `law_of`).
    sizes : tuple of float
        Share of the training rows in each stage; sums to 1.
    validation_fraction : float
        Share of all rows that is held out of training, drawn by `validation_law` under a uniform prior.
    """

    law: Law
    sizes: tuple[float, ...]
    validation_fraction: float = 0.0

    @property
    def n_stages(self) -> int:
        """Number of stages."""
        return len(self.sizes)

    @property
    def validation_law(self) -> Law:
        """An invertible law: the stages' own if it ignores priors, else one that releases the same kind of output."""
        if not self.law.uses_prior:
            return self.law
        return (RandomizedResponse if self.law.kind == "label" else SubsetSelection)(self.law.n_classes, self.law.epsilon)

    def law_of(self, stage: int, has_prior: bool) -> Law:
        """The law of a stage, counted from 0.

        Without a prior the first draws with `validation_law` where this one would have the same k candidates in every row, or, as a split
        of classes without order, tell no more and have no inverse.
        """
        needs_one = isinstance(self.law, RRTopK) or (isinstance(self.law, PriorSplit) and not self.law.ordered)
        return self.validation_law if needs_one and stage == 0 and not has_prior else self.law

    @property
    def fractions(self) -> tuple[float, ...]:
        """Shares of all rows: the validation part (if any), then each stage."""
        stages = tuple((1.0 - self.validation_fraction) * size for size in self.sizes)
        return (self.validation_fraction, *stages) if self.validation_fraction else stages

    @property
    def invertible(self) -> bool:
        """True if every row has an unbiased estimator as long as the first prior is uniform."""
        side = self.law.prepare(np.ones((1, self.law.n_classes)))
        kind, shape = self.law.layout()["output"]
        own, _ = self.law.inclusion(np.zeros((1, *shape), kind), side)
        return bool(np.isfinite(own[0])) and (self.n_stages == 1 or not self.law.uses_prior)

    def to_dict(self) -> dict[str, object]:
        """The plan as JSON-ready data, for the charge."""
        return {"law": self.law.to_dict(), "sizes": list(self.sizes), "validation_fraction": self.validation_fraction}


def plan_stages(law: Law, *, n_stages: int, sizes: tuple[float, ...] | None, validation_fraction: float, n_rows: int) -> StagePlan:
    """A checked plan; one stage where a prior could not change the law, and no validation part that would be too small to tell anything.

    Parameters
    ----------
    law : Law
    n_stages : int
    sizes : tuple of float, optional
        One positive number a stage, any scale; equal by default.
    validation_fraction : float in [0, 1)
    n_rows : int
    """
    count = _validate.integer(n_stages=n_stages, low=1)
    held_out = _validate.fraction(validation_fraction=validation_fraction, zero=True)
    shares = np.ones(count) if sizes is None else np.asarray(sizes, np.float64)
    if shares.shape != (count,) or not np.all((shares > 0) & (shares < np.inf)):
        raise InvalidInput(f"Expected stage_sizes of one positive number for each of n_stages={count}, got {sizes!r}. Make the two agree.")
    if not law.uses_prior or (isinstance(law, AutoLaw) and law.n_classes == 2):  # with two classes every law is randomized response
        shares = np.ones(1)
    return StagePlan(law, tuple(float(s) for s in shares / shares.sum()), held_out if held_out * n_rows >= MIN_VALIDATION_ROWS else 0.0)


MIN_VALIDATION_ROWS = 20
HELD_OUT = "validation"
"""Name of the round that draws held-out rows."""


@dataclass(frozen=True)
class Stage:
    """One finished round: its name, law and number of rows."""

    name: str
    law: Law
    n_rows: int


@dataclass(frozen=True, eq=False)
class StagedFit(Generic[Model]):
    """What the loop leaves behind.

    Attributes
    ----------
    model : what `fit` returned last
    noisy : NoisyLabels of all rows, in the order of the table
    training, validation : int positions of the rows learned from, and of those held out
    stages : tuple of Stage
    """

    model: Model
    noisy: NoisyLabels
    training: Rows
    validation: Rows
    stages: tuple[Stage, ...]


def run_stages(
    run: StageRun,
    plan: StagePlan,
    *,
    fit: Callable[[Rows, NoisyLabels, Model | None, tuple[Rows, NoisyLabels] | None], Model],
    prior_of: Callable[[Model, Rows], ArrayLike],
    first_prior: PriorOfRows | None = None,
    held_out: NDArray[np.bool_] | None = None,
) -> StagedFit[Model]:
    """Draw and learn, stage by stage.

    Parameters
    ----------
    run : labeldp.custody._run.Run
        Charged; each row is drawn once.
    plan : StagePlan
    fit : function (rows, noisy labels of these rows, model of the stage before or None, held-out (rows, noisy) or None) -> model
        Learns from all rows drawn so far.
    prior_of : function (model, rows) -> (m, K) weights
        Asked for rows whose labels the model knows nothing of.
    first_prior : function of rows, optional
        Public prior of the first stage; uniform if None.
    held_out : (n,) bool, optional
        The validation part, where the first prior could only come of the other rows' labels; None: the run chooses it.

    Returns
    -------
    StagedFit
    """
    parts = _parts(run, plan, held_out)
    validation = np.flatnonzero(parts == 0)
    drawn: list[tuple[Rows, NoisyLabels]] = []
    done: list[Stage] = []
    scored = (validation, run.privatize(validation, plan.validation_law, None, HELD_OUT)) if len(validation) else None
    model: Model | None = None
    for number in range(plan.n_stages):
        rows = np.flatnonzero(parts == number + 1)
        if not len(rows):
            continue
        name = f"stage-{number + 1}"
        law = plan.law_of(number, first_prior is not None)
        drawn.append((rows, run.privatize(rows, law, _prior(law, rows, model, prior_of, first_prior), name)))
        done.append(Stage(name, law, len(rows)))
        everything = np.concatenate([r for r, _ in drawn])
        model = fit(everything, concat([noisy for _, noisy in drawn]), model, scored)
    if model is None:
        raise InvalidInput(f"Expected rows to learn from, but all {run.n_rows} are held out. Give more rows, or validation_fraction=0.")
    return StagedFit(model, _in_table_order(drawn, scored), everything, validation, tuple(done))


def _parts(run: StageRun, plan: StagePlan, held_out: NDArray[np.bool_] | None) -> NDArray[np.int16]:
    """(n,) int16: 0 for the validation part, else the stage, from 1."""
    if held_out is None:
        return run.partition(plan.fractions) + np.int16(0 if plan.validation_fraction else 1)
    return np.where(held_out, np.int16(0), run.partition(plan.sizes) + np.int16(1))


def _prior(
    law: Law, rows: Rows, model: Model | None, prior_of: Callable[[Model, Rows], ArrayLike], first_prior: PriorOfRows | None
) -> "Prior":
    """The prior of a stage's rows as a function of positions among them, so that a repeat of the run need not evaluate it."""
    if model is not None and law.uses_prior:
        return lambda positions: prior_of(model, rows[positions])
    if first_prior is not None:
        return lambda positions: first_prior(rows[positions])
    return None


def _in_table_order(drawn: list[tuple[Rows, NoisyLabels]], held_out: tuple[Rows, NoisyLabels] | None) -> NoisyLabels:
    parts = [*drawn, held_out] if held_out else drawn
    return concat([noisy for _, noisy in parts])[np.argsort(np.concatenate([rows for rows, _ in parts]))]
