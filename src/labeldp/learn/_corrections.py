# SPDX-License-Identifier: Apache-2.0
"""Corrections: four ways from noisy labels to a model of the true label, around any scikit-learn
classifier.

    make_learner --> Learner.fit(X, noisy, start, held_out) --> Model.predict_proba(X)

"none" takes outputs for labels, "debias" undoes the law on predictions, "likelihood" fits the exact
loss, and "em" fits the estimator to posterior weights. First stands what all of them give and
share: a fitted estimator as a model, and fits on class codes.
"""

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import has_fit_parameter

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.evidence import NoisyLabels
from labeldp.learn._boosting import LikelihoodBoosting, library_of, rounded_to_bins
from labeldp.learn._data import Codes, Estimator, Floats
from labeldp.learn._softmax import SoftmaxRegression, softmax_of
from labeldp.protocol._estimator import in_top_k, members
from labeldp.protocol._matching import take
from labeldp.protocol._prior import TopK
from labeldp.protocol.metrics import frequencies_beside, likeliest_frequencies, log_evidence

Transform = Callable[[object], object]

CORRECTIONS = ("auto", "likelihood", "em", "debias", "none")
# the C to choose from, as shares of the user's
PENALTIES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
MASS = 0.99  # of a row's posterior that is kept when it is spread over copies of the row
MIN_ROWS = 40  # that one linear round can take; fewer say nothing of how far to trust a model
DRAWS = 4  # sampled classes a row for estimators without sample weights


class HeldOut(NamedTuple):
    """Rows that a model is not fitted to: features, noisy labels, and weights, None where all rows
    count alike."""

    X: object
    noisy: NoisyLabels
    sample_weight: Floats | None = None


@dataclass(frozen=True, eq=False)
class Model:
    """A fitted estimator that was trained on class codes.

    Attributes
    ----------
    estimator : fitted scikit-learn estimator
    n_classes : int
    channel : (own, other) or None
        P[class in output | it is the label] and P[class in output | it is not], where the estimator
        was fitted to members of outputs; None where it predicts true labels.
    rounds : int
        Rounds of expectation-maximisation behind it.
    frequencies : (K,) array or None
        Of the classes, where they are known to the model.
    share : float in [0, 1]
        How much of the estimator's probabilities is taken; the rest is the frequencies.
    chose : bool
        Every other held-out row has chosen the rounds, so that it cannot measure the model.
    """

    estimator: Estimator
    n_classes: int
    channel: tuple[float, float] | None = None
    rounds: int = 0
    frequencies: Floats | None = None
    share: float = 1.0
    chose: bool = False

    def predict_proba(self, X: object) -> Floats:
        """Predict probabilities of the true label: (n, K), rows sum to 1."""
        p = self._aligned(X)
        if self.channel is not None:
            # The estimator gave P[class in output | x] / size = (other + (own - other) P[class |
            # x]) / size: solve for P[class | x]. A finite number of noisy rows carries it below 0,
            # so a floor keeps every class possible, below what a rare one really has.
            own, other = self.channel
            size = own + (self.n_classes - 1) * other  # of an output, on average
            floor = (
                0.01 / self.n_classes
                if self.frequencies is None
                else np.minimum(0.01 / self.n_classes, 0.5 * self.frequencies)
            )
            p = np.maximum((p * size - other) / (own - other), floor)
            p /= p.sum(axis=1, keepdims=True)
        return (
            p
            if self.frequencies is None
            else np.asarray(self.share * p + (1.0 - self.share) * self.frequencies)
        )

    def _aligned(self, X: object) -> Floats:
        """Predict by the estimator, with a column for each of the K classes; certain predictions
        where it has none."""
        if not hasattr(self.estimator, "predict_proba"):
            return np.eye(self.n_classes)[np.asarray(self.estimator.predict(X), np.int64)]
        found = np.asarray(self.estimator.predict_proba(X), np.float64)
        table = np.zeros((len(found), self.n_classes))
        # a fit may have seen fewer classes than there are
        table[:, np.asarray(self.estimator.classes_, np.int64)] = found
        return table


