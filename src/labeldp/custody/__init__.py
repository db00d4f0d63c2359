# SPDX-License-Identifier: Apache-2.0
"""Reads raw labels, charges the ledger, draws, and stores the outputs: the only package that does
any of it.

    privatize           labels in memory -> NoisyLabels
    aggregate           private answers about groups of rows
    aggregate_batches   the same for tables of any length, a batch at a time
    aggregate_best      the best of several queries, at one charge

Names are imported at their first use, so that a machine that only trains on noisy labels loads none
of it.
"""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labeldp.custody._aggregation import aggregate, aggregate_batches, aggregate_best
    from labeldp.custody._run import privatize

__all__ = ["aggregate", "aggregate_batches", "aggregate_best", "privatize"]

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_aggregation": ["aggregate", "aggregate_batches", "aggregate_best"],
        "_run": ["privatize"],
    },
)
