# SPDX-License-Identifier: Apache-2.0
"""Learning numbers from noisy labels: a location model on the exact likelihood, around any
scikit-learn regressor.

    LocationLearner.fit(X, noisy) --> LocationModel.predict_distribution(X)

A row's number is a point v of the grid, and P[v >= point t | x] = Phi((f(x) - c_t) / scale): f(x),
the row's location, is the regressor's prediction, and the cuts c_t and the scale are common to all
rows. (So some increasing function of the number is normal around f(x): with cuts in the middles
between points the number itself, rounded and clamped.) The cuts are those for which the shares of
the points among all rows, as the model has them, are those that the released labels speak for:
skewed numbers, caps and round numbers that many rows have are where they are, and means are not
biased. The likelihood of what was released is L(x) = sum_v P[v | x] P[released | v], one number a
row, which any law gives.

It is maximised by Fisher scoring. With s and I the derivative of ln L and its expected square at
the row's present location m, the regressor is fitted by least squares to m + s / I with weights I:
for a leaf of a tree, a linear model and every other least-squares learner this is one Newton step.
A row whose question was far from m says little there, and weighs little.

Gradient boosting (scikit-learn's histogram boosting, LightGBM, XGBoost) takes such steps from tree
to tree, so that one boosting follows the likelihood. How many rounds it takes is chosen by the
likelihood of rows that a model has not seen.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import ndtr, ndtri, softmax
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state

from labeldp.evidence import NoisyLabels
from labeldp.evidence._noisy import CELLS
from labeldp.laws import PriorBins, PriorSplit, Threshold
from labeldp.laws._prior_bins import MOST_BINS
from labeldp.learn._boosting import (
    LEAST_GAINS,
    columns_told,
    library_of_squares,
    newton,
    noisy_settings,
    pieces_of,
    rounded_to_bins,
    rounds_of,
    settled,
)
from labeldp.learn._corrections import (
    LearnOptions,
    Transform,
    fit_last,
    fit_weighted,
    tell_of_fit,
    weight_keyword,
)
from labeldp.learn._data import Codes, Estimator, Floats, taking_inputs_of
from labeldp.protocol._matching import take
from labeldp.protocol.metrics import drawn_to_equal, points_of

FOLDS = 3  # parts of the rows, each of which gets its locations from models of the others
# scales by which a location may lie outside the range, where trees are boosted and scales chosen
BEYOND = 2.0
_SHARES = np.linspace(0.0, 1.0, 6)
_SCALES = 20  # to choose from, between half a step of the grid and the range
# standard deviation beforehand of the logarithm of the locations' deviation over that of all
# numbers
_KNOWN = 0.3
# log-likelihood by which a choice is so much worse than the best one that it does not matter
_UNLIKELY = 12.0
# probability of one place of the grid above which the likeliest point around it is taken instead of
# the mean
_SURE = 0.5
_PLACES = 200  # quantiles of the locations, for which cuts are found
_CUTS = 256  # of which cuts are interpolated
_FAR = 5.0  # scales from the outermost locations to the outermost cuts
_RARE = 1e-4  # least share of rows beyond a cut
# the same of predictions and fits in rounds, so that an end of the range can be nearly certain
_SURELY = -float(ndtri(_RARE))
_MOST_CELLS = 128  # of which the shares are found
_STRENGTHS = np.geomspace(1e8, 1e-2, 21)  # precisions of a second difference of ln share
_STEEPS = 0.1, 0.3, 1.0, 3.0, 10.0  # standard deviations of ln share beforehand
_STEPS = 50  # of Newton's method
_STILL = 1e-3  # gain in log-likelihood up to which it ends
# answers whose likelihood compares shares and scales: enough to tell them apart, and little beside
# the fits
_COMPARED = 1 << 15
_WRONG = 1e-12  # least likelihood of a number, over that of the likeliest
_BINS = 64  # of locations that are compared as one
_OUTPUTS = 2048  # of a law from which the expected information is computed
_FIRST = 4  # rounds of the first piece of boosting
_GROWTH = 0.5  # length of a piece of boosting, over that of all before it
_NOTHING = 1e-12  # of the largest weight, up to which a row counts as none
# true numbers that tell as much as all rows, from which on both small trees and the library's own
# are tried
_ENOUGH = 10_000.0
PATIENCE = 20  # rounds without a better likelihood of unseen rows, after which boosting ends
# pieces without one: a long piece may be worse by chance, and the next one better
PATIENT_PIECES = 2
_KNOTS = 33  # locations at which it is
# information of a row, as a share of the mean: what says less weighs as if it said this
_LEAST = 1e-3
_SMALLEST = 1e-300


@dataclass(frozen=True)
class Family:
    """The distributions on a grid: a normal variable of this scale, cut into the grid's points.

    Attributes
    ----------
    points : (G,) float64, increasing
    scale : float > 0
    cuts : (G - 1,) float64, not decreasing
        Where the points begin, from the second one on.
    """

    points: Floats
    scale: float
    cuts: Floats

    def clipped(self, locations: Floats, beyond: float = BEYOND) -> Floats:
        """Move locations that are far outside the range to where nearly all mass is at its end, so
        many scales away."""
        return np.asarray(np.clip(locations, *self.ends(beyond)))

    def ends(self, beyond: float = BEYOND) -> tuple[float, float]:
        """Give the least and the largest location, so many scales outside the range."""
        return float(self.cuts[0] - beyond * self.scale), float(self.cuts[-1] + beyond * self.scale)

    def reaching(self, locations: Floats) -> Floats:
        """Compute P[at least point 1], ..., P[at least point G - 1] for each location: (n, G -
        1)."""
        return np.asarray(ndtr((locations[:, None] - self.cuts) / self.scale))

    def probabilities(self, locations: Floats) -> Floats:
        """Compute P[point]: (n, G), rows sum to 1."""
        reaching = np.pad(
            self.reaching(locations), ((0, 0), (1, 1)), constant_values=((0, 0), (1, 0))
        )
        return np.asarray(reaching[:, :-1] - reaching[:, 1:])

    def mean(self, locations: Floats) -> Floats:
        """Compute the mean of the points: (n,)."""
        parts = [
            self.points[0] + self.reaching(part) @ np.diff(self.points)
            for part in _chunks(locations, len(self.points))
        ]
        return np.concatenate(parts) if parts else np.empty(0)

    def quantile(self, locations: Floats, q: Floats) -> Floats:
        """Compute quantiles before rounding, within the range; of two points one of them: (n, m)
        for m shares."""
        found = locations[:, None] + self.scale * ndtri(q)
        if len(self.points) == 2:  # one cut says nothing of how fast the number grows
            return np.asarray(self.points[(found > self.cuts).astype(np.intp)])
        # between two cuts the number grows evenly, and beyond them as fast as over all of them
        middles = (self.points[1:] + self.points[:-1]) / 2
        slope = np.ptp(middles) / max(float(np.ptp(self.cuts)), _SMALLEST)
        beyond = found - np.clip(found, self.cuts[0], self.cuts[-1])
        found = np.interp(found, self.cuts, middles) + slope * beyond
        return np.asarray(np.clip(found, self.points[0], self.points[-1]))

    def evidence(self, locations: Floats, answers: "Answers") -> tuple[Floats, Floats]:
        """Compute L and its derivative by the location, for these rows: (n,) each."""
        z = (locations - self.cuts[answers.place]) / self.scale
        slope = (answers.step * np.exp(-0.5 * z * z)).sum(axis=0) / (
            self.scale * np.sqrt(2 * np.pi)
        )
        return self._value(z, answers), slope

    def _value(self, z: Floats, answers: "Answers") -> Floats:
        return np.asarray(
            np.maximum(answers.first + (answers.step * ndtr(z)).sum(axis=0), _SMALLEST)
        )

    def log_likelihood(self, locations: Floats, answers: "Answers") -> Floats:
        """Compute ln L of each row: (n,)."""
        return np.asarray(
            np.log(self._value((locations - self.cuts[answers.place]) / self.scale, answers))
        )


@dataclass(frozen=True, eq=False)
class Answers:
    """Likelihoods of n rows as functions of the number: steps at few places, since most laws tell
    only where a number is not.

    Attributes
    ----------
    first : (n,) float64
        At the lowest point.
    place : (J, n) int
        The likelihood at point place + 1 differs from that at point `place`.
    step : (J, n) float64
        By so much; 0 where a row has fewer than J steps.
    """

    first: Floats
    place: Codes
    step: Floats

    @classmethod
    def of(cls, likelihood: NDArray[np.floating]) -> "Answers":
        """Make them from a table (n, G). O(n G)."""
        n, width = likelihood.shape
        most = max(
            (
                int((part[:, 1:] != part[:, :-1]).sum(axis=1).max())
                for part in _chunks(likelihood, width)
            ),
            default=0,
        )
        place, step = np.zeros((max(1, most), n), np.intp), np.zeros((max(1, most), n))
        for rows in _chunks(np.arange(n), width):
            steps = np.diff(likelihood[rows].astype(np.float64), axis=1)
            places = np.argsort(steps == 0, axis=1, kind="stable")[:, : len(place)]
            place[:, rows], step[:, rows] = places.T, np.take_along_axis(steps, places, axis=1).T
        return cls(likelihood[:, 0].astype(np.float64), place, step)

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, rows: Any) -> "Answers":
        return Answers(self.first[rows], self.place[:, rows], self.step[:, rows])

    def different(self) -> tuple[Codes, Codes]:
        """Return a row of each answer that occurs, and which of them each row has: (n,)."""
        # Equal rows have equal sums of irregular multiples; sorting these takes a small part of the
        # time of sorting rows.
        factors = np.random.RandomState(0).uniform(1, 2, (len(self.place), 2))
        mixed = self.first.copy()
        for place, step, (by, times) in zip(self.place, self.step, factors, strict=True):
            mixed += by * place + times * step
        _, rows, kind = np.unique(mixed, return_index=True, return_inverse=True)
        return rows, kind


@dataclass(frozen=True, eq=False)
class Partitions:
    """Bins between which n rows were asked to choose, of `PriorBins`.

    Attributes
    ----------
    place : (J, n) int
        The second bin begins at point place[0] + 1, and so on; beyond the last bin -1.
    own, other : (n,) float64
        Probabilities of a row's own bin and of each other one; 0 of rows that were asked otherwise.
    """

    place: Codes
    own: Floats
    other: Floats

    @classmethod
    def of(cls, noisy: NoisyLabels) -> "Partitions":
        """Read the bins of rows with one draw."""
        n = len(noisy)
        draws = np.bincount(np.concatenate([block.rows for block in noisy.blocks]), minlength=n)
        found = cls(np.full((MOST_BINS - 1, n), -1), np.zeros(n), np.zeros(n))
        for block in noisy.blocks:
            if isinstance(law := block.law, PriorBins):
                once = np.flatnonzero(draws[block.rows] == 1)
                rows, side = block.rows[once], {"starts": block.side["starts"][once]}
                bins = law.bins(side)
                row, place = np.nonzero(np.diff(bins, axis=1))
                found.place[bins[row, place], rows[row]] = place
                found.own[rows], found.other[rows] = law.chances(side)
        return found

    def __getitem__(self, rows: Any) -> "Partitions":
        return Partitions(self.place[:, rows], self.own[rows], self.other[rows])

    def information(self, family: "Family", locations: Floats) -> Floats:
        """Compute the expected square of the score of each row: (n,) float64."""
        z = (locations - family.cuts[self.place]) / family.scale
        used = self.place >= 0
        reaching, slope = (
            np.where(used, ndtr(z), 0.0),
            np.where(used, np.exp(-0.5 * z * z), 0.0) / (family.scale * np.sqrt(2 * np.pi)),
        )
        inside = -np.diff(reaching, axis=0, prepend=1.0, append=0.0)
        gap = self.own - self.other
        chance = self.other + gap * inside
        return np.asarray(
            (
                (gap * np.diff(slope, axis=0, prepend=0.0, append=0.0)) ** 2
                / np.maximum(chance, _SMALLEST)
            ).sum(axis=0)
        )


def _chunks(rows: NDArray[Any], width: int) -> Iterator[NDArray[Any]]:
    step = max(1, CELLS // width)
    return (rows[first : first + step] for first in range(0, len(rows), step))


@dataclass(frozen=True, eq=False)
class LocationModel:
    """A fitted regressor as a model of the true number.

    Attributes
    ----------
    estimator : fitted regressor
        Predicts locations, before they are drawn to the centre.
    family : Family
    centre : float
        The location that fits all rows best.
    share : float in [0, 1]
        How much of the estimator's deviation from the centre is taken.
    chose : bool
        False: no held-out row has chosen anything.
    path : tuple of Family
        The families under which each piece of boosting was learned; None for other estimators.
    folds : LocationBoosting
        The mean of the boostings that have chosen the path, without one on all rows; None for other
        estimators.
    settings : dict
        Of the regressor of each piece, where noise changes them.
    """

    estimator: Estimator
    family: Family
    centre: float
    share: float = 1.0
    chose: bool = False
    path: tuple[Family, ...] | None = None
    folds: "LocationBoosting | None" = None
    settings: dict[str, Any] = field(default_factory=dict)

    def locations(self, X: object) -> Floats:
        """Predict locations: (n,) float64."""
        found = np.asarray(self.estimator.predict(X), np.float64).reshape(-1)
        return self.family.clipped(self.centre + self.share * (found - self.centre), _SURELY)

    def predict(self, X: object) -> Floats:
        """Predict means: (n,) float64."""
        return self.family.mean(self.locations(X))

    def predict_proba(self, X: object) -> Floats:
        """Predict probabilities of the grid's points: (n, G), rows sum to 1."""
        return self.family.probabilities(self.locations(X))


