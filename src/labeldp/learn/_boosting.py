# SPDX-License-Identifier: Apache-2.0
"""Gradient boosting on the exact likelihood: one fit of LightGBM's, XGBoost's or scikit-learn's
classifier.

LightGBM and XGBoost take the objective of noisy labels; scikit-learn's histogram boosting, which
takes none, is a sum of its regressors. Numbers are learned by such sums of every library's
regressor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.utils import check_random_state

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.learn._data import Floats, taking_inputs_of
from labeldp.protocol._matching import take
from labeldp.protocol.metrics import class_rates, likeliest_frequencies, towards

# Where a label says next to nothing; without noise the libraries' own settings hold, and between
# them the square of what it says decides.
GAIN = 1.0  # least gain of a split, as twice the log-likelihood
RIDGE = 5.0  # information that a leaf must hold for half of its step to be believed
# information of all rows on the scores, below which the ridge grows; and how large it becomes
ENOUGH, MOST = 240.0, 40.0
# information below which halves of the rows say how far to trust the trees; above, this would cost
# more than it gains
_LITTLE = 120.0
_LEAST_ROWS = 500  # that can be halved
_FACTORS = np.exp(np.linspace(-1.5, 1.5, 25))
_SPREAD = 0.5  # standard deviation of the factor's logarithm beforehand
# of this logarithm, for all rows: trees of half of them are shrunk more, and are noisier
_WHOLE = 2 / 3
LEAVES, DEPTH = 8, 3  # of a tree: of many splits that could be made, noise chooses
# share of the columns that a tree sees, so that trees do not all follow the same noise
COLUMNS = 0.5
_SEEN = 4  # columns that it sees at least: half of a few may be without those that matter together
PATIENCE = 10  # rounds against which held-out rows speak, where the user names no number
# rounds after which held-out rows are asked, by XGBoost: to ask takes almost as long as its own
# round of small trees
_EVERY = 2
_DOUBT = 1.0  # standard errors
# to compute a model's mean probabilities by, up to twice as many; their scores take as long as
# trees
_ENOUGH_ROWS = 1 << 12
# of the table of rows and classes at a time, so that temporary arrays stay in the processor's cache
_CELLS = 1 << 16
_LEAST = 1e-12  # curvature of a row that says nothing: no leaf divides by zero
_SMALLEST = 1e-300  # probability of an output that the model rules out
# logit beyond which nothing changes: its probability's inverse still fits into 32 bits
_CERTAIN = 80.0

# What the libraries name differently: the classes, and what is set here unless the user has: its
# default, as the library's parameters say and in effect, and its value under much noise.
# scikit-learn has no least gain of a split, but smaller trees.
_LIBRARIES: dict[str, tuple[str, dict[str, tuple[float | None, float, float]]]] = {
    "lightgbm": (
        "LGBM",
        {
            "min_split_gain": (0.0, 0.0, GAIN),
            "reg_lambda": (0.0, 0.0, RIDGE),
            "num_leaves": (31, 31, LEAVES),
            "colsample_bytree": (1.0, 1.0, COLUMNS),
        },
    ),
    "xgboost": (
        "XGB",
        {
            "gamma": (None, 0.0, GAIN),
            "reg_lambda": (None, 1.0, RIDGE),
            "max_depth": (None, 6, DEPTH),
            "colsample_bytree": (None, 1.0, COLUMNS),
        },
    ),
    "sklearn.ensemble": (
        "HistGradientBoosting",
        {
            "l2_regularization": (0.0, 0.0, RIDGE),
            "max_leaf_nodes": (31, 31, LEAVES - 2),
            "max_features": (1.0, 1.0, COLUMNS),
        },
    ),
}
# Other names under which users may have set the same, or have a say in it.
_ALSO: dict[str, tuple[str, ...]] = {
    "min_split_gain": ("min_gain_to_split",),
    "gamma": ("min_split_loss",),
    "reg_lambda": ("lambda_l2", "l2_regularization", "lambda"),
    "num_leaves": ("num_leaf", "max_leaves", "max_leaf", "max_leaf_nodes"),
    "colsample_bytree": (
        *("feature_fraction", "sub_feature", "feature_fraction_bynode", "sub_feature_bynode"),
        *("colsample_bynode", "colsample_bylevel"),
    ),
}
LEAST_GAINS = ("min_split_gain", "gamma")
# Rounds without a gain after which a training ends: the name that is set here comes first.
EARLY_STOPPING = (
    "early_stopping_round",
    "early_stopping_rounds",
    "early_stopping",
    "n_iter_no_change",
)
_PATIENCE = {
    "lightgbm": EARLY_STOPPING,
    "xgboost": ("early_stopping_rounds",),
    "sklearn.ensemble": (),
}
_OBJECTIVES = (None, "binary", "multiclass", "binary:logistic", "multi:softprob", "multi:softmax")
_SQUARES = (
    None,
    "squared_error",
    "reg:squarederror",
    "regression",
    "regression_l2",
    "l2",
    "mse",
    "mean_squared_error",
)
_ROUNDS = {"lightgbm": "n_estimators", "xgboost": "n_estimators", "sklearn.ensemble": "max_iter"}
_USUAL = 100  # rounds that XGBoost's None stands for
# All names under which the libraries take the objective and the kind of trees; those of the number
# of rounds that would override the one above; and settings with which pieces are not the same as
# one boosting of squares.
_OBJECTIVE_NAMES = ("objective", "objective_type", "app", "application", "loss")
_KINDS_OF_TREES = ("boosting_type", "boosting", "boost", "booster")
_OTHER_ROUNDS = {
    "num_iteration",
    "num_iterations",
    "n_iter",
    "num_tree",
    "num_trees",
    "num_round",
    "num_rounds",
    "nrounds",
    "max_iter",
    "num_boost_round",
}
_UNEVEN = ("eval_metric", "callbacks", "reg_sqrt")


def _maker(estimator: object, kind: str = "Classifier") -> str | None:
    """Name the library whose boosting classifier (or "Regressor") this is, or None."""
    # who has an instance has imported it
    modules = ((library, sys.modules.get(library)) for library in _LIBRARIES)
    made = (
        (library, getattr(module, _LIBRARIES[library][0] + kind))
        for library, module in modules
        if module
    )
    return next((library for library, each in made if isinstance(estimator, each)), None)


def library_of(estimator: Any) -> str | None:
    """Name the library of a classifier that can be boosted on likelihoods; None for all others, and
    where its settings forbid it."""
    library = _maker(estimator)
    # the `fit` of a class of the user's own would not be called
    if library is None or (
        library == "sklearn.ensemble" and type(estimator) is not HistGradientBoostingClassifier
    ):
        return None
    params = estimator.get_params()
    # weights of classes count the labels that `fit` gets, which say nothing here; forests and DART
    # take no objective, or no early stop
    unweighted = (
        not params.get("class_weight")
        and not params.get("is_unbalance")
        and params.get("scale_pos_weight") in (None, 1)
    )
    trees = params.get("boosting_type", "gbdt") in ("gbdt", "goss") and params.get("booster") in (
        None,
        "gbtree",
    )
    measured = params.get("scoring") in (None, "loss")
    return (
        library
        if params.get("objective") in _OBJECTIVES and unweighted and trees and measured
        else None
    )


def library_of_squares(estimator: Any) -> str | None:
    """Name the library of a regressor that can be boosted by `newton`; None for all others, and
    where its settings forbid it."""
    library = _maker(estimator, "Regressor")
    # a class of the user's own, or one of random forests, takes other steps
    if library is None or type(estimator) is not getattr(
        sys.modules[library], _LIBRARIES[library][0] + "Regressor"
    ):
        return None
    params = estimator.get_params()
    squares = all(params.get(name) in _SQUARES for name in _OBJECTIVE_NAMES)
    trees = all(params.get(name) in (None, "gbdt", "goss", "gbtree") for name in _KINDS_OF_TREES)
    rounds = not (_OTHER_ROUNDS - {_ROUNDS[library]}) & params.keys()
    even = not any(params.get(name) for name in _UNEVEN) and not isinstance(
        estimator.random_state, np.random.Generator
    )
    return library if squares and trees and rounds and even else None


class LikelihoodBoosting(ClassifierMixin, BaseEstimator):
    """Gradient boosting whose loss is the likelihood of what was released.

    Minimises the sum over rows of -log sum_y p(y | x) P[released | y], with p the softmax of the
    trees' scores. Trees start from the class frequencies that the released labels speak for.

    Parameters
    ----------
    estimator : lightgbm.LGBMClassifier, xgboost.XGBClassifier or
    sklearn.ensemble.HistGradientBoostingClassifier
        Cloned, and fitted once. Settings that hold noise off are made where they have the library's
        defaults; see Notes.
    categorical : sequence of int, default=None
        Columns of category codes, for LightGBM, whose classifier takes them in `fit`. The others
        take them as settings, and all of them find pandas categories.
    class_prior : (K,) floats above 0, sum 1, default=None
        Known frequencies of the classes: trees start from them, and the mean probabilities are
        shifted to them. None: they are estimated, and the mean probabilities lie within a standard
        error of them.

    Attributes
    ----------
    classes_ : (K,) array
        The codes 0..K-1.
    estimator_ : fitted clone, HistogramScores, or None
        Its raw scores, times the factor and with the start added, are the logits; None if LightGBM
        finds no column that can be split. Of scikit-learn's classifier these are sums of its
        regressors.
    start_ : (K,) float64
        Logits of the class frequencies.
    factor_ : float
        By which the trees' scores are multiplied.
    n_iter_ : int
        Rounds that were made and predict. LightGBM makes no more where no tree can be split; the
        others go on with trees of one leaf.

    Notes
    -----
    With q the posterior of a row's class, p(y | x) P[released | y] / sum, the gradient is p - q.
    Newton's step also needs a curvature. That of expectation-maximisation, p (1 - p), belongs to
    labels without noise: at small epsilon it is many times too large, and boosting hardly moves. (p
    - q)^2 has the right mean, but a leaf whose few rows missed a rare output gets a curvature near
    0 and a step without bounds. So the curvature is the *expected* information of the noisy label
    on a class's score: with own = P[class in the output | it is the label] and other = P[class in
    the output | it is not],

        P = other + (own - other) p,    information = (p (1 - p) (own - other))^2 / (P (1 - P)).

    It is what the law tells about this class against all others, by the information inequality at
    most what the output tells, and p (1 - p) where there is no noise. In these units gains of
    splits are likelihood ratios, and leaves hold information, at every epsilon. With rho the share
    of a label's information that the law leaves at the start, the least gain of a split, the ridge
    of a leaf, the leaves of a tree and the columns that it sees go from the library's defaults (rho
    = 1) to GAIN, RIDGE, LEAVES or DEPTH, and COLUMNS (rho = 0) with rho^2.

    Where a class is rare, even many rows hold little information in all, and trees follow noise,
    which raises rare probabilities above their mean, since it cannot lower them below 0. So at the
    end the logits are shifted until the mean probability of each class over the rows is within one
    standard error of its frequency. And the ridge grows from RIDGE as the information I of all rows
    on all K - 1 free scores falls below ENOUGH, as ENOUGH / I, up to MOST; with several classes
    only scikit-learn's, which has no least gain beside it. That is right for weak features, but too
    much for strong ones, which few rows can show. So with two classes and I below _LITTLE trees are
    fitted to each half of the rows, too, and the noisy labels of the other half say by which factor
    to multiply the trees' scores: the posterior mean of its logarithm, normal around 0 beforehand,
    and _WHOLE of it, since trees of all rows need less of it.

    scikit-learn's classifier takes neither an objective nor a start, but its regressor of squares
    does the same: fitted to -gradient / curvature with the curvature as weight, its leaves take the
    same Newton steps. One regressor a score adds some rounds at a time, each time half as many as
    there are, since near the end the gradient changes slowly; then gradient and curvature are
    computed again. A regressor starts from its rows' mean, so the steps are shifted until that mean
    is a leaf's step.

    Cost: one fit of the library (two, where halves of the rows are asked), with O(n K) more a
    round; of scikit-learn's, some 13 short fits a score. Memory: the table of likelihoods
    (float32), gradients and curvatures.

    References
    ----------
    Friedman, Hastie and Tibshirani (2000), "Additive logistic regression"; Patrini et al. (2017)
    for the loss.
    """

    def __init__(
        self,
        estimator: Any,
        categorical: Sequence[int] | None = None,
        class_prior: Sequence[float] | None = None,
    ) -> None:
        self.estimator = estimator
        self.categorical = categorical
        self.class_prior = class_prior

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Fit on known labels, codes 0..K-1.

        Parameters
        ----------
        X : n rows of features
        y : (n,) int
        """
        codes = np.asarray(y, np.int64)
        return self.fit_likelihood(
            X, np.where(np.arange(codes.max() + 1) == codes[:, None], 0.0, -np.inf)
        )

    def fit_likelihood(
        self,
        X: Any,
        log_likelihood: ArrayLike,
        held_out: tuple[Any, ArrayLike] | tuple[Any, ArrayLike, Floats] | None = None,
        sample_weight: Floats | None = None,
    ) -> Self:
        """Fit on likelihoods.

        Parameters
        ----------
        X : n rows of features, of any kind that the library takes
        log_likelihood : (n, K) float
            ln P[released | label y] of each row, up to a constant a row.
        held_out : (rows of features, (m, K) float), or with their weights, (m,) float > 0, optional
            Rows whose likelihood ends the training: early stopping.
        sample_weight : (n,) float >= 0, optional
            A row of weight 2 counts as two rows.
        """
        library = library_of(self.estimator)
        assert library is not None
        rounds_of(self.estimator, library)  # XGBoost would fit none, and fail when it predicts
        table = _likelihoods(log_likelihood)
        k, n = table.shape
        if self.class_prior is None:
            shares = likeliest_frequencies(table.T.astype(np.float64), sample_weight)
            shares = (n * shares + 1) / (n + k)  # a class that no output speaks for stays possible
        else:
            shares = class_rates(self.class_prior, range(k))
        self.start_: Floats = np.log(shares)
        known = _Rows(X, table, sample_weight)
        if n < k and library != "sklearn.ensemble":
            # both libraries find the number of classes in the labels, so each must occur: further
            # rows say nothing
            rows, ones = np.arange(k), np.ones(n) if sample_weight is None else sample_weight
            known = replace(known.at(rows % n), weights=np.where(rows < n, ones[rows % n], 0.0))
        loss = known.loss()
        frequencies = np.exp(self.start_)
        share, held = loss.told(frequencies)
        information = float(held.sum() * (k - 1) / k)  # K classes have K - 1 free scores
        # a ridge beside a least gain is too much for many classes, whose trees nothing corrects
        counted = information if k == 2 or library == "sklearn.ensemble" else np.inf
        settings = self._settings(
            library, np.shape(X)[1], share, early=held_out is not None, information=counted
        )
        fit = (
            _FITS[library]
            if self.categorical is None
            else partial(_FITS[library], categorical=list(self.categorical))
        )

        def trees(X: Any, loss: _Loss) -> Any:
            judges = (
                None
                if held_out is None
                else (held_out[0], _HeldOut(_likelihoods(held_out[1]), *held_out[2:]))
            )
            return fit(clone(self.estimator).set_params(**settings), X, loss, judges, self._scores)

        self.estimator_ = trees(known.X, loss)
        # standard error of a frequency
        error = (
            frequencies * (1 - frequencies) / np.sqrt(held)
            if self.class_prior is None
            else np.zeros(k)
        )
        bounds = frequencies - error, frequencies + error
        little = k == 2 and information < _LITTLE and n >= _LEAST_ROWS
        self.factor_ = self._factor(known, trees, bounds) if little else 1.0
        some = np.arange(0, n, max(1, n // _ENOUGH_ROWS) if self.class_prior is None else 1)
        p = self.predict_proba(take(X, some))
        if len(some) < n:  # what these rows say of the mean of all has an error of its own
            error = np.hypot(error, p.std(axis=0) / np.sqrt(len(some)))
        weights = None if sample_weight is None else sample_weight[some]
        self.start_ = self.start_ + _into(p, weights, frequencies - error, frequencies + error)
        self.classes_: NDArray[np.int64] = np.arange(k)
        self.n_iter_ = self._rounds(library)
        return self

    def _factor(
        self, known: _Rows, trees: Callable[[Any, _Loss], Any], bounds: tuple[Floats, Floats]
    ) -> float:
        """Compute the factor of the trees' scores that rows speak for which the trees have not
        seen."""
        # rows that belong together are often neighbours
        half = np.random.RandomState(0).permutation(known.n) % 2
        evidence = -(np.log(_FACTORS) ** 2) / (2 * _SPREAD**2)
        for side in (0, 1):
            learned, others = (
                known.at(np.flatnonzero((half == side) == mine)) for mine in (True, False)
            )
            raw = self._raw(trees(learned.X, learned.loss()), others.X)
            for place, factor in enumerate(_FACTORS):
                p = probabilities_of(self._scores(others.n) + factor * raw)
                p = p * np.exp(_into(p, others.weights, *bounds))
                p /= p.sum(axis=1, keepdims=True)
                found = np.log(np.maximum((p.T * others.likelihoods).sum(axis=0), _SMALLEST))
                evidence[place] += found.sum() if others.weights is None else others.weights @ found
        belief = np.exp(evidence - evidence.max())
        return float(np.exp(_WHOLE * (belief @ np.log(_FACTORS)) / belief.sum()))

    def _rounds(self, library: str) -> int:
        if self.estimator_ is None or isinstance(self.estimator_, HistogramScores):
            return 0 if self.estimator_ is None else self.estimator_.rounds
        light = library == "lightgbm"
        made = int(
            self.estimator_.booster_.current_iteration()
            if light
            else self.estimator_.get_booster().num_boosted_rounds()
        )
        # XGBoost counts from 0
        best = (
            self.estimator_.best_iteration_
            if light
            else getattr(self.estimator_, "best_iteration", -1) + 1
        )
        # held-out rows may speak for more rounds than there are, since without a tree to add
        # nothing changes
        return min(made, int(best or made))

    def __sklearn_tags__(self) -> Any:
        return taking_inputs_of(self.estimator, super().__sklearn_tags__())

    def _settings(
        self, library: str, columns: int, told: float, early: bool, information: float = np.inf
    ) -> dict[str, Any]:
        """Give what the noise asks for, where the user has not set it."""
        names, params = _PATIENCE[library], self.estimator.get_params()
        settings = noisy_settings(self.estimator, library, columns, told, information) | _silence(
            params, library
        )
        patience = next(
            (params[name] for name in names if type(params.get(name)) is int and params[name] > 0),
            None,
        )
        if names and (early or patience):
            settings |= dict.fromkeys(names & params.keys(), None) | {
                names[0]: (patience or PATIENCE) if early else None
            }
        return settings

    def _scores(self, n: int) -> Floats:
        """Give n rows of the starting logits as the libraries want them: (n,) differences of two
        classes, else (n, K)."""
        start = self.start_
        return np.full(n, start[1] - start[0]) if len(start) == 2 else np.tile(start, (n, 1))

    def predict_proba(self, X: Any) -> Floats:
        """Predict probabilities of the true label: (n, K) float64, rows sum to 1."""
        return probabilities_of(
            self._scores(X.shape[0]) + self.factor_ * self._raw(self.estimator_, X)
        )

    def _raw(self, fitted: Any, X: Any) -> Floats:
        """Compute the sum of the trees: (n,) of two classes, else (n, K)."""
        nothing = np.zeros_like(self._scores(X.shape[0]))
        if fitted is None:
            return nothing
        if isinstance(fitted, HistogramScores):
            return fitted.predict(X)
        if _maker(fitted) == "lightgbm":
            return np.asarray(fitted.predict(X, raw_score=True))
        return np.asarray(fitted.predict(X, output_margin=True, base_margin=nothing))

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Predict the likeliest code, (n,) int64."""
        return np.asarray(self.predict_proba(X).argmax(axis=1))


def _silence(params: dict[str, Any], library: str) -> dict[str, Any]:
    # LightGBM would warn in each round that a tree has no more to gain, which here is how boosting
    # ends
    return (
        {"verbosity": -1}
        if library == "lightgbm" and not {"verbose", "verbosity"} & params.keys()
        else {}
    )


def noisy_settings(
    estimator: Any, library: str, columns: int, told: float, information: float = np.inf
) -> dict[str, Any]:
    """Give the settings that hold noise off, where the user has not set them.

    Parameters
    ----------
    estimator : classifier or regressor of the library
    library : str
        A key of the table above.
    columns : int
        Of the features.
    told : float in [0, 1]
        Share of a label's information that the noise leaves.
    information : float > 0, default=inf
        What all rows hold on the scores.
    """
    params, held_back = estimator.get_params(), min(max(1.0, ENOUGH / information), MOST / RIDGE)
    settings: dict[str, Any] = {}
    for name, (default, own, noisy) in _LIBRARIES[library][1].items():
        if params.get(name) == default and all(
            params.get(other) is None for other in _ALSO.get(name, ())
        ):
            noisy *= held_back if name in ("l2_regularization", "reg_lambda") else 1
            noisy = max(noisy, min(1.0, _SEEN / columns)) if name == "colsample_bytree" else noisy
            found = noisy + (own - noisy) * told**2
            settings[name] = round(found) if isinstance(noisy, int) else found
    return settings


def _likelihoods(log_likelihood: ArrayLike) -> NDArray[np.float32]:
    table = np.asarray(log_likelihood, np.float64)
    return np.asarray(np.exp(table - table.max(axis=1, keepdims=True)).T, np.float32, order="C")


def information(p: Floats, own: Floats, other: Floats) -> Floats:
    """Compute the expected information of noisy labels on each class's score, (K, n), above 0.

    Parameters
    ----------
    p : (K, n) or (K, 1) array
        Probabilities of the classes.
    own, other : (n,) arrays
        P[class in output | it is the label] and P[class in output | it is not].
    """
    gap = own - other
    inside = gap * p
    inside += other
    p = np.broadcast_to(p, inside.shape)  # one column for rows of several laws
    told = p * (1 - p)
    told *= gap
    told *= told
    inside *= 1 - inside
    told /= np.maximum(inside, _LEAST, out=inside)
    return np.maximum(told, _LEAST, out=told)


def _into(p: Floats, weights: Floats | None, least: Floats, most: Floats) -> Floats:
    """Compute the shift of the logits, (K,), that brings each class's mean probability, of (n, K),
    into these bounds."""
    weights = np.ones(len(p)) if weights is None or not weights.any() else weights
    mean = weights @ p / weights.sum()
    wanted = np.clip(mean, least, most)
    if np.array_equal(wanted, mean):
        return np.zeros(len(mean))
    return towards(wanted / wanted.sum(), np.log(np.maximum(p, _SMALLEST)), weights)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of features with their likelihoods, (K, n), and weights, (n,) or None."""

    X: Any
    likelihoods: NDArray[np.float32]
    weights: Floats | None

    @property
    def n(self) -> int:
        """How many rows."""
        return int(self.likelihoods.shape[1])

    def at(self, rows: NDArray[np.int64]) -> _Rows:
        """The rows at these positions."""
        return _Rows(
            take(self.X, rows),
            self.likelihoods[:, rows],
            None if self.weights is None else self.weights[rows],
        )

    def loss(self) -> _Loss:
        """Their loss."""
        return _Loss(self.likelihoods, self.weights)


class _Loss:
    """The loss of rows with these likelihoods, (K, n), and weights, (n,), as both libraries call an
    objective: `loss(labels, scores)`.

    Arrays have classes first: reductions over a few classes at the end of each row would take most
    of the time.
    """

    def __init__(self, likelihoods: NDArray[np.float32], weights: Floats | None = None) -> None:
        self.likelihoods, self.weights = likelihoods, weights
        # A row's law is taken to be symmetric: classes in the output are those with the largest
        # likelihood, and any other set of as many could have come. Then P[class in the output | it
        # is the label] is their share of the row's likelihoods. Exact for randomized response and
        # subset selection; other laws get a curvature, not a gradient, that is somewhat off.
        inside = (likelihoods == 1).sum(axis=0)
        own = inside / likelihoods.sum(axis=0, dtype=np.float64)
        self.own, self.other = (
            own.astype(np.float32),
            ((inside - own) / (len(likelihoods) - 1)).astype(np.float32),
        )
        if (self.own == self.own[0]).all() and (self.other == self.other[0]).all():
            # one law for all rows: fewer arrays in each round, and none to sort
            self.own, self.other = self.own[:1], self.other[:1]

    def _law(self, rows: slice) -> tuple[Any, Any]:
        """P[class in the output | it is the label] and P[class in the output | it is not]: of these
        rows, or (1,) for all alike."""
        return (self.own, self.other) if len(self.own) == 1 else (self.own[rows], self.other[rows])

    @property
    def n(self) -> int:
        """How many rows."""
        return int(self.likelihoods.shape[1])

    @property
    def labels(self) -> NDArray[np.int64]:
        """What the libraries get for labels, (n,): it only says how many classes there are."""
        return np.arange(self.n) % len(self.likelihoods)

    def forget(self) -> None:
        """Drop the rows, which a fitted model would carry along."""
        self.likelihoods, self.own, self.other, self.weights = (
            self.likelihoods[:, :0],
            self.own[:0],
            self.other[:0],
            None,
        )

    def told(self, frequencies: Floats) -> tuple[float, Floats]:
        """Compute which share of a label's information the noise leaves, and the information of all
        rows on each score, (K,).

        Every row is taken to have these class frequencies.
        """
        total = float(self.n) if self.weights is None else float(self.weights.sum())
        laws, counts = np.column_stack([self.own, self.other]), np.array([total])
        if len(laws) > 1:
            laws, place = np.unique(laws, axis=0, return_inverse=True)
            counts = np.bincount(place.reshape(-1), self.weights)
        held = information(frequencies[:, None], laws[:, 0], laws[:, 1]) @ counts
        return float(held.sum() / (frequencies * (1 - frequencies)).sum() / total), held

    def __call__(
        self, y_true: object, y_pred: Floats
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Compute gradient and curvature of each score, in the scores' shape."""
        gradient, curvature = (np.empty(y_pred.shape, np.float32, order="F") for _ in range(2))
        steps = self._of_two if y_pred.ndim == 1 else self._of_several
        for rows in self._pieces():
            found, bent = steps(y_pred[rows], rows)
            if self.weights is not None:
                found, bent = (
                    found * self.weights[rows],
                    np.maximum(bent * self.weights[rows], _LEAST),
                )
            gradient[rows], curvature[rows] = found.T, bent.T
        return gradient, curvature

    def _of_several(self, scores: Floats, rows: slice) -> tuple[Floats, Floats]:
        p = _shares(scores)
        q = p * self.likelihoods[:, rows]
        q /= np.maximum(q.sum(axis=0), _SMALLEST)
        return p - q, information(p, *self._law(rows))

    def _of_two(
        self, scores: Floats, rows: slice
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Do the same for the second of two classes, without differences of almost equal numbers,
        so that 32 bits are enough."""
        (first, second), (none, p) = self.likelihoods[:, rows], _of_second(scores)
        own, other = self._law(rows)
        both = none * p
        found = both * (first - second) / (none * first + p * second)
        both *= own - other
        both *= both
        both /= (p * own + none * other) * (p * (1 - own) + none * (1 - other)) + _LEAST
        both += _LEAST
        return found, both

    def log_evidence(self, scores: Floats) -> Floats:
        """Compute ln P[released | x] of each row, up to a constant a row: (n,) float64."""
        found, shares = np.empty(self.n), _of_second if scores.ndim == 1 else _shares
        for rows in self._pieces():
            found[rows] = (shares(scores[rows]) * self.likelihoods[:, rows]).sum(axis=0)
        return np.log(np.maximum(found, _SMALLEST, out=found), out=found)

    def _pieces(self) -> Iterator[slice]:
        step = max(1, _CELLS // len(self.likelihoods))
        return (slice(first, first + step) for first in range(0, self.n, step))


class _HeldOut(_Loss):
    """Rows that end the training, as an evaluation metric that falls for as long as trees may be
    added.

    Few noisy rows say little, and their best round is mostly chance: it would end the training of a
    model that still learns. So the last round is taken that is not worse than the best one by more
    than `_DOUBT` standard errors of the rows' differences.
    """

    def __init__(self, likelihoods: NDArray[np.float32], weights: Floats | None = None) -> None:
        super().__init__(likelihoods, None if weights is None else weights / weights.mean())
        self.round, self.best = 0, np.full(self.n, -np.inf)

    def standing(self, y_true: object, y_pred: Floats) -> float:
        """Return minus the round's number while the rows do not speak against it, else 1."""
        self.round += 1
        found = self.log_evidence(y_pred)
        found = found if self.weights is None else found * self.weights
        worse = self.best - found
        mean = worse.mean()
        if mean < 0:
            self.best = found
        # in small arrays each call counts: this is asked in each round
        return (
            1.0
            if mean > 0 and mean > _DOUBT * worse.std() / np.sqrt(self.n)
            else -float(self.round)
        )


def _shares(scores: Floats) -> Floats:
    """Compute probabilities (K, n) from a library's scores, (n, K), or (n,) of the second of two
    classes."""
    given = np.asarray(scores, np.float64)
    logits = given.T if given.ndim == 2 else np.stack([np.zeros_like(given), given])
    p: Floats = np.exp(logits - logits.max(axis=0))
    p /= p.sum(axis=0)
    return p


def _of_second(scores: Floats) -> NDArray[np.float32]:
    """Compute probabilities (2, n) float32 of two classes, exact to the last digits however small,
    from scores of the second, (n,)."""
    odds = np.exp(np.clip(scores, -_CERTAIN, _CERTAIN, dtype=np.float32, casting="same_kind"))
    p = np.empty((2, len(odds)), np.float32)
    np.divide(1, 1 + odds, out=p[0])
    np.multiply(odds, p[0], out=p[1])
    return p


def probabilities_of(scores: ArrayLike) -> Floats:
    """Compute probabilities (n, K) from a library's raw scores, (n,) or (n, K)."""
    return np.asarray(_shares(np.asarray(scores)).T, order="C")


def _fit_lightgbm(
    model: Any,
    X: Any,
    loss: _Loss,
    held: tuple[Any, _HeldOut] | None,
    start: Callable[[int], Floats],
    categorical: list[int] | None = None,
) -> Any:
    told = columns_told(categorical)
    if held is not None:
        told |= {"eval_X": held[0], "eval_y": held[1].labels, "eval_init_score": [start(held[1].n)]}
        told["eval_metric"] = lambda y, scores: ("standing", held[1].standing(y, scores), False)
    # without `metric`, early stopping would also look at the log-loss of labels that say nothing
    model.set_params(objective=loss, metric="None")
    try:
        model.fit(X, loss.labels, init_score=start(loss.n), **told)
    except Exception as error:
        if "num_features()) > (0)" not in str(error):  # it finds no column to split
            raise
        return None
    finally:
        loss.forget()
    return model


def _fit_xgboost(
    model: Any,
    X: Any,
    loss: _Loss,
    held: tuple[Any, _HeldOut] | None,
    start: Callable[[int], Floats],
) -> Any:
    kept = model.get_params()
    if held is not None:
        model.set_params(
            callbacks=[*(kept["callbacks"] or ()), _xgboost_ending(model, *held, start)],
            early_stopping_rounds=None,
        )
    # Else XGBoost would measure a loss of its own, or the user's, in each round, on labels that say
    # nothing.
    model.set_params(disable_default_eval_metric=True, eval_metric=None)
    model.set_params(objective=loss).fit(X, loss.labels, base_margin=start(loss.n), verbose=False)
    loss.forget()
    del model.kwargs["disable_default_eval_metric"]
    model.set_params(
        **{name: kept[name] for name in ("objective", "callbacks", "early_stopping_rounds")}
    )
    # `set_params` would hand it to the trees, which take no list
    model.eval_metric = kept["eval_metric"]
    return model


def _xgboost_ending(model: Any, X: Any, rows: _HeldOut, start: Callable[[int], Floats]) -> Any:
    """Make the callback that ends a training: XGBoost's own way from an `eval_set` to a function
    takes longer than a round's trees."""
    from xgboost import DMatrix
    from xgboost.callback import TrainingCallback

    patience = model.early_stopping_rounds
    given = {
        name: getattr(model, name) for name in ("missing", "feature_types", "enable_categorical")
    }
    # remembers its scores, so that each tree is asked once
    matrix = DMatrix(X, base_margin=start(rows.n), nthread=model.n_jobs, **given)

    class Ending(TrainingCallback):
        best = 0

        def after_iteration(self, model: Any, epoch: int, evals_log: object) -> bool:
            asked = epoch % _EVERY == _EVERY - 1
            if (
                asked
                and rows.standing(
                    None, model.predict(matrix, output_margin=True, validate_features=False)
                )
                < 0
            ):
                self.best = epoch
            return bool(epoch - self.best >= patience)

        def after_training(self, model: Any) -> Any:
            model.set_attr(best_iteration=str(self.best))
            return model

    return Ending()


# scikit-learn
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HistogramScores:
    """Raw scores as sums of scikit-learn's histogram boosting.

    Attributes
    ----------
    pieces : tuple of tuples of fitted HistGradientBoostingRegressor
        Each piece adds some rounds: one regressor for each class, or one for the second of two.
    """

    pieces: tuple[tuple[HistGradientBoostingRegressor, ...], ...]

    @property
    def rounds(self) -> int:
        """Number of trees a score."""
        return sum(int(piece[0].n_iter_) for piece in self.pieces)

    def predict(self, X: Any) -> Floats:
        """Predict raw scores: (n,) of two classes, else (n, K)."""
        return sum(
            (scores_of(piece, X) for piece in self.pieces[1:]), start=scores_of(self.pieces[0], X)
        )


def scores_of(regressors: Sequence[HistGradientBoostingRegressor], X: Any) -> Floats:
    """Predict by one regressor for each score: (n,) of one, else (n, K)."""
    found = np.column_stack([each.predict(X) for each in regressors])
    return found[:, 0] if len(regressors) == 1 else found


@dataclass
class _Ending:
    """Held-out rows that end the training of scores: the pieces that they speak for, with their
    number of rounds."""

    X: Any
    rows: _HeldOut
    scores: Floats
    pieces: int = 0
    rounds: int = 0

    def go_on(
        self,
        piece: Sequence[HistGradientBoostingRegressor],
        pieces: int,
        rounds: int,
        patience: int,
    ) -> bool:
        """Whether more trees may be added after this piece."""
        self.scores = self.scores + scores_of(piece, self.X)
        if self.rows.standing(None, self.scores) < 0:
            self.pieces, self.rounds = pieces, rounds
        return rounds - self.rounds < patience


def _fit_sklearn(
    model: Any,
    X: Any,
    loss: _Loss,
    held: tuple[Any, _HeldOut] | None,
    start: Callable[[int], Floats],
) -> HistogramScores:
    params = model.get_params()
    if params["monotonic_cst"] is not None and len(loss.likelihoods) > 2:
        raise InvalidInput(
            "Expected monotonic_cst=None with more than two classes, got constraints. Their scores"
            " have no one direction."
        )
    ending = (
        None
        if held is None or params["early_stopping"] is False
        else _Ending(*held, start(held[1].n))
    )
    kept = {
        name: params[name]
        for name in HistGradientBoostingRegressor().get_params()
        if name in params and name != "loss"
    }
    regressor = HistGradientBoostingRegressor(
        **kept | {"early_stopping": False, "warm_start": False}
    )
    X, scores, generator = (
        rounded_to_bins(X, params["max_bins"]),
        start(loss.n),
        check_random_state(params["random_state"]),
    )
    pieces: list[tuple[HistGradientBoostingRegressor, ...]] = []
    done = 0
    for size in pieces_of(params["max_iter"]):
        regressor.set_params(max_iter=size)
        slopes, bends = (part.reshape(loss.n, -1).T for part in loss(None, scores))
        pieces.append(
            tuple(
                newton(regressor, X, *each, generator) for each in zip(slopes, bends, strict=True)
            )
        )
        done += size
        if ending and not ending.go_on(
            pieces[-1], len(pieces), done, params["n_iter_no_change"] or PATIENCE
        ):
            break
        if done < params["max_iter"]:
            scores = scores + scores_of(pieces[-1], X)
    return HistogramScores(tuple(pieces[: ending.pieces] if ending else pieces))


def pieces_of(rounds: int, growth: float = 0.5, first: int = 1) -> Iterator[int]:
    """Split rounds into pieces, each after the first so much longer than all before it: near the
    end the gradient changes slowly."""
    done = 0
    while done < rounds:
        size = min(max(1 if done else first, int(growth * done)), rounds - done)
        yield size
        done += size


def rounds_of(regressor: Any, library: str) -> int:
    """Return how many rounds a regressor of this library is to take at most."""
    if library == "sklearn.ensemble":
        return _validate.integer(max_iter=regressor.max_iter, low=1)
    usual = regressor.n_estimators is None and library == "xgboost"
    return _validate.integer(n_estimators=_USUAL if usual else regressor.n_estimators, low=1)


def settled(regressor: Any, library: str, settings: dict[str, Any], rounds: int) -> Any:
    """Clone a regressor of this library for `newton`: with these settings and rounds, and no ending
    of its own."""
    params = regressor.get_params()
    own: dict[str, dict[str, Any]] = {
        "lightgbm": {name: None for name in EARLY_STOPPING if params.get(name)},
        "xgboost": {"early_stopping_rounds": None, "base_score": 0.0},
        "sklearn.ensemble": {"early_stopping": False, "warm_start": False},
    }
    return clone(regressor).set_params(
        **settings | own[library] | _silence(params, library) | {_ROUNDS[library]: rounds}
    )


def newton(
    regressor: Any,
    X: Any,
    gradient: NDArray[np.floating],
    curvature: NDArray[np.floating],
    generator: np.random.RandomState,
    categorical: Sequence[int] | None = None,
) -> Any:
    """Fit Newton's steps of one score.

    Parameters
    ----------
    regressor : regressor that `settled` gives
        With the number of rounds; cloned.
    X : n rows of features, of scikit-learn's in bins
    gradient, curvature : (n,) float
    generator : numpy RandomState
    categorical : sequence of int, optional
        Columns of category codes, for LightGBM.
    """
    weights = np.asarray(curvature, np.float64)
    steps = -gradient / weights
    told: dict[str, Any] = {}
    if isinstance(regressor, HistGradientBoostingRegressor):
        # It starts from the mean step, without shrinkage or ridge; where labels say little, such
        # steps grow without bounds.
        whole, ridge = -float(gradient.sum(dtype=np.float64)), regressor.l2_regularization
        steps += regressor.learning_rate * whole / (weights.sum() + ridge) - whole / weights.sum()
    elif _maker(regressor, "Regressor") == "lightgbm":
        # else it starts from the mean step, too
        told = {"init_score": np.zeros(len(steps))} | columns_told(categorical)
    seed = int(generator.randint(np.iinfo(np.int32).max))
    return (
        clone(regressor).set_params(random_state=seed).fit(X, steps, sample_weight=weights, **told)
    )


def columns_told(categorical: Sequence[int] | None) -> dict[str, Any]:
    """Give columns of category codes as LightGBM's `fit` takes them."""
    return {} if categorical is None else {"categorical_feature": list(categorical)}


def rounded_to_bins(X: Any, most: int) -> Any:
    """Round each column of numbers with more than `most` values to the nearest of so many of its
    quantiles.

    Histogram boosting puts values into bins anyway, and weighted rows into weighted bins, which
    scikit-learn (1.8 and later) computes at several times the cost of the trees; of values that fit
    into the bins it computes nothing. Trees split halfway between two values, so a model of rounded
    numbers predicts the unrounded ones alike.

    Parameters
    ----------
    X : (n, d) array or pandas DataFrame
        Left as it is; other tables are returned unchanged.
    most : int
        Number of bins.
    """
    if hasattr(X, "isetitem"):
        made = X.copy(deep=False)
        for place, kind in enumerate(X.dtypes):
            if (
                getattr(kind, "kind", "") in "fiu"
                and (
                    found := _rounded(X.iloc[:, place].to_numpy(np.float64, na_value=np.nan), most)
                )
                is not None
            ):
                made.isetitem(place, found)
        return made
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype.kind not in "fiu":
        return X
    made = np.array(X, np.float64, order="F")
    for column in made.T:
        if (found := _rounded(column, most)) is not None:
            column[:] = found
    return made


def _rounded(values: Floats, most: int) -> Floats | None:
    known = np.sort(values[~np.isnan(values)])
    if np.count_nonzero(known[1:] != known[:-1]) < most:
        return None
    kept = np.unique(known[np.linspace(0, len(known) - 1, most).round().astype(np.int64)])
    found = kept[np.searchsorted((kept[:-1] + kept[1:]) / 2, values).clip(max=len(kept) - 1)]
    return np.where(np.isnan(values), np.nan, found)


_FITS: dict[str, Callable[..., Any]] = {
    "lightgbm": _fit_lightgbm,
    "xgboost": _fit_xgboost,
    "sklearn.ensemble": _fit_sklearn,
}
