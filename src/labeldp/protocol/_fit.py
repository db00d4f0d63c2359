# SPDX-License-Identifier: Apache-2.0
"""Plan a fit on raw labels (law, stages, prior), and run it: draw and learn, stage by stage.

    FitSettings --plan_fit--> FitPlan --answer_for--> its prior, paid for --open_fit--> run
    --run_stages--> StagedFit

Raw labels pass through as arguments and are kept nowhere. `labeldp.custody` is imported inside the
functions that charge, so that a machine that only trains on noisy labels loads none of it.

The loop is LP-MST, Algorithm 3 of Ghazi et al. (2021), with the previous stage's model as prior:
privatize a part of the rows, learn from everything drawn so far, use the model as prior of the next
part. The parts are disjoint, so by parallel composition the whole, with all models and outputs,
costs one epsilon.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeGuard, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import array_digest, digest
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels, concat
from labeldp.laws import (
    AutoLaw,
    Law,
    PriorBins,
    PriorSplit,
    RandomizedResponse,
    RRTopK,
    SquareWave,
    SubsetSelection,
    Threshold,
    law_named,
)
from labeldp.laws._base import check_told_apart, made_for_shares
from labeldp.laws._columns import LabelColumns, reads_prior
from labeldp.laws._square_wave import MOST_ORDERED, law_of_numbers
from labeldp.protocol._prior import Prior, stages_of
from labeldp.protocol._several import law_of

if TYPE_CHECKING:
    from labeldp.aggregates import Aggregate, Query
    from labeldp.custody._answer import GroupQuestion
    from labeldp.custody._draw import Prior as Weights
    from labeldp.custody._private import PrivateLabels
    from labeldp.custody._run import Run

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
HeldOut = tuple[Rows, NoisyLabels]
Model = TypeVar("Model")

MIN_VALIDATION_ROWS = 20
MOST_CELLS = 1 << 28
"""Rows x combinations of several label columns up to which a prior of groups is made, and sets are
read for all columns together."""
HELD_OUT = "validation"
"""Name of the round that draws held-out rows."""


_OTHER_CLUSTERS = (
    "ask about other clusters (another random_state= or n_clusters= of theirs), which is charged"
)


@dataclass(frozen=True, eq=False)
class FitSettings:
    """The parameters of an estimator that decide how its labels are charged and drawn;
    `LabelDPClassifier` documents each.

    Attributes
    ----------
    epsilon : float
        Budget of the whole fit, for one unit.
    law, stages, prior, validation_fraction
        For estimators that draw each row; estimators that ask about groups leave them at their
        defaults.
    class_prior : rates or GroupPrior, optional
        Only a `HistogramPrior`, which asks for the rates, takes part in the charge.
    numbers : bool
        Whether models are measured by squared errors of numbers, not by classes.
    """

    epsilon: float
    law: str | Law = "auto"
    stages: int | Sequence[float] = 1
    prior: Prior = field(default_factory=Prior)
    validation_fraction: float = 0.0
    class_prior: Any = None
    numbers: bool = False

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each stage, at any scale."""
        return stages_of(self.stages)

    @property
    def plain(self) -> bool:
        """Whether rows are drawn at once, by no prior."""
        return len(self.shares) == 1 and self.prior.table is None