@dataclass(frozen=True, eq=False)
class LocationLearner:
    """Fisher scoring with cross-fitted locations.

    Attributes
    ----------
    estimator : scikit-learn regressor or pipeline, fitted by least squares
    options : LearnOptions
        `em_rounds` + 1 is the number of rounds.
    random_state : numpy RandomState
    whole : bool
        Whether the model of boosting has one boosting on all rows in its mean. False by default,
        since `refit` adds it; a model that is the prior of a later stage, or is not refitted,
        should have it.

    Notes
    -----
    A model that has seen a row's output follows its noise; a Newton step from there would follow it
    twice. So in each round every row's location comes from a model of the other folds. The same
    predictions choose the scale, and how far to go from the centre to what the model says (both as
    posterior means on a grid). Beforehand all shares are alike, and locations vary about as much as
    the numbers, which keeps wild predictions off where labels tell next to nothing. The share is 0
    unless the likelihood is better than the constant's by more than a standard error. Cost: FOLDS
    (1 + em_rounds) fits on 1 - 1/FOLDS of the rows, and one on all: with the defaults 7 times a
    plain fit. O(n G) besides. Gradient boosting: FOLDS boostings on 1 - 1/FOLDS of the rows, in a
    dozen pieces, up to the round after which rows that a model has not seen are less likely; the
    mean of them is the model, and of the refit the mean with one boosting on all rows.

    References
    ----------
    Fisher scoring as iterated least squares: Green (1984), "Iteratively reweighted least squares
    for maximum likelihood estimation". Tobin (1958) for clamped numbers. Cross-fitting:
    Chernozhukov et al. (2018), "Double/debiased machine learning".
    """

    estimator: Estimator
    options: LearnOptions
    random_state: np.random.RandomState
    whole: bool = False

    def fit(
        self,
        X: object,
        noisy: NoisyLabels,
        start: LocationModel | None,
        held_out: object,
        sample_weight: Floats | None = None,
    ) -> LocationModel:
        """Learn from n rows; the model of an earlier stage has seen some of them, so it is no
        start."""
        X, noisy, counts = counted(X, noisy, sample_weight)
        rows = _Rows(noisy, self.random_state, weight_keyword(self.estimator) is not None, counts)
        if (regressor := boosted(self.estimator)) is not None:
            boosting = _Boosting(self.estimator, regressor, rows, self.random_state)
            return boosting.whole(X, boosting.fit(X)) if self.whole else boosting.fit(X)
        family, centre = rows.constant()
        folds = _folds(len(noisy), self.random_state)
        locations, share = np.full(len(noisy), centre), 1.0
        for _ in range(self.options.em_rounds + 1):
            working = rows.working(family, locations)
            found = np.empty(len(noisy))
            for inside, outside in folds:
                model = self._fitted(X, *working, inside)
                found[outside] = np.asarray(model.predict(take(X, outside)), np.float64).reshape(-1)
            family, share = rows.doubted(*rows.chosen(centre, found))
            locations = family.clipped(centre + share * (found - centre), _SURELY)
        last = self._fitted(X, *rows.working(family, locations), np.arange(len(noisy)))
        return LocationModel(last, family, centre, _share_of_all(share))

    def refit(
        self,
        X: object,
        noisy: NoisyLabels,
        model: LocationModel,
        sample_weight: Floats | None = None,
    ) -> LocationModel:
        """Learn again from all rows: the model's own locations have followed the noise of those
        that it has learned from."""
        regressor = boosted(self.estimator)
        if regressor is None:
            return self.fit(X, noisy, None, None, sample_weight)
        X, noisy, counts = counted(X, noisy, sample_weight)
        return _Boosting(
            self.estimator,
            regressor,
            _Rows(noisy, self.random_state, True, counts),
            self.random_state,
        ).whole(X, model)

    def _fitted(self, X: object, targets: Floats, weights: Floats, rows: Codes) -> Estimator:
        return fit_weighted(clone(self.estimator), take(X, rows), targets[rows], weights[rows])


