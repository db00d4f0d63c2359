# SPDX-License-Identifier: Apache-2.0
"""Mechanisms that look at many labels at once, by a trusted curator: private answers about groups of rows. `labeldp.aggregate` releases."""

from labeldp.aggregates.base import Query
from labeldp.aggregates.histogram import Histogram
from labeldp.aggregates.result import Aggregate, query_from_dict
from labeldp.aggregates.vote import Vote

__all__ = ["Aggregate", "Histogram", "Query", "Vote", "query_from_dict"]
