# SPDX-License-Identifier: Apache-2.0
"""Score-valued and cluster laws through the classifier: trained, validated and measured like any
other law."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import labeldp as ldp
from labeldp.laws import ClusterRR
from labeldp.papers.malek2021 import Alibi


def closed(y: object, k: int = 4, **facts: object) -> ldp.PrivateLabels:
    return ldp.PrivateLabels(y, **{"classes": range(k), "noise": ldp.SeededNoise(1)} | facts)


def blobs(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8)
    y = rng.integers(0, 4, n)
    centres = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    return centres[y] + rng.normal(size=(n, 2)), y


@pytest.mark.parametrize(
    "law", ["alibi", "cluster-rr", Alibi(4, 2.0, 32), ClusterRR(4, 2.0, 0.1)], ids=str
)
@pytest.mark.parametrize("n_stages", [1, 2])
def test_the_classifier_learns(law: object, n_stages: int) -> None:
    """Near the best possible (0.85), and the estimate from noisy labels holds the truth; seeded, so
    it passes always or never."""
    X, y = blobs(6000)
    model = ldp.LabelDPClassifier(
        LogisticRegression(),
        epsilon=2.0,
        law=law,
        stages=n_stages,
        random_state=0,
    )
    model.fit(X[:4000], closed(y[:4000]))
    truth = (model.predict(X[4000:]) == y[4000:]).mean()
    assert truth > 0.81
    assert model.estimated_accuracy_.low - 0.05 <= truth <= model.estimated_accuracy_.high + 0.05


@pytest.mark.parametrize("law", [Alibi(4, 2.0), ClusterRR(4, 2.0, 0.1)], ids=str)
def test_fitting_on_noisy_labels_holds_rows_out(law: ldp.Law) -> None:
    X, y = blobs(4000)
    noisy = ldp.privatize(closed(y, noise=ldp.SeededNoise(2)), law)
    model = ldp.LabelDPClassifier(LogisticRegression(), epsilon=2.0, random_state=0).fit(X, noisy)
    assert (model.predict(X) == y).mean() > 0.81
    assert model.estimated_accuracy_ is not None


def test_too_high_a_floor_is_refused_before_anything_is_charged(ledger) -> None:
    facts = {"dataset": "d", "column": "label", "ledger": ledger, "noise": None}
    with pytest.raises(ldp.InvalidInput, match="must fit"):
        ldp.privatize(
            closed([0, 1, 2], 3, **facts),
            ClusterRR(3, 1.0, 0.4),
        )
    with pytest.raises(ldp.InvalidInput, match="finite prior"):
        ldp.privatize(
            closed([0, 1], 2, **facts),
            ClusterRR(2, 1.0),
            prior=[[np.nan, 1.0], [1.0, 1.0]],
        )
    assert ledger.spent("d", "label") == 0.0