def counted(
    X: object, noisy: NoisyLabels, sample_weight: Floats | None
) -> tuple[object, NoisyLabels, Floats | None]:
    """Drop rows that count as none, so that no weight is 0."""
    if sample_weight is None:
        return X, noisy, None
    rows = np.flatnonzero(sample_weight > _NOTHING * sample_weight.max())
    return take(X, rows), noisy[rows], sample_weight[rows]


def _folds(n: int, random_state: np.random.RandomState) -> list[tuple[Codes, Codes]]:
    """Divide n rows into folds at random: the rows outside each fold, which learn, and those
    inside. A single row is both."""
    fold = random_state.permutation(n) % min(FOLDS, n)
    inside = [np.flatnonzero(fold == number) for number in range(min(FOLDS, n))]
    return [(np.setdiff1d(np.arange(n), rows) if n > 1 else rows, rows) for rows in inside]


def _share_of_all(share: float) -> float:
    """Compute the share of a model of all rows: a fold's learned from fewer, whose noise is so much
    larger beside the same signal."""
    return share / (share + (1 - share) * (1 - 1 / FOLDS)) if share > 0 else 0.0


class LocationBoosting(RegressorMixin, BaseEstimator):
    """Gradient boosting of locations: the mean of several boostings, each a sum of pieces.

    Parameters
    ----------
    estimator : HistGradientBoostingRegressor, lightgbm.LGBMRegressor or xgboost.XGBRegressor,
    default=None
        Of squared errors. None: scikit-learn's.
    categorical : sequence of int, default=None
        Columns of category codes, for LightGBM, whose regressor takes them in `fit`. The others
        take them as settings.

    Attributes
    ----------
    start_ : float
        Location before the first piece.
    pieces_ : list of fitted regressors
        Of all boostings; empty if rows that no model had seen spoke against the first one.
    weights_ : list of float
        Of each piece in the mean.
    share_ : float
        How much of the mean is taken.
    n_iter_ : int
        Rounds of one boosting.
    """

    def __init__(self, estimator: Any = None, categorical: Sequence[int] | None = None) -> None:
        self.estimator = estimator
        self.categorical = categorical

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "LocationBoosting":
        """Fit on known numbers, in one piece with the regressor's settings.

        Parameters
        ----------
        X : n rows of features
        y : (n,) float
        sample_weight : (n,) float, optional
        """
        regressor = (
            HistGradientBoostingRegressor() if self.estimator is None else clone(self.estimator)
        )
        regressor.fit(X, y, sample_weight=sample_weight, **columns_told(self.categorical))
        return self._keep(
            0.0,
            [[regressor]],
            1.0,
            int(getattr(regressor, "n_iter_", None) or regressor.get_num_boosting_rounds()),
        )

    def _keep(
        self, start: float, boostings: list[list[Any]], share: float, rounds: int
    ) -> "LocationBoosting":
        self.start_, self.share_, self.n_iter_ = start, share, rounds
        self.pieces_ = [piece for pieces in boostings for piece in pieces]
        self.weights_ = [1 / len(boostings)] * len(self.pieces_)
        return self

    def _with(self, start: float, pieces: list[Any]) -> "LocationBoosting":
        """Take the mean with another boosting of as many rounds."""
        found = LocationBoosting()._keep(
            (self.start_ + start) / 2, [pieces], self.share_, self.n_iter_
        )
        found.weights_ = [each / 2 for each in (*self.weights_, *found.weights_)]
        found.pieces_ = [*self.pieces_, *pieces]
        return found

    def predict(self, X: Any) -> Floats:
        """Predict locations: (n,) float64."""
        found = np.full(X.shape[0], self.start_)
        for piece, weight in zip(self.pieces_, self.weights_, strict=True):
            found += self.share_ * weight * piece.predict(X)
        return found

    def __sklearn_tags__(self) -> Any:
        inner = HistGradientBoostingRegressor() if self.estimator is None else self.estimator
        return taking_inputs_of(inner, super().__sklearn_tags__())


