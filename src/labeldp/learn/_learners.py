# SPDX-License-Identifier: Apache-2.0
"""The corrections: four ways from noisy labels to a model of the true label, behind one interface."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.learn._em import common_channel, em_fit, em_refit, linear_round
from labeldp.learn._likelihood import exact_fit, exact_learner, exact_refit, takes_likelihood
from labeldp.learn._model import Estimator, Model, fit_codes, take
from labeldp.protocol._fitting import TopK, in_top_k

HeldOut = tuple[object, NoisyLabels]

CORRECTIONS = ("auto", "likelihood", "em", "debias", "none")


@dataclass(frozen=True)
class LearnOptions:
    """What can be set about learning beyond the correction; the defaults suit most data.

    Attributes
    ----------
    em_rounds : int >= 0, default=2
        Most rounds of expectation-maximisation a stage; as many are taken as the noisy labels of rows that a model has not seen speak for.
    row_budget : int >= 1, default=1_000_000
        Most rows of one weighted fit; beyond it classes are sampled from each row's posterior.
    consensus_rounds : int >= 0, default=0
        Rounds of retraining on the rows whose noisy label agrees with the model's prediction (Das et al. 2025).
    refit : bool, default=True
        Learn from the held-out rows too once the model is chosen; `estimated_accuracy_` is measured before that.
    """

    em_rounds: int = 2
    row_budget: int = 1_000_000
    consensus_rounds: int = 0
    refit: bool = True

    def __post_init__(self) -> None:
        _validate.integer(em_rounds=self.em_rounds, low=0)
        _validate.integer(row_budget=self.row_budget, low=1)
        _validate.integer(consensus_rounds=self.consensus_rounds, low=0)


class Learner(Protocol):
    """One correction with its estimator."""

    def fit(self, X: object, noisy: NoisyLabels, start: Model | None, held_out: HeldOut | None) -> Model:
        """Learn from n rows; `start` is the model of the stage before."""
        ...

    def refit(self, X: object, noisy: NoisyLabels, model: Model) -> Model:
        """Learn again, now from all rows, the way that led to the chosen model."""
        ...


@dataclass(frozen=True, eq=False)
class HardLearner:
    """Correction "none": the most likely class of each output, taken as the truth."""

    estimator: Estimator

    def fit(self, X: object, noisy: NoisyLabels, start: Model | None, held_out: HeldOut | None) -> Model:
        return Model(fit_codes(self.estimator, X, np.arange(len(noisy)), noisy.hard_codes()), noisy.n_classes)

    def refit(self, X: object, noisy: NoisyLabels, model: Model) -> Model:
        return self.fit(X, noisy, model, None)


@dataclass(frozen=True, eq=False)
class DebiasLearner:
    """Correction "debias": the inverse of the law, applied to the predictions.

    The debiased loss (Ghazi et al. 2021, equation 7) gives each class the weight (1{class in output} - other) / (own - other), which is
    negative outside the output; hardly any estimator takes negative weights, and with them losses have no lower bound. The same inverse
    is therefore taken where it is harmless: the estimator learns the members of the outputs, and its predictions are inverted.
    """

    estimator: Estimator
    options: LearnOptions
    random_state: np.random.RandomState

    def fit(self, X: object, noisy: NoisyLabels, start: Model | None, held_out: HeldOut | None) -> Model:
        model = linear_round(self.estimator, X, noisy, self.options.row_budget, self.random_state)
        if model is None:
            laws = sorted({str(block.law) for block in noisy.blocks})
            raise InvalidInput(
                f"Expected one invertible law for all rows with correction='debias', got {', '.join(laws)} with priors that differ by row. "
                "Use law='rr' or 'subset', n_stages=1, or correction='em'."
            )
        return model

    def refit(self, X: object, noisy: NoisyLabels, model: Model) -> Model:
        return self.fit(X, noisy, model, None) if common_channel(noisy) else model


@dataclass(frozen=True, eq=False)
class EMLearner:
    """Correction "em": any estimator, by posterior weights; from the start that it is given where `linear` is False."""

    estimator: Estimator
    options: LearnOptions
    random_state: np.random.RandomState
    linear: bool = True

    def fit(self, X: object, noisy: NoisyLabels, start: Model | None, held_out: HeldOut | None) -> Model:
        return em_fit(
            self.estimator,
            X,
            noisy,
            start=start,
            held_out=held_out,
            rounds=self.options.em_rounds,
            row_budget=self.options.row_budget,
            random_state=self.random_state,
            linear=self.linear,
        )

    def refit(self, X: object, noisy: NoisyLabels, model: Model) -> Model:
        return em_refit(
            self.estimator, X, noisy, model, row_budget=self.options.row_budget, random_state=self.random_state, linear=self.linear
        )


@dataclass(frozen=True, eq=False)
class ExactLearner:
    """Correction "likelihood": the exact loss, for an estimator that has `fit_likelihood`."""

    estimator: Estimator

    def fit(self, X: object, noisy: NoisyLabels, start: Model | None, held_out: HeldOut | None) -> Model:
        return exact_fit(self.estimator, X, noisy)

    def refit(self, X: object, noisy: NoisyLabels, model: Model) -> Model:
        # a model of consensus rounds learned codes, and so may be of another type
        return exact_refit(model, X, noisy) if takes_likelihood(model.estimator) else exact_fit(self.estimator, X, noisy)


@dataclass(frozen=True, eq=False)
class FilteringLearner:
    """Another learner, with rows left out: the paper's top-k filter and consensus retraining."""

    inner: Learner
    estimator: Estimator
    options: LearnOptions
    top_k_filter: TopK | None = None

    def fit(self, X: object, noisy: NoisyLabels, start: Model | None, held_out: HeldOut | None) -> Model:
        kept = self._in_top_k(X, noisy, start)
        model = self.inner.fit(take(X, kept), noisy[kept], start, held_out)
        return self._agree(X, noisy, model)

    def refit(self, X: object, noisy: NoisyLabels, model: Model) -> Model:
        kept = self._in_top_k(X, noisy, model)
        return self._agree(X, noisy, self.inner.refit(take(X, kept), noisy[kept], model))

    def _in_top_k(self, X: object, noisy: NoisyLabels, start: Model | None) -> NDArray[np.int64]:
        k = self.top_k_filter
        return np.arange(len(noisy)) if k is None or start is None else in_top_k(noisy, start.predict_proba(X), k)

    def _agree(self, X: object, noisy: NoisyLabels, model: Model) -> Model:
        for _ in range(self.options.consensus_rounds):
            predicted = model.predict_proba(X).argmax(axis=1)
            kept = np.flatnonzero(noisy.log_likelihood()[np.arange(len(noisy)), predicted] == 0)
            if len(np.unique(predicted[kept])) > 1:  # else nothing is left to tell apart, and the model stays
                model = Model(fit_codes(self.estimator, X, kept, predicted[kept]), noisy.n_classes)
        return model


