# SPDX-License-Identifier: Apache-2.0
"""What every estimator does around its learning: settle the classes, the law and the stages, open the run, choose the rows to learn from.

Raw labels pass through here to the door as arguments; nothing keeps them. With noisy labels nothing of custody is imported, so that a
machine that only trains needs none of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp import _validate
from labeldp._hash import array_digest
from labeldp.custody._encode import RowIds, classes_for, declare, infers
from labeldp.errors import InvalidInput, UnmeasuredWarning, warn
from labeldp.evidence import Block, NoisyLabels
from labeldp.evidence._noisy import derived
from labeldp.laws import Law, law_named
from labeldp.laws._base import check_told_apart
from labeldp.protocol import metrics
from labeldp.protocol._groups import GroupPlan, GroupPrior, is_group_prior
from labeldp.protocol._stages import HELD_OUT, MIN_VALIDATION_ROWS, PriorOfRows, Rows, StagePlan, plan_stages

if TYPE_CHECKING:
    from labeldp.aggregates import Aggregate
    from labeldp.custody._aggregation import GroupAnswer
    from labeldp.custody._request import Account
    from labeldp.custody._run import Run
    from labeldp.ledger._ledger import Ledger
    from labeldp.noise._words import SeededNoise

Floats = NDArray[np.float64]
HeldOut = tuple[Rows, NoisyLabels]
TopK = int | Literal["mean"]


@dataclass(frozen=True, eq=False)
class FitSettings:
    """What an estimator was asked for that its labels are charged and drawn by; `LabelDPClassifier` says what each means.

    Attributes
    ----------
    epsilon : float
        Of the whole fit, for one unit.
    classes : sequence of K values, "infer", or None
    dataset : str or None
    column : str
    max_rows_per_unit : int
    ledger : Ledger, path, or None
    noise : SeededNoise or None
    law, n_stages, stage_sizes, prior, validation_fraction
        Of estimators that draw each row.
    """

    epsilon: float
    classes: Sequence[object] | None = None
    dataset: str | None = None
    column: str = "label"
    max_rows_per_unit: int = 1
    ledger: "Ledger | None" = None
    noise: "SeededNoise | None" = None
    law: str | Law = "auto"
    n_stages: int = 1
    stage_sizes: Sequence[float] | None = None
    prior: ArrayLike | Callable[[Any], ArrayLike] | GroupPrior | None = None
    validation_fraction: float = 0.0

    def account(self, resumes: str = "") -> "Account":
        """Who is charged; `resumes` is the run id of the run that must be picked up."""
        from labeldp.custody._request import Account

        return Account(self.dataset, self.column, self.max_rows_per_unit, self.ledger, self.noise, resumes=resumes)


@dataclass(frozen=True, eq=False)
class FitPlan:
    """What a fit on raw labels will do: public, checked, and fixed before anything is charged.

    Attributes
    ----------
    settings : FitSettings
    rows : RowIds
        Ids and units, as `fit` got them.
    classes : tuple of K values
    inferred : bool
        The classes were read off the labels.
    stages : StagePlan
    prior : (n, K) float64 array or None
        Of the first stage.
    grouped : GroupPlan or None
        A prior of groups, which `answer_for` pays for.
    answer : Aggregate or None
        What it bought.
    held_out : (n,) bool, or None
        The validation part where such a prior was bought: it was asked of the other rows alone. None: the run chooses it.
    """

    settings: FitSettings
    rows: RowIds
    classes: tuple[object, ...]
    inferred: bool
    stages: StagePlan
    prior: Floats | None
    grouped: GroupPlan | None = None
    answer: "Aggregate | None" = None
    held_out: NDArray[np.bool_] | None = None

    @property
    def prior_of_rows(self) -> PriorOfRows | None:
        """The first stage's prior as `run_stages` takes it."""
        prior = self.prior
        return None if prior is None else lambda rows: prior[rows]

    @property
    def prior_digest(self) -> str:
        """Of the first stage's prior, or of what it follows from as long as it is not paid for; "" for none."""
        if self.prior is None:
            return "" if self.grouped is None else self.grouped.digest
        return array_digest({"prior": self.prior})

    @property
    def known(self) -> Any:
        """What the answer says of any row, as a model of the true label; None without one."""
        found = None if self.grouped is None else self.grouped.found
        return None if self.answer is None or found is None else found.model_of(self.answer)

    @property
    def invertible(self) -> bool:
        """Every row will have an unbiased estimator."""
        return self.stages.invertible and self.prior is None and self.grouped is None

    def with_answer(self, asked: "GroupAnswer | None") -> "FitPlan":
        """The plan with its prior of groups paid for; as it is, without one."""
        if asked is None or self.grouped is None:
            return self
        held_out = asked.held_out if self.stages.validation_fraction else None
        prior = asked.answer.prior(asked.groups)
        return replace(self, answer=asked.answer, prior=prior, grouped=self.grouped.as_asked(asked), held_out=held_out)

    def to_dict(self) -> dict[str, object]:
        """The plan as JSON-ready data, for the charge."""
        return self.stages.to_dict() | ({"classes_inferred": True} if self.inferred else {})