@dataclass(frozen=True, eq=False)
class FitPlan:
    """The checked, public plan of a fit on raw labels, fixed before the charge.

    Attributes
    ----------
    settings : FitSettings
    labels : PrivateLabels
    stages : StagePlan
    prior : (n, K) float64 array or None
        Prior of the first stage.
    grouped : GroupPlan or None
        The question that a prior of groups, or of the classes' rates, asks (`answer_for` pays for
        it).
    answer : Aggregate or None
        The noisy histogram that answers it.
    known : model with `predict_proba`, or None
        The noisy histogram as a model that predicts any row's label.
    held_out : (n,) bool, or None
        The validation rows of a fit with a prior of groups, which its histogram did not count.
        None: the run chooses them.
    rates : (K,) float64 or None
        The rates of the classes, where the question was about these.
    """

    settings: FitSettings
    labels: "PrivateLabels"
    stages: "StagePlan"
    prior: Floats | None
    grouped: "GroupPlan | None" = None
    answer: "Aggregate | None" = None
    known: Any = None
    held_out: NDArray[np.bool_] | None = None
    rates: Floats | None = None

    @property
    def classes(self) -> tuple[object, ...]:
        """The K declared classes of the labels."""
        return self.labels.classes

    @property
    def asks_rates(self) -> bool:
        """Whether the question is about the rates of the classes, by which models are learned and
        no row is drawn."""
        return is_group_prior(self.settings.class_prior)

    @property
    def prior_digest(self) -> str:
        """Digest of the first stage's prior, or of the groups and question that decide it; ""
        without a prior."""
        if self.prior is None:
            return "" if self.grouped is None else self.grouped.digest
        return array_digest({"prior": self.prior})

    @property
    def invertible(self) -> bool:
        """Whether every row will have an unbiased estimator."""
        return (
            self.stages.invertible
            and self.prior is None
            and (self.grouped is None or self.asks_rates)
        )

    def with_answer(self, asked: "GroupQuestion | None") -> "FitPlan":
        """Return the plan with the answer and the prior that follows from it; unchanged without a
        prior of groups."""
        if asked is None or self.grouped is None:
            return self
        # The model starts from the histogram, so rows that it counted could not measure the model
        # without bias.
        held_out = asked.held_out if self.stages.validation_fraction else None
        if self.asks_rates:
            # A rate is taken as exact by those who learn by it, so none is below what the noise of
            # a count can hide.
            query: Any = asked.answer.query
            n_rows = max(1, int(asked.answer.n_rows.sum()))
            error = query.standard_deviation(asked.answer.receipt.max_rows_per_unit) / n_rows
            rates = np.maximum(
                asked.answer.prior(np.zeros(1, np.int64))[0],
                min(error, 1 / len(asked.answer.classes)),
            )
            return replace(
                self, answer=asked.answer, held_out=held_out, rates=np.asarray(rates / rates.sum())
            )
        grouped, known, prior = self.grouped.as_asked(asked), None, asked.answer.prior(asked.groups)
        if self.stages.law.kind == "number":  # no row reads the prior: the law is made for it
            law = made_for_shares(self.stages.law, prior[0])
            return replace(
                self,
                answer=asked.answer,
                grouped=grouped,
                held_out=held_out,
                stages=replace(self.stages, law=law),
            )
        if grouped.found is not None:
            known, prior = grouped.found.model_of(asked.answer, asked.groups)
        return replace(
            self, answer=asked.answer, known=known, prior=prior, grouped=grouped, held_out=held_out
        )

    def to_dict(self) -> dict[str, object]:
        """Describe the plan as JSON-ready data, for the charge's record."""
        return self.stages.to_dict() | self.labels.noted


def plan_fit(settings: FitSettings, labels: "PrivateLabels", X: Any) -> FitPlan:
    """Plan law, stages and first prior of a fit; every fault of the settings is refused here,
    before the charge.

    Parameters
    ----------
    settings : FitSettings
    labels : PrivateLabels of n rows
    X : features of n rows, passed to a prior that is a function
    """
    classes, n_rows, cap = labels.classes, len(labels), labels.account.max_rows_per_unit
    grouped, known, rates = None, None, _asks_rates(settings, classes)
    prior = settings.prior
    asks = settings.class_prior if rates else prior.table
    if is_group_prior(asks):
        if isinstance(classes, LabelColumns) and n_rows * len(classes) > MOST_CELLS:
            raise InvalidInput(
                f"Expected at most {MOST_CELLS:,} rows x combinations with a prior that asks about"
                f" groups of rows, got {n_rows:,} x {len(classes):,}. Take fewer columns or"
                " classes, or drop prior=."
            )
        if isinstance(settings.law, Law) and settings.law.kind != "number" and not rates:
            _require_use(settings.law)
        grouped = asks.plan_groups(
            X,
            n_rows=n_rows,
            n_counted=labels.rows.given.within(cap, n_rows),
            n_classes=len(classes),
            epsilon=_validate.epsilon(settings.epsilon),
            max_rows_per_unit=cap,
            # of columns, not of combinations
            law="auto" if isinstance(classes, LabelColumns) else settings.law,
        )
    law = _law_for(settings, grouped, labels)  # after the groups, which take their part of epsilon
    if law.kind == "number":
        law.released(classes)  # refused here if the classes are no evenly spaced numbers
    stages = plan_stages(
        law,
        sizes=settings.shares,
        validation_fraction=settings.validation_fraction,
        n_rows=n_rows,
    )
    if prior.weight and prior.table is None and stages.n_stages > 1:
        raise InvalidInput(
            f"Expected Prior(table, weight={prior.weight!r}), got no table. Pass one, or leave the"
            " weight out."
        )
    stages = replace(
        stages,
        numbers=settings.numbers and stages.validation_fraction > 0,
        prior_weight=prior.weight if stages.n_stages > 1 else 0.0,
    )
    if grouped is None and prior.table is not None:
        _require_use(law)
        known = _known_prior(prior.table, X, n_rows, classes)
    first = stages.law_of(0, has_prior=known is not None)
    # Warn before the charge of classes that no row can tell apart. A law that draws its questions
    # with the run's random words is known only after the charge, and is checked there.
    if known is not None and not first.draws_side:
        check_told_apart(first, first.told_apart(first.prepare(known)), classes, n_rows)
    return FitPlan(settings, labels, stages, known, grouped)


