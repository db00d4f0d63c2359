# SPDX-License-Identifier: Apache-2.0
"""The linear round: fit the members of the outputs, then undo the law on the predictions."""

import numpy as np
from numpy.typing import NDArray

from labeldp.evidence import NoisyLabels
from labeldp.learn.model import Estimator, Model, fit_codes
from labeldp.protocol.fitting import members


def common_channel(noisy: NoisyLabels) -> tuple[float, float] | None:
    """(own, other) if one invertible law covers all rows, each drawn once; else None."""
    if not len(noisy) or sum(len(block.rows) for block in noisy.blocks) != len(noisy):
        return None
    own, other = noisy.inclusion()
    if not (np.ptp(own) == 0 and np.ptp(other) == 0 and own[0] > other[0]):  # False for NaN
        return None
    return float(own[0]), float(other[0])


def linear_round(estimator: Estimator, X: object, noisy: NoisyLabels, row_budget: int, random_state: np.random.RandomState) -> Model | None:
    """One fit on outputs as they are; consistent, and the start of expectation-maximisation. None where no common channel exists.

    Each row is repeated once for each class in its output (equal weights, since all outputs have one size). The estimator then models
    P[class in output | x] / size, from which `Model.predict_proba` takes the law's affine map off.

    Parameters
    ----------
    estimator : scikit-learn classifier or pipeline
    X : n rows of features
    noisy : NoisyLabels of n rows
    row_budget : int
        Where more rows would result, each output is thinned to the same number of random members.
    random_state : numpy RandomState
    """
    channel = common_channel(noisy)
    if channel is None:
        return None
    rows, codes = _pairs(members(noisy), max(1, row_budget // len(noisy)), random_state)
    return Model(fit_codes(estimator, X, rows, codes), noisy.n_classes, channel)


def _pairs(inside: NDArray[np.bool_], most: int, random_state: np.random.RandomState) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(rows, codes) of all members, or of `most` random ones a row."""
    if int(inside.sum(axis=1).max(initial=0)) > most:
        order = np.argsort(np.where(inside, random_state.random_sample(inside.shape), 2.0), axis=1)[:, :most]
        thinned = np.zeros_like(inside)
        np.put_along_axis(thinned, order, True, axis=1)
        inside = inside & thinned
    rows, codes = np.nonzero(inside)
    return rows, codes
