# SPDX-License-Identifier: Apache-2.0
"""Noisy labels as evidence: outputs, laws and public side, with the likelihoods and estimates that
learners compute from them."""

from labeldp.evidence._noisy import Block, NoisyLabels, concat

__all__ = ["Block", "NoisyLabels", "concat"]