def _law_for(settings: FitSettings, grouped: "GroupPlan | None", labels: "PrivateLabels") -> Law:
    """Make the law for these labels, at the epsilon that a prior of groups leaves."""
    from labeldp.custody._draw import check_contract, law_per_row

    classes, n_classes = labels.classes, len(labels.classes)
    budget = _validate.epsilon(settings.epsilon) if grouped is None else grouped.epsilon
    law = grouped.law if grouped is not None and grouped.law is not None else settings.law
    if isinstance(classes, LabelColumns):
        law = law_of(classes, law, budget, prior=not settings.plain)
    elif not isinstance(law, Law):
        law = law_named(law, n_classes, budget)
    elif law.n_classes != n_classes or law.epsilon != budget:
        why = "" if grouped is None else f", which the prior leaves of {settings.epsilon!r}"
        raise InvalidInput(
            f"Expected a law over {n_classes} classes with epsilon={budget}{why}, got {law}. Make"
            " the two agree."
        )
    if grouped is not None and not is_group_prior(settings.class_prior):
        _require_use(law, grouped)
    # what will be drawn with: a unit's rows share epsilon
    check_contract(law_per_row(law, labels.account.max_rows_per_unit))
    return law


def _require_use(law: Law, grouped: "GroupPlan | None" = None) -> None:
    if law.kind == "number":
        if grouped is not None and grouped.query.n_groups == 1:
            return
        raise InvalidInput(
            f"Expected no prior of rows with {law}, which has one for all. Make the law with it"
            " (prior=, one weight a point), or have it asked for:"
            " prior=labeldp.learn.HistogramPrior()."
        )
    if not reads_prior(law):
        raise InvalidInput(
            f"Expected no prior with {law}, which does not read it. Use law='auto', or drop prior=."
        )


def _known_prior(prior: Any, X: Any, n_rows: int, classes: tuple[object, ...]) -> Floats:
    """Check a public prior: (n, K) weights; a row of zeros counts as uniform. Of several columns
    also weights of each by its name."""
    found = prior(X) if callable(prior) else prior
    if isinstance(classes, LabelColumns) and isinstance(found, Mapping):
        found = classes.prior(found, n_rows)(np.arange(n_rows))
    weights = _validate.floats(prior=found)
    if weights.shape != (n_rows, len(classes)):
        raise InvalidInput(
            f"Expected a prior of shape {(n_rows, len(classes))}, got {weights.shape}."
        )
    bad = np.flatnonzero(~((weights >= 0) & (weights < np.inf)).all(axis=1))
    if len(bad):
        raise InvalidInput(
            f"Expected a prior of finite weights >= 0, got other ones in {len(bad)} of {n_rows}"
            f" rows, row {bad[0]} first. Clip them, or give such rows uniform weights."
        )
    return weights


