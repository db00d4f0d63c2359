# SPDX-License-Identifier: Apache-2.0
"""Deep learning with labeldp: accuracy, cost of a step, defaults, and fits that are killed. Needs
torch."""
