# SPDX-License-Identifier: Apache-2.0
"""Statistics of private labels from a release alone: shares, means, quantiles, cross tables,
effects, regressions, and numbers of rows.

Everything here is computed from `NoisyLabels` and public columns. Nothing reads a raw label or
costs epsilon, however often it is called.
"""

from labeldp.stats._crosstab import CrossTable, crosstab
from labeldp.stats._figures import (
    Difference,
    Figures,
    difference,
    effect,
    frequencies,
    mean,
    quantiles,
)
from labeldp.stats._power import MeanDifference, ProportionDifference, power, rows_for
from labeldp.stats._regression import Regression, regress

__all__ = [
    "CrossTable",
    "Difference",
    "Figures",
    "MeanDifference",
    "ProportionDifference",
    "Regression",
    "crosstab",
    "difference",
    "effect",
    "frequencies",
    "mean",
    "power",
    "quantiles",
    "regress",
    "rows_for",
]
