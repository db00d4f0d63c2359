# SPDX-License-Identifier: Apache-2.0
"""Learning from noisy labels with NumPy and scikit-learn."""

from labeldp.learn.classifier import LabelDPClassifier
from labeldp.learn.cluster_estimators import NoiseCluster, ProportionClassifier
from labeldp.learn.learners import LearnOptions
from labeldp.learn.priors import ClusterPrior
from labeldp.learn.softmax import SoftmaxRegression

__all__ = ["ClusterPrior", "LabelDPClassifier", "LearnOptions", "NoiseCluster", "ProportionClassifier", "SoftmaxRegression"]
