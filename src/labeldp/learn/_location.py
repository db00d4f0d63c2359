# SPDX-License-Identifier: Apache-2.0
"""Learning numbers from noisy labels: a location model on the exact likelihood, around any scikit-learn regressor.

    LocationLearner.fit(X, noisy) --> LocationModel.predict_distribution(X)

A row's number is a point v of the grid, and P[v >= point t | x] = Phi((f(x) - c_t) / scale): f(x), the row's location, is the regressor's
prediction, and the cuts c_t and the scale are common to all rows. (So some increasing function of the number is normal around f(x): with
cuts in the middles between points the number itself, rounded and clamped.) The cuts are those for which the shares of the points among all
rows, as the model has them, are those that the released labels speak for: skewed numbers, caps and round numbers that many rows have are
where they are, and means are not biased. The likelihood of what was released is L(x) = sum_v P[v | x] P[released | v], one number a row,
which any law gives.

It is maximised by Fisher scoring. With s and I the derivative of ln L and its expected square at the row's present location m, the
regressor is fitted by least squares to m + s / I with weights I: for a leaf of a tree, a linear model and every other least-squares learner
this is one Newton step. A row whose question was far from m says little there, and weighs little.

scikit-learn's histogram boosting takes such steps from tree to tree, so that one boosting follows the likelihood. How many rounds it takes
is chosen by the likelihood of rows that a model has not seen.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state

from labeldp.evidence import NoisyLabels
from labeldp.evidence._noisy import CELLS
from labeldp.laws import PriorSplit, Threshold
from labeldp.learn._boosting import newton, noisy_settings, pieces_of, rounded_to_bins
from labeldp.learn._corrections import LearnOptions, Transform, fit_last, tell_of_fit, weight_keyword
from labeldp.learn._data import Codes, Estimator, Floats
from labeldp.protocol._matching import take
from labeldp.protocol.metrics import likeliest_frequencies, numbers_of

FOLDS = 3  # parts of the rows, each of which gets its locations from models of the others
BEYOND = 2.0  # scales by which a location may lie outside the range
_SHARES = np.linspace(0.0, 1.0, 6)
_SCALES = 20  # to choose from, between half a step of the grid and the range
_PLACES = 200  # quantiles of the locations, for which cuts are found
_CUTS = 256  # of which cuts are interpolated
_FAR = 5.0  # scales from the outermost locations to the outermost cuts
_RARE = 1e-4  # least share of rows beyond a cut
_SMOOTHINGS = 200
_SMOOTHED = 32  # points from which shares of neighbours are smoothed
_COMPARED = 1 << 15  # answers whose likelihood compares shares and scales: enough to tell them apart, and little beside the fits
_OUTPUTS = 2048  # of a law from which the expected information is computed
PATIENCE = 2  # pieces of boosting without a better likelihood of unseen rows, after which it ends
_KNOTS = 33  # locations at which it is
_LEAST = 1e-3  # information of a row, as a share of the mean: what says less weighs as if it said this
_SMALLEST = 1e-300


@dataclass(frozen=True)
class Family:
    """The distributions on a grid: a normal variable of this scale, cut into the grid's points.

    Attributes
    ----------
    points : (G,) float64, increasing
    scale : float > 0
    cuts : (G - 1,) float64, not decreasing, or None
        Where the points begin, from the second one on. None: in the middles between points, so that the variable is the number.
    """

    points: Floats
    scale: float
    cuts: Floats | None = None

    @property
    def middles(self) -> Floats:
        """The middles between points: (G - 1,)."""
        return np.asarray((self.points[1:] + self.points[:-1]) / 2)

    @property
    def _cuts(self) -> Floats:
        return self.middles if self.cuts is None else self.cuts

    def clipped(self, locations: Floats) -> Floats:
        """Move locations that are far outside the range to where nearly all mass is at its end."""
        return np.asarray(np.clip(locations, *self.ends))

    @property
    def ends(self) -> tuple[float, float]:
        """Least and largest location."""
        return float(self._cuts[0] - BEYOND * self.scale), float(self._cuts[-1] + BEYOND * self.scale)

    def reaching(self, locations: Floats) -> Floats:
        """Compute P[at least point 1], ..., P[at least point G - 1] for each location: (n, G - 1)."""
        return np.asarray(ndtr((locations[:, None] - self._cuts) / self.scale))

    def probabilities(self, locations: Floats) -> Floats:
        """Compute P[point]: (n, G), rows sum to 1."""
        reaching = np.pad(self.reaching(locations), ((0, 0), (1, 1)), constant_values=((0, 0), (1, 0)))
        return np.asarray(reaching[:, :-1] - reaching[:, 1:])

    def mean(self, locations: Floats) -> Floats:
        """Compute the mean of the points: (n,)."""
        parts = [self.points[0] + self.reaching(part) @ np.diff(self.points) for part in _chunks(locations, len(self.points))]
        return np.concatenate(parts) if parts else np.empty(0)

    def quantile(self, locations: Floats, q: Floats) -> Floats:
        """Compute quantiles before rounding, within the range: (n, m) for m shares."""
        found = locations[:, None] + self.scale * ndtri(q)
        if self.cuts is not None:  # between two cuts the number grows evenly, and beyond them as fast as over all of them
            slope = np.ptp(self.middles) / max(float(np.ptp(self.cuts)), _SMALLEST)
            beyond = found - np.clip(found, self.cuts[0], self.cuts[-1])
            found = np.interp(found, self.cuts, self.middles) + slope * beyond
        return np.asarray(np.clip(found, self.points[0], self.points[-1]))

    def evidence(self, locations: Floats, answers: "Answers") -> tuple[Floats, Floats]:
        """Compute L and its derivative by the location, for these rows: (n,) each."""
        z = (locations - self._cuts[answers.place]) / self.scale
        slope = (answers.step * np.exp(-0.5 * z * z)).sum(axis=0) / (self.scale * np.sqrt(2 * np.pi))
        return self._value(z, answers), slope

    def _value(self, z: Floats, answers: "Answers") -> Floats:
        return np.asarray(np.maximum(answers.first + (answers.step * ndtr(z)).sum(axis=0), _SMALLEST))

    def log_likelihood(self, locations: Floats, answers: "Answers") -> float:
        """Compute the sum over rows of ln L."""
        return float(np.log(self._value((locations - self._cuts[answers.place]) / self.scale, answers)).sum())


@dataclass(frozen=True, eq=False)
class Answers:
    """Likelihoods of n rows as functions of the number: steps at few places, since most laws tell only where a number is not.

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
        most = max((int((part[:, 1:] != part[:, :-1]).sum(axis=1).max()) for part in _chunks(likelihood, width)), default=0)
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
    """

    estimator: Estimator
    family: Family
    centre: float
    share: float = 1.0
    chose: bool = False
    path: tuple[Family, ...] | None = None

    def locations(self, X: object) -> Floats:
        """Predict locations: (n,) float64."""
        found = np.asarray(self.estimator.predict(X), np.float64).reshape(-1)
        return self.family.clipped(self.centre + self.share * (found - self.centre))

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

    Notes
    -----
    A model that has seen a row's output follows its noise; a Newton step from there would follow it twice. So in each round every row's
    location comes from a model of the other folds. The same predictions choose the scale, and how far to go from the centre to what the
    model says (both as posterior means on a grid, uniform beforehand). Few noisy rows thus give nearly the constant.
    Cost: FOLDS (1 + em_rounds) fits on 1 - 1/FOLDS of the rows, and one on all: with the defaults 7 times a plain fit. O(n G) besides.
    Histogram boosting: FOLDS + 1 boostings in some 13 pieces, up to the round after which rows that a model has not seen are less likely.

    References
    ----------
    Fisher scoring as iterated least squares: Green (1984), "Iteratively reweighted least squares for maximum likelihood estimation". Tobin
    (1958) for clamped numbers. Cross-fitting: Chernozhukov et al. (2018), "Double/debiased machine learning".
    """

    estimator: Estimator
    options: LearnOptions
    random_state: np.random.RandomState

    def fit(self, X: object, noisy: NoisyLabels, start: LocationModel | None, held_out: object) -> LocationModel:
        """Learn from n rows; the model of an earlier stage has seen some of them, so it is no start."""
        rows = _Rows(noisy, self.random_state, weight_keyword(self.estimator) is not None)
        if boosted(self.estimator) is not None:
            return _Boosting(self.estimator, rows, self.random_state).fit(X)
        family, centre = rows.constant()
        fold = self.random_state.permutation(len(noisy)) % min(FOLDS, len(noisy))
        locations, share = np.full(len(noisy), centre), 1.0
        for _ in range(self.options.em_rounds + 1):
            working = rows.working(family, locations)
            found = np.empty(len(noisy))
            for number in range(int(fold.max()) + 1):
                inside, outside = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
                model = self._fitted(X, *working, inside)
                found[outside] = np.asarray(model.predict(take(X, outside)), np.float64).reshape(-1)
            family, share, _ = rows.chosen(centre, found)
            locations = family.clipped(centre + share * (found - centre))
        # A fold's model learned from fewer rows than the last one will, whose noise is so much smaller beside the same signal.
        whole = share / (share + (1 - share) * (1 - 1 / FOLDS)) if share > 0 else 0.0
        return LocationModel(self._fitted(X, *rows.working(family, locations), np.arange(len(noisy))), family, centre, whole)

    def refit(self, X: object, noisy: NoisyLabels, model: LocationModel) -> LocationModel:
        """Learn again from all rows: the model's own locations have followed the noise of those that it has learned from."""
        if model.path is None:
            return self.fit(X, noisy, None, None)
        return _Boosting(self.estimator, _Rows(noisy, self.random_state, True), self.random_state).whole(X, model)

    def _fitted(self, X: object, targets: Floats, weights: Floats, rows: Codes) -> Estimator:
        keyword = weight_keyword(self.estimator)
        fitted = clone(self.estimator).fit(take(X, rows), targets[rows], **({keyword: weights[rows]} if keyword else {}))
        tell_of_fit()
        return fitted


