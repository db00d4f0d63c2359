# SPDX-License-Identifier: Apache-2.0
"""The linear program of UnbiasedRandomizer, in floating point.

Nothing here gives a guarantee: the law rounds what is found to whole words, and certifies that.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labeldp.errors import InvalidInput
from labeldp.laws._exact import Floats

# Unbiased outputs
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Staircase:
    """A mechanism each of whose outputs has two probabilities, one `ratio` times the other.

    Attributes
    ----------
    values : (m,) float64
        The outputs, increasing.
    shares : (m,) float64
        The smaller probability of each.
    high : (m, K) bool
        True for the points from which it has the larger one.
    """

    values: Floats
    shares: Floats
    high: NDArray[np.bool_]


_FIRST = 97  # outputs that are tried first, beside the points
# times that outputs are tried nearer to those that were used, each time at half the distance
_REFINED = 3
_GAP = 1e-3  # the variance may be above the least one by this share
_MOST_ROUNDS = 600
_SMOOTHED = 0.9  # weight of earlier dual variables in those that columns are first sought for
_ARTIFICIAL = 1e3  # cost of violating a constraint


def unbiased_staircase(
    points: Floats, weights: Floats, ratio: float, outputs: Floats | None = None
) -> Staircase:
    """Find the mechanism of least mean squared error among those whose output has the expectation y
    given y.

    Parameters
    ----------
    points : (K,) increasing floats
    weights : (K,) floats >= 0, not all 0
        The prior of the points, by which errors are averaged.
    ratio : float above 1
        e^epsilon, the largest ratio of an output's probabilities.
    outputs : (m,) floats, optional
        The outputs to choose from. None: a grid about three times as wide as the points' range at
        large epsilon, and as much wider as is needed at a small one, refined around what is used;
        the mean squared error is then within about 0.1 % of the least one on it.

    Notes
    -----
    The linear program over M[y, v] with M[y, v] <= ratio M[y', v], rows that sum to 1, and sum_v
    M[y, v] v = y. The columns that the ratio allows are sums of columns with two values, one
    `ratio` times the other, so the unknowns are the masses of such columns: 2 K equations. Columns
    are added as they are needed: for given dual variables, the best set of points for an output v
    is where v's price is negative, so that all sets are searched at O(K) for each v. A vertex has
    at most 2 K columns. Cost: some ten to two hundred linear programs (HiGHS) of 2 K rows.

    References
    ----------
    Badanidiyuru, Ghazi, Kamath, Kumar, Leeman, Manurangsi, Varadarajan and Zhang 2023, "Optimal
    unbiased randomizers for regression with label differential privacy" (NeurIPS).
    """
    return _Program(points, weights, ratio).solved(outputs)


class _Program:
    """The linear program in units in which it is well scaled at every ratio: points in [-1, 1], t =
    (ratio - 1) / (ratio + 1), outputs u / t, and columns with the entries 1 + t s, s = 1 or -1.
    Rows are the first point's, and differences of neighbours divided by t."""

    def __init__(self, points: Floats, weights: Floats, ratio: float) -> None:
        self.k, self.t, self.ratio = len(points), (ratio - 1) / (ratio + 1), ratio
        self.centre, self.half = (points[0] + points[-1]) / 2, (points[-1] - points[0]) / 2
        self.y, self.p = (points - self.centre) / self.half, weights / weights.sum()
        step = np.diff(self.y)
        self.right = np.concatenate([[1.0], np.zeros(self.k - 1), [self.t * self.y[0]], step])
        above = np.where(np.arange(self.k) >= np.arange(1, self.k)[:, None], 1.0, -1.0)
        # Unbiased, though not the best: a random threshold and two outputs for each.
        self.signs = np.concatenate([above, -above])
        self.outputs = np.concatenate([step, -step]) * (self.k - 1) / 2
        self.tried = np.unique(
            np.concatenate([np.linspace(-3.0, 3.0, _FIRST), self.t * self.y, self.outputs])
        )

    def solved(self, outputs: Floats | None) -> Staircase:
        refinements = _REFINED
        self.smooth: Floats | None = None
        if outputs is not None:
            self.tried, refinements = (outputs - self.centre) / self.half * self.t, 0
            self.signs, self.outputs = np.empty((0, self.k)), np.empty(0)
        step = 6.0 / (_FIRST - 1)
        for _ in range(_MOST_ROUNDS):
            mass, dual, spare = self._master()
            if self._priced(dual, mass):
                continue
            if not refinements:
                return self._staircase(mass, spare)
            refinements, step = refinements - 1, step / 2
            used = self.outputs[mass > 0]
            self.tried = np.unique(np.concatenate([self.tried, used - step, used + step]))
            self.signs, self.outputs = self.signs[mass > 0], used
        raise InvalidInput(
            "Expected a linear program that HiGHS solves, got one that it does not. Take fewer"
            " points."
        )

    def _master(self) -> tuple[Floats, Floats, float]:
        """Solve for the masses of the present columns: (masses, dual variables, violation of the
        constraints)."""
        from scipy.optimize import linprog

        steps, first = np.diff(self.signs, axis=1).T, 1 + self.t * self.signs[:, 0]
        rows = np.vstack([first, steps, first * self.outputs, steps * self.outputs])
        m = len(self.outputs)
        self.cost = self.outputs**2 * (1 + self.t * (self.signs @ self.p))
        slack = np.eye(2 * self.k)
        tight = {"dual_feasibility_tolerance": 1e-9, "primal_feasibility_tolerance": 1e-9}
        cost = np.concatenate([self.cost, np.full(4 * self.k, _ARTIFICIAL)])
        found = linprog(
            cost,
            A_eq=np.hstack([rows, slack, -slack]),
            b_eq=self.right,
            method="highs-ds",
            options=tight,
        )
        if found.status != 0:
            raise InvalidInput(
                f"Expected a linear program that HiGHS solves, got: {found.message} Take fewer"
                " points or another epsilon."
            )
        dual = np.asarray(found.eqlin.marginals, np.float64)
        self.reduced = self.cost - dual @ rows
        mass = np.where(found.x[:m] > 1e-13, found.x[:m], 0.0)
        return mass, dual, float(found.x[m:].sum())

    def _priced(self, dual: Floats, mass: Floats) -> bool:
        """Add the columns that lower the cost, at most one for each output that is tried; False if
        none lowers it enough to matter."""
        gap = max(float(self.cost @ mass) - self.t**2 * float(self.p @ self.y**2), 1e-12)
        least = -_GAP * gap / max(float(mass.sum()), 1.0)
        # The dual variables of a vertex jump from round to round. Columns for their running mean
        # are nearer to those of the end.
        self.smooth = (
            dual if self.smooth is None else _SMOOTHED * self.smooth + (1 - _SMOOTHED) * dual
        )
        for guess in (self.smooth, dual):
            signs = np.where(self._prices(guess)[0] > 0, -1.0, 1.0)
            of_points, of_outputs = self._prices(dual)
            new = np.flatnonzero(of_outputs + (of_points * signs).sum(axis=1) < least)
            if len(new):
                break
        else:
            return False
        # columns that are far from being used are found again if they are needed
        if len(self.outputs) > 12 * self.k:
            kept = (self.reduced <= np.quantile(self.reduced, 0.7)) | (mass > 0)
            self.signs, self.outputs = self.signs[kept], self.outputs[kept]
        self.signs = np.concatenate([self.signs, signs[new]])
        self.outputs = np.concatenate([self.outputs, self.tried[new]])
        return True

    def _prices(self, dual: Floats) -> tuple[Floats, Floats]:
        """Compute how the reduced cost of a column with each output u that is tried depends on its
        signs: (m, K) and (m,).

        It is the second plus the sum over points of the first times the sign.
        """
        sums, means = dual[: self.k], dual[self.k :]
        of_sums, of_means = (
            np.append(part[:1] * self.t, part[1:]) - np.append(part[1:], 0.0)
            for part in (sums, means)
        )
        u = self.tried
        return (
            self.t * u[:, None] ** 2 * self.p - of_sums - u[:, None] * of_means,
            u**2 - sums[0] - u * means[0],
        )

    def _staircase(self, mass: Floats, violated: float) -> Staircase:
        if violated > 1e-6:
            raise InvalidInput(
                "Expected outputs from which an unbiased mechanism can be made, got others. Let"
                " them reach farther."
            )
        order = np.flatnonzero(mass > 0)
        order = order[np.argsort(self.outputs[order], kind="stable")]
        values = self.outputs[order] / self.t * self.half + self.centre
        return Staircase(values, mass[order] * 2 / (self.ratio + 1), self.signs[order] > 0)