# Stages
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StagePlan:
    """Shares of the rows in each stage, and each stage's law: public, and fixed before anything is
    drawn.

    Attributes
    ----------
    law : Law
        The law asked for; `law_of` and `validation_law` replace it where there is no prior.
    sizes : tuple of float
        Share of the training rows in each stage; sums to 1.
    validation_fraction : float
        Share of all rows that is held out of training, drawn by `validation_law` under a uniform
        prior.
    prior_weight : float
        Weight of the first stage's prior in those of later stages; the rest is the model's.
    numbers : bool
        Whether held-out rows measure squared errors of numbers.
    """

    law: Law
    sizes: tuple[float, ...]
    validation_fraction: float = 0.0
    prior_weight: float = 0.0
    numbers: bool = False

    @property
    def n_stages(self) -> int:
        """Number of stages."""
        return len(self.sizes)

    @property
    def validation_law(self) -> Law:
        """The law of held-out rows: it ignores priors, so that each of these rows has an unbiased
        estimator."""
        # Its unbiased squared errors vary least, by a factor of about the number of points.
        if not self.numbers:
            return _invertible(self.law)
        if isinstance(self.law, SquareWave):
            return self.law
        # intervals, or thresholds where they would be too many
        k = self.law.n_classes
        return law_named(law_of_numbers(k), k, self.law.epsilon)

    def law_of(self, stage: int, has_prior: bool) -> Law:
        """The law of a stage; stages count from 0."""
        return without_prior(self.law) if stage == 0 and not has_prior else self.law

    @property
    def fractions(self) -> tuple[float, ...]:
        """Shares of all rows: the validation part (if any), then each stage."""
        stages = tuple((1.0 - self.validation_fraction) * size for size in self.sizes)
        return (self.validation_fraction, *stages) if self.validation_fraction else stages

    @property
    def invertible(self) -> bool:
        """Whether every row has an unbiased estimator, given a uniform first prior."""
        side = self.law.prepare(np.ones((1, self.law.n_classes)))
        kind, shape = self.law.layout()["output"]
        own, _ = self.law.inclusion(np.zeros((1, *shape), kind), side)
        return bool(np.isfinite(own[0])) and (self.n_stages == 1 or not self.law.uses_prior)

    def to_dict(self) -> dict[str, object]:
        """Describe the stages as JSON-ready data, for the charge's record."""
        kept = {
            "law": self.law.to_dict(),
            "sizes": list(self.sizes),
            "validation_fraction": self.validation_fraction,
        }
        more = {"prior_weight": self.prior_weight, "numbers": self.numbers}
        # without them as it was recorded before
        return kept | {name: value for name, value in more.items() if value}


def without_prior(law: Law) -> Law:
    """Return the law that draws rows without a prior: the law itself, or one that ignores
    priors."""
    # RRTopK would give every row the same k candidates; an unordered split is no more informative
    # than subset selection, with no inverse. The bit of a threshold that no prior has chosen tells
    # less than an interval.
    # of several columns; their thresholds stay, since they share epsilon or the rows
    parts = getattr(law, "parts", (law,))
    needs_one = any(
        isinstance(part, RRTopK) or (isinstance(part, PriorSplit) and not part.ordered)
        for part in parts
    )
    return _invertible(law) if needs_one or _becomes_interval(law) else law


def _becomes_interval(law: Law) -> bool:
    return isinstance(law, Threshold | PriorBins) and law.n_classes <= MOST_ORDERED


def _invertible(law: Law) -> Law:
    """Return the law itself if it ignores priors, else one that does and releases the same kind of
    output."""
    if law.kind == "number":  # a bin's points have equal likelihoods
        return Threshold(law.n_classes, law.epsilon)
    if not reads_prior(law):
        return law
    if _becomes_interval(law):
        return SquareWave(law.n_classes, law.epsilon)
    return (RandomizedResponse if law.kind == "label" else SubsetSelection)(
        law.n_classes, law.epsilon
    )