_listener: ContextVar[Callable[[], object] | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def heard_by(listener: Callable[[], object] | None) -> Iterator[None]:
    """Call a function after each fit of an estimator in this context, to show progress; None: no
    function."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell_of_fit() -> None:
    listener = _listener.get()
    if listener is not None:
        listener()


def fit_codes(
    estimator: Estimator, X: object, rows: Codes, codes: Codes, weights: Floats | None = None
) -> Estimator:
    """Fit a clone on these rows of X, each with a class code and a weight; a constant model where
    only one class is left.

    Parameters
    ----------
    estimator : scikit-learn classifier or pipeline, left as it is
    X : array, sparse matrix or data frame of n rows
    rows, codes : (m,) int
    weights : (m,) float, optional
        Only where `weight_keyword` finds that the estimator takes them.
    """
    # Few rows of a small stage can have one class alone, which many classifiers refuse: a constant
    # is the model of it.
    one_class = len(codes) == 0 or codes.min() == codes.max()
    fitted = DummyClassifier() if one_class else clone(estimator)
    known = take(X, rows)
    if weights is not None and isinstance(fitted, HistGradientBoostingClassifier):
        known = rounded_to_bins(known, fitted.max_bins)  # weighted bins would take most of the time
    try:
        return fit_weighted(fitted, known, codes, weights)
    except Exception:
        seen, places = np.unique(codes, return_inverse=True)
        if np.array_equal(seen, np.arange(len(seen))):
            raise
        # Some estimators, as XGBoost's, refuse codes between which one is missing: a class that
        # noise has left without a label.
        return Renumbered(fit_weighted(clone(estimator), known, places, weights), seen)


def fit_weighted(estimator: Estimator, X: object, y: object, weights: Floats | None) -> Estimator:
    """Fit an estimator, with weights where it takes some."""
    given = (
        {}
        if weights is None or (keyword := weight_keyword(estimator)) is None
        else {keyword: weights}
    )
    # With scikit-learn's metadata routing, pipelines and ensembles take weights only if each step
    # inside was set to request them or not.
    with config_context(**({"enable_metadata_routing": False} if given else {})):
        fitted = estimator.fit(X, y, **given)
    tell_of_fit()
    return fitted


@dataclass(frozen=True, eq=False)
class Renumbered:
    """A classifier that was fitted to numbers without gaps, 0..m-1, which stand for these codes.

    Attributes
    ----------
    estimator : fitted scikit-learn classifier or pipeline
    classes_ : (m,) int
        The code of each number.
    """

    estimator: Estimator
    classes_: Codes

    def predict(self, X: object) -> Codes:
        """Predict codes: (n,)."""
        return np.asarray(self.classes_[np.asarray(self.estimator.predict(X), np.int64)])

    @available_if(  # type: ignore[untyped-decorator]
        lambda self: hasattr(self.estimator, "predict_proba")
    )
    def predict_proba(self, X: object) -> Floats:
        """Predict probabilities of these codes: (n, m)."""
        return np.asarray(self.estimator.predict_proba(X))


def fit_last(
    learner: Estimator,
    X: object,
    fit: Callable[[Estimator, object, Transform], Estimator],
    codes: object = None,
    through: Transform = lambda rows: rows,
) -> Estimator:
    """Fit a pipeline whose last step learns from something other than labels.

    Parameters
    ----------
    learner : estimator or pipeline
    X : n rows of features
    fit : function of the last step, the features that reach it, and `through` for other rows -> the
    fitted last step
    codes : (n,) int, optional
        For the transformers before it, some of which need labels.
    through : function, optional
        What rows pass before they reach this learner.
    """
    if not isinstance(learner, Pipeline):
        fitted = fit(learner, X, through)
        tell_of_fit()
        return fitted
    *before, (name, last) = learner.steps
    if not before:
        return Pipeline([(name, fit_last(last, X, fit, codes, through))])
    head = Pipeline(before)
    features = head.fit_transform(X, codes)
    return Pipeline(
        [
            *head.steps,
            (
                name,
                fit_last(last, features, fit, codes, lambda rows: head.transform(through(rows))),
            ),
        ]
    )


def weight_keyword(estimator: Estimator) -> str | None:
    """Find the keyword under which `fit` takes sample weights, following pipelines to their last
    step; None if it takes none."""
    # a text passes rows through
    takes = not isinstance(last := last_step(estimator), str) and has_fit_parameter(
        last, "sample_weight"
    )
    return "__".join([*_steps_to_last(estimator), "sample_weight"]) if takes else None


def require_weights(estimator: Estimator, correction: str) -> None:
    """Refuse an estimator that cannot learn from weighted rows in this correction."""
    exact = exact_learner(estimator) if correction in ("auto", "likelihood") else None
    able = (
        weight_keyword(estimator) is not None
        if exact is None
        else "sample_weight" in inspect.signature(last_step(exact).fit_likelihood).parameters
    )
    if not able:
        raise InvalidInput(
            "Expected an estimator whose fit takes sample_weight, got"
            f" {type(last_step(estimator)).__name__}. Leave sample_weight out, or take another"
            " estimator."
        )


def seeded(estimator: Estimator, random_state: np.random.RandomState | None) -> Estimator:
    """Clone an estimator and give every random_state that is None a number from this generator."""
    copied = clone(estimator)
    if random_state is None:
        return copied
    params = copied.get_params().items()
    free = sorted(
        name for name, value in params if value is None and f"__{name}".endswith("__random_state")
    )
    return copied.set_params(
        **{name: int(random_state.randint(np.iinfo(np.int32).max)) for name in free}
    )


# Which correction
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LearnOptions:
    """Settings of learning beyond the correction; the defaults suit most data.

    Attributes
    ----------
    em_rounds : int >= 0, default=2
        Most rounds of expectation-maximisation a stage; as many are taken as the noisy labels of
        rows that a model has not seen speak for.
    row_budget : int >= 1, default=1_000_000
        Most rows of one weighted fit; beyond it classes are sampled from each row's posterior.
    refit : bool, default=True
        Learn from the held-out rows too once the model is chosen; `estimated_accuracy_` is measured
        before that.
    """

    em_rounds: int = 2
    row_budget: int = 1_000_000
    refit: bool = True

    def __post_init__(self) -> None:
        _validate.integer(em_rounds=self.em_rounds, low=0)
        _validate.integer(row_budget=self.row_budget, low=1)
        _validate.boolean(refit=self.refit)


DEFAULTS = LearnOptions()


Learned = TypeVar("Learned")


class Learner(Protocol[Learned]):
    """What learns a model from noisy labels: one correction with its estimator, or a
    `LocationLearner`."""

    def fit(
        self,
        X: object,
        noisy: NoisyLabels,
        start: Learned | None,
        held_out: HeldOut | None,
        sample_weight: Floats | None = None,
    ) -> Learned:
        """Learn from n rows, of weights (n,); `start` is the model of the stage before."""

    def refit(
        self, X: object, noisy: NoisyLabels, model: Learned, sample_weight: Floats | None = None
    ) -> Learned:
        """Learn again, now from all rows, the way that led to the chosen model."""


def make_learner(
    estimator: Estimator,
    correction: str,
    options: LearnOptions,
    random_state: np.random.RandomState,
    *,
    linear: bool = True,
    top_k_filter: TopK | None = None,
    class_prior: Floats | None = None,
) -> Learner[Model]:
    """Make the learner for this correction; "auto" is "likelihood" where the estimator can take it,
    else "em".

    Parameters
    ----------
    estimator : scikit-learn classifier or pipeline
    correction : one of CORRECTIONS
    options : LearnOptions
    random_state : numpy RandomState
    linear : bool, default=True
        False: "em" starts from the model that it is given even where a linear round is possible.
    top_k_filter : int, "mean" or None, default=None
        Leave out rows of earlier stages whose output misses the model's k likeliest classes.
    class_prior : (K,) float64 or None, default=None
        Known frequencies of the classes.
    """
    inner: Learner[Model]
    parameter = None if correction == "none" else class_weight_of(estimator)
    if parameter is not None:
        # The loss of weighted classes is not that of any likelihood: learn without them first, and
        # weight the posterior at the end.
        plain = clone(estimator).set_params(**{parameter: None})
        inner = make_learner(
            plain,
            correction,
            options,
            random_state,
            linear=linear,
            top_k_filter=top_k_filter,
            class_prior=class_prior,
        )
        return ClassWeightedLearner(
            inner, plain, estimator.get_params()[parameter], options, random_state
        )
    exact = exact_learner(estimator) if correction in ("auto", "likelihood") else None
    if class_prior is not None and (
        correction in ("none", "debias")
        or (exact is not None and "class_prior" not in last_step(exact).get_params(deep=False))
    ):
        raise InvalidInput(
            "Expected class_prior=None with correction='none' or 'debias', or with an estimator of"
            " your own that has a fit_likelihood, got rates with"
            f" {type(last_step(estimator)).__name__} and correction={correction!r}. Use"
            " correction='em'."
        )
    if exact is not None:
        if class_prior is not None:
            last_step(exact).set_params(class_prior=tuple(class_prior.tolist()))
        inner = ExactLearner(exact)
    elif correction == "likelihood":
        raise InvalidInput(
            "Expected an estimator that can take likelihoods with correction='likelihood', got"
            f" {type(estimator).__name__}: its last step needs a method fit_likelihood(X,"
            " log_likelihood), or to be a plain LogisticRegression,"
            " HistGradientBoostingClassifier, LGBMClassifier or XGBClassifier. Use correction='em'"
            " for any estimator."
        )
    elif correction == "none":
        inner = HardLearner(estimator)
    elif correction == "debias":
        inner = DebiasLearner(estimator, options, random_state)
    else:
        inner = EMLearner(estimator, options, random_state, linear, class_prior)
    return inner if top_k_filter is None else FilteringLearner(inner, top_k_filter)


def require_classifier(estimator: Estimator) -> None:
    """Refuse regressors, clusterers and classes instead of instances, which would be charged for
    and then predict nonsense."""
    _require_kind(estimator, is_classifier, "classifier", "ClassifierMixin")


def require_regressor(estimator: Estimator) -> None:
    """Refuse classifiers, clusterers and classes instead of instances."""
    _require_kind(
        estimator,
        is_regressor,
        "regressor",
        "RegressorMixin",
        " For classes there is LabelDPClassifier.",
    )


def _require_kind(
    estimator: Estimator, of_kind: Callable[[object], bool], kind: str, mixin: str, more: str = ""
) -> None:
    try:
        fits = not isinstance(estimator, type) and hasattr(estimator, "fit") and of_kind(estimator)
    except (AttributeError, TypeError):  # it has no tags
        fits = False
    if not fits:
        name = (
            estimator.__name__ + " itself"
            if isinstance(estimator, type)
            else type(estimator).__name__
        )
        raise InvalidInput(
            f"Expected a scikit-learn {kind}, or a pipeline that ends in one, got {name}. A class"
            f" of your own: derive it from {mixin} and BaseEstimator, and pass an instance.{more}"
        )


def require_no_threshold(estimator: Estimator) -> None:
    """Refuse an estimator with a threshold, which would be tuned on noisy labels as if they were
    true, and not be used by `predict`."""
    found = next(
        (
            each
            for each in _within(estimator)
            if isinstance(each, FixedThresholdClassifier | TunedThresholdClassifierCV)
        ),
        None,
    )
    if found is not None:
        raise InvalidInput(
            "Expected an estimator without a threshold inside LabelDPClassifier, got"
            f" {type(found).__name__}, whose threshold would be tuned on noisy labels as if they"
            " were true, or not be used. Pass the classifier that is in it,"
            " choose threshold = labeldp.metrics.best_threshold(noisy, scores) by noisy labels of"
            " rows that the fitted model has not learned from, and put"
            " FixedThresholdClassifier(FrozenEstimator(model), threshold=threshold) around."
        )


def _within(estimator: Estimator) -> tuple[object, ...]:
    """Return an estimator and everything that is in its parameters."""
    return (
        estimator,
        *(estimator.get_params().values() if hasattr(estimator, "get_params") else ()),
    )


@dataclass(frozen=True, eq=False)
class HardLearner:
    """Correction "none": the most likely class of each output, taken as the truth."""

    estimator: Estimator

    def fit(
        self,
        X: object,
        noisy: NoisyLabels,
        start: Model | None,
        held_out: HeldOut | None,
        sample_weight: Floats | None = None,
    ) -> Model:
        return Model(
            fit_codes(self.estimator, X, np.arange(len(noisy)), noisy.hard_codes(), sample_weight),
            noisy.n_classes,
        )

    def refit(
        self, X: object, noisy: NoisyLabels, model: Model, sample_weight: Floats | None = None
    ) -> Model:
        return self.fit(X, noisy, model, None, sample_weight)


@dataclass(frozen=True, eq=False)
class FilteringLearner:
    """Another learner, with rows left out: the paper's top-k filter."""

    inner: Learner[Model]
    top_k_filter: TopK

    def fit(
        self,
        X: object,
        noisy: NoisyLabels,
        start: Model | None,
        held_out: HeldOut | None,
        sample_weight: Floats | None = None,
    ) -> Model:
        kept = self._in_top_k(X, noisy, start)
        weights = weights_of(sample_weight, kept)
        return self.inner.fit(take(X, kept), noisy[kept], start, held_out, weights)

    def refit(
        self, X: object, noisy: NoisyLabels, model: Model, sample_weight: Floats | None = None
    ) -> Model:
        kept = self._in_top_k(X, noisy, model)
        weights = weights_of(sample_weight, kept)
        return self.inner.refit(take(X, kept), noisy[kept], model, weights)

    def _in_top_k(self, X: object, noisy: NoisyLabels, start: Model | None) -> NDArray[np.int64]:
        return (
            np.arange(len(noisy))
            if start is None
            else in_top_k(noisy, start.predict_proba(X), self.top_k_filter)
        )


@dataclass(frozen=True, eq=False)
class ClassWeightedLearner:
    """Class weights: another learner without them, then one fit to its posterior, in which each
    class counts by its weight.

    The noisy labels' own counts say nothing of the classes' rates, and a likelihood has no place
    for weights. So `inner` learns P[label | features], and the estimator is fitted to copies of
    each row, for each class with weight P[label | features, output] x class weight: the last step
    of expectation-maximisation for the weighted loss. "balanced" is 1 / (K x rate), by rates that
    the noisy labels speak for.

    Attributes
    ----------
    inner : Learner
    estimator : scikit-learn classifier or pipeline, without class weights
    class_weight : "balanced", or mapping of codes to weights; those that it lacks count 1
    options : LearnOptions
    random_state : numpy RandomState
    """

    inner: Learner[Model]
    estimator: Estimator
    class_weight: str | Mapping[int, float]
    options: LearnOptions
    random_state: np.random.RandomState

    def fit(
        self,
        X: object,
        noisy: NoisyLabels,
        start: Model | None,
        held_out: HeldOut | None,
        sample_weight: Floats | None = None,
    ) -> Model:
        model = self.inner.fit(X, noisy, start, held_out, sample_weight)
        likelihood = noisy.likelihood(dtype="float64")
        weights = class_weights(self.class_weight, likeliest_frequencies(likelihood, sample_weight))
        table = posterior(model.predict_proba(X), likelihood)
        found = m_step(
            self.estimator,
            X,
            table,
            model.rounds,
            self.options.row_budget,
            self.random_state,
            sample_weight,
            weights,
        )
        return replace(found, chose=model.chose)

    def refit(
        self, X: object, noisy: NoisyLabels, model: Model, sample_weight: Floats | None = None
    ) -> Model:
        return self.fit(X, noisy, None, None, sample_weight)


def class_weight_of(estimator: Estimator) -> str | None:
    """Name the parameter of a classifier, or of a pipeline's last step, by which its classes are
    weighted; None if none is set."""
    name = "__".join([*_steps_to_last(estimator), "class_weight"])
    value = estimator.get_params().get(name)
    usable = value is not None and (
        isinstance(value, Mapping) or (isinstance(value, str) and value == "balanced")
    )
    return name if usable and weight_keyword(estimator) else None


def _steps_to_last(estimator: Estimator) -> Iterator[str]:
    while isinstance(estimator, Pipeline):
        name, estimator = estimator.steps[-1]
        yield name


def class_weights(given: str | Mapping[int, float], frequencies: Floats) -> Floats:
    """Compute the weight of each class, (K,): as given, or "balanced" as 1 / (K x frequency)."""
    if not isinstance(given, Mapping):
        return np.asarray(1 / (len(frequencies) * frequencies))
    codes = range(len(frequencies))
    if unknown := [code for code in given if code not in codes]:
        raise InvalidInput(
            f"Expected class_weight by class codes 0..{len(frequencies) - 1}, got"
            f" {_validate.shown(unknown[0])}."
        )
    return np.array(
        [_validate.positive(class_weight=given.get(code, 1.0), zero=True) for code in codes]
    )


# The exact likelihood
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ExactLearner:
    """Correction "likelihood": the exact loss, for what `exact_learner` gave."""

    estimator: Estimator

    def fit(
        self,
        X: object,
        noisy: NoisyLabels,
        start: Model | None,
        held_out: HeldOut | None,
        sample_weight: Floats | None = None,
    ) -> Model:
        """Learn from n rows. Boosting ends where every other held-out row speaks for no more trees,
        and the model says so (`chose`)."""
        choosing = (
            _every_other(held_out)
            if isinstance(last_step(self.estimator), LikelihoodBoosting)
            else None
        )
        return replace(
            _exact_fit(self.estimator, X, noisy, choosing, sample_weight),
            chose=choosing is not None,
        )

    def refit(
        self, X: object, noisy: NoisyLabels, model: Model, sample_weight: Floats | None = None
    ) -> Model:
        """Go on with more rows: transformers stay, a SoftmaxRegression keeps penalty and scale and
        starts from its coefficients.

        Boosting stays as it is: the rows that chose its rounds add little, and a second fit would
        double the cost.
        """
        if isinstance(last_step(model.estimator), LikelihoodBoosting):
            return model
        learner = copy.deepcopy(model.estimator)
        last, features = learner, X
        while isinstance(last, Pipeline):
            features = last[:-1].transform(features) if len(last.steps) > 1 else features
            last = last.steps[-1][1]
        if not isinstance(last, SoftmaxRegression):
            # a model of consensus rounds learned codes, and so may be of another type
            again = learner if hasattr(last, "fit_likelihood") else self.estimator
            return _exact_fit(again, X, noisy, sample_weight=sample_weight)
        given = {name: getattr(last, name) for name in ("C", "scale", "warm_start")}
        table = noisy.log_likelihood(dtype="float64")
        last.set_params(C=last.C_, scale=last.scale_, warm_start=True).fit_likelihood(
            features, table, sample_weight
        ).set_params(**given)
        return Model(learner, model.n_classes)


def _every_other(held_out: HeldOut | None) -> HeldOut | None:
    """Return those held-out rows that choose the rounds, every other one that counts; the others
    measure the model."""
    if held_out is None:
        return None
    X, noisy, weights = HeldOut(*held_out)
    rows = np.arange(0, len(noisy), 2)
    if weights is not None:
        rows = rows[weights[rows] > 0]
    return HeldOut(take(X, rows), noisy[rows], weights_of(weights, rows)) if len(rows) else None


def exact_learner(estimator: Estimator) -> Estimator | None:
    """Give the estimator, or its equal, with a method `fit_likelihood(X, log_likelihood)` at its
    end; None if there is none.

    An estimator or a pipeline's last step that has the method is used as it is. A
    LogisticRegression with the plain L2 penalty becomes a `SoftmaxRegression`: the same model,
    which may choose a stronger penalty than C (up to 1000 times) by the likelihood of held-out
    rows. The boosting classifiers of LightGBM, XGBoost and scikit-learn (histograms) become a
    `LikelihoodBoosting` around them.
    """
    if isinstance(estimator, Pipeline):
        last = exact_learner(estimator.steps[-1][1])
        return (
            None
            if last is None
            else Pipeline([*estimator.steps[:-1], (estimator.steps[-1][0], last)])
        )
    if hasattr(estimator, "fit_likelihood"):
        return clone(estimator)
    if library_of(estimator):
        return LikelihoodBoosting(estimator)  # which it clones itself
    found = softmax_of(estimator)
    return (
        None
        if found is None
        else found.set_params(C=tuple(share * estimator.C for share in PENALTIES))
    )


def last_step(estimator: Estimator) -> Estimator:
    """Give an estimator itself, of a pipeline its last step."""
    while isinstance(estimator, Pipeline):
        estimator = estimator.steps[-1][1]
    return estimator


def _exact_fit(
    learner: Estimator,
    X: object,
    noisy: NoisyLabels,
    choosing: HeldOut | None = None,
    sample_weight: Floats | None = None,
) -> Model:
    table = noisy.log_likelihood(dtype="float64")
    # for transformers that need labels
    codes = noisy.hard_codes() if isinstance(learner, Pipeline) else None

    def fit(last: Estimator, F: object, through: Transform) -> Estimator:
        given: dict[str, object] = {} if sample_weight is None else {"sample_weight": sample_weight}
        if choosing is not None:
            told = through(choosing.X), choosing.noisy.log_likelihood(dtype="float64")
            given["held_out"] = (
                told if choosing.sample_weight is None else (*told, choosing.sample_weight)
            )
        return last.fit_likelihood(F, table, **given)

    return Model(fit_last(clone(learner), X, fit, codes), table.shape[1])


# The law undone
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DebiasLearner:
    """Correction "debias": the inverse of the law, applied to the predictions.

    The debiased loss (Ghazi et al. 2021, equation 7) gives each class the weight (1{class in
    output} - other) / (own - other), which is negative outside the output; hardly any estimator
    takes negative weights, and with them losses have no lower bound. The same inverse is therefore
    taken where it is harmless: the estimator learns the members of the outputs, and its predictions
    are inverted.
    """

    estimator: Estimator
    options: LearnOptions
    random_state: np.random.RandomState

    def fit(
        self,
        X: object,
        noisy: NoisyLabels,
        start: Model | None,
        held_out: HeldOut | None,
        sample_weight: Floats | None = None,
    ) -> Model:
        model = linear_round(
            self.estimator, X, noisy, self.options.row_budget, self.random_state, sample_weight
        )
        if model is None:
            laws = sorted({str(block.law) for block in noisy.blocks})
            raise InvalidInput(
                "Expected one invertible law for all rows with correction='debias', got"
                f" {', '.join(laws)} with priors that differ by row. Use law='rr' or 'subset',"
                " stages=1, or correction='em'."
            )
        return model

    def refit(
        self, X: object, noisy: NoisyLabels, model: Model, sample_weight: Floats | None = None
    ) -> Model:
        return self.fit(X, noisy, model, None, sample_weight) if common_channel(noisy) else model


def common_channel(noisy: NoisyLabels) -> tuple[float, float] | None:
    """Find (own, other) of `Model.channel` if one invertible law covers all rows, each drawn once;
    else None."""
    if not len(noisy) or sum(len(block.rows) for block in noisy.blocks) != len(noisy):
        return None
    own, other = noisy.inclusion()
    if not (np.ptp(own) == 0 and np.ptp(other) == 0 and own[0] > other[0]):  # False for NaN
        return None
    return float(own[0]), float(other[0])


def linear_round(
    estimator: Estimator,
    X: object,
    noisy: NoisyLabels,
    row_budget: int,
    random_state: np.random.RandomState,
    sample_weight: Floats | None = None,
) -> Model | None:
    """Fit once on outputs as they are; consistent, and the start of expectation-maximisation. None
    where no common channel exists.

    Each row is repeated once for each class in its output (equal weights, since all outputs have
    one size). The estimator then models P[class in output | x] / size, from which
    `Model.predict_proba` takes the law's affine map off.

    Parameters
    ----------
    estimator : scikit-learn classifier or pipeline
    X : n rows of features
    noisy : NoisyLabels of n rows
    row_budget : int
        Where more rows would result, each output is thinned to the same number of random members.
    random_state : numpy RandomState
    sample_weight : (n,) float, optional
    """
    channel = common_channel(noisy)
    if channel is None:
        return None
    inside, most = members(noisy), max(1, row_budget // len(noisy))
    if int(inside.sum(axis=1).max(initial=0)) > most:
        order = np.argsort(np.where(inside, random_state.random_sample(inside.shape), 2.0), axis=1)[
            :, :most
        ]
        thinned = np.zeros_like(inside)
        np.put_along_axis(thinned, order, True, axis=1)
        inside = inside & thinned
    rows, codes = np.nonzero(inside)
    return Model(
        fit_codes(estimator, X, rows, codes, weights_of(sample_weight, rows)),
        noisy.n_classes,
        channel,
    )


# Expectation-maximisation
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class EMLearner:
    """Correction "em": a linear round, then rounds of expectation-maximisation, as many as rows
    that a model has not seen speak for.

    Attributes
    ----------
    estimator : scikit-learn classifier or pipeline
    options : LearnOptions
    random_state : numpy RandomState
    linear : bool
        False: no linear round where there is a start, which knows more than these outputs say.
    class_prior : (K,) array or None
        Frequencies of the classes, where they are known; else they are estimated.

    Notes
    -----
    A strong learner fits the noise of its own training rows: its probabilities are too far apart,
    and where a class is rare, several times too large, since what the noise takes below 0 is cut
    off there. So the same rounds are fitted on each half of the rows, and the noisy labels of the
    other half say how many rounds to take and how far to go from the frequencies of the classes to
    what the model says: the posterior mean of a share whose square root is uniform beforehand, and
    of that, since twice the rows have half the noise, 2 share / (1 + share). Source: stacking
    (Wolpert 1992), by the likelihood of what was released. Cost: at most 2 (1 + rounds) fits, each
    on up to min(row_budget, n x classes left in 99 % of the posterior) rows.
    """

    estimator: Estimator
    options: LearnOptions
    random_state: np.random.RandomState
    linear: bool = True
    class_prior: Floats | None = None

    def fit(
        self,
        X: object,
        noisy: NoisyLabels,
        start: Model | None,
        held_out: HeldOut | None,
        sample_weight: Floats | None = None,
    ) -> Model:
        """Learn from n rows.

        Parameters
        ----------
        X : n rows of features
        noisy : NoisyLabels of n rows
        start : Model, optional
            Where to start if no common channel allows a linear round.
        held_out : (X, NoisyLabels), optional
            Used only where no row allows a linear round: every other one then chooses the rounds,
            and the model says so (`chose`).
        """
        likelihood = noisy.likelihood(dtype="float64")
        frequencies = self._frequencies(X, noisy, likelihood, start, sample_weight)
        # rows that a linear round can take
        able = _able(noisy) if self.linear or start is None else np.empty(0, np.int64)
        known = _Known(X, noisy, likelihood, frequencies, sample_weight)
        if len(able) < MIN_ROWS:
            return replace(self._by_held_out(known, start, held_out), frequencies=frequencies)
        whole = len(able) == len(noisy)
        # a start has learned nothing of these rows
        least = 0 if whole or start is None else min(1, self.options.em_rounds)
        found, share = self._cross_fitted(known, able, least)
        model = self._begin(known, able) if whole or start is None else start
        model = self._rounds(known, model, found)
        return replace(
            model, frequencies=frequencies, share=share, chose=start is not None and start.chose
        )

    def refit(
        self, X: object, noisy: NoisyLabels, model: Model, sample_weight: Floats | None = None
    ) -> Model:
        """Fit the model again to all rows: as many rounds after a linear round where all rows allow
        one, else one more round."""
        likelihood = noisy.likelihood(dtype="float64")
        frequencies = self._frequencies(X, noisy, likelihood, model, sample_weight)
        known = _Known(X, noisy, likelihood, frequencies, sample_weight)
        if self.linear and common_channel(noisy):
            found = self._rounds(known, self._begin(known, np.arange(len(noisy))), model.rounds)
        else:
            found = self._round(known, model, model.rounds + 1)
        return replace(found, frequencies=frequencies, share=model.share)

    def _frequencies(
        self,
        X: object,
        noisy: NoisyLabels,
        likelihood: NDArray[np.floating],
        model: Model | None,
        sample_weight: Floats | None,
    ) -> Floats:
        """Give the class frequencies; beside the model's predictions if some rows were asked by a
        prior, which may have been its own."""
        if self.class_prior is not None:
            return self.class_prior
        if model is None or not any(block.law.uses_prior for block in noisy.blocks):
            return likeliest_frequencies(likelihood, sample_weight)
        return frequencies_beside(likelihood, model.predict_proba(X), sample_weight)

    def _begin(self, known: "_Known", able: Codes) -> Model:
        """Make the linear round, of the rows that allow it."""
        rows = known.at(able)
        model = linear_round(
            self.estimator,
            rows.X,
            rows.noisy,
            self.options.row_budget,
            self.random_state,
            rows.weights,
        )
        assert model is not None
        return replace(model, frequencies=known.frequencies)

    def _round(self, known: "_Known", model: Model | None, number: int) -> Model:
        """Make one round: posterior weights under the model so far, and a fit to them."""
        belief = np.ones(known.likelihood.shape) if model is None else model.predict_proba(known.X)
        weights = posterior(belief, known.likelihood)
        return m_step(
            self.estimator,
            known.X,
            weights,
            number,
            self.options.row_budget,
            self.random_state,
            known.weights,
        )

    def _rounds(self, known: "_Known", model: Model, count: int) -> Model:
        for number in range(1, count + 1):
            model = self._round(known, model, number)
        return model

    def _cross_fitted(self, all_rows: "_Known", able: Codes, least: int) -> tuple[int, float]:
        """Choose (rounds, share of the model beside the frequencies) by what each half of the rows
        says of models of the other half."""
        most = self.options.em_rounds
        # A model of one half has not seen the outputs of the other, whose likelihood under it is
        # therefore honest.
        likelihood, n = all_rows.likelihood, len(all_rows.noisy)
        half = self.random_state.permutation(n) % 2
        evidence = np.empty((most + 1, n))
        for side in (0, 1):
            rows, others = np.flatnonzero(half != side), np.flatnonzero(half == side)
            known, left = all_rows.at(rows), take(all_rows.X, others)
            inside = np.flatnonzero(np.isin(rows, able))
            model = self._begin(known, inside) if len(inside) else None
            for number in range(most + 1):
                model = (
                    model
                    if number == 0 and model is not None
                    else self._round(known, model, number)
                )
                evidence[number, others] = (model.predict_proba(left) * likelihood[others]).sum(
                    axis=1
                )
        # a prior that favours small ones: few noisy rows can hardly tell a share from 0
        shares = np.linspace(0.0, 1.0, 41) ** 2
        plain = likelihood @ all_rows.frequencies
        counted = 1.0 if all_rows.weights is None else all_rows.weights
        score = np.array(
            [
                [
                    (np.log(np.maximum(w * each + (1 - w) * plain, 1e-300)) * counted).sum()
                    for w in shares
                ]
                for each in evidence[least:]
            ]
        )
        # a grid of rounds and shares, each with its likelihood: the rounds with most of it, and the
        # mean share among them
        belief = np.exp(score - score.max())
        found = int(belief.sum(axis=1).argmax())
        share = float(belief[found] @ shares / belief[found].sum())
        # signal / (signal + noise) of half of the rows; of all of them half the noise
        return least + found, 2 * share / (1 + share)

    def _by_held_out(self, known: "_Known", start: Model | None, held_out: HeldOut | None) -> Model:
        """Make rounds from the start, each kept only if every other held-out row speaks for it; one
        round without such rows.

        The other half of the held-out rows is left to measure the model by.
        """
        model, rounds = start, self.options.em_rounds
        choosing = _every_other(held_out)
        most = rounds if choosing is not None else min(1, rounds)
        for number in range(1, max(most, 0 if model else 1) + 1):
            candidate = self._round(known, model, number)
            if (
                choosing is not None
                and model is not None
                and not _keeps(candidate, model, choosing, lenient=number == 1)
            ):
                break
            model = candidate
        assert model is not None
        return replace(model, chose=choosing is not None and most > 0)


@dataclass(frozen=True, eq=False)
class _Known:
    """Rows to learn from: features, noisy labels with their likelihoods, the class frequencies, and
    weights."""

    X: object
    noisy: NoisyLabels
    likelihood: NDArray[np.floating]
    frequencies: Floats
    weights: Floats | None

    def at(self, rows: Codes) -> "_Known":
        """The rows at these positions, with the frequencies of all."""
        return _Known(
            take(self.X, rows),
            self.noisy[rows],
            self.likelihood[rows],
            self.frequencies,
            weights_of(self.weights, rows),
        )


def weights_of(sample_weight: Floats | None, rows: Codes) -> Floats | None:
    """Return the weights of these rows; None where all rows count alike."""
    return None if sample_weight is None else sample_weight[rows]


def _able(noisy: NoisyLabels) -> Codes:
    """Find the rows that one linear round can take: those of the channel that most rows have, each
    drawn once."""
    draws = (
        np.bincount(np.concatenate([block.rows for block in noisy.blocks]), minlength=len(noisy))
        if noisy.blocks
        else np.zeros(0)
    )
    own, other = noisy.inclusion()
    able = np.flatnonzero((draws == 1) & (own > other))  # False for NaN
    if not len(able):
        return able
    _, place, count = np.unique(
        np.column_stack([own[able], other[able]]), axis=0, return_inverse=True, return_counts=True
    )
    return np.asarray(able[place.reshape(-1) == count.argmax()])


def _keeps(candidate: Model, model: Model, choosing: HeldOut, *, lenient: bool) -> bool:
    """Whether the choosing rows became likelier; or, leniently, not less likely by more than two
    standard errors.

    Few very noisy rows can hardly tell models apart: the doubt is in favour of the first round,
    which alone knows the rows' outputs; more must show that they help.
    """
    X, noisy, weights = choosing
    gain = log_evidence(noisy, candidate.predict_proba(X)) - log_evidence(
        noisy, model.predict_proba(X)
    )
    gain = gain if weights is None else gain * weights / weights.mean()
    slack = 2 * float(gain.std()) / np.sqrt(len(gain)) if lenient else 0.0
    return bool(gain.mean() > -slack)


def posterior(belief: Floats, likelihood: NDArray[np.floating]) -> Floats:
    """Compute P[label | features, outputs]: (n, K), rows sum to 1.

    Where the model rules out all that is possible, the likelihood alone decides: such a row would
    else have no weight at all.
    """
    joint = belief * likelihood
    total = joint.sum(axis=1, keepdims=True)
    joint = np.where(total > 0, joint, likelihood)
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))


