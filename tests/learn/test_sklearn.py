# SPDX-License-Identifier: Apache-2.0
"""The estimators keep scikit-learn's contract."""

import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

import labeldp as ldp
from labeldp.learn import ClusterPrior, NoiseCluster, ProportionClassifier, SoftmaxRegression
from labeldp.papers.malek2021 import PATEClassifier
from labeldp.testing import PlainLabels

SCALED = make_pipeline(StandardScaler(), LogisticRegression())
WEIGHTED = dict.fromkeys(
    (
        "check_sample_weight_equivalence_on_dense_data",
        "check_sample_weight_equivalence_on_sparse_data",
    ),
    "a row that is there twice is drawn twice, one of weight 2 once",
)


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [
        PlainLabels(ldp.LabelDPClassifier(epsilon=4.0, random_state=0)),
        # check_classifiers_train wants 0.83 on 300 rows, whose labels at epsilon = 1 allow 0.72 to
        # 0.93 by the seed
        PlainLabels(ldp.LabelDPClassifier(epsilon=2.0, random_state=0)),
        PlainLabels(ldp.LabelDPClassifier(SCALED, epsilon=4.0, random_state=0)),
        PlainLabels(
            ldp.LabelDPClassifier(
                LogisticRegression(), epsilon=4.0, prior=ClusterPrior(), random_state=0
            )
        ),
        PlainLabels(NoiseCluster(epsilon=4.0)),
        PlainLabels(NoiseCluster(SCALED, epsilon=4.0)),
        PlainLabels(ProportionClassifier(epsilon=4.0)),
        PlainLabels(ProportionClassifier(SCALED, epsilon=4.0)),
        # few rows: no answer would be no student
        PlainLabels(PATEClassifier(epsilon=30.0, threshold=0)),
        PlainLabels(
            PATEClassifier(DecisionTreeClassifier(max_depth=3), epsilon=100.0, threshold=0)
        ),
        SoftmaxRegression(),
    ],
    expected_failed_checks=lambda each: {} if isinstance(each, SoftmaxRegression) else WEIGHTED,
    xfail_strict=False,
)
def test_estimator_contract(estimator, check):
    check(estimator)
