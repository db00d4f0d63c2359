# SPDX-License-Identifier: Apache-2.0
"""Accuracy at small epsilon: clusters of public features against randomized response and published
numbers."""