def m_step(
    estimator: Estimator,
    X: object,
    weights: Floats,
    number: int,
    row_budget: int,
    random_state: np.random.RandomState,
    sample_weight: Floats | None = None,
    class_weight: Floats | None = None,
) -> Model:
    """Fit a clone to posterior weights (n, K): copies of each row for the heaviest classes, or
    sampled classes where those are too many."""
    n, k = weights.shape
    mass: Floats | None = None
    if weight_keyword(estimator) is None:
        rows, codes = _sampled(weights, max(1, min(DRAWS, row_budget // n)), random_state)
    elif (kept := _heaviest(weights)).sum() > row_budget:
        rows, codes = _sampled(weights, max(1, row_budget // n), random_state)
        # so that a penalty weighs against n rows, as without sampling
        mass = np.full(len(rows), n / len(rows))
    else:
        rows, codes = np.nonzero(kept)
        mass = weights[rows, codes] / np.where(kept, weights, 0.0).sum(axis=1)[rows]
    if sample_weight is not None and mass is not None:
        mass = mass * sample_weight[rows]
    if class_weight is not None and mass is not None:
        mass = mass * class_weight[codes]
    return Model(fit_codes(estimator, X, rows, codes, mass), k, rounds=number)


def _heaviest(weights: Floats) -> NDArray[np.bool_]:
    """Choose the fewest classes of each row that hold MASS of it."""
    order = np.argsort(-weights, axis=1, kind="stable")
    ordered = np.take_along_axis(weights, order, axis=1)
    needed = np.cumsum(ordered, axis=1) - ordered < MASS
    kept = np.empty(weights.shape, bool)
    np.put_along_axis(kept, order, needed, axis=1)
    return kept


def _sampled(
    weights: Floats, draws: int, random_state: np.random.RandomState
) -> tuple[Codes, Codes]:
    """Draw classes from each row's posterior, at evenly spread quantiles so that several draws of a
    row differ."""
    n = len(weights)
    points = (np.arange(draws) + random_state.random_sample((n, 1))) / draws
    edges = np.cumsum(weights, axis=1)
    codes = np.empty((n, draws), np.int64)
    # one draw at a time: (n, draws, K) at once would be draws times the memory
    for j in range(draws):
        # rounding may end below 1
        codes[:, j] = np.minimum((edges < points[:, j : j + 1]).sum(axis=1), weights.shape[1] - 1)
    return np.repeat(np.arange(n), draws), codes.ravel()