def boosted(estimator: Estimator) -> "_Regressor | None":
    """Return the regressor to boost that an estimator is, or that a pipeline ends in; None for all
    others."""
    last = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator
    inner, categorical = (
        (last.estimator, last.categorical) if isinstance(last, LocationBoosting) else (last, None)
    )
    library = library_of_squares(inner)
    return None if library is None else _Regressor(inner, library, categorical)


@dataclass(frozen=True, eq=False)
class _Regressor:
    """A library's regressor that adds some rounds to locations, with the settings of its pieces
    where noise changes the user's."""

    user: Any
    library: str
    categorical: Sequence[int] | None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def sizes(self) -> Iterator[int]:
        """Rounds of each piece, up to those that the user allows."""
        return pieces_of(rounds_of(self.user, self.library), _GROWTH, _FIRST)

    def binned(self, X: Any) -> Any:
        """Features as the library reads them fast."""
        return rounded_to_bins(X, self.user.max_bins) if self.library == "sklearn.ensemble" else X

    def piece(
        self,
        X: Any,
        gradient: Floats,
        curvature: Floats,
        size: int,
        generator: np.random.RandomState,
    ) -> Estimator:
        """Fit so many rounds of Newton's steps."""
        regressor = settled(self.user, self.library, self.settings, size)
        return newton(regressor, X, gradient, curvature, generator, self.categorical)


