# SPDX-License-Identifier: Apache-2.0
"""LabelDPRegressor: train any scikit-learn regressor on private numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.utils import check_random_state

from labeldp.evidence import NoisyLabels
from labeldp.laws import Law
from labeldp.learn._classifier import FEW_ROWS, TabularEstimator, _Training, dry_run
from labeldp.learn._corrections import (
    DEFAULTS,
    LearnOptions,
    require_regressor,
)
from labeldp.learn._data import Floats, features_digest
from labeldp.learn._location import LocationLearner, LocationModel
from labeldp.protocol._estimator import RegressorEstimator, quantiles_of
from labeldp.protocol._fit import FitPlan
from labeldp.protocol._prior import Prior, stages_of

POINTS = 64
MOST_ROUNDS = 300  # of the default boosting; noisy rows choose how many are taken


def default_regressor(n_rows: int, **settings: Any) -> HistGradientBoostingRegressor:
    """Make the regressor that is trained where none is given: boosted trees, whose size and number
    noisy rows decide.

    Parameters
    ----------
    n_rows : int
        Rows to learn from.
    settings
        Of HistGradientBoostingRegressor.
    """
    if n_rows < FEW_ROWS:
        return HistGradientBoostingRegressor(
            max_iter=30, max_leaf_nodes=4, min_samples_leaf=40, early_stopping=False, **settings
        )
    return HistGradientBoostingRegressor(max_iter=MOST_ROUNDS, early_stopping=False, **settings)


class LabelDPRegressor(RegressorEstimator, TabularEstimator[LocationModel]):
    """Train any scikit-learn regressor or pipeline on numbers under label differential privacy.

    Parameters
    ----------
    estimator : regressor or pipeline, default=None
        It must fit squared errors, and should take sample weights. None: histogram gradient
        boosting, which takes columns of text and categories, and missing values. Cloned.
    epsilon : float > 0, default=1.0
        Total label-DP budget of a fit, for one unit (a row, or the labels' own unit).
    stages : int >= 1, or sequence of floats > 0, default=1
        Number of stages, or the share of the rows in each, at any scale. With 2 or more the rows
        are drawn in parts, and each later part is asked about bins around what the model so far
        expects.
    law : str or Law, default="auto"
        A law's name, or a Law with this epsilon over the grid's points. "auto": rows are drawn by
        `SquareWave`, which releases a random interval, of more than 700 points by `Threshold`; with
        a prior, or in two and more stages, by `PriorBins`, which chooses for each row the bins (at
        small epsilon: the threshold) with the least expected squared error under the prior.
        "prior-bins:information" and "prior-bins:location" choose them by information about the
        number, or about its location.
    prior : (n, G) array of floats >= 0, function of X, or Prior, default=None
        Public weights of the grid's points for the first stage; they must not depend on these
        numbers.
    validation_fraction : float in [0, 1), default=0.1
        Share of the rows held out to measure the model by their noisy labels, drawn without a prior
        by a law that has unbiased weights. The final refit learns from them, too (see `options`).
        No row is held out if they would be fewer than 20.
    random_state : int >= 0, RandomState or None, default=None
        Seed of the training only, never of the noise or of the partition into stages.
    options : LearnOptions, default=None
        Rounds after the first one (not of gradient boosting), and refit; the rest is for
        classifiers. None: `LearnOptions()`.

    Attributes
    ----------
    grid_ : (G,) float64 array
    estimator_ : fitted estimator (of locations)
    scale_ : float
        Standard deviation around a row's location, in units of the number where that is spread
        evenly.
    noisy_labels_ : NoisyLabels of all rows, in the order of X
    privacy_ : PrivacySpent
    receipts_ : tuple of Receipt
    stages_ : tuple of Stage
    estimated_rmse_ : Estimate or None
        Estimated root mean squared error on the true numbers, on held-out noisy rows, before the
        final refit. None if there are fewer than 20 such rows, or their law has no unbiased
        estimator.
    estimated_r2_ : Estimate or None
        Estimated R^2 on the same rows.
    baseline_rmse_ : Estimate or None
        The error of a constant, the mean of the other rows.
    n_features_in_, feature_names_in_

    See Also
    --------
    labeldp.LabelDPClassifier : the same for classes. labeldp.metrics.root_mean_squared_error,
    labeldp.metrics.r2 : the same estimates of any model's predictions.

    References
    ----------
    Green (1984), "Iteratively reweighted least squares for maximum likelihood estimation"; Tobin
    (1958) for clamped numbers.

    Notes
    -----
    Guarantee: everything that the fit returns or stores is epsilon-label-DP. Each number is
    randomized once; all else (scale, shrinkage, `estimated_rmse_`) is post-processing of the
    outputs. Features are not protected.

    Model: an increasing function of a row's number is normal around the estimator's prediction, its
    location, with one deviation for all rows. The function, by the cuts between the grid's points,
    is the one with which predictions have the distribution of all numbers together, as the released
    labels tell it; so skewed and capped numbers are predicted without bias on the whole. Location
    and deviation are found by maximum likelihood of what was released, in rounds of weighted least
    squares; by gradient boosting (scikit-learn's HistGradientBoostingRegressor, LightGBM's
    LGBMRegressor, XGBoost's XGBRegressor) tree by tree, with as many rounds, up to `max_iter` or
    `n_estimators`, as the likelihood of unseen noisy rows speaks for, and smaller trees where
    labels tell less. `predict` gives the mean of the number.

    Cost of one stage: 9 fits on two thirds of the rows and one on all, 7 plain fits together, and
    as much again for the final refit; with `LearnOptions(em_rounds=0, refit=False)` 3 plain fits.
    Gradient boosting of squared errors: three boostings on two thirds of the rows, each in about a
    dozen short fits, whose mean is the model, and one on all rows for the final refit, which enters
    the mean; with several stages one more on all rows of each; and two more where the rows tell as
    much as 10,000 true numbers, to choose the size of the trees. With another objective or booster
    (DART, forests), or with a metric or callbacks of your own, LightGBM and XGBoost take the 9 fits
    of any regressor.

    Examples
    --------
    >>> import labeldp as ldp
    >>> from sklearn.datasets import make_friedman1
    >>> from sklearn.linear_model import LinearRegression
    >>> X, y = make_friedman1(4000, random_state=0)
    >>> labels = ldp.PrivateLabels(y, range=(0, 30), noise=ldp.SeededNoise(0))
    >>> model = ldp.LabelDPRegressor(LinearRegression(), epsilon=2.0, random_state=0)
    >>> model = model.fit(X, labels)
    >>> bool(model.score(X, y) > 0.6)
    True
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        epsilon: float = 1.0,
        stages: int | Sequence[float] = 1,
        law: str | Law = "auto",
        prior: ArrayLike | Callable[[Any], ArrayLike] | Prior | None = None,
        validation_fraction: float = 0.1,
        random_state: Any = None,
        options: LearnOptions | None = None,
    ) -> None:
        self.estimator = estimator
        self.epsilon = epsilon
        self.stages = stages
        self.law = law
        self.prior = prior
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.options = options

    # Fitting
    # ----------------------------------------------------------------------------------------------

    def _inputs(self, X: Any, y: Any) -> Any:
        base = self._base()
        require_regressor(base)
        self._require_prior_of_numbers()
        return self._checked(X, y, reset=True)

    def _training(
        self, inputs: Any, source: FitPlan | NoisyLabels, state: None
    ) -> _Training[LocationModel]:
        options = self.options or DEFAULTS
        encoded, estimator, encoder, random_state = self._prepared(
            inputs, self._base(inputs.shape[0]), "em"
        )
        if isinstance(source, FitPlan):
            rows = int(inputs.shape[0] * source.stages.fractions[-source.stages.n_stages])

            def fit(copy: Any, few: Any, noisy: NoisyLabels) -> LocationModel:
                on_grid = replace(noisy, classes=source.classes)
                learner = LocationLearner(
                    copy, replace(options, em_rounds=0), check_random_state(0), whole=True
                )
                return learner.fit(few, on_grid, None, None)

            dry_run(estimator, encoded, len(source.classes), rows, fit)
        return _Training(
            encoded,
            LocationLearner(
                estimator,
                options,
                random_state,
                whole=len(stages_of(self.stages)) > 1 or not options.refit,
            ),
            options.refit,
            1.0,
            encoder,
            lambda: features_digest(inputs),
            lambda rows: random_state.permutation(rows),
            self._weights,
        )

    def _keep(self, training: Any, noisy: NoisyLabels, model: LocationModel, held_out: Any) -> Any:
        unseen = super()._keep(training, noisy, model, held_out)
        self.scale_ = self._model.family.scale
        return unseen

    # Predicting
    # ----------------------------------------------------------------------------------------------

    def _base(self, n_rows: int = FEW_ROWS) -> Any:
        """Return the user's estimator, or the default."""
        return default_regressor(n_rows) if self.estimator is None else self.estimator

    def predict(self, X: Any) -> Floats:
        """Predict the mean of each row's true number: (n,) float64.

        Parameters
        ----------
        X : (n, n_features) array, sparse matrix or data frame
        """
        return self._predicted(X, LocationModel.predict)

    def predict_distribution(self, X: Any) -> Floats:
        """Predict probabilities of the true number's grid point: (n, G) float64, columns in the
        order of `grid_`.

        Parameters
        ----------
        X : (n, n_features) array, sparse matrix or data frame
        """
        return self._predicted(X, LocationModel.predict_proba)

    def predict_quantile(self, X: Any, q: float | ArrayLike) -> Floats:
        """Predict a quantile of each row's true number, such as the median, before rounding to the
        grid.

        Parameters
        ----------
        X : (n, n_features) array, sparse matrix or data frame
        q : float in (0, 1), or (m,) array of them

        Returns
        -------
        (n,) float64, or (n, m) if q is an array
            Within the range; of a grid of two points, one of them.
        """
        wanted, locations = quantiles_of(q), self._predicted(X, LocationModel.locations)
        found = self._model.family.quantile(locations, wanted.reshape(-1))
        return found if wanted.ndim else found[:, 0]
