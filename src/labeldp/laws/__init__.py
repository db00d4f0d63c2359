# SPDX-License-Identifier: Apache-2.0
"""Laws: label-DP mechanisms as frozen values. They are pure functions of arrays and uniform words,
without randomness of their own."""

from labeldp.laws._base import (
    LAWS,
    Cell,
    Law,
    Side,
    Table,
    exact_epsilon,
    law_from_dict,
    law_named,
    parse_law,
    register_law,
    spellings,
)
from labeldp.laws._channel import Channel
from labeldp.laws._cluster import ClusterRR
from labeldp.laws._columns import ColumnCounts, Independent, LabelColumns, OneColumn
from labeldp.laws._exact import WORD, Words, exp_floor
from labeldp.laws._grid import Grid
from labeldp.laws._numbers import UnbiasedRandomizer
from labeldp.laws._prior_bins import PriorBins
from labeldp.laws._response import RandomizedResponse, RRTopK, RRWithPrior
from labeldp.laws._square_wave import SquareWave
from labeldp.laws._subset import AutoLaw, PriorSplit, SubsetSelection, Threshold

__all__ = [
    "LAWS",
    "WORD",
    "AutoLaw",
    "Cell",
    "Channel",
    "ClusterRR",
    "ColumnCounts",
    "Grid",
    "Independent",
    "LabelColumns",
    "Law",
    "OneColumn",
    "PriorBins",
    "PriorSplit",
    "RRTopK",
    "RRWithPrior",
    "RandomizedResponse",
    "Side",
    "SquareWave",
    "SubsetSelection",
    "Table",
    "Threshold",
    "UnbiasedRandomizer",
    "Words",
    "exact_epsilon",
    "exp_floor",
    "law_from_dict",
    "law_named",
    "parse_law",
    "register_law",
    "spellings",
]

for _law in (
    RandomizedResponse,
    RRTopK,
    RRWithPrior,
    SubsetSelection,
    PriorSplit,
    PriorBins,
    Threshold,
    AutoLaw,
    ClusterRR,
    SquareWave,
    Independent,
    OneColumn,
    ColumnCounts,
    Channel,
    UnbiasedRandomizer,
):
    register_law(_law)

LAWS.place(
    {
        "alibi": "labeldp.papers._alibi:Alibi",
        "laplace": "labeldp.papers.regression:BoundedLaplace",
        "rr-on-bins": "labeldp.papers.regression:RROnBins",
    }
)