def check_count(n_labels: int, n_rows: int) -> None:
    """One label a row, and at least two rows."""
    if n_labels != n_rows:
        raise InvalidInput(f"Found input variables with inconsistent numbers of samples: X has {n_rows} rows, y has {n_labels}.")
    if n_rows < 2:
        raise InvalidInput(f"Expected at least 2 rows, got n_samples={n_rows}.")


def settled_classes(settings: FitSettings, labels: NDArray[Any]) -> tuple[tuple[object, ...], bool]:
    """The classes of a fit, and whether they were read off the raw labels; where none are declared, a Law says how many codes there are."""
    return classes_for(labels, settings.classes, settings.law.n_classes if isinstance(settings.law, Law) else None)


def plan_fit(settings: FitSettings, rows: RowIds, classes: tuple[object, ...], X: Any, n_rows: int, *, inferred: bool) -> FitPlan:
    """Law, stages and first prior of a fit; every fault of the settings is found here, before the charge.

    Parameters
    ----------
    settings : FitSettings
    rows : RowIds
        Ids and units, as `fit` got them.
    classes : tuple of K values
    X : what a prior that is a function is given
    n_rows : int
    inferred : bool
        The classes were read off the labels, as `settled_classes` says.
    """
    grouped = _grouped(settings, settings.prior, X, n_rows, len(classes)) if is_group_prior(settings.prior) else None
    law = _law_of(settings, grouped, len(classes))
    stages = plan_stages(
        law,
        n_stages=settings.n_stages,
        sizes=None if settings.stage_sizes is None else tuple(settings.stage_sizes),
        validation_fraction=settings.validation_fraction,
        n_rows=n_rows,
    )
    known = None if is_group_prior(settings.prior) else first_prior(settings.prior, X, n_rows, law)
    first = stages.law_of(0, has_prior=known is not None)
    if known is not None and not first.draws_side:
        check_told_apart(first, first.told_apart(first.prepare(known)), classes, n_rows)
    return FitPlan(settings, rows, classes, inferred, stages, known, grouped)


def _grouped(settings: FitSettings, prior: GroupPrior, X: Any, n_rows: int, n_classes: int) -> GroupPlan:
    if isinstance(settings.law, Law):
        _require_use(settings.law)
    return prior.plan_groups(
        X,
        n_rows=n_rows,
        n_classes=n_classes,
        epsilon=_validate.epsilon(settings.epsilon),
        max_rows_per_unit=_validate.integer(max_rows_per_unit=settings.max_rows_per_unit, low=1),
        law=settings.law,
    )


def _law_of(settings: FitSettings, grouped: GroupPlan | None, n_classes: int) -> Law:
    from labeldp.custody._draw import check_contract, law_per_row

    if grouped is None:
        law = resolve_law(settings.law, n_classes, settings.epsilon)
    else:
        law = grouped.law or resolve_law(settings.law, n_classes, grouped.epsilon, settings.epsilon)
        _require_use(law)
    check_contract(law_per_row(law, settings.max_rows_per_unit))
    return law


def answer_for(plan: FitPlan, labels: NDArray[Any]) -> "GroupAnswer | None":
    """What the labels of the rows to learn from say of a prior's groups: the first of a fit's two charges. None without such a prior.

    Parameters
    ----------
    plan : FitPlan
    labels : (n,) raw labels
    """
    if plan.grouped is None:
        return None
    held_out = plan.stages.validation_fraction
    return ask_groups(plan.settings, plan.grouped, labels, plan.classes, inferred=plan.inferred, rows=plan.rows, held_out=held_out)


def ask_groups(
    settings: FitSettings,
    plan: GroupPlan,
    labels: NDArray[Any],
    classes: Sequence[object],
    *,
    inferred: bool,
    rows: RowIds,
    held_out: float = 0.0,
) -> "GroupAnswer":
    """Charge and answer the plan's question; a repeat of a settled one costs nothing.

    Parameters
    ----------
    settings : FitSettings
        Its epsilon is the total; where a law follows, refused at once if the budget has no room for all of it on these rows.
    plan : GroupPlan
    labels : (n,) raw labels
    classes : sequence of K values
    inferred : bool
        They were read off the labels.
    rows : RowIds
        Ids and units, as `fit` got them.
    held_out : float in [0, 1)
        Share of the rows that are left out, to measure a model by that did not see their labels.
    """
    from labeldp.custody._aggregation import GroupQuestion, answer_groups

    total = settings.epsilon if plan.epsilon else None
    kept = {} if plan.found is None else plan.found.kept
    question = GroupQuestion(plan.query, plan.groups, held_out, total, plan.request, kept)
    return answer_groups(labels, question, classes, settings.account(), rows, inferred=inferred)


