# SPDX-License-Identifier: Apache-2.0
"""Models for the tests of priors, in a module that other processes can import."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin

JITTERY = "tests.prior_models.Jittery"


class Jittery(ClassifierMixin, BaseEstimator):
    """Never says the same twice, and notes how many rows it was asked about."""

    def __init__(self, log: str = "", fault: str = "", jitter: float = 0.5):
        self.log, self.fault, self.jitter = log, fault, jitter

    def fit(self, x: Any, y: Any) -> "Jittery":
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.log:
            with open(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a") as file:
                file.write(f"{len(x)}\n")
        score = x[:, :1] * np.arange(
            len(self.classes_)
        ) + self.jitter * np.random.default_rng().standard_normal((len(x), len(self.classes_)))
        chance = np.exp(score - score.max(axis=1, keepdims=True))
        chance /= chance.sum(axis=1, keepdims=True)
        if self.fault == "nan":
            chance[len(x) // 2, 1] = np.nan
        return chance[:, :-1] if self.fault == "columns" else chance


def asked(log: Path) -> int:
    """Rows that a model was asked about in all."""
    return sum(map(int, log.read_text().split())) if log.exists() else 0


def torch_module() -> Any:
    """A module that a test exports."""
    import torch

    return torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
