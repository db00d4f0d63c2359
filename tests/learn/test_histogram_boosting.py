# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's histogram boosting on the exact likelihood: its steps, its end, and numbers
rounded to bins."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from tests.learn.datasets import log_loss, table

import labeldp as ldp
from labeldp.learn import _boosting
from labeldp.learn._boosting import LikelihoodBoosting, rounded_to_bins


def fitted(X, noisy, **settings):
    return LikelihoodBoosting(
        HistGradientBoostingClassifier(random_state=0, **settings)
    ).fit_likelihood(X, noisy.log_likelihood())


@pytest.mark.parametrize(("k", "epsilon"), [(2, 0.5), (4, 1.0)])
def test_a_stump_takes_the_steps_of_newton_on_the_likelihood(k, epsilon):
    X = np.repeat([[0.0], [1.0]], 500, axis=0)
    noisy = ldp.privatize(
        ldp.PrivateLabels(
            (np.arange(1000) * k) // 1000, classes=range(k), noise=ldp.SeededNoise(0)
        ),
        ldp.RandomizedResponse(k, epsilon),
    )
    settings = {
        "max_iter": 1,
        "max_leaf_nodes": 2,
        "l2_regularization": 0.5,
        "learning_rate": 0.3,
        "max_features": 0.9,
    }
    model = fitted(X, noisy, **settings)
    gradient, curvature = _boosting._Loss(_boosting._likelihoods(noisy.log_likelihood()))(
        None, model._scores(1000)
    )
    gradient, curvature = (part.reshape(1000, -1).astype(float) for part in (gradient, curvature))
    mean = -gradient.sum(axis=0) / curvature.sum(axis=0)
    # what all rows get; leaves get what is beyond the mean
    whole = -0.3 * gradient.sum(axis=0) / (curvature.sum(axis=0) + 0.5)
    for rows in (slice(0, 500), slice(500, 1000)):
        left = (gradient + curvature * mean)[rows].sum(axis=0) / (curvature[rows].sum(axis=0) + 0.5)
        found = model.estimator_.predict(X[rows][:1])
        np.testing.assert_allclose(np.ravel(found), whole - 0.3 * left, rtol=1e-4, atol=1e-6)


def test_where_labels_say_little_scores_stay_bounded():
    # each regressor starts from the mean of Newton's steps; without ridge that mean once ran away
    # on few rows of ten classes
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1300, 20)), rng.integers(10, size=1300)
    for seed in range(2):
        noisy = ldp.privatize(
            ldp.PrivateLabels(y, classes=range(10), noise=ldp.SeededNoise(seed)),
            ldp.SubsetSelection(10, 0.5),
        )
        assert log_loss(fitted(X, noisy, max_iter=60), X, y) < np.log(10) + 1


def test_held_out_rows_end_a_training_that_goes_wrong():
    X, y, X_test, y_test = table(4)
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(4), noise=ldp.SeededNoise(1)),
        ldp.RandomizedResponse(4, 1.5),
    )
    free = HistGradientBoostingClassifier(
        l2_regularization=1e-9, max_leaf_nodes=30, max_iter=200, random_state=0
    )
    stopped = ldp.LabelDPClassifier(free, random_state=0).fit(X, noisy)
    whole = ldp.LabelDPClassifier(clone(free).set_params(early_stopping=False), random_state=0).fit(
        X, noisy
    )
    assert stopped.estimator_.n_iter_ < 150 and whole.estimator_.n_iter_ == 200
    assert log_loss(stopped, X_test, y_test) < log_loss(whole, X_test, y_test) - 0.3


def test_directions_are_for_two_classes():
    X, y, *_ = table(2)
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(2), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(2, 2.0),
    )
    model = fitted(X, noisy, monotonic_cst=[1] + [0] * 9)
    line = np.tile(np.median(X, axis=0), (50, 1))
    line[:, 0] = np.linspace(-4, 4, 50)
    assert (np.diff(model.predict_proba(line)[:, 1]) >= 0).all()
    more = ldp.privatize(
        ldp.PrivateLabels(np.arange(4000) % 3, classes=range(3), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(3, 2.0),
    )
    with pytest.raises(ldp.InvalidInput, match="monotonic_cst=None with more than two classes"):
        fitted(X, more, monotonic_cst=[1] + [0] * 9)


def test_the_default_is_the_likelihood_from_2000_rows_on():
    X, y, *_ = table(2)
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(2), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(2, 2.0),
    )
    many = ldp.LabelDPClassifier(random_state=0).fit(X, noisy)
    few = ldp.LabelDPClassifier(random_state=0).fit(X[:1000], noisy[:1000])
    assert isinstance(many.estimator_, LikelihoodBoosting) and isinstance(
        few.estimator_, HistGradientBoostingClassifier
    )