@dataclass(frozen=True, eq=False)
class _Boosting:
    """Boosting of locations in pieces of some rounds; before each one targets and weights are
    computed again."""

    estimator: Estimator
    regressor: _Regressor
    rows: "_Rows"
    random_state: np.random.RandomState

    def fit(self, X: object) -> LocationModel:
        """Boost on the rows outside each fold, with the rounds, scale and share that those inside
        choose; the mean is the model."""
        found: list[LocationModel] = []

        def learn(last: Estimator, features: Any, through: Transform) -> Estimator:
            family, centre = self.rows.constant()
            binned = self.regressor.binned(features)
            chosen = replace(self.regressor, settings=self._settings(binned, family, centre))
            boostings, model, _ = self._path(chosen, binned, family, centre, self._folds())
            rounds = sum(islice(chosen.sizes, len(model.path or ())))
            mean = LocationBoosting()._keep(centre, boostings, _share_of_all(model.share), rounds)
            found.append(replace(model, folds=mean, settings=chosen.settings))
            return mean

        fitted = fit_last(self.estimator, X, learn)
        return replace(found[0], estimator=fitted, share=1.0)

    def whole(self, X: Any, model: LocationModel) -> LocationModel:
        """Boost on all rows along the path that was chosen, and take the mean with the model: each
        has followed noise of its own."""
        steps = model.estimator.steps if isinstance(self.estimator, Pipeline) else []
        # Transformed by the steps that are fitted, so that both read the same features.
        features = Pipeline(steps[:-1]).transform(X) if steps[:-1] else X
        centre = self.rows.constant()[1]
        regressor = replace(self.regressor, settings=model.settings)
        pieces = self._pieces(regressor, regressor.binned(features), model.path or (), centre)
        assert model.folds is not None
        joined = model.folds._with(centre, pieces)
        tell_of_fit()
        fitted = Pipeline([*steps[:-1], (steps[-1][0], joined)]) if steps else joined
        return replace(model, estimator=fitted, centre=joined.start_)

    def _settings(self, X: Any, family: Family, centre: float) -> dict[str, Any]:
        """Choose what holds noise off, where the user has not set it.

        Small trees are best for few rows, and for many where the number is a sum of simple parts.
        So where the rows tell as much as `_ENOUGH` true numbers, small trees and the library's own
        are both boosted, and the likelihood of a third of the rows decides.
        """
        told = float(self.rows.working(family, np.full(len(self.rows.answers), centre))[1].sum())
        regressor = self.regressor
        settings = noisy_settings(
            regressor.user, regressor.library, np.shape(X)[1], min(1.0, told / self.rows.total)
        )
        # Gains are in squares of the number's unit and shrink from tree to tree: a least one would
        # stop trees that unseen rows speak for.
        settings = {name: value for name, value in settings.items() if name not in LEAST_GAINS}
        if not settings or told < _ENOUGH:
            return settings
        folds = self._folds()[:1]
        small, own = (
            self._path(replace(regressor, settings=each), X, family, centre, folds)[2]
            for each in (settings, {})
        )
        return {} if self.rows.part(folds[0][1]).gain(own, small)[0] > 0 else settings

    def _folds(self) -> list[tuple[Codes, Codes]]:
        return _folds(len(self.rows.answers), self.random_state)

    def _path(
        self,
        regressor: _Regressor,
        X: Any,
        family: Family,
        centre: float,
        folds: list[tuple[Codes, Codes]],
    ) -> tuple[list[list[Estimator]], LocationModel, Floats]:
        """Boost on the rows outside each of these folds; the likelihood of those inside chooses the
        family of each piece, and their number.

        Returns
        -------
        pieces by fold, the model without an estimator, and the log-likelihood of each row inside
        """
        n, inside = len(self.rows.answers), np.sort(np.concatenate([others for _, others in folds]))
        judges = self.rows.part(inside)
        found, unseen = np.full((len(folds), n), centre), np.full(n, centre)
        generators = [
            check_random_state(self.random_state.randint(np.iinfo(np.int32).max)) for _ in folds
        ]
        families, pieces = [family], [list[Estimator]() for _ in folds]
        best, kept, done, last = judges.chosen(centre, unseen[inside]), 0, 0, 0
        for size in regressor.sizes:
            for own, (learned, others), generator, made in zip(
                found, folds, generators, pieces, strict=True
            ):
                if made:  # not before, since the last piece needs none
                    own[learned] += made[-1].predict(take(X, learned))
                made.append(self._piece(regressor, X, families[-1], own, learned, size, generator))
                own[others] += made[-1].predict(take(X, others))
                unseen[others] = own[others]
            judged = judges.chosen(centre, unseen[inside])
            families.append(judged[0])
            done += size
            made_so_far = len(families) - 1
            if judges.gain(judged[2], best[2])[0] > 0:
                best, kept, last = judged, made_so_far, done
            elif done - last >= PATIENCE and made_so_far - kept >= PATIENT_PIECES:
                break
        family, share = judges.doubted(*best)
        kept = kept if share > 0 else 0
        return (
            [made[:kept] for made in pieces],
            LocationModel(None, family, centre, share, path=tuple(families[:kept])),
            best[2],
        )

    def _pieces(
        self, regressor: _Regressor, X: Any, path: Iterable[Family], centre: float
    ) -> list[Estimator]:
        """Boost on all rows, one piece for each family."""
        rows = np.arange(len(self.rows.answers))
        pieces: list[Estimator] = []
        found, generator = (
            np.full(len(rows), centre),
            check_random_state(regressor.user.random_state),
        )
        for family, size in zip(path, regressor.sizes, strict=False):
            if pieces:
                found += pieces[-1].predict(X)
            pieces.append(self._piece(regressor, X, family, found, rows, size, generator))
        return pieces

    def _piece(
        self,
        regressor: _Regressor,
        X: Any,
        family: Family,
        found: Floats,
        learned: Codes,
        size: int,
        generator: np.random.RandomState,
    ) -> Estimator:
        """Add some rounds to the locations of all rows, learned from a part of them."""
        np.clip(found, *family.ends(), out=found)
        targets, weights = self.rows.working(family, found[learned], learned)
        piece = regressor.piece(
            take(X, learned), weights * (found[learned] - targets), weights, size, generator
        )
        tell_of_fit()
        return piece


