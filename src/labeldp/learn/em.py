# SPDX-License-Identifier: Apache-2.0
"""Expectation-maximisation: likelihoods to weighted training of any estimator."""

import numpy as np
from numpy.typing import NDArray

from labeldp.evidence import NoisyLabels
from labeldp.learn.linear import linear_round
from labeldp.learn.model import Codes, Estimator, Floats, Model, fit_codes, weight_keyword

MASS = 0.99  # of a row's posterior that is kept when it is spread over copies of the row
DRAWS = 4  # sampled classes a row for estimators without sample weights


def em_fit(
    estimator: Estimator,
    X: object,
    noisy: NoisyLabels,
    *,
    start: Model | None,
    held_out: tuple[object, NoisyLabels] | None,
    rounds: int,
    row_budget: int,
    random_state: np.random.RandomState,
    linear: bool = True,
) -> Model:
    """Linear round (or the model of the stage before), then rounds of expectation-maximisation.

    Parameters
    ----------
    estimator : scikit-learn classifier or pipeline
    X : n rows of features
    noisy : NoisyLabels of n rows
    start : Model, optional
        Where to start if no common channel allows a linear round.
    held_out : (X, NoisyLabels), optional
        A round is kept only if these rows become more likely (the first one also where they cannot tell), and the first that is not
        ends it. Without them, the number of rounds is `rounds`: a strong learner fits the posteriors of its own training rows, so keep
        it small.
    rounds : int
    row_budget : int
        Most rows of one fit.
    random_state : numpy RandomState
    linear : bool
        False: no linear round where there is a start, which knows more than these outputs say.

    Returns
    -------
    Model. Cost: at most 1 + rounds fits, each on up to min(row_budget, n x classes left in 99 % of the posterior) rows.
    """
    likelihood = noisy.likelihood(dtype="float64")
    model = (linear_round(estimator, X, noisy, row_budget, random_state) if linear or start is None else None) or start
    for number in range(1, max(rounds, 0 if model else 1) + 1):
        belief = np.ones(likelihood.shape) if model is None else model.predict_proba(X)
        candidate = m_step(estimator, X, posterior(belief, likelihood), number, row_budget, random_state)
        if held_out is not None and model is not None and not _keeps(candidate, model, held_out, lenient=number == 1):
            break
        model = candidate
    assert model is not None
    return model


def _keeps(candidate: Model, model: Model, held_out: tuple[object, NoisyLabels], *, lenient: bool) -> bool:
    """Held-out rows became likelier; or, leniently, not less likely by more than two standard errors.

    Few very noisy rows can hardly tell models apart. The first round takes most of the variance of the linear round away, so the doubt is
    in its favour; further rounds must show that they help.
    """
    gain = candidate.log_evidence(*held_out) - model.log_evidence(*held_out)
    slack = 2 * float(gain.std()) / np.sqrt(len(gain)) if lenient else 0.0
    return bool(gain.mean() > -slack)


def posterior(belief: Floats, likelihood: NDArray[np.floating]) -> Floats:
    """P[label | features, outputs]: (n, K), rows sum to 1; the likelihood alone where the model rules out all that is possible."""
    joint = belief * likelihood
    total = joint.sum(axis=1, keepdims=True)
    joint = np.where(total > 0, joint, likelihood)
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))


def m_step(estimator: Estimator, X: object, weights: Floats, number: int, row_budget: int, random_state: np.random.RandomState) -> Model:
    """Fit a clone to posterior weights (n, K)."""
    n, k = weights.shape
    if weight_keyword(estimator) is None:
        rows, codes = _sampled(weights, max(1, min(DRAWS, row_budget // n)), random_state)
        return Model(fit_codes(estimator, X, rows, codes), k, rounds=number)
    kept = _heaviest(weights)
    if kept.sum() > row_budget:
        rows, codes = _sampled(weights, max(1, row_budget // n), random_state)
        return Model(fit_codes(estimator, X, rows, codes, np.full(len(rows), n / len(rows))), k, rounds=number)
    rows, codes = np.nonzero(kept)
    kept_mass = np.where(kept, weights, 0.0).sum(axis=1)
    return Model(fit_codes(estimator, X, rows, codes, weights[rows, codes] / kept_mass[rows]), k, rounds=number)


def _heaviest(weights: Floats) -> NDArray[np.bool_]:
    """The fewest classes of each row that hold MASS of it."""
    order = np.argsort(-weights, axis=1, kind="stable")
    ordered = np.take_along_axis(weights, order, axis=1)
    needed = np.cumsum(ordered, axis=1) - ordered < MASS
    kept = np.empty(weights.shape, bool)
    np.put_along_axis(kept, order, needed, axis=1)
    return kept


def _sampled(weights: Floats, draws: int, random_state: np.random.RandomState) -> tuple[Codes, Codes]:
    """Classes drawn from each row's posterior, with evenly spread quantiles so that several draws of a row differ."""
    n = len(weights)
    points = (np.arange(draws) + random_state.random_sample((n, 1))) / draws
    edges = np.cumsum(weights, axis=1)
    codes = np.empty((n, draws), np.int64)
    for j in range(draws):
        codes[:, j] = np.minimum((edges < points[:, j : j + 1]).sum(axis=1), weights.shape[1] - 1)
    return np.repeat(np.arange(n), draws), codes.ravel()
