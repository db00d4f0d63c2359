# SPDX-License-Identifier: Apache-2.0
"""Laws: label-DP mechanisms as frozen values. Pure mathematics on arrays, handed uniform words, with no randomness of their own."""

from labeldp.laws.auto import AutoLaw
from labeldp.laws.base import LAWS, Cell, Law, Words, exact_epsilon, law_from_dict, register_law
from labeldp.laws.cluster import ClusterRR
from labeldp.laws.response import RandomizedResponse, RRTopK, RRWithPrior
from labeldp.laws.scores import Alibi
from labeldp.laws.split import PriorSplit
from labeldp.laws.subset import SubsetSelection

__all__ = [
    "LAWS",
    "Alibi",
    "AutoLaw",
    "Cell",
    "ClusterRR",
    "Law",
    "PriorSplit",
    "RRTopK",
    "RRWithPrior",
    "RandomizedResponse",
    "SubsetSelection",
    "Words",
    "exact_epsilon",
    "law_from_dict",
    "register_law",
]

for _law in (RandomizedResponse, RRTopK, RRWithPrior, SubsetSelection, PriorSplit, AutoLaw, ClusterRR, Alibi):
    register_law(_law)