def plan_stages(
    law: Law,
    *,
    sizes: tuple[float, ...],
    validation_fraction: float,
    n_rows: int,
) -> StagePlan:
    """Plan the stages: one stage if a prior cannot change the law, and no validation part if it
    would be too small to measure by.

    Parameters
    ----------
    law : Law
    sizes : tuple of float > 0
        The share of each stage, at any scale.
    validation_fraction : float in [0, 1)
    n_rows : int
    """
    held_out = _validate.fraction(validation_fraction=validation_fraction, zero=True)
    shares = np.asarray(sizes, np.float64)
    # With two classes every law that AutoLaw chooses from is the same one, so there, as for laws
    # that ignore priors, stages gain nothing.
    parts = getattr(law, "parts", (law,))  # of several columns
    if not any(
        part.uses_prior and not (isinstance(part, AutoLaw) and part.n_classes == 2)
        for part in parts
    ):
        shares = np.ones(1)
    held_out = held_out if held_out * n_rows >= MIN_VALIDATION_ROWS else 0.0
    if (left := (1 - held_out) * n_rows) < MIN_VALIDATION_ROWS and held_out:
        raise InvalidInput(
            f"Expected at least {MIN_VALIDATION_ROWS} rows to learn from, got about {left:.0f} of"
            f" {n_rows} beside validation_fraction={validation_fraction}. Hold out fewer."
        )
    return StagePlan(law, tuple(float(s) for s in shares / shares.sum()), held_out)


# Priors of groups
# --------------------------------------------------------------------------------------------------
# The groups of rows are public. The class frequencies of each group are released once, as a noisy
# histogram of the same labels that the law then draws from. Both charges go to the same data set
# and column of the ledger, so their epsilons add.


@dataclass(frozen=True, eq=False)
class GroupPlan:
    """A question about the labels of groups, with or without a law that follows: public, and fixed
    before anything is charged.

    Attributes
    ----------
    groups : (n,) int64
        Group of each row: a function of public features.
    query : Query
        The question and its cost; for a prior a Histogram.
    epsilon : float
        Budget left for the law, rounded down; 0 if no law follows.
    law : Law or None
        The law for this division of the budget; None: the user's.
    found : labeldp.learn.Clusters or None
        Finds the groups of other rows.
    request : function of an order of the rows, or None
        Computes the digest of what decides the groups, by which a ledger recognises a repeat; None:
        digest of the groups themselves.
    """

    groups: NDArray[np.int64]
    query: "Query"
    epsilon: float
    law: Law | None = None
    found: Any = None
    request: Callable[[NDArray[np.intp] | None], str] | None = None

    @property
    def digest(self) -> str:
        """Digest of groups and question, which decide the prior but for the answer; the answer is
        noise and cannot identify a request."""
        return digest(
            {"groups": array_digest({"groups": self.groups}), "query": self.query.to_dict()}
        )

    def as_asked(self, asked: "GroupQuestion") -> "GroupPlan":
        """Return the plan with the groups that were asked about: those of an earlier fit, if the
        ledger had its answer."""
        return replace(
            self,
            groups=asked.groups,
            found=None if self.found is None else self.found.restored(asked.kept),
        )


class GroupPrior(Protocol):
    """Interface of an estimator's `prior=` that groups the rows."""

    def plan_groups(
        self,
        X: Any,
        *,
        n_rows: int,
        n_counted: int,
        n_classes: int,
        epsilon: float,
        max_rows_per_unit: int,
        law: "str | Law",
    ) -> GroupPlan:
        """Group the rows of X and divide the budget; faults are refused here.

        Parameters
        ----------
        X : (n, ...) features
        n_counted : int
            Those of the n rows that are counted, within their units' cap.
        n_rows, n_classes, max_rows_per_unit : int
        epsilon : float
            For the histogram and the law together.
        law : str or Law
            The user's `law=`.
        """


def is_group_prior(prior: Any) -> TypeGuard[GroupPrior]:
    """Return whether a prior groups the rows and pays for an answer, rather than being public
    weights."""
    return hasattr(prior, "plan_groups")


def _asks_rates(settings: FitSettings, classes: Sequence[object]) -> bool:
    """Return whether the rates of the classes are asked for; refuse what is no one histogram of all
    rows of one column at a stated cost."""
    given = settings.class_prior
    if not is_group_prior(given):
        return False
    if isinstance(classes, LabelColumns) or not getattr(given, "of_all_rows", False):
        what = (
            "it for several label columns"
            if isinstance(classes, LabelColumns)
            else f"a {type(given).__name__}"
        )
        raise InvalidInput(
            "Expected rates as class_prior, or for one label column a HistogramPrior, which asks"
            f" for them; got {what}. Pass the rates."
        )
    if settings.prior.table is not None:
        raise InvalidInput(
            "Expected prior=None with class_prior=HistogramPrior(...), which asks for the rates of"
            " the classes, got both. Drop one of them."
        )
    if getattr(given, "epsilon", None) is None:
        raise InvalidInput(
            "Expected class_prior=HistogramPrior(epsilon) with the cost of the rates, got none. The"
            " standard error of a rate is about 2.8 / (epsilon x rows): choose one that is small"
            " beside the rarest class's rate."
        )
    return True


