# SPDX-License-Identifier: Apache-2.0
"""Noisy labels without ids belong to as many rows: each door that pairs them with rows by position
refuses another number."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

import labeldp as ldp
from labeldp import metrics, stats

pytestmark = pytest.mark.filterwarnings(
    "ignore::labeldp.errors.SeededNoiseWarning", "ignore::labeldp.errors.UnrecordedWarning"
)
K, N, FEW = 3, 300, 120
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 2)), RNG.integers(K, size=N)
SOME = RNG.permutation(N)[:FEW]
EVERY = np.arange(N)
EQUAL = np.full((N, K), 1 / K)


def released(labels, classes):
    return ldp.privatize(
        ldp.PrivateLabels(labels, classes=classes, noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(len(classes), 4.0),
    )


NOISY, NUMBERS, BITS = (
    released(Y[SOME], range(K)),
    released(Y[SOME] / 1, ldp.Grid(0, 2, 3)),
    released(Y[SOME] > 0, [False, True]),
)


class Constant:
    """A model of three classes that has learned nothing."""

    classes_ = np.arange(K)

    def predict(self, X):
        return np.zeros(len(X), int)

    def predict_proba(self, X):
        return np.full((len(X), K), 1 / K)


def classifier():
    return ldp.LabelDPClassifier(LogisticRegression(), random_state=0)


DOORS = {
    "fit": lambda: classifier().fit(X, NOISY),
    "fit with ids": lambda: classifier().fit(X, NOISY, ids=EVERY),
    "fit of numbers": (
        lambda: ldp.LabelDPRegressor(LinearRegression(), random_state=0).fit(X, NUMBERS, ids=EVERY)
    ),
    "score": lambda: classifier().fit(X[:FEW], NOISY).score(X, NOISY),
    "score with ids": lambda: classifier().fit(X[:FEW], NOISY).score(X, NOISY, ids=EVERY),
    "softmax": lambda: ldp.learn.SoftmaxRegression().fit_likelihood(X, NOISY.log_likelihood()),
    "scorer": lambda: metrics.make_scorer("accuracy")(Constant(), X, NOISY),
    "likelihood scorer": lambda: metrics.likelihood_scorer(Constant(), X, NOISY),
    "accuracy": lambda: metrics.accuracy(NOISY, Y),
    "weights": lambda: metrics.accuracy(NOISY, Y[:FEW], sample_weight=np.ones(N)),
    "log-loss": lambda: metrics.log_loss(NOISY, EQUAL),
    "judge": lambda: metrics.judge(NOISY, EQUAL, EQUAL[0]),
    "area": lambda: metrics.roc_auc(NOISY, X[:, 0], positive=1),
    "calibration": lambda: metrics.calibration_curve(NOISY, EQUAL, positive=1),
    "squares": lambda: metrics.mean_squared_error(NUMBERS, X[:, 0]),
    "r2": lambda: metrics.r2(NUMBERS, X[:, 0]),
    "log-evidence": lambda: metrics.mean_log_evidence(NOISY, EQUAL),
    "lost classes": lambda: metrics.lost_classes(NOISY, EQUAL),
    "groups": lambda: stats.frequencies(NOISY, by=Y),
    "groups with ids": lambda: stats.frequencies(NOISY, by=Y, ids=EVERY),
    "ids alone": lambda: stats.frequencies(NOISY, ids=EVERY),
    "units": lambda: stats.frequencies(NOISY, units=EVERY),
    "means": lambda: stats.mean(NUMBERS, by=Y, ids=EVERY),
    "cross table": lambda: stats.crosstab(NOISY, Y, ids=EVERY),
    "difference": lambda: stats.difference(BITS, X[:, 0] > 0, ids=EVERY),
    "effect": lambda: stats.effect(BITS, X[:, 0] > 0, ids=EVERY),
    "regression": lambda: stats.regress(NUMBERS, X, "linear", ids=EVERY),
    "logistic": lambda: stats.regress(BITS, X, "logistic"),
    "prior": lambda: NOISY.posterior(EQUAL),
    "losses": lambda: NOISY.debias(EQUAL),
    "another draw": lambda: NOISY.combine(released(Y, range(K))),
}


@pytest.mark.parametrize("door", DOORS)
def test_another_number_of_rows_is_refused(door):
    with pytest.raises(ldp.InvalidInput):
        DOORS[door]()


def test_the_refusal_says_what_to_do():
    with pytest.raises(
        ldp.InvalidInput,
        match=(
            r"labels of 300 rows, as many as X has, got 120\. They carry no ids .* pass just the"
            r" rows"
        ),
    ):
        classifier().fit(X, NOISY, ids=EVERY)
    named = ldp.privatize(
        ldp.PrivateLabels(Y[SOME], classes=range(K), ids=SOME, noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(K, 4.0),
    )
    with pytest.raises(ldp.InvalidInput, match=r"got 120\. Pass ids= with the ids of X's rows"):
        classifier().fit(X, named)
    assert len(classifier().fit(X, named, ids=EVERY).noisy_labels_) == FEW


def test_as_many_rows_may_be_given_by_their_positions():
    order = RNG.permutation(FEW)
    fitted = classifier().fit(X[SOME][order], NOISY, ids=order).noisy_labels_
    assert np.array_equal(fitted.likelihood(), NOISY[order].likelihood())
