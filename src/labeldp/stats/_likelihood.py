# SPDX-License-Identifier: Apache-2.0
"""Likelihoods of regressions: their maxima, and the profile along one coefficient, whose intervals
hold where few rows tell much."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, stdtr, stdtrit

from labeldp.protocol._statistics import quantile
from labeldp.stats._columns import Codes, Floats
from labeldp.stats._families import Family, Softmax

FAR = 50.0  # coefficient of a scaled column at which a growing estimate is given up
_STEPS = 200  # at most, of a fit and of an interval's end
_DONE = 1e-10  # the gain of a step, per row, at which the maximum is reached
_CELLS = 1 << 20  # numbers in one batch of rows
# the gain of a step at which a profile is reached, far below the 1.9 by which an interval's ends
# lie lower
_LEVEL = 1e-3
# share of an interval's half that its end may be off before the last step of Newton's method, which
# squares it
_CLOSE = 0.01
_WIDE = 100.0  # halves of a normal interval, beyond which an end is infinite


@dataclass(frozen=True, eq=False)
class Problem:
    """A log-likelihood of flat parameters.

    Attributes
    ----------
    family : Family
    likelihood : (n, K) float64
    designs : tuple of q (n, p_j) arrays
        The design of each predictor.
    """

    family: Family
    likelihood: Floats
    designs: tuple[Floats, ...]

    @property
    def starts(self) -> Codes:
        return np.cumsum([0, *(design.shape[1] for design in self.designs)])

    def predictors(self, flat: Floats, rows: slice) -> Floats:
        starts = self.starts
        parts = [
            design[rows] @ flat[starts[j] : starts[j + 1]] for j, design in enumerate(self.designs)
        ]
        return np.column_stack(parts)

    def batches(self) -> list[slice]:
        q = len(self.designs)
        step = max(1, _CELLS // max(q * q, self.likelihood.shape[1] * min(q, 2) ** 2))
        return [slice(start, start + step) for start in range(0, len(self.likelihood), step)]

    def derivatives(self, flat: Floats) -> tuple[float, Floats, Floats]:
        """Compute log-likelihood, each row's score (n, p), and the Hessian (p, p)."""
        starts, total = self.starts, 0.0
        scores, hessian = (
            np.empty((len(self.likelihood), starts[-1])),
            np.zeros((starts[-1], starts[-1])),
        )
        for rows in self.batches():
            value, slope, bend = self.family.pieces(
                self.predictors(flat, rows), self.likelihood[rows]
            )
            total += float(value.sum())
            for j, left in enumerate(self.designs):
                mine = slice(starts[j], starts[j + 1])
                scores[rows, mine] = left[rows] * slope[:, j : j + 1]
                for m, right in enumerate(self.designs[: j + 1]):
                    block = left[rows].T @ (right[rows] * bend[:, j, m][:, None])
                    other = slice(starts[m], starts[m + 1])
                    hessian[mine, other] += block
                    if m != j:
                        hessian[other, mine] += block.T
        return total, scores, hessian


@dataclass(frozen=True, eq=False)
class Maximum:
    """Parameters, with the log-likelihood, each row's score (n, p) and the Hessian (p, p) there."""

    flat: Floats
    loglik: float
    scores: Floats
    hessian: Floats
    converged: bool


@np.errstate(over="ignore", invalid="ignore")  # a step that is too long gives NaN, and is shortened
def maximise(
    problem: Problem, start: Floats, free: Floats | None = None, done: float | None = None
) -> Maximum:
    """Maximise by Newton's method, by default in all parameters, to a step's gain of 1e-10 a row.

    Parameters
    ----------
    problem : Problem
    start : (p,) float64
    free : (p, r) float64, optional
        Orthonormal directions in which the parameters may move.
    done : float, optional
        The gain of a step at which the maximum is reached.
    """
    n, here = len(problem.likelihood), Maximum(start, *problem.derivatives(start), converged=False)
    for _ in range(_STEPS):
        if not np.isfinite(here.hessian).all():  # of a start beyond what numbers hold
            break
        slope = here.scores.sum(axis=0)
        moves = (
            _inverse(here.hessian, n)
            if free is None
            else free @ _inverse(free.T @ here.hessian @ free, n) @ free.T
        )
        step = moves @ slope
        gain = float(slope @ step)
        if gain < (_DONE * n if done is None else done):
            return replace(here, converged=True)
        # In scaled columns a coefficient of 5 moves probabilities from one end to the other.
        length, there = min(1.0, 5.0 / float(np.abs(step).max())), here
        while length > 1e-10:
            there = Maximum(
                here.flat + length * step,
                *problem.derivatives(here.flat + length * step),
                converged=False,
            )
            if there.loglik >= here.loglik + 1e-4 * length * gain:
                break
            length /= 2
        else:  # the rest is rounding
            return replace(here, converged=gain < 1e-6 * n)
        here = there
        # grows without bound
        if free is None and isinstance(problem.family, Softmax) and np.abs(here.flat).max() > FAR:
            break
    return here


def _inverse(hessian: Floats, n_rows: int) -> Floats:
    """Invert -hessian, turned round where the curvature is positive, and bounded below: near a
    saddle or on a plateau steps stay finite."""
    roots, vectors = np.linalg.eigh(-hessian)
    return np.asarray((vectors / np.maximum(np.abs(roots), 1e-9 * n_rows)) @ vectors.T)