class LocationBoosting(RegressorMixin, BaseEstimator):
    """Histogram boosting of locations: the sum of its pieces.

    Attributes
    ----------
    start_ : float
        Location before the first piece.
    pieces_ : list of HistGradientBoostingRegressor
        Empty if rows that no model had seen spoke against the first one.
    share_ : float
        How much of the pieces is taken.
    n_iter_ : int
        Rounds.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "LocationBoosting":
        """Fit on known numbers, in one piece with scikit-learn's settings.

        Parameters
        ----------
        X : n rows of features
        y : (n,) float
        sample_weight : (n,) float, optional
        """
        return self._keep(0.0, [HistGradientBoostingRegressor().fit(X, y, sample_weight)], 1.0)

    def _keep(self, start: float, pieces: list[HistGradientBoostingRegressor], share: float) -> "LocationBoosting":
        self.start_, self.share_ = start, share
        self.pieces_, self.n_iter_ = pieces, sum(int(piece.n_iter_) for piece in pieces)
        return self

    def predict(self, X: Any) -> Floats:
        """Predict locations: (n,) float64."""
        found = np.full(X.shape[0], self.start_)
        for piece in self.pieces_:
            found += self.share_ * piece.predict(X)
        return found


def boosted(estimator: Estimator) -> HistGradientBoostingRegressor | None:
    """Return the histogram boosting that an estimator is, or that a pipeline ends in; None for all others."""
    last = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator
    return last if type(last) is HistGradientBoostingRegressor and last.loss == "squared_error" else None


def boosting_in(estimator: Estimator) -> LocationBoosting:
    """Return the boosting that a fitted pipeline ends in, or that it is."""
    found: LocationBoosting = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator
    return found


@dataclass(frozen=True, eq=False)
class _Boosting:
    """Boosting of locations in pieces of some rounds; before each one targets and weights are computed again."""

    estimator: Estimator
    rows: "_Rows"
    random_state: np.random.RandomState

    def fit(self, X: object) -> LocationModel:
        """Choose rounds, scale and share by cross-fitted pieces, then boost on all rows."""
        found: list[LocationModel] = []

        def learn(last: Estimator, features: Any, through: Transform) -> Estimator:
            family, centre = self.rows.constant()
            regressor = self._settled(last, family, centre)
            rounded = rounded_to_bins(features, regressor.max_bins)
            path, chosen, share = self._path(regressor, rounded, family, centre)
            # A fold's model learned from fewer rows than the last one will, whose noise is so much smaller beside the same signal.
            whole = share / (share + (1 - share) * (1 - 1 / FOLDS)) if share > 0 else 0.0
            found.append(LocationModel(None, chosen, centre, path=path))
            return LocationBoosting()._keep(centre, self._pieces(regressor, rounded, path, centre), whole)

        fitted = fit_last(self.estimator, X, learn)
        return replace(found[0], estimator=fitted)

    def whole(self, X: object, model: LocationModel) -> LocationModel:
        """Boost on all rows along the path that was chosen."""
        share = boosting_in(model.estimator).share_
        found: list[float] = []

        def learn(last: Estimator, features: Any, through: Transform) -> Estimator:
            family, centre = self.rows.constant()
            found.append(centre)
            regressor = self._settled(last, family, centre)
            pieces = self._pieces(regressor, rounded_to_bins(features, regressor.max_bins), model.path or (), centre)
            return LocationBoosting()._keep(centre, pieces, share)

        fitted = fit_last(self.estimator, X, learn)
        return replace(model, estimator=fitted, centre=found[0])

    def _settled(self, regressor: HistGradientBoostingRegressor, family: Family, centre: float) -> HistGradientBoostingRegressor:
        """Set what holds noise off, where the user has not set it."""
        told = float(self.rows.working(family, np.full(len(self.rows.answers), centre))[1].mean())
        settings = noisy_settings(regressor, "sklearn.ensemble", min(1.0, told))
        return clone(regressor).set_params(**settings, early_stopping=False, warm_start=False)

    def _path(
        self, regressor: HistGradientBoostingRegressor, X: Any, family: Family, centre: float
    ) -> tuple[tuple[Family, ...], Family, float]:
        """Boost on the rows outside each fold; the likelihood of those inside chooses the family of each piece, and their number."""
        n = len(self.rows.answers)
        fold = self.random_state.permutation(n) % min(FOLDS, n)
        others = [np.flatnonzero(fold != number) for number in range(int(fold.max()) + 1)]
        found = np.full((len(others), n), centre)
        generators = [check_random_state(self.random_state.randint(np.iinfo(np.int32).max)) for _ in others]
        families = [family]
        best = (*self.rows.chosen(centre, found[0]), 0)
        for number, size in enumerate(pieces_of(regressor.max_iter), start=1):
            for own, learned, generator in zip(found, others, generators, strict=True):
                own += self._piece(regressor, X, families[-1], own, learned, size, generator).predict(X)
            family, share, score = self.rows.chosen(centre, found[fold, np.arange(n)])
            families.append(family)
            if score > best[2]:
                best = (family, share, score, number)
            elif number - best[3] >= PATIENCE:
                break
        return tuple(families[: best[3]]), best[0], best[1]

    def _pieces(
        self, regressor: HistGradientBoostingRegressor, X: Any, path: Iterable[Family], centre: float
    ) -> list[HistGradientBoostingRegressor]:
        """Boost on all rows, one piece for each family."""
        rows = np.arange(len(self.rows.answers))
        pieces: list[HistGradientBoostingRegressor] = []
        found, generator = np.full(len(rows), centre), check_random_state(regressor.random_state)
        for family, size in zip(path, pieces_of(regressor.max_iter), strict=False):
            pieces.append(self._piece(regressor, X, family, found, rows, size, generator))
            found += pieces[-1].predict(X)
        return pieces

    def _piece(
        self,
        regressor: HistGradientBoostingRegressor,
        X: Any,
        family: Family,
        found: Floats,
        learned: Codes,
        size: int,
        generator: np.random.RandomState,
    ) -> HistGradientBoostingRegressor:
        """Add some rounds to the locations of all rows, learned from a part of them."""
        np.clip(found, *family.ends, out=found)
        targets, weights = self.rows.working(family, found[learned], learned)
        piece = newton(regressor.set_params(max_iter=size), take(X, learned), weights * (found[learned] - targets), weights, generator)
        tell_of_fit()
        return piece


def smooth_frequencies(likelihood: NDArray[np.floating]) -> Floats:
    """Estimate the points' shares by expectation-maximisation, (G,), on a fine grid with smoothing in each step.

    Parameters
    ----------
    likelihood : (n, G)

    Notes
    -----
    Unsmoothed estimates of many shares are spikes. Shares of neighbours are averaged with weights 1, 2, 1.

    References
    ----------
    Li et al. 2020, "Estimating numerical distributions under local differential privacy": EMS.
    """
    if likelihood.shape[1] < _SMOOTHED:
        return likeliest_frequencies(likelihood[:: max(1, likelihood.size >> 21)].astype(np.float64))
    table = likelihood[:: max(1, likelihood.size >> 20)].astype(np.float64)
    shares = np.full(table.shape[1], 1 / table.shape[1])
    for _ in range(_SMOOTHINGS):
        shares = shares * (table.T @ (1 / (table @ shares))) / len(table)
        around = np.pad(shares, 1, mode="edge")
        shares = (around[:-2] + 2 * around[1:-1] + around[2:]) / 4
        shares /= shares.sum()
    return shares


class _Rows:
    """What was released of n rows, and what their laws can tell of a location."""

    def __init__(self, noisy: NoisyLabels, random_state: np.random.RandomState, weighted: bool) -> None:
        self.points = numbers_of(noisy)
        likelihood = noisy.likelihood()
        self.answers = Answers.of(likelihood)
        # A bit has one other answer, and the probabilities of both sum to 1 for every label.
        self.both = 1.0 + likelihood.min(axis=1).astype(np.float64)
        self.random_state, self.weighted = random_state, weighted
        draws = np.bincount(np.concatenate([block.rows for block in noisy.blocks]), minlength=len(noisy))
        bits = [block.rows for block in noisy.blocks if isinstance(block.law, PriorSplit | Threshold)]
        self.one_bit = np.zeros(len(noisy), bool)
        self.one_bit[np.concatenate([*bits, np.empty(0, np.int64)])] = True
        self.one_bit &= draws == 1
        others = np.flatnonzero(~self.one_bit)
        self.outputs = self.answers[random_state.permutation(others)[:_OUTPUTS]]
        # Questions that a model has chosen are no fair sample: who is asked about a high threshold has a high number.
        fair = np.concatenate([block.rows for block in noisy.blocks if not block.law.uses_prior] or [np.arange(len(noisy))])
        self.reaching = np.clip(1 - np.cumsum(smooth_frequencies(likelihood[fair]))[:-1], _RARE, 1 - _RARE)

    def constant(self) -> tuple[Family, float]:
        """Give the family with all rows at one location, their mean, whose scale is their deviation."""
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

    def _scales(self) -> Floats:
        """List scales from half a step of the grid up to the range."""
        step, reach = float(np.diff(self.points).min()), float(self.points[-1] - self.points[0])
        return np.geomspace(min(step / 2, reach / 4), reach, _SCALES)

    def chosen(self, centre: float, found: Floats) -> tuple[Family, float, float]:
        """Choose the scale, and the share of the deviations from the centre, by rows that the locations `found` have not seen.

        Returns
        -------
        family, share, and the log-likelihood of all rows with them
        """
        some = slice(None, None, max(1, self.answers.place.size // _COMPARED))
        away, answers, scales = found[some] - centre, self.answers[some], self._scales()
        # Locations, scale and cuts could grow together, so the scale is chosen with the cuts that make the number of all rows normal.
        anchor = self.constant()[0]
        families = [replace(anchor, scale=float(scale)) for scale in scales]
        score = np.array([[each.log_likelihood(each.clipped(centre + share * away), answers) for each in families] for share in _SHARES])
        belief = np.exp(score - score.max())
        belief /= belief.sum()
        share = float(belief.sum(axis=1) @ _SHARES)
        spread = np.quantile(found - centre, (np.arange(_PLACES) + 0.5) / _PLACES)
        family = self._calibrated(float(np.exp(belief.sum(axis=0) @ np.log(scales))), centre + share * spread)
        return family, share, family.log_likelihood(family.clipped(centre + share * (found - centre)), self.answers)

    def working(self, family: Family, locations: Floats, rows: Codes | None = None) -> tuple[Floats, Floats]:
        """Compute targets and weights of the next fit to these rows (all by default), (n,) each; a label without noise has weight 1."""
        answers = self.answers if rows is None else self.answers[rows]
        value, slope = family.evidence(locations, answers)
        information = self._information(family, locations, value, slope, rows)
        if not self.weighted:  # all rows count alike, and their targets need one information for a fit to be a step of Newton's
            information = np.full(len(information), information.mean())
        information = np.maximum(information, max(_LEAST * float(information.mean()), _SMALLEST))
        return locations + slope / value / information, information * family.scale**2

    def _information(self, family: Family, locations: Floats, value: Floats, slope: Floats, rows: Codes | None = None) -> Floats:
        """Compute the expected square of the score of each row: (n,) float64."""
        result = np.empty(len(locations))
        bits, both = (self.one_bit, self.both) if rows is None else (self.one_bit[rows], self.both[rows])
        chance = value[bits] / both[bits]
        result[bits] = (slope[bits] / both[bits]) ** 2 / np.maximum(chance * (1 - chance), _SMALLEST)
        if not bits.all():
            # Of other laws the outputs of all rows, each weighed by how much likelier it is at a location than among all rows; so the
            # factor up to which a likelihood is known does not matter.
            knots = np.linspace(*family.ends, num=_KNOTS)
            pairs = [family.evidence(np.full(len(self.outputs), knot), self.outputs) for knot in knots]
            values, slopes = np.array([each[0] for each in pairs]), np.array([each[1] for each in pairs])
            at = np.interp(locations[~bits], knots, np.arange(_KNOTS))
            overall = np.bincount(np.rint(at).astype(np.intp), minlength=_KNOTS) / len(at) @ values
            result[~bits] = np.interp(locations[~bits], knots, (slopes**2 / values / overall).mean(axis=1))
        return result