# Numbers rounded to bins
# --------------------------------------------------------------------------------------------------


def test_a_model_of_rounded_numbers_predicts_unrounded_ones_alike():
    rng = np.random.default_rng(0)
    X = np.column_stack(
        [rng.normal(size=3000), rng.exponential(size=3000), rng.integers(5, size=3000)]
    )
    X[::9, 1] = np.nan
    rounded = rounded_to_bins(X, 32)
    assert [len(np.unique(column[~np.isnan(column)])) for column in rounded.T] == [32, 32, 5]
    np.testing.assert_array_equal(np.isnan(rounded), np.isnan(X))
    y = X[:, 0] + np.nan_to_num(X[:, 1]) ** 2 + rng.normal(size=3000)
    model = HistGradientBoostingRegressor(max_bins=32).fit(
        rounded, y, sample_weight=rng.random(3000)
    )
    np.testing.assert_array_equal(model.predict(X), model.predict(rounded))


def test_rounding_keeps_frames_and_their_other_columns():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "a": rng.normal(size=900),
            "kind": pd.Categorical(rng.choice(["x", "y"], 900)),
            "b": rng.normal(size=900),
        }
    )
    frame["c"] = pd.array(rng.integers(1000, size=900), dtype="Int64")
    frame.loc[3, "c"] = pd.NA
    frame.columns = ["a", "kind", "a", "c"]  # names may repeat
    before = frame.copy()
    rounded = rounded_to_bins(frame, 16)
    pd.testing.assert_frame_equal(frame, before)
    assert (
        list(rounded.columns) == list(frame.columns)
        and rounded.dtypes.iloc[1] == frame.dtypes.iloc[1]
    )
    assert [rounded.iloc[:, place].nunique() for place in range(4)] == [16, 2, 16, 16] and np.isnan(
        rounded.iloc[3, 3]
    )


@pytest.mark.parametrize("library", ["histogram", "lightgbm", "xgboost"])
def test_halves_of_rows_say_how_far_trees_of_little_information_are_trusted(library):
    """Strong features: the scores, which a large ridge has held back, are enlarged. Features that
    tell nothing: they are not."""
    if library == "histogram":
        trees = HistGradientBoostingClassifier(random_state=0)
    else:
        module = pytest.importorskip(library)
        trees = (
            module.LGBMClassifier(verbose=-1, n_jobs=1)
            if library == "lightgbm"
            else module.XGBClassifier(n_jobs=1)
        )
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(6000, 4)), (rng.random(6000) < 0.08).astype(int)
    strong = X + 4 * y[:, None]
    table = ldp.privatize(
        ldp.PrivateLabels(y, classes=[0, 1], noise=ldp.SeededNoise(5)),
        ldp.RandomizedResponse(2, 1.0),
    ).log_likelihood(dtype="float64")
    factors = [
        LikelihoodBoosting(trees).fit_likelihood(features, table).factor_
        for features in (strong, X)
    ]
    assert factors[0] > 1.1 and factors[1] < 1.02
    without_noise = np.where(np.arange(2) == y[:, None], 0.0, -np.inf)
    # halves would cost time and tell nothing new
    assert LikelihoodBoosting(trees).fit_likelihood(strong, without_noise).factor_ == 1.0


@pytest.mark.parametrize("k", [2, 4])
def test_mean_probabilities_stay_within_a_standard_error_of_the_frequencies(k):
    """However far trees have followed the noise: here without a ridge, on 30 columns that tell
    nothing."""
    rng = np.random.default_rng(7)
    X, y = (
        rng.normal(size=(3000, 30)),
        rng.choice(k, p=[0.97, *[0.03 / (k - 1)] * (k - 1)], size=3000),
    )
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(k), noise=ldp.SeededNoise(7)),
        ldp.RandomizedResponse(k, 1.0),
    )
    table = noisy.log_likelihood(dtype="float64")
    wild = HistGradientBoostingClassifier(l2_regularization=1e-3, max_leaf_nodes=63, random_state=0)
    model = LikelihoodBoosting(wild).fit_likelihood(X, table)
    frequencies = ldp.metrics.likeliest_frequencies(noisy.likelihood(dtype="float64"))
    own, other = (float(each[0]) for each in noisy.inclusion())
    chance = other + (own - other) * frequencies
    error = np.sqrt(chance * (1 - chance) / 3000) / (own - other)
    p = model.predict_proba(X)
    away = np.abs(p.mean(axis=0) - frequencies)
    assert (away[1:] < 1.2 * error[1:] + 2e-3).all() and away[0] < (k - 1) * 1.2 * error[0] + 2e-3
    assert p[:, 1:].max() > 0.3  # and yet it has followed the noise
