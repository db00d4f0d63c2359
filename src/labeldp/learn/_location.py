# SPDX-License-Identifier: Apache-2.0
"""Learning numbers from noisy labels: a location model on the exact likelihood, around any scikit-learn regressor.

    LocationLearner.fit(X, noisy) --> LocationModel.predict_distribution(X)

A row's number is a point of the grid: the nearest to a normal variable whose location is the regressor's prediction f(x) and whose scale is
common to all rows; beyond the ends of the range it is clamped to them, as labels are. So P[point v | x] is the normal mass between the
middles beside v, and the likelihood of what was released is L(x) = sum_v P[v | x] P[released | v], one number a row, which any law gives.

It is maximised by Fisher scoring. With s and I the derivative of ln L and its expected square at the row's present location m, the
regressor is fitted by least squares to m + s / I with weights I: for a leaf of a tree, a linear model and every other least-squares learner
this is one Newton step. A row whose question was far from m says little there, and weighs little.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from sklearn.base import clone

from labeldp.evidence import NoisyLabels
from labeldp.evidence._noisy import CELLS
from labeldp.laws import PriorSplit, Threshold
from labeldp.learn._corrections import LearnOptions, tell_of_fit, weight_keyword
from labeldp.learn._data import Codes, Estimator, Floats
from labeldp.protocol._matching import take
from labeldp.protocol.metrics import likeliest_frequencies, numbers_of

FOLDS = 3  # parts of the rows, each of which gets its locations from models of the others
BEYOND = 2.0  # scales by which a location may lie outside the range
_SHARES = np.linspace(0.0, 1.0, 11)
_SCALES = 12  # to choose from, between half a step of the grid and the range
_PLACES = 256  # of a location on which shares and scales are compared
_OUTPUTS = 512  # of a law from which the expected information is computed
_KNOTS = 33  # locations at which it is
_LEAST = 1e-3  # information of a row, as a share of the mean: what says less weighs as if it said this
_SMALLEST = 1e-300
_TINY = np.float32(1e-30)


@dataclass(frozen=True)
class Family:
    """The distributions on a grid: a rounded and clamped normal variable of this scale.

    Attributes
    ----------
    points : (G,) float64, increasing
    scale : float > 0
    """

    points: Floats
    scale: float

    @property
    def _middles(self) -> Floats:
        return np.asarray((self.points[1:] + self.points[:-1]) / 2)

    def clipped(self, locations: Floats) -> Floats:
        """Move locations that are far outside the range to where nearly all mass is at its end."""
        return np.asarray(np.clip(locations, *self.ends))

    @property
    def ends(self) -> tuple[float, float]:
        """Least and largest location."""
        return float(self.points[0] - BEYOND * self.scale), float(self.points[-1] + BEYOND * self.scale)

    def reaching(self, locations: Floats) -> Floats:
        """Compute P[at least point 1], ..., P[at least point G - 1] for each location: (n, G - 1)."""
        return np.asarray(ndtr((locations[:, None] - self._middles) / self.scale))

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
        return np.asarray(np.clip(locations[:, None] + self.scale * ndtri(q), self.points[0], self.points[-1]))

    def evidence(self, locations: Floats, likelihood: NDArray[np.floating]) -> tuple[Floats, Floats]:
        """Compute L and its derivative by the location, for rows with these likelihoods (n, G): (n,) each."""
        z = (locations[:, None] - self._middles) / self.scale
        steps = np.diff(likelihood.astype(np.float64), axis=1)
        value = likelihood[:, 0] + (steps * ndtr(z)).sum(axis=1)
        slope = (steps * np.exp(-0.5 * z * z)).sum(axis=1) / (self.scale * np.sqrt(2 * np.pi))
        return np.maximum(value, _SMALLEST), slope


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
    """

    estimator: Estimator
    family: Family
    centre: float
    share: float = 1.0
    chose: bool = False

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
            family, share = rows.chosen(centre, found)
            locations = family.clipped(centre + share * (found - centre))
        # A fold's model learned from fewer rows than the last one will, whose noise is so much smaller beside the same signal.
        whole = share / (share + (1 - share) * (1 - 1 / FOLDS)) if share > 0 else 0.0
        return LocationModel(self._fitted(X, *rows.working(family, locations), np.arange(len(noisy))), family, centre, whole)

    def refit(self, X: object, noisy: NoisyLabels, model: LocationModel) -> LocationModel:
        """Learn again from all rows: the model's own locations have followed the noise of those that it has learned from."""
        return self.fit(X, noisy, None, None)

    def _fitted(self, X: object, targets: Floats, weights: Floats, rows: Codes) -> Estimator:
        keyword = weight_keyword(self.estimator)
        fitted = clone(self.estimator).fit(take(X, rows), targets[rows], **({keyword: weights[rows]} if keyword else {}))
        tell_of_fit()
        return fitted