def require_known_rates(class_prior: Any) -> None:
    """Refuse to ask for the rates of the classes where there are no raw labels to ask."""
    if is_group_prior(class_prior):
        raise InvalidInput(
            "Expected class_prior as rates with NoisyLabels, got a HistogramPrior, which asks raw"
            " labels. Leave it out, or pass rates: labeldp.aggregate(labels, Histogram(...)) asks"
            " for them where the raw labels are."
        )


def answer_for(plan: FitPlan) -> "GroupQuestion | None":
    """Ask about the prior's groups in the training rows: the first of a fit's two charges. None if
    the prior asks nothing."""
    if plan.grouped is None:
        return None
    # The ledger must have room for the whole fit now: a histogram whose law is refused later would
    # be paid for in vain.
    total = plan.settings.epsilon if plan.grouped.epsilon else None
    return ask_groups(plan.labels, plan.grouped, plan.stages.validation_fraction, total)


def ask_groups(
    labels: "PrivateLabels", plan: GroupPlan, held_out: float = 0.0, total: float | None = None
) -> "GroupQuestion":
    """Charge and answer the plan's question; a repeat of a settled one costs nothing.

    Parameters
    ----------
    labels : PrivateLabels
    plan : GroupPlan
    held_out : float in [0, 1)
        Share of the rows that are not counted, so that they can measure the model.
    total : float, optional
        Epsilon for which the budget must have room, or nothing is asked.
    """
    from labeldp.custody._answer import GroupQuestion, answer
    from labeldp.custody._request import RELEASE_ANEW

    question = GroupQuestion(
        query=plan.query,
        groups=plan.groups,
        share=held_out,
        total=total,
        origin=plan.request,
        kept={} if plan.found is None else plan.found.kept,
        anew=RELEASE_ANEW if plan.request is None else _OTHER_CLUSTERS,
    )
    return answer(labels, question)


# The run: draw and learn, stage by stage
# --------------------------------------------------------------------------------------------------


def open_fit(plan: FitPlan, *, public_digest: Callable[[], str], resumes: str = "") -> "Run":
    """Charge the fit's run, or reopen the run that it repeats.

    Parameters
    ----------
    plan : FitPlan
    public_digest : function
        Computes the digest of the public columns; called only if it is needed to recognise a
        repeat.
    resumes : str
        Id of the run that must be reopened; "" for any run, or a new one.
    """
    from labeldp.custody._run import open_run

    return open_run(
        plan.labels,
        epsilon=plan.stages.law.epsilon,
        laws=plan.to_dict(),
        prior_digest=plan.prior_digest,
        public_digest=public_digest,
        resumes=resumes,
    )