def with_prior_behind(plan: FitPlan, noisy: NoisyLabels) -> NoisyLabels:
    """The noisy labels of a fit with what its prior of groups cost, which their side shows."""
    return noisy if plan.answer is None else derived(noisy, behind=(plan.answer.receipt,))


def resolve_law(law: str | Law, n_classes: int, epsilon: float, total: float | None = None) -> Law:
    """The law that is asked for by name or as a value, over these classes and at this epsilon.

    Parameters
    ----------
    law : str or Law
        By name as `labeldp.laws.parse_law` reads it.
    n_classes : int
    epsilon : float
    total : float, optional
        What the fit may spend, where a prior takes a part of it.
    """
    budget = _validate.epsilon(epsilon)
    if isinstance(law, Law):
        if law.n_classes != n_classes or law.epsilon != budget:
            why = "" if total is None else f", which the prior leaves of {total!r}"
            raise InvalidInput(f"Expected a law over {n_classes} classes with epsilon={budget}{why}, got {law}. Make the two agree.")
        return law
    return law_named(law, n_classes, budget)


def _require_use(law: Law) -> None:
    if not law.uses_prior:
        raise InvalidInput(f"Expected no prior with {law}, which does not read it. Use law='auto', or drop prior=.")


def first_prior(prior: Any, X: Any, n_rows: int, law: Law) -> Floats | None:
    """The public prior of all rows as an (n, K) array, or None; a row of zeros counts as uniform."""
    if prior is None:
        return None
    _require_use(law)
    weights = np.asarray(prior(X) if callable(prior) else prior, np.float64)
    if weights.shape != (n_rows, law.n_classes):
        raise InvalidInput(f"Expected a prior of shape {(n_rows, law.n_classes)}, got {weights.shape}.")
    bad = np.flatnonzero(~((weights >= 0) & (weights < np.inf)).all(axis=1))
    if len(bad):
        raise InvalidInput(
            f"Expected a prior of finite weights >= 0, got other ones in {len(bad)} of {n_rows} rows, row {bad[0]} first. Clip them, or "
            "give such rows uniform weights."
        )
    return weights


def open_fit(plan: FitPlan, labels: NDArray[Any], *, public_digest: Callable[[], str], resumes: str = "") -> "Run":
    """Charge the fit's run, or pick up the one that it repeats.

    Parameters
    ----------
    plan : FitPlan
    labels : (n,) raw labels
    public_digest : function
        Gives the digest of the public columns; called only where it is needed to recognise a repeat.
    resumes : str
        Run id of the run that must be picked up; "" for any, or a new one.
    """
    from labeldp.custody._run import open_run

    settings, rows = plan.settings, plan.rows
    known = settings.ledger is not None or settings.noise is not None
    return open_run(
        labels,
        plan.classes,
        settings.account(resumes),
        rows,
        epsilon=plan.stages.law.epsilon,
        laws=plan.to_dict(),
        prior_digest=plan.prior_digest,
        public_digest=public_digest() if known and rows.ids is None else "",
    )


def check_noisy(noisy: NoisyLabels, classes: Sequence[object] | None, unit: object) -> None:
    """Noisy labels with some evidence, of the declared classes, and nothing given that only raw labels need."""
    if unit is not None:
        raise InvalidInput("Expected unit only with raw labels; NoisyLabels were privatized for their own. Leave unit= out.")
    if classes is not None and not infers(classes) and declare(classes) != noisy.classes:
        raise InvalidInput(f"Expected noisy labels of the {len(declare(classes))} declared classes, got other ones. Drop classes=.")
    if not noisy.evidenced.any():
        raise InvalidInput("Expected noisy labels with evidence for at least one row, got none.")