@dataclass(frozen=True, eq=False)
class Profile:
    """The likelihood along each coefficient, at its maximum over the others.

    Twice its fall is compared with the square of a quantile, times `ratio`. The quantile is normal;
    of a normal outcome, whose scale is estimated from rows that tell as much as `rows` without
    noise, it is Student's, by the likelihood ratio that so many rows have.

    Attributes
    ----------
    problem : Problem
    found : Maximum
        Of all parameters.
    back : (p, p) float64
        Leads from parameters to coefficients, up to a constant.
    params, halves : (p,) float64
        The estimates, and the lengths in which ends of intervals are searched: the standard errors,
        and of an estimate without a finite one what moves predictors by about 1. An infinite one
        has the whole range as interval.
    ratio : (p,) float64
        Squares of these standard errors over those of the observed information.
    rows : float or None
        None unless the outcome is normal.
    far : (p,) float64
        Sizes from which on an end is infinite: so far out probabilities are 0 and 1, and no step
        finds whether others would do as well.
    open : bool
        Whether an estimate has no finite value. Each maximum is then sought from 0, too.
    """

    problem: Problem
    found: Maximum
    back: Floats
    params: Floats
    halves: Floats
    ratio: Floats
    rows: float | None
    far: Floats
    open: bool = False

    @property
    def _degrees(self) -> float | None:
        """Degrees of freedom: of `rows`, less one for each coefficient of the mean; at most 0 where
        these tell no interval."""
        return None if self.rows is None else self.rows - (len(self.params) - 1)

    def interval(self, confidence: float, places: Sequence[int]) -> Floats:
        """Compute the intervals of r coefficients: (r, 2)."""
        reach, degrees = quantile(confidence), self._degrees
        if self.rows is not None and degrees is not None:
            t = stdtrit(degrees, ndtr(reach)) if degrees > 0 else np.inf
            reach = np.sqrt(self.rows * np.log1p(t**2 / degrees)) if degrees > 0 else np.inf
        ends = np.array([[self._end(i, reach, side) for side in (-1.0, 1.0)] for i in places])
        far = self.far[list(places)]
        low, high = (
            np.where(ends[:, 0] < -far, -np.inf, ends[:, 0]),
            np.where(ends[:, 1] > far, np.inf, ends[:, 1]),
        )
        return np.column_stack([low, high])

    def pvalues(self) -> Floats:
        """Compute the p-value of each coefficient's being 0: (p,)."""
        return np.array([self._pvalue(i) for i in range(len(self.params))])

    def _pvalue(self, i: int) -> float:
        degrees = self._degrees
        if np.isinf(self.halves[i]) or (degrees is not None and degrees <= 0):
            return 1.0
        fall = self._fall(self._at(i, -self.params[i], self.found)) / self.ratio[i]
        if self.rows is None or degrees is None:
            return float(2 * ndtr(-np.sqrt(fall)))
        with np.errstate(over="ignore"):
            return float(2 * stdtr(degrees, -np.sqrt(degrees * np.expm1(fall / self.rows))))

    def is_open(self, i: int) -> bool:
        """Tell whether coefficient i may as well be ten standard errors larger or smaller, at a
        level of 5 %."""
        most = quantile(0.95) ** 2 * self.ratio[i]
        return all(
            self._fall(self._at(i, move, self.found)) < most
            for move in (10 * self.halves[i], -10 * self.halves[i])
        )

    def _fall(self, there: Maximum) -> float:
        """Twice how much lower the likelihood is; 0 where it is higher, as another maximum than the
        found one may be."""
        return (
            max(2 * (self.found.loglik - there.loglik), 0.0)
            if np.isfinite(there.loglik)
            else np.inf
        )

    def _at(self, i: int, move: float, near: Maximum) -> Maximum:
        """Maximise where coefficient i is larger by `move` than it is in `near`."""
        along = self.back[i]
        # the others follow, as far as the curvature stays
        lead = _inverse(near.hessian, len(self.problem.likelihood)) @ along
        free = np.linalg.qr(along[:, None], mode="complete")[0][:, 1:]
        there = maximise(self.problem, near.flat + lead * (move / (along @ lead)), free, _LEVEL)
        if not self.open:
            return there
        # Where probabilities are 0 and 1, as far out, a step can end on a plateau below the
        # maximum.
        other = maximise(
            self.problem, along * ((along @ near.flat + move) / (along @ along)), free, _LEVEL
        )
        return other if other.loglik > there.loglik or not np.isfinite(there.loglik) else there

    def _end(self, i: int, reach: float, side: float) -> float:
        """Find the end of an interval, by Newton's method for the root of the fall, which is nearly
        linear."""
        if np.isinf(self.halves[i]) or np.isinf(reach):
            return side * np.inf
        half, wanted = reach * self.halves[i], reach * np.sqrt(self.ratio[i])
        inner, outer, near, away = 0.0, np.inf, self.found, half
        for _ in range(_STEPS):
            if away > _WIDE * half or outer - inner < _CLOSE * half:
                break
            there = self._at(i, side * (away - inner), near)
            if not np.isfinite(there.hessian).all():  # beyond what numbers hold
                break
            root = np.sqrt(self._fall(there))
            rise = (
                -side
                * float(there.scores.sum(axis=0) @ self.back[i])
                / float(self.back[i] @ self.back[i])
            )
            step = (wanted - root) * root / rise if rise > 0 else np.inf
            if (
                root > 0
                and abs(wanted - root) < _CLOSE * wanted
                and inner <= away + step <= outer
                and np.isfinite(step)
            ):
                return float(self.params[i] + side * (away + step))
            if root < wanted:
                inner, near = away, there
            else:
                outer = away
            away += step
            if not inner < away < outer:
                away = (inner + outer) / 2 if np.isfinite(outer) else 2 * inner
            away = min(away, 4 * inner) if np.isinf(outer) else away
        return float(self.params[i] + side * outer)
