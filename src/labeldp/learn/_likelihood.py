# SPDX-License-Identifier: Apache-2.0
"""Exact maximum likelihood, for estimators that can take it."""

import copy
from collections.abc import Callable

import numpy as np
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline

from labeldp.evidence import NoisyLabels
from labeldp.learn._model import Estimator, Model, tell_of_fit
from labeldp.learn._softmax import SoftmaxRegression

PENALTIES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)  # the C to choose from, as shares of the user's


def exact_learner(estimator: Estimator) -> Estimator | None:
    """The estimator, or its equal, with a method `fit_likelihood(X, log_likelihood)` at its end; None if there is none.

    An estimator or a pipeline's last step that has the method is used as it is. A LogisticRegression with the plain L2 penalty becomes a
    `SoftmaxRegression`: the same model, which may choose a stronger penalty than C (up to 1000 times) by the likelihood of held-out rows.
    """
    if isinstance(estimator, Pipeline):
        last = exact_learner(estimator.steps[-1][1])
        return None if last is None else Pipeline([*estimator.steps[:-1], (estimator.steps[-1][0], last)])
    if hasattr(estimator, "fit_likelihood"):
        return clone(estimator)
    found = softmax_of(estimator)
    return None if found is None else found.set_params(C=tuple(share * estimator.C for share in PENALTIES))


def softmax_of(estimator: Estimator) -> SoftmaxRegression | None:
    """The equal of a LogisticRegression with the plain L2 penalty, its intercepts held back a little; None of any other."""
    if type(estimator) is not LogisticRegression or not _is_plain(estimator):
        return None
    return SoftmaxRegression(
        C=estimator.C,
        intercept_C=0.1,
        fit_intercept=estimator.fit_intercept,
        max_iter=max(20, estimator.max_iter),
        warm_start=estimator.warm_start,
        random_state=estimator.random_state,
    )


# Parameters of LogisticRegression that leave the model that it looks for as it is, or that SoftmaxRegression has too.
_FREE = frozenset(
    [
        "C",
        "fit_intercept",
        "max_iter",
        "warm_start",
        "random_state",
        "solver",
        "tol",
        "verbose",
        "n_jobs",
        "multi_class",
        "intercept_scaling",
        "dual",
    ]
)
_SAME = frozenset({("penalty", "l2"), ("l1_ratio", 0), ("l1_ratio", None)})


def _is_plain(regression: LogisticRegression) -> bool:
    """Nothing is set that SoftmaxRegression has no equal for."""
    defaults = LogisticRegression().get_params()
    given = {name: value for name, value in regression.get_params().items() if name not in _FREE}
    return 0 < regression.C < np.inf and all(value is None or value == defaults[n] or (n, value) in _SAME for n, value in given.items())


def exact_fit(learner: Estimator, X: object, noisy: NoisyLabels) -> Model:
    """Fit a clone of what `exact_learner` returned on the likelihoods of n rows."""
    table = noisy.log_likelihood(dtype="float64")
    return Model(fit_last(clone(learner), X, lambda last, F: last.fit_likelihood(F, table), noisy.hard_codes()), noisy.n_classes)


def takes_likelihood(estimator: Estimator) -> bool:
    """Whether an estimator, or a pipeline's last step, has a method `fit_likelihood`."""
    while isinstance(estimator, Pipeline):
        estimator = estimator.steps[-1][1]
    return hasattr(estimator, "fit_likelihood")


def fit_last(learner: Estimator, X: object, fit: Callable[[Estimator, object], Estimator], codes: object = None) -> Estimator:
    """Transformers fitted to the features, and codes where there are some, then the last step by `fit`, a function of it and its input."""
    if not isinstance(learner, Pipeline):
        fitted = fit(learner, X)
        tell_of_fit()
        return fitted
    *before, (name, last) = learner.steps
    if not before:
        return Pipeline([(name, fit_last(last, X, fit, codes))])
    head = Pipeline(before)
    return Pipeline([*head.steps, (name, fit_last(last, head.fit_transform(X, codes), fit, codes))])


def exact_refit(model: Model, X: object, noisy: NoisyLabels) -> Model:
    """The model after more rows: transformers stay as they are, a SoftmaxRegression keeps its penalty and goes on from where it is."""
    learner = copy.deepcopy(model.estimator)
    last, features = learner, X
    while isinstance(last, Pipeline):
        features = last[:-1].transform(features) if len(last.steps) > 1 else features
        last = last.steps[-1][1]
    if not isinstance(last, SoftmaxRegression):
        return exact_fit(learner, X, noisy)
    given = {name: getattr(last, name) for name in ("C", "warm_start")}
    last.set_params(C=last.C_, warm_start=True).fit_likelihood(features, noisy.log_likelihood(dtype="float64")).set_params(**given)
    return Model(learner, model.n_classes)