def smooth_frequencies(likelihood: NDArray[np.floating], counts: Floats | None = None) -> Floats:
    """Estimate the points' shares, (G,): as smooth ones as the labels do not speak against.

    Parameters
    ----------
    likelihood : (n, G)
    counts : (n,) array > 0, optional
        How often each row counts.

    Notes
    -----
    Likeliest shares of many points are spikes. Beforehand the logarithms of the shares are a
    parabola, as of a normal distribution, and a rough part: their second differences vary
    independently around their mean. How much each part varies is not known. For each of some
    variances Newton's method finds the shares of largest posterior; the result is the mean of
    these, each weighed by the likelihood of its variances (Laplace's approximation), drawn to even
    shares as `labeldp.metrics.likeliest_frequencies` draws. So what is hardly told is even, and
    what is told is as rough as the labels say. (Smoothing in each step of expectation-maximisation
    makes numbers vary too much where noise is large.) Of more than `_MOST_CELLS` points neighbours
    have equal shares; of very many rows some are taken. O(m G^2) for m rows, a hundred times.

    References
    ----------
    Efron (2016), "Empirical Bayes deconvolution estimates". Silverman (1982), "On the estimation of
    a probability density function by the maximum penalized likelihood method": the limit of strong
    smoothing.
    """
    some = slice(None, None, max(1, likelihood.size >> 20))
    table = likelihood[some].astype(np.float64)
    given = np.ones(len(table)) if counts is None else counts[some]
    cells = np.arange(table.shape[1]) * min(table.shape[1], _MOST_CELLS) // table.shape[1]
    size = np.bincount(cells)
    shares = _smoothest(
        np.add.reduceat(table, np.flatnonzero(np.diff(cells, prepend=-1)), axis=1) / size,
        given,
        size,
    )
    return np.asarray((shares / size)[cells])


def _smoothest(table: Floats, counts: Floats, size: Codes) -> Floats:
    """Find the shares of cells, (G,), from likelihoods (m, G) of rows and how often each counts; a
    cell has `size` points."""
    width = table.shape[1]
    rough = np.diff(np.eye(width), 2, axis=0)
    rough -= rough.sum(axis=0) / max(1, len(rough))
    rough, log_size = rough.T @ rough, np.log(size)
    # rows from which second derivatives are computed
    some = slice(None, None, max(1, table.size >> 18))
    often = counts[some] * (counts.sum() / counts[some].sum())

    def at(logarithms: Floats, precision: Floats) -> tuple[float, Floats, Floats]:
        shares = softmax(logarithms + log_size)
        value = np.maximum(table @ shares, _SMALLEST)
        return (
            float(counts @ np.log(value) - logarithms @ precision @ logarithms / 2),
            shares,
            value,
        )

    # evidence, parameters that the labels tell, shares
    found: list[tuple[float, float, Floats]] = []
    for steep in _STEEPS:
        logarithms, first = np.zeros(width), len(found)
        for strength in _STRENGTHS:  # from the smoothest shares on, each from the last
            precision = strength * rough + np.eye(width) / (steep**2 * width)
            best, shares, value = at(logarithms, precision)
            for _ in range(_STEPS):
                score = table[some] * shares / value[some, None] - shares
                information = (score * often[:, None]).T @ score + precision
                slope = shares * (counts / value @ table - counts.sum()) - precision @ logarithms
                step = np.linalg.solve(information, slope)
                last = best
                while (tried := at(logarithms + step, precision))[0] < last and np.abs(
                    step
                ).max() > _STILL:
                    step /= 2
                logarithms, (best, shares, value) = logarithms + step, tried
                if best - last < _STILL:
                    break
            volume = np.linalg.slogdet(precision)[1] - np.linalg.slogdet(information)[1]
            free = max(0.0, width - float(np.trace(np.linalg.solve(information, precision))))
            found.append((best + volume / 2, free, shares))
            if found[-1][0] < max(evidence for evidence, *_ in found[first:]) - _UNLIKELY:
                break
    belief = softmax(np.array([evidence for evidence, *_ in found]))
    shares, even = belief @ np.array([shares for *_, shares in found]), size / size.sum()
    gain = float(
        counts @ np.log(np.maximum(table @ shares, _SMALLEST) / np.maximum(table @ even, _SMALLEST))
    )
    density = drawn_to_equal(
        shares / size, 2 * gain, free=float(belief @ [free for _, free, _ in found])
    )
    return np.asarray(density * size / (density @ size))


def _quantiles(values: Floats, shares: Floats, counts: Floats | None) -> Floats:
    return np.asarray(np.quantile(values, shares, weights=counts, method="inverted_cdf"))


def _belief(
    scored: Callable[[tuple[int, int]], float], shape: tuple[int, int], start: tuple[int, int]
) -> Floats:
    """Compute the posterior on a grid, uniform beforehand, around the likeliest place: what is too
    unlikely to matter is not computed."""
    score = np.full(shape, -np.inf)
    score[start] = best = scored(start)
    around = [(-best, start)]
    while around and -around[0][0] > best - _UNLIKELY:  # uphill first
        _, (row, column) = heappop(around)
        for place in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if 0 <= place[0] < shape[0] and 0 <= place[1] < shape[1] and score[place] == -np.inf:
                score[place] = scored(place)
                best = max(best, score[place])
                heappush(around, (-score[place], place))
    belief = np.exp(score - best)
    return np.asarray(belief / belief.sum())


