# SPDX-License-Identifier: Apache-2.0
"""Noisy labels as evidence: outputs, laws and public side, and all that a learner may compute from them."""

from labeldp.evidence._noisy import Block, NoisyLabels, concat

__all__ = ["Block", "NoisyLabels", "concat"]
