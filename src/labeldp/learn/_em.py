# SPDX-License-Identifier: Apache-2.0
"""Expectation-maximisation: likelihoods to weighted training of any estimator; and the linear round that it starts from."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from labeldp.evidence import NoisyLabels
from labeldp.learn._model import Codes, Estimator, Floats, Model, fit_codes, take, weight_keyword
from labeldp.protocol._fitting import members
from labeldp.protocol.metrics import likeliest_frequencies

MASS = 0.99  # of a row's posterior that is kept when it is spread over copies of the row
MIN_ROWS = 40  # that one linear round can take; fewer say nothing of how far to trust a model
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
    """Linear round (or the model of the stage before), then rounds of expectation-maximisation, as many as other rows speak for.

    Parameters
    ----------
    estimator : scikit-learn classifier or pipeline
    X : n rows of features
    noisy : NoisyLabels of n rows
    start : Model, optional
        Where to start if no common channel allows a linear round.
    held_out : (X, NoisyLabels), optional
        Used only where no row allows a linear round: every other one then chooses the rounds, and the model says so (`chose`).
    rounds : int
        Most rounds.
    row_budget : int
        Most rows of one fit.
    random_state : numpy RandomState
    linear : bool
        False: no linear round where there is a start, which knows more than these outputs say.

    Returns
    -------
    Model

    Notes
    -----
    A strong learner fits the noise of its own training rows: its probabilities are too far apart, and where a class is rare, several times
    too large, since what the noise takes below 0 is cut off there. So the same rounds are fitted on each half of the rows, and the noisy
    labels of the other half say how many rounds to take and how far to go from the frequencies of the classes to what the model says:
    the posterior mean of a share whose square root is uniform beforehand, and of that, since twice the rows have half the noise,
    2 share / (1 + share). Source: stacking (Wolpert 1992), by the likelihood of what was released.
    Cost: at most 2 (1 + rounds) fits, each on up to min(row_budget, n x classes left in 99 % of the posterior) rows.
    """
    work = _Work(estimator, row_budget, random_state)
    likelihood = noisy.likelihood(dtype="float64")
    frequencies = likeliest_frequencies(likelihood)
    able = _able(noisy) if linear or start is None else np.empty(0, np.int64)
    if len(able) < MIN_ROWS:
        return replace(_by_held_out(work, X, likelihood, start, held_out, rounds), frequencies=frequencies)
    whole = len(able) == len(noisy)
    least = 0 if whole or start is None else 1  # a start has learned nothing of these rows
    found, share = _cross_fitted(work, X, noisy, likelihood, frequencies, able, min(least, rounds), rounds)
    model = work.begin(X, noisy, able, frequencies) if whole or start is None else start
    model = work.rounds(X, likelihood, model, found)
    return replace(model, frequencies=frequencies, share=share, chose=start is not None and start.chose)


def em_refit(
    estimator: Estimator,
    X: object,
    noisy: NoisyLabels,
    model: Model,
    *,
    row_budget: int,
    random_state: np.random.RandomState,
    linear: bool = True,
) -> Model:
    """The model again, now from all rows: the same rounds after a linear round where all rows allow one, else one more round.

    Parameters
    ----------
    estimator : scikit-learn classifier or pipeline
    X : n rows of features
    noisy : NoisyLabels of n rows
    model : Model
        What `em_fit` made of most of these rows.
    row_budget, random_state, linear : as in `em_fit`
    """
    work = _Work(estimator, row_budget, random_state)
    likelihood = noisy.likelihood(dtype="float64")
    frequencies = likeliest_frequencies(likelihood)
    if not (linear and common_channel(noisy)):
        found = work.go_on(X, likelihood, model, model.rounds + 1)
        return replace(found, frequencies=frequencies, share=model.share)
    found = work.rounds(X, likelihood, work.begin(X, noisy, np.arange(len(noisy)), frequencies), model.rounds)
    return replace(found, frequencies=frequencies, share=model.share)


@dataclass(frozen=True, eq=False)
class _Work:
    """What every fit of the rounds shares."""

    estimator: Estimator
    row_budget: int
    random_state: np.random.RandomState

    def begin(self, X: object, noisy: NoisyLabels, able: Codes, frequencies: Floats) -> Model:
        """The linear round, of the rows that allow it."""
        model = linear_round(self.estimator, take(X, able), noisy[able], self.row_budget, self.random_state)
        assert model is not None
        return replace(model, frequencies=frequencies)

    def go_on(self, X: object, likelihood: NDArray[np.floating], model: Model | None, number: int) -> Model:
        """A round of expectation-maximisation."""
        belief = np.ones(likelihood.shape) if model is None else model.predict_proba(X)
        return m_step(self.estimator, X, posterior(belief, likelihood), number, self.row_budget, self.random_state)

    def rounds(self, X: object, likelihood: NDArray[np.floating], model: Model, count: int) -> Model:
        """So many of them, from a model on."""
        for number in range(1, count + 1):
            model = self.go_on(X, likelihood, model, number)
        return model


def common_channel(noisy: NoisyLabels) -> tuple[float, float] | None:
    """(own, other) if one invertible law covers all rows, each drawn once; else None."""
    if not len(noisy) or sum(len(block.rows) for block in noisy.blocks) != len(noisy):
        return None
    own, other = noisy.inclusion()
    if not (np.ptp(own) == 0 and np.ptp(other) == 0 and own[0] > other[0]):  # False for NaN
        return None
    return float(own[0]), float(other[0])


def linear_round(estimator: Estimator, X: object, noisy: NoisyLabels, row_budget: int, random_state: np.random.RandomState) -> Model | None:
    """One fit on outputs as they are; consistent, and the start of expectation-maximisation. None where no common channel exists.

    Each row is repeated once for each class in its output (equal weights, since all outputs have one size). The estimator then models
    P[class in output | x] / size, from which `Model.predict_proba` takes the law's affine map off.

    Parameters
    ----------
    estimator : scikit-learn classifier or pipeline
    X : n rows of features
    noisy : NoisyLabels of n rows
    row_budget : int
        Where more rows would result, each output is thinned to the same number of random members.
    random_state : numpy RandomState
    """
    channel = common_channel(noisy)
    if channel is None:
        return None
    rows, codes = _pairs(members(noisy), max(1, row_budget // len(noisy)), random_state)
    return Model(fit_codes(estimator, X, rows, codes), noisy.n_classes, channel)


def _pairs(inside: NDArray[np.bool_], most: int, random_state: np.random.RandomState) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(rows, codes) of all members, or of `most` random ones a row."""
    if int(inside.sum(axis=1).max(initial=0)) > most:
        order = np.argsort(np.where(inside, random_state.random_sample(inside.shape), 2.0), axis=1)[:, :most]
        thinned = np.zeros_like(inside)
        np.put_along_axis(thinned, order, True, axis=1)
        inside = inside & thinned
    rows, codes = np.nonzero(inside)
    return rows, codes


