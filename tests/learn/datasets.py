# SPDX-License-Identifier: Apache-2.0
"""Rows for boosting, and how well a model predicts them."""

import numpy as np
from sklearn.datasets import make_classification


def table(n_classes, n=4000, seed=3):
    """Rows and labels to learn from, and as many others."""
    X, y = make_classification(
        2 * n,
        n_features=10,
        n_informative=6,
        n_classes=n_classes,
        n_clusters_per_class=1,
        class_sep=1.5,
        random_state=seed,
    )
    return X[:n], y[:n], X[n:], y[n:]


def log_loss(model, X, y):
    return -np.log(model.predict_proba(X)[np.arange(len(y)), y]).mean()
