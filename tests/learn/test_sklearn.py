# SPDX-License-Identifier: Apache-2.0
"""The estimators keep scikit-learn's contract."""

import pytest
import sklearn
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import labeldp as ldp
from labeldp.learn import ClusterPrior, NoiseCluster, ProportionClassifier, SoftmaxRegression

FRESH = "each fit draws fresh noise"
FRESH_NOISE_CHECKS = ("check_fit_idempotent", "check_supervised_y_2d", "check_classifier_data_not_an_array")


# check_classifiers_train wants 0.83 on 300 rows, whose labels at epsilon = 1 allow 0.82 to 0.93 by the seed. The trees of scikit-learn 1.8
# reach 0.823 with seed 0, those of 1.9 reach 0.837.
OLD_TREES = (
    {}
    if tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 9)
    else {"check_classifiers_train": "300 rows at epsilon = 1 and this seed"}
)


def fails_by_fresh_noise(estimator):
    if isinstance(estimator, SoftmaxRegression):
        return {}
    if estimator.noise is not None:
        return OLD_TREES if estimator.estimator is None else {}
    return dict.fromkeys(FRESH_NOISE_CHECKS, FRESH)


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [
        ldp.LabelDPClassifier(epsilon=4.0),  # with fresh noise, enough that no check of accuracy fails by chance
        ldp.LabelDPClassifier(noise=ldp.SeededNoise(0)),
        ldp.LabelDPClassifier(make_pipeline(StandardScaler(), LogisticRegression()), noise=ldp.SeededNoise(0)),
        ldp.LabelDPClassifier(LogisticRegression(), epsilon=4.0, prior=ClusterPrior(), noise=ldp.SeededNoise(0)),
        NoiseCluster(epsilon=4.0, noise=ldp.SeededNoise(0)),
        NoiseCluster(make_pipeline(StandardScaler(), LogisticRegression()), epsilon=4.0),
        ProportionClassifier(epsilon=4.0, noise=ldp.SeededNoise(0)),
        ProportionClassifier(make_pipeline(StandardScaler(), LogisticRegression()), epsilon=4.0),
        SoftmaxRegression(),
    ],
    expected_failed_checks=fails_by_fresh_noise,
    xfail_strict=False,
)
def test_estimator_contract(estimator, check):
    check(estimator)