class StageRun(Protocol):
    """The part of `labeldp.custody._run.Run` that the loop uses."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""

    def partition(self, fractions: tuple[float, ...]) -> NDArray[np.int16]:
        """Divide the rows into parts of these shares: the part of each row, (n,)."""

    def privatize(
        self, rows: Rows, law: Law, prior: "Weights" = None, stage: str = "release"
    ) -> NoisyLabels:
        """Draw these rows, or return what was drawn for them."""


@dataclass(frozen=True)
class Stage:
    """One finished round: its name, law and number of rows."""

    name: str
    law: Law
    n_rows: int


@dataclass(frozen=True, eq=False)
class StagedFit(Generic[Model]):
    """The result of `run_stages`.

    Attributes
    ----------
    model : the model that `fit` returned last
    noisy : NoisyLabels of all rows, in the order of the table
    validation : int64 positions of the held-out rows
    stages : tuple of Stage
    """

    model: Model
    noisy: NoisyLabels
    validation: Rows
    stages: tuple[Stage, ...]


def run_stages(
    run: StageRun,
    plan: StagePlan,
    *,
    fit: Callable[[Rows, NoisyLabels, Model | None, HeldOut | None], Model],
    prior_of: Callable[[Model, Rows], ArrayLike],
    first_prior: Floats | None = None,
    held_out: NDArray[np.bool_] | None = None,
) -> StagedFit[Model]:
    """Draw and learn, stage by stage.

    Parameters
    ----------
    run : labeldp.custody._run.Run
        A charged run.
    plan : StagePlan
    fit : function (rows, noisy labels of these rows, model of the stage before or None, held-out
    (rows, noisy) or None) -> model
        Learns from all rows drawn so far.
    prior_of : function (model, rows) -> (m, K) weights
        Called for rows that the model has not learned from.
    first_prior : (n, K) array, optional
        Prior of the first stage; uniform if None.
    held_out : (n,) bool, optional
        The validation rows, if the first prior was made from the other rows' labels; None: the run
        chooses them.

    Returns
    -------
    StagedFit
    """
    if held_out is None:
        parts = run.partition(plan.fractions) + np.int16(0 if plan.validation_fraction else 1)
    else:
        parts = np.where(held_out, np.int16(0), run.partition(plan.sizes) + np.int16(1))
    validation = np.flatnonzero(parts == 0)  # training rows are numbered by their stage, from 1
    drawn: list[HeldOut] = []
    done: list[Stage] = []
    scored = (
        (validation, run.privatize(validation, plan.validation_law, None, HELD_OUT))
        if len(validation)
        else None
    )
    model: Model | None = None
    for number in range(plan.n_stages):
        rows = np.flatnonzero(parts == number + 1)
        if not len(rows):  # a small share of few rows
            continue
        name = f"stage-{number + 1}"
        law = plan.law_of(number, first_prior is not None)
        # Parallel composition needs disjoint parts that do not depend on labels: the partition is
        # keyed by the run, not by any model.
        drawn.append(
            (
                rows,
                run.privatize(
                    rows,
                    law,
                    _prior(law, rows, model, prior_of, first_prior, plan.prior_weight),
                    name,
                ),
            )
        )
        done.append(Stage(name, law, len(rows)))
        model = fit(
            np.concatenate([rows for rows, _ in drawn]),
            concat([noisy for _, noisy in drawn]),
            model,
            scored,
        )
    if model is None:
        raise InvalidInput(
            f"Expected rows to learn from, but all {run.n_rows} are held out. Give more rows, or"
            " validation_fraction=0."
        )
    every = [*drawn, scored] if scored else drawn
    in_order = np.argsort(np.concatenate([rows for rows, _ in every]))
    return StagedFit(
        model, concat([noisy for _, noisy in every])[in_order], validation, tuple(done)
    )


def _prior(
    law: Law,
    rows: Rows,
    model: Model | None,
    prior_of: Callable[[Model, Rows], ArrayLike],
    first_prior: Floats | None,
    weight: float,
) -> "Weights":
    """Return the prior of a stage's rows as a function of positions among them, so that a repeat of
    the run need not evaluate the model."""
    if model is not None and law.uses_prior:
        if weight and first_prior is not None:
            return lambda positions: mixed(
                prior_of(model, rows[positions]), first_prior[rows[positions]], weight
            )
        return lambda positions: prior_of(model, rows[positions])
    if first_prior is not None:
        return lambda positions: first_prior[rows[positions]]
    return None


def mixed(proba: ArrayLike, prior: ArrayLike, weight: float) -> Floats:
    """Mix a model's predictions with a given prior: (1 - weight) proba + weight prior, both scaled
    to sum to 1 in each row.

    Parameters
    ----------
    proba, prior : (m, K) arrays of weights >= 0
        A row of zeros counts as uniform.
    weight : float in [0, 1]

    Notes
    -----
    Guarantee: post-processing. The model saw earlier noisy outputs, and the prior is public or was
    paid for; neither saw a raw label of the rows that are drawn next, so their draw costs what it
    costs under any prior.
    """
    parts = []
    for given in (np.asarray(proba, np.float64), np.asarray(prior, np.float64)):
        # so that no sum overflows
        scaled = given / np.maximum(given.max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        total = scaled.sum(axis=1, keepdims=True)
        parts.append(
            np.divide(
                scaled, total, out=np.full(given.shape, 1.0 / given.shape[1]), where=total > 0
            )
        )
    return np.asarray((1.0 - weight) * parts[0] + weight * parts[1])