def _able(noisy: NoisyLabels) -> Codes:
    """The rows that one linear round can take: those of the channel that most rows have, each drawn once."""
    draws = np.bincount(np.concatenate([block.rows for block in noisy.blocks]), minlength=len(noisy)) if noisy.blocks else np.zeros(0)
    own, other = noisy.inclusion()
    able = np.flatnonzero((draws == 1) & (own > other))  # False for NaN
    if not len(able):
        return able
    _, place, count = np.unique(np.column_stack([own[able], other[able]]), axis=0, return_inverse=True, return_counts=True)
    return np.asarray(able[place.reshape(-1) == count.argmax()])


def _cross_fitted(
    work: _Work, X: object, noisy: NoisyLabels, likelihood: NDArray[np.floating], frequencies: Floats, able: Codes, least: int, most: int
) -> tuple[int, float]:
    """(rounds, share of the model beside the frequencies) by what each half of the rows says of models of the other half."""
    half = work.random_state.permutation(len(noisy)) % 2
    evidence = np.empty((most + 1, len(noisy)))
    for side in (0, 1):
        rows, others = np.flatnonzero(half != side), np.flatnonzero(half == side)
        known, left, told = take(X, rows), take(X, others), likelihood[rows]
        inside = np.flatnonzero(np.isin(rows, able))
        model = work.begin(known, noisy[rows], inside, frequencies) if len(inside) else None
        for number in range(most + 1):
            model = model if number == 0 and model is not None else work.go_on(known, told, model, number)
            evidence[number, others] = (model.predict_proba(left) * likelihood[others]).sum(axis=1)
    shares = np.linspace(0.0, 1.0, 41) ** 2  # a prior that favours small ones: few noisy rows can hardly tell a share from 0
    plain = likelihood @ frequencies
    score = np.array([[np.log(np.maximum(w * each + (1 - w) * plain, 1e-300)).sum() for w in shares] for each in evidence[least:]])
    belief = np.exp(score - score.max())
    found = int(belief.sum(axis=1).argmax())
    share = float(belief[found] @ shares / belief[found].sum())
    return least + found, 2 * share / (1 + share)  # signal / (signal + noise) of half of the rows; of all of them half the noise


def _by_held_out(
    work: _Work, X: object, likelihood: NDArray[np.floating], start: Model | None, held_out: tuple[object, NoisyLabels] | None, rounds: int
) -> Model:
    """Rounds from the start, each kept only if every other held-out row speaks for it; one round without such rows."""
    model = start
    choosing = None if held_out is None else (take(held_out[0], np.arange(0, len(held_out[1]), 2)), held_out[1][::2])
    most = rounds if choosing is not None else min(1, rounds)
    for number in range(1, max(most, 0 if model else 1) + 1):
        candidate = work.go_on(X, likelihood, model, number)
        if choosing is not None and model is not None and not _keeps(candidate, model, choosing, lenient=number == 1):
            break
        model = candidate
    assert model is not None
    return replace(model, chose=choosing is not None and most > 0)


def _keeps(candidate: Model, model: Model, choosing: tuple[object, NoisyLabels], *, lenient: bool) -> bool:
    """The rows that choose became likelier; or, leniently, not less likely by more than two standard errors.

    Few very noisy rows can hardly tell models apart: the doubt is in favour of the first round, which alone knows the rows' outputs; more
    must show that they help.
    """
    gain = candidate.log_evidence(*choosing) - model.log_evidence(*choosing)
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
    mass: Floats | None = None
    if weight_keyword(estimator) is None:
        rows, codes = _sampled(weights, max(1, min(DRAWS, row_budget // n)), random_state)
    elif (kept := _heaviest(weights)).sum() > row_budget:
        rows, codes = _sampled(weights, max(1, row_budget // n), random_state)
        mass = np.full(len(rows), n / len(rows))
    else:
        rows, codes = np.nonzero(kept)
        mass = weights[rows, codes] / np.where(kept, weights, 0.0).sum(axis=1)[rows]
    return Model(fit_codes(estimator, X, rows, codes, mass), k, rounds=number)


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