def hold_out(noisy: NoisyLabels, fraction: float, permutation: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> Rows:
    """Random rows among those of `NoisyLabels.measurable`; none if they would be too few to tell anything, and a warning if there are none.

    Rows of a later stage have an unbiased estimator only where its prior was flat: held out, they would measure the model on hard rows.
    """
    share = _validate.fraction(validation_fraction=fraction, zero=True)
    able = np.flatnonzero(noisy.measurable.evidenced)
    if not len(able) and share * len(noisy) >= MIN_VALIDATION_ROWS:
        laws = ", ".join(sorted({block.law.name for block in noisy.blocks}))
        warn(
            UnmeasuredWarning(
                f"No stage of these noisy labels (laws: {laws}) has an unbiased estimator for all of its rows, so no row can be held out "
                "that would measure the model fairly: there is no estimated accuracy. Add rows drawn without a prior ('rr', 'subset'), or "
                "pass validation_fraction=0."
            )
        )
    count = int(min(share * len(noisy), 0.5 * len(able)))
    return np.sort(permutation(able)[:count]) if count >= MIN_VALIDATION_ROWS else np.empty(0, np.int64)


def judged(noisy: NoisyLabels, held_out: Rows, proba: Callable[[Rows], NDArray[np.floating]]) -> "metrics.Judgement | None":
    """What a model is worth on those of the held-out rows that can measure it, beside a constant learned from all others; None without any.

    Parameters
    ----------
    noisy : NoisyLabels of all rows
    held_out : int positions of rows that chose and taught nothing
    proba : function of positions -> (m, K) probabilities of the model
    """
    fair = noisy.measurable
    rows = held_out[fair.evidenced[held_out]]
    if not len(rows):
        return None
    others = noisy[np.setdiff1d(np.flatnonzero(noisy.evidenced), held_out)]
    frequencies = metrics.likeliest_frequencies(others.likelihood()) if len(others) else np.full(noisy.n_classes, 1 / noisy.n_classes)
    return metrics.judge(fair[rows], proba(rows), frequencies)


def evidenced(rows: Rows, noisy: NoisyLabels, held_out: HeldOut | None) -> tuple[Rows, NoisyLabels, HeldOut | None]:
    """The same without the rows that have no evidence: those over a unit's cap."""
    found = np.flatnonzero(noisy.evidenced)
    if not len(found):
        raise InvalidInput("Expected at least one row with evidence to learn from. Give more rows.")
    kept = None
    if held_out is not None:
        seen = np.flatnonzero(held_out[1].evidenced)
        kept = (held_out[0][seen], held_out[1][seen]) if len(seen) else None
    return rows[found], noisy[found], kept


def members(noisy: NoisyLabels) -> NDArray[np.bool_]:
    """The output of each row as a set: (n, K) bool. Only where each row has one draw."""
    inside = np.zeros((len(noisy), noisy.n_classes), bool)
    for block in noisy.blocks:
        inside[block.rows] = block.law.members(block.outputs, block.side)
    return inside


def check_top_k(k: TopK | None) -> None:
    """A number of classes, "mean", or None."""
    if k is not None and k != "mean":
        _validate.integer(top_k_filter=k, low=1, fix="'mean' is the paper's, None keeps all rows.")


def require_mean(k: TopK | None, plan: FitPlan) -> None:
    """Refuse, before anything is charged, to take the mean number of candidates of a law that has none."""
    law = plan.stages.law
    if k == "mean" and plan.stages.n_stages > 1 and "candidates" not in law.layout():
        raise InvalidInput(f"Expected law='rr-with-prior' with top_k_filter='mean', got {law}. Pass the number of classes to keep.")


def in_top_k(noisy: NoisyLabels, proba: NDArray[np.floating], k: TopK) -> NDArray[np.int64]:
    """Positions of the latest stage's rows, and of earlier ones whose output meets the model's k likeliest classes.

    Parameters
    ----------
    noisy : NoisyLabels of n rows, stage by stage
    proba : (n, K) array
        Of the model before the latest stage.
    k : int or "mean"
        "mean": as many as the latest stage's candidates on average, rounded down; all, where its law has none.

    Notes
    -----
    Source: Ghazi et al. 2021, appendix B, "Multi-stage training"; `k="mean"` is theirs.
    """
    name = next((block.stage for block in reversed(noisy.blocks) if block.stage != HELD_OUT), HELD_OUT)
    latest = [block for block in noisy.blocks if block.stage == name]
    kept = np.zeros(len(noisy), bool)
    for block in latest:
        kept[block.rows] = True
    n_likely = _mean_size(latest, noisy.n_classes) if k == "mean" else k
    if n_likely >= noisy.n_classes:
        return np.arange(len(noisy))
    earlier = np.flatnonzero(~kept)
    believed = proba[earlier]
    likely = believed >= -np.partition(-believed, n_likely - 1, axis=1)[:, n_likely - 1 : n_likely]
    kept[earlier] = (members(noisy[earlier]) & likely).any(axis=1)
    return np.flatnonzero(kept) if kept.any() else np.arange(len(noisy))


def _mean_size(blocks: Sequence[Block], n_classes: int) -> int:
    sizes = np.concatenate([block.side["size"] if "candidates" in block.side else np.full(len(block.rows), n_classes) for block in blocks])
    return max(1, int(sizes.mean())) if len(sizes) else 1
