# SPDX-License-Identifier: Apache-2.0
"""Masked arrays are refused at every door: as plain arrays they would be what lies beneath the
mask."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

import labeldp as ldp
from labeldp import metrics, stats
from labeldp.errors import InvalidInput
from labeldp.learn import ProportionClassifier, find_clusters

N = 300
Y = np.arange(N) % 3
X = np.random.default_rng(0).normal(size=(N, 2))
LABELS = ldp.PrivateLabels(Y, classes=range(3), noise=ldp.SeededNoise(0))
MODEL = GaussianNB()
DRAWN = ldp.privatize(LABELS, ldp.RandomizedResponse(3, 3.0))
FEATURES, NUMBERS, PROBA = X, np.ones(N), np.full((N, 3), 1 / 3)

DOORS: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "features of a fit": (
        FEATURES,
        lambda a: ldp.LabelDPClassifier(MODEL, epsilon=1.0).fit(a, LABELS),
    ),
    "features of counts": (
        FEATURES,
        lambda a: ProportionClassifier(epsilon=1.0).fit(a, LABELS),
    ),
    "features to predict": (
        FEATURES,
        lambda a: ldp.LabelDPClassifier(MODEL, epsilon=1.0).fit(X, LABELS).predict(a),
    ),
    "features of a regression": (FEATURES, lambda a: stats.regress(DRAWN, a, "linear")),
    "groups": (Y, lambda a: stats.frequencies(DRAWN, by=a)),
    "weights of a fit": (
        NUMBERS,
        lambda a: ldp.LabelDPClassifier(MODEL, epsilon=1.0).fit(X, LABELS, sample_weight=a),
    ),
    "weights of a metric": (NUMBERS, lambda a: metrics.accuracy(DRAWN, Y, sample_weight=a)),
    "class rates": (
        np.full(3, 1 / 3),
        lambda a: ldp.LabelDPClassifier(MODEL, epsilon=1.0, class_prior=a).fit(X, LABELS),
    ),
    "prior of a draw": (
        PROBA,
        lambda a: ldp.privatize(LABELS, ldp.RRWithPrior(3, 1.0), prior=a),
    ),
    "prior by a function": (
        PROBA,
        lambda a: ldp.privatize(LABELS, ldp.RRWithPrior(3, 1.0), prior=lambda rows: a[rows]),
    ),
    "prior in batches": (
        PROBA,
        lambda a: ldp.privatize(LABELS, ldp.RRWithPrior(3, 1.0), prior=iter([a[:9], a[9:]])),
    ),
    "prior of a fit": (
        PROBA,
        lambda a: ldp.LabelDPClassifier(MODEL, epsilon=1.0, prior=a).fit(X, LABELS),
    ),
    "ids": (np.arange(N), lambda a: DRAWN.by_id(a)),
    "rows to cluster": (X, lambda a: find_clusters(a, n_clusters=2)),
    "likelihoods": (PROBA, lambda a: metrics.likeliest_frequencies(a)),
    "prior of a posterior": (PROBA, lambda a: DRAWN.posterior(a)),
    "predictions": (Y, lambda a: metrics.accuracy(DRAWN, a)),
    "predicted numbers": (NUMBERS, lambda a: metrics.mean_squared_error(DRAWN, a)),
    "probabilities": (PROBA, lambda a: metrics.log_loss(DRAWN, a)),
    "scores": (NUMBERS, lambda a: metrics.roc_auc(DRAWN, a, positive=1)),
    "costs": (np.eye(3), lambda a: metrics.cost(DRAWN, Y, a)),
    "losses": (PROBA, lambda a: DRAWN.debias(a)),
}


@pytest.mark.parametrize("door", DOORS)
def test_masked_values_are_refused_before_anything_is_computed(door: str):
    array, call = DOORS[door]
    hidden = np.ma.masked_array(array, np.zeros_like(array, bool))
    call(hidden)  # a mask that hides nothing is no mask
    hidden[(1,) * array.ndim] = np.ma.masked
    with pytest.raises(InvalidInput, match="without masked values"):
        call(hidden)


KINDS = [
    "weights of a metric",
    "predicted numbers",
    "probabilities",
    "scores",
    "costs",
    "losses",
    "prior of a fit",
    "likelihoods",
]


@pytest.mark.parametrize("door", KINDS)
@pytest.mark.parametrize("kind", [complex, str])
def test_what_is_no_real_number_is_refused(door: str, kind: type):
    array, call = DOORS[door]
    wrong = array.astype(complex) if kind is complex else np.full(array.shape, "many")
    with pytest.raises(InvalidInput, match="array of real numbers"):
        call(wrong)


def test_rates_with_an_imaginary_part_are_refused():
    with pytest.raises(InvalidInput, match="class_prior as an array of real numbers"):
        ldp.LabelDPClassifier(MODEL, class_prior=np.full(3, 1 / 3, complex)).fit(X, LABELS)
