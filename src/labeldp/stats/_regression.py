# SPDX-License-Identifier: Apache-2.0
"""Regressions of a private outcome on public columns by the exact likelihood of what was
released."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import block_diag
from scipy.special import ndtr

from labeldp import _validate
from labeldp.errors import InvalidInput, SeparationWarning, warn
from labeldp.evidence import NoisyLabels
from labeldp.protocol._statistics import quantile
from labeldp.stats._columns import (
    Codes,
    Column,
    Design,
    Floats,
    design_of,
    number_of,
    numbers_of,
    require_noisy,
    require_rank,
    rows_of,
)
from labeldp.stats._families import Count, Family, Normal, Softmax
from labeldp.stats._figures import digits_text, least_squares, outer_of, text_table
from labeldp.stats._likelihood import FAR, Problem, Profile, maximise

MODELS = ("logistic", "multinomial", "linear", "poisson", "least-squares")
NUMERIC = ("linear", "poisson")
# information of a row on a coefficient, in standard deviations of its column, below which it is
# told nothing
_FLAT = 1e-7


@dataclass(frozen=True, eq=False)
class Regression:
    """A fitted regression.

    Attributes
    ----------
    model : str
    names : tuple of p str
        Coefficients. Of a multinomial model "CLASS: COLUMN", class by class without the first; of a
        linear one the last is "log(scale)".
    params, bse : (p,) float64
        Estimates and standard errors. Where the data give no finite estimate the standard error is
        infinite and the estimate is where the search ended. Intervals and p-values do not use the
        standard errors, except those of least squares.
    covariance : (p, p) float64
    loglik : float
        Log-likelihood of the released outputs, up to a constant that does not depend on the model;
        NaN for least squares.
    n_rows : int
        Rows with evidence.
    n_units : int
    standard_errors : str
        "observed" or "sandwich".
    converged : bool

    Notes
    -----
    A regression keeps its columns and the likelihoods of its rows, from which `conf_int` and
    `pvalues` are computed when asked for. An end of an interval and a p-value cost about two steps
    of the fit each, where rows tell little more.
    """

    model: str
    names: tuple[str, ...]
    params: Floats
    covariance: Floats
    loglik: float
    n_rows: int
    n_units: int
    standard_errors: str
    converged: bool
    _classes: tuple[object, ...] = field(default=(), repr=False)
    _family: Family | None = field(default=None, repr=False)
    _profile: Profile | None = field(default=None, repr=False)

    @property
    def bse(self) -> Floats:
        """Standard errors: (p,)."""
        return np.asarray(np.sqrt(np.diagonal(self.covariance)))

    @property
    def zvalues(self) -> Floats:
        """Estimates over their standard errors: (p,); NaN where these are infinite."""
        return np.where(np.isinf(self.bse), np.nan, self.params / self.bse)

    @cached_property
    def pvalues(self) -> Floats:
        """Two-sided p-values of coefficients that are 0: (p,); by the profile likelihood, of least
        squares by the z-values."""
        return (
            np.asarray(2 * ndtr(-np.abs(self.zvalues)))
            if self._profile is None
            else self._profile.pvalues()
        )

    def conf_int(self, confidence: float = 0.95, names: Sequence[str] | None = None) -> Floats:
        """Compute intervals of the r coefficients `names`, by default of all: (r, 2).

        They are those of the profile likelihood: the values that a likelihood ratio test does not
        reject. So they need not be symmetric, and an end may be infinite: of a coefficient that
        grows without bound at least one is, and the other says how large it must be. Of least
        squares they are params +- z bse.
        """
        places = (
            list(range(len(self.names))) if names is None else [self._place(name) for name in names]
        )
        if self._profile is not None:
            return self._profile.interval(confidence, places)
        params, halves = self.params[places], quantile(confidence) * self.bse[places]
        return np.column_stack([params - halves, params + halves])

    def _place(self, name: str) -> int:
        if name not in self.names:
            raise InvalidInput(
                f"Expected one of {', '.join(self.names)}; got"
                f" {_validate.shown(name)}.{_validate.suggest(name, self.names)}"
            )
        return self.names.index(name)

    def __getitem__(self, name: str) -> tuple[float, float]:
        """Return estimate and standard error of one coefficient."""
        i = self._place(name)
        return float(self.params[i]), float(self.bse[i])

    def predict(self, X: Any) -> Floats:
        """Predict for rows of public columns as in the fit: class probabilities (n, K); of least
        squares the mean (n,)."""
        design = design_of(X, intercept=True).table
        free = len(self.params) - (self.model == "linear")
        width = free // (len(self._classes) - 1) if self.model == "multinomial" else free
        if design.shape[1] != width:
            raise InvalidInput(
                f"Expected X with {width - 1} columns, as in the fit, got {design.shape[1] - 1}."
            )
        eta = design @ self.params[:free].reshape(-1, width).T
        if self._family is None:
            return np.asarray(eta[:, 0])
        if self.model == "linear":
            eta = np.column_stack([eta, np.full(len(eta), self.params[-1])])
        probabilities = self._family.probabilities(eta)
        place = _order(self._classes, self.model)
        found = np.empty_like(probabilities)
        found[:, place] = probabilities
        return found

    def summary(self, confidence: float = 0.95) -> str:
        """Format the fit as a table, as statsmodels does."""
        low, high = self.conf_int(confidence).T
        columns = (self.params, self.bse, self.zvalues, self.pvalues, low, high)
        lines = [
            [name, *(digits_text(column[i]) for column in columns)]
            for i, name in enumerate(self.names)
        ]
        tail = (1 - confidence) / 2
        head = [
            "",
            "coef",
            "std err",
            "z",
            "P>|z|" if self._profile is None else "P",
            f"[{tail:.3g}",
            f"{1 - tail:.3g}]",
        ]
        what = (
            "unbiased least squares"
            if self.model == "least-squares"
            else f"{self.model} regression, exact likelihood"
        )
        units = f", {self.n_units} units" if self.n_units < self.n_rows else ""
        fit = "" if np.isnan(self.loglik) else f", log-likelihood {self.loglik:.2f}"
        state = (
            ""
            if self.converged
            else (
                "\nNot converged: coefficients without a finite estimate have infinite standard"
                " errors."
            )
        )
        return (
            f"{what}: {self.n_rows} rows{units}, {self.standard_errors} standard"
            f" errors{fit}\n{text_table(head, lines)}{state}"
        )

    def __str__(self) -> str:
        return self.summary()


def regress(
    noisy: NoisyLabels,
    X: Any,
    model: str,
    *,
    names: Sequence[str] | None = None,
    units: Column = None,
    ids: "ArrayLike | None" = None,
    standard_errors: str | None = None,
) -> Regression:
    """Regress the true labels on public columns, by the exact likelihood of the released outputs.

    Parameters
    ----------
    noisy : NoisyLabels of n rows
        Of any laws, also those that read priors made from X. Rows without evidence are left out.
    X : (n, d) array, frame of pandas or polars, or Arrow table
        Public numbers; categories are encoded first.
    model : str
        "logistic": two classes, the log-odds of the second against the first. "multinomial":
        log-odds of each class against the first. "linear": class values are numbers. The outcome is
        normal with mean x'b and one standard deviation, rounded to the nearest class value, numbers
        beyond the outermost ones to these (as `labeldp.Grid` encodes). Only then are its
        coefficients those of the mean: of skewed numbers, such as incomes, they are biased, however
        many rows there are. "poisson": the outcome is a Poisson count with mean exp(x'b), rounded
        in the same way. "least-squares": unbiased estimates of the outcome are regressed. No
        distribution is assumed, so this is for skewed numbers; but the law must have unbiased
        weights, intervals are wider than those of a right linear model, and the outcome is the
        number clamped to the range of the class values.
    names : sequence of d str, optional
        Names of the columns; by default the frame's, else x1, x2, ...
    units : (n,) public column, optional
        Standard errors then allow labels of one unit to depend on each other.
    ids : (n,) array, optional
        Ids of the rows of X, by which they are matched.
    standard_errors : "observed" or "sandwich", optional
        Inverse observed information, right if the model is; or Huber's sandwich, right also for the
        coefficients of a wrong model that are nearest to the truth by likelihood. These are not the
        coefficients of the mean, and no standard error removes that bias. None (default):
        "sandwich" with units and for least squares, else "observed".

    Returns
    -------
    Regression

    Raises
    ------
    InvalidInput
        Columns are no finite numbers or linearly dependent, rows do not match, class values are no
        numbers, some classes are told apart by no row, a logistic model has not two classes, or a
        linear one has.

    Warns
    -----
    SeparationWarning
        Some coefficients have no finite estimate, as with perfectly separated classes: they are
        returned with infinite standard errors. These are coefficients that grow without bound, and
        those that the others, grown so far, leave open: ten standard errors to either side change
        the likelihood by less than chance does.

    Notes
    -----
    Guarantee: post-processing of released outputs; it costs no privacy and reads no raw label.

    Intervals and p-values are those of the profile likelihood, since of rows that tell little the
    likelihood is lopsided, and the standard error depends on the estimate. With the sandwich the
    likelihood ratio is divided by the square of its standard error over the observed one. Of a
    linear model, whose scale is estimated, it is compared with the likelihood ratio that Student's
    t has with m rows and m - p degrees of freedom, p the coefficients of the mean; m is the number
    of rows without noise that would tell the logarithm of the scale as precisely. With m at most p
    all intervals are the whole range.

    Maximises sum_i ln sum_y P[y | x_i] L_i[y] by Newton's method with exact gradient and Hessian;
    directions of positive curvature are turned round, and steps are shortened by Armijo's rule. It
    starts where all classes are about equally likely. The likelihood is that of labels which, given
    x, do not depend on the question that a row was asked. Cost O(n K q^2 + n p^2) a step, about ten
    steps, q the number of predictors (K - 1 for "multinomial", else 1 or 2), and O(n (K + p))
    memory. All intervals cost about 4 p steps, all p-values 2 p.

    References
    ----------
    Stewart 1983, "On least squares estimation when the dependent variable is grouped"; White 1982,
    "Maximum likelihood estimation of misspecified models"; Kent 1982, "Robust properties of
    likelihood ratio tests"; Venzon and Moolgavkar 1988, "A method for computing
    profile-likelihood-based confidence intervals"; van den Hout, van der Heijden and Gilchrist
    2007, "The logistic regression model with response variables subject to randomized response".

    Examples
    --------
    >>> import labeldp as ldp, numpy as np
    >>> x = np.arange(6000) % 2
    >>> bought = (np.arange(6000) // 2 % 10 < 2 + 4 * x).astype(int)
    >>> labels = ldp.PrivateLabels(bought, classes=[0, 1], noise=ldp.SeededNoise(0))
    >>> noisy = ldp.privatize(labels, ldp.RandomizedResponse(2, epsilon=2.0))
    >>> fit = ldp.stats.regress(noisy, x, "logistic", names=["treated"])
    >>> low, high = fit.conf_int()[1]
    >>> bool(low < np.log(0.6 / 0.4) - np.log(0.2 / 0.8) < high)
    True
    """
    _validate.one_of(MODELS, model=model)
    kind = (
        _validate.one_of(("observed", "sandwich"), standard_errors=standard_errors)
        if standard_errors is not None
        else None
    )
    _check_model(require_noisy(noisy), model)
    raw = design_of(X, names, intercept=True, noisy=noisy)
    rows = rows_of(noisy, units=units, ids=ids, X=raw.table)
    design = Design(rows.table, raw.names)
    require_rank(design)
    chosen = kind or ("observed" if units is None and model != "least-squares" else "sandwich")
    return (
        _least_squares(rows.noisy, design, rows.units)
        if model == "least-squares"
        else _likeliest(rows.noisy, design, model, rows.units, chosen)
    )


def _least_squares(noisy: NoisyLabels, design: Design, units: Codes | None) -> Regression:
    numbers = numbers_of(noisy)
    if not noisy.invertible.all():
        raise InvalidInput(
            "Expected a law with unbiased weights in every row for least squares. Use"
            " model='linear', which takes every law."
        )
    params, covariance = least_squares(design.table, noisy.class_weights() @ numbers, units)
    return Regression(
        "least-squares",
        design.names,
        params,
        covariance,
        np.nan,
        len(noisy),
        _count(noisy, units),
        "sandwich",
        True,
    )


def _count(noisy: NoisyLabels, units: Codes | None) -> int:
    return len(noisy) if units is None else len(np.unique(units))


def _order(classes: tuple[object, ...], model: str) -> Codes:
    """Return codes in the order of the model's cells: ascending values of numeric models, else the
    declared order."""
    return (
        np.argsort(np.array(classes, np.float64), kind="stable")
        if model in NUMERIC
        else np.arange(len(classes))
    )


def _likeliest(
    noisy: NoisyLabels, design: Design, model: str, units: Codes | None, kind: str
) -> Regression:
    order = _order(noisy.classes, model)
    likelihood = np.asarray(noisy.likelihood(dtype="float64")[:, order], np.float64)
    _check_classes(noisy, likelihood, model)
    # Columns that are orthogonal and of length 1 a row: then one threshold fits all of them,
    # however the columns are scaled or correlated.
    rows = np.sqrt(len(noisy))
    basis, mixed = np.linalg.qr(design.table)
    family, designs, start, names, spread = _model(
        noisy, likelihood, Design(basis * rows, design.names), model
    )
    problem = Problem(family, likelihood, designs)
    found = maximise(problem, start)
    each = np.linalg.inv(mixed) * rows * spread
    back = block_diag(
        *(
            each if part.shape[1] == len(each) and part is designs[0] else np.eye(1)
            for part in designs
        )
    )
    observed, lost = _covariance(-found.hessian, found.scores, units, "observed", back)
    covariance = (
        observed
        if kind == "observed"
        else _covariance(-found.hessian, found.scores, units, kind, back)[0]
    )
    ratio = np.where(lost, 1.0, np.diagonal(covariance) / np.maximum(np.diagonal(observed), 1e-300))
    params = back @ found.flat
    # Sizes of the predictors' columns; one of the scale of a linear model.
    reach = np.concatenate(
        [
            np.sqrt((design.table**2).mean(axis=0)) if part is designs[0] else np.ones(1)
            for part in designs
        ]
    )
    far = np.full(len(reach), np.inf) if isinstance(family, Normal) else FAR / 2 / reach
    # far coefficients that were still growing
    if isinstance(family, Softmax) and not found.converged:
        lost |= np.abs(params) > far
    if isinstance(family, Normal):
        params[-1] += np.log(spread)
        family = Normal(family.borders * spread)
    halves = np.where(
        lost, np.inf if isinstance(family, Normal) else 1 / reach, np.sqrt(np.diagonal(covariance))
    )
    if lost.any() and not isinstance(family, Normal):
        alone = Profile(problem, found, back, params, halves, ratio, None, far, open=True)
        lost |= [not gone and alone.is_open(i) for i, gone in enumerate(lost)]
        halves, ratio = np.where(lost, 1 / reach, halves), np.where(lost, 1.0, ratio)
    if lost.any():
        covariance[lost] = covariance[:, lost] = 0.0
        covariance[lost, lost] = np.inf
        warn(
            SeparationWarning(
                "The data give no finite estimate of"
                f" {', '.join(name for name, gone in zip(names, lost, strict=True) if gone)}: a"
                " column separates classes, or the outputs tell too little. Their standard errors"
                " are infinite. Leave columns out or use more rows."
            )
        )
    # Rows without noise tell the logarithm of their scale with the variance 1 / (2 rows).
    rows = (
        float(0.0 if lost[-1] else 0.5 / observed[-1, -1]) if isinstance(family, Normal) else None
    )
    profile = Profile(
        problem,
        found,
        back,
        params,
        halves,
        ratio,
        rows,
        far,
        open=bool(lost.any()) and rows is None,
    )
    counts = len(noisy), _count(noisy, units)
    done = found.converged and not lost.any()
    return Regression(
        model,
        names,
        params,
        covariance,
        found.loglik,
        *counts,
        kind,
        done,
        _classes=noisy.classes,
        _family=family,
        _profile=profile,
    )


def _check_model(noisy: NoisyLabels, model: str) -> None:
    """Refuse a model that is not for these classes."""
    if model == "logistic" and noisy.n_classes != 2:
        raise InvalidInput(
            f"Expected two classes for a logistic regression, got {noisy.n_classes}. Use"
            " model='multinomial'."
        )
    if model in (*NUMERIC, "least-squares") and None in map(number_of, noisy.classes):
        other = "logistic" if noisy.n_classes == 2 else "multinomial"
        raise InvalidInput(
            f"Expected class values that are finite numbers for model={model!r}, got others. Use"
            f" model={other!r}."
        )
    if model == "linear" and noisy.n_classes == 2:
        raise InvalidInput(
            "Expected three class values or more for a linear model, got two, which tell no slope"
            " apart from the scale of the errors. Use model='logistic' for log-odds, or"
            " 'least-squares' for how the mean changes; of the values 0 and 1 that is the share"
            " of 1."
        )


def _check_classes(noisy: NoisyLabels, likelihood: Floats, model: str) -> None:
    """Refuse classes that no row tells apart."""
    if model in NUMERIC:  # whose coefficients a few classes tell
        return
    known: dict[bytes, int] = {}
    for twin in range(noisy.n_classes):
        other = known.setdefault(likelihood[:, twin].tobytes(), twin)
        if other == twin:
            continue
        raise InvalidInput(
            "Expected classes that are told apart, but no output distinguishes"
            f" {noisy.classes[other]!r} and {noisy.classes[twin]!r}. Use rows of another law."
        )


def _model(
    noisy: NoisyLabels, likelihood: Floats, design: Design, model: str
) -> tuple[Family, tuple[Floats, ...], Floats, tuple[str, ...], float]:
    """Make the family, the design of each predictor, the start, the names of the parameters, and
    the unit in which outcomes are fitted."""
    p = design.table.shape[1]
    if model == "logistic":
        return Softmax(), (design.table,), np.zeros(p), design.names, 1.0
    if model == "multinomial":
        names = tuple(f"{value}: {name}" for value in noisy.classes[1:] for name in design.names)
        return (
            Softmax(),
            (design.table,) * (noisy.n_classes - 1),
            np.zeros(p * (noisy.n_classes - 1)),
            names,
            1.0,
        )
    points = np.sort(numbers_of(noisy))
    if model == "poisson" and points[0] < 0:
        raise InvalidInput(
            f"Expected class values of at least 0 for a Poisson regression, got {points[0]:g}."
        )
    spread = float(np.ptp(points)) if model == "linear" else 1.0
    borders = (points[:-1] + points[1:]) / 2 / spread
    # A point estimate of the mean to start from: nearly flat evidence gives the middle of the
    # range.
    posterior = likelihood / likelihood.sum(axis=1, keepdims=True)
    middle = float((posterior @ points).mean()) / spread
    constant = design.table.mean(axis=0)  # the projection of 1, since the columns are orthogonal
    if model == "poisson":
        return (
            Count(borders),
            (design.table,),
            constant * np.log(max(middle, 1e-3)),
            design.names,
            1.0,
        )
    ones = np.ones((len(design.table), 1))
    return (
        Normal(borders),
        (design.table, ones),
        np.append(constant * middle, np.log(0.25)),
        (*design.names, "log(scale)"),
        spread,
    )


def _covariance(
    information: Floats, scores: Floats, units: Codes | None, kind: str, back: Floats
) -> tuple[Floats, NDArray[np.bool_]]:
    """Compute the covariance of the coefficients, `back` @ parameters, and mark those that the data
    do not tell: (p, p), (p,) bool."""
    # A direction of which a row tells less than a ten-millionth of what it could without noise is
    # told by none. Rows that tell nothing of it have a score of 0 along it; but the information is
    # 0 there only at the very maximum, which is reached up to rounding.
    told = _directions(scores.T @ scores, len(scores))
    told = told @ _directions(told.T @ information @ told, len(scores))
    inverse = told @ np.linalg.inv(told.T @ information @ told) @ told.T
    if kind == "sandwich":
        inverse = inverse @ outer_of(scores, units) @ inverse
    rest = back - back @ told @ told.T
    lost = np.sqrt((rest**2).sum(axis=1)) > 1e-3 * np.sqrt((back**2).sum(axis=1))
    return np.asarray(back @ inverse @ back.T), lost


def _directions(matrix: Floats, n_rows: int) -> Floats:
    """Find the directions of which a matrix (p, p) of information has more than nothing: (p, r),
    orthonormal."""
    roots, vectors = np.linalg.eigh(matrix)
    return np.asarray(vectors[:, roots > _FLAT * n_rows])