def make_learner(
    estimator: Estimator,
    correction: str,
    options: LearnOptions,
    random_state: np.random.RandomState,
    *,
    linear: bool = True,
    top_k_filter: TopK | None = None,
) -> Learner:
    """The learner for this correction; "auto" is "likelihood" where the estimator can take it, else "em".

    Parameters
    ----------
    estimator : scikit-learn classifier or pipeline
    correction : str
    options : LearnOptions
    random_state : numpy RandomState
    linear : bool
        False: "em" starts from the model that it is given even where a linear round is possible.
    top_k_filter : int, "mean" or None
        Leave out rows of earlier stages whose output misses the model's k likeliest classes.
    """
    wanted = _validate.one_of(CORRECTIONS, correction=correction)
    _require_known_labels(estimator, wanted, options)
    exact = exact_learner(estimator) if wanted in ("auto", "likelihood") else None
    inner: Learner
    if exact is not None:
        inner = ExactLearner(exact)
    elif wanted == "likelihood":
        raise InvalidInput(
            f"Expected an estimator that can take likelihoods with correction='likelihood', got {type(estimator).__name__}: its last step "
            "needs a method fit_likelihood(X, log_likelihood), or to be a plain LogisticRegression. Use correction='em' for any estimator."
        )
    elif wanted == "none":
        inner = HardLearner(estimator)
    elif wanted == "debias":
        inner = DebiasLearner(estimator, options, random_state)
    else:
        inner = EMLearner(estimator, options, random_state, linear)
    return FilteringLearner(inner, estimator, options, top_k_filter) if top_k_filter or options.consensus_rounds else inner


def takes_raw_labels(estimator: Estimator) -> bool:
    """Whether the `fit` of the estimator, or of one inside it, privatizes the labels that it is given."""
    return _raw_inside(estimator) is not None


def require_plain_labels(estimator: Estimator) -> None:
    """Refuse an estimator that would add noise to labels which are noisy already."""
    private = _raw_inside(estimator)
    if private is not None:
        raise InvalidInput(
            f"Expected an estimator that takes labels as they are, got {type(private).__name__}, which privatizes the labels that its fit "
            "is given. Pass the classifier that is in it."
        )


def _raw_inside(estimator: Estimator) -> object | None:
    inside = estimator.get_params().values() if hasattr(estimator, "get_params") else ()
    return next((each for each in (estimator, *inside) if getattr(each, "takes_raw_labels", False) is True), None)


def _require_known_labels(estimator: Estimator, correction: str, options: LearnOptions) -> None:
    """Refuse to give codes to the `fit` of an estimator that would take them for raw labels and add noise of its own."""
    private = _raw_inside(estimator)
    if private is None:
        return
    name = type(private).__name__
    if exact_learner(estimator) is None:
        require_plain_labels(estimator)
    if correction not in ("auto", "likelihood") or options.consensus_rounds:
        raise InvalidInput(
            f"Expected correction='likelihood' and no consensus rounds with {name}, which privatizes the labels that its "
            f"fit is given, got correction={correction!r} and consensus_rounds={options.consensus_rounds}."
        )
