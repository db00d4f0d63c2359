# SPDX-License-Identifier: Apache-2.0
"""Label differential privacy: release noisy labels once, train on them with any tool, and prove
what was spent.

    law  --privatize(labels)-->  NoisyLabels  --likelihood (n, K)-->  any learner

Names are imported when they are first used, so that `import labeldp` is instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labeldp import aggregates, deep, stats
    from labeldp.app._release import release
    from labeldp.custody._aggregation import aggregate
    from labeldp.custody._run import privatize
    from labeldp.errors import (
        BudgetExceeded,
        DomainLeakWarning,
        InvalidInput,
        LabelDPError,
        LabelDPWarning,
        LedgerError,
        MissingExtra,
        ReleaseError,
        RowsOverlap,
        SeededNoiseWarning,
        UnrecordedWarning,
    )
    from labeldp.evidence import NoisyLabels, concat
    from labeldp.laws import (
        AutoLaw,
        ClusterRR,
        Grid,
        LabelColumns,
        Law,
        PriorSplit,
        RandomizedResponse,
        RRTopK,
        RRWithPrior,
        SubsetSelection,
        Threshold,
        exact_epsilon,
        register_law,
    )
    from labeldp.learn import LabelDPClassifier, LabelDPRegressor
    from labeldp.ledger._ledger import Ledger
    from labeldp.noise._words import SeededNoise
    from labeldp.protocol import metrics
    from labeldp.receipt import PrivacySpent, Receipt
    from labeldp.tables._evidence import read_noisy
    from labeldp.tables._priors import PriorModel, PriorTable
    from labeldp.tables._spec import ReleaseSpec

__version__ = "0.2.0"

_HOME = {
    **dict.fromkeys(
        (
            "BudgetExceeded",
            "DomainLeakWarning",
            "InvalidInput",
            "LabelDPError",
            "LabelDPWarning",
            "LedgerError",
            "MissingExtra",
            "ReleaseError",
            "RowsOverlap",
            "SeededNoiseWarning",
            "UnrecordedWarning",
        ),
        "labeldp.errors",
    ),
    **dict.fromkeys(("NoisyLabels", "concat"), "labeldp.evidence"),
    **dict.fromkeys(
        (
            "AutoLaw",
            "ClusterRR",
            "Grid",
            "LabelColumns",
            "Law",
            "PriorSplit",
            "RRTopK",
            "RRWithPrior",
            "RandomizedResponse",
            "SubsetSelection",
            "Threshold",
            "exact_epsilon",
            "register_law",
        ),
        "labeldp.laws",
    ),
    "LabelDPClassifier": "labeldp.learn",
    "LabelDPRegressor": "labeldp.learn",
    "Ledger": "labeldp.ledger._ledger",
    "PriorModel": "labeldp.tables._priors",
    "PriorTable": "labeldp.tables._priors",
    "PrivacySpent": "labeldp.receipt",
    "Receipt": "labeldp.receipt",
    "ReleaseSpec": "labeldp.tables._spec",
    "SeededNoise": "labeldp.noise._words",
    "aggregate": "labeldp.custody._aggregation",
    "privatize": "labeldp.custody._run",
    "read_noisy": "labeldp.tables._evidence",
    "release": "labeldp.app._release",
}
_MODULES = {
    "aggregates": "labeldp.aggregates",
    "deep": "labeldp.deep",
    "errors": "labeldp.errors",
    "laws": "labeldp.laws",
    "learn": "labeldp.learn",
    "metrics": "labeldp.protocol.metrics",
    "stats": "labeldp.stats",
}

__all__ = [
    "AutoLaw",
    "BudgetExceeded",
    "ClusterRR",
    "DomainLeakWarning",
    "Grid",
    "InvalidInput",
    "LabelColumns",
    "LabelDPClassifier",
    "LabelDPError",
    "LabelDPRegressor",
    "LabelDPWarning",
    "Law",
    "Ledger",
    "LedgerError",
    "MissingExtra",
    "NoisyLabels",
    "PriorModel",
    "PriorSplit",
    "PriorTable",
    "PrivacySpent",
    "RRTopK",
    "RRWithPrior",
    "RandomizedResponse",
    "Receipt",
    "ReleaseError",
    "ReleaseSpec",
    "RowsOverlap",
    "SeededNoise",
    "SeededNoiseWarning",
    "SubsetSelection",
    "Threshold",
    "UnrecordedWarning",
    "aggregate",
    "aggregates",
    "concat",
    "deep",
    "errors",
    "exact_epsilon",
    "laws",
    "learn",
    "metrics",
    "privatize",
    "read_noisy",
    "register_law",
    "release",
    "stats",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    from labeldp._validate import suggest

    raise AttributeError(f"module 'labeldp' has no attribute {name!r}.{suggest(name, __all__)}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