class _Rows:
    """What was released of n rows, and what their laws can tell of a location. A row counts as
    often as `counts` says, None: once."""

    def __init__(
        self,
        noisy: NoisyLabels,
        random_state: np.random.RandomState,
        weighted: bool,
        counts: Floats | None = None,
    ) -> None:
        self.counts, self.total = counts, float(len(noisy) if counts is None else counts.sum())
        self.points = points_of(noisy.classes)
        likelihood = noisy.likelihood()
        # Sums of normal probabilities are exact to 1e-16 only: a label that is right beyond that
        # would weigh what is left of them.
        likelihood = np.maximum(likelihood, _WRONG * likelihood.max(axis=1, keepdims=True))
        self.answers = Answers.of(likelihood)
        # A bit has one other answer, and the probabilities of both sum to 1 for every label.
        self.both = 1.0 + likelihood.min(axis=1).astype(np.float64)
        self.random_state, self.weighted = random_state, weighted
        draws = np.bincount(
            np.concatenate([block.rows for block in noisy.blocks]), minlength=len(noisy)
        )
        bits = [
            block.rows for block in noisy.blocks if isinstance(block.law, PriorSplit | Threshold)
        ]
        self.one_bit = np.zeros(len(noisy), bool)
        self.one_bit[np.concatenate([*bits, np.empty(0, np.int64)])] = True
        self.one_bit &= draws == 1
        self.partitions = Partitions.of(noisy)
        others = np.flatnonzero(~self.one_bit & (self.partitions.own == 0))
        some = self.answers[random_state.permutation(others)[:_OUTPUTS]]
        rows, kind = some.different()
        self.outputs, self.often = some[rows], np.bincount(kind) / max(1, len(kind))
        rows, self.kind = self.answers.different()
        self.different = self.answers[rows]
        # Questions that a model has chosen are no fair sample: who is asked about a high threshold
        # has a high number.
        fair = np.concatenate(
            [block.rows for block in noisy.blocks if not block.law.uses_prior]
            or [np.arange(len(noisy))]
        )
        often = np.bincount(
            self.kind[fair], None if counts is None else counts[fair], len(rows)
        ).astype(np.float64)
        # in no order, since of very many some are taken
        held = random_state.permutation(np.flatnonzero(often))
        shares = smooth_frequencies(likelihood[rows[held]], often[held])
        self.likeliest = len(_SHARES) - 1, _SCALES // 2  # of the shares and scales, so far
        self.reaching = np.clip(1 - np.cumsum(shares)[:-1], _RARE, 1 - _RARE)

    def constant(self) -> tuple[Family, float]:
        """Give the family with all rows at one location, their mean, whose scale is their
        deviation."""
        frequencies = -np.diff(self.reaching, prepend=1.0, append=0.0)
        mean = float(frequencies @ self.points)
        step = float(np.diff(self.points).min())
        deviation = max(float(np.sqrt(frequencies @ (self.points - mean) ** 2)), step / 2)
        return self._calibrated(deviation, np.full(1, mean)), mean

    def _calibrated(self, scale: float, places: Floats) -> Family:
        """Find the cuts with which rows at these places have the points' shares."""
        low, high = float(places.min() - _FAR * scale), float(places.max() + _FAR * scale)
        cuts = np.linspace(low, high, _CUTS)
        share = ndtr((places[:, None] - cuts) / scale).mean(axis=0)
        return Family(self.points, scale, np.interp(-self.reaching, -share, cuts))

    def chosen(self, centre: float, found: Floats) -> tuple[Family, float, Floats]:
        """Choose the scale, and the share of the deviations from the centre, by rows that the
        locations `found` have not seen.

        Returns
        -------
        family, share, and the log-likelihood of each row with them, (n,)
        """
        away, answers, counts = self._together(found - centre)
        # Locations, scale and cuts could grow together, so the scale is chosen with the cuts that
        # make the number of all rows normal.
        anchor = self.constant()[0]
        # From half a step of the grid up to the range.
        step, reach = float(np.diff(self.points).min()), float(self.points[-1] - self.points[0])
        scales = np.geomspace(min(step / 2, reach / 4), reach, _SCALES)
        # Relative to the deviation of all rows, than which no row's is larger.
        log_scales = np.log(np.unique(np.minimum(scales / anchor.scale, 1.0)))
        spread = float(np.average(away**2, weights=counts))

        def at(share: float, log_scale: float) -> float:
            family = replace(anchor, scale=anchor.scale * float(np.exp(log_scale)))
            prior = (
                -0.5
                * (np.log((share**2 * spread + family.scale**2) / anchor.scale**2) / 2 / _KNOWN)
                ** 2
            )
            return float(
                family.log_likelihood(family.clipped(centre + share * away), answers) @ counts
                + prior
            )

        def scored(place: tuple[int, int]) -> float:
            return at(float(_SHARES[place[0]]), float(log_scales[place[1]]))

        start = self.likeliest[0], min(self.likeliest[1], len(log_scales) - 1)
        belief = _belief(scored, (len(_SHARES), len(log_scales)), start)
        self.likeliest = divmod(int(belief.argmax()), len(log_scales))
        chosen = np.array([belief.sum(axis=1) @ _SHARES, belief.sum(axis=0) @ log_scales])
        if belief.max() > _SURE:  # the grid is coarse beside what many rows tell
            low, high, step = (
                np.array([0.0, log_scales[0]]),
                np.array([1.0, log_scales[-1]]),
                _SHARES[1] / 2,
            )
            corners = chosen + np.vstack(
                [np.zeros(2), np.diag(np.where(chosen - low > step, -step, step))]
            )
            options = {"initial_simplex": corners, "maxfev": 40, "xatol": 0.01, "fatol": 0.5}
            likeliest = minimize(
                lambda x: -at(*np.clip(x, low, high)), chosen, method="Nelder-Mead", options=options
            )
            chosen = np.clip(likeliest.x, low, high)
        share, log_scale = map(float, chosen)
        away = _quantiles(found - centre, (np.arange(_PLACES) + 0.5) / _PLACES, self.counts)
        family = self._calibrated(anchor.scale * float(np.exp(log_scale)), centre + share * away)
        return (
            family,
            share,
            family.log_likelihood(family.clipped(centre + share * (found - centre)), self.answers),
        )

    def part(self, rows: Codes) -> "_Rows":
        """Take some rows, with what all of them say of the points' shares."""
        if len(rows) == len(self.answers):
            return self
        found = copy(self)
        found.answers, found.kind, found.one_bit, found.both = (
            self.answers[rows],
            self.kind[rows],
            self.one_bit[rows],
            self.both[rows],
        )
        found.partitions = self.partitions[rows]
        found.counts = None if self.counts is None else self.counts[rows]
        found.total = float(len(rows) if found.counts is None else found.counts.sum())
        return found

    def gain(self, values: Floats, others: Floats) -> tuple[float, float]:
        """Compute by how much one log-likelihood of the rows is larger than another, and the
        standard error of that."""
        each = (values - others) * (1.0 if self.counts is None else self.counts)
        return float(each.sum()), float(each.std() * np.sqrt(len(each)))

    def doubted(self, family: Family, share: float, values: Floats) -> tuple[Family, float]:
        """Draw what `chosen` gives to the family with all rows at the centre, which holds where
        nothing can be told apart.

        With z the gain in log-likelihood over that family, in standard errors, the share is
        multiplied by 1 - 1 / z^2 (James-Stein), and is 0 up to z = 1. Where little is told, the
        gain of the likeliest share is half of its standard error squared below what the slope of
        the likelihood says; this is added again.
        """
        alone, centre = self.constant()
        gain, error = self.gain(
            values, alone.log_likelihood(np.full(len(values), centre), self.answers)
        )
        z = gain / error + min(error / 2, 1.0) if error > 0 else 0.0
        return (family, (1 - 1 / z**2) * share) if z > 1 else (alone, 0.0)

    def _together(self, away: Floats) -> tuple[Floats, Answers, Floats]:
        """Count rows with one answer and nearly one location together: mean locations, answers, and
        how often each counts."""
        counts = np.ones(len(away)) if self.counts is None else self.counts
        bounds = _quantiles(away, np.arange(1, _BINS) / _BINS, self.counts)
        cell = self.kind * _BINS + np.searchsorted(bounds, away)
        size = len(self.different) * _BINS
        if self.answers.place.shape[0] * size > _COMPARED:  # of laws with many outputs some rows
            some = slice(None, None, max(1, self.answers.place.size // _COMPARED))
            return away[some], self.answers[some], counts[some]
        total: Floats = np.bincount(cell, counts, size).astype(np.float64)
        held = np.flatnonzero(total)
        return (
            np.bincount(cell, counts * away, size)[held] / total[held],
            self.different[held // _BINS],
            total[held],
        )

    def working(
        self, family: Family, locations: Floats, rows: Codes | None = None
    ) -> tuple[Floats, Floats]:
        """Compute targets and weights of the next fit to these rows (all by default), (n,) each; a
        label without noise has weight 1."""
        answers = self.answers if rows is None else self.answers[rows]
        value, slope = family.evidence(locations, answers)
        information = self._information(family, locations, value, slope, rows)
        # all rows count alike, and their targets need one information for a fit to be a step of
        # Newton's
        if not self.weighted:
            information = np.full(len(information), information.mean())
        counts = None if self.counts is None else self.counts if rows is None else self.counts[rows]
        information = np.maximum(
            information, max(_LEAST * float(np.average(information, weights=counts)), _SMALLEST)
        )
        weights = information * family.scale**2 * (1.0 if counts is None else counts)
        return locations + slope / value / information, weights

    def _information(
        self,
        family: Family,
        locations: Floats,
        value: Floats,
        slope: Floats,
        rows: Codes | None = None,
    ) -> Floats:
        """Compute the expected square of the score of each row: (n,) float64."""
        result = np.empty(len(locations))
        which = np.arange(len(self.answers)) if rows is None else rows
        bits, both, binned = self.one_bit[which], self.both[which], self.partitions.own[which] > 0
        chance = value[bits] / both[bits]
        result[bits] = (slope[bits] / both[bits]) ** 2 / np.maximum(
            chance * (1 - chance), _SMALLEST
        )
        result[binned] = self.partitions[which[binned]].information(family, locations[binned])
        others = ~bits & ~binned
        if others.any():
            # Of other laws the outputs of all rows, each weighed by how much likelier it is at a
            # location than among all rows; so the factor up to which a likelihood is known does not
            # matter.
            knots = np.linspace(*family.ends(), num=_KNOTS)
            pairs = [
                family.evidence(np.full(len(self.outputs), knot), self.outputs) for knot in knots
            ]
            values, slopes = (
                np.array([each[0] for each in pairs]),
                np.array([each[1] for each in pairs]),
            )
            at = np.interp(locations[others], knots, np.arange(_KNOTS))
            overall = np.bincount(np.rint(at).astype(np.intp), minlength=_KNOTS) / len(at) @ values
            result[others] = np.interp(
                locations[others], knots, (slopes**2 / values / overall) @ self.often
            )
        return result
