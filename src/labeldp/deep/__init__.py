# SPDX-License-Identifier: Apache-2.0
"""Learn from noisy labels with PyTorch (extra `torch`): losses, datasets, a training loop, models,
augmentation and schedules.

In your own training loop, three lines change:

    data = labeldp.deep.with_evidence(dataset, noisy)            # items (x, i, log-likelihood row)
    for x, _, log_likelihood in DataLoader(data, ...):
        loss = labeldp.deep.likelihood_loss(model(x), log_likelihood)

Without a loop of your own, `train(net, inputs, evidence_of(noisy), Recipe(), generator=...)` is a
whole training. Names are imported when they are first used, and torch with them; `import labeldp`
never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from labeldp.errors import needs_torch

if TYPE_CHECKING:
    from labeldp.deep import augment, models, schedules
    from labeldp.deep._consistency import (
        Consistency,
        consensus,
        denoise,
        group_votes,
        neighbour_votes,
    )
    from labeldp.deep._estimator import TorchClassifier
    from labeldp.deep._inputs import (
        Inputs,
        Resident,
        Streamed,
        WithEvidence,
        as_inputs,
        with_evidence,
    )
    from labeldp.deep._loop import Epoch, Recipe, predict, train
    from labeldp.deep._losses import (
        Candidates,
        Combined,
        Dense,
        Form,
        Heads,
        PackedSets,
        Sum,
        column_evidence,
        cross_entropy,
        debias_weights,
        debiased_loss,
        evidence_of,
        generalised_cross_entropy,
        likelihood_loss,
        mixup_loss,
        posterior_loss,
    )
    from labeldp.deep._regressor import LocationHead, TorchRegressor

_HOME = {
    "_losses": (
        *("Candidates", "Combined", "Dense", "Form", "Heads", "PackedSets", "Sum"),
        *("column_evidence", "debias_weights", "evidence_of"),
        *(
            "cross_entropy",
            "debiased_loss",
            "generalised_cross_entropy",
            "likelihood_loss",
            "mixup_loss",
            "posterior_loss",
        ),
    ),
    "_inputs": ("Inputs", "Resident", "Streamed", "WithEvidence", "as_inputs", "with_evidence"),
    "_consistency": (
        "Consistency",
        "consensus",
        "denoise",
        "group_votes",
        "neighbour_votes",
    ),
    "_loop": ("Epoch", "Recipe", "predict", "train"),
    "_estimator": ("TorchClassifier",),
    "_regressor": ("LocationHead", "TorchRegressor"),
}
_MODULES = ("augment", "models", "schedules")

__all__ = [
    "Candidates",
    "Combined",
    "Consistency",
    "Dense",
    "Epoch",
    "Form",
    "Heads",
    "Inputs",
    "LocationHead",
    "PackedSets",
    "Recipe",
    "Resident",
    "Streamed",
    "Sum",
    "TorchClassifier",
    "TorchRegressor",
    "WithEvidence",
    "as_inputs",
    "augment",
    "column_evidence",
    "consensus",
    "cross_entropy",
    "debias_weights",
    "debiased_loss",
    "denoise",
    "evidence_of",
    "generalised_cross_entropy",
    "group_votes",
    "likelihood_loss",
    "mixup_loss",
    "models",
    "neighbour_votes",
    "posterior_loss",
    "predict",
    "schedules",
    "train",
    "with_evidence",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return _imported(name)
    for module, names in _HOME.items():
        if name in names:
            return getattr(_imported(module), name)
    from labeldp._validate import suggest

    raise AttributeError(
        f"module 'labeldp.deep' has no attribute {name!r}.{suggest(name, __all__)}"
    )


def _imported(module: str) -> object:
    with needs_torch():
        return import_module(f"labeldp.deep.{module}")


def __dir__() -> list[str]:
    return sorted(__all__)