class _Rows:
    """The likelihoods of n rows, and what their laws can tell of a location."""

    def __init__(self, noisy: NoisyLabels, random_state: np.random.RandomState, weighted: bool) -> None:
        self.points = numbers_of(noisy)
        self.likelihood = noisy.likelihood()
        self.random_state, self.weighted = random_state, weighted
        draws = np.bincount(np.concatenate([block.rows for block in noisy.blocks]), minlength=len(noisy))
        bits = [block.rows for block in noisy.blocks if isinstance(block.law, PriorSplit | Threshold)]
        self.one_bit = np.zeros(len(noisy), bool)
        self.one_bit[np.concatenate([*bits, np.empty(0, np.int64)])] = True
        self.one_bit &= draws == 1
        # Rows whose shares and scales are compared: about 2^21 numbers, so that this costs little beside the fits.
        step = max(1, self.likelihood.size >> 21)
        self.compared = np.arange(0, len(noisy), step)

    def constant(self) -> tuple[Family, float]:
        """Find the scale and the one location under which the outputs are likeliest."""
        likelihood = self.likelihood[self.compared]
        frequencies = likeliest_frequencies(likelihood.astype(np.float64))
        mean = float(frequencies @ self.points)
        deviation = float(np.sqrt(frequencies @ (self.points - mean) ** 2))
        places = np.linspace(self.points[0], self.points[-1], 2 * _KNOTS)
        best = max(
            (float(np.log(np.maximum(likelihood @ family.probabilities(places).T, _SMALLEST)).sum(axis=0).max()), number)
            for number, family in enumerate(self._families(0.5 * deviation))
        )
        family = self._families(0.5 * deviation)[best[1]]
        totals = np.log(np.maximum(likelihood @ family.probabilities(places).T, _SMALLEST)).sum(axis=0)
        return family, float(places[totals.argmax()])

    def _families(self, least: float = 0.0) -> list[Family]:
        """List families from the least scale, or half a step of the grid, up to the range."""
        step, reach = float(np.diff(self.points).min()), float(self.points[-1] - self.points[0])
        return [Family(self.points, scale) for scale in np.geomspace(min(max(step / 2, least), reach / 2), reach, _SCALES)]

    def chosen(self, centre: float, found: Floats) -> tuple[Family, float]:
        """Choose the scale, and the share of the deviations from the centre, by rows that the locations `found` have not seen."""
        families = self._families()
        score = np.empty((len(_SHARES), len(families)))
        likelihood, away = self.likelihood[self.compared], found[self.compared] - centre
        for j, family in enumerate(families):
            low, high = family.ends
            places = np.linspace(low, high, _PLACES)
            table = family.probabilities(places).astype(np.float32)
            for i, share in enumerate(_SHARES):
                at = np.rint((np.clip(centre + share * away, low, high) - low) / (high - low) * (_PLACES - 1)).astype(np.intp)
                score[i, j] = np.log(np.maximum(np.einsum("ij,ij->i", likelihood, table[at]), _TINY)).sum(dtype=np.float64)
        belief = np.exp(score - score.max())
        belief /= belief.sum()
        scale = float(np.exp(belief.sum(axis=0) @ np.log([family.scale for family in families])))
        return Family(self.points, scale), float(belief.sum(axis=1) @ _SHARES)

    def working(self, family: Family, locations: Floats) -> tuple[Floats, Floats]:
        """Compute targets and weights of the next fit, (n,) each; a label without noise has weight 1."""
        value, slope = np.empty(len(locations)), np.empty(len(locations))
        for rows in _chunks(np.arange(len(locations)), len(self.points)):
            value[rows], slope[rows] = family.evidence(locations[rows], self.likelihood[rows])
        information = self._information(family, locations, value, slope)
        if not self.weighted:  # all rows count alike, and their targets need one information for a fit to be a step of Newton's
            information = np.full(len(information), information.mean())
        information = np.maximum(information, max(_LEAST * float(information.mean()), _SMALLEST))
        return locations + slope / value / information, information * family.scale**2

    def _information(self, family: Family, locations: Floats, value: Floats, slope: Floats) -> Floats:
        """Compute the expected square of the score of each row: (n,) float64."""
        result = np.empty(len(locations))
        # A bit has one other answer, and the probabilities of both sum to 1 for every label.
        bits = self.one_bit
        both = 1.0 + self.likelihood[bits].min(axis=1)
        chance = value[bits] / both
        result[bits] = (slope[bits] / both) ** 2 / np.maximum(chance * (1 - chance), _SMALLEST)
        others = np.flatnonzero(~bits)
        if len(others):
            # Of other laws the outputs of all rows, each weighed by how much likelier it is at a location than among all rows; so the
            # factor up to which a likelihood is known does not matter.
            some = self.random_state.permutation(others)[:_OUTPUTS]
            knots = np.linspace(*family.ends, num=_KNOTS)
            at = np.rint((locations[some] - knots[0]) / (knots[-1] - knots[0]) * (_KNOTS - 1)).astype(np.intp)
            pairs = [family.evidence(np.full(len(some), knot), self.likelihood[some]) for knot in knots]
            values, slopes = np.array([each[0] for each in pairs]), np.array([each[1] for each in pairs])
            overall = np.bincount(at, minlength=_KNOTS) / len(some) @ values
            result[others] = np.interp(locations[others], knots, (slopes**2 / values / overall).mean(axis=1))
        return result
