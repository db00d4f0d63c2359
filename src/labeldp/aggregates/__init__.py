# SPDX-License-Identifier: Apache-2.0
"""Queries about groups of rows with a trusted curator, which `labeldp.aggregate` answers privately:
histograms, votes, sums of features."""

from labeldp.aggregates._base import Query, TeacherQuery, Tuning
from labeldp.aggregates._histogram import Histogram, Marginals
from labeldp.aggregates._result import Aggregate, query_from_dict
from labeldp.aggregates._sums import FeatureSums
from labeldp.aggregates._vote import Vote

__all__ = [
    "Aggregate",
    "FeatureSums",
    "Histogram",
    "Marginals",
    "Query",
    "TeacherQuery",
    "Tuning",
    "Vote",
    "query_from_dict",
]
