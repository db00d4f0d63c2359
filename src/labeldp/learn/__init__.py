# SPDX-License-Identifier: Apache-2.0
"""Learning from noisy labels with NumPy and scikit-learn."""

from labeldp.learn._classifier import LabelDPClassifier
from labeldp.learn._cluster_estimators import NoiseCluster, ProportionClassifier
from labeldp.learn._clusters import ClusterPrior, HistogramPrior, find_clusters
from labeldp.learn._corrections import LearnOptions
from labeldp.learn._counts import CountsClassifier, CountTable, Groupings
from labeldp.learn._regressor import LabelDPRegressor
from labeldp.learn._softmax import SoftmaxRegression
from labeldp.protocol._prior import Prior

__all__ = [
    "ClusterPrior",
    "CountTable",
    "CountsClassifier",
    "Groupings",
    "HistogramPrior",
    "LabelDPClassifier",
    "LabelDPRegressor",
    "LearnOptions",
    "NoiseCluster",
    "Prior",
    "ProportionClassifier",
    "SoftmaxRegression",
    "find_clusters",
]
